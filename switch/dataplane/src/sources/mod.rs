//! Sources: transmit queues and TAPs, and a worker's state of each. Backpressure ([`Backpressured`]), the quota of a receiver in a
//! transmit ring ([`Source::may_keep_in_flight`]), and interrupt coalescing of TX completions ([`Sources::call`]) are handled here.

mod blocked;
mod feed;
mod timer_poll;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::id::{Direction, PortId, RingKey, RouteEntry, Slot};
use crate::memory::MemoryMap;
use crate::notification::{Missed, NotificationState, Spans};
use crate::offload::Offloads;
use crate::outlets::Health;
use crate::packet::{Packet, Stamp};
use crate::port::Port;
use crate::ring::{Ring, RingFault, SplitRing};
use crate::settings::{Poll, Settings};
use crate::slots::Slots;
use crate::stats::PortCounters;
use crate::threshold::DynamicThreshold;
use crate::time::{Cycles, in_cycles};
use crate::timers::Timers;
use crate::verdict::FlowCache;
pub(crate) use blocked::{BlockReason, Blocked};
pub(crate) use feed::Feed;
use timer_poll::Stream;

/// Completions of at most so many bytes and frames need no interrupt at once: they complete a request or an acknowledgement, not a
/// stream.
const LITTLE_BYTES: u64 = 8192;
const LITTLE_FRAMES: u16 = 8;
/// Time in which a busy-polling receiver takes a batch.
const POLLED_ROOM: Duration = Duration::from_micros(4);

/// A feed, with the worker's state of it.
#[derive(Debug)]
pub(crate) struct Source {
    pub key: RingKey,
    pub port: Arc<Port>,
    pub feed: Feed,
    /// VIRTIO_F_IN_ORDER: the driver wants its descriptor chains completed in order.
    pub in_order: bool,
    /// Offloads that the sender may request.
    pub offloads: Offloads,
    pub flow_cache: FlowCache,
    pub state: PollState,
    /// Rings that are started but disabled consume and discard (vhost-user, "Ring states").
    pub enabled: bool,
    /// Packets in flight to each port.
    in_flight_for: Vec<u16>,
    /// The action once no chain is in flight any more; until then no more chains are taken.
    pub when_back: Option<WhenBack>,
    /// The driver does not kick: it wants to be polled (SET_VRING_KICK without a descriptor).
    pub polled: bool,
    /// Backpressure: the next descriptor chain, if it was left in the ring because its receiver had no room.
    pub backpressured: Option<Backpressured>,
    /// How long it may be left there usually; the stall timeout is the maximum.
    backpressure_for: Cycles,
    pub stall_timeout: Cycles,
    /// The port's rate limit holds it back until then.
    pub held_until: Option<Cycles>,
    share: Share,
    /// Receiver of the last frame, and how many frames in a row were for it.
    receiver: PortId,
    in_a_row: u32,
    /// Bytes completed since the driver's last interrupt.
    pub bytes_back: u64,
    /// Bytes that its port had received when interrupt coalescing was last considered.
    delivered: u64,
    touched: bool,
    /// Notification state: detects lost kicks and interrupts, and delays interrupts.
    notification: NotificationState,
    /// Moment of its last frames, for busy polling of recently active sources.
    pub active: Cycles,
    /// Whether it sends a one-way stream, without waiting for answers.
    pub stream: Stream,
}

/// Quota of a receiver in a transmit ring: with a dynamic threshold of factor a, frames in flight to one receiver take at most
/// a / (1 + a) of the ring.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The configured quota.
    usual: DynamicThreshold,
    /// For a receiver that takes frames, and is the sender's only one: a reserve is left for others.
    sole: DynamicThreshold,
    /// For a receiver that took nothing for longer than the stall timeout: it blocks little of the ring, and finds frames when it
    /// recovers.
    stalled: DynamicThreshold,
}

impl Share {
    fn new(share: f32) -> Self {
        let usual = (16.0 * share / (1.0 - share)).max(1.0) as u32;
        let [usual, sole, stalled] = [usual, usual.max(7 * 16), usual.div_ceil(16)].map(DynamicThreshold::sixteenths);
        Self { usual, sole, stalled }
    }
}

