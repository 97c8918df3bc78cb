//! Egress: receive queues and TAPs, the frames that wait for each, and the routes to them; a multiqueue port is spread over its
//! receive queues by flow hash ([`Egress::route`]).
//!
//! - An [`EgressQueue`] is one of them, with its [`Sink`] and the frames that wait for it.
//! - Its receiver is served by fair queueing ([`Egress::serve_waiting`], [`account`], [`flows`], [`fair_queue`]).
//! - The packets that are enqueued lie in one [`WaitQueue`] of the worker.
//! - A stall timeout ends head-of-line blocking by a receiver that takes nothing.
//! - Link emulation delays frames before they get there ([`delay`]).

mod account;
mod delay;
mod fair_queue;
mod flows;
mod queue;
mod sink;
mod wait_queue;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::cpu_time::slice::Slice;
use crate::cpu_time::work_units;
use crate::frame::{Head, SHORTEST};
use crate::id::{PortId, RingKey, RouteEntry, Slot};
use crate::link::{Impairment, Path};
use crate::notification::Spans;
use crate::outcome::Outcome;
use crate::packet::{Packet, Reach, TagChange};
use crate::port::Port;
use crate::port::queue_view::QueueView;
use crate::ring::{Ring, RingFault, TransmitQueue, fast_path};
use crate::settings::Settings;
use crate::slots::Slots;
use crate::stats::{DropReason, FrameSizes, PortCounters};
use crate::time::{Cycles, in_cycles};
use crate::timers::Timers;
use crate::verdict::Masks;
use crate::weight::Weight;
pub use account::{QUANTUM, Turns};
pub(crate) use delay::DelayLine;
use fair_queue::FairQueue;
pub(crate) use queue::{EgressQueue, Health, SendOutcome};
use queue::{TURN, Times, Work};
pub(crate) use sink::Sink;
pub use wait_queue::WaitQueue;

/// How a flooded frame reaches one of the receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// As it is.
    Same,
    /// With another VLAN tag.
    Retagged(TagChange),
    /// Not at all.
    None,
}

impl Passage {
    /// That of a frame with this `head` from one port to another.
    #[inline]
    pub(crate) fn between(sender: &Port, to: &Port, head: Head) -> Self {
        let is_gated = sender.segment.is_gated();
        if !is_gated && !head.destination().is_reserved_group() {
            return Self::Same;
        }
        let (from, gate, tag) = (sender.policy.gate(), to.policy.gate(), head.vlan().0);
        if gate.drops_reserved && head.destination().is_reserved_group() {
            return Self::None;
        }
        if !is_gated {
            return Self::Same;
        }
        match from.vlans.of_sent(tag).map(|vlan| from.pass(&gate, vlan, tag)) {
            Some(Ok(None)) => Self::Same,
            Some(Ok(Some(change))) => Self::Retagged(change),
            Some(Err(_)) | None => Self::None,
        }
    }
}

/// Frames of a sender that may be enqueued at a receiver when a flooded one joins them.
const FLOODS: u32 = 8;

/// Common properties of frames that take the fast path together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FastPathKey<'c> {
    pub sender: PortId,
    /// The sender's weight.
    pub weight: Weight,
    /// The match masks that they all fit.
    pub masks: Masks<'c>,
    /// The receiver.
    pub port: PortId,
}

/// A receiver counts as stuck after it took nothing for so long.
const STUCK_AFTER: Duration = Duration::from_millis(1);

/// Lead of a wake-up before the arrival of a frame on an emulated link, for waking takes that long.
const EARLY: Duration = Duration::from_micros(50);

/// See the module.
#[derive(Debug)]
pub(crate) struct Egress {
    /// The worker that owns them.
    worker: u8,
    slots: Slots<EgressQueue>,
    /// The queues of each port, of any worker.
    routes: Vec<Vec<RouteEntry>>,
    wait_queue: WaitQueue,
    /// Slots with frames that are not published to the driver yet.
    touched: Vec<Slot>,
    /// Slots with enqueued frames, the one that is served next first.
    waiting: VecDeque<Slot>,
    /// Egress queues with blocked senders, which get fair queueing.
    fair_queues: usize,
    /// Slots at which a frame of link emulation has arrived or will soon, the one that is served next first.
    lines: VecDeque<Slot>,
    /// Timers of the next arrivals by link emulation at the other slots, or a little before.
    arrivals: Timers,
    /// Timers of the notification states.
    notifications: Timers,
    /// Work done here.
    pub work: Work,
    /// Ports whose rings broke a rule here.
    faults: Vec<(PortId, RingFault)>,
    times: Times,
    now: Cycles,
}

