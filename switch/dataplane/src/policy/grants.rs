//! Grants of a port: the addresses with which its own questions for DNS names were answered, so that rules with these names allow them.
//!
//! A grant belongs to a port, an address and a name. It lasts until the TTL of the answer ends, of [`SHORTEST`] to [`LONGEST`] seconds, and up
//! to [`EXTENSION`] more while the port sends frames to the address. A port has at most [`MOST`]; beyond, the one that was used the longest
//! time ago goes first, and another port's questions move none.
//!
//! Workers share the table without a lock, as that of [`super::flows`]: an entry is the hash of an address and of a rule's names under a random
//! key. One thread at a time changes it, and increments the version, by which a worker sees that verdicts which it keeps are over.

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
#[cfg(not(loom))]
use std::sync::Mutex;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, PoisonError};

/// Least and largest time of a grant by TTL, in seconds.
pub const SHORTEST: u32 = 60;
/// See [`SHORTEST`].
pub const LONGEST: u32 = 86_400;
/// Most seconds by which frames extend a grant beyond its TTL.
pub const EXTENSION: u32 = 3600;
/// Seconds without a frame after which a grant beyond its TTL ends.
const IDLE: u32 = 600;
/// Most grants of a port, counted once for each rule that they satisfy.
pub const MOST: usize = 512;
/// Most rules that one grant satisfies: the first ones.
const RULES_OF_GRANT: usize = 16;
/// Entries of a bucket, and buckets of each level: a port with few grants has the first level only.
#[cfg(not(loom))]
const WAYS: usize = 8;
#[cfg(not(loom))]
const BUCKETS: [usize; 3] = [8, 32, 256];
#[cfg(loom)]
const WAYS: usize = 1;
#[cfg(loom)]
const BUCKETS: [usize; 1] = [1];

/// One address for one rule.
#[derive(Debug, Default)]
struct Entry {
    /// Hash of both; 0 for none.
    hash: AtomicU64,
    /// Second in which its TTL ends.
    until: AtomicU32,
    /// Second of the last frame, or of the grant.
    last: AtomicU32,
}

type Bucket = [Entry; WAYS];

/// A grant, as the control side knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    address: IpAddr,
    name: Arc<str>,
    /// Second in which its TTL ends.
    until: u32,
    /// Second in which it was last given.
    given: u32,
    /// Identities of the rules that it satisfies.
    rules: Vec<u64>,
}

/// A grant with the rest of its time, for another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedGrant {
    /// The address.
    pub address: IpAddr,
    /// The name that the port asked for.
    pub name: Arc<str>,
    /// Seconds until its TTL ends, or less than 0 if it has ended and frames extend the grant.
    pub seconds: i64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Grants {
    key: RandomState,
    levels: [OnceLock<Box<[Bucket]>>; BUCKETS.len()],
    record: Mutex<Vec<Grant>>,
    version: AtomicU32,
}

/// The time of a grant by an answer with this TTL, in seconds; one with the highest bit counts as 0 (RFC 2181, section 8).
pub fn seconds_of(ttl: u32) -> u32 {
    let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
    ttl.clamp(SHORTEST, LONGEST)
}

