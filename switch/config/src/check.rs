//! Every mistake in a file, each with its line.
//!
//! First each key is checked by itself ([`shape`]), which finds unknown names, wrong types and numbers out of range wherever they
//! are. Then the valid keys are parsed and checked, value by value and against each other, as if the rest were not there.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::claim::{Claim, Places};
use super::document::{self, Document, SegmentEntry, schema_value};
use super::entry::PortEntry;
use super::kinds::{self, PortKind};
use super::lines::FileLines;
use super::metrics::{self, label_of_metrics};
use super::names::{self, NamesConfig};
use super::shape::{self, MOST_MISTAKES};
use super::syntax;
use super::twin;
use super::uplink::{NicConfig, UplinkConfig, VxlanConfig};
use super::way_out;
use super::web::WebListener;
use super::words::{either, printable};
use super::written::Written;
use super::{PortConfig, no_base};
use crate::cpus::Cpus;
use crate::frame::MacAddress;
use crate::policy::{AntiSpoof, PortLimits};
use crate::quantity::counted;
use memlane_backends::listener::Second;
use memlane_backends::netns;
use memlane_backends::stream::checksums::Checksums;
use memlane_backends::vhost_user::access::Access;
use memlane_model::policy::{
    MOST_DESTINATIONS, MOST_GROUPS, MOST_NAMES, MOST_RULES, MOST_RULES_OF_NETWORK, PolicyRule, Protocol, RuleCounts,
};

/// Most labels of a port, and most bytes of the key and the value of one.
const MOST_LABELS: usize = 16;
const LONGEST_KEY: usize = 63;
const LONGEST_VALUE: usize = 256;

/// Most ports of a network.
pub const MAX_PORTS: usize = 4096;
/// Longest path of a Unix socket (unix(7)).
const SOCKET_PATH: usize = 107;
/// Most elements of `addresses`, and of `allowed`: each frame that no flow cache knows is compared with all.
const MOST_ADDRESSES: usize = 64;
/// Longest name of a network interface.
const INTERFACE_NAME: usize = 15;
/// Longest name of a network, segment or port.
const NAME: usize = 64;
/// Longest sentence about a mistake, in bytes: it may quote names and values of any length.
const SENTENCE: usize = 1000;

/// Most lines that are named for one mistake beside its first.
const LINES: usize = 5;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1; 0 if it is about the file as a whole.
    pub line: usize,
    /// The key that is wrong, as `workers` or `port[0].mac`; empty if it is about the file as a whole.
    pub key: String,
    /// The mistake, and the correct form.
    pub text: String,
}

impl Mistake {
    /// A mistake in a key of JSON, which has no lines.
    pub(super) fn of(key: &str, text: &str) -> Self {
        Self { line: 0, key: bounded(key), text: bounded(text) }
    }
}

/// `text` with control characters escaped, for terminals, and cut at [`SENTENCE`].
fn bounded(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        if shown.len() >= SENTENCE {
            shown.push_str(" ...");
            break;
        }
        match character.is_control() {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// All mistakes of a file, in the order of their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    file: Option<PathBuf>,
    /// At least one.
    pub list: Vec<Mistake>,
}

impl Mistakes {
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        let list = vec![Mistake { line: 0, key: String::new(), text: format!("cannot be read: {error}") }];
        Self { file: Some(path.into()), list }
    }

    /// One mistake about the whole, or about a file that cannot be read.
    pub(super) fn whole(text: impl fmt::Display) -> Self {
        Self::of(vec![Mistake::of("", &text.to_string())])
    }

    /// Mistakes in a document that is no file; at least one.
    pub(super) fn of(list: Vec<Mistake>) -> Self {
        Self { file: None, list }
    }

    /// Places the mistakes in the file at `path`.
    pub fn in_file(mut self, path: &Path) -> Self {
        self.file = Some(path.into());
        self
    }
}

impl fmt::Display for Mistakes {
    /// A line for each; a mistake that occurs in several places is printed once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_deref().map_or_else(String::new, |path| path.display().to_string());
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        self.list.iter().for_each(|mistake| places.entry(&mistake.text).or_default().push(mistake.line));
        let mut newline = "";
        for mistake in &self.list {
            let Some(lines) = places.remove(mistake.text.as_str()) else { continue };
            match mistake.line {
                _ if file.is_empty() => write!(f, "{newline}{}", mistake.text)?,
                0 => write!(f, "{newline}{file}: {}", mistake.text)?,
                line => write!(f, "{newline}{file}:{line}: {}{}", mistake.text, also(&lines[1..]))?,
            }
            newline = "\n";
        }
        Ok(())
    }
}

/// The other lines of a mistake.
fn also(lines: &[usize]) -> String {
    let mut lines = lines.to_vec();
    lines.dedup();
    let shown: Vec<String> = lines.iter().take(LINES).map(ToString::to_string).collect();
    match (lines.len(), lines.len().saturating_sub(LINES)) {
        (0, _) => String::new(),
        (1, _) => format!(" (also in line {})", shown[0]),
        (_, 0) => format!(" (also in lines {})", shown.join(", ")),
        (_, more) => format!(" (also in lines {} and {more} more)", shown.join(", ")),
    }
}

impl std::error::Error for Mistakes {}

/// Reads `text`.
///
/// # Errors
/// All [`Mistakes`] at once.
pub fn check(text: &str) -> Result<Document, Mistakes> {
    check_in(text, Path::new(""))
}

/// Like [`check`], where relative paths lie in `folder`.
///
/// # Errors
/// All [`Mistakes`] at once.
pub fn check_in(text: &str, folder: &Path) -> Result<Document, Mistakes> {
    check_for(text, folder, Cpus::allowed, true)
}

/// Like [`check_in`], for the ports of a network alone: their segments are not in `text`.
///
/// # Errors
/// All [`Mistakes`] at once.
pub fn check_ports(text: &str, folder: &Path) -> Result<Document, Mistakes> {
    check_for(text, folder, Cpus::allowed, false)
}

/// Like [`check_in`], for a running network: only its own process knows the CPUs on which it may run.
///
/// # Errors
/// All [`Mistakes`] at once.
pub fn check_running(text: &str, folder: &Path) -> Result<Document, Mistakes> {
    check_for(text, folder, || None, true)
}

fn check_for(text: &str, folder: &Path, cpus: fn() -> Option<Cpus>, is_whole: bool) -> Result<Document, Mistakes> {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(position, _)| position).collect();
    let mut checker = Checker { text, ends, folder, cpus, is_whole, list: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let span = error.span().unwrap_or_default();
        checker.note_at(span.start, "", syntax::told(text, span.start, span.end, error.message()));
    }
    // Later findings of the parser in the same line follow from the first.
    checker.list.dedup_by_key(|mistake| mistake.line);
    // After a syntax error, the parsed values are not reliable.
    let document = if checker.list.is_empty() { checker.read(&table) } else { None };
    checker.list.sort_by_key(|mistake| mistake.line);
    if checker.list.len() >= MOST_MISTAKES {
        checker.list.push(Mistake::of("", &format!("the file has more than {MOST_MISTAKES} mistakes: correct these first")));
    }
    match document {
        Some(document) if checker.list.is_empty() => Ok(document),
        _ => Err(Mistakes { file: None, list: checker.list }),
    }
}

