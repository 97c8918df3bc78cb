//! The configuration file as types, from which its JSON Schema is generated.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::later::Later;
use super::lines::FileLines;
use super::names::{self, NamesConfig, RefusedNames};
use super::resolver::Resolver;
use super::uplink::UDP_PORT;
use super::way_out::Forward;
use crate::link::Impairment;
use crate::policy::rules::{AllowedPair, Inside, Prefix, Service};
use crate::policy::{AntiSpoof, DEFAULT_STORM, Limit, PortLimits, Reserved};
use crate::port::settings::PortSettings;
use crate::quantity;
use crate::settings::Poll;
use memlane_backends::door::Second;
use memlane_backends::stream::checksums::Checksums;
use memlane_backends::vhost_user::access::Access;
use memlane_model::policy::PolicyRule;
use memlane_model::vlans::VlanRange;

/// A memlane network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Document {
    /// Name of the network; by default the name of the file.
    pub name: Option<String>,
    /// Number of worker threads, which own the virtqueues and forward frames.
    #[schemars(range(min = 1, max = 64))]
    pub workers: usize,
    /// CPU affinity: CPUs that the workers are tied to, in turn; by default none.
    pub cpus: Vec<usize>,
    /// When idle workers use busy polling instead of sleeping. By default "adaptive"; "never" with Xen guests, because a domain
    /// cannot see whether another one needs its CPU.
    pub poll: Option<Poll>,
    /// Whether guests are offered IN_ORDER: faster for guests that poll (DPDK), but a frame to a full receive queue then
    /// blocks the frames behind it (head-of-line blocking). By default only with poll = "always".
    pub in_order: Option<bool>,
    /// Path of the control socket, relative to the file's folder; by default one in the user's run-time folder, see `memlane
    /// list`.
    pub control: Option<PathBuf>,
    /// Read-only endpoint for Prometheus metrics, beside the control socket: a Unix socket relative to the file's folder, as
    /// "unix:net.metrics", or an address, as "127.0.0.1:9891"; by default none.
    pub metrics: Option<String>,
    /// Access rights of the metrics' Unix socket, as { group = "prometheus" }; by default only the user that runs memlane.
    pub metrics_access: Access,
    /// Labels of ports that metrics have, as ["task"]: the metric memlane_port_labels has label_task; by default none. Other characters than letters and
    /// digits become "_".
    pub metrics_labels: Vec<String>,
    /// Address of the web page, as "127.0.0.1:9892"; by default none. Without `web-token`, only this host's own addresses (127.0.0.1,
    /// ::1), the page is read-only, and every user of the host can read it.
    pub web: Option<String>,
    /// File with a token, relative to the file's folder: the web page then asks for it, and can enable, disable and capture ports.
    pub web_token: Option<PathBuf>,
    /// Access rights of the ports' sockets, as { group = "libvirt-qemu" }; by default only the user that runs memlane.
    pub access: Access,
    /// Rights that the sandbox keeps for ports attached later, as { kinds = ["tap"], folders = ["/run/vms"] }; by default only those
    /// that the ports of the file need.
    pub sandbox: Later,
    /// Stall timeout in milliseconds: frames are dropped if their receiver has taken none for so long.
    #[serde(deserialize_with = "quantity::read_milliseconds")]
    #[schemars(range(min = 1, max = 60000), transform = quantity::or_text("milliseconds"))]
    pub stall_timeout_ms: u64,
    /// Most frames blocked by full receive queues at one worker. They stay in their senders' memory.
    #[schemars(range(min = 64, max = 1048576))]
    pub waiting_frames: usize,
    /// Dynamic threshold: fraction of a sender's transmit queue that frames for one busy receiver may occupy, 0.05 to 0.95.
    #[serde(deserialize_with = "read_share")]
    #[schemars(range(min = 0.05, max = 0.95), transform = quantity::or_text("share"))]
    pub share: f32,
    /// MAC aging time in seconds: a learned address is removed from the forwarding table after this silence.
    #[serde(deserialize_with = "quantity::read_seconds")]
    #[schemars(range(min = 1, max = 1000000), transform = quantity::or_text("seconds"))]
    pub age: u32,
    /// MAC moves between ports in ten seconds after which an address is held at one port for ten seconds, as in a loop; 0 for no
    /// limit, for a guest that sends from one address through two ports in turn (bonding in mode balance-rr).
    #[schemars(range(max = 65535))]
    pub address_moves: u16,
    /// Most MiB of the switch's own memory for frames that cannot wait in a guest's memory: those from TAPs, and in flight on
    /// emulated links.
    #[serde(deserialize_with = "quantity::read_mebibytes")]
    #[schemars(range(min = 1, max = 1048576), transform = quantity::or_text("mebibytes"))]
    pub memory_mib: u64,
    /// Most GiB of guest memory mapped by all ports together; a port gets no more than the others leave. By default eight times
    /// the host's memory.
    #[serde(deserialize_with = "quantity::read_some_gibibytes")]
    #[schemars(range(min = 1, max = 65536), transform = quantity::or_text("gibibytes"))]
    pub guest_memory_gib: Option<u64>,
    /// Most GiB of guest memory of one port; by default the host's memory.
    #[serde(deserialize_with = "quantity::read_some_gibibytes")]
    #[schemars(range(min = 1, max = 65536), transform = quantity::or_text("gibibytes"))]
    pub port_memory_gib: Option<u64>,
    /// Whether vifs of Xen guests with the script vif-memlane get a port as they are created, on the segment that their `bridge`
    /// names.
    pub xen_vifs: bool,
    /// Policy: rules about frames between ports of a segment, in the order in which they are tried.
    pub policy: Vec<PolicyRule>,
    /// Segments with settings of their own; other segments need no entry.
    pub segment: Vec<SegmentEntry>,
    /// The ports.
    pub port: Vec<PortEntry>,
    /// Lines of the file, if it was read from one.
    #[serde(skip)]
    pub lines: FileLines,
}

