//! Rules about the frames of a port, compiled from its settings for the verdict: its identity, and the services it may offer.
//!
//! A worker keeps a reference to the rules with each transmit queue, and exchanges it when their version changes, so that frames
//! meet no lock.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use memlane_model::addresses::{AllowedPair, Inside, Prefix, Service};
use memlane_model::recording;

use super::{AntiSpoof, PortLimits};
use crate::frame::MacAddress;
use crate::headers::link_local;
use crate::id::PortId;
use crate::twin::Twin;

/// Addresses that guests make of an IPv6 prefix (RFC 4862): a probe for one that the port does not have goes to the responder alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autoconf {
    /// The prefix, of 64 bits.
    pub prefix: Ipv6Addr,
    /// The responder, which gives addresses to ports: the first one that probes has it (RFC 6620).
    pub responder: PortId,
}

impl Autoconf {
    /// Whether a guest may make `address`: of the prefix, or link-local.
    fn contains(&self, address: Ipv6Addr) -> bool {
        address.is_unicast_link_local() || u128::from(address) >> 64 == u128::from(self.prefix) >> 64
    }
}

/// The addresses that a port may use, with `anti-spoof = "all"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// With any MAC address of the port; the last ones are leased.
    addresses: Vec<Prefix>,
    /// How many are leased.
    leased: usize,
    /// With this MAC address.
    pairs: Vec<(MacAddress, Prefix)>,
    /// Addresses that its guests may make.
    autoconf: Option<Autoconf>,
    /// The port may answer as a DHCP server.
    pub serves_dhcp: bool,
    /// The port may send router advertisements and redirects.
    pub serves_ra: bool,
}

impl Identity {
    /// Whether `mac`, a MAC address of the port, may use `address`: a configured one, or the link-local address made of it.
    pub fn may_use(&self, mac: MacAddress, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        self.addresses.iter().any(|own| own.contains(address))
            || self.pairs.iter().any(|&(with, own)| with == mac && own.contains(address))
            || address == link_local(mac)
    }

