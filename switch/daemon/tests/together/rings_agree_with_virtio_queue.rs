//! Our rings against those of the `virtio-queue` crate: the same driver speaks to both, and both must see the same frames, write
//! the same used rings, and decide alike on interrupts and kicks.
//!
//! The driver's memory is copied to a **twin** before the crate's device looks at it, so that each device has a used ring of its own.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, IntoRawFd};

use crate::bed::device;
use crate::virtio_queue_device;
use memlane::packet::Packet;
use memlane::ring::{Areas, Call, OpenOutcome, TransmitQueue, full_fence};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Interrupts, Iovec, RingOptions as DriverOptions};
use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

const MEMORY: u64 = 4 << 20;
const HEADER: usize = 12;

/// The next step.
#[derive(Clone, Debug)]
enum Act {
    /// The driver sends a frame of buffer segments of these lengths.
    Send(Vec<u32>, bool),
    /// The devices take and complete up to so many chains, and show it on the used ring.
    Work(usize),
    /// The driver reclaims completed chains, and wants an interrupt after so many more; none for 0.
    Reclaim(u16),
    /// The devices ask for kicks.
    Arm,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (prop::collection::vec(0_u32..300, 1..6), any::<bool>()).prop_map(|(lengths, indirect)| Act::Send(lengths, indirect)),
        3 => (1_usize..6).prop_map(Act::Work),
        2 => (0_u16..4).prop_map(Act::Reclaim),
        1 => Just(Act::Arm),
    ]
}

struct Bed {
    memory: GuestMemory,
    driver: DriverRing,
    /// Guest address of a ring of buffers.
    buffers: u64,
    sent: u64,
    ours: TransmitQueue,
    theirs: Queue,
    twin: GuestMemoryMmap,
    event_index: bool,
}

impl Bed {
    fn new(size: u16, event_index: bool, start: u16) -> Self {
        let memory = GuestMemory::new(MEMORY).unwrap();
        let options = DriverOptions { size, event_idx: event_index, indirect: 8 };
        let mut driver = DriverRing::new(&memory, options).unwrap();
        driver.reset(start).unwrap();
        let buffers = memory.allocate(2 << 20, 64).unwrap();
        let region = (GuestAddress(memory.regions()[0].guest()), MEMORY as usize);
        let twin = GuestMemoryMmap::from_ranges(&[region]).unwrap();
        let theirs = virtio_queue_device::device(&driver, start);
        let mut bed = Self { ours: transmit(&memory, &driver, start), memory, driver, buffers, sent: 0, theirs, twin, event_index };
        // Used ring and all, as it is at the start.
        let used = bed.driver.shared().addresses().used;
        bed.copy_to_twin(used, Areas::used_bytes(size));
        bed
    }

    fn copy_to_twin(&mut self, address: u64, length: u64) {
        let bytes = self.memory.bytes(address, length as usize).unwrap();
        self.twin.write_slice(&bytes, GuestAddress(address)).unwrap();
    }

    /// Shows the twin the driver's writes: all areas but the used ring.
    fn show(&mut self) {
        let (at, size) = (self.driver.shared().addresses(), self.driver.options().size);
        self.copy_to_twin(at.descriptors, Areas::descriptor_bytes(size));
        self.copy_to_twin(at.available, Areas::available_bytes(size));
    }

    fn send(&mut self, lengths: &[u32], indirect: bool) {
        let mut at = self.buffers + self.sent % 256 * 4096;
        let start = at;
        let mut iovecs = vec![Iovec::readable(at, HEADER as u32 + 14)];
        at += 26;
        for &length in lengths {
            iovecs.push(Iovec::readable(at, length));
            at += u64::from(length) + 5;
        }
        let added = if indirect { self.driver.add_indirect(&iovecs) } else { self.driver.add(&iovecs) };
        let Ok(head) = added else { return };
        self.sent += 1;
        // The virtio-net header asks for nothing.
        let bytes: Vec<u8> = (0..at - start).map(|n| if n < 12 { 0 } else { (n * 7 + self.sent) as u8 }).collect();
        self.memory.write(start, &bytes).unwrap();
        self.copy_to_twin(start, at - start);
        if indirect {
            let descriptor = self.driver.shared().descriptor(head);
            self.copy_to_twin(descriptor.address, descriptor.length.into());
        }
        self.driver.publish();
    }