/// Backpressure: a descriptor chain that was left in the transmit ring, to be opened again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backpressured {
    /// When it was first left there.
    pub since: Cycles,
    /// The receiver; the sender itself if the frame is flooded.
    pub port: PortId,
    /// The outlet without room. If an inter-worker queue was full, only the worker matters, not the slot.
    pub entry: RouteEntry,
    /// Segments of it that were delivered already.
    pub segments_done: u16,
    /// Its number in captures.
    pub capture_id: u32,
    /// When it was first taken from the transmit queue, if its latency is measured.
    pub stamp: Stamp,
}

/// See [`Source::when_back`].
#[derive(Debug)]
pub(crate) enum WhenBack {
    /// Stop, and reply with the base.
    Stop(mpsc::Sender<u16>),
    /// Move the ring to other memory, and continue in this state.
    Move(SplitRing, Arc<MemoryMap>, mpsc::Sender<()>, PollState),
}

/// Whether a source is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollState {
    /// Waits for its first kick (vhost-user, "Ring states": started by a kick).
    Unstarted,
    /// Armed: the driver kicks when it adds chains.
    Asleep,
    /// Polled in every poll iteration.
    Awake,
    /// Its driver broke the ring, or it is being stopped: no more chains are taken.
    Closed,
}

impl Source {
    pub(crate) fn new((port, pair): (&Arc<Port>, u16), feed: Feed, offloads: Offloads, settings: &Settings) -> Self {
        let mut feed = feed;
        let in_order = feed.ring().is_some_and(|ring| ring.options().in_order);
        let backpressure_for = backpressure_for(in_order, settings);
        Self {
            key: RingKey { port: port.id, pair, direction: Direction::Transmit },
            port: Arc::clone(port),
            feed,
            in_order,
            offloads,
            flow_cache: FlowCache::default(),
            state: PollState::Unstarted,
            enabled: false,
            in_flight_for: Vec::new(),
            when_back: None,
            polled: false,
            backpressured: None,
            backpressure_for,
            stall_timeout: in_cycles(settings.stall_timeout),
            held_until: None,
            share: Share::new(settings.share),
            receiver: PortId::default(),
            in_a_row: 0,
            bytes_back: 0,
            delivered: 0,
            touched: false,
            notification: NotificationState::default(),
            active: 0,
            stream: Stream::default(),
        }
    }

    pub(crate) fn port(&self) -> PortId {
        self.key.port
    }

