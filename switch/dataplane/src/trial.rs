//! Trials: policy rules that decide on no frame. A frame that the policy rules let pass is compared with these, too, and a frame that they would
//! drop is noted: for rules with the action "audit", which stand among the others, and for `memlane policy try`, for a time.
//!
//! A trial has flows, grants and records of its own for each port, and costs workers nothing until there is one. While there is one, no frame takes the
//! fast path.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memlane_model::denials::{Denial, PortDenials};

use crate::denials::{Cause, Denials, Key};
use crate::id::PortId;
use crate::packet::Packet;
use crate::policy::filter::{Filter, Filtered, Member, PolicyRule};
use crate::policy::flows::{self, Flows};
use crate::policy::grants::Grants;
use crate::policy::port_map::PortMap;
use crate::policy::rulebook::Rulebook;
use crate::time::{Cycles, cycles, in_cycles};
use crate::verdict::filter::FilteredFlood;
use crate::verdict::reading::Start;

/// Timeout of a trial that no client of the control socket reads: the program that began it is gone.
pub const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Groups of ports, by the ports' names.
pub type Groups = HashMap<String, Vec<String>>;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Trials {
    /// Rules with the action "audit".
    audit: Option<Trial>,
    /// Rules that `memlane policy try` compares, as rules of a capture (pcapng) are.
    tried: Option<Trial>,
}

/// Rules, and a record of the frames that they would refuse.
#[derive(Clone, Debug)]
struct Trial {
    /// Number of the trial, which no other one of the process has.
    id: u64,
    filter: Filter,
    /// The rules of ports; only the control side uses them.
    book: Arc<Mutex<Rulebook>>,
    /// Groups of ports that are others than the present ones.
    groups: Arc<Groups>,
    records: PortMap<Record>,
    /// The end of the trial, and an earlier end unless a client looks.
    end: Cycles,
    until: Arc<AtomicU64>,
    /// An event has told its end.
    has_told_end: Arc<AtomicBool>,
}

/// Frames that a port transmitted and a trial would drop, flows that the port opened by the tried policy rules, and addresses that it was given
/// for DNS names in them.
#[derive(Debug, Default)]
struct Record {
    denials: Denials,
    flows: Arc<Flows>,
    grants: Arc<Grants>,
}

