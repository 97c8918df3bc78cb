//! A table of good and forged frames, and the flow cache against the decision.

use super::*;
use crate::frame::START;
use crate::headers::link_local;
use crate::id::PortId;
use crate::policy::gate::Gate;
use crate::policy::rules::{AllowedPair, Autoconf, PortRules, Published, Service};
use crate::policy::{AntiSpoof, PortLimits};
use crate::table::Table;
use crate::verdict::reading::Start;
use crate::verdict::{Epoch, FlowCache, Sender, Verdict, decide};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const VIRTUAL: [u8; 6] = [0, 0, 0x5e, 0, 1, 7];

/// No port has rules.
fn open(_: PortId) -> Option<Gate<'static>> {
    None
}

type Wanted = Result<(), DropReason>;
const GOOD: Wanted = Ok(());
const MAC: Wanted = Err(DropReason::SpoofedSource);
const IP: Wanted = Err(DropReason::SpoofedIp);
const ARP: Wanted = Err(DropReason::SpoofedArp);
const SERVER: Wanted = Err(DropReason::NotAServer);

fn limits(may_serve: &[Service]) -> PortLimits {
    PortLimits {
        anti_spoof: AntiSpoof::All,
        addresses: ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().unwrap()).to_vec(),
        allowed: vec![
            AllowedPair { mac: Some(MacAddress::new(VIRTUAL)), ip: "10.0.0.100".parse().ok() },
            AllowedPair { mac: None, ip: "10.1.0.0/16".parse().ok() },
        ],
        may_serve: may_serve.to_vec(),
        ..PortLimits::default()
    }
}

fn table() -> Table {
    let table = Table::new(3, 64, 1);
    table.pin(MacAddress::new(OWN), PortId(0));
    table.pin(MacAddress::new(OTHER), PortId(1));
    table
}

fn ethernet(source: [u8; 6], tags: &[[u8; 4]], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&OTHER[..], &source, &tags.concat(), &kind.to_be_bytes(), payload].concat()
}

fn start_of(frame: &[u8]) -> ([u8; START], usize) {
    let mut start = [0xee; START];
    let length = frame.len().min(START);
    start[..length].copy_from_slice(&frame[..length]);
    (start, length)
}

/// The decision on `frame` of port 0.
fn judge(frame: &[u8], may_serve: &[Service]) -> Wanted {
    let (rules, (start, length)) = (PortRules::of(&limits(may_serve)), start_of(frame));
    match decide(
        Start::new(&start, length),
        Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false },
        open,
        &table(),
        0,
    )
    .verdict
    {
        Verdict::Drop(reason) => Err(reason),
        Verdict::To(_) | Verdict::Retagged(..) | Verdict::Flood => Ok(()),
    }
}

fn ip(text: &str) -> [u8; 4] {
    text.parse::<std::net::Ipv4Addr>().unwrap().octets()
}

fn ip6(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

/// An IPv4 packet (RFC 791, section 3.1) with this word of flags and fragment offset.
fn ipv4_part(source: &str, protocol: u8, word: u16, payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let head = [&[0x45, 0][..], &length.to_be_bytes(), &[0, 1], &word.to_be_bytes(), &[64, protocol, 0, 0]].concat();
    [&head[..], &ip(source), &ip("10.0.0.6"), payload].concat()
}

fn ipv4(source: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4_part(source, protocol, 0x4000, payload)
}

/// An IPv6 packet (RFC 8200, section 3).
fn ipv6(source: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    let head = [&[0x60, 0, 0, 0][..], &(payload.len() as u16).to_be_bytes(), &[next, 255]].concat();
    [&head[..], &ip6(source), &ip6("ff02::1"), payload].concat()
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 28, 0, 0], &[0; 20]].concat()
}

fn arp(operation: u8, mac: [u8; 6], address: &str) -> Vec<u8> {
    arp_for(operation, mac, address, "10.0.0.6")
}

fn arp_for(operation: u8, mac: [u8; 6], address: &str, target: &str) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, operation][..], &mac, &ip(address), &[0; 6], &ip(target)].concat()
}

/// A neighbour discovery message with a target and a link-layer address option (RFC 4861, sections 4.3, 4.4 and 4.6.1).
fn nd(kind: u8, target: &str, option: u8, mac: [u8; 6]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &ip6(target), &[option, 1], &mac].concat()
}

