//! Numbered frames between two guests in both directions. A frame that is lost, damaged, late or doubled ends the test, except while an
//! event is forgiven that must lose frames.

use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memlane_rig::frontend::features;
use memlane_rig::guest::{GuestBuilder, GuestError, Habit, SendBuffers, ToyGuest};
use memlane_rig::memory::{DirtyLog, MemoryPlan};
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;

use crate::common::{frame, mac};

/// Most frames of a direction on their way, fewer than a receive queue has buffers.
const WINDOW: u64 = 100;
/// Most frames that are sent at once.
const BURST: usize = 4;
/// Pause between two rounds: all flows share few CPUs with the switch.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest time without a frame.
const LATE: Duration = Duration::from_secs(60);
/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Memory of a guest: the first region holds rings and buffers, the last one comes and goes.
const REGIONS: (u64, u64) = (3, 8 << 20);

/// An event in a flow.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// From now on frames may be lost or come twice.
    Forgive,
    /// The event is over: no frame that is sent from now on may be lost. Answered when all others have arrived or are lost.
    Settle,
    /// The guest reboots: its device is stopped, and started with new rings.
    Reboot(usize),
    /// The guest's machine ends in the middle, and begins again.
    PowerCut(usize),
    /// Memory is taken away, or plugged in again.
    Plug(usize),
    /// A migration begins, or ends.
    Migrate(usize),
    /// No more frames are sent; answered when all have arrived.
    Stop,
}

/// Counts of frames and connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    pub sent: u64,
    pub arrived: u64,
    pub lost: u64,
    pub doubled: u64,
    pub reconnects: u64,
    pub longest: Duration,
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.arrived += other.arrived;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.reconnects += other.reconnects;
        self.longest = self.longest.max(other.longest);
    }
}

/// A flow, in a thread of its own.
pub struct Flow {
    orders: Sender<(Order, Sender<()>)>,
    thread: JoinHandle<Ledger>,
}

impl Flow {
    /// Between the guests `2 * index` and the next one.
    pub fn start(folder: &Path, index: usize) -> Self {
        let (orders, taken) = channel();
        let folder = folder.to_owned();
        let name = format!("flow-{index}");
        let thread = std::thread::Builder::new().name(name).spawn(move || Talk::new(&folder, index).run(&taken)).unwrap();
        Self { orders, thread }
    }

    /// Gives an order; [`Answer::wait`] awaits its answer.
    pub fn order(&self, order: Order) -> Answer {
        let (tell, told) = channel();
        let _ = self.orders.send((order, tell));
        Answer(told, order)
    }

    /// Whether it has failed.
    pub fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    pub fn end(self) -> Ledger {
        drop(self.orders);
        self.thread.join().expect("a flow goes on")
    }
}

/// The answer to an order.
#[must_use]
pub struct Answer(Receiver<()>, Order);

impl Answer {
    pub fn wait(self) {
        self.0.recv_timeout(2 * LATE).unwrap_or_else(|error| panic!("{:?}: {error}", self.1));
    }
}

/// One direction, from the guest on `side`.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    sent: u64,
    /// The number that is to arrive next.
    next: u64,
    arrived: u64,
    lost: u64,
    doubled: u64,
    /// All before this have to arrive, or are lost, until the flow is settled.
    mark: Option<u64>,
}

struct Talk {
    index: usize,
    folder: PathBuf,
    guests: [ToyGuest; 2],
    plugged: [bool; 2],
    /// Dirty logs, with the frames that had arrived when they began.
    logs: [Option<(DirtyLog, u64)>; 2],
    directions: [Direction; 2],
    forgiving: bool,
    settling: Vec<Sender<()>>,
    stops: bool,
    stopping: Vec<Sender<()>>,
    last: Instant,
    ledger: Ledger,
}

fn socket(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("p{index}.sock"))
}

/// The front end of flow `index`, with its protocol features.
fn front_end(index: usize) -> (Habit, Protocol) {
    match index % 4 {
        0 => (Habit::QEMU, Protocol::LOG_SHMFD | Protocol::INFLIGHT_SHMFD),
        1 => (Habit::DPDK, Protocol::empty()),
        2 => (Habit::QEMU, Protocol::LOG_SHMFD),
        _ => (Habit::UML, Protocol::empty()),
    }
}

