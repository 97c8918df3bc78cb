//! Out: which stations of this host the others are told of. The bridge's forwarding table gets an entry for each, FRR announces what stands there.
//!
//! An address that the operator tied to a port is told as soon as the port runs. One that was only learned is a guest's word: so many of a port, so
//! many a second, and none that another host has told of.

use std::collections::{HashMap, HashSet};

use crate::frame::MacAddress;
use crate::id::PortId;

/// Most learned addresses of a port that are told of. What is beyond is reached all the same, by flooding.
pub const MOST: u32 = 128;
/// Learned addresses of a port that are told of at once, and then a second.
const BURST: f64 = 64.0;
const RATE: f64 = 8.0;

/// A station behind a port that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its address.
    pub address: MacAddress,
    /// Its port.
    pub port: PortId,
    /// The operator tied it to the port.
    pub pinned: bool,
}

/// What the bridge is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This address is here.
    Here(MacAddress),
    /// It is no more.
    Gone(MacAddress),
}

/// What a port may have told.
#[derive(Debug)]
struct Terms {
    told: u32,
    /// Addresses that it may have told now.
    credit: f64,
    /// Second in which that was reckoned.
    at: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Announced {
    told: HashMap<MacAddress, Station>,
    terms: HashMap<PortId, Terms>,
    /// Addresses that were not told of the last time for want of credit or room, or because they are another host's.
    held_back: usize,
    /// Some of them may be later, though nothing changes.
    owed: bool,
}

impl Announced {
    /// Takes note that there are `stations` in second `now`; returns what the bridge is to be told. `is_remote` says of an address whether another
    /// host has it.
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
        // A port that left and came again has not earned anything anew.
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

    /// What the bridge had been told of `address` holds no more there: it is told again, if it still holds here.
    pub fn retract(&mut self, address: MacAddress) {
        let Some(station) = self.told.remove(&address) else { return };
        if let Some(terms) = self.terms.get_mut(&station.port).filter(|_| !station.pinned) {
            terms.told -= 1;
        }
    }

    /// The station with this address of which others were told.
    pub fn station(&self, address: MacAddress) -> Option<Station> {
        self.told.get(&address).copied()
    }

    /// Stations that others were told of.
    pub fn count(&self) -> usize {
        self.told.len()
    }

    /// Those that they were not.
    pub fn held_back(&self) -> usize {
        self.held_back
    }

    /// Whether time alone lets others be told of more.
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
