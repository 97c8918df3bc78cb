//! A port at an interface of the host's kernel by AF_PACKET, and a guest's port of one network. The kernel is at the other end of a
//! veth pair, as a container is.

use std::ffi::CStr;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd};

use crate::command::{Running, memlane, write};
use crate::common::{POLL_INTERVAL, TIMEOUT, in_a_namespace, wait_until};
use crate::tap::{Bed, GUEST, KERNEL, advice, ip, payload, segment, silence};
use memlane::id::PortId;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::frames::{GsoKind, Host, NetHeader, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ToyGuest};

const PORT: &str = "af-packet = \"veth-web\"";

/// The veth pair: the kernel's end is called `memlane`, as the TAP of other tests.
fn pair() {
    ip("link add veth-web type veth peer name memlane address 02:00:00:00:00:01");
    ip("link set veth-web up");
    ip("link set memlane up");
}

fn bed(wanted: features::Features, settings: &str) -> Bed {
    silence();
    pair();
    Bed::start(wanted, settings, PORT)
}

#[test]
fn frames_pass_both_ways_with_checksums_left_to_the_other_side() {
    in_a_namespace("af_packet::frames_pass_both_ways_with_checksums_left_to_the_other_side", || {
        let mut bed = bed(features::LINUX, "");
        for length in [1, 100, 1400] {
            let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(length));
            bed.guest_speaks_plainly_and_without_checksum(&packet, length);
            bed.socket.send(&packet.payload).unwrap();
            let (header, heard) = bed.guest_hears();
            assert_eq!(heard, packet.payload);
            assert!(header.needs_checksum, "a veth pair leaves checksums undone");
        }
        bed.daemon.stop();
    });
}

#[test]
fn many_frames_keep_their_order() {
    in_a_namespace("af_packet::many_frames_keep_their_order", || {
        let mut bed = bed(features::LINUX, "");
        bed.keeps_order(20, 100);
        bed.daemon.stop();
    });
}

#[test]
fn gso_frames_pass_unsegmented_both_ways() {
    in_a_namespace("af_packet::gso_frames_pass_unsegmented_both_ways", || {
        let mut bed = bed(features::LINUX, "");
        segment(&bed.socket, 1000);
        bed.socket.send(&payload(30_500)).unwrap();
        let (header, bytes) = bed.guest_hears();
        if header.gso == GsoKind::UdpL4 {
            assert_eq!((header.gso_size, bytes), (1000, payload(30_500)));
        } else {
            // A kernel without UDP segmentation in virtio-net headers (before Linux 6.2) has segmented it.
            let rest = (1..31).flat_map(|_| bed.guest_hears().1);
            assert_eq!(bytes.into_iter().chain(rest).collect::<Vec<_>>(), payload(30_500));
        }
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(5500));
        let (header, frame) = packet.gso(1000);
        bed.guest_speaks(&header, &frame, &packet.payload, &[1000, 1000, 1000, 1000, 1000, 500]);
        bed.daemon.stop();
    });
}

/// A packet socket of the test at the kernel's interface: frames to be sent and received as they are.
fn raw_socket() -> UdpSocket {
    raw_socket_at(c"memlane")
}

/// The same at this interface.
fn raw_socket_at(interface: &CStr) -> UdpSocket {
    // SAFETY: the address has the length that is told, and the new descriptor has no other owner.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = libc::if_nametoindex(interface.as_ptr()) as i32;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        assert_eq!(libc::bind(socket, (&raw const address).cast(), length), 0, "{}", std::io::Error::last_os_error());
        UdpSocket::from_raw_fd(socket)
    }
}

/// Like [`raw_socket`], with a virtio-net header before each frame (PACKET_VNET_HDR).
fn raw_socket_with_headers() -> UdpSocket {
    raw_socket_with_headers_at(c"memlane")
}

/// The same at this interface.
pub fn raw_socket_with_headers_at(interface: &CStr) -> UdpSocket {
    let socket = raw_socket_at(interface);
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the value has the length that is told.
    let status =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, (&raw const on).cast(), length) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// Beyond the veth pair each unsegmented GSO frame is looked at as it is, for the kernel's TCP takes segmented ones as well.
