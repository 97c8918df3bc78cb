//! The configuration: one TOML file, checked as a whole.
//!
//! 1. [`document`]: the file as types, [`entry`] its ports, [`kinds`] their kinds; `memlane schema` prints the JSON Schema generated from them.
//! 2. [`check`]: every mistake in the file, each with its line: [`syntax`], text that is no TOML; [`shape`], each value, as it was [`written`], by
//!    itself, in [`words`] and `quantity`s; then values against each other.
//! 3. [`Config`]: the checked configuration for the rest of the program.
//! 4. [`mod@file`]: the file as text, not while it is being written. [`uplink`]: uplinks of segments to other hosts. [`names`]: their
//!    addresses and names. [`way_out`]: their router.
//! 5. [`twin`]: addresses inside guests. [`origin`]: where a port comes from. [`mod@unit`]: the packaged unit of a network. [`notes`]: valid keys that are hardly meant so. [`claim`]: resources that only one port can have. [`mod@renamed`]: old keys and their new names. [`json`]: the same keys as
//!    JSON, for running networks. [`difference`]: the changes from one configuration to another. [`lines`], `places`: the lines of keys.
//! 6. [`folder`]: folders of sockets and of state. [`cpus`]: CPUs on which the network may run.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub(crate) use memlane_dataplane::{link, network, policy, port, settings};
pub(crate) use memlane_model::{descriptors, quantity};
pub(crate) use memlane_virtq::frame;

pub mod check;
pub mod claim;
pub mod cpus;
pub mod difference;
pub mod document;
pub mod entry;
pub mod file;
pub mod folder;
pub mod json;
pub mod kinds;
pub mod later;
pub mod lines;
pub mod metrics;
pub mod names;
pub mod notes;
pub mod origin;
mod places;
mod renamed;
pub mod resolver;
mod resource;
mod shape;
mod syntax;
pub mod twin;
pub mod unit;
pub mod uplink;
pub mod way_out;
pub mod web;
mod words;
mod written;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub use check::{Mistake, Mistakes, too_many_rules};
pub use document::{Document, SegmentEntry};
pub use entry::{PasstEntry, PortEntry};
pub use folder::runtime as runtime_folder;
use kinds::Opening;
pub use kinds::PortKind;
use later::Later;
use lines::FileLines;
use metrics::MetricsListener;
pub use metrics::label_of_metrics;
pub use names::NamesConfig;
pub use origin::{Attacher, PortOrigin};
pub use renamed::renamed;
pub use uplink::{NicConfig, UplinkConfig, VxlanConfig};
pub use way_out::{Forward, ForwardProtocol};
use web::WebListener;
pub use words::{either, inline_table, nearest, printable};

use crate::policy::AntiSpoof;
use crate::port::settings::PortSettings;
use crate::port::{Offer, default_address, short_hash};
use crate::settings::{Poll, Settings};
use memlane_backends::listener::Second;
use memlane_backends::stream::Passt;
use memlane_backends::stream::nat::NatSettings;
use memlane_backends::vhost_user::access::Access;
use memlane_model::addresses::Inside;
use memlane_model::policy::PolicyRule;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the network.
    pub name: String,
    /// Number of worker threads.
    pub workers: usize,
    /// CPU affinity: CPUs that the workers are tied to, in turn; none if empty.
    pub cpus: Vec<usize>,
    /// The polling mode, if configured.
    pub poll: Option<Poll>,
    /// Data path settings.
    pub settings: Settings,
    /// Path of the control socket, if configured; else see [`Self::control_socket`].
    pub control: Option<PathBuf>,
    /// Endpoint for metrics beside the control socket, if configured.
    pub metrics: Option<MetricsListener>,
    /// Labels of ports that metrics have.
    pub metrics_labels: Vec<String>,
    /// Endpoint of the web page, if configured.
    pub web: Option<WebListener>,
    /// Access rights of the sockets of ports that state none, also of ports attached later.
    pub access: Access,
    /// Rights that the sandbox keeps for ports attached later; paths are absolute.
    pub later: Later,
    /// Whether vifs of Xen guests get ports as they are created.
    pub xen_vifs: bool,
    /// Whether the switch answers ARP and neighbour discovery, of the segments for which that is configured.
    pub suppression: BTreeMap<String, bool>,
    /// Responders of segments, in the order of the file.
    pub names: Vec<NamesConfig>,
    /// Uplinks of segments to other hosts, in the order of the file.
    pub uplinks: Vec<UplinkConfig>,
    /// Names of segments with multicast snooping, in the order of the file.
    pub snooping: Vec<String>,
    /// Rules about frames between ports, in the order of the file.
    pub policy: Vec<PolicyRule>,
    /// The ports, in the order of the file.
    pub ports: Vec<PortConfig>,
    /// Lines of the file, for messages.
    pub lines: FileLines,
    /// The keys beside ports, for a snapshot of the network.
    pub stated: Stated,
    /// Name of the network of which usual MAC addresses are made, where this one was restored from a snapshot.
    pub addresses_of: Option<String>,
}

