//! Each drop reason reaches captures: frames are dropped for each, and a tap sees as many as are counted, with the reason, at the port
//! that counts them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::turns_are_bounded::{borders, give_pages_back};
use crate::bed::{Bed, device};
use crate::common::wait_until;
use memlane::frame::MacAddress;
use memlane::id::{Direction, PortId, RingKey};
use memlane::link::Impairment;
use memlane::offload::Offloads;
use memlane::policy::rules::Inside;
use memlane::policy::{AntiSpoof, PortLimits};
use memlane::ring::TransmitQueue;
use memlane::settings::Settings;
use memlane::stats::DropReason;
use memlane::tap::{CaptureOrder, MOST_SNAPLEN, Sight, TapReader, capture};
use memlane::time::Cycles;
use memlane::twin::Twin;
use memlane::worker::Start;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, DriverRing, Iovec, RingOptions};

/// Reasons that no guest's ring provokes, and the place where they are provoked or the reason why no capture has them.
const ELSEWHERE: [(DropReason, &str); 10] = [
    (DropReason::Isolated, "gates of ports are made by the network: separation::isolated_ports_reach_only_those_that_are_not"),
    (DropReason::VlanNotCarried, "so are these: separation::vlans_are_kept_apart_and_tags_are_as_each_port_needs_them"),
    (DropReason::ReservedGroup, "separation::reserved_groups_pass_between_guests_and_not_at_ports_that_drop_them"),
    (DropReason::PolicyDenied, "rules of the network: policy::ports_reach_those_that_the_rules_allow"),
    (DropReason::TooLong, "an uplink's MTU: separation::a_packet_that_is_too_long_for_the_uplink_is_answered"),
    (DropReason::SocketFull, "the kernel drops these: af_packet::frames_that_the_kernel_dropped_are_counted"),
    (DropReason::TapRefused, "the kernel refuses a frame when it is written, after it has left the packet: its number is counted"),
    (DropReason::NoFlow, "a frame of passt that is dropped before it is opened: stream::nat::tests"),
    (DropReason::NotTranslated, "a frame for passt, dropped when it is placed: way_out::guests_share_one_passt"),
    (
        DropReason::GrantRefused,
        "a Xen guest's grants: xen::pages_that_cannot_be_reached_cost_the_frame_only captures it at the sender; at the receiver it is \
         refused after the frame has left its packet",
    ),
];

/// Offset in memory, length, flags and next of a descriptor.
type Link = (u64, u32, u16, u16);

/// A network with a capture of all drops. Guest 0 sends, guest 1 receives.
struct Scene {
    bed: Bed,
    reader: TapReader,
}

impl Scene {
    fn new() -> Self {
        Self::of(Bed::known(3, Settings { stall_timeout: Duration::from_secs(60), ..Settings::default() }))
    }

    fn of(mut bed: Bed) -> Self {
        let order = CaptureOrder { snaplen: MOST_SNAPLEN, drops_only: true, ..CaptureOrder::default() };
        let (mut taps, reader) = capture(1, order, 1);
        bed.worker.add_tap(taps.remove(0));
        Self { bed, reader }
    }

    /// A network of receivers with a short stall timeout.
    fn impatient() -> Self {
        Self::of(Bed::known(3, Settings { stall_timeout: Duration::from_millis(5), ..Settings::default() }))
    }

    /// A network with this link before guest 1.
    fn behind(link: Impairment) -> Self {
        let mut scene = Self::of(Bed::with_links(&[None, Some(link), None], Settings::default()));
        // After the capture has begun: the link may drop these too.
        scene.bed.announce(&[0, 1, 2]);
        scene
    }

    fn limits(self, limits: PortLimits) -> Self {
        self.bed.ports[0].policy.set(&limits);
        self
    }

    /// Guest 0 sends so many frames of `length` bytes to guest `to`, or as many as its ring takes.
    fn send(&mut self, to: u16, length: u32, count: usize) {
        let guest = &mut self.bed.guests[0];
        guest.reclaim();
        guest.send(0, to, length, count.min(guest.transmit.free().into()));
        self.bed.worker.step();
    }

    /// All but so many receive buffers of guest 1 are used.
    fn leave_buffers(mut self, count: usize) -> Self {
        self.send(1, 60, 256 - count);
        wait_until(
            || {
                self.bed.worker.step();
                self.bed.guests[0].reclaim();
                self.bed.guests[0].transmit.free() == 256
            },
            "they are used",
        );
        self
    }

