//! A segment: one broadcast domain, with its ports and its forwarding table (FDB).
//!
//! The segment's table has room for the MAC addresses of its members, so that many small segments take little memory. When members join, a
//! larger table replaces the old one: each worker holds a reference to the table that it uses, and is told of the new one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memlane_model::journal::REPEAT_PAUSE;

use crate::address_map::conflicts::Conflict;
use crate::address_map::{AddressMap, Key};
use crate::frame::MacAddress;
use crate::id::{MAX_PORTS, PortId, SegmentId};
use crate::multicast::Snooping;
use crate::stats::RECENT;
use crate::table::moves::{Move, MoveLog};
use crate::table::{LearnedAddress, Table};

/// Most addresses in events of [`REPEAT_PAUSE`], that they moved or that they have a conflict.
const MOST_TOLD: usize = 64;
/// Quota of FDB entries of a port.
pub const ADDRESSES: u32 = 1024;

/// MTU that every frame fits.
pub(crate) const ANY_MTU: u32 = u32::MAX;
/// No port's number.
const NO_PORT: u32 = u32::MAX;

/// IP versions of a segment's responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Responds {
    /// The responder gives IPv4 addresses.
    pub v4: bool,
    /// The responder gives IPv6 addresses.
    pub v6: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Segment {
    /// Number of the segment.
    pub id: SegmentId,
    /// Name of the segment in the configuration.
    pub name: String,
    /// Makes its table unpredictable to guests.
    key: u64,
    /// Moves of a MAC address in ten seconds after which it is held.
    moves: u16,
    /// The number of the port that leads to other hosts, or [`NO_PORT`].
    uplink: AtomicU32,
    /// MTU of the uplink; [`ANY_MTU`] if it is not known.
    uplink_mtu: AtomicU32,
    /// No way to a member has had a lower MTU than this.
    least_mtu: AtomicU32,
    /// A member is or was isolated, or has VLANs.
    gated: AtomicBool,
    /// IP versions of its responder, if it has one: a bit each.
    responds: AtomicU8,
    /// The number of its responder's port, or [`NO_PORT`].
    responder: AtomicU32,
    /// Moves of MAC addresses, in all its tables.
    move_log: Arc<MoveLog>,
    /// IP addresses and their owners.
    addresses: AddressMap,
    /// Multicast snooping.
    pub snooping: Snooping,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    table: Arc<Table>,
    /// Number of members for which the table has room.
    room: usize,
    members: Vec<PortId>,
    /// When it was last logged that MAC addresses move back and forth.
    warned: Option<Instant>,
    /// MAC addresses of which events told lately that they moved.
    told_moves: Told<LearnedAddress>,
    /// IP addresses with conflicts that events told lately.
    told_conflicts: Told<Key>,
    /// Conflicts of the last minute about IP addresses, one an address.
    recent_conflicts: Vec<(Conflict, Instant)>,
}

/// Addresses of which events told lately, and when.
#[derive(Debug)]
struct Told<K>(Vec<(K, Instant)>);

impl<K> Default for Told<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq> Told<K> {
    /// Whether an event about `address` is due at `now`: of each address once in [`REPEAT_PAUSE`], and of [`MOST_TOLD`] addresses in that time.
    fn is_due(&mut self, address: K, now: Instant) -> bool {
        self.0.retain(|&(_, at)| now.saturating_duration_since(at) < REPEAT_PAUSE);
        let is_due = self.0.len() < MOST_TOLD && self.0.iter().all(|&(other, _)| other != address);
        self.0.extend(is_due.then_some((address, now)));
        is_due
    }
}

