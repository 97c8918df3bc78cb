//! Rings come and go under traffic, on four workers, and those that stay do not notice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use memlane_rig::guest::{GuestError, ToyGuest};

/// Frames that every steady guest sends at least, and rounds that every restless one makes.
const ENOUGH: (u64, u64) = (2000, 15);
/// Time within which that must be reached.
const DEADLINE: Duration = Duration::from_secs(120);
/// Most frames in flight of a steady guest.
const WINDOW: u64 = 32;
/// Bytes of a frame.
const FRAME: usize = 700;
/// Guests that talk in pairs, each with the next: on all workers.
const STEADY: usize = 4;
/// Guests that come and go.
const RESTLESS: usize = 4;

/// Progress of all guests.
#[derive(Default)]
struct Progress {
    /// Frames that each steady guest sent.
    sent: [AtomicU64; STEADY],
    /// Frames that each steady guest received from its partner.
    received: [AtomicU64; STEADY],
    /// Steady guests that send no more.
    quiet: [AtomicBool; STEADY],
    /// Rounds of each restless guest.
    rounds: [AtomicU64; RESTLESS],
    /// Time to end.
    over: AtomicBool,
}

impl Progress {
    fn is_enough(&self) -> bool {
        let reached = |list: &[AtomicU64], least| list.iter().all(|count| count.load(Ordering::Acquire) >= least);
        reached(&self.sent, ENOUGH.0) && reached(&self.rounds, ENOUGH.1)
    }
}

/// The other end of a steady guest's frames, served by another worker.
fn partner(index: usize) -> usize {
    index ^ 1
}

/// Sends numbered frames to its partner and takes the partner's, each in its turn, none twice, none lost; at the end takes the rest.
fn talk(guest: &mut ToyGuest, index: usize, progress: &Progress) {
    let (mut next, mut expected, partner) = (0, 0, partner(index));
    let deadline = Instant::now() + DEADLINE + TIMEOUT;
    loop {
        let heard = progress.received[partner].load(Ordering::Acquire);
        if progress.over.load(Ordering::Acquire) {
            progress.quiet[index].store(true, Ordering::Release);
            let partner_is_quiet = progress.quiet[partner].load(Ordering::Acquire);
            if partner_is_quiet && progress.sent[partner].load(Ordering::Acquire) == expected && heard == next {
                return;
            }
        } else if next - heard < WINDOW {
            guest.send(&frame(mac(index), mac(partner), FRAME, next)).unwrap();
            next += 1;
            progress.sent[index].store(next, Ordering::Release);
        }
        while let Some(got) = guest.try_receive().unwrap() {
            if got.bytes[6..12] == mac(partner) {
                assert!(
                    got.bytes == frame(mac(partner), mac(index), FRAME, expected),
                    "steady guest {index} waited for {expected}"
                );
                expected += 1;
                progress.received[index].store(expected, Ordering::Release);
            }
        }
        assert!(Instant::now() < deadline, "guest {index}: {expected} came, {next} went, frames are lost");
        std::thread::yield_now();
    }
}

/// Sends to all guests, and stops and starts its rings meanwhile, on the same connection and on new ones.
fn come_and_go(guest: &mut ToyGuest, index: usize, progress: &Progress) {
    let rounds = &progress.rounds[index - STEADY];
    while !progress.over.load(Ordering::Acquire) {
        for number in 0..64 {
            let to = (number as usize * 3 + index) % (STEADY + RESTLESS);
            let destination = if number == 0 { BROADCAST } else { mac(to) };
            match guest.send(&frame(mac(index), destination, 60 + 20 * number as usize, number)) {
                Ok(_) | Err(GuestError::NoSendBuffer(_)) => {}
                Err(error) => panic!("restless guest {index}: {error}"),
            }
            while guest.try_receive().unwrap().is_some() {}
        }
        if rounds.load(Ordering::Relaxed) % 3 == 2 {
            guest.reconnect().unwrap();
        } else {
            guest.stop().unwrap();
            // All frames in flight were completed before the switch answered.
            let transmit = &guest.pair(0).transmit.queue;
            assert_eq!(transmit.ring.shared().used_index(), transmit.base, "restless guest {index}: not drained");
            guest.start().unwrap();
        }
        rounds.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn rings_that_come_and_go_disturb_nobody() {
    // A stall timeout beyond the time of this test: a receiver that this machine does not let run must not lose frames.
    let bed = Bed::with("workers = 4\nstall-timeout-ms = 60000", &[""; STEADY + RESTLESS]);
    let mut guests: Vec<ToyGuest> = (0..STEADY + RESTLESS).map(|index| bed.guest(index)).collect();
    let progress = Progress::default();
    let (steady, restless) = guests.split_at_mut(STEADY);
    std::thread::scope(|scope| {
        let progress = &progress;
        let talkers = steady.iter_mut().enumerate().map(|(index, guest)| scope.spawn(move || talk(guest, index, progress)));
        let movers = (STEADY..).zip(restless).map(|(index, guest)| scope.spawn(move || come_and_go(guest, index, progress)));
        let threads: Vec<_> = talkers.chain(movers).collect();
        let deadline = Instant::now() + DEADLINE;
        // A thread that ends before it is time has panicked, and says so below.
        let ended = || threads.iter().any(std::thread::ScopedJoinHandle::is_finished);
        while !progress.is_enough() && !ended() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        progress.over.store(true, Ordering::Release);
    });
    assert!(progress.is_enough(), "too little happened to tell");
    for index in 0..STEADY {
        let (sent, received) = (&progress.sent[index], &progress.received[partner(index)]);
        assert_eq!(sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
    }
}
