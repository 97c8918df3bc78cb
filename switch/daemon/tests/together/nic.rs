//! A segment with a NIC as its uplink: one end of a veth pair, with the kernel as the other host at the other end.

use std::path::Path;

use crate::command::{Running, memlane, printed, write};
use crate::common::{POLL_INTERVAL, TIMEOUT, in_a_namespace, wait_until};
use crate::sandbox::refuse;
use crate::tap::{Bed, GUEST, GUESTS, KERNEL, guest, ip, kernel_socket, payload, segment, set_addresses, silence};
use memlane::config::Config;
use memlane::daemon::Daemon;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane::uplink::UplinkReport;
use memlane_rig::frames::{Host, NetHeader, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::ToyGuest;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

const SEGMENT: &str = "[[segment]]\nname = \"lan\"\nnic = \"eth1\"\n";

/// The veth pair: the other host's end is called `memlane`, as the TAP of other tests. `options` are those of the NIC.
fn pair(options: &str) {
    ip(&format!("link add eth1{options} type veth peer name memlane address 02:00:00:00:00:01"));
    ip("link set eth1 up");
    ip("link set memlane up");
}

fn bed(wanted: features::Features) -> Bed {
    silence();
    pair("");
    let bed = Bed::of(wanted, &format!("{SEGMENT}{GUESTS}"));
    assert_eq!(socket(&bed).as_deref(), Some("af-xdp"), "{:?}", report(&bed));
    bed
}

fn report(bed: &Bed) -> UplinkReport {
    bed.daemon.uplinks().remove(0)
}

/// Kind of the socket at the NIC.
fn socket(bed: &Bed) -> Option<String> {
    report(bed).nic.unwrap().socket
}

/// A frame goes in each direction.
fn exchange(bed: &mut Bed) {
    let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
    bed.guest_speaks(&NetHeader::default(), &packet.frame(), &packet.payload, &[100]);
    bed.socket.send(&packet.payload).unwrap();
    assert_eq!(bed.guest_hears().1, packet.payload);
}

#[test]
fn frames_pass_both_ways_with_whole_checksums() {
    in_a_namespace("nic::frames_pass_both_ways_with_whole_checksums", || {
        let mut bed = bed(features::LINUX);
        for length in [1, 100, 1472] {
            let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(length));
            bed.guest_speaks_plainly_and_without_checksum(&packet, length);
            bed.socket.send(&packet.payload).unwrap();
            assert_eq!(bed.guest_hears().1, packet.payload);
        }
        assert_eq!(report(&bed).totals.drops.values().sum::<u64>(), 0);
        bed.daemon.stop();
    });
}

#[test]
fn guests_without_offloads_receive_whole_checksums() {
    in_a_namespace("nic::guests_without_offloads_receive_whole_checksums", || {
        let mut bed = bed(features::PLAIN);
        bed.socket.send(&payload(500)).unwrap();
        let (header, heard) = bed.guest_hears();
        assert!(!header.needs_checksum && heard == payload(500));
        bed.daemon.stop();
    });
}

#[test]
fn gso_frames_are_segmented_for_the_nic_and_by_its_other_side() {
    in_a_namespace("nic::gso_frames_are_segmented_for_the_nic_and_by_its_other_side", || {
        let mut bed = bed(features::LINUX);
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(5500));
        let (header, frame) = packet.gso(1000);
        bed.guest_speaks(&header, &frame, &packet.payload, &[1000, 1000, 1000, 1000, 1000, 500]);
        segment(&bed.socket, 1000);
        bed.socket.send(&payload(30_500)).unwrap();
        let heard: Vec<u8> = (0..31).flat_map(|_| bed.guest_hears().1).collect();
        assert!(heard == payload(30_500));
        bed.daemon.stop();
    });
}

#[test]
fn many_frames_keep_their_order() {
    in_a_namespace("nic::many_frames_keep_their_order", || {
        let mut bed = bed(features::LINUX);
        // More than the frames of the socket, which are used again and again.
        bed.keeps_order(60, 100);
        bed.daemon.stop();
    });
}

