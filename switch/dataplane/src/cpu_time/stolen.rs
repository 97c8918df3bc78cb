//! Stolen time: time in which another task had the CPU while a service quantum lasted. A long service quantum is charged by the
//! thread's own CPU time: page faults and long copies are caused by the guest, preemption is not.

use crate::time::{Cycles, cycles, in_cycles, thread_time};
use crate::tuning::SCARCE_AFTER;

/// Last readings of the cycle counter and of the thread's CPU clock.
#[derive(Debug)]
pub(super) struct Stolen {
    at: Cycles,
    /// The thread's own CPU time then.
    own: Cycles,
    memory: Cycles,
}

impl Stolen {
    /// For the calling thread, or another one that begins later.
    pub(super) fn new() -> Self {
        Self { at: 0, own: 0, memory: in_cycles(SCARCE_AFTER) }
    }

    /// A poll iteration begins in moment `now`: reads the clocks if the last time is long ago.
    #[inline]
    pub(super) fn begin_iteration(&mut self, now: Cycles) {
        if now.saturating_sub(self.at) > self.memory {
            (self.at, self.own) = (now, thread_time());
        }
    }

    /// The worker slept for so long by itself.
    pub(super) fn slept(&mut self, span: Cycles) {
        self.at = self.at.saturating_add(span);
    }

    /// The part of the last `span` for which the thread had the CPU, or more.
    #[cold]
    pub(super) fn own_part(&mut self, span: Cycles) -> Cycles {
        let (now, own) = (cycles(), thread_time());
        let stolen = now.saturating_sub(self.at).saturating_sub(own.saturating_sub(self.own));
        (self.at, self.own) = (now, own);
        span.saturating_sub(stolen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A service quantum that runs `what`: its length, and the thread's own part of it.
    fn turn(what: impl FnOnce()) -> (Cycles, Cycles) {
        let mut stolen = Stolen::new();
        let begun = cycles();
        stolen.begin_iteration(begun);
        what();
        let span = cycles() - begun;
        (span, stolen.own_part(span))
    }

    #[test]
    fn what_a_turn_did_itself_is_its_own_and_what_others_did_is_not() {
        let span = in_cycles(Duration::from_millis(20));
        let burn = || {
            let begun = thread_time();
            while thread_time() - begun < span {}
        };
        let (_, own) = turn(burn);
        assert!(own >= span / 10 * 9, "{own} of {span}");
        let (slept, own) = turn(|| std::thread::sleep(Duration::from_millis(20)));
        assert!(own < slept / 4, "{own} of {slept}");
    }

    #[test]
    fn sleep_of_its_own_accord_is_not_taken_for_stolen_time() {
        let mut stolen = Stolen::new();
        stolen.begin_iteration(cycles());
        let begun = cycles();
        std::thread::sleep(Duration::from_millis(20));
        stolen.slept(cycles() - begun);
        let begun = thread_time();
        let span = in_cycles(Duration::from_millis(10));
        while thread_time() - begun < span {}
        let worked = thread_time() - begun;
        let (at, own) = (stolen.at, stolen.own);
        let span = cycles() - at;
        let part = stolen.own_part(span);
        assert!(part.abs_diff(stolen.own - own) < span / 4 && part >= worked / 10 * 9, "{part} of {span}, {worked}");
    }
}
