//! Target `twin`: frames to and from a guest with other addresses inside. A second exchange restores each frame, checksums that were right stay so,
//! and lengths, payload and all that decides where headers lie are not touched.

use memlane::frame::{NetHeader, START, TCP, UDP};
use memlane::policy::PortLimits;
use memlane::policy::rules::Inside;
use memlane::twin::Twin;

use super::parser;

/// Addresses inside and outside; seeds and dictionaries use them.
const INNER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUTER: [u8; 6] = [2, 0, 0, 0, 0, 7];

fn twin() -> Option<Twin> {
    let ips = |list: [&str; 2]| list.iter().filter_map(|ip| ip.parse().ok()).collect::<Vec<_>>();
    let inside = Inside { mac: Some(mac(INNER)), addresses: ips(["10.0.0.5", "fd00::5"]) };
    let limits = PortLimits { inside: Some(inside), addresses: ips(["10.0.0.7", "fd00::7"]), ..PortLimits::default() };
    Twin::of(&limits, mac(OUTER))
}

fn mac(bytes: [u8; 6]) -> memlane::frame::MacAddress {
    memlane::frame::MacAddress::new(bytes)
}

/// Reads `data` as: virtio-net header, bytes of the frame that are not copied, the frame.
pub fn run(data: &[u8]) {
    let Some((header, rest)) = data.split_first_chunk::<{ NetHeader::SIZE }>() else { return };
    let Some((&hidden, frame)) = rest.split_first() else { return };
    let Some(twin) = twin() else { return };
    let (header, mut frame) = (NetHeader::from_bytes(*header), frame.to_vec());
    let copied = frame.len().min(START - 4).saturating_sub(hidden.into());
    let field = if header.is_plain() { complete(&mut frame[..]) } else { None };
    let exchange = |frame: &[u8]| {
        let mut changed = frame.to_vec();
        twin.exchange_in(&mut changed[..copied], header, frame.len()).ok().map(|()| changed)
    };
    let Some(once) = exchange(&frame) else {
        assert!(copied < frame.len(), "all of it was copied");
        return;
    };
    assert_eq!(parser::find(&once), parser::find(&frame), "headers lie where they lay");
    assert_eq!(frame[copied..], once[copied..]);
    if let Some(field) = field.filter(|field| field + 2 <= copied) {
        let mut again = once.clone();
        complete(&mut again);
        let is_zero = |bytes: &[u8]| matches!(bytes, [0, 0] | [0xff, 0xff]);
        let [is, full] = [&once, &again].map(|frame| frame[field..field + 2].to_vec());
        assert!(is == full || is_zero(&is) && is_zero(&full), "{is:02x?} of {full:02x?}: {frame:02x?}");
    }
    let twice = exchange(&once).unwrap_or_default();
    assert_eq!(twice.len(), frame.len(), "the second is possible, too");
    for (was, is) in frame.iter().zip(&twice) {
        assert!(was == is || matches!((was, is), (0, 0xff) | (0xff, 0)), "{frame:02x?}: {twice:02x?}");
    }
}

/// Computes the checksum of a TCP or UDP packet over all of the frame; returns its place.
fn complete(frame: &mut [u8]) -> Option<usize> {
    let (version, network, transport, protocol) = parser::find(frame)?;
    let field = transport + [(TCP, 16), (UDP, 6)].iter().find(|(known, _)| *known == protocol)?.1;
    let (from, length) = if version == 4 { (network + 12, 8) } else { (network + 8, 32) };
    if field + 2 > frame.len() || transport < from + length || frame.len() > usize::from(u16::MAX) {
        return None;
    }
    frame[field..field + 2].fill(0);
    let words =
        |bytes: &[u8]| bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum::<u64>();
    let mut sum =
        words(&frame[from..from + length]) + words(&frame[transport..]) + u64::from(protocol) + (frame.len() - transport) as u64;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let value = match !(sum as u16) {
        // RFC 768.
        0 if protocol == UDP => 0xffff,
        value => value,
    };
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
    Some(field)
}

/// A frame of each kind whose addresses are exchanged; inputs that fuzzing begins with.
pub fn seeds() -> [(&'static str, Vec<u8>); 10] {
    let v6 = |last: u8| [&[0xfd][..], &[0; 14], &[last]].concat();
    let group = [&[0xff, 2][..], &[0; 9], &[1, 0xff, 0, 0, 5]].concat();
    let seed = |header: [u8; 12], kind: [u8; 2], packet: Vec<u8>| {
        [&header[..], &[0], &[2, 0, 0, 0, 0, 9], &INNER, &kind, &packet].concat()
    };
    let ipv4 = |protocol: u8, message: &[u8]| {
        let header = [0x45, 0, 0, 20 + message.len() as u8, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 5, 10, 0, 0, 9];
        [&header[..], message].concat()
    };
    let ipv6 = |next: u8, source: &[u8], destination: &[u8], message: &[u8]| {
        [&[0x60, 0, 0, 0, 0, message.len() as u8, next, 255][..], source, destination, message].concat()
    };
    let tcp = [&[0x9c, 0x40, 0, 80][..], &[0; 8], &[0x50, 2, 0xff, 0xff, 0, 0, 0, 0]].concat();
    let dhcp = [&[0, 68, 0, 67, 1, 4, 0, 0, 1, 1, 6, 0][..], &[0; 8], &[10, 0, 0, 5], &[0; 12], &INNER, &[0; 60]].concat();
    let plain = [0; 12];
    let partial = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];
    let gso = [1, 4, 74, 0, 0, 4, 54, 0, 16, 0, 0, 0];
    [
        ("tcp", seed(plain, [8, 0], ipv4(6, &tcp))),
        ("tcp-partial", seed(partial, [8, 0], ipv4(6, &tcp))),
        ("udp-without-checksum", seed(plain, [8, 0], ipv4(17, &[0, 53, 0, 53, 0, 8, 0, 0]))),
        ("icmp-error", seed(plain, [8, 0], ipv4(1, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &ipv4(17, &tcp[..8])].concat()))),
        ("dhcp", seed(plain, [8, 0], ipv4(17, &dhcp))),
        (
            "arp",
            seed(plain, [8, 6], [&[0, 1, 8, 0, 6, 4, 0, 1][..], &INNER, &[10, 0, 0, 5, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9]].concat()),
        ),
        ("tcp6-gso", seed(gso, [0x86, 0xdd], ipv6(6, &v6(5), &v6(9), &[&tcp[..], &[7; 100]].concat()))),
        (
            "solicitation",
            seed(
                plain,
                [0x86, 0xdd],
                ipv6(58, &v6(9), &group, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &v6(5), &[1, 1], &INNER].concat()),
            ),
        ),
        (
            "icmp6-error",
            seed(
                plain,
                [0x86, 0xdd],
                ipv6(58, &v6(5), &v6(9), &[&[1, 4, 0, 0, 0, 0, 0, 0][..], &ipv6(6, &v6(9), &v6(5), &tcp)].concat()),
            ),
        ),
        (
            "mld-behind-a-router-alert",
            seed(
                plain,
                [0x86, 0xdd],
                ipv6(0, &v6(5), &group, &[&[58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group].concat()),
            ),
        ),
    ]
}
