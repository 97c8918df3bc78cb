//! `memlane doctor`: checks this machine, and names the remedy for each problem.

mod installed;

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::Serialize;

use super::kvm::{TRIED_BY_KVM, run_one_instruction};
use super::qemu::Qemu;
use super::{Failure, libvirt, output};
use crate::config::runtime_folder;
use crate::control::{Client, ControlError, Report};
use crate::cpus::Cpus;
use crate::descriptors::{self, DescriptorReport};
use crate::folder;
use crate::memory::holes;
use crate::quantity::{counted, is};
use crate::uplink::netfilter;
use memlane_backends::vhost_user::access::Access;
use memlane_backends::xen::device;

/// Arguments of `memlane doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Grade {
    /// The host is as it should be.
    Good,
    /// Something optional is not there.
    Note,
    /// memlane cannot work without it.
    Lacking,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    subject: &'static str,
    grade: Grade,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// The command that makes it good, for the remedy's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl Finding {
    fn good(subject: &'static str, text: impl Into<String>) -> Self {
        Self { subject, grade: Grade::Good, text: text.into(), remedy: None, command: None }
    }

    fn note(subject: &'static str, text: impl Into<String>, remedy: &str) -> Self {
        Self { subject, grade: Grade::Note, text: text.into(), remedy: Some(remedy.into()), command: None }
    }

    /// With the command that is missing.
    fn by(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    fn lacking(subject: &'static str, text: impl Into<String>, remedy: &str) -> Self {
        Self { subject, grade: Grade::Lacking, text: text.into(), remedy: Some(remedy.into()), command: None }
    }
}

impl Doctor {
    /// Prints the findings.
    ///
    /// # Errors
    /// Something is lacking without which memlane cannot work; or standard output cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let mut findings = vec![
            kernel(),
            processor(),
            memfd(),
            lazy_memory(),
            kvm(),
            qemu(),
            tun(),
            packet_socket(),
            descriptors(),
            installed::sandbox(),
            installed::service(),
            huge_pages(),
            transparent_huge_pages(),
            cpus(),
        ];
        findings.extend([overlay(), installed::af_xdp(), bridges(), frr()]);
        findings.extend(networks());
        findings.extend(device::is_there().then(xen));
        findings.extend([installed::libvirt(libvirt::group().as_deref()), installed::cloud_hypervisor()]);
        findings.extend([installed::proxmox(), installed::nixos(), installed::containers()]);
        findings.extend(installed::other_monitors());
        findings.extend(installed::wireshark());
        findings.extend(sockets_folder(&folder::runtime()));
        output::print_either(self.json, &findings, || findings.iter().map(line).collect())?;
        if findings.iter().any(|finding| finding.grade == Grade::Lacking) { Err(Failure::Lacking) } else { Ok(()) }
    }
}

/// A finding in one line, and its remedy in another.
fn line(finding: &Finding) -> String {
    let mark = match finding.grade {
        Grade::Good => "ok  ",
        Grade::Note => "note",
        Grade::Lacking => "LACK",
    };
    let mut text = format!("{mark}  {:<22} {}\n", finding.subject, finding.text);
    if let Some(remedy) = &finding.remedy {
        let command = finding.command.as_ref().map(|command| format!(": {command}")).unwrap_or_default();
        text.push_str(&format!("      {:<22} -> {remedy}{command}\n", ""));
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 10) {
        Finding::good("kernel", format!("Linux {release}"))
    } else {
        Finding::lacking("kernel", format!("Linux {release}"), "use Linux 5.10 or newer")
    }
}

#[cfg(target_arch = "x86_64")]
fn processor() -> Finding {
    let widest = if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        return Finding::note(
            "processor",
            "x86-64 without AVX2",
            "payloads are copied by the C library; a newer CPU model is faster",
        );
    };
    Finding::good("processor", format!("x86-64, payloads are copied with {widest}"))
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> Finding {
    Finding::good("processor", format!("{}, payloads are copied by the C library", std::env::consts::ARCH))
}

fn memfd() -> Finding {
    if memfd_create(c"doctor", MFdFlags::MFD_CLOEXEC).is_ok() {
        Finding::good("shared memory", "memfd works")
    } else {
        Finding::lacking(
            "shared memory",
            "memfd_create is refused",
            "allow the memfd_create system call in the sandbox or container",
        )
    }
}

