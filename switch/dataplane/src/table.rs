//! The forwarding table (FDB) of one broadcast domain: MAC learning maps each source address to the port of its frames, and
//! FDB aging removes silent addresses (IEEE 802.1Q, section 8.7).
//!
//! VLANs learn independently (section 8.8): an address may be behind one port in one VLAN and behind another in the next. An FDB
//! entry holds in one VLAN if it was **learned**, and in all of them if it is **pinned** by the operator or **told** by the routing
//! protocol of an uplink; a pinned entry has precedence over a learned one, a learned one over a told one.
//!
//! The table is a fixed array of **buckets**, one cache line each. A keyed permutation of VLAN and address names the only bucket in
//! which an address can be. An entry is one word, so workers read without locks and change entries by compare-and-swap. It holds
//! the part of the permuted key that the bucket's number does not say (a quotient filter's remainder), so that VLAN, address and
//! port fit into it.
//!
//! Loop protection: an address that moves between two ports many times in a few seconds is behind a loop, as a guest makes one that
//! bridges two ports of a segment. Its FDB entry is **held** for [`HOLD`] seconds at the port where it was, floods from that
//! address by another port are dropped, and both ports are **suspects**, with a strict flood limit meanwhile.
//!
//! Learning is fair: a port that holds its **quota** of entries replaces its own, and a full bucket gives up an entry of the port
//! that holds most. So no guest can evict another's address by inventing addresses.

#![expect(unsafe_code, reason = "zeroes that cost no memory until they are written")]
#![expect(
    clippy::indexing_slicing,
    reason = "a bucket's number is a hash shifted to the table's size, a way's is below the bucket's, so each entry has its place in the arrays of confirmations and moves, and the size of ports is checked by the compiler"
)]

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use std::sync::{Arc, Mutex, PoisonError};

use memlane_model::loop_report::HOLD;

use crate::frame::MacAddress;
use crate::id::PortId;

use moves::{Move, MoveLog};

// With its path, since the loom crate has the table by one, too.
#[path = "table/moves.rs"]
pub mod moves;

/// Entries of a bucket.
const WAYS: usize = 8;
/// Aging time: seconds after which a silent MAC address is removed (IEEE 802.1Q, table 8-7).
pub(crate) const DEFAULT_AGE: u32 = 300;
/// Most entries of one table.
const MOST: usize = 1 << 20;
/// Second of confirmation of entries without aging.
const NEVER: u32 = u32::MAX;
/// Seconds in which moves of a MAC address are counted.
const WINDOW: u32 = 10;
/// Moves of a MAC address between ports in a window after which it is held, unless the configuration says otherwise. Failover and
/// migration take one or two.
pub(crate) const DEFAULT_MOVES: u16 = 8;
/// Number of MAC addresses held lately that are kept for loop reports.
const FLAPS: usize = 16;
/// VLAN identifiers: those of 12 bits, of which 0 stands for frames without a VLAN.
const VLANS: u16 = 1 << 12;

/// Bits of an address, and of the VLAN above it.
const KEY_BITS: u32 = 48 + 12;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;
/// Bits of an entry's kind, the lowest ones, and of its port. Loom's tables are small: their bucket numbers hold fewer bits of the
/// key.
const KIND_BITS: u32 = 2;
const PORT_BITS: u32 = if cfg!(loom) { 2 } else { 12 };
/// The remainder of the key begins above both.
const REMAINDER: u32 = KIND_BITS + PORT_BITS;
/// Minimum of buckets, so that the rest of the key has room in an entry.
const LEAST_BUCKETS: usize = 1 << (KEY_BITS + REMAINDER - 64);
const _: () = assert!(cfg!(loom) || crate::id::MAX_PORTS <= 1 << PORT_BITS);
/// The second factor of the permutation: 2^64 divided by the golden ratio, odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTOR_INVERSE: u64 = inverse(FACTOR);

/// A MAC address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LearnedAddress {
    /// MAC address of the entry.
    pub address: MacAddress,
    /// VLAN of the entry; 0 for frames without a tag, and for priority tags (VLAN identifier 0).
    pub vlan: u16,
}

impl From<MacAddress> for LearnedAddress {
    /// The address outside of VLANs.
    fn from(address: MacAddress) -> Self {
        Self { address, vlan: 0 }
    }
}

/// Origin of an FDB entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Told by the routing protocol of an uplink; for all VLANs in which the address was not learned.
    Told,
    /// MAC learning: a frame from this address came from the port.
    Learned,
    /// Pinned to the port by the operator, in all VLANs.
    Pinned,
}

/// An FDB entry, as [`Table::records`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The MAC address. VLAN 0 stands for all VLANs unless the entry was learned.
    pub learned_address: LearnedAddress,
    /// Port of the entry.
    pub port: PortId,
    /// Second of the last frame, for aging.
    pub confirmed: u32,
    /// Origin of the entry.
    pub kind: Kind,
}

#[repr(align(64))]
#[derive(Debug, Default)]
struct Bucket([AtomicU64; WAYS]);

/// See the module.
#[derive(Debug)]
pub struct Table {
    buckets: Box<[Bucket]>,
    /// Second of the last frame of each entry, for aging, in the order of the entries.
    confirmed: Box<[AtomicU32]>,
    /// Number of entries of each port.
    held: Box<[AtomicU32]>,
    share: u32,
    /// Bits of a permuted key below those that name the bucket.
    shift: u32,
    key: u64,
    key_inverse: u64,
    generation: AtomicU32,
    /// Any address was ever learned in a VLAN.
    has_vlans: AtomicBool,
    /// Moves of all addresses, for the operator.
    log: Arc<MoveLog>,
    /// Moves of each entry, in the order of the entries: see [`Moves`].
    moves: Box<[AtomicU64]>,
    /// Ports at which an address was before it moved, see [`Self::forget_home`]: 1, or 0.
    homes: Box<[AtomicU32]>,
    /// Moves in a window after which an address is held; 0 for any number.
    most_moves: u16,
    /// Second until which each port is a suspect.
    suspects: Box<[AtomicU32]>,
    /// The addresses that were held last.
    flaps: Mutex<Vec<Flap>>,
    /// An address was held since this was last asked.
    has_flapped: AtomicBool,
}

/// A MAC address that was held because it moved too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flap {
    /// The MAC address.
    pub learned_address: LearnedAddress,
    /// The port at which it is held.
    pub home: PortId,
    /// The port that it moved to.
    pub other: PortId,
    /// Second in which it was held.
    pub second: u32,
    /// Seconds in which it moved so often.
    pub within: u32,
}

/// Moves of an entry in a [`WINDOW`]: the second of the first, their number, and the port where the address was before. While the
/// address is held, the second is that in which the hold began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moves(u64);

impl Moves {
    fn new(second: u32, count: u16, home: PortId) -> Self {
        Self(u64::from(second) << 32 | u64::from(count) << 16 | u64::from(home.0))
    }

