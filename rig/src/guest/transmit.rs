//! Sending: a frame is copied into a send buffer and described by a chain.

use crate::memory::GuestMemory;
use crate::ring::{Interrupts, Iovec};

use super::{GuestError, Queue};

/// How a header and its frame lie in descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Lengths of the first buffer segments of header and frame taken as one string of bytes; a last one takes the rest.
    pub iovecs: Vec<u32>,
    /// One descriptor that points to a table of the buffer segments (INDIRECT_DESC must be negotiated).
    pub indirect: bool,
    /// Unused bytes between two buffer segments in memory.
    pub gap: u32,
}

impl Layout {
    /// Header and frame in one buffer segment.
    pub fn single() -> Self {
        Self::default()
    }

    /// The first buffer segments have these lengths, a last one takes the rest (if there is any). Segments lie 64 bytes apart.
    pub fn iovecs(lengths: impl IntoIterator<Item = u32>) -> Self {
        Self { iovecs: lengths.into_iter().collect(), indirect: false, gap: 64 }
    }

    /// The same in an indirect table.
    #[must_use]
    pub fn indirect(mut self) -> Self {
        self.indirect = true;
        self
    }

    /// Lengths of all buffer segments of `total` bytes.
    fn lengths(&self, total: u32) -> Vec<u32> {
        let mut left = total;
        let mut lengths: Vec<u32> = Vec::with_capacity(self.iovecs.len() + 1);
        for &wanted in &self.iovecs {
            let length = wanted.min(left);
            left -= length;
            lengths.push(length);
        }
        if left > 0 || lengths.is_empty() {
            lengths.push(left);
        }
        lengths
    }
}

/// The ring that the guest fills, with its send buffers.
#[derive(Debug)]
pub struct TransmitQueue {
    /// The ring.
    pub queue: Queue,
    /// Guest address of the first buffer.
    buffers: u64,
    /// Bytes a buffer.
    room: u32,
    count: u16,
    pub(super) free: Vec<u16>,
    /// The buffer of each chain in flight, by head.
    pub(super) of_head: Vec<Option<u16>>,
}

impl TransmitQueue {
    pub(super) fn new(mut queue: Queue, memory: &GuestMemory, count: u16, room: u32) -> Result<Self, GuestError> {
        let buffers = memory.allocate(u64::from(count) * u64::from(room), 64)?;
        let of_head = vec![None; usize::from(queue.ring.options().size)];
        // Transmit interrupts are off: completed chains are reclaimed when room is needed, or when a caller waits for
        // them.
        queue.ring.set_interrupts(Interrupts::Off);
        Ok(Self { queue, buffers, room, count, free: (0..count).rev().collect(), of_head })
    }

    /// Copies `header` and `frame` into a send buffer and offers its chain, unpublished; returns the chain's head.
    ///
    /// # Errors
    /// [`GuestError::NoSendBuffer`] where all send buffers are in flight.
    pub fn add(&mut self, memory: &GuestMemory, header: &[u8], layout: &Layout, frame: &[u8]) -> Result<u16, GuestError> {
        self.reclaim()?;
        let lengths = layout.lengths((header.len() + frame.len()) as u32);
        let need: u64 = lengths.iter().map(|&length| u64::from(length) + u64::from(layout.gap)).sum();
        if need > u64::from(self.room) {
            return Err(GuestError::TooLong { length: frame.len(), room: self.room });
        }
        let buffer = *self.free.last().ok_or(GuestError::NoSendBuffer(self.count))?;
        let start = self.buffers + u64::from(buffer) * u64::from(self.room);
        let iovecs = place(memory, start, &[header, frame].concat(), &lengths, layout.gap)?;
        let ring = &mut self.queue.ring;
        let head = if layout.indirect { ring.add_indirect(&iovecs)? } else { ring.add(&iovecs)? };
        self.free.pop();
        self.of_head[usize::from(head)] = Some(buffer);
        Ok(head)
    }

    /// Reclaims the chains that the back end has completed; returns their number.
    ///
    /// # Errors
    /// [`GuestError::Ring`] when the back end broke the rules.
    pub fn reclaim(&mut self) -> Result<usize, GuestError> {
        let mut count = 0;
        while let Some(used) = self.queue.ring.reclaim()? {
            self.free.extend(self.of_head[used.head as usize].take());
            count += 1;
        }
        Ok(count)
    }

    /// Forgets the chains in flight, after the ring was reset.
    pub(super) fn forget(&mut self) {
        self.free = (0..self.count).rev().collect();
        self.of_head.fill(None);
        self.queue.ring.set_interrupts(Interrupts::Off);
    }
}

/// Writes `bytes` from guest address `start` in buffer segments with gaps between them.
fn place(memory: &GuestMemory, start: u64, bytes: &[u8], lengths: &[u32], gap: u32) -> Result<Vec<Iovec>, GuestError> {
    let (mut at, mut rest) = (start, bytes);
    let mut iovecs = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (iovec, others) = rest.split_at(length as usize);
        memory.write(at, iovec)?;
        iovecs.push(Iovec::readable(at, length));
        at += u64::from(length) + u64::from(gap);
        rest = others;
    }
    Ok(iovecs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_iovec_takes_what_is_left() {
        assert_eq!(Layout::single().lengths(72), [72]);
        assert_eq!(Layout::iovecs([12]).lengths(72), [12, 60]);
        assert_eq!(Layout::iovecs([3, 9, 14]).lengths(72), [3, 9, 14, 46]);
        assert_eq!(Layout::iovecs([12, 60]).lengths(72), [12, 60]);
        assert_eq!(Layout::iovecs([0, 100]).lengths(72), [0, 72]);
    }
}
