//! Wake-up latency of a sleeping switch: one frame each interval, long enough apart for worker and receiver to fall asleep in
//! between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock::ticks;
use crate::deadline::Deadline;

use super::bare::Sleeper;
use super::bed::Bed;
use super::collector::Collector;
use super::cpu;
use super::feeder::{Arrivals, Feeder};
use super::plan::Plan;
use super::report::{Latency, Machine, SCHEMA, Surroundings};
use super::run::RunError;
use super::watcher::Watcher;
use super::way::find_ways;

/// A frame that has not arrived after so long is given up.
const GIVE_UP: Duration = Duration::from_secs(1);

/// A sender is awake for so long before it sends, and runs the code that makes the frame: its own wake-up is not measured.
const AWAKE: Duration = Duration::from_micros(100);

/// Result of a wake-up run.
#[derive(Debug, Serialize)]
pub struct WakeReport {
    /// Version of the JSON's shape.
    pub schema: u32,
    /// Where it ran.
    pub machine: Machine,
    /// State of the machine around the run.
    pub surroundings: Surroundings,
    /// Milliseconds between frames.
    pub interval_ms: f64,
    /// "polls" or "waits for its call".
    pub receiver: &'static str,
    /// Frames sent.
    pub sent: u64,
    /// Frames that did not arrive within a second.
    pub lost: u64,
    /// From just before the kick to the frame in its receiver's ring, microseconds, if there was a watcher.
    pub delivery_us: Option<Latency>,
    /// From just before the kick to the receiver's sight of the frame, microseconds.
    pub latency_us: Latency,
    /// The machine's own time to wake a thread that does nothing else, measured in turn with the frames, microseconds.
    pub bare_us: Latency,
}

/// Options of a wake-up run.
#[derive(Debug, Clone, Copy)]
pub struct WakePlan {
    /// Time between frames.
    pub interval: Duration,
    /// The processor that a [`Watcher`] may have.
    pub watch: Option<usize>,
    /// The switch's processor, where the bare wake-up is measured too; by default where the kernel likes.
    pub switch_cpu: Option<usize>,
}

/// Counts of a run, and the collector with its histogram.
pub struct Woken {
    sent: u64,
    lost: u64,
    collector: Collector,
    sleeper: Sleeper,
    watcher: Option<Watcher>,
}

/// Sends a frame each [`WakePlan::interval`] for as long as `plan` says.
///
/// # Errors
/// [`RunError`].
pub fn run(plan: &Plan, wake: &WakePlan, quit: &AtomicBool) -> Result<Woken, RunError> {
    let bed = Bed::new(plan)?;
    let arrivals: Arrivals = bed.ways.iter().map(|_| AtomicU64::new(0)).collect();
    let Bed { outlets, inlets, ways, sources, lengths, parts, mould, guests, .. } = bed;
    let mut feeder = Feeder::new(plan, outlets, sources, mould, Arc::clone(&arrivals));
    let mut collector = Collector::new(plan, inlets, ways, lengths, parts, arrivals);
    find_ways(plan, quit, &mut feeder, &mut collector)?;
    // Before we are bound to a processor, for it may be to run where it likes.
    let mut sleeper = Sleeper::new(wake.switch_cpu).map_err(RunError::Wait)?;
    let watcher = |cpu| Watcher::new(cpu, collector.rings()).map_err(|cause| RunError::Cpu { cpu, cause });
    let mut watcher = wake.watch.map(watcher).transpose()?;
    if let Some(&cpu) = plan.cpus.first() {
        cpu::bind(cpu).map_err(|cause| RunError::Cpu { cpu, cause })?;
    }
    go_once_around(plan, &mut feeder, &mut collector)?;
    let books = &mut collector.books;
    books.meter.begin(ticks(), 0, &books.sinks);
    let (mut sent, mut lost) = (0, 0);
    let (end, mut next) = (Instant::now() + plan.duration, Instant::now());
    while Instant::now() < end && !quit.load(Ordering::Relaxed) {
        next += wake.interval;
        // In the interval the switch falls asleep.
        sleep_until(next - wake.interval / 2);
        sleeper.wake(plan.port.interrupts);
        sleep_until(next);
        watcher.iter().for_each(Watcher::begin);
        let now = ticks();
        let count = feeder.round(now)? as u64;
        sent += count;
        lost += await_frames(plan, &mut collector, count)?;
        watcher.iter_mut().for_each(|watcher| watcher.note(now));
    }
    drop(guests);
    Ok(Woken { sent, lost, collector, sleeper, watcher })
}

/// Sleeps, but for the last bit.
fn sleep_until(moment: Instant) {
    std::thread::sleep((moment - AWAKE).saturating_duration_since(Instant::now()));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
}

/// Uses every buffer once: the switch's page faults at the first access to guest memory are not measured.
fn go_once_around(plan: &Plan, feeder: &mut Feeder, collector: &mut Collector) -> Result<(), RunError> {
    for _ in 0..plan.port.ring_size {
        let count = feeder.round(ticks())? as u64;
        await_frames(plan, collector, count)?;
    }
    Ok(())
}

/// Receives `count` frames: how many did not come.
fn await_frames(plan: &Plan, collector: &mut Collector, count: u64) -> Result<u64, RunError> {
    let wanted = collector.books.frames + count;
    let deadline = Deadline::after(GIVE_UP);
    while collector.books.frames < wanted {
        // A receiver that waits for its interrupt has asked for it long before the frame comes, and does nothing until then.
        if plan.port.interrupts {
            collector.wait(deadline.left()).map_err(RunError::Wait)?;
        }
        if collector.round()? == 0 && deadline.is_over() {
            return Ok(wanted - collector.books.frames);
        }
    }
    Ok(0)
}

impl WakeReport {
    /// Puts a report together.
    pub fn new(plan: &Plan, wake: &WakePlan, woken: &Woken, machine: Machine, surroundings: Surroundings) -> Self {
        Self {
            schema: SCHEMA,
            machine,
            surroundings,
            interval_ms: wake.interval.as_secs_f64() * 1e3,
            receiver: if plan.port.interrupts { "waits for its call" } else { "polls" },
            sent: woken.sent,
            lost: woken.lost,
            delivery_us: woken.watcher.as_ref().map(|watcher| Latency::new(&watcher.took)),
            latency_us: Latency::new(&woken.collector.books.meter.latencies),
            bare_us: Latency::new(&woken.sleeper.took),
        }
    }

    /// The report for people.
    pub fn table(&self) -> String {
        format!(
            "a frame each {} ms, the receiver {}: {} sent, {} lost\n\
             {}{}{}\
             processors     {:?} are {}\n\
             machine        {}, {} processors, Linux {}\n",
            self.interval_ms,
            self.receiver,
            self.sent,
            self.lost,
            self.delivery_us.as_ref().map(|times| line("kick to delivery", times)).unwrap_or_default(),
            line("kick to receiver", &self.latency_us),
            line("a bare wake-up", &self.bare_us),
            self.surroundings.probed_cpus,
            self.surroundings.placement,
            self.machine.cpu,
            self.machine.cpus,
            self.machine.kernel,
        )
    }
}

fn line(what: &str, us: &Latency) -> String {
    format!("{what:<16} us  p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2}\n", us.p50, us.p90, us.p99, us.p99_9, us.max)
}
