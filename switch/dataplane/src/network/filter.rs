//! Policy rules of the network: they are replaced as a whole, and each port is entered with its name and its groups.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use memlane_model::denials::PortDenials;
use thiserror::Error;

use super::Network;
use crate::id::PortId;
use crate::policy::filter::{Filter, Filtered, Member, PolicyRule};
use crate::policy::flows;
use crate::policy::grants::{SavedGrant, seconds_of};
use crate::port::Port;
use crate::segment::Responds;
use crate::time::{cycles, in_cycles};
use crate::trial::{self, Groups, Trials};
use crate::verdict::filter::FilteredFlood;
use crate::verdict::reading::Start;

/// Most destinations in the list of the network's denials: what a client reads at once.
const MOST_DENIALS: usize = 4096;

/// Rules are on trial already.
#[derive(Clone, Copy, Debug, Error)]
#[error("a policy is on trial already: wait for the end of that `memlane policy try`")]
pub struct TrialRuns;

/// The reason for refusing a name without a rule or default about it.
const NAMES_ONLY: &str = "the port's rules name the DNS names that it may ask for";

/// A rule that denies a frame, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    /// The receiver.
    pub to: String,
    /// The rule, and its place.
    pub rule: String,
    /// Its line in the file, 0 if it is not known.
    pub line: usize,
    /// A rule that would allow the frame, if it stood before.
    pub allowed_by: String,
}

impl Network {
    /// The policy rules.
    pub fn policy(&self) -> Vec<PolicyRule> {
        self.shared.filter.get().rules().to_vec()
    }

    /// Uses these policy rules from now on: when this returns, no worker takes a frame by the former ones.
    pub fn set_policy(&self, rules: &[PolicyRule]) {
        let _alone = self.alone();
        let (mut filter, mut trials) = (Filter::new(rules), self.shared.trials.get().with_audits(rules));
        for port in self.ports() {
            enter(&mut filter, &mut trials, &port);
        }
        self.shared.trials.replace(trials);
        if !filter.is_empty() {
            // Before the rules: they are looked at where gates decide.
            self.segments().iter().for_each(|segment| segment.set_gated());
        }
        self.shared.filter.replace(filter);
        self.tell_all(|| |_: &mut _| {}).wait();
    }

