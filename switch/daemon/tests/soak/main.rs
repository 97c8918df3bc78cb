//! Everything at once: guests exchange numbered frames while ports are attached and detached, the file is reloaded, the network is taken
//! over, killed and stopped, guests reboot, migrate and get memory, limits change, and the hosts of an uplink are cut off. `make soak`
//! takes twenty minutes.
//!
//! - [`flow`]: the traffic between two guests, in both directions, each frame checked.
//! - [`operator`]: the events of the network.
//! - [`watch`]: memory, descriptors and threads of its process over time.

#[path = "../command/mod.rs"]
mod command;
#[path = "../common/mod.rs"]
mod common;
#[path = "../dice/mod.rs"]
mod dice;
mod flow;
mod operator;
mod watch;

use std::time::{Duration, Instant};

use dice::Dice;
use flow::Ledger;
use operator::Operator;

/// Pairs of guests that talk.
const FLOWS: usize = 8;

/// How long it takes; `make soak` takes longer.
fn length() -> Duration {
    let seconds =
        std::env::var("MEMLANE_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("MEMLANE_SOAK_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(20))
}

/// In a network namespace of its own, where the uplink's devices are.
#[test]
fn nothing_is_lost_beyond_what_faults_must_lose_and_nothing_grows() {
    common::in_a_namespace("nothing_is_lost_beyond_what_faults_must_lose_and_nothing_grows", soak);
}

fn soak() {
    let mut dice = Dice::new();
    let folder = tempfile::tempdir().unwrap();
    let end = Instant::now() + length();
    let mut operator = Operator::begin(folder.path(), FLOWS);
    let first = operator.sample();
    // Each event once, in some order; then as the dice say.
    let mut events = operator::EVENTS.to_vec();
    for left in (1..events.len()).rev() {
        events.swap(left, dice.below(left + 1));
    }
    let mut round = 0;
    while round < events.len() || Instant::now() < end {
        let event = if round < events.len() { events[round] } else { dice.pick(operator::EVENTS) };
        operator.cause(event, &mut dice);
        round += 1;
    }
    let growth = operator.rest(&first);
    let report = operator.end();
    println!("{report}");
    assert_eq!(growth, None, "at first {first}");
    let Ledger { sent, arrived, lost, .. } = report.flows;
    assert_eq!(sent, arrived + lost, "every frame is accounted for");
}