/// Keys of a network without its ports, as JSON.
#[derive(Clone, Debug, Default)]
pub struct Stated(Arc<Map<String, Value>>);

impl PartialEq for Stated {
    /// The values of the keys are compared.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Stated {
    fn of(document: &Document) -> Self {
        let alone = Document { port: Vec::new(), ..document.clone() };
        match serde_json::to_value(alone) {
            Ok(Value::Object(mut keys)) => {
                keys.remove("port");
                Self(Arc::new(keys))
            }
            _ => Self::default(),
        }
    }

    /// The keys.
    pub fn keys(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// A checked port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// Name of the port.
    pub name: String,
    /// Name of its segment.
    pub segment: String,
    /// Settings that may change while it runs.
    pub settings: PortSettings,
    /// Whether the guest may receive GSO frames and partial checksums.
    pub receive_offloads: bool,
    /// Whether the guest's memory is filled by its monitor while it runs.
    pub lazy_memory: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Access rights of its socket.
    pub access: Access,
    /// Treatment of a second front end at its socket.
    pub second: Second,
    /// Back end of the port.
    pub kind: PortKind,
    /// Ports of the host that its passt forwards.
    pub forward: Vec<Forward>,
    /// Name of the port whose guest has the addresses that its own has inside, as long as they were not looked up.
    pub twin_of: Option<String>,
    /// Origin of the port.
    pub origin: PortOrigin,
}

impl Config {
    /// A network called `name`, without ports and with defaults.
    ///
    /// # Errors
    /// `name` is invalid.
    pub fn named(name: &str) -> Result<Self, Mistakes> {
        Self::from_json(&serde_json::json!({ "name": name }), name, Path::new(""))
    }

    /// Reads and checks the file at `path`. Its paths become absolute.
    ///
    /// # Errors
    /// All [`Mistakes`] at once; an unreadable file is one.
    pub fn load(path: &Path) -> Result<Self, Mistakes> {
        Ok(Document::load(path)?.config())
    }

    /// Checks `text`; the network is called `default_name` if the text does not name it. Relative paths are relative to the
    /// working directory.
    ///
    /// # Errors
    /// All [`Mistakes`] at once.
    pub fn parse(text: &str, default_name: &str) -> Result<Self, Mistakes> {
        Self::parse_in(text, default_name, Path::new(""))
    }

    /// Like [`Self::parse`], but relative paths lie in `folder`.
    fn parse_in(text: &str, default_name: &str, folder: &Path) -> Result<Self, Mistakes> {
        Ok(Self::from_document(&check::check_in(text, folder)?, default_name, folder).with_twins())
    }

