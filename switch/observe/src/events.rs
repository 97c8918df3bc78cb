//! Recent events, in a bounded ring that any number of readers follow.
//!
//! A slow reader loses the oldest events, and learns their number; it never blocks the threads that add events. An owner has a quota of
//! the ring: beyond it, its next event evicts its own oldest, not those of others.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

/// Largest number of an event of another ring: no ring reaches it by counting.
const FURTHEST: u64 = u64::MAX / 2;

/// An event and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// Number of the event: the first event has 0, and each the next.
    pub sequence: u64,
    /// When it was added.
    pub time: SystemTime,
    /// The event itself.
    pub event: T,
}

/// Events that a reader gets at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Events before and between these records that were evicted before this reader reached them.
    pub missed: u64,
    /// The next ones, oldest first.
    pub records: Vec<Arc<Record<T>>>,
}

/// An event that may have an owner.
pub trait Owned {
    /// Name of the owner: the event counts against its quota; none for an event that only the capacity of the ring limits.
    fn owner(&self) -> Option<&str>;
}

#[derive(Debug)]
struct Kept<T> {
    /// By their numbers; the last one that was added is always here.
    records: BTreeMap<u64, Arc<Record<T>>>,
    /// Numbers of the records of each owner, oldest first. Owners without a record are not in it.
    owned: HashMap<String, VecDeque<u64>>,
    /// Number of the next event.
    next: u64,
}

impl<T: Owned> Kept<T> {
    fn insert(&mut self, record: Arc<Record<T>>) {
        if let Some(owner) = record.event.owner() {
            match self.owned.get_mut(owner) {
                Some(numbers) => numbers.push_back(record.sequence),
                None => drop(self.owned.insert(owner.to_owned(), VecDeque::from([record.sequence]))),
            }
        }
        self.records.insert(record.sequence, record);
    }

    /// Evicts the oldest record of all, which is the oldest of its owner too.
    fn evict_oldest(&mut self) {
        let Some((_, record)) = self.records.pop_first() else { return };
        let Some(owner) = record.event.owner() else { return };
        let Some(numbers) = self.owned.get_mut(owner) else { return };
        numbers.pop_front();
        if numbers.is_empty() {
            self.owned.remove(owner);
        }
    }

    /// Evicts the oldest record of `owner` if the owner has `quota` records; returns whether it did.
    fn evict_beyond(&mut self, quota: usize, owner: &str) -> bool {
        let numbers = self.owned.get_mut(owner).filter(|numbers| numbers.len() >= quota);
        let evicted = numbers.and_then(VecDeque::pop_front).and_then(|sequence| self.records.remove(&sequence));
        evicted.is_some()
    }

    fn oldest(&self) -> u64 {
        self.records.first_key_value().map_or(self.next, |(&sequence, _)| sequence)
    }
}

/// The last events.
#[derive(Debug)]
pub struct Ring<T> {
    kept: Mutex<Kept<T>>,
    capacity: usize,
    /// Most events of an owner.
    quota: usize,
    /// Number of the next event, for readers that wait for it.
    next: watch::Sender<u64>,
}