/// The cable, and not the interface: the other end of the pair goes down.
#[test]
fn a_nic_without_a_carrier_is_told_by_event_metric_status_and_causes() {
    in_a_namespace("nic::a_nic_without_a_carrier_is_told_by_event_metric_status_and_causes", || {
        pair("");
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let ports = ["a", "b"].map(|name| format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\n")).concat();
        write(folder, "net.toml", &format!("control = \"control\"\n{SEGMENT}{ports}"));
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut command = memlane(folder, &["up", "net.toml", "--sandbox", "none"]);
        command.stderr(log);
        let _running = Running::start(command);
        let words = |arguments: &[&str]| printed(folder, arguments).split_whitespace().collect::<Vec<_>>().join(" ");
        let healthy = || {
            let mut stream = std::os::unix::net::UnixStream::connect(folder.join("control")).unwrap();
            std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.0\r\nhost: a\r\n\r\n").unwrap();
            let mut text = String::new();
            std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
            let line = text.lines().find(|line| line.starts_with("memlane_uplink_healthy")).unwrap().to_owned();
            line.ends_with(" 1")
        };
        assert!(healthy() && !words(&["why", "net.toml", "a"]).contains("carrier"));
        ip("link set memlane down");
        wait_until(|| !healthy(), "the metric tells");
        for command in [&["status", "net.toml"][..], &["why", "net.toml", "a"], &["why", "net.toml", "b"], &["why", "net.toml"]] {
            let said = words(command);
            assert!(said.contains("NIC eth1 is down or has no carrier"), "{command:?}: {said}");
        }
        let events = || words(&["events", "net.toml"]);
        assert!(events().contains("uplink:lan: interface eth1 has no carrier"), "{}", events());
        let logged = std::fs::read_to_string(folder.join("log")).unwrap();
        assert!(logged.contains("uplink:lan: interface eth1 has no carrier"), "{logged}");
        ip("link set memlane up");
        wait_until(healthy, "it has a carrier again");
        wait_until(|| events().contains("interface eth1 has a carrier again"), "that is told");
        assert!(!words(&["status", "net.toml"]).contains("no carrier"));
    });
}

#[test]
fn a_nic_that_is_down_is_an_absent_receiver() {
    in_a_namespace("nic::a_nic_that_is_down_is_an_absent_receiver", || {
        let mut bed = bed(features::LINUX);
        ip("link set eth1 down");
        let packet = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(100));
        // Frames of the first batch are sent when it is up again.
        let is_dropped = || {
            // The ring is full while the worker gets no CPU.
            let _ = bed.guest.send(&packet.frame());
            report(&bed).totals.drops.contains_key(DropReason::ReceiverAbsent.name())
        };
        wait_until(is_dropped, "frames are dropped");
        ip("link set eth1 up");
        ip("neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev memlane");
        bed.socket.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        let is_heard = || bed.guest.send(&packet.frame()).is_ok() && bed.socket.recv(&mut [0; 100]).is_ok();
        wait_until(is_heard, "frames pass again");
        bed.daemon.stop();
    });
}

#[test]
fn the_uplink_waits_for_its_nic_and_finds_the_next_of_its_name() {
    in_a_namespace("nic::the_uplink_waits_for_its_nic_and_finds_the_next_of_its_name", || {
        let mut bed = bed(features::LINUX);
        for _ in 0..2 {
            ip("link del eth1");
            let state = |bed: &Bed| bed.daemon.network().find("uplink:lan").unwrap().state();
            let told = |bed: &Bed| report(bed).trouble.unwrap_or_default();
            let is_told =
                || state(&bed) == PortState::Waiting && told(&bed).contains("its NIC eth1 cannot be used: No such device");
            wait_until(is_told, "it is told");
            assert_eq!(socket(&bed), None);
            pair("");
            set_addresses();
            wait_until(|| state(&bed) == PortState::Running && report(&bed).trouble.is_none(), "it is found again");
            assert_eq!(socket(&bed).as_deref(), Some("af-xdp"));
            exchange(&mut bed);
        }
        bed.daemon.stop();
    });
}

#[test]
fn a_nic_of_several_receive_queues_is_used_by_af_packet_and_the_remedy_told() {
    in_a_namespace("nic::a_nic_of_several_receive_queues_is_used_by_af_packet_and_the_remedy_told", || {
        silence();
        pair(" numrxqueues 2 numtxqueues 2");
        let mut bed = Bed::of(features::LINUX, &format!("{SEGMENT}{GUESTS}"));
        assert_eq!(socket(&bed).as_deref(), Some("af-packet"));
        let advice = report(&bed).advice.unwrap();
        assert!(advice.contains("AF_PACKET") && advice.contains("2 receive queues: ethtool -L eth1 combined 1"), "{advice}");
        exchange(&mut bed);
        bed.daemon.stop();
    });
}

