//! A poll iteration: inter-worker packets, then every source that is awake, then enqueued frames; then notifications.

#![expect(clippy::indexing_slicing, reason = "a worker's own number, and others' below their count")]

use std::sync::Arc;

use super::outcome::Outcomes;
use super::peers::{Back, Message, Return};
use super::turn::Turn;
use super::{Event, Worker};
use crate::cpu_time::slice::Slice;
use crate::cpu_time::work_units::{self, BATCH};
use crate::egress::{InFlight, Offered};
use crate::id::{PortId, Slot};
use crate::memory::holes;
use crate::outcome::Outcome;
use crate::packet::{Packet, TransmitQueueId};
use crate::probes;
use crate::ring::{RingFault, full_fence};
use crate::settings::Poll;
use crate::stats::PortCounters;
use crate::tuning::FEW_FRAMES;

/// Frames after which a long poll iteration sends notifications before it goes on.
const FLUSH_AFTER: u32 = 4 * BATCH as u32;

/// A descriptor chain that was in flight and can be completed.
#[derive(Debug)]
pub(super) struct Ended {
    transmit: TransmitQueueId,
    head: u16,
    /// The receiver for which it counted against the quota of the transmit ring.
    share_of: Option<PortId>,
}

impl Ended {
    /// The end of `packet`, which was for `receiver`.
    pub(super) fn new(packet: &Packet, receiver: PortId) -> Self {
        Self { transmit: packet.transmit, head: packet.head, share_of: packet.share_of(receiver) }
    }
}

impl Worker {
    /// One poll iteration; returns the frames that it moved.
    pub(super) fn iterate(&mut self) -> u32 {
        self.cpu_time.begin_iteration(self.now);
        self.egress.begin_iteration(self.now);
        if let Some(changed) = self.port_table.refresh_filter(&self.shared) {
            self.sources.forget_verdicts(&changed);
            if let Some(recorder) = &mut self.egress.work.recorder {
                recorder.set_filter(self.port_table.filter());
            }
        }
        if !self.burdens.is_empty() {
            self.look_at_burdens();
        }
        let mut frames = self.serve_peers();
        let mut unflushed = frames;
        let hurries = self.shared.settings.poll == Poll::Always;
        let mut index = 0;
        while let Some(&slot) = self.sources.awake.get(index) {
            let served = self.serve(slot);
            frames += served;
            unflushed += served;
            if unflushed >= FLUSH_AFTER || (hurries && (1..FEW_FRAMES).contains(&served)) {
                self.flush();
                unflushed = 0;
                // The cost of notifications is not charged to the next source.
                self.cpu_time.skip();
            }
            // A source that fell silent was taken from the list, and the last one moved here.
            index += 1;
        }
        if self.egress.has_active() {
            frames += self.drain();
        }
        self.flush();
        if holes::has_covers() {
            holes::settle_all();
        }
        self.account(frames);
        // A throttled port still has pending frames, so do not go to sleep.
        if frames == 0 && self.cpu_time.has_throttled() { 1 } else { frames }
    }

    fn account(&mut self, frames: u32) {
        let counters = &self.shared.workers[usize::from(self.index)];
        let took = self.cpu_time.end_iteration(frames);
        if frames == 0 {
            counters.empty_iterations.add(1);
        } else {
            counters.busy_iterations.add(1);
            counters.frames.add(frames.into());
            counters.busy_cycles.add(took);
            counters.last_busy.set(self.cpu_time.iteration_began());
            probes::worker_iteration(self.index, frames, took);
        }
    }

    #[inline]
    pub(super) fn counters(&self, port: PortId) -> &PortCounters {
        self.port_table.counters(port)
    }

    /// Serves one source for a service quantum, unless its port is throttled; returns the frames that it moved.
    fn serve(&mut self, slot: Slot) -> u32 {
        let Some(source) = self.sources.get(slot) else { return 0 };
        let port = source.port();
        if !self.cpu_time.admit(port) {
            return 0;
        }
        let Some((turn, packet)) = self.turn(slot, port) else { return 0 };
        let taken = turn.run(packet);
        self.conclude_turn(slot, port, taken)
    }

