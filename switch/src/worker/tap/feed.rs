//! Where frames come in from a TAP: read many at a time into buffers of ours.

use std::mem::zeroed;
use std::sync::Arc;

use super::batch::{Batch, MOST, Vectors, Way};
use super::pool::{Pool, Room, Share};
use crate::frame::{ETHERNET, NetHeader};
use crate::parcel::Parcel;
use crate::port::tap::Tap;
use crate::ring::Taken;
use crate::stats::DropReason;

/// Frames that one TAP may have read and not yet delivered, however much memory there is.
const FRAMES: u16 = 256;
/// Buffers that are kept for the next frames while there are none.
const KEPT: usize = 16;

/// A place for a frame.
#[derive(Debug, Default)]
struct Buffer {
    room: Option<Room>,
    length: u32,
    /// Parties that hold it; 0 when it is free or waits to be opened.
    holders: u16,
}

impl Buffer {
    fn bytes(&mut self) -> Option<&mut [u8]> {
        self.room.as_mut().map(|room| &mut *room.bytes)
    }
}

/// Where frames come in from the kernel.
#[derive(Debug)]
pub(in crate::worker) struct TapFeed {
    tap: Arc<Tap>,
    share: Share,
    /// Never grows or moves: parcels that are out lie in it.
    buffers: Box<[Buffer]>,
    /// Free, with room for a frame.
    free: Vec<u16>,
    /// Without room.
    bare: Vec<u16>,
    /// Read and not yet opened, the oldest last.
    read: Vec<u16>,
    out_count: u16,
    /// The kernel had nothing more when last asked.
    drained: bool,
    /// Frames to ask for next: as many as are likely to be there.
    burst: usize,
    batch: Batch,
}

impl TapFeed {
    pub(in crate::worker) fn new(tap: Arc<Tap>, pool: Arc<Pool>) -> Self {
        let share = Share::new(pool);
        let mut buffers: Box<[Buffer]> = (0..FRAMES).map(|_| Buffer::default()).collect();
        buffers[0].room = Some(share.own());
        Self {
            tap,
            share,
            buffers,
            free: vec![0],
            bare: (1..FRAMES).collect(),
            read: Vec::with_capacity(MOST),
            out_count: 0,
            drained: false,
            burst: 1,
            batch: Batch::new(),
        }
    }

    /// Frames that may be out at most, as things are.
    pub(in crate::worker) fn size(&self) -> u16 {
        let more = self.share.allowance().min(self.bare.len());
        self.out_count + (self.read.len() + self.free.len() + more) as u16
    }

    pub(in crate::worker) fn out_count(&self) -> u16 {
        self.out_count
    }

    /// True while the kernel may have frames that it will not tell us of again.
    pub(in crate::worker) fn has_news(&self) -> bool {
        !self.read.is_empty() || (!self.drained && self.size() > self.out_count)
    }

    /// The kernel says that there is something to read.
    pub(in crate::worker) fn wake(&mut self) {
        self.drained = false;
    }

    /// Frames that can be opened now, at most `most`; reads them.
    ///
    /// What others may have of the buffers that are free is given back here, and not before: in the pass in which a frame was delivered, the
    /// kernel's side of another TAP may still refer to it.
    pub(in crate::worker) fn look(&mut self, most: u16) -> u16 {
        while self.drained && self.free.len() > KEPT {
            self.give_back();
        }
        if self.read.is_empty() && !self.drained {
            let count = self.make_room(self.burst.min(most.into()));
            self.read_many(count);
        }
        self.read.len().min(most.into()) as u16
    }

