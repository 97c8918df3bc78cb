//! Outlets: receive queues and TAPs, the frames that are enqueued for each, and the routes to them. Each one is an [`Outlet`]. Its
//! receiver is served by fair queueing ([`Outlets::serve_waiting`]); a stall timeout ends head-of-line blocking by a receiver that
//! takes nothing.

mod outlet;
mod sink;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::agenda::Agenda;
use crate::airtime::effort;
use crate::airtime::slice::Slice;
use crate::fate::Fate;
use crate::frame::{Pattern, SHORTEST};
use crate::id::{PortId, RingKey, RouteEntry, Slot};
use crate::link::{Impairment, Path};
use crate::notice::Spans;
use crate::parcel::{Parcel, Reach};
use crate::ring::{Ring, RingFault, TransmitQueue, express};
use crate::schedule::race::Race;
use crate::schedule::{Parking, QUANTUM, Weight};
use crate::settings::Settings;
use crate::slots::Slots;
use crate::stats::{DropReason, PortCounters};
use crate::time::{Cycles, in_cycles};
pub(crate) use outlet::{Health, Outlet, Sent};
use outlet::{TURN, Times, Work};
pub(crate) use sink::Sink;

/// Frames of a sender that may be enqueued at a receiver when a flooded one joins them.
const FLOODS: u32 = 8;

/// Common properties of frames that take the fast path together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpressKey {
    pub sender: PortId,
    /// The sender's weight.
    pub weight: Weight,
    /// The match mask that they all fit.
    pub pattern: Pattern,
    /// The receiver.
    pub port: PortId,
}

/// A receiver counts as stuck after it took nothing for so long.
const STUCK_AFTER: Duration = Duration::from_millis(1);

/// Lead of a wake-up before the arrival of a frame on an emulated link, for waking takes that long.
const EARLY: Duration = Duration::from_micros(50);

/// See the module.
#[derive(Debug)]
pub(crate) struct Outlets {
    /// The worker that owns them.
    worker: u8,
    slots: Slots<Outlet>,
    /// The queues of each port, of any worker.
    routes: Vec<Vec<RouteEntry>>,
    parking: Parking,
    /// Slots with frames that are not published to the driver yet.
    touched: Vec<Slot>,
    /// Slots with enqueued frames, the one that is served next first.
    waiting: VecDeque<Slot>,
    /// Outlets with blocked senders, which get fair queueing.
    races: usize,
    /// Slots at which a frame of link emulation has arrived or will soon, the one that is served next first.
    lines: VecDeque<Slot>,
    /// Timers of the next arrivals by link emulation at the other slots, or a little before.
    arrivals: Agenda,
    /// Timers of the notification states.
    notices: Agenda,
    /// Work done here.
    pub work: Work,
    /// Ports whose rings broke a rule here.
    faults: Vec<(PortId, RingFault)>,
    times: Times,
    now: Cycles,
}

