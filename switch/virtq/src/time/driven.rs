//! A clock of the calling thread, set by a test that drives workers in that thread: no time passes but the test's, and the same script has the
//! same result. Only builds with debug assertions have it, so in others no reading of the clock looks for it.

#![expect(clippy::panic, reason = "in a build without debug assertions only, which has no tests")]

use std::cell::Cell;

use super::Cycles;

/// Cycles in a second of the clock: nanoseconds.
pub const FREQUENCY: u64 = 1_000_000_000;

/// Cycles that each reading takes, as if the code between two readings did.
const READING: Cycles = 20;

thread_local! {
    /// The present moment; 0 while the thread has no such clock.
    static NOW: Cell<Cycles> = const { Cell::new(0) };
}

/// Whether the calling thread has such a clock.
#[inline]
pub fn is_on() -> bool {
    cfg!(debug_assertions) && NOW.get() != 0
}

/// The present moment. It takes a moment to read it.
#[inline]
pub(super) fn read() -> Cycles {
    let now = NOW.get();
    NOW.set(now + READING);
    now
}

/// The present moment, for the test: 0 without such a clock.
pub fn now() -> Cycles {
    NOW.get()
}

/// Sets the clock of the calling thread; 0 removes it.
///
/// # Panics
/// In builds without debug assertions, which do not have it.
pub fn set(now: Cycles) {
    if !cfg!(debug_assertions) {
        panic!("a clock of a test needs a build with debug assertions");
    }
    NOW.set(now);
}
