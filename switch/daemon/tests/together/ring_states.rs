//! Rings start, stop, are enabled, move and change as the vhost-user specification says ("Ring states").

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::*;
use memlane::id::PortId;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::frames::NetHeader;
use memlane_rig::frontend::notify::CallKind;
use memlane_rig::frontend::{features, wire};
use memlane_rig::guest::{GuestBuilder, Habit, Layout, ReceiveBuffers, RingStep, SendBuffers, Step, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use vhost::vhost_user::message::{FrontendReq as Request, VhostUserProtocolFeatures as Protocol};

/// Ring indices of the first pair.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// Buffers that fit small regions of memory.
fn small_buffers(builder: GuestBuilder) -> GuestBuilder {
    builder
        .receive_buffers(ReceiveBuffers { count: Some(16), ..ReceiveBuffers::SMALL })
        .send_buffers(SendBuffers { count: 16, size: 8 << 10 })
}

fn exchange(a: &mut ToyGuest, b: &mut ToyGuest, number: u64) {
    for length in [60, 3000] {
        let there = frame(a.mac(), b.mac(), length, number);
        a.send(&there).unwrap();
        assert_eq!(b.receive(TIMEOUT).unwrap().bytes, there);
        let back = frame(b.mac(), a.mac(), length, number);
        b.send(&back).unwrap();
        assert_eq!(a.receive(TIMEOUT).unwrap().bytes, back);
    }
}

#[test]
fn a_ring_starts_with_its_kick_and_not_before() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.builder(0).kicked(false).connect(bed.socket(0)).unwrap();
    let sent = frame(mac(0), BROADCAST, 60, 1);
    // Made available, but not kicked: `add` and `publish` are the steps of `send`, without the kick.
    let memory = a.memory().clone();
    let header = NetHeader::default().bytes();
    let header = &header[..a.header_bytes()];
    let transmit = &mut a.pair(0).transmit;
    transmit.add(&memory, header, &Layout::single(), &sent).unwrap();
    transmit.queue.ring.publish();
    assert_silent(&mut b);
    transmit.queue.kick();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, sent);
}

/// A front end that sends SET_VRING_CALL once, and stops and starts its rings without it.
#[test]
fn a_ring_that_starts_again_interrupts_as_before() {
    const CONNECT: [Step; 4] = [Step::Owner, Step::GetFeatures, Step::ProtocolFeatures, Step::EachRing(&[RingStep::Call])];
    const START: [Step; 3] = [
        Step::SetFeatures,
        Step::MemoryTable,
        Step::EachRing(&[RingStep::Size, RingStep::Base, RingStep::Addresses, RingStep::Kick, RingStep::Enable]),
    ];
    let habit = Habit { connect: &CONNECT, start: &START, stop: &[Step::EachRing(&[RingStep::Stop])], ..Habit::DPDK };
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, bed.builder(0).habit(habit));
    announce(&mut [&mut a, &mut b]);
    let interrupts = |bed: &Bed| bed.totals(0).interrupts;
    // The rings stop by request; and by a fault, before the request.
    for broken in [false, false, true] {
        if broken {
            a.pair(0).transmit.queue.ring.shared().set_available_index(1000);
            a.pair(0).transmit.queue.kick();
            bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(_)), "the port is in quarantine");
        }
        a.stop().unwrap();
        if broken {
            a.reset_rings().unwrap();
        }
        a.start().unwrap();
        let before = interrupts(&bed);
        exchange(&mut a, &mut b, 1);
        bed.wait_for(|bed| interrupts(bed) > before, "the driver is interrupted");
    }
    // A ring that was given none has none.
    a.stop().unwrap();
    for ring in 0..2_u64 {
        let body = (ring | 1 << 8).to_le_bytes();
        wire::send(a.frontend().unwrap().stream(), Request::SET_VRING_CALL as u32, wire::VERSION, &body, &[]).unwrap();
    }
    a.start().unwrap();
    let (before, received) = (interrupts(&bed), bed.totals(0).receive_frames);
    a.send(&frame(mac(0), mac(1), 100, 2)).unwrap();
    b.receive(TIMEOUT).unwrap();
    b.send(&frame(mac(1), mac(0), 100, 2)).unwrap();
    bed.wait_for(|bed| bed.totals(0).receive_frames > received, "the frame is delivered");
    assert_eq!(interrupts(&bed), before);
}

