//! Identity: whether all addresses that a frame claims belong to its port (`anti-spoof = "all"`), and whether the port may offer the service
//! that the frame is part of (`may-serve`).
//!
//! The rule reads the source of IPv4 and IPv6 packets, the sender of ARP packets, and the addresses that neighbour discovery tells the
//! receiver to use. A probe for an address that the port does not have disturbs its owner, or another prober (RFC 5227, section 2.1.1;
//! RFC 4862, section 5.4.3), so no other port receives it: one for an address that guests may make goes to the segment's responder. A frame
//! that hides its addresses is refused: behind more than two VLAN tags, in fragments (RFC 6980), or behind extension headers that are not all
//! in the first bytes (RFC 7112, RFC 7113).

#![expect(
    clippy::indexing_slicing,
    reason = "offsets that a parser found within the same bytes; the fuzz target `frame` and a property test judge any bytes"
)]

use std::net::IpAddr;

use super::reading::Reading;
use crate::frame::{MacAddress, TYPE_IPV4, TYPE_IPV6, UDP, network_type};
use crate::headers::{
    Arp, Fragment, ICMPV6, IGMP, IPV6_HEADER, Ipv4, Ipv6, LEAST_TYPE, Nd, NdKind, SOURCE_LINK, TYPE_ARP, TYPE_RARP, Upper,
    is_extension, number_at, solicited_node,
};
use crate::id::PortId;
use crate::policy::rules::Identity;
use crate::stats::DropReason;

/// Ports of DHCP servers and clients (RFC 2131, section 4.1), and of DHCPv6 clients (RFC 8415, section 7.2).
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;

/// Checks a frame from `source`, a MAC address of the port; `is_own` tells of other MAC addresses whether they are, too. Returns the one port
/// that is to receive it, if it is a probe for a responder.
///
/// # Errors
/// The frame is to be dropped, for this reason.
pub(super) fn check(
    frame: &mut Reading<'_>,
    source: MacAddress,
    identity: &Identity,
    is_own: impl Fn(MacAddress) -> bool,
) -> Result<Option<PortId>, DropReason> {
    let mut check = Check { frame, source, identity, is_own, asks: None };
    check.frame()?;
    Ok(check.asks)
}

struct Check<'c, 'f, O> {
    frame: &'c mut Reading<'f>,
    source: MacAddress,
    identity: &'c Identity,
    is_own: O,
    /// The responder that decides on a probe.
    asks: Option<PortId>,
}

impl<O: Fn(MacAddress) -> bool> Check<'_, '_, O> {
    fn frame(&mut self) -> Result<(), DropReason> {
        let bytes = self.frame.start.bytes();
        let Some((kind, at)) = network_type(bytes) else { return self.refuse(DropReason::SpoofedIp) };
        (12..at).step_by(4).for_each(|at| self.frame.mark(at..at + 2));
        match kind {
            TYPE_IPV4 => self.ipv4(at, &bytes[at..]),
            TYPE_IPV6 => self.ipv6(at, &bytes[at..]),
            TYPE_ARP | TYPE_RARP => self.arp(&bytes[at..]),
            ..LEAST_TYPE => self.llc(&bytes[at..]),
            _ => Ok(()),
        }
    }

    /// Refuses this frame; others like it are looked at, too.
    fn refuse(&mut self, reason: DropReason) -> Result<(), DropReason> {
        self.frame.once();
        Err(reason)
    }

    /// The verdict holds for this frame only, and it passes if `condition` holds.
    fn demand(&mut self, condition: bool, reason: DropReason) -> Result<(), DropReason> {
        self.frame.once();
        condition.then_some(()).ok_or(reason)
    }

    fn ipv4(&mut self, at: usize, bytes: &[u8]) -> Result<(), DropReason> {
        let Some(packet) = Ipv4::parse(bytes) else { return self.refuse(DropReason::SpoofedIp) };
        self.frame.reach_to(at + packet.length);
        self.frame.mark(at..at + 1);
        self.frame.mark(at + 9..at + 10);
        self.frame.mark(at + 12..at + 16);
        if packet.source.is_unspecified() {
            let is_client = packet.protocol == UDP
                && packet.fragment == Fragment::Whole
                && number_at(bytes, packet.length) == Some(DHCP_CLIENT)
                && number_at(bytes, packet.length + 2) == Some(DHCP_SERVER);
            // Reports of group memberships may have no source (RFC 3376, section 4.2.13).
            return self.demand(is_client || packet.protocol == IGMP, DropReason::SpoofedIp);
        }
        if !self.identity.may_use(self.source, packet.source) {
            return Err(DropReason::SpoofedIp);
        }
        if packet.protocol != UDP || self.identity.serves_dhcp {
            return Ok(());
        }
        self.frame.mark_number(at + 6, Ipv4::OFFSET);
        if packet.fragment == Fragment::Later { Ok(()) } else { self.no_answer_to(DHCP_CLIENT, at + packet.length) }
    }

