//! Sources: where frames come in, and what a worker keeps about each.

mod doze;
mod feed;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::agenda::Agenda;
use crate::id::{Direction, PortId, RingKey, RouteEntry, Slot};
use crate::memory::MemoryMap;
use crate::notice::{Missed, Notice, Spans};
use crate::offload::Offloads;
use crate::outlets::Health;
use crate::parcel::Parcel;
use crate::port::Port;
use crate::ring::{Ring, RingFault, SplitRing};
use crate::settings::{Poll, Settings};
use crate::slots::Slots;
use crate::stats::PortCounters;
use crate::time::{Cycles, in_cycles};
use crate::verdict::Memo;
use doze::Stream;
pub(crate) use feed::Feed;

/// What a driver need not hear of at once when it goes back: a request, an acknowledgement.
const LITTLE_BYTES: u64 = 8192;
const LITTLE_FRAMES: u16 = 8;
/// How long it takes a receiver that polls to take a batch.
const POLLED_ROOM: Duration = Duration::from_micros(4);

/// A feed and its circumstances.
#[derive(Debug)]
pub(crate) struct Source {
    pub key: RingKey,
    pub port: Arc<Port>,
    pub feed: Feed,
    /// The driver wants its chains back in order.
    pub in_order: bool,
    /// What the sender may leave to others.
    pub offloads: Offloads,
    pub memo: Memo,
    pub state: State,
    /// Rings that are started but disabled consume and discard (vhost-user, "Ring states").
    pub enabled: bool,
    /// Parcels that are out to each port.
    out_for: Vec<u16>,
    /// What is to be done when nothing is out any more; nothing is taken before.
    pub when_back: Option<WhenBack>,
    /// The driver does not kick: it wants to be polled (SET_VRING_KICK without a descriptor).
    pub polled: bool,
    /// The next chain, if it was postponed because its receiver had no room.
    pub postponed: Option<Postponed>,
    /// How long it may be postponed, usually and at most.
    postpone_for: Cycles,
    pub patience: Cycles,
    /// The port's limit holds it back until then.
    pub held_until: Option<Cycles>,
    share: Share,
    /// Whom the last frame was for, and how many in a row were for it.
    receiver: PortId,
    in_a_row: u32,
    /// Bytes taken since its driver was last called.
    pub bytes_back: u64,
    /// Bytes that were delivered to its port until it was last considered whether a call may wait.
    delivered: u64,
    touched: bool,
    /// What its driver has perhaps not heard of, or we of it.
    notice: Notice,
    /// When it last had frames.
    pub active: Cycles,
    /// Whether it sends without waiting for answers.
    pub stream: Stream,
}

/// What a receiver that is not at its best may hold of a ring, as factors of dynamic thresholds in sixteenths (Choudhury and Hahne,
/// "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): with factor a it gets at most a / (1 + a) of the ring.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The operator's share.
    usual: u32,
    /// A receiver that takes frames, and is the sender's only one: a reserve is left for others.
    sole: u32,
    /// A receiver that took nothing for longer than the patience: it costs little, and finds something when it comes to.
    stalled: u32,
}

impl Share {
    fn new(share: f32) -> Self {
        let usual = (16.0 * share / (1.0 - share)).max(1.0) as u32;
        Self { usual, sole: usual.max(7 * 16), stalled: usual.div_ceil(16) }
    }
}

/// A chain that waits in its ring, to be opened again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Postponed {
    /// When it was first postponed.
    pub since: Cycles,
    /// The receiver; the sender itself if it is for everybody.
    pub port: PortId,
    /// The outlet that had no room. Where another worker had none, for that is all there is to ask for, the slot does not matter.
    pub entry: RouteEntry,
    /// Segments of it that were delivered already.
    pub segments_done: u16,
}

/// See [`Source::when_back`].
#[derive(Debug)]
pub(crate) enum WhenBack {
    /// Stop, and answer with the base.
    Stop(mpsc::Sender<u16>),
    /// Go on in other memory, in this state.
    Move(SplitRing, Arc<MemoryMap>, mpsc::Sender<()>, State),
}

/// Whether a source is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for its first kick (vhost-user, "Ring states": started by a kick).
    Unstarted,
    /// Armed: a kick will tell.
    Asleep,
    /// Looked at in every pass.
    Awake,
    /// Broke its ring, or is being stopped: nothing more is taken.
    Closed,
}

