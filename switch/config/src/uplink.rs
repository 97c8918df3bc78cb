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

/// A checked uplink of a segment to other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkConfig {
    /// By the kernel's VXLAN.
    Vxlan(VxlanConfig),
    /// By a NIC of this host.
    Nic(NicConfig),
}

/// An uplink by the kernel's VXLAN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VxlanConfig {
    /// Name of its segment.
    pub segment: String,
    /// VXLAN network identifier, of 24 bits and not 0.
    pub vni: u32,
    /// Address of this host on the underlay. Not needed if the VXLAN device exists already.
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

/// An uplink by a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NicConfig {
    /// Name of its segment.
    pub segment: String,
    /// Name of the interface.
    pub nic: String,
    /// Network namespace of the device, by its name under `/run/netns`.
    pub netns: Option<String>,
    /// MTU of the segment; by default Ethernet's.
    pub mtu: Option<u16>,
}

impl UplinkConfig {
    /// The uplink of `entry`, if it has one and the required keys.
    pub fn of(entry: &SegmentEntry) -> Option<Self> {
        match &entry.nic {
            Some(nic) => Some(Self::Nic(NicConfig {
                segment: entry.name.clone()?,
                nic: nic.clone(),
                netns: entry.netns.clone(),
                mtu: entry.mtu,
            })),
            None if entry.uplink => VxlanConfig::of(entry).map(Self::Vxlan),
            None => None,
        }
    }

    /// Name of its segment.
    pub fn segment(&self) -> &str {
        match self {
            Self::Vxlan(VxlanConfig { segment, .. }) | Self::Nic(NicConfig { segment, .. }) => segment,
        }
    }

    /// Network namespace of its devices.
    pub fn netns(&self) -> Option<&str> {
        match self {
            Self::Vxlan(VxlanConfig { netns, .. }) | Self::Nic(NicConfig { netns, .. }) => netns.as_deref(),
        }
    }

    /// The configured MTU of the segment.
    pub fn mtu(&self) -> Option<u16> {
        match self {
            Self::Vxlan(VxlanConfig { mtu, .. }) | Self::Nic(NicConfig { mtu, .. }) => *mtu,
        }
    }
}

impl VxlanConfig {
    /// Default names of devices contain the VNI, which has eight digits at most: no name is longer than interfaces' may be.
    fn of(entry: &SegmentEntry) -> Option<Self> {
        let (segment, vni) = (entry.name.clone()?, entry.vni?);
        let name = |stated: &Option<String>, kind: &str| stated.clone().unwrap_or_else(|| format!("ml-{kind}{vni}"));
        Some(Self {
            segment,
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

    /// The namespace as text, empty for memlane's own.
    pub fn namespace(&self) -> &str {
        self.netns.as_deref().unwrap_or_default()
    }
}
