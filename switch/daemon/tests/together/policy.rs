//! Policy rules between ports: the frames that pass, rules that change, and their events for the operator.

use crate::command::{Running, memlane, printed, wait_until, write};
use crate::common::*;
use crate::tap;
use memlane::config::Config;
use memlane::control::{Managed, Origin};
use memlane::daemon::Daemon;
use memlane::policy::filter::{Action, Names, PolicyRule, PortRange, Protocol};
use memlane::stats::DropReason;
use memlane_observe::events::From;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// A TCP segment of guest `from` for port `port` of guest `to`, of at least 64 bytes, which the fast path carries.
fn tcp(from: usize, to: usize, port: u16, flags: u8) -> Vec<u8> {
    let mut bytes = frame(mac(from), mac(to), 90, u64::from(port));
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..26].copy_from_slice(&[0x45, 0, 0, 76, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes[26..34].copy_from_slice(&[10, 0, 0, from as u8, 10, 0, 0, to as u8]);
    bytes[34..36].copy_from_slice(&40_000_u16.to_be_bytes());
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[46..48].copy_from_slice(&[0x50, flags]);
    bytes
}

fn rule(protocol: Option<Protocol>, ports: &[u16], action: Action) -> PolicyRule {
    let ports = ports.iter().map(|&port| PortRange { first: port, last: port }).collect();
    PolicyRule { protocol, ports, action: Some(action), ..PolicyRule::default() }
}

/// Sends `sent` and tells if it arrives; a frame that is always allowed follows, so that nothing waits.
fn arrives(from: &mut ToyGuest, to: &mut ToyGuest, sent: &[u8], marker: &[u8]) -> bool {
    from.send(sent).unwrap();
    from.send(marker).unwrap();
    let first = to.receive(TIMEOUT).unwrap().bytes;
    if first == marker {
        return false;
    }
    assert!(first == sent && to.receive(TIMEOUT).unwrap().bytes == marker);
    true
}

/// A frame of address resolution, which passes always.
fn arp(from: usize, to: [u8; 6]) -> Vec<u8> {
    let mut bytes = frame(mac(from), to, 60, 9);
    bytes[12..14].copy_from_slice(&[8, 6]);
    bytes
}

/// Both guests are heard of.
fn announce_by_arp(guests: [&mut ToyGuest; 2]) {
    let [first, second] = guests;
    first.send(&arp(0, BROADCAST)).unwrap();
    assert_eq!(second.receive(TIMEOUT).unwrap().bytes, arp(0, BROADCAST));
    second.send(&arp(1, BROADCAST)).unwrap();
    assert_eq!(first.receive(TIMEOUT).unwrap().bytes, arp(1, BROADCAST));
}

const RULES: &str = r#"
[[policy]]
from = "front"
to = "p2"
protocol = "tcp"
ports = [80, "8000-8099"]
action = "allow"
[[policy]]
protocol = "tcp"
established = true
action = "allow"
[[policy]]
to = ["p2", "back"]
action = "deny"
"#;

/// Three ports and a fourth in a group, each to each, unicast and flooded, on the fast path and beside it.
#[test]
fn ports_reach_those_that_the_rules_allow() {
    let bed = Bed::with(RULES, &["groups = [\"front\"]", "", "", "groups = [\"back\", \"other\"]"]);
    let mut guests: Vec<ToyGuest> = (0..4).map(|index| bed.guest(index)).collect();
    for from in 0..4 {
        let sent = arp(from, BROADCAST);
        guests[from].send(&sent).unwrap();
        for to in (0..4).filter(|&to| to != from) {
            assert!(guests[to].receive(TIMEOUT).unwrap().bytes == sent, "address resolution passes always");
        }
    }
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            let (low, high) = guests.split_at_mut(from.max(to));
            let (a, b) = (&mut low[from.min(to)], &mut high[0]);
            let (sender, receiver) = if from < to { (a, b) } else { (b, a) };
            for (port, flags) in [(80, 2), (8050, 2), (22, 2), (22, 0x10), (8100, 2), (22, 0x04)] {
                let sent = tcp(from, to, port, flags);
                let is_web = port == 80 || port == 8050;
                let wanted = from == 0 && to == 2 && is_web || flags & 0x14 != 0 || to < 2;
                let before = bed.drops(from, DropReason::PolicyDenied);
                for _ in 0..3 {
                    assert_eq!(arrives(sender, receiver, &sent, &arp(from, mac(to))), wanted, "{from} to {to}, port {port}");
                }
                let dropped = bed.drops(from, DropReason::PolicyDenied) - before;
                assert_eq!(dropped, if wanted { 0 } else { 3 });
            }
        }
    }
    // A broadcast reaches the ports that the sender's frames may reach.
    let mut sent = tcp(1, 0, 80, 2);
    sent[..6].fill(0xff);
    let before = bed.drops(1, DropReason::PolicyDenied);
    guests[1].send(&sent).unwrap();
    assert!(guests[0].receive(TIMEOUT).unwrap().bytes == sent);
    guests[2..].iter_mut().for_each(assert_silent);
    assert_eq!(bed.drops(1, DropReason::PolicyDenied) - before, 2, "one for each copy");
}