#[test]
fn a_started_but_disabled_transmit_queue_is_consumed_and_discarded() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    a.frontend().unwrap().enable_ring(TRANSMIT, false).unwrap();
    a.synchronise().unwrap();
    for number in 0..10 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    a.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.drops(0, DropReason::TransmitDisabled), 10);
    assert_silent(&mut b);
    a.frontend().unwrap().enable_ring(TRANSMIT, true).unwrap();
    a.synchronise().unwrap();
    exchange(&mut a, &mut b, 1);
}

#[test]
fn a_disabled_receive_queue_is_left_alone() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    b.frontend().unwrap().enable_ring(RECEIVE, false).unwrap();
    b.synchronise().unwrap();
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_eq!(bed.drops(1, DropReason::ReceiverAbsent), 1);
    b.frontend().unwrap().enable_ring(RECEIVE, true).unwrap();
    b.synchronise().unwrap();
    exchange(&mut a, &mut b, 2);
}

#[test]
fn without_protocol_features_rings_need_not_be_enabled() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let plain = bed.builder(0).without(features::PROTOCOL_FEATURES).enabled(false);
    let mut a = bed.guest_like(0, plain);
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b, 1);
}

/// A network of two guests, the first of which has sent 41 frames. Some of them wait for the second.
fn frames_waiting() -> (Bed, ToyGuest, ToyGuest) {
    let bed = Bed::new(2);
    let mut a = bed.guest(0);
    let mut b = bed.guest_with_four_buffers(1);
    announce(&mut [&mut a, &mut b]);
    for number in 0..40 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
    }
    bed.wait_for(|bed| bed.totals(0).transmit_frames == 41 && bed.totals(1).waiting > 0, "all are taken and some wait");
    (bed, a, b)
}

#[test]
fn a_ring_is_drained_before_its_base_is_told() {
    let (_bed, mut a, _b) = frames_waiting();
    let base = a.frontend().unwrap().ring_base(TRANSMIT).unwrap();
    let ring = &a.pair(0).transmit.queue.ring;
    assert_eq!(base, 41, "everything was taken");
    assert_eq!(u32::from(ring.shared().used_index()), base, "and everything came back before the answer");
}

#[test]
fn whoever_asks_for_the_base_while_a_fault_stops_the_ring_waits_until_it_is_drained() {
    for round in 0..60 {
        let (_bed, mut a, _b) = frames_waiting();
        let queue = &mut a.pair(0).transmit.queue;
        let ring = queue.ring.shared().clone();
        let next = ring.available_index();
        ring.set_available_entry(next, u16::MAX);
        ring.set_available_index(next.wrapping_add(1));
        queue.kick();
        // The two that stop the ring meet in one round or another.
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_micros(5 * round) {
            std::hint::spin_loop();
        }
        let base = a.frontend().unwrap().ring_base(TRANSMIT).unwrap();
        assert_eq!((base, u32::from(ring.used_index())), (41, 41), "round {round}");
    }
}

#[test]
fn a_front_end_that_forgot_the_base_goes_on_at_the_used_index() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b, 1);
    for index in [RECEIVE, TRANSMIT] {
        a.ring_step(index, RingStep::Stop).unwrap();
        a.queues().nth(index).unwrap().base = 0;
        for step in [RingStep::Base, RingStep::Call, RingStep::Kick] {
            a.ring_step(index, step).unwrap();
        }
    }
    a.synchronise().unwrap();
    exchange(&mut a, &mut b, 2);
}

#[test]
fn a_device_stops_and_starts_again_on_the_same_connection_with_other_features() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a =
        bed.guest_like(0, bed.builder(0).habit(Habit::DPDK).features(features::PLAIN | features::LINUX & !features::MRG_RXBUF));
    announce(&mut [&mut a, &mut b]);
    for wanted in [features::LINUX, features::PLAIN, features::LINUX & !features::EVENT_IDX] {
        a.restart_with(wanted).unwrap();
        announce(&mut [&mut a, &mut b]);
        exchange(&mut a, &mut b, wanted);
    }
}

