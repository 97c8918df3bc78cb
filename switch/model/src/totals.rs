//! Counters of a port, as reported.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest frames of the buckets of [`PortTotals::frame_sizes`], in bytes without FCS: those of RMON (RFC 2819, etherStatsPkts64Octets and the
/// following), jumbo frames, and the longest GSO frames.
pub const SIZE_BOUNDS: [u32; 8] = [64, 127, 255, 511, 1023, 1518, 9000, 65535];

/// Latency bounds of the buckets of [`PortTotals::waits`].
pub const WAIT_BOUNDS: [Duration; 7] = [
    Duration::from_micros(10),
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// A port's counters, added up. Counters that a network of an older version lacks are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct PortTotals {
    /// Frames that the guest transmitted.
    pub transmit_frames: u64,
    /// Their bytes, virtio-net headers not counted.
    pub transmit_bytes: u64,
    /// Frames that the guest received; a segmented GSO frame counts once for each TCP segment.
    pub receive_frames: u64,
    /// Bytes that the guest received, headers of added TCP segments not counted.
    pub receive_bytes: u64,
    /// Frames that were flooded to the segment.
    pub flooded: u64,
    /// Kicks: notifications from the guest.
    pub kicks: u64,
    /// Interrupts: notifications of the guest.
    pub interrupts: u64,
    /// Lost kicks: a ring had entries for which a kick was asked and none came.
    pub missed_kicks: u64,
    /// Interrupts repeated because the driver had not noticed completions.
    pub repeated_interrupts: u64,
    /// Receive chains that broke a rule.
    pub bad_receive_chains: u64,
    /// Chains that were in flight when a process of the network crashed, and were served again: their frames may have arrived before.
    /// Only front ends that keep the record of these chains tell.
    pub resubmitted_chains: u64,
    /// Frames that wait for this port now (backpressure).
    pub waiting: u64,
    /// TSC cycles that workers spent on frames from this port.
    pub cycles: u64,
    /// Service quanta of senders while frames waited for this port.
    pub turns: u64,
    /// Times that the port's transmit limit held it back.
    pub transmit_limited: u64,
    /// Times that the port's receive limit held its senders back.
    pub receive_limited: u64,
    /// Stream frames with an incomplete checksum.
    pub undone_checksums: u64,
    /// Frames that the guest transmitted, by size: at most 64, 127, 255, 511, 1023, 1518, 9000 and 65535 bytes, and longer.
    pub frame_sizes: [u64; SIZE_BOUNDS.len() + 1],
    /// A sample of the frames that the guest received, by the time that they waited in the switch: at most 10 us, 100 us, 1 ms, 10 ms,
    /// 100 ms, 1 s and 10 s, and longer.
    pub waits: [u64; WAIT_BOUNDS.len() + 1],
    /// TSC cycles that the frames of the sample waited, all together.
    pub waited_cycles: u64,
    /// Drops by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
}
