//! A hostile guest: two rings at fixed places of a memory that is written as the script says.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use memlane::id::{Direction, PortId, RouteEntry, Slot};
use memlane::memory::MemoryMap;
use memlane::port::Port;
use memlane::ring::{Areas, ReceiveQueue, Ring, RingOptions, SplitRing, StoppedRing, TransmitQueue};
use memlane::worker::{Start, Worker};

use super::honest::address;
use super::memory::{GUEST, Memory};
use super::watch::Watch;
use super::{Workers, acts, key};

use super::super::offload::offloads;
use super::super::script::Script;

/// Entries of its usual rings, and sizes that the script may choose instead.
const SIZE: u16 = 16;
const SIZES: [u16; 4] = [SIZE, 256, 1024, 32768];
/// Offsets of the transmit queue's areas; the receive queue's lie [`RECEIVE`] further.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x200;
const RECEIVE: u64 = 0x400;
/// Addresses of the larger rings; the receive queue's lie [`LARGE_RECEIVE`] further.
const LARGE: u64 = 0x1_0000;
const LARGE_AVAILABLE: u64 = 0x8_0000;
const LARGE_USED: u64 = 0x9_1000;
const LARGE_RECEIVE: u64 = 0x10_0000;
/// Where well-made frames and receive buffers lie: the first near the end of the first region.
const FRAMES: u64 = 0xb000;
const BUFFERS: u64 = 0x1000;
/// Chains that are offered a step where a script has many.
const BURST: u32 = 32;

/// How a ring stands with its worker.
enum RingState {
    Stopped,
    Running,
    /// The ring was told to stop, and has not answered; then it is to begin anew with these options and this base.
    Stopping(Receiver<StoppedRing>, Option<(u16, u16)>),
    /// The ring was told of other memory, and has not answered.
    Moving(Receiver<()>),
}

/// One of its rings.
struct Side {
    state: RingState,
    size: u16,
    /// The ring's own mapping, which the switch must not use after the ring is stopped.
    map: Arc<MemoryMap>,
    /// Where its worker has it.
    slot: Slot,
}

/// See the module.
pub struct Hostile {
    named: Arc<Port>,
    port: u16,
    /// The worker of its rings.
    home: u8,
    memory: Rc<Memory>,
    /// Transmit queue, receive queue.
    sides: [Side; 2],
    enabled: bool,
    frames: u64,
    /// The port's transmit queue has stopped since this was last asked.
    stopped: bool,
}

fn index(direction: Direction) -> usize {
    usize::from(direction == Direction::Receive)
}

/// Offsets of the areas of a ring.
fn places(direction: Direction, size: u16) -> [u64; 3] {
    let (small, large) = if direction == Direction::Transmit { (0, LARGE) } else { (RECEIVE, LARGE + LARGE_RECEIVE) };
    if size == SIZE {
        [DESCRIPTORS, AVAILABLE, USED].map(|at| at + small)
    } else {
        [0, LARGE_AVAILABLE, LARGE_USED].map(|at| at + large)
    }
}

impl Hostile {
    pub fn new(named: &Arc<Port>, home: u8, workers: &mut Workers, watch: &Watch) -> Self {
        let memory = Rc::new(Memory::new());
        let side = || Side { state: RingState::Stopped, size: SIZE, map: memory.map(), slot: Slot::default() };
        let sides = [side(), side()];
        let (named, port) = (Arc::clone(named), named.id.0);
        let mut hostile = Self { named, port, home, memory, sides, enabled: true, frames: 0, stopped: false };
        hostile.start(Direction::Transmit, 0x7f03, 0, workers, watch);
        hostile.start(Direction::Receive, 0x0007, 0, workers, watch);
        hostile
    }

