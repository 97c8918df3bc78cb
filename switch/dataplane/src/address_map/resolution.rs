//! Address resolution on the wire: the **claim** of an ARP or neighbour discovery (ND) frame, that its sender has an IP address, and its
//! **question**, which MAC address another IP address has; and the answer of the switch, as the owner of the address would give it.
//!
//! A claim counts only if its MAC address is the source of the frame, so that it names the port too. A frame that breaks a rule of its
//! protocol claims and asks nothing: it is flooded like any other.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets that a parser found within the same bytes, and within an array that was asked for; the fuzz target `addresses` and a property test take any bytes"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::answer::{Answer, turned};
use crate::frame::{MacAddress, NetHeader, SHORTEST, START, TYPE_IPV6, network_type};
use crate::headers::{Arp, Fragment, ICMPV6, IPV6_HEADER, Ipv6, Nd, NdKind, SOURCE_LINK, TARGET_LINK, TYPE_ARP, Upper};
use crate::offload::checksum;

/// Hop limit of neighbour discovery (RFC 4861, section 7.1): no router forwarded it.
const HOP_LIMIT: u8 = 255;
/// Flags of a neighbour advertisement: router, solicited, override (RFC 4861, section 4.4).
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Bytes of a neighbour advertisement with the target's link-layer address.
const ADVERTISEMENT: usize = 32;
/// All nodes, as IPv6 and as MAC address (RFC 2464, section 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// Prefix of solicited-node addresses (RFC 4291, section 2.7.1).
const SOLICITED_NODES: [u8; 13] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];

/// A claim to have an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The IP address.
    pub ip: IpAddr,
    /// The MAC address, the frame's source.
    pub mac: MacAddress,
    /// Whether the claimant says that it is a router (RFC 4861, section 4.4), if it says anything about that.
    pub router: Option<bool>,
}

/// A question for the MAC address of an IP address, to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The IP address.
    pub target: IpAddr,
    /// The sender has no address yet: it asks whether the target is in use before it takes it (RFC 5227, RFC 4862).
    pub is_probe: bool,
}

/// Contents of a frame of address resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// Claim of the address, if there is one.
    pub claim: Option<Claim>,
    /// Question for the address, if there is one.
    pub question: Option<Question>,
}

/// Whether a frame that begins with `start` may be one of address resolution: it is ARP, or ND without extension headers.
#[inline]
pub(crate) fn is_candidate(start: &[u8]) -> bool {
    match network_type(start) {
        Some((TYPE_ARP, _)) => true,
        Some((TYPE_IPV6, at)) => {
            let kind = start.get(at + IPV6_HEADER);
            start.get(at + 6) == Some(&ICMPV6) && kind.is_none_or(|&kind| NdKind::of(kind).is_some())
        }
        _ => false,
    }
}

impl Resolution {
    /// The frame that begins with `start` and has this virtio-net `header`; `None` if it is none of address resolution, or breaks a rule.
    pub fn of(start: &[u8], header: NetHeader) -> Option<Self> {
        let (kind, at) = network_type(start)?;
        let bytes = start.get(at..)?;
        let ethernet = Ethernet { source: mac_at(start, 6)?, is_group: mac_at(start, 0)?.is_group() };
        match kind {
            TYPE_ARP => of_arp(&Arp::parse(bytes)?, ethernet),
            TYPE_IPV6 => of_nd(bytes, ethernet, header),
            _ => None,
        }
    }
}

/// The Ethernet addresses of a frame, as far as they count.
#[derive(Clone, Copy)]
struct Ethernet {
    source: MacAddress,
    is_group: bool,
}

/// The source of the frame that begins with `start`.
pub(super) fn source(start: &[u8]) -> Option<MacAddress> {
    mac_at(start, 6)
}

fn mac_at(start: &[u8], at: usize) -> Option<MacAddress> {
    Some(MacAddress::new(*start.get(at..)?.first_chunk()?))
}