const LOCAL: &str = "fe80::ff:fe00:1";

#[expect(clippy::too_many_lines, reason = "a table")]
fn frames() -> Vec<(&'static str, Vec<u8>, Wanted)> {
    let v4 = |payload: Vec<u8>| ethernet(OWN, &[], 0x0800, &payload);
    let v6 = |payload: Vec<u8>| ethernet(OWN, &[], 0x86dd, &payload);
    let arps = |payload: Vec<u8>| ethernet(OWN, &[], 0x0806, &payload);
    let tag = |kind: u16, vlan: u8| [(kind >> 8) as u8, kind as u8, 0xa0, vlan];
    let vlans = [tag(0x8100, 10), tag(0x88a8, 20), tag(0x8100, 30)];
    let extended = |header: &[u8], next: &[u8]| [header, next].concat();
    let ra = [&[134, 0, 0, 0, 64, 0, 0, 100][..], &[0; 8], &[1, 1], &OWN].concat();
    let options = |count: usize| [[14, 1, 0, 0, 0, 0, 0, 0]; 20][..count].concat();
    let na = |target: &str, mac: [u8; 6]| nd(136, target, 2, mac);
    vec![
        // MAC and IPv4
        ("own IPv4", v4(ipv4("10.0.0.5", 6, &[0; 40])), GOOD),
        ("another's MAC address", ethernet(OTHER, &[], 0x0800, &ipv4("10.0.0.5", 6, &[0; 40])), MAC),
        ("another's IPv4", v4(ipv4("10.0.0.6", 6, &[0; 40])), IP),
        ("loopback", v4(ipv4("127.0.0.1", 6, &[0; 40])), IP),
        ("broadcast source", v4(ipv4("255.255.255.255", 17, &udp(1, 2))), IP),
        ("routed prefix", v4(ipv4("10.1.2.3", 6, &[0; 40])), GOOD),
        ("beside the prefix", v4(ipv4("10.2.0.0", 6, &[0; 40])), IP),
        ("VRRP pair", ethernet(VIRTUAL, &[], 0x0800, &ipv4("10.0.0.100", 112, &[0; 20])), GOOD),
        ("VRRP advertisement: RFC 9568, section 5.1.1.1", ethernet(VIRTUAL, &[], 0x0800, &ipv4("10.0.0.5", 112, &[0; 20])), GOOD),
        ("VRRP address from the own MAC address", v4(ipv4("10.0.0.100", 6, &[0; 40])), IP),
        ("first fragment of another's", v4(ipv4_part("10.0.0.6", 17, 0x2000, &udp(1, 2))), IP),
        ("later fragment of another's", v4(ipv4_part("10.0.0.6", 17, 185, &[0; 40])), IP),
        ("later fragment of the own", v4(ipv4_part("10.0.0.5", 17, 185, &[0; 40])), GOOD),
        ("IPv4 of version 6", v4(extended(&[0x65], &ipv4("10.0.0.5", 6, &[0; 40])[1..])), IP),
        ("IPv4 header of 16 bytes", v4(extended(&[0x44], &ipv4("10.0.0.5", 6, &[0; 40])[1..])), IP),
        ("IPv4 header cut off", v4(ipv4("10.0.0.5", 6, &[])[..19].to_vec()), IP),
        ("IPv4 options cut off", v4(extended(&[0x4f], &ipv4("10.0.0.5", 6, &[0; 4])[1..])), IP),
        ("no header behind Ethernet", v4(Vec::new()), IP),
        // tags
        ("own IPv4 behind a tag", ethernet(OWN, &vlans[..1], 0x0800, &ipv4("10.0.0.5", 6, &[0; 40])), GOOD),
        ("another's behind a tag", ethernet(OWN, &vlans[..1], 0x0800, &ipv4("10.0.0.6", 6, &[0; 40])), IP),
        ("own behind two tags", ethernet(OWN, &vlans[..2], 0x0800, &ipv4("10.0.0.5", 6, &[0; 40])), GOOD),
        ("another's behind two tags", ethernet(OWN, &vlans[..2], 0x0800, &ipv4("10.0.0.6", 6, &[0; 40])), IP),
        ("three tags", ethernet(OWN, &vlans, 0x0800, &ipv4("10.0.0.5", 6, &[0; 40])), IP),
        ("a tag without a type", ethernet(OWN, &[], 0x8100, &[]), IP),
        ("IPv4 in IEEE 802.2", ethernet(OWN, &[], 100, &extended(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &ipv4("10.0.0.6", 6, &[]))), IP),
        ("ARP in IEEE 802.2", ethernet(OWN, &[], 100, &extended(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6], &arp(2, OWN, "10.0.0.6"))), IP),
        ("spanning tree", ethernet(OWN, &[], 38, &[0x42, 0x42, 3, 0, 0, 0, 0, 0]), GOOD),
        ("LLDP", ethernet(OWN, &[], 0x88cc, &[2, 7, 4]), GOOD),
        // DHCP
        ("DHCP discover: RFC 2131, section 4.1", v4(ipv4("0.0.0.0", 17, &udp(68, 67))), GOOD),
        ("0.0.0.0 to another service", v4(ipv4("0.0.0.0", 17, &udp(68, 53))), IP),
        ("0.0.0.0 by TCP", v4(ipv4("0.0.0.0", 6, &[0; 40])), IP),
        ("DHCP discover in fragments", v4(ipv4_part("0.0.0.0", 17, 0x2000, &udp(68, 67))), IP),
        ("IGMP report: RFC 3376, section 4.2.13", v4(ipv4("0.0.0.0", 2, &[0x22, 0, 0, 0, 0, 0, 0, 1])), GOOD),
        ("DHCP answer", v4(ipv4("10.0.0.5", 17, &udp(67, 68))), SERVER),
        ("DHCP answer from another port", v4(ipv4("10.0.0.5", 17, &udp(1067, 68))), SERVER),
        ("DHCP answer, first fragment", v4(ipv4_part("10.0.0.5", 17, 0x2000, &udp(67, 68))), SERVER),
        ("UDP without a header", v4(ipv4("10.0.0.5", 17, &[0; 3])), SERVER),
        ("UDP", v4(ipv4("10.0.0.5", 17, &udp(67, 69))), GOOD),
        ("DHCPv6 answer", v6(ipv6(LOCAL, 17, &udp(547, 546))), SERVER),
        ("DHCPv6 question", v6(ipv6(LOCAL, 17, &udp(546, 547))), GOOD),
        ("DHCPv6 answer behind options", v6(ipv6(LOCAL, 60, &extended(&[17, 0, 1, 4, 0, 0, 0, 0], &udp(547, 546)))), SERVER),
        // ARP
        ("ARP request", arps(arp(1, OWN, "10.0.0.5")), GOOD),
        ("ARP probe: RFC 5227, section 1.1", arps(arp_for(1, OWN, "0.0.0.0", "10.0.0.5")), GOOD),
        ("ARP probe for another's, which would take it for a conflict: RFC 5227, section 2.1.1", arps(arp(1, OWN, "0.0.0.0")), ARP),
        ("ARP reply to a probe, with no address", arps(arp(2, OWN, "0.0.0.0")), ARP),
        ("ARP reply for another", arps(arp(2, OWN, "10.0.0.6")), ARP),
        ("ARP with another's MAC address", arps(arp(1, OTHER, "10.0.0.5")), ARP),
        ("ARP of the VRRP pair", ethernet(VIRTUAL, &[], 0x0806, &arp(2, VIRTUAL, "10.0.0.100")), GOOD),
        ("ARP of the VRRP address with the own MAC address", arps(arp(2, OWN, "10.0.0.100")), ARP),
        ("ARP behind a tag", ethernet(OWN, &vlans[..1], 0x0806, &arp(2, OWN, "10.0.0.6")), ARP),
        ("ARP cut off", arps(arp(1, OWN, "10.0.0.5")[..27].to_vec()), ARP),
        ("ARP for long addresses", arps(extended(&[0, 1, 8, 0, 8], &arp(1, OWN, "10.0.0.5")[5..])), ARP),
        ("RARP of a hypervisor", ethernet(OWN, &[], 0x8035, &arp(3, OWN, "0.0.0.0")), GOOD),
        ("RARP for another", ethernet(OWN, &[], 0x8035, &arp(3, OTHER, "0.0.0.0")), ARP),
        // IPv6
        ("own IPv6", v6(ipv6("fd00::5", 6, &[0; 40])), GOOD),
        ("another's IPv6", v6(ipv6("fd00::6", 6, &[0; 40])), IP),
        ("own link-local: RFC 4291, appendix A", v6(ipv6(LOCAL, 6, &[0; 40])), GOOD),
        ("another's link-local", v6(ipv6("fe80::ff:fe00:2", 6, &[0; 40])), IP),
        ("later fragment of another's IPv6", v6(ipv6("fd00::6", 44, &extended(&[6, 0, 1, 0, 0, 0, 0, 1], &[0; 40]))), IP),
        ("IPv6 cut off", v6(ipv6("fd00::5", 6, &[])[..39].to_vec()), IP),
        ("IPv6 behind a tag", ethernet(OWN, &vlans[..2], 0x86dd, &ipv6("fd00::6", 6, &[0; 40])), IP),
        ("echo request", v6(ipv6("fd00::5", 58, &[128, 0, 0, 0, 0, 0, 0, 0])), GOOD),
        // neighbour discovery
        ("solicitation", v6(ipv6("fd00::5", 58, &nd(135, "fd00::6", 1, OWN))), GOOD),
        ("solicitation with another's MAC address", v6(ipv6("fd00::5", 58, &nd(135, "fd00::6", 1, OTHER))), ARP),
        ("advertisement", v6(ipv6("fd00::5", 58, &na("fd00::5", OWN))), GOOD),
        ("advertisement for another", v6(ipv6("fd00::5", 58, &na("fd00::6", OWN))), ARP),
        ("advertisement with another's MAC address", v6(ipv6("fd00::5", 58, &na("fd00::5", OTHER))), ARP),
        ("advertisement without options", v6(ipv6("fd00::5", 58, &na("fd00::6", OWN)[..24])), ARP),
        ("duplicate address detection", v6(ipv6("::", 58, &nd(135, "fd00::5", 14, [0; 6]))), GOOD),
        ("duplicate address detection of a link-local", v6(ipv6("::", 58, &nd(135, LOCAL, 14, [0; 6])[..24])), GOOD),
        ("duplicate address detection for another's", v6(ipv6("::", 58, &nd(135, "fd00::6", 14, [0; 6])[..24])), ARP),
        ("unspecified source of a solicitation with a link", v6(ipv6("::", 58, &nd(135, "fd00::5", 1, OWN))), ARP),
        ("MLD report: RFC 3590", v6(ipv6("::", 0, &extended(&[58, 0, 5, 2, 0, 0, 1, 0], &[143, 0, 0, 0, 0, 0, 0, 0]))), GOOD),
        ("unspecified source of an advertisement", v6(ipv6("::", 58, &na("fd00::5", OWN))), IP),
        ("unspecified source of UDP", v6(ipv6("::", 17, &udp(1, 2))), IP),
        ("forged behind options", v6(ipv6("fd00::5", 60, &extended(&[58, 0, 1, 4, 0, 0, 0, 0], &na("fd00::6", OWN)))), ARP),
        ("in a fragment: RFC 6980", v6(ipv6("fd00::5", 44, &extended(&[58, 0, 0, 0, 0, 0, 0, 1], &na("fd00::5", OWN)))), ARP),
        (
            "headers in a later fragment: RFC 7112",
            v6([ipv6("fd00::5", 44, &[60, 0, 0, 1, 0, 0, 0, 1, 58, 0, 1, 4, 0, 0, 0, 0]), na("fd00::6", OWN)].concat()),
            ARP,
        ),
        (
            "behind long headers",
            v6(ipv6("fd00::5", 60, &extended(&[58, 11, 1, 94], &[&[0; 92][..], &na("fd00::6", OWN)].concat()))),
            ARP,
        ),
        ("forged behind other options", v6(ipv6("fd00::5", 58, &[na("fd00::5", OWN), vec![2, 1], OTHER.to_vec()].concat())), ARP),
        ("options that do not end in the copy", v6(ipv6("fd00::5", 58, &[na("fd00::5", OWN), options(9)].concat())), ARP),
        ("option of length 0", v6(ipv6("fd00::5", 58, &[&na("fd00::5", OWN)[..], &[14, 0, 0, 0, 0, 0, 0, 0]].concat())), ARP),
        ("router solicitation", v6(ipv6("::", 58, &[133, 0, 0, 0, 0, 0, 0, 0])), GOOD),
        ("router advertisement", v6(ipv6(LOCAL, 58, &ra)), SERVER),
        ("redirect", v6(ipv6(LOCAL, 58, &[&[137, 0, 0, 0, 0, 0, 0, 0][..], &[0; 32]].concat())), SERVER),
        ("router advertisement in a fragment", v6(ipv6(LOCAL, 44, &extended(&[58, 0, 0, 0, 0, 0, 0, 1], &ra))), ARP),
    ]
}

