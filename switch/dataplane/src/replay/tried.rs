//! Another policy on recorded frames: the verdicts that would be others.
//!
//! The policy rules, and the settings of those ports that the other configuration has, are used in place of the recorded ones. Learned state stays as
//! recorded: the ports behind addresses, leases, and the answers for DNS names. A flow counts as open if it was open when it was recorded, or if its port
//! opened it in the recording by the other rules. A verdict that depends on anything else is not known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memlane_model::denials::Denial;
use memlane_model::limits::{PortLimits, Reserved};
use memlane_observe::recording::{COPIES, DROPS_RESERVED, Frame, IS_EARLY, IS_GATED, IS_ISOLATED};

use super::{CopyOutcome, NotKnown, Outcome, Replay, followed, passage, start_of};
use crate::id::PortId;
use crate::policy::filter::{Filter, Filtered, Member, PolicyRule};
use crate::policy::flows::Flows;
use crate::policy::gate::{Entrance, Gate, Vlans};
use crate::policy::rulebook::Rulebook;
use crate::policy::rules::PortRules;
use crate::stats::DropReason;
use crate::table::{Learned, LearnedAddress};
use crate::verdict::answers::{Guess, Question, Tape, number_of, port_of};
use crate::verdict::filter::FilteredFlood;
use crate::verdict::reading::Start;
use crate::verdict::{Sender, Verdict, decide};

/// A port in the other configuration.
#[derive(Clone, Debug)]
struct Settings {
    limits: PortLimits,
    rules: PortRules,
    vlans: Vlans,
}

/// A verdict that would be another, without the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The receiving port, of a copy of a flooded frame too.
    pub to: Option<PortId>,
    /// The destination of the packet in words.
    pub destination: String,
    /// The outcome as recorded.
    pub was: Outcome,
    /// The outcome by the other configuration.
    pub becomes: Outcome,
    /// The policy rule that decides, or decided: in words, with its place.
    pub rule: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Tried {
    ports: HashMap<String, Settings>,
    book: Rulebook,
    /// Any port is isolated or has VLANs.
    is_gated: bool,
    /// Names of the ports that were entered, by number, and the flows that they opened.
    entered: HashMap<PortId, (String, Arc<Flows>)>,
    /// Answers for DNS names so far.
    granted: Arc<Mutex<HashMap<Question, u16>>>,
    known: Arc<Known>,
}

/// Gates (isolation, VLANs), flows and VLANs of ports, of which answers of the trial are made, and the numbers of ports and senders behind them.
#[derive(Debug, Default)]
struct Known {
    made_of: (usize, usize),
    /// Ports with other settings: whether they are isolated, whether they drop reserved groups, and their VLANs.
    gates: HashMap<PortId, (bool, Option<bool>, Vlans)>,
    flows: HashMap<PortId, Arc<Flows>>,
    /// VLANs of all ports as recorded.
    vlans: HashMap<PortId, Vlans>,
}

impl Tried {
    /// A trial of `rules`, with the settings of these ports, by name.
    pub fn new(rules: &[PolicyRule], ports: impl Iterator<Item = (String, PortLimits)>) -> Self {
        let mut book = Rulebook::default();
        book.set_rules(rules);
        let settings = |limits: PortLimits| Settings { rules: PortRules::of(&limits), vlans: Vlans::of(&limits), limits };
        let ports: HashMap<_, _> = ports.map(|(name, limits)| (name, settings(limits))).collect();
        let is_gated = ports.values().any(|port| port.limits.isolated || port.vlans != Vlans::Any);
        Self { ports, book, is_gated, entered: HashMap::new(), granted: Arc::default(), known: Arc::default() }
    }

    /// The verdicts on a recorded frame, or on its copies, that would be others; none if all stay.
    ///
    /// # Errors
    /// The changes are not known.
    pub fn judge(&mut self, replay: &Replay, frame: &Frame<'_>) -> Result<Vec<Change>, NotKnown> {
        if frame.flags & IS_EARLY != 0 {
            return Ok(Vec::new());
        }
        self.enter(replay, frame, PortId(frame.port));
        replay.follow(frame);
        if frame.kind == COPIES { self.judge_copies(replay, frame) } else { self.judge_frame(replay, frame) }
    }