    /// A further transmit queue of guest 0, with `offloads`, makes this chain available so many times, in memory that holds `bytes`.
    fn chain(mut self, offloads: Offloads, bytes: &[u8], chain: &[Link], times: u16) -> Self {
        let memory = GuestMemory::new(4 << 20).unwrap();
        let driver = DriverRing::new(&memory, RingOptions { size: 64, event_idx: false, indirect: 4 }).unwrap();
        let address = memory.allocate(1 << 16, 64).unwrap();
        memory.write(address, bytes).unwrap();
        for (index, &(offset, length, flags, next)) in (0..).zip(chain) {
            driver.shared().set_descriptor(index, Descriptor { address: address + offset, length, flags, next });
        }
        let queue = TransmitQueue::new(device::ring(&driver, &device::map(&memory), 0));
        let key = RingKey { port: PortId(0), pair: 1, direction: Direction::Transmit };
        let start = Start { kick: None, at_once: true, enabled: true, session: 0 };
        self.bed.worker.add_transmit_queue(key, queue, offloads, start).unwrap();
        for index in 0..times {
            driver.shared().set_available_entry(index, 0);
            let before = self.taken();
            driver.shared().set_available_index(index + 1);
            self.step_until(|scene| scene.taken() > before, "the chain is taken");
        }
        self
    }

    /// Chains that were taken from guest 0.
    fn taken(&self) -> u64 {
        let totals = self.bed.ports[0].totals();
        totals.transmit_frames + totals.drops.values().sum::<u64>()
    }

    /// Works until `condition` holds: a port that is throttled waits for some poll iterations.
    fn step_until(&mut self, condition: impl Fn(&Self) -> bool, what: &str) {
        wait_until(
            || {
                self.bed.worker.step();
                condition(self)
            },
            what,
        );
    }

    /// Guest 0 sends so many frames to guest 1, which has no receive buffers, and they wait.
    fn enqueue(&mut self, count: usize) {
        self.send(1, 60, count);
        self.step_until(|scene| scene.bed.ports[1].totals().waiting == count as u64, "frames wait");
    }

    /// A chain of one descriptor with this virtio-net header before a frame of 60 bytes between these guests' addresses.
    fn frame(self, offloads: Offloads, header: [u8; 12], from: [u8; 6]) -> Self {
        self.bytes(offloads, header, &[&[2, 0, 0, 0, 0, 1][..], &from, &[8, 0], &[0; 46]].concat())
    }

    /// A chain of one descriptor with this virtio-net header before `frame`.
    fn bytes(self, offloads: Offloads, header: [u8; 12], frame: &[u8]) -> Self {
        let bytes = [&header[..], frame].concat();
        self.chain(offloads, &bytes, &[(0, bytes.len() as u32, 0, 0)], 1)
    }

    /// Guest 0 may send from its own addresses alone, of this kind.
    fn guarded(self, anti_spoof: AntiSpoof) -> Self {
        self.bed.ports[0].segment.pin(MacAddress::new(OWN), PortId(0)).unwrap();
        self.limits(PortLimits { anti_spoof, addresses: vec![Host::v4(1).ip], ..PortLimits::default() })
    }

    /// Repeats `act` until a frame was dropped for `reason`.
    fn until(mut self, reason: DropReason, mut act: impl FnMut(&mut Self)) -> Self {
        wait_until(
            || {
                act(&mut self);
                self.bed.worker.step();
                self.counted().keys().any(|&(_, counted)| counted == reason)
            },
            reason.name(),
        );
        self
    }

    /// Frames by the port and reason that count them.
    fn counted(&self) -> BTreeMap<(PortId, DropReason), u64> {
        let of = |port: &std::sync::Arc<memlane::port::Port>| {
            let port = std::sync::Arc::clone(port);
            DropReason::ALL.iter().map(move |&reason| ((port.id, reason), port.counters(0).dropped(reason)))
        };
        self.bed.ports.iter().flat_map(of).filter(|&(_, count)| count > 0).collect()
    }

    /// Frames that the capture has, by port and reason.
    fn captured(&mut self) -> BTreeMap<(PortId, DropReason), u64> {
        let mut seen = BTreeMap::new();
        self.reader.read(usize::MAX, Cycles::MAX, |what, _| {
            let Sight::Dropped(reason) = what.sight else { panic!("{what:?} is no drop") };
            *seen.entry((what.port, reason)).or_default() += 1;
        });
        seen
    }
}

const PLAIN: [u8; 12] = [0; 12];
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0];

fn key(direction: Direction) -> RingKey {
    RingKey { port: PortId(0), pair: 0, direction }
}

/// A broken descriptor chain of guest 0.
fn broken_chain(reason: DropReason) -> Scene {
    let chain: &[Link] = match reason {
        DropReason::ChainLoop => &[(0, 100, DESC_NEXT, 0)],
        DropReason::ChainNext => &[(0, 100, DESC_NEXT, 64)],
        DropReason::ChainIndirect => &[(0, 16, DESC_INDIRECT | DESC_NEXT, 1)],
        DropReason::ChainIndirectLength => &[(0, 15, DESC_INDIRECT, 0)],
        DropReason::ChainAddress => &[(1 << 50, 100, 0, 0)],
        DropReason::ChainDirection => &[(0, 100, DESC_WRITE, 0)],
        DropReason::ChainTooLong => &[(0, 60_000, DESC_NEXT, 1), (0, 60_000, 0, 0)],
        _ => &[(0, 20, 0, 0)],
    };
    Scene::new().chain(Offloads::ALL, &[], chain, 1)
}

