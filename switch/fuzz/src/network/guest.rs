//! A guest that keeps the rules: its memory, its virtqueues, and the habits of its driver.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use memlane::id::{Direction, RingKey};
use memlane::memory::MemoryMap;
use memlane::network::RingParts;
use memlane::offload::Offloads;
use memlane::port::Port;
use memlane::ring::{Call, RingOptions};
use memlane::worker::Start;
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Interrupts, Iovec, RingOptions as DriverOptions};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::super::device::sides;
use super::frames::Fault;
use super::{Dice, offloads};

/// Bytes of a virtio-net header.
const HEADER: usize = 12;
/// Bytes of a transmit buffer.
const BUFFER: usize = 2048;
/// Longest indirect descriptor table.
const TABLE: u16 = 4;

/// When the driver looks at the used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// After every poll iteration (busy polling).
    Polls,
    /// When an interrupt comes.
    Interrupted,
    /// Never, beyond the stall timeout.
    Stalled,
}

/// The habits of a driver, and its negotiated features.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    /// Entries of a virtqueue.
    size: u16,
    /// Bytes of a receive buffer; a frame may fill several (mergeable receive buffers).
    receive: u32,
    event_index: bool,
    indirect: bool,
    in_order: bool,
    /// Offloads that the guest may request, and that it accepts.
    pub offers: Offloads,
    pub accepts: Offloads,
    pub attention: Attention,
}

impl Habit {
    pub fn new(dice: &mut Dice, in_order: bool) -> Self {
        Self {
            size: dice.pick(&[16, 64, 256]),
            receive: dice.pick(&[128, 600, 2048, 2048]),
            event_index: dice.once_in(2),
            indirect: dice.once_in(2),
            in_order,
            offers: offloads::negotiated(dice),
            accepts: offloads::negotiated(dice),
            attention: if dice.once_in(2) { Attention::Polls } else { Attention::Interrupted },
        }
    }

    /// Whether its receive ring has room for all that a poll iteration brings.
    pub fn has_room(&self) -> bool {
        self.attention == Attention::Polls && (self.size, self.receive) == (256, 2048) && self.accepts == Offloads::ALL
    }
}

/// The two eventfds of a virtqueue.
#[derive(Debug)]
struct Events {
    kick: EventFd,
    call: EventFd,
}

