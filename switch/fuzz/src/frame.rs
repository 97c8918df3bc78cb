//! Target `frame`: the parsers of frames and virtio-net headers, against a simple second opinion.

use std::sync::Arc;

use memlane::address_map::lease::Lease;
use memlane::frame::{Head, Layers, MacAddress, NetHeader, START, Segmentation, TCP, UDP, flow_hash, ip_version, pair_hash};

use memlane::headers::{Arp, Ipv4, Ipv6, Nd, NdKind, Upper};
use memlane::id::PortId;
use memlane::policy::filter::{Action, Destination, Filtered, Member, Names, PolicyRule, PortRange, Protocol};
use memlane::policy::flows::Flows;
use memlane::policy::gate::Gate;
use memlane::policy::rulebook::Rulebook;
use memlane::policy::rules::PortRules;
use memlane::policy::{AntiSpoof, PortLimits};
use memlane::refusal::answer_to;
use memlane::table::Table;
use memlane::too_long::check_frame;
use memlane::verdict::reading::Start;
use memlane::verdict::{Sender, Verdict, decide};

use super::parser;

/// Reads `data` as a frame, as a virtio-net header, and as an address.
pub fn run(data: &[u8]) {
    check_layers(&data[..data.len().min(START)]);
    check_head(data);
    check_headers(data);
    check_identity(data);
    check_policy(data);
    check_too_long(data);
    check_refusal(data);
    check_lease(data);
    if let Some(bytes) = data.first_chunk() {
        check_header(*bytes);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(address) = text.parse::<MacAddress>()
    {
        assert_eq!(address.to_string(), text.to_lowercase());
    }
}

fn check_layers(start: &[u8]) {
    let found = Layers::find(start).map(|layers| (layers.version, layers.network, layers.transport, layers.protocol));
    assert_eq!(found, parser::find(start));
    let hash = flow_hash(start);
    if ip_version(start).is_none() {
        assert_eq!(hash, Some(0));
    }
    let Some(found) = found else { return };
    assert_eq!(hash, flow_hash(&turned(start, found)), "a flow has one number, whoever speaks");
    let ports = hash.is_some_and(|hash| hash != pair_hash(start));
    assert!(!ports || [TCP, UDP].contains(&found.3), "others have no ports");
    assert_eq!(Layers::said(start, found.3, found.2), Layers::find(start), "who says what is so is believed");
    assert_eq!(Layers::said(start, found.3, found.2 + 8), None);
}

/// The frame with its IP addresses, and its ports if it has some, exchanged.
fn turned(start: &[u8], (version, network, transport, protocol): parser::Found) -> Vec<u8> {
    let mut turned = start.to_vec();
    let (at, length) = if version == 4 { (network + 12, 4) } else { (network + 8, 16) };
    turned[at..at + 2 * length].rotate_left(length);
    // Where the headers contradict themselves, ports lie among the addresses; those frames have no flow.
    if [TCP, UDP].contains(&protocol) && transport >= at + 2 * length && transport + 4 <= turned.len() {
        turned[transport..transport + 4].rotate_left(2);
    }
    turned
}

/// Walks end within the packet, and parsers read no byte behind it.
fn check_headers(data: &[u8]) {
    let _ = (Arp::parse(data), Ipv4::parse(data));
    if let Some(packet) = Ipv6::parse(data)
        && let Upper::Header { at, .. } = packet.upper(data)
    {
        assert!(at <= packet.packet(data).0.len());
    }
    for kind in (133..=137).filter_map(NdKind::of) {
        assert!(Nd::parse(kind, data).is_none_or(|message| message.links().count() <= data.len() / 8 + 1));
    }
}

/// A lease that a DHCP server acknowledges has a machine and an address of one.
fn check_lease(data: &[u8]) {
    if let Some(Lease { ip, mac, .. }) = Lease::of_frame(data) {
        assert!(mac.is_unicast() && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast());
    }
}

/// The verdict on a port with `anti-spoof = "all"` does not depend on bytes behind the frame, and a frame that passes comes from the port's
/// own MAC address.
fn check_identity(data: &[u8]) {
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let length = data.len().min(START);
    if length < 14 {
        return;
    }
    let addresses = ["10.0.0.1", "fd00::1"].map(|address| address.parse().expect("addresses")).to_vec();
    let rules = PortRules::of(&PortLimits { anti_spoof: AntiSpoof::All, addresses, ..PortLimits::default() });
    let table = Table::new(2, 64, 1);
    table.pin(MacAddress::new(OWN), PortId(0));
    let sender = Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false };
    let verdict = |rest: u8| {
        let mut start = [rest; START];
        start[..length].copy_from_slice(&data[..length]);
        decide(Start::new(&start, length), sender, |_| None, &table, 0).verdict
    };
    assert_eq!(verdict(0), verdict(0xff));
    assert!(matches!(verdict(0), Verdict::Drop(_)) || data[6..12] == OWN);
}

