//! Refused packets, of which a policy rule with `action = "reject"` tells their sender: a reset of TCP, so that `connect` fails at once, or an
//! ICMP error, "communication administratively prohibited" (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1).
//!
//! A reset is what the destination would send without such a connection (RFC 9293, section 3.10.7.1), so the guest's stack accepts it. No
//! answer is given to groups, to errors and resets, and to fragments but the first.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets within headers that a parser found, and within an array whose length they sum up to; a property test takes any bytes"
)]

use crate::answer::{self, Answer, IcmpError, is_between_hosts, is_between_hosts6, turned};
use crate::frame::{START, TCP, TYPE_IPV4, TYPE_IPV6, network_type};
use crate::headers::{Fragment, IPV6_HEADER, Ipv4, Ipv6, Upper, number_at};
use crate::offload::checksum;
use crate::packet::Packet;

/// Destination unreachable, communication administratively prohibited: of ICMP, and of ICMPv6.
const PROHIBITED: IcmpError = IcmpError { kind: 3, code: 13, rest: [0; 4] };
const PROHIBITED6: IcmpError = IcmpError { kind: 1, code: 1, rest: [0; 4] };
/// Bytes of a TCP header without options, and the flags that are read and written (RFC 9293, section 3.1).
const TCP_HEADER: usize = 20;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The answer to a refused packet, if there is one.
pub(crate) fn answer(packet: &Packet) -> Option<Answer> {
    answer_to(packet.start(), packet.length)
}

/// Like [`answer()`], for a frame of `length` bytes that begins with `start`.
pub fn answer_to(start: &[u8], length: u32) -> Option<Answer> {
    if start.first()? & 1 != 0 {
        return None;
    }
    let (kind, at) = network_type(start)?;
    // Bytes behind the Ethernet header and the tags.
    let rest = (length as usize).saturating_sub(at);
    match kind {
        TYPE_IPV4 => to_ipv4(start, at, rest),
        TYPE_IPV6 => to_ipv6(start, at, rest),
        _ => None,
    }
}

fn to_ipv4(start: &[u8], at: usize, rest: usize) -> Option<Answer> {
    let bytes = &start[at..];
    let packet = Ipv4::parse(bytes)?;
    if packet.protocol != TCP {
        return answer::ipv4(start, at, PROHIBITED);
    }
    if !is_between_hosts(&packet) || packet.fragment == Fragment::Later {
        return None;
    }
    let total = match number_at(bytes, 2)? {
        // A GSO frame longer than the field can say.
        0 => rest,
        total => rest.min(total.into()),
    };
    let reset = reset(bytes.get(packet.length..total.min(bytes.len()))?, total - packet.length)?;
    let (mut frame, length) = (turned(start, at), at + 20 + TCP_HEADER);
    let ip = &mut frame[at..length];
    answer::write_ipv4(ip, TCP, (packet.destination, packet.source));
    ip[20..].copy_from_slice(&reset);
    let sum = checksum::over(&[&ip[12..20], &[0, TCP, 0, TCP_HEADER as u8], &ip[20..]]);
    ip[36..38].copy_from_slice(&sum);
    Some(Answer { frame, length })
}

fn to_ipv6(start: &[u8], at: usize, rest: usize) -> Option<Answer> {
    let bytes = &start[at..];
    let packet = Ipv6::parse(bytes)?;
    let upper = match packet.upper(bytes) {
        Upper::Later => return None,
        Upper::Header { protocol: TCP, at, .. } => at,
        Upper::Header { .. } | Upper::Beyond => return answer::ipv6(start, at, PROHIBITED6),
    };
    if !is_between_hosts6(&packet) {
        return None;
    }
    let total = match packet.payload {
        0 => rest,
        payload => rest.min(IPV6_HEADER + usize::from(payload)),
    };
    let reset = reset(bytes.get(upper..total.min(bytes.len()))?, total - upper)?;
    let (mut frame, length) = (turned(start, at), at + IPV6_HEADER + TCP_HEADER);
    debug_assert!(length <= START);
    let ip = &mut frame[at..length];
    answer::write_ipv6(ip, TCP, &packet);
    ip[40..].copy_from_slice(&reset);
    let sum = answer::checksum6(ip);
    ip[56..58].copy_from_slice(&sum);
    Some(Answer { frame, length })
}

