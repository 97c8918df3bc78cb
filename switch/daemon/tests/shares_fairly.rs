//! Fairness: no machine can take the network from another. Shares at a busy receiver depend on weights, and on nothing that a
//! sender does.
//!
//! One worker and its guests take turns in one thread, so little here depends on how fast the machine is.

#[path = "../benches/bed/mod.rs"]
#[allow(dead_code, reason = "the benches use the rest")]
mod bed;

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bed::Bed;
use memlane::policy::{Limit, PortLimits};
use memlane::settings::{Poll, Settings};
use memlane::stats::DropReason;
use memlane_rig::ring::Iovec;

/// A worker makes many poll iterations in the time in which a guest does anything.
fn pass_often(bed: &mut Bed) {
    (0..16).for_each(|_| {
        bed.worker.step();
    });
}

/// Lets time pass without leaving the CPU to other processes, which keep it for longer.
fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Jain's index: 1 when all are equal, 1/n when one has all.
fn jain(values: &[u64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), &v| (s + v as f64, q + (v as f64).powi(2)));
    sum * sum / (values.len() as f64 * squares)
}

/// Senders that always have frames of their size, and the receiver after them, which takes the frames in `room` buffers in a step.
struct Contest {
    bed: Bed,
    sizes: Vec<u32>,
    room: usize,
    bytes: Vec<u64>,
}

impl Contest {
    fn new(sizes: &[u32], room: usize) -> Self {
        Self::polled(Poll::Adaptive, sizes, room)
    }

    fn polled(poll: Poll, sizes: &[u32], room: usize) -> Self {
        // A busy machine may take the CPU away from all of us for longer than the usual stall timeout.
        Self::with(Settings { poll, stall_timeout: Duration::from_secs(60), ..Settings::default() }, sizes, room)
    }

    fn with(settings: Settings, sizes: &[u32], room: usize) -> Self {
        let mut bed = Bed::with(sizes.len() + 1, settings);
        let receiver = sizes.len() as u16;
        bed.announce(&[receiver]);
        Self { bed, sizes: sizes.to_vec(), room, bytes: vec![0; sizes.len()] }
    }

    fn step(&mut self) {
        let receiver = self.sizes.len() as u16;
        for (index, &size) in self.sizes.iter().enumerate() {
            self.bed.guests[index].fill(index as u16, receiver, size);
        }
        pass_often(&mut self.bed);
        self.take();
    }

    fn take(&mut self) {
        let bytes = &mut self.bytes;
        self.bed.guests[self.sizes.len()].take(self.room, |sender, length| bytes[usize::from(sender)] += u64::from(length));
    }

    /// Bytes that each sender got through in `steps` steps, once queues have filled.
    fn run(&mut self, steps: usize) -> Vec<u64> {
        self.run_by(steps, Self::step)
    }

    /// The same in steps of another kind.
    fn run_by(&mut self, steps: usize, mut step: impl FnMut(&mut Self)) -> Vec<u64> {
        (0..200).for_each(|_| step(self));
        let before = self.bytes.clone();
        (0..steps).for_each(|_| step(self));
        self.bytes.iter().zip(before).map(|(now, before)| now - before).collect()
    }

    fn allow(&mut self, port: usize, limits: PortLimits) {
        self.bed.ports[port].policy.set(&limits);
    }

    fn drops(&self, port: usize, reason: DropReason) -> u64 {
        self.bed.ports[port].counters(0).dropped(reason)
    }
}

#[test]
fn eight_senders_of_all_sizes_get_equal_bytes() {
    for poll in [Poll::Adaptive, Poll::Always] {
        for room in [8, 40, 200] {
            let mut contest = Contest::polled(poll, &[60, 60, 576, 1514, 1514, 9000, 60_000, 60_000], room);
            let bytes = contest.run(3000);
            assert!(jain(&bytes) >= 0.99, "{poll:?}, room {room}: {bytes:?}");
        }
    }
}

#[test]
fn bytes_follow_weights() {
    for poll in [Poll::Adaptive, Poll::Always] {
        let mut contest = Contest::polled(poll, &[1514, 1514, 300], 40);
        contest.allow(1, PortLimits { weight: 2, ..PortLimits::default() });
        contest.allow(2, PortLimits { weight: 4, ..PortLimits::default() });
        let bytes = contest.run(3000);
        let shares: Vec<f64> = bytes.iter().map(|&b| 7.0 * b as f64 / bytes.iter().sum::<u64>() as f64).collect();
        let right = |(share, weight): (&f64, f64)| (share - weight).abs() < 0.05 * weight;
        assert!(shares.iter().zip([1.0, 2.0, 4.0]).all(right), "{poll:?}: {shares:?}");
    }
}

