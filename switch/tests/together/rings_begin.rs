//! A ring that begins can be heard: its driver knows that a kick is wanted, whatever was there before.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::bed::device;
use memlane::id::{Direction, PortId, RingKey};
use memlane::offload::Offloads;
use memlane::port::Port;
use memlane::ring::{Answer, Control, Delivery, Intake, Ring};
use memlane::settings::Settings;
use memlane::shared::Shared;
use memlane::worker::{Mailbox, Start, Worker, links};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Piece, RingOptions as DriverOptions, USED_NO_NOTIFY};

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

    /// Adds a buffer; true if it then owes a kick.
    fn add(&mut self) -> bool {
        self.ring.add(&[Piece::writable(self.buffer, 2048)]).unwrap();
        self.ring.publish();
        self.ring.kick_needed()
    }
}

fn worker() -> Worker {
    let shared = Arc::new(Shared::new(1, 7, Settings::default()));
    let mailbox = Mailbox::new().unwrap();
    let links = links(&[Arc::clone(&mailbox)]).remove(0);
    let mut worker = Worker::new(0, Arc::clone(&shared), mailbox, links, channel().0).unwrap();
    worker.enter_port(&Port::row(&shared, 1)[0]);
    worker
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
    worker.add_delivery(key(Direction::Delivery), Delivery::new(receive.device(), Offloads::ALL, true), started_by_a_kick());
    worker.add_intake(key(Direction::Intake), Intake::new(transmit.device()), Offloads::ALL, started_by_a_kick());
    worker.step();
    assert!(receive.add() && transmit.add());
}

#[test]
fn what_a_dead_device_said_of_kicks_is_forgotten() {
    let mut driver = Driver::new();
    driver.ring.shared().set_used_flags(USED_NO_NOTIFY);
    let mut device = driver.device();
    assert!(!device.arm());
    assert!(driver.add());
}
