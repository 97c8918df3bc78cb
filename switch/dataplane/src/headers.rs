//! Headers behind the Ethernet header: ARP, IPv4, IPv6 with its extension headers, and neighbour discovery (ND).
//!
//! Each parser takes a copy of a frame's first bytes, reads fields and allocates nothing. A walk ends with the copy.

#![expect(
    clippy::indexing_slicing,
    reason = "arrays of fixed length that a checked look at the bytes yielded, and options cut by a checked length"
)]

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::frame::MacAddress;

/// The least EtherType; a smaller number is the length of an IEEE 802.2 frame.
pub const LEAST_TYPE: u16 = 0x600;
/// EtherType of ARP (RFC 826).
pub const TYPE_ARP: u16 = 0x0806;
/// EtherType of reverse ARP (RFC 903), with which hypervisors announce a guest after its migration.
pub const TYPE_RARP: u16 = 0x8035;
/// Protocol number of IGMP.
pub const IGMP: u8 = 2;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;
/// Bytes of an IPv6 header.
pub const IPV6_HEADER: usize = 40;

/// The 16-bit number at byte `at`.
pub fn number_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(array(bytes, at)?))
}

/// The `N` bytes from byte `at` on.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// An ARP packet for IPv4 on Ethernet (RFC 826), or a reverse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// 1 for a request, 2 for a reply.
    pub operation: u16,
    /// Hardware and protocol address of the sender.
    pub sender: (MacAddress, Ipv4Addr),
    /// Hardware and protocol address of the target.
    pub target: (MacAddress, Ipv4Addr),
}

impl Arp {
    /// The packet that begins with `bytes`; `None` if it is cut off, or for other kinds of addresses.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
        let pair = |at| Some((MacAddress::new(array(bytes, at)?), Ipv4Addr::from(array::<4>(bytes, at + 6)?)));
        let is_ours = array(bytes, 0)? == ETHERNET_IPV4;
        let arp = Self { operation: number_at(bytes, 6)?, sender: pair(8)?, target: pair(18)? };
        is_ours.then_some(arp)
    }
}

/// Place of a packet among the fragments of its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is no fragment.
    Whole,
    /// The fragment with the datagram's first bytes, the header of its transport among them.
    First,
    /// A later one.
    Later,
}

impl Fragment {
    /// `offset` is in units of 8 bytes.
    fn of(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First,
            _ => Self::Later,
        }
    }
}

/// An IPv4 header (RFC 791).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol number of its payload.
    pub protocol: u8,
    /// Bytes of the header, options included.
    pub length: usize,
    /// Place of the packet among fragments.
    pub fragment: Fragment,
}

impl Ipv4 {
    /// Bits of the word at byte 6 that are the offset of a fragment.
    pub const OFFSET: u16 = 0x1fff;

    /// The header with which `bytes` begin; `None` if it is none, or cut off.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header: [u8; 20] = array(bytes, 0)?;
        let (length, word) = (usize::from(header[0] & 0xf) * 4, u16::from_be_bytes([header[6], header[7]]));
        let address = |at| Some(Ipv4Addr::from(array::<4>(&header, at)?));
        let fragment = Fragment::of(word & Self::OFFSET, word & 0x2000 != 0);
        let packet = Self { source: address(12)?, destination: address(16)?, protocol: header[9], length, fragment };
        (header[0] >> 4 == 4 && (20..=bytes.len()).contains(&length)).then_some(packet)
    }

    /// Whether options of the packet that begins with `bytes` route it by its source (RFC 791, section 3.1), so that its destination may
    /// be that of the next hop only; malformed options count as such.
    pub fn is_routed(&self, bytes: &[u8]) -> bool {
        const END: u8 = 0;
        const NOTHING: u8 = 1;
        const ROUTES: [u8; 2] = [131, 137];
        let mut options = bytes.get(20..self.length).unwrap_or_default();
        while let Some(&kind) = options.first().filter(|&&kind| kind != END) {
            let length = if kind == NOTHING { 1 } else { options.get(1).copied().map_or(0, usize::from) };
            if ROUTES.contains(&kind) || length == 0 || length == 1 && kind != NOTHING || length > options.len() {
                return true;
            }
            options = &options[length..];
        }
        false
    }
}

/// An IPv6 header (RFC 8200).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Protocol number of the first extension header, or of the payload.
    pub next: u8,
    /// Bytes behind the header, as it says.
    pub payload: u16,
}