    /// Cannot fail, because `document` was checked.
    fn from_document(document: &Document, default_name: &str, folder: &Path) -> Self {
        let name = document.name.clone().unwrap_or_else(|| default_name.into());
        let mut names: Vec<NamesConfig> = document.segment.iter().filter_map(SegmentEntry::names).collect();
        let ports = document.port.iter().map(|entry| PortConfig::from_entry(entry, folder, &document.access));
        let mut ports: Vec<PortConfig> = ports.collect();
        settle_ways_out(&name, &mut names, &mut ports);
        let (poll, usual) = (document.poll(), Settings::default());
        Self {
            control: document.control.as_ref().map(|path| folder.join(path)),
            metrics: document.metrics.as_ref().and_then(|text| MetricsListener::parse(text, &document.metrics_access, folder)),
            metrics_labels: document.metrics_labels.clone(),
            // A text that is no endpoint was refused by the check.
            web: document.web.as_ref().and_then(|text| WebListener::parse(text, document.web_token.as_deref(), folder).ok()),
            name,
            workers: document.workers,
            cpus: document.cpus.clone(),
            poll: document.poll,
            settings: Settings {
                fill_timeout: None,
                poll,
                in_order: document.in_order.unwrap_or(poll == Poll::Always),
                stall_timeout: Duration::from_millis(document.stall_timeout_ms),
                wait_queue: document.waiting_frames,
                share: document.share,
                age: document.age,
                moves: document.address_moves,
                memory: document.memory_mib << 20,
                guest_memory: document.guest_memory_gib.map_or(usual.guest_memory, |gib| gib << 30),
                port_memory: document.port_memory_gib.map_or(usual.port_memory, |gib| gib << 30),
            },
            access: document.access.clone(),
            later: document.sandbox.in_folder(folder),
            xen_vifs: document.xen_vifs,
            suppression: document.segment.iter().filter_map(|entry| entry.name.clone().zip(entry.neighbour_suppression)).collect(),
            names,
            uplinks: document.segment.iter().filter_map(UplinkConfig::of).collect(),
            snooping: document
                .segment
                .iter()
                .filter(|segment| segment.multicast == document::Multicast::Snoop)
                .filter_map(|segment| segment.name.clone())
                .collect(),
            policy: document.policy.clone(),
            ports,
            lines: document.lines.clone(),
            stated: Stated::default(),
            addresses_of: None,
        }
    }

    /// Name of the network of which usual MAC addresses are made.
    pub fn seed(&self) -> &str {
        self.addresses_of.as_deref().unwrap_or(&self.name)
    }

    /// Settings of the translation for `port`, if it is a passt port on a segment with a subnet.
    pub fn nat_of(&self, port: &PortConfig) -> Option<NatSettings> {
        port.kind.passt()?;
        let names = self.names.iter().find(|names| names.segment == port.segment)?;
        let addresses_of = |name: &str| {
            let to = self.ports.iter().find(|other| other.name == name && other.segment == port.segment)?;
            Some(to.settings.limits.addresses.as_slice())
        };
        Some(NatSettings {
            router: way_out::router(names, &port.settings.limits.addresses)?,
            mac: port.settings.mac.unwrap_or_else(|| default_address(self.seed(), &port.name)),
            subnet: names.subnet?,
            forwardings: port.forward.iter().filter_map(|forward| forward.forwarding(addresses_of)).collect(),
        })
    }

    /// The same, with the addresses that twins have inside: their bases are among the ports.
    fn with_twins(mut self) -> Self {
        let found: Vec<_> = (self.ports.iter().enumerate())
            .filter_map(|(index, port)| Some((index, self.port(port.twin_of.as_deref()?)?.addresses_inside(self.seed()))))
            .collect();
        for (index, inside) in found {
            self.ports[index].set_inside(inside);
        }
        self
    }

    /// Path of the control socket of this network, which was read from `file`, if from any.
    pub fn control_socket(&self, file: Option<&Path>) -> PathBuf {
        self.control.clone().unwrap_or_else(|| default_control(&self.name, file))
    }

