//! `memlane qemu`, `ch`, `pve`, `uml` and `libvirt`: the arguments or XML that connect a guest to a port.

use std::path::{Path, PathBuf};

use clap::Args;

use super::net::PortOfNet;
use super::qemu::{self, Version};
use super::{Failure, libvirt, output, words};
use crate::config::PortConfig;
use crate::config::kinds::Socket;
use crate::port::default_address;
use crate::quantity::{Quantity, Read};

/// Arguments of `memlane uml`.
#[derive(Debug, Args)]
pub(super) struct Guest {
    #[command(flatten)]
    port: PortOfNet,
}

/// Arguments of `memlane libvirt`.
#[derive(Debug, Args)]
pub(super) struct Libvirt {
    #[command(flatten)]
    port: PortOfNet,
    #[command(flatten)]
    version: QemuVersion,
}

/// The QEMU version to print for.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct QemuVersion {
    /// Version of the guest's QEMU, as 7.2 or 11.1; by default that of the QEMU on the PATH.
    #[arg(long, value_name = "VERSION")]
    qemu_version: Option<Version>,
}

impl QemuVersion {
    /// The QEMU of that version; logs a note to standard error if the version is not known.
    pub(super) fn find(self) -> qemu::Qemu {
        let qemu = qemu::Qemu::find(self.qemu_version);
        if let Some(note) = qemu.note() {
            output::note(note);
        }
        qemu
    }
}

/// Arguments of `memlane qemu`.
#[derive(Debug, Args)]
pub(super) struct Qemu {
    #[command(flatten)]
    port: PortOfNet,
    #[command(flatten)]
    options: QemuOptions,
}

/// Parameters of QEMU's arguments beside the port.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct QemuOptions {
    /// Memory size of the guest, as 2G, shared with memlane; without it, no memory arguments are printed.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<String>,
    /// Print `vectors=0` in any case; QEMU before 10 needs it under TCG, and gets it where there is no KVM.
    #[arg(long)]
    no_vectors: bool,
    #[command(flatten)]
    pub version: QemuVersion,
}

/// Arguments of `memlane ch`.
#[derive(Debug, Args)]
pub(super) struct CloudHypervisor {
    #[command(flatten)]
    port: PortOfNet,
    /// Memory size of the guest, as 2G, shared with memlane; without it, no memory argument is printed.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<String>,
}

/// Arguments of `memlane pve`.
#[derive(Debug, Args)]
pub(super) struct Pve {
    /// Number of the virtual machine.
    #[arg(value_name = "VMID", value_parser = clap::value_parser!(u32).range(100..=999_999_999))]
    vm: u32,
    #[command(flatten)]
    port: PortOfNet,
    /// Memory size of the virtual machine, which is shared with memlane; by default that of its configuration.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<String>,
    #[command(flatten)]
    version: QemuVersion,
}

/// Folder of the configurations of this node's virtual machines (pmxcfs(8)).
const PROXMOX: &str = "/etc/pve/qemu-server";

/// A size as QEMU takes it for its memory and for the file behind that, which reads a number without a unit as bytes.
fn memory(text: &str) -> Result<String, String> {
    let mebibytes = text.parse::<u64>().ok().or_else(|| match Quantity::Mebibytes.read(text) {
        Some(Read::Whole(mebibytes)) => Some(mebibytes),
        _ => None,
    });
    match mebibytes.filter(|mebibytes| (1..=1 << 30).contains(mebibytes)) {
        None => Err("a number of MiB, or a size with its unit, as 512M or 2G".into()),
        Some(mebibytes) if mebibytes % 1024 == 0 => Ok(format!("{}G", mebibytes / 1024)),
        Some(mebibytes) => Ok(format!("{mebibytes}M")),
    }
}

/// A port, and the socket at which its front end and memlane connect.
#[derive(Clone, Debug)]
pub(super) struct GuestEndpoint {
    port: PortConfig,
    path: PathBuf,
    /// memlane connects, and the front end listens.
    connect: bool,
    mac: String,
}

impl Guest {
    pub(super) fn print_uml(&self) -> Result<(), Failure> {
        output::print(&GuestEndpoint::at(&self.port)?.uml()?)
    }
}

impl Libvirt {
    pub(super) fn run(&self) -> Result<(), Failure> {
        output::print(&GuestEndpoint::at(&self.port)?.libvirt(self.version.find()))
    }
}

