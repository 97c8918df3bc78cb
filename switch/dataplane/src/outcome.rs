//! Outcome of a frame: the forwarding code reports it, and the worker accounts for it.

use crate::id::PortId;
use crate::stats::DropReason;

/// Outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The frame's last part was delivered to the port, in so many segments now, at least one.
    Delivered(PortId, u16),
    /// So many segments were delivered to the port; the others are still pending.
    DeliveredInPart(PortId, u16),
    /// The frame is enqueued for the port.
    Waits(PortId),
    /// The frame was handed to another worker, for the port.
    HandedOver(PortId),
    /// The frame was dropped, for a reason that is counted at the port.
    Dropped(PortId, DropReason),
    /// The frame came over an emulated link, where its cost was accounted for, and was delivered.
    Arrived,
    /// The frame came over an emulated link and was dropped, for a reason that is counted at the port.
    Lost(PortId, DropReason),
}

impl Outcome {
    /// Whether the packet's descriptor chain, in flight so far, is done with.
    pub(crate) fn ends_chain(self) -> bool {
        !matches!(self, Self::DeliveredInPart(..) | Self::Arrived | Self::Lost(..))
    }
}