fn read_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    quantity::read_share(deserializer).map(|share| share as f32)
}

impl Document {
    /// The polling mode: as configured, or the default.
    pub fn poll(&self) -> Poll {
        let xen = self.xen_vifs || self.port.iter().any(|port| port.xen.is_some());
        self.poll.unwrap_or(if xen { Poll::Never } else { Poll::default() })
    }
}

impl Default for Document {
    fn default() -> Self {
        let settings = crate::settings::Settings::default();
        Self {
            name: None,
            workers: 1,
            cpus: Vec::new(),
            poll: None,
            in_order: None,
            control: None,
            metrics: None,
            metrics_access: Access::default(),
            metrics_labels: Vec::new(),
            web: None,
            web_token: None,
            access: Access::default(),
            sandbox: Later::default(),
            stall_timeout_ms: settings.stall_timeout.as_millis() as u64,
            waiting_frames: settings.wait_queue,
            share: settings.share,
            age: settings.age,
            address_moves: settings.moves,
            memory_mib: settings.memory >> 20,
            guest_memory_gib: None,
            port_memory_gib: None,
            xen_vifs: false,
            policy: Vec::new(),
            segment: Vec::new(),
            port: Vec::new(),
            lines: FileLines::default(),
        }
    }
}

/// A segment with settings of its own. With a subnet, memlane gives its guests addresses and names. With an uplink to other hosts, it creates a TAP port, a
/// bridge and a VXLAN device for it, and removes them when it ends. FRR, configured by `memlane evpn`, exchanges MAC addresses between hosts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SegmentEntry {
    /// Name of the segment, as its ports state it.
    pub name: Option<String>,
    /// Frames to IP multicast groups: "flood", to all ports, or "snoop", to those with guests that report the group by IGMP or MLD, to routers
    /// and uplinks. memlane then asks the guests for reports. Never filtered are 224.0.0.0/24, ff02::1, solicited-node groups, and frames
    /// with VLAN tags.
    pub multicast: Multicast,
    /// IPv4 subnet, as "10.0.0.0/24". memlane then answers DHCP on the segment, and DNS queries for PORT.lan, at the subnet's first
    /// address. A port's guest gets the first of its `addresses` in the subnet, else a lease, which only this port can have, of an
    /// address that no other guest is seen to use. Requests to DHCP servers reach memlane and ports with `may-serve` only.
    pub subnet: Option<Prefix>,
    /// IPv6 subnet of 64 bits, as "fd00::/64": the same by router advertisements (SLAAC, without a default router) and DHCPv6.
    pub subnet6: Option<Prefix>,
    /// Domain of the names of ports, by default "lan".
    pub domain: Option<String>,
    /// IPv4 address of a default router, of which guests are told by DHCP; by default none.
    pub router: Option<Ipv4Addr>,
    /// DNS servers for names outside, at most 3: "host" for those of this host, or addresses, with a port as "192.0.2.53:5353". memlane's own
    /// server asks them for guests, from a process of its own, and tells guests of itself alone; of servers with an address in the subnets it
    /// tells guests, and does not ask them. Where policy rules of a port have DNS names, or a default refuses the rest, memlane asks for the names
    /// that they allow alone. By default guests are told of this host's servers where the segment has a way out (`router`, `nic` or a passt
    /// port), without its loopback addresses, else of none.
    #[schemars(length(max = 3))]
    pub dns: Option<Vec<Resolver>>,
    /// How a guest is told that policy rules refuse a DNS name: "missing", as one that does not exist (NXDOMAIN), which is the default, or "refused",
    /// after which clients ask their next server.
    pub refused_names: Option<RefusedNames>,
    /// Whether the segment extends to other hosts by VXLAN. Needs CAP_NET_ADMIN.
    pub uplink: bool,
    /// Name of a NIC by which the segment extends to the network there, instead of VXLAN: by AF_XDP, or by AF_PACKET where driver or kernel lack
    /// that. All of its frames are memlane's, so the host has no address there. The uplink waits while the NIC is missing.
    pub nic: Option<String>,
    /// VXLAN network identifier (VNI), the same at all hosts.
    #[schemars(range(min = 1, max = 16777215))]
    pub vni: Option<u32>,
    /// This host's IPv4 address on the underlay, the network between the hosts. Required unless `vxlan` names an existing device.
    pub local: Option<Ipv4Addr>,
    /// UDP port of VXLAN at all hosts.
    #[schemars(range(min = 1))]
    pub udp_port: u16,
    /// Network namespace of the devices or the NIC, by its name under /run/netns.
    pub netns: Option<String>,
    /// MTU of the segment, offered to guests of ports without `mtu`; by default the underlay's less 50, and 1500 with `nic`.
    #[schemars(range(min = 68, max = 65485))]
    pub mtu: Option<u16>,
    /// Whether the switch answers ARP requests and neighbour solicitations for machines that it knows, instead of flooding them (ARP
    /// and ND suppression, RFC 9161). By default it does on segments with a subnet, or with `addresses` at a port. Malformed ones are forwarded
    /// like other frames.
    pub neighbour_suppression: Option<bool>,
    /// Name of the TAP device; by default ml-tapVNI.
    pub tap: Option<String>,
    /// Name of the bridge; by default ml-brVNI. An existing one is used and not removed.
    pub bridge: Option<String>,
    /// Name of the VXLAN device; by default ml-vxVNI. An existing one is used and not removed.
    pub vxlan: Option<String>,
}

