//! The forwarding table of one segment: which port a station is behind, learned from the frames it sends (IEEE 802.1Q, section 8.7).
//!
//! The table is a fixed array of **buckets**, one cache line each; an address can be in one bucket only, which its keyed hash
//! names. An entry is one word, so workers read without locks and change entries by compare-and-swap.
//!
//! Learning is fair: a port that holds its **share** of entries replaces its own, and a full bucket gives up an entry of the port that
//! holds most, so no guest can push another's address out by inventing addresses.

#![expect(unsafe_code, reason = "zeroes that cost no memory until they are written")]

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::frame::MacAddress;
use crate::id::PortId;

/// Entries of a bucket.
const WAYS: usize = 8;
/// Seconds after which a silent station is forgotten (IEEE 802.1Q, table 8-7).
pub const DEFAULT_AGE: u32 = 300;
/// Most entries of one table.
const MOST: usize = 1 << 20;

#[repr(align(64))]
#[derive(Debug, Default)]
struct Bucket([AtomicU64; WAYS]);

/// See the module.
#[derive(Debug)]
pub struct Table {
    buckets: Box<[Bucket]>,
    /// Second in which each entry was last confirmed, in the order of the entries.
    confirmed: Box<[AtomicU32]>,
    /// Entries that each port holds.
    held: Box<[AtomicU32]>,
    share: u32,
    shift: u32,
    key: u64,
    generation: AtomicU32,
}

/// What [`Table::learn`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address was known behind this port.
    Known,
    /// It is known now.
    Changed,
    /// The port holds its share and has no entry that could give way; frames to this address will be flooded.
    NoRoom,
    /// The address is pinned to another port.
    Pinned,
}

/// An entry: address, port, and whether it may change. Zero is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const PINNED: u64 = 0x8000;

    fn new(address: MacAddress, port: PortId) -> Self {
        Self(address.number() << 16 | u64::from(port.0))
    }

    fn is(self, address: MacAddress) -> bool {
        self.0 >> 16 == address.number() && self.0 != 0
    }

    fn address(self) -> MacAddress {
        let [a, b, c, d, e, f, ..] = (self.0 >> 16).to_le_bytes();
        MacAddress::new([a, b, c, d, e, f])
    }

    fn port(self) -> PortId {
        PortId((self.0 & 0x7fff) as u16)
    }

    fn is_pinned(self) -> bool {
        self.0 & Self::PINNED != 0
    }
}

impl Table {
    /// An empty table for ports numbered below `ports` (at most 32767), each of which may hold `share` entries. `key` makes the hash
    /// unpredictable to guests.
    pub fn new(ports: usize, share: u32, key: u64) -> Self {
        Self::for_members(ports, ports, share, key)
    }

    /// The same for a segment of which only `members` of the ports are: it has room for theirs, so that many small segments take little memory.
    pub fn for_members(ports: usize, members: usize, share: u32, key: u64) -> Self {
        let wanted = (2 * members.max(1) * share as usize).clamp(WAYS * 2, MOST).next_power_of_two();
        let buckets = wanted / WAYS;
        Self {
            buckets: zeroed(buckets),
            confirmed: zeroed(wanted),
            held: zeroed(ports.max(1)),
            share,
            shift: 64 - buckets.trailing_zeros(),
            key: key | 1,
            generation: AtomicU32::new(0),
        }
    }

    /// Changes whenever an address moves or goes: where it was found before may be wrong after. One that appears changes nothing for whoever
    /// found others, so that a guest that invents addresses is no news to the rest.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The port behind which `address` was last seen.
    #[inline]
    pub fn find(&self, address: MacAddress) -> Option<PortId> {
        let bucket = &self.buckets[self.bucket(address)];
        bucket.0.iter().map(|way| Entry(way.load(Ordering::Relaxed))).find(|entry| entry.is(address)).map(Entry::port)
    }

    /// Notes in second `now` that `address` is behind `port`.
    #[inline]
    pub fn learn(&self, address: MacAddress, port: PortId, now: u32) -> Learned {
        let bucket = self.bucket(address);
        for (way, slot) in self.buckets[bucket].0.iter().enumerate() {
            let entry = Entry(slot.load(Ordering::Relaxed));
            if entry.is(address) {
                let confirmed = &self.confirmed[bucket * WAYS + way];
                if entry.port() == port {
                    confirmed.store(now, Ordering::Relaxed);
                    return Learned::Known;
                }
                return self.move_entry(slot, confirmed, entry, Entry::new(address, port), now);
            }
        }
        self.insert(bucket, Entry::new(address, port), now)
    }

