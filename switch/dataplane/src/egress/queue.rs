//! One egress queue: a sink, with its state, its rate limit, the frames that are enqueued for it, and its emulated link. Head-of-line
//! blocking by a frame too long for the receiver's buffers is detected here ([`EgressQueue::lets_pass`]).

use std::sync::Arc;
use std::time::Duration;

use super::account::Turns;
use super::delay::DelayLine;
use super::fair_queue::FairQueue;
use super::sink::{Sink, fetched, is_in_memory};
use super::wait_queue::WaitQueue;
use crate::cpu_time::slice::Slice;
use crate::cpu_time::work_units::{self, BATCH};
use crate::id::{Direction, PortId, RingKey, Slot};
use crate::notification::{Missed, NotificationState, Spans};
use crate::packet::Packet;
use crate::port::Port;
use crate::port::queue_view::QueueView;
use crate::probes;
use crate::ring::{BURDEN, PlaceOutcome, Ring, RingFault};
use crate::stats::{DropReason, PortCounters, Sampler};
use crate::tap::Taps;
use crate::time::{Cycles, duration, in_cycles};

/// Enqueued frames that one receiver is served in a poll iteration: no more than a sender may add in one, so that no sender's queue
/// runs short of its quantum.
pub(super) const TURN: usize = BATCH;

/// Fetched frames that are kept until they are published, at most.
const MOST_FETCHED: usize = 64;

/// No frame was lost on an emulated link.
const NOTHING_OFF_LINE: [(DropReason, u32); 2] = [(DropReason::LinkLoss, 0), (DropReason::LinkFull, 0)];

/// A sink, with the worker's state of it.
#[derive(Debug)]
pub(crate) struct EgressQueue {
    pub key: RingKey,
    pub(super) port: Arc<Port>,
    /// Times that its rate limit was met since the counters were last updated.
    limited: u64,
    pub(super) sink: Sink,
    /// Enabled, started, and without a ring fault: frames may go in.
    pub(super) open: bool,
    enabled: bool,
    /// A kick came, or none is needed.
    started: bool,
    /// Its driver has never posted a receive buffer, so it is to kick for the first.
    unfilled: bool,
    /// Its driver broke the ring.
    faulty: bool,
    pub(super) turns: Turns,
    /// Notification state: detects lost interrupts, and a receiver that takes nothing though frames are enqueued.
    pub(super) notification: NotificationState,
    /// It took nothing for longer than the stall timeout, and nothing since.
    pub(super) stalled: bool,
    /// Since when, as of the last time that it began.
    stalled_since: Cycles,
    pub(super) touched: bool,
    /// Buffers that its driver had posted when there was no room.
    posted: Posted,
    /// The sender of the last frame that backpressure left in a transmit ring, and when.
    pub(super) backpressured_last: Option<(PortId, Cycles)>,
    /// Fair queueing of blocked senders, if there are several.
    pub(super) fair_queue: Option<Box<FairQueue>>,
    /// The emulated link before the receive queue, if the port has one.
    pub(super) line: Option<Box<DelayLine>>,
    /// Its link emulation is served in every poll iteration.
    pub(super) at_hand: bool,
    /// Frames that the emulated link lost, and those that its queue had no room for, since the counters were last updated.
    off_line: [(DropReason, u32); 2],
    /// Frames and bytes since the counters were last updated.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    /// Its place among the egress queues.
    pub(super) slot: Slot,
    /// Frames that were fetched, and may be referred to until they are published.
    fetched: Vec<Vec<u8>>,
    /// Its receive buffers were expensive to walk: they are left alone until then.
    pub(super) shut_until: Cycles,
}

/// Timeouts and intervals of egress queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Stall timeout: a receiver may take nothing for so long before the frames that are enqueued for it are dropped.
    pub stall_timeout: Cycles,
    /// A receiver may take nothing for so long before it counts as stuck.
    pub stuck_after: Cycles,
    /// Lead of a wake-up before the arrival of a frame on an emulated link, for waking takes that long.
    pub early: Cycles,
    pub spans: Spans,
}

/// Work done at egress queues.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Its work units, see [`work_units`].
    pub work_units: u64,
    /// Egress queues whose receive buffers were expensive to walk, with their ports and the work units.
    pub burdens: Vec<(Slot, PortId, u64)>,
    /// Copies frames for captures.
    pub taps: Taps,
    /// Chooses the frames whose latency from transmit queue to receive queue is measured.
    pub sampler: Sampler,
    /// The worker that does it.
    pub worker: u8,
}