/// A guest that wraps its frames in pages which are not in memory, as sender or as receiver.
fn absent_pages(reason: DropReason) -> Scene {
    let sends = reason == DropReason::SenderMemory;
    let mut bed = Bed::with(3, Settings { stall_timeout: Duration::from_secs(60), ..Settings::default() });
    let frames = give_pages_back(&mut bed, 16, if sends { 16 } else { 0 });
    bed.announce(if sends { &[0, 1, 2] } else { &[2] });
    let mut scene = Scene::of(bed);
    let guest = &mut scene.bed.guests[2];
    guest.reclaim();
    if sends {
        let start = guest.memory.allocate(76, 64).unwrap();
        guest.memory.write(start + 12, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]).unwrap();
        for &first in &frames {
            let rest = borders(first).map(|at| Iovec::readable(at, 2));
            guest.transmit.add(&[Iovec::readable(start, 76)].into_iter().chain(rest).collect::<Vec<_>>()).unwrap();
        }
        guest.transmit.publish();
    } else {
        for &first in &frames {
            guest.receive.add(&borders(first).map(|at| Iovec::writable(at, 2)).collect::<Vec<_>>()).unwrap();
        }
        guest.receive.publish();
        scene.send(2, 1500, 16);
    }
    scene.until(reason, |scene| {
        scene.bed.guests[1].settle();
    })
}