/// Value of the key `multicast`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Multicast {
    /// To all ports.
    #[default]
    Flood,
    /// To the members of the group.
    Snoop,
}

impl SegmentEntry {
    /// Its responder, if it has a subnet.
    pub fn names(&self) -> Option<NamesConfig> {
        let subnet = self.subnet.and_then(|subnet| names::subnet4(subnet).ok());
        let subnet6 = self.subnet6.and_then(|subnet| names::subnet6(subnet).ok());
        let has_subnet = subnet.is_some() || subnet6.is_some();
        let is_inside =
            |address: &IpAddr| [self.subnet, self.subnet6].into_iter().flatten().any(|subnet| subnet.contains(*address));
        let inside = |resolver: Resolver| resolver.usual().filter(is_inside);
        has_subnet.then(|| NamesConfig {
            segment: self.name.clone().unwrap_or_default(),
            subnet,
            subnet6,
            domain: self.domain.clone().unwrap_or_else(|| names::DOMAIN.into()),
            router: self.router,
            dns: self.dns.as_ref().map(|all| all.iter().filter_map(|one| inside(*one)).collect()),
            resolvers: self.dns.iter().flatten().filter(|one| inside(**one).is_none()).copied().collect(),
            refused_names: self.refused_names.unwrap_or_default(),
        })
    }
}

