//! Target `churn`: ports come, go and change while frames flow to the addresses of all that are there, were there, and are to come.
//!
//! An operator does one thing at a time, in a thread of its own, as the control interface does. Meanwhile the script steps the two
//! workers in its own order, and guests send. In every order the operator gets an answer, frames stay in their segment (broadcast
//! domain) and undamaged, and two guests with ports that never change reach each other in the end.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memlane::frame::MacAddress;
use memlane::id::{Direction, PortId, RingKey};
use memlane::link::Impairment;
use memlane::memory::MemoryMap;
use memlane::network::{AttachSettings, Network, RingParts};
use memlane::offload::Offloads;
use memlane::policy::{Limit, PortLimits};
use memlane::port::settings::PortSettings;
use memlane::port::{Offer, Port};
use memlane::ring::RingOptions;
use memlane::settings::{Poll, Settings};
use memlane::shared::Shared;
use memlane::worker::{Event, Start, Worker};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DriverRing, Iovec, RingOptions as DriverOptions};

use super::device::sides;
use super::script::Script;

/// Acts of the script, by number. An act of the operator takes [`PLAN`] more bytes: the order of events meanwhile.
pub mod acts {
    /// Attaches a port: name, segment, flags.
    pub const ATTACH: u8 = 0;
    /// Detaches one: name.
    pub const DETACH: u8 = 1;
    /// Ties a MAC address to a port, or none: name, owner of the address, flag.
    pub const TIE: u8 = 2;
    /// Puts one on a link, or takes it off: name, flag.
    pub const LINK: u8 = 3;
    /// Enables or disables one: name, flag.
    pub const ENABLE: u8 = 4;
    /// Changes its weight and limits: name, weight.
    pub const ALLOW: u8 = 5;
    /// Stops its rings and starts them again: name.
    pub const RESTART: u8 = 6;
    /// Announces a MAC address: name, owner of the address.
    pub const ANNOUNCE: u8 = 7;
    /// A guest sends: name, receiver, count.
    pub const SEND: u8 = 8;
    /// Poll iterations of a worker: worker, count.
    pub const STEP: u8 = 9;
    /// The two steady guests check whether they reach each other.
    pub const ROUND: u8 = 10;
    /// How many there are.
    pub const COUNT: u8 = 11;
}

/// Flags of [`acts::ATTACH`]: its address is tied to it; it is disabled; it is on a link.
pub const TIED: u8 = 1;
/// See [`TIED`].
pub const DISABLED: u8 = 2;
/// See [`TIED`].
pub const LINKED: u8 = 4;
/// Bytes that order the events while the operator waits: which worker makes a poll iteration, and whether guests send before.
pub const PLAN: usize = 8;

/// Names, the first two of which are always there.
const NAMES: u8 = 12;
const SEGMENTS: u8 = 3;
/// Entries of a ring, and bytes of a buffer.
const SIZE: u16 = 32;
const BUFFER: u32 = 256;
/// Bytes of a frame, virtio-net header included.
const FRAME: usize = 12 + 80;
/// Longest wait for the operator's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Steps in which a frame must have arrived.
const STEPS: usize = 5000;

/// Runs the script `data`, and checks after it that everything is in order.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut bed = Bed::new(script.byte());
    let plan = [3; PLAN];
    bed.attach(0, 0, TIED, plan);
    bed.attach(1, 0, TIED, plan);
    while !script.is_over() {
        bed.act(&mut script);
        bed.heed_events();
    }
    bed.round();
    bed.end();
}

struct Bed {
    network: Arc<Network>,
    workers: Vec<Worker>,
    events: Receiver<Event>,
    guests: Vec<Option<Guest>>,
    /// Guests so far.
    come: u32,
    /// Steps so far.
    steps: usize,
}

fn address(name: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, name]
}

impl Bed {
    fn new(mood: u8) -> Self {
        let poll = if mood & 1 == 0 { Poll::Adaptive } else { Poll::Always };
        let settings = Settings { poll, in_order: mood & 2 != 0, wait_queue: 256, ..Settings::default() };
        let (network, workers, events) = Network::unstarted(Shared::new(2, 77, settings)).expect("descriptors");
        Self { network, workers, events, guests: (0..NAMES).map(|_| None).collect(), come: 0, steps: 0 }
    }