/// Buffers that a receiver without room had posted, and for how long there were no new ones.
#[derive(Clone, Copy, Debug, Default)]
struct Posted {
    /// The driver's index.
    seen: u16,
    looked_at: Cycles,
    age: Cycles,
}

/// A poll adds at most so much to the age: a worker without a CPU meanwhile has seen nothing.
const LOOK: Duration = Duration::from_micros(200);

impl Posted {
    fn look(&mut self, seen: u16, now: Cycles) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        self.age = if self.seen == seen { self.age.saturating_add(passed.min(in_cycles(LOOK))) } else { 0 };
        self.seen = seen;
    }
}

/// Health of a receiver without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It took frames lately.
    Moving,
    /// It took nothing for longer than `STUCK_AFTER`.
    Stuck,
    /// It took nothing for longer than the stall timeout, and nothing since.
    Stalled,
}

/// Outcome of the attempt to send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// Delivered.
    Done,
    /// The receiver has no room now.
    MustWait,
    /// It cannot be delivered, for this reason.
    Dropped(DropReason),
}

impl EgressQueue {
    /// For queue pair `pair` of `port`, with frames going into `sink`, and none enqueued.
    pub(crate) fn new((port, pair): (&Arc<Port>, u16), sink: Sink, enabled: bool, started: bool) -> Self {
        let mut queue = Self {
            key: RingKey { port: port.id, pair, direction: Direction::Receive },
            port: Arc::clone(port),
            limited: 0,
            sink,
            open: false,
            enabled,
            started,
            unfilled: false,
            faulty: false,
            turns: Turns::default(),
            notification: NotificationState::default(),
            stalled: false,
            stalled_since: 0,
            touched: false,
            posted: Posted::default(),
            backpressured_last: None,
            fair_queue: None,
            line: DelayLine::before(port, pair).map(Box::new),
            at_hand: false,
            off_line: NOTHING_OFF_LINE,
            frames: 0,
            bytes: 0,
            slot: Slot::default(),
            fetched: Vec::new(),
            shut_until: 0,
        };
        queue.settle();
        queue
    }

    /// Whether any frame is enqueued for it, or in flight on its emulated link.
    pub(super) fn has_under_way(&self) -> bool {
        self.turns.waiting() > 0 || self.line.as_ref().is_some_and(|line| !line.is_empty())
    }

    /// The ring, if it is one.
    pub(crate) fn ring(&mut self) -> Option<&mut Ring> {
        self.sink.ring()
    }

    /// Requests a kick when the driver posts receive buffers; true if it has posted some already. While a rate limit holds back,
    /// new buffers do not matter.
    pub(super) fn arm(&mut self, now: Cycles) -> bool {
        self.port.policy.receive.is_open(now) && self.sink.arm()
    }

    /// The deadline of its notification state. While frames are enqueued, that is when a rate limit opens, the interrupt is to be
    /// repeated, or the stall timeout ends.
    pub(super) fn due(&mut self, now: Cycles, times: &Times) -> Option<Cycles> {
        let look = self.sink.ring().and_then(|ring| ring.look_soon()).unwrap_or(times.spans.look);
        let due = self.notification.due(now, look)?;
        let Some(since) = self.notification.stuck_since() else { return Some(due) };
        let limiter = &self.port.policy.receive;
        Some(if limiter.is_open(now) { due.min(since.saturating_add(times.stall_timeout)) } else { limiter.opens_at() })
    }

    /// Repeats the interrupt of a driver that may have lost one, if it is time for that.
    pub(super) fn call_again_if_stuck(&mut self, now: Cycles, times: &Times, faults: &mut Vec<(PortId, RingFault)>) -> bool {
        let again = self.notification.calls_again(now, &times.spans);
        if again {
            self.call_again(faults);
        }
        again
    }

    /// Interrupts the driver once more.
    pub(super) fn call_again(&mut self, faults: &mut Vec<(PortId, RingFault)>) {
        if let Some(Err(fault)) = self.sink.ring().map(Ring::call_again) {
            self.fail(fault, faults);
        }
    }

