//! Limit of page faults in the copy of one frame. A guest can place a frame, or its receive buffers, in thousands of pages that are
//! not in memory: the worker waits for each page fault, and so do all ports that it serves.
//!
//! While a copy goes from run to run of memory, the clock is read once in some dozens of them. Only where they take far too long
//! are the thread's page faults and its CPU time read; if page faults are the cause, the frame is dropped. A worker that was
//! preempted in the middle of a copy has used no CPU time, which is no fault of the guest. Page faults that wait for a disk (major
//! faults) use none either, so one of them is enough. Frames of few runs, as well-behaved guests have them, cost almost nothing here.
//!
//! A page fault on a huge page takes as long as some hundred on small ones: if a few runs took longer than a slice ([`SLICE`]), one
//! is enough.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use super::Iovec;
use crate::time::{Cycles, SLICE, cycles, in_cycles, thread_time};

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
    /// CPU time of the thread at the last check that found it late.
    counted: Option<Usage>,
}

/// Resource usage of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// Page faults without and with input from a disk.
    minor: i64,
    major: i64,
    /// CPU time.
    own: Cycles,
}

impl Usage {
    /// Of the calling thread so far. Two system calls.
    fn now() -> Self {
        let faults =
            getrusage(UsageWho::RUSAGE_THREAD).map_or((0, 0), |usage| (usage.minor_page_faults(), usage.major_page_faults()));
        // The kernel does not count holes that were met.
        Self { minor: faults.0 + i64::from(super::holes::all_met()), major: faults.1, own: thread_time() }
    }
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
        self.look_in(cycles(), Usage::now)
    }

    /// Checks in moment `now`, with the thread's usage `all` so far.
    fn look_in(&mut self, now: Cycles, all: impl FnOnce() -> Usage) -> bool {
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
        let (most, usual) = if slow { (1, SLICE) } else { (MOST, USUAL) };
        !late || !self.many(all(), most, in_cycles(usual))
    }

    /// Whether at least `most` page faults took more than `usual` since this was last asked, with `all` used now.
    fn many(&mut self, all: Usage, most: i64, usual: Cycles) -> bool {
        self.counted.replace(all).is_some_and(|before| {
            let (minor, major) = (all.minor - before.minor, all.major - before.major);
            minor + major >= most && (major > 0 || all.own.saturating_sub(before.own) > usual)
        })
    }
}

/// Page faults of the calling thread so far.
#[cfg(test)]
pub(crate) fn faults() -> i64 {
    let Usage { minor, major, .. } = Usage::now();
    minor + major
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
        let mut many = |minor| faults.many(Usage { minor, major: 0, own: minor as u64 * 1000 }, MOST, 1000);
        assert!(!many(1000) && !many(1000 + MOST - 1) && many(1000 + 2 * MOST));
    }

    /// Time and page faults of one run of memory.
    struct Run {
        span: Duration,
        own: Duration,
        minor: i64,
        major: i64,
    }

    /// Number of such runs until the copy is given up.
    fn runs_of(run: &Run) -> usize {
        let (mut faults, mut now, mut all) = (Faults::default(), 1, Usage { minor: 7, major: 7, own: 0 });
        let mut goes_on = || {
            now += in_cycles(run.span);
            all.own += in_cycles(run.own);
            all.minor += run.minor;
            all.major += run.major;
            faults.left -= 1;
            faults.left > 0 || faults.look_in(now, || all)
        };
        (0..1000).take_while(|_| goes_on()).count()
    }

    #[test]
    fn a_few_page_faults_on_huge_pages_are_enough() {
        // Zeroes of 2 MiB at 10 GB a second.
        let span = Duration::from_micros(200);
        let of = |own, minor, major| runs_of(&Run { span, own, minor, major });
        let runs = of(span, 1, 0);
        assert!(span * (runs as u32) < Duration::from_millis(5), "{runs}");
        assert_eq!(of(span, 0, 0), 1000, "another thread had the CPU");
        // The frames of well-behaved guests are not affected: 64 KiB in buffer segments of 4 KiB, in buffers of 1.5 KB, on fresh
        // memory.
        let (span, own) = (Duration::from_micros(2), Duration::from_micros(2));
        assert!(runs_of(&Run { span, own, minor: 1, major: 0 }) > 17 + 46);
    }

    #[test]
    fn a_worker_that_is_stopped_in_the_middle_of_a_copy_drops_nothing() {
        // Fresh memory, on a machine that stops the worker again and again.
        let (span, own) = (Duration::from_millis(3), Duration::from_nanos(300));
        assert_eq!(runs_of(&Run { span, own, minor: 1, major: 0 }), 1000);
        assert!(runs_of(&Run { span, own, minor: 0, major: 1 }) < 32, "it waits for the disk");
    }
}
