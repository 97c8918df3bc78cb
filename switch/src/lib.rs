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
//! Where new things go:
//!
//! - *A kind of port*: a file or folder in [`port`] that makes the two ends of [`port::end`], as [`port::null`] and [`port::loopback`] do; its key in
//!   [`config::document`] and [`config::PortKind`]; how it is opened in [`daemon`].
//! - *A rule by which frames are dropped or sent elsewhere*: [`verdict::decide`], with its [`stats::DropReason`].
//! - *A control command*: its route in [`control`], what it has the [`daemon`] do, its words in [`cli`].
//!
//! Modules stand below in the order in which a frame meets them. `docs/tour.md` follows one frame through them, and says where each rule of a
//! vhost-user back end is kept.

#![deny(unsafe_code)]

// What everything is called by.
pub mod id;

// Where a frame lies: guests' memory, and the rings in it.
pub mod memory;
pub mod ring;

// What is known of it: headers copied once, offloads checked.
pub mod frame;
pub mod offload;
pub mod parcel;

// Where it goes, and when.
pub mod airtime;
pub mod budget;
pub mod link;
pub mod policy;
pub mod schedule;
pub mod segment;
pub mod table;
pub mod verdict;

// How it gets there: the one copy; the loop; other workers.
pub mod copy;
pub mod handover;
pub mod host_memory;
pub mod worker;

// A worker's two sides: where frames come in, where they leave; and when something is to be done there.
mod agenda;
mod notice;
mod outlets;
mod slots;
mod sources;

// What all of these share.
pub mod cpus;
#[cfg(fuzzing)]
pub mod probe;
pub mod settings;
pub mod shared;
pub mod stats;
pub mod system;
pub mod time;
pub mod watchdog;

// Who brings rings to workers: ports, and the network that they make; where it goes on at other hosts.
pub mod netns;
pub mod network;
pub mod port;
pub mod uplink;

// The operator's side.
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod descriptors;
pub mod folder;
