//! Commands of the control side on virtqueues, run between two poll iterations.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::Worker;
use super::iteration::Ended;
use super::outcome::Outcomes;
use crate::egress::{EgressQueue, Sink};
use crate::frame::MacAddress;
use crate::id::{Direction, PortId, RingKey, RouteEntry, SegmentId, Slot};
use crate::ingress::{Feed, PollState, Source, WhenBack};
use crate::memory::MemoryMap;
use crate::offload::Offloads;
use crate::packet::{Packet, Reach};
use crate::policy::filter::Changed;
use crate::port::Port;
use crate::port::end::Ends;
use crate::ring::{Call, ReceiveQueue, Ring, RingLog, SplitRing, StoppedRing, TransmitQueue};
use crate::stats::DropReason;
use crate::table::{Learned, LearnedAddress, Table};
use crate::time::cycles;
use crate::verdict::{FlowCache, Sender, may_send_from};
use crate::weight::Weight;

impl Worker {
    /// Adds a port to the worker's port table: it can be given rings.
    pub fn enter_port(&mut self, port: &Arc<Port>) {
        let ports = self.port_table.enter(port);
        self.cpu_time.enter(port.id, ports);
        self.egress.enter(port.id, ports);
        self.peers.make_room(ports);
    }

    /// Removes a port without rings from the worker's port table.
    pub fn remove_port(&mut self, port: &Arc<Port>) {
        if self.port_table.knows(port) {
            self.port_table.remove(port);
        }
        self.burdens.retain(|&(_, burden)| burden != port.id);
    }

    /// Whether `port` is in the worker's port table.
    pub fn knows(&self, port: &Arc<Port>) -> bool {
        self.port_table.knows(port)
    }

    /// Uses the forwarding table `table` in `segment` from now on; the flow caches of its senders are emptied.
    pub(crate) fn set_table(&mut self, segment: SegmentId, table: Arc<Table>) {
        self.port_table.set_table(segment, table);
        for (_, source) in self.sources.iter().filter(|(_, source)| source.port.segment.id == segment) {
            source.flow_cache = FlowCache::default();
        }
    }

    /// Counts chains of `port` that a crash left in flight, and that are served again.
    pub fn note_resubmitted(&self, port: PortId, chains: u16) {
        if self.port_table.port(port).is_some() {
            self.counters(port).resubmitted_chains.add(chains.into());
        }
    }

    /// Takes over a transmit queue. It starts with its first kick, or at once if [`Start::at_once`] is set. `None` if its port is
    /// not in the worker's port table.
    pub fn add_transmit_queue(&mut self, key: RingKey, transmit: TransmitQueue, offloads: Offloads, start: Start) -> Option<Slot> {
        self.port_table.note_session(key.port, start.session);
        let port = self.port_table.port(key.port)?;
        let mut source = Source::new((port, key.pair), Feed::Ring(Box::new(transmit)), offloads, &self.shared.settings);
        source.enabled = start.enabled;
        source.polled = start.kick.is_none();
        let slot = self.sources.add(source);
        if start.at_once {
            self.sources.set_state(slot, PollState::Awake);
        }
        if let Some(kick) = start.kick {
            self.rest.watch(kick, slot, Direction::Transmit);
        }
        self.look_after_resumed(key, start.at_once);
        Some(slot)
    }

    /// Takes over a receive queue. It starts as [`Self::add_transmit_queue`] does; until then kicks must not be suppressed. `None`
    /// if its port is not in the worker's port table.
    pub fn add_receive_queue(&mut self, key: RingKey, receive: ReceiveQueue, start: Start) -> Option<Slot> {
        self.port_table.note_session(key.port, start.session);
        let port = self.port_table.port(key.port)?;
        let mut receive = receive;
        let unfilled = start.kick.is_some() && !receive.ring().was_filled();
        if start.at_once && !unfilled {
            receive.ring().disarm();
        }
        let sink = Sink::Ring(Box::new(receive));
        let mut queue = EgressQueue::new((port, key.pair), sink, start.enabled, start.at_once);
        queue.set_unfilled(unfilled);
        let slot = self.egress.add(queue);
        if let Some(kick) = start.kick {
            self.rest.watch(kick, slot, Direction::Receive);
            // The kick may have come already. The next command, perhaps in the same batch, is to find the queue started.
            self.await_events(Some(Duration::ZERO));
        }
        self.look_after_resumed(key, start.at_once);
        Some(slot)
    }

