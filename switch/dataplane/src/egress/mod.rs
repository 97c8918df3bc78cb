//! Egress: receive queues and TAPs, the frames that wait for each, and the routes to them.
//!
//! - A packet is **offered** to the receive queue that its flow is routed to ([`Egress::route`], [`Egress::offer`]): it is delivered,
//!   enqueued, blocked in its sender's ring, or dropped.
//! - An [`EgressQueue`] is one of them: its [`Sink`], its [`receiver`], and the frames that wait for it. Enqueued packets lie
//!   in one [`WaitQueue`] of the worker. Link emulation delays frames before they get there ([`delay`]).
//! - Senders are held abreast by fair queueing, whether their frames are enqueued or blocked ([`account`]); the flows of one sender
//!   are served in an order of their own ([`flows`]).
//! - Head-of-line blocking is bounded: the number of frames that wait by one dynamic threshold ([`quota`]), their time by the stall
//!   timeout ([`receiver`]).
//! - Queues with frames are **drained** in each poll iteration ([`Egress::drain`]); frames of a sender that stops are **recalled**
//!   ([`Egress::recall`]).

#![expect(clippy::indexing_slicing, reason = "all of a slice, and a number modulo the length of a list that is not empty")]

mod account;
mod delay;
mod flows;
mod queue;
mod quota;
mod receiver;
mod sink;
mod wait_queue;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::copy::Block;
use crate::cpu_time::slice::Slice;
use crate::cpu_time::work_units;
use crate::frame::SHORTEST;
use crate::held::HeldLine;
use crate::id::{Direction, PortId, RingKey, RouteEntry, Slot};
use crate::link::{Impairment, Path};
use crate::outcome::Outcome;
use crate::packet::{Packet, Reach};
use crate::port::queue_view::QueueView;
use crate::record::{LastDecision, MOST_IN_BATCH, Recorder};
use crate::ring::{PlaceOutcome, ReceiveQueue, Ring, RingFault, TransmitQueue, fast_path};
use crate::settings::Settings;
use crate::slots::Slots;
use crate::stats::{DropReason, FrameSizes, PortCounters};
use crate::tap::Watch;
use crate::time::{Cycles, in_cycles};
use crate::timers::Timers;
use crate::tuning::FLOODS;
pub use crate::tuning::QUANTUM;
use crate::verdict::Masks;
use crate::verdict::flooded::Passage;
use crate::weight::Weight;
pub use account::Accounts;
use delay::DelayLine;
pub(crate) use queue::EgressQueue;
use queue::{Drain, Work};
pub(crate) use quota::RingQuota;
pub(crate) use receiver::Readiness;
use receiver::Times;
pub(crate) use sink::Sink;
pub use wait_queue::WaitQueue;

/// Work units for enqueued frames, or for frames of link emulation, after which the rest is left to the next poll iteration.
const WAITING: u64 = 2 * work_units::TURN;

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
    /// The decision of which they have the verdict, if a recorder knows it.
    pub last: Option<&'c LastDecision>,
}

/// Outcome of an offered packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The receiver has it.
    Delivered,
    /// The packet is enqueued: its descriptor chain is in flight.
    Queued,
    /// Backpressure: its descriptor chain stays in the transmit ring, to be offered again.
    Blocked,
    /// The packet cannot be delivered, for this reason.
    Dropped(DropReason),
}

/// How a packet waits that found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Enqueue,
    Block,
    Drop(DropReason),
}

/// State of a queue that a packet found without room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    pub receiver: Readiness,
    /// Packets are enqueued for it already.
    pub has_queue: bool,
    /// Packets of the sender that are.
    pub own_queue: u32,
    /// The worker has a place for another packet of the sender.
    pub has_place: bool,
    /// The switch holds the sender's frames back, by a rate limit or by fair queueing.
    pub is_held_back: bool,
    pub now: Cycles,
}

/// The origin of offered packets: decides how one waits, within its quotas.
pub(crate) trait Origin {
    fn wait(&mut self, packet: &Packet, congestion: Congestion) -> Wait;
}

