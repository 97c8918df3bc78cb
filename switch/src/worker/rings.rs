//! What the control side can have a worker do with rings: commands, run between two passes.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc;

use super::ends::{Feed, Sink};
use super::outlets::Outlet;
use super::source::{Source, State, WhenBack};
use super::{Place, Worker};
use crate::frame::MacAddress;
use crate::memory::MemoryMap;
use crate::offload::Offloads;
use crate::parcel::{Parcel, Reach};
use crate::port::PortId;
use crate::port::end::Ends;
use crate::ring::{Call, Delivery, Intake, Ring, SplitRing};
use crate::stats::DropReason;
use crate::table::Learned;
use crate::time::cycles;

/// Which way frames move in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Guest to switch.
    Intake,
    /// Switch to guest.
    Delivery,
}

/// Names a ring of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingKey {
    /// Whose.
    pub port: PortId,
    /// Which queue pair.
    pub pair: u16,
    /// Which of the two.
    pub direction: Direction,
}

impl Worker {
    /// Takes over an intake. It starts with its first kick, or at once if there is no `kick` to wait for or `resumed`.
    pub fn add_intake(&mut self, key: RingKey, intake: Intake, offloads: Offloads, start: Start) -> u16 {
        self.sessions[key.port.index()] = start.session;
        let segment = self.shared.segment_of[key.port.index()];
        let slot = self.sources.add(Source::new(key, segment, Feed::Ring(Box::new(intake)), offloads, &self.shared));
        if let Some(source) = self.sources.get(slot) {
            source.enabled = start.enabled;
            source.polled = start.kick.is_none();
        }
        if start.at_once {
            self.sources.set_state(slot, State::Awake);
        }
        if let Some(kick) = start.kick {
            self.rest.watch(kick, slot, Direction::Intake);
        }
        slot
    }

    /// Takes over a delivery. It starts as [`Self::add_intake`] says; until then its driver must know that a kick is wanted.
    pub fn add_delivery(&mut self, key: RingKey, delivery: Delivery, start: Start) -> u16 {
        self.sessions[key.port.index()] = start.session;
        let mut delivery = delivery;
        if start.at_once {
            delivery.ring().disarm();
        }
        let policy = Arc::clone(&self.shared.policies[key.port.index()]);
        let line = self.shared.line_to(key);
        let sink = Sink::Ring(Box::new(delivery));
        let slot = self.outlets.add(Outlet::new(key, sink, policy, line, start.enabled, start.at_once));
        if let Some(kick) = start.kick {
            self.rest.watch(kick, slot, Direction::Delivery);
            // It may have been kicked already; what is done next, perhaps in the same batch of commands, is to find it started.
            self.await_events(0);
        }
        slot
    }

    /// Takes over both ends of a port that has no rings. Returns the outlet's slot.
    ///
    /// # Errors
    /// The kernel refuses to watch them.
    pub fn add_ends(&mut self, port: PortId, session: u32, ends: Ends) -> std::io::Result<u16> {
        self.sessions[port.index()] = session;
        let key = |direction| RingKey { port, pair: 0, direction };
        let segment = self.shared.segment_of[port.index()];
        // What it leaves undone is what it was asked to, and that is all.
        let feed = Feed::Other(ends.intake);
        let slot = self.sources.add(Source::new(key(Direction::Intake), segment, feed, Offloads::ALL, &self.shared));
        if let Some(source) = self.sources.get(slot) {
            source.enabled = true;
        }
        self.sources.set_state(slot, State::Awake);
        if let Some(readable) = ends.readable {
            self.rest.watch(readable, slot, Direction::Intake);
        }
        let policy = Arc::clone(&self.shared.policies[port.index()]);
        let line = self.shared.line_to(key(Direction::Delivery));
        let slot = self.outlets.add(Outlet::new(key(Direction::Delivery), Sink::Other(ends.delivery), policy, line, true, true));
        if let Some(writable) = ends.writable {
            self.rest.watch_room(writable, slot);
        }
        Ok(slot)
    }

