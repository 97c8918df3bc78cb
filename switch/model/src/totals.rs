//! Counters of a port, as reported.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Drops by reason; reasons that never occurred are left out.
    pub drops: BTreeMap<String, u64>,
}
