//! One egress queue: all that waits for one receive queue or TAP, and the way into it.
//!
//! - A packet is **placed** in the sink if its rate limit is open and the receiver has posted buffers ([`EgressQueue::place`]).
//! - If not, it may wait here, in its sender's account ([`Accounts`]); the queue is drained by turns ([`EgressQueue::drain`]).
//! - Frames over an emulated link come from its [`DelayLine`] when they arrive ([`EgressQueue::drain_line`]).
//! - Head-of-line blocking by a frame too long for the receiver's buffers is detected here ([`EgressQueue::lets_pass`]).

use std::collections::VecDeque;
use std::sync::Arc;

use super::account::Accounts;
use super::delay::DelayLine;
use super::receiver::{Receiver, Times};
use super::sink::{Sink, fetched, is_in_memory};
use super::wait_queue::WaitQueue;
use crate::ablation;
use crate::cpu_time::slice::Slice;
use crate::cpu_time::work_units::{self, BATCH};
use crate::held::HeldLine;
use crate::id::{Direction, PortId, RingKey, Slot};
use crate::memory::faults::Faults;
use crate::memory::holes::{self, Look, Owner, Torn};
use crate::notification::Missed;
use crate::outcome::Outcome;
use crate::packet::Packet;
use crate::policy::rules::{KnownRules, PortRules};
use crate::port::Port;
use crate::port::queue_view::QueueView;
use crate::probes;
use crate::record::Recorder;
use crate::ring::{BURDEN, PlaceOutcome, Ring, RingFault};
use crate::stats::{DropReason, PortCounters, Sampler};
use crate::tap::Taps;
use crate::time::{Cycles, duration};
use crate::tuning::MOST_FETCHED;
use crate::weight::Weight;

/// Enqueued frames that one receiver is served in a poll iteration: no more than a sender may add in one, so that no sender's queue
/// runs short of its quantum.
const TURN: usize = if ablation::BATCHING { BATCH } else { 1 };

/// See the module.
#[derive(Debug)]
pub(crate) struct EgressQueue {
    pub key: RingKey,
    pub(super) port: Arc<Port>,
    pub(super) sink: Sink,
    /// Enabled, started, and without a ring fault: frames may go in.
    pub(super) open: bool,
    enabled: bool,
    /// A kick came, or none is needed.
    started: bool,
    /// The driver has never posted a receive buffer, so it is to kick for the first.
    unfilled: bool,
    /// The driver broke the ring.
    faulty: bool,
    /// Senders of the egress queue, and the packets that are enqueued.
    pub(super) accounts: Accounts,
    pub(super) receiver: Receiver,
    pub(super) touched: bool,
    /// The emulated link before the receive queue, if the port has one.
    pub(super) line: Option<Box<DelayLine>>,
    /// The egress queue is drained in every poll iteration.
    pub(super) active: bool,
    /// Frames and bytes since the counters were last updated.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Frames that are counted as waiting for it.
    counted_waiting: u64,
    /// Place of this egress queue among the egress queues.
    pub(super) slot: Slot,
    /// Frames that were fetched, and may be referred to until they are published.
    fetched: Vec<Vec<u8>>,
    /// Rules of its port, for the addresses of a twin.
    rules: KnownRules<PortRules>,
}

/// Work done at egress queues.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Work units of the egress queue, see [`work_units`].
    pub work_units: u64,
    /// Egress queues with receive buffers that were expensive to walk, with their ports and the work units.
    pub burdens: Vec<(Slot, PortId, u64)>,
    /// Ports with rings that broke a rule here.
    pub faults: Vec<(PortId, RingFault)>,
    /// Copies frames for captures.
    pub taps: Taps,
    /// Records verdicts.
    pub recorder: Option<Box<Recorder>>,
    /// Chooses the frames of which the latency from transmit queue to receive queue is measured.
    pub sampler: Sampler,
    /// The worker that does it.
    pub worker: u8,
}

/// Context in which queues are drained.
#[derive(Debug)]
pub(super) struct Drain<'d, M> {
    pub now: Cycles,
    pub times: &'d Times,
    pub places: &'d mut WaitQueue,
    pub work: &'d mut Work,
    /// Is called with each packet that is done with, or of which some segments were delivered, its port, and its outcome.
    pub met: &'d mut M,
}

