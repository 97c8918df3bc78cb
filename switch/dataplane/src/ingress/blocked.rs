//! Why a source takes no more frames from its transmit queue at present, in one place: the worker decides by it whether the source is
//! armed, and when it is looked at next.
//!
//! A port over its share of CPU time is no reason of a source: all sources of the port are throttled together, for some poll
//! iterations ([`crate::cpu_time`]). Nor are receive buffers that are left alone, which block the receiver's egress queue for all senders.

use super::Source;
use crate::id::RouteEntry;
use crate::time::Cycles;

/// Why a source takes no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// The transmit rate limit of its port, until that moment.
    RateLimit(Cycles),
    /// Backpressure: the receive queue of the next frame has no room, or the inter-worker queue on the way there.
    NoRoom(RouteEntry),
    /// Timer polling: it sends a one-way stream, and the timer takes the next batch in that moment.
    TimerPoll(Cycles),
}

impl Source {
    /// Why it takes no more frames, if it does not. A rate limit comes first: while it holds, room for the next frame is of no use.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        let no_room = || self.backpressured.map(|backpressured| Blocked::NoRoom(backpressured.entry));
        self.held_until.map(Blocked::RateLimit).or_else(no_room).or_else(|| self.stream.until.map(Blocked::TimerPoll))
    }
}
