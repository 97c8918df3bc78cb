//! Forecasts: the outcome of a frame without sending it, decided by the verdict's own code, step by step.
//!
//! Conditions of the moment are steps beside the outcome: frames that wait for the receiver, rate limits, random loss by link emulation.

#![expect(clippy::indexing_slicing, reason = "a length cut to that of the array")]

use memlane_model::forecast::Forecast;

use super::Network;
use crate::address_map::resolution::{self, Resolution};
use crate::audience::Audience;
use crate::frame::{ETHERNET, MacAddress, NetHeader, START};
use crate::grounds::{self, Named};
use crate::id::PortId;
use crate::policy::Flood;
use crate::policy::filter::{Filter, Filtered};
use crate::policy::gate::Gate;
use crate::port::Port;
use crate::port::refused::Refused;
use crate::stats::DropReason;
use crate::table::{Kind, LearnedAddress, Table};
use crate::time::cycles;
use crate::too_long;
use crate::twin::Hidden;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::flooded::Passage;
use crate::verdict::reading::Start;
use crate::verdict::{Foreseen, Sender, Verdict, foresee};
use memlane_model::quantity::counted;

/// VLANs that are named, at most.
const MOST_VLANS: usize = 4;

/// The MTU of the way to `to`, if a frame of `length` bytes is longer.
fn exceeded_mtu(to: &Port, start: Start<'_>, length: usize) -> Option<u16> {
    let mtu = to.mtu()?;
    too_long::check_frame(start.bytes(), length as u32, NetHeader::default(), mtu).is_err().then_some(mtu)
}

/// Why a port that is none of this `audience` does not get a flooded frame.
fn not_heard(audience: Audience) -> &'static str {
    match audience {
        Audience::Members(_) => grounds::NO_MEMBER,
        Audience::Servers(_) => grounds::NO_SERVER,
    }
}

/// The frame from `port` that begins with `start`, before the policy rules.
fn filtered<'f>(filter: &'f Filter, port: &Port, start: Start<'f>) -> FilteredFlood<'f> {
    FilteredFlood::new(Filtered { filter, from: port.id, is_forecast: true }, start, port.vlan_of(start.head()))
}

/// The words for `port`.
fn named(port: &Port) -> Named<'_> {
    Named { name: &port.name, vlans: port.policy.gate().vlans }
}

impl Network {
    /// The outcome of `frame` if the guest of `port` transmitted it in second `now` of the network. Nothing is learned, counted or sent.
    pub fn why(&self, port: &Port, frame: &[u8], now: u32) -> Forecast {
        let mut forecast = Forecast::default();
        if frame.len() < ETHERNET {
            forecast
                .step(format!("the frame has {}, fewer than the {ETHERNET} of an Ethernet header", counted(frame.len(), "byte")));
            forecast.drop_at(&port.name, DropReason::Runt);
            return forecast;
        }
        if !port.is_enabled() {
            forecast.step(format!("{} is disabled: its frames stay in its transmit ring until it is enabled", port.name));
        }
        let mut start = [0; START];
        let length = frame.len().min(START);
        start[..length].copy_from_slice(&frame[..length]);
        if self.exchange(&mut forecast, port, &mut start[..length], frame.len()).is_err() {
            forecast.drop_at(&port.name, DropReason::SpoofedIp);
            return forecast;
        }
        let start = Start::new(&start, length);
        let table = port.segment.table();
        let foreseen = self.foresee(&mut forecast, port, &table, start, now);
        let destination = LearnedAddress { address: start.head().destination(), vlan: foreseen.vlan };
        match foreseen.verdict {
            Verdict::Drop(reason) => forecast.drop_at(&port.name, reason),
            Verdict::To(to) | Verdict::Retagged(to, _) => {
                let age = table.age_of(destination, now);
                let age = age.map_or_else(String::new, |age| format!(", last heard {age} s ago"));
                forecast.step(format!("destination {} is behind {}{age}", destination.address, self.name(to)));
                self.tell_allowing_rule(&mut forecast, port, to, start);
                self.tell_delivery(&mut forecast, (to, &foreseen), (start, frame.len()));
            }
            Verdict::Flood => {
                if !self.tell_answer(&mut forecast, port, start, now) {
                    self.tell_other_vlans(&mut forecast, &table, destination);
                    self.flood(&mut forecast, port, start, frame.len(), now);
                }
            }
        }
        forecast
    }

    /// Exchanges the addresses of a frame that the guest of a twin would send, with those inside; one with those outside stays as it is.
    fn exchange(&self, forecast: &mut Forecast, port: &Port, start: &mut [u8], length: usize) -> Result<(), Hidden> {
        let (rules, name) = (port.policy.rules.get(), &port.name);
        let Some(twin) = &rules.twin else { return Ok(()) };
        forecast.step(format!("{name} is a twin, whose guest has {}", twin.told()));
        let source = start.get(6..).and_then(<[u8]>::first_chunk).copied().map(MacAddress::new);
        if source.is_none_or(|source| !twin.is_inside(source)) {
            return Ok(());
        }
        twin.exchange_in(start, NetHeader::default(), length).inspect_err(|Hidden| {
            forecast.step("its headers are too long: its addresses cannot be exchanged");
        })
    }

