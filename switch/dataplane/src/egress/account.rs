//! Fair queueing at a receiver: frames that are enqueued for it are served fairly among their senders, and among each sender's
//! flows.
//!
//! - The **wait queue** holds the enqueued packets of one worker, for all receivers; its size is fixed, and a dynamic threshold
//!   bounds each sender's part.
//! - **Turns** belong to one receiver: a queue for each sender, and the order in which senders are served, deficit round robin. A
//!   sender sends until its **deficit** in bytes is used up (Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round
//!   Robin", 1995), so shares follow the senders' weights and depend neither on packet sizes nor on queue lengths.
//! - **Flows** order the enqueued packets of one sender: new flows before old ones, as in FQ-CoDel ([`super::flows`]).
//!
//! Where drivers poll, backpressure leaves frames in their senders' rings, and those senders get fair queueing without a queue
//! ([`super::fair_queue`]).
//!
//! Enqueueing is the exception: while no frame is enqueued for a receiver, frames reach it without this module. Head-of-line
//! blocking by one long frame is avoided by [`Turns::next_below`].

use std::collections::VecDeque;

use super::flows::Flows;
use super::wait_queue::{Spot, WaitQueue};
use crate::id::PortId;
use crate::weight::Weight;

/// Quantum in bytes at weight 1: a usual frame, so that a sender of small frames needs few of them enqueued to keep its share.
pub const QUANTUM: u32 = 1514;

/// Quantum in bytes of a sender of this weight.
fn quantum(weight: Weight) -> u32 {
    weight.multiply(QUANTUM)
}

/// The queue of one sender at one receiver.
#[derive(Debug)]
struct Sender {
    port: PortId,
    quantum: u32,
    deficit: u32,
    flows: Box<Flows>,
}

/// Frames that are enqueued for one receiver.
#[derive(Debug, Default)]
pub struct Turns {
    /// Backlogged senders, the next one first.
    senders: VecDeque<Sender>,
    waiting: u32,
    /// Quanta that were given.
    taken: u64,
    /// Flows of senders with nothing enqueued any more, to be used again.
    #[expect(clippy::vec_box, reason = "boxes move between here and senders, the flows stay where they are")]
    spare: Vec<Box<Flows>>,
}

/// Spare [`Flows`] that are kept.
const SPARE: usize = 4;

impl Turns {
    /// Enqueued packets.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Enqueued packets of `sender`.
    pub(crate) fn waiting_of(&self, sender: PortId) -> u32 {
        self.senders.iter().find(|queue| queue.port == sender).map_or(0, |queue| queue.flows.waiting())
    }

    /// Quanta given since this was last asked.
    pub(crate) fn take_taken(&mut self) -> u64 {
        std::mem::take(&mut self.taken)
    }

    /// Appends the packet at `spot` to the queue of `sender`.
    pub fn push(&mut self, sender: PortId, spot: Spot, wait_queue: &mut WaitQueue) {
        self.waiting += 1;
        let index = self.senders.iter().position(|queue| queue.port == sender).unwrap_or_else(|| self.add(sender));
        self.senders[index].flows.push(spot, wait_queue);
    }

    /// Sets every sender's weight to `weight_of` from now on. Setting it only when a frame comes would not do: a sender with a ring
    /// full of enqueued frames sends none until some of them are served.
    pub fn weigh(&mut self, weight_of: impl Fn(PortId) -> Weight) {
        self.senders.iter_mut().for_each(|sender| sender.quantum = quantum(weight_of(sender.port)));
    }

    fn add(&mut self, port: PortId) -> usize {
        let flows = self.spare.pop().unwrap_or_default();
        self.senders.push_back(Sender { port, quantum: QUANTUM, deficit: 0, flows });
        self.senders.len() - 1
    }

    /// The next packet. A sender that has used up its deficit gets its quantum for the next round.
    pub fn next(&mut self, wait_queue: &WaitQueue) -> Option<Spot> {
        self.next_below(u32::MAX, wait_queue)
    }

    /// The same as if senders with a next packet of `too_long` bytes or more had nothing enqueued: against head-of-line blocking by
    /// a long frame.
    pub(crate) fn next_below(&mut self, too_long: u32, wait_queue: &WaitQueue) -> Option<Spot> {
        for _ in 0..self.senders.len() {
            let sender = self.senders.front_mut()?;
            let spot = sender.flows.next(wait_queue)?;
            let length = wait_queue.length(spot);
            if length < too_long {
                if length <= sender.deficit {
                    return Some(spot);
                }
                self.taken += 1;
                sender.deficit += sender.quantum;
            }
            self.senders.rotate_left(1);
        }
        self.skip_rounds(too_long, wait_queue);
        self.next_affordable(too_long, wait_queue)
    }

