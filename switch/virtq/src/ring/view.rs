//! Views of rings, for the operator: looking at a ring changes nothing.

use std::time::Duration;

use super::Ring;
use super::wait_state::Available;
use crate::time::cycles;

/// State of a ring, and of its driver as far as the ring tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingView {
    /// Entries.
    pub size: u16,
    /// Chains that the driver has made available and the switch has not taken: frames of a transmit queue, buffers of a receive
    /// queue.
    pub available: u16,
    /// Published used index.
    pub used: u16,
    /// Completed chains that the driver has not looked at though it requests an interrupt for them; 0 where that cannot be told,
    /// as without VIRTIO_F_EVENT_IDX.
    pub unread: u16,
    /// The front end has given a descriptor to interrupt the driver (SET_VRING_CALL).
    pub has_call: bool,
    /// The interrupt circuit breaker keeps an interrupt back.
    pub keeps_call: bool,
    /// For how long the ring has waited for memory that is still to be filled, if it does.
    pub waits_for_memory: Option<Duration>,
}

impl Ring {
    /// Present state.
    pub fn view(&self) -> RingView {
        let size = self.split.size();
        let available = match self.read_available() {
            Available::Index(index) => index.wrapping_sub(self.next_available),
            Available::Hole | Available::Unknown => 0,
        };
        // A driver that breaks the ring may say anything.
        let available = available.min(size);
        RingView {
            size,
            available,
            used: self.published_used,
            unread: self.unread().min(size - available),
            has_call: self.call.is_some(),
            keeps_call: self.kept,
            waits_for_memory: self.waits_for(cycles()),
        }
    }

    /// Entries from the one for which the driver requests an interrupt to the last that was published.
    fn unread(&self) -> u16 {
        let shown = self.published_used;
        let is_asked = self.options.event_index && self.wants_call(shown.wrapping_sub(self.split.size()), shown);
        if is_asked { shown.wrapping_sub(self.split.used_event()) } else { 0 }
    }
}
