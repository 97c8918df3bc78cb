//! Twins: guests that were restored from one snapshot have one MAC address and one IP address inside, and each its own outside.

use std::net::IpAddr;

use crate::command::{Running, memlane, printed, write};
use crate::common::*;
use memlane::frame::MacAddress;
use memlane::policy::rules::Inside;
use memlane::port::settings::PortSettings;
use memlane::stats::DropReason;
use memlane_rig::frames::control::{announcement, arp_request};
use memlane_rig::frames::{GsoKind, Host, Packet, check};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Frame, Layout, SendBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use serde_json::Value;

/// Twins that speak at once.
const TWINS: usize = 100;
/// The guest of the snapshot: host 200, on no port.
const BASE: u16 = 200;

fn base(is_v6: bool) -> Host {
    if is_v6 { Host::v6(BASE) } else { Host::v4(BASE) }
}

fn host(index: usize, is_v6: bool) -> Host {
    if is_v6 { Host::v6(index as u16) } else { Host::v4(index as u16) }
}

/// Lines of port `index`: its own addresses.
fn own(index: usize) -> String {
    let [v4, v6] = [false, true].map(|is_v6| host(index, is_v6).ip);
    format!("mac = \"02:00:00:00:00:{index:02x}\"\naddresses = [\"{v4}\", \"{v6}\"]\nanti-spoof = \"all\"\n")
}

/// The same of a twin.
fn twin(index: usize) -> String {
    let [v4, v6] = [false, true].map(|is_v6| base(is_v6).ip);
    format!("{}inside = {{ mac = \"02:00:00:00:00:c8\", addresses = [\"{v4}\", \"{v6}\"] }}\n", own(index))
}

/// The IP addresses and ports of a frame without tags and options, and its payload.
fn parts(frame: &[u8]) -> ([IpAddr; 2], [u16; 2], &[u8]) {
    let address = |at: usize, length: usize| -> IpAddr {
        match length {
            4 => IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap()),
            _ => IpAddr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap()),
        }
    };
    let (first, length, transport, protocol) =
        if frame[12..14] == [8, 0] { (26, 4, 34, frame[23]) } else { (22, 16, 54, frame[20]) };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let payload = transport + if protocol == 6 { 20 } else { 8 };
    ([address(first, length), address(first + length, length)], [port(transport), port(transport + 2)], &frame[payload..])
}

/// The next frame of TCP or UDP that `guest` receives; its checksums and offloads are right.
fn next(guest: &mut ToyGuest) -> Frame {
    loop {
        let frame = guest.receive(TIMEOUT).unwrap();
        let is_ip = matches!(frame.bytes[12..14], [8, 0] | [0x86, 0xdd]);
        if is_ip && [6, 17].contains(&frame.bytes[if frame.bytes[12] == 8 { 23 } else { 20 }]) {
            check(&frame.header, &frame.bytes).unwrap_or_else(|flaw| panic!("{flaw:?}: {:02x?}", frame.bytes));
            return frame;
        }
    }
}

/// All twins send the same, with their number in the payload, at once; the server sees each under its own addresses, and answers in one GSO frame,
/// which no one segments.
#[test]
fn a_hundred_twins_of_one_guest_talk_to_one_server_at_once() {
    let lines: Vec<String> = (0..=TWINS).map(|index| if index == 0 { own(0) } else { twin(index) }).collect();
    let bed = Bed::with("", &lines.iter().map(String::as_str).collect::<Vec<_>>());
    let guest = |index: usize| {
        let builder = bed.builder(index).with(features::GUEST_USO4);
        let few = SendBuffers { count: 8, size: 16 << 10 };
        bed.guest_like(index, if index == 0 { builder } else { builder.memory(MemoryPlan::new(8 << 20)).send_buffers(few) })
    };
    let mut guests: Vec<ToyGuest> = (0..=TWINS).map(guest).collect();
    let (server, twins) = guests.split_first_mut().unwrap();
    for is_v6 in [false, true] {
        let to = host(0, is_v6).port(80);
        for (index, guest) in (1..).zip(twins.iter_mut()) {
            let packet = Packet::tcp(base(is_v6).port(40_000), to, 7, vec![index as u8; 5000]);
            // A whole frame with all checksums, one with a partial checksum, or a GSO frame.
            match index % 3 {
                0 => drop(guest.send(&Packet::tcp(base(is_v6).port(40_000), to, 7, vec![index as u8; 500]).frame()).unwrap()),
                1 => {
                    let (header, bytes) = Packet::udp(base(is_v6).port(40_000), to, vec![index as u8; 700]).partial();
                    guest.send_with(&header, &Layout::single(), &bytes).unwrap();
                }
                _ => {
                    let (header, bytes) = packet.gso(1400);
                    guest.send_with(&header, &Layout::single(), &bytes).unwrap();
                }
            }
        }
        let mut seen = [false; TWINS + 1];
        for _ in 0..TWINS {
            let frame = next(server);
            let ([source, destination], ports, payload) = parts(&frame.bytes);
            let index = usize::from(payload[0]);
            let from = host(index, is_v6);
            assert!(payload.iter().all(|byte| usize::from(*byte) == index), "{payload:02x?}");
            assert_eq!((source, destination, ports), (from.ip, to.ip, [40_000, 80]), "twin {index}");
            assert_eq!(&frame.bytes[..12], [to.mac, from.mac].concat(), "twin {index}");
            assert_eq!(frame.header.gso != GsoKind::None, index % 3 == 2, "twin {index}: {:?}", frame.header);
            assert!(!std::mem::replace(&mut seen[index], true), "twin {index} speaks once");
            let (header, bytes) = Packet::tcp(to, from.port(40_000), 9, vec![index as u8; 9000]).gso(1000);
            server.send_with(&header, &Layout::single(), &bytes).unwrap();
        }
        for (index, guest) in (1..).zip(twins.iter_mut()) {
            let frame = next(guest);
            let ([source, destination], ports, payload) = parts(&frame.bytes);
            let inside = base(is_v6);
            assert_eq!((source, destination, ports), (to.ip, inside.ip, [80, 40_000]), "twin {index}");
            assert_eq!(&frame.bytes[..12], [inside.mac, to.mac].concat(), "twin {index}");
            assert!(frame.header.gso == GsoKind::Tcp6 || frame.header.gso == GsoKind::Tcp4, "it stays whole: {:?}", frame.header);
            assert!(payload.len() == 9000 && payload.iter().all(|byte| usize::from(*byte) == index), "twin {index}");
        }
    }
    for index in 0..=TWINS {
        assert!(bed.totals(index).drops.is_empty(), "{index}: {:?}", bed.totals(index).drops);
    }
}

