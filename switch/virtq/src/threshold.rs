//! The dynamic threshold: the one rule by which senders and ports share ring entries, places in queues, and memory.
//!
//! A user may take another unit while it holds fewer than a factor times as many as are free (A. K. Choudhury and E. L. Hahne, "Dynamic
//! queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998). With a factor of 1 a
//! single user gets half, n busy ones an n+1st each, and as much stays free for the next user. No count of users is needed.

use crate::ablation;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicThreshold {
    /// The factor, in sixteenths.
    sixteenths: u32,
}

impl DynamicThreshold {
    /// A factor of 1.
    pub const ONE: Self = Self::sixteenths(16);

    /// A factor in sixteenths.
    pub const fn sixteenths(sixteenths: u32) -> Self {
        Self { sixteenths }
    }

    /// Whether a user that holds `held` units may take another of those that are `free`.
    #[inline]
    pub fn admits(self, held: u64, free: u64) -> bool {
        if !ablation::FAIRNESS {
            return free > 0;
        }
        held.saturating_mul(16) < free.saturating_mul(self.sixteenths.into())
    }

    /// Whether it may take so many `more` of them, one after the other.
    #[inline]
    pub fn admits_many(self, held: u64, more: u64, free: u64) -> bool {
        let Some(before) = more.checked_sub(1) else { return true };
        more <= free && self.admits(held.saturating_add(before), free - before)
    }

    /// How many more it may take.
    pub fn room(self, held: u64, free: u64) -> u64 {
        if !ablation::FAIRNESS {
            return free;
        }
        let (held, free, factor) = (u128::from(held), u128::from(free), u128::from(self.sixteenths));
        let over = (factor * (free + 1) + 16).saturating_sub(16 * held + 1);
        (over / (factor + 16)).min(free) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_user_gets_its_factors_part_and_the_next_finds_room() {
        for (sixteenths, part) in [(16, 450), (48, 675), (1, 53)] {
            let threshold = DynamicThreshold::sixteenths(sixteenths);
            let taken = (0..900).take_while(|&held| threshold.admits(held, 900 - held)).count();
            assert_eq!(taken, part, "{sixteenths} sixteenths of what is free");
            assert!(threshold.admits(0, 900 - part as u64));
        }
    }

    #[test]
    fn many_are_admitted_as_one_after_the_other() {
        for (sixteenths, held, free) in
            [(1, 0, 100), (16, 0, 100), (16, 3, 8), (16, 4, 4), (16, 0, 0), (16, 0, 1), (40, 7, 33), (40, 90, 2)]
        {
            let threshold = DynamicThreshold::sixteenths(sixteenths);
            let singly = (0..free).take_while(|&more| threshold.admits(held + more, free - more)).count() as u64;
            assert_eq!(threshold.room(held, free), singly, "{sixteenths} {held} {free}");
            assert!(threshold.admits_many(held, singly, free) && !threshold.admits_many(held, singly + 1, free));
        }
    }

    #[test]
    fn a_budget_without_bounds_admits_everything() {
        assert!(DynamicThreshold::ONE.admits_many(1 << 40, 1 << 40, u64::MAX - (1 << 40)));
        assert!(DynamicThreshold::ONE.room(0, u64::MAX) >= u64::MAX / 2);
    }
}
