//! Inflight tracking of a ring (vhost-user, "Inflight I/O tracking"): chains that were in flight when a process was killed are served
//! again by the next one, each of them once, and completed chains are not.
//!
//! The used index alone does not tell these chains where the ring completes them out of order. The record is made when completed
//! chains are published: chains that were taken and completed since the publication before need none, because the next process takes
//! them from the available ring again. So a ring with all chains completed writes one index for each publication. A ring that is
//! not tracked pays for this with one branch a publication, and one for each batch that is read ahead.

use super::Ring;
use super::shared::SplitRing;
use crate::memory::InflightPart;

/// The record of a ring that starts, and the chains that an earlier process has left in flight.
#[derive(Debug)]
pub struct InflightQueue {
    part: InflightPart,
    /// Their heads, in the order in which they were taken.
    heads: Vec<u16>,
    counter: u64,
}

impl InflightQueue {
    /// Finds the chains in flight, as the specification demands: first the last batch is settled if it was published and not yet
    /// cleared; then chains are sorted by their counters. With IN_ORDER (`in_order`) the used index says everything. A record that
    /// does not fit the ring is of another life of the guest, and is cleared.
    pub fn recover(part: InflightPart, split: &SplitRing, in_order: bool) -> Self {
        let used = split.used_index();
        if !part.is_used() || in_order {
            part.clear_all(used);
            return Self { part, heads: Vec::new(), counter: 0 };
        }
        let unsettled = used.wrapping_sub(part.used_index()).min(split.size());
        let mut head = part.last_of_batch();
        for _ in 0..unsettled {
            part.clear(head);
            head = part.before(head);
        }
        part.set_used_index(used);
        let mut taken: Vec<(u64, u16)> =
            (0..split.size()).filter_map(|head| part.in_flight(head).map(|counter| (counter, head))).collect();
        if taken.len() > usize::from(split.available_index().wrapping_sub(used)) {
            part.clear_all(used);
            taken.clear();
        }
        taken.sort_unstable();
        let counter = taken.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Self { part, heads: taken.into_iter().map(|(_, head)| head).collect(), counter }
    }

    /// Chains that are served again.
    pub fn resubmitted(&self) -> u16 {
        self.heads.len() as u16
    }
}

/// The record of a ring.
#[derive(Debug)]
pub(super) struct Tracker {
    part: InflightPart,
    counter: u64,
    /// Position in the available ring up to which chains in flight are marked.
    marked: u16,
    /// Chains that are marked.
    marks: u16,
}

/// Chains that an earlier process has left in flight: they take the first positions after the used index, before the chains of the
/// available ring.
#[derive(Debug)]
pub(super) struct Resubmitted {
    first: u16,
    heads: Vec<u16>,
}

impl Resubmitted {
    /// The head at `position`, if it is one of these chains.
    pub(super) fn head(&self, position: u16) -> Option<u16> {
        self.heads.get(usize::from(position.wrapping_sub(self.first))).copied()
    }

    /// Whether all of them lie before `position`.
    pub(super) fn end_before(&self, position: u16) -> bool {
        usize::from(position.wrapping_sub(self.first)) >= self.heads.len()
    }
}

impl Tracker {
    /// Marks the chains up to position `until` of the available ring that are not marked.
    fn mark_until(&mut self, until: u16, split: &SplitRing) {
        let count = until.wrapping_sub(self.marked);
        // More than the ring holds: `until` lies before, among chains of the earlier process.
        if count > split.size() {
            return;
        }
        for position in 0..count {
            let head = split.available_entry(self.marked.wrapping_add(position));
            self.part.mark(head, self.counter);
            self.counter = self.counter.wrapping_add(1);
        }
        self.marked = until;
    }
}

impl Ring {
    /// Records its chains in flight from now on, and serves those of `queue` first. Before any chain was taken.
    pub fn track(&mut self, queue: InflightQueue) {
        let InflightQueue { part, heads, counter } = queue;
        let (first, marks) = (self.next_available, heads.len() as u16);
        self.inflight = Some(Box::new(Tracker { part, counter, marked: first.wrapping_add(marks), marks }));
        self.resubmitted = (marks > 0).then(|| Box::new(Resubmitted { first, heads }));
    }

    /// Like [`Self::track`], after another process has served the ring.
    pub(super) fn track_again(&mut self) {
        self.resubmitted = None;
        if let Some(tracker) = self.inflight.take() {
            self.track(InflightQueue::recover(tracker.part, &self.split, self.options.in_order));
        }
    }

