//! Answers of resolvers about names outside: the records that a guest is told, and the addresses in them.
//!
//! A resolver may lie. The guest is told the chain of aliases from the name in question, then the records of the type in question at its end, and
//! of an answer without them the zone's SOA record. Records of other names and addresses that no name outside has are left out: an address of
//! the segment would lead to another guest (DNS rebinding). Each address that is told, also by a hint of a service (RFC 9460), is one of
//! [`Response::addresses`].

use std::net::{IpAddr, Ipv6Addr};

use crate::settings::Settings;

/// Most aliases from a name to its records.
const MOST_ALIASES: usize = 12;
/// Most addresses in an answer.
pub(crate) const MOST_ADDRESSES: usize = 32;
/// Most bytes of records in an answer.
const MOST_BYTES: usize = 3500;
/// Longest time for which a guest may keep a record, in seconds.
const LONGEST_TTL: u32 = 86_400;
/// Longest name (RFC 1035, section 2.3.4).
const NAME: usize = 255;
const HEADER: usize = 12;

/// Types of records.
mod kind {
    pub(super) const A: u16 = 1;
    pub(super) const NS: u16 = 2;
    pub(super) const CNAME: u16 = 5;
    pub(super) const SOA: u16 = 6;
    pub(super) const PTR: u16 = 12;
    pub(super) const MX: u16 = 15;
    pub(super) const AAAA: u16 = 28;
    pub(super) const SRV: u16 = 33;
    pub(super) const DNAME: u16 = 39;
    pub(super) const SVCB: u16 = 64;
    pub(super) const HTTPS: u16 = 65;
    /// Types that are asked of no resolver: names in their data may be compressed (RFC 3597, section 4), or they are about messages.
    pub(super) const NOT_ASKED: [u16; 22] =
        [0, 3, 4, 7, 8, 9, 10, 14, 17, 18, 21, 24, 26, 30, 36, 41, 249, 250, 251, 252, 253, 254];
    pub(super) const ANY: u16 = 255;
}

const IN: u16 = 1;

/// Whether resolvers are asked for records of this type.
pub(crate) fn is_asked(kind: u16) -> bool {
    kind != kind::ANY && !kind::NOT_ASKED.contains(&kind)
}

/// A record that a guest is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The name of the record is the one to which the last alias led; else it is an alias of that one.
    pub is_alias: bool,
    pub kind: u16,
    pub ttl: u32,
    /// Data of the record, with names without pointers.
    pub data: Vec<u8>,
}

/// An answer about a name outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Response {
    /// Response code: 0, or 3 where there is no such name.
    pub code: u16,
    pub records: Vec<Told>,
    /// Name, TTL and data of the SOA record of an answer without records (RFC 2308).
    pub soa: Option<(Vec<u8>, u32, Vec<u8>)>,
    /// Addresses that the guest is told, and their TTL.
    pub addresses: Vec<(IpAddr, u32)>,
}

/// A record, as a resolver sent it.
struct Record {
    owner: Vec<u8>,
    kind: u16,
    class: u16,
    ttl: u32,
    /// Where its data begins, and its length.
    data: (usize, usize),
}

/// Bytes of a message from a place on.
struct Rest<'m> {
    message: &'m [u8],
    at: usize,
}

impl<'m> Rest<'m> {
    fn take(&mut self, count: usize) -> Option<&'m [u8]> {
        let taken = self.message.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn long(&mut self) -> Option<u32> {
        Some(u32::from(self.number()?) << 16 | u32::from(self.number()?))
    }

    /// A name without its pointers. Each pointer leads before the labels that it ends, so that there are no loops.
    fn name(&mut self) -> Option<Vec<u8>> {
        let (mut name, mut at, mut begin, mut end) = (Vec::new(), self.at, self.at, None);
        loop {
            let first = *self.message.get(at)?;
            match first {
                0 => {
                    name.push(0);
                    self.at = end.unwrap_or(at + 1);
                    return (name.len() <= NAME).then_some(name);
                }
                1..=63 => {
                    let label = self.message.get(at..at + 1 + usize::from(first))?;
                    name.extend(label);
                    at += label.len();
                    if name.len() >= NAME {
                        return None;
                    }
                }
                _ if first & 0xc0 == 0xc0 => {
                    let to = usize::from(first & 0x3f) << 8 | usize::from(*self.message.get(at + 1)?);
                    end = end.or(Some(at + 2));
                    if to >= begin {
                        return None;
                    }
                    (at, begin) = (to, to);
                }
                _ => return None,
            }
        }
    }

