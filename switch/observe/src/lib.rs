//! Observability: the formats of counters, events and captured frames, and the rings that buffer events for readers.
//!
//! Nothing here depends on the switch. The data path uses [`bpf::Program`] only; everything else runs on threads of the control
//! socket and the commands.
//!
//! - [`bpf`]: classic BPF programs, which select the frames of a capture.
//! - [`pcapng`]: captures in the format of Wireshark.
//! - [`recording`]: recordings of verdicts, and their reader.
//! - [`metrics`]: OpenMetrics and the Prometheus text format.
//! - [`events`]: a bounded ring of recent events.
//! - [`accept`]: the forms that a client accepts.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod accept;
pub mod bpf;
pub mod events;
pub mod metrics;
pub mod pcapng;
pub mod recording;
