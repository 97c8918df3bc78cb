//! Rooms: the runs of a receiver's memory that one frame is written into, seen as one run of bytes.

use super::Piece;
use crate::copy;
use crate::offload::checksum::Sum;
use crate::parcel::Pieces;

/// Writes one byte after the other into rooms.
#[derive(Clone, Debug)]
pub struct Writer<'a> {
    rooms: &'a [Piece],
    within: u32,
}

impl<'a> Writer<'a> {
    /// A writer at byte `offset` of `rooms`.
    pub fn new(rooms: &'a [Piece], offset: u32) -> Self {
        let mut writer = Self { rooms, within: 0 };
        writer.skip(offset);
        writer
    }

    /// Leaves out `length` bytes.
    pub fn skip(&mut self, length: u32) {
        self.each_run(length, |_, _, _| {});
    }

    /// Copies `bytes`; what does not fit is left out.
    pub fn write(&mut self, bytes: &[u8]) {
        // SAFETY: the slice is readable for its length.
        unsafe { self.write_raw(bytes.as_ptr(), bytes.len() as u32) };
    }

    /// Copies `length` bytes from `from`; what does not fit is left out.
    ///
    /// # Safety
    /// `from` must be readable for `length` bytes.
    #[inline]
    pub unsafe fn write_raw(&mut self, from: *const u8, length: u32) {
        self.each_run(length, |place, at, run| {
            // SAFETY: `at + run <= length` for the source; the run lies in a room that the memory map keeps writable.
            unsafe { copy::copy(place, from.add(at as usize), run as usize) };
        });
    }

    /// Adds the next `length` bytes to `sum`.
    pub fn sum(&mut self, length: u32, sum: &mut Sum) {
        self.each_run(length, |place, _, run| {
            // SAFETY: the run lies in a room that the memory map keeps readable.
            unsafe { sum.add_raw(place, run as usize) };
        });
    }

    /// Calls `each(place, offset, length)` for the runs that the next `length` bytes lie in, and moves past them.
    #[inline]
    fn each_run(&mut self, length: u32, mut each: impl FnMut(*mut u8, u32, u32)) {
        let mut done = 0;
        while let Some(room) = self.rooms.first() {
            let run = (room.length - self.within).min(length - done);
            if run > 0 {
                each(room.place.wrapping_add(self.within as usize), done, run);
            }
            done += run;
            self.within += run;
            if done == length {
                return;
            }
            self.rooms = &self.rooms[1..];
            self.within = 0;
        }
    }
}

/// Reads one byte after the other from a parcel's pieces.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    pieces: Pieces<'a>,
    current: Piece,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte of `pieces`.
    pub fn new(pieces: Pieces<'a>) -> Self {
        Self { pieces, current: Piece { place: std::ptr::null_mut(), length: 0 } }
    }

    /// Copies the next `length` bytes to `writer`.
    pub fn copy_to(&mut self, writer: &mut Writer, length: u32) {
        self.each_run(length, |place, run| {
            // SAFETY: the piece is readable while the parcel is out.
            unsafe { writer.write_raw(place, run) };
        });
    }

    /// Leaves out `length` bytes.
    pub fn skip(&mut self, length: u32) {
        self.each_run(length, |_, _| {});
    }

    fn each_run(&mut self, length: u32, mut each: impl FnMut(*mut u8, u32)) {
        let mut left = length;
        while left > 0 {
            if self.current.length == 0 {
                match self.pieces.next() {
                    Some(piece) => self.current = piece,
                    None => return,
                }
            }
            let run = self.current.length.min(left);
            each(self.current.place, run);
            self.current.place = self.current.place.wrapping_add(run as usize);
            self.current.length -= run;
            left -= run;
        }
    }
}

#[cfg(test)]
mod proofs {
    use std::ptr;

    use super::*;

    /// Rooms that lie apart, each 2^16 behind the one before.
    fn rooms(lengths: [u8; 4]) -> [Piece; 4] {
        let mut at = 0_usize;
        lengths.map(|length| {
            at += 1 << 16;
            Piece { place: ptr::without_provenance_mut(at), length: u32::from(length) + 1 }
        })
    }

    /// Places of the bytes from `from` on, `length` of them or as many as there are: one by one.
    fn told(rooms: &[Piece], from: u32, length: u32) -> Vec<usize> {
        let all = rooms.iter().flat_map(|room| (0..room.length as usize).map(|n| room.place.addr() + n));
        all.skip(from as usize).take(length as usize).collect()
    }

    /// Any way of cutting a writer's way into steps meets each byte of the rooms once, in order, and no other.
    #[test]
    #[cfg_attr(kani, kani::proof, kani::unwind(12))]
    fn a_writer_meets_each_byte_once() {
        bolero::check!().with_type::<([u8; 4], u16, [u16; 3])>().cloned().for_each(|(lengths, offset, steps)| {
            let rooms = rooms(lengths);
            let mut at = u32::from(offset);
            let mut writer = Writer::new(&rooms, at);
            for step in steps.map(|step| u32::from(step % 700)) {
                let (mut met, mut done) = (Vec::new(), 0);
                writer.each_run(step, |place, from, run| {
                    assert_eq!(from, done);
                    done += run;
                    met.extend((0..run as usize).map(|n| place.addr() + n));
                });
                assert_eq!(met, told(&rooms, at, step));
                at += step;
            }
        });
    }

    /// A reader's too, however its pieces are kept.
    #[test]
    #[cfg_attr(kani, kani::proof, kani::unwind(12))]
    fn a_reader_meets_each_byte_once() {
        bolero::check!().with_type::<([u8; 4], u8, [u16; 3])>().cloned().for_each(|(lengths, count, steps)| {
            let rooms = rooms(lengths);
            let pieces = &rooms[..usize::from(count % 5)];
            let (mut pool, mut parcel) = (crate::parcel::ChunkPool::new(2), crate::parcel::Parcel::default());
            assert!(parcel.set_rest(pieces, 0, &mut pool).is_ok());
            let (mut reader, mut at) = (Reader::new(parcel.rest()), 0);
            for step in steps.map(|step| u32::from(step % 700)) {
                let mut met = Vec::new();
                reader.each_run(step, |place, run| met.extend((0..run as usize).map(|n| place.addr() + n)));
                assert_eq!(met, told(pieces, at, step));
                at += step;
            }
        });
    }
}
