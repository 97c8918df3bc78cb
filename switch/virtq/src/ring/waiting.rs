//! Virtqueues in memory that is still to be filled: a guest that is restored lazily or arrives by postcopy has holes
//! ([`crate::memory::holes`]) under its descriptor table, available ring, used ring and buffers, until its monitor fills them.
//!
//! - **Available ring in a hole**: no descriptor chain is available as far as can be told. If the driver has made descriptor chains
//!   available before, the hole is evidence that memory is still to be filled.
//! - **Descriptor table, indirect table or entry of the available ring in a hole**: the driver has written it, so this is evidence too. So
//!   are a frame's headers in the transmit queue, where the available ring lay in a hole when the driver kicked.
//! - **Other bytes of a frame in a hole**: while memory is still to be filled the descriptor chain waits; else they are zeros.
//! - **Receive buffer or used ring in a hole**: while memory is still to be filled the virtqueue waits, and so does one that was met in
//!   holes for its used ring; else the hole is filled by the write, as every guest with fresh memory expects.
//!
//! The memory of a port is still to be filled from the first evidence on, for all its virtqueues
//! ([`MemoryMap::note_filling`](crate::memory::MemoryMap::note_filling)), or by its configuration. A virtqueue that waits is looked at
//! again at growing intervals, without a kick. After the fill timeout its port is quarantined; without evidence it goes on as with fresh
//! memory.

use std::time::Duration;

use super::wait_state::{ATTEMPTS, Available};
use super::{Ring, RingFault};
use crate::memory::holes::{Look, Torn};
use crate::time::{Cycles, cycles, duration, in_cycles};

/// First and longest interval in which a virtqueue that waits is looked at.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

impl Ring {
    /// When a virtqueue that waits for memory is looked at again.
    #[inline]
    pub fn waits_until(&self) -> Option<Cycles> {
        (self.waiting.until != 0).then_some(self.waiting.until)
    }

    /// For how long it has waited for memory that is still to be filled, in moment `now`.
    pub fn waits_for(&self, now: Cycles) -> Option<Duration> {
        let since = self.waiting.since.filter(|_| self.waiting.until != 0)?;
        Some(duration(now.saturating_sub(since)))
    }

    /// Whether it was met in a hole after its driver had kicked: its frames may be in holes, too.
    pub(super) fn is_suspect(&self) -> bool {
        self.waiting.suspect && !self.waiting.tired
    }

    /// Another attempt begins.
    #[inline]
    pub(super) fn stop_waiting(&mut self) {
        self.waiting.until = 0;
    }

    /// The available index.
    #[inline]
    pub(super) fn read_available(&self) -> Available {
        let look = self.begin_look();
        let available = self.split.available_index();
        if look.is_clean() { Available::Index(available) } else { self.read_available_again(look) }
    }

    #[cold]
    fn read_available_again(&self, first: Look) -> Available {
        let mut look = first;
        for _ in 0..ATTEMPTS {
            if look.settle().met_hole {
                return Available::Hole;
            }
            std::hint::spin_loop();
            look = self.begin_look();
            let available = self.split.available_index();
            if look.is_clean() {
                return Available::Index(available);
            }
        }
        look.settle();
        Available::Unknown
    }

    /// The available index could not be read.
    #[cold]
    pub(super) fn look_at_hole(&mut self) -> Result<(), RingFault> {
        // Whether it is a hole once more: another thread may only have covered pages.
        if self.read_available() == Available::Hole {
            self.waiting.suspect = true;
            if self.next_available != 0 {
                self.memory.note_filling();
            }
            if self.waiting.tired && !self.memory.is_filling() {
                // No chain was ever available, as far as can be told: the driver will kick.
                return Ok(());
            }
        }
        self.wait_for_memory()
    }