impl Trial {
    fn new(rules: &[PolicyRule], groups: Groups, end: Cycles) -> Self {
        static TRIALS: AtomicU64 = AtomicU64::new(1);
        let mut book = Rulebook::of_audits();
        book.set_rules(rules);
        Self {
            id: TRIALS.fetch_add(1, Ordering::Relaxed),
            filter: book.filter().clone(),
            book: Arc::new(Mutex::new(book)),
            groups: Arc::new(groups),
            records: PortMap::default(),
            end,
            until: Arc::new(AtomicU64::new(end)),
            has_told_end: Arc::default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Rulebook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the rules, or the ports that they know.
    fn change<R>(&mut self, change: impl FnOnce(&mut Rulebook) -> R) -> R {
        let (result, filter) = {
            let mut book = self.book();
            (change(&mut book), book.filter().clone())
        };
        self.filter = filter;
        result
    }

    /// Continues until its end, or for [`LOOK_TIMEOUT`].
    fn look(&self, now: Cycles) {
        self.until.store(self.end.min(now.saturating_add(in_cycles(LOOK_TIMEOUT))), Ordering::Relaxed);
    }

    fn is_on(&self, now: Cycles) -> bool {
        now < self.until.load(Ordering::Relaxed)
    }

    fn take_end(&self) -> bool {
        !self.has_told_end.swap(true, Ordering::Relaxed)
    }

    fn enter(&mut self, port: PortId, member: Member<'_>) {
        let known = self.records.get(port).map(Arc::clone);
        let record = known.clone().unwrap_or_default();
        let groups = Arc::clone(&self.groups);
        let groups = groups.get(member.name).map_or(member.groups, |groups| groups);
        let own = Member { flows: Some(&record.flows), grants: Some(&record.grants), groups, ..member };
        self.change(|book| book.enter(port, own));
        if known.is_none() {
            // The addresses that the port was given before the trial.
            for saved in member.grants.into_iter().flat_map(|grants| grants.given()) {
                record.grants.restore(&saved, &self.filter.rules_of_name(port, &saved.name), flows::second());
            }
            self.records.set(port, Some(record));
        }
    }

    fn remove(&mut self, port: PortId) {
        self.change(|book| book.remove(port));
        self.records.set(port, None);
    }

    fn record(&self, port: PortId) -> Option<&Arc<Record>> {
        self.records.get(port)
    }

    /// Frames of the port called `name` that the rules would refuse, as seen at `now`.
    fn denials(&self, port: PortId, name: &str, now: Cycles) -> PortDenials {
        let mut denials = self.record(port).map_or_else(PortDenials::default, |record| record.denials.list(name, now));
        denials.denials.iter_mut().for_each(|listed| listed.denial.audited = true);
        denials
    }
}

impl Trials {
    /// Uses the audits among `rules`. True if no port has entered them yet. Ports keep the records of former audits.
    pub(crate) fn set_audits(&mut self, rules: &[PolicyRule]) -> bool {
        if !rules.iter().any(PolicyRule::audits) {
            self.audit = None;
            return false;
        }
        if let Some(audit) = &mut self.audit {
            return audit.change(|book| book.set_rules(rules));
        }
        self.audit = Some(Trial::new(rules, Groups::new(), Cycles::MAX));
        true
    }

    /// The rules, with a trial of `rules` from `now` on until `end`, or until no client has looked for [`LOOK_TIMEOUT`]; no port has entered it yet. Ports in
    /// `groups` are in those groups for it.
    pub(crate) fn with_tried(&self, rules: &[PolicyRule], groups: Groups, (now, end): (Cycles, Cycles)) -> Self {
        let tried = Trial::new(rules, groups, end);
        tried.look(now);
        Self { tried: Some(tried), ..self.clone() }
    }

    /// The rules, without the rules of `memlane policy try`.
    pub(crate) fn without_tried(&self) -> Self {
        Self { tried: None, ..self.clone() }
    }

    /// Number of the trial of `memlane policy try`, which may have ended.
    pub(crate) fn tried_id(&self) -> Option<u64> {
        self.tried.as_ref().map(|tried| tried.id)
    }

    /// Whether that trial has ended in moment `now`, and no event has told it: it counts as told from now on.
    pub(crate) fn is_over(&self, now: Cycles) -> bool {
        self.tried.as_ref().is_some_and(|tried| !tried.is_on(now) && tried.take_end())
    }

    /// Whether no event has told the end of that trial: it counts as told from now on.
    pub(crate) fn take_end(&self) -> bool {
        self.tried.as_ref().is_some_and(Trial::take_end)
    }

    /// Whether such rules are compared in moment `now`.
    pub(crate) fn is_trying(&self, now: Cycles) -> bool {
        self.tried.as_ref().is_some_and(|tried| tried.is_on(now))
    }

    /// A client looks at the frames that they would refuse.
    pub(crate) fn look(&self, now: Cycles) {
        if let Some(tried) = self.tried.as_ref().filter(|tried| tried.is_on(now)) {
            tried.look(now);
        }
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.audit.is_none() && self.tried.is_none()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Trial> {
        self.audit.iter_mut().chain(&mut self.tried)
    }

    /// Adds a port, or changes its groups.
    pub(crate) fn enter(&mut self, port: PortId, member: Member<'_>) {
        self.all_mut().for_each(|trial| trial.enter(port, member));
    }

    /// Adds the port of a segment's responder (DHCP, DNS, router advertisements).
    pub(crate) fn enter_responder(&mut self, port: PortId) {
        self.all_mut().for_each(|trial| trial.change(|book| book.enter_responder(port)));
    }

    /// Removes a port.
    pub(crate) fn remove(&mut self, port: PortId) {
        self.all_mut().for_each(|trial| trial.remove(port));
    }

    /// The question of `port` for `name` was answered with these addresses, each for so many seconds: rules with the name allow them.
    pub(crate) fn grant(&self, port: PortId, name: &Arc<str>, addresses: &[(IpAddr, u32)]) {
        for trial in self.audit.iter().chain(&self.tried) {
            let rules = trial.filter.rules_of_name(port, name);
            if let Some(record) = trial.record(port).filter(|_| trial.filter.has_any_names()) {
                record.grants.grant(name, addresses, &rules, flows::second());
            }
        }
    }

    /// Whether workers compare frames with rules in moment `now`, so that the fast path is off.
    #[inline]
    pub(crate) fn is_on(&self, now: Cycles) -> bool {
        !self.is_empty() && self.running(now).next().is_some()
    }

    fn running(&self, now: Cycles) -> impl Iterator<Item = &Trial> {
        self.audit.iter().chain(&self.tried).filter(move |trial| trial.is_on(now))
    }

    /// Notes a frame of the port `from` that passes to these `receivers` in moment `now`, if rules would refuse it. The frame begins with `start`
    /// and is in `vlan`; `to` is its receiver, unless it is flooded; `name` is the name of a port.
    #[cold]
    pub(crate) fn judge<'s>(
        &'s self,
        (from, start, vlan, to): (PortId, Start<'s>, u16, Option<PortId>),
        receivers: impl Iterator<Item = PortId> + Clone,
        now: Cycles,
        name: impl Fn(PortId) -> Option<String>,
    ) {
        for trial in self.running(now) {
            let Some(record) = trial.record(from) else { continue };
            let flood = FilteredFlood::new(Filtered { filter: &trial.filter, from, is_forecast: false }, start, vlan);
            let mut refused = receivers.clone().filter(|&to| flood.denying(to).is_some());
            let Some(first) = refused.next() else { continue };
            let cause = || {
                let rule = flood.denying(first)?.text().into();
                Some(Cause { to: name(first)?, rule, with_destination: trial.filter.limits_destinations(), name: None })
            };
            let (frames, generation) = (1 + refused.count() as u64, trial.filter.generation_between(from, first));
            record.denials.note(Key::new(to, flood.target()), frames, (generation, now), cause);
        }
    }

    /// Frames of a port that audits would refuse.
    pub(crate) fn audited(&self, port: PortId, name: &str) -> PortDenials {
        self.audit.as_ref().map_or_else(PortDenials::default, |audit| audit.denials(port, name, cycles()))
    }

    /// Frames of a port that the rules of `memlane policy try` would refuse.
    pub(crate) fn tried(&self, port: PortId, name: &str) -> PortDenials {
        self.tried.as_ref().map_or_else(PortDenials::default, |tried| tried.denials(port, name, cycles()))
    }

    /// Audited frames of which events are to tell at `now`, see `Denials::news`.
    pub(crate) fn news(&self, port: PortId, name: &str, now: Instant) -> Vec<Denial> {
        let record = self.audit.as_ref().and_then(|audit| audit.record(port));
        let news = record.map_or_else(Vec::new, |record| record.denials.news(name, now));
        news.into_iter().map(|denial| Denial { audited: true, ..denial }).collect()
    }
}

/// Rules on trial for the frames of a capture (pcapng).
#[derive(Debug)]
pub struct CaptureTrial {
    trials: Trials,
    /// Segments and groups of ports, by their names.
    members: HashMap<String, (String, Vec<String>)>,
    /// Names of the ports of the capture, by their numbers.
    names: Vec<String>,
    numbers: HashMap<String, PortId>,
    /// Moment of the last frame.
    last: Cycles,
}

impl CaptureTrial {
    /// Tries `rules`; `members` are segments and groups of ports by their names. Other ports are in no group.
    pub fn new(rules: &[PolicyRule], members: HashMap<String, (String, Vec<String>)>) -> Self {
        let tried = Trial::new(rules, Groups::new(), Cycles::MAX);
        let trials = Trials { audit: None, tried: Some(tried) };
        Self { trials, members, names: Vec::new(), numbers: HashMap::new(), last: 0 }
    }

    /// Compares a frame that passed between two ports, so long after the beginning of time; false if the capture has too many ports. Flows of a
    /// capture do not end.
    pub fn judge(&mut self, (from, to): (&str, &str), frame: &[u8], at: Duration) -> bool {
        let (Some(from), Some(to)) = (self.port(from), self.port(to)) else { return false };
        let packet = Packet::from_bytes(from, frame);
        self.last = self.last.max(in_cycles(at));
        let name = |port: PortId| self.names.get(port.index()).cloned();
        // Guests of access ports and trunks see one VLAN in several forms.
        self.trials.judge((from, Start::from(&packet), 0, Some(to)), std::iter::once(to), self.last, name);
        true
    }

    /// The frames that the rules would refuse, by port, as seen at the last frame.
    pub fn denials(&self) -> Vec<PortDenials> {
        let of = |(name, port): (&String, &PortId)| Some(self.trials.tried.as_ref()?.denials(*port, name, self.last));
        let mut all: Vec<PortDenials> = self.numbers.iter().filter_map(of).filter(|port| !port.denials.is_empty()).collect();
        all.sort_by(|one, other| one.port.cmp(&other.port));
        all
    }

    /// The number of the port called `name`, which is entered with its first frame.
    fn port(&mut self, name: &str) -> Option<PortId> {
        if let Some(&port) = self.numbers.get(name) {
            return Some(port);
        }
        let port = PortId(u16::try_from(self.names.len()).ok()?);
        let (segment, groups) = self.members.get(name).cloned().unwrap_or_default();
        self.trials.enter(port, Member { name, segment: &segment, groups: &groups, flows: None, grants: None });
        self.names.push(name.into());
        self.numbers.insert(name.into(), port);
        Some(port)
    }
}

/// `listed` and `audited` frames of one port, the latest first.
pub(crate) fn together(mut listed: PortDenials, audited: PortDenials, labels: BTreeMap<String, String>) -> PortDenials {
    listed.denials.extend(audited.denials);
    listed.denials.sort_by_key(|denial| denial.age);
    PortDenials { labels, unlisted: listed.unlisted.saturating_add(audited.unlisted), ..listed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_ends_at_its_end_or_when_nobody_looks() {
        let (second, timeout) = (in_cycles(Duration::from_secs(1)), in_cycles(LOOK_TIMEOUT));
        let start = 1 << 40;
        let trials = Trials::default().with_tried(&[], Groups::new(), (start, start + 2 * timeout));
        assert!(trials.is_trying(start) && trials.is_trying(start + timeout - 1) && !trials.is_trying(start + timeout));
        trials.look(start + 5 * second);
        assert!(trials.is_trying(start + timeout + 4 * second));
        trials.look(start + timeout + 4 * second);
        assert!(trials.is_trying(start + 2 * timeout - 1) && !trials.is_trying(start + 2 * timeout));
        trials.look(start + 2 * timeout);
        assert!(!trials.is_trying(start + 2 * timeout), "one that has ended does not begin again");
        assert!(trials.is_over(start + 2 * timeout) && !trials.is_over(start + 2 * timeout), "its end is told once");
        assert!(trials.tried_id().is_some() && trials.without_tried().tried_id().is_none());
    }
}
