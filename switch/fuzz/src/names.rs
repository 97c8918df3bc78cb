//! Target `names`: frames of guests to the responder of a segment. It answers the sender, asks all or does nothing, with complete checksums;
//! no address has two owners, and no running lease ends by a frame of another machine, however guests ask.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use memlane::frame::MacAddress;
use memlane_names::{Lease, LeaseKind, MOST_CLAIMS, PortAddresses, Responder, Settings};

use super::script::Script;

/// Ports of the segment; the last has static addresses.
const PORTS: [&str; 3] = ["web", "db", "cache"];
const FIXED: [&str; 2] = ["10.0.0.5", "fd00::5"];
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
/// Most leases of port "db", of each IP version.
const LEASES: u32 = 3;

/// Plays `data`: frames, each behind the number of its port, the seconds since the one before, and its length.
pub fn run(data: &[u8]) {
    let (mut script, mut now, mut responder) = (Script::new(data), 0, responder());
    while !script.is_over() {
        let port = PORTS[usize::from(script.byte()) % PORTS.len()];
        now += u64::from(script.byte()) * 16;
        let length = script.word();
        let frame = script.bytes(length.into());
        let before = running(&responder, port, frame, now);
        if let Some(answer) = responder.answer(frame, port, now) {
            judge(frame, &answer);
        }
        let after = responder.leases(now);
        for (owner, lease) in before {
            assert!(
                after.iter().any(|(port, kept)| *port == owner && kept.address == lease.address),
                "{lease:?} of {owner} has ended"
            );
        }
        judge_leases(&mut responder, now);
    }
}

fn responder() -> Responder {
    let mut responder = Responder::new(Settings {
        segment: "lan".into(),
        mac: MacAddress::new(OWN),
        // Few addresses, so that ports contend for them.
        subnet: Some(([10, 0, 0, 0].into(), 28)),
        subnet6: Some("fd00::".parse().unwrap()),
        domain: "lan".into(),
        router: None,
        dns: vec!["192.0.2.53".parse().unwrap()],
        asked: vec!["192.0.2.54".parse().unwrap()],
        forwards: true,
        tells_refusal: false,
    });
    for port in PORTS {
        let fixed = if port == "cache" { FIXED.map(|text| text.parse().unwrap()).to_vec() } else { Vec::new() };
        let leases = (port == "db").then_some(LEASES);
        responder.set_port(port, PortAddresses { fixed, mtu: None, leases, is_guarded: port == "db", twin: None }, 0);
    }
    responder
}

/// Running leases of machines other than the sender of `frame` at `port`.
fn running(responder: &Responder, port: &str, frame: &[u8], now: u64) -> Vec<(String, Lease)> {
    let is_sender = |owner: &str, lease: &Lease| owner == port && frame.get(6..12) == Some(&lease.holder.mac.bytes());
    let leases =
        responder.leases(now).into_iter().filter(|(owner, lease)| lease.kind == LeaseKind::Leased && !is_sender(owner, lease));
    leases.map(|(owner, lease)| (owner.to_owned(), lease)).collect()
}