#[test]
fn a_sender_with_one_receiver_loses_nothing() {
    let mut contest = Contest::new(&[1514, 1514, 9000], 10);
    // The switch needs a ring of frames to see that each sender has but one receiver.
    contest.run(500);
    let before = contest.drops(3, DropReason::ReceiverFull);
    contest.run(2000);
    assert_eq!(contest.drops(3, DropReason::ReceiverFull), before);
}

#[test]
fn a_saturated_in_order_sender_loses_nothing() {
    // The receiver takes a few frames a step: whenever it does, time that one frame waited must not be held against the next.
    let stall_timeout = Duration::from_millis(300);
    let mut contest = Contest::with(Settings { poll: Poll::Always, stall_timeout, ..Settings::default() }, &[1514], 40);
    let begun = Instant::now();
    while begun.elapsed() < 3 * stall_timeout {
        contest.step();
    }
    for reason in [DropReason::ReceiverStalled, DropReason::ReceiverFull] {
        assert_eq!(contest.drops(1, reason), 0, "{reason:?}");
    }
}

#[test]
fn a_sender_whose_receiver_hardly_reads_leaves_others_room_to_wait() {
    // Guest 0 keeps as many frames waiting for guest 1 as it can, which reads one now and then; guest 2 sends to 3, which reads
    // all, but late.
    let mut bed = Bed::with(4, Settings { wait_queue: 64, stall_timeout: Duration::from_secs(60), ..Settings::default() });
    bed.announce(&[1, 3]);
    let (mut sent, mut received) = (0, 0);
    for step in 0..500 {
        bed.guests[0].fill(0, 1, 1000);
        pass_often(&mut bed);
        bed.guests[1].take(usize::from(step % 10 == 0), |_, _| {});
        bed.guests[2].reclaim();
        bed.guests[2].send(2, 3, 1000, 20);
        sent += 20;
        pass_often(&mut bed);
        if step % 13 == 0 {
            // The receiver has room for 256 frames: a few wait.
            bed.guests[3].take(512, |_, _| received += 1);
            pass_often(&mut bed);
            bed.guests[3].take(512, |_, _| received += 1);
        }
    }
    while bed.worker.step() > 0 {
        bed.guests[3].take(512, |_, _| received += 1);
    }
    bed.guests[3].take(512, |_, _| received += 1);
    assert_eq!(bed.ports[3].counters(0).dropped(DropReason::ReceiverFull), 0);
    assert_eq!(received, sent);
}

#[test]
fn a_receiver_that_stops_costs_a_sender_its_share_and_others_nothing() {
    // Guest 0 sends to 1, which reads, and to 2, which does not.
    let mut bed = Bed::new(3);
    bed.announce(&[1, 2]);
    let (mut sent, mut received) = (0, 0);
    for _ in 0..2000 {
        let free = usize::from(bed.guests[0].transmit.free()).min(20);
        bed.guests[0].send(0, 1, 1000, free / 2);
        pass_often(&mut bed);
        bed.guests[0].send(0, 2, 1000, free - free / 2);
        pass_often(&mut bed);
        sent += free / 2;
        bed.guests[1].take(100, |_, _| received += 1);
        bed.guests[0].reclaim();
        let out = 256 - usize::from(bed.guests[0].transmit.free());
        assert!(out <= 128, "{out} heads are out");
    }
    assert!(sent >= 2000 * 5, "{sent}");
    assert_eq!(received, sent);
}

#[test]
fn a_limit_holds_whatever_the_sizes() {
    for (size, limit) in [(300, "4Mbit"), (1514, "20Mbit"), (60_000, "100Mbit")] {
        let mut contest = Contest::new(&[size], 256);
        let limit = Limit { rate: Some(limit.into()), burst_ms: Some(1000), ..Limit::default() };
        let expected = limit.bytes().unwrap() as f64;
        contest.allow(0, PortLimits { transmit: limit, ..PortLimits::default() });
        // Frames that passed the rate limit in the burst are still on their way.
        let seen = rate(&mut contest, |contest| contest.bed.ports[1].counters(0).waiting.get() == 0);
        assert!(holds(&seen, expected), "{size}: {seen:?} instead of {expected}");
    }
}

