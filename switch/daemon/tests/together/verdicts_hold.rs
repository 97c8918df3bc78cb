//! The bytes that arrive are bytes that were judged: frames with random headers and random offload fields, of each kind of port, to each kind
//! of port. Each frame or segment that arrives is brought back to the form in which its sender would transmit it (its tag), with its
//! checksum completed, and then the first verdict must hold for it: it may go from that port to that port.
//!
//! Some guests are twins: their frames are sent with the addresses inside, and those that arrive there are brought back to the ones outside.
//!
//! Between verdict and receiver, these write into a frame: see `docs/explanation/how-a-frame-travels.md`.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::af_packet::raw_socket_with_headers_at;
use crate::common::*;
use crate::dice::Dice;
use crate::tap::{ip, silence};
use crate::xen::netfront::{Front, Kind, Marks};
use memlane::explain::Forecast;
use memlane::frame::COPIED;
use memlane::network::AttachSettings;
use memlane::port::settings::PortSettings;
use memlane::port::{Offer, Port, PortState};
use memlane::stats::DropReason;
use memlane::twin::Twin;
use memlane_backends::xen::in_memory::Hypervisor;
use memlane_backends::xen::{Wanted, XenstoreWatcher};
use memlane_rig::frames::{GsoKind, Host, NetHeader, Packet, complete_checksum};
use memlane_rig::frontend::features::{self, Features};
use memlane_rig::guest::{Layout, ToyGuest};

/// Frames that are sent; MEMLANE_VERDICTS sets another number.
const FRAMES: usize = 100_000;
/// Frames that are sent before the machines receive.
const BATCH: usize = 32;
/// Frames after which machines with MAC addresses that the file lacks speak again.
const ANNOUNCED_EVERY: usize = 1 << 12;
/// The VLAN of access ports; trunks carry it, and one more.
const VLAN: [u8; 4] = [0x81, 0, 0, 10];
const OTHER_VLAN: [u8; 4] = [0x81, 0, 0, 20];
/// Bytes of a segment that hold all headers which a verdict reads.
const SEGMENT: usize = 1400;
/// A virtio-net header of packet sockets.
const SOCKET_HEADER: usize = 10;

/// The ports: `w` sends from a trunk, `u` and the kernel's from access ports; the uplink and the Xen guest carry every VLAN.
const PORTS: &str = r#"
[[segment]]
name = "lan"
nic = "nic0"

[[policy]]
protocol = "tcp"
ports = [80]
action = "allow"
[[policy]]
protocol = "udp"
ports = [53, "1000-2000"]
action = "allow"
[[policy]]
protocol = "tcp"
action = "deny"
[[policy]]
protocol = "udp"
action = "deny"
"#;

const SENDS: Features = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_ECN | features::HOST_USO;
const RECEIVES: Features = features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::GUEST_USO4
    | features::GUEST_USO6;

/// Ports of twins: one sends, the receivers take no offloads or a few; and the addresses that all have inside.
const TWINS: [usize; 3] = [1, 2, 3];
const INSIDE: &str = "inside = { mac = \"02:00:00:00:0f:01\", addresses = [\"10.0.0.200\", \"fd00::c8\"] }\n";

/// The machine behind a port.
enum Machine {
    Guest(Box<ToyGuest>),
    /// A stream, and the bytes that have arrived.
    Stream(UnixStream, Vec<u8>),
    /// The other end of an interface.
    Kernel(UdpSocket),
    Xen(Front),
}

/// A port, and its machine.
struct Attached {
    port: Arc<Port>,
    machine: Machine,
    mac: [u8; 6],
    /// Frames have no tag, on either way.
    is_access: bool,
    sends: bool,
    /// The exchange of addresses, at twins.
    twin: Option<Twin>,
}

impl Attached {
    /// The frame with the addresses inside in place of those outside, or the other way round; as it is where it is too long for that.
    fn exchanged(&self, header: &NetHeader, frame: &[u8]) -> Vec<u8> {
        let Some(twin) = &self.twin else { return frame.to_vec() };
        let (mut changed, copied) = (frame.to_vec(), frame.len().min(COPIED));
        let header = memlane::frame::NetHeader::from_bytes(header.bytes());
        twin.exchange_in(&mut changed[..copied], header, frame.len()).map_or_else(|_| frame.to_vec(), |()| changed)
    }
}

