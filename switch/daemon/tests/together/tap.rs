//! A TAP port and a guest's port of one network: the host's kernel and the guest talk, with every offload.
//!
//! TAP devices and addresses need privileges, and must not touch the host's own: the test starts itself again in a network namespace of its own.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use crate::common::{ALL_LOOKS, TIMEOUT, in_a_namespace, wait_until};
use memlane::config::Config;
use memlane::daemon::Daemon;
use memlane::id::PortId;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::frames::{GsoKind, Host, NetHeader, Packet, check};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ToyGuest};

pub const GUEST: u16 = 2;
pub const KERNEL: u16 = 1;

/// The guest's port, before the kernel's.
pub const GUESTS: &str = "[[port]]\nname = \"guest\"\nvhost-user = \"SOCKET\"\n";

/// A network of a guest and the kernel; the kernel is host 1, the guest host 2.
pub struct Bed {
    pub daemon: Daemon,
    pub guest: ToyGuest,
    pub socket: UdpSocket,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new(wanted: features::Features) -> Self {
        Self::with(wanted, "")
    }

    /// With these `settings` above the ports.
    fn with(wanted: features::Features, settings: &str) -> Self {
        Self::start(wanted, settings, "tap = \"memlane\"")
    }

    /// The kernel's interface `memlane` is behind a port of this kind.
    pub fn start(wanted: features::Features, settings: &str, kind: &str) -> Self {
        Self::of(wanted, &format!("{settings}\n{GUESTS}[[port]]\nname = \"kernel\"\n{kind}\nmac = \"02:00:00:00:00:01\"\n"))
    }

    /// A network of this file, in which SOCKET stands for the guest's.
    pub fn of(wanted: features::Features, text: &str) -> Self {
        silence();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("guest.sock");
        let text = text.replace("SOCKET", &socket.display().to_string());
        let daemon = Daemon::start(&Config::parse(&text, "test").unwrap()).unwrap();
        set_addresses();
        Self { daemon, guest: guest(wanted, &socket), socket: kernel_socket(), _folder: folder }
    }

    /// The kernel receives the guest's datagram of `length` bytes: unsegmented, and with its checksum left to the kernel.
    pub fn guest_speaks_plainly_and_without_checksum(&mut self, packet: &Packet, length: usize) {
        self.guest_speaks(&NetHeader::default(), &packet.frame(), &packet.payload, &[length]);
        let (header, frame) = packet.partial();
        self.guest_speaks(&header, &frame, &packet.payload, &[length]);
    }

    /// Each of `rounds` bursts of `count` datagrams arrives in its order, in both directions.
    pub fn keeps_order(&mut self, rounds: u8, count: u8) {
        for round in 0..rounds {
            for number in 0..count {
                self.socket.send(&[round, number]).unwrap();
            }
            for number in 0..count {
                assert_eq!(self.guest_hears().1, [round, number]);
                let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), [round, number]);
                self.guest.send(&packet.frame()).unwrap();
            }
            for number in 0..count {
                let mut datagram = [0; 2];
                self.socket.recv(&mut datagram).unwrap();
                assert_eq!(datagram, [round, number]);
            }
        }
    }

    /// The kernel receives the guest's frame as datagrams of these lengths.
    pub fn guest_speaks(&mut self, header: &NetHeader, frame: &[u8], payload: &[u8], lengths: &[usize]) {
        self.guest.send_with(header, &Layout::single(), frame).unwrap();
        let mut heard = Vec::new();
        for &length in lengths {
            let mut datagram = vec![0; 65_536];
            let got = self.socket.recv(&mut datagram).expect("a datagram");
            assert_eq!(got, length);
            heard.extend_from_slice(&datagram[..got]);
        }
        assert!(heard == payload);
    }

    /// The payload of the next frame of the kernel's, after a look at its lengths and checksums.
    pub fn guest_hears(&mut self) -> (NetHeader, Vec<u8>) {
        loop {
            let frame = self.guest.receive(TIMEOUT).unwrap();
            // Group membership and the like may be in between.
            if frame.bytes[12..14] == [8, 0] && frame.bytes[23] == 17 && frame.bytes[..6] == Host::v4(GUEST).mac {
                check(&frame.header, &frame.bytes).unwrap();
                return (frame.header, frame.bytes[42..].to_vec());
            }
        }
    }
}

/// Keeps interfaces from announcing themselves over IPv6 at times of the kernel's own.
pub fn silence() {
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("a kernel with IPv6, and /proc to write to");
}

