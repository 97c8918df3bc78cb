//! The flows of one sender to one receiver, in the order of FQ-CoDel (RFC 8290, section 4): a new flow goes before old ones, for as
//! long as it needs no more than its quantum. So a small exchange has no head-of-line blocking behind a bulk transfer of the same
//! guest. Unlike CoDel, nothing is dropped here: packets are enqueued in the sender's memory.
//!
//! Flows fall into buckets by their hash; flows with the same bucket share its service.

#![expect(clippy::indexing_slicing, reason = "buckets are numbered by a byte, or by a list of them that is not empty")]

use super::wait_queue::{Spot, WaitQueue};
use crate::ablation;
use crate::packet::Packet;
use crate::tuning::{FLOW_BUCKETS, QUANTUM};

const NONE: u8 = u8::MAX;

/// The flow of one bucket.
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: Spot,
    last: Spot,
    deficit: i32,
    /// The bucket after it in its list.
    next: u8,
    listed: bool,
}

/// A list of buckets.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u8,
    tail: u8,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flows {
    buckets: [Flow; FLOW_BUCKETS],
    /// New flows: they began since they were last empty.
    new: List,
    /// Old flows: they have used up a quantum.
    old: List,
    waiting: u32,
}

impl Default for Flows {
    fn default() -> Self {
        let flow = Flow { first: Spot::NONE, last: Spot::NONE, deficit: 0, next: NONE, listed: false };
        let empty = List { head: NONE, tail: NONE };
        Self { buckets: [flow; FLOW_BUCKETS], new: empty, old: empty, waiting: 0 }
    }
}

impl Flows {
    /// True if no packet is enqueued.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Appends the packet at `spot` to its flow.
    pub(super) fn push(&mut self, spot: Spot, wait_queue: &mut WaitQueue) {
        let buckets = if ablation::FAIRNESS { FLOW_BUCKETS as u8 } else { 1 };
        let bucket = wait_queue.packet(spot).flow_hash() as u8 % buckets;
        let flow = &mut self.buckets[usize::from(bucket)];
        self.waiting += 1;
        wait_queue.link(spot, Spot::NONE);
        if flow.first == Spot::NONE {
            (flow.first, flow.last) = (spot, spot);
        } else {
            wait_queue.link(flow.last, spot);
            flow.last = spot;
        }
        if !flow.listed {
            (flow.listed, flow.deficit) = (true, QUANTUM as i32);
            append(&mut self.buckets, &mut self.new, bucket);
        }
    }

    /// The next packet, which stays so until it is served or a new flow begins.
    pub(super) fn next(&mut self, wait_queue: &WaitQueue) -> Option<Spot> {
        if self.is_empty() {
            return None;
        }
        loop {
            let from_new = self.new.head != NONE;
            let bucket = if from_new { self.new.head } else { self.old.head };
            let flow = self.buckets[usize::from(bucket)];
            if flow.first == Spot::NONE {
                self.retire(bucket, from_new);
            } else if flow.deficit <= 0 {
                self.pass_over(bucket, from_new, wait_queue);
            } else {
                return Some(flow.first);
            }
        }
    }

    /// An empty flow leaves its list; a new one goes through the old ones first, so that it cannot stay new by being empty now and then.
    fn retire(&mut self, bucket: u8, from_new: bool) {
        self.pop(from_new);
        if from_new && self.old.head != NONE {
            append(&mut self.buckets, &mut self.old, bucket);
        } else {
            self.buckets[usize::from(bucket)].listed = false;
        }
    }

    /// A flow that used up its quantum gets another one and goes to the end of the old flows. A lone flow gets as many quanta as
    /// its first frame needs.
    fn pass_over(&mut self, bucket: u8, from_new: bool, wait_queue: &WaitQueue) {
        self.pop(from_new);
        let flow = &mut self.buckets[usize::from(bucket)];
        flow.deficit += QUANTUM as i32;
        let alone = self.new.head == NONE && self.old.head == NONE;
        if alone && flow.deficit <= 0 {
            flow.deficit = wait_queue.length(flow.first) as i32;
        }
        append(&mut self.buckets, &mut self.old, bucket);
    }

    fn pop(&mut self, from_new: bool) {
        let list = if from_new { &mut self.new } else { &mut self.old };
        let next = self.buckets[usize::from(list.head)].next;
        list.head = next;
        if next == NONE {
            list.tail = NONE;
        }
    }

    /// Removes the packet that [`Self::next`] named and charges its flow; the caller frees its spot.
    pub(super) fn served(&mut self, wait_queue: &WaitQueue) -> Option<Spot> {
        let spot = self.next(wait_queue)?;
        let bucket = if self.new.head != NONE { self.new.head } else { self.old.head };
        let flow = &mut self.buckets[usize::from(bucket)];
        flow.first = wait_queue.next(spot);
        flow.deficit -= wait_queue.length(spot) as i32;
        self.waiting -= 1;
        Some(spot)
    }

