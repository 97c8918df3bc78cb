//! The gate before a port's calls: what they may take of the time of whoever makes them.
//!
//! - **A call that blocks** holds its thread up until the watchdog ends it, and with it other guests. Its port is put in quarantine for that, but
//!   it has more rings, and may come back. So the gate is the port's, whoever connects to it: it **shuts** when a call blocked, each time
//!   twice as long, and calls are **kept** until it opens.
//! - **A call that is dear** works long for whatever a front end has registered with its descriptor (epoll instances, each of which the write
//!   looks after). Calls are kept after it until it was no more than a small part of the time. What lasted long may also have been
//!   interrupted by somebody else, which the caller's own CPU time tells. To read that costs as much as a call, so it is read only for a while
//!   after a call that lasted long: the port is **suspected** for so long that what is not read is such a small part, too.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Cycles, cycles, in_cycles, thread_time};

/// How long calls wait after the first that blocked.
const FIRST: Duration = Duration::from_secs(5);
/// How often that is doubled at most: to a good quarter of an hour.
const DOUBLINGS: u32 = 8;
/// After so long without one that blocked, the next is the first again.
const FORGIVEN: Duration = Duration::from_secs(3600);
/// A call that takes longer is dear. A hundred times what one takes that wakes a thread.
const DEAR: Duration = Duration::from_micros(200);
/// The time between two dear calls of a port, in lengths of the first.
const APART: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Gate {
    /// When it opens; zero if it never was shut.
    opens_at: AtomicU64,
    /// Calls that blocked, not counting those that did while it was shut.
    blocked: AtomicU32,
    /// Until when calls are kept for one that was dear.
    paid_at: AtomicU64,
    /// Until when the own time of calls is read.
    suspected_until: AtomicU64,
}

/// A call that was begun.
#[derive(Debug)]
pub(super) struct Begun {
    at: Cycles,
    /// The thread's own time then, if it is read.
    own: Option<Cycles>,
}

impl Gate {
    /// True while calls are to be kept. The moment is asked for only where a call ever blocked or was dear.
    #[inline]
    pub(super) fn is_shut(&self, now: impl FnOnce() -> Cycles) -> bool {
        let opens_at = self.opens_at.load(Ordering::Relaxed).max(self.paid_at.load(Ordering::Relaxed));
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

    /// A call begins.
    #[inline]
    pub(super) fn begin(&self) -> Begun {
        let at = cycles();
        let suspected = at < self.suspected_until.load(Ordering::Relaxed);
        Begun { at, own: suspected.then(thread_time) }
    }

    /// The call ends that had `begun`.
    #[inline]
    pub(super) fn end(&self, begun: &Begun) {
        let now = cycles();
        let lasted = now.saturating_sub(begun.at);
        if lasted > in_cycles(DEAR) {
            self.lasted_long(now, lasted, begun.own);
        }
    }

    #[cold]
    fn lasted_long(&self, now: Cycles, lasted: Cycles, own_before: Option<Cycles>) {
        let after = |span: Cycles| now.saturating_add(span.saturating_mul(APART));
        self.suspected_until.fetch_max(after(lasted), Ordering::Relaxed);
        let own = own_before.map_or(0, |before| thread_time().saturating_sub(before));
        if own > in_cycles(DEAR) {
            self.paid_at.fetch_max(after(own), Ordering::Relaxed);
        }
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

    /// A call that does `what`.
    fn call(gate: &Gate, what: impl FnOnce()) {
        let begun = gate.begin();
        what();
        gate.end(&begun);
    }

    fn burn() {
        let begun = thread_time();
        while thread_time() - begun < in_cycles(Duration::from_millis(5)) {}
    }

    #[test]
    fn the_calls_of_who_makes_them_dear_wait() {
        let gate = Gate::default();
        call(&gate, || ());
        assert!(gate.begin().own.is_none(), "calls that are short are not looked into");
        call(&gate, burn);
        assert!(!gate.is_shut(cycles), "who knows whose time that was");
        call(&gate, burn);
        let (own, until) = (in_cycles(Duration::from_millis(5)), gate.paid_at.load(Ordering::Relaxed));
        assert!(gate.is_shut(cycles) && !gate.is_shut(|| until));
        assert!(until - cycles() > own * (APART - 4), "{until}");
        assert_eq!(gate.blocked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_was_interrupted_in_its_calls_does_not_wait() {
        let gate = Gate::default();
        for _ in 0..4 {
            call(&gate, || std::thread::sleep(Duration::from_millis(5)));
            assert!(gate.begin().own.is_some() && !gate.is_shut(cycles));
        }
    }
}
