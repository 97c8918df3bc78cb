//! MAC addresses that move between two ports too often, as reported.

use std::fmt;

use memlane_virtq::message::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Seconds for which an address that moved too often is held at one port.
pub const HOLD: u32 = 10;

/// A MAC address that moved between two ports too often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LoopReport {
    /// The segment.
    pub segment: String,
    /// MAC address.
    pub address: String,
    /// Its VLAN; none for frames without a tag.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub vlan: Option<u16>,
    /// The port at which it is held.
    pub held_at: String,
    /// The port that it moved to.
    pub moves_to: String,
    /// How often it moved.
    pub moves: u16,
    /// Seconds in which it did.
    pub within: u32,
    /// Seconds since it was held.
    pub age: u64,
}

impl fmt::Display for LoopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, vlan, held_at, moves_to, moves, within, .. } = self;
        let vlan = vlan.map(|vlan| format!(" in VLAN {vlan}")).unwrap_or_default();
        let times = counted(*moves, "time");
        write!(
            f,
            "address {address}{vlan} moves between ports {held_at} and {moves_to}, {times} in {within} s: a loop? It is held at {held_at} for \
             {HOLD} s at a time, and both ports may flood little. Find the guest that bridges two ports of the segment, or the two guests with this \
             address; for bonding in mode balance-rr set address-moves = 0"
        )
    }
}
