//! Prices: what a sender pays of a worker's time for its frames to each receiver.
//!
//! All senders to one receiver that want more than they get pay the same for a byte: what bytes to it cost lately, whichever of them sent
//! them. So when the worker's time is short they get equal bytes of that receiver, by their weights, whatever their frames' sizes; while between
//! receivers it is time that is shared, for all senders to a receiver together pay what serving it really cost. Whoever wants no more pays
//! what its own frames cost, for its few bytes say nothing of the others'.
//!
//! In order: a turn or a receiver's waiting frames are entered in a **bill**, an item for each receiver in a row; the bill is **settled**
//! with the time that all of it took.

use crate::frame::SHORTEST;
use crate::id::PortId;
use crate::worker::effort;

/// Bytes after which what was before counts half: some turns of every sender.
const MEMORY: f64 = 8.0 * 1024.0 * 1024.0;

/// Frames of one sender to one receiver.
#[derive(Clone, Copy, Debug)]
struct Item {
    sender: PortId,
    /// `None` if they went nowhere, or everywhere.
    receiver: Option<PortId>,
    /// Bytes by the sender's weight. None for frames that will wait: they pay when they are served.
    bytes: f64,
    effort: u64,
    wants_more: bool,
}

/// What was done, and for whom.
#[derive(Debug, Default)]
pub(super) struct Bill {
    items: Vec<Item>,
    effort: u64,
}

impl Bill {
    /// Enters `frames` of `sender`, segments counted one by one, whose weight is `weight`, that carried `bytes` to `receiver`, if they went to
    /// one.
    #[inline]
    pub(super) fn enter(&mut self, sender: PortId, weight: u16, receiver: Option<PortId>, frames: u64, bytes: u64) {
        let effort = frames * effort::FRAME + bytes;
        let bytes = bytes.max(frames * u64::from(SHORTEST));
        self.add(Item { sender, receiver, bytes: bytes as f64 / f64::from(weight), effort, wants_more: true });
    }

    /// Enters a frame of `sender` that will wait for `receiver`.
    pub(super) fn enter_waiting(&mut self, sender: PortId, receiver: PortId) {
        self.add(Item { sender, receiver: Some(receiver), bytes: 0.0, effort: effort::FRAME, wants_more: true });
    }

    /// Enters what was done for `port`, be it to no avail.
    pub(super) fn enter_effort(&mut self, port: PortId, effort: u64) {
        self.add(Item { sender: port, receiver: None, bytes: 0.0, effort, wants_more: false });
    }

    /// Whether nothing was entered.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Those who got something, or will.
    pub(super) fn receivers(&self) -> impl Iterator<Item = PortId> {
        self.items.iter().filter_map(|item| item.receiver)
    }

    /// Whether it is for more than one receiver.
    #[inline]
    pub(super) fn is_mixed(&self) -> bool {
        self.items.len() > 1
    }

    /// Notes whose senders want no more than they got of a receiver: those for whom `is_content` says so.
    #[inline]
    pub(super) fn note_content(&mut self, mut is_content: impl FnMut(PortId, PortId) -> bool) {
        for item in &mut self.items {
            item.wants_more = item.receiver.is_some_and(|receiver| !is_content(item.sender, receiver));
        }
    }

    #[inline]
    fn add(&mut self, item: Item) {
        self.effort += item.effort;
        match self.items.last_mut() {
            Some(last) if (last.sender, last.receiver) == (item.sender, item.receiver) => {
                last.bytes += item.bytes;
                last.effort += item.effort;
            }
            _ => self.items.push(item),
        }
    }
}

/// What bytes to one receiver cost lately.
#[derive(Clone, Copy, Debug, Default)]
struct Price {
    cycles: f64,
    bytes: f64,
    /// Who sent last, and how many bytes since somebody else did.
    sender: PortId,
    alone: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Prices {
    /// By receiver.
    of: Vec<Price>,
}

impl Prices {
    /// `port` comes, and there are up to `ports` now.
    pub(super) fn enter(&mut self, port: PortId, ports: usize) {
        self.of.resize(ports.max(self.of.len()), Price::default());
        self.of[port.index()] = Price::default();
    }

    /// Settles `bill`, all of which took so many `cycles`: tells `charge` what each sender has to pay, and what its part really cost.
    #[inline]
    pub(super) fn settle(&mut self, bill: &mut Bill, cycles: u64, mut charge: impl FnMut(PortId, u64, u64)) {
        if let [item] = bill.items[..] {
            charge(item.sender, self.pay(&item, cycles as f64) as u64, cycles);
        } else {
            let each = cycles as f64 / bill.effort.max(1) as f64;
            for item in &bill.items {
                let cost = each * item.effort as f64;
                charge(item.sender, self.pay(item, cost) as u64, cost as u64);
            }
        }
        bill.items.clear();
        bill.effort = 0;
    }