#[test]
fn good_frames_pass_and_forged_ones_do_not() {
    assert!(frames().len() >= 40);
    for (name, frame, wanted) in frames() {
        assert_eq!(judge(&frame, &[]), wanted, "{name}");
    }
}

/// A probe for an address that guests may make goes to the responder, which decides on its owner; no other port hears of it.
#[test]
fn a_probe_for_an_address_of_the_prefix_goes_to_the_responder_alone() {
    let published = Published::<PortRules>::default();
    published.set(PortRules::of(&limits(&[])));
    published.set_autoconf(Autoconf { prefix: "fd00::".parse().unwrap(), responder: PortId(2) });
    let rules = published.get();
    let verdict = |bytes: &[u8]| {
        let (start, length) = start_of(bytes);
        let sender = Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false };
        let decision = decide(Start::new(&start, length), sender, open, &table(), 0);
        assert!(decision.masks.is_none(), "it holds for this frame only");
        decision.verdict
    };
    let probe = |target: &str, group: &str, tags: &[[u8; 4]], options: &[u8]| {
        let mut packet = ipv6("::", 58, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &ip6(target), options].concat());
        packet[24..40].copy_from_slice(&ip6(group));
        let mut bytes = ethernet(OWN, tags, 0x86dd, &packet);
        bytes[..2].copy_from_slice(&[0x33, 0x33]);
        verdict(&bytes)
    };
    let (asked, refused) = (Verdict::To(PortId(2)), Verdict::Drop(DropReason::SpoofedArp));
    // RFC 8981, RFC 7217; with a nonce (RFC 7527).
    assert_eq!(probe("fd00::42aa:1:2:3", "ff02::1:ff02:3", &[], &[]), asked);
    assert_eq!(probe("fe80::1234:5678:9abc:def0", "ff02::1:ffbc:def0", &[], &[14, 1, 1, 2, 3, 4, 5, 6]), asked);
    assert_eq!(probe("fd00::5", "ff02::1:ff00:5", &[], &[]), Verdict::Flood, "its own");
    assert_eq!(probe("fd01::6", "ff02::1:ff00:6", &[], &[]), refused, "of another prefix");
    assert_eq!(probe("fd00::6", "ff02::1", &[], &[]), refused, "to all");
    assert_eq!(probe("fd00::6", "ff02::1:ff00:6", &[[0x81, 0, 0, 10]], &[]), refused, "in a VLAN");
    assert_eq!(probe("fd00::6", "ff02::1:ff00:6", &[], &[[1, 1].as_slice(), &OTHER].concat()), refused, "with another's address");
}

