//! Known behaviour of other projects' front ends, and rules that their guests may break without their doing.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use crate::common::*;
use memlane::control::causes::CauseKind;
use memlane::id::PortId;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::deadline::Deadline;
use memlane_rig::frontend::{Acknowledge, features, wire};
use memlane_rig::guest::{Habit, RingStep, Step, ToyGuest};
use vhost::vhost_user::message::{FrontendReq as Request, VhostUserProtocolFeatures as Protocol};
use vmm_sys_util::eventfd::EventFd;

pub const NOWHERE: [u64; 3] = [0x7000_0000_0000; 3];

/// A message about ring `ring`, without waiting.
pub fn tell(guest: &mut ToyGuest, request: Request, ring: u32, number: u32) {
    send(guest, request, wire::VERSION, &[ring.to_le_bytes(), number.to_le_bytes()].concat(), &[]);
}

pub fn send(guest: &mut ToyGuest, request: Request, flags: u32, body: &[u8], files: &[i32]) {
    wire::send(guest.frontend().unwrap().stream(), request as u32, flags, body, files).unwrap();
}

pub fn tell_addresses(guest: &mut ToyGuest, ring: u32, [descriptors, available, used]: [u64; 3]) {
    let mut body = [ring.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    [descriptors, used, available, 0].iter().for_each(|address| body.extend(address.to_le_bytes()));
    send(guest, Request::SET_VRING_ADDR, wire::VERSION, &body, &[]);
}

/// Gives ring `ring` a kick; returns the back end's acknowledgement.
pub fn kick(guest: &mut ToyGuest, ring: u32) -> Option<u64> {
    let event = EventFd::new(0).unwrap();
    let flags = wire::VERSION | wire::NEED_REPLY;
    send(guest, Request::SET_VRING_KICK, flags, &u64::from(ring).to_le_bytes(), &[event.as_raw_fd()]);
    wire::receive(guest.frontend().unwrap().stream(), Deadline::after(TIMEOUT)).unwrap().number()
}

fn quarantines(bed: &Bed, index: u16) -> u64 {
    bed.daemon().network().port(PortId(index)).unwrap().quarantines()
}

fn exchange(a: &mut ToyGuest, b: &mut ToyGuest) {
    let (there, back) = (frame(a.mac(), b.mac(), 300, 1), frame(b.mac(), a.mac(), 300, 2));
    a.send(&there).unwrap();
    assert_eq!(b.receive(TIMEOUT).unwrap().bytes, there);
    b.send(&back).unwrap();
    assert_eq!(a.receive(TIMEOUT).unwrap().bytes, back);
}

/// Guests of this front end on ports 0 and 1, which kick only where they have something new.
fn pair_of(bed: &Bed, habit: Habit) -> (ToyGuest, ToyGuest) {
    let guest = |index| bed.guest_like(index, bed.builder(index).habit(habit).kicked(habit == Habit::QEMU));
    (guest(0), guest(1))
}

/// All their receive buffers were posted before the device started: Cloud Hypervisor's base for them is 256.
#[test]
fn buffers_posted_before_the_start_are_filled() {
    for habit in Habit::ALL {
        let bed = Bed::new(2);
        let (mut a, mut b) = pair_of(&bed, habit);
        for _ in 0..10 {
            exchange(&mut a, &mut b);
        }
        assert_eq!(bed.drops(0, DropReason::ReceiverStalled), 0, "{}", habit.name);
    }
}

/// No chain is in flight in a ring that starts: it resumes at the used index, whichever base the front end states.
#[test]
fn guests_of_every_front_end_carry_on_after_a_restart() {
    for habit in Habit::ALL {
        let mut bed = Bed::new(2);
        let (mut a, mut b) = pair_of(&bed, habit);
        announce(&mut [&mut a, &mut b]);
        for _ in 0..3 {
            bed.restart();
            a.reconnect().unwrap();
            b.reconnect().unwrap();
            announce(&mut [&mut a, &mut b]);
            for _ in 0..10 {
                exchange(&mut a, &mut b);
            }
            assert_eq!([0, 1].map(|port| quarantines(&bed, port)), [0, 0], "{}", habit.name);
        }
    }
}

/// The other end has closed the connection. A read timeout is no such end.
fn assert_hung_up(mut stream: &UnixStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("it is hung up on, not {other:?}"),
    }
}

