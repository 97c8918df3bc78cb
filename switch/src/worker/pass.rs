//! A pass: what was handed over, then every source that is awake, then what waits; then everybody is told.

use super::outlets::Sent;
use super::peers::{Message, Return};
use super::source::State;
use super::{BATCH, Event, Worker};
use crate::frame::MacAddress;
use crate::offload;
use crate::parcel::{IntakeId, Parcel};
use crate::port::PortId;
use crate::ring::{RingFault, Taken};
use crate::stats::{DropReason, PortCounters};
use crate::time::cycles;
use crate::verdict::Verdict;

/// Frames after which a long pass tells drivers before going on.
const FLUSH: u32 = 128;

impl Worker {
    /// One pass; returns the frames that it moved.
    pub(super) fn pass(&mut self) -> u32 {
        let mut frames = self.serve_peers();
        let mut unflushed = frames;
        let mut index = 0;
        while let Some(&slot) = self.sources.awake.get(index) {
            let served = self.serve(slot);
            frames += served;
            unflushed += served;
            if unflushed >= FLUSH {
                self.flush();
                unflushed = 0;
            }
            // A source that fell silent was taken from the list, and the last one moved here.
            index += 1;
        }
        if self.outlets.anything_waits() {
            frames += self.serve_waiting();
        }
        self.flush();
        self.account(frames);
        frames
    }

    fn account(&mut self, frames: u32) {
        let counters = self.shared.counters.worker(self.index.into());
        if frames == 0 {
            counters.empty_passes.add(1);
        } else {
            counters.busy_passes.add(1);
            counters.frames.add(frames.into());
            counters.busy_cycles.add(cycles().wrapping_sub(self.now));
        }
    }

    #[inline]
    pub(super) fn counters(&self, port: PortId) -> &PortCounters {
        self.shared.counters.port(self.index.into(), port.index())
    }

    /// Takes a batch from a source and sends it on its way.
    fn serve(&mut self, slot: u16) -> u32 {
        if !self.peers.have_room(BATCH) {
            return 0;
        }
        match self.take_batch(slot) {
            Ok((0, dropped)) => dropped,
            Ok((count, dropped)) => {
                self.forward_batch(slot, count);
                count as u32 + dropped
            }
            Err((port, fault)) => {
                self.fault(port, fault);
                0
            }
        }
    }

    /// Fills the batch; returns the number of parcels in it and of chains dropped.
    fn take_batch(&mut self, slot: u16) -> Result<(usize, u32), (PortId, RingFault)> {
        let Some(source) = self.sources.get(slot) else { return Ok((0, 0)) };
        let port = source.port();
        let failed = |fault| (port, fault);
        let left = source.intake.look().map_err(failed)?.min(BATCH as u16);
        if left == 0 {
            return Ok((0, 0));
        }
        source.intake.ring().disarm();
        source.intake.prefetch(left);
        if let Verdict::To(port) = source.memo.last()
            && let Some(place) = self.outlets.place(port, &[])
            && let Some(outlet) = self.outlets.get(place.slot)
        {
            outlet.delivery.prefetch(left);
        }
        let Some(batch) = &mut self.batch else { return Ok((0, 0)) };
        let counters = self.shared.counters.port(self.index.into(), port.index());
        let (mut count, mut dropped, mut bytes) = (0, 0, 0);
        for _ in 0..left {
            let parcel = &mut batch[count];
            let taken = if source.enabled {
                source.intake.take(parcel).map_err(failed)?
            } else {
                source.intake.discard().map_err(failed)?;
                Taken::Dropped(DropReason::IntakeDisabled)
            };
            match taken {
                Taken::Parcel => {
                    bytes += u64::from(parcel.length);
                    match check(parcel, &source.offloads) {
                        Ok(()) => count += 1,
                        Err(reason) => {
                            source.intake.complete(parcel.head);
                            counters.drop_frame(reason);
                            dropped += 1;
                        }
                    }
                }
                Taken::Dropped(reason) => {
                    counters.drop_frame(reason);
                    dropped += 1;
                }
                Taken::Nothing => break,
            }
        }
        counters.intake_frames.add(count as u64);
        counters.intake_bytes.add(bytes);
        self.sources.touch(slot);
        Ok((count, dropped))
    }

    /// Decides on each parcel of the batch and acts on it.
    fn forward_batch(&mut self, slot: u16, count: usize) {
        let Some(mut batch) = self.batch.take() else { return };
        for parcel in &mut batch[..count] {
            self.forward(slot, parcel);
        }
        self.batch = Some(batch);
    }

