//! Limits of a port that the operator sets, as configured.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::addresses::{AllowedPair, Inside, Service};
use crate::quantity::{self, Quantity, parse_rate};
use crate::vlans::VlanRange;

/// Storm control: flooded frames a second that a port may send unless its configuration says otherwise. That is more than
/// uncompressed video in high definition takes (SMPTE ST 2110-20, 1080p60: 190 000 packets a second), and little enough that the
/// other guests can discard them.
pub const DEFAULT_STORM: u64 = 200_000;

/// Rate limits of one direction of a port; omitted keys do not limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[schemars(extend("examples" = [{ "rate": "100Mbit" }]))]
pub struct Limit {
    /// Bits a second of whole Ethernet frames, as "100Mbit" or "2.5Gbit".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "rate"))]
    pub rate: Option<String>,
    /// Frames a second. A GSO frame counts once for its sender, and each segment for a receiver for which it is segmented.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000))]
    pub packets: Option<u64>,
    /// Milliseconds of either rate that may come at once after a silence, by default 20; never less than the longest frame.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "quantity::read_some_milliseconds")]
    #[schemars(range(min = 1, max = 10000), transform = quantity::or_text("milliseconds"))]
    pub burst_ms: Option<u64>,
}

impl Limit {
    /// Bytes a second; `None` for no limit, and for an invalid rate.
    pub fn bytes(&self) -> Option<u64> {
        self.rate.as_deref().and_then(|rate| parse_rate(rate).ok()).map(|bits| bits.div_ceil(8))
    }

    /// Reads a table, or text as "100Mbit".
    ///
    /// # Errors
    /// The value is something else.
    pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a table or a limit")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Limit, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limit, A::Error> {
                Limit::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl FromStr for Limit {
    type Err = String;

    /// Reads a rate, packets a second, or both: "100Mbit", "10kpps", "100Mbit,10kpps"; "none" for no limit.
    fn from_str(text: &str) -> Result<Self, String> {
        let (rate, packets) =
            quantity::limit(text).ok_or_else(|| format!("\"{text}\" is not a limit; it must be {}", Quantity::Limit.must_be()))?;
        Ok(Self { rate: rate.map(str::to_owned), packets, ..Self::default() })
    }
}

impl fmt::Display for Limit {
    /// The value as it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packets = self.packets.map(|packets| format!("{packets}pps"));
        let parts: Vec<String> = self.rate.clone().into_iter().chain(packets).collect();
        f.write_str(&if parts.is_empty() { "none".into() } else { parts.join(",") })
    }
}

/// Anti-spoofing: frames of a guest that are dropped because of their source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AntiSpoof {
    /// Frames from addresses that are pinned to other ports.
    #[default]
    Off,
    /// All frames but those from MAC addresses of the port: `mac`, and those of `allowed`.
    Mac,
    /// Those too, and frames with other IP addresses than the port's: as source of IPv4 and IPv6, as sender of ARP, in neighbour
    /// discovery; and DHCP answers and router advertisements without `may-serve`.
    All,
}

/// All limits of a port that the operator sets, as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PortLimits {
    /// Its share of a busy receiver, compared with other senders' (fair queueing).
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
    /// Rate limit of the transmit direction.
    pub transmit: Limit,
    /// Rate limit of the receive direction.
    pub receive: Limit,
    /// Storm control: flooded frames (broadcast, multicast, unknown unicast) that it may send a second; 0 for no limit. By default
    /// 200000, and no limit on a segment of two ports, where they reach one receiver.
    pub storm: u64,
    /// Anti-spoofing: frames that are dropped because of their addresses.
    pub anti_spoof: AntiSpoof,
    /// The guest's IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses that its guest has inside, if it is a twin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// Further pairs of addresses that it may use.
    pub allowed: Vec<AllowedPair>,
    /// Services that it may offer.
    pub may_serve: Vec<Service>,
    /// Isolation: it exchanges frames only with ports that are not isolated.
    pub isolated: bool,
    /// Frames to the reserved group addresses 01:80:c2:00:00:00 to 0f; by default they pass, except at TAPs.
    pub reserved: Option<Reserved>,
    /// VLAN of its frames without a tag; of an access port, its only one.
    pub vlan: Option<u16>,
    /// VLANs of its frames with a tag; none makes it an access port, if it has `vlan`.
    pub trunk: Vec<VlanRange>,
    /// Groups by which policy rules name it.
    pub groups: Vec<String>,
    /// Most leases of machines behind it.
    pub leases: Option<u32>,
    /// Labels by which programs know it, as external_ids of Open vSwitch: nothing depends on them.
    #[serde(skip)]
    pub labels: BTreeMap<String, String>,
}

/// Treatment of frames to the reserved group addresses 01:80:c2:00:00:00 to 0f (IEEE 802.1Q, table 8-1): spanning tree, LACP,
/// 802.1X, LLDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reserved {
    /// They pass like other groups, as through a cable.
    Pass,
    /// They are dropped, as by a bridge.
    Drop,
}

impl Default for PortLimits {
    fn default() -> Self {
        Self {
            weight: 1,
            transmit: Limit::default(),
            receive: Limit::default(),
            storm: DEFAULT_STORM,
            anti_spoof: AntiSpoof::Off,
            addresses: Vec::new(),
            inside: None,
            allowed: Vec::new(),
            may_serve: Vec::new(),
            isolated: false,
            reserved: None,
            vlan: None,
            trunk: Vec::new(),
            groups: Vec::new(),
            leases: None,
            labels: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let both: Limit = "100Mbit,10kpps".parse().unwrap();
        assert_eq!((both.rate.as_deref(), both.packets), (Some("100Mbit"), Some(10_000)));
        assert_eq!((both.to_string(), Limit::default().to_string()), ("100Mbit,10000pps".into(), "none".into()));
        assert_eq!("none".parse(), Ok(Limit::default()));
        for wrong in ["quick", "xpps", "", "0pps", "1Gbit,2Gbit", "1pps,2pps", "none,1pps", "99999999999999999999kpps"] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        assert_eq!(parse_rate("100Mbit"), Ok(100_000_000));
        assert_eq!(parse_rate("2.5 Gbit"), Ok(2_500_000_000));
        assert_eq!(parse_rate("64kbit"), Ok(64_000));
        assert_eq!(parse_rate("9600bit"), Ok(9600));
        for wrong in ["", "100", "fast", "-1Mbit", "0bit", "NaNbit", "1e99Gbit", "Mbit"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
