//! Policy rules of the network: each port is entered with its name and its groups, and a change of rules replaces the filters that it concerns.

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use memlane_model::denials::PortDenials;
use thiserror::Error;

use super::Network;
use crate::id::PortId;
use crate::journal::NetworkEvent;
use crate::policy::filter::{Member, PolicyRule};
use crate::policy::flows;
use crate::policy::grants::{SavedGrant, seconds_of};
use crate::policy::rulebook::Rulebook;
use crate::port::Port;
use crate::segment::Responds;
use crate::time::{Cycles, cycles, in_cycles};
use crate::trial::{self, Groups, Trials};

/// Most destinations in the list of the network's denials: what a client reads at once.
const MOST_DENIALS: usize = 4096;

/// Rules are on trial already.
#[derive(Clone, Copy, Debug, Error)]
#[error("a policy is on trial already: wait for the end of that `memlane policy try`")]
pub struct TrialRuns;

/// The reason for refusing a name without a rule or default about it.
const NAMES_ONLY: &str = "the port's rules name the DNS names that it may ask for";

impl Network {
    /// The policy rules.
    pub fn policy(&self) -> Vec<PolicyRule> {
        self.rulebook().rules()
    }

    /// The policy rules that would decide on frames of a port of this name in these groups, or to it.
    pub fn count_rules(&self, name: &str, groups: &[String]) -> usize {
        self.rulebook().count(name, groups)
    }

    fn rulebook(&self) -> MutexGuard<'_, Rulebook> {
        self.rulebook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses these policy rules from now on: when this returns, no worker takes a frame by the former ones. Ports that no changed rule concerns keep
    /// their filters and their flow caches.
    pub fn set_policy(&self, rules: &[PolicyRule]) {
        let _alone = self.alone();
        // Dropped behind the workers' references: a worker frees none of them.
        let (former, former_trials) = (self.shared.filter.get(), self.shared.trials.get());
        let (mut book, mut trials) = (self.rulebook(), Trials::clone(&former_trials));
        let (had_trials, begins) = (!trials.is_empty(), book.set_rules(rules));
        if trials.set_audits(rules) | begins {
            self.ports().iter().for_each(|port| enter(&mut book, &mut trials, port));
        }
        if had_trials || !trials.is_empty() {
            self.shared.trials.replace(trials);
        }
        if begins {
            // Before the rules: they are looked at where gates decide.
            self.segments().iter().for_each(|segment| segment.set_gated());
        }
        self.shared.filter.replace(book.filter().clone());
        drop(book);
        self.tell_all(|| |_: &mut _| {}).wait();
        drop((former, former_trials));
    }

    /// Applies the policy rules, if there are any, to a `port` that was added or is in other groups now. The caller holds `changing`.
    pub(super) fn enter_filter(&self, port: &Port) {
        if self.change_filter(|book, trials| enter(book, trials, port)) {
            port.segment.set_gated();
        }
    }

    /// The responder of the segment of `port` is that port from now on, for these IP versions; none with `None`.
    pub fn set_responder(&self, port: &Port, responds: Option<Responds>) {
        let _alone = self.alone();
        port.segment.set_responder(responds.map(|_| port.id), responds.unwrap_or_default());
        self.enter_filter(port);
    }

    /// Removes a port from the policy rules. The caller holds `changing`.
    pub(super) fn leave_filter(&self, port: PortId) {
        self.change_filter(|book, trials| {
            book.remove(port);
            trials.remove(port);
        });
    }

    /// Changes the ports of the filter and of trials, if there are any rules; whether rules decide.
    fn change_filter(&self, change: impl FnOnce(&mut Rulebook, &mut Trials)) -> bool {
        let (mut book, trials) = (self.rulebook(), self.shared.trials.get());
        let decides = !book.filter().is_empty();
        if !decides && trials.is_empty() {
            return false;
        }
        let mut changed = Trials::clone(&trials);
        change(&mut book, &mut changed);
        if decides {
            self.shared.filter.replace(book.filter().clone());
        }
        if !trials.is_empty() {
            self.shared.trials.replace(changed);
        }
        decides
    }