/// Twins reach each other, also where one is a broadcast away; without offloads, segments are cut of the frame with the addresses inside.
#[test]
fn twins_reach_each_other_and_a_guest_without_offloads_gets_right_segments() {
    let bed = Bed::with("", &[&twin(0), &twin(1)]);
    let mut a = bed.guest(0);
    let mut b = bed.guest_like(1, bed.builder(1).without(features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_CSUM));
    // A request (RFC 826): the target is known by its address outside.
    let ask = |sender: Host, target: Host| {
        let (IpAddr::V4(own), IpAddr::V4(wanted)) = (sender.ip, target.ip) else { panic!("of IPv4") };
        arp_request(sender.mac, own, wanted)
    };
    a.send(&ask(base(false), host(1, false))).unwrap();
    // The switch answers for it; the answer names the asker's addresses inside.
    let answer = a.receive(TIMEOUT).unwrap().bytes;
    assert_eq!((&answer[..6], &answer[22..28], &answer[28..32]), (&base(false).mac[..], &mac(1)[..], &[10, 0, 0, 1][..]));
    assert_eq!((&answer[32..38], &answer[38..42]), (&base(false).mac[..], &[10, 0, 0, 200][..]));
    for is_v6 in [false, true] {
        let (header, bytes) = Packet::tcp(base(is_v6), host(1, is_v6), 1, vec![7; 2500]).gso(1000);
        a.send_with(&header, &Layout::single(), &bytes).unwrap();
        let mut payload = 0;
        while payload < 2500 {
            let frame = next(&mut b);
            let ([source, destination], _, bytes) = parts(&frame.bytes);
            assert_eq!((source, destination), (host(0, is_v6).ip, base(is_v6).ip));
            assert!(!frame.header.needs_checksum && bytes.iter().all(|byte| *byte == 7));
            payload += bytes.len();
        }
    }
    // Without addresses that the switch knows, the request is flooded, and reaches the other under its address inside.
    a.send(&ask(base(false), host(77, false))).unwrap();
    let heard = b.receive(TIMEOUT).unwrap().bytes;
    assert_eq!((&heard[6..12], &heard[22..28], &heard[28..32]), (&mac(0)[..], &mac(0)[..], &[10, 0, 0, 0][..]));
}

