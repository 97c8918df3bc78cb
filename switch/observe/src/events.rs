//! Recent events, in a bounded ring that any number of readers follow.
//!
//! A slow reader loses the oldest events, and learns their number; it never blocks the threads that add events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

/// An event and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// Its number: the first event has 0, and each the next.
    pub sequence: u64,
    /// When it was added.
    pub time: SystemTime,
    /// The event itself.
    pub event: T,
}

/// Events that a reader gets at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Events that were overwritten before this reader reached them.
    pub missed: u64,
    /// The next ones, oldest first.
    pub records: Vec<Arc<Record<T>>>,
}

#[derive(Debug)]
struct Kept<T> {
    records: VecDeque<Arc<Record<T>>>,
    /// Number of the next event.
    next: u64,
}

/// The last events.
#[derive(Debug)]
pub struct Ring<T> {
    kept: Mutex<Kept<T>>,
    capacity: usize,
    /// Number of the next event, for readers that wait for it.
    next: watch::Sender<u64>,
}

impl<T> Ring<T> {
    /// A ring that keeps the last `capacity` events, at least 1.
    pub fn new(capacity: usize) -> Self {
        let kept = Kept { records: VecDeque::new(), next: 0 };
        Self { kept: Mutex::new(kept), capacity: capacity.max(1), next: watch::Sender::new(0) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept<T>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event; returns it with its number.
    pub fn add(&self, event: T) -> Arc<Record<T>> {
        let mut kept = self.kept();
        let record = Arc::new(Record { sequence: kept.next, time: SystemTime::now(), event });
        if kept.records.len() == self.capacity {
            kept.records.pop_front();
        }
        kept.records.push_back(Arc::clone(&record));
        kept.next += 1;
        // Under the lock, so that the number never decreases.
        self.next.send_replace(kept.next);
        record
    }

    /// A reader that begins with event `from`, or with the oldest that is kept.
    pub fn reader(self: &Arc<Self>, from: From) -> Reader<T> {
        let kept = self.kept();
        let oldest = kept.next - kept.records.len() as u64;
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
    /// With the event of this number; overwritten ones before it count as missed.
    Sequence(u64),
}

/// Follows the events of a [`Ring`].
#[derive(Debug)]
pub struct Reader<T> {
    ring: Arc<Ring<T>>,
    next: u64,
    added: watch::Receiver<u64>,
}

impl<T> Reader<T> {
    /// Takes at most `most` events, without waiting.
    pub fn take(&mut self, most: usize) -> Batch<T> {
        let kept = self.ring.kept();
        let oldest = kept.next - kept.records.len() as u64;
        let missed = oldest.saturating_sub(self.next);
        let skip = (self.next.max(oldest) - oldest) as usize;
        let records: Vec<_> = kept.records.iter().skip(skip).take(most).map(Arc::clone).collect();
        self.next = self.next.max(oldest) + records.len() as u64;
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

    fn events(batch: &Batch<u32>) -> Vec<u32> {
        batch.records.iter().map(|record| record.event).collect()
    }

    #[test]
    fn a_reader_gets_all_in_order_and_hears_what_it_missed() {
        let ring = Arc::new(Ring::new(4));
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
        let ring = Arc::new(Ring::new(2));
        (0..5).for_each(|n| drop(ring.add(n)));
        assert_eq!(events(&ring.reader(From::Oldest).take(9)), [3, 4]);
        assert_eq!(ring.reader(From::Sequence(1)).take(9).missed, 2);
        assert_eq!(events(&ring.reader(From::Sequence(4)).take(9)), [4]);
        assert_eq!(events(&ring.reader(From::Sequence(77)).take(9)), [3, 4], "of an earlier network");
        assert_eq!(events(&ring.reader(From::Now).take(9)), [0; 0]);
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_and_one_that_lags_does_not_wait() {
        let ring = Arc::new(Ring::new(4));
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
