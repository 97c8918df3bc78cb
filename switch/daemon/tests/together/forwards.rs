//! Frames get where they belong, undamaged, once, and in order.

use crate::common::*;
use memlane::stats::DropReason;
use memlane_rig::frames::NetHeader;
use memlane_rig::frontend::features;
use memlane_rig::guest::{Habit, Layout, ToyGuest};

#[test]
fn frames_of_every_size_arrive_unchanged_and_in_order() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    for (number, length) in
        [14, 15, 59, 60, 63, 64, 65, 77, 127, 128, 129, 1514, 1518, 2047, 2048, 2049, 9014, 65549].into_iter().enumerate()
    {
        let sent = frame(mac(0), mac(1), length, number as u64);
        a.send(&sent).unwrap();
        let got = b.receive(TIMEOUT).unwrap();
        assert!(got.bytes == sent, "length {length}");
        assert!(got.buffers as usize == (length + 12).div_ceil(2060), "length {length} in {} buffers", got.buffers);
    }
    a.wait_sent(TIMEOUT).unwrap();
}

#[test]
fn unknown_and_group_addresses_reach_everybody_else_and_known_ones_only_their_guest() {
    let bed = Bed::new(3);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    let unknown = frame(mac(0), mac(1), 100, 1);
    a.send(&unknown).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, unknown);
    assert_eq!(c.receive(TIMEOUT).unwrap().bytes, unknown);
    announce(&mut [&mut a, &mut b, &mut c]);
    let known = frame(mac(0), mac(1), 100, 2);
    a.send(&known).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, known);
    let multicast = frame(mac(0), [0x33, 0x33, 0, 0, 0, 1], 100, 3);
    a.send(&multicast).unwrap();
    // Had the unicast frame been flooded, it would have come before this one.
    assert_eq!(c.receive(TIMEOUT).unwrap().bytes, multicast);
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, multicast);
    assert_silent(&mut a);
}

/// A frame with a tag of VLAN `vlan` and priority 5.
fn tagged(from: [u8; 6], to: [u8; 6], vlan: u16, number: u64) -> Vec<u8> {
    let mut bytes = frame(from, to, 100, number);
    let tag = (0xa000 | vlan).to_be_bytes();
    bytes.splice(12..12, [0x81, 0x00].into_iter().chain(tag));
    bytes
}

#[test]
fn an_address_may_be_behind_one_port_in_each_vlan() {
    let bed = Bed::new(3);
    let (mut client, mut firewall, mut server) = (bed.guest(0), bed.guest(1), bed.guest(2));
    for round in 0..5 {
        let pass = |from: &mut ToyGuest, to: &mut ToyGuest, bytes: Vec<u8>| {
            from.send(&bytes).unwrap();
            while to.receive(TIMEOUT).unwrap().bytes != bytes {
                assert_eq!(round, 0, "only while addresses are unknown frames are flooded");
            }
        };
        // The firewall passes frames between VLANs 10 and 20, and leaves their source as it is.
        pass(&mut client, &mut firewall, tagged(mac(0), mac(2), 10, round));
        pass(&mut firewall, &mut server, tagged(mac(0), mac(2), 20, round));
        pass(&mut server, &mut firewall, tagged(mac(2), mac(0), 20, round));
        pass(&mut firewall, &mut client, tagged(mac(2), mac(0), 10, round));
    }
    assert_eq!(bed.totals(0).flooded + bed.totals(1).flooded + bed.totals(2).flooded, 2);
}

/// Sends the frames received by one guest on from the other, until no more come; returns how many frames that were.
fn bridge(left: &mut ToyGuest, right: &mut ToyGuest) -> usize {
    let mut passed = 0;
    loop {
        let before = passed;
        for _ in 0..2 {
            std::mem::swap(left, right);
            // One at a time, as a bridge takes turns with its ports.
            if let Ok(frame) = left.receive(POLL_INTERVAL) {
                right.send(&frame.bytes).unwrap();
                passed += 1;
                assert!(passed < 500, "frames go round without end");
            }
        }
        if passed == before {
            return passed;
        }
    }
}

