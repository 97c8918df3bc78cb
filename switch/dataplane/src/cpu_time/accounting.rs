//! Accounting: work done for each sender, until the time that all of it took is charged.
//!
//! Each sender pays the cost of its own frames, in proportion to their work units where frames of several senders were served
//! together. So where the worker's time is scarce, senders share that time, independent of frame sizes and receivers: a sender of
//! small frames gets fewer bytes through than one of large frames, and costs the others nothing ("Performance anomaly of 802.11b",
//! Heusse and others, 2003, shows the effect of equal bytes instead). Where a receiver's buffers are scarce, fair queueing shares
//! its bytes ([`crate::egress`]).

use super::work_units;
use crate::ablation;
use crate::frame::SHORTEST;
use crate::id::PortId;

/// Frames of one sender to one receiver.
#[derive(Clone, Copy, Debug)]
struct Item {
    sender: PortId,
    /// `None` if they were dropped or flooded.
    receiver: Option<PortId>,
    work_units: u64,
    /// A frame below the minimum frame size counts as one of that size.
    bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Accounting {
    items: Vec<Item>,
    work_units: u64,
}

impl Accounting {
    /// Enters `frames` of `sender`, segments counted one by one, that carried `bytes` to `receiver`, if they went to one.
    #[inline]
    pub fn enter(&mut self, sender: PortId, receiver: Option<PortId>, frames: u64, bytes: u64) {
        let counted = bytes.max(frames * u64::from(SHORTEST));
        self.add(Item { sender, receiver, work_units: frames * work_units::FRAME + bytes, bytes: counted });
    }

    /// Enters a frame of `sender` of so many `bytes` that was enqueued for `receiver`. Its bytes count here, though none was
    /// copied, and again when it is delivered: an enqueued frame costs its sender at both, and without its bytes a large frame
    /// would seem as expensive per byte as a small one.
    pub(crate) fn enter_waiting(&mut self, sender: PortId, receiver: PortId, bytes: u64) {
        let bytes = bytes.max(SHORTEST.into());
        self.add(Item { sender, receiver: Some(receiver), work_units: work_units::FRAME, bytes });
    }

    /// Enters work for `port` that moved no bytes, perhaps in vain: it says nothing about the cost of bytes.
    pub(crate) fn enter_work_units(&mut self, port: PortId, work_units: u64) {
        self.add(Item { sender: port, receiver: None, work_units, bytes: 0 });
    }

    /// Whether the accounting is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Receivers of frames, enqueued ones included.
    pub fn receivers(&self) -> impl Iterator<Item = PortId> {
        self.items.iter().filter_map(|item| item.receiver)
    }

    /// Whether there is more than one entry, so frames of more than one sender or receiver.
    #[inline]
    pub(crate) fn is_mixed(&self) -> bool {
        self.items.len() > 1
    }

    #[inline]
    fn add(&mut self, item: Item) {
        if !ablation::FAIRNESS {
            return;
        }
        self.work_units += item.work_units;
        match self.items.last_mut() {
            Some(last) if (last.sender, last.receiver) == (item.sender, item.receiver) => {
                last.work_units += item.work_units;
                last.bytes += item.bytes;
            }
            _ => self.items.push(item),
        }
    }

    /// Settles the accounting, of which all work took so many `cycles`: calls `charge` with each sender, its part of the cost, and
    /// its bytes.
    #[inline]
    pub fn settle(&mut self, cycles: u64, mut charge: impl FnMut(PortId, u64, u64)) {
        if let [item] = self.items[..] {
            charge(item.sender, cycles, item.bytes);
        } else {
            let each = cycles as f64 / self.work_units.max(1) as f64;
            self.items.iter().for_each(|item| charge(item.sender, (each * item.work_units as f64) as u64, item.bytes));
        }
        self.items.clear();
        self.work_units = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_pays_all_and_several_pay_by_their_effort() {
        let mut accounting = Accounting::default();
        accounting.enter(PortId(3), Some(PortId(9)), 2, 3000);
        accounting.enter(PortId(3), Some(PortId(9)), 1, 60);
        let mut paid = Vec::new();
        accounting.settle(5000, |port, cost, bytes| paid.push((port, cost, bytes)));
        assert_eq!(paid, [(PortId(3), 5000, 3060)]);
        assert!(accounting.is_empty());
        accounting.enter(PortId(0), Some(PortId(9)), 1, work_units::FRAME);
        accounting.enter(PortId(1), None, 1, 0);
        accounting.enter_work_units(PortId(2), work_units::FRAME);
        paid.clear();
        accounting.settle(4000, |port, cost, bytes| paid.push((port, cost, bytes)));
        assert_eq!(paid, [(PortId(0), 2000, work_units::FRAME), (PortId(1), 1000, 60), (PortId(2), 1000, 0)]);
    }

    #[test]
    fn a_frame_that_waits_counts_by_its_bytes_though_none_is_copied() {
        let mut accounting = Accounting::default();
        accounting.enter_waiting(PortId(0), PortId(9), 60_000);
        accounting.enter_waiting(PortId(1), PortId(9), 40);
        let mut paid = Vec::new();
        accounting.settle(2000, |port, cost, bytes| paid.push((port, cost, bytes)));
        assert_eq!(paid, [(PortId(0), 1000, 60_000), (PortId(1), 1000, 60)]);
    }
}