#[test]
fn a_receive_limit_is_shared_fairly() {
    let mut contest = Contest::new(&[200, 1514, 20_000], 256);
    let limit = Limit { rate: Some("50Mbit".into()), burst_ms: Some(1000), ..Limit::default() };
    contest.allow(3, PortLimits { receive: limit, ..PortLimits::default() });
    let seen = rate(&mut contest, |_| true);
    assert!(holds(&seen, 6.25e6), "{seen:?}");
    contest.bytes.fill(0);
    rate(&mut contest, |_| true);
    assert!(jain(&contest.bytes) > 0.99, "{:?}", contest.bytes);
}

/// Bytes a second that get through, measured for half a second (of which one frame must be a small part) once the burst is used up and
/// the contest is `ready`: least and most, since the CPU may be taken away from us while we look at the clock. Limits have bursts of a
/// second, so that a machine that does so loses none of the rate.
fn rate(contest: &mut Contest, ready: impl Fn(&Contest) -> bool) -> RangeInclusive<f64> {
    let counters = |contest: &Contest| {
        (0..=contest.sizes.len())
            .map(|port| contest.bed.ports[port].counters(0))
            .map(|c| c.transmit_limited.get() + c.receive_limited.get())
            .sum::<u64>()
    };
    while counters(contest) == 0 || !ready(contest) {
        contest.step();
    }
    let timed_step = |contest: &mut Contest| {
        let before = Instant::now();
        contest.step();
        (before, Instant::now())
    };
    let first = timed_step(contest);
    let before = contest.bytes.iter().sum::<u64>();
    let mut last = first;
    while last.0.saturating_duration_since(first.1) < Duration::from_millis(500) {
        last = timed_step(contest);
    }
    let bytes = (contest.bytes.iter().sum::<u64>() - before) as f64;
    bytes / (last.1 - first.0).as_secs_f64()..=bytes / (last.0 - first.1).as_secs_f64()
}

/// Whether the rates `seen` are within 2 % of `expected`.
fn holds(seen: &RangeInclusive<f64>, expected: f64) -> bool {
    *seen.start() < 1.02 * expected && *seen.end() > 0.98 * expected
}

#[test]
fn floods_are_limited_and_counted() {
    let mut bed = Bed::new(3);
    bed.ports[0].policy.set(&PortLimits { storm: 1000, ..PortLimits::default() });
    let (mut sent, mut received) = (0, 0);
    for _ in 0..100 {
        let free = usize::from(bed.guests[0].transmit.free());
        // A few wait for guest 2, which takes nothing.
        assert!(free >= 256 - 8);
        bed.guests[0].send(0, 0xffff, 60, free);
        sent += free as u64;
        while bed.worker.step() > 0 {}
        bed.guests[1].take(256, |_, _| received += 1);
        bed.guests[0].reclaim();
    }
    let dropped = bed.ports[0].counters(0).dropped(DropReason::Storm);
    assert_eq!(received + dropped, sent);
    assert!(received < 8000, "{received}");
}

/// A generator sends to an address that never speaks, or to a multicast group, over a wire for two.
#[test]
fn floods_that_reach_one_receiver_are_not_limited() {
    let mut bed = Bed::new(2);
    let (mut sent, mut received) = (0, 0);
    for _ in 0..400 {
        let free = usize::from(bed.guests[0].transmit.free());
        bed.guests[0].send(0, 0xffff, 60, free);
        sent += free as u64;
        while bed.worker.step() > 0 {}
        bed.guests[1].take(256, |_, _| received += 1);
        bed.guests[0].reclaim();
    }
    assert_eq!((sent, received, bed.ports[0].counters(0).dropped(DropReason::Storm)), (400 * 256, 400 * 256, 0));
}