    /// Refuses UDP to a DHCP client's `port`; the UDP header begins at byte `at` of the frame.
    fn no_answer_to(&mut self, port: u16, at: usize) -> Result<(), DropReason> {
        let Some(to) = number_at(self.frame.start.bytes(), at + 2) else { return self.refuse(DropReason::NotAServer) };
        if self.frame.is_number(at + 2, to, port) { Err(DropReason::NotAServer) } else { Ok(()) }
    }

    fn ipv6(&mut self, at: usize, bytes: &[u8]) -> Result<(), DropReason> {
        let Some(packet) = Ipv6::parse(bytes) else { return self.refuse(DropReason::SpoofedIp) };
        self.frame.reach_to(at + IPV6_HEADER);
        self.frame.mark(at..at + 1);
        self.frame.mark(at + 6..at + 7);
        self.frame.mark(at + 8..at + 24);
        let upper = if packet.next == ICMPV6 || is_extension(packet.next) {
            self.frame.once();
            packet.upper(bytes)
        } else {
            Upper::Header { protocol: packet.next, at: IPV6_HEADER, fragment: Fragment::Whole }
        };
        if packet.source.is_unspecified() {
            let is_allowed = matches!(upper, Upper::Header { protocol: ICMPV6, at, .. } if bytes.get(at).is_some_and(|&kind| may_lack_source(kind)));
            self.demand(is_allowed, DropReason::SpoofedIp)?;
        } else if !self.identity.may_use(self.source, packet.source) {
            return Err(DropReason::SpoofedIp);
        }
        match upper {
            Upper::Beyond => self.refuse(DropReason::SpoofedArp),
            // The packet's headers are in the first fragment, which was checked.
            Upper::Later => Ok(()),
            Upper::Header { protocol: UDP, at: upper, .. } if !self.identity.serves_dhcp => {
                self.no_answer_to(DHCPV6_CLIENT, at + upper)
            }
            Upper::Header { protocol: ICMPV6, at, fragment } => match NdKind::of(bytes[at]) {
                Some(_) if fragment != Fragment::Whole => self.refuse(DropReason::SpoofedArp),
                Some(kind) => self.neighbour_discovery(kind, &packet, bytes, at),
                None => Ok(()),
            },
            Upper::Header { .. } => Ok(()),
        }
    }

    fn neighbour_discovery(&mut self, kind: NdKind, packet: &Ipv6, bytes: &[u8], at: usize) -> Result<(), DropReason> {
        let is_routers = matches!(kind, NdKind::RouterAdvertisement | NdKind::Redirect);
        if is_routers && !self.identity.serves_ra {
            return self.refuse(DropReason::NotAServer);
        }
        let (bytes, is_whole) = packet.packet(bytes);
        let Some(message) = Nd::parse(kind, &bytes[at.min(bytes.len())..]) else { return self.refuse(DropReason::SpoofedArp) };
        let asks = self.responder_for(packet, &message, at);
        let may = |mac, address: IpAddr| (self.is_own)(mac) && self.identity.may_use(mac, address);
        let source = packet.source.into();
        let mut good = match kind {
            NdKind::NeighbourAdvertisement => may(self.source, message.target.into()),
            // Duplicate address detection (RFC 4862, section 5.4.2) for another's address would take it from there.
            NdKind::NeighbourSolicitation if packet.source.is_unspecified() => {
                may(self.source, message.target.into()) || asks.is_some()
            }
            _ => true,
        };
        for link in message.links() {
            good &= match (kind, link) {
                (NdKind::Redirect, Ok(_)) => true,
                (NdKind::NeighbourAdvertisement, Ok((_, mac))) => may(mac, message.target.into()),
                (_, Ok((SOURCE_LINK, mac))) => may(mac, source),
                (_, Ok(_)) => true,
                // Options of routers may be longer than the copied bytes.
                (_, Err(_)) => is_routers && !is_whole,
            };
        }
        self.asks = asks;
        self.demand(good && (is_whole || is_routers), DropReason::SpoofedArp)
    }

