//! In: which stations are at other hosts, as FRR has the VXLAN device know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};

use crate::frame::MacAddress;
use crate::segment::ADDRESSES;

/// Most stations that are known: as many as a port may hold in the segment's table. Others are flooded for.
pub const MOST: usize = ADDRESSES as usize;
/// Most other hosts that are counted.
const MOST_HOSTS: usize = 4096;

/// An entry of the VXLAN device's forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose; all zeroes stands for who is not known, and for everybody.
    pub address: MacAddress,
    /// The host's address on the underlay.
    pub host: IpAddr,
}

impl Entry {
    /// What `message` says of the device number `vxlan`; `None` if it is of another's table or of its bridge's.
    pub fn of(message: &NeighbourMessage, vxlan: u32) -> Option<Self> {
        let (mut address, mut host) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                // The bridge's own table, which says the same without the host.
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
        // In a bridge's table only the length tells which it is.
        NeighbourAddress::Other(bytes) => <[u8; 4]>::try_from(&bytes[..])
            .map(|bytes| Ipv4Addr::from(bytes).into())
            .or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(|bytes| Ipv6Addr::from(bytes).into()))
            .ok(),
        _ => None,
    }
}

/// What became other than it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The station is at another host now.
    Is(MacAddress),
    /// It is at none any more.
    IsNot(MacAddress),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    stations: BTreeMap<MacAddress, IpAddr>,
    /// Hosts that what is not known is sent to.
    hosts: BTreeSet<IpAddr>,
    /// There were more stations than are known.
    is_full: bool,
}

impl Remote {
    /// An entry came, or has another host now.
    pub fn came(&mut self, entry: Entry) -> Option<Change> {
        if entry.address == MacAddress::default() {
            if self.hosts.len() < MOST_HOSTS {
                self.hosts.insert(entry.host);
            }
            return None;
        }
        if !entry.address.is_station() {
            return None;
        }
        if self.stations.len() >= MOST && !self.stations.contains_key(&entry.address) {
            self.is_full = true;
            return None;
        }
        let before = self.stations.insert(entry.address, entry.host);
        (before != Some(entry.host)).then_some(Change::Is(entry.address))
    }

    /// An entry went. One whose host has changed meanwhile stays.
    pub fn went(&mut self, entry: Entry) -> Option<Change> {
        if entry.address == MacAddress::default() {
            self.hosts.remove(&entry.host);
            return None;
        }
        if self.stations.get(&entry.address) != Some(&entry.host) {
            return None;
        }
        self.stations.remove(&entry.address);
        Some(Change::IsNot(entry.address))
    }

    /// These are all entries there are.
    pub fn replace(&mut self, entries: impl IntoIterator<Item = Entry>) -> Vec<Change> {
        let before = std::mem::take(self);
        let mut changes = Vec::new();
        for entry in entries {
            let is_new = self.came(entry).is_some() && before.stations.get(&entry.address) != Some(&entry.host);
            changes.extend(is_new.then_some(Change::Is(entry.address)));
        }
        changes.extend(before.stations.into_keys().filter(|address| !self.stations.contains_key(address)).map(Change::IsNot));
        changes
    }

    /// Whether there are more stations than are known, and room for some of them by now.
    pub fn lacks(&self) -> bool {
        self.is_full && self.stations.len() < MOST
    }

    /// Whether there are more stations than are known.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The host that the station with this address is at.
    pub fn host(&self, address: MacAddress) -> Option<IpAddr> {
        self.stations.get(&address).copied()
    }

    /// All stations, with their hosts, by their addresses.
    pub fn stations(&self) -> impl Iterator<Item = (MacAddress, IpAddr)> {
        self.stations.iter().map(|(address, host)| (*address, *host))
    }

    /// Other hosts, whether they have stations or not.
    pub fn hosts(&self) -> BTreeSet<IpAddr> {
        self.hosts.iter().chain(self.stations.values()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> MacAddress {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddress::new([2, 0, a, b, c, d])
    }

    fn entry(n: u32, host: u8) -> Entry {
        Entry { address: address(n), host: Ipv4Addr::from([10, 0, 0, host]).into() }
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
        let of = |index, attributes| Entry::of(&message(index, attributes), 7);
        assert_eq!(of(7, vec![bytes.clone(), host.clone()]), Some(entry(1, 2)));
        assert_eq!(of(8, vec![bytes.clone(), host.clone()]), None, "another device");
        assert_eq!(of(7, vec![bytes.clone(), NeighbourAttribute::Controller(3)]), None, "the bridge's table");
        assert_eq!(of(7, vec![bytes]), None);
        let short = NeighbourAttribute::LinkLayerAddress(vec![1, 2, 3]);
        assert_eq!(of(7, vec![short, host]), None);
    }

    #[test]
    fn stations_come_move_and_go() {
        let mut remote = Remote::default();
        assert_eq!(remote.came(entry(1, 2)), Some(Change::Is(address(1))));
        assert_eq!(remote.came(entry(1, 2)), None);
        assert_eq!(remote.came(entry(1, 3)), Some(Change::Is(address(1))));
        assert_eq!(remote.went(entry(1, 2)), None, "it had moved on before");
        assert_eq!(remote.host(address(1)), Some(entry(1, 3).host));
        assert_eq!(remote.went(entry(1, 3)), Some(Change::IsNot(address(1))));
        assert_eq!(remote.went(entry(1, 3)), None);
    }

    #[test]
    fn hosts_without_stations_count_too() {
        let mut remote = Remote::default();
        let everybody = |host| Entry { address: MacAddress::default(), ..entry(0, host) };
        assert_eq!((remote.came(everybody(2)), remote.came(everybody(3))), (None, None));
        remote.came(entry(1, 3));
        assert_eq!(remote.hosts().len(), 2);
        remote.went(everybody(2));
        remote.went(everybody(3));
        assert_eq!(remote.hosts().len(), 1, "one still has a station");
        assert_eq!(remote.came(Entry { address: MacAddress::BROADCAST, ..entry(0, 2) }), None, "a group is no station");
    }

    #[test]
    fn after_a_loss_only_what_differs_is_news() {
        let mut remote = Remote::default();
        remote.replace([entry(1, 2), entry(2, 2), entry(3, 2)]);
        let changes = remote.replace([entry(1, 2), entry(2, 3), entry(4, 2)]);
        assert_eq!(changes, [Change::Is(address(2)), Change::Is(address(4)), Change::IsNot(address(3))]);
        assert_eq!(remote.stations().count(), 3);
    }

    #[test]
    fn no_more_are_known_than_the_table_holds() {
        let mut remote = Remote::default();
        remote.replace((0..MOST as u32 + 5).map(|n| entry(n, 2)));
        assert_eq!(remote.stations().count(), MOST);
        assert!(remote.is_full() && !remote.lacks());
        remote.went(entry(0, 2));
        assert!(remote.lacks(), "the whole is to be asked for again");
        remote.replace((1..MOST as u32 + 1).map(|n| entry(n, 2)));
        assert!(!remote.is_full());
    }
}