#[test]
fn gso_frames_of_tcp_cross_the_pair_unsegmented() {
    /// Bytes of the header before Linux 6.6, which PACKET_VNET_HDR keeps.
    const HEADER: usize = 10;
    in_a_namespace("af_packet::gso_frames_of_tcp_cross_the_pair_unsegmented", || {
        let mut bed = bed(features::LINUX, "");
        let socket = raw_socket_with_headers();
        for host in [Host::v4, Host::v6] {
            let (header, frame) = Packet::tcp(host(KERNEL), host(GUEST), 1, payload(60_000)).gso(1448);
            let sent = [&header.bytes()[..HEADER], &frame].concat();
            // SAFETY: the bytes outlive the call.
            let length = unsafe { libc::send(socket.as_raw_fd(), sent.as_ptr().cast(), sent.len(), 0) };
            assert_eq!(length, sent.len() as isize, "{}", std::io::Error::last_os_error());
            let heard = std::iter::from_fn(|| bed.guest.receive(TIMEOUT).ok()).find(|heard| heard.bytes.len() > 1448);
            let heard = heard.expect("the frame of the kernel's end");
            assert!(heard.bytes == frame, "{} bytes of {}", heard.bytes.len(), frame.len());
            assert_eq!((heard.header.gso, heard.header.gso_size, heard.header.needs_checksum), (header.gso, 1448, true));

            let (header, frame) = Packet::tcp(host(GUEST), host(KERNEL), 1, payload(60_000)).gso(1448);
            bed.guest.send_with(&header, &Layout::single(), &frame).unwrap();
            let mut got = vec![0; 1 << 17];
            let lengths = std::iter::from_fn(|| socket.recv(&mut got).ok());
            let length = lengths.take(50).find(|&length| length > HEADER + 1448).expect("the guest's frame");
            assert!(got[HEADER..length] == frame, "{} bytes of {}", length - HEADER, frame.len());
            let seen = NetHeader::parse(&[&got[..HEADER], &[0; 2]].concat()).unwrap();
            assert_eq!((seen.gso, seen.gso_size, seen.needs_checksum), (header.gso, 1448, true));
        }
        bed.daemon.stop();
    });
}

/// The kernel removes the tag of each frame that arrives, and hands it over in PACKET_AUXDATA (packet(7)).
#[test]
fn vlan_tags_stay_in_frames_both_ways() {
    in_a_namespace("af_packet::vlan_tags_stay_in_frames_both_ways", || {
        let mut bed = bed(features::LINUX, "");
        let socket = raw_socket();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let tagged = |from: u16, to: u16, tag: [u8; 4]| {
            let mut frame = Packet::udp(Host::v4(from), Host::v4(to), payload(500)).frame();
            frame.splice(12..12, tag);
            frame
        };
        for tag in [[0x81, 0, 0, 7], [0x81, 0, 0xe0, 0], [0x88, 0xa8, 0x2f, 0xfe]] {
            let sent = tagged(KERNEL, GUEST, tag);
            // SAFETY: the bytes outlive the call.
            let length = unsafe { libc::send(socket.as_raw_fd(), sent.as_ptr().cast(), sent.len(), 0) };
            assert_eq!(length, sent.len() as isize);
            let heard = bed.guest.receive(TIMEOUT).unwrap();
            assert!(heard.bytes == sent, "{tag:?}: {:?}", &heard.bytes[..20]);
            let answer = tagged(GUEST, KERNEL, tag);
            bed.guest.send(&answer).unwrap();
            let without = [&answer[..12], &answer[16..]].concat();
            let mut got = [0; 2000];
            // The test's socket hears its own frames, too, and finds a tag removed that the kernel has recognised.
            let is_it = std::iter::from_fn(|| socket.recv(&mut got).ok().map(|length| got[..length] == without));
            assert!(is_it.take(50).any(|is_it| is_it), "{tag:?}");
        }
        bed.daemon.stop();
    });
}

#[test]
fn an_interface_that_is_down_is_an_absent_receiver() {
    in_a_namespace("af_packet::an_interface_that_is_down_is_an_absent_receiver", || {
        let mut bed = bed(features::LINUX, "");
        ip("link set veth-web down");
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
        bed.guest.send(&packet.frame()).unwrap();
        let drops = || bed.daemon.network().port(PortId(1)).unwrap().totals().drops;
        wait_until(|| !drops().is_empty(), "the frame is dropped");
        assert_eq!(drops().into_iter().collect::<Vec<_>>(), [(DropReason::ReceiverAbsent.name().to_owned(), 1)]);
        ip("link set veth-web up");
        ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev memlane");
        bed.socket.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        // The kernel drops frames until it has noticed the carrier, up to a second later.
        let is_heard = || bed.guest.send(&packet.frame()).is_ok() && bed.socket.recv(&mut [0; 100]).is_ok();
        wait_until(is_heard, "frames pass again");
        bed.daemon.stop();
    });
}

