//! Target `offload`: one frame with unfinished offloads, for one receiver. [`judge`] judges the frames that arrive.
//!
//! The frame goes through [`memlane::offload::check`] and a real [`ReceiveQueue`]; its payload lies in buffer segments, and the
//! receiver has few buffers, so that large frames are written in several goes.

use std::sync::Arc;

use memlane::frame::{ETHERNET, MAX_FRAME, NetHeader, START};
use memlane::memory::{Iovec, MemoryMap, Region};
use memlane::offload::{self, Offloads};
use memlane::packet::{ChunkPool, Packet};
use memlane::ring::{Areas, PlaceOutcome, ReceiveQueue, Ring, RingOptions, SplitRing};
use memlane::stats::DropReason;

use super::judge::{self, Arrived, Sent};
use super::script::Script;

/// Entries of the receiver's ring.
const SIZE: u16 = 64;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x4000;
/// Room for a whole frame, for receivers without mergeable buffers.
const LARGE: u64 = 66 * 1024;
/// Content of memory that was not written.
const UNTOUCHED: u8 = 0xee;

/// Reads `data` as: negotiated offloads of sender and receiver, layout of the frame in memory, the virtio-net header, the frame.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let (sender, receiver) = (offloads(script.byte()), offloads(script.byte()));
    let shape = script.byte();
    let more = script.word();
    let header = NetHeader::from_bytes(script.array());
    let mut frame = script.rest().to_vec();
    frame.extend((0..more).map(|n| (n >> 8) as u8 ^ n as u8));
    frame.truncate(MAX_FRAME as usize);
    if frame.len() < ETHERNET {
        return;
    }
    let mut pool = ChunkPool::new(256);
    let mut packet = packet(&frame, header, u32::from(shape >> 1) * 8, &mut pool);
    let sent = Sent { header: header.bytes(), frame: &frame, receiver };
    match offload::check(&mut packet, &sender) {
        Ok(()) => match deliver(&mut packet, receiver, shape & 1 == 0) {
            Ok(arrived) => judge::judge(&sent, &arrived),
            Err(reason) => {
                assert_eq!(reason, DropReason::BadSegmentation);
                judge::judge_refusal(&sent);
            }
        },
        Err(_) => assert!(!header.is_plain(), "a frame that asks for nothing was refused"),
    }
}

/// Offloads by the bits of a byte.
pub fn offloads(bits: u8) -> Offloads {
    let bit = |number: u8| bits & 1 << number != 0;
    let checksum = bit(0);
    // Segmentation needs checksums (virtio 1.4, section 5.1.3.1).
    Offloads {
        checksum,
        tcp4: checksum && bit(1),
        tcp6: checksum && bit(2),
        ecn: bit(3),
        udp4: checksum && bit(4),
        udp6: checksum && bit(5),
    }
}

/// The packet of a frame that lies in buffer segments of `iovec` bytes, in one segment if that is 0.
fn packet(frame: &[u8], header: NetHeader, iovec: u32, pool: &mut ChunkPool) -> Packet {
    let start = frame.len().min(START);
    let mut packet = Packet::default();
    (packet.header, packet.length, packet.start_length) = (header, frame.len() as u32, start as u32);
    packet.start[..start].copy_from_slice(&frame[..start]);
    let shortest = if iovec == 0 { frame.len() } else { (iovec as usize).max(frame.len().div_ceil(1000)) };
    // SAFETY: the frame outlives the packet, and its buffer segments are only read.
    let iovec = |run: &[u8]| unsafe { Iovec::new(run.as_ptr().cast_mut(), run.len() as u32) };
    let iovecs: Vec<Iovec> = frame.chunks(shortest).map(iovec).collect();
    packet.set_rest(&iovecs, start as u32, pool).expect("the pool holds a frame");
    packet
}

/// Writes `packet` into the receive queue of a guest that takes everything it gets.
fn deliver(packet: &mut Packet, offloads: Offloads, mergeable: bool) -> Result<Vec<Arrived>, DropReason> {
    thread_local!(static MEMORY: Arc<MemoryMap> = memory());
    let mut receiver = Receiver::new(MEMORY.with(Arc::clone), offloads, mergeable);
    let mut arrived = Vec::new();
    loop {
        let done = packet.segments_done;
        let placed = receiver.receive.place(packet).expect("a ring without faults");
        receiver.receive.ring().publish();
        receiver.collect(&mut arrived);
        match placed {
            PlaceOutcome::Complete(frames) => {
                assert!(arrived.len() == frames as usize);
                return Ok(arrived);
            }
            PlaceOutcome::NoRoom => assert!(packet.segments_done > done, "an empty ring has room"),
            PlaceOutcome::Refused(reason) => return Err(reason),
        }
    }
}

