//! Flows that a port has opened: their replies pass where a default refuses the rest.
//!
//! Each port has a table of its own, which only the frames that it transmits fill, so no other port can evict its flows. The table is
//! bounded: beyond [`MOST`] flows the oldest of a few is replaced. An entry is the hash of a flow under a random key, and the second in which
//! the port last transmitted a frame of it; workers share the table without a lock. A frame that finds its entry gone opens the flow
//! again.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::time::{cycles, frequency};

/// Most flows of a port.
pub const MOST: usize = WAYS * (BUCKETS[0] + BUCKETS[1] + BUCKETS[2] + BUCKETS[3]);
/// Entries of a bucket.
const WAYS: usize = 8;
/// Buckets of each level: a port with few flows has the first only.
const BUCKETS: [usize; 4] = [8, 32, 128, 512];
/// Tries to replace an entry that other workers replace too.
const TRIES: usize = 4;

/// How long a flow stays open without a frame of the port that opened it, in seconds: of TCP (RFC 5382, REQ-5), of ICMP queries (RFC
/// 5508, REQ-1), and of UDP and all others (RFC 4787, REQ-5).
const TCP_IDLE: u32 = 7440;
const ICMP_IDLE: u32 = 60;
const OTHER_IDLE: u32 = 300;

/// A flow, as the port that opened it transmits its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// VLAN; 0 for none. Other VLANs of a segment may use the same addresses.
    pub vlan: u16,
    /// Protocol number; 0 for later fragments, whose ports are not known.
    pub protocol: u8,
    /// Source address, and source port or identifier of an echo.
    pub from: (IpAddr, u16),
    /// Destination address and port.
    pub to: (IpAddr, u16),
}

impl Flow {
    /// The flow in the other direction.
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// Later fragments of the flow's datagrams.
    fn fragments(self) -> Self {
        Self { protocol: 0, from: (self.from.0, 0), to: (self.to.0, 0), ..self }
    }