/// Progress of draining.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// There is something to publish.
    moved: bool,
    /// A frame was delivered in its turn.
    advanced: bool,
    /// Length from which on frames find no room where shorter ones may.
    too_long: u32,
    /// Length of the frame that found no room.
    waits: u32,
}

impl EgressQueue {
    /// For queue pair `pair` of `port`, with frames going into `sink`, and none enqueued.
    pub(crate) fn new((port, pair): (&Arc<Port>, u16), sink: Sink, enabled: bool, started: bool) -> Self {
        let mut queue = Self {
            key: RingKey { port: port.id, pair, direction: Direction::Receive },
            port: Arc::clone(port),
            sink,
            open: false,
            enabled,
            started,
            unfilled: false,
            faulty: false,
            accounts: Accounts::default(),
            receiver: Receiver::default(),
            touched: false,
            line: DelayLine::before(port, pair).map(Box::new),
            active: false,
            frames: 0,
            bytes: 0,
            counted_waiting: 0,
            slot: Slot::default(),
            fetched: Vec::new(),
            rules: KnownRules::new(&port.policy.rules),
        };
        queue.settle();
        queue
    }

    /// Whether any frame is enqueued for it, or in flight on its emulated link.
    pub(super) fn has_under_way(&self) -> bool {
        self.accounts.waiting() > 0 || self.line.as_ref().is_some_and(|line| !line.is_empty())
    }

