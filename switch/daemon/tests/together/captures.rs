//! Frames of a running network are captured: once where they are transmitted, once where they are received or dropped, and at no guest's cost.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::command::{Running, memlane, told, wait_until, write};
use crate::common::{BROADCAST, POLL_INTERVAL, TIMEOUT, frame, in_a_namespace, mac};
use crate::tap::{self, GUEST, GUESTS, ip};
use memlane::network::Network;
use memlane::port::PortState;
use memlane::tap::{CaptureOrder, MOST_SNAPLEN, Sight};
use memlane_rig::frames::{Host, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::{Layout, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};

fn port(name: &str, more: &str) -> String {
    format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\n{more}\n")
}

fn up(folder: &Path, text: &str) -> Running {
    write(folder, "net.toml", &format!("control = \"control\"\n{text}"));
    Running::start(memlane(folder, &["up", "net.toml"]))
}

fn builder(index: usize) -> memlane_rig::guest::GuestBuilder {
    ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20))
}

fn guest(folder: &Path, name: &str, index: usize) -> ToyGuest {
    builder(index).connect(folder.join(format!("{name}.sock"))).unwrap()
}

/// A capture that runs, into the file `c`.
struct Capture(Child);

impl Capture {
    /// Returns once the capture has begun.
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let arguments = [&["capture", "net.toml", "-w", "c"], arguments].concat();
        let mut child = memlane(folder, &arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stderr.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(line.contains("the capture has begun"), "{line}");
        // Further output is short and stays unread.
        std::mem::forget(output);
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    /// Waits until it ends by itself.
    fn wait(mut self) {
        let mut status = None;
        wait_until(
            || {
                status = self.0.try_wait().unwrap();
                status.is_some()
            },
            "the capture ends",
        );
        assert!(status.unwrap().success());
    }

    /// Ends it as Ctrl-C does.
    fn end(self) {
        self.signal(Signal::SIGINT);
        self.wait();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// These fields of each frame of the file, as tshark reads them.
fn tshark(folder: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    tshark_that(folder, &[], fields)
}

/// The same with further options of tshark.
fn tshark_that(folder: &Path, options: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-r", "c", "-T", "fields"]).args(options).current_dir(folder).env("HOME", folder);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = command.output().unwrap_or_else(|error| panic!("tshark (Debian package; lab/install-packages test): {error}"));
    assert!(output.status.success(), "{}", told(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

const SIGHT: [&str; 5] = ["frame.interface_name", "frame.packet_flags_direction", "frame.packet_id", "frame.comment", "frame.len"];
const OUTBOUND: &str = "0x00000002";
const INBOUND: &str = "0x00000001";

/// `memlane policy try` judges the frames of a capture by their ports, whatever the order in the file.
#[test]
fn a_policy_is_tried_on_a_capture() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ports = port("web", "groups = [\"front\"]") + &port("db", "");
    let _running = up(folder, &ports);
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    let to = |index: u8, port: u16| {
        let [here, there] = [index, 1 - index].map(|index| Host { mac: mac(index.into()), ..Host::v4(index.into()) });
        Packet::tcp(here.port(40_000), there.port(port), 1, []).frame()
    };
    // Both are known, so that no further frame is flooded.
    db.send(&to(1, 1)).unwrap();
    web.receive(TIMEOUT).unwrap();
    let capture = Capture::start(folder, &["-c", "48"]);
    for number in 0..12 {
        web.send(&to(0, if number < 5 { 443 } else { 5432 })).unwrap();
        db.receive(TIMEOUT).unwrap();
        db.send(&to(1, 40_000)).unwrap();
        web.receive(TIMEOUT).unwrap();
    }
    capture.wait();
    let rule = "[[policy]]\nfrom = \"front\"\nprotocol = \"tcp\"\nports = [443]\naction = \"deny\"\n";
    write(folder, "new.toml", &format!("{ports}{rule}"));
    let tried =
        |arguments: &[&str]| memlane(folder, &[&["policy", "try", "new.toml", "--pcap"], arguments].concat()).output().unwrap();
    let output = tried(&["c", "--json"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("24 frames judged"), "{}", told(&output));
    let ports: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let denials = &ports[0]["denials"];
    assert_eq!((ports.as_array().unwrap().len(), denials.as_array().unwrap().len()), (1, 1), "{ports}");
    let [one, from] = [&denials[0], &ports[0]["port"]];
    assert_eq!((from, &one["to"], &one["frames"], &one["destination-port"]), (&"web".into(), &"db".into(), &5.into(), &443.into()));
    let bytes = std::fs::read(folder.join("c")).unwrap();
    std::fs::write(folder.join("cut"), &bytes[..bytes.len() / 2 + 3]).unwrap();
    assert!(tried(&["cut"]).status.success(), "the frames before the end are judged");
    std::fs::write(folder.join("other"), b"GIF89a and more of it").unwrap();
    for (file, cause) in [("other", "neither pcap nor pcapng"), ("none", "No such file")] {
        let output = tried(&[file]);
        assert!(!output.status.success() && told(&output).contains(cause), "{}", told(&output));
    }
}

#[test]
fn every_frame_is_there_once_at_each_end_with_one_number() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("workers = 2\n{}{}", port("web", ""), port("db", "")));
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    db.send(&frame(mac(1), [0xff; 6], 60, 0)).unwrap();
    web.receive(TIMEOUT).unwrap();
    // MEMLANE_CAPTURED is another number.
    let frames = std::env::var("MEMLANE_CAPTURED").map_or(10_000, |frames| frames.parse().expect("MEMLANE_CAPTURED is a number"));
    let capture = Capture::start(folder, &["-c", &(2 * frames).to_string()]);
    for number in 0..frames {
        web.send(&frame(mac(0), mac(1), 60 + number % 1000, number as u64)).unwrap();
        db.receive(TIMEOUT).unwrap();
    }
    capture.wait();
    let seen = tshark(folder, &SIGHT);
    assert_eq!(seen.len(), 2 * frames);
    let mut sights: BTreeMap<(&str, &str), Vec<(&str, &str)>> = BTreeMap::new();
    for sight in &seen {
        sights.entry((&sight[2], &sight[4])).or_default().push((&sight[0], &sight[1]));
        assert_eq!(sight[3], "");
    }
    assert_eq!(sights.len(), frames, "one number a frame, and its length with it");
    // A worker that loses its CPU between a frame's moment and its copy comes late, so their order in the file does not matter.
    sights.values_mut().for_each(|sights| sights.sort());
    assert!(sights.values().all(|sights| sights[..] == [("db", INBOUND), ("web", OUTBOUND)]));
}

#[test]
fn a_flooded_frame_is_received_by_all_others_and_a_link_delays_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let link = "link = { delay = \"30ms\" }";
    let _running = up(folder, &format!("{}{}{}", port("web", ""), port("db", ""), port("far", link)));
    let (mut web, _db, mut far) = (guest(folder, "web", 0), guest(folder, "db", 1), guest(folder, "far", 2));
    let capture = Capture::start(folder, &["-c", "3"]);
    web.send(&frame(mac(0), [0xff; 6], 60, 1)).unwrap();
    far.receive(TIMEOUT).unwrap();
    capture.wait();
    let seen = tshark(folder, &["frame.interface_name", "frame.packet_id", "frame.time_relative"]);
    let names: Vec<_> = seen.iter().map(|sight| sight[0].as_str()).collect();
    assert_eq!(names, ["web", "db", "far"]);
    assert!(seen.iter().all(|sight| sight[1] == seen[0][1]));
    assert!(seen[2][2].parse::<f64>().unwrap() >= 0.03, "{seen:?}");
}

#[test]
fn a_dropped_frame_has_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let anti_spoof = "mac = \"02:00:00:00:00:00\"\nanti-spoof = \"mac\"";
    let lossy = "link = { loss = \"100%\" }";
    let _running =
        up(folder, &format!("stall-timeout-ms = 50\n{}{}{}", port("web", anti_spoof), port("db", ""), port("lossy", lossy)));
    let (mut web, mut db, mut lossy) = (guest(folder, "web", 0), builder(1), guest(folder, "lossy", 2));
    let few = ReceiveBuffers { count: Some(4), repost: false, ..ReceiveBuffers::SMALL };
    let mut db = {
        db = db.receive_buffers(few);
        db.connect(folder.join("db.sock")).unwrap()
    };
    // Where they are is learned.
    lossy.send(&frame(mac(2), mac(9), 60, 0)).unwrap();
    db.send(&frame(mac(1), mac(9), 60, 0)).unwrap();
    std::thread::sleep(POLL_INTERVAL);
    let capture = Capture::start(folder, &["--drops"]);
    web.send(&frame(mac(7), mac(1), 60, 1)).unwrap();
    web.send(&frame(mac(0), mac(0), 61, 1)).unwrap();
    web.send(&frame(mac(0), mac(2), 62, 1)).unwrap();
    for _ in 0..20 {
        web.send(&frame(mac(0), mac(1), 63, 1)).unwrap();
    }
    let comments = || {
        let seen = tshark(folder, &SIGHT);
        let comments = seen.into_iter().map(|sight| (sight[0].clone(), sight[1].clone(), sight[3].clone(), sight[4].clone()));
        comments.collect::<std::collections::BTreeSet<_>>()
    };
    let of = |name: &str, direction: &str, reason: &str, length: &str| {
        (name.to_owned(), direction.to_owned(), format!("dropped: {reason}"), length.to_owned())
    };
    let expected = [
        of("web", OUTBOUND, "spoofed-source", "60"),
        of("web", OUTBOUND, "same-port", "61"),
        of("lossy", INBOUND, "link-loss", "62"),
        of("db", INBOUND, "receiver-stalled", "63"),
    ];
    wait_until(|| expected.iter().all(|one| comments().contains(one)), "each reason is in the file");
    capture.end();
    assert!(comments().iter().all(|sight| sight.2.starts_with("dropped: ")), "nothing but drops");
}

#[test]
fn a_filter_and_ports_select_frames_and_the_snaplen_cuts_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    let capture = Capture::start(folder, &["db", "-f", "ether src 02:00:00:00:00:00 and less 100", "--snaplen", "40", "-c", "1"]);
    for (length, from) in [(200, 0), (90, 0)] {
        web.send(&frame(mac(from), mac(1), length, 1)).unwrap();
        db.receive(TIMEOUT).unwrap();
    }
    capture.wait();
    let seen = tshark(folder, &["frame.interface_name", "frame.len", "frame.cap_len"]);
    assert_eq!(seen, [["db", "90", "40"]]);
}

/// Frames of each kind with a checksum that is left to the device, from guest 0 to guest 1.
fn partial_frames() -> Vec<(memlane_rig::frames::NetHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    for version in [4, 6] {
        let host = |index: usize| {
            let number = index as u16 + 1;
            Host { mac: mac(index), ..if version == 4 { Host::v4(number) } else { Host::v6(number) } }
        };
        let (from, to, large) = (host(0), host(1), vec![7; 20_001]);
        frames.push(Packet::tcp(from, to, 1, [1, 2, 3]).partial());
        frames.push(Packet::udp(from, to, [1; 50]).partial());
        frames.push(Packet::tcp(from, to, 1, large.clone()).gso(1448));
        frames.push(Packet::udp(from, to, large).gso(1400));
    }
    frames
}

const CHECKSUMS: [&str; 6] = ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];

