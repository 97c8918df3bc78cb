//! Rules of a network with many ports, against the naive evaluation of the whole list, while rules and ports change.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::*;
use crate::frame::START;
use crate::policy::filter::{Action, Changed, Destination, Member, Names};
use crate::policy::flows::Flows;
use crate::policy::rulebook::{Rulebook, Work};
use crate::table::Table;
use crate::verdict::FlowCache;

const SEGMENTS: [&str; 2] = ["lan", "dmz"];
const TARGETS: [[u8; 4]; 4] = [[10, 0, 0, 1], [10, 1, 0, 1], [192, 0, 2, 1], [203, 0, 113, 9]];
const PREFIXES: [&str; 5] = ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.1", "0.0.0.0/0", "fd00::/8"];

/// A packet, by the parts that rules name.
#[derive(Clone, Copy, Debug)]
struct Sent {
    to: Ipv4Addr,
    protocol: u8,
    port: u16,
    acknowledges: bool,
}

impl Sent {
    fn all() -> impl Iterator<Item = Self> {
        let protocols = [(6, false), (6, true), (17, false)];
        TARGETS.into_iter().flat_map(move |to| {
            let with_ports = protocols.into_iter().flat_map(|protocol| [22, 443].map(|port| (protocol, port)));
            with_ports.map(move |((protocol, acknowledges), port)| Self { to: to.into(), protocol, port, acknowledges })
        })
    }

    fn start(self) -> [u8; START] {
        let mut bytes = [0; START];
        bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
        bytes[22..24].copy_from_slice(&[64, self.protocol]);
        bytes[26..30].copy_from_slice(&[10, 9, 9, 9]);
        bytes[30..34].copy_from_slice(&self.to.octets());
        bytes[34..36].copy_from_slice(&[0x80, 1]);
        bytes[36..38].copy_from_slice(&self.port.to_be_bytes());
        bytes[46..48].copy_from_slice(&[0x50, if self.acknowledges { ACK } else { 2 }]);
        bytes
    }

    /// Whether `rule` is about it, as the documentation has it.
    fn meets(self, rule: &PolicyRule) -> bool {
        let prefixes = || rule.destinations.iter().filter_map(Destination::prefix);
        (rule.destinations.is_empty() || prefixes().any(|prefix| prefix.contains(IpAddr::V4(self.to))))
            && rule.protocol.is_none_or(|protocol| protocol.0 == self.protocol)
            && (rule.ports.is_empty() || rule.ports.iter().any(|range| range.contains(self.port)))
            && (!rule.established || self.acknowledges)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Guest {
    name: String,
    segment: &'static str,
    groups: Vec<String>,
}

/// The index of the rule that decides between two ports.
fn naive(rules: &[PolicyRule], from: &Guest, to: &Guest, sent: Sent) -> Option<usize> {
    let is_about = |rule: &PolicyRule| {
        rule.default.is_none() && !rule.audits() && rule.from.has(&from.name, &from.groups) && rule.to.has(&to.name, &to.groups)
    };
    let refusing = |guest: &Guest| {
        let is_default = |rule: &PolicyRule| !rule.audits() && rule.is_default_of(&guest.name, guest.segment, &guest.groups);
        rules.iter().position(is_default).filter(|&index| !rules[index].allows())
    };
    rules.iter().position(|rule| is_about(rule) && sent.meets(rule)).or_else(|| refusing(from)).or_else(|| refusing(to))
}

/// Choices of a test's input.
struct Choices<'i>(std::slice::Iter<'i, u8>);

impl Choices<'_> {
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % limit
    }

    fn names(&mut self) -> Names {
        let count = [0, 1, 1, 1, 2, 3][self.below(6)];
        Names((0..count).map(|_| ["p0", "p1", "p2", "p3", "g0", "g1", "p0", "none"][self.below(8)].into()).collect())
    }

    fn rule(&mut self) -> PolicyRule {
        let action = [Action::Allow, Action::Deny, Action::Reject, Action::Allow, Action::Audit][self.below(5)];
        let (from, line) = (self.names(), self.below(200));
        if self.below(5) == 0 {
            let segment = (from.is_all() || self.below(2) == 0).then(|| SEGMENTS[self.below(2)].into());
            return PolicyRule { default: Some(action), members: from, segment, line, ..PolicyRule::default() };
        }
        let count = [0, 0, 1, 2][self.below(4)];
        let protocol = [None, Some(Protocol(6)), Some(Protocol(17))][self.below(3)];
        let is_tcp = protocol == Some(Protocol(6));
        PolicyRule {
            destinations: (0..count).map(|_| PREFIXES[self.below(5)].parse().unwrap()).collect(),
            ports: if protocol.is_some() && self.below(2) == 0 { vec![PortRange { first: 22, last: 80 }] } else { vec![] },
            established: is_tcp && self.below(3) == 0,
            to: self.names(),
            action: Some(action),
            from,
            protocol,
            line,
            ..PolicyRule::default()
        }
    }

    fn guest(&mut self, port: u16) -> Guest {
        let groups = (0..self.below(3)).map(|_| ["g0", "g1", "p1", "far"][self.below(4)].into()).collect();
        Guest { name: format!("p{port}"), segment: SEGMENTS[self.below(2)], groups }
    }

    /// Changes the ports' rules as an operator does.
    fn edit(&mut self, rules: &mut Vec<PolicyRule>) {
        let at = self.below(rules.len() + 1);
        match self.below(6) {
            0 | 1 => rules.insert(at, self.rule()),
            2 if at < rules.len() => drop(rules.remove(at)),
            3 if at < rules.len() => {
                let moved = rules.remove(at);
                rules.insert(self.below(rules.len() + 1), moved);
            }
            4 if at < rules.len() => rules[at] = self.rule(),
            5 if at < rules.len() => rules[at..].iter_mut().for_each(|rule| rule.line += 1),
            _ => rules.extend((0..self.below(4)).map(|_| self.rule()).collect::<Vec<_>>()),
        }
    }
}