impl CloudHypervisor {
    pub(super) fn run(&self) -> Result<(), Failure> {
        output::print(&GuestEndpoint::at(&self.port)?.cloud_hypervisor(self.memory.as_deref())?)
    }
}

impl Pve {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let endpoint = GuestEndpoint::at(&self.port)?;
        let path = Path::new(PROXMOX).join(format!("{}.conf", self.vm));
        let known = || memory_of_proxmox(&std::fs::read_to_string(&path).ok()?);
        let memory = self.memory.clone().or_else(known).ok_or_else(|| {
            let (vm, path) = (self.vm, path.display());
            Failure::Configuration(format!("{path} tells no memory size of the virtual machine {vm}: give it by --memory, as 2G"))
        })?;
        output::print(&endpoint.pve(self.vm, &memory, self.version.find()))
    }
}

/// The size of the memory in a configuration of Proxmox VE, in MiB there (qm.conf(5)). Sections in brackets are snapshots.
fn memory_of_proxmox(configuration: &str) -> Option<String> {
    let present = configuration.lines().take_while(|line| !line.starts_with('['));
    let text = present.filter_map(|line| line.strip_prefix("memory:")).last()?.trim();
    let size =
        text.split(',').find_map(|part| part.strip_prefix("current=").or_else(|| part.parse::<u64>().is_ok().then_some(part)));
    memory(size?).ok()
}

impl Qemu {
    pub(super) fn run(&self) -> Result<(), Failure> {
        output::print(&GuestEndpoint::at(&self.port)?.qemu(&self.options, self.options.version.find()))
    }
}

impl GuestEndpoint {
    fn at(port: &PortOfNet) -> Result<Self, Failure> {
        let (port, network) = port.find()?;
        Self::of(&port, &network)
    }

    /// The socket of `port` of the network called `network`.
    pub(super) fn of(port: &PortConfig, network: &str) -> Result<Self, Failure> {
        let Some(Socket { path, connect }) = port.kind.front_ends() else {
            let text = format!("port '{}' is of the kind {}; guests need a vhost-user port", port.name, port.kind.name());
            return Err(Failure::Configuration(text));
        };
        // A guest has the address that it has inside.
        let mac = port.addresses_inside(network).mac.unwrap_or_else(|| default_address(network, &port.name)).to_string();
        Ok(Self { port: port.clone(), path: absolute(path), connect, mac })
    }

    /// The argument for User Mode Linux.
    pub(super) fn uml(&self) -> Result<String, Failure> {
        if self.connect {
            let text = format!("port '{}' has connect = true, but User Mode Linux can only connect itself", self.port.name);
            return Err(Failure::Configuration(text));
        }
        let path = self.path.display().to_string();
        if path.contains(|c: char| c.is_whitespace() || ":\"".contains(c)) {
            let text = format!("User Mode Linux cannot be given {path}: choose a path without spaces, colons and quotes");
            return Err(Failure::Configuration(text));
        }
        Ok(format!("{}\n", words::shell(&format!("virtio_uml.device={path}:1"))))
    }

    /// The arguments for Cloud Hypervisor, which counts rings and not queue pairs.
    fn cloud_hypervisor(&self, memory: Option<&str>) -> Result<String, Failure> {
        let path = self.path.display().to_string();
        if path.contains(|c: char| c.is_whitespace() || ",[]\"".contains(c)) {
            let text =
                format!("Cloud Hypervisor cannot be given {path}: choose a path without spaces, commas, brackets and quotes");
            return Err(Failure::Configuration(text));
        }
        let memory = memory.map(|size| format!("--memory size={size},shared=on ")).unwrap_or_default();
        let (mac, rings) = (&self.mac, 2 * self.port.queues);
        let mode = if self.connect { ",vhost_mode=server" } else { "" };
        let net = format!("vhost_user=true,socket={path},mac={mac},num_queues={rings},queue_size=1024{mode}");
        Ok(format!("{memory}--net {}\n", words::shell(&net)))
    }

    /// The command for Proxmox VE. Its own arguments hold the machine type and the memory's size.
    fn pve(&self, vm: u32, memory: &str, qemu: qemu::Qemu) -> String {
        let shared = format!("-object memory-backend-memfd,id=memlane,size={memory},share=on -numa node,memdev=memlane");
        let arguments = format!("{shared} {}", self.qemu(&QemuOptions::default(), qemu).trim_end());
        format!("qm set {vm} --args {}\n", words::shell(&arguments))
    }

