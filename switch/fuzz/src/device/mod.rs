//! Target `device`: two guests whose memory and rings the fuzzer writes, and two honest ones beside them, on one worker.
//!
//! - [`memory`]: a hostile guest's memory, with **canaries** around it.
//! - [`hostile`]: a hostile guest, its two rings and what the script does with them.
//! - [`honest`]: a guest that keeps the rules and sees to it that the others are kept.
//!
//! The worker is driven step by step. A port whose ring breaks a rule is stopped, as the network's warden would. At the end all that is out
//! must come back when the hostile ports are stopped.

mod honest;
mod hostile;
mod memory;
#[path = "../../../benches/bed/device.rs"]
mod sides;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use memlane::frame::MacAddress;
use memlane::offload::Offloads;
use memlane::policy::{Allowance, Limit};
use memlane::port::PortId;
use memlane::settings::{Poll, Settings};
use memlane::worker::{Direction, Event, Mailbox, RingKey, Shared, Worker, links};

use self::honest::Honest;
use self::hostile::Hostile;
use super::script::Script;

/// Steps in which an honest frame must have arrived, whatever waits before it.
const STEPS: usize = 2000;

/// What the script can have done, by number.
pub mod acts {
    /// Writes bytes anywhere: hostile guest, offset (2), length, bytes.
    pub const SCRIBBLE: u8 = 0;
    /// Writes a descriptor: ring, index, offset (2), length (2), flags, next.
    pub const DESCRIBE: u8 = 1;
    /// Makes a head available: ring, head.
    pub const OFFER: u8 = 2;
    /// Sets the available index: ring, index (2).
    pub const JUMP: u8 = 3;
    /// Passes of the worker: count.
    pub const STEP: u8 = 4;
    /// The honest guests look whether they hear each other.
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
    /// How many there are.
    pub const COUNT: u8 = 12;
}

/// Does what `data` says, and looks after it whether everything is in order.
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
    worker: Worker,
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
            patience: std::time::Duration::from_micros(if mood & 2 == 0 { 100_000 } else { 20 }),
            parking: 1024,
            ..Settings::default()
        };
        let shared = Shared::new(1, vec![0; 4], 77, settings);
        for port in [2, 3] {
            // What nobody can take away from them.
            shared.tables[0].pin(MacAddress::new(honest::address(port)), PortId(port));
        }
        if mood & 4 != 0 {
            let limit = Limit { rate: Some("1Mbit".into()), packets: Some(1000), burst_ms: Some(1) };
            let allowance = Allowance { weight: 1000, intake: limit.clone(), delivery: limit, storm: 100 };
            shared.policies[..2].iter().for_each(|policy| policy.set(&allowance));
        }
        let mailbox = Mailbox::new().expect("an eventfd");
        let links = links(&[Arc::clone(&mailbox)]).remove(0);
        let (report, events) = channel();
        let mut worker = Worker::new(0, Arc::new(shared), mailbox, links, report).expect("an epoll descriptor");
        let hostile = [0, 1].map(|port| Hostile::new(port, &mut worker));
        let offloads = [Offloads::default(), Offloads::ALL];
        let honest = [0, 1].map(|index| Honest::new(2 + index, offloads[usize::from(index)], &mut worker));
        Self { worker, events, hostile, honest }
    }

    fn act(&mut self, script: &mut Script) {
        match script.byte() % acts::COUNT {
            acts::STEP => (0..=script.byte() % 8).for_each(|_| self.step()),
            acts::ROUND => self.round(),
            act => {
                let which = script.byte();
                let direction = if which & 2 == 0 { Direction::Intake } else { Direction::Delivery };
                self.hostile[usize::from(which & 1)].act(act, direction, script, &mut self.worker);
            }
        }
    }

    fn step(&mut self) {
        self.worker.step();
        for honest in &mut self.honest {
            honest.take();
        }
    }

    /// Stops ports that broke a rule.
    fn heed_events(&mut self) {
        for event in self.events.try_iter() {
            match event {
                Event::RingFault(PortId(port), _, fault) => {
                    let hostile =
                        self.hostile.get_mut(usize::from(port)).unwrap_or_else(|| panic!("port {port} is honest: {fault}"));
                    hostile.stop(&mut self.worker);
                }
                Event::MemoryLost => panic!("nobody truncates memory here"),
                Event::Tick(_) => {}
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

    /// Everything comes back, and nothing was written where nobody may write.
    fn end(mut self) {
        for hostile in &mut self.hostile {
            hostile.stop(&mut self.worker);
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