    fn judge_frame(&mut self, replay: &Replay, frame: &Frame<'_>) -> Result<Vec<Change>, NotKnown> {
        let recorded = replay.recorded(frame)?;
        let asked = replay.asked(frame)?;
        self.note(replay, frame, &asked);
        let (name, tape) = (replay.name(frame.port, frame.moment), Tape::guessing(self.guess(replay, frame, asked)));
        let (rules, vlans) = self.settings(replay, frame, &name)?;
        let sender = self.sender(frame, &name, (&rules, &vlans));
        let bytes = start_of(frame);
        let start = Start::new(&bytes, frame.bytes.len()).on(Some(&tape));
        let decision = decide(start, sender, |_| None, &replay.nothing, 0);
        if tape.is_short() {
            return Err(NotKnown::Answers);
        }
        let becomes = followed(frame, decision.verdict, recorded.clone());
        if becomes == recorded {
            return Ok(Vec::new());
        }
        let to = [&becomes, &recorded].into_iter().find_map(receiver).or_else(|| known_receiver(replay, frame, decision.vlan));
        Ok(vec![change(replay, frame, sender.gate.filtered, (to, recorded, becomes))])
    }

    fn judge_copies(&mut self, replay: &Replay, frame: &Frame<'_>) -> Result<Vec<Change>, NotKnown> {
        let (name, mut changes) = (replay.name(frame.port, frame.moment), Vec::new());
        for copy in frame.each_copy() {
            let (to, was) = (PortId(copy.port), replay.copy(&copy)?);
            let asked = replay.asked_of_copy(frame, &copy, frame.tag);
            self.note(replay, frame, &asked);
            self.enter(replay, frame, to);
            let tape = Tape::guessing(self.guess(replay, frame, asked));
            let (rules, vlans) = self.settings(replay, frame, &name)?;
            let sender = self.sender(frame, &name, (&rules, &vlans));
            let becomes = CopyOutcome::from(passage(frame, sender, (to, frame.tag), &tape));
            if tape.is_short() {
                return Err(NotKnown::Answers);
            }
            if becomes != was {
                let one = |outcome| Outcome::Copies(vec![(to, outcome)]);
                changes.push(change(replay, frame, sender.gate.filtered, (Some(to), one(was), one(becomes))));
            }
        }
        Ok(changes)
    }

    /// The port with this number is judged by the rules under the name that it has now.
    fn enter(&mut self, replay: &Replay, frame: &Frame<'_>, port: PortId) {
        let name = replay.name(port.0, frame.moment);
        if self.entered.get(&port).is_some_and(|(known, _)| *known == name) {
            return;
        }
        let flows = Arc::<Flows>::default();
        let (segment, groups) = replay.membership(port, frame);
        let groups = self.ports.get(&name).map_or(groups, |settings| settings.limits.groups.clone());
        self.book.enter(port, Member { name: &name, segment: &segment, groups: &groups, flows: Some(&flows), grants: None });
        self.entered.insert(port, (name, flows));
        self.known = Arc::default();
    }

    /// Notes answers for DNS names, and enters receivers.
    fn note(&mut self, replay: &Replay, frame: &Frame<'_>, asked: &[(Question, u16)]) {
        for (question, answer) in asked {
            match question {
                Question::Granted(..) => {
                    self.granted.lock().unwrap_or_else(PoisonError::into_inner).insert(*question, *answer);
                }
                Question::Entrance(to, _) => self.enter(replay, frame, *to),
                Question::Behind(_) => {
                    if let Some(to) = port_of(*answer) {
                        self.enter(replay, frame, to);
                    }
                }
                _ => {}
            }
        }
    }

    fn settings(&self, replay: &Replay, frame: &Frame<'_>, name: &str) -> Result<(PortRules, Vlans), NotKnown> {
        let recorded = replay.senders.get(&frame.sender).ok_or(NotKnown::Sender)?;
        Ok(match self.ports.get(name) {
            Some(settings) => (settings.rules.clone().leased_as(&recorded.rules), settings.vlans.clone()),
            None => (recorded.rules.clone(), recorded.vlans.clone()),
        })
    }

    fn sender<'s>(&'s self, frame: &Frame<'_>, name: &str, (rules, vlans): (&'s PortRules, &'s Vlans)) -> Sender<'s> {
        let (from, filter) = (PortId(frame.port), self.book.filter());
        let filtered = (!filter.is_empty()).then_some(Filtered { filter, from, is_forecast: false });
        let has = |flag: u8| frame.flags & flag != 0;
        let limits = self.ports.get(name).map(|settings| &settings.limits);
        let isolated = limits.map_or_else(|| has(IS_ISOLATED), |limits| limits.isolated);
        let reserved = limits.and_then(|limits| limits.reserved);
        let drops_reserved = reserved.map_or_else(|| has(DROPS_RESERVED), |reserved| reserved == Reserved::Drop);
        let gate = Gate { isolated, drops_reserved, vlans, filtered };
        Sender { port: from, rules, gate, is_gated: has(IS_GATED) || self.is_gated || !filter.is_empty() }
    }

