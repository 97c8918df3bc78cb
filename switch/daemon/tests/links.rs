//! Link emulation: frames meet the link that the operator asked for.

#[path = "../benches/bed/mod.rs"]
#[allow(dead_code)]
mod bed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bed::Bed;
use memlane::id::{Direction, PortId, RingKey};
use memlane::link::{GilbertElliott, Impairment};
use memlane::settings::Settings;
use memlane::stats::DropReason;

const WAIT: Duration = Duration::from_secs(20);

fn bed(impairment: Impairment) -> Bed {
    Bed::with_links(&[None, Some(impairment), None], Settings::default())
}

/// Steps the worker, and takes the frames of guest `to`, until `done`; counts frames by sender.
fn step_until(bed: &mut Bed, to: usize, got: &mut [u32; 3], mut done: impl FnMut(&[u32; 3]) -> bool) {
    let end = Instant::now() + WAIT;
    while !done(got) {
        assert!(Instant::now() < end, "{got:?}");
        bed.worker.step();
        bed.guests[to].take(256, |sender, _| got[usize::from(sender)] += 1);
        for guest in &mut bed.guests {
            guest.reclaim();
        }
    }
}

fn dropped(bed: &Bed, port: usize, reason: DropReason) -> u64 {
    bed.ports[port].counters(0).dropped(reason)
}

#[test]
fn a_frame_takes_the_delay_in_one_direction_only() {
    let mut bed = bed(Impairment { delay: Some("20ms".into()), ..Impairment::default() });
    let mut got = [0; 3];
    // The guests get to know each other first.
    bed.guests[1].send(1, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] == 1);
    let begin = Instant::now();
    bed.guests[0].send(0, 1, 60, 1);
    step_until(&mut bed, 1, &mut got, |got| got[0] == 1);
    assert!(begin.elapsed() >= Duration::from_millis(20));
    // Only this direction was asked for.
    let begin = Instant::now();
    bed.guests[1].send(1, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] == 2);
    assert!(begin.elapsed() < Duration::from_millis(20));
}

#[test]
fn losses_are_as_many_as_asked_and_are_counted() {
    let mut bed = bed(Impairment { loss: 0.2, ..Impairment::default() });
    let mut got = [0; 3];
    bed.guests[1].send(1, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] == 1);
    let sent = 10_000;
    for _ in 0..sent / 100 {
        bed.guests[0].send(0, 1, 60, 100);
        let before = u64::from(got[0]) + dropped(&bed, 1, DropReason::LinkLoss);
        while u64::from(got[0]) + dropped(&bed, 1, DropReason::LinkLoss) < before + 100 {
            bed.worker.step();
            bed.guests[1].take(256, |sender, _| got[usize::from(sender)] += 1);
            bed.guests[0].reclaim();
        }
    }
    let lost = dropped(&bed, 1, DropReason::LinkLoss);
    assert_eq!(u64::from(got[0]) + lost, sent);
    // Four standard deviations of 10 000 draws.
    assert!((lost as f64 - 2000.0).abs() < 160.0, "{lost}");
}

#[test]
fn others_are_not_delayed() {
    let mut bed = bed(Impairment { delay: Some("1s".into()), ..Impairment::default() });
    let mut got = [0; 3];
    bed.guests[1].send(1, 0, 60, 1);
    bed.guests[2].send(2, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] + got[2] == 2);
    let begin = Instant::now();
    bed.guests[0].send(0, 1, 1514, 100);
    while bed.ports[0].counters(0).transmit_frames.get() < 100 {
        bed.worker.step();
    }
    bed.guests[0].send(0, 2, 1514, 100);
    step_until(&mut bed, 2, &mut got, |got| got[0] == 100);
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert_eq!(bed.guests[0].transmit.free(), 256, "what is under way has left its sender's ring");
}

#[test]
fn frames_under_way_take_no_more_than_the_ceiling() {
    let settings = Settings { memory: 100_000, ..Settings::default() };
    let slow = Impairment { delay: Some("10s".into()), ..Impairment::default() };
    let mut bed = Bed::with_links(&[None, Some(slow)], settings);
    bed.guests[1].send(1, 0, 60, 1);
    for _ in 0..10 {
        bed.guests[0].fill(0, 1, 1514);
        for _ in 0..10 {
            bed.worker.step();
        }
    }
    let taken = bed.ports[0].counters(0).transmit_frames.get();
    let under_way = taken - dropped(&bed, 1, DropReason::LinkFull);
    assert!(taken > 1000 && under_way > 0 && under_way <= 50_000 / 1514, "{under_way} of {taken}");
}

