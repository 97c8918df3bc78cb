//! The wait queue: storage of the packets that are enqueued at one worker for receivers without buffers (backpressure: each packet
//! stays in its sender's memory, its descriptor chain in flight).
//!
//! Quota: a sender holds no more places than are free, a [`DynamicThreshold`] with a factor of 1. So the next sender finds room,
//! however large the transmit ring of another is.

#![expect(clippy::indexing_slicing, reason = "spots are numbered by the wait queue itself and freed once")]

use crate::frame::SHORTEST;
use crate::id::PortId;
use crate::packet::Packet;
use crate::threshold::DynamicThreshold;

/// Place of an enqueued packet in the [`WaitQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot(pub(super) u32);

impl Spot {
    /// No place.
    pub(super) const NONE: Self = Self(u32::MAX);
}

#[derive(Debug)]
struct Queued {
    packet: Packet,
    next: Spot,
}

/// Enqueued packets of one worker.
#[derive(Debug)]
pub struct WaitQueue {
    spots: Vec<Queued>,
    free: Spot,
    used: usize,
    most: usize,
    /// Packets of each sender.
    held: Vec<u32>,
}

impl WaitQueue {
    /// Room for `most` packets of `ports` ports; memory is used as it is needed and then kept.
    pub fn new(most: usize, ports: usize) -> Self {
        Self { spots: Vec::with_capacity(most), free: Spot::NONE, used: 0, most, held: vec![0; ports] }
    }

    /// There are up to `ports` ports now.
    pub fn make_room(&mut self, ports: usize) {
        self.held.resize(ports.max(self.held.len()), 0);
    }

    /// Enqueued packets.
    pub fn used(&self) -> usize {
        self.used
    }

    /// True if another packet of `sender` can be enqueued.
    pub fn has_room(&self, sender: PortId) -> bool {
        let free = self.most.saturating_sub(self.used) as u64;
        self.held.get(sender.index()).is_some_and(|&held| DynamicThreshold::ONE.admits(held.into(), free))
    }

    /// Enqueues a packet; `None` if its sender has as many places as are free, or there is no such port.
    pub fn enqueue(&mut self, packet: Packet) -> Option<Spot> {
        if !self.has_room(packet.source) {
            return None;
        }
        *self.held.get_mut(packet.source.index())? += 1;
        self.used += 1;
        let queued = Queued { packet, next: Spot::NONE };
        if self.free == Spot::NONE {
            self.spots.push(queued);
            return Some(Spot(self.spots.len() as u32 - 1));
        }
        let spot = self.free;
        self.free = self.next(spot);
        self.spots[spot.0 as usize] = queued;
        Some(spot)
    }

    /// The packet at `spot`.
    pub fn packet(&mut self, spot: Spot) -> &mut Packet {
        &mut self.spots[spot.0 as usize].packet
    }

    /// Length of the packet at `spot` for the deficit, in bytes: at least the minimum frame size.
    pub(super) fn length(&self, spot: Spot) -> u32 {
        self.spots[spot.0 as usize].packet.length.max(SHORTEST)
    }

    /// The place after `spot` in its list.
    pub(super) fn next(&self, spot: Spot) -> Spot {
        self.spots[spot.0 as usize].next
    }

    /// Links `next` behind `spot`.
    pub(super) fn link(&mut self, spot: Spot, next: Spot) {
        self.spots[spot.0 as usize].next = next;
    }

    /// Removes the packet at `spot`.
    pub(super) fn free(&mut self, spot: Spot) {
        let source = self.packet(spot).source;
        if let Some(held) = self.held.get_mut(source.index()) {
            *held = held.saturating_sub(1);
        }
        self.spots[spot.0 as usize].next = self.free;
        self.free = spot;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enqueue(wait_queue: &mut WaitQueue, sender: u16) -> Option<Spot> {
        let mut packet = Packet::default();
        packet.source = PortId(sender);
        wait_queue.enqueue(packet)
    }

    #[test]
    fn no_sender_takes_the_places_of_others() {
        let mut wait_queue = WaitQueue::new(900, 3);
        let mut of = [Vec::new(), Vec::new()];
        for (sender, most) in [(0, 450), (1, 225)] {
            of[sender].extend(std::iter::from_fn(|| enqueue(&mut wait_queue, sender as u16)));
            assert_eq!(of[sender].len(), most);
        }
        // While frames leave and others come, both approach a third.
        for _ in 0..100 {
            for (sender, of) in of.iter_mut().enumerate() {
                of.drain(..of.len() / 10).for_each(|spot| wait_queue.free(spot));
                of.extend(std::iter::from_fn(|| enqueue(&mut wait_queue, sender as u16)));
            }
        }
        assert!(of.iter().all(|of| of.len().abs_diff(300) < 20));
        assert!(wait_queue.has_room(PortId(2)));
        of.iter_mut().flat_map(|of| of.drain(..)).for_each(|spot| wait_queue.free(spot));
        assert_eq!(wait_queue.used(), 0);
    }
}
