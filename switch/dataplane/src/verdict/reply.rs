//! Flows of frames: which one a frame opens, and to which one it may be a reply.
//!
//! A reply has the ends of its flow exchanged, and is in its VLAN; that of an echo request has the same identifier. An ICMP error is a reply to the flow of the
//! packet that it quotes (RFC 792; RFC 4443, section 2.4), and a later fragment one to any flow between its addresses.

use std::net::IpAddr;

use super::filter::{Field, Traffic};
use super::reading::Reading;
use crate::headers::{Fragment, ICMPV6, Ipv4, Ipv6, Upper, number_at};
use crate::policy::filter::Protocol;
use crate::policy::flows::Flow;

const ICMP: u8 = 1;

/// Meaning of an ICMP or ICMPv6 message for flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Icmp {
    Request,
    Reply,
    /// An error, which quotes a packet.
    Error,
    Other,
}

impl Icmp {
    /// RFC 792 and RFC 4443.
    fn of(protocol: u8, kind: u8) -> Self {
        match (protocol, kind) {
            (ICMP, 8) | (ICMPV6, 128) => Self::Request,
            (ICMP, 0) | (ICMPV6, 129) => Self::Reply,
            (ICMP, 3 | 11 | 12) | (ICMPV6, 1..=4) => Self::Error,
            _ => Self::Other,
        }
    }
}

/// The addresses of a packet: of its source, and of its destination.
type Ends = (IpAddr, IpAddr);

/// The flow in `vlan` of a packet with this protocol, whose header behind IP is `upper`; `None` if it opens none.
fn flow_of(vlan: u16, (from, to): Ends, protocol: u8, upper: &[u8]) -> Option<Flow> {
    let (source, destination) = match protocol {
        ICMP | ICMPV6 if Icmp::of(protocol, *upper.first()?) == Icmp::Request => (number_at(upper, 4)?, 0),
        ICMP | ICMPV6 => return None,
        _ if Protocol(protocol).has_ports() => (number_at(upper, 0)?, number_at(upper, 2)?),
        _ => (0, 0),
    };
    Some(Flow { vlan, protocol, from: (from, source), to: (to, destination) })
}

/// The flow in `vlan` of a quoted packet, which begins with `bytes`.
fn quoted(vlan: u16, protocol: u8, bytes: &[u8]) -> Option<Flow> {
    if protocol == ICMP {
        let packet = Ipv4::parse(bytes).filter(|packet| packet.fragment != Fragment::Later)?;
        return flow_of(vlan, (packet.source.into(), packet.destination.into()), packet.protocol, bytes.get(packet.length..)?);
    }
    let packet = Ipv6::parse(bytes)?;
    let Upper::Header { protocol, at, .. } = packet.upper(bytes) else { return None };
    flow_of(vlan, (packet.source.into(), packet.destination.into()), protocol, bytes.get(at..)?)
}

/// The flow to which a frame belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// One that the receiver opened.
    Receivers(Flow),
    /// One that either the receiver opened, or in the other direction the sender.
    Either(Flow),
}

impl Traffic {
    /// Addresses of the packet, if the frame does not hide them.
    fn ends(&self, bytes: &[u8]) -> Option<Ends> {
        let Field::Is(to) = self.destination else { return None };
        let from = match to {
            IpAddr::V4(_) => IpAddr::from(*bytes.get(self.address.checked_sub(4)?..)?.first_chunk::<4>()?),
            IpAddr::V6(_) => IpAddr::from(*bytes.get(self.address.checked_sub(16)?..)?.first_chunk::<16>()?),
        };
        Some((from, to))
    }

    /// The flow that the frame which begins with `bytes` opens.
    pub(super) fn opened(&self, bytes: &[u8]) -> Option<Flow> {
        let (ends, Field::Is(protocol)) = (self.ends(bytes)?, self.protocol) else { return None };
        let is_of_one = match ends.1 {
            IpAddr::V4(to) => !to.is_multicast() && !to.is_broadcast(),
            IpAddr::V6(to) => !to.is_multicast(),
        };
        if self.is_later_fragment || !is_of_one || Protocol(protocol).has_ports() && self.port.is_none() {
            return None;
        }
        flow_of(self.vlan, ends, protocol, bytes.get(self.upper..)?)
    }

    /// The flow to which the frame that begins with `bytes` may be a reply, as its opener transmits it.
    pub(super) fn asked(&self, bytes: &[u8]) -> Option<Asked> {
        let ((from, to), vlan) = (self.ends(bytes)?, self.vlan);
        if self.is_later_fragment {
            return Some(Asked::Receivers(Flow { vlan, protocol: 0, from: (to, 0), to: (from, 0) }));
        }
        let Field::Is(protocol) = self.protocol else { return None };
        let upper = bytes.get(self.upper..)?;
        if !matches!(protocol, ICMP | ICMPV6) {
            let is_hidden = Protocol(protocol).has_ports() && self.port.is_none();
            let flow = flow_of(self.vlan, (from, to), protocol, upper).filter(|_| !is_hidden)?;
            return Some(Asked::Receivers(flow.reversed()));
        }
        match Icmp::of(protocol, *upper.first()?) {
            Icmp::Reply => Some(Asked::Receivers(Flow { vlan, protocol, from: (to, number_at(upper, 4)?), to: (from, 0) })),
            // The quoted packet is one that the receiver sent (RFC 5927, section 4.1).
            Icmp::Error => quoted(vlan, protocol, upper.get(8..)?).filter(|flow| flow.from.0 == to).map(Asked::Either),
            Icmp::Request | Icmp::Other => None,
        }
    }

    /// The frames of `flow`, as its opener transmits them.
    pub(super) fn of_flow(flow: Flow, protocol: Field<u8>) -> Self {
        let port = Protocol(flow.protocol).has_ports().then_some(flow.to.1);
        let vlan = flow.vlan;
        Self { vlan, destination: Field::Is(flow.to.0), protocol, port, is_later_fragment: flow.protocol == 0, ..Self::OTHER }
    }

    /// Reads the addresses and the ports: the verdict holds for this flow only.
    pub(super) fn read_flow(&self, frame: &mut Reading<'_>) {
        let length = if matches!(self.destination, Field::Is(IpAddr::V4(_))) { 4 } else { 16 };
        frame.mark(self.address.saturating_sub(length)..self.address + length);
        match self.port {
            Some(_) => frame.mark(self.upper..self.upper + 4),
            None => frame.once(),
        }
    }
}