#[test]
fn a_receiver_that_stops_at_the_end_of_a_line_holds_up_nobody_and_is_given_up() {
    let settings = Settings { stall_timeout: Duration::from_millis(5), ..Settings::default() };
    let slow = Impairment { delay: Some("1ms".into()), ..Impairment::default() };
    let mut bed = Bed::with_links(&[None, Some(slow), None], settings);
    let mut got = [0; 3];
    bed.guests[1].send(1, 0, 60, 1);
    bed.guests[2].send(2, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] + got[2] == 2);
    // Three times as many as it has buffers.
    let stalled = |bed: &Bed| dropped(bed, 1, DropReason::ReceiverStalled);
    let end = Instant::now() + WAIT;
    let mut sent = 0;
    while stalled(&bed) < 256 {
        assert!(Instant::now() < end, "{} of {sent}", stalled(&bed));
        if sent < 768 && bed.guests[0].transmit.free() == 256 {
            bed.guests[0].send(0, 1, 60, 256);
            sent += 256;
        }
        let frames = bed.worker.step();
        assert!(frames <= 256, "{frames} in one pass");
        bed.guests[0].reclaim();
    }
    // Meanwhile, and afterwards, others are served.
    bed.guests[0].send(0, 2, 60, 1);
    step_until(&mut bed, 2, &mut got, |got| got[0] == 1);
    // The guest takes its frames, and is served again.
    let mut after = [0; 3];
    step_until(&mut bed, 1, &mut after, |after| after[0] >= 256);
    bed.guests[0].send(0, 1, 60, 1);
    let before = after[0];
    step_until(&mut bed, 1, &mut after, |after| after[0] > before);
}

#[test]
fn frames_on_the_link_of_a_receive_queue_that_stops_are_counted() {
    let mut bed = bed(Impairment { delay: Some("1s".into()), ..Impairment::default() });
    bed.announce(&[2]);
    let waiting = |bed: &Bed| bed.ports[1].totals().waiting;
    let before = waiting(&bed);
    bed.guests[0].send(0, 1, 60, 5);
    bed.worker.step();
    assert_eq!(waiting(&bed), before + 5);
    bed.worker.stop_receive_queue(RingKey { port: PortId(1), pair: 0, direction: Direction::Receive }).unwrap();
    assert_eq!((waiting(&bed), dropped(&bed, 1, DropReason::ReceiverAbsent)), (0, before + 5));
}

#[test]
fn a_rate_and_bursts_of_losses_reach_real_rings() {
    let bursts = GilbertElliott { p: 0.05, r: 0.5, bad: 1.0, good: 0.0 };
    let mut bed = bed(Impairment { rate: Some("100Mbit".into()), gilbert_elliott: Some(bursts), ..Impairment::default() });
    let mut got = [0; 3];
    bed.guests[1].send(1, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] == 1);
    let begin = Instant::now();
    bed.guests[0].send(0, 1, 1250, 200);
    let port = Arc::clone(&bed.ports[1]);
    let lost = || port.counters(0).dropped(DropReason::LinkLoss) as u32;
    step_until(&mut bed, 1, &mut got, |got| got[0] + lost() == 200);
    // 1250 bytes at 100 Mbit/s take 100 us.
    assert!(begin.elapsed() >= Duration::from_micros(100) * got[0]);
    assert!(lost() > 0);
}

#[test]
fn a_link_is_changed_while_frames_are_under_way() {
    let mut bed = bed(Impairment { delay: Some("50ms".into()), ..Impairment::default() });
    let mut got = [0; 3];
    bed.guests[1].send(1, 0, 60, 1);
    bed.guests[2].send(2, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] + got[2] == 2);
    let begin = Instant::now();
    bed.guests[0].send(0, 1, 60, 1);
    while bed.ports[0].counters(0).transmit_frames.get() < 1 {
        bed.worker.step();
    }
    // The link is cleared: frames in flight on the link arrive when they would have, and later frames pass them.
    change(&mut bed, 1, &Impairment::default());
    bed.guests[2].send(2, 1, 60, 1);
    step_until(&mut bed, 1, &mut got, |got| got[2] == 2);
    if begin.elapsed() < Duration::from_millis(50) {
        assert_eq!(got[0], 0);
    }
    step_until(&mut bed, 1, &mut got, |got| got[0] == 1);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    // Down.
    change(&mut bed, 1, &Impairment { loss: 1.0, ..Impairment::default() });
    let lost = dropped(&bed, 1, DropReason::LinkLoss);
    bed.guests[0].send(0, 1, 60, 10);
    let port = Arc::clone(&bed.ports[1]);
    step_until(&mut bed, 1, &mut got, |_| port.counters(0).dropped(DropReason::LinkLoss) == lost + 10);
    assert_eq!(got[0], 1);
    // A port that never had one gets a link.
    change(&mut bed, 0, &Impairment { delay: Some("20ms".into()), ..Impairment::default() });
    let (before, begin) = (got[1], Instant::now());
    bed.guests[1].send(1, 0, 60, 1);
    step_until(&mut bed, 0, &mut got, |got| got[1] == before + 1);
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

/// Changes a link as the control interface does it.
fn change(bed: &mut Bed, port: u16, link: &Impairment) {
    bed.ports[usize::from(port)].set_path(link.into());
    bed.worker.follow_path(PortId(port));
}
