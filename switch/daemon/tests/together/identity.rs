//! Guests with `anti-spoof = "all"` use their own addresses, offer no service without permission, and the operator is told of the rest.

use crate::command::{Running, memlane, printed, wait_until, write};
use crate::common::*;
use memlane::stats::DropReason;
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use serde_json::Value;

const GUARDED: &str = "mac = \"02:00:00:00:00:00\"\naddresses = [\"10.0.0.5\", \"fd00::5\"]\nanti-spoof = \"all\"\n";

/// A frame of `length` bytes with an IPv4 packet of TCP from `source`.
fn ipv4(from: [u8; 6], to: [u8; 6], source: [u8; 4], length: usize, number: u64) -> Vec<u8> {
    let mut bytes = frame(from, to, length, number);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..26].copy_from_slice(&[0x45, 0, 0, (length - 14) as u8, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes[26..30].copy_from_slice(&source);
    bytes[30..34].copy_from_slice(&[10, 0, 0, 6]);
    bytes
}

/// A neighbour advertisement that `target`, the last byte of an address, is at `link`: RFC 4861, section 4.4.
fn advertisement(from: [u8; 6], to: [u8; 6], target: u8, link: [u8; 6]) -> Vec<u8> {
    let address = |last: u8| [&[0xfd][..], &[0; 14], &[last]].concat();
    let head = [&to[..], &from, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]].concat();
    let message = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &address(target), &[2, 1], &link].concat();
    [head, address(5), address(6), message].concat()
}

/// An ARP reply that `last` of 10.0.0.0/24 is at `from`: RFC 826.
fn arp(from: [u8; 6], last: u8) -> Vec<u8> {
    let sender = [&from[..], &[10, 0, 0, last]].concat();
    [&BROADCAST[..], &from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &sender, &BROADCAST, &[10, 0, 0, 6], &[0; 18]].concat()
}

#[test]
fn a_guest_that_forges_addresses_reaches_nobody() {
    let bed = Bed::with("", &[GUARDED, ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut b]);
    let good = [
        ipv4(mac(0), mac(1), [10, 0, 0, 5], 60, 1),
        ipv4(mac(0), mac(1), [10, 0, 0, 5], 200, 2),
        arp(mac(0), 5),
        advertisement(mac(0), mac(1), 5, mac(0)),
    ];
    let forged = [
        (ipv4(mac(0), mac(1), [10, 0, 0, 6], 60, 3), DropReason::SpoofedIp),
        (ipv4(mac(0), mac(1), [10, 0, 0, 6], 200, 4), DropReason::SpoofedIp),
        (arp(mac(0), 6), DropReason::SpoofedArp),
        (advertisement(mac(0), mac(1), 6, mac(0)), DropReason::SpoofedArp),
        (advertisement(mac(0), mac(1), 5, mac(1)), DropReason::SpoofedArp),
        (ipv4(mac(1), mac(1), [10, 0, 0, 5], 60, 5), DropReason::SpoofedSource),
    ];
    // Each forged frame behind a batch of good ones like it, so that the fast path meets it too.
    for sent in &good {
        for (frame, reason) in &forged {
            let before = bed.drops(0, *reason);
            (0..4).for_each(|_| {
                a.send(sent).unwrap();
            });
            a.send(frame).unwrap();
            a.send(sent).unwrap();
            for _ in 0..5 {
                assert!(b.receive(TIMEOUT).unwrap().bytes == *sent, "only the good ones");
            }
            a.wait_sent(TIMEOUT).unwrap();
            assert_eq!(bed.drops(0, *reason), before + 1, "{reason:?}");
        }
    }
}