impl Egress {
    pub(crate) fn new(worker: u8, settings: &Settings) -> Self {
        Self {
            worker,
            slots: Slots::default(),
            routes: Vec::new(),
            wait_queue: WaitQueue::new(settings.wait_queue, 0),
            touched: Vec::new(),
            waiting: VecDeque::new(),
            fair_queues: 0,
            lines: VecDeque::new(),
            arrivals: Timers::default(),
            notifications: Timers::default(),
            work: Work { worker, ..Work::default() },
            faults: Vec::new(),
            times: Times {
                stall_timeout: in_cycles(settings.stall_timeout),
                stuck_after: in_cycles(STUCK_AFTER),
                early: in_cycles(EARLY),
                spans: Spans::default(),
            },
            now: 0,
        }
    }

    /// A poll iteration begins in moment `now`.
    pub(crate) fn begin_pass(&mut self, now: Cycles) {
        self.now = now;
    }

    /// `port` was added, and there are up to `ports` now.
    pub(crate) fn enter(&mut self, port: PortId, ports: usize) {
        self.routes.resize(ports.max(self.routes.len()), Vec::new());
        self.set_route(port, Vec::new());
        self.wait_queue.make_room(ports);
    }

    pub(crate) fn add(&mut self, queue: EgressQueue) -> Slot {
        let mut queue = queue;
        self.slots.add(|slot| {
            queue.slot = slot;
            queue
        })
    }

    #[inline]
    pub(crate) fn get(&mut self, slot: Slot) -> Option<&mut EgressQueue> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn find(&self, key: RingKey) -> Option<Slot> {
        self.slots.find(|queue| queue.key == key)
    }

    /// A kick came for `slot`, or there is room to write: more are needed only while frames are enqueued. Returns which ring it is,
    /// and whether it has its first receive buffer now.
    pub(crate) fn kicked(&mut self, slot: Slot) -> Option<(RingKey, bool)> {
        let queue = self.slots.get_mut(slot)?;
        let first = queue.start();
        if let Sink::Other(end) = &mut queue.sink {
            end.wake();
            // Frames that were placed before and found no room are written first.
            queue.touch(slot, &mut self.touched);
        }
        Some((queue.key, first))
    }

    /// Removes an egress queue; `returned` is called with each packet that was enqueued for it.
    pub(crate) fn remove(&mut self, slot: Slot, mut returned: impl FnMut(&Packet)) -> Option<EgressQueue> {
        let mut queue = self.slots.remove(slot)?;
        let (port, taps) = (queue.key.port, &mut self.work.taps);
        let drop = |packet: &Packet| {
            taps.dropped(packet, port, DropReason::ReceiverAbsent);
            returned(packet);
        };
        queue.turns.remove_if(&mut self.wait_queue, |_| true, drop);
        self.waiting.retain(|&other| other != slot);
        self.lines.retain(|&other| other != slot);
        self.arrivals.forget(slot);
        self.notifications.forget(slot);
        self.fair_queues -= usize::from(queue.fair_queue.is_some());
        Some(queue)
    }

    /// Uses the link emulation of `port` for frames to it from now on, or none.
    pub(crate) fn follow_path(&mut self, port: PortId) {
        for (slot, queue) in self.slots.iter_mut() {
            if queue.key.port != port {
                continue;
            }
            match (&mut queue.line, queue.port.path()) {
                (Some(line), Some(path)) => line.set_path(path),
                // It ends once all frames in flight have arrived.
                (Some(line), None) => line.set_path(Arc::new(Path::from(&Impairment::default()))),
                (None, Some(_)) => queue.line = DelayLine::before(&queue.port, queue.key.pair).map(Box::new),
                (None, None) => {}
            }
            // Its emulation may have ended.
            self.arrivals.expect(slot, 0);
        }
    }