#[test]
fn a_guest_that_bridges_two_ports_takes_the_segment_from_nobody() {
    let bed = Bed::new(4);
    let (mut a, mut b, mut left, mut right) = (bed.guest(0), bed.guest(1), bed.guest(2), bed.guest(3));
    b.send(&frame(mac(1), BROADCAST, 60, 0)).unwrap();
    a.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    bridge(&mut left, &mut right);
    for guest in [&mut a, &mut b] {
        while guest.try_receive().unwrap().is_some() {}
    }
    for number in 2..5 {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = frame(mac(from), mac(to), 100, number);
            let [from, to] = if from == 0 { [&mut a, &mut b] } else { [&mut b, &mut a] };
            from.send(&sent).unwrap();
            assert_eq!(to.receive(TIMEOUT).unwrap().bytes, sent, "it is held where it was");
        }
        let question = frame(mac(0), BROADCAST, 60, number);
        a.send(&question).unwrap();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, question);
        bridge(&mut left, &mut right);
        assert!(a.try_receive().unwrap().is_none() && b.try_receive().unwrap().is_none(), "broadcasts come once");
    }
    assert!(bed.drops(2, DropReason::Loop) > 0 && bed.drops(3, DropReason::Loop) > 0);
    let network = bed.daemon().network();
    let told = network.loops(&network.segments()[0], 0);
    let places: Vec<_> = told.iter().map(|told| (told.address.as_str(), told.held_at.as_str())).collect();
    assert!(places.contains(&("02:00:00:00:00:00", "p0")), "{places:?}");
}

