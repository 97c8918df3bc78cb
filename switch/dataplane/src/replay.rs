//! Replay of recordings: verdicts on recorded frames, made again by the code that made them.
//!
//! A verdict depends on the frame's headers, its sender's settings, the policy rules, and answers of shared state. A recording has all of them, so the
//! verdict must be the same; one that is not is a defect, or the recording was edited. Drops before a verdict (malformed descriptors and offloads), limits
//! of floods and answers of the switch are taken as they were recorded.

mod tried;
mod why;

pub use tried::{Change, Tried};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memlane_model::recording::{Description, NamedPort, RecordedVlans, Rules, Sender as SavedSender, State};
use memlane_observe::recording::{COPIES, DROPS_RESERVED, FloodCopy, Frame, IS_EARLY, IS_GATED, IS_ISOLATED, IS_LONG, IS_SHORT};

use crate::frame::{NetHeader, START};
use crate::id::PortId;
use crate::packet::TagChange;
use crate::policy::filter::{Filter, Filtered, Member};
use crate::policy::gate::{Entrance, Gate, Vlans};
use crate::policy::rulebook::Rulebook;
use crate::policy::rules::PortRules;
use crate::record::{DROP, DROPPED, FLOOD, NONE, POP, POPPED, PUSH, PUSHED, SAME, Sequel, TO};
use crate::stats::DropReason;
use crate::table::{LearnedAddress, Table};
use crate::too_long;
use crate::verdict::answers::{Question, Tape};
use crate::verdict::filter::FilteredFlood;
use crate::verdict::flooded::{Flooded, Passage, Receiver};
use crate::verdict::reading::Start;
use crate::verdict::{Sender, Verdict, decide};

/// Outcome of a recorded frame at the worker of its sender, or of its copies at one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The verdict.
    Verdict(Verdict),
    /// The frame was too long for the path MTU to this port.
    TooLong(PortId),
    /// The switch answered it, a question of ARP or neighbour discovery.
    Answered,
    /// The frame was to be flooded, and a rate limit dropped it, with this drop reason.
    Limited(DropReason),
    /// The frame was dropped before a verdict, with this drop reason: a malformed descriptor chain or offload.
    Early(DropReason),
    /// Copies of a flooded frame.
    Copies(Vec<(PortId, CopyOutcome)>),
}

/// Outcome of a copy of a flooded frame at one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The port does not get it.
    None,
    /// The port gets it as it is.
    Same,
    /// With a tag of its VLAN, as a trunk carries it.
    Tagged,
    /// Without its VLAN tag, as an access port carries it.
    Untagged,
    /// The frame was dropped with this drop reason.
    Dropped(DropReason),
}

impl From<Passage> for CopyOutcome {
    fn from(passage: Passage) -> Self {
        match passage {
            Passage::None => Self::None,
            Passage::Same => Self::Same,
            Passage::Retagged(TagChange::Push(_)) => Self::Tagged,
            Passage::Retagged(TagChange::Pop) => Self::Untagged,
            Passage::Dropped(reason) => Self::Dropped(reason),
        }
    }
}

/// The recording does not tell a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKnown {
    /// The state of the sender is not in it.
    #[error("the settings of its sender are not in the recording")]
    Sender,
    /// The policy rules are not in it.
    #[error("the policy rules of that moment are not in the recording")]
    Rules,
    /// Not all answers were kept.
    #[error("its verdict depended on more answers than a record holds")]
    Answers,
    /// The record has numbers that mean nothing.
    #[error("its record is malformed")]
    Malformed,
}

/// A sender of recorded frames.
#[derive(Debug)]
struct KnownSender {
    saved: SavedSender,
    rules: PortRules,
    vlans: Vlans,
}

/// See the module.
#[derive(Debug)]
pub struct Replay {
    reasons: Vec<Option<DropReason>>,
    senders: HashMap<u32, KnownSender>,
    filters: HashMap<u32, Filter>,
    /// The rules of the last state, and its number.
    book: Rulebook,
    last: u32,
    /// Ports by number, in the order in which they got it.
    names: HashMap<u16, Vec<NamedPort>>,
    nothing: Table,
    /// Ports of addresses by segment, as far as they are followed.
    homes: Homes,
}

/// Ports of addresses, by segment and address.
#[derive(Clone, Debug, Default)]
struct Homes(Arc<Mutex<HashMap<(String, LearnedAddress), PortId>>>);

impl Homes {
    fn find(&self, segment: &str, address: LearnedAddress) -> Option<PortId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(segment.to_owned(), address)).copied()
    }

    fn enter(&self, segment: &str, address: LearnedAddress, port: PortId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((segment.to_owned(), address), port);
    }
}

/// A receiver of which all properties are on the tape.
struct Recorded;

impl Receiver for Recorded {
    fn hears(&self) -> bool {
        false
    }

    fn entrance(&self, _: u16) -> Entrance {
        Entrance { isolated: false, drops_reserved: false, is_tagged: None }
    }

    fn mtu(&self) -> Option<u16> {
        None
    }
}

