//! Notes about a file without mistakes: valid keys that are hardly meant so, as rules of a policy that never match.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use crate::quantity::counted;
use memlane_backends::vhost_user::access::Access;
use memlane_model::policy::{Destination, Names, PolicyRule};

use super::metrics::MetricsListener;
use super::{Config, PortConfig, UplinkConfig};
use crate::folder;

/// MTU of Ethernet.
const ETHERNET_MTU: u16 = 1500;
/// Most rules and ports that are looked at: each pair of rules is compared.
const MOST_COMPARED: usize = 1024;

impl Config {
    /// The notes, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let shut_out = self.ports.iter().filter_map(|port| Some(format!("port {}: {}", port.name, port.shut_out()?)));
        shut_out
            .chain(self.mtus())
            .chain(self.unserved_vlans())
            .chain(self.unknown_names())
            .chain(self.unasked_names())
            .chain(self.hidden_rules())
            .collect()
    }

    /// Resources that the file names and this host does not have, in sentences: folders of sockets, users and groups.
    pub fn lacks(&self) -> Vec<String> {
        let socket = |port: &PortConfig| Some((format!("port {}", port.name), port.kind.listens_at()?.into(), port.access.clone()));
        let of_metrics = match &self.metrics {
            Some(MetricsListener::Unix(path, access)) => Some(("metrics".to_owned(), path.clone(), access.clone())),
            Some(MetricsListener::Tcp(_)) | None => None,
        };
        let of_control = self.control.iter().map(|path| ("control".to_owned(), path.clone(), Access::default()));
        let sockets = self.ports.iter().filter_map(socket).chain(of_metrics).chain(of_control);
        let lacks = |(place, path, access): (String, PathBuf, Access)| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
            let folder = folder.filter(|folder| !folder::is_same(folder, &folder::runtime()));
            let missing = folder.map(|folder| {
                let folder = folder.display();
                format!("{place}: there is no folder {folder} on this host. Make it, or correct the path: memlane makes only its run-time folder")
            });
            let unknown = access.unknown().map(|cause| format!("{place}: access: {cause}"));
            missing.into_iter().chain(unknown)
        };
        sockets.flat_map(lacks).collect()
    }

    /// DNS names in rules that memlane asks no server for, so that they stand for no address.
    fn unasked_names(&self) -> Vec<String> {
        let asks = self.names.iter().any(|names| !names.resolvers.is_empty());
        let named = self.policy.iter().find(|rule| !asks && rule.has_names());
        let note = |rule: &PolicyRule| {
            format!(
                "{}: destinations has DNS names, and memlane asks no DNS server, so they stand for no address: add dns = [\"host\"] to a [[segment]]",
                place(rule)
            )
        };
        named.map(note).into_iter().collect()
    }

    /// Segments with ports of different MTUs, or with an uplink that is too small for IPv6 or for its ports.
    fn mtus(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for segment in self.segments() {
            let uplink = self.uplinks.iter().find(|uplink| uplink.segment() == segment).map(UplinkConfig::mtu);
            let has_guest = |port: &&PortConfig| port.segment == segment && port.kind.about().has_guest;
            // A guest that is offered no MTU uses Ethernet's.
            let mtu = |port: &PortConfig| port.settings.mtu.or(uplink.flatten()).unwrap_or(ETHERNET_MTU);
            let mut known: Vec<(u16, &str)> = Vec::new();
            for port in self.ports.iter().filter(has_guest) {
                if known.iter().all(|(other, _)| *other != mtu(port)) {
                    known.push((mtu(port), &port.name));
                }
            }
            if known.len() > 1 && uplink != Some(None) {
                let told: Vec<String> = known.iter().take(4).map(|(mtu, name)| format!("{name} {mtu}")).collect();
                notes.push(format!(
                    "segment {segment}: its ports have different MTUs ({}), so packets longer than the receiver's are lost: give all of them the same mtu",
                    told.join(", ")
                ));
            }
            if let Some(Some(mtu)) = uplink.filter(|mtu| mtu.is_some_and(|mtu| mtu < 1280)) {
                notes.push(format!("segment {segment}: an mtu of {mtu} carries no IPv6, which needs 1280 bytes (RFC 8200)"));
            }
            let largest = known.iter().max_by_key(|(mtu, _)| *mtu);
            if let (Some((mtu, name)), Some(Some(most))) = (largest, uplink)
                && *mtu > most
            {
                notes.push(format!(
                    "segment {segment}: its uplink carries {}, and the mtu of {name} is {mtu}: longer packets to other hosts are \
                     dropped, and their senders told by ICMP; guests must not filter it out",
                    counted(most, "byte")
                ));
            }
        }
        notes
    }

    /// Ports with VLANs on a segment with a responder, which serves untagged frames.
    fn unserved_vlans(&self) -> Vec<String> {
        let is_served = |port: &&PortConfig| self.names.iter().any(|names| names.segment == port.segment);
        let has_vlan = |port: &&PortConfig| port.settings.limits.vlan.is_some() || !port.settings.limits.trunk.is_empty();
        let note = |port: &PortConfig| {
            format!(
                "port {}: DHCP and DNS of segment {} serve no VLANs, so its guest gets no lease: remove vlan and trunk, or run a DHCP server in the VLAN, \
                 at a port with may-serve = [\"dhcp\"]",
                port.name, port.segment
            )
        };
        self.ports.iter().filter(is_served).filter(has_vlan).map(note).collect()
    }

    /// Names in rules that are of no port and no group.
    fn unknown_names(&self) -> Vec<String> {
        let ports = self.ports.iter().map(|port| &port.name);
        let groups = self.ports.iter().flat_map(|port| &port.settings.limits.groups);
        let known: HashSet<&String> = ports.chain(groups).collect();
        let unknown = |rule: &PolicyRule| {
            let names = rule.from.0.iter().chain(&rule.to.0).chain(&rule.members.0).filter(|name| !known.contains(name)).cloned();
            names
                .map(|name| format!("{}: there is no port or group '{name}', so this rule does not match yet", place(rule)))
                .collect::<Vec<_>>()
        };
        self.policy.iter().flat_map(unknown).collect()
    }

    /// Rules that never match, because an earlier one matches all that they do.
    fn hidden_rules(&self) -> Vec<String> {
        let groups: HashMap<&str, &[String]> =
            self.ports.iter().map(|port| (&port.name[..], &port.settings.limits.groups[..])).collect();
        let rules: Vec<_> = self.policy.iter().filter(|rule| rule.default.is_none()).take(MOST_COMPARED).collect();
        let hidden = rules.iter().enumerate().filter_map(|(index, rule)| {
            let first = rules[..index].iter().find(|earlier| !earlier.audits() && covers(earlier, rule, &groups))?;
            let why = if first.allows() == rule.allows() { "says the same already" } else { "decides the opposite for all of it" };
            Some(format!("{}: this rule never matches, because that in {} {why}", place(rule), place(first)))
        });
        hidden.collect()
    }
}

