//! Packet filter: the network's policy rules, compiled for the verdict. The first rule that matches a frame decides, and frames that match
//! none pass.
//!
//! Each port has two sets of rules, those that name it in `from` and those that do in `to`: only rules in the sender's first set
//! and in the receiver's second one are compared with a frame. Workers share one filter, which is replaced as a whole, so that both sets
//! are always of the same rules. Rules are about frames between ports of the operator: the sets of a segment's responder are empty.

use std::net::IpAddr;
use std::sync::Arc;

pub use memlane_model::policy::{Action, Destination, MOST_RULES, Names, PolicyRule, PortRange, Protocol};

use super::destinations::{Destinations, Interval};
use crate::id::PortId;

/// Rules of a set in one word.
const WORD: usize = u64::BITS as usize;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Arc<[PolicyRule]>,
    /// The destinations of the rules.
    destinations: Arc<Destinations>,
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
}

/// The rules that name a port, a bit each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sets {
    from: Box<[u64]>,
    to: Box<[u64]>,
}

impl Sets {
    fn of(rules: &[PolicyRule], has: impl Fn(&Names) -> bool) -> Self {
        let set = |names: fn(&PolicyRule) -> &Names| {
            let mut words = vec![0; rules.len().div_ceil(WORD)];
            let named = rules.iter().enumerate().filter(|(_, rule)| has(names(rule)));
            named.for_each(|(index, _)| words[index / WORD] |= 1 << (index % WORD));
            words.into_boxed_slice()
        };
        Self { from: set(|rule| &rule.from), to: set(|rule| &rule.to) }
    }
}

impl Filter {
    /// The filter of these rules, at most [`MOST_RULES`]; it knows no ports yet.
    pub fn new(rules: &[PolicyRule]) -> Self {
        let rules: Arc<[PolicyRule]> = rules.iter().take(MOST_RULES).cloned().collect();
        let (unnamed, destinations) = (Arc::new(Sets::of(&rules, Names::is_all)), Arc::new(Destinations::of(&rules)));
        Self { unnamed, destinations, rules, ports: Vec::new() }
    }

    /// Adds a port of this name in these groups, or changes it.
    pub fn enter(&mut self, port: PortId, name: &str, groups: &[String]) {
        if self.ports.len() <= port.index() {
            self.ports.resize(port.index() + 1, None);
        }
        let sets = Sets::of(&self.rules, |names| names.has(name, groups));
        self.ports[port.index()] = (sets != *self.unnamed).then(|| Arc::new(sets));
    }

    /// Adds the port of a segment's responder: no rule judges its frames, nor those to it.
    pub fn enter_responder(&mut self, port: PortId) {
        self.enter(port, "", &[]);
        if let Some(sets) = self.ports.get_mut(port.index()) {
            *sets = Some(Arc::default());
        }
    }

    /// Removes a port.
    pub fn remove(&mut self, port: PortId) {
        if let Some(sets) = self.ports.get_mut(port.index()) {
            *sets = None;
        }
    }

    /// Whether every frame passes: there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[PolicyRule] {
        &self.rules
    }

    fn sets(&self, port: PortId) -> &Sets {
        self.ports.get(port.index()).and_then(Option::as_ref).unwrap_or(&self.unnamed)
    }

    /// The rules about frames from one port to another, in their order, with their indices.
    pub(crate) fn between(&self, from: PortId, to: PortId) -> impl Iterator<Item = (usize, &PolicyRule)> {
        self.numbered(self.words(from, to))
    }

    /// Whether any rule has destinations.
    pub(crate) fn limits_destinations(&self) -> bool {
        self.destinations.limited().iter().any(|&word| word != 0)
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
        let indices = words.enumerate().flat_map(|(at, word)| bits(word).map(move |bit| at * WORD + bit));
        // Each set has a bit for every rule and no others.
        indices.filter_map(|index| Some((index, self.rules.get(index)?)))
    }
}

/// The numbers of the bits that are set, from the lowest on.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < WORD).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(from: &[&str], to: &[&str]) -> PolicyRule {
        let names = |names: &[&str]| Names(names.iter().map(|&name| name.into()).collect());
        PolicyRule { from: names(from), to: names(to), action: Some(Action::Deny), ..PolicyRule::default() }
    }

    #[test]
    fn rules_concern_the_ports_and_groups_that_they_name() {
        let many: Vec<PolicyRule> =
            (0..130).map(|n| if n % 2 == 0 { rule(&["web"], &["db"]) } else { rule(&["front"], &[]) }).collect();
        let mut filter = Filter::new(&many);
        let [web, db, front, late] = [0, 1, 2, 3].map(PortId);
        filter.enter(web, "web", &[]);
        filter.enter(db, "db", &[]);
        filter.enter(front, "a", &["front".into(), "web".into()]);
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
