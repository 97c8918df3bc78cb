//! The address map of one broadcast domain: the MAC address and the port of each IP address in a VLAN, with its origin.
//!
//! An entry comes from the configuration (`addresses` of a port), from a DHCP lease, from EVPN for a machine at another host, or from a
//! [claim](resolution) in ARP or neighbour discovery (ND). Where two machines claim an address, **precedence** decides:
//!
//! 1. The configuration, for as long as it says so.
//! 2. A DHCP lease, until it ends.
//! 3. The machine that claims it, against EVPN at once.
//! 4. Among machines that claim it, the last one: an address that moves is reached at once. But for [`SETTLING`] seconds the switch does
//!    not answer for it, so that questions are flooded and the earlier owner hears of them. If that one claims it again, it still answers:
//!    the address is **disputed**, stays with the earlier owner, and the switch answers for neither until [`DISPUTE`] seconds have passed
//!    without a claim by another.
//!
//! Each claim against precedence, each lease of an address that another machine claims, and each dispute is a **conflict**: it is counted, and
//! told as an event.
//!
//! The switch **answers** ARP requests and neighbour solicitations to all for addresses that it knows (RFC 1027, RFC 6957, RFC 9161): as
//! the owner would, to the asker only, and no other guest receives the question. A probe (RFC 5227, RFC 4862) is answered only where the
//! address is configured for another machine. The map is looked up for ARP and ND where a frame is flooded, and on segments with answers
//! also where one of them needs a verdict: a frame of the fast path never.
//!
//! The entries lie in shards, each behind a lock of its own that is held for one entry by a worker, and for one shard by the control side. A
//! worker does not wait for a lock for long: it then floods the frame and learns from the next one. A port has a quota of entries that its guest
//! causes.

#![expect(clippy::indexing_slicing, reason = "a hash modulo the number of shards")]

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use memlane_model::known_addresses::{AddressTotals, Source};

use crate::answer::Answer;
use crate::frame::MacAddress;
use crate::id::{MAX_PORTS, PortId};
use crate::policy::gate::Gate;
use crate::table::{DEFAULT_AGE, zeroed};
pub use conflicts::Conflict;
use conflicts::ConflictLog;
use resolution::{Claim, Resolution};

pub(crate) mod conflicts;
pub mod lease;
pub mod resolution;

/// Quota of entries of a port, except configured ones.
pub const QUOTA: u32 = 256;
/// The same of the uplink, behind which all other hosts are.
pub const UPLINK_QUOTA: u32 = 4096;
/// Seconds without answers after an address moved to another MAC address (DEFEND_INTERVAL of RFC 5227).
pub const SETTLING: u32 = 10;
/// Seconds without answers after a dispute.
pub const DISPUTE: u32 = 60;
/// Parts with a lock each.
const SHARDS: usize = 64;
/// Tries of a worker to get a lock: some ten microseconds.
const TRIES: usize = 2000;
/// The second of an entry that does not expire.
const NEVER: u32 = u32::MAX;

/// An IP address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The VLAN; 0 for frames without a tag.
    pub vlan: u16,
    /// The IP address.
    pub ip: IpAddr,
}

/// Owner of an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// MAC address; `None` for a configured address of a port without `mac`, until its guest claims it.
    pub mac: Option<MacAddress>,
    /// Port of the address.
    pub port: PortId,
    /// Origin of the entry.
    pub source: Source,
    /// Second of the last confirmation.
    pub confirmed: u32,
    /// Second in which it expires.
    expires: u32,
    /// The MAC address is configured, too.
    is_pinned: bool,
    /// Whether it is a router (RFC 4861, section 4.4); `None` if that is not known.
    pub router: Option<bool>,
    /// The owner before, for as long as the entry settles.
    former: Option<MacAddress>,
    /// Second from which the switch answers for it.
    settled: u32,
}

impl Entry {
    fn new(mac: Option<MacAddress>, port: PortId, source: Source, now: u32) -> Self {
        Self { mac, port, source, confirmed: now, expires: NEVER, is_pinned: false, router: None, former: None, settled: 0 }
    }

    /// Whether it holds in second `now`.
    pub fn is_live(&self, now: u32) -> bool {
        self.expires > now
    }

