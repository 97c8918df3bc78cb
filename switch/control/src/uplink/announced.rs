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
pub struct AnnouncedAddress {
    /// The address.
    pub address: MacAddress,
    /// Port of the address.
    pub port: PortId,
    /// Tied to the port by the operator.
    pub pinned: bool,
}

/// A change to the bridge's FDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdbChange {
    /// Add an entry: the address is at this host.
    Here(MacAddress),
    /// Remove the entry.
    Gone(MacAddress),
}

/// Announcements of a port, and its token bucket.
#[derive(Debug)]
struct AnnounceSettings {
    told: u32,
    /// Tokens.
    credit: f64,
    /// Second of their last update.
    at: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Announced {
    told: HashMap<MacAddress, AnnouncedAddress>,
    settings: HashMap<PortId, AnnounceSettings>,
    /// Addresses that the last update left out: no token, too many of the port, or announced by another host.
    held_back: usize,
    /// Some of them may be announced later, without any other change.
    owed: bool,
}

impl Announced {
    /// Updates the announcements to `learned_addresses` in second `now`; returns the changes to the bridge's FDB. `is_remote` says whether
    /// another host has announced an address.
    pub fn update(
        &mut self,
        learned_addresses: &[AnnouncedAddress],
        now: f64,
        is_remote: impl Fn(MacAddress) -> bool,
    ) -> Vec<FdbChange> {
        let present: HashSet<(MacAddress, PortId)> =
            learned_addresses.iter().map(|learned_address| (learned_address.address, learned_address.port)).collect();
        let gone: Vec<AnnouncedAddress> = self
            .told
            .values()
            .filter(|learned_address| !present.contains(&(learned_address.address, learned_address.port)))
            .copied()
            .collect();
        let mut changes = Vec::new();
        for learned_address in gone {
            self.told.remove(&learned_address.address);
            if let Some(settings) = self.settings.get_mut(&learned_address.port).filter(|_| !learned_address.pinned) {
                settings.told -= 1;
            }
            changes.push(FdbChange::Gone(learned_address.address));
        }
        (self.held_back, self.owed) = (0, false);
        for learned_address in learned_addresses {
            if self.told.contains_key(&learned_address.address) {
                continue;
            }
            if learned_address.pinned || !is_remote(learned_address.address) && self.may_tell(learned_address.port, now) {
                self.told.insert(learned_address.address, *learned_address);
                changes.push(FdbChange::Here(learned_address.address));
            } else {
                self.held_back += 1;
            }
        }
        let ports: HashSet<PortId> = learned_addresses.iter().map(|learned_address| learned_address.port).collect();
        // A port that was detached and attached again gets no new tokens.
        self.settings.retain(|port, settings| ports.contains(port) || settings.reckon(now) < BURST);
        changes
    }

    /// Goes on with FDB entries that another process of the network has added; returns the changes that remove those of addresses that
    /// are not here any more.
    pub fn adopt(&mut self, learned_addresses: &[AnnouncedAddress], entries: &[MacAddress], now: f64) -> Vec<FdbChange> {
        let here: HashMap<MacAddress, AnnouncedAddress> =
            learned_addresses.iter().map(|learned_address| (learned_address.address, *learned_address)).collect();
        let mut gone = Vec::new();
        for address in entries {
            let Some(learned_address) = here.get(address) else {
                gone.push(FdbChange::Gone(*address));
                continue;
            };
            let is_new = self.told.insert(*address, *learned_address).is_none();
            if is_new && !learned_address.pinned {
                self.settings(learned_address.port, now).told += 1;
            }
        }
        gone
    }

    fn settings(&mut self, port: PortId, now: f64) -> &mut AnnounceSettings {
        self.settings.entry(port).or_insert(AnnounceSettings { told: 0, credit: BURST, at: now })
    }

    fn may_tell(&mut self, port: PortId, now: f64) -> bool {
        let settings = self.settings(port, now);
        if settings.told >= MOST {
            return false;
        }
        if settings.reckon(now) < 1.0 {
            self.owed = true;
            return false;
        }
        settings.credit -= 1.0;
        settings.told += 1;
        true
    }

