//! The data path of memlane: workers that move frames between the virtqueues of guests and the ends of other ports.
//!
//! - **Forwarding**: [`verdict`] decides by the FDB of a broadcast domain, with MAC learning and FDB aging ([`table`],
//!   [`segment`]), and keeps the last decisions in flow caches. Rate limits, storm control and anti-spoofing are in [`policy`].
//! - **Multicast** frames go to the members of their group, where a segment says so ([`multicast`]), and requests to servers to those
//!   (`audience`).
//! - **Address resolution**: the [`address_map`] of a broadcast domain answers ARP and neighbour discovery.
//! - **Scheduling**: CPU-time fairness among ports ([`cpu_time`]), fair queueing at a receiver ([`egress`]), and link emulation
//!   ([`link`]).
//! - **Workers**: a [`worker`] polls its sources and serves its egress queues; inter-worker queues ([`handover`]) connect the workers.
//! - **Backpressure** leaves frames in their sender's transmit ring (`ingress`). Quotas of the ring, the stall timeout, and passing
//!   over a frame too long for the receiver bound head-of-line blocking (`ingress`, `egress`).
//! - **Notifications**: interrupt coalescing of TX completions (`ingress`), lost-notification checks
//!   (`worker::lost_notifications`), adaptive busy polling and sleep (`worker::rest`), interrupt moderation
//!   (`ingress::timer_poll`), timers (`timers`).
//! - **DNS names** in policy rules stand for the addresses that a port's own questions were answered with ([`policy::grants`]); an answer waits
//!   until all workers know them (`acknowledged`).
//! - **Recordings** of verdicts are made by a [`record`]er at each worker, and a [`replay`] makes the verdicts again.
//! - **Control side**: [`port`]s bring virtqueues to workers; the [`network`] adds and removes ports.
//!
//! The crate opens no sockets, reads no files of the host and no JSON, and knows no kind of port: the kinds of ports bring the
//! ends of [`port::end`]; `memlane-model` has the values that are configured and reported.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]
// A worker that panics ends the network: a place that may panic states why it does not, as its file's expectation.
#![warn(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

pub(crate) use memlane_model::{author, descriptors, host_memory, journal};
pub(crate) use memlane_virtq::{
    ablation, budget, copy, frame, in_flight, memory, notification, offload, packet, ring, system, threshold, time, watchdog,
};

mod acknowledged;
pub mod address_map;
pub mod answer;
mod audience;
pub mod cpu_time;
mod denials;
pub mod driven;
pub mod egress;
pub mod grounds;
pub mod handover;
pub mod headers;
pub mod held;
pub mod id;
mod ingress;
pub mod link;
pub mod multicast;
pub mod network;
mod outcome;
pub mod policy;
pub mod pool;
pub mod port;
mod probes;
pub mod record;
pub mod refusal;
pub mod replay;
pub mod segment;
pub mod settings;
pub mod shared;
mod slots;
pub mod stats;
pub mod table;
pub mod tap;
mod timers;
pub mod too_long;
pub mod trial;
mod tuning;
pub mod twin;
pub mod verdict;
pub mod weight;
pub mod worker;
