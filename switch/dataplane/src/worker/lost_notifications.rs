//! Lost-notification check: looks at rings with an expired timer ([`crate::notification`]), and repeats lost kicks and interrupts.

use super::Worker;
use crate::id::{Direction, RingKey, Slot};
use crate::notification::Missed;
use crate::ring::Ring;

impl Worker {
    /// Checks all rings with an expired timer: a lost kick wakes the source, a lost interrupt is repeated.
    #[cold]
    pub(super) fn look_after_due(&mut self) {
        for slot in self.sources.take_due(self.now) {
            self.look_after_source(slot);
        }
        let port_table = &self.port_table;
        self.egress.look_after_due(|port| port_table.counters(port));
    }

    fn look_after_source(&mut self, slot: Slot) {
        let Some(source) = self.sources.get(slot) else { return };
        let port = source.port();
        let counters = self.port_table.counters(port);
        let mut result = source.call(|ring| ring.call_kept().map(drop), |_| counters);
        match source.look() {
            Some(Missed::Kick) => {
                self.sources.wake(slot);
                counters.missed_kicks.add(1);
            }
            Some(Missed::Call) => {
                result = result.and(source.call(Ring::call_again, |_| counters));
                counters.repeated_interrupts.add(1);
            }
            None => {}
        }
        let kept = self.sources.get(slot).and_then(|source| source.feed.ring()).is_some_and(|ring| ring.keeps_call());
        self.sources.looked_after(slot, kept, self.now);
        if let Err(fault) = result {
            self.fault(port, fault);
        }
    }

    /// A ring changed apart from its frames, so its timer starts: it is checked in a while.
    pub(super) fn happened(&mut self, key: RingKey) {
        match key.direction {
            Direction::Transmit => {
                if let Some(slot) = self.sources.find(key) {
                    self.sources.happened(slot, self.now);
                }
            }
            Direction::Receive => {
                if let Some(slot) = self.egress.find(key) {
                    self.egress.happened(slot);
                }
            }
        }
    }
}