impl<T: Owned> Ring<T> {
    /// A ring that keeps the last `capacity` events, at least 1, and of each owner the last `quota`, at least 1.
    pub fn new(capacity: usize, quota: usize) -> Self {
        let kept = Kept { records: BTreeMap::new(), owned: HashMap::new(), next: 0 };
        Self { kept: Mutex::new(kept), capacity: capacity.max(1), quota: quota.max(1), next: watch::Sender::new(0) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept<T>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event; returns it with its number.
    pub fn add(&self, event: T) -> Arc<Record<T>> {
        let mut kept = self.kept();
        let record = Arc::new(Record { sequence: kept.next, time: SystemTime::now(), event });
        self.keep(&mut kept, Arc::clone(&record));
        kept.next += 1;
        // Under the lock, so that the number never decreases.
        self.next.send_replace(kept.next);
        record
    }

    /// The events that are kept, from number `from` on, and the number of the next event.
    pub fn kept_from(&self, from: u64) -> (Vec<Arc<Record<T>>>, u64) {
        let kept = self.kept();
        (kept.records.range(from..).map(|(_, record)| Arc::clone(record)).collect(), kept.next)
    }

    /// Has the events of another ring, in ascending order, in place of its own; the next event gets the number `next`, or one that is
    /// larger than all of theirs.
    pub fn load(&self, records: impl IntoIterator<Item = Record<T>>, next: u64) {
        let mut kept = self.kept();
        *kept = Kept { records: BTreeMap::new(), owned: HashMap::new(), next: 0 };
        for record in records {
            if record.sequence < kept.next || record.sequence >= FURTHEST {
                continue;
            }
            kept.next = record.sequence + 1;
            self.keep(&mut kept, Arc::new(record));
        }
        kept.next = kept.next.max(next.min(FURTHEST));
        self.next.send_replace(kept.next);
    }

    /// Adds a record to those that are kept, within the limits.
    fn keep(&self, kept: &mut Kept<T>, record: Arc<Record<T>>) {
        let is_room_made = record.event.owner().is_some_and(|owner| kept.evict_beyond(self.quota, owner));
        if !is_room_made && kept.records.len() == self.capacity {
            kept.evict_oldest();
        }
        kept.insert(record);
    }

    /// A reader that begins with event `from`, or with the oldest that is kept.
    pub fn reader(self: &Arc<Self>, from: From) -> Reader<T> {
        let kept = self.kept();
        let oldest = kept.oldest();
        let next = match from {
            From::Oldest => oldest,
            From::Now => kept.next,
            // A number that is not reached yet is of an earlier ring.
            From::Sequence(sequence) if sequence > kept.next => oldest,
            From::Sequence(sequence) => sequence,
        };
        drop(kept);
        Reader { ring: Arc::clone(self), next, added: self.next.subscribe() }
    }
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// With the oldest event that is kept.
    Oldest,
    /// With the next one that is added.
    Now,
    /// With the event of this number; evicted ones from it on count as missed.
    Sequence(u64),
}

/// Follows the events of a [`Ring`].
#[derive(Debug)]
pub struct Reader<T> {
    ring: Arc<Ring<T>>,
    next: u64,
    added: watch::Receiver<u64>,
}

impl<T: Owned> Reader<T> {
    /// Takes at most `most` events, without waiting.
    pub fn take(&mut self, most: usize) -> Batch<T> {
        let kept = self.ring.kept();
        let records: Vec<_> = kept.records.range(self.next..).take(most).map(|(_, record)| Arc::clone(record)).collect();
        let Some(last) = records.last() else { return Batch { missed: 0, records } };
        let after = last.sequence + 1;
        let missed = after - self.next - records.len() as u64;
        self.next = after;
        Batch { missed, records }
    }

    /// Waits until there is an event to take.
    pub async fn added(&mut self) {
        let next = self.next;
        // Cannot fail: the sender lives in the ring, which this reader holds.
        let _ = self.added.wait_for(|&added| added > next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    impl Owned for u32 {
        /// Numbers of 1000 and more are of an owner.
        fn owner(&self) -> Option<&str> {
            (*self >= 1000).then_some(if *self < 2000 { "a" } else { "b" })
        }
    }

    fn events(batch: &Batch<u32>) -> Vec<u32> {
        batch.records.iter().map(|record| record.event).collect()
    }

    #[test]
    fn another_ring_goes_on_with_the_events_and_their_numbers() {
        let ring = Arc::new(Ring::new(4, 2));
        (0..6).for_each(|n| drop(ring.add(n)));
        let (records, next) = ring.kept_from(3);
        let saved = || records.iter().map(|record| Record::clone(record));
        let other = Arc::new(Ring::new(4, 2));
        (90..93).for_each(|n| drop(other.add(n)));
        let mut reader = other.reader(From::Sequence(3));
        other.load(saved(), next);
        assert_eq!((events(&reader.take(9)), other.add(7).sequence), (vec![3, 4, 5], 6));
        // Within the limits of that ring, and in order.
        let owned = (0..9).map(|n| Record { sequence: n / 2, time: SystemTime::now(), event: 1000 + n as u32 });
        other.load(owned, 2);
        let (records, next) = other.kept_from(0);
        assert_eq!((records.iter().map(|record| record.sequence).collect::<Vec<_>>(), next), (vec![3, 4], 5));
        other.load([], u64::MAX);
        assert_eq!(other.kept_from(0), (vec![], FURTHEST));
    }

    #[test]
    fn a_reader_gets_all_in_order_and_hears_what_it_missed() {
        let ring = Arc::new(Ring::new(4, 4));
        let mut reader = ring.reader(From::Now);
        (0..3).for_each(|n| drop(ring.add(n)));
        let batch = reader.take(2);
        assert_eq!((batch.missed, events(&batch)), (0, vec![0, 1]));
        (3..10).for_each(|n| drop(ring.add(n)));
        let batch = reader.take(100);
        assert_eq!((batch.missed, events(&batch)), (4, vec![6, 7, 8, 9]));
        assert_eq!(batch.records[0].sequence, 6);
        assert_eq!(reader.take(1), Batch { missed: 0, records: Vec::new() });
    }

    #[test]
    fn readers_begin_where_they_ask() {
        let ring = Arc::new(Ring::new(2, 2));
        (0..5).for_each(|n| drop(ring.add(n)));
        assert_eq!(events(&ring.reader(From::Oldest).take(9)), [3, 4]);
        assert_eq!(ring.reader(From::Sequence(1)).take(9).missed, 2);
        assert_eq!(events(&ring.reader(From::Sequence(4)).take(9)), [4]);
        assert_eq!(events(&ring.reader(From::Sequence(77)).take(9)), [3, 4], "of an earlier network");
        assert_eq!(events(&ring.reader(From::Now).take(9)), [0; 0]);
    }

    #[test]
    fn events_of_an_owner_evict_its_own_only() {
        let ring = Arc::new(Ring::new(8, 3));
        let mut reader = ring.reader(From::Now);
        [1, 2000, 2].into_iter().for_each(|n| drop(ring.add(n)));
        (1000..1500).for_each(|n| drop(ring.add(n)));
        let batch = ring.reader(From::Oldest).take(9);
        assert_eq!((batch.missed, events(&batch)), (497, vec![1, 2000, 2, 1497, 1498, 1499]));
        // Gaps count as missed when the reader gets past them.
        assert_eq!((reader.take(3).missed, reader.take(1).missed, reader.take(9).missed), (0, 497, 0));
        drop(ring.add(1500));
        assert_eq!((reader.take(9).missed, reader.take(9).missed), (0, 0));
    }

    #[test]
    fn owners_without_events_are_forgotten() {
        let ring = Arc::new(Ring::new(4, 3));
        [1000, 1001, 2000].into_iter().for_each(|n| drop(ring.add(n)));
        (0..2).for_each(|n| drop(ring.add(n)));
        assert_eq!(events(&ring.reader(From::Oldest).take(9)), [1001, 2000, 0, 1]);
        assert_eq!(ring.kept().owned.len(), 2);
        (2..6).for_each(|n| drop(ring.add(n)));
        let of_no_owner = ring.kept();
        assert_eq!((of_no_owner.owned.len(), of_no_owner.records.len()), (0, 4));
        drop(of_no_owner);
        // The capacity counts for owners too.
        (2000..2003).for_each(|n| drop(ring.add(n)));
        (1000..1003).for_each(|n| drop(ring.add(n)));
        assert_eq!(events(&ring.reader(From::Oldest).take(9)), [2002, 1000, 1001, 1002]);
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_and_one_that_lags_does_not_wait() {
        let ring = Arc::new(Ring::new(4, 4));
        let mut reader = ring.reader(From::Oldest);
        let other = Arc::clone(&ring);
        let adds = tokio::spawn(async move { other.add(7).sequence });
        reader.added().await;
        assert_eq!(events(&reader.take(9)), [7]);
        assert_eq!(adds.await.unwrap(), 0);
        (0..9).for_each(|n| drop(ring.add(n)));
        reader.added().await;
        assert_eq!(reader.take(1).missed, 5);
        assert_eq!(events(&reader.take(9)), [6, 7, 8]);
        let more = tokio::time::timeout(Duration::from_millis(10), reader.added()).await;
        assert!(more.is_err(), "there is nothing to take");
    }
}
