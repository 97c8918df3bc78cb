//! The packaged unit of a network, and the drop-in for capabilities, namespaces and system calls that the file needs beyond it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use memlane_backends::vhost_user::access::Access;

use super::claim::place;
use super::kinds::UnitLack;
use super::later::LaterKind;
use super::metrics::MetricsListener;
use super::resolver::Resolver;
use super::{Config, UplinkConfig};

const NETWORKS: &str = "/etc/memlane";
const SOCKETS: &str = "/run/memlane";
const GROUP: &str = "memlane";

/// The unit of a network, the sandbox of systemd around its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Name, as memlane@lan.service.
    pub name: String,
    /// Keys that need CAP_NET_ADMIN or CAP_NET_RAW (memlane-net@).
    devices: BTreeSet<&'static str>,
    keys: BTreeSet<&'static str>,
    lines: BTreeSet<String>,
    notes: Vec<String>,
    with: Option<String>,
}

/// Whether packaged units serve the file at `path`.
pub fn is_packaged(path: &Path) -> bool {
    place(path).parent() == Some(Path::new(NETWORKS))
}

/// The packaged unit of this process, by its control group.
pub fn of_this_process() -> Option<String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| of_group(line)).map(str::to_owned)
}

fn of_group(line: &str) -> Option<&str> {
    let is_ours = |name: &&str| name.ends_with(".service") && (name.starts_with("memlane@") || name.starts_with("memlane-net@"));
    line.rsplit('/').find(is_ours)
}

/// The remedy for a system call that the unit of this process forbids, if it runs in one.
pub fn remedy() -> Option<String> {
    let unit = of_this_process()?;
    let network = unit.split_once('@')?.1.strip_suffix(".service")?;
    let file = format!("{NETWORKS}/{network}.toml");
    Some(format!("The unit {unit} does not allow it: `memlane check --unit {file}` prints the drop-in that does"))
}

impl Unit {
    /// The unit of the network `config` with the file `network`.toml.
    pub fn of(config: &Config, network: &str) -> Self {
        let mut unit = Self::default();
        unit.add_devices(config);
        let kind = if unit.devices.is_empty() { "memlane" } else { "memlane-net" };
        unit.name = format!("{kind}@{network}.service");
        if config.uplinks.iter().any(|uplink| matches!(uplink, UplinkConfig::Nic(_))) {
            unit.with = Some(format!("memlane-nic@{network}.socket"));
        }
        unit.add_addresses(config);
        unit.add_sockets(config);
        unit.add_access(config);
        unit
    }

    fn is_confined(&self) -> bool {
        self.devices.is_empty()
    }

    fn add_devices(&mut self, config: &Config) {
        for port in &config.ports {
            match port.kind.about().unit {
                UnitLack::Devices => drop(self.devices.insert(port.kind.name())),
                UnitLack::Other(text) => self.notes.push(format!("port {}: {text}", port.name)),
                UnitLack::Nothing => {}
            }
        }
        if config.uplinks.iter().any(|uplink| !matches!(uplink, UplinkConfig::Nic(_))) {
            self.devices.insert("uplink");
        }
        if config.later.kinds.iter().any(|kind| matches!(kind, LaterKind::Tap | LaterKind::AfPacket)) {
            self.devices.insert("sandbox");
        }
    }

    /// TCP addresses, and resolvers that are asked, need the host's network namespace.
    fn add_addresses(&mut self, config: &Config) {
        let metrics = match &config.metrics {
            Some(MetricsListener::Tcp(address)) => Some(("metrics", *address)),
            Some(MetricsListener::Unix(..)) | None => None,
        };
        let all: Vec<(&str, SocketAddr)> = metrics.into_iter().chain(config.web.as_ref().map(|web| ("web", web.address))).collect();
        let resolvers: Vec<Resolver> = config.names.iter().flat_map(|names| names.resolvers.iter().copied()).collect();
        if all.is_empty() && resolvers.is_empty() || !self.is_confined() {
            return;
        }
        self.keys.extend(all.iter().map(|(key, _)| *key).chain(resolvers.first().map(|_| "dns")));
        // The unit's own network namespace has neither the addresses nor a route.
        let is_asked_here = |one: &Resolver| matches!(one, Resolver::At(address) if address.ip().is_loopback());
        let is_local = all.iter().all(|(_, address)| address.ip().is_loopback()) && resolvers.iter().all(is_asked_here);
        let addresses = if is_local { "IPAddressAllow=localhost" } else { "IPAddressDeny=" };
        self.add_lines(&["PrivateNetwork=no", "RestrictAddressFamilies=AF_INET AF_INET6", addresses]);
    }