    /// The element for libvirt.
    pub(super) fn libvirt(&self, qemu: qemu::Qemu) -> String {
        interface(self, qemu)
    }

    /// The arguments for QEMU, in one line.
    pub(super) fn qemu(&self, options: &QemuOptions, qemu: qemu::Qemu) -> String {
        let words: Vec<String> = options.arguments(self, qemu).iter().map(|word| words::shell(word)).collect();
        format!("{}\n", words.join(" "))
    }
}

impl QemuOptions {
    fn arguments(&self, endpoint: &GuestEndpoint, qemu: qemu::Qemu) -> Vec<String> {
        let (name, pairs) = (&endpoint.port.name, endpoint.port.queues);
        let mut arguments = Vec::new();
        let mut argument = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        if let Some(memory) = &self.memory {
            argument("-m", memory.clone());
            argument("-object", format!("memory-backend-memfd,id=memlane,size={memory},share=on"));
            argument("-machine", "memory-backend=memlane".into());
        }
        let manner = if endpoint.connect { "server=on,wait=off" } else { qemu.reconnect() };
        let path = words::qemu(&endpoint.path.display().to_string());
        argument("-chardev", format!("socket,id=char-{name},path={path},{manner}"));
        let queues = if pairs > 1 { format!(",queues={pairs}") } else { String::new() };
        argument("-netdev", format!("vhost-user,id=net-{name},chardev=char-{name}{queues}"));
        let mut device = format!("virtio-net-pci,netdev=net-{name},mac={},rx_queue_size=1024,tx_queue_size=1024", endpoint.mac);
        if pairs > 1 {
            device.push_str(",mq=on");
        }
        if let Some(mtu) = endpoint.port.settings.mtu {
            device.push_str(&format!(",host_mtu={mtu}"));
        }
        if self.no_vectors || qemu.crashes_with_vectors() {
            device.push_str(",vectors=0");
        }
        argument("-device", device);
        arguments
    }
}

/// libvirt's interface element for the guest's device.
fn interface(endpoint: &GuestEndpoint, qemu: qemu::Qemu) -> String {
    let (path, mac) = (words::xml(&endpoint.path.display().to_string()), &endpoint.mac);
    let source = if endpoint.connect {
        format!("  <source type='unix' path='{path}' mode='server'/>\n")
    } else {
        format!("  <source type='unix' path='{path}' mode='client'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>\n")
    };
    let queues = match endpoint.port.queues {
        1 => String::new(),
        pairs => format!(" queues='{pairs}'"),
    };
    let note = access_note(endpoint) + &wait_note(endpoint);
    let properties = properties(&endpoint.port, qemu);
    let alias = if properties.is_empty() { String::new() } else { format!("  <alias name='{}'/>\n", alias(&endpoint.port.name)) };
    format!(
        "<!-- The domain also needs:\n  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>{}{note} -->\n\
         <interface type='vhostuser'>\n  <mac address='{mac}'/>\n{source}  <model type='virtio'/>\n  \
         <driver{queues} rx_queue_size='1024' tx_queue_size='1024'/>\n{alias}</interface>\n",
        override_of(&endpoint.port, &properties) + TRANSLATED
    )
}

/// A note on the user of libvirt's QEMU, where only the user that runs memlane may connect to the port's socket.
fn access_note(endpoint: &GuestEndpoint) -> String {
    if endpoint.connect || !endpoint.port.access.is_private() {
        return String::new();
    }
    let group = libvirt::group().unwrap_or_else(|| "libvirt-qemu".into());
    format!(
        "\n  and libvirt's QEMU, unless it runs as the user that memlane does, cannot connect yet. In the network's file say (or as \
         access to `memlane attach`):\n  \
         access = {{ group = \"{group}\" }}"
    )
}

/// A note that the domain waits for memlane, and on a folder that its QEMU cannot enter.
fn wait_note(endpoint: &GuestEndpoint) -> String {
    // Two hyphens end a comment.
    let shut = endpoint.port.shut_out().map(|text| format!("\n  and {}", text.replace("--", "-\u{2010}"))).unwrap_or_default();
    if endpoint.connect {
        return shut;
    }
    format!(
        "{shut}\n  and memlane to run: until it does, `virsh start` waits for it. Where memlane is a service, have it start before libvirt's:\n  \
         Before=virtqemud.service libvirtd.service libvirt-guests.service in its unit"
    )
}

