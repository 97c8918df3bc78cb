//! Grounds of a recorded verdict, in the words of `memlane why`: MAC learning, the FDB entry, VLANs, anti-spoofing, and policy rules.

use memlane_model::forecast::Forecast;
use memlane_observe::recording::Frame;

use super::{CopyOutcome, NotKnown, Outcome, Replay, start_of};
use crate::frame::Head;
use crate::grounds::{self, Named};
use crate::id::PortId;
use crate::policy::filter::Filtered;
use crate::policy::gate::Vlans;
use crate::port::refused::Refused;
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

    /// The grounds of the verdict on a frame, a sentence a step; `copies` are those of the frame, if it was flooded.
    ///
    /// # Errors
    /// The recording does not have all on which it depended.
    pub fn why(&self, frame: &Frame<'_>, copies: &[Frame<'_>]) -> Result<Forecast, NotKnown> {
        let (mut forecast, recorded) = (Forecast::default(), self.recorded(frame)?);
        let name = self.name(frame.port, frame.moment);
        if let Outcome::Early(reason) = recorded {
            forecast.step(format!("the frame was dropped before a verdict: {}", reason.meaning()));
            forecast.drop_at(&name, reason);
            return Ok(forecast);
        }
        let (decided, sender, bytes) = (self.decided(frame)?, self.sender(frame)?, start_of(frame));
        let start = Start::new(&bytes, frame.bytes.len());
        let foreseen = self.foreseen(frame, &decided, start.head());
        grounds::tell_source(&mut forecast, &name, &foreseen, |port| self.name(port.0, frame.moment));
        let told = Told { replay: self, frame, name: &name, sender, start };
        match decided.verdict {
            Verdict::Drop(reason) => told.drop(&mut forecast, &decided, reason),
            Verdict::To(to) | Verdict::Retagged(to, _) => told.delivery(&mut forecast, &decided, to, &recorded),
            Verdict::Flood => told.flood(&mut forecast, copies, &recorded),
        }
        Ok(forecast)
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

/// A frame, unicast or flooded, and its sender, for sentences about its verdict.
struct Told<'t> {
    replay: &'t Replay,
    frame: &'t Frame<'t>,
    /// Name of the sender.
    name: &'t str,
    sender: Sender<'t>,
    start: Start<'t>,
}

impl Told<'_> {
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

    fn drop(&self, forecast: &mut Forecast, decided: &Decided, reason: DropReason) {
        let (refused, receiver) = (Refused::of(self.start.bytes()), decided.receiver());
        let pinned = decided.answer(|question| *question == Question::Pinned(refused.mac));
        grounds::tell_refused(forecast, self.name, reason, &refused, pinned == Some(self.frame.port));
        let named = receiver.map(|port| (self.name(port), self.replay.vlans(port).unwrap_or(&Vlans::Any)));
        let to = named.as_ref().map(|(name, vlans)| Named { name, vlans });
        grounds::tell_gates(forecast, Named { name: self.name, vlans: self.sender.gate.vlans }, reason, to, self.start.head());
        if let (DropReason::PolicyDenied, Some(port), Some((name, _))) = (reason, receiver, &named) {
            self.before_rules(&decided.asked, decided.vlan, |filtered| {
                grounds::tell_denial(forecast, filtered, (self.name, (port, name)));
            });
        }
        forecast.drop_at(self.name, reason);
    }

    fn delivery(&self, forecast: &mut Forecast, decided: &Decided, to: PortId, recorded: &Outcome) {
        let (name, destination) = (self.name(to), self.start.head().destination());
        if decided.receiver().is_some() {
            forecast.step(format!("destination {destination} is behind {name}"));
        } else {
            forecast.step(format!("it is a probe for an address that guests may make: it goes to the responder, {name}"));
        }
        self.before_rules(&decided.asked, decided.vlan, |filtered| {
            grounds::tell_allowing_rule(forecast, filtered, (self.name, (to, &name)));
        });
        if matches!(recorded, Outcome::TooLong(_)) {
            return grounds::tell_too_long(forecast, &name, self.frame.mtu);
        }
        grounds::tell_tag(forecast, decided.verdict, decided.vlan, &name);
        forecast.receivers.push(name);
    }

    fn flood(&self, forecast: &mut Forecast, copies: &[Frame<'_>], recorded: &Outcome) {
        if *recorded == Outcome::Answered {
            return forecast.step("the switch answers it, and no other port receives the question");
        }
        grounds::tell_flood(forecast, self.start.head(), self.replay.segment(self.frame).unwrap_or_default());
        if let Outcome::Limited(reason) = recorded {
            forecast.step(format!("{} has used up its limit of flooded frames (storm) at this moment", self.name));
            return forecast.drop_at(self.name, *reason);
        }
        for copy in copies.iter().flat_map(|copies| copies.each_copy().map(|copy| (copy, copies.tag))) {
            self.copy(forecast, copy);
        }
    }

    fn copy(&self, forecast: &mut Forecast, (copy, vlan): (memlane_observe::recording::FloodCopy<'_>, u16)) {
        let (port, name) = (PortId(copy.port), self.name(PortId(copy.port)));
        let hears = copy.answers.first() != Some(&0);
        match self.replay.copy(&copy) {
            Ok(CopyOutcome::None) if !hears => {
                forecast.step(format!("{name} does not receive it: {}", grounds::not_heard(self.start.head())));
            }
            Ok(CopyOutcome::None) => grounds::tell_kept_apart(forecast, self.name, &name),
            Ok(CopyOutcome::Dropped(reason)) if reason == DropReason::PolicyDenied => {
                // Behind the answers about the audience and the port's gate.
                let asked = self.replay.asked_of_copy(self.frame, &copy, vlan);
                self.before_rules(&asked, vlan, |filtered| grounds::tell_denial(forecast, filtered, (self.name, (port, &name))));
                forecast.drop_at(self.name, reason);
            }
            Ok(CopyOutcome::Dropped(reason)) => forecast.drop_at(&name, reason),
            Ok(CopyOutcome::Same | CopyOutcome::Tagged | CopyOutcome::Untagged) => forecast.receivers.push(name),
            Err(_) => {}
        }
    }
}
