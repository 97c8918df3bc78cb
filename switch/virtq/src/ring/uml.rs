//! The quirk of User Mode Linux (7.2), the only front end known to pass a socket as its interrupt. Rings with an eventfd as interrupt
//! have none of this.
//!
//! A guest may lose an interrupt that comes just as it goes to sleep, and then sleeps until its next timer. So its receive queues are
//! checked for lost notifications soon after they fell quiet, and the interrupt is repeated.

use std::time::Duration;

use super::{Call, Ring};
use crate::time::{Cycles, in_cycles};

/// Time between two lost-notification checks.
const LOOK: Duration = Duration::from_micros(200);

impl Ring {
    /// Time between two lost-notification checks, where it is shorter than [`Spans::look`](crate::notification::Spans::look): if the
    /// driver may lose interrupts as it goes to sleep, and has been sent one.
    pub fn look_soon(&self) -> Option<Cycles> {
        let loses_interrupts = !self.kept && self.call.as_ref().is_some_and(Call::is_socket);
        loses_interrupts.then(|| in_cycles(LOOK))
    }
}
