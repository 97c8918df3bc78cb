//! Transmit queue (TX): descriptor chains come in, packets come out, and each chain is completed exactly once.
//!
//! [`TransmitQueue::open`] resolves the next chain and copies its headers into a [`Packet`]; the chain stays the next one until it
//! is disposed of in one of three ways. [`TransmitQueue::finish`] completes it, after its packet was delivered or dropped.
//! [`TransmitQueue::backpressure`] leaves it in the ring (backpressure), to be opened again. [`TransmitQueue::keep_in_flight`] keeps it in
//! flight and moves on, until all holders of the packet [release](TransmitQueue::come_back) it. [`Ring::publish`] shows completions
//! to the driver in the used ring, once a poll iteration.
//!
//! A driver that negotiated VIRTIO_F_IN_ORDER gets its chains completed in the order in which it made them available: chains that
//! are done wait in `order` for those before them (virtio 1.4, section 2.7.9).

#![expect(
    clippy::indexing_slicing,
    reason = "a head is below the ring's size where it was read; a start's length is that of its array at most"
)]

use std::collections::VecDeque;

use super::chain::{Access, ChainFault, Walk};
use super::shared::{Descriptor, INDIRECT};
use super::wait_state::ATTEMPTS;
use super::{Ring, RingFault};
use crate::drop_reason::DropReason;
use crate::frame::{COPIED, ETHERNET, MAX_FRAME, NetHeader, SHORT_START};
use crate::in_flight::InFlight;
use crate::memory::Iovec;
use crate::memory::faults::Faults;
use crate::memory::holes::{Look, Torn};
use crate::packet::{ChunkPool, Loan, MAX_IOVECS, Packet};

/// State of a packet in flight.
#[derive(Clone, Copy, Debug)]
struct Kept {
    loan: Loan,
    /// With IN_ORDER, its place in the order, counted since the ring began.
    number: u32,
}

/// A hole in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    /// In an indirect table or a descriptor, which the driver has written.
    Table,
    /// In the headers, which are zeros only in a frame that was never written.
    Headers,
    /// Elsewhere in the frame, where zeros may be meant.
    Other,
}

/// Result of [`TransmitQueue::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenOutcome {
    /// A packet, to be disposed of.
    Packet,
    /// The chain is no valid frame: it was completed, for this reason.
    Dropped(DropReason),
    /// No chain, or none that can be opened before others are completed.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub struct TransmitQueue {
    pub(super) ring: Ring,
    in_flight: InFlight<Kept>,
    /// With IN_ORDER, and chains in flight: heads in the order in which they came, and whether each is done.
    order: VecDeque<(u16, bool)>,
    /// Number of heads that left `order` before its first.
    gone: u32,
    chunks: ChunkPool,
    scratch: Vec<Iovec>,
    walked: u64,
}

impl TransmitQueue {
    /// A transmit queue on `ring`.
    pub fn new(ring: Ring) -> Self {
        let size = ring.size();
        Self {
            ring,
            in_flight: InFlight::new(size, Kept { loan: Loan::NONE, number: 0 }),
            order: VecDeque::new(),
            gone: 0,
            chunks: ChunkPool::new(size),
            scratch: Vec::with_capacity(MAX_IOVECS),
            walked: 0,
        }
    }

    /// The ring, for arming, publishing and moving.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Chains that cannot be completed yet: their packets are in flight, or, with IN_ORDER, those of chains before them.
    /// [`Self::check_room`] bounds them by the size of the ring.
    pub fn in_flight(&self) -> u16 {
        if self.is_orderly() { self.in_flight.count() } else { self.order.len() as u16 }
    }

    /// Chains that can be taken now, at most `most`, which are read ahead.
    ///
    /// # Errors
    /// A [`RingFault`] after which the ring must not be used.
    #[inline]
    pub fn look(&mut self, most: u16) -> Result<u16, RingFault> {
        self.ring.stop_waiting();
        let mut left = self.ring.untaken();
        if left == 0 {
            left = self.ring.look()?;
        }
        let count = left.min(most);
        self.ring.read_ahead::<false>(count)?;
        Ok(if self.ring.waits_until().is_none() { count } else { 0 })
    }

