//! Receive queue (RX): packets go in; the one payload copy is made here.
//!
//! [`ReceiveQueue::place`] determines the offload repair that this receiver needs, **collects** receive buffers for the frame
//! (mergeable buffers), copies straight from the sender's memory into them, repairing on the way, and completes them in the used
//! ring; [`Ring::publish`] shows them to the driver, once a poll iteration. Buffers that are too few for the frame stay collected: the
//! next attempt goes on behind them, and costs a look at the available index while the driver posts none.

#![expect(clippy::indexing_slicing, reason = "header and headers have their lengths in arrays of the longest")]

use super::chain::{Access, Walk};
use super::rooms::{Reader, Writer};
use super::shared::Descriptor;
use super::wait_state::ATTEMPTS;
use super::{Ring, RingFault};
use crate::copy::Block;
use crate::drop_reason::DropReason;
use crate::frame::{ETHERNET, MAX_FRAME, NetHeader, SHORT_START};
use crate::memory::Iovec;
use crate::memory::faults::Faults;
use crate::memory::holes::{self, Look, Owner, Torn};
use crate::offload::checksum::Sum;
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Offloads, Plan, plan};
use crate::packet::{Loan, MAX_IOVECS, MOST_READ, Packet};

/// Bad chains after which the search for buffers ends: the guest gets them back at once, and could make them available again for
/// ever.
const BAD_CHAINS: u32 = 8;
/// Descriptors after which it ends: far more than a well-behaved guest's buffers have for the longest frame.
const WALK: u64 = 4096;
/// Descriptors walked for a frame beyond which its receiver's buffers count as expensive, one more for some hundred bytes each: no
/// well-behaved guest's buffers need so many.
pub const BURDEN: u64 = 64;

/// Result of placing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceOutcome {
    /// Delivered completely, as this many frames.
    Complete(u32),
    /// The receiver has too few buffers now. Delivered segments are recorded in the packet.
    NoRoom,
    /// The frame can never be delivered, for this reason.
    Refused(DropReason),
}

/// Reason why a frame could not be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too few buffers now.
    NoRoom,
    /// The frame cannot be delivered to this receiver.
    Drop(DropReason),
    /// The driver broke the ring.
    Fault(RingFault),
}

impl From<RingFault> for Refusal {
    fn from(fault: RingFault) -> Self {
        Self::Fault(fault)
    }
}

/// A receive buffer collected for a frame.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    head: u16,
    capacity: u32,
}

/// What is collected for a frame for which there are too few buffers.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    /// See [`Ring::mark`].
    mark: (u64, u16),
    /// Bytes that the collected buffers hold.
    capacity: u32,
    /// Descriptors that were walked for them.
    walked: u64,
}

/// Why an attempt to place a frame is repeated: other threads have covered pages meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Repeat {
    /// No other thread has.
    #[default]
    No,
    /// Pages of the sender's memory.
    Frame,
    /// Pages of this guest's memory.
    Rooms,
}

/// Frames of a sender that are read from its memory's file after one that met a hole: a trap costs more than reading a frame so.
const FROM_FILE: u8 = 8;

/// See the module.
#[derive(Debug)]
pub struct ReceiveQueue {
    pub(super) ring: Ring,
    receiver: Offloads,
    mergeable: bool,
    /// Bytes of the longest frame that the fast path carries to it.
    pub(super) longest: u32,
    rooms: Vec<Iovec>,
    buffers: Vec<Buffer>,
    /// The last frame found too few buffers: `rooms` and `buffers` hold all that were posted.
    shortage: Option<Shortage>,
    bad_chains: u32,
    walked: u64,
    /// Why the last attempt is repeated.
    torn: Repeat,
    /// The sender whose frame met a hole last, and how many of its next frames are read from its memory's file.
    holed: (Owner, u8),
}

impl ReceiveQueue {
    /// A receive queue on `ring` to a guest that takes `receiver` offloads and, if `mergeable`, frames over several buffers
    /// (mergeable receive buffers).
    pub fn new(ring: Ring, receiver: Offloads, mergeable: bool) -> Self {
        let most = usize::from(ring.size()).max(MAX_IOVECS);
        let (rooms, buffers) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let (torn, holed) = (Repeat::No, (Owner::NONE, 0));
        Self {
            ring,
            receiver,
            mergeable,
            longest: MAX_FRAME,
            rooms,
            buffers,
            shortage: None,
            bad_chains: 0,
            walked: 0,
            torn,
            holed,
        }
    }

