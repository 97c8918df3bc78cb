//! A ring that begins asks its driver for kicks, whichever notification flags an earlier device left in its used ring: else the
//! driver would never kick.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::bed::device;
use memlane::id::{Direction, PortId, RingKey, RouteEntry};
use memlane::offload::Offloads;
use memlane::port::Port;
use memlane::ring::{Answer, Control, ReceiveQueue, Ring, TransmitQueue};
use memlane::settings::Settings;
use memlane::shared::Shared;
use memlane::worker::{Mailbox, Start, Worker, links};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Iovec, RingOptions as DriverOptions, USED_NO_NOTIFY};

/// A driver without EVENT_IDX, which must be told by a flag when no kick is needed.
struct Driver {
    memory: GuestMemory,
    ring: DriverRing,
    buffer: u64,
}

impl Driver {
    fn new() -> Self {
        let memory = GuestMemory::new(1 << 20).unwrap();
        let ring = DriverRing::new(&memory, DriverOptions { size: 16, event_idx: false, indirect: 0 }).unwrap();
        let buffer = memory.allocate(2048, 64).unwrap();
        Self { memory, ring, buffer }
    }

    /// The device's side of it.
    fn device(&self) -> Ring {
        device::ring(&self.ring, &device::map(&self.memory), 0)
    }

    /// Adds a receive buffer; true if the driver must then kick.
    fn add(&mut self) -> bool {
        self.ring.add(&[Iovec::writable(self.buffer, 2048)]).unwrap();
        self.ring.publish();
        self.ring.kick_needed()
    }
}

/// A worker, and two ports that it knows.
fn worker_and_ports() -> (Worker, Vec<Arc<Port>>) {
    let shared = Arc::new(Shared::new(1, 7, Settings::default()));
    let mailbox = Mailbox::new().unwrap();
    let links = links(&[Arc::clone(&mailbox)]).remove(0);
    let mut worker = Worker::new(0, Arc::clone(&shared), mailbox, links, channel().0).unwrap();
    let ports = Port::row(&shared, 2);
    ports.iter().for_each(|port| worker.enter_port(port));
    (worker, ports)
}

fn worker() -> Worker {
    worker_and_ports().0
}

fn key(direction: Direction) -> RingKey {
    RingKey { port: PortId(0), pair: 0, direction }
}

fn started_by_a_kick() -> Start {
    let (kick, _) = std::io::pipe().unwrap();
    Start { kick: Some(File::from(OwnedFd::from(kick))), at_once: false, enabled: true, session: 0 }
}

#[test]
fn commands_make_way_for_whoever_ends_their_queue() {
    let mut driver = Driver::new();
    let mut control = Control::new(driver.device());
    for _ in 0..3 {
        driver.add();
    }
    let left = Cell::new(1_u32);
    let once = || left.replace(left.get().saturating_sub(1)) > 0;
    assert_eq!(control.serve(once, |_| Answer::Done), Ok(true));
    assert_eq!(control.base(), 1);
    assert_eq!(control.serve(|| true, |_| Answer::Done), Ok(false));
    assert_eq!(control.base(), 3);
}

#[test]
fn a_driver_that_has_not_kicked_yet_is_asked_to() {
    let (mut receive, mut transmit) = (Driver::new(), Driver::new());
    let mut worker = worker();
    worker.add_receive_queue(
        key(Direction::Receive),
        ReceiveQueue::new(receive.device(), Offloads::ALL, true),
        started_by_a_kick(),
    );
    worker.add_transmit_queue(key(Direction::Transmit), TransmitQueue::new(transmit.device()), Offloads::ALL, started_by_a_kick());
    worker.step();
    assert!(receive.add() && transmit.add());
}

/// Has `worker` hear the kicks that have come, as it does when it is given another ring, that of pair 1.
fn hear_kicks(worker: &mut Worker) {
    let other = Driver::new();
    let key = RingKey { pair: 1, ..key(Direction::Receive) };
    worker.add_receive_queue(key, ReceiveQueue::new(other.device(), Offloads::ALL, true), started_by_a_kick());
    worker.stop_receive_queue(key);
}

/// QEMU kicks each ring once when it starts, so that frames may come before the driver's own kick is heard.
#[test]
fn a_frame_before_the_first_kick_does_not_hide_that_the_ring_is_filled() {
    let mut driver = Driver::new();
    let (kick, mut kicks) = std::io::pipe().unwrap();
    kicks.write_all(&[1]).unwrap();
    let (mut worker, ports) = worker_and_ports();
    let start = Start { kick: Some(File::from(OwnedFd::from(kick))), at_once: false, enabled: true, session: 0 };
    // The first kick is heard at once, for it is there already.
    let receive = ReceiveQueue::new(driver.device(), Offloads::ALL, true);
    let slot = worker.add_receive_queue(key(Direction::Receive), receive, start).unwrap();
    worker.set_route(PortId(0), vec![RouteEntry { worker: 0, slot }]);
    assert!(!worker.is_filled(key(Direction::Receive)));
    assert!(driver.add(), "a kick is wanted");
    worker.inject(&ports[1], &[0xff; 60]);
    worker.step();
    assert!(driver.ring.poll().unwrap().is_some(), "the frame was delivered");
    kicks.write_all(&[1]).unwrap();
    hear_kicks(&mut worker);
    assert!(worker.is_filled(key(Direction::Receive)));
}

/// A ring that goes on after a restart of the switch, and that the driver has never filled.
#[test]
fn a_ring_that_goes_on_unfilled_wants_the_first_kick() {
    let mut driver = Driver::new();
    let (kick, mut kicks) = std::io::pipe().unwrap();
    let mut worker = worker();
    let start = Start { kick: Some(File::from(OwnedFd::from(kick))), at_once: true, enabled: true, session: 0 };
    worker.add_receive_queue(key(Direction::Receive), ReceiveQueue::new(driver.device(), Offloads::ALL, true), start);
    worker.step();
    assert!(driver.add(), "nothing else tells that it is filled");
    kicks.write_all(&[1]).unwrap();
    hear_kicks(&mut worker);
    assert!(worker.is_filled(key(Direction::Receive)));
}

#[test]
fn what_a_dead_device_said_of_kicks_is_forgotten() {
    let mut driver = Driver::new();
    driver.ring.shared().set_used_flags(USED_NO_NOTIFY);
    let mut device = driver.device();
    assert!(!device.arm());
    assert!(driver.add());
}