/// Destinations behind one port, which stands for a router, on the fast path and beside it.
#[test]
fn guests_reach_the_destinations_that_the_rules_allow() {
    let rules = "[[policy]]\nfrom = \"p0\"\ndestinations = [\"10.0.0.0/24\", \"192.0.2.7\"]\naction = \"allow\"\n\
                 [[policy]]\nfrom = \"p0\"\naction = \"deny\"\n";
    let bed = Bed::with(rules, &["", ""]);
    let (mut guest, mut router) = (bed.guest(0), bed.guest(1));
    announce_by_arp([&mut guest, &mut router]);
    let to = |address: [u8; 4]| {
        let mut bytes = tcp(0, 1, 80, 2);
        bytes[30..34].copy_from_slice(&address);
        bytes
    };
    let marker = to([10, 0, 0, 254]);
    for (address, passes) in [([10, 0, 0, 1], true), ([10, 0, 1, 1], false), ([192, 0, 2, 7], true), ([192, 0, 2, 8], false)] {
        let before = bed.drops(0, DropReason::PolicyDenied);
        for _ in 0..3 {
            assert_eq!(arrives(&mut guest, &mut router, &to(address), &marker), passes, "{address:?}");
        }
        assert_eq!(bed.drops(0, DropReason::PolicyDenied) - before, if passes { 0 } else { 3 });
    }
    assert!(arrives(&mut router, &mut guest, &tcp(1, 0, 80, 2), &tcp(1, 0, 81, 2)), "the rules are about frames of p0");
}

/// An IP packet of guest 0 for guest 1.
fn packet(kind: u16, ip: &[u8]) -> Vec<u8> {
    let mut bytes = [&mac(1)[..], &mac(0), &kind.to_be_bytes(), ip].concat();
    bytes.resize(bytes.len().max(64), 0);
    bytes
}

