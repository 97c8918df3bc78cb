//! Ports and segments come, go and change while frames flow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use memlane::config::{Config, PortConfig};
use memlane::daemon::{ChangeError, Daemon, NoSuchPort, StartError};
use memlane::frame::MacAddress;
use memlane::network::AddError;
use memlane::port::PortState;
use memlane::port::settings::PortSettings;
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;

/// The port that these lines describe, on a socket called after it.
fn port(bed: &Bed, name: &str, lines: &str) -> PortConfig {
    let folder = bed.folder().display();
    let text = format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{folder}/{name}.sock\"\n{lines}\n");
    Config::parse(&text, "test").unwrap().ports.remove(0)
}

/// A guest with this address on port `name`.
fn guest(bed: &Bed, name: &str, index: usize) -> ToyGuest {
    let guest = bed.builder(index).connect(bed.folder().join(format!("{name}.sock"))).unwrap();
    wait_until(|| bed.daemon().network().find(name).unwrap().state() == PortState::Running, "the port runs");
    guest
}

fn enabled(yes: bool) -> impl FnOnce(&mut PortSettings) {
    move |settings| settings.enabled = yes
}

#[test]
fn a_port_that_comes_is_reached_and_one_that_goes_is_not() {
    let bed = Bed::new(1);
    let daemon = bed.daemon();
    let mut first = bed.guest(0);
    for _ in 0..3 {
        daemon.attach(&port(&bed, "late", "")).unwrap();
        let mut late = guest(&bed, "late", 1);
        announce(&mut [&mut first, &mut late]);
        for number in 0..50 {
            first.send(&frame(mac(0), mac(1), 200, number)).unwrap();
            assert_eq!(late.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 200, number));
        }
        assert_eq!(daemon.detach("late").unwrap().name, "late");
        assert!(daemon.network().find("late").is_none() && !bed.folder().join("late.sock").exists());
        assert_eq!(daemon.detach("late"), Err(NoSuchPort("late".into())));
        first.send(&frame(mac(0), mac(1), 200, 1)).unwrap();
        first.wait_sent(TIMEOUT).unwrap();
    }
    assert_eq!(daemon.config().ports.len(), 1);
}

#[test]
fn what_is_taken_is_refused_and_leaves_nothing_behind() {
    let bed = Bed::with("", &["mac = \"02:00:00:00:00:07\""]);
    let daemon = bed.daemon();
    let name = daemon.attach(&port(&bed, "p0", "")).unwrap_err();
    assert!(matches!(name, StartError::Add(AddError::NameTaken(_))), "{name}");
    let address = daemon.attach(&port(&bed, "other", "mac = \"02:00:00:00:00:07\"")).unwrap_err();
    assert!(matches!(address, StartError::Add(AddError::AddressTaken { .. })), "{address}");
    assert!(!bed.folder().join("other.sock").exists(), "nobody is met where there is no port");
    daemon.attach(&port(&bed, "other", "segment = \"lan2\"\nmac = \"02:00:00:00:00:07\"")).unwrap();
    assert_eq!(daemon.change("other", enabled(true)).unwrap().segment, "lan2");
    assert_eq!(daemon.change("nobody", enabled(true)), Err(ChangeError::NoSuchPort(NoSuchPort("nobody".into()))));
}

/// A guest that comes into another segment, at a port with the number of one that went, hears nothing that was meant for that one.
#[test]
fn who_comes_after_hears_nothing_of_who_went() {
    let bed = Bed::with("workers = 2", &["", ""]);
    let daemon = bed.daemon();
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        for (guest, from) in [(&mut a, 0), (&mut b, 1)] {
            scope.spawn(move || {
                let mut number = 0;
                while !over.load(Ordering::Acquire) {
                    number += 1;
                    // Without room the frame is sent again; received frames do not matter.
                    let _ = guest.send(&frame(mac(from), mac(9), 300, number));
                    while guest.try_receive().unwrap().is_some() {}
                }
            });
        }
        for round in 0..40 {
            daemon.attach(&port(&bed, "victim", "")).unwrap();
            let number = daemon.network().find("victim").unwrap().id;
            let mut victim = guest(&bed, "victim", 9);
            victim.send(&frame(mac(9), BROADCAST, 60, 0)).unwrap();
            victim.receive(TIMEOUT).unwrap();
            daemon.detach("victim").unwrap();
            daemon.attach(&port(&bed, "next", "segment = \"elsewhere\"")).unwrap();
            assert_eq!(daemon.network().find("next").unwrap().id, number);
            let mut next = guest(&bed, "next", 10);
            let until = Instant::now() + Duration::from_millis(5);
            while Instant::now() < until {
                let heard = next.try_receive().unwrap();
                assert!(heard.is_none(), "round {round}: {:02x?}", &heard.unwrap().bytes[..14]);
            }
            daemon.detach("next").unwrap();
        }
        over.store(true, Ordering::Release);
    });
}

