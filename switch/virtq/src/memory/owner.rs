//! Whose guest's memory it is, by a number: covers of holes ([`super::holes`]) are counted for each guest's memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::slot::SLOTS;

/// Guests' memories that have covers at a time: each has a region, and a region a place in the table of the SIGBUS handler.
const OWNERS: usize = SLOTS + FIRST_OWNER;
/// The number of memory without holes, of which no page is ever covered.
pub(super) const NO_OWNER: u32 = 0;
/// The number of regions that are in no memory map yet.
pub(super) const UNMAPPED: u32 = 1;
const FIRST_OWNER: usize = 2;

/// Covered pages of one guest's memory: those that exist in the low half; in the high half those that were ever made, modulo 2^32. Apart from
/// the others, so that no guest's holes slow another one's reads down.
#[derive(Debug)]
#[repr(align(128))]
struct Count(AtomicU64);

/// One more cover that was made.
pub(super) const MADE: u64 = 1 << 32;
/// One more cover, which exists.
pub(super) const ONE: u64 = MADE | 1;

static NOTHING: Count = Count(AtomicU64::new(0));
static COUNTED: [Count; OWNERS] = [const { Count(AtomicU64::new(0)) }; OWNERS];

/// Numbers that are free, and the first that was never used.
static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), FIRST_OWNER as u32));

/// A guest's memory, by number: that of which an operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u16);

impl Default for Owner {
    fn default() -> Self {
        Self::NONE
    }
}

impl Owner {
    /// Memory without holes, as the switch's own is.
    pub const NONE: Self = Self(NO_OWNER as u16);

    /// The number in the table of the SIGBUS handler.
    pub(super) fn number(self) -> u32 {
        self.0.into()
    }

    /// The owner with this number, which is below [`OWNERS`].
    pub(super) fn of(number: u32) -> Self {
        Self(number as u16)
    }

    /// Covers of this memory.
    #[inline(always)]
    pub(super) fn count(self) -> &'static AtomicU64 {
        &COUNTED.get(self.0 as usize).unwrap_or(&NOTHING).0
    }
}

/// The number of a guest's memory, held by its regions.
#[derive(Debug)]
pub(super) struct OwnerPermit(u32);

impl OwnerPermit {
    /// A number that is free. More than there are regions are never needed.
    pub(super) fn take() -> Arc<Self> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = free.0.pop().unwrap_or_else(|| {
            let next = free.1;
            free.1 += u32::from((next as usize) < OWNERS);
            next
        });
        Arc::new(Self(if (number as usize) < OWNERS { number } else { UNMAPPED }))
    }

    pub(super) fn owner(&self) -> Owner {
        Owner::of(self.0)
    }
}

impl Drop for OwnerPermit {
    fn drop(&mut self) {
        // A thread that has not settled would end its cover in another guest's count. No thread does that: it holds the map meanwhile.
        let is_settled = self.owner().count().load(Ordering::Acquire) as u32 == 0;
        if is_settled && self.0 as usize >= FIRST_OWNER {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_again_and_fits() {
        assert!(OWNERS <= usize::from(u16::MAX));
        let (first, second) = (OwnerPermit::take(), OwnerPermit::take());
        assert!(first.owner() != second.owner() && first.0 as usize >= FIRST_OWNER);
        assert_eq!(Owner::of(first.0), first.owner());
    }
}
