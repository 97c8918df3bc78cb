//! Ports of one segment that are kept apart: isolation, VLANs, reserved groups.

use crate::common::*;
use memlane::policy::PortLimits;
use memlane::stats::DropReason;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ToyGuest};

/// A frame with a tag of VLAN `vlan`.
fn tagged(from: [u8; 6], to: [u8; 6], vlan: u16, number: u64) -> Vec<u8> {
    let mut bytes = frame(from, to, 100, number);
    bytes.splice(12..12, [0x81, 0x00].into_iter().chain(vlan.to_be_bytes()));
    bytes
}

/// Sends a frame, and asserts in which form each of the others receives it: `None` for not at all.
fn reaches(from: &mut ToyGuest, sent: &[u8], others: &mut [(&mut ToyGuest, Option<&[u8]>)]) {
    from.send(sent).unwrap();
    from.wait_sent(TIMEOUT).unwrap();
    for (other, wanted) in others.iter_mut() {
        match wanted {
            Some(wanted) => assert!(other.receive(TIMEOUT).unwrap().bytes == *wanted, "another form"),
            None => assert_silent(other),
        }
    }
}

/// The rules of the bridge's `isolated`: unicast frames, known and unknown, and broadcasts.
#[test]
fn isolated_ports_reach_only_those_that_are_not() {
    let bed = Bed::with("", &["isolated = true", "isolated = true", ""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    let broadcast = frame(mac(0), BROADCAST, 60, 1);
    reaches(&mut a, &broadcast, &mut [(&mut b, None), (&mut c, Some(&broadcast))]);
    let broadcast = frame(mac(1), BROADCAST, 60, 2);
    reaches(&mut b, &broadcast, &mut [(&mut a, None), (&mut c, Some(&broadcast))]);
    let broadcast = frame(mac(2), BROADCAST, 60, 3);
    reaches(&mut c, &broadcast, &mut [(&mut a, Some(&broadcast)), (&mut b, Some(&broadcast))]);
    let unknown = frame(mac(0), mac(9), 60, 4);
    reaches(&mut a, &unknown, &mut [(&mut b, None), (&mut c, Some(&unknown))]);
    let known = frame(mac(0), mac(1), 60, 5);
    reaches(&mut a, &known, &mut [(&mut b, None), (&mut c, None)]);
    assert_eq!(bed.drops(0, DropReason::Isolated), 1);
    for (from, to) in [(0, 2), (2, 0), (2, 1), (1, 2)] {
        let sent = frame(mac(from), mac(to), 100, 6);
        let guests = [&mut a, &mut b, &mut c];
        guests[from].send(&sent).unwrap();
        assert!(guests[to].receive(TIMEOUT).unwrap().bytes == sent, "{from} to {to}");
    }
}

/// Workers keep a verdict for frames like the last one.
#[test]
fn isolation_holds_for_the_next_frame_and_ends_with_it() {
    let bed = Bed::with("", &["", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let network = bed.daemon().network();
    let set = |isolated| {
        for port in network.ports() {
            network.set_limits(&port, &PortLimits { isolated, ..PortLimits::default() });
        }
    };
    let hello = frame(mac(1), BROADCAST, 60, 1);
    reaches(&mut b, &hello, &mut [(&mut a, Some(&hello))]);
    for number in 2..10 {
        let sent = frame(mac(0), mac(1), 60, number);
        reaches(&mut a, &sent, &mut [(&mut b, Some(&sent))]);
        set(true);
        reaches(&mut a, &frame(mac(0), mac(1), 60, number), &mut [(&mut b, None)]);
        set(false);
    }
    assert_eq!(bed.drops(0, DropReason::Isolated), 8);
}

#[test]
fn vlans_are_kept_apart_and_tags_are_as_each_port_needs_them() {
    let bed = Bed::with("", &["vlan = 10", "vlan = 10", "vlan = 20", "trunk = [10, \"20-29\"]", "", "vlan = 20\ntrunk = [10]"]);
    let [mut a, mut b, mut c, mut trunk, mut any, mut native] = [0, 1, 2, 3, 4, 5].map(|index| bed.guest(index));
    let (plain, with_tag) = (frame(mac(0), BROADCAST, 100, 1), tagged(mac(0), BROADCAST, 10, 1));
    reaches(
        &mut a,
        &plain,
        &mut [
            (&mut b, Some(&plain)),
            (&mut c, None),
            (&mut trunk, Some(&with_tag)),
            (&mut any, Some(&with_tag)),
            (&mut native, Some(&with_tag)),
        ],
    );
    let (plain, with_tag) = (frame(mac(3), BROADCAST, 100, 2), tagged(mac(3), BROADCAST, 20, 2));
    reaches(
        &mut trunk,
        &with_tag,
        &mut [(&mut a, None), (&mut b, None), (&mut c, Some(&plain)), (&mut any, Some(&with_tag)), (&mut native, Some(&plain))],
    );
    // Known destinations: a tag is removed, and added.
    let (plain, with_tag) = (frame(mac(3), mac(0), 100, 3), tagged(mac(3), mac(0), 10, 3));
    for _ in 0..10 {
        reaches(&mut trunk, &with_tag, &mut [(&mut a, Some(&plain)), (&mut b, None)]);
    }
    trunk.send(&tagged(mac(3), BROADCAST, 10, 4)).unwrap();
    [&mut a, &mut b, &mut any, &mut native].into_iter().for_each(|other| drop(other.receive(TIMEOUT).unwrap()));
    let (plain, with_tag) = (frame(mac(0), mac(3), 100, 5), tagged(mac(0), mac(3), 10, 5));
    for _ in 0..10 {
        reaches(&mut a, &plain, &mut [(&mut trunk, Some(&with_tag)), (&mut any, None)]);
    }
    // The offsets of a partial checksum move with the header (virtio 1.4, section 5.1.6).
    let [from, to] = [0, 3].map(|guest| Host { mac: mac(guest), ..Host::v4(guest as u16) });
    let datagram = Packet::udp(from, to, [5; 100]);
    let (header, partial) = datagram.partial();
    a.send_with(&header, &Layout::single(), &partial).unwrap();
    let got = trunk.receive(TIMEOUT).unwrap();
    assert!(got.bytes == datagram.tagged(10).partial().1 && (got.header.checksum_start, got.header.checksum_offset) == (38, 6));
    // An access port sends no tags, a trunk no VLANs that it has not, and without a native VLAN no frames without a tag.
    for (sender, sent) in
        [(0, tagged(mac(0), BROADCAST, 20, 6)), (3, tagged(mac(3), BROADCAST, 30, 7)), (3, frame(mac(3), BROADCAST, 60, 8))]
    {
        let before = bed.drops(sender, DropReason::VlanNotCarried);
        let from = if sender == 0 { &mut a } else { &mut trunk };
        from.send(&sent).unwrap();
        from.wait_sent(TIMEOUT).unwrap();
        assert_eq!(bed.drops(sender, DropReason::VlanNotCarried), before + 1);
    }
    for guest in [&mut b, &mut c, &mut any, &mut native] {
        assert_silent(guest);
    }
}

#[test]
fn frames_with_two_tags_pass_unchanged_between_ports_without_vlans() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let mut sent = tagged(mac(0), mac(1), 7, 1);
    sent.splice(12..12, [0x88, 0xa8, 0, 100]);
    for _ in 0..10 {
        a.send(&sent).unwrap();
        assert!(b.receive(TIMEOUT).unwrap().bytes == sent);
    }
}

/// The segment's uplink carries packets of 1450 bytes: a longer one is answered with ICMP (RFC 1191, section 4).
#[test]
fn a_packet_that_is_too_long_for_the_uplink_is_answered() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let port = bed.daemon().network().port(memlane::id::PortId(1)).unwrap();
    port.segment.set_uplink(Some(port.id));
    port.segment.set_uplink_mtu(1450);
    let mut sent = frame(mac(0), mac(1), 1514, 1);
    sent[12..14].copy_from_slice(&[8, 0]);
    sent[14..26].copy_from_slice(&[0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 17, 0, 0]);
    sent[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    a.send(&sent).unwrap();
    let got = a.receive(TIMEOUT).unwrap().bytes;
    assert_eq!((&got[..6], &got[6..12], &got[26..34]), (&mac(0)[..], &mac(1)[..], &[10, 0, 0, 2, 10, 0, 0, 1][..]));
    assert_eq!((got[23], &got[34..36], &got[40..42]), (1, &[3, 4][..], &1450_u16.to_be_bytes()[..]));
    assert_eq!(got[42..], sent[14..42], "what it is about");
    assert_silent(&mut b);
    assert_eq!(bed.drops(1, DropReason::TooLong), 1);
}

/// Spanning tree, LACP, 802.1X and LLDP (IEEE 802.1Q, table 8-1).
#[test]
fn reserved_groups_pass_between_guests_and_not_at_ports_that_drop_them() {
    let bed = Bed::with("", &["", "", "reserved = \"drop\""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    for last in [0x00, 0x02, 0x03, 0x0e] {
        let group = [0x01, 0x80, 0xc2, 0, 0, last];
        let sent = frame(mac(0), group, 60, 1);
        reaches(&mut a, &sent, &mut [(&mut b, Some(&sent)), (&mut c, None)]);
        let before = bed.drops(2, DropReason::ReservedGroup);
        reaches(&mut c, &frame(mac(2), group, 60, 2), &mut [(&mut a, None), (&mut b, None)]);
        assert_eq!(bed.drops(2, DropReason::ReservedGroup), before + 1);
    }
    let sent = frame(mac(0), [0x01, 0x80, 0xc2, 0, 0, 0x10], 60, 3);
    reaches(&mut a, &sent, &mut [(&mut b, Some(&sent)), (&mut c, Some(&sent))]);
}

/// Virtio 1.2, section 5.1.4.1: no packet beyond the MTU that was negotiated, but for GSO frames; the sender is told (RFC 1191, RFC 4443). Behind
/// frames that fit, also on the fast path.
#[test]
fn no_packet_reaches_a_guest_that_is_longer_than_the_mtu_it_agreed_on() {
    let bed = Bed::with("", &["", "mtu = 1400", ""]);
    let all = features::LINUX | features::GUEST_CSUM | features::GUEST_TSO4;
    let guest = |index| bed.guest_like(index, bed.builder(index).features(all));
    let (mut a, mut b, mut c) = (guest(0), guest(1), guest(2));
    announce(&mut [&mut a, &mut b, &mut c]);
    for (version, overhead) in [(4, 28), (6, 48)] {
        let host = |index: usize| Host {
            mac: mac(index),
            ..if version == 4 { Host::v4(index as u16 + 1) } else { Host::v6(index as u16 + 1) }
        };
        let datagram = |to: usize, length: usize| Packet::udp(host(0), host(to), vec![7; length - overhead]).frame();
        for length in [1400, 1400, 1400, 1401, 1400, 1500, 1400] {
            let sent = datagram(1, length);
            a.send(&sent).unwrap();
            if length <= 1400 {
                assert!(b.receive(TIMEOUT).unwrap().bytes == sent);
                continue;
            }
            let told = a.receive(TIMEOUT).unwrap().bytes;
            assert_eq!((&told[..6], &told[6..12]), (&mac(0)[..], &mac(1)[..]));
            if version == 4 {
                assert_eq!((told[23], &told[34..36], &told[40..42]), (1, &[3, 4][..], &1400_u16.to_be_bytes()[..]));
            } else {
                assert_eq!((told[20], told[54], &told[58..62]), (58, 2, &1400_u32.to_be_bytes()[..]));
            }
        }
        // A flooded frame reaches the others, and is not answered (RFC 1122, section 3.2.2).
        let mut sent = datagram(1, 1500);
        sent[..6].copy_from_slice(&BROADCAST);
        reaches(&mut a, &sent, &mut [(&mut c, Some(&sent)), (&mut b, None)]);
        assert_silent(&mut a);
    }
    assert_eq!((bed.drops(1, DropReason::TooLong), bed.totals(1).drops.len()), (6, 1));
    // A GSO frame fits if its segments do.
    let host = |index: usize| Host { mac: mac(index), ..Host::v4(index as u16 + 1) };
    for (size, fits) in [(1360, true), (1361, false)] {
        let (header, large) = Packet::tcp(host(0), host(1), 1, vec![3; 20_000]).gso(size);
        a.send_with(&header, &Layout::single(), &large).unwrap();
        if fits {
            assert!(b.receive(TIMEOUT).unwrap().bytes == large);
        } else {
            assert_eq!(a.receive(TIMEOUT).unwrap().bytes[40..42], 1400_u16.to_be_bytes());
            assert_silent(&mut b);
        }
    }
    // NET_SET_MTU: the front end states a lower one.
    b.frontend().unwrap().set_mtu(1300).unwrap();
    let sent = Packet::udp(host(0), host(1), vec![7; 1300 - 27]).frame();
    wait_until(
        || {
            a.send(&sent).unwrap();
            a.receive(POLL_INTERVAL).is_ok_and(|told| told.bytes[40..42] == 1300_u16.to_be_bytes())
        },
        "the sender is told",
    );
}

/// A guest that agreed on no MTU gets frames that fit its buffers.
#[test]
fn a_guest_without_an_agreed_mtu_gets_packets_of_any_length() {
    let bed = Bed::with("", &["", "mtu = 1400"]);
    let (mut a, mut b) = (bed.guest(0), bed.guest_like(1, bed.builder(1).without(features::MTU)));
    announce(&mut [&mut a, &mut b]);
    for length in [1414, 1415, 9000, 60_000] {
        let sent = frame(mac(0), mac(1), length, 3);
        a.send(&sent).unwrap();
        assert!(b.receive(TIMEOUT).unwrap().bytes == sent, "{length} bytes");
    }
}
