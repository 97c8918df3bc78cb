//! Ports without rings: streams of frames, null ports and loopback ports.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Instant;

use crate::command::{self, Running, memlane};
use crate::common::*;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::frames::{GsoKind, Host, NetHeader, Packet, check};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ToyGuest};

/// The address behind the stream.
const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// A network of a guest, port 0, and a stream, port 1, at the socket `s`.
fn bed(top: &str) -> (Bed, PathBuf) {
    let ports = "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\n[[port]]\nname = \"p1\"\nstream = \"FOLDER/s\"\n";
    let bed = Bed::of(&format!("{top}\n{ports}"));
    let path = bed.folder().join("s");
    (bed, path)
}

fn meet(bed: &Bed, path: &PathBuf) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    bed.wait_for(|bed| bed.state(1) == PortState::Running, "the stream's port runs");
    stream
}

fn send(stream: &mut UnixStream, frame: &[u8]) {
    stream.write_all(&(frame.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(frame).unwrap();
}

fn receive(stream: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    frame
}

/// Has the switch learn both MAC addresses.
fn greet(guest: &mut ToyGuest, stream: &mut UnixStream) {
    let hello = frame(OTHER, BROADCAST, 60, 1);
    send(stream, &hello);
    assert_eq!(guest.receive(TIMEOUT).unwrap().bytes, hello);
    let hello = frame(guest.mac(), OTHER, 60, 2);
    guest.send(&hello).unwrap();
    assert_eq!(receive(stream), hello);
}

#[test]
fn frames_of_all_lengths_pass_both_ways() {
    let (bed, path) = bed("");
    let (mut guest, mut stream) = (bed.guest(0), meet(&bed, &path));
    greet(&mut guest, &mut stream);
    for (number, length) in [14, 15, 60, 1514, 9000, 65_535].into_iter().enumerate() {
        let out = frame(guest.mac(), OTHER, length, number as u64);
        guest.send(&out).unwrap();
        assert!(receive(&mut stream) == out, "{length} bytes out");
        let back = frame(OTHER, guest.mac(), length, number as u64);
        send(&mut stream, &back);
        assert!(guest.receive(TIMEOUT).unwrap().bytes == back, "{length} bytes back");
    }
}

#[test]
fn frames_that_come_in_crumbs_or_all_at_once_keep_their_order() {
    let (bed, path) = bed("");
    let (mut guest, mut stream) = (bed.guest(0), meet(&bed, &path));
    greet(&mut guest, &mut stream);
    let mut bytes = Vec::new();
    let frames: Vec<_> = (0..300_u64).map(|n| frame(OTHER, guest.mac(), 14 + (n as usize * 37) % 1500, n)).collect();
    for frame in &frames {
        bytes.extend((frame.len() as u32).to_be_bytes());
        bytes.extend(frame);
    }
    let writer = std::thread::spawn(move || {
        let (crumbs, lump) = bytes.split_at(5000);
        crumbs.chunks(7).for_each(|crumb| stream.write_all(crumb).unwrap());
        stream.write_all(lump).unwrap();
        stream
    });
    for frame in &frames {
        assert!(guest.receive(TIMEOUT).unwrap().bytes == *frame);
    }
    drop(writer.join().unwrap());
}

#[test]
fn what_a_guest_left_undone_is_done_for_the_stream() {
    let (bed, path) = bed("");
    let send_all = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_ECN | features::HOST_USO;
    let mut guest = bed.guest_like(0, bed.builder(0).features(features::LINUX | send_all));
    let mut stream = meet(&bed, &path);
    greet(&mut guest, &mut stream);
    let host = |mac, number, version| {
        let host = if version == 4 { Host::v4(number) } else { Host::v6(number) };
        Host { mac, ..host }
    };
    for version in [4, 6] {
        let (from, to) = (host(guest.mac(), 1, version), host(OTHER, 2, version));
        for packet in [Packet::tcp(from, to, 7, vec![3; 30_000]), Packet::udp(from, to, vec![5; 30_000])] {
            let (header, bytes) = packet.gso(1448);
            assert_ne!(header.gso, GsoKind::None);
            guest.send_with(&header, &Layout::single(), &bytes).unwrap();
            for segment in packet.segments(1448) {
                let got = receive(&mut stream);
                check(&NetHeader::default(), &got).unwrap_or_else(|flaw| panic!("{flaw:?}"));
                assert!(got == segment.frame());
            }
        }
        let packet = Packet::udp(from, to, vec![7; 99]);
        let (header, bytes) = packet.partial();
        guest.send_with(&header, &Layout::single(), &bytes).unwrap();
        assert_eq!(receive(&mut stream), packet.frame());
    }
}

/// The guest's frames come without their virtio-net header, as at libkrun's passt interface.
#[test]
fn checksums_left_undone_are_completed_unless_they_are_to_be_kept_and_counted() {
    for (key, completes) in [("checksums = \"complete\"", true), ("", true), ("checksums = \"keep\"", false)] {
        let ports = "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\n[[port]]\nname = \"p1\"\nstream = \"FOLDER/s\"\n";
        let bed = Bed::of(&format!("{ports}{key}\n"));
        let (mut guest, mut stream) = (bed.guest(0), meet(&bed, &bed.folder().join("s")));
        greet(&mut guest, &mut stream);
        let (from, to) = (Host { mac: OTHER, ..Host::v4(1) }, Host { mac: guest.mac(), ..Host::v4(2) });
        for packet in (0..8).map(|n| Packet::tcp(from, to, n, vec![n as u8; 700])) {
            let undone = packet.partial().1;
            send(&mut stream, &undone);
            let got = guest.receive(TIMEOUT).unwrap();
            assert!(got.bytes == if completes { packet.frame() } else { undone });
            assert_eq!(check(&got.header, &got.bytes).is_ok(), completes);
            // A frame with a full checksum keeps it.
            send(&mut stream, &packet.frame());
            assert!(guest.receive(TIMEOUT).unwrap().bytes == packet.frame());
        }
        assert_eq!(bed.totals(1).undone_checksums, if completes { 0 } else { 8 });
    }
}

#[test]
fn who_goes_may_come_back() {
    let (bed, path) = bed("");
    let mut guest = bed.guest(0);
    for _ in 0..20 {
        let mut stream = meet(&bed, &path);
        greet(&mut guest, &mut stream);
        drop(stream);
        bed.wait_for(|bed| bed.state(1) == PortState::Waiting, "the port waits for the next");
    }
}

#[test]
fn a_frame_that_is_too_long_costs_the_stream_its_session_and_nobody_else_anything() {
    let (bed, path) = bed("");
    let mut guest = bed.guest(0);
    let mut stream = meet(&bed, &path);
    stream.write_all(&100_000_u32.to_be_bytes()).unwrap();
    bed.wait_for(|bed| matches!(bed.state(1), PortState::Quarantined(_)), "the port is in quarantine");
    assert_eq!(stream.read(&mut [0; 4]).unwrap_or(0), 0, "the connection has ended");
    let mut stream = meet(&bed, &path);
    greet(&mut guest, &mut stream);
    assert_eq!(bed.state(0), PortState::Running);
}

#[test]
fn runts_are_counted() {
    let (bed, path) = bed("");
    let (mut guest, mut stream) = (bed.guest(0), meet(&bed, &path));
    send(&mut stream, &[]);
    send(&mut stream, &[1; 13]);
    greet(&mut guest, &mut stream);
    assert_eq!(bed.drops(1, DropReason::Runt), 2);
}

#[test]
fn who_does_not_read_holds_up_its_sender_only_for_the_stall_timeout() {
    let (bed, path) = bed("stall-timeout-ms = 50");
    let (mut guest, mut stream) = (bed.guest(0), meet(&bed, &path));
    greet(&mut guest, &mut stream);
    let begun = Instant::now();
    let mut number = 0;
    while bed.drops(1, DropReason::ReceiverStalled) + bed.drops(1, DropReason::ReceiverFull) == 0 {
        guest.send(&frame(guest.mac(), OTHER, 60_000, number)).unwrap();
        number += 1;
        assert!(begun.elapsed() < TIMEOUT, "{:?}", bed.totals(1));
    }
    // The frames taken from the ring arrive undamaged and in order once the peer reads; then all frames do again.
    let mut last = None;
    loop {
        let got = receive(&mut stream);
        let number = u64::from_be_bytes(got[14..22].try_into().unwrap());
        assert!(got == frame(guest.mac(), OTHER, 60_000, number) && Some(number) > last);
        last = Some(number);
        stream.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        if stream.peek_nothing() {
            break;
        }
    }
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    greet(&mut guest, &mut stream);
}

/// Whether nothing comes within the read timeout.
trait PeekNothing {
    fn peek_nothing(&self) -> bool;
}

impl PeekNothing for UnixStream {
    fn peek_nothing(&self) -> bool {
        use std::os::fd::AsRawFd;
        let mut byte = 0_u8;
        // SAFETY: one writable byte; the socket is ours.
        let got = unsafe { libc::recv(self.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
        got < 1
    }
}

#[test]
fn a_stop_does_not_wait_for_anybody() {
    let (mut bed, path) = bed("");
    let stream = meet(&bed, &path);
    let begun = Instant::now();
    bed.stop();
    assert!(begun.elapsed() < TIMEOUT / 2);
    assert!(!path.exists(), "the socket is gone");
    drop(stream);
}

#[test]
fn memlane_connects_where_it_is_told_to_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let bed = Bed::of(&format!(
        "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\n[[port]]\nname = \"p1\"\nstream = \"{}\"\nconnect = true\n",
        path.display()
    ));
    let mut guest = bed.guest(0);
    for _ in 0..3 {
        let listener = UnixListener::bind(&path).unwrap();
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        bed.wait_for(|bed| bed.state(1) == PortState::Running, "the port runs");
        greet(&mut guest, &mut stream);
        drop((stream, listener));
        std::fs::remove_file(&path).unwrap();
        bed.wait_for(|bed| bed.state(1) == PortState::Waiting, "the port waits for the next");
    }
}

#[test]
fn what_goes_to_null_is_gone_and_what_goes_to_a_loopback_comes_back() {
    let text = "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\n\
        [[port]]\nname = \"p1\"\nnull = true\nmac = \"02:00:00:00:09:01\"\n\
        [[port]]\nname = \"p2\"\nloopback = true\nmac = \"02:00:00:00:09:02\"\n";
    let bed = Bed::of(text);
    let mut guest = bed.guest(0);
    for number in 0..100 {
        guest.send(&frame(guest.mac(), [2, 0, 0, 0, 9, 1], 60, number)).unwrap();
    }
    bed.wait_for(|bed| bed.totals(1).receive_frames == 100, "all of them are gone");
    for (number, length) in [14, 60, 1514, 65_535].into_iter().enumerate() {
        let address = [2, 0, 0, 0, 9, 2];
        guest.send(&frame(guest.mac(), address, length, number as u64)).unwrap();
        assert!(guest.receive(TIMEOUT).unwrap().bytes == frame(address, guest.mac(), length, number as u64));
    }
    guest.send(&frame(guest.mac(), BROADCAST, 60, 0)).unwrap();
    assert_silent(&mut guest);
}

#[test]
fn a_passt_that_fails_for_ever_is_told_of_and_does_not_fill_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (bin, tries, log) = (folder.path().join("bin"), folder.path().join("tries"), folder.path().join("log"));
    std::fs::create_dir(&bin).unwrap();
    let script =
        format!("#!/bin/sh\n[ \"$1\" = --version ] && exit\necho x >> '{}'\necho 'no way out' >&2\nexit 1\n", tries.display());
    let passt = command::write(&bin, "passt", &script);
    std::fs::set_permissions(&passt, std::fs::Permissions::from_mode(0o755)).unwrap();
    command::write(folder.path(), "net.toml", "[[port]]\nname = \"out\"\npasst = true\n");
    let mut up = memlane(folder.path(), &["up", "net.toml"]);
    up.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())).env("NO_COLOR", "1");
    let running = Running::start({
        up.stderr(std::fs::File::create(&log).unwrap());
        up
    });
    // The network has a sandbox all the same, in which no program can be started.
    let filters = std::fs::read_to_string(format!("/proc/{}/status", running.0.id())).unwrap();
    assert!(filters.contains("\nSeccomp:\t2\n"), "{filters}");
    let count = || std::fs::read_to_string(&tries).unwrap_or_default().lines().count();
    let status = || command::printed(folder.path(), &["status", "net.toml"]);
    wait_until(|| count() == 4 && status().contains("passt ended at once 4 times in a row: no way out"), "status tells of it");
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("no way out")).collect();
    assert_eq!(lines.len(), 3, "the first, the second and the fourth: {text}");
    assert!(lines.iter().all(|line| line.contains("WARN") && line.contains("port=out")), "{text}");
    assert!(text.lines().all(|line| ["WARN", "INFO"].iter().any(|level| line.contains(level))), "nothing is unmarked: {text}");
}
