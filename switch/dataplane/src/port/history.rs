//! Recent growth of a port's counters: the growth in the last minute, and the moment of the last growth.
//!
//! Workers count in their poll iterations, and do no more. The growth is found by comparing counters about once a second, so its moment is known to a second: where it is not
//! exact it is too early, and a cause that has ended is never told as a present one.

#![expect(clippy::indexing_slicing, reason = "one counter for each reason, and a bucket's number modulo theirs")]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::stats::{DropReason, RECENT};
use crate::time::{Cycles, SECOND, duration, in_cycles};

/// A counter with a record of its growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Frames with this drop reason.
    Drop(DropReason),
    /// Times that the transmit rate limit held frames back in the transmit ring.
    TransmitLimited,
    /// Times that the receive rate limit held frames back, as backpressure.
    ReceiveLimited,
    /// Lost kicks.
    MissedKicks,
    /// Front ends that were refused.
    TurnedAway,
}

/// Counters beside those of dropped frames.
const OTHERS: [Counted; 4] = [Counted::TransmitLimited, Counted::ReceiveLimited, Counted::MissedKicks, Counted::TurnedAway];
const COUNTERS: usize = DropReason::ALL.len() + OTHERS.len();

/// Width of a bucket of the recent growth.
const BUCKET: Duration = Duration::from_secs(10);
/// Buckets of the recent growth, and one that is being filled.
const BUCKETS: usize = 7;

/// Growth of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// The counter.
    pub total: u64,
    /// The counter's growth in the last minute.
    pub recent: u64,
    /// Age of its last growth; `None` if that was in an earlier process of the network.
    pub age: Option<Duration>,
}

impl Growth {
    /// Whether it grew in the last minute.
    pub fn is_recent(&self) -> bool {
        self.recent > 0 && self.age.is_some_and(|age| age < RECENT)
    }
}

/// The growth of one counter.
#[derive(Clone, Copy, Debug, Default)]
struct Grown {
    last: Cycles,
    /// Number of a bucket, and the growth in it.
    buckets: [(u64, u64); BUCKETS],
}

/// See the module.
#[derive(Debug)]
pub(super) struct History {
    seen: [u64; COUNTERS],
    looked: Cycles,
    /// By the number of the counter: those that grew.
    grown: BTreeMap<usize, Grown>,
}

impl Counted {
    fn number(self) -> usize {
        let other = |other| OTHERS.iter().position(|&counted| counted == other).unwrap_or(0);
        match self {
            Self::Drop(reason) => reason as usize,
            other_counter => DropReason::ALL.len() + other(other_counter),
        }
    }

    /// All of them, but for those that are recorded as they happen ([`History::add`]).
    fn looked_at() -> impl Iterator<Item = Self> {
        let drops = DropReason::ALL.iter().map(|&reason| Self::Drop(reason));
        drops.chain(OTHERS).filter(|&counted| counted != Self::TurnedAway)
    }
}

impl History {
    /// The history of a port that is new at `now`.
    pub(super) fn new(now: Cycles) -> Self {
        Self { seen: [0; COUNTERS], looked: now, grown: BTreeMap::new() }
    }

    /// Takes the `counts` of an earlier process over (takeover). Their growth is not known.
    pub(super) fn inherit(&mut self, counts: impl Fn(Counted) -> u64) {
        Counted::looked_at().for_each(|counted| self.seen[counted.number()] = counts(counted));
    }

    /// Compares the `counts` with those of the last look. Workers were busy at `busy` for the last time.
    pub(super) fn look(&mut self, now: Cycles, busy: Cycles, counts: impl Fn(Counted) -> u64) {
        let at = self.looked.max(busy.min(now).saturating_sub(in_cycles(SECOND)));
        for counted in Counted::looked_at() {
            let (number, count) = (counted.number(), counts(counted));
            let growth = count.saturating_sub(self.seen[number]);
            self.seen[number] = count;
            if growth > 0 {
                self.grown.entry(number).or_default().add(at, growth);
            }
        }
        self.looked = now;
    }

    /// A counter grew by one at `now`.
    pub(super) fn add(&mut self, counted: Counted, now: Cycles) {
        self.seen[counted.number()] += 1;
        self.grown.entry(counted.number()).or_default().add(now, 1);
    }