    /// Lost-notification check: true if an interrupt of its driver seemed lost in two checks.
    pub(super) fn look(&mut self) -> bool {
        let ring = self.sink.ring();
        self.notification.look(|| ring.is_some_and(|ring| ring.awaits_call()).then_some(Missed::Call)).is_some()
    }

    /// The stall timeout is over: drops all enqueued frames, or only frames of `too_long` bytes or more if there is room for
    /// shorter ones, which ends their head-of-line blocking.
    pub(super) fn give_up(
        &mut self,
        too_long: u32,
        wait_queue: &mut WaitQueue,
        (now, times): (Cycles, &Times),
        mut dropped: impl FnMut(&Packet, DropReason),
    ) {
        if too_long < u32::MAX {
            self.turns.remove_if(
                wait_queue,
                |packet| packet.length >= too_long,
                |packet| dropped(packet, DropReason::TooLongForReceiver),
            );
            self.notification.begin_to_stand(now, &times.spans);
        } else {
            self.stall(now);
            self.turns.remove_if(wait_queue, |_| true, |packet| dropped(packet, DropReason::ReceiverStalled));
        }
    }

    /// Sends a copy of `packet` along the emulated link. Losses are counted here: of a GSO frame, only some segments may be lost.
    pub(super) fn send_along_line(&mut self, packet: &mut Packet, now: Cycles, work: &mut Work) -> SendOutcome {
        let Some(line) = &mut self.line else { return SendOutcome::Dropped(DropReason::ReceiverAbsent) };
        if !is_in_memory(packet) {
            work.work_units += work_units::TURN;
            return SendOutcome::Dropped(DropReason::SenderMemory);
        }
        let taken = if packet.is_foreign() {
            fetched(packet, self.port.foreign(), &mut Vec::new(), |packet| line.take(packet, now))
        } else {
            Some(line.take(packet, now))
        };
        let Some(taken) = taken else { return SendOutcome::Dropped(DropReason::GrantRefused) };
        self.off_line[0].1 += taken.lost;
        for (reason, count) in [(DropReason::LinkLoss, taken.lost), (DropReason::LinkFull, taken.refused)] {
            if count > 0 {
                work.taps.dropped(packet, self.key.port, reason);
            }
        }
        self.off_line[1].1 += taken.refused;
        // The sender pays for each segment of its GSO frame.
        packet.segments_done += taken.frames as u16;
        work.work_units += u64::from(taken.frames) * work_units::FRAME + u64::from(packet.length);
        SendOutcome::Done
    }

    /// Delivers the frames whose emulated delay is over, and removes a link emulation that has ended. After the stall timeout,
    /// drops frames without room. Returns the number of frames delivered, and whether there is anything to publish.
    pub(super) fn serve_line(
        &mut self,
        packet: &mut Packet,
        now: Cycles,
        times: &Times,
        faults: &mut Vec<(PortId, RingFault)>,
        work: &mut Work,
        dropped: &mut impl FnMut(PortId, DropReason),
    ) -> (u32, bool) {
        let Some(mut line) = self.line.take() else { return (0, false) };
        line.forget_placed();
        if line.is_over() {
            return (0, false);
        }
        let (mut served, mut moved) = (0, false);
        // Bounded, so that an emulated link with many frames does not keep others waiting.
        let mut slice = Slice::new(work.work_units, work_units::TURN);
        for _ in 0..TURN {
            if slice.is_over(work.work_units) {
                break;
            }
            // Where a rate limit holds back, the receiver is not the cause.
            let open = self.port.policy.receive.is_open(now);
            let given_up = open && self.is_stuck_for(times.stall_timeout, now);
            let place = |packet: &mut Packet| {
                let sent = self.place(packet, now, faults, work);
                moved |= sent == SendOutcome::Done;
                let sent = match sent {
                    SendOutcome::MustWait if given_up => SendOutcome::Dropped(DropReason::ReceiverStalled),
                    sent => sent,
                };
                if let SendOutcome::Dropped(reason) = sent {
                    work.taps.dropped(packet, self.key.port, reason);
                }
                (sent, sent != SendOutcome::MustWait)
            };
            match line.serve(now, packet, place) {
                Some(SendOutcome::Done) => {
                    served += 1;
                    self.notification.move_on();
                }
                Some(SendOutcome::Dropped(reason)) => dropped(self.key.port, reason),
                Some(SendOutcome::MustWait) => {
                    self.stand_still(open, now, times);
                    moved |= self.call_again_if_stuck(now, times, faults);
                    break;
                }
                None => break,
            }
        }
        self.line = Some(line);
        (served, moved || self.has_unshown())
    }

