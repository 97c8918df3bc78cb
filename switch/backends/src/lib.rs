//! The back ends of ports: the other side of each kind of port, and the sessions that serve it.
//!
//! - [`vhost_user`]: guests that share their memory; workers access their virtqueues directly, without a copy in between.
//! - [`interface`], [`stream`], [`xen`]: other sides that share no memory as virtqueues. Frames of the first two are copied to packet
//!   buffers.
//! - [`names`]: the responder of a segment, which gives guests addresses and names.
//! - [`null`], [`loopback`]: no other side: sinks and echoes for measurements, and examples of a back end.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]
// A worker that panics ends the network: a place that may panic states why it does not, as its file's expectation.
#![warn(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

pub(crate) use memlane_dataplane::{cpu_time, id, network, pool, port, stats, worker};
#[cfg(test)]
pub(crate) use memlane_dataplane::{settings, shared};
pub(crate) use memlane_model::{descriptors, peer};
pub(crate) use memlane_virtq::{budget, frame, memory, offload, packet, ring};

pub mod executor;
pub mod interface;
pub mod listener;
pub mod loopback;
pub mod names;
pub mod netlink;
pub mod netns;
pub mod null;
mod payload;
pub mod session;
mod store;
pub mod stream;
mod system;
pub mod takeover;
pub mod vhost_user;
pub mod xen;
