//! Fair queueing of blocked senders: frames for one receiver that backpressure left in their senders' transmit rings.
//!
//! Where drivers poll, a frame without room is left in its sender's ring, which costs less than to enqueue it at the receiver. But
//! then there is no order among senders: the first sender that is polled takes each new buffer. So for each **blocked sender** its
//! bytes are counted, by its weight, and one that is more than the **lead** ahead of the last backlogged sender gets no room until
//! that one has caught up. A sender that is not backlogged holds up no other, and starts abreast of the last backlogged one when it
//! comes again. This is start-time fair queueing (Goyal, Vin and Cheng, 1996) without the queue.
//!
//! It begins when a second sender finds no room, and ends when no blocked sender has come for a while ([`FairQueue::begin_pass`]).

use crate::id::PortId;
use crate::time::Cycles;
use crate::weight::Weight;

/// How far a sender of weight 1 may be ahead of others, in bytes: a few of the longest frames, so that it is not held up at each
/// frame.
const LEAD: u64 = 128 * 1024;

#[derive(Debug)]
struct BlockedSender {
    sender: PortId,
    /// Bytes sent, divided by its weight, in parts of [`Weight::PARTS`].
    run: u64,
    /// The poll iteration in which it came last, with or without getting room.
    seen: Cycles,
    /// It is backlogged: it had more frames then than it could send.
    wants: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FairQueue {
    blocked_senders: Vec<BlockedSender>,
    /// The least count of the senders that were backlogged in the previous poll iteration.
    last: Option<u64>,
    /// The count at which a sender starts that was not backlogged before.
    start: u64,
    /// How long the count of a sender is kept if it does not come any more.
    memory: Cycles,
    now: Cycles,
}

impl FairQueue {
    /// Begins in moment `now`, and forgets senders after so many cycles.
    pub(super) fn new(now: Cycles, memory: Cycles) -> Self {
        Self { blocked_senders: Vec::new(), last: None, start: 0, memory, now }
    }

    /// A poll iteration begins in moment `now`, unless it has already; false if no blocked sender is left.
    #[inline]
    pub(crate) fn begin_pass(&mut self, now: Cycles) -> bool {
        if self.now != now {
            let (before, memory) = (self.now, self.memory);
            let wanting =
                self.blocked_senders.iter().filter(|blocked_sender| blocked_sender.wants && blocked_sender.seen == before);
            self.last = wanting.map(|blocked_sender| blocked_sender.run).min();
            self.start = self
                .last
                .or_else(|| self.blocked_senders.iter().map(|blocked_sender| blocked_sender.run).max())
                .unwrap_or(self.start);
            self.blocked_senders.retain(|blocked_sender| now.wrapping_sub(blocked_sender.seen) < memory);
            self.now = now;
            self.begin_anew();
        }
        !self.blocked_senders.is_empty()
    }

    /// Subtracts the least count from all counts before they overflow.
    #[inline]
    fn begin_anew(&mut self) {
        if let Some(last) = self.last.filter(|&last| last > u64::MAX / 2) {
            self.blocked_senders.iter_mut().for_each(|blocked_sender| blocked_sender.run = blocked_sender.run.saturating_sub(last));
            (self.last, self.start) = (Some(0), 0);
        }
    }

    /// Whether `sender` may have room, or must let the senders behind it catch up.
    #[inline]
    pub(crate) fn may_send(&self, sender: PortId) -> bool {
        let Some(last) = self.last else { return true };
        let own = self.blocked_senders.iter().find(|blocked_sender| blocked_sender.sender == sender);
        own.is_none_or(|own| own.run <= last + LEAD * Weight::PARTS)
    }

    /// `sender` found no room: it is blocked, and backlogged.
    pub(super) fn came(&mut self, sender: PortId) {
        self.blocked_sender(sender);
    }

    /// `sender` is not backlogged any more.
    pub(crate) fn clear_backlog(&mut self, sender: PortId) {
        if let Some(blocked_sender) = self.blocked_senders.iter_mut().find(|blocked_sender| blocked_sender.sender == sender) {
            blocked_sender.wants = false;
        }
    }