#[test]
fn checksums_that_are_left_to_the_device_are_complete_in_the_file() {
    const STATUS: [&str; 5] = ["frame.len", "ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "frame.comment"];
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let offloads = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_USO;
    let mut web = builder(0).features(features::LINUX | offloads).connect(folder.join("web.sock")).unwrap();
    // The guest has none of the receive offloads, so that it receives segments: the file has the frame as it was transmitted.
    let receive = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_USO4 | features::GUEST_USO6;
    let mut db = builder(1).features(features::LINUX & !receive).connect(folder.join("db.sock")).unwrap();
    db.send(&frame(mac(1), [0xff; 6], 60, 0)).unwrap();
    web.receive(TIMEOUT).unwrap();
    let frames = partial_frames();
    let all = (2 * frames.len()).to_string();
    let mut send = |web: &mut ToyGuest| {
        for (header, bytes) in &frames {
            web.send_with(header, &Layout::single(), bytes).unwrap();
            db.receive(TIMEOUT).unwrap();
            while db.receive(POLL_INTERVAL).is_ok() {}
        }
    };
    let capture = Capture::start(folder, &["-c", &all]);
    send(&mut web);
    capture.wait();
    let seen = tshark_that(folder, &CHECKSUMS, &STATUS);
    assert_eq!(seen.len(), 2 * frames.len());
    for (seen, (_, bytes)) in seen.iter().zip(frames.iter().flat_map(|frame| [frame, frame])) {
        assert_eq!(seen[0], bytes.len().to_string(), "each as it was transmitted");
        // 1 is good, 0 bad, 2 not verified.
        let verified: Vec<_> = seen[1..4].iter().filter(|status| !status.is_empty()).collect();
        assert!(!verified.is_empty() && verified.iter().all(|status| *status == "1") && seen[4].is_empty(), "{seen:?}");
    }
    let capture = Capture::start(folder, &["--snaplen", "52", "-c", &all]);
    send(&mut web);
    capture.wait();
    let seen = tshark_that(folder, &CHECKSUMS, &STATUS);
    assert_eq!(seen.len(), 2 * frames.len());
    let is_marked = |seen: &Vec<String>| seen[2] != "0" && seen[3] != "0" && seen[4].starts_with("partial checksum");
    assert!(seen.iter().all(is_marked), "{seen:?}");
}

#[test]
fn a_reader_that_stands_still_costs_guests_nothing_and_the_file_tells_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    let capture = Capture::start(folder, &[]);
    capture.signal(Signal::SIGSTOP);
    // More than all buffers on the way hold.
    const FRAMES: u64 = 12_000;
    const LENGTH: usize = 9000;
    for number in 0..FRAMES {
        web.send(&frame(mac(0), mac(1), LENGTH, number)).unwrap();
        assert_eq!(db.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), LENGTH, number), "no frame is lost");
    }
    capture.signal(Signal::SIGCONT);
    let missed = || {
        let output = memlane(folder, &["events", "net.toml", "--json"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().rfind(|line| line.contains("capture-ended")).map(str::to_owned)?;
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        Some((event["frames"].as_u64().unwrap(), event["missed"].as_u64().unwrap()))
    };
    wait_until(
        || {
            web.send(&frame(mac(0), mac(1), 60, 0)).unwrap();
            db.receive(TIMEOUT).unwrap();
            tshark(folder, &["frame.drop_count"]).iter().any(|fields| fields[0].parse::<u64>().is_ok_and(|count| count > 0))
        },
        "the file tells of missed frames",
    );
    capture.end();
    wait_until(|| missed().is_some(), "the capture has ended");
    let (frames, missed) = missed().unwrap();
    assert!(missed > 0 && frames + missed >= 2 * FRAMES, "{frames} captured, {missed} missed");
}

#[test]
fn what_cannot_be_captured_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &port("web", ""));
    let fails = |arguments: &[&str], code: i32| {
        let output = memlane(folder, &[&["capture", "net.toml"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", told(&output));
        told(&output)
    };
    assert!(fails(&["-w", "c", "-f", "udp prt 53"], 2).contains("the filter 'udp prt 53' does not compile"));
    assert!(fails(&["nobody", "-w", "c"], 1).contains("no port 'nobody'"));
    assert!(fails(&["-w", "no/such/folder"], 1).contains("cannot write no/such/folder: "));
    assert!(fails(&["--ring", "3"], 2).contains("ten files of 100 MiB"));
    // Written past the command, a program that loops.
    let program = serde_json::json!({ "program": [[5, 0, 0, 4_294_967_295_u32]] });
    let mut stream = std::os::unix::net::UnixStream::connect(folder.join("control")).unwrap();
    let body = program.to_string();
    let head = format!("POST /v1/capture HTTP/1.0\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    std::io::Write::write_all(&mut stream, format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.0 422") && answer.contains("instruction 0 of the filter program jumps past the end"),
        "{answer}"
    );
}

#[test]
fn a_full_disk_ends_the_capture_and_the_network_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let output = memlane(folder, &["capture", "net.toml", "-w", "/dev/full"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told(&output).contains("cannot write /dev/full: ") && told(&output).contains("the network goes on"),
        "{}",
        told(&output)
    );
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    web.send(&frame(mac(0), mac(1), 60, 1)).unwrap();
    db.receive(TIMEOUT).unwrap();
}

#[test]
fn a_port_that_goes_and_another_that_comes_are_two_interfaces() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let mut web = guest(folder, "web", 0);
    let capture = Capture::start(folder, &["-c", "2"]);
    web.send(&frame(mac(0), mac(9), 60, 1)).unwrap();
    std::thread::sleep(POLL_INTERVAL);
    drop(web);
    crate::command::printed(folder, &["detach", "net.toml", "web"]);
    crate::command::printed(folder, &["attach", "net.toml", "new", "--vhost-user", "new.sock"]);
    let mut new = guest(folder, "new", 3);
    new.send(&frame(mac(3), mac(9), 61, 1)).unwrap();
    capture.wait();
    let seen = tshark(folder, &["frame.interface_name", "frame.len"]);
    assert_eq!(seen, [["web", "60"], ["new", "61"]]);
}

