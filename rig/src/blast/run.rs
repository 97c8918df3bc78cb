//! A run: find the way, warm up, measure, let the frames in flight arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{self, ticks};
use crate::frames::Mac;
use crate::guest::ToyGuest;

use super::bed::{Bed, BedError};
use super::collector::Collector;
use super::cpu;
use super::feeder::{Arrivals, Feeder};
use super::flow::Sink;
use super::plan::Plan;
use super::port::PortError;
use super::way::find_ways;

/// How long after the last arrival nothing more is expected.
const QUIET: f64 = 0.2;
/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port did not come up.
    #[error(transparent)]
    Bed(#[from] BedError),
    /// A port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Frames do not get through.
    #[error(
        "no frame from port {from} reached port {to} within {waited:?}{more}; do the switch and its configuration connect the two?"
    )]
    NoWay {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// How long we tried.
        waited: Duration,
        /// How many other ways are shut, in words.
        more: String,
    },
    /// A thread could not be bound to a processor.
    #[error("binding to processor {cpu}: {cause}")]
    Cpu {
        /// Which.
        cpu: usize,
        /// Why not.
        cause: std::io::Error,
    },
    /// A back end went away.
    #[error("the switch hung up on the guest with MAC address {}", mac_text(mac))]
    Lost {
        /// MAC address of the port that lost it.
        mac: Mac,
    },
    /// Waiting for interrupts failed.
    #[error("waiting for calls: {0}")]
    Wait(std::io::Error),
    /// Interrupted before there was anything to report.
    #[error("interrupted before the measurement began")]
    Interrupted,
    /// No round of the measurement began in its time.
    #[error(
        "this machine gave the generator no CPU in the {0:?} of the measurement; measure for longer with --seconds, or end other work"
    )]
    Starved(Duration),
}

/// How busy a thread was during the measurement, in ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Effort {
    /// In rounds that moved frames.
    pub busy: u64,
    /// In rounds that found nothing to do.
    pub idle: u64,
    /// When the current round began.
    since: u64,
}

impl Effort {
    /// Begins a round.
    #[inline(always)]
    fn begin(&mut self, now: u64) {
        self.since = now;
    }

    /// Ends a round, in which so many frames moved.
    #[inline(always)]
    fn end(&mut self, now: u64, moved: usize) {
        let spent = now - self.since;
        if moved > 0 {
            self.busy += spent;
        } else {
            self.idle += spent;
        }
        self.since = now;
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { busy: self.busy + other.busy, idle: self.idle + other.idle, since: 0 }
    }
}

/// Frames sent: snapshots of the flows' counts.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    /// How busy the sending thread was.
    pub effort: Effort,
    /// At the measurement's begin.
    pub begin: Vec<u64>,
    /// At its end.
    pub end: Vec<u64>,
}

/// Result of a run.
pub struct Outcome {
    /// Frames sent during the measurement, by flow.
    pub sent: Sent,
    /// Frames sent in all, warm-up included, by flow.
    pub sent_in_all: Vec<u64>,
    /// The receiving ends at the measurement's begin.
    pub begin: Vec<Sink>,
    /// At its end.
    pub end: Vec<Sink>,
    /// When everything had arrived.
    pub last: Vec<Sink>,
    /// The receiving side with its books.
    pub collector: Collector,
    /// How many frames of each flow arrive for one that is sent.
    pub parts: Vec<u32>,
    /// How busy the generator was.
    pub effort: Effort,
    /// Negotiated features, by port.
    pub features: Vec<u64>,
    /// Whether it was stopped before its time.
    pub interrupted: bool,
}

/// A run while it runs.
struct Run<'a> {
    plan: &'a Plan,
    quit: &'a AtomicBool,
    /// Set by the side that cannot go on, for the other.
    failed: AtomicBool,
    progress: &'a (dyn Fn(&Collector) + Sync),
    /// The guests hold memory and connections.
    guests: &'a [ToyGuest],
    /// When the measurement begins and ends, in ticks.
    begin: u64,
    stop: u64,
}

/// Runs `plan`. `progress` is shown the books whenever a window of the time series closes.
///
/// # Errors
/// [`RunError`].
pub fn run(plan: &Plan, quit: &AtomicBool, progress: &(dyn Fn(&Collector) + Sync)) -> Result<Outcome, RunError> {
    let bed = Bed::new(plan)?;
    let arrivals: Arrivals = bed.ways.iter().map(|_| AtomicU64::new(0)).collect();
    let Bed { outlets, inlets, ways, sources, lengths, parts, mould, guests, features } = bed;
    let mut feeder = Feeder::new(plan, outlets, sources, mould, Arc::clone(&arrivals));
    let mut collector = Collector::new(plan, inlets, ways, lengths, parts.clone(), arrivals);
    find_ways(plan, quit, &mut feeder, &mut collector)?;
    let begin = ticks() + clock::ticks_of(plan.warm_up);
    let stop = begin + clock::ticks_of(plan.duration);
    let run = Run { plan, quit, failed: AtomicBool::new(false), progress, guests: &guests, begin, stop };
    let (sent, received) =
        if plan.split { run.split(&mut feeder, &mut collector)? } else { run.alone(&mut feeder, &mut collector)? };
    if !collector.books.meter.running() {
        let interrupted = quit.load(Ordering::Relaxed);
        return Err(if interrupted { RunError::Interrupted } else { RunError::Starved(plan.duration) });
    }
    let end = collector.books.sinks.clone();
    drain(&feeder, &mut collector, &parts)?;
    Ok(Outcome {
        effort: sent.effort.and(received.effort),
        sent,
        sent_in_all: counts(&feeder),
        begin: received.begin,
        end,
        last: collector.books.sinks.clone(),
        collector,
        features,
        parts,
        interrupted: quit.load(Ordering::Relaxed),
    })
}

