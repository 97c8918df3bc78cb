//! Frames wait in their sender's memory (backpressure), for a bounded time, and hurt no other port meanwhile.

mod common;

use std::time::{Duration, Instant};

use common::*;
use memlane::id::PortId;
use memlane::policy::PortLimits;
use memlane::stats::DropReason;
use memlane_rig::frontend::features;
use memlane_rig::guest::ToyGuest;
use memlane_rig::ring::Interrupts;

#[test]
fn what_waits_for_a_receiver_that_takes_nothing_is_dropped_after_the_stall_timeout() {
    let bed = Bed::with("stall-timeout-ms = 50", &["", ""]);
    let mut a = bed.guest(0);
    let mut b = bed.guest_with_four_buffers(1);
    announce(&mut [&mut a, &mut b]);
    for number in 0..40 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    a.wait_sent(TIMEOUT).unwrap();
    assert!(bed.drops(1, DropReason::ReceiverStalled) > 0);
    for number in 0..3 {
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, number));
    }
    assert_silent(&mut b);
}

#[test]
fn a_driver_that_missed_a_call_is_called_again() {
    let bed = Bed::new(2);
    let mut a = bed.guest(0);
    let mut b = bed.guest_with_four_buffers(1);
    announce(&mut [&mut a, &mut b]);
    // The next receive frame raises an interrupt.
    b.pair(0).receive.queue.ring.set_interrupts(Interrupts::Next);
    let before = bed.totals(1).interrupts;
    for number in 0..10 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    a.wait_sent(TIMEOUT).unwrap();
    let calls = bed.totals(1).interrupts - before;
    assert!(bed.drops(1, DropReason::ReceiverStalled) > 0);
    assert!((4..=10).contains(&calls), "a call, and one each after 1, 2, 4 ... 64 ms of 100: {calls}");
}

/// Poll iterations that found nothing to do.
fn empty_iterations(bed: &Bed) -> u64 {
    bed.daemon().network().shared().workers[0].empty_iterations.get()
}

/// How often the worker of a network with this `poll` polls in vain while frames that came over a link wait for the stall timeout.
fn empty_iterations_of_a_stall_timeout(poll: &str) -> u64 {
    let bed = Bed::with(&format!("poll = \"{poll}\""), &["", "link = { delay = \"1ms\" }"]);
    let mut a = bed.guest(0);
    let mut b = bed.guest_with_four_buffers(1);
    announce(&mut [&mut a, &mut b]);
    let before = empty_iterations(&bed);
    for number in 0..10 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.drops(1, DropReason::ReceiverStalled) > 0, "the stall timeout is over");
    empty_iterations(&bed) - before
}

#[test]
fn a_worker_sleeps_while_what_came_over_a_link_finds_no_room() {
    let (spinning, iterations) = (empty_iterations_of_a_stall_timeout("always"), empty_iterations_of_a_stall_timeout("never"));
    // The worker wakes shortly before each moment at which there is something to do, by as much as it learned to oversleep, and polls until then.
    assert!(iterations < spinning / 10, "{iterations} iterations, {spinning} of one that never sleeps");
}

#[test]
fn a_worker_sleeps_once_what_came_over_a_link_is_given_up() {
    let bed = Bed::with("poll = \"never\"", &["", "link = { delay = \"1ms\" }"]);
    let mut a = bed.guest(0);
    let mut b = bed.guest_with_four_buffers(1);
    announce(&mut [&mut a, &mut b]);
    for number in 0..10 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.drops(1, DropReason::ReceiverStalled) > 0, "the stall timeout is over");
    // Longer than the lost-notification checks of rings that fell quiet go on.
    std::thread::sleep(Duration::from_millis(500));
    let before = empty_iterations(&bed);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(empty_iterations(&bed), before);
}