    /// The FDB entry of `address` was overwritten: it is added again, if the address is still at this host.
    pub fn retract(&mut self, address: MacAddress) {
        let Some(learned_address) = self.told.remove(&address) else { return };
        if let Some(settings) = self.settings.get_mut(&learned_address.port).filter(|_| !learned_address.pinned) {
            settings.told -= 1;
        }
    }

    /// The entry of an announced address.
    pub fn learned_address(&self, address: MacAddress) -> Option<AnnouncedAddress> {
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

impl AnnounceSettings {
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

    fn learned_address(n: u32, port: u16, pinned: bool) -> AnnouncedAddress {
        AnnouncedAddress { address: address(n), port: PortId(port), pinned }
    }

    fn nobody(_: MacAddress) -> bool {
        false
    }

    #[test]
    fn who_comes_is_told_of_once_and_who_goes_too() {
        let mut announced = Announced::default();
        let two = [learned_address(1, 0, true), learned_address(2, 1, false)];
        assert_eq!(announced.update(&two, 0.0, nobody), [FdbChange::Here(address(1)), FdbChange::Here(address(2))]);
        assert_eq!(announced.update(&two, 1.0, nobody), []);
        assert_eq!(announced.update(&two[..1], 2.0, nobody), [FdbChange::Gone(address(2))]);
        assert_eq!((announced.count(), announced.held_back()), (1, 0));
    }

    #[test]
    fn who_moves_between_ports_is_told_of_again() {
        let mut announced = Announced::default();
        announced.update(&[learned_address(1, 0, false)], 0.0, nobody);
        let changes = announced.update(&[learned_address(1, 3, false)], 1.0, nobody);
        assert_eq!(changes, [FdbChange::Gone(address(1)), FdbChange::Here(address(1))]);
        assert_eq!(announced.learned_address(address(1)), Some(learned_address(1, 3, false)));
    }

    #[test]
    fn a_guest_cannot_take_another_hosts_address_but_the_operator_can() {
        let mut announced = Announced::default();
        let both = [learned_address(1, 0, false), learned_address(2, 1, true)];
        assert_eq!(announced.update(&both, 0.0, |_| true), [FdbChange::Here(address(2))]);
        assert_eq!(announced.held_back(), 1);
        assert_eq!(announced.update(&both, 1.0, nobody), [FdbChange::Here(address(1))], "once the other host has given it up");
    }

    #[test]
    fn a_guest_that_invents_addresses_tells_others_of_few() {
        let mut announced = Announced::default();
        let many: Vec<_> = (0..1000).map(|n| learned_address(n, 7, false)).collect();
        assert_eq!(announced.update(&many, 0.0, nobody).len(), BURST as usize);
        assert!(announced.is_owed());
        assert_eq!(announced.update(&many, 1.0, nobody).len(), RATE as usize);
        (2..100).for_each(|second| drop(announced.update(&many, f64::from(second), nobody)));
        assert_eq!((announced.count(), announced.is_owed()), (MOST as usize, false));
        assert_eq!(announced.held_back(), 1000 - MOST as usize);
        let quiet = learned_address(5000, 8, false);
        let changes = announced.update(&[&many[..], &[quiet]].concat(), 100.0, nobody);
        assert_eq!(changes, [FdbChange::Here(quiet.address)], "others are told of as before");
    }

    #[test]
    fn addresses_that_come_and_go_gain_nothing() {
        let mut announced = Announced::default();
        let mut told = 0;
        for round in 0..100 {
            let few: Vec<_> = (0..100).map(|n| learned_address(round * 100 + n, 7, false)).collect();
            let changes = announced.update(&few, f64::from(round) / 10.0, nobody);
            told += changes.iter().filter(|change| matches!(change, FdbChange::Here(_))).count();
            announced.update(&[], f64::from(round) / 10.0, nobody);
        }
        assert!(told as f64 <= BURST + 10.0 * RATE, "{told}");
    }

    #[test]
    fn what_was_overwritten_is_told_again() {
        let mut announced = Announced::default();
        announced.update(&[learned_address(1, 0, true)], 0.0, nobody);
        announced.retract(address(1));
        assert_eq!(announced.update(&[learned_address(1, 0, true)], 1.0, nobody), [FdbChange::Here(address(1))]);
    }
}
