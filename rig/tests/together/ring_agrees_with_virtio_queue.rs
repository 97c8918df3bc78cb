//! The driver's rings against the `virtio-queue` crate as the device: random chains, direct and indirect, completions out
//! of order, indices that wrap, notifications that must not be missed.

use std::collections::VecDeque;
use std::io::{Read, Write};

use crate::virtio_queue_device;
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Interrupts, Iovec, RingOptions};
use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// The device's view of the same memory.
fn mapped(memory: &GuestMemory) -> GuestMemoryMmap {
    let region = &memory.regions()[0];
    let file = memory.file().try_clone_to_owned().unwrap().into();
    let offset = FileOffset::new(file, region.file_offset());
    let range = (GuestAddress(region.guest()), region.size() as usize, Some(offset));
    GuestMemoryMmap::from_ranges_with_files([range]).unwrap()
}

/// A descriptor chain to send: lengths of its readable and writable buffer segments, and whether through an indirect table.
#[derive(Debug, Clone)]
struct Chain {
    readable: Vec<u32>,
    writable: Vec<u32>,
    indirect: bool,
}

fn chain() -> impl Strategy<Value = Chain> {
    let lengths = || prop::collection::vec(1u32..300, 0..4);
    (lengths(), lengths(), any::<bool>())
        .prop_map(|(readable, writable, indirect)| Chain { readable, writable, indirect })
        .prop_filter("a chain has buffer segments", |chain| chain.readable.len() + chain.writable.len() > 0)
}

#[derive(Debug, Clone)]
enum Act {
    Send(Chain),
    /// The device takes a chain.
    Take,
    /// The device returns the chain that it has held for so many turns (modulo).
    Return(usize),
    /// The driver polls.
    Poll,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => chain().prop_map(Act::Send),
        3 => Just(Act::Take),
        3 => any::<usize>().prop_map(Act::Return),
        2 => Just(Act::Poll),
    ]
}

struct Sent {
    readable: Vec<u8>,
    writable: Vec<Iovec>,
}

struct Bed {
    memory: GuestMemory,
    device_memory: GuestMemoryMmap,
    ring: DriverRing,
    queue: Queue,
    /// Guest address of the next buffer; buffers are never used twice here.
    next: u64,
    sent: Vec<Option<Sent>>,
    expected: VecDeque<u16>,
    held: Vec<(u16, u32)>,
    returned: VecDeque<(u16, u32)>,
    stamp: u8,
}

impl Bed {
    fn new(options: RingOptions, start: u16) -> Self {
        let memory = GuestMemory::new(64 << 20).unwrap();
        let mut ring = DriverRing::new(&memory, options).unwrap();
        ring.reset(start).unwrap();
        let queue = virtio_queue_device::device(&ring, start);
        Self {
            device_memory: mapped(&memory),
            next: memory.allocate(48 << 20, 16).unwrap(),
            sent: (0..options.size).map(|_| None).collect(),
            memory,
            ring,
            queue,
            expected: VecDeque::new(),
            held: Vec::new(),
            returned: VecDeque::new(),
            stamp: 0,
        }
    }

    fn iovecs(&mut self, lengths: &[u32], writable: bool) -> Vec<Iovec> {
        let mut iovec = |&length| {
            let address = self.next;
            self.next += u64::from(length) + 3;
            Iovec { address, length, writable }
        };
        lengths.iter().map(&mut iovec).collect()
    }

    fn send(&mut self, chain: &Chain) {
        let readable = self.iovecs(&chain.readable, false);
        let writable = self.iovecs(&chain.writable, true);
        let iovecs = [readable.clone(), writable.clone()].concat();
        let added = if chain.indirect { self.ring.add_indirect(&iovecs) } else { self.ring.add(&iovecs) };
        let Ok(head) = added else {
            let needed = if chain.indirect { 1 } else { iovecs.len() };
            assert!(usize::from(self.ring.free()) < needed, "refused although there is room");
            return;
        };
        let mut bytes = Vec::new();
        for iovec in &readable {
            self.stamp = self.stamp.wrapping_add(1);
            let part = vec![self.stamp; iovec.length as usize];
            self.memory.write(iovec.address, &part).unwrap();
            bytes.extend(part);
        }
        assert!(self.sent[usize::from(head)].replace(Sent { readable: bytes, writable }).is_none());
        self.expected.push_back(head);
        self.ring.publish();
    }

    fn take(&mut self) {
        let popped = self.queue.pop_descriptor_chain(&self.device_memory);
        assert_eq!(popped.as_ref().map(|chain| chain.head_index()), self.expected.pop_front());
        let Some(chain) = popped else { return };
        let head = chain.head_index();
        let mut bytes = Vec::new();
        chain.clone().reader(&self.device_memory).unwrap().read_to_end(&mut bytes).unwrap();
        let sent = self.sent[usize::from(head)].as_ref().unwrap();
        assert_eq!(bytes, sent.readable);
        let mut writer = chain.writer(&self.device_memory).unwrap();
        let room = writer.available_bytes();
        assert_eq!(room as u32, sent.writable.iter().map(|iovec| iovec.length).sum::<u32>());
        writer.write_all(&vec![head as u8; room]).unwrap();
        self.held.push((head, room as u32));
    }

