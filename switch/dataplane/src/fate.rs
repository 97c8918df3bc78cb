//! What becomes of a frame: senders of frames tell it, and the worker accounts for it.

use crate::id::PortId;
use crate::stats::DropReason;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The last of it was delivered to the port, in so many segments now, at least one.
    Delivered(PortId, u16),
    /// So many segments of it were delivered to the port; the others are to come.
    DeliveredInPart(PortId, u16),
    /// It waits for the port.
    Waits(PortId),
    /// It was handed to another worker, for the port.
    HandedOver(PortId),
    /// It was dropped, for a reason that is counted at the port.
    Dropped(PortId, DropReason),
}
