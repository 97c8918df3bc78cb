//! Policy rules between ports, as configured: allow or deny by port or group, protocol and port number; the first rule that matches
//! decides.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::addresses::Prefix;
use crate::name_pattern::NamePattern;

/// Most rules of a port: each of its frames that no flow cache knows is compared with all of them.
pub const MOST_RULES: usize = 1024;
/// Most rules of all ports of a network.
pub const MOST_RULES_OF_NETWORK: usize = 16_384;
/// Most names in `from` or `to` of a rule, and most elements of `ports`.
pub const MOST_NAMES: usize = 64;
/// Most elements in the `destinations` of all rules together.
pub const MOST_DESTINATIONS: usize = 65_536;
/// Most groups of a port.
pub const MOST_GROUPS: usize = 16;

/// A rule about frames between ports of a segment. Rules are tried in the order of the file, and the first that matches decides;
/// frames that match none pass.
#[derive(Clone, Debug, Default, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PolicyRule {
    /// Senders: names of ports and groups, as "web" or ["web", "db"]; by default all.
    #[serde(skip_serializing_if = "Names::is_all")]
    pub from: Names,
    /// Receivers, in the same form; by default all.
    #[serde(skip_serializing_if = "Names::is_all")]
    pub to: Names,
    /// Destination addresses of the IPv4 or IPv6 packet: addresses and prefixes, as ["10.0.0.0/8", "fd00::5"], and DNS names, as
    /// ["api.example.org", "*.example.org"] (all names below); by default all. A name stands for the addresses with which memlane answered this
    /// port's own question for it (`dns` of the segment): until their TTL ends, of 60 s to a day, and for an hour more while the port sends to
    /// them; at most 512 of a port. A packet with a source route (RFC 791, RFC 8200) hides its destination: a rule with destinations never
    /// allows it, and denies it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<Destination>,
    /// Protocol of IPv4 and IPv6: "tcp", "udp", "sctp", "icmp", "icmpv6", or its number. Without it the rule matches every frame
    /// except ARP and neighbour discovery, which pass always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Destination ports, as [22, "8000-8099"]; by default all. Needs a protocol that has ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
    /// Only TCP segments of established connections: with ACK or RST set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub established: bool,
    /// Whether matching frames pass: "allow", "deny", "reject", which tells their sender, or "audit", which only lists what "deny" would refuse.
    pub action: Option<Action>,
    /// In place of `action`: whether frames pass that match no rule, of the ports in `members` or of the `segment`, in both directions:
    /// "deny", "reject", "audit", or "allow" for exceptions from a later default. Replies to flows that a rule allows pass: of TCP, UDP and other
    /// protocols by addresses and ports, of ICMP echo, and ICMP errors about a flow. Each port keeps its last 5440 flows, until they are
    /// idle for 7440 s (TCP, RFC 5382), 60 s (ICMP, RFC 5508) or 300 s (others, RFC 4787); a restart forgets them until their port sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Action>,
    /// Ports with this default: names of ports and groups.
    #[serde(skip_serializing_if = "Names::is_all")]
    pub members: Names,
    /// Segment whose ports have this default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// Its line in the file, for messages; set where a file is read, 0 if it is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub line: usize,
}

fn is_zero(line: &usize) -> bool {
    *line == 0
}

impl PartialEq for PolicyRule {
    /// Whether both say the same, wherever they stand.
    fn eq(&self, other: &Self) -> bool {
        let said = |rule: &Self| (rule.protocol, rule.established, rule.action, rule.default);
        let names = self.from == other.from && self.to == other.to && self.members == other.members;
        let names = names && self.segment == other.segment;
        names && self.destinations == other.destinations && self.ports == other.ports && said(self) == said(other)
    }
}

impl Hash for PolicyRule {
    /// Rules that are equal have the same hash: without the line.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.from, &self.to, &self.members, &self.segment, &self.destinations, &self.ports).hash(state);
        (self.protocol, self.established, self.action, self.default).hash(state);
    }
}

impl PolicyRule {
    /// Whether matching frames pass.
    pub fn allows(&self) -> bool {
        self.action.or(self.default) == Some(Action::Allow)
    }

