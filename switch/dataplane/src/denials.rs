//! Record of the frames of a port's guest that policy rules refuse: for each destination and rule their count, for events and `memlane
//! denials`.
//!
//! A port has a record of its own, of at most [`MOST`] entries, which only its own frames fill. A worker notes a refused frame, and no
//! other: it never waits for another worker or a reader, and enters at most [`ENTRIES`] destinations a second, for which it looks for the rule. Frames
//! that it cannot enter are counted.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

use memlane_model::denials::{Denial, ListedDenial, PortDenials};
use memlane_model::journal::REPEAT_PAUSE;
use memlane_model::name_pattern::NamePattern;
use memlane_model::policy::{Action, Destination, Names, PolicyRule};

use crate::id::PortId;
use crate::policy::Limiter;
use crate::policy::filter::Target;
use crate::time::{Cycles, SECOND, duration};

/// Most entries of a port; the one with the oldest last frame makes room for a new one.
const MOST: usize = 64;
/// Entries a second, after a burst of [`MOST`].
const ENTRIES: u64 = 10;
/// Most events a second.
const EVENTS: usize = 10;

/// The common parts of refused frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The receiver; `None` for flooded frames.
    pub to: Option<PortId>,
    /// The destination.
    pub target: Target,
    /// Hash of the DNS name that the guest asked for; 0 for a frame.
    pub name: u64,
}

impl Key {
    /// Of frames to the port `to`, or of flooded ones.
    pub(crate) fn new(to: Option<PortId>, target: Target) -> Self {
        Self { to, target, name: 0 }
    }
}

