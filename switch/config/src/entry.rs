//! A port as the file states it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::way_out::Forward;
use crate::link::Impairment;
use crate::policy::rules::{AllowedPair, Inside, Service};
use crate::policy::{AntiSpoof, DEFAULT_STORM, Limit, PortLimits, Reserved};
use crate::port::settings::PortSettings;
use crate::quantity;
use memlane_backends::listener::Second;
use memlane_backends::stream::checksums::Checksums;
use memlane_backends::vhost_user::access::Access;
use memlane_model::vlans::VlanRange;

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
    /// Whether the guest's memory is filled by its monitor while it runs (lazy restore, postcopy): queues then wait for pages that are
    /// not there, where they would be taken for fresh ones.
    pub lazy_memory: bool,
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
            lazy_memory: false,
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
