//! Xen ports, on a hypervisor in memory: the states of both ends, frames between all kinds of ports, and faults.

#[path = "../common/netfront.rs"]
pub mod netfront;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::*;
use memlane::frame::MacAddress;
use memlane::link::Impairment;
use memlane::network::AttachSettings;
use memlane::port::settings::PortSettings;
use memlane::port::{Offer, Port, PortState};
use memlane::stats::DropReason;
use memlane::tap::{CaptureOrder, Sight};
use memlane::time::Cycles;
use memlane_backends::xen::in_memory::Hypervisor;
use memlane_backends::xen::netif::{MOST_SLOTS, tx_flag};
use memlane_backends::xen::{Newcomer, News, Wanted, XenstoreWatcher};
use memlane_rig::frames::{Host, Packet, check};
use netfront::{Front, Kind, Marks, Queue, at};

const PLAIN: Marks = Marks { checksum_blank: false, gso: None };

/// A network of a guest behind vhost-user, port 0, and ports for the Xen domains x1, x2 ..., numbered from 1 on.
struct Xen {
    watcher: Option<XenstoreWatcher>,
    bed: Bed,
    hypervisor: Arc<Hypervisor>,
    ports: Vec<Arc<Port>>,
}

impl Xen {
    fn new(domains: usize) -> Self {
        Self::with("", domains, None)
    }

    fn with(top: &str, domains: usize, link: Option<Impairment>) -> Self {
        let bed = Bed::with(top, &[""]);
        let settings = PortSettings { link, ..PortSettings::default() };
        let port = |index: usize| {
            let name = format!("x{index}");
            let attach_settings = AttachSettings { name: &name, segment: "lan", settings: &settings, offer: Offer::default() };
            bed.daemon().network().add_port(&attach_settings, 4).unwrap()
        };
        let ports = (1..=domains).map(port).collect();
        let mut xen = Self { watcher: None, bed, hypervisor: Hypervisor::new(), ports };
        xen.start();
        xen
    }

    /// A xenstore watcher begins, as in a process that has just started.
    fn start(&mut self) {
        let layer: Arc<Hypervisor> = Arc::clone(&self.hypervisor);
        let watcher = XenstoreWatcher::start_on(self.bed.daemon().network(), layer, self.hypervisor.store()).unwrap();
        for port in &self.ports {
            let wanted = Wanted { domain: port.name.clone(), vif: 0, queues: 4, receive_offloads: true, has_address: false };
            watcher.serve(wanted, port);
        }
        self.watcher = Some(watcher);
    }

    fn create(&self, index: usize) -> Front {
        Front::create(&self.hypervisor, index as u16, &format!("x{index}"), mac(index))
    }

    fn front(&self, index: usize, kind: Kind) -> Front {
        let mut front = self.create(index);
        front.connect(kind);
        front
    }

    fn await_state(&self, index: usize, state: &PortState) {
        wait_until(|| self.ports[index - 1].state() == *state, &format!("port x{index} is {}", state.name()));
    }

    fn drops(&self, index: usize, reason: DropReason) -> u64 {
        self.ports[index - 1].totals().drops.get(reason.name()).copied().unwrap_or(0)
    }

    /// Waits until the front end of domain `index` is in quarantine for a `cause`.
    fn await_quarantine(&self, index: usize, cause: &str) {
        let port = &self.ports[index - 1];
        wait_until(|| matches!(port.state(), PortState::Quarantined(_)), "the port is in quarantine");
        assert!(matches!(port.state(), PortState::Quarantined(told) if told.contains(cause)), "{:?}", port.state());
    }
}

/// Has the switch learn both MAC addresses.
fn greet(one: &mut Front, one_mac: [u8; 6], other: &mut Front, other_mac: [u8; 6]) {
    let hello = frame(one_mac, BROADCAST, 60, 1);
    one.send(&hello, &[], PLAIN);
    assert_eq!(other.receive().bytes, hello);
    let hello = frame(other_mac, one_mac, 60, 2);
    other.send(&hello, &[], PLAIN);
    assert_eq!(one.receive().bytes, hello);
}

