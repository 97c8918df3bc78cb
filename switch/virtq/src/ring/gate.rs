//! The gate before a port's calls: what they may take of the time of whoever makes them.
//!
//! - **A call that blocks** holds its thread up until the watchdog ends it, and with it other guests. Its port is put in quarantine for that, but
//!   it has more rings, and may come back. So the gate is the port's, whoever connects to it: it **shuts** when a call blocked, each time
//!   twice as long, and calls are **kept** until it opens.
//! - **A call that is dear** works long for whatever a front end has registered with its descriptor (epoll instances, each of which the write
//!   looks after). The port **owes** for that, many times the time that it took; the debt passes with time, and while it is large, calls are
//!   kept. One dear call now and then is forgiven: interrupts, too, may be counted as the caller's own time.
//!
//! What lasted long may have been interrupted by somebody else, which the caller's own CPU time tells (as far as the kernel takes off what
//! interrupts and the hypervisor took). To read that costs as much as a call, so it is read only for a while after a call that lasted long: the
//! port is **suspected** for so long that what is not read is as small a part of the time as what a port may owe for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Cycles, cycles, in_cycles, thread_time};

/// How long calls wait after the first that blocked.
const FIRST: Duration = Duration::from_secs(5);
/// How often that is doubled at most: to a good quarter of an hour.
const DOUBLINGS: u32 = 8;
/// After so long without one that blocked, the next is the first again.
const FORGIVEN: Duration = Duration::from_secs(3600);
/// A call that takes longer is dear. To wake a thread takes a few microseconds, of a CPU far away that sleeps up to 70.
const DEAR: Duration = Duration::from_micros(200);
/// What is owed for a dear call, in lengths of it: so dear calls are a sixteenth of the time.
const OWED: u64 = 16;
/// What a port may owe before its calls are kept.
const CREDIT: Duration = Duration::from_millis(100);
/// No call counts for longer: a machine may have stood still meanwhile.
const LONGEST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Gate {
    /// When it opens; zero if it never was shut.
    opens_at: AtomicU64,
    /// Calls that blocked, not counting those that did while it was shut.
    blocked: AtomicU32,
    /// Until when calls are kept for dear ones: then no more than [`CREDIT`] is owed.
    kept_until: AtomicU64,
    /// Until when the own time of calls is read.
    suspected_until: AtomicU64,
    /// [`DEAR`] in cycles.
    dear: Cycles,
}

impl Default for Gate {
    fn default() -> Self {
        let [opens_at, kept_until, suspected_until] = [const { AtomicU64::new(0) }; 3];
        Self { opens_at, blocked: AtomicU32::new(0), kept_until, suspected_until, dear: in_cycles(DEAR) }
    }
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
        let opens_at = self.opens_at.load(Ordering::Relaxed).max(self.kept_until.load(Ordering::Relaxed));
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
        if lasted > self.dear {
            self.lasted_long(now, lasted, begun.own);
        }
    }

    #[cold]
    fn lasted_long(&self, now: Cycles, lasted: Cycles, own_before: Option<Cycles>) {
        let (longest, credit) = (in_cycles(LONGEST), in_cycles(CREDIT));
        let suspected_until = now.saturating_add(lasted.min(longest) * OWED);
        self.suspected_until.fetch_max(suspected_until, Ordering::Relaxed);
        let own = own_before.map_or(0, |before| thread_time().saturating_sub(before));
        if own > self.dear {
            // Two workers at once may forget what one of them adds: the next dear call owes again.
            let paid_at = self.kept_until.load(Ordering::Relaxed).saturating_add(credit).max(now);
            let paid_at = paid_at.saturating_add(own.min(longest) * OWED);
            self.kept_until.store(paid_at.saturating_sub(credit), Ordering::Relaxed);
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

    /// When the last of what is owed has passed.
    fn paid_at(gate: &Gate) -> Cycles {
        gate.kept_until.load(Ordering::Relaxed) + in_cycles(CREDIT)
    }

    /// Works for `span` of the thread's own time.
    fn burn(span: Duration) {
        let begun = thread_time();
        while thread_time() - begun < in_cycles(span) {}
    }

    #[test]
    fn the_calls_of_who_makes_them_dear_wait() {
        let (gate, span) = (Gate::default(), Duration::from_millis(10));
        call(&gate, || ());
        assert!(gate.begin().own.is_none(), "calls that are short are not looked into");
        gate.suspected_until.store(Cycles::MAX, Ordering::Relaxed);
        let begun = cycles();
        call(&gate, || burn(span));
        let paid = paid_at(&gate);
        assert!(paid >= begun + in_cycles(span) * (OWED + 1));
        assert!(gate.is_shut(|| begun) && !gate.is_shut(|| paid - in_cycles(CREDIT)));
        assert_eq!(gate.blocked.load(Ordering::Relaxed), 0);
        call(&gate, || burn(span));
        assert!(paid_at(&gate) >= paid + in_cycles(span) * OWED, "debts add up");
    }

    #[test]
    fn a_call_that_was_dear_once_is_forgiven() {
        let gate = Gate::default();
        gate.suspected_until.store(Cycles::MAX, Ordering::Relaxed);
        call(&gate, || burn(Duration::from_millis(2)));
        assert!(gate.kept_until.load(Ordering::Relaxed) > 0 && !gate.is_shut(cycles));
    }

    #[test]
    fn a_call_that_lasts_long_is_suspected_and_one_that_was_interrupted_keeps_none_back() {
        let gate = Gate::default();
        call(&gate, || std::thread::sleep(Duration::from_millis(50)));
        let suspected_until = gate.suspected_until.load(Ordering::Relaxed);
        assert!(suspected_until > in_cycles(Duration::from_millis(50)) * OWED);
        for _ in 0..2 {
            gate.suspected_until.store(Cycles::MAX, Ordering::Relaxed);
            call(&gate, || std::thread::sleep(Duration::from_millis(5)));
        }
        assert!(!gate.is_shut(cycles));
    }
}
