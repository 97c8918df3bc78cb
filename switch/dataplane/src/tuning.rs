//! Tuned constants: numbers that were chosen by measurement, not by a specification. Each names its trade-off, and its measurement
//! or the number that it follows from; measurements stand in `docs/benchmarks/notes/design-choices.md`.
//!
//! A new one needs a measurement that fails without it. A test bounds their number.

use std::time::Duration;

// Egress: frames that wait for a receiver.

/// Virtual bytes that a turn gives a sender of weight 1 beyond the next sender's: a usual frame, so that a sender of small frames
/// needs few of them enqueued to keep its share.
pub const QUANTUM: u32 = 1514;
/// Buckets for flows of one sender at one receiver: fewer than 1 in 10 of eight flows meet another (birthday).
pub(crate) const FLOW_BUCKETS: usize = 64;

/// Flooded frames of a sender that may be enqueued at one receiver: with none, a busy receiver misses address resolution.
pub(crate) const FLOODS: u32 = 8;
/// Lead of a blocked sender of weight 1 at a receiver, in bytes: two of the longest frames, so that it is not held up at each.
pub(crate) const LEAD_BYTES: u64 = 128 * 1024;
/// How long the account of a sender is kept that does not come: several rounds of a busy receiver. In CPU time, a port is ahead of others by no
/// more: an error of measurement must not throttle it for long.
pub(crate) const ACCOUNT_MEMORY: Duration = Duration::from_millis(100);
/// Spare flow tables that a receiver keeps, of 1 KiB each: senders come and go with each burst.
pub(crate) const SPARE_FLOWS: usize = 4;
/// Lead of a wake-up before a frame arrives over an emulated link: waking takes 7 to 60 us.
pub(crate) const WAKE_LEAD: Duration = Duration::from_micros(50);
/// Fetched frames (Xen grants) that are kept until they are published: bounds memory, two batches.
pub(crate) const MOST_FETCHED: usize = 64;
/// Factor of the ring's quota for a sender's only receiver: 7/8 of the ring; the rest lets a second receiver begin.
pub(crate) const SOLE_RECEIVER: u32 = 7;
/// A stalled receiver has this part of its factor: frames that show when it recovers.
pub(crate) const STALLED_PART: u32 = 16;

// Ingress: senders.

/// Completions of at most so many bytes and frames need no interrupt at once: they complete a request or an acknowledgement, not a
/// stream. Request and answer take 1.06 interrupts a frame instead of 2.00 (decision 0015).
pub(crate) const LITTLE_BYTES: u64 = 8192;
/// Time in which a busy-polling receiver takes a batch: to leave a frame in its ring for that long costs less than to enqueue it.
pub(crate) const POLLED_ROOM: Duration = Duration::from_micros(4);

// Workers: notifications, polling and sleep.

/// Frames of a service quantum that are so few that the receiver is probably waiting for them (an answer, not a stream). Where
/// drivers poll, publishing them at once costs no interrupt.
pub(crate) const FEW_FRAMES: u32 = 4;
/// Packets in flight between two workers, one way: the backlog that a slow worker takes out of senders' rings.
pub(crate) const PACKETS: usize = 512;
/// Interval in which a busy worker asks the kernel for kicks of idle rings: the system call takes a fiftieth of it.
pub(crate) const KICK_INTERVAL: Duration = Duration::from_micros(20);
/// A system call that is made no more often than this costs nothing that can be measured: setting the timer anew for a deadline
/// further away, reading whether a CPU is idle.
pub(crate) const SELDOM: Duration = Duration::from_millis(10);
/// Poll interval of rings with drivers that never kick.
pub(crate) const UNKICKED_INTERVAL: Duration = Duration::from_millis(1);
/// Shortest time of adaptive busy polling: about a wake-up.
pub(crate) const LEAST_POLL: Duration = Duration::from_micros(10);
/// Longest time of adaptive busy polling, and interval of timer polling: most answers of a guest to a guest take less. Adaptive
/// polling takes a sixth more CPU for a fifth less round-trip time (decision 0011).
pub(crate) const LONGEST_POLL: Duration = Duration::from_micros(200);
/// Poll time after which the CPU is yielded to other tasks: the scheduler likes to wake a guest on the CPU of its worker.
pub(crate) const YIELD_INTERVAL: Duration = Duration::from_micros(5);
/// Rests in a row after which frames came and none was received, before a sender counts as a one-way stream.
pub(crate) const STREAM_PROOF: u8 = 8;
/// How long a worker keeps its CPU: at every wake-up anew, a web site in three guests answered after 529 instead of 43 ms.
pub(crate) const AFFINITY_TIME: Duration = Duration::from_secs(1);

// CPU-time fairness.

/// How far a port may be ahead of others in CPU time: a usual batch costs less, so that only expensive frames throttle a port.
pub(crate) const LEAD_TIME: Duration = Duration::from_micros(20);
/// A worker that had frames without a break for so long has no time to spare. As old are the readings of the thread's CPU clock at most: a
/// system call each.
pub(crate) const SCARCE_AFTER: Duration = Duration::from_millis(1);
/// Bytes after which the older half of a port's cost average is halved: some batches of it.
pub(crate) const COST_MEMORY: f64 = 1024.0 * 1024.0;
/// Minimum cost of a byte, in cycles: no copy is faster.
pub(crate) const CHEAPEST_BYTE: f64 = 1.0 / 8.0;