/// End of the extension headers of an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// A header that is no extension header.
    Header {
        /// Protocol of the packet.
        protocol: u8,
        /// The byte of the packet at which it begins.
        at: usize,
        /// The packet's place among fragments.
        fragment: Fragment,
    },
    /// A later fragment: its headers are in the first one.
    Later,
    /// The headers go on behind the copied bytes, or behind the end of the packet.
    Beyond,
}

impl Ipv6 {
    /// The header with which `bytes` begin; `None` if it is none, or cut off.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header: [u8; IPV6_HEADER] = array(bytes, 0)?;
        let address = |at| Some(Ipv6Addr::from(array::<16>(&header, at)?));
        let packet = Self { source: address(8)?, destination: address(24)?, next: header[6], payload: number_at(&header, 4)? };
        (header[0] >> 4 == 6).then_some(packet)
    }

    /// The bytes of the packet that begins with `bytes`, and whether they are all: bytes after its length are padding.
    pub fn packet<'b>(&self, bytes: &'b [u8]) -> (&'b [u8], bool) {
        let length = IPV6_HEADER + usize::from(self.payload);
        bytes.get(..length).map_or((bytes, false), |packet| (packet, true))
    }

    /// Follows the extension headers (RFC 8200, section 4) of the packet that begins with `bytes`. Each has 8 bytes or more, so the
    /// walk ends.
    pub fn upper(&self, bytes: &[u8]) -> Upper {
        let (packet, _) = self.packet(bytes);
        let (mut protocol, mut at, mut fragment) = (self.next, IPV6_HEADER, Fragment::Whole);
        loop {
            if !is_extension(protocol) {
                let has_start = at < packet.len() || (at == packet.len() && protocol == NO_NEXT_HEADER);
                return if has_start { Upper::Header { protocol, at, fragment } } else { Upper::Beyond };
            }
            let Some(header) = array::<8>(packet, at) else { return Upper::Beyond };
            if protocol == FRAGMENT {
                if is_later(header) {
                    return Upper::Later;
                }
                // A datagram in one fragment (RFC 6946) counts as a fragment too.
                fragment = Fragment::First;
            }
            (protocol, at) = (header[0], at + extension_length(protocol, header));
        }
    }

    /// Whether a routing header of the packet that begins with `bytes` has segments left: its destination is that of the next segment,
    /// not its last one (RFC 8200, section 4.4).
    pub fn is_routed(&self, bytes: &[u8]) -> bool {
        let (packet, _) = self.packet(bytes);
        let (mut protocol, mut at) = (self.next, IPV6_HEADER);
        while is_extension(protocol)
            && let Some(header) = array::<8>(packet, at)
            && !(protocol == FRAGMENT && is_later(header))
        {
            if protocol == ROUTING && header[3] != 0 {
                return true;
            }
            (protocol, at) = (header[0], at + extension_length(protocol, header));
        }
        false
    }
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

/// Bytes of the extension header of `protocol` that begins with `header`.
fn extension_length(protocol: u8, header: [u8; 8]) -> usize {
    match protocol {
        AUTHENTICATION => 8 + 4 * usize::from(header[1]),
        FRAGMENT => 8,
        _ => 8 + 8 * usize::from(header[1]),
    }
}

/// Whether this fragment header is of a later fragment (RFC 8200, section 4.5).
fn is_later(header: [u8; 8]) -> bool {
    u16::from_be_bytes([header[2], header[3]]) >> 3 != 0
}

/// Whether a header of this protocol is an extension header of known length (RFC 7045, section 4).
pub fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION | MOBILITY | HIP | SHIM6)
}

/// Kind of a neighbour discovery message: its ICMPv6 type (RFC 4861, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdKind {
    /// A host asks for routers (section 4.1).
    RouterSolicitation,
    /// A router tells of itself (section 4.2).
    RouterAdvertisement,
    /// A host asks for the MAC address of the target (section 4.3).
    NeighbourSolicitation,
    /// A host tells the MAC address of the target (section 4.4).
    NeighbourAdvertisement,
    /// A router names a better first hop (section 4.5).
    Redirect,
}

impl NdKind {
    /// The kind of ICMPv6 messages of this type, if it is one of neighbour discovery.
    pub fn of(icmp_type: u8) -> Option<Self> {
        match icmp_type {
            133 => Some(Self::RouterSolicitation),
            134 => Some(Self::RouterAdvertisement),
            135 => Some(Self::NeighbourSolicitation),
            136 => Some(Self::NeighbourAdvertisement),
            137 => Some(Self::Redirect),
            _ => None,
        }
    }

