//! memlane: the network between virtual machines that share a host.
//!
//! ```text
//!     guest A                     worker                      guest B
//!   +---------+   +----------------------------------+   +----------+
//!   | transmit|-->| chain -> parcel -> verdict       |   | receive  |
//!   |  (ring) |   |  checked  headers  who gets it   |-->|  (ring)  |
//!   |         |   |  once     copied   and when      |   |          |
//!   |  frame  |   |           once                   |   |  buffer  |
//!   +----|----+   +----------------------------------+   +-----^----+
//!        |                                                     |
//!        +---------------- one copy of the payload ------------+
//! ```
//!
//! - A **network** is all that one daemon serves; a **segment** is one broadcast domain of it; a **port** is a guest's place on a segment, behind
//!   vhost-user or a TAP. Ports and segments come, go and change while the network runs.
//! - A **transmit queue** is a ring that the guest fills and we read, a **receive queue** one that we fill and the guest reads (its
//!   receive queue).
//! - A **frame** is an Ethernet frame behind a virtio-net header. A **parcel** is a frame that still lies in its sender's memory: what was copied of
//!   its headers, and where the rest is.
//! - A **verdict** says where a frame goes.
//! - A **worker** is a thread that owns rings and moves frames between them, from its **sources** to its **outlets**.
//!
//! The switch is four crates, each of which knows those above it and no other:
//!
//! 1. `memlane-virtq`: guests' memory and the rings in it, what is known of a frame, the one copy.
//! 2. `memlane-dataplane`: where a frame goes, when, and how it gets there: workers, policy, table, links, and the network of ports.
//! 3. `memlane-backends`: the kinds of ports and the threads that serve them.
//! 4. This one, `memlane`: the operator's side. Its library shows the modules of the others too, for tests, benches and fuzzers.
//!
//! Where new things go:
//!
//! - *A kind of port*: a file or folder in `memlane-backends` that makes the two ends of [`port::end`], as [`null`](memlane_backends::null) and
//!   [`loopback`](memlane_backends::loopback) do; its key in [`config::document`] and [`config::PortKind`]; how it is opened in [`daemon`].
//! - *A rule by which frames are dropped or sent elsewhere*: [`verdict::decide`], with its [`stats::DropReason`].
//! - *A control command*: its route in [`control`], what it has the [`daemon`] do, its words in [`cli`].
//!
//! `docs/tour.md` follows one frame through the modules, and says where each rule of a vhost-user back end is kept.

#![deny(unsafe_code)]

pub use memlane_dataplane::{
    airtime, descriptors, handover, host_memory, id, journal, link, network, policy, port, quantity, schedule, segment, settings,
    shared, stats, table, tap, verdict, worker,
};
#[cfg(fuzzing)]
pub use memlane_virtq::probe;
pub use memlane_virtq::{budget, copy, frame, memory, offload, parcel, ring, time, watchdog};

pub mod cli;
pub mod config;
pub mod control;
pub mod cpus;
pub mod daemon;
pub mod folder;
mod system;
pub mod uplink;