    fn record(&mut self) -> Option<Record> {
        let owner = self.name()?;
        let (kind, class, ttl, length) = (self.number()?, self.number()?, self.long()?, usize::from(self.number()?));
        let data = (self.at, length);
        self.take(length)?;
        Some(Record { owner, kind, class, ttl, data })
    }
}

/// Whether two names are the same: letters have no case (RFC 4343).
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// The data of `record` in `message`, with names without pointers; `None` if it is malformed.
fn data_of(message: &[u8], record: &Record) -> Option<Vec<u8>> {
    let (at, length) = record.data;
    let (before, names, behind) = match record.kind {
        kind::NS | kind::CNAME | kind::PTR | kind::DNAME => (0, 1, 0),
        kind::MX => (2, 1, 0),
        kind::SRV => (6, 1, 0),
        kind::SOA => (0, 2, 20),
        _ => return message.get(at..at + length).map(<[u8]>::to_vec),
    };
    let mut rest = Rest { message, at };
    let mut data = rest.take(before)?.to_vec();
    for _ in 0..names {
        data.extend(rest.name()?);
    }
    data.extend(rest.take(behind)?);
    (rest.at == at + length).then_some(data)
}

/// The TTL of a record; one with the highest bit counts as 0 (RFC 2181, section 8).
fn ttl_of(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl.min(LONGEST_TTL) }
}

/// Reads the `message` of a resolver about `question`: its name, type and class; `None` if it is malformed, or about another one.
pub(crate) fn read(settings: &Settings, question: &[u8], message: &[u8]) -> Option<Response> {
    let mut rest = Rest { message, at: 0 };
    let mut numbers = [0; HEADER / 2];
    for number in &mut numbers {
        *number = rest.number()?;
    }
    let [_, flags, questions, answers, authorities, _] = numbers;
    let code = flags & 0xf;
    let is_whole = flags & 0x8000 != 0 && flags & 0x0200 == 0;
    if questions != 1 || rest.take(question.len())? != question || !is_whole || !matches!(code, 0 | 3) {
        return None;
    }
    let (name, last) = question.split_at_checked(question.len().checked_sub(4)?)?;
    let asked = u16::from_be_bytes([last[0], last[1]]);
    let mut records = Vec::new();
    for _ in 0..answers {
        records.push(rest.record()?);
    }
    records.retain(|record| record.class == IN);
    let mut response = Response { code, ..Response::default() };
    let end = response.follow(message, &records, (name, asked))?;
    response.take(settings, message, &records, (&end, asked));
    if !response.records.iter().any(|record| !record.is_alias) {
        for _ in 0..authorities {
            let record = rest.record()?;
            if record.kind == kind::SOA && record.class == IN && response.soa.is_none() && is_at_or_below(&end, &record.owner) {
                let data = data_of(message, &record)?;
                response.soa = Some((record.owner, ttl_of(record.ttl), data));
            }
        }
    }
    Some(response)
}

/// Whether `name` is `zone`, or below it.
fn is_at_or_below(name: &[u8], zone: &[u8]) -> bool {
    let mut rest = name;
    loop {
        if is_same(rest, zone) {
            return true;
        }
        let Some(next) = rest.first().filter(|length| **length > 0).and_then(|length| rest.get(1 + usize::from(*length)..)) else {
            return false;
        };
        rest = next;
    }
}