    /// Records `port` as the receiver of the present frame.
    #[inline]
    pub(crate) fn note_receiver(&mut self, port: PortId) {
        if self.receiver != port {
            (self.receiver, self.in_a_row) = (port, 0);
        } else if self.backpressured.is_none() {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
    }

    /// True if the last frames, as many as the ring holds, were for the same receiver.
    fn has_one_receiver(&mut self) -> bool {
        self.in_a_row >= self.feed.size().into()
    }

    /// Whether another packet for `port` may be in flight: a quota of the ring's free entries, see [`Share`].
    pub(crate) fn may_keep_in_flight(&mut self, port: PortId, health: Health) -> bool {
        let threshold = match health {
            Health::Stalled => self.share.stalled,
            Health::Moving if self.has_one_receiver() => self.share.sole,
            Health::Moving | Health::Stuck => self.share.usual,
        };
        let held = self.in_flight_for.get(port.index()).copied().unwrap_or(0);
        threshold.admits(held.into(), self.free().into())
    }

    /// Frames that may still be in flight.
    fn free(&mut self) -> u16 {
        self.feed.size().saturating_sub(self.feed.in_flight())
    }

    /// Whether a flooded packet may be in flight: half of the ring is kept for other frames.
    pub(crate) fn may_keep_flooded(&mut self) -> bool {
        DynamicThreshold::ONE.admits(self.feed.in_flight().into(), self.free().into())
    }

    /// Keeps a packet for `port` in flight.
    pub(crate) fn keep_in_flight(&mut self, packet: &Packet, port: PortId) {
        self.feed.keep_in_flight(packet, 1);
        if self.in_flight_for.len() <= port.index() {
            self.in_flight_for.resize(port.index() + 1, 0);
        }
        self.in_flight_for[port.index()] += 1;
    }

    /// Backpressure: how long an opened packet may be left in the ring, to be tried again, while its receiver has no room.
    ///
    /// For in-order rings there is no alternative: no chain behind it could be completed before it anyway. For other rings it saves
    /// the cost of enqueueing where receivers poll and will soon have room. And where the receiver's quota of the ring is used up,
    /// it saves the frame of a sender with only that receiver: the sender is slowed down to the receiver's rate instead.
    pub(crate) fn backpressure_time(&mut self, may_keep_in_flight: bool) -> Cycles {
        if !may_keep_in_flight && self.has_one_receiver() { self.stall_timeout } else { self.backpressure_for }
    }

    /// Whether an opened packet for `port`, which had no room at `entry`, may be left in the ring; at most for `time` since the
    /// first attempt.
    pub(crate) fn try_backpressure(&mut self, packet: &Packet, port: PortId, entry: RouteEntry, time: Cycles, now: Cycles) -> bool {
        let backpressured = self.backpressured.get_or_insert(Backpressured {
            since: now,
            port,
            entry,
            segments_done: 0,
            capture_id: packet.capture_id,
            stamp: packet.stamp,
        });
        (backpressured.port, backpressured.entry, backpressured.segments_done) = (port, entry, packet.segments_done);
        now.saturating_sub(backpressured.since) < time
    }

    /// Restarts the time of the backpressure at `now`, because its receiver is not the cause of it.
    pub(crate) fn excuse(&mut self, now: Cycles) {
        if let Some(backpressured) = &mut self.backpressured {
            backpressured.since = now;
        }
    }

    /// Interrupt coalescing: drops a delayed interrupt if the driver has seen the completions meanwhile. True if it was dropped.
    fn drop_seen_interrupt(&mut self) -> bool {
        let Some(shown) = self.notification.put_off_at() else { return false };
        let looked = self.feed.ring().is_some_and(|ring| ring.drop_seen_interrupt(shown));
        if looked {
            self.bytes_back = 0;
        }
        looked
    }

    /// Whether completions were published for which no interrupt was considered yet.
    fn has_pending_interrupt(&mut self) -> bool {
        self.feed.ring().is_some_and(|ring| ring.unconsidered() > 0)
    }

    /// Has its ring run `call`, which may interrupt the driver, and counts interrupts.
    pub(crate) fn call<'c>(
        &mut self,
        call: impl FnOnce(&mut Ring) -> Result<(), RingFault>,
        counters: impl FnOnce(PortId) -> &'c PortCounters,
    ) -> Result<(), RingFault> {
        let Some(ring) = self.feed.ring() else { return Ok(()) };
        let result = call(ring);
        let calls = ring.take_calls();
        if calls > 0 {
            counters(self.port()).interrupts.add(calls.into());
        }
        result
    }

    /// Interrupt coalescing: delays the interrupt for published completions; false if it was delayed long enough.
    fn put_off(&mut self, now: Cycles, spans: &Spans) -> bool {
        let shown = self.feed.ring().map_or(0, |ring| ring.shown());
        self.notification.put_off(shown, now, spans)
    }

    /// Considers whether so few completions were published that their interrupt can wait: the guest exchanges requests and answers. A guest
    /// that acknowledges a stream is interrupted at once, because that makes streams faster.
    fn consider_delay(&mut self) -> bool {
        let delivered = self.port.delivered_bytes();
        let got = delivered.wrapping_sub(std::mem::replace(&mut self.delivered, delivered));
        let few = self.bytes_back < LITTLE_BYTES && got < LITTLE_BYTES;
        self.feed.ring().is_some_and(|ring| few && ring.can_call() && ring.unconsidered() <= LITTLE_FRAMES.min(ring.size() / 8))
    }