#[test]
fn services_are_offered_with_permission_only() {
    for (name, frame, _) in frames().into_iter().filter(|(_, _, wanted)| *wanted == SERVER) {
        let wanted = if name.contains("DHCP") || name.contains("UDP") { Service::Dhcp } else { Service::Ra };
        let other = if wanted == Service::Dhcp { Service::Ra } else { Service::Dhcp };
        assert_eq!((judge(&frame, &[wanted]), judge(&frame, &[other])), (GOOD, SERVER), "{name}");
    }
    // The message's options are longer than the copied bytes.
    let options = [&[1, 1][..], &OWN, &[[3, 4, 0, 0, 0, 0, 0, 0], [0; 8], [0; 8], [0; 8]].as_flattened().repeat(4)].concat();
    let long = ipv6(LOCAL, 58, &[&[134, 0, 0, 0, 64, 0, 0, 100][..], &[0; 8], &options].concat());
    assert_eq!(judge(&ethernet(OWN, &[], 0x86dd, &long), &[Service::Ra]), GOOD);
    let forged = ipv6(LOCAL, 58, &[&[134, 0, 0, 0, 64, 0, 0, 100][..], &[0; 8], &[1, 1], &OTHER].concat());
    assert_eq!(judge(&ethernet(OWN, &[], 0x86dd, &forged), &[Service::Ra]), ARP);
}

