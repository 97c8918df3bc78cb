//! The device's side of a driver's ring, by the `virtio-queue` crate.

use memlane_rig::ring::DriverRing;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

/// From index `start` on.
pub fn device(ring: &DriverRing, start: u16) -> Queue {
    let (options, at) = (ring.options(), ring.shared().addresses());
    let mut queue = Queue::new(options.size).unwrap();
    queue.try_set_desc_table_address(GuestAddress(at.descriptors)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(at.available)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(at.used)).unwrap();
    queue.set_event_idx(options.event_idx);
    queue.set_next_avail(start);
    queue.set_next_used(start);
    queue.set_ready(true);
    queue
}
