//! Leases: the port of each address.
//!
//! Each address has one owner, a port: as a static address, by a lease, or by a [claim](crate::claims). A lease belongs to a [`Holder`] at a
//! port. A running lease is never ended for another one: a port has at most its key `leases`, by default half of the free addresses, and one
//! address is kept for each other port that has none. The address of a new lease is the one that the client names, if it is free, else a
//! hash of port and holder, so that a guest gets the same one where leases were lost, else the next free one. The address of an expired
//! lease stays its port's until no other is free, as do those of a port that has [left](crate::departed).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use memlane_dataplane::port::short_hash;
use memlane_virtq::frame::MacAddress;

use crate::departed::Departed;
use crate::exchange::Refused;
use crate::lease::{Holder, Lease, LeaseKind};
use crate::settings::{PortAddresses, Settings};

/// Most leases of a port, of each IP version.
pub const MOST_LEASES: usize = 1024;
/// Seconds of a lease.
pub(crate) const LEASE: u64 = 3600;
/// Seconds for which an offered address is kept.
const OFFER: u64 = 60;
/// Seconds for which an address that a client found in use is not given to it again.
const DECLINE: u64 = 600;
/// Seconds for which a refusal is told.
const TOLD: u64 = 3600;
/// Most claimed addresses that are passed over for a new lease.
const MOST_CLAIMS: usize = 64;
/// Most static addresses of a port that are looked at.
const MOST_FIXED: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct PortLeases {
    pub(crate) own: PortAddresses,
    pub(crate) leases: Vec<Lease>,
    /// The second in which it was last refused an address.
    refused: Option<u64>,
}

impl PortLeases {
    /// Running leases that a DHCP server gave.
    fn given(&self, is_v4: bool, now: u64) -> impl Iterator<Item = &Lease> {
        self.leases.iter().filter(move |lease| lease.is_given(is_v4, now))
    }

    /// Whether it has a static address of this IP version, or a running lease.
    fn has_address(&self, settings: &Settings, is_v4: bool, now: u64) -> bool {
        self.fixed(settings, is_v4).is_some() || self.given(is_v4, now).next().is_some()
    }

    /// The static address that its guests are leased.
    fn fixed(&self, settings: &Settings, is_v4: bool) -> Option<IpAddr> {
        self.own.fixed.iter().find(|address| address.is_ipv4() == is_v4 && settings.is_host(**address)).copied()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    pub(crate) ports: BTreeMap<Arc<str>, PortLeases>,
    /// Ports by their names in lower case; of those that differ only in case, the first one has the name.
    names: BTreeMap<String, Vec<Arc<str>>>,
    /// Owners of all addresses in `ports`.
    pub(crate) owners: HashMap<IpAddr, Arc<str>>,
    /// Ports with changed leases.
    pub(crate) changed: BTreeSet<Arc<str>>,
    /// Addresses that a machine has probed for lately, with their ports.
    pub(crate) tentative: BTreeSet<(Arc<str>, IpAddr)>,
    /// Leases of ports that have left.
    pub(crate) departed: Departed,
    pub(crate) seen: Seen,
}

/// The use of addresses on the segment, as the switch sees it.
pub trait Sightings: Send {
    /// Whether a machine with another MAC address than `mac` uses `address`, by its own doing.
    fn is_used_by_other(&self, address: IpAddr, mac: MacAddress) -> bool;

    /// Seconds since `address` was last seen in use; `None` if it is not known.
    fn idle(&self, address: IpAddr) -> Option<u64>;
}

/// The sightings of the segment, if there are any.
#[derive(Default)]
pub(crate) struct Seen(Option<Box<dyn Sightings>>);

impl Seen {
    fn by_other(&self, address: IpAddr, mac: MacAddress) -> bool {
        self.0.as_ref().is_some_and(|seen| seen.is_used_by_other(address, mac))
    }

    pub(crate) fn idle(&self, address: IpAddr) -> Option<u64> {
        self.0.as_ref()?.idle(address)
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Seen").finish_non_exhaustive()
    }
}

impl Leases {
    /// Heeds the use of addresses that `seen` tells.
    pub(crate) fn heed(&mut self, seen: Box<dyn Sightings>) {
        self.seen = Seen(Some(seen));
    }

    /// Whether there is a port of this name.
    pub(crate) fn has_port(&self, port: &str) -> bool {
        self.ports.contains_key(port)
    }