    fn act(&mut self, script: &mut Script) {
        let act = script.byte() % acts::COUNT;
        match act {
            acts::SEND => {
                let (from, to, count) = (script.byte() % NAMES, script.byte() % (NAMES + 1), script.byte() % 32);
                (0..=count).for_each(|_| self.send(from, to));
                return;
            }
            acts::STEP => {
                let worker = usize::from(script.byte() & 1);
                (0..=script.byte() % 8).for_each(|_| self.step(worker));
                return;
            }
            acts::ROUND => return self.round(),
            _ => {}
        }
        let (name, what) = (script.byte(), script.byte());
        let (name, flag) = (2 + name % (NAMES - 2), what & 1 != 0);
        if act == acts::ATTACH {
            let flags = script.byte();
            return self.attach(name, what % SEGMENTS, flags, script.array());
        }
        let whose = MacAddress::new(address(what >> 1));
        let plan = script.array();
        let Some(port) = self.network.find(&text(name)) else { return };
        match act {
            acts::DETACH => self.detach(name, plan),
            acts::TIE => self.meanwhile(plan, move |network| {
                // Another may have it.
                let _ = network.set_address(&port, flag.then_some(whose));
            }),
            acts::LINK => self.meanwhile(plan, move |network| network.set_link(&port, link(flag))),
            acts::ENABLE => self.meanwhile(plan, move |network| network.set_port_enabled(&port, flag)),
            acts::ALLOW => {
                let limit = Limit { rate: flag.then(|| "1Gbit".into()), packets: None, burst_ms: Some(1) };
                let weight = u16::from(what).max(1);
                let limits = PortLimits { weight, transmit: limit.clone(), receive: limit, storm: 0, ..PortLimits::default() };
                self.meanwhile(plan, move |network| network.set_limits(&port, &limits));
            }
            acts::RESTART => self.restart(name, port, plan),
            _ => self.meanwhile(plan, move |network| network.announce(&port, whose)),
        }
    }

    /// Has the operator do `work`, while events happen as `plan` orders them.
    fn meanwhile(&mut self, plan: [u8; PLAN], work: impl FnOnce(&Arc<Network>) + Send + 'static) {
        let network = Arc::clone(&self.network);
        let operator = std::thread::spawn(move || work(&network));
        let deadline = Instant::now() + TIMEOUT;
        let mut moments = plan.into_iter().chain([0, 1]).cycle();
        while !operator.is_finished() {
            assert!(Instant::now() < deadline, "the operator gets no answer");
            let moment = moments.next().unwrap_or_default();
            if moment & 2 != 0 {
                (0..NAMES).for_each(|name| self.send(name, (moment >> 2).wrapping_add(name) % (NAMES + 1)));
            }
            self.step(usize::from(moment & 1));
            std::thread::yield_now();
        }
        operator.join().expect("the operator's thread comes to its end");
    }

    fn attach(&mut self, name: u8, segment: u8, flags: u8, plan: [u8; PLAN]) {
        if self.guests[usize::from(name)].is_some() {
            return;
        }
        self.come += 1;
        let guest = Guest::new(name, segment, self.come, self.network.shared().settings.in_order);
        let rings = guest.rings();
        self.guests[usize::from(name)] = Some(guest);
        self.meanwhile(plan, move |network| {
            let attach_settings = AttachSettings {
                name: &text(name),
                segment: &text(segment),
                settings: &PortSettings {
                    limits: PortLimits { storm: 0, ..PortLimits::default() },
                    link: link(flags & LINKED != 0),
                    mac: (flags & TIED != 0).then(|| MacAddress::new(address(name))),
                    mtu: None,
                    enabled: flags & DISABLED == 0,
                },
                offer: Offer::default(),
            };
            if let Ok(port) = network.add_port(&attach_settings, 2) {
                start_rings(network, &port, rings, [0; 2]);
            }
        });
        if self.network.find(&text(name)).is_none() {
            // Its address is another's.
            self.guests[usize::from(name)] = None;
        }
    }

