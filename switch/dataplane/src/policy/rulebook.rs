//! The rules of a network as the control side changes them. A change compiles the lists of rules that it concerns, and replaces the filters of
//! the ports that have them: all others stay, with the verdicts that workers keep by them.
//!
//! A rule that stands in the new configuration as in the old one stays, wherever its line is now. A rule has an **order**, a number between
//! those of its neighbours, so a new rule moves no other; where no number is left, all rules of all ports get new ones.

#![expect(
    clippy::indexing_slicing,
    reason = "in the control thread: counts of the elements of the same lists, and places that were found in them"
)]

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use memlane_model::policy::{Concerns, MOST_GROUPS, MOST_RULES_OF_NETWORK, PolicyRule};

use super::filter::{Filter, Member, PortFilter, Summary};
use super::flows::{self, Flows};
use super::grants::Grants;
use super::rule::Rule;
use super::rule_list::{NameKey, RuleList};
use crate::id::PortId;

/// Largest distance between the orders of two new rules.
const DISTANCE: u64 = 1 << 40;

/// Changes of filters, of the whole process.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);

fn next_generation() -> u64 {
    1 + GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

/// Rules by a name of ports: of a port, a group or a segment.
type Named<T> = HashMap<Box<str>, T>;

/// The rules of a name of ports in their order, and their list.
#[derive(Debug, Default)]
struct Listed {
    rules: Vec<Arc<Rule>>,
    list: Arc<RuleList>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Rulebook {
    /// Rules with the action "audit" decide on frames of ports, too.
    with_audits: bool,
    rules: Vec<Arc<Rule>>,
    filter: Filter,
    /// Rules about all sending ports that are in no list of `to`.
    common: Vec<Arc<Rule>>,
    /// Rules with a port or group in `from`.
    from: Named<Listed>,
    /// Rules about all sending ports with a port or group in `to`.
    to: Named<Listed>,
    /// Defaults of ports by `members`, and by `segment`.
    members: Named<Vec<Arc<Rule>>>,
    segments: Named<Vec<Arc<Rule>>>,
    /// Ports by number, by their names and groups, and by segment.
    ports: Vec<Option<Entered>>,
    named: Named<BTreeSet<PortId>>,
    in_segment: Named<BTreeSet<PortId>>,
    shared: Shared,
    work: Work,
}

/// Lists of the same rules, which ports and groups share, by the numbers of their rules.
#[derive(Debug, Default)]
struct Shared {
    lists: HashMap<Box<[u64]>, Weak<RuleList>>,
    /// Entries at which those without a list are removed.
    limit: usize,
}

/// Steps that changes of rules and ports took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Lists of rules that were compiled.
    pub compiled: u64,
    /// Filters of ports that were replaced.
    pub replaced: u64,
}

/// A port.
#[derive(Debug)]
struct Entered {
    /// The port's name, and its groups.
    names: Arc<[Box<str>]>,
    segment: Arc<str>,
    flows: Option<Arc<Flows>>,
    grants: Option<Arc<Grants>>,
    is_exempt: bool,
}

/// The names by which changed rules concern ports.
#[derive(Debug, Default)]
struct Dirty {
    common: bool,
    from: BTreeSet<Box<str>>,
    to: BTreeSet<Box<str>>,
    members: BTreeSet<Box<str>>,
    segments: BTreeSet<Box<str>>,
}

impl Rulebook {
    /// Without rules; those with the action "audit" will decide as those with "deny".
    pub(crate) fn of_audits() -> Self {
        Self { with_audits: true, ..Self::default() }
    }

    /// The filters of all ports, for workers.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The rules, in their order.
    pub fn rules(&self) -> Vec<PolicyRule> {
        self.rules.iter().map(|rule| rule.configured()).collect()
    }

    /// The rules that decide on frames of a port of this name in these groups, or to it.
    pub fn count(&self, name: &str, groups: &[String]) -> usize {
        let names = || std::iter::once(name).chain(groups.iter().map(String::as_str));
        let listed = [&self.from, &self.to].into_iter().flat_map(|table| names().filter_map(|name| table.get(name)));
        let orders: HashSet<u64> = listed.flat_map(|listed| &listed.rules).map(|rule| rule.order()).collect();
        self.common.len() + orders.len()
    }

    /// Steps that were taken so far.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Uses these rules, at most [`MOST_RULES_OF_NETWORK`]. True if rules decide from now on and none did before: then all ports are to be entered.
    pub fn set_rules(&mut self, rules: &[PolicyRule]) -> bool {
        let decided = self.filter.summary.decides;
        let rules = rules.get(..MOST_RULES_OF_NETWORK).unwrap_or(rules);
        let Renewed { rules: renewed, removed, added } = Renewed::of(&self.rules, rules);
        let mut dirty = Dirty::default();
        self.rules = renewed;
        removed.iter().for_each(|rule| self.take_out(rule, &mut dirty));
        added.iter().for_each(|rule| self.put_in(rule, &mut dirty));
        let moved =
            self.rules.iter().zip(rules).enumerate().filter(|(number, (rule, stated))| rule.set_place(stated.line, *number));
        if moved.count() > 0 {
            self.filter.generation = next_generation();
        }
        self.filter.rules = self.rules.iter().map(Arc::clone).collect();
        self.summarise();
        self.compile(&dirty);
        if !self.filter.summary.decides {
            // No port needs a filter, nor is one known any more.
            (self.ports, self.named, self.in_segment) = Default::default();
            self.filter.ports = super::port_map::PortMap::default();
        }
        self.filter.summary.decides && !decided
    }

    /// Adds a port, or changes it.
    pub fn enter(&mut self, port: PortId, member: Member<'_>) {
        let Member { name, segment, groups, flows, grants } = member;
        let groups = groups.iter().take(MOST_GROUPS).filter(|group| *group != name);
        let names = std::iter::once(name).chain(groups.map(String::as_str)).map(Into::into).collect();
        let (flows, grants) = (flows.map(Arc::clone), grants.map(Arc::clone));
        self.place(port, Entered { names, segment: segment.into(), flows, grants, is_exempt: false });
    }

    /// Adds the port of a segment's responder: no rule judges its frames, nor those to it.
    pub fn enter_responder(&mut self, port: PortId) {
        self.place(port, Entered { names: Arc::default(), segment: "".into(), flows: None, grants: None, is_exempt: true });
    }

    /// Removes a port.
    pub fn remove(&mut self, port: PortId) {
        self.forget(port);
        if self.filter.ports.get(port).is_some() {
            self.filter.ports.set(port, None);
            self.work.replaced += 1;
        }
    }

    fn place(&mut self, port: PortId, entered: Entered) {
        self.forget(port);
        for name in &*entered.names {
            self.named.entry(name.clone()).or_default().insert(port);
        }
        self.in_segment.entry((*entered.segment).into()).or_default().insert(port);
        if self.ports.len() <= port.index() {
            self.ports.resize_with(port.index() + 1, || None);
        }
        if let Some(place) = self.ports.get_mut(port.index()) {
            *place = Some(entered);
        }
        self.refresh(port);
    }

    /// Removes a port from the tables of names.
    fn forget(&mut self, port: PortId) {
        let Some(entered) = self.ports.get_mut(port.index()).and_then(Option::take) else { return };
        let leave = |table: &mut Named<BTreeSet<PortId>>, name: &str| {
            let is_last = table.get_mut(name).is_some_and(|ports| ports.remove(&port) && ports.is_empty());
            if is_last {
                table.remove(name);
            }
        };
        entered.names.iter().for_each(|name| leave(&mut self.named, name));
        leave(&mut self.in_segment, &entered.segment);
    }

    fn put_in(&mut self, rule: &Arc<Rule>, dirty: &mut Dirty) {
        let insert = |rules: &mut Vec<Arc<Rule>>| {
            let at = rules.partition_point(|other| other.order() < rule.order());
            // A list may name a port twice.
            if rules.get(at).is_none_or(|other| other.order() != rule.order()) {
                rules.insert(at, Arc::clone(rule));
            }
        };
        self.change(rule, dirty, insert);
    }

    fn take_out(&mut self, rule: &Arc<Rule>, dirty: &mut Dirty) {
        let remove = |rules: &mut Vec<Arc<Rule>>| {
            if let Ok(at) = rules.binary_search_by_key(&rule.order(), |other| other.order()) {
                rules.remove(at);
            }
        };
        self.change(rule, dirty, remove);
    }

    /// Changes the rules of each name by which `rule` concerns ports.
    fn change(&mut self, rule: &Rule, dirty: &mut Dirty, change: impl Fn(&mut Vec<Arc<Rule>>)) {
        let listed = |table: &mut Named<Listed>, names: &[String], dirty: &mut BTreeSet<Box<str>>| {
            for name in names {
                change(&mut table.entry(name.as_str().into()).or_default().rules);
                dirty.insert(name.as_str().into());
            }
        };
        if rule.audits() && !self.with_audits {
            return;
        }
        match rule.concerns() {
            Concerns::All => {
                change(&mut self.common);
                dirty.common = true;
            }
            Concerns::Senders(names) => listed(&mut self.from, names, &mut dirty.from),
            Concerns::Receivers(names) => listed(&mut self.to, names, &mut dirty.to),
            Concerns::Default(members, segment) => {
                for name in members {
                    change(self.members.entry(name.as_str().into()).or_default());
                    dirty.members.insert(name.as_str().into());
                }
                if let Some(segment) = segment {
                    change(self.segments.entry(segment.into()).or_default());
                    dirty.segments.insert(segment.into());
                }
            }
        }
    }

    fn summarise(&mut self) {
        let decides = |rule: &&Arc<Rule>| self.with_audits || !rule.audits();
        let deciding = || self.rules.iter().filter(decides);
        self.filter.summary = Summary {
            decides: deciding().next().is_some(),
            rejects: self.rules.iter().any(|rule| rule.rejects()),
            limits_destinations: deciding().any(|rule| rule.default.is_some() || !rule.destinations.is_empty()),
            has_names: deciding().any(|rule| rule.has_names()),
            has_defaults: deciding().any(|rule| rule.default.is_some()),
        };
    }

    /// Compiles the lists of changed rules, and replaces the filters of ports that have them.
    fn compile(&mut self, dirty: &Dirty) {
        for (table, names, heeds_receivers) in [(&mut self.from, &dirty.from, true), (&mut self.to, &dirty.to, false)] {
            for name in names {
                let Some(listed) = table.get_mut(name) else { continue };
                if listed.rules.is_empty() {
                    table.remove(name);
                    continue;
                }
                listed.list = self.shared.list(&listed.rules, heeds_receivers, &mut self.work);
            }
        }
        for (table, names) in [(&mut self.members, &dirty.members), (&mut self.segments, &dirty.segments)] {
            for name in names {
                if table.get(name).is_some_and(Vec::is_empty) {
                    table.remove(name);
                }
            }
        }
        let mut ports = BTreeSet::new();
        if dirty.common {
            let had_names = self.filter.common.has_names();
            self.filter.common = self.shared.list(&self.common, true, &mut self.work);
            self.filter.generation = next_generation();
            if had_names || self.filter.common.has_names() {
                self.ports().for_each(|port| self.apply_grants(port));
            }
        }
        for name in dirty.from.iter().chain(&dirty.to).chain(&dirty.members) {
            ports.extend(self.named.get(name).into_iter().flatten().copied());
        }
        for segment in &dirty.segments {
            ports.extend(self.in_segment.get(segment).into_iter().flatten().copied());
        }
        ports.into_iter().for_each(|port| self.refresh(port));
    }

    fn ports(&self) -> impl Iterator<Item = PortId> {
        let entered = self.ports.iter().enumerate().filter(|(_, port)| port.is_some());
        entered.filter_map(|(port, _)| u16::try_from(port).ok().map(PortId))
    }

    /// Replaces the filter of a port if it has become another one.
    fn refresh(&mut self, port: PortId) {
        let Some(Some(entered)) = self.ports.get(port.index()) else { return };
        let Entered { names, segment, flows, grants, is_exempt } = entered;
        let lists = |table: &Named<Listed>| {
            let mut lists: Vec<Arc<RuleList>> = Vec::new();
            for list in names.iter().filter_map(|name| table.get(name)).map(|listed| &listed.list) {
                // A rule may name the port and its group.
                if !lists.iter().any(|known| Arc::ptr_eq(known, list)) {
                    lists.push(Arc::clone(list));
                }
            }
            lists.into_boxed_slice()
        };
        let of_members = names.iter().filter_map(|name| self.members.get(name));
        let defaults = of_members.chain(self.segments.get(&**segment).filter(|_| !is_exempt)).filter_map(|rules| rules.first());
        let filter = PortFilter {
            generation: next_generation(),
            from: lists(&self.from),
            to: lists(&self.to),
            keys: names.iter().map(|name| NameKey::of(name)).collect(),
            default: defaults.min_by_key(|rule| rule.order()).filter(|rule| !rule.allows()).map(Arc::clone),
            flows: flows.clone(),
            grants: grants.clone(),
            is_exempt: *is_exempt,
            names: Arc::clone(names),
            segment: Arc::clone(segment),
        };
        if self.filter.ports.get(port).is_some_and(|present| present.is_same(&filter)) {
            return;
        }
        self.filter.ports.set(port, Some(Arc::new(filter)));
        self.work.replaced += 1;
        self.apply_grants(port);
    }

    /// Has the grants of a port satisfy the present rules with their names.
    fn apply_grants(&self, port: PortId) {
        let grants = self.ports.get(port.index()).and_then(Option::as_ref).and_then(|entered| entered.grants.as_ref());
        if let Some(grants) = grants.filter(|_| self.filter.has_any_names()) {
            grants.apply(|name| self.filter.rules_of_name(port, name), flows::second());
        }
    }
}

impl Shared {
    /// The list of `rules`: one that other ports have, or a new one.
    fn list(&mut self, rules: &[Arc<Rule>], heeds_receivers: bool, work: &mut Work) -> Arc<RuleList> {
        // Behind the rules stands the kind of the list.
        let key: Box<[u64]> = rules.iter().map(|rule| rule.id()).chain([heeds_receivers.into()]).collect();
        if let Some(known) = self.lists.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        work.compiled += 1;
        let list = Arc::new(RuleList::of(rules, heeds_receivers));
        self.lists.insert(key, Arc::downgrade(&list));
        if self.lists.len() > self.limit {
            self.lists.retain(|_, list| list.strong_count() > 0);
            self.limit = 2 * self.lists.len() + 64;
        }
        list
    }
}

/// A new configuration of the ports' rules, with the rules of the old one that stay.
struct Renewed {
    rules: Vec<Arc<Rule>>,
    removed: Vec<Arc<Rule>>,
    added: Vec<Arc<Rule>>,
}

impl Renewed {
    fn of(old: &[Arc<Rule>], new: &[PolicyRule]) -> Self {
        let same = old.iter().zip(new).take_while(|(old, new)| old.is(new)).count();
        let (rest, new_rest) = (&old[same..], &new[same..]);
        let same_end = rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old.is(new)).count();
        let (rest, end) = rest.split_at(rest.len() - same_end);
        let new_rest = &new_rest[..new_rest.len() - same_end];
        let staying = staying(rest, new_rest);
        let before = same.checked_sub(1).and_then(|last| old.get(last)).map_or(0, |rule| rule.order());
        let after = end.first().map_or(u64::MAX, |rule| rule.order());
        let Some(orders) = orders(rest, &staying, (before, after)) else { return Self::anew(old, new) };
        let made = new_rest.iter().zip(&staying).zip(orders);
        let made: Vec<Arc<Rule>> = made
            .map(|((new, stays), order)| stays.and_then(|index| rest.get(index)).map_or_else(|| Rule::new(new, order), Arc::clone))
            .collect();
        let added = made.iter().zip(&staying).filter(|(_, stays)| stays.is_none()).map(|(rule, _)| Arc::clone(rule)).collect();
        let stay: HashSet<usize> = staying.iter().flatten().copied().collect();
        let removed =
            rest.iter().enumerate().filter(|(index, _)| !stay.contains(index)).map(|(_, rule)| Arc::clone(rule)).collect();
        let rules = old[..same].iter().chain(&made).chain(end).map(Arc::clone).collect();
        Self { rules, removed, added }
    }

    /// No rule of any port stays: all get new orders, with equal distances.
    fn anew(old: &[Arc<Rule>], new: &[PolicyRule]) -> Self {
        let rules: Vec<Arc<Rule>> = new.iter().zip(1_u64..).map(|(rule, number)| Rule::new(rule, number * DISTANCE)).collect();
        Self { removed: old.to_vec(), added: rules.clone(), rules }
    }
}

