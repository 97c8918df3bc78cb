//! Recordings: each verdict is made again, by the same code, and is the same.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use crate::command::{Running, memlane, printed, told, write};
use crate::common::*;
use crate::dice::Dice;
use memlane_observe::recording::Frame;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::guest::ToyGuest;

/// Ports with all kinds of rules: addresses, isolation, VLANs, and policy rules with flows.
const PORTS: &str = r#"
workers = 2

[[segment]]
name = "lan"
multicast = "snoop"

[[policy]]
from = "p0"
to = "p1"
protocol = "tcp"
ports = [80, "8000-8099"]
action = "allow"
[[policy]]
from = "p1"
protocol = "udp"
destinations = ["10.0.0.0/30"]
action = "deny"
[[policy]]
default = "deny"
members = ["p1"]

[[port]]
name = "p0"
vhost-user = "FOLDER/p0.sock"
mac = "02:00:00:00:00:00"
addresses = ["10.0.0.0", "fd00::"]
anti-spoof = "all"
segment = "lan"
[[port]]
name = "p1"
vhost-user = "FOLDER/p1.sock"
segment = "lan"
[[port]]
name = "p2"
vhost-user = "FOLDER/p2.sock"
isolated = true
vlan = 10
segment = "lan"
[[port]]
name = "p3"
vhost-user = "FOLDER/p3.sock"
isolated = true
trunk = [10, 20]
reserved = "drop"
segment = "lan"
"#;

fn random(dice: &mut Dice, from: usize) -> Vec<u8> {
    let other = dice.below(4);
    let source = if dice.once_in(20) { dice.below(6) } else { from };
    let to = match dice.below(10) {
        0 => BROADCAST,
        1 => [1, 0x80, 0xc2, 0, 0, dice.below(20) as u8],
        2 => [1, 0, 0x5e, 1, 2, dice.below(3) as u8],
        _ => mac(other),
    };
    let (here, there) = (Host { mac: mac(source), ..Host::v4(source as u16) }, Host { mac: to, ..Host::v4(other as u16) });
    let port = dice.pick(&[80, 81, 8000, 53]);
    let mut frame = match dice.below(4) {
        0 => Packet::udp(here.port(port), there.port(40_000), vec![7; dice.below(300)]).frame(),
        1 => Packet::tcp(there.port(40_000), here.port(port), 1, vec![7; dice.below(2000)]).frame(),
        2 => frame(mac(source), to, 60 + dice.below(900), 7),
        _ => Packet::tcp(here.port(40_000), there.port(port), 1, vec![7; dice.below(300)]).frame(),
    };
    frame[..6].copy_from_slice(&to);
    if dice.once_in(4) {
        frame.splice(12..12, [0x81, 0, 0, dice.pick(&[10_u8, 20, 30, 0])]);
    }
    if dice.once_in(50) {
        let at = dice.below(frame.len());
        frame[at] ^= 1 << dice.below(8);
    }
    frame
}

#[test]
fn each_verdict_is_made_again() {
    let bed = Bed::of(PORTS);
    let recording = bed.daemon().network().record(64 << 20).unwrap();
    let mut replayed = Replayed::of(recording);
    let mut guests: Vec<ToyGuest> = (0..4).map(|index| bed.guest(index)).collect();
    let (mut dice, mut sent) = (Dice::new(), 0_u64);
    while sent < frames() {
        let from = dice.below(4);
        // Frames of one flow, one behind the other, take the fast path.
        let (frame, batch) = (random(&mut dice, from), 1 + dice.below(20));
        for _ in 0..batch {
            guests[from].send(&frame).unwrap();
            sent += 1;
        }
        guests[from].wait_sent(TIMEOUT).unwrap();
        for guest in &mut guests {
            while guest.try_receive().unwrap().is_some() {}
        }
        if dice.once_in(200) {
            replayed.go_on(bed.daemon().network());
        }
    }
    replayed.go_on(bed.daemon().network());
    let Replayed { count, missed, .. } = replayed;
    println!("{sent} frames, {count} records made again, {missed} missed");
    assert!(count >= sent && missed == 0, "{count} of {sent}, {missed} missed");
}

/// A recorder that is larger than the host is refused, and no part of it is allocated.
#[test]
fn a_recorder_fits_the_host() {
    let bed = Bed::of(PORTS);
    let refused = bed.daemon().network().record(usize::MAX).unwrap_err().to_string();
    assert!(refused.starts_with("a recorder of 17592186044415 MiB needs more than half of the "), "{refused}");
    assert!(bed.daemon().network().recording().is_none());
}

/// Frames of a long run, or of a short one.
fn frames() -> u64 {
    std::env::var("MEMLANE_RECORD_FRAMES").map_or(40_000, |frames| frames.parse().unwrap())
}