    fn second(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn count(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn home(self) -> PortId {
        PortId(self.0 as u16)
    }

    /// Counts one more move, from one port to the other, in second `now`.
    ///
    /// An FDB entry that moved back and forth keeps its home in the next window, or returns to it by frames from there: that window may
    /// begin at any of the moves, and with the FDB entry where MAC learning from a loop's copies has put it.
    fn after(self, from: PortId, to: PortId, now: u32) -> Self {
        let age = now.saturating_sub(self.second());
        if self.count() > 0 && age < WINDOW {
            return Self::new(self.second(), self.count().saturating_add(1), self.home());
        }
        let keeps_home = self.count() > 0 && (to == self.home() || self.count() > 1 && age < 2 * WINDOW);
        Self::new(now, 1, if keeps_home { self.home() } else { from })
    }

    /// The port at which the address is held in second `now`, if `most` moves are too many.
    fn held(self, most: u16, now: u32) -> Option<PortId> {
        let too_many = most > 0 && self.count() >= most;
        (too_many && now.saturating_sub(self.second()) < HOLD).then(|| self.home())
    }
}

/// Bucket of an address's entry, and the remainder that identifies the address in it.
#[derive(Clone, Copy, Debug)]
struct Place {
    bucket: usize,
    remainder: u64,
}

/// Result of [`Table::learn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was already known behind this port.
    Known,
    /// The address was learned, or moved to this port.
    Changed,
    /// The port has used its quota and has no entry that could be replaced; frames to this address will be flooded.
    NoRoom,
    /// The address is pinned to another port.
    Pinned,
    /// The address moved too often, and is held at another port.
    Held,
}

/// An entry: remainder of the key, port, kind. Zero is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FdbEntry(u64);

impl FdbEntry {
    const TOLD: u64 = 1;
    const LEARNED: u64 = 2;
    const PINNED: u64 = 3;

    fn new(place: Place, port: PortId, kind: u64) -> Self {
        Self(place.remainder << REMAINDER | u64::from(port.0) << KIND_BITS | kind)
    }

    fn is(self, place: Place) -> bool {
        self.0 >> REMAINDER == place.remainder && self.0 != 0
    }

    fn port(self) -> PortId {
        PortId((self.0 >> KIND_BITS & ((1 << PORT_BITS) - 1)) as u16)
    }

    fn kind(self) -> u64 {
        self.0 & ((1 << KIND_BITS) - 1)
    }

    fn is_pinned(self) -> bool {
        self.kind() == Self::PINNED
    }
}

impl Table {
    /// An empty table for ports numbered below `ports`, each with a quota of `share` entries. `key` makes the hash unpredictable to
    /// guests.
    pub fn new(ports: usize, share: u32, key: u64) -> Self {
        Self::for_members(ports, ports, share, key)
    }

    /// The same for a segment with only `members` of the ports: it has room for their quotas, so that many small segments take
    /// little memory.
    pub(crate) fn for_members(ports: usize, members: usize, share: u32, key: u64) -> Self {
        let wanted = (2 * members.max(1) * share as usize).clamp(WAYS * LEAST_BUCKETS.max(2), MOST).next_power_of_two();
        let buckets = wanted / WAYS;
        let key = key | 1;
        Self {
            buckets: zeroed(buckets),
            confirmed: zeroed(wanted),
            held: zeroed(ports.max(1)),
            share,
            shift: KEY_BITS - buckets.trailing_zeros(),
            key,
            key_inverse: inverse(key),
            generation: AtomicU32::new(0),
            has_vlans: AtomicBool::new(false),
            log: Arc::default(),
            moves: zeroed(wanted),
            homes: zeroed(ports.max(1)),
            most_moves: DEFAULT_MOVES,
            suspects: zeroed(ports.max(1)),
            flaps: Mutex::default(),
            has_flapped: AtomicBool::new(false),
        }
    }

    /// The same, and addresses are held after `moves` moves in ten seconds; never if that is 0.
    #[must_use]
    pub(crate) fn holding_after(self, moves: u16) -> Self {
        Self { most_moves: moves, ..self }
    }

    /// The same, and moves of addresses are noted in `log`.
    #[must_use]
    pub(crate) fn noting_in(self, log: &Arc<MoveLog>) -> Self {
        Self { log: Arc::clone(log), ..self }
    }

    /// Changes whenever an address moves or goes, which invalidates flow caches. A new address changes nothing for flows to other
    /// addresses, so a guest that invents addresses invalidates no flow cache.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The port behind which `learned_address` is: the FDB look-up for a destination.
    #[inline]
    pub fn find(&self, learned_address: impl Into<LearnedAddress>) -> Option<PortId> {
        self.look_up(learned_address.into()).1.map(|(_, entry)| entry.port())
    }

    /// MAC learning: a frame from `learned_address` came from `port` in second `now`.
    #[inline]
    pub fn learn(&self, learned_address: impl Into<LearnedAddress>, port: PortId, now: u32) -> Learned {
        let learned_address = learned_address.into();
        let (place, found) = self.look_up(learned_address);
        match found {
            Some((way, entry)) if entry.port() == port => {
                if entry.kind() == FdbEntry::LEARNED {
                    self.confirmed[place.bucket * WAYS + way].store(now, Ordering::Relaxed);
                }
                Learned::Known
            }
            Some((_, entry)) if entry.is_pinned() => Learned::Pinned,
            Some((way, entry)) if entry.kind() == FdbEntry::LEARNED => self.move_entry(place, way, entry, port, now),
            // An entry that was told for another port stays beside it.
            _ => self.insert(learned_address, FdbEntry::new(place, port, FdbEntry::LEARNED), now),
        }
    }

    /// The result of [`Self::learn`], and the port that the FDB would name afterwards; nothing is learned.
    pub(crate) fn foresee(&self, learned_address: impl Into<LearnedAddress>, port: PortId, now: u32) -> (Learned, Option<PortId>) {
        let (place, found) = self.look_up(learned_address.into());
        let learned = match found {
            Some((_, entry)) if entry.port() == port => Learned::Known,
            Some((_, entry)) if entry.is_pinned() => Learned::Pinned,
            Some((way, entry)) if entry.kind() == FdbEntry::LEARNED => {
                let before = Moves(self.moves[place.bucket * WAYS + way].load(Ordering::Relaxed));
                let held = || before.after(entry.port(), port, now).held(self.most_moves, now);
                match before.held(self.most_moves, now).or_else(held) {
                    Some(home) if home != port => return (Learned::Held, Some(home)),
                    Some(_) => Learned::Known,
                    None => Learned::Changed,
                }
            }
            _ if self.giving_way(place.bucket, port).is_none() => Learned::NoRoom,
            _ => Learned::Changed,
        };
        let before = found.map(|(_, entry)| entry.port());
        let after = if matches!(learned, Learned::Known | Learned::Changed) { Some(port) } else { before };
        (learned, after)
    }

    /// Age of a learned FDB entry in seconds.
    pub(crate) fn age_of(&self, learned_address: LearnedAddress, now: u32) -> Option<u32> {
        let (place, found) = self.look_up(learned_address);
        let (way, entry) = found.filter(|(_, entry)| entry.kind() == FdbEntry::LEARNED)?;
        debug_assert!(entry.is(place));
        Some(now.saturating_sub(self.confirmed[place.bucket * WAYS + way].load(Ordering::Relaxed)))
    }

