//! Views of a port's virtqueues, for the operator: looking at them changes nothing.

use std::time::Duration;

use crate::id::{Direction, RingKey};
use crate::ring::RingView;

/// A virtqueue of a port: its ring, and the worker's state of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Which virtqueue.
    pub key: RingKey,
    /// The ring.
    pub ring: RingView,
    /// Its front end has enabled it (SET_VRING_ENABLE).
    pub enabled: bool,
    /// A kick came, or none is needed.
    pub started: bool,
    /// The driver has never posted a buffer to it.
    pub unfilled: bool,
    /// The worker takes nothing from it until the driver kicks.
    pub awaits_kick: bool,
    /// How long the driver has taken nothing though there are frames for it, as far as frames came.
    pub stuck: Option<Duration>,
}

impl QueueView {
    /// Whether this is a receive queue.
    pub fn is_receive(&self) -> bool {
        self.key.direction == Direction::Receive
    }
}
