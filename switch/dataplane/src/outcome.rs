//! Outcome of a frame: the forwarding code reports it, and the worker accounts for it.

use crate::id::PortId;
use crate::stats::DropReason;

/// Outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its last part was delivered to the port, in so many segments now, at least one.
    Delivered(PortId, u16),
    /// So many segments were delivered to the port; the others are still pending.
    DeliveredInPart(PortId, u16),
    /// It is enqueued for the port.
    Waits(PortId),
    /// It was handed to another worker, for the port.
    HandedOver(PortId),
    /// It was dropped, for a reason that is counted at the port.
    Dropped(PortId, DropReason),
    /// It came over an emulated link, where its cost was accounted for, and was delivered.
    Arrived,
    /// It came over an emulated link and was dropped, for a reason that is counted at the port.
    Lost(PortId, DropReason),
}

impl Outcome {
    /// Whether the packet's descriptor chain, in flight so far, is done with.
    pub(crate) fn ends_chain(self) -> bool {
        !matches!(self, Self::DeliveredInPart(..) | Self::Arrived | Self::Lost(..))
    }
}