    /// The place of an entry of `learned_address`, and the entry with precedence, with its way.
    #[inline]
    fn look_up(&self, learned_address: LearnedAddress) -> (Place, Option<(usize, FdbEntry)>) {
        let common = self.place(learned_address.address.into());
        if learned_address.vlan == 0 {
            return (common, self.first(common, |_| true));
        }
        self.look_up_in_vlan(learned_address, common)
    }

    fn look_up_in_vlan(&self, learned_address: LearnedAddress, common: Place) -> (Place, Option<(usize, FdbEntry)>) {
        let of_all = self.first(common, |entry| entry.kind() != FdbEntry::LEARNED);
        if of_all.is_some_and(|(_, entry)| entry.is_pinned()) {
            return (common, of_all);
        }
        let place = self.place(learned_address);
        (place, self.first(place, |_| true).or(of_all))
    }

    /// The first entry of `place` that is `wanted`; a told one only if there is no other.
    #[inline]
    fn first(&self, place: Place, wanted: impl Fn(FdbEntry) -> bool) -> Option<(usize, FdbEntry)> {
        let mut told = None;
        for (way, slot) in self.buckets[place.bucket].0.iter().enumerate() {
            let entry = FdbEntry(slot.load(Ordering::Relaxed));
            if entry.is(place) && wanted(entry) {
                if entry.kind() != FdbEntry::TOLD {
                    return Some((way, entry));
                }
                told = Some((way, entry));
            }
        }
        told
    }

    /// Pins `address` to `port`, in all VLANs; frames from it on other ports are refused.
    pub fn pin(&self, address: MacAddress, port: PortId) {
        let place = self.place(address.into());
        let entry = FdbEntry::new(place, port, FdbEntry::PINNED);
        let ways = &self.buckets[place.bucket].0;
        let free = ways
            .iter()
            .position(|way| FdbEntry(way.load(Ordering::Relaxed)).is(place))
            .or_else(|| ways.iter().position(|way| way.load(Ordering::Relaxed) == 0))
            .or_else(|| ways.iter().position(|way| !FdbEntry(way.load(Ordering::Relaxed)).is_pinned()));
        if let Some(way) = free {
            let old = FdbEntry(ways[way].swap(entry.0, Ordering::AcqRel));
            self.count(old, -1);
            self.count(entry, 1);
            self.changed();
            self.keep_one(place);
            self.unlearn(address, |_| true);
        }
    }

    /// Tells that `address` is behind `port` in all VLANs in which it is not learned, until it is unlearned there. A pinned entry
    /// stays.
    pub fn tell(&self, address: MacAddress, port: PortId) {
        let place = self.place(address.into());
        let known = self.first(place, |entry| entry.kind() != FdbEntry::LEARNED);
        let entry = FdbEntry::new(place, port, FdbEntry::TOLD);
        match known {
            Some((_, known)) if known == entry || known.is_pinned() => {}
            Some((way, known)) => {
                let at = place.bucket * WAYS + way;
                self.replace(&self.buckets[place.bucket].0[way], &self.confirmed[at], known, entry, NEVER);
            }
            None => {
                self.insert(address.into(), entry, NEVER);
            }
        }
    }

    /// Aging: removes entries without a frame in the `age` seconds before `now`. Workers count seconds independently: an entry that
    /// another worker has confirmed a moment ahead of `now` is fresh.
    pub fn expire(&self, now: u32, age: u32) {
        self.remove_if(|entry, confirmed| !entry.is_pinned() && now.saturating_sub(confirmed) > age);
    }

    /// Removes every learned or told entry of `port`.
    pub fn forget(&self, port: PortId) {
        self.remove_of(port, |entry| !entry.is_pinned());
    }

    /// Removes every entry of `port`, pinned ones included.
    pub fn clear(&self, port: PortId) {
        self.clear_but(port, None);
    }

    /// The same, but for a pinned entry of the address that is `kept`, if there is one.
    pub(crate) fn clear_but(&self, port: PortId, kept: Option<MacAddress>) {
        let kept = kept.map(|address| FdbEntry::new(self.place(address.into()), port, FdbEntry::PINNED));
        self.remove_of(port, |entry| Some(entry) != kept);
    }

    /// Forgets which addresses were at `port` before they moved, so that none is held there: for a port that leaves, because its
    /// number is given to another port, perhaps of another segment. A worker that has begun to move an address may still enter it
    /// at `port`: so call this before every worker has finished its present work, and [`Self::clear`] after.
    pub(crate) fn forget_moves(&self, port: PortId) {
        // A scan of a large table takes long.
        if self.homes.get(port.index()).is_none_or(|home| home.load(Ordering::Relaxed) != 0) {
            let is_at_port = |moves: Moves| moves.count() > 0 && moves.home() == port;
            let at_port = self.moves.iter().filter(|moves| is_at_port(Moves(moves.load(Ordering::Relaxed))));
            at_port.for_each(|moves| {
                moves.swap(0, Ordering::Relaxed);
            });
        }
        if let Some(suspect) = self.suspects.get(port.index()) {
            suspect.store(0, Ordering::Relaxed);
        }
        let mut flaps = self.flaps.lock().unwrap_or_else(PoisonError::into_inner);
        flaps.retain(|flap| flap.home != port && flap.other != port);
    }

    /// No address was at `port` before it moved: after [`Self::forget_moves`], once no worker moves an address from there any more.
    pub(crate) fn forget_home(&self, port: PortId) {
        if let Some(home) = self.homes.get(port.index()) {
            home.store(0, Ordering::Relaxed);
        }
    }

    /// Removes the entries of `address` at `port`, pinned ones too, so that [`Self::clear`] has none to search for.
    pub(crate) fn remove_expected(&self, address: MacAddress, port: PortId) {
        let vlans = if self.has_vlans.load(Ordering::Relaxed) { VLANS } else { 1 };
        for place in (0..vlans).map(|vlan| self.place(LearnedAddress { address, vlan })).take_while(|_| self.held(port) > 0) {
            for slot in &self.buckets[place.bucket].0 {
                let entry = FdbEntry(slot.load(Ordering::Relaxed));
                if entry.is(place) && entry.port() == port {
                    self.remove(slot, entry);
                }
            }
        }
    }

    /// Whether it has as much room as any, however many members join.
    pub(crate) fn is_largest(&self) -> bool {
        self.buckets.len() * WAYS == MOST
    }

    /// Removes the entries of `address` in all VLANs at those ports for which `condition` holds, except pinned ones.
    pub fn unlearn(&self, address: MacAddress, condition: impl Fn(PortId) -> bool) {
        let vlans = if self.has_vlans.load(Ordering::Relaxed) { VLANS } else { 1 };
        for vlan in 0..vlans {
            let place = self.place(LearnedAddress { address, vlan });
            for slot in &self.buckets[place.bucket].0 {
                let entry = FdbEntry(slot.load(Ordering::Relaxed));
                if entry.is(place) && !entry.is_pinned() && condition(entry.port()) {
                    self.remove(slot, entry);
                }
            }
        }
    }

    /// The port to which `address` is pinned.
    pub fn pinned(&self, address: MacAddress) -> Option<PortId> {
        self.first(self.place(address.into()), FdbEntry::is_pinned).map(|(_, entry)| entry.port())
    }

