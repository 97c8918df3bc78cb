//! DNS (RFC 1035): names of ports in the segment's domain, and names of their addresses.
//!
//! Queries for other names are for a forwarder, if there is one, else refused, so that a resolver asks its next server. Every query gets an
//! answer, also one with a type, class, opcode, flag, EDNS version or option that is not known here (RFC 8906), and one that is malformed behind
//! its header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::exchange::{Client, Refused};
use crate::forward;
use crate::leases::Leases;
use crate::outside::{self, Response};
use crate::settings::Settings;

/// Seconds for which a resolver may keep an answer: leases move seldom.
const TTL: u32 = 10;
/// Longest answer by UDP that is offered to a client (RFC 9715, section 3.2).
const PAYLOAD: u16 = 1232;
/// Longest answer by UDP without EDNS (RFC 1035, section 2.3.4).
const LEAST_PAYLOAD: u16 = 512;
/// Most addresses in an answer: it fits 512 bytes then, the limit without EDNS.
const MOST: usize = 8;
/// Most records of a DNS query that are walked.
const MOST_RECORDS: usize = 16;
/// Bytes of a header, behind which the question begins.
const HEADER: usize = 12;
/// Longest name (RFC 1035, section 2.3.4).
const NAME: usize = 255;
/// The first two bits of a pointer to an earlier name (RFC 1035, section 4.1.4).
const POINTER: u16 = 0xc000;

/// Types and classes of records.
mod record {
    pub(super) const A: u16 = 1;
    pub(super) const CNAME: u16 = 5;
    pub(super) const SOA: u16 = 6;
    pub(super) const PTR: u16 = 12;
    pub(super) const HINFO: u16 = 13;
    pub(super) const AAAA: u16 = 28;
    pub(super) const OPT: u16 = 41;
    /// Zone transfers: IXFR and AXFR.
    pub(super) const TRANSFERS: [u16; 2] = [251, 252];
    pub(super) const ANY: u16 = 255;
    pub(super) const IN: u16 = 1;
}

/// Response codes (RFC 6895, section 2.3).
mod code {
    pub(super) const NO_ERROR: u16 = 0;
    pub(super) const FORMAT: u16 = 1;
    pub(super) const SERVER_FAILURE: u16 = 2;
    pub(super) const NO_NAME: u16 = 3;
    pub(super) const NOT_IMPLEMENTED: u16 = 4;
    pub(super) const REFUSED: u16 = 5;
    pub(super) const BAD_VERSION: u16 = 16;
}

/// Flags in the third and fourth byte of a header.
mod flag {
    pub(super) const RESPONSE: u16 = 0x8000;
    pub(super) const OPCODE: u16 = 0x7800;
    pub(super) const AUTHORITATIVE: u16 = 0x0400;
    pub(super) const TRUNCATED: u16 = 0x0200;
    pub(super) const RECURSION_DESIRED: u16 = 0x0100;
    pub(super) const RECURSION_AVAILABLE: u16 = 0x0080;
    pub(super) const CHECKING_DISABLED: u16 = 0x0010;
}

/// `domain` as labels with their lengths (RFC 1035, section 3.1); `None` if it is no domain name.
pub(crate) fn encoded(domain: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for label in domain.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        bytes.push(length);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    (bytes.len() <= NAME).then_some(bytes)
}

/// Bytes of a DNS message that are still to be read.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// The labels of a name without pointers, which has no more than [`NAME`] bytes.
    fn name(&mut self) -> Option<Vec<&'b [u8]>> {
        let (mut labels, mut length) = (Vec::new(), 1);
        loop {
            let label = usize::from(self.take(1)?[0]);
            length += 1 + label;
            match label {
                0 => return Some(labels),
                1..=63 if length <= NAME => labels.push(self.take(label)?),
                _ => return None,
            }
        }
    }

    /// Skips a name: it ends with the root or a pointer.
    fn skip_name(&mut self) -> Option<()> {
        loop {
            match self.take(1)?[0] {
                0 => return Some(()),
                label @ 1..=63 => drop(self.take(label.into())?),
                label if label & 0xc0 == 0xc0 => return self.take(1).map(drop),
                _ => return None,
            }
        }
    }
}

