//! Memory tables change while rings run, and while they do not.

use std::sync::mpsc::channel;

use crate::bed::{Bed, Guest, device};
use memlane::id::{Direction, PortId, RingKey};
use memlane::offload::Offloads;
use memlane::ring::TransmitQueue;
use memlane::worker::Start;

const KEY: RingKey = RingKey { port: PortId(0), pair: 1, direction: Direction::Transmit };

/// Frames taken of port 0.
fn taken(bed: &Bed) -> u64 {
    bed.ports[0].counters(0).transmit_frames.get()
}

/// A second queue pair of guest 0, of which only the transmit queue is used; it starts at once or never.
fn queue(bed: &mut Bed, at_once: bool) -> Guest {
    let (guest, transmit, _) = Guest::alone(false);
    let start = Start { kick: None, at_once, enabled: true, session: 0 };
    bed.worker.add_transmit_queue(KEY, TransmitQueue::new(transmit), Offloads::ALL, start);
    guest
}

/// Moves the ring of `guest` to a new map of the same memory, as SET_MEM_TABLE does, and runs a few poll iterations.
fn change_memory(bed: &mut Bed, guest: &Guest) {
    let map = device::map(&guest.memory);
    let (reply, answer) = channel();
    bed.worker.set_memory(KEY, device::split(&guest.transmit, &map), map, reply);
    answer.try_recv().expect("nothing is out");
    for _ in 0..4 {
        bed.worker.step();
    }
}

#[test]
fn a_ring_that_runs_goes_on_where_it_moved() {
    let mut bed = Bed::new(2);
    let mut guest = queue(&mut bed, true);
    guest.send(0, 1, 100, 5);
    change_memory(&mut bed, &guest);
    assert_eq!(taken(&bed), 5);
}

#[test]
fn a_ring_that_was_not_kicked_yet_waits_for_that_where_it_moved() {
    let mut bed = Bed::new(2);
    let mut guest = queue(&mut bed, false);
    guest.send(0, 1, 100, 5);
    change_memory(&mut bed, &guest);
    assert_eq!(taken(&bed), 0);
}

#[test]
fn a_ring_of_a_port_that_broke_a_rule_stays_closed_where_it_moved() {
    let mut bed = Bed::new(2);
    let mut guest = queue(&mut bed, true);
    bed.guests[0].transmit.shared().set_available_index(10_000);
    bed.worker.step();
    guest.send(0, 1, 100, 5);
    change_memory(&mut bed, &guest);
    assert_eq!(taken(&bed), 0);
}
