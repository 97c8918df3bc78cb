//! The work that one guest can have a worker do at a time is bounded, for every kind of frame and buffer: it is the time for which
//! other guests wait.

use std::time::Duration;

use crate::bed::{Bed, Guest};
use memlane::id::{Direction, PortId, RingKey, RouteEntry};
use memlane::offload::{MAX_SEGMENTS, Offloads};
use memlane::policy::{Limit, PortLimits};
use memlane::ring::Ring;
use memlane::settings::Settings;
use memlane::stats::DropReason;

use memlane_rig::ring::Iovec;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{UsageWho, getrusage};

/// Entries of the largest rings, and receive buffers posted there.
const RINGS: (u16, u16) = (32_768, 32_768);
/// Bytes that a guest may have a worker copy at a time, about; see `worker/turn.rs`.
const TURN_BYTES: u64 = 1 << 20;

fn bed(guests: usize) -> Bed {
    Bed::with(guests, Settings { stall_timeout: Duration::from_secs(60), ..Settings::default() })
}

/// Replaces the last guest of `bed` by one with rings of `size` and so many receive `buffers`, which takes these `offloads`.
fn replace_last(bed: &mut Bed, (size, buffers): (u16, u16), offloads: Offloads) {
    replace_last_by(bed, Guest::with_rings(size, buffers, false), offloads);
}

/// Replaces the last guest of `bed` by this one.
fn replace_last_by(bed: &mut Bed, guest: (Guest, Ring, Ring), offloads: Offloads) {
    let index = bed.guests.len() as u16 - 1;
    let key = |direction| RingKey { port: PortId(index), pair: 0, direction };
    let (reply, _) = std::sync::mpsc::channel();
    bed.worker.stop_transmit_queue(key(Direction::Transmit), reply);
    bed.worker.stop_receive_queue(key(Direction::Receive)).unwrap();
    let (guest, slot) = Guest::attach_like(&mut bed.worker, index, guest, offloads);
    bed.worker.set_route(PortId(index), vec![RouteEntry { worker: 0, slot }]);
    bed.guests[usize::from(index)] = guest;
}

/// Frames and bytes delivered to each port so far.
fn delivered(bed: &Bed) -> Vec<(u64, u64)> {
    let of = |port: usize| bed.ports[port].counters(0);
    (0..bed.guests.len()).map(|port| (of(port).receive_frames.get(), of(port).receive_bytes.get())).collect()
}

/// A TCP frame of guest `from` to guest `to` that asks to be cut into as many segments as there may be, a byte each.
fn dust(from: u8, to: u8) -> Vec<u8> {
    let mut frame = vec![0; 12 + 54 + MAX_SEGMENTS as usize];
    frame[..12].copy_from_slice(&[1, 1, 54, 0, 1, 0, 34, 0, 16, 0, 0, 0]);
    frame[12..24].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from]);
    frame[24..27].copy_from_slice(&[8, 0, 0x45]);
    frame[28..30].copy_from_slice(&(40 + MAX_SEGMENTS as u16).to_be_bytes());
    frame[35] = 6;
    frame[58] = 5 << 4;
    frame
}

/// Has `guest` send `count` copies of `frame`, header first.
fn send(guest: &mut Guest, frame: &[u8], count: usize) {
    let at = guest.memory.allocate(frame.len() as u64, 64).unwrap();
    guest.memory.write(at, frame).unwrap();
    for _ in 0..count {
        guest.transmit.add(&[Iovec::readable(at, frame.len() as u32)]).unwrap();
    }
    guest.transmit.publish();
}

#[test]
fn frames_that_are_cut_to_dust_end_the_turn() {
    let mut bed = bed(3);
    replace_last(&mut bed, RINGS, Offloads::default());
    bed.announce(&[0, 1, 2]);
    let before = delivered(&bed);
    send(&mut bed.guests[0], &dust(0, 2), 20);
    let mut last = before[2].0;
    while last - before[2].0 < 20 * u64::from(MAX_SEGMENTS) {
        bed.worker.step();
        let now = delivered(&bed)[2].0;
        assert!(now - last <= u64::from(MAX_SEGMENTS), "{} segments in a turn", now - last);
        last = now;
    }
}

