//! Random traffic on a real network, and a model switch of a few lines that says which frames must arrive where.

use std::collections::HashMap;

use crate::common::*;
use crate::dice::Dice;
use memlane_rig::frames::NetHeader;
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ReceiveBuffers, ToyGuest};

/// Segments of the ports.
const SEGMENTS: [usize; 7] = [0, 0, 0, 0, 1, 1, 2];
/// The port with a configured address: no other port may use it.
const PINNED: usize = 2;
const ROUNDS: usize = 2000;

type Address = [u8; 6];

/// A switch as one would tell a child.
struct Model {
    /// The port behind which a MAC address was last seen, in each VLAN of each segment.
    learned_addresses: HashMap<(usize, u16, Address), usize>,
    /// Whether each port's transmit and receive queue are enabled.
    enabled: [[bool; 2]; SEGMENTS.len()],
}

impl Model {
    fn new() -> Self {
        Self { learned_addresses: HashMap::new(), enabled: [[true; 2]; SEGMENTS.len()] }
    }

    /// Ports that get a frame that `port` sends.
    fn receivers(&mut self, port: usize, frame: &[u8]) -> Vec<usize> {
        let (segment, [transmit, _]) = (SEGMENTS[port], self.enabled[port]);
        let (to, from) = (address_at(frame, 0), address_at(frame, 6));
        let bad_source = from[0] & 1 == 1 || from == [0; 6] || (from == pinned() && port != PINNED && segment == SEGMENTS[PINNED]);
        if !transmit || bad_source {
            return Vec::new();
        }
        let vlan = vlan_of(frame);
        self.learned_addresses.insert((segment, vlan, from), port);
        let is_tied = to == pinned() && segment == SEGMENTS[PINNED];
        let learned = self.learned_addresses.get(&(segment, vlan, to)).filter(|_| to[0] & 1 == 0).copied();
        let one = if is_tied { Some(PINNED) } else { learned };
        let all = (0..SEGMENTS.len()).filter(|&other| SEGMENTS[other] == segment && one.is_none_or(|one| one == other));
        all.filter(|&other| other != port && self.enabled[other][1]).collect()
    }

    /// No learned MAC address is behind `port` any more.
    fn forget(&mut self, port: usize) {
        self.learned_addresses.retain(|_, behind| *behind != port);
    }
}

fn pinned() -> Address {
    [2, 0, 0, 0, 0xaa, 0xaa]
}

/// The VLAN of a frame's outer tag; 0 without one.
fn vlan_of(frame: &[u8]) -> u16 {
    match frame[12..] {
        [0x81, 0x00, a, b, ..] | [0x88, 0xa8, a, b, ..] => u16::from_be_bytes([a, b]) & 0xfff,
        _ => 0,
    }
}

fn address_at(frame: &[u8], at: usize) -> Address {
    frame[at..at + 6].try_into().unwrap()
}

/// A network and its model.
struct World {
    bed: Bed,
    guests: Vec<ToyGuest>,
    model: Model,
    dice: Dice,
}

impl World {
    fn new(top: &str) -> Self {
        let mut dice = Dice::new();
        let lines: Vec<String> = SEGMENTS
            .iter()
            .enumerate()
            .map(|(port, segment)| {
                let mac = if port == PINNED { "\nmac = \"02:00:00:00:aa:aa\"" } else { "" };
                format!("segment = \"s{segment}\"\nstorm = 0{mac}")
            })
            .collect();
        // Addresses move at random, hundreds of times a second.
        let bed = Bed::with(&format!("{top}\naddress-moves = 0"), &lines.iter().map(String::as_str).collect::<Vec<_>>());
        let guests = (0..SEGMENTS.len()).map(|port| plug_in(&bed, port, &mut dice)).collect();
        Self { bed, guests, model: Model::new(), dice }
    }

    fn run(&mut self) {
        for _ in 0..ROUNDS {
            match self.dice.below(20) {
                0 => self.flip(),
                1 => self.replug(),
                _ => self.talk(),
            }
        }
        for port in 0..SEGMENTS.len() {
            assert_eq!(self.bed.totals(port).waiting, 0);
        }
    }

    /// Enables or disables a ring.
    fn flip(&mut self) {
        let (port, ring) = (self.dice.below(SEGMENTS.len()), self.dice.below(2));
        let enabled = &mut self.model.enabled[port][1 - ring];
        *enabled = !*enabled;
        let guest = &mut self.guests[port];
        guest.frontend().unwrap().enable_ring(ring, *enabled).unwrap();
        guest.synchronise().unwrap();
    }