    /// Sockets outside of the run-time folder need a mount namespace in which they can be made.
    fn add_sockets(&mut self, config: &Config) {
        let mut all: Vec<(&'static str, PathBuf)> = Vec::new();
        all.extend(config.ports.iter().filter_map(|port| Some((port.kind.name(), port.kind.listens_at()?.into()))));
        all.extend(config.control.iter().map(|path| ("control", path.clone())));
        if let Some(MetricsListener::Unix(path, _)) = &config.metrics {
            all.push(("metrics", path.clone()));
        }
        for (key, path) in all {
            let Some(folder) = path.parent().filter(|folder| !folder.starts_with(SOCKETS)) else { continue };
            if folder == Path::new(NETWORKS) {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let text = format!("{key}: the unit cannot make a socket in {NETWORKS}: use \"{SOCKETS}/{name}\"");
                self.notes.push(text);
                continue;
            }
            self.keys.insert(key);
            self.lines.insert(format!("ReadWritePaths=\"-{}\"", folder.display().to_string().replace('%', "%%")));
            if ["/home", "/root", "/run/user"].iter().any(|home| folder.starts_with(home)) {
                self.lines.insert("ProtectHome=no".into());
            }
            if ["/tmp", "/var/tmp"].iter().any(|temporary| folder.starts_with(temporary)) {
                self.lines.insert("PrivateTmp=no".into());
            }
        }
    }

    /// Other users and groups need the host's user namespace; owners, the capability to change them.
    fn add_access(&mut self, config: &Config) {
        let mut all: Vec<(&'static str, &Access)> = config.ports.iter().map(|port| ("access", &port.access)).collect();
        all.push(("access", &config.access));
        if let Some(MetricsListener::Unix(_, access)) = &config.metrics {
            all.push(("metrics-access", access));
        }
        for (key, access) in all {
            if let Some(group) = access.group.as_deref().filter(|group| *group != GROUP) {
                self.keys.insert(key);
                self.lines.insert(format!("SupplementaryGroups={group}"));
                self.add_users();
            }
            if access.owner.is_some() {
                self.keys.insert(key);
                // The unit's seccomp filter allows the system call already, its capabilities do not.
                self.add_lines(&["CapabilityBoundingSet=CAP_CHOWN", "AmbientCapabilities=CAP_CHOWN"]);
                self.add_users();
            }
        }
    }

    fn add_users(&mut self) {
        if self.is_confined() {
            self.add_lines(&["PrivateUsers=no"]);
        }
    }

    fn add_lines(&mut self, lines: &[&str]) {
        self.lines.extend(lines.iter().map(|&line| line.to_owned()));
    }

    /// The path of the drop-in.
    pub fn path(&self) -> PathBuf {
        format!("/etc/systemd/system/{}.d/file.conf", self.name).into()
    }

    /// The drop-in for the network's `file`, with the commands that install it; none if the unit needs none.
    pub fn drop_in(&self, file: &Path) -> Option<String> {
        if self.lines.is_empty() {
            return None;
        }
        let (keys, name, path, file) = (self.keys(), &self.name, self.path(), file.display());
        let lines: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        Some(format!(
            "# Allows {name} the keys {keys} of {file}. As root:\n\
             # memlane check --unit {file} | install -D -m 644 /dev/stdin {}\n\
             # systemctl daemon-reload && systemctl restart {name}\n[Service]\n{lines}",
            path.display()
        ))
    }

    fn keys(&self) -> String {
        self.keys.iter().copied().collect::<Vec<_>>().join(", ")
    }

    /// The lines of `memlane check` about the unit of `file`; `installed` is the drop-in that is there.
    pub fn told(&self, file: &Path, installed: Option<&str>) -> String {
        let devices: Vec<&str> = self.devices.iter().copied().collect();
        let because = if devices.is_empty() { String::new() } else { format!(", for {}", devices.join(", ")) };
        let with = self.with.as_ref().map(|with| format!(" and {with}")).unwrap_or_default();
        let drop_in = match self.drop_in(file) {
            None => String::new(),
            Some(text) if installed == Some(&*text) => ", with its drop-in".into(),
            Some(_) => format!(", with a drop-in for {}: memlane check --unit {} prints it", self.keys(), file.display()),
        };
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        format!("unit: {}{with}{because}{drop_in}\n{notes}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/etc/memlane/lan.toml";
    const PORT: &str = "[[port]]\nname = \"web\"\nvhost-user = \"/run/memlane/web.sock\"\n";

    fn unit(text: &str) -> Unit {
        Unit::of(&Config::parse(text, "lan").unwrap(), "lan")
    }

    fn lines(text: &str) -> Vec<String> {
        unit(text).lines.into_iter().collect()
    }

    #[test]
    fn a_network_of_sockets_needs_no_drop_in() {
        let unit = unit(&format!("access = {{ group = \"memlane\" }}\nmetrics = \"unix:/run/memlane/lan.metrics\"\n{PORT}"));
        assert_eq!((unit.name.as_str(), unit.drop_in(Path::new(FILE))), ("memlane@lan.service", None));
        assert_eq!(unit.told(Path::new(FILE), None), "unit: memlane@lan.service\n");
    }

    #[test]
    fn devices_need_the_other_unit() {
        for (port, key) in [("tap = \"t\"", "tap"), ("af-packet = \"e\"", "af-packet")] {
            let unit = unit(&format!("web = \"127.0.0.1:9892\"\n[[port]]\nname = \"host\"\n{port}\n"));
            assert_eq!(unit.told(Path::new(FILE), None), format!("unit: memlane-net@lan.service, for {key}\n"));
        }
        assert_eq!(unit("sandbox = { kinds = [\"tap\"] }\n").name, "memlane-net@lan.service");
        let nic = unit("[[segment]]\nname = \"lan\"\nnic = \"eth0\"\n");
        assert_eq!(nic.told(Path::new(FILE), None), "unit: memlane@lan.service and memlane-nic@lan.socket\n");
    }

    #[test]
    fn addresses_need_a_network() {
        let wanted = ["IPAddressAllow=localhost", "PrivateNetwork=no", "RestrictAddressFamilies=AF_INET AF_INET6"];
        for keys in ["web = \"127.0.0.1:9892\"", "metrics = \"[::1]:9891\""] {
            assert_eq!(lines(&format!("{keys}\n{PORT}")), wanted);
        }
        let open = lines(&format!("metrics = \"0.0.0.0:9891\"\n{PORT}"));
        assert_eq!(open, ["IPAddressDeny=", wanted[1], wanted[2]]);
        let dns = |server: &str| format!("[[segment]]\nname = \"lan\"\nsubnet = \"10.0.0.0/24\"\ndns = [\"{server}\"]\n{PORT}");
        assert_eq!(lines(&dns("127.0.0.53")), wanted);
        assert_eq!((lines(&dns("host")), unit(&dns("host")).keys()), (open, "dns".to_owned()));
        assert!(lines(&dns("10.0.0.53")).is_empty(), "guests are told of a server among them");
    }

    #[test]
    fn folders_and_groups_are_allowed_by_name() {
        let there =
            "[[port]]\nname = \"db\"\nvhost-user = \"/srv/a b/db.sock\"\naccess = { group = \"tenants\", owner = \"root\" }\n";
        let wanted = [
            "AmbientCapabilities=CAP_CHOWN",
            "CapabilityBoundingSet=CAP_CHOWN",
            "PrivateUsers=no",
            "ReadWritePaths=\"-/srv/a b\"",
            "SupplementaryGroups=tenants",
        ];
        assert_eq!(lines(&format!("{PORT}{there}")), wanted);
        let metrics = unit("metrics = \"unix:/run/memlane/a\"\nmetrics-access = { group = \"prometheus\" }\n");
        assert_eq!(metrics.keys(), "metrics-access");
        let relative = "[[port]]\nname = \"web\"\nvhost-user = \"/etc/memlane/web.sock\"\n";
        let told = unit(relative).told(Path::new(FILE), None);
        assert!(
            told.contains("note: vhost-user: the unit cannot make a socket in /etc/memlane: use \"/run/memlane/web.sock\""),
            "{told}"
        );
    }

    #[test]
    fn a_drop_in_that_is_there_is_known() {
        let (unit, file) = (unit("web = \"127.0.0.1:9892\"\n"), Path::new(FILE));
        let text = unit.drop_in(file).unwrap();
        assert!(text.contains("\n[Service]\nIPAddressAllow=localhost\nPrivateNetwork=no\n"), "{text}");
        assert!(unit.told(file, None).contains("a drop-in for web: memlane check --unit /etc/memlane/lan.toml prints it"));
        assert_eq!(unit.told(file, Some(&text)), "unit: memlane@lan.service, with its drop-in\n");
    }

    #[test]
    fn a_unit_is_known_by_its_control_group() {
        assert_eq!(of_group("0::/system.slice/system-memlane.slice/memlane@lan.service"), Some("memlane@lan.service"));
        assert_eq!(of_group("0::/system.slice/memlane-net@a.service/sub"), Some("memlane-net@a.service"));
        for other in ["0::/", "0::/user.slice/session-1.scope", "0::/system.slice/memlane-nic@lan.service", ""] {
            assert_eq!(of_group(other), None);
        }
    }
}