impl Machine {
    fn send(&mut self, header: &NetHeader, frame: &[u8]) {
        match self {
            Self::Guest(guest) => drop(guest.send_with(header, &Layout::single(), frame).unwrap()),
            Self::Stream(stream, _) => {
                stream.write_all(&[&(frame.len() as u32).to_be_bytes()[..], frame].concat()).unwrap();
            }
            // The kernel refuses some, which is its right.
            Self::Kernel(socket) => drop(socket.send(&[&header.bytes()[..SOCKET_HEADER], frame].concat())),
            Self::Xen(front) => {
                let gso = match header.gso {
                    GsoKind::Tcp4 => Some((1, header.gso_size)),
                    GsoKind::Tcp6 => Some((2, header.gso_size)),
                    _ => None,
                };
                front.send(frame, &[], Marks { checksum_blank: header.needs_checksum, gso });
                front.queues[0].await_answers();
            }
        }
    }

    fn settle(&mut self) {
        if let Self::Guest(guest) = self {
            guest.wait_sent(TIMEOUT).unwrap();
        }
    }

    /// The frames that have arrived, with their checksums completed as the machine would do it.
    fn arrived(&mut self) -> Vec<Vec<u8>> {
        match self {
            Self::Guest(guest) => {
                std::iter::from_fn(|| guest.try_receive().unwrap()).map(|frame| completed(&frame.header, frame.bytes)).collect()
            }
            Self::Stream(stream, bytes) => {
                let mut more = [0; 1 << 16];
                while let Ok(length) = stream.read(&mut more).inspect_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock)) {
                    bytes.extend_from_slice(&more[..length]);
                }
                std::iter::from_fn(|| {
                    let length = u32::from_be_bytes(*bytes.first_chunk()?) as usize;
                    let frame = bytes.get(4..4 + length)?.to_vec();
                    bytes.drain(..4 + length);
                    Some(frame)
                })
                .collect()
            }
            Self::Kernel(socket) => {
                let mut bytes = vec![0; 1 << 17];
                std::iter::from_fn(|| socket.recv(&mut bytes).ok().map(|length| bytes[..length].to_vec()))
                    .map(|bytes| {
                        let header = NetHeader::parse(&[&bytes[..SOCKET_HEADER], &[0; 2]].concat()).unwrap();
                        completed(&header, bytes[SOCKET_HEADER..].to_vec())
                    })
                    .collect()
            }
            Self::Xen(front) => {
                std::iter::from_fn(|| front.queues[0].receive(std::time::Duration::ZERO)).map(|frame| frame.bytes).collect()
            }
        }
    }
}

fn completed(header: &NetHeader, mut frame: Vec<u8>) -> Vec<u8> {
    if header.needs_checksum {
        complete_checksum(header, &mut frame);
    }
    if header.gso != GsoKind::None {
        // The frame is no longer than its segments, as far as an MTU is asked about.
        frame.truncate(SEGMENT);
    }
    frame
}

/// A network of all kinds of ports.
struct World {
    bed: Bed,
    attached: Vec<Attached>,
    _watcher: XenstoreWatcher,
}

/// Lines of a port's table.
fn guarded(index: usize, vlans: &str) -> String {
    format!(
        "{vlans}\nmac = \"02:00:00:00:00:{index:02x}\"\naddresses = [\"10.0.0.{index}\", \"fd00::{index}\"]\nanti-spoof = \"all\"\nstorm = 0\n"
    )
}

