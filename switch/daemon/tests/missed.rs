//! Lost notifications between a driver and the switch are recovered (lost-notification check), and the worker sleeps all the same.

mod common;

use std::time::{Duration, Instant};

use common::*;
use memlane_rig::frontend::notify::{CallKind, Kick, KickKind};
use memlane_rig::guest::{Queue, ReceiveBuffers, ToyGuest};
use memlane_rig::ring::Interrupts;

/// Two guests that know of each other, on a network that does not poll and has fallen quiet.
fn two_guests() -> (Bed, ToyGuest, ToyGuest) {
    let bed = Bed::with("poll = \"never\"", &["", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    std::thread::sleep(ALL_LOOKS);
    (bed, a, b)
}

/// The driver of this queue asks for no interrupts.
fn ask_for_no_calls(queue: &mut Queue) {
    queue.ring.set_interrupts(Interrupts::Off);
    queue.call.drain();
}

/// Some time after frames or buffers were shown to it, the driver of this queue asks for an interrupt, in the belief that there is
/// nothing yet: it gets one, after it got none before.
fn ask_for_a_call_too_late(queue: &mut Queue) {
    std::thread::sleep(ASLEEP);
    assert_eq!(queue.call.drain(), 0);
    queue.ring.set_interrupts(Interrupts::Next);
    std::thread::sleep(ALL_LOOKS);
    assert_eq!(queue.call.drain(), 1);
}

/// Has `from` send a frame to `to` the kick of which gets lost, just after another one; true if it arrived all the same.
fn arrives_without_a_kick(from: &mut ToyGuest, to: &mut ToyGuest, number: u64) -> bool {
    let (source, target) = (from.mac(), to.mac());
    from.send(&frame(source, target, 100, number)).unwrap();
    assert_eq!(to.receive(TIMEOUT).unwrap().bytes, frame(source, target, 100, number));
    std::thread::sleep(ASLEEP);
    let lost = Kick::new(KickKind::Eventfd).unwrap();
    let kick = std::mem::replace(&mut from.pair(0).transmit.queue.kick, lost);
    let last = frame(source, target, 100, number + 1);
    from.send(&last).unwrap();
    let arrived = to.receive(ALL_LOOKS).is_ok_and(|frame| frame.bytes == last);
    let queue = &mut from.pair(0).transmit.queue;
    queue.kick = kick;
    queue.kick();
    if !arrived {
        assert_eq!(to.receive(TIMEOUT).unwrap().bytes, last);
    }
    arrived
}

#[test]
fn a_frame_whose_kick_got_lost_is_found() {
    let (bed, mut a, mut b) = two_guests();
    // If this machine stops for longer than the lost-notification checks take, just then, it is not found.
    assert!((1..5).any(|attempt| arrives_without_a_kick(&mut a, &mut b, 2 * attempt)), "not found");
    assert_eq!((bed.totals(0).missed_kicks, bed.totals(1).missed_kicks), (1, 0));
}

#[test]
fn a_driver_whose_wish_came_too_late_is_called() {
    let (bed, mut a, mut b) = two_guests();
    let before = bed.totals(1).repeated_interrupts;
    ask_for_no_calls(&mut b.pair(0).receive.queue);
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    bed.wait_for(|bed| bed.totals(1).receive_frames == 2, "the frame is there");
    ask_for_a_call_too_late(&mut b.pair(0).receive.queue);
    assert_eq!(bed.totals(1).repeated_interrupts - before, 1);
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, 1));
}

#[test]
fn a_guest_of_user_mode_linux_that_lost_an_interrupt_is_called_again_soon() {
    let bed = Bed::with("poll = \"never\"", &["", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest_like(1, bed.builder(1).call(CallKind::SocketPair)));
    announce(&mut [&mut a, &mut b]);
    // If this machine stops for a while, just then, the interrupt comes later.
    let soon = (0..5).any(|number| {
        std::thread::sleep(ALL_LOOKS);
        b.pair(0).receive.queue.ring.set_interrupts(Interrupts::Next);
        b.pair(0).receive.queue.call.drain();
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
        let (begun, mut calls) = (Instant::now(), 0);
        let twice = || {
            calls += b.pair(0).receive.queue.call.drain();
            calls >= 2
        };
        wait_until(twice, "it is called again");
        let took = begun.elapsed();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, number));
        took < Duration::from_millis(10)
    });
    assert!(soon, "not within 10 ms");
}

#[test]
fn and_so_is_one_for_whom_frames_had_to_wait_before() {
    let bed = Bed::with("poll = \"never\"", &["", ""]);
    let four = ReceiveBuffers { count: Some(4), ..ReceiveBuffers::SMALL };
    let (mut a, mut b) = (bed.guest(0), bed.guest_like(1, bed.builder(1).receive_buffers(four)));
    announce(&mut [&mut a, &mut b]);
    // More than b has room for: the last ones wait until it has taken the first.
    for number in 0..10 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.totals(1).waiting > 0, "a frame waits");
    for number in 0..10 {
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, number));
    }
    std::thread::sleep(ALL_LOOKS);
    let (before, had) = (bed.totals(1).repeated_interrupts, bed.totals(1).receive_frames);
    ask_for_no_calls(&mut b.pair(0).receive.queue);
    a.send(&frame(mac(0), mac(1), 100, 10)).unwrap();
    bed.wait_for(|bed| bed.totals(1).receive_frames == had + 1, "the frame is there");
    ask_for_a_call_too_late(&mut b.pair(0).receive.queue);
    assert_eq!(bed.totals(1).repeated_interrupts - before, 1);
}

#[test]
fn a_sender_whose_wish_came_too_late_is_called() {
    let (bed, mut a, mut b) = two_guests();
    a.wait_sent(TIMEOUT).unwrap();
    let before = bed.totals(0).repeated_interrupts;
    ask_for_no_calls(&mut a.pair(0).transmit.queue);
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    b.receive(TIMEOUT).unwrap();
    ask_for_a_call_too_late(&mut a.pair(0).transmit.queue);
    assert_eq!(bed.totals(0).repeated_interrupts - before, 1);
}

#[test]
fn a_kick_that_came_is_not_missed() {
    let (bed, mut a, mut b) = two_guests();
    for round in 0..40 {
        for number in 0..10 {
            a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
            b.send(&frame(mac(1), mac(0), 100, number)).unwrap();
        }
        for _ in 0..10 {
            a.receive(TIMEOUT).unwrap();
            b.receive(TIMEOUT).unwrap();
        }
        a.wait_sent(TIMEOUT).unwrap();
        b.wait_sent(TIMEOUT).unwrap();
        std::thread::sleep(Duration::from_millis(2 * (round % 5)));
    }
    std::thread::sleep(ALL_LOOKS);
    assert_eq!((bed.totals(0).missed_kicks, bed.totals(1).missed_kicks), (0, 0));
}

#[test]
fn an_idle_worker_sleeps_on_after_the_looks() {
    let (bed, _a, _b) = two_guests();
    let sleeps = || bed.daemon().network().shared().workers[0].sleeps.get();
    let before = sleeps();
    std::thread::sleep(ALL_LOOKS);
    assert_eq!(sleeps(), before);
}