/// Origin of packets in flight from other workers.
#[derive(Debug)]
pub(crate) struct InFlight;

impl Origin for InFlight {
    fn wait(&mut self, _: &Packet, _: Congestion) -> Wait {
        Wait::Enqueue
    }
}

/// Origin of flooded packets: a few of each sender are enqueued, so that a busy receiver does not miss address resolution (ARP).
#[derive(Debug)]
struct Flooded;

impl Origin for Flooded {
    fn wait(&mut self, packet: &Packet, congestion: Congestion) -> Wait {
        let may = packet.reach == Reach::Many && congestion.has_place && congestion.receiver != Readiness::Stalled;
        if may && congestion.own_queue < FLOODS { Wait::Enqueue } else { Wait::Drop(DropReason::FloodNoRoom) }
    }
}

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
    /// Slots that are drained in every poll iteration, the one that is served next first: with enqueued frames, or at which a frame
    /// of link emulation has arrived or will soon.
    active: VecDeque<Slot>,
    /// Until then several senders may have accounts at the same receiver.
    contended_until: Cycles,
    /// Timers of the next arrivals by link emulation, a little before.
    arrivals: Timers,
    /// Timers of the notification states.
    notifications: Timers,
    /// Work done here.
    pub work: Work,
    times: Times,
    now: Cycles,
}

/// The copies of a flooded frame.
struct FloodCopies {
    /// Length of the frame with the tag that it came with.
    length: u32,
    /// The frame with another tag, for receivers that need it: all need the same.
    retagged: Option<Packet>,
    /// Whether a copy may be expensive: of a large or GSO frame, or one that met slow page faults.
    costly: bool,
    /// Work units of the worker from which on expensive copies are enqueued instead of made.
    enough: u64,
}

impl FloodCopies {
    fn new(packet: &Packet, work_units: u64) -> Self {
        Self {
            length: packet.length,
            retagged: None,
            costly: packet.length > QUANTUM || !packet.header.is_plain(),
            enough: work_units + work_units::TURN,
        }
    }

    fn are_expensive(&self, work_units: u64) -> bool {
        self.costly && work_units >= self.enough
    }

    /// The frame for a receiver with this `passage`; `None` if it cannot have the tag that it needs.
    fn of<'a>(&'a mut self, packet: &'a mut Packet, passage: Passage) -> Option<&'a mut Packet> {
        let Passage::Retagged(change) = passage else { return Some(packet) };
        let retagged = self.retagged.get_or_insert_with(|| packet.clone());
        (retagged.length != self.length || retagged.retag(change)).then_some(retagged)
    }

    /// A copy was not made. Slow page faults are bounded like large frames.
    fn dropped(&mut self, reason: DropReason) {
        self.costly |= matches!(reason, DropReason::SenderMemory | DropReason::ReceiverMemory);
    }
}

impl Egress {
    pub(crate) fn new(worker: u8, settings: &Settings) -> Self {
        Self {
            worker,
            slots: Slots::default(),
            routes: Vec::new(),
            wait_queue: WaitQueue::new(settings.wait_queue, 0),
            touched: Vec::new(),
            active: VecDeque::new(),
            contended_until: 0,
            arrivals: Timers::default(),
            notifications: Timers::default(),
            work: Work { worker, ..Work::default() },
            times: Times::new(in_cycles(settings.stall_timeout)),
            now: 0,
        }
    }