#[test]
fn a_port_with_the_number_of_one_that_was_captured_is_not_captured() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let capture = Capture::start(folder, &["web", "-c", "1"]);
    crate::command::printed(folder, &["detach", "net.toml", "web"]);
    crate::command::printed(folder, &["attach", "net.toml", "new", "--vhost-user", "new.sock"]);
    let mut new = guest(folder, "new", 3);
    // More than the capture's queues hold.
    capture.signal(Signal::SIGSTOP);
    for number in 0..8000 {
        if number % 128 == 0 {
            new.wait_sent(TIMEOUT).unwrap();
        }
        new.send(&frame(mac(3), mac(9), 9000, number)).unwrap();
    }
    new.wait_sent(TIMEOUT).unwrap();
    capture.signal(Signal::SIGCONT);
    // The requested port comes back, with another number.
    crate::command::printed(folder, &["attach", "net.toml", "web", "--vhost-user", "again.sock"]);
    let mut web = guest(folder, "again", 0);
    web.send(&frame(mac(0), mac(9), 60, 1)).unwrap();
    capture.wait();
    let ended = || {
        let events = crate::command::printed(folder, &["events", "net.toml", "--json"]);
        events.lines().find(|line| line.contains("capture-ended")).map(str::to_owned)
    };
    wait_until(|| ended().is_some(), "the capture has ended");
    assert!(ended().unwrap().contains("\"missed\":0"), "the other port's frames took no room: {}", ended().unwrap());
    assert_eq!(tshark(folder, &["frame.interface_name", "frame.len"]), [["web", "60"]]);
}

