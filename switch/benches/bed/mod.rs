//! A bed for benches: one worker and its guests in one thread, without sockets.

use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::channel;

use memlane::memory::{MemoryMap, Region, RegionTable};
use memlane::offload::Offloads;
use memlane::port::PortId;
use memlane::ring::{Areas, Delivery, Intake, Ring, RingOptions, SplitRing};
use memlane::settings::Settings;
use memlane::stats::Counters;
use memlane::table::Table;
use memlane::worker::{Direction, Mailbox, Place, RingKey, Shared, Start, Worker, links};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Piece, RingOptions as DriverOptions};

/// Bytes of a buffer.
const BUFFER: u64 = 2048;

/// A guest: its memory and its two rings.
pub struct Guest {
    pub memory: GuestMemory,
    pub transmit: DriverRing,
    pub receive: DriverRing,
    /// Guest address of a frame to send, virtio-net header first.
    frame: u64,
}

/// The worker and its guests; guest `n` has address 02:00:00:00:00:n.
pub struct Bed {
    pub worker: Worker,
    pub guests: Vec<Guest>,
}

impl Bed {
    /// A segment with `guests` guests, rings of 256 entries, receive buffers posted.
    pub fn new(guests: usize) -> Self {
        let settings = Settings::default();
        let shared = Arc::new(Shared::new(1, vec![0; guests], 77, settings));
        let mailbox = Mailbox::new().unwrap();
        let links = links(&[Arc::clone(&mailbox)]).remove(0);
        let mut worker = Worker::new(0, shared, mailbox, links, channel().0).unwrap();
        let guests = (0..guests).map(|index| Guest::attach(&mut worker, index as u16)).collect();
        Self { worker, guests }
    }
}

fn address(index: u16) -> [u8; 6] {
    let [a, b] = index.to_be_bytes();
    [2, 0, 0, 0, a, b]
}

impl Guest {
    fn attach(worker: &mut Worker, index: u16) -> Self {
        let memory = GuestMemory::new(4 << 20).unwrap();
        let region = &memory.regions()[0];
        let table = RegionTable {
            guest_start: region.guest(),
            length: region.size(),
            user_start: region.user(),
            file_offset: region.file_offset(),
        };
        let file = File::from(memory.file().try_clone_to_owned().unwrap());
        let map = Arc::new(MemoryMap::new(vec![Arc::new(Region::map(table, file).unwrap())]).unwrap());
        let options = DriverOptions { size: 256, event_idx: false, indirect: 0 };
        let transmit = DriverRing::new(&memory, options).unwrap();
        let mut receive = DriverRing::new(&memory, options).unwrap();
        for _ in 0..256 {
            let buffer = memory.allocate(BUFFER, 64).unwrap();
            receive.add(&[Piece::writable(buffer, BUFFER as u32)]).unwrap();
        }
        receive.publish();
        let frame = memory.allocate(65536, 64).unwrap();
        let key = |direction| RingKey { port: PortId(index), pair: 0, direction };
        let start = || Start { kick: None, at_once: true, enabled: true };
        worker.add_intake(key(Direction::Intake), Intake::new(ring(&transmit, &map)), Offloads::ALL, start());
        let slot = worker.add_delivery(key(Direction::Delivery), Delivery::new(ring(&receive, &map), Offloads::ALL, true), start());
        worker.set_route(PortId(index), vec![Place { worker: 0, slot }]);
        Self { memory, transmit, receive, frame }
    }

    /// Makes `count` frames of `length` bytes from `from` to `to` available.
    pub fn send(&mut self, from: u16, to: u16, length: u32, count: usize) {
        let mut start = [0; 12 + 14];
        start[12..18].copy_from_slice(&address(to));
        start[18..24].copy_from_slice(&address(from));
        self.memory.write(self.frame, &start).unwrap();
        for _ in 0..count {
            self.transmit.add(&[Piece::readable(self.frame, 12 + length)]).unwrap();
        }
        self.transmit.publish();
    }

    /// Takes everything back; returns the frames received. Receive buffers are posted again.
    pub fn settle(&mut self) -> usize {
        while self.transmit.reclaim().unwrap().is_some() {}
        let mut received = 0;
        while let Some(used) = self.receive.poll().unwrap() {
            received += 1;
            self.receive.offer(used.head as u16);
        }
        self.receive.publish();
        received
    }
}

fn ring(driver: &DriverRing, map: &Arc<MemoryMap>) -> Ring {
    let addresses = driver.shared().addresses();
    let size = driver.options().size;
    let find = |address, length| map.find_user(user(map, address), length).unwrap();
    let areas = Areas {
        descriptors: find(addresses.descriptors, Areas::descriptor_bytes(size)),
        available: find(addresses.available, Areas::available_bytes(size)),
        used: find(addresses.used, Areas::used_bytes(size)),
    };
    // SAFETY: the map vouches for the areas, and the ring holds it.
    let split = unsafe { SplitRing::new(areas, size) }.unwrap();
    Ring::new(split, Arc::clone(map), RingOptions { event_index: false, indirect: true, in_order: false, header_length: 12 }, 0)
}

/// The front end's address of guest address `address`.
fn user(map: &MemoryMap, address: u64) -> u64 {
    let table = map.regions()[0].table();
    address - table.guest_start + table.user_start
}
