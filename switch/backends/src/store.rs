//! Frames that lie in the switch's own memory while they are on their way, for kinds of ports whose sender has no memory to share.
//!
//! 1. A kind [makes room](Store::make_room), fills free buffers, and notes each as [filled](Store::fill).
//! 2. The worker [opens](Store::open) the oldest one as a parcel, and disposes of it.
//! 3. What is free [goes back](Store::give_back_spare) to the [`Pool`] when nothing more comes.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::frame::{ETHERNET, NetHeader};
use crate::parcel::Parcel;
use crate::pool::{Pool, Room, Share};
use crate::ring::Taken;
use crate::stats::DropReason;

/// Frames that one port may have read and not yet delivered, however much memory there is.
const FRAMES: u16 = 256;
/// Buffers that are kept for the next frames while there are none.
pub(super) const KEPT: usize = 16;

/// A place for a frame.
#[derive(Debug, Default)]
struct Buffer {
    room: Option<Room>,
    length: u32,
    /// Parties that hold it; 0 when it is free or waits to be opened.
    holders: u16,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    share: Share,
    /// Never grows or moves: parcels that are out lie in it.
    buffers: Box<[Buffer]>,
    /// Free, with room for a frame.
    free: Vec<u16>,
    /// Without room.
    bare: Vec<u16>,
    /// Filled and not yet opened, the oldest first.
    filled: VecDeque<u16>,
    out_count: u16,
}

impl Store {
    /// A store that takes its memory from `pool`.
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        let share = Share::new(pool);
        let mut buffers: Box<[Buffer]> = (0..FRAMES).map(|_| Buffer::default()).collect();
        buffers[0].room = Some(share.own());
        Self {
            share,
            buffers,
            free: vec![0],
            bare: (1..FRAMES).collect(),
            filled: VecDeque::with_capacity(FRAMES.into()),
            out_count: 0,
        }
    }

    /// Frames that may be out at most, as things are.
    pub(super) fn size(&self) -> u16 {
        let more = self.share.allowance().min(self.bare.len());
        self.out_count + (self.filled.len() + self.free.len() + more) as u16
    }

    /// Frames that are out.
    pub(super) fn out_count(&self) -> u16 {
        self.out_count
    }

    /// Frames that can be opened.
    pub(super) fn filled(&self) -> usize {
        self.filled.len()
    }

    /// Makes `count` buffers free, or as many as there may be; returns how many are.
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

    /// Takes a free buffer with its room, both to be brought back, then filled or put back.
    pub(super) fn lend_free(&mut self) -> Option<(u16, Room)> {
        let index = self.take_free()?;
        Some((index, self.buffers[usize::from(index)].room.take()?))
    }

    /// Brings the room of buffer `index` back.
    pub(super) fn bring_back(&mut self, index: u16, room: Room) {
        self.buffers[usize::from(index)].room = Some(room);
    }

    /// The bytes of buffer `index`.
    pub(super) fn bytes(&mut self, index: u16) -> &mut [u8] {
        self.buffers[usize::from(index)].room.as_mut().map_or(&mut [], |room| &mut *room.bytes)
    }

    /// Notes that the first `length` bytes of a buffer that was free hold a frame.
    pub(super) fn fill(&mut self, index: u16, length: u32) {
        self.buffers[usize::from(index)].length = length;
        self.filled.push_back(index);
    }

    /// Puts a free buffer back.
    pub(super) fn put_back(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Gives what is free beyond [`KEPT`] buffers back to the pool. Not in the pass in which a frame was delivered: whoever takes it at another
    /// port may still refer to it.
    pub(super) fn give_back_spare(&mut self) {
        while self.free.len() > KEPT {
            self.give_back_one();
        }
    }

    /// Gives the room of a free buffer back; the port's own goes to where it is used last.
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

    /// Opens the oldest frame into `parcel`; a virtio-net header stands before it if `headed`.
    pub(super) fn open(&mut self, parcel: &mut Parcel, headed: bool) -> Taken {
        let Some(&index) = self.filled.front() else { return Taken::Nothing };
        let length = self.buffers[usize::from(index)].length as usize;
        let skip = if headed { NetHeader::SIZE } else { 0 };
        let bytes = self.bytes(index).get_mut(..length);
        let Some(bytes) = bytes.filter(|bytes| bytes.len() >= skip + ETHERNET) else {
            self.dispose();
            return Taken::Dropped(DropReason::Runt);
        };
        let mut header = [0; NetHeader::SIZE];
        header[..skip].copy_from_slice(&bytes[..skip]);
        parcel.set_frame(NetHeader::from_bytes(header), &mut bytes[skip..]);
        parcel.head = index;
        Taken::Parcel
    }

    /// Frees the oldest frame.
    pub(super) fn dispose(&mut self) {
        self.free.extend(self.filled.pop_front());
    }

    /// Moves on without the opened frame, which `holders` parties hold.
    pub(super) fn keep_out(&mut self, parcel: &Parcel, holders: u16) {
        self.filled.pop_front();
        self.buffers[usize::from(parcel.head)].holders = holders;
        self.out_count += 1;
    }

    /// So many `more` parties hold the frame `index`.
    pub(super) fn hold(&mut self, index: u16, more: u16) {
        if let Some(buffer) = self.buffers.get_mut(usize::from(index)).filter(|buffer| buffer.holders > 0) {
            buffer.holders += more;
        }
    }

    /// One party lets the frame `index` go.
    pub(super) fn come_back(&mut self, index: u16) {
        let Some(buffer) = self.buffers.get_mut(usize::from(index)).filter(|buffer| buffer.holders > 0) else { return };
        buffer.holders -= 1;
        if buffer.holders == 0 {
            self.out_count -= 1;
            self.free.push(index);
        }
    }
}
