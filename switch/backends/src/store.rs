//! Packet buffers of one port in the switch's own memory: they hold frames in flight from senders that share no memory.
//!
//! 1. A transmit end [allocates buffers](Store::make_room), reads frames into free ones, and marks each as [filled](Store::fill).
//! 2. The worker [opens](Store::open) the oldest frame as a packet and disposes of it.
//! 3. When no more frames arrive, free buffers [return](Store::give_back_spare) to the shared [`Pool`].
//!
//! [`Buffered`] is the transmit end of a port with a [`Reader`] that fills such buffers.

#![expect(clippy::indexing_slicing, reason = "buffers are numbered by the store")]

use std::collections::VecDeque;
use std::sync::Arc;

use crate::frame::{ETHERNET, NetHeader};
use crate::packet::Packet;
use crate::pool::{Pool, Room, Share};
use crate::port::end::{NOTHING_LOST, TransmitEnd};
use crate::ring::OpenOutcome;
use crate::stats::DropReason;

/// Most frames of one port that are read and not yet delivered, however much memory there is.
const FRAMES: u16 = 256;
/// Buffers that an idle port keeps for its next frames.
pub(super) const KEPT: usize = 16;

/// A packet buffer.
#[derive(Debug, Default)]
struct Buffer {
    room: Option<Room>,
    length: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    share: Share,
    /// Never grows or moves: packets in flight point into it.
    buffers: Box<[Buffer]>,
    /// Free buffers with memory.
    free: Vec<u16>,
    /// Buffers without memory.
    bare: Vec<u16>,
    /// Filled and not yet opened, the oldest first.
    filled: VecDeque<u16>,
}

