//! The network ends when it is told to, whatever its guests' front ends do.

mod common;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

use common::*;
use memlane_rig::frontend::connect_at_once;

/// Connections until the queue of the socket at `path` is full.
fn fill_queue(path: &Path) -> Vec<UnixStream> {
    let crowd: Vec<UnixStream> = std::iter::from_fn(|| connect_at_once(path).ok()).collect();
    assert!(!crowd.is_empty());
    crowd
}

/// Ends the network in another thread, so that a test that fails ends too.
fn must_stop(mut bed: Bed) {
    let stops = std::thread::spawn(move || bed.stop());
    let deadline = Instant::now() + PATIENCE;
    while !stops.is_finished() {
        assert!(Instant::now() < deadline, "the network does not end");
        std::thread::sleep(GLANCE / 10);
    }
    stops.join().unwrap();
}

#[test]
fn a_full_queue_of_connections_does_not_hold_up_the_end() {
    let bed = Bed::new(2);
    // One is served, the others wait; at the second port, nobody but who says nothing.
    let _guest = bed.guest(0);
    let _crowds = [fill_queue(&bed.socket(0)), fill_queue(&bed.socket(1))];
    must_stop(bed);
}

#[test]
fn a_front_end_that_accepts_nobody_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let _crowd = fill_queue(&path);
    let bed = Bed::connecting(&path);
    // It is trying by now, and will be when the end comes.
    std::thread::sleep(GLANCE);
    must_stop(bed);
}
