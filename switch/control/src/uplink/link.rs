//! A network device as described by rtnetlink, as far as uplinks need it.

use std::net::Ipv4Addr;

use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkDevice {
    /// Interface index.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// MTU in bytes, without Ethernet's header.
    pub mtu: u32,
    /// The bridge, or other device, that it is attached to.
    pub controller: Option<u32>,
    /// The alias set by its creator.
    pub alias: Option<String>,
    /// Whether it is up.
    pub is_up: bool,
    /// Whether it is the loopback device.
    pub is_loopback: bool,
    /// Whether it is a bridge.
    pub is_bridge: bool,
    /// Whether it is a bridge with VLAN filtering.
    pub vlan_filtering: bool,
    /// Settings of the device if it is a VXLAN device.
    pub vxlan: Option<Vxlan>,
    /// Whether its bridge does MAC learning from frames of this port.
    pub learning: bool,
    /// Whether its bridge answers ARP and ND for known addresses behind this port.
    pub suppress: bool,
}

/// Settings of a VXLAN device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier.
    pub vni: u32,
    /// Source address of its tunnels.
    pub local: Option<Ipv4Addr>,
    /// UDP port on which it receives.
    pub udp_port: u16,
    /// Whether it does MAC learning from frames, instead of by EVPN.
    pub learning: bool,
}

impl NetworkDevice {
    /// Parses the kernel's `message`.
    pub fn of(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            is_up: flags.contains(LinkFlags::Up),
            is_loopback: flags.contains(LinkFlags::Loopback),
            ..Self::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::LinkInfo(info) => info.into_iter().for_each(|info| link.inform(info)),
                _ => {}
            }
        }
        link
    }

    fn inform(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.is_bridge = kind == InfoKind::Bridge,
            LinkInfo::Data(InfoData::Bridge(all)) => self.vlan_filtering = all.contains(&InfoBridge::VlanFiltering(true)),
            LinkInfo::Data(InfoData::Vxlan(all)) => self.vxlan = Some(Vxlan::of(&all)),
            LinkInfo::PortData(InfoPortData::BridgePort(all)) => {
                self.learning = all.contains(&InfoBridgePort::Learning(true));
                self.suppress = all.contains(&InfoBridgePort::NeighSupress(true));
            }
            _ => {}
        }
    }
}

impl Vxlan {
    fn of(all: &[InfoVxlan]) -> Self {
        let mut vxlan = Self::default();
        for info in all {
            match *info {
                InfoVxlan::Id(vni) => vxlan.vni = vni,
                InfoVxlan::Local(local) => vxlan.local = Some(local),
                InfoVxlan::Port(port) => vxlan.udp_port = port,
                InfoVxlan::Learning(learning) => vxlan.learning = learning,
                _ => {}
            }
        }
        vxlan
    }
}
