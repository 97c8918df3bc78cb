//! Multicast snooping: frames of a group go to its members and to routers only; address resolution reaches all.

use crate::common::*;
use memlane::id::PortId;
use memlane_rig::guest::ToyGuest;

const GROUP: [u8; 4] = [239, 1, 2, 3];
const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

/// The Internet checksum of `bytes` (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// An IGMP message (RFC 2236, section 2) from guest `from` to `to`.
fn igmp(from: usize, to: [u8; 4], kind: u8, group: [u8; 4]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &group].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    let ethernet = [&[1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]][..], &mac(from), &[8, 0]].concat();
    let ip = [&[0x46, 0xc0, 0, 32, 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 0, 0, from as u8][..], &to, &[0x94, 4, 0, 0]].concat();
    let mut frame = [ethernet, ip, message].concat();
    frame.resize(60, 0);
    frame
}

/// A datagram for a group.
fn datagram(from: usize, to: [u8; 6], number: u64) -> Vec<u8> {
    let mut bytes = frame(mac(from), to, 100, number);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..26].copy_from_slice(&[0x45, 0, 0, 86, 0, 0, 0x40, 0, 1, 17, 0, 0]);
    bytes
}

/// The frames that a guest has received before a broadcast with this number, without those of the querier.
fn before(guest: &mut ToyGuest, marker: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let bytes = guest.receive(TIMEOUT).unwrap().bytes;
        if bytes == marker {
            return frames;
        }
        if (0..4).any(|index| bytes[6..12] == mac(index)) {
            frames.push(bytes);
        }
    }
}

/// Guest `from` sends a frame; tells which of the others receive it.
fn reached(guests: &mut [ToyGuest], from: usize, sent: &[u8], number: u64) -> Vec<usize> {
    let marker = frame(mac(from), BROADCAST, 64, number);
    guests[from].send(sent).unwrap();
    guests[from].send(&marker).unwrap();
    let mut reached = Vec::new();
    for index in (0..guests.len()).filter(|&index| index != from) {
        let frames = before(&mut guests[index], &marker);
        assert!(frames.iter().all(|got| got == sent), "{from} to {index}: something else");
        reached.extend((!frames.is_empty()).then_some(index));
    }
    reached
}

#[test]
fn groups_reach_their_members_and_address_resolution_all() {
    let segment = "[[segment]]\nname = \"lan\"\nmulticast = \"snoop\"\n";
    let bed = Bed::with(segment, &["", "", "", ""]);
    let mut guests: Vec<ToyGuest> = (0..4).map(|index| bed.guest(index)).collect();
    let network = bed.daemon().network();
    let snooping = &network.port(PortId(0)).unwrap().segment.snooping;
    let mut number = 0;
    let mut ask = |guests: &mut [ToyGuest], from: usize, sent: &[u8]| {
        number += 1;
        reached(guests, from, sent, number)
    };
    // Guests that came just now get all, until they had time to report.
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 1)), [1, 2, 3]);
    snooping.pass(60);
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 1)), [0; 0], "nobody reported it");
    // A report goes to routers only: a member that heard it would not send its own.
    assert_eq!(ask(&mut guests, 1, &igmp(1, GROUP, 0x16, GROUP)), [0; 0]);
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 2)), [1]);
    // RFC 4541, section 2.1.2: a port from which a query came leads to a router.
    assert_eq!(ask(&mut guests, 3, &igmp(3, [224, 0, 0, 1], 0x11, [0; 4])), [0, 1, 2]);
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 3)), [1, 3]);
    assert_eq!(ask(&mut guests, 2, &igmp(2, GROUP, 0x16, GROUP)), [3]);
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 4)), [1, 2, 3]);
    // No guest reports these, and all of them get them.
    let (mut solicitation, mut all_nodes) = (datagram(0, [0x33, 0x33, 0xff, 0, 0, 1], 5), datagram(0, [0x33, 0x33, 0, 0, 0, 1], 5));
    [&mut solicitation, &mut all_nodes].into_iter().for_each(|frame| frame[12..14].copy_from_slice(&[0x86, 0xdd]));
    for sent in
        [solicitation, all_nodes, datagram(0, [1, 0, 0x5e, 0, 0, 251], 5), frame(mac(0), [1, 0x80, 0xc2, 0, 0, 0x20], 60, 5)]
    {
        assert_eq!(ask(&mut guests, 0, &sent), [1, 2, 3], "{:02x?}", &sent[..6]);
    }
    let told = network.multicast_groups();
    assert_eq!((told[0].segment.as_str(), told[0].all.clone()), ("lan", vec!["p3".to_owned()]));
    assert_eq!(
        told[0].groups.iter().map(|(group, ports)| (group.to_string(), ports.len())).collect::<Vec<_>>(),
        [("01:00:5e:01:02:03".into(), 2)]
    );
    // The last member is asked before the group ends.
    assert_eq!(ask(&mut guests, 1, &igmp(1, [224, 0, 0, 2], 0x17, GROUP)), [0, 2, 3]);
    let is_asked = |bytes: &[u8]| bytes[..6] == GROUP_MAC && bytes[38] == 0x11 && bytes[42..46] == GROUP;
    while !is_asked(&guests[1].receive(TIMEOUT).unwrap().bytes) {}
    snooping.pass(4);
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 6)), [2, 3]);
    snooping.pass(300);
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 7)), [0; 0], "reports hold for 260 seconds");
    network.set_snooping(&[]).unwrap();
    assert_eq!(ask(&mut guests, 0, &datagram(0, GROUP_MAC, 8)), [1, 2, 3]);
}

/// RFC 3376 and RFC 3810: general queries, without which memberships would end where there is no router.
#[test]
fn guests_are_asked_for_their_groups() {
    let bed = Bed::with("[[segment]]\nname = \"lan\"\nmulticast = \"snoop\"\n", &["", "trunk = [7]"]);
    let (mut guest, mut trunk) = (bed.guest(0), bed.guest(1));
    let is_igmp = |bytes: &[u8]| bytes[..6] == [1, 0, 0x5e, 0, 0, 1] && bytes[23] == 2 && bytes[38] == 0x11;
    let is_mld = |bytes: &[u8]| bytes[..6] == [0x33, 0x33, 0, 0, 0, 1] && bytes[20] == 0 && bytes[62] == 130;
    let segment = &bed.daemon().network().port(PortId(0)).unwrap().segment;
    segment.snooping.pass(130);
    let mut seen = [false; 2];
    while seen != [true; 2] {
        let bytes = guest.receive(TIMEOUT).unwrap().bytes;
        seen = [seen[0] || is_igmp(&bytes), seen[1] || is_mld(&bytes)];
    }
    assert!(trunk.try_receive().unwrap().is_none(), "the switch does not ask in VLANs");
}