#[test]
fn a_worker_sleeps_while_a_limit_holds_back() {
    let bed = Bed::with("poll = \"never\"", &["", "receive = { packets = 1000, burst-ms = 1 }"]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    // After a ring of frames the switch knows that all are for the same receiver, and leaves them in the ring (backpressure).
    let mut before = 0;
    for number in 0..600 {
        while a.send(&frame(mac(0), mac(1), 100, 0)).is_ok() {}
        b.receive(TIMEOUT).unwrap();
        if number == 300 {
            before = empty_iterations(&bed);
        }
    }
    // A frame each millisecond, with a few poll iterations each.
    let spent = empty_iterations(&bed) - before;
    assert!(spent < 300 * 20, "{spent} iterations for 300 frames");
    assert!(bed.totals(1).receive_limited > 0);
}

#[test]
fn an_idle_worker_sleeps_after_a_frame_was_left_for_want_of_room() {
    let bed = Bed::with("poll = \"never\"\nin-order = true\nstall-timeout-ms = 60000", &["", ""]);
    let mut a = bed.guest_like(0, bed.builder(0).with(features::IN_ORDER));
    let mut b = bed.guest(1);
    announce(&mut [&mut a, &mut b]);
    // Where chains are completed in order, frames without room are left in the ring (backpressure).
    let mut sent = 0;
    for received in 0..600 {
        while a.send(&frame(mac(0), mac(1), 100, 0)).is_ok() {
            sent += 1;
        }
        b.receive(TIMEOUT).unwrap_or_else(|error| panic!("frame {received}: {error}"));
    }
    (600..sent).for_each(|_| drop(b.receive(TIMEOUT).unwrap()));
    a.wait_sent(TIMEOUT).unwrap();
    let (begin, before) = (Instant::now(), empty_iterations(&bed));
    while begin.elapsed() < POLL_INTERVAL {
        std::thread::yield_now();
    }
    assert!(empty_iterations(&bed) - before < 20, "{} iterations for nothing", empty_iterations(&bed) - before);
}

/// A network of two workers and four guests: the fourth has no room because the third keeps it busy; the first two have each sent a
/// broadcast.
fn busy_receiver() -> (Bed, Vec<ToyGuest>) {
    let bed = Bed::with("workers = 2\nstall-timeout-ms = 60000", &["", "", "", ""]);
    let mut guests: Vec<_> = (0..4).map(|index| bed.guest(index)).collect();
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    // More than the receiver has buffers for.
    while bed.totals(3).waiting == 0 {
        while guests[2].send(&frame(mac(2), mac(3), 100, 0)).is_ok() {}
    }
    for (index, guest) in guests[..2].iter_mut().enumerate() {
        guest.send(&frame(mac(index), BROADCAST, 60, 1000)).unwrap();
    }
    for index in 0..2 {
        bed.wait_for(|bed| bed.totals(index).flooded == 2, "the broadcasts to be seen");
    }
    (bed, guests)
}

#[test]
fn a_broadcast_waits_for_a_busy_receiver_of_another_worker_too() {
    let (bed, mut guests) = busy_receiver();
    let mut heard = [false; 2];
    while heard != [true; 2] {
        let bytes = guests[3].receive(TIMEOUT).unwrap().bytes;
        for (index, heard) in heard.iter_mut().enumerate() {
            *heard |= bytes == frame(mac(index), BROADCAST, 60, 1000);
        }
    }
    for guest in &mut guests[..2] {
        guest.wait_sent(TIMEOUT).unwrap();
    }
    assert_eq!(bed.drops(3, DropReason::FloodNoRoom), 0);
}

#[test]
fn a_sender_whose_broadcast_waits_can_stop() {
    let (_bed, mut guests) = busy_receiver();
    for (index, guest) in guests[..2].iter_mut().enumerate() {
        guest.stop().unwrap();
        guest.start().unwrap();
        guest.send(&frame(mac(index), BROADCAST, 60, 1001)).unwrap();
    }
    while guests[3].receive(TIMEOUT).unwrap().bytes != frame(mac(1), BROADCAST, 60, 1001) {}
}

#[test]
fn a_worker_rests_after_a_limit_that_held_back_was_taken_away() {
    let bed = Bed::with("poll = \"never\"", &["transmit = { packets = 1 }", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    for number in 0..100 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.totals(0).transmit_limited > 0, "the limit to hold back");
    bed.daemon().network().port(PortId(0)).unwrap().policy.set(&PortLimits::default());
    // The worker polls the ring again when the rate limit would have opened, or at the next kick.
    a.send(&frame(mac(0), mac(1), 100, 100)).unwrap();
    while b.receive(TIMEOUT).unwrap().bytes != frame(mac(0), mac(1), 100, 100) {}
    let (begin, before) = (Instant::now(), empty_iterations(&bed));
    while begin.elapsed() < POLL_INTERVAL {
        std::thread::yield_now();
    }
    assert!(empty_iterations(&bed) - before < 100, "{} iterations for nothing", empty_iterations(&bed) - before);
}