impl Events {
    fn new() -> Self {
        let new = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).expect("an event descriptor");
        Self { kick: new(), call: new() }
    }

    fn copy(event: &EventFd) -> File {
        File::from(event.as_fd().try_clone_to_owned().expect("a descriptor") as OwnedFd)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Guest {
    pub life: usize,
    pub port: Arc<Port>,
    pub habit: Habit,
    memory: GuestMemory,
    map: Arc<MemoryMap>,
    pub transmit: DriverRing,
    receive: DriverRing,
    events: [Events; 2],
    /// Transmit buffers that are free, and those in flight by head.
    free: Vec<u64>,
    sending: Vec<u64>,
    /// Receive buffers by head of the descriptor chain.
    buffers: Vec<u64>,
    /// Numbers of the frames that the switch has not taken from the available ring, as far as is known.
    pub pending: VecDeque<u32>,
    /// Parts of a frame of which more are to come, and how many.
    parts: (Vec<u8>, u16),
    /// The used index of the receive queue when an interrupt was last looked for.
    seen: u16,
}

const DIRECTIONS: [Direction; 2] = [Direction::Transmit, Direction::Receive];

impl Guest {
    pub fn new(life: usize, port: Arc<Port>, habit: Habit) -> Self {
        let bytes = usize::from(habit.size) * (BUFFER + habit.receive as usize + 256) + (64 << 10);
        let memory = GuestMemory::new(bytes as u64).expect("memory");
        let options = DriverOptions { size: habit.size, event_idx: habit.event_index, indirect: 0 };
        let table = if habit.indirect { TABLE } else { 0 };
        let mut transmit = DriverRing::new(&memory, DriverOptions { indirect: table, ..options }).expect("room");
        if habit.in_order {
            transmit.expect_in_order();
        }
        let mut receive = DriverRing::new(&memory, options).expect("room");
        let allocate = |size: u32| memory.allocate(size.into(), 64).expect("room");
        let mut buffers = vec![0; usize::from(habit.size)];
        for _ in 0..habit.size {
            let buffer = allocate(habit.receive);
            buffers[usize::from(receive.add(&[Iovec::writable(buffer, habit.receive)]).expect("room"))] = buffer;
        }
        receive.publish();
        receive.set_interrupts(Interrupts::Next);
        let free = (0..habit.size).map(|_| allocate(BUFFER as u32)).collect();
        let map = sides::map(&memory);
        let sending = vec![0; usize::from(habit.size)];
        let events = [Events::new(), Events::new()];
        let (pending, parts) = (VecDeque::new(), (Vec::new(), 0));
        Self { life, port, habit, memory, map, transmit, receive, events, free, sending, buffers, pending, parts, seen: 0 }
    }

    /// Both virtqueues, to be started at `bases` of the available ring.
    pub fn parts(&self, bases: [u16; 2]) -> Vec<RingParts> {
        let session = self.port.session();
        DIRECTIONS
            .into_iter()
            .zip([&self.transmit, &self.receive])
            .zip(bases)
            .zip(&self.events)
            .map(|(((direction, ring), base), events)| RingParts {
                key: self.key(direction),
                split: sides::split(ring, &self.map),
                memory: Arc::clone(&self.map),
                options: RingOptions {
                    event_index: self.habit.event_index,
                    indirect: self.habit.indirect && direction == Direction::Transmit,
                    in_order: self.habit.in_order && direction == Direction::Transmit,
                    header_length: HEADER as u8,
                },
                base,
                call: Some(Call::new(Events::copy(&events.call)).expect("an event descriptor")),
                log: None,
                inflight: None,
                offloads: if direction == Direction::Transmit { self.habit.offers } else { self.habit.accepts },
                mergeable: true,
                start: Start { kick: Some(Events::copy(&events.kick)), at_once: true, enabled: true, session },
            })
            .collect()
    }

    pub fn key(&self, direction: Direction) -> RingKey {
        RingKey { port: self.port.id, pair: 0, direction }
    }

    /// The used indices in memory, at which another process continues.
    pub fn used(&self) -> [u16; 2] {
        [&self.transmit, &self.receive].map(|ring| ring.shared().used_index())
    }

    /// Makes a frame available with its virtio-net header, if there is a buffer for it; the driver has yet to kick.
    pub fn send(&mut self, number: u32, (header, bytes): ([u8; HEADER], &[u8]), dice: &mut Dice) -> bool {
        self.reclaim();
        let parts = self.parts_of(bytes.len(), dice);
        let is_indirect = self.habit.indirect && dice.once_in(2);
        let wanted = if is_indirect { 1 } else { parts.len() };
        if usize::from(self.transmit.free()) < wanted {
            return false;
        }
        let Some(buffer) = self.free.pop() else { return false };
        self.memory.write(buffer, &[&header, bytes].concat()).expect("inside memory");
        let iovecs: Vec<Iovec> = parts.iter().map(|&(at, length)| Iovec::readable(buffer + u64::from(at), length)).collect();
        let head =
            if is_indirect { self.transmit.add_indirect(&iovecs) } else { self.transmit.add(&iovecs) }.expect("free descriptors");
        self.sending[usize::from(head)] = buffer;
        self.transmit.publish();
        self.pending.push_back(number);
        true
    }

    /// Makes a descriptor chain with a fault available; see [`Self::send`].
    pub fn send_broken(&mut self, number: u32, fault: Fault) -> bool {
        self.reclaim();
        if self.transmit.free() == 0 {
            return false;
        }
        let Some(buffer) = self.free.pop() else { return false };
        let iovec = match fault {
            Fault::Short => Iovec::readable(buffer, HEADER as u32 + 3),
            Fault::Outside => Iovec::readable(1 << 50, 100),
            Fault::Writable => Iovec::writable(buffer, 100),
        };
        let head = self.transmit.add(&[iovec]).expect("a free descriptor");
        self.sending[usize::from(head)] = buffer;
        self.transmit.publish();
        self.pending.push_back(number);
        true
    }

    /// Places and lengths of the buffer segments of a frame of so many bytes.
    fn parts_of(&self, length: usize, dice: &mut Dice) -> Vec<(u32, u32)> {
        let length = (HEADER + length) as u32;
        match dice.below(4) {
            0 => vec![(0, HEADER as u32), (HEADER as u32, length - HEADER as u32)],
            1 => {
                let middle = 13 + dice.below(40) as u32;
                vec![(0, 5), (5, middle - 5), (middle, length - middle)]
            }
            _ => vec![(0, length)],
        }
    }

    /// Whether the switch asks for a kick for what is made available next.
    pub fn is_asked_to_kick(&self) -> bool {
        let ring = self.transmit.shared();
        match self.habit.event_index {
            true => ring.available_event() == self.transmit.published_index(),
            false => ring.used_flags() & 1 == 0,
        }
    }

    /// Whether the switch asks for a kick for what was made available in the transmit queue.
    pub fn kick_needed(&mut self) -> bool {
        self.transmit.kick_needed()
    }

    pub fn kick(&self) {
        self.events[0].kick.write(1).expect("room in a counter");
    }

    /// Reclaims completed descriptor chains from the used ring.
    pub fn reclaim(&mut self) {
        while let Some(used) = self.transmit.reclaim().expect("each chain is completed once") {
            self.free.push(self.sending[used.head as usize]);
        }
    }

    /// Looks at the rings as its driver would now; `each` gets the frames that arrived, behind their virtio-net headers.
    pub fn attend(&mut self, each: impl FnMut(&[u8])) {
        let is_due = match self.habit.attention {
            Attention::Polls => true,
            Attention::Interrupted => self.may_be_interrupted() && self.events[1].call.read().is_ok(),
            Attention::Stalled => false,
        };
        if is_due {
            self.reclaim();
            self.take(each);
        }
    }

    /// Whether there may be an interrupt: frames were delivered since this was last asked, or have yet to be taken. To look costs a system call.
    fn may_be_interrupted(&mut self) -> bool {
        let used = self.receive.shared().used_index();
        let before = std::mem::replace(&mut self.seen, used);
        used != before || used != self.receive.taken_index()
    }

    /// Takes all frames from the receive queue, and posts their receive buffers again.
    pub fn take(&mut self, mut each: impl FnMut(&[u8])) {
        loop {
            self.take_some(usize::MAX, &mut each);
            if self.habit.attention == Attention::Polls || !self.receive.set_interrupts(Interrupts::Next) {
                return;
            }
        }
    }

    /// Takes at most so many receive buffers, and posts them again.
    pub fn take_some(&mut self, most: usize, mut each: impl FnMut(&[u8])) {
        for _ in 0..most {
            let Some(used) = self.receive.poll().expect("each buffer is completed once") else { break };
            let length = used.length as usize;
            let bytes = self.memory.bytes(self.buffers[used.head as usize], length).expect("inside memory");
            self.receive.offer(used.head as u16);
            self.take_segment(&bytes, &mut each);
        }
        self.receive.publish();
        if self.receive.kick_needed() {
            self.events[1].kick.write(1).expect("room in a counter");
        }
    }

    /// Whether the switch can see which frames its driver has taken, and so that an interrupt was lost (EVENT_IDX).
    pub fn may_lose_interrupts(&self) -> bool {
        self.habit.attention == Attention::Interrupted && self.habit.event_index
    }

    /// The driver takes all frames, and has yet to ask for the next interrupt.
    pub fn begin_sleep(&mut self, each: impl FnMut(&[u8])) {
        self.take(each);
        self.receive.set_interrupts(Interrupts::Off);
        // An interrupt of before.
        let _ = self.events[1].call.read();
    }

    /// The driver asks for the next interrupt, and does not look again: it has no memory barriers.
    pub fn end_sleep(&mut self) {
        self.receive.set_interrupts(Interrupts::Next);
    }

    /// Whether frames lie in the receive queue that its driver would take when it is interrupted.
    pub fn is_to_be_interrupted(&self) -> bool {
        let has_frames = self.receive.shared().used_index() != self.receive.taken_index();
        self.habit.attention == Attention::Interrupted && has_frames
    }

    fn take_segment(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        let (frame, left) = &mut self.parts;
        if *left == 0 {
            *left = u16::from_le_bytes([bytes[10], bytes[11]]);
            assert!(*left > 0, "a frame in no buffer: {:?}", &bytes[..HEADER]);
            frame.clear();
        }
        frame.extend(bytes);
        *left -= 1;
        if *left == 0 {
            each(frame);
        }
    }
}