    /// Lost-notification check: whether a kick or an interrupt seems to be lost; returns the one that seemed lost in two checks.
    pub(crate) fn look(&mut self) -> Option<Missed> {
        let asleep = self.state == PollState::Asleep;
        let feed = &mut self.feed;
        self.notification.look(|| feed.missed(asleep))
    }

    /// A packet that was in flight is done with; `from` is its receiver, `None` if it was flooded.
    pub(crate) fn come_back(&mut self, head: u16, from: Option<PortId>) {
        if let Some(out) = from.and_then(|port| self.in_flight_for.get_mut(port.index())) {
            *out = out.saturating_sub(1);
        }
        self.feed.come_back(head);
    }
}

/// See [`Source::backpressure_time`].
fn backpressure_for(in_order: bool, settings: &Settings) -> Cycles {
    if in_order {
        in_cycles(settings.stall_timeout)
    } else if settings.poll == Poll::Always {
        in_cycles(POLLED_ROOM)
    } else {
        0
    }
}

/// All sources of a worker, by slot.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    slots: Slots<Source>,
    /// Slots to poll in every poll iteration.
    pub awake: Vec<Slot>,
    /// Slots with completions that are not published yet.
    pub touched: Vec<Slot>,
    /// Number of sources that are armed, so that their drivers kick.
    pub asleep: usize,
    /// Timers of the notification states.
    timers: Timers,
    spans: Spans,
}

impl Sources {
    pub(crate) fn add(&mut self, source: Source) -> Slot {
        self.slots.add(|_| source)
    }

    #[inline]
    pub(crate) fn get(&mut self, slot: Slot) -> Option<&mut Source> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn find(&self, key: RingKey) -> Option<Slot> {
        self.slots.find(|source| source.key == key)
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Source> {
        self.set_state(slot, PollState::Closed);
        self.timers.forget(slot);
        self.slots.remove(slot)
    }

    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (Slot, &mut Source)> {
        self.slots.iter_mut()
    }

    pub(crate) fn set_state(&mut self, slot: Slot, state: PollState) {
        let Some(source) = self.slots.get_mut(slot) else { return };
        let old = std::mem::replace(&mut source.state, state);
        if old == state {
            return;
        }
        match old {
            PollState::Awake => self.awake.retain(|&other| other != slot),
            PollState::Asleep => self.asleep -= 1,
            PollState::Unstarted | PollState::Closed => {}
        }
        match state {
            PollState::Awake => self.awake.push(slot),
            PollState::Asleep => self.asleep += 1,
            PollState::Unstarted | PollState::Closed => {}
        }
    }

    /// Wakes a source that sleeps; one that was never started stays unstarted.
    pub(crate) fn wake(&mut self, slot: Slot) {
        if self.get(slot).is_some_and(|source| source.state == PollState::Asleep) {
            self.set_state(slot, PollState::Awake);
        }
    }

    /// A kick came for `slot`: wakes it, and starts it if it was not.
    pub(crate) fn kicked(&mut self, slot: Slot) {
        let Some(source) = self.get(slot) else { return };
        if let Some(WhenBack::Move(.., then @ PollState::Unstarted)) = &mut source.when_back {
            *then = PollState::Awake;
        } else if matches!(source.state, PollState::Unstarted | PollState::Asleep) {
            self.set_state(slot, PollState::Awake);
        }
    }

    /// Takes no more chains from `slot`, nor after its ring has moved: its port broke a ring.
    pub(crate) fn close(&mut self, slot: Slot) {
        if let Some(Source { when_back: Some(WhenBack::Move(.., then)), .. }) = self.get(slot) {
            *then = PollState::Closed;
        }
        self.set_state(slot, PollState::Closed);
    }

    /// Ends the backpressure of frames for `entry`: that ring is gone.
    pub(crate) fn forget_backpressured(&mut self, entry: RouteEntry) {
        for (_, source) in self.slots.iter_mut() {
            source.backpressured = source.backpressured.filter(|backpressured| backpressured.entry != entry);
        }
    }

    /// Busy polling of recently active sources: wakes those that sleep and had frames after moment `since`, without waiting for a
    /// kick.
    pub(crate) fn wake_recent(&mut self, since: Cycles) {
        for slot in self.slots.taken() {
            if let Some(source) = self.get(slot)
                && source.state == PollState::Asleep
                && source.active > since
            {
                source.feed.ring().map(Ring::disarm);
                self.set_state(slot, PollState::Awake);
            }
        }
    }

    /// Records that `slot` had so many `frames` in moment `now`, and that completions are to be published.
    #[inline]
    pub(crate) fn had_frames(&mut self, slot: Slot, frames: u32, now: Cycles) {
        if let Some(source) = self.get(slot) {
            source.active = now;
            source.stream.came = source.stream.came.saturating_add(frames);
        }
        self.touch(slot);
    }

    /// Records that completions of `slot` are to be published.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot) {
        if let Some(source) = self.slots.get_mut(slot)
            && !source.touched
        {
            source.touched = true;
            self.touched.push(slot);
        }
    }

