//! What callers and the watchdog tell each other: all of it atomics, run under every interleaving by `make loom`.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::time::Cycles;

/// What one thread's calls are timed with.
#[derive(Debug, Default)]
pub struct Stopwatch {
    /// When the thread began the call that it is in; zero if it is in none.
    since: AtomicU64,
    /// It has called since this was last looked at.
    called: AtomicBool,
}

/// What a look at a stopwatch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No call since the last look.
    Nothing,
    /// There were calls, or there is one.
    Calls,
    /// A call that takes too long.
    Late,
}

impl Stopwatch {
    /// Notes that a call begins in moment `now`. True if the watchdog, whose `duty` it is, must be roused to see it.
    pub fn begin(&self, now: Cycles, duty: &Duty) -> bool {
        self.since.store(now | 1, Ordering::Relaxed);
        // Sequentially consistent, so that either we see the watchdog sleep or it sees the call.
        self.called.swap(true, Ordering::SeqCst);
        duty.must_rouse()
    }

    /// Notes that the call ended.
    pub fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Looks in moment `now`, for calls that take longer than `most`.
    pub fn look(&self, now: Cycles, most: Cycles) -> Seen {
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
/// It says that it goes off, looks once more at all stopwatches, and sleeps if it sees nothing; who begins a call then rouses it.
#[derive(Debug)]
pub struct Duty {
    /// Set while the watchdog sleeps and wants to hear of the next call.
    asleep: AtomicBool,
}

impl Duty {
    /// On duty.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// On duty.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Says that the watchdog is about to sleep.
    pub fn go_off(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// True until somebody rouses it.
    pub fn is_off(&self) -> bool {
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

    /// Two threads call, one of them for ever; the watchdog goes off duty meanwhile.
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
            // However that went, what goes on is seen, and told late once it is.
            assert_eq!(stopwatches[1].look(20, 10), Seen::Late);
            assert_eq!(stopwatches[0].since.load(Ordering::Relaxed), 0);
        });
    }
}
