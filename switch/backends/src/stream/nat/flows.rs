//! The flows of guests through one passt: a bounded table for each protocol, of which no guest can take all.
//!
//! - The place of a flow in the table is its port towards passt, so that a frame of passt finds it by an index.
//! - A guest has at most half as many flows as places are free, and [`LEAST_FLOWS`] at least (dynamic threshold, Choudhury and Hahne 1998). Its next
//!   flow takes the place of the one that it used least recently.
//! - Where no place is free, the port with the most flows loses the one that it used least recently.
//! - A place changes its guest no sooner than [`QUIET`] seconds after its last frame, if another is free: a late answer reaches no other guest.
//! - Each new flow looks at a few places: flows that were idle for too long, and those of guests that have left, end.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::rewrite::Tcp;
use crate::frame::MacAddress;
use crate::id::PortId;

/// First port towards passt: below those that Linux gives to other sockets of the host, which passt may need for UDP.
pub const FIRST: u16 = 16384;
/// Most flows of TCP, and of UDP.
pub const MOST_FLOWS: u16 = 16384;
/// Most flows of echo requests.
pub const MOST_ECHOES: u16 = 1024;
/// Flows that a guest may always have.
pub const LEAST_FLOWS: usize = 64;
/// Seconds after which a place may change its guest.
pub const QUIET: u32 = 10;
/// Places that a new flow looks at.
const LOOKS: usize = 4;
/// Idle seconds after which a flow ends: TCP (RFC 5382, REQ-5), TCP without an answer, UDP (RFC 4787, REQ-5), echo (RFC 5508, REQ-2).
const IDLE_TCP: u32 = 7440;
const IDLE_OPENING: u32 = 240;
const IDLE_UDP: u32 = 300;
const IDLE_ECHO: u32 = 60;
/// The same of a closed connection, for its last acknowledgements.
const IDLE_CLOSED: u32 = 10;
/// No place.
const NONE: u16 = u16::MAX;
/// Owner of flows that another process of the network has left, until their guests send again.
const NO_OWNER: u32 = u32::MAX;

/// Protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A TCP connection.
    Tcp,
    /// UDP between two ports.
    Udp,
    /// Echo requests of one identifier.
    Icmp,
}

/// Address and port of the remote side; the identifier of echo requests is its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSide(pub Ipv4Addr, pub u16);

/// A flow of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    kind: Kind,
    guest: (Ipv4Addr, u16),
    remote: RemoteSide,
    mac: MacAddress,
    /// Number of the port, or [`NO_OWNER`].
    owner: u32,
    /// Second of its last frame.
    used: u32,
    /// Sequence number behind the guest's last segment.
    next: u32,
    stage: u8,
    /// Neighbours among the flows of its owner, by the time of their last use.
    older: u16,
    newer: u16,
}

/// Bits of a flow's stage.
const ANSWERED: u8 = 1;
const GUEST_ENDED: u8 = 2;
const REMOTE_ENDED: u8 = 4;
const RESET: u8 = 8;

impl Flow {
    /// A new flow of the guest with `mac` at `port`.
    pub fn new(kind: Kind, guest: (Ipv4Addr, u16), remote: RemoteSide, (mac, port): (MacAddress, PortId)) -> Self {
        let owner = u32::from(port.0);
        Self { kind, guest, remote, mac, owner, used: 0, next: 0, stage: 0, older: NONE, newer: NONE }
    }

    /// Protocol of the flow.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Address and port of the guest.
    pub fn guest(&self) -> (Ipv4Addr, u16) {
        self.guest
    }

    /// The remote side.
    pub fn remote(&self) -> RemoteSide {
        self.remote
    }

    /// MAC address of the guest.
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// The guest's port; `None` if another process has left the flow, and the guest has sent nothing since.
    pub fn port(&self) -> Option<PortId> {
        u16::try_from(self.owner).ok().map(PortId)
    }

    /// Sequence number behind the guest's last segment.
    pub fn next_sequence(&self) -> u32 {
        self.next
    }

    /// Whether its connection was closed by both sides, or reset.
    pub fn is_closed(&self) -> bool {
        const BOTH: u8 = GUEST_ENDED | REMOTE_ENDED;
        self.stage & RESET != 0 || self.stage & BOTH == BOTH
    }

    fn key(&self) -> Key {
        (self.guest, self.remote)
    }

    fn most_idle(&self) -> u32 {
        match self.kind {
            Kind::Tcp if self.is_closed() => IDLE_CLOSED,
            Kind::Tcp if self.stage & ANSWERED == 0 => IDLE_OPENING,
            Kind::Tcp => IDLE_TCP,
            Kind::Udp => IDLE_UDP,
            Kind::Icmp => IDLE_ECHO,
        }
    }

    fn is_idle(&self, now: u32) -> bool {
        now.saturating_sub(self.used) > self.most_idle()
    }
}