    fn detach(&mut self, name: u8, plan: [u8; PLAN]) {
        let Some(port) = self.network.find(&text(name)) else { return };
        let gone = Arc::clone(&port);
        self.meanwhile(plan, move |network| network.remove_port(&gone));
        let base = port.recall_stopped(key(port.id, Direction::Transmit)).map(|stopped| stopped.base);
        if let (Some(mut guest), Some(base)) = (self.guests[usize::from(name)].take(), base) {
            guest.assert_all_back(base);
        }
    }

    fn restart(&mut self, name: u8, port: Arc<Port>, plan: [u8; PLAN]) {
        let Some(guest) = &self.guests[usize::from(name)] else { return };
        let rings = guest.rings();
        self.meanwhile(plan, move |network| {
            let keys = [Direction::Transmit, Direction::Receive].map(|direction| key(port.id, direction));
            let bases = keys.map(|key| network.stop_ring(&port, key).expect("it runs").base);
            port.begin_session();
            start_rings(network, &port, rings, bases);
        });
    }

    fn send(&mut self, from: u8, to: u8) {
        if let Some(guest) = &mut self.guests[usize::from(from)] {
            guest.send(to);
        }
    }

    /// A poll iteration of one worker, after which all guests take the frames that arrived.
    fn step(&mut self, worker: usize) {
        self.steps += 1;
        self.workers[worker].step();
        self.guests.iter_mut().flatten().for_each(Guest::take);
    }

    fn heed_events(&mut self) {
        for event in self.events.try_iter() {
            match event {
                Event::RingFault(port, _, fault) => panic!("port {} is honest: {fault}", port.name),
                Event::MemoryLost => panic!("nobody truncates memory here"),
                // Events for the fault handler.
                _ => {}
            }
        }
    }

    /// A frame each way between the steady guests, once the frames of others have gone.
    fn round(&mut self) {
        (0..64).for_each(|step| self.step(step & 1));
        for (from, to) in [(0, 1), (1, 0)] {
            let before = self.heard(to);
            let mut steps = 0;
            while self.heard(to) == before {
                assert!(steps < STEPS, "guest {to} does not hear from {from}");
                if steps % 64 == 0 {
                    self.send(from, to);
                }
                self.step(steps & 1);
                steps += 1;
            }
        }
    }

    /// Frames received from the other steady guest.
    fn heard(&self, name: u8) -> u32 {
        self.guests[usize::from(name)].as_ref().map_or(0, |guest| guest.heard)
    }

    /// All ports go, and nothing is left of them.
    fn end(mut self) {
        (0..NAMES).for_each(|name| self.detach(name, [3; PLAN]));
        assert!(self.network.ports().is_empty() && self.network.segments().is_empty());
        self.heed_events();
    }
}

fn text(number: u8) -> String {
    format!("n{number}")
}

fn link(on: bool) -> Option<Impairment> {
    on.then(|| Impairment { delay: Some("1us".into()), ..Impairment::default() })
}

fn key(port: PortId, direction: Direction) -> RingKey {
    RingKey { port, pair: 0, direction }
}

type Rings = [(Direction, memlane::ring::SplitRing, Arc<MemoryMap>); 2];

fn start_rings(network: &Arc<Network>, port: &Arc<Port>, rings: Rings, bases: [u16; 2]) {
    let in_order = network.shared().settings.in_order;
    for ((direction, split, memory), base) in rings.into_iter().zip(bases) {
        let in_order = in_order && direction == Direction::Transmit;
        let options = RingOptions { event_index: false, indirect: false, in_order, header_length: 12 };
        let start = Start { kick: None, at_once: true, enabled: true, session: port.session() };
        let (offloads, mergeable, call) = (Offloads::default(), true, None);
        network.start_ring(
            port,
            RingParts {
                key: key(port.id, direction),
                split,
                memory,
                options,
                base,
                call,
                log: None,
                inflight: None,
                offloads,
                mergeable,
                start,
            },
        );
    }
}

/// A guest that keeps the rules.
struct Guest {
    name: u8,
    segment: u8,
    /// Tells it from others that had its name.
    number: u32,
    sent: u32,
    heard: u32,
    memory: GuestMemory,
    map: Arc<MemoryMap>,
    transmit: DriverRing,
    receive: DriverRing,
    /// Buffers for frames that are free, and those in use, by head.
    free: Vec<u64>,
    sending: Vec<u64>,
    /// Receive buffers by head.
    buffers: Vec<u64>,
}