/// TCP by a reset (RFC 9293, section 3.10.7.1), others by ICMP type 3 code 13 (RFC 1812, section 5.2.7.1) and ICMPv6 type 1 code 1 (RFC
/// 4443, section 3.1), at most 100 a second (RFC 4443, section 2.4).
#[test]
fn a_rejected_packet_is_answered_at_once() {
    let rules = "[[policy]]\nfrom = \"p0\"\naction = \"reject\"\n";
    let bed = Bed::with(rules, &["", ""]);
    let (mut guest, mut other) = (bed.guest(0), bed.guest(1));
    announce_by_arp([&mut guest, &mut other]);
    let mut answer_to = |sent: &[u8]| {
        guest.send(sent).unwrap();
        let got = guest.receive(TIMEOUT).unwrap().bytes;
        assert_eq!((&got[..6], &got[6..12]), (&mac(0)[..], &mac(1)[..]));
        got
    };
    let mut syn = tcp(0, 1, 80, 2);
    syn[38..42].copy_from_slice(&1000_u32.to_be_bytes());
    let got = answer_to(&syn);
    assert_eq!((&got[26..34], got[23]), (&[10, 0, 0, 1, 10, 0, 0, 0][..], 6));
    // The segment has 36 bytes behind its header.
    let payload = 76 - 40;
    assert_eq!((&got[38..42], &got[42..46], got[47]), (&[0; 4][..], &(1001_u32 + payload).to_be_bytes()[..], 0x14));
    let mut ack = tcp(0, 1, 80, 0x10);
    ack[42..46].copy_from_slice(&77_u32.to_be_bytes());
    let got = answer_to(&ack);
    assert_eq!((&got[38..42], got[47]), (&77_u32.to_be_bytes()[..], 0x04));
    let udp = [0x9c, 0x40, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    let v4 = [&[0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 0, 10, 0, 0, 1][..], &udp].concat();
    let got = answer_to(&packet(0x800, &v4));
    assert_eq!((got[23], &got[34..36], &got[42..70]), (1, &[3, 13][..], &v4[..28]));
    let v6 = [&[0x60, 0, 0, 0, 0, 12, 17, 64][..], &[0xfd; 16], &[0xfc; 16], &udp].concat();
    let got = answer_to(&packet(0x86dd, &v6));
    assert_eq!((got[20], &got[54..56], &got[62..114]), (58, &[1, 1][..], &v6[..]));
    // A broadcast is dropped without an answer, and so are more than the limit, behind a burst of as many.
    let mut broadcast = packet(0x800, &v4);
    broadcast[..6].fill(0xff);
    guest.send(&broadcast).unwrap();
    assert_silent(&mut guest);
    let (begun, mut answers) = (Instant::now(), 0);
    for _ in 0..8 {
        for _ in 0..50 {
            guest.send(&syn).unwrap();
        }
        guest.wait_sent(TIMEOUT).unwrap();
        answers += std::iter::from_fn(|| guest.receive(POLL_INTERVAL).ok()).count() as u64;
    }
    assert!((50..=101 + 100 * (1 + begun.elapsed().as_secs())).contains(&answers), "{answers} in {:?}", begun.elapsed());
    assert_eq!(bed.drops(0, DropReason::PolicyDenied), 405);
    assert_silent(&mut other);
}

/// The host's kernel behind a TAP port, with its own TCP and ICMP: `connect` fails with the error of a closed port, a datagram with those of ICMP
/// type 3 code 13 and ICMPv6 type 1 code 1.
#[test]
fn a_kernel_whose_packet_is_rejected_fails_at_once() {
    in_a_namespace("policy::a_kernel_whose_packet_is_rejected_fails_at_once", || {
        let text = "[[port]]\nname = \"kernel\"\ntap = \"memlane\"\nmac = \"02:00:00:00:00:01\"\n\
                    [[port]]\nname = \"router\"\nnull = true\nmac = \"02:00:00:00:00:02\"\n\
                    [[policy]]\nfrom = \"kernel\"\naction = \"reject\"\n";
        tap::silence();
        let _daemon = Daemon::start(&Config::parse(text, "test").unwrap()).unwrap();
        tap::set_addresses();
        std::fs::write("/proc/sys/net/ipv6/conf/memlane/disable_ipv6", "0").unwrap();
        tap::ip("addr add fd00::1/64 dev memlane nodad");
        tap::ip("neigh add fd00::2 lladdr 02:00:00:00:00:02 dev memlane");
        for (server, client, wanted) in
            [("10.0.0.2:80", "10.0.0.1:0", libc::EHOSTUNREACH), ("[fd00::2]:80", "[fd00::1]:0", libc::EACCES)]
        {
            let server: SocketAddr = server.parse().unwrap();
            let refused = TcpStream::connect_timeout(&server, TIMEOUT).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED), "{server}: {refused}");
            let socket = UdpSocket::bind(client).unwrap();
            socket.connect(server).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket.send(b"hello").unwrap();
            let refused = socket.recv(&mut [0; 9]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(wanted), "{server}: {refused}");
        }
    });
}