#[test]
fn a_limit_of_packets_counts_segments_that_are_delivered() {
    let mut bed = bed(3);
    replace_last(&mut bed, RINGS, Offloads::default());
    bed.announce(&[0, 1, 2]);
    // A burst of 32 is always let through.
    let receive = Limit { packets: Some(1), burst_ms: Some(1), ..Limit::default() };
    bed.ports[2].policy.set(&PortLimits { receive, ..PortLimits::default() });
    let before = delivered(&bed);
    send(&mut bed.guests[0], &dust(0, 2), 20);
    while delivered(&bed)[2].0 == before[2].0 {
        bed.worker.step();
    }
    for _ in 0..100 {
        bed.worker.step();
    }
    let segments = delivered(&bed)[2].0 - before[2].0;
    assert!((1..=u64::from(MAX_SEGMENTS)).contains(&segments), "{segments} segments of a packet a second");
}

#[test]
fn a_large_broadcast_to_many_is_not_copied_for_all_at_once() {
    let mut bed = bed(60);
    for guest in 0..60 {
        bed.announce(&[guest]);
    }
    let before = delivered(&bed);
    bed.guests[0].send(0, 0xffff, 60_000, 4);
    let most = in_each_step(&mut bed, &before);
    assert!(most <= 6 * TURN_BYTES, "{most} bytes in a pass");
    for (port, (now, before)) in delivered(&bed).iter().zip(&before).enumerate().skip(1) {
        assert_eq!(now.0 - before.0, 4, "port {port} missed some");
    }
}

/// Most bytes that were delivered in a step since there were `before`, while there is anything to do.
fn in_each_step(bed: &mut Bed, before: &[(u64, u64)]) -> u64 {
    let bytes = |all: &[(u64, u64)]| all.iter().map(|port| port.1).sum::<u64>();
    let (mut last, mut most) = (bytes(before), 0);
    while bed.worker.step() > 0 {
        let now = bytes(&delivered(bed));
        most = most.max(now - last);
        last = now;
        for guest in &mut bed.guests {
            guest.settle();
        }
    }
    most
}

#[test]
fn chains_of_empty_descriptors_end_the_turn() {
    let mut bed = bed(3);
    replace_last(&mut bed, RINGS, Offloads::ALL);
    let guest = &mut bed.guests[2];
    let at = guest.memory.allocate(64, 64).unwrap();
    let chain: Vec<_> = (0..1024).map(|_| Iovec::readable(at, 0)).collect();
    for _ in 0..30 {
        guest.transmit.add(&chain).unwrap();
    }
    guest.transmit.publish();
    let free = guest.transmit.free();
    let mut last = free;
    while last < 32_768 {
        bed.worker.step();
        bed.guests[2].reclaim();
        let now = bed.guests[2].transmit.free();
        assert!(now - last <= 20 * 1024, "{} chains in a turn", (now - last) / 1024);
        last = now;
    }
}

#[test]
fn broken_receive_buffers_cost_little_in_each_pass() {
    // Guest 3 makes broken buffers available as fast as they are completed; guest 0 baits it, and guest 1 sends to 2.
    let mut bed = bed(4);
    bed.announce(&[0, 1, 2, 3]);
    replace_last(&mut bed, (32_768, 0), Offloads::ALL);
    let villain = &mut bed.guests[3];
    let at = villain.memory.allocate(64, 64).unwrap();
    let chain: Vec<_> = (0..1030).map(|_| Iovec::writable(at, 0)).collect();
    for _ in 0..31 {
        villain.receive.add(&chain).unwrap();
    }
    villain.receive.publish();
    let bad = |bed: &Bed| bed.ports[3].counters(0).bad_receive_chains.get();
    let (mut received, mut most) = (0, 0);
    for _ in 0..200 {
        bed.guests[0].fill(0, 3, 100);
        bed.guests[1].reclaim();
        bed.guests[1].send(1, 2, 100, 10);
        let before = bad(&bed);
        bed.worker.step();
        most = most.max(bad(&bed) - before);
        bed.guests[3].settle();
        bed.guests[2].take(256, |_, _| received += 1);
    }
    assert!(bad(&bed) > 0 && most <= 8, "{most} broken chains in a pass");
    assert_eq!(received, 2000);
}