    #[inline]
    fn forward(&mut self, slot: u16, parcel: &mut Parcel) {
        let Some(source) = self.sources.get(slot) else { return };
        parcel.intake = IntakeId { worker: self.index, slot };
        parcel.source = source.port();
        let table = &self.shared.tables[source.segment];
        let addresses = (MacAddress::source(&parcel.start), MacAddress::destination(&parcel.start));
        match source.memo.decide(addresses, parcel.source, table, (table.generation(), self.second)) {
            Verdict::To(port) => self.forward_to(slot, port, parcel),
            Verdict::Flood => self.flood(slot, parcel),
            Verdict::Drop(reason) => self.drop_at_source(slot, parcel, reason),
        }
    }

    #[inline]
    fn forward_to(&mut self, slot: u16, port: PortId, parcel: &mut Parcel) {
        let Some(place) = self.outlets.place(port, parcel.start()) else {
            return self.drop_at_receiver(slot, port, parcel, DropReason::ReceiverAbsent);
        };
        if place.worker != self.index {
            return self.hand_over(slot, port, place.worker, place.slot, parcel);
        }
        match self.outlets.send(place.slot, parcel) {
            Sent::Done => self.complete(slot, parcel.head),
            Sent::MustWait => self.wait(slot, port, place.slot, parcel),
            Sent::Dropped(reason) => self.drop_at_receiver(slot, port, parcel, reason),
            Sent::Fault(port, fault) => {
                self.fault(port, fault);
                self.drop_at_receiver(slot, port, parcel, DropReason::ReceiverAbsent);
            }
        }
    }

    #[inline]
    fn complete(&mut self, slot: u16, head: u16) {
        if let Some(source) = self.sources.get(slot) {
            source.intake.complete(head);
        }
    }

    fn wait(&mut self, slot: u16, port: PortId, outlet: u16, parcel: &Parcel) {
        let Some(source) = self.sources.get(slot) else { return };
        if !source.may_keep_out(port) {
            return self.drop_at_receiver(slot, port, parcel, DropReason::ReceiverFull);
        }
        match self.outlets.park(outlet, parcel, self.now) {
            Ok(()) => source.keeps_out(port),
            Err(reason) => self.drop_at_receiver(slot, port, parcel, reason),
        }
    }

    fn hand_over(&mut self, slot: u16, port: PortId, worker: u8, outlet: u16, parcel: &Parcel) {
        let Some(source) = self.sources.get(slot) else { return };
        if !source.may_keep_out(port) {
            return self.drop_at_receiver(slot, port, parcel, DropReason::ReceiverFull);
        }
        if self.peers.send(worker, Message::Deliver(parcel.clone(), port, outlet)) {
            source.keeps_out(port);
            self.shared.counters.worker(self.index.into()).handed_over.add(1);
        } else {
            self.drop_at_receiver(slot, port, parcel, DropReason::ReceiverFull);
        }
    }

    /// Delivers to every other port of the segment that has room; nothing waits. Other workers get a copy each for their ports.
    #[cold]
    fn flood(&mut self, slot: u16, parcel: &mut Parcel) {
        self.counters(parcel.source).flooded.add(1);
        for index in 0..self.peers.others.len() {
            let other = self.peers.others[index];
            if self.peers.send(other, Message::Flood(parcel.clone()))
                && let Some(source) = self.sources.get(slot)
            {
                source.intake.hold(parcel.head);
            }
        }
        self.flood_here(parcel);
        self.complete(slot, parcel.head);
    }

    pub(super) fn flood_here(&mut self, parcel: &mut Parcel) {
        let segment = self.shared.segment_of[parcel.source.index()];
        for index in 0..self.segments[segment].len() {
            let port = self.segments[segment][index];
            if port == parcel.source {
                continue;
            }
            let Some(place) = self.outlets.place(port, parcel.start()).filter(|place| place.worker == self.index) else { continue };
            parcel.segments_done = 0;
            match self.outlets.send(place.slot, parcel) {
                Sent::Done => {}
                Sent::MustWait => self.counters(port).drop_frame(DropReason::FloodNoRoom),
                Sent::Dropped(reason) => self.counters(port).drop_frame(reason),
                Sent::Fault(port, fault) => self.fault(port, fault),
            }
        }
    }

    fn drop_at_source(&mut self, slot: u16, parcel: &Parcel, reason: DropReason) {
        self.counters(parcel.source).drop_frame(reason);
        self.complete(slot, parcel.head);
    }

