//! Calls that can wait: a driver that gets a sent frame back is in no hurry, and hears of it for nothing when something for it to
//! receive comes before, for Linux looks after its sent frames then. So who exchanges requests and answers is called half as often.

use std::time::Duration;

use crate::id::Slot;
use crate::time::{Cycles, in_cycles};

/// How long a call may wait: longer than most answers take, too short for a sender to run out of room.
const DELAY: Duration = Duration::from_micros(250);

/// Slots whose calls wait.
#[derive(Debug)]
pub(crate) struct DeferredCalls {
    waiting: Vec<Waiting>,
    delay: Cycles,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    slot: Slot,
    /// Used index that the driver was shown when the call was put off.
    shown: u16,
    due: Cycles,
}

impl Default for DeferredCalls {
    fn default() -> Self {
        Self { waiting: Vec::new(), delay: in_cycles(DELAY) }
    }
}

impl DeferredCalls {
    /// Has the call of `slot` wait, whose driver was `shown` the entries before that used index; false if it has waited long enough.
    pub(crate) fn put_off(&mut self, slot: Slot, shown: u16, now: Cycles) -> bool {
        match self.of(slot) {
            Some(waiting) => now < waiting.due,
            None => {
                self.waiting.push(Waiting { slot, shown, due: now.saturating_add(self.delay) });
                true
            }
        }
    }

    /// What the driver of `slot` was shown when its call was put off, if it was.
    pub(crate) fn shown(&self, slot: Slot) -> Option<u16> {
        self.of(slot).map(|waiting| waiting.shown)
    }

    fn of(&self, slot: Slot) -> Option<&Waiting> {
        self.waiting.iter().find(|waiting| waiting.slot == slot)
    }

    /// The call of `slot` waits no more.
    pub(crate) fn forget(&mut self, slot: Slot) {
        if let Some(index) = self.waiting.iter().position(|waiting| waiting.slot == slot) {
            self.waiting.swap_remove(index);
        }
    }

    /// Appends the slots that are due to `slots`.
    pub(crate) fn take_due(&self, now: Cycles, slots: &mut Vec<Slot>) {
        for waiting in &self.waiting {
            if now >= waiting.due && !slots.contains(&waiting.slot) {
                slots.push(waiting.slot);
            }
        }
    }

    /// When the first call is due.
    pub(crate) fn deadline(&self) -> Option<Cycles> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// True if a call is due.
    #[inline]
    pub(crate) fn is_due(&self, now: Cycles) -> bool {
        self.waiting.iter().any(|waiting| now >= waiting.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u16) -> Slot {
        Slot::new(index, 0)
    }

    #[test]
    fn a_call_waits_and_then_comes_due() {
        let mut later = DeferredCalls::default();
        let delay = later.delay;
        assert!(later.put_off(slot(3), 7, 100) && later.put_off(slot(3), 8, 100 + delay / 2) && later.put_off(slot(4), 0, 200));
        assert_eq!((later.deadline(), later.shown(slot(3))), (Some(100 + delay), Some(7)));
        let mut due = Vec::new();
        later.take_due(100 + delay, &mut due);
        assert_eq!(due, [slot(3)]);
        assert!(later.is_due(100 + delay) && !later.put_off(slot(3), 9, 100 + delay));
        later.forget(slot(3));
        assert_eq!(later.deadline(), Some(200 + delay));
    }
}