    /// Names of the segments, in the order in which ports name them.
    pub fn segments(&self) -> Vec<&str> {
        let mut known = HashSet::new();
        self.ports.iter().map(|port| port.segment.as_str()).filter(|name| known.insert(*name)).collect()
    }

    /// The ports by their names.
    pub fn by_name(&self) -> HashMap<&str, &PortConfig> {
        self.ports.iter().map(|port| (port.name.as_str(), port)).collect()
    }

    /// The port called `name`.
    pub fn port(&self, name: &str) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.name == name)
    }
}

impl Document {
    /// Reads and checks the file at `path`. The network's name is that of the file if it has no other, and its paths are
    /// absolute.
    ///
    /// # Errors
    /// All [`Mistakes`] at once; an unreadable file is one.
    pub fn load(path: &Path) -> Result<Self, Mistakes> {
        let text = std::fs::read_to_string(path).map_err(|error| Mistakes::unreadable(path, &error))?;
        Self::parse(&text, path)
    }

    /// The network that a document with a name and whole paths describes.
    pub fn config(&self) -> Config {
        Config { stated: Stated::of(self), ..Config::from_document(self, "net", Path::new("")).with_twins() }
    }

    /// Like [`Self::load`], from the text of the file.
    ///
    /// # Errors
    /// All [`Mistakes`] at once.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Mistakes> {
        Self::parse_by(check::check_in, text, path)
    }

    fn parse_by(check: fn(&str, &Path) -> Result<Self, Mistakes>, text: &str, path: &Path) -> Result<Self, Mistakes> {
        let unreadable = |error: std::io::Error| Mistakes::unreadable(path, &error);
        let whole = std::path::absolute(path).map_err(unreadable)?;
        let folder = whole.parent().unwrap_or(Path::new("/"));
        if folder.to_str().is_none() {
            // Paths are printed and stored as text.
            return Err(Mistakes::unreadable(
                path,
                &std::io::Error::other("the path of its folder is not UTF-8: move the file to another folder"),
            ));
        }
        let mut document = check(text, folder).map_err(|mistakes| mistakes.in_file(path))?;
        let sockets = document.port.iter_mut().flat_map(|port| [&mut port.vhost_user, &mut port.stream]);
        for socket in sockets.chain([&mut document.control, &mut document.web_token]).flatten() {
            *socket = folder.join(&*socket);
        }
        document.metrics = document.metrics.map(|text| metrics::in_folder(&text, folder));
        document.sandbox = document.sandbox.in_folder(folder);
        let stem = || path.file_stem().map_or("net".into(), |stem| stem.to_string_lossy().into_owned());
        document.name.get_or_insert_with(stem);
        document.lines.file.clone_from(&whole);
        Ok(document)
    }
}

/// The file of a running network, read again.
#[derive(Clone, Debug)]
pub struct Reread {
    /// Contents of the file.
    pub document: Document,
    /// The last line has no newline, or a program has it open for writing: the file may be incomplete.
    pub cut_off: bool,
}

impl Reread {
    /// Reads and checks the file at `path` once no program is writing it, or at once with `force`. As [`Document::load`] does,
    /// except for CPUs, which the network checks.
    ///
    /// # Errors
    /// All [`Mistakes`] at once.
    pub fn load(path: &Path, force: bool) -> Result<Self, Mistakes> {
        let at_once = || Ok(file::Settled { text: std::fs::read_to_string(path)?, is_open: false });
        let read = if force { at_once() } else { file::read_settled(path) };
        let file::Settled { text, is_open } = read.map_err(|error| Mistakes::unreadable(path, &error))?;
        let document = Document::parse_by(check::check_running, &text, path)?;
        Ok(Self { document, cut_off: !force && (is_open || file::has_open_line(&text)) })
    }
}