/// Bytes of a page, and pages that a frame of the hostile guest lies in.
const PAGE: u64 = 4096;
const PAGES: u64 = 900;
/// Page faults that one guest can cause in a poll iteration: those of a frame that was begun, and as many as fit into a slice of
/// time where they take least.
const FAULTS: i64 = 2000;

/// A guest with frames, or buffers, across the borders of so many pages each, which were returned to the kernel: it replaces the
/// last guest of `bed`. Returns the address of the first page of each.
pub(super) fn give_pages_back(bed: &mut Bed, frames: u64, posted: u16) -> Vec<u64> {
    replace_last_by(bed, Guest::with_memory(128 << 20, 16_384, posted, false), Offloads::ALL);
    let memory = &bed.guests.last().unwrap().memory;
    let length = frames * (PAGES + 1) * PAGE;
    let at = memory.allocate(length, PAGE).unwrap();
    let region = &memory.regions()[0];
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let offset = region.file_offset() + (at - region.guest());
    fallocate(memory.file(), hole, offset as i64, length as i64).unwrap();
    (0..frames).map(|frame| at + frame * (PAGES + 1) * PAGE).collect()
}

/// Addresses of two bytes across the border of each page of a frame.
pub(super) fn borders(first: u64) -> impl Iterator<Item = u64> {
    (1..=PAGES).map(move |page| first + page * PAGE - 1)
}

/// Page faults of this thread during the closure.
fn faults_of<R>(what: impl FnOnce() -> R) -> i64 {
    let all = || getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.minor_page_faults() + usage.major_page_faults()).unwrap();
    let before = all();
    what();
    all() - before
}

#[test]
fn frames_in_pages_that_are_not_in_memory_end_the_turn() {
    let mut bed = bed(3);
    let frames = give_pages_back(&mut bed, 16, 0);
    bed.announce(&[0, 1, 2]);
    let sender = &mut bed.guests[2];
    sender.reclaim();
    let start = sender.memory.allocate(76, 64).unwrap();
    sender.memory.write(start + 12, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]).unwrap();
    for &first in &frames {
        let rest = borders(first).map(|at| Iovec::readable(at, 2));
        let chain: Vec<_> = [Iovec::readable(start, 76)].into_iter().chain(rest).collect();
        sender.transmit.add(&chain).unwrap();
    }
    sender.transmit.publish();
    let mut most = 0;
    while bed.guests[2].transmit.free() < 16_384 {
        most = most.max(faults_of(|| bed.worker.step()));
        bed.guests[2].reclaim();
        bed.guests[1].settle();
    }
    assert!(most <= FAULTS, "{most} page faults in a pass");
    let given_up = bed.ports[2].counters(0).dropped(DropReason::SenderMemory);
    assert!(given_up > 0 && bed.ports[1].counters(0).dropped(DropReason::SenderMemory) == 0, "{given_up}");
}

#[test]
fn buffers_in_pages_that_are_not_in_memory_end_the_turn_and_are_their_ports_to_pay() {
    let mut bed = bed(3);
    let buffers = give_pages_back(&mut bed, 16, 0);
    bed.announce(&[2]);
    let receiver = &mut bed.guests[2];
    for &first in &buffers {
        let chain: Vec<_> = borders(first).map(|at| Iovec::writable(at, 2)).collect();
        receiver.receive.add(&chain).unwrap();
    }
    receiver.receive.publish();
    bed.guests[0].reclaim();
    bed.guests[0].send(0, 2, 1500, 16);
    let mut most = 0;
    let counters =
        |bed: &Bed| (bed.ports[2].counters(0).dropped(DropReason::ReceiverMemory), bed.ports[2].counters(0).receive_frames.get());
    let before = counters(&bed).1;
    while bed.guests[0].transmit.free() < 256 {
        most = most.max(faults_of(|| bed.worker.step()));
        bed.guests[0].reclaim();
    }
    assert!(most <= FAULTS, "{most} page faults in a pass");
    let (given_up, delivered) = counters(&bed);
    assert!(given_up > 0 && given_up + delivered - before == 16, "{given_up}, {delivered}");
}