/// Why frames are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Name of the receiver; of flooded frames the first one.
    pub to: String,
    /// The rule in words.
    pub rule: Arc<str>,
    /// A rule that allows them names the destination address.
    pub with_destination: bool,
    /// The DNS name that the guest asked for.
    pub name: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Key,
    cause: Cause,
    /// The rules by which the cause was found, see `Filter::generation`.
    generation: u64,
    frames: u64,
    last: Cycles,
    /// Frames of which events told, and when the last one did.
    told: (u64, Option<Instant>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Denials {
    entries: Mutex<Entries>,
    /// Rate limit of new entries.
    rate: Limiter,
    /// Frames that no entry counts.
    unlisted: AtomicU64,
    /// Key of the hashes of names.
    names: RandomState,
}

#[derive(Debug, Default)]
struct Entries {
    list: Vec<Entry>,
    /// The entry of the last frame.
    latest: usize,
    /// The beginning of the present second of events, and the events since then.
    told: Option<(Instant, usize)>,
}

impl Default for Denials {
    fn default() -> Self {
        let rate = Limiter::default();
        rate.set_packets(Some(ENTRIES), MOST as u64);
        Self { entries: Mutex::default(), rate, unlisted: AtomicU64::new(0), names: RandomState::new() }
    }
}

impl Denials {
    /// Notes that `frames` were refused in moment `now`, by rules of this `generation`. `cause` is called for a new entry, and for one that was
    /// entered by other rules; without a cause the frames are only counted.
    pub(crate) fn note(&self, key: Key, frames: u64, (generation, now): (u64, Cycles), cause: impl FnOnce() -> Option<Cause>) {
        // A worker does not wait.
        let Ok(mut entries) = self.entries.try_lock() else { return self.count(frames) };
        let found = entries.position(&key);
        if let Some(entry) = found.and_then(|index| entries.list.get_mut(index)).filter(|entry| entry.generation == generation) {
            (entry.frames, entry.last) = (entry.frames.saturating_add(frames), now);
            return;
        }
        if found.is_none() && !self.rate.is_open(now) {
            return self.count(frames);
        }
        let Some(cause) = cause() else { return self.count(frames) };
        match found.and_then(|index| entries.list.get_mut(index)) {
            Some(entry) if entry.cause == cause => {
                (entry.generation, entry.frames, entry.last) = (generation, entry.frames.saturating_add(frames), now);
            }
            Some(entry) => {
                self.count(entry.frames);
                *entry = Entry { key, cause, generation, frames, last: now, told: (0, None) };
            }
            None => {
                self.rate.charge(0, 1, now);
                self.count(entries.enter(Entry { key, cause, generation, frames, last: now, told: (0, None) }));
            }
        }
    }

    /// Notes that the guest was refused the DNS name `name`, by `rule` in words; see [`Self::note`].
    pub(crate) fn note_name(&self, name: &str, rule: Arc<str>, (generation, now): (u64, Cycles)) {
        let key = Key { to: None, target: Target::default(), name: self.names.hash_one(name) | 1 };
        let cause = || {
            let name = Some(name.into());
            Some(Cause { to: String::new(), rule, with_destination: true, name })
        };
        self.note(key, 1, (generation, now), cause);
    }

    /// Counts frames without an entry.
    pub(crate) fn count(&self, frames: u64) {
        // Of two workers that count at the type's end, both stay there.
        let _ = self.unlisted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| Some(count.saturating_add(frames)));
    }

    /// The entries of the port `from`, the latest first, as seen at `now`.
    pub(crate) fn list(&self, from: &str, now: Cycles) -> PortDenials {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).list.clone();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.last));
        let listed = |entry: &Entry| ListedDenial {
            denial: entry.denial(from, entry.frames),
            age: duration(now.saturating_sub(entry.last)).as_secs(),
        };
        let unlisted = self.unlisted.load(Ordering::Relaxed);
        PortDenials { port: from.into(), denials: entries.iter().map(listed).collect(), unlisted, ..PortDenials::default() }
    }

    /// What events are to tell at `now` of the entries of the port `from`: those that are new, and those with new frames once a minute, at most
    /// [`EVENTS`] a second.
    pub(crate) fn news(&self, from: &str, now: Instant) -> Vec<Denial> {
        let mut entries = match self.entries.try_lock() {
            Ok(entries) => entries,
            Err(TryLockError::Poisoned(entries)) => entries.into_inner(),
            // A worker notes a frame: they are told later.
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        let Entries { list, told, .. } = &mut *entries;
        let (_, events) = match told {
            Some(present) if now.saturating_duration_since(present.0) < SECOND => present,
            _ => told.insert((now, 0)),
        };
        let is_due = |at: Option<Instant>| at.is_none_or(|at| now.saturating_duration_since(at) >= REPEAT_PAUSE);
        let due = list.iter_mut().filter(|entry| entry.frames > entry.told.0 && is_due(entry.told.1));
        let news: Vec<Denial> = due.take(EVENTS.saturating_sub(*events)).map(|entry| entry.tell(from, now)).collect();
        *events += news.len();
        news
    }
}

impl Entries {
    /// The entry with this key: most frames are like the one before.
    fn position(&mut self, key: &Key) -> Option<usize> {
        if self.list.get(self.latest).is_none_or(|entry| entry.key != *key) {
            self.latest = self.list.iter().position(|entry| entry.key == *key)?;
        }
        Some(self.latest)
    }

    /// Enters `entry`; returns the frames of the one that made room.
    fn enter(&mut self, entry: Entry) -> u64 {
        if self.list.len() < MOST {
            self.list.push(entry);
            return 0;
        }
        let oldest = self.list.iter_mut().min_by_key(|entry| entry.last);
        oldest.map_or(0, |oldest| std::mem::replace(oldest, entry).frames)
    }
}

