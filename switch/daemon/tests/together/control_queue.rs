//! Guests with a control queue in the switch, because their front end serves none, choose how many queue pairs they use.

use crate::common::*;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Habit, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;

const REFUSED: u8 = 1;
const DONE: u8 = 0;

fn set_pairs(pairs: u16) -> [u8; 4] {
    let [low, high] = pairs.to_le_bytes();
    [4, 0, low, high]
}

/// A guest like UML with two queue pairs.
fn uml(bed: &Bed) -> ToyGuest {
    bed.guest_like(
        0,
        bed.builder(0)
            .habit(Habit::UML)
            .without_protocol(Protocol::MTU | Protocol::RARP)
            .queue_pairs(2)
            .memory(MemoryPlan::new(128 << 20))
            .with(features::MQ | features::CTRL_VQ),
    )
}

/// Pairs of `receiver` that flows from `sender` arrive on.
fn pairs_used(sender: &mut ToyGuest, receiver: &mut ToyGuest) -> Vec<u64> {
    let before: Vec<u64> = taken(receiver);
    for flow in 0..64 {
        let mut frame = Packet::tcp(Host::v4(1).port(1000 + flow), Host::v4(2), 1, [0; 20]).frame();
        frame[..6].copy_from_slice(&mac(0));
        frame[6..12].copy_from_slice(&mac(1));
        sender.send(&frame).unwrap();
        receiver.receive(TIMEOUT).unwrap();
    }
    taken(receiver).iter().zip(before).map(|(now, before)| now - before).collect()
}

fn taken(guest: &mut ToyGuest) -> Vec<u64> {
    guest.pairs().iter().map(|pair| u64::from(pair.receive.queue.ring.taken_index())).collect()
}

#[test]
fn a_guest_chooses_how_many_pairs_it_uses() {
    let bed = Bed::with("", &["queues = 2", ""]);
    let (mut a, mut b) = (uml(&bed), bed.guest(1));
    assert_eq!(a.features() & (features::MQ | features::CTRL_VQ), features::MQ | features::CTRL_VQ);
    let mut control = a.control_queue(4).unwrap();
    a.synchronise().unwrap();
    announce(&mut [&mut a, &mut b]);
    assert_eq!(control.command(&set_pairs(1), None, TIMEOUT).unwrap(), DONE);
    assert_eq!(pairs_used(&mut b, &mut a), [64, 0]);
    assert_eq!(control.command(&set_pairs(2), Some(2), TIMEOUT).unwrap(), DONE);
    let used = pairs_used(&mut b, &mut a);
    assert!(used.iter().all(|&used| used > 10), "{used:?}");
}

/// Virtio 1.2, section 5.1.6.5.5: multiqueue is off until the driver asks for it, however many pairs have buffers.
#[test]
fn the_first_pair_is_used_until_the_guest_chooses() {
    let bed = Bed::with("", &["queues = 2", ""]);
    let (mut a, mut b) = (uml(&bed), bed.guest(1));
    let mut control = a.control_queue(4).unwrap();
    a.synchronise().unwrap();
    announce(&mut [&mut a, &mut b]);
    assert_eq!(pairs_used(&mut b, &mut a), [64, 0]);
    assert_eq!(control.command(&set_pairs(2), None, TIMEOUT).unwrap(), DONE);
    let used = pairs_used(&mut b, &mut a);
    assert!(used.iter().all(|&used| used > 10), "{used:?}");
}

/// Where the front end has enabled two pairs and serves the control queue itself, only posted receive buffers tell which pair the
/// guest uses.
#[test]
fn a_pair_without_buffers_gets_no_frames() {
    for (habit, wanted) in [
        (Habit::QEMU, features::LINUX),
        (Habit::QEMU, features::LINUX & !features::EVENT_IDX),
        (Habit::CLOUD_HYPERVISOR, features::LINUX),
        (Habit::DPDK, features::LINUX & !features::EVENT_IDX),
    ] {
        let mut bed = Bed::with("workers = 2", &["queues = 2", ""]);
        let none = ReceiveBuffers { count: Some(0), ..ReceiveBuffers::SMALL };
        let plan = MemoryPlan::new(128 << 20);
        let builder = bed.builder(0).habit(habit).features(wanted | features::MQ).queue_pairs(2).memory(plan);
        // QEMU kicks each ring when it starts, even an empty one.
        let mut a = builder.receive_buffers(none).kicked(habit == Habit::QEMU).connect(bed.socket(0)).unwrap();
        let mut b = bed.guest(1);
        assert_eq!(a.pair(0).receive.post(100).unwrap(), 100, "{}", habit.name);
        bed.wait_for(|bed| bed.state(0) == PortState::Running, "the port runs");
        announce(&mut [&mut a, &mut b]);
        assert_eq!(pairs_used(&mut b, &mut a), [64, 0], "{}", habit.name);
        // The switch that comes after finds it so too.
        bed.restart();
        a.reconnect().unwrap();
        b.reconnect().unwrap();
        announce(&mut [&mut a, &mut b]);
        assert_eq!(pairs_used(&mut b, &mut a), [64, 0], "{}", habit.name);
        assert_eq!(a.pair(1).receive.post(200).unwrap(), 200);
        wait_until(|| pairs_used(&mut b, &mut a)[1] > 10, "the second pair is used");
        assert_eq!(bed.drops(0, DropReason::ReceiverStalled), 0, "{}", habit.name);
    }
}

#[test]
fn what_cannot_be_obeyed_is_refused() {
    let bed = Bed::with("", &["queues = 2", ""]);
    let mut a = uml(&bed);
    let mut control = a.control_queue(4).unwrap();
    for command in
        [&set_pairs(0)[..], &set_pairs(3), &set_pairs(0xffff), &[4, 0], &[4, 0, 1], &[9, 9], &[1, 1, 2, 3, 4, 5, 6, 7], &[7; 63]]
    {
        assert_eq!(control.command(command, Some(1), TIMEOUT).unwrap(), REFUSED, "{command:?}");
    }
    assert_eq!(control.command(&[3, 0], Some(1), TIMEOUT).unwrap(), DONE);
}

#[test]
fn a_control_queue_stops_and_starts_again() {
    let bed = Bed::with("", &["queues = 2", ""]);
    let mut a = uml(&bed);
    for round in 0..3 {
        let mut control = a.control_queue(4).unwrap();
        assert_eq!(control.command(&set_pairs(1), None, TIMEOUT).unwrap(), DONE, "round {round}");
        assert_eq!(a.frontend().unwrap().ring_base(4).unwrap(), 1);
    }
}
