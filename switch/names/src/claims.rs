//! Claims: addresses that guests make of the IPv6 prefix, and link-local ones. The first port that probes for an address owns it (RFC 6620).
//!
//! A probe of duplicate address detection is a question (RFC 4862, section 5.4): for [`TENTATIVE`] seconds the address is the prober's unless
//! another machine defends it, so that no other port can take it meanwhile. One that the owner defends stays the owner's. A port has at most
//! [`MOST_CLAIMS`] claims: beyond it, one that was not seen for [`STALE`] seconds ends, or the new one is refused.

use std::net::IpAddr;
use std::sync::Arc;

use memlane_virtq::frame::MacAddress;

use crate::exchange::Refused;
use crate::lease::{Lease, LeaseKind};
use crate::leases::Leases;
use crate::settings::Settings;

/// Seconds after a probe in which a defence ends its claim: more than a guest waits for one (RFC 4861, section 10: RETRANS_TIMER).
const TENTATIVE: u64 = 2;
/// Most claims of a port: stable, temporary (RFC 8981) and link-local addresses of the machines behind it.
pub const MOST_CLAIMS: usize = 32;
/// Seconds without use after which a claim may end for another one of its port (RFC 6620, section 4.2: DEFAULT_LT is 300).
const STALE: u64 = 600;

/// A claim that ended because another machine defended the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The port of the claimant.
    pub port: Arc<str>,
    /// MAC address of the claimant.
    pub mac: MacAddress,
}

impl Leases {
    /// Records that `mac` at `port` probes for `address`.
    ///
    /// # Errors
    /// The address is another port's, or the port has too many.
    pub(crate) fn probe(
        &mut self,
        settings: &Settings,
        port: &str,
        address: IpAddr,
        mac: MacAddress,
        now: u64,
    ) -> Result<(), Refused> {
        if !settings.may_have(address) {
            return Err(Refused::NotAsked);
        }
        if self.owner(address).is_some_and(|owner| owner != port) {
            return Err(Refused::NotOwner);
        }
        match self.known(port, address).filter(|known| known.is_active(now)) {
            // A lease stays its client's until it ends.
            Some(known) if known.holder.mac != mac && known.kind.is_given() => return Err(Refused::NotOwner),
            Some(known) if known.holder.mac != mac => known.rival = known.rival.or(Some((mac, now))),
            Some(_) => {
                self.enter(settings, port, (address, mac.into()), LeaseKind::Probed, now);
            }
            None => self.claim(settings, port, (address, mac), LeaseKind::Probed, now)?,
        }
        self.tentative.insert((port.into(), address));
        Ok(())
    }

    /// Records that `mac` at `port` may form `address` of the prefix.
    pub(crate) fn expect(&mut self, settings: &Settings, port: &str, address: IpAddr, mac: MacAddress, now: u64) {
        let is_free = self.owner(address).is_none_or(|owner| owner == port);
        if is_free && self.known(port, address).is_none() {
            // A guest that has too many addresses probes for this one, too.
            let _ = self.claim(settings, port, (address, mac), LeaseKind::Expected, now);
        }
    }

    fn claim(
        &mut self,
        settings: &Settings,
        port: &str,
        (address, mac): (IpAddr, MacAddress),
        kind: LeaseKind,
        now: u64,
    ) -> Result<(), Refused> {
        self.make_room_for_claim(port, now)?;
        self.enter(settings, port, (address, mac.into()), kind, now).then_some(()).ok_or(Refused::NotOwner)
    }

    /// Ends the claim of `port` that has been out of use for longest, if it has as many as it may.
    fn make_room_for_claim(&mut self, port: &str, now: u64) -> Result<(), Refused> {
        let Some(entry) = self.ports.get(port) else { return Err(Refused::NotAsked) };
        let claims = entry.leases.iter().filter(|lease| !lease.kind.is_given());
        if claims.clone().count() < MOST_CLAIMS {
            return Ok(());
        }
        let age = |lease: &Lease| now.saturating_sub(lease.since);
        let idle = |lease: &&Lease| self.seen.idle(lease.address).map_or(age(lease), |idle| idle.min(age(lease)));
        let oldest = claims.max_by_key(idle).filter(|lease| idle(lease) >= STALE).map(|lease| lease.address);
        self.end(port, oldest.ok_or(Refused::NoAddress)?);
        Ok(())
    }

    /// The machine `mac` at `port` advertised `address`: it defends it, or has it. Returns the claim that ended by that, if one did.
    pub(crate) fn defend(&mut self, settings: &Settings, port: &str, address: IpAddr, mac: MacAddress, now: u64) -> Option<Lost> {
        let owner: Arc<str> = self.owner(address)?.into();
        let known = self.known(&owner, address)?;
        if known.holder.mac == mac && *owner == *port {
            known.rival = None;
            if known.kind == LeaseKind::Probed {
                self.enter(settings, port, (address, mac.into()), LeaseKind::Claimed, now);
            }
            return None;
        }
        if known.kind != LeaseKind::Probed || is_over(known.since, now) {
            return None;
        }
        let lost = Lost { port: Arc::clone(&owner), mac: known.holder.mac };
        self.end(&owner, address);
        // A port with too many addresses keeps this one as its own doing.
        let _ = self.claim(settings, port, (address, mac), LeaseKind::Claimed, now);
        Some(lost)
    }

    /// Makes claims of probes that went unanswered.
    pub(crate) fn settle(&mut self, now: u64) {
        let tentative = std::mem::take(&mut self.tentative);
        for (port, address) in tentative {
            let Some(known) = self.known(&port, address) else { continue };
            let is_claimed = known.kind == LeaseKind::Probed && is_over(known.since, now);
            if is_claimed {
                known.kind = LeaseKind::Claimed;
            }
            let successor = known.rival.take_if(|(_, since)| is_over(*since, now));
            if let Some((mac, _)) = successor {
                known.holder = mac.into();
            }
            let is_open = known.kind == LeaseKind::Probed || known.rival.is_some();
            if is_claimed || successor.is_some() {
                self.changed.insert(Arc::clone(&port));
            }
            if is_open {
                self.tentative.insert((port, address));
            }
        }
    }

    fn known(&mut self, port: &str, address: IpAddr) -> Option<&mut Lease> {
        self.ports.get_mut(port)?.leases.iter_mut().find(|lease| lease.address == address)
    }
}

/// Whether the time for a defence is over in second `now`.
fn is_over(since: u64, now: u64) -> bool {
    now >= since + TENTATIVE
}