impl World {
    fn new() -> Self {
        silence();
        for pair in ["veth0 type veth peer name container", "nic0 type veth peer name wire"] {
            ip(&format!("link add {pair}"));
        }
        ["veth0", "container", "nic0", "wire"].iter().for_each(|name| ip(&format!("link set {name} up")));
        let (access, trunk) = ("vlan = 10", "trunk = [10, 20]");
        let guests = [trunk, access, access, access, access, trunk];
        let mut text = PORTS.to_owned();
        for (index, vlans) in guests.iter().enumerate() {
            let inside = if TWINS.contains(&index) { INSIDE } else { "" };
            text +=
                &format!("[[port]]\nname = \"p{index}\"\nvhost-user = \"FOLDER/p{index}.sock\"\n{inside}{}", guarded(index, vlans));
        }
        for (index, kind) in [(6, "stream = \"FOLDER/s\""), (7, "tap = \"tap0\""), (8, "af-packet = \"veth0\"")] {
            text += &format!("[[port]]\nname = \"p{index}\"\n{kind}\n{}", guarded(index, access));
        }
        let bed = Bed::of(&text);
        ip("link set tap0 up");
        let (watcher, xen) = Self::xen(&bed);
        let network = bed.daemon().network();
        let others = (features::LINUX | SENDS) & !RECEIVES;
        let wanted = [others, others, others, others | features::GUEST_CSUM, others | RECEIVES, others];
        let guest = |index: usize| Machine::Guest(Box::new(bed.guest_like(index, bed.builder(index).features(wanted[index]))));
        let stream = UnixStream::connect(bed.folder().join("s")).unwrap();
        stream.set_nonblocking(true).unwrap();
        let kernel = |name| {
            let socket = raw_socket_with_headers_at(name);
            socket.set_nonblocking(true).unwrap();
            Machine::Kernel(socket)
        };
        let mut machines: Vec<Machine> = (0..guests.len()).map(guest).collect();
        machines.extend([Machine::Stream(stream, Vec::new()), kernel(c"tap0"), kernel(c"container")]);
        let mut attached: Vec<Attached> = (0..)
            .zip(machines)
            .map(|(index, machine)| Attached {
                port: network.find(&format!("p{index}")).unwrap(),
                machine,
                mac: mac(index),
                is_access: ![0, 5].contains(&index),
                sends: [0, 1, 6, 7, 8].contains(&index),
                twin: network.find(&format!("p{index}")).unwrap().policy.rules.get().twin.clone(),
            })
            .collect();
        attached.push(Attached {
            port: network.find("x9").unwrap(),
            machine: Machine::Xen(xen),
            mac: mac(9),
            is_access: false,
            sends: false,
            twin: None,
        });
        let uplink = network.find("uplink:lan").unwrap();
        // The kernel at the other end takes the tag out of a frame.
        attached.push(Attached { port: uplink, machine: kernel(c"wire"), mac: mac(10), is_access: true, sends: false, twin: None });
        for attached in &attached {
            wait_until(|| attached.port.state() == PortState::Running, &format!("{} runs", attached.port.name));
        }
        Self { bed, attached, _watcher: watcher }
    }

    /// A Xen guest that takes no offloads.
    fn xen(bed: &Bed) -> (XenstoreWatcher, Front) {
        let (hypervisor, settings) = (Hypervisor::new(), PortSettings::default());
        let attach = AttachSettings { name: "x9", segment: "lan", settings: &settings, offer: Offer::default() };
        let port = bed.daemon().network().add_port(&attach, 1).unwrap();
        let layer: Arc<Hypervisor> = Arc::clone(&hypervisor);
        let watcher = XenstoreWatcher::start_on(bed.daemon().network(), layer, hypervisor.store()).unwrap();
        watcher.serve(Wanted { domain: "x9".into(), vif: 0, queues: 1, receive_offloads: true, has_address: false }, &port);
        let mut front = Front::create(&hypervisor, 9, "x9", mac(9));
        front.connect(Kind { gso: false, checksum: false, ..Kind::LINUX });
        (watcher, front)
    }

    /// Has the switch learn the MAC addresses behind the uplink and of the Xen guest.
    fn announce(&mut self) {
        for attached in self.attached.iter_mut().rev().take(2) {
            attached.machine.send(&NetHeader::default(), &frame(attached.mac, [1, 0, 0, 0, 0, 1], 60, 1));
        }
    }

    /// Has a random port send a random frame.
    fn send(&mut self, dice: &mut Dice) {
        let (senders, others): (Vec<usize>, Vec<usize>) = (0..self.attached.len()).partition(|&index| self.attached[index].sends);
        let from = dice.pick(&senders);
        // Answers of the switch come from the address of the destination: that of no sender.
        let to = if dice.once_in(8) { BROADCAST } else { self.attached[dice.pick(&others)].mac };
        let attached = &mut self.attached[from];
        let (header, frame) = random(dice, from, to, attached.is_access);
        let frame = attached.exchanged(&header, &frame);
        attached.machine.send(&header, &frame);
    }

