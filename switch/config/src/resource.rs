//! Resources that only one port can have: its name, its socket, its interface, its MAC address on a segment.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

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
    pub(super) fn interface(name: &'p str, netns: &'p Option<String>) -> Self {
        Self::Interface(name.into(), netns.as_deref().unwrap_or_default().into())
    }

    /// The same claim with its own copy of the names.
    pub(super) fn into_owned(self) -> Claim<'static> {
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