fn memory() -> Arc<MemoryMap> {
    let region = Region::anonymous(0, BUFFERS + u64::from(SIZE) * LARGE).expect("memory");
    // SAFETY: the region was just made and is that long.
    unsafe { region.host_start().write_bytes(UNTOUCHED, region.length() as usize) };
    Arc::new(MemoryMap::new(vec![Arc::new(region)]).expect("one region"))
}

/// A driver that takes frames.
struct Receiver {
    memory: Arc<MemoryMap>,
    receive: ReceiveQueue,
    mergeable: bool,
    buffer: u64,
    taken: u16,
}

impl Receiver {
    fn new(memory: Arc<MemoryMap>, offloads: Offloads, mergeable: bool) -> Self {
        let find = |address, length| memory.find_user(address, length).expect("inside the region");
        let areas = Areas {
            descriptors: find(0, Areas::descriptor_bytes(SIZE)),
            available: find(AVAILABLE, Areas::available_bytes(SIZE)),
            used: find(USED, Areas::used_bytes(SIZE)),
        };
        let buffer = if mergeable { 2048 + 12 } else { LARGE };
        // SAFETY: the areas are inside the region, which the ring holds through its map.
        let split = unsafe {
            areas.available.write_bytes(0, Areas::available_bytes(SIZE) as usize);
            areas.used.write_bytes(0, Areas::used_bytes(SIZE) as usize);
            SplitRing::new(areas, SIZE)
        };
        let options = RingOptions { event_index: false, indirect: false, in_order: false, header_length: 12 };
        let ring = Ring::new(split.expect("aligned areas"), Arc::clone(&memory), options, 0);
        let receiver = Self { receive: ReceiveQueue::new(ring, offloads, mergeable), memory, mergeable, buffer, taken: 0 };
        (0..SIZE).for_each(|index| receiver.describe(index));
        receiver.offer(SIZE);
        receiver
    }

    fn place(&self, address: u64, length: u64) -> *mut u8 {
        self.memory.find_user(address, length).expect("inside the region")
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        // SAFETY: `place` vouches for the bytes, which no other thread touches now.
        unsafe { self.place(address, bytes.len() as u64).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    fn get<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: as in `put`.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.place(address, N as u64), N) };
        bytes
    }

    fn address(&self, index: u16) -> u64 {
        BUFFERS + u64::from(index) * self.buffer
    }

    fn describe(&self, index: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&self.address(index).to_le_bytes());
        descriptor[8..12].copy_from_slice(&(self.buffer as u32).to_le_bytes());
        descriptor[12] = 2;
        self.put(16 * u64::from(index), &descriptor);
        self.put(AVAILABLE + 4 + 2 * u64::from(index), &index.to_le_bytes());
    }

    /// Heads are always completed in order here, so the entries of the available ring stay as they are.
    fn offer(&self, index: u16) {
        self.put(AVAILABLE + 2, &index.to_le_bytes());
    }

    /// Takes the received frames, and offers the buffers again.
    fn collect(&mut self, arrived: &mut Vec<Arrived>) {
        let used = u16::from_le_bytes(self.get(USED + 2));
        while self.taken != used {
            let mut frame = self.take(used);
            assert!(frame.len() >= 12);
            let buffers = u16::from_le_bytes([frame[10], frame[11]]);
            assert!(buffers == 1 || self.mergeable);
            for _ in 1..buffers {
                frame.extend(self.take(used));
            }
            let bytes = frame.split_off(12);
            arrived.push(Arrived { header: frame.try_into().expect("twelve bytes"), bytes });
        }
        self.offer(used.wrapping_add(SIZE));
    }

    /// Takes one buffer, and leaves it as if it had not been written.
    fn take(&mut self, until: u16) -> Vec<u8> {
        assert_ne!(self.taken, until, "num_buffers names more buffers than came");
        let index = self.taken % SIZE;
        let element: [u8; 8] = self.get(USED + 4 + 8 * u64::from(index));
        let [head, length] = [0, 4].map(|at| u32::from_le_bytes([element[at], element[at + 1], element[at + 2], element[at + 3]]));
        assert!(head == u32::from(index) && (1..=self.buffer).contains(&length.into()));
        let place = self.place(self.address(index), self.buffer);
        // SAFETY: the buffer is inside the region, and the receive queue is not at work now.
        let bytes = unsafe { std::slice::from_raw_parts_mut(place, self.buffer as usize) };
        let (written, rest) = bytes.split_at_mut(length as usize);
        assert!(rest.iter().take(256).all(|&byte| byte == UNTOUCHED), "bytes written behind the frame");
        let frame = written.to_vec();
        written.fill(UNTOUCHED);
        self.taken = self.taken.wrapping_add(1);
        frame
    }
}