fn judge(frame: &[u8], answer: &[u8]) {
    assert!((42..=1700).contains(&answer.len()), "{} bytes", answer.len());
    // Neighbour discovery asks a group, or tells another machine of an owner.
    let is_nd = answer[12..14] == [0x86, 0xdd] && answer[20] == 58 && matches!(answer[54], 135 | 136);
    assert!((answer[..6] == frame[6..12] || is_nd) && answer[6..12] == OWN, "it goes to its sender");
    let (ip, pseudo, transport) = match answer[12..14] {
        [8, 6] => return,
        [8, 0] => (&answer[14..34], &answer[26..34], &answer[34..]),
        _ => (&[][..], &answer[22..54], &answer[54..]),
    };
    assert!(ip.is_empty() || sum(&[ip]) == 0xffff, "the checksum of the IPv4 header");
    let protocol = if ip.is_empty() { answer[20] } else { answer[23] };
    let pseudo = [pseudo, &(transport.len() as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat();
    // ICMP of IPv4 has no pseudo-header.
    let whole = if protocol == 1 { sum(&[transport]) } else { sum(&[&pseudo, transport]) };
    assert_eq!(whole, 0xffff, "the checksum of the transport");
}

/// The ones' complement sum (RFC 1071) of parts, each of which but the last has an even length.
fn sum(parts: &[&[u8]]) -> u32 {
    let words =
        parts.iter().flat_map(|part| part.chunks(2)).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

fn judge_leases(responder: &mut Responder, now: u64) {
    let mut owners: HashMap<IpAddr, &str> = HashMap::new();
    let mut counts: BTreeMap<(&str, bool, bool), usize> = BTreeMap::new();
    for fixed in FIXED {
        owners.insert(fixed.parse().unwrap(), "cache");
    }
    for (port, lease) in responder.leases(now) {
        assert_eq!(*owners.entry(lease.address).or_insert(port), port, "{} has two owners", lease.address);
        let is_link_local = lease.address.to_string().starts_with("fe80:");
        assert!(
            (responder.settings().contains(lease.address) || is_link_local)
                && ![Some(lease.address)].contains(&responder.settings().own4().map(IpAddr::V4))
        );
        *counts.entry((port, lease.kind == LeaseKind::Leased, lease.address.is_ipv4())).or_default() += 1;
    }
    let most = |port: &str, is_leased: bool| match (port, is_leased) {
        // "cache" has a static address, which each of its machines gets.
        ("cache", true) => 1,
        ("db", true) => LEASES as usize,
        (_, true) => usize::MAX,
        (_, false) => MOST_CLAIMS,
    };
    assert!(counts.iter().all(|((port, is_leased, _), count)| *count <= most(port, *is_leased)), "{counts:?}");
}

/// Scripts that reach each service.
pub fn seeds() -> [(&'static str, Vec<u8>); 11] {
    let one = |port: u8, seconds: u8, frame: Vec<u8>| [&[port, seconds][..], &(frame.len() as u16).to_le_bytes(), &frame].concat();
    let discover = |n| dhcp(n, &[53, 1, 1]);
    let request = |n, last| dhcp(n, &[53, 1, 3, 50, 4, 10, 0, 0, last]);
    let identifiers = [&[0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 1][..], &[0, 2, 0, 10, 0, 3, 0, 1], &OWN].concat();
    let association = [0, 3, 0, 12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    let arp =
        [&head([0xff; 6], 1, 0x0806)[..], &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 5, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]]
            .concat();
    let probe = |n: u8, last: u8| {
        let target = [&[0xfd][..], &[0; 14], &[last]].concat();
        let group = [&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0][..], &[last]].concat();
        ipv6(n, [0; 16], group.try_into().unwrap(), 58, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat())
    };
    [
        ("dhcp", [one(0, 0, discover(1)), one(0, 0, request(1, 9)), one(1, 1, discover(2)), one(2, 255, discover(3))].concat()),
        ("dhcp-many", (0..40).flat_map(|n| one(n % 3, 20, [discover(n), request(n, n)][usize::from(n) % 2].clone())).collect()),
        (
            "dhcp-of-another",
            [one(2, 0, request(3, 5)), one(0, 0, request(1, 5)), one(0, 1, dhcp(1, &[53, 1, 4, 50, 4, 10, 0, 0, 5]))].concat(),
        ),
        (
            "dhcpv6",
            [
                one(0, 0, dhcpv6(1, &[&[1, 1, 2, 3][..], &identifiers[..14], &association].concat())),
                one(0, 0, dhcpv6(1, &[&[3, 1, 2, 3][..], &identifiers, &association].concat())),
                one(1, 9, dhcpv6(2, &[11, 1, 2, 3])),
            ]
            .concat(),
        ),
        (
            "neighbours",
            [
                one(0, 0, ipv6(1, [0; 16], [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], 58, &[133, 0, 0, 0, 0, 0, 0, 0])),
                one(0, 0, probe(1, 7)),
                one(1, 0, probe(2, 7)),
                one(1, 0, probe(2, 1)),
                one(0, 0, arp),
            ]
            .concat(),
        ),
        (
            "dhcp-overload",
            [one(0, 0, dhcp(1, &[52, 1, 3, 61, 2, 0, 9, 53, 1, 1])), one(1, 0, dhcp(2, &[61, 3, 0, 1, 2, 53, 1, 3]))].concat(),
        ),
        ("dns-edns", one(0, 0, dns_with(b"\x03lan\0\0\x06\0\x01", &[0, 0, 41, 4, 0xd0, 0, 1, 0x80, 0, 0, 4, 0, 100, 0, 0]))),
        (
            "dns-by-tcp",
            [
                one(0, 0, tcp(2, 7, &[])),
                one(0, 1, tcp(16, 8, &[])),
                one(0, 1, tcp(24, 8, &[0, 29, 7, 7, 1, 0, 0, 1])),
                one(0, 1, tcp(17, 16, &[])),
            ]
            .concat(),
        ),
        ("dns", one(0, 0, dns(b"\x05cache\x03lan\0\0\x01\0\x01"))),
        ("dns-reverse", one(0, 0, dns(b"\x015\x010\x010\x0210\x07in-addr\x04arpa\0\0\x0c\0\x01"))),
        ("dns-loop", one(0, 0, dns(&[0xc0, 12, 0, 1, 0, 1]))),
    ]
}

fn head(destination: [u8; 6], n: u8, kind: u16) -> Vec<u8> {
    [&destination[..], &[2, 0, 0, 0, 0, n], &kind.to_be_bytes()].concat()
}

fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let [from, to, length] = [ports[0], ports[1], 8 + payload.len() as u16].map(u16::to_be_bytes);
    [&from[..], &to, &length, &[0, 0], payload].concat()
}

fn ipv4(destination: [u8; 6], n: u8, addresses: [[u8; 4]; 2], payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len() as u16).to_be_bytes();
    let header = [&[0x45, 0][..], &length, &[0, 0, 0, 0, 64, 17, 0, 0], &addresses.concat()].concat();
    [&head(destination, n, 0x0800)[..], &header, payload].concat()
}

fn ipv6(n: u8, source: [u8; 16], destination: [u8; 16], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u16).to_be_bytes();
    let header = [&[0x60, 0, 0, 0][..], &length, &[protocol, 255], &source, &destination].concat();
    [&head([0x33, 0x33, 0, 0, 0, 1], n, 0x86dd)[..], &header, payload].concat()
}

