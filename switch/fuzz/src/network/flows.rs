//! State of the model: flows that guests opened, and the forwarding table by MAC learning and FDB aging, as far as they are known.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::frames::Packet;
use super::model::Life;

/// A flow of frames, with the addresses and ports of its opener first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    opener: Life,
    vlan: u16,
    pub protocol: u8,
    from: (IpAddr, u16),
    pub to: (IpAddr, u16),
}

impl FlowKey {
    /// Seconds without frames after which it is over (RFC 5382, RFC 5508, RFC 4787).
    fn idle(self) -> u64 {
        match self.protocol {
            6 => 7440,
            1 => 60,
            _ => 300,
        }
    }

    pub fn opened(opener: Life, vlan: u16, packet: &Packet) -> Option<Self> {
        let is_request = packet.protocol != 1 || packet.flags == 8;
        let destination = packet.to.0;
        (!packet.is_later && is_request && !destination.is_multicast() && destination != IpAddr::from([255; 4])).then_some(Self {
            opener,
            vlan,
            protocol: packet.protocol,
            from: packet.from,
            to: packet.to,
        })
    }

    /// The flow of `opener` to which a packet to it may be a reply.
    pub fn answered(opener: Life, vlan: u16, packet: &Packet) -> Option<Self> {
        let (protocol, from, to) = match packet {
            Packet { is_later: true, .. } => (0, (packet.to.0, 0), (packet.from.0, 0)),
            Packet { protocol: 1, flags: 0, .. } => (1, (packet.to.0, packet.from.1), (packet.from.0, 0)),
            Packet { protocol: 1, .. } => return None,
            _ => (packet.protocol, packet.to, packet.from),
        };
        Some(Self { opener, vlan, protocol, from, to })
    }

    fn fragments(self) -> Self {
        Self { protocol: 0, from: (self.from.0, 0), to: (self.to.0, 0), ..self }
    }
}

/// Seconds by which a worker's clock may be behind: it looks at the clock once in a second.
const BLUR: u64 = 2;

/// When frames of a flow were sent last: perhaps, and surely. In seconds.
#[derive(Clone, Copy, Debug)]
struct Opened {
    perhaps: u64,
    surely: Option<u64>,
}

/// The flows of all ports.
#[derive(Debug, Default)]
pub struct OpenFlows(HashMap<FlowKey, Opened>);

impl OpenFlows {
    /// Frames of `flow` were sent in second `now`, if they `surely` were and not only perhaps.
    pub fn open(&mut self, flow: FlowKey, now: u64, surely: bool) {
        for flow in [flow, flow.fragments()] {
            let entry = self.0.entry(flow).or_insert(Opened { perhaps: now, surely: None });
            entry.perhaps = now;
            if surely {
                entry.surely = Some(now);
            }
        }
    }

    /// Whether it is open: if that is not known, as the question is `lenient`.
    pub fn is_open(&self, flow: &FlowKey, now: Option<u64>, lenient: bool) -> bool {
        let Some(now) = now else { return lenient };
        self.0.get(flow).is_some_and(|at| match lenient {
            true => now <= at.perhaps + flow.idle() + BLUR,
            false => at.surely.is_some_and(|at| now + BLUR <= at + flow.idle()),
        })
    }
}

/// Addresses with which questions of ports for DNS names were answered, and the second in which the TTL ends.
#[derive(Debug, Default)]
pub struct Granted(HashMap<(Life, String, IpAddr), u64>);

impl Granted {
    /// Most seconds by which frames extend a grant.
    const EXTENSION: u64 = 3600;

    /// The question of a port for `name` was answered in second `now`; a TTL counts as one of at least a minute.
    pub fn give(&mut self, life: Life, name: &str, ip: IpAddr, ttl: u64, now: u64) {
        let until = self.0.entry((life, name.into(), ip)).or_default();
        *until = (*until).max(now + ttl.clamp(60, 86_400));
    }

    /// Whether an address of a name that `pattern` has holds for a port: if that is not known, as the question is `lenient`.
    pub fn holds(&self, life: Life, pattern: &str, ip: IpAddr, now: Option<u64>, lenient: bool) -> bool {
        let has = |name: &str| match pattern.strip_prefix("*.") {
            Some(below) => name.strip_suffix(below).is_some_and(|host| host.ends_with('.')),
            None => name == pattern,
        };
        self.0.iter().filter(|((of, name, known), _)| (*of, *known) == (life, ip) && has(name)).any(|(_, until)| match now {
            None => lenient,
            Some(now) if lenient => now <= until + Self::EXTENSION + BLUR,
            Some(now) => now + BLUR <= *until,
        })
    }
}

/// Where addresses were learned: all possibilities, since when.
#[derive(Clone, Debug)]
pub struct Learned {
    pub behind: BTreeSet<Option<Life>>,
    /// Guests behind which it was seen: one whose move is dropped returns to its home, which is one of them.
    pub homes: BTreeSet<Life>,
    /// Second of the last frame.
    pub seen: u64,
}

impl Default for Learned {
    fn default() -> Self {
        Self { behind: [None].into(), homes: BTreeSet::new(), seen: 0 }
    }
}
