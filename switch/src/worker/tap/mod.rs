//! TAPs on the data path.
//!
//! - [`batch`]: many reads or writes in one system call.
//! - [`TapFeed`]: frames read from the kernel into buffers of ours.
//! - [`TapSink`]: parcels written to the kernel straight from guests' memory, all of a pass together.

mod batch;
mod feed;
mod sink;

pub(super) use feed::TapFeed;
pub(super) use sink::TapSink;
