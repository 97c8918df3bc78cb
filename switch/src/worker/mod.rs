//! A worker: a thread that owns rings and moves frames between them.
//!
//! - A **source** is where frames come in: an intake or a TAP ([`source`]).
//! - An **outlet** is where they leave: a delivery or a TAP, with what waits for it ([`outlets`]).
//! - A **pass** serves every source that is awake, then what waits, then what other workers sent ([`pass`]).
//! - Between passes the worker obeys its **mailbox** ([`mailbox`]), and when there is nothing to do it sleeps ([`rest`]);
//!   rings that fell quiet get a second look ([`looks`]).
//!
//! Frames for a receiver of another worker travel there as parcels, and their completions come back ([`peers`]).

mod credits;
mod effort;
mod ends;
mod later;
mod looks;
pub mod mailbox;
mod outlets;
mod pass;
mod peers;
mod prices;
mod rest;
mod rings;
mod source;
mod stolen;
mod turn;

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

pub use mailbox::{Mailbox, WorkerHandle};
pub use peers::{Links, links};
pub use rings::{Direction, RingKey, Start};

use crate::budget::{Account, Budget};
use crate::link::{Line, Path};
use crate::parcel::Parcel;
use crate::policy::{Allowance, Policy};
use crate::port::PortId;
use crate::port::pool::Pool;
use crate::ring::RingFault;
use crate::settings::Settings;
use crate::stats::Counters;
use crate::table::Table;
use crate::time::Cycles;
use credits::Credits;
use outlets::Outlets;
use pass::Ended;
use peers::Peers;
use prices::{Bill, Prices};
use rest::Rest;
use source::Sources;
use stolen::Stolen;

/// Frames that are taken from a source at a time.
pub const BATCH: usize = 32;

/// What all workers of a network share.
#[derive(Debug)]
pub struct Shared {
    /// Counters of ports and workers.
    pub counters: Counters,
    /// One table for each segment.
    pub tables: Vec<Table>,
    /// The segment of each port.
    pub segment_of: Vec<usize>,
    /// What the operator allows each port.
    pub policies: Vec<Arc<Policy>>,
    /// What frames to each port go through, if it is on a link.
    lines: Vec<Mutex<Option<Arc<Path>>>>,
    /// What all frames from TAPs and under way on links may take.
    pub budget: Arc<Budget>,
    /// What each port's guest may have mapped.
    pub mapped: Vec<Arc<Account>>,
    /// What each port's links may take, all queues together.
    accounts: Vec<Arc<Account>>,
    /// Where frames lie whose sender has no memory to share.
    pub pool: Arc<Pool>,
    key: u64,
    /// What the operator set.
    pub settings: Settings,
}

impl Shared {
    /// For `workers` workers, a port for each entry of `segment_of`, which names its segment, and one table for each segment; `key` makes the tables
    /// unpredictable to guests. Ports are allowed what is usual.
    pub fn new(workers: usize, segment_of: Vec<usize>, key: u64, settings: Settings) -> Self {
        // A part is for buffers that nobody uses, so that all of it together is what the operator set.
        let spare = (settings.memory / 8).min(MOST_SPARE);
        let budget = Budget::new(settings.memory - spare);
        let ports = segment_of.len();
        let mut members = vec![0; segment_of.iter().max().map_or(0, |last| last + 1)];
        segment_of.iter().for_each(|&segment| members[segment] += 1);
        Self {
            counters: Counters::new(workers, ports),
            tables: members.into_iter().map(|members| Table::for_members(ports, members, ADDRESSES, key)).collect(),
            policies: (0..ports).map(|_| Arc::new(Policy::new(&Allowance::default()))).collect(),
            lines: (0..ports).map(|_| Mutex::default()).collect(),
            mapped: {
                let all = Budget::new(settings.guest_memory);
                (0..ports).map(|_| Account::new(&all)).collect()
            },
            accounts: (0..ports).map(|_| Account::new(&budget)).collect(),
            pool: Arc::new(Pool::new(Arc::clone(&budget), spare)),
            budget,
            key,
            segment_of,
            settings,
        }
    }

    /// The weight of `port` among senders.
    #[inline]
    fn weight_of(&self, port: PortId) -> u16 {
        self.policies[port.index()].weight()
    }

    /// Frames to `port` go along `path` once its outlets hear of it, see [`Worker::follow_path`]; a clear one is none.
    pub fn set_path(&self, port: PortId, path: Path) {
        let path = (!path.is_clear()).then(|| Arc::new(path));
        *self.lines[port.index()].lock().unwrap_or_else(PoisonError::into_inner) = path;
    }