    /// Removes and frees every packet for which `condition` holds, and calls `taken` with each; returns how many.
    pub(crate) fn remove_if(
        &mut self,
        wait_queue: &mut WaitQueue,
        condition: &impl Fn(&Packet) -> bool,
        taken: &mut impl FnMut(&Packet),
    ) -> u32 {
        let before = self.waiting;
        for flow in &mut self.buckets {
            let mut spot = std::mem::replace(&mut flow.first, Spot::NONE);
            flow.last = Spot::NONE;
            while spot != Spot::NONE {
                let next = wait_queue.next(spot);
                if condition(wait_queue.packet(spot)) {
                    taken(wait_queue.packet(spot));
                    wait_queue.free(spot);
                    self.waiting -= 1;
                } else {
                    wait_queue.link(spot, Spot::NONE);
                    match flow.last {
                        Spot::NONE => flow.first = spot,
                        last => wait_queue.link(last, spot),
                    }
                    flow.last = spot;
                }
                spot = next;
            }
        }
        before - self.waiting
    }
}

fn append(buckets: &mut [Flow; FLOW_BUCKETS], list: &mut List, bucket: u8) {
    buckets[usize::from(bucket)].next = NONE;
    match list.tail {
        NONE => list.head = bucket,
        tail => buckets[usize::from(tail)].next = bucket,
    }
    list.tail = bucket;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::START;

    /// A TCP packet of flow `flow`.
    fn packet(flow: u8, head: u16, length: u32) -> Packet {
        let mut start = [0; START];
        start[12..14].copy_from_slice(&[8, 0]);
        start[14] = 0x45;
        start[20] = 0x40;
        start[23] = 6;
        start[35] = flow;
        let mut packet = Packet::default();
        (packet.start, packet.start_length) = (start, 60);
        (packet.head, packet.length) = (head, length);
        packet
    }

    fn push(flows: &mut Flows, wait_queue: &mut WaitQueue, flow: u8, head: u16, length: u32) {
        let spot = wait_queue.enqueue(packet(flow, head, length)).unwrap();
        flows.push(spot, wait_queue);
    }

    fn serve(flows: &mut Flows, wait_queue: &mut WaitQueue) -> Option<u16> {
        let spot = flows.served(wait_queue)?;
        let head = wait_queue.packet(spot).head;
        wait_queue.free(spot);
        Some(head)
    }

    #[test]
    fn a_small_flow_goes_before_a_bulk_flow() {
        let (mut flows, mut wait_queue) = (Flows::default(), WaitQueue::new(256, 1));
        (0..100).for_each(|n| push(&mut flows, &mut wait_queue, 1, n, 1500));
        (0..3).for_each(|_| assert!(serve(&mut flows, &mut wait_queue).is_some_and(|head| head < 100)));
        push(&mut flows, &mut wait_queue, 2, 1000, 100);
        assert_eq!(serve(&mut flows, &mut wait_queue), Some(1000));
    }

    #[test]
    fn flows_that_go_on_share_and_keep_their_order() {
        let (mut flows, mut wait_queue) = (Flows::default(), WaitQueue::new(1024, 1));
        for n in 0..400 {
            push(&mut flows, &mut wait_queue, (n % 2) as u8, n, if n % 2 == 0 { 1500 } else { 100 });
        }
        let (mut bytes, mut last) = ([0_u32; 2], [None; 2]);
        for _ in 0..200 {
            let head = serve(&mut flows, &mut wait_queue).unwrap();
            let flow = usize::from(head % 2);
            assert!(last[flow] < Some(head));
            last[flow] = Some(head);
            bytes[flow] += if flow == 0 { 1500 } else { 100 };
        }
        assert!(bytes[0].abs_diff(bytes[1]) <= 2 * (QUANTUM + 1500), "{bytes:?}");
    }

    #[test]
    fn a_lone_flow_of_large_frames_needs_no_rounds() {
        let (mut flows, mut wait_queue) = (Flows::default(), WaitQueue::new(64, 1));
        (0..10).for_each(|n| push(&mut flows, &mut wait_queue, 1, n, 65_000));
        assert!((0..10).all(|n| serve(&mut flows, &mut wait_queue) == Some(n)));
        assert!(flows.is_empty() && wait_queue.used() == 0);
    }

    #[test]
    fn removing_all_but_one_leaves_that_one() {
        let (mut flows, mut wait_queue) = (Flows::default(), WaitQueue::new(64, 1));
        (0..30).for_each(|n| push(&mut flows, &mut wait_queue, n as u8 % 7, n, 1500));
        assert_eq!(flows.remove_if(&mut wait_queue, &|packet| packet.head != 17, &mut |_| {}), 29);
        assert_eq!(serve(&mut flows, &mut wait_queue), Some(17));
        assert_eq!((serve(&mut flows, &mut wait_queue), wait_queue.used()), (None, 0));
    }
}
