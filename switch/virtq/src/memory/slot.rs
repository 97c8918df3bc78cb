//! A slot of the table that the SIGBUS handler reads (`sigbus`): the range of one mapping, and whether it was lost.
//!
//! Slots are used again. The handler may read one while its owner changes; a **version** before and after shows that, so that the
//! start of one mapping is never combined with the length of another. `cargo test` runs it; under `make loom` every interleaving of
//! its atomics is explored.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// Mappings that the whole daemon may hold at a time.
pub const SLOTS: usize = 32768;

/// See the module.
#[derive(Debug)]
pub(super) struct Slot {
    /// Odd while the range changes.
    version: AtomicU32,
    start: AtomicUsize,
    /// Zero while the slot is free.
    length: AtomicUsize,
    /// Where in the range the pages for reading begin ([`super::holes`]), with the binary logarithm of their size in the lowest bits;
    /// zero if there are none.
    readable: AtomicUsize,
    /// Descriptor of the file of these pages, and the offset of the first of them there.
    file: [AtomicUsize; 2],
    /// Number of the guest's memory that the range is of.
    owner: AtomicU32,
    lost: AtomicBool,
}

/// Of `readable`, the bits of the logarithm: an offset is a multiple of the page.
const SIZE_BITS: usize = 0xfff;

impl Slot {
    /// One that is free.
    #[cfg(not(loom))]
    #[allow(clippy::new_without_default, reason = "made for a table that is there before anything runs")]
    pub(super) const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            readable: AtomicUsize::new(0),
            file: [const { AtomicUsize::new(0) }; 2],
            owner: AtomicU32::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Takes a free slot for `length` bytes at address `start`, of the memory with this number. Callers serialize `take` and `free`.
    pub(super) fn take(&self, start: usize, length: usize, owner: u32) {
        self.set_owner(owner);
        self.lost.store(false, Ordering::Relaxed);
        self.readable.store(0, Ordering::Relaxed);
        self.set(start, length);
    }

    /// From `offset` on, the range that was taken holds the pages for reading, of `page` bytes each, a power of two: those of the
    /// `file` with this descriptor, from this byte on.
    pub(super) fn set_readable(&self, offset: usize, page: usize, file: [usize; 2]) {
        self.file.iter().zip(file).for_each(|(place, number)| place.store(number, Ordering::Relaxed));
        self.readable.store(offset & !SIZE_BITS | page.trailing_zeros() as usize, Ordering::Release);
    }

    /// Offset of the pages for reading in the range, and the bytes of each; `None` if there are none. Async-signal-safe.
    pub(super) fn readable(&self) -> Option<(usize, usize)> {
        let readable = self.readable.load(Ordering::Acquire);
        (readable != 0).then_some((readable & !SIZE_BITS, 1 << (readable & SIZE_BITS)))
    }

    /// The range is of the memory with this number from now on.
    pub(super) fn set_owner(&self, owner: u32) {
        self.owner.store(owner, Ordering::Release);
    }

    /// Number of the memory that the range is of. Async-signal-safe.
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Acquire)
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

    /// Descriptor of the file of the pages for reading, and the offset of the first of them there. Async-signal-safe.
    pub(super) fn file(&self) -> [usize; 2] {
        self.file.each_ref().map(|number| number.load(Ordering::Relaxed))
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
        slot.take(0x1000, 0x2000, 7);
        slot.set_readable(0x1000, 1 << 21, [3, 0x4000]);
        slot.lose();
        assert_eq!((slot.range(), slot.is_lost()), (Some((0x1000, 0x2000)), true));
        assert_eq!((slot.readable(), slot.file(), slot.owner()), (Some((0x1000, 1 << 21)), [3, 0x4000], 7));
        slot.free();
        assert_eq!(slot.range(), Some((0, 0)));
        slot.take(0x5000, 0x1000, 1);
        assert_eq!((slot.range(), slot.is_lost(), slot.readable(), slot.owner()), (Some((0x5000, 0x1000)), false, None, 1));
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
                readable: AtomicUsize::new(0),
                file: [AtomicUsize::new(0), AtomicUsize::new(0)],
                owner: AtomicU32::new(0),
                lost: AtomicBool::new(false),
            };
            let slot = loom::sync::Arc::new(slot);
            let theirs = loom::sync::Arc::clone(&slot);
            let owners = loom::thread::spawn(move || {
                theirs.free();
                theirs.take(2, 2, 1);
            });
            let range = slot.range();
            assert!(matches!(range, None | Some((0, 0) | (1, 1) | (2, 2))), "{range:?}");
            owners.join().unwrap();
        });
    }
}
