//! CPU-time fairness: a worker's time, and the ports to which it is charged.
//!
//! - **Work units** are the cost of frames, known beforehand ([`work_units`]). They bound a service quantum, and so does time itself
//!   ([`mod@slice`]).
//! - **Accounting** records the work done for each port, until the time that it took is charged ([`accounting`]).
//! - **Stolen time** is CPU time that the scheduler gave to other tasks meanwhile: it is charged to no port ([`stolen`]).
//! - **Virtual time** is the time of a port divided by its weight: a port that is ahead of others is throttled ([`virtual_time`]).

pub mod accounting;
pub mod slice;
mod stolen;
mod virtual_time;
pub mod work_units;

use crate::ablation;
use crate::id::PortId;
use crate::time::{Cycles, SLICE, cycles, in_cycles};
use crate::weight::Weight;
use accounting::Accounting;
use stolen::Stolen;
use virtual_time::VirtualTimes;

/// See the module. Of one worker, by the thread that runs it.
#[derive(Debug)]
pub struct CpuTime {
    /// Work done since time was last charged.
    pub accounting: Accounting,
    times: VirtualTimes,
    stolen: Stolen,
    /// When the poll iteration began.
    now: Cycles,
    /// The moment up to which time was charged.
    charged_until: Cycles,
    /// A longer span may include time in which another task had the CPU.
    long: Cycles,
}

impl Default for CpuTime {
    fn default() -> Self {
        let (accounting, times, stolen) = (Accounting::default(), VirtualTimes::new(), Stolen::new());
        Self { accounting, times, stolen, now: 0, charged_until: 0, long: in_cycles(SLICE) }
    }
}

impl CpuTime {
    /// `port` was added, and there are up to `ports` now.
    pub fn enter(&mut self, port: PortId, ports: usize) {
        self.times.enter(port, ports);
    }

    /// A poll iteration begins in moment `now`.
    #[inline]
    pub(crate) fn begin_iteration(&mut self, now: Cycles) {
        (self.now, self.charged_until) = (now, now);
        self.times.begin_iteration();
        self.stolen.begin_iteration(now);
    }

    /// A poll iteration moved so many `frames`; returns the cycles that it took.
    #[inline]
    pub(crate) fn end_iteration(&mut self, frames: u32) -> Cycles {
        let took = if frames > 0 { cycles().saturating_sub(self.now) } else { 0 };
        self.times.end_iteration(frames, took);
        took
    }

    /// When the present poll iteration began.
    #[inline]
    pub(crate) fn iteration_began(&self) -> Cycles {
        self.now
    }

    /// The worker slept for so long by itself; that is no stolen time.
    pub(crate) fn slept(&mut self, span: Cycles) {
        self.stolen.slept(span);
    }

    /// Admits `port` to service in this poll iteration; false if it is throttled.
    #[inline]
    pub fn admit(&mut self, port: PortId) -> bool {
        self.times.admit(port)
    }

    /// `port` is backlogged: it has more frames than it was served.
    #[inline]
    pub(crate) fn mark_backlogged(&mut self, port: PortId) {
        self.times.mark_backlogged(port);
    }

    /// True if `port` was throttled in the last poll iteration.
    pub(crate) fn is_throttled(&self, port: PortId) -> bool {
        self.times.is_throttled(port)
    }

    /// True if some port was throttled in this poll iteration.
    pub(crate) fn has_throttled(&self) -> bool {
        self.times.has_throttled()
    }

    /// Weight of `port` in the fair queueing at a receiver; `weight` is the configured one.
    #[inline]
    pub(crate) fn weight_at_receivers(&self, port: PortId, weight: u16) -> Weight {
        self.times.weight_at_receivers(port, weight)
    }

    /// The accounting, and meanwhile the function [`Self::weight_at_receivers`].
    pub(crate) fn accounting_and_weights(&mut self) -> (&mut Accounting, impl Fn(PortId, u16) -> Weight + Copy) {
        let Self { accounting, times, .. } = self;
        (accounting, |port, weight| times.weight_at_receivers(port, weight))
    }

    /// Charges the time since the last charge to no port.
    #[inline]
    pub fn skip(&mut self) {
        self.take_time();
    }

    /// Charges the time since the last charge to the senders in the accounting. `weight_of` returns a sender's weight, `paid` is
    /// called with each sender's cost.
    #[inline]
    pub fn charge(&mut self, weight_of: impl Fn(PortId) -> u16, mut paid: impl FnMut(PortId, Cycles)) {
        if !ablation::FAIRNESS {
            return;
        }
        let cycles = self.take_time();
        let cycles = if cycles > self.long { self.stolen.own_part(cycles) } else { cycles };
        let Self { accounting, times, .. } = self;
        accounting.settle(cycles, |sender, cost, bytes| {
            times.spend(sender, weight_of(sender), cost, bytes);
            paid(sender, cost);
        });
    }

    /// Cycles since this was last asked.
    #[inline]
    fn take_time(&mut self) -> Cycles {
        // Not before this poll iteration, even if the clock was set meanwhile.
        let now = cycles().max(self.now);
        now.saturating_sub(std::mem::replace(&mut self.charged_until, now))
    }
}