/// Notes of the receiving thread: the receiving ends at the measurement's begin, and how busy the thread was.
#[derive(Default)]
struct Received {
    begin: Vec<Sink>,
    effort: Effort,
}

impl Run<'_> {
    #[inline(always)]
    fn over(&self, now: u64) -> bool {
        now >= self.stop || self.quit.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }

    /// One thread sends and receives in turns.
    fn alone(&self, feeder: &mut Feeder, collector: &mut Collector) -> Result<(Sent, Received), RunError> {
        bind(self.plan.cpus.first())?;
        let (mut sent, mut received) = (Sent::default(), Received::default());
        let mut moved = 0;
        loop {
            let now = ticks();
            if self.over(now) {
                break;
            }
            if self.measure(now, collector, &mut received, moved)? {
                sent.begin = counts(feeder);
            }
            moved = collector.round()? + feeder.round(now)?;
            if self.plan.port.interrupts && moved == 0 {
                collector.wait(Duration::from_millis(1)).map_err(RunError::Wait)?;
            }
        }
        sent.end = counts(feeder);
        self.finish(collector);
        Ok((sent, received))
    }

    /// One thread sends, this one receives.
    fn split(&self, feeder: &mut Feeder, collector: &mut Collector) -> Result<(Sent, Received), RunError> {
        std::thread::scope(|scope| {
            let feeding = scope.spawn(|| self.or_fail(self.feed(feeder)));
            let collected = self.or_fail(self.collect(collector));
            let sent = feeding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((sent?, collected?))
        })
    }

    /// Passes a side's result on; when it is an error the other side is told.
    fn or_fail<T>(&self, result: Result<T, RunError>) -> Result<T, RunError> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn feed(&self, feeder: &mut Feeder) -> Result<Sent, RunError> {
        bind(self.plan.cpus.first())?;
        let (mut sent, mut moved) = (Sent::default(), 0);
        loop {
            let now = ticks();
            if self.over(now) {
                break;
            }
            if !sent.begin.is_empty() {
                sent.effort.end(now, moved);
            } else if now >= self.begin {
                sent.begin = counts(feeder);
                sent.effort.begin(now);
            }
            moved = feeder.round(now)?;
        }
        sent.end = counts(feeder);
        Ok(sent)
    }

    fn collect(&self, collector: &mut Collector) -> Result<Received, RunError> {
        bind(self.plan.cpus.get(1))?;
        let (mut received, mut moved) = (Received::default(), 0);
        loop {
            let now = ticks();
            if self.over(now) {
                break;
            }
            self.measure(now, collector, &mut received, moved)?;
            moved = collector.round()?;
            if self.plan.port.interrupts && moved == 0 {
                collector.wait(Duration::from_millis(1)).map_err(RunError::Wait)?;
            }
        }
        self.finish(collector);
        Ok(received)
    }

    /// Between two rounds: keeps the meter going. `moved` counts the frames of the last one. `true` when the measurement begins.
    #[inline(always)]
    fn measure(&self, now: u64, collector: &mut Collector, received: &mut Received, moved: usize) -> Result<bool, RunError> {
        let books = &mut collector.books;
        if books.meter.running() {
            received.effort.end(now, moved);
            if books.meter.tick(now, books.frames, &books.sinks) {
                self.look_round(collector)?;
            }
            return Ok(false);
        }
        if now < self.begin {
            return Ok(false);
        }
        books.meter.begin(now, books.frames, &books.sinks);
        received.begin.clone_from(&books.sinks);
        received.effort.begin(now);
        Ok(true)
    }

    /// Once a window: shows the progress, and sees whether the switch is still there.
    #[cold]
    fn look_round(&self, collector: &Collector) -> Result<(), RunError> {
        (self.progress)(collector);
        match self.guests.iter().find(|guest| !guest.connected()) {
            Some(lost) => Err(RunError::Lost { mac: lost.mac() }),
            None => Ok(()),
        }
    }

    fn finish(&self, collector: &mut Collector) {
        let books = &mut collector.books;
        if books.meter.running() {
            books.meter.end(ticks(), &books.sinks);
        }
    }
}

fn mac_text(mac: &Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn counts(feeder: &Feeder) -> Vec<u64> {
    feeder.sources().iter().map(|source| source.next).collect()
}

fn bind(cpu: Option<&usize>) -> Result<(), RunError> {
    match cpu {
        Some(&cpu) => cpu::bind(cpu).map_err(|cause| RunError::Cpu { cpu, cause }),
        None => Ok(()),
    }
}

/// Receives until everything that was sent has arrived, or nothing has for a while.
fn drain(feeder: &Feeder, collector: &mut Collector, parts: &[u32]) -> Result<(), RunError> {
    let arriving = counts(feeder).into_iter().zip(parts).map(|(count, parts)| count * u64::from(*parts));
    let sent: u64 = arriving.sum();
    let mut last = ticks();
    while collector.books.frames < sent && clock::seconds(ticks() - last) < QUIET {
        if collector.round()? > 0 {
            last = ticks();
        }
    }
    Ok(())
}