    /// Whether it is the default of the port of this name in this segment and these groups.
    pub fn is_default_of(&self, name: &str, segment: &str, groups: &[String]) -> bool {
        let is_member = !self.members.is_all() && self.members.has(name, groups);
        self.default.is_some() && (is_member || self.segment.as_deref() == Some(segment))
    }

    /// Whether the rule decides on no frame, and those that "deny" would refuse are listed.
    pub fn audits(&self) -> bool {
        self.action.or(self.default) == Some(Action::Audit)
    }

    /// Whether the sender of matching frames is told that they are refused.
    pub fn rejects(&self) -> bool {
        self.action.or(self.default) == Some(Action::Reject)
    }

    /// The rule as a file would state it, and its place: its line, or where that is 0 its number, which `index` is from 0 on.
    pub fn with_place(&self, line: usize, index: usize) -> String {
        let place = if line == 0 { format!("number {}", index + 1) } else { format!("in line {line}") };
        format!("{} ({place})", self.stated())
    }

    /// The rule as a file would state it.
    pub fn stated(&self) -> String {
        let mut text = String::from("[[policy]]");
        if let Some(default) = self.default {
            text += &format!(" default = \"{}\"", default.name());
        }
        if let Some(segment) = &self.segment {
            text += &format!(" segment = \"{segment}\"");
        }
        for (key, names) in [("members", &self.members), ("from", &self.from), ("to", &self.to)] {
            match &names.0[..] {
                [] => {}
                [one] => text += &format!(" {key} = \"{one}\""),
                many => text += &format!(" {key} = {many:?}"),
            }
        }
        text += &self.stated_destinations();
        match self.protocol {
            Some(protocol) if protocol.name().is_some() => text += &format!(" protocol = \"{protocol}\""),
            Some(protocol) => text += &format!(" protocol = {protocol}"),
            None => {}
        }
        if !self.ports.is_empty() {
            let ports: Vec<String> = self.ports.iter().map(|range| range.stated()).collect();
            text += &format!(" ports = [{}]", ports.join(", "));
        }
        if self.established {
            text += " established = true";
        }
        if self.default.is_some() { text } else { text + &format!(" action = \"{}\"", self.action.unwrap_or(Action::Deny).name()) }
    }
}

/// The ports with whose frames a rule is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concerns<'r> {
    /// All ports.
    All,
    /// Sending ports with one of these names, or in a group of that name.
    Senders(&'r [String]),
    /// All sending ports; receiving ports with one of these names, or in a group of that name.
    Receivers(&'r [String]),
    /// No frame: it is a default, of ports with these names or in these groups, and of a segment.
    Default(&'r [String], Option<&'r str>),
}

impl PolicyRule {
    /// The ports with whose frames it is compared.
    pub fn concerns(&self) -> Concerns<'_> {
        if self.default.is_some() {
            return Concerns::Default(&self.members.0, self.segment.as_deref());
        }
        if !self.from.is_all() {
            return Concerns::Senders(&self.from.0);
        }
        // A guest's question for a DNS name meets the rules about sending ports only.
        let is_of_receivers = !self.to.is_all() && !self.has_names() && !self.allows_everywhere();
        if is_of_receivers { Concerns::Receivers(&self.to.0) } else { Concerns::All }
    }

    /// Whether it allows frames of ports to all addresses of an IP version.
    pub fn allows_everywhere(&self) -> bool {
        let is_for_all = self.destinations.is_empty() && self.to.is_all();
        self.allows() && (is_for_all || self.destinations.iter().filter_map(Destination::prefix).any(|prefix| prefix.length() == 0))
    }
}

/// Counts the rules with which frames of ports are compared.
#[derive(Debug, Default)]
pub struct RuleCounts<'r> {
    of_all: usize,
    named: HashMap<&'r str, Vec<usize>>,
}

impl<'r> RuleCounts<'r> {
    /// The counts of ports by these rules.
    pub fn of(rules: &'r [PolicyRule]) -> Self {
        let mut counts = Self::default();
        for (index, rule) in rules.iter().enumerate() {
            match rule.concerns() {
                Concerns::All => counts.of_all += 1,
                Concerns::Senders(names) | Concerns::Receivers(names) => {
                    names.iter().for_each(|name| counts.named.entry(name).or_default().push(index));
                }
                Concerns::Default(..) => {}
            }
        }
        counts
    }