/// The flow cache has the verdict that a decision on the same frame has, for each frame that differs in one byte from the one that it
/// was made of.
#[test]
fn the_flow_cache_agrees_with_the_decision() {
    let (table, rules) = (table(), PortRules::of(&limits(&[])));
    let sender = Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false };
    let epoch = Epoch { generation: table.generation(), second: 0 };
    let mut kept = 0;
    for (name, frame, _) in frames() {
        let (start, length) = start_of(&frame);
        for at in 0..length {
            for change in [1, 2, 0x20, 0x40, 0x80, 0xff, 0x44, 0x2a] {
                for cut in [length, at] {
                    let mut cache = FlowCache::default();
                    cache.decide(Start::new(&start, length), sender, open, &table, epoch);
                    let mut other = start;
                    other[at] ^= change;
                    if cut < 14 {
                        continue;
                    }
                    let other = Start::new(&other, cut);
                    kept += u32::from(cache.fits(other, epoch));
                    let wanted = decide(other, sender, open, &table, 0).verdict;
                    assert_eq!(
                        cache.decide(other, sender, open, &table, epoch),
                        wanted,
                        "{name}, byte {at} changed by {change}, {cut} bytes"
                    );
                }
            }
        }
    }
    assert!(kept > 1000, "the flow cache keeps verdicts: {kept}");
}

