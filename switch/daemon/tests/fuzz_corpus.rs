//! Every seed of every fuzz target keeps every promise. Runs on any toolchain, without a fuzzer.

#[allow(dead_code, reason = "the seeds' generator uses the rest")]
#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

use std::collections::BTreeSet;
use std::path::Path;

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