    /// Compares the frames that pass with these policy rules, too, for so long: they decide on none. Ports named in `groups` are in those groups
    /// for them. [`Self::tried`] has the frames that they would refuse, and is to be called within each [`trial::LOOK_TIMEOUT`].
    ///
    /// The number of the trial, by which it is named.
    ///
    /// # Errors
    /// Other rules are on trial, see [`Self::end_trial`].
    pub fn try_policy(&self, rules: &[PolicyRule], groups: Groups, length: Duration) -> Result<u64, TrialRuns> {
        let _alone = self.alone();
        let (present, now) = (self.shared.trials.get(), cycles());
        if present.is_trying(now) {
            return Err(TrialRuns);
        }
        self.tell_trial_end(now);
        // The client of that trial may still ask for the result.
        let former = present.tried_id().map(|id| (id, self.denials_tried(&present)));
        *self.former_trial.lock().unwrap_or_else(PoisonError::into_inner) = former;
        let mut trials = present.with_tried(rules, groups, (now, now.saturating_add(in_cycles(length))));
        self.ports().iter().for_each(|port| enter_trials(&mut trials, port));
        let id = trials.tried_id().unwrap_or_default();
        self.shared.trials.replace(trials);
        self.tell_all(|| |_: &mut _| {}).wait();
        Ok(id)
    }

    fn denials_tried(&self, trials: &Trials) -> Vec<PortDenials> {
        latest(self.ports().iter().map(|port| PortDenials { labels: port.policy.labels(), ..trials.tried(port.id, &port.name) }))
    }

    /// The frames that the rules of the trial with this number would refuse, of all ports that have some; the last ones after its end, until the
    /// second trial after it. Without a number, of the present trial. `None` without such a trial.
    pub fn tried(&self, id: Option<u64>) -> Option<Vec<PortDenials>> {
        let trials = self.shared.trials.get();
        let present = trials.tried_id().filter(|&present| id.is_none_or(|id| id == present));
        if present.is_none() {
            let former = self.former_trial.lock().unwrap_or_else(PoisonError::into_inner);
            return former.as_ref().filter(|(former, _)| id == Some(*former)).map(|(_, denials)| denials.clone());
        }
        trials.look(cycles());
        Some(self.denials_tried(&trials))
    }

    /// Ends the trial with this number, if it is the present one. True if no event has told its end.
    pub fn end_trial(&self, id: u64) -> bool {
        let _alone = self.alone();
        let trials = self.shared.trials.get();
        if trials.tried_id() != Some(id) {
            return false;
        }
        self.shared.trials.replace(trials.without_tried());
        // A worker frees none of the rules of the trial.
        self.tell_all(|| |_: &mut _| {}).wait();
        trials.take_end()
    }

    /// An event tells that a trial has ended, if one has.
    pub(super) fn tell_trial_end(&self, now: Cycles) {
        let trials = self.shared.trials.get();
        if let Some(trial) = trials.tried_id().filter(|_| trials.is_over(now)) {
            self.shared.journal.add(NetworkEvent::PolicyTrialEnded { trial, by: None });
        }
    }

    /// Whether the guest of `port` may ask for the DNS name `name`, which is in lower case. A refusal is noted as a denial.
    pub fn admits_name(&self, port: &Port, name: &str) -> bool {
        let filter = self.shared.filter.get();
        let Err(refusing) = filter.may_ask(port.id, name) else { return true };
        let rule = refusing.map_or_else(|| NAMES_ONLY.into(), |rule| rule.text().into());
        port.reports.denials.note_name(name, rule, (filter.generation_of(port.id), cycles()));
        false
    }

    /// Whether a rule limits the DNS names of some port.
    pub fn limits_names(&self) -> bool {
        self.shared.filter.get().limits_names()
    }