#[test]
fn verdicts_on_streams_are_kept_and_those_on_address_resolution_are_not() {
    let keeps = |name: &str| {
        let (_, frame, _) = frames().into_iter().find(|(known, ..)| *known == name).unwrap();
        let (rules, table, (start, length)) = (PortRules::of(&limits(&[])), table(), start_of(&frame));
        decide(
            Start::new(&start, length),
            Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false },
            open,
            &table,
            0,
        )
        .masks
        .is_some()
    };
    for name in
        ["own IPv4", "own IPv6", "UDP", "DHCPv6 question", "own behind two tags", "another's IPv4", "LLDP", "IPv6 behind a tag"]
    {
        assert!(keeps(name), "{name}");
    }
    for name in
        ["ARP request", "ARP reply for another", "advertisement", "in a fragment: RFC 6980", "DHCP discover: RFC 2131, section 4.1"]
    {
        assert!(!keeps(name), "{name}");
    }
}

#[test]
fn the_claim_of_a_frame_is_told() {
    let (own, other) = (MacAddress::new(OWN), MacAddress::new(OTHER));
    let claim = |name: &str| claimed(&frames().into_iter().find(|(known, ..)| *known == name).unwrap().1);
    let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    assert_eq!(claim("another's IPv4"), (own, address("10.0.0.6")));
    assert_eq!(claim("another's behind two tags"), (own, address("10.0.0.6")));
    assert_eq!(claim("ARP with another's MAC address"), (other, address("10.0.0.5")));
    assert_eq!(claim("advertisement for another"), (own, address("fd00::6")));
    assert_eq!(claim("duplicate address detection for another's"), (own, address("fd00::6")));
    assert_eq!(claim("solicitation with another's MAC address"), (other, address("fd00::5")));
    assert_eq!(claim("three tags"), (own, None));
    assert_eq!(link_local(own), LOCAL.parse::<std::net::Ipv6Addr>().unwrap());
}

/// Any bytes have a verdict, and it does not depend on bytes behind the frame.
#[test]
fn any_frame_has_a_verdict() {
    let (table, rules) = (table(), PortRules::of(&limits(&[])));
    let sender = Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false };
    let seeds = frames();
    bolero::check!().with_type::<(u8, Vec<(u8, u8)>, u8)>().for_each(|(seed, changes, cut)| {
        let mut frame = seeds[usize::from(*seed) % seeds.len()].1.clone();
        let length = frame.len();
        changes.iter().take(8).for_each(|&(at, byte)| frame[usize::from(at) % length] = byte);
        frame.truncate(length.saturating_sub(usize::from(*cut) % 64).max(14));
        let (start, length) = start_of(&frame);
        let verdict = |start: &[u8; START]| decide(Start::new(start, length), sender, open, &table, 0).verdict;
        let mut stale = start;
        stale[length..].fill(0);
        assert_eq!(verdict(&start), verdict(&stale));
        let _ = claimed(&frame);
    });
}
