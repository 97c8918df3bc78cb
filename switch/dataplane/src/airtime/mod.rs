//! Airtime: a worker's time, and for whom it is spent.
//!
//! - **Effort** is what serving frames takes, known beforehand ([`effort`]): it bounds what is done at a time, and so does time itself ([`slice`]).
//! - The **bill** has what was done and for whom, until the time that it took is charged ([`bill`]).
//! - **Stolen** is what somebody else had the CPU for meanwhile: nobody pays for that ([`stolen`]).
//! - **Virtual time** is what a port had by its weight: one that is ahead of others sits out ([`virtual_time`]).

pub mod bill;
pub mod effort;
pub mod slice;
mod stolen;
mod virtual_time;

use std::time::Duration;

use crate::id::PortId;
use crate::schedule::Weight;
use crate::time::{Cycles, cycles, in_cycles};
use bill::Bill;
use stolen::Stolen;
use virtual_time::VirtualTimes;

/// What lasted longer than this may have been interrupted by somebody else.
const LONG: Duration = Duration::from_micros(200);

/// See the module. Of one worker, by the thread that runs it.
#[derive(Debug)]
pub struct Airtime {
    /// What was done since time was last charged to somebody.
    pub bill: Bill,
    times: VirtualTimes,
    stolen: Stolen,
    /// When the pass began.
    now: Cycles,
    /// Up to when time was charged to somebody.
    charged_until: Cycles,
    long: Cycles,
}

impl Default for Airtime {
    fn default() -> Self {
        let (bill, times, stolen) = (Bill::default(), VirtualTimes::new(), Stolen::new());
        Self { bill, times, stolen, now: 0, charged_until: 0, long: in_cycles(LONG) }
    }
}

impl Airtime {
    /// `port` comes, and there are up to `ports` now.
    pub fn enter(&mut self, port: PortId, ports: usize) {
        self.times.enter(port, ports);
    }

    /// A pass begins in moment `now`.
    #[inline]
    pub fn begin_pass(&mut self, now: Cycles) {
        (self.now, self.charged_until) = (now, now);
        self.times.begin_pass();
        self.stolen.begin_pass(now);
    }

    /// A pass moved so many `frames`; returns the cycles that it took.
    #[inline]
    pub fn end_pass(&mut self, frames: u32) -> Cycles {
        let took = if frames > 0 { cycles().saturating_sub(self.now) } else { 0 };
        self.times.end_pass(frames, took);
        took
    }

    /// The worker slept for so long, of its own accord.
    pub fn slept(&mut self, span: Cycles) {
        self.stolen.slept(span);
    }

    /// Whether `port` has its turn in this pass.
    #[inline]
    pub fn may_spend(&mut self, port: PortId) -> bool {
        self.times.may_spend(port)
    }

    /// `port` has more frames than it had turns for.
    #[inline]
    pub fn wants_more(&mut self, port: PortId) {
        self.times.wants_more(port);
    }

    /// True if some port sat out this pass.
    pub fn anybody_sits_out(&self) -> bool {
        self.times.anybody_sits_out()
    }

    /// What `port`, which has this weight, weighs where it waits for a receiver among others.
    #[inline]
    pub fn weight_at_receivers(&self, port: PortId, weight: u16) -> Weight {
        self.times.weight_at_receivers(port, weight)
    }

    /// The bill, and meanwhile what [`Self::weight_at_receivers`] tells.
    pub fn bill_and_weights(&mut self) -> (&mut Bill, impl Fn(PortId, u16) -> Weight + Copy) {
        let Self { bill, times, .. } = self;
        (bill, |port, weight| times.weight_at_receivers(port, weight))
    }

    /// What was done since time was last charged is nobody's.
    #[inline]
    pub fn skip(&mut self) {
        self.take_time();
    }

    /// Has those who are on the bill pay for the time since somebody last did. `weight_of` tells each one's weight, `paid` hears what each paid.
    #[inline]
    pub fn charge(&mut self, weight_of: impl Fn(PortId) -> u16, mut paid: impl FnMut(PortId, Cycles)) {
        let cycles = self.take_time();
        let cycles = if cycles > self.long { self.stolen.own_part(cycles) } else { cycles };
        let Self { bill, times, .. } = self;
        bill.settle(cycles, |sender, cost, bytes| {
            times.spend(sender, weight_of(sender), cost, bytes);
            paid(sender, cost);
        });
    }

    /// Cycles since this was last asked.
    #[inline]
    fn take_time(&mut self) -> Cycles {
        // Not before this pass, should the clock have gone back or been set right meanwhile.
        let now = cycles().max(self.now);
        now.saturating_sub(std::mem::replace(&mut self.charged_until, now))
    }
}
