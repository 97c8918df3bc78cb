//! A network is frozen, written to a folder with its guests, and goes on; copies go on beside it, each with its own history: no frame is lost
//! and none comes twice, wherever the cut is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use memlane::config::Config;
use memlane::control::Client;
use memlane::daemon::Daemon;
use memlane::policy::flows::Flow;
use memlane::snapshot::{Snapshot, SnapshotFile, machine};
use memlane_rig::frames::{Host, Packet};
use memlane_rig::frontend::features;
use memlane_rig::guest::{GuestError, Layout, ReceiveBuffers, SavedGuest, SendBuffers, ToyGuest};

use crate::command::{Running, memlane, printed, told, write};
use crate::common::{Bed, POLL_INTERVAL, TIMEOUT, announce, frame, mac, wait_until};
use crate::dice::Dice;

/// Cuts in one run, and copies of each; `make prove` makes more.
fn cuts() -> usize {
    std::env::var("MEMLANE_FORKS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(4)
}
const COPIES: usize = 3;
const GUESTS: usize = 3;
/// Most frames on their way of one guest to another: fewer than a receive queue has buffers.
const WINDOW: u64 = 40;
/// Longest time for a loaded machine.
const LATE: Duration = Duration::from_secs(60);

/// Links with a delay, with jitter, and none; a receiver with few buffers before the last.
fn lab(folder: &Path) -> Running {
    let links = ["delay = \"3ms\"", "delay = \"2ms\", jitter = \"1ms\", keep-order = true", ""];
    let port = |(n, link): (usize, &&str)| {
        let link = if link.is_empty() { String::new() } else { format!("link = {{ {link} }}\n") };
        format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n{link}")
    };
    let ports: String = links.iter().enumerate().map(port).collect();
    write(folder, "lab.toml", &format!("workers = 2\n{ports}"));
    Running::start(memlane(folder, &["up", "lab.toml"]))
}

fn guest(socket: &Path, index: usize) -> ToyGuest {
    // The last guest has few buffers, so that frames wait for it in its senders' rings.
    let few = ReceiveBuffers { count: Some(8), ..ReceiveBuffers::SMALL };
    let buffers = if index == GUESTS - 1 { few } else { ReceiveBuffers::SMALL };
    let send = SendBuffers { count: 128, size: 4096 };
    ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).receive_buffers(buffers).send_buffers(send).connect(socket).unwrap()
}

/// Frame `number` from one guest to another, of a length that follows from it.
fn numbered(from: usize, to: usize, number: u64) -> Vec<u8> {
    frame(mac(from), mac(to), 64 + (number % 900) as usize, number)
}

/// Numbered frames from each guest to each other one: the next to send, and the next to receive.
#[derive(Clone, Default)]
struct History {
    sent: [[u64; GUESTS]; GUESTS],
    expected: [[u64; GUESTS]; GUESTS],
}

