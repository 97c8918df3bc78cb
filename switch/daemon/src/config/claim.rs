//! Resources that only one port can have: its name, its socket, its interface, its MAC address on a segment.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use super::{PortConfig, PortEntry, PortKind};
use crate::frame::MacAddress;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Claim<'p> {
    /// The port's name.
    Name(&'p str),
    /// A Unix socket.
    Socket(SocketPath<'p>),
    /// A network interface, and the namespace that it is in.
    Interface(&'p str, &'p str),
    /// A Xen domain's network interface.
    Vif(&'p str, u16),
    /// A MAC address, and the segment on which it belongs to the port.
    Address(MacAddress, &'p str),
    /// An IP address, and the segment on which it belongs to the port.
    Ip(IpAddr, &'p str),
}

/// The path of a socket as configured, and its [`place`], by which sockets are compared.
#[derive(Clone, Debug)]
pub struct SocketPath<'p> {
    stated: &'p Path,
    place: PathBuf,
}

impl PartialEq for SocketPath<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for SocketPath<'_> {}

impl Hash for SocketPath<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place.hash(state);
    }
}

/// Cache of sockets' real folders, since many sockets lie in one folder.
#[derive(Debug, Default)]
pub struct Places(HashMap<PathBuf, PathBuf>);

impl Places {
    /// The claim to the socket `stated`, relative to `folder`.
    pub fn socket<'p>(&mut self, folder: &Path, stated: &'p Path) -> Claim<'p> {
        let whole = folder.join(stated);
        let place = match (whole.parent(), whole.file_name()) {
            (Some(parent), Some(name)) => self.0.entry(parent.into()).or_insert_with(|| real(parent)).join(name),
            _ => real(&whole),
        };
        Claim::Socket(SocketPath { stated, place })
    }
}

/// The canonical path of the file `path`: its folder without `.`, `..` and symbolic links, and its name. A link as the last
/// component is not followed, because relative paths in a network's file are relative to the link.
pub fn place(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => real(path),
    }
}

/// The absolute path of the folder `path`, without `.`, `..` and symbolic links. A component that does not exist counts as a
/// folder.
fn real(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut found = PathBuf::new();
    for component in whole.components() {
        match component {
            Component::CurDir => {}
            // `found` contains no link, so its parent in the path is its parent folder.
            Component::ParentDir => drop(found.pop()),
            other => {
                found.push(other);
                if found.is_symlink() {
                    found = found.canonicalize().unwrap_or(found);
                }
            }
        }
    }
    found
}

impl Claim<'_> {
    /// The sentence for a resource that `first`, a port or the key `control`, has claimed already.
    pub fn taken(&self, first: &str) -> String {
        format!("{self} is used twice, first by {first}: use another one")
    }
}

impl fmt::Display for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "port name {name}"),
            Self::Socket(path) => write!(f, "socket {}", path.stated.display()),
            Self::Interface(name, netns) => write!(f, "interface {name} in namespace '{netns}'"),
            Self::Vif(domain, vif) => write!(f, "interface {vif} of domain {domain}"),
            Self::Address(mac, segment) => write!(f, "address {mac} on segment {segment}"),
            Self::Ip(ip, segment) => write!(f, "address {ip} on segment {segment}"),
        }
    }
}

impl PortEntry {
    /// The port's claims, as far as they can be parsed, each with its key; relative paths lie in `folder`.
    pub(super) fn claims(&self, folder: &Path, places: &mut Places) -> Vec<(&'static str, Claim<'_>)> {
        let name = self.name.as_deref().filter(|name| !name.is_empty()).map(|name| ("name", Claim::Name(name)));
        let interfaces = [("tap", &self.tap), ("af-packet", &self.af_packet)];
        let netns = self.netns.as_deref().unwrap_or_default();
        let interfaces = interfaces.into_iter().filter_map(|(key, name)| Some((key, Claim::Interface(name.as_deref()?, netns))));
        let vif = self.xen.as_deref().map(|domain| ("xen", Claim::Vif(domain, self.vif)));
        let mac = self.mac.as_deref().and_then(|mac| mac.parse().ok()).map(|mac| ("mac", Claim::Address(mac, &self.segment)));
        let sockets = [("vhost-user", &self.vhost_user), ("stream", &self.stream)];
        let sockets = sockets.into_iter().filter_map(|(key, path)| Some((key, places.socket(folder, path.as_deref()?))));
        let ips = self.addresses.iter().map(|&ip| ("addresses", Claim::Ip(ip, &self.segment)));
        [name, vif, mac].into_iter().flatten().chain(interfaces).chain(ips).chain(sockets).collect()
    }
}