/// For each rule of `new` the index of the rule in `old` that stays for it: as many as can stay in the order in which they are.
fn staying(old: &[Arc<Rule>], new: &[PolicyRule]) -> Vec<Option<usize>> {
    let mut places: HashMap<&PolicyRule, VecDeque<usize>> = HashMap::new();
    old.iter().enumerate().for_each(|(index, rule)| places.entry(rule).or_default().push_back(index));
    let found: Vec<Option<usize>> = new.iter().map(|rule| places.get_mut(rule)?.pop_front()).collect();
    // The longest increasing subsequence: for each length the place in `found` with the lowest last index, and for each place the one before it.
    let (mut ends, mut before): (Vec<(usize, usize)>, Vec<Option<usize>>) = (Vec::new(), vec![None; found.len()]);
    for (place, index) in found.iter().enumerate().filter_map(|(place, index)| Some((place, (*index)?))) {
        let length = ends.partition_point(|&(end, _)| end < index);
        before[place] = length.checked_sub(1).map(|shorter| ends[shorter].1);
        match ends.get_mut(length) {
            Some(end) => *end = (index, place),
            None => ends.push((index, place)),
        }
    }
    let mut staying = vec![None; found.len()];
    let mut next = ends.last().map(|&(_, place)| place);
    while let Some(place) = next {
        staying[place] = found[place];
        next = before[place];
    }
    staying
}