impl Guest {
    fn new(name: u8, segment: u8, number: u32, in_order: bool) -> Self {
        let memory = GuestMemory::new(64 << 10).expect("memory");
        let options = DriverOptions { size: SIZE, event_idx: false, indirect: 0 };
        let mut transmit = DriverRing::new(&memory, options).expect("room");
        if in_order {
            transmit.expect_in_order();
        }
        let mut receive = DriverRing::new(&memory, options).expect("room");
        let allocate = || memory.allocate(BUFFER.into(), 64).expect("room");
        let mut buffers = vec![0; usize::from(SIZE)];
        for _ in 0..SIZE {
            let buffer = allocate();
            buffers[usize::from(receive.add(&[Iovec::writable(buffer, BUFFER)]).expect("room"))] = buffer;
        }
        receive.publish();
        let free = (0..SIZE).map(|_| allocate()).collect();
        let map = sides::map(&memory);
        let sending = vec![0; usize::from(SIZE)];
        Self { name, segment, number, sent: 0, heard: 0, memory, map, transmit, receive, free, sending, buffers }
    }

    /// The two rings, as the switch needs them.
    fn rings(&self) -> Rings {
        let ring = |direction, ring| (direction, sides::split(ring, &self.map), Arc::clone(&self.map));
        [ring(Direction::Transmit, &self.transmit), ring(Direction::Receive, &self.receive)]
    }

    /// Sends a frame to the guest called `to`, or to all, if it has a buffer.
    fn send(&mut self, to: u8) {
        self.reclaim();
        let Some(buffer) = self.free.pop() else { return };
        self.sent += 1;
        let to = if to == NAMES { [0xff; 6] } else { address(to) };
        self.memory.write(buffer, &self.frame(to)).expect("inside memory");
        let head = self.transmit.add(&[Iovec::readable(buffer, FRAME as u32)]).expect("a free descriptor");
        self.sending[usize::from(head)] = buffer;
        self.transmit.publish();
    }

    /// Its next frame: sender, segment and number, in a pattern that shows whether the frame is undamaged.
    fn frame(&self, to: [u8; 6]) -> [u8; FRAME] {
        let mut frame = [self.sent as u8 ^ self.name; FRAME];
        frame[..12].fill(0);
        frame[12..18].copy_from_slice(&to);
        frame[18..24].copy_from_slice(&address(self.name));
        frame[24..26].copy_from_slice(&[0x88, 0xb5]);
        frame[26..28].copy_from_slice(&[self.name, self.segment]);
        frame[28..32].copy_from_slice(&self.number.to_le_bytes());
        frame[32] = self.sent as u8;
        frame
    }

    fn reclaim(&mut self) {
        while let Some(used) = self.transmit.reclaim().expect("a sound used ring") {
            self.free.push(self.sending[used.head as usize]);
        }
    }

    fn take(&mut self) {
        self.reclaim();
        while let Some(used) = self.receive.poll().expect("a sound used ring") {
            let bytes = self.memory.bytes(self.buffers[used.head as usize], used.length as usize).expect("inside memory");
            self.look_at(&bytes);
            self.receive.offer(used.head as u16);
        }
        self.receive.publish();
    }

    fn look_at(&mut self, bytes: &[u8]) {
        if bytes.len() == 12 + 60 && bytes[24..26] == [0x80, 0x35] {
            // An announcement.
            return;
        }
        assert_eq!((bytes.len(), u16::from_le_bytes([bytes[10], bytes[11]])), (FRAME, 1), "one frame in one buffer");
        let (name, segment) = (bytes[26], bytes[27]);
        let number = u32::from_le_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]);
        assert_eq!(segment, self.segment, "{name} is on another segment than {}", self.name);
        assert_ne!(number, self.number, "its own frame");
        assert!(bytes[33..].iter().all(|&byte| byte == bytes[32] ^ name), "a frame was changed");
        self.heard += u32::from(name + self.name == 1);
    }

    /// Its ring has stopped before the chain `base`: those before it were completed, and no others.
    fn assert_all_back(&mut self, base: u16) {
        self.reclaim();
        let untaken = self.transmit.published_index().wrapping_sub(base);
        assert_eq!(self.transmit.in_flight(), untaken, "a frame did not come back");
    }
}