    /// Stops an intake: takes nothing more, calls back what is out, and answers with the base once everything is back.
    pub fn stop_intake(&mut self, key: RingKey, reply: mpsc::Sender<u16>) {
        self.call_all_back(key, |_| WhenBack::Stop(reply));
    }

    /// Closes an intake, calls back what is out, and does what `then` makes of the state that it was in once everything is back. One that is being
    /// stopped does nothing else any more.
    fn call_all_back(&mut self, key: RingKey, then: impl FnOnce(State) -> WhenBack) {
        let Some(slot) = self.sources.find(key) else { return };
        let Some(source) = self.sources.get(slot) else { return };
        let state = match &source.when_back {
            None => source.state,
            Some(WhenBack::Move(.., state)) => *state,
            Some(WhenBack::Stop(_)) => return,
        };
        source.when_back = Some(then(state));
        self.sources.set_state(slot, State::Closed);
        self.recall(self.index, slot);
        for other in self.peers.others.clone() {
            self.peers.recall(other, slot);
        }
        self.finish_calling_back(slot);
    }

    /// Lets go of every waiting parcel of source `slot` of worker `owner`.
    pub(super) fn recall(&mut self, owner: u8, slot: u16) {
        let mut returned = Vec::new();
        self.outlets.recall(
            |parcel| parcel.intake.worker == owner && parcel.intake.slot == slot,
            |parcel, port| returned.push((parcel.source, parcel.intake, parcel.head, parcel.share_of(port))),
        );
        for (source, intake, head, share_of) in returned {
            self.counters(source).drop_frame(DropReason::SenderStopped);
            self.give_back(intake, head, share_of);
        }
    }

    /// Does what waits for source `slot` to have nothing out, if that is so.
    pub(super) fn finish_calling_back(&mut self, slot: u16) {
        let Some(source) = self.sources.get(slot) else { return };
        if source.feed.out_count() > 0 {
            return;
        }
        match source.when_back.take() {
            None => {}
            Some(WhenBack::Stop(reply)) => {
                let base = source.feed.ring().map_or(0, |ring| {
                    ring.publish_last();
                    ring.base()
                });
                self.rest.unwatch(slot, Direction::Intake);
                self.sources.remove(slot);
                let _ = reply.send(base);
            }
            Some(WhenBack::Move(split, memory, reply, state)) => {
                if let Some(ring) = source.feed.ring() {
                    ring.publish_last();
                    ring.set_memory(split, memory);
                }
                // It may have been asked for a kick in a ring that lies elsewhere now.
                self.sources.set_state(slot, if state == State::Asleep { State::Awake } else { state });
                let _ = reply.send(());
            }
        }
    }

    /// Stops a delivery at once; returns its base. What waits for it is dropped.
    pub fn stop_delivery(&mut self, key: RingKey) -> Option<u16> {
        let slot = self.outlets.find(key)?;
        self.rest.unwatch(slot, Direction::Delivery);
        self.sources.forget_left(Place { worker: self.index, slot });
        let mut returned = Vec::new();
        let mut outlet =
            self.outlets.remove(slot, |parcel| returned.push((parcel.intake, parcel.head, parcel.share_of(key.port))))?;
        for (intake, head, share_of) in returned {
            self.counters(key.port).drop_frame(DropReason::ReceiverAbsent);
            self.give_back(intake, head, share_of);
        }
        Some(outlet.ring().map_or(0, |ring| {
            ring.publish_last();
            ring.base()
        }))
    }

    /// Frames to `port` go along the path that [`super::Shared::set_path`] says, from the next one on.
    pub fn follow_path(&mut self, port: PortId) {
        let shared = Arc::clone(&self.shared);
        let path = shared.path_to(port);
        self.outlets.set_path(port, path.as_ref(), |key| shared.line_to(key));
    }

