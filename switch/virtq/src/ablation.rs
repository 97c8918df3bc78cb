//! Ablations: builds without one idea of the switch, to measure its worth (`make ablation`, the lab's `what_each_idea_is_worth`).
//!
//! Each is a Cargo feature, none of them in the default build. A constant here says if its idea is there; in the default build the
//! compiler removes every branch that asks it.

/// Flow cache: a frame like the one before needs no new verdict.
pub const FLOW_CACHE: bool = !cfg!(feature = "ablation-no-flow-cache");
/// Fast path: frames that fit the flow cache go from ring to ring without a packet in between.
pub const FAST_PATH: bool = FLOW_CACHE && !cfg!(feature = "ablation-no-fast-path");
/// Fairness: accounts of the senders to a receiver, CPU-time fairness, and quotas of shared rings and queues. Without it the first sender
/// that comes is served first, until all is taken.
pub const FAIRNESS: bool = !cfg!(feature = "ablation-no-fairness");
/// Batching. Without it a service quantum is one frame, and a receiver is served one enqueued frame in a poll iteration.
pub const BATCHING: bool = !cfg!(feature = "ablation-no-batching");
/// Timer polling of one-way streams. Without it their drivers kick for every few frames.
pub const TIMER_POLL: bool = !cfg!(feature = "ablation-no-timer-poll");
/// Busy polling of the rings that had frames lately after each wake-up. Without it a worker waits for their kicks.
pub const WAKE_RECENT: bool = !cfg!(feature = "ablation-no-wake-recent");
/// Yields of the CPU while a worker polls. Without it other tasks wait until it sleeps.
pub const YIELDS: bool = !cfg!(feature = "ablation-no-yields");
/// CPU affinity: a worker keeps to the CPU on which it woke. Without it the scheduler decides at each wake-up.
pub const AFFINITY: bool = !cfg!(feature = "ablation-no-affinity");
/// One copy. Without it the payload is copied once more, by way of a buffer ([`crate::memory`]).
pub(crate) const ONE_COPY: bool = !cfg!(any(feature = "ablation-copy-warm", feature = "ablation-copy-cold"));

/// Whether this build lacks none of them.
pub const IS_WHOLE: bool = FAST_PATH && FAIRNESS && ONE_COPY && BATCHING && TIMER_POLL && WAKE_RECENT && YIELDS && AFFINITY;
