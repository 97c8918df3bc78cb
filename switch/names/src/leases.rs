//! Leases: which port has which address.
//!
//! Each address has one owner, a port: as a static address, or by a lease of the port and one of its MAC addresses. A port has at most
//! [`QUOTA`] leases of each IP version, and less in a small subnet: where it asks for more, its own oldest one ends. The address of a
//! new lease is a hash of port and MAC address, so that a guest gets the same one where leases were lost; where that one is taken, the
//! next free one. The address of an expired lease stays its port's until no other is free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use memlane_dataplane::port::short_hash;
use memlane_virtq::frame::MacAddress;

use crate::settings::{PortAddresses, Settings};

/// Most leases of a port, of each IP version.
pub(crate) const QUOTA: usize = 8;
/// Seconds of a lease.
pub(crate) const LEASE: u64 = 3600;
/// Seconds for which an offered address is kept.
const OFFER: u64 = 60;
/// Seconds for which an address that a client found in use is not given to it again.
const DECLINE: u64 = 600;
/// Most claimed addresses that are passed over for a new lease.
const MOST_CLAIMS: usize = 64;
/// Most static addresses of a port that are looked at.
const MOST_FIXED: usize = 64;

/// Origin of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Offered by DHCP or DHCPv6.
    Offered,
    /// A client found it in use elsewhere.
    Declined,
    /// The address that a guest can form of the IPv6 prefix and its MAC address (SLAAC, RFC 4862).
    Expected,
    /// Leased by DHCP or DHCPv6.
    Leased,
    /// A guest has claimed it by duplicate address detection (RFC 4862, section 5.4).
    Claimed,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// MAC address of its guest.
    pub mac: MacAddress,
    /// Its origin.
    pub kind: LeaseKind,
    /// The second in which it was confirmed last.
    pub since: u64,
    /// The second in which it ends; of one that does not end, the largest.
    pub until: u64,
}

impl Lease {
    /// Whether its guest may use it in second `now`.
    pub fn is_active(&self, now: u64) -> bool {
        self.kind >= LeaseKind::Expected && now < self.until
    }

    /// Whether it is in use, as far as is known.
    pub(crate) fn is_in_use(&self, now: u64) -> bool {
        self.kind >= LeaseKind::Leased && now < self.until
    }

    /// The lease of a port with the least rank ends first.
    fn rank(&self, now: u64) -> (bool, LeaseKind, u64) {
        (now < self.until, self.kind, self.since)
    }
}

#[derive(Debug, Default)]
struct PortLeases {
    own: PortAddresses,
    leases: Vec<Lease>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    ports: BTreeMap<Arc<str>, PortLeases>,
    /// Names of ports in lower case; of two ports that differ only in case, the first one has the name.
    names: BTreeMap<String, Arc<str>>,
    /// Owners of all addresses in `ports`.
    owners: HashMap<IpAddr, Arc<str>>,
    /// Ports with changed leases.
    changed: BTreeSet<Arc<str>>,
    claims: Claims,
}

/// Tells whether a machine other than this one uses an address, by its own doing.
type Claimed = dyn Fn(IpAddr, MacAddress) -> bool + Send;

/// The addresses that guests claim; by default none.
#[derive(Default)]
struct Claims(Option<Box<Claimed>>);

impl Claims {
    fn has_other(&self, address: IpAddr, mac: MacAddress) -> bool {
        self.0.as_ref().is_some_and(|claimed| claimed(address, mac))
    }
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Claims").finish_non_exhaustive()
    }
}

impl Leases {
    /// Has new leases pass over addresses that `claimed` names.
    pub(crate) fn heed(&mut self, claimed: Box<Claimed>) {
        self.claims = Claims(Some(claimed));
    }

    /// Whether there is a port of this name.
    pub(crate) fn has_port(&self, port: &str) -> bool {
        self.ports.contains_key(port)
    }

    pub(crate) fn mtu(&self, port: &str) -> Option<u16> {
        self.ports.get(port)?.own.mtu
    }

    /// Adds a port, or changes its static addresses: leases of other ports for these end.
    pub(crate) fn set_port(&mut self, port: &str, own: PortAddresses) {
        let name: Arc<str> = port.into();
        let leases = self.ports.remove(port).map(|former| {
            former.own.fixed.iter().for_each(|address| self.disown(*address, port));
            former.leases
        });
        for address in own.fixed.iter().take(MOST_FIXED) {
            if let Some(other) = self.owners.insert(*address, Arc::clone(&name)).filter(|other| **other != *name) {
                self.end(&other, *address);
            }
        }
        let leases = leases.unwrap_or_default();
        leases.iter().for_each(|lease| {
            self.owners.entry(lease.address).or_insert_with(|| Arc::clone(&name));
        });
        self.names.entry(port.to_ascii_lowercase()).or_insert_with(|| Arc::clone(&name));
        self.ports.insert(name, PortLeases { own, leases });
    }

