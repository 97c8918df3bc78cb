//! The interrupt circuit breaker of a port: bounds the time that its interrupts take from the threads that send them.
//!
//! - **An interrupt that blocks** holds its thread up until the watchdog ends the system call, and with it other guests. Its port
//!   is quarantined for that, but it has more rings, and may come back. So the breaker belongs to the port and outlasts front ends:
//!   it **shuts** when an interrupt blocked, each time twice as long, and interrupts are **kept back** until it opens again.
//! - **A slow interrupt** runs long in the kernel because of the listeners that a front end has registered with its eventfd (epoll
//!   instances, each of which the write wakes). The port is **charged** for that, many times the time that it took; the charge
//!   decays with time, and while the port is over budget, interrupts are kept back. A rare slow interrupt is tolerated: hardware
//!   interrupts, too, may be counted as the caller's own time.
//!
//! A long interrupt may have been preempted by another task, which the caller's own CPU time shows (as far as the kernel subtracts
//! hardware interrupts and the hypervisor's time). To read that time costs as much as an interrupt, so it is read only for a while
//! after a long one: the port is **suspected** for so long that the unread part of the time is as small as the budget of a port.
//!
//! The charge is no entry on the port's account of CPU time, because fairness would give it half of the time beside one other port,
//! not an eighth, and throttles only a port's transmit queues. Interrupts of a port that only receives, and those that sessions
//! send, would be bounded by nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{Cycles, cycles, in_cycles, thread_time};

/// How long interrupts are kept back after the first that blocked.
const FIRST: Duration = Duration::from_secs(5);
/// Maximum of doublings of that: to a good quarter of an hour.
const DOUBLINGS: u32 = 8;
/// After so long without one that blocked, the next is the first again.
const FORGIVEN: Duration = Duration::from_secs(3600);
/// A longer interrupt counts as slow. To wake a thread takes a few microseconds, on a distant CPU that sleeps up to 70.
const SLOW: Duration = Duration::from_micros(200);
/// Charge for a slow interrupt, in multiples of its duration: so slow interrupts take a sixteenth of the time.
const CHARGE_FACTOR: u64 = 16;
/// Budget of a port: a larger charge keeps its interrupts back.
const CREDIT: Duration = Duration::from_millis(100);
/// Maximum duration that is charged for one interrupt: a machine may have stood still meanwhile.
const LONGEST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct InterruptBreaker {
    /// When it opens; zero if it was never shut.
    opens_at: AtomicU64,
    /// Interrupts that blocked, without those that did while it was shut.
    blocked: AtomicU32,
    /// Until when interrupts are kept back because of slow ones: then the charge is down to [`CREDIT`].
    kept_until: AtomicU64,
    /// Until when the CPU time of interrupts is read.
    suspected_until: AtomicU64,
    /// [`SLOW`] in cycles.
    slow: Cycles,
}

impl Default for InterruptBreaker {
    fn default() -> Self {
        let [opens_at, kept_until, suspected_until] = [const { AtomicU64::new(0) }; 3];
        Self { opens_at, blocked: AtomicU32::new(0), kept_until, suspected_until, slow: in_cycles(SLOW) }
    }
}

/// An interrupt that was begun.
#[derive(Debug)]
pub(super) struct Begun {
    at: Cycles,
    /// The thread's CPU time then, if it is read.
    own: Option<Cycles>,
}

impl InterruptBreaker {
    /// True while interrupts are to be kept back. The clock is read only if an interrupt ever blocked or was slow.
    #[inline]
    pub(super) fn is_shut(&self, now: impl FnOnce() -> Cycles) -> bool {
        let opens_at = self.opens_at.load(Ordering::Relaxed).max(self.kept_until.load(Ordering::Relaxed));
        opens_at != 0 && now() < opens_at
    }

    /// An interrupt blocked until moment `now`.
    pub(super) fn shut(&self, now: Cycles) {
        let opened = self.opens_at.load(Ordering::Relaxed);
        if now < opened {
            // Another worker was in an interrupt of the same port.
            return;
        }
        let forgiven = now - opened > in_cycles(FORGIVEN);
        let before = if forgiven { 0 } else { self.blocked.load(Ordering::Relaxed) };
        self.blocked.store(before.saturating_add(1), Ordering::Relaxed);
        self.opens_at.store(now.saturating_add(in_cycles(FIRST) << before.min(DOUBLINGS)), Ordering::Relaxed);
    }

    /// An interrupt begins.
    #[inline]
    pub(super) fn begin(&self) -> Begun {
        let at = cycles();
        let suspected = at < self.suspected_until.load(Ordering::Relaxed);
        Begun { at, own: suspected.then(thread_time) }
    }

    /// The interrupt `begun` ends.
    #[inline]
    pub(super) fn end(&self, begun: &Begun) {
        let now = cycles();
        let lasted = now.saturating_sub(begun.at);
        if lasted > self.slow {
            self.lasted_long(now, lasted, begun.own);
        }
    }

