//! Guests of a segment with a subnet get addresses and names, which stay theirs: over restarts, takeovers, and against other guests.

use std::net::Ipv6Addr;
use std::path::Path;

use memlane::port::default_address;
use memlane::stats::DropReason;
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::command::{Running, memlane, printed, write};
use crate::common::*;
use crate::fuzz::names::{dhcp, dns};

const SEGMENT: &str = "[[segment]]\nname = \"lan\"\nsubnet = \"10.0.0.0/24\"\nsubnet6 = \"fd00::/64\"\n";

/// The DHCP message type of `frame` and the address in it, if it is from a DHCP server.
fn offer(frame: &[u8]) -> Option<(u8, [u8; 4])> {
    let is_reply = frame.get(12..14)? == [8, 0] && frame.get(34..38)? == [0, 67, 0, 68];
    let options = frame.get(42 + 240..)?;
    let kind = options.windows(3).find(|bytes| bytes[..2] == [53, 1])?[2];
    is_reply.then(|| Some((kind, *frame.get(42 + 16..)?.first_chunk()?)))?
}

/// Has `guest`, number `n`, ask for an address until it has one, as a client does.
fn lease(guest: &mut ToyGuest, n: u8) -> [u8; 4] {
    let mut ask = |frame: &[u8], wanted: u8| {
        for _ in 0..20 {
            guest.send(frame).unwrap();
            while let Ok(frame) = guest.receive(TIMEOUT) {
                if let Some((kind, address)) = offer(&frame.bytes).filter(|(kind, _)| *kind == wanted) {
                    assert_eq!(kind, wanted);
                    return address;
                }
            }
        }
        panic!("no answer of type {wanted}");
    };
    let [a, b, c, d] = ask(&dhcp(n, &[53, 1, 1]), 2);
    ask(&dhcp(n, &[53, 1, 3, 50, 4, a, b, c, d]), 5)
}

fn net(folder: &Path, ports: usize) {
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n");
    write(folder, "net.toml", &format!("{SEGMENT}{}", (0..ports).map(port).collect::<String>()));
}

fn guest(folder: &Path, index: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(folder.join(format!("p{index}.sock"))).unwrap()
}

/// Leases of the running network: port and address.
fn leases(folder: &Path) -> Vec<(String, String)> {
    let names: Value = serde_json::from_str(&printed(folder, &["leases", "net.toml", "--json"])).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let leases = names[0]["leases"].as_array().unwrap();
    leases.iter().map(|lease| (text(&lease["port"]), text(&lease["address"]))).collect()
}

fn told([a, b, c, d]: [u8; 4]) -> String {
    format!("{a}.{b}.{c}.{d}")
}