    /// The responder that decides if the port may have `address`, which its guest probes for.
    pub fn responder_for(&self, address: Ipv6Addr) -> Option<PortId> {
        self.autoconf.filter(|autoconf| autoconf.contains(address)).map(|autoconf| autoconf.responder)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRules {
    /// The source MAC address must be its own.
    pub is_guarded: bool,
    /// MAC addresses that it may use beside the one that is pinned to it.
    pub macs: Vec<MacAddress>,
    /// All its addresses must be its own.
    pub identity: Option<Identity>,
    /// The port may answer as a DHCP server, so that the switch learns leases from it.
    pub tells_leases: bool,
    /// Groups by which policy rules name it.
    pub groups: Vec<String>,
    /// Addresses that are exchanged in its frames, if its guest is a twin.
    pub twin: Option<Twin>,
}

impl PortRules {
    /// No rules.
    pub const NONE: Self =
        Self { is_guarded: false, macs: Vec::new(), identity: None, tells_leases: false, groups: Vec::new(), twin: None };

    /// The rules as a recording has them.
    pub(crate) fn saved(&self) -> recording::Sender {
        let identity = self.identity.as_ref().map(|identity| recording::Identity {
            addresses: identity.addresses.clone(),
            leased: identity.leased,
            pairs: identity.pairs.iter().map(|(mac, prefix)| (mac.to_string(), *prefix)).collect(),
            autoconf: identity.autoconf.map(|Autoconf { prefix, responder }| (prefix, responder.0)),
            serves_dhcp: identity.serves_dhcp,
            serves_ra: identity.serves_ra,
        });
        let macs = self.macs.iter().map(ToString::to_string).collect();
        let (is_guarded, tells_leases, groups) = (self.is_guarded, self.tells_leases, self.groups.clone());
        recording::Sender { is_guarded, macs, identity, tells_leases, groups, ..recording::Sender::default() }
    }

    /// The rules of a recording; MAC addresses that are none are left out.
    pub(crate) fn restored(saved: &recording::Sender) -> Self {
        let identity = saved.identity.as_ref().map(|identity| Identity {
            addresses: identity.addresses.clone(),
            leased: identity.leased,
            pairs: identity.pairs.iter().filter_map(|(mac, prefix)| Some((mac.parse().ok()?, *prefix))).collect(),
            autoconf: identity.autoconf.map(|(prefix, responder)| Autoconf { prefix, responder: PortId(responder) }),
            serves_dhcp: identity.serves_dhcp,
            serves_ra: identity.serves_ra,
        });
        let macs = saved.macs.iter().filter_map(|mac| mac.parse().ok()).collect();
        let (is_guarded, tells_leases, groups) = (saved.is_guarded, saved.tells_leases, saved.groups.clone());
        Self { is_guarded, macs, identity, tells_leases, groups, twin: None }
    }

    /// The same, with the addresses that were leased to the port in `recorded`, and those that its guests may make.
    #[must_use]
    pub(crate) fn leased_as(mut self, recorded: &Self) -> Self {
        if let (Some(identity), Some(recorded)) = (&mut self.identity, &recorded.identity) {
            let first = recorded.addresses.len().saturating_sub(recorded.leased);
            identity.addresses.extend(recorded.addresses.get(first..).unwrap_or_default());
            (identity.leased, identity.autoconf) = (recorded.leased, recorded.autoconf);
        }
        self
    }

    /// The rules by these settings.
    pub fn of(limits: &PortLimits) -> Self {
        let is_guarded = limits.anti_spoof != AntiSpoof::Off;
        let macs = limits.allowed.iter().filter_map(|pair| pair.mac).collect();
        let with_any = limits.allowed.iter().filter(|pair| pair.mac.is_none()).filter_map(|pair| pair.ip);
        let identity = || Identity {
            addresses: limits.addresses.iter().copied().map(Prefix::from).chain(with_any).collect(),
            leased: 0,
            pairs: limits.allowed.iter().filter_map(|pair| pair.mac.zip(pair.ip)).collect(),
            autoconf: None,
            serves_dhcp: limits.may_serve.contains(&Service::Dhcp),
            serves_ra: limits.may_serve.contains(&Service::Ra),
        };
        let tells_leases = limits.may_serve.contains(&Service::Dhcp);
        let identity = (limits.anti_spoof == AntiSpoof::All).then(identity);
        Self { is_guarded, macs, identity, tells_leases, groups: limits.groups.clone(), twin: None }
    }
}

/// The present rules of a port or of the network, with a version by which a worker sees that they changed.
#[derive(Debug, Default)]
pub struct Published<R> {
    rules: Mutex<Present<R>>,
    version: AtomicU32,
}

#[derive(Debug, Default)]
struct Present<R> {
    /// The rules by the port's settings.
    configured: R,
    /// Addresses that were leased to the port.
    leased: Vec<Prefix>,
    /// Addresses that its guests may make.
    autoconf: Option<Autoconf>,
    /// Addresses that are exchanged.
    twin: Option<Twin>,
    /// All together.
    rules: Arc<R>,
}

impl Published<PortRules> {
    /// Uses `rules` from now on.
    pub(crate) fn set(&self, rules: PortRules) {
        self.change(|present| present.configured = rules);
    }

    /// Allows these addresses beside the configured ones from now on: they were leased to the port.
    pub fn set_leased(&self, addresses: &[IpAddr]) {
        self.change(|present| present.leased = addresses.iter().copied().map(Prefix::from).collect());
    }

    /// Exchanges these addresses from now on, or none.
    pub(crate) fn set_twin(&self, twin: Option<Twin>) {
        self.change(|present| present.twin = twin);
    }

    /// Guests of the port may make these addresses from now on.
    pub fn set_autoconf(&self, autoconf: Autoconf) {
        self.change(|present| present.autoconf = Some(autoconf));
    }

    fn change(&self, change: impl FnOnce(&mut Present<PortRules>)) {
        let present = &mut *self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        change(present);
        let mut rules = present.configured.clone();
        if let Some(identity) = &mut rules.identity {
            identity.addresses.extend(&present.leased);
            identity.leased = present.leased.len();
            identity.autoconf = present.autoconf;
        }
        rules.twin.clone_from(&present.twin);
        if *present.rules != rules {
            present.rules = Arc::new(rules);
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

impl<R> Published<R> {
    /// Uses `rules` from now on.
    pub fn replace(&self, rules: R) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).rules = Arc::new(rules);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The present rules.
    pub fn get(&self) -> Arc<R> {
        Arc::clone(&self.rules.lock().unwrap_or_else(PoisonError::into_inner).rules)
    }
}

/// A worker's reference to rules.
#[derive(Debug, Default)]
pub struct KnownRules<R> {
    rules: Arc<R>,
    version: u32,
}

impl<R> KnownRules<R> {
    /// Of these.
    pub fn new(published: &Published<R>) -> Self {
        // The version first: rules that come between are fetched once more.
        let version = published.version.load(Ordering::Acquire);
        Self { rules: published.get(), version }
    }

    /// Exchanges rules that were replaced; true if they were.
    #[inline]
    pub fn refresh(&mut self, published: &Published<R>) -> bool {
        self.exchange(published).is_some()
    }

    /// Exchanges rules that were replaced; returns the former ones if they were.
    #[inline]
    pub fn exchange(&mut self, published: &Published<R>) -> Option<Arc<R>> {
        let is_old = published.version.load(Ordering::Relaxed) != self.version;
        is_old.then(|| std::mem::replace(self, Self::new(published)).rules)
    }

    /// The rules.
    #[inline]
    pub fn get(&self) -> &R {
        &self.rules
    }

    /// The reference itself.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<R> {
        &self.rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_allows_its_own_combination_only() {
        let [own, virtual_mac] = [[2, 0, 0, 0, 0, 1], [0, 0, 0x5e, 0, 1, 7]].map(MacAddress::new);
        let limits = PortLimits {
            anti_spoof: AntiSpoof::All,
            addresses: vec!["10.0.0.5".parse().unwrap()],
            allowed: vec![
                AllowedPair { mac: Some(virtual_mac), ip: "10.0.0.100".parse().ok() },
                AllowedPair { mac: None, ip: "10.1.0.0/16".parse().ok() },
            ],
            ..PortLimits::default()
        };
        let rules = PortRules::of(&limits);
        assert_eq!(rules.macs, [virtual_mac]);
        let identity = rules.identity.unwrap();
        let may = |mac, ip: &str| identity.may_use(mac, ip.parse::<IpAddr>().unwrap());
        // VRRP advertisements have the router's own address behind the virtual MAC address (RFC 9568, section 5.1.1.1).
        assert!(may(own, "10.0.0.5") && may(virtual_mac, "10.0.0.5") && may(virtual_mac, "10.0.0.100") && may(own, "10.1.2.3"));
        assert!(!may(own, "10.0.0.100") && !may(own, "10.0.0.6"));
        assert!(may(own, "fe80::ff:fe00:1") && !may(virtual_mac, "fe80::ff:fe00:1"));
    }

    #[test]
    fn leased_addresses_are_allowed_until_they_are_not_and_outlast_changes_of_settings() {
        let published = Published::<PortRules>::default();
        let mac = MacAddress::new([2, 0, 0, 0, 0, 1]);
        let may = |ip: &str| {
            published.get().identity.as_ref().is_some_and(|identity| identity.may_use(mac, ip.parse::<IpAddr>().unwrap()))
        };
        published.set_leased(&["10.0.0.7".parse().unwrap()]);
        assert_eq!(*published.get(), PortRules::NONE, "a port without identity needs none");
        let limits =
            PortLimits { anti_spoof: AntiSpoof::All, addresses: vec!["10.0.0.5".parse().unwrap()], ..PortLimits::default() };
        published.set(PortRules::of(&limits));
        assert!(may("10.0.0.5") && may("10.0.0.7") && !may("10.0.0.8"));
        published.set_leased(&["10.0.0.8".parse().unwrap()]);
        assert!(may("10.0.0.5") && !may("10.0.0.7") && may("10.0.0.8"));
    }

    #[test]
    fn a_worker_sees_that_rules_changed() {
        let published = Published::<PortRules>::default();
        let mut known = KnownRules::new(&published);
        published.set(PortRules::default());
        assert!(!known.refresh(&published), "they are the same");
        published.set(PortRules { is_guarded: true, ..PortRules::default() });
        assert!(known.refresh(&published) && known.get().is_guarded && !known.refresh(&published));
    }
}