type Table<'t> = Spanned<DeTable<'t>>;

struct Checker<'t> {
    text: &'t str,
    /// Positions of the newlines.
    ends: Vec<usize>,
    folder: &'t Path,
    /// The CPUs on which the network may run, if they are known.
    cpus: fn() -> Option<Cpus>,
    /// Whether the text has the segments of its ports.
    is_whole: bool,
    list: Vec<Mistake>,
}

/// Whether memlane prints a MAC address for the guest of the port at `place`.
fn prints_address(place: &Place) -> bool {
    kinds::named(|kind| kind.prints_address).iter().any(|kind| place.has(kind))
}

/// Whether a label of a port may have this key.
fn is_label(key: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    (1..=LONGEST_KEY).contains(&key.len()) && key.chars().all(is_plain)
}

impl<'t> Checker<'t> {
    /// Records a mistake in `key` of the table at `place`.
    fn note(&mut self, place: &Place, key: &str, text: impl fmt::Display) {
        let whole = if key.is_empty() { place.name.trim_end_matches('.').into() } else { format!("{}{key}", place.name) };
        self.note_at(place.of(key), &whole, text);
    }

    fn note_at(&mut self, position: usize, key: &str, text: impl fmt::Display) {
        let line = self.line_of(position);
        self.list.push(Mistake { line, ..Mistake::of(key, &text.to_string()) });
    }

    fn line_of(&self, position: usize) -> usize {
        1 + self.ends.partition_point(|&end| end < position)
    }

    /// Parses the valid part of the file, and checks its values.
    fn read(&mut self, whole: &Table<'t>) -> Option<Document> {
        let readable = Spanned::new(whole.span(), self.readable(whole.get_ref()));
        match Document::deserialize(readable.into_deserializer()) {
            Ok(mut document) => {
                self.check_values(&document, whole);
                let places = Place::of_list(whole.get_ref(), "policy");
                for (rule, place) in document.policy.iter_mut().zip(&places) {
                    rule.line = place.as_ref().map_or(0, |place| self.line_of(place.start));
                }
                document.lines = FileLines::of(self.text, whole.get_ref());
                Some(document)
            }
            Err(error) => {
                self.note_at(error.span().map_or(0, |span| span.start), "", error.message());
                None
            }
        }
    }

