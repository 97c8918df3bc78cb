//! Accounts: fair queueing of the senders to one receiver, both of packets that are enqueued for it and of frames that backpressure
//! left in their senders' transmit rings.
//!
//! - A sender's account counts its **virtual bytes**: bytes sent to this receiver, divided by the sender's weight.
//! - The **floor** is the least count of the backlogged senders. A sender that was not backlogged starts there when it comes again:
//!   idle time gives no credit. This is start-time fair queueing (Goyal, Vin and Cheng, 1996).
//! - Senders with enqueued packets are served in **turns**: the one with the least count, until it is a [`QUANTUM`] ahead of the
//!   next. Each sender's packets are in the order of its [`Flows`].
//! - A **blocked sender**, with its frames in its ring, gets no room while it is more than the [`LEAD_BYTES`] ahead of the floor, although
//!   it may be polled first whenever a buffer is posted. Where drivers poll, this costs less than to enqueue its frames.
//!
//! So shares of a receiver follow the senders' weights, and depend neither on frame sizes nor on queue lengths, nor on which senders
//! are blocked and which have packets enqueued. A single sender has no account to settle: while no other one waits, nothing is
//! counted.

#![expect(clippy::indexing_slicing, reason = "the position of one that was found or just added")]

use super::flows::Flows;
use super::wait_queue::{Spot, WaitQueue};
use crate::ablation;
use crate::id::PortId;
use crate::packet::Packet;
use crate::time::{Cycles, in_cycles};
use crate::tuning::{ACCOUNT_MEMORY, LEAD_BYTES, QUANTUM, SPARE_FLOWS};
use crate::weight::Weight;

/// The account of one sender.
#[derive(Debug)]
struct Account {
    sender: PortId,
    /// Virtual bytes, in parts of [`Weight::PARTS`].
    run: u64,
    /// The poll iteration in which it came last: was served, or found no room.
    seen: Cycles,
    /// The sender is backlogged: it had more frames than it could send.
    backlogged: bool,
    /// Enqueued packets.
    queued: u32,
    /// Their order; there while any is enqueued.
    flows: Option<Box<Flows>>,
}