    /// The rules for the port of this name in these groups.
    pub fn count(&self, name: &str, groups: &[String]) -> usize {
        let names = std::iter::once(name).chain(groups.iter().map(String::as_str));
        let named: HashSet<usize> = names.filter_map(|name| self.named.get(name)).flatten().copied().collect();
        self.of_all + named.len()
    }
}

impl PolicyRule {
    /// Whether some of its destinations are DNS names.
    pub fn has_names(&self) -> bool {
        self.destinations.iter().any(|destination| destination.name().is_some())
    }

    /// The key `destinations`; of a long list the first elements.
    fn stated_destinations(&self) -> String {
        const SHOWN: usize = 8;
        let shown: Vec<String> = self.destinations.iter().take(SHOWN).map(|one| format!("\"{one}\"")).collect();
        match self.destinations.len() {
            0 => String::new(),
            1..=SHOWN => format!(" destinations = [{}]", shown.join(", ")),
            count => format!(" destinations = [{}, and {} more]", shown.join(", "), count - SHOWN),
        }
    }
}

/// An element of `destinations`: an address, all addresses with a prefix, or a DNS name or wildcard, which stands for the addresses that a port's
/// own question for it was answered with.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String", extend("format" = "destination"))]
pub enum Destination {
    /// Addresses.
    Prefix(Prefix),
    /// Names.
    Name(NamePattern),
}

impl Destination {
    /// The addresses, if it is no name.
    pub fn prefix(&self) -> Option<Prefix> {
        if let Self::Prefix(prefix) = self { Some(*prefix) } else { None }
    }

    /// The names, if it is no prefix.
    pub fn name(&self) -> Option<&NamePattern> {
        if let Self::Name(name) = self { Some(name) } else { None }
    }

    /// Whether all of `other` is in it.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Prefix(own), Self::Prefix(other)) => own.covers(*other),
            (Self::Name(own), Self::Name(other)) => own.covers(other),
            _ => false,
        }
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::Prefix).or_else(|_| text.parse().map(Self::Name))
    }
}

impl TryFrom<String> for Destination {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Destination> for String {
    fn from(destination: Destination) -> Self {
        destination.to_string()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Outcome of frames that match a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// They pass.
    Allow,
    /// They are dropped.
    Deny,
    /// Matching frames are dropped, and their sender is told, at most 100 times a second for each port: TCP by a reset, so that `connect` fails at
    /// once, others by ICMP "administratively prohibited".
    Reject,
    /// The rule decides on no frame. Matching frames that pass by the other rules, and that "deny" in its place would refuse, are listed by
    /// `memlane denials` and told in events.
    Audit,
}

impl Action {
    /// The word in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Reject => "reject",
            Self::Audit => "audit",
        }
    }
}

/// Names of ports and groups; none stands for all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Whether it stands for all ports.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it stands for the port of this name in these groups.
    pub fn has(&self, name: &str, groups: &[String]) -> bool {
        self.is_all() || self.0.iter().any(|known| known == name || groups.contains(known))
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => serializer.serialize_str(one),
            many => serializer.collect_seq(many),
        }
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::One(name) => Self(vec![name]),
            Either::Many(names) => Self(names),
        })
    }
}

impl JsonSchema for Names {
    fn schema_name() -> Cow<'static, str> {
        "Names".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Names of ports and groups, one or a list.",
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }]
        })
    }
}

