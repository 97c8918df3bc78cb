//! Which port claims which [resource](super::resource).

use std::collections::HashMap;
use std::path::Path;

pub use super::resource::{Claim, Places, place};
use super::{PortConfig, PortEntry};

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
        let of_kind = self.kind.claim(places).map(|claim| (self.kind.name(), claim));
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
    use crate::Config;

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
