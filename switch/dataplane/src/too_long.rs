//! Frames that are too long for their way: the uplink of a segment carries shorter packets than its ports, or the receiver has agreed on a
//! smaller MTU than the sender (virtio 1.2, section 5.1.4.1).
//!
//! The sender is answered as by a router: ICMP "fragmentation needed" (RFC 792, RFC 1191) or ICMPv6 "packet too big" (RFC 4443, section
//! 3.2). A frame for a group, or one that is flooded because
//! its destination is not known, is not answered (RFC 1122, section 3.2.2; RFC 1812, section 4.3.2.7): other ports may have received it.
//!
//! Every link carries IPv6 packets of 1280 bytes (RFC 8200, section 5), and no sender may be told less (RFC 8201, section 4). Over
//! a smaller MTU, longer packets are answered with 1280, and those up to 1280 bytes are dropped without an answer.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets within headers that a parser found, and within an array whose length they sum up to; a property test takes any bytes"
)]

use crate::answer::{self, Answer, IcmpError};
use crate::frame::{ETHERNET, Layers, NetHeader, TAG, TCP, TYPE_IPV4, TYPE_IPV6, network_type};
use crate::packet::Packet;

/// The least MTU of IPv6 (RFC 8200, section 5).
const LEAST_MTU: u16 = 1280;

/// Whether `packet` fits a way with this MTU: a GSO frame does if its segments do.
///
/// # Errors
/// The packet does not; with the answer to its sender, if there is one.
#[expect(clippy::result_large_err, reason = "cold, and written where the caller reads it")]
pub(crate) fn check(packet: &Packet, mtu: u16) -> Result<(), Option<Answer>> {
    check_frame(packet.start(), packet.length, packet.header, mtu)
}

/// Like [`check`], for a frame of `length` bytes that begins with `start`.
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

fn to_ipv4(start: &[u8], at: usize, mtu: u16) -> Option<Answer> {
    const DONT_FRAGMENT: u8 = 0x40;
    let [high, low] = mtu.to_be_bytes();
    let may_fragment = start.get(at + 6)? & DONT_FRAGMENT == 0;
    if may_fragment { None } else { answer::ipv4(start, at, IcmpError { kind: 3, code: 4, rest: [0, 0, high, low] }) }
}

fn to_ipv6(start: &[u8], at: usize, mtu: u16) -> Option<Answer> {
    answer::ipv6(start, at, IcmpError { kind: 2, code: 0, rest: u32::from(mtu).to_be_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::START;

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
