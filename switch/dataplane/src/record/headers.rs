//! The headers of a frame: the part of its first bytes that a recording keeps. A verdict on these bytes is the same as one on all that the switch copies.
//!
//! Kept are the headers through that of the transport with its options, all of a neighbour discovery message, and the quoted headers of an ICMP error.
//! Payload is not kept: it begins behind the transport's header, or behind the IP header of a later fragment and of another protocol.

use crate::frame::{ETHERNET, SHORT_START, TAG, TCP, TYPE_IPV4, TYPE_IPV6, UDP, network_type};
use crate::headers::{
    Fragment, ICMPV6, IPV6_HEADER, Ipv4, Ipv6, LEAST_TYPE, NdKind, TYPE_ARP, TYPE_RARP, Upper, is_extension, number_at,
};

const ICMP: u8 = 1;
/// Bytes of an ICMP header, behind which an error quotes a packet (RFC 792, RFC 4443).
const ICMP_HEADER: usize = 8;
/// Bytes of an ARP packet (RFC 826), of a SNAP header (RFC 1042), and of the ports of a transport header.
const ARP: usize = 28;
const SNAP: usize = 8;
const PORTS: usize = 4;
/// Least bytes of the headers of a TCP connection and of IPv4, and most of the latter.
const TCP_HEADER: usize = 20;
const IPV4_HEADER: usize = 20;
const LONGEST_IPV4: usize = 60;

/// Bytes of the headers of the frame that begins with `bytes`, as of [`headers`].
#[inline]
pub(crate) fn length_of_headers(bytes: &[u8; SHORT_START]) -> u8 {
    /// IPv4 without options.
    const PLAIN: [u8; 3] = [8, 0, 0x45];
    const UPPER: usize = ETHERNET + IPV4_HEADER;
    let is_later = (bytes[20] & 0x1f) | bytes[21] != 0;
    if bytes[12..15] == PLAIN && !is_later {
        match bytes[23] {
            UDP => return UPPER as u8 + 8,
            TCP => return (UPPER as u8 + ((bytes[46] >> 4) * 4).max(TCP_HEADER as u8)).min(SHORT_START as u8),
            _ => {}
        }
    }
    headers(bytes).len() as u8
}

/// The headers of the frame that begins with `bytes`.
pub(crate) fn headers(bytes: &[u8]) -> &[u8] {
    let length = match network_type(bytes) {
        // More tags than the switch reads, or too few bytes.
        None => ETHERNET + 2 * TAG,
        Some((kind, at)) => {
            let network = bytes.get(at..).unwrap_or_default();
            at + match kind {
                TYPE_IPV4 => ipv4(network),
                TYPE_IPV6 => ipv6(network),
                TYPE_ARP | TYPE_RARP => ARP,
                ..LEAST_TYPE => SNAP,
                _ => 0,
            }
        }
    };
    bytes.get(..length).unwrap_or(bytes)
}

fn ipv4(bytes: &[u8]) -> usize {
    let Some(packet) = Ipv4::parse(bytes) else {
        let said = bytes.first().map_or(0, |first| usize::from(first & 0xf) * 4);
        return said.clamp(IPV4_HEADER, LONGEST_IPV4);
    };
    let upper = bytes.get(packet.length..).unwrap_or_default();
    packet.length
        + match packet.fragment {
            Fragment::Later => 0,
            Fragment::Whole | Fragment::First => transport(packet.protocol, upper),
        }
}

fn ipv6(bytes: &[u8]) -> usize {
    let Some(packet) = Ipv6::parse(bytes) else { return IPV6_HEADER };
    match packet.upper(bytes) {
        Upper::Header { protocol, at, .. } => at + transport(protocol, bytes.get(at..).unwrap_or_default()),
        // Nothing but extension headers.
        Upper::Beyond if is_extension(packet.next) => bytes.len(),
        // Behind the length that the packet states: anti-spoofing reads the ports all the same.
        Upper::Beyond => IPV6_HEADER + transport(packet.next, bytes.get(IPV6_HEADER..).unwrap_or_default()),
        Upper::Later => later_fragment(packet.next, bytes),
    }
}

/// Bytes of the headers of a later fragment, each extension header through that of the fragment.
fn later_fragment(next: u8, bytes: &[u8]) -> usize {
    const FRAGMENT: u8 = 44;
    let (mut protocol, mut at) = (next, IPV6_HEADER);
    while protocol != FRAGMENT
        && let Some(&[following, length]) = bytes.get(at..).and_then(|header| header.first_chunk())
    {
        const AUTHENTICATION: u8 = 51;
        let unit = if protocol == AUTHENTICATION { 4 } else { 8 };
        (protocol, at) = (following, at + 8 + unit * usize::from(length));
    }
    at + 8
}

