//! Lost-notification check: looks at rings with an expired timer ([`crate::notification`]), and repeats lost kicks and interrupts.

use super::Worker;
use crate::id::{Direction, RingKey, Slot};
use crate::notification::Missed;

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
        let missed = source.look_after(counters);
        match missed {
            Ok(Some(Missed::Kick)) => {
                self.sources.wake(slot);
                counters.missed_kicks.add(1);
            }
            Ok(Some(Missed::Call)) => counters.repeated_interrupts.add(1),
            Ok(None) => {}
            Err(fault) => self.fault(port, fault),
        }
        self.sources.expect(slot, self.now);
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
