//! Peers: the queues between this worker and the others.
//!
//! Parcels go to the worker that owns the receiver's ring; their **returns** come back, so that only the owner of a ring ever writes it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Mailbox;
use crate::handover::{Consumer, Producer, queue};
use crate::parcel::Parcel;
use crate::port::PortId;

/// Parcels in flight between two workers, one way.
const PARCELS: usize = 512;
const RETURNS: usize = 1024;

/// What one worker tells another.
#[derive(Debug)]
pub(super) enum Message {
    /// Deliver this to the port.
    Deliver(Parcel, PortId, u16),
    /// Deliver this to all ports of the source's segment that the other worker serves.
    Flood(Parcel),
    /// Let go of every parcel of this source slot of the teller.
    Recall(u16),
}

/// What a receiver's side tells of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Return {
    /// Slot of the source at the worker that owns it.
    pub slot: u16,
    /// Head of the chain.
    pub head: u16,
    /// What it tells.
    pub what: Back,
}

/// See [`Return`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// One party is done with it, and whose share it took: see [`Parcel::share_of`].
    Done(Option<PortId>),
    /// So many more hold it: receivers of a flooded frame for whom it waits.
    Held(u16),
}

#[derive(Debug)]
struct Link {
    parcels_out: Producer<Message>,
    parcels_in: Consumer<Message>,
    returns_out: Producer<Return>,
    returns_in: Consumer<Return>,
    /// Returns that found the queue full; no more than parcels can be out or wait here, so it cannot grow without bound.
    backlog: VecDeque<Return>,
    /// Recalls not yet sent: at most one a source.
    recalls: VecDeque<u16>,
    mailbox: Arc<Mailbox>,
    /// Something was sent since the other was last woken.
    told: bool,
}

/// One worker's ends of all links, by the other's index.
#[derive(Debug)]
pub struct Links(Vec<Option<Link>>);

/// Connects workers with these mailboxes, each with each.
pub fn links(mailboxes: &[Arc<Mailbox>]) -> Vec<Links> {
    let count = mailboxes.len();
    let mut all: Vec<Vec<Option<Link>>> = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    for a in 0..count {
        for b in a + 1..count {
            let ((to_b, at_b), (to_a, at_a)) = (queue(PARCELS), queue(PARCELS));
            let ((back_b, for_b), (back_a, for_a)) = (queue(RETURNS), queue(RETURNS));
            all[a][b] = Some(Link::new(to_b, at_a, back_b, for_a, &mailboxes[b]));
            all[b][a] = Some(Link::new(to_a, at_b, back_a, for_b, &mailboxes[a]));
        }
    }
    all.into_iter().map(Links).collect()
}

impl Link {
    fn new(
        parcels_out: Producer<Message>,
        parcels_in: Consumer<Message>,
        returns_out: Producer<Return>,
        returns_in: Consumer<Return>,
        mailbox: &Arc<Mailbox>,
    ) -> Self {
        let mailbox = Arc::clone(mailbox);
        Self {
            parcels_out,
            parcels_in,
            returns_out,
            returns_in,
            backlog: VecDeque::new(),
            recalls: VecDeque::new(),
            mailbox,
            told: false,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peers {
    links: Vec<Option<Link>>,
    /// Indices of the other workers.
    pub others: Vec<u8>,
}

impl Peers {
    pub(super) fn new(links: Links) -> Self {
        let others = links.0.iter().enumerate().filter(|(_, link)| link.is_some()).map(|(n, _)| n as u8).collect();
        Self { links: links.0, others }
    }

    /// True if every peer can take another `count` messages.
    #[inline]
    pub(super) fn have_room(&mut self, count: usize) -> bool {
        self.links.iter_mut().flatten().all(|link| link.parcels_out.has_room(count))
    }

    /// Sends `message` to `worker`; false if there is no room or no such worker.
    pub(super) fn send(&mut self, worker: u8, message: Message) -> bool {
        let Some(Some(link)) = self.links.get_mut(usize::from(worker)) else { return false };
        link.told = true;
        link.parcels_out.push(message).is_ok()
    }

    /// Calls back the parcels of source `slot`; if there is no room now, as soon as there is.
    pub(super) fn recall(&mut self, worker: u8, slot: u16) {
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
        self.links.get_mut(usize::from(worker))?.as_mut()?.parcels_in.pop()
    }

    /// Takes the next return of any worker.
    pub(super) fn receive_return(&mut self) -> Option<Return> {
        self.links.iter_mut().flatten().find_map(|link| link.returns_in.pop())
    }

    /// True if another worker sent something that was not taken.
    pub(super) fn have_news(&mut self) -> bool {
        self.links.iter_mut().flatten().any(|link| !link.parcels_in.is_empty() || !link.returns_in.is_empty())
    }

    /// True while returns wait for room.
    pub(super) fn have_backlog(&self) -> bool {
        self.links.iter().flatten().any(|link| !link.backlog.is_empty() || !link.recalls.is_empty())
    }

    /// Sends what has room and wakes the sleepers among those who were sent something; returns how many it woke.
    pub(super) fn flush(&mut self) -> u64 {
        let mut woken = 0;
        for link in self.links.iter_mut().flatten() {
            while !link.parcels_out.is_full()
                && let Some(slot) = link.recalls.pop_front()
            {
                let _ = link.parcels_out.push(Message::Recall(slot));
            }
            while let Some(back) = link.backlog.front() {
                if link.returns_out.push(*back).is_err() {
                    break;
                }
                link.backlog.pop_front();
            }
            if std::mem::take(&mut link.told) {
                woken += u64::from(link.mailbox.wake());
            }
        }
        woken
    }
}
