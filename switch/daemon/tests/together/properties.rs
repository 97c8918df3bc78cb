//! Properties of every input: parsers, segmentation, files, the table, the service quanta, the copy. The judges are those of the
//! fuzz targets, here fed with well-formed input of every kind.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::fuzz;
use memlane::config::{Document, PortEntry};
use memlane::copy::copy;
use memlane::egress::{Accounts, QUANTUM, WaitQueue};
use memlane::frame::{MAX_FRAME, MacAddress};
use memlane::id::PortId;
use memlane::offload::segment::Cutter;
use memlane::offload::{self, Offloads};
use memlane::packet::Packet as SwitchPacket;
use memlane::policy::Limit;
use memlane::settings::Poll;
use memlane::table::{Learned, Table};
use memlane::weight::Weight;
use memlane_rig::frames::{Host, NetHeader, Packet, complete_checksum};
use proptest::prelude::*;

/// Headers that may stand before a TCP or UDP header: up to two tags, and options of IPv4, or extension headers of IPv6 and a way
/// through segments.
#[derive(Clone, Debug)]
struct Layout {
    tags: u8,
    options: usize,
    hop_by_hop: Option<usize>,
    destination: Option<usize>,
    segments: Option<u8>,
}

impl Layout {
    fn of(&self, packet: Packet) -> Packet {
        let tagged = match self.tags {
            0 => packet,
            1 => packet.tagged(5),
            _ => packet.double_tagged(6, 7),
        };
        let mut packet = tagged.with_options(4 * self.options);
        if let Some(words) = self.hop_by_hop {
            packet = packet.with_hop_by_hop(8 * words);
        }
        if let Some(words) = self.destination {
            packet = packet.with_destination_options(8 * words);
        }
        match self.segments {
            Some(segments) => packet.routed(segments, "fd00::99".parse().unwrap()),
            None => packet,
        }
    }
}

/// Any of them; extension headers of up to `longest` times 8 bytes each, which is 256 times at most.
fn layout(longest: usize) -> impl Strategy<Value = Layout> {
    // Most are short.
    let words = move || proptest::option::of(prop_oneof![3 => 1..=longest.min(20), 1 => 1..=longest]);
    let segments = proptest::option::of(1_u8..=10);
    (0_u8..3, 0_usize..=10, words(), words(), segments).prop_map(|(tags, options, hop_by_hop, destination, segments)| Layout {
        tags,
        options,
        hop_by_hop,
        destination,
        segments,
    })
}

/// A packet of `frame`, of which the transmit side copies as many bytes as `header` has it do.
fn switch_packet(header: &NetHeader, frame: &mut [u8]) -> SwitchPacket {
    let mut packet = SwitchPacket::default();
    packet.set_frame(memlane::frame::NetHeader::from_bytes(header.bytes()), frame);
    packet
}

/// The flow of `packet`, sent plain and to be segmented.
fn flows(packet: &Packet) -> [u32; 2] {
    let ((gso, mut large), mut plain) = (packet.gso(100), packet.frame());
    [switch_packet(&NetHeader::default(), &mut plain).flow_hash(), switch_packet(&gso, &mut large).flow_hash()]
}

proptest! {
    /// A TCP connection is one flow, and so are the datagrams of a pair of UDP ports: behind any headers, in both directions, merged or not. The
    /// fragments between two hosts are another. All headers together are at most `LONGEST_HEADERS`: ports behind more are not read.
    #[test]
    fn a_flow_has_one_number_in_every_layout(layouts in prop::collection::vec(layout(240), 1..4), v6: bool, a: u16, b: u16, offset in 1_u16..8192) {
        let host = if v6 { Host::v6 as fn(u16) -> Host } else { Host::v4 };
        let (one, other) = (host(a).port(b), host(b).port(a));
        let [tcp, _] = flows(&Packet::tcp(one, other, 1, [7; 300]));
        let [udp, _] = flows(&Packet::udp(one, other, [7; 300]));
        let [fragments, _] = flows(&Packet::udp(one, other, [7; 300]).fragment(0, true));
        for layout in layouts {
            for (from, to) in [(one, other), (other, one)] {
                prop_assert_eq!(flows(&layout.of(Packet::tcp(from, to, 9, vec![1; 500]))), [tcp; 2]);
                prop_assert_eq!(flows(&layout.of(Packet::udp(from, to, vec![1; 500]))), [udp; 2]);
                let fragmented = layout.of(Packet::udp(from.port(77), to, vec![1; 500]));
                for (offset, more) in [(0, true), (offset, false), (offset, true)] {
                    prop_assert_eq!(flows(&fragmented.clone().fragment(offset, more)), [fragments; 2]);
                }
            }
        }
    }
}

