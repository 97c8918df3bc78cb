//! A slot of the table that the SIGBUS handler reads (`sigbus`): the range of one mapping, and whether it was lost.
//!
//! Slots are used again. The handler may read one while its owner changes; a **version** before and after shows that, so that the
//! start of one mapping is never combined with the length of another. `cargo test` runs it; under `make loom` every interleaving of
//! its atomics is explored.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// See the module.
#[derive(Debug)]
pub(super) struct Slot {
    /// Odd while the range changes.
    version: AtomicU32,
    start: AtomicUsize,
    /// Zero while the slot is free.
    length: AtomicUsize,
    lost: AtomicBool,
}

impl Slot {
    /// One that is free.
    #[cfg(not(loom))]
    #[allow(clippy::new_without_default, reason = "made for a table that is there before anything runs")]
    pub(super) const fn new() -> Self {
        Self { version: AtomicU32::new(0), start: AtomicUsize::new(0), length: AtomicUsize::new(0), lost: AtomicBool::new(false) }
    }

    /// Takes a free slot for `length` bytes at address `start`. Callers serialize `take` and `free`.
    pub(super) fn take(&self, start: usize, length: usize) {
        self.lost.store(false, Ordering::Relaxed);
        self.set(start, length);
    }

    /// Frees the slot.
    pub(super) fn free(&self) {
        self.set(0, 0);
    }

    fn set(&self, start: usize, length: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees any of the new range sees that it was changing.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Start and length, both of one owner; `None` while they change. Async-signal-safe.
    pub(super) fn range(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version).then_some(range)
    }

    /// Marks the mapping as lost.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// True once it has.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_taken_again_is_as_new() {
        let slot = Slot::new();
        slot.take(0x1000, 0x2000);
        slot.lose();
        assert_eq!((slot.range(), slot.is_lost()), (Some((0x1000, 0x2000)), true));
        slot.free();
        assert_eq!(slot.range(), Some((0, 0)));
        slot.take(0x5000, 0x1000);
        assert_eq!((slot.range(), slot.is_lost()), (Some((0x5000, 0x1000)), false));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn a_range_is_never_of_two_owners() {
        loom::model(|| {
            let slot = Slot {
                version: AtomicU32::new(0),
                start: AtomicUsize::new(1),
                length: AtomicUsize::new(1),
                lost: AtomicBool::new(false),
            };
            let slot = loom::sync::Arc::new(slot);
            let theirs = loom::sync::Arc::clone(&slot);
            let owners = loom::thread::spawn(move || {
                theirs.free();
                theirs.take(2, 2);
            });
            let range = slot.range();
            assert!(matches!(range, None | Some((0, 0) | (1, 1) | (2, 2))), "{range:?}");
            owners.join().unwrap();
        });
    }
}