#[test]
fn many_addresses_and_bursts_gain_nothing() {
    // The second sender comes in bursts of its whole ring, the third names another address with each frame.
    let mut contest = Contest::new(&[1000, 1000, 1000], 30);
    (0..200).for_each(|_| contest.step());
    contest.bytes.fill(0);
    let mut addresses = 0_u16;
    for step in 0..3000 {
        contest.bed.guests[0].fill(0, 3, 1000);
        if step % 9 == 0 {
            contest.bed.guests[1].fill(1, 3, 1000);
        }
        addresses = addresses.wrapping_add(1);
        contest.bed.guests[2].fill(0x100 | (addresses % 200), 3, 1000);
        pass_often(&mut contest.bed);
        let (bytes, room) = (&mut contest.bytes, contest.room);
        contest.bed.guests[3].take(room, |sender, length| bytes[usize::from(sender.min(2))] += u64::from(length));
    }
    let fair = contest.bytes.iter().sum::<u64>() as f64 / 3.0;
    assert!(contest.bytes[1] as f64 <= 1.02 * fair && contest.bytes[2] as f64 <= 1.02 * fair, "{:?}", contest.bytes);
    assert!(contest.bytes[0] as f64 >= 0.98 * fair, "{:?}", contest.bytes);
}

#[test]
fn many_queues_gain_nothing() {
    for poll in [Poll::Adaptive, Poll::Always] {
        let mut contest = Contest::polled(poll, &[1000, 1000], 30);
        let mut queues: Vec<_> = (1..8).map(|pair| contest.bed.queue(1, pair, poll == Poll::Always)).collect();
        let bytes = contest.run_by(3000, |contest| {
            queues.iter_mut().for_each(|queue| queue.fill(1, 2, 1000));
            contest.step();
        });
        assert!(jain(&bytes) > 0.999, "{poll:?}: {bytes:?}");
    }
}

#[test]
fn whoever_gives_back_in_order_gets_no_less() {
    // Guest 0's frames are left in its ring (backpressure), those of guest 1's other queue wait at the receiver.
    let mut contest = Contest::polled(Poll::Always, &[1000, 1000], 30);
    let mut queue = contest.bed.queue(1, 1, false);
    let bytes = contest.run_by(1000, |contest| {
        queue.fill(1, 2, 1000);
        contest.bed.guests[0].fill(0, 2, 1000);
        for _ in 0..16 {
            contest.bed.worker.step();
            // Long enough for a frame to be left no longer where it need not be.
            std::thread::sleep(Duration::from_micros(1));
        }
        contest.take();
    });
    assert!(jain(&bytes) > 0.99, "{bytes:?}");
}

#[test]
fn who_sends_little_holds_up_nobody() {
    // Guest 0 has one frame in each poll iteration; the room that it does not want is for the others, and there is time enough for
    // them.
    for poll in [Poll::Adaptive, Poll::Always] {
        let mut contest = Contest::polled(poll, &[60, 1514, 1514], 24);
        for step in 0..60_000 {
            if step == 40_000 {
                // The first touch of each page is slow; the cost of bytes is known by now.
                contest.bytes.fill(0);
            }
            contest.bed.guests[0].reclaim();
            contest.bed.guests[0].send(0, 3, 60, 1);
            for sender in [1, 2] {
                contest.bed.guests[usize::from(sender)].fill(sender, 3, 1514);
            }
            spin(Duration::from_micros(20));
            contest.bed.worker.step();
            contest.take();
        }
        assert!(contest.bytes[0] >= 19_000 * 60, "{poll:?}: {:?}", contest.bytes);
        for sender in [1, 2] {
            assert!(contest.bytes[sender] >= 20_000 * 9 * 1514, "{poll:?}: {:?}", contest.bytes);
        }
    }
}

#[test]
fn who_sends_a_little_to_everybody_holds_up_nobody() {
    // Guest 1 always has more, but for each of the others in turn; guest 0 sends to guest 2 alone.
    let mut bed = Bed::with(10, Settings { poll: Poll::Always, stall_timeout: Duration::from_secs(60), ..Settings::default() });
    bed.announce(&[2, 3, 4, 5, 6, 7, 8, 9]);
    let frames: Vec<u64> = (0..16)
        .map(|number| {
            let at = bed.guests[1].memory.allocate(128, 64).unwrap();
            bed.guests[1].memory.write(at + 12, &[2, 0, 0, 0, 0, 2 + number % 8, 2, 0, 0, 0, 0, 1]).unwrap();
            at
        })
        .collect();
    let mut bytes = [0_u64; 2];
    for step in 0..20_000 {
        bed.guests[1].reclaim();
        let transmit = &mut bed.guests[1].transmit;
        for &frame in frames.iter().cycle().take(usize::from(transmit.free())) {
            transmit.add(&[Iovec::readable(frame, 12 + 60)]).unwrap();
        }
        transmit.publish();
        bed.guests[0].fill(0, 2, 1514);
        bed.worker.step();
        bed.guests[2].take(24, |sender, length| bytes[usize::from(sender)] += u64::from(length) * u64::from(step >= 10_000));
        for other in 3..10 {
            bed.guests[other].take(24, |_, _| {});
        }
    }
    // Guest 2 has room for 24 frames, of which guest 1 wants two to four.
    assert!(bytes[0] > 10_000 * 12 * 1514, "{bytes:?}");
}

