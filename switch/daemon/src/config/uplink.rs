//! Settings of a segment's uplink to other hosts.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::SegmentEntry;

/// Bytes that VXLAN over IPv4 adds to a frame's payload, by which the underlay's MTU has to be larger (RFC 7348: the inner
/// Ethernet header, VXLAN, UDP and IPv4 headers).
pub const OVERHEAD: u32 = 14 + 8 + 8 + 20;
/// UDP port of VXLAN (IANA).
pub const UDP_PORT: u16 = 4789;

/// MTU of a segment with a NIC as its uplink, unless it is configured: that of Ethernet.
pub const ETHERNET_MTU: u16 = 1500;

/// A checked uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct UplinkConfig {
    /// Name of its segment.
    pub segment: String,
    /// Name of the NIC that is the uplink. VXLAN and its devices are not used then, and their names are empty.
    #[serde(default)]
    pub nic: Option<String>,
    /// VXLAN network identifier, of 24 bits and not 0.
    pub vni: u32,
    /// This host's address on the underlay. Not needed if the VXLAN device exists already.
    pub local: Option<Ipv4Addr>,
    /// UDP port of VXLAN at all hosts.
    pub udp_port: u16,
    /// Network namespace of the devices, by its name under `/run/netns`.
    pub netns: Option<String>,
    /// MTU of the segment; by default the underlay's less the overhead.
    pub mtu: Option<u16>,
    /// Name of the TAP device.
    pub tap: String,
    /// Name of the bridge.
    pub bridge: String,
    /// Name of the VXLAN device.
    pub vxlan: String,
}

impl UplinkConfig {
    /// The uplink of `entry`, if it has one and the required keys. Default names of devices contain the VNI, which has eight
    /// digits at most: no name is longer than interfaces' may be.
    pub fn of(entry: &SegmentEntry) -> Option<Self> {
        if entry.nic.is_some() {
            return Self::of_nic(entry);
        }
        let (segment, vni) = (entry.name.clone()?, entry.vni?);
        let name = |stated: &Option<String>, kind: &str| stated.clone().unwrap_or_else(|| format!("ml-{kind}{vni}"));
        entry.uplink.then(|| Self {
            segment,
            nic: None,
            vni,
            local: entry.local,
            udp_port: entry.udp_port,
            netns: entry.netns.clone(),
            mtu: entry.mtu,
            tap: name(&entry.tap, "tap"),
            bridge: name(&entry.bridge, "br"),
            vxlan: name(&entry.vxlan, "vx"),
        })
    }

    /// The uplink of `entry` by its NIC.
    fn of_nic(entry: &SegmentEntry) -> Option<Self> {
        Some(Self {
            segment: entry.name.clone()?,
            nic: entry.nic.clone(),
            vni: 0,
            local: None,
            udp_port: entry.udp_port,
            netns: entry.netns.clone(),
            mtu: entry.mtu,
            tap: String::new(),
            bridge: String::new(),
            vxlan: String::new(),
        })
    }

    /// The namespace as text, empty for memlane's own.
    pub fn namespace(&self) -> &str {
        self.netns.as_deref().unwrap_or_default()
    }
}
