//! Calls that can wait: a driver that gets a sent frame back is in no hurry, and hears of it for nothing when something for it to
//! receive comes before, for Linux looks after its sent frames then. So who exchanges requests and answers is called half as often.

use std::time::Duration;

use crate::time::{Cycles, in_cycles};

/// How long a call may wait: longer than most answers take, too short for a sender to run out of room.
const DELAY: Duration = Duration::from_micros(250);

/// Slots whose calls wait.
#[derive(Debug)]
pub(super) struct Later {
    /// Slots, and when each is due.
    slots: Vec<(u16, Cycles)>,
    delay: Cycles,
}

impl Default for Later {
    fn default() -> Self {
        Self { slots: Vec::new(), delay: in_cycles(DELAY) }
    }
}

impl Later {
    /// Has the call of `slot` wait; false if it has waited long enough.
    pub(super) fn put_off(&mut self, slot: u16, now: Cycles) -> bool {
        match self.slots.iter().find(|(other, _)| *other == slot) {
            Some(&(_, due)) => now < due,
            None => {
                self.slots.push((slot, now.saturating_add(self.delay)));
                true
            }
        }
    }

    /// The call of `slot` waits no more.
    pub(super) fn forget(&mut self, slot: u16) {
        if let Some(index) = self.slots.iter().position(|(other, _)| *other == slot) {
            self.slots.swap_remove(index);
        }
    }

    /// Appends the slots that are due to `slots`.
    pub(super) fn take_due(&self, now: Cycles, slots: &mut Vec<u16>) {
        for &(slot, due) in &self.slots {
            if now >= due && !slots.contains(&slot) {
                slots.push(slot);
            }
        }
    }

    /// When the first call is due.
    pub(super) fn deadline(&self) -> Option<Cycles> {
        self.slots.iter().map(|&(_, due)| due).min()
    }

    /// True if a call is due.
    #[inline]
    pub(super) fn is_due(&self, now: Cycles) -> bool {
        self.slots.iter().any(|&(_, due)| now >= due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_and_then_comes_due() {
        let mut later = Later::default();
        let delay = later.delay;
        assert!(later.put_off(3, 100) && later.put_off(3, 100 + delay / 2) && later.put_off(4, 200));
        assert_eq!(later.deadline(), Some(100 + delay));
        let mut due = Vec::new();
        later.take_due(100 + delay, &mut due);
        assert_eq!(due, [3]);
        assert!(later.is_due(100 + delay) && !later.put_off(3, 100 + delay));
        later.forget(3);
        assert_eq!(later.deadline(), Some(200 + delay));
    }
}