    /// Copies the entries of `other`, as far as there is room. For a table that is not in use yet.
    pub(crate) fn take_over(&self, other: &Self) {
        for Record { learned_address, port, confirmed, kind } in other.records() {
            match kind {
                Kind::Pinned => self.pin(learned_address.address, port),
                Kind::Told => self.tell(learned_address.address, port),
                Kind::Learned => {
                    self.learn(learned_address, port, confirmed);
                }
            }
        }
    }

    /// All entries.
    pub fn records(&self) -> Vec<Record> {
        let all = self.slots().map(|(slot, confirmed)| (FdbEntry(slot.load(Ordering::Relaxed)), confirmed.load(Ordering::Relaxed)));
        let record = |(index, (entry, confirmed)): (usize, (FdbEntry, u32))| {
            let kind = match entry.kind() {
                FdbEntry::TOLD => Kind::Told,
                FdbEntry::LEARNED => Kind::Learned,
                FdbEntry::PINNED => Kind::Pinned,
                _ => return None,
            };
            let place = Place { bucket: index / WAYS, remainder: entry.0 >> REMAINDER };
            Some(Record { learned_address: self.learned_address(place), port: entry.port(), confirmed, kind })
        };
        all.enumerate().filter_map(record).collect()
    }

    fn slots(&self) -> impl Iterator<Item = (&AtomicU64, &AtomicU32)> {
        self.buckets.iter().flat_map(|bucket| bucket.0.iter()).zip(self.confirmed.iter())
    }

    /// Removes the entries of `port` for which the condition holds.
    fn remove_of(&self, port: PortId, condition: impl Fn(FdbEntry) -> bool) {
        // A scan of a large table takes long.
        for (slot, _) in self.slots().take_while(|_| self.held(port) > 0) {
            let entry = FdbEntry(slot.load(Ordering::Relaxed));
            if entry.0 != 0 && entry.port() == port && condition(entry) {
                self.remove(slot, entry);
            }
        }
    }

    fn remove_if(&self, condition: impl Fn(FdbEntry, u32) -> bool) {
        for (slot, confirmed) in self.slots() {
            let entry = FdbEntry(slot.load(Ordering::Relaxed));
            let gone = entry.0 != 0 && condition(entry, confirmed.load(Ordering::Relaxed));
            if gone {
                self.remove(slot, entry);
            }
        }
    }

    /// Empties `slot` if it still holds `entry`.
    fn remove(&self, slot: &AtomicU64, entry: FdbEntry) {
        if slot.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.count(entry, -1);
            self.changed();
        }
    }

    /// The place of `learned_address`.
    #[inline]
    fn place(&self, learned_address: LearnedAddress) -> Place {
        let mixed = mix(u64::from(learned_address.vlan) << 48 | learned_address.address.number(), self.key);
        Place { bucket: (mixed >> self.shift) as usize, remainder: mixed & ((1 << self.shift) - 1) }
    }

    /// The address that belongs to `place`.
    fn learned_address(&self, place: Place) -> LearnedAddress {
        let key = unmix((place.bucket as u64) << self.shift | place.remainder, self.key_inverse);
        let [a, b, c, d, e, f, ..] = key.to_le_bytes();
        LearnedAddress { address: MacAddress::new([a, b, c, d, e, f]), vlan: (key >> 48) as u16 }
    }

    #[cold]
    fn move_entry(&self, place: Place, way: usize, old: FdbEntry, port: PortId, now: u32) -> Learned {
        let moves = &self.moves[place.bucket * WAYS + way];
        let before = Moves(moves.load(Ordering::Relaxed));
        if let Some(home) = before.held(self.most_moves, now) {
            return self.refuse(place, way, old, home, port, now);
        }
        let moved = before.after(old.port(), port, now);
        let home = moved.held(self.most_moves, now);
        let after = home.map_or(moved, |home| Moves::new(now, moved.count(), home));
        if let Some(home) = self.homes.get(after.home().index()) {
            home.store(1, Ordering::Relaxed);
        }
        // If it changed meanwhile, the port at which the address would be held may be leaving.
        let is_noted = moves.compare_exchange(before.0, after.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        match home.filter(|_| is_noted) {
            Some(home) => {
                let other = if port == home { old.port() } else { port };
                self.suspect(home, now);
                let within = now.saturating_sub(moved.second()) + 1;
                self.note(Flap { learned_address: self.learned_address(place), home, other, second: now, within });
                self.refuse(place, way, old, home, port, now)
            }
            None => self.put(place, way, old, port, now),
        }
    }

    /// The address that is held at `home` stays there, or returns there, though a frame from it came from `port`.
    fn refuse(&self, place: Place, way: usize, old: FdbEntry, home: PortId, port: PortId, now: u32) -> Learned {
        if old.port() != home {
            self.put(place, way, old, home, now);
        }
        if port == home {
            return Learned::Known;
        }
        self.suspect(port, now);
        Learned::Held
    }

    /// Moves the learned entry `old` to `port`.
    fn put(&self, place: Place, way: usize, old: FdbEntry, port: PortId, now: u32) -> Learned {
        let (slot, confirmed) = (&self.buckets[place.bucket].0[way], &self.confirmed[place.bucket * WAYS + way]);
        let learned = self.replace(slot, confirmed, old, FdbEntry::new(place, port, FdbEntry::LEARNED), now);
        if learned == Learned::Changed {
            self.log.note(Move { learned_address: self.learned_address(place), from: old.port(), to: port });
        }
        learned
    }

    /// MAC learning has moved `learned_address` to `port` by a frame that a rate limit of floods drops: the FDB entry returns to where it
    /// was. If it stayed, the last copy of a loop would cut the owner of the address off.
    #[cold]
    pub(crate) fn return_home(&self, learned_address: LearnedAddress, port: PortId, now: u32) {
        let (place, found) = self.look_up(learned_address);
        let moved = found.filter(|(_, entry)| entry.kind() == FdbEntry::LEARNED && entry.port() == port);
        let Some((way, entry)) = moved else { return };
        let Some(moves) = self.moves.get(place.bucket * WAYS + way) else { return };
        let moves = Moves(moves.load(Ordering::Relaxed));
        let is_recent = moves.count() > 0 && now.saturating_sub(moves.second()) < WINDOW;
        if is_recent && moves.home() != port {
            self.put(place, way, entry, moves.home(), now);
        }
    }

    fn suspect(&self, port: PortId, now: u32) {
        if let Some(suspect) = self.suspects.get(port.index()) {
            suspect.store(now.saturating_add(HOLD), Ordering::Relaxed);
        }
    }

    /// Whether addresses moved between `port` and another too often lately.
    #[inline]
    pub fn is_suspect(&self, port: PortId, now: u32) -> bool {
        self.suspects.get(port.index()).is_some_and(|until| until.load(Ordering::Relaxed) > now)
    }

    /// Keeps it for [`Self::flaps`]; the oldest is replaced.
    fn note(&self, flap: Flap) {
        // A worker does not wait for another one, or for a command that reads them.
        let Ok(mut flaps) = self.flaps.try_lock() else { return };
        flaps.retain(|other| other.learned_address != flap.learned_address);
        if flaps.len() == FLAPS {
            flaps.remove(0);
        }
        flaps.push(flap);
        drop(flaps);
        self.has_flapped.store(true, Ordering::Release);
    }

    /// The addresses that were held last, the oldest first.
    pub fn flaps(&self) -> Vec<Flap> {
        self.flaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether an address was held since this was last asked.
    pub(crate) fn has_flapped(&self) -> bool {
        self.has_flapped.load(Ordering::Relaxed) && self.has_flapped.swap(false, Ordering::Acquire)
    }

    #[cold]
    fn insert(&self, learned_address: LearnedAddress, entry: FdbEntry, now: u32) -> Learned {
        let place = self.place(learned_address);
        let Some(way) = self.giving_way(place.bucket, entry.port()) else { return Learned::NoRoom };
        let slot = &self.buckets[place.bucket].0[way];
        let old = FdbEntry(slot.load(Ordering::Relaxed));
        if learned_address.vlan != 0 {
            self.has_vlans.store(true, Ordering::Relaxed);
        }
        let learned = self.replace(slot, &self.confirmed[place.bucket * WAYS + way], old, entry, now);
        if learned == Learned::Changed {
            let moves = &self.moves[place.bucket * WAYS + way];
            if moves.load(Ordering::Relaxed) != 0 {
                moves.store(0, Ordering::Relaxed);
            }
            self.keep_one(place);
        }
        learned
    }

    /// Another worker may have inserted the same address in another way at the same moment, and would not find this entry to move
    /// it later. So beside a pinned entry all others are removed, and otherwise all but the first learned one. Of two workers that
    /// insert, at least one sees both, because of the fence.
    fn keep_one(&self, place: Place) {
        fence(Ordering::SeqCst);
        let ways = self.buckets[place.bucket].0.iter().map(|way| (way, FdbEntry(way.load(Ordering::Relaxed))));
        let mut found: Vec<_> = ways.filter(|(_, entry)| entry.is(place)).collect();
        found.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.kind()));
        let Some(&(_, kept)) = found.first() else { return };
        for (slot, entry) in found.into_iter().skip(1).filter(|(_, entry)| kept.is_pinned() || entry.kind() == kept.kind()) {
            self.remove(slot, entry);
        }
    }

