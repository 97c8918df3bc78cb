//! The switch knows the owners of IP addresses, answers address resolution for them, and tells the operator of conflicts.

use std::time::Instant;

use crate::command::{Running, memlane, printed, wait_until, write};
use crate::common::*;
use memlane::address_map::Source;
use memlane::id::PortId;
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use serde_json::Value;

/// RFC 826: a request or a reply from `from`, which has the address `own`, for or to `target`.
fn arp(from: [u8; 6], to: [u8; 6], operation: u8, own: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [&to[..], &from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    [&head[..], &from, &own, &[0; 6], &target, &[0; 18]].concat()
}

fn ask(from: [u8; 6], own: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    arp(from, BROADCAST, 1, own, target)
}

/// The MAC address that an ARP reply names for `target`.
fn told(frame: &[u8], target: [u8; 4]) -> [u8; 6] {
    assert_eq!((&frame[12..14], &frame[20..22], &frame[28..32]), (&[8, 6][..], &[0, 2][..], &target[..]), "{frame:02x?}");
    frame[22..28].try_into().unwrap()
}

/// Frames of a flood that ports received.
fn received(bed: &Bed, ports: std::ops::Range<usize>) -> u64 {
    ports.map(|port| bed.totals(port).receive_frames).sum()
}

#[test]
fn no_other_of_a_thousand_ports_receives_a_question_for_a_known_address() {
    const PORTS: usize = 1000;
    let mut text =
        "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\nmac = \"02:00:00:00:00:00\"\naddresses = [\"10.1.0.1\"]\n"
            .to_owned();
    for n in 1..=PORTS {
        let [a, b] = (n as u16).to_be_bytes();
        text.push_str(&format!(
            "[[port]]\nname = \"p{n}\"\nnull = true\nmac = \"02:00:00:00:{a:02x}:{b:02x}\"\naddresses = [\"10.0.{a}.{b}\"]\n"
        ));
    }
    let bed = Bed::of(&text);
    let mut guest = bed.guest(0);
    for n in 1..=PORTS {
        let [a, b] = (n as u16).to_be_bytes();
        let target = [10, 0, a, b];
        guest.send(&ask(mac(0), [10, 1, 0, 1], target)).unwrap();
        let answer = guest.receive(TIMEOUT).unwrap().bytes;
        assert_eq!((told(&answer, target), &answer[..6], &answer[6..12]), (mac(n), &mac(0)[..], &mac(n)[..]));
    }
    assert_eq!(received(&bed, 1..PORTS + 1), 0);
    // An unknown one reaches all.
    guest.send(&ask(mac(0), [10, 1, 0, 1], [10, 9, 9, 9])).unwrap();
    bed.wait_for(|bed| received(bed, 1..PORTS + 1) == PORTS as u64, "the question is flooded");
    let segment = bed.daemon().network().segments().pop().unwrap();
    assert_eq!((segment.addresses().given(), segment.addresses().conflicts()), (PORTS as u64, 0));
    assert_eq!(bed.totals(0).flooded, 1);
}

const KNOWN: &str = "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1\"]\n";

/// RFC 5227: a probe is answered where the address is another's by configuration, and else reaches all; an announcement reaches all.
#[test]
fn probes_and_announcements_reach_those_whom_they_concern() {
    let bed = Bed::with("", &["", KNOWN, ""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    a.send(&ask(mac(0), [0; 4], [10, 0, 0, 1])).unwrap();
    assert_eq!(told(&a.receive(TIMEOUT).unwrap().bytes, [10, 0, 0, 1]), mac(1));
    for frame in [ask(mac(0), [0; 4], [10, 0, 0, 5]), ask(mac(0), [10, 0, 0, 5], [10, 0, 0, 5])] {
        a.send(&frame).unwrap();
        // No question of before is in front of it.
        assert!(b.receive(TIMEOUT).unwrap().bytes == frame && c.receive(TIMEOUT).unwrap().bytes == frame);
    }
    // The address is known by its announcement, but another's probe for it reaches it.
    let probe = ask(mac(2), [0; 4], [10, 0, 0, 5]);
    c.send(&probe).unwrap();
    assert!(a.receive(TIMEOUT).unwrap().bytes == probe);
    c.send(&ask(mac(2), [10, 0, 0, 2], [10, 0, 0, 5])).unwrap();
    assert_eq!(told(&c.receive(TIMEOUT).unwrap().bytes, [10, 0, 0, 5]), mac(0));
}

/// A reply to one is seen where a verdict is needed, so that an address that never asks is known after the first question for it.
#[test]
fn an_address_is_known_from_its_first_reply_and_moves_with_its_announcement() {
    let bed = Bed::with("", &["", KNOWN, "", ""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    let mut d = bed.guest(3);
    let (question, target) = (ask(mac(0), [10, 0, 0, 7], [10, 0, 0, 2]), [10, 0, 0, 2]);
    a.send(&question).unwrap();
    for guest in [&mut b, &mut c, &mut d] {
        assert!(guest.receive(TIMEOUT).unwrap().bytes == question);
    }
    c.send(&arp(mac(2), mac(0), 2, target, [10, 0, 0, 7])).unwrap();
    assert_eq!(told(&a.receive(TIMEOUT).unwrap().bytes, target), mac(2));
    d.send(&ask(mac(3), [10, 0, 0, 3], target)).unwrap();
    assert_eq!(told(&d.receive(TIMEOUT).unwrap().bytes, target), mac(2), "by the switch");
    // It moves to b. Questions reach b at once, and c, which may still answer.
    let start = Instant::now();
    let moved = arp(mac(1), BROADCAST, 1, target, target);
    b.send(&moved).unwrap();
    assert!(a.receive(TIMEOUT).unwrap().bytes == moved);
    a.send(&question).unwrap();
    assert!(b.receive(TIMEOUT).unwrap().bytes == question, "moved after {:?}", start.elapsed());
    assert!(c.receive(TIMEOUT).unwrap().bytes == moved && c.receive(TIMEOUT).unwrap().bytes == question);
    let map = bed.daemon().network().segments().pop().unwrap();
    let entry = map.addresses().find(0, target.into(), bed.daemon().network().second()).unwrap();
    assert_eq!((entry.port, entry.mac.map(|mac| mac.bytes())), (PortId(1), Some(mac(1))));
    // A port that goes takes its addresses along.
    drop(b);
    bed.wait_for(
        |bed| map.addresses().find(0, target.into(), bed.daemon().network().second()).is_none(),
        "the address of a guest that left is not known",
    );
}

#[test]
fn a_conflict_is_decided_counted_and_told_and_why_names_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let db = "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1\"]\n";
    let ports = format!("[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n[[port]]\nname = \"db\"\nnull = true\n{db}");
    write(folder, "net.toml", &format!("control = \"control\"\n{ports}"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let builder = ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let mut web = builder.connect(folder.join("web.sock")).unwrap();
    web.send(&ask(mac(0), [10, 0, 0, 1], [10, 0, 0, 1])).unwrap();
    web.wait_sent(TIMEOUT).unwrap();
    let json = |arguments: &[&str]| -> Value { serde_json::from_str(&printed(folder, arguments)).unwrap() };
    let conflicts = || -> Vec<Value> {
        let all = printed(folder, &["events", "net.toml", "--json"]);
        let events = all.lines().map(|line| serde_json::from_str(line).unwrap());
        events.filter(|event: &Value| event["event"] == "address-conflict").collect()
    };
    wait_until(|| !conflicts().is_empty(), "the conflict is told");
    let told_event = &conflicts()[0];
    let text = |key: &str| told_event[key].as_str().unwrap_or_default();
    assert_eq!((text("ip"), text("port"), text("source"), text("claimed-by")), ("10.0.0.1", "db", "configuration", "web"));
    assert_eq!((text("mac"), text("claimed-mac")), ("02:00:00:00:00:01", "02:00:00:00:00:00"));
    let line = printed(folder, &["events", "net.toml"]);
    assert!(line.contains("lan: IP address conflict: 10.0.0.1 belongs to db with 02:00:00:00:00:01 (by configuration), and web claims it with 02:00:00:00:00:00"), "{line}");

    let known = json(&["addresses", "net.toml", "--json"]);
    assert_eq!((&known[0]["segment"], &known[0]["conflicts"], &known[0]["answering"]), (&"lan".into(), &1.into(), &true.into()));
    let first = &known[0]["addresses"][0];
    assert_eq!((first["ip"].as_str(), first["port"].as_str()), (Some("10.0.0.1"), Some("db")));
    assert!(printed(folder, &["addresses", "net.toml"]).contains("configuration"));

    // The forecast comes true.
    let why = |packet: &str| json(&["why", "net.toml", "web", "--packet", packet, "--json"]);
    let forecast = why("arp who-has 10.0.0.1 tell 10.0.0.9");
    assert_eq!(forecast["outcome"], "would be answered by the switch for db", "{forecast}");
    web.send(&ask(mac(0), [10, 0, 0, 9], [10, 0, 0, 1])).unwrap();
    assert_eq!(told(&web.receive(TIMEOUT).unwrap().bytes, [10, 0, 0, 1]), mac(1));
    let forecast = why("arp who-has 10.0.0.2 tell 10.0.0.9");
    assert_eq!(forecast["outcome"], "would be delivered to db");
    let page = printed(folder, &["status", "net.toml", "--json"]);
    let status: Value = serde_json::from_str(&page).unwrap();
    let counts = &status["addresses"]["lan"];
    assert_eq!(
        (&counts["answers"], &counts["entries"]["configuration"], &counts["entries"]["arp"]),
        (&1.into(), &1.into(), &1.into())
    );
}

#[test]
fn a_segment_answers_as_configured() {
    for (key, answers) in [("neighbour-suppression = false", false), ("neighbour-suppression = true", true)] {
        let ports =
            "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\n[[port]]\nname = \"p1\"\nnull = true\n".to_owned() + KNOWN;
        let bed = Bed::of(&format!("[[segment]]\nname = \"lan\"\n{key}\n{ports}"));
        let mut guest = bed.guest(0);
        guest.send(&ask(mac(0), [10, 0, 0, 9], [10, 0, 0, 1])).unwrap();
        bed.wait_for(|bed| bed.totals(1).receive_frames + bed.totals(0).receive_frames == 1, "the question arrives, or its answer");
        assert_eq!(bed.totals(0).receive_frames == 1, answers, "{key}");
    }
}

/// A DHCPACK from `from` to `to`: `lease` for the machine `to`, for an hour (RFC 2131).
fn acknowledgement(from: [u8; 6], to: [u8; 6], lease: [u8; 4], kind: u8) -> Vec<u8> {
    let fixed = [&[2, 1, 6, 0][..], &[0; 12], &lease, &[0; 8], &to, &[0; 202]].concat();
    let dhcp = [&fixed[..], &[99, 130, 83, 99, 53, 1, kind, 51, 4, 0, 0, 14, 16, 255]].concat();
    let udp = [&[0, 67, 0, 68, 1, 2, 0, 0][..], &dhcp].concat();
    let length = (20 + udp.len() as u16).to_be_bytes();
    let ip = [&[0x45, 0][..], &length, &[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1], &lease].concat();
    [&to[..], &from, &[8, 0], &ip, &udp].concat()
}

#[test]
fn leases_of_a_port_that_may_serve_are_known() {
    for serves in [true, false] {
        let server = if serves { "may-serve = [\"dhcp\"]" } else { "" };
        let bed = Bed::with("", &[server, ""]);
        let (mut a, mut b) = (bed.guest(0), bed.guest(1));
        announce(&mut [&mut a, &mut b]);
        let (offer, ack) = (acknowledgement(mac(0), mac(1), [10, 0, 0, 8], 2), acknowledgement(mac(0), mac(1), [10, 0, 0, 9], 5));
        // The fast path carries other frames to it, before and after.
        for frame in [&frame(mac(0), mac(1), 300, 1), &offer, &frame(mac(0), mac(1), 300, 2), &ack] {
            a.send(frame).unwrap();
            assert!(b.receive(TIMEOUT).unwrap().bytes == *frame);
        }
        let network = bed.daemon().network();
        let map = network.segments().pop().unwrap();
        let find = |last: u8| map.addresses().find(0, [10, 0, 0, last].into(), network.second());
        assert_eq!((find(8), find(9).is_some()), (None, serves), "not an offer");
        assert_eq!(find(9).map(|entry| (entry.port, entry.source)), serves.then_some((PortId(1), Source::Dhcp)));
    }
}