/// A DHCP message of guest `n` with these options.
pub fn dhcp(n: u8, options: &[u8]) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4];
    message.resize(28, 0);
    message.extend([2, 0, 0, 0, 0, n]);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message.push(255);
    ipv4([0xff; 6], n, [[0; 4], [255; 4]], &udp([68, 67], &message))
}

fn dhcpv6(n: u8, message: &[u8]) -> Vec<u8> {
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, n];
    ipv6(n, source, [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2], 17, &udp([546, 547], message))
}

/// A DNS query to the first address of 10.0.0.0 with this question.
pub fn dns(question: &[u8]) -> Vec<u8> {
    dns_with(question, &[])
}

/// The same with this further record.
fn dns_with(question: &[u8], record: &[u8]) -> Vec<u8> {
    let head = [7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(!record.is_empty())];
    ipv4(OWN, 1, [[10, 0, 0, 9], [10, 0, 0, 1]], &udp([4000, 53], &[&head[..], question, record].concat()))
}

/// A segment to port 53 with these flags and this number.
fn tcp(flags: u8, number: u8, payload: &[u8]) -> Vec<u8> {
    let head = [0x0f, 0xa0, 0, 53, 0, 0, 0, number, 0, 0, 0, 0, 0x50, flags, 4, 0, 0, 0, 0, 0];
    let mut frame = ipv4(OWN, 1, [[10, 0, 0, 9], [10, 0, 0, 1]], &[&head[..], payload].concat());
    frame[14 + 9] = 6;
    frame
}
