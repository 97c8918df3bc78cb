//! The work that a ring's guest can make the switch do in one step is bounded, and a rule that a ring broke stays broken.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::bed::device;
use memlane::id::{Direction, PortId, RingKey, RouteEntry};
use memlane::offload::Offloads;
use memlane::packet::Packet;
use memlane::port::Port;
use memlane::ring::{OpenOutcome, PlaceOutcome, ReceiveQueue, RingFault, TransmitQueue};
use memlane::settings::{Poll, Settings};
use memlane::shared::Shared;
use memlane::stats::DropReason;
use memlane::worker::{Event, Mailbox, Start, Worker, links};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DESC_NEXT, DESC_WRITE, Descriptor, DriverRing, RingOptions as DriverOptions, SharedRing};

/// A driver that writes any value into its ring.
struct Driver {
    memory: GuestMemory,
    ring: DriverRing,
    /// A buffer of 64 KB.
    buffer: u64,
}

impl Driver {
    fn new(size: u16) -> Self {
        let memory = GuestMemory::new(4 << 20).unwrap();
        let options = DriverOptions { size, event_idx: false, indirect: 0 };
        let ring = DriverRing::new(&memory, options).unwrap();
        let buffer = memory.allocate(1 << 16, 64).unwrap();
        Self { memory, ring, buffer }
    }

    fn in_order(size: u16) -> Self {
        let mut driver = Self::new(size);
        driver.ring.expect_in_order();
        driver
    }

    fn shared(&self) -> &SharedRing {
        self.ring.shared()
    }

    fn transmit_queue(&self) -> TransmitQueue {
        TransmitQueue::new(device::ring(&self.ring, &device::map(&self.memory), 0))
    }

    fn receive_queue(&self) -> ReceiveQueue {
        ReceiveQueue::new(device::ring(&self.ring, &device::map(&self.memory), 0), Offloads::ALL, true)
    }

    /// Describes the buffer at `index`, `length` bytes of it.
    fn describe(&self, index: u16, length: u32, flags: u16, next: u16) {
        self.shared().set_descriptor(index, Descriptor { address: self.buffer, length, flags, next });
    }

    /// Offers `head` so many times more, and shows it.
    fn offer(&self, head: u16, times: u16) {
        let index = self.shared().available_index();
        (0..times).for_each(|more| self.shared().set_available_entry(index.wrapping_add(more), head));
        self.shared().set_available_index(index.wrapping_add(times));
    }
}

/// A worker with three ports, each a driver's two rings.
struct Bed {
    worker: Worker,
    events: Receiver<Event>,
    ports: Vec<Arc<Port>>,
    transmit: [Driver; 3],
    receive: [Driver; 3],
}

impl Bed {
    /// Rings of 64 entries, nothing posted; the worker knows where the address of port 1 is.
    fn new() -> Self {
        Self::with(Settings::default())
    }

    /// The same with these settings. Where the worker uses busy polling, transmit rings complete their chains in order.
    fn with(settings: Settings) -> Self {
        let in_order = settings.poll == Poll::Always;
        let shared = Arc::new(Shared::new(1, 7, settings));
        let mailbox = Mailbox::new().unwrap();
        let links = links(&[Arc::clone(&mailbox)]).remove(0);
        let (report, events) = channel();
        let mut worker = Worker::new(0, Arc::clone(&shared), mailbox, links, report).unwrap();
        let ports = Port::row(&shared, 3);
        ports.iter().for_each(|port| worker.enter_port(port));
        let transmit = [(); 3].map(|()| if in_order { Driver::in_order(64) } else { Driver::new(64) });
        let receive = [(); 3].map(|()| Driver::new(64));
        for port in 0..3 {
            let key = |direction| RingKey { port: PortId(port), pair: 0, direction };
            let start = || Start { kick: None, at_once: true, enabled: true, session: 0 };
            let (transmit_queue, receive_queue) =
                (transmit[usize::from(port)].transmit_queue(), receive[usize::from(port)].receive_queue());
            worker.add_transmit_queue(key(Direction::Transmit), transmit_queue, Offloads::ALL, start());
            let slot = worker.add_receive_queue(key(Direction::Receive), receive_queue, start()).unwrap();
            worker.set_route(PortId(port), vec![RouteEntry { worker: 0, slot }]);
        }
        let mut bed = Self { worker, events, ports, transmit, receive };
        bed.send(1, 0);
        bed
    }

    /// Has a short frame go from one port to another's address.
    fn send(&mut self, from: u8, to: u8) {
        self.send_long(from, to, 100);
    }

