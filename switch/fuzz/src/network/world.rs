//! The network and its guests, in one thread on a clock of their own.
//!
//! The [`Floor`] is what runs: workers, guests and the ledger. While the control side waits for workers, the floor goes on by chance
//! ([`driven::while_waiting`]).

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use memlane::driven;
use memlane::frame::MacAddress;
use memlane::headers::link_local;
use memlane::id::Direction;
use memlane::network::{AttachSettings, Network};
use memlane::policy::Flood;
use memlane::port::settings::PortSettings;
use memlane::port::{Offer, Port};
use memlane::settings::{Poll, Settings};
use memlane::shared::Shared;
use memlane::time::{Cycles, driven as clock};
use memlane::worker::{Event, Worker};

use super::Dice;
use super::capture::Tapped;
use super::frames::{ADVERTISEMENT, Body, Fault, Frame, Nd, Packet, ROUTER, SOLICITATION};
use super::guest::{Attention, Guest, Habit};
use super::ledger::{Ledger, Taken, Totals};
use super::model::{Config, Life, PortState};
use super::offloads;
use super::recorder::Recorder;
use super::settings;

/// Ports that may be there.
pub const PORTS: usize = 6;
pub const SEGMENTS: [&str; 2] = ["s0", "s1"];
/// When the clock begins: long after the machine started, as a time-stamp counter.
const BEGIN: Cycles = 1 << 40;
/// FDB aging, in seconds.
const AGE: u32 = 40;
const STALL: Duration = Duration::from_millis(20);
/// Time in which every frame in flight or enqueued comes to its end under any rate limit.
const REST: Cycles = 20 * clock::FREQUENCY;
/// Most time between two poll iterations while frames are in flight.
const LONGEST: Cycles = clock::FREQUENCY / 200;
/// Poll iterations of a contest (fair queueing), and those after which it begins to count.
const ROUNDS: usize = 300;
const WARM_UP: usize = 50;
/// Frames of the burst of storm control, and some more.
const STORM_BURST: usize = 2010;
/// Frames of each guest from an address that wanders.
const WANDERINGS: usize = 8;
/// Frames of a stream, and those after which the workers go on.
const STREAM: usize = 1024;
const BATCH: usize = 32;
/// Bytes of recorders: the smallest loses records in a contest.
const RECORDERS: [usize; 3] = [1 << 20, 8 << 20, 32 << 20];
/// Frames that a guest may have beyond its share: those of two transmit batches.
const SLACK: u64 = 64;
/// Bytes of a frame of a contest: a few receive buffers of any guest hold it.
const IN_CONTEST: usize = 500;
/// Frames by which a blocked sender of weight 1 may lead, by 128 KiB, at the beginning in favour of one and at the end of the other.
const LEAD: u64 = 2 * (128 << 10) / IN_CONTEST as u64;
/// Poll iterations without a frame in flight, after which none is.
const QUIET: usize = 4;

fn second() -> u64 {
    clock::now() / clock::FREQUENCY
}

/// Workers, guests and the ledger; see the module.
#[derive(Debug)]
pub struct Floor {
    workers: Vec<Worker>,
    /// Until when each of them sleeps in epoll.
    deadlines: Vec<Option<Cycles>>,
    guests: Vec<Option<Guest>>,
    ledger: Ledger,
    dice: Dice,
    number: u32,
}

impl Floor {
    /// A poll iteration of one worker; then the guests look at their virtqueues.
    fn drive(&mut self, worker: usize) {
        self.deadlines[worker] = self.workers[worker].drive();
        self.observe(worker);
        for guest in self.guests.iter_mut().flatten() {
            let (life, ledger) = (guest.life, &mut self.ledger);
            guest.attend(|bytes| ledger.receive(life, bytes));
        }
    }

    fn drive_all(&mut self) {
        (0..self.workers.len()).for_each(|worker| self.drive(worker));
    }

    /// Notes the frames that a worker took from transmit queues.
    fn observe(&mut self, worker: usize) {
        let (workers, ledger) = (self.workers.len(), &mut self.ledger);
        let mut all = Vec::new();
        for guest in self.guests.iter_mut().flatten().filter(|guest| guest.port.id.index() % workers == worker) {
            let count = ledger.count_taken(guest.life) as usize;
            assert!(count <= guest.pending.len(), "{count} frames of guest {} were taken, of {}", guest.life, guest.pending.len());
            let numbers = guest.pending.drain(..count).collect();
            let next = guest.pending.front().copied();
            all.push(Taken { life: guest.life, numbers, next });
        }
        ledger.take(&all, second());
    }

    /// A frame and a poll iteration by chance, while the control side waits.
    fn happen(&mut self) {
        if self.dice.once_in(4) {
            let mut dice = Dice::of(self.dice.number());
            let from = dice.below(PORTS);
            self.send(from, &mut dice, true);
        }
        clock::set(clock::now() + self.dice.below(3000) as Cycles);
        let worker = self.dice.below(self.workers.len());
        self.drive(worker);
    }