    /// The ring, for arming, publishing and moving.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Longer frames than this, which may exceed the MTU on which the guest agreed, do not take the fast path.
    #[inline]
    pub fn set_longest(&mut self, bytes: u32) {
        self.longest = bytes.min(MAX_FRAME);
    }

    /// Receive descriptor chains that broke a rule since this was last asked.
    pub fn take_bad_chains(&mut self) -> u32 {
        std::mem::take(&mut self.bad_chains)
    }

    /// Descriptors that were walked to find buffers since this was last asked: the cost of the receiver's buffers beside the copy.
    /// At most a few thousand for each [`Self::place`]; buffers of one descriptor that hold a whole frame are not counted.
    pub fn take_walked(&mut self) -> u64 {
        std::mem::take(&mut self.walked)
    }

    /// Reads ahead the buffers of the next `count` frames; returns how many buffers are known then.
    ///
    /// # Errors
    /// A [`RingFault`], after which the ring must not be used.
    #[inline]
    pub fn read_ahead(&mut self, count: u16) -> Result<u16, RingFault> {
        if self.ring.untaken() == 0 {
            self.ring.look()?;
        }
        self.ring.read_ahead::<true>(count)?;
        Ok(self.ring.known())
    }

    /// Delivers `packet`, with a header that was checked on transmit.
    ///
    /// # Errors
    /// A [`RingFault`] of the receiver, after which the ring must not be used.
    pub fn place(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        self.ring.stop_waiting();
        if self.expects_hole(packet)? {
            self.torn = Repeat::Frame;
        } else if packet.header.is_plain() && self.place_in_one(packet)? {
            return Ok(PlaceOutcome::Complete(1));
        }
        if self.torn == Repeat::No {
            let placed = self.place_otherwise(packet)?;
            if self.torn == Repeat::No || placed != PlaceOutcome::NoRoom {
                self.torn = Repeat::No;
                return Ok(placed);
            }
        }
        self.place_again(packet)
    }

    /// Whether a frame of the same sender lay in a hole a few frames ago, so that this one is read from the file without a trap.
    #[inline]
    fn expects_hole(&mut self, packet: &Packet) -> Result<bool, RingFault> {
        let (owner, left) = self.holed;
        if left == 0 || owner != packet.memory || packet.rest().nth(MOST_READ).is_some() || !self.has_chain()? {
            return Ok(false);
        }
        self.holed.1 = left - 1;
        Ok(true)
    }

    /// The copy of `packet` met holes of its sender's memory, or pages that may be covered as such: it is read from the file.
    #[cold]
    fn met_hole(&mut self, packet: &Packet) {
        (self.torn, self.holed) = (Repeat::Frame, (packet.memory, FROM_FILE));
    }

    /// Like [`Self::place`], after other threads have covered pages of the sender's transmit buffers or of this guest's receive buffers, descriptor
    /// table or available ring.
    #[cold]
    fn place_again(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        for _ in 0..ATTEMPTS {
            let placed = if std::mem::take(&mut self.torn) == Repeat::Frame {
                let mut memory = Vec::new();
                let Some(mut copy) = packet.copied(&mut memory) else { return Ok(PlaceOutcome::Refused(DropReason::SenderMemory)) };
                let placed = self.place_otherwise(&mut copy)?;
                packet.segments_done = copy.segments_done;
                placed
            } else {
                std::hint::spin_loop();
                self.place_otherwise(packet)?
            };
            if self.torn == Repeat::No || placed != PlaceOutcome::NoRoom {
                self.torn = Repeat::No;
                return Ok(placed);
            }
        }
        self.torn = Repeat::No;
        self.ring.wait_for_memory()?;
        Ok(PlaceOutcome::NoRoom)
    }

    #[inline(never)]
    fn place_otherwise(&mut self, packet: &mut Packet) -> Result<PlaceOutcome, RingFault> {
        let result = match plan(packet, &self.receiver) {
            Plan::AsIs => self.place_as_is(packet).map(|()| 1),
            Plan::Checksum => self.place_checksummed(packet).map(|()| 1),
            Plan::Segment { partial } => self.place_segments(packet, partial),
        };
        match result {
            Ok(frames) => Ok(PlaceOutcome::Complete(frames)),
            Err(Refusal::NoRoom) => Ok(PlaceOutcome::NoRoom),
            Err(Refusal::Drop(reason)) => Ok(PlaceOutcome::Refused(reason)),
            Err(Refusal::Fault(fault)) => Err(fault),
        }
    }

