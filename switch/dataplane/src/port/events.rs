//! Log lines about a port, with a rate limit, because its guest and front end cause them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::{Limit, Limiter};
use crate::time::cycles;

/// Rate limit of one kind of log lines about a port. Lines that are left out are counted.
#[derive(Debug)]
pub struct EventLog {
    rate: Limiter,
    left_out: AtomicU64,
}

impl EventLog {
    /// A log of `lines` a second, after a burst of ten seconds' worth, and of at least 32.
    pub fn new(lines: u64) -> Self {
        let rate = Limiter::default();
        rate.set(&Limit { packets: Some(lines), burst_ms: Some(10_000), ..Limit::default() });
        Self { rate, left_out: AtomicU64::new(0) }
    }

    /// Whether one more line may be written now: if so, with the number of lines that were left out since the last.
    pub fn admit(&self) -> Option<u64> {
        let now = cycles();
        if !self.rate.is_open(now) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.rate.charge(0, 1, now);
        Some(self.left_out.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