/// virtio_uml.c does so where a NIC is unplugged or its driver ends (`vu_del_vqs`): it disables the virtqueues, and frees their memory.
#[test]
fn a_guest_of_user_mode_linux_reuses_the_memory_of_rings_that_it_has_disabled() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, bed.builder(0).habit(Habit::UML));
    announce(&mut [&mut a, &mut b]);
    for number in 0..3 {
        exchange(&mut a, &mut b, number);
        a.stop().unwrap();
        for queue in a.queues() {
            let ring = queue.ring.shared();
            ring.set_available_index(ring.available_index().wrapping_add(0x4000));
            ring.set_used_index(0x1234);
            queue.kick();
        }
        // Long enough for lost-notification checks, too.
        b.send(&frame(b.mac(), BROADCAST, 60, number)).unwrap();
        assert_silent(&mut a);
        assert!(a.queues().all(|queue| queue.ring.shared().used_index() == 0x1234), "the memory is the guest's");
        let port = bed.daemon().network().find("p0").unwrap();
        assert!(!matches!(port.state(), PortState::Quarantined(_)), "{:?}", port.state());
        a.reset_rings().unwrap();
        a.start().unwrap();
        announce(&mut [&mut a, &mut b]);
    }
    // And a suspended one goes on with the same rings (`virtio_uml_suspend`).
    for ring in [RECEIVE, TRANSMIT] {
        a.frontend().unwrap().enable_ring(ring, false).unwrap();
    }
    let late = frame(a.mac(), b.mac(), 60, 77);
    a.send(&late).unwrap();
    assert_silent(&mut b);
    for ring in [RECEIVE, TRANSMIT] {
        a.frontend().unwrap().enable_ring(ring, true).unwrap();
    }
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, late);
    exchange(&mut a, &mut b, 9);
}

#[test]
fn the_call_may_change_while_the_ring_runs() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    for kind in [CallKind::SocketPair, CallKind::Eventfd] {
        let call = memlane_rig::frontend::notify::Call::new(kind).unwrap();
        b.frontend().unwrap().set_ring_call(RECEIVE, call.fd()).unwrap();
        b.synchronise().unwrap();
        b.pair(0).receive.queue.call = call;
        exchange(&mut a, &mut b, 1);
    }
}

#[test]
fn memory_comes_and_goes_while_rings_run() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let plan = MemoryPlan::spread(20, 4 << 20, 1 << 20);
    let mut a = bed.guest_like(0, small_buffers(bed.builder(0).memory(plan)));
    announce(&mut [&mut a, &mut b]);
    // Rings and buffers lie in the first regions; the last ones come and go.
    for round in 0..10 {
        for region in 12..20 {
            a.remove_region(region).unwrap();
            exchange(&mut a, &mut b, round);
        }
        for region in 12..20 {
            a.add_region(region).unwrap();
            exchange(&mut a, &mut b, round);
        }
    }
}

#[test]
fn memory_is_told_once_for_every_queue_pair() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let plan = MemoryPlan::spread(8, 4 << 20, 1 << 20);
    let mut a = bed.guest_like(0, small_buffers(bed.builder(0).memory(plan)));
    announce(&mut [&mut a, &mut b]);
    for tell in [ToyGuest::remove_region, ToyGuest::add_region] {
        for _ in 0..2 {
            tell(&mut a, 7).unwrap();
            a.synchronise().unwrap();
        }
        exchange(&mut a, &mut b, 1);
    }
}

#[test]
fn a_whole_new_memory_table_may_come_while_rings_run() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let old = bed.builder(0).without_protocol(Protocol::CONFIGURE_MEM_SLOTS).memory(MemoryPlan::spread(6, 4 << 20, 1 << 20));
    let mut a = bed.guest_like(0, small_buffers(old));
    announce(&mut [&mut a, &mut b]);
    for round in 0..20 {
        let regions: Vec<usize> = if round % 2 == 0 { (0..4).collect() } else { (0..6).collect() };
        a.announce_memory(&regions).unwrap();
        a.synchronise().unwrap();
        exchange(&mut a, &mut b, round);
    }
}

#[test]
fn at_least_509_memory_slots_work() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, small_buffers(bed.builder(0).memory(MemoryPlan::spread(509, 1 << 20, 4096))));
    assert!(a.frontend().unwrap().memory_slots().unwrap() >= 509);
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b, 1);
}

#[test]
fn a_reset_device_starts_anew() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    for _ in 0..3 {
        a.frontend().unwrap().reset_device().unwrap();
        a.synchronise().unwrap();
        assert_eq!(bed.state(0), PortState::Speaking);
        a.reset_rings().unwrap();
        a.start().unwrap();
        exchange(&mut a, &mut b, 1);
    }
}