/// Most states that are kept of a recording.
const MOST_STATES: usize = 1 << 20;

impl Replay {
    /// The replay of a recording with this description.
    pub fn new(description: &Description) -> Self {
        let reason = |name: &String| DropReason::ALL.iter().copied().find(|reason| reason.name() == name);
        Self {
            reasons: description.reasons.iter().map(reason).collect(),
            senders: HashMap::new(),
            filters: HashMap::new(),
            book: Rulebook::default(),
            last: 0,
            names: HashMap::new(),
            nothing: Table::new(1, 1, 1),
            homes: Homes::default(),
        }
    }

    /// Frames behind this refer to `state`.
    pub fn learn(&mut self, state: State) {
        if self.senders.len() + self.filters.len() + self.names.len() >= MOST_STATES {
            return;
        }
        match state {
            State::Port(port) => self.names.entry(port.port).or_default().push(port),
            State::Sender(saved) => {
                let (rules, vlans) = (PortRules::restored(&saved), vlans_of(&saved.vlans));
                self.senders.insert(saved.number, KnownSender { saved, rules, vlans });
            }
            State::Rules(rules) => self.learn_rules(rules),
        }
    }

    fn learn_rules(&mut self, state: Rules) {
        let Rules { number, base, rules, ports, gone } = state;
        if base == 0 {
            self.book = Rulebook::default();
        } else if base != self.last {
            return;
        }
        if let Some(rules) = rules {
            self.book.set_rules(&rules);
        }
        gone.into_iter().for_each(|port| self.book.remove(PortId(port)));
        for port in ports {
            let Some((name, groups)) = port.names.split_first() else {
                self.book.enter_responder(PortId(port.port));
                continue;
            };
            let member = Member { name, segment: &port.segment, groups, flows: None, grants: None };
            self.book.enter(PortId(port.port), member);
        }
        self.last = number;
        self.filters.insert(number, self.book.filter().clone());
    }

    /// The name of the port with the number `port` in the moment `at`.
    pub fn name(&self, port: u16, at: u64) -> String {
        let known = self.names.get(&port).and_then(|ports| {
            let before = ports.iter().rev().find(|port| port.since <= at);
            before.or_else(|| ports.first())
        });
        known.map_or_else(|| format!("port {port}"), |port| port.name.clone())
    }

    /// The outcome of a frame, as recorded.
    ///
    /// # Errors
    /// The record has numbers that mean nothing.
    pub fn recorded(&self, frame: &Frame<'_>) -> Result<Outcome, NotKnown> {
        if frame.kind == COPIES {
            let copies = frame.each_copy().map(|copy| Ok((PortId(copy.port), self.copy(&copy)?)));
            return Ok(Outcome::Copies(copies.collect::<Result<_, _>>()?));
        }
        let (to, reason) = (PortId(frame.to), || self.reason(frame.reason));
        if frame.flags & IS_EARLY != 0 {
            return Ok(Outcome::Early(reason()?));
        }
        let verdict = match frame.verdict {
            TO => Verdict::To(to),
            PUSH => Verdict::Retagged(to, TagChange::Push(frame.tag)),
            POP => Verdict::Retagged(to, TagChange::Pop),
            FLOOD => Verdict::Flood,
            DROP => Verdict::Drop(reason()?),
            _ => return Err(NotKnown::Malformed),
        };
        Ok(match frame.sequel {
            sequel if sequel == Sequel::Answered as u8 => Outcome::Answered,
            sequel if sequel == Sequel::TooLong as u8 => Outcome::TooLong(to),
            sequel if sequel == Sequel::Limited as u8 => Outcome::Limited(reason()?),
            _ => Outcome::Verdict(verdict),
        })
    }

    fn copy(&self, copy: &FloodCopy<'_>) -> Result<CopyOutcome, NotKnown> {
        Ok(match copy.outcome {
            NONE => CopyOutcome::None,
            SAME => CopyOutcome::Same,
            PUSHED => CopyOutcome::Tagged,
            POPPED => CopyOutcome::Untagged,
            DROPPED => CopyOutcome::Dropped(self.reason(copy.reason)?),
            _ => return Err(NotKnown::Malformed),
        })
    }

    fn reason(&self, number: u8) -> Result<DropReason, NotKnown> {
        self.reasons.get(usize::from(number)).copied().flatten().ok_or(NotKnown::Malformed)
    }

    /// The outcome of a frame, decided again.
    ///
    /// # Errors
    /// The recording does not have all on which it depends.
    pub fn judge(&self, frame: &Frame<'_>) -> Result<Outcome, NotKnown> {
        let recorded = self.recorded(frame)?;
        match recorded {
            Outcome::Early(_) => Ok(recorded),
            Outcome::Copies(_) => self.judge_copies(frame),
            _ => self.judge_frame(frame, recorded),
        }
    }

    fn judge_frame(&self, frame: &Frame<'_>, recorded: Outcome) -> Result<Outcome, NotKnown> {
        let (start, tape) = (start_of(frame), Tape::of(frame.answers));
        let start = Start::new(&start, frame.bytes.len()).on(Some(&tape));
        let decision = decide(start, self.sender(frame)?, |_| None, &self.nothing, 0);
        if tape.is_short() && frame.flags & IS_SHORT != 0 {
            return Err(NotKnown::Answers);
        }
        Ok(followed(frame, decision.verdict, recorded))
    }