    /// The available index has moved by more than the virtqueue holds, as far as can be told: where the used ring lay in a hole when it was
    /// read, the position is not known yet. A driver does not fill its virtqueue beyond a used ring that it has never seen, so this is
    /// evidence, too.
    #[cold]
    pub(super) fn jumped(&mut self, left: u16) -> Result<(), RingFault> {
        if self.broken.is_some() || !self.waiting.used_hole {
            return Err(self.break_off(RingFault::IndexJump));
        }
        self.memory.note_filling();
        self.prepare_used(left).map(drop)
    }

    /// Prepares the used ring before the first of `left` chains is taken; false if it waits.
    #[cold]
    pub(super) fn prepare_used(&mut self, left: u16) -> Result<bool, RingFault> {
        if left == 0 {
            // The available ring is there, and so is all that the ring needs now.
            self.waiting.end();
            return Ok(true);
        }
        let look = self.begin_look();
        self.split.touch_used();
        let used = self.split.used_index();
        let torn = look.end();
        if torn != Torn::NO {
            self.waiting.used_hole |= torn.met_hole;
            let is_left = self.memory.is_filling() || self.is_suspect();
            if torn.by_others || is_left {
                self.wait_for_memory()?;
                return Ok(false);
            }
        } else if std::mem::take(&mut self.waiting.used_hole) && used != self.next_used {
            // The index is known only now.
            self.waiting.may_complete = true;
            self.resume();
            return Ok(false);
        }
        self.waiting.may_complete = true;
        Ok(true)
    }

    /// The virtqueue is looked at again later, unless it has waited for too long.
    ///
    /// # Errors
    /// [`RingFault::NeverFilled`].
    #[cold]
    pub(super) fn wait_for_memory(&mut self) -> Result<(), RingFault> {
        // A seeming hole may be the end of a file that was truncated.
        self.memory.check_length();
        self.memory.fetch();
        let now = cycles();
        let since = *self.waiting.since.get_or_insert(now);
        let waited = duration(now.saturating_sub(since));
        if waited >= self.memory.fill_timeout() {
            if self.memory.is_filling() {
                return Err(self.break_off(RingFault::NeverFilled));
            }
            self.waiting.tired = true;
        }
        let interval = (waited / 8).clamp(INTERVAL.0, INTERVAL.1);
        self.waiting.until = now.saturating_add(in_cycles(interval)).max(1);
        Ok(())
    }

