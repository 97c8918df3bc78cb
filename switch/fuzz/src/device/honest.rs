//! An honest guest: sends, receives and checks its frames.

use std::sync::Arc;

use memlane::id::{Direction, PortId, RouteEntry};
use memlane::memory::MemoryMap;
use memlane::offload::Offloads;
use memlane::ring::{ReceiveQueue, TransmitQueue};
use memlane::worker::Start;
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Iovec, RingOptions as DriverOptions};

use super::{Workers, key, sides};

const SIZE: u16 = 64;
const BUFFER: u32 = 2048 + 12;
/// Bytes of its frames, virtio-net header included.
const FRAME: usize = 12 + 100;

/// Address of the guest at `port`, which no other port can take away from it.
pub fn address(port: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8]
}

/// See the module.
pub struct Honest {
    pub port: u16,
    /// Number of the last frame that came from the other honest guest.
    pub heard_from_friend: u64,
    sent: u64,
    takes: Offloads,
    /// The worker of its rings.
    home: u8,
    memory: GuestMemory,
    map: Arc<MemoryMap>,
    transmit: DriverRing,
    receive: DriverRing,
    frame: u64,
    /// Receive buffer by head.
    buffers: Vec<u64>,
}

impl Honest {
    pub fn new(port: u16, takes: Offloads, home: u8, workers: &mut Workers) -> Self {
        let memory = GuestMemory::new(256 << 10).expect("memory");
        let options = DriverOptions { size: SIZE, event_idx: true, indirect: 0 };
        let transmit = DriverRing::new(&memory, options).expect("room");
        let mut receive = DriverRing::new(&memory, options).expect("room");
        let mut buffers = vec![0; usize::from(SIZE)];
        for _ in 0..SIZE {
            let buffer = memory.allocate(BUFFER.into(), 64).expect("room");
            buffers[usize::from(receive.add(&[Iovec::writable(buffer, BUFFER)]).expect("room"))] = buffer;
        }
        receive.publish();
        let frame = memory.allocate(FRAME as u64, 64).expect("room");
        let map = sides::map(&memory);
        let transmit_queue = TransmitQueue::new(sides::ring(&transmit, &map, 0));
        workers[usize::from(home)].add_transmit_queue(key(port, Direction::Transmit), transmit_queue, Offloads::default(), start());
        let honest = Self { port, heard_from_friend: 0, sent: 0, takes, home, memory, map, transmit, receive, frame, buffers };
        honest.begin_receive(0, workers);
        honest
    }

    fn begin_receive(&self, base: u16, workers: &mut Workers) {
        let receive_queue = ReceiveQueue::new(sides::ring(&self.receive, &self.map, base), self.takes, true);
        let slot = workers[usize::from(self.home)].add_receive_queue(key(self.port, Direction::Receive), receive_queue, start());
        let slot = slot.expect("a port that has come");
        self.route(vec![RouteEntry { worker: self.home, slot }], workers);
    }

    fn route(&self, entries: Vec<RouteEntry>, workers: &mut Workers) {
        workers.iter_mut().for_each(|worker| worker.set_route(PortId(self.port), entries.clone()));
    }

    /// Stops its receive queue and starts it again, wherever there is room by then.
    pub fn restart(&mut self, workers: &mut Workers) {
        self.route(Vec::new(), workers);
        let base = workers[usize::from(self.home)].stop_receive_queue(key(self.port, Direction::Receive)).expect("it runs").base;
        self.take();
        self.begin_receive(base, workers);
    }

    /// Sends the next frame to the honest guest at port `to`; returns its number.
    pub fn send(&mut self, to: u16) -> u64 {
        self.assert_all_back();
        self.sent += 1;
        self.memory.write(self.frame, &frame(self.port, to, self.sent)).expect("inside memory");
        self.transmit.add(&[Iovec::readable(self.frame, FRAME as u32)]).expect("a free descriptor");
        self.transmit.publish();
        self.sent
    }

    /// All its transmit frames were completed.
    pub fn assert_all_back(&mut self) {
        while self.transmit.reclaim().expect("a sound used ring").is_some() {}
        assert_eq!(self.transmit.in_flight(), 0, "an honest frame did not come back");
    }

    /// Takes the received frames, and checks them.
    pub fn take(&mut self) {
        while let Some(frame) = self.take_frame() {
            self.look_at(&frame);
        }
        self.receive.publish();
    }

    fn take_frame(&mut self) -> Option<Vec<u8>> {
        let mut frame = self.take_buffer()?;
        let buffers = u16::from_le_bytes([frame[10], frame[11]]);
        assert!(buffers > 0);
        for _ in 1..buffers {
            assert_eq!(frame.len() % BUFFER as usize, 0, "a buffer before the last is full");
            frame.extend(self.take_buffer().expect("as many buffers as num_buffers says"));
        }
        Some(frame)
    }

    fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let used = self.receive.poll().expect("a sound used ring")?;
        assert!((1..=BUFFER).contains(&used.length), "used length");
        let bytes = self.memory.bytes(self.buffers[used.head as usize], used.length as usize).expect("inside memory");
        self.receive.offer(used.head as u16);
        Some(bytes)
    }

    fn look_at(&mut self, bytes: &[u8]) {
        assert!(bytes.len() >= 12 + 14, "no frame is shorter than an Ethernet header");
        let (flags, kind) = (bytes[0], bytes[1]);
        assert!(flags & !1 == 0, "flags that mean nothing to a receiver");
        assert!(self.takes.checksum || flags == 0 && kind == 0, "an offload that was not agreed");
        let neighbour = (0..super::PORTS).find(|&port| port != self.port && bytes[12..18] == address(port));
        assert_eq!(neighbour, None, "port {} got a frame that is for another port", self.port);
        let friend = 5 - self.port;
        if bytes[18..24] == address(friend) {
            self.heard_from_friend += 1;
            assert!(bytes[12..] == frame(friend, self.port, self.heard_from_friend)[12..], "an honest frame was changed");
        }
    }
}

/// Frame `number`, virtio-net header first.
fn frame(from: u16, to: u16, number: u64) -> [u8; FRAME] {
    let mut bytes = [number as u8; FRAME];
    bytes[..12].fill(0);
    bytes[12..18].copy_from_slice(&address(to));
    bytes[18..24].copy_from_slice(&address(from));
    bytes[24..26].copy_from_slice(&[0x88, 0xb5]);
    bytes[26..34].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn start() -> Start {
    Start { kick: None, at_once: true, enabled: true, session: 0 }
}
