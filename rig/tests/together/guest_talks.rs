//! A toy guest's whole life against an independent back end.

use std::time::Duration;

use crate::hub::{Hub, OFFERED};
use memlane_rig::frames::NetHeader;
use memlane_rig::frontend::features;
use memlane_rig::frontend::notify::CallKind;
use memlane_rig::guest::{GuestBuilder, Habit, Layout, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;

const TIMEOUT: Duration = Duration::from_secs(10);

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 256) as u8).collect()
}

fn pair(hub: &Hub, builder: &GuestBuilder) -> [ToyGuest; 2] {
    [0, 1].map(|index| builder.clone().connect(hub.path(index)).unwrap())
}

/// Sends frames of many lengths both ways and checks that they arrive as they were.
fn exchange(guests: &mut [ToyGuest; 2], rounds: usize) {
    for round in 0..rounds {
        let frame = pattern(60 + 97 * (round % 15));
        for (from, to) in [(0, 1), (1, 0)] {
            guests[from].send(&frame).unwrap();
            let seen = guests[to].receive(TIMEOUT).unwrap();
            assert_eq!((seen.bytes, seen.buffers), (frame.clone(), 1));
        }
    }
}

#[test]
fn guests_of_every_habit_talk_to_each_other() {
    for habit in Habit::ALL {
        let hub = Hub::new(2, OFFERED);
        let mut guests = pair(&hub, &ToyGuest::builder().habit(habit));
        assert_ne!(guests[0].features() & features::EVENT_IDX, 0);
        exchange(&mut guests, 600);
        for guest in &mut guests {
            guest.wait_sent(TIMEOUT).unwrap();
        }
    }
}

#[test]
fn every_kind_of_call_descriptor_wakes_the_guest() {
    for kind in [CallKind::Eventfd, CallKind::SocketPair, CallKind::None] {
        let hub = Hub::new(2, OFFERED);
        exchange(&mut pair(&hub, &ToyGuest::builder().call(kind)), 20);
    }
}

#[test]
fn plain_guests_without_event_idx_or_protocol_features_talk_too() {
    for offered in [features::PLAIN, features::VERSION_1 | features::MRG_RXBUF] {
        let hub = Hub::new(2, offered);
        exchange(&mut pair(&hub, &ToyGuest::builder()), 300);
    }
}

#[test]
fn long_frames_fill_many_small_buffers_or_one_big_chain() {
    let header = NetHeader { gso_size: 1448, ..NetHeader::default() };
    let frame = pattern(60_000);
    for (features, buffers, filled) in
        [(OFFERED, ReceiveBuffers::SMALL, 30), (OFFERED & !features::MRG_RXBUF, ReceiveBuffers::BIG, 1)]
    {
        let hub = Hub::new(2, features);
        let mut guests = pair(&hub, &ToyGuest::builder().receive_buffers(buffers));
        for layout in [Layout::single(), Layout::iovecs([12, 54, 4000]), Layout::iovecs([5, 7, 1, 13]).indirect()] {
            guests[0].send_with(&header, &layout, &frame).unwrap();
            let seen = guests[1].receive(TIMEOUT).unwrap();
            assert_eq!((seen.header.gso_size, seen.buffers), (1448, filled));
            assert_eq!(seen.bytes, frame);
        }
    }
}

#[test]
fn a_slow_reader_gets_its_frames_once_it_posts_buffers() {
    let hub = Hub::new(2, OFFERED);
    let none = ReceiveBuffers { count: Some(0), ..ReceiveBuffers::SMALL };
    let mut slow = ToyGuest::builder().receive_buffers(none).connect(hub.path(0)).unwrap();
    let mut sender = ToyGuest::builder().connect(hub.path(1)).unwrap();
    sender.send(&pattern(99)).unwrap();
    sender.wait_sent(TIMEOUT).unwrap();
    assert!(slow.try_receive().unwrap().is_none());
    assert_eq!(slow.pair(0).receive.post(3).unwrap(), 3);
    assert_eq!(slow.receive(TIMEOUT).unwrap().bytes, pattern(99));
}

#[test]
fn rings_stop_and_start_again_where_they_were() {
    for habit in Habit::ALL {
        let hub = Hub::new(2, OFFERED);
        let mut guests = pair(&hub, &ToyGuest::builder().habit(habit));
        exchange(&mut guests, 300);
        guests[0].stop().unwrap();
        if habit == Habit::UML {
            guests[0].reset_rings().unwrap();
        }
        guests[0].start().unwrap();
        exchange(&mut guests, 300);
    }
}

#[test]
fn dpdk_starts_again_with_other_features_on_the_same_connection() {
    let hub = Hub::new(2, OFFERED);
    let mut guests = pair(&hub, &ToyGuest::builder().habit(Habit::DPDK));
    exchange(&mut guests, 40);
    guests[0].restart_with(features::PLAIN).unwrap();
    assert_eq!(guests[0].features(), features::PLAIN);
    exchange(&mut guests, 300);
    assert_eq!(hub.port(0).connections, 1);
}

#[test]
fn a_guest_comes_back_after_it_lost_its_back_end() {
    for habit in Habit::ALL {
        let hub = Hub::new(2, OFFERED);
        let mut guests = pair(&hub, &ToyGuest::builder().habit(habit));
        exchange(&mut guests, 300);
        guests[0].reconnect().unwrap();
        exchange(&mut guests, 300);
        assert_eq!(hub.port(0).connections, 2, "{}", habit.name);
    }
}

#[test]
fn a_back_end_may_connect_to_the_guest() {
    let mut hub = Hub::new(2, OFFERED);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    hub.connect(0, &path);
    let listening = ToyGuest::builder().accept(listener).unwrap();
    let other = ToyGuest::builder().connect(hub.path(1)).unwrap();
    exchange(&mut [listening, other], 30);
}

#[test]
fn memory_may_be_many_regions_and_change_while_running() {
    let hub = Hub::new(2, OFFERED);
    let plan = MemoryPlan::spread(9, 40 << 20, 1 << 20).file_gap(4096);
    let mut guests = pair(&hub, &ToyGuest::builder().memory(plan).habit(Habit::UML).ring_size(64));
    assert_eq!(hub.port(0).regions(), 9);
    exchange(&mut guests, 100);
    guests[0].announce_memory(&(0..8).collect::<Vec<_>>()).unwrap();
    exchange(&mut guests, 100);
    guests[0].add_region(8).unwrap();
    exchange(&mut guests, 100);
    assert_eq!(hub.port(0).regions(), 9);
}

#[test]
fn two_queue_pairs_carry_frames() {
    let hub = Hub::new(2, OFFERED);
    let mut guests = pair(&hub, &ToyGuest::builder().queue_pairs(2));
    for pair in [0, 1, 1, 0] {
        guests[0].send_from(pair, &NetHeader::default(), &Layout::single(), &pattern(64)).unwrap();
        assert_eq!(guests[1].receive(TIMEOUT).unwrap().bytes, pattern(64));
    }
}

#[test]
fn a_silent_back_end_is_an_error_and_not_a_hang() {
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = ToyGuest::builder().timeout(Duration::from_millis(50)).on_stream(ours).unwrap_err();
    assert!(error.to_string().contains("GET_FEATURES"), "{error}");
    let nowhere = ToyGuest::builder().timeout(Duration::from_millis(20)).connect("/nowhere/at.all");
    assert!(nowhere.unwrap_err().to_string().contains("start the switch first"));
}
