//! A bed for benches: one worker and its guests in one thread, without sockets.

pub mod device;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use memlane::id::{Direction, PortId, RingKey, RouteEntry, Slot};
use memlane::link::Impairment;
use memlane::offload::Offloads;
use memlane::port::Port;
use memlane::ring::{ReceiveQueue, Ring, TransmitQueue};
use memlane::settings::{Poll, Settings};
use memlane::shared::Shared;
use memlane::worker::{Mailbox, Start, Worker, links};
use memlane_rig::blast::port::VuSink;
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Iovec, RingOptions as DriverOptions};

/// Frames that a guest sends at a time in [`Bed::exchange`].
pub const BATCH: usize = 32;

/// Bytes of a buffer.
const BUFFER: u64 = 2048;

/// A guest: its memory and its two rings.
pub struct Guest {
    pub memory: GuestMemory,
    pub transmit: DriverRing,
    pub receive: DriverRing,
    /// Guest address of a frame to send, virtio-net header first.
    frame: u64,
    /// Guest addresses of the receive buffers, by head.
    buffers: Vec<u64>,
}

/// The worker and its guests; guest `n` has address 02:00:00:00:00:n.
pub struct Bed {
    pub worker: Worker,
    pub ports: Vec<Arc<Port>>,
    pub guests: Vec<Guest>,
}

impl Bed {
    /// A segment with `guests` guests, rings of 256 entries, receive buffers posted.
    pub fn new(guests: usize) -> Self {
        Self::with(guests, Settings::default())
    }

    /// The same with these settings. Where the worker uses busy polling, transmit rings complete their chains in order.
    pub fn with(guests: usize, settings: Settings) -> Self {
        Self::with_links(&vec![None; guests], settings)
    }

    /// The same, with a guest for each of `links`, which is the link emulation of frames to it.
    pub fn with_links(links_to: &[Option<Impairment>], settings: Settings) -> Self {
        let guests = links_to.len();
        let shared = Arc::new(Shared::new(1, 77, settings));
        let ports = Port::row(&shared, guests);
        for (port, link) in ports.iter().zip(links_to) {
            link.iter().for_each(|link| port.set_path(link.into()));
        }
        let mailbox = Mailbox::new().unwrap();
        let links = links(&[Arc::clone(&mailbox)]).remove(0);
        let mut worker = Worker::new(0, Arc::clone(&shared), mailbox, links, channel().0).unwrap();
        ports.iter().for_each(|port| worker.enter_port(port));
        let in_order = shared.settings.poll == Poll::Always;
        let attach = |index| {
            let (guest, slot) = Guest::attach(&mut worker, index, in_order);
            worker.set_route(PortId(index), vec![RouteEntry { worker: 0, slot }]);
            guest
        };
        let guests = (0..guests as u16).map(attach).collect();
        Self { worker, ports, guests }
    }

    /// Has these guests broadcast a frame, so that the switch learns their MAC addresses, and all take the frames of it.
    pub fn announce(&mut self, guests: &[u16]) {
        for &guest in guests {
            self.guests[usize::from(guest)].send(guest, 0xffff, 60, 1);
        }
        self.worker.step();
        self.guests.iter_mut().for_each(|guest| {
            guest.settle();
        });
    }

    /// Like [`Self::with`], with the MAC addresses of all guests learned.
    pub fn known(guests: usize, settings: Settings) -> Self {
        let mut bed = Self::with(guests, settings);
        for guest in 0..guests {
            bed.announce(&[guest as u16]);
        }
        bed
    }

    /// The first `senders` guests send a transmit batch each of frames of `length` bytes, in one buffer segment, to the guest that
    /// `to` says; runs until all have arrived. Returns the time of the worker's poll iterations.
    pub fn exchange(&mut self, senders: usize, to: impl Fn(u16) -> u16, length: u32) -> Duration {
        for (sender, guest) in (0..).zip(&mut self.guests[..senders]) {
            guest.send(sender, to(sender), length, BATCH);
        }
        let (mut arrived, mut in_iterations) = (0, Duration::ZERO);
        while arrived < senders * BATCH {
            let began = Instant::now();
            self.worker.step();
            in_iterations += began.elapsed();
            arrived += self.guests.iter_mut().map(Guest::settle).sum::<usize>();
        }
        in_iterations
    }

    /// Another queue pair of guest `port`, of which only the transmit queue is used, and which completes chains `in_order`, or in
    /// any order.
    pub fn queue(&mut self, port: u16, pair: u16, in_order: bool) -> Guest {
        Guest::queue(&mut self.worker, port, pair, in_order)
    }
}

fn start() -> Start {
    Start { kick: None, at_once: true, enabled: true, session: 0 }
}

fn address(index: u16) -> [u8; 6] {
    let [a, b] = index.to_be_bytes();
    [2, 0, 0, 0, a, b]
}

impl Guest {
    /// A guest at a worker: its rings served there. Returns the slot of its receive ring, too.
    pub fn attach(worker: &mut Worker, index: u16, in_order: bool) -> (Self, Slot) {
        Self::attach_like(worker, index, Self::alone(in_order), Offloads::ALL)
    }

