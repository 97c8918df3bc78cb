//! The switch's hand-over queues, compiled for loom: `make loom`.

#[path = "../../src/handover.rs"]
pub mod handover;
