//! The report of a responder.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The responder of a segment, which gives its guests addresses and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NamesReport {
    /// Its segment.
    pub segment: String,
    /// Its own IP addresses, which are those of the DNS server.
    pub addresses: Vec<String>,
    /// Its own MAC address.
    pub mac: String,
    /// Domain of the names.
    pub domain: String,
    /// Leased addresses, in their order.
    pub leases: Vec<LeaseReport>,
    /// Answers so far, by service.
    pub answers: BTreeMap<String, u64>,
    /// Frames to it without an answer, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// A leased address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LeaseReport {
    /// The address.
    pub address: String,
    /// Its port.
    pub port: String,
    /// MAC address of its guest.
    pub mac: String,
    /// "dhcp", or "slaac" for one that the guest has made of the prefix.
    pub source: String,
    /// Seconds until it ends; none for an address that the guest has made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_in: Option<u64>,
}
