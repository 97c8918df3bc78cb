//! Inbound: MAC addresses at other hosts, from the FDB of the VXLAN device, which FRR fills.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};

use crate::frame::MacAddress;
use crate::segment::ADDRESSES;

/// Most addresses that are known: the limit of a port in the segment's forwarding table. Frames to others are flooded.
pub const MOST: usize = ADDRESSES as usize;
/// Most other hosts that are counted.
const MOST_HOSTS: usize = 4096;

/// An entry of the VXLAN device's FDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VxlanFdbEntry {
    /// MAC address; all zeroes for the hosts to which unknown and broadcast frames are sent.
    pub address: MacAddress,
    /// The host's underlay address.
    pub host: IpAddr,
}

impl VxlanFdbEntry {
    /// The entry in `message` for the device with the index `vxlan`; `None` if it is of another device's FDB or of its bridge's.
    pub fn of(message: &NeighbourMessage, vxlan: u32) -> Option<Self> {
        let (mut address, mut host) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                // An entry of the bridge's own FDB, which repeats this without the host.
                NeighbourAttribute::Controller(_) => return None,
                NeighbourAttribute::LinkLayerAddress(bytes) => address = <[u8; 6]>::try_from(&bytes[..]).ok(),
                NeighbourAttribute::Destination(destination) => host = host_of(destination),
                _ => {}
            }
        }
        let of_device = message.header.ifindex == vxlan;
        of_device.then_some(Self { address: MacAddress::new(address?), host: host? })
    }
}

fn host_of(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        // In messages of the bridge family only the length distinguishes the address types.
        NeighbourAddress::Other(bytes) => <[u8; 4]>::try_from(&bytes[..])
            .map(|bytes| Ipv4Addr::from(bytes).into())
            .or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(|bytes| Ipv6Addr::from(bytes).into()))
            .ok(),
        _ => None,
    }
}

/// A change at other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteChange {
    /// The address is at another host now.
    Is(MacAddress),
    /// The address is at no other host any more.
    IsNot(MacAddress),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    learned_addresses: BTreeMap<MacAddress, IpAddr>,
    /// Hosts to which unknown and broadcast frames are sent.
    hosts: BTreeSet<IpAddr>,
    /// There were more addresses than are known.
    is_full: bool,
}

impl Remote {
    /// Adds an entry, or changes its host.
    pub fn came(&mut self, entry: VxlanFdbEntry) -> Option<RemoteChange> {
        if entry.address == MacAddress::default() {
            if self.hosts.len() < MOST_HOSTS {
                self.hosts.insert(entry.host);
            }
            return None;
        }
        if !entry.address.is_unicast() {
            return None;
        }
        if self.learned_addresses.len() >= MOST && !self.learned_addresses.contains_key(&entry.address) {
            self.is_full = true;
            return None;
        }
        let before = self.learned_addresses.insert(entry.address, entry.host);
        (before != Some(entry.host)).then_some(RemoteChange::Is(entry.address))
    }

    /// Removes an entry, unless its host has changed meanwhile.
    pub fn went(&mut self, entry: VxlanFdbEntry) -> Option<RemoteChange> {
        if entry.address == MacAddress::default() {
            self.hosts.remove(&entry.host);
            return None;
        }
        if self.learned_addresses.get(&entry.address) != Some(&entry.host) {
            return None;
        }
        self.learned_addresses.remove(&entry.address);
        Some(RemoteChange::IsNot(entry.address))
    }

    /// Replaces all entries.
    pub fn replace(&mut self, entries: impl IntoIterator<Item = VxlanFdbEntry>) -> Vec<RemoteChange> {
        let before = std::mem::take(self);
        let mut changes = Vec::new();
        for entry in entries {
            let is_new = self.came(entry).is_some() && before.learned_addresses.get(&entry.address) != Some(&entry.host);
            changes.extend(is_new.then_some(RemoteChange::Is(entry.address)));
        }
        changes.extend(
            before
                .learned_addresses
                .into_keys()
                .filter(|address| !self.learned_addresses.contains_key(address))
                .map(RemoteChange::IsNot),
        );
        changes
    }

    /// Whether more addresses exist than are known, and there is room for some of them by now.
    pub fn lacks(&self) -> bool {
        self.is_full && self.learned_addresses.len() < MOST
    }

