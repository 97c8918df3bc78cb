//! The bill: what was done and for whom, until the time that all of it took is charged.
//!
//! Each sender pays what its own frames cost, by their effort where several senders' frames were done together. So where the worker's time is short
//! it is time that senders share, whatever they send and to whom: one of small frames gets fewer bytes through than one of large ones, and
//! costs the others none ("Performance anomaly of 802.11b", Heusse and others, 2003, tells what equal bytes would do). Where a
//! receiver is what is short, its turns share its bytes ([`crate::schedule`]).

use super::effort;
use crate::frame::SHORTEST;
use crate::id::PortId;

/// Frames of one sender to one receiver.
#[derive(Clone, Copy, Debug)]
struct Item {
    sender: PortId,
    /// `None` if they went nowhere, or everywhere.
    receiver: Option<PortId>,
    effort: u64,
    /// Those of frames shorter than the shortest count as that.
    bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Bill {
    items: Vec<Item>,
    effort: u64,
}

impl Bill {
    /// Enters `frames` of `sender`, segments counted one by one, that carried `bytes` to `receiver`, if they went to one.
    #[inline]
    pub fn enter(&mut self, sender: PortId, receiver: Option<PortId>, frames: u64, bytes: u64) {
        let counted = bytes.max(frames * u64::from(SHORTEST));
        self.add(Item { sender, receiver, effort: frames * effort::FRAME + bytes, bytes: counted });
    }

    /// Enters a frame of `sender` of so many `bytes` that waits for `receiver`. They count here, where none was copied, as they do when it is
    /// delivered: a frame that waits costs its sender at both, and by none of its bytes alone a large one would seem as dear as a small one.
    pub fn enter_waiting(&mut self, sender: PortId, receiver: PortId, bytes: u64) {
        let bytes = bytes.max(SHORTEST.into());
        self.add(Item { sender, receiver: Some(receiver), effort: effort::FRAME, bytes });
    }

    /// Enters what was done for `port`, be it to no avail: what that takes says nothing of what its bytes cost.
    pub fn enter_effort(&mut self, port: PortId, effort: u64) {
        self.add(Item { sender: port, receiver: None, effort, bytes: 0 });
    }

    /// Whether nothing was entered.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Those who got something, or will.
    pub fn receivers(&self) -> impl Iterator<Item = PortId> {
        self.items.iter().filter_map(|item| item.receiver)
    }

    /// Whether it is for more than one receiver.
    #[inline]
    pub fn is_mixed(&self) -> bool {
        self.items.len() > 1
    }

    #[inline]
    fn add(&mut self, item: Item) {
        self.effort += item.effort;
        match self.items.last_mut() {
            Some(last) if (last.sender, last.receiver) == (item.sender, item.receiver) => {
                last.effort += item.effort;
                last.bytes += item.bytes;
            }
            _ => self.items.push(item),
        }
    }

    /// Settles it, all of which took so many `cycles`: tells `charge` what each sender's part cost, and of how many
    /// bytes it was.
    #[inline]
    pub fn settle(&mut self, cycles: u64, mut charge: impl FnMut(PortId, u64, u64)) {
        if let [item] = self.items[..] {
            charge(item.sender, cycles, item.bytes);
        } else {
            let each = cycles as f64 / self.effort.max(1) as f64;
            self.items.iter().for_each(|item| charge(item.sender, (each * item.effort as f64) as u64, item.bytes));
        }
        self.items.clear();
        self.effort = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_pays_all_and_several_pay_by_their_effort() {
        let mut bill = Bill::default();
        bill.enter(PortId(3), Some(PortId(9)), 2, 3000);
        bill.enter(PortId(3), Some(PortId(9)), 1, 60);
        let mut paid = Vec::new();
        bill.settle(5000, |port, cost, bytes| paid.push((port, cost, bytes)));
        assert_eq!(paid, [(PortId(3), 5000, 3060)]);
        assert!(bill.is_empty());
        bill.enter(PortId(0), Some(PortId(9)), 1, effort::FRAME);
        bill.enter(PortId(1), None, 1, 0);
        bill.enter_effort(PortId(2), effort::FRAME);
        paid.clear();
        bill.settle(4000, |port, cost, bytes| paid.push((port, cost, bytes)));
        assert_eq!(paid, [(PortId(0), 2000, effort::FRAME), (PortId(1), 1000, 60), (PortId(2), 1000, 0)]);
    }

    #[test]
    fn a_frame_that_waits_counts_by_its_bytes_though_none_is_copied() {
        let mut bill = Bill::default();
        bill.enter_waiting(PortId(0), PortId(9), 60_000);
        bill.enter_waiting(PortId(1), PortId(9), 40);
        let mut paid = Vec::new();
        bill.settle(2000, |port, cost, bytes| paid.push((port, cost, bytes)));
        assert_eq!(paid, [(PortId(0), 1000, 60_000), (PortId(1), 1000, 60)]);
    }
}
