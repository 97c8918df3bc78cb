//! Link emulation (netem): broadcast domains of exactly two ports on which frames are delayed, lost, duplicated or reordered.
//!
//! 1. [`Impairment`]: the configuration; [`Path`]: the same, checked, in the units of the data path.
//! 2. [`chance`]: random losses and delays.
//! 3. [`DelayLine`](crate::egress): one direction of an emulated link. It stands before the receiver's virtqueue. A frame in flight on
//!    it has left its sender's memory: a copy lies in the switch's memory, within a [`Budget`](crate::budget).
//!
//! A frame first waits for the emulated transmitter, which sends at the link's rate and has a bounded queue; then it is delayed.

pub mod chance;

pub use memlane_model::impairment::{Distribution, GilbertElliott, Impairment};
use memlane_model::quantity::{parse_delay, parse_rate};

use crate::time::{Cycles, in_cycles};

/// Default length of the transmitter's queue, in frames.
const QUEUE: u32 = 1000;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub(crate) delay: Cycles,
    pub(crate) jitter: Cycles,
    pub(crate) distribution: Distribution,
    pub(crate) keep_order: bool,
    pub(crate) loss: f64,
    pub(crate) bursts: Option<GilbertElliott>,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    /// Bytes a second; 0 for no limit.
    pub(crate) rate: u64,
    pub(crate) queue: u32,
}

impl Path {
    /// True if frames pass without any impairment.
    pub(crate) fn is_clear(&self) -> bool {
        let Self { delay, jitter, loss, bursts, duplicate, rate, .. } = self;
        (*delay, *jitter, *rate) == (0, 0, 0) && *loss == 0.0 && *duplicate == 0.0 && bursts.is_none()
    }

    /// True if the path only delays, by a constant: frames that leave at the same moment arrive at the same moment.
    pub(crate) fn only_delays(&self) -> bool {
        let Self { delay: _, jitter, distribution: _, keep_order: _, loss, bursts, duplicate, reorder, rate, queue: _ } = self;
        (*jitter, *rate) == (0, 0) && [*loss, *duplicate, *reorder] == [0.0; 3] && bursts.is_none()
    }
}

impl From<&Impairment> for Path {
    /// An invalid value in `impairment` does not impair.
    fn from(impairment: &Impairment) -> Self {
        let delay = |text: &Option<String>| text.as_deref().and_then(|text| parse_delay(text).ok()).map_or(0, in_cycles);
        Self {
            delay: delay(&impairment.delay),
            jitter: delay(&impairment.jitter),
            distribution: impairment.distribution,
            keep_order: impairment.keep_order,
            loss: impairment.loss,
            bursts: impairment.gilbert_elliott,
            duplicate: impairment.duplicate,
            reorder: impairment.reorder,
            rate: impairment.rate.as_deref().and_then(|rate| parse_rate(rate).ok()).map_or(0, |bits| bits.div_ceil(8)),
            queue: impairment.queue.unwrap_or(QUEUE),
        }
    }
}

impl From<&Option<Impairment>> for Path {
    /// No impairment is a clear path.
    fn from(impairment: &Option<Impairment>) -> Self {
        impairment.as_ref().map_or_else(|| Self::from(&Impairment::default()), Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_clear_when_nothing_on_it_impairs() {
        let clear = Impairment { reorder: 0.5, keep_order: true, queue: Some(7), ..Impairment::default() };
        assert!(Path::from(&clear).is_clear());
        let bursts = Some(GilbertElliott { p: 0.1, r: 0.5, bad: 1.0, good: 0.0 });
        for impaired in [
            Impairment { delay: Some("1us".into()), ..Impairment::default() },
            Impairment { jitter: Some("1us".into()), ..Impairment::default() },
            Impairment { rate: Some("1Gbit".into()), ..Impairment::default() },
            Impairment { loss: 0.001, ..Impairment::default() },
            Impairment { duplicate: 0.001, ..Impairment::default() },
            Impairment { gilbert_elliott: bursts, ..Impairment::default() },
        ] {
            assert!(!Path::from(&impaired).is_clear(), "{impaired:?}");
        }
    }
}
