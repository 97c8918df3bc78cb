//! Whole networks, each from a seed: guests, traffic, faults and changes by chance, in one thread on a clock of its own, against an independent
//! model (`switch/fuzz/src/network`).
//!
//! `MEMLANE_SEED=7` tells the events in the network of a seed (if it fails, by the fewest steps that still do), `MEMLANE_NETWORK_SECONDS=60` tries new seeds for so long.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::fuzz::network::{Totals, drive, fails, script, shrink};

/// Seeds that found something, and what; each is tried in every run.
const KEPT: &str = include_str!("kept.txt");
/// Seeds of every run beside those.
const SEEDS: std::ops::Range<u64> = 1..60;

/// Drop reasons that occur in these networks.
const REASONS: [&str; 26] = [
    "chain-address",
    "chain-direction",
    "runt",
    "checksum-misplaced",
    "bad-segmentation",
    "offload-not-agreed",
    "bad-source",
    "same-port",
    "storm",
    "spoofed-source",
    "spoofed-ip",
    "spoofed-arp",
    "not-a-server",
    "loop",
    "isolated",
    "vlan-not-carried",
    "reserved-group",
    "policy-denied",
    "transmit-disabled",
    "receiver-absent",
    "receiver-full",
    "receiver-stalled",
    "too-long-for-receiver",
    "flood-no-room",
    "link-loss",
    "link-full",
];

fn kept() -> impl Iterator<Item = u64> {
    let first = |line: &str| line.split(' ').next().and_then(|seed| seed.parse().ok());
    KEPT.lines().filter(|line| !line.starts_with('#')).filter_map(first)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Runs the network of a seed. If that fails: says how, by no more steps than it takes.
fn run(seed: u64) -> Totals {
    match std::panic::catch_unwind(|| drive(seed, &script(seed), false)) {
        Ok(totals) => totals,
        Err(_) => explain(seed),
    }
}

fn explain(seed: u64) -> ! {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let least = shrink(script(seed), |script| fails(seed, script));
    std::panic::set_hook(hook);
    println!("MEMLANE_SEED={seed} fails, by these {} steps:", least.len());
    drive(seed, &least, true);
    panic!("the network of seed {seed} fails, and not when its steps are told");
}

#[test]
fn networks_from_seeds_do_what_the_model_says() {
    if let Some(seed) = number("MEMLANE_SEED") {
        if fails(seed, &script(seed)) {
            explain(seed);
        }
        drive(seed, &script(seed), true);
        return;
    }
    let begun = Instant::now();
    let (mut totals, mut count) = (Totals::default(), 0);
    let mut add = |seed| {
        totals.add(run(seed));
        count += 1;
    };
    kept().chain(SEEDS).for_each(&mut add);
    if let Some(seconds) = number("MEMLANE_NETWORK_SECONDS") {
        let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        println!("new seeds from {first} on");
        (first..).take_while(|_| begun.elapsed() < Duration::from_secs(seconds)).for_each(&mut add);
    }
    println!("{count} networks, {} frames, {} arrivals in {:?}", totals.taken, totals.arrived, begun.elapsed());
    let reasons: BTreeSet<&str> = totals.reasons().map(|reason| reason.name()).collect();
    let missing: Vec<_> = REASONS.iter().filter(|reason| !reasons.contains(*reason)).collect();
    assert!(missing.is_empty(), "no frame was dropped for {missing:?}, but for {reasons:?}");
}

/// The same seed is the same network, to the frame.
#[test]
fn a_seed_is_the_same_network_again() {
    for seed in [3, 5] {
        assert_eq!(drive(seed, &script(seed), false), drive(seed, &script(seed), false));
    }
}
