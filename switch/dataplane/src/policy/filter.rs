//! Packet filter: the network's policy rules, compiled for the verdict. The first rule that matches a frame decides. Frames that match none
//! pass, unless a **default** refuses them, of the sender or of the receiver.
//!
//! A frame between two ports is compared with the rules about all ports, those with the sender or one of its groups in `from`, and those about
//! all senders with the receiver in `to`. Each is a list of its own, which ports share, so a port's filter is a few references. The
//! [`super::rulebook`] changes the filters of the ports that a changed rule concerns; a worker forgets the verdicts about their frames, and no
//! others. A worker has the filters of all ports from one moment. Rules are about frames between ports of the operator: none is about a
//! segment's responder.

use std::net::IpAddr;
use std::sync::Arc;

pub use memlane_model::policy::{Action, Destination, MOST_RULES, Names, PolicyRule, PortRange, Protocol};

use super::flows::{self, Flows};
use super::grants::Grants;
use super::port_map::PortMap;
pub use super::rule::Rule;
use super::rule_list::{NameKey, RuleList, Towards};
use super::rulebook::Rulebook;
use crate::id::PortId;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Rules about the frames of all ports; those in no list of a receiving port.
    pub(super) common: Arc<RuleList>,
    pub(super) ports: PortMap<PortFilter>,
    /// The filter of a port that has not been entered.
    pub(super) unnamed: Arc<PortFilter>,
    pub(super) summary: Summary,
    /// All rules, in their order.
    pub(super) rules: Arc<[Arc<Rule>]>,
    /// Number of the last change of a rule about all ports, or of the place of one, among all changes of filters of this process.
    pub(super) generation: u64,
}

/// Kinds of rules that some port has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Some rule decides on frames.
    pub decides: bool,
    /// Some rule has the sending ports of matching frames told.
    pub rejects: bool,
    /// Some rule has destinations, or is a default that decides.
    pub limits_destinations: bool,
    /// Some rule has DNS names.
    pub has_names: bool,
    /// Some rule is a default.
    pub has_defaults: bool,
}

/// The filter of one port.
#[derive(Debug, Default)]
pub(super) struct PortFilter {
    /// Number of its last change, as [`Filter::generation`].
    pub generation: u64,
    /// Rules with the port's name, or one of its groups, in `from`; a list for each name.
    pub from: Box<[Arc<RuleList>]>,
    /// Rules about all sending ports, with such a name in `to`.
    pub to: Box<[Arc<RuleList>]>,
    /// The names.
    pub keys: Box<[NameKey]>,
    /// The default that refuses the port's frames.
    pub default: Option<Arc<Rule>>,
    /// Flows that the port opened.
    pub flows: Option<Arc<Flows>>,
    /// Addresses that the port's own questions for DNS names were answered with.
    pub grants: Option<Arc<Grants>>,
    /// The port is a segment's responder.
    pub is_exempt: bool,
    /// The port's name, and its groups.
    pub names: Arc<[Box<str>]>,
    /// The port's segment.
    pub segment: Arc<str>,
}

impl PortFilter {
    /// Whether both judge the port's frames alike.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same = |one: &[Arc<RuleList>], other: &[Arc<RuleList>]| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| Arc::ptr_eq(one, other))
        };
        let rule = |filter: &Self| filter.default.as_ref().map(Arc::as_ptr);
        let tables = |filter: &Self| (filter.flows.as_ref().map(Arc::as_ptr), filter.grants.as_ref().map(Arc::as_ptr));
        let lists = same(&self.from, &other.from) && same(&self.to, &other.to);
        lists
            && self.keys == other.keys
            && rule(self) == rule(other)
            && tables(self) == tables(other)
            && self.is_exempt == other.is_exempt
    }
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
    /// Groups of the port, at most [`MOST_GROUPS`](memlane_model::policy::MOST_GROUPS).
    pub groups: &'m [String],
    /// Flows that it opened.
    pub flows: Option<&'m Arc<Flows>>,
    /// Grants of the port.
    pub grants: Option<&'m Arc<Grants>>,
}

/// Ports with frames that another filter judges otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Any port.
    All,
    /// These ports, as sender or receiver, in their order.
    Ports(Vec<PortId>),
}

impl Changed {
    /// Whether verdicts on the frames of `port`, or to it, may have changed.
    pub(crate) fn concerns(&self, port: PortId) -> bool {
        match self {
            Self::All => true,
            Self::Ports(ports) => ports.binary_search(&port).is_ok(),
        }
    }
}

impl Filter {
    /// The filter of these rules, of which those with the action "audit" decide on no frame; it knows no ports.
    pub fn new(rules: &[PolicyRule]) -> Self {
        let mut book = Rulebook::default();
        book.set_rules(rules);
        book.filter().clone()
    }