/// A label in lower case, with a letter for each byte.
fn text(label: &[u8]) -> String {
    label.iter().map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

/// A question, with its bytes as the client sent them: the case of letters is kept.
struct Question<'b> {
    bytes: &'b [u8],
    labels: Vec<String>,
    kind: u16,
    class: u16,
}

/// An OPT record (RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edns {
    version: u8,
    /// Longest answer by UDP that the client takes.
    payload: u16,
    /// The flag DO, which an answer repeats (RFC 3225, section 3).
    wants_dnssec: u16,
}

struct Query<'b> {
    id: u16,
    flags: u16,
    question: Option<Question<'b>>,
    edns: Option<Edns>,
    /// The message is shorter than its header says, or has another number of questions than one.
    is_malformed: bool,
}

impl<'b> Query<'b> {
    /// # Errors
    /// The message has no header, or is no query.
    fn of(bytes: &'b [u8]) -> Result<Self, Refused> {
        let mut rest = Rest(bytes);
        let mut numbers = [0; HEADER / 2];
        for number in &mut numbers {
            *number = rest.number().ok_or(Refused::Malformed)?;
        }
        let [id, flags, questions, answers, authorities, additional] = numbers;
        if flags & flag::RESPONSE != 0 {
            return Err(Refused::NotAsked);
        }
        let mut query = Self { id, flags, question: None, edns: None, is_malformed: true };
        query.question = if questions == 1 { Self::question(&mut rest) } else { None };
        if query.question.is_some() || questions == 0 {
            let records = [answers, authorities, additional].map(usize::from).iter().sum();
            let is_whole = query.walk(&mut rest, records).is_some();
            query.is_malformed = !is_whole || questions == 0;
        }
        Ok(query)
    }

    fn question(rest: &mut Rest<'b>) -> Option<Question<'b>> {
        let start = rest.0;
        let labels = rest.name()?.into_iter().map(text).collect();
        let (kind, class) = (rest.number()?, rest.number()?);
        Some(Question { bytes: &start[..start.len() - rest.0.len()], labels, kind, class })
    }

    /// Walks `count` records behind the question, for an OPT record.
    fn walk(&mut self, rest: &mut Rest<'b>, count: usize) -> Option<()> {
        for _ in 0..count.min(MOST_RECORDS) {
            let is_root = rest.0.first() == Some(&0);
            rest.skip_name()?;
            // The class of an OPT record is the payload.
            let (kind, payload) = (rest.number()?, rest.number()?);
            let (ttl, length) = ([rest.number()?, rest.number()?], rest.number()?);
            rest.take(length.into())?;
            if kind == record::OPT {
                // One at most, of the root (RFC 6891, section 6.1.1).
                let edns = Edns { version: ttl[0] as u8, payload, wants_dnssec: ttl[1] & 0x8000 };
                let is_first = self.edns.replace(edns).is_none();
                (is_root && is_first).then_some(())?;
            }
        }
        Some(())
    }
}

/// Outcome of a query.
#[derive(Debug)]
pub(crate) enum Reaction {
    /// The question has this answer.
    Answer(Vec<u8>),
    /// The question is for a forwarder.
    Outside(Outside),
}

/// A question for a name outside, and the parts of its query that the answer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outside {
    id: u16,
    flags: u16,
    edns: Option<Edns>,
    /// Name, type and class, as the client sent them.
    pub question: Vec<u8>,
    /// The name in lower case, without the root's dot.
    pub name: String,
    /// See [`forward::Question::has_other_servers`].
    has_other_servers: bool,
}

/// Why a name outside has no records for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRecords {
    /// The port's rules refuse it, and the client is told that there is no such name.
    NoName,
    /// The port's rules refuse it, and the client is told so.
    Refused,
    /// No resolver answers.
    Failure,
}

