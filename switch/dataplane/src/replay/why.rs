//! Grounds of a recorded verdict: MAC learning, the FDB entry, VLANs, anti-spoofing, and policy rules.

use memlane_observe::recording::{FloodCopy, Frame};

use super::{CopyOutcome, NotKnown, Outcome, Replay, start_of};
use crate::frame::{Head, MacAddress};
use crate::grounds::{Grounds, PassageStep, Step};
use crate::id::PortId;
use crate::policy::filter::Filtered;
use crate::policy::gate::Vlans;
use crate::stats::DropReason;
use crate::table::{Learned, LearnedAddress};
use crate::verdict::answers::{Question, Tape, learned_of, port_of};
use crate::verdict::filter::FilteredFlood;
use crate::verdict::reading::Start;
use crate::verdict::{Foreseen, Sender, Verdict, decide};

/// A verdict that was made again, and the answers that it read.
struct Decided {
    verdict: Verdict,
    vlan: u16,
    asked: Vec<(Question, u16)>,
}

impl Decided {
    fn answer(&self, wanted: impl Fn(&Question) -> bool) -> Option<u16> {
        self.asked.iter().find(|(question, _)| wanted(question)).map(|(_, answer)| *answer)
    }

    /// The port behind the destination.
    fn receiver(&self) -> Option<PortId> {
        self.answer(|question| matches!(question, Question::Behind(_))).and_then(port_of)
    }
}

impl Replay {
    /// Notes where the source of a frame is from now on, so that [`Self::why`] can tell it of later frames.
    pub fn follow(&self, frame: &Frame<'_>) {
        let Ok(decided) = self.decided(frame) else { return };
        let source = decided.asked.iter().find_map(|(question, answer)| match question {
            Question::Learned(source) => Some((*source, learned_of(*answer))),
            _ => None,
        });
        if let (Some((source, Learned::Known | Learned::Changed)), Some(segment)) = (source, self.segment(frame)) {
            self.homes.enter(segment, source, PortId(frame.port));
        }
    }

    /// The segment of the sender of a frame.
    pub(super) fn segment(&self, frame: &Frame<'_>) -> Option<&str> {
        self.senders.get(&frame.sender).map(|sender| &*sender.saved.segment)
    }

    fn decided(&self, frame: &Frame<'_>) -> Result<Decided, NotKnown> {
        let (start, tape, sender) = (start_of(frame), Tape::of(frame.answers), self.sender(frame)?);
        let start = Start::new(&start, frame.bytes.len()).on(Some(&tape));
        let verdict = decide(start, sender, |_| None, &self.nothing, 0).verdict;
        let asked = tape.asked();
        let sent = asked.iter().find_map(|(question, _)| match question {
            Question::Learned(source) => Some(source.vlan),
            _ => None,
        });
        let tag = start.head().vlan().0;
        Ok(Decided { verdict, vlan: sent.or_else(|| sender.gate.vlans.of_sent(tag)).unwrap_or(tag), asked })
    }

    /// The grounds of the verdict on a frame; `copies` are those of the frame, if it was flooded.
    ///
    /// # Errors
    /// The recording does not have all on which it depended.
    pub fn why(&self, frame: &Frame<'_>, copies: &[Frame<'_>]) -> Result<Grounds, NotKnown> {
        let (bytes, recorded) = (start_of(frame), self.recorded(frame)?);
        let mut grounds = Grounds::new(PortId(frame.port), &bytes);
        if let Outcome::Early(reason) = recorded {
            grounds.step(Step::Early(reason));
            grounds.drop_at(grounds.from, reason);
            return Ok(grounds);
        }
        let (decided, sender) = (self.decided(frame)?, self.sender(frame)?);
        let start = Start::new(&bytes, frame.bytes.len());
        grounds.step(Step::Source(self.foreseen(frame, &decided, start.head())));
        let judged = Judged { replay: self, frame, sender, start };
        match decided.verdict {
            Verdict::Drop(reason) => judged.drop(&mut grounds, &decided, reason),
            Verdict::To(to) | Verdict::Retagged(to, _) => judged.deliver(&mut grounds, &decided, to, &recorded),
            Verdict::Flood => judged.flood(&mut grounds, copies, &recorded),
        }
        Ok(grounds)
    }

    fn foreseen(&self, frame: &Frame<'_>, decided: &Decided, head: Head) -> Foreseen {
        let source = LearnedAddress { address: head.source(), vlan: decided.vlan };
        let learned = decided.answer(|question| matches!(question, Question::Learned(_))).map(learned_of);
        let behind = self
            .homes
            .find(self.segment(frame).unwrap_or_default(), source)
            .filter(|home| home.0 != frame.port)
            .or_else(|| self.owner(source, frame));
        Foreseen { verdict: decided.verdict, source: source.address, vlan: source.vlan, learned, behind }
    }

    /// The port with the source as its configured MAC address.
    pub(super) fn owner(&self, source: LearnedAddress, frame: &Frame<'_>) -> Option<PortId> {
        let (address, segment) = (source.address.to_string(), self.segment(frame)?);
        let is_owner = |port: &&memlane_model::recording::NamedPort| {
            port.mac.as_ref() == Some(&address) && port.segment == segment && port.since <= frame.moment
        };
        self.names.values().flatten().find(is_owner).map(|port| PortId(port.port))
    }

    /// VLANs of a port, as far as it transmitted frames.
    fn vlans(&self, port: PortId) -> Option<&Vlans> {
        let known = self.senders.values().filter(|sender| sender.saved.port == port.0);
        known.max_by_key(|sender| sender.saved.number).map(|sender| &sender.vlans)
    }
}

