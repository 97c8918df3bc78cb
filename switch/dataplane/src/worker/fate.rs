//! Outcomes: the one place that is told the outcome of every frame. It counts drops at the port that is the cause, and enters the
//! cost in the accounting. Any other reaction to a frame's outcome belongs here.

use super::directory::Directory;
use crate::airtime::bill::Bill;
use crate::airtime::effort;
use crate::fate::Fate;
use crate::id::PortId;
use crate::outlets::Outlets;
use crate::parcel::Parcel;
use crate::schedule::Weight;
use crate::stats::DropReason;

/// See the module.
#[derive(Debug)]
pub(super) struct Fates<'w> {
    pub directory: &'w Directory,
    pub bill: &'w mut Bill,
}

impl Fates<'_> {
    /// Accounts for the outcome of a packet: counts a drop, and charges its sender.
    #[inline]
    pub(super) fn meet(&mut self, parcel: &Parcel, fate: Fate) {
        let (to, segments, bytes) = match fate {
            Fate::Delivered(to, segments) => (Some(to), segments.max(1), parcel.length),
            Fate::DeliveredInPart(to, segments) => (Some(to), segments, 0),
            Fate::Waits(to) => return self.bill.enter_waiting(parcel.source, to, parcel.length.into()),
            Fate::HandedOver(to) => (Some(to), 1, parcel.length),
            Fate::Dropped(port, reason) => return self.dropped(parcel.source, port, reason),
        };
        self.bill.enter(parcel.source, to, segments.into(), bytes.into());
    }

    /// The fast path carried so many `frames` of `sender`, of so many `bytes` together.
    #[inline]
    pub(super) fn expressed(&mut self, sender: PortId, to: PortId, frames: u16, bytes: u64) {
        self.bill.enter(sender, Some(to), frames.into(), bytes);
    }

    /// A frame of `sender` was dropped, maybe without being read, for a `reason` that is counted at `port`.
    pub(super) fn dropped(&mut self, sender: PortId, port: PortId, reason: DropReason) {
        let (port, effort) = match reason {
            // Its page faults took about as long as a service quantum.
            DropReason::SenderMemory => (sender, effort::TURN),
            _ => (port, effort::FRAME),
        };
        self.missed(port, reason);
        self.bill.enter_effort(sender, effort);
    }

    /// A frame was dropped whose cost was entered before, or one of the copies of a flooded frame.
    pub(super) fn missed(&mut self, port: PortId, reason: DropReason) {
        self.directory.counters(port).drop_frame(reason);
    }

    /// Floods `parcel` to those of `ports` that are served here; returns at how many of them it was enqueued.
    pub(super) fn flood(&mut self, outlets: &mut Outlets, parcel: &mut Parcel, ports: &[PortId]) -> u16 {
        let weight = Weight::new(self.directory.weight_of(parcel.source));
        let sender = parcel.source;
        outlets.flood(parcel, ports, weight, |port, reason| {
            self.missed(if reason == DropReason::SenderMemory { sender } else { port }, reason);
        })
    }

    /// A frame of `sender` was flooded to the ports of this worker, at the cost of so many work units. Drops were counted before.
    pub(super) fn flooded(&mut self, sender: PortId, effort: u64) {
        self.bill.enter_effort(sender, effort::FRAME + effort);
    }
}
