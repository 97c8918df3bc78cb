//! The ring of a recorder: the last records of one worker, in memory of a fixed size.
//!
//! Records go into chunks. When the last chunk is full, the oldest one is used again, and its records are gone: a reader sees that by the numbers of records.
//! A reader gets references to full chunks, and a copy of the one that is being filled.

use std::collections::VecDeque;
use std::sync::Arc;

use memlane_observe::recording::{AGAIN, LENGTH_AT, PART};

use crate::frame::SHORT_START;
use crate::time::Cycles;

/// Bytes of a chunk.
const CHUNK: usize = 256 << 10;
/// Least chunks of a ring.
const LEAST: usize = 4;

/// Records of one worker, one behind the other; a batch counts as many as it has frames.
#[derive(Debug)]
pub struct Chunk {
    /// The records.
    pub bytes: Vec<u8>,
    /// Number of the first one, of all that the worker has written.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// When the last one was written.
    pub until: Cycles,
}

impl Chunk {
    fn empty(bytes: Vec<u8>, first: u64) -> Self {
        Self { bytes, first, count: 0, until: 0 }
    }

    /// The number of the next record behind it.
    pub fn end(&self) -> u64 {
        self.first + self.count
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct RecordRing {
    full: VecDeque<Arc<Chunk>>,
    filling: Chunk,
    /// Chunks of the ring at most.
    most: usize,
    /// Records that were longer than a chunk.
    lost: u64,
    /// Place of the record that was begun.
    began_at: usize,
}

impl RecordRing {
    /// An empty ring of about `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        let most = (bytes / CHUNK).max(LEAST);
        let chunk = || Arc::new(Chunk::empty(Vec::with_capacity(CHUNK), 0));
        // Behind the filling one, these are used first.
        Self {
            full: std::iter::repeat_with(chunk).take(most - 1).collect(),
            filling: Chunk::empty(Vec::with_capacity(CHUNK), 0),
            most,
            lost: 0,
            began_at: 0,
        }
    }

    /// Writes a record, in two parts, in moment `now`.
    #[inline]
    pub(super) fn write(&mut self, first: &[u8], second: &[u8], now: Cycles) {
        let length = first.len() + second.len();
        if self.filling.bytes.len() + length > CHUNK {
            if length > CHUNK {
                self.lost += 1;
                return;
            }
            self.turn();
        }
        self.filling.bytes.extend_from_slice(first);
        self.filling.bytes.extend_from_slice(second);
        self.filling.count += 1;
        self.filling.until = now;
    }

    /// Begins a record of at most `most` bytes with `head`; [`Self::end`] must follow.
    #[inline]
    pub(super) fn begin(&mut self, head: &[u8], most: usize) {
        if self.filling.bytes.len() + most > CHUNK {
            self.turn();
        }
        self.began_at = self.filling.bytes.len();
        self.filling.bytes.extend_from_slice(head);
    }

    /// Adds to the record that was begun: `length`, and the first `count` of `bytes` behind their number.
    #[inline]
    pub(super) fn put_part(&mut self, length: u32, bytes: &[u8; SHORT_START], count: u8) {
        let mut part = [0; PART + SHORT_START];
        let (head, tail) = part.split_at_mut(PART);
        let [a, b, c, d] = length.to_le_bytes();
        head.copy_from_slice(&[a, b, c, d, count]);
        tail.copy_from_slice(bytes);
        let filling = &mut self.filling.bytes;
        let end = filling.len() + PART + usize::from(count);
        // A fixed length is copied in a few moves.
        filling.extend_from_slice(&part);
        filling.truncate(end);
    }

    /// Adds to the record that was begun: `count` frames like the one before.
    #[inline]
    pub(super) fn put_again(&mut self, count: u32) {
        let [a, b, c, d] = count.to_le_bytes();
        self.filling.bytes.extend_from_slice(&[a, b, c, d, AGAIN]);
    }

    /// Ends the record that was begun, of `count` frames, in moment `now`; without a frame there is none.
    #[inline]
    pub(super) fn end(&mut self, count: u16, now: Cycles) {
        let filling = &mut self.filling;
        if count == 0 {
            return filling.bytes.truncate(self.began_at);
        }
        let length = ((filling.bytes.len() - self.began_at) as u16).to_le_bytes();
        if let Some(place) = filling.bytes.get_mut(self.began_at + LENGTH_AT..).and_then(|record| record.first_chunk_mut()) {
            *place = length;
        }
        filling.count += u64::from(count);
        filling.until = now;
    }

    /// Goes on in the oldest chunk.
    #[cold]
    fn turn(&mut self) {
        let end = self.filling.end();
        let oldest = if self.full.len() + 1 >= self.most { self.full.pop_front() } else { None };
        // A reader may have the chunk still.
        let mut bytes = oldest.and_then(Arc::into_inner).map_or_else(|| Vec::with_capacity(CHUNK), |chunk| chunk.bytes);
        bytes.clear();
        let full = std::mem::replace(&mut self.filling, Chunk::empty(bytes, end));
        self.full.push_back(Arc::new(full));
    }

    /// The records from number `first` on, and some before them.
    pub(super) fn since(&self, first: u64) -> Vec<Arc<Chunk>> {
        let filling = &self.filling;
        let copy = || Chunk { bytes: filling.bytes.clone(), ..*filling };
        let full = self.full.iter().filter(|chunk| chunk.count > 0 && chunk.end() > first).map(Arc::clone);
        full.chain((filling.end() > first).then(|| Arc::new(copy()))).collect()
    }

    /// Records that found no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_records_are_there_and_numbers_tell_of_the_others() {
        let mut ring = RecordRing::new(4 * CHUNK);
        assert!(ring.since(0).is_empty());
        let (mut next, mut read, mut missed) = (0_u64, 0_u64, 0_u64);
        for round in 0..40_u64 {
            for _ in 0..round * 300 {
                let number = next.to_le_bytes();
                ring.write(&number, &[7; 92], next);
                next += 1;
            }
            let seen = read + missed;
            for chunk in ring.since(seen) {
                let first = chunk.first.max(read + missed);
                missed += first - (read + missed);
                for number in first..chunk.end() {
                    let at = (number - chunk.first) as usize * 100;
                    assert_eq!(chunk.bytes[at..at + 8], number.to_le_bytes());
                    read += 1;
                }
            }
            assert_eq!(read + missed, next, "round {round}");
            let held: usize = ring.since(0).iter().map(|chunk| chunk.bytes.capacity()).sum();
            assert!(held <= 5 * CHUNK, "{held}");
        }
        assert!(missed > 0 && read > missed / 4, "{read} {missed}");
        ring.write(&vec![0; CHUNK + 1], &[], 0);
        assert_eq!(ring.lost(), 1);
    }
}
