//! Fates: the one place that hears what becomes of every frame. It counts those that are dropped, at the port that is the cause, and enters on
//! the bill who pays. Whatever else is to be done for each frame, by what became of it, belongs here.

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
    /// `fate` becomes of `parcel`, and its sender pays.
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

    /// So many `frames` of `sender`, of so many `bytes` together, went by the express lane.
    #[inline]
    pub(super) fn expressed(&mut self, sender: PortId, to: PortId, frames: u16, bytes: u64) {
        self.bill.enter(sender, Some(to), frames.into(), bytes);
    }

    /// A frame of `sender` was dropped, maybe without being read, for a `reason` that is counted at `port`.
    pub(super) fn dropped(&mut self, sender: PortId, port: PortId, reason: DropReason) {
        let (port, effort) = match reason {
            // Its page faults took about as long as a whole turn.
            DropReason::SenderMemory => (sender, effort::TURN),
            _ => (port, effort::FRAME),
        };
        self.missed(port, reason);
        self.bill.enter_effort(sender, effort);
    }

    /// A frame was dropped that was paid for before, or one of the copies of a flooded one.
    pub(super) fn missed(&mut self, port: PortId, reason: DropReason) {
        self.directory.counters(port).drop_frame(reason);
    }

    /// Floods `parcel` to those of these `ports` that are served here; returns for how many of them it waits.
    pub(super) fn flood(&mut self, outlets: &mut Outlets, parcel: &mut Parcel, ports: &[PortId]) -> u16 {
        let weight = Weight::new(self.directory.weight_of(parcel.source));
        let sender = parcel.source;
        outlets.flood(parcel, ports, weight, |port, reason| {
            self.missed(if reason == DropReason::SenderMemory { sender } else { port }, reason);
        })
    }

    /// A frame of `sender` was flooded to whom it concerns here, which took so much `effort`. What each of them missed was told before.
    pub(super) fn flooded(&mut self, sender: PortId, effort: u64) {
        self.bill.enter_effort(sender, effort::FRAME + effort);
    }
}