    fn known(&self, replay: &Replay, made_of: (usize, usize)) -> Known {
        let gate = |(port, (name, _)): (&PortId, &(String, Arc<Flows>))| {
            let Settings { limits, vlans, .. } = self.ports.get(name)?;
            let drops = limits.reserved.map(|reserved| reserved == Reserved::Drop);
            Some((*port, (limits.isolated, drops, vlans.clone())))
        };
        let flows = self.entered.iter().map(|(port, (_, flows))| (*port, Arc::clone(flows)));
        Known {
            made_of,
            gates: self.entered.iter().filter_map(gate).collect(),
            flows: flows.collect(),
            vlans: replay.known_vlans(),
        }
    }

    /// Answers for a frame that was decided on by these.
    fn guess(&mut self, replay: &Replay, frame: &Frame<'_>, asked: Vec<(Question, u16)>) -> Guess {
        let made_of = (self.entered.len(), replay.senders.len());
        if self.known.made_of != made_of {
            self.known = Arc::new(self.known(replay, made_of));
        }
        let (granted, gated) = (Arc::clone(&self.granted), frame.flags & IS_GATED != 0);
        let known = Arc::clone(&self.known);
        let (homes, segment, from) =
            (replay.homes.clone(), replay.segment(frame).unwrap_or_default().to_owned(), PortId(frame.port));
        // Another's address may not be learned.
        let source = LearnedAddress { address: Start::new(&start_of(frame), frame.bytes.len()).head().source(), vlan: 0 };
        let is_others = replay.owner(source, frame).is_some_and(|owner| owner != from);
        Box::new(move |question| {
            let recorded = || asked.iter().find(|(known, _)| *known == question).map(|(_, answer)| *answer);
            match question {
                Question::Entrance(to, vlan) => match known.gates.get(&to) {
                    Some((isolated, drops, vlans)) => {
                        let before = recorded().map(Entrance::of_number);
                        let drops_reserved = drops.unwrap_or_else(|| before.is_some_and(|before| before.drops_reserved));
                        let gate = Gate { isolated: *isolated, drops_reserved, vlans, filtered: None };
                        Some(gate.entrance(vlan).number())
                    }
                    // Where no gate decided, no port was isolated or had VLANs.
                    None => recorded().or_else(|| {
                        let vlans = known.vlans.get(&to).or(if gated { None } else { Some(&Vlans::Any) })?;
                        Some(Gate { vlans, ..Gate::OPEN }.entrance(vlan).number())
                    }),
                },
                Question::Open(port, flow) => {
                    let is_open = known.flows.get(&port).is_some_and(|flows| flows.is_open(flow));
                    Some(recorded().unwrap_or(0) | u16::from(is_open))
                }
                Question::Granted(..) => {
                    recorded().or_else(|| granted.lock().unwrap_or_else(PoisonError::into_inner).get(&question).copied())
                }
                // An earlier frame may tell where the address was.
                Question::Behind(address) => recorded().or_else(|| homes.find(&segment, address).map(|port| number_of(Some(port)))),
                Question::Learned(address) => recorded().or_else(|| match homes.find(&segment, address) {
                    Some(home) if home == from => Some(Learned::Known as u16),
                    None if !is_others => Some(Learned::Changed as u16),
                    _ => None,
                }),
                _ => recorded(),
            }
        })
    }
}

impl Replay {
    /// The questions for the verdict on a frame, with their answers.
    fn asked(&self, frame: &Frame<'_>) -> Result<Vec<(Question, u16)>, NotKnown> {
        let (start, tape) = (start_of(frame), Tape::of(frame.answers));
        let start = Start::new(&start, frame.bytes.len()).on(Some(&tape));
        decide(start, self.sender(frame)?, |_| None, &self.nothing, 0);
        Ok(tape.asked())
    }