/// The note on `iommu='on'`, which confidential guests need.
const TRANSLATED: &str = "\n  Its <driver> may say iommu='on', as confidential guests need it; the domain must have no <iommu> device then, for memlane does not \
                          translate addresses.";

/// Properties of the guest's device in QEMU that libvirt has no element for, or none that works: its own `<mtu>` is for
/// interfaces that exist on the host too.
fn properties(port: &PortConfig, qemu: qemu::Qemu) -> Vec<(&'static str, u16)> {
    let mtu = port.settings.mtu.map(|mtu| ("host_mtu", mtu));
    mtu.into_iter().chain(qemu.crashes_with_vectors().then_some(("vectors", 0))).collect()
}

/// The XML that overrides these properties of the device.
fn override_of(port: &PortConfig, properties: &[(&str, u16)]) -> String {
    if properties.is_empty() {
        return String::new();
    }
    let each = |(name, value): &(&str, u16)| format!("    <qemu:property name='{name}' type='unsigned' value='{value}'/>\n");
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    format!(
        "\n  and, at its end, for {} (libvirt 8.2 or newer; xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' in <domain>):\n  \
         <qemu:override><qemu:device alias='{}'><qemu:frontend>\n{}  </qemu:frontend></qemu:device></qemu:override>",
        names.join(" and "),
        alias(&port.name),
        properties.iter().map(each).collect::<String>()
    )
}