    /// The question of `port` for `name` was answered with these addresses, each with this TTL: rules with the name allow them. Tells whether any
    /// rule does, which is in force at all workers once [`Network::when_all_have_looked`] says so.
    pub fn grant(&self, port: &Port, name: &Arc<str>, addresses: &[(IpAddr, u32)]) -> bool {
        let (filter, trials) = (self.shared.filter.get(), self.shared.trials.get());
        if addresses.is_empty() || !filter.has_any_names() && trials.is_empty() {
            return false;
        }
        let addresses: Vec<(IpAddr, u32)> = addresses.iter().map(|&(address, ttl)| (address, seconds_of(ttl))).collect();
        trials.grant(port.id, name, &addresses);
        let rules = filter.rules_of_name(port.id, name);
        if filter.has_any_names() {
            port.policy.grants.grant(name, &addresses, &rules, flows::second());
        }
        !rules.is_empty()
    }

    /// Restores grants of `port` that another process handed over.
    pub fn restore_grants(&self, port: &Port, grants: &[SavedGrant]) {
        let filter = self.shared.filter.get();
        for grant in grants {
            let rules = filter.rules_of_name(port.id, &grant.name);
            port.policy.grants.restore(grant, &rules, flows::second());
        }
    }

    /// The frames that rules refuse, of all ports that have some: the latest [`MOST_DENIALS`], the others are counted.
    pub fn denials(&self) -> Vec<PortDenials> {
        latest(self.ports().iter().map(|port| self.denials_of(port)))
    }

    /// The frames of a port's guest that rules refuse, or audits would refuse.
    pub fn denials_of(&self, port: &Port) -> PortDenials {
        trial::together(port.denials(), self.shared.trials.get().audited(port.id, &port.name), port.policy.labels())
    }
}

/// The latest [`MOST_DENIALS`] destinations of these ports, the others are counted; without ports that have none.
fn latest(ports: impl Iterator<Item = PortDenials>) -> Vec<PortDenials> {
    let mut ports: Vec<PortDenials> = ports.filter(|port| !port.denials.is_empty() || port.unlisted > 0).collect();
    let mut ages: Vec<u64> = ports.iter().flat_map(|port| port.denials.iter().map(|listed| listed.age)).collect();
    ages.sort_unstable();
    if let Some(&limit) = ages.get(MOST_DENIALS) {
        ports.iter_mut().for_each(|port| keep_latest(port, limit));
    }
    ports
}

/// Keeps those of `port` with a last frame less than `limit` seconds old, and counts the others.
fn keep_latest(port: &mut PortDenials, limit: u64) {
    let left_out: u64 = port.denials.extract_if(.., |listed| listed.age >= limit).map(|listed| listed.denial.frames).sum();
    port.unlisted = port.unlisted.saturating_add(left_out);
}

/// Enters `port` into `book`, if its rules decide on any frame, and into `trials`.
fn enter(book: &mut Rulebook, trials: &mut Trials, port: &Port) {
    if !book.filter().is_empty() {
        match is_responder(port) {
            true => book.enter_responder(port.id),
            false => with_member(port, |member| book.enter(port.id, member)),
        }
    }
    enter_trials(trials, port);
}

fn enter_trials(trials: &mut Trials, port: &Port) {
    match is_responder(port) {
        true => trials.enter_responder(port.id),
        false => with_member(port, |member| trials.enter(port.id, member)),
    }
}

fn is_responder(port: &Port) -> bool {
    port.segment.responder() == Some(port.id)
}

fn with_member(port: &Port, enter: impl FnOnce(Member<'_>)) {
    let (rules, policy) = (port.policy.rules.get(), &port.policy);
    let (flows, grants) = (Some(&policy.flows), Some(&policy.grants));
    enter(Member { name: &port.name, segment: &port.segment.name, groups: &rules.groups, flows, grants });
}
