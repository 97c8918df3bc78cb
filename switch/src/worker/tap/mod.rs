//! TAPs on the data path.
//!
//! - [`batch`]: many reads or writes in one system call.
//! - [`TapFeed`]: frames read from the kernel into buffers of ours, which all TAPs take from one [`Pool`].
//! - [`TapSink`]: parcels written to the kernel straight from guests' memory, all of a pass together.

mod batch;
mod feed;
mod pool;
mod sink;

pub(super) use feed::TapFeed;
pub use pool::Pool;
pub(super) use sink::TapSink;