/// Forged frames of a twin are judged by its addresses outside: its own ones outside, and those of another twin, are not its own to send.
#[test]
fn a_twin_that_forges_addresses_is_dropped_as_others_are() {
    let bed = Bed::with("", &[&twin(0), &twin(1), &own(2)]);
    let (mut a, mut c) = (bed.guest(0), bed.guest(2));
    announce(&mut [&mut c]);
    let to = host(2, false);
    let good = Packet::tcp(base(false), to, 1, [1; 100]).frame();
    let with_mac = |mac: [u8; 6], ip: IpAddr| Packet::tcp(Host { mac, ip, port: 1 }, to, 1, [2; 100]).frame();
    let inside = base(false);
    for (forged, reason) in [
        (with_mac(host(0, false).mac, inside.ip), DropReason::SpoofedSource),
        (with_mac(host(1, false).mac, inside.ip), DropReason::SpoofedSource),
        (with_mac(inside.mac, host(0, false).ip), DropReason::SpoofedIp),
        (with_mac(inside.mac, host(1, false).ip), DropReason::SpoofedIp),
        (with_mac(inside.mac, host(9, false).ip), DropReason::SpoofedIp),
        (announcement(inside.mac, "10.0.0.1".parse().unwrap()), DropReason::SpoofedArp),
        (Packet::tcp(base(true), host(2, true), 1, [3; 100]).with_destination_options(256).frame(), DropReason::SpoofedIp),
    ] {
        let before = bed.drops(0, reason);
        a.send(&forged).unwrap();
        a.send(&good).unwrap();
        a.wait_sent(TIMEOUT).unwrap();
        let frame = next(&mut c);
        assert_eq!(parts(&frame.bytes).0[0], host(0, false).ip, "{reason:?}");
        assert_eq!(bed.drops(0, reason), before + 1, "{reason:?}: {:?}", bed.totals(0).drops);
    }
    assert_silent(&mut c);
}

/// A port becomes a twin, and none again, while frames flow.
#[test]
fn a_port_becomes_a_twin_while_it_runs() {
    let bed = Bed::with("", &[&own(0), &own(1)]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let set = |inside: Option<Inside>| {
        bed.daemon().change("p0", |settings: &mut PortSettings| settings.limits.inside = inside).unwrap();
    };
    let inside = Inside { mac: Some(MacAddress::new(base(false).mac)), addresses: vec![base(false).ip, base(true).ip] };
    for round in 0..3 {
        set(None);
        for count in 0..20 {
            a.send(&Packet::udp(host(0, false), host(1, false), [round, count]).frame()).unwrap();
            assert_eq!(parts(&next(&mut b).bytes).0[0], host(0, false).ip);
            b.send(&Packet::udp(host(1, false), host(0, false), [round, count]).frame()).unwrap();
            assert_eq!(parts(&next(&mut a).bytes).0[1], host(0, false).ip);
        }
        set(Some(inside.clone()));
        for count in 0..20 {
            a.send(&Packet::udp(base(false), host(1, false), [round, count]).frame()).unwrap();
            assert_eq!(parts(&next(&mut b).bytes).0[0], host(0, false).ip);
            b.send(&Packet::udp(host(1, false), host(0, false), [round, count]).frame()).unwrap();
            assert_eq!(parts(&next(&mut a).bytes).0[1], base(false).ip);
        }
    }
}

/// By commands: a twin of a port that goes then; what is shown of it; mistakes.
#[test]
fn a_twin_is_attached_by_the_name_of_its_base() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(
        path,
        "net.toml",
        "[[port]]\nname = \"base\"\nvhost-user = \"base.sock\"\nmac = \"02:00:00:00:00:c8\"\naddresses = [\"10.0.0.200\"]\n",
    );
    let _running = Running::start(memlane(path, &["up", "net.toml"]));
    let shown = printed(path, &["attach", "net", "a", "--twin-of", "base", "--addresses", "[\"10.0.0.6\"]"]);
    assert!(shown.contains("02:00:00:00:00:c8"), "the guest's own: {shown}");
    printed(path, &["detach", "net", "base"]);
    let json: Value = serde_json::from_str(&printed(path, &["ls", "net", "--json"])).unwrap();
    let limits = &json[0]["limits"];
    assert_eq!(limits["inside"], serde_json::json!({ "mac": "02:00:00:00:00:c8", "addresses": ["10.0.0.200"] }), "{json}");
    let outside = json[0]["address"].as_str().unwrap().to_owned();
    assert_ne!(outside, "02:00:00:00:00:c8");
    let line = printed(path, &["ls", "net"]);
    assert!(line.contains(&format!("{outside} (inside 02:00:00:00:00:c8)")), "{line}");
    assert!(printed(path, &["show", "net", "a"]).contains("10.0.0.200"), "the page of the port");
    let why = printed(path, &["why", "net", "a", "--packet", "arp who-has 10.0.0.9 tell 10.0.0.6"]);
    assert!(why.contains("a is a twin") && why.contains("10.0.0.200 inside for 10.0.0.6"), "{why}");
    for (arguments, wanted) in [
        (&["set", "net", "a", "--twin-of", "base"][..], "no port of this name"),
        (&["set", "net", "a", "--addresses", "[\"10.0.0.6\", \"10.0.0.7\"]"], "1 IPv4 address inside, and the port 2"),
    ] {
        let output = memlane(path, arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(wanted), "{arguments:?}: {told}");
    }
    printed(path, &["set", "net", "a", "--inside", "none"]);
    let json: Value = serde_json::from_str(&printed(path, &["ls", "net", "--json"])).unwrap();
    assert_eq!(json[0]["limits"].get("inside"), None);
}