    /// Guest `from` makes a frame available in its transmit queue.
    fn send(&mut self, from: usize, dice: &mut Dice, kicks: bool) {
        let head = dice.number();
        self.send_like(from, head, dice, kicks);
    }

    /// Like [`Self::send`], with the Ethernet header of `head`.
    fn send_like(&mut self, from: usize, head: u64, dice: &mut Dice, kicks: bool) {
        let frame = self.frame(from, &mut Dice::of(head), dice);
        self.send_frame(from, frame, dice, kicks);
    }

    /// Makes this frame available; false if the transmit queue is full.
    fn send_frame(&mut self, from: usize, frame: Frame, dice: &mut Dice, kicks: bool) -> bool {
        let Some(guest) = &mut self.guests[from] else { return false };
        let frame = Frame { number: self.number, ..frame };
        let has_room = match frame.fault {
            Some(fault) => guest.send_broken(frame.number, fault),
            None => guest.send(frame.number, (frame.header(frame.tag), &frame.bytes(frame.tag)), dice),
        };
        if !has_room {
            return false;
        }
        self.number += 1;
        self.ledger.make(frame);
        if kicks && guest.kick_needed() {
            guest.kick();
        }
        true
    }

    /// Two guests send to a third one as fast as they can, and that posts few receive buffers: by fair queueing each has its share by its weight.
    fn contest(&mut self, dice: &mut Dice) {
        let places: Vec<usize> = (0..3).map(|_| dice.below(PORTS)).collect();
        let [one, other, to] = places[..] else { return };
        let Some(lives) = places.iter().map(|&place| Some(self.guests[place].as_ref()?.life)).collect::<Option<Vec<Life>>>() else {
            return;
        };
        let frame = |from| Frame {
            to: address(to),
            from: address(from),
            tag: 0,
            body: Body::Other,
            number: 0,
            length: IN_CONTEST,
            request: None,
            fault: None,
        };
        let is_free = |from: usize, life| self.ledger.is_free(life, &frame(from), lives[2], second());
        let is_apart = one != other && one != to && other != to;
        if self.workers.len() > 1 || !is_apart || !is_free(one, lives[0]) || !is_free(other, lives[1]) {
            return;
        }
        let weight = |life| self.ledger.config().port(life).map_or(1, |port| u64::from(port.settings.limits.weight));
        let weights = [weight(lives[0]), weight(lives[1])];
        let attention = std::mem::replace(&mut self.guests[to].as_mut().expect("a guest").habit.attention, Attention::Stalled);
        let (mut begin, mut is_contest) = ([0; 2], true);
        for round in 0..ROUNDS {
            for from in [one, other] {
                while self.send_frame(from, frame(from), dice, true) {}
            }
            self.drive(0);
            let Self { guests, ledger, .. } = self;
            guests[to].iter_mut().for_each(|guest| guest.take_some(4, |bytes| ledger.receive(lives[2], bytes)));
            clock::set(clock::now() + 20_000);
            if round == WARM_UP {
                begin = [0, 1].map(|which| self.ledger.arrived(lives[which], lives[2]));
            }
            let has_more = |place: usize| self.guests[place].as_ref().is_some_and(|guest| guest.transmit.in_flight() > 8);
            is_contest &= has_more(one) && has_more(other);
        }
        self.guests[to].iter_mut().for_each(|guest| guest.habit.attention = attention);
        let got = [0, 1].map(|which| self.ledger.arrived(lives[which], lives[2]) - begin[which]);
        let has_share = |mine: usize, others: usize| {
            let lead = SLACK + LEAD * weights[mine];
            got[mine] * weights[others] <= 2 * got[others] * weights[mine] + lead * weights[others]
        };
        let is_fair = has_share(0, 1) && has_share(1, 0);
        assert!(
            !is_contest || is_fair,
            "guests {:?} with weights {weights:?} have {got:?} frames at guest {}",
            &lives[..2],
            lives[2]
        );
    }

    /// A guest whose driver has no memory barriers looks whether a kick is wanted, and then makes a frame available: the worker may have fallen
    /// asleep in between.
    fn send_late(&mut self, from: usize, dice: &mut Dice) {
        let Some(guest) = &mut self.guests[from] else { return };
        let (worker, is_armed) = (guest.port.id.index() % self.workers.len(), guest.is_asked_to_kick());
        self.drive(worker);
        self.send(from, dice, false);
        if let Some(guest) = &mut self.guests[from]
            && guest.kick_needed()
            && is_armed
        {
            guest.kick();
        }
    }