    /// A poll iteration begins in moment `now`.
    pub(crate) fn begin_iteration(&mut self, now: Cycles) {
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
            queue.touch(&mut self.touched);
        }
        Some((queue.key, first))
    }

    /// Removes an egress queue, whose port has these `counters`; `returned` is called with each packet that was enqueued for it. `packet` is
    /// scratch.
    pub(crate) fn remove(
        &mut self,
        slot: Slot,
        packet: &mut Packet,
        counters: &PortCounters,
        mut returned: impl FnMut(&Packet),
    ) -> Option<EgressQueue> {
        let mut queue = self.slots.remove(slot)?;
        let (port, taps) = (queue.key.port, &mut self.work.taps);
        let drop = |packet: &Packet| {
            taps.dropped(packet, port, DropReason::ReceiverAbsent);
            returned(packet);
        };
        queue.accounts.remove_if(&mut self.wait_queue, |_| true, drop);
        queue.end(packet, counters, &mut self.work);
        self.active.retain(|&other| other != slot);
        self.arrivals.forget(slot);
        self.notifications.forget(slot);
        Some(queue)
    }

    /// Uses the link emulation of `port` for frames to it from now on, or none.
    pub(crate) fn follow_path(&mut self, port: PortId) {
        for (_, queue) in self.slots.iter_mut() {
            if queue.key.port != port {
                continue;
            }
            match (&mut queue.line, queue.port.path()) {
                (Some(line), Some(path)) => line.set_path(path),
                // The emulation ends once all frames in flight have arrived.
                (Some(line), None) => line.set_path(Arc::new(Path::from(&Impairment::default()))),
                (None, Some(_)) => queue.line = DelayLine::before(&queue.port, queue.key.pair).map(Box::new),
                (None, None) => {}
            }
            // The queue's emulation may have ended.
            queue.activate(&mut self.active);
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

    /// Offers `packet`, of a sender with weight `weight`, to the receiver at `slot`. Without room it waits as its `origin` decides.
    #[inline]
    pub(crate) fn offer(&mut self, slot: Slot, packet: &mut Packet, weight: Weight, origin: &mut impl Origin) -> Offered {
        match self.send(slot, packet, weight) {
            PlaceOutcome::Complete(_) => Offered::Delivered,
            PlaceOutcome::NoRoom => self.wait(slot, packet, origin),
            PlaceOutcome::Refused(reason) => Offered::Dropped(reason),
        }
    }

    /// Delivers `packet` at `slot` if no frame is ahead of it and there is room.
    #[inline]
    pub(crate) fn send(&mut self, slot: Slot, packet: &mut Packet, weight: Weight) -> PlaceOutcome {
        let Some(queue) = self.slots.get_mut(slot) else { return PlaceOutcome::Refused(DropReason::ReceiverAbsent) };
        if queue.line.is_some() {
            let must_wait = packet.segments_done == 0 && queue.keeps_order(self.now);
            return if must_wait { PlaceOutcome::NoRoom } else { self.send_along_line(slot, packet) };
        }
        if queue.accounts.waiting() > 0 || !queue.admit(packet.source, self.now) {
            return PlaceOutcome::NoRoom;
        }
        let segments_before = packet.segments_done;
        let sent = queue.place(packet, self.now, &mut self.work);
        let is_sent = matches!(sent, PlaceOutcome::Complete(_));
        if is_sent && queue.accounts.is_contended() {
            queue.accounts.went(packet.source, weight, packet.length.max(SHORTEST).into());
            self.contended_until = self.now.saturating_add(self.times.account_memory);
        }
        if is_sent || packet.segments_done > segments_before || queue.has_unshown() {
            queue.touch(&mut self.touched);
        }
        sent
    }

    /// Link emulation: sends `packet` along the emulated link at `slot`.
    fn send_along_line(&mut self, slot: Slot, packet: &mut Packet) -> PlaceOutcome {
        let Some(queue) = self.slots.get_mut(slot) else { return PlaceOutcome::Refused(DropReason::ReceiverAbsent) };
        let sent = queue.send_along_line(packet, self.now, &mut self.work);
        queue.touch(&mut self.touched);
        self.expect_arrival(slot);
        sent
    }

    /// `packet` found no room at `slot`: it waits as its `origin` decides.
    #[inline(never)]
    fn wait(&mut self, slot: Slot, packet: &Packet, origin: &mut impl Origin) -> Offered {
        let Some(queue) = self.slots.get_mut(slot) else { return Offered::Dropped(DropReason::ReceiverAbsent) };
        let congestion = Congestion {
            receiver: queue.receiver.readiness(self.now, &self.times),
            has_queue: queue.accounts.waiting() > 0,
            own_queue: queue.accounts.waiting_of(packet.source),
            has_place: self.wait_queue.has_room(packet.source),
            is_held_back: queue.holds_back(packet.source, self.now),
            now: self.now,
        };
        match origin.wait(packet, congestion) {
            Wait::Enqueue => self.enqueue(slot, packet),
            Wait::Block => {
                self.note_blocked(slot, packet.source);
                Offered::Blocked
            }
            Wait::Drop(reason) => {
                if reason == DropReason::ReceiverStalled {
                    queue.receiver.stall(self.now);
                }
                Offered::Dropped(reason)
            }
        }
    }

    /// Enqueues a copy of `packet` at `slot`.
    fn enqueue(&mut self, slot: Slot, packet: &Packet) -> Offered {
        let Some(queue) = self.slots.get_mut(slot) else { return Offered::Dropped(DropReason::ReceiverAbsent) };
        let Some(spot) = self.wait_queue.enqueue(packet.clone()) else { return Offered::Dropped(DropReason::ReceiverFull) };
        if queue.accounts.waiting() == 0 {
            queue.receiver.stand_still(true, self.now, &self.times);
            queue.activate(&mut self.active);
        }
        queue.accounts.begin_iteration(self.now);
        queue.accounts.push(packet.source, spot, &mut self.wait_queue);
        queue.touch(&mut self.touched);
        self.note_contention(slot);
        self.expect(slot, self.now);
        Offered::Queued
    }

    /// Backpressure: a frame of `sender` that found no room at `slot` was left in its ring.
    fn note_blocked(&mut self, slot: Slot, sender: PortId) {
        let Some(queue) = self.slots.get_mut(slot) else { return };
        queue.accounts.begin_iteration(self.now);
        queue.accounts.came(sender);
        if queue.lets_pass(self.times.full_after, self.now) {
            queue.accounts.clear_backlog(sender);
        }
        self.note_contention(slot);
    }

    /// Records whether several senders wait for the receiver at `slot`.
    fn note_contention(&mut self, slot: Slot) {
        if self.slots.get(slot).is_some_and(|queue| queue.accounts.is_contended()) {
            self.contended_until = self.now.saturating_add(self.times.account_memory);
        }
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
        let FastPathKey { sender, weight, masks, port, last } = key;
        let &[entry] = self.entries(port) else { return (0, 0) };
        let Some(queue) = self.slots.get_mut(entry.slot) else { return (0, 0) };
        let is_free = queue.admit(sender, self.now) && queue.is_free();
        let Sink::Ring(receive) = &mut queue.sink else { return (0, 0) };
        if entry.worker != self.worker || !is_free || !fast_path::may_carry(transmit, receive) {
            return (0, 0);
        }
        receive.set_longest(queue.port.longest_frame());
        let Work { taps, work_units, recorder, .. } = &mut self.work;
        let record = match (recorder, last) {
            (None, _) => None,
            (Some(recorder), Some(last)) => Some(Record { recorder, last, way: (sender, port), now: self.now }),
            // The next frame is decided on anew.
            (Some(_), None) => return (0, 0),
        };
        let watch = if taps.are_on() { taps.watch(sender, port, masks) } else { Some(Watch::Off) };
        let Some(watch) = watch else { return (0, 0) };
        let carried = carry((transmit, receive), (masks, watch, record), most, work_units, slice, sizes);
        let Carried { frames, bytes, fault } = carried;
        if let Some(fault) = fault {
            queue.fail(fault, &mut self.work);
        }
        queue.frames += u64::from(frames);
        queue.bytes += bytes;
        if frames > 0 {
            if queue.accounts.is_contended() {
                queue.accounts.went(sender, weight, bytes);
                self.contended_until = self.now.saturating_add(self.times.account_memory);
            }
            queue.receiver.took();
            queue.touch(&mut self.touched);
            if self.work.sampler.takes(frames) {
                queue.port.counters(self.worker.into()).sample(sender, 0, self.now);
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
        let (mut held, mut copies) = (0, FloodCopies::new(packet, self.work.work_units));
        for &port in ports {
            if port == packet.source {
                continue;
            }
            let passage = passage(port);
            if passage == Passage::None {
                continue;
            }
            let waits = copies.are_expensive(self.work.work_units);
            let Some(entry) = self.route(port, packet).filter(|entry| entry.worker == self.worker) else { continue };
            if let Passage::Dropped(reason) = passage {
                self.work.taps.dropped(packet, port, reason);
                missed(port, reason);
                continue;
            }
            let Some(packet) = copies.of(packet, passage) else { continue };
            match self.offer_flooded(entry.slot, packet, weight, waits) {
                Offered::Delivered => {}
                Offered::Queued => held += 1,
                Offered::Blocked => missed(port, DropReason::FloodNoRoom),
                Offered::Dropped(reason) => {
                    self.work.taps.dropped(packet, port, reason);
                    copies.dropped(reason);
                    missed(port, reason);
                }
            }
        }
        held
    }

    /// Offers a flooded packet, or only enqueues it if it `waits`.
    fn offer_flooded(&mut self, slot: Slot, packet: &mut Packet, weight: Weight, waits: bool) -> Offered {
        packet.segments_done = 0;
        if waits { self.wait(slot, packet, &mut Flooded) } else { self.offer(slot, packet, weight, &mut Flooded) }
    }

    /// True if several senders may have accounts at the same receiver.
    #[inline]
    pub(crate) fn has_contention(&self) -> bool {
        self.now < self.contended_until
    }

    /// `sender` is not backlogged for `receiver` any more, except for a frame that backpressure left in its ring for slot
    /// `backpressured`.
    pub(crate) fn clear_backlog(&mut self, receiver: PortId, sender: PortId, backpressured: Option<Slot>) {
        let entries = self.routes.get(receiver.index()).into_iter().flatten();
        let worker = self.worker;
        for entry in entries.filter(|entry| entry.worker == worker && Some(entry.slot) != backpressured) {
            if let Some(queue) = self.slots.get_mut(entry.slot) {
                queue.accounts.clear_backlog(sender);
            }
        }
    }

    /// Sets an emulated link before the queue at `slot`, if it has none: one that delays nothing.
    pub(crate) fn begin_line(&mut self, slot: Slot) {
        if let Some(queue) = self.slots.get_mut(slot) {
            queue.begin_line();
            queue.activate(&mut self.active);
        }
    }

    /// Moves all enqueued packets to the emulated links of their receivers, in moment `now`. `met` is called with each, its port, and its outcome.
    pub(crate) fn move_to_lines(&mut self, now: Cycles, mut met: impl FnMut(&Packet, PortId, Outcome)) {
        for (_, queue) in self.slots.iter_mut() {
            queue.move_to_line(&mut self.wait_queue, now, &mut self.work, &mut met);
            if queue.line.is_some() {
                queue.activate(&mut self.active);
            }
        }
    }

    /// Takes all frames in flight on emulated links away, with the links, in moment `now`.
    pub(crate) fn hold_lines(&mut self, now: Cycles) -> Vec<HeldLine> {
        let mut held = Vec::new();
        for (_, queue) in self.slots.iter_mut() {
            held.extend(queue.hold_line(now));
            queue.touch(&mut self.touched);
        }
        held
    }

    /// Continues an emulated link that was taken away, from moment `now` on; `None` where its queue is gone.
    pub(crate) fn go_on(&mut self, held: HeldLine, now: Cycles) -> Option<()> {
        let key = RingKey { port: held.port, pair: held.pair, direction: Direction::Receive };
        let queue = self.find(key).and_then(|slot| self.slots.get_mut(slot))?;
        queue.go_on(held, now);
        queue.touch(&mut self.touched);
        queue.activate(&mut self.active);
        Some(())
    }

    /// Drains the queues of receivers that have room, each for a service quantum, by the weights of senders; those of stalled
    /// receivers are dropped. `met` is called with each packet that is done with, or of which some segments were delivered, its
    /// port, and its outcome. `packet` is scratch.
    pub(crate) fn drain(
        &mut self,
        packet: &mut Packet,
        weight_of: impl Fn(PortId) -> Weight,
        mut met: impl FnMut(&Packet, PortId, Outcome),
    ) {
        self.take_arrivals();
        let mut slice = Slice::new(self.work.work_units, WAITING);
        for _ in 0..self.active.len() {
            if slice.is_over(self.work.work_units) {
                return;
            }
            let Some(slot) = self.active.pop_front() else { return };
            let Some(queue) = self.slots.get_mut(slot) else { continue };
            let (places, work) = (&mut self.wait_queue, &mut self.work);
            let mut drain = Drain { now: self.now, times: &self.times, places, work, met: &mut met };
            let mut moved = queue.drain(&weight_of, &mut drain);
            moved |= queue.drain_line(packet, &mut drain);
            if moved {
                queue.touch(&mut self.touched);
            }
            queue.active = false;
            if queue.has_more() {
                queue.activate(&mut self.active);
            }
            self.expect_arrival(slot);
            self.expect(slot, self.now);
        }
    }

    /// Has the slots drained at which a frame of link emulation arrives about now.
    fn take_arrivals(&mut self) {
        if self.arrivals.is_due(self.now) {
            let mut due = Vec::new();
            self.arrivals.take_due(self.now, &mut due);
            for slot in due {
                self.expect_arrival(slot);
            }
        }
    }

    /// Sets the timer of `slot` to a little before its next arrival by link emulation, or has it drained if that is about now.
    fn expect_arrival(&mut self, slot: Slot) {
        let soon = self.now.saturating_add(self.times.early);
        let Some(queue) = self.slots.get_mut(slot) else { return };
        match queue.arrival() {
            Some(due) if due > soon => self.arrivals.expect(slot, due - self.times.early),
            Some(_) => queue.activate(&mut self.active),
            None => {}
        }
    }

    /// True if there is anything to drain.
    #[inline]
    pub(crate) fn has_active(&self) -> bool {
        !self.active.is_empty() || self.arrivals.is_due(self.now)
    }

    /// True if a frame of link emulation arrives before a sleep would pay off.
    #[inline]
    pub(crate) fn expect_soon(&self, now: Cycles) -> bool {
        let soon = now.saturating_add(self.times.early);
        let mut active = self.active.iter().filter_map(|&slot| self.slots.get(slot));
        self.arrivals.is_due(now) || active.any(|queue| queue.needs_pass_before(soon))
    }

    /// The next port with a broken ring here.
    pub(crate) fn next_fault(&mut self) -> Option<(PortId, RingFault)> {
        self.work.faults.pop()
    }

    /// Removes all enqueued packets for which `condition` holds, because their transmit queue stops or moves.
    pub(crate) fn recall(&mut self, condition: impl Fn(&Packet) -> bool, mut returned: impl FnMut(&Packet, PortId)) {
        for (_, queue) in self.slots.iter_mut() {
            let (port, before) = (queue.key.port, queue.accounts.waiting());
            queue.accounts.remove_if(&mut self.wait_queue, &condition, |packet| {
                self.work.taps.dropped(packet, packet.source, DropReason::SenderStopped);
                returned(packet, port);
            });
            if queue.accounts.waiting() != before {
                queue.touch(&mut self.touched);
            }
            queue.move_on_if_served(self.now);
        }
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
                    queue.fail(fault, &mut self.work);
                }
                queue.count(counters(queue.key.port));
                if queue.receiver.notification.happened() {
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
        match queue.look_after() {
            Ok(missed) => counters.repeated_interrupts.add(missed.is_some().into()),
            Err(fault) => queue.fail(fault, &mut self.work),
        }
        queue.count(counters);
        self.expect(slot, self.now.saturating_add(1));
    }

    /// An interrupt of the driver at `slot` may be kept back.
    pub(crate) fn happened(&mut self, slot: Slot) {
        if self.slots.get_mut(slot).is_some_and(|queue| queue.receiver.notification.happened()) {
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
            queue.receiver.shut_until = if for_good { Cycles::MAX } else { 0 };
        }
    }

    /// Arms the receiver at `slot`, for a kick when it posts buffers; true if it has new buffers already.
    pub(crate) fn arm(&mut self, slot: Slot) -> bool {
        let now = self.now;
        self.get(slot).is_some_and(|queue| queue.arm(now))
    }

    /// Arms every receiver with enqueued frames; true if one of them has new buffers already.
    pub(crate) fn arm_waiting(&mut self) -> bool {
        let mut news = false;
        for &slot in &self.active {
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

/// Frames that the fast path carried, and the end of the receiver's ring if its driver broke a rule.
#[derive(Debug)]
struct Carried {
    frames: u16,
    bytes: u64,
    fault: Option<RingFault>,
}

/// The recorder of frames on the fast path.
struct Record<'r> {
    recorder: &'r mut Recorder,
    last: &'r LastDecision,
    /// Sender and receiver.
    way: (PortId, PortId),
    now: Cycles,
}

/// As `fits`; each frame that does is added to the batch of `recorder`.
#[inline(always)]
fn recorded(recorder: &mut Recorder, mut fits: impl FnMut(&Block, u32) -> bool) -> impl FnMut(&Block, u32) -> bool {
    move |start, length| {
        let is_carried = fits(start, length);
        if is_carried {
            recorder.carried(start, length);
        }
        is_carried
    }
}

/// Carries a batch like [`carry`], and records it. It is not inlined there, so that batches without a recorder keep their registers.
#[inline(never)]
fn carry_recorded(
    (transmit, receive): (&mut TransmitQueue, &mut ReceiveQueue),
    masks: Masks<'_>,
    watch: &mut Watch<'_>,
    Record { recorder, last, way, now }: &mut Record<'_>,
    most: u16,
    count: impl FnMut(u32, u16),
) -> (u16, u64) {
    recorder.begin_batch(last, *way, *now);
    let most = most.min(MOST_IN_BATCH);
    let carried = match watch {
        Watch::Off if masks.further.is_empty() => {
            let fits = recorded(recorder, |start, _| masks.head.fits_block(start));
            fast_path::carry_if(transmit, receive, fits, most, count)
        }
        watch => {
            let fits = recorded(recorder, |start, length| watch.pass(masks, start, length));
            fast_path::carry_if(transmit, receive, fits, most, count)
        }
    };
    recorder.end_batch(carried.0);
    carried
}

/// Carries up to `most` frames that fit the `masks` from one ring to the other, as far as no capture selects them, until the slice is over.
#[inline]
fn carry(
    (transmit, receive): (&mut TransmitQueue, &mut ReceiveQueue),
    (masks, mut watch, mut record): (Masks<'_>, Watch<'_>, Option<Record<'_>>),
    most: u16,
    work_units: &mut u64,
    slice: &mut Slice,
    sizes: &FrameSizes,
) -> Carried {
    let mut all = Carried { frames: 0, bytes: 0, fault: None };
    while all.frames < most {
        match receive.read_ahead(most - all.frames) {
            Ok(0) => break,
            Ok(_) => {}
            Err(fault) => {
                all.fault = Some(fault);
                break;
            }
        }
        let count = |length, frames: u16| sizes.add_frames(length, frames.into());
        let left = most - all.frames;
        let carried = match (&mut watch, &mut record) {
            (watch, Some(record)) => carry_recorded((transmit, receive), masks, watch, record, left, count),
            (Watch::Off, None) if masks.further.is_empty() => fast_path::carry(transmit, receive, masks.head, left, count),
            (Watch::Off, None) => fast_path::carry_narrowly(transmit, receive, (masks.head, masks.further), left, count),
            (Watch::Filtered(filters), None) => {
                fast_path::carry_if(transmit, receive, |start, length| filters.pass(masks, start, length), left, count)
            }
        };
        all.frames += carried.0;
        all.bytes += carried.1;
        *work_units += u64::from(carried.0) * work_units::FRAME + carried.1;
        if carried.0 == 0 || slice.is_over(*work_units) {
            break;
        }
    }
    all
}
