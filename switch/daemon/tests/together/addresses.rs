//! The switch knows the owners of IP addresses, answers address resolution for them, and tells the operator of conflicts.

use std::time::Instant;

use crate::command::{Running, memlane, printed, wait_until, write};
use crate::common::*;
use memlane::address_map::Source;
use memlane::explain::Forecast;
use memlane::id::PortId;
use memlane::offload::checksum;
use memlane::stats::DropReason;
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
    // The address moves to b. Questions reach b at once, and c, which may still answer.
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
    wait_until(|| !conflicts(folder).is_empty(), "the conflict is told");
    let told_event = &conflicts(folder)[0];
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

/// A neighbour solicitation for fd00::1 from fd00::9 of `from`, changed by `change`, with the right checksum behind it: RFC 4861, section 4.3.
fn solicitation(from: [u8; 6], change: fn(&mut [u8])) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let head = [&[0x33, 0x33, 0xff, 0, 0, 1][..], &from, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]].concat();
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &address("fd00::1"), &[1, 1], &from].concat();
    let mut frame = [head, address("fd00::9").to_vec(), address("ff02::1:ff00:1").to_vec(), message].concat();
    change(&mut frame);
    let sum = checksum::over(&[&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &frame[54..]]);
    frame[56..58].copy_from_slice(&sum);
    frame
}

/// Frames of ARP and neighbour discovery from `from` that break a rule: hosts discard them.
fn malformed(from: [u8; 6]) -> Vec<(&'static str, Vec<u8>)> {
    let good = ask(from, [10, 0, 0, 9], [10, 0, 0, 1]);
    let arp_with = |at: usize, byte: u8| [&good[..at], &[byte], &good[at + 1..]].concat();
    vec![
        ("RFC 826: a hardware address space of another network", arp_with(15, 2)),
        ("RFC 826: another protocol's addresses", arp_with(17, 1)),
        ("RFC 826: a length of MAC addresses that is none", arp_with(18, 8)),
        ("RFC 826: a length of IPv4 addresses that is none", arp_with(19, 0)),
        ("RFC 826: an operation that is none", arp_with(21, 0)),
        ("RFC 5227, section 1.1: a sender's MAC address that is not the frame's", arp_with(27, 77)),
        ("RFC 1122, section 3.2.1.3: a group as the sender", arp_with(28, 224)),
        ("RFC 826: cut off before the target's address", good[..40].to_vec()),
        ("RFC 4861, section 7.1.1: a hop limit below 255", solicitation(from, |frame| frame[21] = 254)),
        ("RFC 4861, section 7.1.1: another code", solicitation(from, |frame| frame[55] = 1)),
        ("RFC 4861, section 7.1.1: a group as the target", solicitation(from, |frame| frame[62] = 0xff)),
        ("RFC 4861, section 7.1.1: an option of length 0", solicitation(from, |frame| frame[79] = 0)),
        ("RFC 4861, section 7.1.1: an option longer than the packet", solicitation(from, |frame| frame[79] = 2)),
        ("RFC 4861, section 7.1.1: a probe with a link-layer address", solicitation(from, |frame| frame[22..38].fill(0))),
        ("RFC 4861, section 7.1.1: a wrong checksum", {
            let mut frame = solicitation(from, |_| {});
            frame[57] ^= 1;
            frame
        }),
    ]
}

/// Bridges forward by MAC addresses alone (IEEE 802.1Q, section 8.6); only the receivers judge the rest. A guarded port sends no such ARP.
#[test]
fn malformed_address_resolution_reaches_all_and_teaches_and_answers_nothing() {
    let known = "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1\", \"fd00::1\"]\n";
    let guarded = "mac = \"02:00:00:00:00:03\"\naddresses = [\"10.0.0.9\", \"fd00::9\"]\nanti-spoof = \"all\"\n";
    let bed = Bed::with("", &["", known, "", guarded]);
    let (mut a, mut b, mut c, mut d) = (bed.guest(0), bed.guest(1), bed.guest(2), bed.guest(3));
    let network = bed.daemon().network();
    let map = network.segments().pop().unwrap();
    let why = |port: &str, frame: &[u8]| Forecast::foresee(network, &network.find(port).unwrap(), frame, network.second());
    let known_before = map.addresses().records(network.second()).len();
    for (rule, frame) in malformed(mac(0)) {
        let forecast = why("p0", &frame);
        assert_eq!((&forecast.receivers[..], &forecast.answered_for), (&["p1", "p2", "p3"].map(String::from)[..], &None), "{rule}");
        assert!(forecast.drops.is_empty(), "{rule}: {forecast:?}");
        assert!(forecast.steps.iter().any(|step| step.contains("the address map learns nothing from it")), "{rule}: {forecast:?}");
        a.send(&frame).unwrap();
        for guest in [&mut b, &mut c, &mut d] {
            assert!(guest.receive(TIMEOUT).unwrap().bytes == frame, "{rule}");
        }
    }
    assert_eq!((map.addresses().given(), map.addresses().conflicts()), (0, 0));
    assert_eq!(map.addresses().records(network.second()).len(), known_before);
    // The same frames without a fault are answered and learned: no answer of before is in front of theirs.
    a.send(&ask(mac(0), [10, 0, 0, 9], [10, 0, 0, 1])).unwrap();
    assert_eq!(told(&a.receive(TIMEOUT).unwrap().bytes, [10, 0, 0, 1]), mac(1));
    a.send(&solicitation(mac(0), |_| {})).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes[54], 136, "an advertisement");
    // Of a guarded port: as it tells an address that it hides.
    for (rule, frame) in malformed(mac(3)).into_iter().filter(|(_, frame)| frame[12..14] == [8, 6]) {
        let is_own = rule.contains("an operation that is none");
        assert_eq!(why("p3", &frame).drops.first().map(|drop| &*drop.reason), (!is_own).then_some("spoofed-arp"), "{rule}");
        let before = bed.drops(3, DropReason::SpoofedArp);
        d.send(&frame).unwrap();
        d.wait_sent(TIMEOUT).unwrap();
        assert_eq!(bed.drops(3, DropReason::SpoofedArp), before + u64::from(!is_own), "{rule}");
    }
}