impl History {
    /// Sends where the window allows it, if it `sends`, and takes the frames that have arrived. A frame that is lost, or comes twice or late, is a panic.
    fn step(&mut self, guests: &mut [ToyGuest], sends: bool) {
        for (from, guest) in guests.iter_mut().enumerate() {
            for to in (0..GUESTS).filter(|&to| to != from) {
                let number = self.sent[from][to];
                if sends && number < self.expected[from][to] + WINDOW {
                    match guest.send(&numbered(from, to, number)) {
                        Ok(_) => self.sent[from][to] += 1,
                        Err(GuestError::NoSendBuffer(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
        for (to, guest) in guests.iter_mut().enumerate() {
            while let Some(frame) = guest.try_receive().unwrap() {
                let from = usize::from(frame.bytes[11]);
                let (number, expected) =
                    (u64::from_be_bytes(frame.bytes[14..22].try_into().unwrap()), &mut self.expected[from][to]);
                assert!(number == *expected, "frame {number} instead of {expected} from {from} to {to}");
                assert!(frame.bytes == numbered(from, to, number), "frame {number} from {from} to {to} is damaged");
                *expected += 1;
            }
        }
    }

    /// Goes on for a while, and until all has arrived; returns the frames that arrived meanwhile.
    fn go_on(&mut self, guests: &mut [ToyGuest], frames: u64) -> u64 {
        let total = |history: &Self| history.expected.iter().flatten().sum::<u64>();
        let (before, begun) = (total(self), Instant::now());
        loop {
            let is_enough = total(self) >= before + frames;
            self.step(guests, !is_enough);
            if is_enough && self.sent == self.expected {
                return total(self) - before;
            }
            assert!(begun.elapsed() < LATE, "{:?} of {:?} arrived", self.expected, self.sent);
        }
    }
}

/// The guests of a network, saved while it is frozen.
struct Cut {
    folder: PathBuf,
    guests: Vec<SavedGuest>,
    history: History,
}

fn spawn(folder: &Path, arguments: &[&str]) -> Child {
    memlane(folder, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Cuts the network "lab" of `folder` while its guests send; they go on.
fn cut(folder: &Path, name: &str, guests: &mut [ToyGuest], history: &mut History) -> Cut {
    let mut child = spawn(folder, &["snapshot", "lab.toml", name]);
    while child.try_wait().unwrap().is_none() {
        history.step(guests, true);
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    // Guests run until their monitors stop them: frames that they send now lie in their rings.
    (0..20).for_each(|_| history.step(guests, true));
    guests.iter_mut().for_each(|guest| guest.stop().unwrap());
    let saved = guests.iter().map(|guest| guest.save().unwrap()).collect();
    let cut = Cut { folder: folder.join(name), guests: saved, history: history.clone() };
    guests.iter_mut().for_each(|guest| guest.start().unwrap());
    let thawed = printed(folder, &["thaw", "lab.toml"]);
    assert!(thawed.starts_with("thawed after ") && !thawed.contains("lost") && !thawed.contains("not running"), "{thawed}");
    cut
}

/// Runs a copy of `cut` under `name`; returns it with its guests.
fn copy(folder: &Path, cut: &Cut, name: &str) -> (Running, Vec<ToyGuest>) {
    let running = Running::start(memlane(folder, &["up", "--from", &cut.folder.display().to_string(), "--as", name]));
    let socket = |index: usize| folder.join("memlane").join(format!("{name}.p{index}.sock"));
    (running, cut.guests.iter().enumerate().map(|(index, guest)| guest.restore(socket(index)).unwrap()).collect())
}

/// Frames in flight in the snapshot of `cut`.
fn frames(cut: &Cut) -> u64 {
    SnapshotFile::load(&cut.folder).unwrap().snapshot.frames()
}

#[test]
fn each_copy_of_a_cut_goes_on_with_its_own_history_and_no_frame_is_lost_or_comes_twice() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _lab = lab(folder);
    let mut guests: Vec<ToyGuest> = (0..GUESTS).map(|index| guest(&folder.join(format!("p{index}.sock")), index)).collect();
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    let (mut history, mut random, mut under_way) = (History::default(), Dice::new(), Vec::new());
    for number in 0..cuts() {
        let (instant, begun) = (Duration::from_micros(random.below(20_000) as u64), Instant::now());
        while begun.elapsed() < instant {
            history.step(&mut guests, true);
        }
        let cut = cut(folder, &format!("cut{number}"), &mut guests, &mut history);
        under_way.push(frames(&cut));
        history.go_on(&mut guests, 500);
        for name in (0..COPIES).map(|copy| format!("copy{number}-{copy}")) {
            let (running, mut copies) = copy(folder, &cut, &name);
            let mut own = cut.history.clone();
            // Of different lengths: no copy sees the frames of another.
            own.go_on(&mut copies, 50 + random.below(750) as u64);
            // Learned addresses went along: nothing is flooded.
            let report: serde_json::Value = serde_json::from_str(&printed(folder, &["status", &name, "--json"])).unwrap();
            let flooded = |port: &serde_json::Value| port["flooded"].as_u64().unwrap();
            assert_eq!(report["ports"].as_array().unwrap().iter().map(flooded).sum::<u64>(), GUESTS as u64, "{report}");
            assert!(report["frozen"].is_null());
            drop(running);
        }
        history.go_on(&mut guests, 500);
    }
    println!("frames in flight at the cuts: {under_way:?}");
    assert!(under_way.iter().any(|frames| *frames > 0), "a cut of a network at rest shows nothing");
}

/// State of a port that only the switch has.
#[test]
fn flows_limits_leases_and_addresses_go_into_a_copy() {
    let text = "[[segment]]\nname = \"lan\"\nsubnet = \"10.0.0.0/24\"\n[[port]]\nname = \"a\"\nvhost-user = \"FOLDER/a.sock\"\n\
                transmit = { rate = \"8Mbit\" }\nmtu = 1400\n[[port]]\nname = \"b\"\nnull = true\n[[port]]\nname = \"out\"\nstream = \"FOLDER/out.sock\"\n";
    let folder = tempfile::tempdir().unwrap();
    let text = text.replace("FOLDER", &folder.path().display().to_string());
    let config = Config::from_json(&toml::from_str::<serde_json::Value>(&text).unwrap(), "lab", Path::new("/")).unwrap();
    let daemon = Daemon::start(&config).unwrap();
    let (network, now) = (daemon.network(), memlane::time::cycles());
    let a = network.find("a").unwrap();
    let flow = |n: u8| Flow { vlan: 0, protocol: 6, from: ([10, 0, 0, 1].into(), 1), to: ([192, 0, 2, n].into(), 443) };
    a.policy.flows.open(flow(1));
    a.policy.transmit.charge(1_000_000, 1, now);
    let lease = memlane::names::SavedLease {
        segment: "lan".into(),
        port: "a".into(),
        address: [10, 0, 0, 77].into(),
        mac: "02:00:00:00:00:05".into(),
        client: 0,
        source: memlane::names::SavedSource::Dhcp,
    };
    daemon.restore_leases(std::slice::from_ref(&lease));
    assert!(daemon.snapshot(config.stated.keys(), machine()).is_none(), "it is not frozen");
    network.freeze(TIMEOUT).unwrap();
    let file = daemon.snapshot(config.stated.keys(), machine()).unwrap();
    let file = SnapshotFile::decode(&file.encode().unwrap()).unwrap();
    assert_eq!(file.snapshot.outside, ["port out (stream)"]);
    network.thaw().unwrap();
    a.policy.flows.open(flow(2));
    // SAFETY of the name: the copy's sockets lie in the run-time folder.
    let copied = file.snapshot.config("memlane-test-copy").unwrap();
    assert_eq!((copied.ports.len(), copied.port("a").unwrap().settings.mtu), (2, Some(1400)));
    let copy = Daemon::start_from(&copied, &file).unwrap();
    let copied_a = copy.network().find("a").unwrap();
    assert_eq!(copied_a.offer(), a.offer(), "usual MAC addresses are those of the first network");
    assert!(copied_a.policy.flows.is_open(flow(1)) && !copied_a.policy.flows.is_open(flow(2)));
    let second = memlane::time::in_cycles(Duration::from_millis(500));
    assert!(copied_a.policy.saved_buckets(memlane::time::cycles())[0] > second, "a megabyte at a megabyte a second");
    assert_eq!(copy.leases(), [lease]);
    assert!(copy.network().frozen_for().is_some() && copied_a.policy.transmit.opens_at() == u64::MAX);
    assert_eq!(copy.network().thaw().unwrap().lost, 0);
    assert!(copied_a.policy.transmit.opens_at() < u64::MAX);
    copy.stop();
    daemon.stop();
}

/// A receiver with few buffers has taken some segments of a large frame: in its ring the frame would be sent anew as a whole.
#[test]
fn the_rest_of_a_large_frame_is_held_and_no_segment_comes_twice() {
    const ALL: features::Features = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    let host = |index: u16| Host { mac: mac(index.into()), ..Host::v4(index + 1) };
    for top in ["", "poll = \"always\"\n"] {
        let bed = Bed::with(&format!("stall-timeout-ms = 10000\n{top}"), &["", ""]);
        let mut a = bed.guest_like(0, bed.builder(0).features(features::LINUX | features::CSUM | features::HOST_TSO4));
        let few = ReceiveBuffers { count: Some(4), repost: false, ..ReceiveBuffers::SMALL };
        let mut b = bed.guest_like(1, bed.builder(1).features(features::LINUX & !ALL).receive_buffers(few));
        announce(&mut [&mut a, &mut b]);
        let packet = Packet::tcp(host(0), host(1), 7, (0..20_000).map(|n| n as u8).collect::<Vec<_>>());
        let (header, bytes) = packet.gso(1448);
        a.send_with(&header, &Layout::single(), &bytes).unwrap();
        let mut segments = packet.segments(1448).into_iter();
        let mut take = |b: &mut ToyGuest, count: u16| {
            b.pair(0).receive.post(count).unwrap();
            let mut taken = 0;
            while let Ok(frame) = b.receive(if count > 0 && taken == 0 { TIMEOUT } else { POLL_INTERVAL }) {
                let expected = segments.next().map(|segment| segment.frame());
                assert_eq!(Some(frame.bytes), expected);
                taken += 1;
            }
            segments.len()
        };
        let left = take(&mut b, 1);
        let network = bed.daemon().network();
        network.freeze(TIMEOUT).unwrap();
        a.wait_sent(TIMEOUT).unwrap();
        assert_eq!(network.look_at_held(|lines, _| lines.iter().map(|line| line.frames.len()).sum::<usize>()), Some(1));
        assert_eq!(take(&mut b, 0), left, "no segment comes while it is frozen");
        assert_eq!(network.thaw().unwrap().frames, 1);
        while take(&mut b, 4) > 0 {}
        assert!(b.receive(POLL_INTERVAL).is_err(), "no segment comes twice");
    }
}

#[test]
fn a_frozen_network_says_so_refuses_changes_and_goes_on_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _lab = lab(folder);
    let mut guests: Vec<ToyGuest> = (0..GUESTS).map(|index| guest(&folder.join(format!("p{index}.sock")), index)).collect();
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    printed(folder, &["snapshot", "lab.toml", "cut"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder.join("cut")), mode(&folder.join("cut/network"))), (0o700, 0o600));
    guests[0].send(&frame(mac(0), mac(2), 60, 1)).unwrap();
    // A monitor that has restored its guest announces it (SEND_RARP).
    guests[1].frontend().unwrap().send_rarp(mac(1)).unwrap();
    assert!(guests[2].receive(Duration::from_millis(50)).is_err(), "no frame moves, and the switch makes none");
    let status = printed(folder, &["status", "lab.toml"]);
    assert!(status.contains("so that no frame moves; goes on by memlane thaw"), "{status}");
    let why = printed(folder, &["why", "lab.toml", "p0"]);
    assert!(why.contains("the network is frozen for a snapshot"), "{why}");
    for arguments in [
        &["set", "lab.toml", "p0", "--weight", "3"][..],
        &["attach", "lab.toml", "p9", "--null"],
        &["reload", "lab.toml"],
        &["up", "lab.toml", "--takeover"],
        &["drain", "lab.toml", "p0"],
        &["snapshot", "lab.toml", "cut2"],
    ] {
        let output = memlane(folder, arguments).output().unwrap();
        assert!(!output.status.success() && told(&output).contains("frozen"), "{arguments:?}: {}", told(&output));
    }
    assert!(!folder.join("cut2").exists(), "a refused snapshot leaves nothing");
    printed(folder, &["thaw", "lab.toml"]);
    guests[2].receive(TIMEOUT).unwrap();
    let again = memlane(folder, &["thaw", "lab.toml"]).output().unwrap();
    assert!(told(&again).contains("not frozen"), "{}", told(&again));
    // A command that died leaves the network frozen for its time only.
    printed(folder, &["snapshot", "lab.toml", "short", "--for", "200ms"]);
    guests[0].send(&frame(mac(0), mac(2), 60, 2)).unwrap();
    guests[2].receive(TIMEOUT).unwrap();
    let events = printed(folder, &["events", "lab.toml"]);
    assert!(events.contains("frozen for a snapshot") && events.contains("no command came within 0.2 s"), "{events}");
    printed(folder, &["set", "lab.toml", "p0", "--weight", "3"]);
}

/// Each command sees a network that goes on after its failure.
#[test]
fn a_snapshot_that_fails_leaves_nothing_and_the_network_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _lab = lab(folder);
    let mut guests: Vec<ToyGuest> = (0..GUESTS).map(|index| guest(&folder.join(format!("p{index}.sock")), index)).collect();
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    fs::create_dir(folder.join("there")).unwrap();
    let mut fails = |arguments: &[&str], cause: &str| {
        let output = memlane(folder, arguments).output().unwrap();
        assert!(!output.status.success() && told(&output).contains(cause), "{arguments:?}: {}", told(&output));
        guests[0].send(&frame(mac(0), mac(2), 60, 1)).unwrap();
        guests[2].receive(TIMEOUT).unwrap();
        told(&output)
    };
    fails(&["snapshot", "lab.toml", "there"], "exists already");
    fails(&["snapshot", "lab.toml", "no/such"], "cannot write the snapshot");
    let failed =
        fails(&["snapshot", "lab.toml", "cut", "--run", "test {port} != p1"], "the command for port p1 failed with exit code 1");
    assert!(failed.contains("The network goes on: it was frozen for "), "{failed}");
    fails(&["snapshot", "lab.toml", "cut", "--run", "sleep 30", "--for", "1s"], "did not end within the time of --for");
    // A disk without room for the file.
    let program = env!("CARGO_BIN_EXE_memlane");
    let mut full = memlane(folder, &[]);
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("ulimit -f 0; exec {program} snapshot lab.toml cut")])
        .current_dir(folder)
        .envs(full.env("MEMLANE_LOG", "error").get_envs().filter_map(|(key, value)| Some((key, value?))))
        .output()
        .unwrap();
    assert!(
        told(&output).contains("cannot write the snapshot") && told(&output).contains("The network goes on"),
        "{}",
        told(&output)
    );
    let entries: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!entries.iter().any(|entry| entry.contains("cut")), "{entries:?}");
    // With its guests it is there.
    printed(folder, &["snapshot", "lab.toml", "cut", "--run", "echo {port} >> saved"]);
    let mut saved: Vec<String> = fs::read_to_string(folder.join("saved")).unwrap().lines().map(str::to_owned).collect();
    saved.sort();
    assert_eq!(saved, ["p0", "p1", "p2"]);
    printed(folder, &["thaw", "lab.toml"]);
    // Another one is not ended by a failure of this.
    printed(folder, &["snapshot", "lab.toml", "first"]);
    let output = memlane(folder, &["snapshot", "lab.toml", "second"]).output().unwrap();
    assert!(told(&output).contains("frozen already"), "{}", told(&output));
    printed(folder, &["thaw", "lab.toml"]);
}

#[test]
fn a_folder_that_is_no_snapshot_of_here_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = |machine: &str| SnapshotFile {
        snapshot: Snapshot { machine: machine.into(), ..Snapshot::default() },
        ..SnapshotFile::default()
    };
    let whole = file(&machine()).encode().unwrap();
    let mut edited = whole.clone();
    *edited.last_mut().unwrap() ^= 1;
    let mut other = whole.clone();
    other[8] = 7;
    let cases = [
        ("missing", None, "cannot read the snapshot"),
        ("foreign", Some(b"[[port]]\n".to_vec()), "no snapshot of a memlane network"),
        ("cut", Some(whole[..whole.len() - 1].to_vec()), "damaged"),
        ("edited", Some(edited), "damaged"),
        ("version", Some(other), "in format 7; this is memlane"),
        ("machine", Some(file("sparc 1").encode().unwrap()), "taken on another machine (sparc 1, here"),
        ("empty", Some(whole), "port"),
    ];
    for (name, bytes, cause) in cases {
        fs::create_dir(folder.join(name)).unwrap();
        bytes.into_iter().for_each(|bytes| fs::write(folder.join(name).join("network"), bytes).unwrap());
        let mut child = spawn(folder, &["up", "--from", name, "--as", "copy"]);
        if name == "empty" {
            // A network without ports is one all the same.
            wait_until(
                || Client::new(&folder.join("memlane/copy.control")).get::<serde_json::Value>("/v1/identity").is_ok(),
                cause,
            );
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(name == "empty" || !output.status.success() && told(&output).contains(cause), "{name}: {}", told(&output));
    }
}
