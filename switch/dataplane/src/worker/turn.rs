//! A service quantum: a batch of frames of one source, each taken from its transmit queue, forwarded by a verdict, and sent,
//! enqueued, handed over, left in the ring (backpressure) or dropped.

use super::directory::Members;
use super::fate::Fates;
use super::peers::{Message, Peers};
use crate::airtime::effort::{self, BATCH};
use crate::airtime::slice::Slice;
use crate::fate::Fate;
use crate::frame::{Head, NetHeader};
use crate::id::{PortId, RouteEntry, Slot};
use crate::offload::{self, Offloads};
use crate::outlets::{ExpressKey, Health, Outlets, Sent};
use crate::parcel::{Parcel, Reach};
use crate::policy::Limiter;
use crate::port::Port;
use crate::ring::{Ring, RingFault, Taken};
use crate::schedule::Weight;
use crate::sources::{Feed, Source};
use crate::stats::{DropReason, PortCounters, WorkerCounters};
use crate::table::Table;
use crate::time::Cycles;
use crate::verdict::{Epoch, Sender, Verdict};

/// Context of a service quantum.
#[derive(Debug)]
pub(super) struct Turn<'w> {
    /// This worker.
    pub worker: u8,
    pub source: &'w mut Source,
    /// The port that owns the source.
    pub port: &'w Port,
    pub outlets: &'w mut Outlets,
    pub peers: &'w mut Peers,
    pub fates: Fates<'w>,
    pub counters: &'w WorkerCounters,
    /// The source's broadcast domain.
    pub segment: &'w Members,
    /// The source's weight among senders.
    pub weight: Weight,
    pub now: Cycles,
    pub second: u32,
}

/// Outcome of an opened packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposal {
    /// It was sent, enqueued, handed over or dropped.
    Done,
    /// Backpressure: its descriptor chain stays in the transmit ring.
    Postponed,
}

