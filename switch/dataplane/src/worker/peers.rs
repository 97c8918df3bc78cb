//! Inter-worker queues between this worker and the others.
//!
//! Packets go to the worker that owns the receiver's virtqueue. Their **returns** come back to the sender's worker, which completes
//! the descriptor chains, so that only the owner of a virtqueue ever writes its used ring.
//!
//! Quota: a sender has no more packets in a queue than there is room left, a [`DynamicThreshold`] with a factor of 1. So no sender
//! keeps the way to a slow worker from others; frames without room wait in their rings (backpressure).

#![expect(clippy::indexing_slicing, reason = "workers' numbers below their count, when they are connected")]

use std::collections::VecDeque;
use std::sync::Arc;

use super::Mailbox;
use crate::handover::{Consumer, Producer, queue};
use crate::id::{PortId, Slot};
use crate::packet::Packet;
use crate::threshold::DynamicThreshold;
use crate::tuning::PACKETS;

/// Returns in flight between two workers, one way: more packets may be enqueued there than are on their way.
const RETURNS: usize = 2 * PACKETS;

/// Messages between workers.
#[derive(Debug)]
pub(super) enum Message {
    /// Deliver this to the port.
    Deliver(Packet, PortId, Slot),
    /// Deliver this to all ports of the source's segment that the other worker serves.
    Flood(Packet),
    /// Remove every enqueued packet of this source slot of the sending worker.
    Recall(Slot),
}

/// A receiver's worker reports on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Return {
    /// Slot of the source at the worker that owns it.
    pub slot: Slot,
    /// Head of the descriptor chain.
    pub head: u16,
    /// The report.
    pub what: Back,
}

/// See [`Return`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// One holder is done with it; with the receiver for which it counted against the ring's quota, see [`Packet::share_of`].
    Done(Option<PortId>),
    /// So many more holders: receivers of a flooded frame at which it was enqueued.
    Held(u16),
}

#[derive(Debug)]
struct PeerQueues {
    packets_out: Producer<Message>,
    packets_in: Consumer<Message>,
    returns_out: Producer<Return>,
    returns_in: Consumer<Return>,
    /// Senders of the packets in the outgoing queue, the oldest first; `None` for recalls.
    senders: VecDeque<Option<PortId>>,
    /// Packets of each port there.
    held: Vec<u16>,
    /// Returns that found the queue full. It cannot grow without bound: there are no more returns than packets in flight.
    backlog: VecDeque<Return>,
    /// Recalls not yet sent: at most one a source.
    recalls: VecDeque<Slot>,
    mailbox: Arc<Mailbox>,
    /// A message or return was sent since the other worker was last woken.
    told: bool,
}

/// One worker's ends of all inter-worker queues, by the other worker's index.
#[derive(Debug)]
pub struct Links(Vec<Option<PeerQueues>>);

/// Makes the inter-worker queues between workers with these mailboxes, each with each.
pub fn links(mailboxes: &[Arc<Mailbox>]) -> Vec<Links> {
    let count = mailboxes.len();
    let mut all: Vec<Vec<Option<PeerQueues>>> = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    for a in 0..count {
        for b in a + 1..count {
            let ((to_b, at_b), (to_a, at_a)) = (queue(PACKETS), queue(PACKETS));
            let ((back_b, for_b), (back_a, for_a)) = (queue(RETURNS), queue(RETURNS));
            all[a][b] = Some(PeerQueues::new(to_b, at_a, back_b, for_a, &mailboxes[b]));
            all[b][a] = Some(PeerQueues::new(to_a, at_b, back_a, for_b, &mailboxes[a]));
        }
    }
    all.into_iter().map(Links).collect()
}

impl PeerQueues {
    fn new(
        packets_out: Producer<Message>,
        packets_in: Consumer<Message>,
        returns_out: Producer<Return>,
        returns_in: Consumer<Return>,
        mailbox: &Arc<Mailbox>,
    ) -> Self {
        let mailbox = Arc::clone(mailbox);
        Self {
            packets_out,
            packets_in,
            returns_out,
            returns_in,
            senders: VecDeque::with_capacity(PACKETS),
            held: Vec::new(),
            backlog: VecDeque::new(),
            recalls: VecDeque::new(),
            mailbox,
            told: false,
        }
    }

    /// Whether another packet of `sender` may go out now.
    fn has_room(&mut self, sender: PortId) -> bool {
        if !self.seems_to_have_room(sender) {
            self.forget_taken();
        }
        self.seems_to_have_room(sender)
    }

    fn seems_to_have_room(&self, sender: PortId) -> bool {
        let free = PACKETS.saturating_sub(self.senders.len()) as u64;
        self.held.get(sender.index()).is_some_and(|&held| DynamicThreshold::ONE.admits(held.into(), free))
    }

    /// Releases the quota of the packets that the other worker has taken.
    fn forget_taken(&mut self) {
        let untaken = self.packets_out.untaken();
        for sender in self.senders.drain(..self.senders.len().saturating_sub(untaken)).flatten() {
            if let Some(held) = self.held.get_mut(sender.index()) {
                *held = held.saturating_sub(1);
            }
        }
    }

