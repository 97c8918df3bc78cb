//! Why a source takes no more frames from its transmit queue at present, in one place: the worker decides by it whether the source is
//! armed, and when it is looked at next.
//!
//! A port over its share of CPU time is no reason of a source: all sources of the port are throttled together, for some poll
//! iterations ([`crate::cpu_time`]). Nor are receive buffers that are left alone, which block the receiver's egress queue for all senders.

use super::Source;
use crate::id::RouteEntry;
use crate::time::Cycles;

/// Why a source takes no more frames, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub reason: BlockReason,
    /// `None` if the end is not known: it is notified or looked for.
    pub until: Option<Cycles>,
}

/// See [`Blocked`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockReason {
    /// The transmit rate limit of its port.
    RateLimit,
    /// Backpressure: the receive queue of the next frame has no room, or the inter-worker queue on the way there.
    NoRoom(RouteEntry),
    /// Timer polling: it sends a one-way stream, and the timer takes the next batch.
    TimerPoll,
}

impl Source {
    /// Why it takes no more frames, if it does not. A rate limit comes first: while it holds, room for the next frame is of no use.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        if let Some(until) = self.held_until {
            Some(Blocked { reason: BlockReason::RateLimit, until: Some(until) })
        } else if let Some(backpressured) = self.backpressured {
            Some(Blocked { reason: BlockReason::NoRoom(backpressured.entry), until: None })
        } else {
            self.stream.until.map(|until| Blocked { reason: BlockReason::TimerPoll, until: Some(until) })
        }
    }
}