    /// Applies the policy rules, if there are any, to a `port` that was added or is in other groups now. The caller holds `changing`.
    pub(super) fn enter_filter(&self, port: &Port) {
        self.change_filter(|filter, trials| enter(filter, trials, port));
        if !self.shared.filter.get().is_empty() {
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
        self.change_filter(|filter, trials| {
            filter.remove(port);
            trials.remove(port);
        });
    }

    fn change_filter(&self, change: impl FnOnce(&mut Filter, &mut Trials)) {
        let (present, trials) = (self.shared.filter.get(), self.shared.trials.get());
        if present.is_empty() && trials.is_empty() {
            return;
        }
        let (mut filter, mut changed) = (Filter::clone(&present), Trials::clone(&trials));
        change(&mut filter, &mut changed);
        if !present.is_empty() {
            self.shared.filter.replace(filter);
        }
        if !trials.is_empty() {
            self.shared.trials.replace(changed);
        }
    }

    /// Compares the frames that pass with these policy rules, too, for so long: they decide on none. Ports named in `groups` are in those groups
    /// for them. [`Self::tried`] has the frames that they would refuse, and is to be called within each [`trial::LOOK_TIMEOUT`].
    ///
    /// # Errors
    /// Other rules are on trial, see [`Self::end_trial`].
    pub fn try_policy(&self, rules: &[PolicyRule], groups: Groups, length: Duration) -> Result<(), TrialRuns> {
        let _alone = self.alone();
        let (present, now) = (self.shared.trials.get(), cycles());
        if present.is_trying(now) {
            return Err(TrialRuns);
        }
        let mut trials = present.with_tried(rules, groups, (now, now.saturating_add(in_cycles(length))));
        for port in self.ports() {
            enter(&mut Filter::default(), &mut trials, &port);
        }
        self.shared.trials.replace(trials);
        self.tell_all(|| |_: &mut _| {}).wait();
        Ok(())
    }

    /// The frames that the rules of [`Self::try_policy`] would refuse, of all ports that have some; the last ones after its end. `None` without such
    /// rules.
    pub fn tried(&self) -> Option<Vec<PortDenials>> {
        let trials = self.shared.trials.get();
        trials.look(cycles());
        trials.has_tried().then(|| {
            latest(
                self.ports().iter().map(|port| PortDenials { labels: port.policy.labels(), ..trials.tried(port.id, &port.name) }),
            )
        })
    }

    /// Ends the trial of [`Self::try_policy`], if there is one.
    pub fn end_trial(&self) {
        let _alone = self.alone();
        self.shared.trials.replace(self.shared.trials.get().without_tried());
    }

    /// Whether the guest of `port` may ask for the DNS name `name`, which is in lower case. A refusal is noted as a denial.
    pub fn admits_name(&self, port: &Port, name: &str) -> bool {
        let filter = self.shared.filter.get();
        let Err(refusing) = filter.may_ask(port.id, name) else { return true };
        let rule = refusing.and_then(|index| filter.text(index)).unwrap_or_else(|| NAMES_ONLY.into());
        port.denials.note_name(name, rule, (filter.generation(), cycles()));
        false
    }

    /// Whether a rule limits the DNS names of some port.
    pub fn limits_names(&self) -> bool {
        self.shared.filter.get().limits_names()
    }

    /// The question of `port` for `name` was answered with these addresses, each with this TTL: rules with the name allow them. Tells whether any
    /// rule does, which is in force at all workers once [`Network::when_all_have_looked`] says so.
    pub fn grant(&self, port: &Port, name: &Arc<str>, addresses: &[(IpAddr, u32)]) -> bool {
        let filter = self.shared.filter.get();
        let (rules, tried) = (filter.rules_of_name(port.id, name), self.shared.trials.get().rules_of_name(port.id, name));
        if addresses.is_empty() || !filter.has_any_names() && tried.is_empty() {
            return false;
        }
        let addresses: Vec<(IpAddr, u32)> = addresses.iter().map(|&(address, ttl)| (address, seconds_of(ttl))).collect();
        port.policy.grants.grant(name, &addresses, &[&rules[..], &tried].concat(), flows::second());
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

    /// The rule that denies the frame which begins with `start`, from `port` to `to`.
    pub(super) fn denial_for(&self, port: &Port, to: &Port, start: Start<'_>) -> Option<Denial> {
        let filter = self.shared.filter.get();
        let flood = FilteredFlood::new(Filtered { filter: &filter, from: port.id, is_forecast: true }, start);
        let (index, rule) = flood.denying(to.id)?;
        let allowing = flood.target().allowing(&port.name, Some(&to.name), filter.limits_destinations());
        Some(Denial { to: to.name.clone(), rule: rule.with_place(index), line: rule.line, allowed_by: allowing.stated() })
    }

    /// The frames that rules refuse, of all ports that have some: the latest [`MOST_DENIALS`], the others are counted.
    pub fn denials(&self) -> Vec<PortDenials> {
        latest(self.ports().iter().map(|port| self.denials_of(port)))
    }

    /// The frames of a port's guest that rules refuse, or audits would refuse.
    pub fn denials_of(&self, port: &Port) -> PortDenials {
        trial::together(port.denials(), self.shared.trials.get().audited(port.id, &port.name), port.policy.labels())
    }

    /// The rule that allows the frame which begins with `start`, from `port` to `to`: its words and its line; `None` if no rule is about it.
    pub(super) fn allowing_rule(&self, port: &Port, to: &Port, start: Start<'_>) -> Option<(String, usize)> {
        let filter = self.shared.filter.get();
        let flood = FilteredFlood::new(Filtered { filter: &filter, from: port.id, is_forecast: true }, start);
        let (index, rule) = flood.deciding(to.id).filter(|(_, rule)| rule.allows())?;
        Some((rule.with_place(index), rule.line))
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

/// Enters `port` into `filter` and `trials`.
fn enter(filter: &mut Filter, trials: &mut Trials, port: &Port) {
    match port.segment.responder() == Some(port.id) {
        true => {
            filter.enter_responder(port.id);
            trials.enter_responder(port.id);
        }
        false => {
            let (rules, policy) = (port.policy.rules.get(), &port.policy);
            let (flows, grants) = (Some(&policy.flows), Some(&policy.grants));
            let member = Member { name: &port.name, segment: &port.segment.name, groups: &rules.groups, flows, grants };
            filter.enter(port.id, member);
            trials.enter(port.id, member);
        }
    }
}