/// QEMU's new process asks for features and sends its eventfds when it starts, long before its guest runs. The port stays with the first
/// front end until the second sets up memory or a virtqueue. A third takes the place of a second that waits.
#[test]
fn a_second_front_end_waits_until_it_sets_up_its_device() {
    let bed = Bed::with("", &["second = \"replace\"", ""]);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let seconds: Vec<_> = (0..2)
        .map(|_| {
            let mut second = UnixStream::connect(bed.socket(0)).unwrap();
            second.set_read_timeout(Some(TIMEOUT)).unwrap();
            for (request, answered) in
                [(Request::GET_FEATURES, true), (Request::SET_OWNER, false), (Request::GET_PROTOCOL_FEATURES, true)]
            {
                wire::send(&second, request as u32, wire::VERSION, &[], &[]).unwrap();
                if answered {
                    second.read_exact(&mut [0; 20]).unwrap();
                }
                exchange(&mut a, &mut b);
            }
            for (request, ring) in [
                (Request::SET_VRING_CALL, 0_u64),
                (Request::SET_VRING_ERR, 0),
                (Request::SET_VRING_CALL, 1),
                (Request::SET_VRING_ERR, 1),
            ] {
                let call = EventFd::new(0).unwrap();
                wire::send(&second, request as u32, wire::VERSION, &ring.to_le_bytes(), &[call.as_raw_fd()]).unwrap();
            }
            wire::send(&second, Request::SET_FEATURES as u32, wire::VERSION, &0_u64.to_le_bytes(), &[]).unwrap();
            // The answer shows that all before were served.
            wire::send(&second, Request::GET_FEATURES as u32, wire::VERSION, &[], &[]).unwrap();
            second.read_exact(&mut [0; 20]).unwrap();
            exchange(&mut a, &mut b);
            assert!(a.connected());
            second
        })
        .collect();
    // The later one has taken the place of the earlier one, and takes the port.
    assert_hung_up(&seconds[0]);
    let size = [0_u32, 256].map(u32::to_le_bytes).concat();
    wire::send(&seconds[1], Request::SET_VRING_NUM as u32, wire::VERSION, &size, &[]).unwrap();
    wait_until(|| !a.connected(), "the first one's connection ends");
    // The next front end is served after it.
    drop(seconds);
    let mut a = bed.guest(0);
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b);
    assert_eq!(quarantines(&bed, 0), 0);
}

/// QEMU's cpr-transfer and Cloud Hypervisor's local migration connect: the old front end is there until it is replaced.
#[test]
fn a_second_front_end_replaces_the_first_where_that_is_set() {
    let bed = Bed::with("", &["second = \"replace\"", ""]);
    let (mut old, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut old, &mut b]);
    for in_a_message in [false, true] {
        if in_a_message {
            old.frontend().unwrap().stream().write_all(&[0; 3]).unwrap();
        }
        let mut new = bed.builder(0).connect(bed.socket(0)).unwrap();
        wait_until(|| !old.connected(), "the first one's connection ends");
        // The first one's virtqueues stopped before.
        let used = |guest: &mut ToyGuest| guest.pair(0).receive.queue.ring.shared().used_index();
        let last = used(&mut old);
        exchange(&mut new, &mut b);
        assert_eq!(used(&mut old), last);
        old = new;
    }
    assert_eq!(quarantines(&bed, 0), 0);
}

/// Whether it is refused or replaces the first, a second front end that lies costs other ports nothing, and the next one is served.
#[test]
fn a_second_front_end_that_lies_costs_others_nothing() {
    let header = |request: Request, size| wire::header(request as u32, wire::VERSION, size).to_vec();
    // A message of no kind, only the beginning of one, and settings of memory that does not come, by which it takes the port.
    let lies = [
        (vec![b'x'; 64], false),
        (header(Request::SET_FEATURES, 8)[..5].to_vec(), false),
        ([header(Request::SET_MEM_TABLE, 40), 1_u64.to_le_bytes().to_vec(), vec![0xff; 32]].concat(), true),
        ([header(Request::SET_VRING_ADDR, 40), vec![0xff; 40]].concat(), true),
    ];
    for second in ["refuse", "replace"] {
        let bed = Bed::with("", &[&format!("second = \"{second}\""), "", ""]);
        let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
        announce(&mut [&mut a, &mut b, &mut c]);
        for (lie, takes_port) in &lies {
            let mut liar = UnixStream::connect(bed.socket(0)).unwrap();
            // One that is refused may have been hung up on.
            let _ = liar.write_all(lie);
            exchange(&mut b, &mut c);
            if second == "replace" && *takes_port {
                wait_until(|| !a.connected(), "it replaces the first");
            } else {
                exchange(&mut a, &mut b);
            }
            if second == "replace" {
                a = bed.guest(0);
                exchange(&mut a, &mut b);
            }
            liar.set_read_timeout(Some(TIMEOUT)).unwrap();
            assert_hung_up(&liar);
        }
        assert!((1..3).all(|index| quarantines(&bed, index) == 0));
    }
}

