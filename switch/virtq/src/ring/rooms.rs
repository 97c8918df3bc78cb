//! Rooms: the buffer segments of a receiver into which one frame is written, seen as one run of bytes.

#![expect(clippy::indexing_slicing, reason = "an offset is within what is written, and there is a first room")]

use crate::memory::Iovec;
use crate::memory::faults::Faults;
use crate::memory::holes;
use crate::offload::checksum::Sum;
use crate::packet::Iovecs;

/// Writes a stream of bytes into the buffer segments.
#[derive(Clone, Debug)]
pub(super) struct Writer<'a> {
    rooms: &'a [Iovec],
    within: u32,
    faults: Faults,
    given_up: bool,
}

impl<'a> Writer<'a> {
    /// A writer at byte `offset` of `rooms`.
    pub(super) fn new(rooms: &'a [Iovec], offset: u32) -> Self {
        let mut writer = Self { rooms, within: 0, faults: Faults::default(), given_up: false };
        writer.skip(offset);
        writer
    }

    /// Whether the copy was given up after too many page faults, or at the first hole of the sender's memory: all that followed was left out.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Skips `length` bytes.
    pub(super) fn skip(&mut self, length: u32) {
        self.each_run(length, |_, _| {});
    }

    /// Copies `bytes`; bytes without room are left out.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.touch_each_run(bytes.len() as u32, |room, at| room.write(&bytes[at as usize..]));
    }

    /// Copies the bytes of `iovec`; bytes without room are left out.
    #[inline]
    pub(super) fn write_iovec(&mut self, iovec: Iovec) {
        self.touch_each_run(iovec.length(), |room, at| iovec.skip(at).copy_to(room));
    }

    /// Adds the next `length` bytes to `sum`.
    pub(super) fn sum(&mut self, length: u32, sum: &mut Sum) {
        self.touch_each_run(length, |room, _| sum.add_iovec(room));
    }

    /// Like [`Self::each_run`], as long as page faults are few and no hole was met.
    #[inline]
    fn touch_each_run(&mut self, length: u32, mut each: impl FnMut(Iovec, u32)) {
        let (mut faults, mut given_up) = (std::mem::take(&mut self.faults), self.given_up);
        self.each_run(length, |run, at| {
            given_up = given_up || !faults.may_go_on() || holes::has_covers();
            if !given_up {
                each(run, at);
            }
        });
        (self.faults, self.given_up) = (faults, given_up);
    }

    /// Calls `each(run, offset)` for the runs of the next `length` bytes, and moves past them.
    #[inline]
    fn each_run(&mut self, length: u32, mut each: impl FnMut(Iovec, u32)) {
        let mut done = 0;
        while let Some(room) = self.rooms.first() {
            let run = room.skip(self.within).first(length - done);
            if run.length() > 0 {
                each(run, done);
            }
            done += run.length();
            self.within += run.length();
            if done == length {
                return;
            }
            self.rooms = &self.rooms[1..];
            self.within = 0;
        }
    }
}

/// Reads a stream of bytes from a packet's buffer segments.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    iovecs: Iovecs<'a>,
    current: Iovec,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte of `iovecs`.
    pub(super) fn new(iovecs: Iovecs<'a>) -> Self {
        Self { iovecs, current: Iovec::NONE }
    }

    /// Copies the next `length` bytes to `writer`.
    pub(super) fn copy_to(&mut self, writer: &mut Writer, length: u32) {
        self.each_run(length, |run| writer.write_iovec(run));
    }

    /// Skips `length` bytes.
    pub(super) fn skip(&mut self, length: u32) {
        self.each_run(length, |_| {});
    }

    fn each_run(&mut self, length: u32, mut each: impl FnMut(Iovec)) {
        let mut left = length;
        while left > 0 {
            if self.current.length() == 0 {
                match self.iovecs.next() {
                    Some(iovec) => self.current = iovec,
                    None => return,
                }
            }
            let run = self.current.first(left);
            each(run);
            self.current = self.current.skip(run.length());
            left -= run.length();
        }
    }
}

#[cfg(test)]
mod proofs {
    use super::*;

    /// Buffer segments apart from each other, each 2^16 behind the one before.
    fn rooms(lengths: [u8; 4]) -> [Iovec; 4] {
        let mut at = 0_usize;
        lengths.map(|length| {
            at += 1 << 16;
            Iovec::nowhere(at, u32::from(length) + 1)
        })
    }

    /// Addresses of the bytes from `from` on, `length` of them or as many as there are: one by one.
    fn told(rooms: &[Iovec], from: u32, length: u32) -> Vec<usize> {
        let all = rooms.iter().flat_map(|room| (0..room.length() as usize).map(|n| room.as_ptr().addr() + n));
        all.skip(from as usize).take(length as usize).collect()
    }

    /// A writer that advances in any steps meets each byte of its buffer segments once, in order, and no other.
    #[test]
    #[cfg_attr(kani, kani::proof, kani::unwind(12))]
    fn a_writer_meets_each_byte_once() {
        bolero::check!().with_type::<([u8; 4], u16, [u16; 3])>().cloned().for_each(|(lengths, offset, steps)| {
            let rooms = rooms(lengths);
            let mut at = u32::from(offset);
            let mut writer = Writer::new(&rooms, at);
            for step in steps.map(|step| u32::from(step % 700)) {
                let (mut met, mut done) = (Vec::new(), 0);
                writer.each_run(step, |run, from| {
                    assert_eq!(from, done);
                    done += run.length();
                    met.extend((0..run.length() as usize).map(|n| run.as_ptr().addr() + n));
                });
                assert_eq!(met, told(&rooms, at, step));
                at += step;
            }
        });
    }

    /// The same for a reader, however its buffer segments are stored.
    #[test]
    #[cfg_attr(kani, kani::proof, kani::unwind(12))]
    fn a_reader_meets_each_byte_once() {
        bolero::check!().with_type::<([u8; 4], u8, [u16; 3])>().cloned().for_each(|(lengths, count, steps)| {
            let rooms = rooms(lengths);
            let iovecs = &rooms[..usize::from(count % 5)];
            let (mut pool, mut packet) = (crate::packet::ChunkPool::new(2), crate::packet::Packet::default());
            assert!(packet.set_rest(iovecs, 0, &mut pool).is_ok());
            let (mut reader, mut at) = (Reader::new(packet.rest()), 0);
            for step in steps.map(|step| u32::from(step % 700)) {
                let mut met = Vec::new();
                reader.each_run(step, |run| met.extend((0..run.length() as usize).map(|n| run.as_ptr().addr() + n)));
                assert_eq!(met, told(iovecs, at, step));
                at += step;
            }
        });
    }
}