    /// Has a frame of `length` bytes go from one port to another's address.
    fn send_long(&mut self, from: u8, to: u8, length: u32) {
        let driver = &self.transmit[usize::from(from)];
        let start = [[0; 12].as_slice(), &[2, 0, 0, 0, 0, to], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5]].concat();
        driver.memory.write(driver.buffer, &start).unwrap();
        let head = driver.shared().available_index() % 64;
        driver.describe(head, 12 + length, 0, 0);
        driver.offer(head, 1);
        self.worker.step();
    }

    /// Posts `count` receive buffers of 2000 bytes at `port`.
    fn post(&self, port: usize, count: u16) {
        self.receive[port].describe(0, 2000, DESC_WRITE, 0);
        self.receive[port].offer(0, count);
    }

    /// Works until so many receive buffers of `port` were used.
    fn wait_used(&mut self, port: usize, used: u16) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.receive[port].shared().used_index() != used {
            assert!(Instant::now() < deadline, "{} buffers were used, not {used}", self.receive[port].shared().used_index());
            self.worker.step();
        }
    }
}

/// A frame of 64 bytes.
fn frame() -> Packet {
    Packet::from_bytes(PortId(0), &[2; 64])
}

#[test]
fn a_few_bad_chains_end_the_look_for_room() {
    const SIZE: u16 = 1024;
    let driver = Driver::new(SIZE);
    (0..SIZE).for_each(|index| driver.describe(index, 0, DESC_WRITE | DESC_NEXT, (index + 1) % SIZE));
    driver.offer(0, SIZE);
    let mut receive_queue = driver.receive_queue();
    assert_eq!(receive_queue.place(&mut frame()), Ok(PlaceOutcome::Refused(DropReason::BadReceiveChains)));
    assert!((1..=16).contains(&receive_queue.take_bad_chains()));
    assert!(receive_queue.take_walked() <= 5 * u64::from(SIZE));
    assert_eq!(receive_queue.take_walked(), 0);
}

#[test]
fn a_chain_ends_after_1024_descriptors_of_whatever_length() {
    for (empty, too_long) in [(1023, false), (1024, true), (32767, true)] {
        let driver = Driver::new(32768);
        let describe = |flag| {
            (0..empty).for_each(|index| driver.describe(index, 0, flag | DESC_NEXT, index + 1));
            driver.describe(empty, 1000, flag, 0);
        };
        describe(0);
        driver.offer(0, 1);
        let mut transmit_queue = driver.transmit_queue();
        let taken = if too_long { OpenOutcome::Dropped(DropReason::ChainLoop) } else { OpenOutcome::Packet };
        assert_eq!(transmit_queue.look(1), Ok(1));
        assert_eq!(transmit_queue.open(&mut Packet::default()), Ok(taken), "{empty} empty descriptors");

        describe(DESC_WRITE);
        let mut receive_queue = driver.receive_queue();
        let placed = if too_long { PlaceOutcome::NoRoom } else { PlaceOutcome::Complete(1) };
        assert_eq!(receive_queue.place(&mut frame()), Ok(placed), "{empty} empty descriptors");
        assert_eq!((receive_queue.take_bad_chains(), receive_queue.take_walked()), (too_long.into(), 1024));
    }
}

#[test]
fn a_frame_is_not_looked_for_room_for_ever() {
    // Buffers that break no rule, of a byte more than the header each: chains of 1024 descriptors that hold 13 bytes.
    const SIZE: u16 = 32768;
    let driver = Driver::new(SIZE);
    (0..1023).for_each(|index| driver.describe(index, 0, DESC_WRITE | DESC_NEXT, index + 1));
    driver.describe(1023, 13, DESC_WRITE, 0);
    driver.offer(0, SIZE);
    let mut receive_queue = driver.receive_queue();
    let mut packet = frame();
    assert_eq!(receive_queue.place(&mut packet), Ok(PlaceOutcome::Refused(DropReason::TooLongForReceiver)));
    assert!(receive_queue.take_walked() <= 5 * 1024);
}

/// Keeps one packet in flight, behind which no chain can be completed, and then `take`s more chains than the driver has, until that
/// ends.
fn more_than_the_ring_holds(take: impl Fn(&mut TransmitQueue) -> Result<bool, RingFault>) {
    const SIZE: u16 = 256;
    let driver = Driver::in_order(SIZE);
    driver.describe(0, 100, 0, 0);
    driver.describe(1, 1, 0, 0);
    driver.offer(0, 1);
    let mut transmit_queue = driver.transmit_queue();
    let mut packet = Packet::default();
    assert_eq!(transmit_queue.look(1), Ok(1));
    assert_eq!(transmit_queue.open(&mut packet), Ok(OpenOutcome::Packet));
    transmit_queue.keep_in_flight(&packet, 1);
    let mut taken = 0;
    let fault = loop {
        driver.offer(1, SIZE);
        let result = (0..SIZE).try_for_each(|_| {
            transmit_queue.look(1)?;
            assert!(take(&mut transmit_queue)?);
            taken += 1;
            assert!(transmit_queue.in_flight() > 0, "nothing is out, it says, after {taken} more");
            Ok(())
        });
        if let Err(fault) = result {
            break fault;
        }
    };
    assert_eq!((fault, taken), (RingFault::TooManyInFlight, i32::from(SIZE) - 1));
    assert_eq!(transmit_queue.look(1), Err(RingFault::TooManyInFlight));
    // The packet in flight is completed all the same, and all chains behind it.
    transmit_queue.come_back(packet.head);
    transmit_queue.ring().publish();
    assert_eq!((transmit_queue.in_flight(), driver.shared().used_index()), (0, SIZE));
}