    /// Whether any frame is enqueued for `port`, or in flight on its emulated link.
    pub(crate) fn has_under_way(&mut self, port: PortId) -> bool {
        self.slots.iter_mut().any(|(_, queue)| queue.key.port == port && queue.has_under_way())
    }

    /// Whether any frame is enqueued, or in flight on an emulated link.
    pub(crate) fn has_any_under_way(&mut self) -> bool {
        self.slots.iter_mut().any(|(_, queue)| queue.has_under_way())
    }

    /// All of them.
    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (Slot, &mut EgressQueue)> {
        self.slots.iter_mut()
    }

    /// Views of the receive queues of `port`, for the operator.
    pub(crate) fn views(&mut self, port: PortId, now: Cycles) -> Vec<QueueView> {
        self.slots.iter_mut().filter(|(_, queue)| queue.key.port == port).filter_map(|(_, queue)| queue.view(now)).collect()
    }

    pub(crate) fn set_route(&mut self, port: PortId, entries: Vec<RouteEntry>) {
        if let Some(route) = self.routes.get_mut(port.index()) {
            *route = entries;
        }
    }

    /// The queues of `port`: none if this worker does not know it.
    #[inline]
    fn entries(&self, port: PortId) -> &[RouteEntry] {
        self.routes.get(port.index()).map_or(&[], |entries| &entries[..])
    }

    /// The queue of `port` for `packet`, by its flow hash: a flow keeps to one queue, and so keeps its order.
    #[inline]
    pub(crate) fn route(&self, port: PortId, packet: &Packet) -> Option<RouteEntry> {
        match self.entries(port) {
            [] => None,
            [only] => Some(*only),
            many => Some(many[packet.flow_hash() as usize % many.len()]),
        }
    }

    /// A queue of `port` that is served here.
    pub(crate) fn route_here(&self, port: PortId) -> Option<Slot> {
        self.entries(port).iter().find(|entry| entry.worker == self.worker).map(|entry| entry.slot)
    }

    /// Delivers `packet`, of a sender with weight `weight`, at `slot` if no frame is ahead of it and there is room.
    #[inline]
    pub(crate) fn send(&mut self, slot: Slot, packet: &mut Packet, weight: Weight) -> SendOutcome {
        let Some(queue) = self.slots.get_mut(slot) else { return SendOutcome::Dropped(DropReason::ReceiverAbsent) };
        if queue.line.is_some() {
            let sent = queue.send_along_line(packet, self.now, &mut self.work);
            queue.touch(slot, &mut self.touched);
            if let Some(due) = queue.arrival().filter(|_| !queue.at_hand) {
                self.arrivals.expect(slot, due.saturating_sub(self.times.early));
            }
            return sent;
        }
        if queue.turns.waiting() > 0 || !queue.admit(packet.source, self.now, &mut self.fair_queues) {
            return SendOutcome::MustWait;
        }
        let segments_before = packet.segments_done;
        let sent = queue.place(packet, self.now, &mut self.faults, &mut self.work);
        if sent == SendOutcome::Done
            && let Some(fair_queue) = &mut queue.fair_queue
        {
            fair_queue.went(packet.source, weight, packet.length.max(SHORTEST).into());
        }
        if sent == SendOutcome::Done || packet.segments_done > segments_before || queue.has_unshown() {
            queue.touch(slot, &mut self.touched);
        }
        sent
    }

