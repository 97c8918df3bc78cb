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
/// One copy. Without it the payload is copied once more, by way of a buffer ([`crate::memory`]).
pub(crate) const ONE_COPY: bool = !cfg!(any(feature = "ablation-copy-warm", feature = "ablation-copy-cold"));

/// Whether this build lacks none of them.
pub const IS_WHOLE: bool = FAST_PATH && FAIRNESS && ONE_COPY && BATCHING;