    #[cold]
    fn lasted_long(&self, now: Cycles, lasted: Cycles, own_before: Option<Cycles>) {
        let (longest, credit) = (in_cycles(LONGEST), in_cycles(CREDIT));
        let suspected_until = now.saturating_add(lasted.min(longest) * CHARGE_FACTOR);
        self.suspected_until.fetch_max(suspected_until, Ordering::Relaxed);
        let own = own_before.map_or(0, |before| thread_time().saturating_sub(before));
        if own > self.slow {
            // Two workers at once may lose the charge of one of them: the next slow interrupt is charged again.
            let paid_at = self.kept_until.load(Ordering::Relaxed).saturating_add(credit).max(now);
            let paid_at = paid_at.saturating_add(own.min(longest) * CHARGE_FACTOR);
            self.kept_until.store(paid_at.saturating_sub(credit), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a breaker that is shut in moment `now` stays so.
    fn shut_for(breaker: &InterruptBreaker, now: Cycles) -> Cycles {
        breaker.shut(now);
        assert!(breaker.is_shut(|| now));
        let opens_at = breaker.opens_at.load(Ordering::Relaxed);
        assert!(!breaker.is_shut(|| opens_at));
        opens_at - now
    }

    #[test]
    fn each_call_that_blocks_keeps_the_rest_twice_as_long() {
        let (breaker, first) = (InterruptBreaker::default(), in_cycles(FIRST));
        assert!(!breaker.is_shut(|| panic!("nothing ever blocked")));
        let mut now = 1 << 40;
        for doublings in (0..=DOUBLINGS).chain([DOUBLINGS, DOUBLINGS]) {
            let waits = shut_for(&breaker, now);
            assert_eq!(waits, first << doublings);
            now += waits + first;
        }
        assert_eq!(shut_for(&breaker, now + in_cycles(2 * FORGIVEN)), first, "long forgiven");
    }

    #[test]
    fn calls_that_block_at_the_same_time_count_once() {
        let breaker = InterruptBreaker::default();
        let waits = shut_for(&breaker, 1 << 40);
        breaker.shut((1 << 40) + 1);
        assert_eq!(shut_for(&breaker, (1 << 40) + waits), 2 * waits);
    }

    /// An interrupt that runs `what`.
    fn call(breaker: &InterruptBreaker, what: impl FnOnce()) {
        let begun = breaker.begin();
        what();
        breaker.end(&begun);
    }

    /// When the charge has decayed to zero.
    fn paid_at(breaker: &InterruptBreaker) -> Cycles {
        breaker.kept_until.load(Ordering::Relaxed) + in_cycles(CREDIT)
    }

    /// Uses `span` of the thread's own CPU time.
    fn burn(span: Duration) {
        let begun = thread_time();
        while thread_time() - begun < in_cycles(span) {}
    }

    #[test]
    fn the_calls_of_who_makes_them_dear_wait() {
        let (breaker, span) = (InterruptBreaker::default(), Duration::from_millis(10));
        call(&breaker, || ());
        assert!(breaker.begin().own.is_none(), "calls that are short are not looked into");
        breaker.suspected_until.store(Cycles::MAX, Ordering::Relaxed);
        let begun = cycles();
        call(&breaker, || burn(span));
        let paid = paid_at(&breaker);
        assert!(paid >= begun + in_cycles(span) * (CHARGE_FACTOR + 1));
        assert!(breaker.is_shut(|| begun) && !breaker.is_shut(|| paid - in_cycles(CREDIT)));
        assert_eq!(breaker.blocked.load(Ordering::Relaxed), 0);
        call(&breaker, || burn(span));
        assert!(paid_at(&breaker) >= paid + in_cycles(span) * CHARGE_FACTOR, "debts add up");
    }

    #[test]
    fn a_call_that_was_dear_once_is_forgiven() {
        let breaker = InterruptBreaker::default();
        breaker.suspected_until.store(Cycles::MAX, Ordering::Relaxed);
        call(&breaker, || burn(Duration::from_millis(2)));
        assert!(breaker.kept_until.load(Ordering::Relaxed) > 0 && !breaker.is_shut(cycles));
    }

    #[test]
    fn a_call_that_lasts_long_is_suspected_and_one_that_was_interrupted_keeps_none_back() {
        let breaker = InterruptBreaker::default();
        call(&breaker, || std::thread::sleep(Duration::from_millis(50)));
        let suspected_until = breaker.suspected_until.load(Ordering::Relaxed);
        assert!(suspected_until > in_cycles(Duration::from_millis(50)) * CHARGE_FACTOR);
        for _ in 0..2 {
            breaker.suspected_until.store(Cycles::MAX, Ordering::Relaxed);
            call(&breaker, || std::thread::sleep(Duration::from_millis(5)));
        }
        assert!(!breaker.is_shut(cycles));
    }
}
