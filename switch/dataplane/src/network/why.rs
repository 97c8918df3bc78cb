//! Forecasts: the outcome of a frame without sending it, decided by the verdict's own code, step by step.
//!
//! Conditions of the moment are steps beside the outcome: frames that wait for the receiver, rate limits, random loss by link emulation.

#![expect(clippy::indexing_slicing, reason = "a length cut to that of the array")]

use super::Network;
use crate::address_map::resolution::{self, Resolution};
use crate::audience::Audience;
use crate::frame::{ETHERNET, MacAddress, NetHeader, START};
use crate::grounds::{Grounds, PassageStep, ReceiverStep, Step};
use crate::id::PortId;
use crate::policy::Flood;
use crate::policy::filter::{Filter, Filtered};
use crate::policy::gate::Gate;
use crate::port::Port;
use crate::stats::DropReason;
use crate::table::{Kind, LearnedAddress, Table};
use crate::time::cycles;
use crate::too_long;
use crate::twin::Hidden;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::flooded::Passage;
use crate::verdict::reading::Start;
use crate::verdict::{Foreseen, Sender, Verdict, foresee};

/// VLANs that are named, at most.
const MOST_VLANS: usize = 4;

/// The MTU of the way to `to`, if a frame of `length` bytes is longer.
fn exceeded_mtu(to: &Port, start: Start<'_>, length: usize) -> Option<u16> {
    let mtu = to.mtu()?;
    too_long::check_frame(start.bytes(), length as u32, NetHeader::default(), mtu).is_err().then_some(mtu)
}

/// The frame from `port` that begins with `start`, before the policy rules.
fn filtered<'f>(filter: &'f Filter, port: &Port, start: Start<'f>) -> FilteredFlood<'f> {
    FilteredFlood::new(Filtered { filter, from: port.id, is_forecast: true }, start, port.vlan_of(start.head()))
}

fn receives(port: &Port) -> bool {
    port.is_enabled() && !port.rings().entries().is_empty()
}

impl Network {
    /// The outcome of `frame` if the guest of `port` transmitted it in second `now` of the network. Nothing is learned, counted or sent.
    pub fn why(&self, port: &Port, frame: &[u8], now: u32) -> Grounds {
        let mut grounds = Grounds::new(port.id, frame);
        if frame.len() < ETHERNET {
            grounds.step(Step::Runt(frame.len()));
            grounds.drop_at(port.id, DropReason::Runt);
            return grounds;
        }
        if !port.is_enabled() {
            grounds.step(Step::Disabled);
        }
        let mut start = [0; START];
        let length = frame.len().min(START);
        start[..length].copy_from_slice(&frame[..length]);
        if exchange(&mut grounds, port, &mut start[..length], frame.len()).is_err() {
            grounds.drop_at(port.id, DropReason::SpoofedIp);
            return grounds;
        }
        let start = Start::new(&start, length);
        grounds.destination = start.head().destination();
        self.judge(&mut grounds, port, (start, frame.len()), now);
        grounds
    }