/// Two connected front ends of this kind that know each other.
fn pair(xen: &Xen, kind: Kind) -> (Front, Front) {
    let (mut one, mut two) = (xen.front(1, kind), xen.front(2, kind));
    greet(&mut one, mac(1), &mut two, mac(2));
    (one, two)
}

#[test]
fn frames_pass_in_every_layout() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    let mut number = 0;
    for length in [14, 15, 53, 54, 60, 143, 144, 145, 1514, 4000, 8000, 65_535] {
        for parts in [&[][..], &[14], &[1, 13], &[60], &[20, 20, 100], &[144], &[200]] {
            let told: usize = parts.iter().sum();
            if told > length || parts.len() + (length - told).div_ceil(4000) > MOST_SLOTS {
                continue;
            }
            number += 1;
            let sent = frame(mac(1), mac(2), length, number);
            one.send(&sent, parts, PLAIN);
            let got = two.receive();
            assert!(got.bytes == sent, "{length} bytes in {parts:?}");
            assert_eq!(got.marks, PLAIN);
            one.queues[0].await_answers();
        }
    }
    assert_eq!(one.queues[0].errors, 0);
}

#[test]
fn a_batch_of_frames_is_two_requests_to_the_hypervisor() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    let before = (xen.hypervisor.copy_requests(), xen.hypervisor.copies());
    for number in 0..32 {
        one.queues[0].put_frame(&frame(mac(1), mac(2), 1514, number));
    }
    one.queues[0].push();
    for number in 0..32 {
        assert!(two.receive().bytes == frame(mac(1), mac(2), 1514, number));
    }
    one.queues[0].await_answers();
    assert_eq!(xen.hypervisor.copy_requests() - before.0, 2, "one on transmit, one on receive");
    assert_eq!(xen.hypervisor.copies() - before.1, 64, "each frame to a page of ours and on");
}

/// Of one request and the usual MTU: all of it to a page of ours and on. Otherwise its first bytes to a page of ours, then they and the rest.
#[test]
fn a_frame_of_one_short_request_is_two_copies_and_others_are_three() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    for (number, (length, parts, copies)) in
        [(60, &[][..], 2), (200, &[], 2), (1514, &[], 2), (2048, &[], 2), (2049, &[], 3), (1514, &[66], 3)].into_iter().enumerate()
    {
        let (before, sent) = (xen.hypervisor.copies(), frame(mac(1), mac(2), length, number as u64));
        one.send(&sent, parts, PLAIN);
        assert!(two.receive().bytes == sent);
        one.queues[0].await_answers();
        assert_eq!(xen.hypervisor.copies() - before, copies, "{length} bytes in {parts:?}");
    }
}

#[test]
fn an_idle_worker_sleeps_on_after_the_looks() {
    let xen = Xen::with("poll = \"never\"", 2, None);
    let (mut one, _two) = pair(&xen, Kind::LINUX);
    one.queues[0].await_answers();
    std::thread::sleep(ALL_LOOKS);
    let sleeps = || xen.bed.daemon().network().shared().workers[0].sleeps.get();
    let before = sleeps();
    std::thread::sleep(ALL_LOOKS);
    assert_eq!(sleeps(), before);
}

/// Has guest 1 send guest 2 a frame, and just after it another one with an event that gets lost; true if that arrived all the same.
fn arrives_without_an_event(one: &mut Front, two: &mut Front, number: u64) -> bool {
    let (first, lost) = (frame(mac(1), mac(2), 100, number), frame(mac(1), mac(2), 100, number + 1));
    one.send(&first, &[], PLAIN);
    assert!(two.receive().bytes == first);
    std::thread::sleep(ASLEEP);
    let queue = &mut one.queues[0];
    queue.put_frame(&lost);
    queue.show();
    let arrived = two.queues[0].receive(ALL_LOOKS).is_some_and(|got| got.bytes == lost);
    queue.push();
    assert!(arrived || two.receive().bytes == lost);
    arrived
}

#[test]
fn an_event_that_got_lost_is_made_up_for() {
    let xen = Xen::with("poll = \"never\"", 2, None);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    let before = xen.ports[0].totals().missed_kicks;
    assert!((1..5).any(|attempt| arrives_without_an_event(&mut one, &mut two, 2 * attempt)), "not found");
    assert!(xen.ports[0].totals().missed_kicks > before);
}

