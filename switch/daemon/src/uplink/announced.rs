//! Outbound: the MAC addresses of this host that are announced to the others. Each gets an entry in the bridge's FDB, from which
//! FRR announces it (BGP EVPN).
//!
//! An address that the operator tied to a port is announced as soon as the port runs. A learned address is an unverified claim of
//! a guest, so announcements have limits: a number of addresses for each port, a rate limit, and no address that another host has
//! announced.

use std::collections::{HashMap, HashSet};

use crate::frame::MacAddress;
use crate::id::PortId;

/// Most learned addresses of a port that are announced. Addresses beyond are reached all the same, by flooding.
pub const MOST: u32 = 128;
/// Burst of the token bucket for a port's announcements, and its tokens per second.
const BURST: f64 = 64.0;
const RATE: f64 = 8.0;

/// A MAC address at a running port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The address.
    pub address: MacAddress,
    /// Its port.
    pub port: PortId,
    /// Tied to the port by the operator.
    pub pinned: bool,
}

/// A change to the bridge's FDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add an entry: the address is at this host.
    Here(MacAddress),
    /// Remove the entry.
    Gone(MacAddress),
}

/// Announcements of a port, and its token bucket.
#[derive(Debug)]
struct Terms {
    told: u32,
    /// Tokens.
    credit: f64,
    /// Second of their last update.
    at: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Announced {
    told: HashMap<MacAddress, Station>,
    terms: HashMap<PortId, Terms>,
    /// Addresses that the last update left out: no token, too many of the port, or announced by another host.
    held_back: usize,
    /// Some of them may be announced later, without any other change.
    owed: bool,
}

impl Announced {
    /// Updates the announcements to `stations` in second `now`; returns the changes to the bridge's FDB. `is_remote` says whether
    /// another host has announced an address.
    pub fn update(&mut self, stations: &[Station], now: f64, is_remote: impl Fn(MacAddress) -> bool) -> Vec<Change> {
        let present: HashSet<(MacAddress, PortId)> = stations.iter().map(|station| (station.address, station.port)).collect();
        let gone: Vec<Station> =
            self.told.values().filter(|station| !present.contains(&(station.address, station.port))).copied().collect();
        let mut changes = Vec::new();
        for station in gone {
            self.told.remove(&station.address);
            if let Some(terms) = self.terms.get_mut(&station.port).filter(|_| !station.pinned) {
                terms.told -= 1;
            }
            changes.push(Change::Gone(station.address));
        }
        (self.held_back, self.owed) = (0, false);
        for station in stations {
            if self.told.contains_key(&station.address) {
                continue;
            }
            if station.pinned || !is_remote(station.address) && self.may_tell(station.port, now) {
                self.told.insert(station.address, *station);
                changes.push(Change::Here(station.address));
            } else {
                self.held_back += 1;
            }
        }
        let ports: HashSet<PortId> = stations.iter().map(|station| station.port).collect();
        // A port that was detached and attached again gets no new tokens.
        self.terms.retain(|port, terms| ports.contains(port) || terms.reckon(now) < BURST);
        changes
    }

    fn may_tell(&mut self, port: PortId, now: f64) -> bool {
        let terms = self.terms.entry(port).or_insert(Terms { told: 0, credit: BURST, at: now });
        if terms.told >= MOST {
            return false;
        }
        if terms.reckon(now) < 1.0 {
            self.owed = true;
            return false;
        }
        terms.credit -= 1.0;
        terms.told += 1;
        true
    }

    /// The FDB entry of `address` was overwritten: it is added again, if the address is still at this host.
    pub fn retract(&mut self, address: MacAddress) {
        let Some(station) = self.told.remove(&address) else { return };
        if let Some(terms) = self.terms.get_mut(&station.port).filter(|_| !station.pinned) {
            terms.told -= 1;
        }
    }

    /// The entry of an announced address.
    pub fn station(&self, address: MacAddress) -> Option<Station> {
        self.told.get(&address).copied()
    }

    /// Number of announced addresses.
    pub fn count(&self) -> usize {
        self.told.len()
    }