/// The orders of rules between two orders, of which some are `staying` with those that they have; `None` if there are too few numbers.
fn orders(old: &[Arc<Rule>], staying: &[Option<usize>], (before, after): (u64, u64)) -> Option<Vec<u64>> {
    let order = |index: &Option<usize>| index.and_then(|index| old.get(index)).map(|rule| rule.order());
    let (mut orders, mut last) = (Vec::new(), before);
    for run in staying.chunk_by(|one, other| one.is_none() && other.is_none()) {
        if let [stays @ Some(_)] = run {
            last = order(stays)?;
            orders.push(last);
            continue;
        }
        let next = staying.get(orders.len() + run.len()).map_or(Some(after), order)?;
        let distance = ((next - last) / (run.len() as u64 + 1)).min(DISTANCE);
        if distance == 0 {
            return None;
        }
        for _ in run {
            last += distance;
            orders.push(last);
        }
    }
    Some(orders)
}

#[cfg(test)]
mod tests {
    use memlane_model::policy::{Action, Names};

    use super::*;

    fn names(names: &[&str]) -> Names {
        Names(names.iter().map(|&name| name.into()).collect())
    }

    fn rule(from: &[&str], to: &[&str]) -> PolicyRule {
        PolicyRule { from: names(from), to: names(to), action: Some(Action::Deny), ..PolicyRule::default() }
    }

