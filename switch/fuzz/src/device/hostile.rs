//! A hostile guest: two rings at fixed places of a memory that is written as the script says.

use std::sync::mpsc::channel;

use memlane::memory::MemoryMap;
use memlane::port::PortId;
use memlane::ring::{Areas, Delivery, Intake, Ring, RingOptions, SplitRing};
use memlane::worker::{Direction, Place, Start, Worker};

use super::memory::{GUEST, Memory};
use super::{acts, key};

use super::super::offload::offloads;
use super::super::script::Script;

/// Entries of its rings.
const SIZE: u16 = 16;
/// Offsets of the intake's areas; the delivery's lie [`DELIVERY`] further.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x200;
const DELIVERY: u64 = 0x400;
/// Where well-made frames and receive buffers lie: the first near the end of the first region.
const FRAMES: u64 = 0xb000;
const BUFFERS: u64 = 0x1000;

/// See the module.
pub struct Hostile {
    port: u16,
    memory: Memory,
    map: std::sync::Arc<MemoryMap>,
    /// Intake, delivery.
    running: [bool; 2],
    enabled: bool,
    slot: u16,
    frames: u64,
}

fn start_of(direction: Direction) -> u64 {
    if direction == Direction::Intake { 0 } else { DELIVERY }
}

impl Hostile {
    pub fn new(port: u16, worker: &mut Worker) -> Self {
        let memory = Memory::new();
        let map = memory.map();
        let mut hostile = Self { port, memory, map, running: [false; 2], enabled: true, slot: 0, frames: 0 };
        hostile.start(Direction::Intake, 0x7f03, 0, worker);
        hostile.start(Direction::Delivery, 0x0007, 0, worker);
        hostile
    }

    pub fn act(&mut self, act: u8, direction: Direction, script: &mut Script, worker: &mut Worker) {
        let start = start_of(direction);
        match act {
            acts::SCRIBBLE => {
                let (offset, length) = (script.word(), script.byte());
                self.memory.write(offset.into(), script.bytes((length % 64).into()));
            }
            acts::DESCRIBE => {
                let index = u64::from(script.byte() % SIZE as u8);
                let (offset, length) = (script.word(), script.word());
                let (flags, next) = (script.byte(), script.byte());
                self.describe(start + 16 * index, offset.into(), length.into(), flags.into(), next.into());
            }
            acts::OFFER => self.offer(start, script.byte().into()),
            acts::JUMP => self.memory.write(start + AVAILABLE + 2, &script.array::<2>()),
            acts::SEND => self.send(script),
            acts::POST => self.post(script),
            acts::RESTART => {
                let (options, base) = (script.word(), script.word());
                self.stop_ring(direction, worker);
                self.start(direction, options, base, worker);
            }
            acts::ENABLE => self.enable(direction, script.flag(), worker),
            acts::REMAP => self.remap(direction, worker),
            _ => worker.inject(PortId(self.port), &script.array::<60>()),
        }
    }

    fn describe(&self, at: u64, offset: u64, length: u32, flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&(GUEST + offset).to_le_bytes());
        descriptor[8..12].copy_from_slice(&length.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(at, &descriptor);
    }

    fn offer(&self, start: u64, head: u16) {
        let index = self.memory.word(start + AVAILABLE + 2);
        self.memory.write(start + AVAILABLE + 4 + 2 * u64::from(index % SIZE), &head.to_le_bytes());
        self.memory.write(start + AVAILABLE + 2, &index.wrapping_add(1).to_le_bytes());
    }

    /// A frame like that of an honest guest, in one, two or three descriptors or a table of two.
    fn send(&mut self, script: &mut Script) {
        let layout = script.byte();
        let header = script.array::<12>();
        let length = u32::from(script.word()) + 12;
        let count = script.byte();
        let at = FRAMES + self.frames % 4 * 0x600;
        self.memory.write(at, &header);
        self.memory.write(at + 12, script.bytes(count.into()));
        let head = (self.frames * 3 % u64::from(SIZE)) as u16;
        self.frames += 1;
        let cut = u32::from(layout >> 2).min(length);
        let [second, third] = [1, 2].map(|n| (head + n) % SIZE);
        let place = |index: u16| DESCRIPTORS + 16 * u64::from(index);
        match layout % 4 {
            0 => self.describe(place(head), at, length, 0, 0),
            1 => {
                self.describe(place(head), at, cut, 1, second);
                self.describe(place(second), at + u64::from(cut), length - cut, 0, 0);
            }
            2 => {
                self.describe(place(head), at, cut / 2, 1, second);
                self.describe(place(second), at + u64::from(cut / 2), cut - cut / 2, 1, third);
                self.describe(place(third), at + u64::from(cut), length - cut, 0, 0);
            }
            _ => {
                let table = 0x800 + 32 * u64::from(head);
                self.describe(table, at, cut, 1, 1);
                self.describe(table + 16, at + u64::from(cut), length - cut, 0, 0);
                self.describe(place(head), table, 32, 4, 0);
            }
        }
        self.offer(0, head);
    }