/// The kernel is one where CONFIG_XDP_SOCKETS is not set.
#[test]
fn on_a_kernel_without_af_xdp_the_nic_is_used_by_af_packet() {
    in_a_namespace("nic::on_a_kernel_without_af_xdp_the_nic_is_used_by_af_packet", || {
        let family = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::AF_XDP as u64).unwrap();
        refuse(libc::SYS_socket, vec![SeccompRule::new(vec![family]).unwrap()], libc::EAFNOSUPPORT);
        silence();
        pair("");
        let mut bed = Bed::of(features::LINUX, &format!("{SEGMENT}{GUESTS}"));
        assert_eq!(socket(&bed).as_deref(), Some("af-packet"));
        let advice = report(&bed).advice.unwrap();
        assert!(advice.contains("the kernel has no AF_XDP"), "{advice}");
        exchange(&mut bed);
        bed.daemon.stop();
    });
}

/// The report of a network that has a segment with these lines.
fn reported(lines: &str) -> UplinkReport {
    let text = format!("{SEGMENT}{lines}[[port]]\nname = \"a\"\nnull = true\n");
    let daemon = Daemon::start(&Config::parse(&text, "second").unwrap()).unwrap();
    let report = daemon.uplinks().remove(0);
    daemon.stop();
    report
}

#[test]
fn a_nic_whose_mtu_is_less_than_the_segments_is_told_of() {
    in_a_namespace("nic::a_nic_whose_mtu_is_less_than_the_segments_is_told_of", || {
        silence();
        pair("");
        let advice = reported("mtu = 9000\n").advice.unwrap();
        assert!(advice.starts_with("the MTU of eth1 is 1500, less than the segment's 9000: ip link set eth1 mtu 9000"), "{advice}");
        assert_eq!(reported("").advice, None);
        ip("link set eth1 mtu 5000");
        let advice = reported("").advice.unwrap();
        assert!(advice.contains("its MTU is 5000, and AF_XDP takes 3818"), "{advice}");
    });
}

#[test]
fn a_nic_may_be_added_and_removed_while_the_network_runs() {
    in_a_namespace("nic::a_nic_may_be_added_and_removed_while_the_network_runs", || {
        let mut bed = bed(features::LINUX);
        let config = bed.daemon.config();
        assert!(bed.daemon.remove_uplink("lan") && bed.daemon.uplinks().is_empty());
        bed.daemon.add_uplink(&config.uplinks[0]).unwrap();
        wait_until(|| socket(&bed).as_deref() == Some("af-xdp"), "the NIC is used again");
        exchange(&mut bed);
        bed.daemon.stop();
    });
}

/// The process that serves the network has no rights, and another one opens the NIC for it.
#[test]
fn the_process_of_the_network_needs_no_rights_for_its_nic() {
    in_a_namespace("nic::the_process_of_the_network_needs_no_rights_for_its_nic", || {
        silence();
        pair("");
        set_addresses();
        let folder = tempfile::tempdir().unwrap();
        let text = format!("control = \"control\"\n{SEGMENT}{}", GUESTS.replace("SOCKET", "guest.sock"));
        write(folder.path(), "net.toml", &text);
        let running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.0.id())).unwrap();
        let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        // CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_BPF of linux/capability.h.
        assert_eq!(u64::from_str_radix(rights, 16).unwrap() & (1 << 12 | 1 << 13 | 1 << 21 | 1 << 39), 0, "{rights}");
        let mut guest = connected(folder.path());
        let socket = kernel_socket();
        let hello = Packet::udp(Host::v4(GUEST), Host::v4(KERNEL), payload(1));
        for _ in 0..2 {
            guest.send(&hello.frame()).unwrap();
            socket.recv(&mut [0; 1]).unwrap();
            // The next one of that name is opened by the other process, too.
            ip("link del eth1");
            pair("");
            set_addresses();
            socket.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
            let passes = || guest.send(&hello.frame()).is_ok() && socket.recv(&mut [0; 1]).is_ok();
            wait_until(passes, "frames pass again");
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let status = printed(folder.path(), &["status", "net.toml"]);
            assert!(status.contains("NIC eth1, by af-xdp"), "{status}");
        }
    });
}

fn connected(folder: &Path) -> ToyGuest {
    guest(features::LINUX, &folder.join("guest.sock"))
}

#[test]
fn a_nic_that_another_program_has_is_told_of() {
    in_a_namespace("nic::a_nic_that_another_program_has_is_told_of", || {
        let first = bed(features::LINUX);
        let second = reported("");
        assert_eq!(second.nic.unwrap().socket.as_deref(), Some("af-packet"));
        assert!(
            second.advice.as_deref().is_some_and(|advice| advice.contains("another program uses XDP there")),
            "{:?}",
            second.advice
        );
        first.daemon.stop();
    });
}