impl Response {
    /// Follows the aliases from a name, unless they are asked for; returns the name at their end. `None` if there are too many, as in a loop.
    fn follow(&mut self, message: &[u8], records: &[Record], (name, asked): (&[u8], u16)) -> Option<Vec<u8>> {
        let mut name = name.to_vec();
        if asked == kind::CNAME {
            return Some(name);
        }
        for _ in 0..=MOST_ALIASES {
            let alias = records.iter().find(|record| record.kind == kind::CNAME && is_same(&record.owner, &name));
            let Some(alias) = alias else { return Some(name) };
            let target = data_of(message, alias)?;
            self.records.push(Told { is_alias: true, kind: kind::CNAME, ttl: ttl_of(alias.ttl), data: target.clone() });
            name = target;
        }
        None
    }

    /// Takes the records of the type `asked` at `end`.
    fn take(&mut self, settings: &Settings, message: &[u8], records: &[Record], (end, asked): (&[u8], u16)) {
        let mut length: usize = self.records.iter().map(|record| HEADER + record.data.len()).sum();
        for record in records.iter().filter(|record| record.kind == asked && is_same(&record.owner, end)) {
            let Some(data) = data_of(message, record) else { continue };
            let Some(addresses) = addresses_of(asked, &data) else { continue };
            let told = Told { is_alias: false, kind: asked, ttl: ttl_of(record.ttl), data };
            length += HEADER + told.data.len();
            let fits = length <= MOST_BYTES && self.addresses.len() + addresses.len() <= MOST_ADDRESSES;
            if !fits || self.records.contains(&told) || !addresses.iter().all(|&address| is_outside(settings, address)) {
                length -= HEADER + told.data.len();
                continue;
            }
            self.addresses.extend(addresses.into_iter().map(|address| (address, record.ttl)));
            self.records.push(told);
        }
    }
}

/// Addresses in the data of a record; `None` if the guest is not told of it.
fn addresses_of(kind: u16, data: &[u8]) -> Option<Vec<IpAddr>> {
    match kind {
        kind::A => Some(vec![<[u8; 4]>::try_from(data).ok()?.into()]),
        kind::AAAA => Some(vec![<[u8; 16]>::try_from(data).ok()?.into()]),
        kind::SVCB | kind::HTTPS => hints(data),
        _ => Some(Vec::new()),
    }
}

/// Address hints in the data of a record of a service (RFC 9460, section 7.3); `None` if it is an alias, or the service is at another name: the
/// guest would ask for that, and a rule that allows the first name does not allow it.
fn hints(data: &[u8]) -> Option<Vec<IpAddr>> {
    const IPV4_HINT: u16 = 4;
    const IPV6_HINT: u16 = 6;
    let mut rest = Rest { message: data, at: 0 };
    let (priority, target) = (rest.number()?, rest.take(1)?);
    if priority == 0 || target != [0] {
        return None;
    }
    let mut addresses = Vec::new();
    while rest.at < data.len() {
        let (key, length) = (rest.number()?, usize::from(rest.number()?));
        let value = rest.take(length)?;
        match key {
            IPV4_HINT if length.is_multiple_of(4) => addresses.extend(value.chunks_exact(4).filter_map(octets::<4>)),
            IPV6_HINT if length.is_multiple_of(16) => addresses.extend(value.chunks_exact(16).filter_map(octets::<16>)),
            IPV4_HINT | IPV6_HINT => return None,
            _ => {}
        }
    }
    Some(addresses)
}

fn octets<const N: usize>(bytes: &[u8]) -> Option<IpAddr>
where
    IpAddr: From<[u8; N]>,
{
    <[u8; N]>::try_from(bytes).ok().map(IpAddr::from)
}

/// Whether a name outside may have `address`: one of a machine that is neither this host, nor on the segment, nor on another link.
fn is_outside(settings: &Settings, address: IpAddr) -> bool {
    let is_elsewhere = match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_broadcast() && address.octets()[0] != 0,
        IpAddr::V6(address) => {
            let is_mapped = address.to_ipv4_mapped().is_some() || is_compatible(address);
            !address.is_unicast_link_local() && !is_mapped
        }
    };
    is_elsewhere && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !settings.contains(address)
}

/// Whether `address` is one with an IPv4 address in it that no machine has any more (RFC 4291, section 2.5.5.1).
fn is_compatible(address: Ipv6Addr) -> bool {
    u128::from(address) >> 32 == 0
}
