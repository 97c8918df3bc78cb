//! Frames around a ring of guests, a fixed number of them: the time of a frame without another core, and its instructions and cache
//! misses under tools that count them, where no hardware counter is to be had. Each guest sends a batch of frames of 64 bytes to
//! the next one; one worker and all guests are one thread.
//!
//! ```sh
//! cargo bench --package memlane --bench per_frame          # tells the program's name
//! PROGRAM 256 8000000                                       # 256 guests: the time of a frame
//! # For 256 guests and 400 000 frames; with 0 frames the count is that of the set-up, to be subtracted:
//! valgrind --tool=callgrind --toggle-collect='*Worker>::iterate' --cache-sim=yes --D1=32768,8,64 --LL=1048576,16,64 PROGRAM 256 400000
//! ```
//!
//! Under such a tool a worker is a hundred times slower, so its ports run out of CPU time and are throttled in some poll
//! iterations, which costs some instructions more.

#[allow(dead_code, reason = "each bench uses some of it")]
mod bed;

use std::time::Duration;

use bed::{BATCH, Bed};
use memlane::settings::{Poll, Settings};

/// Has `guests` guests pass at least `frames` frames around; returns how many the switch carried, and the nanoseconds that its poll
/// iterations took for each of the second half, when all memory has been touched.
fn frames_around(guests: usize, frames: usize) -> (usize, f64) {
    let mut bed = Bed::known(guests, Settings { poll: Poll::Always, ..Settings::default() });
    let mut round = || bed.exchange(guests, |from| (from + 1) % guests as u16, 64);
    let rounds = frames.div_ceil(guests * BATCH);
    let first = rounds / 2;
    for _ in 0..first {
        round();
    }
    let took: Duration = (first..rounds).map(|_| round()).sum();
    let timed = (rounds - first) * guests * BATCH;
    (rounds * guests * BATCH, took.as_nanos() as f64 / timed.max(1) as f64)
}

fn main() {
    // `cargo bench` gives options of its own.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (guests, frames) = (numbers.next().unwrap_or(256), numbers.next().unwrap_or(400_000));
    let (carried, nanoseconds) = frames_around(guests, frames);
    println!("{guests} guests: {carried} frames, {nanoseconds:.1} ns each");
}
