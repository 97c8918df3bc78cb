//! Outcomes: the one place that is told the outcome of every frame. It counts drops at the port that is the cause, and enters the
//! cost in the accounting. Any other reaction to a frame's outcome belongs here.

use super::port_table::PortTable;
use crate::audience::Audience;
use crate::cpu_time::accounting::Accounting;
use crate::cpu_time::work_units;
use crate::denials::{Cause, Key};
use crate::egress::Egress;
use crate::id::PortId;
use crate::outcome::Outcome;
use crate::packet::Packet;
use crate::policy::gate::Entrance;
use crate::port::Port;
use crate::stats::DropReason;
use crate::time::Cycles;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::flooded::{Flooded, Passage, Receiver};
use crate::verdict::reading::Start;
use crate::weight::Weight;

/// See the module.
#[derive(Debug)]
pub(super) struct Outcomes<'w> {
    pub port_table: &'w PortTable,
    pub accounting: &'w mut Accounting,
}

/// A port as the receiver of a flooded frame.
struct Member<'p> {
    port: &'p Port,
    audience: Option<Audience>,
}

impl Receiver for Member<'_> {
    fn hears(&self) -> bool {
        self.audience.is_none_or(|audience| self.port.hears(audience))
    }

    fn entrance(&self, vlan: u16) -> Entrance {
        self.port.policy.gate().entrance(vlan)
    }

    fn mtu(&self) -> Option<u16> {
        self.port.mtu()
    }
}

