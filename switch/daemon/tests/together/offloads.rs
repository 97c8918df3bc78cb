//! Offloads that a sender leaves undone are done for each receiver that has not negotiated them, and for no other.

use crate::common::*;
use memlane::stats::DropReason;
use memlane_rig::frames::{GsoKind, Host, NetHeader, Packet, check, complete_checksum};
use memlane_rig::frontend::features::{self, Features};
use memlane_rig::guest::{Frame, Layout, ReceiveBuffers, ToyGuest};

const RECEIVE: [(Features, GsoKind); 4] = [
    (features::GUEST_TSO4, GsoKind::Tcp4),
    (features::GUEST_TSO6, GsoKind::Tcp6),
    (features::GUEST_USO4, GsoKind::UdpL4),
    (features::GUEST_USO6, GsoKind::UdpL4),
];
const ALL_RECEIVE: Features = features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::GUEST_USO4
    | features::GUEST_USO6;
const ALL_SEND: Features = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_ECN | features::HOST_USO;

/// Where packets with a routing header go in the end.
const LAST: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x99);

fn host(index: u16, version: u8) -> Host {
    let mut host = if version == 4 { Host::v4(index + 1) } else { Host::v6(index + 1) };
    host.mac = mac(index.into());
    host
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Packets of every kind that can be segmented, from guest 0 to guest 1.
fn packets(length: usize) -> Vec<Packet> {
    let mut packets = Vec::new();
    for version in [4, 6] {
        let (from, to) = (host(0, version), host(1, version));
        let tcp = Packet::tcp(from, to, 0xffff_f000, payload(length)).with_tcp(|tcp| (tcp.psh, tcp.fin) = (true, true));
        packets.push(tcp.clone().with_tcp(|tcp| (tcp.cwr, tcp.ece) = (true, true)));
        packets.push(tcp.clone().tagged(5));
        packets.push(tcp.clone().double_tagged(5, 6).with_options(40));
        packets.push(tcp.clone().routed(2, LAST));
        packets.push(tcp);
        packets.push(Packet::udp(from, to, payload(length)));
        packets.push(Packet::udp(from, to, payload(length)).tagged(77));
    }
    packets
}

/// Packets with extension headers of more bytes than are copied on transmit.
fn long_packets(length: usize) -> Vec<Packet> {
    let (from, to) = (host(0, 6), host(1, 6));
    let tcp = Packet::tcp(from, to, 1, payload(length));
    vec![
        tcp.clone().with_hop_by_hop(72).with_tcp(|tcp| tcp.set_options_raw(&[1; 12]).unwrap()),
        tcp.clone().with_hop_by_hop(248).double_tagged(5, 6),
        tcp.clone().routed(5, LAST),
        tcp.clone().with_hop_by_hop(2048),
        tcp.with_hop_by_hop(512).with_destination_options(1024).routed(20, LAST),
        Packet::udp(from, to, payload(length)).with_destination_options(800),
    ]
}

/// Whether a receiver with these features takes `packet` unsegmented.
fn takes(receiver: Features, packet: &Packet) -> bool {
    let (header, _) = packet.gso(1448);
    let version = if packet.frame()[packet.network_offset()] >> 4 == 4 { 4 } else { 6 };
    let wanted = match (header.gso, version) {
        (GsoKind::Tcp4, _) => features::GUEST_TSO4,
        (GsoKind::Tcp6, _) => features::GUEST_TSO6,
        (_, 4) => features::GUEST_USO4,
        _ => features::GUEST_USO6,
    };
    let ecn = !header.ecn || receiver & features::GUEST_ECN != 0;
    receiver & features::GUEST_CSUM != 0 && receiver & wanted != 0 && ecn
}

/// Takes the segments of `packet` and compares each with the expected one.
fn assert_segments(receiver: &mut ToyGuest, packet: &Packet, size: u16, partial: bool) {
    for (index, segment) in packet.segments(size).iter().enumerate() {
        let Frame { header, mut bytes, .. } = receiver.receive(TIMEOUT).unwrap();
        assert_eq!(header.gso, GsoKind::None, "segment {index}");
        assert_eq!(header.needs_checksum, partial, "segment {index}");
        check(&header, &bytes).unwrap_or_else(|flaw| panic!("segment {index} of {packet:?}: {flaw:?}"));
        if partial {
            complete_checksum(&header, &mut bytes);
        }
        assert!(bytes == segment.frame(), "segment {index}:\n{:02x?}\n{:02x?}", &bytes[..80], &segment.frame()[..80]);
    }
}

fn pair(receiver: Features, receive: ReceiveBuffers, ring: u16) -> (Bed, ToyGuest, ToyGuest) {
    // The receiver may be slow: it is compared with packets that are built meanwhile.
    let bed = Bed::with("stall-timeout-ms = 10000", &["", ""]);
    let mut a = bed.guest_like(0, bed.builder(0).features(features::LINUX | ALL_SEND | ALL_RECEIVE));
    let others = (features::LINUX | ALL_SEND) & !ALL_RECEIVE;
    let builder = bed.builder(1).features(others | receiver).receive_buffers(receive).ring_size(ring);
    let mut b = bed.guest_like(1, builder);
    announce(&mut [&mut a, &mut b]);
    // Addresses are learned for each VLAN.
    let hello = Packet::udp(host(1, 4), host(0, 4), [1; 20]);
    for hello in [hello.clone().tagged(5), hello.clone().tagged(77), hello.double_tagged(5, 6)] {
        b.send(&hello.frame()).unwrap();
        a.receive(TIMEOUT).unwrap();
    }
    (bed, a, b)
}

#[test]
fn large_frames_pass_where_the_receiver_takes_them_and_are_cut_where_it_does_not() {
    let choices: Vec<Features> = [0, features::GUEST_CSUM, ALL_RECEIVE, ALL_RECEIVE & !features::GUEST_ECN]
        .into_iter()
        .chain(RECEIVE.iter().map(|(feature, _)| features::GUEST_CSUM | feature))
        .chain(RECEIVE.iter().map(|(feature, _)| ALL_RECEIVE & !feature))
        .collect();
    for receiver in choices {
        let (_bed, mut a, mut b) = pair(receiver, ReceiveBuffers::SMALL, 256);
        for packet in packets(60_000) {
            let (header, bytes) = packet.gso(1448);
            a.send_with(&header, &Layout::single(), &bytes).unwrap();
            if takes(receiver, &packet) {
                let got = b.receive(TIMEOUT).unwrap();
                assert_eq!((got.header.gso, got.header.gso_size, got.header.ecn), (header.gso, 1448, header.ecn));
                assert_eq!(got.header.header_length as usize, packet.header_bytes());
                assert!(got.bytes == bytes);
            } else {
                assert_segments(&mut b, &packet, 1448, receiver & features::GUEST_CSUM != 0);
            }
        }
    }
}

#[test]
fn headers_of_any_length_pass_and_are_cut() {
    for receiver in [ALL_RECEIVE, features::GUEST_CSUM, 0] {
        let (_bed, mut a, mut b) = pair(receiver, ReceiveBuffers::SMALL, 256);
        for layout in [Layout::single(), Layout::iovecs([12, 30, 60, 1, 999])] {
            for packet in long_packets(30_000) {
                let (header, bytes) = packet.gso(1200);
                assert!(packet.header_bytes() > 144);
                a.send_with(&header, &layout, &bytes).unwrap();
                if receiver == ALL_RECEIVE {
                    let got = b.receive(TIMEOUT).unwrap();
                    assert_eq!((got.header.gso, got.header.gso_size), (header.gso, 1200));
                    assert_eq!(got.header.header_length as usize, packet.header_bytes());
                    assert!(got.bytes == bytes);
                } else {
                    assert_segments(&mut b, &packet, 1200, receiver != 0);
                }
            }
        }
    }
}

/// Headers of any length pass where no segmentation is needed; where it is, headers that would be repeated too often are refused.
#[test]
fn headers_that_are_too_long_to_be_repeated_cost_the_frame_and_no_more() {
    for (receiver, packet, size) in [
        (
            ALL_RECEIVE,
            Packet::tcp(host(0, 6), host(1, 6), 1, payload(9000)).with_hop_by_hop(2048).with_destination_options(2048),
            1200,
        ),
        (ALL_RECEIVE, long_packets(50_000).remove(3), 48),
        (0, Packet::tcp(host(0, 6), host(1, 6), 1, payload(9000)).with_hop_by_hop(2048).with_destination_options(2048), 1200),
        (0, long_packets(50_000).remove(3), 48),
    ] {
        let (bed, mut a, mut b) = pair(receiver, ReceiveBuffers::SMALL, 256);
        let (header, bytes) = packet.gso(size);
        a.send_with(&header, &Layout::single(), &bytes).unwrap();
        if receiver == ALL_RECEIVE {
            assert!(b.receive(TIMEOUT).unwrap().bytes == bytes);
        } else {
            a.wait_sent(TIMEOUT).unwrap();
            bed.wait_for(|bed| bed.drops(1, DropReason::BadSegmentation) == 1, "the frame is dropped");
            assert_silent(&mut b);
        }
    }
}

/// AE, CWR and ECE are a counter where Accurate ECN was negotiated (RFC 9768, section 3.2.2), and no frame tells whether it was.
#[test]
fn every_segment_has_the_ecn_flags_as_sent() {
    for receiver in [ALL_RECEIVE, ALL_RECEIVE & !features::GUEST_ECN, features::GUEST_CSUM, 0] {
        let (_bed, mut a, mut b) = pair(receiver, ReceiveBuffers::SMALL, 256);
        for (ace, version) in (0..8).zip([4, 6].into_iter().cycle()) {
            let flags = [ace & 4 != 0, ace & 2 != 0, ace & 1 != 0];
            let packet = Packet::tcp(host(0, version), host(1, version), 1, payload(4200));
            let packet = packet.with_tcp(|tcp| [tcp.ns, tcp.cwr, tcp.ece] = flags);
            let (header, bytes) = packet.gso(1400);
            let at = packet.transport_offset() + 12;
            a.send_with(&header, &Layout::single(), &bytes).unwrap();
            for _ in 0..if takes(receiver, &packet) { 1 } else { 3 } {
                let got = b.receive(TIMEOUT).unwrap().bytes;
                let ace_field = (got[at] & 1) << 2 | got[at + 1] >> 6;
                assert_eq!(ace_field, ace, "to a receiver with {receiver:#x}");
            }
        }
    }
}

#[test]
fn segments_are_right_for_every_size_and_layout() {
    let (_bed, mut a, mut b) = pair(0, ReceiveBuffers::SMALL, 256);
    let layouts = [Layout::single(), Layout::iovecs([12, 30, 60, 1, 999]), Layout::iovecs(vec![61; 20]).indirect()];
    for (number, (length, size)) in
        [(1, 1), (100, 100), (101, 100), (1448, 1448), (1449, 1448), (9999, 777), (65_000, 48), (4096, 4095)]
            .into_iter()
            .enumerate()
    {
        for packet in packets(length) {
            let (header, bytes) = packet.gso(size);
            a.send_with(&header, &layouts[number % layouts.len()], &bytes).unwrap();
            assert_segments(&mut b, &packet, size, false);
        }
    }
}

#[test]
fn segments_fit_receivers_without_mergeable_buffers() {
    let bed = Bed::new(2);
    let mut a = bed.guest_like(0, bed.builder(0).features(features::LINUX | ALL_SEND));
    let wanted = features::LINUX & !ALL_RECEIVE & !features::MRG_RXBUF;
    let receive = ReceiveBuffers { count: None, size: 1526 + 4, iovec: 300, repost: true };
    let mut b = bed.guest_like(1, bed.builder(1).features(wanted).receive_buffers(receive));
    announce(&mut [&mut a, &mut b]);
    for packet in packets(20_000) {
        let (header, bytes) = packet.gso(1400);
        a.send_with(&header, &Layout::single(), &bytes).unwrap();
        assert_segments(&mut b, &packet, 1400, false);
    }
}

#[test]
fn a_frame_of_more_segments_than_the_ring_holds_is_delivered_in_parts() {
    let (_bed, mut a, mut b) = pair(0, ReceiveBuffers { count: Some(8), ..ReceiveBuffers::SMALL }, 8);
    for packet in packets(60_000) {
        let (header, bytes) = packet.gso(1448);
        a.send_with(&header, &Layout::single(), &bytes).unwrap();
        assert_segments(&mut b, &packet, 1448, false);
    }
    a.wait_sent(TIMEOUT).unwrap();
}

#[test]
fn checksums_are_completed_only_for_receivers_that_do_not_do_it() {
    for receiver in [0, features::GUEST_CSUM] {
        let (_bed, mut a, mut b) = pair(receiver, ReceiveBuffers::SMALL, 256);
        for length in [0, 1, 2, 3, 60, 1001, 1448, 9001] {
            for packet in packets(length) {
                let (header, bytes) = packet.partial();
                a.send_with(&header, &Layout::iovecs([12, 13, 40, 7]), &bytes).unwrap();
                let got = b.receive(TIMEOUT).unwrap();
                assert_eq!(got.header.needs_checksum, receiver != 0);
                check(&got.header, &got.bytes).unwrap_or_else(|flaw| panic!("{packet:?}: {flaw:?}"));
                assert!(got.bytes == if receiver == 0 { packet.frame() } else { bytes });
            }
        }
    }
}

/// A guest that takes everything, behind this link, and one that sends to it.
fn behind_a_link(link: &str) -> (Bed, ToyGuest, ToyGuest) {
    let bed = Bed::with("", &["", &format!("link = {link}")]);
    let guest = |index| bed.guest_like(index, bed.builder(index).features(features::LINUX | ALL_SEND | ALL_RECEIVE));
    let (mut a, mut b) = (guest(0), guest(1));
    b.send(&frame(mac(1), BROADCAST, 60, 0)).unwrap();
    a.receive(TIMEOUT).unwrap();
    (bed, a, b)
}

/// A wire's frames are no longer than an MTU (IEEE 802.3), and so are an emulated one's, for any receive offloads of the guests at
/// its ends.
#[test]
fn a_link_loses_segments_of_large_frames_one_by_one() {
    let (bed, mut a, mut b) = behind_a_link("{ loss = 0.1 }");
    let (header, bytes) = Packet::tcp(host(0, 4), host(1, 4), 1, payload(40_000)).gso(1000);
    let (mut arrived, frames) = (0, 100);
    for number in 1..=frames {
        a.send_with(&header, &Layout::single(), &bytes).unwrap();
        let met = |bed: &Bed| bed.totals(1).receive_frames + bed.drops(1, DropReason::LinkLoss);
        bed.wait_for(|bed| met(bed) == 40 * number, "each segment arrives or is lost");
        let before = arrived;
        while let Some(got) = b.try_receive().unwrap() {
            check(&got.header, &got.bytes).unwrap();
            arrived += 1;
        }
        assert!(arrived > before, "all segments of frame {number} in a row");
    }
    let lost = bed.drops(1, DropReason::LinkLoss);
    assert_eq!(arrived + lost, 40 * frames);
    // Four standard deviations of 4000 draws.
    assert!((lost as f64 - 400.0).abs() < 76.0, "{lost}");
}

#[test]
fn segments_of_a_large_frame_wait_for_a_links_transmitter_one_by_one() {
    let (bed, mut a, mut b) = behind_a_link("{ rate = \"10Mbit\", queue = 8 }");
    let (header, bytes) = Packet::tcp(host(0, 4), host(1, 4), 1, payload(40_000)).gso(1000);
    a.send_with(&header, &Layout::single(), &bytes).unwrap();
    // One is being sent, eight wait.
    bed.wait_for(|bed| bed.drops(1, DropReason::LinkFull) == 31, "the others find no room");
    (0..9).for_each(|_| drop(b.receive(TIMEOUT).unwrap()));
    assert_silent(&mut b);
}

#[test]
fn each_receiver_of_a_flooded_frame_gets_what_it_can_take() {
    let bed = Bed::new(3);
    let mut a = bed.guest_like(0, bed.builder(0).features(features::LINUX | ALL_SEND));
    let mut b = bed.guest_like(1, bed.builder(1).features(features::LINUX | ALL_RECEIVE));
    let mut c = bed.guest_like(2, bed.builder(2).features(features::LINUX & !ALL_RECEIVE));
    let mut to = host(1, 4);
    to.mac = BROADCAST;
    let packet = Packet::udp(host(0, 4), to, payload(8000));
    let (header, bytes) = packet.gso(1000);
    a.send_with(&header, &Layout::single(), &bytes).unwrap();
    assert!(b.receive(TIMEOUT).unwrap().bytes == bytes);
    assert_segments(&mut c, &packet, 1000, false);
}

#[test]
fn offloads_that_were_not_agreed_or_make_no_sense_are_dropped_and_counted() {
    let bed = Bed::new(2);
    let wanted = features::LINUX & !features::HOST_TSO6 & !features::HOST_USO;
    let (mut a, mut b) = (bed.guest_like(0, bed.builder(0).features(wanted)), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let tcp4 = Packet::tcp(host(0, 4), host(1, 4), 1, payload(4000));
    let tcp6 = Packet::tcp(host(0, 6), host(1, 6), 1, payload(4000));
    let (good, bytes) = tcp4.gso(1000);
    let mut send = |header: NetHeader, bytes: &[u8]| {
        a.send_with(&header, &Layout::single(), bytes).unwrap();
        a.wait_sent(TIMEOUT).unwrap();
    };
    send(tcp6.gso(1000).0, &tcp6.gso(1000).1);
    assert_eq!(bed.drops(0, DropReason::OffloadNotAgreed), 1);
    let nonsense = [
        NetHeader { gso_size: 0, ..good },
        NetHeader { gso_size: 1, ..good },
        NetHeader { gso: GsoKind::Tcp6, ..good },
        NetHeader { gso: GsoKind::UdpL4, ..good },
        NetHeader { needs_checksum: false, ..good },
        NetHeader { checksum_start: good.checksum_start + 1, ..good },
        NetHeader { checksum_offset: 6, ..good },
    ];
    for header in nonsense {
        send(header, &bytes);
    }
    assert_eq!(bed.drops(0, DropReason::BadSegmentation), nonsense.len() as u64);
    let (partial, bytes) = tcp4.partial();
    for header in [
        NetHeader { checksum_start: bytes.len() as u16, ..partial },
        NetHeader { checksum_offset: bytes.len() as u16, ..partial },
        NetHeader { checksum_start: u16::MAX, checksum_offset: u16::MAX, ..partial },
        NetHeader { checksum_start: 0, ..partial },
    ] {
        send(header, &bytes);
    }
    assert_eq!(bed.drops(0, DropReason::BadChecksumOffload), 4);
    assert_silent(&mut b);
    send(NetHeader { header_length: u16::MAX, ..good }, &tcp4.gso(1000).1);
    assert_eq!(b.receive(TIMEOUT).unwrap().header.header_length as usize, tcp4.header_bytes());
}

/// Honest frames with a checksum that, once completed, would have been the sender's choice of an IPv4 source, an ARP sender, a UDP or a TCP port.
#[test]
fn other_fields_are_not_completed_whatever_the_receiver_agreed_to() {
    for receiver in [0, features::GUEST_CSUM, ALL_RECEIVE] {
        let (bed, mut a, mut b) = pair(receiver, ReceiveBuffers::SMALL, 256);
        let udp = Packet::udp(host(0, 4).port(67), host(1, 4).port(9999), payload(40)).frame();
        let tcp = Packet::tcp(host(0, 4), host(1, 4).port(80), 1, payload(40)).frame();
        let mut arp = udp.clone();
        arp[12..14].copy_from_slice(&[8, 6]);
        let requests = [(&udp, 14, 14), (&arp, 14, 16), (&udp, 34, 2), (&tcp, 34, 2), (&tcp, 34, 6), (&udp, 34, 16), (&udp, 34, 8)];
        for (frame, start, offset) in requests {
            let header = NetHeader { needs_checksum: true, checksum_start: start, checksum_offset: offset, ..NetHeader::default() };
            a.send_with(&header, &Layout::single(), frame).unwrap();
        }
        a.wait_sent(TIMEOUT).unwrap();
        assert_eq!(bed.drops(0, DropReason::ChecksumMisplaced), requests.len() as u64);
        assert_silent(&mut b);
    }
}