    /// Another guest comes in the place of one.
    fn replug(&mut self) {
        let port = self.dice.below(SEGMENTS.len());
        self.guests[port].disconnect();
        self.bed.wait_for(|bed| bed.state(port) == memlane::port::PortState::Waiting, "the port waits");
        self.guests[port] = plug_in(&self.bed, port, &mut self.dice);
        self.model.forget(port);
        self.model.enabled[port] = [true; 2];
    }

    /// One port sends a few frames; each port gets the frames that the model says, in order, and nothing else.
    fn talk(&mut self) {
        let port = self.dice.below(SEGMENTS.len());
        let mut expected = vec![Vec::new(); SEGMENTS.len()];
        for _ in 0..=self.dice.below(8) {
            let frame = self.frame();
            for receiver in self.model.receivers(port, &frame) {
                expected[receiver].push(frame.clone());
            }
            let layout = self.layout();
            self.guests[port].send_with(&NetHeader::default(), &layout, &frame).unwrap();
        }
        self.guests[port].wait_sent(TIMEOUT).unwrap();
        for (receiver, frames) in expected.into_iter().enumerate() {
            for frame in frames {
                assert!(self.guests[receiver].receive(TIMEOUT).unwrap().bytes == frame, "port {port} to port {receiver}");
            }
            let surplus = self.guests[receiver].try_receive().unwrap();
            assert!(surplus.is_none(), "port {receiver} got what is not for it from port {port}: {surplus:?}");
        }
    }

    /// A frame between MAC addresses that move, with or without a tag.
    fn frame(&mut self) -> Vec<u8> {
        let length = match self.dice.below(10) {
            0 => 14 + self.dice.below(50),
            1 => 1500 + self.dice.below(8000),
            _ => 60 + self.dice.below(1459),
        };
        let mut frame = self.dice.bytes(length);
        let (to, from) = (self.destination(), self.source());
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&from);
        let kinds = [
            &[0x88, 0xb5][..],
            &[0x08, 0x00],
            &[0x86, 0xdd],
            &[0x81, 0x00, 0x00, 0x05],
            &[0x81, 0x00, 0xe0, 0x00],
            &[0x88, 0xa8, 0x60, 0x06],
        ];
        // A frame of 14 bytes has no room for a tag.
        let kind: &[u8] = if length < 16 { kinds[0] } else { self.dice.pick(&kinds) };
        frame[12..12 + kind.len()].copy_from_slice(kind);
        frame
    }

    fn station(&mut self) -> Address {
        if self.dice.once_in(8) { pinned() } else { [2, 0, 0, 0, 0, self.dice.below(10) as u8] }
    }

    fn source(&mut self) -> Address {
        match self.dice.below(30) {
            0 => [0; 6],
            1 => [0x33, 0x33, 0, 0, 0, 1],
            _ => self.station(),
        }
    }

    fn destination(&mut self) -> Address {
        match self.dice.below(10) {
            0 => BROADCAST,
            1 => [0x33, 0x33, 0, 0, 0, self.dice.below(3) as u8],
            2 => [2, 0, 0, 0, 1, self.dice.below(250) as u8],
            _ => self.station(),
        }
    }

    fn layout(&mut self) -> Layout {
        let iovecs = (0..self.dice.below(6)).map(|_| self.dice.below(90) as u32).collect::<Vec<_>>();
        let layout = if iovecs.is_empty() { Layout::single() } else { Layout::iovecs(iovecs) };
        if self.dice.once_in(3) { layout.indirect() } else { layout }
    }
}

/// A guest of random habits.
fn plug_in(bed: &Bed, port: usize, dice: &mut Dice) -> ToyGuest {
    let size = 200 + dice.below(4000) as u32;
    let receive = ReceiveBuffers { size, iovec: if dice.once_in(3) { 100 + size / 3 } else { u32::MAX }, ..ReceiveBuffers::SMALL };
    let wanted = features::LINUX & !if dice.once_in(2) { features::EVENT_IDX } else { 0 };
    // Four descriptors a buffer at most, and at most eight frames of 9500 bytes in buffers of 200.
    bed.guest_like(port, bed.builder(port).features(wanted).ring_size(2048).receive_buffers(receive))
}

#[test]
fn one_worker() {
    World::new("").run();
}

#[test]
fn three_workers() {
    World::new("workers = 3").run();
}

#[test]
fn a_worker_that_polls_and_gives_back_in_order() {
    World::new("poll = \"always\"").run();
}