    /// The way of `bucket` that a new entry of `port` may take: within its quota a free one, or one of the port that holds most
    /// (itself included); beyond it, the least recently confirmed of its own.
    fn giving_way(&self, bucket: usize, port: PortId) -> Option<usize> {
        let ways: Vec<(usize, FdbEntry)> = self.buckets[bucket]
            .0
            .iter()
            .map(|way| FdbEntry(way.load(Ordering::Relaxed)))
            .enumerate()
            .filter(|(_, e)| !e.is_pinned())
            .collect();
        let confirmed = |way: usize| self.confirmed[bucket * WAYS + way].load(Ordering::Relaxed);
        let own = || ways.iter().filter(|(_, e)| e.0 != 0 && e.port() == port).min_by_key(|(way, _)| confirmed(*way));
        if self.held(port) >= self.share {
            return own().map(|&(way, _)| way);
        }
        let free = ways.iter().find(|(_, entry)| entry.0 == 0);
        free.or_else(|| {
            let greediest = ways.iter().max_by_key(|(_, entry)| self.held(entry.port()))?;
            (self.held(greediest.1.port()) > self.held(port)).then_some(greediest).or_else(own)
        })
        .map(|&(way, _)| way)
    }

    fn replace(&self, slot: &AtomicU64, confirmed: &AtomicU32, old: FdbEntry, new: FdbEntry, now: u32) -> Learned {
        if slot.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Learned::NoRoom;
        }
        confirmed.store(now, Ordering::Relaxed);
        self.count(old, -1);
        self.count(new, 1);
        if old.0 != 0 {
            self.changed();
        }
        Learned::Changed
    }

    /// Addresses behind `port`.
    pub fn held(&self, port: PortId) -> u32 {
        self.held.get(usize::from(port.0)).map_or(0, |held| held.load(Ordering::Relaxed))
    }

    fn count(&self, entry: FdbEntry, by: i32) {
        if entry.0 != 0
            && let Some(held) = self.held.get(usize::from(entry.port().0))
        {
            held.fetch_add(by as u32, Ordering::Relaxed);
        }
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// A permutation of the numbers of [`KEY_BITS`] bits, by an odd `key`.
#[inline]
fn mix(number: u64, key: u64) -> u64 {
    let mixed = number.wrapping_mul(key) & KEY_MASK;
    (mixed ^ mixed >> (KEY_BITS / 2)).wrapping_mul(FACTOR) & KEY_MASK
}

/// The inverse of [`mix`], by the inverse of its key.
fn unmix(mixed: u64, key_inverse: u64) -> u64 {
    let half = mixed.wrapping_mul(FACTOR_INVERSE) & KEY_MASK;
    (half ^ half >> (KEY_BITS / 2)).wrapping_mul(key_inverse) & KEY_MASK
}

/// The inverse of an odd number modulo 2^64, by Newton's method: each step doubles the bits that are right, of which there are three at first.
const fn inverse(odd: u64) -> u64 {
    let (mut inverse, mut step) = (odd, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// Types with a valid value of all zero bits.
///
/// # Safety
/// All zero bits must be a valid value.
pub(crate) unsafe trait Zeroes {}
// SAFETY: atomics of zero.
unsafe impl Zeroes for Bucket {}
// SAFETY: an atomic of zero.
unsafe impl Zeroes for AtomicU32 {}
// SAFETY: an atomic of zero.
unsafe impl Zeroes for AtomicU64 {}

/// Loom's atomics have no representation as zero bits.
#[cfg(loom)]
fn zeroed<T: Zeroes + Default>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}

/// Zeroes that cost no memory until they are written.
#[cfg(not(loom))]
pub(crate) fn zeroed<T: Zeroes>(count: usize) -> Box<[T]> {
    // SAFETY: all zero bits are a valid `T`, as the trait `Zeroes` promises.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(n: u32) -> MacAddress {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddress::new([2, 0, a, b, c, d])
    }

    #[test]
    fn a_table_is_as_large_as_its_segment_not_as_the_network() {
        let entries = |members| Table::for_members(198, members, 1024, 7).confirmed.len();
        assert_eq!((entries(2), entries(198)), (8192, 524_288));
    }

    #[test]
    fn finds_what_it_learned_where_it_was_last_seen() {
        let table = Table::new(4, 64, 7);
        assert_eq!(table.find(address(1)), None);
        assert_eq!(table.learn(address(1), PortId(0), 0), Learned::Changed);
        assert_eq!(table.learn(address(1), PortId(0), 1), Learned::Known);
        assert_eq!(table.find(address(1)), Some(PortId(0)));
        let before = table.generation();
        assert_eq!(table.learn(address(1), PortId(3), 2), Learned::Changed);
        assert_eq!(table.find(address(1)), Some(PortId(3)));
        assert_ne!(table.generation(), before);
    }

    #[test]
    fn a_port_that_invents_addresses_pushes_nobody_out() {
        let table = Table::new(4, 64, 7);
        for n in 0..32 {
            table.learn(address(n), PortId(1), 0);
        }
        for n in 1000..100_000 {
            table.learn(address(n), PortId(2), 1);
        }
        assert!(table.held(PortId(2)) <= 64);
        assert!((0..32).all(|n| table.find(address(n)) == Some(PortId(1))));
    }

    #[test]
    fn forgets_the_silent_and_keeps_the_rest() {
        let table = Table::new(2, 64, 7);
        table.learn(address(1), PortId(0), 10);
        table.learn(address(2), PortId(0), 200);
        table.pin(address(3), PortId(1));
        table.expire(320, 300);
        assert_eq!([1, 2, 3].map(|n| table.find(address(n))), [None, Some(PortId(0)), Some(PortId(1))]);
        assert_eq!(table.held(PortId(0)), 1);
        table.forget(PortId(0));
        assert_eq!(table.records().len(), 1);
    }

    #[test]
    fn one_address_is_forgotten_where_it_was_learned_and_nowhere_else() {
        let table = Table::new(2, 64, 7);
        table.learn(address(1), PortId(0), u32::MAX);
        table.learn(address(2), PortId(1), 0);
        table.pin(address(3), PortId(0));
        (1..=3).for_each(|n| table.unlearn(address(n), |port| port == PortId(0)));
        assert_eq!([1, 2, 3].map(|n| table.find(address(n))), [None, Some(PortId(1)), Some(PortId(0))]);
        assert_eq!(table.held(PortId(0)), 1);
    }

    #[test]
    fn what_another_worker_confirmed_a_moment_ahead_is_kept() {
        let table = Table::new(2, 64, 7);
        table.learn(address(1), PortId(0), 321);
        table.learn(address(2), PortId(0), u32::MAX);
        table.expire(320, 300);
        assert_eq!(table.records().len(), 2);
    }

    #[test]
    fn only_what_moves_or_goes_is_news() {
        let table = Table::new(4, 64, 7);
        let changes = |action: &dyn Fn()| {
            let before = table.generation();
            action();
            table.generation().wrapping_sub(before)
        };
        let learn = |n, port, second| {
            table.learn(address(n), PortId(port), second);
        };
        assert_eq!(changes(&|| (0..20).for_each(|n| learn(n, 1, 0))), 0, "new ones");
        assert_eq!(changes(&|| (0..20).for_each(|n| learn(n, 1, 1))), 0, "known ones");
        assert_eq!(changes(&|| learn(3, 2, 1)), 1, "one that moved");
        assert_eq!(changes(&|| table.forget(PortId(2))), 1, "one that went");
        assert_eq!(changes(&|| table.expire(500, 300)), 19, "silent ones");
    }

    /// A MAC address in a VLAN.
    fn tagged(n: u32, vlan: u16) -> LearnedAddress {
        LearnedAddress { address: address(n), vlan }
    }

    #[test]
    fn vlans_learn_independently() {
        let table = Table::new(4, 64, 7);
        table.learn(tagged(1, 10), PortId(0), 0);
        table.learn(tagged(1, 20), PortId(1), 0);
        assert_eq!(table.learn(tagged(1, 10), PortId(0), 1), Learned::Known, "it has not moved");
        assert_eq!([10, 20, 30, 0].map(|vlan| table.find(tagged(1, vlan))), [Some(PortId(0)), Some(PortId(1)), None, None]);
        table.learn(address(1), PortId(2), 0);
        assert_eq!(
            [10, 20, 30, 0].map(|vlan| table.find(tagged(1, vlan))),
            [Some(PortId(0)), Some(PortId(1)), None, Some(PortId(2))]
        );
        table.unlearn(address(1), |port| port != PortId(1));
        assert_eq!([10, 20, 30, 0].map(|vlan| table.find(tagged(1, vlan))), [None, Some(PortId(1)), None, None]);
    }

    #[test]
    fn a_pinned_address_is_pinned_in_all_vlans() {
        let table = Table::new(4, 64, 7);
        table.learn(tagged(1, 10), PortId(1), 0);
        table.pin(address(1), PortId(0));
        assert_eq!([0, 10, 4095].map(|vlan| table.find(tagged(1, vlan))), [Some(PortId(0)); 3]);
        assert_eq!(table.learn(tagged(1, 10), PortId(1), 1), Learned::Pinned);
        assert_eq!(table.learn(tagged(1, 10), PortId(0), 1), Learned::Known);
        assert_eq!(table.records().len(), 1);
    }

    #[test]
    fn what_is_told_holds_where_nothing_is_learned() {
        let (table, far, here) = (Table::new(4, 64, 7), PortId(3), PortId(0));
        let found = |table: &Table| [0, 10, 20].map(|vlan| table.find(tagged(1, vlan)));
        table.tell(address(1), far);
        assert_eq!(found(&table), [Some(far); 3]);
        assert_eq!(table.learn(tagged(1, 20), far, 0), Learned::Known, "frames of it come from there");
        table.learn(tagged(1, 10), here, 0);
        table.learn(address(1), here, 0);
        assert_eq!(found(&table), [Some(here), Some(here), Some(far)]);
        table.expire(1000, 300);
        assert_eq!(found(&table), [Some(far); 3], "what is told does not age");
        let larger = Table::new(8, 64, 9);
        larger.take_over(&table);
        assert_eq!(found(&larger), [Some(far); 3]);
        table.tell(address(1), PortId(2));
        assert_eq!(found(&table), [Some(PortId(2)); 3]);
        table.pin(address(1), here);
        table.tell(address(1), far);
        assert_eq!(found(&table), [Some(here); 3]);
        assert_eq!(table.held(PortId(2)) + table.held(far), 0);
    }

    #[test]
    fn an_address_that_moves_too_often_is_held_where_it_was() {
        let (table, home, loops) = (Table::new(4, 64, 7), PortId(0), [PortId(1), PortId(2)]);
        table.learn(address(1), home, 100);
        let moves = |second| (0..40).filter(|n| table.learn(address(1), loops[n % 2], second) == Learned::Changed).count();
        assert_eq!(moves(101), usize::from(DEFAULT_MOVES) - 1);
        assert_eq!(table.find(address(1)), Some(home));
        assert_eq!(table.learn(address(1), home, 101), Learned::Known);
        assert_eq!(table.learn(address(1), loops[0], 101 + HOLD - 1), Learned::Held);
        assert_eq!([home, loops[0], loops[1], PortId(3)].map(|port| table.is_suspect(port, 102)), [true, true, true, false]);
        assert!(table.has_flapped() && !table.has_flapped());
        let [flap] = table.flaps()[..] else { panic!("{:?}", table.flaps()) };
        assert_eq!((flap.learned_address, flap.home, flap.second), (address(1).into(), home, 101));
        assert!(loops.contains(&flap.other));
        // The address may move after that, but not back and forth.
        assert_eq!(table.learn(address(1), loops[0], 101 + HOLD), Learned::Changed);
        assert_eq!(table.learn(address(1), home, 101 + HOLD), Learned::Changed);
        assert_eq!(moves(102 + HOLD), usize::from(DEFAULT_MOVES) - 3);
        assert!(!table.is_suspect(home, 102 + 2 * HOLD));
    }

    #[test]
    fn a_frame_that_goes_round_in_one_direction_shows_when_its_owner_sends() {
        let (table, home, round) = (Table::new(4, 64, 7), PortId(0), PortId(1));
        let mut learned = Vec::new();
        for second in 0..5 {
            table.learn(address(1), home, second);
            learned = (0..100).map(|_| table.learn(address(1), round, second)).collect();
        }
        assert_eq!(learned, [Learned::Held; 100]);
        assert_eq!((table.find(address(1)), table.flaps()[0].within), (Some(home), 5));
    }

    /// A bystander that speaks now and then; a loop sends its frames back by one of two ports some of the time: windows begin at any
    /// of the moves.
    #[test]
    fn the_home_of_an_address_is_never_a_port_of_the_loop() {
        let (home, loops) = (PortId(0), [PortId(1), PortId(2)]);
        for spoken in (1..8).chain([13, 25]) {
            for copies in 1..=3 {
                for begin in 0..WINDOW {
                    let table = Table::new(4, 64, 7);
                    table.learn(address(1), home, 0);
                    // In the end it speaks once a second.
                    let seldom = (begin..20 * WINDOW).step_by(spoken);
                    for second in seldom.chain(20 * WINDOW + 25..25 * WINDOW) {
                        let learned = table.learn(address(1), home, second);
                        assert_ne!(learned, Learned::Held, "{spoken} s, {copies} copies: cut off in second {second}");
                        assert_eq!(table.find(address(1)), Some(home));
                        // The boundary of a window may lie between two copies.
                        for copy in 0..copies {
                            table.learn(address(1), loops[copy % 2], second + copy as u32 / 2);
                        }
                    }
                    assert!(table.flaps().iter().all(|flap| flap.home == home));
                }
            }
        }
    }

    #[test]
    fn an_address_is_at_home_where_it_settles() {
        let (table, before, after, loops) = (Table::new(4, 64, 7), PortId(0), PortId(3), PortId(1));
        table.learn(address(1), before, 0);
        // The address moves as that of a guest that migrates.
        table.learn(address(1), after, 100);
        for second in (101 + WINDOW)..(103 + WINDOW) {
            for _ in 0..10 {
                table.learn(address(1), loops, second);
                table.learn(address(1), after, second);
            }
        }
        assert_eq!((table.find(address(1)), table.flaps()[0].home), (Some(after), after));
    }

    #[test]
    fn an_address_whose_move_was_dropped_returns() {
        let (table, home, other) = (Table::new(4, 64, 7), PortId(0), PortId(1));
        let learned = LearnedAddress::from(address(1));
        table.learn(address(1), home, 100);
        for moves in 1..DEFAULT_MOVES {
            assert_eq!(table.learn(address(1), other, 100), Learned::Changed, "move {moves}");
            table.return_home(learned, other, 100);
            assert_eq!(table.find(address(1)), Some(home));
        }
        assert_eq!(table.learn(address(1), other, 100), Learned::Held, "each of them counts");
        // An address that is new, or that moved long ago, is where it is.
        table.learn(address(2), other, 100);
        table.learn(address(3), home, 100);
        table.learn(address(3), other, 101);
        for (n, second) in [(2, 100), (3, 101 + WINDOW)] {
            table.return_home(address(n).into(), other, second);
            assert_eq!(table.find(address(n)), Some(other));
        }
    }

    #[test]
    fn no_address_is_held_at_a_port_that_left() {
        let (table, gone, others) = (Table::new(4, 64, 7), PortId(0), [PortId(1), PortId(2)]);
        let moves = |times: usize| {
            for n in 0..times {
                table.learn(address(1), others[n % 2], 100);
                assert_ne!(table.find(address(1)), Some(gone), "move {n}");
            }
        };
        table.learn(address(1), gone, 100);
        moves(usize::from(DEFAULT_MOVES) - 1);
        table.forget_moves(gone);
        table.clear(gone);
        // The number may belong to a port of another segment now.
        moves(4 * usize::from(DEFAULT_MOVES));
        assert!(table.flaps().iter().all(|flap| flap.home != gone), "the moves between the others count for themselves");
        assert!(!table.is_suspect(gone, 100));
    }

    #[test]
    fn a_port_that_leaves_ends_what_was_held_there() {
        let (table, gone, other) = (Table::new(4, 64, 7), PortId(0), PortId(1));
        table.learn(address(1), gone, 100);
        for n in 0..40 {
            table.learn(address(1), [other, PortId(2)][n % 2], 100);
        }
        assert!(table.is_suspect(gone, 100) && table.find(address(1)) == Some(gone));
        table.forget_moves(gone);
        table.clear(gone);
        assert_eq!(table.learn(address(1), other, 100), Learned::Changed);
        assert_eq!((table.find(address(1)), table.is_suspect(gone, 100)), (Some(other), false));
        assert!(table.flaps().is_empty(), "another port may have its number");
    }

    #[test]
    fn moving_is_no_flapping() {
        let table = Table::new(4, 64, 7);
        for second in (0..100).step_by(2) {
            let port = PortId((second / 2 % 2) as u16);
            table.learn(address(1), port, second);
            assert_eq!(table.find(address(1)), Some(port));
        }
        let free = Table::new(4, 64, 7).holding_after(0);
        assert!((1..100).all(|n| free.learn(address(1), PortId(n % 2), 0) == Learned::Changed));
        assert!(table.flaps().is_empty() && free.flaps().is_empty());
    }

    #[test]
    fn a_guest_that_has_many_addresses_flap_fills_nothing() {
        let table = Table::new(4, 1024, 7);
        for n in 0..200 {
            for round in 0..20 {
                table.learn(address(n), PortId(round % 2), 5);
            }
        }
        assert_eq!(table.flaps().len(), FLAPS);
    }

    #[test]
    fn addresses_can_be_told_from_their_places() {
        for (key, members) in [(7, 1), (u64::MAX, 198), (0x0123_4567_89ab_cdef, 4096)] {
            let table = Table::for_members(4096, members, 1024, key);
            for (number, vlan) in [(1, 0), (u32::MAX, 4095), (0x0102_0304, 100)] {
                let learned_address = tagged(number, vlan);
                let last = PortId(4095);
                table.learn(learned_address, last, 5);
                let record = Record { learned_address, port: last, confirmed: 5, kind: Kind::Learned };
                assert!(table.records().contains(&record), "{learned_address:?}");
            }
        }
    }

    #[test]
    fn a_pinned_address_cannot_be_taken() {
        let table = Table::new(2, 64, 7);
        table.pin(address(1), PortId(0));
        assert_eq!(table.learn(address(1), PortId(1), 0), Learned::Pinned);
        assert_eq!(table.learn(address(1), PortId(0), 0), Learned::Known);
        assert_eq!(table.find(address(1)), Some(PortId(0)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const HERE: PortId = PortId(0);
    const THERE: PortId = PortId(1);
    const LEAVING: PortId = PortId(2);
    /// Maximum of preemptions of a thread.
    const SWITCHES: usize = 3;

    /// A table of the smallest size, with a quota of two entries for each port, and addresses of the same bucket.
    fn table() -> (Arc<Table>, [MacAddress; 3]) {
        let table = Arc::new(Table::for_members(3, 2, 2, 7));
        let all = (1..64_u8).map(|n| MacAddress::new([2, 0, 0, 0, 0, n]));
        let mut alike = all.filter(|&address| table.place(address.into()).bucket == 0);
        let addresses = std::array::from_fn(|_| alike.next().expect("half of them are in each bucket"));
        (table, addresses)
    }

    /// Runs `one` and `other` concurrently on a table after `prepare`, in all orders with so many [`SWITCHES`], then checks the
    /// table.
    fn model(
        prepare: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
        one: impl Fn(&Table, [MacAddress; 3]) + Copy + Sync + Send + 'static,
        other: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
    ) {
        model_then(prepare, one, other, |_, _| {});
    }

    /// Like [`model`], and runs the further check `then`.
    fn model_then(
        prepare: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
        one: impl Fn(&Table, [MacAddress; 3]) + Copy + Sync + Send + 'static,
        other: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
        then: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
    ) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(SWITCHES);
        builder.check(move || {
            let (table, addresses) = table();
            prepare(&table, addresses);
            let theirs = Arc::clone(&table);
            let thread = thread::spawn(move || one(&theirs, addresses));
            other(&table, addresses);
            thread.join().unwrap();
            look(&table);
            then(&table, addresses);
        });
    }

    /// Invariants of every table: the count of entries of each port is right, and no address stands in two entries.
    fn look(table: &Table) {
        let entries = table.records();
        for port in [HERE, THERE, LEAVING] {
            let of_port = entries.iter().filter(|entry| entry.port == port).count();
            assert_eq!(table.held(port) as usize, of_port, "entries of {port:?}");
        }
        for (index, entry) in entries.iter().enumerate() {
            assert!(
                entries[..index].iter().all(|earlier| earlier.learned_address != entry.learned_address),
                "an address in two entries"
            );
        }
    }

    #[test]
    fn two_ports_learn_the_same_address_at_once() {
        model(
            |_, _| {},
            |table, [a, ..]| {
                table.learn(a, HERE, 1);
            },
            |table, [a, ..]| {
                table.learn(a, THERE, 1);
            },
        );
    }

    /// The one port gets its quota, so that its own entry is replaced, and not the free one that the other port takes.
    fn fill_share(table: &Table, [_, b, c]: [MacAddress; 3]) {
        table.learn(b, HERE, 0);
        table.learn(c, HERE, 0);
    }

    #[test]
    fn an_address_is_learned_in_two_places_at_once() {
        model(
            fill_share,
            |table, [a, ..]| {
                table.learn(a, HERE, 1);
            },
            |table, [a, ..]| {
                table.learn(a, THERE, 1);
            },
        );
    }

    #[test]
    fn a_tied_address_stays_tied_though_another_port_learns_it_at_that_moment() {
        model_then(
            fill_share,
            |table, [a, ..]| {
                table.learn(a, HERE, 1);
            },
            |table, [a, ..]| table.pin(a, THERE),
            |table, [a, ..]| assert_eq!(table.pinned(a), Some(THERE)),
        );
    }

    #[test]
    fn an_address_moves_while_it_is_forgotten() {
        let prepare = |table: &Table, [a, ..]: [MacAddress; 3]| {
            table.learn(a, HERE, 0);
        };
        model(
            prepare,
            |table, [a, ..]| {
                table.learn(a, THERE, 9);
            },
            |table, _| table.expire(9, 5),
        );
        model(
            prepare,
            |table, [a, ..]| {
                table.learn(a, THERE, 9);
            },
            |table, _| table.forget(HERE),
        );
    }

    /// The moment when the worker has finished comes between forgetting the moves and removing the entries. An address that was
    /// held begins to move anew from there, which is forgotten last.
    #[test]
    fn an_address_is_about_to_be_held_at_a_port_that_leaves() {
        for (moves, is_held) in [(DEFAULT_MOVES - 2, false), (DEFAULT_MOVES - 1, false), (DEFAULT_MOVES, true)] {
            let moves_on = |table: &Table, a, n| table.learn(a, [HERE, THERE][usize::from(n % 2)], 1);
            model_then(
                move |table, [a, ..]| {
                    table.learn(a, LEAVING, 1);
                    for n in 0..moves {
                        moves_on(table, a, n);
                    }
                },
                move |table, [a, ..]| {
                    moves_on(table, a, moves);
                },
                |table, _| table.forget_moves(LEAVING),
                move |table, [a, ..]| {
                    table.clear(LEAVING);
                    if is_held {
                        table.forget_moves(LEAVING);
                    }
                    for n in 0..2 * DEFAULT_MOVES {
                        moves_on(table, a, n);
                        assert_ne!(table.find(a), Some(LEAVING), "{moves} moves, then {n}");
                    }
                },
            );
        }
    }

    /// A flow cache that remembers the port of an address, with the generation from before the look-up, learns from the generation
    /// that the address has moved or gone.
    #[test]
    fn what_is_remembered_is_void_once_it_is_wrong() {
        let memory = |table: &Table, a| (table.generation(), table.find(a));
        for moves in [true, false] {
            let prepare = |table: &Table, [a, ..]: [MacAddress; 3]| {
                table.learn(a, HERE, 0);
            };
            let change = move |table: &Table, [a, ..]: [MacAddress; 3]| {
                if moves {
                    {
                        table.learn(a, THERE, 1);
                    }
                } else {
                    table.forget(HERE)
                }
            };
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(SWITCHES);
            builder.check(move || {
                let (table, addresses) = table();
                prepare(&table, addresses);
                let theirs = Arc::clone(&table);
                let thread = thread::spawn(move || change(&theirs, addresses));
                let (generation, found) = memory(&table, addresses[0]);
                thread.join().unwrap();
                let now = table.find(addresses[0]);
                assert!(found == now || table.generation() != generation, "{found:?} is remembered where {now:?} is right");
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod proofs {
    use super::*;

    /// Learning is foreseen, whatever was learned, pinned and held before, and a foreseen frame changes nothing.
    #[test]
    fn learning_is_foreseen() {
        bolero::check!().with_type::<Vec<(u8, u8, u8)>>().for_each(|steps| {
            let table = Table::for_members(4, 4, 3, 7).holding_after(3);
            table.pin(MacAddress::new([2, 0, 0, 0, 0, 0]), PortId(1));
            for (second, &(address, port, vlan)) in steps.iter().enumerate() {
                let learned_address =
                    LearnedAddress { address: MacAddress::new([2, 0, 0, 0, 0, address % 8]), vlan: u16::from(vlan % 3) };
                let (port, now) = (PortId(u16::from(port % 4)), second as u32 / 4);
                let before = table.records();
                let foreseen = table.foresee(learned_address, port, now);
                assert_eq!(table.records(), before);
                assert_eq!((table.learn(learned_address, port, now), table.find(learned_address)), foreseen);
            }
        });
    }

    /// The permutation of keys can be undone with any key: no two addresses are mistaken for one.
    #[test]
    #[cfg_attr(kani, kani::proof)]
    fn every_key_comes_back() {
        bolero::check!().with_type::<(u64, u64)>().cloned().for_each(|(number, key)| {
            let (number, key) = (number & KEY_MASK, key | 1);
            let mixed = mix(number, key);
            assert!(mixed <= KEY_MASK);
            assert_eq!(unmix(mixed, inverse(key)), number);
        });
    }
}
