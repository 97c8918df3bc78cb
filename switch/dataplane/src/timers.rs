//! Timer list: deadlines of a worker's slots, so that a slot without an expired timer costs a poll iteration nothing.

#![expect(
    clippy::indexing_slicing,
    reason = "the list is grown to the slot's index before, and what is on the timer list has its place there"
)]

use std::collections::BTreeSet;

use crate::id::Slot;
use crate::time::Cycles;

/// Timers of slots, at most one each, the earliest first.
///
/// A deadline is only made earlier, never later. The caller that takes a slot out too early sets its new deadline. So an event that
/// would delay a deadline in every poll iteration costs nothing.
#[derive(Debug)]
pub(crate) struct Timers {
    order: BTreeSet<(Cycles, Slot)>,
    /// The same by index of the slot.
    of: Vec<Option<(Cycles, Slot)>>,
    /// The earliest moment, [`Cycles::MAX`] if there is none.
    next: Cycles,
}

impl Default for Timers {
    fn default() -> Self {
        Self { order: BTreeSet::new(), of: Vec::new(), next: Cycles::MAX }
    }
}

impl Timers {
    /// Sets the timer of `slot` to `when`, unless it is set to an earlier moment.
    pub(crate) fn expect(&mut self, slot: Slot, when: Cycles) {
        let index = slot.index();
        if self.of.len() <= index {
            self.of.resize(index + 1, None);
        }
        if let Some(old) = self.of[index] {
            if old.1 == slot && old.0 <= when {
                return;
            }
            self.order.remove(&old);
        }
        self.of[index] = Some((when, slot));
        self.order.insert((when, slot));
        self.next = self.next.min(when);
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Cycles> {
        (!self.order.is_empty()).then_some(self.next)
    }

    /// True if some slot is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Cycles) -> bool {
        self.next <= now && !self.order.is_empty()
    }

    /// Moves the slots with an expired timer to `due`, the earliest first.
    pub(crate) fn take_due(&mut self, now: Cycles, due: &mut Vec<Slot>) {
        while let Some(&entry) = self.order.first().filter(|entry| entry.0 <= now) {
            self.order.pop_first();
            self.of[entry.1.index()] = None;
            due.push(entry.1);
        }
        self.find_next();
    }

    /// Removes the timer of `slot`.
    pub(crate) fn forget(&mut self, slot: Slot) {
        let Some(entry) = self.of.get_mut(slot.index()) else { return };
        if let Some(old) = entry.take_if(|(_, tenant)| *tenant == slot) {
            self.order.remove(&old);
            self.find_next();
        }
    }

    fn find_next(&mut self) {
        self.next = self.order.first().map_or(Cycles::MAX, |entry| entry.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u16) -> Slot {
        Slot::new(index, 0)
    }

    fn due(timers: &mut Timers, now: Cycles) -> Vec<usize> {
        let mut due = Vec::new();
        timers.take_due(now, &mut due);
        due.into_iter().map(Slot::index).collect()
    }

    #[test]
    fn slots_come_in_the_order_of_their_moments_and_once() {
        let mut timers = Timers::default();
        for (index, when) in [(3, 30), (1, 10), (2, 20)] {
            timers.expect(slot(index), when);
        }
        assert_eq!((timers.next(), timers.is_due(9), timers.is_due(10)), (Some(10), false, true));
        assert_eq!(due(&mut timers, 25), [1, 2]);
        assert_eq!((due(&mut timers, 25), timers.next()), (vec![], Some(30)));
    }

    #[test]
    fn a_moment_is_made_earlier_and_not_later() {
        let mut timers = Timers::default();
        for when in [20, 30, 10] {
            timers.expect(slot(0), when);
        }
        assert_eq!(timers.next(), Some(10));
        assert_eq!((due(&mut timers, 100), timers.next()), (vec![0], None));
        assert!(!timers.is_due(Cycles::MAX));
    }

    #[test]
    fn a_slot_that_is_gone_is_not_due_and_its_index_is_the_next_ones() {
        let mut timers = Timers::default();
        timers.expect(slot(0), 10);
        timers.forget(slot(0).next());
        assert_eq!(timers.next(), Some(10));
        timers.forget(slot(0));
        assert_eq!(timers.next(), None);
        timers.expect(slot(0), 10);
        timers.expect(slot(0).next(), 20);
        let mut due = Vec::new();
        timers.take_due(100, &mut due);
        assert_eq!(due, [slot(0).next()]);
    }
}