    /// The growth of a counter as seen at `now`; `None` if it is zero.
    pub(super) fn growth(&self, counted: Counted, now: Cycles) -> Option<Growth> {
        let total = self.seen[counted.number()];
        let grown = self.grown.get(&counted.number());
        let age = grown.map(|grown| duration(now.saturating_sub(grown.last)));
        (total > 0).then(|| Growth { total, recent: grown.map_or(0, |grown| grown.recent(now)), age })
    }
}

fn bucket(at: Cycles) -> u64 {
    at / in_cycles(BUCKET).max(1)
}

impl Grown {
    fn add(&mut self, at: Cycles, growth: u64) {
        let number = bucket(at);
        let entry = &mut self.buckets[(number % BUCKETS as u64) as usize];
        *entry = if entry.0 == number { (number, entry.1.saturating_add(growth)) } else { (number, growth) };
        self.last = at;
    }

    fn recent(&self, now: Cycles) -> u64 {
        let oldest = bucket(now).saturating_sub(BUCKETS as u64 - 1);
        self.buckets.iter().filter(|(number, _)| *number >= oldest).map(|(_, growth)| growth).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORM: Counted = Counted::Drop(DropReason::Storm);

    fn after(seconds: u64) -> Cycles {
        in_cycles(Duration::from_secs(1000 + seconds))
    }

    fn storms(count: u64) -> impl Fn(Counted) -> u64 {
        move |counted| if counted == STORM { count } else { 0 }
    }

    #[test]
    fn growth_is_recent_for_a_minute_and_then_past() {
        let mut history = History::new(after(0));
        assert_eq!(history.growth(STORM, after(0)), None);
        history.look(after(1), after(1), storms(3));
        history.look(after(30), after(30), storms(5));
        let growth = history.growth(STORM, after(40)).unwrap();
        assert_eq!((growth.total, growth.recent, growth.is_recent()), (5, 5, true));
        let growth = history.growth(STORM, after(75)).unwrap();
        assert_eq!((growth.recent, growth.is_recent()), (2, true));
        let growth = history.growth(STORM, after(91)).unwrap();
        assert!(!growth.is_recent() && growth.total == 5 && growth.age >= Some(RECENT), "{growth:?}");
        assert_eq!(history.growth(STORM, after(5000)).unwrap().recent, 0);
    }

    /// Nothing looks while the network is idle; frames are dropped only while a worker is busy.
    #[test]
    fn growth_before_an_idle_time_is_not_told_as_a_present_one() {
        let mut history = History::new(after(0));
        history.look(after(500), after(3), storms(1));
        let growth = history.growth(STORM, after(500)).unwrap();
        assert!(!growth.is_recent(), "{growth:?}");
        history.look(after(900), after(899), storms(2));
        assert!(history.growth(STORM, after(900)).unwrap().is_recent());
    }

    /// A cause that ends at a moment is not told as a present one a minute after it.
    #[test]
    fn the_moment_of_growth_is_never_too_late() {
        for (dropped, looked) in [(10, 11), (10, 10), (500, 501)] {
            let mut history = History::new(after(0));
            history.look(after(dropped - 1), after(dropped - 1), storms(0));
            history.look(after(looked), after(looked), storms(1));
            assert!(!history.growth(STORM, after(dropped + 60)).unwrap().is_recent());
        }
    }

    #[test]
    fn counts_of_an_earlier_process_are_no_growth() {
        let mut history = History::new(after(0));
        history.inherit(storms(7));
        history.look(after(1), after(1), storms(7));
        assert_eq!(history.growth(STORM, after(1)), Some(Growth { total: 7, recent: 0, age: None }));
        history.add(Counted::TurnedAway, after(2));
        assert!(history.growth(Counted::TurnedAway, after(3)).unwrap().is_recent());
    }

    #[test]
    fn every_counter_has_a_number_of_its_own() {
        let all = DropReason::ALL.iter().map(|&reason| Counted::Drop(reason)).chain(OTHERS);
        assert_eq!(all.map(Counted::number).collect::<Vec<_>>(), (0..COUNTERS).collect::<Vec<_>>());
    }
}