    fn worker<'a>(&self, workers: &'a mut Workers) -> &'a mut Worker {
        &mut workers[usize::from(self.home)]
    }

    fn places(&self, direction: Direction) -> [u64; 3] {
        places(direction, self.sides[index(direction)].size)
    }

    pub fn act(&mut self, act: u8, direction: Direction, script: &mut Script, workers: &mut Workers, watch: &Watch) {
        let [descriptors, available, _] = self.places(direction);
        match act {
            acts::SCRIBBLE => {
                let (offset, length) = (script.word(), script.byte());
                self.memory.write(offset.into(), script.bytes((length % 64).into()));
            }
            acts::DESCRIBE => {
                let index = u64::from(script.byte() % SIZE as u8);
                let (offset, length) = (script.word(), script.word());
                let (flags, next) = (script.byte(), script.byte());
                self.describe(descriptors + 16 * index, offset.into(), length.into(), flags.into(), next.into());
            }
            acts::OFFER => self.offer(direction, script.byte().into()),
            acts::JUMP => self.memory.write(available + 2, &script.array::<2>()),
            acts::SEND => self.send(script),
            acts::POST => self.post(script),
            acts::RESTART => {
                let (options, base) = (script.word(), script.word());
                self.stop_ring(direction, Some((options, base)), workers, watch);
            }
            acts::STOP => self.stop_ring(direction, None, workers, watch),
            acts::ENABLE => self.enable(direction, script.flag(), workers),
            acts::REMAP => self.remap(direction, workers, watch),
            acts::FILL => self.fill(direction, script),
            acts::RACE => {
                let (after, offset, length) = (script.byte(), script.word(), script.byte());
                watch.race(&self.memory, after.into(), offset.into(), script.bytes((length % 64).into()));
            }
            acts::KEEP => self.keep(direction, script.flag(), watch),
            _ => {
                // The switch makes such frames itself, with an address that is the port's.
                let mut frame = script.array::<60>();
                frame[6..12].copy_from_slice(&address(self.port));
                workers.iter_mut().for_each(|worker| worker.inject(&self.named, &frame));
            }
        }
    }

    /// Where the switch sees the index of a ring.
    fn index_place(&self, direction: Direction) -> usize {
        let available = self.places(direction)[1];
        Memory::find(&self.sides[index(direction)].map, available + 2, 2).addr()
    }

    fn keep(&self, direction: Direction, wanted: bool, watch: &Watch) {
        let place = self.index_place(direction);
        watch.keep_no_more(place);
        if wanted {
            watch.keep(&self.memory, place, self.places(direction)[1] + 2);
        }
    }

    /// Descriptors and heads for all of a ring: chained one to the next or alone, empty, wrong or good, those of the transmit queue with the last frames
    /// that were sent; then so many are made available.
    fn fill(&self, direction: Direction, script: &mut Script) {
        let (kind, length, count) = (script.byte(), script.word(), script.word());
        let [descriptors, available, _] = self.places(direction);
        let size = self.sides[index(direction)].size;
        let right = if direction == Direction::Receive { 2 } else { 0 };
        let flags = u16::from(kind & 1) | if kind & 2 != 0 { right ^ 2 } else { right };
        for index in 0..size {
            let at = match direction {
                Direction::Transmit => FRAMES + u64::from(index % 4) * 0x600,
                Direction::Receive => BUFFERS + u64::from(index % SIZE) * 0x800,
            };
            self.describe(descriptors + 16 * u64::from(index), at, length.into(), flags, (index + 1) % size);
            self.memory.write(available + 4 + 2 * u64::from(index), &index.to_le_bytes());
        }
        let last = self.memory.word(available + 2).wrapping_add(count.min(size));
        self.memory.write(available + 2, &last.to_le_bytes());
    }

    /// Begins to make one head of the transmit queue available again and again; returns the head, and how many times.
    pub fn begin_stream(&self, script: &mut Script) -> (u16, u32) {
        (script.byte().into(), u32::from(script.word()))
    }

    /// Makes `head` available up to [`BURST`] times, `left` at most; returns how many are left.
    pub fn stream(&self, head: u16, left: u32) -> u32 {
        let burst = left.min(BURST).min(self.sides[0].size.into());
        (0..burst).for_each(|_| self.offer(Direction::Transmit, head));
        left - burst
    }

    fn describe(&self, at: u64, offset: u64, length: u32, flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&(GUEST + offset).to_le_bytes());
        descriptor[8..12].copy_from_slice(&length.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(at, &descriptor);
    }

    fn offer(&self, direction: Direction, head: u16) {
        let [_, available, _] = self.places(direction);
        let position = self.memory.word(available + 2);
        let entry = u64::from(position % self.sides[index(direction)].size);
        self.memory.write(available + 4 + 2 * entry, &head.to_le_bytes());
        self.memory.write(available + 2, &position.wrapping_add(1).to_le_bytes());
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
        let [descriptors, ..] = self.places(Direction::Transmit);
        let head = (self.frames * 3 % u64::from(SIZE)) as u16;
        self.frames += 1;
        let cut = u32::from(layout >> 2).min(length);
        let [second, third] = [1, 2].map(|n| (head + n) % SIZE);
        let place = |index: u16| descriptors + 16 * u64::from(index);
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
        self.offer(Direction::Transmit, head);
    }

    fn post(&self, script: &mut Script) {
        let (count, length) = (script.byte() % (SIZE as u8 + 1), script.word());
        self.post_buffers(count.into(), length);
    }

    fn post_buffers(&self, count: u16, length: u16) {
        let [descriptors, ..] = self.places(Direction::Receive);
        for index in 0..count {
            self.describe(descriptors + 16 * u64::from(index), BUFFERS + u64::from(index) * 0x800, length.into(), 2, 0);
            self.offer(Direction::Receive, index);
        }
    }

    /// Posts receive buffers for frames that wait, if there are none.
    pub fn post_all(&self) {
        let [_, available, used] = self.places(Direction::Receive);
        if self.memory.word(available + 2) == self.memory.word(used + 2) {
            self.post_buffers(SIZE, 2048);
        }
    }

    fn split(&self, direction: Direction) -> SplitRing {
        let (side, [descriptors, available, used]) = (&self.sides[index(direction)], self.places(direction));
        let areas = Areas {
            descriptors: Memory::find(&side.map, descriptors, Areas::descriptor_bytes(side.size)),
            available: Memory::find(&side.map, available, Areas::available_bytes(side.size)),
            used: Memory::find(&side.map, used, Areas::used_bytes(side.size)),
        };
        // SAFETY: the map vouches for the areas, and the ring holds it.
        unsafe { SplitRing::new(areas, side.size) }.expect("aligned areas")
    }

    /// Options: EVENT_IDX, INDIRECT_DESC, mergeable buffers, IN_ORDER, short header, two bits of size; in the second byte offloads.
    fn start(&mut self, direction: Direction, options: u16, base: u16, workers: &mut Workers, watch: &Watch) {
        let bit = |number: u32| options & 1 << number != 0;
        let header_length = if bit(4) { 10 } else { 12 };
        let ring_options = RingOptions { event_index: bit(0), indirect: bit(1), in_order: bit(3), header_length };
        self.keep(direction, false, watch);
        let map = self.memory.map();
        self.sides[index(direction)] =
            Side { state: RingState::Running, size: SIZES[usize::from(options >> 5 & 3)], map, slot: Slot::default() };
        let ring = Ring::new(self.split(direction), self.sides[index(direction)].map.clone(), ring_options, base);
        let offloads = offloads((options >> 8) as u8);
        let start = Start { kick: None, at_once: true, enabled: true, session: 0 };
        let (key, worker) = (key(self.port, direction), self.worker(workers));
        if direction == Direction::Transmit {
            worker.add_transmit_queue(key, TransmitQueue::new(ring), offloads, start);
        } else {
            let slot =
                worker.add_receive_queue(key, ReceiveQueue::new(ring, offloads, bit(2)), start).expect("a port that has come");
            self.sides[1].slot = slot;
            self.enabled = true;
            self.route(workers);
        }
    }

    fn route(&self, workers: &mut Workers) {
        let open = matches!(self.sides[1].state, RingState::Running) && self.enabled;
        let places = if open { vec![RouteEntry { worker: self.home, slot: self.sides[1].slot }] } else { Vec::new() };
        workers.iter_mut().for_each(|worker| worker.set_route(PortId(self.port), places.clone()));
    }

    /// Has both rings stop. The transmit queue answers when its frames in flight are completed.
    pub fn stop(&mut self, workers: &mut Workers, watch: &Watch) {
        self.stop_ring(Direction::Receive, None, workers, watch);
        self.stop_ring(Direction::Transmit, None, workers, watch);
    }

    /// Has a ring stop, and begin anew if `then` says so.
    fn stop_ring(&mut self, direction: Direction, then: Option<(u16, u16)>, workers: &mut Workers, watch: &Watch) {
        let (key, home, side) = (key(self.port, direction), usize::from(self.home), index(direction));
        match &mut self.sides[side].state {
            RingState::Moving(_) => {}
            RingState::Stopping(_, later) => *later = then,
            RingState::Stopped => self.begin_anew(direction, then, workers, watch),
            state @ RingState::Running => {
                if direction == Direction::Receive {
                    *state = RingState::Stopped;
                    self.route(workers);
                    assert!(workers[home].stop_receive_queue(key).is_some());
                    self.begin_anew(direction, then, workers, watch);
                } else {
                    let (reply, base) = channel();
                    *state = RingState::Stopping(base, then);
                    workers[home].stop_transmit_queue(key, reply);
                    self.heed(workers, watch);
                }
            }
        }
    }

    fn begin_anew(&mut self, direction: Direction, then: Option<(u16, u16)>, workers: &mut Workers, watch: &Watch) {
        self.keep(direction, false, watch);
        // From here on the old mapping must not be touched; the new one is made before that goes, so that it does not lie in its
        // place.
        match then {
            Some((options, base)) => self.start(direction, options, base, workers, watch),
            None => self.sides[index(direction)].map = self.memory.map(),
        }
    }

    /// True if its transmit queue has stopped since this was last asked.
    pub fn has_stopped(&mut self) -> bool {
        std::mem::take(&mut self.stopped)
    }

    /// Takes the workers' answers.
    pub fn heed(&mut self, workers: &mut Workers, watch: &Watch) {
        let gone = "a worker answers or keeps the question";
        match &self.sides[0].state {
            RingState::Stopping(reply, then) => match reply.try_recv() {
                Err(TryRecvError::Empty) => {}
                answer => {
                    answer.expect(gone);
                    let then = *then;
                    self.sides[0].state = RingState::Stopped;
                    self.stopped = true;
                    self.begin_anew(Direction::Transmit, then, workers, watch);
                }
            },
            RingState::Moving(reply) => match reply.try_recv() {
                Err(TryRecvError::Empty) => {}
                answer => {
                    answer.expect(gone);
                    self.sides[0].state = RingState::Running;
                }
            },
            RingState::Stopped | RingState::Running => {}
        }
    }

    /// True while an answer is outstanding.
    pub fn is_waiting(&self) -> bool {
        matches!(self.sides[0].state, RingState::Stopping(..) | RingState::Moving(_))
    }

    fn enable(&mut self, direction: Direction, enabled: bool, workers: &mut Workers) {
        if direction == Direction::Receive {
            self.enabled = enabled;
            self.route(workers);
        }
        self.worker(workers).set_enabled(key(self.port, direction), enabled);
    }

    fn remap(&mut self, direction: Direction, workers: &mut Workers, watch: &Watch) {
        let side = index(direction);
        if !matches!(self.sides[side].state, RingState::Running) {
            return;
        }
        self.keep(direction, false, watch);
        // The other ring keeps its mapping, as in the moment between two messages.
        self.sides[side].map = self.memory.map();
        let (reply, done) = channel();
        let (split, map) = (self.split(direction), self.sides[side].map.clone());
        self.worker(workers).set_memory(key(self.port, direction), split, map, reply);
        if direction == Direction::Transmit {
            self.sides[side].state = RingState::Moving(done);
            self.heed(workers, watch);
        } else {
            assert!(done.try_recv().is_ok(), "a receive_queue moves at once");
        }
    }

    pub fn assert_canaries(&self) {
        self.memory.assert_canaries();
    }
}
