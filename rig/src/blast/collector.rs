//! The receiving side of a run: knows frames again, judges them, keeps the books.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock;
use crate::deadline::{self, Deadline};
use crate::ring::SharedRing;

use super::bed::{Inlet, Way};
use super::feeder::Arrivals;
use super::flow::Sink;
use super::meter::Meter;
use super::payload;
use super::plan::Plan;
use super::port::{Arrival, PortError};
use super::stamp::{Carrier, PROBE, STAMP_BYTES, Stamp};

/// The books: everything but the inlets.
pub struct Books {
    ways: Vec<Way>,
    lengths: Vec<Vec<u32>>,
    /// The flows' receiving ends, by index.
    pub sinks: Vec<Sink>,
    /// Whether a probe of the flow has arrived.
    pub reached: Vec<bool>,
    /// Frames that are none of ours.
    pub foreign: u64,
    /// Frames of ours that were meant for another port: the switch did not know better.
    pub flooded: u64,
    /// Frames that arrived as they were sent.
    pub frames: u64,
    /// Rates and latencies of the measurement.
    pub meter: Meter,
    arrivals: Option<Arrivals>,
    /// How many frames arrive for one that is sent, by flow.
    parts: Vec<u32>,
    carrier: Carrier,
    touch: bool,
}

/// The receiving side; see the module's page.
pub struct Collector {
    inlets: Vec<Inlet>,
    /// The books.
    pub books: Books,
    burst: u16,
}

impl Collector {
    /// A receiving side that polls the receive queues of `inlets`.
    pub fn new(
        plan: &Plan,
        inlets: Vec<Inlet>,
        ways: Vec<Way>,
        lengths: Vec<Vec<u32>>,
        parts: Vec<u32>,
        arrivals: Arrivals,
    ) -> Self {
        let flows = ways.len();
        let books = Books {
            sinks: vec![Sink::default(); flows],
            reached: vec![false; flows],
            foreign: 0,
            flooded: 0,
            frames: 0,
            meter: Meter::new(plan, &ways),
            arrivals: (plan.window > 0).then_some(arrivals),
            carrier: plan.carrier,
            touch: plan.touch,
            ways,
            lengths,
            parts,
        };
        Self { inlets, books, burst: plan.burst }
    }

    /// The rings that frames come in through.
    pub fn rings(&self) -> Vec<SharedRing> {
        self.inlets.iter().filter_map(|inlet| inlet.sink.ring().cloned()).collect()
    }

    /// Takes a burst from each inlet: how many frames came.
    ///
    /// # Errors
    /// [`PortError`] of the first port that fails.
    pub fn round(&mut self) -> Result<usize, PortError> {
        let mut seen = 0;
        let books = &mut self.books;
        for inlet in &mut self.inlets {
            let (port, mut now) = (inlet.port, 0);
            seen += inlet.sink.poll(self.burst, |arrival| {
                let first = now == 0;
                if first {
                    now = clock::ticks();
                }
                if let Some(sent) = books.note(port, arrival).filter(|_| first) {
                    books.meter.latency(now.saturating_sub(sent));
                }
            })?;
        }
        Ok(seen)
    }

    /// Asks every inlet for an interrupt and waits until one comes, or until `timeout` is over.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&mut self, timeout: Duration) -> std::io::Result<()> {
        if self.inlets.iter_mut().any(|inlet| inlet.sink.arm()) {
            return Ok(());
        }
        let fds: Vec<BorrowedFd<'_>> = self.inlets.iter().filter_map(|inlet| inlet.sink.waitable()).collect();
        deadline::any_readable(&fds, Deadline::after(timeout))?;
        self.inlets.iter().for_each(|inlet| inlet.sink.drain());
        Ok(())
    }
}

impl Books {
    /// The flows' ways, by index.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// Notes one frame that came in at `port`; when it was sent, if it counts.
    #[inline(always)]
    fn note(&mut self, port: usize, arrival: &Arrival<'_>) -> Option<u64> {
        let Some(stamp) = Stamp::read(arrival.first, self.carrier) else {
            self.foreign += 1;
            return None;
        };
        let flow = usize::from(stamp.flow);
        let Some(way) = self.ways.get(flow) else {
            self.foreign += 1;
            return None;
        };
        if way.to != port {
            self.flooded += 1;
            return None;
        }
        if stamp.sequence == PROBE {
            self.reached[flow] = true;
            return None;
        }
        let length = arrival.length();
        let sound = length as u32 == self.length(flow, stamp.sequence) && (!self.touch || self.holds(arrival, &stamp));
        let sink = &mut self.sinks[flow];
        if !sound {
            sink.corrupt += 1;
            return None;
        }
        sink.note(stamp.sequence, length as u64);
        self.frames += 1;
        if let Some(arrivals) = &self.arrivals {
            let whole = sink.received / u64::from(self.parts[flow]);
            arrivals[flow].store(whole, Ordering::Relaxed);
        }
        Some(stamp.ticks)
    }

    /// How long frame `sequence` of a flow must be.
    #[inline(always)]
    fn length(&self, flow: usize, sequence: u64) -> u32 {
        let lengths = &self.lengths[flow];
        match lengths.len() {
            1 => lengths[0],
            count => lengths[(sequence % count as u64) as usize],
        }
    }

    fn holds(&self, arrival: &Arrival<'_>, stamp: &Stamp) -> bool {
        let seed = payload::seed(stamp.flow.into(), stamp.sequence);
        let mut offset = self.carrier.stamp_at() + STAMP_BYTES;
        let mut right = payload::holds(&arrival.first[offset..], offset, seed);
        offset = arrival.first.len();
        for iovec in arrival.rest {
            right &= payload::holds(iovec, offset, seed);
            offset += iovec.len();
        }
        right
    }
}
