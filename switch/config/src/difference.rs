//! The difference between two configurations: ports to add, to remove, to create again, to change in place; uplinks to add and to
//! remove; policy rules to replace.

use super::{Config, PortConfig, PortKind, UplinkConfig};
use crate::settings::Settings;
use memlane_model::policy::PolicyRule;

/// Keys of a port that can change while it runs.
pub const CHANGEABLE: [&str; 19] = [
    "weight",
    "transmit",
    "receive",
    "storm",
    "anti-spoof",
    "addresses",
    "inside",
    "twin-of",
    "allowed",
    "may-serve",
    "isolated",
    "reserved",
    "groups",
    "leases",
    "labels",
    "link",
    "mac",
    "mtu",
    "enabled",
];

/// Whether `key` of a port of this kind can change while it runs: an interface, passt and a loopback get their MAC address and
/// MTU at their start.
pub fn can_change(kind: &PortKind, key: &str) -> bool {
    CHANGEABLE.contains(&key) && !kind.about().fixed.contains(&key)
}

/// A port in both configurations, with a difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The port's present configuration.
    pub before: PortConfig,
    /// The port's new configuration.
    pub after: PortConfig,
    /// Keys with different values.
    pub keys: Vec<String>,
}

impl Changed {
    /// The difference between two configurations of a port, if there is one; its origin alone is none.
    pub fn between(before: &PortConfig, after: &PortConfig) -> Option<Self> {
        let keys = keys(before, after);
        (!keys.is_empty()).then(|| Self { before: before.clone(), after: after.clone(), keys })
    }

    /// Whether all of these keys can change while the port runs.
    pub fn in_place(&self) -> bool {
        self.fixed_keys().is_empty()
    }

    /// Changed keys that cannot change while the port runs.
    pub fn fixed_keys(&self) -> Vec<String> {
        self.keys.iter().filter(|key| !can_change(&self.before.kind, key)).cloned().collect()
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// Ports of the new configuration only.
    pub added: Vec<PortConfig>,
    /// Ports of the present configuration only.
    pub removed: Vec<PortConfig>,
    /// Ports that differ.
    pub changed: Vec<Changed>,
    /// Names of the ports of both that have another origin in the new configuration.
    pub adopted: Vec<String>,
    /// Names of the ports without a difference.
    pub untouched: Vec<String>,
    /// Uplinks of the new configuration only, or with a difference.
    pub uplinks_added: Vec<UplinkConfig>,
    /// Uplinks of the present configuration only, or with a difference.
    pub uplinks_removed: Vec<UplinkConfig>,
    /// The policy rules of the new configuration, if they differ.
    pub policy: Option<Vec<PolicyRule>>,
    /// A policy rule stands in another line of the file.
    pub has_moved_rules: bool,
    /// The segments with multicast snooping of the new configuration, if they differ.
    pub snooping: Option<Vec<String>>,
    /// Keys beside the ports with a difference, which a reload does not change.
    pub restart: Vec<&'static str>,
}

impl Difference {
    /// The difference from `before` to `after`.
    pub fn between(before: &Config, after: &Config) -> Self {
        let mut difference = Self { restart: settings(before, after), ..Self::default() };
        let known = before.by_name();
        for port in &after.ports {
            match known.get(port.name.as_str()) {
                None => difference.added.push(port.clone()),
                Some(&old) if old == port => difference.untouched.push(port.name.clone()),
                Some(&old) => difference.compare(old, port),
            }
        }
        let wanted = after.by_name();
        difference.removed = before.ports.iter().filter(|port| !wanted.contains_key(port.name.as_str())).cloned().collect();
        let only_in = |these: &Config, those: &Config| -> Vec<UplinkConfig> {
            these.uplinks.iter().filter(|uplink| !those.uplinks.contains(uplink)).cloned().collect()
        };
        (difference.uplinks_added, difference.uplinks_removed) = (only_in(after, before), only_in(before, after));
        difference.snooping = (before.snooping != after.snooping).then(|| after.snooping.clone());
        let mut rules = before.policy.iter().zip(&after.policy);
        difference.has_moved_rules = rules.any(|(old, new)| old.line != new.line);
        difference.policy = (before.policy != after.policy).then(|| after.policy.clone());
        difference
    }

    /// Adds the difference between a port's two configurations; its origin alone is none.
    fn compare(&mut self, before: &PortConfig, after: &PortConfig) {
        if before.origin != after.origin {
            self.adopted.push(after.name.clone());
        }
        match Changed::between(before, after) {
            None => self.untouched.push(after.name.clone()),
            Some(changed) => self.changed.push(changed),
        }
    }

    /// Whether ports, uplinks and policy rules are equal.
    pub fn is_empty(&self) -> bool {
        let ports = self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty();
        ports
            && self.uplinks_added.is_empty()
            && self.uplinks_removed.is_empty()
            && self.policy.is_none()
            && self.snooping.is_none()
    }
}

/// Keys that a takeover does not change: by them the next process finds the network for the takeover, and commands find it.
const OF_RESTART: [&str; 2] = ["name", "control"];

/// Why a reload does not change these `keys`, and the command that does, a takeover or a restart; `file` is the network's.
pub fn refused_keys(keys: &[&str], file: &str) -> String {
    let (restart, takeover): (Vec<&str>, Vec<&str>) = keys.iter().partition(|key| OF_RESTART.contains(key));
    let change = |command: String, keys: Vec<&str>| (!keys.is_empty()).then(|| format!("{command} changes {}", keys.join(", ")));
    let commands = [
        change(format!("`memlane up {file} --takeover`, which no guest notices,"), takeover),
        change(format!("`memlane down {file}`, then `memlane up {file}`"), restart),
    ];
    let commands: Vec<String> = commands.into_iter().flatten().collect();
    format!(
        "{} cannot change while this process runs the network: {}, with the options of its start; or apply only the changes of ports \
         (--ports-only)",
        keys.join(", "),
        commands.join("; ")
    )
}

/// Keys with different values, in alphabetical order.
pub fn keys(before: &PortConfig, after: &PortConfig) -> Vec<String> {
    let (before, after) = (before.stated(), after.stated());
    let mut keys: Vec<String> =
        before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)).cloned().collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Keys beside the ports with different values.