impl PortConfig {
    /// The port's claims, each with its key.
    pub fn claims(&self, places: &mut Places) -> Vec<(&'static str, Claim<'_>)> {
        let mut socket = |path| places.socket(Path::new(""), path);
        let of_kind = match &self.kind {
            PortKind::VhostUser { path, .. } => Some(("vhost-user", socket(path))),
            PortKind::Stream { path, .. } => Some(("stream", socket(path))),
            PortKind::Tap { name, netns } => Some(("tap", Claim::Interface(name, netns.as_deref().unwrap_or_default()))),
            PortKind::AfPacket { name, netns } => Some(("af-packet", Claim::Interface(name, netns.as_deref().unwrap_or_default()))),
            PortKind::Xen { domain, vif } => Some(("xen", Claim::Vif(domain, *vif))),
            PortKind::Passt(_) | PortKind::Null | PortKind::Loopback => None,
        };
        let mac = self.settings.mac.map(|mac| ("mac", Claim::Address(mac, &self.segment)));
        let ips = self.settings.limits.addresses.iter().map(|&ip| ("addresses", Claim::Ip(ip, &self.segment)));
        [Some(("name", Claim::Name(&self.name))), of_kind, mac].into_iter().flatten().chain(ips).collect()
    }

    /// Claims of this port that one of `others` has too: the key of it here, and the sentence for it.
    pub fn clashes<'p>(&self, others: impl Iterator<Item = &'p Self>) -> Vec<(&'static str, String)> {
        let mut places = Places::default();
        let own = self.claims(&mut places);
        let found = others.flat_map(|other| {
            let theirs = other.claims(&mut places);
            let mine = own.iter().filter(move |(_, claim)| theirs.iter().any(|(_, taken)| taken == claim));
            mine.map(|(key, claim)| (*key, claim.taken(&format!("port '{}'", other.name))))
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_path_has_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(folder.join("deep/er")).unwrap();
        std::os::unix::fs::symlink("deep/er", folder.join("link")).unwrap();
        for (stated, leads_to) in [
            ("a", "a"),
            ("./a", "a"),
            (".//./a", "a"),
            ("none/../a", "a"),
            ("deep/../a", "a"),
            ("link/a", "deep/er/a"),
            ("link/../a", "deep/a"),
            ("none/b/a", "none/b/a"),
            ("a/../link", "link"),
        ] {
            assert_eq!(place(&folder.join(stated)), folder.join(leads_to), "{stated}");
        }
    }

    #[test]
    fn what_one_port_has_no_other_can() {
        let text = r#"
            [[port]]
            name = "a"
            vhost-user = "/run/a.sock"
            mac = "02:00:00:00:00:01"
            [[port]]
            name = "b"
            tap = "tap0"
            [[port]]
            name = "c"
            stream = "/run/c.sock"
            mac = "02:00:00:00:00:01"
            segment = "other"
        "#;
        let ports = Config::parse(text, "net").unwrap().ports;
        for port in &ports {
            assert!(port.clashes(ports.iter().filter(|other| other.name != port.name)).is_empty());
        }
        let wanted = r#"
            [[port]]
            name = "b"
            stream = "/run/a.sock"
            mac = "02:00:00:00:00:01"
        "#;
        let wanted = Config::parse(wanted, "net").unwrap().ports;
        let keys: Vec<_> = wanted[0].clashes(ports.iter()).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["stream", "mac", "name"]);
    }
}