fn enter(book: &mut Rulebook, port: u16, guest: &Guest) {
    let Guest { name, segment, groups } = guest;
    book.enter(PortId(port), Member { name, segment, groups, flows: None, grants: None });
}

/// The rule that decides, in words, or the text for none.
fn told(filter: &Filter, from: u16, to: u16, sent: Sent) -> Option<String> {
    let sender = Filtered { filter, from: PortId(from), is_forecast: true };
    FilteredFlood::new(sender, Start::new(&sent.start(), 60), 0).deciding(PortId(to)).map(Rule::text)
}

/// Lists of ports, changed step by step, judge as the whole list of rules does from its first to its last. A snapshot judges as it did.
#[test]
fn lists_of_ports_agree_with_the_whole_list_of_rules() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|input| {
        let (mut choices, mut rules, mut book) = (Choices(input.iter()), Vec::new(), Rulebook::default());
        let mut guests: Vec<Option<Guest>> = vec![None; 5];
        for _ in 0..12 {
            let before = book.filter().clone();
            let port = choices.below(guests.len());
            match choices.below(3) {
                0 => guests[port] = Some(choices.guest(port as u16)),
                1 if choices.below(4) == 0 => guests[port] = None,
                _ => choices.edit(&mut rules),
            }
            if book.set_rules(&rules) {
                guests.iter().enumerate().for_each(|(port, guest)| {
                    guest.iter().for_each(|guest| enter(&mut book, port as u16, guest));
                });
            } else if !book.filter().is_empty() {
                match &guests[port] {
                    Some(guest) => enter(&mut book, port as u16, guest),
                    None => book.remove(PortId(port as u16)),
                }
            }
            assert_eq!(book.rules(), rules);
            let changed = book.filter().changed_since(&before);
            let present = |port: usize| Some((port as u16, guests[port].as_ref()?));
            for (from, sender) in (0..guests.len()).filter_map(present) {
                for (to, receiver) in (0..guests.len()).filter_map(present) {
                    for sent in Sent::all() {
                        let wanted =
                            naive(&rules, sender, receiver, sent).map(|index| rules[index].with_place(rules[index].line, index));
                        assert!(
                            told(book.filter(), from, to, sent) == wanted,
                            "{sender:?} {receiver:?} {sent:?} {wanted:?} {rules:#?}"
                        );
                        // Verdicts in flow caches of other ports hold.
                        let kept = |filter: &Filter| {
                            let sender = Filtered { filter, from: PortId(from), is_forecast: true };
                            FilteredFlood::new(sender, Start::new(&sent.start(), 60), 0).passes(PortId(to))
                        };
                        let is_kept = !changed.concerns(PortId(from)) && !changed.concerns(PortId(to));
                        assert!(!is_kept || kept(&before) == kept(book.filter()), "{sender:?} {receiver:?} {sent:?}");
                    }
                }
            }
        }
    });
}