    /// True if its ring has used buffers that are not published, even those that broke a rule.
    pub(super) fn has_unshown(&mut self) -> bool {
        self.sink.ring().is_some_and(|ring| ring.has_unshown())
    }

    /// Adds this egress queue, which is at `slot`, to `touched`: there is something to publish or to count.
    #[inline]
    pub(super) fn touch(&mut self, slot: Slot, touched: &mut Vec<Slot>) {
        if !self.touched {
            self.touched = true;
            touched.push(slot);
        }
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
        (arrives && self.notification.stuck_since().is_none()) || self.line.as_ref().is_some_and(|line| line.has_placed())
    }

    /// True if a frame could be delivered now if there were room.
    pub(super) fn awaits_room(&self, now: Cycles) -> bool {
        let at_end = self.arrival().is_some_and(|due| due <= now);
        self.turns.waiting() > 0 || (at_end && self.notification.stuck_since().is_some())
    }

    /// A frame is enqueued for its driver, which is the cause if its rate limit is `open`.
    fn stand_still(&mut self, open: bool, now: Cycles, times: &Times) {
        if open {
            self.notification.stand_still(now, &times.spans);
        } else {
            self.notification.begin_to_stand(now, &times.spans);
        }
    }

    /// It was served, or enqueued frames were removed: if none is left, its driver has nothing to take.
    pub(super) fn move_on_if_served(&mut self, now: Cycles) {
        if !self.awaits_room(now) {
            self.notification.move_on();
        }
    }

    /// Whether it has taken nothing for longer `than` that, though frames are enqueued for it.
    pub(super) fn is_stuck_for(&self, than: Cycles, now: Cycles) -> bool {
        self.notification.stuck_since().is_some_and(|since| now.wrapping_sub(since) > than)
    }

    /// It has exceeded the stall timeout.
    pub(super) fn stall(&mut self, now: Cycles) {
        if !std::mem::replace(&mut self.stalled, true) {
            self.stalled_since = self.notification.stuck_since().unwrap_or(now);
        }
    }

    /// View of it for the operator; `None` unless it is a ring.
    pub(super) fn view(&mut self, now: Cycles) -> Option<QueueView> {
        let stuck = if self.stalled { Some(self.stalled_since) } else { self.notification.stuck_since() };
        Some(QueueView {
            key: self.key,
            ring: self.sink.ring()?.view(),
            enabled: self.enabled,
            started: self.started,
            unfilled: self.unfilled,
            awaits_kick: !self.started,
            stuck: stuck.map(|since| duration(now.saturating_sub(since))),
            blocked: None,
        })
    }

    /// Admits `sender` to the room there is; false if other blocked senders must catch up first (fair queueing).
    #[inline]
    pub(super) fn admit(&mut self, sender: PortId, now: Cycles, fair_queues: &mut usize) -> bool {
        let Some(fair_queue) = &mut self.fair_queue else { return true };
        if fair_queue.begin_pass(now) {
            return fair_queue.may_send(sender);
        }
        self.fair_queue = None;
        *fair_queues -= 1;
        true
    }