#[test]
fn the_small_messages_are_answered() {
    let bed = Bed::with("", &["mac = \"02:11:22:33:44:55\"\nmtu = 9000", ""]);
    let (mut a, mut b) = (bed.guest_like(0, bed.builder(0).habit(Habit::DPDK)), bed.guest(1));
    let front = a.frontend().unwrap();
    front.set_status(15).unwrap();
    assert_eq!(front.status().unwrap(), 15);
    front.set_mtu(9000).unwrap();
    assert!(front.set_mtu(9001).is_err());
    assert!(front.queue_number().unwrap() >= 2);
    let config = front.config(0, 12).unwrap();
    assert_eq!(config[..6], [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert_eq!(config[10..12], 9000_u16.to_le_bytes());
    front.send_rarp([2, 9, 9, 9, 9, 9]).unwrap();
    let rarp = b.receive(TIMEOUT).unwrap().bytes;
    assert_eq!((&rarp[..6], &rarp[6..12], &rarp[12..14]), (&BROADCAST[..], &[2, 9, 9, 9, 9, 9][..], &[0x80, 0x35][..]));
}

#[test]
fn announcements_obey_the_rules_for_floods() {
    let bed = Bed::with("", &["storm = 100", "mac = \"02:00:00:00:00:01\"", ""]);
    let (mut a, _b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    for refused in [mac(1), BROADCAST, [0; 6]] {
        a.frontend().unwrap().send_rarp(refused).unwrap();
    }
    bed.wait_for(|bed| bed.drops(0, DropReason::BadSource) == 3, "what may not be announced is counted");
    assert_silent(&mut c);
    for _ in 0..2500 {
        a.frontend().unwrap().send_rarp(mac(0)).unwrap();
    }
    assert_eq!(c.receive(TIMEOUT).unwrap().bytes[6..12], mac(0));
    bed.wait_for(|bed| bed.drops(0, DropReason::Storm) > 0, "announcements beyond the storm limit are dropped");
    assert_eq!(bed.state(0), PortState::Running);
}

#[test]
fn a_guest_with_more_memory_than_a_port_may_have_gets_none() {
    let bed = Bed::with("port-memory-gib = 1", &["", ""]);
    let large = bed.builder(0).memory(MemoryPlan::new((1 << 30) + 4096));
    // Whether it hears of it before or after it is done is of no interest.
    let _guest = large.connect(bed.socket(0));
    bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(cause) if cause.contains("port-memory-gib")), "it is refused");
    drop(_guest);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
}

/// QEMU has a ring go on from the used index that it finds when the connection ends, and chains that are used after that are lost
/// to its guest for ever: the ring is broken.
#[test]
fn no_ring_moves_once_the_front_end_sees_the_connection_end() {
    for round in 0..20 {
        let mut bed = Bed::new(2);
        // The receiver's connection is the first to end.
        let (mut b, mut a) = (bed.guest(0), bed.guest(1));
        announce(&mut [&mut b, &mut a]);
        let ring = b.pair(0).receive.queue.ring.shared().clone();
        let (from, to) = (a.mac(), b.mac());
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                while a.connected() {
                    while a.send(&frame(from, to, 60, 0)).is_ok() {}
                }
            });
            b.receive(TIMEOUT).unwrap();
            scope.spawn(|| bed.stop());
            while b.connected() {
                while b.try_receive().unwrap().is_some() {}
            }
            ring.used_index()
        });
        assert_eq!(ring.used_index(), found, "round {round}");
    }
}

#[test]
fn front_ends_that_read_no_answers_do_not_add_up_when_the_switch_stops() {
    const COUNT: usize = 4;
    let mut bed = Bed::new(COUNT);
    let get_features: Vec<u8> = [1_u32, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let front_ends: Vec<UnixStream> = (0..COUNT)
        .map(|port| {
            let mut stream = UnixStream::connect(bed.socket(port)).unwrap();
            stream.set_write_timeout(Some(POLL_INTERVAL)).unwrap();
            // Until the switch takes no more, for it cannot answer.
            while stream.write_all(&get_features).is_ok() {}
            stream
        })
        .collect();
    let begun = Instant::now();
    bed.stop();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(COUNT as u64 - 1), "{took:?}");
    drop(front_ends);
}

#[test]
fn a_front_end_that_goes_before_its_answer_breaks_no_rule() {
    let bed = Bed::new(1);
    // GET_FEATURES, version 1, without payload.
    let question: Vec<u8> = [1_u32, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    // Most of them are gone when the switch accepts their connections.
    for _ in 0..50 {
        UnixStream::connect(bed.socket(0)).unwrap().write_all(&question).unwrap();
    }
    let _guest = bed.guest(0);
    assert_eq!(bed.daemon().network().port(PortId(0)).unwrap().quarantines(), 0);
}