    /// Removes a port, with its leases.
    pub(crate) fn remove_port(&mut self, port: &str) {
        let Some(former) = self.ports.remove(port) else { return };
        self.owners.retain(|_, owner| **owner != *port);
        let lower = port.to_ascii_lowercase();
        if self.names.get(&lower).is_some_and(|owner| **owner == *port) {
            self.names.remove(&lower);
            if let Some(other) = self.ports.keys().find(|other| other.eq_ignore_ascii_case(port)) {
                self.names.insert(lower, Arc::clone(other));
            }
        }
        if !former.leases.is_empty() {
            self.changed.insert(port.into());
        }
    }

    fn disown(&mut self, address: IpAddr, port: &str) {
        if self.owners.get(&address).is_some_and(|owner| **owner == *port) {
            self.owners.remove(&address);
        }
    }

    /// Ends the lease of `port` for `address`.
    fn end(&mut self, port: &str, address: IpAddr) {
        let Some(entry) = self.ports.get_mut(port) else { return };
        let before = entry.leases.len();
        entry.leases.retain(|lease| lease.address != address);
        let (gone, is_fixed) = (entry.leases.len() < before, entry.own.fixed.contains(&address));
        if !is_fixed {
            self.disown(address, port);
        }
        if gone {
            self.changed.insert(port.into());
        }
    }

    /// The address that `mac` at `port` gets: a static one, its present one, or a new one. `None` if no address is free.
    pub(crate) fn address_for(
        &mut self,
        settings: &Settings,
        port: &str,
        mac: MacAddress,
        is_v4: bool,
        now: u64,
    ) -> Option<IpAddr> {
        let entry = self.ports.get(port)?;
        if let Some(fixed) = entry.own.fixed.iter().find(|address| address.is_ipv4() == is_v4 && settings.is_host(**address)) {
            return Some(*fixed);
        }
        let is_its = |lease: &&Lease| {
            let is_dhcp = matches!(lease.kind, LeaseKind::Leased | LeaseKind::Offered);
            is_dhcp && lease.mac == mac && lease.address.is_ipv4() == is_v4
        };
        if let Some(lease) = entry.leases.iter().find(is_its) {
            return Some(lease.address);
        }
        self.make_room(settings, port, is_v4, now);
        self.free_address(settings, port, mac, is_v4, now)
    }

    /// A free address, or else that of an expired lease.
    fn free_address(&mut self, settings: &Settings, port: &str, mac: MacAddress, is_v4: bool, now: u64) -> Option<IpAddr> {
        let (first, count) = settings.pool(is_v4)?;
        let address = |number: u128| match is_v4 {
            true => IpAddr::V4(Ipv4Addr::from((first + number) as u32)),
            false => IpAddr::V6(Ipv6Addr::from(first + number)),
        };
        let hash = short_hash(port.bytes().chain(mac.bytes()));
        let begin = u128::from(hash ^ hash >> 32) % count.max(1);
        // Each step meets an address that is owned or claimed: no more than owners, and claims up to a bound.
        let steps = count.min((self.owners.len() + 1 + MOST_CLAIMS) as u128);
        let mut free = (0..steps).map(|step| address((begin + step) % count)).filter(|address| !self.owners.contains_key(address));
        // A server should not give an address that is in use (RFC 2131, section 3.1); a guest that claims all takes none away.
        let unclaimed = free.clone().take(1 + MOST_CLAIMS).find(|address| !self.claims.has_other(*address, mac));
        let found = unclaimed.or_else(|| free.next());
        found.or_else(|| {
            let expired = self.ports.iter().find_map(|(name, entry)| {
                let is_over = |lease: &&Lease| lease.address.is_ipv4() == is_v4 && lease.until <= now;
                let lease = entry.leases.iter().find(|lease| is_over(lease) && !entry.own.fixed.contains(&lease.address))?;
                Some((Arc::clone(name), lease.address))
            });
            let (owner, address) = expired?;
            self.end(&owner, address);
            Some(address)
        })
    }

    /// Most leases of a port: [`QUOTA`], and of a small subnet half of a fair share.
    fn quota(&self, settings: &Settings, is_v4: bool) -> usize {
        let count = settings.pool(is_v4).map_or(0, |(_, count)| usize::try_from(count).unwrap_or(usize::MAX));
        (count / (2 * self.ports.len().max(1))).clamp(1, QUOTA)
    }

