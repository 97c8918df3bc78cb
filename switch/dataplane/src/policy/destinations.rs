//! Destinations of policy rules, compiled: the address space of each IP version in intervals, and for each interval the set of rules
//! that it is a destination of.
//!
//! A look-up is one binary search, however many rules and prefixes there are. All addresses of an interval have the same rules, so a
//! verdict holds for all of them: the match mask needs the bits that distinguish an interval from its neighbours, and no more.

#![expect(
    clippy::indexing_slicing,
    reason = "in the control thread: a set has a bit for each rule, each bound has the index of its own rule, and what stands at one address is not empty"
)]

use std::borrow::Borrow;
use std::collections::HashMap;
use std::net::IpAddr;

use memlane_model::addresses::Prefix;
use memlane_model::policy::{Destination, PolicyRule};

use super::rule_set::{RuleSet, WORD, set_of};

/// See the module.
#[derive(Debug, Default)]
pub struct Destinations {
    v4: Intervals,
    v6: Intervals,
    /// Rules without destinations, which match frames of any protocol.
    any: RuleSet,
    /// Rules with destinations.
    limited: RuleSet,
    /// The rules of each kind of interval, each once.
    sets: Vec<RuleSet>,
}

/// Addresses of one IP version, as numbers, in intervals without gaps.
#[derive(Debug, Default)]
struct Intervals {
    /// The first address of each interval, from 0 on.
    starts: Vec<u128>,
    /// The set of each interval, by its index.
    sets: Vec<u32>,
}

/// The interval of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval<'d> {
    /// The rules with these destinations, and those without any.
    pub rules: &'d [u64],
    /// The address before the first one; `None` if there is none.
    pub before: Option<u128>,
    /// The address behind the last one; `None` if there is none.
    pub after: Option<u128>,
}

/// An address of either version as a number.
pub(crate) fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Bits of an address of the version of `address`.
pub(crate) fn bits_of(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first and the last address with `prefix`.
fn bounds(prefix: Prefix) -> (u128, u128) {
    let free = bits_of(prefix.address()) - u32::from(prefix.length());
    let host = u128::MAX.checked_shr(128 - free).unwrap_or(0);
    let number = number_of(prefix.address());
    (number & !host, number | host)
}

impl Destinations {
    /// The destinations of `rules`.
    pub(crate) fn of<R: Borrow<PolicyRule>>(rules: &[R]) -> Self {
        let set = |is_limited: bool| set_of(rules, |rule| rule.destinations.is_empty() != is_limited);
        let mut compiled = Self { any: set(false), limited: set(true), ..Self::default() };
        let mut known = HashMap::new();
        for is_v4 in [true, false] {
            let intervals = compiled.intervals(rules, is_v4, &mut known);
            *(if is_v4 { &mut compiled.v4 } else { &mut compiled.v6 }) = intervals;
        }
        compiled
    }

    /// The intervals of one IP version: a sweep over the bounds of all prefixes.
    fn intervals<R: Borrow<PolicyRule>>(&mut self, rules: &[R], is_v4: bool, known: &mut HashMap<RuleSet, u32>) -> Intervals {
        let mut bounds_of_all = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let prefixes = rule.borrow().destinations.iter().filter_map(Destination::prefix);
            for (first, last) in prefixes.filter(|prefix| prefix.address().is_ipv4() == is_v4).map(bounds) {
                bounds_of_all.push((first, true, index));
                last.checked_add(1).into_iter().for_each(|after| bounds_of_all.push((after, false, index)));
            }
        }
        bounds_of_all.sort_unstable();
        let (mut intervals, mut present, mut depth) = (Intervals::default(), self.any.clone(), vec![0_u32; rules.len()]);
        intervals.begin(0, self.entry(&present, known));
        for at_once in bounds_of_all.chunk_by(|one, other| one.0 == other.0) {
            for &(_, begins, index) in at_once {
                depth[index] = if begins { depth[index] + 1 } else { depth[index] - 1 };
                let bit = 1 << (index % WORD);
                let word = &mut present[index / WORD];
                *word = if depth[index] > 0 { *word | bit } else { *word & !bit };
            }
            intervals.begin(at_once[0].0, self.entry(&present, known));
        }
        intervals
    }

    /// The index of the set `rules`, entered if it is new.
    fn entry(&mut self, rules: &RuleSet, known: &mut HashMap<RuleSet, u32>) -> u32 {
        let next = self.sets.len() as u32;
        let index = *known.entry(rules.clone()).or_insert(next);
        if index == next {
            self.sets.push(rules.clone());
        }
        index
    }

    /// Rules without destinations.
    pub(crate) fn any(&self) -> &[u64] {
        &self.any
    }

    /// Rules with destinations.
    pub(crate) fn limited(&self) -> &[u64] {
        &self.limited
    }

    /// The interval of `address`.
    pub(crate) fn interval(&self, address: IpAddr) -> Interval<'_> {
        let intervals = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        let number = number_of(address);
        let next = intervals.starts.partition_point(|&start| start <= number);
        let set = next.checked_sub(1).and_then(|index| intervals.sets.get(index)).and_then(|&set| self.sets.get(set as usize));
        let before = next.checked_sub(1).and_then(|index| intervals.starts.get(index)?.checked_sub(1));
        Interval { rules: set.map_or(&self.any, |set| set), before, after: intervals.starts.get(next).copied() }
    }
}

