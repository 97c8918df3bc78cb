//! virtio-net headers that are cut off, that lie, or that ask for offloads that were not negotiated.

use crate::frames::control;
use crate::frames::{GsoKind, Host, NetHeader, Packet};
use crate::frontend::features;
use crate::guest::{Layout, ToyGuest};

use super::hand::{HEADER, used_index};
use super::{Hand, Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Header:
    "header-short" header_short Frame "Chains of 0 to 11 bytes: too short for a header (DPDK CVE-2022-2132)"
    "header-only" header_only Frame "A header without a frame"
    "header-split" header_split Nothing "A header spread over three and over twelve descriptors (DPDK CVE-2022-2132, XSA-423)"
    "header-split-indirect" header_split_indirect Nothing "The same in an indirect table"
    "checksum-start-beyond" checksum_start_beyond Frame "A checksum to begin behind the frame (DPDK CVE-2024-11614)"
    "checksum-offset-beyond" checksum_offset_beyond Frame "A checksum to be stored behind the frame"
    "checksum-in-ethernet-header" checksum_in_ethernet_header Frame "A checksum to be put into the MAC addresses"
    "gso-size-zero" gso_size_zero Frame "Segments of 0 bytes (Linux CVE-2024-43897)"
    "gso-size-one" gso_size_one Frame "60000 bytes in segments of 1: amplification"
    "gso-size-max" gso_size_max Frame "Segments of 65535 bytes (Linux CVE-2026-74684)"
    "gso-header-length-beyond" gso_header_length_beyond Frame "A header length beyond the frame (DPDK CVE-2026-100236)"
    "gso-header-length-zero" gso_header_length_zero Frame "A header length of 0: it is a hint, no more"
    "gso-without-checksum" gso_without_checksum Frame "Segmentation asked for without a checksum"
    "gso-not-negotiated" gso_not_negotiated Frame "Segmentation asked for by a guest that did not acknowledge it"
    "gso-unknown-kind" gso_unknown_kind Frame "Kinds of segmentation that do not exist"
    "gso-wrong-kind" gso_wrong_kind Frame "IPv6 segmentation of an IPv4 packet, TCP of UDP, and so on"
    "gso-of-arp" gso_of_arp Frame "Segmentation of what is not IP (Linux CVE-2023-54051's kin: protocol 0)"
    "gso-fragmentation" gso_fragmentation Frame "UDP fragmentation (UFO), which is not offered"
    "gso-without-payload" gso_without_payload Frame "Segmentation of a packet that is all header"
    "unknown-header-flags" unknown_header_flags Frame "Header flags of no meaning"
    "buffers-from-driver" buffers_from_driver Nothing "num_buffers set by the driver, where it means nothing"
}

fn header_short(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let mut hand = Hand::transmit(&mut guest);
    let place = hand.place(&[0; HEADER])?;
    for length in 0..HEADER as u16 {
        hand.describe(length, place, length.into(), 0, 0);
        hand.offer(length);
        hand.describe(16 + 2 * length, place, length.into(), crate::ring::DESC_NEXT, 17 + 2 * length);
        hand.describe(17 + 2 * length, place, 0, 0, 0);
        hand.offer(16 + 2 * length);
    }
    hand.show(&mut guest);
    Ok(hand.leave(guest))
}

fn header_only(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |_| vec![(NetHeader::default(), vec![])])
}

fn header_split(stage: &mut Stage<'_>) -> Done {
    let guest = stage.guest(|builder| builder)?;
    send_layouts(stage, guest, &[Layout::iovecs([1, 4, 7]), Layout::iovecs([1; 12]), Layout::iovecs([5, 20, 3])])
}

fn header_split_indirect(stage: &mut Stage<'_>) -> Done {
    let guest = stage.guest_with(features::INDIRECT_DESC)?;
    let layouts = [Layout::iovecs([1, 4, 7]).indirect(), Layout::iovecs([1; 30]).indirect()];
    send_layouts(stage, guest, &layouts)
}

fn checksum_start_beyond(stage: &mut Stage<'_>) -> Done {
    spoil(stage, |header, length| {
        let starts = [length, length - 1, length + 1, 0x7fff, u16::MAX];
        starts.map(|start| NetHeader { checksum_start: start, ..header }).to_vec()
    })
}

fn checksum_offset_beyond(stage: &mut Stage<'_>) -> Done {
    spoil(stage, |header, length| {
        let offsets = [length, length - header.checksum_start - 1, u16::MAX, u16::MAX - header.checksum_start + 1];
        offsets.map(|offset| NetHeader { checksum_offset: offset, ..header }).to_vec()
    })
}

fn checksum_in_ethernet_header(stage: &mut Stage<'_>) -> Done {
    spoil(stage, |header, _| {
        [(0, 0), (0, 6), (13, 0), (14, 8)]
            .map(|(start, offset)| NetHeader { checksum_start: start, checksum_offset: offset, ..header })
            .to_vec()
    })
}

fn gso_size_zero(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| vec![NetHeader { gso_size: 0, ..header }])
}

fn gso_size_one(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| vec![NetHeader { gso_size: 1, ..header }; 8])
}

fn gso_size_max(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| vec![NetHeader { gso_size: u16::MAX, ..header }])
}

fn gso_header_length_beyond(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| [60_055, 61_000, u16::MAX].map(|length| NetHeader { header_length: length, ..header }).to_vec())
}