/// The headers of the frame that was judged are those that arrive, however the guest divides the frame.
#[test]
fn a_frame_in_many_buffers_is_judged_by_all_its_headers() {
    use memlane_rig::frames::NetHeader;
    use memlane_rig::guest::Layout;
    let bed = Bed::with("", &[GUARDED, ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut b]);
    let (good, forged) = (advertisement(mac(0), mac(1), 5, mac(0)), advertisement(mac(0), mac(1), 6, mac(0)));
    for layout in [Layout::iovecs([12]), Layout::iovecs([12, 14]), Layout::iovecs([12, 70]), Layout::iovecs([12, 60, 10])] {
        let before = bed.drops(0, DropReason::SpoofedArp);
        for bytes in [&forged, &good] {
            a.send_with(&NetHeader::default(), &layout, bytes).unwrap();
            a.wait_sent(TIMEOUT).unwrap();
        }
        assert!(b.receive(TIMEOUT).unwrap().bytes == good, "{layout:?}");
        assert_eq!(bed.drops(0, DropReason::SpoofedArp), before + 1, "{layout:?}");
    }
}

#[test]
fn a_rule_that_changes_holds_for_the_next_frame() {
    let bed = Bed::with("", &[GUARDED, ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut b]);
    let sent = ipv4(mac(0), mac(1), [10, 0, 0, 6], 60, 1);
    let port = bed.daemon().network().port(memlane::id::PortId(0)).unwrap();
    let mut limits = memlane::policy::PortLimits::default();
    for round in 0..10 {
        limits.anti_spoof = memlane::policy::AntiSpoof::All;
        limits.addresses = vec!["10.0.0.5".parse().unwrap()];
        port.policy.set(&limits);
        let before = bed.drops(0, DropReason::SpoofedIp);
        a.send(&sent).unwrap();
        a.wait_sent(TIMEOUT).unwrap();
        assert_eq!(bed.drops(0, DropReason::SpoofedIp), before + 1, "round {round}");
        limits.addresses = vec!["10.0.0.6".parse().unwrap()];
        port.policy.set(&limits);
        a.send(&sent).unwrap();
        assert!(b.receive(TIMEOUT).unwrap().bytes == sent, "round {round}");
    }
}

#[test]
fn a_refused_address_is_told_with_the_key_that_would_allow_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ports = format!("[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n{GUARDED}[[port]]\nname = \"db\"\nnull = true\n");
    write(folder, "net.toml", &format!("control = \"control\"\n{ports}"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let builder = ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let mut web = builder.connect(folder.join("web.sock")).unwrap();
    let forged = arp(mac(0), 6);
    (0..50).for_each(|_| {
        web.send(&forged).unwrap();
        web.wait_sent(TIMEOUT).unwrap();
    });
    let events = || -> Vec<Value> {
        let all = printed(folder, &["events", "net.toml", "--json"]);
        all.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(|event: &Value| event["event"] == "address-refused")
            .collect()
    };
    wait_until(|| !events().is_empty(), "the frame is told");
    let told = events();
    assert_eq!(told.len(), 1, "one a minute");
    assert_eq!((told[0]["port"].as_str(), told[0]["reason"].as_str()), (Some("web"), Some("spoofed-arp")));
    assert_eq!((told[0]["mac"].as_str(), told[0]["ip"].as_str()), (Some("02:00:00:00:00:00"), Some("10.0.0.6")));
    assert_eq!(told[0]["allowed-by"], "addresses = [\"10.0.0.6\"]");
    let text = printed(folder, &["events", "net.toml"]);
    assert!(
        text.contains("web: frame dropped as spoofed-arp, from 02:00:00:00:00:00 with 10.0.0.6; key that would allow it: "),
        "{text}"
    );
    let hex: String = forged.iter().map(|byte| format!("{byte:02x}")).collect();
    let why: Value = serde_json::from_str(&printed(folder, &["why", "net.toml", "web", "--frame", &hex, "--json"])).unwrap();
    let why = why.to_string();
    assert!(why.contains("10.0.0.6 is at 02:00:00:00:00:00") && why.contains(r#"addresses = [\"10.0.0.6\"]"#), "{why}");
}
