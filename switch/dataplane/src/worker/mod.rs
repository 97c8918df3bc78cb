//! A worker: a thread that owns rings and moves frames between them.
//!
//! - A **source** is where frames come in: a transmit queue or a TAP (`sources`).
//! - The **directory** knows the ports and segments that there are ([`directory`]).
//! - An **outlet** is where they leave: a receive queue or a TAP, with what waits for it (`outlets`).
//! - A **pass** serves every source that is awake, then what waits, then what other workers sent ([`pass`]).
//!   Before drivers are told of what a pass did, those are looked after of whom an agenda says that it is time ([`lost_notifications`]).
//! - Between passes the worker obeys its **mailbox** ([`mailbox`]), and when there is nothing to do it sleeps ([`rest`]).
//!
//! Frames for a receiver of another worker travel there as parcels, and their completions come back ([`peers`]).

mod directory;
mod fate;
mod lost_notifications;
pub mod mailbox;
mod pass;
mod peers;
mod rest;
mod rings;
mod turn;

use std::sync::Arc;
use std::sync::mpsc::Sender;

pub use mailbox::{Mailbox, WorkerHandle};
pub use peers::{Links, links};
pub use rings::Start;

use crate::airtime::Airtime;
use crate::id::{PortId, RingKey, SegmentId, Slot};
use crate::outlets::Outlets;
use crate::parcel::Parcel;
use crate::port::Port;
use crate::ring::RingFault;
use crate::shared::Shared;
use crate::sources::Sources;
use crate::time::Cycles;
use directory::Directory;
use pass::Ended;
use peers::Peers;
use rest::Rest;

/// What a worker tells the control side.
#[derive(Clone, Debug)]
pub enum Event {
    /// A guest broke its ring in this session of the port, which is to be quarantined.
    RingFault(Arc<Port>, u32, RingFault),
    /// A driver has given this receive ring its first buffer, in this session of the port. The slot tells the ring from others of the same key,
    /// before it and after.
    Filled(Arc<Port>, u32, RingKey, Slot),
    /// Some guest's memory lost its file.
    MemoryLost,
    /// A second has begun. Only a worker that is awake says so.
    Second,
    /// This is the present second: time to forget silent stations. Only a worker that is awake says so.
    Tick(u32),
    /// Stations of this segment move between ports too often.
    Flapped(SegmentId),
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
    directory: Directory,
    now: Cycles,
    /// Seconds since the worker began, for the tables.
    second: u32,
    airtime: Airtime,
    /// Outlets whose receivers' buffers were a burden, and their ports.
    burdens: Vec<(Slot, PortId)>,
    losses: u32,
    /// Second of the last [`Event::Tick`].
    ticked: u32,
    quit: Option<Quit>,
}

/// Why a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quit {
    /// It was told to, with nothing in flight.
    Told,
    /// Its mailbox was closed.
    Closed,
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
        Ok(Self {
            index,
            sources: Sources::default(),
            outlets: Outlets::new(index, &shared.settings),
            peers: Peers::new(links),
            rest: Rest::new(&mailbox, &shared.settings)?,
            parcel: Box::default(),
            ended: Vec::new(),
            directory: Directory::new(index),
            now: crate::time::cycles(),
            airtime: Airtime::default(),
            burdens: Vec::new(),
            second: 0,
            losses: crate::memory::sigbus::losses(),
            ticked: 0,
            quit: None,
            shared,
            mailbox,
            events,
        })
    }

    /// Works until told to quit, or until its mailbox is closed.
    pub fn run(&mut self) -> Quit {
        loop {
            let frames = self.step();
            if let Some(quit) = self.quit {
                return quit;
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
        self.quit = Some(Quit::Told);
    }

    /// Ends while frames may be in flight between workers. The memory that its rings lie in stays mapped, because other workers may be reading
    /// frames there; commands that wait for its answers fail.
    pub fn abandon(mut self) {
        let unanswered: Vec<_> = self.sources.iter().filter_map(|(_, source)| source.when_back.take()).collect();
        std::mem::forget(self);
        drop(unanswered);
    }

    fn obey(&mut self) {
        let mailbox = Arc::clone(&self.mailbox);
        let open = mailbox.collect(|command| command(self));
        if !open {
            self.quit = Some(Quit::Closed);
        }
    }

    fn tell_time(&mut self) {
        self.now = crate::time::cycles_after(self.now);
        let before = std::mem::replace(&mut self.second, self.rest.second(self.now));
        if self.second != before {
            self.begin_second();
        }
    }

    #[cold]
    fn begin_second(&mut self) {
        self.report(Event::Second);
        self.directory.have_flapped().for_each(|segment| self.report(Event::Flapped(segment)));
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
