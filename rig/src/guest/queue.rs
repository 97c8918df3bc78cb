//! A ring with its kick and call descriptors.

use crate::frontend::notify::{Call, CallKind, Kick, KickKind};
use crate::ring::DriverRing;

use super::GuestError;

/// A virtqueue as the front end knows it.
#[derive(Debug)]
pub struct Queue {
    /// The driver's half of the ring.
    pub ring: DriverRing,
    /// Number of the queue in messages: 2n for receive queues, 2n+1 for transmit queues.
    pub index: usize,
    /// Guest to back end.
    pub kick: Kick,
    /// Back end to guest.
    pub call: Call,
    /// The back end signals it when it gives the ring up (SET_VRING_ERR).
    pub fault: Call,
    /// Available index to announce at the next start.
    pub base: u16,
    /// Kicks sent so far.
    pub kicks: u64,
}

impl Queue {
    pub(super) fn new(ring: DriverRing, index: usize, kick: KickKind, call: CallKind) -> Result<Self, GuestError> {
        let refused = |cause| GuestError::Refused { step: "making a kick or call descriptor", cause };
        let kick = Kick::new(kick).map_err(refused)?;
        let call = Call::new(call).map_err(refused)?;
        let fault = Call::new(CallKind::Eventfd).map_err(refused)?;
        Ok(Self { fault, ring, index, kick, call, base: 0, kicks: 0 })
    }

    /// Shows the offered chains to the back end and kicks it if it asks for that.
    pub fn publish(&mut self) {
        self.ring.publish();
        if self.ring.kick_needed() {
            self.kick();
        }
    }

    /// Kicks the back end, asked for or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        self.kick.kick();
    }
}