/// So many ports join a segment that its table grows several times; frames to a learned address are never flooded again.
#[test]
fn a_segment_that_grows_knows_what_it_knew() {
    let bed = Bed::new(2);
    let daemon = bed.daemon();
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let flooded = bed.totals(0).flooded;
    for n in 0..40 {
        daemon.attach(&port(&bed, &format!("late{n}"), "")).unwrap();
        a.send(&frame(mac(0), mac(1), 100, n)).unwrap();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, n));
    }
    assert_eq!(bed.totals(0).flooded, flooded);
    for n in 0..40 {
        daemon.detach(&format!("late{n}")).unwrap();
    }
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, 1));
    assert_eq!(bed.totals(0).flooded, flooded);
}

#[test]
fn who_is_disabled_neither_sends_nor_is_sent_to() {
    let bed = Bed::new(2);
    let daemon = bed.daemon();
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    daemon.change("p1", enabled(false)).unwrap();
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_silent(&mut b);
    assert_eq!(bed.drops(1, memlane::stats::DropReason::ReceiverAbsent), 1);
    // The guest's transmit frames wait in its ring.
    b.send(&frame(mac(1), mac(0), 100, 2)).unwrap();
    assert_silent(&mut a);
    assert_eq!(bed.totals(1).transmit_limited, 0, "no rate limit holds them back");
    daemon.change("p1", enabled(true)).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes, frame(mac(1), mac(0), 100, 2));
    a.send(&frame(mac(0), mac(1), 100, 3)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, 3));
}

#[test]
fn a_port_is_drained_once_nothing_of_it_is_under_way() {
    let bed = Bed::with("stall-timeout-ms = 60000", &["", ""]);
    let daemon = bed.daemon();
    let mut a = bed.guest(0);
    let mut b = bed.guest_with_four_buffers(1);
    announce(&mut [&mut a, &mut b]);
    let drained = |timeout: Duration| daemon.network().await_drained(&daemon.disable("p0").unwrap(), timeout);
    assert!(drained(Duration::ZERO));
    daemon.change("p0", enabled(true)).unwrap();
    // One of its buffers holds the announcement.
    for number in 0..8 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.totals(1).waiting == 5, "frames wait");
    assert!(!drained(Duration::from_millis(20)), "frames of it wait elsewhere");
    daemon.detach("p1").unwrap();
    assert!(drained(TIMEOUT));
}

#[test]
fn an_address_is_tied_to_another_port_while_the_network_runs() {
    let bed = Bed::with("", &["mac = \"02:00:00:00:00:00\"", ""]);
    let daemon = bed.daemon();
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let bad = |bed: &Bed| bed.drops(1, memlane::stats::DropReason::BadSource);
    b.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    bed.wait_for(|bed| bad(bed) == 1, "the address is another's");
    let tied = |address| move |settings: &mut PortSettings| settings.mac = address;
    assert!(daemon.change("p1", tied(Some(MacAddress::new(mac(0))))).is_err());
    daemon.change("p0", tied(None)).unwrap();
    daemon.change("p1", tied(Some(MacAddress::new(mac(0))))).unwrap();
    b.send(&frame(mac(0), BROADCAST, 60, 2)).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes, frame(mac(0), BROADCAST, 60, 2));
    assert_eq!(bad(&bed), 1);
}

