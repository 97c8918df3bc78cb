//! A worker: a thread that owns virtqueues and moves frames between them.
//!
//! - A **source** is a transmit queue (TX) or a TAP: frames enter here (`ingress`).
//! - An **egress queue** is a receive queue (RX) or a TAP, with the frames that are enqueued for it: frames leave here (`egress`).
//! - The worker's port table holds its ports and their broadcast domains ([`port_table`]).
//! - A **poll iteration** serves every source that is awake, then the enqueued frames, then the packets from other workers
//!   ([`iteration`]). It ends with notifications; before that it handles expired timers, which recover lost notifications
//!   ([`lost_notifications`]).
//! - Between poll iterations the worker runs the commands in its **mailbox** ([`mailbox`]). Without work it polls on or sleeps in
//!   epoll ([`rest`]).
//!
//! Frames for a receiver of another worker travel to it through inter-worker queues, and their completions come back the same way
//! ([`peers`]).

mod iteration;
mod lost_notifications;
pub mod mailbox;
mod outcome;
mod peers;
mod port_table;
mod rest;
mod rings;
mod standstill;
mod turn;
mod view;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use nix::sys::prctl::set_timerslack;

pub use mailbox::{Mailbox, WorkerHandle};
pub use peers::{Links, links};
pub use rings::Start;
pub use standstill::QueueFiles;

use crate::cpu_time::CpuTime;
use crate::egress::Egress;
use crate::id::{PortId, RingKey, SegmentId, Slot};
use crate::ingress::Sources;
use crate::packet::Packet;
use crate::port::Port;
use crate::record::{Chunk, Recorder};
use crate::ring::RingFault;
use crate::shared::Shared;
use crate::tap::Tap;
use crate::time::Cycles;
use iteration::Ended;
use peers::Peers;
use port_table::PortTable;
use rest::Rest;

/// Events that a worker reports to the control side.
#[derive(Clone, Debug)]
pub enum Event {
    /// A guest broke its ring in this session of the port, which is to be quarantined.
    RingFault(Arc<Port>, u32, RingFault),
    /// A driver has given this receive ring its first buffer, in this session of the port. The slot distinguishes the ring from
    /// earlier and later ones of the same key.
    Filled(Arc<Port>, u32, RingKey, Slot),
    /// The file behind the memory of some guest was truncated or lost.
    MemoryLost,
    /// A second has begun. Only a worker that is awake reports it.
    Second,
    /// The current second, once in ten seconds: FDB entries of silent MAC addresses age out now. Only a worker that is awake
    /// reports it.
    Tick(u32),
    /// MAC addresses of this broadcast domain move between ports too often (a loop, or a spoofed source).
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
    egress: Egress,
    peers: Peers,
    rest: Rest,
    /// Scratch for the packet that is being forwarded.
    packet: Box<Packet>,
    /// Scratch for packets that left the wait queue, so that their descriptor chains can be completed.
    ended: Vec<Ended>,
    port_table: PortTable,
    now: Cycles,
    /// Seconds since the worker began, for FDB aging.
    second: u32,
    cpu_time: CpuTime,
    /// Egress queues with receive buffers that were too expensive to walk, and their ports.
    burdens: Vec<(Slot, PortId)>,
    losses: u32,
    /// Second of the last [`Event::Tick`].
    ticked: u32,
    quit: Option<Quit>,
}

/// Reason why a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quit {
    /// A command, with no frame in flight.
    Told,
    /// The worker's mailbox was closed.
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
            egress: Egress::new(index, &shared.settings),
            peers: Peers::new(links),
            rest: Rest::new(&mailbox, &shared.settings)?,
            packet: Box::default(),
            ended: Vec::new(),
            port_table: PortTable::new(index),
            now: crate::time::cycles(),
            cpu_time: CpuTime::default(),
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

    /// Makes poll iterations until [`Self::quit`] is called or the mailbox is closed.
    pub fn run(&mut self) -> Quit {
        // Deadlines are timeouts of epoll, to which the kernel would add 50 us (timer slack). If it refuses, they stay late.
        let _ = set_timerslack(1);
        loop {
            let frames = self.step();
            if let Some(quit) = self.quit {
                return quit;
            }
            if frames == 0 {
                self.rest();
            } else {
                self.poll_events();
            }
        }
    }

    /// Runs the mailbox's commands and one poll iteration, without resting; returns the frames that it moved. For benches, fuzzers
    /// and models, which drive a worker themselves.
    #[inline]
    pub fn step(&mut self) -> u32 {
        if self.mailbox.has_post() {
            self.obey();
        }
        self.tell_time();
        self.iterate()
    }

    /// Copies frames for a capture from now on.
    pub fn add_tap(&mut self, tap: Tap) {
        self.packet.capture_id = 0;
        self.egress.work.taps.add(tap, self.index);
    }

    /// Copies no more for capture `number`.
    pub(crate) fn remove_tap(&mut self, number: u64) -> Option<Tap> {
        self.egress.work.taps.remove(number)
    }

    /// Records verdicts from now on; returns the recorder that did before.
    pub(crate) fn set_recorder(&mut self, recorder: Option<Box<Recorder>>) -> Option<Box<Recorder>> {
        self.sources.begin_recording();
        let before = std::mem::replace(&mut self.egress.work.recorder, recorder);
        if let Some(recorder) = &mut self.egress.work.recorder {
            recorder.set_filter(self.port_table.filter());
        }
        before
    }

    /// The records from number `first` on, and some before them; and how many were too long to be written.
    pub(crate) fn recorded(&self, first: u64) -> Option<(Vec<Arc<Chunk>>, u64)> {
        self.egress.work.recorder.as_ref().map(|recorder| (recorder.since(first), recorder.lost()))
    }

    /// Ends [`Self::run`] after this poll iteration.
    pub fn quit(&mut self) {
        self.quit = Some(Quit::Told);
    }

    /// Leaves its records to the readers of the recording: it has ended.
    pub(crate) fn leave_records(&self) {
        if let Some(recorder) = &self.egress.work.recorder {
            recorder.leave();
        }
    }

    /// Ends while frames may be in flight between workers. The memory of its virtqueues stays mapped, because other workers may be
    /// reading frames there; commands that wait for its answers fail.
    pub(crate) fn abandon(mut self) {
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
        self.port_table.have_flapped().for_each(|segment| self.report(Event::Flapped(segment)));
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