/// A network of ports of sandboxes, each with two rules of its own.
struct Sandboxes {
    book: Rulebook,
    rules: Vec<PolicyRule>,
    flows: Vec<Arc<Flows>>,
}

const SANDBOXES: usize = 2000;

fn name_of(port: usize) -> String {
    format!("box-{port}")
}

impl Sandboxes {
    fn new() -> Self {
        let common = PolicyRule {
            destinations: vec!["10.0.0.0/8".parse().unwrap()],
            action: Some(Action::Deny),
            from: Names(vec!["boxes".into()]),
            ..PolicyRule::default()
        };
        let own = |port: usize| {
            let default = PolicyRule { default: Some(Action::Deny), members: Names(vec![name_of(port)]), ..PolicyRule::default() };
            [default, Self::own(port, 443)]
        };
        let rules: Vec<PolicyRule> = std::iter::once(common).chain((0..SANDBOXES).flat_map(own)).collect();
        let mut book = Rulebook::default();
        assert!(book.set_rules(&rules));
        let flows: Vec<Arc<Flows>> = (0..SANDBOXES).map(|_| Arc::default()).collect();
        for (port, flows) in flows.iter().enumerate() {
            let groups = ["boxes".to_string()];
            let member = Member { name: &name_of(port), segment: "lan", groups: &groups, flows: Some(flows), grants: None };
            book.enter(PortId(port as u16), member);
        }
        Self { book, rules, flows }
    }

    fn own(port: usize, allowed: u16) -> PolicyRule {
        PolicyRule {
            from: Names(vec![name_of(port)]),
            protocol: Some(Protocol(6)),
            ports: vec![PortRange { first: allowed, last: allowed }],
            action: Some(Action::Allow),
            ..PolicyRule::default()
        }
    }

    /// Changes the rules; tells the work, and the ports with other verdicts.
    fn change(&mut self, change: impl FnOnce(&mut Vec<PolicyRule>)) -> (Work, Changed) {
        let (before, work) = (self.book.filter().clone(), self.book.work());
        change(&mut self.rules);
        assert!(!self.book.set_rules(&self.rules));
        let after = self.book.work();
        let work = Work { compiled: after.compiled - work.compiled, replaced: after.replaced - work.replaced };
        (work, self.book.filter().changed_since(&before))
    }

    fn passes(&self, from: u16, to: u16, port: u16) -> bool {
        let sent = Sent { to: [192, 0, 2, 1].into(), protocol: 6, port, acknowledges: false };
        let sender = Filtered { filter: self.book.filter(), from: PortId(from), is_forecast: false };
        FilteredFlood::new(sender, Start::new(&sent.start(), 60), 0).passes(PortId(to))
    }
}