    /// Opens the next chain into `packet` (all fields but `transmit`, `source` and `segments_done`).
    ///
    /// # Errors
    /// A [`RingFault`] after which the ring must not be used.
    #[inline]
    pub fn open(&mut self, packet: &mut Packet) -> Result<OpenOutcome, RingFault> {
        if !self.ring.has_chain::<false>()? {
            return Ok(OpenOutcome::Nothing);
        }
        self.check_room()?;
        let head = self.ring.next_chain().head;
        if self.is_in_flight(head) {
            self.give_back(head);
            return Ok(OpenOutcome::Dropped(DropReason::HeadTwice));
        }
        let look = self.ring.begin_look();
        let mut taken = if self.open_single(packet) { OpenOutcome::Packet } else { self.open_chain(packet) };
        if !look.is_clean() || self.ring.memory.is_filling() {
            taken = self.open_with_holes(look, packet, taken)?;
        }
        match taken {
            OpenOutcome::Packet => (packet.head, packet.memory) = (head, self.ring.owner),
            OpenOutcome::Dropped(_) => self.give_back(head),
            OpenOutcome::Nothing => {}
        }
        Ok(taken)
    }

    /// The next chain was `taken` as this, but some of it may be zeros of holes, or memory is still to be filled: it waits then.
    #[cold]
    fn open_with_holes(&mut self, look: Look, packet: &mut Packet, taken: OpenOutcome) -> Result<OpenOutcome, RingFault> {
        self.ring.check_filled();
        let (mut look, mut taken) = (look, taken);
        let mut again = !look.is_clean() && look.settle().by_others;
        for _ in 0..ATTEMPTS {
            if !again {
                break;
            }
            if taken == OpenOutcome::Packet {
                self.backpressure(packet);
            }
            std::hint::spin_loop();
            look = self.ring.begin_look();
            taken = if self.open_single(packet) { OpenOutcome::Packet } else { self.open_chain(packet) };
            again = !look.is_clean() && look.settle().by_others;
        }
        if !again {
            let is_filling = self.ring.memory.is_filling();
            let Some(hole) = self.find_hole(is_filling) else { return Ok(taken) };
            if hole == Hole::Table || (hole == Hole::Headers && self.ring.is_suspect()) {
                self.ring.memory.note_filling();
            }
            if !self.ring.memory.is_filling() {
                return Ok(taken);
            }
            self.ring.wait_for_memory()?;
        }
        if taken == OpenOutcome::Packet {
            self.backpressure(packet);
        }
        Ok(OpenOutcome::Nothing)
    }

    /// Whether the next chain lies in a hole in part; `all` of it is looked at only if that matters.
    fn find_hole(&mut self, all: bool) -> Option<Hole> {
        let first = self.ring.next_chain().first;
        let look = self.ring.begin_look();
        let resolved = self.resolve(first);
        let torn = look.end();
        if torn.met_hole {
            return self.is_whole(first).then_some(Hole::Table);
        }
        let look = self.ring.begin_look();
        let mut start = [0; NetHeader::SIZE + ETHERNET];
        if resolved.is_ok_and(|length| length as usize >= start.len()) {
            gather(&self.scratch, 0, &mut start);
        }
        let of_headers = look.end();
        if of_headers.met_hole {
            return Some(Hole::Headers);
        }
        if !all {
            return None;
        }
        let (look, mut faults) = (self.ring.begin_look(), Faults::default());
        let is_whole = self.scratch.iter().all(|iovec| {
            iovec.touch();
            faults.may_go_on()
        });
        let of_rest = look.end();
        let is_torn = torn.by_others || of_headers.by_others || of_rest != Torn::NO;
        (is_torn || !is_whole).then_some(Hole::Other)
    }