    /// The responder that decides on a probe for an address that the port does not have: one without tags and extension headers, to the
    /// address of its target.
    fn responder_for(&self, packet: &Ipv6, message: &Nd<'_>, at: usize) -> Option<PortId> {
        let is_probe = message.kind == NdKind::NeighbourSolicitation && packet.source.is_unspecified();
        let is_plain = at == IPV6_HEADER && self.frame.start.head().vlan().0 == 0 && message.links().next().is_none();
        let has_address = self.identity.may_use(self.source, message.target);
        let is_new = is_probe && is_plain && !has_address && packet.destination == solicited_node(message.target);
        self.identity.responder_for(message.target).filter(|_| is_new)
    }

    fn arp(&mut self, bytes: &[u8]) -> Result<(), DropReason> {
        let good = Arp::parse(bytes).is_some_and(|arp| {
            let (mac, ip) = arp.sender;
            // Without an address, the sender asks if one is in use that it was given (RFC 5227, section 1.1), or a hypervisor tells of it by
            // reverse ARP.
            let claimed = if ip.is_unspecified() { arp.target.1 } else { ip };
            let is_reverse = matches!(arp.operation, 3 | 4) && ip.is_unspecified();
            (self.is_own)(mac) && (is_reverse || self.identity.may_use(mac, claimed))
        });
        self.demand(good, DropReason::SpoofedArp)
    }

    /// IP and ARP in IEEE 802.2 frames (RFC 1042), which some receivers accept.
    fn llc(&mut self, bytes: &[u8]) -> Result<(), DropReason> {
        const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
        let kind = number_at(bytes, SNAP.len());
        let is_hidden = bytes.starts_with(&SNAP) && matches!(kind, None | Some(TYPE_IPV4 | TYPE_IPV6 | TYPE_ARP | TYPE_RARP));
        self.demand(!is_hidden, DropReason::SpoofedIp)
    }
}

/// Whether an ICMPv6 message of this type may come from the unspecified address: solicitations (RFC 4861, section 4), and reports of group
/// memberships (RFC 3590, RFC 3810).
fn may_lack_source(kind: u8) -> bool {
    const MLD_REPORTS: [u8; 3] = [131, 132, 143];
    matches!(NdKind::of(kind), Some(NdKind::RouterSolicitation | NdKind::NeighbourSolicitation)) || MLD_REPORTS.contains(&kind)
}

/// The MAC and IP address that a frame claims for its sender, for the operator.
pub(crate) fn claimed(bytes: &[u8]) -> (MacAddress, Option<IpAddr>) {
    let mut source = [0; 6];
    source.copy_from_slice(bytes.get(6..12).unwrap_or(&[0; 6]));
    let source = MacAddress::new(source);
    let Some((kind, at)) = network_type(bytes) else { return (source, None) };
    let bytes = &bytes[at..];
    match kind {
        TYPE_IPV4 => (source, Ipv4::parse(bytes).map(|packet| packet.source.into())),
        TYPE_IPV6 => Ipv6::parse(bytes).map_or((source, None), |packet| claimed_by_ipv6(source, &packet, bytes)),
        TYPE_ARP | TYPE_RARP => Arp::parse(bytes).map_or((source, None), |arp| {
            let (mac, ip) = arp.sender;
            (mac, Some(if ip.is_unspecified() { arp.target.1 } else { ip }.into()))
        }),
        _ => (source, None),
    }
}

fn claimed_by_ipv6(source: MacAddress, packet: &Ipv6, bytes: &[u8]) -> (MacAddress, Option<IpAddr>) {
    debug_assert!(bytes.len() >= IPV6_HEADER);
    let Upper::Header { protocol: ICMPV6, at, .. } = packet.upper(bytes) else { return (source, Some(packet.source.into())) };
    let message = NdKind::of(bytes[at]).and_then(|kind| Nd::parse(kind, &bytes[at..]));
    let Some(message) = message else { return (source, Some(packet.source.into())) };
    let link = message.links().flatten().map(|(_, mac)| mac).next().unwrap_or(source);
    let claims_target = message.kind == NdKind::NeighbourAdvertisement || packet.source.is_unspecified();
    (link, Some(if claims_target { message.target } else { packet.source }.into()))
}

#[cfg(test)]
mod tests;
