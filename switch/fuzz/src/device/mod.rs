//! Target `device`: two guests with memory and rings that the fuzzer writes, and two honest ones beside them, on two workers.
//!
//! - [`memory`]: a hostile guest's memory, with **canaries** around it.
//! - [`hostile`]: a hostile guest, its two rings and the script's acts on them.
//! - [`honest`]: a guest that keeps the rules and sees to it that the others are kept.
//! - [`watch`]: memory that changes between two reads, and the work that a step takes.
//!
//! The workers are driven step by step, in turn or as the script says. A port with a ring that breaks a rule is stopped, as the
//! network's fault handler would. A ring that is stopped or moved answers once all its frames in flight are completed; from then on
//! its old mapping is gone, so that any access to it faults.

mod honest;
mod hostile;
mod memory;
#[path = "../../../daemon/benches/bed/device.rs"]
pub(super) mod sides;
mod watch;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use memlane::frame::MacAddress;
use memlane::id::{Direction, PortId, RingKey};
use memlane::offload::Offloads;
use memlane::policy::{Limit, PortLimits};
use memlane::port::Port;
use memlane::settings::{Poll, Settings};
use memlane::shared::Shared;
use memlane::worker::{Event, Mailbox, Worker, links};

use self::honest::Honest;
use self::hostile::Hostile;
use self::watch::Watch;
use super::script::Script;

/// Steps in which an honest frame must have arrived, however many frames wait before it.
const STEPS: usize = 2000;

/// Acts of the script, by number.
pub mod acts {
    /// Writes bytes anywhere: hostile guest, offset (2), length, bytes.
    pub const SCRIBBLE: u8 = 0;
    /// Writes a descriptor: ring, index, offset (2), length (2), flags, next.
    pub const DESCRIBE: u8 = 1;
    /// Makes a head available: ring, head.
    pub const OFFER: u8 = 2;
    /// Sets the available index: ring, index (2).
    pub const JUMP: u8 = 3;
    /// Poll iterations of each worker: count.
    pub const STEP: u8 = 4;
    /// The honest guests check whether they reach each other.
    pub const ROUND: u8 = 5;
    /// Sends a frame as a guest would: guest, layout, net header (12), length (2), count of bytes, bytes.
    pub const SEND: u8 = 6;
    /// Offers receive buffers: guest, count, length (2).
    pub const POST: u8 = 7;
    /// Stops a ring and starts it anew: ring, options (2), base (2).
    pub const RESTART: u8 = 8;
    /// Enables or disables a ring: ring, flag.
    pub const ENABLE: u8 = 9;
    /// Moves a ring to a new mapping of the memory: ring.
    pub const REMAP: u8 = 10;
    /// Injects a frame of the switch's own: guest.
    pub const INJECT: u8 = 11;
    /// A poll iteration of one worker: worker.
    pub const STEP_ONE: u8 = 12;
    /// Makes one head available again and again, with poll iterations in between: guest, head, count (2).
    pub const STREAM: u8 = 13;
    /// Descriptors and heads for a whole ring: ring, kind, length (2), count (2).
    pub const FILL: u8 = 14;
    /// Writes bytes between two of the switch's reads: guest, reads until then, offset (2), length, bytes.
    pub const RACE: u8 = 15;
    /// Makes another chain available whenever the switch looks, or no more: ring, flag.
    pub const KEEP: u8 = 16;
    /// Stops an honest guest's receive queue and starts it anew: guest.
    pub const HONEST_RESTART: u8 = 17;
    /// Stops a ring: ring.
    pub const STOP: u8 = 18;
    /// How many there are.
    pub const COUNT: u8 = 19;
}

/// All four guests.
const PORTS: u16 = 4;

/// The workers, which this thread runs in turn.
type Workers = [Worker; 2];

/// Runs the script `data`, and checks after it that everything is in order.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut bed = Bed::new(script.byte());
    while !script.is_over() {
        bed.act(&mut script);
        bed.heed_events();
    }
    bed.round();
    bed.end();
}

struct Bed {
    workers: Workers,
    watch: Watch,
    events: Receiver<Event>,
    hostile: [Hostile; 2],
    honest: [Honest; 2],
}

fn key(port: u16, direction: Direction) -> RingKey {
    RingKey { port: PortId(port), pair: 0, direction }
}