    #[inline(always)]
    fn place_in_one(&mut self, packet: &Packet) -> Result<bool, RingFault> {
        if self.ring.memory.is_filling() || !self.has_chain()? {
            return Ok(false);
        }
        let chain = self.ring.next_chain();
        let (head, needed) = (chain.head, packet.length + u32::from(self.ring.options.header_length));
        // A frame in many buffer segments is copied by the general path, which bounds page faults.
        let Some(room) = chain.single().and_then(|buffer| buffer.exactly(needed)).filter(|_| packet.loan == Loan::NONE) else {
            return Ok(false);
        };
        let look = Look::begin(packet.memory);
        let is_whole = self.write_to_one(room, packet);
        if look.end().by_others || !is_whole {
            self.met_hole(packet);
            return Ok(false);
        }
        if self.ring.is_logged() {
            self.ring.log_written(room);
        }
        self.ring.advance(1);
        self.ring.complete(head, needed);
        Ok(true)
    }

    /// Has the next chain read, if there is one.
    fn has_chain(&mut self) -> Result<bool, RingFault> {
        if self.ring.untaken() == 0 && self.ring.look()? == 0 {
            return Ok(false);
        }
        self.ring.has_chain::<true>()
    }

    fn place_as_is(&mut self, packet: &Packet) -> Result<(), Refusal> {
        self.collect(packet.length)?;
        self.write_to_many(packet.header, packet)?;
        self.complete(packet.length);
        Ok(())
    }

    /// Writes header and frame to `room`, which holds both; false if it ended before, at the first hole of the sender's memory.
    fn write_to_one(&self, room: Iovec, packet: &Packet) -> bool {
        let header = packet.header.in_buffers(1);
        let length = self.ring.options.header_length;
        if length == NetHeader::SIZE as u8 {
            room.write_header(header.words());
        } else {
            room.write(&header.bytes()[..usize::from(length)]);
        }
        let (mut room, start) = (room.skip(length.into()), packet.start());
        match start.first_chunk() {
            Some(block) if start.len() == SHORT_START => room.write_block(&Block::of(block)),
            _ => room.write(start),
        }
        room = room.skip(start.len() as u32);
        let mut rest = packet.rest();
        while let Some(iovec) = rest.next() {
            iovec.copy_to(room);
            if holes::has_covers() {
                return rest.next().is_none();
            }
            room = room.skip(iovec.length());
        }
        true
    }

    fn write_to_many(&mut self, header: NetHeader, packet: &Packet) -> Result<(), Refusal> {
        let look = Look::begin(packet.memory);
        let mut writer = self.write_header(header);
        writer.write(packet.start());
        Reader::new(packet.rest()).copy_to(&mut writer, packet.rest_length());
        self.check(writer.has_given_up(), look, packet)?;
        self.settle(look)
    }

    /// Refuses a frame if its copy was given up because of page faults. Its buffers stay in the ring. If the receive buffers have
    /// more segments than a well-behaved guest's have, the receiver is the cause. A frame in holes is read from its file.
    fn check(&mut self, has_given_up: bool, look: Look, packet: &Packet) -> Result<(), Refusal> {
        if !has_given_up {
            return Ok(());
        }
        if self.ring.is_logged() {
            self.log_rooms(u32::MAX);
        }
        if holes::has_covers() {
            look.settle();
            self.met_hole(packet);
            return Err(Refusal::NoRoom);
        }
        let of_receiver = self.rooms.len() as u64 > BURDEN;
        Err(Refusal::Drop(if of_receiver { DropReason::ReceiverMemory } else { DropReason::SenderMemory }))
    }

