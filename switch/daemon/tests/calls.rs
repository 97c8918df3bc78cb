//! Interrupts are sent where drivers ask for them, and spared where they can wait (interrupt coalescing).

mod common;

use std::time::{Duration, Instant};

use common::*;
use memlane_rig::guest::ToyGuest;
use memlane_rig::ring::Interrupts;

#[test]
fn a_driver_hears_of_few_small_frames_a_little_later() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    a.wait_sent(TIMEOUT).unwrap();
    let queue = &mut a.pair(0).transmit.queue;
    queue.call.drain();
    queue.ring.set_interrupts(Interrupts::Next);
    let start = Instant::now();
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, 1));
    let queue = &mut a.pair(0).transmit.queue;
    while queue.call.drain() == 0 {
        assert!(start.elapsed() < TIMEOUT, "the sender never hears that its frame went");
        std::thread::yield_now();
    }
    assert!(start.elapsed() >= Duration::from_micros(100), "{:?}", start.elapsed());
}

#[test]
fn a_driver_that_has_looked_meanwhile_is_not_called() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    // So that no interrupt is pending for the announcement.
    a.pair(0).transmit.queue.ring.set_interrupts(Interrupts::Off);
    announce(&mut [&mut a, &mut b]);
    look_after_sent(&mut a);
    let repeated = |bed: &Bed| bed.totals(0).repeated_interrupts;
    let before = repeated(&bed);
    a.pair(0).transmit.queue.call.drain();
    let (mut slow, mut calls) = (0, 0);
    for number in 0..200 {
        let start = Instant::now();
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
        look_after_sent(&mut a);
        slow += u64::from(start.elapsed() >= IN_TIME);
        b.receive(TIMEOUT).unwrap();
        calls += a.pair(0).transmit.queue.call.drain();
    }
    // A driver that reaps completions within the delay needs no interrupt. A driver that does not look for long, because its CPU is
    // taken away, gets one more, which is counted a moment after it was sent; the driver's own descriptor tells how many interrupts
    // there were.
    let spared = |bed: &Bed| calls <= slow + repeated(bed) - before;
    bed.wait_for(spared, &format!("calls ({calls}) are spared where the driver looked in time; it was late {slow} times"));
}

/// A driver that has looked so soon after sending is in time: transmit interrupts are delayed (interrupt coalescing) by 125 us,
/// from the beginning of the poll iteration that takes the frame, which may be earlier.
const IN_TIME: Duration = Duration::from_micros(75);

/// Polls until all sent chains are completed, then asks for an interrupt with the next.
fn look_after_sent(guest: &mut ToyGuest) {
    let transmit = &mut guest.pair(0).transmit;
    let start = Instant::now();
    while transmit.queue.ring.in_flight() > 0 {
        assert!(start.elapsed() < TIMEOUT, "a sent chain does not come back");
        if transmit.reclaim().unwrap() == 0 {
            std::thread::yield_now();
        }
    }
    transmit.queue.ring.set_interrupts(Interrupts::Next);
}

#[test]
fn a_driver_hears_of_many_bytes_at_once() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    a.wait_sent(TIMEOUT).unwrap();
    let before = bed.totals(0).interrupts;
    for number in 1..=20 {
        a.wait_sent(TIMEOUT).unwrap();
        a.pair(0).transmit.queue.ring.set_interrupts(Interrupts::Next);
        a.send(&frame(mac(0), mac(1), 60_000, number)).unwrap();
        b.receive(TIMEOUT).unwrap();
        bed.wait_for(|bed| bed.totals(0).interrupts - before >= number, "each large frame is told");
    }
}

#[test]
fn who_acknowledges_a_stream_hears_of_it_at_once() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let mut fastest = TIMEOUT;
    for number in 0..50 {
        look_after_sent(&mut b);
        b.send(&frame(mac(1), mac(0), 60_000, number)).unwrap();
        a.receive(TIMEOUT).unwrap();
        look_after_sent(&mut a);
        a.pair(0).transmit.queue.call.drain();
        let start = Instant::now();
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
        while a.pair(0).transmit.queue.call.drain() == 0 {
            assert!(start.elapsed() < TIMEOUT, "the sender never hears that its frame went");
            std::thread::yield_now();
        }
        fastest = fastest.min(start.elapsed());
        b.receive(TIMEOUT).unwrap();
    }
    assert!(fastest < Duration::from_micros(100), "{fastest:?}: less than calls wait that are put off");
}
