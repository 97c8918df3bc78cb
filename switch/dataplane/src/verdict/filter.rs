//! Policy rules against a frame: the bits of its headers that they read, and the first rule that matches.
//!
//! ARP and neighbour discovery pass always: the rules of [`super::identity`] are about them. A rule without a protocol matches every
//! other frame; one with a protocol only IPv4 and IPv6.
//!
//! A frame that no rule matches passes, or meets a **default**: then it passes if it is a reply to a flow that its receiver opened, and the present
//! rules allow the direction that opened it.
//!
//! A frame may **hide** its destination, its protocol, its ports or its flags. It passes no rule that allows by them, and none that denies by them:
//! behind more than two VLAN tags, in IEEE 802.2 frames, in malformed or cut off headers, behind extension headers that are not
//! all in the first bytes (RFC 7112), behind a source route, in a first fragment that ends before them (RFC 1858), and in a fragment of TCP at offset 8, which could
//! overwrite the flags (RFC 3128). A **later fragment** is of no use without the first one, which has the ports and is matched by them:
//! it passes where any frame of its protocol to its destination would.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets that a parser found within the same bytes, and lengths cut to theirs; the fuzz target `frame` and a property test judge any bytes"
)]

use std::net::IpAddr;

use super::answers::{self, Question};
use super::reading::{Reading, Start};
use super::reply::Asked;
use crate::frame::{TCP, TYPE_IPV4, TYPE_IPV6, network_type};
use crate::headers::{
    Fragment, ICMPV6, IPV6_HEADER, Ipv4, Ipv6, LEAST_TYPE, NdKind, TYPE_ARP, TYPE_RARP, Upper, is_extension, number_at,
};
use crate::id::PortId;
use crate::policy::destinations::{Interval, bits_of, number_of};
use crate::policy::filter::{Filter, Filtered, PolicyRule, PortRange, Protocol, Rule, Target};
use crate::policy::flows::Flow;
use crate::policy::rule_list::Towards;
use crate::policy::rule_set::has;
use crate::stats::DropReason;

/// Flags of TCP of which segments of an established connection have one (RFC 9293, section 3.1): RST, ACK.
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Byte of a TCP header with the flags.
const FLAGS: usize = 13;
/// Byte of a transport header with the destination port.
const DESTINATION: usize = 2;