    /// Whether more addresses exist than are known.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The host of this address.
    pub fn host(&self, address: MacAddress) -> Option<IpAddr> {
        self.learned_addresses.get(&address).copied()
    }

    /// All addresses, with their hosts.
    pub fn learned_addresses(&self) -> impl Iterator<Item = (MacAddress, IpAddr)> {
        self.learned_addresses.iter().map(|(address, host)| (*address, *host))
    }

    /// Other hosts, with or without addresses.
    pub fn hosts(&self) -> BTreeSet<IpAddr> {
        self.hosts.iter().chain(self.learned_addresses.values()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> MacAddress {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddress::new([2, 0, a, b, c, d])
    }

    fn entry(n: u32, host: u8) -> VxlanFdbEntry {
        VxlanFdbEntry { address: address(n), host: Ipv4Addr::from([10, 0, 0, host]).into() }
    }

    fn message(ifindex: u32, attributes: Vec<NeighbourAttribute>) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = ifindex;
        message.attributes = attributes;
        message
    }

    #[test]
    fn only_the_devices_own_table_counts() {
        let bytes = NeighbourAttribute::LinkLayerAddress(address(1).bytes().to_vec());
        let host = NeighbourAttribute::Destination(NeighbourAddress::Other(vec![10, 0, 0, 2]));
        let of = |index, attributes| VxlanFdbEntry::of(&message(index, attributes), 7);
        assert_eq!(of(7, vec![bytes.clone(), host.clone()]), Some(entry(1, 2)));
        assert_eq!(of(8, vec![bytes.clone(), host.clone()]), None, "another device");
        assert_eq!(of(7, vec![bytes.clone(), NeighbourAttribute::Controller(3)]), None, "the bridge's table");
        assert_eq!(of(7, vec![bytes]), None);
        let short = NeighbourAttribute::LinkLayerAddress(vec![1, 2, 3]);
        assert_eq!(of(7, vec![short, host]), None);
    }

    #[test]
    fn addresses_come_move_and_go() {
        let mut remote = Remote::default();
        assert_eq!(remote.came(entry(1, 2)), Some(RemoteChange::Is(address(1))));
        assert_eq!(remote.came(entry(1, 2)), None);
        assert_eq!(remote.came(entry(1, 3)), Some(RemoteChange::Is(address(1))));
        assert_eq!(remote.went(entry(1, 2)), None, "it had moved on before");
        assert_eq!(remote.host(address(1)), Some(entry(1, 3).host));
        assert_eq!(remote.went(entry(1, 3)), Some(RemoteChange::IsNot(address(1))));
        assert_eq!(remote.went(entry(1, 3)), None);
    }

    #[test]
    fn hosts_without_mac_addresses_count_too() {
        let mut remote = Remote::default();
        let everybody = |host| VxlanFdbEntry { address: MacAddress::default(), ..entry(0, host) };
        assert_eq!((remote.came(everybody(2)), remote.came(everybody(3))), (None, None));
        remote.came(entry(1, 3));
        assert_eq!(remote.hosts().len(), 2);
        remote.went(everybody(2));
        remote.went(everybody(3));
        assert_eq!(remote.hosts().len(), 1, "one still has a MAC address");
        assert_eq!(remote.came(VxlanFdbEntry { address: MacAddress::BROADCAST, ..entry(0, 2) }), None, "a group is no MAC address");
    }

    #[test]
    fn after_a_loss_only_what_differs_is_news() {
        let mut remote = Remote::default();
        remote.replace([entry(1, 2), entry(2, 2), entry(3, 2)]);
        let changes = remote.replace([entry(1, 2), entry(2, 3), entry(4, 2)]);
        assert_eq!(changes, [RemoteChange::Is(address(2)), RemoteChange::Is(address(4)), RemoteChange::IsNot(address(3))]);
        assert_eq!(remote.learned_addresses().count(), 3);
    }

    #[test]
    fn no_more_are_known_than_the_table_holds() {
        let mut remote = Remote::default();
        remote.replace((0..MOST as u32 + 5).map(|n| entry(n, 2)));
        assert_eq!(remote.learned_addresses().count(), MOST);
        assert!(remote.is_full() && !remote.lacks());
        remote.went(entry(0, 2));
        assert!(remote.lacks(), "the whole is to be asked for again");
        remote.replace((1..MOST as u32 + 1).map(|n| entry(n, 2)));
        assert!(!remote.is_full());
    }
}