    /// Offset of its options.
    pub fn options(self) -> usize {
        match self {
            Self::RouterSolicitation => 8,
            Self::RouterAdvertisement => 16,
            Self::NeighbourSolicitation | Self::NeighbourAdvertisement => 24,
            Self::Redirect => 40,
        }
    }

    /// Whether it has a target address.
    pub fn has_target(self) -> bool {
        self.options() >= 24
    }
}

/// Option of neighbour discovery: source link-layer address.
pub const SOURCE_LINK: u8 = 1;
/// Option of neighbour discovery: target link-layer address.
pub const TARGET_LINK: u8 = 2;
/// Options of neighbour discovery that hold a link-layer address.
pub const LINK_OPTIONS: [u8; 2] = [SOURCE_LINK, TARGET_LINK];
/// Option of neighbour discovery: the packet that caused a redirect.
pub const REDIRECTED: u8 = 4;

/// A neighbour discovery message.
#[derive(Clone, Copy, Debug)]
pub struct Nd<'b> {
    /// Kind of the message.
    pub kind: NdKind,
    /// Target of the message; of messages without one, unspecified.
    pub target: Ipv6Addr,
    options: &'b [u8],
}

impl<'b> Nd<'b> {
    /// The message of this kind that begins with `bytes`, its ICMPv6 header; `None` if its fixed part is cut off.
    pub fn parse(kind: NdKind, bytes: &'b [u8]) -> Option<Self> {
        let options = bytes.get(kind.options()..)?;
        let target = if kind.has_target() { Ipv6Addr::from(array::<16>(bytes, 8)?) } else { Ipv6Addr::UNSPECIFIED };
        Some(Self { kind, target, options })
    }

    /// Link-layer address options: [`SOURCE_LINK`] or [`TARGET_LINK`], and the address. An error stands for options that
    /// are cut off, or are none (RFC 4861, section 4.6).
    pub fn links(&self) -> impl Iterator<Item = Result<(u8, MacAddress), Malformed>> + 'b {
        let mut rest = self.options;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let Some((option, after)) = split_option(rest) else {
                    rest = &[];
                    return Some(Err(Malformed));
                };
                rest = after;
                if matches!(option[0], SOURCE_LINK | TARGET_LINK) {
                    // On Ethernet it has 8 bytes (RFC 2464, section 6).
                    let address = if option.len() == 8 { array(option, 2) } else { None };
                    return Some(address.map(|address| (option[0], MacAddress::new(address))).ok_or(Malformed));
                }
            }
            None
        })
    }
}

/// Options that are not those of a neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

fn split_option(options: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = 8 * usize::from(*options.get(1)?);
    if length == 0 { None } else { options.split_at_checked(length) }
}