/// ARP: RFC 826, and RFC 5227 for probes and announcements.
fn of_arp(arp: &Arp, ethernet: Ethernet) -> Option<Resolution> {
    const REQUEST: u16 = 1;
    const REPLY: u16 = 2;
    let ((mac, ip), (_, target)) = (arp.sender, arp.target);
    if !matches!(arp.operation, REQUEST | REPLY) || mac != ethernet.source {
        return None;
    }
    let is_probe = ip.is_unspecified();
    let claim = is_host_v4(ip).then(|| Claim { ip: ip.into(), mac, router: None });
    // An announcement asks for the sender's own address: others are to hear it.
    let asks = arp.operation == REQUEST && ethernet.is_group && target != ip && is_host_v4(target);
    let question = (asks && (is_probe || claim.is_some())).then(|| Question { target: target.into(), is_probe });
    (claim.is_some() || question.is_some()).then_some(Resolution { claim, question })
}

fn is_host_v4(ip: Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast() && !ip.is_loopback()
}

fn is_host_v6(ip: Ipv6Addr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
}

/// Neighbour discovery: a message that passes the checks of RFC 4861, section 7.1.
fn of_nd(bytes: &[u8], ethernet: Ethernet, header: NetHeader) -> Option<Resolution> {
    let packet = Ipv6::parse(bytes)?;
    let Upper::Header { protocol: ICMPV6, at, fragment: Fragment::Whole } = packet.upper(bytes) else { return None };
    let (bytes, is_whole) = packet.packet(bytes);
    let kind = NdKind::of(*bytes.get(at)?)?;
    let is_good = bytes[7] == HOP_LIMIT && bytes.get(at + 1) == Some(&0) && (is_whole || kind == NdKind::RouterAdvertisement);
    if !is_good || is_whole && !has_sum(&packet, &bytes[at..], header) {
        return None;
    }
    let message = Nd::parse(kind, &bytes[at..])?;
    let link = link_of(&message, is_whole)?;
    if !is_valid(&message, &packet, link.is_some()) {
        return None;
    }
    let source = is_host_v6(packet.source).then_some(packet.source);
    let claim = |ip: Ipv6Addr, router| {
        let mac = link.unwrap_or(ethernet.source);
        (is_host_v6(ip) && mac == ethernet.source).then(|| Claim { ip: ip.into(), mac, router })
    };
    Some(match kind {
        NdKind::NeighbourSolicitation => {
            let is_probe = packet.source.is_unspecified();
            let asks = ethernet.is_group && is_host_v6(message.target) && (is_probe || source.is_some());
            let question = asks.then(|| Question { target: message.target.into(), is_probe });
            Resolution { claim: source.filter(|_| link.is_some()).and_then(|ip| claim(ip, None)), question }
        }
        NdKind::NeighbourAdvertisement => {
            let flags = bytes[at + 4];
            // Without the override flag it is one of several owners, or speaks for another (sections 7.2.7 and 7.2.8). One to a group is
            // not solicited (section 7.1.2).
            let is_own = flags & OVERRIDE != 0 && !(ethernet.is_group && flags & SOLICITED != 0);
            Resolution { claim: is_own.then(|| claim(message.target, Some(flags & ROUTER != 0))).flatten(), question: None }
        }
        NdKind::RouterAdvertisement => Resolution { claim: source.and_then(|ip| claim(ip, Some(true))), question: None },
        NdKind::RouterSolicitation => {
            Resolution { claim: source.filter(|_| link.is_some()).and_then(|ip| claim(ip, None)), question: None }
        }
        NdKind::Redirect => return None,
    })
}

/// Whether a message keeps the rules of RFC 4861 about its addresses: hosts discard others.
fn is_valid(message: &Nd<'_>, packet: &Ipv6, has_link: bool) -> bool {
    let (source, target) = (packet.source, message.target);
    match message.kind {
        // Section 7.1.1.
        NdKind::NeighbourSolicitation => {
            let is_probe = source.is_unspecified();
            !target.is_multicast() && !(is_probe && (has_link || !packet.destination.octets().starts_with(&SOLICITED_NODES)))
        }
        // Section 7.1.2.
        NdKind::NeighbourAdvertisement => !target.is_multicast(),
        // Section 6.1.1.
        NdKind::RouterSolicitation => !(source.is_unspecified() && has_link),
        // Section 6.1.2.
        NdKind::RouterAdvertisement => source.is_unicast_link_local(),
        NdKind::Redirect => true,
    }
}