impl Outcomes<'_> {
    /// Accounts for the outcome of a packet: counts a drop, and charges its sender.
    #[inline]
    pub(super) fn meet(&mut self, packet: &Packet, outcome: Outcome) {
        let (to, segments, bytes) = match outcome {
            Outcome::Delivered(to, segments) => (Some(to), segments.max(1), packet.length),
            Outcome::DeliveredInPart(to, segments) => (Some(to), segments, 0),
            Outcome::Waits(to) => return self.accounting.enter_waiting(packet.source, to, packet.length.into()),
            Outcome::HandedOver(to) => (Some(to), 1, packet.length),
            Outcome::Dropped(port, reason) => return self.dropped(packet.source, port, reason),
            Outcome::Arrived => return,
            Outcome::Lost(port, reason) => return self.missed(port, reason),
        };
        self.accounting.enter(packet.source, to, segments.into(), bytes.into());
    }

    /// The fast path carried so many `frames` of `sender`, of so many `bytes` together.
    #[inline]
    pub(super) fn enter_fast_path(&mut self, sender: PortId, to: PortId, frames: u16, bytes: u64) {
        self.accounting.enter(sender, Some(to), frames.into(), bytes);
    }

    /// A frame of `sender` was dropped, maybe without being read, for a `reason` that is counted at `port`.
    pub(super) fn dropped(&mut self, sender: PortId, port: PortId, reason: DropReason) {
        let (port, work_units) = match reason {
            // The sender's page faults took about as long as a service quantum.
            DropReason::SenderMemory => (sender, work_units::TURN),
            _ => (port, work_units::FRAME),
        };
        self.missed(port, reason);
        self.accounting.enter_work_units(sender, work_units);
    }

    /// A frame was dropped whose cost was entered before, or one of the copies of a flooded frame.
    pub(super) fn missed(&mut self, port: PortId, reason: DropReason) {
        self.port_table.counters(port).drop_frame(reason);
    }

    /// Notes that `frames` copies of a frame of `sender` were refused by policy rules at `to`, or, of a flooded one, from that port on.
    #[cold]
    pub(super) fn note_denied(
        &self,
        denied: &FilteredFlood<'_>,
        (sender, key): (&Port, Key),
        to: PortId,
        frames: u64,
        now: Cycles,
    ) {
        let filter = denied.filter();
        let cause = || {
            let rule = denied.denying(to)?.text().into();
            let to = self.port_table.port(to)?.name.clone();
            Some(Cause { to, rule, with_destination: filter.limits_destinations(), name: None })
        };
        sender.reports.denials.note(key, frames, (filter.generation_between(sender.id, to), now), cause);
    }

    /// Floods `packet` in moment `now` to those of `ports` that are served here; returns at how many of them it was enqueued.
    pub(super) fn flood(&mut self, egress: &mut Egress, packet: &mut Packet, ports: &[PortId], now: Cycles) -> u16 {
        let weight = Weight::new(self.port_table.weight_of(packet.source));
        let (sender, port_table) = (packet.source, self.port_table);
        let head = Start::from(&*packet).head();
        let (copied, length) = (port_table.filtered(sender).map(|filtered| (filtered, packet.start)), packet.start_length as usize);
        let vlan = port_table.port(sender).map_or(0, |port| port.vlan_of(head));
        let filtered = copied.as_ref().map(|(filtered, start)| FilteredFlood::new(*filtered, Start::new(start, length), vlan));
        let (long, audience) = (port_table.long_packet(packet), port_table.audience(packet));
        let member = |to| port_table.port(to).map(|port| Member { port, audience });
        // A sender that is gone meanwhile had a gate that is not known any more.
        let flooded = port_table.port(sender).map(|sender| {
            let (is_gated, gate) = (sender.segment.is_gated(), sender.policy.gate());
            Flooded { head, is_gated, gate, filtered: filtered.as_ref(), long, tape: None }
        });
        let passage = |to| match (&flooded, member(to)) {
            (Some(flooded), Some(member)) => flooded.passage(to, &member),
            _ => Passage::None,
        };
        if egress.work.recorder.is_some() {
            self.record_flood(egress, packet, ports, (long, audience, now));
        }
        if port_table.trials().is_on(now) {
            let is_other = |to: &PortId| *to != sender && egress.route_here(*to).is_some();
            let receivers = ports.iter().copied().filter(is_other);
            let passing = receivers.filter(|&to| matches!(passage(to), Passage::Same | Passage::Retagged(_)));
            let name = |port| port_table.port(port).map(|port| port.name.clone());
            port_table.trials().judge((sender, Start::from(&*packet), vlan, None), passing, now, name);
        }
        let mut denied: Option<(PortId, u64)> = None;
        let held = egress.flood(packet, ports, weight, passage, |port, reason| {
            let is_senders = matches!(reason, DropReason::SenderMemory | DropReason::PolicyDenied);
            self.missed(if is_senders { sender } else { port }, reason);
            if reason == DropReason::PolicyDenied {
                denied.get_or_insert((port, 0)).1 += 1;
            }
        });
        if let (Some((first, copies)), Some(filtered), Some(port)) = (denied, &filtered, port_table.port(sender)) {
            let key = Key::new(None, filtered.target());
            self.note_denied(filtered, (port, key), first, copies, now);
        }
        held
    }

    /// Records how a packet is flooded to those of `ports` that are served here; it may be `long`.
    #[cold]
    fn record_flood(
        &self,
        egress: &mut Egress,
        packet: &Packet,
        ports: &[PortId],
        (long, audience, now): (Option<u32>, Option<Audience>, Cycles),
    ) {
        let port_table = self.port_table;
        let Some(sender) = port_table.port(packet.source) else { return };
        let Some(mut recorder) = egress.work.recorder.take() else { return };
        let (rules, head) = (sender.policy.rules.get(), Start::from(packet).head());
        let served = ports.iter().filter(|&&to| to != sender.id && egress.route_here(to).is_some());
        let members = served.filter_map(|&to| port_table.port(to)).map(|port| (port.id, Member { port, audience }));
        let (is_gated, gate, vlan) = (sender.segment.is_gated(), sender.policy.gate(), sender.vlan_of(head));
        let filtered = port_table.filtered(sender.id);
        recorder.flooded(
            (packet, &rules, sender),
            (vlan, long.is_some()),
            members,
            |(to, member), tape| {
                let start = Start::from(packet).on(Some(tape));
                let filtered = filtered.map(|filtered| FilteredFlood::new(filtered, start, vlan));
                let flooded = Flooded { head, is_gated, gate, filtered: filtered.as_ref(), long, tape: Some(tape) };
                (to, flooded.passage(to, &member))
            },
            now,
        );
        egress.work.recorder = Some(recorder);
    }

    /// A frame of `sender` was flooded to the ports of this worker, or answered by the switch, at the cost of so many work units. Drops were counted before.
    pub(super) fn flooded(&mut self, sender: PortId, work_units: u64) {
        self.accounting.enter_work_units(sender, work_units::FRAME + work_units);
    }
}
