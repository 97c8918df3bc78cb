//! Frames: building them, describing their offloads, judging them.

mod header;

pub use header::{GsoKind, NetHeader};