/// The link-local address fe80::/64 of an interface with this MAC address: modified EUI-64 (RFC 4291, appendix A).
pub fn link_local(mac: MacAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The solicited-node multicast address of `address` (RFC 4291, section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::frame::UDP;

    /// An IPv6 packet (RFC 8200).
    pub(crate) fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend((payload.len() as u16).to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend([0xfd; 32]);
        bytes.extend(payload);
        bytes
    }

    fn upper(next: u8, payload: &[u8]) -> Upper {
        let bytes = ipv6(next, payload);
        Ipv6::parse(&bytes).unwrap().upper(&bytes)
    }

    #[test]
    fn extension_headers_are_followed_to_the_upper_layer() {
        let header = |protocol, at, fragment| Upper::Header { protocol, at, fragment };
        let echo = [128, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(upper(ICMPV6, &echo), header(ICMPV6, 40, Fragment::Whole));
        assert_eq!(upper(0, &[&[ICMPV6, 0, 1, 4, 0, 0, 0, 0][..], &echo].concat()), header(ICMPV6, 48, Fragment::Whole));
        assert_eq!(
            upper(60, &[&[43, 1][..], &[0; 14], &[ICMPV6, 0], &[0; 6], &echo].concat()),
            header(ICMPV6, 64, Fragment::Whole)
        );
        assert_eq!(
            upper(51, &[&[ICMPV6, 4][..], &[0; 22], &echo].concat()),
            header(ICMPV6, 64, Fragment::Whole),
            "RFC 4302, section 2.2"
        );
        assert_eq!(upper(44, &[&[ICMPV6, 0, 0, 1, 0, 0, 0, 0][..], &echo].concat()), header(ICMPV6, 48, Fragment::First));
        assert_eq!(upper(44, &[&[ICMPV6, 0, 0, 8, 0, 0, 0, 0][..], &echo].concat()), Upper::Later);
        assert_eq!(upper(0, &[ICMPV6, 9, 1, 4, 0, 0, 0, 0]), Upper::Beyond, "longer than the packet");
        assert_eq!(upper(0, &[ICMPV6, 0]), Upper::Beyond);
        assert_eq!(upper(ICMPV6, &[]), Upper::Beyond);
        assert_eq!(upper(59, &[]), header(59, 40, Fragment::Whole), "no next header");
        assert_eq!(upper(51, &[59, 9, 0, 0, 0, 0, 0, 0]), Upper::Beyond, "no next header, behind the packet");
    }

    /// RFC 791, section 3.1: loose source route, 7 bytes, pointer 4, one address; RFC 8200, section 4.4: segments left.
    #[test]
    fn packets_that_are_routed_by_their_source_are_found() {
        let ipv4 = |options: &[u8]| {
            let mut bytes = [&[0x45 + options.len() as u8 / 4][..], &[0; 7], &[64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
            bytes.extend(options);
            Ipv4::parse(&bytes).unwrap().is_routed(&bytes)
        };
        assert!(ipv4(&[131, 7, 4, 192, 0, 2, 1, 0]) && ipv4(&[1, 137, 7, 4, 192, 0, 2, 1]));
        assert!(ipv4(&[7, 0, 0, 0]) && ipv4(&[7, 1, 0, 0]) && ipv4(&[7, 5, 4, 0]), "malformed options");
        assert!(!ipv4(&[]) && !ipv4(&[1, 1, 1, 1]) && !ipv4(&[148, 4, 0, 0]) && !ipv4(&[0, 131, 7, 4]));
        let ipv6 = |next, payload: &[u8]| {
            let bytes = ipv6(next, payload);
            Ipv6::parse(&bytes).unwrap().is_routed(&bytes)
        };
        let routing = |left| [&[UDP, 2, 4, left][..], &[0; 20]].concat();
        assert!(ipv6(43, &routing(1)) && !ipv6(43, &routing(0)));
        assert!(ipv6(60, &[&[43, 0, 1, 4, 0, 0, 0, 0][..], &routing(1)].concat()));
        assert!(!ipv6(44, &[&[43, 0, 0, 8, 0, 0, 0, 1][..], &routing(1)].concat()), "the bytes of a later fragment are no header");
    }

    #[test]
    fn what_lies_behind_the_length_of_a_packet_is_no_header() {
        let mut bytes = ipv6(60, &[ICMPV6, 0, 1, 4, 0, 0, 0, 0]);
        bytes.extend([128, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Ipv6::parse(&bytes).unwrap().upper(&bytes), Upper::Beyond);
    }

    #[test]
    fn options_of_neighbour_discovery_are_walked_to_their_end() {
        let mut bytes = vec![135, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0xfd; 16]);
        bytes.extend([14, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 1, 2, 0, 0, 0, 0, 7]);
        let links = |bytes: &[u8]| Nd::parse(NdKind::NeighbourSolicitation, bytes).unwrap().links().collect::<Vec<_>>();
        let link = MacAddress::new([2, 0, 0, 0, 0, 7]);
        assert_eq!(links(&bytes), [Ok((SOURCE_LINK, link))]);
        assert_eq!(links(&bytes[..39]), [Err(Malformed)], "cut off");
        bytes[33] = 0;
        assert_eq!(links(&bytes), [Err(Malformed)], "an option without a length");
        assert!(Nd::parse(NdKind::NeighbourSolicitation, &bytes[..23]).is_none());
    }

    #[test]
    fn a_link_local_address_is_made_of_the_mac_address() {
        // RFC 4291, appendix A, with the universal/local bit inverted.
        let mac = MacAddress::new([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(link_local(mac), "fe80::3656:78ff:fe9a:bcde".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn a_solicited_node_address_ends_as_its_address() {
        // RFC 4291, section 2.7.1.
        let address: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited_node(address), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _ = (Arp::parse(bytes), Ipv4::parse(bytes));
            if let Some(packet) = Ipv6::parse(bytes)
                && let Upper::Header { at, .. } = packet.upper(bytes)
            {
                assert!(at <= packet.packet(bytes).0.len());
            }
            for kind in (133..=137).filter_map(NdKind::of) {
                assert!(Nd::parse(kind, bytes).is_none_or(|nd| nd.links().count() <= bytes.len() / 8 + 1));
            }
        });
    }
}
