//! IP addresses that the switch knows, as reported (`memlane addresses`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Origin of an entry of the address map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The port's key `addresses`.
    Configuration,
    /// A DHCP server acknowledged a lease.
    Dhcp,
    /// BGP EVPN told it of a machine at another host.
    Evpn,
    /// The machine claimed it in ARP.
    Arp,
    /// The machine claimed it in neighbour discovery.
    Nd,
}

impl Source {
    /// All.
    pub const ALL: [Self; 5] = [Self::Configuration, Self::Dhcp, Self::Evpn, Self::Arp, Self::Nd];

    /// Name of the source, as in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Dhcp => "dhcp",
            Self::Evpn => "evpn",
            Self::Arp => "arp",
            Self::Nd => "nd",
        }
    }

    /// Whether the machine itself claimed the address.
    pub fn is_claim(self) -> bool {
        matches!(self, Self::Arp | Self::Nd)
    }
}

/// An IP address that the switch knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KnownAddress {
    /// IP address.
    pub ip: String,
    /// Its VLAN; none for untagged frames.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub vlan: Option<u16>,
    /// MAC address; none before the guest of a port without `mac` uses its configured address.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mac: Option<String>,
    /// Its port.
    pub port: String,
    /// Origin.
    pub source: Source,
    /// Seconds since it was last confirmed; 0 for a configured address that was not yet.
    pub age: u64,
    /// Seconds until it expires; none if it does not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires: Option<u64>,
    /// Another machine claimed it, so that for some seconds the switch does not answer for it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub contended: bool,
}

/// Counts of the address map of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AddressTotals {
    /// Whether the switch answers ARP requests and neighbour solicitations for known addresses.
    pub answering: bool,
    /// Answers so far.
    pub answers: u64,
    /// Conflicts so far: claims of addresses that belong to others.
    pub conflicts: u64,
    /// Known addresses by their origin.
    pub entries: BTreeMap<Source, u64>,
}

/// The address map of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SegmentAddresses {
    /// The segment.
    pub segment: String,
    /// Counts.
    #[serde(flatten)]
    pub totals: AddressTotals,
    /// The addresses.
    pub addresses: Vec<KnownAddress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for source in Source::ALL {
            assert_eq!(serde_json::to_value(source).unwrap(), source.name());
        }
    }
}
