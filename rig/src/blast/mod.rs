//! A traffic source and sink over two or more ports.
//!
//! Nouns, in the order in which a run meets them:
//! 1. [`plan`]: the operator's options, checked.
//! 2. [`bed`]: the ports connected, their rings filled. A port has an outlet (sends) and an inlet (receives) a queue.
//! 3. [`stamp`]: headers and mark by which the sink knows our frames; [`payload`]: the pattern after it; [`flow`]: the two ends of
//!    a flow.
//! 4. [`feeder`]: the sending side. [`collector`]: the receiving side with its books, and [`meter`] among them.
//! 5. [`run`]: announce, find the way, warm up, measure, drain; or [`wake`]: one frame now and then, in turn with a [`bare`] wake-up, and a
//!    [`watcher`] at the receiver. [`report`]: the results.
//!
//! The generator shares a machine with the switch that it measures, so it must not be the bottleneck: [`port`] says how.

pub mod bare;
pub mod bed;
pub mod collector;
pub mod cpu;
pub mod feeder;
pub mod flow;
pub mod meter;
pub mod payload;
pub mod plan;
pub mod port;
pub mod report;
pub mod run;
pub mod stamp;
pub mod wake;
pub mod watcher;
mod way;
