//! Twins: ports whose guests have other addresses inside (keys `inside`, `twin-of`).

use std::collections::HashSet;
use std::net::IpAddr;

use crate::policy::PortLimits;
use crate::quantity::counted;

/// Mistakes in the addresses inside of a port with these `limits`, each with its key.
pub fn mistakes(limits: &PortLimits) -> Vec<(&'static str, String)> {
    let Some(inside) = &limits.inside else { return Vec::new() };
    let mut mistakes = Vec::new();
    let mut note = |text: String| mistakes.push(("inside", text));
    if inside.mac.is_none() && inside.addresses.is_empty() {
        note("inside has no address: add the guest's own, as { mac = \"02:00:00:00:00:01\", addresses = [\"10.0.0.5\"] }".into());
    }
    if let Some(mac) = inside.mac.filter(|mac| !mac.is_unicast()) {
        note(format!("inside.mac is \"{mac}\"; it must be a unicast address, not a group address"));
    }
    let is_unicast = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback();
    for ip in inside.addresses.iter().filter(|ip| !is_unicast(ip)) {
        note(format!("inside.addresses contains \"{ip}\"; they must be unicast addresses of the guest"));
    }
    for (version, is_v4) in [("IPv4", true), ("IPv6", false)] {
        let of = |list: &[IpAddr]| list.iter().filter(|ip| ip.is_ipv4() == is_v4).copied().collect::<Vec<_>>();
        let (inner, outer) = (of(&inside.addresses), of(&limits.addresses));
        if inner.len() != outer.len() {
            note(format!(
                "the guest has {} inside, and the port {} in addresses; each stands for the one in the same place, so both must have as many",
                counted(inner.len(), &format!("{version} address")),
                outer.len()
            ));
            continue;
        }
        let pairs = std::iter::zip(&inner, &outer).filter(|(one, other)| one != other);
        let mut known = HashSet::new();
        for ip in pairs.flat_map(|(one, other)| [one, other]) {
            if !known.insert(ip) {
                note(format!("{ip} stands for two addresses of inside and addresses: each must stand for one"));
            }
        }
    }
    mistakes
}

#[cfg(test)]
mod tests {
    use super::super::{Config, check};

    fn mistakes(text: &str) -> Vec<(usize, String)> {
        check::check(text).err().into_iter().flat_map(|found| found.list).map(|one| (one.line, one.text)).collect()
    }

    const BASE: &str =
        "[[port]]\nname = \"base\"\nvhost-user = \"b\"\nmac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.5\", \"fd00::5\"]\n";

    fn twin(name: &str, rest: &str) -> String {
        format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}\"\n{rest}\n")
    }

    #[test]
    fn a_twin_has_the_addresses_of_its_base_inside() {
        let text = format!("{BASE}{}", twin("a", "twin-of = \"base\"\naddresses = [\"10.0.0.6\", \"fd00::6\"]"));
        let config = Config::parse(&text, "net").unwrap();
        let inside = config.ports[1].settings.limits.inside.clone().unwrap();
        assert_eq!(inside.mac.unwrap().to_string(), "02:00:00:00:00:01");
        assert_eq!(inside.addresses, config.ports[0].settings.limits.addresses);
        assert!(config.ports[1].twin_of.is_none() && config.ports[1].settings_in("net").mac.is_some());
        let stated = config.ports[1].stated();
        assert_eq!(
            (&stated["inside"], stated.get("twin-of")),
            (&serde_json::json!({ "mac": "02:00:00:00:00:01", "addresses": ["10.0.0.5", "fd00::5"] }), None)
        );
        // Without a mac, the base has the address that memlane prints for it.
        let text = text.replace("mac = \"02:00:00:00:00:01\"\n", "");
        let inside = Config::parse(&text, "net").unwrap().ports[1].settings.limits.inside.clone().unwrap();
        assert_eq!(inside.mac, Some(crate::port::default_address("net", "base")));
    }

    #[test]
    fn mistakes_of_twins_are_told_with_their_lines() {
        let inside = "inside = { mac = \"02:00:00:00:00:01\", addresses = [\"10.0.0.5\"] }";
        assert!(mistakes(&twin("a", &format!("{inside}\naddresses = [\"10.0.0.6\"]"))).is_empty());
        for (rest, wanted, part) in [
            (format!("{inside}\naddresses = [\"10.0.0.6\", \"10.0.0.7\"]"), vec![4], "1 IPv4 address inside, and the port 2"),
            (inside.into(), vec![4], "1 IPv4 address inside, and the port 0"),
            (format!("{inside}\naddresses = [\"fd00::6\"]"), vec![4, 4], "0 IPv6 addresses inside, and the port 1"),
            ("inside = {}".into(), vec![4], "inside has no address"),
            ("inside = { mac = \"03:00:00:00:00:01\" }".into(), vec![4], "unicast"),
            ("inside = { addresses = [\"224.0.0.1\"] }\naddresses = [\"10.0.0.6\"]".into(), vec![4], "unicast"),
            (
                "inside = { addresses = [\"10.0.0.1\", \"10.0.0.2\"] }\naddresses = [\"10.0.0.2\", \"10.0.0.3\"]".into(),
                vec![4],
                "10.0.0.2 stands for two",
            ),
            ("inside = { mac = \"02:00\" }".into(), vec![4], ""),
            ("inside = { colour = 1 }".into(), vec![4], "colour"),
            ("twin-of = \"bass\"".into(), vec![4], "no port of this name"),
            ("twin-of = \"a\"\ninside = { mac = \"02:00:00:00:00:01\" }".into(), vec![4], "remove one"),
            ("twin-of = \"a\"".into(), vec![4], "itself"),
            ("twin-of = 7".into(), vec![4], ""),
        ] {
            let found = mistakes(&twin("a", &rest));
            assert_eq!(found.iter().map(|mistake| mistake.0).collect::<Vec<_>>(), wanted, "{rest}: {found:?}");
            assert!(found.iter().any(|(_, text)| text.contains(part)), "{rest}: {found:?}");
        }
        let without_mac = "[[port]]\nname = \"a\"\ntap = \"t\"\ninside = { mac = \"02:00:00:00:00:01\" }\n";
        assert_eq!(mistakes(without_mac).len(), 1);
        let counts = format!("{BASE}{}", twin("a", "twin-of = \"base\"\naddresses = [\"10.0.0.6\"]"));
        let found = mistakes(&counts);
        assert_eq!(found.iter().map(|mistake| mistake.0).collect::<Vec<_>>(), [9], "{found:?}");
    }
}
