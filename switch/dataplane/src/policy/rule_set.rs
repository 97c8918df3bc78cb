//! Sets of policy rules: a bit for each rule, by its index.

use std::borrow::Borrow;

use memlane_model::policy::PolicyRule;

/// See the module.
pub(crate) type RuleSet = Box<[u64]>;

/// Rules of a set in one word.
pub(super) const WORD: usize = u64::BITS as usize;

/// The set of those of `rules` that `is_in` chooses.
pub(super) fn set_of<R: Borrow<PolicyRule>>(rules: &[R], is_in: impl Fn(&PolicyRule) -> bool) -> RuleSet {
    let is_in = |(bit, rule): (usize, &R)| u64::from(is_in(rule.borrow())) << bit;
    let word = |rules: &[R]| rules.iter().enumerate().map(is_in).fold(0, |word, bit| word | bit);
    rules.chunks(WORD).map(word).collect()
}

/// Whether a set has the rule with this index.
pub(crate) fn has(set: &[u64], index: usize) -> bool {
    set.get(index / WORD).is_some_and(|word| word >> (index % WORD) & 1 != 0)
}

/// Indices of the rules of a set, given in `words`, in their order.
pub(super) fn indices(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(at, word)| bits(word).map(move |bit| at * WORD + bit))
}

/// The numbers of the bits that are set, from the lowest on.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (bit < WORD).then_some(bit)
    })
}
