//! Every seed of every fuzz target keeps every promise, and networks from seeds behave as a model says. Runs on any toolchain, without a fuzzer.

#[allow(dead_code, reason = "the seeds' generator uses the rest")]
#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

mod from_a_seed;

use std::collections::BTreeSet;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

/// Runs the body of `target` on each of its seeds, in the order of their names.
fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let seeds: BTreeSet<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 5, "{} holds the seeds", folder.display());
    for seed in seeds {
        println!("{}", seed.display());
        body(&std::fs::read(seed).unwrap());
    }
}

/// Recordings that were edited: seeds with other bytes in them.
#[test]
fn no_edited_recording_breaks_the_replay() {
    let seeds = fuzz::recording::seeds();
    let mut runner = TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() });
    let edits = vec((any::<usize>(), any::<u8>()), 1..6);
    runner
        .run(&(0..seeds.len(), edits), |(seed, edits)| {
            let mut bytes = seeds[seed].1.clone();
            for (at, byte) in edits {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            fuzz::recording::run(&bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn every_seed_keeps_every_promise() {
    replay("addresses", fuzz::addresses::run);
    replay("config", fuzz::config::run);
    replay("control", fuzz::control::run);
    replay("device", fuzz::device::run);
    replay("filter", fuzz::filter::run);
    replay("frame", fuzz::frame::run);
    replay("messages", fuzz::messages::run);
    replay("multicast", fuzz::multicast::run);
    replay("names", fuzz::names::run);
    replay("network", fuzz::network::run);
    replay("offload", fuzz::offload::run);
    replay("pcap", fuzz::pcap::run);
    replay("recording", fuzz::recording::run);
    replay("resolver", fuzz::resolver::run);
    replay("stream", fuzz::stream::run);
    replay("takeover", fuzz::takeover::run);
    replay("twin", fuzz::twin::run);
    replay("xen", fuzz::xen::run);
}
