//! The gate before a port's calls: once one of them has blocked, all of them wait, each time twice as long.
//!
//! A call that blocks holds its thread up until the watchdog ends it, and with it other guests. Its port is put in quarantine for that, but
//! it has more rings, and may come back. So the gate is the port's, whoever connects to it: it **shuts** when a call blocked, and calls are
//! **kept** until it opens.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Cycles, in_cycles};

/// How long calls wait after the first that blocked.
const FIRST: Duration = Duration::from_secs(5);
/// How often that is doubled at most: to a good quarter of an hour.
const DOUBLINGS: u32 = 8;
/// After so long without one that blocked, the next is the first again.
const FORGIVEN: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug, Default)]
pub struct Gate {
    /// When it opens; zero if it never was shut.
    opens_at: AtomicU64,
    /// Calls that blocked, not counting those that did while it was shut.
    blocked: AtomicU32,
}

impl Gate {
    /// True while calls are to be kept. The moment is asked for only where a call ever blocked.
    #[inline]
    pub(super) fn is_shut(&self, now: impl FnOnce() -> Cycles) -> bool {
        let opens_at = self.opens_at.load(Ordering::Relaxed);
        opens_at != 0 && now() < opens_at
    }

    /// A call blocked until moment `now`.
    pub(super) fn shut(&self, now: Cycles) {
        let opened = self.opens_at.load(Ordering::Relaxed);
        if now < opened {
            // Another worker was in a call of the same port.
            return;
        }
        let forgiven = now - opened > in_cycles(FORGIVEN);
        let before = if forgiven { 0 } else { self.blocked.load(Ordering::Relaxed) };
        self.blocked.store(before.saturating_add(1), Ordering::Relaxed);
        self.opens_at.store(now.saturating_add(in_cycles(FIRST) << before.min(DOUBLINGS)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a gate that is shut in moment `now` stays so.
    fn shut_for(gate: &Gate, now: Cycles) -> Cycles {
        gate.shut(now);
        assert!(gate.is_shut(|| now));
        let opens_at = gate.opens_at.load(Ordering::Relaxed);
        assert!(!gate.is_shut(|| opens_at));
        opens_at - now
    }

    #[test]
    fn each_call_that_blocks_keeps_the_rest_twice_as_long() {
        let (gate, first) = (Gate::default(), in_cycles(FIRST));
        assert!(!gate.is_shut(|| unreachable!("nothing ever blocked")));
        let mut now = 1 << 40;
        for doublings in (0..=DOUBLINGS).chain([DOUBLINGS, DOUBLINGS]) {
            let waits = shut_for(&gate, now);
            assert_eq!(waits, first << doublings);
            now += waits + first;
        }
        assert_eq!(shut_for(&gate, now + in_cycles(2 * FORGIVEN)), first, "long forgiven");
    }

    #[test]
    fn calls_that_block_at_the_same_time_count_once() {
        let gate = Gate::default();
        let waits = shut_for(&gate, 1 << 40);
        gate.shut((1 << 40) + 1);
        assert_eq!(shut_for(&gate, (1 << 40) + waits), 2 * waits);
    }
}