    /// Judges all frames that have arrived since it was last called; counts those of each receiver.
    fn judge(&mut self, counts: &mut BTreeMap<String, usize>) {
        let network = self.bed.daemon().network();
        self.attached.iter_mut().for_each(|attached| attached.machine.settle());
        for to in 0..self.attached.len() {
            for frame in self.attached[to].machine.arrived() {
                let frame = self.attached[to].exchanged(&NetHeader::default(), &frame);
                let is_sender = |attached: &&Attached| attached.sends && frame[6..12] == attached.mac;
                let Some(from) = self.attached.iter().find(is_sender) else { continue };
                let (name, sent) = (&self.attached[to].port.name, transmit_form(&frame, from, &self.attached[to]));
                let forecast = Forecast::foresee(network, &from.port, &sent, network.second());
                let holds = forecast.receivers.contains(name) || forecast.answered_for.is_some();
                assert!(holds, "{} of {} at {name}: {frame:02x?}: {forecast:?}", frame.len(), from.port.name);
                *counts.entry(name.clone()).or_default() += 1;
            }
        }
    }
}

/// The frame as `from` would transmit it that arrived as `frame` at `to`.
fn transmit_form(frame: &[u8], from: &Attached, to: &Attached) -> Vec<u8> {
    let mut sent = frame.to_vec();
    match (from.is_access, to.is_access) {
        (true, false) => drop(sent.drain(12..16)),
        (false, true) => drop(sent.splice(12..12, VLAN)),
        _ => {}
    }
    sent
}

/// A random frame of port `from`, mostly honest in its headers, and its virtio-net header, which mostly is not.
fn random(dice: &mut Dice, from: usize, to: [u8; 6], is_access: bool) -> (NetHeader, Vec<u8>) {
    let honest = if dice.once_in(5) { other_packet(dice, from, to) } else { ip_packet(dice, from, to) };
    let (mut header, mut frame) = honest;
    if dice.once_in(4) {
        let at = 12 + dice.below(frame.len().min(90) - 12);
        frame[at] ^= 1 << dice.below(8);
    }
    let mut starts = vec![14, 34, 54, 14 + dice.below(100) as u16, header.checksum_start];
    if !is_access {
        let tag = dice.pick(&[VLAN, VLAN, OTHER_VLAN]);
        frame.splice(12..12, tag);
        (header.checksum_start, header.header_length) = (header.checksum_start + 4, header.header_length + 4);
        starts.extend([18, 38, header.checksum_start]);
    }
    if !dice.once_in(4) {
        let any = dice.below(64) as u16;
        header.needs_checksum = true;
        header.checksum_start = dice.pick(&starts);
        header.checksum_offset = dice.pick(&[0, 2, 4, 6, 8, 12, 14, 16, 18, 24, 26, 30, any]);
    }
    if header.needs_checksum && header.gso == GsoKind::None && dice.once_in(2) {
        steer(dice, &header, &mut frame);
    }
    (header, frame)
}

/// TCP or UDP, in any layout.
fn ip_packet(dice: &mut Dice, from: usize, to: [u8; 6]) -> (NetHeader, Vec<u8>) {
    let host = if dice.once_in(2) { Host::v4 } else { Host::v6 };
    let (one, other) = (host(from as u16), Host { mac: to, ..host(dice.below(12) as u16) });
    let length = if dice.once_in(8) { 3000 } else { dice.below(120) };
    let payload = dice.bytes(length);
    let mut packet = match dice.below(2) {
        0 => Packet::tcp(one, other.port(dice.pick(&[80, 80, 80, 22])), 1, payload),
        _ => Packet::udp(one.port(dice.pick(&[67, 1000])), other.port(dice.pick(&[53, 1067, 1500, 68, 546])), payload),
    };
    packet = match dice.below(10) {
        0 => packet.with_options(4 * dice.below(11)),
        1 => packet.with_hop_by_hop(8 * (1 + dice.below(30))),
        2 => packet.with_destination_options(8 * (1 + dice.below(4))),
        3 => packet.fragment(dice.pick(&[0, 0, 1, 100]), dice.once_in(2)),
        4 => packet.routed(1 + dice.below(5) as u8, "fd00::b".parse().unwrap()),
        _ => packet,
    };
    match dice.below(if length > 1400 { 1 } else { 3 }) {
        0 if length > 0 => packet.gso(dice.pick(&[400, 1000, 1400])),
        1 => packet.partial(),
        _ => (NetHeader::default(), packet.frame()),
    }
}