    fn judge_copies(&self, frame: &Frame<'_>) -> Result<Outcome, NotKnown> {
        let sender = self.sender(frame)?;
        let copies = frame.each_copy().map(|copy| {
            let tape = Tape::of(copy.answers);
            let passage = passage(frame, sender, (PortId(copy.port), frame.tag), &tape);
            if tape.is_short() && frame.flags & IS_SHORT != 0 {
                return Err(NotKnown::Answers);
            }
            Ok((PortId(copy.port), passage.into()))
        });
        copies.collect::<Result<_, _>>().map(Outcome::Copies)
    }

    /// The questions for the passage of a copy, with their answers.
    fn asked_of_copy(&self, frame: &Frame<'_>, copy: &FloodCopy<'_>, vlan: u16) -> Vec<(Question, u16)> {
        let (tape, Ok(sender)) = (Tape::of(copy.answers), self.sender(frame)) else { return Vec::new() };
        passage(frame, sender, (PortId(copy.port), vlan), &tape);
        tape.asked()
    }

    /// The sender of a frame, before a verdict.
    fn sender(&self, frame: &Frame<'_>) -> Result<Sender<'_>, NotKnown> {
        let known = self.senders.get(&frame.sender).ok_or(NotKnown::Sender)?;
        let filter = match frame.filter {
            0 => None,
            number => Some(self.filters.get(&number).ok_or(NotKnown::Rules)?),
        };
        let from = PortId(frame.port);
        let filtered = filter.map(|filter| Filtered { filter, from, is_forecast: true });
        let has = |flag: u8| frame.flags & flag != 0;
        let gate = Gate { isolated: has(IS_ISOLATED), drops_reserved: has(DROPS_RESERVED), vlans: &known.vlans, filtered };
        Ok(Sender { port: from, rules: &known.rules, gate, is_gated: has(IS_GATED) })
    }
}

/// The passage of a copy of a flooded frame in `vlan` to the port `to`, by the answers of a tape.
fn passage(frame: &Frame<'_>, sender: Sender<'_>, (to, vlan): (PortId, u16), tape: &Tape) -> Passage {
    let start = start_of(frame);
    let start = Start::new(&start, frame.bytes.len()).on(Some(tape));
    let filtered = sender.gate.filtered.map(|filtered| FilteredFlood::new(filtered, start, vlan));
    let flooded = Flooded {
        head: start.head(),
        is_gated: sender.is_gated,
        gate: sender.gate,
        filtered: filtered.as_ref(),
        long: long_of(frame),
        tape: Some(tape),
    };
    flooded.passage(to, &Recorded)
}

/// The outcome behind a `verdict` on a frame: its length is compared with the path MTU again; rate limits of floods and ARP or neighbour discovery answers
/// of the switch are as `recorded`.
fn followed(frame: &Frame<'_>, verdict: Verdict, recorded: Outcome) -> Outcome {
    match (verdict, recorded) {
        (Verdict::To(to) | Verdict::Retagged(to, _), _) if is_too_long(frame) => Outcome::TooLong(to),
        (Verdict::Flood, recorded @ (Outcome::Answered | Outcome::Limited(_))) => recorded,
        (verdict, _) => Outcome::Verdict(verdict),
    }
}

fn is_too_long(frame: &Frame<'_>) -> bool {
    let is_looked_at = frame.flags & IS_LONG != 0 && frame.mtu > 0 && !frame.bytes.is_empty();
    is_looked_at && too_long::check_frame(frame.bytes, frame.length, NetHeader::from_bytes(frame.header), frame.mtu).is_err()
}

/// Bytes behind the Ethernet header, if they may be more than a way carries.
fn long_of(frame: &Frame<'_>) -> Option<u32> {
    let length = || too_long::packet_length(frame.bytes, frame.length, NetHeader::from_bytes(frame.header));
    (frame.flags & IS_LONG != 0).then(length)
}

/// The first bytes of a frame.
fn start_of(frame: &Frame<'_>) -> [u8; START] {
    let mut start = [0; START];
    std::iter::zip(&mut start, frame.bytes).for_each(|(to, byte)| *to = *byte);
    start
}

fn vlans_of(saved: &RecordedVlans) -> Vlans {
    use memlane_model::limits::PortLimits;
    let limits = match saved {
        RecordedVlans::Any => return Vlans::Any,
        RecordedVlans::Access(vlan) => PortLimits { vlan: Some(*vlan), ..PortLimits::default() },
        RecordedVlans::Trunk(native, tagged) => {
            PortLimits { vlan: Some(*native).filter(|&native| native != 0), trunk: tagged.clone(), ..PortLimits::default() }
        }
    };
    match Vlans::of(&limits) {
        // A trunk without VLANs carries none.
        Vlans::Any => Vlans::Access(0),
        vlans => vlans,
    }
}