    /// A guest whose driver has no memory barriers finds no more frames, and then asks for interrupts: frames may have come in between.
    fn sleep_late(&mut self, place: usize) {
        let Some(guest) = self.guests[place].as_mut().filter(|guest| guest.may_lose_interrupts()) else {
            return;
        };
        let (life, ledger) = (guest.life, &mut self.ledger);
        guest.begin_sleep(|bytes| ledger.receive(life, bytes));
        self.drive_all();
        self.guests[place].iter_mut().for_each(Guest::end_sleep);
    }

    fn frame(&self, from: usize, head: &mut Dice, dice: &mut Dice) -> Frame {
        let tag = if head.once_in(3) { head.pick(&settings::VLANS) } else { 0 };
        let (to, from_mac) = (destination(head), if head.once_in(12) { address(head.below(PORTS)) } else { address(from) });
        let from_mac = if head.once_in(100) { head.pick(&[MacAddress::default(), MacAddress::BROADCAST]) } else { from_mac };
        let length = match dice.below(8) {
            0 => 64 + dice.below(1450),
            1 => 1514,
            _ => 64 + dice.below(80),
        };
        let body = body(from, to, from_mac, dice);
        let fault = if dice.once_in(150) { Some(dice.pick(&Fault::ALL)) } else { None };
        let body_length = if matches!(body, Body::Ip(Packet { lease: Some(_), .. })) { 304 } else { 98 };
        let request = if dice.once_in(5) { offloads::request(&body, dice) } else { None };
        let (request, length) = request.map_or((None, length), |(request, exact)| (Some(request), exact.unwrap_or(length)));
        Frame { to, from: from_mac, tag, body, number: self.number, length: length.max(body_length), request, fault }
    }

    fn is_quiet(&self) -> bool {
        self.guests.iter().flatten().all(|guest| {
            let port = self.ledger.config().port(guest.life);
            let held = port.is_some_and(|port| !port.settings.enabled);
            let waiting = guest.transmit.in_flight() as usize;
            let is_served = guest.port.totals().waiting == 0 && !guest.is_to_be_interrupted();
            is_served && (waiting == 0 || held && waiting == guest.pending.len())
        })
    }

    /// Time passes until no frame is in flight or enqueued.
    fn rest(&mut self) {
        let (begin, mut step, mut rounds) = (clock::now(), 2_000, 0);
        while rounds < QUIET {
            self.drive_all();
            self.guests.iter_mut().flatten().for_each(Guest::reclaim);
            rounds = if self.is_quiet() { rounds + 1 } else { 0 };
            let now = clock::now();
            assert!(now < begin + REST, "frames stand still: {:?}", self.standing());
            let next = self.deadlines.iter().copied().min().flatten().filter(|&next| next > now).unwrap_or(now + step);
            clock::set(next.min(now + step));
            step = (2 * step).min(LONGEST);
        }
        for guest in self.guests.iter_mut().flatten() {
            let (life, ledger) = (guest.life, &mut self.ledger);
            guest.take(|bytes| ledger.receive(life, bytes));
        }
        self.ledger.check_at_rest();
    }

    fn standing(&self) -> Vec<String> {
        let of = |guest: &Guest| {
            let totals = guest.port.totals();
            format!(
                "guest {}: {} in flight, {} not taken, {} waiting",
                guest.life,
                guest.transmit.in_flight(),
                guest.pending.len(),
                totals.waiting
            )
        };
        self.guests.iter().flatten().map(of).collect()
    }
}

/// The unicast MAC address of the guest in a place.
pub fn address(place: usize) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, place as u8])
}

/// A unicast MAC address that is no port's own.
fn wanderer(dice: &mut Dice) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 9, dice.below(4) as u8])
}

fn destination(dice: &mut Dice) -> MacAddress {
    match dice.below(12) {
        0 => MacAddress::BROADCAST,
        1 => MacAddress::new([0x33, 0x33, 0, 0, 0, dice.below(3) as u8]),
        2 if dice.once_in(4) => MacAddress::new([0x01, 0x80, 0xc2, 0, 0, dice.below(16) as u8]),
        2 => wanderer(dice),
        _ => address(dice.below(PORTS)),
    }
}

fn body(from: usize, to: MacAddress, mac: MacAddress, dice: &mut Dice) -> Body {
    let own = if dice.once_in(16) { dice.below(PORTS) } else { from };
    let other = if dice.once_in(4) { dice.below(PORTS) } else { usize::from(to.bytes()[5]) % PORTS };
    match dice.below(16) {
        0 => Body::Other,
        1 if dice.once_in(2) => Body::Nd(nd(from, own, mac, dice)),
        1 => Body::Arp(if dice.once_in(8) { address(dice.below(PORTS)) } else { mac }, settings::ip(own, false)),
        2 if dice.once_in(3) => Body::Hidden,
        kind => {
            let is_v6 = kind >= 12;
            let protocol = if is_v6 { dice.pick(&[6, 17]) } else { dice.pick(&[6, 6, 17, 17, 1]) };
            let mut port = || dice.pick(&settings::SERVICES);
            let (from, to) = ((settings::ip(own, is_v6), port()), (settings::ip(other, is_v6), port()));
            let to = if protocol == 1 { (to.0, 0) } else { to };
            let flags = if protocol == 1 { dice.pick(&[8, 0]) } else { dice.pick(&[0x02, 0x10, 0x12, 0x04, 0x18]) };
            let is_later = !is_v6 && dice.once_in(12);
            let ports = |pair: (_, u16)| if is_later { (pair.0, 0) } else { pair };
            let packet = Packet { protocol, from: ports(from), to: ports(to), flags, is_later, lease: None };
            let may_lease = protocol == 17 && !is_v6 && !is_later && dice.once_in(10);
            Body::Ip(if may_lease { leasing(packet, dice) } else { packet })
        }
    }
}