#[test]
fn more_taken_than_the_ring_holds_is_a_fault() {
    more_than_the_ring_holds(|transmit_queue| {
        Ok(transmit_queue.open(&mut Packet::default())? == OpenOutcome::Dropped(DropReason::Runt))
    });
    more_than_the_ring_holds(TransmitQueue::discard);
}

#[test]
fn a_jump_that_was_seen_once_stays_a_fault() {
    let driver = Driver::new(64);
    (0..64).for_each(|index| driver.describe(index, 2000, DESC_WRITE, 0));
    driver.offer(0, 1);
    let mut receive_queue = driver.receive_queue();
    assert_eq!(receive_queue.place(&mut frame()), Ok(PlaceOutcome::Complete(1)));
    driver.shared().set_available_index(0);
    assert_eq!(receive_queue.read_ahead(32), Err(RingFault::IndexJump));
    // The index is as if nothing had been.
    driver.shared().set_available_index(2);
    assert_eq!(receive_queue.read_ahead(32), Err(RingFault::IndexJump));
    assert_eq!(receive_queue.place(&mut frame()), Err(RingFault::IndexJump));
}

#[test]
fn a_head_outside_the_ring_that_was_seen_once_stays_a_fault() {
    let driver = Driver::new(64);
    driver.describe(0, 2000, DESC_WRITE, 0);
    driver.offer(64, 1);
    let mut receive_queue = driver.receive_queue();
    assert_eq!(receive_queue.read_ahead(32), Err(RingFault::HeadOutside));
    driver.shared().set_available_entry(0, 0);
    assert_eq!(receive_queue.place(&mut frame()), Err(RingFault::HeadOutside));

    let driver = Driver::new(64);
    driver.describe(0, 100, 0, 0);
    driver.offer(64, 1);
    let mut transmit_queue = driver.transmit_queue();
    assert_eq!(transmit_queue.look(1), Err(RingFault::HeadOutside));
    driver.shared().set_available_entry(0, 0);
    assert_eq!(transmit_queue.look(1), Err(RingFault::HeadOutside));
}

#[test]
fn a_jump_that_the_express_lane_sees_ends_the_port() {
    let mut bed = Bed::new();
    (0..64).for_each(|index| bed.receive[1].describe(index, 2000, DESC_WRITE, 0));
    bed.receive[1].offer(0, 2);
    bed.send(0, 1);
    bed.send(0, 1);
    assert_eq!(bed.receive[1].shared().used_index(), 2);
    // All buffers are taken, and the next frame is like the last one.
    bed.receive[1].shared().set_available_index(1);
    bed.send(0, 1);
    assert_eq!(bed.receive[1].shared().used_index(), 2);
    let faults = bed.events.try_iter().filter_map(|event| match event {
        Event::RingFault(port, session, fault) => Some((port.id, session, fault)),
        _ => None,
    });
    assert_eq!(faults.collect::<Vec<_>>(), [(PortId(1), 0, RingFault::IndexJump)]);
    bed.receive[1].shared().set_available_index(3);
    bed.send(0, 1);
    assert_eq!(bed.receive[1].shared().used_index(), 2);
}

#[test]
fn bad_chains_go_back_though_their_frame_is_lost_and_the_next_one_arrives() {
    let mut bed = Bed::new();
    bed.receive[1].describe(0, 2000, DESC_WRITE | DESC_NEXT, 0);
    bed.receive[1].describe(1, 2000, DESC_WRITE, 0);
    bed.receive[1].offer(0, 8);
    bed.receive[1].offer(1, 1);
    bed.send(0, 1);
    assert_eq!(bed.receive[1].shared().used_index(), 8);
    bed.send(0, 1);
    assert_eq!(bed.receive[1].shared().used_index(), 9);
    let totals = bed.ports[1].totals();
    assert_eq!((totals.bad_receive_chains, totals.receive_frames), (8, 1));
    assert_eq!(totals.drops.get("bad-receive-chains"), Some(&1));
}