impl Source {
    pub(crate) fn new((port, pair): (&Arc<Port>, u16), feed: Feed, offloads: Offloads, settings: &Settings) -> Self {
        let mut feed = feed;
        let in_order = feed.ring().is_some_and(|ring| ring.options().in_order);
        let postpone_for = postpone_for(in_order, settings);
        Self {
            key: RingKey { port: port.id, pair, direction: Direction::Transmit },
            port: Arc::clone(port),
            feed,
            in_order,
            offloads,
            memo: Memo::default(),
            state: State::Unstarted,
            enabled: false,
            out_for: Vec::new(),
            when_back: None,
            polled: false,
            postponed: None,
            postpone_for,
            patience: in_cycles(settings.patience),
            held_until: None,
            share: Share::new(settings.share),
            receiver: PortId::default(),
            in_a_row: 0,
            bytes_back: 0,
            delivered: 0,
            touched: false,
            notice: Notice::default(),
            active: 0,
            stream: Stream::default(),
        }
    }

    pub(crate) fn port(&self) -> PortId {
        self.key.port
    }

    /// Notes that a frame is for `port`.
    #[inline]
    pub(crate) fn note_receiver(&mut self, port: PortId) {
        if self.receiver != port {
            (self.receiver, self.in_a_row) = (port, 0);
        } else if self.postponed.is_none() {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
    }

    /// True if as many frames as the ring holds were for the same receiver.
    fn has_one_receiver(&mut self) -> bool {
        self.in_a_row >= self.feed.size().into()
    }

    /// Whether another parcel for `port` may stay out: as many as its share of the heads that are left to the guest, see [`Share`].
    pub(crate) fn may_keep_out(&mut self, port: PortId, health: Health) -> bool {
        let left = u32::from(self.feed.size().saturating_sub(self.feed.out_count()));
        let factor = match health {
            Health::Stalled => self.share.stalled,
            Health::Moving if self.has_one_receiver() => self.share.sole,
            Health::Moving | Health::Stuck => self.share.usual,
        };
        16 * u32::from(self.out_for.get(port.index()).copied().unwrap_or(0)) < left * factor
    }

    /// Keeps a parcel for `port` out.
    pub(crate) fn keep_out(&mut self, parcel: &Parcel, port: PortId) {
        self.feed.keep_out(parcel, 1);
        if self.out_for.len() <= port.index() {
            self.out_for.resize(port.index() + 1, 0);
        }
        self.out_for[port.index()] += 1;
    }

    /// How long an opened parcel that its receiver has no room for may be postponed: it stays in the ring, to be tried again.
    ///
    /// In-order rings have no other way of waiting: nothing behind it could be given back anyway. For others it saves the effort of
    /// parking where receivers poll and will soon have room; and where the receiver's share of the ring is used up, so that it may
    /// not be kept out, it saves the frame of a sender that has nothing to send to others, who feels the receiver's pace instead.
    pub(crate) fn postpone_time(&mut self, may_keep_out: bool) -> Cycles {
        if !may_keep_out && self.has_one_receiver() { self.patience } else { self.postpone_for }
    }

    /// Whether an opened parcel for `port`, which had no room at `entry`, may be postponed; that is so for so long a `time`.
    pub(crate) fn may_postpone(&mut self, parcel: &Parcel, port: PortId, entry: RouteEntry, time: Cycles, now: Cycles) -> bool {
        let postponed = self.postponed.get_or_insert(Postponed { since: now, port, entry, segments_done: 0 });
        (postponed.port, postponed.entry, postponed.segments_done) = (port, entry, parcel.segments_done);
        now.saturating_sub(postponed.since) < time
    }

    /// That a chain is postponed is not its receiver's fault up to `now`.
    pub(crate) fn excuse(&mut self, now: Cycles) {
        if let Some(postponed) = &mut self.postponed {
            postponed.since = now;
        }
    }

    /// Whether its driver has looked at what it was shown when its call was put off: then it need not hear of that.
    fn has_looked(&mut self) -> bool {
        let Some(shown) = self.notice.put_off_at() else { return false };
        let looked = self.feed.ring().is_some_and(|ring| ring.has_looked(shown));
        if looked {
            self.bytes_back = 0;
        }
        looked
    }

    /// Whether its driver was shown anything that calls were not considered for.
    fn owes_call(&mut self) -> bool {
        self.feed.ring().is_some_and(|ring| ring.unconsidered() > 0)
    }

    /// Has its ring make this `call`, and counts.
    pub(crate) fn call<'c>(
        &mut self,
        call: impl FnOnce(&mut Ring) -> Result<(), RingFault>,
        counters: impl FnOnce(PortId) -> &'c PortCounters,
    ) -> Result<(), RingFault> {
        let Some(ring) = self.feed.ring() else { return Ok(()) };
        let result = call(ring);
        let calls = ring.take_calls();
        if calls > 0 {
            counters(self.port()).calls.add(calls.into());
        }
        result
    }