    /// The interrupt for entries that the driver has not taken may have been lost before the ring was stopped.
    fn look_after_resumed(&mut self, key: RingKey, is_resumed: bool) {
        if is_resumed {
            self.happened(key);
        }
    }

    /// Whether the driver of ring `key` has posted a buffer, as far as is known: true for rings without a kick.
    pub fn is_filled(&mut self, key: RingKey) -> bool {
        let slot = self.egress.find(key).filter(|_| key.direction == Direction::Receive);
        slot.and_then(|slot| self.egress.get(slot)).is_none_or(|queue| !queue.is_unfilled())
    }

    /// Takes over both ends of queue `pair` of a port that has no rings. Returns the egress queue's slot.
    ///
    /// # Errors
    /// The kernel refuses to watch them, or the port is not in the worker's port table.
    pub(crate) fn add_ends(&mut self, port: PortId, pair: u16, session: u32, ends: Ends) -> std::io::Result<Slot> {
        self.port_table.note_session(port, session);
        let port = self.port_table.port(port).ok_or_else(|| std::io::Error::other("the port is gone"))?;
        // Frames of a TAP or stream end request only offloads that the switch negotiated with it, so all are allowed.
        let mut source = Source::new((port, pair), Feed::other(ends.transmit), Offloads::ALL, &self.shared.settings);
        source.enabled = true;
        let queue = EgressQueue::new((port, pair), Sink::Other(ends.receive), true, true);
        let slot = self.sources.add(source);
        self.sources.set_state(slot, PollState::Awake);
        if let Some(readable) = ends.readable {
            self.rest.watch(readable, slot, Direction::Transmit);
        }
        let slot = self.egress.add(queue);
        if let Some(writable) = ends.writable {
            self.rest.watch_room(writable, slot);
        }
        if let Some(room) = ends.room {
            self.rest.watch(room, slot, Direction::Receive);
        }
        Ok(slot)
    }

    /// Stops a transmit queue: takes no more chains, recalls those in flight, and replies once all are completed.
    pub fn stop_transmit_queue(&mut self, key: RingKey, reply: mpsc::Sender<StoppedRing>) {
        self.call_all_back(key, |_| WhenBack::Stop(reply));
    }

    /// Closes a transmit queue, recalls its chains in flight, and runs the action that `then` makes of its previous state once all
    /// are completed. A queue that is being stopped ignores this.
    pub(super) fn call_all_back(&mut self, key: RingKey, then: impl FnOnce(PollState) -> WhenBack) {
        let Some(slot) = self.sources.find(key) else { return };
        let Some(source) = self.sources.get(slot) else { return };
        let state = match &source.when_back {
            None => source.state,
            Some(WhenBack::Move(.., state)) => *state,
            Some(WhenBack::Stop(_)) => return,
        };
        source.when_back = Some(then(state));
        self.sources.set_state(slot, PollState::Closed);
        self.recall(self.index, slot);
        for other in self.peers.others.clone() {
            self.peers.recall(other, slot);
        }
        self.finish_calling_back(slot);
    }