impl Outside {
    /// Whether both are one question of a client.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.question == other.question
    }

    /// The question for a forwarder, with this number.
    pub(crate) fn question(&self, id: u64) -> forward::Question {
        let checking_disabled = self.flags & flag::CHECKING_DISABLED != 0;
        let has_other_servers = self.has_other_servers;
        forward::Question { id, bytes: self.question.clone(), checking_disabled, has_other_servers }
    }

    /// Longest answer by UDP (RFC 6891, section 6.2.3).
    pub(crate) fn longest(&self) -> usize {
        self.edns.map_or(LEAST_PAYLOAD, |edns| edns.payload.clamp(LEAST_PAYLOAD, PAYLOAD)).into()
    }

    fn query(&self) -> Query<'_> {
        let question = Question { bytes: &self.question, labels: Vec::new(), kind: 0, class: record::IN };
        Query { id: self.id, flags: self.flags, question: Some(question), edns: self.edns, is_malformed: false }
    }

    /// The answer without records.
    pub(crate) fn without_records(&self, why: NoRecords) -> Vec<u8> {
        let code = match why {
            NoRecords::NoName => code::NO_NAME,
            NoRecords::Refused => code::REFUSED,
            NoRecords::Failure => code::SERVER_FAILURE,
        };
        Reply::new(&self.query()).outside(&Response { code, ..Response::default() }, 0)
    }

    /// The answer with the records of `response`, and whether it fits `longest` bytes: else it tells that it does not.
    pub(crate) fn with(&self, response: &Response, longest: usize) -> (Vec<u8>, bool) {
        let query = self.query();
        let whole = Reply::new(&query).outside(response, 0);
        if whole.len() <= longest {
            return (whole, true);
        }
        (Reply::new(&query).outside(&Response { code: response.code, ..Response::default() }, flag::TRUNCATED), false)
    }
}

/// Reacts to the query `bytes` of `client`.
///
/// # Errors
/// The bytes are no query.
pub(crate) fn react(settings: &Settings, leases: &Leases, client: Client<'_>, bytes: &[u8]) -> Result<Reaction, Refused> {
    let query = Query::of(bytes)?;
    let found = match &query {
        Query { flags, .. } if flags & flag::OPCODE != 0 => Found::Code(code::NOT_IMPLEMENTED),
        Query { edns: Some(Edns { version: 1.., .. }), .. } => Found::Code(code::BAD_VERSION),
        Query { question: Some(question), is_malformed: false, .. } => Zone { settings, leases, client }.look_up(question),
        _ => Found::Code(code::FORMAT),
    };
    let found = match (found, &query.question) {
        (Found::Code(code::REFUSED), Some(question)) if settings.forwards && query.flags & flag::RECURSION_DESIRED != 0 => {
            match asked_outside(question) {
                Some(Ok(name)) => {
                    let Query { id, flags, edns, .. } = query;
                    let (question, has_other_servers) = (question.bytes.to_vec(), !settings.asked.is_empty());
                    return Ok(Reaction::Outside(Outside { id, flags, edns, question, name, has_other_servers }));
                }
                Some(Err(code)) => Found::Code(code),
                None => Found::Code(code::REFUSED),
            }
        }
        (found, _) => found,
    };
    Ok(Reaction::Answer(Reply::new(&query).with(found)))
}

/// The name in a question for a resolver, or the code for one that no resolver is asked; `None` if it is refused.
fn asked_outside(question: &Question<'_>) -> Option<Result<String, u16>> {
    // Names of this host and its links (RFC 6761, RFC 6762, RFC 7686), which no resolver knows.
    const LOCAL: [&str; 4] = ["localhost", "local", "invalid", "onion"];
    if question.class != record::IN || !outside::is_asked(question.kind) {
        return None;
    }
    let is_local = question.labels.len() < 2 || question.labels.last().is_some_and(|last| LOCAL.contains(&last.as_str()));
    // A label with a dot would be another name in text.
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/');
    let are_good = question.labels.iter().all(|label| label.chars().all(is_good));
    Some(if is_local || !are_good { Err(code::NO_NAME) } else { Ok(question.labels.join(".")) })
}

/// Records of a name: their type and contents.
type Records = Vec<(u16, Vec<u8>)>;

/// The outcome of a look-up.
enum Found {
    /// Records of a name in the zone that begins at this label of the name, perhaps none of the type in question.
    Records(Records, usize),
    /// The zone that begins at this label has no such name.
    NoName(usize),
    /// An error.
    Code(u16),
}

/// A DNS answer that is written.
struct Reply<'q, 'b> {
    query: &'q Query<'b>,
    bytes: Vec<u8>,
}

impl<'q, 'b> Reply<'q, 'b> {
    fn new(query: &'q Query<'b>) -> Self {
        let question = query.question.as_ref().map_or(&[][..], |question| question.bytes);
        let mut bytes = vec![0; HEADER];
        bytes.extend(question);
        Self { query, bytes }
    }