    /// The verdict on a frame of this length from `port`, and its sequel.
    fn judge(&self, grounds: &mut Grounds, port: &Port, (start, length): (Start<'_>, usize), now: u32) {
        let table = port.segment.table();
        let foreseen = self.foresee(grounds, port, &table, start, now);
        let destination = LearnedAddress { address: grounds.destination, vlan: foreseen.vlan };
        match foreseen.verdict {
            Verdict::Drop(reason) => grounds.drop_at(port.id, reason),
            Verdict::To(to) | Verdict::Retagged(to, _) => {
                grounds.passage(to, PassageStep::Behind(table.age_of(destination, now)));
                let filter = self.shared.filter.get();
                if !filter.is_empty() && self.port(to).is_some() {
                    grounds.allowing_rule(&filtered(&filter, port, start), to);
                }
                self.deliver(grounds, (to, &foreseen), (start, length));
            }
            Verdict::Flood => {
                if !self.answer(grounds, port, start, now) {
                    find_other_vlans(grounds, &table, destination);
                    self.flood(grounds, port, (start, length), now);
                }
            }
        }
    }

    /// The verdict on a frame from `port`; its grounds are steps.
    fn foresee(&self, grounds: &mut Grounds, port: &Port, table: &Table, start: Start<'_>, now: u32) -> Foreseen {
        let (head, rules) = (start.head(), port.policy.rules.get());
        let filter = self.shared.filter.get();
        let filtered = (!filter.is_empty()).then_some(Filtered { filter: &filter, from: port.id, is_forecast: true });
        let gate = Gate { filtered, ..port.policy.gate() };
        let sender = Sender { port: port.id, rules: &rules, gate, is_gated: port.segment.is_gated() };
        let ports: Vec<_> = port.segment.members().into_iter().filter_map(|id| self.port(id)).collect();
        let member = |id: PortId| ports.iter().find(|port| port.id == id);
        let gate_of = |id| member(id).map(|port| port.policy.gate());
        let foreseen = foresee(start, sender, gate_of, table, now);
        grounds.step(Step::Source(foreseen));
        if let Verdict::Drop(reason) = foreseen.verdict {
            let destination = LearnedAddress { address: head.destination(), vlan: port.vlan_of(head) };
            let receiver = table.find(destination).and_then(member);
            grounds.anti_spoof(reason, start.bytes(), |mac| table.pinned(mac) == Some(port.id));
            let gate = receiver.map(|port| (port.id, port.policy.gate().vlans));
            grounds.gates(port.policy.gate().vlans, reason, gate, head);
            if let (DropReason::PolicyDenied, Some(to)) = (reason, receiver) {
                self.deny(grounds, port, to, start);
            }
        }
        foreseen
    }

    /// The policy rule that denies the frame, and one that would allow it.
    fn deny(&self, grounds: &mut Grounds, port: &Port, to: &Port, start: Start<'_>) {
        let filter = self.shared.filter.get();
        grounds.denial(&filtered(&filter, port, start), &port.name, (to.id, &to.name));
    }

    /// A unicast frame on its way to the port `to`: the MTU of an uplink, a change of its VLAN tag, and the port itself.
    fn deliver(&self, grounds: &mut Grounds, (to, foreseen): (PortId, &Foreseen), (start, length): (Start<'_>, usize)) {
        let port = self.port(to);
        if let Some(mtu) = port.as_ref().and_then(|port| exceeded_mtu(port, start, length)) {
            return grounds.too_long(to, mtu, true);
        }
        grounds.tag(foreseen.verdict, foreseen.vlan);
        let Some(port) = port else { return };
        if !receives(&port) {
            grounds.drop_at(to, DropReason::ReceiverAbsent);
        }
        receive(grounds, &port, length);
    }

    /// The answer of the switch to a question for an IP address, if it gives one.
    fn answer(&self, grounds: &mut Grounds, port: &Port, start: Start<'_>, now: u32) -> bool {
        let Some(resolution) = Resolution::of(start.bytes(), NetHeader::default()) else {
            if resolution::is_candidate(start.bytes()) {
                grounds.step(Step::NothingLearned);
            }
            return false;
        };
        let (addresses, tag) = (port.segment.addresses(), start.head().vlan().0);
        let owner_port = |id| port.segment.members().contains(&id).then(|| self.port(id)).flatten();
        let asked = resolution.question.map(|question| question.target);
        let owner = asked.and_then(|ip| addresses.find(port.vlan_of(start.head()), ip, now));
        let to = owner.and_then(|owner| owner_port(owner.port));
        let reach_of = |_| to.as_deref().map(|to| (to.policy.gate(), receives(to)));
        let asker = (port.id, port.policy.gate(), tag);
        if let (Some(ip), Some(owner), Some(to)) = (asked, owner, &to) {
            grounds.passage(to.id, PassageStep::Owner(ip, owner.source));
        }
        let Some(given) = addresses.answer(start.bytes(), &resolution, asker, reach_of, now) else { return false };
        grounds.step(Step::Answered(given.owner.mac));
        grounds.answered_for = Some(given.owner.port);
        true
    }

    fn flood(&self, grounds: &mut Grounds, port: &Port, (start, length): (Start<'_>, usize), now: u32) {
        let (head, filter) = (start.head(), self.shared.filter.get());
        let filtered = filtered(&filter, port, start);
        grounds.step(Step::Flooded(port.segment.name.clone()));
        let members = port.segment.members();
        let uplink = port.segment.uplink();
        let suspect = uplink != Some(port.id) && port.segment.table().is_suspect(port.id, now);
        let flood = Flood { reaches_one: members.len() <= 2 && uplink.is_none(), suspect, now: cycles() };
        if let Err(reason) = port.policy.may_flood(&flood) {
            grounds.step(Step::Storm);
            return grounds.drop_at(port.id, reason);
        }
        for member in members.into_iter().filter(|&member| member != port.id) {
            let Some(to) = self.port(member) else { continue };
            let from = (port.segment.is_gated(), port.policy.gate());
            match Passage::by_gates(from, (to.id, |vlan| to.policy.gate().entrance(vlan)), head, Some(&filtered)) {
                Passage::None => grounds.passage(to.id, PassageStep::KeptApart),
                Passage::Dropped(reason) => {
                    self.deny(grounds, port, &to, start);
                    // Where nothing receives, nothing is counted.
                    if receives(&to) {
                        grounds.drop_at(port.id, reason);
                    }
                }
                Passage::Same | Passage::Retagged(_) => receive_flooded(grounds, port, &to, (start, length)),
            }
        }
    }
}

/// Exchanges the addresses of a frame that the guest of a twin would send, with those inside; one with those outside stays as it is.
fn exchange(grounds: &mut Grounds, port: &Port, start: &mut [u8], length: usize) -> Result<(), Hidden> {
    let rules = port.policy.rules.get();
    let Some(twin) = &rules.twin else { return Ok(()) };
    grounds.step(Step::Twin(twin.clone()));
    let source = start.get(6..).and_then(<[u8]>::first_chunk).copied().map(MacAddress::new);
    if source.is_none_or(|source| !twin.is_inside(source)) {
        return Ok(());
    }
    twin.exchange_in(start, NetHeader::default(), length).inspect_err(|Hidden| grounds.step(Step::TwinHeaders))
}

/// An unknown destination that is known in other VLANs: guests with different VLAN tags do not reach each other.
fn find_other_vlans(grounds: &mut Grounds, table: &Table, destination: LearnedAddress) {
    let records = table.records().into_iter();
    let elsewhere = records.filter(|record| record.kind == Kind::Learned && record.learned_address.address == destination.address);
    for record in elsewhere.take(MOST_VLANS) {
        let (known, unknown) = (record.learned_address.vlan, destination.vlan);
        grounds.passage(record.port, PassageStep::OtherVlan { known, unknown });
    }
}

/// A flooded frame from `port` at `to`, which the gates let it reach.
fn receive_flooded(grounds: &mut Grounds, port: &Port, to: &Port, (start, length): (Start<'_>, usize)) {
    if let Some(audience) = Audience::of(&port.segment, start.bytes()).filter(|audience| !to.hears(*audience)) {
        let step = match audience {
            Audience::Members(_) => PassageStep::NoMember,
            Audience::Servers(_) => PassageStep::NoServer,
        };
        grounds.passage(to.id, step);
    } else if let Some(mtu) = exceeded_mtu(to, start, length) {
        grounds.too_long(to.id, mtu, false);
    } else {
        receive(grounds, to, length);
    }
}

/// A frame of this length at `port`.
fn receive(grounds: &mut Grounds, port: &Port, length: usize) {
    if !receives(port) {
        let step = if port.is_enabled() { ReceiverStep::NoQueue } else { ReceiverStep::Disabled };
        return grounds.receiver(port.id, step(port.state()));
    }
    if let Some(twin) = &port.policy.rules.get().twin {
        grounds.receiver(port.id, ReceiverStep::Twin(twin.clone()));
    }
    find_delays(grounds, port, length);
    grounds.receivers.push(port.id);
}

/// Link emulation, limits and waiting frames on the way to a port that receives.
fn find_delays(grounds: &mut Grounds, port: &Port, length: usize) {
    if let Some(link) = port.link() {
        grounds.receiver(port.id, ReceiverStep::Link(link));
    }
    if port.policy.receive.is_set() && !port.policy.receive.is_open(cycles()) {
        grounds.receiver(port.id, ReceiverStep::Limit);
    }
    let waiting = port.totals().waiting;
    if waiting > 0 {
        grounds.receiver(port.id, ReceiverStep::Waiting(waiting));
    }
    if let Some(mtu) = port.offer().mtu.filter(|&mtu| length > usize::from(mtu) + 18) {
        grounds.receiver(port.id, ReceiverStep::LongForDriver(mtu));
    }
}