#[test]
fn a_guest_gets_an_address_and_a_name_and_others_hear_none_of_it() {
    let bed = Bed::with(SEGMENT, &["", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let address = lease(&mut a, 0);
    let own = default_address("test", "names:lan").bytes();
    b.send(&dns_query(1, b"\x02p0\x03lan\0\0\x01\0\x01")).unwrap();
    let answer = loop {
        let frame = b.receive(TIMEOUT).unwrap().bytes;
        // Guests hear broadcasts of others, and no answers to them.
        assert_eq!(offer(&frame), None);
        if frame[..6] == mac(1) {
            break frame;
        }
    };
    assert!(answer[6..12] == own && answer.ends_with(&address), "{answer:02x?}");
    // A frame with a checksum that the guest left to the device is answered, too.
    let header =
        memlane_rig::frames::NetHeader { needs_checksum: true, checksum_start: 34, checksum_offset: 6, ..Default::default() };
    a.send_with(&header, &memlane_rig::guest::Layout::single(), &dhcp(0, &[53, 1, 1])).unwrap();
    assert_eq!(offer(&a.receive(TIMEOUT).unwrap().bytes), Some((2, address)));
}

/// An ARP request of guest `n`, which has the address `own`, for `target` (RFC 826).
fn arp(n: usize, own: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [&BROADCAST[..], &mac(n), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &mac(n), &own, &[0; 6], &target, &[0; 18]].concat()
}

/// A router solicitation of guest `n` (RFC 4861, section 4.1).
fn router_solicitation(n: usize) -> Vec<u8> {
    let ip = [&[0x60, 0, 0, 0, 0, 8, 58, 255][..], &[0; 16], &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]].concat();
    [&[0x33, 0x33, 0, 0, 0, 2][..], &mac(n), &[0x86, 0xdd], &ip, &[133, 0, 0x7b, 0xb8, 0, 0, 0, 0]].concat()
}

/// A query of guest `n` for `question`, to the responder's MAC address.
fn dns_query(n: usize, question: &[u8]) -> Vec<u8> {
    let mut query = dns(question);
    query[..6].copy_from_slice(&default_address("test", "names:lan").bytes());
    query[6..12].copy_from_slice(&mac(n));
    query
}

/// Rules are about frames between ports: DHCP, DNS and router advertisements need none.
#[test]
fn policy_rules_judge_no_request_to_the_segments_own_server() {
    let bed = Bed::with(&format!("{SEGMENT}[[policy]]\naction = \"deny\"\n"), &["", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    lease(&mut a, 0);
    let address = lease(&mut b, 1);
    a.send(&router_solicitation(0)).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes[54], 134, "a router advertisement");
    a.send(&dns_query(0, b"\x02p1\x03lan\0\0\x01\0\x01")).unwrap();
    assert!(a.receive(TIMEOUT).unwrap().bytes.ends_with(&address));
    assert_eq!(bed.drops(0, DropReason::PolicyDenied), 0);
    // The same to another guest is denied.
    let mut to_guest = dns_query(0, b"\x02p1\x03lan\0\0\x01\0\x01");
    to_guest[..6].copy_from_slice(&mac(1));
    a.send(&to_guest).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.drops(0, DropReason::PolicyDenied), 1);
}

/// Requests to servers reach the responder and ports that may serve; questions for leased addresses are answered by the switch.
#[test]
fn other_guests_hear_neither_requests_to_servers_nor_questions_for_leased_addresses() {
    let bed = Bed::with(SEGMENT, &["", "", "", "may-serve = [\"dhcp\"]"]);
    let (mut a, mut b, mut c, mut server) = (bed.guest(0), bed.guest(1), bed.guest(2), bed.guest(3));
    let addresses = [lease(&mut a, 0), lease(&mut b, 1)];
    let ask = arp(0, addresses[0], addresses[1]);
    a.send(&ask).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes[6..12], mac(1), "by the switch");
    // The responder's own address is answered for, too.
    a.send(&arp(0, addresses[0], [10, 0, 0, 1])).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes[6..12], default_address("test", "names:lan").bytes());
    a.send(&router_solicitation(0)).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes[54], 134, "a router advertisement");
    // Another broadcast reaches all, as the first frame of a guest without may-serve.
    let last = arp(0, addresses[0], [10, 0, 0, 99]);
    a.send(&last).unwrap();
    for guest in [&mut b, &mut c] {
        assert!(guest.receive(TIMEOUT).unwrap().bytes == last);
    }
    assert_eq!(&server.receive(TIMEOUT).unwrap().bytes[34..38], &[0, 68, 0, 67]);
}

/// RFC 2131, section 3.1: the server checks that an address is not in use, here by the address map.
#[test]
fn an_address_that_another_guest_uses_is_not_leased() {
    let given = |used: Option<[u8; 4]>| {
        let bed = Bed::with(SEGMENT, &["", ""]);
        let (mut a, mut b) = (bed.guest(0), bed.guest(1));
        if let Some(address) = used {
            let announcement = arp(1, address, address);
            b.send(&announcement).unwrap();
            assert!(a.receive(TIMEOUT).unwrap().bytes == announcement);
        }
        lease(&mut a, 0)
    };
    let first = given(None);
    assert_ne!(given(Some(first)), first);
}

