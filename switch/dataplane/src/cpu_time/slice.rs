//! A time slice: the bound of a service quantum, by work units, which are known beforehand, and by time, which is not: the first
//! touch of a page of a guest's memory is a page fault, a thousand times as expensive as the next touch.

use super::work_units::STEP;
use crate::time::{Cycles, SLICE, cycles, in_cycles};

/// See the module. The clock is read once a [`STEP`] of work units: a batch of small frames is hardly longer.
#[derive(Debug)]
pub(crate) struct Slice {
    enough: u64,
    /// The work units after which the clock is read next.
    next_look: u64,
    /// When it is over; `None` before the clock was read.
    until: Option<Cycles>,
}

impl Slice {
    /// A slice of at most `most` work units, after those so far.
    #[inline]
    pub(crate) fn new(work_units: u64, most: u64) -> Self {
        Self { enough: work_units + most, next_look: work_units + STEP, until: None }
    }

    /// Whether it is over after so many work units.
    #[inline]
    pub(crate) fn is_over(&mut self, work_units: u64) -> bool {
        work_units >= self.enough || (work_units >= self.next_look && self.look(work_units, cycles()))
    }

    #[inline(never)]
    fn look(&mut self, work_units: u64, now: Cycles) -> bool {
        self.next_look = work_units + STEP;
        let until = *self.until.get_or_insert_with(|| now.saturating_add(in_cycles(SLICE)));
        now >= until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_by_effort_or_by_time() {
        let mut slice = Slice::new(1000, 10 * STEP);
        assert!(!slice.is_over(1000) && !slice.is_over(999 + 10 * STEP) && slice.is_over(1000 + 10 * STEP));
        let mut slice = Slice::new(0, u64::MAX);
        let late = in_cycles(SLICE);
        assert!(!slice.look(STEP, 7) && !slice.look(2 * STEP, 6 + late) && slice.look(3 * STEP, 7 + late));
    }

    #[test]
    fn the_clock_is_read_once_a_step() {
        let mut slice = Slice::new(0, u64::MAX);
        (0..STEP).for_each(|work_units| assert!(!slice.is_over(work_units)));
        assert_eq!((slice.until, slice.next_look), (None, STEP));
        assert!(!slice.is_over(STEP + 5) && slice.until.is_some());
        assert_eq!(slice.next_look, 2 * STEP + 5);
    }
}