    /// The verdict on a frame from `port`; its grounds are steps.
    fn foresee(&self, forecast: &mut Forecast, port: &Port, table: &Table, start: Start<'_>, now: u32) -> Foreseen {
        let (head, rules) = (start.head(), port.policy.rules.get());
        let filter = self.shared.filter.get();
        let filtered = (!filter.is_empty()).then_some(Filtered { filter: &filter, from: port.id, is_forecast: true });
        let gate = Gate { filtered, ..port.policy.gate() };
        let sender = Sender { port: port.id, rules: &rules, gate, is_gated: port.segment.is_gated() };
        let ports: Vec<_> = port.segment.members().into_iter().filter_map(|id| self.port(id)).collect();
        let member = |id: PortId| ports.iter().find(|port| port.id == id);
        let gate_of = |id| member(id).map(|port| port.policy.gate());
        let foreseen = foresee(start, sender, gate_of, table, now);
        grounds::tell_source(forecast, &port.name, &foreseen, |port| self.name(port));
        if let Verdict::Drop(reason) = foreseen.verdict {
            let destination = LearnedAddress { address: head.destination(), vlan: port.vlan_of(head) };
            let receiver = table.find(destination).and_then(member);
            let refused = Refused::of(start.bytes());
            let is_own = table.pinned(refused.mac) == Some(port.id);
            grounds::tell_refused(forecast, &port.name, reason, &refused, is_own);
            grounds::tell_gates(forecast, named(port), reason, receiver.map(|port| named(port)), head);
            if let (DropReason::PolicyDenied, Some(to)) = (reason, receiver) {
                self.tell_denial(forecast, port, to, start);
            }
        }
        foreseen
    }

