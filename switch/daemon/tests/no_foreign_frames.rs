//! No port ever sees a frame that is not for it, however rings come and go on several workers. `make prove` runs this under
//! sanitizers.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use memlane_rig::guest::{GuestError, ToyGuest};

/// Ports: every other one is on the second segment.
const PORTS: usize = 8;
/// Rounds of the busiest guest, and frames that arrived in all, that suffice to tell.
const ENOUGH: (u64, u64) = (60, 10_000);
/// Time within which that must be reached, far beyond the need of sanitizers on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// Progress of all guests.
#[derive(Default)]
struct Progress {
    rounds: [AtomicU64; PORTS],
    received: AtomicU64,
    over: AtomicBool,
}

impl Progress {
    fn is_enough(&self) -> bool {
        let rounds = self.rounds.iter().all(|rounds| rounds.load(Ordering::Acquire) >= ENOUGH.0);
        rounds && self.received.load(Ordering::Acquire) >= ENOUGH.1
    }
}

/// Rounds after which a run that was asked to last ends: `MEMLANE_CHURN_SECONDS`, for `make prove`.
fn asked() -> Duration {
    let seconds = std::env::var("MEMLANE_CHURN_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

fn segment(index: usize) -> usize {
    index % 2
}

/// A frame that arrived at guest `index` is for it, or for all of its segment (addresses of the other segment are unknown in it),
/// from its segment, and undamaged.
fn look_at(bytes: &[u8], index: usize) {
    let destination: [u8; 6] = bytes[..6].try_into().unwrap();
    let source: [u8; 6] = bytes[6..12].try_into().unwrap();
    let neighbour = (0..PORTS).find(|&other| other != index && segment(other) == segment(index) && mac(other) == destination);
    assert_eq!(neighbour, None, "guest {index} got another's frame");
    let Some(sender) = (0..PORTS).find(|&sender| mac(sender) == source) else { return };
    assert_eq!(segment(sender), segment(index), "guest {index} heard guest {sender} of another segment");
    let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
    assert!(bytes == frame(source, destination, bytes.len(), number), "guest {index} got a changed frame of guest {sender}");
}

/// Sends to all guests, of the other segment too, checks the received frames, and stops, starts, reconnects and moves its memory
/// meanwhile.
fn churn(guest: &mut ToyGuest, index: usize, progress: &Progress) {
    let rounds = &progress.rounds[index];
    let mut number = (index as u64) << 32;
    let take = |guest: &mut ToyGuest| {
        while let Some(got) = guest.try_receive().unwrap() {
            look_at(&got.bytes, index);
            progress.received.fetch_add(1, Ordering::AcqRel);
        }
    };
    while !progress.over.load(Ordering::Acquire) {
        for step in 0..96 {
            number += 1;
            let to = (number as usize * 5 + index) % PORTS;
            let destination = if step == 0 { BROADCAST } else { mac(to) };
            match guest.send(&frame(mac(index), destination, 60 + number as usize * 37 % 1400, number)) {
                Ok(_) | Err(GuestError::NoSendBuffer(_)) => {}
                Err(error) => panic!("guest {index}: {error}"),
            }
            take(guest);
        }
        match (rounds.load(Ordering::Relaxed) as usize + index) % 4 {
            0 => guest.reconnect().unwrap(),
            1 => guest.announce_memory(&[0]).unwrap(),
            _ => {
                guest.stop().unwrap();
                take(guest);
                guest.start().unwrap();
            }
        }
        rounds.fetch_add(1, Ordering::AcqRel);
        std::thread::yield_now();
    }
}

#[test]
fn no_port_sees_a_frame_that_is_not_for_it() {
    let lines: Vec<String> =
        (0..PORTS).map(|index| format!("mac = \"{}\"\nsegment = \"s{}\"", address(index), segment(index))).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let bed = Bed::with("workers = 3", &lines);
    let mut guests: Vec<ToyGuest> = (0..PORTS).map(|index| bed.guest(index)).collect();
    let progress = Progress::default();
    let (begin, asked) = (Instant::now(), asked());
    std::thread::scope(|scope| {
        let progress = &progress;
        let movers = guests.iter_mut().enumerate().map(|(index, guest)| scope.spawn(move || churn(guest, index, progress)));
        let threads: Vec<_> = movers.collect();
        // A thread that ends before it is time has panicked, and says so below.
        let ended = || threads.iter().any(std::thread::ScopedJoinHandle::is_finished);
        let done = || progress.is_enough() && begin.elapsed() >= asked;
        while !done() && !ended() && begin.elapsed() < DEADLINE + asked {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        progress.over.store(true, Ordering::Release);
    });
    assert!(progress.is_enough(), "too little happened to tell");
}

/// The address of guest `index`, as the configuration has it.
fn address(index: usize) -> String {
    mac(index).map(|byte| format!("{byte:02x}")).join(":")
}