    /// The ring, if it is one.
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        self.sink.ring()
    }

    /// See [`Sink::hand_over`].
    pub(crate) fn hand_over(&mut self) {
        self.sink.hand_over();
    }

    /// Admits `sender` to the room there is; false if other senders must catch up first (fair queueing).
    #[inline]
    pub(super) fn admit(&mut self, sender: PortId, now: Cycles) -> bool {
        if !self.accounts.is_contended() {
            return true;
        }
        self.accounts.begin_iteration(now);
        self.accounts.may_send(sender)
    }

    /// Whether the fast path may carry frames past it: it is open, no frame is ahead, there is neither a limit nor a link, and no address is
    /// exchanged.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        let is_plain = !self.port.policy.receive.is_set() && !self.port.policy.is_twin();
        self.open && self.accounts.waiting() == 0 && is_plain && self.line.is_none()
    }

    /// Whether the switch holds back frames of `sender`, by the rate limit or by fair queueing: the receiver is not the cause.
    pub(super) fn holds_back(&mut self, sender: PortId, now: Cycles) -> bool {
        !self.is_unlimited(now) || !self.admit(sender, now)
    }

    /// Whether the rate limit of its port is open.
    pub(super) fn is_unlimited(&self, now: Cycles) -> bool {
        self.port.policy.receive.is_open(now)
    }

    /// Places `packet` in the sink, if frames may go in and there is room.
    #[inline(never)]
    pub(super) fn place(&mut self, packet: &mut Packet, now: Cycles, work: &mut Work) -> PlaceOutcome {
        if !self.open {
            return PlaceOutcome::Refused(DropReason::ReceiverAbsent);
        }
        if !self.is_unlimited(now) {
            self.counters(work).receive_limited.add(1);
            return PlaceOutcome::NoRoom;
        }
        if self.receiver.shut_until > now {
            return PlaceOutcome::NoRoom;
        }
        let before = packet.segments_done;
        let placed = if self.port.policy.is_twin() { self.place_inside(packet) } else { self.place_in_sink(packet) };
        let segments = u64::from(packet.segments_done.saturating_sub(before)).max(1);
        work.work_units += segments * work_units::FRAME;
        let walked = self.sink.take_walked();
        if walked > segments * BURDEN + u64::from(packet.length / work_units::SMALL)
            || placed == Ok(PlaceOutcome::Refused(DropReason::BadReceiveChains))
        {
            self.burden(walked, now, work);
        }
        let placed = placed.unwrap_or_else(|fault| {
            self.fail(fault, work);
            PlaceOutcome::Refused(DropReason::ReceiverAbsent)
        });
        match placed {
            PlaceOutcome::Complete(frames) => self.placed(packet, frames, now, work),
            PlaceOutcome::NoRoom => self.no_room(now),
            PlaceOutcome::Refused(reason) => self.refused(reason, now, work),
        }
        placed
    }

    #[inline]
    fn place_in_sink(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        if packet.is_foreign() && !self.sink.takes_foreign() {
            self.place_fetched(packet)
        } else if self.sink.lets_kernel_read() && lies_in_hole(packet) {
            self.place_copied(packet)
        } else {
            self.sink.place(packet)
        }
    }

    /// Places a copy of a frame that lies in a hole of its sender's memory, from which the kernel does not read.
    #[cold]
    fn place_copied(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        if self.fetched.len() == MOST_FETCHED {
            self.show();
        }
        let mut memory = Vec::new();
        let Some(mut copy) = packet.copied(&mut memory) else { return Ok(PlaceOutcome::Refused(DropReason::SenderMemory)) };
        let placed = self.sink.place(&mut copy);
        packet.segments_done = copy.segments_done;
        self.fetched.push(memory);
        placed
    }

    /// Places a copy of the headers of `packet` with the addresses that the guest of a twin has inside, and the payload from where it lies.
    #[inline(never)]
    fn place_inside(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        self.rules.refresh(&self.port.policy.rules);
        let Some(twin) = &self.rules.get().twin else { return self.place_in_sink(packet) };
        let mut inside = packet.clone();
        if twin.exchange(&mut inside).is_err() {
            return Ok(PlaceOutcome::Refused(DropReason::TwinHeaders));
        }
        let placed = self.place_in_sink(&mut inside);
        packet.segments_done = inside.segments_done;
        placed
    }

    /// `packet` was placed, as so many `frames`.
    #[inline]
    fn placed(&mut self, packet: &mut Packet, frames: u32, now: Cycles, work: &mut Work) {
        work.work_units += u64::from(packet.length);
        self.frames += u64::from(frames);
        self.bytes += u64::from(packet.length);
        self.port.policy.receive.charge(packet.length.into(), frames.into(), now);
        self.receiver.took();
        work.taps.receive(packet, self.key.port);
        self.sample(packet, now, work);
    }

    /// Counts a frame that was placed, or has entered the emulated link, if its latency is measured.
    #[inline]
    fn sample(&self, packet: &Packet, now: Cycles, work: &Work) {
        if let Some(latency) = packet.stamp.until(now) {
            self.counters(work).sample(packet.source, latency, now);
        }
    }

    /// Counters of its port at the worker that does this `work`.
    fn counters(&self, work: &Work) -> &PortCounters {
        self.port.counters(work.worker.into())
    }

    fn no_room(&mut self, now: Cycles) {
        let (seen, until) = self.sink.ring().map_or((0, None), |ring| (ring.seen(), ring.waits_until()));
        if let Some(until) = until {
            // The ring waits for memory that is still to be filled.
            self.receiver.shut_until = until;
        }
        self.receiver.note_posted(seen, now);
    }

    #[cold]
    fn refused(&mut self, reason: DropReason, now: Cycles, work: &mut Work) {
        match reason {
            // The receiver's page faults are charged to the receiver.
            DropReason::ReceiverMemory => self.burden(work_units::TURN / work_units::DESCRIPTOR, now, work),
            DropReason::SenderMemory => work.work_units += work_units::TURN,
            _ => {}
        }
    }

    /// Fetches a foreign frame (a Xen grant) and places it in a sink that needs its bytes in memory.
    #[cold]
    fn place_fetched(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        if self.fetched.len() == MOST_FETCHED {
            self.show();
        }
        let mut memory = Vec::new();
        let placed = fetched(packet, self.port.foreign(), &mut memory, |packet| self.sink.place(packet));
        if self.sink.ring().is_none() {
            self.fetched.push(memory);
        }
        placed.unwrap_or(Ok(PlaceOutcome::Refused(DropReason::GrantRefused)))
    }

    /// Sends a copy of `packet` along the emulated link. Losses are counted here: of a GSO frame, only some segments may be lost.
    pub(super) fn send_along_line(&mut self, packet: &mut Packet, now: Cycles, work: &mut Work) -> PlaceOutcome {
        let Some(line) = &mut self.line else { return PlaceOutcome::Refused(DropReason::ReceiverAbsent) };
        if !is_in_memory(packet) {
            work.work_units += work_units::TURN;
            return PlaceOutcome::Refused(DropReason::SenderMemory);
        }
        let taken = if packet.is_foreign() {
            fetched(packet, self.port.foreign(), &mut Vec::new(), |packet| line.take(packet, now))
        } else {
            Some(line.take(packet, now))
        };
        let Some(taken) = taken else { return PlaceOutcome::Refused(DropReason::GrantRefused) };
        for (reason, count) in [(DropReason::LinkLoss, taken.lost), (DropReason::LinkFull, taken.refused)] {
            if count > 0 {
                work.taps.dropped(packet, self.key.port, reason);
                self.counters(work).drop_frames(reason, count);
            }
        }
        self.sample(packet, now, work);
        // The sender pays for each segment of its GSO frame.
        packet.segments_done += taken.frames as u16;
        work.work_units += u64::from(taken.frames) * work_units::FRAME + u64::from(packet.length);
        PlaceOutcome::Complete(taken.frames)
    }

    /// Moves the enqueued packets to its emulated link, as frames that have arrived there, so that their senders' descriptor chains are done with.
    /// `met` is called with each packet, its port, and its outcome.
    pub(super) fn move_to_line<M: FnMut(&Packet, PortId, Outcome)>(
        &mut self,
        places: &mut WaitQueue,
        now: Cycles,
        work: &mut Work,
        met: &mut M,
    ) {
        if self.accounts.waiting() == 0 {
            return;
        }
        let (port, pair) = (&self.port, self.key.pair);
        let line = self.line.get_or_insert_with(|| Box::new(DelayLine::before_or_clear(port, pair)));
        self.accounts.remove_if(
            places,
            |_| true,
            |packet| {
                let kept = if !is_in_memory(packet) {
                    Err(DropReason::SenderMemory)
                } else if packet.is_foreign() {
                    let kept = fetched(&mut packet.clone(), port.foreign(), &mut Vec::new(), |packet| line.keep(packet, now));
                    kept.ok_or(DropReason::GrantRefused)
                } else {
                    Ok(line.keep(packet, now))
                };
                let outcome = match kept {
                    Ok(true) => Outcome::Delivered(port.id, 1),
                    Ok(false) => Outcome::Dropped(port.id, DropReason::LinkFull),
                    Err(reason) => Outcome::Dropped(port.id, reason),
                };
                report(packet, port.id, outcome, work, met);
            },
        );
        self.receiver.move_on();
    }

    /// Sets an emulated link before it, if it has none: one that delays nothing.
    pub(super) fn begin_line(&mut self) {
        let (port, pair) = (&self.port, self.key.pair);
        self.line.get_or_insert_with(|| Box::new(DelayLine::before_or_clear(port, pair)));
    }

    /// Takes its emulated link away, with the frames in flight there. All that were placed are published.
    pub(super) fn hold_line(&mut self, now: Cycles) -> Option<HeldLine> {
        let line = self.line.take()?;
        self.receiver.move_on();
        Some(line.hold(self.key, now))
    }

    /// Continues an emulated link that was taken away.
    pub(super) fn go_on(&mut self, held: HeldLine, now: Cycles) {
        let (port, pair) = (&self.port, self.key.pair);
        self.line.get_or_insert_with(|| Box::new(DelayLine::before_or_clear(port, pair))).go_on(held, now);
    }

    /// Whether frames that were moved to its link wait for the receiver, so that later ones have to wait behind them.
    #[inline]
    pub(super) fn has_moved(&self, now: Cycles) -> bool {
        self.line.as_ref().is_some_and(|line| line.is_ahead(now))
    }

    /// Whether a frame has to wait behind others, where its link delays none: behind those that were moved there, and those that are enqueued.
    #[inline]
    pub(super) fn keeps_order(&self, now: Cycles) -> bool {
        let is_clear = self.line.as_ref().is_some_and(|line| line.is_clear());
        is_clear && (self.accounts.waiting() > 0 || self.has_moved(now))
    }

    /// Delivers enqueued packets by turns, for a service quantum, and drops them once the receiver exceeded the stall timeout. True if
    /// there is anything to publish or to count.
    pub(super) fn drain<M: FnMut(&Packet, PortId, Outcome)>(
        &mut self,
        weight_of: impl Fn(PortId) -> Weight,
        drain: &mut Drain<'_, M>,
    ) -> bool {
        if self.accounts.waiting() == 0 || self.has_moved(drain.now) {
            return false;
        }
        let (now, times, before) = (drain.now, drain.times, self.accounts.waiting());
        self.accounts.begin_iteration(now);
        let progress = self.drain_while_room(weight_of, drain);
        let mut moved = progress.moved || self.accounts.waiting() != before || self.has_unshown();
        if progress.advanced || !self.is_unlimited(now) {
            // Where a rate limit holds back, the receiver is not the cause.
            self.receiver.stand_still(true, now, times);
        } else {
            moved |= self.stand_still(&progress, drain);
        }
        self.move_on_if_served(now);
        moved
    }

    /// No enqueued packet found room: the driver is interrupted again, and once the receiver has exceeded the stall timeout, packets are dropped.
    /// True if either was done.
    fn stand_still<M: FnMut(&Packet, PortId, Outcome)>(&mut self, progress: &Progress, drain: &mut Drain<'_, M>) -> bool {
        let (now, times) = (drain.now, drain.times);
        // A frame that arrived over an emulated link, removed since, may have ended the standstill.
        self.receiver.stand_still(false, now, times);
        if !self.receiver.is_full_for(times.stall_timeout, now) {
            return self.call_again_if_full(now, times, drain.work);
        }
        // A receiver that has just posted buffers is not full: head-of-line blocking by a frame too long for it ends, and other
        // frames stay.
        let too_long = if self.has_buffers() { progress.too_long.min(progress.waits) } else { progress.too_long };
        self.give_up(too_long, drain);
        true
    }

    /// Delivers enqueued packets until one finds no room.
    fn drain_while_room<M: FnMut(&Packet, PortId, Outcome)>(
        &mut self,
        weight_of: impl Fn(PortId) -> Weight,
        drain: &mut Drain<'_, M>,
    ) -> Progress {
        let Drain { now, times, places, work, met } = drain;
        let mut progress = Progress { moved: false, advanced: false, too_long: u32::MAX, waits: u32::MAX };
        let mut slice = Slice::new(work.work_units, work_units::TURN);
        for _ in 0..TURN {
            if slice.is_over(work.work_units) {
                break;
            }
            let Some(spot) = self.accounts.next_below(progress.too_long, places) else { break };
            let packet = places.packet(spot);
            let (length, before) = (packet.length, packet.segments_done);
            let sent = self.place(packet, *now, work);
            let segments = packet.segments_done - before;
            progress.moved |= matches!(sent, PlaceOutcome::Complete(_)) || segments > 0;
            progress.advanced |= progress.moved && progress.too_long == u32::MAX;
            if let Some(outcome) = self.outcome(sent, segments) {
                report(packet, self.key.port, outcome, work, met);
            }
            if sent != PlaceOutcome::NoRoom {
                let weight = weight_of(packet.source);
                self.accounts.served(weight, places);
            } else if self.lets_pass(times.full_after, *now) {
                progress.too_long = length;
            } else {
                progress.waits = length;
                break;
            }
        }
        progress
    }

    /// Outcome of an attempt to place a packet, of which so many `segments` were delivered.
    fn outcome(&self, sent: PlaceOutcome, segments: u16) -> Option<Outcome> {
        let port = self.key.port;
        match sent {
            PlaceOutcome::Complete(_) => Some(Outcome::Delivered(port, segments)),
            PlaceOutcome::NoRoom => (segments > 0).then_some(Outcome::DeliveredInPart(port, segments)),
            PlaceOutcome::Refused(reason) => Some(Outcome::Dropped(port, reason)),
        }
    }

    /// The stall timeout is over: drops all enqueued frames, or only frames of `too_long` bytes or more if there is room for
    /// shorter ones, which ends their head-of-line blocking.
    fn give_up<M: FnMut(&Packet, PortId, Outcome)>(&mut self, too_long: u32, drain: &mut Drain<'_, M>) {
        let Drain { now, times, places, work, met } = drain;
        let reason = if too_long < u32::MAX {
            self.receiver.stand_still(true, *now, times);
            DropReason::TooLongForReceiver
        } else {
            self.receiver.stall(*now);
            DropReason::ReceiverStalled
        };
        let port = self.key.port;
        let is_hopeless = |packet: &Packet| too_long == u32::MAX || packet.length >= too_long;
        self.accounts.remove_if(places, is_hopeless, |packet| report(packet, port, Outcome::Dropped(port, reason), work, met));
    }

    /// Delivers the frames with an expired emulated delay, behind those that are enqueued, and removes a link emulation that has ended.
    /// After the stall timeout, drops frames without room. True if there is anything to publish or to count. `packet` is scratch.
    pub(super) fn drain_line<M: FnMut(&Packet, PortId, Outcome)>(&mut self, packet: &mut Packet, drain: &mut Drain<'_, M>) -> bool {
        let is_first = self.accounts.waiting() == 0 || self.has_moved(drain.now);
        let Some(mut line) = self.line.take_if(|line| is_first || line.is_over()) else { return false };
        line.forget_placed();
        if line.is_over() {
            return false;
        }
        let mut moved = false;
        // Bounded, so that an emulated link with many frames does not keep others waiting.
        let mut slice = Slice::new(drain.work.work_units, work_units::TURN);
        for _ in 0..TURN {
            if slice.is_over(drain.work.work_units) {
                break;
            }
            let Some(sent) = line.serve(drain.now, packet, |packet| self.place_arrived(packet, drain)) else { break };
            let outcome = match sent {
                PlaceOutcome::Complete(_) => Outcome::Arrived,
                PlaceOutcome::Refused(reason) => Outcome::Lost(self.key.port, reason),
                PlaceOutcome::NoRoom => {
                    moved |= self.call_again_if_full(drain.now, drain.times, drain.work);
                    break;
                }
            };
            moved = true;
            report(packet, self.key.port, outcome, drain.work, drain.met);
        }
        self.line = Some(line);
        self.move_on_if_served(drain.now);
        moved || self.has_unshown()
    }

    /// Places a frame that arrived over the emulated link; without room it is dropped once the receiver exceeded the stall timeout.
    /// Returns also whether it is done with.
    fn place_arrived<M>(&mut self, packet: &mut Packet, drain: &mut Drain<'_, M>) -> (PlaceOutcome, bool) {
        let (now, times) = (drain.now, drain.times);
        // Where a rate limit holds back, the receiver is not the cause.
        let is_limited = !self.is_unlimited(now);
        let mut sent = self.place(packet, now, drain.work);
        match sent {
            PlaceOutcome::Complete(_) => self.receiver.move_on(),
            PlaceOutcome::NoRoom if !is_limited && self.receiver.is_full_for(times.stall_timeout, now) => {
                sent = PlaceOutcome::Refused(DropReason::ReceiverStalled);
            }
            PlaceOutcome::NoRoom => self.receiver.stand_still(is_limited, now, times),
            PlaceOutcome::Refused(_) => {}
        }
        (sent, sent != PlaceOutcome::NoRoom)
    }

    /// Publishes placed frames to the receiver.
    pub(super) fn show(&mut self) {
        self.sink.publish();
        self.fetched.clear();
    }

    /// True if its ring has used buffers that are not published, even those that broke a rule.
    pub(super) fn has_unshown(&mut self) -> bool {
        self.sink.ring().is_some_and(|ring| ring.has_unshown())
    }

    /// Adds this queue to the `touched` ones: there is something to publish or to count.
    #[inline]
    pub(super) fn touch(&mut self, touched: &mut Vec<Slot>) {
        if !self.touched {
            self.touched = true;
            touched.push(self.slot);
        }
    }

    /// Requests a kick when the driver posts receive buffers; true if it has posted some already. While a rate limit holds back,
    /// new buffers do not matter.
    pub(super) fn arm(&mut self, now: Cycles) -> bool {
        self.is_unlimited(now) && self.sink.arm()
    }

    /// The deadline of its notification state. While frames are enqueued, that is when a rate limit opens, the interrupt is to be
    /// repeated, or the stall timeout ends.
    pub(super) fn due(&mut self, now: Cycles, times: &Times) -> Option<Cycles> {
        let look = self.sink.ring().and_then(|ring| ring.look_soon()).unwrap_or(times.spans.look);
        let due = self.receiver.notification.due(now, look)?;
        let Some(since) = self.receiver.notification.stuck_since() else { return Some(due) };
        let limiter = &self.port.policy.receive;
        Some(if limiter.is_open(now) { due.min(since.saturating_add(times.stall_timeout)) } else { limiter.opens_at() })
    }

    /// Repeats the interrupt of a driver that may have lost one, if it is time for that.
    fn call_again_if_full(&mut self, now: Cycles, times: &Times, work: &mut Work) -> bool {
        let again = self.receiver.calls_again(now, times);
        if again && let Some(Err(fault)) = self.sink.ring().map(Ring::call_again) {
            self.fail(fault, work);
        }
        again
    }

    /// Lost-notification check; returns the interrupt that seemed lost in two checks.
    pub(super) fn look_after(&mut self) -> Result<Option<Missed>, RingFault> {
        let notification = &mut self.receiver.notification;
        match self.sink.ring() {
            Some(ring) => ring.look_after(notification, false),
            None => Ok(notification.look(|| None)),
        }
    }

    /// Adds this queue to the `active` ones, which are drained in every poll iteration.
    pub(super) fn activate(&mut self, active: &mut VecDeque<Slot>) {
        if !std::mem::replace(&mut self.active, true) {
            active.push_back(self.slot);
        }
    }

    /// Whether it is to be drained in the next poll iteration: frames are enqueued, or frames were placed that the receiver may
    /// refer to until this one ends.
    pub(super) fn has_more(&self) -> bool {
        self.accounts.waiting() > 0 || self.line.as_ref().is_some_and(|line| line.has_placed())
    }

    /// When the next frame of its link emulation arrives.
    #[inline]
    pub(super) fn arrival(&self) -> Option<Cycles> {
        self.line.as_ref().and_then(|line| line.due())
    }

    /// Whether its link emulation needs a poll iteration before `moment`: the next frame arrives, and will find room as far as is
    /// known; or placed frames are to be released.
    pub(super) fn needs_pass_before(&self, moment: Cycles) -> bool {
        let arrives = self.arrival().is_some_and(|due| due < moment);
        (arrives && !self.receiver.is_full()) || self.line.as_ref().is_some_and(|line| line.has_placed())
    }

    /// True if a frame could be delivered now if there were room.
    pub(super) fn awaits_room(&self, now: Cycles) -> bool {
        let at_end = self.arrival().is_some_and(|due| due <= now);
        self.accounts.waiting() > 0 || (at_end && self.receiver.is_full())
    }

    /// The egress queue was served, or enqueued frames were removed: if none is left, its driver has nothing to take.
    pub(super) fn move_on_if_served(&mut self, now: Cycles) {
        if !self.awaits_room(now) {
            self.receiver.move_on();
        }
    }

    /// Against head-of-line blocking: true if a frame found no room in the posted buffers, and no more were posted for so long a
    /// `time`. The receiver may never post more, and shorter frames need not wait for that.
    pub(super) fn lets_pass(&mut self, time: Cycles, now: Cycles) -> bool {
        self.receiver.posts_nothing_for(time, now) && self.is_unlimited(now) && self.has_buffers()
    }

    /// True if its receiver has posted buffers that were not taken.
    fn has_buffers(&mut self) -> bool {
        self.sink.ring().is_some_and(|ring| ring.has_untaken())
    }

    /// So many descriptors were walked for one frame, nearly in vain: the receiver's port is charged for it, once in a poll
    /// iteration, and its buffers are left alone while it is throttled.
    #[cold]
    fn burden(&mut self, walked: u64, now: Cycles, work: &mut Work) {
        let work_units = work_units::FRAME + walked * work_units::DESCRIPTOR;
        work.work_units += work_units;
        work.burdens.push((self.slot, self.key.port, work_units));
        self.receiver.shut_until = now + 1;
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
        self.settle();
    }

    /// A kick came; more are needed only while frames are enqueued, or until the driver has posted a buffer. True if it has just
    /// posted the first.
    pub(crate) fn start(&mut self) -> bool {
        // Delivering a frame may have read the ring already, and then buffers posted since the last kick do not count as new.
        let first = self.unfilled && self.sink.ring().is_some_and(|ring| ring.arm() || ring.was_filled());
        self.unfilled &= !first;
        if !self.unfilled {
            self.sink.ring().map(Ring::disarm);
        }
        self.started = true;
        self.settle();
        first
    }

    /// Whether its driver has never posted a buffer.
    pub(crate) fn is_unfilled(&self) -> bool {
        self.unfilled
    }

    /// Sets whether that is so, for a queue with a driver that kicks.
    pub(crate) fn set_unfilled(&mut self, unfilled: bool) {
        self.unfilled = unfilled;
    }

    fn settle(&mut self) {
        self.open = self.enabled && self.started && !self.faulty;
    }

    /// Closes this queue, because its driver broke the ring.
    pub(super) fn fail(&mut self, fault: RingFault, work: &mut Work) {
        self.faulty = true;
        self.settle();
        work.faults.push((self.key.port, fault));
    }

    /// View of it for the operator; `None` unless it is a ring.
    pub(super) fn view(&mut self, now: Cycles) -> Option<QueueView> {
        Some(QueueView {
            key: self.key,
            ring: self.sink.ring()?.view(),
            enabled: self.enabled,
            started: self.started,
            unfilled: self.unfilled,
            awaits_kick: !self.started,
            stuck: self.receiver.full_since().map(|since| duration(now.saturating_sub(since))),
            blocked: None,
        })
    }

    /// So many frames wait for it: the port may have other queues at this worker, so only the difference is counted.
    fn count_waiting(&mut self, waiting: u64, counters: &PortCounters) {
        let before = std::mem::replace(&mut self.counted_waiting, waiting);
        counters.waiting.set((counters.waiting.get() + waiting).saturating_sub(before));
    }

    /// Ends the queue, at which no frame is enqueued: frames in flight on the emulated link are dropped.
    pub(super) fn end(&mut self, packet: &mut Packet, counters: &PortCounters, work: &mut Work) {
        let reason = DropReason::ReceiverAbsent;
        if let Some(mut line) = self.line.take() {
            while line.serve(Cycles::MAX, packet, |_| ((), true)).is_some() {
                work.taps.dropped(packet, self.key.port, reason);
                counters.drop_frame(reason);
            }
        }
        self.count_waiting(0, counters);
    }

    pub(super) fn count(&mut self, counters: &PortCounters) {
        counters.receive_frames.add(std::mem::take(&mut self.frames));
        counters.receive_bytes.add(std::mem::take(&mut self.bytes));
        let under_way = self.line.as_ref().map_or(0, |line| line.len());
        self.count_waiting(u64::from(self.accounts.waiting()) + under_way as u64, counters);
        counters.turns.add(self.accounts.take_turns());
        let calls = self.sink.ring().map_or(0, Ring::take_calls);
        let bad = self.sink.take_bad_chains();
        // The frames that the kernel or a peer refused are gone: their number is known.
        for (reason, count) in self.sink.take_refused() {
            (0..count).for_each(|_| probes::drop(self.key.port, reason, 0));
            counters.drop_frames(reason, count);
        }
        if calls > 0 {
            probes::call(self.key);
        }
        if calls > 0 || bad > 0 {
            counters.interrupts.add(calls.into());
            counters.bad_receive_chains.add(bad.into());
        }
    }
}

/// Whether a page of the rest of `packet` is a hole of its sender's memory, or another thread may cover it as one.
fn lies_in_hole(packet: &Packet) -> bool {
    if packet.memory == Owner::NONE {
        return false;
    }
    let (look, mut faults) = (Look::begin(packet.memory), Faults::default());
    packet.rest().take_while(|_| faults.may_go_on() && !holes::has_covers()).for_each(|iovec| iovec.touch());
    look.end() != Torn::NO
}

/// Reports the outcome of `packet` at `port`, to captures too if it was dropped.
fn report(packet: &Packet, port: PortId, outcome: Outcome, work: &mut Work, met: &mut impl FnMut(&Packet, PortId, Outcome)) {
    if let Outcome::Dropped(port, reason) | Outcome::Lost(port, reason) = outcome {
        work.taps.dropped(packet, port, reason);
    }
    met(packet, port, outcome);
}