    fn member<'m>(name: &'m str, groups: &'m [String]) -> Member<'m> {
        Member { name, segment: "lan", groups, flows: None, grants: None }
    }

    #[test]
    fn the_first_default_of_a_port_holds_for_what_it_sends_and_receives() {
        let default = |members: &[&str], segment: Option<&str>, action| PolicyRule {
            default: Some(action),
            members: names(members),
            segment: segment.map(Into::into),
            ..PolicyRule::default()
        };
        let mut book = Rulebook::default();
        book.set_rules(&[
            default(&["gate"], None, Action::Allow),
            default(&["boxes"], None, Action::Reject),
            default(&[], Some("lan"), Action::Deny),
        ]);
        let [gate, boxed, plain, elsewhere, server] = [0, 1, 2, 3, 4].map(PortId);
        book.enter(gate, member("gate", &[]));
        book.enter(boxed, member("b", &["boxes".into()]));
        book.enter(plain, member("plain", &[]));
        book.enter(elsewhere, Member { segment: "other", ..member("elsewhere", &[]) });
        book.enter_responder(server);
        let place = |rule: &Rule| book.rules.iter().position(|known| std::ptr::eq(&**known, rule)).unwrap();
        let between = |from, to| book.filter().default_between(from, to).map(place);
        assert_eq!((between(gate, elsewhere), between(gate, plain), between(plain, gate)), (None, Some(2), Some(2)));
        assert_eq!((between(boxed, gate), between(plain, boxed), between(boxed, plain)), (Some(1), Some(2), Some(1)));
        assert_eq!((between(boxed, server), between(server, boxed)), (None, None));
    }