#[test]
fn connections_and_datagrams_are_flows_by_their_ports() {
    let numbers = |of: &dyn Fn(Host, Host) -> Packet| -> HashSet<u32> {
        (0..64).flat_map(|port| flows(&of(Host::v4(1).port(port), Host::v4(2)))).collect()
    };
    let tcp = |from, to| Packet::tcp(from, to, 1, [0; 20]);
    assert_eq!(numbers(&tcp).len(), 64);
    assert_eq!(numbers(&|from, to| tcp(from, to).double_tagged(1, 2).with_options(40)).len(), 64);
    assert_eq!(numbers(&|from, to| Packet::udp(from, to, [0; 200])).len(), 64);
    assert_eq!(numbers(&|from, to| Packet::udp(from, to, [0; 200]).fragment(0, true)).len(), 1);
}

/// TCP or UDP over IPv4 or IPv6, in any layout, with every flag on or off.
fn packet(longest: usize) -> impl Strategy<Value = Packet> {
    let flags = any::<[bool; 6]>();
    let what = (0_u8..4, any::<(u16, u16, u32)>(), flags, 0..longest, any::<u8>());
    (what, layout(256)).prop_map(|((kind, (a, b, sequence), flags, length, fill), layout)| {
        let (from, to) = if kind & 1 == 0 { (Host::v4(a), Host::v4(b)) } else { (Host::v6(a), Host::v6(b)) };
        let payload: Vec<u8> = (0..length).map(|n| (n * 31) as u8 ^ fill).collect();
        let tcp = |packet: Packet| packet.with_tcp(|tcp| [tcp.ns, tcp.cwr, tcp.ece, tcp.fin, tcp.psh, tcp.urg] = flags);
        layout.of(if kind & 2 == 0 {
            tcp(Packet::tcp(from, to, sequence, payload))
        } else {
            Packet::udp(from.port(a), to, payload)
        })
    })
}

/// The frames into which `frame`, which asks for that, is cut; `None` if it is not, for its headers are too long.
fn cut(header: &NetHeader, frame: &[u8], partial: bool) -> Option<Vec<Vec<u8>>> {
    let mut copy = frame.to_vec();
    let mut packet = switch_packet(header, &mut copy);
    offload::check(&mut packet, &Offloads::ALL).unwrap();
    let mut cutter = Cutter::new(&packet, partial)?;
    let segments = (0..cutter.count()).map(|index| {
        let segment = cutter.segment(index);
        let from = segment.headers.len() + segment.payload_offset as usize;
        let mut bytes = [segment.headers, &frame[from..from + segment.payload_length as usize]].concat();
        let header = NetHeader::parse(&segment.header.bytes()).unwrap();
        let (start, offset) = match segment.complete {
            Some((start, field)) => (start as u16, (field - start) as u16),
            None => (header.checksum_start, header.checksum_offset),
        };
        complete_checksum(&NetHeader { checksum_start: start, checksum_offset: offset, ..header }, &mut bytes);
        let field = usize::from(start + offset);
        if offset == 6 && bytes[field..field + 2] == [0; 2] {
            // Zero means "no checksum" in UDP (RFC 768).
            bytes[field..field + 2].fill(0xff);
        }
        bytes
    });
    Some(segments.collect())
}

proptest! {
    /// The judge is etherparse's way to build packets: lengths and checksums are its, and with a routing header the final destination's.
    #[test]
    fn what_is_cut_is_what_the_sender_would_have_sent(packet in packet(20_000), size in 100_u16..=9000, partial: bool) {
        let (header, frame) = packet.gso(size);
        match cut(&header, &frame, partial) {
            Some(segments) => {
                let wanted: Vec<_> = packet.segments(size).iter().map(Packet::frame).collect();
                prop_assert!(segments == wanted);
            }
            None => prop_assert!(packet.header_bytes() > 4096 || packet.header_bytes() * packet.segments(size).len() > 144 * 1366),
        }
    }
}

/// Has the fuzz target's judge look at `frame` behind `header`.
fn judge_offload(receiver: u8, shape: u8, header: &NetHeader, frame: &[u8]) {
    let script = [&[0xff, receiver, shape, 0, 0], &header.bytes()[..], frame].concat();
    fuzz::offload::run(&script);
}