/// The link-layer address that a message tells of its sender; `None` if its options are malformed.
fn link_of(message: &Nd<'_>, is_whole: bool) -> Option<Option<MacAddress>> {
    let wanted = if message.kind == NdKind::NeighbourAdvertisement { TARGET_LINK } else { SOURCE_LINK };
    let mut link = None;
    for found in message.links() {
        match found {
            Ok((option, mac)) if option == wanted => link = Some(mac),
            Ok(_) => {}
            Err(_) if is_whole => return None,
            Err(_) => break,
        }
    }
    Some(link)
}

/// Whether the checksum of an ICMPv6 `message` is right, or left to the receiver's side as virtio-net's header says.
fn has_sum(packet: &Ipv6, message: &[u8], header: NetHeader) -> bool {
    header.flags() & NetHeader::NEEDS_CSUM != 0 || sum(packet.source, packet.destination, message) == [0, 0]
}

/// The checksum of an ICMPv6 message, with the pseudo-header of RFC 8200, section 8.1; zero over a message that has it.
fn sum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> [u8; 2] {
    let length = (message.len() as u32).to_be_bytes();
    checksum::over(&[&source.octets(), &destination.octets(), &length, &[0, 0, 0, ICMPV6], message])
}

/// The answer to `question`, the one of a frame that begins with `start`: its target is at `mac`. `is_router` is told of an IPv6 address.
/// `None` if the frame has no such question.
pub(crate) fn answer(start: &[u8], question: Question, mac: MacAddress, is_router: bool) -> Option<Answer> {
    let (_, at) = network_type(start)?;
    let mut frame = turned(start, at);
    frame[6..12].copy_from_slice(&mac.bytes());
    match question.target {
        IpAddr::V4(target) => arp_reply(start, frame, at, target, mac),
        IpAddr::V6(target) => advertisement(start, frame, at, (target, question.is_probe), mac, is_router),
    }
}

/// RFC 826: the reply has the request's sender as its target.
fn arp_reply(start: &[u8], mut frame: [u8; START], at: usize, target: Ipv4Addr, mac: MacAddress) -> Option<Answer> {
    let arp = frame.get_mut(at..at + 28)?;
    arp[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
    arp[8..14].copy_from_slice(&mac.bytes());
    arp[14..18].copy_from_slice(&target.octets());
    arp[18..28].copy_from_slice(start.get(at + 8..at + 18)?);
    Some(Answer { frame, length: (at + 28).max(SHORTEST as usize) })
}

/// RFC 4861, section 7.2.4: to the sender; to all nodes if it has no address yet.
fn advertisement(
    start: &[u8],
    mut frame: [u8; START],
    at: usize,
    (target, is_probe): (Ipv6Addr, bool),
    mac: MacAddress,
    is_router: bool,
) -> Option<Answer> {
    let asker = Ipv6::parse(start.get(at..)?)?.source;
    let to = if is_probe { ALL_NODES } else { asker };
    if is_probe {
        frame[..6].copy_from_slice(&ALL_NODES_MAC);
    }
    let ip = frame.get_mut(at..at + IPV6_HEADER + ADVERTISEMENT)?;
    ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, ADVERTISEMENT as u8, ICMPV6, HOP_LIMIT]);
    ip[8..24].copy_from_slice(&target.octets());
    ip[24..40].copy_from_slice(&to.octets());
    let router = if is_router { ROUTER } else { 0 };
    let solicited = if is_probe { 0 } else { SOLICITED };
    ip[40..48].copy_from_slice(&[136, 0, 0, 0, router | solicited | OVERRIDE, 0, 0, 0]);
    ip[48..64].copy_from_slice(&target.octets());
    ip[64..66].copy_from_slice(&[TARGET_LINK, 1]);
    ip[66..72].copy_from_slice(&mac.bytes());
    let sum = sum(target, to, &ip[40..]);
    ip[42..44].copy_from_slice(&sum);
    Some(Answer { frame, length: at + IPV6_HEADER + ADVERTISEMENT })
}

#[cfg(test)]
mod tests;