/// A frame that is longer than all that its receiver has posted, with these settings.
fn others_pass_a_frame_that_is_too_long(settings: Settings) {
    let mut bed = Bed::with(Settings { stall_timeout: Duration::from_secs(60), ..settings });
    bed.post(1, 20);
    bed.send_long(0, 1, 60_000);
    assert_eq!(bed.receive[1].shared().used_index(), 0);
    (0..20).for_each(|_| bed.send_long(2, 1, 1500));
    bed.wait_used(1, 20);
    // More than senders may be ahead of each other, and there is always room for some frame, but never for the long one.
    for number in 1..=200 {
        bed.send_long(2, 1, 1500);
        bed.post(1, 1);
        bed.wait_used(1, 20 + number);
    }
    // The frame arrives as soon as there is enough.
    bed.post(1, 31);
    bed.wait_used(1, 220 + 31);
}

#[test]
fn others_pass_a_frame_that_is_too_long_for_what_its_receiver_posts() {
    others_pass_a_frame_that_is_too_long(Settings::default());
}

#[test]
fn and_where_drivers_poll() {
    others_pass_a_frame_that_is_too_long(Settings { poll: Poll::Always, ..Settings::default() });
}

#[test]
fn a_frame_that_stays_too_long_is_dropped_after_the_stall_timeout_and_the_others_are_not() {
    let mut bed = Bed::with(Settings { stall_timeout: Duration::from_millis(50), ..Settings::default() });
    bed.post(1, 20);
    bed.send_long(0, 1, 60_000);
    let mut used = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while bed.ports[1].totals().drops.is_empty() {
        assert!(Instant::now() < deadline, "the frame waits for ever");
        used += 1;
        bed.send(2, 1);
        bed.wait_used(1, used);
        bed.post(1, 1);
    }
    let drops = bed.ports[1].totals().drops;
    assert_eq!(drops.into_iter().collect::<Vec<_>>(), [("too-long-for-receiver".into(), 1)]);
}

/// A receive queue whose driver posts buffers of 32 bytes, each at the index of its descriptor; and two frames, which need five of them and one.
fn small_buffers() -> (Driver, ReceiveQueue, [Packet; 2]) {
    let driver = Driver::new(64);
    (0..64).for_each(|index| driver.describe(index, 32, DESC_WRITE, 0));
    let receive_queue = driver.receive_queue();
    (driver, receive_queue, [144, 16].map(|length| Packet::from_bytes(PortId(0), &vec![2; length])))
}

#[test]
fn buffers_that_are_too_few_for_a_frame_are_walked_once() {
    let (driver, mut receive_queue, [mut frame, _]) = small_buffers();
    for head in 0..4 {
        driver.offer(head, 1);
        for walked in [1, 0, 0] {
            assert_eq!(receive_queue.place(&mut frame), Ok(PlaceOutcome::NoRoom));
            assert_eq!(receive_queue.take_walked(), walked, "{head} buffers before");
        }
    }
    driver.offer(4, 1);
    assert_eq!((receive_queue.place(&mut frame), receive_queue.take_walked()), (Ok(PlaceOutcome::Complete(1)), 1));
    receive_queue.ring().publish();
    let used: Vec<(u32, u32)> = (0..driver.shared().used_index())
        .map(|index| driver.shared().used_entry(index))
        .map(|used| (used.head, used.length))
        .collect();
    let expected: Vec<(u32, u32)> = (0..5).map(|head| (head, if head == 4 { 28 } else { 32 })).collect();
    assert_eq!(used, expected);
}

#[test]
fn buffers_are_walked_anew_once_others_are_the_next() {
    let (driver, mut receive_queue, [mut long, mut short]) = small_buffers();
    let walked = |receive_queue: &mut ReceiveQueue, long: &mut Packet| {
        assert_eq!(receive_queue.place(long), Ok(PlaceOutcome::NoRoom));
        receive_queue.take_walked()
    };
    (0..4).for_each(|head| driver.offer(head, 1));
    assert_eq!([(); 2].map(|()| walked(&mut receive_queue, &mut long)), [4, 0]);
    for (left, publishes) in [(3, false), (2, true)] {
        assert_eq!(receive_queue.place(&mut short), Ok(PlaceOutcome::Complete(1)));
        if publishes {
            receive_queue.ring().publish();
        }
        receive_queue.take_walked();
        assert_eq!([(); 2].map(|()| walked(&mut receive_queue, &mut long)), [left, 0], "a shorter frame took the first");
    }
    let map = device::map(&driver.memory);
    receive_queue.ring().set_memory(device::split(&driver.ring, &map), map);
    assert_eq!([(); 2].map(|()| walked(&mut receive_queue, &mut long)), [2, 0], "they lie elsewhere now");
}
