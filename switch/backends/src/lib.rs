//! The kinds of ports of memlane: what stands behind each, and the threads that serve it.
//!
//! - [`vhost_user`]: guests whose memory is shared; their rings go to workers as they are.
//! - [`tap`], [`stream`], [`xen`]: sides without memory to share. Frames of the first two lie in packet buffers.
//! - [`null`], [`loopback`]: nobody, for measurements and as examples.

#![deny(unsafe_code)]

pub(crate) use memlane_dataplane::{airtime, descriptors, id, network, pool, port, stats, worker};
#[cfg(test)]
pub(crate) use memlane_dataplane::{settings, shared};
pub(crate) use memlane_virtq::{budget, frame, memory, offload, parcel, ring};

pub mod door;
pub mod loopback;
pub mod netlink;
pub mod netns;
pub mod null;
mod payload;
pub mod session;
mod store;
pub mod stream;
mod system;
pub mod tap;
pub mod vhost_user;
pub mod xen;