impl<'f> Filtered<'f> {
    /// The rule that decides on a frame for the port `to`: the first that matches, else that which allows the flow to which it is a reply, else a
    /// default. `None` if it passes without a rule.
    fn deciding(self, to: PortId, traffic: &Traffic, frame: &mut Reading<'_>) -> Option<&'f Rule> {
        let Self { filter, from, is_forecast } = self;
        let first = filter.deciding((from, to), traffic, frame);
        if let (Some(rule), Field::Is(address)) = (first, traffic.destination)
            && rule.allows()
            && !is_forecast
        {
            filter.extend_grant(from, rule, address);
        }
        let Some(default) = filter.default_between(from, to).filter(|_| !traffic.is_exempt) else { return first };
        let Some(rule) = first else {
            return self.replied(to, traffic, frame).or_else(|| {
                // A flow may be opened at any time.
                frame.once();
                Some(default)
            });
        };
        if rule.allows()
            && let Some(flow) = traffic.opened(frame.start.bytes())
            && let Some(flows) = filter.flows(from).filter(|_| !is_forecast)
        {
            traffic.read_flow(frame);
            flows.open(flow);
        }
        first
    }

    /// The rule that allows the flow to which a frame for the port `to` is a reply, in the direction that opened it.
    fn replied(self, to: PortId, traffic: &Traffic, frame: &mut Reading<'_>) -> Option<&'f Rule> {
        let asked = traffic.asked(frame.start.bytes())?;
        traffic.read_flow(frame);
        // The bits of the frame were read, and those of its flow are others.
        let mut other = *frame;
        let mut allowing = |flow: Flow, opener: PortId, answerer: PortId| {
            let is_open = || self.filter.flows(opener).is_some_and(|flows| flows.is_open(flow));
            let known = answers::is(frame.start.tape(), Question::Open(opener, flow), is_open);
            let protocol = if flow.protocol == 0 { traffic.protocol } else { Field::Is(flow.protocol) };
            let rule = self.filter.deciding((opener, answerer), &Traffic::of_flow(flow, protocol), &mut other);
            rule.filter(|rule| known && rule.allows())
        };
        match asked {
            Asked::Receivers(flow) => allowing(flow, to, self.from),
            Asked::Either(flow) => allowing(flow, to, self.from).or_else(|| allowing(flow.reversed(), self.from, to)),
        }
    }

    /// Checks a frame in `vlan` for the port `to`.
    ///
    /// # Errors
    /// A rule denies it.
    pub(super) fn check(self, frame: &mut Reading<'_>, vlan: u16, to: PortId) -> Result<(), DropReason> {
        let traffic = Traffic::of(frame, vlan);
        let decides = self.deciding(to, &traffic, frame);
        if decides.is_some_and(|rule| !rule.allows()) { Err(DropReason::PolicyDenied) } else { Ok(()) }
    }
}

/// A flooded frame before the filter: decided for each receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilteredFlood<'f> {
    sender: Filtered<'f>,
    traffic: Traffic,
    frame: Reading<'f>,
}

impl<'f> FilteredFlood<'f> {
    /// The frame that begins with `start`, from a sender, in `vlan`.
    pub(crate) fn new(sender: Filtered<'f>, start: impl Into<Start<'f>>, vlan: u16) -> Self {
        let mut frame = Reading::new(start.into());
        Self { sender, traffic: Traffic::of(&mut frame, vlan), frame }
    }

    /// The rule that decides on it for the port `to`.
    pub(crate) fn deciding(&self, to: PortId) -> Option<&'f Rule> {
        // The bits that are read are of no interest: the verdict on a flooded frame does not depend on them.
        let mut frame = self.frame;
        self.sender.deciding(to, &self.traffic, &mut frame)
    }

    /// Whether it passes to the port `to`.
    pub(crate) fn passes(&self, to: PortId) -> bool {
        self.deciding(to).is_none_or(|rule| rule.allows())
    }

    /// Destination of the frame.
    pub(crate) fn target(&self) -> Target {
        let Traffic { destination, protocol, port, acknowledges, .. } = self.traffic;
        Target {
            destination: destination.known(),
            protocol: protocol.known().map(Protocol),
            port,
            is_established: acknowledges == Some(true),
        }
    }

    /// The filter that judges it.
    pub(crate) fn filter(&self) -> &'f Filter {
        self.sender.filter
    }

    /// The rule that denies it for the port `to`.
    pub(crate) fn denying(&self, to: PortId) -> Option<&'f Rule> {
        self.deciding(to).filter(|rule| !rule.allows())
    }
}

/// A part of a packet that rules read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<T> {
    /// A known value.
    Is(T),
    /// There is none: the frame is not of IP.
    None,
    /// The value is hidden.
    Hidden,
}

impl<T> Field<T> {
    /// Value of the field, if rules can read it.
    fn known(self) -> Option<T> {
        match self {
            Self::Is(value) => Some(value),
            Self::None | Self::Hidden => None,
        }
    }
}

/// The parts of a packet that rules read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// The frame passes by any rules.
    pub(super) is_exempt: bool,
    /// VLAN of the frame: each has flows of its own.
    pub(super) vlan: u16,
    pub(super) destination: Field<IpAddr>,
    /// Byte of the frame at which the destination address begins.
    pub(super) address: usize,
    pub(super) protocol: Field<u8>,
    /// Destination port, if it has one that is not hidden.
    pub(super) port: Option<u16>,
    /// Whether ACK or RST is set, if it is TCP and they are not hidden.
    pub(super) acknowledges: Option<bool>,
    /// Byte of the frame at which the transport header begins.
    pub(super) upper: usize,
    /// The frame passes if it would with any value of the parts that are hidden, else if it would with all.
    pub(super) is_later_fragment: bool,
}