impl Segment {
    /// A segment without members, with a table for so many, which holds MAC addresses after so many moves in ten seconds.
    pub fn new(id: SegmentId, name: &str, room: usize, key: u64, moves: u16) -> Arc<Self> {
        let move_log = Arc::default();
        let table = Table::for_members(MAX_PORTS, room, ADDRESSES, key).holding_after(moves).noting_in(&move_log);
        let inner = Inner {
            table: Arc::new(table),
            room,
            members: Vec::new(),
            warned: None,
            told_moves: Told::default(),
            told_conflicts: Told::default(),
            recent_conflicts: Vec::new(),
        };
        let uplink = AtomicU32::new(NO_PORT);
        Arc::new(Self {
            id,
            name: name.into(),
            key,
            moves,
            uplink,
            uplink_mtu: AtomicU32::new(ANY_MTU),
            least_mtu: AtomicU32::new(ANY_MTU),
            gated: AtomicBool::new(false),
            responds: AtomicU8::new(0),
            responder: AtomicU32::new(NO_PORT),
            move_log,
            addresses: AddressMap::default(),
            snooping: Snooping::default(),
            inner: Mutex::new(inner),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port that leads to other hosts, if the segment extends there: more than one receiver, and more than one sender.
    pub fn uplink(&self) -> Option<PortId> {
        u16::try_from(self.uplink.load(Ordering::Relaxed)).ok().map(PortId)
    }

    /// MTU of the way to `port`, if that is the uplink.
    #[inline]
    pub(crate) fn uplink_mtu(&self, port: PortId) -> Option<u16> {
        let mtu = self.uplink_mtu.load(Ordering::Relaxed);
        if self.uplink() == Some(port) { u16::try_from(mtu).ok() } else { None }
    }

    /// Whether a frame of `length` bytes fits the way to every member, with any content.
    #[inline]
    pub(crate) fn is_short(&self, length: u32) -> bool {
        length <= self.least_mtu.load(Ordering::Relaxed)
    }

    /// Sets the MTU of the uplink: longer packets to it are dropped, and their senders are told.
    pub fn set_uplink_mtu(&self, mtu: u16) {
        self.uplink_mtu.store(mtu.into(), Ordering::Relaxed);
        self.note_mtu(mtu);
    }

    /// The way to a member has this MTU.
    pub(crate) fn note_mtu(&self, mtu: u16) {
        self.least_mtu.fetch_min(mtu.into(), Ordering::Relaxed);
    }

    /// Whether gates decide on its unicast frames: a member is or was isolated, or has VLANs.
    #[inline]
    pub fn is_gated(&self) -> bool {
        self.gated.load(Ordering::Relaxed)
    }

    /// Has gates decide from now on.
    pub fn set_gated(&self) {
        self.gated.store(true, Ordering::Relaxed);
    }

    /// Whether one of its ports is a responder, which answers the requests of clients.
    #[inline]
    pub fn has_responder(&self) -> bool {
        self.responds.load(Ordering::Relaxed) != 0
    }

    /// The IP versions of its responder.
    pub fn responds(&self) -> Responds {
        let bits = self.responds.load(Ordering::Relaxed);
        Responds { v4: bits & 1 != 0, v6: bits & 2 != 0 }
    }

    /// The port of its responder, if it has one.
    pub fn responder(&self) -> Option<PortId> {
        u16::try_from(self.responder.load(Ordering::Relaxed)).ok().map(PortId)
    }

    /// The segment's responder is `port` from now on, for these IP versions.
    pub(crate) fn set_responder(&self, port: Option<PortId>, responds: Responds) {
        self.responder.store(port.map_or(NO_PORT, |port| port.0.into()), Ordering::Relaxed);
        self.responds.store(u8::from(responds.v4) | u8::from(responds.v6) << 1, Ordering::Relaxed);
    }

    /// Sets the port that leads to other hosts.
    pub fn set_uplink(&self, port: Option<PortId>) {
        self.uplink.store(port.map_or(NO_PORT, |port| port.0.into()), Ordering::Relaxed);
        self.addresses.set_uplink(port);
    }

    /// The IP addresses of its machines, and their owners.
    #[inline]
    pub fn addresses(&self) -> &AddressMap {
        &self.addresses
    }

    /// Whether a loop may be logged now: once in [`REPEAT_PAUSE`], so that no guest can fill the log.
    pub(crate) fn may_warn(&self) -> bool {
        let (inner, now) = (&mut *self.inner(), Instant::now());
        let may = inner.warned.is_none_or(|warned| now.duration_since(warned) >= REPEAT_PAUSE);
        if may {
            inner.warned = Some(now);
        }
        may
    }

    /// Moves of MAC addresses between its ports so far.
    pub fn moves(&self) -> u64 {
        self.move_log.count()
    }

    /// Moves of which an event is due at `now`: of each address once in [`REPEAT_PAUSE`], and of [`MOST_TOLD`] addresses in that time.
    pub(crate) fn moves_to_tell(&self, now: Instant) -> Vec<Move> {
        if !self.move_log.has_moved() {
            return Vec::new();
        }
        let told = &mut self.inner().told_moves;
        let is_due = |moved: &Move| moved.from != moved.to && told.is_due(moved.learned_address, now);
        self.move_log.take().into_iter().filter(is_due).collect()
    }

    /// Conflicts about IP addresses of which an event is due at `now`, as [`Self::moves_to_tell`].
    pub(crate) fn conflicts_to_tell(&self, now: Instant) -> Vec<Conflict> {
        let conflicts = self.addresses.log().take();
        if conflicts.is_empty() {
            return conflicts;
        }
        let inner = &mut *self.inner();
        let (recent, told) = (&mut inner.recent_conflicts, &mut inner.told_conflicts);
        recent.retain(|(known, at)| {
            now.saturating_duration_since(*at) < RECENT && conflicts.iter().all(|conflict| conflict.key != known.key)
        });
        recent.extend(conflicts.iter().map(|conflict| (*conflict, now)));
        recent.truncate(MOST_TOLD);
        conflicts.into_iter().filter(|conflict| told.is_due(conflict.key, now)).collect()
    }

    /// Conflicts of the last minute about IP addresses, one an address, and how long ago they were noticed.
    pub fn recent_conflicts(&self, now: Instant) -> Vec<(Conflict, Duration)> {
        let with_age = |(conflict, at): &(Conflict, Instant)| (*conflict, now.saturating_duration_since(*at));
        self.inner().recent_conflicts.iter().map(with_age).filter(|(_, age)| *age < RECENT).collect()
    }

    /// Forwarding table (FDB).
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.inner().table)
    }

    /// Ports of the segment, in the order in which they joined.
    pub fn members(&self) -> Vec<PortId> {
        self.inner().members.clone()
    }

    /// Adds `port`. If the table has no room for it, a larger one replaces it, of which workers are to be told: [`Self::table`].
    pub fn join(&self, port: PortId) {
        let inner = &mut *self.inner();
        inner.members.push(port);
        if inner.members.len() > inner.room {
            inner.room = (2 * inner.room).max(inner.members.len());
            if inner.table.is_largest() {
                return;
            }
            let table = Table::for_members(MAX_PORTS, inner.room, ADDRESSES, self.key).holding_after(self.moves);
            let table = table.noting_in(&self.move_log);
            table.take_over(&inner.table);
            inner.table = Arc::new(table);
        }
    }

    /// Prepares to remove `port`: no MAC address is held there any more.
    pub(crate) fn prepare_to_leave(&self, port: PortId) {
        self.inner().table.forget_moves(port);
    }

    /// Removes `port` with its FDB entries; true if it was the last member. Call [`Self::prepare_to_leave`] before, then wait until
    /// every worker has finished its present work.
    pub fn leave(&self, port: PortId) -> bool {
        let inner = &mut *self.inner();
        inner.members.retain(|&member| member != port);
        inner.table.clear(port);
        // An address that a worker entered there after all may have moved on since.
        inner.table.forget_moves(port);
        inner.table.forget_home(port);
        self.addresses.clear(port);
        inner.members.is_empty()
    }

    /// Pins `address` to `port`, a member.
    ///
    /// # Errors
    /// The address is pinned to this other port.
    pub fn pin(&self, address: MacAddress, port: PortId) -> Result<(), PortId> {
        let inner = self.inner();
        match inner.table.pinned(address) {
            Some(other) if other != port => Err(other),
            _ => {
                inner.table.pin(address, port);
                Ok(())
            }
        }
    }

    /// Removes the pinned address of `port`, and its other FDB entries, all but those of the address that is `kept`, if there is one.
    pub(crate) fn unpin(&self, port: PortId, kept: Option<MacAddress>) {
        self.inner().table.clear_but(port, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> MacAddress {
        MacAddress::new([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn what_is_known_stays_known_when_members_join() {
        let segment = Segment::new(SegmentId(0), "lan", 1, 7, 8);
        let before = segment.table();
        segment.join(PortId(0));
        segment.pin(address(1), PortId(0)).unwrap();
        before.learn(address(2), PortId(0), 5);
        assert!(Arc::ptr_eq(&before, &segment.table()));
        segment.join(PortId(1));
        let after = segment.table();
        assert!(!Arc::ptr_eq(&before, &after), "there was room for one");
        assert_eq!((after.find(address(1)), after.find(address(2))), (Some(PortId(0)), Some(PortId(0))));
        assert_eq!(segment.pin(address(1), PortId(1)), Err(PortId(0)), "what is tied stays so");
    }

    #[test]
    fn no_address_comes_back_to_a_port_that_left() {
        let segment = Segment::new(SegmentId(0), "lan", 3, 7, 8);
        let table = segment.table();
        let [gone, others @ ..] = [0, 1, 2].map(PortId);
        [gone, others[0], others[1]].into_iter().for_each(|port| segment.join(port));
        table.learn(address(1), gone, 0);
        for n in 0..30 {
            if n == 7 {
                segment.prepare_to_leave(gone);
                segment.leave(gone);
            }
            table.learn(address(1), others[n % 2], 0);
            assert_ne!(table.find(address(1)), Some(gone), "the number may be a port's of another segment");
        }
    }

    #[test]
    fn a_pinned_address_that_is_kept_stays_known() {
        let segment = Segment::new(SegmentId(0), "lan", 2, 7, 8);
        segment.join(PortId(0));
        segment.pin(address(1), PortId(0)).unwrap();
        segment.table().learn(address(2), PortId(0), 0);
        segment.pin(address(3), PortId(0)).unwrap();
        segment.unpin(PortId(0), Some(address(3)));
        let known = [1, 2, 3].map(|n| segment.table().find(address(n)));
        assert_eq!(known, [None, None, Some(PortId(0))], "what the port had before is forgotten");
        segment.unpin(PortId(0), None);
        assert!(segment.table().records().is_empty());
    }

    #[test]
    fn who_leaves_leaves_nothing() {
        let segment = Segment::new(SegmentId(0), "lan", 2, 7, 8);
        segment.join(PortId(0));
        segment.join(PortId(1));
        segment.pin(address(1), PortId(0)).unwrap();
        segment.table().learn(address(2), PortId(0), 0);
        assert!(!segment.leave(PortId(0)));
        assert!(segment.table().records().is_empty());
        assert_eq!(segment.pin(address(1), PortId(1)), Ok(()));
        assert!(segment.leave(PortId(1)));
    }

    #[test]
    fn moves_are_counted_whichever_table_is_used_and_told_once_a_minute() {
        let segment = Segment::new(SegmentId(0), "lan", 1, 7, 0);
        let [a, b] = [0, 1].map(PortId);
        segment.join(a);
        let (before, start) = (segment.table(), Instant::now());
        before.learn(address(1), a, 0);
        assert_eq!((segment.moves(), segment.moves_to_tell(start)), (0, Vec::new()), "a new address has not moved");
        segment.join(b);
        before.learn(address(1), b, 0);
        let told = Move { learned_address: address(1).into(), from: a, to: b };
        assert_eq!((segment.moves(), segment.moves_to_tell(start)), (1, vec![told]));
        for n in 1..=40 {
            segment.table().learn(address(1), [a, b][n % 2], 0);
        }
        // The larger table has it at `a`.
        assert_eq!((segment.moves(), segment.moves_to_tell(start)), (41, Vec::new()));
        segment.table().learn(address(1), b, 0);
        assert_eq!(segment.moves_to_tell(start + REPEAT_PAUSE), [told]);
    }

    #[test]
    fn a_guest_that_moves_many_addresses_causes_few_events() {
        let segment = Segment::new(SegmentId(0), "lan", 2, 7, 0);
        let (table, start) = (segment.table(), Instant::now());
        let told = (0..200).map(|n| {
            for port in [0, 1] {
                table.learn(address(n), PortId(port), 0);
            }
            segment.moves_to_tell(start).len()
        });
        assert_eq!(told.sum::<usize>(), MOST_TOLD);
        assert_eq!(segment.moves(), 200);
    }
}