impl Store {
    /// A store that allocates its memory from `pool`.
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        let share = Share::new(pool);
        let mut buffers: Box<[Buffer]> = (0..FRAMES).map(|_| Buffer::default()).collect();
        buffers[0].room = Some(share.own());
        Self { share, buffers, free: vec![0], bare: (1..FRAMES).collect(), filled: VecDeque::with_capacity(FRAMES.into()) }
    }

    /// Most frames that may be in flight, given the memory that is left.
    pub(super) fn size(&self) -> u16 {
        FRAMES - (self.bare.len() - self.share.quota().min(self.bare.len())) as u16
    }

    /// True if a buffer is free or can be allocated.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || (!self.bare.is_empty() && self.share.quota() > 0)
    }

    /// The frames that can be opened, the oldest first.
    pub(super) fn unopened(&self) -> impl Iterator<Item = &[u8]> {
        let buffers = self.filled.iter().map(|&index| &self.buffers[usize::from(index)]);
        buffers.filter_map(|buffer| buffer.room.as_ref()?.bytes.get(..buffer.length as usize))
    }

    /// Frames that can be opened.
    pub(super) fn filled(&self) -> usize {
        self.filled.len()
    }

    /// Allocates memory until `count` buffers are free, or as many as limits allow; returns how many are.
    pub(super) fn make_room(&mut self, count: usize) -> usize {
        while self.free.len() < count
            && let Some(&index) = self.bare.last()
            && let Some(room) = self.share.take()
        {
            self.buffers[usize::from(index)].room = Some(room);
            self.bare.pop();
            self.free.push(index);
        }
        count.min(self.free.len())
    }

    /// Takes a free buffer, to be filled or put back.
    pub(super) fn take_free(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Takes a free buffer and its memory, for a batch of reads (io_uring); [`Self::bring_back`] returns both, then the buffer is
    /// filled or put back.
    pub(super) fn lend_free(&mut self) -> Option<(u16, Room)> {
        let index = self.take_free()?;
        Some((index, self.buffers[usize::from(index)].room.take()?))
    }

    /// Returns the memory of buffer `index` after the read.
    pub(super) fn bring_back(&mut self, index: u16, room: Room) {
        self.buffers[usize::from(index)].room = Some(room);
    }

    /// The bytes of buffer `index`.
    pub(super) fn bytes(&mut self, index: u16) -> &mut [u8] {
        self.buffers[usize::from(index)].room.as_mut().map_or(&mut [], |room| &mut *room.bytes)
    }

    /// Marks a free buffer as filled: its first `length` bytes hold a frame.
    pub(super) fn fill(&mut self, index: u16, length: u32) {
        self.buffers[usize::from(index)].length = length;
        self.filled.push_back(index);
    }

    /// Puts a free buffer back.
    pub(super) fn put_back(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Returns free memory beyond [`KEPT`] buffers to the pool. Not to be called in the poll iteration in which a frame was
    /// delivered: the receiving port's end may still refer to the buffer.
    pub(super) fn give_back_spare(&mut self) {
        while self.free.len() > KEPT {
            self.give_back_one();
        }
    }

    /// Frees the memory of one buffer; the port's own reserve goes to the place from which it is used last.
    fn give_back_one(&mut self) {
        let Some(index) = self.free.pop() else { return };
        let buffer = &mut self.buffers[usize::from(index)];
        buffer.room = buffer.room.take().and_then(|room| self.share.give_back(room));
        if buffer.room.is_none() {
            self.bare.push(index);
        } else {
            self.free.insert(0, index);
        }
    }

    /// Opens the oldest frame into `packet`; a virtio-net header stands before it if `headed`.
    pub(super) fn open(&mut self, packet: &mut Packet, headed: bool) -> OpenOutcome {
        let Some(&index) = self.filled.front() else { return OpenOutcome::Nothing };
        let length = self.buffers[usize::from(index)].length as usize;
        let skip = if headed { NetHeader::SIZE } else { 0 };
        let bytes = self.bytes(index).get_mut(..length);
        let Some(bytes) = bytes.filter(|bytes| bytes.len() >= skip + ETHERNET) else {
            self.keep();
            self.release(index);
            return OpenOutcome::Dropped(DropReason::Runt);
        };
        let mut header = [0; NetHeader::SIZE];
        header[..skip].copy_from_slice(&bytes[..skip]);
        packet.set_frame(NetHeader::from_bytes(header), &mut bytes[skip..]);
        packet.head = index;
        OpenOutcome::Packet
    }

    /// Moves on from the oldest frame, which stays in its buffer until it is released.
    pub(super) fn keep(&mut self) {
        self.filled.pop_front();
    }

    /// Frees buffer `index`, which held a kept frame.
    pub(super) fn release(&mut self, index: u16) {
        self.free.push(index);
    }
}

/// Reads frames from a port's other side into packet buffers.
pub(super) trait Reader: std::fmt::Debug + Send {
    /// A virtio-net header stands before each frame.
    const HEADED: bool;

    /// Fills free buffers of `store`, at most until `most` frames can be opened. `drained` if the last read found nothing more, and no
    /// notification came since; returns whether this one did.
    fn read(&mut self, store: &mut Store, most: usize, drained: bool) -> bool;

    /// True if a frame was read that is in no buffer yet.
    fn has_staged(&self) -> bool {
        false
    }

    /// See [`TransmitEnd::hand_over`]; `store` has the frames that were not opened.
    fn hand_over(&mut self, _: &Store) {}

    /// See [`TransmitEnd::take_lost`].
    fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        NOTHING_LOST
    }
}

/// The transmit end of a port without shared memory: a reader, and the buffers that it fills.
#[derive(Debug)]
pub(super) struct Buffered<R> {
    store: Store,
    reader: R,
    /// The last read found nothing more.
    drained: bool,
}

impl<R: Reader> Buffered<R> {
    /// The frames of `reader`, in buffers of `pool`.
    pub(super) fn new(reader: R, pool: Arc<Pool>) -> Self {
        Self { store: Store::new(pool), reader, drained: false }
    }
}

impl<R: Reader> TransmitEnd for Buffered<R> {
    fn look(&mut self, most: u16) -> u16 {
        if self.drained {
            self.store.give_back_spare();
        }
        self.drained = self.reader.read(&mut self.store, most.into(), self.drained);
        self.store.filled().min(most.into()) as u16
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        self.store.open(packet, R::HEADED)
    }

    fn keep(&mut self, _packet: &Packet) {
        self.store.keep();
    }

    fn release(&mut self, head: u16) {
        self.store.release(head);
    }

    fn size(&self) -> u16 {
        self.store.size()
    }

    fn has_news(&self) -> bool {
        self.store.filled() > 0 || ((!self.drained || self.reader.has_staged()) && self.store.has_room())
    }

    fn wake(&mut self) {
        self.drained = false;
    }

    fn hand_over(&mut self) {
        self.reader.hand_over(&self.store);
    }

    fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        self.reader.take_lost()
    }
}