    /// Prepares a service quantum of the source at `slot`, of `port`, and its scratch packet.
    #[inline]
    fn turn(&mut self, slot: Slot, port: PortId) -> Option<(Turn<'_>, &mut Packet)> {
        self.packet.transmit = TransmitQueueId { worker: self.index, slot };
        self.packet.source = port;
        let source = self.sources.get(slot)?;
        let (its_port, segment) = self.port_table.member(port)?;
        let weight = self.cpu_time.weight_at_receivers(port, its_port.policy.weight());
        let turn = Turn {
            worker: self.index,
            segment,
            egress: &mut self.egress,
            peers: &mut self.peers,
            outcomes: Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting },
            counters: &self.shared.workers[usize::from(self.index)],
            weight,
            source,
            port: its_port,
            now: self.now,
            second: self.second,
        };
        Some((turn, &mut self.packet))
    }

    /// Has the rest of each GSO frame leave its ring of which some segments were delivered: it goes to the link of its receiver. In the
    /// ring it would be sent anew by another process.
    pub(super) fn finish_partial(&mut self) {
        let (index, mut partial) = (self.index, Vec::new());
        for (slot, source) in self.sources.iter() {
            let frame = source.backpressured.filter(|frame| frame.segments_done > 0 && frame.entry.worker == index);
            partial.extend(frame.map(|frame| (slot, source.port(), frame.entry.slot)));
        }
        for (slot, port, receiver) in partial {
            self.egress.begin_line(receiver);
            let Some((turn, packet)) = self.turn(slot, port) else { continue };
            if let Err(fault) = turn.finish_partial(packet) {
                self.fault(port, fault);
            }
            self.sources.touch(slot);
        }
        self.charge();
    }

    /// Accounts for a service quantum of the source at `slot`; returns its frames.
    #[inline]
    fn conclude_turn(&mut self, slot: Slot, port: PortId, taken: Result<u32, RingFault>) -> u32 {
        match taken {
            Ok(0) => {
                if self.sources.get(slot).is_some_and(|source| source.backpressured.is_some()) {
                    // The attempt to deliver the frame that backpressure left in the ring was in vain, and cost time.
                    self.cpu_time.accounting.enter_work_units(port, work_units::TOUCH);
                }
                if !self.cpu_time.accounting.is_empty() {
                    self.charge();
                }
                0
            }
            Ok(frames) => {
                self.sources.had_frames(slot, frames, self.now);
                let mark_backlogged = self.note_satisfied(slot, port);
                self.charge();
                if mark_backlogged {
                    self.cpu_time.mark_backlogged(port);
                }
                frames
            }
            Err(fault) => {
                self.sources.touch(slot);
                self.charge();
                self.fault(port, fault);
                0
            }
        }
    }

    /// Marks this source as no longer backlogged: for every receiver if its ring is empty, and for each receiver that it sent to in
    /// this batch if it sent to more than one, because the destination of the frames still queued is not known. A receiver whose
    /// backpressure left a frame in the ring stays excepted. Returns whether the source is still backlogged towards the worker: a
    /// frame under backpressure waits for its receiver, not for the worker.
    #[inline]
    fn note_satisfied(&mut self, slot: Slot, port: PortId) -> bool {
        let Some(source) = self.sources.get(slot) else { return false };
        let (has_more, backpressured) = (source.feed.has_more(), source.backpressured);
        let mark_backlogged = has_more && backpressured.is_none();
        if has_more && !self.cpu_time.accounting.is_mixed() {
            return mark_backlogged;
        }
        if self.egress.has_contention() {
            let backpressured = backpressured
                .filter(|backpressured| backpressured.entry.worker == self.index)
                .map(|backpressured| backpressured.entry.slot);
            for receiver in self.cpu_time.accounting.receivers() {
                self.egress.clear_backlog(receiver, port, backpressured);
            }
        }
        mark_backlogged
    }

    /// Charges the time since the last charge to the senders in the accounting.
    #[inline]
    pub(super) fn charge(&mut self) {
        if !self.egress.work.burdens.is_empty() {
            self.enter_burdens();
        }
        let Self { cpu_time, port_table, .. } = self;
        cpu_time.charge(|sender| port_table.weight_of(sender), |sender, cost| port_table.counters(sender).cycles.add(cost));
    }

    /// Charges invalid or fragmented receive buffers to their receiver, not to the senders: no well-behaved guest causes such a
    /// cost.
    #[cold]
    fn enter_burdens(&mut self) {
        for (slot, port, work_units) in self.egress.work.burdens.drain(..) {
            self.cpu_time.accounting.enter_work_units(port, work_units);
            if !self.burdens.contains(&(slot, port)) {
                self.burdens.push((slot, port));
            }
        }
    }

    /// Expensive receive buffers of a port are left alone while the port is throttled.
    #[cold]
    fn look_at_burdens(&mut self) {
        let Self { burdens, cpu_time, egress, .. } = self;
        burdens.retain(|&(slot, port)| {
            let shut = !cpu_time.admit(port);
            egress.shut(slot, port, shut);
            shut
        });
    }

    /// Delivers the frames that wait at this worker for their receivers, and those that arrived over emulated links.
    fn drain(&mut self) -> u32 {
        let mut ended = std::mem::take(&mut self.ended);
        self.cpu_time.skip();
        let (accounting, weight_of) = self.cpu_time.accounting_and_weights();
        let mut outcomes = Outcomes { port_table: &self.port_table, accounting };
        let mut frames = 0;
        let weight_of = |sender| weight_of(sender, self.port_table.weight_of(sender));
        self.egress.drain(&mut self.packet, weight_of, |packet, port, outcome| {
            outcomes.meet(packet, outcome);
            frames += 1;
            if outcome.ends_chain() {
                ended.push(Ended::new(packet, port));
            }
        });
        self.give_all_back(&mut ended);
        self.charge();
        self.ended = ended;
        frames
    }

    /// Completes the descriptor chains of all that are `ended`.
    pub(super) fn give_all_back(&mut self, ended: &mut Vec<Ended>) {
        ended.drain(..).for_each(|Ended { transmit, head, share_of }| self.give_back(transmit, head, share_of));
    }

    /// Completes a descriptor chain that was in flight, at the worker that owns its transmit queue.
    pub(super) fn give_back(&mut self, transmit: TransmitQueueId, head: u16, share_of: Option<PortId>) {
        self.tell_back(transmit, head, Back::Done(share_of));
    }

    fn tell_back(&mut self, transmit: TransmitQueueId, head: u16, what: Back) {
        let back = Return { slot: transmit.slot, head, what };
        if transmit.worker == self.index { self.take_back(back) } else { self.peers.give_back(transmit.worker, back) }
    }

    fn take_back(&mut self, back: Return) {
        let Some(source) = self.sources.get(back.slot) else { return };
        match back.what {
            Back::Held(more) => return source.feed.hold(back.head, more),
            Back::Done(share_of) => source.come_back(back.head, share_of),
        }
        let awaited = source.when_back.is_some();
        self.sources.touch(back.slot);
        self.sources.wake(back.slot);
        if awaited {
            self.finish_calling_back(back.slot);
        }
    }

    /// Takes the packets and completions of other workers. The cost is charged to the senders of the packets, and to the owners of
    /// completed chains.
    fn serve_peers(&mut self) -> u32 {
        let mut frames = 0;
        while let Some(back) = self.peers.receive_return() {
            if let Some(source) = self.sources.get(back.slot) {
                self.cpu_time.accounting.enter_work_units(source.port(), work_units::TOUCH);
            }
            self.take_back(back);
        }
        for index in 0..self.peers.others.len() {
            let other = self.peers.others[index];
            let mut slice = Slice::new(self.egress.work.work_units, work_units::TURN);
            for _ in 0..4 * BATCH {
                if slice.is_over(self.egress.work.work_units) {
                    break;
                }
                let Some(message) = self.peers.receive(other) else { break };
                self.accept(other, message);
                frames += 1;
            }
        }
        if !self.cpu_time.accounting.is_empty() {
            self.charge();
        }
        frames
    }

    fn accept(&mut self, from: u8, message: Message) {
        match message {
            Message::Deliver(mut packet, port, queue) => self.deliver_for_peer(&mut packet, port, queue),
            Message::Flood(mut packet) => {
                let before = self.egress.work.work_units;
                let held = self.flood(&mut packet);
                let work_units = self.egress.work.work_units - before;
                Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting }
                    .flooded(packet.source, work_units);
                if held > 0 {
                    self.tell_back(packet.transmit, packet.head, Back::Held(held));
                }
                self.give_back(packet.transmit, packet.head, None);
            }
            Message::Recall(slot) => self.recall(from, slot),
        }
    }

    /// Delivers to the ports of the source's broadcast domain that this worker serves; returns at how many of them the frame was
    /// enqueued.
    pub(super) fn flood(&mut self, packet: &mut Packet) -> u16 {
        let Some((_, segment)) = self.port_table.member(packet.source) else { return 0 };
        // There may have been no rules yet at the worker that took the frame.
        if self.port_table.filtered(packet.source).is_some() {
            packet.copy_more();
        }
        let mut outcomes = Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting };
        outcomes.flood(&mut self.egress, packet, &segment.ports, self.now)
    }

    fn deliver_for_peer(&mut self, packet: &mut Packet, port: PortId, queue: Slot) {
        let weight = self.cpu_time.weight_at_receivers(packet.source, self.port_table.weight_of(packet.source));
        let before = packet.segments_done;
        let outcome = match self.egress.offer(queue, packet, weight, &mut InFlight) {
            Offered::Delivered => Outcome::Delivered(port, packet.segments_done - before),
            Offered::Queued | Offered::Blocked => Outcome::Waits(port),
            Offered::Dropped(reason) => Outcome::Dropped(port, reason),
        };
        if let Outcome::Dropped(port, reason) = outcome {
            self.egress.work.taps.dropped(packet, port, reason);
        }
        Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting }.meet(packet, outcome);
        if matches!(outcome, Outcome::Waits(_)) {
            return;
        }
        self.give_back(packet.transmit, packet.head, Some(port));
    }

    /// Publishes used rings, interrupts drivers, and wakes other workers.
    fn flush(&mut self) {
        if self.sources.has_due(self.now) || self.egress.has_due(self.now) {
            self.look_after_due();
        }
        if self.egress.publish() | self.sources.publish() {
            full_fence();
            let port_table = &self.port_table;
            let counters = |port: PortId| port_table.counters(port);
            self.egress.call(counters);
            let mut faults = Vec::new();
            self.sources.call(self.now, counters, |port, fault| faults.push((port, fault)));
            for (port, fault) in faults {
                self.fault(port, fault);
            }
        }
        self.report_faults();
        if !self.peers.others.is_empty() {
            let woken = self.peers.flush();
            self.shared.workers[usize::from(self.index)].wakes.add(woken);
        }
    }

    /// Closes the transmit queues of ports that broke a receive ring, and reports the faults.
    pub(super) fn report_faults(&mut self) {
        while let Some((port, fault)) = self.egress.next_fault() {
            self.fault(port, fault);
        }
    }

    /// Closes the rings of a port that broke one of them here, and reports it; the control side stops the rest.
    #[cold]
    pub(super) fn fault(&mut self, port: PortId, fault: RingFault) {
        let slots: Vec<Slot> = self.sources.iter().filter(|(_, source)| source.port() == port).map(|(slot, _)| slot).collect();
        for slot in slots {
            self.sources.close(slot);
        }
        if let Some((port, session)) = self.port_table.session(port) {
            self.report(Event::RingFault(Arc::clone(port), session, fault));
        }
    }
}
