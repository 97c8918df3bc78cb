//! Quotas: one dynamic threshold for everything in which frames wait. A user may take another unit while it holds fewer than a
//! factor times as many as are free ([`DynamicThreshold`]), so each leaves room for the next, and no count of users is needed.
//!
//! | shared | among | factor |
//! |---|---|---|
//! | entries of a transmit ring | the receivers of its frames in flight | by [`RingQuota`] |
//! | entries of a transmit ring | flooded frames, and others | 1 |
//! | places of a worker's [wait queue](super::WaitQueue) | senders | 1 |
//! | an inter-worker queue | senders | 1 |
//! | the memory for frames of TAPs and links ([`Budget`](crate::budget::Budget)) | ports | 1 |

use super::receiver::Readiness;
use crate::threshold::DynamicThreshold;
use crate::tuning::{SOLE_RECEIVER, STALLED_PART};

/// Quota of one receiver in a transmit ring: with factor a, frames in flight to it take at most a / (1 + a) of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingQuota {
    /// The configured factor, in sixteenths.
    usual: u32,
}

impl RingQuota {
    /// For a configured `share` of the ring, above 0 and below 1.
    pub(crate) fn new(share: f32) -> Self {
        Self { usual: (16.0 * share / (1.0 - share)).max(1.0) as u32 }
    }

    /// Whether another frame may be in flight to a receiver that has `held` of the ring, of which `free` entries are left.
    pub(crate) fn admits(self, receiver: Readiness, is_sole: bool, held: u16, free: u16) -> bool {
        self.factor(receiver, is_sole).admits(held.into(), free.into())
    }

    fn factor(self, receiver: Readiness, is_sole: bool) -> DynamicThreshold {
        DynamicThreshold::sixteenths(match receiver {
            // A stalled receiver blocks little of the ring, and finds frames when it recovers.
            Readiness::Stalled => self.usual.div_ceil(STALLED_PART),
            // The sender's only receiver: a reserve is left for others.
            Readiness::Open if is_sole => self.usual.max(SOLE_RECEIVER * 16),
            Readiness::Open | Readiness::Full => self.usual,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of a ring of 256 that may be in flight to a receiver.
    fn most(share: f32, receiver: Readiness, is_sole: bool) -> u16 {
        (0..256).find(|&held| !RingQuota::new(share).admits(receiver, is_sole, held, 256 - held)).unwrap_or(256)
    }

    #[test]
    fn a_receiver_gets_its_part_of_the_ring_and_a_stalled_one_little() {
        assert_eq!(most(0.5, Readiness::Open, false), 128);
        assert_eq!(most(0.5, Readiness::Full, true), 128, "it may be about to stall");
        assert_eq!(most(0.5, Readiness::Open, true), 224);
        assert_eq!(most(0.5, Readiness::Stalled, true), 16);
        assert_eq!(most(0.001, Readiness::Stalled, false), 16, "enough to find out that it recovers");
    }
}
