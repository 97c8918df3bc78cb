//! Outbound: the IP addresses of this host that are announced to the others. Each gets an entry among the bridge's neighbours, from which
//! FRR makes a MAC/IP advertisement route (BGP EVPN type 2: RFC 7432, section 7.2), so that other hosts answer questions for it.
//!
//! **Announced** is an address that the operator (`addresses`) or a DHCP server (at a port that may serve) gave to a port, while this port runs.
//! A claim in ARP or ND is not: a guest can make one for any address, and all other hosts would answer for it. With `anti-spoof = "all"` a
//! guest can claim no others than those, so nothing is missing.
//!
//! The entries are permanent, because the kernel removes others that are not used, and carry a protocol number, by which the next process of
//! the network finds them. An entry that FRR replaced, because another host announces the address, stays so until that host withdraws it:
//! hosts that dispute an address do not outbid each other.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::neighbours::{Machine, NeighbourChange, ip_and_mac};
use crate::address_map::UPLINK_QUOTA;

/// Marks the entries of memlane (NDA_PROTOCOL). Numbers above 4 are for programs to choose; no routing daemon uses this one.
const OWN: RouteProtocol = RouteProtocol::Other(109);

/// See the module.
#[derive(Debug, Default)]
pub struct AnnouncedNeighbours(BTreeMap<IpAddr, Machine>);

impl AnnouncedNeighbours {
    /// Makes the announced addresses those of `wanted`, as far as there is room; returns the changes to the bridge's neighbours.
    pub fn update(&mut self, wanted: impl Iterator<Item = (IpAddr, Machine)>) -> Vec<NeighbourChange> {
        let wanted: BTreeMap<IpAddr, Machine> = wanted.take(UPLINK_QUOTA as usize).collect();
        let gone = self.0.keys().filter(|ip| !wanted.contains_key(ip)).map(|&ip| NeighbourChange::IsNot(ip));
        let new = wanted.iter().filter(|(ip, machine)| self.0.get(ip) != Some(machine));
        let changes = gone.chain(new.map(|(&ip, &machine)| NeighbourChange::Is(ip, machine))).collect();
        self.0 = wanted;
        changes
    }

    /// Goes on with the entries of another process of the network at the device with the index `bridge`, among `all` neighbours.
    pub fn adopt<'m>(&mut self, all: impl Iterator<Item = &'m NeighbourMessage>, bridge: u32) {
        let own = all.filter(|message| message.attributes.contains(&NeighbourAttribute::Protocol(OWN)));
        let is_router = |message: &NeighbourMessage| message.header.flags.contains(NeighbourFlags::Router);
        self.0.extend(own.filter_map(|message| {
            let (ip, mac) = ip_and_mac(message, bridge)?;
            Some((ip, Machine { mac: mac?, is_router: is_router(message) }))
        }));
    }

    /// The entry of `ip` was removed: the next update adds it again, if the address is still at this host. False if it had none.
    pub fn retract(&mut self, ip: IpAddr) -> bool {
        self.0.remove(&ip).is_some()
    }
}

/// The netlink message that makes `change` at the device with the index `bridge`.
pub fn request(change: NeighbourChange, bridge: u32) -> RouteNetlinkMessage {
    let (NeighbourChange::Is(ip, _) | NeighbourChange::IsNot(ip)) = change;
    let mut message = NeighbourMessage::default();
    let (family, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
    };
    (message.header.family, message.header.ifindex, message.header.state) = (family, bridge, NeighbourState::Permanent);
    message.attributes = vec![NeighbourAttribute::Destination(address)];
    let NeighbourChange::Is(_, Machine { mac, is_router }) = change else { return RouteNetlinkMessage::DelNeighbour(message) };
    message.attributes.extend([NeighbourAttribute::LinkLayerAddress(mac.bytes().to_vec()), NeighbourAttribute::Protocol(OWN)]);
    if is_router {
        message.header.flags = NeighbourFlags::Router;
    }
    RouteNetlinkMessage::NewNeighbour(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MacAddress;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn machine(last: u8) -> Machine {
        Machine { mac: MacAddress::new([2, 0, 0, 0, 0, last]), is_router: false }
    }

    #[test]
    fn addresses_here_are_announced_once_and_withdrawn() {
        let mut told = AnnouncedNeighbours::default();
        let both = [(ip(1), machine(1)), (ip(2), machine(2))];
        assert_eq!(told.update(both.into_iter()), both.map(|(ip, machine)| NeighbourChange::Is(ip, machine)));
        assert_eq!(told.update(both.into_iter()), []);
        let changes = told.update([(ip(2), machine(3))].into_iter());
        assert_eq!(changes, [NeighbourChange::IsNot(ip(1)), NeighbourChange::Is(ip(2), machine(3))]);
        assert!(told.retract(ip(2)) && !told.retract(ip(1)));
        assert_eq!(told.update([(ip(2), machine(3))].into_iter()), [NeighbourChange::Is(ip(2), machine(3))], "it is added again");
        assert_eq!(told.update(std::iter::empty()), [NeighbourChange::IsNot(ip(2))]);
    }

    #[test]
    fn no_more_are_announced_than_another_host_takes() {
        let many = (0..2 * UPLINK_QUOTA).map(|n| (IpAddr::from(n.to_be_bytes()), machine(1)));
        assert_eq!(AnnouncedNeighbours::default().update(many).len(), UPLINK_QUOTA as usize);
    }

    #[test]
    fn entries_of_another_process_are_found_and_no_others() {
        let router = Machine { is_router: true, ..machine(1) };
        let message = |change, bridge| match request(change, bridge) {
            RouteNetlinkMessage::NewNeighbour(message) => message,
            other => panic!("{other:?}"),
        };
        let own = message(NeighbourChange::Is(ip(1), router), 7);
        let elsewhere = message(NeighbourChange::Is(ip(2), router), 8);
        let mut operators = message(NeighbourChange::Is(ip(3), router), 7);
        operators.attributes.pop();
        let mut told = AnnouncedNeighbours::default();
        told.adopt([own, elsewhere, operators].iter(), 7);
        assert_eq!(told.update([(ip(1), router)].into_iter()), [], "the entry stays as it is");
        assert_eq!(told.update(std::iter::empty()), [NeighbourChange::IsNot(ip(1))]);
    }
}