    /// Ends leases of `port` until it may have another one.
    fn make_room(&mut self, settings: &Settings, port: &str, is_v4: bool, now: u64) {
        let quota = self.quota(settings, is_v4);
        while let Some(entry) = self.ports.get(port) {
            let same = || entry.leases.iter().filter(|lease| lease.address.is_ipv4() == is_v4);
            let least = same().min_by_key(|lease| lease.rank(now)).map(|lease| lease.address);
            match least {
                Some(address) if same().count() >= quota => self.end(port, address),
                _ => return,
            }
        }
    }

    /// Records a lease of `address` by `mac` at `port`, and returns whether it is the port's: no other port has it.
    pub(crate) fn enter(
        &mut self,
        settings: &Settings,
        port: &str,
        (address, mac): (IpAddr, MacAddress),
        kind: LeaseKind,
        now: u64,
    ) -> bool {
        if !settings.is_host(address) || self.owners.get(&address).is_some_and(|owner| **owner != *port) {
            return false;
        }
        let until = match kind {
            LeaseKind::Offered => now + OFFER,
            LeaseKind::Declined => now + DECLINE,
            LeaseKind::Leased => now + LEASE,
            LeaseKind::Expected | LeaseKind::Claimed => u64::MAX,
        };
        let lease = Lease { address, mac, kind, since: now, until };
        let is_known = |entry: &PortLeases| entry.leases.iter().any(|known| known.address == address);
        if !self.ports.get(port).is_some_and(is_known) {
            self.make_room(settings, port, address.is_ipv4(), now);
        }
        let Some((name, entry)) = self.ports.get_key_value(port).map(|(name, _)| Arc::clone(name)).zip(self.ports.get_mut(port))
        else {
            return false;
        };
        match entry.leases.iter_mut().find(|known| known.address == address) {
            // An offer takes nothing from a lease, nor an expectation from a claim.
            Some(known) if known.mac == mac && known.is_active(now) && kind < known.kind && kind != LeaseKind::Declined => {
                known.since = now;
            }
            Some(known) => {
                // A lease that is longer now is news, too: the address map is told of its end.
                let is_news = known.mac != mac || known.kind != kind || known.until != lease.until;
                *known = lease;
                if is_news {
                    self.changed.insert(Arc::clone(&name));
                }
            }
            None => {
                entry.leases.push(lease);
                self.changed.insert(Arc::clone(&name));
            }
        }
        self.owners.insert(address, name);
        true
    }

    /// Ends the lease of `mac` at `port` for `address`, which stays the port's until it is needed.
    pub(crate) fn release(&mut self, port: &str, address: IpAddr, mac: MacAddress, now: u64) {
        let Some(entry) = self.ports.get_mut(port) else { return };
        let lease = entry.leases.iter_mut().find(|lease| lease.address == address && lease.mac == mac && lease.is_active(now));
        if let Some(lease) = lease {
            lease.until = now;
            self.changed.insert(port.into());
        }
    }

    /// The lease of `port` for `address`, if it is active or offered.
    pub(crate) fn lease(&self, port: &str, address: IpAddr, now: u64) -> Option<&Lease> {
        self.ports.get(port)?.leases.iter().find(|lease| lease.address == address && now < lease.until)
    }

    /// The port that has `address`.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&str> {
        self.owners.get(&address).map(|name| &**name)
    }

    /// The port called `name`, in any case.
    pub(crate) fn port_called(&self, name: &str) -> Option<&str> {
        self.names.get(&name.to_ascii_lowercase()).map(|name| &**name)
    }

    /// Addresses of `port` for its name: static ones, then those in use, the latest first.
    pub(crate) fn addresses(&self, port: &str, now: u64) -> Vec<IpAddr> {
        let Some(entry) = self.ports.get(port) else { return Vec::new() };
        let mut leases: Vec<&Lease> = entry.leases.iter().filter(|lease| lease.is_in_use(now)).collect();
        leases.sort_by_key(|lease| std::cmp::Reverse(lease.since));
        let mut addresses = entry.own.fixed.clone();
        for lease in leases {
            if !addresses.contains(&lease.address) {
                addresses.push(lease.address);
            }
        }
        addresses
    }

    /// All leases, with their ports.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Lease)> {
        self.ports.iter().flat_map(|(name, entry)| entry.leases.iter().map(|lease| (&**name, lease)))
    }

    /// Leases of `port`.
    pub(crate) fn of_port(&self, port: &str) -> &[Lease] {
        self.ports.get(port).map_or(&[], |entry| &entry.leases)
    }

    /// Ports with leases that changed since this was last asked.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }
}
