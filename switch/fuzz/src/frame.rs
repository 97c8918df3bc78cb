//! Target `frame`: the parsers of frames and virtio-net headers, against a simple second opinion.

use memlane::frame::{Head, Layers, MacAddress, NetHeader, START, Segmentation, TCP, UDP, flow_hash, ip_version, pair_hash};

use memlane::headers::{Arp, Ipv4, Ipv6, Nd, NdKind, Upper};
use memlane::id::PortId;
use memlane::policy::gate::Gate;
use memlane::policy::rules::PortRules;
use memlane::policy::{AntiSpoof, PortLimits};
use memlane::table::Table;
use memlane::verdict::reading::Start;
use memlane::verdict::{Sender, Verdict, decide};

use super::parser;

/// Reads `data` as a frame, as a virtio-net header, and as an address.
pub fn run(data: &[u8]) {
    check_layers(&data[..data.len().min(START)]);
    check_head(data);
    check_headers(data);
    check_identity(data);
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
    assert!(!ports || found.3 == TCP, "only TCP is never fragmented");
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
