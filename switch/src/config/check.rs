//! Every mistake in a file, each with its line.
//!
//! First each key is read by itself into the document's types, which finds unknown names and wrong types wherever they are. Then what could
//! be read is checked, value by value and against each other, as if the rest were not there.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::claim::{Claim, Places};
use super::document::{Document, PortEntry, SegmentEntry};
use super::uplink::{MOST_VNI, OVERHEAD, UplinkConfig};
use crate::cpus::Cpus;
use crate::frame::MacAddress;
use crate::id::MAX_PAIRS;
use crate::link::Impairment;
use crate::netns;
use crate::policy::AntiSpoof;
use crate::port::stream::checksums::Checksums;
use crate::port::vhost_user::access::Access;

/// Most ports of a network.
pub const MAX_PORTS: usize = 4096;
/// Longest path of a Unix socket (unix(7)).
const SOCKET_PATH: usize = 107;
/// Longest name of a network interface.
const INTERFACE_NAME: usize = 15;
/// Longest name of a network, segment or port.
const NAME: usize = 64;
/// Longest sentence about a mistake, in bytes: it may quote names and values of any length.
const SENTENCE: usize = 1000;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line, from 1; 0 if it is about the file as a whole.
    pub line: usize,
    /// The key that is wrong, as `workers` or `port[0].mac`; empty if it is about the file as a whole.
    pub key: String,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl Mistake {
    /// What is wrong with a key of something that has no lines.
    pub(super) fn of(key: &str, text: &str) -> Self {
        Self { line: 0, key: printable(key), text: printable(text) }
    }
}

/// `text` as a terminal may show it: control characters escaped, and cut at [`SENTENCE`].
fn printable(text: &str) -> String {
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

    /// One mistake of something that is no file, or none that can be read.
    pub(super) fn whole(text: impl fmt::Display) -> Self {
        Self::of(vec![Mistake::of("", &text.to_string())])
    }

    /// Mistakes of something that is no file; at least one.
    pub(super) fn of(list: Vec<Mistake>) -> Self {
        Self { file: None, list }
    }

    /// As mistakes in the file at `path`.
    pub fn in_file(mut self, path: &Path) -> Self {
        self.file = Some(path.into());
        self
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.as_deref().map_or("network".into(), |path| path.display().to_string());
        for (index, mistake) in self.list.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            match mistake.line {
                0 => write!(f, "{newline}{file}: {}", mistake.text)?,
                line => write!(f, "{newline}{file}:{line}: {}", mistake.text)?,
            }
        }
        Ok(())
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

/// As [`check`], where relative paths lie in `folder`.
///
/// # Errors
/// All [`Mistakes`] at once.
pub fn check_in(text: &str, folder: &Path) -> Result<Document, Mistakes> {
    let mut checker = Checker { text, folder, list: Vec::new() };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        checker.note_at(error.span().map_or(0, |span| span.start), "", error.message());
    }
    // What of a file can be relied on whose syntax is broken is anybody's guess.
    let document = if checker.list.is_empty() { checker.read(&table) } else { None };
    checker.list.sort_by_key(|mistake| mistake.line);
    match document {
        Some(document) if checker.list.is_empty() => Ok(document),
        _ => Err(Mistakes { file: None, list: checker.list }),
    }
}

type Table<'t> = Spanned<DeTable<'t>>;

struct Checker<'t> {
    text: &'t str,
    folder: &'t Path,
    list: Vec<Mistake>,
}

impl<'t> Checker<'t> {
    /// Notes what is wrong with `key` of the table at `place`.
    fn note(&mut self, place: &Place, key: &str, text: impl fmt::Display) {
        let whole = if key.is_empty() { place.name.trim_end_matches('.').into() } else { format!("{}{key}", place.name) };
        self.note_at(place.of(key), &whole, text);
    }