    /// Whether the indirect table of the chain that begins with `first` lies in guest memory to its end, if there is one: another is no table that
    /// a driver has written, and the chain is completed.
    fn is_whole(&mut self, first: Descriptor) -> bool {
        let Ring { memory, hint, .. } = &mut self.ring;
        let table = (first.flags() & INDIRECT != 0).then(|| memory.iovec(first.address(), first.length(), hint));
        table.is_none_or(|table| table.is_some_and(|table| table.length() == first.length()))
    }

    /// A driver with as many uncompleted chains as the ring holds has none to make available: a further one would be counted as in
    /// flight beyond any bound.
    #[inline]
    fn check_room(&mut self) -> Result<(), RingFault> {
        if self.in_flight() < self.ring.size() { Ok(()) } else { Err(self.ring.break_off(RingFault::TooManyInFlight)) }
    }

    /// True if the packet of `head` is in flight.
    #[inline(always)]
    pub(super) fn is_in_flight(&self, head: u16) -> bool {
        self.in_flight.contains(head)
    }

    /// Completes the next chain, with head `head`.
    #[inline]
    fn give_back(&mut self, head: u16) {
        self.ring.advance(1);
        if self.order.is_empty() {
            self.ring.complete_unwritten(head);
        } else {
            self.order.push_back((head, true));
        }
    }

    /// True if chains can be completed at once, without waiting for earlier ones.
    #[inline]
    pub(super) fn is_orderly(&self) -> bool {
        self.order.is_empty()
    }

    /// Completes the next chain unread, which the specification requires of a ring that is started but disabled ("consumed and
    /// discarded"); false if there is none.
    ///
    /// # Errors
    /// A [`RingFault`] after which the ring must not be used.
    pub fn discard(&mut self) -> Result<bool, RingFault> {
        let any = self.ring.has_chain::<false>()?;
        if any {
            self.check_room()?;
            self.give_back(self.ring.next_chain().head);
        }
        Ok(any)
    }

    /// The common case: the whole frame, behind a header of twelve bytes, in one buffer. False if it is another case.
    #[inline(always)]
    fn open_single(&mut self, packet: &mut Packet) -> bool {
        const HEADER: u32 = NetHeader::SIZE as u32;
        let Some(buffer) = self.ring.next_chain().single() else { return false };
        if !(HEADER + ETHERNET as u32..=HEADER + MAX_FRAME).contains(&buffer.length())
            || self.ring.options.header_length != NetHeader::SIZE as u8
        {
            return false;
        }
        let Some(header) = buffer.header() else { return false };
        let frame = buffer.skip(HEADER);
        packet.length = frame.length();
        packet.header = NetHeader::from_words(header);
        let start_length = start_length(packet);
        if start_length == SHORT_START as u32
            && let (Some(block), Some(start)) = (frame.block(), packet.start.first_chunk_mut())
        {
            block.store_in(start);
        } else {
            frame.copy_in(&mut packet.start[..start_length as usize]);
        }
        packet.start_length = start_length;
        packet.set_single_rest(frame.skip(start_length));
        true
    }

    /// Any chain.
    #[inline(never)]
    fn open_chain(&mut self, packet: &mut Packet) -> OpenOutcome {
        match self.resolve(self.ring.next_chain().first) {
            Ok(length) => self.fill(packet, length),
            Err(fault) => OpenOutcome::Dropped(DropReason::from(fault)),
        }
    }

    /// Resolves the chain that begins with `first` into `scratch`; returns its bytes.
    fn resolve(&mut self, first: Descriptor) -> Result<u32, ChainFault> {
        self.scratch.clear();
        let Ring { split, memory, hint, options, .. } = &mut self.ring;
        let limit = MAX_FRAME + u32::from(options.header_length);
        let mut walk = Walk { ring: split, memory, hint, access: Access::Read, indirect: options.indirect, limit, walked: 0 };
        let length = walk.resolve(first, &mut self.scratch);
        self.walked += u64::from(walk.walked);
        length
    }