fn settings(before: &Config, after: &Config) -> Vec<&'static str> {
    let (old, new): (&Settings, &Settings) = (&before.settings, &after.settings);
    let differing = [
        ("name", before.name != after.name),
        ("workers", before.workers != after.workers),
        ("cpus", before.cpus != after.cpus),
        ("control", before.control != after.control),
        ("metrics", before.metrics != after.metrics),
        ("metrics-labels", before.metrics_labels != after.metrics_labels),
        ("web", before.web != after.web),
        ("sandbox", before.later != after.later),
        // A default that depends on the ports keeps its value from the start.
        ("poll", old.poll != new.poll && before.poll != after.poll),
        ("in-order", old.in_order != new.in_order),
        ("stall-timeout-ms", old.stall_timeout != new.stall_timeout),
        ("waiting-frames", old.wait_queue != new.wait_queue),
        ("share", old.share != new.share),
        ("age", old.age != new.age),
        ("address-moves", old.moves != new.moves),
        ("memory-mib", old.memory != new.memory),
        ("guest-memory-gib", old.guest_memory != new.guest_memory),
        ("subnet", before.names != after.names),
        ("xen-vifs", before.xen_vifs != after.xen_vifs),
        ("port-memory-gib", old.port_memory != new.port_memory),
        ("neighbour-suppression", before.suppression != after.suppression),
    ];
    differing.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, "net").unwrap()
    }

    #[test]
    fn each_port_is_added_removed_changed_or_untouched() {
        let before = config(
            "workers = 1\n[[port]]\nname = \"a\"\nnull = true\n[[port]]\nname = \"b\"\nnull = true\n[[port]]\nname = \"c\"\nnull = true\n\
             [[port]]\nname = \"d\"\nnull = true\n",
        );
        let after = config(
            "workers = 2\nage = 9\n[[port]]\nname = \"a\"\nnull = true\n[[port]]\nname = \"b\"\nnull = true\nweight = 7\nmtu = 1400\n\
             [[port]]\nname = \"c\"\nloopback = true\nweight = 7\n[[port]]\nname = \"e\"\nnull = true\n",
        );
        let found = Difference::between(&before, &after);
        assert_eq!(found.untouched, ["a"]);
        assert_eq!(found.added.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["e"]);
        assert_eq!(found.removed.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["d"]);
        assert_eq!(found.changed[0].keys, ["mtu", "weight"]);
        assert_eq!(found.changed[1].keys, ["loopback", "null", "weight"]);
        assert!(found.changed[0].in_place() && !found.changed[1].in_place());
        assert_eq!(found.restart, ["workers", "age"]);
        assert!(Difference::between(&after, &after).is_empty());
    }

    #[test]
    fn the_command_that_changes_each_key_is_told() {
        let told = refused_keys(&["workers", "age"], "net.toml");
        let wanted = "workers, age cannot change while this process runs the network: `memlane up net.toml --takeover`, which no guest notices, \
                      changes workers, age, with the options of its start; or apply only the changes of ports (--ports-only)";
        assert_eq!(told, wanted);
        let told = refused_keys(&["name", "poll"], "net.toml");
        assert!(told.contains("--takeover`, which no guest notices, changes poll; `memlane down net.toml`, then"), "{told}");
        let told = refused_keys(&["control"], "net.toml");
        assert!(!told.contains("takeover") && told.contains("`memlane up net.toml` changes control"), "{told}");
    }

    #[test]
    fn the_first_xen_port_needs_no_restart_for_how_workers_poll() {
        let with = |poll: &str, ports: &str| config(&format!("{poll}\n{ports}"));
        let xen = "[[port]]\nname = \"a\"\nxen = \"web\"\n";
        let found = Difference::between(&with("", ""), &with("", xen));
        assert_eq!((found.restart.len(), found.added.len()), (0, 1), "{:?}", found.restart);
        assert_eq!(Difference::between(&with("", xen), &with("poll = \"adaptive\"", xen)).restart, ["poll"]);
        assert!(Difference::between(&with("", ""), &with("poll = \"adaptive\"", "")).restart.is_empty());
    }

    #[test]
    fn what_a_port_has_from_its_start_makes_it_anew() {
        let anew = |kind: &str, key: &str| {
            let port = |lines: &str| config(&format!("[[port]]\nname = \"a\"\n{kind}\n{lines}\n"));
            !Difference::between(&port(""), &port(key)).changed[0].in_place()
        };
        let (mac, mtu) = ("mac = \"02:00:00:00:00:01\"", "mtu = 1400");
        assert!(anew("tap = \"t\"", mac) && anew("tap = \"t\"", mtu) && anew("passt = true", mtu) && anew("loopback = true", mac));
        assert!(!anew("vhost-user = \"/a\"", mac) && !anew("vhost-user = \"/a\"", mtu) && !anew("tap = \"t\"", "weight = 2"));
    }
}