impl Account {
    /// The sender's next packet, if it is shorter than `too_long`. One with a longer packet is not held to be backlogged, as it waits for
    /// larger buffers.
    fn next_below(&mut self, too_long: u32, wait_queue: &WaitQueue) -> Option<Spot> {
        let spot = self.flows.as_mut()?.next(wait_queue)?;
        let fits = wait_queue.length(spot) < too_long;
        self.backlogged &= fits;
        fits.then_some(spot)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Accounts {
    accounts: Vec<Account>,
    /// Enqueued packets.
    waiting: u32,
    /// The sender in turn, and the virtual bytes beyond which its turn ends.
    turn: Option<(PortId, u64)>,
    /// Turns that were given since this was last asked.
    turns: u64,
    /// The least count of the senders that were backlogged in the previous poll iteration.
    floor: Option<u64>,
    /// The count at which a sender starts that was not backlogged before.
    start: u64,
    /// The present poll iteration.
    now: Cycles,
    /// Flows of senders with nothing enqueued any more, to be used again.
    #[expect(clippy::vec_box, reason = "boxes move between here and accounts, the flows stay where they are")]
    spare: Vec<Box<Flows>>,
}

impl Accounts {
    /// Enqueued packets.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Enqueued packets of `sender`.
    pub(crate) fn waiting_of(&self, sender: PortId) -> u32 {
        if !ablation::FAIRNESS {
            return 0;
        }
        self.accounts.iter().find(|account| account.sender == sender).map_or(0, |account| account.queued)
    }

    /// Turns given since this was last asked.
    pub(crate) fn take_turns(&mut self) -> u64 {
        std::mem::take(&mut self.turns)
    }

    /// Whether several senders have accounts, so that they are held abreast.
    #[inline]
    pub(crate) fn is_contended(&self) -> bool {
        self.accounts.len() > 1
    }

    /// A poll iteration begins in moment `now`, unless it has already. Accounts of senders that did not come for long are
    /// forgotten.
    #[inline]
    pub(crate) fn begin_iteration(&mut self, now: Cycles) {
        if self.now != now && !self.accounts.is_empty() {
            self.find_floor(now);
        }
    }

    fn find_floor(&mut self, now: Cycles) {
        let memory = in_cycles(ACCOUNT_MEMORY);
        let before = std::mem::replace(&mut self.now, now);
        let is_behind = |account: &&Account| account.backlogged && (account.queued > 0 || account.seen == before);
        self.floor = self.accounts.iter().filter(is_behind).map(|account| account.run).min();
        self.start = self.floor.or_else(|| self.accounts.iter().map(|account| account.run).max()).unwrap_or(self.start);
        self.accounts.retain(|account| account.queued > 0 || now.wrapping_sub(account.seen) < memory);
        if self.start > u64::MAX / 2 {
            self.begin_anew();
        }
    }

    /// Subtracts the start from all counts before they overflow.
    #[cold]
    fn begin_anew(&mut self) {
        self.accounts.iter_mut().for_each(|account| account.run = account.run.saturating_sub(self.start));
        (self.floor, self.start, self.turn) = (self.floor.map(|_| 0), 0, None);
    }

    /// Whether `sender` may have room now, or must let the senders behind it catch up.
    #[inline]
    pub(crate) fn may_send(&self, sender: PortId) -> bool {
        let Some(floor) = self.floor.filter(|_| self.is_contended()) else { return true };
        let own = self.accounts.iter().find(|account| account.sender == sender);
        own.is_none_or(|own| own.run <= floor + LEAD_BYTES * Weight::PARTS)
    }

    /// `sender` found no room: it is backlogged.
    pub(crate) fn came(&mut self, sender: PortId) {
        self.of(sender);
    }

    /// So many `bytes` of `sender`, with this `weight`, were sent past the queue; it is backlogged until [`Self::clear_backlog`].
    #[inline]
    pub(crate) fn went(&mut self, sender: PortId, weight: Weight, bytes: u64) {
        if self.is_contended() {
            self.of(sender).run += weight.divide(bytes);
        }
    }

    /// `sender` has no more frames in its ring than it could send.
    pub(crate) fn clear_backlog(&mut self, sender: PortId) {
        let sender = payer(sender);
        if let Some(account) = self.accounts.iter_mut().find(|account| account.sender == sender) {
            account.backlogged = account.queued > 0;
        }
    }

    /// The account of `sender`, now backlogged.
    fn of(&mut self, sender: PortId) -> &mut Account {
        let index = self.open(sender);
        &mut self.accounts[index]
    }

    /// Opens the account of `sender`, which is backlogged now; returns its index. A sender that was not backlogged starts abreast of
    /// the last one that was.
    fn open(&mut self, sender: PortId) -> usize {
        let (sender, now, start) = (payer(sender), self.now, self.start);
        let index = self.accounts.iter().position(|account| account.sender == sender).unwrap_or_else(|| {
            self.accounts.push(Account { sender, run: start, seen: now, backlogged: true, queued: 0, flows: None });
            self.accounts.len() - 1
        });
        let account = &mut self.accounts[index];
        if !std::mem::replace(&mut account.backlogged, true) {
            account.run = account.run.max(start);
        }
        account.seen = now;
        index
    }

    /// Appends the packet at `spot` to those of `sender`.
    pub fn push(&mut self, sender: PortId, spot: Spot, wait_queue: &mut WaitQueue) {
        self.waiting += 1;
        let index = self.open(sender);
        let account = &mut self.accounts[index];
        if account.queued == 0 {
            // The present turn ends when its sender is ahead of this one, too.
            let end = end_of_turn(account.run);
            self.turn = self.turn.map(|(sender, until)| (sender, until.min(end)));
        }
        account.queued += 1;
        let spare = &mut self.spare;
        account.flows.get_or_insert_with(|| spare.pop().unwrap_or_default()).push(spot, wait_queue);
    }

    /// The next packet, of the sender in turn.
    pub fn next(&mut self, wait_queue: &WaitQueue) -> Option<Spot> {
        self.next_below(u32::MAX, wait_queue)
    }

    /// The same as if senders with a next packet of `too_long` bytes or more had nothing enqueued: against head-of-line blocking by
    /// a long frame.
    pub(crate) fn next_below(&mut self, too_long: u32, wait_queue: &WaitQueue) -> Option<Spot> {
        if let Some((sender, until)) = self.turn
            && let Some(account) = self.accounts.iter_mut().find(|account| account.sender == sender && account.run <= until)
            && let Some(spot) = account.next_below(too_long, wait_queue)
        {
            return Some(spot);
        }
        self.begin_turn(too_long, wait_queue)
    }

    /// Gives the turn to the sender with the least count.
    fn begin_turn(&mut self, too_long: u32, wait_queue: &WaitQueue) -> Option<Spot> {
        let mut least: Option<(u64, PortId, Spot)> = None;
        let mut second = u64::MAX;
        for account in self.accounts.iter_mut().filter(|account| account.queued > 0) {
            // A sender that was passed over gets no credit for it.
            let run = if account.backlogged { account.run } else { account.run.max(self.start) };
            if run >= second {
                continue;
            }
            let Some(spot) = account.next_below(too_long, wait_queue) else { continue };
            match least {
                Some((first, ..)) if first <= run => second = run,
                _ => {
                    second = least.map_or(second, |(first, ..)| first);
                    least = Some((run, account.sender, spot));
                }
            }
        }
        let (_, sender, spot) = least?;
        self.turns += 1;
        // Senders that were passed over may be next as soon as there are larger buffers.
        let until = if too_long == u32::MAX { end_of_turn(second) } else { 0 };
        self.turn = Some((sender, until));
        Some(spot)
    }

    /// Removes the packet that [`Self::next`] named, and charges its sender, with weight `weight`, for it.
    pub fn served(&mut self, weight: Weight, wait_queue: &mut WaitQueue) {
        let Some((sender, _)) = self.turn else { return };
        let account = self.of(sender);
        let Some(flows) = &mut account.flows else { return };
        let Some(spot) = flows.served(wait_queue) else { return };
        account.run += weight.divide(wait_queue.length(spot).into());
        account.queued -= 1;
        wait_queue.free(spot);
        let emptied = account.flows.take_if(|flows| flows.is_empty());
        self.waiting -= 1;
        self.keep(emptied);
        if !self.is_contended() && self.waiting == 0 {
            self.accounts.clear();
        }
    }

    /// Removes every packet for which `condition` holds, and calls `taken` with each.
    pub(crate) fn remove_if(
        &mut self,
        wait_queue: &mut WaitQueue,
        condition: impl Fn(&Packet) -> bool,
        mut taken: impl FnMut(&Packet),
    ) {
        for index in 0..self.accounts.len() {
            let account = &mut self.accounts[index];
            let Some(flows) = &mut account.flows else { continue };
            let removed = flows.remove_if(wait_queue, &condition, &mut taken);
            account.queued -= removed;
            let emptied = account.flows.take_if(|flows| flows.is_empty());
            self.waiting -= removed;
            self.keep(emptied);
        }
    }

    fn keep(&mut self, flows: Option<Box<Flows>>) {
        if let Some(mut flows) = flows
            && self.spare.len() < SPARE_FLOWS
        {
            *flows = Flows::default();
            self.spare.push(flows);
        }
    }
}

/// The account that is charged for `sender`.
#[inline]
fn payer(sender: PortId) -> PortId {
    if ablation::FAIRNESS { sender } else { PortId(0) }
}

/// The count beyond which a turn ends, where the next sender has this count.
fn end_of_turn(next: u64) -> u64 {
    next.saturating_add(u64::from(QUANTUM) * Weight::PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sender: u16, head: u16, length: u32) -> Packet {
        let mut packet = Packet::default();
        (packet.source, packet.head, packet.length) = (PortId(sender), head, length);
        packet
    }

    fn push(accounts: &mut Accounts, wait_queue: &mut WaitQueue, sender: u16, head: u16, length: u32) {
        let spot = wait_queue.enqueue(packet(sender, head, length)).unwrap();
        accounts.push(PortId(sender), spot, wait_queue);
    }

    fn serve(accounts: &mut Accounts, wait_queue: &mut WaitQueue) -> Option<(u16, u16, u32)> {
        serve_by(accounts, wait_queue, |_| 1)
    }

    fn serve_by(accounts: &mut Accounts, wait_queue: &mut WaitQueue, weight_of: impl Fn(PortId) -> u16) -> Option<(u16, u16, u32)> {
        let spot = accounts.next(wait_queue)?;
        let packet = wait_queue.packet(spot);
        let seen = (packet.source.0, packet.head, packet.length);
        accounts.served(Weight::new(weight_of(PortId(seen.0))), wait_queue);
        Some(seen)
    }

    /// Serves `total` bytes of senders that keep `depth` frames of their size enqueued; returns the bytes of each.
    fn bytes_of(senders: &[(u16, u32)], depth: usize, total: u64) -> Vec<u64> {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(100_000, 10));
        for (sender, &(_, size)) in senders.iter().enumerate() {
            (0..depth).for_each(|_| push(&mut accounts, &mut wait_queue, sender as u16, 0, size));
        }
        let mut bytes = vec![0_u64; senders.len()];
        while bytes.iter().sum::<u64>() < total {
            let weight_of = |sender: PortId| senders[sender.index()].0;
            let (sender, _, length) = serve_by(&mut accounts, &mut wait_queue, weight_of).unwrap();
            bytes[usize::from(sender)] += u64::from(length);
            push(&mut accounts, &mut wait_queue, sender, 0, length);
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
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(1000, 10));
        for sender in [0, 1] {
            (0..100).for_each(|head| push(&mut accounts, &mut wait_queue, sender, head, 1500));
        }
        let mut served_of = |first: u16| {
            let weight_of = |sender| if sender == PortId(first) { 9 } else { 1 };
            let senders: Vec<_> = (0..50).map(|_| serve_by(&mut accounts, &mut wait_queue, weight_of).unwrap().0).collect();
            senders.iter().filter(|&&sender| sender == first).count()
        };
        let served = [served_of(0), served_of(1)];
        assert!(served.iter().all(|&served| served >= 35), "{served:?}");
    }

    #[test]
    fn a_sender_that_was_blocked_and_is_enqueued_then_has_one_account() {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(1000, 10));
        accounts.begin_iteration(1);
        [0, 1].into_iter().for_each(|sender| accounts.came(PortId(sender)));
        // Bytes that sender 0 sent past the queue count when both have packets enqueued.
        accounts.went(PortId(0), Weight::new(1), 30_000);
        for sender in [0, 1] {
            (0..40).for_each(|head| push(&mut accounts, &mut wait_queue, sender, head, 1500));
        }
        let senders: Vec<_> = (0..40).map(|_| serve(&mut accounts, &mut wait_queue).unwrap().0).collect();
        let first = senders.iter().filter(|&&sender| sender == 0).count();
        assert!((9..=11).contains(&first), "{senders:?}");
    }

