//! Work units: the cost of serving frames, in bytes that could be copied in the same time. They bound a service quantum, and split
//! the time that frames of several guests took together.

/// Batch size: frames that are taken from a source in one service quantum.
pub const BATCH: usize = 32;
/// A frame, or a segment of a GSO frame, beside its bytes.
pub const FRAME: u64 = 2048;
/// A descriptor of a chain that is walked.
pub(crate) const DESCRIPTOR: u64 = 64;
/// Bytes of a small buffer: beyond [`BURDEN`](crate::ring::BURDEN), one more descriptor may be walked for so many bytes of the
/// frame.
pub const SMALL: u32 = 256;
/// A descriptor chain that is opened or completed.
pub(crate) const TOUCH: u64 = 512;
/// A service quantum ends after this many, so that others need not wait for long: some dozen of the largest frames.
pub(crate) const TURN: u64 = 1 << 20;
/// The clock is read after this many: one of the largest frames, or a dozen small ones.
pub const STEP: u64 = 1 << 15;