    /// Removes every enqueued packet of source `slot` of worker `owner`.
    pub(super) fn recall(&mut self, owner: u8, slot: Slot) {
        let mut returned = Vec::new();
        let mut outcomes = Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting };
        self.egress.recall(
            |packet| packet.transmit.worker == owner && packet.transmit.slot == slot,
            |packet, port| {
                outcomes.missed(packet.source, DropReason::SenderStopped);
                returned.push(Ended::new(packet, port));
            },
        );
        self.give_all_back(&mut returned);
    }

    /// Runs the action that waits for source `slot` to have no chains in flight, if it has none.
    pub(super) fn finish_calling_back(&mut self, slot: Slot) {
        let Some(source) = self.sources.get(slot) else { return };
        if source.feed.in_flight() > 0 {
            return;
        }
        match source.when_back.take() {
            None => {}
            Some(WhenBack::Stop(reply)) => {
                let stopped = source.feed.ring().map(Ring::stop).unwrap_or_default();
                self.rest.unwatch(slot, Direction::Transmit);
                self.sources.remove(slot);
                let _ = reply.send(stopped);
            }
            Some(WhenBack::Move(split, memory, reply, state)) => {
                if let Some(ring) = source.feed.ring() {
                    ring.publish_last();
                    ring.set_memory(split, memory);
                }
                // The kick may have been requested in the old ring, so look at the new one at once.
                self.sources.set_state(slot, if state == PollState::Asleep { PollState::Awake } else { state });
                let _ = reply.send(());
            }
        }
    }

    /// Stops a receive queue at once. Frames that are enqueued for it are dropped.
    pub fn stop_receive_queue(&mut self, key: RingKey) -> Option<StoppedRing> {
        let slot = self.egress.find(key)?;
        self.rest.unwatch(slot, Direction::Receive);
        self.sources.forget_backpressured(RouteEntry { worker: self.index, slot });
        let mut returned = Vec::new();
        let mut outcomes = Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting };
        let counters = self.port_table.counters(key.port);
        let mut queue = self.egress.remove(slot, &mut self.packet, counters, |packet| {
            outcomes.missed(key.port, DropReason::ReceiverAbsent);
            returned.push(Ended::new(packet, key.port));
        })?;
        self.give_all_back(&mut returned);
        Some(queue.ring().map(Ring::stop).unwrap_or_default())
    }

    /// Frames to `port` follow the link emulation of [`Port::set_path`], from the next frame on.
    pub fn follow_path(&mut self, port: PortId) {
        self.egress.follow_path(port);
    }

    /// Whether any frame from or to `port` is in flight or enqueued here.
    pub(crate) fn has_under_way(&mut self, port: PortId) -> bool {
        let from = self.sources.iter().any(|(_, source)| source.port.id == port && source.feed.in_flight() > 0);
        from || self.egress.has_under_way(port)
    }

    /// Sets the queues, each with its worker, at which frames for `port` are delivered.
    pub fn set_route(&mut self, port: PortId, entries: Vec<RouteEntry>) {
        if self.port_table.port(port).is_none() {
            return;
        }
        self.egress.set_route(port, entries);
    }

    /// Enables or disables a ring (SET_VRING_ENABLE).
    pub fn set_enabled(&mut self, key: RingKey, enabled: bool) {
        match key.direction {
            Direction::Transmit => {
                if let Some(slot) = self.sources.find(key) {
                    if let Some(source) = self.sources.get(slot) {
                        source.enabled = enabled;
                    }
                    self.sources.wake(slot);
                }
            }
            Direction::Receive => {
                if let Some(queue) = self.egress.find(key).and_then(|slot| self.egress.get(slot)) {
                    queue.set_enabled(enabled);
                }
            }
        }
    }

    /// Decides anew on the next frame of every source: the gate of a port has changed.
    pub(crate) fn forget_verdicts(&mut self) {
        self.sources.forget_verdicts(&Changed::All);
    }

    /// Changes how a ring's driver is interrupted (SET_VRING_CALL). The new eventfd is signalled once, because an interrupt through
    /// the old one may be lost.
    pub fn set_call(&mut self, key: RingKey, call: Option<Call>) {
        if let Some(Err(fault)) = self.ring(key).map(|ring| ring.change_call(call)) {
            self.fault(key.port, fault);
        }
        // An interrupt that is kept back is sent when a timer expires.
        self.happened(key);
    }

    /// Has the writes of a ring marked in `log` from now on, or in none.
    pub fn set_log(&mut self, key: RingKey, log: Option<RingLog>) {
        if let Some(ring) = self.ring(key) {
            ring.set_log(log);
        }
    }

    /// Moves a ring to a new memory map; answers once the old one is not used any more.
    pub fn set_memory(&mut self, key: RingKey, split: SplitRing, memory: Arc<MemoryMap>, reply: mpsc::Sender<()>) {
        match key.direction {
            Direction::Transmit => self.call_all_back(key, |state| WhenBack::Move(split, memory, reply, state)),
            Direction::Receive => {
                if let Some(ring) = self.ring(key) {
                    ring.set_memory(split, memory);
                }
                let _ = reply.send(());
            }
        }
    }

    /// Learns `address` at `port` for an announcement, within the port's flood limits; false if it may not be announced. Counts it.
    pub(crate) fn learn_announced(&mut self, port: &Arc<Port>, address: MacAddress) -> bool {
        let Some(segment) = self.port_table.members(port.segment.id).filter(|_| self.port_table.knows(port)) else { return false };
        // The worker may have slept until this command: its own second may be long ago, and an address that is learned then would
        // age out at once.
        let now = cycles();
        self.second = self.rest.second(now);
        let rules = port.policy.rules.get();
        let sender = Sender { port: port.id, rules: &rules, gate: port.policy.gate(), is_gated: port.segment.is_gated() };
        let may = port.policy.take_flood(segment.flood(port, self.second, now)).and_then(|()| {
            may_send_from(address, sender, &segment.table)?;
            let vlan = sender.gate.vlans.of_sent(0).ok_or(DropReason::VlanNotCarried)?;
            match segment.table.learn(LearnedAddress { address, vlan }, port.id, self.second) {
                Learned::Pinned => Err(DropReason::BadSource),
                Learned::Held => Err(DropReason::Loop),
                Learned::Known | Learned::Changed | Learned::NoRoom => Ok(()),
            }
        });
        match may {
            Err(reason) => self.counters(port.id).drop_frame(reason),
            Ok(()) => self.counters(port.id).flooded.add(1),
        }
        may.is_ok()
    }

    /// Floods a frame that the switch makes from `port` to the receivers served here; it has at most [`crate::frame::START`] bytes.
    pub fn inject(&mut self, port: &Arc<Port>, frame: &[u8]) {
        if !self.port_table.knows(port) {
            return;
        }
        let mut packet = Packet::from_bytes(port.id, frame);
        packet.reach = Reach::ManyNow;
        self.flood(&mut packet);
    }

    /// Delivers a frame that the switch makes to the guest of `port`, if it is served here and has room.
    pub(crate) fn deliver(&mut self, port: &Arc<Port>, frame: &[u8]) {
        let Some(slot) = self.egress.route_here(port.id).filter(|_| self.port_table.knows(port)) else { return };
        let mut packet = Packet::from_bytes(port.id, frame);
        packet.reach = Reach::ManyNow;
        let _ = self.egress.send(slot, &mut packet, Weight::new(1));
    }

    fn ring(&mut self, key: RingKey) -> Option<&mut Ring> {
        match key.direction {
            Direction::Transmit => {
                self.sources.find(key).and_then(|slot| self.sources.get(slot)).and_then(|source| source.feed.ring())
            }
            Direction::Receive => self.egress.find(key).and_then(|slot| self.egress.get(slot)).and_then(EgressQueue::ring),
        }
    }
}

/// Start conditions of a ring.
#[derive(Debug, Default)]
pub struct Start {
    /// The eventfd that the driver kicks.
    pub kick: Option<File>,
    /// Without waiting for a kick: the front end polls, or the ring ran before.
    pub at_once: bool,
    /// Enabled from the start.
    pub enabled: bool,
    /// The port's session, see [`Port::begin_session`].
    pub session: u32,
}