impl Outlets {
    pub(crate) fn new(worker: u8, settings: &Settings) -> Self {
        Self {
            worker,
            slots: Slots::default(),
            routes: Vec::new(),
            parking: Parking::new(settings.parking, 0),
            touched: Vec::new(),
            waiting: VecDeque::new(),
            races: 0,
            lines: VecDeque::new(),
            arrivals: Agenda::default(),
            notices: Agenda::default(),
            work: Work::default(),
            faults: Vec::new(),
            times: Times {
                patience: in_cycles(settings.patience),
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
        self.parking.make_room(ports);
    }

    pub(crate) fn add(&mut self, outlet: Outlet) -> Slot {
        let mut outlet = outlet;
        self.slots.add(|slot| {
            outlet.slot = slot;
            outlet
        })
    }

    #[inline]
    pub(crate) fn get(&mut self, slot: Slot) -> Option<&mut Outlet> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn find(&self, key: RingKey) -> Option<Slot> {
        self.slots.find(|outlet| outlet.key == key)
    }

    /// A kick came for `slot`, or there is room to write: more are needed only while frames are enqueued. Returns which ring it is,
    /// and whether it has its first receive buffer now.
    pub(crate) fn kicked(&mut self, slot: Slot) -> Option<(RingKey, bool)> {
        let outlet = self.slots.get_mut(slot)?;
        let first = outlet.start();
        if let Sink::Other(end) = &mut outlet.sink {
            end.wake();
            // Frames that were placed before and found no room are written first.
            outlet.touch(slot, &mut self.touched);
        }
        Some((outlet.key, first))
    }

    /// Removes an outlet; `returned` is called with each packet that was enqueued for it.
    pub(crate) fn remove(&mut self, slot: Slot, mut returned: impl FnMut(&Parcel)) -> Option<Outlet> {
        let mut outlet = self.slots.remove(slot)?;
        outlet.turns.remove_if(&mut self.parking, |_| true, &mut returned);
        self.waiting.retain(|&other| other != slot);
        self.lines.retain(|&other| other != slot);
        self.arrivals.forget(slot);
        self.notices.forget(slot);
        self.races -= usize::from(outlet.race.is_some());
        Some(outlet)
    }

    /// Uses the link emulation of `port` for frames to it from now on, or none.
    pub(crate) fn follow_path(&mut self, port: PortId) {
        for (slot, outlet) in self.slots.iter_mut() {
            if outlet.key.port != port {
                continue;
            }
            match (&mut outlet.line, outlet.port.path()) {
                (Some(line), Some(path)) => line.set_path(path),
                // It ends once all frames in flight have arrived.
                (Some(line), None) => line.set_path(Arc::new(Path::from(&Impairment::default()))),
                (None, Some(_)) => outlet.line = outlet.port.line(outlet.key.pair).map(Box::new),
                (None, None) => {}
            }
            // Its emulation may have ended.
            self.arrivals.expect(slot, 0);
        }
    }

    /// Whether any frame is enqueued for `port`, or in flight on its emulated link.
    pub(crate) fn has_under_way(&mut self, port: PortId) -> bool {
        let has = |outlet: &Outlet| outlet.turns.waiting() > 0 || outlet.line.as_ref().is_some_and(|line| !line.is_empty());
        self.slots.iter_mut().any(|(_, outlet)| outlet.key.port == port && has(outlet))
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

    /// The queue of `port` for `parcel`, by its flow hash: a flow keeps to one queue, and so keeps its order.
    #[inline]
    pub(crate) fn route(&self, port: PortId, parcel: &Parcel) -> Option<RouteEntry> {
        match self.entries(port) {
            [] => None,
            [only] => Some(*only),
            many => Some(many[parcel.flow_hash() as usize % many.len()]),
        }
    }

    /// Delivers `parcel`, of a sender with weight `weight`, at `slot` if no frame is ahead of it and there is room.
    #[inline]
    pub(crate) fn send(&mut self, slot: Slot, parcel: &mut Parcel, weight: Weight) -> Sent {
        let Some(outlet) = self.slots.get_mut(slot) else { return Sent::Dropped(DropReason::ReceiverAbsent) };
        if outlet.line.is_some() {
            let sent = outlet.send_along_line(parcel, self.now, &mut self.work);
            outlet.touch(slot, &mut self.touched);
            if let Some(due) = outlet.arrival().filter(|_| !outlet.at_hand) {
                self.arrivals.expect(slot, due.saturating_sub(self.times.early));
            }
            return sent;
        }
        if outlet.turns.waiting() > 0 || !outlet.may_go(parcel.source, self.now, &mut self.races) {
            return Sent::MustWait;
        }
        let segments_before = parcel.segments_done;
        let sent = outlet.place(parcel, self.now, &mut self.faults, &mut self.work);
        if sent == Sent::Done
            && let Some(race) = &mut outlet.race
        {
            race.went(parcel.source, weight, parcel.length.max(SHORTEST).into());
        }
        if sent == Sent::Done || parcel.segments_done > segments_before || outlet.has_unshown() {
            outlet.touch(slot, &mut self.touched);
        }
        sent
    }

    /// Fast path: carries up to `most` frames that fit the match mask of `key` from `transmit` to the receive queue, if this worker
    /// serves the receiver and no frame is enqueued for it; returns how many, and their bytes.
    #[inline]
    pub(crate) fn express(&mut self, transmit: &mut TransmitQueue, key: ExpressKey, most: u16, slice: &mut Slice) -> (u16, u64) {
        let ExpressKey { sender, weight, pattern, port } = key;
        let &[entry] = self.entries(port) else { return (0, 0) };
        let Some(outlet) = self.slots.get_mut(entry.slot) else { return (0, 0) };
        let may_go = outlet.may_go(sender, self.now, &mut self.races);
        let Sink::Ring(receive) = &mut outlet.sink else { return (0, 0) };
        let by_turns = outlet.turns.waiting() > 0 || outlet.port.policy.receive.is_set() || outlet.line.is_some();
        if entry.worker != self.worker || !outlet.open || by_turns || !may_go || !express::may_carry(transmit, receive) {
            return (0, 0);
        }
        let (mut frames, mut bytes) = (0, 0);
        while frames < most {
            match receive.read_ahead(most - frames) {
                Ok(0) => break,
                Ok(_) => {}
                Err(fault) => {
                    outlet.fail(fault, &mut self.faults);
                    break;
                }
            }
            let carried = express::carry(transmit, receive, pattern, most - frames);
            frames += carried.0;
            bytes += carried.1;
            self.work.effort += u64::from(carried.0) * effort::FRAME + carried.1;
            if carried.0 == 0 || slice.is_over(self.work.effort) {
                break;
            }
        }
        outlet.frames += u64::from(frames);
        outlet.bytes += bytes;
        if frames > 0 {
            if let Some(race) = &mut outlet.race {
                race.went(sender, weight, bytes);
            }
            outlet.stalled = false;
            outlet.touch(entry.slot, &mut self.touched);
        }
        (frames, bytes)
    }

    /// Floods `parcel`, of a sender with this `weight`, to all `ports` but the sender that are served here. Where there is no room
    /// it is enqueued if allowed: returns at how many ports it is; `missed` is called for ports that miss it. A large or GSO frame
    /// is enqueued too once many ports had it: the work for one guest at a time does not depend on how many others there are.
    pub(crate) fn flood(
        &mut self,
        parcel: &mut Parcel,
        ports: &[PortId],
        weight: Weight,
        mut missed: impl FnMut(PortId, DropReason),
    ) -> u16 {
        let mut held = 0;
        let enough = self.work.effort + effort::TURN;
        let mut dear = parcel.length > QUANTUM || !parcel.header.is_plain();
        for &port in ports {
            if port == parcel.source {
                continue;
            }
            let waits = dear && self.work.effort >= enough;
            let Some(entry) = self.route(port, parcel).filter(|entry| entry.worker == self.worker) else { continue };
            parcel.segments_done = 0;
            match if waits { Sent::MustWait } else { self.send(entry.slot, parcel, weight) } {
                Sent::Done => {}
                Sent::MustWait if self.may_flood_wait(entry.slot, parcel) && self.park(entry.slot, parcel, self.now).is_ok() => {
                    held += 1;
                }
                Sent::MustWait => {
                    self.work.taps.dropped(parcel, port, DropReason::FloodNoRoom);
                    missed(port, DropReason::FloodNoRoom);
                }
                Sent::Dropped(reason) => {
                    self.work.taps.dropped(parcel, port, reason);
                    // Slow page faults are bounded like large frames.
                    dear |= matches!(reason, DropReason::SenderMemory | DropReason::ReceiverMemory);
                    missed(port, reason);
                }
            }
        }
        held
    }

    /// Whether a flooded `parcel` may be enqueued at `slot`: a few of each sender may, so that a busy receiver does not miss
    /// address resolution (ARP).
    fn may_flood_wait(&self, slot: Slot, parcel: &Parcel) -> bool {
        let Some(outlet) = self.slots.get(slot) else { return false };
        let room = 4 * self.parking.used() < 3 * self.parking.most();
        parcel.reach == Reach::Many && room && !outlet.stalled && outlet.turns.waiting_of(parcel.source) < FLOODS
    }

    /// Whether any frame is enqueued at `slot`.
    pub(crate) fn have_turns(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_some_and(|outlet| outlet.turns.waiting() > 0)
    }

    /// Backpressure: a frame of `sender` that found no room at `slot` was left in its ring. With a second such sender, fair
    /// queueing of blocked senders begins.
    pub(crate) fn note_postponed(&mut self, slot: Slot, sender: PortId) {
        let Some(outlet) = self.slots.get_mut(slot) else { return };
        let last = outlet.postponed_last.replace((sender, self.now));
        let among_others =
            last.is_some_and(|(other, when)| other != sender && self.now.wrapping_sub(when) < self.times.stuck_after);
        if among_others && outlet.race.is_none() {
            outlet.race = Some(Box::new(Race::new(self.now, 100 * self.times.stuck_after)));
            self.races += 1;
        }
        let lets_pass = outlet.lets_pass(self.times.stuck_after, self.now);
        match &mut outlet.race {
            Some(race) if lets_pass => race.is_satisfied(sender),
            Some(race) => race.came(sender),
            None => {}
        }
    }

    /// True if any outlet has fair queueing of blocked senders.
    #[inline]
    pub(crate) fn have_races(&self) -> bool {
        self.races > 0
    }

    /// `sender` is not backlogged for `receiver` any more, except for a frame that backpressure left in its ring for slot
    /// `postponed`.
    pub(crate) fn is_satisfied(&mut self, receiver: PortId, sender: PortId, postponed: Option<Slot>) {
        let entries = self.routes.get(receiver.index()).into_iter().flatten();
        let worker = self.worker;
        for entry in entries.filter(|entry| entry.worker == worker && Some(entry.slot) != postponed) {
            if let Some(Outlet { race: Some(race), .. }) = self.slots.get_mut(entry.slot) {
                race.is_satisfied(sender);
            }
        }
    }

    /// Whether the switch holds back the frames of `sender` for `slot` by a rate limit or by fair queueing, so that the receiver is
    /// not the cause.
    pub(crate) fn hold_back(&mut self, slot: Slot, sender: PortId) -> bool {
        let Some(outlet) = self.slots.get_mut(slot) else { return false };
        !outlet.port.policy.receive.is_open(self.now) || !outlet.may_go(sender, self.now, &mut self.races)
    }

    /// Health of the receiver at `slot`.
    pub(crate) fn health(&mut self, slot: Slot, now: Cycles) -> Health {
        let stuck_after = self.times.stuck_after;
        match self.get(slot) {
            Some(outlet) if outlet.stalled => Health::Stalled,
            Some(outlet) if outlet.is_stuck_for(stuck_after, now) => Health::Stuck,
            _ => Health::Moving,
        }
    }

    /// The receiver at `slot` has exceeded the stall timeout.
    pub(crate) fn stall(&mut self, slot: Slot) {
        if let Some(outlet) = self.get(slot) {
            outlet.stalled = true;
        }
    }

    /// Whether another frame of `sender` can be enqueued here at all.
    pub(crate) fn can_park(&self, sender: PortId) -> bool {
        self.parking.has_room(sender)
    }

    /// Enqueues a copy of `parcel` at `slot`.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(crate) fn park(&mut self, slot: Slot, parcel: &Parcel, now: Cycles) -> Result<(), DropReason> {
        let Some(outlet) = self.slots.get_mut(slot) else { return Err(DropReason::ReceiverAbsent) };
        let spot = self.parking.park(parcel.clone()).ok_or(DropReason::ReceiverFull)?;
        if outlet.turns.waiting() == 0 {
            outlet.notice.begin_to_stand(now, &self.times.spans);
            self.waiting.push_back(slot);
        }
        outlet.turns.push(parcel.source, spot, &mut self.parking);
        outlet.touch(slot, &mut self.touched);
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
        mut met: impl FnMut(&Parcel, PortId, Fate),
    ) {
        let mut slice = Slice::new(self.work.effort, effort::WAITING);
        for _ in 0..self.waiting.len() {
            if slice.is_over(self.work.effort) {
                return;
            }
            let Some(slot) = self.waiting.pop_front() else { return };
            if let Some(outlet) = self.slots.get_mut(slot) {
                outlet.turns.weigh(&weight_of);
            }
            self.serve_slot(slot, now, &mut met);
            if self.get(slot).is_some_and(|outlet| outlet.turns.waiting() > 0) {
                self.waiting.push_back(slot);
            }
        }
    }

    fn serve_slot(&mut self, slot: Slot, now: Cycles, met: &mut impl FnMut(&Parcel, PortId, Fate)) {
        let Some(outlet) = self.slots.get_mut(slot) else { return };
        let port = outlet.key.port;
        // Whether there is anything to publish, and whether a frame was delivered in its turn.
        let (mut moved, mut advanced) = (false, false);
        // Length from which on frames find no room where shorter ones may.
        let mut too_long = u32::MAX;
        // Length of the frame that found no room.
        let mut waits = u32::MAX;
        let mut slice = Slice::new(self.work.effort, effort::TURN);
        for _ in 0..TURN {
            if slice.is_over(self.work.effort) {
                break;
            }
            let Some(spot) = outlet.turns.next_below(too_long, &self.parking) else { break };
            let parcel = self.parking.parcel(spot);
            let (length, before) = (parcel.length, parcel.segments_done);
            let sent = outlet.place(parcel, now, &mut self.faults, &mut self.work);
            let segments = parcel.segments_done - before;
            moved |= sent == Sent::Done || segments > 0;
            advanced |= moved && too_long == u32::MAX;
            match sent {
                Sent::Done => met(parcel, port, Fate::Delivered(port, segments)),
                Sent::MustWait if segments > 0 => met(parcel, port, Fate::DeliveredInPart(port, segments)),
                Sent::MustWait => {}
                Sent::Dropped(reason) => {
                    self.work.taps.dropped(parcel, port, reason);
                    met(parcel, port, Fate::Dropped(port, reason));
                }
            }
            if sent == Sent::MustWait {
                if outlet.lets_pass(self.times.stuck_after, now) {
                    too_long = length;
                    continue;
                }
                waits = length;
                break;
            }
            outlet.turns.served(&mut self.parking);
        }
        if moved || outlet.has_unshown() {
            outlet.touch(slot, &mut self.touched);
        }
        // Where a rate limit holds back, the receiver is not the cause.
        if advanced || !outlet.port.policy.receive.is_open(now) {
            outlet.notice.begin_to_stand(now, &self.times.spans);
        } else if outlet.is_stuck_for(self.times.patience, now) {
            outlet.touch(slot, &mut self.touched);
            // A receiver that has just posted buffers is not stuck: head-of-line blocking by a frame too long for it ends, and
            // other frames stay.
            let too_long = if outlet.has_buffers() { too_long.min(waits) } else { too_long };
            let times = (now, &self.times);
            let taps = &mut self.work.taps;
            outlet.give_up(too_long, &mut self.parking, times, |parcel, reason| {
                taps.dropped(parcel, port, reason);
                met(parcel, port, Fate::Dropped(port, reason));
            });
        } else if outlet.call_again_if_stuck(now, &self.times, &mut self.faults) {
            outlet.touch(slot, &mut self.touched);
        }
        outlet.move_on_if_served(now);
        self.expect(slot, now);
    }

    /// Delivers the frames whose emulated delay is over; returns the number of frames. `dropped` is called for those that were not
    /// delivered. `parcel` is scratch.
    pub(crate) fn serve_lines(&mut self, parcel: &mut Parcel, mut dropped: impl FnMut(PortId, DropReason)) -> u32 {
        self.take_arrivals();
        let mut frames = 0;
        let mut slice = Slice::new(self.work.effort, effort::WAITING);
        for _ in 0..self.lines.len() {
            if slice.is_over(self.work.effort) {
                break;
            }
            let Some(slot) = self.lines.pop_front() else { break };
            let Some(outlet) = self.slots.get_mut(slot) else { continue };
            let (served, moved) = outlet.serve_line(parcel, self.now, &self.times, &mut self.faults, &mut self.work, &mut dropped);
            if moved {
                outlet.touch(slot, &mut self.touched);
            }
            frames += served;
            outlet.move_on_if_served(self.now);
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
            if let Some(outlet) = self.slots.get_mut(slot).filter(|outlet| !outlet.at_hand) {
                outlet.at_hand = true;
                self.lines.push_back(slot);
            }
        }
    }

    /// The emulated link of `slot` was served. It is served in the next poll iteration too if its next frame arrives soon, or if
    /// placed frames may be referred to by the receiver until this poll iteration ends. Else it is left alone until a frame
    /// arrives.
    fn keep_at_hand(&mut self, slot: Slot) {
        let Some(outlet) = self.slots.get_mut(slot) else { return };
        let soon = self.now.saturating_add(self.times.early);
        let arrival = outlet.arrival();
        outlet.at_hand = arrival.is_some_and(|due| due <= soon) || outlet.line.as_ref().is_some_and(|line| line.has_placed());
        if outlet.at_hand {
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
        self.arrivals.is_due(now) || at_hand.any(|outlet| outlet.needs_pass_before(soon))
    }

    /// The next port whose ring broke a rule here.
    pub(crate) fn next_fault(&mut self) -> Option<(PortId, RingFault)> {
        self.faults.pop()
    }

    /// Removes all enqueued packets for which `condition` holds.
    pub(crate) fn recall(&mut self, condition: impl Fn(&Parcel) -> bool, mut returned: impl FnMut(&Parcel, PortId)) {
        for (_, outlet) in self.slots.iter_mut() {
            let port = outlet.key.port;
            outlet.turns.remove_if(&mut self.parking, &condition, |parcel| returned(parcel, port));
            outlet.move_on_if_served(self.now);
        }
        let slots = &self.slots;
        self.waiting.retain(|&slot| slots.get(slot).is_some_and(|outlet| outlet.turns.waiting() > 0));
    }

    /// Publishes delivered frames on the used rings; true if there were any. [`Self::call`] is to follow, after a fence.
    pub(crate) fn publish(&mut self) -> bool {
        for &slot in &self.touched {
            if let Some(outlet) = self.slots.get_mut(slot) {
                outlet.show();
            }
        }
        !self.touched.is_empty()
    }

    /// Interrupts the drivers that asked for it about published frames, and counts.
    pub(crate) fn call<'c>(&mut self, counters: impl Fn(PortId) -> &'c PortCounters) {
        while let Some(slot) = self.touched.pop() {
            if let Some(outlet) = self.slots.get_mut(slot) {
                outlet.touched = false;
                if let Some(Err(fault)) = outlet.sink.ring().map(Ring::call_if_wanted) {
                    outlet.fail(fault, &mut self.faults);
                }
                outlet.count(counters(outlet.key.port));
                if outlet.notice.happened() {
                    self.expect(slot, self.now);
                }
            }
        }
    }

    /// True if some timer is due.
    #[inline]
    pub(crate) fn has_due(&self, now: Cycles) -> bool {
        self.notices.is_due(now)
    }

    /// Lost-notification check of the outlets with an expired timer: sends interrupts that were kept back, and repeats those that
    /// seem lost. Receivers with enqueued frames are interrupted again where they are served.
    pub(crate) fn look_after_due<'c>(&mut self, counters: impl Fn(PortId) -> &'c PortCounters) {
        let mut due = Vec::new();
        self.notices.take_due(self.now, &mut due);
        for slot in due {
            self.look_after(slot, &counters);
        }
    }

    fn look_after<'c>(&mut self, slot: Slot, counters: &impl Fn(PortId) -> &'c PortCounters) {
        let Some(outlet) = self.slots.get_mut(slot) else { return };
        let counters = counters(outlet.key.port);
        match outlet.ring().map_or(Ok(false), Ring::call_kept) {
            Ok(false) if outlet.look() => {
                outlet.call_again(&mut self.faults);
                counters.repeated_calls.add(1);
            }
            Ok(_) => {}
            Err(fault) => outlet.fail(fault, &mut self.faults),
        }
        if outlet.ring().is_some_and(|ring| ring.keeps_call()) {
            // The check is to be repeated.
            outlet.notice.happened();
        }
        outlet.count(counters);
        self.expect(slot, self.now.saturating_add(1));
    }

