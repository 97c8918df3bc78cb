//! A vhost-user port (QEMU, "Vhost-user Protocol").
//!
//! 1. [`session`]: the start of a port's [task](crate::session). [`server`] accepts (or makes) one connection after the other,
//!    [`conversation`] answers one message after the other.
//!    [`front_end`]: the connection and its device, and a second one beside the first.
//! 2. [`wire`]: a complete message, with its file descriptors.
//! 3. [`features`]: feature negotiation.
//! 4. [`messages`]: the table of messages, and their decoder. [`device`]: the effect of each.
//!    `shared_memory_problem`: whether the guest's memory is shared at all.
//!    [`device_state`]: the device state, which is empty.
//! 5. [`control`]: the control virtqueue, where the front end leaves it to the back end.
//! 6. [`vring`]: the setup of a virtqueue, until it is complete and a worker takes the queue over.
//! 7. [`kept`]: the sockets in the next process of the network.
//!
//! The front end is trusted as little as its guest: a violation of the protocol ends the connection and quarantines the port, and
//! no message can block another port: a session whose thread is blocked has other threads serve the sessions of other ports.

pub mod access;
mod control;
mod conversation;
mod device;
mod device_state;
pub mod features;
mod front_end;
pub mod kept;
pub mod messages;
mod server;
mod session;
mod settings;
mod shared_memory_check;
pub mod socket;
mod vring;
pub mod wire;

pub use conversation::converse;
pub use front_end::StandingConnection;
pub use session::{Endpoint, run, run_restored};
pub use settings::DeviceSettings;

/// How a takeover has a session stand still: the session offers its connection, if it has one.
pub type Pause = crate::takeover::Pause<Option<StandingConnection>>;