impl Entry {
    /// So many `frames` of it, for the operator.
    fn denial(&self, from: &str, frames: u64) -> Denial {
        let Self { key: Key { to, target, .. }, cause, .. } = self;
        if let Some(name) = &cause.name {
            return Denial {
                name: Some(name.to_string()),
                rule: cause.rule.to_string(),
                allowed_by: allowing_name(from, name).map_or_else(String::new, |rule| rule.stated()),
                frames,
                ..Denial::default()
            };
        }
        // A flooded frame has many receivers: the rule names the destination, if there is one.
        let is_flooded = to.is_none();
        let receiver = (!is_flooded || target.destination.is_none()).then_some(cause.to.as_str());
        Denial {
            to: cause.to.clone(),
            flooded: is_flooded,
            destination: target.destination.map(|address| address.to_string()),
            protocol: target.protocol,
            destination_port: target.port,
            rule: cause.rule.to_string(),
            audited: false,
            allowed_by: target.allowing(from, receiver, cause.with_destination || is_flooded).stated(),
            frames,
            ..Denial::default()
        }
    }

    /// The frames since the last event about the entry.
    fn tell(&mut self, from: &str, now: Instant) -> Denial {
        let before = std::mem::replace(&mut self.told, (self.frames, Some(now))).0;
        self.denial(from, self.frames.saturating_sub(before))
    }
}