/// QEMU from version 10 puts the state of a back end that has one into the migration stream, where neither an older QEMU nor another back
/// end can load it. Cloud Hypervisor takes snapshots of back ends that have one.
#[test]
fn a_device_state_is_offered_to_front_ends_that_begin_with_set_owner() {
    for habit in Habit::ALL {
        let bed = Bed::new(1);
        let mut guest = bed.guest_like(0, bed.builder(0).habit(habit));
        let offered = guest.frontend().unwrap().protocol_features().unwrap();
        assert_eq!(offered.contains(Protocol::DEVICE_STATE), habit != Habit::QEMU, "{}", habit.name);
    }
}

/// SET_CONFIG of `content` at the beginning of the configuration space; returns the back end's acknowledgement.
fn set_config(guest: &mut ToyGuest, content: &[u8]) -> Option<u64> {
    let body = [&[0, content.len() as u32, 0].map(u32::to_le_bytes).concat()[..], content].concat();
    send(guest, Request::SET_CONFIG, wire::VERSION | wire::NEED_REPLY, &body, &[]);
    wire::receive(guest.frontend().unwrap().stream(), Deadline::after(TIMEOUT)).unwrap().number()
}

#[test]
fn a_write_to_the_configuration_space_is_refused_and_the_connection_goes_on() {
    let bed = Bed::with("", &["mac = \"02:11:22:33:44:55\"", ""]);
    let mut b = bed.guest(1);
    let mut uml = bed.guest_like(0, bed.builder(0).habit(Habit::UML));
    let mac = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
    assert_eq!(set_config(&mut uml, &mac), Some(0), "nothing changes");
    for content in [&[0x02, 0, 0, 0, 0, 1][..], &[0xff; 64]] {
        assert_eq!(set_config(&mut uml, content), Some(1));
    }
    assert_eq!(uml.frontend().unwrap().config(0, 6).unwrap(), mac);
    announce(&mut [&mut uml, &mut b]);
    exchange(&mut uml, &mut b);
    assert_eq!(quarantines(&bed, 0), 0);
}

/// GET_STATUS.
fn status(guest: &mut ToyGuest) -> Option<u64> {
    send(guest, Request::GET_STATUS, wire::VERSION, &[], &[]);
    wire::receive(guest.frontend().unwrap().stream(), Deadline::after(TIMEOUT)).unwrap().number()
}

#[test]
fn a_device_in_quarantine_needs_a_reset() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest_like(0, bed.builder(0).habit(Habit::QEMU)), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    let running = status(&mut a).unwrap();
    assert_eq!(running & 0x40, 0);
    // A chain outside of guest memory.
    let transmit = &mut a.pair(0).transmit.queue;
    transmit.ring.shared().set_available_index(1000);
    transmit.kick();
    bed.wait_for(|bed| matches!(bed.state(0), PortState::Quarantined(_)), "the port is in quarantine");
    assert_eq!(status(&mut a), Some(running | 0x40));
    a.stop().unwrap();
    assert_eq!(status(&mut a), Some(0), "the reset is done");
    a.reset_rings().unwrap();
    a.start().unwrap();
    assert_eq!(status(&mut a), Some(running));
    exchange(&mut a, &mut b);
}

