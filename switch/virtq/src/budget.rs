//! Budget of the switch's memory for frames that cannot be left in a guest's: those read from TAPs, and those in flight on emulated
//! links.
//!
//! 1. [`Budget`]: all of it, for all workers together. Frames beyond it are refused: no guest can make it grow.
//! 2. [`Account`]: the part of one user, a TAP or an emulated link.
//! 3. [`Permit`]: some bytes of it, until it is dropped.
//!
//! The quota of an account is as much as is left for all others: a [`DynamicThreshold`] with a factor of 1.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::threshold::DynamicThreshold;

/// See the module.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    left: AtomicU64,
}

impl Budget {
    /// A budget of so many `bytes`.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { most: bytes, left: AtomicU64::new(bytes) })
    }

    /// Bytes in all.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Bytes that accounts hold.
    pub fn held(&self) -> u64 {
        self.most - self.left()
    }

    /// Free bytes.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    held: AtomicU64,
    /// Minimum quota, as long as the budget has so much.
    floor: u64,
}

impl Account {
    /// With `budget`, holding nothing.
    pub fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Self::with_floor(budget, 0)
    }

    /// Like [`Self::new`], for a user that may hold `floor` bytes as long as the budget has them, even if less than those is left for
    /// others.
    pub fn with_floor(budget: &Arc<Budget>, floor: u64) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), held: AtomicU64::new(0), floor })
    }

    /// Bytes that it holds.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that could be taken now.
    pub fn quota(&self) -> u64 {
        DynamicThreshold::ONE.room(self.held(), self.budget.left())
    }

    /// Takes `bytes` until the permit is dropped; none if that exceeds the account's quota.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let held = self.held();
        let within_floor = held.saturating_add(bytes) <= self.floor;
        let may = |left| within_floor || DynamicThreshold::ONE.admits_many(held, bytes, left);
        self.take_if(bytes, may)
    }

    /// Takes `bytes` until the permit is dropped, beyond the account's quota too: for frames of a frozen network, which were admitted before.
    /// None if the budget has not so much left.
    pub fn take_again(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        self.take_if(bytes, |_| true)
    }

    /// Takes `bytes` if the budget has so much left, and it `may` with this rest.
    fn take_if(self: &Arc<Self>, bytes: u64, may: impl Fn(u64) -> bool) -> Option<Permit> {
        let fits = |left: u64| left.checked_sub(bytes).filter(|_| may(left));
        self.budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Some(Permit { account: Arc::clone(self), bytes })
    }
}

/// See the module.
#[derive(Debug)]
pub struct Permit {
    account: Arc<Account>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.account.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes ones until nothing more is allowed.
    fn take_all(account: &Arc<Account>) -> Vec<Permit> {
        std::iter::from_fn(|| account.take(1)).collect()
    }

    #[test]
    fn a_lone_user_gets_half_and_what_it_returns_can_be_taken_again() {
        let budget = Budget::new(100);
        let account = Account::new(&budget);
        assert!(account.take(51).is_none());
        let permit = account.take(50).unwrap();
        assert!(account.take(1).is_none());
        assert_eq!((budget.left(), account.quota()), (50, 0));
        drop(permit);
        assert_eq!((budget.left(), account.quota()), (100, 50));
    }

    #[test]
    fn what_everybody_needs_is_had_as_long_as_there_is_any() {
        let budget = Budget::new(25);
        let accounts: Vec<_> = (0..3).map(|_| Account::with_floor(&budget, 10)).collect();
        let taken: Vec<_> = accounts.iter().map(take_all).collect();
        assert_eq!(taken.iter().map(Vec::len).collect::<Vec<_>>(), [13, 10, 2]);
    }

    #[test]
    fn a_newcomer_always_finds_room_and_shares_become_equal() {
        let budget = Budget::new(900);
        let (old, new) = (Account::new(&budget), Account::new(&budget));
        let mut of_old = take_all(&old);
        let mut of_new = take_all(&new);
        assert_eq!((of_old.len(), of_new.len()), (450, 225));
        // While frames leave and others come, both approach a third.
        for _ in 0..100 {
            for (of, account) in [(&mut of_old, &old), (&mut of_new, &new)] {
                of.truncate(of.len() - of.len() / 10);
                of.extend(take_all(account));
            }
        }
        assert!(of_old.len().abs_diff(300) < 20 && of_new.len().abs_diff(300) < 20, "{} {}", of_old.len(), of_new.len());
        assert_eq!(budget.left(), 900 - (of_old.len() + of_new.len()) as u64);
    }
}