/// Events of the running network about conflicts, as JSON.
fn conflicts(folder: &std::path::Path) -> Vec<Value> {
    let all = printed(folder, &["events", "net.toml", "--json"]);
    let events = all.lines().map(|line| serde_json::from_str(line).unwrap());
    events.filter(|event: &Value| event["event"] == "address-conflict").collect()
}

/// RFC 5227, section 2.4. On a segment without `anti-spoof` a thief gets questions, and no answers of the switch, and the operator hears of it.
#[test]
fn a_thief_of_an_address_gets_no_answers_and_is_told_once_its_owner_speaks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n");
    let segment = "[[segment]]\nname = \"lan\"\nneighbour-suppression = true\n";
    write(folder, "net.toml", &format!("control = \"control\"\n{segment}{}", (0..3).map(port).collect::<String>()));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let builder = |n: usize| ToyGuest::builder().mac(mac(n)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let [mut asker, mut owner, mut thief] = [0, 1, 2].map(|n| builder(n).connect(folder.join(format!("p{n}.sock"))).unwrap());
    let address = [10, 0, 0, 5];
    let question = ask(mac(0), [10, 0, 0, 7], address);
    let announced = |by: usize| ask(mac(by), address, address);
    let hear = |guest: &mut ToyGuest, frame: &[u8]| {
        let heard = guest.receive(TIMEOUT).unwrap().bytes;
        assert!(heard == frame, "{heard:02x?}");
    };
    owner.send(&announced(1)).unwrap();
    hear(&mut asker, &announced(1));
    hear(&mut thief, &announced(1));
    asker.send(&question).unwrap();
    assert_eq!(told(&asker.receive(TIMEOUT).unwrap().bytes, address), mac(1), "by the switch");
    thief.send(&announced(2)).unwrap();
    hear(&mut asker, &announced(2));
    hear(&mut owner, &announced(2));
    // Both hear the next question, and the owner still answers.
    asker.send(&question).unwrap();
    hear(&mut owner, &question);
    hear(&mut thief, &question);
    let answer = arp(mac(1), mac(0), 2, address, [10, 0, 0, 7]);
    owner.send(&answer).unwrap();
    hear(&mut asker, &answer);
    wait_until(|| !conflicts(folder).is_empty(), "the conflict is told");
    let event = &conflicts(folder)[0];
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    assert_eq!((text("ip"), text("port"), text("mac"), text("source")), ("10.0.0.5", "p1", "02:00:00:00:00:01", "arp"));
    assert_eq!((text("claimed-by"), text("claimed-mac")), ("p2", "02:00:00:00:00:02"));
    let known: Value = serde_json::from_str(&printed(folder, &["addresses", "net.toml", "--json"])).unwrap();
    let entries = known[0]["addresses"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["ip"] == "10.0.0.5").unwrap();
    assert_eq!((&entry["port"], &known[0]["conflicts"]), (&"p1".into(), &1.into()));
    // Disputed: neither is answered for.
    let why = printed(folder, &["why", "net.toml", "p0", "--packet", "arp who-has 10.0.0.5 tell 10.0.0.7", "--json"]);
    let why: Value = serde_json::from_str(&why).unwrap();
    assert_eq!((&why["receivers"], &why["answered-for"]), (&serde_json::json!(["p1", "p2"]), &Value::Null), "{why}");
    asker.send(&question).unwrap();
    hear(&mut owner, &question);
    hear(&mut thief, &question);
    assert_silent(&mut asker);
}
