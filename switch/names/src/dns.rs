//! DNS (RFC 1035): names of ports in the segment's domain, and names of their addresses.
//!
//! Queries for other names are refused, not forwarded, so that a resolver asks its next server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use simple_dns::rdata::{A, AAAA, OPT, PTR, RData, SOA};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE};

use crate::exchange::Refused;
use crate::leases::Leases;
use crate::settings::Settings;

/// Seconds for which a resolver may keep an answer: leases move seldom.
const TTL: u32 = 10;
/// Longest query that is looked at, and longest answer (RFC 9715, section 3.2).
const LONGEST: usize = 1232;
/// Most addresses in an answer: it fits 512 bytes then, the limit without EDNS.
const MOST: usize = 8;
/// Bytes of a header.
const HEADER: usize = 12;
/// Numbers of records of a query: a question, no answers, and at most two further ones, as of EDNS.
const MOST_RECORDS: [u8; 4] = [1, 0, 0, 2];

/// `domain` as labels with their lengths (RFC 1035, section 3.1); `None` if it is no domain name.
pub(crate) fn encoded(domain: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for label in domain.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        bytes.push(length);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    (bytes.len() <= 255).then_some(bytes)
}

/// Whether the numbers of records in the header are those of a query: the parser allocates by them.
fn has_few_records(bytes: &[u8]) -> bool {
    let numbers = bytes.get(HEADER - 8..HEADER).unwrap_or(&[0xff; 8]);
    numbers.chunks(2).zip(MOST_RECORDS).all(|(number, most)| number[0] == 0 && number[1] <= most)
}

/// The answer to the query `bytes`.
pub(crate) fn answer(settings: &Settings, leases: &Leases, now: u64, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
    if bytes.len() > LONGEST || !has_few_records(bytes) {
        return Err(Refused::Malformed);
    }
    // A malformed query gets no answer: forged ones cost the least then.
    let request = Packet::parse(bytes).map_err(|_| Refused::Malformed)?;
    if request.has_flags(PacketFlag::RESPONSE) {
        return Err(Refused::NotAsked);
    }
    let [question] = &request.questions[..] else { return Err(Refused::Malformed) };
    let mut reply = Packet::new_reply(request.id());
    *reply.opcode_mut() = request.opcode();
    if request.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    if request.opt().is_some() {
        // RFC 6891, section 6.1.1.
        *reply.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: LONGEST as u16, version: 0 });
    }
    reply.questions.push(question.clone());
    let found = match request.opcode() {
        OPCODE::StandardQuery => Zone { settings, leases, now }.look_up(question),
        _ => Found::Code(RCODE::NotImplemented),
    };
    found.put(settings, &question.qname, &mut reply);
    reply.build_bytes_vec_compressed().map_err(|_| Refused::Malformed)
}

/// The outcome of a look-up.
enum Found {
    /// Records of the name, perhaps none of the type in question.
    Records(Vec<RData<'static>>),
    /// An error.
    Code(RCODE),
}

impl Found {
    fn put<'r>(self, settings: &'r Settings, name: &Name<'r>, reply: &mut Packet<'r>) {
        let (records, code) = match self {
            Self::Records(records) => (records, RCODE::NoError),
            Self::Code(code) => (Vec::new(), code),
        };
        let is_ours = matches!(code, RCODE::NoError | RCODE::NameError);
        *reply.rcode_mut() = code;
        if is_ours {
            reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
        }
        if is_ours && records.is_empty() {
            // RFC 2308, section 3.
            reply.name_servers.extend(soa(settings));
        }
        let record = |data| ResourceRecord::new(name.clone(), CLASS::IN, TTL, data);
        reply.answers.extend(records.into_iter().map(record));
    }
}

fn soa(settings: &Settings) -> Option<ResourceRecord<'_>> {
    let name = Name::new(&settings.domain).ok()?;
    let (mname, rname) = (name.clone(), name.clone());
    let soa = SOA { mname, rname, serial: 1, refresh: 3600, retry: 600, expire: 86400, minimum: TTL };
    Some(ResourceRecord::new(name, CLASS::IN, TTL, RData::SOA(soa)))
}

struct Zone<'z> {
    settings: &'z Settings,
    leases: &'z Leases,
    now: u64,
}

impl Zone<'_> {
    fn look_up(&self, question: &Question<'_>) -> Found {
        let labels: Vec<String> =
            question.qname.as_bytes().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
        let domain: Vec<String> = self.settings.domain.split('.').map(str::to_ascii_lowercase).collect();
        let is_of = |kind| question.qtype == QTYPE::TYPE(kind);
        if question.qclass != QCLASS::CLASS(CLASS::IN) {
            return Found::Code(RCODE::Refused);
        }
        if let Some(name) = labels.strip_suffix(&domain[..]) {
            return self.forward(name, is_of);
        }
        match address_of(&labels).filter(|address| self.settings.contains(*address)) {
            Some(address) => self.reverse(address, is_of),
            None => Found::Code(RCODE::Refused),
        }
    }

    /// Records of a name in the domain.
    fn forward(&self, name: &[String], is_of: impl Fn(TYPE) -> bool) -> Found {
        if name.is_empty() {
            return Found::Records(Vec::new());
        }
        let Some(port) = self.leases.port_called(&name.join(".")) else { return Found::Code(RCODE::NameError) };
        let record = |address| match address {
            IpAddr::V4(address) if is_of(TYPE::A) => Some(RData::A(A { address: address.into() })),
            IpAddr::V6(address) if is_of(TYPE::AAAA) => Some(RData::AAAA(AAAA { address: address.into() })),
            _ => None,
        };
        Found::Records(self.leases.addresses(port, self.now).into_iter().filter_map(record).take(MOST).collect())
    }

    /// Names of an address.
    fn reverse(&self, address: IpAddr, is_of: impl Fn(TYPE) -> bool) -> Found {
        let owner = self.leases.owner(address).filter(|port| self.leases.addresses(port, self.now).contains(&address));
        let Some(port) = owner else { return Found::Code(RCODE::NameError) };
        let name = format!("{port}.{}", self.settings.domain);
        match Name::new(&name) {
            Ok(name) if is_of(TYPE::PTR) => Found::Records(vec![RData::PTR(PTR(name.into_owned()))]),
            Ok(_) => Found::Records(Vec::new()),
            // A port's name may be longer than a label.
            Err(_) => Found::Code(RCODE::NameError),
        }
    }
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