impl Grants {
    /// Grants these addresses, each for so many seconds from second `now` on, for the name that the port asked for. `rules` are the identities
    /// of the rules with this name.
    pub fn grant(&self, name: &Arc<str>, addresses: &[(IpAddr, u32)], rules: &[u64], now: u32) {
        let mut record = self.lock();
        for &(address, seconds) in addresses {
            self.give(&mut record, (name, address), now.saturating_add(seconds), rules, now);
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Continues a grant of another process, from second `now` on.
    pub fn restore(&self, saved: &SavedGrant, rules: &[u64], now: u32) {
        let until = i64::from(now) + saved.seconds.clamp(-i64::from(EXTENSION), i64::from(LONGEST));
        let until = u32::try_from(until).unwrap_or(0);
        self.give(&mut self.lock(), (&saved.name, saved.address), until, rules, now);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn give(&self, record: &mut Vec<Grant>, (name, address): (&Arc<str>, IpAddr), until: u32, rules: &[u64], now: u32) {
        match record.iter_mut().find(|grant| grant.address == address && grant.name == *name) {
            Some(grant) => (grant.until, grant.given) = (grant.until.max(until), now),
            None => {
                let rules = rules.iter().copied().take(RULES_OF_GRANT).collect();
                let grant = Grant { address, name: Arc::clone(name), until, given: now, rules };
                self.make_room(record, grant.rules.len().max(1), now);
                record.push(grant);
            }
        }
        rules.iter().take(RULES_OF_GRANT).for_each(|&rule| self.enter(self.hash(address, rule), until, now));
    }

    /// Has each grant satisfy from now on the rules with the identities that `rules_of` gives for its name.
    pub fn apply(&self, rules_of: impl Fn(&str) -> Vec<u64>, now: u32) {
        let mut record = self.lock();
        if record.is_empty() {
            return;
        }
        let mut before = std::mem::take(&mut *record);
        // The latest are kept if there are too many now. Entries for former lists of names stay: the name is in them all the same.
        before.sort_by_key(|grant| grant.given);
        for grant in &mut before {
            let rules = rules_of(&grant.name);
            let former: Vec<u64> = grant.rules.iter().copied().filter(|rule| !rules.contains(rule)).collect();
            grant.rules = rules.into_iter().chain(former).take(RULES_OF_GRANT).collect();
        }
        for grant in before.into_iter().filter(|grant| !is_over(grant.until, now)) {
            self.make_room(&mut record, grant.rules.len().max(1), now);
            grant.rules.iter().for_each(|&rule| self.enter(self.hash(grant.address, rule), grant.until, grant.given));
            record.push(grant);
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether a grant of `address` for the rule with this identity holds in second `now`.
    pub fn allows(&self, address: IpAddr, rule: u64, now: u32) -> bool {
        let has_any = self.levels.first().is_some_and(|level| level.get().is_some());
        has_any && self.held(self.hash(address, rule), now).is_some()
    }

    /// The port sends a frame to `address` by the rule with this identity.
    pub fn extend(&self, address: IpAddr, rule: u64, now: u32) {
        if let Some(entry) = self.held(self.hash(address, rule), now) {
            entry.last.store(now, Ordering::Relaxed);
        }
    }

    /// Whether grants changed since `seen` was last updated.
    #[inline]
    pub fn have_changed(&self, seen: &mut u32) -> bool {
        // With the version, the changes before it are seen.
        let version = self.version.load(Ordering::Acquire);
        std::mem::replace(seen, version) != version
    }

    /// The grants that hold now.
    #[cfg(not(loom))]
    pub fn saved(&self) -> Vec<SavedGrant> {
        self.saved_at(super::flows::second())
    }

    /// The grants that hold in second `now`.
    #[cfg(not(loom))]
    fn saved_at(&self, now: u32) -> Vec<SavedGrant> {
        let holds = |grant: &&Grant| grant.rules.iter().any(|&rule| self.held(self.hash(grant.address, rule), now).is_some());
        self.lock().iter().filter(holds).map(|grant| saved(grant, now)).collect()
    }

    /// The grants for all DNS names, of rules and others, that hold or have a TTL that has not ended.
    #[cfg(not(loom))]
    pub fn given(&self) -> Vec<SavedGrant> {
        let now = super::flows::second();
        let mut given = self.saved_at(now);
        let rest = self
            .lock()
            .iter()
            .filter(|grant| grant.until >= now && grant.rules.is_empty())
            .map(|grant| saved(grant, now))
            .collect::<Vec<_>>();
        given.extend(rest);
        given
    }

    #[cfg(not(loom))]
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Grant>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(loom)]
    fn lock(&self) -> loom::sync::MutexGuard<'_, Vec<Grant>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash(&self, address: IpAddr, rule: u64) -> u64 {
        self.key.hash_one((address, rule)) | 1
    }

    /// Removes grants that are over, and then those that were used the longest time ago, until there is room for `count` more.
    fn make_room(&self, record: &mut Vec<Grant>, count: usize, now: u32) {
        let size = |record: &[Grant]| record.iter().map(|grant| grant.rules.len().max(1)).sum::<usize>();
        if size(record) + count <= MOST {
            return;
        }
        let over = |grant: &mut Grant| is_over(grant.until, now);
        for grant in record.extract_if(.., over).collect::<Vec<_>>() {
            self.forget(record, &grant);
        }
        while size(record) + count > MOST {
            let oldest = record.iter().enumerate().min_by_key(|(_, grant)| self.last_use(grant));
            let Some((oldest, _)) = oldest else { return };
            let grant = record.remove(oldest);
            self.forget(record, &grant);
        }
    }

    /// Second of the last frame to the address of `grant`, or of its grant.
    fn last_use(&self, grant: &Grant) -> u32 {
        let entries = grant.rules.iter().filter_map(|&rule| self.find(self.hash(grant.address, rule)));
        entries.map(|entry| entry.last.load(Ordering::Relaxed)).chain([grant.given]).max().unwrap_or(0)
    }

    /// Removes the entries of `grant` that no other one of the record has.
    fn forget(&self, record: &[Grant], grant: &Grant) {
        for rule in &grant.rules {
            if !record.iter().any(|other| other.address == grant.address && other.rules.contains(rule)) {
                self.remove(self.hash(grant.address, *rule));
            }
        }
    }

    fn buckets(&self, hash: u64) -> impl Iterator<Item = &Bucket> {
        let levels = self.levels.iter().map_while(OnceLock::get);
        levels.filter_map(move |buckets| buckets.get((hash >> 32) as usize % buckets.len()))
    }

    fn find(&self, hash: u64) -> Option<&Entry> {
        self.buckets(hash).flatten().find(|entry| entry.hash.load(Ordering::Acquire) == hash)
    }

    /// The entry with this hash, if it holds in second `now`.
    fn held(&self, hash: u64, now: u32) -> Option<&Entry> {
        let entry = self.find(hash)?;
        let (until, last) = (entry.until.load(Ordering::Relaxed), entry.last.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        // Another grant may have taken the entry between the reads.
        let is_same = entry.hash.load(Ordering::Relaxed) == hash;
        let is_used = !is_over(until, now) && now <= last.saturating_add(IDLE);
        (is_same && (now <= until || is_used)).then_some(entry)
    }

    fn enter(&self, hash: u64, until: u32, now: u32) {
        if let Some(entry) = self.find(hash) {
            entry.until.store(until.max(entry.until.load(Ordering::Relaxed)), Ordering::Relaxed);
            entry.last.store(now.max(entry.last.load(Ordering::Relaxed)), Ordering::Relaxed);
            return;
        }
        let Some(entry) = self.room(hash, now) else { return };
        entry.hash.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.until.store(until, Ordering::Relaxed);
        entry.last.store(now, Ordering::Relaxed);
        entry.hash.store(hash, Ordering::Release);
    }

    /// The entry that a new hash takes: one that is free or over, else of a new level, else the one with the oldest last frame.
    fn room(&self, hash: u64, now: u32) -> Option<&Entry> {
        let is_free = |entry: &&Entry| entry.hash.load(Ordering::Relaxed) == 0 || is_over(entry.until.load(Ordering::Relaxed), now);
        for (level, buckets) in self.levels.iter().zip(BUCKETS) {
            let level = level.get_or_init(|| std::iter::repeat_with(Bucket::default).take(buckets).collect());
            let bucket = level.get((hash >> 32) as usize % level.len())?;
            if let Some(entry) = bucket.iter().find(is_free) {
                return Some(entry);
            }
        }
        self.buckets(hash).flatten().min_by_key(|entry| entry.last.load(Ordering::Relaxed))
    }

    fn remove(&self, hash: u64) {
        if let Some(entry) = self.find(hash) {
            entry.hash.store(0, Ordering::Release);
        }
    }
}

/// `grant` in second `now`, for another table.
#[cfg(not(loom))]
fn saved(grant: &Grant, now: u32) -> SavedGrant {
    let seconds = i64::from(grant.until) - i64::from(now);
    SavedGrant { address: grant.address, name: Arc::clone(&grant.name), seconds }
}

/// Whether a grant with a TTL that ends in second `until` is beyond all extension in second `now`.
fn is_over(until: u32, now: u32) -> bool {
    now > until.saturating_add(EXTENSION)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n).into())
    }

    fn name() -> Arc<str> {
        "api.example.org".into()
    }

    const RULE: u64 = 7;

    #[test]
    fn a_grant_lasts_for_its_ttl_and_an_hour_more_while_it_is_used() {
        assert_eq!([0, 59, 61, 86_400, 86_401, 1 << 31, u32::MAX].map(seconds_of), [60, 60, 61, 86_400, 86_400, 60, 60]);
        assert_eq!(seconds_of((1 << 31) - 1), 86_400);
        let grants = Grants::default();
        assert!(!grants.allows(address(1), RULE, 100));
        grants.grant(&name(), &[(address(1), 60)], &[RULE], 100);
        assert!(
            grants.allows(address(1), RULE, 160) && grants.allows(address(1), RULE, 700) && !grants.allows(address(1), RULE, 701)
        );
        assert!(!grants.allows(address(2), RULE, 100) && !grants.allows(address(1), RULE + 1, 100));
        (160..4000).step_by(600).for_each(|now| grants.extend(address(1), RULE, now));
        assert!(grants.allows(address(1), RULE, 3760) && !grants.allows(address(1), RULE, 3761), "an hour at most");
        grants.extend(address(1), RULE, 3761);
        assert!(!grants.allows(address(1), RULE, 3762), "a frame that is refused extends nothing");
        // A later answer with a shorter TTL ends none.
        grants.grant(&name(), &[(address(2), 1000)], &[RULE], 5000);
        grants.grant(&name(), &[(address(2), 60)], &[RULE], 5001);
        assert!(grants.allows(address(2), RULE, 6000));
    }

    #[test]
    fn grants_are_bounded_and_the_oldest_unused_one_goes_first() {
        let grants = Grants::default();
        for n in 0..MOST as u32 {
            grants.grant(&name(), &[(address(n), 3000)], &[RULE], 100 + n / 100);
        }
        assert!((0..MOST as u32).all(|n| grants.allows(address(n), RULE, 110)));
        grants.extend(address(0), RULE, 200);
        for n in 0..99 {
            grants.grant(&name(), &[(address(10_000 + n), 3000)], &[RULE], 200);
        }
        assert!(grants.allows(address(0), RULE, 201), "it was used");
        assert_eq!((1..100).filter(|&n| grants.allows(address(n), RULE, 201)).count(), 0);
        assert_eq!((100..MOST as u32).filter(|&n| grants.allows(address(n), RULE, 201)).count(), MOST - 100);
        (0..50_000).for_each(|n| grants.grant(&name(), &[(address(20_000 + n), 60)], &[RULE, RULE + 1], 300));
        let record = grants.record.lock().unwrap().len();
        let entries: usize = grants.levels.iter().filter_map(OnceLock::get).map(|buckets| buckets.len() * WAYS).sum();
        assert_eq!((record, entries), (MOST / 2, 296 * WAYS));
        assert!((69_800..70_000).all(|n| grants.allows(address(n), RULE + 1, 301)));
        assert!(!grants.allows(address(0), RULE, 301));
    }

    #[test]
    fn rules_that_change_take_the_grants_of_their_names_with_them() {
        let grants = Grants::default();
        let other: Arc<str> = "b.example.org".into();
        grants.grant(&name(), &[(address(1), 600), (address(2), 600)], &[RULE], 100);
        grants.grant(&other, &[(address(2), 600)], &[RULE, 9], 100);
        let mut seen = 0;
        assert!(grants.have_changed(&mut seen) && !grants.have_changed(&mut seen));
        grants.apply(|asked| if asked == &*other { vec![8] } else { vec![] }, 110);
        assert!(grants.have_changed(&mut seen));
        let allowed = |n, rule| grants.allows(address(n), rule, 110);
        assert!(allowed(2, 8) && !allowed(1, 8), "of the name that the rule has now");
        grants.apply(|_| vec![11], 120);
        assert!(allowed(1, 11) && allowed(2, 11));
        assert_eq!(grants.saved_at(120).len(), 3);
        assert_eq!(grants.saved_at(120)[0], SavedGrant { address: address(1), name: name(), seconds: 580 });
        assert!(grants.saved_at(5000).is_empty());
        let later = Grants::default();
        later.restore(&SavedGrant { address: address(3), name: name(), seconds: -3000 }, &[RULE], 10_000);
        assert!(later.allows(address(3), RULE, 10_600) && !later.allows(address(3), RULE, 10_601), "the hour is not begun anew");
    }
}