impl PortConfig {
    /// Settings of the port in the network called `net`: an `anti-spoof` without `mac` allows the address that memlane prints for the guest, and a
    /// twin without `mac` has it outside.
    pub fn settings_in(&self, net: &str) -> PortSettings {
        let mut settings = self.settings.clone();
        let needs_address = settings.limits.anti_spoof != AntiSpoof::Off || settings.limits.inside.is_some();
        if needs_address && self.kind.about().prints_address {
            settings.mac.get_or_insert_with(|| default_address(net, &self.name));
        }
        settings
    }

    /// Has its guest have these addresses inside, which were looked up.
    pub fn set_inside(&mut self, inside: Inside) {
        self.settings.limits.inside = Some(inside);
        self.twin_of = None;
    }

    /// The addresses of its guest, in the network called `net`: those of its twins inside.
    pub fn addresses_inside(&self, net: &str) -> Inside {
        let own = self.settings.mac.unwrap_or_else(|| default_address(net, &self.name));
        match &self.settings.limits.inside {
            Some(inside) => Inside { mac: inside.mac.or(Some(own)), ..inside.clone() },
            None => Inside { mac: Some(own), addresses: self.settings.limits.addresses.clone() },
        }
    }

    /// Users that may connect to its socket but cannot enter one of its folders, with the remedy.
    pub fn shut_out(&self) -> Option<String> {
        let path = self.kind.listens_at()?;
        let (folder, users) = self.access.shut_folder(path)?;
        let folder = folder.display();
        Some(format!(
            "{users} may connect to {}, but cannot enter the folder {folder} (unless an ACL lets it in): chmod o+x {folder}, or have the \
             socket in another, such as /run/memlane",
            path.display()
        ))
    }

    /// What the port is opened with; `offer` once uplinks are known.
    pub fn opening<'o>(
        &'o self,
        offer: Option<Offer>,
        shut_out: &'o dyn Fn() -> Option<String>,
        nat: &'o dyn Fn() -> Option<NatSettings>,
        passt: &'o dyn Fn(Passt) -> io::Result<Passt>,
    ) -> Opening<'o> {
        Opening {
            name: &self.name,
            mac: self.settings.mac,
            mtu: self.settings.mtu,
            queues: self.queues,
            receive_offloads: self.receive_offloads,
            access: &self.access,
            shut_out,
            offer,
            nat,
            passt,
        }
    }

    fn from_entry(entry: &PortEntry, folder: &Path, general: &Access) -> Self {
        let kind = PortKind::of(entry, folder);
        Self {
            name: entry.name.clone().unwrap_or_default(),
            segment: entry.segment.clone(),
            settings: entry.settings(),
            receive_offloads: entry.receive_offloads,
            lazy_memory: entry.lazy_memory,
            queues: entry.queues,
            second: entry.second,
            access: if kind.listens_at().is_some() { entry.access.or(general) } else { Access::default() },
            kind,
            forward: entry.forward.clone(),
            twin_of: entry.twin_of.clone(),
            origin: PortOrigin::default(),
        }
    }
}

/// Gives the passt ports of segments with a subnet the router's address, and a MAC address; guests are told of the router.
fn settle_ways_out(name: &str, names: &mut [NamesConfig], ports: &mut [PortConfig]) {
    for port in ports.iter_mut().filter(|port| port.kind.passt().is_some()) {
        let Some(names) = names.iter_mut().find(|names| names.segment == port.segment) else { continue };
        let settings = &mut port.settings;
        let Some(router) = way_out::router(names, &settings.limits.addresses) else { continue };
        if !settings.limits.addresses.iter().any(IpAddr::is_ipv4) {
            settings.limits.addresses.push(router.into());
        }
        settings.mac.get_or_insert_with(|| default_address(name, &port.name));
        names.router.get_or_insert(router);
    }
}

