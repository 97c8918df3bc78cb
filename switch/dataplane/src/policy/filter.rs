//! Packet filter: the network's policy rules, compiled for the verdict. The first rule that matches a frame decides. Frames that match none
//! pass, unless a **default** refuses them, of the sender or of the receiver.
//!
//! Each port has two sets of rules, those that name it in `from` and those that do in `to`: only rules in the sender's first set
//! and in the receiver's second one are compared with a frame. Workers share one filter, which is replaced as a whole, so that both sets
//! are always of the same rules. Rules are about frames between ports of the operator: the sets of a segment's responder are empty.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use memlane_model::policy::{Action, Destination, MOST_RULES, Names, PolicyRule, PortRange, Protocol};

use super::destinations::{Destinations, Interval};
use super::flows::{self, Flows};
use super::grants::Grants;
use super::rule_names::RuleNames;
use super::rule_set::{RuleSet, has, indices, set_of};
use crate::id::PortId;

/// Most bytes of a rule in words.
const LONGEST_TEXT: usize = 512;
/// Filters and changes of them, of the whole process.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Arc<[PolicyRule]>,
    /// The rules in words, with their places.
    texts: Arc<[Arc<str>]>,
    /// See [`Self::generation`].
    generation: u64,
    /// The addresses among the destinations of the rules.
    destinations: Arc<Destinations>,
    /// The DNS names among them.
    names: Arc<RuleNames>,
    /// Some ports have a default.
    has_defaults: bool,
    /// Some rule has senders told.
    rejects: bool,
    /// Rules with the action "audit" decide, too.
    with_audits: bool,
    /// The sets of each port, by its number.
    ports: Vec<Option<Arc<Sets>>>,
    /// Those of a port that no rule names.
    unnamed: Arc<Sets>,
}

/// A sender in the filter.
#[derive(Clone, Copy, Debug)]
pub struct Filtered<'f> {
    /// The filter.
    pub filter: &'f Filter,
    /// The sender.
    pub from: PortId,
    /// The frame is not sent: it opens no flow.
    pub is_forecast: bool,
}

/// The rules that name a port, a bit each.
#[derive(Debug, Default)]
struct Sets {
    from: RuleSet,
    to: RuleSet,
    /// The default that refuses its frames, by its index.
    default: Option<usize>,
    /// Flows that it opened, where some port has a default.
    flows: Option<Arc<Flows>>,
    /// Addresses that its own questions for names were answered with, where some rule has names.
    grants: Option<Arc<Grants>>,
    /// The port is a segment's responder.
    is_exempt: bool,
}

/// The destination of a packet, by the parts that rules read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Address, unless the packet hides it or is not of IP.
    pub destination: Option<IpAddr>,
    /// Protocol, in the same way.
    pub protocol: Option<Protocol>,
    /// Port, if it has one.
    pub port: Option<u16>,
    /// A TCP segment of an established connection.
    pub is_established: bool,
}

impl Target {
    /// A rule that allows packets with this destination, and no more than it must, from a port to another, or to all.
    pub(crate) fn allowing(&self, from: &str, to: Option<&str>, with_destination: bool) -> PolicyRule {
        let destination = self.destination.filter(|_| with_destination);
        PolicyRule {
            destinations: destination.into_iter().map(|address| Destination::Prefix(address.into())).collect(),
            from: Names(vec![from.into()]),
            to: Names(to.into_iter().map(Into::into).collect()),
            ports: self.port.into_iter().map(|port| PortRange { first: port, last: port }).collect(),
            established: self.is_established,
            protocol: self.protocol,
            action: Some(Action::Allow),
            ..PolicyRule::default()
        }
    }
}

/// A port of the filter.
#[derive(Clone, Copy, Debug)]
pub struct Member<'m> {
    /// Name of the port.
    pub name: &'m str,
    /// Name of the port's segment.
    pub segment: &'m str,
    /// Groups of the port.
    pub groups: &'m [String],
    /// Flows that it opened.
    pub flows: Option<&'m Arc<Flows>>,
    /// Grants of the port.
    pub grants: Option<&'m Arc<Grants>>,
}

impl Sets {
    fn of(rules: &[PolicyRule], has: impl Fn(&PolicyRule, &Names) -> bool) -> Self {
        let set = |names: fn(&PolicyRule) -> &Names| set_of(rules, |rule| rule.default.is_none() && has(rule, names(rule)));
        Self { from: set(|rule| &rule.from), to: set(|rule| &rule.to), ..Self::default() }
    }
}