    /// Number of addresses that are not announced.
    pub fn held_back(&self) -> usize {
        self.held_back
    }

    /// Whether the passage of time alone allows more announcements.
    pub fn is_owed(&self) -> bool {
        self.owed
    }
}

impl Terms {
    fn reckon(&mut self, now: f64) -> f64 {
        self.credit = (self.credit + (now - self.at).max(0.0) * RATE).min(BURST);
        self.at = now;
        self.credit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> MacAddress {
        let [a, b, c, d] = n.to_be_bytes();
        MacAddress::new([2, 0, a, b, c, d])
    }

    fn station(n: u32, port: u16, pinned: bool) -> Station {
        Station { address: address(n), port: PortId(port), pinned }
    }

    fn nobody(_: MacAddress) -> bool {
        false
    }

    #[test]
    fn who_comes_is_told_of_once_and_who_goes_too() {
        let mut announced = Announced::default();
        let two = [station(1, 0, true), station(2, 1, false)];
        assert_eq!(announced.update(&two, 0.0, nobody), [Change::Here(address(1)), Change::Here(address(2))]);
        assert_eq!(announced.update(&two, 1.0, nobody), []);
        assert_eq!(announced.update(&two[..1], 2.0, nobody), [Change::Gone(address(2))]);
        assert_eq!((announced.count(), announced.held_back()), (1, 0));
    }

    #[test]
    fn who_moves_between_ports_is_told_of_again() {
        let mut announced = Announced::default();
        announced.update(&[station(1, 0, false)], 0.0, nobody);
        let changes = announced.update(&[station(1, 3, false)], 1.0, nobody);
        assert_eq!(changes, [Change::Gone(address(1)), Change::Here(address(1))]);
        assert_eq!(announced.station(address(1)), Some(station(1, 3, false)));
    }

    #[test]
    fn a_guest_cannot_take_another_hosts_address_but_the_operator_can() {
        let mut announced = Announced::default();
        let both = [station(1, 0, false), station(2, 1, true)];
        assert_eq!(announced.update(&both, 0.0, |_| true), [Change::Here(address(2))]);
        assert_eq!(announced.held_back(), 1);
        assert_eq!(announced.update(&both, 1.0, nobody), [Change::Here(address(1))], "once the other host has given it up");
    }

    #[test]
    fn a_guest_that_invents_addresses_tells_others_of_few() {
        let mut announced = Announced::default();
        let many: Vec<_> = (0..1000).map(|n| station(n, 7, false)).collect();
        assert_eq!(announced.update(&many, 0.0, nobody).len(), BURST as usize);
        assert!(announced.is_owed());
        assert_eq!(announced.update(&many, 1.0, nobody).len(), RATE as usize);
        (2..100).for_each(|second| drop(announced.update(&many, f64::from(second), nobody)));
        assert_eq!((announced.count(), announced.is_owed()), (MOST as usize, false));
        assert_eq!(announced.held_back(), 1000 - MOST as usize);
        let quiet = station(5000, 8, false);
        let changes = announced.update(&[&many[..], &[quiet]].concat(), 100.0, nobody);
        assert_eq!(changes, [Change::Here(quiet.address)], "others are told of as before");
    }

    #[test]
    fn addresses_that_come_and_go_gain_nothing() {
        let mut announced = Announced::default();
        let mut told = 0;
        for round in 0..100 {
            let few: Vec<_> = (0..100).map(|n| station(round * 100 + n, 7, false)).collect();
            let changes = announced.update(&few, f64::from(round) / 10.0, nobody);
            told += changes.iter().filter(|change| matches!(change, Change::Here(_))).count();
            announced.update(&[], f64::from(round) / 10.0, nobody);
        }
        assert!(told as f64 <= BURST + 10.0 * RATE, "{told}");
    }

    #[test]
    fn what_was_overwritten_is_told_again() {
        let mut announced = Announced::default();
        announced.update(&[station(1, 0, true)], 0.0, nobody);
        announced.retract(address(1));
        assert_eq!(announced.update(&[station(1, 0, true)], 1.0, nobody), [Change::Here(address(1))]);
    }
}