/// Between a port that is refused by default and a router: what it opens passes in both directions, and nothing else.
#[test]
fn a_default_refuses_all_but_allowed_flows_and_their_replies() {
    let rules = "[[policy]]\nfrom = \"boxes\"\ndestinations = [\"10.0.0.0/24\"]\nprotocol = \"tcp\"\nports = [443]\naction = \"allow\"\n\
                 [[policy]]\ndefault = \"deny\"\nmembers = \"boxes\"\n";
    let bed = Bed::with(rules, &["groups = [\"boxes\"]", "", ""]);
    let (mut boxed, mut router, mut other) = (bed.guest(0), bed.guest(1), bed.guest(2));
    for from in 0..3 {
        let guests = [&mut boxed, &mut router, &mut other];
        guests[from].send(&arp(from, BROADCAST)).unwrap();
        for to in (0..3).filter(|&to| to != from) {
            assert_eq!(guests[to].receive(TIMEOUT).unwrap().bytes, arp(from, BROADCAST));
        }
    }
    let reply = |port: u16| {
        let mut bytes = tcp(1, 0, 40_000, 0x10);
        bytes[34..36].copy_from_slice(&port.to_be_bytes());
        bytes
    };
    let (to_box, to_router) = (arp(1, mac(0)), arp(0, mac(1)));
    assert!(!arrives(&mut router, &mut boxed, &reply(443), &to_box), "before the flow is opened");
    for _ in 0..20 {
        assert!(arrives(&mut boxed, &mut router, &tcp(0, 1, 443, 2), &to_router));
        assert!(arrives(&mut router, &mut boxed, &reply(443), &to_box));
        assert!(!arrives(&mut router, &mut boxed, &reply(444), &to_box));
        assert!(!arrives(&mut boxed, &mut router, &tcp(0, 1, 80, 2), &to_router));
    }
    assert!(arrives(&mut router, &mut other, &tcp(1, 2, 80, 2), &arp(1, mac(2))), "others are not refused");
    // A frame that is flooded, to a destination that is not known.
    let mut unknown = tcp(0, 1, 80, 2);
    unknown[5] = 99;
    let before = bed.drops(0, DropReason::PolicyDenied);
    boxed.send(&unknown).unwrap();
    bed.wait_for(|bed| bed.drops(0, DropReason::PolicyDenied) == before + 2, "a copy for each port");
    // A rule that goes takes its flows along, from the next frame on.
    let network = bed.daemon().network();
    let rules = network.policy();
    network.set_policy(&rules[1..]);
    assert!(!arrives(&mut router, &mut boxed, &reply(443), &to_box));
    network.set_policy(&rules);
    assert!(arrives(&mut router, &mut boxed, &reply(443), &to_box));
}

#[test]
fn rules_and_groups_that_change_hold_for_the_next_frame() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let network = bed.daemon().network();
    let (sent, other) = (tcp(0, 1, 80, 2), tcp(0, 1, 443, 2));
    let deny = rule(Some(Protocol::TCP), &[80], Action::Deny);
    for round in 0..5 {
        network.set_policy(&[]);
        (0..4).for_each(|_| assert!(arrives(&mut a, &mut b, &sent, &other), "round {round}: without rules"));
        network.set_policy(std::slice::from_ref(&deny));
        assert!(!arrives(&mut a, &mut b, &sent, &other), "round {round}: the cached verdict is not used any more");
        network.set_policy(&[rule(Some(Protocol::TCP), &[80], Action::Allow), deny.clone()]);
        assert!(arrives(&mut a, &mut b, &sent, &other), "round {round}: an earlier rule");
    }
    network.set_policy(&[PolicyRule { from: Names(vec!["front".into()]), ..deny }]);
    for round in 0..5 {
        assert!(arrives(&mut a, &mut b, &sent, &other), "round {round}: it is in no group");
        bed.daemon().change("p0", |settings| settings.limits.groups = vec!["front".into()]).unwrap();
        assert!(!arrives(&mut a, &mut b, &sent, &other), "round {round}: it is in the group");
        bed.daemon().change("p0", |settings| settings.limits.groups.clear()).unwrap();
    }
}