    /// The address outside that stands for `address`, which a message of a twin names, and the other way round.
    pub(crate) fn exchanged(&self, port: &str, address: IpAddr) -> IpAddr {
        let twin = self.ports.get(port).and_then(|entry| entry.own.twin.as_ref());
        twin.map_or(address, |twin| twin.ip(address))
    }

    /// Like [`Self::exchanged`].
    pub(crate) fn exchanged4(&self, port: &str, address: Ipv4Addr) -> Ipv4Addr {
        if let IpAddr::V4(exchanged) = self.exchanged(port, address.into()) { exchanged } else { address }
    }

    /// Like [`Self::exchanged`].
    pub(crate) fn exchanged6(&self, port: &str, address: Ipv6Addr) -> Ipv6Addr {
        if let IpAddr::V6(exchanged) = self.exchanged(port, address.into()) { exchanged } else { address }
    }

    pub(crate) fn mtu(&self, port: &str) -> Option<u16> {
        self.ports.get(port)?.own.mtu
    }

    /// Adds a port, or changes its static addresses: leases of other ports for these end. A port that was here before has those of its leases
    /// again that still run in second `now`, as far as no other port has the address.
    pub(crate) fn set_port(&mut self, port: &str, own: PortAddresses, now: u64) {
        let name: Arc<str> = port.into();
        let mut former = self.ports.remove(port).unwrap_or_default();
        let back =
            self.departed.take(port).into_iter().filter(|lease| now < lease.until && !self.owners.contains_key(&lease.address));
        let before = former.leases.len();
        former.leases.extend(back);
        if former.leases.len() > before {
            self.changed.insert(Arc::clone(&name));
        }
        former.own.fixed.iter().for_each(|address| self.disown(*address, port));
        for address in own.fixed.iter().take(MOST_FIXED) {
            self.departed.give_up(*address);
            if let Some(other) = self.owners.insert(*address, Arc::clone(&name)).filter(|other| **other != *name) {
                self.end(&other, *address);
            }
        }
        former.leases.iter().for_each(|lease| {
            self.owners.entry(lease.address).or_insert_with(|| Arc::clone(&name));
        });
        let called = self.names.entry(port.to_ascii_lowercase()).or_default();
        if !called.contains(&name) {
            called.push(Arc::clone(&name));
        }
        self.ports.insert(name, PortLeases { own, ..former });
    }

    /// Removes a port in second `now`. Its leases are kept until they end, or until their addresses are needed.
    pub(crate) fn remove_port(&mut self, port: &str, now: u64) {
        let Some(former) = self.ports.remove(port) else { return };
        let addresses = former.own.fixed.iter().copied().chain(former.leases.iter().map(|lease| lease.address));
        addresses.for_each(|address| self.disown(address, port));
        let lower = port.to_ascii_lowercase();
        if let Some(called) = self.names.get_mut(&lower) {
            called.retain(|other| **other != *port);
            if called.is_empty() {
                self.names.remove(&lower);
            }
        }
        if !former.leases.is_empty() {
            self.changed.insert(port.into());
        }
        self.departed.keep(port, former.leases.into_iter().filter(|lease| !former.own.fixed.contains(&lease.address)), now);
    }

    pub(crate) fn disown(&mut self, address: IpAddr, port: &str) {
        if self.owners.get(&address).is_some_and(|owner| **owner == *port) {
            self.owners.remove(&address);
        }
    }

