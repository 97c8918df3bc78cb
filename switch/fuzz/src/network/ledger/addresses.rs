//! The ledger against the address maps of segments: they have what guests claimed and what DHCP servers leased, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use memlane::address_map::{Entry, Key, Source};
use memlane::frame::MacAddress;
use memlane::policy::rules::Service;

use super::super::frames::{Body, Frame, Packet};
use super::super::model::{Life, Verdict};
use super::{Account, Ledger, Taken};

/// Segment, VLAN and addresses of a claim, the port, and whether a DHCP server told it.
pub(super) type Claim = (usize, u16, IpAddr, MacAddress, u16, bool);

/// The last lease of an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// The MAC address, and the guest behind which it is, if both are known.
    holder: Option<(MacAddress, Life)>,
    iteration: u64,
}

impl Ledger {
    /// Notes the addresses that waiting frames tell: backpressure may have left them in transmit queues, and their port may go before they are taken.
    pub(super) fn note_waiting_claims(&mut self, taken: &[Taken], now: u64) {
        for taken in taken {
            let Some(frame) = taken.next.and_then(|next| self.made.get(&next)).cloned() else { continue };
            let verdicts = self.verdicts(taken.life, &frame, now, |_, _| {});
            self.note_claims(taken.life, &frame, &verdicts, false);
        }
    }

    /// Notes the addresses that a frame of `life` tells the switch, or perhaps tells, if it was not taken.
    pub(super) fn note_claims(&mut self, life: Life, frame: &Frame, verdicts: &[Verdict], was_taken: bool) {
        let lease = if let Body::Ip(Packet { lease, .. }) = &frame.body { *lease } else { None };
        let claims = frame.claims();
        let is_dropped = |verdict: &Verdict| matches!(verdict, Verdict::Drop(_));
        if lease.is_none() && claims.is_empty() || verdicts.iter().all(is_dropped) {
            return;
        }
        let states: Vec<_> =
            self.ports_of(life).map(|(config, from)| (from.segment, from.clone(), config.learns(from, frame))).collect();
        let is_sure = was_taken && states.len() == 1 && !verdicts.iter().any(is_dropped);
        let number = |accounts: &[Account], life: Life| accounts[life].ports.last().map_or(u16::MAX, |(port, _)| port.id.0);
        for (segment, from, vlan) in states {
            let Ok(vlan) = vlan else { continue };
            self.claims.extend(claims.iter().map(|&(ip, mac)| (segment, vlan, ip, mac, number(&self.accounts, life), false)));
            let Some((ip, mac)) = lease.filter(|_| from.serves(Service::Dhcp)) else { continue };
            let pinned = self.config().pinned(segment, mac);
            let learned = self.learned.get(&(segment, vlan, mac)).map(|learned| learned.behind.clone()).unwrap_or_default();
            let behind: BTreeSet<Option<Life>> =
                if is_sure && pinned.is_some() { [pinned].into() } else { learned.into_iter().chain(pinned.map(Some)).collect() };
            for &life in behind.iter().flatten() {
                self.claims.insert((segment, vlan, ip.into(), mac, number(&self.accounts, life), true));
            }
            let only = behind.first().copied().flatten().filter(|_| is_sure && behind.len() == 1);
            self.lease((segment, vlan, ip.into()), only.map(|life| (mac, life)));
        }
    }

    /// The address of `key` is leased to this machine and guest, if that is known.
    fn lease(&mut self, key: (usize, u16, IpAddr), holder: Option<(MacAddress, Life)>) {
        let is_unclear = |known: &Lease| known.iteration == self.iterations && known.holder != holder;
        let holder = holder.filter(|_| !self.leases.get(&key).is_some_and(is_unclear));
        self.leases.insert(key, Lease { holder, iteration: self.iterations });
    }

    /// No lease of an address behind `life` holds any more.
    pub(super) fn forget_leases(&mut self, life: Life) {
        self.leases.retain(|_, lease| lease.holder.is_none_or(|(_, behind)| behind != life));
    }

    /// Compares the address map of each segment with the claims of its guests and the leases of its DHCP servers. No frame is in flight.
    pub(super) fn check_addresses(&self) {
        let mut segments = BTreeMap::new();
        for state in self.config().ports.iter().flatten() {
            segments.extend(self.accounts[state.life].ports.last().map(|(port, _)| (state.segment, port)));
        }
        for (segment, port) in segments {
            let records = port.segment.addresses().records(0);
            let told = |source| matches!(source, Source::Dhcp);
            for (key, entry) in records.iter().filter(|(_, entry)| entry.source != Source::Configuration) {
                let claim = entry.mac.map(|mac| (segment, key.vlan, key.ip, mac, entry.port.0, told(entry.source)));
                let is_claimed = claim.is_none_or(|claim| self.claims.contains(&claim));
                assert!(is_claimed, "segment {segment} has {entry:?} for {key:?}, which no guest told");
            }
            let of_segment = self.leases.iter().filter(|((of, ..), _)| *of == segment);
            for ((_, vlan, ip), (mac, life)) in of_segment.filter_map(|(key, lease)| Some((key, lease.holder?))) {
                let has =
                    |(key, entry): &(Key, Entry)| (key.vlan, key.ip, entry.mac) == (*vlan, *ip, Some(mac)) && told(entry.source);
                assert!(records.iter().any(has), "segment {segment} has no lease of {ip} in VLAN {vlan} for {mac} of guest {life}");
            }
        }
    }
}