    /// Checks every key of the file, of each segment and of each port by itself, and keeps the valid ones.
    fn readable(&mut self, whole: &DeTable<'t>) -> DeTable<'t> {
        let mut readable = DeTable::new();
        for (key, value) in whole {
            let list = match (key.get_ref().as_ref(), value.get_ref()) {
                (what @ ("port" | "segment" | "policy"), DeValue::Array(list)) => self.readable_list(what, list),
                _ => {
                    if self.is_good(schema_value(), "", key, value) {
                        readable.insert(key.clone(), value.clone());
                    }
                    continue;
                }
            };
            readable.insert(key.clone(), Spanned::new(value.span(), DeValue::Array(list)));
        }
        readable
    }

    /// An entry that is no table is replaced by one without keys, so that the others keep their places.
    fn readable_list(&mut self, what: &str, list: &DeArray<'t>) -> DeArray<'t> {
        let entries = document::alternatives(schema_value(), &schema_value()["properties"][what]["items"]);
        let schema = entries.first().copied().unwrap_or(&Value::Null);
        let read = |(index, entry): (usize, &Spanned<DeValue<'t>>)| {
            Spanned::new(entry.span(), DeValue::Table(self.readable_entry(schema, what, index, entry)))
        };
        list.iter().enumerate().map(read).collect()
    }

    fn readable_entry(&mut self, schema: &Value, what: &str, index: usize, entry: &Spanned<DeValue<'t>>) -> DeTable<'t> {
        let mut readable = DeTable::new();
        let DeValue::Table(table) = entry.get_ref() else {
            let text = format_args!("a {what} is a table: write it as [[{what}]]");
            self.note_at(entry.span().start, &format!("{what}[{index}]"), text);
            return readable;
        };
        for (key, value) in table {
            if self.is_good(schema, &format!("{what}[{index}]."), key, value) {
                readable.insert(key.clone(), value.clone());
            }
        }
        readable
    }

    /// Whether the value of `key` fits this table's schema. Mistakes are recorded.
    fn is_good(
        &mut self,
        schema: &Value,
        table: &str,
        key: &Spanned<std::borrow::Cow<'t, str>>,
        value: &Spanned<DeValue<'t>>,
    ) -> bool {
        if self.list.len() >= MOST_MISTAKES {
            return false;
        }
        let found = shape::mistakes(schema_value(), schema, key.get_ref(), key.span().start, &Written::from(value));
        found.iter().for_each(|one| self.note_at(one.at, &format!("{table}{}", one.key), &one.text));
        found.is_empty()
    }

    /// Checks the values of the `whole` file that were parsed into `document`.
    fn check_values(&mut self, document: &Document, whole: &Table<'t>) {
        let top = Place { table: whole.get_ref(), name: String::new(), start: 0 };
        self.check_cpus(document, &top);
        if let Some(name) = &document.name {
            self.check_name(&top, "name", name);
        }
        if let Some(path) = &document.control {
            self.check_socket(&top, "control", path);
        }
        self.check_metrics(&top, document);
        self.check_metrics_labels(&top, document);
        self.check_web(&top, document);
        self.check_access(&top, "access", &document.access);
        if document.port.len() > MAX_PORTS {
            self.note(
                &top,
                "port",
                format_args!(
                    "the file has {} ports, and a network may have {MAX_PORTS}: divide it into several networks",
                    document.port.len()
                ),
            );
        }
        let places = Place::of_list(whole.get_ref(), "port");
        let ports = placed(&document.port, &places);
        for (entry, place) in &ports {
            self.check_port(entry, place);
        }
        self.check_unique(document, &ports);
        let places = Place::of_list(whole.get_ref(), "segment");
        let segments = placed(&document.segment, &places);
        for (entry, place) in &segments {
            self.check_segment(entry, place);
        }
        self.check_uplinks(&segments, &ports);
        self.check_addresses_on_segments(&segments, &ports);
        self.check_twins(document, &ports);
        self.check_policy(document, &top);
    }

    fn check_nic(&mut self, entry: &SegmentEntry, place: &Place) {
        for key in ["uplink", "vni", "local", "udp-port", "tap", "bridge", "vxlan"] {
            if place.has(key) {
                self.note(
                    place,
                    key,
                    format_args!("{key} is for VXLAN, and the uplink of this segment is a NIC: remove {key}, or nic"),
                );
            }
        }
        if let Some(name) = &entry.nic {
            self.check_interface(place, "nic", name);
        }
    }

    fn check_policy(&mut self, document: &Document, top: &Place) {
        if document.policy.len() > MOST_RULES_OF_NETWORK {
            let count = document.policy.len();
            let text = format_args!(
                "the file has {count} policy rules, and a network may have {MOST_RULES_OF_NETWORK}: use groups and lists of ports"
            );
            self.note(top, "policy", text);
        }
        let destinations: usize = document.policy.iter().map(|rule| rule.destinations.len()).sum();
        if destinations > MOST_DESTINATIONS {
            let text = format_args!(
                "the rules have {destinations} destinations, and those of a network may have {MOST_DESTINATIONS}: use shorter prefixes"
            );
            self.note(top, "policy", text);
        }
        self.check_rules_of_ports(document, top);
        let places = Place::of_list(top.table, "policy");
        for (rule, place) in placed(&document.policy, &places) {
            self.check_rule(rule, place);
        }
    }

    /// Each port has a bounded number of rules; ports that the file does not have are checked where they are attached.
    fn check_rules_of_ports(&mut self, document: &Document, top: &Place) {
        let counts = RuleCounts::of(&document.policy);
        let others = ("", 0, counts.count("", &[]));
        let ports = document.port.iter().filter_map(|port| {
            let name = port.name.as_deref()?;
            Some((name, 1, counts.count(name, &port.groups)))
        });
        let most =
            ports.chain([others]).filter(|(_, _, count)| *count > MOST_RULES).max_by_key(|(_, is_port, count)| (*count, *is_port));
        if let Some((name, _, count)) = most {
            self.note(top, "policy", too_many_rules(name, count));
        }
    }

    /// A default has ports, and no key of a rule.
    fn check_default(&mut self, place: &Place) {
        const OF_RULES: [&str; 7] = ["action", "from", "to", "destinations", "protocol", "ports", "established"];
        for key in OF_RULES.into_iter().filter(|key| place.has(key)) {
            let text = format_args!("{key} is for a rule, and this [[policy]] is a default: remove {key}, or default");
            self.note(place, key, text);
        }
        if !place.has("members") && !place.has("segment") {
            let text = "a default needs its ports: add members = \"GROUP\", or segment = \"NAME\"";
            self.note(place, "default", text);
        }
    }

    fn check_rule(&mut self, rule: &PolicyRule, place: &Place) {
        if place.has("default") {
            self.check_default(place);
        } else {
            if !place.has("action") {
                self.note(place, "", "this [[policy]] has no action: add one, as action = \"deny\"");
            }
            for key in ["members", "segment"].into_iter().filter(|key| place.has(key)) {
                self.note(place, key, format_args!("{key} is for a default: add default = \"deny\", or use from and to"));
            }
        }
        self.check_names_of_rule(rule, place);
        let is_known = self.list.iter().any(|mistake| mistake.key.contains("destinations"));
        if rule.destinations.is_empty() && place.has("destinations") && !is_known {
            self.note(place, "destinations", "destinations is an empty list: name addresses or prefixes, or remove it for all");
        }
        self.check_ports_of_rule(rule, place);
        if rule.established && rule.protocol != Some(Protocol::TCP) {
            self.note(place, "established", "established applies to TCP only: add protocol = \"tcp\", or remove it");
        }
    }

    fn check_names_of_rule(&mut self, rule: &PolicyRule, place: &Place) {
        if let Some(segment) = &rule.segment {
            self.check_name(place, "segment", segment);
        }
        for (key, names) in [("members", &rule.members), ("from", &rule.from), ("to", &rule.to)] {
            if names.0.is_empty() && place.has(key) {
                self.note(place, key, format_args!("{key} is an empty list: name ports or groups, or remove it for all"));
            }
            if names.0.len() > MOST_NAMES {
                let text = format_args!("{key} has {} names, and may have {MOST_NAMES}: give these ports a group", names.0.len());
                self.note(place, key, text);
            }
            names.0.iter().for_each(|name| self.check_name(place, key, name));
        }
    }

    fn check_ports_of_rule(&mut self, rule: &PolicyRule, place: &Place) {
        if rule.ports.len() > MOST_NAMES {
            let text =
                format_args!("ports has {} elements, and may have {MOST_NAMES}: use ranges, as \"8000-8099\"", rule.ports.len());
            self.note(place, "ports", text);
        }
        if !rule.ports.is_empty()
            && !rule.protocol.is_some_and(Protocol::has_ports)
            && (!place.has("protocol") || rule.protocol.is_some())
        {
            self.note(place, "ports", "ports needs a protocol that has ports: add one, as protocol = \"tcp\"");
        }
    }

    fn check_segment(&mut self, entry: &SegmentEntry, place: &Place) {
        match &entry.name {
            Some(name) => self.check_name(place, "name", name),
            None if !place.has("name") => self.note(place, "", "this [[segment]] has no name: add one, as name = \"lan\""),
            _ => {}
        }
        const OF_UPLINK: [&str; 8] = ["vni", "local", "udp-port", "netns", "mtu", "tap", "bridge", "vxlan"];
        let has_settings = ["neighbour-suppression", "multicast", "subnet", "subnet6"].iter().any(|key| place.has(key));
        if place.has("nic") {
            self.check_nic(entry, place);
        } else if !place.has("uplink") && (!has_settings || OF_UPLINK.iter().any(|key| place.has(key))) {
            let text = "this [[segment]] has no uplink, and its other keys configure one: add uplink = true or nic = \"eth1\", or remove the table";
            self.note(place, "", text);
        }
        self.check_subnets(entry, place);
        if entry.uplink && !place.has("nic") && !place.has("vni") {
            self.note(place, "uplink", "an uplink needs a VXLAN network identifier, the same on all hosts: add one, as vni = 100");
        }
        if entry.uplink && !place.has("nic") && !place.has("local") && !place.has("vxlan") {
            self.note(
                place,
                "uplink",
                "an uplink needs this host's address on the underlay, as local = \"10.0.0.1\", or an existing VXLAN device, as vxlan = \"vxlan100\"",
            );
        }
        self.check_namespace(place, entry.netns.as_deref());
        if let Some(local) = entry.local.filter(|local| local.is_unspecified() || local.is_multicast() || local.is_broadcast()) {
            self.note(place, "local", format_args!("local is \"{local}\"; it must be a unicast address of this host"));
        }
        for (key, name) in [("tap", &entry.tap), ("bridge", &entry.bridge), ("vxlan", &entry.vxlan)] {
            if let Some(name) = name {
                self.check_interface(place, key, name);
            }
        }
    }

    fn check_subnets(&mut self, entry: &SegmentEntry, place: &Place) {
        let four = entry.subnet.map(names::subnet4);
        let six = entry.subnet6.map(names::subnet6);
        if let Some(Err(text)) = &four {
            self.note(place, "subnet", text);
        }
        if let Some(Err(text)) = &six {
            self.note(place, "subnet6", text);
        }
        let has_subnet = place.has("subnet") || place.has("subnet6");
        if has_subnet && entry.uplink {
            let text = "a segment with an uplink cannot have a subnet: each host would give the same addresses. Run a DHCP server on one host, and allow it by may-serve";
            self.note(place, if place.has("subnet") { "subnet" } else { "subnet6" }, text);
        }
        if let Some(domain) = entry.domain.as_ref().filter(|domain| !names::is_domain(domain)) {
            let text = format_args!(
                "domain is \"{}\"; it must be a domain name of letters, digits and hyphens, as \"lan\"",
                printable(domain)
            );
            self.note(place, "domain", text);
        }
        if place.has("domain") && !has_subnet {
            self.note(place, "domain", "domain needs a subnet: add one, as subnet = \"10.0.0.0/24\"");
        }
        self.check_dns(entry, place, has_subnet);
        match (entry.router, four) {
            (Some(_), None) => self.note(place, "router", "router needs a subnet: add one, as subnet = \"10.0.0.0/24\""),
            (Some(router), Some(Ok((network, length)))) => {
                let is_in = u32::from(router) >> (32 - length) == u32::from(network) >> (32 - length);
                if !is_in || u32::from(router) == u32::from(network) + 1 {
                    let text = format_args!(
                        "router is \"{router}\"; it must be an address of a guest in {network}/{length}, not the first, which is memlane's"
                    );
                    self.note(place, "router", text);
                }
            }
            _ => {}
        }
    }

    fn check_dns(&mut self, entry: &SegmentEntry, place: &Place, has_subnet: bool) {
        if place.has("dns") && !has_subnet {
            self.note(place, "dns", "dns needs a subnet: add one, as subnet = \"10.0.0.0/24\"");
        }
        for resolver in entry.dns.iter().flatten().filter(|resolver| !resolver.is_possible()) {
            let text = format_args!("dns contains \"{resolver}\"; it must be the address of a DNS server that this host can reach");
            self.note(place, "dns", text);
        }
        if place.has("refused-names") && !has_subnet {
            self.note(place, "refused-names", "refused-names needs a subnet: add one, as subnet = \"10.0.0.0/24\"");
        }
    }

    /// Refuses static addresses of ports that no guest of their segment can have, and ports that can have none.
    fn check_addresses_on_segments(&mut self, segments: &[(&SegmentEntry, &Place)], ports: &[(&PortEntry, &Place)]) {
        if !self.is_whole {
            return;
        }
        let all: Vec<NamesConfig> = segments.iter().filter_map(|(entry, _)| entry.names()).collect();
        let by_segment: HashMap<&str, &NamesConfig> = all.iter().map(|names| (names.segment.as_str(), names)).collect();
        for (entry, place) in ports {
            let names = by_segment.get(entry.segment.as_str()).copied();
            for (key, text) in names::mistakes(&entry.settings().limits, names) {
                self.note(place, key, text);
            }
        }
        self.check_ways_out(&by_segment, ports);
    }

    /// Checks the addresses of routers, which are no other port's, and the guests of port forwardings.
    fn check_ways_out(&mut self, by_segment: &HashMap<&str, &NamesConfig>, ports: &[(&PortEntry, &Place)]) {
        let is_passt = |entry: &PortEntry| PortKind::of(entry, self.folder).passt().is_some();
        for (entry, place) in ports.iter().filter(|(entry, _)| is_passt(entry)) {
            let names = by_segment.get(entry.segment.as_str()).copied();
            let others =
                || ports.iter().map(|(other, _)| *other).filter(|other| other.segment == entry.segment && other.name != entry.name);
            let addresses_of =
                |name: &str| others().find(|other| other.name.as_deref() == Some(name)).map(|other| other.addresses.as_slice());
            for text in way_out::mistakes(&entry.forward, names, addresses_of) {
                self.note(place, "forward", text);
            }
            let Some((names, router)) = names.and_then(|names| Some((names, way_out::router(names, &entry.addresses)?))) else {
                continue;
            };
            let of_passt = |other: &PortEntry| is_passt(other) && way_out::router(names, &other.addresses) == Some(router);
            let has_it = |other: &&PortEntry| of_passt(other) || other.addresses.contains(&router.into());
            if let Some(other) = others().find(has_it).filter(|_| entry.addresses.is_empty()) {
                let other = other.name.as_deref().unwrap_or_default();
                let text = format_args!(
                    "passt would be the router {router} of the segment, which is an address of port '{other}': add another to one of them, as addresses \
                     = [\"10.0.0.254\"]"
                );
                self.note(place, "passt", text);
            }
        }
    }

    /// Checks the ports of which others are twins, and the addresses of these.
    fn check_twins(&mut self, document: &Document, ports: &[(&PortEntry, &Place)]) {
        let names: HashMap<&str, &PortEntry> =
            ports.iter().filter_map(|(entry, _)| Some((entry.name.as_deref()?, *entry))).collect();
        for (entry, place) in ports {
            if (place.has("inside") || place.has("twin-of")) && !place.has("mac") && !prints_address(place) {
                let key = if place.has("inside") { "inside" } else { "twin-of" };
                let text = format_args!(
                    "{key} needs the MAC address by which others know the guest: add one, as mac = \"02:00:00:00:00:02\""
                );
                self.note(place, key, text);
            }
            let Some(base) = &entry.twin_of else { continue };
            match names.get(base.as_str()) {
                _ if place.has("inside") => {
                    self.note(place, "twin-of", "inside and twin-of both say which addresses the guest has inside: remove one");
                }
                _ if entry.name.as_ref() == Some(base) => {
                    self.note(
                        place,
                        "twin-of",
                        "the port is a twin of itself: name the port of the guest that the snapshot was taken of",
                    );
                }
                Some(other) if other.twin_of.is_some() => {
                    let text = format_args!("twin-of is \"{base}\", which is a twin itself: name the port of which it is one");
                    self.note(place, "twin-of", text);
                }
                Some(other) => {
                    let base = PortConfig::from_entry(other, self.folder, &document.access);
                    let inside = Some(base.addresses_inside(document.name.as_deref().unwrap_or_default()));
                    let limits = PortLimits { inside, ..entry.settings().limits };
                    for (_, text) in twin::mistakes(&limits) {
                        self.note(place, "twin-of", text);
                    }
                }
                // A running network looks it up.
                None if self.is_whole => self.note(place, "twin-of", no_base(base)),
                None => {}
            }
        }
    }

    /// Checks names and devices that only one segment, uplink or port can have.
    fn check_uplinks(&mut self, segments: &[(&SegmentEntry, &Place)], ports: &[(&PortEntry, &Place)]) {
        let mut seen: HashMap<(&str, String, String), String> = HashMap::new();
        for (entry, _) in ports {
            if let Some(interface) = entry.tap.as_ref().or(entry.af_packet.as_ref()) {
                let port = format!("port '{}'", entry.name.as_deref().unwrap_or_default());
                seen.insert(("interface", entry.netns.clone().unwrap_or_default(), interface.clone()), port);
            }
        }
        for (entry, place) in segments {
            let name = entry.name.clone().unwrap_or_default();
            let mut claims = vec![("name", ("segment", String::new(), name.clone()))];
            if let Some(uplink) = UplinkConfig::of(entry) {
                let netns = uplink.netns().unwrap_or_default();
                let interface = |key, device: &String| (key, ("interface", netns.to_owned(), device.clone()));
                match &uplink {
                    UplinkConfig::Nic(NicConfig { nic, .. }) => claims.push(interface("nic", nic)),
                    UplinkConfig::Vxlan(VxlanConfig { vni, udp_port, tap, bridge, vxlan, .. }) => {
                        claims.push(("vni", ("vni", format!("{netns} {udp_port}"), vni.to_string())));
                        claims.extend(
                            [("tap", tap), ("bridge", bridge), ("vxlan", vxlan)].map(|(key, device)| interface(key, device)),
                        );
                    }
                }
            }
            for (key, claim) in claims {
                let what = format!("{} {}", claim.0, claim.2);
                if let Some(first) = seen.insert(claim, format!("segment '{name}'")) {
                    self.note(place, key, format_args!("{what} is used twice, first by {first}: use another one"));
                }
            }
        }
    }

    fn check_cpus(&mut self, document: &Document, place: &Place) {
        if document.cpus.is_empty() {
            return;
        }
        let Some(allowed) = (self.cpus)() else { return };
        for cpu in document.cpus.iter().filter(|&&cpu| !allowed.contains(cpu)) {
            let text = "does not exist on this host, or a cpuset or container does not allow it";
            self.note(place, "cpus", format_args!("CPU {cpu} {text}; memlane may run on {allowed}"));
        }
    }

    /// Checks the name of a network, a segment or a port.
    fn check_name(&mut self, place: &Place, key: &str, name: &str) {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.chars().all(|c| c == '.') || name.len() > NAME || !name.chars().all(good) {
            let wanted = format_args!("1 to {NAME} letters, digits, '-', '_' and '.', not only dots");
            self.note(place, key, format_args!("{key} is \"{}\"; it must be {wanted}", printable(name)));
        }
    }

    /// Checks that keys of few kinds are stated for these alone.
    fn check_keys_of_kinds(&mut self, entry: &PortEntry, place: &Place) {
        let stated = [
            ("vif", entry.vif != 0),
            ("connect", entry.connect),
            ("checksums", entry.checksums != Checksums::default()),
            ("forward", !entry.forward.is_empty()),
            ("netns", entry.netns.is_some()),
            ("lazy-memory", entry.lazy_memory),
        ];
        for (key, _) in stated.into_iter().filter(|(_, is_stated)| *is_stated) {
            let of = kinds::with_key(key);
            if !of.iter().any(|kind| place.has(kind)) {
                self.note(place, key, format_args!("{key} applies to {} ports only: remove it", of.join(" and ")));
            }
        }
        let of_listening = [("access", entry.access != Access::default()), ("second", entry.second != Second::Refuse)];
        for (key, _) in of_listening.into_iter().filter(|(_, is_stated)| *is_stated) {
            let of = kinds::with_key(key);
            if entry.connect || !of.iter().any(|kind| place.has(kind)) {
                let of = of.join(" and ");
                self.note(place, key, format_args!("{key} applies only to {of} ports where memlane listens: remove it"));
            }
        }
    }

    fn check_port(&mut self, entry: &PortEntry, place: &Place) {
        match &entry.name {
            Some(name) => self.check_name(place, "name", name),
            None if place.has("name") => {}
            None => self.note(place, "", "this [[port]] has no name: add one, as name = \"web\""),
        }
        self.check_kind(entry, place);
        for (key, path) in [("vhost-user", &entry.vhost_user), ("stream", &entry.stream)] {
            if let Some(path) = path {
                self.check_socket(place, key, path);
            }
        }
        for (key, name) in [("tap", &entry.tap), ("af-packet", &entry.af_packet)] {
            if let Some(name) = name {
                self.check_interface(place, key, name);
            }
        }
        if let Some(domain) = &entry.xen {
            self.check_domain(place, domain);
        }
        self.check_keys_of_kinds(entry, place);
        self.check_namespace(place, entry.netns.as_deref());
        self.check_access(place, "access", &entry.access);
        self.check_name(place, "segment", &entry.segment);
        if let Some(mac) = &entry.mac {
            self.check_mac(place, mac);
        }
        if entry.anti_spoof != AntiSpoof::Off && !place.has("mac") && !prints_address(place) {
            let text = "anti-spoof needs the guest's MAC address, and the port has none: add one, as mac = \"02:00:00:00:00:01\"";
            self.note(place, "anti-spoof", text);
        }
        self.check_addresses(entry, place);
        entry.groups.iter().for_each(|group| self.check_name(place, "groups", group));
        if entry.groups.len() > MOST_GROUPS {
            let text = format_args!("groups has {} names, and may have {MOST_GROUPS}", entry.groups.len());
            self.note(place, "groups", text);
        }
        self.check_labels(entry, place);
    }

    fn check_kind(&mut self, entry: &PortEntry, place: &Place) {
        match PortKind::stated(entry)[..] {
            [] if kinds::names().any(|key| place.has(key)) => {}
            [] => {
                let kinds = either(&kinds::names().map(str::to_owned).collect::<Vec<_>>());
                self.note(place, "", format_args!("this [[port]] has no kind: add {kinds}, as vhost-user = \"web.sock\""));
            }
            [_] => {}
            [first, second, ..] => {
                self.note(place, second, format_args!("a port has exactly one kind: remove {first} or {second}"))
            }
        }
    }

    fn check_labels(&mut self, entry: &PortEntry, place: &Place) {
        let is_key = |key: &String| is_label(key);
        let is_value = |value: &String| value.len() <= LONGEST_VALUE && !value.contains(char::is_control);
        if entry.labels.len() > MOST_LABELS {
            let text = format_args!("labels has {} entries, and may have {MOST_LABELS}", entry.labels.len());
            self.note(place, "labels", text);
        }
        if let Some((key, _)) = entry.labels.iter().find(|(key, value)| !is_key(key) || !is_value(value)) {
            let key = printable(key);
            let text = format_args!(
                "labels has the entry {key}; a key has 1 to {LONGEST_KEY} letters, digits or ._/-, and a value {LONGEST_VALUE} bytes at most, none of them a \
                 control character"
            );
            self.note(place, "labels", text);
        }
    }

    fn check_addresses(&mut self, entry: &PortEntry, place: &Place) {
        let is_unicast = |address: &IpAddr| {
            let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
            !address.is_unspecified() && !address.is_multicast() && !address.is_loopback() && !is_broadcast
        };
        for address in entry.addresses.iter().filter(|address| !is_unicast(address)) {
            let text = format_args!("addresses contains \"{address}\"; they must be unicast addresses of the guest");
            self.note(place, "addresses", text);
        }
        for (key, count) in [("addresses", entry.addresses.len()), ("allowed", entry.allowed.len())] {
            if count > MOST_ADDRESSES {
                let text = format_args!(
                    "{key} has {count} elements, and may have {MOST_ADDRESSES}: use a prefix, as allowed = [{{ ip = \"10.1.0.0/16\" }}]"
                );
                self.note(place, key, text);
            }
        }
        if entry.allowed.iter().any(|pair| pair.mac.is_none() && pair.ip.is_none()) {
            let text = "an element of allowed has no address: add mac, ip or both, as { mac = \"00:00:5e:00:01:07\", ip = \"10.0.0.100\" }";
            self.note(place, "allowed", text);
        }
    }

    fn check_socket(&mut self, place: &Place, key: &str, path: &Path) {
        let length = path.as_os_str().len();
        let whole = self.folder.join(path).as_os_str().len();
        if length == 0 || whole > SOCKET_PATH {
            let folder = if whole > length { ", its folder included" } else { "" };
            self.note(
                place,
                key,
                format_args!(
                    "{key} is a path of {}{folder}; a socket path must have 1 to {SOCKET_PATH} bytes",
                    counted(whole, "byte")
                ),
            );
        }
        if path.to_string_lossy().contains(char::is_control) {
            self.note(place, key, format_args!("{key} contains control characters: remove them from the socket path"));
        }
    }

    fn check_metrics_labels(&mut self, place: &Place, document: &Document) {
        let labels = &document.metrics_labels;
        if labels.len() > MOST_LABELS {
            let text = format_args!("metrics-labels has {} elements, and may have {MOST_LABELS}", labels.len());
            self.note(place, "metrics-labels", text);
        }
        let mut names = HashMap::new();
        for label in labels {
            if !is_label(label) {
                let label = printable(label);
                let text = format_args!("metrics-labels has \"{label}\"; a label has 1 to {LONGEST_KEY} letters, digits or ._/-");
                self.note(place, "metrics-labels", text);
            } else if let Some(first) = names.insert(label_of_metrics(label), label) {
                let text =
                    format_args!("metrics-labels has \"{first}\" and \"{label}\", which metrics would call the same: remove one");
                self.note(place, "metrics-labels", text);
            }
        }
    }

    fn check_metrics(&mut self, place: &Place, document: &Document) {
        self.check_access(place, "metrics-access", &document.metrics_access);
        let Some(text) = &document.metrics else {
            if document.metrics_access != Access::default() {
                self.note(
                    place,
                    "metrics-access",
                    "metrics-access applies to the socket of the key metrics, which is missing: add one, as metrics = \"unix:net.metrics\"",
                );
            }
            return;
        };
        match (metrics::socket(text), text.parse::<SocketAddr>()) {
            (Some(path), _) => self.check_socket(place, "metrics", path),
            (None, Ok(_)) if document.metrics_access != Access::default() => {
                self.note(
                    place,
                    "metrics-access",
                    "metrics-access applies to Unix sockets only, and metrics is a TCP address: remove it",
                );
            }
            (None, Ok(_)) => {}
            (None, Err(_)) => {
                let text = printable(text);
                let told = format_args!(
                    "metrics is \"{text}\"; it must be a Unix socket, as \"unix:net.metrics\", or an address with a port, as \"127.0.0.1:9891\""
                );
                self.note(place, "metrics", told);
            }
        }
    }

    fn check_web(&mut self, place: &Place, document: &Document) {
        match (&document.web, &document.web_token) {
            (Some(text), token) => {
                if let Err(told) = WebListener::parse(text, token.as_deref(), self.folder) {
                    self.note(place, "web", told);
                }
            }
            (None, Some(_)) => {
                self.note(place, "web-token", "web-token is for the page of the key web: add one, as web = \"127.0.0.1:9892\"")
            }
            (None, None) => {}
        }
    }

    fn check_access(&mut self, place: &Place, key: &str, access: &Access) {
        if let Some(mistake) = access.mistake() {
            self.note(place, key, format_args!("{key}.{mistake}"));
        }
    }

    fn check_interface(&mut self, place: &Place, key: &str, name: &str) {
        let good = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
        if name.is_empty() || name.len() > INTERFACE_NAME || !name.chars().all(good) {
            let name = printable(name);
            let text = format_args!(
                "{key} is \"{name}\"; it must be an interface name: 1 to {INTERFACE_NAME} characters without spaces, /, : and %"
            );
            self.note(place, key, text);
        }
    }

    fn check_namespace(&mut self, place: &Place, name: Option<&str>) {
        if let Some(name) = name.filter(|name| !netns::is_name(name)) {
            let name = printable(name);
            let text = format_args!("netns is \"{name}\"; it must be a name that `ip netns list` shows");
            self.note(place, "netns", text);
        }
    }

    fn check_domain(&mut self, place: &Place, domain: &str) {
        // Characters that xl accepts, and that are possible in a path of xenstore.
        if domain.is_empty() || domain.len() > 64 || domain.contains(|c: char| !c.is_ascii_graphic() || c == '/') {
            let text =
                format_args!("xen is \"{}\"; it must be the name of a Xen domain, or its number in quotes", printable(domain));
            self.note(place, "xen", text);
        }
    }

    fn check_mac(&mut self, place: &Place, mac: &str) {
        match mac.parse::<MacAddress>() {
            Ok(address) if address.is_unicast() => {}
            Ok(_) => self.note(place, "mac", format_args!("mac is \"{mac}\"; it must be a unicast address, not a group address")),
            Err(_) => {
                let text = format_args!(
                    "mac is \"{}\"; it must be a MAC address of six hexadecimal bytes, as \"02:00:00:00:00:01\"",
                    printable(mac)
                );
                self.note(place, "mac", text);
            }
        }
    }

    fn check_unique(&mut self, document: &Document, ports: &[(&PortEntry, &Place)]) {
        let (folder, mut places) = (self.folder, Places::default());
        let mut seen: HashMap<Claim, String> = HashMap::new();
        if let Some(control) = &document.control {
            seen.insert(places.socket(folder, control), "control".into());
        }
        if let Some(metrics) = document.metrics.as_deref().and_then(metrics::socket) {
            seen.insert(places.socket(folder, metrics), "metrics".into());
        }
        for (entry, place) in ports {
            let name = format!("port '{}'", entry.name.as_deref().unwrap_or_default());
            for (key, claim) in entry.claims(folder, &mut places) {
                match seen.get(&claim) {
                    Some(first) => self.note(place, key, claim.taken(first)),
                    None => drop(seen.insert(claim, name.clone())),
                }
            }
        }
    }
}

/// The position of a table and its keys in the text.
struct Place<'a, 't> {
    table: &'a DeTable<'t>,
    /// Prefix of its keys' names.
    name: String,
    start: usize,
}

/// The entries of a list, each with its place; without those that are no tables.
fn placed<'p, 'a, 't, E>(entries: &'p [E], places: &'p [Option<Place<'a, 't>>]) -> Vec<(&'p E, &'p Place<'a, 't>)> {
    entries.iter().zip(places).filter_map(|(entry, place)| Some((entry, place.as_ref()?))).collect()
}

impl<'a, 't> Place<'a, 't> {
    /// `None` for entries that are no tables.
    fn of_list(document: &'a DeTable<'t>, what: &str) -> Vec<Option<Self>> {
        let Some(DeValue::Array(list)) = document.get(what).map(Spanned::get_ref) else { return Vec::new() };
        let place = |(index, entry): (usize, &'a Spanned<DeValue<'t>>)| match entry.get_ref() {
            DeValue::Table(table) => Some(Self { table, name: format!("{what}[{index}]."), start: entry.span().start }),
            _ => None,
        };
        list.iter().enumerate().map(place).collect()
    }

    /// Whether `key` is there, readable or not.
    fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Position of `key`, or of the table if it is not there.
    fn of(&self, key: &str) -> usize {
        self.table.iter().find(|(known, _)| known.get_ref() == key).map_or(self.start, |(known, _)| known.span().start)
    }
}

/// A port has more policy rules than it may have; without a name, all ports have.
pub fn too_many_rules(name: &str, count: usize) -> String {
    let ports = if name.is_empty() { "all ports have".into() } else { format!("port {name} has") };
    format!(
        "{ports} {count} policy rules, with those of groups and those about all ports, and a port may have {MOST_RULES}: give one rule several \
         destinations, or name in from and to the ports that need it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<(usize, String)> {
        check(text).unwrap_err().list.into_iter().map(|mistake| (mistake.line, mistake.text)).collect()
    }

    #[test]
    fn reports_every_mistake_with_its_line() {
        let text = "workers = 0\npol = \"never\"\npoll = 7\n[[port]]\nname = \"a\"\nvhost-user = 3\ncolour = \"red\"\n";
        let lines: Vec<usize> = mistakes(text).iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [1, 2, 3, 6, 7]);
    }

    #[test]
    fn what_cannot_be_read_hides_no_other_mistake() {
        let text = r#"colour = "red"
workers = "many"
[[port]]
name = "a"
vhost-user = "/tmp/a"
mac = "02:00"
[[port]]
name = "a"
vhost-user = "/tmp/b"
transmit = { rate = "quick" }
[[port]]
name = "c"
sise = 3
"#;
        let found = mistakes(text);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [1, 2, 6, 8, 10, 11, 13], "{found:?}");
    }

