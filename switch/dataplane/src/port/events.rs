//! Log lines about a port, with a rate limit, because its guest and front end cause them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memlane_model::journal::REPEAT_PAUSE;

use crate::policy::{Limit, Limiter};
use crate::time::cycles;

/// Rate limit of one kind of log lines about a port. Lines that are left out are counted.
#[derive(Debug)]
pub(crate) struct EventLog {
    rate: Limiter,
    left_out: AtomicU64,
}

impl EventLog {
    /// A log of `lines` a second, after a burst of ten seconds' worth, and of at least 32.
    pub(crate) fn new(lines: u64) -> Self {
        let rate = Limiter::default();
        rate.set(&Limit { packets: Some(lines), burst_ms: Some(10_000), ..Limit::default() });
        Self { rate, left_out: AtomicU64::new(0) }
    }

    /// Whether one more line may be written now: if so, with the number of lines that were left out since the last.
    pub(crate) fn admit(&self) -> Option<u64> {
        let now = cycles();
        if !self.rate.is_open(now) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.rate.charge(0, 1, now);
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

/// A count of which an event tells now and then.
#[derive(Debug, Default)]
pub(crate) struct ToldCount {
    count: u64,
    at: Option<Instant>,
}

impl ToldCount {
    /// Continues the count of an earlier process, which told of it.
    pub(crate) fn inherit(&mut self, count: u64) {
        self.count += count;
    }

    /// The growth of the count since the last event about it, if one is due at `now`.
    pub(crate) fn news(&mut self, count: u64, now: Instant) -> Option<u64> {
        let is_due = self.at.is_none_or(|at| now.saturating_duration_since(at) >= REPEAT_PAUSE);
        if count == self.count || !is_due {
            return None;
        }
        let before = std::mem::replace(self, Self { count, at: Some(now) }).count;
        Some(count.wrapping_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_told_once_a_minute_and_only_if_it_has_grown() {
        let (mut told, start) = (ToldCount::default(), Instant::now());
        let minutes = |count| start + REPEAT_PAUSE * count;
        assert_eq!(told.news(0, start), None);
        assert_eq!(told.news(5, start), Some(5));
        assert_eq!(told.news(9, start + REPEAT_PAUSE / 2), None);
        assert_eq!(told.news(11, minutes(1)), Some(6));
        assert_eq!(told.news(11, minutes(3)), None);
        assert_eq!(told.news(12, minutes(3)), Some(1));
    }

    #[test]
    fn lines_are_bounded_and_those_left_out_are_counted() {
        let log = EventLog::new(2);
        let admitted: Vec<u64> = (0..100_000).filter_map(|_| log.admit()).collect();
        // More than the burst only if this loop takes long.
        assert!((32..200).contains(&admitted.len()), "{}", admitted.len());
        let left_out = log.left_out.load(Ordering::Relaxed) + admitted.iter().sum::<u64>();
        assert_eq!(left_out as usize, 100_000 - admitted.len());
    }
}