/// Changes to other ports lose a port no frame: others come and go, are limited and freed, on both workers.
#[test]
fn who_is_not_concerned_loses_nothing() {
    let bed = Bed::with("workers = 2", &["", "", ""]);
    let daemon: &Daemon = bed.daemon();
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for n in 0..60 {
                daemon.attach(&port(&bed, "late", if n % 2 == 0 { "" } else { "segment = \"other\"" })).unwrap();
                daemon.change("p2", enabled(n % 2 == 0)).unwrap();
                daemon.detach("late").unwrap();
            }
        });
        let mut number = 0;
        while !changes.is_finished() {
            number += 1;
            a.send(&frame(mac(0), mac(1), 400, number)).unwrap();
            assert_eq!(b.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 400, number));
        }
    });
    assert!(bed.totals(0).drops.is_empty() && bed.totals(1).drops.is_empty());
}

/// How often, by default and as `make prove` says.
fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |times| times.parse().unwrap())
}

fn tied(number: usize) -> String {
    mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

/// Sends frames to the addresses of guests `to` until `over` or its network ends.
fn send_to_all(guest: &mut ToyGuest, to: std::ops::Range<usize>, over: &AtomicBool) {
    let from = guest.mac();
    for receiver in to.cycle() {
        if over.load(Ordering::Acquire) {
            return;
        }
        match guest.send(&frame(from, mac(receiver), 100, 1)) {
            Ok(_) => {}
            // The guest's ring is full, or its network has ended.
            Err(_) if guest.wait_sent(POLL_INTERVAL).is_err() => return,
            Err(_) => {}
        }
        while let Ok(Some(_)) = guest.try_receive() {}
    }
}

/// Each time the first port's guest is there before the others come, and sends to their addresses.
#[test]
fn a_network_that_starts_under_traffic_to_ports_that_are_to_come_loses_no_worker() {
    const PORTS: usize = 60;
    let ports: Vec<String> = (0..PORTS).map(|number| format!("mac = \"{}\"", tied(number))).collect();
    let mut bed = Bed::with("workers = 2", &ports.iter().map(String::as_str).collect::<Vec<_>>());
    let (over, socket) = (AtomicBool::new(false), bed.socket(0));
    std::thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                let guest =
                    ToyGuest::builder().mac(mac(0)).timeout(POLL_INTERVAL).memory(MemoryPlan::new(64 << 20)).connect(&socket);
                guest.into_iter().for_each(|mut guest| send_to_all(&mut guest, 1..PORTS, over));
            }
        });
        for restart in 0..times("MEMLANE_CHURN_RESTARTS", 8) {
            bed.restart();
            bed.wait_for(
                |bed| bed.totals(0).transmit_frames > 0 || bed.daemon().network().fatal().cause().is_some(),
                "frames flow",
            );
            assert_eq!(bed.daemon().network().fatal().cause(), None, "restart {restart}");
        }
        over.store(true, Ordering::Release);
    });
}

/// Ports with numbers that were never given come, while guests of both workers send to their addresses.
#[test]
fn ports_that_come_under_traffic_to_their_addresses_lose_no_worker() {
    let bed = Bed::with("workers = 2", &["", ""]);
    let attaches = times("MEMLANE_CHURN_ATTACHES", 150);
    let mut guests = [bed.guest(0), bed.guest(1)];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for guest in &mut guests {
            scope.spawn(|| send_to_all(guest, 2..2 + attaches, &over));
        }
        for number in 2..2 + attaches {
            let text = format!("[[port]]\nname = \"late{number}\"\nnull = true\nmac = \"{}\"\n", tied(number));
            bed.daemon().attach(&Config::parse(&text, "test").unwrap().ports[0]).unwrap();
        }
        over.store(true, Ordering::Release);
    });
    assert_eq!(bed.daemon().network().fatal().cause(), None);
    // Every port that has come is reached.
    let last = 1 + attaches;
    guests[0].send(&frame(mac(0), mac(last), 100, 1)).unwrap();
    bed.wait_for(|bed| bed.totals(last).receive_frames > 0, "the last port is reached");
}