impl Default for SegmentEntry {
    fn default() -> Self {
        Self {
            name: None,
            multicast: Multicast::Flood,
            subnet: None,
            subnet6: None,
            domain: None,
            router: None,
            dns: None,
            refused_names: None,
            uplink: false,
            nic: None,
            vni: None,
            local: None,
            udp_port: UDP_PORT,
            netns: None,
            mtu: None,
            neighbour_suppression: None,
            tap: None,
            bridge: None,
            vxlan: None,
        }
    }
}

/// A port, of one kind: `vhost-user`, `tap`, `af-packet`, `xen`, `stream`, `passt`, `null` or `loopback`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PortEntry {
    /// Name of the port, unique in the network.
    pub name: Option<String>,
    /// Path of a vhost-user socket, relative to the file's folder. memlane listens there.
    pub vhost_user: Option<PathBuf>,
    /// Access rights of the port's socket; by default those at the top of the file.
    pub access: Access,
    /// Whether memlane connects to the vhost-user or stream socket instead of listening; it retries until the other side listens.
    pub connect: bool,
    /// A second front end that connects while the port has one: "refuse", or "replace" for one that takes over from the first, as in a
    /// migration on one host: the first one's virtqueues stop, then the second is served.
    pub second: Second,
    /// Name of a TAP device, which is created if it does not exist.
    pub tap: Option<String>,
    /// Name of an existing Ethernet interface, as one end of a container's veth pair: memlane sends and receives its frames by a packet
    /// socket (AF_PACKET), with all offloads. The port waits while the interface is missing. Needs CAP_NET_RAW.
    pub af_packet: Option<String>,
    /// Network namespace of the TAP device, or of the interface of `af-packet`.
    pub netns: Option<String>,
    /// Xen domain of the guest, by name or number. memlane serves one of its network interfaces in place of the kernel's
    /// xen-netback.
    pub xen: Option<String>,
    /// Number of the Xen domain's interface, from 0 on.
    pub vif: u16,
    /// Path of a Unix stream socket, relative to the file's folder, that carries length-prefixed Ethernet frames (QEMU `-netdev
    /// stream`). memlane listens there.
    pub stream: Option<PathBuf>,
    /// Checksums of frames from a stream: "partial" to complete those that a sender left to the device, as libkrun's passt interface does,
    /// "keep" to leave these too, or "complete" to compute all.
    pub checksums: Checksums,
    /// passt(1) as the port's other side: access to the host's network without root. Either true, or a list of arguments for passt, as
    /// ["--outbound-if4", "eth0"]. On a segment with a `subnet` the port is the router of all guests, by IPv4, at the first of its `addresses`, else at
    /// `router`, else at the subnet's last address; else passt serves one guest, with DHCP and DNS.
    pub passt: Option<PasstEntry>,
    /// Ports of the host that passt forwards to guests of the segment, which has a `subnet`, as [{ port = 8080, to = "web:80" }].
    pub forward: Vec<Forward>,
    /// No guest: the port accepts every frame and sends none.
    pub null: bool,
    /// No guest: the port sends each frame for its MAC address back to its source.
    pub loopback: bool,
    /// Segment (broadcast domain) of the port, by default "lan": ports of a segment reach each other.
    pub segment: String,
    /// Whether the port forwards frames. A disabled port neither transmits nor receives.
    pub enabled: bool,
    /// MAC address of the guest. Offered to it, and refused as a source at other ports.
    pub mac: Option<String>,
    /// MTU offered to the guest.
    #[schemars(range(min = 68, max = 65535))]
    pub mtu: Option<u16>,
    /// Receive offloads: whether the guest may receive GSO frames and partial checksums, as Linux can; false for a guest that
    /// attaches XDP programs.
    pub receive_offloads: bool,
    /// Queue pairs, where the front end does not set their number.
    #[schemars(range(min = 1, max = 16))]
    pub queues: u16,
    /// Weight for fair queueing at a busy receiver, relative to other senders.
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
    /// Transmit rate limit (guest to switch), as { rate = "1Gbit", packets = 100000, burst-ms = 20 } or "1Gbit,100kpps"; by
    /// default none.
    #[serde(deserialize_with = "Limit::read")]
    #[schemars(transform = quantity::or_text("limit"))]
    pub transmit: Limit,
    /// Receive rate limit (switch to guest), in the same form.
    #[serde(deserialize_with = "Limit::read")]
    #[schemars(transform = quantity::or_text("limit"))]
    pub receive: Limit,
    /// Most flooded frames (broadcast, multicast, unknown unicast) that the port may send per second; 0 for no limit. By default
    /// 200000, and no limit on a segment of two ports, where they reach one receiver.
    pub storm: u64,
    /// Filter of the guest's addresses. "off": frames from MAC addresses that are tied to other ports are dropped. "mac": all that
    /// are not from the port's `mac` (without it, of a vhost-user or stream port, from the address that memlane prints for the guest) or
    /// one of `allowed`. "all": also frames with other IP addresses than those that `addresses` and `allowed` name and memlane leased
    /// (source of IPv4 and IPv6, sender of ARP, neighbour discovery), DHCP answers, router advertisements and redirects.
    /// Always allowed are DHCP requests and the link-local address made of the MAC address; with `subnet6` also addresses of it and link-local
    /// ones for which the guest is the first to probe: at most 32, and one that was not seen for 10 minutes ends for a new one.
    pub anti_spoof: AntiSpoof,
    /// IP addresses of the guest, as ["10.0.0.5", "fd00::5"]; no other port of the segment may have them. They lie in the segment's `subnet`.
    pub addresses: Vec<IpAddr>,
    /// Addresses that the guest has inside, as { mac = "02:00:00:00:00:01", addresses = ["10.0.0.5"] }: for a guest that was restored from a
    /// snapshot, as others were. memlane exchanges them for `mac` and `addresses` in each frame, so that others know the guest by these alone; all
    /// other keys and rules are about these, too. A machine that really has the addresses inside appears to the guest under its own outside.
    pub inside: Option<Inside>,
    /// The same, with the addresses of this port's guest inside. They are looked up once: the port may go.
    pub twin_of: Option<String>,
    /// Further addresses that the guest may use, also beside others: of a VRRP router, as { mac = "00:00:5e:00:01:07", ip =
    /// "10.0.0.100" }, or of machines behind a router, as { ip = "10.1.0.0/16" }.
    pub allowed: Vec<AllowedPair>,
    /// Services that the guest may offer with anti-spoof = "all": "dhcp" for DHCP and DHCPv6, "ra" for router advertisements.
    pub may_serve: Vec<Service>,
    /// Isolation: the port exchanges frames only with ports of the segment that are not isolated.
    pub isolated: bool,
    /// Frames to the reserved group addresses 01:80:c2:00:00:00 to 0f (spanning tree, LACP, 802.1X, LLDP), in both directions: "pass"
    /// or "drop". By default they pass, except at tap ports, so that no guest changes a bridge of the host.
    pub reserved: Option<Reserved>,
    /// VLAN of the port's frames without a tag. Alone, it makes an access port, which carries no other; with `trunk` it is the
    /// native VLAN. A port with neither key carries frames as they are.
    #[schemars(range(min = 1, max = 4094))]
    pub vlan: Option<u16>,
    /// VLANs that the port carries with tags, as [10, 20, "100-199"].
    pub trunk: Vec<VlanRange>,
    /// Groups by which the rules of `[[policy]]` name the port, as ["web", "front"].
    pub groups: Vec<String>,
    /// Most addresses that memlane leases to machines behind the port, of each IP version, on a segment with a subnet; by default half of those that
    /// are free. One address is kept for each other port that has none, and no running lease is ended for another.
    #[schemars(range(min = 1, max = 1024))]
    pub leases: Option<u32>,
    /// Labels, as { pod = "shop/web-0", owner = "ann" }: reports, events and `memlane ls --label` have them, and nothing else depends on
    /// them.
    pub labels: BTreeMap<String, String>,
    /// Link emulation for frames to this port (receive direction), as { delay = "10ms", jitter = "2ms", loss = "1%", rate =
    /// "100Mbit" }.
    #[serde(deserialize_with = "Impairment::read")]
    #[schemars(transform = quantity::or_none)]
    pub link: Option<Impairment>,
}