    /// Descriptors that were walked since this was last asked: the cost of the driver's chains beside the copy. Chains of one
    /// descriptor that hold a whole frame are not counted.
    #[inline]
    pub fn take_walked(&mut self) -> u64 {
        std::mem::take(&mut self.walked)
    }

    /// Copies the headers of the resolved chain of `total` bytes, and records where the rest lies.
    fn fill(&mut self, packet: &mut Packet, total: u32) -> OpenOutcome {
        let header_length = u32::from(self.ring.options.header_length);
        if total < header_length + ETHERNET as u32 {
            return OpenOutcome::Dropped(DropReason::Runt);
        }
        let mut header = [0; NetHeader::SIZE];
        gather(&self.scratch, 0, &mut header[..header_length as usize]);
        packet.header = NetHeader::from_bytes(header);
        packet.length = total - header_length;
        let start_length = start_length(packet);
        gather(&self.scratch, header_length, &mut packet.start[..start_length as usize]);
        packet.start_length = start_length;
        match packet.set_rest(&self.scratch, header_length + start_length, &mut self.chunks) {
            Ok(()) => OpenOutcome::Packet,
            // The pool holds at least one frame's worth, so others are in flight and will return chunks.
            Err(_) => OpenOutcome::Nothing,
        }
    }

    /// Completes the chain of an opened packet.
    #[inline]
    pub fn finish(&mut self, packet: &Packet) {
        self.backpressure(packet);
        self.give_back(packet.head);
    }

    /// Backpressure: leaves the chain of an opened packet in the ring.
    #[inline]
    pub fn backpressure(&mut self, packet: &Packet) {
        if packet.loan != Loan::NONE {
            self.chunks.give_back(packet.loan);
        }
    }

    /// Keeps the chain of an opened packet in flight and moves on, until `holders` holders release it.
    pub fn keep_in_flight(&mut self, packet: &Packet, holders: u16) {
        self.ring.advance(1);
        let number = self.gone.wrapping_add(self.order.len() as u32);
        self.in_flight.keep(packet.head, holders, Kept { loan: packet.loan, number });
        if self.ring.options.in_order {
            self.order.push_back((packet.head, false));
        }
    }

    /// The packet of `head`, which is in flight, has so many `more` holders.
    pub fn hold(&mut self, head: u16, more: u16) {
        self.in_flight.hold(head, more);
    }

    /// One holder releases the packet of `head`; after the last one its chain is completed.
    pub fn come_back(&mut self, head: u16) {
        let Some(Kept { loan, number }) = self.in_flight.release(head) else { return };
        self.chunks.give_back(loan);
        if self.ring.options.in_order {
            self.come_back_in_order(number);
        } else {
            self.ring.complete_unwritten(head);
        }
    }

    fn come_back_in_order(&mut self, number: u32) {
        if let Some((_, done)) = self.order.get_mut(number.wrapping_sub(self.gone) as usize) {
            *done = true;
        }
        while let Some(&(head, true)) = self.order.front() {
            self.order.pop_front();
            self.gone = self.gone.wrapping_add(1);
            self.ring.complete_unwritten(head);
        }
    }
}

/// Number of bytes of a frame that are copied on transmit.
#[inline]
fn start_length(packet: &Packet) -> u32 {
    let most = if packet.header.is_plain() { SHORT_START } else { COPIED };
    packet.length.min(most as u32)
}

/// Copies `to.len()` bytes that begin `skip` bytes into `iovecs`, which hold at least so many, each byte once.
fn gather(iovecs: &[Iovec], skip: u32, to: &mut [u8]) {
    let (mut skip, mut to) = (skip, to);
    for iovec in iovecs {
        let part = iovec.skip(skip).first(to.len() as u32);
        skip -= skip.min(iovec.length());
        if part.length() == 0 {
            continue;
        }
        part.copy_in(to);
        to = &mut to[part.length() as usize..];
        if to.is_empty() {
            return;
        }
    }
}
