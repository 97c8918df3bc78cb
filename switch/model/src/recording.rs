//! Recordings of verdicts: their description, and the states that recorded frames refer to by number.

use serde::{Deserialize, Serialize};

use crate::addresses::Prefix;
use crate::policy::PolicyRule;
use crate::vlans::VlanRange;

/// The description of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Description {
    /// Program and version that recorded.
    pub program: String,
    /// Name of the network.
    pub network: String,
    /// User of the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Workers of the network.
    pub workers: u8,
    /// Names of each drop reason, by its number in the recording.
    pub reasons: Vec<String>,
    /// The cause of a recording that no user ordered: a quarantine, or a failure of the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A state that recorded frames refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A port has this number from a moment on.
    Port(NamedPort),
    /// Settings of a sender.
    Sender(Sender),
    /// The policy rules of the network.
    Rules(Rules),
}

/// A port, and its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamedPort {
    /// The port's number.
    pub port: u16,
    /// The port's name.
    pub name: String,
    /// The port's segment.
    pub segment: String,
    /// When it got its number, in cycles.
    pub since: u64,
    /// The port's configured MAC address.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mac: Option<String>,
}

/// VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedVlans {
    /// All VLANs, as they are.
    #[default]
    Any,
    /// An access port: one VLAN, without tags.
    Access(u16),
    /// A trunk with a native VLAN (0 for none), and these VLANs with tags.
    Trunk(u16, Vec<VlanRange>),
}

/// Settings of a port that transmits frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Sender {
    /// Number of this state.
    pub number: u32,
    /// Number of the port.
    pub port: u16,
    /// The port's name.
    pub name: String,
    /// The port's segment.
    pub segment: String,
    /// The VLANs that the port carries.
    pub vlans: RecordedVlans,
    /// Anti-spoofing: its source MAC address must be its own.
    pub is_guarded: bool,
    /// MAC addresses that it may use beside the one that is pinned to it.
    pub macs: Vec<String>,
    /// Anti-spoofing: all its addresses must be its own, which are these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// The port may answer as a DHCP server, so that each lease is learned from it.
    pub tells_leases: bool,
    /// The port's groups.
    pub groups: Vec<String>,
}

/// Addresses and services of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Identity {
    /// Addresses with any MAC address of the port; the last ones are leased.
    pub addresses: Vec<Prefix>,
    /// How many are leased.
    pub leased: usize,
    /// Pairs of a MAC address and others.
    pub pairs: Vec<(String, Prefix)>,
    /// The prefix of addresses that its guests may make, and the number of the segment's responder.
    pub autoconf: Option<(std::net::Ipv6Addr, u16)>,
    /// The port may answer as a DHCP server.
    pub serves_dhcp: bool,
    /// The port may send a router advertisement (neighbour discovery).
    pub serves_ra: bool,
}

/// Policy rules and the ports that they know: all, or the differences to an earlier state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Rules {
    /// Number of this state.
    pub number: u32,
    /// Number of the state that this one changes; 0 for none.
    pub base: u32,
    /// The rules, if they are others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<PolicyRule>>,
    /// Ports that are new, or others now.
    pub ports: Vec<RulesPort>,
    /// Numbers of ports that are gone.
    pub gone: Vec<u16>,
}

/// A port as policy rules know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct RulesPort {
    /// The port's number.
    pub port: u16,
    /// The port's name and groups.
    pub names: Vec<String>,
    /// The port's segment.
    pub segment: String,
    /// Whether it is a segment's responder (DHCP, DNS): no rule concerns it.
    pub is_exempt: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_they_were_written() {
        let sender = Sender {
            number: 4,
            vlans: RecordedVlans::Trunk(7, vec!["10-20".parse().unwrap()]),
            identity: Some(Identity {
                addresses: vec!["10.0.0.0/8".parse().unwrap()],
                pairs: vec![("02:00:00:00:00:01".into(), "fd00::/64".parse().unwrap())],
                autoconf: Some(("fd00::".parse().unwrap(), 3)),
                ..Identity::default()
            }),
            ..Sender::default()
        };
        let rule = PolicyRule { line: 31, established: true, ..PolicyRule::default() };
        let rules = Rules { number: 2, rules: Some(vec![rule]), gone: vec![7], ..Rules::default() };
        for state in [State::Sender(sender), State::Rules(rules.clone()), State::Port(NamedPort::default())] {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state, "{json}");
        }
        let json = serde_json::to_string(&State::Rules(rules)).unwrap();
        assert!(json.contains("\"line\":31"), "{json}");
    }
}
