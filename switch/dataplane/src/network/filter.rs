//! Policy rules of the network: they are replaced as a whole, and each port is entered with its name and its groups.

use memlane_model::denials::PortDenials;

use super::Network;
use crate::id::PortId;
use crate::policy::filter::{Filter, Filtered, Member, PolicyRule};
use crate::port::Port;
use crate::segment::Responds;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::reading::Start;

/// Most destinations in the list of the network's denials: what a client reads at once.
const MOST_DENIALS: usize = 4096;

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
        let mut filter = Filter::new(rules);
        for port in self.ports() {
            enter(&mut filter, &port);
        }
        if !filter.is_empty() {
            // Before the rules: they are looked at where gates decide.
            self.segments().iter().for_each(|segment| segment.set_gated());
        }
        self.shared.filter.replace(filter);
        self.tell_all(|| |_: &mut _| {}).wait();
    }

    /// Applies the policy rules, if there are any, to a `port` that was added or is in other groups now. The caller holds `changing`.
    pub(super) fn enter_filter(&self, port: &Port) {
        self.change_filter(|filter| enter(filter, port));
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
        self.change_filter(|filter| filter.remove(port));
    }

    fn change_filter(&self, change: impl FnOnce(&mut Filter)) {
        let present = self.shared.filter.get();
        if !present.is_empty() {
            let mut filter = Filter::clone(&present);
            change(&mut filter);
            self.shared.filter.replace(filter);
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
        let mut ports: Vec<PortDenials> = self.ports().iter().map(|port| port.denials()).collect();
        ports.retain(|port| !port.denials.is_empty() || port.unlisted > 0);
        let mut ages: Vec<u64> = ports.iter().flat_map(|port| port.denials.iter().map(|listed| listed.age)).collect();
        ages.sort_unstable();
        if let Some(&limit) = ages.get(MOST_DENIALS) {
            ports.iter_mut().for_each(|port| keep_latest(port, limit));
        }
        ports
    }

    /// The rule that allows the frame which begins with `start`, from `port` to `to`: its words and its line; `None` if no rule is about it.
    pub(super) fn allowing_rule(&self, port: &Port, to: &Port, start: Start<'_>) -> Option<(String, usize)> {
        let filter = self.shared.filter.get();
        let flood = FilteredFlood::new(Filtered { filter: &filter, from: port.id, is_forecast: true }, start);
        let (index, rule) = flood.deciding(to.id).filter(|(_, rule)| rule.allows())?;
        Some((rule.with_place(index), rule.line))
    }
}

/// Keeps those of `port` with a last frame less than `limit` seconds old, and counts the others.
fn keep_latest(port: &mut PortDenials, limit: u64) {
    let left_out: u64 = port.denials.extract_if(.., |listed| listed.age >= limit).map(|listed| listed.denial.frames).sum();
    port.unlisted = port.unlisted.saturating_add(left_out);
}

/// Enters `port` into `filter`.
fn enter(filter: &mut Filter, port: &Port) {
    match port.segment.responder() == Some(port.id) {
        true => filter.enter_responder(port.id),
        false => {
            let (rules, flows) = (port.policy.rules.get(), Some(&port.policy.flows));
            let member = Member { name: &port.name, segment: &port.segment.name, groups: &rules.groups, flows };
            filter.enter(port.id, member);
        }
    }
}