    /// Gives every sender that may send the quanta of as many rounds as pass before the first of them can.
    fn skip_rounds(&mut self, too_long: u32, wait_queue: &WaitQueue) {
        let next = |sender: &mut Sender| {
            let length = sender.flows.next(wait_queue).map_or(0, |spot| wait_queue.length(spot));
            (length < too_long).then_some(length)
        };
        let lacking = |sender: &mut Sender| Some(next(sender)?.saturating_sub(sender.deficit).div_ceil(sender.quantum));
        let rounds = self.senders.iter_mut().filter_map(lacking).min().unwrap_or(0);
        for sender in &mut self.senders {
            if next(sender).is_some() {
                sender.deficit += rounds * sender.quantum;
            }
        }
    }

    /// The first sender with a sufficient deficit is served.
    fn next_affordable(&mut self, too_long: u32, wait_queue: &WaitQueue) -> Option<Spot> {
        for _ in 0..self.senders.len() {
            let sender = self.senders.front_mut()?;
            let spot = sender.flows.next(wait_queue)?;
            if wait_queue.length(spot) <= sender.deficit && wait_queue.length(spot) < too_long {
                return Some(spot);
            }
            self.senders.rotate_left(1);
        }
        None
    }

    /// Removes the packet that [`Self::next`] named, and charges its sender for it.
    pub fn served(&mut self, wait_queue: &mut WaitQueue) {
        let Some(sender) = self.senders.front_mut() else { return };
        let Some(spot) = sender.flows.served(wait_queue) else { return };
        sender.deficit = sender.deficit.saturating_sub(wait_queue.length(spot));
        wait_queue.free(spot);
        self.waiting -= 1;
        if sender.flows.is_empty() {
            let sender = self.senders.pop_front();
            self.keep(sender);
        }
    }

    /// Removes every packet for which `condition` holds, and calls `taken` with each.
    pub(crate) fn remove_if(
        &mut self,
        wait_queue: &mut WaitQueue,
        condition: impl Fn(&crate::packet::Packet) -> bool,
        mut taken: impl FnMut(&crate::packet::Packet),
    ) {
        for sender in &mut self.senders {
            self.waiting -= sender.flows.remove_if(wait_queue, &condition, &mut taken);
        }
        for _ in 0..self.senders.len() {
            let sender = self.senders.pop_front();
            match sender {
                Some(sender) if !sender.flows.is_empty() => self.senders.push_back(sender),
                emptied => self.keep(emptied),
            }
        }
    }