    fn with(mut self, found: Found) -> Vec<u8> {
        let (code, records, zone) = match found {
            Found::Records(records, zone) => (code::NO_ERROR, records, Some(zone)),
            Found::NoName(zone) => (code::NO_NAME, Vec::new(), Some(zone)),
            Found::Code(code) => (code, Vec::new(), None),
        };
        for (kind, data) in &records {
            self.put(POINTER | HEADER as u16, *kind, data);
        }
        // RFC 2308, section 3.
        let negative = zone.filter(|_| records.is_empty());
        negative.into_iter().for_each(|zone| {
            let apex = self.query.question.as_ref().map_or(POINTER, |question| pointer_to(&question.labels, zone));
            self.put(apex, record::SOA, &soa(apex));
        });
        self.put_edns(code);
        let is_ours = if zone.is_some() { flag::AUTHORITATIVE } else { 0 };
        let copied = flag::OPCODE | flag::RECURSION_DESIRED | flag::CHECKING_DISABLED;
        let flags = flag::RESPONSE | is_ours | self.query.flags & copied | code & 0xf;
        self.end(flags, records.len() as u16, negative.is_some())
    }

    /// The answer to a question for a name outside, with these further `flags`.
    fn outside(mut self, response: &Response, flags: u16) -> Vec<u8> {
        let mut owner = POINTER | HEADER as u16;
        for told in &response.records {
            self.put_for(owner, told.kind, told.ttl, &told.data);
            if told.is_alias && told.kind == record::CNAME {
                // A dozen names at most stand before.
                owner = POINTER | (self.bytes.len() - told.data.len()) as u16;
            }
        }
        if let Some((name, ttl, data)) = &response.soa {
            self.bytes.extend(name);
            self.put_contents(record::SOA, *ttl, data);
        }
        self.put_edns(response.code);
        let copied = self.query.flags & (flag::RECURSION_DESIRED | flag::CHECKING_DISABLED);
        let flags = flag::RESPONSE | flag::RECURSION_AVAILABLE | flags | copied | response.code & 0xf;
        self.end(flags, response.records.len() as u16, response.soa.is_some())
    }

    /// Writes the header.
    fn end(mut self, flags: u16, records: u16, has_authority: bool) -> Vec<u8> {
        let has = |is: bool| u16::from(is);
        let counts = [has(self.query.question.is_some()), records, has(has_authority), has(self.query.edns.is_some())];
        let head = [self.query.id, flags].into_iter().chain(counts).flat_map(u16::to_be_bytes);
        self.bytes.iter_mut().zip(head).for_each(|(byte, value)| *byte = value);
        self.bytes
    }

    fn put(&mut self, name: u16, kind: u16, data: &[u8]) {
        self.put_for(name, kind, TTL, data);
    }

    fn put_for(&mut self, name: u16, kind: u16, ttl: u32, data: &[u8]) {
        self.bytes.extend(name.to_be_bytes());
        self.put_contents(kind, ttl, data);
    }

    fn put_contents(&mut self, kind: u16, ttl: u32, data: &[u8]) {
        self.bytes.extend([kind, record::IN].into_iter().flat_map(u16::to_be_bytes));
        self.bytes.extend(ttl.to_be_bytes());
        self.bytes.extend((data.len() as u16).to_be_bytes());
        self.bytes.extend(data);
    }

    /// RFC 6891, section 6.1.1: an OPT record where the query has one; it has the upper bits of the code.
    fn put_edns(&mut self, code: u16) {
        if let Some(edns) = self.query.edns {
            let [upper, version] = [(code >> 4) as u8, 0];
            self.bytes.push(0);
            self.bytes.extend(
                [record::OPT, PAYLOAD, u16::from_be_bytes([upper, version]), edns.wants_dnssec, 0]
                    .into_iter()
                    .flat_map(u16::to_be_bytes),
            );
        }
    }
}

/// A pointer to label `index` of the question's name.
fn pointer_to(labels: &[String], index: usize) -> u16 {
    let before: usize = labels.iter().take(index).map(|label| 1 + label.chars().count()).sum();
    POINTER | (HEADER + before) as u16
}

