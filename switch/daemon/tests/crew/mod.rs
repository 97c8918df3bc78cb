//! A crew for tests: several workers and their guests, stepped in turn by one thread, so that the test chooses the order of all
//! steps.

#[path = "../../benches/bed/mod.rs"]
#[allow(dead_code, reason = "the benches use the rest")]
pub mod bed;

use std::sync::Arc;
use std::sync::mpsc::channel;

use bed::Guest;
use memlane::id::{Direction, PortId, RingKey, RouteEntry};
use memlane::port::Port;
use memlane::settings::Settings;
use memlane::shared::Shared;
use memlane::stats::DropReason;
use memlane::worker::{Mailbox, Worker, links};

/// The workers and their guests; guest `n` has address 02:00:00:00:00:n.
pub struct Crew {
    pub workers: Vec<Worker>,
    pub ports: Vec<Arc<Port>>,
    pub guests: Vec<Guest>,
}

impl Crew {
    /// A guest for each of `homes`, which names the worker that serves it, all in one segment, rings of 256 entries, receive buffers posted.
    pub fn new(homes: &[u8], settings: Settings) -> Self {
        let count = usize::from(homes.iter().max().map_or(0, |last| last + 1));
        let shared = Arc::new(Shared::new(count, 77, settings));
        let ports = Port::row(&shared, homes.len());
        let mailboxes: Vec<_> = (0..count).map(|_| Mailbox::new().unwrap()).collect();
        let workers = links(&mailboxes).into_iter().zip(&mailboxes).enumerate().map(|(index, (links, mailbox))| {
            let mut worker = Worker::new(index as u8, Arc::clone(&shared), Arc::clone(mailbox), links, channel().0).unwrap();
            ports.iter().for_each(|port| worker.enter_port(port));
            worker
        });
        let mut crew = Self { workers: workers.collect(), ports, guests: Vec::new() };
        for (index, &home) in (0..).zip(homes) {
            let guest = crew.attach(index, home);
            crew.guests.push(guest);
        }
        crew
    }

    /// A guest behind port `index`, which worker `home` serves; all workers know its route.
    pub fn attach(&mut self, index: u16, home: u8) -> Guest {
        let (guest, slot) = Guest::attach(&mut self.workers[usize::from(home)], index, false);
        self.set_route(index, vec![RouteEntry { worker: home, slot }]);
        guest
    }

    /// Another queue pair of port `index`, which worker `home` serves and of which only the transmit queue is used.
    pub fn queue(&mut self, index: u16, pair: u16, home: u8) -> Guest {
        Guest::queue(&mut self.workers[usize::from(home)], index, pair, false)
    }

    /// Frames for port `index` go to `entries` from now on.
    pub fn set_route(&mut self, index: u16, entries: Vec<RouteEntry>) {
        for worker in &mut self.workers {
            worker.set_route(PortId(index), entries.clone());
        }
    }

    /// Stops the receive ring of port `index`, as the control side does it: first its route is removed.
    pub fn stop_receive_queue(&mut self, index: u16, home: u8) {
        self.set_route(index, Vec::new());
        let key = RingKey { port: PortId(index), pair: 0, direction: Direction::Receive };
        self.workers[usize::from(home)].stop_receive_queue(key).unwrap();
    }

    /// Each worker takes a step.
    pub fn step(&mut self) -> u32 {
        self.workers.iter_mut().map(Worker::step).sum()
    }

    /// One worker takes many steps, and no other.
    pub fn step_often(&mut self, worker: usize) {
        for _ in 0..16 {
            self.workers[worker].step();
        }
    }

    /// Has all guests broadcast a frame, so that the switch learns their MAC addresses, and all take the frames of it.
    pub fn announce(&mut self) {
        for (index, guest) in (0..).zip(&mut self.guests) {
            guest.send(index, 0xffff, 60, 1);
        }
        while self.step() > 0 {}
        self.guests.iter_mut().for_each(|guest| {
            guest.settle();
        });
    }

    /// Frames dropped at `port` for `reason`.
    pub fn drops(&self, port: usize, reason: DropReason) -> u64 {
        (0..self.workers.len()).map(|worker| self.ports[port].counters(worker).dropped(reason)).sum()
    }
}
