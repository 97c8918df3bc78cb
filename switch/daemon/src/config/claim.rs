//! Resources that only one port can have: its name, its socket, its interface, its MAC address on a segment.

use std::borrow::Cow;
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
    Name(Cow<'p, str>),
    /// A Unix socket.
    Socket(SocketPath<'p>),
    /// A network interface, and the namespace that it is in.
    Interface(Cow<'p, str>, Cow<'p, str>),
    /// A Xen domain's network interface.
    Vif(Cow<'p, str>, u16),
    /// A MAC address, and the segment on which it belongs to the port.
    Address(MacAddress, Cow<'p, str>),
    /// An IP address, and the segment on which it belongs to the port.
    Ip(IpAddr, Cow<'p, str>),
}

/// The path of a socket as configured, and its [`place`], by which sockets are compared.
#[derive(Clone, Debug)]
pub struct SocketPath<'p> {
    stated: Cow<'p, Path>,
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
        Claim::Socket(SocketPath { stated: stated.into(), place })
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

impl<'p> Claim<'p> {
    fn interface(name: &'p str, netns: &'p Option<String>) -> Self {
        Self::Interface(name.into(), netns.as_deref().unwrap_or_default().into())
    }

    /// The same claim with its own copy of the names.
    fn into_owned(self) -> Claim<'static> {
        let owned = |name: Cow<'_, str>| Cow::Owned(name.into_owned());
        match self {
            Self::Name(name) => Claim::Name(owned(name)),
            Self::Socket(SocketPath { stated, place }) => {
                Claim::Socket(SocketPath { stated: Cow::Owned(stated.into_owned()), place })
            }
            Self::Interface(name, netns) => Claim::Interface(owned(name), owned(netns)),
            Self::Vif(domain, vif) => Claim::Vif(owned(domain), vif),
            Self::Address(mac, segment) => Claim::Address(mac, owned(segment)),
            Self::Ip(ip, segment) => Claim::Ip(ip, owned(segment)),
        }
    }

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
        let name = self.name.as_deref().filter(|name| !name.is_empty()).map(|name| ("name", Claim::Name(name.into())));
        let interfaces = [("tap", &self.tap), ("af-packet", &self.af_packet)];
        let netns = self.netns.as_deref().unwrap_or_default();
        let interfaces =
            interfaces.into_iter().filter_map(|(key, name)| Some((key, Claim::Interface(name.as_deref()?.into(), netns.into()))));
        let vif = self.xen.as_deref().map(|domain| ("xen", Claim::Vif(domain.into(), self.vif)));
        let mac = self
            .mac
            .as_deref()
            .and_then(|mac| mac.parse().ok())
            .map(|mac| ("mac", Claim::Address(mac, self.segment.as_str().into())));
        let sockets = [("vhost-user", &self.vhost_user), ("stream", &self.stream)];
        let sockets = sockets.into_iter().filter_map(|(key, path)| Some((key, places.socket(folder, path.as_deref()?))));
        let ips = self.addresses.iter().map(|&ip| ("addresses", Claim::Ip(ip, self.segment.as_str().into())));
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
            PortKind::Tap { name, netns } => Some(("tap", Claim::interface(name, netns))),
            PortKind::AfPacket { name, netns } => Some(("af-packet", Claim::interface(name, netns))),
            PortKind::Xen { domain, vif } => Some(("xen", Claim::Vif(domain.into(), *vif))),
            PortKind::Passt(_) | PortKind::Null | PortKind::Loopback => None,
        };
        let mac = self.settings.mac.map(|mac| ("mac", Claim::Address(mac, self.segment.as_str().into())));
        let ips = self.settings.limits.addresses.iter().map(|&ip| ("addresses", Claim::Ip(ip, self.segment.as_str().into())));
        [Some(("name", Claim::Name(self.name.as_str().into()))), of_kind, mac].into_iter().flatten().chain(ips).collect()
    }
}

/// Claims of the attached ports, found without a comparison with every port.
#[derive(Debug, Default)]
pub struct Claims {
    /// Name of the port that has each resource.
    owners: HashMap<Claim<'static>, String>,
    /// Resources of each port.
    of_ports: HashMap<String, Vec<Claim<'static>>>,
}

impl Claims {
    /// Enters the resources of `port` in place of those that it had.
    pub fn enter(&mut self, port: &PortConfig) {
        self.remove(&port.name);
        let own: Vec<Claim<'static>> =
            port.claims(&mut Places::default()).into_iter().map(|(_, claim)| claim.into_owned()).collect();
        self.owners.extend(own.iter().map(|claim| (claim.clone(), port.name.clone())));
        self.of_ports.insert(port.name.clone(), own);
    }

    /// Removes the resources of the port called `name`, but those that another port has entered since.
    pub fn remove(&mut self, name: &str) {
        for claim in self.of_ports.remove(name).into_iter().flatten() {
            if self.owners.get(&claim).is_some_and(|owner| owner == name) {
                self.owners.remove(&claim);
            }
        }
    }

    /// Claims of `port` that another port has, but for the one called `own`: the key of each, and the sentence for it.
    pub fn clashes(&self, port: &PortConfig, own: &str) -> Vec<(&'static str, String)> {
        let taken = |(key, claim): (&'static str, Claim<'_>)| {
            let owner = self.owners.get(&claim).filter(|owner| *owner != own)?;
            Some((key, claim.taken(&format!("port '{owner}'"))))
        };
        port.claims(&mut Places::default()).into_iter().filter_map(taken).collect()
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
        let mut claims = Claims::default();
        ports.iter().for_each(|port| claims.enter(port));
        for port in &ports {
            assert!(claims.clashes(port, &port.name).is_empty());
        }
        let wanted = r#"
            [[port]]
            name = "b"
            stream = "/run/a.sock"
            mac = "02:00:00:00:00:01"
        "#;
        let wanted = Config::parse(wanted, "net").unwrap().ports;
        let keys = |claims: &Claims| claims.clashes(&wanted[0], "").into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(keys(&claims), ["name", "stream", "mac"]);
        claims.remove("a");
        assert_eq!(keys(&claims), ["name"]);
    }

    #[test]
    fn ports_may_exchange_an_address_one_after_the_other() {
        let port = |name: &str, mac: &str| {
            let text = format!("[[port]]\nname = \"{name}\"\nnull = true\nmac = \"02:00:00:00:00:0{mac}\"\n");
            Config::parse(&text, "net").unwrap().ports.remove(0)
        };
        let mut claims = Claims::default();
        [port("a", "1"), port("b", "2"), port("a", "2"), port("b", "1")].iter().for_each(|port| claims.enter(port));
        let taken = |mac: &str| claims.clashes(&port("c", mac), "").pop().unwrap().1;
        assert!(taken("1").contains("port 'b'") && taken("2").contains("port 'a'"), "{claims:?}");
        claims.remove("a");
        assert!(claims.clashes(&port("c", "2"), "").is_empty() && !claims.clashes(&port("c", "1"), "").is_empty());
    }
}
