//! Findings of `memlane doctor` on the installation: the sandbox, the service, and the programs that memlane works with.

use std::path::{Path, PathBuf};

use nix::unistd::{Group, User};
use socket2::{Domain, Socket, Type};

use super::Finding;
use memlane_confine::system;

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
/// The package's copies of the hook of libvirt, and of the hook script of Proxmox VE.
const HOOK_SOURCE: &str = "/usr/share/memlane/libvirt-hook";
const SCRIPT_SOURCE: &str = "/usr/share/memlane/hookscript";

/// Installs the package, which has units, hooks and plugin.
const PACKAGE: &str = "apt install ./memlane_*.deb";
/// Runs a network that has rights for devices.
pub(super) const NET_UNIT: &str = "systemctl enable --now memlane-net@NETWORK";
/// Loads KVM, and lets this user open it.
pub(super) const KVM: &str = "modprobe -a kvm_intel kvm_amd; usermod -aG kvm $USER";

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
            let remedy = "needed by NICs as uplinks alone; the unit memlane-nic@ opens them for a network";
            Finding::note("AF_XDP", "sockets of this kind need CAP_NET_RAW", remedy)
                .by("systemctl enable --now memlane-nic@NETWORK.socket")
        }
        Err(error) => {
            let text = format!("the kernel gives no socket of this kind: {error}");
            Finding::note("AF_XDP", text, "not needed; use a kernel with CONFIG_XDP_SOCKETS")
        }
    }
}

/// Whether Cloud Hypervisor is on the PATH.
pub(super) fn cloud_hypervisor() -> Finding {
    let release = "https://github.com/cloud-hypervisor/cloud-hypervisor/releases/latest/download/cloud-hypervisor-static";
    match program("cloud-hypervisor") {
        Some(path) => Finding::good("Cloud Hypervisor", format!("{}; `memlane ch` prints its arguments", path.display())),
        None => Finding::note("Cloud Hypervisor", "it is not on the PATH", "not needed; its static program, as root")
            .by(format!("curl -Lo /usr/local/bin/cloud-hypervisor {release} && chmod +x /usr/local/bin/cloud-hypervisor")),
    }
}

/// Other monitors on the PATH, with the way in which their guests are connected.
pub(super) fn other_monitors() -> impl Iterator<Item = Finding> {
    let known = [
        ("crosvm", "connected by --vhost-user type=net,socket=PATH; not tested"),
        ("firecracker", "connected by a TAP port, which is the host_dev_name of its network interface"),
    ];
    known.into_iter().filter(|(name, _)| program(name).is_some()).map(|(name, way)| Finding::good(name, way))
}

/// The hook script of Proxmox VE, where that runs.
pub(super) fn proxmox() -> Finding {
    if program("qm").is_none() {
        return Finding::good("Proxmox VE", "this machine is no node of it");
    }
    if Path::new(SNIPPETS).join("memlane").exists() {
        return Finding::good(
            "Proxmox VE",
            "machines attach their ports by --hookscript local:snippets/memlane; `memlane pve` prints the rest",
        );
    }
    let text = "its machines do not attach their ports: the hook script is missing";
    if !Path::new(SCRIPT_SOURCE).exists() {
        return Finding::note("Proxmox VE", text, "the package has it").by(PACKAGE);
    }
    Finding::note("Proxmox VE", text, "copy it").by(format!("install -D {SCRIPT_SOURCE} {SNIPPETS}/memlane"))
}

/// The module of NixOS, where that runs.
pub(super) fn nixos() -> Finding {
    if !Path::new("/etc/NIXOS").exists() {
        return Finding::good("NixOS", "this machine does not run it");
    }
    let units = Path::new("/etc/systemd/system").read_dir().into_iter().flatten().flatten();
    if units.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("memlane-")) {
        return Finding::good("NixOS", "networks of services.memlane.networks are services memlane-NAME");
    }
    let remedy = "import contrib/nixos/module.nix, set services.memlane.networks.NAME.settings, and";
    Finding::note("NixOS", "the configuration has no network of memlane", remedy).by("nixos-rebuild switch")
}

