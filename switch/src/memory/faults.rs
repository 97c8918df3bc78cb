//! Page faults of one frame's copy: who has a frame lie in thousands of pages that are not in memory, or its room, has a worker wait for each of
//! them, and with it everybody.
//!
//! While a copy goes from run to run of memory, the clock is read once in some dozens of them. Only where they take far too long are the thread's page
//! faults counted; where those are why, the frame is given up. Frames of few runs, as honest guests have them, come to nothing here.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use super::Piece;
use crate::time::{Cycles, cycles, in_cycles};

/// Runs of memory between two looks.
const RUNS: u32 = 32;
/// What so many take at most where their pages are there, and some more.
const USUAL: Duration = Duration::from_micros(10);
/// Page faults between two looks after which a copy is given up.
const MOST: i64 = RUNS as i64 / 2;

/// See the module. For one frame.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    runs: u32,
    looked_at: Cycles,
    /// The thread's page faults at the last look that found it late.
    counted: Option<i64>,
}

impl Faults {
    /// Whether another run of memory may be touched.
    #[inline(always)]
    pub fn may_go_on(&mut self) -> bool {
        self.runs += 1;
        !self.runs.is_multiple_of(RUNS) || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        let now = cycles();
        let late = self.runs > RUNS && now.saturating_sub(self.looked_at) > in_cycles(USUAL);
        self.looked_at = now;
        // Whoever else had the CPU meanwhile may be why.
        !late || !self.many(faults())
    }

    /// Whether there were many since this was last asked, and now there are `all`.
    fn many(&mut self, all: i64) -> bool {
        self.counted.replace(all).is_some_and(|before| all - before >= MOST)
    }
}

/// Page faults of the calling thread so far.
pub(crate) fn faults() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.minor_page_faults() + usage.major_page_faults())
}

/// Has all `pieces` in memory, for who copies them where this cannot be looked at; false if that was given up.
pub fn bring_in(pieces: impl Iterator<Item = Piece>) -> bool {
    let mut faults = Faults::default();
    for piece in pieces {
        for end in [piece.first(1), piece.skip(piece.length().saturating_sub(1))] {
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
    use std::sync::Arc;

    use crate::memory::{Hint, MemoryMap, Region};

    /// Pieces of two bytes across the borders of pages.
    fn pieces(map: &MemoryMap, count: u64) -> Vec<Piece> {
        (1..=count).filter_map(|page| map.piece(page * 4096 - 1, 2, &mut Hint::default())).collect()
    }

    #[test]
    fn pages_that_are_there_are_never_given_up_and_many_that_are_not_are() {
        let map = MemoryMap::new(vec![Arc::new(Region::anonymous(0, 1002 * 4096).unwrap())]).unwrap();
        let pieces = pieces(&map, 1000);
        assert!(!bring_in(pieces.iter().copied()), "a thousand page faults");
        // Each try brings some in.
        let tries = (0..1000).take_while(|_| !bring_in(pieces.iter().copied())).count();
        assert!(tries < 100, "{tries}");
        assert!(bring_in(pieces.iter().copied()));
    }

    #[test]
    fn only_page_faults_are_a_reason() {
        let mut faults = Faults::default();
        assert!(!faults.many(1000) && !faults.many(1000 + MOST - 1) && faults.many(1000 + 2 * MOST));
    }
}