/// The addresses of the kernel's interface and of the guest.
pub fn set_addresses() {
    ip("addr add 10.0.0.1/24 dev memlane");
    ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev memlane");
}

/// The guest, at its port's socket.
pub fn guest(wanted: features::Features, socket: &Path) -> ToyGuest {
    ToyGuest::builder().mac(Host::v4(GUEST).mac).features(wanted).timeout(TIMEOUT).connect(socket).unwrap()
}

/// The kernel's socket for datagrams to and from the guest.
pub fn kernel_socket() -> UdpSocket {
    let socket = UdpSocket::bind("10.0.0.1:1000").unwrap();
    socket.connect("10.0.0.2:1000").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("`ip` of iproute2 can be started");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 13) as u8).collect()
}

/// Has the kernel cut the data that `socket` sends into datagrams of `size` bytes (udp(7), UDP_SEGMENT), or leave it to the device.
pub fn segment(socket: &UdpSocket, size: libc::c_int) {
    const SOL_UDP: libc::c_int = 17;
    const UDP_SEGMENT: libc::c_int = 103;
    // SAFETY: the value outlives the call and has the length that is told.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), SOL_UDP, UDP_SEGMENT, (&raw const size).cast(), size_of_val(&size) as libc::socklen_t)
    };
    assert_eq!(status, 0, "UDP_SEGMENT: {}", std::io::Error::last_os_error());
}

#[test]
fn frames_pass_between_kernel_and_guest() {
    in_a_namespace("tap::frames_pass_between_kernel_and_guest", || {
        let mut bed = Bed::new(features::LINUX);
        for length in [1, 100, 1400] {
            let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(length));
            bed.guest_speaks_plainly_and_without_checksum(&packet, length);
            bed.socket.send(&packet.payload).unwrap();
            assert_eq!(bed.guest_hears().1, packet.payload);
        }
        bed.daemon.stop();
    });
}

#[test]
fn an_idle_worker_sleeps_on_after_the_looks() {
    in_a_namespace("tap::an_idle_worker_sleeps_on_after_the_looks", || {
        let mut bed = Bed::with(features::LINUX, "poll = \"never\"");
        bed.socket.send(b"hello").unwrap();
        assert_eq!(bed.guest_hears().1, b"hello");
        std::thread::sleep(ALL_LOOKS);
        let sleeps = || bed.daemon.network().shared().workers[0].sleeps.get();
        let before = sleeps();
        std::thread::sleep(ALL_LOOKS);
        assert_eq!(sleeps(), before);
        bed.daemon.stop();
    });
}

#[test]
fn many_frames_keep_their_order() {
    in_a_namespace("tap::many_frames_keep_their_order", || {
        let mut bed = Bed::new(features::LINUX);
        bed.keeps_order(50, 40);
        bed.daemon.stop();
    });
}

#[test]
fn gso_frames_pass_unsegmented_to_guests_that_negotiated_them() {
    in_a_namespace("tap::gso_frames_pass_unsegmented_to_guests_that_negotiated_them", || {
        let mut bed = Bed::new(features::LINUX);
        segment(&bed.socket, 1000);
        bed.socket.send(&payload(30_500)).unwrap();
        let (header, bytes) = bed.guest_hears();
        if header.gso == GsoKind::UdpL4 {
            assert_eq!((header.gso_size, bytes), (1000, payload(30_500)));
        } else {
            // A kernel that cannot leave UDP to a TAP (before Linux 6.2) has cut it.
            let rest = (1..31).flat_map(|_| bed.guest_hears().1);
            assert_eq!(bytes.into_iter().chain(rest).collect::<Vec<_>>(), payload(30_500));
        }
        bed.daemon.stop();
    });
}

#[test]
fn large_frames_are_cut_for_guests_that_do_not() {
    in_a_namespace("tap::large_frames_are_cut_for_guests_that_do_not", || {
        let mut bed = Bed::new(features::PLAIN | features::CSUM | features::HOST_USO);
        segment(&bed.socket, 1000);
        bed.socket.send(&payload(30_500)).unwrap();
        for number in 0..31 {
            let (header, bytes) = bed.guest_hears();
            assert!(!header.needs_checksum && header.gso == GsoKind::None);
            assert!(bytes == payload(30_500)[number * 1000..][..if number < 30 { 1000 } else { 500 }]);
        }
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(5500));
        let (header, frame) = packet.gso(1000);
        bed.guest_speaks(&header, &frame, &packet.payload, &[1000, 1000, 1000, 1000, 1000, 500]);
        bed.daemon.stop();
    });
}