/// Value of the key `passt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PasstEntry {
    /// Whether passt is used.
    Plain(bool),
    /// passt is used, with these arguments.
    With(Vec<String>),
}

impl PortEntry {
    /// Keys that determine the kind of a port.
    pub const KINDS: [&str; 8] = ["vhost-user", "tap", "af-packet", "xen", "stream", "passt", "null", "loopback"];

    /// Keys of [`Self::KINDS`] that the port has; a valid one has one.
    pub fn kinds(&self) -> Vec<&'static str> {
        let passt = !matches!(self.passt, None | Some(PasstEntry::Plain(false)));
        let there = [
            self.vhost_user.is_some(),
            self.tap.is_some(),
            self.af_packet.is_some(),
            self.xen.is_some(),
            self.stream.is_some(),
            passt,
            self.null,
            self.loopback,
        ];
        Self::KINDS.into_iter().zip(there).filter_map(|(key, there)| there.then_some(key)).collect()
    }

    /// The settings that may change while the port runs; the entry must be checked.
    pub(super) fn settings(&self) -> PortSettings {
        PortSettings {
            enabled: self.enabled,
            mac: self.mac.as_deref().and_then(|mac| mac.parse().ok()),
            mtu: self.mtu,
            limits: PortLimits {
                weight: self.weight,
                transmit: self.transmit.clone(),
                receive: self.receive.clone(),
                storm: self.storm,
                anti_spoof: self.anti_spoof,
                addresses: self.addresses.clone(),
                inside: self.inside.clone(),
                allowed: self.allowed.clone(),
                may_serve: self.may_serve.clone(),
                isolated: self.isolated,
                reserved: self.reserved,
                vlan: self.vlan,
                trunk: self.trunk.clone(),
                groups: self.groups.clone(),
                leases: self.leases,
                labels: self.labels.clone(),
            },
            link: self.link.clone().filter(|link| *link != Impairment::default()),
        }
    }

    /// States `settings`, so that [`Self::settings`] returns them.
    pub(super) fn state(&mut self, settings: &PortSettings) {
        let PortSettings { enabled, mac, mtu, limits, link } = settings.clone();
        let PortLimits {
            weight,
            transmit,
            receive,
            storm,
            anti_spoof,
            addresses,
            inside,
            allowed,
            may_serve,
            isolated,
            reserved,
            vlan,
            trunk,
            groups,
            leases,
            labels,
        } = limits;
        (self.enabled, self.mac, self.mtu, self.link) = (enabled, mac.map(|mac| mac.to_string()), mtu, link);
        (self.weight, self.transmit, self.receive) = (weight, transmit, receive);
        (self.storm, self.anti_spoof) = (storm, anti_spoof);
        (self.addresses, self.inside, self.allowed, self.may_serve) = (addresses, inside, allowed, may_serve);
        (self.isolated, self.reserved, self.vlan, self.trunk) = (isolated, reserved, vlan, trunk);
        (self.groups, self.leases, self.labels) = (groups, leases, labels);
    }
}

