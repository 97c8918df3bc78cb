//! Findings of `memlane doctor` on the installation: the sandbox, the service, and the programs that memlane works with.

use std::path::{Path, PathBuf};

use nix::unistd::{Group, User};
use socket2::{Domain, Socket, Type};

use super::doctor::Finding;
use crate::system;

/// The group of the package; its members may connect to sockets with `access = { group = "memlane" }`.
const GROUP: &str = "memlane";
/// The hook of libvirt.
const HOOK: &str = "/etc/libvirt/hooks/qemu.d/memlane";
/// Folders of units: the package's, and Debian's with its older name.
const UNITS: [&str; 3] = ["/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"];

/// Folder of Proxmox VE's snippets, of which its hook scripts are.
const SNIPPETS: &str = "/var/lib/vz/snippets";
/// Folders of plugins of CNI: the usual one, and those of Debian and Fedora.
const PLUGINS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];
/// The plugin of memlane.
const PLUGIN: &str = "memlane-cni";

/// The kernel's support for the sandbox.
pub(super) fn sandbox() -> Finding {
    let calls = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default().contains("errno");
    match (system::landlock_version(), calls) {
        (version @ 1.., true) => {
            Finding::good("sandbox", format!("networks confine files by Landlock (version {version}) and system calls by seccomp"))
        }
        (0, true) => Finding::note(
            "sandbox",
            "the kernel has no Landlock: networks confine system calls, by seccomp, and not files",
            "not needed; use a kernel of 5.13 or newer with landlock in its list of security modules (lsm=)",
        ),
        (_, false) => Finding::note(
            "sandbox",
            "the kernel has no seccomp filters: networks do not confine system calls",
            "not needed; use a kernel with CONFIG_SECCOMP_FILTER",
        ),
        _ => Finding::note("sandbox", "the kernel does not tell its version of Landlock", "not needed"),
    }
}

/// Whether the kernel has AF_XDP, for a network card as an uplink.
pub(super) fn af_xdp() -> Finding {
    match Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None) {
        Ok(_) => Finding::good("AF_XDP", "the kernel gives sockets of this kind"),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Finding::note("AF_XDP", "sockets of this kind need CAP_NET_RAW", "not needed; run as root, or with the capability")
        }
        Err(error) => {
            let text = format!("the kernel gives no socket of this kind: {error}");
            Finding::note("AF_XDP", text, "not needed; use a kernel with CONFIG_XDP_SOCKETS")
        }
    }
}

/// Whether Cloud Hypervisor is on the PATH.
pub(super) fn cloud_hypervisor() -> Finding {
    match program("cloud-hypervisor") {
        Some(path) => Finding::good("Cloud Hypervisor", format!("{}; `memlane ch` prints its arguments", path.display())),
        None => Finding::note(
            "Cloud Hypervisor",
            "it is not on the PATH",
            "not needed; `memlane ch` prints the arguments for one that is installed elsewhere",
        ),
    }
}

/// The hook script of Proxmox VE, where that runs.
pub(super) fn proxmox() -> Option<Finding> {
    program("qm")?;
    Some(if Path::new(SNIPPETS).join("memlane").exists() {
        Finding::good(
            "Proxmox VE",
            "machines attach their ports by --hookscript local:snippets/memlane; `memlane pve` prints the rest",
        )
    } else {
        let remedy = format!("cp /usr/share/memlane/hookscript {SNIPPETS}/memlane");
        Finding::note("Proxmox VE", "its machines do not attach their ports: the hook script is missing", &remedy)
    })
}

/// The module of NixOS, where that runs.
pub(super) fn nixos() -> Option<Finding> {
    Path::new("/etc/NIXOS").exists().then(|| {
        let has_units = Path::new("/etc/systemd/system").read_dir().into_iter().flatten().flatten();
        if has_units.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("memlane-")) {
            return Finding::good("NixOS", "networks of services.memlane.networks are services memlane-NAME");
        }
        let remedy = "import contrib/nixos/module.nix, and set services.memlane.networks.NAME.settings";
        Finding::note("NixOS", "the configuration has no network of memlane", remedy)
    })
}

/// The plugin for containers, where podman or other users of CNI are.
pub(super) fn containers() -> Option<Finding> {
    if let Some(folder) = PLUGINS.into_iter().find(|folder| Path::new(folder).join(PLUGIN).exists()) {
        return Some(Finding::good("containers", format!("{PLUGIN} is in {folder}")));
    }
    let folder = PLUGINS.into_iter().find(|folder| Path::new(folder).is_dir()).or_else(|| program("podman").map(|_| PLUGINS[0]))?;
    let remedy = format!("not needed; for containers on a segment: ln -s \"$(command -v memlane)\" {folder}/{PLUGIN}");
    Some(Finding::note("containers", format!("the plugin {PLUGIN} is not in {folder}"), &remedy))
}

/// The program called `name` on the PATH.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Whether the service of the package is here.
pub(super) fn service() -> Finding {
    let is_there = UNITS.iter().any(|folder| Path::new(folder).join("memlane@.service").exists());
    if !Path::new("/run/systemd/system").is_dir() {
        return Finding::good("service", "systemd does not run here; `memlane up` runs a network in the foreground");
    }
    if is_there {
        return Finding::good("service", "a network /etc/memlane/NAME.toml is started by: systemctl enable --now memlane@NAME");
    }
    Finding::note(
        "service",
        "the units of the package are not installed",
        "not needed; to start networks with the machine: apt install ./memlane_*.deb",
    )
}

/// Whether QEMU of libvirt, which runs in `group`, may connect to sockets, and whether domains get their ports by the hook.
pub(super) fn libvirt(group: &str) -> Finding {
    let members = Group::from_name(GROUP).ok().flatten().map(|group| group.mem).unwrap_or_default();
    let user = ["libvirt-qemu", "qemu"].into_iter().find(|name| User::from_name(name).ok().flatten().is_some()).unwrap_or("qemu");
    if members.iter().any(|member| member == user) {
        let hook = if Path::new(HOOK).exists() { "; domains attach their ports by its hook" } else { "" };
        return Finding::good("libvirt", format!("its QEMU may connect to sockets with access = {{ group = \"{GROUP}\" }}{hook}"));
    }
    let text = format!("its QEMU runs in the group {group}");
    if Group::from_name(GROUP).ok().flatten().is_some() {
        let remedy = format!("let it connect to sockets with access = {{ group = \"{GROUP}\" }}: usermod -aG {GROUP} {user}");
        return Finding::note("libvirt", text, &remedy);
    }
    let remedy = format!(
        "let it connect to ports' sockets, unless memlane runs as the same user: access = {{ group = \"{group}\" }} in the network's file"
    );
    Finding::note("libvirt", text, &remedy)
}

/// Whether Wireshark, where it is installed, finds memlane's interfaces.
pub(super) fn wireshark() -> Option<Finding> {
    let folders = [format!("/usr/lib/{}-linux-gnu/wireshark/extcap", std::env::consts::ARCH), "/usr/lib64/wireshark/extcap".into()];
    let folder = folders.iter().find(|folder| Path::new(folder).is_dir())?;
    let link = Path::new(folder).join("memlane-extcap");
    Some(if link.exists() {
        Finding::good("Wireshark", "networks and ports are among its interfaces")
    } else {
        let remedy = format!("not needed; to capture from Wireshark: ln -s \"$(command -v memlane)\" {}", link.display());
        Finding::note("Wireshark", "it does not find memlane's interfaces", &remedy)
    })
}