    /// An interrupt of the driver at `slot` may be kept back.
    pub(crate) fn happened(&mut self, slot: Slot) {
        if self.slots.get_mut(slot).is_some_and(|outlet| outlet.notice.happened()) {
            self.expect(slot, self.now);
        }
    }

    /// Sets the timer of `slot` to the deadline of its notification state, as of `now`.
    fn expect(&mut self, slot: Slot, now: Cycles) {
        let due = self.slots.get_mut(slot).and_then(|outlet| outlet.due(now, &self.times));
        due.into_iter().for_each(|due| self.notices.expect(slot, due.max(now)));
    }

    /// Shuts the outlet of `port` at `slot`, while the port is throttled for its expensive buffers, or opens it again.
    pub(crate) fn shut(&mut self, slot: Slot, port: PortId, for_good: bool) {
        if let Some(outlet) = self.get(slot).filter(|outlet| outlet.key.port == port) {
            outlet.shut_until = if for_good { Cycles::MAX } else { 0 };
        }
    }

    /// True while any frame is enqueued.
    pub(crate) fn anything_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Arms the receiver at `slot`, for a kick when it posts buffers; true if it has new buffers already.
    pub(crate) fn arm(&mut self, slot: Slot) -> bool {
        let now = self.now;
        self.get(slot).is_some_and(|outlet| outlet.arm(now))
    }

    /// Arms every receiver with enqueued frames; true if one of them has new buffers already.
    pub(crate) fn arm_waiting(&mut self) -> bool {
        let mut news = false;
        for &slot in self.waiting.iter().chain(&self.lines) {
            if let Some(outlet) = self.slots.get_mut(slot)
                && outlet.awaits_room(self.now)
            {
                news |= outlet.arm(self.now);
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
        self.notices.next().into_iter().chain(self.arrivals.next()).min()
    }
}