/// A rule that allows the guest of the port `from` a DNS name; none can if the name is no host's.
fn allowing_name(from: &str, name: &str) -> Option<PolicyRule> {
    let destinations = vec![Destination::Name(NamePattern::exact(name)?)];
    Some(PolicyRule { from: Names(vec![from.into()]), destinations, action: Some(Action::Allow), ..PolicyRule::default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memlane_model::policy::Protocol;

    use super::*;
    use crate::time::in_cycles;

    fn key(n: u32) -> Key {
        let target = Target { destination: Some(n.to_be_bytes().into()), ..Target::default() };
        let target = Target { protocol: Some(Protocol::TCP), port: Some(443), ..target };
        Key::new(Some(PortId(1)), target)
    }

    fn cause(rule: &str) -> Option<Cause> {
        Some(Cause { to: "router".into(), rule: rule.into(), with_destination: true, name: None })
    }

    fn at(milliseconds: u64) -> Cycles {
        in_cycles(Duration::from_millis(1_000_000 + milliseconds))
    }

    fn total(denials: &Denials) -> u64 {
        let listed = denials.list("box", at(0));
        listed.denials.iter().map(|listed| listed.denial.frames).sum::<u64>() + listed.unlisted
    }

    #[test]
    fn frames_are_counted_by_destination_and_rule() {
        let denials = Denials::default();
        for n in 0..300_u32 {
            denials.note(key(n % 3), 1, (0, at(n.into())), || cause("one"));
        }
        let listed = denials.list("box", at(5299));
        assert_eq!((listed.denials.len(), listed.unlisted), (3, 0));
        let ListedDenial { denial, age } = &listed.denials[0];
        assert_eq!((denial.destination.as_deref(), denial.frames, *age), (Some("0.0.0.2"), 100, 5));
        assert_eq!((denial.to.as_str(), denial.rule.as_str()), ("router", "one"));
        let line =
            r#"[[policy]] from = "box" to = "router" destinations = ["0.0.0.2"] protocol = "tcp" ports = [443] action = "allow""#;
        assert_eq!(denial.allowed_by, line);
        // By other rules.
        denials.note(key(1), 1, (1, at(400)), || cause("one"));
        denials.note(key(2), 1, (1, at(401)), || cause("two"));
        let listed = denials.list("box", at(401));
        let frames: Vec<(&str, u64)> = listed.denials.iter().map(|one| (one.denial.rule.as_str(), one.denial.frames)).collect();
        assert_eq!((frames, listed.unlisted), (vec![("two", 1), ("one", 101), ("one", 100)], 100));
    }

    /// A guest that scans has a record of the same size, of the latest destinations, and every frame is counted once.
    #[test]
    fn a_flood_of_destinations_is_bounded() {
        let (denials, mut looked) = (Denials::default(), 0);
        for n in 0..100_000_u32 {
            denials.note(key(n), 1, (0, at(u64::from(n) / 10)), || {
                looked += 1;
                cause("one")
            });
        }
        assert!((MOST as u64..=MOST as u64 + 101).contains(&looked), "{looked} in ten seconds");
        assert_eq!((denials.list("box", at(0)).denials.len(), total(&denials)), (MOST, 100_000));
        let entries = denials.entries.lock().unwrap();
        assert!(entries.list.capacity() <= 2 * MOST);
        // While the record is read.
        denials.note(key(0), 5, (0, at(0)), || cause("one"));
        drop(entries);
        assert_eq!(total(&denials), 100_005);
        denials.note(key(u32::MAX), 2, (0, at(60_000)), || None);
        assert_eq!(total(&denials), 100_007, "no rule refuses it any more");
    }

    #[test]
    fn counts_stay_at_their_end() {
        let denials = Denials::default();
        denials.note(key(0), u64::MAX - 1, (0, at(0)), || cause("one"));
        (0..3).for_each(|_| denials.note(key(0), 1, (0, at(0)), || None));
        denials.count(u64::MAX);
        denials.count(7);
        let listed = denials.list("box", at(0));
        assert_eq!((listed.denials[0].denial.frames, listed.unlisted), (u64::MAX, u64::MAX));
    }

    #[test]
    fn at_most_ten_events_a_second_tell_of_all_entries() {
        let (denials, start) = (Denials::default(), Instant::now());
        (0..25).for_each(|n| denials.note(key(n), 3, (0, at(0)), || cause("one")));
        let news = |after| denials.news("box", start + Duration::from_millis(after));
        let counts = [0, 500, 1000, 2000, 3000].map(|after| news(after).len());
        assert_eq!(counts, [10, 0, 10, 5, 0]);
        denials.note(key(0), 4, (0, at(0)), || None);
        assert!(news(59_000).is_empty(), "once a minute");
        let told = news(60_000);
        assert_eq!((told.len(), told[0].frames), (1, 4));
        assert!(news(200_000).is_empty());
    }

    #[test]
    fn a_line_that_allows_flooded_frames_names_their_group() {
        let denials = Denials::default();
        let group = Target { destination: "224.0.0.251".parse().ok(), protocol: Some(Protocol(17)), ..Target::default() };
        for target in [Target { port: Some(5353), ..group }, Target::default()] {
            let cause = || Some(Cause { with_destination: false, ..cause("one").unwrap() });
            denials.note(Key::new(None, target), 1, (0, at(0)), cause);
        }
        let lines: Vec<String> = denials.list("box", at(0)).denials.into_iter().map(|one| one.denial.allowed_by).collect();
        let group = r#"[[policy]] from = "box" destinations = ["224.0.0.251"] protocol = "udp" ports = [5353] action = "allow""#;
        assert_eq!(lines, [group, r#"[[policy]] from = "box" to = "router" action = "allow""#]);
    }

    #[test]
    fn a_name_that_is_refused_is_told_with_the_line_that_allows_it() {
        let denials = Denials::default();
        for name in ["api.example.org", "1.0.0.10.in-addr.arpa", "api.example.org"] {
            denials.note_name(name, "a default".into(), (0, at(0)));
        }
        let listed = denials.list("box", at(0)).denials;
        let told = |name: &str| &listed.iter().find(|one| one.denial.name.as_deref() == Some(name)).unwrap().denial;
        let denial = told("api.example.org");
        assert_eq!((denial.frames, denial.rule.as_str(), denial.to.as_str()), (2, "a default", ""));
        assert_eq!(denial.allowed_by, r#"[[policy]] from = "box" destinations = ["api.example.org"] action = "allow""#);
        assert_eq!((listed.len(), told("1.0.0.10.in-addr.arpa").frames), (2, 1));
        // A flood of names is bounded as that of destinations.
        (0..10_000).for_each(|n| denials.note_name(&format!("n{n}.example.org"), "a default".into(), (0, at(0))));
        assert_eq!((denials.list("box", at(0)).denials.len(), total(&denials)), (MOST, 10_003));
    }
}
