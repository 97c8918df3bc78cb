//! Takeover of a running network by another process, without a gap: `memlane up --takeover`.
//!
//! ```text
//!   the process that serves              the process that takes over
//!           <---- POST /v1/takeover, then a plain stream ----
//!           <-------------- Hello ---------------------------
//!   sessions stand still
//!           --------------- Description, descriptors ------->
//!                                         makes ports, maps guests' memory
//!           <-------------- Prepared ------------------------
//!   transmit queues are drained, workers stand still
//!           --------------- Go, counters ------------------->
//!                                         starts the virtqueues
//!           <-------------- Running -------------------------
//!   ends, and removes no socket
//! ```
//!
//! Up to Go, the serving process goes on as if nothing had happened if the other one fails, hangs or refuses. After Go the other one has
//! [`START`] to serve; else the guard kills it, and the serving process goes on at the used indices of the rings once it has ended: a ring
//! is never served by two processes.
//!
//! 1. [`description`]: the messages, and how they are written.
//! 2. [`channel`]: a stream on which they travel, with descriptors.
//! 3. [`give`], [`take`]: the two processes.
//! 4. [`guard`]: kills a successor that does not serve.

pub mod channel;
pub use crate::description;
pub mod give;
pub mod guard;
pub mod key;
pub mod take;

use std::time::Duration;

/// Name of the protocol to which the connection is upgraded.
pub const PROTOCOL: &str = "memlane-takeover";
/// Timeout of a step that needs no work.
pub const REPLY: Duration = Duration::from_secs(5);
/// Timeout of the other process to prepare, while guests are served.
const PREPARE: Duration = Duration::from_secs(10);
/// Timeout of sessions to finish the message at hand, while guests are served. A port with a front end that holds its session up
/// for longer is handed over without its connection. Threads of others are late where the host has no CPU time for them.
const SESSIONS: Duration = Duration::from_secs(5);
/// Timeout of frames in flight to be delivered; the rest, which receivers do not take, is dropped.
const DRAIN: Duration = Duration::from_millis(100);
/// Timeout of the other process to serve, from Go on: meanwhile guests are not served.
pub const START: Duration = Duration::from_secs(1);
/// Timeout of workers to end their poll iteration.
const STANDSTILL: Duration = Duration::from_secs(1);