    /// A unicast frame on its way to the port `to`: the MTU of an uplink, a change of its VLAN tag, and the port itself.
    fn tell_delivery(&self, forecast: &mut Forecast, (to, foreseen): (PortId, &Foreseen), (start, length): (Start<'_>, usize)) {
        if let Some(receiver) = self.port(to)
            && let Some(mtu) = exceeded_mtu(&receiver, start, length)
        {
            return grounds::tell_too_long(forecast, &receiver.name, mtu);
        }
        grounds::tell_tag(forecast, foreseen.verdict, foreseen.vlan, &self.name(to));
        self.receive(forecast, to, length, true);
    }

    /// The answer of the switch to a question for an IP address, if it gives one.
    fn tell_answer(&self, forecast: &mut Forecast, port: &Port, start: Start<'_>, now: u32) -> bool {
        let Some(resolution) = Resolution::of(start.bytes(), NetHeader::default()) else {
            if resolution::is_candidate(start.bytes()) {
                forecast.step("the address map learns nothing from it and gives no answer: it is malformed, or its source has no IP address yet");
            }
            return false;
        };
        let (addresses, tag) = (port.segment.addresses(), start.head().vlan().0);
        let owner_port = |id| port.segment.members().contains(&id).then(|| self.port(id)).flatten();
        let asked = resolution.question.map(|question| question.target);
        let owner = asked.and_then(|ip| addresses.find(port.vlan_of(start.head()), ip, now));
        let to = owner.and_then(|owner| owner_port(owner.port));
        let receives = |port: &Port| port.is_enabled() && !port.rings().entries().is_empty();
        let reach_of = |_| to.as_deref().map(|to| (to.policy.gate(), receives(to)));
        let asker = (port.id, port.policy.gate(), tag);
        if let (Some(ip), Some(owner), Some(to)) = (asked, owner, &to) {
            forecast.step(format!("IP address {ip} belongs to {} ({})", to.name, owner.source.name()));
        }
        let Some(given) = addresses.answer(start.bytes(), &resolution, asker, reach_of, now) else { return false };
        let mac = given.owner.mac.map_or_else(String::new, |mac| mac.to_string());
        forecast.step(format!("the switch answers with {mac}, and no other port receives the question"));
        forecast.answered_for = Some(self.name(given.owner.port));
        true
    }

    fn name(&self, port: PortId) -> String {
        self.port(port).map_or_else(|| "a detached port".into(), |port| port.name.clone())
    }

    /// An unknown destination that is known in other VLANs: guests with different VLAN tags do not reach each other.
    fn tell_other_vlans(&self, forecast: &mut Forecast, table: &Table, destination: LearnedAddress) {
        let records = table.records().into_iter();
        let elsewhere =
            records.filter(|record| record.kind == Kind::Learned && record.learned_address.address == destination.address);
        let within = |vlan: u16| if vlan == 0 { "without a VLAN tag".into() } else { format!("in VLAN {vlan}") };
        for record in elsewhere.take(MOST_VLANS) {
            forecast.step(format!(
                "destination {} is behind {} {}, and not {}: the guests use different VLAN tags",
                destination.address,
                self.name(record.port),
                within(record.learned_address.vlan),
                within(destination.vlan)
            ));
        }
    }

    /// The policy rule that denies the frame, and one that would allow it.
    fn tell_denial(&self, forecast: &mut Forecast, port: &Port, to: &Port, start: Start<'_>) {
        let filter = self.shared.filter.get();
        grounds::tell_denial(forecast, &filtered(&filter, port, start), (&port.name, (to.id, &to.name)));
    }

    /// The policy rule that allows the frame, if one does; else it passes because no rule is about it.
    fn tell_allowing_rule(&self, forecast: &mut Forecast, port: &Port, to: PortId, start: Start<'_>) {
        let filter = self.shared.filter.get();
        let Some(to) = self.port(to).filter(|_| !filter.is_empty()) else { return };
        grounds::tell_allowing_rule(forecast, &filtered(&filter, port, start), (&port.name, (to.id, &to.name)));
    }

    fn flood(&self, forecast: &mut Forecast, port: &Port, start: Start<'_>, length: usize, now: u32) {
        let (head, filter) = (start.head(), self.shared.filter.get());
        let filtered = Filtered { filter: &filter, from: port.id, is_forecast: true };
        let filtered = FilteredFlood::new(filtered, start, port.vlan_of(head));
        grounds::tell_flood(forecast, head, &port.segment.name);
        let members = port.segment.members();
        let uplink = port.segment.uplink();
        let suspect = uplink != Some(port.id) && port.segment.table().is_suspect(port.id, now);
        let flood = Flood { reaches_one: members.len() <= 2 && uplink.is_none(), suspect, now: cycles() };
        if let Err(reason) = port.policy.may_flood(&flood) {
            forecast.step(format!("{} has used up its limit of flooded frames (storm) at this moment", port.name));
            return forecast.drop_at(&port.name, reason);
        }
        for member in members.into_iter().filter(|&member| member != port.id) {
            let Some(to) = self.port(member) else { continue };
            let from = (port.segment.is_gated(), port.policy.gate());
            match Passage::by_gates(from, (to.id, |vlan| to.policy.gate().entrance(vlan)), head, Some(&filtered)) {
                Passage::None => grounds::tell_kept_apart(forecast, &port.name, &to.name),
                Passage::Dropped(reason) => {
                    self.tell_denial(forecast, port, &to, start);
                    // Where nothing receives, nothing is counted.
                    if to.is_enabled() && !to.rings().entries().is_empty() {
                        forecast.drop_at(&port.name, reason);
                    }
                }
                Passage::Same | Passage::Retagged(_) => self.receive_flooded(forecast, port, &to, start, length),
            }
        }
    }

    /// How a flooded frame fares at `to`, which the gates let it reach.
    fn receive_flooded(&self, forecast: &mut Forecast, port: &Port, to: &Port, start: Start<'_>, length: usize) {
        if let Some(audience) = Audience::of(&port.segment, start.bytes()).filter(|audience| !to.hears(*audience)) {
            forecast.step(format!("{} does not receive it: {}", to.name, not_heard(audience)));
        } else if let Some(mtu) = exceeded_mtu(to, start, length) {
            forecast.step(format!("the packet is longer than the MTU of {} ({mtu}), and a flooded frame is not answered", to.name));
            forecast.drop_at(&to.name, DropReason::TooLong);
        } else {
            self.receive(forecast, to.id, length, false);
        }
    }

    /// How the frame fares at `to`. One that is flooded does not count as dropped where there is no receiver.
    fn receive(&self, forecast: &mut Forecast, to: PortId, length: usize, alone: bool) {
        let Some(port) = self.port(to) else { return };
        let name = port.name.clone();
        if !port.is_enabled() || port.rings().entries().is_empty() {
            let why = if port.is_enabled() { "has no running receive queue" } else { "is disabled" };
            forecast.step(format!("{name} {why} ({})", port.state().name()));
            if alone {
                forecast.drop_at(&port.name, DropReason::ReceiverAbsent);
            }
            return;
        }
        if let Some(twin) = &port.policy.rules.get().twin {
            forecast.step(format!("{name} is a twin: its guest receives the frame with {}", twin.told()));
        }
        self.tell_way(forecast, &port, length);
        forecast.receivers.push(name);
    }

    /// Link emulation, limits and waiting frames on the way to a port that receives.
    fn tell_way(&self, forecast: &mut Forecast, port: &Port, length: usize) {
        let name = &port.name;
        if let Some(link) = port.link() {
            forecast.step(format!("the emulated link of {name} is on the path, and may lose the frame: {link}"));
        }
        if port.policy.receive.is_set() && !port.policy.receive.is_open(cycles()) {
            forecast.step(format!("the receive rate limit of {name} delays frames at this moment: the frame would wait"));
        }
        let waiting = port.totals().waiting;
        if waiting > 0 {
            forecast.step(format!(
                "{} waiting for {name} at this moment: the frame would wait behind, or be dropped as receiver-full",
                counted(waiting, "frame")
            ));
        }
        if let Some(mtu) = port.offer().mtu.filter(|&mtu| length > usize::from(mtu) + 18) {
            forecast.step(format!("the frame is longer than the MTU of {name} ({mtu}): its driver may refuse it"));
        }
    }
}