#[test]
fn the_configuration_space_is_offered_to_those_that_show_it_to_the_guest() {
    let bed = Bed::with("", &["mac = \"02:11:22:33:44:55\"", ""]);
    let mut qemu = bed.guest_like(0, bed.builder(0).habit(Habit::QEMU));
    // QEMU asks once more for each queue pair, when it has long sent SET_OWNER.
    for _ in 0..2 {
        assert!(!qemu.frontend().unwrap().protocol_features().unwrap().contains(Protocol::CONFIG));
    }
    drop(qemu);
    bed.wait_for(|bed| bed.state(0) == PortState::Waiting, "the front end is gone");
    let mut uml = bed.guest_like(0, bed.builder(0).habit(Habit::UML));
    assert_eq!(uml.frontend().unwrap().config(0, 6).unwrap(), [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
}

/// QEMU's generic vhost-user device asks before SET_OWNER too, and ends where it is not offered the configuration space. Started again, it is.
#[test]
fn a_front_end_that_hung_up_for_want_of_a_configuration_space_is_offered_one() {
    let bed = Bed::with("", &["mac = \"02:11:22:33:44:55\""]);
    let generic = Habit { connect: &[Step::GetFeatures], start: &[], ..Habit::QEMU };
    let connect = || {
        let mut guest = bed.builder(0).habit(generic).started(false).connect(bed.socket(0)).unwrap();
        let offered = guest.frontend().unwrap().protocol_features().unwrap();
        (guest, offered)
    };
    assert!(!connect().1.contains(Protocol::CONFIG));
    for _ in 0..2 {
        bed.wait_for(|bed| bed.state(0) == PortState::Waiting, "the front end is gone");
        let (mut guest, offered) = connect();
        let frontend = guest.frontend().unwrap();
        frontend.set_protocol_features(offered & (Protocol::CONFIG | Protocol::REPLY_ACK), Acknowledge::Everything).unwrap();
        frontend.set_owner().unwrap();
        assert_eq!(frontend.config(0, 6).unwrap(), [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    }
    bed.wait_for(|bed| bed.state(0) == PortState::Waiting, "the front end is gone");
    // A network device of QEMU is offered CONFIG only once: it would warn of it again at each connection.
    for offers in [true, false] {
        let mut qemu = bed.guest_like(0, bed.builder(0).habit(Habit::QEMU).without_protocol(Protocol::CONFIG));
        assert_eq!(qemu.frontend().unwrap().protocol_features().unwrap().contains(Protocol::CONFIG), offers);
        drop(qemu);
        bed.wait_for(|bed| bed.state(0) == PortState::Waiting, "the front end is gone");
    }
}

/// Debian 13's user-mode-linux (6.12) sends SET_MEM_TABLE with room for two regions, and says that there is one.
#[test]
fn a_memory_table_may_have_room_for_more_regions_than_it_has() {
    const START: [Step; 3] = [
        Step::SetFeatures,
        Step::EachRing(&[RingStep::Call, RingStep::Size, RingStep::Base, RingStep::Addresses]),
        Step::EachRing(&[RingStep::Kick, RingStep::Enable]),
    ];
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.builder(0).habit(Habit { start: &START, ..Habit::UML }).started(false).connect(bed.socket(0)).unwrap();
    let region = a.memory().table_entry(0);
    let fields = [region.guest_phys_addr, region.memory_size, region.userspace_addr, region.mmap_offset];
    let body = [&[1_u32, 0].map(u32::to_ne_bytes).concat()[..], &fields.map(u64::to_ne_bytes).concat(), &[0; 32]].concat();
    send(&mut a, Request::SET_MEM_TABLE, wire::VERSION | wire::NEED_REPLY, &body, &[region.mmap_handle]);
    let answer = wire::receive(a.frontend().unwrap().stream(), Deadline::after(TIMEOUT)).unwrap();
    assert_eq!((answer.code, answer.number()), (Request::SET_MEM_TABLE as u32, Some(0)));
    a.start().unwrap();
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b);
}

/// VIRTIO_F_ACCESS_PLATFORM (virtio 1.4, section 6).
const ACCESS_PLATFORM: u64 = 1 << 33;

/// A confidential guest: QEMU with iommu_platform=on, and no vIOMMU.
#[test]
fn a_guest_whose_addresses_might_be_translated_and_are_not_is_served() {
    for habit in [Habit::QEMU, Habit::CLOUD_HYPERVISOR] {
        let bed = Bed::new(2);
        let guest = |index| bed.guest_like(index, bed.builder(index).habit(habit).with(ACCESS_PLATFORM));
        let (mut a, mut b) = (guest(0), guest(1));
        if habit == Habit::QEMU {
            assert_ne!(a.features() & ACCESS_PLATFORM, 0);
        }
        announce(&mut [&mut a, &mut b]);
        exchange(&mut a, &mut b);
    }
}

/// QEMU with a vIOMMU: the used ring's page is announced in a message, or rings lie where no memory is.
#[test]
fn a_guest_whose_addresses_are_translated_is_refused_with_a_sentence() {
    let bed = Bed::new(3);
    let (mut b, mut c) = (bed.guest(1), bed.guest(2));
    announce(&mut [&mut b, &mut c]);
    let told = |bed: &Bed| matches!(bed.state(0), PortState::Quarantined(cause) if cause.contains("vIOMMU") && cause.contains("iommu_platform"));
    let mut a = bed.guest_like(0, bed.builder(0).with(ACCESS_PLATFORM));
    // VHOST_IOTLB_UPDATE of a page, for reading and writing.
    let entry = [0x1000_u64, 0x1000, 0x7000_0000, 0x0203].map(u64::to_ne_bytes).concat();
    send(&mut a, Request::IOTLB_MSG, wire::VERSION | wire::NEED_REPLY, &entry, &[]);
    assert_eq!(wire::receive(a.frontend().unwrap().stream(), Deadline::after(TIMEOUT)).unwrap().number(), Some(1));
    bed.wait_for(told, "it is told what to do");
    assert!(a.connected());
    drop(a);
    bed.wait_for(|bed| bed.state(0) == PortState::Waiting, "the front end is gone");
    let mut a = bed.guest_like(0, bed.builder(0).with(ACCESS_PLATFORM));
    a.stop().unwrap();
    tell(&mut a, Request::SET_VRING_NUM, 0, 256);
    tell_addresses(&mut a, 0, [0x1000, 0x3000, 0x5000]);
    assert_eq!(kick(&mut a, 0), Some(1));
    bed.wait_for(told, "it is told what to do");
    exchange(&mut b, &mut c);
}

#[test]
fn a_ring_without_descriptors_is_one_that_is_not_used() {
    let bed = Bed::new(2);
    let mut b = bed.guest(1);
    let mut a = bed.guest_like(0, bed.builder(0).habit(Habit::DPDK));
    // DPDK 22.11 tells of the second of its two pairs, where the port has one.
    for ring in [2, 3] {
        tell(&mut a, Request::SET_VRING_NUM, ring, 0);
        tell(&mut a, Request::SET_VRING_BASE, ring, 0);
        tell_addresses(&mut a, ring, [0; 3]);
        assert_eq!(kick(&mut a, ring), Some(0));
        tell(&mut a, Request::SET_VRING_ENABLE, ring, 1);
    }
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b);
    a.stop().unwrap();
    a.reset_rings().unwrap();
    a.start().unwrap();
    exchange(&mut a, &mut b);
    assert_eq!(quarantines(&bed, 0), 0);
}

/// QEMU 7.2 forgets at the end of its connection that its guest's driver is of the old kind.
#[test]
fn a_guest_that_breaks_its_ring_does_not_cost_its_front_end_the_connection() {
    for addresses in [NOWHERE, [1, 4097, 8193]] {
        let bed = Bed::new(2);
        let (mut a, mut b) = (bed.guest(0), bed.guest(1));
        announce(&mut [&mut a, &mut b]);
        a.stop().unwrap();
        tell(&mut a, Request::SET_VRING_NUM, 0, 256);
        let start = a.memory().regions()[0].user();
        tell_addresses(&mut a, 0, if addresses == NOWHERE { NOWHERE } else { addresses.map(|offset| start + offset) });
        assert_eq!(kick(&mut a, 0), Some(1), "the error is the answer");
        let broken = |bed: &Bed| matches!(bed.state(0), PortState::Quarantined(cause) if cause.contains("the ring "));
        bed.wait_for(broken, "the port is in quarantine");
        // The other ring is good, and not started: a port in quarantine has none that runs.
        tell(&mut a, Request::SET_VRING_NUM, 1, 256);
        tell_addresses(&mut a, 1, [start, start + 8192, start + 16384]);
        assert_eq!(kick(&mut a, 1), Some(0));
        assert!(a.connected() && broken(&bed));
        a.stop().unwrap();
        a.reset_rings().unwrap();
        a.start().unwrap();
        exchange(&mut a, &mut b);
        assert_eq!((bed.state(0), quarantines(&bed, 0)), (PortState::Running, 1));
    }
}

#[test]
fn connecting_and_hanging_up_again_and_again_is_held_to_a_rate() {
    let bed = Bed::new(1);
    let begun = std::time::Instant::now();
    (0..500).for_each(|_| drop(std::os::unix::net::UnixStream::connect(bed.socket(0)).unwrap()));
    bed.wait_for(|bed| bed.daemon().network().port(PortId(0)).unwrap().session() == 500, "all have been served");
    // A thousand a second at most.
    assert!(begun.elapsed() >= std::time::Duration::from_millis(450), "{:?}", begun.elapsed());
}

#[test]
fn a_ring_of_a_wrong_size_is_told_with_what_to_do() {
    let bed = Bed::new(1);
    let mut guest = bed.guest(0);
    guest.stop().unwrap();
    tell(&mut guest, Request::SET_VRING_NUM, 0, 1000);
    bed.wait_for(
        |bed| matches!(bed.state(0), PortState::Quarantined(cause) if cause.contains("1000") && cause.contains("rx_queue_size")),
        "the cause is told",
    );
    guest.reset_rings().unwrap();
    guest.start().unwrap();
    bed.wait_for(|bed| bed.state(0) == PortState::Running, "the ring is set up anew");
}

#[test]
fn a_port_may_have_no_receive_offloads() {
    let bed = Bed::with("", &["receive-offloads = false", ""]);
    let (a, b) = (bed.guest(0), bed.guest(1));
    let receive = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;
    assert_eq!((a.features() & receive, b.features() & receive), (0, receive));
    assert_ne!(a.features() & features::HOST_TSO4, 0);
}

/// The operator's advice on port 0.
fn advice(bed: &Bed) -> String {
    bed.daemon().network().port(PortId(0)).unwrap().advice().unwrap_or_default()
}

#[test]
fn who_shares_no_memory_is_told_what_to_do() {
    let bed = Bed::new(1);
    let mut guest = bed.builder(0).started(false).connect(bed.socket(0)).unwrap();
    let features = guest.features();
    guest.frontend().unwrap().set_features(features).unwrap();
    // QEMU without share=on: rings, but no memory.
    for ring in [0, 1] {
        tell(&mut guest, Request::SET_VRING_NUM, ring, 256);
        tell_addresses(&mut guest, ring, NOWHERE);
        kick(&mut guest, ring);
        tell(&mut guest, Request::SET_VRING_ENABLE, ring, 1);
    }
    bed.wait_for(|bed| advice(bed).contains("share=on") && advice(bed).contains("access mode='shared'"), "the remedy is told");
    // Newer QEMU passes on no memory that is a private copy of its file either.
    assert!(advice(&bed).contains("share=off"), "{}", advice(&bed));
    assert!(bed.wait_for_cause(0, CauseKind::Advice).contains("its front end passed no guest memory"), "why tells it too");
    assert_eq!(bed.state(0), PortState::Speaking);
    drop(guest);
    bed.wait_for(|bed| advice(bed).is_empty(), "the next front end is not to blame");
}

/// QEMU with share=off: the file is there, and the guest's writes are not in it.
#[test]
fn whose_memory_is_a_private_copy_is_told_what_to_do() {
    let bed = Bed::new(1);
    let mut guest = bed.builder(0).started(false).connect(bed.socket(0)).unwrap();
    let features = guest.features();
    guest.frontend().unwrap().set_features(features).unwrap();
    guest.announce_memory(&[0]).unwrap();
    let start = guest.memory().regions()[0].user() + (1 << 20);
    let kicks: Vec<EventFd> = (0..2).map(|_| EventFd::new(0).unwrap()).collect();
    for (ring, kick) in (0..).zip(&kicks) {
        tell(&mut guest, Request::SET_VRING_NUM, ring, 256);
        let at = start + u64::from(ring) * 65536;
        tell_addresses(&mut guest, ring, [at, at + 8192, at + 16384]);
        send(&mut guest, Request::SET_VRING_KICK, wire::VERSION, &u64::from(ring).to_le_bytes(), &[kick.as_raw_fd()]);
        tell(&mut guest, Request::SET_VRING_ENABLE, ring, 1);
    }
    bed.wait_for(|bed| bed.state(0) == PortState::Running, "the rings run");
    kicks.iter().for_each(|kick| kick.write(1).unwrap());
    bed.wait_for(|bed| advice(bed).contains("private copy of the file") && advice(bed).contains("share=on"), "the remedy is told");
}

#[test]
fn whoever_shares_memory_is_given_no_advice() {
    let bed = Bed::new(2);
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    exchange(&mut a, &mut b);
    let quiet = std::time::Instant::now() + std::time::Duration::from_millis(1200);
    while std::time::Instant::now() < quiet {
        assert_eq!(advice(&bed), "");
        std::thread::sleep(POLL_INTERVAL);
    }
}
