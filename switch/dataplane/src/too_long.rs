//! Frames that are too long for their way: the uplink of a segment carries shorter packets than its ports, or the receiver has agreed on a
//! smaller MTU than the sender (virtio 1.2, section 5.1.4.1).
//!
//! The sender is answered as by a router: ICMP "fragmentation needed" (RFC 792, RFC 1191) or ICMPv6 "packet too big" (RFC 4443, section
//! 3.2), with the destination's addresses as its source, since the switch has none. A frame for a group, or one that is flooded because
//! its destination is not known, is not answered (RFC 1122, section 3.2.2; RFC 1812, section 4.3.2.7): other ports may have received it.
//!
//! Every link carries IPv6 packets of 1280 bytes (RFC 8200, section 5), and no sender may be told less (RFC 8201, section 4). Over
//! a smaller MTU, longer packets are answered with 1280, and those up to 1280 bytes are dropped without an answer.

use std::net::Ipv4Addr;

use crate::frame::{ETHERNET, Layers, NetHeader, START, TAG, TCP, TYPE_IPV4, TYPE_IPV6, network_type};
use crate::headers::{Fragment, ICMPV6, IPV6_HEADER, Ipv4, Ipv6, Upper};
use crate::offload::checksum;
use crate::packet::Packet;

/// The least MTU of IPv6 (RFC 8200, section 5).
const LEAST_MTU: u16 = 1280;
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

/// Whether `packet` fits a way with this MTU: a GSO frame does if its segments do.
///
/// # Errors
/// It does not; with the answer to its sender, if there is one.
#[expect(clippy::result_large_err, reason = "cold, and written where the caller reads it")]
pub(crate) fn check(packet: &Packet, mtu: u16) -> Result<(), Option<Answer>> {
    check_frame(packet.start(), packet.length, packet.header, mtu)
}

/// As [`check`], for a frame of `length` bytes that begins with `start`.
#[expect(clippy::result_large_err, reason = "cold, and written where the caller reads it")]
pub fn check_frame(start: &[u8], length: u32, header: NetHeader, mtu: u16) -> Result<(), Option<Answer>> {
    let length = packet_length(start, length, header);
    if length <= mtu.into() {
        return Ok(());
    }
    if start[0] & 1 != 0 {
        return Err(None);
    }
    Err(match network_type(start) {
        Some((TYPE_IPV4, at)) => to_ipv4(start, at, mtu),
        Some((TYPE_IPV6, at)) if length > LEAST_MTU.into() => to_ipv6(start, at, mtu.max(LEAST_MTU)),
        _ => None,
    })
}

/// Bytes behind the Ethernet header and the VLAN tags of a frame of `length` bytes that begins with `start`; of a GSO frame, those of each
/// segment.
pub(crate) fn packet_length(start: &[u8], length: u32, header: NetHeader) -> u32 {
    let at = network_type(start).map_or(ETHERNET + 2 * TAG, |(_, at)| at);
    let on_wire = if header.gso_type() == NetHeader::GSO_NONE { length } else { segment_length(start, header).unwrap_or(length) };
    on_wire.saturating_sub(at as u32)
}

/// Bytes of each segment of a GSO frame.
fn segment_length(start: &[u8], header: NetHeader) -> Option<u32> {
    let layers = Layers::find(start)?;
    let transport = if layers.protocol == TCP { usize::from(start.get(layers.transport + 12)? >> 4) * 4 } else { 8 };
    Some((layers.transport + transport) as u32 + u32::from(header.gso_size()))
}

/// The Ethernet header and the tags of a frame, turned round.
pub(crate) fn turned(start: &[u8], at: usize) -> [u8; START] {
    let mut frame = [0; START];
    frame[..6].copy_from_slice(&start[6..12]);
    frame[6..12].copy_from_slice(&start[..6]);
    frame[12..at].copy_from_slice(&start[12..at]);
    frame
}