#[test]
fn the_port_waits_for_its_interface_and_finds_the_next_of_its_name() {
    in_a_namespace("af_packet::the_port_waits_for_its_interface_and_finds_the_next_of_its_name", || {
        let mut bed = bed(features::LINUX, "");
        for _ in 0..2 {
            ip("link del veth-web");
            let state = || bed.daemon.network().find("kernel").unwrap().state();
            let is_told = || state() == PortState::Waiting && advice(&bed).contains("interface veth-web cannot be used");
            wait_until(is_told, "it is told");
            pair();
            ip("addr add 10.0.0.1/24 dev memlane");
            ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev memlane");
            wait_until(|| state() == PortState::Running && advice(&bed).is_empty(), "it is found again");
            let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
            bed.guest_speaks(&NetHeader::default(), &packet.frame(), &packet.payload, &[100]);
            bed.socket.send(&packet.payload).unwrap();
            assert_eq!(bed.guest_hears().1, packet.payload);
        }
        bed.daemon.stop();
    });
}

#[test]
fn frames_that_the_kernel_dropped_are_counted() {
    in_a_namespace("af_packet::frames_that_the_kernel_dropped_are_counted", || {
        let mut bed = bed(features::LINUX, "memory-mib = 1\nstall-timeout-ms = 60000");
        // The switch knows where the guest is.
        let hello = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(1));
        bed.guest_speaks(&NetHeader::default(), &hello.frame(), &hello.payload, &[1]);
        // The guest reads nothing yet: its ring gets full, then the switch's buffers do, then the socket.
        let sent = 40_000_u32;
        for number in 0..sent {
            bed.socket.send(&number.to_be_bytes()).unwrap();
        }
        let number = |bytes: Vec<u8>| u32::from_be_bytes(bytes[..4].try_into().unwrap());
        let (mut heard, mut last) = (0_u64, None);
        let dropped = |bed: &Bed| bed.daemon.network().port(PortId(1)).unwrap().totals().drops;
        // The count comes with the next frame that finds room.
        let end = u32::MAX;
        let mut is_asked = false;
        loop {
            let number = number(bed.guest_hears().1);
            if number == end {
                break;
            }
            assert!(last.is_none_or(|last| last < number));
            (heard, last) = (heard + 1, Some(number));
            if !is_asked && heard > 1000 {
                bed.socket.send(&end.to_be_bytes()).unwrap();
                is_asked = true;
            }
        }
        let lost = u64::from(sent) - heard;
        assert!(lost > 0, "the socket has a bound");
        assert_eq!(dropped(&bed).into_iter().collect::<Vec<_>>(), [(DropReason::SocketFull.name().to_owned(), lost)]);
        bed.daemon.stop();
    });
}

#[test]
fn a_takeover_hands_the_socket_over_with_the_frames_in_it() {
    in_a_namespace("af_packet::a_takeover_hands_the_socket_over_with_the_frames_in_it", || {
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        pair();
        ip("addr add 10.0.0.1/24 dev memlane");
        ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev memlane");
        let folder = tempfile::tempdir().unwrap();
        let ports = format!("[[port]]\nname = \"guest\"\nvhost-user = \"guest.sock\"\n[[port]]\nname = \"web\"\n{PORT}\n");
        write(folder.path(), "net.toml", &format!("control = \"control\"\n{ports}"));
        let mut first = Running::start(memlane(folder.path(), &["up", "net.toml"]));
        let mut guest = ToyGuest::builder()
            .mac(Host::v4(GUEST).mac)
            .features(features::LINUX)
            .timeout(TIMEOUT)
            .connect(folder.path().join("guest.sock"))
            .unwrap();
        let socket = UdpSocket::bind("10.0.0.1:1000").unwrap();
        socket.connect("10.0.0.2:1000").unwrap();
        socket.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        // The kernel may not have activated the veth pair yet, and drops frames that it is given before.
        let greet = |guest: &mut ToyGuest, socket: &UdpSocket, length| {
            let hello = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(length));
            let heard = || {
                guest.send(&hello.frame()).unwrap();
                socket.recv(&mut [0; 8]).is_ok_and(|heard| heard == length)
            };
            wait_until(heard, "the kernel to hear the guest");
        };
        greet(&mut guest, &socket, 1);
        let frames = 200_u32;
        let sender = std::thread::spawn(move || {
            for number in 0..frames {
                socket.send(&number.to_be_bytes()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            socket
        });
        let second = Running::start(memlane(folder.path(), &["up", "net.toml", "--takeover"]));
        assert!(first.0.wait().unwrap().success());
        for number in 0..frames {
            let heard = loop {
                let frame = guest.receive(TIMEOUT).unwrap();
                if frame.bytes[12..14] == [8, 0] && frame.bytes[23] == 17 {
                    break frame;
                }
            };
            assert_eq!(heard.bytes[42..46], number.to_be_bytes());
        }
        let socket = sender.join().unwrap();
        // The other way too.
        greet(&mut guest, &socket, 2);
        drop(second);
    });
}
