//! Leases of ports that have left. A port that comes back before they end has them again, as a DHCP server knows no ports either: a guest
//! that was saved and is restored goes on with its address. Another client gets such an address only where no other is free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::lease::{Holder, Lease, LeaseKind};

/// Most leases that are kept; the one that ends first gives way.
const MOST: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    leases: HashMap<IpAddr, (Arc<str>, Lease)>,
    addresses: BTreeMap<Arc<str>, BTreeSet<IpAddr>>,
    /// Ends of the leases, with their addresses.
    ends: BTreeSet<(u64, IpAddr)>,
}

impl Departed {
    /// Keeps those of `leases` of `port` that a DHCP server gave and that run in second `now`.
    pub(crate) fn keep(&mut self, port: &str, leases: impl IntoIterator<Item = Lease>, now: u64) {
        let name: Arc<str> = port.into();
        for lease in leases.into_iter().filter(|lease| lease.kind == LeaseKind::Leased && now < lease.until) {
            self.give_up(lease.address);
            self.ends.insert((lease.until, lease.address));
            self.addresses.entry(Arc::clone(&name)).or_default().insert(lease.address);
            self.leases.insert(lease.address, (Arc::clone(&name), lease));
        }
        while let Some(&(until, first)) = self.ends.first()
            && (until <= now || self.leases.len() > MOST)
        {
            self.give_up(first);
        }
    }

    /// Ends the record of `address`.
    pub(crate) fn give_up(&mut self, address: IpAddr) -> Option<Lease> {
        let (port, lease) = self.leases.remove(&address)?;
        self.ends.remove(&(lease.until, address));
        if let Some(addresses) = self.addresses.get_mut(&port) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.addresses.remove(&port);
            }
        }
        Some(lease)
    }

    /// The leases of `port`, which is back.
    pub(crate) fn take(&mut self, port: &str) -> Vec<Lease> {
        let addresses = self.addresses.remove(port).unwrap_or_default();
        addresses.into_iter().filter_map(|address| self.give_up(address)).collect()
    }

    /// Whether `address` is kept for another client than `holder` in second `now`.
    pub(crate) fn keeps_from(&self, holder: Holder, address: IpAddr, now: u64) -> bool {
        self.leases.get(&address).is_some_and(|(_, lease)| lease.holder != holder && now < lease.until)
    }

    /// The address of that IP version with the lease that ends first.
    pub(crate) fn first_to_end(&self, is_v4: bool) -> Option<IpAddr> {
        self.ends.iter().map(|&(_, address)| address).find(|address| address.is_ipv4() == is_v4)
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// The leases that run in second `now`, with their ports.
    pub(crate) fn running(&self, now: u64) -> impl Iterator<Item = (&str, &Lease)> {
        self.leases.values().filter(move |(_, lease)| now < lease.until).map(|(port, lease)| (&**port, lease))
    }
}