    fn push(&mut self, message: Message, sender: Option<PortId>) -> bool {
        if self.senders.len() == PACKETS {
            self.forget_taken();
        }
        let pushed = self.packets_out.push(message).is_ok();
        if pushed {
            self.senders.push_back(sender);
            if let Some(held) = sender.and_then(|sender| self.held.get_mut(sender.index())) {
                *held += 1;
            }
        }
        pushed
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peers {
    links: Vec<Option<PeerQueues>>,
    /// Indices of the other workers.
    pub others: Vec<u8>,
}

impl Peers {
    pub(super) fn new(links: Links) -> Self {
        let links = links.0;
        let others = links.iter().enumerate().filter(|(_, link)| link.is_some()).map(|(n, _)| n as u8).collect();
        Self { links, others }
    }

    /// There are up to `ports` ports now. Packets in flight of a port that is gone still count for its number until they arrive.
    pub(super) fn make_room(&mut self, ports: usize) {
        self.links.iter_mut().flatten().for_each(|link| link.held.resize(ports.max(link.held.len()), 0));
    }

    /// True if `worker` can take another packet of `sender` now, within the sender's quota of the queue; also if there is no such
    /// worker, so that nothing waits for it.
    pub(super) fn has_room(&mut self, worker: u8, sender: PortId) -> bool {
        let Some(Some(link)) = self.links.get_mut(usize::from(worker)) else { return true };
        link.has_room(sender)
    }

    /// The first worker that cannot take another packet of `sender` now.
    pub(super) fn first_without_room(&mut self, sender: PortId) -> Option<u8> {
        let links = self.links.iter_mut().enumerate().filter_map(|(worker, link)| Some((worker as u8, link.as_mut()?)));
        links.filter_map(|(worker, link)| (!link.has_room(sender)).then_some(worker)).next()
    }

    /// Sends `message`, which has a packet of `sender`, to `worker`; false if there is no room or no such worker.
    pub(super) fn send(&mut self, worker: u8, message: Message, sender: PortId) -> bool {
        let Some(Some(link)) = self.links.get_mut(usize::from(worker)) else { return false };
        link.told = true;
        link.has_room(sender) && link.push(message, Some(sender))
    }

    /// Recalls the packets of source `slot`; if there is no room now, as soon as there is.
    pub(super) fn recall(&mut self, worker: u8, slot: Slot) {
        if let Some(Some(link)) = self.links.get_mut(usize::from(worker)) {
            link.told = true;
            link.recalls.push_back(slot);
        }
    }

    /// Sends a return to `worker`, now or when there is room.
    pub(super) fn give_back(&mut self, worker: u8, back: Return) {
        if let Some(Some(link)) = self.links.get_mut(usize::from(worker)) {
            link.told = true;
            link.backlog.push_back(back);
        }
    }

    /// Takes the next message of `worker`.
    pub(super) fn receive(&mut self, worker: u8) -> Option<Message> {
        self.links.get_mut(usize::from(worker))?.as_mut()?.packets_in.pop()
    }

    /// Takes the next return of any worker.
    pub(super) fn receive_return(&mut self) -> Option<Return> {
        self.links.iter_mut().flatten().find_map(|link| link.returns_in.pop())
    }

    /// True if another worker sent a message or return that was not taken.
    pub(super) fn have_news(&mut self) -> bool {
        self.links.iter_mut().flatten().any(|link| !link.packets_in.is_empty() || !link.returns_in.is_empty())
    }

    /// True while returns wait for room.
    pub(super) fn have_backlog(&self) -> bool {
        self.links.iter().flatten().any(|link| !link.backlog.is_empty() || !link.recalls.is_empty())
    }

    /// Sends the recalls and returns that have room, and wakes the sleeping workers that were sent something, now or since the last
    /// time; returns how many it woke.
    pub(super) fn flush(&mut self) -> u64 {
        let mut woken = 0;
        for link in self.links.iter_mut().flatten() {
            while !link.packets_out.is_full()
                && let Some(slot) = link.recalls.pop_front()
            {
                link.push(Message::Recall(slot), None);
                link.told = true;
            }
            while let Some(back) = link.backlog.front() {
                if link.returns_out.push(*back).is_err() {
                    break;
                }
                link.backlog.pop_front();
                link.told = true;
            }
            if std::mem::take(&mut link.told) {
                woken += u64::from(link.mailbox.wake());
            }
        }
        woken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_went_to_sleep_is_woken_for_what_found_room_only_later() {
        let mailboxes = [Mailbox::new().unwrap(), Mailbox::new().unwrap()];
        let mut all: Vec<Peers> = links(&mailboxes).into_iter().map(Peers::new).collect();
        let mut other = all.pop().unwrap();
        let mut own = all.pop().unwrap();
        for head in 0..=RETURNS as u16 {
            own.give_back(1, Return { slot: Slot::default(), head, what: Back::Done(None) });
        }
        for left in [RETURNS, 1] {
            mailboxes[1].sleep.announce();
            assert_eq!(own.flush(), 1, "{left} to come");
            assert_eq!(std::iter::from_fn(|| other.receive_return()).count(), left);
        }
        assert!(!own.have_backlog());
    }
}
