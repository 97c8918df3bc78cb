//! Events that are found by looking: first drops, moves of MAC addresses, and limits that hold frames back. Workers only count.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{LOOK, Network};
use crate::address_map::conflicts::Conflict;
use crate::journal::NetworkEvent;
use crate::segment::Segment;
use crate::table::moves::Move;
use crate::time::{Cycles, cycles, in_cycles};

impl Network {
    /// Like [`Self::tell_notices`], unless that was [`LOOK`] ago or less: each worker causes it once a second, and so does each reader of
    /// events, and the counters of all workers are read for each port and reason.
    pub fn look_for_notices(&self, now: Cycles) {
        let last = self.looked.load(Ordering::Relaxed);
        let is_due = last == 0 || now.saturating_sub(last) > in_cycles(LOOK);
        if is_due && self.looked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.tell_notices();
        }
    }

    /// Tells of the first drops of each port that were not told yet, of addresses that were refused or moved, and of limits that were reached.
    pub fn tell_notices(&self) {
        let now = Instant::now();
        let (at, busy) = (cycles(), self.shared.workers.iter().map(|worker| worker.last_busy.get()).max().unwrap_or(0));
        self.tell_trial_end(at);
        let trials = self.shared.trials.get();
        for port in self.ports() {
            port.note_growth(at, busy);
            port.tell_first_drops();
            port.tell_refused(now);
            port.tell_denials(now);
            port.tell_audits(&trials, now);
            port.tell_limits(now);
        }
        for segment in self.segments() {
            segment.moves_to_tell(now).iter().for_each(|moved| self.tell_move(&segment, moved));
            segment.conflicts_to_tell(now).iter().for_each(|conflict| self.tell_conflict(&segment, conflict));
        }
    }

    /// The event counts among those of the port that claims the address: its guest caused it.
    fn tell_conflict(&self, segment: &Segment, conflict: &Conflict) {
        let Conflict { key, owner, claimant } = conflict;
        let (Some(port), Some(by)) = (self.port(owner.port), self.port(claimant.0)) else { return };
        by.tell_caused(NetworkEvent::AddressConflict {
            segment: segment.name.clone(),
            ip: key.ip.to_string(),
            vlan: (key.vlan != 0).then_some(key.vlan),
            port: port.name.clone(),
            mac: owner.mac.map(|mac| mac.to_string()),
            source: owner.source,
            claimed_by: by.name.clone(),
            claimed_mac: claimant.1.to_string(),
        });
    }

    /// The event counts among those of the port that the address moved to: its guest caused it.
    fn tell_move(&self, segment: &Segment, moved: &Move) {
        let (Some(from), Some(to)) = (self.port(moved.from), self.port(moved.to)) else { return };
        let (segment, address) = (segment.name.clone(), moved.learned_address.address.to_string());
        to.tell_caused(NetworkEvent::AddressMoved { segment, address, from: from.name.clone(), to: to.name.clone() });
    }
}