#[test]
fn a_port_with_anti_spoof_sends_from_its_own_address_only() {
    let bed = Bed::with("", &["mac = \"02:00:00:00:00:00\"\nanti-spoof = \"mac\"", "", ""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    a.send(&frame(mac(9), BROADCAST, 60, 1)).unwrap();
    let own = frame(mac(0), BROADCAST, 60, 2);
    a.send(&own).unwrap();
    assert_eq!((b.receive(TIMEOUT).unwrap().bytes, c.receive(TIMEOUT).unwrap().bytes), (own.clone(), own));
    assert_eq!(bed.drops(0, DropReason::SpoofedSource), 1);
    let unknown = frame(mac(1), mac(9), 60, 3);
    b.send(&unknown).unwrap();
    assert_eq!(c.receive(TIMEOUT).unwrap().bytes, unknown, "nothing was learned from it");
}

/// The address stands in the arguments that `memlane attach` and `memlane qemu` print, and in `ls`.
#[test]
fn anti_spoof_without_a_mac_allows_the_address_that_memlane_prints() {
    let bed = Bed::with("", &["anti-spoof = \"mac\"", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    let printed = memlane::port::default_address("test", "p0").bytes();
    a.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    let own = frame(printed, BROADCAST, 60, 2);
    a.send(&own).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, own);
    assert_eq!(bed.drops(0, DropReason::SpoofedSource), 1);
    // No other port takes it, and without the key it is free again.
    b.send(&frame(printed, BROADCAST, 60, 3)).unwrap();
    b.wait_sent(TIMEOUT).unwrap();
    assert_silent(&mut a);
    let off = |settings: &mut memlane::port::settings::PortSettings| settings.limits.anti_spoof = memlane::policy::AntiSpoof::Off;
    bed.daemon().change("p0", off).unwrap();
    a.send(&frame(mac(0), BROADCAST, 60, 4)).unwrap();
    b.receive(TIMEOUT).unwrap();
    let moved = frame(printed, BROADCAST, 60, 5);
    b.send(&moved).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes, moved);
}

#[test]
fn segments_do_not_hear_each_other() {
    let bed = Bed::with("", &["", "", "segment = \"other\""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    a.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    a.send(&frame(mac(0), mac(2), 60, 2)).unwrap();
    b.receive(TIMEOUT).unwrap();
    b.receive(TIMEOUT).unwrap();
    assert_silent(&mut c);
}

#[test]
fn a_frame_to_the_senders_own_side_goes_nowhere() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    a.send(&frame(mac(7), BROADCAST, 60, 1)).unwrap();
    b.receive(TIMEOUT).unwrap();
    a.send(&frame(mac(0), mac(7), 60, 2)).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_silent(&mut b);
    assert_eq!(bed.drops(0, memlane::stats::DropReason::SamePort), 1);
}

#[test]
fn any_layout_of_header_and_payload_is_understood() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let layouts = [
        Layout::iovecs([12]),
        Layout::iovecs([1, 11]),
        Layout::iovecs([12, 14]),
        Layout::iovecs([5, 5, 5, 5, 5]),
        Layout::iovecs([12, 0, 20, 0, 0, 100]),
        Layout::iovecs(vec![1; 60]),
        Layout::iovecs([12, 6, 6, 2, 40]).indirect(),
        Layout::iovecs(vec![7; 50]).indirect(),
    ];
    for (number, layout) in layouts.iter().cycle().take(400).enumerate() {
        let sent = frame(mac(0), mac(1), 60 + number * 3, number as u64);
        a.send_with(&NetHeader::default(), layout, &sent).unwrap();
        assert!(b.receive(TIMEOUT).unwrap().bytes == sent, "{layout:?}");
        a.wait_sent(TIMEOUT).unwrap();
    }
}

#[test]
fn rings_of_every_size_wrap_around() {
    for size in [2, 4, 64, 1024, 32768] {
        let bed = Bed::new(2);
        let receive = memlane_rig::guest::ReceiveBuffers {
            size: 512,
            count: Some(size.min(256)),
            ..memlane_rig::guest::ReceiveBuffers::SMALL
        };
        let send = memlane_rig::guest::SendBuffers { count: size.min(64), size: 1024 };
        let builder = |index| bed.builder(index).ring_size(size).indirect_tables(0).receive_buffers(receive).send_buffers(send);
        let (mut a, mut b) = (bed.guest_like(0, builder(0)), bed.guest_like(1, builder(1)));
        announce(&mut [&mut a, &mut b]);
        let rounds = 70_000 / u64::from(size).max(64);
        for number in 0..rounds.max(200) {
            let sent = frame(mac(0), mac(1), 100, number);
            a.send(&sent).unwrap();
            assert!(b.receive(TIMEOUT).unwrap().bytes == sent, "ring size {size}, frame {number}");
            a.wait_sent(TIMEOUT).unwrap();
        }
    }
}

#[test]
fn every_front_ends_habit_and_every_choice_of_ring_features_works() {
    let choices = [
        features::LINUX,
        features::LINUX & !features::EVENT_IDX,
        features::LINUX & !features::INDIRECT_DESC,
        features::LINUX & !features::MRG_RXBUF,
        features::LINUX & !features::EVENT_IDX & !features::INDIRECT_DESC & !features::MRG_RXBUF,
        features::LINUX & !features::VERSION_1,
        features::LINUX & !features::VERSION_1 & !features::MRG_RXBUF,
    ];
    for habit in Habit::ALL {
        for wanted in choices {
            let bed = Bed::new(2);
            let builder = |index| {
                let builder = bed.builder(index).habit(habit).features(wanted);
                if wanted & features::MRG_RXBUF == 0 {
                    builder.receive_buffers(memlane_rig::guest::ReceiveBuffers {
                        count: Some(14),
                        ..memlane_rig::guest::ReceiveBuffers::BIG
                    })
                } else {
                    builder
                }
            };
            let (mut a, mut b) = (bed.guest_like(0, builder(0)), bed.guest_like(1, builder(1)));
            announce(&mut [&mut a, &mut b]);
            for (number, length) in [60, 1514, 9000, 60_000].into_iter().enumerate() {
                let sent = frame(mac(0), mac(1), length, number as u64);
                a.send(&sent).unwrap();
                assert!(b.receive(TIMEOUT).unwrap().bytes == sent);
            }
        }
    }
}

#[test]
fn guests_of_two_workers_reach_each_other() {
    let bed = Bed::with("workers = 2", &[""; 4]);
    let mut guests: Vec<_> = (0..4).map(|index| bed.guest(index)).collect();
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    for number in 0..2000_u64 {
        let (from, to) = (number as usize % 4, (number as usize / 4 + 1 + number as usize) % 4);
        if from == to {
            continue;
        }
        let sent = frame(mac(from), mac(to), 60 + number as usize % 3000, number);
        guests[from].send(&sent).unwrap();
        assert!(guests[to].receive(TIMEOUT).unwrap().bytes == sent, "frame {number}, {from} to {to}");
    }
    for guest in &mut guests {
        guest.wait_sent(TIMEOUT).unwrap();
    }
}

#[test]
fn a_configured_address_cannot_be_taken_by_another_port() {
    let bed = Bed::with("", &["mac = \"02:00:00:00:00:00\"", "", ""]);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    announce(&mut [&mut a, &mut b, &mut c]);
    b.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    b.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.drops(1, memlane::stats::DropReason::BadSource), 1);
    let sent = frame(mac(2), mac(0), 60, 2);
    c.send(&sent).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes, sent);
    assert_silent(&mut b);
}