/// A name for the guest's device as libvirt wants it from users, without the two hyphens that would end a comment.
fn alias(port: &str) -> String {
    format!("ua-{}", port.replace(|c: char| !c.is_ascii_alphanumeric(), "_"))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::qemu::Qemu;
    use crate::config::Config;

    fn endpoint(text: &str) -> GuestEndpoint {
        let config = Config::parse(text, "net").unwrap();
        GuestEndpoint::of(&config.ports[0], "net").unwrap()
    }

    fn qemu(text: &str, qemu: Qemu) -> String {
        QemuOptions { memory: Some("1G".into()), ..QemuOptions::default() }.arguments(&endpoint(text), qemu).join(" ")
    }

    /// A QEMU that needs nothing, and one that needs `vectors=0`.
    const NEW: Qemu = Qemu::of((11, 1), true);
    const OLD: Qemu = Qemu::of((7, 2), true);

    const PLAIN: &str = "[[port]]\nname = \"web\"\nvhost-user = \"/run/web.sock\"\n";

    #[test]
    fn qemu_shares_its_memory_and_comes_back() {
        let arguments = qemu(PLAIN, NEW);
        assert!(arguments.contains("memory-backend-memfd,id=memlane,size=1G,share=on"));
        assert!(arguments.contains("path=/run/web.sock,reconnect-ms=1000 ") && !arguments.contains("vectors"), "{arguments}");
        let arguments = qemu(PLAIN, OLD);
        assert!(arguments.contains("path=/run/web.sock,reconnect=1 ") && arguments.contains(",vectors=0"), "{arguments}");
        assert!(!arguments.contains("mq=on"));
    }

    #[test]
    fn the_guests_memory_is_as_large_as_the_file_behind_it() {
        let read = |text| memory(text).ok();
        let wanted = [("512", "512M"), ("512M", "512M"), ("2048MiB", "2G"), ("2G", "2G"), ("1.5G", "1536M")];
        assert!(wanted.iter().all(|(text, wanted)| read(text).as_deref() == Some(*wanted)));
        assert!(["", "0", "soon", "2GB", "-1", "1.5"].into_iter().all(|text| read(text).is_none()));
    }

    #[test]
    fn cloud_hypervisor_counts_rings_and_shares_its_memory() {
        let printed = |text: &str| endpoint(text).cloud_hypervisor(Some("2G"));
        let mac = "mac=02:00:00:00:00:01";
        let text = format!("{PLAIN}mac = \"02:00:00:00:00:01\"\n");
        let wanted =
            format!("--memory size=2G,shared=on --net vhost_user=true,socket=/run/web.sock,{mac},num_queues=2,queue_size=1024\n");
        assert_eq!(printed(&text).unwrap(), wanted);
        assert!(
            printed(&format!("{text}queues = 2\nconnect = true\n"))
                .unwrap()
                .ends_with("num_queues=4,queue_size=1024,vhost_mode=server\n")
        );
        assert!(printed(&PLAIN.replace("web.sock", "a,b.sock")).is_err());
    }

    #[test]
    fn proxmox_shares_the_memory_that_the_machine_has() {
        let printed = endpoint(PLAIN).pve(101, "2G", NEW);
        let parts = ["qm set 101 --args '", "size=2G,share=on -numa node,memdev=memlane", "path=/run/web.sock,reconnect-ms=1000 "];
        assert!(
            parts.iter().all(|part| printed.contains(part)) && !printed.contains("-m ") && printed.ends_with("'\n"),
            "{printed}"
        );
        let told = |text: &str| memory_of_proxmox(text);
        assert_eq!(told("cores: 2\nmemory: 2048\nnet0: x\n\n[before]\nmemory: 512\n").as_deref(), Some("2G"));
        assert_eq!(told("memory: current=1536\n").as_deref(), Some("1536M"));
        assert_eq!([told(""), told("memory: much\n"), told("[before]\nmemory: 512\n")], [None, None, None]);
    }

    #[test]
    fn what_the_port_has_qemu_is_told() {
        let arguments = qemu(&format!("{PLAIN}connect = true\nqueues = 2\nmtu = 9000\n"), NEW);
        for part in ["server=on", "queues=2", "mq=on", "host_mtu=9000"] {
            assert!(arguments.contains(part), "{part} in {arguments}");
        }
        assert!(!arguments.contains("reconnect"));
    }

    #[test]
    fn libvirt_gets_well_formed_xml() {
        let xml = interface(&endpoint(&format!("{PLAIN}queues = 4\nmtu = 1400\n")), NEW);
        assert_eq!(xml.matches('<').count(), xml.matches('>').count());
        for part in ["mode='client'", "queues='4'", "access mode='shared'"] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
    }

    #[test]
    fn whoever_has_libvirt_is_told_how_its_guests_may_connect() {
        assert!(interface(&endpoint(PLAIN), NEW).contains("access = { group = "));
        for let_in in ["access = { group = \"kvm\" }\n", "access = { mode = \"0666\" }\n", "connect = true\n"] {
            assert!(!interface(&endpoint(&format!("{PLAIN}{let_in}")), NEW).contains("cannot connect"), "{let_in}");
        }
    }

    #[test]
    fn whoever_has_libvirt_is_told_that_a_domain_waits_for_memlane() {
        assert!(interface(&endpoint(PLAIN), NEW).contains("`virsh start` waits for it"));
        assert!(interface(&endpoint(PLAIN), NEW).contains("Before=virtqemud.service"));
        assert!(!interface(&endpoint(&format!("{PLAIN}connect = true\n")), NEW).contains("virsh start"));
    }

    #[test]
    fn whoever_has_libvirt_is_told_which_folder_is_shut() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("web.sock");
        let text = PLAIN.replace("/run/web.sock", socket.to_str().unwrap()) + "access = { group = \"4243\" }\n";
        let mode = |mode| std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o700);
        assert!(
            interface(&endpoint(&text), NEW).contains(&format!("group 4243 may connect to {}, but cannot enter", socket.display()))
        );
        mode(0o711);
        assert!(!interface(&endpoint(&text), NEW).contains("cannot enter"));
    }

    #[test]
    fn libvirt_is_told_of_an_mtu_in_a_way_that_starts() {
        let xml = interface(&endpoint(&format!("{}mtu = 1400\n", PLAIN.replace("web\"", "web--1.x\""))), NEW);
        assert!(!xml.contains("<mtu"), "{xml}");
        assert_eq!(xml.matches("'ua-web__1_x'").count(), 2, "{xml}");
        assert!(xml.contains("name='host_mtu' type='unsigned' value='1400'"), "{xml}");
        assert_eq!(xml.matches("--").count(), 2, "{xml}");
        let both = interface(&endpoint(&format!("{PLAIN}mtu = 1400\n")), OLD);
        assert!(both.contains("for host_mtu and vectors (") && both.contains("name='vectors' type='unsigned' value='0'"), "{both}");
        assert!(interface(&endpoint(PLAIN), OLD).contains("<alias name='ua-web'/>"));
    }
}