    fn give_back(&mut self, which: usize) {
        if !self.held.is_empty() {
            let (head, length) = self.held.swap_remove(which % self.held.len());
            self.queue.add_used(&self.device_memory, head, length).unwrap();
            self.returned.push_back((head, length));
        }
    }

    fn poll(&mut self) {
        let used = self.ring.reclaim().unwrap();
        let expected = self.returned.pop_front();
        assert_eq!(used.map(|used| (used.head as u16, used.length)), expected);
        let Some((head, _)) = expected else { return };
        let sent = self.sent[usize::from(head)].take().unwrap();
        for iovec in sent.writable {
            let bytes = self.memory.bytes(iovec.address, iovec.length as usize).unwrap();
            assert!(bytes.iter().all(|&byte| byte == head as u8));
        }
    }

    fn run(&mut self, act: &Act) {
        match act {
            Act::Send(chain) => self.send(chain),
            Act::Take => self.take(),
            Act::Return(which) => self.give_back(*which),
            Act::Poll => self.poll(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// In any order of the two sides' acts, the device sees the chains as they were sent, and the driver gets them back as they
    /// were returned. Indices start near the end of their range, so that they wrap.
    #[test]
    fn chains_travel_unharmed(acts in prop::collection::vec(act(), 1..300), size in 0u32..7, start in 65_400u16..=65_535) {
        let options = RingOptions { size: 1 << size, event_idx: true, indirect: 8 };
        let mut bed = Bed::new(options, start);
        for act in &acts {
            bed.run(act);
        }
    }

    /// Neither side sleeps while there is something to do: with both suppressing notifications as they like, a device that looks
    /// only after a kick and a driver that looks only after an interrupt still finish everything.
    #[test]
    fn no_notification_is_missed(counts in prop::collection::vec(1usize..6, 1..60), event_idx in any::<bool>()) {
        let options = RingOptions { size: 8, event_idx, indirect: 0 };
        let mut bed = Bed::new(options, 65_500);
        let one = Chain { readable: vec![8], writable: vec![], indirect: false };
        let (mut sent, mut finished) = (0, 0);
        for count in counts {
            bed.queue.enable_notification(&bed.device_memory).unwrap();
            prop_assert!(!bed.ring.set_interrupts(Interrupts::Next), "something came that nobody sent");
            let before = bed.expected.len();
            for _ in 0..count {
                bed.send(&one);
            }
            sent += bed.expected.len() - before;
            prop_assert!(bed.ring.kick_needed(), "an armed device is kicked");
            while !bed.expected.is_empty() {
                bed.take();
                bed.give_back(0);
            }
            prop_assert!(bed.queue.needs_notification(&bed.device_memory).unwrap(), "an armed driver is called");
            while !bed.returned.is_empty() {
                bed.poll();
                finished += 1;
            }
        }
        prop_assert_eq!(sent, finished);
    }
}

#[test]
fn rings_of_all_sizes_go_round() {
    for power in 0..=15 {
        let options = RingOptions { size: 1 << power, event_idx: false, indirect: 0 };
        let memory = GuestMemory::new(8 << 20).unwrap();
        let mut ring = DriverRing::new(&memory, options).unwrap();
        let mut queue = virtio_queue_device::device(&ring, 0);
        let device_memory = mapped(&memory);
        let buffer = memory.allocate(64, 64).unwrap();
        for _ in 0..3 {
            let heads: Vec<u16> = (0..options.size).map(|_| ring.add(&[Iovec::readable(buffer, 64)]).unwrap()).collect();
            assert!(ring.add(&[Iovec::readable(buffer, 64)]).is_err(), "full");
            ring.publish();
            for head in heads {
                assert_eq!(queue.pop_descriptor_chain(&device_memory).unwrap().head_index(), head);
                queue.add_used(&device_memory, head, 0).unwrap();
                assert_eq!(ring.reclaim().unwrap().unwrap().head, u32::from(head));
            }
        }
    }
    let memory = GuestMemory::new(1 << 20).unwrap();
    for wrong in [0, 3, 1000, 32769] {
        assert!(DriverRing::new(&memory, RingOptions::new(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn a_lying_device_is_found_out() {
    let memory = GuestMemory::new(1 << 20).unwrap();
    let mut ring = DriverRing::new(&memory, RingOptions::new(8)).unwrap();
    ring.shared().set_used_entry(0, memlane_rig::ring::Used { head: 5, length: 0 });
    ring.shared().set_used_index(1);
    assert!(ring.poll().unwrap_err().to_string().contains("not out"));
    ring.shared().set_used_index(100);
    assert!(ring.poll().unwrap_err().to_string().contains("by more than"));
}