impl Traffic {
    pub(super) const OTHER: Self = Self {
        is_exempt: false,
        vlan: 0,
        destination: Field::None,
        address: 0,
        protocol: Field::None,
        port: None,
        acknowledges: None,
        upper: 0,
        is_later_fragment: false,
    };
    const HIDDEN: Self = Self { destination: Field::Hidden, protocol: Field::Hidden, ..Self::OTHER };
    const EXEMPT: Self = Self { is_exempt: true, ..Self::OTHER };

    /// Of a frame in `vlan`.
    fn of(frame: &mut Reading<'_>, vlan: u16) -> Self {
        Self { vlan, ..Self::read(frame) }
    }

    fn read(frame: &mut Reading<'_>) -> Self {
        let bytes = frame.start.bytes();
        let Some((kind, at)) = network_type(bytes) else { return Self::hidden(frame) };
        (12..at).step_by(4).for_each(|at| frame.mark(at..at + 2));
        match kind {
            TYPE_IPV4 => Self::ipv4(frame, at, &bytes[at..]),
            TYPE_IPV6 => Self::ipv6(frame, at, &bytes[at..]),
            TYPE_ARP | TYPE_RARP => Self::EXEMPT,
            ..LEAST_TYPE => Self::llc(frame, &bytes[at..]),
            _ => Self::OTHER,
        }
    }

    /// The frame hides all; other frames like it are looked at, too.
    fn hidden(frame: &mut Reading<'_>) -> Self {
        frame.once();
        Self::HIDDEN
    }

    /// IP in IEEE 802.2 frames (RFC 1042), which some receivers accept.
    fn llc(frame: &mut Reading<'_>, bytes: &[u8]) -> Self {
        const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
        let kind = number_at(bytes, SNAP.len());
        frame.once();
        let hides = bytes.starts_with(&SNAP) && matches!(kind, None | Some(TYPE_IPV4 | TYPE_IPV6));
        if hides { Self::HIDDEN } else { Self::OTHER }
    }

    fn ipv4(frame: &mut Reading<'_>, at: usize, bytes: &[u8]) -> Self {
        const MORE: u16 = 0x2000;
        let Some(packet) = Ipv4::parse(bytes) else { return Self::hidden(frame) };
        frame.reach_to(at + packet.length);
        frame.mark(at..at + 1);
        frame.mark_number(at + 6, MORE | Ipv4::OFFSET);
        frame.mark(at + 9..at + 10);
        let is_routed = packet.is_routed(bytes);
        if is_routed {
            frame.once();
        }
        let known = Self { protocol: Field::Is(packet.protocol), upper: at + packet.length, ..Self::OTHER };
        let known = known.to(packet.destination, is_routed, at + 16);
        match packet.fragment {
            Fragment::Later => {
                let is_at_flags = packet.protocol == TCP && number_at(bytes, 6).is_some_and(|word| word & Ipv4::OFFSET == 1);
                Self { is_later_fragment: !is_at_flags, ..known }
            }
            Fragment::Whole => known.with_transport(frame, bytes, packet.length),
            // The bytes behind the length of a fragment are padding, and none of its ports.
            Fragment::First => {
                frame.once();
                let total = usize::from(number_at(bytes, 2).unwrap_or(0));
                known.with_transport(frame, &bytes[..total.min(bytes.len())], packet.length)
            }
        }
    }