#[test]
fn frames_that_wait_for_the_reader_stay_those_of_their_port() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, &format!("{}{}", port("web", ""), port("db", "")));
    let mut web = guest(folder, "web", 0);
    let capture = Capture::start(folder, &[]);
    capture.signal(Signal::SIGSTOP);
    // More than all buffers on the way hold, so that the worker's queue is full.
    for number in 0..8000 {
        // The guest has 256 send buffers, and a busy machine runs the worker late.
        if number % 128 == 0 {
            web.wait_sent(TIMEOUT).unwrap();
        }
        web.send(&frame(mac(0), mac(9), 9000, number)).unwrap();
    }
    web.wait_sent(TIMEOUT).unwrap();
    drop(web);
    crate::command::printed(folder, &["detach", "net.toml", "web"]);
    crate::command::printed(folder, &["attach", "net.toml", "new", "--vhost-user", "new.sock"]);
    let mut new = guest(folder, "new", 3);
    capture.signal(Signal::SIGCONT);
    let frames = |name: &str| {
        let seen = tshark(folder, &["frame.interface_name", "frame.len"]);
        seen.into_iter().filter(|seen| seen[0] == name).map(|seen| seen[1].clone()).collect::<Vec<_>>()
    };
    let last_is_written = || {
        new.send(&frame(mac(3), mac(9), 61, 1)).unwrap();
        std::thread::sleep(POLL_INTERVAL);
        frames("new").contains(&"61".into())
    };
    wait_until(last_is_written, "the queue is empty");
    capture.end();
    let ended = || {
        let events = crate::command::printed(folder, &["events", "net.toml", "--json"]);
        events.lines().find(|line| line.contains("capture-ended")).map(str::to_owned)
    };
    wait_until(|| ended().is_some(), "the capture has ended");
    assert!(!ended().unwrap().contains("\"missed\":0"), "the queue was full");
    assert!(frames("web").len() > 100 && frames("new").iter().all(|length| length == "61"));
}

