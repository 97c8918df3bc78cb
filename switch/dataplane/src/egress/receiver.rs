//! The receiver of one queue: whether it takes frames, and since when it takes none.
//!
//! - **Open**: it took frames lately, or none waits for it.
//! - **Full**: it has taken nothing for a while though frames wait for it. Its driver is interrupted again, at doubling intervals.
//! - **Stalled**: that took longer than the stall timeout. Frames that wait are dropped, and few wait anew until it takes one.
//!
//! A rate limit or fair queueing that holds frames back is not the receiver's doing: its time then starts again.

use crate::notification::{NotificationState, Spans};
use crate::time::{Cycles, SLICE, in_cycles};
use crate::tuning::{ACCOUNT_MEMORY, WAKE_LEAD};

/// Timeouts and intervals of receivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Stall timeout: a receiver may take nothing for so long before the frames that wait for it are dropped.
    pub stall_timeout: Cycles,
    /// A receiver may take nothing for so long before it counts as full, and its driver is interrupted again for the first time.
    pub full_after: Cycles,
    /// Lead of a wake-up before the arrival of a frame on an emulated link.
    pub early: Cycles,
    /// How long the account of a sender is kept that does not come.
    pub account_memory: Cycles,
    pub spans: Spans,
}

impl Times {
    pub(super) fn new(stall_timeout: Cycles) -> Self {
        let spans = Spans::default();
        Self {
            stall_timeout,
            full_after: spans.call_again,
            early: in_cycles(WAKE_LEAD),
            account_memory: in_cycles(ACCOUNT_MEMORY),
            spans,
        }
    }
}

/// Whether a receiver takes frames. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Open,
    Full,
    Stalled,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// Detects lost interrupts, and since when the driver takes nothing though frames wait for it.
    pub notification: NotificationState,
    /// Since when it is stalled: until it takes a frame.
    stalled: Option<Cycles>,
    posted: Posted,
    /// The receiver's buffers were expensive to walk: they are left alone until then.
    pub shut_until: Cycles,
}

impl Receiver {
    pub(super) fn readiness(&self, now: Cycles, times: &Times) -> Readiness {
        match self.stalled {
            Some(_) => Readiness::Stalled,
            None if self.is_full_for(times.full_after, now) => Readiness::Full,
            None => Readiness::Open,
        }
    }

    /// Whether it takes nothing since a frame was to wait.
    pub(super) fn is_full(&self) -> bool {
        self.notification.stuck_since().is_some()
    }

    /// Whether it has taken nothing for longer `than` that.
    pub(super) fn is_full_for(&self, than: Cycles, now: Cycles) -> bool {
        self.notification.stuck_since().is_some_and(|since| now.wrapping_sub(since) > than)
    }

    /// Since when it takes nothing, for the operator.
    pub(super) fn full_since(&self) -> Option<Cycles> {
        self.stalled.or(self.notification.stuck_since())
    }

    /// The receiver took a frame.
    #[inline]
    pub(super) fn took(&mut self) {
        self.stalled = None;
    }

    /// The receiver has exceeded the stall timeout.
    pub(super) fn stall(&mut self, now: Cycles) {
        let since = self.notification.stuck_since().unwrap_or(now);
        self.stalled.get_or_insert(since);
    }

    /// A frame waits for it. It is full from `now` on, if it was not before; from now on anyway if it is `not_the_cause`.
    pub(super) fn stand_still(&mut self, not_the_cause: bool, now: Cycles, times: &Times) {
        if not_the_cause {
            self.notification.begin_to_stand(now, &times.spans);
        } else {
            self.notification.stand_still(now, &times.spans);
        }
    }

    /// No frame waits for it any more.
    pub(super) fn move_on(&mut self) {
        self.notification.move_on();
    }

    /// Whether the interrupt of a full receiver is to be repeated; true once for each time.
    pub(super) fn calls_again(&mut self, now: Cycles, times: &Times) -> bool {
        self.notification.calls_again(now, &times.spans)
    }

    /// A frame found no room among the buffers that its driver had posted up to index `seen`.
    pub(super) fn note_posted(&mut self, seen: u16, now: Cycles) {
        self.posted.look(seen, now);
    }

    /// Whether a frame found no room in the posted buffers, and no more were posted for so long a `time`.
    pub(super) fn posts_nothing_for(&self, time: Cycles, now: Cycles) -> bool {
        self.shut_until <= now && self.posted.age > time
    }
}

/// Buffers that a receiver without room had posted, and for how long there were no new ones.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    /// The driver's index.
    seen: u16,
    looked_at: Cycles,
    age: Cycles,
}

impl Posted {
    /// A worker without a CPU meanwhile has seen nothing, so a look adds a bounded time.
    fn look(&mut self, seen: u16, now: Cycles) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        self.age = if self.seen == seen { self.age.saturating_add(passed.min(in_cycles(SLICE))) } else { 0 };
        self.seen = seen;
    }
}