    fn idle(self) -> u32 {
        match self.protocol {
            6 => TCP_IDLE,
            1 | 58 => ICMP_IDLE,
            _ => OTHER_IDLE,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// Hash of the flow; 0 for none.
    flow: AtomicU64,
    /// Second of the last frame.
    last: AtomicU32,
}

type Bucket = [Entry; WAYS];

/// The random key of the hashes of one port's flows. It is kept with a snapshot of the network.
#[derive(Debug)]
struct Key([AtomicU64; 2]);

impl Default for Key {
    fn default() -> Self {
        let random = RandomState::new();
        Self([0_u8, 1].map(|half| AtomicU64::new(random.hash_one(half))))
    }
}

impl Key {
    fn hash_one(&self, flow: Flow) -> u64 {
        let [first, second] = self.words();
        #[expect(deprecated, reason = "the only keyed hash function of std with a key that can be stored")]
        let mut hasher = std::hash::SipHasher::new_with_keys(first, second);
        flow.hash(&mut hasher);
        hasher.finish()
    }

    fn words(&self) -> [u64; 2] {
        self.0.each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// The flows of a port, for a snapshot of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedFlows {
    /// The key of the hashes.
    pub key: [u64; 2],
    /// The hash of each flow, and the seconds since the port last transmitted a frame of it.
    pub entries: Vec<(u64, u32)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Flows {
    key: Key,
    levels: [OnceLock<Box<[Bucket]>>; BUCKETS.len()],
}

/// The present second of the clock of flows and grants.
pub(crate) fn second() -> u32 {
    (cycles() / frequency().max(1)) as u32
}

impl Flows {
    /// The port transmits a frame of `flow`.
    pub fn open(&self, flow: Flow) {
        self.open_at(flow, second());
    }

    /// Whether the port transmitted a frame of `flow` lately.
    pub fn is_open(&self, flow: Flow) -> bool {
        self.is_open_at(flow, second())
    }

    /// The flows that there are.
    pub fn saved(&self) -> SavedFlows {
        let now = second();
        let buckets = self.levels.iter().map_while(OnceLock::get).flatten().flatten();
        let entries = buckets.filter_map(|entry| match entry.flow.load(Ordering::Acquire) {
            0 => None,
            flow => Some((flow, now.saturating_sub(entry.last.load(Ordering::Relaxed)))),
        });
        SavedFlows { entries: entries.collect(), key: self.key.words() }
    }

    /// Continues the flows of a snapshot, before the port transmits its first frame.
    pub fn restore(&self, saved: &SavedFlows) {
        let now = second();
        self.key.0.iter().zip(saved.key).for_each(|(word, saved)| word.store(saved, Ordering::Relaxed));
        for &(flow, idle) in saved.entries.iter().take(MOST) {
            self.enter(flow | 1, now.saturating_sub(idle));
        }
    }

    fn open_at(&self, flow: Flow, now: u32) {
        self.enter(self.hash(flow), now);
        self.enter(self.hash(flow.fragments()), now);
    }

    fn is_open_at(&self, flow: Flow, now: u32) -> bool {
        let hash = self.hash(flow);
        let entry = self.entries(hash).find(|entry| entry.flow.load(Ordering::Acquire) == hash);
        entry.is_some_and(|entry| now.saturating_sub(entry.last.load(Ordering::Relaxed)) <= flow.idle())
    }

    fn hash(&self, flow: Flow) -> u64 {
        self.key.hash_one(flow) | 1
    }

    /// The entries in which a flow of this hash may be, of the levels that there are.
    fn entries(&self, hash: u64) -> impl Iterator<Item = &Entry> {
        let buckets = self.levels.iter().map_while(OnceLock::get);
        buckets.flat_map(move |buckets| buckets.get((hash >> 32) as usize % buckets.len()).into_iter().flatten())
    }

    fn enter(&self, hash: u64, now: u32) {
        if let Some(entry) = self.entries(hash).find(|entry| entry.flow.load(Ordering::Acquire) == hash) {
            return entry.last.store(now, Ordering::Relaxed);
        }
        for _ in 0..TRIES {
            let Some((entry, before)) = self.room(hash, now) else { continue };
            if entry.flow.compare_exchange(before, hash, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return entry.last.store(now, Ordering::Relaxed);
            }
        }
    }

    /// The entry that a new flow takes, and its hash: one that is free or over, else of a new level, else the oldest.
    fn room(&self, hash: u64, now: u32) -> Option<(&Entry, u64)> {
        let age = |entry: &Entry| match entry.flow.load(Ordering::Acquire) {
            0 => u32::MAX,
            _ => now.saturating_sub(entry.last.load(Ordering::Relaxed)),
        };
        let oldest = self.entries(hash).max_by_key(|entry| age(entry));
        let is_over = |entry: &&Entry| age(entry) > TCP_IDLE;
        let level = self.levels.iter().zip(BUCKETS).find(|(level, _)| level.get().is_none());
        if let (None, Some((level, buckets))) = (oldest.filter(is_over), level) {
            level.get_or_init(|| std::iter::repeat_with(Bucket::default).take(buckets).collect());
            return None;
        }
        oldest.map(|entry| (entry, entry.flow.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(n: u32) -> Flow {
        let to = IpAddr::from([192, 0, 2, n as u8]);
        Flow { vlan: 0, protocol: 6, from: (IpAddr::from([10, 0, 0, 1]), (n >> 8) as u16), to: (to, 443) }
    }

    #[test]
    fn a_flow_is_open_until_it_was_idle_for_its_time() {
        let flows = Flows::default();
        for (protocol, idle) in [(6, 7440), (17, 300), (1, 60), (58, 60), (47, 300)] {
            let flow = Flow { protocol, ..flow(1) };
            assert!(!flows.is_open_at(flow, 1000));
            flows.open_at(flow, 1000);
            assert!(flows.is_open_at(flow, 1000 + idle) && !flows.is_open_at(flow, 1001 + idle), "protocol {protocol}");
            assert!(!flows.is_open_at(flow.reversed(), 1000), "its port has not opened the other direction");
            flows.open_at(flow, 900 + idle);
            assert!(flows.is_open_at(flow, 900 + 2 * idle), "each frame opens it anew");
        }
        let fragments = Flow { vlan: 0, protocol: 0, from: (flow(1).from.0, 0), to: (flow(1).to.0, 0) };
        assert!(flows.is_open_at(fragments, 1000), "later fragments of its datagrams");
    }

    /// A thousand flows at once are all open; a million leave the table as it was, with the latest ones.
    #[test]
    fn the_table_is_bounded_and_the_oldest_flows_leave_first() {
        let flows = Flows::default();
        (0..1000).for_each(|n| flows.open_at(flow(n), 10));
        assert!((0..1000).all(|n| flows.is_open_at(flow(n), 10)));
        (0..200_000).for_each(|n| flows.open_at(flow(n), 11 + n / 1000));
        let entries: usize = flows.levels.iter().filter_map(OnceLock::get).map(|buckets| buckets.len() * WAYS).sum();
        assert_eq!(entries, MOST);
        let open = |range: std::ops::Range<u32>| range.filter(|&n| flows.is_open_at(flow(n), 300)).count();
        assert!(open(199_000..200_000) > 990 && open(0..100_000) < 100);
    }

    #[test]
    fn the_flows_of_a_snapshot_go_on_and_no_others_do() {
        let (before, after) = (Flows::default(), Flows::default());
        let now = second();
        (0..500).for_each(|n| before.open_at(flow(n), now));
        after.restore(&before.saved());
        assert!((0..500).all(|n| after.is_open(flow(n)) && !after.is_open(flow(n).reversed())));
        assert!((500..9000).all(|n| !after.is_open(flow(n))));
        before.open(flow(700));
        assert!(!after.is_open(flow(700)), "each has its own history from then on");
    }

    #[test]
    fn a_port_with_few_flows_has_a_small_table() {
        let flows = Flows::default();
        (0..4).for_each(|n| flows.open_at(flow(n), 10));
        assert!(flows.levels[1].get().is_none());
    }
}