    /// So many `bytes` of `sender`, with weight `weight`, were sent; it is backlogged until [`Self::clear_backlog`] is called.
    pub(super) fn went(&mut self, sender: PortId, weight: Weight, bytes: u64) {
        self.blocked_sender(sender).run += weight.divide(bytes);
    }

    /// The blocked sender, now backlogged. One that was not starts abreast of the last that was, so that idle time gives no credit.
    fn blocked_sender(&mut self, sender: PortId) -> &mut BlockedSender {
        let index = self.blocked_senders.iter().position(|blocked_sender| blocked_sender.sender == sender).unwrap_or_else(|| {
            self.blocked_senders.push(BlockedSender { sender, run: 0, seen: self.now, wants: false });
            self.blocked_senders.len() - 1
        });
        let blocked_sender = &mut self.blocked_senders[index];
        if !std::mem::replace(&mut blocked_sender.wants, true) {
            blocked_sender.run = blocked_sender.run.max(self.start);
        }
        blocked_sender.seen = self.now;
        blocked_sender
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs senders of (weight, bytes a frame) for room of `room` bytes a poll iteration, the first sender first in each; returns
    /// their bytes.
    fn run(senders: &[(u16, u64)], room: u64, passes: u64) -> Vec<u64> {
        let mut fair_queue = FairQueue::new(0, 10);
        let mut bytes = vec![0; senders.len()];
        // Room that was left for senders that need more of it than there was.
        let mut left = 0;
        for now in 1..=passes {
            fair_queue.begin_pass(now);
            left = (left + room).min(256 * 1024);
            for (sender, &(weight, size)) in senders.iter().enumerate() {
                let port = PortId(sender as u16);
                for _ in 0..32 {
                    if left < size || !fair_queue.may_send(port) {
                        fair_queue.came(port);
                        break;
                    }
                    left -= size;
                    bytes[sender] += size;
                    fair_queue.went(port, Weight::new(weight), size);
                }
            }
        }
        bytes
    }

    #[test]
    fn who_comes_first_gets_no_more() {
        let bytes = run(&[(1, 60), (1, 60_000), (1, 1500), (1, 9000)], 1500, 100_000);
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(*most - *least < 3 * LEAD, "{bytes:?}");
    }

    #[test]
    fn bytes_follow_weights() {
        let bytes = run(&[(1, 1500), (3, 1500)], 4500, 100_000);
        assert!((bytes[1] as f64 / bytes[0] as f64 - 3.0).abs() < 0.1, "{bytes:?}");
    }

    #[test]
    fn who_does_not_come_any_more_holds_up_nobody() {
        let mut fair_queue = FairQueue::new(0, 10);
        fair_queue.begin_pass(1);
        fair_queue.came(PortId(0));
        fair_queue.went(PortId(1), Weight::new(1), 10 * LEAD);
        fair_queue.begin_pass(2);
        assert!(!fair_queue.may_send(PortId(1)), "another is behind");
        fair_queue.came(PortId(1));
        fair_queue.begin_pass(3);
        assert!(fair_queue.may_send(PortId(1)), "it has not come again");
        fair_queue.came(PortId(0));
        fair_queue.begin_pass(4);
        assert!(!fair_queue.may_send(PortId(1)), "but is still behind when it does");
        assert!(!fair_queue.begin_pass(100), "it is over");
    }

    #[test]
    fn who_wants_little_holds_up_nobody_and_saves_up_nothing() {
        let mut fair_queue = FairQueue::new(0, 10);
        fair_queue.came(PortId(1));
        fair_queue.came(PortId(2));
        for now in 1..100 {
            fair_queue.begin_pass(now);
            fair_queue.went(PortId(0), Weight::new(1), 60);
            fair_queue.clear_backlog(PortId(0));
            for sender in [1, 2] {
                assert!(fair_queue.may_send(PortId(sender)), "pass {now}");
                fair_queue.went(PortId(sender), Weight::new(1), LEAD);
            }
        }
        fair_queue.came(PortId(0));
        fair_queue.begin_pass(100);
        assert!(fair_queue.may_send(PortId(1)), "it is not far behind when it wants more");
    }
}
