//! Tuned constants: numbers that were chosen by measurement, not by a specification. Each says what it trades and what was measured
//! or from which it follows; measurements stand in `docs/benchmarks/notes/design-choices.md`.
//!
//! A new one needs a measurement that fails without it. A test bounds their number.

use std::time::Duration;

// Egress: what waits for a receiver.

/// Flooded frames of a sender that may be enqueued at one receiver: with none, a busy receiver misses address resolution.
pub(crate) const FLOODS: u32 = 8;
/// Lead of a blocked sender of weight 1 at a receiver, in bytes: two of the longest frames, so that it is not held up at each.
pub(crate) const LEAD_BYTES: u64 = 128 * 1024;
/// How long the account of a sender is kept that does not come: several rounds of a busy receiver.
pub(crate) const ACCOUNT_MEMORY: Duration = Duration::from_millis(100);
/// Spare flow tables that a receiver keeps, of 1 KiB each: senders come and go with each burst.
pub(crate) const SPARE_FLOWS: usize = 4;
/// A receiver that took nothing for so long counts as full: a guest that is not scheduled takes longer, one that polls never.
pub(crate) const FULL_AFTER: Duration = Duration::from_millis(1);
/// A longer span may include time in which another task had the CPU: a worker's time slice.
pub(crate) const UNDISTURBED: Duration = Duration::from_micros(200);
/// Lead of a wake-up before a frame arrives over an emulated link: waking takes 7 to 60 us.
pub(crate) const WAKE_LEAD: Duration = Duration::from_micros(50);
/// Fetched frames (Xen grants) that are kept until they are published: bounds memory, two batches.
pub(crate) const MOST_FETCHED: usize = 64;
/// Factor of the ring's quota for a sender's only receiver: 7/8 of the ring; the rest lets a second receiver begin.
pub(crate) const SOLE_RECEIVER: u32 = 7;
/// A stalled receiver has this part of its factor: frames that show when it recovers.
pub(crate) const STALLED_PART: u32 = 16;

// Ingress: what a sender does.

/// Completions of at most so many bytes and frames need no interrupt at once: they complete a request or an acknowledgement, not a
/// stream. Request and answer take 1.06 interrupts a frame instead of 2.00 (decision 0015).
pub(crate) const LITTLE_BYTES: u64 = 8192;
/// See [`LITTLE_BYTES`].
pub(crate) const LITTLE_FRAMES: u16 = 8;
/// Time in which a busy-polling receiver takes a batch: to leave a frame in its ring for that long costs less than to enqueue it.
pub(crate) const POLLED_ROOM: Duration = Duration::from_micros(4);
