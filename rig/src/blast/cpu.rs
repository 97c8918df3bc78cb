//! Processors: binding to one, and how far two of them are apart.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::clock;

/// Binds the calling thread to a processor.
///
/// # Errors
/// The error of sched_setaffinity(2), for instance that there is no such processor.
pub fn bind(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// A thread on processor `cpu`, or where it likes.
///
/// # Errors
/// The error of clone(2), or of sched_setaffinity(2) for the processor.
pub fn spawn(name: &str, cpu: Option<usize>, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A thread begins where its parent may run.
    let before = sched_getaffinity(Pid::from_raw(0))?;
    cpu.map_or(Ok(()), bind)?;
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    sched_setaffinity(Pid::from_raw(0), &before)?;
    thread
}

/// How far two processors are apart: the round trip of a cache line between them.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Distance {
    /// Round trip in nanoseconds: of five probes' medians the middle one.
    pub nanoseconds: f64,
    /// "near" below 200 ns, "far" above 220 ns, "between" otherwise. A virtual machine's processors wander.
    pub verdict: &'static str,
}

/// Round trips a probe.
const ROUNDS: usize = 2000;

#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the distance of processors `one` and `other`; `None` when they are the same or cannot be bound to.
pub fn distance(one: usize, other: usize) -> Option<Distance> {
    if one == other {
        return None;
    }
    let before = sched_getaffinity(Pid::from_raw(0)).ok()?;
    bind(one).ok()?;
    let probes: Option<Vec<f64>> = (0..5).map(|_| probe(other)).collect();
    let restored = sched_setaffinity(Pid::from_raw(0), &before);
    let mut probes = probes.filter(|_| restored.is_ok())?;
    probes.sort_by(f64::total_cmp);
    let nanoseconds = probes[probes.len() / 2];
    let verdict = match nanoseconds {
        ..200.0 => "near",
        220.0.. => "far",
        _ => "between",
    };
    Some(Distance { nanoseconds, verdict })
}

/// The tenth percentile of some round trips to a thread on `other`: others may be at work there.
fn probe(other: usize) -> Option<f64> {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| echo(other, &ping, &pong, &stop));
        let trips = trips(&ping, &pong, &stop);
        stop.store(true, Ordering::Relaxed);
        let bound = echo.join().unwrap_or(false);
        (bound && trips.len() == ROUNDS).then(|| super::meter::quantile(&trips, 0.1))
    })
}

fn echo(cpu: usize, ping: &Line, pong: &Line, stop: &AtomicBool) -> bool {
    if bind(cpu).is_err() {
        stop.store(true, Ordering::Relaxed);
        return false;
    }
    let mut last = 0;
    while !stop.load(Ordering::Relaxed) {
        let value = ping.0.load(Ordering::Acquire);
        if value != last {
            last = value;
            pong.0.store(value, Ordering::Release);
        }
        std::hint::spin_loop();
    }
    true
}

fn trips(ping: &Line, pong: &Line, stop: &AtomicBool) -> Vec<f64> {
    let mut trips = Vec::with_capacity(ROUNDS);
    for round in 1..=ROUNDS as u64 {
        let start = clock::ticks();
        ping.0.store(round, Ordering::Release);
        while pong.0.load(Ordering::Acquire) != round {
            if stop.load(Ordering::Relaxed) {
                return trips;
            }
        }
        trips.push(clock::seconds(clock::ticks() - start) * 1e9);
    }
    trips
}