impl Turn<'_> {
    /// Takes and forwards a batch; returns the number of frames, dropped ones included. `parcel` is scratch; its `transmit` and
    /// `source` name the transmit queue.
    ///
    /// # Errors
    /// The driver broke the source's ring.
    pub(super) fn run(mut self, parcel: &mut Parcel) -> Result<u32, RingFault> {
        let limiter = &self.port.policy.transmit;
        let limited = limiter.is_set();
        // Checked without a limit too: it may have been removed while it held back.
        if self.is_held(limiter) {
            return Ok(0);
        }
        let waiting = self.source.feed.look(BATCH as u16)?;
        if waiting == 0 {
            return Ok(0);
        }
        if let Some(ring) = self.source.feed.ring() {
            ring.disarm();
        }
        if !self.source.enabled {
            return self.discard(waiting);
        }
        let table = &*self.segment.table;
        let (mut taken, mut frames, mut bytes) = (0, 0, 0);
        let mut slice = Slice::new(self.outlets.work.effort, effort::TURN);
        while taken < waiting && !slice.is_over(self.outlets.work.effort) {
            if limited {
                if !limiter.is_open(self.now) {
                    break;
                }
            } else if !self.outlets.work.taps.are_on() {
                let carried = self.express(table, waiting - taken, &mut slice);
                if carried.0 > 0 {
                    // The frame that backpressure had left in the ring went first.
                    self.source.postponed = None;
                }
                taken += carried.0;
                frames += u64::from(carried.0);
                bytes += carried.1;
                if taken == waiting {
                    break;
                }
            }
            let opened = self.source.feed.open(parcel)?;
            let walked = effort::TOUCH + effort::DESCRIPTOR * self.source.feed.take_walked();
            self.outlets.work.effort += walked;
            match opened {
                Taken::Parcel => {
                    parcel.segments_done = self.source.postponed.map_or(0, |postponed| postponed.segments_done);
                    if self.outlets.work.taps.are_on() {
                        match self.source.postponed {
                            Some(postponed) => parcel.capture_id = postponed.capture_id,
                            None => self.outlets.work.taps.transmit(parcel),
                        }
                    }
                    if self.forward(parcel, table) == Disposal::Postponed {
                        break;
                    }
                    frames += 1;
                    bytes += u64::from(parcel.length);
                    limiter.charge(parcel.length.into(), 1, self.now);
                }
                Taken::Dropped(reason) => {
                    self.outlets.work.taps.unread(parcel.source, reason);
                    self.fates.dropped(parcel.source, parcel.source, reason);
                }
                Taken::Nothing => {
                    // The chain was read in vain, and will be in every poll iteration.
                    self.fates.bill.enter_effort(self.source.port(), walked);
                    break;
                }
            }
            self.source.postponed = None;
            taken += 1;
        }
        self.source.bytes_back += bytes;
        let counters = self.counters(self.source.port());
        counters.transmit_frames.add(frames);
        counters.transmit_bytes.add(bytes);
        Ok(taken.into())
    }

    /// Whether the port's rate limit holds it back now; records until when.
    fn is_held(&mut self, limiter: &Limiter) -> bool {
        let held = !limiter.is_open(self.now);
        let before = std::mem::replace(&mut self.source.held_until, held.then(|| limiter.opens_at()));
        if held && before.is_none() {
            self.source.feed.ring().map(Ring::disarm);
            self.counters(self.source.port()).transmit_limited.add(1);
        }
        held
    }

    fn epoch(&self, table: &Table) -> Epoch {
        Epoch { generation: table.generation(), second: self.second }
    }

    /// Carries frames with the same match mask as the last one by the fast path, as far as they go.
    #[inline]
    fn express(&mut self, table: &Table, most: u16, slice: &mut Slice) -> (u16, u64) {
        let epoch = self.epoch(table);
        match (&mut self.source.feed, self.source.memo.destination(self.source.key.port, table, epoch)) {
            (Feed::Ring(transmit), Some((pattern, port))) => {
                let sender = self.source.key.port;
                let key = ExpressKey { sender, weight: self.weight, pattern, port };
                let carried = self.outlets.express(transmit, key, most, slice);
                if carried.0 > 0 {
                    self.fates.expressed(sender, port, carried.0, carried.1);
                }
                carried
            }
            _ => (0, 0),
        }
    }

    fn discard(&mut self, most: u16) -> Result<u32, RingFault> {
        self.source.postponed = None;
        let mut count = 0;
        while count < most.into() && self.source.feed.discard()? {
            let port = self.source.port();
            self.outlets.work.taps.unread(port, DropReason::TransmitDisabled);
            self.fates.dropped(port, port, DropReason::TransmitDisabled);
            count += 1;
        }
        Ok(count)
    }

    #[inline]
    fn counters(&self, port: PortId) -> &PortCounters {
        self.fates.directory.counters(port)
    }

    fn forward(&mut self, parcel: &mut Parcel, table: &Table) -> Disposal {
        if let Err(reason) = check(parcel, &self.source.offloads) {
            return self.drop_at(parcel.source, parcel, reason);
        }
        let epoch = self.epoch(table);
        let sender = Sender { port: parcel.source, guarded: self.port.policy.is_guarded() };
        match self.source.memo.decide(Head::of(&parcel.start), sender, table, epoch) {
            Verdict::To(port) => self.forward_to(port, parcel),
            Verdict::Flood => self.flood(parcel),
            Verdict::Drop(reason) => self.drop_at(parcel.source, parcel, reason),
        }
    }

    fn forward_to(&mut self, port: PortId, parcel: &mut Parcel) -> Disposal {
        self.source.note_receiver(port);
        let Some(entry) = self.outlets.route(port, parcel) else {
            return self.drop_at(port, parcel, DropReason::ReceiverAbsent);
        };
        let elsewhere = entry.worker != self.worker;
        if self.source.postponed.is_some_and(|postponed| elsewhere || (postponed.port, postponed.entry) != (port, entry)) {
            // The frame has another destination now than the one that it waited for.
            parcel.segments_done = 0;
        }
        if elsewhere {
            return self.hand_over(port, entry, parcel);
        }
        let before = parcel.segments_done;
        match self.outlets.send(entry.slot, parcel, self.weight) {
            Sent::Done => {
                self.fates.meet(parcel, Fate::Delivered(port, parcel.segments_done - before));
                self.source.feed.finish(parcel);
                Disposal::Done
            }
            Sent::MustWait => {
                if parcel.segments_done > before {
                    self.fates.meet(parcel, Fate::DeliveredInPart(port, parcel.segments_done - before));
                }
                self.wait(port, entry, parcel)
            }
            Sent::Dropped(reason) => self.drop_at(port, parcel, reason),
        }
    }

    fn wait(&mut self, port: PortId, entry: RouteEntry, parcel: &Parcel) -> Disposal {
        let slot = entry.slot;
        let health = self.outlets.health(slot, self.now);
        let may_keep_out = self.source.may_keep_out(port, health) && self.outlets.can_park(parcel.source);
        // Where other senders are enqueued already, enqueue too, for a fair share.
        let may_park = self.outlets.have_turns(slot) && may_keep_out && health != Health::Stalled;
        if self.source.in_order && self.outlets.hold_back(slot, parcel.source) {
            self.source.excuse(self.now);
        }
        let time = if health == Health::Stalled { 0 } else { self.source.postpone_time(may_keep_out) };
        if !may_park && time > 0 && self.source.may_postpone(parcel, port, entry, time, self.now) {
            self.outlets.note_postponed(slot, parcel.source);
            self.source.feed.postpone(parcel);
            return Disposal::Postponed;
        }
        if self.source.in_order && !may_park {
            // Head-of-line blocking: no chain behind it could be completed before it (VIRTIO_F_IN_ORDER).
            self.outlets.stall(slot);
            return self.drop_at(port, parcel, DropReason::ReceiverStalled);
        }
        if !may_keep_out {
            let reason = if health == Health::Stalled { DropReason::ReceiverStalled } else { DropReason::ReceiverFull };
            return self.drop_at(port, parcel, reason);
        }
        match self.outlets.park(slot, parcel, self.now) {
            Ok(()) => {
                self.fates.meet(parcel, Fate::Waits(port));
                self.source.keep_out(parcel, port);
                Disposal::Done
            }
            Err(reason) => self.drop_at(port, parcel, reason),
        }
    }

    fn hand_over(&mut self, port: PortId, entry: RouteEntry, parcel: &Parcel) -> Disposal {
        let may_keep_out = self.source.may_keep_out(port, Health::Moving);
        let has_room = self.peers.has_room(entry.worker, parcel.source);
        if !may_keep_out || !has_room {
            let time = if has_room { self.source.postpone_time(false) } else { self.source.patience };
            return self.postpone_or_drop(port, entry, parcel, time);
        }
        self.fates.meet(parcel, Fate::HandedOver(port));
        self.source.keep_out(parcel, port);
        self.counters.handed_over.add(1);
        if !self.peers.send(entry.worker, Message::Deliver(parcel.clone(), port, entry.slot), parcel.source) {
            self.fates.missed(port, DropReason::ReceiverFull);
            self.source.come_back(parcel.head, Some(port));
        }
        Disposal::Done
    }

    /// Leaves a frame for `port`, which the worker of `entry` serves, in its ring for at most `time` (backpressure), or drops it.
    fn postpone_or_drop(&mut self, port: PortId, entry: RouteEntry, parcel: &Parcel, time: Cycles) -> Disposal {
        if time == 0 || !self.source.may_postpone(parcel, port, entry, time, self.now) {
            return self.drop_at(port, parcel, DropReason::ReceiverFull);
        }
        self.source.feed.postpone(parcel);
        Disposal::Postponed
    }

    /// Delivers to every other port of the broadcast domain, or enqueues the frame there. Each other worker gets a copy for its
    /// ports.
    #[cold]
    fn flood(&mut self, parcel: &mut Parcel) -> Disposal {
        let (sender, patience) = (parcel.source, self.source.patience);
        if let Some(worker) = self.peers.first_without_room(sender) {
            return self.postpone_or_drop(sender, RouteEntry { worker, slot: Slot::default() }, parcel, patience);
        }
        if let Err(reason) = self.port.policy.take_flood(self.segment.flood(self.port, self.second, self.now)) {
            return self.drop_at(sender, parcel, reason);
        }
        self.counters(sender).flooded.add(1);
        let before = self.outlets.work.effort;
        // An enqueued frame is a head-of-line blocker where chains are completed in order; and half of the ring is kept for other
        // frames.
        let may_wait = !self.source.in_order && 2 * self.source.feed.out_count() < self.source.feed.size();
        parcel.reach = if may_wait { Reach::Many } else { Reach::ManyNow };
        let others = self.peers.others.len();
        self.source.feed.keep_out(parcel, 1 + others as u16);
        for index in 0..others {
            if !self.peers.send(self.peers.others[index], Message::Flood(parcel.clone()), sender) {
                self.source.feed.come_back(parcel.head);
            }
        }
        let held = self.fates.flood(self.outlets, parcel, &self.segment.ports);
        self.fates.flooded(sender, self.outlets.work.effort - before);
        self.source.feed.hold(parcel.head, held);
        self.source.feed.come_back(parcel.head);
        // The next frame is opened into the same packet.
        parcel.reach = Reach::One;
        Disposal::Done
    }

    /// Drops a packet for a reason that is counted at `port`.
    fn drop_at(&mut self, port: PortId, parcel: &Parcel, reason: DropReason) -> Disposal {
        self.outlets.work.taps.dropped(parcel, port, reason);
        self.fates.meet(parcel, Fate::Dropped(port, reason));
        self.source.feed.finish(parcel);
        Disposal::Done
    }
}

/// Checks the offloads that the sender requests; most frames request none.
#[inline]
fn check(parcel: &mut Parcel, sender: &Offloads) -> Result<(), DropReason> {
    if parcel.header.is_plain() {
        // Other flags must not reach the receiver (virtio 1.4, section 5.1.6.2).
        parcel.header = NetHeader::default();
        return Ok(());
    }
    offload::check(parcel, sender)
}