impl Intervals {
    /// An interval with the set `set` begins at `start`, unless it goes on with that of before.
    fn begin(&mut self, start: u128, set: u32) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.sets.pop();
        }
        if self.sets.last() != Some(&set) {
            self.starts.push(start);
            self.sets.push(set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(destinations: &[Prefix]) -> PolicyRule {
        PolicyRule { destinations: destinations.iter().copied().map(Destination::Prefix).collect(), ..PolicyRule::default() }
    }

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Bounds of prefixes, the whole address space of each version among them.
    #[test]
    fn addresses_have_the_rules_of_all_prefixes_that_contain_them() {
        let rules = [
            rule(&prefixes(&["10.0.0.0/8", "fd00::/8"])),
            rule(&prefixes(&["10.1.0.0/16", "10.1.2.0/24", "255.255.255.255"])),
            rule(&[]),
            rule(&prefixes(&["0.0.0.0/0"])),
            rule(&prefixes(&["::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"])),
        ];
        let compiled = Destinations::of(&rules);
        let wanted = [
            ("9.255.255.255", 0b01100),
            ("10.0.0.0", 0b01101),
            ("10.1.2.3", 0b01111),
            ("10.1.255.255", 0b01111),
            ("10.2.0.0", 0b01101),
            ("11.0.0.0", 0b01100),
            ("255.255.255.255", 0b01110),
            ("::", 0b10100),
            ("::a00:1", 0b10100),
            ("fd00::", 0b10101),
            ("fe00::", 0b10100),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 0b10100),
        ];
        for (address, rules) in wanted {
            assert_eq!(compiled.interval(address.parse().unwrap()).rules, [rules], "{address}");
        }
        assert_eq!((compiled.any(), compiled.limited()), (&[0b100][..], &[0b11011][..]));
        let ten = compiled.interval("10.200.0.1".parse().unwrap());
        assert_eq!((ten.before, ten.after), (Some(0x0a01_ffff), Some(0x0b00_0000)));
        let empty = Destinations::of::<PolicyRule>(&[]);
        assert_eq!(empty.interval("10.0.0.1".parse().unwrap()), Interval { rules: &[], before: None, after: None });
    }

    /// Each prefix is compared with each address, beside the look-up, and with the neighbours of its interval.
    #[test]
    fn a_look_up_agrees_with_the_comparison_of_all_prefixes() {
        bolero::check!().with_type::<(Vec<(u8, u32, u8)>, Vec<u32>)>().for_each(|(parts, addresses)| {
            let prefix = |address: u32, length: u8| format!("{}/{length}", std::net::Ipv4Addr::from(address)).parse().unwrap();
            let mut rules = vec![rule(&[]); 70];
            for &(index, address, length) in parts.iter().take(64) {
                rules[usize::from(index % 70)].destinations.push(Destination::Prefix(prefix(address, length % 33)));
            }
            let compiled = Destinations::of(&rules);
            let near = parts.iter().flat_map(|&(_, address, length)| {
                let (first, last) = bounds(prefix(address, length % 33));
                [first as u32, last as u32, (first as u32).wrapping_sub(1), (last as u32).wrapping_add(1)]
            });
            for address in addresses.iter().copied().chain(near) {
                let address = IpAddr::V4(address.into());
                let Interval { rules: found, before, after } = compiled.interval(address);
                for (index, rule) in rules.iter().enumerate() {
                    let wanted = rule.destinations.is_empty()
                        || rule.destinations.iter().filter_map(Destination::prefix).any(|one| one.contains(address));
                    assert_eq!(found[index / 64] >> (index % 64) & 1 != 0, wanted, "{address} {rule:?}");
                }
                assert!(before.is_none_or(|before| before < number_of(address)));
                assert!(after.is_none_or(|after| after > number_of(address)));
            }
        });
    }
}