    fn post(&self, script: &mut Script) {
        let (count, length) = (script.byte() % (SIZE as u8 + 1), script.word());
        for index in 0..u16::from(count) {
            self.describe(DELIVERY + 16 * u64::from(index), BUFFERS + u64::from(index) * 0x800, length.into(), 2, 0);
            self.offer(DELIVERY, index);
        }
    }

    fn split(&self, direction: Direction) -> SplitRing {
        let start = start_of(direction);
        let areas = Areas {
            descriptors: Memory::find(&self.map, start + DESCRIPTORS, Areas::descriptor_bytes(SIZE)),
            available: Memory::find(&self.map, start + AVAILABLE, Areas::available_bytes(SIZE)),
            used: Memory::find(&self.map, start + USED, Areas::used_bytes(SIZE)),
        };
        // SAFETY: the map vouches for the areas, and the ring holds it.
        unsafe { SplitRing::new(areas, SIZE) }.expect("aligned areas")
    }

    /// Options: EVENT_IDX, INDIRECT_DESC, mergeable buffers, IN_ORDER, short header; in the second byte offloads.
    fn start(&mut self, direction: Direction, options: u16, base: u16, worker: &mut Worker) {
        let bit = |number: u32| options & 1 << number != 0;
        let header_length = if bit(4) { 10 } else { 12 };
        let ring_options = RingOptions { event_index: bit(0), indirect: bit(1), in_order: bit(3), header_length };
        let ring = Ring::new(self.split(direction), self.map.clone(), ring_options, base);
        let offloads = offloads((options >> 8) as u8);
        let start = Start { kick: None, at_once: true, enabled: true, session: 0 };
        let key = key(self.port, direction);
        self.running[usize::from(direction == Direction::Delivery)] = true;
        if direction == Direction::Intake {
            worker.add_intake(key, Intake::new(ring), offloads, start);
        } else {
            self.slot = worker.add_delivery(key, Delivery::new(ring, offloads, bit(2)), start);
            self.enabled = true;
            self.route(worker);
        }
    }

    fn route(&self, worker: &mut Worker) {
        let open = self.running[1] && self.enabled;
        let places = if open { vec![Place { worker: 0, slot: self.slot }] } else { Vec::new() };
        worker.set_route(PortId(self.port), places);
    }

    /// Stops both rings: what is out must be back at once, since this worker is the only one.
    pub fn stop(&mut self, worker: &mut Worker) {
        self.stop_ring(Direction::Delivery, worker);
        self.stop_ring(Direction::Intake, worker);
    }

    fn stop_ring(&mut self, direction: Direction, worker: &mut Worker) {
        let running = &mut self.running[usize::from(direction == Direction::Delivery)];
        if !std::mem::take(running) {
            return;
        }
        let key = key(self.port, direction);
        if direction == Direction::Delivery {
            self.route(worker);
            assert!(worker.stop_delivery(key).is_some());
        } else {
            let (reply, base) = channel();
            worker.stop_intake(key, reply);
            assert!(base.try_recv().is_ok(), "something is still out");
        }
    }

    fn enable(&mut self, direction: Direction, enabled: bool, worker: &mut Worker) {
        if direction == Direction::Delivery {
            self.enabled = enabled;
            self.route(worker);
        }
        worker.set_enabled(key(self.port, direction), enabled);
    }

    fn remap(&mut self, direction: Direction, worker: &mut Worker) {
        if !self.running[usize::from(direction == Direction::Delivery)] {
            return;
        }
        // The other ring keeps the old mapping, as in the moment between two messages.
        self.map = self.memory.map();
        let (reply, done) = channel();
        worker.set_memory(key(self.port, direction), self.split(direction), self.map.clone(), reply);
        assert!(done.try_recv().is_ok(), "something is still out");
    }

    pub fn assert_canaries(&self) {
        self.memory.assert_canaries();
    }
}