/// Whether pages of guest memory that are still to be filled can be told from empty ones.
fn lazy_memory() -> Finding {
    match holes::check() {
        Ok(()) => Finding::good("lazy restore", "holes of guest memory are read without filling them (userfaultfd)"),
        Err(error) => Finding::note(
            "lazy restore",
            format!("userfaultfd is refused ({error}): reads fill holes of guest memory"),
            "guests must not be restored lazily; allow the userfaultfd system call in the container",
        ),
    }
}

fn kvm() -> Finding {
    use kvm_ioctls::Kvm;
    let Ok(kvm) = Kvm::new() else {
        let remedy = "without KVM, guests run under UML or QEMU TCG";
        return Finding::note("KVM", "/dev/kvm cannot be opened", remedy).by(installed::KVM);
    };
    match run_one_instruction(&kvm) {
        Ok(()) => Finding::good("KVM", format!("{TRIED_BY_KVM}; `memlane-lab doctor` boots a whole kernel")),
        Err(error) => {
            let text = format!("/dev/kvm opens, but running a guest fails: {error}");
            Finding::note("KVM", text, "enable nested virtualisation on the outer host, or use UML or QEMU TCG")
        }
    }
}

/// The QEMU for which `memlane qemu` and `memlane libvirt` print arguments.
fn qemu() -> Finding {
    let qemu = Qemu::find(None);
    let Some(version) = qemu.version() else {
        let remedy = "not needed for other guests; `memlane qemu` prints for QEMU 9.2 and newer, or for --qemu-version VERSION";
        return Finding::note("QEMU", "no QEMU on the PATH reported its version", remedy);
    };
    let vectors = if qemu.crashes_with_vectors() { ", without KVM and so without interrupt vectors (vectors=0)" } else { "" };
    let text = format!(
        "{version}: `memlane qemu` prints {}{vectors}. iommu_platform=on works where the machine has no vIOMMU: addresses are not translated",
        qemu.reconnect()
    );
    Finding::good("QEMU", text)
}

fn tun() -> Finding {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Finding::good("TAP", "/dev/net/tun opens; making devices also needs CAP_NET_ADMIN"),
        Err(error) => {
            let is_shut = error.kind() == std::io::ErrorKind::PermissionDenied;
            let command = if is_shut { "chmod 0666 /dev/net/tun" } else { "modprobe tun" };
            Finding::note("TAP", format!("/dev/net/tun cannot be opened: {error}"), "needed by TAP ports and uplinks alone")
                .by(command)
        }
    }
}

fn packet_socket() -> Finding {
    match socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None) {
        Ok(_) => Finding::good("AF_PACKET", "packet sockets open: containers can be put on ports by their veth pairs"),
        Err(error) => {
            let remedy = "needed by af-packet ports alone; root has the right, and networks of the unit memlane-net@ do";
            Finding::note("AF_PACKET", format!("packet sockets cannot be opened: {error}"), remedy).by(installed::NET_UNIT)
        }
    }
}

fn descriptors() -> Finding {
    // `memlane up` raises the soft limit.
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let (open, ports) = (counted(limit, "descriptor"), counted(limit / descriptors::USUAL, "port"));
    let text = format!("{open} may be open (hard limit), enough for about {ports}");
    if limit >= 4096 { Finding::good("open files", text) } else { Finding::note("open files", text, descriptors::REMEDY) }
}

/// Running networks that refused front ends because descriptors ran out, or that do not answer.
fn networks() -> Vec<Finding> {
    let sockets = fs::read_dir(runtime_folder()).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let sockets = sockets.filter(|path| path.extension().is_some_and(|extension| extension == "control"));
    sockets.filter_map(|path| network(&Client::new(&path).within(Duration::from_secs(2)))).collect()
}

fn network(client: &Client) -> Option<Finding> {
    match client.get::<Report>("/v1/network") {
        Ok(Report { name, descriptors: known, .. }) if known.refused > 0 => {
            let DescriptorReport { open, limit, refused, .. } = known;
            let text = format!(
                "network {name}: front ends were disconnected {} because file descriptors ran out ({open} of {limit} are open)",
                counted(refused, "time")
            );
            Some(Finding::note("open files", text, descriptors::REMEDY))
        }
        Err(error @ ControlError::Silent { .. }) => {
            Some(Finding::note("networks", error.to_string(), "read its log for the remedy"))
        }
        _ => None,
    }
}

fn huge_pages() -> Finding {
    let info = read("/proc/meminfo");
    let value = |key: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("0");
        line.trim_start_matches(':').trim().split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let (total, free, size) = (value("HugePages_Total"), value("HugePages_Free"), value("Hugepagesize"));
    let text = format!("{free} of {} of {size} KiB {} free", counted(total, "page"), is(total));
    if total > 0 {
        Finding::good("huge pages", text)
    } else {
        let remedy =
            "not needed; guests on huge pages are faster at high packet rates: sysctl vm.nr_hugepages=N and hugetlb=on in QEMU";
        Finding::note("huge pages", text, remedy)
    }
}