    #[test]
    fn a_sender_that_is_passed_over_saves_up_nothing() {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(1000, 10));
        (0..20).for_each(|head| push(&mut accounts, &mut wait_queue, 0, head, 60_000));
        (0..300).for_each(|head| push(&mut accounts, &mut wait_queue, 1, head, 9000));
        for now in 1..=100 {
            accounts.begin_iteration(now);
            while let Some(spot) = accounts.next_below(60_000, &wait_queue)
                && wait_queue.packet(spot).head < 2 * now as u16
            {
                accounts.served(Weight::new(1), &mut wait_queue);
            }
        }
        accounts.begin_iteration(101);
        let then: Vec<_> = (0..40).map(|_| serve(&mut accounts, &mut wait_queue).unwrap().0).collect();
        let long = then.iter().filter(|&&sender| sender == 0).count();
        assert!((4..=7).contains(&long), "{then:?}");
    }

    #[test]
    fn each_sender_keeps_its_order() {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(64, 10));
        for n in 0..20 {
            push(&mut accounts, &mut wait_queue, n % 3, n, 9000);
        }
        let mut last = [None; 3];
        while let Some((sender, head, _)) = serve(&mut accounts, &mut wait_queue) {
            assert!(last[usize::from(sender)] < Some(head));
            last[usize::from(sender)] = Some(head);
        }
        assert_eq!((accounts.waiting(), wait_queue.used()), (0, 0));
    }

    #[test]
    fn whoever_has_too_much_is_passed_over_and_keeps_its_turn() {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(64, 10));
        push(&mut accounts, &mut wait_queue, 0, 0, 60_000);
        let spot = accounts.next(&wait_queue).unwrap();
        assert_eq!(wait_queue.length(spot), 60_000);
        assert_eq!(accounts.next_below(60_000, &wait_queue), None);
        for head in 0..20 {
            push(&mut accounts, &mut wait_queue, 1, head, 9000);
        }
        for head in 0..10 {
            let spot = accounts.next_below(60_000, &wait_queue).unwrap();
            assert_eq!((wait_queue.packet(spot).source, wait_queue.packet(spot).head), (PortId(1), head));
            accounts.served(Weight::new(1), &mut wait_queue);
        }
        let then: Vec<_> = (0..8).map(|_| serve(&mut accounts, &mut wait_queue).unwrap().0).collect();
        assert_eq!(then.iter().filter(|&&sender| sender == 0).count(), 1, "{then:?}");
    }

    #[test]
    fn removing_keeps_the_rest_in_order() {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(64, 10));
        for n in 0..12 {
            push(&mut accounts, &mut wait_queue, n % 2, n, 100);
        }
        let mut taken = Vec::new();
        accounts.remove_if(&mut wait_queue, |p| p.head % 3 == 0 || p.head == 11, |p| taken.push(p.head));
        assert_eq!(accounts.waiting() as usize + taken.len(), 12);
        push(&mut accounts, &mut wait_queue, 1, 99, 100);
        let mut left: Vec<_> = std::iter::from_fn(|| serve(&mut accounts, &mut wait_queue)).map(|(_, head, _)| head).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 4, 5, 7, 8, 10, 99]);
        assert_eq!(wait_queue.used(), 0);
    }

    #[test]
    fn a_full_parking_refuses_and_recovers() {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(4, 1));
        push(&mut accounts, &mut wait_queue, 0, 0, 1);
        push(&mut accounts, &mut wait_queue, 0, 1, 1);
        assert!(wait_queue.enqueue(packet(0, 2, 1)).is_none());
        serve(&mut accounts, &mut wait_queue).unwrap();
        assert!(wait_queue.enqueue(packet(0, 2, 1)).is_some());
    }

    /// Runs senders of (weight, bytes a frame) for room of `room` bytes a poll iteration, the first sender first in each; returns
    /// their bytes.
    fn run(senders: &[(u16, u64)], room: u64, iterations: u64) -> Vec<u64> {
        let mut accounts = Accounts::default();
        let mut bytes = vec![0; senders.len()];
        // Room that was left for senders that need more of it than there was.
        let mut left = 0;
        for now in 1..=iterations {
            accounts.begin_iteration(now);
            left = (left + room).min(256 * 1024);
            for (sender, &(weight, size)) in senders.iter().enumerate() {
                let port = PortId(sender as u16);
                for _ in 0..32 {
                    if left < size || !accounts.may_send(port) {
                        accounts.came(port);
                        break;
                    }
                    left -= size;
                    bytes[sender] += size;
                    accounts.went(port, Weight::new(weight), size);
                }
            }
        }
        bytes
    }

    #[test]
    fn who_comes_first_gets_no_more() {
        let bytes = run(&[(1, 60), (1, 60_000), (1, 1500), (1, 9000)], 1500, 100_000);
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(*most - *least < 3 * LEAD_BYTES, "{bytes:?}");
    }

    #[test]
    fn bytes_follow_weights() {
        let bytes = run(&[(1, 1500), (3, 1500)], 4500, 100_000);
        assert!((bytes[1] as f64 / bytes[0] as f64 - 3.0).abs() < 0.1, "{bytes:?}");
    }

    #[test]
    fn who_does_not_come_any_more_holds_up_nobody() {
        let mut accounts = Accounts::default();
        accounts.begin_iteration(1);
        accounts.came(PortId(0));
        accounts.came(PortId(1));
        accounts.went(PortId(1), Weight::new(1), 10 * LEAD_BYTES);
        accounts.begin_iteration(2);
        assert!(!accounts.may_send(PortId(1)), "another is behind");
        accounts.came(PortId(1));
        accounts.begin_iteration(3);
        assert!(accounts.may_send(PortId(1)), "it has not come again");
        accounts.came(PortId(0));
        accounts.begin_iteration(4);
        assert!(!accounts.may_send(PortId(1)), "but is still behind when it does");
        accounts.begin_iteration(4 + in_cycles(ACCOUNT_MEMORY));
        assert!(!accounts.is_contended(), "it is over");
    }

    #[test]
    fn who_wants_little_holds_up_nobody_and_saves_up_nothing() {
        let mut accounts = Accounts::default();
        accounts.came(PortId(1));
        accounts.came(PortId(2));
        for now in 1..100 {
            accounts.begin_iteration(now);
            accounts.went(PortId(0), Weight::new(1), 60);
            accounts.clear_backlog(PortId(0));
            for sender in [1, 2] {
                assert!(accounts.may_send(PortId(sender)), "iteration {now}");
                accounts.went(PortId(sender), Weight::new(1), LEAD_BYTES);
            }
        }
        accounts.came(PortId(0));
        accounts.begin_iteration(100);
        assert!(accounts.may_send(PortId(1)), "it is not far behind when it wants more");
    }
}