    /// Seconds from `now` until it expires, if it does.
    pub fn expires_in(&self, now: u32) -> Option<u32> {
        (self.expires != NEVER).then(|| self.expires.saturating_sub(now))
    }

    /// Whether the switch gives no answer for it in second `now`, because the address moved or is disputed.
    pub fn is_settling(&self, now: u32) -> bool {
        self.settled > now
    }

    /// Whether the operator or a DHCP server gave it to its port: it is no claim of a guest.
    pub fn is_assigned(&self) -> bool {
        matches!(self.source, Source::Configuration | Source::Dhcp)
    }

    /// Whether it counts against the quota of its port.
    fn is_dynamic(&self) -> bool {
        self.source != Source::Configuration
    }
}

/// Result of [`AddressMap::learn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address is known so, or is from now on.
    Known,
    /// The address is another's.
    Conflict,
    /// The port has used up its quota, or the map is in use at this moment.
    NoRoom,
}

/// A lease that a server in this process gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenLease {
    /// The address.
    pub ip: IpAddr,
    /// The MAC address of its machine.
    pub mac: MacAddress,
    /// Seconds until it ends.
    pub seconds: u32,
}

/// An answer that the switch gives.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The owner of the IP address that is asked for.
    pub owner: Entry,
    answer: Answer,
}

impl Given {
    /// The frame to the asker.
    pub fn frame(&self) -> &[u8] {
        self.answer.frame()
    }
}

#[derive(Debug, Default)]
struct Shard(HashMap<Key, Entry>);

/// See the module.
#[derive(Debug)]
pub struct AddressMap {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// Entries of each port that count against its quota.
    held: Box<[AtomicU32]>,
    /// Whether the switch answers.
    answers: AtomicBool,
    /// The operator's wish for that: see [`Self::set_answering`].
    wish: AtomicU8,
    /// Configured addresses.
    configured: AtomicU32,
    /// The same of each port, so that a port that comes or goes walks no shard.
    configured_of: Mutex<HashMap<PortId, Vec<Key>>>,
    /// Addresses that a server in this process gave to each port, so that a renewal walks no shard.
    leased: Mutex<HashMap<PortId, Vec<IpAddr>>>,
    /// Seconds for which a claim holds.
    age: AtomicU32,
    /// Number of the uplink's port.
    uplink: AtomicU32,
    given: AtomicU64,
    /// See [`Self::generation`].
    generation: AtomicU32,
    log: ConflictLog,
}

/// Values of `wish`.
const BY_DEFAULT: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

impl Default for AddressMap {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            held: zeroed(MAX_PORTS),
            answers: AtomicBool::new(false),
            wish: AtomicU8::new(BY_DEFAULT),
            configured: AtomicU32::new(0),
            configured_of: Mutex::default(),
            leased: Mutex::default(),
            age: AtomicU32::new(DEFAULT_AGE),
            uplink: AtomicU32::new(u32::MAX),
            given: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            log: ConflictLog::default(),
        }
    }
}

