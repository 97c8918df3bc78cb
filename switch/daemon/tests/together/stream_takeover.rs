//! Connections of stream ports go on when another process takes the network over, also in the middle of a frame.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::command::{Running, memlane, printed, write};
use crate::common::{BROADCAST, TIMEOUT, frame, mac, wait_until};

/// The address behind the stream.
const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// Frames that wait in the switch for a stream that is not read, and in its socket.
const BACKLOG: u64 = 400;
/// Number of the last frame.
const LAST: u64 = 1 << 40;

struct Net {
    folder: tempfile::TempDir,
    running: Running,
    guest: ToyGuest,
    stream: UnixStream,
}

/// A network of a guest and of a stream port with the key `stream`; `meet` yields the other side of the stream.
fn net(key: &str, meet: impl FnOnce(&Path) -> Box<dyn FnOnce() -> UnixStream>) -> Net {
    let folder = tempfile::tempdir().unwrap();
    let ports = format!("[[port]]\nname = \"p0\"\nvhost-user = \"p0.sock\"\n[[port]]\nname = \"p1\"\n{key}\n");
    write(folder.path(), "net.toml", &format!("stall-timeout-ms = 60000\ncontrol = \"control\"\n{ports}"));
    let meet = meet(folder.path());
    let running = up(folder.path(), &[]);
    let builder = ToyGuest::builder().mac(mac(1)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let guest = builder.connect(folder.path().join("p0.sock")).unwrap();
    let stream = meet();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut net = Net { folder, running, guest, stream };
    let hello = frame(OTHER, BROADCAST, 60, 0);
    net.stream.write_all(&prefixed(&hello)).unwrap();
    assert_eq!(net.guest.receive(TIMEOUT).unwrap().bytes, hello);
    net
}

fn up(folder: &Path, more: &[&str]) -> Running {
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.args(more).stderr(Stdio::null());
    Running::start(command)
}

fn listening() -> Net {
    net("stream = \"s\"", |folder| {
        let path = folder.join("s");
        Box::new(move || UnixStream::connect(path).unwrap())
    })
}

fn prefixed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

impl Net {
    fn take_over(&mut self) {
        let other = up(self.folder.path(), &["--takeover"]);
        let mut before = std::mem::replace(&mut self.running, other);
        assert!(before.0.wait().unwrap().success());
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        frame
    }

    /// How often a front end has left the stream's port, by the events.
    fn ends(&self) -> usize {
        printed(self.folder.path(), &["events", "net.toml", "--json"]).matches("front-end-left").count()
    }
}

#[test]
fn a_stream_goes_on_over_takeovers_in_the_middle_of_a_frame() {
    let mut net = listening();
    for number in 1..=4 {
        let sent = frame(OTHER, mac(1), 1400, number);
        let bytes = prefixed(&sent);
        // Within the length, behind it, within the frame, and a whole frame before.
        let cut = [2, 4, 700, 1404][number as usize - 1];
        net.stream.write_all(&bytes[..cut]).unwrap();
        net.take_over();
        net.stream.write_all(&bytes[cut..]).unwrap();
        assert_eq!(net.guest.receive(TIMEOUT).unwrap().bytes, sent);
        let back = frame(mac(1), OTHER, 1000, number);
        net.guest.send(&back).unwrap();
        assert_eq!(net.receive(), back);
    }
    assert_eq!(net.ends(), 0, "its front end never left");
}

#[test]
fn what_waits_for_a_slow_reader_waits_at_the_next_process() {
    let mut net = listening();
    let mut sent = 0;
    let wait = Duration::from_millis(5);
    // Until the socket is full and the switch holds the rest of a frame.
    while sent < BACKLOG {
        match net.guest.send(&frame(mac(1), OTHER, 1500, sent)) {
            Ok(_) => sent += 1,
            Err(_) => break,
        }
        if sent % 50 == 0 {
            std::thread::sleep(wait);
        }
    }
    net.take_over();
    net.take_over();
    // The takeover has completed, or dropped whole, each frame in flight.
    net.guest.wait_sent(TIMEOUT).unwrap();
    net.guest.send(&frame(mac(1), OTHER, 60, LAST)).unwrap();
    let mut next = 0;
    while next <= LAST {
        let came = net.receive();
        let number = u64::from_be_bytes(came[14..22].try_into().unwrap());
        let length = if number == LAST { 60 } else { 1500 };
        assert!(number >= next && came == frame(mac(1), OTHER, length, number), "frame {number}, after {next}, is whole");
        next = number + 1;
    }
    assert_eq!(net.ends(), 0, "its front end never left");
}

#[test]
fn a_stream_that_memlane_has_connected_is_handed_over_too() {
    let mut net = net("stream = \"s\"\nconnect = true", |folder| {
        let listener = UnixListener::bind(folder.join("s")).unwrap();
        Box::new(move || listener.accept().unwrap().0)
    });
    net.take_over();
    let sent = frame(OTHER, mac(1), 60, 7);
    net.stream.write_all(&prefixed(&sent)).unwrap();
    assert_eq!(net.guest.receive(TIMEOUT).unwrap().bytes, sent);
    assert_eq!(net.ends(), 0, "its front end never left");
}

#[test]
fn passt_goes_on_over_a_takeover() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // In place of passt a program that sends each frame back, and notes its process number.
    let script = "#!/bin/sh\ncase \"$*\" in *--version*) echo passt 1 ;; *) echo $$ >> pids; exec cat >&0 ;; esac\n";
    let passt = write(path, "passt", script);
    std::fs::set_permissions(&passt, std::fs::Permissions::from_mode(0o755)).unwrap();
    write(
        path,
        "net.toml",
        "control = \"control\"\n[[port]]\nname = \"p0\"\nvhost-user = \"p0.sock\"\n[[port]]\nname = \"out\"\npasst = true\n",
    );
    let start = |more: &[&str]| {
        let mut command = memlane(path, &["up", "net.toml"]);
        command.args(more).stderr(Stdio::null());
        command.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH").unwrap()));
        Running::start(command)
    };
    let mut running = start(&[]);
    let builder = ToyGuest::builder().mac(mac(1)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let mut guest = builder.connect(path.join("p0.sock")).unwrap();
    let is_served = || printed(path, &["status", "net.toml", "--json"]).matches("\"running\"").count() == 2;
    wait_until(is_served, "passt's port is served");
    for number in 0..3 {
        let sent = frame(mac(1), OTHER, 1400, number);
        guest.send(&sent).unwrap();
        assert_eq!(guest.receive(TIMEOUT).unwrap().bytes, sent, "it comes back");
        let mut before = std::mem::replace(&mut running, start(&["--takeover"]));
        assert!(before.0.wait().unwrap().success());
    }
    let pids = std::fs::read_to_string(path.join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 1, "one passt serves all the time");
    let pid: i32 = pids.trim().parse().unwrap();
    printed(path, &["down", "net.toml"]);
    wait_until(|| kill(Pid::from_raw(pid), None).is_err(), "passt has ended with its port");
}
