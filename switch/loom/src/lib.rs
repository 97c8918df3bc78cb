//! The switch's hand-over queues, and the slots that its SIGBUS handler reads, compiled for loom: `make loom`.

#[path = "../../src/handover.rs"]
pub mod handover;

#[path = "../../src/memory/slot.rs"]
pub mod slot;
