//! Loop reports: MAC addresses that move between two ports many times in a few seconds. Probably a guest bridges both ports.

use memlane_model::loop_report::LoopReport;

use super::Network;
use crate::id::{PortId, SegmentId};
use crate::journal::NetworkEvent;
use crate::segment::Segment;
use crate::table::Flap;

/// Seconds for which a MAC address is reported after it was held.
const TOLD: u64 = 60;

impl Network {
    /// MAC addresses of `segment` that moved between ports too often lately, seen from second `now` of the network; the oldest
    /// first.
    pub fn loops(&self, segment: &Segment, now: u64) -> Vec<LoopReport> {
        let report = |flap| self.loop_report(segment, flap, now);
        segment.table().flaps().into_iter().filter_map(report).filter(|report| report.age <= TOLD).collect()
    }

    /// `None` if one of the ports has just gone.
    fn loop_report(&self, segment: &Segment, flap: Flap, now: u64) -> Option<LoopReport> {
        let name = |port: PortId| self.port(port).map(|port| port.name.clone());
        Some(LoopReport {
            segment: segment.name.clone(),
            address: flap.learned_address.address.to_string(),
            vlan: (flap.learned_address.vlan != 0).then_some(flap.learned_address.vlan),
            held_at: name(flap.home)?,
            moves_to: name(flap.other)?,
            moves: self.shared.settings.moves,
            within: flap.within,
            age: now.saturating_sub(flap.second.into()),
        })
    }

    /// Warns of the last loop report, with a minimum interval.
    pub(super) fn warn_of_loop(&self, segment: SegmentId) {
        let segments = self.segments();
        let Some(segment) = segments.iter().find(|known| known.id == segment && known.may_warn()) else { return };
        if let Some(last) = self.loops(segment, 0).last() {
            let LoopReport { segment: name, address, held_at, moves_to, .. } = last.clone();
            let event = NetworkEvent::AddressFlaps { segment: name, address, held_at, moves_to };
            tracing::warn!(segment = %segment.name, event = event.name(), "{last}");
            self.shared.journal.add(event);
        }
    }
}