impl AddressMap {
    /// Whether the switch answers for known addresses.
    #[inline]
    pub fn is_answering(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Has the switch answer, or not; by default it does where addresses are configured.
    pub fn set_answering(&self, wish: Option<bool>) {
        let wish = wish.map_or(BY_DEFAULT, |on| if on { ON } else { OFF });
        self.wish.store(wish, Ordering::Relaxed);
        self.update_answering();
    }

    fn update_answering(&self) {
        let answers = match self.wish.load(Ordering::Relaxed) {
            BY_DEFAULT => self.configured.load(Ordering::Relaxed) > 0,
            wish => wish == ON,
        };
        self.answers.store(answers, Ordering::Relaxed);
    }

    /// Claims hold for `age` seconds from now on.
    pub(crate) fn set_age(&self, age: u32) {
        self.age.store(age, Ordering::Relaxed);
    }

    /// Names the port that leads to other hosts, if there is one.
    pub fn set_uplink(&self, port: Option<PortId>) {
        self.uplink.store(port.map_or(u32::MAX, |port| port.0.into()), Ordering::Relaxed);
    }

    /// Answers so far.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Changes whenever an [assigned](Entry::is_assigned) address gets another owner, or none.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Notes that an address has the entry `after` in place of `before`.
    fn note_change(&self, before: Option<&Entry>, after: Option<&Entry>) {
        let owner = |entry: &Entry| entry.is_assigned().then_some((entry.mac, entry.port, entry.router));
        if before.and_then(owner) != after.and_then(owner) {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Conflicts so far.
    pub fn conflicts(&self) -> u64 {
        self.log.count()
    }

    pub(crate) fn log(&self) -> &ConflictLog {
        &self.log
    }

    /// Counts an answer.
    pub(crate) fn count_answer(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    fn shard_of(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// The shard of `key`, for a worker.
    fn try_shard(&self, key: &Key) -> Option<MutexGuard<'_, Shard>> {
        let shard = self.shard_of(key);
        for _ in 0..TRIES {
            if let Ok(guard) = shard.try_lock() {
                return Some(guard);
            }
            std::hint::spin_loop();
        }
        None
    }

    fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quota(&self, port: PortId) -> u32 {
        if self.uplink.load(Ordering::Relaxed) == u32::from(port.0) { UPLINK_QUOTA } else { QUOTA }
    }

    /// Counts an entry of `port`; false if its quota is used up.
    fn take_quota(&self, port: PortId) -> bool {
        let Some(held) = self.held.get(port.index()) else { return false };
        let has = held.fetch_add(1, Ordering::Relaxed) < self.quota(port);
        if !has {
            held.fetch_sub(1, Ordering::Relaxed);
        }
        has
    }

    fn give_quota_back(&self, entry: &Entry) {
        if let Some(held) = self.held.get(entry.port.index()).filter(|_| entry.is_dynamic()) {
            held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts `entry` in the place of the one of `key`, within the quota of its port.
    fn put(&self, shard: &mut Shard, key: Key, entry: Entry) -> Learned {
        let before = shard.0.get(&key).copied();
        let is_counted = before.is_some_and(|before| before.is_dynamic() && before.port == entry.port);
        // First: a port without room takes no address from its owner.
        if entry.is_dynamic() && !is_counted && !self.take_quota(entry.port) {
            return Learned::NoRoom;
        }
        if let Some(before) = before.filter(|_| !(entry.is_dynamic() && is_counted)) {
            self.give_quota_back(&before);
        }
        shard.0.insert(key, entry);
        self.note_change(before.as_ref(), Some(&entry));
        Learned::Known
    }

    /// Makes `addresses` those that are configured for `port`, behind `mac` if that is configured, in `vlan`, in place of those before.
    /// `is_router` says if the port may send router advertisements.
    pub fn configure(&self, port: PortId, mac: Option<MacAddress>, vlan: Option<u16>, addresses: &[IpAddr], is_router: bool) {
        let wanted: Vec<Key> = vlan.into_iter().flat_map(|vlan| addresses.iter().map(move |&ip| Key { vlan, ip })).collect();
        for key in self.set_configured_of(port, wanted.clone()).into_iter().filter(|key| !wanted.contains(key)) {
            let is_own = |entry: &Entry| entry.port == port && entry.source == Source::Configuration;
            self.remove_of(&mut Self::locked(self.shard_of(&key)), key, is_own);
        }
        for key in wanted {
            let mut shard = Self::locked(self.shard_of(&key));
            let before = shard.0.get(&key).copied();
            let own = before.filter(|before| before.port == port);
            let (claimed, confirmed) = own.map_or((None, 0), |own| (own.mac, own.confirmed));
            let router = own.and_then(|own| own.router).or(Some(is_router));
            let entry = Entry::new(mac.or(claimed), port, Source::Configuration, confirmed);
            let entry = Entry { router, is_pinned: mac.is_some(), ..entry };
            let is_new = before.is_none_or(|before| before.source != Source::Configuration);
            self.put(&mut shard, key, entry);
            self.configured.fetch_add(is_new.into(), Ordering::Relaxed);
        }
        self.update_answering();
    }

    /// Records the configured keys of `port`; returns those before.
    fn set_configured_of(&self, port: PortId, keys: Vec<Key>) -> Vec<Key> {
        let mut all = self.configured_of.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if keys.is_empty() { all.remove(&port) } else { all.insert(port, keys) };
        before.unwrap_or_default()
    }

    /// Learns the `claim` of a guest at `port` in second `now`.
    pub fn learn(&self, vlan: u16, claim: Claim, port: PortId, now: u32) -> Learned {
        let key = Key { vlan, ip: claim.ip };
        let Some(mut shard) = self.try_shard(&key) else { return Learned::NoRoom };
        let expires = now.saturating_add(self.age.load(Ordering::Relaxed)).max(now + 1);
        let source = if claim.ip.is_ipv4() { Source::Arp } else { Source::Nd };
        let fresh = Entry { router: claim.router, expires, ..Entry::new(Some(claim.mac), port, source, now) };
        let Some(known) = shard.0.get_mut(&key).filter(|known| known.is_live(now)) else { return self.put(&mut shard, key, fresh) };
        let is_same = known.mac.is_none_or(|mac| mac == claim.mac);
        match known.source {
            // A virtual router's MAC address beside the configured one changes nothing.
            Source::Configuration if known.port == port && known.is_pinned && !is_same => Learned::Known,
            Source::Configuration if known.port == port => {
                let entry = Entry { mac: Some(claim.mac), confirmed: now, router: claim.router.or(known.router), ..*known };
                self.note_change(Some(&*known), Some(&entry));
                *known = entry;
                Learned::Known
            }
            Source::Configuration => self.conflict(key, *known, (port, claim.mac)),
            Source::Dhcp if !is_same => self.conflict(key, *known, (port, claim.mac)),
            // From the other host itself it changes nothing: the entry goes when EVPN withdraws it.
            Source::Evpn if is_same && known.port != port => self.put(&mut shard, key, fresh),
            Source::Evpn | Source::Arp | Source::Nd if !is_same => self.contend(&mut shard, key, fresh, now),
            _ => {
                let expires = if known.source.is_claim() { expires } else { known.expires };
                let entry = Entry { port, confirmed: now, expires, router: claim.router.or(known.router), ..*known };
                if known.port == port {
                    self.note_change(Some(&*known), Some(&entry));
                    *known = entry;
                    return Learned::Known;
                }
                self.put(&mut shard, key, entry)
            }
        }
    }

    /// A machine claims the address of another one: see rule 4 of the module.
    fn contend(&self, shard: &mut Shard, key: Key, fresh: Entry, now: u32) -> Learned {
        let Some(known) = shard.0.get_mut(&key) else { return self.put(shard, key, fresh) };
        let is_disputed = known.is_settling(now) && known.former.is_none();
        let is_back = known.is_settling(now) && known.former == fresh.mac;
        let claimant = fresh.mac.unwrap_or_default();
        if is_disputed {
            known.settled = now + DISPUTE;
            return self.conflict(key, *known, (fresh.port, claimant));
        }
        if is_back {
            let other = (known.port, known.mac.unwrap_or_default());
            let entry = Entry { settled: now + DISPUTE, ..fresh };
            self.put(shard, key, entry);
            return self.conflict(key, entry, other);
        }
        let entry = Entry { former: known.mac, settled: now + SETTLING, ..fresh };
        self.put(shard, key, entry)
    }

    fn conflict(&self, key: Key, owner: Entry, claimant: (PortId, MacAddress)) -> Learned {
        self.log.note(Conflict { key, owner, claimant });
        Learned::Conflict
    }

    /// A DHCP server acknowledged a lease of `seconds` in second `now`: `ip` belongs to `mac`, behind `port`.
    pub fn acknowledge(&self, vlan: u16, ip: IpAddr, (mac, port): (MacAddress, PortId), seconds: u32, now: u32) -> Learned {
        let key = Key { vlan, ip };
        let Some(mut shard) = self.try_shard(&key) else { return Learned::NoRoom };
        self.enter_lease(&mut shard, key, (mac, port), (seconds, None), now)
    }

    fn enter_lease(
        &self,
        shard: &mut Shard,
        key: Key,
        (mac, port): (MacAddress, PortId),
        (seconds, router): (u32, Option<bool>),
        now: u32,
    ) -> Learned {
        let before = shard.0.get(&key).copied();
        if let Some(known) = before.filter(|known| known.source == Source::Configuration) {
            let is_own = known.port == port && known.mac.is_none_or(|known| known == mac);
            return if is_own { Learned::Known } else { self.conflict(key, known, (port, mac)) };
        }
        // A lease of 0xffffffff seconds does not expire (RFC 2132, section 9.2).
        let expires = now.saturating_add(seconds).max(now + 1);
        // The owner's own advertisement tells it better.
        let told = before.filter(|before| before.port == port).and_then(|before| before.router);
        // A lease that is told again was not seen in use by that.
        let same = before.filter(|before| before.source == Source::Dhcp && (before.mac, before.port) == (Some(mac), port));
        let confirmed = same.map_or(now, |same| same.confirmed);
        let entry = Entry { expires, router: told.or(router), confirmed, ..Entry::new(Some(mac), port, Source::Dhcp, now) };
        let learned = self.put(shard, key, entry);
        let claimant = before.filter(|before| learned == Learned::Known && before.source.is_claim() && before.is_live(now));
        if let Some((other, by)) = claimant.and_then(|before| Some((before.mac.filter(|&other| other != mac)?, before.port))) {
            self.log.note(Conflict { key, owner: entry, claimant: (by, other) });
        }
        learned
    }

    /// Makes `leases` those that a server in this process gave to `port`, from second `now` on, in place of those before: it gives the addresses
    /// for which `gives` is true. `is_router` says if the port may send router advertisements.
    pub fn set_leases(&self, port: PortId, leases: &[GivenLease], gives: impl Fn(IpAddr) -> bool, is_router: bool, now: u32) {
        let now_given: Vec<IpAddr> = leases.iter().map(|lease| lease.ip).collect();
        let is_over = |entry: &Entry| entry.port == port && entry.source == Source::Dhcp;
        let before = self.leased.lock().unwrap_or_else(PoisonError::into_inner).insert(port, now_given.clone());
        match before {
            Some(before) => before.into_iter().filter(|ip| !now_given.contains(ip)).for_each(|ip| {
                let key = Key { vlan: 0, ip };
                self.remove_of(&mut Self::locked(self.shard_of(&key)), key, is_over);
            }),
            // Another server, or an earlier process, may have given some.
            None => self.remove_if(|key, entry| key.vlan == 0 && is_over(entry) && gives(key.ip) && !now_given.contains(&key.ip)),
        }
        for &GivenLease { ip, mac, seconds } in leases {
            let mut shard = Self::locked(self.shard_of(&Key { vlan: 0, ip }));
            self.enter_lease(&mut shard, Key { vlan: 0, ip }, (mac, port), (seconds, Some(is_router)), now);
        }
    }

    fn remove_of(&self, shard: &mut Shard, key: Key, condition: impl Fn(&Entry) -> bool) {
        if let Some(entry) = shard.0.get(&key).copied().filter(condition) {
            shard.0.remove(&key);
            self.note_removed(&entry);
        }
    }

    fn note_removed(&self, entry: &Entry) {
        self.note_change(Some(entry), None);
        self.give_quota_back(entry);
        if entry.source == Source::Configuration {
            self.configured.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// EVPN told in second `now` that `ip` is at `mac` at another host, behind the uplink's `port`. It does not say in which VLAN: the entry
    /// holds for frames without a tag.
    pub fn tell(&self, ip: IpAddr, (mac, port): (MacAddress, PortId), is_router: bool, now: u32) -> Learned {
        let key = Key { vlan: 0, ip };
        let mut shard = Self::locked(self.shard_of(&key));
        let fresh = Entry { router: Some(is_router), ..Entry::new(Some(mac), port, Source::Evpn, now) };
        match shard.0.get(&key).copied().filter(|known| known.is_live(now)) {
            Some(known) if known.is_assigned() => self.conflict(key, known, (port, mac)),
            // The machine moved to the other host if it is the same one.
            Some(known) if known.source.is_claim() && known.mac != Some(mac) => self.contend(&mut shard, key, fresh, now),
            _ => self.put(&mut shard, key, fresh),
        }
    }

    /// EVPN does not tell `ip` any more.
    pub fn untell(&self, ip: IpAddr) {
        let key = Key { vlan: 0, ip };
        let mut shard = Self::locked(self.shard_of(&key));
        self.remove_of(&mut shard, key, |entry| entry.source == Source::Evpn);
    }

    /// The owner of an address in second `now`.
    pub fn find(&self, vlan: u16, ip: IpAddr, now: u32) -> Option<Entry> {
        let key = Key { vlan, ip };
        self.try_shard(&key)?.0.get(&key).copied().filter(|entry| entry.is_live(now))
    }

    /// The answer to a flooded frame that begins with `start` and says `resolution`, from `asker` with this `gate` and `tag`. `reach_of` tells the
    /// gate of an owner's port, and whether the port receives frames.
    pub fn answer<'g>(
        &self,
        start: &[u8],
        resolution: &Resolution,
        (asker, gate, tag): (PortId, Gate<'_>, u16),
        reach_of: impl FnOnce(PortId) -> Option<(Gate<'g>, bool)>,
        now: u32,
    ) -> Option<Given> {
        let question = resolution.question.filter(|_| self.is_answering())?;
        let vlan = gate.vlans.of_sent(tag)?;
        let owner = self.find(vlan, question.target, now)?;
        let (mac, source) = (owner.mac?, resolution::source(start)?);
        // Behind the asker's own port the owner hears the question itself.
        let is_others = mac != source && owner.port != asker;
        let may_answer = !question.is_probe || owner.source == Source::Configuration;
        let router = if question.target.is_ipv6() { owner.router? } else { false };
        if !is_others || !may_answer || owner.is_settling(now) {
            return None;
        }
        let (to, receives) = reach_of(owner.port)?;
        gate.pass(&to, vlan, tag).ok().filter(|_| receives || question.is_probe)?;
        let answer = resolution::answer(start, question, mac, router)?;
        Some(Given { owner, answer })
    }

    /// Removes entries that have expired in second `now`.
    pub fn expire(&self, now: u32) {
        self.remove_if(|_, entry| !entry.is_live(now));
    }

    /// Removes the entries of `port` that are not configured.
    pub fn forget(&self, port: PortId) {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
        self.remove_if(|_, entry| entry.port == port && entry.source != Source::Configuration);
    }

    /// Removes every entry of `port`.
    pub fn clear(&self, port: PortId) {
        let leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner).remove(&port).unwrap_or_default();
        let leased = leased.into_iter().map(|ip| Key { vlan: 0, ip });
        for key in self.set_configured_of(port, Vec::new()).into_iter().chain(leased) {
            self.remove_of(&mut Self::locked(self.shard_of(&key)), key, |entry| entry.port == port);
        }
        // Claims of its guest are found by a walk alone.
        if self.held.get(port.index()).is_none_or(|held| held.load(Ordering::Relaxed) > 0) {
            self.remove_if(|_, entry| entry.port == port);
        }
        self.log.forget(port);
        self.update_answering();
    }

    fn remove_if(&self, condition: impl Fn(&Key, &Entry) -> bool) {
        for shard in &self.shards {
            let mut shard = Self::locked(shard);
            let mut gone = Vec::new();
            shard.0.retain(|key, entry| {
                let goes = condition(key, entry);
                gone.extend(goes.then_some(*entry));
                !goes
            });
            gone.iter().for_each(|entry| self.note_removed(entry));
        }
    }

    /// Counts of the map in second `now`.
    pub fn totals(&self, now: u32) -> AddressTotals {
        let mut totals = AddressTotals {
            answering: self.is_answering(),
            answers: self.given(),
            conflicts: self.conflicts(),
            entries: Source::ALL.map(|source| (source, 0)).into(),
        };
        for shard in &self.shards {
            for entry in Self::locked(shard).0.values().filter(|entry| entry.is_live(now)) {
                *totals.entries.entry(entry.source).or_default() += 1;
            }
        }
        totals
    }

    /// All entries that hold in second `now`, in the order of VLANs and addresses.
    pub fn records(&self, now: u32) -> Vec<(Key, Entry)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(Self::locked(shard).0.iter().filter(|(_, entry)| entry.is_live(now)).map(|(key, entry)| (*key, *entry)));
        }
        all.sort_unstable_by_key(|&(key, _)| key);
        all
    }
}

#[cfg(test)]
mod tests;