#[test]
fn alternating_destinations_gain_nothing() {
    // Guest 0 sends to 2 alone; guest 1 to 2 and 3 in turn, so that its frames wait in two places.
    for poll in [Poll::Adaptive, Poll::Always] {
        let mut bed = Bed::with(4, Settings { poll, stall_timeout: Duration::from_secs(60), ..Settings::default() });
        bed.announce(&[2, 3]);
        let mut bytes = [0_u64; 2];
        for step in 0..6000 {
            bed.guests[0].fill(0, 2, 1000);
            bed.guests[1].fill(1, 2 + step % 2, 1000);
            pass_often(&mut bed);
            bed.guests[2].take(30, |sender, length| bytes[usize::from(sender)] += u64::from(length) * u64::from(step >= 200));
            bed.guests[3].take(30, |_, _| {});
        }
        let fair = (bytes[0] + bytes[1]) / 2;
        assert!(bytes[0] * 100 >= fair * 98, "{poll:?}: {bytes:?}");
    }
}

#[test]
fn a_receiver_that_posts_one_buffer_at_a_time_is_shared_and_costs_others_nothing() {
    // Guests 0 and 1 send as much as they can to 2, which posts one buffer a step, and some frames to 3, which takes all.
    let mut bed = Bed::with(4, Settings { stall_timeout: Duration::from_secs(60), ..Settings::default() });
    bed.announce(&[2, 3]);
    let (mut bytes, mut sent, mut received) = ([0_u64; 2], 0, 0);
    for step in 0..3000 {
        for (receiver, share) in [(3, 2), (2, 1)] {
            for sender in 0..2 {
                let guest = &mut bed.guests[usize::from(sender)];
                guest.reclaim();
                let count = usize::from(guest.transmit.free()).min(10 * share) / share;
                guest.send(sender, receiver, 1000, count);
                sent += if receiver == 3 { count } else { 0 };
            }
            pass_often(&mut bed);
        }
        bed.guests[2].take(1, |sender, length| bytes[usize::from(sender)] += u64::from(length) * u64::from(step >= 500));
        bed.guests[3].take(256, |_, _| received += 1);
    }
    pass_often(&mut bed);
    bed.guests[3].take(256, |_, _| received += 1);
    assert_eq!(received, sent);
    assert!(sent > 3000 * 10, "{sent} frames");
    assert!(jain(&bytes) >= 0.99 && bytes[0] + bytes[1] >= 2400 * 1000, "{bytes:?}");
}

#[test]
fn a_busy_receiver_hears_broadcasts_in_the_senders_turn() {
    // Guest 0 keeps guest 2 busy; guest 1 broadcasts once in a while, and guest 3 misses nothing either.
    let mut bed = Bed::with(4, Settings { stall_timeout: Duration::from_secs(60), ..Settings::default() });
    bed.announce(&[2, 3]);
    let (mut asked, mut heard) = (0, [0; 2]);
    for step in 0..2000 {
        bed.guests[0].fill(0, 2, 1514);
        pass_often(&mut bed);
        if step >= 100 && step % 10 == 0 && step < 1900 {
            bed.guests[1].reclaim();
            bed.guests[1].send(1, 0xffff, 60, 1);
            asked += 1;
            pass_often(&mut bed);
        }
        for (guest, heard) in [2, 3].into_iter().zip(&mut heard) {
            bed.guests[guest].take(20, |sender, _| *heard += u64::from(sender == 1));
        }
    }
    bed.guests[0].settle();
    assert_eq!(heard, [asked; 2]);
    assert_eq!(bed.ports[2].counters(0).dropped(DropReason::FloodNoRoom), 0);
    bed.guests[1].reclaim();
    assert_eq!(bed.guests[1].transmit.free(), 256, "every chain came back");
}
