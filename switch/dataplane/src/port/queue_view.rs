//! Views of a port's virtqueues, for the operator: looking at them changes nothing.

use std::time::Duration;

use crate::id::{Direction, PortId, RingKey};
use crate::ring::RingView;

/// A virtqueue of a port: its ring, and the worker's state of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Which virtqueue.
    pub key: RingKey,
    /// The ring.
    pub ring: RingView,
    /// The front end has enabled the virtqueue (SET_VRING_ENABLE).
    pub enabled: bool,
    /// A kick came, or none is needed.
    pub started: bool,
    /// The driver has never posted a buffer to it.
    pub unfilled: bool,
    /// The worker takes nothing from it until the driver kicks.
    pub awaits_kick: bool,
    /// How long the driver has taken nothing though there are frames for it, as far as frames came.
    pub stuck: Option<Duration>,
    /// Why the worker takes no more frames from it, if it is a transmit queue and the worker takes none.
    pub blocked: Option<QueueBlock>,
}

/// Why a transmit queue is blocked at this moment, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBlock {
    /// The transmit rate limit of its port opens after this time; `None` while the port is disabled.
    RateLimit(Option<Duration>),
    /// Backpressure: `receiver` has no room for the next frame, or one of several receivers of a flooded frame has none (then
    /// `receiver` is the sender itself).
    NoRoom {
        /// The receiver.
        receiver: PortId,
        /// How long the frame has been left in the ring.
        waited: Duration,
    },
    /// CPU-time fairness: its port is throttled for some poll iterations.
    CpuTime,
}

impl QueueView {
    /// Whether this is a receive queue.
    pub fn is_receive(&self) -> bool {
        self.key.direction == Direction::Receive
    }
}
