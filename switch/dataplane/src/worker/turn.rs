//! A service quantum: a batch of frames of one source, each taken from its transmit queue, forwarded by a verdict, and sent,
//! enqueued, handed over, left in the ring (backpressure) or dropped.

#![expect(clippy::indexing_slicing, reason = "below the count of others, and as many bytes as were read")]

use super::outcome::Outcomes;
use super::peers::{Message, Peers};
use super::port_table::{Members, PortTable};
use crate::ablation;
use crate::address_map::lease::Lease;
use crate::address_map::resolution::{self, Resolution};
use crate::answer::Answer;
use crate::cpu_time::slice::Slice;
use crate::cpu_time::work_units::{self, BATCH};
use crate::denials::Key;
use crate::egress::{Egress, FastPathKey, Offered, Readiness};
use crate::frame::NetHeader;
use crate::id::{PortId, RouteEntry, Slot};
use crate::ingress::{Feed, Offer, Source};
use crate::multicast;
use crate::multicast::querier::Query;
use crate::offload::{self, Offloads};
use crate::outcome::Outcome;
use crate::packet::{Packet, Reach, Stamp, TagChange};
use crate::policy::Limiter;
use crate::policy::gate::Gate;
use crate::policy::rules::PortRules;
use crate::port::{Port, refused};
use crate::record::Sequel;
use crate::refusal;
use crate::ring::{OpenOutcome, PlaceOutcome, Ring, RingFault};
use crate::stats::{DropReason, PortCounters, WorkerCounters};
use crate::table::{LearnedAddress, Table};
use crate::time::Cycles;
use crate::too_long;
use crate::verdict::answers::Answers;
use crate::verdict::filter::FilteredFlood;
use crate::verdict::reading::Start;
use crate::verdict::{Epoch, FlowCache, Sender, Verdict};
use crate::weight::Weight;

/// Context of a service quantum.
#[derive(Debug)]
pub(super) struct Turn<'w> {
    /// Number of this worker.
    pub worker: u8,
    pub source: &'w mut Source,
    /// The port that owns the source.
    pub port: &'w Port,
    pub egress: &'w mut Egress,
    pub peers: &'w mut Peers,
    pub outcomes: Outcomes<'w>,
    pub counters: &'w WorkerCounters,
    /// The source's broadcast domain.
    pub segment: &'w Members,
    /// The source's weight among senders.
    pub weight: Weight,
    pub now: Cycles,
    pub second: u32,
}

/// Frames that a service quantum takes at most.
const MOST: u16 = if ablation::BATCHING { BATCH as u16 } else { 1 };

/// Frames of a service quantum so far.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// Taken from the ring, dropped ones included.
    taken: u16,
    /// Frames that were read, and their bytes.
    frames: u64,
    bytes: u64,
}

