//! The network ends when it is told to, in whichever state its front ends are.

mod common;

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use memlane::config::Config;
use memlane::control::reload::ReloadOptions;
use memlane::control::{Managed, Origin};
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
    let deadline = Instant::now() + TIMEOUT;
    while !stops.is_finished() {
        assert!(Instant::now() < deadline, "the network does not end");
        std::thread::sleep(POLL_INTERVAL / 10);
    }
    stops.join().unwrap();
}

#[test]
fn a_full_queue_of_connections_does_not_hold_up_the_end() {
    let bed = Bed::new(2);
    // One front end is served, the others wait; at the second port, there are only silent ones.
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
    // The thread is trying by now, and will be when the end comes.
    std::thread::sleep(POLL_INTERVAL);
    must_stop(bed);
}

/// A front end that asks and asks at the socket `path`, and reads no answer, until the other side waits for that.
fn mute(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_write_timeout(Some(POLL_INTERVAL)).unwrap();
    // GET_FEATURES of version 1 without a payload.
    let question = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    while stream.write_all(&question).is_ok() {}
    stream
}

const MUTE: usize = 6;

/// A network of ports with such front ends, and the configuration without those ports.
fn network_of_mute_ports(folder: &Path) -> (Arc<Managed>, Config, Vec<UnixStream>) {
    let path = |n: usize| folder.join(format!("m{n}.sock"));
    let stays = "[[port]]\nname = \"stays\"\nnull = true\n";
    let ports = (0..MUTE).map(|n| format!("[[port]]\nname = \"m{n}\"\nvhost-user = \"{}\"\n", path(n).display()));
    let config = Config::parse(&(stays.to_owned() + &ports.collect::<String>()), "test").unwrap();
    let managed = Arc::new(Managed::start(config, Origin::default()).unwrap());
    let asks = (0..MUTE).map(|n| {
        std::thread::spawn({
            let path = path(n);
            move || mute(&path)
        })
    });
    let asks: Vec<_> = asks.collect();
    let mute = asks.into_iter().map(|asks| asks.join().unwrap()).collect();
    (managed, Config::parse(stays, "test").unwrap(), mute)
}

/// A reload that detaches those ports.
fn forced() -> ReloadOptions {
    ReloadOptions { force: (0..MUTE).map(|n| format!("m{n}")).collect(), ..ReloadOptions::default() }
}

/// One of them takes a second; one after the other would take six.
const AT_ONCE: Duration = Duration::from_secs(4);

#[test]
fn front_ends_that_do_not_read_delay_a_reload_by_the_time_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let (managed, wanted, _mute) = network_of_mute_ports(folder.path());
    let begun = Instant::now();
    let reloaded = managed.reload(&wanted, forced()).unwrap();
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    assert_eq!((reloaded.removed.len(), reloaded.failed), (MUTE, vec![]));
    managed.stop();
}

#[test]
fn the_end_does_not_wait_for_a_whole_reload() {
    let folder = tempfile::tempdir().unwrap();
    let (managed, wanted, _mute) = network_of_mute_ports(folder.path());
    let reloads = std::thread::spawn({
        let managed = Arc::clone(&managed);
        move || managed.reload(&wanted, forced())
    });
    let deadline = Instant::now() + TIMEOUT;
    while managed.config().unwrap().ports.len() > MUTE {
        assert!(Instant::now() < deadline, "the reload does not begin");
        std::thread::sleep(POLL_INTERVAL / 60);
    }
    let begun = Instant::now();
    managed.stop();
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    // The result of the reload does not matter: the network is over.
    let _ = reloads.join().unwrap();
}