    /// Both take chains, see the same frames, complete them and decide whether to send an interrupt.
    fn work(&mut self, most: usize) {
        self.show();
        let mut packet = Packet::default();
        let mut worked = 0;
        while worked < most && self.ours.look(most as u16).unwrap() > 0 {
            assert_eq!(self.ours.open(&mut packet).unwrap(), OpenOutcome::Packet);
            let chain = self.theirs.pop_descriptor_chain(&self.twin).expect("a chain that we see too");
            assert_eq!(chain.head_index(), packet.head);
            let mut frame = Vec::new();
            chain.reader(&self.twin).unwrap().read_to_end(&mut frame).unwrap();
            assert_eq!(bytes_of(&packet), frame[HEADER..]);
            self.ours.finish(&packet);
            self.theirs.add_used(&self.twin, packet.head, 0).unwrap();
            worked += 1;
        }
        if worked < most {
            assert!(self.theirs.pop_descriptor_chain(&self.twin).is_none());
        }
        let ring = self.ours.ring();
        ring.publish();
        full_fence();
        ring.call_if_wanted().unwrap();
        let called = ring.take_calls() > 0;
        if worked > 0 && self.event_index {
            assert_eq!(called, self.theirs.needs_notification(&self.twin).unwrap(), "whether to call");
        } else if worked > 0 {
            // The crate leaves the flag to its user.
            assert_eq!(called, self.driver.shared().available_flags() & 1 == 0);
        }
        self.compare_used();
    }

    fn compare_used(&self) {
        let (at, size) = (self.driver.shared().addresses().used, self.driver.options().size);
        // Flags and avail_event are requests, compared where they are made; index and elements are facts.
        let facts = 2 + 8 * usize::from(size);
        let ours = self.memory.bytes(at + 2, facts).unwrap();
        let mut theirs = vec![0; facts];
        self.twin.read_slice(&mut theirs, GuestAddress(at + 2)).unwrap();
        assert_eq!(ours, theirs, "the used rings");
    }

    fn reclaim(&mut self, wish: u16) {
        while self.driver.reclaim().unwrap().is_some() {}
        self.driver.set_interrupts(match wish {
            0 => Interrupts::Off,
            1 => Interrupts::Next,
            more => Interrupts::After(more),
        });
    }

    /// Both ask for kicks, and see alike whether something came meanwhile.
    fn arm(&mut self) {
        self.work(usize::from(self.driver.options().size));
        self.show();
        let ours = self.ours.ring().arm();
        assert_eq!(ours, self.theirs.enable_notification(&self.twin).unwrap());
        if self.event_index {
            let at = self.driver.shared().addresses().used + 4 + 8 * u64::from(self.driver.options().size);
            let theirs: u16 = self.twin.read_obj(GuestAddress(at)).unwrap();
            assert_eq!(self.driver.shared().available_event(), theirs, "where to be kicked");
        }
    }

    fn run(&mut self, act: &Act) {
        match act {
            Act::Send(lengths, indirect) => self.send(lengths, *indirect),
            Act::Work(most) => self.work(*most),
            Act::Reclaim(wish) => self.reclaim(*wish),
            Act::Arm => self.arm(),
        }
    }
}

/// The frame that `packet` stands for.
fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.start().to_vec();
    for iovec in packet.rest() {
        iovec.append_to(&mut bytes);
    }
    assert_eq!(bytes.len(), packet.length as usize);
    bytes
}

fn transmit(memory: &GuestMemory, driver: &DriverRing, start: u16) -> TransmitQueue {
    let mut ring = device::ring(driver, &device::map(memory), start);
    // SAFETY: the eventfd gives its descriptor away.
    let call = unsafe { File::from_raw_fd(EventFd::new(libc::EFD_NONBLOCK).unwrap().into_raw_fd()) };
    ring.set_call(Some(Call::new(call).unwrap()));
    TransmitQueue::new(ring)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Indices start near the end of their range, so that they wrap.
    #[test]
    fn whatever_the_driver_does(
        acts in prop::collection::vec(act(), 1..200), size in 3_u32..7, event_index: bool, start in 65_400_u16..=65_535
    ) {
        let mut bed = Bed::new(1 << size, event_index, start);
        acts.iter().for_each(|act| bed.run(act));
        bed.work(1 << size);
        while bed.driver.reclaim().unwrap().is_some() {}
        prop_assert_eq!(bed.driver.in_flight(), 0);
    }
}