impl Bed {
    fn new(mood: u8) -> Self {
        let settings = Settings {
            poll: if mood & 1 == 0 { Poll::Adaptive } else { Poll::Always },
            stall_timeout: std::time::Duration::from_micros(if mood & 2 == 0 { 10_000_000 } else { 20 }),
            wait_queue: 1024,
            ..Settings::default()
        };
        let shared = Arc::new(Shared::new(2, 77, settings));
        let ports = Port::row(&shared, PORTS.into());
        for port in &ports {
            port.segment.pin(MacAddress::new(honest::address(port.id.0)), port.id).expect("an address of its own");
        }
        if mood & 4 != 0 {
            let limit = Limit { rate: Some("1Mbit".into()), packets: Some(1000), burst_ms: Some(1) };
            let limits = PortLimits { weight: 1000, transmit: limit.clone(), receive: limit, storm: 100, ..PortLimits::default() };
            ports[..2].iter().for_each(|port| port.policy.set(&limits));
        }
        let mailboxes = [0, 1].map(|_| Mailbox::new().expect("an eventfd"));
        let mut all_links = links(&mailboxes).into_iter();
        let (report, events) = channel();
        let mut index = 0;
        let mut workers = mailboxes.map(|mailbox| {
            let links = all_links.next().expect("links for each worker");
            index += 1;
            let mut worker =
                Worker::new(index - 1, Arc::clone(&shared), mailbox, links, report.clone()).expect("an epoll descriptor");
            ports.iter().for_each(|port| worker.enter_port(port));
            worker
        });
        // Bits of the mood tell which ports the second worker serves.
        let home = |port: u16| mood >> (3 + port) & 1;
        let watch = Watch::new();
        let hostile = [0, 1].map(|port| Hostile::new(&ports[usize::from(port)], home(port), &mut workers, &watch));
        let offloads = [Offloads::default(), Offloads::ALL];
        let honest = [2, 3].map(|port| Honest::new(port, offloads[usize::from(port - 2)], home(port), &mut workers));
        Self { workers, watch, events, hostile, honest }
    }

    fn act(&mut self, script: &mut Script) {
        match script.byte() % acts::COUNT {
            acts::STEP => (0..=script.byte() % 8).for_each(|_| {
                self.step();
            }),
            acts::STEP_ONE => {
                self.step_one(usize::from(script.byte() & 1));
            }
            acts::ROUND => self.round(),
            acts::HONEST_RESTART => self.honest[usize::from(script.byte() & 1)].restart(&mut self.workers),
            acts::STREAM => self.stream(script),
            act => {
                let which = script.byte();
                let direction = if which & 2 == 0 { Direction::Transmit } else { Direction::Receive };
                let hostile = &mut self.hostile[usize::from(which & 1)];
                hostile.act(act, direction, script, &mut self.workers, &self.watch);
                self.use_what_stopped();
            }
        }
    }

    fn stream(&mut self, script: &mut Script) {
        let guest = usize::from(script.byte() & 1);
        let (head, mut left) = self.hostile[guest].begin_stream(script);
        while left > 0 {
            left = self.hostile[guest].stream(head, left);
            self.step();
            self.heed_events();
        }
        // Until all of it is taken.
        (0..STEPS).take_while(|_| self.step() > 0).count();
        self.heed_events();
    }

    /// A poll iteration of each worker; returns the frames that they moved.
    fn step(&mut self) -> u32 {
        (0..self.workers.len()).map(|index| self.step_one(index)).sum()
    }

    fn step_one(&mut self, index: usize) -> u32 {
        self.watch.begin_step();
        let frames = self.workers[index].step();
        for honest in &mut self.honest {
            honest.take();
        }
        for hostile in &mut self.hostile {
            hostile.heed(&mut self.workers, &self.watch);
        }
        self.use_what_stopped();
        frames
    }

    /// Posts receive buffers where a ring has stopped: a worker that still held frames of it would now write them and show them,
    /// and fault.
    fn use_what_stopped(&mut self) {
        if !self.hostile.iter_mut().fold(false, |any, hostile| hostile.has_stopped() | any) {
            return;
        }
        self.hostile.iter().for_each(Hostile::post_all);
        for worker in self.workers.iter_mut().rev() {
            self.watch.begin_step();
            worker.step();
        }
    }

    /// Stops ports that broke a rule.
    fn heed_events(&mut self) {
        for event in self.events.try_iter() {
            match event {
                Event::RingFault(port, _, fault) => {
                    let port = port.id.0;
                    let hostile =
                        self.hostile.get_mut(usize::from(port)).unwrap_or_else(|| panic!("port {port} is honest: {fault}"));
                    hostile.stop(&mut self.workers, &self.watch);
                }
                Event::MemoryLost => panic!("nobody truncates memory here"),
                Event::Second | Event::Tick(_) | Event::Filled(..) | Event::Flapped(_) => {}
            }
        }
    }

    /// A frame each way between the honest guests, which must arrive.
    fn round(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let destination = self.honest[to].port;
            let wanted = self.honest[from].send(destination);
            let mut steps = 0;
            while self.honest[to].heard_from_friend != wanted {
                assert!(steps < STEPS, "an honest frame did not arrive");
                self.step();
                self.heed_events();
                steps += 1;
            }
        }
    }

    /// All frames are completed, and no byte was written outside guest memory.
    fn end(mut self) {
        let mut steps = 0;
        while steps == 0 || self.hostile.iter().any(Hostile::is_waiting) {
            assert!(steps < STEPS, "something is still out");
            for hostile in &mut self.hostile {
                hostile.stop(&mut self.workers, &self.watch);
            }
            self.step();
            steps += 1;
        }
        self.step();
        for honest in &mut self.honest {
            honest.assert_all_back();
        }
        for hostile in &self.hostile {
            hostile.assert_canaries();
        }
    }
}
