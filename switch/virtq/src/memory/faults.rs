//! Limit of page faults in the copy of one frame. A guest can place a frame, or its receive buffers, in thousands of pages that are
//! not in memory: the worker waits for each page fault, and so do all ports that it serves.
//!
//! While a copy goes from run to run of memory, the clock is read once in some dozens of them. Only where they take far too long
//! are the thread's page faults counted; if those are the cause, the frame is dropped. Frames of few runs, as well-behaved guests
//! have them, cost almost nothing here.
//!
//! A page fault on a huge page takes as long as some hundred on small ones: if a few runs took longer than a slice ([`SLICE`]), one
//! is enough.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use super::Iovec;
use crate::time::{Cycles, SLICE, cycles, in_cycles};

/// Runs of memory between two checks.
const RUNS: u32 = 32;
/// The same for the first two checks, and after a window that took [`SLICE`].
const FEW: u32 = 8;
/// Maximum time of so many runs with their pages in memory, with a margin.
const USUAL: Duration = Duration::from_micros(10);
/// Page faults between two checks after which a copy is given up.
const MOST: i64 = RUNS as i64 / 2;

/// See the module. For one frame.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Runs until the next check.
    left: u32,
    /// Runs between the last check and the next.
    window: u32,
    looked_at: Option<Cycles>,
    /// The thread's page faults at the last check that found it late.
    counted: Option<i64>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { left: FEW, window: FEW, looked_at: None, counted: None }
    }
}

impl Faults {
    /// Whether another run of memory may be touched.
    #[inline(always)]
    pub fn may_go_on(&mut self) -> bool {
        self.left -= 1;
        self.left > 0 || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.look_in(cycles(), faults)
    }

    /// Checks in moment `now`, with `all` page faults of the thread so far.
    fn look_in(&mut self, now: Cycles, all: impl FnOnce() -> i64) -> bool {
        let window = std::mem::replace(&mut self.window, RUNS);
        let before = self.looked_at.replace(now);
        let took = before.map_or(0, |before| now.saturating_sub(before));
        let slow = took > in_cycles(SLICE);
        if before.is_none() || slow {
            self.window = FEW;
        }
        self.left = self.window;
        // A few runs show nothing about small pages. And another process may have had the CPU meanwhile.
        let late = slow || (window == RUNS && took > in_cycles(USUAL));
        !late || !self.many(all(), if slow { 1 } else { MOST })
    }

    /// Whether there were at least `most` page faults since this was last asked, with `all` now.
    fn many(&mut self, all: i64, most: i64) -> bool {
        self.counted.replace(all).is_some_and(|before| all - before >= most)
    }
}

/// Page faults of the calling thread so far.
pub(crate) fn faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.minor_page_faults() + usage.major_page_faults())
}

/// Brings all `iovecs` into memory before a copy that has no [`Faults`] of its own; false if that was given up.
pub fn bring_in(iovecs: impl Iterator<Item = Iovec>) -> bool {
    let mut faults = Faults::default();
    for iovec in iovecs {
        for end in [iovec.first(1), iovec.skip(iovec.length().saturating_sub(1))] {
            if !faults.may_go_on() {
                return false;
            }
            std::hint::black_box(end.few::<1>());
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::sync::Arc;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use crate::memory::{Hint, MemoryMap, Region, RegionTable};

    /// Buffer segments of two bytes across the borders of pages.
    fn iovecs(map: &MemoryMap, count: u64) -> Vec<Iovec> {
        (1..=count).filter_map(|page| map.iovec(page * 4096 - 1, 2, &mut Hint::default())).collect()
    }

    /// Memory of a file, since the kernel may put huge pages behind anonymous memory: two page faults instead of a thousand.
    fn in_small_pages(length: u64) -> Region {
        let file = File::from(memfd_create("pages", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(length).unwrap();
        Region::map(RegionTable { guest_start: 0, length, user_start: 0, file_offset: 0 }, file).unwrap()
    }

    #[test]
    fn pages_that_are_there_are_never_given_up_and_many_that_are_not_are() {
        let map = MemoryMap::new(vec![Arc::new(in_small_pages(1002 * 4096))]).unwrap();
        let iovecs = iovecs(&map, 1000);
        assert!(!bring_in(iovecs.iter().copied()), "a thousand page faults");
        // Each attempt brings some pages in.
        let tries = (0..1000).take_while(|_| !bring_in(iovecs.iter().copied())).count();
        assert!(tries < 100, "{tries}");
        assert!(bring_in(iovecs.iter().copied()));
    }

    #[test]
    fn only_page_faults_are_a_reason() {
        let mut faults = Faults::default();
        assert!(!faults.many(1000, MOST) && !faults.many(1000 + MOST - 1, MOST) && faults.many(1000 + 2 * MOST, MOST));
    }

    /// Number of runs of duration `span` until the copy is given up, with or without page faults.
    fn runs_of(span: Duration, with_faults: bool) -> usize {
        let (mut faults, mut now, mut all) = (Faults::default(), 1, 7);
        let mut goes_on = || {
            now += in_cycles(span);
            all += i64::from(with_faults);
            faults.left -= 1;
            faults.left > 0 || faults.look_in(now, || all)
        };
        (0..1000).take_while(|_| goes_on()).count()
    }

    #[test]
    fn a_few_page_faults_on_huge_pages_are_enough() {
        // Zeroes of 2 MiB at 10 GB a second.
        let span = Duration::from_micros(200);
        let runs = runs_of(span, true);
        assert!(span * (runs as u32) < Duration::from_millis(5), "{runs}");
        assert_eq!(runs_of(span, false), 1000, "another thread had the CPU");
        // The frames of well-behaved guests are not affected: 64 KiB in buffer segments of 4 KiB, in buffers of 1.5 KB, on fresh
        // memory.
        assert!(runs_of(Duration::from_micros(2), true) > 17 + 46);
    }
}