impl Default for PortEntry {
    fn default() -> Self {
        Self {
            name: None,
            vhost_user: None,
            access: Access::default(),
            connect: false,
            tap: None,
            af_packet: None,
            netns: None,
            xen: None,
            vif: 0,
            stream: None,
            checksums: Checksums::default(),
            passt: None,
            forward: Vec::new(),
            null: false,
            loopback: false,
            segment: "lan".into(),
            enabled: true,
            mac: None,
            mtu: None,
            second: Second::default(),
            receive_offloads: true,
            queues: 1,
            weight: 1,
            transmit: Limit::default(),
            receive: Limit::default(),
            storm: DEFAULT_STORM,
            anti_spoof: AntiSpoof::default(),
            addresses: Vec::new(),
            inside: None,
            twin_of: None,
            allowed: Vec::new(),
            may_serve: Vec::new(),
            isolated: false,
            reserved: None,
            vlan: None,
            trunk: Vec::new(),
            groups: Vec::new(),
            leases: None,
            labels: BTreeMap::new(),
            link: None,
        }
    }
}

/// The JSON Schema of the file.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Document)
}

/// The same, made once, for look-ups of a key's type.
pub(super) fn schema_value() -> &'static serde_json::Value {
    static SCHEMA: OnceLock<serde_json::Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schema().to_value())
}