    /// Whether every frame passes: no rule decides.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.summary.decides
    }

    /// The ports that this filter judges otherwise than `before`.
    pub(crate) fn changed_since(&self, before: &Self) -> Changed {
        if !Arc::ptr_eq(&self.common, &before.common) || self.is_empty() != before.is_empty() {
            return Changed::All;
        }
        Changed::Ports(self.ports.differing(&before.ports))
    }

    /// All rules, in their order.
    pub(crate) fn rules(&self) -> &Arc<[Arc<Rule>]> {
        &self.rules
    }

    /// All rules as the configuration has them.
    pub(crate) fn stated(&self) -> Vec<PolicyRule> {
        self.rules.iter().map(|rule| rule.configured()).collect()
    }

    /// The ports that it knows.
    pub(crate) fn members(&self) -> Vec<PortId> {
        self.ports.differing(&PortMap::default())
    }

    /// The names and the segment of a port, and whether no rule concerns it; `None` if it does not know the port.
    pub(crate) fn member(&self, port: PortId) -> Option<(&[Box<str>], &str, bool)> {
        self.ports.get(port).map(|port| (&*port.names, &*port.segment, port.is_exempt))
    }

    fn port(&self, port: PortId) -> &PortFilter {
        self.ports.get(port).unwrap_or(&self.unnamed)
    }

    /// A number that grows with each change of the rules about frames from one port to another, and of their places.
    pub(crate) fn generation_between(&self, from: PortId, to: PortId) -> u64 {
        self.generation_of(from).max(self.port(to).generation)
    }

    /// Like [`Self::generation_between`], of frames to all ports.
    pub(crate) fn generation_of(&self, from: PortId) -> u64 {
        self.generation.max(self.port(from).generation)
    }

    /// The rules about frames from one port to another, by lists.
    pub(crate) fn between(&self, from: PortId, to: PortId) -> impl Iterator<Item = Towards<'_>> {
        let (sender, receiver) = (self.port(from), self.port(to));
        let is_exempt = sender.is_exempt || receiver.is_exempt;
        let lists = std::iter::once(&self.common).chain(&*sender.from).chain(&*receiver.to).filter(move |_| !is_exempt);
        lists.map(|list| list.towards(&receiver.keys))
    }

    /// Whether any rule has the senders of matching frames told.
    pub(crate) fn rejects(&self) -> bool {
        self.summary.rejects
    }

    /// Whether any rule has destinations, or is a default of ports.
    pub(crate) fn limits_destinations(&self) -> bool {
        self.summary.limits_destinations
    }

    /// The default that refuses frames between two ports which match no rule: the sender's before the receiver's.
    pub(crate) fn default_between(&self, from: PortId, to: PortId) -> Option<&Rule> {
        let (from, to) = (self.port(from), self.port(to));
        from.default.as_deref().or(to.default.as_deref()).filter(|_| !from.is_exempt && !to.is_exempt)
    }

    /// The flows that a port opened.
    pub(crate) fn flows(&self, port: PortId) -> Option<&Flows> {
        self.port(port).flows.as_deref()
    }

    /// Whether any rule has DNS names.
    pub(crate) fn has_any_names(&self) -> bool {
        self.summary.has_names
    }

    /// Whether a rule has DNS names, or is a default of ports.
    pub(crate) fn limits_names(&self) -> bool {
        self.summary.has_names || self.summary.has_defaults
    }

    /// Whether `address` is one that `port` was given for a name of `rule`, which has some.
    pub(crate) fn is_granted(&self, port: PortId, rule: &Rule, address: IpAddr) -> bool {
        let grants = self.port(port).grants.as_deref();
        grants.is_some_and(|grants| grants.allows(address, rule.identity(), flows::second()))
    }

    /// Notes that `port` sends a frame to `address` by `rule`.
    pub(crate) fn extend_grant(&self, port: PortId, rule: &Rule, address: IpAddr) {
        if let Some(grants) = self.port(port).grants.as_deref().filter(|_| self.summary.has_names && rule.has_names()) {
            grants.extend(address, rule.identity(), flows::second());
        }
    }

    /// The lists of rules about frames that `port` transmits, but for those of receivers, which have no DNS names.
    fn own(&self, port: PortId) -> impl Iterator<Item = &RuleList> {
        std::iter::once(&self.common).chain(&*self.port(port).from).map(|list| &**list)
    }

    /// Identities of the rules about frames of `port` that have `name`, which is in lower case, among their destinations.
    pub(crate) fn rules_of_name(&self, port: PortId, name: &str) -> Vec<u64> {
        let mut rules: Vec<&Rule> = self.own(port).flat_map(|list| list.of_name(name)).collect();
        rules.sort_unstable_by_key(|rule| rule.order());
        let mut identities = Vec::new();
        for rule in rules {
            if !identities.contains(&rule.identity()) {
                identities.push(rule.identity());
            }
        }
        identities
    }

    /// Whether the guest of `port` may ask for `name`, which is in lower case: the first rule that has it decides, else a rule for all
    /// destinations of all ports; without rules about names and a default that refuses, it may ask for all.
    ///
    /// # Errors
    /// The port may not: the rule or default that refuses, if there is one.
    pub(crate) fn may_ask(&self, port: PortId, name: &str) -> Result<(), Option<&Rule>> {
        let first = self.own(port).filter_map(|list| list.of_name(name).next()).min_by_key(|rule| rule.order());
        if let Some(rule) = first {
            return if rule.allows() { Ok(()) } else { Err(Some(rule)) };
        }
        let default = self.port(port).default.as_deref();
        let is_limited = default.is_some() || self.own(port).any(RuleList::has_names);
        if !is_limited || self.own(port).any(|list| list.allows_everywhere) { Ok(()) } else { Err(default) }
    }
}
