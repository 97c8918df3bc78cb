//! What only one port can have: its name, its socket, its interface, its address on a segment.

use std::fmt;
use std::path::Path;

use super::{PortConfig, PortEntry, PortKind};
use crate::frame::MacAddress;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim<'p> {
    /// The port's name.
    Name(&'p str),
    /// A Unix socket.
    Socket(&'p Path),
    /// A network interface, and the namespace that it is in.
    Tap(&'p str, &'p str),
    /// A Xen domain's network interface.
    Vif(&'p str, u16),
    /// An address, and the segment on which it is the port's.
    Address(MacAddress, &'p str),
}

impl Claim<'_> {
    /// The sentence for another port that claims what `first` has.
    pub fn taken(&self, first: &str) -> String {
        format!("{self} is used twice, first by port '{first}'")
    }
}

impl fmt::Display for Claim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "port name {name}"),
            Self::Socket(path) => write!(f, "socket {}", path.display()),
            Self::Tap(name, netns) => write!(f, "tap {name} in namespace '{netns}'"),
            Self::Vif(domain, vif) => write!(f, "interface {vif} of domain {domain}"),
            Self::Address(mac, segment) => write!(f, "address {mac} on segment {segment}"),
        }
    }
}

impl PortEntry {
    /// What the port claims, as far as it can be read, each with the key that says so.
    pub(super) fn claims(&self) -> Vec<(&'static str, Claim<'_>)> {
        let name = self.name.as_deref().filter(|name| !name.is_empty()).map(|name| ("name", Claim::Name(name)));
        let tap = self.tap.as_deref().map(|tap| ("tap", Claim::Tap(tap, self.netns.as_deref().unwrap_or_default())));
        let vif = self.xen.as_deref().map(|domain| ("xen", Claim::Vif(domain, self.vif)));
        let mac = self.mac.as_deref().and_then(|mac| mac.parse().ok()).map(|mac| ("mac", Claim::Address(mac, &self.segment)));
        let sockets = [("vhost-user", &self.vhost_user), ("stream", &self.stream)];
        let sockets = sockets.into_iter().filter_map(|(key, path)| Some((key, Claim::Socket(path.as_deref()?))));
        [name, tap, vif, mac].into_iter().flatten().chain(sockets).collect()
    }
}

impl PortConfig {
    /// What the port claims, each with the key that says so.
    pub fn claims(&self) -> Vec<(&'static str, Claim<'_>)> {
        let of_kind = match &self.kind {
            PortKind::VhostUser { path, .. } => Some(("vhost-user", Claim::Socket(path))),
            PortKind::Stream { path, .. } => Some(("stream", Claim::Socket(path))),
            PortKind::Tap { name, netns } => Some(("tap", Claim::Tap(name, netns.as_deref().unwrap_or_default()))),
            PortKind::Xen { domain, vif } => Some(("xen", Claim::Vif(domain, *vif))),
            PortKind::Passt(_) | PortKind::Null | PortKind::Loopback => None,
        };
        let mac = self.mac.map(|mac| ("mac", Claim::Address(mac, &self.segment)));
        [Some(("name", Claim::Name(&self.name))), of_kind, mac].into_iter().flatten().collect()
    }

    /// What of this port one of `others` has: the key of it here, and the sentence that says so.
    pub fn clashes<'p>(&self, others: impl Iterator<Item = &'p Self>) -> Vec<(&'static str, String)> {
        let own = self.claims();
        let found = others.flat_map(|other| {
            let theirs = other.claims();
            let mine = own.iter().filter(move |(_, claim)| theirs.iter().any(|(_, taken)| taken == claim));
            mine.map(|(key, claim)| (*key, claim.taken(&other.name)))
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

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