    fn note_at(&mut self, position: usize, key: &str, text: impl fmt::Display) {
        let before = &self.text.as_bytes()[..position.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        self.list.push(Mistake { line, ..Mistake::of(key, &text.to_string()) });
    }

    /// Reads what can be read of the file, and checks it.
    fn read(&mut self, whole: &Table<'t>) -> Option<Document> {
        let readable = Spanned::new(whole.span(), self.readable(whole.get_ref()));
        match Document::deserialize(readable.into_deserializer()) {
            Ok(document) => {
                self.check_values(&document, whole);
                Some(document)
            }
            Err(error) => {
                self.note_at(error.span().map_or(0, |span| span.start), "", error.message());
                None
            }
        }
    }

    /// Reads every key of the file, of each segment and of each port by itself, and keeps those that can be read.
    fn readable(&mut self, whole: &DeTable<'t>) -> DeTable<'t> {
        let mut readable = DeTable::new();
        for (key, value) in whole {
            let list = match (key.get_ref().as_ref(), value.get_ref()) {
                ("port", DeValue::Array(list)) => self.readable_list::<PortEntry>("port", list),
                ("segment", DeValue::Array(list)) => self.readable_list::<SegmentEntry>("segment", list),
                _ => {
                    if self.can_read::<Document>("", key, value) {
                        readable.insert(key.clone(), value.clone());
                    }
                    continue;
                }
            };
            readable.insert(key.clone(), Spanned::new(value.span(), DeValue::Array(list)));
        }
        readable
    }

    /// What is no table becomes an entry without keys, so that the others keep their places.
    fn readable_list<T: for<'d> Deserialize<'d>>(&mut self, what: &str, list: &DeArray<'t>) -> DeArray<'t> {
        let read = |(index, entry): (usize, &Spanned<DeValue<'t>>)| {
            Spanned::new(entry.span(), DeValue::Table(self.readable_entry::<T>(what, index, entry)))
        };
        list.iter().enumerate().map(read).collect()
    }

    fn readable_entry<T: for<'d> Deserialize<'d>>(
        &mut self,
        what: &str,
        index: usize,
        entry: &Spanned<DeValue<'t>>,
    ) -> DeTable<'t> {
        let mut readable = DeTable::new();
        let DeValue::Table(table) = entry.get_ref() else {
            let text = format_args!("a {what} is a table: write it as [[{what}]]");
            self.note_at(entry.span().start, &format!("{what}[{index}]"), text);
            return readable;
        };
        for (key, value) in table {
            if self.can_read::<T>(&format!("{what}[{index}]."), key, value) {
                readable.insert(key.clone(), value.clone());
            }
        }
        readable
    }

    /// Whether a `T` that has only this key can be read.
    fn can_read<T: for<'d> Deserialize<'d>>(
        &mut self,
        table: &str,
        key: &Spanned<std::borrow::Cow<'t, str>>,
        value: &Spanned<DeValue<'t>>,
    ) -> bool {
        let mut alone = DeTable::new();
        alone.insert(key.clone(), value.clone());
        let result = T::deserialize(Spanned::new(key.span(), alone).into_deserializer());
        if let Err(error) = &result {
            let what = error.message().trim().replace('`', "'");
            let name = key.get_ref();
            self.note_at(key.span().start, &format!("{table}{name}"), format_args!("{name}: {what}"));
        }
        result.is_ok()
    }

    /// Checks what of the `whole` file was read into `document`.
    fn check_values(&mut self, document: &Document, whole: &Table<'t>) {
        let top = Place { table: whole.get_ref(), name: String::new(), start: 0 };
        let mut range = |key, value: u64, range: RangeInclusive<u64>| self.check_range(&top, key, value, range);
        range("workers", document.workers as u64, 1..=64);
        range("patience-ms", document.patience_ms, 1..=60_000);
        range("waiting-frames", document.waiting_frames as u64, 64..=1 << 20);
        range("memory-mib", document.memory_mib, 1..=1 << 20);
        range("guest-memory-gib", document.guest_memory_gib.unwrap_or(1), 1..=1 << 16);
        range("port-memory-gib", document.port_memory_gib.unwrap_or(1), 1..=1 << 16);
        range("age", document.age.into(), 1..=1_000_000);
        if !(0.05..=0.95).contains(&document.share) {
            self.note(&top, "share", format_args!("share is {}; it can be 0.05 to 0.95", document.share));
        }
        self.check_cpus(document, &top);
        if let Some(name) = &document.name {
            self.check_name(&top, "name", name);
        }
        if let Some(path) = &document.control {
            self.check_socket(&top, "control", path);
        }
        self.check_access(&top, &document.access);
        if document.port.len() > MAX_PORTS {
            self.note(&top, "port", format_args!("{} ports, where a network may have {MAX_PORTS}", document.port.len()));
        }
        let places = Place::of_list(whole.get_ref(), "port");
        let ports: Vec<_> = document.port.iter().zip(&places).filter_map(|(entry, place)| Some((entry, place.as_ref()?))).collect();
        for (entry, place) in &ports {
            self.check_port(entry, place);
        }
        self.check_unique(document.control.as_deref(), &ports);
        let places = Place::of_list(whole.get_ref(), "segment");
        let segments: Vec<_> =
            document.segment.iter().zip(&places).filter_map(|(entry, place)| Some((entry, place.as_ref()?))).collect();
        for (entry, place) in &segments {
            self.check_segment(entry, place);
        }
        self.check_uplinks(&segments, &ports);
    }

    fn check_segment(&mut self, entry: &SegmentEntry, place: &Place) {
        match &entry.name {
            Some(name) => self.check_name(place, "name", name),
            None if !place.has("name") => self.note(place, "", "a segment needs a name"),
            _ => {}
        }
        if !place.has("uplink") {
            let text = "what is told here of a segment is for its uplink: add uplink = true, or leave the table out";
            self.note(place, "", text);
        }
        if entry.uplink && !place.has("vni") {
            self.note(place, "uplink", "an uplink needs a vni: a number from 1 to 16777215, the same at all hosts");
        }
        if entry.uplink && !place.has("local") && !place.has("vxlan") {
            self.note(
                place,
                "uplink",
                "an uplink needs local, this host's address on the underlay, or a vxlan device that is there",
            );
        }
        if let Some(vni) = entry.vni {
            self.check_range(place, "vni", vni.into(), 1..=MOST_VNI.into());
        }
        if let Some(mtu) = entry.mtu {
            self.check_range(place, "mtu", mtu.into(), 68..=u64::from(u16::MAX) - u64::from(OVERHEAD));
        }
        self.check_range(place, "udp-port", entry.udp_port.into(), 1..=65535);
        self.check_namespace(place, entry.netns.as_deref());
        if let Some(local) = entry.local.filter(|local| local.is_unspecified() || local.is_multicast() || local.is_broadcast()) {
            self.note(place, "local", format_args!("{local} is no host's address"));
        }
        for (key, name) in [("tap", &entry.tap), ("bridge", &entry.bridge), ("vxlan", &entry.vxlan)] {
            if let Some(name) = name {
                self.check_interface(place, key, name);
            }
        }
    }

    /// What only one segment, one uplink or one port can have; and ports whose frames would not pass their segment's uplink.
    fn check_uplinks(&mut self, segments: &[(&SegmentEntry, &Place)], ports: &[(&PortEntry, &Place)]) {
        let mut seen: HashMap<(&str, String, String), String> = HashMap::new();
        for (entry, _) in ports {
            if let Some(tap) = &entry.tap {
                let port = format!("port '{}'", entry.name.as_deref().unwrap_or_default());
                seen.insert(("interface", entry.netns.clone().unwrap_or_default(), tap.clone()), port);
            }
        }
        for (entry, place) in segments {
            let name = entry.name.clone().unwrap_or_default();
            let mut claims = vec![("name", ("segment", String::new(), name.clone()))];
            if let Some(uplink) = UplinkConfig::of(entry) {
                let netns = || uplink.namespace().to_owned();
                claims.push(("vni", ("vni", format!("{} {}", netns(), uplink.udp_port), uplink.vni.to_string())));
                claims.extend(
                    [("tap", &uplink.tap), ("bridge", &uplink.bridge), ("vxlan", &uplink.vxlan)]
                        .map(|(key, device)| (key, ("interface", netns(), device.clone()))),
                );
                self.check_port_mtus(&uplink, ports);
            }
            for (key, claim) in claims {
                let what = format!("{} {}", claim.0, claim.2);
                if let Some(first) = seen.insert(claim, format!("segment '{name}'")) {
                    self.note(place, key, format_args!("{what} is used twice, first by {first}"));
                }
            }
        }
    }

    fn check_port_mtus(&mut self, uplink: &UplinkConfig, ports: &[(&PortEntry, &Place)]) {
        for (entry, place) in ports.iter().filter(|(entry, _)| entry.segment == uplink.segment) {
            if let (Some(mtu), Some(most)) = (entry.mtu, uplink.mtu)
                && mtu > most
            {
                let text = format_args!("mtu is {mtu}, where segment {} carries {most} to other hosts", uplink.segment);
                self.note(place, "mtu", text);
            }
        }
    }

    fn check_range(&mut self, place: &Place, key: &str, value: u64, range: RangeInclusive<u64>) {
        if !range.contains(&value) {
            self.note(place, key, format_args!("{key} is {value}; it can be {} to {}", range.start(), range.end()));
        }
    }

    fn check_cpus(&mut self, document: &Document, place: &Place) {
        let Some(allowed) = Cpus::allowed() else { return };
        for cpu in document.cpus.iter().filter(|&&cpu| !allowed.contains(cpu)) {
            let text = "does not exist here, or taskset, a cpuset or a container keeps memlane off it";
            self.note(place, "cpus", format_args!("CPU {cpu} {text}; memlane may run on {allowed}"));
        }
    }

    /// Checks the name of a network, a segment or a port.
    fn check_name(&mut self, place: &Place, key: &str, name: &str) {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.chars().all(|c| c == '.') || name.len() > NAME || !name.chars().all(good) {
            let shown: String = name.chars().take(NAME).collect();
            self.note(place, key, format_args!("'{shown}' is no name: use up to {NAME} letters, digits, '-', '_' and '.'"));
        }
    }

    fn check_port(&mut self, entry: &PortEntry, place: &Place) {
        match &entry.name {
            Some(name) => self.check_name(place, "name", name),
            None if place.has("name") => {}
            None => self.note(place, "", "a port needs a name"),
        }
        match entry.kinds()[..] {
            [] if PortEntry::KINDS.iter().any(|key| place.has(key)) => {}
            [] => self.note(place, "", format_args!("a port needs a kind, one of {}", PortEntry::KINDS.join(", "))),
            [_] => {}
            [first, second, ..] => self.note(place, second, format_args!("a port is either {first} or {second}, not both")),
        }
        for (key, path) in [("vhost-user", &entry.vhost_user), ("stream", &entry.stream)] {
            if let Some(path) = path {
                self.check_socket(place, key, path);
            }
        }
        if let Some(name) = &entry.tap {
            self.check_interface(place, "tap", name);
        }
        if let Some(domain) = &entry.xen {
            self.check_domain(place, domain);
        }
        if entry.vif != 0 && !place.has("xen") {
            self.note(place, "vif", "vif is for xen ports");
        }
        if entry.connect && !place.has("vhost-user") && !place.has("stream") {
            self.note(place, "connect", "connect is for vhost-user and stream ports");
        }
        if entry.checksums != Checksums::Keep && !place.has("stream") {
            self.note(place, "checksums", "checksums is for stream ports");
        }
        if entry.netns.is_some() && !place.has("tap") {
            self.note(place, "netns", "netns is for tap ports");
        }
        self.check_namespace(place, entry.netns.as_deref());
        self.check_access(place, &entry.access);
        if entry.access != Access::default() && (entry.connect || !place.has("vhost-user") && !place.has("stream")) {
            self.note(place, "access", "access is for vhost-user and stream ports at which memlane listens");
        }
        self.check_name(place, "segment", &entry.segment);
        if let Some(mac) = &entry.mac {
            self.check_mac(place, mac);
        }
        if entry.anti_spoof != AntiSpoof::Off && !place.has("mac") {
            let text =
                "anti-spoof lets the guest send from the port's own address, and the port has none: state it with mac = \"...\"";
            self.note(place, "anti-spoof", text);
        }
        if let Some(mtu) = entry.mtu {
            self.check_range(place, "mtu", mtu.into(), 68..=65535);
        }
        self.check_range(place, "queues", entry.queues.into(), 1..=MAX_PAIRS.into());
        for (key, mistake) in entry.allowance().mistakes() {
            self.note(place, key, format_args!("{key}: {mistake}"));
        }
        for (_, mistake) in entry.link.iter().flat_map(Impairment::mistakes) {
            self.note(place, "link", format_args!("link: {mistake}"));
        }
    }

    fn check_socket(&mut self, place: &Place, key: &str, path: &Path) {
        let length = path.as_os_str().len();
        let whole = self.folder.join(path).as_os_str().len();
        if length == 0 || whole > SOCKET_PATH {
            let folder = if whole > length { ", its folder included" } else { "" };
            self.note(place, key, format_args!("a socket's path has 1 to {SOCKET_PATH} bytes{folder}, this one {whole}"));
        }
        if path.to_string_lossy().contains(char::is_control) {
            self.note(place, key, "a socket's path has no control characters");
        }
    }

    fn check_access(&mut self, place: &Place, access: &Access) {
        if let Some(mistake) = access.mistake() {
            self.note(place, "access", format_args!("access: {mistake}"));
        }
    }

    fn check_interface(&mut self, place: &Place, key: &str, name: &str) {
        let good = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
        if name.is_empty() || name.len() > INTERFACE_NAME || !name.chars().all(good) {
            self.note(place, key, format_args!("'{name}' is no interface name: use up to {INTERFACE_NAME} letters and digits"));
        }
    }

    fn check_namespace(&mut self, place: &Place, name: Option<&str>) {
        if let Some(name) = name.filter(|name| !netns::is_name(name)) {
            let text = format_args!("'{name}' is no network namespace: use a name under /run/netns, as `ip netns list` shows them");
            self.note(place, "netns", text);
        }
    }

    fn check_domain(&mut self, place: &Place, domain: &str) {
        // What xl takes, and xenstore can have in a path.
        if domain.is_empty() || domain.len() > 64 || domain.contains(|c: char| !c.is_ascii_graphic() || c == '/') {
            self.note(place, "xen", format_args!("'{domain}' is no domain: use its name, or its number in quotes"));
        }
    }

    fn check_mac(&mut self, place: &Place, mac: &str) {
        match mac.parse::<MacAddress>() {
            Ok(address) if address.is_station() => {}
            Ok(_) => self.note(place, "mac", format_args!("{mac} is no address of a single station")),
            Err(error) => self.note(place, "mac", error),
        }
    }

    fn check_unique(&mut self, control: Option<&Path>, ports: &[(&PortEntry, &Place)]) {
        let (folder, mut places) = (self.folder, Places::default());
        let mut seen: HashMap<Claim, String> = HashMap::new();
        if let Some(control) = control {
            seen.insert(places.socket(folder, control), "control".into());
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

/// Where a table and its keys stand in the text.
struct Place<'a, 't> {
    table: &'a DeTable<'t>,
    /// What stands before its keys' names.
    name: String,
    start: usize,
}

impl<'a, 't> Place<'a, 't> {
    /// `None` for those that are no tables.
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
intake = { rate = "quick" }
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
[[port]]
name = "g"
null = true
segment = "a"
mtu = 1500
"#;
        let found = mistakes(text);
        let lines: Vec<usize> = found.iter().map(|mistake| mistake.0).collect();
        assert_eq!(lines, [10, 12, 20, 28], "{found:?}");
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
            assert_eq!(found[0].text, format!("socket {second} is used twice, first by port 'a'"));
            let control = format!("control = \"{first}\"\n[[port]]\nname = \"b\"\nvhost-user = \"{second}\"\n");
            let found = check_in(&control, folder.path()).unwrap_err().list;
            assert_eq!(found[0].text, format!("socket {second} is used twice, first by control"));
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
