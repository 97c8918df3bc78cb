//! The transmit end (TX) of a TAP port: reads frames into packet buffers, many in one batch.

use std::array;
use std::io::IoSliceMut;
use std::sync::Arc;

use super::batch::{Batch, MOST};
use super::device::Tap;
use crate::packet::Packet;
use crate::pool::{Pool, Room};
use crate::port::end::TransmitEnd;
use crate::ring::OpenOutcome;
use crate::store::Store;

/// See the module.
#[derive(Debug)]
pub(super) struct TapTransmit {
    tap: Arc<Tap>,
    store: Store,
    /// The last read found the device's queue empty.
    drained: bool,
    /// Frames to read in the next batch: an estimate of how many are queued.
    burst: usize,
    batch: Batch,
    /// The buffers of the batch under way.
    taken: Vec<(u16, Room)>,
}

impl TapTransmit {
    pub(super) fn new(tap: Arc<Tap>, pool: Arc<Pool>) -> Self {
        Self { tap, store: Store::new(pool), drained: false, burst: 1, batch: Batch::new(), taken: Vec::with_capacity(MOST) }
    }

    /// Reads up to `count` frames, for which there are buffers, and adapts the size of the next batch to how many there were.
    fn read_many(&mut self, count: usize) {
        self.taken.clear();
        self.taken.extend((0..count).map_while(|_| self.store.lend_free()));
        let mut rooms = self.taken.iter_mut();
        let mut rooms: [IoSliceMut<'_>; MOST] =
            array::from_fn(|_| IoSliceMut::new(rooms.next().map_or(&mut [], |(_, room)| &mut *room.bytes)));
        let results = self.batch.read(&self.tap.file, &mut rooms[..count]);
        let before = self.store.filled();
        for ((index, room), &result) in self.taken.drain(..).zip(results) {
            self.store.bring_back(index, room);
            // A frame may arrive between a read that finds nothing and the next.
            match u32::try_from(result) {
                Ok(length @ 1..) => self.store.fill(index, length),
                _ => self.store.put_back(index),
            }
        }
        let filled = self.store.filled() - before;
        // After an error other than EAGAIN, the next frame's wake-up leads to another read.
        self.drained = filled < count;
        self.burst = if filled == count { (2 * count).clamp(1, MOST) } else { (filled + 1).next_power_of_two() };
    }
}

impl TransmitEnd for TapTransmit {
    fn look(&mut self, most: u16) -> u16 {
        if self.drained {
            self.store.give_back_spare();
        }
        if self.store.filled() == 0 && !self.drained {
            let count = self.store.make_room(self.burst.min(most.into()));
            self.read_many(count);
        }
        self.store.filled().min(most.into()) as u16
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        self.store.open(packet, true)
    }

    fn finish(&mut self, _packet: &Packet) {
        self.store.dispose();
    }

    fn keep_in_flight(&mut self, packet: &Packet, holders: u16) {
        self.store.keep_in_flight(packet, holders);
    }

    fn hold(&mut self, head: u16, more: u16) {
        self.store.hold(head, more);
    }

    fn come_back(&mut self, head: u16) {
        self.store.come_back(head);
    }

    fn in_flight(&self) -> u16 {
        self.store.in_flight()
    }

    fn size(&self) -> u16 {
        self.store.size()
    }

    fn has_news(&self) -> bool {
        self.store.filled() > 0 || (!self.drained && self.size() > self.in_flight())
    }

    fn wake(&mut self) {
        self.drained = false;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::budget::Budget;
    use crate::frame::NetHeader;
    use crate::offload::Offloads;
    use crate::pool::BUFFER;
    use crate::store::KEPT;

    const COUNT: usize = 40;

    #[test]
    fn buffers_go_to_others_in_the_next_pass_and_not_while_their_frames_are_written() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let budget = Budget::new(16 << 20);
        let pool = Arc::new(Pool::new(Arc::clone(&budget), 0));
        let tap = Arc::new(Tap { file: File::from(OwnedFd::from(ours)), offloads: Offloads::ALL });
        let mut transmit = TapTransmit::new(tap, pool);
        let mut packet = Packet::default();
        for round in 0..3_u8 {
            // A socket holds few datagrams (net.unix.max_dgram_qlen).
            let mut seen = 0;
            while seen < COUNT {
                for _ in 0..8 {
                    theirs.send(&[round; NetHeader::SIZE + 60]).unwrap();
                }
                transmit.wake();
                while transmit.look(64) > 0 {
                    assert_eq!(transmit.open(&mut packet), OpenOutcome::Packet);
                    assert_eq!(packet.start()[0], round);
                    transmit.keep_in_flight(&packet, 1);
                    seen += 1;
                }
            }
            let held = budget.held();
            assert!(held >= (COUNT as u64 - 1) * BUFFER as u64);
            (0..256).for_each(|index| transmit.come_back(index));
            assert_eq!(budget.held(), held, "what was delivered in this pass may still be written from");
            assert_eq!(transmit.look(64), 0);
            assert!(budget.held() <= KEPT as u64 * BUFFER as u64);
        }
    }
}