/// The packet with which a DHCP server acknowledges a lease.
fn leasing(packet: Packet, dice: &mut Dice) -> Packet {
    let ip = Ipv4Addr::new(10, 0, 0, 100 + dice.below(settings::LEASES.into()) as u8);
    let (from, to) = ((packet.from.0, 67), (packet.to.0, 68));
    Packet { from, to, lease: Some((ip, address(dice.below(PORTS)))), ..packet }
}

/// A neighbour discovery message of the guest in a place, which claims the address of `own`.
fn nd(from: usize, own: usize, mac: MacAddress, dice: &mut Dice) -> Nd {
    let is_local = dice.once_in(6);
    let ip = |place| match settings::ip(place, true) {
        IpAddr::V6(ip) if !is_local => ip,
        _ => link_local(address(place)),
    };
    let (own, other) = (ip(own), ip(dice.below(PORTS)));
    let kind = dice.pick(&[SOLICITATION, SOLICITATION, ADVERTISEMENT, ROUTER]);
    let link = match dice.below(6) {
        0 => None,
        1 => Some(address(from)),
        2 => Some(address(dice.below(PORTS))),
        _ => Some(mac),
    };
    let is_probe = dice.once_in(6);
    let target = if kind == ADVERTISEMENT || is_probe { own } else { other };
    let link = if is_probe && !dice.once_in(4) { None } else { link };
    Nd { kind, from: if is_probe { Ipv6Addr::UNSPECIFIED } else { own }, target, link }
}

/// See the module.
#[derive(Debug)]
pub struct World {
    network: Arc<Network>,
    events: Receiver<Event>,
    floor: Rc<RefCell<Floor>>,
    settings: Settings,
    workers: usize,
    recorder: Option<Recorder>,
    capture: Option<Tapped>,
    /// Tells what happens.
    is_told: bool,
}

impl Drop for World {
    fn drop(&mut self) {
        // The end of a capture waits for workers, which cannot be driven any more after a panic.
        let capture = self.capture.take();
        if std::thread::panicking() {
            std::mem::forget(capture)
        } else {
            self.quietly(|_| drop(capture))
        }
        driven::while_waiting(None);
        clock::set(0);
    }
}

impl World {
    /// A network by chance, with a guest in every place.
    pub fn new(seed: u64, is_told: bool) -> Self {
        clock::set(BEGIN);
        let mut dice = Dice::of(seed);
        let workers = dice.pick(&[1, 1, 2, 3]);
        let settings = Settings {
            poll: if dice.once_in(4) { Poll::Always } else { Poll::Adaptive },
            in_order: dice.once_in(4),
            stall_timeout: STALL,
            wait_queue: 256,
            age: AGE,
            moves: dice.pick(&[0, 0, 3]),
            ..Settings::default()
        };
        let (network, threads, events) = Network::unstarted(Shared::new(workers, seed | 1, settings.clone())).expect("descriptors");
        let mut ledger = Ledger::new(workers > 1, settings.moves > 0, is_told);
        ledger.begin_change(Config { ports: vec![None; PORTS], rules: Vec::new() });
        let (deadlines, guests) = (vec![None; workers], (0..PORTS).map(|_| None).collect());
        let floor = Floor { workers: threads, deadlines, guests, ledger, dice: Dice::of(seed), number: 1 };
        let floor = Rc::new(RefCell::new(floor));
        let mut world = Self { network, events, floor, settings, workers, recorder: None, capture: None, is_told };
        world.lend();
        (0..PORTS).for_each(|place| world.attach(place, &mut dice));
        if dice.once_in(3) {
            world.record(&mut dice);
        }
        world
    }

    /// Has the floor go on while the control side waits.
    fn lend(&self) {
        let floor = Rc::clone(&self.floor);
        driven::while_waiting(Some(Rc::new(move || floor.borrow_mut().happen())));
    }