/// The records of a worker that panics are there for readers that ask when the network has failed.
#[test]
fn a_worker_that_fails_leaves_its_records() {
    let bed = Bed::with("workers = 2", &["", ""]);
    let network = bed.daemon().network();
    let recording = network.record(8 << 20).unwrap();
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    announce(&mut [&mut a, &mut b]);
    for number in 0..100 {
        a.send(&frame(mac(0), mac(1), 100, number)).unwrap();
        assert!(b.receive(TIMEOUT).is_ok());
    }
    let answer = network.order(0, |_| panic!("on purpose"));
    assert!(answer.recv_timeout(TIMEOUT).is_err());
    bed.wait_for(|bed| bed.daemon().network().fatal().cause().is_some(), "the network has failed");
    let records = network.records(&recording, &mut memlane::network::Place::default()).unwrap();
    let count: u64 = records.workers.iter().flat_map(|worker| &worker.chunks).map(|chunk| chunk.count).sum();
    assert!(count >= 102, "{count}");
    assert_eq!(replayed(network, &recording), count);
}

/// Ports of the networks below: addresses, VLANs, and a rule in line 3.
const NET: &str = r#"control = "control"

[[policy]]
from = "web"
to = "db"
protocol = "tcp"
ports = [25]
action = "deny"

[[port]]
name = "web"
vhost-user = "web.sock"
segment = "lan"
mac = "02:00:00:00:00:00"
addresses = ["10.0.0.1"]
anti-spoof = "all"
[[port]]
name = "db"
vhost-user = "db.sock"
segment = "lan"
mac = "02:00:00:00:00:01"
[[port]]
name = "loop"
vhost-user = "loop.sock"
segment = "lan"
[[port]]
name = "access"
vhost-user = "access.sock"
segment = "vlans"
vlan = 10
[[port]]
name = "other"
vhost-user = "other.sock"
segment = "vlans"
vlan = 20
"#;

fn guest(folder: &Path, name: &str, index: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT);
    builder.connect(folder.join(format!("{name}.sock"))).unwrap()
}

fn up(folder: &Path) -> Running {
    write(folder, "net.toml", NET);
    Running::start(memlane(folder, &["up", "net.toml"]))
}

/// A TCP segment with a payload, of which a byte occurs nowhere else.
fn tcp(from: usize, to: usize, port: u16) -> Vec<u8> {
    let host = |index: usize| Host { mac: mac(index), ..Host::v4(index as u16 + 1) };
    Packet::tcp(host(from).port(40_000), host(to).port(port), 1, vec![0xd7; 300]).frame()
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    memlane(folder, arguments).output().unwrap()
}

fn settled(guest: &mut ToyGuest, frames: &[Vec<u8>]) {
    for batch in frames.chunks(100) {
        batch.iter().for_each(|frame| {
            guest.send(frame).unwrap();
        });
        guest.wait_sent(TIMEOUT).unwrap();
    }
}

/// A network with a flight recorder; faults are planted, and the recording is in the file "f".
fn faults(folder: &Path) -> Running {
    let running = up(folder);
    let [mut web, mut db, mut looped, mut access, mut other] =
        [("web", 0), ("db", 1), ("loop", 2), ("access", 3), ("other", 4)].map(|(name, index)| guest(folder, name, index));
    printed(folder, &["record", "net.toml"]);
    settled(&mut db, &[tcp(1, 0, 1)]);
    settled(&mut web, &vec![tcp(0, 1, 443); 40]);
    // A rule, a spoofed address, an address of another lease, a VLAN that the receiver has not, and an address that moves in a loop.
    settled(&mut web, &[tcp(0, 1, 25)]);
    let mut spoofed = tcp(0, 1, 443);
    spoofed[6..12].copy_from_slice(&mac(9));
    let mut stale = tcp(0, 1, 443);
    stale[26..30].copy_from_slice(&[10, 0, 0, 77]);
    settled(&mut web, &[spoofed, stale]);
    settled(&mut other, &[frame(mac(4), BROADCAST, 100, 1)]);
    settled(&mut access, &[frame(mac(3), mac(4), 100, 1)]);
    for number in 0..10 {
        settled(&mut looped, &[frame(mac(8), BROADCAST, 100, number)]);
        settled(&mut db, &[frame(mac(8), BROADCAST, 100, number)]);
    }
    let dumped = run(folder, &["record", "net.toml", "-w", "f", "--dump"]);
    assert!(dumped.status.success(), "{}", told(&dumped));
    running
}

