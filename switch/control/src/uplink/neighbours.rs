//! Inbound: IP addresses of machines at other hosts. FRR enters those of EVPN's MAC/IP advertisement routes (type 2, RFC 7432, section 7.2) as
//! neighbours of the bridge, marked as learned by another program.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage};

use crate::address_map::UPLINK_QUOTA;
use crate::frame::MacAddress;

/// A machine that has an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// MAC address.
    pub mac: MacAddress,
    /// Whether it is a router (NTF_ROUTER; the R flag of RFC 9047).
    pub is_router: bool,
}

/// A change of the machine that has an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourChange {
    /// The address belongs to this machine now.
    Is(IpAddr, Machine),
    /// The address belongs to none any more.
    IsNot(IpAddr),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct RemoteNeighbours(BTreeMap<IpAddr, Machine>);

/// The IP address in `message` for the device with the index `bridge`, and the MAC address if it has one.
pub(super) fn ip_and_mac(message: &NeighbourMessage, bridge: u32) -> Option<(IpAddr, Option<MacAddress>)> {
    let header = &message.header;
    let is_ip = matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6);
    let (mut ip, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddress::new),
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => ip = Some((*address).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => ip = Some((*address).into()),
            _ => {}
        }
    }
    (is_ip && header.ifindex == bridge).then_some((ip?, mac))
}

/// The same, with its machine if that is at another host.
fn read(message: &NeighbourMessage, bridge: u32) -> Option<(IpAddr, Option<Machine>)> {
    let (ip, mac) = ip_and_mac(message, bridge)?;
    let flags = message.header.flags;
    let machine = mac.filter(|mac| flags.contains(NeighbourFlags::ExtLearned) && mac.is_unicast());
    Some((ip, machine.map(|mac| Machine { mac, is_router: flags.contains(NeighbourFlags::Router) })))
}

impl RemoteNeighbours {
    /// Follows a new neighbour, or a change of one, of the device with the index `bridge`.
    pub fn came(&mut self, message: &NeighbourMessage, bridge: u32) -> Option<NeighbourChange> {
        let (ip, machine) = read(message, bridge)?;
        match machine {
            Some(machine) if self.0.len() < UPLINK_QUOTA as usize || self.0.contains_key(&ip) => {
                let before = self.0.insert(ip, machine);
                (before != Some(machine)).then_some(NeighbourChange::Is(ip, machine))
            }
            Some(_) => None,
            // The kernel's own now.
            None => self.0.remove(&ip).map(|_| NeighbourChange::IsNot(ip)),
        }
    }

    /// Follows the end of a neighbour.
    pub fn went(&mut self, message: &NeighbourMessage, bridge: u32) -> Option<NeighbourChange> {
        let (ip, _) = read(message, bridge)?;
        self.0.remove(&ip).map(|_| NeighbourChange::IsNot(ip))
    }

    /// Follows a dump of all neighbours.
    pub fn replace<'m>(&mut self, all: impl Iterator<Item = &'m NeighbourMessage>, bridge: u32) -> Vec<NeighbourChange> {
        let mut present = BTreeSet::new();
        let mut changes = Vec::new();
        for message in all {
            present.extend(read(message, bridge).and_then(|(ip, machine)| machine.map(|_| ip)));
            changes.extend(self.came(message, bridge));
        }
        let gone: Vec<IpAddr> = self.0.keys().filter(|ip| !present.contains(ip)).copied().collect();
        for ip in gone {
            self.0.remove(&ip);
            changes.push(NeighbourChange::IsNot(ip));
        }
        changes
    }

    /// Whether `ip` is at another host.
    pub fn has(&self, ip: IpAddr) -> bool {
        self.0.contains_key(&ip)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (IpAddr, Machine)> {
        self.0.iter().map(|(ip, machine)| (*ip, *machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(ifindex: u32, last: u8, mac: Option<u8>, flags: NeighbourFlags) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        (message.header.family, message.header.ifindex, message.header.flags) = (AddressFamily::Inet, ifindex, flags);
        message.attributes = vec![NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 0, 0, last].into()))];
        message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, mac])));
        message
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn machine(last: u8) -> Machine {
        Machine { mac: MacAddress::new([2, 0, 0, 0, 0, last]), is_router: false }
    }

    #[test]
    fn neighbours_that_another_program_entered_at_the_bridge_come_and_go() {
        let (mut known, remote) = (RemoteNeighbours::default(), NeighbourFlags::ExtLearned);
        assert_eq!(known.came(&message(7, 1, Some(1), remote), 7), Some(NeighbourChange::Is(ip(1), machine(1))));
        assert_eq!(known.came(&message(7, 1, Some(1), remote), 7), None);
        assert_eq!(known.came(&message(8, 2, Some(1), remote), 7), None, "another device");
        assert_eq!(known.came(&message(7, 2, Some(1), NeighbourFlags::default()), 7), None, "the kernel's own");
        assert_eq!(known.came(&message(7, 2, None, remote), 7), None);
        assert_eq!(known.came(&message(7, 1, Some(2), remote), 7), Some(NeighbourChange::Is(ip(1), machine(2))));
        assert_eq!(known.went(&message(7, 1, None, NeighbourFlags::default()), 7), Some(NeighbourChange::IsNot(ip(1))));
        let router = known.came(&message(7, 1, Some(1), remote | NeighbourFlags::Router), 7);
        assert_eq!(router, Some(NeighbourChange::Is(ip(1), Machine { is_router: true, ..machine(1) })));
    }

    #[test]
    fn a_dump_tells_changes_only() {
        let (mut known, remote) = (RemoteNeighbours::default(), NeighbourFlags::ExtLearned);
        known.came(&message(7, 1, Some(1), remote), 7);
        known.came(&message(7, 2, Some(2), remote), 7);
        let all = [message(7, 2, Some(2), remote), message(7, 3, Some(3), remote)];
        let changes = known.replace(all.iter(), 7);
        assert_eq!(changes, [NeighbourChange::Is(ip(3), machine(3)), NeighbourChange::IsNot(ip(1))]);
        assert_eq!(known.all().count(), 2);
    }
}
