//! The data path of memlane: workers that move frames between the rings and ends of ports.
//!
//! - Where a frame goes: [`verdict`], by the [`table`] of its [`segment`]; whether it may: [`policy`].
//! - When: [`airtime`], [`schedule`], and the [`link`]s that are emulated.
//! - How it gets there: [`worker`]s, from their sources to their outlets, and [`handover`] between them.
//! - Who brings rings to workers: [`port`]s, and the [`network`] that they make.
//!
//! This crate opens no sockets and knows no kind of port: what stands behind a port brings the ends of [`port::end`].

#![deny(unsafe_code)]

pub(crate) use memlane_virtq::{budget, frame, memory, notice, offload, parcel, ring, time, watchdog};

mod agenda;
pub mod airtime;
pub mod descriptors;
mod fate;
pub mod handover;
pub mod host_memory;
pub mod id;
pub mod link;
pub mod network;
mod outlets;
pub mod policy;
pub mod pool;
pub mod port;
pub mod quantity;
pub mod schedule;
pub mod segment;
pub mod settings;
pub mod shared;
mod slots;
mod sources;
pub mod stats;
pub mod table;
pub mod verdict;
pub mod worker;