/// The plugin for containers, and the IPAM plugin that gives them addresses.
pub(super) fn containers() -> Finding {
    let folder_of = |plugin: &str| PLUGINS.into_iter().find(|folder| Path::new(folder).join(plugin).exists());
    let remedy = "not needed; for containers on a segment";
    let Some(folder) = folder_of(PLUGIN) else {
        let folder = PLUGINS.into_iter().find(|folder| Path::new(folder).is_dir()).unwrap_or(PLUGINS[0]);
        let command = format!("mkdir -p {folder} && ln -s \"$(command -v memlane)\" {folder}/{PLUGIN}");
        return Finding::note("containers", format!("the plugin {PLUGIN} is not in {folder}"), remedy).by(command);
    };
    let podman = program("podman").map(|path| format!("; {}", path.display())).unwrap_or_default();
    if folder_of("host-local").is_none() {
        let text = format!("{PLUGIN} is in {folder}, and no IPAM plugin that gives addresses{podman}");
        return Finding::note("containers", text, remedy).by("apt install containernetworking-plugins");
    }
    Finding::good("containers", format!("{PLUGIN} is in {folder}{podman}"))
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
    Finding::note("service", "the units of the package are not installed", "not needed; to start networks with the machine")
        .by(PACKAGE)
}

/// Whether QEMU of libvirt, which runs in `group`, may connect to sockets, and whether domains get their ports by the hook.
pub(super) fn libvirt(group: Option<&str>) -> Finding {
    let subject = "libvirt";
    let Some(group) = group else {
        return Finding::note(subject, "it is not installed", "not needed").by("apt install libvirt-daemon-system");
    };
    let Some(known) = Group::from_name(GROUP).ok().flatten() else {
        let remedy = format!(
            "let it connect to ports' sockets, unless memlane runs as the same user, by access = {{ group = \"{group}\" }} in the \
             network's file, or install the package"
        );
        return Finding::note(subject, format!("its QEMU runs in the group {group}"), &remedy).by(PACKAGE);
    };
    let user = ["libvirt-qemu", "qemu"].into_iter().find(|name| User::from_name(name).ok().flatten().is_some()).unwrap_or("qemu");
    if !known.mem.iter().any(|member| member == user) {
        let remedy = format!("let it connect to sockets with access = {{ group = \"{GROUP}\" }}");
        return Finding::note(subject, format!("its QEMU runs in the group {group}"), &remedy)
            .by(format!("usermod -aG {GROUP} {user}"));
    }
    let text = format!("its QEMU may connect to sockets with access = {{ group = \"{GROUP}\" }}");
    if !Path::new(HOOK).exists() && Path::new(HOOK_SOURCE).exists() {
        return Finding::note(subject, text, "the hook that attaches ports of domains is missing")
            .by(format!("install -D {HOOK_SOURCE} {HOOK}"));
    }
    Finding::good(subject, text + "; domains attach their ports by its hook")
}

/// Whether Wireshark, where it is installed, finds memlane's interfaces.
pub(super) fn wireshark() -> Option<Finding> {
    let folders = [format!("/usr/lib/{}-linux-gnu/wireshark/extcap", std::env::consts::ARCH), "/usr/lib64/wireshark/extcap".into()];
    let folder = folders.iter().find(|folder| Path::new(folder).is_dir())?;
    let link = Path::new(folder).join("memlane-extcap");
    Some(if link.exists() {
        Finding::good("Wireshark", "networks and ports are among its interfaces")
    } else {
        Finding::note("Wireshark", "it does not find memlane's interfaces", "not needed; to capture from Wireshark")
            .by(format!("ln -s \"$(command -v memlane)\" {}", link.display()))
    })
}