/// The reset, without its checksum, for the TCP segment of `length` bytes that begins with `tcp`: RFC 9293, section 3.10.7.1.
fn reset(tcp: &[u8], length: usize) -> Option<[u8; TCP_HEADER]> {
    let header: &[u8; TCP_HEADER] = tcp.first_chunk()?;
    let (flags, data) = (header[13], usize::from(header[12] >> 4) * 4);
    if flags & RST != 0 || data < TCP_HEADER || data > length {
        return None;
    }
    let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let mut reset = [0; TCP_HEADER];
    reset[..2].copy_from_slice(&header[2..4]);
    reset[2..4].copy_from_slice(&header[..2]);
    reset[12] = (TCP_HEADER as u8 / 4) << 4;
    if flags & ACK != 0 {
        reset[4..8].copy_from_slice(&header[8..12]);
        reset[13] = RST;
    } else {
        let after = sequence.wrapping_add((length - data) as u32).wrapping_add(controls);
        reset[8..12].copy_from_slice(&after.to_be_bytes());
        reset[13] = RST | ACK;
    }
    Some(reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this TCP header and payload over IPv4 or IPv6.
    fn frame(version: u8, tagged: bool, (sequence, acknowledged, flags): (u32, u32, u8), payload: &[u8]) -> Vec<u8> {
        let ethernet = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
        let tag: &[u8] = if tagged { &[0x81, 0, 0, 7] } else { &[] };
        let length = (20 + payload.len()) as u16;
        let (kind, ip) = match version {
            4 => {
                let total = (20 + length).to_be_bytes();
                ([8, 0], [&[0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..]].concat())
            }
            _ => {
                let [high, low] = length.to_be_bytes();
                ([0x86, 0xdd], [&[0x60, 0, 0, 0, high, low, 6, 64][..], &[0xfd; 15], &[1], &[0xfd; 15], &[2]].concat())
            }
        };
        let numbers = [sequence.to_be_bytes(), acknowledged.to_be_bytes()].concat();
        [&ethernet[..], tag, &kind, &ip, &[0x9c, 0x40, 0, 80], &numbers, &[0x50, flags, 1, 0, 0, 0, 0, 0], payload].concat()
    }

    fn answer_of(sent: &[u8]) -> Option<Answer> {
        answer_to(&sent[..sent.len().min(START)], sent.len() as u32)
    }

    /// The sum of the words of `bytes`, which is 0xffff with a right checksum (RFC 1071).
    fn sum(bytes: &[u8]) -> u32 {
        let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16)
    }

    /// The TCP header of an answer, whose addresses and checksums are verified: sequence number, acknowledgment and flags.
    fn reset_of(version: u8, tagged: bool, sent: &[u8]) -> (u32, u32, u8) {
        let answer = answer_of(sent).unwrap();
        let (got, at) = (answer.frame(), if tagged { 18 } else { 14 });
        assert_eq!((&got[..6], &got[6..12], &got[12..at]), (&sent[6..12], &sent[..6], &sent[12..at]));
        let (ip, was) = (&got[at..], &sent[at..]);
        let tcp = if version == 4 {
            assert_eq!((ip[9], &ip[12..16], &ip[16..20]), (6, &was[16..20], &was[12..16]));
            assert_eq!((usize::from(ip[3]), sum(&ip[..20])), (ip.len(), 0xffff));
            assert_eq!(sum(&[&ip[12..20], &[0, 6, 0, 20], &ip[20..]].concat()), 0xffff);
            &ip[20..]
        } else {
            assert_eq!((ip[6], &ip[8..24], &ip[24..40], &ip[4..6]), (6, &was[24..40], &was[8..24], &[0, 20][..]));
            assert_eq!(sum(&[&ip[8..40], &[0, 0, 0, 20, 0, 0, 0, 6], &ip[40..]].concat()), 0xffff);
            &ip[40..]
        };
        assert_eq!((&tcp[..4], tcp[12], tcp.len()), (&[0, 80, 0x9c, 0x40][..], 0x50, 20));
        let number = |at: usize| u32::from_be_bytes(*tcp[at..].first_chunk().unwrap());
        (number(4), number(8), tcp[13])
    }

    /// RFC 9293, section 3.10.7.1: without ACK, sequence number zero and an acknowledgment of the whole segment, which section 3.10.7.3
    /// wants in SYN-SENT (ISS < SEG.ACK =< SND.NXT); else the acknowledged number, which is the next that the guest expects.
    #[test]
    fn a_segment_is_answered_with_the_reset_that_its_stack_accepts() {
        for (version, tagged) in [(4, false), (6, false), (4, true), (6, true)] {
            let reset = |segment, payload: &[u8]| reset_of(version, tagged, &frame(version, tagged, segment, payload));
            assert_eq!(reset((1000, 0, SYN), &[]), (0, 1001, RST | ACK));
            assert_eq!(reset((u32::MAX, 0, SYN), &[7; 3]), (0, 3, RST | ACK), "with data of TCP Fast Open (RFC 7413)");
            assert_eq!(reset((1000, 0, FIN), &[7; 500]), (0, 1501, RST | ACK));
            assert_eq!(reset((1000, 77, ACK), &[7; 500]), (77, 0, RST));
            assert_eq!(reset((1000, 77, SYN | ACK), &[]), (77, 0, RST));
        }
    }

    /// RFC 1812, section 5.2.7.1; RFC 4443, section 3.1.
    #[test]
    fn other_packets_are_answered_as_prohibited() {
        for (version, at, protocol, wanted) in [(4, 34, 23, [3, 13]), (6, 54, 20, [1, 1])] {
            let mut sent = frame(version, false, (1, 2, 0), &[]);
            sent[protocol] = 17;
            let answer = answer_of(&sent).unwrap();
            assert_eq!(answer.frame()[at..at + 2], wanted);
            assert_eq!(answer.frame()[at + 4..at + 8], [0; 4], "unused");
            let quoted = &answer.frame()[at + 8..];
            assert_eq!(quoted, &sent[14..14 + quoted.len()]);
            assert!(quoted.len() >= 28, "the header and 8 bytes: RFC 792");
        }
    }

    #[test]
    fn some_packets_are_refused_without_an_answer() {
        let change = |version, changes: &[(usize, u8)]| {
            let mut sent = frame(version, false, (1, 2, SYN), &[]);
            changes.iter().for_each(|&(at, byte)| sent[at] = byte);
            answer_of(&sent).is_none()
        };
        assert!(!change(4, &[]) && !change(6, &[]));
        assert!(change(4, &[(47, RST)]) && change(6, &[(67, RST | ACK)]), "a reset");
        assert!(change(4, &[(0, 0xff)]) && change(6, &[(0, 0x33)]), "a group of Ethernet");
        assert!(change(4, &[(30, 224)]) && change(4, &[(30, 255)]) && change(6, &[(38, 0xff)]), "a group");
        assert!(change(4, &[(26, 0)]) && change(4, &[(26, 127)]), "no host");
        assert!(change(4, &[(21, 9)]) && change(4, &[(23, 17), (21, 9)]), "a later fragment");
        assert!(!change(4, &[(20, 0x20)]), "the first fragment");
        assert!(change(6, &[(20, 44), (54, 6), (56, 1), (57, 0)]), "a later fragment of IPv6");
        assert!(change(4, &[(23, 1), (34, 3)]) && change(6, &[(20, 58), (54, 1)]), "an error");
        assert!(!change(4, &[(23, 1), (34, 8)]) && !change(6, &[(20, 58), (54, 128)]), "an echo request");
        assert!(change(4, &[(46, 0x40)]) && change(4, &[(46, 0xf0)]) && change(4, &[(17, 30)]), "no whole TCP header");
        assert!(change(4, &[(12, 8), (13, 6)]), "no IP");
    }

    #[test]
    fn any_frame_is_answered_without_a_panic() {
        bolero::check!().with_type::<(Vec<u8>, u32)>().for_each(|(bytes, length)| {
            let _ = answer_to(&bytes[..bytes.len().min(START)], *length).map(|answer| answer.frame().len());
        });
    }
}
