//! What may stand in the file.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::uplink::UDP_PORT;
use crate::link::Impairment;
use crate::policy::{Allowance, AntiSpoof, DEFAULT_STORM, Limit};
use crate::quantity;
use crate::settings::Poll;
use memlane_backends::stream::checksums::Checksums;
use memlane_backends::vhost_user::access::Access;

/// A memlane network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Document {
    /// Name of the network; by default that of the file.
    pub name: Option<String>,
    /// Threads that own rings.
    #[schemars(range(min = 1, max = 64))]
    pub workers: usize,
    /// CPUs that the workers are tied to, in turn; by default none.
    pub cpus: Vec<usize>,
    /// When a worker looks for work instead of sleeping. By default "adaptive"; "never" where guests are Xen's, for whether another domain wants the
    /// CPU cannot be seen from within one.
    pub poll: Option<Poll>,
    /// Whether guests are offered IN_ORDER: faster for guests that poll (DPDK), but a frame whose receiver has no room then holds up those
    /// behind it. By default only with poll = "always".
    pub in_order: Option<bool>,
    /// Path of the control socket, from the file's folder; by default one of its own in the user's run-time folder, see `memlane list`.
    pub control: Option<PathBuf>,
    /// Where metrics are served for Prometheus beside the control socket, where nothing can be changed: a Unix socket from the file's folder, as
    /// "unix:net.metrics", or an address, as "127.0.0.1:9891"; by default nowhere.
    pub metrics: Option<String>,
    /// Who may connect to the metrics' Unix socket, as { group = "prometheus" }; by default only who runs memlane.
    pub metrics_access: Access,
    /// Who may connect to the ports' sockets, as { group = "libvirt-qemu" }; by default only who runs memlane.
    pub access: Access,
    /// Milliseconds that a receiver may take nothing before frames that wait for it are dropped.
    #[serde(deserialize_with = "quantity::read_milliseconds")]
    #[schemars(range(min = 1, max = 60000), transform = quantity::or_text("milliseconds"))]
    pub patience_ms: u64,
    /// Most frames that may wait at one worker, in their senders' memory.
    #[schemars(range(min = 64, max = 1048576))]
    pub waiting_frames: usize,
    /// Share of a sender's ring that frames for one busy receiver may hold.
    #[serde(deserialize_with = "read_share")]
    #[schemars(range(min = 0.05, max = 0.95), transform = quantity::or_text("share"))]
    pub share: f32,
    /// Seconds after which a silent station is forgotten.
    #[serde(deserialize_with = "quantity::read_seconds")]
    #[schemars(range(min = 1, max = 1000000), transform = quantity::or_text("seconds"))]
    pub age: u32,
    /// Times that an address may move between ports in ten seconds before it is held at one of them for ten seconds, as in a loop; 0 for any number, as a
    /// guest needs that sends from one address through two ports in turn (bonding in mode balance-rr).
    #[schemars(range(max = 65535))]
    pub address_moves: u16,
    /// Most MiB of the switch's own memory that frames may take which cannot wait in a guest's: from TAPs, and under way on links.
    #[serde(deserialize_with = "quantity::read_mebibytes")]
    #[schemars(range(min = 1, max = 1048576), transform = quantity::or_text("mebibytes"))]
    pub memory_mib: u64,
    /// Most GiB of guests' memory that is mapped, of all ports together; one port gets no more than is left to the others. By default eight times the
    /// host's memory.
    #[serde(deserialize_with = "quantity::read_some_gibibytes")]
    #[schemars(range(min = 1, max = 65536), transform = quantity::or_text("gibibytes"))]
    pub guest_memory_gib: Option<u64>,
    /// Most GiB of memory that the guest of one port may have; by default the host's memory.
    #[serde(deserialize_with = "quantity::read_some_gibibytes")]
    #[schemars(range(min = 1, max = 65536), transform = quantity::or_text("gibibytes"))]
    pub port_memory_gib: Option<u64>,
    /// Whether interfaces of Xen guests whose script is vif-memlane get a port as they come, on the segment that their `bridge` names.
    pub xen_vifs: bool,
    /// Segments of which more is to be said than which ports they have.
    pub segment: Vec<SegmentEntry>,
    /// The ports.
    pub port: Vec<PortEntry>,
}

