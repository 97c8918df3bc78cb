//! The receive queue: posts buffers, and puts frames together from completed ones.

use crate::frames::NetHeader;
use crate::memory::GuestMemory;
use crate::ring::{Iovec, Used};

use super::{GuestError, Queue, ReceiveBuffers};

/// A frame as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The queue pair it came through.
    pub pair: usize,
    /// Header of the frame.
    pub header: NetHeader,
    /// The Ethernet frame.
    pub bytes: Vec<u8>,
    /// Receive buffers that it filled.
    pub buffers: u16,
}

/// The ring that the back end fills, with its receive buffers.
#[derive(Debug)]
pub struct ReceiveQueue {
    /// The ring.
    pub queue: Queue,
    /// Whether a buffer is posted again as soon as its frame is taken. A slow reader sets this to `false`.
    pub repost: bool,
    buffers: ReceiveBuffers,
    /// Guest address of the first buffer.
    start: u64,
    /// Buffers in all.
    count: u16,
    /// Buffers that are not posted.
    pub(super) free: Vec<u16>,
    /// The buffer of each chain in flight, by head.
    pub(super) of_head: Vec<u16>,
}

impl ReceiveQueue {
    pub(super) fn new(queue: Queue, memory: &GuestMemory, buffers: ReceiveBuffers) -> Result<Self, GuestError> {
        let size = queue.ring.options().size;
        let count = size / (buffers.iovecs().len().min(usize::from(size)) as u16).max(1);
        let start = memory.allocate(u64::from(count) * buffers.stride(), 64)?;
        let of_head = vec![0; usize::from(size)];
        let free = (0..count).rev().collect();
        Ok(Self { queue, repost: buffers.repost, buffers, start, count, free, of_head })
    }

    /// First guest address of the buffers, and their bytes.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.start, u64::from(self.count) * self.buffers.stride())
    }

    /// Posts up to `count` more buffers and shows them: how many there were free descriptors for.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    pub fn post(&mut self, count: u16) -> Result<u16, GuestError> {
        let mut posted = 0;
        while posted < count && self.post_one()? {
            posted += 1;
        }
        self.queue.publish();
        Ok(posted)
    }

    /// Posts as many buffers as the plan says: at the start, or after the ring was reset.
    pub(super) fn fill(&mut self) -> Result<(), GuestError> {
        self.post(self.buffers.count.unwrap_or(u16::MAX)).map(drop)
    }

    /// Forgets the posted receive buffers, after the ring was reset.
    pub(super) fn forget(&mut self) {
        self.free = (0..self.queue.ring.options().size).rev().collect();
    }

    /// The next frame, if one has arrived whole.
    pub(super) fn take(&mut self, memory: &GuestMemory, header_bytes: usize, mergeable: bool) -> Result<Option<Frame>, GuestError> {
        let Some(first) = self.queue.ring.poll()? else {
            return Ok(None);
        };
        let together = self.queue.ring.known();
        let mut bytes = self.collect(memory, first)?;
        let header = NetHeader::parse(&bytes).filter(|_| bytes.len() >= header_bytes);
        let Some(header) = header else {
            return bad(format!("a frame of {} bytes, header included", bytes.len()));
        };
        let buffers = if mergeable { header.buffers } else { 1 };
        // Virtio 1.4 section 5.1.6.4.1: all buffers of a frame are seen at once, all but the last are full.
        if buffers == 0 || buffers - 1 > together {
            let came = together + 1;
            return bad(format!("num_buffers is {buffers}, {came} came together"));
        }
        for number in 1..buffers {
            if bytes.len() != usize::from(number) * self.buffers.size as usize {
                return bad(format!("buffer {number} of {buffers} of a frame was left unfilled"));
            }
            if let Some(used) = self.queue.ring.poll()? {
                bytes.extend(self.collect(memory, used)?);
            }
        }
        if self.repost {
            self.post(buffers)?;
        }
        bytes.drain(..header_bytes);
        Ok(Some(Frame { pair: 0, header, bytes, buffers }))
    }

    fn post_one(&mut self) -> Result<bool, GuestError> {
        let lengths = self.buffers.iovecs();
        let Some(&buffer) = self.free.last() else {
            return Ok(false);
        };
        if usize::from(self.queue.ring.free()) < lengths.len() {
            return Ok(false);
        }
        let mut at = self.start + u64::from(buffer) * self.buffers.stride();
        let mut iovecs = Vec::with_capacity(lengths.len());
        for length in lengths {
            iovecs.push(Iovec::writable(at, length));
            at += u64::from(length);
        }
        let head = self.queue.ring.add(&iovecs)?;
        self.of_head[usize::from(head)] = buffer;
        self.free.pop();
        Ok(true)
    }

    /// The bytes that the back end wrote into a descriptor chain; the chain is released.
    fn collect(&mut self, memory: &GuestMemory, used: Used) -> Result<Vec<u8>, GuestError> {
        if used.length > self.buffers.size {
            let (wrote, size) = (used.length, self.buffers.size);
            return bad(format!("{wrote} bytes written into a buffer of {size}"));
        }
        let buffer = self.of_head[used.head as usize];
        self.queue.ring.release(used.head as u16);
        self.free.push(buffer);
        Ok(memory.bytes(self.start + u64::from(buffer) * self.buffers.stride(), used.length as usize)?)
    }
}

fn bad<T>(what: String) -> Result<T, GuestError> {
    Err(GuestError::BadReceive(what))
}