/// The sentence for a port of this name that is not there.
pub fn no_base(base: &str) -> String {
    format!(
        "twin-of is \"{}\", and there is no port of this name: name the port of the guest that the snapshot was taken of, or state its addresses, as \
         inside = {{ mac = \"02:00:00:00:00:01\", addresses = [\"10.0.0.5\"] }}",
        printable(base)
    )
}

/// The default path of the control socket of the network `name`: in the user's run-time folder. The name contains a hash of the
/// file's whole path, since many networks are called `net`.
pub fn default_control(name: &str, file: Option<&Path>) -> PathBuf {
    let mark = file.map(|file| format!("-{}", file_mark(file))).unwrap_or_default();
    runtime_folder().join(format!("{name}{mark}.control"))
}

/// The default path of the state file of the network `name`: in the user's folder for state, called as the control socket.
pub fn default_state(name: &str, file: Option<&Path>) -> Option<PathBuf> {
    let mark = file.map(|file| format!("-{}", file_mark(file))).unwrap_or_default();
    folder::state().map(|folder| folder.join(format!("{name}{mark}.state")))
}

/// The folder of the network `name` of `file` alone, in the user's run-time folder: of files that its process in the sandbox cannot change.
pub fn own_folder(name: &str, file: Option<&Path>) -> PathBuf {
    default_control(name, file).with_extension("d")
}

/// A mark of the file: eight digits, a hash of its path, which distinguish networks of different files.
pub fn file_mark(file: &Path) -> String {
    let path = claim::place(file);
    let hash = short_hash(path.as_os_str().as_bytes().iter().copied());
    format!("{:08x}", (hash ^ hash >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::kinds::Tap;
    use super::*;

    #[test]
    fn everything_but_the_ports_is_optional() {
        let text =
            "[[port]]\nname = \"a\"\nvhost-user = \"/tmp/a.sock\"\n[[port]]\nname = \"b\"\ntap = \"tap0\"\nsegment = \"other\"\n";
        let config = Config::parse(text, "net").unwrap();
        assert_eq!((config.workers, config.cpus.len(), config.name.as_str()), (1, 0, "net"));
        assert_eq!(config.segments(), ["lan", "other"]);
        assert_eq!(config.port("b").unwrap().kind, Tap { name: "tap0".into(), netns: None }.into());
    }

    #[test]
    fn networks_of_two_files_have_two_control_sockets() {
        let at = |file: &str| default_control("net", Some(Path::new(file)));
        assert_ne!(at("/a/net.toml"), at("/b/net.toml"));
        assert_eq!(at("/a/net.toml"), at("/a/./x/../net.toml"));
        let name = at("/a/net.toml").file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("net-") && name.len() == "net-01234567.control".len(), "{name}");
        assert!(default_control("net", None).ends_with("memlane/net.control"));
        let stated = Config::parse("control = \"/run/here\"\n", "net").unwrap();
        assert_eq!(stated.control_socket(Some(Path::new("/a/net.toml"))), Path::new("/run/here"));
    }

    #[test]
    fn workers_poll_by_default_but_where_guests_are_xens() {
        let poll = |text: &str| Config::parse(text, "net").unwrap().settings.poll;
        assert_eq!(poll("[[port]]\nname = \"a\"\ntap = \"t\"\n"), Poll::Adaptive);
        assert_eq!(poll("[[port]]\nname = \"a\"\nxen = \"web\"\n"), Poll::Never);
        assert_eq!(poll("xen-vifs = true\n"), Poll::Never);
        assert_eq!(poll("xen-vifs = true\npoll = \"adaptive\"\n"), Poll::Adaptive);
    }

    #[test]
    fn the_example_of_the_readme_is_good() {
        let text = r#"
            workers = 1
            cpus = [0]
            poll = "adaptive"
            [[port]]
            name = "web"
            vhost-user = "/run/memlane/web.sock"
            segment = "lan"
            [[port]]
            name = "host"
            tap = "tap0"
        "#;
        assert_eq!(Config::parse(text, "net").unwrap().ports.len(), 2);
    }
}
