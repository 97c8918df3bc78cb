//! The transmit end (TX) of an interface: reads frames into packet buffers, many in one batch.

#![expect(clippy::indexing_slicing, reason = "as many rooms as were filled in")]

use std::array;
use std::io::IoSliceMut;
use std::sync::Arc;

use super::batch::{Batch, MOST};
use super::handle::Interface;
use crate::pool::Room;
use crate::stats::DropReason;
use crate::store::{Reader, Store};

/// Bytes of a batch of long frames: half of a usual second-level cache, so that they are still there when they are copied to their
/// receivers (`docs/benchmarks/notes/containers.md`).
const BATCH_BYTES: usize = 256 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct InterfaceReader {
    interface: Arc<Interface>,
    /// Frames to read in the next batch: an estimate of how many are queued.
    burst: usize,
    batch: Batch,
    /// The buffers of the batch under way.
    taken: Vec<(u16, Room)>,
}

impl InterfaceReader {
    pub(super) fn new(interface: Arc<Interface>) -> Self {
        let batch = Batch::new(interface.kind);
        Self { interface, burst: 1, batch, taken: Vec::with_capacity(MOST) }
    }

    /// Reads up to `count` frames, for which there are buffers, and adapts the size of the next batch to how many there were. True if
    /// there were fewer.
    fn read_many(&mut self, store: &mut Store, count: usize) -> bool {
        self.taken.clear();
        self.taken.extend((0..count).map_while(|_| store.lend_free()));
        let mut rooms = self.taken.iter_mut();
        let mut rooms: [IoSliceMut<'_>; MOST] =
            array::from_fn(|_| IoSliceMut::new(rooms.next().map_or(&mut [], |(_, room)| &mut *room.bytes)));
        let results = self.batch.read(&self.interface.file, &mut rooms[..count]);
        let (before, mut bytes) = (store.filled(), 0);
        for ((index, room), &result) in self.taken.drain(..).zip(results) {
            store.bring_back(index, room);
            // A frame may arrive between a read that finds nothing and the next.
            match u32::try_from(result) {
                Ok(length @ 1..) => {
                    bytes += length as usize;
                    store.fill(index, length);
                }
                _ => store.put_back(index),
            }
        }
        let filled = store.filled() - before;
        self.burst = next_burst(count, filled, bytes);
        // After an error other than EAGAIN, the next frame's wake-up leads to another read; but a frame that the kernel refused to hand
        // over is no end of them.
        filled < count && !self.batch.passed_over()
    }
}

/// Frames to read after a batch of `count` gave `filled` frames of `bytes` in all.
fn next_burst(count: usize, filled: usize, bytes: usize) -> usize {
    let queued = if filled == count { (2 * count).clamp(1, MOST) } else { (filled + 1).next_power_of_two() };
    let fit = BATCH_BYTES * filled / bytes.max(1);
    if filled == 0 { queued } else { queued.min(fit.max(1)) }
}

impl Reader for InterfaceReader {
    const HEADED: bool = true;

    fn read(&mut self, store: &mut Store, most: usize, drained: bool) -> bool {
        if store.filled() > 0 || drained {
            return drained;
        }
        let count = store.make_room(self.burst.min(most));
        self.read_many(store, count)
    }

    fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        self.batch.take_lost()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::super::handle::Kind;
    use super::*;
    use crate::budget::Budget;
    use crate::frame::NetHeader;
    use crate::offload::Offloads;
    use crate::packet::Packet;
    use crate::pool::{BUFFER, Pool};
    use crate::port::end::TransmitEnd;
    use crate::ring::OpenOutcome;
    use crate::store::{Buffered, KEPT};

    const COUNT: usize = 40;

    #[test]
    fn batches_grow_while_they_are_full_and_their_frames_fit_the_cache() {
        let long = 64 << 10;
        assert_eq!([next_burst(0, 0, 0), next_burst(8, 0, 0), next_burst(8, 8, 8 * 60)], [1, 1, 16]);
        assert_eq!(next_burst(64, 64, 64 * 1514), 64);
        assert_eq!([next_burst(8, 5, 5 * 60), next_burst(8, 8, 8 * long), next_burst(4, 2, 2 * long)], [8, 4, 4]);
        assert_eq!(next_burst(1, 1, usize::MAX), 1);
    }

    #[test]
    fn buffers_go_to_others_in_the_next_pass_and_not_while_their_frames_are_written() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let budget = Budget::new(16 << 20);
        let pool = Arc::new(Pool::new(Arc::clone(&budget), 0));
        let interface = Interface { file: File::from(OwnedFd::from(ours)), offloads: Offloads::ALL, kind: Kind::Tap };
        let mut transmit = Buffered::new(InterfaceReader::new(Arc::new(interface)), pool);
        let (mut packet, mut kept) = (Packet::default(), Vec::new());
        for round in 0..3_u8 {
            // A socket holds few datagrams (net.unix.max_dgram_qlen).
            while kept.len() < COUNT {
                for _ in 0..8 {
                    theirs.send(&[round; NetHeader::SIZE + 60]).unwrap();
                }
                transmit.wake();
                while transmit.look(64) > 0 {
                    assert_eq!(transmit.open(&mut packet), OpenOutcome::Packet);
                    assert_eq!(packet.start()[0], round);
                    transmit.keep(&packet);
                    kept.push(packet.head);
                }
            }
            let held = budget.held();
            assert!(held >= (COUNT as u64 - 1) * BUFFER as u64);
            kept.drain(..).for_each(|head| transmit.release(head));
            assert_eq!(budget.held(), held, "what was delivered in this iteration may still be written from");
            assert_eq!(transmit.look(64), 0);
            assert!(budget.held() <= KEPT as u64 * BUFFER as u64);
        }
    }
}
