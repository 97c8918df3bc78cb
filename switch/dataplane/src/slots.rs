//! Slots: a worker's sources and egress queues by index. An index is used again, a [`Slot`] is not, or not before 65536 others had its
//! index.

#![expect(
    clippy::indexing_slicing,
    reason = "a network has no more rings than slots (`const` in network/mod.rs), and an index is one that was made"
)]
#![expect(clippy::expect_used, reason = "a network has no more rings than slots (`const` in network/mod.rs)")]

use std::collections::VecDeque;

use crate::id::Slot;

#[derive(Debug)]
struct SlotEntry<T> {
    /// The slot of its present tenant, or else of its next one.
    slot: Slot,
    tenant: Option<T>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<SlotEntry<T>>,
    /// Free indices, the one that was freed first in front.
    free: VecDeque<u16>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: VecDeque::new() }
    }
}

impl<T> Slots<T> {
    /// Keeps the tenant that `tenant` makes for its slot.
    ///
    /// # Panics
    /// There are 65536 already; a network has no more rings.
    pub(crate) fn add(&mut self, tenant: impl FnOnce(Slot) -> T) -> Slot {
        let index = self.free.pop_front().unwrap_or_else(|| {
            let index = u16::try_from(self.entries.len()).expect("no more rings than slots");
            self.entries.push(SlotEntry { slot: Slot::new(index, 0), tenant: None });
            index
        });
        let entry = &mut self.entries[usize::from(index)];
        let slot = entry.slot;
        entry.tenant = Some(tenant(slot));
        slot
    }

    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        let entry = self.entries.get(slot.index())?;
        if entry.slot == slot { entry.tenant.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let entry = self.entries.get_mut(slot.index())?;
        if entry.slot == slot { entry.tenant.as_mut() } else { None }
    }

    /// Removes the tenant of `slot`; its index may be used again.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get_mut(slot.index()).filter(|entry| entry.slot == slot)?;
        let tenant = entry.tenant.take()?;
        entry.slot = slot.next();
        self.free.push_back(slot.index() as u16);
        Some(tenant)
    }

    /// All that are kept.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut T)> {
        self.entries.iter_mut().filter_map(|entry| Some((entry.slot, entry.tenant.as_mut()?)))
    }

    /// The slots with a tenant.
    pub(crate) fn taken(&self) -> Vec<Slot> {
        self.entries.iter().filter(|entry| entry.tenant.is_some()).map(|entry| entry.slot).collect()
    }

    /// The first one for which `condition` holds.
    pub(crate) fn find(&self, condition: impl Fn(&T) -> bool) -> Option<Slot> {
        self.entries.iter().find(|entry| entry.tenant.as_ref().is_some_and(&condition)).map(|entry| entry.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_never_means_the_next_tenant() {
        let mut slots = Slots::default();
        let first = slots.add(|_| 'a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.add(|_| 'b');
        assert_eq!((first.index(), slots.get(second)), (second.index(), Some(&'b')));
        assert!(slots.get(first).is_none() && slots.get_mut(first).is_none() && slots.remove(first).is_none());
        assert_eq!(slots.taken(), [second]);
    }

    #[test]
    fn the_index_that_was_left_first_is_taken_first() {
        let mut slots = Slots::default();
        let all: Vec<Slot> = (0..4).map(|n| slots.add(|_| n)).collect();
        for &slot in &all[1..3] {
            slots.remove(slot);
        }
        assert_eq!((slots.add(|_| 7).index(), slots.add(|_| 8).index(), slots.add(|_| 9).index()), (1, 2, 4));
        assert_eq!(slots.find(|&n| n == 8).map(Slot::index), Some(2));
    }
}