    /// What frames to `port` go through, if it is on a link.
    fn path_to(&self, port: PortId) -> Option<Arc<Path>> {
        self.lines[port.index()].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The line before a new delivery, if its port is on a link.
    fn line_to(&self, key: RingKey) -> Option<Line> {
        let port = key.port.index();
        let path = self.path_to(key.port)?;
        let seed = u64::from(key.port.0) << 16 | u64::from(key.pair);
        Some(Line::new(path, Arc::clone(&self.accounts[port]), self.key.wrapping_add(seed)))
    }
}

/// Bytes of buffers for TAPs that nobody uses, at most.
const MOST_SPARE: u64 = 2 << 20;
/// Table entries that a port may hold.
const ADDRESSES: u32 = 1024;

/// What a worker tells the control side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A guest broke its ring in this session of the port, which is to be quarantined.
    RingFault(PortId, u32, RingFault),
    /// Some guest's memory lost its file.
    MemoryLost,
    /// This is the present second: time to forget silent stations. Only a worker that is awake says so.
    Tick(u32),
}

/// Where frames for one queue of a port are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The worker that owns the ring.
    pub worker: u8,
    /// The outlet's slot there.
    pub slot: u16,
}

/// See the module.
#[derive(Debug)]
pub struct Worker {
    index: u8,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    events: Sender<Event>,
    sources: Sources,
    outlets: Outlets,
    peers: Peers,
    rest: Rest,
    /// The parcel under consideration.
    parcel: Box<Parcel>,
    /// Scratch for parcels that were waiting and no longer are.
    ended: Vec<Ended>,
    /// The session in which each port last had a ring started here.
    sessions: Vec<u32>,
    /// Ports of each segment.
    segments: Vec<Vec<PortId>>,
    now: Cycles,
    /// Seconds since the worker began, for the tables.
    second: u32,
    /// What each port may still spend of this worker's time.
    credits: Credits,
    prices: Prices,
    /// What was done since time was last charged to somebody.
    bill: Bill,
    /// Up to when time was charged to somebody.
    charged_until: Cycles,
    stolen: Stolen,
    /// See [`pass::LONG`].
    long: Cycles,
    /// Outlets whose receivers' buffers were a burden, and their ports.
    burdens: Vec<(u16, PortId)>,
    /// The last pass moved nothing.
    idle: bool,
    losses: u32,
    /// Second of the last [`Event::Tick`].
    ticked: u32,
    quit: bool,
}

/// The first vacant one of `slots`, a new one if there is none.
fn vacant<T>(slots: &mut Vec<Option<T>>) -> usize {
    slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    })
}

/// Seconds between two ticks.
const TICK: u32 = 10;

impl Worker {
    /// Worker `index` of a network; `links` connect it with the others.
    ///
    /// # Errors
    /// The kernel refuses an epoll or event descriptor.
    pub fn new(
        index: u8,
        shared: Arc<Shared>,
        mailbox: Arc<Mailbox>,
        links: Links,
        events: Sender<Event>,
    ) -> std::io::Result<Self> {
        let ports = shared.segment_of.len();
        let mut segments = vec![Vec::new(); shared.tables.len()];
        for (port, &segment) in shared.segment_of.iter().enumerate() {
            segments[segment].push(PortId(port as u16));
        }
        Ok(Self {
            index,
            sources: Sources::default(),
            outlets: Outlets::new(ports, &shared.settings),
            peers: Peers::new(links, ports),
            rest: Rest::new(&mailbox, &shared.settings)?,
            parcel: Box::default(),
            ended: Vec::new(),
            sessions: vec![0; ports],
            segments,
            now: crate::time::cycles(),
            credits: Credits::new(ports),
            prices: Prices::new(ports),
            bill: Bill::default(),
            charged_until: 0,
            stolen: Stolen::new(),
            long: crate::time::in_cycles(pass::LONG),
            burdens: Vec::new(),
            idle: false,
            second: 0,
            losses: crate::memory::sigbus::losses(),
            ticked: 0,
            quit: false,
            shared,
            mailbox,
            events,
        })
    }

    /// Works until told to quit.
    pub fn run(mut self) {
        loop {
            let frames = self.step();
            if self.quit {
                return;
            }
            if frames == 0 {
                self.rest();
            } else {
                self.glance();
            }
        }
    }

    /// Obeys the mailbox and makes one pass, without resting; returns the frames that it moved. For benches, fuzzers and models, which
    /// drive a worker themselves.
    #[inline]
    pub fn step(&mut self) -> u32 {
        if self.mailbox.has_post() {
            self.obey();
        }
        self.tell_time();
        self.pass()
    }

    /// Ends [`Self::run`] after this pass.
    pub fn quit(&mut self) {
        self.quit = true;
    }

    fn obey(&mut self) {
        let mailbox = Arc::clone(&self.mailbox);
        mailbox.collect(|command| command(self));
    }

    fn tell_time(&mut self) {
        self.now = crate::time::cycles_after(self.now);
        self.charged_until = self.now;
        self.second = self.rest.second(self.now);
        if self.second - self.ticked >= TICK {
            self.ticked = self.second;
            self.report(Event::Tick(self.second));
        }
    }

    fn report(&self, event: Event) {
        // The control side only goes away with the process.
        let _ = self.events.send(event);
    }
}
