//! Policy rules against a frame: the bits of its headers that they read, and the first rule that matches.
//!
//! ARP and neighbour discovery pass always: the rules of [`super::identity`] are about them. A rule without a protocol matches every
//! other frame; one with a protocol only IPv4 and IPv6.
//!
//! A frame may **hide** its protocol, its ports or its flags. It passes no rule that allows by them, and none that denies by them:
//! behind more than two VLAN tags, in IEEE 802.2 frames, in malformed or cut off headers, behind extension headers that are not
//! all in the first bytes (RFC 7112), in a first fragment that ends before them (RFC 1858), and in a fragment of TCP at offset 8, which could
//! overwrite the flags (RFC 3128). A **later fragment** is of no use without the first one, which has the ports and is matched by them:
//! it passes where any frame of its protocol would.

use super::reading::{Reading, Start};
use crate::frame::{TCP, TYPE_IPV4, TYPE_IPV6, network_type};
use crate::headers::{
    Fragment, ICMPV6, IPV6_HEADER, Ipv4, Ipv6, LEAST_TYPE, NdKind, TYPE_ARP, TYPE_RARP, Upper, is_extension, number_at,
};
use crate::id::PortId;
use crate::policy::filter::{Action, Filter, Filtered, Names, PolicyRule, PortRange, Protocol};
use crate::stats::DropReason;

/// Flags of TCP of which segments of an established connection have one (RFC 9293, section 3.1): RST, ACK.
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Byte of a TCP header with the flags.
const FLAGS: usize = 13;
/// Byte of a transport header with the destination port.
const DESTINATION: usize = 2;

impl Filtered<'_> {
    /// Checks a frame for the port `to`.
    ///
    /// # Errors
    /// A rule denies it.
    pub(super) fn check(self, frame: &mut Reading<'_>, to: PortId) -> Result<(), DropReason> {
        let traffic = Traffic::of(frame);
        let decides = self.filter.deciding((self.from, to), &traffic, frame);
        if decides.is_some_and(|(_, rule)| !rule.allows()) { Err(DropReason::PolicyDenied) } else { Ok(()) }
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
    /// The frame that begins with `start`, from a sender.
    pub(crate) fn new(sender: Filtered<'f>, start: impl Into<Start<'f>>) -> Self {
        let mut frame = Reading::new(start.into());
        Self { sender, traffic: Traffic::of(&mut frame), frame }
    }

    /// The rule that decides on it for the port `to`, and its index.
    pub(crate) fn deciding(&self, to: PortId) -> Option<(usize, &'f PolicyRule)> {
        // The bits that are read are of no interest: the verdict on a flooded frame does not depend on them.
        let mut frame = self.frame;
        self.sender.filter.deciding((self.sender.from, to), &self.traffic, &mut frame)
    }

    /// Whether it passes to the port `to`.
    pub(crate) fn passes(&self, to: PortId) -> bool {
        self.deciding(to).is_none_or(|(_, rule)| rule.allows())
    }

    /// A rule that would allow it, and no more than it must, between ports of these names.
    pub(crate) fn remedy(&self, from: &str, to: &str) -> PolicyRule {
        let protocol = match self.traffic.protocol {
            Field::Is(protocol) => Some(Protocol(protocol)),
            Field::None | Field::Hidden => None,
        };
        let range = |port| PortRange { first: port, last: port };
        PolicyRule {
            from: Names(vec![from.into()]),
            to: Names(vec![to.into()]),
            ports: self.traffic.port.map(range).into_iter().collect(),
            established: self.traffic.acknowledges == Some(true),
            protocol,
            action: Some(Action::Allow),
            line: 0,
        }
    }
}

/// A part of a packet that rules read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// This value.
    Is(u8),
    /// There is none: the frame is not of IP.
    None,
    /// It is hidden.
    Hidden,
}

/// The parts of a packet that rules read.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    /// It passes by any rules.
    is_exempt: bool,
    protocol: Field,
    /// Destination port, if it has one that is not hidden.
    port: Option<u16>,
    /// Whether ACK or RST is set, if it is TCP and they are not hidden.
    acknowledges: Option<bool>,
    /// Byte of the frame at which the transport header begins.
    upper: usize,
    /// It passes if it would with any value of the parts that are hidden, else if it would with all.
    is_later_fragment: bool,
}

impl Traffic {
    const OTHER: Self =
        Self { is_exempt: false, protocol: Field::None, port: None, acknowledges: None, upper: 0, is_later_fragment: false };
    const HIDDEN: Self = Self { protocol: Field::Hidden, ..Self::OTHER };
    const EXEMPT: Self = Self { is_exempt: true, ..Self::OTHER };

    fn of(frame: &mut Reading<'_>) -> Self {
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
        let known = Self { protocol: Field::Is(packet.protocol), upper: at + packet.length, ..Self::OTHER };
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
        match upper {
            Upper::Beyond => Self::hidden(frame),
            // Its first fragment has the protocol (RFC 8200, section 4.5).
            Upper::Later => Self { is_later_fragment: true, ..Self::HIDDEN },
            Upper::Header { protocol: ICMPV6, at: upper, fragment } => match bytes.get(upper).map(|&kind| NdKind::of(kind)) {
                None => Self::hidden(frame),
                Some(kind) => {
                    frame.mark(at + upper..at + upper + 1);
                    let is_exempt = kind.is_some() && fragment == Fragment::Whole;
                    Self { is_exempt, protocol: Field::Is(ICMPV6), ..Self::OTHER }
                }
            },
            Upper::Header { protocol, at: upper, fragment } => {
                let known = Self { protocol: Field::Is(protocol), upper: at + upper, ..Self::OTHER };
                let bytes = if fragment == Fragment::Whole { bytes } else { packet.packet(bytes).0 };
                known.with_transport(frame, bytes, upper)
            }
        }
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
    /// The rule that decides on a frame between two ports, and its index; `None` if none matches.
    fn deciding(&self, (from, to): (PortId, PortId), traffic: &Traffic, frame: &mut Reading<'_>) -> Option<(usize, &PolicyRule)> {
        if traffic.is_exempt {
            return None;
        }
        self.between(from, to).find(|(_, rule)| {
            // Hidden parts count against the frame, or for a later fragment.
            matches(rule, traffic, frame).unwrap_or(rule.allows() == traffic.is_later_fragment)
        })
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
mod tests;