    /// Ends the lease of `port` for `address`.
    pub(crate) fn end(&mut self, port: &str, address: IpAddr) {
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

    /// The address that `holder` at `port` gets: a static one, its present one, or a new one, if it may be that which it `wanted`.
    ///
    /// # Errors
    /// No address is free for the port.
    pub(crate) fn address_for(
        &mut self,
        settings: &Settings,
        port: &str,
        holder: Holder,
        (is_v4, wanted): (bool, Option<IpAddr>),
        now: u64,
    ) -> Result<IpAddr, Refused> {
        let entry = self.ports.get(port).ok_or(Refused::NotAsked)?;
        if let Some(fixed) = entry.fixed(settings, is_v4) {
            return Ok(fixed);
        }
        let is_its = |lease: &&Lease| {
            let is_dhcp = matches!(lease.kind, LeaseKind::Leased | LeaseKind::Offered);
            is_dhcp && lease.holder == holder && lease.address.is_ipv4() == is_v4
        };
        if let Some(lease) = entry.leases.iter().find(is_its) {
            return Ok(lease.address);
        }
        let wanted = wanted.filter(|address| {
            let is_free = address.is_ipv4() == is_v4 && settings.is_leasable(*address) && self.is_free(*address, holder, now);
            is_free && !self.seen.by_other(*address, holder.mac)
        });
        let has_room = self.make_room(settings, port, is_v4, now);
        let found = has_room.then(|| wanted.or_else(|| self.free_address(settings, port, holder, is_v4, now))).flatten();
        found.ok_or_else(|| {
            self.ports.get_mut(port).into_iter().for_each(|entry| entry.refused = Some(now));
            Refused::NoAddress
        })
    }

    /// Whether no port has `address`, and none that has left for another client than `holder`.
    fn is_free(&self, address: IpAddr, holder: Holder, now: u64) -> bool {
        !self.owners.contains_key(&address) && !self.departed.keeps_from(holder, address, now)
    }

    /// A free address, or else that of an expired lease, or of a port that has left.
    fn free_address(&mut self, settings: &Settings, port: &str, holder: Holder, is_v4: bool, now: u64) -> Option<IpAddr> {
        let (first, count) = settings.pool(is_v4)?;
        let address = |number: u128| match is_v4 {
            true => IpAddr::V4(Ipv4Addr::from((first + number) as u32)),
            false => IpAddr::V6(Ipv6Addr::from(first + number)),
        };
        let hash = short_hash(port.bytes().chain(holder.bytes()));
        let begin = u128::from(hash ^ hash >> 32) % count.max(1);
        // Each step meets an address that is owned, kept or claimed: no more than owners and kept ones, and claims up to a bound.
        let steps = count.min((self.owners.len() + self.departed.len() + 1 + MOST_CLAIMS) as u128);
        let mut free = (0..steps).map(|step| address((begin + step) % count)).filter(|address| self.is_free(*address, holder, now));
        // A server should not give an address that is in use (RFC 2131, section 3.1); a guest that claims all takes none away.
        let unclaimed = free.clone().take(1 + MOST_CLAIMS).find(|address| !self.seen.by_other(*address, holder.mac));
        let found = unclaimed.or_else(|| free.next());
        let found = found.or_else(|| {
            let expired = self.ports.iter().find_map(|(name, entry)| {
                let is_over = |lease: &&Lease| lease.address.is_ipv4() == is_v4 && lease.until <= now;
                let lease = entry.leases.iter().find(|lease| is_over(lease) && !entry.own.fixed.contains(&lease.address))?;
                Some((Arc::clone(name), lease.address))
            });
            let (owner, address) = expired?;
            self.end(&owner, address);
            Some(address)
        });
        found.or_else(|| {
            let address = self.departed.first_to_end(is_v4)?;
            self.departed.give_up(address).map(|lease| lease.address)
        })
    }

    /// Whether `port` may have another lease. Ends records that are no running leases where they take its room: an expired one, or
    /// the oldest offer, which need not be kept (RFC 2131, section 3.1).
    fn make_room(&mut self, settings: &Settings, port: &str, is_v4: bool, now: u64) -> bool {
        let Some(entry) = self.ports.get(port) else { return false };
        let records = entry.leases.iter().filter(|lease| lease.kind.is_given() && lease.address.is_ipv4() == is_v4);
        let oldest = |lease: &&Lease| lease.since;
        let expired = records.clone().filter(|lease| lease.until <= now).min_by_key(oldest).map(|lease| lease.address);
        let offer = records.clone().filter(|lease| lease.kind == LeaseKind::Offered).min_by_key(oldest).map(|lease| lease.address);
        if let Some(address) = expired.filter(|_| records.count() >= MOST_LEASES) {
            self.end(port, address);
        }
        if self.has_room(settings, port, is_v4, now) {
            return true;
        }
        offer.into_iter().for_each(|address| self.end(port, address));
        offer.is_some() && self.has_room(settings, port, is_v4, now)
    }

    fn has_room(&self, settings: &Settings, port: &str, is_v4: bool, now: u64) -> bool {
        let Some(entry) = self.ports.get(port) else { return false };
        let count = settings.pool(is_v4).map_or(0, |(_, count)| usize::try_from(count).unwrap_or(usize::MAX));
        let (mut taken, mut without) = (0, 0);
        for (name, other) in &self.ports {
            let fixed = other.own.fixed.iter().filter(|address| address.is_ipv4() == is_v4 && settings.is_leasable(**address));
            let leased = other.leases.iter().filter(|lease| settings.is_leasable(lease.address) && now < lease.until);
            taken += fixed.count() + leased.filter(|lease| lease.address.is_ipv4() == is_v4).count();
            without += usize::from(**name != *port && !other.has_address(settings, is_v4, now));
        }
        let (free, own) = (count.saturating_sub(taken), entry.given(is_v4, now).count());
        let most = entry.own.leases.map_or((free + own) / 2, |most| most as usize).clamp(1, MOST_LEASES);
        own < most && free > if own == 0 { 0 } else { without }
    }

    /// Running leases of `port`, if it was lately refused another one.
    pub(crate) fn shortage(&self, port: &str, now: u64) -> Option<usize> {
        let entry = self.ports.get(port)?;
        entry.refused.filter(|refused| now < refused + TOLD)?;
        Some(entry.leases.iter().filter(|lease| lease.kind.is_given() && now < lease.until).count())
    }

    /// Records a lease of `address` by `holder` at `port`, and returns whether it is the port's: no other port has it.
    pub(crate) fn enter(
        &mut self,
        settings: &Settings,
        port: &str,
        (address, holder): (IpAddr, Holder),
        kind: LeaseKind,
        now: u64,
    ) -> bool {
        if !settings.may_have(address) || self.owners.get(&address).is_some_and(|owner| **owner != *port) {
            return false;
        }
        let until = match kind {
            LeaseKind::Offered => now + OFFER,
            LeaseKind::Declined => now + DECLINE,
            LeaseKind::Leased => now + LEASE,
            LeaseKind::Expected | LeaseKind::Probed | LeaseKind::Claimed => u64::MAX,
        };
        let lease = Lease { address, holder, kind, since: now, until, rival: None };
        let is_less = |mac| kind == LeaseKind::Offered || (mac == holder.mac && kind != LeaseKind::Declined);
        let Some((name, entry)) = self.ports.get_key_value(port).map(|(name, _)| Arc::clone(name)).zip(self.ports.get_mut(port))
        else {
            return false;
        };
        match entry.leases.iter_mut().find(|known| known.address == address) {
            // An offer takes nothing from a lease, also of a static address that another machine has, nor an expectation from a claim.
            Some(known) if known.is_active(now) && kind < known.kind && is_less(known.holder.mac) => known.since = now,
            Some(known) => {
                // A lease that is longer now is news, too: the address map is told of its end.
                let is_news = known.holder.mac != holder.mac || known.kind != kind || known.until != lease.until;
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
        self.departed.give_up(address);
        true
    }

    /// Keeps a lease for a port that is not there; false if there is none to keep.
    pub(crate) fn keep_for(
        &mut self,
        settings: &Settings,
        port: &str,
        (address, holder): (IpAddr, Holder),
        kind: LeaseKind,
        now: u64,
    ) -> bool {
        if kind != LeaseKind::Leased || !settings.may_have(address) || self.owners.contains_key(&address) {
            return false;
        }
        self.departed.keep(port, [Lease { address, holder, kind, since: now, until: now + LEASE, rival: None }], now);
        true
    }

    /// Ends the lease of `holder` at `port` for `address`, which stays the port's until it is needed.
    pub(crate) fn release(&mut self, port: &str, address: IpAddr, holder: Holder, now: u64) {
        let Some(entry) = self.ports.get_mut(port) else { return };
        let lease =
            entry.leases.iter_mut().find(|lease| lease.address == address && lease.holder == holder && lease.is_active(now));
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

    /// MAC address of the machine that has `address`, if it is known.
    pub(crate) fn holder_of(&self, address: IpAddr) -> Option<MacAddress> {
        let entry = self.ports.get(self.owner(address)?)?;
        entry.leases.iter().find(|lease| lease.address == address).map(|lease| lease.holder.mac)
    }

    /// Whether only the responder receives probes of `port`.
    pub(crate) fn is_guarded(&self, port: &str) -> bool {
        self.ports.get(port).is_some_and(|entry| entry.own.is_guarded)
    }

    /// The port called `name`, in any case.
    pub(crate) fn port_called(&self, name: &str) -> Option<&str> {
        self.names.get(&name.to_ascii_lowercase())?.first().map(|name| &**name)
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