impl Filter {
    /// The filter of these rules, at most [`MOST_RULES`], of which those with the action "audit" decide on no frame; it knows no ports yet.
    pub fn new(rules: &[PolicyRule]) -> Self {
        Self::of(rules, false)
    }

    /// As [`Self::new`], with "deny" in place of "audit".
    pub(crate) fn of_audits(rules: &[PolicyRule]) -> Self {
        Self::of(rules, true)
    }

    fn of(rules: &[PolicyRule], with_audits: bool) -> Self {
        let rules: Arc<[PolicyRule]> = rules.iter().take(MOST_RULES).cloned().collect();
        let decides = |rule: &PolicyRule| with_audits || !rule.audits();
        let unnamed = Arc::new(Sets::of(&rules, |rule, names| decides(rule) && names.is_all()));
        let texts = rules.iter().enumerate().map(|(index, rule)| cut(rule.with_place(index)).into()).collect();
        Self {
            unnamed,
            destinations: Arc::new(Destinations::of(&rules)),
            names: Arc::new(RuleNames::of(&rules)),
            has_defaults: rules.iter().any(|rule| rule.default.is_some() && decides(rule)),
            rejects: rules.iter().any(PolicyRule::rejects),
            with_audits,
            texts,
            rules,
            generation: next_generation(),
            ports: Vec::new(),
        }
    }

    /// Whether `rule` decides on frames.
    fn decides(&self, rule: &PolicyRule) -> bool {
        self.with_audits || !rule.audits()
    }

    /// Adds a port of this name in these groups, or changes it.
    pub fn enter(&mut self, port: PortId, member: Member<'_>) {
        let Member { name, segment, groups, flows, grants } = member;
        self.generation = next_generation();
        if self.ports.len() <= port.index() {
            self.ports.resize(port.index() + 1, None);
        }
        let mut sets = Sets::of(&self.rules, |rule, names| self.decides(rule) && names.has(name, groups));
        if self.has_defaults {
            let first = self.rules.iter().position(|rule| self.decides(rule) && rule.is_default_of(name, segment, groups));
            sets.default = first.filter(|&index| !self.rules[index].allows());
            sets.flows = flows.map(Arc::clone);
        }
        if let Some(grants) = grants.filter(|_| !self.names.is_empty()) {
            let in_second = flows::second();
            grants.apply(|name| self.identities(&sets, name), in_second);
            sets.grants = Some(Arc::clone(grants));
        }
        let differs = (&sets.from, &sets.to) != (&self.unnamed.from, &self.unnamed.to);
        let is_named = self.has_defaults || sets.grants.is_some() || differs;
        self.ports[port.index()] = is_named.then(|| Arc::new(sets));
    }

    /// Adds the port of a segment's responder: no rule judges its frames, nor those to it.
    pub fn enter_responder(&mut self, port: PortId) {
        self.enter(port, Member { name: "", segment: "", groups: &[], flows: None, grants: None });
        if let Some(sets) = self.ports.get_mut(port.index()) {
            *sets = Some(Arc::new(Sets { is_exempt: true, ..Sets::default() }));
        }
    }

    /// Removes a port.
    pub fn remove(&mut self, port: PortId) {
        self.generation = next_generation();
        if let Some(sets) = self.ports.get_mut(port.index()) {
            *sets = None;
        }
    }