    /// Ties `address` to `port` for good; frames from it on other ports are refused.
    pub fn pin(&self, address: MacAddress, port: PortId) {
        let bucket = self.bucket(address);
        let entry = Entry(Entry::new(address, port).0 | Entry::PINNED);
        let ways = &self.buckets[bucket].0;
        let place = ways
            .iter()
            .position(|way| Entry(way.load(Ordering::Relaxed)).is(address))
            .or_else(|| ways.iter().position(|way| way.load(Ordering::Relaxed) == 0))
            .or_else(|| ways.iter().position(|way| !Entry(way.load(Ordering::Relaxed)).is_pinned()));
        if let Some(way) = place {
            let old = Entry(ways[way].swap(entry.0, Ordering::AcqRel));
            self.count(old, -1);
            self.count(entry, 1);
            self.changed();
            self.keep_one(bucket, address);
        }
    }

    /// Forgets what was not confirmed in the `age` seconds before `now`. Workers count seconds for themselves: what another one confirmed a
    /// moment ahead of `now` is fresh.
    pub fn expire(&self, now: u32, age: u32) {
        self.remove_if(|entry, confirmed| !entry.is_pinned() && now.saturating_sub(confirmed) > age);
    }

    /// Forgets every learned address behind `port`.
    pub fn forget(&self, port: PortId) {
        self.remove_of(port, |entry| !entry.is_pinned());
    }

    /// Forgets every address behind `port`, tied to it or not.
    pub fn clear(&self, port: PortId) {
        self.remove_of(port, |_| true);
    }

    /// Forgets that `address` was learned behind `port`; no more if it is elsewhere by now, or tied.
    pub fn unlearn(&self, address: MacAddress, port: PortId) {
        let learned = Entry::new(address, port);
        for slot in &self.buckets[self.bucket(address)].0 {
            if Entry(slot.load(Ordering::Relaxed)) == learned {
                self.remove(slot, learned);
            }
        }
    }

    /// The port that `address` is tied to.
    pub fn pinned(&self, address: MacAddress) -> Option<PortId> {
        let bucket = &self.buckets[self.bucket(address)];
        let entries = bucket.0.iter().map(|way| Entry(way.load(Ordering::Relaxed)));
        entries.into_iter().find(|entry| entry.is(address) && entry.is_pinned()).map(Entry::port)
    }

    /// Knows what `other` knows, as far as there is room. For a table that nobody uses yet.
    pub fn take_over(&self, other: &Self) {
        for (address, port, confirmed, pinned) in other.entries() {
            if pinned {
                self.pin(address, port);
            } else {
                self.learn(address, port, confirmed);
            }
        }
    }

    /// All entries: address, port, second of the last confirmation, pinned or not.
    pub fn entries(&self) -> Vec<(MacAddress, PortId, u32, bool)> {
        let all = self.slots().map(|(slot, confirmed)| (Entry(slot.load(Ordering::Relaxed)), confirmed.load(Ordering::Relaxed)));
        all.filter(|(entry, _)| entry.0 != 0)
            .map(|(entry, confirmed)| (entry.address(), entry.port(), confirmed, entry.is_pinned()))
            .collect()
    }

    fn slots(&self) -> impl Iterator<Item = (&AtomicU64, &AtomicU32)> {
        self.buckets.iter().flat_map(|bucket| bucket.0.iter()).zip(self.confirmed.iter())
    }

    /// Removes what is behind `port`, as far as the condition holds.
    fn remove_of(&self, port: PortId, condition: impl Fn(Entry) -> bool) {
        // Looking through a large table takes long.
        if self.held(port) > 0 {
            self.remove_if(|entry, _| entry.port() == port && condition(entry));
        }
    }

    fn remove_if(&self, condition: impl Fn(Entry, u32) -> bool) {
        for (slot, confirmed) in self.slots() {
            let entry = Entry(slot.load(Ordering::Relaxed));
            let gone = entry.0 != 0 && condition(entry, confirmed.load(Ordering::Relaxed));
            if gone {
                self.remove(slot, entry);
            }
        }
    }