/// A network in which a frame was dropped for `reason`.
#[expect(clippy::too_many_lines, reason = "a table")]
fn provoked(reason: DropReason) -> Scene {
    use DropReason as R;
    let offload = |flags, gso, start: u16| {
        let [low, high] = start.to_le_bytes();
        [flags, gso, 34, 0, 100, 0, low, high, 6, 0, 0, 0]
    };
    match reason {
        R::ChainLoop | R::ChainNext | R::ChainIndirect | R::ChainIndirectLength => broken_chain(reason),
        R::ChainAddress | R::ChainDirection | R::ChainTooLong | R::Runt => broken_chain(reason),
        R::HeadTwice => {
            let frame = [&PLAIN[..], &[2, 0, 0, 0, 0, 1], &OWN, &[8, 0], &[0; 46]].concat();
            Scene::new().leave_buffers(0).chain(Offloads::ALL, &frame, &[(0, 72, 0, 0)], 2)
        }
        R::BadChecksumOffload => Scene::new().frame(Offloads::ALL, offload(1, 0, 1000), OWN),
        R::ChecksumMisplaced => Scene::new().frame(Offloads::ALL, offload(1, 0, 14), OWN),
        R::BadSegmentation => Scene::new().frame(Offloads::ALL, offload(0, 1, 0), OWN),
        R::OffloadNotAgreed => Scene::new().frame(Offloads::default(), offload(1, 0, 34), OWN),
        R::BadSource => Scene::new().frame(Offloads::ALL, PLAIN, [1, 0, 0x5e, 0, 0, 1]),
        R::SamePort => Scene::new().until(reason, |scene| scene.send(0, 60, 1)),
        R::Storm => {
            let scene = Scene::new().limits(PortLimits { storm: 1, ..PortLimits::default() });
            scene.until(reason, |scene| {
                scene.send(0xffff, 60, 100);
                scene.bed.guests.iter_mut().for_each(|guest| {
                    guest.settle();
                });
            })
        }
        R::SpoofedSource => Scene::new().guarded(AntiSpoof::Mac).frame(Offloads::ALL, PLAIN, [2, 0, 0, 0, 0, 9]),
        R::SpoofedIp => Scene::new().guarded(AntiSpoof::All).frame(Offloads::ALL, PLAIN, OWN),
        R::SpoofedArp => {
            // A request (RFC 826) of 10.9.9.9.
            let request = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &OWN, &[10, 9, 9, 9], &[0; 6], &[10, 9, 9, 8], &[0; 18]].concat();
            let frame = [&[0xff; 6][..], &OWN, &[8, 6], &request].concat();
            Scene::new().guarded(AntiSpoof::All).bytes(Offloads::ALL, PLAIN, &frame)
        }
        R::NotAServer => {
            let server = Host { mac: OWN, ..Host::v4(1) }.port(67);
            let frame = Packet::udp(server, Host { mac: [2, 0, 0, 0, 0, 1], ..Host::v4(2) }.port(68), [2; 300]).frame();
            Scene::new().guarded(AntiSpoof::All).bytes(Offloads::ALL, PLAIN, &frame)
        }
        R::Loop => {
            let scene = Scene::of(Bed::known(3, Settings { moves: 4, ..Settings::default() }));
            scene.until(reason, |scene| {
                // Guest 0 has guest 2's address too.
                for guest in [2, 0] {
                    let guest = &mut scene.bed.guests[guest];
                    guest.reclaim();
                    guest.send(2, 0xffff, 60, 1);
                    scene.bed.worker.step();
                }
                scene.bed.guests.iter_mut().for_each(|guest| {
                    guest.settle();
                });
            })
        }
        R::TransmitDisabled => {
            let mut scene = Scene::new();
            scene.bed.worker.set_enabled(key(Direction::Transmit), false);
            scene.until(reason, |scene| scene.send(1, 60, 3))
        }
        R::SenderStopped => {
            let mut scene = Scene::new().leave_buffers(0);
            scene.enqueue(5);
            scene.bed.worker.stop_transmit_queue(key(Direction::Transmit), std::sync::mpsc::channel().0);
            scene
        }
        R::SenderMemory | R::ReceiverMemory => absent_pages(reason),
        R::ReceiverAbsent => {
            // Some frames wait when the queue stops, and more come after that.
            let mut scene = Scene::new().leave_buffers(0);
            scene.enqueue(5);
            scene.bed.worker.stop_receive_queue(RingKey { port: PortId(1), ..key(Direction::Receive) });
            scene.bed.worker.set_route(PortId(1), Vec::new());
            scene.send(1, 60, 2);
            scene
        }
        R::ReceiverFull => Scene::new().leave_buffers(0).until(reason, |scene| {
            scene.send(1, 60, 3);
            scene.send(2, 60, 1);
            scene.bed.guests[2].settle();
        }),
        R::ReceiverStalled => {
            let mut scene = Scene::impatient().leave_buffers(0);
            scene.send(1, 60, 5);
            scene.until(reason, |_| {})
        }
        R::TooLongForReceiver => {
            let mut scene = Scene::impatient().leave_buffers(16);
            scene.send(1, 60_000, 1);
            scene.until(reason, |_| {})
        }
        R::BadReceiveChains => {
            let mut scene = Scene::new().leave_buffers(0);
            let ring = scene.bed.guests[1].receive.shared().clone();
            ring.set_descriptor(0, Descriptor { address: 1 << 50, length: 0, flags: DESC_WRITE | DESC_NEXT, next: 0 });
            let index = ring.available_index();
            (0..8).for_each(|more| ring.set_available_entry(index.wrapping_add(more), 0));
            ring.set_available_index(index.wrapping_add(8));
            scene.send(1, 60, 1);
            scene
        }
        R::FloodNoRoom => Scene::new().leave_buffers(0).until(reason, |scene| {
            scene.send(0xffff, 60, 1);
            scene.bed.guests[2].settle();
        }),
        R::LinkLoss => {
            let mut scene = Scene::behind(Impairment { loss: 1.0, ..Impairment::default() });
            scene.send(1, 60, 3);
            scene
        }
        R::LinkFull => {
            let mut scene = Scene::behind(Impairment { rate: Some("10Mbit".into()), queue: Some(1), ..Impairment::default() });
            scene.send(1, 1500, 9);
            scene
        }
        R::TwinHeaders => {
            let [from, to] = [Host { mac: OWN, ..Host::v6(7) }, Host::v6(1)];
            let inside = Inside { mac: None, addresses: vec![Host::v6(9).ip] };
            let limits = PortLimits { inside: Some(inside), addresses: vec![to.ip], ..PortLimits::default() };
            let scene = Scene::new();
            scene.bed.ports[1].policy.set_twin(Twin::of(&limits, MacAddress::new(to.mac)));
            let frame = Packet::tcp(from, to, 1, [7; 100]).with_destination_options(256).frame();
            scene.bytes(Offloads::ALL, PLAIN, &frame)
        }
        other => panic!("{} is not provoked here: provoke it, or list it in ELSEWHERE", other.name()),
    }
}

#[test]
fn every_reason_is_provoked_and_captured_as_often_as_it_is_counted() {
    let mut faults = Vec::new();
    for &reason in DropReason::ALL {
        if ELSEWHERE.iter().any(|&(elsewhere, _)| elsewhere == reason) {
            continue;
        }
        let mut scene = provoked(reason).until(reason, |_| {});
        let (counted, captured) = (scene.counted(), scene.captured());
        if captured != counted || !counted.keys().any(|&(_, counted)| counted == reason) {
            let totals: Vec<_> = scene.bed.ports.iter().map(|port| port.totals()).collect();
            faults.push(format!("{}: counted {counted:?}, captured {captured:?}: {totals:#?}", reason.name()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
