//! Recent events, in a bounded ring that any number of readers follow, and the limit on how many one cause may add.
//!
//! A reader that is slower than the events loses the oldest, and is told how many; it never holds up whoever adds one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

/// An event and where it stands among all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<T> {
    /// Its number: the first event has 0, and each the next.
    pub sequence: u64,
    /// When it was added.
    pub time: SystemTime,
    /// What happened.
    pub event: T,
}

/// What a reader gets at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// Events that were overwritten before this reader came to them.
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
    /// Number of the next event, for those that wait for it.
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
        // Under the lock, so that the number never falls.
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
            // A number that is still to come is from a ring before this one.
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
    /// With the one of this number; those before it that are gone count as missed.
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

    /// As [`Self::take`], once there is something to take.
    pub async fn wait(&mut self, most: usize) -> Batch<T> {
        let next = self.next;
        // The sender lives in the ring, which this reader holds.
        let _ = self.added.wait_for(|&added| added > next).await;
        self.take(most)
    }
}

/// What is to be done with an event of a cause that may be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is to be told.
    Tell,
    /// It is the first of its span that is not: the limit itself is to be told.
    TellLimit,
    /// It only counts.
    Count,
}

/// Bounds how many events each cause, a port for instance, adds in a span of time.
#[derive(Debug)]
pub struct Limit {
    most: u32,
    span: Duration,
    causes: HashMap<String, Used>,
}

#[derive(Debug)]
struct Used {
    since: Instant,
    told: u32,
    untold: u64,
}

/// Causes that are kept at most; what comes from others shares one limit.
const MOST_CAUSES: usize = 4096;
/// The cause of all that are not kept.
const OTHERS: &str = "";

impl Limit {
    /// At most `most` events a cause in each `span`.
    pub fn new(most: u32, span: Duration) -> Self {
        Self { most, span, causes: HashMap::new() }
    }

    /// What is to be done with an event of `cause` at `now`.
    pub fn admit(&mut self, cause: &str, now: Instant) -> Admission {
        let cause = if self.causes.len() < MOST_CAUSES || self.causes.contains_key(cause) { cause } else { OTHERS };
        let used = match self.causes.get_mut(cause) {
            Some(used) => used,
            None => self.causes.entry(cause.into()).or_insert(Used { since: now, told: 0, untold: 0 }),
        };
        if used.told < self.most {
            used.told += 1;
            return Admission::Tell;
        }
        used.untold += 1;
        if used.untold == 1 { Admission::TellLimit } else { Admission::Count }
    }

    /// Forgets all spans that are over at `now`; returns how many events of each cause were not told in them.
    pub fn end_spans(&mut self, now: Instant) -> Vec<(String, u64)> {
        let over = |used: &Used| now.saturating_duration_since(used.since) >= self.span;
        let ended = self.causes.extract_if(|_, used| over(used));
        ended.filter(|(_, used)| used.untold > 0).map(|(cause, used)| (cause, used.untold)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(events(&reader.wait(9).await), [7]);
        assert_eq!(adds.await.unwrap(), 0);
        (0..9).for_each(|n| drop(ring.add(n)));
        assert_eq!(reader.wait(1).await.missed, 5);
        assert_eq!(events(&reader.wait(9).await), [6, 7, 8]);
        let more = tokio::time::timeout(Duration::from_millis(10), reader.wait(9)).await;
        assert!(more.is_err(), "there is nothing to take");
    }

    #[test]
    fn a_cause_is_told_so_often_and_the_rest_is_a_count() {
        let (start, span) = (Instant::now(), Duration::from_secs(60));
        let mut limit = Limit::new(2, span);
        let mut admit = |cause: &str| limit.admit(cause, start);
        assert_eq!([admit("a"), admit("a"), admit("a"), admit("a")].map(|admitted| admitted), {
            [Admission::Tell, Admission::Tell, Admission::TellLimit, Admission::Count]
        });
        assert_eq!(admit("b"), Admission::Tell, "others have a limit of their own");
        assert_eq!(limit.end_spans(start + span / 2), []);
        assert_eq!(limit.end_spans(start + span), [("a".to_owned(), 2)]);
        assert_eq!(limit.admit("a", start + span), Admission::Tell);
    }

    #[test]
    fn causes_are_bounded() {
        let now = Instant::now();
        let mut limit = Limit::new(1, Duration::from_secs(60));
        for n in 0..10_000 {
            limit.admit(&n.to_string(), now);
        }
        assert_eq!(limit.causes.len(), MOST_CAUSES + 1);
        let untold: u64 = limit.end_spans(now + Duration::from_secs(60)).iter().map(|(_, untold)| untold).sum();
        assert_eq!(untold, 10_000 - MOST_CAUSES as u64 - 1);
    }
}