    /// Fast path: carries up to `most` frames that fit the match mask of `key` from `transmit` to the receive queue, if this worker
    /// serves the receiver and no frame is enqueued for it; returns how many, and their bytes. They are counted in `sizes`.
    #[inline]
    pub(crate) fn fast_path(
        &mut self,
        transmit: &mut TransmitQueue,
        key: FastPathKey<'_>,
        most: u16,
        slice: &mut Slice,
        sizes: &FrameSizes,
    ) -> (u16, u64) {
        let FastPathKey { sender, weight, masks, port } = key;
        let &[entry] = self.entries(port) else { return (0, 0) };
        let Some(queue) = self.slots.get_mut(entry.slot) else { return (0, 0) };
        let admitted = queue.admit(sender, self.now, &mut self.fair_queues);
        let Sink::Ring(receive) = &mut queue.sink else { return (0, 0) };
        let by_turns = queue.turns.waiting() > 0 || queue.port.policy.receive.is_set() || queue.line.is_some();
        if entry.worker != self.worker || !queue.open || by_turns || !admitted || !fast_path::may_carry(transmit, receive) {
            return (0, 0);
        }
        let (mut frames, mut bytes) = (0, 0);
        while frames < most {
            match receive.read_ahead(most - frames) {
                Ok(0) => break,
                Ok(_) => {}
                Err(fault) => {
                    queue.fail(fault, &mut self.faults);
                    break;
                }
            }
            let count = |length, frames: u16| sizes.add_frames(length, frames.into());
            let carried = if masks.further.is_empty() {
                fast_path::carry(transmit, receive, masks.head, most - frames, count)
            } else {
                fast_path::carry_narrowly(transmit, receive, (masks.head, masks.further), most - frames, count)
            };
            frames += carried.0;
            bytes += carried.1;
            self.work.work_units += u64::from(carried.0) * work_units::FRAME + carried.1;
            if carried.0 == 0 || slice.is_over(self.work.work_units) {
                break;
            }
        }
        queue.frames += u64::from(frames);
        queue.bytes += bytes;
        if frames > 0 {
            if let Some(fair_queue) = &mut queue.fair_queue {
                fair_queue.went(sender, weight, bytes);
            }
            queue.stalled = false;
            queue.touch(entry.slot, &mut self.touched);
            if self.work.sampler.takes(frames) {
                queue.port.counters(self.worker.into()).waits.add(0);
            }
        }
        (frames, bytes)
    }

    /// Floods `packet`, of a sender with this `weight`, to all `ports` but the sender that are served here. Where there is no room
    /// it is enqueued if allowed: returns at how many ports it is; `missed` is called for ports that miss it. A large or GSO frame
    /// is enqueued too once many ports had it: the work for one guest at a time does not depend on how many others there are.
    pub(crate) fn flood(
        &mut self,
        packet: &mut Packet,
        ports: &[PortId],
        weight: Weight,
        passage: impl Fn(PortId) -> Passage,
        mut missed: impl FnMut(PortId, DropReason),
    ) -> u16 {
        let (mut held, length) = (0, packet.length);
        // The frame with another tag, for receivers that need it: all need the same.
        let mut retagged: Option<Packet> = None;
        let enough = self.work.work_units + work_units::TURN;
        let mut costly = packet.length > QUANTUM || !packet.header.is_plain();
        for &port in ports {
            if port == packet.source {
                continue;
            }
            let passage = passage(port);
            if passage == Passage::None {
                continue;
            }
            let waits = costly && self.work.work_units >= enough;
            let Some(entry) = self.route(port, packet).filter(|entry| entry.worker == self.worker) else { continue };
            let packet = match passage {
                Passage::Retagged(change) => {
                    let packet = retagged.get_or_insert_with(|| packet.clone());
                    if packet.length == length && !packet.retag(change) {
                        continue;
                    }
                    packet
                }
                Passage::Same | Passage::None => &mut *packet,
            };
            packet.segments_done = 0;
            match if waits { SendOutcome::MustWait } else { self.send(entry.slot, packet, weight) } {
                SendOutcome::Done => {}
                SendOutcome::MustWait
                    if self.may_flood_wait(entry.slot, packet) && self.enqueue(entry.slot, packet, self.now).is_ok() =>
                {
                    held += 1;
                }
                SendOutcome::MustWait => {
                    self.work.taps.dropped(packet, port, DropReason::FloodNoRoom);
                    missed(port, DropReason::FloodNoRoom);
                }
                SendOutcome::Dropped(reason) => {
                    self.work.taps.dropped(packet, port, reason);
                    // Slow page faults are bounded like large frames.
                    costly |= matches!(reason, DropReason::SenderMemory | DropReason::ReceiverMemory);
                    missed(port, reason);
                }
            }
        }
        held
    }

