//! Frames of one flow keep their order, in any layout.

use crate::common::*;
use memlane_rig::frames::{Host, NetHeader, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;

const FRAMES: u16 = 60;

/// Frames of one flow, with the offloads that their sender left undone.
type Frames = Vec<(NetHeader, Vec<u8>)>;

fn host(index: u16, v6: bool) -> Host {
    Host { mac: mac(index.into()), ..if v6 { Host::v6(index + 1) } else { Host::v4(index + 1) } }
}

/// The frames of a UDP socket: two of three datagrams are sent as a fragment.
fn datagrams(v6: bool) -> Frames {
    let datagram = |number: u16| Packet::udp(host(0, v6), host(1, v6), [&number.to_be_bytes()[..], &[1; 600]].concat());
    let layout = |number: u16| match number % 3 {
        0 => datagram(number),
        1 => datagram(number).fragment(0, true),
        _ => datagram(number).fragment(100, false),
    };
    (0..FRAMES).map(|number| (NetHeader::default(), layout(number).frame())).collect()
}

/// The frames of a TCP connection, every other one to be segmented, with headers of which the transmit side does not copy the ports unless it copies more for that.
fn segments(before: impl Fn(Packet) -> Packet, v6: bool) -> Frames {
    let packet = |number: u16| before(Packet::tcp(host(0, v6), host(1, v6), number.into(), vec![2; 600]));
    let frame = |number: u16| {
        if number.is_multiple_of(2) { packet(number).gso(200) } else { (NetHeader::default(), packet(number).frame()) }
    };
    (0..FRAMES).map(frame).collect()
}

fn flows() -> Vec<(&'static str, Frames)> {
    vec![
        ("UDP over IPv4", datagrams(false)),
        ("UDP over IPv6", datagrams(true)),
        ("TCP over IPv6 behind two tags", segments(|packet| packet.double_tagged(1, 2), true)),
        ("TCP behind IPv4 options", segments(|packet| packet.with_options(40), false)),
        ("TCP behind extension headers", segments(|packet| packet.with_hop_by_hop(16), true)),
        ("TCP behind many segments", segments(|packet| packet.routed(12, "fd00::99".parse().unwrap()), true)),
    ]
}

#[test]
fn frames_of_one_flow_wait_in_order_whatever_their_layout() {
    for (name, frames) in flows() {
        let bed = Bed::with("stall-timeout-ms = 10000", &["", ""]);
        let mut a = bed.guest(0);
        let mut b = bed.guest_with_four_buffers(1);
        announce(&mut [&mut a, &mut b]);
        // VLANs learn independently: it speaks in that of the flow, too.
        let answer = [&frames[0].1[6..12], &frames[0].1[..6], &frames[0].1[12..]].concat();
        b.send(&answer).unwrap();
        assert_eq!(a.receive(TIMEOUT).unwrap().bytes, answer);
        for (header, frame) in &frames {
            a.send_with(header, &Layout::single(), frame).unwrap();
        }
        bed.wait_for(|bed| bed.totals(1).waiting > 20, "frames wait for the receiver");
        for (number, (_, frame)) in frames.iter().enumerate() {
            b.pair(0).receive.post(1).unwrap();
            let got = b.receive(TIMEOUT).unwrap().bytes;
            let which = frames.iter().position(|(_, frame)| *frame == got);
            assert!(got == *frame, "{name}: frame {which:?} came in place of {number}");
        }
    }
}

/// A guest with two queue pairs.
fn with_two_pairs(bed: &Bed, index: usize) -> ToyGuest {
    let builder = bed.builder(index).queue_pairs(2).memory(MemoryPlan::new(128 << 20)).with(features::MQ);
    bed.guest_like(index, builder.receive_buffers(ReceiveBuffers::SMALL))
}

/// The datagrams before the first fragment have a queue by their ports.
#[test]
fn frames_of_one_flow_keep_to_one_queue_whatever_their_layout() {
    let bed = Bed::with("", &["", "queues = 2"]);
    let (mut a, mut b) = (bed.guest(0), with_two_pairs(&bed, 1));
    announce(&mut [&mut a, &mut b]);
    for (name, frames) in flows() {
        let mut pairs: Vec<usize> = Vec::new();
        for (header, frame) in &frames {
            a.send_with(header, &Layout::single(), frame).unwrap();
            pairs.push(b.receive(TIMEOUT).unwrap().pair);
        }
        let mut settled = pairs.split_off(usize::from(name.starts_with("UDP")));
        settled.dedup();
        assert_eq!(settled.len(), 1, "{name}");
    }
}

/// Datagrams as of DNS, QUIC and VXLAN between two addresses; from the first fragment on, they keep their order in one queue.
#[test]
fn datagrams_are_spread_by_their_ports_until_fragments_come() {
    let bed = Bed::with("", &["", "queues = 2"]);
    let (mut a, mut b) = (bed.guest(0), with_two_pairs(&bed, 1));
    announce(&mut [&mut a, &mut b]);
    for v6 in [false, true] {
        let datagram = |port: u16| Packet::udp(host(0, v6).port(port), host(1, v6), vec![3; 600]);
        let mut queue = |packet: Packet| {
            a.send(&packet.frame()).unwrap();
            b.receive(TIMEOUT).unwrap().pair
        };
        let mut queues = |what: &dyn Fn(u16) -> Packet| -> Vec<usize> { (0..64).map(|port| queue(what(port))).collect() };
        let spread = queues(&datagram);
        let first = spread.iter().filter(|&&pair| pair == 0).count();
        // Of 64 fair coins fewer than 12 on one side come once in ten million.
        assert!((12..=52).contains(&first), "{spread:?}");
        assert_eq!(queues(&datagram), spread, "a flow keeps to its queue");
        let fragments = queues(&|port| datagram(port).fragment(0, true));
        assert_eq!(fragments, [fragments[0]; 64]);
        assert_eq!(queues(&datagram), fragments, "whole datagrams stay behind fragments");
        assert_eq!(queues(&|port| datagram(port).fragment(port + 1, false)), fragments);
    }
}
