//! Frames wait in their sender's memory, for a bounded time, and hurt nobody meanwhile.

mod common;

use common::*;
use memlane::stats::DropReason;
use memlane_rig::guest::ReceiveBuffers;

#[test]
fn what_waits_for_a_receiver_that_takes_nothing_is_dropped_after_the_patience() {
    let bed = Bed::with("patience-ms = 50", &["", ""]);
    let mut a = bed.guest(0);
    let mut b = bed
        .guest_like(1, bed.builder(1).receive_buffers(ReceiveBuffers { count: Some(4), repost: false, ..ReceiveBuffers::SMALL }));
    announce(&mut [&mut a, &mut b]);
    for number in 0..40 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    a.wait_sent(PATIENCE).unwrap();
    assert!(bed.drops(1, DropReason::ReceiverStalled) > 0);
    for number in 0..3 {
        assert_eq!(b.receive(PATIENCE).unwrap().bytes, frame(mac(0), mac(1), 100, number));
    }
    assert_silent(&mut b);
}

#[test]
fn a_worker_sleeps_while_a_limit_holds_back() {
    let bed = Bed::with("poll = \"never\"", &["", "delivery = { packets = 1000, burst-ms = 1 }"]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let passes = || bed.daemon().network().shared().counters.worker(0).empty_passes.get();
    // After a ring full the switch knows that all are for the same receiver, and leaves them where they are.
    let mut before = 0;
    for number in 0..600 {
        while a.send(&frame(mac(0), mac(1), 100, 0)).is_ok() {}
        b.receive(PATIENCE).unwrap();
        if number == 300 {
            before = passes();
        }
    }
    // A frame each millisecond, with a few passes each.
    let spent = passes() - before;
    assert!(spent < 300 * 20, "{spent} passes for 300 frames");
    assert!(bed.totals(1).delivery_limited > 0);
}
