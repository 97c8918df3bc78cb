//! Frames that policy rules refuse, or would refuse, as the operator sees them (`memlane denials`): for each port the destinations, the rules and the lines
//! of configuration that would allow them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Protocol;

/// Refused frames of a port with one destination, by one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct Denial {
    /// The receiver; of flooded frames the first that was refused. Empty for a DNS name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    /// The DNS name that the guest asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The frames were to be flooded: to a group, or to an unknown address.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flooded: bool,
    /// Destination address of the packets; none if they hide it or are not of IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Protocol of the frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Destination port of the frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// The rule, and its line in the file; cut at 512 bytes.
    pub rule: String,
    /// The frames passed: the rule has the action "audit", or is on trial.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub audited: bool,
    /// A rule that would allow them, if it stood before.
    pub allowed_by: String,
    /// Refused frames or questions; of flooded frames the refused copies.
    pub frames: u64,
}

impl Denial {
    /// The destination in words.
    pub fn destination_in_words(&self) -> String {
        if let Some(name) = &self.name {
            return format!("name {name}");
        }
        let address = self.destination.clone();
        let protocol = self.protocol.map(|protocol| match self.destination_port {
            Some(port) => format!("{protocol} port {port}"),
            None if protocol.is_named() => protocol.to_string(),
            None => format!("protocol {protocol}"),
        });
        let words: Vec<String> = address.into_iter().chain(protocol).collect();
        if words.is_empty() { "not shown".into() } else { words.join(" ") }
    }
}

/// A [`Denial`], with the age of its last frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct ListedDenial {
    /// The denial.
    #[serde(flatten)]
    pub denial: Denial,
    /// Seconds since its last frame.
    pub age: u64,
}

/// Refused frames of a port, since the network's process began: the last 64 destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct PortDenials {
    /// The port.
    pub port: String,
    /// Labels of the port.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The latest first.
    pub denials: Vec<ListedDenial>,
    /// Refused frames that no entry counts: of more than 10 new destinations a second, or of entries that made room.
    pub unlisted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_has_words() {
        let words = |destination: Option<&str>, protocol: Option<u8>, destination_port| {
            let (destination, protocol) = (destination.map(Into::into), protocol.map(Protocol));
            Denial { destination, protocol, destination_port, ..Denial::default() }.destination_in_words()
        };
        assert_eq!(words(Some("10.0.0.5"), Some(6), Some(443)), "10.0.0.5 tcp port 443");
        assert_eq!(words(Some("fd00::5"), Some(58), None), "fd00::5 icmpv6");
        assert_eq!(words(None, Some(47), None), "protocol 47");
        assert_eq!(words(None, None, None), "not shown");
        let asked = Denial { name: Some("api.example.org".into()), ..Denial::default() };
        assert_eq!(asked.destination_in_words(), "name api.example.org");
    }
}