    /// Whether a flooded `packet` may be enqueued at `slot`: a few of each sender may, so that a busy receiver does not miss
    /// address resolution (ARP).
    fn may_flood_wait(&self, slot: Slot, packet: &Packet) -> bool {
        let Some(queue) = self.slots.get(slot) else { return false };
        let room = 4 * self.wait_queue.used() < 3 * self.wait_queue.most();
        packet.reach == Reach::Many && room && !queue.stalled && queue.turns.waiting_of(packet.source) < FLOODS
    }

    /// Whether any frame is enqueued at `slot`.
    pub(crate) fn have_turns(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_some_and(|queue| queue.turns.waiting() > 0)
    }

    /// Backpressure: a frame of `sender` that found no room at `slot` was left in its ring. With a second such sender, fair
    /// queueing of blocked senders begins.
    pub(crate) fn note_backpressured(&mut self, slot: Slot, sender: PortId) {
        let Some(queue) = self.slots.get_mut(slot) else { return };
        let last = queue.backpressured_last.replace((sender, self.now));
        let among_others =
            last.is_some_and(|(other, when)| other != sender && self.now.wrapping_sub(when) < self.times.stuck_after);
        if among_others && queue.fair_queue.is_none() {
            queue.fair_queue = Some(Box::new(FairQueue::new(self.now, 100 * self.times.stuck_after)));
            self.fair_queues += 1;
        }
        let lets_pass = queue.lets_pass(self.times.stuck_after, self.now);
        match &mut queue.fair_queue {
            Some(fair_queue) if lets_pass => fair_queue.clear_backlog(sender),
            Some(fair_queue) => fair_queue.came(sender),
            None => {}
        }
    }

    /// True if any egress queue has fair queueing of blocked senders.
    #[inline]
    pub(crate) fn have_races(&self) -> bool {
        self.fair_queues > 0
    }

    /// `sender` is not backlogged for `receiver` any more, except for a frame that backpressure left in its ring for slot
    /// `backpressured`.
    pub(crate) fn clear_backlog(&mut self, receiver: PortId, sender: PortId, backpressured: Option<Slot>) {
        let entries = self.routes.get(receiver.index()).into_iter().flatten();
        let worker = self.worker;
        for entry in entries.filter(|entry| entry.worker == worker && Some(entry.slot) != backpressured) {
            if let Some(EgressQueue { fair_queue: Some(fair_queue), .. }) = self.slots.get_mut(entry.slot) {
                fair_queue.clear_backlog(sender);
            }
        }
    }

    /// Whether the switch holds back the frames of `sender` for `slot` by a rate limit or by fair queueing, so that the receiver is
    /// not the cause.
    pub(crate) fn hold_back(&mut self, slot: Slot, sender: PortId) -> bool {
        let Some(queue) = self.slots.get_mut(slot) else { return false };
        !queue.port.policy.receive.is_open(self.now) || !queue.admit(sender, self.now, &mut self.fair_queues)
    }

    /// Health of the receiver at `slot`.
    pub(crate) fn health(&mut self, slot: Slot, now: Cycles) -> Health {
        let stuck_after = self.times.stuck_after;
        match self.get(slot) {
            Some(queue) if queue.stalled => Health::Stalled,
            Some(queue) if queue.is_stuck_for(stuck_after, now) => Health::Stuck,
            _ => Health::Moving,
        }
    }

    /// The receiver at `slot` has exceeded the stall timeout.
    pub(crate) fn stall(&mut self, slot: Slot) {
        let now = self.now;
        if let Some(queue) = self.get(slot) {
            queue.stall(now);
        }
    }

    /// Whether another frame of `sender` can be enqueued here at all.
    pub(crate) fn can_enqueue(&self, sender: PortId) -> bool {
        self.wait_queue.has_room(sender)
    }

