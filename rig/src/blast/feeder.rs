//! The sending side of a run: which flow sends next, and how many frames pacer and window allow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

use super::bed::Outlet;
use super::flow::Source;
use super::plan::{Load, Plan};
use super::port::{Mould, PortError};

/// Frames of each flow that have arrived, shared by both sides.
pub type Arrivals = Arc<[AtomicU64]>;

/// Seconds without an arrival after which the frames in flight of a window count as lost.
const FORGIVE_AFTER: f64 = 0.1;

/// Tokens of one sender.
#[derive(Debug)]
struct Pacer {
    load: Load,
    /// Frames or bits that may go now; below zero when the last burst was too much.
    credit: f64,
    /// Most that may be saved up.
    depth: f64,
    per_tick: f64,
    since: u64,
}

impl Pacer {
    fn new(load: Load, burst: u16, longest: u32, now: u64) -> Self {
        let (rate, burst) = match load {
            Load::Open => (0.0, 0.0),
            Load::Packets(rate) => (rate, f64::from(burst)),
            Load::Bits(rate) => (rate, f64::from(burst) * f64::from(longest) * 8.0),
        };
        // A millisecond's worth may be caught up, so that a scheduler's hiccup costs no rate.
        Self { load, credit: 0.0, depth: burst.max(rate / 1000.0), per_tick: rate / clock::frequency(), since: now }
    }

    /// How many frames of `flow` may go now, at most `burst`.
    #[inline]
    fn allows(&mut self, flow: &Source, burst: usize, now: u64) -> usize {
        let unit = match self.load {
            Load::Open => return burst,
            Load::Packets(_) => 1.0,
            Load::Bits(_) => f64::from(flow.length()) * 8.0,
        };
        let passed = now.saturating_sub(self.since) as f64;
        self.since = now.max(self.since);
        self.credit = (self.credit + passed * self.per_tick).min(self.depth);
        let frames = if matches!(self.load, Load::Bits(_)) { (self.credit / unit).ceil() } else { self.credit };
        frames.clamp(0.0, burst as f64) as usize
    }

    fn spend(&mut self, frames: u64, bytes: u64) {
        match self.load {
            Load::Open => {}
            Load::Packets(_) => self.credit -= frames as f64,
            Load::Bits(_) => self.credit -= bytes as f64 * 8.0,
        }
    }
}

/// State of a flow's window.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// Frames given up for lost.
    forgiven: u64,
    /// Arrivals at the last look, and when they last changed.
    arrived: u64,
    changed: u64,
}

/// The sending side; see the module's page.
pub struct Feeder {
    outlets: Vec<Outlet>,
    /// Index of the flow that sends next, by outlet.
    turns: Vec<usize>,
    sources: Vec<Source>,
    mould: Mould,
    pacers: Vec<Pacer>,
    windows: Vec<Window>,
    arrivals: Arrivals,
    window: u64,
    burst: usize,
}

impl Feeder {
    /// A side that sends `sources` through `outlets` as `plan` wants it.
    pub fn new(plan: &Plan, outlets: Vec<Outlet>, sources: Vec<Source>, mould: Mould, arrivals: Arrivals) -> Self {
        let now = clock::ticks();
        let pacer = |_| Pacer::new(plan.load, plan.burst, plan.longest(), now);
        Self {
            turns: vec![0; outlets.len()],
            pacers: (0..plan.ports.len()).map(pacer).collect(),
            windows: vec![Window { changed: now, ..Window::default() }; sources.len()],
            outlets,
            sources,
            mould,
            arrivals,
            window: plan.window,
            burst: plan.burst.into(),
        }
    }

    /// The flows' sending ends.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Gives each outlet one burst of one of its flows: how many frames went.
    ///
    /// # Errors
    /// [`PortError`] of the first port that fails.
    pub fn round(&mut self, now: u64) -> Result<usize, PortError> {
        let mut sent = 0;
        for outlet in 0..self.outlets.len() {
            for _ in 0..self.outlets[outlet].flows.len() {
                let count = self.serve(outlet, now)?;
                if count > 0 {
                    sent += count;
                    break;
                }
            }
        }
        Ok(sent)
    }

    /// Sends as many frames of the outlet's next flow as pacer and window allow, and moves on to the flow after it.
    #[inline]
    fn serve(&mut self, index: usize, now: u64) -> Result<usize, PortError> {
        let outlet = &mut self.outlets[index];
        let turn = &mut self.turns[index];
        let flow = outlet.flows[*turn];
        *turn = if *turn + 1 == outlet.flows.len() { 0 } else { *turn + 1 };
        let source = &mut self.sources[flow];
        let pacer = &mut self.pacers[outlet.port];
        let mut count = pacer.allows(source, self.burst, now);
        if self.window > 0 {
            let room = self.windows[flow].room(self.window, source, &self.arrivals[flow], now);
            count = count.min(room as usize);
        }
        if count == 0 {
            return Ok(0);
        }
        let bytes = source.bytes;
        // The stamp is the time at which these frames are sent: the round began a while ago.
        let sent = outlet.source.push(&self.mould, source, count, clock::ticks())?;
        pacer.spend(sent as u64, source.bytes - bytes);
        Ok(sent)
    }

    /// Sends the same few bytes from every port, once.
    ///
    /// # Errors
    /// [`PortError`] of the first port that fails.
    pub fn announce(&mut self, hello: impl Fn(usize) -> Vec<u8>) -> Result<(), PortError> {
        let mut said = Vec::new();
        for outlet in &mut self.outlets {
            if !said.contains(&outlet.port) {
                outlet.source.push_bytes(&hello(outlet.port))?;
                said.push(outlet.port);
            }
        }
        Ok(())
    }

    /// Sends one frame of bytes made elsewhere out of the queue that `flow` uses; `false` when there is no room.
    ///
    /// # Errors
    /// [`PortError`] when the port fails.
    pub fn push_bytes(&mut self, flow: usize, frame: &[u8]) -> Result<bool, PortError> {
        match self.outlets.iter_mut().find(|outlet| outlet.flows.contains(&flow)) {
            Some(outlet) => outlet.source.push_bytes(frame),
            None => Ok(false),
        }
    }

    /// Templates and payload from which frames are made.
    pub fn mould(&self) -> &Mould {
        &self.mould
    }
}

impl Window {
    /// How many frames more may be in flight.
    #[inline]
    fn room(&mut self, window: u64, source: &Source, arrivals: &AtomicU64, now: u64) -> u64 {
        let arrived = arrivals.load(Ordering::Relaxed);
        if arrived != self.arrived {
            (self.arrived, self.changed) = (arrived, now);
        }
        let in_flight = source.next.saturating_sub(arrived + self.forgiven);
        if in_flight < window {
            return window - in_flight;
        }
        if clock::seconds(now.saturating_sub(self.changed)) > FORGIVE_AFTER {
            self.forgiven += in_flight;
            self.changed = now;
            return window;
        }
        0
    }
}