    /// Whether every frame passes: no rule decides.
    pub fn is_empty(&self) -> bool {
        !self.rules.iter().any(|rule| self.decides(rule))
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[PolicyRule] {
        &self.rules
    }

    /// A number that no other filter has, nor this one before it was changed last.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The rule with this index in words, with its place, cut at 512 bytes.
    pub(crate) fn text(&self, index: usize) -> Option<Arc<str>> {
        self.texts.get(index).map(Arc::clone)
    }

    fn sets(&self, port: PortId) -> &Sets {
        self.ports.get(port.index()).and_then(Option::as_ref).unwrap_or(&self.unnamed)
    }

    /// The rules about frames from one port to another, in their order, with their indices.
    pub(crate) fn between(&self, from: PortId, to: PortId) -> impl Iterator<Item = (usize, &PolicyRule)> {
        self.numbered(self.words(from, to))
    }

    /// Whether any rule has the senders of matching frames told.
    pub(crate) fn rejects(&self) -> bool {
        self.rejects
    }

    /// Whether any rule has destinations, or refuses what no rule allows.
    pub(crate) fn limits_destinations(&self) -> bool {
        self.has_defaults || self.destinations.limited().iter().any(|&word| word != 0)
    }

    /// The default that refuses frames between two ports which match no rule, and its index: the sender's before the receiver's.
    pub(crate) fn default_between(&self, from: PortId, to: PortId) -> Option<(usize, &PolicyRule)> {
        if !self.has_defaults {
            return None;
        }
        let (from, to) = (self.sets(from), self.sets(to));
        let index = from.default.or(to.default).filter(|_| !from.is_exempt && !to.is_exempt)?;
        Some((index, self.rules.get(index)?))
    }

    /// The flows that a port opened.
    pub(crate) fn flows(&self, port: PortId) -> Option<&Flows> {
        self.sets(port).flows.as_deref()
    }

    /// Whether any rule has DNS names.
    pub(crate) fn has_any_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether a rule has DNS names, or a default refuses what no rule allows.
    pub(crate) fn limits_names(&self) -> bool {
        self.has_any_names() || self.has_defaults
    }

    /// Whether a rule about frames from one port to another has DNS names.
    pub(crate) fn has_names(&self, from: PortId, to: PortId) -> bool {
        !self.names.is_empty() && self.words(from, to).zip(self.names.named()).any(|(rules, named)| rules & named != 0)
    }

    /// Whether `address` is one that `port` was given for a name of the rule with this index.
    pub(crate) fn is_granted(&self, port: PortId, index: usize, address: IpAddr) -> bool {
        let grants = self.sets(port).grants.as_deref().zip(self.identity_of_named(index));
        grants.is_some_and(|(grants, rule)| grants.allows(address, rule, flows::second()))
    }

    /// Notes that `port` sends a frame to `address` by the rule with this index.
    pub(crate) fn extend_grant(&self, port: PortId, index: usize, address: IpAddr) {
        if let Some((grants, rule)) = self.sets(port).grants.as_deref().zip(self.identity_of_named(index)) {
            grants.extend(address, rule, flows::second());
        }
    }

    /// Identity of the destinations of the rule with this index, if some are names.
    fn identity_of_named(&self, index: usize) -> Option<u64> {
        self.names.identity(index).filter(|_| has(self.names.named(), index))
    }

    /// Identities of the rules with `name` of the port with these sets.
    fn identities(&self, sets: &Sets, name: &str) -> Vec<u64> {
        let own = self.names.matching(name).into_iter().filter(|&index| has(&sets.from, index));
        own.filter_map(|index| self.names.identity(index)).collect()
    }

    /// Identities of the rules about frames of `port` that have `name`, which is in lower case, among their destinations.
    pub(crate) fn rules_of_name(&self, port: PortId, name: &str) -> Vec<u64> {
        self.identities(self.sets(port), name)
    }

    /// Whether the guest of `port` may ask for `name`, which is in lower case: the first rule that has it decides, else a rule for all
    /// destinations of all ports; without rules about names and a default that refuses, it may ask for all.
    ///
    /// # Errors
    /// The port may not: the index of the rule or default that refuses, if there is one.
    pub(crate) fn may_ask(&self, port: PortId, name: &str) -> Result<(), Option<usize>> {
        let sets = self.sets(port);
        let own = || indices(sets.from.iter().copied()).filter_map(|index| Some((index, self.rules.get(index)?)));
        let decides = |(index, _): &(usize, &PolicyRule)| has(&sets.from, *index);
        let first = self.names.matching(name).into_iter().filter_map(|index| Some((index, self.rules.get(index)?))).find(decides);
        if let Some((index, rule)) = first {
            return if rule.allows() { Ok(()) } else { Err(Some(index)) };
        }
        let is_limited = sets.default.is_some() || own().any(|(_, rule)| rule.has_names());
        if !is_limited || own().any(|(_, rule)| allows_everywhere(rule)) { Ok(()) } else { Err(sets.default) }
    }

    /// Whether a rule about frames from one port to another has destinations.
    pub(crate) fn has_destinations(&self, from: PortId, to: PortId) -> bool {
        self.words(from, to).zip(self.destinations.limited()).any(|(rules, limited)| rules & limited != 0)
    }

    /// The interval of `address` among the destinations of rules.
    pub(crate) fn interval(&self, address: IpAddr) -> Interval<'_> {
        self.destinations.interval(address)
    }