    /// Does `work` while nothing happens but poll iterations.
    fn quietly<R>(&self, work: impl FnOnce(&Arc<Network>) -> R) -> R {
        let floor = Rc::clone(&self.floor);
        driven::while_waiting(Some(Rc::new(move || floor.borrow_mut().drive_all())));
        let result = work(&self.network);
        self.lend();
        result
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            println!("    {} ns: {}", clock::now() - BEGIN, what());
        }
    }

    /// Frames taken and arrived.
    pub fn totals(&self) -> Totals {
        self.floor.borrow().ledger.totals
    }

    /// Dice for the events of the next step.
    pub fn begin(&mut self, seed: u64) {
        self.floor.borrow_mut().dice = Dice::of(seed);
    }

    /// Acts on the events of workers as the fault handler, and compares the counters, drop reasons among them, with the ledger.
    pub fn look(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::RingFault(port, _, fault) => panic!("{} keeps the rules: {fault}", port.name),
                Event::MemoryLost => panic!("memory is not lost here"),
                Event::Tick(_) => {
                    self.floor.borrow_mut().ledger.expire(second(), AGE.into());
                    self.network.act(event);
                }
                Event::Filled(..) | Event::Second | Event::Flapped(_) => {}
            }
        }
        let Floor { guests, ledger, .. } = &mut *self.floor.borrow_mut();
        for guest in guests.iter().flatten() {
            ledger.note_room(guest.life, self.workers == 1 && guest.habit.has_room());
        }
        ledger.check();
    }

    pub fn send(&mut self, from: usize, dice: &mut Dice) {
        for _ in 0..=dice.below(24) {
            self.floor.borrow_mut().send(from, dice, true);
        }
        self.tell(|| format!("guest {from} has sent"));
    }

    /// Frames with the same Ethernet header, most of one flow, for the flow cache and the fast path.
    pub fn stream(&mut self, from: usize, dice: &mut Dice) {
        let (head, rests) = (dice.number(), [dice.number(), dice.number(), dice.number()]);
        for number in 0..dice.below(STREAM) {
            let rest = if dice.once_in(6) { dice.pick(&rests) } else { rests[0] };
            let mut floor = self.floor.borrow_mut();
            floor.send_like(from, head, &mut Dice::of(rest), true);
            if number % BATCH == BATCH - 1 {
                floor.drive_all();
                clock::set(clock::now() + dice.below(4000) as Cycles);
            }
        }
        self.tell(|| format!("guest {from} streams"));
    }

    /// Two guests send from one address by turns, as where there is a loop.
    pub fn wander(&mut self, from: usize, dice: &mut Dice) {
        let mac = wanderer(dice);
        let frame = |to| Frame { to, from: mac, tag: 0, body: Body::Other, number: 0, length: 90, request: None, fault: None };
        let (config, broadcast) = (self.config(), frame(MacAddress::BROADCAST));
        let learns = |place: usize| {
            let port = config.ports[place].as_ref()?;
            Some((port.segment, config.learns(port, &broadcast).ok()?))
        };
        let others: Vec<usize> = (0..PORTS).filter(|&other| other != from && learns(other) == learns(from)).collect();
        if others.is_empty() {
            return;
        }
        let other = dice.pick(&others);
        for place in [from, other].repeat(WANDERINGS) {
            let mut floor = self.floor.borrow_mut();
            let to = if dice.once_in(2) { MacAddress::BROADCAST } else { address(dice.below(PORTS)) };
            floor.send_frame(place, frame(to), dice, true);
            floor.drive_all();
        }
        self.tell(|| format!("{mac} is behind guests {from} and {other}"));
    }

    pub fn send_late(&mut self, from: usize, dice: &mut Dice) {
        self.floor.borrow_mut().send_late(from, dice);
        self.tell(|| format!("guest {from} sends and may lose its kick"));
    }

    pub fn contest(&mut self, dice: &mut Dice) {
        self.floor.borrow_mut().contest(dice);
        self.tell(|| "two guests had their shares of a third one".into());
    }

    pub fn sleep_late(&mut self, place: usize) {
        self.floor.borrow_mut().sleep_late(place);
        self.tell(|| format!("guest {place} sleeps and may lose its interrupt"));
    }

    pub fn work(&mut self, dice: &mut Dice) {
        for _ in 0..=dice.below(12) {
            let worker = dice.below(self.workers);
            self.floor.borrow_mut().drive(worker);
            clock::set(clock::now() + dice.below(4000) as Cycles);
        }
        self.tell(|| "the workers went on".into());
    }

    /// Time passes without work, up to a minute.
    pub fn pass(&mut self, dice: &mut Dice) {
        let scale = dice.pick(&[1_000, 100_000, 1_000_000, 100_000_000, 60_000_000_000]);
        clock::set(clock::now() + 1 + dice.number() % scale);
        self.tell(|| "time passes".into());
        self.work(dice);
    }

    pub fn change_attention(&mut self, place: usize, dice: &mut Dice) {
        let attention = dice.pick(&[Attention::Polls, Attention::Interrupted, Attention::Stalled]);
        let Floor { guests, ledger, .. } = &mut *self.floor.borrow_mut();
        if let Some(guest) = &mut guests[place] {
            guest.habit.attention = attention;
            let life = guest.life;
            guest.take(|bytes| ledger.receive(life, bytes));
        }
        self.tell(|| format!("guest {place}: {attention:?}"));
    }

    /// Time passes until no frame is in flight or enqueued, and everything is accounted for.
    pub fn rest(&mut self) {
        self.look();
        self.floor.borrow_mut().rest();
        self.replay();
        if let Some(capture) = &mut self.capture {
            self.floor.borrow_mut().ledger.compare_capture(&capture.read());
        }
        self.tell(|| "everything is at rest".into());
    }

    /// Begins a capture, or ends it.
    pub fn capture(&mut self, dice: &mut Dice) {
        self.rest();
        self.capture = match self.capture.take() {
            None => Some(self.quietly(|network| Tapped::start(network, dice.pick(&[64, 100, 65536])))),
            ended => {
                self.quietly(|_| drop(ended));
                None
            }
        };
        let runs = self.capture.is_some();
        self.floor.borrow_mut().ledger.capture(runs);
        self.tell(|| format!("a capture runs: {runs}"));
    }

    /// Starts the recorder, or stops it.
    pub fn record(&mut self, dice: &mut Dice) {
        self.rest();
        if self.recorder.take().is_some() {
            assert!(self.quietly(|network| network.stop_recording()));
        } else {
            let bytes = dice.pick(&RECORDERS);
            self.recorder = Some(self.quietly(|network| Recorder::start(network, bytes)));
        }
        let runs = self.recorder.is_some();
        self.floor.borrow_mut().ledger.record(runs);
        self.tell(|| format!("the recorder runs: {runs}"));
    }

    /// Makes the verdicts again that were recorded, and compares them with those of the model. No frame is being taken.
    fn replay(&mut self) {
        let Some(mut recorder) = self.recorder.take() else { return };
        let logs = self.quietly(|network| recorder.replay(network));
        self.recorder = Some(recorder);
        let ledger = &mut self.floor.borrow_mut().ledger;
        logs.iter().enumerate().for_each(|(worker, log)| ledger.compare((worker, self.workers), log));
    }

    /// Does `work` while the configuration becomes `next`.
    fn change(&mut self, next: Config, work: impl FnOnce(&Arc<Network>)) {
        self.floor.borrow_mut().ledger.begin_change(next);
        work(&self.network);
        self.floor.borrow_mut().ledger.end_change();
    }

    fn config(&self) -> Config {
        self.floor.borrow().ledger.config().clone()
    }

    fn port(&self, place: usize) -> Option<Arc<Port>> {
        self.floor.borrow().guests[place].as_ref().map(|guest| Arc::clone(&guest.port))
    }

    pub fn attach(&mut self, place: usize, dice: &mut Dice) {
        if self.port(place).is_some() {
            return;
        }
        let (segment, mut settings) = (dice.below(SEGMENTS.len() + 1) % SEGMENTS.len(), settings::port(place, dice));
        settings::vlans(&mut settings.limits, dice);
        let habit = Habit::new(dice, self.settings.in_order);
        self.tell(|| format!("guest {place} is attached to s{segment}: {settings:?} {habit:?}"));
        let life = self.floor.borrow_mut().ledger.open();
        let state = PortState {
            life,
            name: format!("n{place}"),
            segment,
            settings: settings.clone(),
            offers: habit.offers,
            accepts: habit.accepts,
            sends: true,
            receives: true,
        };
        self.blur(settings.mac, segment);
        self.admit(place, state, [0; 2], |port| Guest::new(life, port, habit));
        self.use_up_floods(place);
    }

    /// A port with storm control has used up its burst, which few frames of one guest would here.
    fn use_up_floods(&self, place: usize) {
        let Some(port) = self.port(place) else { return };
        let flood = Flood { reaches_one: false, suspect: false, now: clock::now() };
        let is_limited = (0..STORM_BURST).any(|_| port.policy.take_flood(flood).is_err());
        if is_limited {
            let life = self.life(place);
            self.floor.borrow_mut().ledger.have_no_floods(life);
        }
    }

    /// Adds a port, and starts the virtqueues of its guest.
    fn admit(&mut self, place: usize, state: PortState, bases: [u16; 2], guest: impl FnOnce(Arc<Port>) -> Guest) {
        let mut next = self.config();
        next.ports[place] = Some(state.clone());
        self.floor.borrow_mut().ledger.begin_change(next);
        let guest = guest(self.add(place, state.segment, &state.settings));
        {
            let mut floor = self.floor.borrow_mut();
            floor.ledger.enter(guest.life, &guest.port, self.workers, guest.habit.accepts);
            floor.guests[place] = Some(guest);
        }
        self.start(place, bases);
        self.floor.borrow_mut().ledger.end_change();
    }

    fn add(&self, place: usize, segment: usize, settings: &PortSettings) -> Arc<Port> {
        let name = format!("n{place}");
        let attach = AttachSettings { name: &name, segment: SEGMENTS[segment], settings, offer: Offer::default() };
        let port = self.network.add_port(&attach, PORTS).expect("a name and an address of its own");
        port.segment.addresses().set_answering(Some(false));
        port
    }

    fn start(&self, place: usize, bases: [u16; 2]) {
        let parts = self.floor.borrow().guests[place].as_ref().map(|guest| (Arc::clone(&guest.port), guest.parts(bases)));
        let (port, parts) = parts.expect("a guest");
        parts.into_iter().for_each(|parts| self.network.start_ring(&port, parts));
    }

    /// An address that is pinned in the FDB, or is not any more, may be anywhere.
    fn blur(&self, mac: Option<MacAddress>, segment: usize) {
        let mut floor = self.floor.borrow_mut();
        mac.into_iter().for_each(|mac| floor.ledger.blur(mac, segment, None));
    }

    pub fn detach(&mut self, place: usize) {
        let Some(port) = self.port(place) else { return };
        let mut next = self.config();
        let old = next.ports[place].take();
        let life = self.life(place);
        self.floor.borrow_mut().ledger.may_stop(life);
        self.floor.borrow_mut().ledger.may_forget(life);
        self.floor.borrow_mut().ledger.leaving = Some(life);
        self.change(next, |network| network.remove_port(&port));
        self.floor.borrow_mut().ledger.leaving = None;
        self.tell(|| format!("guest {place} is detached"));
        let mut floor = self.floor.borrow_mut();
        let mut guest = floor.guests[place].take().expect("a guest");
        let life = guest.life;
        guest.take(|bytes| floor.ledger.receive(life, bytes));
        // Chains before this one are completed, and no others.
        let base = port.recall_stopped(guest.key(Direction::Transmit)).map(|stopped| stopped.base);
        guest.reclaim();
        if let Some(base) = base {
            assert_eq!(
                guest.transmit.in_flight(),
                guest.transmit.published_index().wrapping_sub(base),
                "frames of guest {place} did not come back"
            );
        }
        floor.ledger.close(life);
        let old = old.expect("a port");
        old.settings.mac.into_iter().for_each(|mac| floor.ledger.blur(mac, old.segment, None));
    }

    /// The virtqueues of a guest stop, and start again where they were.
    pub fn restart(&mut self, place: usize) {
        let Some(port) = self.port(place) else { return };
        let (before, mut next) = (self.config(), self.config());
        if let Some(state) = &mut next.ports[place] {
            state.receives = false;
        }
        let keys = self.floor.borrow().guests[place]
            .as_ref()
            .map(|guest| [Direction::Transmit, Direction::Receive].map(|way| guest.key(way)));
        let (mut bases, life) = ([0; 2], self.life(place));
        self.floor.borrow_mut().ledger.may_stop(life);
        self.change(next, |network| {
            for (base, key) in bases.iter_mut().zip(keys.expect("a guest")) {
                *base = network.stop_ring(&port, key).expect("the ring runs").base;
            }
        });
        let mut again = before;
        if let Some(state) = &mut again.ports[place] {
            (state.sends, state.receives) = (true, true);
        }
        self.floor.borrow_mut().ledger.begin_change(again);
        port.begin_session();
        self.start(place, bases);
        self.floor.borrow_mut().ledger.end_change();
        self.tell(|| format!("the rings of guest {place} restarted"));
    }

    /// Another process continues at the used rings, as after a takeover.
    pub fn take_over(&mut self) {
        self.look();
        self.network.hold_transmit(true);
        let is_drained = self.network.drain_all(Duration::ZERO);
        assert!(is_drained, "frames stay in flight at a takeover");
        self.replay();
        self.recorder = None;
        let capture = self.capture.take();
        self.quietly(|_| drop(capture));
        let (network, threads, events) =
            Network::unstarted(Shared::new(self.workers, 5, self.settings.clone())).expect("descriptors");
        {
            let mut floor = self.floor.borrow_mut();
            floor.ledger.record(false);
            floor.ledger.capture(false);
            floor.ledger.forget_all();
            (floor.workers, floor.deadlines) = (threads, vec![None; self.workers]);
        }
        (self.network, self.events) = (network, events);
        let before = self.config();
        self.change(Config { ports: vec![None; PORTS], rules: Vec::new() }, |_| {});
        self.change(Config { rules: before.rules.clone(), ..self.config() }, |network| network.set_policy(&before.rules));
        for (place, state) in before.ports.into_iter().enumerate() {
            let Some(state) = state else { continue };
            let mut guest = self.floor.borrow_mut().guests[place].take().expect("a guest");
            let bases = guest.used();
            self.admit(place, PortState { sends: true, receives: true, ..state }, bases, |port| {
                guest.port = port;
                guest
            });
        }
        // Interrupts that the process before the takeover has not sent.
        self.network.end_held();
        self.tell(|| "another process took over".into());
    }

    pub fn change_settings(&mut self, place: usize, dice: &mut Dice) {
        let Some(port) = self.port(place) else { return };
        let (mut next, mut settings) = (self.config(), settings::port(place, dice));
        let Some(state) = &mut next.ports[place] else { return };
        (settings.limits.vlan, settings.limits.trunk) = (state.settings.limits.vlan, state.settings.limits.trunk.clone());
        let before = std::mem::replace(&mut state.settings, settings.clone());
        let (segment, others) = (state.segment, next.ports.iter().flatten());
        let is_taken = others.clone().any(|other| {
            other.segment == segment && other.name != port.name && other.settings.mac == settings.mac && settings.mac.is_some()
        });
        if is_taken {
            return;
        }
        self.tell(|| format!("guest {place} has other settings: {settings:?}"));
        self.blur(before.mac, segment);
        self.blur(settings.mac, segment);
        if before.mac != settings.mac {
            let life = self.life(place);
            self.floor.borrow_mut().ledger.may_forget(life);
        }
        if before.enabled && !settings.enabled {
            let life = self.life(place);
            self.floor.borrow_mut().ledger.may_see_again(life);
        }
        self.change(next, |network| network.change_port(&port, &before, &settings).expect("the address is free"));
        self.blur(before.mac, segment);
        if before.mac != settings.mac {
            let life = self.life(place);
            self.floor.borrow_mut().ledger.may_forget(life);
        }
        self.use_up_floods(place);
    }

    pub fn change_policy(&mut self, dice: &mut Dice) {
        let mut next = self.config();
        next.rules = settings::rules(dice);
        let rules = next.rules.clone();
        self.tell(|| format!("the policy is now {:?}", rules.iter().map(|rule| rule.stated()).collect::<Vec<_>>()));
        self.change(next, |network| network.set_policy(&rules));
    }

    /// A virtqueue is disabled, or enabled.
    pub fn flip(&mut self, place: usize, dice: &mut Dice) {
        let Some(port) = self.port(place) else { return };
        let mut next = self.config();
        let Some(state) = &mut next.ports[place] else { return };
        let (way, is_on) = match dice.once_in(2) {
            true => (Direction::Transmit, &mut state.sends),
            false => (Direction::Receive, &mut state.receives),
        };
        *is_on = !*is_on;
        let is_on = *is_on;
        let key = self.floor.borrow().guests[place].as_ref().map(|guest| guest.key(way)).expect("a guest");
        self.tell(|| format!("{way:?} ring of guest {place}: {is_on}"));
        self.change(next, |network| network.set_enabled(&port, key, is_on));
    }

    /// A guest's question for a DNS name is answered.
    pub fn resolve(&mut self, place: usize, dice: &mut Dice) {
        let Some(port) = self.port(place) else { return };
        let (name, ttl) = (dice.pick(&settings::NAMES), dice.pick(&[0, 90, 1000]));
        let addresses: Vec<(IpAddr, u32)> =
            (0..=dice.below(2)).map(|_| (settings::ip(dice.below(PORTS), dice.once_in(3)), ttl)).collect();
        self.tell(|| format!("guest {place} knows {addresses:?} of {name}"));
        self.network.grant(&port, &name.into(), &addresses);
        let life = self.life(place);
        self.floor.borrow_mut().ledger.grant(life, name, &addresses, second());
    }

    pub fn announce(&mut self, place: usize, dice: &mut Dice) {
        let Some(port) = self.port(place) else { return };
        let (life, mac) = (self.life(place), if dice.once_in(3) { address(dice.below(PORTS)) } else { address(place) });
        self.floor.borrow_mut().ledger.announce(life, mac);
        self.tell(|| format!("guest {place} announces {mac}"));
        self.network.announce(&port, mac);
        // MAC learning of a worker came meanwhile, before or after frames of others.
        let mut floor = self.floor.borrow_mut();
        let segment = floor.ledger.config().port(life).map_or(0, |port| port.segment);
        floor.ledger.blur(mac, segment, Some(life));
    }

    fn life(&self, place: usize) -> Life {
        self.floor.borrow().guests[place].as_ref().map(|guest| guest.life).expect("a guest")
    }

    /// All ports go, and no segment (broadcast domain), quota or frame is left of them.
    pub fn end(mut self) -> Totals {
        self.rest();
        (0..PORTS).for_each(|place| self.detach(place));
        assert!(self.network.ports().is_empty() && self.network.segments().is_empty());
        assert_eq!(self.network.shared().budget.held(), 0, "memory of frames is left");
        self.totals()
    }
}
