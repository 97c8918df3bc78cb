//! Attaching and detaching a port takes as much in a large network as in a small one.
//!
//! Time is not asserted. The thread that carries the command out allocates memory for each copy that it makes of ports, and the state file
//! counts its bytes: both would grow with a walk over all ports that copies them.

#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memlane::config::{Config, PortOrigin};
use memlane::control::{Managed, Origin};
use serde_json::json;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get() + layout.size() as u64));
        // SAFETY: the caller's promises are those that it demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The least bytes that this thread allocated for one of `ports`; a table that grows costs more now and then.
fn least(ports: std::ops::Range<usize>, mut each: impl FnMut(usize)) -> u64 {
    let cost = |port| {
        let before = ALLOCATED.get();
        each(port);
        ALLOCATED.get() - before
    };
    ports.map(cost).min().unwrap()
}

#[test]
fn attaching_and_detaching_a_port_costs_the_same_in_any_network() {
    const PORTS: usize = 300;
    const SAMPLE: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin { state: Some(folder.path().join("state")), ..Origin::default() };
    let net = Managed::start(Config::named("net").unwrap(), origin).unwrap();
    let attach = |port: usize| {
        let (mac, address) =
            (format!("02:00:00:00:{:02x}:{:02x}", port / 250, port % 250), format!("10.0.{}.{}", port / 250, 1 + port % 250));
        let entry = json!({ "name": format!("port{port:04}"), "null": true, "mac": mac, "addresses": [address] });
        net.attach(&entry, PortOrigin::COMMAND).map(drop).unwrap();
    };
    let detach = |port: usize| drop(net.detach(&format!("port{port:04}")).unwrap());
    let few = least(0..SAMPLE, attach);
    let of_few = least(SAMPLE / 2..SAMPLE, detach);
    let many = least(SAMPLE / 2..PORTS, attach).max(least(PORTS..PORTS + SAMPLE, attach));
    let written = net.state_bytes();
    let of_many = least(PORTS - SAMPLE..PORTS, detach);
    assert!(many <= few + few / 4 && of_many <= of_few + of_few / 4, "{few} and {many} bytes, {of_few} and {of_many}");
    let per_port = written / PORTS as u64;
    assert!(per_port < 1000, "{per_port} bytes of the state file were written for each port");
    net.stop();
    let kept = std::fs::read_to_string(folder.path().join("state")).unwrap();
    assert_eq!(kept.matches("[[port]]").count(), PORTS, "no step is left: earlier versions read none");
}
