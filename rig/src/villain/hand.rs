//! A villain's hand in a ring: everything that a driver writes, written as one likes.

use crate::guest::{Queue, ToyGuest};
use crate::memory::GuestMemory;
use crate::ring::{DESC_INDIRECT, DESC_NEXT, Descriptor, SharedRing};

use super::{Traces, VillainError};

/// Bytes of the virtio-net header.
pub(super) const HEADER: usize = 12;
/// An address that lies in no guest's memory.
pub(super) const NOWHERE: u64 = 0x7fff_dead_0000;

/// A hand in one ring. The driver's own half does not know its writes; [`Hand::leave`] tells it at the end.
pub struct Hand {
    memory: GuestMemory,
    ring: SharedRing,
    index: u16,
    offered: u16,
    used_before: u16,
}

impl Hand {
    /// A hand in the guest's first transmit queue.
    pub fn transmit(guest: &mut ToyGuest) -> Self {
        let memory = guest.memory().clone();
        Self::of(memory, &guest.pair(0).transmit.queue)
    }

    /// A hand in the guest's first receive queue.
    pub fn receive(guest: &mut ToyGuest) -> Self {
        let memory = guest.memory().clone();
        Self::of(memory, &guest.pair(0).receive.queue)
    }

    fn of(memory: GuestMemory, queue: &Queue) -> Self {
        let ring = queue.ring.shared().clone();
        let index = queue.ring.published_index();
        let used_before = ring.used_index();
        Self { memory, ring, index, offered: 0, used_before }
    }

    /// The ring, field by field.
    pub fn ring(&self) -> &SharedRing {
        &self.ring
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Puts `bytes` somewhere in memory; where.
    ///
    /// # Errors
    /// When the guest's memory is used up.
    pub fn place(&self, bytes: &[u8]) -> Result<u64, VillainError> {
        let address = self.memory.allocate(bytes.len().max(1) as u64, 64)?;
        self.memory.write(address, bytes)?;
        Ok(address)
    }

    /// Puts an empty virtio-net header and `frame` somewhere in memory; where.
    ///
    /// # Errors
    /// When the guest's memory is used up.
    pub fn place_frame(&self, frame: &[u8]) -> Result<u64, VillainError> {
        self.place(&[&[0; HEADER][..], frame].concat())
    }

    /// Writes descriptor `index`.
    pub fn describe(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        self.ring.set_descriptor(index, Descriptor { address, length, flags, next });
    }

    /// Writes a chain of (address, length, flags) into descriptors from `first` on, linked one to the next; its head.
    pub fn chain(&self, first: u16, iovecs: &[(u64, u32, u16)]) -> u16 {
        for (offset, &(address, length, flags)) in iovecs.iter().enumerate() {
            let index = first + offset as u16;
            let more = if offset + 1 < iovecs.len() { DESC_NEXT } else { 0 };
            self.describe(index, address, length, flags | more, index + 1);
        }
        first
    }

    /// Puts a table of descriptors somewhere in memory; where.
    ///
    /// # Errors
    /// When the guest's memory is used up.
    pub fn table(&self, entries: &[Descriptor]) -> Result<u64, VillainError> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes()).collect();
        self.place(&bytes)
    }

    /// Makes descriptor `index` point to a table of `length` bytes.
    pub fn indirect(&self, index: u16, table: u64, length: u32) {
        self.describe(index, table, length, DESC_INDIRECT, 0);
    }

    /// Puts `head` into the available ring.
    pub fn offer(&mut self, head: u16) {
        self.ring.set_available_entry(self.index, head);
        self.index = self.index.wrapping_add(1);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Shows all that was offered and kicks.
    pub fn show(&self, guest: &mut ToyGuest) {
        self.ring.set_available_index(self.index);
        kick_all(guest);
    }

    /// Offers `head`, shows it, and waits until it is returned on the used ring or the back end has cut the connection. One chain
    /// after the other is easier to tell apart than many at once.
    pub fn offer_and_show(&mut self, guest: &mut ToyGuest, head: u16) {
        self.offer(head);
        self.show(guest);
        let timeout = crate::deadline::Deadline::after(std::time::Duration::from_millis(200));
        let (index, ring) = (self.used_before.wrapping_add(self.offered), &self.ring);
        crate::deadline::until(timeout, || ring.used_index() == index || !guest.connected());
    }

    /// The available index that the next offer gets.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Chains offered so far.
    pub fn offered(&self) -> u16 {
        self.offered
    }

    /// Takes the hand out of the transmit queue; returns its traces.
    pub fn leave(self, mut guest: ToyGuest) -> Traces {
        guest.pair(0).transmit.queue.ring.resume_at(self.index);
        Traces::chains(guest, self.offered, self.used_before)
    }
}

/// Kicks every ring of the guest.
pub(super) fn kick_all(guest: &mut ToyGuest) {
    guest.queues().for_each(Queue::kick);
}

/// The used index of the guest's first transmit queue.
pub(super) fn used_index(guest: &mut ToyGuest) -> u16 {
    guest.pair(0).transmit.queue.ring.shared().used_index()
}