    /// Has the call for what its driver was shown wait; false if it has waited long enough.
    fn put_off(&mut self, now: Cycles, spans: &Spans) -> bool {
        let shown = self.feed.ring().map_or(0, |ring| ring.shown());
        self.notice.put_off(shown, now, spans)
    }

    /// Whether so little went back to the driver that it need not hear of it at once: it exchanges requests and answers. Who acknowledges a stream is
    /// called, for a stream is faster so.
    fn may_call_later(&mut self) -> bool {
        let delivered = self.port.delivered_bytes();
        let got = delivered.wrapping_sub(std::mem::replace(&mut self.delivered, delivered));
        let few = self.bytes_back < LITTLE_BYTES && got < LITTLE_BYTES;
        self.feed.ring().is_some_and(|ring| few && ring.can_call() && ring.unconsidered() <= LITTLE_FRAMES.min(ring.size() / 8))
    }

    /// Looks again whether its driver seems to have missed something, or we of it; returns what has been missed for two looks.
    pub(crate) fn look(&mut self) -> Option<Missed> {
        let asleep = self.state == State::Asleep;
        let feed = &mut self.feed;
        self.notice.look(|| feed.missed(asleep))
    }

    /// A parcel that was kept out comes back; `from` is `None` if it was flooded.
    pub(crate) fn come_back(&mut self, head: u16, from: Option<PortId>) {
        if let Some(out) = from.and_then(|port| self.out_for.get_mut(port.index())) {
            *out = out.saturating_sub(1);
        }
        self.feed.come_back(head);
    }
}