#[test]
fn a_device_that_is_down_is_an_absent_receiver() {
    in_a_namespace("tap::a_device_that_is_down_is_an_absent_receiver", || {
        let mut bed = Bed::new(features::LINUX);
        ip("link set memlane down");
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
        bed.guest.send(&packet.frame()).unwrap();
        let drops = || bed.daemon.network().port(PortId(1)).unwrap().totals().drops;
        wait_until(|| !drops().is_empty(), "the frame is dropped");
        assert_eq!(drops().into_iter().collect::<Vec<_>>(), [(DropReason::ReceiverAbsent.name().to_owned(), 1)]);
        bed.daemon.stop();
    });
}

/// The operator's advice on the kernel's port.
pub fn advice(bed: &Bed) -> String {
    bed.daemon.network().find("kernel").unwrap().advice().unwrap_or_default()
}

#[test]
fn a_device_that_is_deleted_is_made_anew_and_told_of() {
    in_a_namespace("tap::a_device_that_is_deleted_is_made_anew_and_told_of", || {
        let mut bed = Bed::new(features::LINUX);
        ip("link del memlane");
        wait_until(|| advice(&bed).contains("deleted by another program and created again, once"), "it is made anew");
        ip("addr add 10.0.0.1/24 dev memlane");
        ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev memlane");
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
        bed.guest_speaks(&NetHeader::default(), &packet.frame(), &packet.payload, &[100]);
        bed.socket.send(&packet.payload).unwrap();
        assert_eq!(bed.guest_hears().1, packet.payload);
        bed.daemon.stop();
    });
}

#[test]
fn a_device_that_cannot_be_made_anew_leaves_its_port_waiting() {
    in_a_namespace("tap::a_device_that_cannot_be_made_anew_leaves_its_port_waiting", || {
        let bed = Bed::new(features::LINUX);
        let state = || bed.daemon.network().find("kernel").unwrap().state();
        // Another device takes the name before memlane has made its own anew, after each try more surely.
        let taken = || {
            Command::new("sh").args(["-c", "ip link del memlane && ip link add memlane type bridge"]).status().unwrap().success()
        };
        wait_until(taken, "the name is taken");
        wait_until(|| state() == PortState::Waiting && advice(&bed).contains("cannot be created again"), "it is told");
        ip("link del memlane");
        wait_until(|| state() == PortState::Running, "it is made anew");
        bed.daemon.stop();
    });
}

#[test]
fn a_device_that_is_renamed_is_still_there() {
    in_a_namespace("tap::a_device_that_is_renamed_is_still_there", || {
        let mut bed = Bed::new(features::LINUX);
        ip("link set memlane name other");
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
        bed.guest_speaks(&NetHeader::default(), &packet.frame(), &packet.payload, &[100]);
        assert_eq!(advice(&bed), "");
        bed.daemon.stop();
    });
}

#[test]
fn frames_from_the_kernel_take_no_more_memory_than_they_may() {
    in_a_namespace("tap::frames_from_the_kernel_take_no_more_memory_than_they_may", || {
        let mut bed = Bed::with(features::LINUX, "memory-mib = 1\nstall-timeout-ms = 60000");
        let held = |bed: &Bed| bed.daemon.network().shared().budget.held();
        let most = bed.daemon.network().shared().budget.most();
        assert!(most <= 1 << 20);
        // The switch knows where the guest is.
        let hello = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(1));
        bed.guest_speaks(&NetHeader::default(), &hello.frame(), &hello.payload, &[1]);
        // The guest reads nothing yet: its ring gets full, then the buffers do, then the kernel's queue.
        let datagrams = 700_u16;
        for number in 0..datagrams {
            bed.socket.send(&number.to_be_bytes()).unwrap();
        }
        wait_until(|| bed.daemon.network().port(PortId(0)).unwrap().totals().waiting > 0, "frames wait");
        assert!((1..=most / 2).contains(&held(&bed)), "{} of {most}", held(&bed));
        let mut last = 0;
        while last + 1 < datagrams {
            let payload = bed.guest_hears().1;
            let number = u16::from_be_bytes([payload[0], payload[1]]);
            assert!(number >= last && held(&bed) <= most / 2);
            last = number;
        }
        bed.daemon.stop();
    });
}