fn transparent_huge_pages() -> Finding {
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("not available").to_owned();
    if matches!(chosen.as_str(), "always" | "within_size" | "advise" | "force") {
        Finding::good("transparent huge pages", format!("for shared memory: {chosen}"))
    } else {
        let remedy = "not needed; guest memory gets huge pages by itself with: echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
        Finding::note("transparent huge pages", format!("for shared memory: {chosen}"), remedy)
    }
}

/// The kernel's support for uplinks: bridge and VXLAN, built in or as modules that it loads on demand.
fn overlay() -> Finding {
    let release = read("/proc/sys/kernel/osrelease");
    let modules: String = ["modules.dep", "modules.builtin"].map(|list| read(&format!("/lib/modules/{release}/{list}"))).concat();
    let is_there = |name: &str| Path::new("/sys/module").join(name).exists() || modules.contains(&format!("/{name}.ko"));
    let lacking: Vec<_> = ["bridge", "vxlan"].into_iter().filter(|name| !is_there(name)).collect();
    if lacking.is_empty() {
        Finding::good("uplinks", "the kernel has bridge and vxlan; making devices also needs CAP_NET_ADMIN")
    } else {
        let remedy = "not needed on one host; for segments that span hosts, use a kernel with CONFIG_BRIDGE and CONFIG_VXLAN";
        Finding::note("uplinks", format!("the kernel has no {}", lacking.join(", no ")), remedy)
    }
}

/// Whether the host's netfilter filters bridged frames, as on hosts with Docker.
fn bridges() -> Finding {
    match netfilter::filtering(read) {
        Some(text) => Finding::note("bridges", text, &netfilter::remedy("BRIDGE")),
        None => Finding::good("bridges", "the host's iptables rules do not see frames of bridges"),
    }
}

/// Support for Xen ports, where the kernel runs under Xen.
fn xen() -> Finding {
    match device::probe() {
        Ok(()) => Finding::good("Xen", "grants and event channels can be used; xen ports also need xenstore"),
        Err(error) => {
            let text = error.to_string();
            let (cause, remedy) = text.split_once(". ").unwrap_or((&text, "see docs/adr/0025-xen-back-end.md"));
            Finding::note("Xen", cause, remedy)
        }
    }
}

fn frr() -> Finding {
    // Folders of FRR's daemons in Debian, in Fedora and in FRR's own builds.
    let folders = ["/usr/lib/frr", "/usr/libexec/frr", "/usr/local/sbin", "/usr/sbin"];
    match folders.iter().find(|folder| Path::new(folder).join("bgpd").exists()) {
        Some(folder) => Finding::good("FRR", format!("bgpd is in {folder}; `memlane evpn` prints its configuration")),
        None => {
            let remedy = "not needed on one host; for segments that span hosts";
            let command = "apt install frr && sed -i s/bgpd=no/bgpd=yes/ /etc/frr/daemons";
            Finding::note("FRR", "bgpd is not installed", remedy).by(command)
        }
    }
}

/// Whether users with access to a socket in the run-time folder can enter that.
fn sockets_folder(path: &Path) -> Option<Finding> {
    let all_users = Access { mode: Some("0666".into()), ..Access::default() };
    let (name, subject) = (path.display(), "run-time folder");
    if !path.is_dir() {
        return None;
    }
    Some(match all_users.shut_folder(&path.join("any.sock")) {
        None => Finding::good(subject, format!("{name} can be entered by users that `access` names")),
        Some((shut, _)) => {
            let remedy = format!("needed only if `access` admits other users to a socket in it: chmod o+x {}", shut.display());
            Finding::note(subject, format!("{name} cannot be entered by other users"), &remedy)
        }
    })
}

fn cpus() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let isolated = read("/sys/devices/system/cpu/isolated");
    let isolated = if isolated.is_empty() { "none isolated".into() } else { format!("isolated: {isolated}") };
    let allowed = Cpus::allowed().map(|cpus| format!(", memlane may run on {cpus}")).unwrap_or_default();
    let text = format!("time of {}{allowed}, {isolated}", counted(count, "CPU"));
    if count > 1 || Path::new("/.dockerenv").exists() {
        Finding::good("CPUs", text)
    } else {
        Finding::note("CPUs", text, "guests and workers share one CPU; give the machine more")
    }
}