fn to_ipv4(start: &[u8], at: usize, mtu: u16) -> Option<Answer> {
    const DONT_FRAGMENT: u8 = 0x40;
    let bytes = &start[at..];
    let packet = Ipv4::parse(bytes)?;
    // No errors about errors, broadcasts, or later fragments (RFC 1122, section 3.2.2).
    let is_error = packet.protocol == ICMP && !matches!(bytes.get(packet.length), Some(0 | 8));
    if is_error
        || !is_of_one(packet.destination)
        || !is_of_one(packet.source)
        || packet.fragment == Fragment::Later
        || bytes[6] & DONT_FRAGMENT == 0
    {
        return None;
    }
    let quoted = bytes.get(..packet.length + 8)?;
    let (mut frame, length) = (turned(start, at), at + 28 + quoted.len());
    let ip = &mut frame[at..length];
    ip[..12].copy_from_slice(&[0x45, 0xc0, 0, (28 + quoted.len()) as u8, 0, 0, DONT_FRAGMENT, 0, 64, ICMP, 0, 0]);
    ip[12..16].copy_from_slice(&packet.destination.octets());
    ip[16..20].copy_from_slice(&packet.source.octets());
    let sum = checksum::over(&[&ip[..20]]);
    ip[10..12].copy_from_slice(&sum);
    ip[20..22].copy_from_slice(&[3, 4]);
    ip[26..28].copy_from_slice(&mtu.to_be_bytes());
    ip[28..].copy_from_slice(quoted);
    let sum = checksum::over(&[&ip[20..]]);
    ip[22..24].copy_from_slice(&sum);
    Some(Answer { frame, length })
}