    #[test]
    fn what_cannot_be_read_is_not_missing() {
        for (text, wanted) in [
            ("[[port]]\nname = 7\nvhost-user = \"/tmp/a\"\n", vec![2]),
            ("[[port]]\nname = \"a\"\nvhost-user = 7\nconnect = true\n", vec![3]),
            ("[[port]]\nname = \"a\"\ntap = 7\nnetns = \"x\"\n", vec![3]),
            ("[port]\nname = \"a\"\n", vec![1]),
            ("port = [3, { name = \"a\" }, { name = \"a\", tap = \"t\" }]\n", vec![1, 1, 1]),
        ] {
            let found = mistakes(text);
            assert_eq!(found.iter().map(|mistake| mistake.0).collect::<Vec<_>>(), wanted, "{text}: {found:?}");
        }
    }

    #[test]
    fn addresses_fit_the_subnet_of_their_segment() {
        let text = r#"[[segment]]
name = "lan"
subnet = "10.0.0.0/24"
[[port]]
name = "a"
vhost-user = "/tmp/a"
anti-spoof = "all"
segment = "lan"
[[port]]
name = "b"
null = true
segment = "lan"
addresses = ["10.0.0.9", "10.0.0.255", "10.0.1.9"]
[[port]]
name = "c"
stream = "/tmp/c"
segment = "other"
anti-spoof = "all"
[[port]]
name = "d"
null = true
anti-spoof = "mac"
"#;
        let found = mistakes(text);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [13, 13, 18, 22], "{found:?}");
        assert!(found[0].1.contains("\"10.0.0.255\", the broadcast address"), "{found:?}");
        assert!(found[1].1.contains("\"10.0.1.9\", which is outside"), "{found:?}");
    }

    #[test]
    fn a_socket_has_a_path_that_the_kernel_takes() {
        let text = "control = \"CONTROL\"\n[[port]]\nname = \"a\"\nvhost-user = \"web.sock\"\n";
        let lines = |control: &str, folder: &str| -> Vec<usize> {
            match check_in(&text.replace("CONTROL", control), Path::new(folder)) {
                Ok(_) => Vec::new(),
                Err(mistakes) => mistakes.list.iter().map(|mistake| mistake.line).collect(),
            }
        };
        assert!(lines(&"c".repeat(107), "").is_empty());
        assert_eq!(lines(&"c".repeat(108), ""), [1]);
        assert!(lines("c", &"f".repeat(98)).is_empty());
        assert_eq!(lines("c", &"f".repeat(99)), [4]);
    }

    #[test]
    fn checks_values_alone_and_against_each_other() {
        let text = r#"workers = 0
[[port]]
name = "a"
vhost-user = "/tmp/a"
[[port]]
name = "a"
vhost-user = "/tmp/a"
mac = "01:00:00:00:00:01"
mtu = 10
[[port]]
name = "c"
netns = "x"
"#;
        let found = mistakes(text);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [1, 6, 7, 8, 9, 10, 12], "{found:?}");
    }

    #[test]
    fn an_ip_address_belongs_to_one_port_of_a_segment() {
        let port = |name: &str, segment: &str, address: &str| {
            format!("[[port]]\nname = \"{name}\"\nnull = true\nsegment = \"{segment}\"\naddresses = [\"{address}\"]\n")
        };
        for (address, spelled) in [("10.0.0.5", "10.0.0.5"), ("fd00::5", "fd00:0:0::5")] {
            let both = |segment: &str| format!("{}{}", port("a", "lan", address), port("b", segment, spelled));
            assert!(check(&both("back")).is_ok(), "{:?}", mistakes(&both("back")));
            let text = format!("address {address} on segment lan is used twice, first by port 'a': use another one");
            assert_eq!(mistakes(&both("lan")), [(10, text)]);
        }
    }

    #[test]
    fn rules_of_a_port_and_of_a_network_are_bounded() {
        let port = |n: usize| format!("[[port]]\nname = \"box{n}\"\nnull = true\n");
        let rule = |keys: &str| format!("[[policy]]\n{keys}\naction = \"deny\"\n");
        let own: String =
            (0..2000).map(|n| port(n) + &rule(&format!("from = \"box{n}\"")) + &rule(&format!("to = \"box{n}\""))).collect();
        assert!(check(&own).is_ok(), "{:?}", mistakes(&own));
        let (of_one, of_all) = (rule("from = [\"box1\", \"boxes\"]"), rule("protocol = 47"));
        assert!(check(&(port(1) + &of_one.repeat(1000) + &of_all.repeat(24))).is_ok());
        let told = mistakes(&(port(1) + &of_one.repeat(1000) + &of_all.repeat(25)));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].1.starts_with(
            "port box1 has 1025 policy rules, with those of groups and those about all ports, and a port may have 1024: give"
        ));
        assert!(mistakes(&of_all.repeat(1025))[0].1.starts_with("all ports have 1025 policy rules"));
        let told = mistakes(&of_one.repeat(16_385));
        assert!(
            told.iter().any(|(_, text)| text.starts_with("the file has 16385 policy rules, and a network may have 16384: use"))
        );
    }

    #[test]
    fn mistakes_of_uplinks_are_told() {
        let good = r#"[[segment]]
name = "lan"
uplink = true
vni = 100
local = "10.0.0.1"
mtu = 1450
[[segment]]
name = "back"
uplink = true
vni = 101
vxlan = "vx101"
[[segment]]
name = "idle"
uplink = false
vni = 102
"#;
        assert!(check(good).is_ok(), "{:?}", mistakes(good));
        let bad = r#"[[segment]]
name = "lan"
vni = 0
[[segment]]
name = "back"
uplink = true
[[segment]]
name = "back"
uplink = true
vni = 16777216
local = "10.0.0.300"
udp-port = 0
bridge = "a/b"
colour = 1
[[port]]
name = "a"
null = true
"#;
        let found = mistakes(bad);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [1, 3, 6, 6, 8, 10, 11, 12, 13, 14], "{found:?}");
    }

    #[test]
    fn mistakes_of_nics_are_told() {
        let good = "[[segment]]\nname = \"lan\"\nnic = \"eth1\"\nnetns = \"left\"\nmtu = 9000\nmulticast = \"snoop\"\n\
                    [[segment]]\nname = \"back\"\nnic = \"eth1\"\n";
        assert!(check(good).is_ok(), "{:?}", mistakes(good));
        let bad = r#"[[segment]]
name = "lan"
nic = "eth1"
uplink = true
vni = 7
[[segment]]
name = "back"
nic = "eth1"
mtu = 1400
[[segment]]
name = "side"
nic = "a/b"
[[port]]
name = "t"
tap = "eth2"
[[segment]]
name = "other"
nic = "eth2"
"#;
        let found = mistakes(bad);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [4, 5, 8, 12, 18], "{found:?}");
    }

    #[test]
    fn what_one_uplink_has_no_other_does() {
        let text = r#"[[segment]]
name = "a"
uplink = true
vni = 100
local = "10.0.0.1"
mtu = 1450
[[segment]]
name = "b"
uplink = true
vni = 100
local = "10.0.0.1"
tap = "tap0"
bridge = "br"
vxlan = "vx"
[[segment]]
name = "c"
uplink = true
vni = 102
local = "10.0.0.1"
bridge = "br"
[[port]]
name = "t"
tap = "tap0"
"#;
        let found = mistakes(text);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [10, 12, 20], "{found:?}");
    }

    #[test]
    fn a_namespace_lies_in_its_folder() {
        let text = "[[port]]\nname = \"a\"\ntap = \"t\"\nnetns = \"NAME\"\n[[segment]]\nname = \"lan\"\nuplink = true\nvni = 1\nvxlan = \"x\"\nnetns = \"NAME\"\n";
        assert!(check(&text.replace("NAME", "left")).is_ok());
        for bad in ["", "..", "../../proc/1/ns/net", "/proc/1/ns/net"] {
            let found = mistakes(&text.replace("NAME", bad));
            assert_eq!(found.iter().map(|mistake| mistake.0).collect::<Vec<_>>(), [4, 10], "{bad}: {found:?}");
        }
    }

    #[test]
    fn names_of_ports_and_segments_have_few_characters_and_end() {
        let text = r#"[[port]]
name = "a"
null = true
segment = "NAME"
[[segment]]
name = "NAME"
uplink = true
vni = 1
local = "10.0.0.1"
"#;
        for good in ["lan", "Front_1.a-b", &"x".repeat(64)] {
            assert!(check(&text.replace("NAME", good)).is_ok(), "{good}");
        }
        for bad in ["", "a b", "ü", "a/b", "a\\u001b[31m", &"x".repeat(65), &"x".repeat(100_000)] {
            let found = mistakes(&text.replace("NAME", bad));
            assert_eq!(found.iter().map(|mistake| mistake.0).collect::<Vec<_>>(), [4, 6], "{bad:.80}: {found:?}");
            let shown = |text: &str| text.len() < 200 && !text.contains(char::is_control);
            assert!(found.iter().all(|(_, text)| shown(text)), "{found:?}");
        }
    }

    #[test]
    fn what_a_file_says_reaches_no_terminal_as_it_is() {
        let text = "\"\\u001b[2J\" = 1\nworkers = \"\\u001b[2J\"\naccess = { mode = \"\\u001b[2J\" }\n[[port]]\nname = \"a\"\ntap = \"\\u001b[2J\"\n";
        let found = check(text).unwrap_err();
        assert_eq!(found.list.iter().map(|mistake| mistake.line).collect::<Vec<_>>(), [1, 2, 3, 6]);
        let text = found.in_file(Path::new("net.toml")).to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_socket_is_one_however_its_path_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let sub = folder.path().join("sub");
        std::fs::create_dir(&sub).unwrap();
        std::os::unix::fs::symlink("sub", folder.path().join("link")).unwrap();
        for (first, second) in [
            ("a.sock", "./a.sock"),
            ("a.sock", "x/../a.sock"),
            ("a.sock", "sub/../a.sock"),
            ("sub/a.sock", "link/a.sock"),
            ("sub/a.sock", sub.join("a.sock").to_str().unwrap()),
            ("x/a.sock", "x/./a.sock"),
        ] {
            let ports =
                format!("[[port]]\nname = \"a\"\nvhost-user = \"{first}\"\n[[port]]\nname = \"b\"\nstream = \"{second}\"\n");
            let found = check_in(&ports, folder.path()).unwrap_err().list;
            assert_eq!((found.len(), found[0].line), (1, 6), "{first} {second}: {found:?}");
            let told = format!("socket {second} is used twice, first by port 'a'");
            assert!(found[0].text.starts_with(&told), "{found:?}");
            let control = format!("control = \"{first}\"\n[[port]]\nname = \"b\"\nvhost-user = \"{second}\"\n");
            let found = check_in(&control, folder.path()).unwrap_err().list;
            let told = format!("socket {second} is used twice, first by control");
            assert!(found[0].text.starts_with(&told), "{found:?}");
        }
        let apart = "[[port]]\nname = \"a\"\nvhost-user = \"sub/a.sock\"\n[[port]]\nname = \"b\"\nvhost-user = \"a.sock\"\n";
        assert!(check_in(apart, folder.path()).is_ok());
    }

    #[test]
    fn an_empty_file_is_a_network_whose_ports_come_later() {
        assert!(check("").unwrap().port.is_empty());
    }

    #[test]
    fn every_mistake_names_its_key() {
        let text = "workers = 0\ncolour = 1\n[[port]]\nname = \"a\"\nmtu = 3\nsise = 4\n[[port]]\nname = \"a\"\nnull = true\n";
        let mut keys: Vec<_> = check(text).unwrap_err().list.into_iter().map(|mistake| mistake.key).collect();
        keys.sort();
        assert_eq!(keys, ["colour", "port[0]", "port[0].mtu", "port[0].sise", "port[1].name", "workers"]);
    }

    #[test]
    fn broken_syntax_is_reported_with_its_line() {
        assert_eq!(mistakes("workers = 1\nname = \n")[0].0, 2);
    }
}