#[test]
fn an_address_that_was_leased_passes_anti_spoofing_and_no_other() {
    let guarded = "mac = \"02:00:00:00:00:00\"\nanti-spoof = \"all\"\n";
    let bed = Bed::with(SEGMENT, &[guarded, ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let ipv4 = |source: [u8; 4]| {
        let mut bytes = frame(mac(0), mac(1), 60, 7);
        bytes[12..26].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes[26..30].copy_from_slice(&source);
        bytes
    };
    let address = lease(&mut a, 0);
    while b.receive(POLL_INTERVAL).is_ok() {}
    a.send(&ipv4(address)).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, ipv4(address));
    let [x, y, z, last] = address;
    a.send(&ipv4([x, y, z, last ^ 1])).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.drops(0, DropReason::SpoofedIp), 1);
}

/// An ICMPv6 message of guest `n` in a frame (RFC 8200, section 3; RFC 4443, section 2.3).
fn icmp6(n: usize, source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let (source, destination) = (source.octets(), destination.octets());
    let mut message = message.to_vec();
    let pseudo = [&source[..], &destination, &(message.len() as u32).to_be_bytes(), &[0, 0, 0, 58]].concat();
    let words = [&pseudo[..], &message].concat();
    let mut sum: u32 = words.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!sum as u16).to_be_bytes());
    let length = (message.len() as u16).to_be_bytes();
    let head = [&[0x33, 0x33][..], &destination[12..], &mac(n), &[0x86, 0xdd, 0x60, 0, 0, 0], &length, &[58, 255]].concat();
    [&head[..], &source, &destination, &message].concat()
}

/// A probe of guest `n` for `target` (RFC 4862, section 5.4.2).
fn probe(n: usize, target: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().unwrap();
    let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    icmp6(n, Ipv6Addr::UNSPECIFIED, memlane::headers::solicited_node(target), &message)
}

/// A UDP datagram of guest 0 to guest 1, from `source`.
fn udp6(source: &str) -> Vec<u8> {
    let source: Ipv6Addr = source.parse().unwrap();
    let head = [&mac(1)[..], &mac(0), &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 17, 64], &source.octets(), &[0xfd; 16]].concat();
    [&head[..], &[3, 0xe8, 7, 0xd0, 0, 16, 0xab, 0xcd, 1, 2, 3, 4, 5, 6, 7, 8]].concat()
}

/// Guests make temporary (RFC 8981) and stable private addresses (RFC 7217, RFC 8064) of the prefix that memlane tells them; the first port that
/// probes for one has it (RFC 6620).
#[test]
fn an_address_that_a_guest_makes_of_the_prefix_passes_anti_spoofing_unless_another_has_it() {
    let guarded = "mac = \"02:00:00:00:00:00\"\naddresses = [\"10.0.0.5\"]\nanti-spoof = \"all\"\n";
    let bed = Bed::with(SEGMENT, &[guarded, ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    b.send(&probe(1, "fd00::77")).unwrap();
    while b.receive(POLL_INTERVAL).is_ok() {}
    for address in ["fd00::42aa:1:2:3", "fd00::b4d9:c92:7e2b:17ad"] {
        a.send(&probe(0, address)).unwrap();
        // The responder asks in its own name; the probe reaches no other guest.
        let asked = b.receive(TIMEOUT).unwrap().bytes;
        assert!(asked[54] == 135 && asked[6..12] == default_address("test", "names:lan").bytes(), "{asked:02x?}");
        a.send(&udp6(address)).unwrap();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, udp6(address));
    }
    while a.receive(POLL_INTERVAL).is_ok() {}
    a.send(&probe(0, "fd00::77")).unwrap();
    let told = a.receive(TIMEOUT).unwrap().bytes;
    assert!(told[54] == 136 && told.ends_with(&mac(1)), "it hears of the owner: {told:02x?}");
    a.send(&udp6("fd00::77")).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.drops(0, DropReason::SpoofedIp), 1);
    // A solicitation from a stable private link-local address.
    let own: Ipv6Addr = "fe80::1234:5678:9abc:def0".parse().unwrap();
    a.send(&probe(0, &own.to_string())).unwrap();
    while a.receive(POLL_INTERVAL).is_ok() {}
    let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    a.send(&icmp6(0, own, all_routers, &[&[133, 0, 0, 0, 0, 0, 0, 0, 1, 1][..], &mac(0)].concat())).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes[54], 134, "a router advertisement");
}