#[test]
fn other_kinds_of_ports_reach_xen_guests_and_back() {
    let xen = Xen::new(1);
    let (mut guest, mut front) = (xen.bed.guest(0), xen.front(1, Kind::LINUX));
    let hello = frame(guest.mac(), BROADCAST, 60, 1);
    guest.send(&hello).unwrap();
    assert_eq!(front.receive().bytes, hello);
    for (number, length) in [60, 1514, 9000, 65_000].into_iter().enumerate() {
        let out = frame(mac(1), guest.mac(), length, number as u64);
        front.send(&out, &[100.min(length)], PLAIN);
        assert!(guest.receive(TIMEOUT).unwrap().bytes == out, "{length} bytes to vhost-user");
        let back = frame(guest.mac(), mac(1), length, number as u64);
        guest.send(&back).unwrap();
        assert!(front.receive().bytes == back, "{length} bytes to Xen");
    }
}

#[test]
fn floods_reach_everybody_and_links_hold_xen_frames_back() {
    let link = Impairment { delay: Some("20ms".into()), ..Impairment::default() };
    let xen = Xen::with("", 2, Some(link));
    let (mut guest, mut one, mut two) = (xen.bed.guest(0), xen.front(1, Kind::LINUX), xen.front(2, Kind::LINUX));
    let hello = frame(mac(1), BROADCAST, 3000, 5);
    let begin = std::time::Instant::now();
    one.send(&hello, &[66, 2000], PLAIN);
    assert!(guest.receive(TIMEOUT).unwrap().bytes == hello);
    assert!(two.receive().bytes == hello && begin.elapsed() >= std::time::Duration::from_millis(20));
    one.queues[0].await_answers();
}

/// A large TCP frame from guest 1 to guest 2, over IPv4 or IPv6.
fn large(host: fn(u16) -> Host, payload: usize) -> Packet {
    Packet::tcp(host(1), host(2), 7, (0..payload).map(|n| n as u8).collect::<Vec<_>>())
}

#[test]
fn a_front_end_with_gso_gets_frames_unsegmented() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    for (host, kind) in [(Host::v4 as fn(u16) -> Host, 1), (Host::v6, 2)] {
        for parts in [&[54][..], &[74], &[20, 30], &[4000], &[3000, 3000, 3000]] {
            let (_, bytes) = large(host, 60_000).gso(1448);
            let marks = Marks { checksum_blank: true, gso: Some((kind, 1448)) };
            one.send(&bytes, parts, marks);
            let got = two.receive();
            assert!(got.bytes == bytes, "in {parts:?}");
            assert_eq!(got.marks, marks);
            assert!(got.slots <= 18);
            one.queues[0].await_answers();
        }
    }
}

#[test]
fn who_does_not_take_them_gets_what_the_sender_would_have_sent() {
    let xen = Xen::new(2);
    let mut one = xen.front(1, Kind::LINUX);
    let mut two = xen.front(2, Kind { gso: false, ..Kind::LINUX });
    greet(&mut one, mac(1), &mut two, mac(2));
    for (checksum, host, kind) in [(true, Host::v4 as fn(u16) -> Host, 1), (false, Host::v4, 1), (false, Host::v6, 2)] {
        if !checksum {
            two.write("state", 6);
            two.await_back("6");
            two.write("state", 1);
            two.connect(Kind { gso: false, checksum: false, ..Kind::LINUX });
            greet(&mut one, mac(1), &mut two, mac(2));
        }
        let packet = large(host, 20_000);
        let (_, bytes) = packet.gso(1400);
        one.send(&bytes, &[66], Marks { checksum_blank: true, gso: Some((kind, 1400)) });
        for segment in packet.segments(1400) {
            let got = two.receive();
            let wanted = if checksum { segment.partial().1 } else { segment.frame() };
            assert_eq!(got.marks, Marks { checksum_blank: checksum, gso: None });
            assert!(got.bytes == wanted);
        }
        one.queues[0].await_answers();
    }
}