fn gso_header_length_zero(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| [0, 1, 13, 53].map(|length| NetHeader { header_length: length, ..header }).to_vec())
}

fn gso_without_checksum(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| vec![NetHeader { needs_checksum: false, ..header }])
}

fn gso_not_negotiated(stage: &mut Stage<'_>) -> Done {
    let guest = stage.guest(|builder| builder.without(features::TCP_OFFLOADS | features::HOST_USO))?;
    send(guest, &[tcp(stage, 60_000).gso(1448), tcp(stage, 1000).partial()])
}

fn gso_unknown_kind(stage: &mut Stage<'_>) -> Done {
    gso(stage, |header| [2, 6, 7, 0x10, 0x7f].map(|bits| NetHeader { gso: GsoKind::Other(bits), ..header }).to_vec())
}

fn gso_wrong_kind(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let (me, peer) = stage.hosts();
        let v6 = |host: Host, number| Host { mac: host.mac, ..Host::v6(number) };
        let tcp4 = Packet::tcp(me, peer, 1, vec![7; 9000]).gso(1448);
        let tcp6 = Packet::tcp(v6(me, 1), v6(peer, 2), 1, vec![7; 9000]).gso(1428);
        let udp4 = Packet::udp(me, peer, vec![7; 9000]).gso(1448);
        let wrong = |(header, frame): &(NetHeader, Vec<u8>), gso| (NetHeader { gso, ..*header }, frame.clone());
        vec![
            wrong(&tcp4, GsoKind::Tcp6),
            wrong(&tcp6, GsoKind::Tcp4),
            wrong(&udp4, GsoKind::Tcp4),
            wrong(&tcp4, GsoKind::UdpL4),
            wrong(&udp4, GsoKind::Tcp6),
        ]
    })
}

fn gso_of_arp(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let arp = control::announcement(stage.mac, std::net::Ipv4Addr::new(10, 0, 0, 1));
        let (header, _) = tcp(stage, 4000).gso(1448);
        let (mut none, mut unknown) = (vec![0; 4000], vec![0x33; 4000]);
        none[..6].copy_from_slice(&stage.peer);
        unknown[..6].copy_from_slice(&stage.peer);
        vec![(header, arp), (header, none), (header, unknown)]
    })
}

fn gso_fragmentation(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let (me, peer) = stage.hosts();
        let (header, frame) = Packet::udp(me, peer, vec![7; 9000]).gso(1448);
        vec![(NetHeader { gso: GsoKind::Udp, ..header }, frame)]
    })
}

fn gso_without_payload(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| vec![tcp(stage, 0).gso(1448), tcp(stage, 1).gso(1448)])
}

fn unknown_header_flags(stage: &mut Stage<'_>) -> Done {
    let flags = [0x8, 0x10, 0x20, 0x80, 0xf8];
    send_all(stage, |stage| {
        let with = |flags| (NetHeader { other_flags: flags, ..NetHeader::default() }, stage.frame(100));
        flags.map(with).to_vec()
    })
}

fn buffers_from_driver(stage: &mut Stage<'_>) -> Done {
    send_all(stage, |stage| {
        let with = |buffers| (NetHeader { buffers, ..NetHeader::default() }, stage.frame(100));
        [2, 255, u16::MAX].map(with).to_vec()
    })
}

/// A TCP packet to the peer.
fn tcp(stage: &Stage<'_>, length: usize) -> Packet {
    let (me, peer) = stage.hosts();
    Packet::tcp(me, peer, 1, vec![7; length])
}

/// Sends a frame of 60000 payload bytes with each of the headers that `change` makes of a right one.
fn gso(stage: &Stage<'_>, change: impl FnOnce(NetHeader) -> Vec<NetHeader>) -> Done {
    send_all(stage, |stage| {
        let (header, frame) = tcp(stage, 60_000).gso(1448);
        change(header).into_iter().map(|header| (header, frame.clone())).collect()
    })
}

/// Sends a frame with a partial checksum with each of the headers that `change` makes of a right one and the frame's length.
fn spoil(stage: &Stage<'_>, change: impl FnOnce(NetHeader, u16) -> Vec<NetHeader>) -> Done {
    send_all(stage, |stage| {
        let (header, frame) = tcp(stage, 100).partial();
        change(header, frame.len() as u16).into_iter().map(|header| (header, frame.clone())).collect()
    })
}

/// Sends each of these from a guest as Linux has it.
pub(super) fn send_all(stage: &Stage<'_>, frames: impl FnOnce(&Stage<'_>) -> Vec<(NetHeader, Vec<u8>)>) -> Done {
    let guest = stage.guest(|builder| builder)?;
    send(guest, &frames(stage))
}

/// Sends each of these, header and frame in descriptors of their own.
fn send(mut guest: ToyGuest, frames: &[(NetHeader, Vec<u8>)]) -> Done {
    let used = used_index(&mut guest);
    for (header, frame) in frames {
        guest.send_with(header, &Layout::iovecs([HEADER as u32]), frame)?;
    }
    Ok(Traces::chains(guest, frames.len() as u16, used))
}

/// Sends an honest frame in each of these layouts.
fn send_layouts(stage: &Stage<'_>, mut guest: ToyGuest, layouts: &[Layout]) -> Done {
    let used = used_index(&mut guest);
    for layout in layouts {
        guest.send_with(&NetHeader::default(), layout, &stage.frame(100))?;
    }
    Ok(Traces::chains(guest, layouts.len() as u16, used))
}
