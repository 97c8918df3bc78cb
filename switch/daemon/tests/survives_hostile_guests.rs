//! A hostile guest costs itself its port, and other guests nothing. Every misbehaviour that the rig knows is a test here.

mod common;

use std::time::Duration;

use common::*;
use memlane_rig::villain::{Trial, cases};

/// Runs the cases with a position of `part` modulo `parts`, with two honest guests that check whether they are hurt.
fn try_cases(part: usize, parts: usize, top: &str) {
    let bed = Bed::with(top, &["", "", ""]);
    let mut trial = Trial::new(&bed.socket(0), &bed.socket(1), &bed.socket(2), Duration::from_secs(2)).unwrap();
    let mut harm = Vec::new();
    for case in cases().skip(part).step_by(parts) {
        let judgement = trial.run(case);
        let not_done = judgement.not_done.iter().map(|why| format!("could not be tried: {why}"));
        harm.extend(judgement.harm.iter().cloned().chain(not_done).map(|what| format!("{}: {what}", case.name)));
    }
    assert!(harm.is_empty(), "{}", harm.join("\n"));
}

macro_rules! parts {
    ($($name:ident = $part:literal),*) => {
        $(#[test] fn $name() { try_cases($part, 4, "") })*
    };
}

parts!(
    first_quarter_of_the_cases = 0,
    second_quarter_of_the_cases = 1,
    third_quarter_of_the_cases = 2,
    last_quarter_of_the_cases = 3
);

#[test]
fn a_polling_network_of_two_workers_survives_them_too() {
    try_cases(0, 1, "workers = 2\npoll = \"always\"");
}