/// One rule of 2000 ports, by counted filters of ports and flow caches.
#[test]
fn a_changed_rule_of_one_port_touches_that_port_only() {
    let mut network = Sandboxes::new();
    assert!(network.passes(1000, 1, 443) && !network.passes(1000, 1, 22) && network.passes(7, 1, 443));
    fn own_rule(rules: &mut [PolicyRule]) -> &mut PolicyRule {
        rules.iter_mut().find(|rule| rule.from.0 == [name_of(1000)]).unwrap()
    }
    let one = (Work { compiled: 1, replaced: 1 }, Changed::Ports(vec![PortId(1000)]));
    assert_eq!(network.change(|rules| *own_rule(rules) = Sandboxes::own(1000, 22)), one);
    assert!(network.passes(1000, 1, 22) && !network.passes(1000, 1, 443) && network.passes(7, 1, 443));
    // A new rule before all others, which moves their lines and numbers.
    assert_eq!(network.change(|rules| rules.insert(0, Sandboxes::own(1000, 443))), one);
    assert_eq!(network.change(|rules| drop(rules.remove(0))), one);
    // The port's default moves over all rules.
    let moved = network.change(|rules| {
        let default = rules.remove(1 + 2 * 1000);
        rules.insert(0, default);
    });
    assert_eq!(moved, (Work { compiled: 0, replaced: 1 }, Changed::Ports(vec![PortId(1000)])));
    assert_eq!(network.change(|rules| rules.iter_mut().for_each(|rule| rule.line += 1)).1, Changed::Ports(vec![]));
    // Flows of all ports stay; flow caches, too, but for those of the port and of senders to it.
    let table = Table::new(SANDBOXES, 64, 1);
    let cache_to = |to: u16| {
        table.pin(crate::frame::MacAddress::new([2, 0, 0, 0, 0, 2]), PortId(to));
        let mut cache = FlowCache::default();
        let start = Sent { to: [192, 0, 2, 1].into(), protocol: 6, port: 443, acknowledges: false }.start();
        cache.decide(Start::new(&start, 60), PortId(7), |_| None, &table, crate::verdict::Epoch::default());
        cache
    };
    let (_, changed) = network.change(|rules| *own_rule(rules) = Sandboxes::own(1000, 80));
    let concerned = [8, 1000].map(|to| cache_to(to).is_concerned(&changed));
    assert_eq!((concerned, changed.concerns(PortId(7)), changed.concerns(PortId(1000))), ([false, true], false, true));
    let kept = |port: usize| {
        network.book.filter().flows(PortId(port as u16)).is_some_and(|flows| std::ptr::eq(flows, &*network.flows[port]))
    };
    assert!((0..SANDBOXES).all(kept));
    // A rule of the group of all ports is compiled once.
    let of_group =
        network.change(|rules| rules.iter_mut().find(|rule| rule.from.0 == ["boxes"]).unwrap().action = Some(Action::Reject));
    assert_eq!((of_group.0.compiled, of_group.0.replaced <= SANDBOXES as u64), (1, true));
}

/// Ports of equal lists share one, and a port that comes or goes changes no other.
#[test]
fn ports_of_equal_lists_share_them() {
    let names = |names: &[&str]| Names(names.iter().map(|&name| name.into()).collect());
    let rules = [PolicyRule { from: names(&["a", "b", "boxes"]), action: Some(Action::Deny), ..PolicyRule::default() }];
    let mut book = Rulebook::default();
    book.set_rules(&rules);
    assert_eq!(book.work().compiled, 1);
    let groups: HashMap<&str, &[String]> = HashMap::new();
    for (port, name) in (0..).zip(["a", "b", "c"]) {
        let groups = groups.get(name).copied().unwrap_or_default();
        book.enter(PortId(port), Member { name, segment: "lan", groups, flows: None, grants: None });
    }
    let before = book.filter().clone();
    let boxes = ["boxes".to_string()];
    book.enter(PortId(3), Member { name: "d", segment: "lan", groups: &boxes, flows: None, grants: None });
    assert_eq!((book.filter().changed_since(&before), book.work().compiled), (Changed::Ports(vec![PortId(3)]), 1));
    let before = book.filter().clone();
    book.enter(PortId(3), Member { name: "d", segment: "lan", groups: &boxes, flows: None, grants: None });
    assert_eq!(book.filter().changed_since(&before), Changed::Ports(vec![]));
    book.remove(PortId(3));
    assert_eq!(book.filter().changed_since(&before), Changed::Ports(vec![PortId(3)]));
}

/// Where no number is left between two rules, all rules of all ports get new ones.
#[test]
fn a_rule_fits_between_any_two() {
    let (mut book, mut rules) = (Rulebook::default(), vec![Sandboxes::own(9, 443)]);
    for n in 0..200_u16 {
        let rule = PolicyRule {
            protocol: Some(Protocol(6)),
            ports: vec![PortRange { first: n, last: 500 }],
            action: Some(if n % 2 == 0 { Action::Deny } else { Action::Allow }),
            ..PolicyRule::default()
        };
        rules.insert(usize::from(n / 2), rule);
        book.set_rules(&rules);
        assert_eq!(book.rules(), rules);
        let guest = Guest { name: "p0".into(), segment: "lan", groups: vec![] };
        for sent in Sent::all() {
            let wanted = naive(&rules, &guest, &guest, sent).map(|index| rules[index].with_place(0, index));
            assert!(told(book.filter(), 0, 1, sent) == wanted, "{n}");
        }
    }
    // The rule of another port was compiled again.
    let again = book.work().compiled - 201;
    assert!((1..10).contains(&again), "{again} times in 200");
}
