//! States that records refer to by number: the settings of a sender, the policy rules, and the ports by number.

use std::collections::VecDeque;
use std::sync::Arc;

use memlane_model::recording::{NamedPort, RecordedVlans, Rules, RulesPort, Sender, State};

use crate::id::{MAX_PORTS, PortId};
use crate::policy::filter::{Changed, Filter};
use crate::policy::gate::Vlans;
use crate::policy::rules::PortRules;
use crate::port::Port;
use crate::time::Cycles;

/// Most states that are kept; beyond, the oldest goes that no port or worker has any more, and frames that refer to it cannot be replayed.
const MOST: usize = 4 * MAX_PORTS;

/// A state.
#[derive(Debug)]
enum Kept {
    Port(NamedPort),
    Sender(KeptSender),
    Filter(Arc<Filter>),
}

impl Kept {
    /// Whether no port and no worker decides by it any more.
    fn is_unused(&self) -> bool {
        match self {
            Self::Port(_) => false,
            Self::Sender(sender) => Arc::strong_count(&sender.rules) == 1,
            Self::Filter(filter) => Arc::strong_count(filter) == 1,
        }
    }
}

#[derive(Debug)]
struct KeptSender {
    port: PortId,
    /// When the port got its number.
    added: Cycles,
    name: String,
    segment: String,
    vlans: Vlans,
    rules: Arc<PortRules>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct States {
    kept: VecDeque<(u32, Kept)>,
    /// States so far; the first one has the number 1.
    count: u32,
}

impl States {
    /// The number of the settings of `port` with these rules.
    pub(super) fn sender(&mut self, port: &Port, rules: &Arc<PortRules>) -> u32 {
        let is_same =
            |sender: &KeptSender| sender.port == port.id && sender.added == port.added && Arc::ptr_eq(&sender.rules, rules);
        let known = self.kept.iter().rev().find(|(_, kept)| matches!(kept, Kept::Sender(sender) if is_same(sender)));
        if let Some((number, _)) = known {
            return *number;
        }
        let vlans = port.policy.gate().vlans.clone();
        let (name, segment) = (port.name.clone(), port.segment.name.clone());
        self.keep(Kept::Sender(KeptSender { port: port.id, added: port.added, name, segment, vlans, rules: Arc::clone(rules) }))
    }

    /// The number of the rules of `filter`.
    pub(super) fn filter(&mut self, filter: &Arc<Filter>) -> u32 {
        let known = self.kept.iter().rev().find(|(_, kept)| matches!(kept, Kept::Filter(kept) if Arc::ptr_eq(kept, filter)));
        match known {
            Some((number, _)) => *number,
            None => self.keep(Kept::Filter(Arc::clone(filter))),
        }
    }

    /// A port has its number from now on.
    pub(crate) fn port(&mut self, port: &Port) {
        let (name, segment) = (port.name.clone(), port.segment.name.clone());
        let mac = Some(port.offer().mac).filter(|mac| mac.is_unicast()).map(|mac| mac.to_string());
        self.keep(Kept::Port(NamedPort { port: port.id.0, name, segment, since: port.added, mac }));
    }

    fn keep(&mut self, kept: Kept) -> u32 {
        self.count += 1;
        if self.kept.len() >= MOST {
            let unused = self.kept.iter().position(|(_, kept)| kept.is_unused()).unwrap_or(0);
            self.kept.remove(unused);
        }
        self.kept.push_back((self.count, kept));
        self.count
    }

