//! Answers of the switch to the sender of a frame: ICMP errors as of a router, with the destination's addresses as their source, since the
//! switch has none.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets within headers that a parser found, and within an array whose length they sum up to; property tests take any bytes"
)]

use std::net::Ipv4Addr;

use crate::frame::START;
use crate::headers::{Fragment, ICMPV6, IPV6_HEADER, Ipv4, Ipv6, Upper};
use crate::offload::checksum;

/// Protocol number of ICMP for IPv4.
const ICMP: u8 = 1;

/// The answer of the switch to the sender of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub(crate) frame: [u8; START],
    pub(crate) length: usize,
}

impl Answer {
    /// The frame.
    pub fn frame(&self) -> &[u8] {
        &self.frame[..self.length]
    }
}

/// An ICMP error, without the packet that it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IcmpError {
    pub kind: u8,
    pub code: u8,
    /// The 4 bytes behind its checksum.
    pub rest: [u8; 4],
}

/// The Ethernet header and the tags of a frame, turned round.
pub(crate) fn turned(start: &[u8], at: usize) -> [u8; START] {
    let mut frame = [0; START];
    frame[..6].copy_from_slice(&start[6..12]);
    frame[6..12].copy_from_slice(&start[..6]);
    frame[12..at].copy_from_slice(&start[12..at]);
    frame
}

/// Whether a packet may be answered: it is between two hosts (RFC 1122, section 3.2.2).
pub(crate) fn is_between_hosts(packet: &Ipv4) -> bool {
    is_of_one(packet.destination) && is_of_one(packet.source)
}

/// Whether the address may be that of one host: not 0/8, 127/8, a group, or class E with the broadcast address (RFC 1122, section 3.2.2).
fn is_of_one(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// Like [`is_between_hosts`], for IPv6 (RFC 4443, section 2.4).
pub(crate) fn is_between_hosts6(packet: &Ipv6) -> bool {
    !packet.destination.is_multicast() && !packet.source.is_multicast() && !packet.source.is_unspecified()
}

/// Writes the header of an IPv4 packet of `ip.len()` bytes, from one address to the other.
pub(crate) fn write_ipv4(ip: &mut [u8], protocol: u8, (from, to): (Ipv4Addr, Ipv4Addr)) {
    const DONT_FRAGMENT: u8 = 0x40;
    const INTERNETWORK_CONTROL: u8 = 0xc0;
    let [high, low] = (ip.len() as u16).to_be_bytes();
    ip[..12].copy_from_slice(&[0x45, INTERNETWORK_CONTROL, high, low, 0, 0, DONT_FRAGMENT, 0, 64, protocol, 0, 0]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let sum = checksum::over(&[&ip[..20]]);
    ip[10..12].copy_from_slice(&sum);
}

/// Writes the header of an IPv6 packet of `ip.len()` bytes which answers `packet`.
pub(crate) fn write_ipv6(ip: &mut [u8], protocol: u8, packet: &Ipv6) {
    let payload = (ip.len() - IPV6_HEADER) as u16;
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&payload.to_be_bytes());
    (ip[6], ip[7]) = (protocol, 64);
    ip[8..24].copy_from_slice(&packet.destination.octets());
    ip[24..40].copy_from_slice(&packet.source.octets());
}

/// The checksum over the payload of the IPv6 packet `ip`, with the pseudo-header (RFC 8200, section 8.1).
pub(crate) fn checksum6(ip: &[u8]) -> [u8; 2] {
    checksum::over(&[&ip[8..40], &[0, 0], &ip[4..6], &[0, 0, 0, ip[6]], &ip[40..]])
}

/// The answer to the IPv4 packet at byte `at` of a frame; `None` to errors, broadcasts and later fragments (RFC 1122, section 3.2.2).
pub(crate) fn ipv4(start: &[u8], at: usize, error: IcmpError) -> Option<Answer> {
    let bytes = &start[at..];
    let packet = Ipv4::parse(bytes)?;
    let is_error = packet.protocol == ICMP && !matches!(bytes.get(packet.length), Some(0 | 8));
    if is_error || !is_between_hosts(&packet) || packet.fragment == Fragment::Later {
        return None;
    }
    let quoted = bytes.get(..packet.length + 8)?;
    let (mut frame, length) = (turned(start, at), at + 28 + quoted.len());
    let ip = &mut frame[at..length];
    write_ipv4(ip, ICMP, (packet.destination, packet.source));
    ip[20..22].copy_from_slice(&[error.kind, error.code]);
    ip[24..28].copy_from_slice(&error.rest);
    ip[28..].copy_from_slice(quoted);
    let sum = checksum::over(&[&ip[20..]]);
    ip[22..24].copy_from_slice(&sum);
    Some(Answer { frame, length })
}

/// The answer to the IPv6 packet at byte `at` of a frame; `None` to errors, and between others than hosts (RFC 4443, section 2.4).
pub(crate) fn ipv6(start: &[u8], at: usize, error: IcmpError) -> Option<Answer> {
    const INFORMATIONAL: u8 = 128;
    let bytes = &start[at..];
    let packet = Ipv6::parse(bytes)?;
    let is_error = matches!(packet.upper(bytes), Upper::Header { protocol: ICMPV6, at, .. } if bytes.get(at).is_none_or(|&kind| kind < INFORMATIONAL));
    if is_error || !is_between_hosts6(&packet) {
        return None;
    }
    let quoted = &bytes[..bytes.len().min(START - at - IPV6_HEADER - 8)];
    let (mut frame, length) = (turned(start, at), at + IPV6_HEADER + 8 + quoted.len());
    let ip = &mut frame[at..length];
    write_ipv6(ip, ICMPV6, &packet);
    ip[40..42].copy_from_slice(&[error.kind, error.code]);
    ip[44..48].copy_from_slice(&error.rest);
    ip[48..].copy_from_slice(quoted);
    let sum = checksum6(ip);
    ip[42..44].copy_from_slice(&sum);
    Some(Answer { frame, length })
}