/// The SOA record of the zone with the name at `apex`: the zone itself is server and mailbox.
fn soa(apex: u16) -> Vec<u8> {
    const SERIAL_REFRESH_RETRY_EXPIRE: [u32; 4] = [1, 3600, 600, 86400];
    let mut data = [apex, apex].map(u16::to_be_bytes).concat();
    data.extend(SERIAL_REFRESH_RETRY_EXPIRE.into_iter().chain([TTL]).flat_map(u32::to_be_bytes));
    data
}

struct Zone<'z> {
    settings: &'z Settings,
    leases: &'z Leases,
    client: Client<'z>,
}

impl Zone<'_> {
    fn look_up(&self, question: &Question<'_>) -> Found {
        let labels = &question.labels[..];
        let domain: Vec<String> = self.settings.domain.split('.').map(str::to_ascii_lowercase).collect();
        if ![record::IN, record::ANY].contains(&question.class) || record::TRANSFERS.contains(&question.kind) {
            return Found::Code(code::REFUSED);
        }
        if let Some(name) = labels.strip_suffix(&domain[..]) {
            return self.forward(name, question);
        }
        match address_of(labels).filter(|address| self.settings.contains(*address)) {
            Some(address) => self.reverse(address, question),
            None => Found::Code(code::REFUSED),
        }
    }

    /// Records of a name in the domain.
    fn forward(&self, name: &[String], question: &Question<'_>) -> Found {
        let zone = name.len();
        if name.is_empty() {
            let own = [(record::SOA, soa(pointer_to(&question.labels, 0)))];
            return found(own.to_vec(), question, zone);
        }
        let Some(port) = self.leases.port_called(&name.join(".")) else { return Found::NoName(zone) };
        let record = |address| match address {
            IpAddr::V4(address) => (record::A, address.octets().to_vec()),
            IpAddr::V6(address) => (record::AAAA, address.octets().to_vec()),
        };
        // A twin is told its own address as it has it inside.
        let told = |address| record(self.leases.exchanged(self.client.port, address));
        found(self.leases.addresses(port, self.client.now).into_iter().map(told).collect(), question, zone)
    }

    /// Names of an address.
    fn reverse(&self, address: IpAddr, question: &Question<'_>) -> Found {
        // The zone of the subnet: of /24, or /64.
        let zone = if address.is_ipv4() { 1 } else { 16 };
        let address = self.leases.exchanged(self.client.port, address);
        let owner = self.leases.owner(address).filter(|port| self.leases.addresses(port, self.client.now).contains(&address));
        // A port's name may be longer than a label.
        let name = owner.and_then(|port| encoded(&format!("{port}.{}", self.settings.domain)));
        name.map_or(Found::NoName(zone), |name| found(vec![(record::PTR, name)], question, zone))
    }
}

/// Entries of `records` that are of the type in question.
fn found(records: Records, question: &Question<'_>, zone: usize) -> Found {
    if question.kind == record::ANY {
        // RFC 8482, section 4.2.
        return Found::Records(vec![(record::HINFO, b"\x07RFC8482\0".to_vec())], zone);
    }
    let wanted = records.into_iter().filter(|(kind, _)| *kind == question.kind).take(MOST);
    Found::Records(wanted.collect(), zone)
}

/// The address of a name in in-addr.arpa (RFC 1035, section 3.5) or ip6.arpa (RFC 3596, section 2.5).
fn address_of(labels: &[String]) -> Option<IpAddr> {
    let (tree, numbers) = (labels.get(labels.len().checked_sub(2)?..)?, &labels[..labels.len() - 2]);
    match (tree, numbers.len()) {
        ([first, second], 4) if first == "in-addr" && second == "arpa" => {
            let digits = |label: &String| label.parse::<u8>().ok().filter(|number| number.to_string() == *label);
            let octets: Option<Vec<u8>> = numbers.iter().rev().map(digits).collect();
            Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets?).ok()?).into())
        }
        ([first, second], 32) if first == "ip6" && second == "arpa" => {
            let digit = |label: &String| label.chars().next().filter(|_| label.len() == 1)?.to_digit(16);
            let bits = numbers.iter().rev().try_fold(0_u128, |bits, label| Some(bits << 4 | u128::from(digit(label)?)))?;
            Some(Ipv6Addr::from(bits).into())
        }
        _ => None,
    }
}