#[test]
fn planted_faults_are_named_from_the_recording_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(faults(folder));
    std::fs::remove_file(folder.join("net.toml")).unwrap();
    let all = printed(folder, &["replay", "f"]);
    assert!(all.contains(" 0 different") && !all.contains("not known"), "{all}");
    let port = |name: &str| printed(folder, &["replay", "f", "--port", name]).split_whitespace().collect::<Vec<_>>().join(" ");
    let web = port("web");
    assert!(web.contains("web: 40 frames to db;") && web.contains("source 02:00:00:00:00:00 is known behind web"), "{web}");
    assert!(web.contains("web: 1 frame dropped: policy-denied") && web.contains("(in line 3)"), "{web}");
    assert!(web.contains("meet the rule [[policy]] from = \"web\" to = \"db\" protocol = \"tcp\" ports = [25]"), "{web}");
    assert!(web.contains("source 02:00:00:00:00:09 is not the mac of web, and anti-spoof allows no other"), "{web}");
    assert!(web.contains("its IP source 10.0.0.77 is not an address of web behind 02:00:00:00:00:00"), "{web}");
    let access = port("access");
    assert!(
        access.contains("destination 02:00:00:00:00:04 is behind other, which does not carry the VLAN")
            || access.contains("other does not receive it: by isolated, vlan"),
        "{access}"
    );
    let looped = ["loop", "db"].map(port).concat();
    assert!(looped.contains("source 02:00:00:00:00:08 moved too often, as in a loop, and is held at"), "{looped}");
    // By its moment, and by its number.
    let denied = printed(folder, &["replay", "f", "--port", "web", "--json"]);
    let denied: serde_json::Value = serde_json::from_str(&denied).unwrap();
    let denied = denied.as_array().unwrap().iter().find(|told| told["outcome"] == "dropped: policy-denied").unwrap();
    let (number, moment) = (denied["last-frame"].to_string(), denied["last-moment"].as_str().unwrap());
    assert!(printed(folder, &["replay", "f", "--frame", &number]).contains("policy-denied"));
    assert!(printed(folder, &["replay", "f", "--at", moment]).contains("policy-denied"));
    assert!(printed(folder, &["replay", "f", "--at", "1970-01-02 00:00"]).contains("no such frame"));
    printed(folder, &["replay", "f", "-w", "f.pcapng"]);
    let written = std::fs::read(folder.join("f.pcapng")).unwrap();
    let has = |text: &[u8]| written.windows(text.len()).any(|bytes| bytes == text);
    assert!(has(b"dropped: policy-denied") && has(b"to db"));
}

#[test]
fn another_policy_is_tried_on_the_past() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    drop(faults(folder));
    let changed = NET.replace("ports = [25]", "ports = [443]").replace("[\"10.0.0.1\"]", "[\"10.0.0.77\"]");
    write(folder, "new.toml", &changed.replace("from = \"web\"", "from = [\"web\", \"nowhere\"]"));
    let output = run(folder, &["replay", "f", "--with", "new.toml", "--json"]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(
        told(&output).contains("no port or group called nowhere") && told(&output).contains("as recorded"),
        "{}",
        told(&output)
    );
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let find = |was: &str, becomes: &str| {
        let sums = json["changes"].as_array().unwrap().clone();
        sums.into_iter().find(|sum| sum["was"] == was && sum["becomes"] == becomes).unwrap_or_else(|| panic!("{was}: {json}"))
    };
    // The address is another port's now: the rule is not reached.
    let forged = find("to db", "dropped: spoofed-ip");
    assert_eq!((forged["frames"].as_u64(), forged["examples"].as_array().unwrap().len()), (Some(40), 10), "{forged}");
    let denied = find("dropped: spoofed-ip", "dropped: policy-denied");
    assert!(
        denied["rule"].as_str().unwrap().contains("ports = [443]") && denied["destination"] == "10.0.0.2 tcp port 443",
        "{denied}"
    );
    let same = run(folder, &["replay", "f", "--with", "net.toml"]);
    assert!(String::from_utf8_lossy(&same.stdout).contains(" 0 would have another verdict"), "{same:?}");
}