    /// Enqueues a copy of `packet` at `slot`.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(crate) fn enqueue(&mut self, slot: Slot, packet: &Packet, now: Cycles) -> Result<(), DropReason> {
        let Some(queue) = self.slots.get_mut(slot) else { return Err(DropReason::ReceiverAbsent) };
        let spot = self.wait_queue.enqueue(packet.clone()).ok_or(DropReason::ReceiverFull)?;
        if queue.turns.waiting() == 0 {
            queue.notification.begin_to_stand(now, &self.times.spans);
            self.waiting.push_back(slot);
        }
        queue.turns.push(packet.source, spot, &mut self.wait_queue);
        queue.touch(slot, &mut self.touched);
        self.expect(slot, now);
        Ok(())
    }

    /// Fair queueing: serves the enqueued frames that can be delivered now, in bounded parts, by the weights of senders, and drops
    /// the frames of receivers that exceeded the stall timeout. `met` is called with each packet that is done with, or of which
    /// some segments were delivered, its port, and its outcome.
    pub(crate) fn serve_waiting(
        &mut self,
        now: Cycles,
        weight_of: impl Fn(PortId) -> Weight,
        mut met: impl FnMut(&Packet, PortId, Outcome),
    ) {
        let mut slice = Slice::new(self.work.work_units, work_units::WAITING);
        for _ in 0..self.waiting.len() {
            if slice.is_over(self.work.work_units) {
                return;
            }
            let Some(slot) = self.waiting.pop_front() else { return };
            if let Some(queue) = self.slots.get_mut(slot) {
                queue.turns.weigh(&weight_of);
            }
            self.serve_slot(slot, now, &mut met);
            if self.get(slot).is_some_and(|queue| queue.turns.waiting() > 0) {
                self.waiting.push_back(slot);
            }
        }
    }

    fn serve_slot(&mut self, slot: Slot, now: Cycles, met: &mut impl FnMut(&Packet, PortId, Outcome)) {
        let Some(queue) = self.slots.get_mut(slot) else { return };
        let port = queue.key.port;
        // Whether there is anything to publish, and whether a frame was delivered in its turn.
        let (mut moved, mut advanced) = (false, false);
        // Length from which on frames find no room where shorter ones may.
        let mut too_long = u32::MAX;
        // Length of the frame that found no room.
        let mut waits = u32::MAX;
        let mut slice = Slice::new(self.work.work_units, work_units::TURN);
        for _ in 0..TURN {
            if slice.is_over(self.work.work_units) {
                break;
            }
            let Some(spot) = queue.turns.next_below(too_long, &self.wait_queue) else { break };
            let packet = self.wait_queue.packet(spot);
            let (length, before) = (packet.length, packet.segments_done);
            let sent = queue.place(packet, now, &mut self.faults, &mut self.work);
            let segments = packet.segments_done - before;
            moved |= sent == SendOutcome::Done || segments > 0;
            advanced |= moved && too_long == u32::MAX;
            match sent {
                SendOutcome::Done => met(packet, port, Outcome::Delivered(port, segments)),
                SendOutcome::MustWait if segments > 0 => met(packet, port, Outcome::DeliveredInPart(port, segments)),
                SendOutcome::MustWait => {}
                SendOutcome::Dropped(reason) => {
                    self.work.taps.dropped(packet, port, reason);
                    met(packet, port, Outcome::Dropped(port, reason));
                }
            }
            if sent == SendOutcome::MustWait {
                if queue.lets_pass(self.times.stuck_after, now) {
                    too_long = length;
                    continue;
                }
                waits = length;
                break;
            }
            queue.turns.served(&mut self.wait_queue);
        }
        if moved || queue.has_unshown() {
            queue.touch(slot, &mut self.touched);
        }
        // Where a rate limit holds back, the receiver is not the cause.
        if advanced || !queue.port.policy.receive.is_open(now) {
            queue.notification.begin_to_stand(now, &self.times.spans);
        } else if queue.is_stuck_for(self.times.stall_timeout, now) {
            queue.touch(slot, &mut self.touched);
            // A receiver that has just posted buffers is not stuck: head-of-line blocking by a frame too long for it ends, and
            // other frames stay.
            let too_long = if queue.has_buffers() { too_long.min(waits) } else { too_long };
            let times = (now, &self.times);
            let taps = &mut self.work.taps;
            queue.give_up(too_long, &mut self.wait_queue, times, |packet, reason| {
                taps.dropped(packet, port, reason);
                met(packet, port, Outcome::Dropped(port, reason));
            });
        } else if queue.call_again_if_stuck(now, &self.times, &mut self.faults) {
            queue.touch(slot, &mut self.touched);
        }
        queue.move_on_if_served(now);
        self.expect(slot, now);
    }

    /// Delivers the frames whose emulated delay is over; returns the number of frames. `dropped` is called for those that were not
    /// delivered. `packet` is scratch.
    pub(crate) fn serve_lines(&mut self, packet: &mut Packet, mut dropped: impl FnMut(PortId, DropReason)) -> u32 {
        self.take_arrivals();
        let mut frames = 0;
        let mut slice = Slice::new(self.work.work_units, work_units::WAITING);
        for _ in 0..self.lines.len() {
            if slice.is_over(self.work.work_units) {
                break;
            }
            let Some(slot) = self.lines.pop_front() else { break };
            let Some(queue) = self.slots.get_mut(slot) else { continue };
            let (served, moved) = queue.serve_line(packet, self.now, &self.times, &mut self.faults, &mut self.work, &mut dropped);
            if moved {
                queue.touch(slot, &mut self.touched);
            }
            frames += served;
            queue.move_on_if_served(self.now);
            self.keep_at_hand(slot);
            self.expect(slot, self.now);
        }
        frames
    }

    /// Moves slots with an arrival about now to [`Self::lines`].
    fn take_arrivals(&mut self) {
        if !self.arrivals.is_due(self.now) {
            return;
        }
        let mut due = Vec::new();
        self.arrivals.take_due(self.now, &mut due);
        for slot in due {
            if let Some(queue) = self.slots.get_mut(slot).filter(|queue| !queue.at_hand) {
                queue.at_hand = true;
                self.lines.push_back(slot);
            }
        }
    }

    /// The emulated link of `slot` was served. It is served in the next poll iteration too if its next frame arrives soon, or if
    /// placed frames may be referred to by the receiver until this poll iteration ends. Else it is left alone until a frame
    /// arrives.
    fn keep_at_hand(&mut self, slot: Slot) {
        let Some(queue) = self.slots.get_mut(slot) else { return };
        let soon = self.now.saturating_add(self.times.early);
        let arrival = queue.arrival();
        queue.at_hand = arrival.is_some_and(|due| due <= soon) || queue.line.as_ref().is_some_and(|line| line.has_placed());
        if queue.at_hand {
            self.lines.push_back(slot);
        } else if let Some(due) = arrival {
            self.arrivals.expect(slot, due.saturating_sub(self.times.early));
        }
    }

    /// True if frames of link emulation arrive about now.
    #[inline]
    pub(crate) fn have_arrivals(&self) -> bool {
        !self.lines.is_empty() || self.arrivals.is_due(self.now)
    }

    /// True if a frame of link emulation arrives before a sleep would pay off.
    #[inline]
    pub(crate) fn expect_soon(&self, now: Cycles) -> bool {
        let soon = now.saturating_add(self.times.early);
        let mut at_hand = self.lines.iter().filter_map(|&slot| self.slots.get(slot));
        self.arrivals.is_due(now) || at_hand.any(|queue| queue.needs_pass_before(soon))
    }

    /// The next port whose ring broke a rule here.
    pub(crate) fn next_fault(&mut self) -> Option<(PortId, RingFault)> {
        self.faults.pop()
    }

    /// Removes all enqueued packets for which `condition` holds, because their transmit queue stops or moves.
    pub(crate) fn recall(&mut self, condition: impl Fn(&Packet) -> bool, mut returned: impl FnMut(&Packet, PortId)) {
        for (_, queue) in self.slots.iter_mut() {
            let port = queue.key.port;
            queue.turns.remove_if(&mut self.wait_queue, &condition, |packet| {
                self.work.taps.dropped(packet, packet.source, DropReason::SenderStopped);
                returned(packet, port);
            });
            queue.move_on_if_served(self.now);
        }
        let slots = &self.slots;
        self.waiting.retain(|&slot| slots.get(slot).is_some_and(|queue| queue.turns.waiting() > 0));
    }

    /// Publishes delivered frames on the used rings; true if there were any. [`Self::call`] is to follow, after a fence.
    pub(crate) fn publish(&mut self) -> bool {
        for &slot in &self.touched {
            if let Some(queue) = self.slots.get_mut(slot) {
                queue.show();
            }
        }
        !self.touched.is_empty()
    }

    /// Interrupts the drivers that asked for it about published frames, and counts.
    pub(crate) fn call<'c>(&mut self, counters: impl Fn(PortId) -> &'c PortCounters) {
        while let Some(slot) = self.touched.pop() {
            if let Some(queue) = self.slots.get_mut(slot) {
                queue.touched = false;
                if let Some(Err(fault)) = queue.sink.ring().map(Ring::call_if_wanted) {
                    queue.fail(fault, &mut self.faults);
                }
                queue.count(counters(queue.key.port));
                if queue.notification.happened() {
                    self.expect(slot, self.now);
                }
            }
        }
    }

    /// True if some timer is due.
    #[inline]
    pub(crate) fn has_due(&self, now: Cycles) -> bool {
        self.notifications.is_due(now)
    }

    /// Lost-notification check of the egress queues with an expired timer: sends interrupts that were kept back, and repeats those that
    /// seem lost. Receivers with enqueued frames are interrupted again where they are served.
    pub(crate) fn look_after_due<'c>(&mut self, counters: impl Fn(PortId) -> &'c PortCounters) {
        let mut due = Vec::new();
        self.notifications.take_due(self.now, &mut due);
        for slot in due {
            self.look_after(slot, &counters);
        }
    }

    fn look_after<'c>(&mut self, slot: Slot, counters: &impl Fn(PortId) -> &'c PortCounters) {
        let Some(queue) = self.slots.get_mut(slot) else { return };
        let counters = counters(queue.key.port);
        match queue.ring().map_or(Ok(false), Ring::call_kept) {
            Ok(false) if queue.look() => {
                queue.call_again(&mut self.faults);
                counters.repeated_interrupts.add(1);
            }
            Ok(_) => {}
            Err(fault) => queue.fail(fault, &mut self.faults),
        }
        if queue.ring().is_some_and(|ring| ring.keeps_call()) {
            // The check is to be repeated.
            queue.notification.happened();
        }
        queue.count(counters);
        self.expect(slot, self.now.saturating_add(1));
    }

    /// An interrupt of the driver at `slot` may be kept back.
    pub(crate) fn happened(&mut self, slot: Slot) {
        if self.slots.get_mut(slot).is_some_and(|queue| queue.notification.happened()) {
            self.expect(slot, self.now);
        }
    }

    /// Sets the timer of `slot` to the deadline of its notification state, as of `now`.
    fn expect(&mut self, slot: Slot, now: Cycles) {
        let due = self.slots.get_mut(slot).and_then(|queue| queue.due(now, &self.times));
        due.into_iter().for_each(|due| self.notifications.expect(slot, due.max(now)));
    }

    /// Shuts the egress queue of `port` at `slot`, while the port is throttled for its expensive buffers, or opens it again.
    pub(crate) fn shut(&mut self, slot: Slot, port: PortId, for_good: bool) {
        if let Some(queue) = self.get(slot).filter(|queue| queue.key.port == port) {
            queue.shut_until = if for_good { Cycles::MAX } else { 0 };
        }
    }

    /// True while any frame is enqueued.
    pub(crate) fn anything_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Arms the receiver at `slot`, for a kick when it posts buffers; true if it has new buffers already.
    pub(crate) fn arm(&mut self, slot: Slot) -> bool {
        let now = self.now;
        self.get(slot).is_some_and(|queue| queue.arm(now))
    }

    /// Arms every receiver with enqueued frames; true if one of them has new buffers already.
    pub(crate) fn arm_waiting(&mut self) -> bool {
        let mut news = false;
        for &slot in self.waiting.iter().chain(&self.lines) {
            if let Some(queue) = self.slots.get_mut(slot)
                && queue.awaits_room(self.now)
            {
                news |= queue.arm(self.now);
            }
        }
        news
    }

    /// When the rate limit of the receiver at `slot` opens, if it holds back now.
    pub(crate) fn opens_at(&self, slot: Slot, now: Cycles) -> Option<Cycles> {
        let limiter = &self.slots.get(slot)?.port.policy.receive;
        (!limiter.is_open(now)).then(|| limiter.opens_at())
    }

    /// The next deadline: an expired timer, a stall timeout, a rate limit that opens, an arrival by link emulation.
    pub(crate) fn deadline(&self) -> Option<Cycles> {
        self.notifications.next().into_iter().chain(self.arrivals.next()).min()
    }
}