/// The verdict by policy rules does not depend on bytes behind the frame, is the same for a flooded frame, and is the one that a flow cache
/// keeps. The first bytes choose the rules.
fn check_policy(data: &[u8]) {
    let Some((choice, data)) = data.split_first_chunk::<8>() else { return };
    let length = data.len().min(START);
    if length < 14 || data[0] & 1 != 0 || data[6] & 1 != 0 || data[..6] == data[6..12] {
        return;
    }
    let rule = |bytes: &[u8]| PolicyRule {
        protocol: [None, Some(6), Some(17), Some(58)][usize::from(bytes[0] % 4)].map(Protocol),
        ports: if bytes[0] & 4 == 0 || !matches!(bytes[0] % 4, 1 | 2) {
            Vec::new()
        } else {
            vec![PortRange { first: bytes[1].into(), last: u16::from(bytes[1]) << 4 | 15 }]
        },
        destinations: if bytes[0] & 32 == 0 { Vec::new() } else { vec![destination(bytes[1])] },
        established: bytes[0] & 8 != 0 && bytes[0] % 4 == 1,
        action: Some([Action::Deny, Action::Allow][usize::from(bytes[0] >> 4 & 1)]),
        ..PolicyRule::default()
    };
    let mut rules = choice.chunks(2).map(rule).collect::<Vec<_>>();
    // A default of the sender, of the receiver, of both or of none.
    let defaults = [(4, "sender"), (5, "receiver")].into_iter().filter(|(bit, _)| choice[7] >> bit & 1 != 0);
    rules.extend(defaults.map(|(_, name)| PolicyRule {
        default: Some(Action::Deny),
        members: Names(vec![name.into()]),
        ..PolicyRule::default()
    }));
    let mut book = Rulebook::default();
    book.set_rules(&rules);
    let flows = [Arc::<Flows>::default(), Arc::default()];
    for (port, name) in (0..).zip(["sender", "receiver"]) {
        let flows = Some(&flows[usize::from(port)]);
        book.enter(PortId(port), Member { name, segment: "lan", groups: &[], flows, grants: None });
    }
    let filter = book.filter();
    let table = Table::new(2, 64, 1);
    let [source, destination] = [6, 0].map(|at| MacAddress::new(*data[at..].first_chunk().expect("14 bytes")));
    if !source.is_unicast() || !destination.is_unicast() {
        return;
    }
    table.pin(destination, PortId(1));
    // A forecast opens no flow, so that one frame's verdict depends on no other's.
    let gate = Gate { filtered: Some(Filtered { filter, from: PortId(0), is_forecast: true }), ..Gate::OPEN };
    let sender = Sender { gate, is_gated: true, ..PortId(0).into() };
    let decided = |rest: u8, change: Option<usize>| {
        let mut start = [rest; START];
        start[..length].copy_from_slice(&data[..length]);
        change.into_iter().for_each(|at| start[at] ^= 0x41);
        (decide(Start::new(&start, length), sender, |_| Some(Gate::OPEN), &table, 0), start)
    };
    let (decision, start) = decided(0, None);
    assert_eq!(decision.verdict, decided(0xff, None).0.verdict);
    let Some((mask, further)) = decision.masks else { return };
    for at in 12..length {
        let (other, changed) = decided(0, Some(at));
        let fits = mask.fits(Start::new(&changed, length).head()) && further.fits(&changed[..length]);
        assert!(!fits || other.verdict == decision.verdict, "byte {at} of {:02x?} decides", &start[..length]);
    }
}

