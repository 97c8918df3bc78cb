//! Every seed of every fuzz target keeps every promise. Runs on any toolchain, without a fuzzer.

#[allow(dead_code, reason = "the seeds' generator uses the rest")]
#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

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

/// Held by each test, because the target `messages` counts the open descriptors of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// Any acts of an operator, in any order with the workers' poll iterations, while frames flow: scripts by chance for the target
/// that attaches and detaches.
#[test]
fn no_order_of_changes_and_traffic_breaks_a_promise() {
    let _alone = ALONE.lock();
    let mut runner = TestRunner::new(Config { cases: 128, failure_persistence: None, ..Config::default() });
    runner
        .run(&vec(any::<u8>(), 0..300), |script| {
            fuzz::churn::run(&script);
            Ok(())
        })
        .unwrap();
}

#[test]
fn every_seed_keeps_every_promise() {
    let _alone = ALONE.lock();
    replay("addresses", fuzz::addresses::run);
    replay("churn", fuzz::churn::run);
    replay("config", fuzz::config::run);
    replay("control", fuzz::control::run);
    replay("device", fuzz::device::run);
    replay("filter", fuzz::filter::run);
    replay("frame", fuzz::frame::run);
    replay("messages", fuzz::messages::run);
    replay("multicast", fuzz::multicast::run);
    replay("names", fuzz::names::run);
    replay("offload", fuzz::offload::run);
    replay("pcap", fuzz::pcap::run);
    replay("resolver", fuzz::resolver::run);
    replay("stream", fuzz::stream::run);
    replay("takeover", fuzz::takeover::run);
    replay("twin", fuzz::twin::run);
    replay("xen", fuzz::xen::run);
}