/// See [`Source::postpone_time`].
fn postpone_for(in_order: bool, settings: &Settings) -> Cycles {
    if in_order {
        in_cycles(settings.patience)
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
    /// Slots to look at in every pass.
    pub awake: Vec<Slot>,
    /// Slots with completions that the driver was not shown yet.
    pub touched: Vec<Slot>,
    /// Sources that are armed.
    pub asleep: usize,
    /// When notices are due.
    agenda: Agenda,
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
        self.set_state(slot, State::Closed);
        self.agenda.forget(slot);
        self.slots.remove(slot)
    }

    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (Slot, &mut Source)> {
        self.slots.iter_mut()
    }

    pub(crate) fn set_state(&mut self, slot: Slot, state: State) {
        let Some(source) = self.slots.get_mut(slot) else { return };
        let old = std::mem::replace(&mut source.state, state);
        if old == state {
            return;
        }
        match old {
            State::Awake => self.awake.retain(|&other| other != slot),
            State::Asleep => self.asleep -= 1,
            State::Unstarted | State::Closed => {}
        }
        match state {
            State::Awake => self.awake.push(slot),
            State::Asleep => self.asleep += 1,
            State::Unstarted | State::Closed => {}
        }
    }

    /// Wakes a source that sleeps; one that was never started stays so.
    pub(crate) fn wake(&mut self, slot: Slot) {
        if self.get(slot).is_some_and(|source| source.state == State::Asleep) {
            self.set_state(slot, State::Awake);
        }
    }

    /// A kick came for `slot`: wakes it, and starts it if it was not.
    pub(crate) fn kicked(&mut self, slot: Slot) {
        let Some(source) = self.get(slot) else { return };
        if let Some(WhenBack::Move(.., then @ State::Unstarted)) = &mut source.when_back {
            *then = State::Awake;
        } else if matches!(source.state, State::Unstarted | State::Asleep) {
            self.set_state(slot, State::Awake);
        }
    }

    /// Takes nothing more from `slot`, nor after it has moved: its port broke a ring.
    pub(crate) fn close(&mut self, slot: Slot) {
        if let Some(Source { when_back: Some(WhenBack::Move(.., then)), .. }) = self.get(slot) {
            *then = State::Closed;
        }
        self.set_state(slot, State::Closed);
    }

    /// What was postponed for `entry` is so no more: its ring is gone.
    pub(crate) fn forget_postponed(&mut self, entry: RouteEntry) {
        for (_, source) in self.slots.iter_mut() {
            source.postponed = source.postponed.filter(|postponed| postponed.entry != entry);
        }
    }

    /// Wakes those that sleep and had frames after moment `since`: more are expected soon, and need no kick.
    pub(crate) fn wake_recent(&mut self, since: Cycles) {
        for slot in self.slots.taken() {
            if let Some(source) = self.get(slot)
                && source.state == State::Asleep
                && source.active > since
            {
                source.feed.ring().map(Ring::disarm);
                self.set_state(slot, State::Awake);
            }
        }
    }

    /// Notes that `slot` had so many `frames` in moment `now`, and that completions are to be published.
    #[inline]
    pub(crate) fn had_frames(&mut self, slot: Slot, frames: u32, now: Cycles) {
        if let Some(source) = self.get(slot) {
            source.active = now;
            source.stream.came = source.stream.came.saturating_add(frames);
        }
        self.touch(slot);
    }

    /// Notes that completions of `slot` are to be published.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot) {
        if let Some(source) = self.slots.get_mut(slot)
            && !source.touched
        {
            source.touched = true;
            self.touched.push(slot);
        }
    }

    /// Shows drivers what went back; true if there was anything. [`Self::call`] is to follow, after a fence.
    pub(crate) fn publish(&mut self) -> bool {
        for &slot in &self.touched {
            if let Some(source) = self.slots.get_mut(slot) {
                source.feed.publish();
            }
        }
        !self.touched.is_empty()
    }

    /// Calls the drivers that asked to hear of what was published, and counts; `faulty` hears of calls that block. Calls of drivers to whom
    /// little went back are [put off](Notice::put_off).
    pub(crate) fn call<'c>(
        &mut self,
        now: Cycles,
        counters: impl Fn(PortId) -> &'c PortCounters,
        mut faulty: impl FnMut(PortId, RingFault),
    ) {
        while let Some(slot) = self.touched.pop() {
            let Some(source) = self.slots.get_mut(slot) else { continue };
            source.touched = false;
            let mut changed = source.notice.happened() | (source.has_looked() && source.notice.told());
            if source.owes_call() {
                if source.may_call_later() && source.put_off(now, &self.spans) {
                    changed = true;
                } else {
                    changed |= source.notice.told();
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

    /// Something happened at the ring of `slot`, which may have fallen quiet with that.
    #[inline]
    pub(crate) fn happened(&mut self, slot: Slot, now: Cycles) {
        if self.slots.get_mut(slot).is_some_and(|source| source.notice.happened()) {
            self.expect(slot, now);
        }
    }

    /// Writes on the agenda when the notice of `slot` is due.
    fn expect(&mut self, slot: Slot, now: Cycles) {
        let due = self.slots.get(slot).and_then(|source| source.notice.due(now, self.spans.look));
        due.into_iter().for_each(|due| self.agenda.expect(slot, due));
    }

    /// True if some notice is due.
    #[inline]
    pub(crate) fn has_due(&self, now: Cycles) -> bool {
        self.agenda.is_due(now)
    }

    /// When the next notice is due.
    pub(crate) fn deadline(&self) -> Option<Cycles> {
        self.agenda.next()
    }

    /// Takes the slots whose notices are due. Those of which calls were put off are considered again by [`Self::call`]; the others are for the
    /// caller to look at.
    pub(crate) fn take_due(&mut self, now: Cycles) -> Vec<Slot> {
        let mut due = Vec::new();
        self.agenda.take_due(now, &mut due);
        due.retain(|&slot| {
            let put_off = self.slots.get(slot).is_some_and(|source| source.notice.put_off_at().is_some());
            if put_off {
                self.touch(slot);
            }
            !put_off
        });
        due
    }

    /// The notice of `slot` was due and is looked after: it is so again later, and so it is for a call that is `kept`.
    pub(crate) fn looked_after(&mut self, slot: Slot, kept: bool, now: Cycles) {
        if kept && let Some(source) = self.slots.get_mut(slot) {
            source.notice.happened();
        }
        self.expect(slot, now);
    }
}
