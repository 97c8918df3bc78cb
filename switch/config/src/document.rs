//! The configuration file as types, from which its JSON Schema is generated.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::entry::PortEntry;
use super::later::Later;
use super::lines::FileLines;
use super::names::{self, NamesConfig, RefusedNames};
use super::resolver::Resolver;
use super::uplink::UDP_PORT;
use crate::policy::rules::Prefix;
use crate::quantity;
use crate::settings::Poll;
use memlane_backends::vhost_user::access::Access;
use memlane_model::policy::PolicyRule;

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
    /// server asks them for guests, from a process of its own; guests are told of it first, and of servers at port 53 behind it, which a guest asks
    /// if this host reaches none. Servers with an address in the subnets it does not ask. Where policy rules of a port have DNS names, or a default
    /// refuses the rest, memlane asks for the names that they allow alone, and guests are told of no other server. By default guests are told of this host's servers where the segment has a way out (`router`, `nic` or a passt
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
    /// Responder of the segment, if it has a subnet.
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

/// The JSON Schema of the file.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Document)
}

/// The same, made once, for look-ups of a key's type.
pub(super) fn schema_value() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schema().to_value())
}

/// The alternatives of `schema`: references followed, side by side, without null.
pub(super) fn alternatives<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s Value> {
    if let Some(name) = schema["$ref"].as_str() {
        return alternatives(root, root.pointer(name.trim_start_matches('#')).unwrap_or(&Value::Null));
    }
    let several = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
    match several {
        Some(several) => several.iter().flat_map(|one| alternatives(root, one)).collect(),
        None if schema["type"] == "null" => Vec::new(),
        None => vec![schema],
    }
}

/// Whether `schema`, one of [`alternatives`], is for values of the type `name`.
pub(super) fn is_of(schema: &Value, name: &str) -> bool {
    schema["type"] == name || schema["type"].as_array().is_some_and(|types| types.iter().any(|one| one == name))
}

/// The words that a string may be, if `schema` enumerates them.
pub(super) fn words_of(schema: &Value) -> Vec<&str> {
    let several = schema["enum"].as_array().into_iter().flatten();
    several.chain([&schema["const"]]).filter_map(Value::as_str).collect()
}