fn read_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    quantity::read_share(deserializer).map(|share| share as f32)
}

impl Document {
    /// When workers poll: as it says, or by default.
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
            access: Access::default(),
            patience_ms: settings.patience.as_millis() as u64,
            waiting_frames: settings.parking,
            share: settings.share,
            age: settings.age,
            address_moves: settings.moves,
            memory_mib: settings.memory >> 20,
            guest_memory_gib: None,
            port_memory_gib: None,
            xen_vifs: false,
            segment: Vec::new(),
            port: Vec::new(),
        }
    }
}

/// A segment that goes on at other hosts: memlane makes a TAP port, a bridge and a VXLAN device for it, and takes them away when it ends. FRR, which
/// `memlane evpn` configures, tells hosts whose machines are where.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SegmentEntry {
    /// Name of the segment, as its ports state it.
    pub name: Option<String>,
    /// Whether it goes on at other hosts. Needs CAP_NET_ADMIN.
    pub uplink: bool,
    /// VXLAN network identifier: the segment's number, the same at all hosts.
    #[schemars(range(min = 1, max = 16777215))]
    pub vni: Option<u32>,
    /// This host's IPv4 address on the underlay, the network between the hosts. Needed unless `vxlan` names a device that is there.
    pub local: Option<Ipv4Addr>,
    /// UDP port at which all hosts receive VXLAN.
    #[schemars(range(min = 1))]
    pub udp_port: u16,
    /// Network namespace of the devices, by its name under /run/netns.
    pub netns: Option<String>,
    /// MTU of the segment, offered to guests whose port states none; by default the underlay's less 50.
    #[schemars(range(min = 68, max = 65485))]
    pub mtu: Option<u16>,
    /// Name of the TAP device; by default ml-tapVNI.
    pub tap: Option<String>,
    /// Name of the bridge; by default ml-brVNI. One that is there is used, and stays.
    pub bridge: Option<String>,
    /// Name of the VXLAN device; by default ml-vxVNI. One that is there is used, and stays.
    pub vxlan: Option<String>,
}

impl Default for SegmentEntry {
    fn default() -> Self {
        Self {
            name: None,
            uplink: false,
            vni: None,
            local: None,
            udp_port: UDP_PORT,
            netns: None,
            mtu: None,
            tap: None,
            bridge: None,
            vxlan: None,
        }
    }
}