    /// Makes `count` buffers free, or as many as there may be.
    fn make_room(&mut self, count: usize) -> usize {
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

    /// Reads up to `count` frames, and learns from their number how many to ask for the next time.
    fn read_many(&mut self, count: usize) {
        // SAFETY: plain data, for which all zeroes is a value.
        let mut vectors: [libc::iovec; MOST] = unsafe { zeroed() };
        let taken = self.free.split_off(self.free.len() - count);
        for (vector, &index) in vectors.iter_mut().zip(&taken) {
            let Some(room) = self.buffers[usize::from(index)].bytes() else { continue };
            *vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        }
        let operations = vectors.each_ref().map(|first| Vectors { first, count: 1 });
        // SAFETY: the vectors lead to buffers that are free, each to another one.
        let results = unsafe { self.batch.run(&self.tap.file, Way::Read, &operations[..count]) };
        for (&index, &result) in taken.iter().zip(results) {
            // A frame may come between a read that finds nothing and the next.
            match u32::try_from(result) {
                Ok(length @ 1..) => {
                    self.buffers[usize::from(index)].length = length;
                    self.read.push(index);
                }
                _ => self.free.push(index),
            }
        }
        let filled = self.read.len();
        // A read that failed for another reason than emptiness is tried again with the next frame's wake-up.
        self.drained = filled < count;
        self.burst = if filled == count { (2 * count).clamp(1, MOST) } else { (filled + 1).next_power_of_two() };
        // The first that was read is opened first.
        self.read.reverse();
    }

    /// Gives the room of a free buffer back; the TAP's own goes to where it is used last.
    fn give_back(&mut self) {
        let Some(index) = self.free.pop() else { return };
        let buffer = &mut self.buffers[usize::from(index)];
        buffer.room = buffer.room.take().and_then(|room| self.share.give_back(room));
        if buffer.room.is_none() {
            self.bare.push(index);
        } else {
            self.free.insert(0, index);
        }
    }

    /// Opens the next frame into `parcel`.
    pub(in crate::worker) fn open(&mut self, parcel: &mut Parcel) -> Taken {
        let Some(&index) = self.read.last() else { return Taken::Nothing };
        let length = self.buffers[usize::from(index)].length as usize;
        let bytes = self.buffers[usize::from(index)].bytes().and_then(|bytes| bytes.get_mut(..length));
        let Some(bytes) = bytes.filter(|bytes| bytes.len() >= NetHeader::SIZE + ETHERNET) else {
            self.dispose(index);
            return Taken::Dropped(DropReason::Runt);
        };
        let mut header = [0; NetHeader::SIZE];
        header.copy_from_slice(&bytes[..NetHeader::SIZE]);
        parcel.set_frame(NetHeader::from_bytes(header), &mut bytes[NetHeader::SIZE..]);
        parcel.head = index;
        Taken::Parcel
    }

    fn dispose(&mut self, index: u16) {
        self.read.pop();
        self.free.push(index);
    }

    pub(in crate::worker) fn finish(&mut self, parcel: &Parcel) {
        self.dispose(parcel.head);
    }

    pub(in crate::worker) fn keep_out(&mut self, parcel: &Parcel, holders: u16) {
        self.read.pop();
        self.buffers[usize::from(parcel.head)].holders = holders;
        self.out_count += 1;
    }

    pub(in crate::worker) fn hold(&mut self, index: u16, more: u16) {
        if let Some(buffer) = self.buffers.get_mut(usize::from(index)).filter(|buffer| buffer.holders > 0) {
            buffer.holders += more;
        }
    }

    pub(in crate::worker) fn come_back(&mut self, index: u16) {
        let Some(buffer) = self.buffers.get_mut(usize::from(index)).filter(|buffer| buffer.holders > 0) else { return };
        buffer.holders -= 1;
        if buffer.holders == 0 {
            self.out_count -= 1;
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::super::pool::BUFFER;
    use super::*;
    use crate::budget::Budget;
    use crate::offload::Offloads;

    const COUNT: usize = 40;

    #[test]
    fn buffers_go_to_others_in_the_next_pass_and_not_while_their_frames_are_written() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let budget = Budget::new(16 << 20);
        let pool = Arc::new(Pool::new(Arc::clone(&budget), 0));
        let tap = Arc::new(Tap { file: File::from(OwnedFd::from(ours)), offloads: Offloads::ALL });
        let mut feed = TapFeed::new(tap, pool);
        let mut parcel = Parcel::default();
        for round in 0..3_u8 {
            // A socket holds few datagrams (net.unix.max_dgram_qlen).
            let mut seen = 0;
            while seen < COUNT {
                for _ in 0..8 {
                    theirs.send(&[round; NetHeader::SIZE + 60]).unwrap();
                }
                feed.wake();
                while feed.look(64) > 0 {
                    assert_eq!(feed.open(&mut parcel), Taken::Parcel);
                    assert_eq!(parcel.start()[0], round);
                    feed.keep_out(&parcel, 1);
                    seen += 1;
                }
            }
            let held = budget.held();
            assert!(held >= (COUNT as u64 - 1) * BUFFER as u64);
            (0..FRAMES).for_each(|index| feed.come_back(index));
            assert_eq!(budget.held(), held, "what was delivered in this pass may still be written from");
            assert_eq!(feed.look(64), 0);
            assert!(budget.held() <= KEPT as u64 * BUFFER as u64);
        }
    }
}