#[test]
fn offloads_pass_between_xen_and_vhost_user() {
    let xen = Xen::new(1);
    let mut guest = xen.bed.guest_like(0, xen.bed.builder(0).features(memlane_rig::frontend::features::LINUX));
    let mut front = xen.front(1, Kind::LINUX);
    let hello = frame(guest.mac(), BROADCAST, 60, 1);
    guest.send(&hello).unwrap();
    front.receive();
    let packet = Packet::tcp(Host::v4(1), Host::v4(0), 7, vec![5; 30_000]);
    front.send(&packet.gso(1448).1, &[66], Marks { checksum_blank: true, gso: Some((1, 1448)) });
    let mut payload = 0;
    while payload < 30_000 {
        let got = guest.receive(TIMEOUT).unwrap();
        check(&got.header, &got.bytes).unwrap();
        payload += got.bytes.len() - 54;
    }
    assert_eq!(payload, 30_000);
}

#[test]
fn several_queues_are_served_and_flows_keep_to_one() {
    let xen = Xen::new(2);
    let mut one = xen.front(1, Kind { queues: 3, split: false, ..Kind::LINUX });
    let mut two = xen.front(2, Kind { queues: 2, ..Kind::LINUX });
    let hello = frame(mac(2), BROADCAST, 60, 1);
    two.send(&hello, &[], PLAIN);
    let heard: usize = one.queues.iter_mut().map(|queue| usize::from(queue.receive(POLL_INTERVAL).is_some())).sum();
    assert_eq!(heard, 1);
    let mut found = [0; 2];
    for port in 0..40 {
        let bytes = Packet::tcp(Host::v4(1).port(port), Host::v4(2), 1, vec![3; 100]).frame();
        one.queues[usize::from(port % 3)].send(&bytes, &[], PLAIN);
        one.queues[usize::from(port % 3)].await_answers();
        let mut counts = two.queues.iter_mut().map(|queue| queue.receive(POLL_INTERVAL).map_or(0, |_| 1));
        let got = [counts.next().unwrap(), counts.next().unwrap()];
        assert_eq!(got[0] + got[1], 1);
        (found[0], found[1]) = (found[0] + got[0], found[1] + got[1]);
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

#[test]
fn a_front_end_comes_and_goes_and_nothing_of_it_stays_mapped() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    for _ in 0..3 {
        one.write("state", 5);
        one.await_back("5");
        xen.await_state(1, &PortState::Waiting);
        one.write("state", 6);
        one.await_back("6");
        one.write("state", 1);
        one.connect(Kind::LINUX);
        greet(&mut one, mac(1), &mut two, mac(2));
    }
    // The guest begins anew without having ended.
    one.write("state", 1);
    one.connect(Kind::LINUX);
    greet(&mut one, mac(1), &mut two, mac(2));
    // xl network-detach, then the toolstack takes all away.
    xen.hypervisor.write(&one.back("online"), "0");
    xen.hypervisor.write(&one.back("state"), "5");
    one.await_back("6");
    xen.await_state(1, &PortState::Waiting);
    xen.hypervisor.remove("backend/vif/1/0");
    xen.hypervisor.remove("/local/domain/1/device/vif/0");
    // xl network-attach.
    let mut one = xen.front(1, Kind::LINUX);
    greet(&mut one, mac(1), &mut two, mac(2));
}

#[test]
fn what_a_guest_writes_has_nobody_else_looked_at() {
    const WRITES: usize = 50;
    let xen = Xen::new(12);
    let fronts: Vec<_> = (1..=12).map(|index| xen.front(index, Kind::LINUX)).collect();
    (1..=12).for_each(|index| xen.await_state(index, &PortState::Running));
    std::thread::sleep(Duration::from_millis(50));
    let before = xen.hypervisor.reads();
    for _ in 0..WRITES {
        fronts[0].write("state", 4);
        std::thread::sleep(Duration::from_millis(3));
    }
    let reads = xen.hypervisor.reads() - before;
    // The reads are of the guest's own state, the back end's, and whether it is to stay.
    assert!((1..=3 * WRITES).contains(&reads), "{reads} reads for {WRITES} writes");
}

#[test]
fn a_domain_that_dies_goes_and_another_of_its_name_comes() {
    let xen = Xen::new(2);
    let (one, mut two) = pair(&xen, Kind::LINUX);
    // xl destroy: the front end is gone before the back end is told.
    xen.hypervisor.remove("/local/domain/1");
    xen.hypervisor.write(&one.back("online"), "0");
    xen.hypervisor.write(&one.back("state"), "5");
    one.await_back("6");
    xen.hypervisor.remove("backend/vif/1");
    let mut again = Front::create(&xen.hypervisor, 9, "x1", mac(1));
    again.connect(Kind::LINUX);
    greet(&mut again, mac(1), &mut two, mac(2));
}

/// The sender is met after the receiver, which has the lower number: frames for a receiver that is not there yet would be lost.
#[test]
fn a_process_that_follows_goes_on_where_the_last_one_ended() {
    let mut xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    for round in 0..3 {
        xen.watcher.take();
        xen.await_state(2, &PortState::Waiting);
        assert_eq!(two.hypervisor.read(&two.back("state")).as_deref(), Some("4"), "the guest notices nothing");
        for number in 0..20 {
            two.send(&frame(mac(2), mac(1), 3000, 100 * round + number), &[66], PLAIN);
        }
        xen.start();
        for number in 0..20 {
            assert!(one.receive().bytes == frame(mac(2), mac(1), 3000, 100 * round + number));
        }
        two.queues[0].await_answers();
        one.assert_silent();
    }
}

#[test]
fn what_waits_for_a_receiver_arrives_when_it_posts() {
    let xen = Xen::with("stall-timeout-ms = 10000", 2, None);
    let mut one = xen.front(1, Kind::LINUX);
    let mut two = xen.front(2, Kind { posts: 2, ..Kind::LINUX });
    greet(&mut one, mac(1), &mut two, mac(2));
    // In two requests each, and in one: more than there are places for frames that are copied entirely.
    for parts in [&[66][..], &[]] {
        for number in 0..40 {
            one.send(&frame(mac(1), mac(2), 1514, number), parts, PLAIN);
        }
        for number in 0..40 {
            assert!(two.receive().bytes == frame(mac(1), mac(2), 1514, number));
        }
        one.queues[0].await_answers();
    }
    assert_eq!(xen.drops(2, DropReason::ReceiverStalled), 0);
    let before = xen.hypervisor.copies();
    one.send(&frame(mac(1), mac(2), 1514, 99), &[], PLAIN);
    assert!(two.receive().bytes == frame(mac(1), mac(2), 1514, 99));
    one.queues[0].await_answers();
    assert_eq!(xen.hypervisor.copies() - before, 2, "there are places again");
}

#[test]
fn large_frames_that_are_put_off_lose_nothing_they_were_lent() {
    let xen = Xen::with("stall-timeout-ms = 10000", 2, None);
    let mut one = xen.front(1, Kind::LINUX);
    let mut two = xen.front(2, Kind { posts: 40, ..Kind::LINUX });
    greet(&mut one, mac(1), &mut two, mac(2));
    // A sender with one receiver only has its frames wait in its transmit ring (backpressure).
    for number in 0..40 {
        one.send(&frame(mac(1), mac(2), 60, number), &[], PLAIN);
        two.receive();
    }
    for round in 0..3 {
        for number in 0..14 {
            one.send(&frame(mac(1), mac(2), 60_000, 100 * round + number), &[], PLAIN);
        }
        // Meanwhile frames without room are opened and left in the ring (backpressure) again and again.
        std::thread::sleep(Duration::from_millis(200));
        for number in 0..14 {
            assert!(two.receive().bytes == frame(mac(1), mac(2), 60_000, 100 * round + number));
        }
        one.queues[0].await_answers();
    }
    assert_eq!(one.queues[0].errors, 0);
    assert_eq!(xen.drops(1, DropReason::ChainTooLong), 0);
}

#[test]
fn too_few_receive_requests_cost_the_frame_and_nobody_else() {
    let xen = Xen::with("stall-timeout-ms = 20", 2, None);
    let mut one = xen.front(1, Kind::LINUX);
    let mut two = xen.front(2, Kind { posts: 3, ..Kind::LINUX });
    greet(&mut one, mac(1), &mut two, mac(2));
    one.send(&frame(mac(1), mac(2), 20_000, 1), &[], PLAIN);
    one.queues[0].await_answers();
    one.send(&frame(mac(1), mac(2), 1000, 2), &[], PLAIN);
    assert!(two.receive().bytes == frame(mac(1), mac(2), 1000, 2));
}

#[test]
fn pages_that_cannot_be_reached_cost_the_frame_only() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    let order = CaptureOrder { drops_only: true, snaplen: 100, ..CaptureOrder::default() };
    let mut capture = xen.bed.daemon().network().capture(order).unwrap();
    // A reference that is none; one that is, for the headers, and none for the payload.
    let good = one.queues[0].tx_pages[7].1;
    at(&one.queues[0].tx_pages[7].0, 0).write(&frame(mac(1), mac(2), 60, 1));
    for (first, second) in [(0xdead, good), (good, 0xdead)] {
        one.queues[0].put(Queue::request(first, 0, tx_flag::MORE_DATA, 1, 160));
        one.queues[0].put(Queue::request(second, 0, 0, 2, 100));
    }
    // More frames of one request than are copied entirely at a time, none of which can be.
    for id in 3..43 {
        one.queues[0].put(Queue::request(0xdead, 0, 0, id, 1000));
    }
    one.queues[0].push();
    one.queues[0].await_answers();
    assert_eq!(one.queues[0].errors, 42, "both requests of the frame whose headers could not be read, and one of each other");
    wait_until(|| xen.drops(2, DropReason::GrantRefused) == 1, "one is counted where it could not be delivered");
    assert_eq!(xen.drops(1, DropReason::GrantRefused), 41);
    let mut captured = 0;
    wait_until(
        || {
            let refused = Sight::Dropped(DropReason::GrantRefused);
            capture.read(usize::MAX, Cycles::MAX, |seen, _| captured += u64::from(seen.sight == refused));
            captured >= 41
        },
        "a capture has those that were not read",
    );
    // The receiver takes a page back.
    let place = two.queues[0].received as usize;
    let revoked = two.queues[0].rx_pages[place + 1].1;
    xen.hypervisor.revoke(2, revoked);
    one.send(&frame(mac(1), mac(2), 1000, 2), &[], PLAIN);
    one.send(&frame(mac(1), mac(2), 1000, 3), &[], PLAIN);
    assert!(two.receive().bytes == frame(mac(1), mac(2), 1000, 3), "the frame before was to go where nothing can be written");
    assert_eq!(xen.ports[0].state(), PortState::Running);
}

