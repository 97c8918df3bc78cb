//! Where frames come in from a TAP: read many at a time into buffers of ours.

use std::mem::zeroed;
use std::sync::Arc;

use super::batch::{Batch, MOST, Vectors, Way};
use crate::frame::{ETHERNET, MAX_FRAME, NetHeader};
use crate::parcel::Parcel;
use crate::port::tap::Tap;
use crate::ring::Taken;
use crate::stats::DropReason;

/// Frames that one TAP may have read and not yet delivered.
const BUFFERS: u16 = MOST as u16;
const BUFFER: usize = NetHeader::SIZE + MAX_FRAME as usize;

/// State of a buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    length: u32,
    /// Parties that hold it; 0 when it is free or waits to be opened.
    holders: u8,
}

/// Where frames come in from the kernel.
#[derive(Debug)]
pub(in crate::worker) struct TapFeed {
    tap: Arc<Tap>,
    /// All buffers, one after the other; memory is used as they are.
    memory: Box<[u8]>,
    buffers: [Buffer; BUFFERS as usize],
    free: Vec<u16>,
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
    pub(in crate::worker) fn new(tap: Arc<Tap>) -> Self {
        // SAFETY: zero is a value of u8.
        let memory = unsafe { Box::<[u8]>::new_zeroed_slice(BUFFER * usize::from(BUFFERS)).assume_init() };
        Self {
            tap,
            memory,
            buffers: [Buffer::default(); BUFFERS as usize],
            free: (0..BUFFERS).collect(),
            read: Vec::with_capacity(BUFFERS.into()),
            out_count: 0,
            drained: false,
            burst: 1,
            batch: Batch::new(),
        }
    }

    pub(in crate::worker) fn size(&self) -> u16 {
        BUFFERS
    }

    pub(in crate::worker) fn out_count(&self) -> u16 {
        self.out_count
    }

    /// True while the kernel may have frames that it will not tell us of again.
    pub(in crate::worker) fn has_news(&self) -> bool {
        !self.read.is_empty() || (!self.drained && !self.free.is_empty())
    }

    /// The kernel says that there is something to read.
    pub(in crate::worker) fn wake(&mut self) {
        self.drained = false;
    }

    /// Frames that can be opened now, at most `most`; reads them.
    pub(in crate::worker) fn look(&mut self, most: u16) -> u16 {
        if self.read.is_empty() && !self.drained {
            self.read_many(self.burst.min(self.free.len()).min(most.into()));
        }
        self.read.len().min(most.into()) as u16
    }

    /// Reads up to `count` frames, and learns from their number how many to ask for the next time.
    fn read_many(&mut self, count: usize) {
        // SAFETY: plain data, for which all zeroes is a value.
        let mut vectors: [libc::iovec; MOST] = unsafe { zeroed() };
        let taken = self.free.split_off(self.free.len() - count);
        for (vector, &index) in vectors.iter_mut().zip(&taken) {
            let room = buffer(&mut self.memory, index);
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
    /// Opens the next frame into `parcel`.
    pub(in crate::worker) fn open(&mut self, parcel: &mut Parcel) -> Taken {
        let Some(&index) = self.read.last() else { return Taken::Nothing };
        let length = self.buffers[usize::from(index)].length as usize;
        if length < NetHeader::SIZE + ETHERNET {
            self.dispose(index);
            return Taken::Dropped(DropReason::Runt);
        }
        let bytes = &mut buffer(&mut self.memory, index)[..length];
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

    pub(in crate::worker) fn keep_out(&mut self, parcel: &Parcel, holders: u8) {
        self.read.pop();
        self.buffers[usize::from(parcel.head)].holders = holders;
        self.out_count += 1;
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

fn buffer(memory: &mut [u8], index: u16) -> &mut [u8] {
    let start = usize::from(index) * BUFFER;
    &mut memory[start..start + BUFFER]
}