    /// Tells where frames for `port` are to be delivered.
    pub fn set_route(&mut self, port: PortId, places: Vec<Place>) {
        self.outlets.set_route(port, places);
    }

    /// Enables or disables a ring (SET_VRING_ENABLE).
    pub fn set_enabled(&mut self, key: RingKey, enabled: bool) {
        match key.direction {
            Direction::Intake => {
                if let Some(slot) = self.sources.find(key) {
                    if let Some(source) = self.sources.get(slot) {
                        source.enabled = enabled;
                    }
                    self.sources.wake(slot);
                }
            }
            Direction::Delivery => {
                if let Some(outlet) = self.outlets.find(key).and_then(|slot| self.outlets.get(slot)) {
                    outlet.set_enabled(enabled);
                }
            }
        }
    }

    /// Changes how a ring's driver is interrupted (SET_VRING_CALL). The new descriptor is rung once, since what the old one told may be lost.
    pub fn set_call(&mut self, key: RingKey, call: Option<Call>) {
        if let Some(Err(fault)) = self.ring(key).map(|ring| ring.change_call(call)) {
            self.fault(key.port, fault);
        }
        // A call that is kept is made by one of the next looks.
        self.rest.looks.expect();
    }

    /// Moves a ring to a new memory map; answers once the old one is not used any more.
    pub fn set_memory(&mut self, key: RingKey, split: SplitRing, memory: Arc<MemoryMap>, reply: mpsc::Sender<()>) {
        match key.direction {
            Direction::Intake => self.call_all_back(key, |state| WhenBack::Move(split, memory, reply, state)),
            Direction::Delivery => {
                if let Some(ring) = self.ring(key) {
                    ring.set_memory(split, memory);
                }
                let _ = reply.send(());
            }
        }
    }

    /// Whether `address` may be announced for `port`, by the rules for frames that it floods; if so, it is learned there. Counts it.
    pub fn may_announce(&mut self, port: PortId, address: MacAddress) -> bool {
        // The worker may be asleep but for this: its own time may be long ago.
        let now = cycles();
        let storm = &self.shared.policies[port.index()].storm;
        let table = &self.shared.tables[self.shared.segment_of[port.index()]];
        let refused = if !storm.is_open(now) {
            Some(DropReason::Storm)
        } else {
            let known = address.is_station() && table.learn(address, port, self.second) != Learned::Pinned;
            (!known).then_some(DropReason::BadSource)
        };
        match refused {
            Some(reason) => self.counters(port).drop_frame(reason),
            None => {
                storm.charge(0, 1, now);
                self.counters(port).flooded.add(1);
            }
        }
        refused.is_none()
    }

    /// Floods a frame of the switch's own making from `port` to the receivers served here; `frame` is at most [`crate::frame::START`] bytes.
    pub fn inject(&mut self, port: PortId, frame: &[u8]) {
        let mut parcel = Parcel::from_bytes(port, frame);
        parcel.reach = Reach::ManyNow;
        self.flood(&mut parcel);
    }

    fn ring(&mut self, key: RingKey) -> Option<&mut Ring> {
        match key.direction {
            Direction::Intake => {
                self.sources.find(key).and_then(|slot| self.sources.get(slot)).and_then(|source| source.feed.ring())
            }
            Direction::Delivery => self.outlets.find(key).and_then(|slot| self.outlets.get(slot)).and_then(Outlet::ring),
        }
    }
}

/// How a ring begins.
#[derive(Debug, Default)]
pub struct Start {
    /// The descriptor that the driver kicks.
    pub kick: Option<File>,
    /// Without waiting for a kick: the front end polls, or the ring ran before.
    pub at_once: bool,
    /// Enabled from the start.
    pub enabled: bool,
    /// The port's session, see [`crate::port::PortStatus::begin_session`].
    pub session: u32,
}