    /// Writes the virtio-net header; returns the writer behind it.
    fn write_header(&self, header: NetHeader) -> Writer<'_> {
        let header = header.in_buffers(self.buffers.len() as u16);
        let mut writer = Writer::new(&self.rooms, 0);
        writer.write(&header.bytes()[..usize::from(self.ring.options.header_length)]);
        writer
    }

    fn place_checksummed(&mut self, packet: &Packet) -> Result<(), Refusal> {
        self.collect(packet.length)?;
        self.write_to_many(NetHeader::default(), packet)?;
        let start = u32::from(packet.header.csum_start());
        let field = start + u32::from(packet.header.csum_offset());
        self.complete_checksum(start, field, packet.length);
        self.complete(packet.length);
        Ok(())
    }

    /// Sums the delivered frame from `start` to its `length`, the partial sum in `field` included, and stores the checksum there. A
    /// receiver that changes its memory meanwhile spoils only its own checksum.
    fn complete_checksum(&self, start: u32, field: u32, length: u32) {
        let header_length = u32::from(self.ring.options.header_length);
        let mut sum = Sum::default();
        Writer::new(&self.rooms, header_length + start).sum(length - start, &mut sum);
        let checksum = match sum.finish() {
            // Zero means "no checksum" in UDP (RFC 768); to TCP both zeroes are alike.
            [0, 0] => [0xff, 0xff],
            other => other,
        };
        Writer::new(&self.rooms, header_length + field).write(&checksum);
    }

    /// Segments the GSO frame and delivers as many segments as there is room for.
    fn place_segments(&mut self, packet: &mut Packet, partial: bool) -> Result<u32, Refusal> {
        let mut cutter = Cutter::new(packet, partial).ok_or(Refusal::Drop(DropReason::BadSegmentation))?;
        let before = self.walked;
        while u32::from(packet.segments_done) < cutter.count() {
            if self.walked - before >= WALK {
                // The rest another time: a receiver with such buffers is served slowly.
                return Err(Refusal::NoRoom);
            }
            let segment = cutter.segment(packet.segments_done.into());
            self.place_segment(packet, &segment)?;
            packet.segments_done += 1;
        }
        Ok(cutter.count())
    }

    fn place_segment(&mut self, packet: &Packet, segment: &Segment<'_>) -> Result<(), Refusal> {
        let length = segment.headers.len() as u32 + segment.payload_length;
        self.collect(length)?;
        let look = Look::begin(packet.memory);
        let mut writer = self.write_header(segment.header);
        writer.write(segment.headers);
        write_payload(packet, segment, &mut writer);
        self.check(writer.has_given_up(), look, packet)?;
        self.settle(look)?;
        if let Some((start, field)) = segment.complete {
            self.complete_checksum(start, field, length);
        }
        self.complete(length);
        Ok(())
    }

    /// Fills `rooms` and `buffers` for a frame of `length` bytes, without taking chains yet. The guest may make more available
    /// meanwhile, so the search is bounded by the work done.
    fn collect(&mut self, length: u32) -> Result<(), Refusal> {
        let needed = length + u32::from(self.ring.options.header_length);
        let (mut capacity, walked) = self.collected(needed);
        let (before, mut bad) = (self.walked, 0);
        let enough = before + WALK.saturating_sub(walked);
        while capacity < needed {
            if bad == BAD_CHAINS || self.walked >= enough {
                return Err(Refusal::Drop(if bad > 0 { DropReason::BadReceiveChains } else { DropReason::TooLongForReceiver }));
            }
            let ahead = self.buffers.len() as u16;
            if ahead == self.ring.untaken() && self.ring.look()? == ahead {
                let walked = walked + self.walked - before;
                self.shortage = (bad == 0).then(|| Shortage { mark: self.ring.mark(), capacity, walked });
                return Err(self.too_little(ahead));
            }
            let look = self.ring.begin_look();
            let chain = self.ring.chain::<true>(ahead)?;
            let room = self.resolve(chain.first, needed - capacity);
            if !look.is_clean() {
                self.ring.forget_torn(look)?;
                self.torn = if self.ring.waits_until().is_none() { Repeat::Rooms } else { Repeat::No };
                return Err(Refusal::NoRoom);
            }
            let room = match room {
                Some(room) => room,
                None => {
                    self.give_back_bad(chain.head);
                    bad += 1;
                    capacity = 0;
                    continue;
                }
            };
            self.buffers.push(Buffer { head: chain.head, capacity: room });
            capacity += room;
            if !self.mergeable && capacity < needed {
                return Err(Refusal::Drop(DropReason::TooLongForReceiver));
            }
        }
        if self.ring.memory.is_filling() { self.await_rooms() } else { Ok(()) }
    }

    /// Bytes that `rooms` and `buffers` hold already of a frame that needs `needed`, and the descriptors that were walked for them: none
    /// but after an attempt that found too few. All chains of that were walked to their ends, and none was taken since.
    #[inline]
    fn collected(&mut self, needed: u32) -> (u32, u64) {
        let shortage = self.shortage.take().filter(|shortage| shortage.capacity < needed && shortage.mark == self.ring.mark());
        if let Some(Shortage { capacity, walked, .. }) = shortage.filter(|_| !self.ring.memory.is_filling()) {
            return (capacity, walked);
        }
        self.rooms.clear();
        self.buffers.clear();
        (0, 0)
    }

    /// Waits if a part of the collected buffers lies in a hole that is still to be filled.
    #[cold]
    fn await_rooms(&mut self) -> Result<(), Refusal> {
        self.ring.check_filled();
        let (look, memory) = (self.ring.begin_look(), &self.ring.memory);
        let mut faults = Faults::default();
        let is_whole = self.rooms.iter().filter_map(|&room| memory.readable(room)).all(|room| {
            room.touch();
            faults.may_go_on()
        });
        if look.end() == Torn::NO && is_whole {
            return Ok(());
        }
        self.ring.wait_for_memory()?;
        Err(Refusal::NoRoom)
    }

    /// All `buffers` of the ring are collected and are not enough: wait for more, unless there can be no more.
    #[cold]
    fn too_little(&self, buffers: u16) -> Refusal {
        if buffers == self.ring.size() { Refusal::Drop(DropReason::TooLongForReceiver) } else { Refusal::NoRoom }
    }

    /// Appends the buffer segments of the chain that begins with `first`, `wanted` bytes at most; `None` if it breaks a rule. Every
    /// buffer must hold at least the header (virtio 1.4, section 5.1.6.3.1).
    fn resolve(&mut self, first: Descriptor, wanted: u32) -> Option<u32> {
        let Ring { split, memory, hint, options, .. } = &mut self.ring;
        let shortest = u32::from(options.header_length) + if self.mergeable { 0 } else { ETHERNET as u32 };
        let limit = wanted.max(shortest);
        let mut walk = Walk { ring: split, memory, hint, access: Access::Write, indirect: options.indirect, limit, walked: 0 };
        let room = walk.resolve(first, &mut self.rooms).ok();
        self.walked += u64::from(walk.walked.max(1));
        room.filter(|&room| room >= shortest)
    }

    /// Completes a bad chain empty, and with it those collected before it, so that the guest pays for a violation once.
    #[cold]
    fn give_back_bad(&mut self, head: u16) {
        self.bad_chains += 1;
        for head in self.buffers.iter().map(|buffer| buffer.head).chain([head]) {
            self.ring.complete(head, 0);
        }
        self.ring.advance(self.buffers.len() as u16 + 1);
        self.buffers.clear();
        self.rooms.clear();
    }

    /// A copy has ended that began with `look` at the sender's memory. Zeros of holes are the payload of a guest with fresh memory; but a page
    /// that another thread covered may have been filled meanwhile, and the copy is repeated from the file.
    #[inline]
    fn settle(&mut self, look: Look) -> Result<(), Refusal> {
        if look.end().by_others {
            self.torn = Repeat::Frame;
            return Err(Refusal::NoRoom);
        }
        Ok(())
    }

    /// Takes the collected buffers and completes them with a frame of `length` bytes.
    fn complete(&mut self, length: u32) {
        let mut left = length + u32::from(self.ring.options.header_length);
        if self.ring.is_logged() {
            self.log_rooms(left);
        }
        for buffer in &self.buffers {
            let used = left.min(buffer.capacity);
            self.ring.split.put_used(self.ring.next_used, buffer.head, used);
            self.ring.next_used = self.ring.next_used.wrapping_add(1);
            left -= used;
        }
        self.ring.advance(self.buffers.len() as u16);
    }
}

impl ReceiveQueue {
    /// Marks the first `length` bytes of the collected buffers in the dirty log.
    #[cold]
    fn log_rooms(&self, length: u32) {
        let mut left = length;
        for room in &self.rooms {
            let written = room.first(left);
            self.ring.log_written(written);
            left -= written.length();
        }
    }
}

/// Copies the payload of `segment`: first the part in the copied start, then the rest from the sender's memory.
fn write_payload(packet: &Packet, segment: &Segment<'_>, writer: &mut Writer) {
    let copied = packet.start();
    let from = segment.headers.len() + segment.payload_offset as usize;
    let to = from + segment.payload_length as usize;
    if from < copied.len() {
        writer.write(&copied[from..to.min(copied.len())]);
    }
    if to > copied.len() {
        let mut reader = Reader::new(packet.rest());
        reader.skip(from.saturating_sub(copied.len()) as u32);
        reader.copy_to(writer, (to - from.max(copied.len())) as u32);
    }
}