#[test]
fn recordings_that_are_damaged_are_refused_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let running = faults(folder);
    let good = std::fs::read(folder.join("f")).unwrap();
    let replay = |bytes: &[u8]| {
        std::fs::write(folder.join("damaged"), bytes).unwrap();
        let output = run(folder, &["replay", "damaged"]);
        (output.status.code(), told(&output), String::from_utf8(output.stdout).unwrap())
    };
    let (code, note, text) = replay(&good[..good.len() - 30]);
    assert!(code == Some(0) && note.contains("cut off") && text.contains(" 0 different"), "{note}{text}");
    let mut other = good.clone();
    other[8] = 7;
    let (code, note, _) = replay(&other);
    assert!(code == Some(2) && note.contains("version 7") && note.contains("version 2"), "{note}");
    let mut edited = good.clone();
    let middle = edited.len() / 2;
    edited[middle] ^= 1;
    let (code, note, _) = replay(&edited);
    assert!(code == Some(2) && note.contains("checksum"), "{note}");
    assert_eq!(replay(b"nothing").0, Some(2));
    // The verdict of a record is another, and the checksum is right.
    let (code, note, text) = replay(&forged(&good));
    assert!(code == Some(1) && note.contains("another one than was recorded") && text.contains("recorded: to "), "{note}{text}");
    // A full disk ends a recording, and no network.
    let full = run(folder, &["record", "net.toml", "-w", "/dev/full", "--dump"]);
    assert!(full.status.code() == Some(1) && told(&full).contains("the network goes on"), "{}", told(&full));
    printed(folder, &["status", "net.toml"]);
    drop(running);
}

/// The recording with other receivers in its frames.
fn forged(good: &[u8]) -> Vec<u8> {
    use memlane_observe::recording::{Block, Reader, begin};
    let (mut reader, description) = Reader::new(good).unwrap();
    let mut bytes = begin(&description);
    while let Some(block) = reader.block().unwrap() {
        let block = match block {
            Block::Frames { worker, mut records } => {
                let length = Frame::decode(&records).map_or(0, |(_, rest)| records.len() - rest.len());
                // The place of the receiver in a record.
                if length > 0 && records[2] == 1 {
                    records[28] ^= 1;
                    records[32] = 1;
                }
                Block::Frames { worker, records }
            }
            block => block,
        };
        block.encode(&mut bytes);
    }
    bytes
}

/// A recording that a command streams into the file "r".
fn stream(folder: &Path, more: &[&str]) -> Child {
    let arguments = [&["record", "net.toml", "-w", "r"], more].concat();
    memlane(folder, &arguments).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_recording_has_no_payload_and_only_its_owner_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder);
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    let child = stream(folder, &[]);
    wait_until(|| printed(folder, &["events", "net.toml"]).contains("recording of verdicts begun"), "it has begun");
    settled(&mut db, &[tcp(1, 0, 1)]);
    settled(&mut web, &vec![tcp(0, 1, 443); 1000]);
    let length = || std::fs::metadata(folder.join("r")).map_or(0, |file| file.len());
    wait_until(|| length() > 50_000, "the frames are in the file");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(told(&output).contains("recorded") || output.status.code().is_none(), "{}", told(&output));
    let file = std::fs::metadata(folder.join("r")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    let bytes = std::fs::read(folder.join("r")).unwrap();
    assert!(!bytes.windows(4).any(|bytes| bytes == [0xd7; 4]), "payload is recorded");
    let replayed = printed(folder, &["replay", "r"]);
    assert!(replayed.contains("1001 frames") && replayed.contains(" 0 different"), "{replayed}");
    let events = printed(folder, &["events", "net.toml"]);
    assert!(events.contains("recorder started") && events.contains("by user"), "{events}");
    wait_until(|| printed(folder, &["events", "net.toml"]).contains("recorder stopped"), "the recorder stops with its recording");
}

#[test]
fn the_flight_recorder_is_written_when_an_event_happens() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder);
    let none = run(folder, &["record", "net.toml", "-w", "r", "--dump"]);
    assert!(!none.status.success() && told(&none).contains("no recorder runs"), "{}", told(&none));
    printed(folder, &["record", "net.toml", "--size", "8M"]);
    let twice = run(folder, &["record", "net.toml"]);
    assert!(!twice.status.success() && told(&twice).contains("a recorder runs already"), "{}", told(&twice));
    let wrong = run(folder, &["record", "net.toml", "-w", "r", "--on", "doomsday"]);
    assert!(wrong.status.code() == Some(2) && told(&wrong).contains("no event is called"), "{}", told(&wrong));
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    settled(&mut db, &[tcp(1, 0, 1)]);
    settled(&mut web, &vec![tcp(0, 1, 443); 100]);
    let child = stream(folder, &["--on", "port-detached,port-quarantined", "--last", "60s"]);
    wait_until(|| printed(folder, &["events", "net.toml"]).contains("recording of verdicts begun"), "it waits");
    printed(folder, &["detach", "net.toml", "access"]);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let replayed = printed(folder, &["replay", "r"]);
    assert!(replayed.contains("101 frames") && replayed.contains(" 0 different"), "{replayed}");
    printed(folder, &["record", "net.toml", "--stop"]);
    assert!(!run(folder, &["record", "net.toml", "--stop"]).status.success());
}