/// `why`, the event and the file name the same rule, and a reload that allows the frame holds at once.
#[test]
fn a_denied_frame_is_told_with_its_rule_and_the_one_that_would_allow_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ports = "control = \"control\"\n[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\nmac = \"02:00:00:00:00:00\"\n[[port]]\nname = \"db\"\nnull = true\nmac = \"02:00:00:00:00:01\"\n";
    let rules = "[[policy]]\nto = \"db\"\naction = \"deny\"\n";
    write(folder, "net.toml", &format!("{ports}{rules}"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let builder = ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let mut web = builder.connect(folder.join("web.sock")).unwrap();
    let sent = Packet::tcp(Host { mac: mac(0), ..Host::v4(0) }.port(40_000), Host { mac: mac(1), ..Host::v4(1) }.port(5432), 1, [])
        .frame();
    web.send(&sent).unwrap();
    web.wait_sent(TIMEOUT).unwrap();
    let events = || -> Vec<Value> {
        let all = printed(folder, &["events", "net.toml", "--json"]);
        let all = all.lines().map(|line| serde_json::from_str(line).unwrap());
        all.filter(|event: &Value| event["event"] == "policy-denied").collect()
    };
    wait_until(|| !events().is_empty(), "the frame is told");
    let told = &events()[0];
    let rule = "[[policy]] to = \"db\" action = \"deny\" (in line 10)";
    assert_eq!((told["port"].as_str(), told["to"].as_str(), told["rule"].as_str()), (Some("web"), Some("db"), Some(rule)));
    let allowed_by = told["allowed-by"].as_str().unwrap();
    let hexadecimal: String = sent.iter().map(|byte| format!("{byte:02x}")).collect();
    // The lines are as long as those of a terminal.
    let why = || {
        let said = printed(folder, &["why", "net.toml", "web", "--frame", &hexadecimal]);
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = why();
    assert!(said.contains(rule) && said.contains(allowed_by) && said.contains("policy-denied"), "{said}");
    write(folder, "net.toml", &format!("{ports}{}\n{rules}", allowed_by.replace(' ', "\n").replace("\n=\n", " = ")));
    assert!(printed(folder, &["reload", "net.toml"]).contains("changed    policy rules"));
    let said = why();
    assert!(said.contains("would be delivered to db"), "{said}");
}

/// A guest that scans and forges its addresses, beside one that asks for one destination: `memlane denials` lists the latter with the line that
/// would allow it, and the former's record is bounded and its own.
#[test]
fn denials_are_listed_by_destination_with_the_line_that_would_allow_each() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |name: &str, kind: &str| format!("[[port]]\nname = \"{name}\"\n{kind}\n");
    let ports = port("scanner", "vhost-user = \"scanner.sock\"")
        + &port("box", "vhost-user = \"box.sock\"\ngroups = [\"boxes\"]\nlabels = { task = \"42\" }")
        + &port("router", "null = true\nmac = \"02:00:00:00:00:01\"");
    let rules = "[[policy]]\nfrom = \"boxes\"\ndestinations = [\"192.0.2.0/24\"]\naction = \"allow\"\n\
                 [[policy]]\ndefault = \"deny\"\nmembers = [\"boxes\", \"scanner\"]\n";
    write(folder, "net.toml", &format!("control = \"control\"\n{ports}{rules}"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let guest = |index, name: &str| {
        let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
        builder.connect(folder.join(format!("{name}.sock"))).unwrap()
    };
    let (mut scanner, mut boxed) = (guest(2, "scanner"), guest(3, "box"));
    let to = |address: u32, source: u32| {
        let mut bytes = tcp(3, 1, 443, 2);
        bytes[30..34].copy_from_slice(&address.to_be_bytes());
        bytes[8..12].copy_from_slice(&source.to_be_bytes());
        bytes
    };
    for n in 0..600_u32 {
        scanner.send(&to(n << 8, n | 0x0100_0000)).unwrap();
        if n % 50 == 0 {
            scanner.wait_sent(TIMEOUT).unwrap();
        }
    }
    for _ in 0..5 {
        boxed.send(&to(0x0a00_0009, 3)).unwrap();
    }
    let mut unknown = to(0x0a00_0009, 3);
    unknown[5] = 99;
    boxed.send(&unknown).unwrap();
    boxed.wait_sent(TIMEOUT).unwrap();
    scanner.wait_sent(TIMEOUT).unwrap();
    let denials = |arguments: &[&str]| -> Vec<Value> {
        let all = printed(folder, &[&["denials", "net.toml", "--json"], arguments].concat());
        serde_json::from_str::<Value>(&all).unwrap().as_array().unwrap().clone()
    };
    let frames = |port: &Value| port["denials"].as_array().unwrap().iter().map(|one| one["frames"].as_u64().unwrap()).sum::<u64>();
    let of = |name: &str| denials(&[name]).remove(0);
    wait_until(|| frames(&of("scanner")) + of("scanner")["unlisted"].as_u64().unwrap() >= 600, "every refused frame is counted");
    assert_eq!(of("scanner")["denials"].as_array().unwrap().len(), 64);
    // Other workers may flood later.
    wait_until(|| of("box")["denials"].as_array().unwrap().len() == 2, "both destinations are listed");
    let listed = of("box");
    assert_eq!((&listed["labels"]["task"], &listed["unlisted"]), (&"42".into(), &0.into()));
    let listed = listed["denials"].as_array().unwrap();
    let unicast = listed.iter().find(|one| one["flooded"].is_null()).unwrap();
    let rule = "[[policy]] default = \"deny\" members = [\"boxes\", \"scanner\"] (in line 18)";
    assert_eq!((unicast["to"].as_str(), unicast["rule"].as_str(), &unicast["frames"]), (Some("router"), Some(rule), &5.into()));
    let line =
        r#"[[policy]] from = "box" to = "router" destinations = ["10.0.0.9"] protocol = "tcp" ports = [443] action = "allow""#;
    assert_eq!(unicast["allowed-by"].as_str(), Some(line));
    let flooded = listed.iter().find(|one| one["flooded"] == true).unwrap();
    assert!((1..=2).contains(&flooded["frames"].as_u64().unwrap()), "a copy for each port that receives: {listed:?}");
    let text = printed(folder, &["denials", "net.toml"]);
    assert!(text.contains("box task=42\n") && text.contains(line) && text.contains("of further destinations"), "{text}");
    // Ten events of each port a second at most, with labels.
    let events = || -> Vec<Value> {
        let all = printed(folder, &["events", "net.toml", "--json"]);
        all.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(|event: &Value| event["event"] == "policy-denied")
            .collect()
    };
    wait_until(|| events().iter().any(|event| event["port"] == "box" && event["destination"] == "10.0.0.9"), "the box is told");
    assert!(events().iter().filter(|event| event["port"] == "box").all(|event| event["labels"]["task"] == "42"));
    // The line that is told, before the rule, allows the frame, and the record stays for the operator.
    let allowing = line.replace("[[policy]] ", "[[policy]]\n").replace("\" ", "\"\n").replace("] ", "]\n");
    write(folder, "net.toml", &format!("control = \"control\"\n{ports}{allowing}\n{rules}"));
    printed(folder, &["reload", "net.toml"]);
    boxed.send(&to(0x0a00_0009, 3)).unwrap();
    boxed.wait_sent(TIMEOUT).unwrap();
    let listed = of("box")["denials"].clone();
    let unicast = listed.as_array().unwrap().iter().find(|one| one["flooded"].is_null()).unwrap();
    assert_eq!(unicast["frames"], 5);
    assert_eq!(denials(&[]).len(), 2);
}

/// An audit refuses nothing, at any place among the rules and as a default, and lists each frame once that "deny" in its place would refuse; on the
/// fast path, flooded, and beside a trial of another file.
#[test]
fn frames_that_audits_and_tried_rules_would_refuse_pass_and_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ports = "control = \"control\"\n\
                 [[port]]\nname = \"box\"\nvhost-user = \"box.sock\"\nlabels = { task = \"42\" }\n\
                 [[port]]\nname = \"db\"\nnull = true\nmac = \"02:00:00:00:00:01\"\n";
    let rule = |keys: &str| format!("[[policy]]\n{}\n", keys.replace("; ", "\n"));
    let allow = rule("destinations = [\"10.0.0.1\"]; action = \"allow\"");
    let audits = rule("to = \"db\"; destinations = [\"10.0.0.0/24\"]; action = \"audit\"")
        + &rule("destinations = [\"192.0.2.0/24\"]; action = \"deny\"")
        + &rule("default = \"audit\"; members = \"box\"");
    write(folder, "net.toml", &format!("{ports}{allow}{audits}"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let builder = ToyGuest::builder().mac(mac(3)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let mut boxed = builder.connect(folder.join("box.sock")).unwrap();
    let to = |address: [u8; 4]| {
        let mut bytes = tcp(3, 1, 443, 2);
        bytes[30..34].copy_from_slice(&address);
        bytes
    };
    let mut send = |address, count| {
        for _ in 0..count {
            boxed.send(&to(address)).unwrap();
        }
        boxed.wait_sent(TIMEOUT).unwrap();
    };
    let received = || -> u64 {
        let report: Value = serde_json::from_str(&printed(folder, &["show", "net.toml", "db", "--json"])).unwrap();
        report["receive-frames"].as_u64().unwrap()
    };
    let (allowed, audited, denied, by_default) = ([10, 0, 0, 1], [10, 0, 0, 9], [192, 0, 2, 1], [198, 51, 100, 1]);
    send(allowed, 50);
    send(audited, 100);
    send(denied, 3);
    send(by_default, 7);
    wait_until(|| received() == 157, "audits refuse nothing");
    let listed = |arguments: &[&str]| -> Vec<(String, u64, bool)> {
        let all: Value = serde_json::from_str(&printed(folder, arguments)).unwrap();
        let denials = all.as_array().unwrap().iter().flat_map(|port| port["denials"].as_array().unwrap());
        let one =
            |one: &Value| (one["destination"].as_str().unwrap().into(), one["frames"].as_u64().unwrap(), one["audited"] == true);
        let mut listed: Vec<_> = denials.map(one).collect();
        listed.sort();
        listed
    };
    let wanted = [("10.0.0.9".into(), 100, true), ("192.0.2.1".into(), 3, false), ("198.51.100.1".into(), 7, true)];
    assert_eq!(listed(&["denials", "net.toml", "--json"]), wanted);
    let text = printed(folder, &["denials", "net.toml"]);
    assert!(
        text.contains("box task=42")
            && text.contains("100 frames to db, passed, would be refused, destination 10.0.0.9 tcp port 443")
    );
    let events = || printed(folder, &["events", "net.toml", "--json"]).matches("\"event\":\"policy-audited\"").count();
    wait_until(|| events() == 2, "each destination is told");

    write(folder, "new.toml", &rule("from = \"box\"; destinations = [\"10.0.0.0/24\"]; action = \"deny\""));
    let mut trial = memlane(folder, &["policy", "try", "new.toml", "net.toml", "--for", "2s", "--json"]);
    let mut trial = trial.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut note = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(trial.stderr.take().unwrap()), &mut note).unwrap();
    assert!(note.contains("the rules of new.toml are tried for 2 s"), "{note}");
    let another = memlane(folder, &["policy", "try", "new.toml", "net.toml"]).output().unwrap();
    assert!(String::from_utf8_lossy(&another.stderr).contains("a policy is on trial already: wait"), "one at a time: {another:?}");
    send(allowed, 20);
    send(denied, 1);
    send(by_default, 4);
    assert!(trial.wait().unwrap().success());
    let mut told = String::new();
    std::io::Read::read_to_string(trial.stdout.as_mut().unwrap(), &mut told).unwrap();
    let tried: Value = serde_json::from_str(&told).unwrap();
    let one = &tried[0]["denials"][0];
    assert_eq!((&tried[0]["port"], tried[0]["denials"].as_array().unwrap().len()), (&"box".into(), 1), "{tried}");
    assert_eq!((&one["destination"], &one["frames"], &one["audited"]), (&"10.0.0.1".into(), &20.into(), &true.into()));
    assert!(one["rule"].as_str().unwrap().ends_with("(in line 1)"), "{one}");
    wait_until(|| received() == 157 + 24, "nor do rules on trial");
    let events = printed(folder, &["events", "net.toml", "--json"]);
    for event in ["policy-trial-started", "policy-trial-ended"] {
        let told = events.lines().find(|line| line.contains(&format!("\"event\":\"{event}\""))).unwrap();
        assert!(told.contains("\"user\":\"root\""), "{told}");
    }
}

/// A client that ends its trial late ends no other's, and has its own result all the same.
#[test]
fn a_trial_is_ended_by_its_number() {
    let net = Managed::start(Config::named("net").unwrap(), Origin::default()).unwrap();
    let document = serde_json::json!({ "policy": [{ "action": "deny" }] });
    let begin = || net.try_policy(&document, Duration::from_millis(50));
    let next = || {
        let begun = std::cell::Cell::new(0);
        wait_until(|| begin().is_ok_and(|trial| begun.replace(trial) != trial), "the one before ends by itself");
        begun.get()
    };
    let first = begin().unwrap();
    assert!(begin().is_err(), "one at a time");
    let second = next();
    assert!(net.end_trial(first).unwrap().is_empty(), "the result of the one before is kept");
    let third = next();
    assert!(first != second && second != third);
    assert!(net.end_trial(first).is_err_and(|refusal| refusal.to_string().contains(&format!("there is no trial {first}"))));
    assert!(net.tried(Some(third)).is_ok() && net.end_trial(third).is_ok());
    assert!(net.tried(None).is_err() && net.end_trial(third).is_err());
    let events = net.events(From::Oldest).unwrap().take(100).records;
    assert_eq!(events.iter().filter(|record| record.event.name() == "policy-trial-ended").count(), 3);
    net.stop();
}