    /// Empties `slot` if it still holds `entry`.
    fn remove(&self, slot: &AtomicU64, entry: Entry) {
        if slot.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.count(entry, -1);
            self.changed();
        }
    }

    /// Keyed multiplicative hash.
    #[inline]
    fn bucket(&self, address: MacAddress) -> usize {
        let mixed = address.number().wrapping_mul(self.key);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> self.shift) as usize
    }

    #[cold]
    fn move_entry(&self, slot: &AtomicU64, confirmed: &AtomicU32, old: Entry, new: Entry, now: u32) -> Learned {
        if old.is_pinned() {
            return Learned::Pinned;
        }
        self.replace(slot, confirmed, old, new, now)
    }

    #[cold]
    fn insert(&self, bucket: usize, entry: Entry, now: u32) -> Learned {
        let Some(way) = self.giving_way(bucket, entry.port()) else { return Learned::NoRoom };
        let slot = &self.buckets[bucket].0[way];
        let old = Entry(slot.load(Ordering::Relaxed));
        let learned = self.replace(slot, &self.confirmed[bucket * WAYS + way], old, entry, now);
        if learned == Learned::Changed {
            self.keep_one(bucket, entry.address());
        }
        learned
    }

    /// Another worker may have inserted the same address in another way at the same moment, and would not find ours to move it later: all but
    /// the pinned one, or else the first, go. Of two who insert, at least one sees both, by the fence.
    fn keep_one(&self, bucket: usize, address: MacAddress) {
        fence(Ordering::SeqCst);
        let ways = self.buckets[bucket].0.iter().map(|way| (way, Entry(way.load(Ordering::Relaxed))));
        let mut found: Vec<_> = ways.filter(|(_, entry)| entry.is(address)).collect();
        found.sort_by_key(|(_, entry)| !entry.is_pinned());
        for (slot, entry) in found.into_iter().skip(1) {
            self.remove(slot, entry);
        }
    }

    /// The way of `bucket` that a new entry of `port` may take: within its share a free one, or one of the port that holds most (itself
    /// included); beyond it, the one of its own that was confirmed longest ago.
    fn giving_way(&self, bucket: usize, port: PortId) -> Option<usize> {
        let ways: Vec<(usize, Entry)> = self.buckets[bucket]
            .0
            .iter()
            .map(|way| Entry(way.load(Ordering::Relaxed)))
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

    fn replace(&self, slot: &AtomicU64, confirmed: &AtomicU32, old: Entry, new: Entry, now: u32) -> Learned {
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

    fn count(&self, entry: Entry, by: i32) {
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

/// Types for which all zeroes is a value.
///
/// # Safety
/// It must be one.
unsafe trait Zeroes {}
// SAFETY: atomics of zero.
unsafe impl Zeroes for Bucket {}
// SAFETY: an atomic of zero.
unsafe impl Zeroes for AtomicU32 {}

/// Loom's atomics are no numbers.
#[cfg(loom)]
fn zeroed<T: Zeroes + Default>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}

/// Zeroes that cost no memory until they are written.
#[cfg(not(loom))]
fn zeroed<T: Zeroes>(count: usize) -> Box<[T]> {
    // SAFETY: what the trait promises.
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
        assert_eq!((entries(2), entries(198)), (4096, 524_288));
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
        assert_eq!(table.entries().len(), 1);
    }

    #[test]
    fn one_address_is_forgotten_where_it_was_learned_and_nowhere_else() {
        let table = Table::new(2, 64, 7);
        table.learn(address(1), PortId(0), u32::MAX);
        table.learn(address(2), PortId(1), 0);
        table.pin(address(3), PortId(0));
        (1..=3).for_each(|n| table.unlearn(address(n), PortId(0)));
        assert_eq!([1, 2, 3].map(|n| table.find(address(n))), [None, Some(PortId(1)), Some(PortId(0))]);
        assert_eq!(table.held(PortId(0)), 1);
    }

    #[test]
    fn what_another_worker_confirmed_a_moment_ahead_is_kept() {
        let table = Table::new(2, 64, 7);
        table.learn(address(1), PortId(0), 321);
        table.learn(address(2), PortId(0), u32::MAX);
        table.expire(320, 300);
        assert_eq!(table.entries().len(), 2);
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
    /// Times that a thread is interrupted at most.
    const SWITCHES: usize = 3;

    /// A table of the smallest size, where each port may hold two entries, and addresses of one and the same bucket.
    fn table() -> (Arc<Table>, [MacAddress; 3]) {
        let table = Arc::new(Table::new(2, 2, 7));
        let all = (1..64_u8).map(|n| MacAddress::new([2, 0, 0, 0, 0, n]));
        let mut alike = all.filter(|&address| table.bucket(address) == 0);
        let addresses = std::array::from_fn(|_| alike.next().expect("half of them are in each bucket"));
        (table, addresses)
    }

    /// Runs `one` and `other` at once on a table where `prepare` was done, in all orders with so many [`SWITCHES`], then looks at it.
    fn model(
        prepare: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
        one: impl Fn(&Table, [MacAddress; 3]) + Copy + Sync + Send + 'static,
        other: impl Fn(&Table, [MacAddress; 3]) + Sync + Send + 'static,
    ) {
        model_then(prepare, one, other, |_, _| {});
    }

    /// As [`model`], and looks at what else is to hold `then`.
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

    /// What holds of every table: who is said to hold so many entries holds them, and no address stands in two.
    fn look(table: &Table) {
        let entries = table.entries();
        for port in [HERE, THERE] {
            let of_port = entries.iter().filter(|entry| entry.1 == port).count();
            assert_eq!(table.held(port) as usize, of_port, "entries of {port:?}");
        }
        for (index, entry) in entries.iter().enumerate() {
            assert!(entries[..index].iter().all(|earlier| earlier.0 != entry.0), "an address in two entries");
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

    /// The one port gets its share, so that its own entry gives way, and not the free one that the other port takes.
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

    /// Whoever remembers where an address was, with the generation from before it looked, hears that it has moved or gone.
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