    fn ipv6(frame: &mut Reading<'_>, at: usize, bytes: &[u8]) -> Self {
        let Some(packet) = Ipv6::parse(bytes) else { return Self::hidden(frame) };
        frame.reach_to(at + IPV6_HEADER);
        frame.mark_number(at, 0xf000);
        frame.mark(at + 6..at + 7);
        let upper = if is_extension(packet.next) {
            frame.once();
            packet.upper(bytes)
        } else {
            Upper::Header { protocol: packet.next, at: IPV6_HEADER, fragment: Fragment::Whole }
        };
        let known = Self::OTHER.to(packet.destination, packet.is_routed(bytes), at + 24);
        match upper {
            Upper::Beyond => Self::hidden(frame),
            // The packet's first fragment has the protocol (RFC 8200, section 4.5).
            Upper::Later => Self { is_later_fragment: true, protocol: Field::Hidden, ..known },
            Upper::Header { protocol: ICMPV6, at: upper, fragment } => match bytes.get(upper).map(|&kind| NdKind::of(kind)) {
                None => Self::hidden(frame),
                Some(kind) => {
                    frame.mark(at + upper..at + upper + 1);
                    let is_exempt = kind.is_some() && fragment == Fragment::Whole;
                    Self { is_exempt, protocol: Field::Is(ICMPV6), upper: at + upper, ..known }
                }
            },
            Upper::Header { protocol, at: upper, fragment } => {
                let known = Self { protocol: Field::Is(protocol), upper: at + upper, ..known };
                let bytes = if fragment == Fragment::Whole { bytes } else { packet.packet(bytes).0 };
                known.with_transport(frame, bytes, upper)
            }
        }
    }

    /// With this destination address at byte `at` of the frame, which a source route makes that of the next hop.
    fn to(self, destination: impl Into<IpAddr>, is_routed: bool, at: usize) -> Self {
        let destination = if is_routed { Field::Hidden } else { Field::Is(destination.into()) };
        Self { destination, address: at, ..self }
    }

    /// With the parts of the transport header at byte `at` of the packet that begins with `bytes`.
    fn with_transport(self, frame: &mut Reading<'_>, bytes: &[u8], at: usize) -> Self {
        let Field::Is(protocol) = self.protocol else { return self };
        let has_ports = Protocol(protocol).has_ports();
        let port = if has_ports { number_at(bytes, at + DESTINATION) } else { None };
        let acknowledges = if protocol == TCP { bytes.get(at + FLAGS).map(|flags| flags & (ACK | RST) != 0) } else { None };
        if has_ports && port.is_none() || protocol == TCP && acknowledges.is_none() {
            frame.once();
        }
        Self { port, acknowledges, ..self }
    }
}

impl Filter {
    /// The rule that decides on a frame between two ports; `None` if none matches.
    fn deciding(&self, (from, to): (PortId, PortId), traffic: &Traffic, frame: &mut Reading<'_>) -> Option<&Rule> {
        if traffic.is_exempt {
            return None;
        }
        let mut first: Option<&Rule> = None;
        for rules in self.between(from, to) {
            let limit = first.map_or(u64::MAX, Rule::order);
            first = self.deciding_of(&rules, (from, limit), traffic, frame).or(first);
        }
        first
    }