/// Waits until `capture` has a frame with these sights and no others, by the names of ports.
fn await_sights(capture: &mut memlane::network::Capture, network: &Network, wanted: &[(&str, Sight)]) {
    let name = |port| network.port(port).unwrap().name.clone();
    let mut frames: BTreeMap<u32, Vec<(String, Sight)>> = BTreeMap::new();
    let is_wanted = |sights: &Vec<(String, Sight)>| {
        sights.len() == wanted.len() && wanted.iter().all(|&(port, sight)| sights.contains(&(port.to_owned(), sight)))
    };
    wait_until(
        || {
            capture.read(usize::MAX, u64::MAX, |seen, _| frames.entry(seen.id).or_default().push((name(seen.port), seen.sight)));
            frames.values().any(is_wanted)
        },
        &format!("a frame has the sights {wanted:?}"),
    );
}

/// Without a restart, and without a mirror port.
#[test]
fn every_kind_of_port_is_captured() {
    in_a_namespace("captures::every_kind_of_port_is_captured", || {
        tap::silence();
        ip("link add veth-web type veth peer name far");
        ip("link set veth-web up");
        ip("link set far up");
        ip("addr add 10.0.1.1/24 dev far");
        let folder = tempfile::tempdir().unwrap();
        let stream = folder.path().join("stream");
        let kinds =
            ["kernel\"\ntap = \"memlane", &format!("stream\"\nstream = \"{}", stream.display()), "far\"\naf-packet = \"veth-web"];
        let kinds: String = kinds.iter().map(|kind| format!("[[port]]\nname = \"{kind}\"\n")).collect();
        let mut bed = tap::Bed::of(features::LINUX, &format!("{GUESTS}{kinds}[[port]]\nname = \"sink\"\nnull = true\n"));
        let mut stream = std::os::unix::net::UnixStream::connect(stream).unwrap();
        let network = std::sync::Arc::clone(bed.daemon.network());
        wait_until(|| network.ports().iter().all(|port| port.state() == PortState::Running), "all ports run");
        let order = CaptureOrder { snaplen: MOST_SNAPLEN, ..CaptureOrder::default() };
        let mut capture = network.capture(order).unwrap();
        let mut sees = |wanted: &[(&str, Sight)]| await_sights(&mut capture, &network, wanted);

        let guest = Host::v4(GUEST).mac;
        bed.guest.send(&frame(guest, BROADCAST, 60, 1)).unwrap();
        let others = ["kernel", "stream", "far", "sink"].map(|name| (name, Sight::Receive));
        sees(&[&[("guest", Sight::Transmit)], &others[..]].concat());
        bed.socket.send(b"hello").unwrap();
        sees(&[("kernel", Sight::Transmit), ("guest", Sight::Receive)]);
        let bytes = frame(mac(9), guest, 60, 2);
        std::io::Write::write_all(&mut stream, &[&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()).unwrap();
        sees(&[("stream", Sight::Transmit), ("guest", Sight::Receive)]);
        ip("neigh add 10.0.1.2 lladdr 02:00:00:00:00:02 dev far");
        std::net::UdpSocket::bind("10.0.1.1:0").unwrap().send_to(b"hello", "10.0.1.2:9").unwrap();
        sees(&[("far", Sight::Transmit), ("guest", Sight::Receive)]);
        bed.daemon.stop();
    });
}