/// A prefix of IPv4 or IPv6, by the byte that chooses it.
fn destination(choice: u8) -> Destination {
    let (address, length) = (choice & 0xf0, choice >> 1 & 7);
    let text = if choice & 1 == 0 { format!("{address}.0.0.0/{length}") } else { format!("{address:x}00::/{length}") };
    text.parse().expect("a prefix")
}

/// An answer to a frame that is too long is a whole packet to its sender, and no group is answered.
fn check_too_long(data: &[u8]) {
    let Some((choice, data)) = data.split_first_chunk::<4>() else { return };
    let start = &data[..data.len().min(START)];
    if start.len() < 14 {
        return;
    }
    let [mtu, size] = [0, 2].map(|at| u16::from_le_bytes([choice[at], choice[at + 1]]));
    let header = NetHeader::partial_checksum(34, 16).cut(choice[0], size);
    let Err(Some(answer)) = check_frame(start, 65_000, header, mtu) else { return };
    let frame = answer.frame();
    assert!(start[0] & 1 == 0 && frame[..6] == start[6..12] && frame[6..12] == start[..6]);
    match Layers::find(frame).map(|layers| (layers.version, layers.protocol)) {
        Some((4, protocol)) => assert_eq!(protocol, 1),
        found => assert_eq!(found, Some((6, 58))),
    }
}

/// An answer to a refused frame is a whole packet to its sender: a reset of TCP, or ICMP. No group is answered.
fn check_refusal(data: &[u8]) {
    let Some((choice, data)) = data.split_first_chunk::<4>() else { return };
    let start = &data[..data.len().min(START)];
    let Some(answer) = answer_to(start, u32::from_le_bytes(*choice)) else { return };
    let frame = answer.frame();
    assert!(start[0] & 1 == 0 && frame[..6] == start[6..12] && frame[6..12] == start[..6]);
    let layers = Layers::find(frame).expect("an IP packet");
    assert!([(4, 1), (4, TCP), (6, 58), (6, TCP)].contains(&(layers.version, layers.protocol)));
    assert!(layers.protocol != TCP || frame.len() == layers.transport + 20 && frame[layers.transport + 13] & 4 != 0);
}

fn check_head(data: &[u8]) {
    let mut start = [0; START];
    let length = data.len().min(START);
    start[..length].copy_from_slice(&data[..length]);
    let head = Head::of(&start);
    assert_eq!(head.destination().bytes(), start[..6]);
    assert_eq!(head.source().bytes(), start[6..12]);
    assert_eq!(head.destination().is_group(), start[0] & 1 == 1);
    assert_eq!(head.source().is_unicast(), start[6] & 1 == 0 && start[6..12] != [0; 6]);
}

fn check_header(bytes: [u8; NetHeader::SIZE]) {
    let header = NetHeader::from_bytes(bytes);
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!(header.bytes(), bytes);
    assert_eq!((header.flags(), header.gso_type()), (bytes[0], bytes[1]));
    assert_eq!(
        (header.hdr_len(), header.gso_size(), header.csum_start(), header.csum_offset()),
        (word(2), word(4), word(6), word(8))
    );
    assert_eq!(header.in_buffers(77).bytes()[10..], 77_u16.to_le_bytes());
    assert_eq!(header.is_plain(), bytes[0] & 1 == 0 && bytes[1] == 0);
    let kind = match bytes[1] {
        0 => Ok(None),
        1 | 0x81 => Ok(Some(Segmentation::Tcp4)),
        4 | 0x84 => Ok(Some(Segmentation::Tcp6)),
        5 => Ok(Some(Segmentation::Udp)),
        _ => Err(()),
    };
    assert_eq!(header.segmentation().map_err(drop), kind);
    let cleaned = header.cleaned(1234);
    let size = if bytes[1] == 0 { 0 } else { word(4) };
    assert_eq!((cleaned.flags(), cleaned.gso_type()), (bytes[0] & 1, bytes[1]));
    assert_eq!((cleaned.hdr_len(), cleaned.gso_size()), (1234, size));
    assert_eq!((cleaned.csum_start(), cleaned.csum_offset()), (word(6), word(8)));
    assert_eq!(cleaned.bytes()[10..], [0, 0]);
}