    /// Publishes completions on the used rings; true if there were any. [`Self::call`] is to follow, after a fence.
    pub(crate) fn publish(&mut self) -> bool {
        for &slot in &self.touched {
            if let Some(source) = self.slots.get_mut(slot) {
                source.feed.publish();
            }
        }
        !self.touched.is_empty()
    }

    /// Interrupts the drivers that asked for it about published completions, and counts; `faulty` is called for interrupts that
    /// block. Interrupt coalescing: for a few completions the interrupt is [put off](NotificationState::put_off), and dropped if the driver
    /// reaps them by itself.
    pub(crate) fn call<'c>(
        &mut self,
        now: Cycles,
        counters: impl Fn(PortId) -> &'c PortCounters,
        mut faulty: impl FnMut(PortId, RingFault),
    ) {
        while let Some(slot) = self.touched.pop() {
            let Some(source) = self.slots.get_mut(slot) else { continue };
            source.touched = false;
            let mut changed = source.notification.happened() | (source.drop_seen_interrupt() && source.notification.told());
            if source.has_pending_interrupt() {
                if source.consider_delay() && source.put_off(now, &self.spans) {
                    changed = true;
                } else {
                    changed |= source.notification.told();
                    source.bytes_back = 0;
                    if let Err(fault) = source.call(Ring::call_if_wanted, &counters) {
                        faulty(source.port(), fault);
                    }
                }
            }
            if changed {
                self.expect(slot, now);
            }
        }
    }

    /// The ring of `slot` changed and may be quiet from now on, so its lost-notification check starts.
    #[inline]
    pub(crate) fn happened(&mut self, slot: Slot, now: Cycles) {
        if self.slots.get_mut(slot).is_some_and(|source| source.notification.happened()) {
            self.expect(slot, now);
        }
    }

    /// Sets the timer of `slot` to the deadline of its notification state.
    fn expect(&mut self, slot: Slot, now: Cycles) {
        let due = self.slots.get(slot).and_then(|source| source.notification.due(now, self.spans.look));
        due.into_iter().for_each(|due| self.timers.expect(slot, due));
    }

    /// True if some timer is due.
    #[inline]
    pub(crate) fn has_due(&self, now: Cycles) -> bool {
        self.timers.is_due(now)
    }

    /// The deadline of the next timer.
    pub(crate) fn deadline(&self) -> Option<Cycles> {
        self.timers.next()
    }

    /// Takes the slots whose timers are due. Delayed interrupts are considered again by [`Self::call`]; the other slots are for the
    /// caller's lost-notification check.
    pub(crate) fn take_due(&mut self, now: Cycles) -> Vec<Slot> {
        let mut due = Vec::new();
        self.timers.take_due(now, &mut due);
        due.retain(|&slot| {
            let put_off = self.slots.get(slot).is_some_and(|source| source.notification.put_off_at().is_some());
            if put_off {
                self.touch(slot);
            }
            !put_off
        });
        due
    }

    /// The timer of `slot` was handled: sets the next one, also for an interrupt that is `kept` back.
    pub(crate) fn looked_after(&mut self, slot: Slot, kept: bool, now: Cycles) {
        if kept && let Some(source) = self.slots.get_mut(slot) {
            source.notification.happened();
        }
        self.expect(slot, now);
    }
}