    /// The guest that was made, at a worker, which takes `offloads`.
    pub fn attach_like(
        worker: &mut Worker,
        index: u16,
        (guest, transmit, receive): (Self, Ring, Ring),
        offloads: Offloads,
    ) -> (Self, Slot) {
        let key = |direction| RingKey { port: PortId(index), pair: 0, direction };
        worker.add_transmit_queue(key(Direction::Transmit), TransmitQueue::new(transmit), Offloads::ALL, start());
        let slot = worker
            .add_receive_queue(key(Direction::Receive), ReceiveQueue::new(receive, offloads, true), start())
            .expect("a port that has come");
        (guest, slot)
    }

    /// Another queue pair of port `index`, of which only the transmit queue is used, and which completes chains `in_order`, or in
    /// any order.
    pub fn queue(worker: &mut Worker, index: u16, pair: u16, in_order: bool) -> Self {
        let (guest, transmit, _) = Self::alone(in_order);
        let key = RingKey { port: PortId(index), pair, direction: Direction::Transmit };
        worker.add_transmit_queue(key, TransmitQueue::new(transmit), Offloads::ALL, start());
        guest
    }

    /// A guest, and the device's side of its transmit and receive ring; the transmit ring completes chains `in_order`, or in any
    /// order.
    pub fn alone(in_order: bool) -> (Self, Ring, Ring) {
        Self::with_rings(256, 256, in_order)
    }

    /// The same with rings of `size` entries and `posted` receive buffers. Beyond the usual 256 all of these are one.
    pub fn with_rings(size: u16, posted: u16, in_order: bool) -> (Self, Ring, Ring) {
        Self::with_memory(4 << 20, size, posted, in_order)
    }

    /// The same with so many `bytes` of memory.
    pub fn with_memory(bytes: u64, size: u16, posted: u16, in_order: bool) -> (Self, Ring, Ring) {
        let memory = GuestMemory::new(bytes).unwrap();
        let map = device::map(&memory);
        let options = DriverOptions { size, event_idx: false, indirect: 0 };
        let mut transmit = DriverRing::new(&memory, options).unwrap();
        if in_order {
            transmit.expect_in_order();
        }
        let mut receive = DriverRing::new(&memory, options).unwrap();
        let mut buffers = vec![0; usize::from(size)];
        let mut buffer = 0;
        for number in 0..posted {
            if number < 256 {
                buffer = memory.allocate(VuSink::stride(BUFFER as usize), 64).unwrap();
            }
            buffers[usize::from(receive.add(&[Iovec::writable(buffer, BUFFER as u32)]).unwrap())] = buffer;
        }
        receive.publish();
        let frame = memory.allocate(65536, 64).unwrap();
        // No hole of its memory: its kernel has written what it sends.
        memory.fill(frame, 65536, 0).unwrap();
        let rings = (device::ring(&transmit, &map, 0), device::ring(&receive, &map, 0));
        (Self { memory, transmit, receive, frame, buffers }, rings.0, rings.1)
    }

    /// Makes `count` frames of `length` bytes from `from` to `to` available.
    pub fn send(&mut self, from: u16, to: u16, length: u32, count: usize) {
        let mut start = [0; 12 + 14];
        start[12..18].copy_from_slice(&address(to));
        start[18..24].copy_from_slice(&address(from));
        self.memory.write(self.frame, &start).unwrap();
        for _ in 0..count {
            self.transmit.add(&[Iovec::readable(self.frame, 12 + length)]).unwrap();
        }
        self.transmit.publish();
    }

    /// Reclaims completed transmit chains.
    pub fn reclaim(&mut self) {
        while self.transmit.reclaim().unwrap().is_some() {}
    }

    /// Makes as many frames of `length` bytes from `from` to `to` available as the ring takes.
    pub fn fill(&mut self, from: u16, to: u16, length: u32) {
        self.reclaim();
        self.send(from, to, length, self.transmit.free().into());
    }

    /// Takes the frames in `most` receive buffers, and the rest of the last frame, and posts the buffers again; `each` gets the
    /// sender's index and the bytes of each buffer.
    pub fn take(&mut self, most: usize, mut each: impl FnMut(u16, u32)) {
        let (mut sender, mut left, mut taken) = (0, 0_u16, 0);
        while (taken < most || left > 0)
            && let Some(used) = self.receive.poll().unwrap()
        {
            taken += 1;
            let buffer = self.buffers[used.head as usize];
            let mut skip = 0;
            if left == 0 {
                let start = self.memory.bytes(buffer, 12 + 14).unwrap();
                (sender, left, skip) = (u16::from_be_bytes([start[22], start[23]]), u16::from_le_bytes([start[10], start[11]]), 12);
            }
            left -= 1;
            each(sender, used.length - skip);
            self.receive.offer(used.head as u16);
        }
        assert_eq!(left, 0, "a frame in parts");
        self.receive.publish();
    }

    /// Reclaims all transmit chains, and takes all received frames; returns the number of the latter. Receive buffers are posted
    /// again.
    pub fn settle(&mut self) -> usize {
        self.reclaim();
        let mut received = 0;
        while let Some(used) = self.receive.poll().unwrap() {
            received += 1;
            self.receive.offer(used.head as u16);
        }
        self.receive.publish();
        received
    }
}