/// A flow, for another process of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedFlow {
    /// Protocol of the flow.
    pub kind: Kind,
    /// Port of the flow towards passt.
    pub port: u16,
    /// Address and port of the guest.
    pub guest: (Ipv4Addr, u16),
    /// Address and port of the remote side.
    pub remote: (Ipv4Addr, u16),
    /// MAC address of the guest.
    pub mac: [u8; 6],
    /// Sequence number behind the guest's last segment.
    pub next: u32,
    /// Stage of its connection.
    pub stage: u8,
}

type Key = ((Ipv4Addr, u16), RemoteSide);

/// The flows of one port: the first and the last by the time of their last use.
#[derive(Clone, Copy, Debug)]
struct Owned {
    count: usize,
    oldest: u16,
    newest: u16,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FlowTable {
    most: u16,
    /// By place; it grows up to `most`.
    flows: Vec<Option<Flow>>,
    by_key: HashMap<Key, u16>,
    owners: HashMap<u32, Owned>,
    /// Free places, and the second of their last frame.
    free: VecDeque<(u16, u32)>,
    /// Places that are never given: their ports are forwarded.
    taken: Vec<u16>,
    /// The next place that a new flow looks at.
    look: u16,
}

impl FlowTable {
    /// A table without flows, which gives none of the `forwarded` ports.
    pub(super) fn new(kind: Kind, forwarded: Vec<u16>) -> Self {
        let most = if kind == Kind::Icmp { MOST_ECHOES } else { MOST_FLOWS };
        let taken = forwarded.into_iter().filter_map(|port| port.checked_sub(FIRST)).filter(|place| *place < most).collect();
        Self { most, flows: Vec::new(), by_key: HashMap::new(), owners: HashMap::new(), free: VecDeque::new(), taken, look: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.flows.clear();
        self.by_key.clear();
        self.owners.clear();
        self.free.clear();
    }

    fn at(&self, place: u16) -> Option<&Flow> {
        self.flows.get(usize::from(place))?.as_ref()
    }

    fn at_mut(&mut self, place: u16) -> Option<&mut Flow> {
        self.flows.get_mut(usize::from(place))?.as_mut()
    }

    /// The flow with this port towards passt.
    pub(super) fn get(&self, port: u16) -> Option<&Flow> {
        self.at(port.checked_sub(FIRST)?)
    }

    /// Whether there is a flow like `flow`.
    pub(super) fn has(&self, flow: &Flow) -> bool {
        self.by_key.contains_key(&flow.key())
    }

    /// The port towards passt of a flow like `flow`, which is used now, by the guest of its port and MAC address from now on.
    pub(super) fn find(&mut self, flow: &Flow, now: u32) -> Option<u16> {
        let place = *self.by_key.get(&flow.key())?;
        let known = *self.at(place)?;
        // Where another guest has the address now, the flow of the first one ends when the next one is opened.
        let is_own = known.mac == flow.mac && (known.owner == flow.owner || known.owner == NO_OWNER);
        is_own.then_some(())?;
        self.unlink(place);
        let entry = self.at_mut(place)?;
        (entry.used, entry.owner, entry.mac) = (now, flow.owner, flow.mac);
        self.link(place);
        Some(FIRST + place)
    }

    /// Opens `flow`; returns its port towards passt, and the flows that ended for it, by their ports. `is_there` tells if the guest of a flow
    /// is still at its port.
    pub(super) fn open(
        &mut self,
        mut flow: Flow,
        now: u32,
        mut is_there: impl FnMut(&Flow) -> bool,
    ) -> Option<(u16, Vec<(u16, Flow)>)> {
        flow.used = now;
        let mut ended = Vec::new();
        if let Some(&place) = self.by_key.get(&flow.key()) {
            ended.extend(self.end(FIRST + place, now));
        }
        for _ in 0..LOOKS.min(self.flows.len()) {
            self.look = if usize::from(self.look) + 1 < self.flows.len() { self.look + 1 } else { 0 };
            if self.at(self.look).is_some_and(|flow| flow.is_idle(now) || !is_there(flow)) {
                ended.extend(self.end(FIRST + self.look, now));
            }
        }
        let place = self.place(flow.owner, now, &mut ended)?;
        *self.flows.get_mut(usize::from(place))? = Some(flow);
        self.by_key.insert(flow.key(), place);
        self.link(place);
        Some((FIRST + place, ended))
    }

    /// A place for a flow of `owner`.
    fn place(&mut self, owner: u32, now: u32, ended: &mut Vec<(u16, Flow)>) -> Option<u16> {
        let left = usize::from(self.most) - self.by_key.len();
        let own = self.owners.get(&owner).copied();
        if let Some(own) = own.filter(|own| own.count >= LEAST_FLOWS.max(left / 2)) {
            // Late answers reach the same guest.
            ended.extend(self.take(own.oldest).map(|flow| (FIRST + own.oldest, flow)));
            return Some(own.oldest);
        }
        if self.free.front().is_some_and(|(_, used)| now.saturating_sub(*used) >= QUIET) {
            return self.free.pop_front().map(|(place, _)| place);
        }
        while self.flows.len() < usize::from(self.most) {
            self.flows.push(None);
            let place = (self.flows.len() - 1) as u16;
            if !self.taken.contains(&place) {
                return Some(place);
            }
        }
        if let Some((place, _)) = self.free.pop_front() {
            return Some(place);
        }
        let most = self.owners.values().max_by_key(|owned| owned.count)?.oldest;
        ended.extend(self.take(most).map(|flow| (FIRST + most, flow)));
        Some(most)
    }

    /// Removes the flow at `place`, which is used again.
    fn take(&mut self, place: u16) -> Option<Flow> {
        self.unlink(place);
        let flow = self.flows.get_mut(usize::from(place))?.take()?;
        self.by_key.remove(&flow.key());
        Some(flow)
    }

    /// Ends the flow with this port towards passt.
    pub(super) fn end(&mut self, port: u16, now: u32) -> Option<(u16, Flow)> {
        let place = port.checked_sub(FIRST)?;
        let flow = self.take(place)?;
        let is_quiet = flow.is_closed() || flow.is_idle(now);
        self.free.push_back((place, if is_quiet { 0 } else { flow.used }));
        Some((port, flow))
    }

    /// The guest sent a segment of the flow with this port towards passt.
    pub(super) fn note_sent(&mut self, port: u16, tcp: &Tcp) {
        let Some(flow) = port.checked_sub(FIRST).and_then(|place| self.at_mut(place)).filter(|flow| flow.kind == Kind::Tcp) else {
            return;
        };
        flow.next = tcp.next;
        flow.stage |= if tcp.ends() { GUEST_ENDED } else { 0 } | if tcp.resets() { RESET } else { 0 };
    }

    /// passt sent a segment of the flow with this port.
    pub(super) fn note_received(&mut self, port: u16, tcp: &Tcp) {
        let Some(flow) = port.checked_sub(FIRST).and_then(|place| self.at_mut(place)) else { return };
        flow.stage |= ANSWERED | if tcp.ends() { REMOTE_ENDED } else { 0 } | if tcp.resets() { RESET } else { 0 };
    }

    /// Enters the flow at `place` as the one that its owner used last.
    fn link(&mut self, place: u16) {
        let Some(owner) = self.at(place).map(|flow| flow.owner) else { return };
        let owned = self.owners.entry(owner).or_insert(Owned { count: 0, oldest: place, newest: NONE });
        let before = std::mem::replace(&mut owned.newest, place);
        owned.count += 1;
        if let Some(flow) = self.at_mut(before) {
            flow.newer = place;
        }
        if let Some(flow) = self.at_mut(place) {
            (flow.older, flow.newer) = (before, NONE);
        }
    }

    /// Removes the flow at `place` from those of its owner.
    fn unlink(&mut self, place: u16) {
        let Some(&Flow { owner, older, newer, .. }) = self.at(place) else { return };
        if let Some(flow) = self.at_mut(older) {
            flow.newer = newer;
        }
        if let Some(flow) = self.at_mut(newer) {
            flow.older = older;
        }
        if let Some(owned) = self.owners.get_mut(&owner) {
            owned.count -= 1;
            owned.oldest = if owned.oldest == place { newer } else { owned.oldest };
            owned.newest = if owned.newest == place { older } else { owned.newest };
            if owned.count == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    /// The flows, for another process.
    pub(super) fn save(&self) -> Vec<SavedFlow> {
        let saved = |(place, flow): (usize, &Flow)| SavedFlow {
            kind: flow.kind,
            port: FIRST + place as u16,
            guest: flow.guest,
            remote: (flow.remote.0, flow.remote.1),
            mac: flow.mac.bytes(),
            next: flow.next,
            stage: flow.stage,
        };
        self.flows.iter().enumerate().filter_map(|(place, flow)| Some((place, flow.as_ref()?))).map(saved).collect()
    }

    /// Enters flows that another process has left, in place of its own.
    pub(super) fn restore<'s>(&mut self, saved: impl Iterator<Item = &'s SavedFlow>, now: u32) {
        self.clear();
        for saved in saved {
            let place = saved.port.checked_sub(FIRST).filter(|place| *place < self.most && !self.taken.contains(place));
            let Some(place) = place.filter(|place| self.at(*place).is_none()) else { continue };
            let remote = RemoteSide(saved.remote.0, saved.remote.1);
            let flow = Flow::new(saved.kind, saved.guest, remote, (MacAddress::new(saved.mac), PortId(0)));
            let flow = Flow { owner: NO_OWNER, used: now, next: saved.next, stage: saved.stage, ..flow };
            if self.has(&flow) {
                continue;
            }
            if self.flows.len() <= usize::from(place) {
                self.flows.resize(usize::from(place) + 1, None);
            }
            if let Some(room) = self.flows.get_mut(usize::from(place)) {
                *room = Some(flow);
                self.by_key.insert(flow.key(), place);
                self.link(place);
            }
        }
        let empty = self.flows.iter().zip(0..).filter(|(flow, _)| flow.is_none()).map(|(_, place)| place);
        self.free = empty.filter(|place| !self.taken.contains(place)).map(|place| (place, now)).collect();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}
