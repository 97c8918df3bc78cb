//! How a network is observed: the formats in which its counters, events and frames leave it, and the rings in which they wait for a reader.
//!
//! Nothing here depends on the switch. The data path uses [`bpf::Program`] only; everything else runs on threads of the operator's side.
//!
//! - [`bpf`]: classic BPF programs, which select the frames of a capture.
//! - [`pcapng`]: captures in the format of Wireshark.
//! - [`metrics`]: OpenMetrics and the Prometheus text format.
//! - [`events`]: the bounded ring of recent events.

#![deny(unsafe_code)]

pub mod bpf;
pub mod events;
pub mod metrics;
pub mod pcapng;