fn place(rule: &PolicyRule) -> String {
    format!("policy line {}", rule.line)
}

/// Whether `rule` matches all that `other` does; `groups` are those of each port.
fn covers(rule: &PolicyRule, other: &PolicyRule, groups: &HashMap<&str, &[String]>) -> bool {
    let names = |ours: &Names, theirs: &Names| {
        let has = |name: &String| ours.has(name, groups.get(name.as_str()).copied().unwrap_or_default());
        ours.is_all() || !theirs.is_all() && theirs.0.iter().all(has)
    };
    let is_within = |range: &memlane_model::policy::PortRange| {
        rule.ports.iter().any(|ours| ours.contains(range.first) && ours.contains(range.last))
    };
    let ports = rule.ports.is_empty() || !other.ports.is_empty() && other.ports.iter().all(is_within);
    let protocol = rule.protocol.is_none() || rule.protocol == other.protocol;
    protocol
        && ports
        && covers_destinations(rule, other)
        && (!rule.established || other.established)
        && names(&rule.from, &other.from)
        && names(&rule.to, &other.to)
}

/// Whether the `destinations` of `rule` contain those of `other`; long lists are not compared.
fn covers_destinations(rule: &PolicyRule, other: &PolicyRule) -> bool {
    let (ours, theirs) = (&rule.destinations, &other.destinations);
    let is_short = ours.len() * theirs.len() <= MOST_COMPARED;
    let is_covered = |wanted: &Destination| ours.iter().any(|own| own.covers(wanted));
    ours.is_empty() || is_short && !theirs.is_empty() && theirs.iter().all(is_covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: &str = "[[port]]\nname = \"web\"\nnull = true\ngroups = [\"front\"]\n[[port]]\nname = \"db\"\nnull = true\n";

    fn notes(rules: &[&str]) -> Vec<String> {
        let rules: String = rules.iter().map(|rule| format!("[[policy]]\n{}\n", rule.replace(", ", "\n"))).collect();
        Config::parse(&format!("{PORTS}{rules}"), "net").unwrap().notes()
    }

    #[test]
    fn rules_that_never_match_are_noted() {
        let (allow, deny) = ("action = \"allow\"", "action = \"deny\"");
        let tcp = "protocol = \"tcp\"";
        let hidden = |first: &str, second: &str| !notes(&[first, second]).is_empty();
        assert!(hidden(deny, allow) && hidden(deny, deny));
        assert!(hidden(&format!("{tcp}, {deny}"), &format!("{tcp}, ports = [22], {allow}")));
        assert!(hidden(&format!("{tcp}, ports = [\"1-99\"], {deny}"), &format!("{tcp}, ports = [22,\"80-99\"], {allow}")));
        assert!(hidden(&format!("from = \"front\", {deny}"), &format!("from = \"web\", {allow}")));
        assert!(hidden(&format!("{tcp}, {allow}"), &format!("{tcp}, established = true, {deny}")));
        assert!(!hidden(&format!("{tcp}, established = true, {allow}"), &format!("{tcp}, {deny}")));
        assert!(!hidden(&format!("{tcp}, ports = [22], {allow}"), &format!("{tcp}, {deny}")));
        assert!(!hidden(&format!("{tcp}, {allow}"), deny));
        let to = |prefix: &str, action: &str| format!("destinations = [\"{prefix}\"], {action}");
        assert!(hidden(&to("10.0.0.0/8", allow), &to("10.1.0.0/16", deny)) && hidden(deny, &to("10.0.0.0/8", allow)));
        assert!(
            !hidden(&to("10.1.0.0/16", allow), &to("10.0.0.0/8", deny)) && !hidden(&to("::/0", deny), &to("10.0.0.0/8", allow))
        );
        assert!(!hidden(&to("0.0.0.0/0", deny), allow));
        assert!(!hidden(&format!("from = \"web\", {deny}"), &format!("from = \"front\", {allow}")));
        assert!(!hidden(&format!("from = \"web\", {deny}"), allow));
        let told = notes(&[deny, allow]);
        assert_eq!(
            told,
            ["policy line 10: this rule never matches, because that in policy line 8 decides the opposite for all of it"]
        );
    }

    #[test]
    fn dns_names_without_a_server_to_ask_are_noted() {
        let named = "destinations = [\"10.0.0.0/8\",\"*.example.org\"], action = \"allow\"";
        let told = notes(&[named]);
        assert!(told.len() == 1 && told[0].starts_with("policy line 8: destinations has DNS names"), "{told:?}");
        assert!(notes(&["destinations = [\"10.0.0.0/8\"], action = \"allow\""]).is_empty());
        let segment = "[[segment]]\nname = \"lan\"\nsubnet = \"10.0.0.0/24\"\ndns = [\"host\"]\n";
        let rule = format!("[[policy]]\n{}\n", named.replace(", ", "\n"));
        assert!(Config::parse(&format!("{PORTS}{segment}{rule}"), "net").unwrap().notes().is_empty());
    }

    #[test]
    fn different_mtus_in_a_segment_are_noted() {
        let ports = |ports: &[&str]| {
            let port = |(index, lines): (usize, &&str)| format!("[[port]]\nname = \"p{index}\"\nstream = \"s{index}\"\n{lines}\n");
            ports.iter().enumerate().map(port).collect::<String>()
        };
        let notes = |text: &str| Config::parse(text, "net").unwrap().notes();
        assert!(notes(&ports(&["mtu = 9000", "mtu = 9000"])).is_empty());
        assert!(notes(&ports(&["mtu = 9000", "segment = \"other\""])).is_empty());
        assert!(notes(&ports(&["mtu = 1500", ""])).is_empty(), "as Ethernet has");
        let told = notes(&ports(&["mtu = 9000", "", "mtu = 9000"]));
        assert!(told.len() == 1 && told[0].contains("(p0 9000, p1 1500)"), "{told:?}");
        let uplink = "[[segment]]\nname = \"lan\"\nuplink = true\nvni = 1\nlocal = \"10.0.0.1\"\nmtu = 1000\n";
        let told = notes(&[&ports(&["", "mtu = 1000"]), uplink].concat());
        assert!(told.len() == 1 && told[0].contains("RFC 8200"), "{told:?}");
        let told = notes(&[&ports(&["mtu = 9000", "mtu = 9000"]), &uplink.replace("1000", "1450")[..]].concat());
        assert!(told.len() == 1 && told[0].contains("carries 1450 bytes, and the mtu of p"), "{told:?}");
    }

    #[test]
    fn ports_with_vlans_on_a_segment_with_a_subnet_are_noted() {
        let segment = "[[segment]]\nname = \"office\"\nsubnet = \"10.0.0.0/24\"\n";
        let lines = ["office\"\nvlan = 10", "office\"\ntrunk = [10, \"20-29\"]", "office\"", "other\"\nvlan = 10"];
        let port = |(n, lines): (usize, &str)| format!("[[port]]\nname = \"p{n}\"\nnull = true\nsegment = \"{lines}\n");
        let ports: String = lines.into_iter().enumerate().map(port).collect();
        let told = |text: &str| Config::parse(text, "net").unwrap().notes();
        assert_eq!(told(&ports), Vec::<String>::new(), "without a subnet");
        let notes = told(&[segment, &ports].concat());
        let starts = ["port p0: DHCP and DNS of segment office serve no VLANs", "port p1: "];
        assert!(notes.len() == 2 && notes.iter().zip(starts).all(|(note, start)| note.starts_with(start)), "{notes:?}");
    }

    #[test]
    fn names_without_a_port_or_group_are_noted() {
        let told = notes(&["from = [\"web\",\"front\"], to = \"dp\", action = \"deny\""]);
        assert_eq!(told, ["policy line 8: there is no port or group 'dp', so this rule does not match yet"]);
    }
}