/// Whether the address may be that of one host: not 0/8, 127/8, a group, or class E with the broadcast address (RFC 1122, section 3.2.2).
fn is_of_one(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

fn to_ipv6(start: &[u8], at: usize, mtu: u16) -> Option<Answer> {
    const INFORMATIONAL: u8 = 128;
    let bytes = &start[at..];
    let packet = Ipv6::parse(bytes)?;
    // No errors about errors, or to multicast sources (RFC 4443, section 2.4); a destination that is multicast gets none here.
    let is_error = matches!(packet.upper(bytes), Upper::Header { protocol: ICMPV6, at, .. } if bytes.get(at).is_none_or(|&kind| kind < INFORMATIONAL));
    if is_error || packet.destination.is_multicast() || packet.source.is_multicast() || packet.source.is_unspecified() {
        return None;
    }
    let quoted = &bytes[..bytes.len().min(START - at - IPV6_HEADER - 8)];
    let (mut frame, length) = (turned(start, at), at + IPV6_HEADER + 8 + quoted.len());
    let ip = &mut frame[at..length];
    ip[0] = 0x60;
    let payload = (8 + quoted.len()) as u16;
    ip[4..6].copy_from_slice(&payload.to_be_bytes());
    (ip[6], ip[7]) = (ICMPV6, 64);
    ip[8..24].copy_from_slice(&packet.destination.octets());
    ip[24..40].copy_from_slice(&packet.source.octets());
    ip[40] = 2;
    ip[46..48].copy_from_slice(&mtu.to_be_bytes());
    ip[48..].copy_from_slice(quoted);
    // With the pseudo-header of RFC 8200, section 8.1.
    let sum = checksum::over(&[&ip[8..40], &[0, 0], &payload.to_be_bytes(), &[0, 0, 0, ICMPV6], &ip[40..]]);
    ip[42..44].copy_from_slice(&sum);
    Some(Answer { frame, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP segment over IPv4 or IPv6, without a payload.
    fn frame(version: u8, tag: bool) -> Vec<u8> {
        let ethernet = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
        let tag: &[u8] = if tag { &[0x81, 0, 0, 7] } else { &[] };
        let (kind, ip) = match version {
            4 => ([8, 0], [&[0x45, 0, 5, 0xdc, 0, 1, 0x40, 0, 64, 6, 0, 0][..], &[10, 0, 0, 1], &[10, 0, 0, 2]].concat()),
            _ => ([0x86, 0xdd], [&[0x60, 0, 0, 0, 5, 0xb4, 6, 64][..], &[0xfd; 15], &[1], &[0xfd; 15], &[2]].concat()),
        };
        [&ethernet[..], tag, &kind, &ip, &[0, 80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]].concat()
    }

    /// The sum of the words of `bytes`, which is 0xffff with a right checksum (RFC 1071).
    fn sum(bytes: &[u8]) -> u32 {
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16)
    }

    #[test]
    fn a_packet_that_must_not_be_fragmented_is_answered_with_the_mtu() {
        for tag in [false, true] {
            let sent = frame(4, tag);
            let at = if tag { 18 } else { 14 };
            assert!(check_frame(&sent, 1450 + at as u32, NetHeader::default(), 1450).is_ok(), "it fits");
            let answer = check_frame(&sent, 1451 + at as u32, NetHeader::default(), 1450).unwrap_err().unwrap();
            let got = answer.frame();
            assert_eq!((&got[..6], &got[6..12], &got[12..at]), (&sent[6..12], &sent[..6], &sent[12..at]));
            let ip = &got[at..];
            assert_eq!((ip[9], &ip[12..16], &ip[16..20]), (1, &[10, 0, 0, 2][..], &[10, 0, 0, 1][..]));
            assert_eq!((usize::from(ip[3]), sum(&ip[..20]), sum(&ip[20..])), (ip.len(), 0xffff, 0xffff));
            assert_eq!((&ip[20..22], &ip[26..28]), (&[3, 4][..], &1450_u16.to_be_bytes()[..]));
            assert_eq!(ip[28..], sent[at..at + 28], "the header and 8 bytes: RFC 792");
        }
    }

    #[test]
    fn a_packet_of_ipv6_is_answered_as_too_big() {
        let sent = frame(6, false);
        let answer = check_frame(&sent, 1465, NetHeader::default(), 1450).unwrap_err().unwrap();
        let ip = &answer.frame()[14..];
        assert_eq!((ip[6], &ip[8..24], &ip[24..40]), (58, &sent[38..54], &sent[22..38]));
        assert_eq!((&ip[40..42], &ip[44..48], &ip[48..]), (&[2, 0][..], &[0, 0, 5, 0xaa][..], &sent[14..]));
        let length = (ip.len() - 40) as u16;
        assert_eq!(ip[4..6], length.to_be_bytes());
        assert_eq!(sum(&[&ip[8..40], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 58], &ip[40..]].concat()), 0xffff);
    }

    /// RFC 8201, section 4: a node does not reduce its estimate of the path MTU below 1280 bytes.
    #[test]
    fn no_sender_of_ipv6_is_told_less_than_its_least_mtu() {
        let answer = |length, mtu| check_frame(&frame(6, false), length, NetHeader::default(), mtu).unwrap_err();
        let told = answer(1281 + 14, 1000).unwrap();
        assert_eq!(told.frame()[58..62], 1280_u32.to_be_bytes());
        assert!(answer(1280 + 14, 1000).is_none() && answer(1001 + 14, 1000).is_none(), "it could not send less");
        let told = check_frame(&frame(4, false), 1001 + 14, NetHeader::default(), 1000).unwrap_err().unwrap();
        assert_eq!(told.frame()[40..42], 1000_u16.to_be_bytes(), "IPv4 can");
    }

    #[test]
    fn a_gso_frame_fits_if_its_segments_do() {
        let sent = frame(4, false);
        let cut = |size| NetHeader::partial_checksum(34, 16).cut(NetHeader::GSO_TCPV4, size);
        assert!(check_frame(&sent, 60_000, cut(1410), 1450).is_ok());
        assert!(check_frame(&sent, 60_000, cut(1411), 1450).is_err_and(|answer| answer.is_some()));
    }

    #[test]
    fn some_packets_are_dropped_without_an_answer() {
        let change = |changes: &[(usize, u8)]| {
            let mut sent = frame(4, false);
            changes.iter().for_each(|&(at, byte)| sent[at] = byte);
            check_frame(&sent, 2000, NetHeader::default(), 1450).is_err_and(|answer| answer.is_none())
        };
        assert!(!change(&[]));
        assert!(change(&[(20, 0)]), "it may be fragmented");
        assert!(change(&[(20, 0x40), (21, 9)]), "a later fragment");
        assert!(change(&[(23, 1), (34, 3)]), "an error");
        assert!(!change(&[(23, 1), (34, 8)]), "an echo request");
        assert!(change(&[(30, 224)]), "to a group");
        assert!(change(&[(0, 1)]) && change(&[(0, 0xff)]), "to a group of Ethernet");
        for first in [0, 127, 224, 240, 255] {
            assert!(change(&[(26, first)]), "from {first}.0.0.1, which is no host");
        }
        assert!(change(&[(12, 0x88), (13, 0xb5)]), "no IP");
    }

    #[test]
    fn any_frame_is_measured_without_a_panic() {
        bolero::check!().with_type::<(Vec<u8>, u16, u8)>().for_each(|(bytes, mtu, kind)| {
            let start = &bytes[..bytes.len().min(START)];
            let header = NetHeader::partial_checksum(34, 16).cut(*kind, *mtu);
            if start.len() >= ETHERNET {
                let _ = check_frame(start, 65_000, header, *mtu).map_err(|answer| answer.map(|answer| answer.frame().len()));
            }
        });
    }
}
