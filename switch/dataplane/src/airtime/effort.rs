//! Effort: what serving frames takes, in bytes that could be copied in the same time. It bounds what is done at a time for one guest, and
//! splits the time that several guests' frames took together.

/// Frames that are taken from a source at a time.
pub const BATCH: usize = 32;
/// A frame, or a segment that one is cut into, beside its bytes.
pub const FRAME: u64 = 2048;
/// A descriptor that is walked.
pub const DESCRIPTOR: u64 = 64;
/// Bytes of a small buffer: so many more descriptors than [`BURDEN`](crate::ring::BURDEN) may be walked as the frame has times these.
pub const SMALL: u32 = 256;
/// A chain that is opened, or given back.
pub const TOUCH: u64 = 512;
/// After this much a turn ends, so that others need not wait for long: some dozen of the largest frames.
pub const TURN: u64 = 1 << 20;
/// After this much it is looked at whether the time is over: one of the largest frames, or a dozen small ones.
pub const STEP: u64 = 1 << 15;
/// After this much of what waits, or of what comes to the end of lines, the rest is left to the next pass.
pub const WAITING: u64 = 2 * TURN;
