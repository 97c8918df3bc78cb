//! State that callers and the watchdog share: atomics only, tested with every interleaving by `make loom`.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::time::Cycles;

/// Stopwatch of one thread's interrupts.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    /// When the thread began its present interrupt; zero if it is in none.
    since: AtomicU64,
    /// The thread has sent an interrupt since this was last checked.
    called: AtomicBool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// No interrupt since the last check.
    Nothing,
    /// There were interrupts, or there is one.
    Calls,
    /// An interrupt that takes too long.
    Late,
}

impl Stopwatch {
    /// Records that an interrupt begins in moment `now`. True if the watchdog, which shares `duty`, must be woken to see it.
    pub(super) fn begin(&self, now: Cycles, duty: &Duty) -> bool {
        self.since.store(now | 1, Ordering::Relaxed);
        // Sequentially consistent, so that either the caller sees the watchdog sleep or the watchdog sees the interrupt.
        self.called.swap(true, Ordering::SeqCst);
        duty.must_rouse()
    }

    /// Records that the interrupt ended.
    pub(super) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Checks in moment `now` for an interrupt that takes longer than `most`.
    pub(super) fn look(&self, now: Cycles, most: Cycles) -> Seen {
        let called = self.called.swap(false, Ordering::SeqCst);
        match self.since.load(Ordering::Relaxed) {
            0 if called => Seen::Calls,
            0 => Seen::Nothing,
            since if now.saturating_sub(since) > most => Seen::Late,
            _ => Seen::Calls,
        }
    }
}

/// Whether the watchdog is on duty.
///
/// The watchdog's thread announces that it goes off duty, checks all stopwatches once more, and sleeps if none ran; a thread that begins an interrupt
/// then wakes it.
#[derive(Debug)]
pub(super) struct Duty {
    /// Set while the watchdog sleeps and must be woken by the next interrupt.
    asleep: AtomicBool,
}

impl Duty {
    /// On duty.
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// On duty.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Announces that the watchdog is about to sleep.
    pub(super) fn go_off(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// True until a thread wakes it.
    pub(super) fn is_off(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    fn must_rouse(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two threads send interrupts, one of them for ever; the watchdog goes off duty meanwhile.
    #[test]
    fn no_call_goes_unseen() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let stopwatches = Arc::new([Stopwatch::default(), Stopwatch::default()]);
            let duty = Arc::new(Duty::new());
            let callers = [0, 1].map(|index| {
                let (stopwatches, duty) = (Arc::clone(&stopwatches), Arc::clone(&duty));
                thread::spawn(move || {
                    let roused = stopwatches[index].begin(5, &duty);
                    if index == 0 {
                        stopwatches[index].end();
                    }
                    roused
                })
            });
            let look = || stopwatches.iter().any(|stopwatch| stopwatch.look(5, 10) != Seen::Nothing);
            duty.go_off();
            let sleeps = !look();
            let roused = callers.map(|caller| caller.join().unwrap());
            if sleeps {
                assert!(roused.contains(&true), "it would sleep on a call");
                assert!(!duty.is_off(), "who was roused stays awake");
            }
            // In every case the pending interrupt is seen, and reported late once it is.
            assert_eq!(stopwatches[1].look(20, 10), Seen::Late);
            assert_eq!(stopwatches[0].since.load(Ordering::Relaxed), 0);
        });
    }
}