/// A recorded frame, unicast or flooded, and its sender.
struct Judged<'j> {
    replay: &'j Replay,
    frame: &'j Frame<'j>,
    sender: Sender<'j>,
    start: Start<'j>,
}

impl Judged<'_> {
    fn name(&self, port: PortId) -> String {
        self.replay.name(port.0, self.frame.moment)
    }

    /// Calls `tell` with the frame before the policy rules, which have these answers.
    fn before_rules(&self, answers: &[(Question, u16)], vlan: u16, tell: impl FnOnce(&FilteredFlood<'_>)) {
        let tape = Tape::answering(answers);
        if let Some(Filtered { filter, from, .. }) = self.sender.gate.filtered {
            let filtered = Filtered { filter, from, is_forecast: true };
            tell(&FilteredFlood::new(filtered, self.start.on(Some(&tape)), vlan));
        }
    }

    /// The policy rule that denies the frame in `vlan` to the port `to`, with these answers.
    fn deny(&self, grounds: &mut Grounds, answers: &[(Question, u16)], vlan: u16, to: PortId) {
        let (from, name) = (self.name(grounds.from), self.name(to));
        self.before_rules(answers, vlan, |filtered| grounds.denial(filtered, &from, (to, &name)));
    }

    fn drop(&self, grounds: &mut Grounds, decided: &Decided, reason: DropReason) {
        let receiver = decided.receiver();
        let pinned = |mac| decided.answer(|question| *question == Question::Pinned(mac));
        grounds.anti_spoof(reason, self.start.bytes(), |mac| pinned(mac) == Some(self.frame.port));
        let gate = receiver.map(|port| (port, self.replay.vlans(port).unwrap_or(&Vlans::Any)));
        grounds.gates(self.sender.gate.vlans, reason, gate, self.start.head());
        if let (DropReason::PolicyDenied, Some(to)) = (reason, receiver) {
            self.deny(grounds, &decided.asked, decided.vlan, to);
        }
        grounds.drop_at(grounds.from, reason);
    }

    fn deliver(&self, grounds: &mut Grounds, decided: &Decided, to: PortId, recorded: &Outcome) {
        grounds.passage(to, decided.receiver().map_or(PassageStep::Probe, |_| PassageStep::Behind(None)));
        self.before_rules(&decided.asked, decided.vlan, |filtered| grounds.allowing_rule(filtered, to));
        if matches!(recorded, Outcome::TooLong(_)) {
            return grounds.too_long(to, self.frame.mtu, true);
        }
        grounds.tag(decided.verdict, decided.vlan);
        grounds.receivers.push(to);
    }

    fn flood(&self, grounds: &mut Grounds, copies: &[Frame<'_>], recorded: &Outcome) {
        if *recorded == Outcome::Answered {
            return grounds.step(Step::Answered(None));
        }
        grounds.step(Step::Flooded(self.replay.segment(self.frame).unwrap_or_default().into()));
        if let Outcome::Limited(reason) = recorded {
            grounds.step(Step::Storm);
            return grounds.drop_at(grounds.from, *reason);
        }
        for (copy, vlan) in copies.iter().flat_map(|copies| copies.each_copy().map(|copy| (copy, copies.tag))) {
            self.copy(grounds, &copy, vlan);
        }
    }

    fn copy(&self, grounds: &mut Grounds, copy: &FloodCopy<'_>, vlan: u16) {
        let (to, is_heard) = (PortId(copy.port), copy.answers.first() != Some(&0));
        match self.replay.copy(copy) {
            Ok(CopyOutcome::None) if is_heard => grounds.passage(to, PassageStep::KeptApart),
            Ok(CopyOutcome::None) if grounds.destination == MacAddress::BROADCAST => grounds.passage(to, PassageStep::NoServer),
            Ok(CopyOutcome::None) => grounds.passage(to, PassageStep::NoMember),
            Ok(CopyOutcome::Dropped(reason)) if reason == DropReason::PolicyDenied => {
                // Behind the answers about the audience and the port's gate.
                let asked = self.replay.asked_of_copy(self.frame, copy, vlan);
                self.deny(grounds, &asked, vlan, to);
                grounds.drop_at(grounds.from, reason);
            }
            Ok(CopyOutcome::Dropped(reason)) => grounds.drop_at(to, reason),
            Ok(CopyOutcome::Same | CopyOutcome::Tagged | CopyOutcome::Untagged) => grounds.receivers.push(to),
            Err(_) => {}
        }
    }
}