impl Turn<'_> {
    /// Takes and forwards a batch; returns the number of frames, dropped ones included. `packet` is scratch; its `transmit` and
    /// `source` name the transmit queue.
    ///
    /// # Errors
    /// The driver broke the source's ring.
    pub(super) fn run(mut self, packet: &mut Packet) -> Result<u32, RingFault> {
        let limiter = &self.port.policy.transmit;
        // Checked without a limit too: it may have been removed while it held back.
        if self.apply_rate_limit(limiter) {
            return Ok(0);
        }
        if self.source.waits_for_memory(self.now) {
            return Ok(0);
        }
        let waiting = self.source.feed.look(MOST)?;
        if waiting == 0 {
            return Ok(0);
        }
        match self.source.feed.ring() {
            Some(ring) => ring.disarm(),
            None => self.count_lost(),
        }
        if !self.source.enabled {
            return self.discard(waiting);
        }
        if self.source.rules.refresh(&self.port.policy.rules) {
            (self.source.flow_cache, self.source.last_decision) = (FlowCache::default(), None);
        }
        if self.port.policy.grants.have_changed(&mut self.source.grants_seen) {
            self.source.flow_cache = FlowCache::default();
        }
        let batch = self.take(waiting, limiter, packet)?;
        self.source.bytes_back += batch.bytes;
        let counters = self.counters(self.source.port());
        counters.transmit_frames.add(batch.frames);
        counters.transmit_bytes.add(batch.bytes);
        Ok(batch.taken.into())
    }

    /// Takes and forwards the next frame only, past rate limits: some of its segments were delivered.
    ///
    /// # Errors
    /// The driver broke the source's ring.
    pub(super) fn finish_partial(mut self, packet: &mut Packet) -> Result<(), RingFault> {
        let (table, mut batch) = (&*self.segment.table, Batch::default());
        if self.source.feed.look(1)? > 0 && self.take_one(table, packet, &mut batch)? {
            self.source.backpressured = None;
        }
        let counters = self.counters(self.source.port());
        counters.transmit_frames.add(batch.frames);
        counters.transmit_bytes.add(batch.bytes);
        Ok(())
    }

    /// Counts frames that were lost on the way from a port without rings.
    #[cold]
    fn count_lost(&mut self) {
        for (reason, count) in self.source.feed.take_lost() {
            self.counters(self.source.port()).drop_frames(reason, count);
        }
    }

    /// Takes up to `waiting` frames from the ring: by the fast path as far as it goes, then one by one, and so on.
    #[inline]
    fn take(&mut self, waiting: u16, limiter: &Limiter, packet: &mut Packet) -> Result<Batch, RingFault> {
        let table = &*self.segment.table;
        let is_limited = limiter.is_set();
        let mut batch = Batch::default();
        let mut slice = Slice::new(self.egress.work.work_units, work_units::TURN);
        while batch.taken < waiting && !slice.is_over(self.egress.work.work_units) {
            if is_limited {
                if !limiter.is_open(self.now) {
                    break;
                }
            } else {
                let carried = self.fast_path(table, waiting - batch.taken, &mut slice);
                if carried.0 > 0 {
                    // The frame that backpressure had left in the ring went first.
                    self.source.backpressured = None;
                }
                batch.taken += carried.0;
                batch.frames += u64::from(carried.0);
                batch.bytes += carried.1;
                if batch.taken == waiting {
                    break;
                }
            }
            if !self.take_one(table, packet, &mut batch)? {
                break;
            }
            self.source.backpressured = None;
            batch.taken += 1;
        }
        Ok(batch)
    }

    /// Takes the next frame and forwards it; false if it stays in the ring.
    #[inline]
    fn take_one(&mut self, table: &Table, packet: &mut Packet, batch: &mut Batch) -> Result<bool, RingFault> {
        let opened = self.source.feed.open(packet)?;
        let walked = work_units::TOUCH + work_units::DESCRIPTOR * self.source.feed.take_walked();
        self.egress.work.work_units += walked;
        match opened {
            OpenOutcome::Packet => {
                let outside = self.outside(packet);
                self.begin(packet);
                if self.forward(packet, table, outside) == Offered::Blocked {
                    return Ok(false);
                }
                self.commit_record();
                batch.frames += 1;
                batch.bytes += u64::from(packet.length);
                self.counters(packet.source).sizes.add_frames(packet.length, 1);
                self.port.policy.transmit.charge(packet.length.into(), 1, self.now);
            }
            OpenOutcome::Dropped(reason) => {
                self.egress.work.taps.unread(packet.source, reason);
                self.record_unread(reason);
                self.outcomes.dropped(packet.source, packet.source, reason);
            }
            OpenOutcome::Nothing => {
                // The chain was read in vain, and will be in every poll iteration.
                self.outcomes.accounting.enter_work_units(self.source.port(), walked);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Exchanges the addresses of a twin: the switch knows its frames with those outside.
    #[inline]
    fn outside(&self, packet: &mut Packet) -> Result<(), DropReason> {
        self.source.rules.get().twin.as_ref().map_or(Ok(()), |twin| twin.exchange(packet).map_err(|_| DropReason::SpoofedIp))
    }

    /// A frame was opened, for the first time or again after backpressure.
    #[inline]
    fn begin(&mut self, packet: &mut Packet) {
        let work = &mut self.egress.work;
        match self.source.backpressured {
            Some(before) => {
                (packet.segments_done, packet.capture_id, packet.stamp) = (before.segments_done, before.capture_id, before.stamp);
            }
            None => {
                packet.segments_done = 0;
                packet.stamp = if work.sampler.takes(1) { Stamp::at(self.now) } else { Stamp::NONE };
                if work.taps.are_on() {
                    work.taps.transmit(packet);
                }
            }
        }
    }

    /// Applies the port's rate limit: records until when it holds the port back. True if it does.
    fn apply_rate_limit(&mut self, limiter: &Limiter) -> bool {
        let held = !limiter.is_open(self.now);
        let before = std::mem::replace(&mut self.source.held_until, held.then(|| limiter.opens_at()));
        if held && before.is_none() {
            self.source.feed.ring().map(Ring::disarm);
            // A disabled port is no limit.
            if !limiter.is_shut() {
                self.counters(self.source.port()).transmit_limited.add(1);
            }
        }
        held
    }

    fn epoch(&self, table: &Table) -> Epoch {
        Epoch { generation: table.generation(), second: self.second }
    }

    /// Carries frames with the same match mask as the last one by the fast path, as far as they go.
    #[inline]
    fn fast_path(&mut self, table: &Table, most: u16, slice: &mut Slice) -> (u16, u64) {
        if self.outcomes.port_table.trials().is_on(self.now) {
            return (0, 0);
        }
        let epoch = self.epoch(table);
        if self.source.rules.get().twin.is_some() {
            return (0, 0);
        }
        match (&mut self.source.feed, self.source.flow_cache.destination(self.source.key.port, table, epoch)) {
            (Feed::Ring(transmit), Some((masks, port))) => {
                let sender = self.source.key.port;
                let last = self.source.last_decision.as_deref();
                let key = FastPathKey { sender, weight: self.weight, masks, port, last };
                let carried = self.egress.fast_path(transmit, key, most, slice, &self.port.counters(self.worker.into()).sizes);
                if carried.0 > 0 {
                    self.outcomes.enter_fast_path(sender, port, carried.0, carried.1);
                }
                carried
            }
            _ => (0, 0),
        }
    }

    fn discard(&mut self, most: u16) -> Result<u32, RingFault> {
        self.source.backpressured = None;
        let mut count = 0;
        while count < most.into() && self.source.feed.discard()? {
            let port = self.source.port();
            self.egress.work.taps.unread(port, DropReason::TransmitDisabled);
            self.record_unread(DropReason::TransmitDisabled);
            self.outcomes.dropped(port, port, DropReason::TransmitDisabled);
            count += 1;
        }
        Ok(count)
    }

    #[inline]
    fn counters(&self, port: PortId) -> &PortCounters {
        self.outcomes.port_table.counters(port)
    }

    /// Forwards a packet with the addresses `outside`, if they could be exchanged.
    fn forward(&mut self, packet: &mut Packet, table: &Table, outside: Result<(), DropReason>) -> Offered {
        if let Err(reason) = outside.and_then(|()| check(packet, &self.source.offloads)) {
            self.record_early(packet, reason);
            return self.drop_at(packet.source, packet, reason);
        }
        self.port.fragmenting.settle(packet, self.second);
        let verdict = self.decide(packet, table);
        if !self.port.segment.is_short(packet.length)
            && let Verdict::To(port) | Verdict::Retagged(port, _) = verdict
            && let Some(mtu) = self.mtu_to(port)
            && let Err(answer) = too_long::check(packet, mtu)
        {
            return self.refuse_too_long(port, packet, answer);
        }
        if self.source.rules.get().tells_leases && !matches!(verdict, Verdict::Drop(_)) {
            self.learn_lease(packet, table);
        }
        let is_flooded = verdict == Verdict::Flood;
        let learned = if is_flooded { self.source.flow_cache.take_learned() } else { None };
        if (is_flooded || self.port.segment.addresses().is_answering()) && resolution::is_candidate(packet.start()) {
            let resolved = self.resolve(packet, verdict);
            if let Some(outcome) = resolved {
                return outcome;
            }
        }
        if self.outcomes.port_table.trials().is_on(self.now) {
            self.try_rules(packet, verdict);
        }
        match verdict {
            Verdict::To(port) => self.forward_to(port, packet),
            Verdict::Retagged(port, change) => self.forward_retagged(port, change, packet),
            Verdict::Flood => self.flood(packet, learned),
            Verdict::Drop(reason) => {
                if reason == DropReason::PolicyDenied {
                    self.tell_denied(packet, table);
                }
                if refused::REASONS.contains(&reason) {
                    self.port.note_refused(reason, packet.start());
                }
                self.drop_at(packet.source, packet, reason)
            }
        }
    }

    /// The verdict on a packet, by the flow cache or anew.
    #[inline]
    fn decide(&mut self, packet: &mut Packet, table: &Table) -> Verdict {
        if self.egress.work.recorder.is_some() { self.decide_on_record(packet, table) } else { self.decide_by(packet, table, None) }
    }

    fn decide_by(&mut self, packet: &mut Packet, table: &Table, tape: Answers<'_>) -> Verdict {
        let epoch = self.epoch(table);
        let port_table = self.outcomes.port_table;
        let sender = sender(port_table, self.port, self.source.rules.get());
        let gate = sender.gate;
        let gate_of = |port| port_table.port(port).map(|port| port.policy.gate());
        if (sender.rules.identity.is_some() || gate.filtered.is_some())
            && !self.source.flow_cache.fits(Start::from(&*packet), epoch)
        {
            packet.copy_more();
        }
        self.source.flow_cache.decide(Start::from(&*packet).on(tape), sender, gate_of, table, epoch)
    }

    /// Like [`Self::decide`], for the recorder.
    #[cold]
    fn decide_on_record(&mut self, packet: &mut Packet, table: &Table) -> Verdict {
        let Some(mut recorder) = self.egress.work.recorder.take() else { return self.decide_by(packet, table, None) };
        let verdict = self.decide_by(packet, table, Some(recorder.begin(self.now)));
        let Self { source, port, outcomes, .. } = self;
        let (rules, is_long) = (source.rules.shared(), !port.segment.is_short(packet.length));
        let sender = sender(outcomes.port_table, port, rules);
        recorder.decided(&mut source.last_decision, (&sender, port, source.key.pair), rules, (packet, is_long), verdict);
        self.egress.work.recorder = Some(recorder);
        verdict
    }

    /// Records that the present frame was dropped before its verdict.
    #[cold]
    fn record_early(&mut self, packet: &Packet, reason: DropReason) {
        let Self { source, port, egress, now, .. } = self;
        if let Some(recorder) = &mut egress.work.recorder {
            let (rules, queue) = (source.rules.shared(), source.key.pair);
            recorder.dropped_early(&mut source.last_decision, (port, queue), rules, (packet, reason), *now);
        }
    }

    /// Records that a frame was dropped before it was read.
    #[cold]
    fn record_unread(&mut self, reason: DropReason) {
        let (port, queue) = (self.source.port(), self.source.key.pair);
        if let Some(recorder) = &mut self.egress.work.recorder {
            recorder.unread((port, queue), reason, self.now);
        }
    }

    /// The verdict on the present frame stands.
    #[inline]
    fn commit_record(&mut self) {
        if let Some(recorder) = &mut self.egress.work.recorder {
            recorder.commit();
        }
    }

    /// Records what follows the verdict on the present frame.
    #[cold]
    fn record_sequel(&mut self, sequel: Sequel, reason: Option<DropReason>) {
        if let Some(recorder) = &mut self.egress.work.recorder {
            recorder.note_sequel(sequel, reason);
        }
    }

    /// MTU of the way to `port`.
    fn mtu_to(&mut self, port: PortId) -> Option<u16> {
        let mtu = self.outcomes.port_table.mtu(port);
        if let Some(recorder) = &mut self.egress.work.recorder {
            recorder.note_mtu(mtu);
        }
        mtu
    }

    /// Learns the lease that a frame of a DHCP server acknowledges, if it does.
    #[cold]
    fn learn_lease(&mut self, packet: &Packet, table: &Table) {
        let Some(Lease { ip, mac, seconds }) = Lease::of(packet) else { return };
        let tag = Start::from(packet).head().vlan().0;
        let Some(vlan) = self.port.policy.gate().vlans.of_sent(tag) else { return };
        if let Some(port) = table.find(LearnedAddress { address: mac, vlan }) {
            self.port.segment.addresses().acknowledge(vlan, ip.into(), (mac, port), seconds, self.second);
        }
    }

    /// Address resolution: learns the claim of a frame that its `verdict` lets pass, and answers its question if the switch may and can. `None` if
    /// the frame goes its way.
    #[cold]
    fn resolve(&mut self, packet: &mut Packet, verdict: Verdict) -> Option<Offered> {
        if matches!(verdict, Verdict::Drop(_)) {
            return None;
        }
        packet.copy_more();
        let resolution = Resolution::of(packet.start(), packet.header)?;
        let (addresses, gate) = (self.port.segment.addresses(), self.port.policy.gate());
        let tag = Start::from(&*packet).head().vlan().0;
        if let Some(claim) = resolution.claim {
            addresses.learn(gate.vlans.of_sent(tag)?, claim, packet.source, self.second);
        }
        if verdict != Verdict::Flood {
            return None;
        }
        let (port_table, egress) = (self.outcomes.port_table, &*self.egress);
        let reach_of = |owner| {
            let port = port_table.port(owner)?;
            Some((port.policy.gate(), egress.route(owner, packet).is_some()))
        };
        let given = addresses.answer(packet.start(), &resolution, (packet.source, gate, tag), reach_of, self.second)?;
        let slot = self.egress.route_here(packet.source)?;
        let before = self.egress.work.work_units;
        let mut reply = Packet::from_bytes(given.owner.port, given.frame());
        reply.reach = Reach::ManyNow;
        // Without room here the owner answers, with a frame that can wait.
        if !matches!(self.egress.send(slot, &mut reply, self.weight), PlaceOutcome::Complete(_)) {
            return None;
        }
        addresses.count_answer();
        self.record_sequel(Sequel::Answered, None);
        self.outcomes.flooded(packet.source, self.egress.work.work_units - before);
        self.source.feed.finish(packet);
        Some(Offered::Delivered)
    }

    /// Drops a frame that is too long for its way to `port`, and answers its sender.
    #[cold]
    fn refuse_too_long(&mut self, port: PortId, packet: &Packet, answer: Option<Answer>) -> Offered {
        if let Some(answer) = answer {
            self.answer_for(port, &answer);
        }
        self.record_sequel(Sequel::TooLong, Some(DropReason::TooLong));
        self.drop_at(port, packet, DropReason::TooLong)
    }

    /// Sends the sender an answer for `port`, as often as the switch may answer it.
    fn answer_for(&mut self, port: PortId, answer: &Answer) {
        let Some(slot) = self.egress.route_here(self.port.id) else { return };
        if !self.port.policy.take_answer(self.now) {
            return;
        }
        let mut reply = Packet::from_bytes(port, answer.frame());
        reply.reach = Reach::ManyNow;
        // Without room it is lost: the sender's next frame causes another.
        let _ = self.egress.send(slot, &mut reply, self.weight);
    }

    /// Notes a unicast frame that a policy rule refuses, and answers its sender if the rule says so.
    #[cold]
    fn tell_denied(&mut self, packet: &mut Packet, table: &Table) {
        packet.copy_more();
        let (filtered, start) = (self.outcomes.port_table.filtered(packet.source), Start::from(&*packet));
        let head = start.head();
        let vlan = self.port.policy.gate().vlans.of_sent(head.vlan().0);
        let to = vlan.and_then(|vlan| table.find(LearnedAddress { address: head.destination(), vlan }));
        // The address may have moved since the verdict.
        let (Some(filtered), Some(vlan), Some(to)) = (filtered, vlan, to) else { return self.port.reports.denials.count(1) };
        let denied = FilteredFlood::new(filtered, start, vlan);
        let key = Key::new(Some(to), denied.target());
        self.outcomes.note_denied(&denied, (self.port, key), to, 1, self.now);
        // Frames that have no answer are not compared with the rules again: a guest may send nothing else.
        if !filtered.filter.rejects() || !self.port.policy.may_answer(self.now) {
            return;
        }
        let rejects = denied.deciding(to).is_some_and(|rule| rule.rejects());
        if let Some(answer) = refusal::answer(packet).filter(|_| rejects) {
            self.answer_for(to, &answer);
        }
    }

    /// Compares a unicast frame that passes with rules that decide on no frame; once, however long the frame waits.
    #[cold]
    fn try_rules(&mut self, packet: &mut Packet, verdict: Verdict) {
        let (Verdict::To(to) | Verdict::Retagged(to, _)) = verdict else { return };
        if self.source.backpressured.is_some() {
            return;
        }
        packet.copy_more();
        let port_table = self.outcomes.port_table;
        let name = |port| port_table.port(port).map(|port| port.name.clone());
        let start = Start::from(&*packet);
        let frame = (packet.source, start, self.port.vlan_of(start.head()), Some(to));
        port_table.trials().judge(frame, std::iter::once(to), self.now, name);
    }

    #[cold]
    fn forward_retagged(&mut self, port: PortId, change: TagChange, packet: &mut Packet) -> Offered {
        if !packet.retag(change) {
            return self.drop_at(packet.source, packet, DropReason::VlanNotCarried);
        }
        self.forward_to(port, packet)
    }

    fn forward_to(&mut self, port: PortId, packet: &mut Packet) -> Offered {
        self.source.note_receiver(port);
        let Some(entry) = self.egress.route(port, packet) else {
            return self.drop_at(port, packet, DropReason::ReceiverAbsent);
        };
        if self.source.has_other_destination(port, entry) {
            // The frame has another destination now than the one that it waited for.
            packet.segments_done = 0;
        }
        let before = packet.segments_done;
        let offered = if entry.worker == self.worker {
            let mut offer = Offer { source: self.source, port, entry };
            self.egress.offer(entry.slot, packet, self.weight, &mut offer)
        } else {
            self.hand_over(port, entry, packet)
        };
        self.conclude((port, entry), packet, packet.segments_done - before, offered)
    }

    /// Acts on the outcome of an offered packet, of which so many `segments` were delivered now. `to` are its receiver and the
    /// receiver's queue.
    #[inline]
    fn conclude(&mut self, to: (PortId, RouteEntry), packet: &Packet, segments: u16, offered: Offered) -> Offered {
        let (port, entry) = to;
        if offered == Offered::Delivered {
            self.outcomes.meet(packet, Outcome::Delivered(port, segments));
            self.source.feed.finish(packet);
            return offered;
        }
        if segments > 0 {
            self.outcomes.meet(packet, Outcome::DeliveredInPart(port, segments));
        }
        match offered {
            Offered::Delivered => {}
            Offered::Queued => {
                let is_here = entry.worker == self.worker;
                self.outcomes.meet(packet, if is_here { Outcome::Waits(port) } else { Outcome::HandedOver(port) });
                self.source.keep_in_flight(packet, port);
            }
            Offered::Blocked => self.source.feed.backpressure(packet),
            Offered::Dropped(reason) => return self.drop_at(port, packet, reason),
        }
        offered
    }

    /// Offers a packet to the worker of its receiver, within the receiver's quota of the ring and the sender's of the queue there.
    fn hand_over(&mut self, port: PortId, entry: RouteEntry, packet: &Packet) -> Offered {
        let has_quota = self.source.has_quota(port, Readiness::Open);
        let has_room = self.peers.has_room(entry.worker, packet.source);
        if !has_quota || !has_room {
            let time = if has_room { self.source.backpressure_time(false) } else { self.source.stall_timeout };
            return self.leave((port, entry), packet, time);
        }
        self.counters.handed_over.add(1);
        let message = Message::Deliver(packet.clone(), port, entry.slot);
        let sent = self.peers.send(entry.worker, message, packet.source);
        if sent { Offered::Queued } else { Offered::Dropped(DropReason::ReceiverFull) }
    }

    /// Leaves a packet in its ring for at most `time` (backpressure), or drops it.
    fn leave(&mut self, to: (PortId, RouteEntry), packet: &Packet, time: Cycles) -> Offered {
        if self.source.try_backpressure(packet, to, time, self.now) {
            Offered::Blocked
        } else {
            Offered::Dropped(DropReason::ReceiverFull)
        }
    }

    /// Delivers to every other port of the broadcast domain, or enqueues the frame there. Each other worker gets a copy for its
    /// ports. The frame has taught or moved the address `learned`.
    #[cold]
    fn flood(&mut self, packet: &mut Packet, learned: Option<LearnedAddress>) -> Offered {
        let (sender, stall_timeout) = (packet.source, self.source.stall_timeout);
        if let Some(worker) = self.peers.first_without_room(sender) {
            let to = (sender, RouteEntry { worker, slot: Slot::default() });
            let offered = self.leave(to, packet, stall_timeout);
            return self.conclude(to, packet, 0, offered);
        }
        if let Err(reason) = self.port.policy.take_flood(self.segment.flood(self.port, self.second, self.now)) {
            if let Some(learned) = learned {
                self.segment.table.return_home(learned, sender, self.second);
            }
            self.record_sequel(Sequel::Limited, Some(reason));
            return self.drop_at(sender, packet, reason);
        }
        if self.port.segment.has_responder()
            || self.outcomes.port_table.filtered(sender).is_some()
            || !self.outcomes.port_table.trials().is_empty()
        {
            packet.copy_more();
        }
        if self.port.segment.snooping.is_on() {
            self.snoop(packet);
        }
        self.counters(sender).flooded.add(1);
        let before = self.egress.work.work_units;
        // An enqueued frame is a head-of-line blocker where chains are completed in order.
        let may_wait = !self.source.in_order && self.source.may_keep_flooded();
        packet.reach = if may_wait { Reach::Many } else { Reach::ManyNow };
        let others = self.peers.others.len();
        self.source.feed.keep_in_flight(packet, 1 + others as u16);
        for index in 0..others {
            if !self.peers.send(self.peers.others[index], Message::Flood(packet.clone()), sender) {
                self.source.feed.come_back(packet.head);
            }
        }
        self.commit_record();
        let held = self.outcomes.flood(self.egress, packet, &self.segment.ports, self.now);
        self.outcomes.flooded(sender, self.egress.work.work_units - before);
        self.source.feed.hold(packet.head, held);
        self.source.feed.come_back(packet.head);
        // The next frame is opened into the same packet.
        packet.reach = Reach::One;
        Offered::Delivered
    }

    /// Reads the reports of a flooded frame about the groups of its sender; the last members of one are asked.
    #[cold]
    fn snoop(&mut self, packet: &Packet) {
        if !multicast::may_say(packet.start()) {
            return;
        }
        let Self { port, egress, weight, now, .. } = self;
        let mut frame = [0; multicast::LONGEST];
        let length = packet.read(0, &mut frame);
        multicast::read(&frame[..length], |change| {
            port.groups.change(&port.segment.snooping, change, |group| {
                let slot = egress.route_here(port.id).filter(|_| port.policy.take_answer(*now));
                let Some(slot) = slot else { return false };
                let mut query = Packet::from_bytes(port.id, &Query::Group(group).frame());
                query.reach = Reach::ManyNow;
                // Without room it is lost, as on a wire.
                let _ = egress.send(slot, &mut query, *weight);
                true
            });
        });
    }

    /// Drops a packet for a reason that is counted at `port`.
    fn drop_at(&mut self, port: PortId, packet: &Packet, reason: DropReason) -> Offered {
        self.egress.work.taps.dropped(packet, port, reason);
        self.outcomes.meet(packet, Outcome::Dropped(port, reason));
        self.source.feed.finish(packet);
        Offered::Dropped(reason)
    }
}

/// The sender of frames of `port`, before a verdict.
#[inline]
fn sender<'w>(port_table: &'w PortTable, port: &'w Port, rules: &'w PortRules) -> Sender<'w> {
    let gate = Gate { filtered: port_table.filtered(port.id), ..port.policy.gate() };
    Sender { port: port.id, rules, gate, is_gated: port.segment.is_gated() }
}

/// Checks the offloads that the sender requests; most frames request none.
#[inline]
fn check(packet: &mut Packet, sender: &Offloads) -> Result<(), DropReason> {
    if packet.header.is_plain() {
        // Other flags must not reach the receiver (virtio 1.4, section 5.1.6.2).
        packet.header = NetHeader::default();
        return Ok(());
    }
    offload::check(packet, sender)
}