    #[inline(never)]
    pub(super) fn place(
        &mut self,
        packet: &mut Packet,
        now: Cycles,
        faults: &mut Vec<(PortId, RingFault)>,
        work: &mut Work,
    ) -> SendOutcome {
        if !self.open {
            return SendOutcome::Dropped(DropReason::ReceiverAbsent);
        }
        if !self.port.policy.receive.is_open(now) {
            self.limited += 1;
            return SendOutcome::MustWait;
        }
        if self.shut_until > now {
            return SendOutcome::MustWait;
        }
        let before = packet.segments_done;
        let placed =
            if packet.is_foreign() && !self.sink.takes_foreign() { self.place_fetched(packet) } else { self.sink.place(packet) };
        let segments = u64::from(packet.segments_done.saturating_sub(before)).max(1);
        work.work_units += segments * work_units::FRAME;
        let walked = self.sink.take_walked();
        if walked > segments * BURDEN + u64::from(packet.length / work_units::SMALL)
            || placed == Ok(PlaceOutcome::Refused(DropReason::BadReceiveChains))
        {
            self.burden(walked, now, work);
        }
        match placed {
            Ok(PlaceOutcome::Complete(frames)) => {
                work.work_units += u64::from(packet.length);
                self.frames += u64::from(frames);
                self.bytes += u64::from(packet.length);
                self.port.policy.receive.charge(packet.length.into(), frames.into(), now);
                self.stalled = false;
                work.taps.receive(packet, self.key.port);
                if let Some(waited) = packet.stamp.until(now) {
                    self.port.counters(work.worker.into()).waits.add(waited);
                }
                SendOutcome::Done
            }
            Ok(PlaceOutcome::NoRoom) => {
                self.note_posted(now);
                SendOutcome::MustWait
            }
            Ok(PlaceOutcome::Refused(reason @ DropReason::ReceiverMemory)) => {
                // Its page faults are charged to the receiver.
                self.burden(work_units::TURN / work_units::DESCRIPTOR, now, work);
                SendOutcome::Dropped(reason)
            }
            Ok(PlaceOutcome::Refused(reason)) => {
                work.work_units += if reason == DropReason::SenderMemory { work_units::TURN } else { 0 };
                SendOutcome::Dropped(reason)
            }
            Err(fault) => {
                self.fail(fault, faults);
                SendOutcome::Dropped(DropReason::ReceiverAbsent)
            }
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

    /// Publishes placed frames to the receiver.
    pub(super) fn show(&mut self) {
        self.sink.publish();
        self.fetched.clear();
    }

    fn note_posted(&mut self, now: Cycles) {
        let seen = self.sink.ring().map_or(0, |ring| ring.seen());
        self.posted.look(seen, now);
    }

    /// Against head-of-line blocking: true if a frame found no room in the posted buffers, and no more were posted for so long a
    /// `time`. The receiver may never post more, and shorter frames need not wait for that.
    pub(super) fn lets_pass(&mut self, time: Cycles, now: Cycles) -> bool {
        let still = self.shut_until <= now && self.posted.age > time && self.port.policy.receive.is_open(now);
        still && self.has_buffers()
    }

    /// True if its receiver has posted buffers that were not taken.
    pub(super) fn has_buffers(&mut self) -> bool {
        self.sink.ring().is_some_and(|ring| ring.has_untaken())
    }

    /// So many descriptors were walked for one frame, nearly in vain: the receiver's port is charged for it, once in a poll
    /// iteration, and its buffers are left alone while it is throttled.
    #[cold]
    fn burden(&mut self, walked: u64, now: Cycles, work: &mut Work) {
        let work_units = work_units::FRAME + walked * work_units::DESCRIPTOR;
        work.work_units += work_units;
        work.burdens.push((self.slot, self.key.port, work_units));
        self.shut_until = now + 1;
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

    /// Sets whether that is so, for an egress queue with a driver that kicks.
    pub(crate) fn set_unfilled(&mut self, unfilled: bool) {
        self.unfilled = unfilled;
    }

    fn settle(&mut self) {
        self.open = self.enabled && self.started && !self.faulty;
    }

    /// Closes this egress queue, because its driver broke the ring.
    pub(super) fn fail(&mut self, fault: RingFault, faults: &mut Vec<(PortId, RingFault)>) {
        self.faulty = true;
        self.settle();
        faults.push((self.key.port, fault));
    }

    pub(super) fn count(&mut self, counters: &PortCounters) {
        counters.receive_frames.add(std::mem::take(&mut self.frames));
        counters.receive_bytes.add(std::mem::take(&mut self.bytes));
        let under_way = self.line.as_ref().map_or(0, |line| line.len());
        counters.waiting.set(u64::from(self.turns.waiting()) + under_way as u64);
        counters.turns.add(self.turns.take_taken());
        counters.receive_limited.add(std::mem::take(&mut self.limited));
        let calls = self.sink.ring().map_or(0, Ring::take_calls);
        let bad = self.sink.take_bad_chains();
        let off_line = std::mem::replace(&mut self.off_line, NOTHING_OFF_LINE);
        // The frames that the kernel or a peer refused are gone: their number is known.
        for (reason, count) in self.sink.take_refused() {
            (0..count).for_each(|_| probes::drop(self.key.port, reason, 0));
            counters.drop_frames(reason, count);
        }
        for (reason, count) in off_line {
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