/// Bytes of the header of a transport protocol with which `bytes` begin.
fn transport(protocol: u8, bytes: &[u8]) -> usize {
    let kind = bytes.first().copied().unwrap_or(0);
    match protocol {
        TCP => bytes.get(12).map_or(TCP_HEADER, |offset| (usize::from(offset >> 4) * 4).max(TCP_HEADER)),
        UDP => 8,
        ICMP if matches!(kind, 3 | 11 | 12) => ICMP_HEADER + quoted(ipv4_of(bytes.get(ICMP_HEADER..).unwrap_or_default())),
        ICMPV6 if NdKind::of(kind).is_some() => bytes.len(),
        ICMPV6 if (1..=4).contains(&kind) => ICMP_HEADER + quoted(ipv6_of(bytes.get(ICMP_HEADER..).unwrap_or_default())),
        ICMP | ICMPV6 => ICMP_HEADER,
        _ => PORTS,
    }
}

/// Bytes of quoted headers: of IP, and the ports behind them.
fn quoted(network: usize) -> usize {
    network + ICMP_HEADER
}

fn ipv4_of(bytes: &[u8]) -> usize {
    Ipv4::parse(bytes).map_or(IPV4_HEADER, |packet| packet.length)
}

fn ipv6_of(bytes: &[u8]) -> usize {
    match Ipv6::parse(bytes).map(|packet| packet.upper(bytes)) {
        Some(Upper::Header { at, .. }) => at,
        _ => number_at(bytes, 0).map_or(0, |_| IPV6_HEADER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &kind.to_be_bytes(), rest, &[0xee; 80]].concat()
    }

    fn v4(protocol: u8, offset: u16, upper: &[u8]) -> Vec<u8> {
        let [high, low] = offset.to_be_bytes();
        let head = [0x45, 0, 0, 100, 0, 0, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ethernet(TYPE_IPV4, &[&head[..], upper].concat())
    }

    fn v6(next: u8, upper: &[u8]) -> Vec<u8> {
        let head = [&[0x60, 0, 0, 0, 0, 100, next, 64][..], &[0xfd; 32]].concat();
        ethernet(TYPE_IPV6, &[&head[..], upper].concat())
    }

    #[test]
    fn payload_is_not_kept() {
        let kept = |frame: &[u8]| headers(frame).len() - ETHERNET;
        let tcp = [&[0; 12][..], &[0x80, 0x10], &[1; 18]].concat();
        assert_eq!(kept(&v4(TCP, 0, &tcp)), 20 + 32);
        assert_eq!(kept(&v4(UDP, 0, &[0; 8])), 20 + 8);
        assert_eq!(kept(&v4(UDP, 0x2000, &[0; 8])), 20 + 8, "a first fragment");
        assert_eq!(kept(&v4(UDP, 100, &[0; 8])), 20, "a later one");
        assert_eq!(kept(&v4(ICMP, 0, &[8, 0, 0, 0, 0, 1, 0, 1])), 20 + 8);
        let quoted = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &v4(UDP, 0, &[0; 8])[14..42]].concat();
        assert_eq!(kept(&v4(ICMP, 0, &quoted)), 20 + 8 + 28);
        assert_eq!(kept(&v4(47, 0, &[])), 20 + 4, "another protocol");
        assert_eq!(kept(&v6(TCP, &tcp)), 40 + 32);
        assert_eq!(kept(&v6(UDP, &[0; 8])), 40 + 8);
        let mut without = v6(UDP, &[0; 8]);
        without[18..20].fill(0);
        assert_eq!(kept(&without), 40 + 8, "a packet that states no payload");
        assert_eq!(kept(&v6(44, &[UDP, 0, 1, 0, 0, 0, 0, 1])), 40 + 8, "a later fragment");
        assert_eq!(kept(&v6(60, &[44, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 1, 0, 0, 0, 0, 1])), 40 + 16, "one behind options");
        assert_eq!(kept(&v6(ICMPV6, &[128, 0, 0, 0, 0, 1, 0, 1])), 40 + 8);
        assert_eq!(kept(&v6(ICMPV6, &[135; 24])), 40 + 24 + 80, "neighbour discovery is kept whole");
        assert_eq!(kept(&ethernet(TYPE_ARP, &[0; 28])), 28);
        assert_eq!(kept(&ethernet(0x88b5, &[])), 0);
        assert_eq!(kept(&ethernet(60, &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0])), 8);
        let tagged = [&[2; 12][..], &[0x81, 0, 0, 7], &v4(UDP, 0, &[0; 8])[12..]].concat();
        assert_eq!(kept(&tagged), 4 + 20 + 8);
    }

    #[test]
    fn the_short_way_gives_the_same_length() {
        let check =
            |bytes: &[u8; SHORT_START]| assert_eq!(usize::from(length_of_headers(bytes)), headers(bytes).len(), "{bytes:?}");
        bolero::check!().with_type::<[u8; SHORT_START]>().for_each(|random| {
            check(random);
            for protocol in [TCP, UDP, ICMP] {
                let mut frame = *random;
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                (frame[20], frame[21]) = (random[20] & 0xe0, if random[0] < 200 { 0 } else { random[21] });
                frame[23] = protocol;
                check(&frame);
            }
        });
    }

    #[test]
    fn no_frame_has_more_headers_than_bytes() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let typed = [&[2; 12][..], &bytes[..]].concat();
            assert!(headers(bytes).len() <= bytes.len() && headers(&typed).len() <= typed.len());
        });
    }
}
