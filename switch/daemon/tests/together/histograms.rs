//! Histograms: each frame by its size, and a sample of frames by the time that they waited.

use std::time::{Duration, Instant};

use crate::bed::Bed;
use crate::common::wait_until;
use memlane::settings::Settings;

/// Steps until guest 1 has received all `frames` of guest 0.
fn arrive(bed: &mut Bed, frames: usize) {
    let mut arrived = 0;
    wait_until(
        || {
            bed.worker.step();
            arrived += bed.guests[1].settle();
            arrived == frames
        },
        "all frames arrive",
    );
    bed.guests[0].reclaim();
}

#[test]
fn each_transmitted_frame_is_counted_by_its_size() {
    let mut bed = Bed::known(2, Settings::default());
    let before = bed.ports[0].totals();
    // In batches of one size, and of two: the length of a broadcast that was learned from is 60.
    let lengths = [64, 65, 127, 128, 255, 256, 511, 512, 1023, 1024, 1518, 1519, 2000];
    for length in lengths {
        bed.guests[0].send(0, 1, length, 40);
        arrive(&mut bed, 40);
    }
    for pair in lengths.windows(2) {
        for _ in 0..10 {
            bed.guests[0].send(0, 1, pair[0], 1);
            bed.guests[0].send(0, 1, pair[1], 2);
        }
        arrive(&mut bed, 30);
    }
    let after = bed.ports[0].totals();
    let counted: Vec<u64> = after.frame_sizes.iter().zip(before.frame_sizes).map(|(after, before)| after - before).collect();
    // Batches of one size, first ones of pairs, second ones of pairs.
    let expected = [40 + 10, 80 + 30 + 30, 80 + 60, 80 + 60, 80 + 60, 80 + 60, 80 + 30 + 20, 0, 0];
    assert_eq!(counted.iter().sum::<u64>(), expected.iter().sum::<u64>());
    assert_eq!(counted, expected);
    assert_eq!(after.frame_sizes.iter().sum::<u64>(), after.transmit_frames);
}

#[test]
fn one_frame_in_a_thousand_is_counted_by_its_wait() {
    let settings = Settings { stall_timeout: Duration::from_secs(60), ..Settings::default() };
    let mut bed = Bed::known(2, settings);
    for _ in 0..200 {
        bed.guests[0].send(0, 1, 64, 100);
        arrive(&mut bed, 100);
    }
    let prompt = bed.ports[1].totals();
    assert!((18..=20).contains(&prompt.waits.iter().sum::<u64>()), "{:?} of 20000", prompt.waits);
    // The guest takes its frames seldom.
    wait_until(
        || {
            // All of its receive buffers, and more.
            for _ in 0..2 {
                bed.guests[0].fill(0, 1, 64);
                bed.worker.step();
            }
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(2) {
                bed.worker.step();
            }
            bed.guests[1].settle();
            bed.worker.step();
            bed.ports[1].totals().waits[3..].iter().sum::<u64>() > 0
        },
        "a frame is counted that waited for more than a millisecond",
    );
    assert!(bed.ports[1].totals().waited_cycles > prompt.waited_cycles);
}