/// A guest with more machines than its port may have leases for: no lease that runs ends, and the operator is told.
#[test]
fn a_machine_that_gets_no_address_is_told_by_why() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = "[[port]]\nname = \"p0\"\nvhost-user = \"p0.sock\"\nleases = 1\n";
    write(folder, "net.toml", &format!("{SEGMENT}{port}"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let mut guest = guest(folder, 0);
    let address = lease(&mut guest, 0);
    guest.send(&dhcp(9, &[53, 1, 1])).unwrap();
    wait_until(
        || printed(folder, &["why", "net.toml", "p0"]).contains("no-address"),
        "why tells of the machine without an address",
    );
    assert_eq!(leases(folder), [("p0".to_owned(), told(address))]);
    assert!(printed(folder, &["why", "net.toml", "p0"]).contains("key leases"));
    printed(folder, &["set", "net.toml", "p0", "--leases", "2"]);
    lease(&mut guest, 9);
    assert_eq!(leases(folder).len(), 2);
}

/// Another process started with `up` and the arguments `state` takes the network over.
fn take_over(folder: &Path, state: &[&str], running: &mut Running) {
    let other = Running::start(memlane(folder, &[state, &["--takeover"]].concat()));
    let mut before = std::mem::replace(running, other);
    wait_until(|| before.0.try_wait().unwrap().is_some(), "the process that served before ends");
}

fn end_at_once(running: &mut Running) {
    kill(Pid::from_raw(running.0.id() as i32), Signal::SIGKILL).unwrap();
    running.0.wait().unwrap();
}

#[test]
fn leases_outlast_a_restart_and_a_takeover() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 2);
    let state = ["up", "net.toml", "--state", "state.toml"];
    let mut running = Running::start(memlane(folder, &state));
    let mut guests = [guest(folder, 0), guest(folder, 1)];
    let addresses = [lease(&mut guests[0], 0), lease(&mut guests[1], 1)];
    let mut wanted = [("p0".to_owned(), told(addresses[0])), ("p1".to_owned(), told(addresses[1]))];
    wanted.sort_by_key(|(_, address)| address.parse::<std::net::Ipv4Addr>().unwrap());
    assert_eq!(leases(folder), wanted);
    assert!(printed(folder, &["leases", "net.toml"]).contains("p0.lan"));
    let stored = || std::fs::read_to_string(folder.join("state.toml")).unwrap_or_default();
    wait_until(|| addresses.iter().all(|address| stored().contains(&told(*address))), "the leases are stored");

    take_over(folder, &state, &mut running);
    assert_eq!(leases(folder), wanted);
    assert_eq!(lease(&mut guests[0], 0), addresses[0]);

    end_at_once(&mut running);
    drop(guests);
    let _running = Running::start(memlane(folder, &state));
    assert_eq!(leases(folder), wanted);
    let mut second = guest(folder, 1);
    assert_eq!(lease(&mut second, 1), addresses[1]);
}

/// The guest was saved by `virsh save`: its hook detaches the port, and attaches it for `virsh restore`, where the guest asks for no lease.
#[test]
fn a_lease_outlasts_a_detach_and_then_a_takeover_and_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 1);
    let state = ["up", "net.toml", "--state", "state.toml"];
    let attach = || printed(folder, &["attach", "net.toml", "vm7", "--vhost-user", "p1.sock"]);
    let detach = || printed(folder, &["detach", "net.toml", "vm7"]);
    let mut running = Running::start(memlane(folder, &state));
    attach();
    let address = lease(&mut guest(folder, 1), 1);
    detach();
    assert_eq!(leases(folder), [], "the port has none while it is away");
    let stored = std::fs::read_to_string(folder.join("state.toml")).unwrap();
    assert!(stored.contains(&told(address)), "{stored}");

    take_over(folder, &state, &mut running);
    attach();
    assert_eq!(leases(folder), [("vm7".to_owned(), told(address))], "after a takeover");
    detach();

    end_at_once(&mut running);
    let _running = Running::start(memlane(folder, &state));
    attach();
    assert_eq!(leases(folder), [("vm7".to_owned(), told(address))], "after a kill");
}