    /// Of the rules about frames from one port to another those that are `among` these; without a set, those without destinations.
    pub(crate) fn between_among<'s>(
        &'s self,
        (from, to): (PortId, PortId),
        among: Option<&'s [u64]>,
    ) -> impl Iterator<Item = (usize, &'s PolicyRule)> {
        let among = among.unwrap_or(self.destinations.any());
        self.numbered(self.words(from, to).zip(among).map(|(rules, among)| rules & among))
    }

    /// The set of rules about frames from one port to another, in words.
    fn words(&self, from: PortId, to: PortId) -> impl Iterator<Item = u64> {
        self.sets(from).from.iter().zip(&self.sets(to).to).map(|(from, to)| from & to)
    }

    fn numbered(&self, words: impl Iterator<Item = u64>) -> impl Iterator<Item = (usize, &PolicyRule)> {
        // Each set has a bit for every rule and no others.
        indices(words).filter_map(|index| Some((index, self.rules.get(index)?)))
    }
}

/// Whether `rule` allows frames to all addresses of an IP version.
fn allows_everywhere(rule: &PolicyRule) -> bool {
    let is_for_all = rule.destinations.is_empty() && rule.to.is_all();
    rule.allows() && (is_for_all || rule.destinations.iter().filter_map(Destination::prefix).any(|prefix| prefix.length() == 0))
}

fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// `text`, with a mark where it was cut.
fn cut(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(from: &[&str], to: &[&str]) -> PolicyRule {
        let names = |names: &[&str]| Names(names.iter().map(|&name| name.into()).collect());
        PolicyRule { from: names(from), to: names(to), action: Some(Action::Deny), ..PolicyRule::default() }
    }

    fn member<'m>(name: &'m str, groups: &'m [String]) -> Member<'m> {
        Member { name, segment: "lan", groups, flows: None, grants: None }
    }

    #[test]
    fn the_first_default_of_a_port_holds_for_what_it_sends_and_receives() {
        let default = |members: &[&str], segment: Option<&str>, action| PolicyRule {
            default: Some(action),
            members: Names(members.iter().map(|&name| name.into()).collect()),
            segment: segment.map(Into::into),
            ..PolicyRule::default()
        };
        let mut filter = Filter::new(&[
            default(&["gate"], None, Action::Allow),
            default(&["boxes"], None, Action::Reject),
            default(&[], Some("lan"), Action::Deny),
        ]);
        let [gate, boxed, plain, elsewhere, server] = [0, 1, 2, 3, 4].map(PortId);
        filter.enter(gate, member("gate", &[]));
        filter.enter(boxed, member("b", &["boxes".into()]));
        filter.enter(plain, member("plain", &[]));
        filter.enter(elsewhere, Member { segment: "other", ..member("elsewhere", &[]) });
        filter.enter_responder(server);
        let between = |from, to| filter.default_between(from, to).map(|(index, _)| index);
        assert_eq!((between(gate, elsewhere), between(gate, plain), between(plain, gate)), (None, Some(2), Some(2)));
        assert_eq!((between(boxed, gate), between(plain, boxed), between(boxed, plain)), (Some(1), Some(2), Some(1)));
        assert_eq!((between(boxed, server), between(server, boxed)), (None, None));
    }

    #[test]
    fn rules_concern_the_ports_and_groups_that_they_name() {
        let many: Vec<PolicyRule> =
            (0..130).map(|n| if n % 2 == 0 { rule(&["web"], &["db"]) } else { rule(&["front"], &[]) }).collect();
        let mut filter = Filter::new(&many);
        let [web, db, front, late] = [0, 1, 2, 3].map(PortId);
        filter.enter(web, member("web", &[]));
        filter.enter(db, member("db", &[]));
        filter.enter(front, member("a", &["front".into(), "web".into()]));
        let between = |filter: &Filter, from, to| filter.between(from, to).map(|(index, _)| index).collect::<Vec<_>>();
        assert_eq!(between(&filter, web, db), (0..130).step_by(2).collect::<Vec<_>>());
        assert_eq!(between(&filter, front, db), (0..130).collect::<Vec<_>>());
        assert_eq!(between(&filter, front, web), (1..130).step_by(2).collect::<Vec<_>>());
        assert!(between(&filter, db, web).is_empty() && between(&filter, late, db).is_empty());
        assert_eq!(between(&filter, front, late).len(), 65, "all receivers include those that come later");
        let server = PortId(4);
        filter.enter_responder(server);
        assert!(
            between(&filter, front, server).is_empty() && between(&filter, server, front).is_empty(),
            "rules about all ports do not concern it"
        );
        filter.remove(front);
        assert!(filter.between(front, db).next().is_none());
    }
}