/// A place for a guest, of one kind: `vhost-user`, `tap`, `xen`, `stream`, `passt`, `null` or `loopback`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PortEntry {
    /// Name of the port, unique in the network.
    pub name: Option<String>,
    /// Path of a vhost-user socket, from the file's folder. memlane listens there.
    pub vhost_user: Option<PathBuf>,
    /// Who may connect to the port's socket, where that is not what stands at the top.
    pub access: Access,
    /// memlane connects to the vhost-user or stream socket instead, and keeps trying.
    pub connect: bool,
    /// Name of a TAP device, which is created if it does not exist.
    pub tap: Option<String>,
    /// Network namespace of the TAP device.
    pub netns: Option<String>,
    /// Name or number of a Xen domain, whose network interface the port is for. memlane serves it in place of the kernel's xen-netback.
    pub xen: Option<String>,
    /// Which of the Xen domain's interfaces, from 0 on.
    pub vif: u16,
    /// Path of a stream socket, from the file's folder, over which frames go each behind its length, as QEMU's `-netdev stream` does. memlane
    /// listens there.
    pub stream: Option<PathBuf>,
    /// What is done with the checksums of frames from a stream: "keep", or "complete" where the other side leaves them to the device, as libkrun's
    /// passt interface does.
    pub checksums: Checksums,
    /// passt(1) is behind the port: a way out of the network for guests without root, with DHCP and DNS. Either true, or a list of arguments for
    /// it, as ["--tcp-ports", "8080:80"].
    pub passt: Option<PasstEntry>,
    /// The port takes everything and sends nothing.
    pub null: bool,
    /// The port sends each frame for its address back to where it came from.
    pub loopback: bool,
    /// Name of the segment, by default "lan": ports of a segment reach each other.
    pub segment: String,
    /// Whether the port takes part. A port that is not enabled neither sends nor is sent anything.
    pub enabled: bool,
    /// MAC address of the guest. Offered to it, and refused from other ports.
    pub mac: Option<String>,
    /// MTU offered to the guest.
    #[schemars(range(min = 68, max = 65535))]
    pub mtu: Option<u16>,
    /// Whether large frames and frames without checksums may come to the guest, as Linux takes them; false for a guest that loads XDP programs.
    pub receive_offloads: bool,
    /// Queue pairs, where the front end does not decide that itself.
    #[schemars(range(min = 1, max = 16))]
    pub queues: u16,
    /// The port's share of a busy receiver, compared with other senders'.
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
    /// What the port may send, as { rate = "1Gbit", packets = 100000, burst-ms = 20 } or "1Gbit,100kpps"; by default all.
    #[serde(deserialize_with = "Limit::read")]
    #[schemars(transform = quantity::or_text("limit"))]
    pub transmit: Limit,
    /// What the port may be sent, likewise.
    #[serde(deserialize_with = "Limit::read")]
    #[schemars(transform = quantity::or_text("limit"))]
    pub receive: Limit,
    /// Flooded frames (broadcast, multicast, unknown) that the port may send a second; 0 for no limit. By default 200000, and no limit on a segment
    /// of two ports, where they reach one receiver.
    pub storm: u64,
    /// Which frames of the guest are dropped for their source: "mac" drops those that are not from the port's `mac`, "off" those from addresses that
    /// are tied to other ports only.
    pub anti_spoof: AntiSpoof,
    /// What frames to this port go through before they arrive, as { delay = "10ms", jitter = "2ms", loss = "1%", rate = "100Mbit" }.
    #[serde(deserialize_with = "Impairment::read")]
    #[schemars(transform = quantity::or_none)]
    pub link: Option<Impairment>,
}

/// Whether passt is behind a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PasstEntry {
    /// It is, or not.
    Plain(bool),
    /// It is, with these arguments.
    With(Vec<String>),
}

impl PortEntry {
    /// The keys that tell the kind of a port.
    pub const KINDS: [&str; 7] = ["vhost-user", "tap", "xen", "stream", "passt", "null", "loopback"];

    /// Those of [`Self::KINDS`] that the port has; a good one has one.
    pub fn kinds(&self) -> Vec<&'static str> {
        let passt = !matches!(self.passt, None | Some(PasstEntry::Plain(false)));
        let there = [
            self.vhost_user.is_some(),
            self.tap.is_some(),
            self.xen.is_some(),
            self.stream.is_some(),
            passt,
            self.null,
            self.loopback,
        ];
        Self::KINDS.into_iter().zip(there).filter_map(|(key, there)| there.then_some(key)).collect()
    }

    /// What the operator allows the port.
    pub fn allowance(&self) -> Allowance {
        Allowance {
            weight: self.weight,
            transmit: self.transmit.clone(),
            receive: self.receive.clone(),
            storm: self.storm,
            anti_spoof: self.anti_spoof,
        }
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
            netns: None,
            xen: None,
            vif: 0,
            stream: None,
            checksums: Checksums::Keep,
            passt: None,
            null: false,
            loopback: false,
            segment: "lan".into(),
            enabled: true,
            mac: None,
            mtu: None,
            receive_offloads: true,
            queues: 1,
            weight: 1,
            transmit: Limit::default(),
            receive: Limit::default(),
            storm: DEFAULT_STORM,
            anti_spoof: AntiSpoof::default(),
            link: None,
        }
    }
}

/// The JSON Schema of the file.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Document)
}

/// The same, made once, for those who look up what a key takes.
pub(super) fn schema_value() -> &'static serde_json::Value {
    static SCHEMA: OnceLock<serde_json::Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schema().to_value())
}