    fn drop_at_receiver(&mut self, slot: u16, port: PortId, parcel: &Parcel, reason: DropReason) {
        self.counters(port).drop_frame(reason);
        self.complete(slot, parcel.head);
    }

    /// Serves what waits here.
    fn serve_waiting(&mut self) -> u32 {
        let mut ended = std::mem::take(&mut self.ended);
        let faults =
            self.outlets.serve_waiting(self.now, |parcel, port, result| ended.push((parcel.intake, parcel.head, port, result)));
        let frames = ended.len() as u32;
        for (intake, head, port, result) in ended.drain(..) {
            if let Err(reason) = result {
                self.counters(port).drop_frame(reason);
            }
            self.give_back(intake, head, Some(port));
        }
        self.ended = ended;
        for (port, fault) in faults {
            self.fault(port, fault);
        }
        frames
    }

    /// Returns a parcel that was kept out to its owner.
    pub(super) fn give_back(&mut self, intake: IntakeId, head: u16, to: Option<PortId>) {
        if intake.worker == self.index {
            self.take_back(Return { slot: intake.slot, head, to });
        } else {
            self.peers.give_back(intake.worker, Return { slot: intake.slot, head, to });
        }
    }

    fn take_back(&mut self, back: Return) {
        let Some(source) = self.sources.get(back.slot) else { return };
        source.comes_back(back.head, back.to);
        let awaited = source.when_back.is_some();
        self.sources.touch(back.slot);
        self.sources.wake(back.slot);
        if awaited {
            self.finish_calling_back(back.slot);
        }
    }

    /// Takes what other workers sent.
    fn serve_peers(&mut self) -> u32 {
        let mut frames = 0;
        while let Some(back) = self.peers.receive_return() {
            self.take_back(back);
        }
        for index in 0..self.peers.others.len() {
            let other = self.peers.others[index];
            for _ in 0..4 * BATCH {
                let Some(message) = self.peers.receive(other) else { break };
                self.accept(other, message);
                frames += 1;
            }
        }
        frames
    }

    fn accept(&mut self, from: u8, message: Message) {
        match message {
            Message::Deliver(mut parcel, port, outlet) => self.deliver_for_peer(&mut parcel, port, outlet),
            Message::Flood(mut parcel) => {
                self.flood_here(&mut parcel);
                self.give_back(parcel.intake, parcel.head, None);
            }
            Message::Recall(slot) => self.recall(from, slot),
        }
    }

    fn deliver_for_peer(&mut self, parcel: &mut Parcel, port: PortId, outlet: u16) {
        let result = match self.outlets.send(outlet, parcel) {
            Sent::Done => Ok(()),
            Sent::MustWait => match self.outlets.park(outlet, parcel, self.now) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            Sent::Dropped(reason) => Err(reason),
            Sent::Fault(port, fault) => {
                self.fault(port, fault);
                Err(DropReason::ReceiverAbsent)
            }
        };
        if let Err(reason) = result {
            self.counters(port).drop_frame(reason);
        }
        self.give_back(parcel.intake, parcel.head, Some(port));
    }

    /// Tells drivers and other workers what happened.
    fn flush(&mut self) {
        let (shared, index) = (&self.shared, usize::from(self.index));
        self.outlets.publish(|port| shared.counters.port(index, port.index()));
        while let Some(slot) = self.sources.next_touched() {
            if let Some(source) = self.sources.get(slot) {
                source.intake.publish();
                let calls = source.intake.ring().take_calls();
                if calls > 0 {
                    shared.counters.port(index, source.port().index()).calls.add(calls.into());
                }
            }
        }
        let woken = self.peers.flush();
        if woken > 0 {
            shared.counters.worker(index).wakes.add(woken);
        }
    }

    /// Closes the rings of a port that broke one of them here, and reports it; the control side stops the rest.
    #[cold]
    fn fault(&mut self, port: PortId, fault: RingFault) {
        let slots: Vec<u16> = self.sources.iter().filter(|(_, source)| source.port() == port).map(|(slot, _)| slot).collect();
        for slot in slots {
            self.sources.set_state(slot, State::Closed);
        }
        self.report(Event::RingFault(port, fault));
    }
}

/// Most frames ask for nothing.
#[inline]
fn check(parcel: &mut Parcel, sender: &offload::Offloads) -> Result<(), DropReason> {
    if parcel.header.is_plain() {
        // Other flags are none of the receiver's business (virtio 1.4, section 5.1.6.2).
        parcel.header = crate::frame::NetHeader::default();
        return Ok(());
    }
    offload::check(parcel, sender)
}
