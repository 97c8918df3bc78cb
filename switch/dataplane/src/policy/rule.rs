//! A policy rule as the filters of ports have it: with its place among the others, which may change while the rule stays.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use memlane_model::policy::PolicyRule;

/// Most bytes of a rule in words.
const LONGEST_TEXT: usize = 512;
/// Rules of the whole process so far.
static RULES: AtomicU64 = AtomicU64::new(0);

/// See the module.
#[derive(Debug)]
pub struct Rule {
    /// Without its line.
    stated: PolicyRule,
    /// See [`Self::id`] and [`Self::order`].
    id: u64,
    order: u64,
    /// See [`Self::identity`].
    identity: u64,
    /// Some of its destinations are DNS names.
    has_names: bool,
    /// Line in the file, 0 if that is not known, and number from 0 on: for messages.
    line: AtomicUsize,
    number: AtomicUsize,
}

impl Deref for Rule {
    type Target = PolicyRule;

    fn deref(&self) -> &PolicyRule {
        &self.stated
    }
}

impl Rule {
    /// The rule `stated` with this order.
    pub(super) fn new(stated: &PolicyRule, order: u64) -> Arc<Self> {
        let (mut hasher, has_names) = (DefaultHasher::new(), stated.has_names());
        if has_names {
            stated.destinations.iter().for_each(|destination| destination.to_string().hash(&mut hasher));
        }
        let (line, number) = (AtomicUsize::new(stated.line), AtomicUsize::new(0));
        let (stated, identity) = (PolicyRule { line: 0, ..stated.clone() }, hasher.finish());
        let id = RULES.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { stated, id, order, identity, has_names, line, number })
    }

    /// Whether `stated` says the same, wherever it stands.
    pub(crate) fn is(&self, stated: &PolicyRule) -> bool {
        self.stated == *stated
    }

    /// A number that no other rule of any port has.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Of two rules the one with the lower order is tried first. A rule that moves gets a new order, and is another rule then.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    /// Identity of the list of destinations of a rule with DNS names: rules with the same list have the same one.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Whether some of its destinations are DNS names.
    pub(crate) fn has_names(&self) -> bool {
        self.has_names
    }

    /// Line in the file, 0 if that is not known.
    pub(crate) fn line(&self) -> usize {
        self.line.load(Ordering::Relaxed)
    }

    /// The rule in words, with its place, cut at 512 bytes.
    pub(crate) fn text(&self) -> String {
        let mut text = self.stated.with_place(self.line(), self.number.load(Ordering::Relaxed));
        if text.len() > LONGEST_TEXT {
            text.truncate(text.floor_char_boundary(LONGEST_TEXT));
            text.push_str(" ...");
        }
        text
    }

    /// The rule as the ports' configuration has it, with its line.
    pub(super) fn configured(&self) -> PolicyRule {
        PolicyRule { line: self.line(), ..self.stated.clone() }
    }

    /// Notes its place; whether it was elsewhere.
    pub(super) fn set_place(&self, line: usize, number: usize) -> bool {
        let before = (self.line.swap(line, Ordering::Relaxed), self.number.swap(number, Ordering::Relaxed));
        before != (line, number)
    }
}