    /// Segment and groups of a port, as far as they are known.
    fn membership(&self, port: PortId, frame: &Frame<'_>) -> (String, Vec<String>) {
        let of_sender = self.senders.values().filter(|sender| sender.saved.port == port.0).max_by_key(|sender| sender.saved.number);
        if let Some(sender) = of_sender {
            return (sender.saved.segment.clone(), sender.rules.groups.clone());
        }
        let filter: Option<&Filter> = self.filters.get(&frame.filter);
        if let Some(([_, groups @ ..], segment, _)) = filter.and_then(|filter| filter.member(port)) {
            return (segment.to_owned(), groups.iter().map(|group| group.to_string()).collect());
        }
        let named = self.names.get(&port.0).and_then(|ports| ports.last());
        (named.map_or_else(String::new, |port| port.segment.clone()), Vec::new())
    }

    /// VLANs of the ports that transmitted frames.
    fn known_vlans(&self) -> HashMap<PortId, Vlans> {
        self.senders.values().map(|sender| (PortId(sender.saved.port), sender.vlans.clone())).collect()
    }

    /// How many names [`Self::known_names`] has, at least: more states may have more.
    pub fn count_names(&self) -> usize {
        self.names.values().map(Vec::len).sum::<usize>() + self.senders.len()
    }

    /// Names of all ports and of their groups in the recording so far.
    pub fn known_names(&self) -> Vec<String> {
        let ports = self.names.values().flatten().map(|port| port.name.clone());
        let groups = self.senders.values().flat_map(|sender| sender.rules.groups.clone());
        let segments = self.names.values().flatten().map(|port| port.segment.clone());
        ports.chain(groups).chain(segments).collect()
    }
}

/// Whether a policy rule denies the frame, or a copy of it.
fn is_denied(outcome: &Outcome) -> bool {
    let is_denied_copy = |(_, copy): &(PortId, CopyOutcome)| *copy == CopyOutcome::Dropped(DropReason::PolicyDenied);
    match outcome {
        Outcome::Copies(copies) => copies.iter().any(is_denied_copy),
        outcome => *outcome == Outcome::Verdict(Verdict::Drop(DropReason::PolicyDenied)),
    }
}

/// The port that receives a frame with this outcome.
fn receiver(outcome: &Outcome) -> Option<PortId> {
    match outcome {
        Outcome::Verdict(Verdict::To(to) | Verdict::Retagged(to, _)) | Outcome::TooLong(to) => Some(*to),
        _ => None,
    }
}

/// The port behind the destination of a frame in `vlan`, by its record or an earlier one.
fn known_receiver(replay: &Replay, frame: &Frame<'_>, vlan: u16) -> Option<PortId> {
    let asked = replay.asked(frame).ok()?;
    let behind = asked.iter().find(|(question, _)| matches!(question, Question::Behind(_)));
    let address = Start::new(&start_of(frame), frame.bytes.len()).head().destination();
    let earlier = || replay.homes.find(replay.segment(frame)?, LearnedAddress { address, vlan });
    behind.map_or_else(earlier, |(_, answer)| port_of(*answer))
}

/// A change of the outcome of a frame to the port `to`, with the rule of `filtered` that denies it now, or the recorded one that denied it.
fn change(
    replay: &Replay,
    frame: &Frame<'_>,
    filtered: Option<Filtered<'_>>,
    (to, was, becomes): (Option<PortId>, Outcome, Outcome),
) -> Change {
    let bytes = start_of(frame);
    let start = Start::new(&bytes, frame.bytes.len());
    let before = replay.filters.get(&frame.filter).map(|filter| Filtered { filter, from: PortId(frame.port), is_forecast: true });
    let by = |filtered: Option<Filtered<'_>>| {
        let flood = FilteredFlood::new(Filtered { is_forecast: true, ..filtered? }, start, frame.tag);
        Some(flood.denying(to?)?.text())
    };
    let rule = if is_denied(&becomes) { by(filtered) } else { is_denied(&was).then(|| by(before)).flatten() };
    Change { to, destination: destination(start), was, becomes, rule }
}

/// The destination of the packet that begins with `start`, in words.
fn destination(start: Start<'_>) -> String {
    let empty = Rulebook::default();
    let target = FilteredFlood::new(Filtered { filter: empty.filter(), from: PortId(0), is_forecast: true }, start, 0).target();
    if target.destination.is_none() && target.protocol.is_none() {
        return start.head().destination().to_string();
    }
    let denial = Denial {
        destination: target.destination.map(|address| address.to_string()),
        protocol: target.protocol,
        destination_port: target.port,
        ..Denial::default()
    };
    denial.destination_in_words()
}
