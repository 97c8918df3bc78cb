//! Frames around a ring of guests, a fixed number of them, for tools that count: what a frame takes in instructions and cache misses, where no
//! hardware counter is to be had. Each guest sends a batch of frames of 64 bytes to the next one; one worker and all guests are one thread.
//!
//! ```sh
//! cargo bench --package memlane --bench per_frame          # tells the program's name
//! # For 256 guests and 400 000 frames; with 0 frames it is what comes before, to be subtracted:
//! valgrind --tool=callgrind --toggle-collect='*Worker>::pass' --cache-sim=yes PROGRAM 256 400000
//! ```
//!
//! Under such a tool a worker is a hundred times slower, so its ports run out of time and sit out passes, which costs some instructions more.

#[allow(dead_code, reason = "each bench uses some of it")]
mod bed;

use bed::Bed;
use memlane::settings::{Poll, Settings};

/// Frames that a guest sends at a time.
const BATCH: usize = 32;

/// Has `guests` guests pass at least `frames` frames around; returns how many the switch carried.
fn frames_around(guests: usize, frames: usize) -> usize {
    let mut bed = Bed::with(guests, Settings { poll: Poll::Always, ..Settings::default() });
    for guest in 0..guests {
        bed.announce(&[guest as u16]);
    }
    let rounds = frames.div_ceil(guests * BATCH);
    for _ in 0..rounds {
        for guest in 0..guests {
            bed.guests[guest].send(guest as u16, ((guest + 1) % guests) as u16, 64, BATCH);
        }
        let mut arrived = 0;
        while arrived < guests * BATCH {
            bed.worker.step();
            arrived += bed.guests.iter_mut().map(bed::Guest::settle).sum::<usize>();
        }
    }
    rounds * guests * BATCH
}

fn main() {
    // `cargo bench` gives options of its own.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let (guests, frames) = (numbers.next().unwrap_or(256), numbers.next().unwrap_or(400_000));
    println!("{guests} guests: {} frames", frames_around(guests, frames));
}