    /// The states behind number `last`, in their order, and the number of the last one.
    pub fn since(&self, last: u32) -> (Vec<State>, u32) {
        let mut before: Option<(u32, &Filter)> = None;
        let mut states = Vec::new();
        for (number, kept) in &self.kept {
            let is_new = *number > last;
            let state = match kept {
                _ if !is_new => None,
                Kept::Port(port) => Some(State::Port(port.clone())),
                Kept::Sender(sender) => Some(State::Sender(sender.saved(*number))),
                Kept::Filter(filter) => Some(State::Rules(saved_rules(*number, filter, before))),
            };
            states.extend(state);
            if let Kept::Filter(filter) = kept {
                before = Some((*number, filter));
            }
        }
        (states, self.count)
    }
}

impl KeptSender {
    fn saved(&self, number: u32) -> Sender {
        let vlans = match &self.vlans {
            Vlans::Any => RecordedVlans::Any,
            Vlans::Access(vlan) => RecordedVlans::Access(*vlan),
            Vlans::Trunk { native, tagged } => {
                let carried = (1..4095_u16).filter(|vlan| Vlans::has(tagged, *vlan));
                RecordedVlans::Trunk(*native, carried.filter_map(|vlan| vlan.to_string().parse().ok()).collect())
            }
        };
        let (name, segment) = (self.name.clone(), self.segment.clone());
        Sender { number, port: self.port.0, name, segment, vlans, ..self.rules.saved() }
    }
}

/// The differences of `filter` to the state before.
fn saved_rules(number: u32, filter: &Filter, before: Option<(u32, &Filter)>) -> Rules {
    let rules = || Some(filter.stated());
    match before {
        None => Rules { number, base: 0, rules: rules(), ports: saved_ports(filter, filter.members()), gone: Vec::new() },
        Some((base, before)) => {
            let is_same = Arc::ptr_eq(filter.rules(), before.rules());
            let changed = match filter.changed_since(before) {
                Changed::Ports(ports) => ports,
                Changed::All => filter.members().into_iter().chain(before.members()).collect(),
            };
            let gone = changed.iter().filter(|port| filter.member(**port).is_none()).map(|port| port.0).collect();
            Rules { number, base, rules: if is_same { None } else { rules() }, ports: saved_ports(filter, changed), gone }
        }
    }
}

fn saved_ports(filter: &Filter, ports: Vec<PortId>) -> Vec<RulesPort> {
    let saved = |port: PortId| {
        let (names, segment, is_exempt) = filter.member(port)?;
        let names = names.iter().map(|name| name.to_string()).collect();
        Some(RulesPort { port: port.0, names, segment: segment.into(), is_exempt })
    };
    ports.into_iter().filter_map(saved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::filter::PolicyRule;
    use crate::policy::rulebook::Rulebook;
    use crate::settings::Settings;
    use crate::shared::Shared;

    #[test]
    fn a_state_in_use_outlasts_many_others() {
        let ports = Port::row(&Shared::new(1, 7, Settings::default()), 2);
        let mut states = States::default();
        let used = ports[0].policy.rules.get();
        let number = states.sender(&ports[0], &used);
        for _ in 0..MOST + 10 {
            states.sender(&ports[1], &Arc::default());
        }
        assert_eq!(states.sender(&ports[0], &used), number, "it is known still");
        let (kept, last) = states.since(0);
        assert!(kept.len() == MOST && last as usize == MOST + 11);
        assert_eq!(states.since(last).0, []);
    }

    #[test]
    fn rules_are_saved_as_differences() {
        let (mut book, mut states) = (Rulebook::default(), States::default());
        let rule = |line| PolicyRule { line, ..PolicyRule::default() };
        book.set_rules(&[rule(3)]);
        let enter = |book: &mut Rulebook, port: u16| {
            let name = format!("p{port}");
            let member = crate::policy::filter::Member { name: &name, segment: "lan", groups: &[], flows: None, grants: None };
            book.enter(PortId(port), member);
        };
        (0..3).for_each(|port| enter(&mut book, port));
        states.filter(&Arc::new(book.filter().clone()));
        enter(&mut book, 7);
        book.remove(PortId(1));
        states.filter(&Arc::new(book.filter().clone()));
        let (saved, _) = states.since(0);
        let [State::Rules(first), State::Rules(second)] = &saved[..] else { panic!("{saved:?}") };
        assert_eq!((first.base, first.ports.len(), first.rules.as_ref().unwrap()[0].line), (0, 3, 3));
        assert!(second.base == first.number && second.rules.is_none(), "{second:?}");
        assert_eq!((second.ports[0].port, second.ports.len(), &second.gone[..]), (7, 1, &[1][..]));
    }
}