#[test]
fn a_front_end_that_breaks_a_rule_is_in_quarantine_until_it_begins_anew() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    type Act = fn(&mut Front);
    let acts: [(Act, &str); 6] = [
        (|front| at(&front.queues[0].tx, 0).store_number(front.queues[0].sent.wrapping_add(300)), "jumped"),
        (|front| at(&front.queues[0].tx, 0).store_number(front.queues[0].sent.wrapping_sub(1)), "jumped"),
        (|front| front.queues[0].put(Queue::request(9, 4000, 0, 1, 200)), "crosses its page"),
        (|front| front.queues[0].put(Queue::request(9, 0, tx_flag::MORE_DATA, 1, 200)), "not in the ring"),
        (
            |front| {
                front.queues[0].put(Queue::request(9, 0, tx_flag::EXTRA_INFO, 1, 200));
                (0..9).for_each(|_| front.queues[0].put([2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
            },
            "extra",
        ),
        (|front| (0..40).for_each(|_| front.queues[0].put(Queue::request(9, 0, tx_flag::MORE_DATA, 7, 60))), "more than"),
    ];
    for (act, cause) in acts {
        let before = one.queues[0].sent;
        act(&mut one);
        if one.queues[0].sent == before {
            one.queues[0].channels[0].write(1).unwrap();
        } else {
            one.queues[0].push();
        }
        xen.await_quarantine(1, cause);
        // The guest's writes meanwhile change nothing, and others are served.
        one.write("feature-sg", "x".repeat(4000));
        let mut guest = xen.bed.guest(0);
        guest.send(&frame(guest.mac(), mac(2), 60, 1)).unwrap();
        assert_eq!(two.receive().bytes.len(), 60);
        drop(guest);
        one.await_back("6");
        one.write("state", 6);
        one.write("state", 1);
        one.connect(Kind::LINUX);
        greet(&mut one, mac(1), &mut two, mac(2));
    }
}

/// Frames before the one that breaks a rule are not copied: if they were taken, they would be forwarded by the copied headers of
/// earlier frames.
#[test]
fn nothing_is_taken_of_a_batch_that_breaks_a_rule() {
    let xen = Xen::new(2);
    let (mut one, mut two) = pair(&xen, Kind::LINUX);
    for number in 0..40 {
        one.send(&frame(mac(1), mac(2), 1000, number), &[], PLAIN);
        assert!(two.receive().bytes == frame(mac(1), mac(2), 1000, number));
    }
    let queue = &mut one.queues[0];
    for number in 0..3 {
        queue.put_frame(&frame(mac(7), mac(2), 1000, number));
    }
    queue.put(Queue::request(8, 4000, 0, 9, 200));
    queue.push();
    xen.await_quarantine(1, "crosses its page");
    two.assert_silent();
}

#[test]
fn what_a_receiver_says_of_its_ring_is_checked_too() {
    let xen = Xen::new(2);
    let (mut one, two) = pair(&xen, Kind::LINUX);
    at(&two.queues[0].rx, 0).store_number(two.queues[0].posted.wrapping_add(1000));
    one.send(&frame(mac(1), mac(2), 60, 1), &[], PLAIN);
    xen.await_quarantine(2, "jumped");
}

#[test]
fn front_ends_that_make_no_sense_are_refused_with_the_cause() {
    let xen = Xen::new(1);
    type Spoil = fn(&Front);
    let spoils: [(Spoil, &str); 6] = [
        (|front| front.write("request-rx-copy", 0), "request-rx-copy"),
        (|front| front.write("multi-queue-num-queues", 5), "requests 5 queues"),
        (|front| front.write("multi-queue-num-queues", 0), "requests 0 queues"),
        (|front| front.write("tx-ring-ref", "-1"), "published no ring references"),
        (|front| front.write("rx-ring-ref", 4_000_000_000_u32), "receive ring"),
        (|front| front.write("event-channel-tx", 77), "event channel"),
    ];
    let mut front = xen.create(1);
    for (spoil, cause) in spoils {
        front.share_but(Kind::LINUX, spoil);
        xen.await_quarantine(1, cause);
        front.await_back("6");
        front.write("state", 1);
    }
    front.connect(Kind::LINUX);
    xen.await_state(1, &PortState::Running);
}

#[test]
fn interfaces_that_are_memlanes_are_told_of_and_others_are_not() {
    let xen = Xen::new(1);
    let (sender, news) = channel();
    let watcher = xen.watcher.as_ref().unwrap();
    watcher.tell(sender);
    let front = |domain: u16, script: &str| {
        xen.hypervisor.write(&format!("backend/vif/{domain}/0/script"), script);
        Front::create(&xen.hypervisor, domain, "new", mac(domain.into()))
    };
    let (_other, mut ours) = (front(5, "/etc/xen/scripts/vif-bridge"), front(6, "/etc/xen/scripts/vif-memlane"));
    let address = Some(MacAddress::new(mac(6)));
    let newcomer = Newcomer { domain: 6, vif: 0, segment: Some("lan".into()), mac: address };
    assert_eq!(news.recv_timeout(TIMEOUT), Ok(News::Came(newcomer)));
    let wanted = Wanted { domain: "6".into(), vif: 0, queues: 1, receive_offloads: true, has_address: false };
    watcher.serve(wanted, &xen.ports[0]);
    ours.connect(Kind::LINUX);
    xen.await_state(1, &PortState::Running);
    xen.hypervisor.remove("backend/vif/6");
    assert_eq!(news.recv_timeout(TIMEOUT), Ok(News::Gone(6, 0)));
    xen.await_state(1, &PortState::Waiting);
    assert!(news.try_recv().is_err(), "nothing else was told");
}