    #[inline]
    fn pay(&mut self, item: &Item, cost: f64) -> f64 {
        let Some(receiver) = item.receiver.filter(|_| item.wants_more) else { return cost };
        let price = &mut self.of[receiver.index()];
        if price.bytes > MEMORY {
            price.bytes /= 2.0;
            price.cycles /= 2.0;
        }
        if price.sender != item.sender {
            (price.sender, price.alone) = (item.sender, 0.0);
        }
        price.alone += item.bytes;
        // Who has been alone for longer than is remembered pays what it costs; so does everybody before there is a price.
        let pays = if price.alone > MEMORY || price.bytes == 0.0 { cost } else { item.bytes * price.cycles / price.bytes };
        price.bytes += item.bytes;
        price.cycles += cost;
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECEIVER: Option<PortId> = Some(PortId(9));

    fn prices() -> Prices {
        let mut prices = Prices::default();
        (0..10).for_each(|port| prices.enter(PortId(port), 10));
        prices
    }

    /// Enters and settles a batch; returns what was paid.
    fn pay(
        prices: &mut Prices,
        (sender, weight): (u16, u16),
        receiver: Option<PortId>,
        (frames, bytes): (u64, u64),
        cycles: u64,
    ) -> u64 {
        let mut bill = Bill::default();
        bill.enter(PortId(sender), weight, receiver, frames, bytes);
        let mut paid = 0;
        prices.settle(&mut bill, cycles, |port, pays, cost| {
            assert_eq!((port, cost), (PortId(sender), cycles));
            paid = pays;
        });
        paid
    }

    #[test]
    fn senders_to_one_receiver_pay_alike_for_a_byte() {
        let mut prices = prices();
        let (mut small, mut large) = ((0, 0), (0, 0));
        for _ in 0..100_000 {
            small.0 += pay(&mut prices, (0, 1), RECEIVER, (32, 32 * 60), 2400);
            small.1 += 2400;
            large.0 += pay(&mut prices, (1, 1), RECEIVER, (1, 32 * 60), 200);
            large.1 += 200;
        }
        let (paid, cost) = ((small.0 + large.0) as f64, f64::from(small.1 + large.1));
        assert!((small.0 as f64 / large.0 as f64 - 1.0).abs() < 0.02, "{small:?} {large:?}");
        assert!((paid / cost - 1.0).abs() < 0.02, "all together pay what it cost");
    }

    #[test]
    fn weights_make_bytes_cheaper() {
        let mut prices = prices();
        let (mut one, mut three) = (0, 0);
        for _ in 0..100_000 {
            one += pay(&mut prices, (0, 1), RECEIVER, (1, 1500), 300);
            three += pay(&mut prices, (1, 3), RECEIVER, (3, 4500), 900);
        }
        assert!((one as f64 / three as f64 - 1.0).abs() < 0.02, "{one} {three}");
    }

    #[test]
    fn who_is_alone_with_a_receiver_pays_what_it_costs() {
        let mut prices = prices();
        for (sender, cycles) in [(0, 2400), (1, 200)] {
            let paid: u64 = (0..1000).map(|_| pay(&mut prices, (sender, 1), Some(PortId(sender + 5)), (32, 1920), cycles)).sum();
            assert!(paid.abs_diff(1000 * cycles) <= 1000, "{paid}");
        }
    }

    #[test]
    fn who_wants_no_more_pays_what_it_costs_and_makes_nothing_dearer() {
        let mut prices = prices();
        let mut bill = Bill::default();
        for _ in 0..1000 {
            bill.enter(PortId(0), 1, RECEIVER, 1, 60);
            bill.note_content(|_, _| true);
            prices.settle(&mut bill, 2000, |_, pays, cost| assert_eq!((pays, cost), (2000, 2000)));
        }
        assert_eq!(pay(&mut prices, (1, 1), RECEIVER, (32, 48_000), 3000), 3000);
    }

    #[test]
    fn what_waits_pays_when_it_is_served() {
        let mut prices = prices();
        let mut bill = Bill::default();
        bill.enter_waiting(PortId(0), PortId(9));
        bill.enter_waiting(PortId(0), PortId(9));
        bill.enter(PortId(0), 1, None, 2, 0);
        let mut paid = Vec::new();
        prices.settle(&mut bill, 4000, |_, pays, cost| paid.push((pays, cost)));
        assert_eq!(paid, [(2000, 2000); 2], "there is no price yet");
        pay(&mut prices, (0, 1), RECEIVER, (1, 1000), 1000);
        assert_eq!(pay(&mut prices, (0, 1), RECEIVER, (1, 1000), 1000), 3000, "its own bytes, at what all of it cost");
    }
}
