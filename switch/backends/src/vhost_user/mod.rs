//! A vhost-user port (QEMU, "Vhost-user Protocol").
//!
//! 1. [`session`]: a thread for each port accepts (or makes) the connection and answers one message after the other.
//! 2. [`wire`]: a message, whole, with its descriptors.
//! 3. [`features`]: what is offered, what was agreed.
//! 4. [`device`], [`extra`]: what each message does.
//!    [`doubt`]: whether the guest's memory is shared at all.
//! 5. [`control`]: the control queue, where the front end leaves it to us.
//! 6. [`vring`]: a ring's particulars, until all are known and it is handed to a worker.
//!
//! The front end is as little trusted as its guest: what breaks a rule ends the connection and puts the port in quarantine, and
//! no message can hold up another port, because each has a thread of its own.

pub mod access;
mod control;
mod device;
mod doubt;
mod extra;
pub mod features;
mod session;
pub mod socket;
mod vring;
pub mod wire;

pub use session::{Endpoint, Session, converse, run};

use std::sync::Arc;

use crate::port::Port;

/// What the operator set for a vhost-user port.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// The port.
    pub port: Arc<Port>,
    /// Whether frames may come to the guest with checksums and segmentation left undone.
    pub receive_offloads: bool,
    /// Queue pairs offered to guests whose front end does not decide that itself.
    pub pairs: u16,
}
