//! A list of policy rules, compiled: the rules that name one port or group, or all. Ports share lists, so that a rule about a group of thousands is
//! compiled once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use memlane_model::policy::{MOST_GROUPS, PolicyRule};

use super::destinations::Destinations;
use super::rule::Rule;
use super::rule_names::RuleNames;
use super::rule_set::{RuleSet, has, indices, set_of};

/// Most names of a port in rules: its own, and those of its groups.
pub(super) const MOST_KEYS: usize = MOST_GROUPS + 1;

/// A name of a port or group, which is found by its hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameKey {
    hash: u64,
    name: Arc<str>,
}

impl NameKey {
    /// The key of `name`.
    pub(super) fn of(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self { hash: hasher.finish(), name: name.into() }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RuleList {
    /// In their order.
    rules: Box<[Arc<Rule>]>,
    /// The addresses among the destinations of the port's rules.
    pub(crate) destinations: Destinations,
    /// The DNS names among them.
    names: RuleNames,
    /// Rules about frames to all ports that have the list.
    to_all: RuleSet,
    /// Rules about frames to the ports of a name, by the name.
    to: Box<[(NameKey, RuleSet)]>,
    /// Some rule allows a port's frames to all addresses of an IP version.
    pub(super) allows_everywhere: bool,
}

/// The rules of a list about frames to one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Towards<'l> {
    list: &'l RuleList,
    some: [&'l [u64]; MOST_KEYS],
    count: usize,
}

impl RuleList {
    /// The list of `rules`, in their order. Unless `heeds_receivers`, all of them are about frames to the port that has the list.
    pub(super) fn of(rules: &[Arc<Rule>], heeds_receivers: bool) -> Self {
        let stated: Vec<&PolicyRule> = rules.iter().map(|rule| &***rule).collect();
        let mut names: Vec<NameKey> = Vec::new();
        if heeds_receivers {
            names.extend(stated.iter().flat_map(|rule| &rule.to.0).map(|name| NameKey::of(name)));
            names.sort_unstable();
            names.dedup();
        }
        let to = names.into_iter().map(|key| {
            let set = set_of(&stated, |rule| rule.to.0.iter().any(|name| **name == *key.name));
            (key, set)
        });
        Self {
            to: to.collect(),
            to_all: set_of(&stated, |rule| !heeds_receivers || rule.to.is_all()),
            destinations: Destinations::of(&stated),
            names: RuleNames::of(&stated),
            allows_everywhere: stated.iter().any(|rule| rule.allows_everywhere()),
            rules: rules.into(),
        }
    }

    /// Whether any rule has DNS names.
    pub(super) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// The rules that have the DNS name `name`, which is in lower case, among their destinations, in their order.
    pub(super) fn of_name(&self, name: &str) -> impl Iterator<Item = &Rule> {
        self.names.matching(name).into_iter().filter_map(|index| self.rules.get(index).map(|rule| &**rule))
    }

    /// The rules about frames to a port with these names.
    #[inline]
    pub(super) fn towards(&self, keys: &[NameKey]) -> Towards<'_> {
        let (mut some, mut count) = ([&[][..]; MOST_KEYS], 0);
        if !self.to.is_empty() {
            for key in keys {
                let found = self.to.binary_search_by(|(known, _)| known.cmp(key)).ok().and_then(|index| self.to.get(index));
                if let (Some((_, set)), Some(place)) = (found, some.get_mut(count)) {
                    *place = set;
                    count += 1;
                }
            }
        }
        Towards { list: self, some, count }
    }
}

impl<'l> Towards<'l> {
    /// The list.
    pub(crate) fn list(&self) -> &'l RuleList {
        self.list
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        let some = self.some.get(..self.count).unwrap_or_default();
        let word = move |at: usize| some.iter().filter_map(|set| set.get(at)).fold(0, |word, other| word | other);
        self.list.to_all.iter().enumerate().map(move |(at, all)| all | word(at))
    }

    /// Whether any rule about frames to the port has destinations.
    pub(crate) fn has_destinations(&self) -> bool {
        self.words().zip(self.list.destinations.limited()).any(|(rules, limited)| rules & limited != 0)
    }

    /// Whether any of the rules has DNS names.
    pub(crate) fn has_names(&self) -> bool {
        self.list.has_names() && self.words().zip(self.list.names.named()).any(|(rules, named)| rules & named != 0)
    }

    /// Whether the rule with this index in the list has DNS names.
    pub(crate) fn is_named(&self, index: usize) -> bool {
        has(self.list.names.named(), index)
    }

    /// The rules about frames to the port in their order, with their indices in the list.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (usize, &'l Rule)> {
        self.numbered(self.words())
    }

    /// Rules that are in the set `among`, with their numbers.
    pub(crate) fn rules_among(&self, among: &[u64]) -> impl Iterator<Item = (usize, &'l Rule)> {
        self.numbered(self.words().zip(among).map(|(rules, among)| rules & among))
    }

    fn numbered(&self, words: impl Iterator<Item = u64>) -> impl Iterator<Item = (usize, &'l Rule)> {
        let list = self.list;
        // Each set has a bit for every rule of the list and no others.
        indices(words).filter_map(move |index| Some((index, &**list.rules.get(index)?)))
    }
}
