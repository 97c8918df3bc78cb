//! memlane.
pub mod copy;
pub mod frame;
pub mod handover;
pub mod memory;
pub mod offload;
pub mod parcel;
pub mod port;
pub mod ring;
pub mod schedule;
pub mod settings;
pub mod stats;
pub mod table;
pub mod time;
pub mod verdict;
pub mod worker;