proptest! {
    #[test]
    fn segments_are_right(packet in packet(60_000), size in 1_u16..=9000, receiver: u8, shape: u8) {
        // Linux sends no smaller ones; more than 1366 of them are refused.
        let size = size.max((packet.payload.len() / 1366 + 1) as u16);
        let (header, frame) = packet.gso(size);
        judge_offload(receiver, shape, &header, &frame);
    }

    #[test]
    fn checksums_are_right(packet in packet(9000), receiver: u8, shape: u8) {
        let (header, frame) = packet.partial();
        judge_offload(receiver, shape, &header, &frame);
    }

    /// Ranges that begin and end anywhere: the judge knows those of transport checksums.
    #[test]
    fn other_ranges_are_not_checksummed(packet in packet(3000), start in 0_u16..200, offset in prop::sample::select(vec![2_u16, 6, 8, 14, 16, 26]), receiver: u8, shape: u8) {
        let (header, frame) = packet.partial();
        let any = NetHeader { checksum_start: start, checksum_offset: offset, ..header };
        judge_offload(receiver, shape, &any, &frame);
        judge_offload(receiver, shape, &NetHeader { checksum_offset: offset, ..header }, &frame);
    }

    #[test]
    fn headers_are_found(packet in packet(100), cut in 0_usize..150) {
        let frame = packet.frame();
        fuzz::frame::run(&frame);
        fuzz::frame::run(&frame[..cut.min(frame.len())]);
    }
}

/// A document without mistakes.
fn document() -> impl Strategy<Value = Document> {
    let port = (any::<bool>(), any::<bool>(), "[a-z]{1,5}", proptest::option::of(68_u16..=65_535), 1_u16..=16);
    let ports = prop::collection::vec(port, 1..20);
    let poll = prop_oneof![Just(Poll::Never), Just(Poll::Adaptive), Just(Poll::Always)];
    (1_usize..=64, poll, any::<Option<bool>>(), 1_u64..=60_000, 64_usize..=1 << 20, 1_u32..=1_000_000, ports).prop_map(
        |(workers, poll, in_order, stall_timeout_ms, waiting_frames, age, ports)| {
            let port = |(index, (tap, flag, segment, mtu, queues)): (usize, (bool, bool, String, Option<u16>, u16))| PortEntry {
                name: Some(format!("port-{index}")),
                vhost_user: (!tap).then(|| format!("/run/\"{index}\" ä.sock").into()),
                connect: !tap && flag,
                tap: tap.then(|| format!("tap{index}")),
                netns: (tap && flag).then(|| "blue".into()),
                mac: flag.then(|| format!("02:00:00:00:00:{index:02X}")),
                segment,
                mtu,
                queues,
                weight: 1 + index as u16,
                storm: index as u64 * 1000,
                transmit: Limit { rate: flag.then(|| format!("{queues}Mbit")), packets: mtu.map(u64::from), burst_ms: None },
                ..PortEntry::default()
            };
            let port = ports.into_iter().enumerate().map(port).collect();
            Document {
                workers,
                cpus: vec![0],
                poll: Some(poll),
                in_order,
                stall_timeout_ms,
                waiting_frames,
                age,
                port,
                ..Document::default()
            }
        },
    )
}

proptest! {
    /// The judge reads a written file, writes the result, and reads it again.
    #[test]
    fn what_is_written_can_be_read(document in document()) {
        let text = toml::to_string(&document).unwrap();
        memlane::config::check::check(&text).unwrap();
        fuzz::config::run(text.as_bytes());
    }
}

fn address(number: u32) -> MacAddress {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddress::new([2, 0, a, b, c, d])
}

