//! DNS names in the destinations of policy rules, compiled: the rules that a name is a destination of, by one look-up for each of its labels.

use std::borrow::Borrow;
use std::collections::HashMap;

use memlane_model::policy::PolicyRule;

use super::rule_set::{RuleSet, set_of};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RuleNames {
    /// Rules with this name, by their indices.
    exact: HashMap<Box<str>, Vec<usize>>,
    /// Rules with all names below this one.
    below: HashMap<Box<str>, Vec<usize>>,
    /// Rules with names.
    named: RuleSet,
}

impl RuleNames {
    /// The names in `rules`.
    pub(crate) fn of<R: Borrow<PolicyRule>>(rules: &[R]) -> Self {
        let mut compiled = Self { named: set_of(rules, PolicyRule::has_names), ..Self::default() };
        for (index, rule) in rules.iter().enumerate() {
            for name in rule.borrow().destinations.iter().filter_map(|destination| destination.name()) {
                let table = if name.is_below() { &mut compiled.below } else { &mut compiled.exact };
                table.entry(name.name().into()).or_default().push(index);
            }
        }
        compiled
    }

    /// Whether no rule has names.
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty()
    }

    /// Rules with names.
    pub(crate) fn named(&self) -> &[u64] {
        &self.named
    }

    /// Indices of the rules that have `name`, which is in lower case, among their destinations, in their order.
    pub(crate) fn matching(&self, name: &str) -> Vec<usize> {
        let above = name.match_indices('.').filter_map(|(at, _)| self.below.get(name.get(at + 1..)?));
        let mut indices: Vec<usize> = self.exact.get(name).into_iter().chain(above).flatten().copied().collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_rules_with_it_and_with_those_above() {
        let rule = |names: &[&str]| PolicyRule {
            destinations: names.iter().map(|name| name.parse().unwrap()).collect(),
            ..PolicyRule::default()
        };
        let rules = [
            rule(&["api.example.org", "*.example.org", "10.0.0.0/8"]),
            rule(&["10.0.0.0/8"]),
            rule(&["*.org"]),
            rule(&["example.org"]),
            rule(&["*.a.example.org", "fd00::/8"]),
        ];
        let names = RuleNames::of(&rules);
        assert_eq!(names.named(), [0b11101]);
        for (name, wanted) in [
            ("api.example.org", &[0, 2][..]),
            ("example.org", &[2, 3]),
            ("b.a.example.org", &[0, 2, 4]),
            ("org", &[]),
            ("badexample.org", &[2]),
            ("example.com", &[]),
            ("", &[]),
        ] {
            assert_eq!(names.matching(name), wanted, "{name}");
        }
        assert!(RuleNames::of(&rules[1..2]).is_empty());
    }
}