    /// Publishes the completed chains from used position `from` on, and records those in flight.
    #[inline(never)]
    pub(super) fn publish_tracked(&mut self, from: u16) {
        let Self { split, inflight, next_available, next_used, options, .. } = self;
        let (split, used) = (&*split, *next_used);
        let Some(tracker) = inflight else { return };
        if options.in_order || tracker.marks == 0 && *next_available == used {
            tracker.marked = *next_available;
            split.publish_used(used);
            tracker.part.set_used_index(used);
            return;
        }
        let batch = (0..used.wrapping_sub(from)).map(|position| split.used_head(from.wrapping_add(position)));
        tracker.mark_until(*next_available, split);
        batch.clone().for_each(|head| tracker.part.add_to_batch(head));
        split.publish_used(used);
        batch.for_each(|head| tracker.part.clear(head));
        tracker.part.set_used_index(used);
        tracker.marks = tracker.marked.wrapping_sub(used);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{InflightRegion, MemoryMap, Quota, Region, RegionTable};
    use crate::packet::Packet;
    use crate::ring::{OpenOutcome, RingOptions, TransmitQueue};

    const SIZE: u16 = 8;
    const AVAILABLE: u64 = 0x100;
    const USED: u64 = 0x200;

    /// A guest's memory with one ring, its front end's inflight region, and the driver's view.
    struct Guest {
        file: File,
        map: Arc<MemoryMap>,
        region: Arc<InflightRegion>,
        /// Chains that are available and not completed, in their order.
        posted: VecDeque<u16>,
        available: u16,
        used: u16,
    }

    impl Guest {
        fn new(start: u16) -> Self {
            let file = File::from(memfd_create("guest", MFdFlags::MFD_CLOEXEC).unwrap());
            file.set_len(0x1_0000).unwrap();
            let table = RegionTable { guest_start: 0, length: 0x1_0000, user_start: 0, file_offset: 0 };
            let region = Arc::new(Region::map(table, file.try_clone().unwrap()).unwrap());
            let map = Arc::new(MemoryMap::new(vec![region]).unwrap());
            let region = Arc::new(InflightRegion::create(1, SIZE, &Quota::default()).unwrap());
            let guest = Self { file, map, region, posted: VecDeque::new(), available: start, used: start };
            [AVAILABLE, USED].into_iter().for_each(|ring| guest.write(ring + 2, start));
            guest
        }

        fn write(&self, at: u64, value: u16) {
            self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
        }

        fn read(&self, at: u64) -> u16 {
            let mut bytes = [0; 2];
            self.file.read_exact_at(&mut bytes, at).unwrap();
            u16::from_le_bytes(bytes)
        }

        /// Makes a frame of 60 bytes available in a free descriptor; false if there is none.
        fn post(&mut self) -> bool {
            let Some(head) = (0..SIZE).find(|head| !self.posted.contains(head)) else { return false };
            let at = 16 * u64::from(head);
            self.file.write_all_at(&(0x1000 + 0x100 * u64::from(head)).to_le_bytes(), at).unwrap();
            self.file.write_all_at(&72_u64.to_le_bytes(), at + 8).unwrap();
            self.write(AVAILABLE + 4 + 2 * u64::from(self.available % SIZE), head);
            self.available = self.available.wrapping_add(1);
            self.write(AVAILABLE + 2, self.available);
            self.posted.push_back(head);
            true
        }

        /// Takes completed chains, each of which was posted.
        fn reap(&mut self) {
            while self.used != self.read(USED + 2) {
                let head = self.read(USED + 4 + 8 * u64::from(self.used % SIZE));
                let place = self.posted.iter().position(|&posted| posted == head);
                self.posted.remove(place.expect("no chain is completed twice"));
                self.used = self.used.wrapping_add(1);
            }
        }

        fn split(&self) -> SplitRing {
            SplitRing::locate(&self.map, [0, AVAILABLE, USED], SIZE).unwrap()
        }

        fn recovered(&self) -> InflightQueue {
            InflightQueue::recover(self.region.part(0, SIZE).unwrap(), &self.split(), false)
        }

        /// The queue of a process that begins.
        fn queue(&self) -> TransmitQueue {
            let options = RingOptions { event_index: false, indirect: false, in_order: false, header_length: 12 };
            let split = self.split();
            let mut ring = Ring::new(split, Arc::clone(&self.map), options, split.used_index());
            ring.track(self.recovered());
            TransmitQueue::new(ring)
        }
    }

    /// The head of the next chain.
    fn open(queue: &mut TransmitQueue, packet: &mut Packet) -> Option<u16> {
        queue.look(32).unwrap();
        match queue.open(packet).unwrap() {
            OpenOutcome::Packet => Some(packet.head),
            OpenOutcome::Nothing => None,
            OpenOutcome::Dropped(reason) => panic!("{reason:?}"),
        }
    }

    proptest! {
        /// Whenever a process ends, the next one takes every chain that the driver has not got back, in the order in which they were
        /// made available, and no other.
        #[test]
        fn after_a_crash_each_chain_is_completed_once(
            start in prop_oneof![Just(0_u16), Just(u16::MAX - 3), any::<u16>()],
            steps in prop::collection::vec((0..8_u8, any::<u8>()), 1..200),
        ) {
            let mut guest = Guest::new(start);
            let mut queue = guest.queue();
            let (mut held, mut next) = (Vec::new(), VecDeque::new());
            for (step, dice) in steps {
                let mut packet = Packet::default();
                match step {
                    0..3 => next.extend(guest.post().then(|| *guest.posted.back().unwrap())),
                    3 => {
                        let head = open(&mut queue, &mut packet);
                        prop_assert_eq!(head, next.pop_front());
                        if let Some(head) = head {
                            queue.keep_in_flight(&packet, 1);
                            held.push(head);
                        }
                    }
                    4 => {
                        prop_assert_eq!(open(&mut queue, &mut packet), next.pop_front());
                        if packet.length > 0 {
                            queue.finish(&packet);
                        }
                    }
                    5 if !held.is_empty() => queue.come_back(held.swap_remove(usize::from(dice) % held.len())),
                    5 | 6 => {
                        queue.ring().publish();
                        guest.reap();
                    }
                    _ if dice < 64 => {
                        queue = guest.queue();
                        held.clear();
                        next = guest.posted.clone();
                    }
                    // A takeover failed after the other process had served the ring.
                    _ if dice < 96 && held.is_empty() => {
                        queue.ring().resume();
                        next = guest.posted.clone();
                    }
                    _ => {}
                }
            }
        }
    }

    /// Chains 0 to 3 were taken; 0 and 3 are in flight, 1 and 2 are completed in one batch. The process ends after each of its stores.
    #[test]
    fn a_process_may_end_between_any_two_stores_of_a_publication() {
        /// The step's name, the step, the used index after it, and the chains in flight.
        type Step = (&'static str, fn(&Guest), u16, &'static [u16]);
        let steps: [Step; 12] = [
            ("the chains are available", |_| {}, 0, &[]),
            ("0 is marked", |guest| guest.region.part(0, SIZE).unwrap().mark(0, 7), 0, &[0]),
            ("1 is marked", |guest| guest.region.part(0, SIZE).unwrap().mark(1, 8), 0, &[0, 1]),
            ("2 is marked", |guest| guest.region.part(0, SIZE).unwrap().mark(2, 9), 0, &[0, 1, 2]),
            ("3 is marked", |guest| guest.region.part(0, SIZE).unwrap().mark(3, 10), 0, &[0, 1, 2, 3]),
            ("elements are written", |guest| (0..2).for_each(|n| guest.split().put_used(n, n + 1, 0)), 0, &[0, 1, 2, 3]),
            ("1 is in the batch", |guest| guest.region.part(0, SIZE).unwrap().add_to_batch(1), 0, &[0, 1, 2, 3]),
            ("2 is in the batch", |guest| guest.region.part(0, SIZE).unwrap().add_to_batch(2), 0, &[0, 1, 2, 3]),
            ("the used index is published", |guest| guest.split().publish_used(2), 2, &[0, 3]),
            ("1 is not in flight", |guest| guest.region.part(0, SIZE).unwrap().clear(1), 2, &[0, 3]),
            ("2 is not in flight", |guest| guest.region.part(0, SIZE).unwrap().clear(2), 2, &[0, 3]),
            ("the used index is recorded", |guest| guest.region.part(0, SIZE).unwrap().set_used_index(2), 2, &[0, 3]),
        ];
        for end in 0..steps.len() {
            let mut guest = Guest::new(0);
            (0..4).for_each(|_| assert!(guest.post()));
            assert_eq!(guest.recovered().heads, [0; 0]);
            steps[..=end].iter().for_each(|(_, act, ..)| act(&guest));
            let (what, _, used, heads) = steps[end];
            assert_eq!((guest.split().used_index(), &guest.recovered().heads[..]), (used, heads), "{what}");
            // And the same again, for a process that ends before it has served anything.
            assert_eq!(guest.recovered().heads, heads, "{what}");
        }
    }

    #[test]
    fn a_record_of_another_life_of_the_guest_is_cleared() {
        let guest = Guest::new(0);
        let part = guest.region.part(0, SIZE).unwrap();
        part.clear_all(500);
        // More chains than the driver has made available.
        [3, 4].into_iter().for_each(|head| part.mark(head, 1));
        assert_eq!(guest.recovered().heads, [0; 0]);
        assert_eq!((part.in_flight(3), part.used_index()), (None, 0));
    }

    #[test]
    fn a_record_full_of_nonsense_takes_bounded_time_and_yields_heads_of_the_ring() {
        for byte in [0, 1, 0x55, 0xff] {
            let mut guest = Guest::new(0);
            (0..SIZE).for_each(|_| assert!(guest.post()));
            let part = guest.region.part(0, SIZE).unwrap();
            part.clear_all(0);
            let length = guest.region.length() as usize - 16;
            guest.region.file().unwrap().write_all_at(&vec![byte; length], 16).unwrap();
            guest.region.file().unwrap().write_all_at(&[byte; 4], 12).unwrap();
            let heads = guest.recovered().heads;
            assert!(heads.len() <= SIZE.into() && heads.iter().all(|&head| head < SIZE), "{heads:?}");
            let mut queue = guest.queue();
            let mut packet = Packet::default();
            while open(&mut queue, &mut packet).is_some() {
                queue.finish(&packet);
            }
            queue.ring().publish();
        }
    }
}