    fn keep(&mut self, sender: Option<Sender>) {
        if let Some(mut sender) = sender
            && self.spare.len() < SPARE
        {
            *sender.flows = Flows::default();
            self.spare.push(sender.flows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;

    fn packet(sender: u16, head: u16, length: u32) -> Packet {
        let mut packet = Packet::default();
        (packet.source, packet.head, packet.length) = (PortId(sender), head, length);
        packet
    }

    fn push(turns: &mut Turns, wait_queue: &mut WaitQueue, sender: u16, head: u16, length: u32) {
        let spot = wait_queue.enqueue(packet(sender, head, length)).unwrap();
        turns.push(PortId(sender), spot, wait_queue);
    }

    fn serve(turns: &mut Turns, wait_queue: &mut WaitQueue) -> Option<(u16, u16, u32)> {
        let spot = turns.next(wait_queue)?;
        let packet = wait_queue.packet(spot);
        let seen = (packet.source.0, packet.head, packet.length);
        turns.served(wait_queue);
        Some(seen)
    }

    /// Serves `total` bytes of senders that keep `depth` frames of their size enqueued; returns the bytes of each.
    fn bytes_of(senders: &[(u16, u32)], depth: usize, total: u64) -> Vec<u64> {
        let (mut turns, mut wait_queue) = (Turns::default(), WaitQueue::new(100_000, 10));
        for (sender, &(_, size)) in senders.iter().enumerate() {
            (0..depth).for_each(|_| push(&mut turns, &mut wait_queue, sender as u16, 0, size));
        }
        let mut bytes = vec![0_u64; senders.len()];
        while bytes.iter().sum::<u64>() < total {
            turns.weigh(|sender| Weight::new(senders[sender.index()].0));
            let (sender, _, length) = serve(&mut turns, &mut wait_queue).unwrap();
            bytes[usize::from(sender)] += u64::from(length);
            push(&mut turns, &mut wait_queue, sender, 0, length);
        }
        bytes
    }

    #[test]
    fn senders_get_equal_bytes_whatever_their_sizes() {
        let bytes = bytes_of(&[(1, 60), (1, 1500), (1, 60_000), (1, 590)], 32, 40_000_000);
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(most - least <= 2 * 60_000, "{bytes:?}");
    }

    #[test]
    fn senders_get_bytes_by_their_weights() {
        let bytes = bytes_of(&[(1, 1500), (3, 60), (6, 9000)], 100, 10_000_000);
        let shares: Vec<f64> = bytes.iter().map(|&b| b as f64 / 1_000_000.0).collect();
        assert!((shares[0] - 1.0).abs() < 0.05 && (shares[1] - 3.0).abs() < 0.05 && (shares[2] - 6.0).abs() < 0.05, "{shares:?}");
    }

    #[test]
    fn what_a_sender_weighs_changes_while_its_frames_wait() {
        let (mut turns, mut wait_queue) = (Turns::default(), WaitQueue::new(1000, 10));
        for sender in [0, 1] {
            (0..100).for_each(|head| push(&mut turns, &mut wait_queue, sender, head, 1500));
        }
        let mut served_of = |first: u16| {
            turns.weigh(|sender| Weight::new(if sender == PortId(first) { 9 } else { 1 }));
            let senders: Vec<_> = (0..50).map(|_| serve(&mut turns, &mut wait_queue).unwrap().0).collect();
            senders.iter().filter(|&&sender| sender == first).count()
        };
        let served = [served_of(0), served_of(1)];
        assert!(served.iter().all(|&served| served >= 35), "{served:?}");
    }

    #[test]
    fn each_sender_keeps_its_order() {
        let (mut turns, mut wait_queue) = (Turns::default(), WaitQueue::new(64, 10));
        for n in 0..20 {
            push(&mut turns, &mut wait_queue, n % 3, n, 9000);
        }
        let mut last = [None; 3];
        while let Some((sender, head, _)) = serve(&mut turns, &mut wait_queue) {
            assert!(last[usize::from(sender)] < Some(head));
            last[usize::from(sender)] = Some(head);
        }
        assert_eq!((turns.waiting(), wait_queue.used()), (0, 0));
    }

    #[test]
    fn whoever_has_too_much_is_passed_over_and_keeps_its_turn() {
        let (mut turns, mut wait_queue) = (Turns::default(), WaitQueue::new(64, 10));
        push(&mut turns, &mut wait_queue, 0, 0, 60_000);
        let spot = turns.next(&wait_queue).unwrap();
        assert_eq!(wait_queue.length(spot), 60_000);
        assert_eq!(turns.next_below(60_000, &wait_queue), None);
        for head in 0..20 {
            push(&mut turns, &mut wait_queue, 1, head, 9000);
        }
        for head in 0..10 {
            let spot = turns.next_below(60_000, &wait_queue).unwrap();
            assert_eq!((wait_queue.packet(spot).source, wait_queue.packet(spot).head), (PortId(1), head));
            turns.served(&mut wait_queue);
        }
        let then: Vec<_> = (0..8).map(|_| serve(&mut turns, &mut wait_queue).unwrap().0).collect();
        assert_eq!(then.iter().filter(|&&sender| sender == 0).count(), 1, "{then:?}");
    }

    #[test]
    fn removing_keeps_the_rest_in_order() {
        let (mut turns, mut wait_queue) = (Turns::default(), WaitQueue::new(64, 10));
        for n in 0..12 {
            push(&mut turns, &mut wait_queue, n % 2, n, 100);
        }
        let mut taken = Vec::new();
        turns.remove_if(&mut wait_queue, |p| p.head % 3 == 0 || p.head == 11, |p| taken.push(p.head));
        assert_eq!(turns.waiting() as usize + taken.len(), 12);
        push(&mut turns, &mut wait_queue, 1, 99, 100);
        let mut left: Vec<_> = std::iter::from_fn(|| serve(&mut turns, &mut wait_queue)).map(|(_, head, _)| head).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 4, 5, 7, 8, 10, 99]);
        assert_eq!(wait_queue.used(), 0);
    }

    #[test]
    fn a_full_parking_refuses_and_recovers() {
        let (mut turns, mut wait_queue) = (Turns::default(), WaitQueue::new(4, 1));
        push(&mut turns, &mut wait_queue, 0, 0, 1);
        push(&mut turns, &mut wait_queue, 0, 1, 1);
        assert!(wait_queue.enqueue(packet(0, 2, 1)).is_none());
        serve(&mut turns, &mut wait_queue).unwrap();
        assert!(wait_queue.enqueue(packet(0, 2, 1)).is_some());
    }
}