    #[test]
    fn rules_concern_the_ports_and_groups_that_they_name() {
        let many: Vec<PolicyRule> =
            (0..130).map(|n| if n % 2 == 0 { rule(&["web"], &["db"]) } else { rule(&["front"], &[]) }).collect();
        let mut book = Rulebook::default();
        book.set_rules(&many);
        let [web, db, front, late] = [0, 1, 2, 3].map(PortId);
        book.enter(web, member("web", &[]));
        book.enter(db, member("db", &[]));
        book.enter(front, member("a", &["front".into(), "web".into()]));
        let between = |book: &Rulebook, from, to| {
            let place = |rule: &Rule| book.rules.iter().position(|known| std::ptr::eq(&**known, rule)).unwrap();
            let lists = book.filter().between(from, to).collect::<Vec<_>>();
            let mut places: Vec<usize> = lists.iter().flat_map(|list| list.rules().map(|(_, rule)| place(rule))).collect();
            places.sort_unstable();
            places
        };
        assert_eq!(between(&book, web, db), (0..130).step_by(2).collect::<Vec<_>>());
        assert_eq!(between(&book, front, db), (0..130).collect::<Vec<_>>());
        assert_eq!(between(&book, front, web), (1..130).step_by(2).collect::<Vec<_>>());
        assert!(between(&book, db, web).is_empty() && between(&book, late, db).is_empty());
        assert_eq!(between(&book, front, late).len(), 65, "all receivers include those that come later");
        let server = PortId(4);
        book.enter_responder(server);
        assert!(
            between(&book, front, server).is_empty() && between(&book, server, front).is_empty(),
            "rules about all ports do not concern it"
        );
        book.remove(front);
        assert!(between(&book, front, db).is_empty());
    }

    /// The check of a file counts the rules of a port in the same way.
    #[test]
    fn rules_of_a_port_are_counted_once() {
        let everywhere = PolicyRule { to: names(&["c"]), destinations: vec!["0.0.0.0/0".parse().unwrap()], ..rule(&[], &[]) };
        let allowed = PolicyRule { action: Some(Action::Allow), ..everywhere.clone() };
        let rules = [rule(&["a", "g"], &["b"]), rule(&["g"], &[]), rule(&[], &["a", "c"]), rule(&[], &[]), everywhere, allowed];
        let mut book = Rulebook::default();
        book.set_rules(&rules);
        let counts = memlane_model::policy::RuleCounts::of(&rules);
        for (name, groups, wanted) in [("a", &["g".to_string()][..], 5), ("a", &[], 4), ("c", &[], 4), ("d", &[], 2), ("b", &[], 2)]
        {
            assert_eq!((book.count(name, groups), counts.count(name, groups)), (wanted, wanted), "{name} {groups:?}");
        }
    }
}