    /// The rule of a list that decides on a frame of the port `from`, if it stands before the order `limit`.
    fn deciding_of<'f>(
        &self,
        rules: &Towards<'f>,
        (from, limit): (PortId, u64),
        traffic: &Traffic,
        frame: &mut Reading<'_>,
    ) -> Option<&'f Rule> {
        // Hidden parts count against the frame, or for a later fragment.
        let decides = |rule: &Rule, frame: &mut Reading<'_>| {
            matches(rule, traffic, frame).unwrap_or(rule.allows() == traffic.is_later_fragment)
        };
        let is_before = |(_, rule): &(usize, &Rule)| rule.order() < limit;
        let first = if rules.has_destinations() {
            let destinations = &rules.list().destinations;
            match traffic.destination {
                Field::Is(address) => {
                    let interval = destinations.interval(address);
                    read_within(&interval, address, traffic.address, frame);
                    if rules.has_names() {
                        // Each address has grants of its own.
                        frame.mark(traffic.address..traffic.address + bits_of(address) as usize / 8);
                        let tape = frame.start.tape();
                        let is_for = |index, rule: &Rule| {
                            let granted = || self.is_granted(from, rule, address);
                            let question = Question::Granted(from, address, rule.identity());
                            has(interval.rules, index) || rules.is_named(index) && answers::is(tape, question, granted)
                        };
                        let mut before = rules.rules().take_while(is_before);
                        before.find(|&(index, rule)| is_for(index, rule) && decides(rule, frame))
                    } else {
                        rules.rules_among(interval.rules).take_while(is_before).find(|(_, rule)| decides(rule, frame))
                    }
                }
                Field::None => rules.rules_among(destinations.any()).take_while(is_before).find(|(_, rule)| decides(rule, frame)),
                Field::Hidden => {
                    let may_match = |rule: &Rule| rule.destinations.is_empty() || !rule.allows();
                    rules.rules().take_while(is_before).find(|(_, rule)| may_match(rule) && decides(rule, frame))
                }
            }
        } else {
            rules.rules().take_while(is_before).find(|(_, rule)| decides(rule, frame))
        };
        first.map(|(_, rule)| rule)
    }
}

/// Reads the bits of the destination `address`, at byte `at`, that distinguish its interval from the addresses beside it.
fn read_within(interval: &Interval<'_>, address: IpAddr, at: usize, frame: &mut Reading<'_>) {
    let (bits, number) = (bits_of(address), number_of(address));
    for beside in [interval.before, interval.after].into_iter().flatten() {
        // Addresses that share these bits are on the same side of `beside`.
        let shared = bits.saturating_sub((number ^ beside).checked_ilog2().unwrap_or(0));
        (0..shared.div_ceil(8)).for_each(|byte| {
            let rest = shared - 8 * byte;
            frame.mark_bits(at + byte as usize, if rest >= 8 { u8::MAX } else { u8::MAX << (8 - rest) });
        });
    }
}

/// Whether `rule` matches; `None` if that depends on parts which the frame hides.
fn matches(rule: &PolicyRule, traffic: &Traffic, frame: &mut Reading<'_>) -> Option<bool> {
    let Some(Protocol(protocol)) = rule.protocol else { return Some(true) };
    match traffic.protocol {
        Field::Hidden => return None,
        Field::Is(is) if is == protocol => {}
        Field::Is(_) | Field::None => return Some(false),
    }
    let port =
        if rule.ports.is_empty() { Some(true) } else { traffic.port.map(|port| is_within(&rule.ports, port, traffic, frame)) };
    if port == Some(false) || !rule.established {
        return port;
    }
    let acknowledges = traffic.acknowledges?;
    frame.mark_number(traffic.upper + FLAGS - 1, u16::from(ACK | RST));
    if acknowledges { port } else { Some(false) }
}

/// Whether one of `ranges` contains `port`; reads no more of its bits than it must.
fn is_within(ranges: &[PortRange], port: u16, traffic: &Traffic, frame: &mut Reading<'_>) -> bool {
    // All numbers with these bits are on the same side of `bound`.
    let mut read_against = |bound: u16| {
        let shared = u16::MAX << 15_u32.saturating_sub((port ^ bound).leading_zeros());
        frame.mark_number(traffic.upper + DESTINATION, shared);
    };
    ranges.iter().any(|range| {
        if port < range.first {
            read_against(range.first);
        } else if port > range.last {
            read_against(range.last);
        } else {
            range.first.checked_sub(1).into_iter().chain(range.last.checked_add(1)).for_each(&mut read_against);
        }
        range.contains(port)
    })
}

#[cfg(test)]
mod default_tests;
#[cfg(test)]
mod port_tests;
#[cfg(test)]
mod tests;