/// ARP, neighbour discovery, SCTP, or a frame of no known type.
fn other_packet(dice: &mut Dice, from: usize, to: [u8; 6]) -> (NetHeader, Vec<u8>) {
    let (own, mine) = (mac(from), [10, 0, 0, from as u8]);
    let v6 = |last: u8| [&[0xfd][..], &[0; 14], &[last]].concat();
    let (kind, body) = match dice.below(4) {
        0 => ([8, 6], [&[0, 1, 8, 0, 6, 4, 0, 2][..], &own, &mine, &to, &[10, 0, 0, 9]].concat()),
        1 => {
            let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &v6(from as u8), &[2, 1], &own].concat();
            ([0x86, 0xdd], [&[0x60, 0, 0, 0, 0, 32, 58, 255][..], &v6(from as u8), &v6(9), &message].concat())
        }
        2 => ([8, 0], [&[0x45, 0, 0, 52, 0, 1, 0x40, 0, 64, 132, 0, 0][..], &mine, &[10, 0, 0, 9], &dice.bytes(32)].concat()),
        _ => ([0x88, 0xb5], dice.bytes(46)),
    };
    let start = if kind[0] == 0x86 { 54 } else { 34 };
    let header = NetHeader { needs_checksum: dice.once_in(2), checksum_start: start, checksum_offset: 8, ..NetHeader::default() };
    (header, [&to[..], &own, &kind, &body, &dice.bytes(20)].concat())
}

/// Changes two bytes at the end of `frame` so that its checksum, completed, is a number that a forger would like.
fn steer(dice: &mut Dice, header: &NetHeader, frame: &mut [u8]) {
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    let Some(slack) = frame.len().checked_sub(2).map(|at| at - at.saturating_sub(start) % 2).filter(|&at| at > field + 1) else {
        return;
    };
    let wanted = u32::from(dice.pick(&[68_u16, 22, 80, 5, 0x0007, 20, 0x0806]));
    frame[slack..slack + 2].fill(0);
    let words = frame[start..].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum = words.sum::<u32>() % 0xffff;
    let lacking = (0xffff - wanted + 0xffff - sum) % 0xffff;
    frame[slack..slack + 2].copy_from_slice(&(lacking as u16).to_be_bytes());
}

#[test]
fn frames_that_arrive_get_the_first_verdict_again() {
    in_a_namespace("verdicts_hold::frames_that_arrive_get_the_first_verdict_again", || {
        let frames =
            std::env::var("MEMLANE_VERDICTS").map_or(FRAMES, |number| number.parse().expect("MEMLANE_VERDICTS is a number"));
        let (mut world, mut dice, mut counts) = (World::new(), Dice::new(), BTreeMap::new());
        for number in 1..=frames {
            if number % ANNOUNCED_EVERY == 1 {
                world.announce();
            }
            world.send(&mut dice);
            if number % BATCH == 0 {
                world.judge(&mut counts);
            }
        }
        std::thread::sleep(POLL_INTERVAL);
        world.judge(&mut counts);
        println!("arrived: {counts:?}");
        for attached in &world.attached {
            let totals = attached.port.totals();
            let refused = totals.drops.get(DropReason::ChecksumMisplaced.name()).copied().unwrap_or(0);
            let has_fields = matches!(attached.machine, Machine::Guest(_) | Machine::Kernel(_)) && attached.sends;
            assert!(!has_fields || refused as usize > frames / 100, "{}: {:?}", attached.port.name, totals.drops);
            let arrived = counts.get(&attached.port.name).copied().unwrap_or(0);
            assert!(arrived > frames / 1000, "{arrived} frames arrived at {}: {:?}", attached.port.name, totals.drops);
        }
    });
}