    /// Checks from time to time whether all memory is filled.
    #[cold]
    pub(super) fn check_filled(&mut self) {
        if self.next_available.is_multiple_of(256) {
            self.memory.check_filled();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::sync::Arc;

    use nix::fcntl::{FallocateFlags, fallocate};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::memory::{MemoryMap, Region, RegionTable};
    use crate::offload::Offloads;
    use crate::packet::Packet;
    use crate::ring::{OpenOutcome, PlaceOutcome, ReceiveQueue, RingOptions, SplitRing, TransmitQueue};

    const PAGE: u64 = 4096;
    const SIZE: u16 = 8;
    /// The descriptor table, available ring and used ring, an indirect table and a buffer segment, each in a page of its own.
    const DESCRIPTORS: u64 = 0;
    const AVAILABLE: u64 = PAGE;
    const USED: u64 = 2 * PAGE;
    const TABLE: u64 = 3 * PAGE;
    const BUFFER: u64 = 4 * PAGE;
    const FRAME: u32 = 60;

    /// A guest's memory with a ring of one chain: a frame, or a receive buffer.
    struct Guest {
        file: File,
        map: Arc<MemoryMap>,
    }

    impl Guest {
        fn new(flags: u16, is_declared: bool) -> Self {
            let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
            file.set_len(16 * PAGE).unwrap();
            let table = RegionTable { guest_start: 0, length: 16 * PAGE, user_start: 0, file_offset: 0 };
            let regions = vec![Arc::new(Region::map(table, file.try_clone().unwrap()).unwrap())];
            let map = MemoryMap::new(regions).unwrap().with_holes(is_declared, Some(Duration::from_millis(50)));
            let guest = Self { file, map: Arc::new(map) };
            let descriptor = |address: u64, length: u32, flags: u16| {
                [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &[0; 2]].concat()
            };
            guest.write(DESCRIPTORS, &descriptor(TABLE, 16, super::super::shared::INDIRECT));
            guest.write(TABLE, &descriptor(BUFFER, 12 + FRAME, flags));
            guest.write(AVAILABLE, &[0, 0, 1, 0, 0, 0]);
            guest.write(USED, &[0; 4]);
            guest.write(BUFFER, &[[0; 12].as_slice(), &[7; FRAME as usize]].concat());
            guest
        }

        fn write(&self, at: u64, bytes: &[u8]) {
            self.file.write_all_at(bytes, at).unwrap();
        }

        /// Makes `page` a hole; returns its bytes.
        fn punch(&self, page: u64) -> Vec<u8> {
            let mut bytes = vec![0; PAGE as usize];
            self.file.read_exact_at(&mut bytes, page).unwrap();
            let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&self.file, how, page as i64, PAGE as i64).unwrap();
            bytes
        }

        fn pages(&self) -> u64 {
            self.file.metadata().unwrap().blocks() * 512 / PAGE
        }

        fn ring(&self) -> Ring {
            let options = RingOptions { event_index: false, indirect: true, in_order: false, header_length: 12 };
            Ring::new(
                SplitRing::locate(&self.map, [DESCRIPTORS, AVAILABLE, USED], SIZE).unwrap(),
                Arc::clone(&self.map),
                options,
                0,
            )
        }
    }

    /// Takes the next frame.
    fn take(queue: &mut TransmitQueue) -> Result<Option<Vec<u8>>, RingFault> {
        let mut packet = Packet::default();
        if queue.look(32)? == 0 || queue.open(&mut packet)? != OpenOutcome::Packet {
            return Ok(None);
        }
        let frame = packet.start().to_vec();
        queue.finish(&packet);
        queue.ring().publish();
        Ok(Some(frame))
    }

    #[test]
    fn a_hole_anywhere_under_a_frame_is_waited_for_and_never_filled() {
        for hole in [DESCRIPTORS, AVAILABLE, USED, TABLE, BUFFER] {
            let guest = Guest::new(0, true);
            let bytes = guest.punch(hole);
            let mut queue = TransmitQueue::new(guest.ring());
            for _ in 0..3 {
                assert_eq!((take(&mut queue), guest.pages()), (Ok(None), 4), "hole at {hole:#x}");
                assert!(queue.ring().waits_until().is_some(), "hole at {hole:#x}");
            }
            guest.write(hole, &bytes);
            assert_eq!(take(&mut queue), Ok(Some(vec![7; FRAME as usize])), "hole at {hole:#x}");
            assert_eq!((guest.pages(), guest.ring().split().used_index()), (5, 1), "hole at {hole:#x}");
        }
    }

    #[test]
    fn a_hole_that_is_never_filled_breaks_the_ring() {
        for hole in [DESCRIPTORS, AVAILABLE, USED, TABLE, BUFFER] {
            let guest = Guest::new(0, true);
            guest.punch(hole);
            let mut queue = TransmitQueue::new(guest.ring());
            assert_eq!(take(&mut queue), Ok(None));
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!((take(&mut queue), guest.pages()), (Err(RingFault::NeverFilled), 4), "hole at {hole:#x}");
        }
    }

    #[test]
    fn descriptors_in_a_hole_are_evidence_and_a_frame_in_a_hole_is_zeros() {
        for hole in [DESCRIPTORS, TABLE] {
            let guest = Guest::new(0, false);
            guest.punch(hole);
            assert_eq!(take(&mut TransmitQueue::new(guest.ring())), Ok(None));
            assert!(guest.map.is_filling() && guest.pages() == 4, "hole at {hole:#x}");
        }
        let guest = Guest::new(0, false);
        guest.punch(BUFFER);
        assert_eq!(take(&mut TransmitQueue::new(guest.ring())), Ok(Some(vec![0; FRAME as usize])));
        assert!(!guest.map.is_filling() && guest.pages() == 4, "read without being filled");
        guest.punch(USED);
        assert_eq!(take(&mut TransmitQueue::new(guest.ring())), Ok(Some(vec![0; FRAME as usize])));
        assert_eq!(guest.pages(), 4, "the used ring was filled, as ever");
    }

    #[test]
    fn a_ring_that_was_never_filled_and_never_used_is_not_broken() {
        let guest = Guest::new(0, false);
        let bytes = guest.punch(AVAILABLE);
        let mut queue = TransmitQueue::new(guest.ring());
        assert_eq!(take(&mut queue), Ok(None));
        assert!(queue.ring().waits_until().is_some());
        std::thread::sleep(Duration::from_millis(60));
        for _ in 0..3 {
            assert_eq!(take(&mut queue), Ok(None), "idle: pre-copy skips pages of zeros");
        }
        assert!(queue.ring().waits_until().is_none() && guest.pages() == 4);
        guest.write(AVAILABLE, &bytes);
        assert!(take(&mut queue).unwrap().is_some());
    }

    #[test]
    fn receive_buffers_in_holes_are_filled_by_frames_unless_somebody_else_is_to_fill_them() {
        for is_declared in [false, true] {
            for hole in [BUFFER, USED, TABLE, DESCRIPTORS] {
                let guest = Guest::new(super::super::shared::WRITE, is_declared);
                let bytes = guest.punch(hole);
                let mut queue = ReceiveQueue::new(guest.ring(), Offloads::ALL, true);
                let mut frame = vec![9; FRAME as usize];
                let mut packet = Packet::default();
                packet.set_frame(crate::frame::NetHeader::default(), &mut frame);
                let is_filled = !is_declared && [BUFFER, USED].contains(&hole);
                let outcome = if is_filled { PlaceOutcome::Complete(1) } else { PlaceOutcome::NoRoom };
                assert_eq!(queue.place(&mut packet), Ok(outcome), "hole at {hole:#x}, declared {is_declared}");
                queue.ring().publish();
                assert_eq!(guest.pages(), 4 + u64::from(is_filled), "hole at {hole:#x}, declared {is_declared}");
                if !is_filled {
                    guest.write(hole, &bytes);
                    assert_eq!(queue.place(&mut packet), Ok(PlaceOutcome::Complete(1)), "hole at {hole:#x}");
                }
                let mut got = [0; FRAME as usize];
                guest.file.read_exact_at(&mut got, BUFFER + 12).unwrap();
                assert_eq!(got, [9; FRAME as usize]);
            }
        }
    }

    /// Another thread covers the frame as a hole, and the monitor fills it meanwhile: the receiver gets the bytes of the file.
    #[test]
    fn a_frame_that_another_thread_covers_is_delivered_from_its_file() {
        for header in [crate::frame::NetHeader::default(), crate::frame::NetHeader::partial_checksum(34, 6)] {
            let (sender, receiver) = (Guest::new(0, false), Guest::new(super::super::shared::WRITE, false));
            let payload = BUFFER + 8192;
            let (covered, ready) = std::sync::mpsc::channel();
            let (go, settle) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let map = &sender.map;
                scope.spawn(move || {
                    map.iovec_to_read(payload, 1, &mut crate::memory::Hint::default()).unwrap().few::<1>();
                    covered.send(()).unwrap();
                    settle.recv().unwrap();
                    crate::memory::holes::settle_all();
                });
                ready.recv().unwrap();
                sender.write(payload, &[5; PAGE as usize]);
                let mut packet = Packet::default();
                packet.set_frame(header, &mut [0; FRAME as usize - 16]);
                packet.set_single_rest(map.iovec_to_read(payload, 16, &mut crate::memory::Hint::default()).unwrap());
                (packet.length, packet.memory) = (FRAME, map.owner());
                let mut queue = ReceiveQueue::new(receiver.ring(), Offloads::ALL, true);
                assert_eq!(queue.place(&mut packet), Ok(PlaceOutcome::Complete(1)));
                go.send(()).unwrap();
            });
            let mut got = [0; FRAME as usize];
            receiver.file.read_exact_at(&mut got, BUFFER + 12).unwrap();
            assert_eq!(got[FRAME as usize - 16..], [5; 16], "{header:?}");
        }
    }

    /// A frame is read from its file once a hole was met, and so is the next one of its sender, without a trap: what lies behind the hole arrives.
    #[test]
    fn what_lies_behind_a_hole_of_a_frame_is_delivered() {
        for header in [crate::frame::NetHeader::default(), crate::frame::NetHeader::partial_checksum(34, 6)] {
            let (sender, receiver) = (Guest::new(0, false), Guest::new(super::super::shared::WRITE, false));
            let (hole, behind) = (BUFFER + PAGE, BUFFER + 2 * PAGE);
            sender.write(behind, &[5; PAGE as usize]);
            let rest = [hole, behind].map(|at| sender.map.iovec_to_read(at, 16, &mut crate::memory::Hint::default()).unwrap());
            let (mut packet, mut pool) = (Packet::default(), crate::packet::ChunkPool::new(2));
            packet.set_frame(header, &mut [0; FRAME as usize - 32]);
            packet.set_rest(&rest, 0, &mut pool).unwrap();
            (packet.length, packet.memory) = (FRAME, sender.map.owner());
            let mut queue = ReceiveQueue::new(receiver.ring(), Offloads::ALL, true);
            for (frames, traps) in [(1, 1), (2, 0)] {
                receiver.write(AVAILABLE + 2, &[frames, 0, 0, 0, 0, 0]);
                receiver.write(BUFFER, &[1; 12 + FRAME as usize]);
                let before = crate::memory::holes::all_met();
                assert_eq!(queue.place(&mut packet), Ok(PlaceOutcome::Complete(1)), "{header:?}");
                assert_eq!(crate::memory::holes::all_met() - before, traps, "frame {frames}, {header:?}");
                let mut got = [0; 32];
                receiver.file.read_exact_at(&mut got, BUFFER + u64::from(12 + FRAME) - 32).unwrap();
                assert_eq!(got, [[0; 16], [5; 16]].concat()[..], "frame {frames}, {header:?}");
                assert!(!crate::memory::holes::has_covers());
            }
        }
    }

    /// The used ring is filled last: its index tells the position of a virtqueue that has been used for long.
    #[test]
    fn a_used_ring_in_a_hole_tells_the_position_once_it_is_filled() {
        let guest = Guest::new(0, false);
        guest.write(AVAILABLE, &[0, 0, 0x41, 0x10, 0, 0]);
        guest.write(AVAILABLE + 4, &[0; 16]);
        guest.write(USED, &[0, 0, 0x40, 0x10]);
        let bytes = guest.punch(USED);
        let mut queue = TransmitQueue::new(guest.ring());
        for _ in 0..3 {
            assert_eq!((take(&mut queue), guest.pages()), (Ok(None), 4));
            assert!(queue.ring().waits_until().is_some() && guest.map.is_filling());
        }
        guest.write(USED, &bytes);
        while queue.ring().base() == 0 {
            assert_eq!(take(&mut queue), Ok(None));
        }
        assert_eq!(take(&mut queue), Ok(Some(vec![7; FRAME as usize])));
        assert_eq!(guest.ring().split().used_index(), 0x1041);
        // An index that jumps beyond a used ring that is there is a fault, as ever.
        guest.write(AVAILABLE, &[0, 0, 0x41, 0x20]);
        assert_eq!(take(&mut queue), Err(RingFault::IndexJump));
    }

    #[test]
    fn memory_that_is_full_is_filled_no_more() {
        let guest = Guest::new(0, false);
        guest.map.note_filling();
        guest.map.check_filled();
        assert!(guest.map.is_filling(), "most of it are holes");
        (0..16).for_each(|page| guest.write(page * PAGE + 100, &[1]));
        guest.map.check_filled();
        assert!(!guest.map.is_filling());
    }
}