/// A protocol of IPv4 and IPv6, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// TCP.
    pub const TCP: Self = Self(6);
    const NAMES: [(&'static str, u8); 5] = [("tcp", 6), ("udp", 17), ("sctp", 132), ("icmp", 1), ("icmpv6", 58)];

    fn name(self) -> Option<&'static str> {
        Self::NAMES.iter().find(|(_, number)| *number == self.0).map(|(name, _)| *name)
    }

    /// Whether files name it by a word.
    pub fn is_named(self) -> bool {
        self.name().is_some()
    }

    /// Whether its header begins with a source and a destination port: TCP, UDP, DCCP, SCTP, UDP-Lite.
    pub fn has_ports(self) -> bool {
        matches!(self.0, 6 | 17 | 33 | 132 | 136)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name() {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_u8(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Protocol;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a protocol, as \"tcp\", or its number")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Protocol, E> {
                u8::try_from(number).map(Protocol).map_err(|_| E::custom("a protocol is a number from 0 to 255"))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Protocol, E> {
                self.visit_u64(u64::try_from(number).unwrap_or(u64::MAX))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Protocol, E> {
                let known = Protocol::NAMES.iter().find(|(name, _)| *name == text);
                known.map(|&(_, number)| Protocol(number)).ok_or_else(|| E::custom(format!("\"{text}\" is no protocol")))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Protocol {
    fn schema_name() -> Cow<'static, str> {
        "Protocol".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
        json_schema!({
            "description": "A protocol, by name or number.",
            "anyOf": [{ "type": "string", "enum": names }, { "type": "integer", "minimum": 0, "maximum": 255 }]
        })
    }
}

/// Port numbers from a first to a last one: in the file a number, or text as "8000-8099".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The first one.
    pub first: u16,
    /// The last one, not below the first.
    pub last: u16,
}

impl PortRange {
    /// Whether it contains `port`.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn stated(self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("\"{self}\"") }
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
        let range = range.map(|(first, last)| Self { first, last });
        range.ok_or_else(|| format!("\"{text}\" is not a range of ports from 0 to 65535, as \"8000-8099\""))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first == self.last { serializer.serialize_u16(self.first) } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = PortRange;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a port from 0 to 65535, or a range as \"8000-8099\"")
            }

            fn visit_u64<E: Error>(self, port: u64) -> Result<PortRange, E> {
                let port = u16::try_from(port).map_err(|_| E::custom("a port is a number from 0 to 65535"))?;
                Ok(PortRange { first: port, last: port })
            }

            fn visit_i64<E: Error>(self, port: i64) -> Result<PortRange, E> {
                self.visit_u64(u64::try_from(port).unwrap_or(u64::MAX))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PortRange, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for PortRange {
    fn schema_name() -> Cow<'static, str> {
        "PortRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A port, or ports from a first to a last one, as \"8000-8099\".",
            "anyOf": [{ "type": "integer", "minimum": 0, "maximum": 65535 }, { "type": "string", "format": "ports" }]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_stated_as_people_write_them() {
        let json = r#"{"from":"web","to":["db","cache"],"protocol":"tcp","ports":[22,"8000-8099"],"action":"allow"}"#;
        let rule: PolicyRule = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), json);
        assert_eq!(
            rule.stated(),
            r#"[[policy]] from = "web" to = ["db", "cache"] protocol = "tcp" ports = [22, "8000-8099"] action = "allow""#
        );
        let json = r#"{"from":"web","destinations":["10.0.0.0/8","fd00::5"],"action":"allow"}"#;
        let mut rule: PolicyRule = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), json);
        assert_eq!(rule.stated(), r#"[[policy]] from = "web" destinations = ["10.0.0.0/8", "fd00::5"] action = "allow""#);
        rule.destinations = vec!["10.0.0.1".parse().unwrap(); 10_000];
        assert!(rule.stated().len() < 200 && rule.stated().contains("and 9992 more"));
        let rest: PolicyRule = serde_json::from_str(r#"{"protocol":47,"action":"deny"}"#).unwrap();
        assert_eq!(rest.stated(), r#"[[policy]] protocol = 47 action = "deny""#);
        for wrong in ["-1", "65536", "\"\"", "\"7-\"", "\"9-8\"", "\"+1-5\"", "\"1-2-3\"", "true"] {
            assert!(serde_json::from_str::<PortRange>(wrong).is_err(), "{wrong}");
        }
        for wrong in ["-1", "256", "\"TCP\"", "\"6\"", "true"] {
            assert!(serde_json::from_str::<Protocol>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_those_of_ports_and_of_their_groups() {
        let names = Names(vec!["web".into(), "front".into()]);
        assert!(names.has("web", &[]) && names.has("a", &["front".into()]) && !names.has("a", &["back".into()]));
        assert!(Names::default().has("a", &[]));
    }
}