fn builder(index: usize, side: usize) -> GuestBuilder {
    let (habit, more) = front_end(index);
    ToyGuest::builder()
        .habit(habit)
        .mac(mac(2 * index + side))
        .timeout(TIMEOUT)
        .memory(MemoryPlan::spread(REGIONS.0, REGIONS.1, 1 << 20))
        .send_buffers(SendBuffers { count: 128, size: 4096 })
        .protocol_features(features::usual_protocol() | more)
}

impl Talk {
    fn new(folder: &Path, index: usize) -> Self {
        let guests = [0, 1].map(|side| builder(index, side).connect(socket(folder, 2 * index + side)).unwrap());
        Self {
            index,
            folder: folder.to_owned(),
            guests,
            plugged: [true; 2],
            logs: [None, None],
            directions: Default::default(),
            forgiving: false,
            settling: Vec::new(),
            stops: false,
            stopping: Vec::new(),
            last: Instant::now(),
            ledger: Ledger::default(),
        }
    }

    fn run(mut self, orders: &Receiver<(Order, Sender<()>)>) -> Ledger {
        loop {
            match orders.try_recv() {
                Ok((order, answer)) => self.obey(order, answer),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return self.total(),
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            self.reconnect();
            (0..2).for_each(|side| self.send(side));
            let any = [0, 1].map(|side| self.receive(side));
            self.answer();
            if !any.contains(&true) {
                std::thread::sleep(PAUSE);
            }
            let waits = self.directions.iter().any(|direction| direction.next < direction.sent);
            assert!(!waits || self.last.elapsed() < LATE, "flow {} stands still: {:?}", self.index, self.directions);
        }
    }

    fn total(self) -> Ledger {
        let mut ledger = self.ledger;
        for Direction { sent, arrived, lost, doubled, .. } in self.directions {
            ledger += Ledger { sent, arrived, lost, doubled, ..Ledger::default() };
        }
        ledger
    }

    fn obey(&mut self, order: Order, answer: Sender<()>) {
        match order {
            Order::Forgive => {
                // A migration does not survive the event.
                (0..2).for_each(|side| self.log(side, false));
                self.forgiving = true;
            }
            Order::Settle => {
                self.directions.iter_mut().for_each(|direction| direction.mark = Some(direction.sent));
                self.settling.push(answer);
                return;
            }
            Order::Stop => {
                self.stops = true;
                self.stopping.push(answer);
                return;
            }
            Order::Reboot(side) => {
                self.guests[side].stop().unwrap();
                if front_end(self.index).0.name == Habit::UML.name {
                    // Another process is the guest then.
                    self.begin_anew(side);
                } else {
                    self.guests[side].reset_rings().unwrap();
                    self.guests[side].start().unwrap();
                }
            }
            Order::PowerCut(side) => self.begin_anew(side),
            Order::Plug(side) => {
                let (guest, region) = (&mut self.guests[side], REGIONS.0 as usize - 1);
                if self.plugged[side] { guest.remove_region(region) } else { guest.add_region(region) }.unwrap();
                self.plugged[side] ^= true;
            }
            Order::Migrate(side) => self.log(side, self.logs[side].is_none()),
        }
        let _ = answer.send(());
    }

    /// Ends the guest on `side`, and starts another one.
    fn begin_anew(&mut self, side: usize) {
        self.guests[side].disconnect();
        let deadline = Instant::now() + TIMEOUT;
        // The switch may still be busy with the end of the one before.
        self.guests[side] = loop {
            match builder(self.index, side).connect(socket(&self.folder, 2 * self.index + side)) {
                Ok(guest) => break guest,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        self.plugged[side] = true;
    }

    /// Begins or ends a migration, as QEMU does.
    fn log(&mut self, side: usize, on: bool) {
        if on == self.logs[side].is_some() {
            return;
        }
        let guest = &mut self.guests[side];
        if on {
            let log = DirtyLog::below(1 << 32).unwrap();
            guest.frontend().unwrap().set_log_base(log.raw_file(), 0, log.size()).unwrap();
            self.logs[side] = Some((log, self.directions[1 - side].arrived));
        }
        guest.log_writes(on).unwrap();
        guest.log_rings(on).unwrap();
        if let Some((log, before)) = self.logs[side].take_if(|_| !on) {
            let written = self.directions[1 - side].arrived > before + WINDOW;
            assert!(!written || !log.take().is_empty(), "guest {side} of flow {} was written, and no page is marked", self.index);
        }
    }

    /// Guests come back after the end of their switch.
    fn reconnect(&mut self) {
        for side in 0..2 {
            while !self.guests[side].connected() {
                assert!(self.forgiving, "the connection of guest {side} of flow {} ended", self.index);
                assert!(self.last.elapsed() < LATE, "guest {side} of flow {} finds no switch", self.index);
                // The switch may end once more in the middle of it.
                if let Err(error) = self.guests[side].reconnect() {
                    println!("flow {}: {error}", self.index);
                } else {
                    self.plugged[side] = true;
                    self.ledger.reconnects += 1;
                }
            }
        }
    }

    fn send(&mut self, side: usize) {
        let direction = &mut self.directions[side];
        let transmit = &mut self.guests[side].pair(0).transmit;
        transmit.reclaim().unwrap();
        // Frames that are lost leave the window; others that are sent show which.
        let lost = self.forgiving && transmit.queue.ring.in_flight() == 0;
        for _ in 0..BURST {
            if self.stops && direction.mark.is_none() || direction.sent >= direction.next + WINDOW && !lost {
                return;
            }
            let (from, to) = (2 * self.index + side, 2 * self.index + 1 - side);
            let length = 60 + (direction.sent % 1400) as usize;
            match self.guests[side].send(&frame(mac(from), mac(to), length, direction.sent)) {
                Ok(_) => direction.sent += 1,
                Err(GuestError::NoSendBuffer(_)) => return,
                Err(error) => panic!("guest {side} of flow {}: {error}", self.index),
            }
        }
    }

    /// Takes all frames that have arrived at the guest on `side`; true if there were any.
    fn receive(&mut self, side: usize) -> bool {
        let mut any = false;
        loop {
            let received = self.guests[side].try_receive();
            let taken = received.unwrap_or_else(|error| panic!("guest {side} of flow {}: {error}", self.index));
            let Some(taken) = taken else { return any };
            any = true;
            self.take(&taken.bytes, 1 - side);
        }
    }

    /// Takes a frame from the guest on `side`.
    fn take(&mut self, bytes: &[u8], side: usize) {
        let (from, to) = (2 * self.index + side, 2 * self.index + 1 - side);
        assert!(bytes.len() >= 22, "{} bytes", bytes.len());
        let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
        let expected = frame(mac(from), mac(to), 60 + (number % 1400) as usize, number);
        if bytes != expected {
            let place = bytes.iter().zip(&expected).position(|(is, should)| is != should);
            let head = &bytes[..32.min(bytes.len())];
            let (is, should) = (bytes.len(), expected.len());
            panic!("frame {number} of guest {from} to {to}: {is} bytes, not {should}; differs at {place:?}: {head:02x?}");
        }
        let direction = &mut self.directions[side];
        assert!(self.forgiving || number == direction.next, "frame {number} of guest {from}: {direction:?}");
        if number < direction.next {
            direction.doubled += 1;
            return;
        }
        direction.lost += number - direction.next;
        (direction.next, direction.arrived) = (number + 1, direction.arrived + 1);
        if direction.mark.is_some_and(|mark| number >= mark) {
            direction.mark = None;
        }
        self.ledger.longest = self.ledger.longest.max(self.last.elapsed());
        self.last = Instant::now();
    }

    fn answer(&mut self) {
        if self.directions.iter().all(|direction| direction.mark.is_none()) && !self.settling.is_empty() {
            self.forgiving = false;
            self.settling.drain(..).for_each(|answer| _ = answer.send(()));
        }
        if self.directions.iter().all(|direction| direction.next == direction.sent) {
            self.stopping.drain(..).for_each(|answer| _ = answer.send(()));
        }
    }
}
