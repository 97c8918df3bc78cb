//! A source: one transmit queue or TAP, and a worker's state of it.
//!
//! A packet that finds no room is enqueued at its receiver with its chain in flight, stays in the ring (backpressure), or is dropped:
//! [`Offer::wait`] decides, within the receiver's [quota](RingQuota) of the ring.

#![expect(clippy::indexing_slicing, reason = "the list is grown to the port's index before")]

use std::sync::{Arc, mpsc};

use super::feed::Feed;
use super::timer_poll::Stream;
use crate::egress::{Congestion, Origin, Readiness, RingQuota, Wait};
use crate::id::{Direction, PortId, RingKey, RouteEntry};
use crate::memory::MemoryMap;
use crate::notification::{Missed, NotificationState, Spans};
use crate::offload::Offloads;
use crate::packet::{Packet, Stamp};
use crate::policy::rules::{KnownRules, PortRules};
use crate::port::Port;
use crate::probes;
use crate::record::LastDecision;
use crate::ring::{Ring, RingFault, SplitRing, StoppedRing};
use crate::settings::{Poll, Settings};
use crate::stats::{DropReason, PortCounters};
use crate::threshold::DynamicThreshold;
use crate::time::{Cycles, in_cycles};
use crate::tuning::{LITTLE_BYTES, POLLED_ROOM};
use crate::verdict::FlowCache;

/// [`LITTLE_BYTES`] in frames of 1 KiB.
const LITTLE_FRAMES: u16 = (LITTLE_BYTES >> 10) as u16;

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
    /// Rules about its frames.
    pub rules: KnownRules<PortRules>,
    /// Version of its port's grants.
    pub grants_seen: u32,
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
    quota: RingQuota,
    /// Receiver of the last frame, and how many frames in a row were for it.
    receiver: PortId,
    in_a_row: u32,
    /// Bytes completed since the driver's last interrupt.
    pub bytes_back: u64,
    /// Bytes that its port had received when interrupt coalescing was last considered.
    delivered: u64,
    pub(super) touched: bool,
    /// Notification state: detects lost kicks and interrupts, and delays interrupts.
    pub(super) notification: NotificationState,
    /// Moment of its last frames, for busy polling of recently active sources.
    pub active: Cycles,
    /// Whether it sends a one-way stream, without waiting for answers.
    pub stream: Stream,
    /// The last decision on its frames, while a recorder is on.
    pub last_decision: Option<Box<LastDecision>>,
}

/// Backpressure: a descriptor chain that was left in the transmit ring, to be opened again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backpressured {
    /// When it was first left there.
    pub since: Cycles,
    /// The receiver; the sender itself if the frame is flooded.
    pub port: PortId,
    /// The egress queue without room. If an inter-worker queue was full, only the worker matters, not the slot.
    pub entry: RouteEntry,
    /// Segments of it that were delivered already.
    pub segments_done: u16,
    /// Number of the source in captures.
    pub capture_id: u32,
    /// When it was first taken from the transmit queue, if its latency is measured.
    pub stamp: Stamp,
}