proptest! {
    /// With room for all addresses a table is a map, whichever of them move, fall silent or go.
    #[test]
    fn a_table_with_room_is_a_map(acts in prop::collection::vec((0_u32..8, 0_u32..60, 0_u16..4), 1..300), key: u64) {
        // Sixty addresses in 2048 entries: no bucket ever fills in practice, and none gives way to a port below its quota.
        let table = Table::new(4, 256, key);
        let mut model: HashMap<u32, (u16, u32)> = HashMap::new();
        for (now, (act, number, port)) in acts.into_iter().enumerate() {
            let now = now as u32;
            match act {
                0 => {
                    table.forget(PortId(port));
                    model.retain(|_, (behind, _)| *behind != port);
                }
                1 => {
                    table.expire(now, 40);
                    model.retain(|_, (_, since)| now - *since <= 40);
                }
                _ => {
                    let known = model.insert(number, (port, now)).is_some_and(|(behind, _)| behind == port);
                    let learned = table.learn(address(number), PortId(port), now);
                    prop_assert_eq!(learned, if known { Learned::Known } else { Learned::Changed });
                }
            }
            for number in 0..60 {
                prop_assert_eq!(table.find(address(number)), model.get(&number).map(|&(port, _)| PortId(port)));
            }
        }
    }

    /// No port holds more than its quota, and a port with few addresses loses none to a port with many.
    #[test]
    fn a_greedy_port_gets_its_share_and_no_more(greedy in prop::collection::vec(any::<u32>(), 200..2000), modest in 1_u32..16, key: u64) {
        let table = Table::new(3, 64, key);
        let kept: Vec<u32> = (0..modest)
            .filter(|&n| table.learn(address(n), PortId(0), 0) == Learned::Changed)
            .filter(|&n| table.find(address(n)).is_some())
            .collect();
        for (now, number) in greedy.into_iter().enumerate() {
            table.learn(address(1000 + number / 2), PortId(1), now as u32);
        }
        let of = |port| table.records().into_iter().filter(|record| record.port == PortId(port)).count();
        prop_assert!(of(1) <= 64, "{} entries", of(1));
        // The greedy port passed the modest one's count within a few addresses; those until then are all that it could take.
        prop_assert!(kept.len() - of(0) <= modest as usize);
        prop_assert!(of(0) * 2 >= kept.len());
    }

    /// Every sender that waits gets bytes by its weight, each in its own order, and nothing gets lost.
    #[test]
    fn turns_are_fair(frames in prop::collection::vec((0_u16..5, 60_u32..=MAX_FRAME), 1..400)) {
        let (mut accounts, mut wait_queue) = (Accounts::default(), WaitQueue::new(800, 5));
        let mut waiting: HashMap<u16, VecDeque<(u16, u32)>> = HashMap::new();
        for (number, &(sender, length)) in frames.iter().enumerate() {
            let mut packet = SwitchPacket::default();
            (packet.source, packet.head, packet.length) = (PortId(sender), number as u16, length);
            let spot = wait_queue.enqueue(packet).unwrap();
            accounts.push(PortId(sender), spot, &mut wait_queue);
            waiting.entry(sender).or_default().push_back((number as u16, length));
        }
        let mut served: HashMap<u16, u64> = waiting.keys().map(|&sender| (sender, 0)).collect();
        while let Some(spot) = accounts.next(&wait_queue) {
            let packet = wait_queue.packet(spot);
            let (sender, head, length) = (packet.source.0, packet.head, packet.length);
            prop_assert_eq!(waiting.get_mut(&sender).and_then(VecDeque::pop_front), Some((head, length)));
            accounts.served(Weight::new(1 + sender), &mut wait_queue);
            *served.get_mut(&sender).unwrap() += u64::from(length);
            let by_weight = |sender: &u16| served[sender] / u64::from(1 + sender);
            let of_waiting = || waiting.iter().filter(|(_, queue)| !queue.is_empty()).map(|(sender, _)| by_weight(sender));
            if let (Some(least), Some(most)) = (of_waiting().min(), of_waiting().max()) {
                // Start-time fair queueing in turns: the lead of either sender is a frame and a quantum at most.
                prop_assert!(most - least <= 2 * u64::from(QUANTUM + MAX_FRAME), "{:?}", served);
            }
        }
        prop_assert!(waiting.values().all(VecDeque::is_empty));
        prop_assert_eq!((accounts.waiting(), wait_queue.used()), (0, 0));
    }
}

/// Copies `length` bytes between these offsets, and looks whether exactly they came.
fn try_copy(from: &[u8], length: usize, (source, target): (usize, usize)) {
    let mut to = vec![0xee_u8; target + length + 64];
    // SAFETY: both are that long from these offsets.
    unsafe { copy(to.as_mut_ptr().add(target), from.as_ptr().add(source), length) };
    assert!(to[target..target + length] == from[source..source + length], "{length} bytes from {source} to {target}");
    assert!(
        to[..target].iter().chain(&to[target + length..]).all(|&byte| byte == 0xee),
        "{length} bytes from {source} to {target}"
    );
}

#[test]
fn every_length_and_alignment_is_copied() {
    let from: Vec<u8> = (0..80_000_u32).map(|n| (n * 31 % 251) as u8).collect();
    for length in 0..=320 {
        for alignment in 0..64 * 64 {
            // All pairs for short copies, where the routine is by cases; one alignment at a time for the others.
            let pair = (alignment / 64, alignment % 64);
            if length <= 64 && alignment % 7 == length % 7 || pair.0 == 0 || pair.1 == 0 {
                try_copy(&from, length, pair);
            }
        }
    }
    for length in [511, 512, 513, 1460, 1514, 4095, 4096, 4097, 8191, 8192, 8193, 16_385, 65_549] {
        (0..64).for_each(|alignment| try_copy(&from, length, (alignment, 63 - alignment)));
    }
}