/// See [`Source::when_back`].
#[derive(Debug)]
pub(crate) enum WhenBack {
    /// Stop, and reply.
    Stop(mpsc::Sender<StoppedRing>),
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
    /// The driver broke the ring, or it is being stopped: no more chains are taken.
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
            rules: KnownRules::new(&port.policy.rules),
            grants_seen: 0,
            state: PollState::Unstarted,
            enabled: false,
            in_flight_for: Vec::new(),
            when_back: None,
            polled: false,
            backpressured: None,
            backpressure_for,
            stall_timeout: in_cycles(settings.stall_timeout),
            held_until: None,
            quota: RingQuota::new(settings.share),
            receiver: PortId::default(),
            in_a_row: 0,
            bytes_back: 0,
            delivered: 0,
            touched: false,
            notification: NotificationState::default(),
            active: 0,
            stream: Stream::default(),
            last_decision: None,
        }
    }

    pub(crate) fn port(&self) -> PortId {
        self.key.port
    }

    /// When its ring is looked at again, if that waits for memory that is still to be filled.
    #[inline]
    pub(crate) fn memory_until(&mut self) -> Option<Cycles> {
        self.feed.ring().and_then(|ring| ring.waits_until())
    }

    /// Whether its ring is to be left alone in moment `now`, because it waits for memory.
    #[inline]
    pub(crate) fn waits_for_memory(&mut self, now: Cycles) -> bool {
        self.memory_until().is_some_and(|until| now < until)
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

    /// Whether another packet for `port` may be in flight, while its receiver is as ready as this.
    pub(crate) fn has_quota(&mut self, port: PortId, receiver: Readiness) -> bool {
        let held = self.in_flight_for.get(port.index()).copied().unwrap_or(0);
        let (is_sole, free) = (self.has_one_receiver(), self.free());
        self.quota.admits(receiver, is_sole, held, free)
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
    pub(crate) fn backpressure_time(&mut self, has_quota: bool) -> Cycles {
        if !has_quota && self.has_one_receiver() { self.stall_timeout } else { self.backpressure_for }
    }

    /// Whether an opened packet that had no room may be left in the ring; at most for `time` since the first attempt. `to` are its
    /// receiver and the receiver's queue.
    pub(crate) fn try_backpressure(&mut self, packet: &Packet, to: (PortId, RouteEntry), time: Cycles, now: Cycles) -> bool {
        if time == 0 {
            return false;
        }
        let since = self.backpressured.map_or(now, |before| before.since);
        let ((port, entry), segments_done) = (to, packet.segments_done);
        let (capture_id, stamp) = (packet.capture_id, packet.stamp);
        self.backpressured = Some(Backpressured { since, port, entry, segments_done, capture_id, stamp });
        now.saturating_sub(since) < time
    }

    /// Whether the frame that backpressure left in the ring was for another receiver, or another of its queues.
    pub(crate) fn has_other_destination(&self, port: PortId, entry: RouteEntry) -> bool {
        self.backpressured.is_some_and(|backpressured| (backpressured.port, backpressured.entry) != (port, entry))
    }

    /// Restarts the time of the backpressure at `now`, because its receiver is not the cause of it.
    fn excuse(&mut self, now: Cycles) {
        if let Some(backpressured) = &mut self.backpressured {
            backpressured.since = now;
        }
    }

    /// The worker rests in moment `now`. If it `may` leave this source to timer polling, and the source sends a one-way stream: the moment of
    /// the next poll.
    pub(crate) fn poll_by_timer(&mut self, may: bool, now: Cycles) -> Option<Cycles> {
        let Some(ring) = self.feed.ring().filter(|_| may) else {
            self.stream.until = None;
            return None;
        };
        self.stream.update_timer_poll(ring.size(), self.port.delivered(), now);
        self.stream.until
    }

    /// Interrupt coalescing: drops a delayed interrupt if the driver has seen the completions meanwhile. True if it was dropped.
    pub(super) fn drop_seen_interrupt(&mut self) -> bool {
        let Some(shown) = self.notification.put_off_at() else { return false };
        let looked = self.feed.ring().is_some_and(|ring| ring.drop_seen_interrupt(shown));
        if looked {
            self.bytes_back = 0;
        }
        looked
    }

    /// Whether completions were published for which no interrupt was considered yet.
    pub(super) fn has_pending_interrupt(&mut self) -> bool {
        self.feed.ring().is_some_and(|ring| ring.unconsidered() > 0)
    }

    /// Counts the interrupts that its ring sent.
    #[inline]
    pub(super) fn count_calls<'c>(&mut self, counters: impl FnOnce(PortId) -> &'c PortCounters) {
        let calls = self.feed.ring().map_or(0, Ring::take_calls);
        if calls > 0 {
            probes::call(self.key);
            counters(self.port()).interrupts.add(calls.into());
        }
    }

    /// Interrupt coalescing: delays the interrupt for published completions; false if it was delayed long enough.
    pub(super) fn put_off(&mut self, now: Cycles, spans: &Spans) -> bool {
        let shown = self.feed.ring().map_or(0, |ring| ring.shown());
        self.notification.put_off(shown, now, spans)
    }

    /// Considers whether so few completions were published that their interrupt can wait: the guest exchanges requests and answers. A guest
    /// that acknowledges a stream is interrupted at once, because that makes streams faster.
    pub(super) fn consider_delay(&mut self) -> bool {
        let delivered = self.port.delivered_bytes();
        let got = delivered.wrapping_sub(std::mem::replace(&mut self.delivered, delivered));
        let few = self.bytes_back < LITTLE_BYTES && got < LITTLE_BYTES;
        self.feed.ring().is_some_and(|ring| few && ring.can_call() && ring.unconsidered() <= LITTLE_FRAMES.min(ring.size() / 8))
    }

    /// Drops the interrupt that is considered if the driver does not request it. A deadline for it would wake the worker in vain: a driver
    /// that requests one later looks at the used ring after that (virtio 1.4, section 2.7.14).
    pub(super) fn drop_unrequested_interrupt(&mut self) -> bool {
        self.feed.ring().is_some_and(Ring::drop_unrequested_interrupt)
    }

    /// Lost-notification check; returns the notification that seemed lost in two checks.
    pub(crate) fn look_after(&mut self, counters: &PortCounters) -> Result<Option<Missed>, RingFault> {
        let missed = self.feed.look_after(&mut self.notification, self.state == PollState::Asleep);
        self.count_calls(|_| counters);
        missed
    }

    /// A packet that was in flight is done with; `from` is its receiver, `None` if it was flooded.
    pub(crate) fn come_back(&mut self, head: u16, from: Option<PortId>) {
        if let Some(out) = from.and_then(|port| self.in_flight_for.get_mut(port.index())) {
            *out = out.saturating_sub(1);
        }
        self.feed.come_back(head);
    }
}

/// A packet that `source` offers to the queue at `entry` of `port`.
#[derive(Debug)]
pub(crate) struct Offer<'s> {
    pub source: &'s mut Source,
    pub port: PortId,
    pub entry: RouteEntry,
}

impl Origin for Offer<'_> {
    fn wait(&mut self, packet: &Packet, at: Congestion) -> Wait {
        let Self { source, port, entry } = self;
        let has_quota = at.has_place && source.has_quota(*port, at.receiver);
        if source.in_order && at.is_held_back {
            source.excuse(at.now);
        }
        let time = source.backpressure_time(has_quota);
        match at.receiver {
            Readiness::Stalled if has_quota && !source.in_order => Wait::Enqueue,
            Readiness::Stalled => Wait::Drop(DropReason::ReceiverStalled),
            // Where other senders are enqueued already, enqueue too, for a fair share.
            _ if has_quota && at.has_queue => Wait::Enqueue,
            _ if source.try_backpressure(packet, (*port, *entry), time, at.now) => Wait::Block,
            // Head-of-line blocking: no chain behind it could be completed before it (VIRTIO_F_IN_ORDER).
            _ if source.in_order => Wait::Drop(DropReason::ReceiverStalled),
            _ if has_quota => Wait::Enqueue,
            _ => Wait::Drop(DropReason::ReceiverFull),
        }
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
