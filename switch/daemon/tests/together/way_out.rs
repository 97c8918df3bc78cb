//! The way out of a segment: guests share one passt, by addresses and ports that memlane translates.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use memlane_rig::frames::{Host, Packet};
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{Running, memlane, printed, told, write};
use crate::common::{TIMEOUT, mac, wait_until};

/// MAC address of the router.
const ROUTER: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// Set for [`passt_of_a_test`].
const PLAYS_PASST: &str = "MEMLANE_TEST_PLAYS_PASST";
const NET: &str = r#"
control = "control"
[[segment]]
name = "lan"
subnet = "10.0.0.0/24"
[[port]]
name = "p1"
vhost-user = "p1.sock"
isolated = true
[[port]]
name = "p2"
vhost-user = "p2.sock"
isolated = true
addresses = ["10.0.0.2"]
[[port]]
name = "out"
passt = true
mac = "02:00:00:00:09:09"
forward = [{ port = 8080, to = "p2:80" }]
"#;

/// In place of passt: sends each frame back, from the addresses and ports that it went to. Checksums stay right by that.
#[test]
fn passt_of_a_test() {
    if std::env::var_os(PLAYS_PASST).is_none() {
        return;
    }
    let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut length = [0; 4];
    while stream.read_exact(&mut length).is_ok() {
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut frame).unwrap();
        for (first, second, bytes) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            (0..bytes).for_each(|at| frame.swap(first + at, second + at));
        }
        stream.write_all(&[&length[..], &frame].concat()).unwrap();
    }
    drop(OwnedFd::from(stream));
}

/// Starts the network, with the test's passt, which notes its process number and arguments.
fn up(path: &Path, more: &[&str]) -> Running {
    let own = std::env::current_exe().unwrap();
    let play = format!("{PLAYS_PASST}=1 exec {} --exact way_out::passt_of_a_test --nocapture", own.display());
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--version*) echo passt 1 ;; *) echo $$ \"$@\" >> {0}/started; {play} ;; esac\n",
        path.display()
    );
    let passt = write(path, "passt", &script);
    std::fs::set_permissions(&passt, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = memlane(path, &["up", "net.toml"]);
    command.args(more).stderr(Stdio::null());
    command.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH").unwrap()));
    Running::start(command)
}

fn guest(path: &Path, n: u8) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(n.into())).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(path.join(format!("p{n}.sock"))).unwrap()
}

fn server() -> Host {
    Host { mac: ROUTER, ip: "198.51.100.7".parse().unwrap(), port: 443 }
}

fn client(n: u8) -> Host {
    Host { mac: mac(n.into()), ip: [10, 0, 0, n].into(), port: 40000 }
}

/// Process number and arguments of each passt that was started.
fn started(path: &Path) -> Vec<(i32, String)> {
    let text = std::fs::read_to_string(path.join("started")).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once(' ')).map(|(pid, rest)| (pid.parse().unwrap(), rest.into())).collect()
}

#[test]
fn guests_share_one_passt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(path, "net.toml", NET);
    let mut running = up(path, &[]);
    let mut guests = [1, 2].map(|n| guest(path, n));
    wait_until(|| printed(path, &["status", "net.toml", "--json"]).matches("\"running\"").count() == 3, "all ports run");
    for round in 0..3 {
        // The same ports, to the same server: interleaved.
        for number in 0..200_u32 {
            for (guest, n) in guests.iter_mut().zip([1, 2]) {
                let payload = [&[n, round][..], &number.to_be_bytes()].concat();
                guest.send(&Packet::udp(client(n), server(), payload).frame()).unwrap();
            }
        }
        for number in 0..200_u32 {
            for (guest, n) in guests.iter_mut().zip([1, 2]) {
                let payload = [&[n, round][..], &number.to_be_bytes()].concat();
                let expected = Packet::udp(server(), client(n), payload).frame();
                assert_eq!(guest.receive(TIMEOUT).unwrap().bytes, expected, "frame {number} of guest {n}");
            }
        }
        let mut before = std::mem::replace(&mut running, up(path, &["--takeover"]));
        assert!(before.0.wait().unwrap().success());
    }
    // No guest reaches another by the router.
    guests[0].send(&Packet::udp(client(1), Host { ip: client(2).ip, ..server() }, [9; 9]).frame()).unwrap();
    let refused = || printed(path, &["status", "net.toml", "--json"]).contains("\"not-translated\": 1");
    wait_until(refused, "the router has counted the frame");
    let passt = started(path);
    assert_eq!(passt.len(), 1, "one serves all the time: {passt:?}");
    for part in ["--address 192.0.0.2 --netmask 29 --gateway 192.0.0.1", "--no-map-gw", "--tcp-ports 8080"] {
        assert!(passt[0].1.contains(part), "{passt:?}");
    }
    // passt ends with its network, however that ends.
    let pid = Pid::from_raw(running.0.id() as i32);
    kill(pid, Signal::SIGKILL).unwrap();
    running.0.wait().unwrap();
    wait_until(|| kill(Pid::from_raw(passt[0].0), None).is_err(), "passt has ended");
}

#[test]
fn mistakes_of_ways_out_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let check = |text: String| {
        write(path, "net.toml", &text);
        told(&memlane(path, &["check", "net.toml"]).output().unwrap())
    };
    for (from, to, wanted) in [
        ("to = \"p2:80\"", "to = \"p1:80\"", "net.toml:19: forward leads to port 'p1', which has no static address"),
        ("to = \"p2:80\"", "to = \"p3:80\"", "net.toml:19: forward leads to port 'p3', which is not on the segment"),
        ("to = \"p2:80\"", "to = \"p2\"", "net.toml:19: forward leads to \"p2\"; it must be the name of a port and a number"),
        ("subnet = \"10.0.0.0/24\"", "multicast = \"snoop\"", "net.toml:19: forward needs addresses of guests"),
        ("10.0.0.2", "10.0.0.254", "passt would be the router 10.0.0.254 of the segment, which is an address of port 'p2'"),
        (
            "[[port]]\nname = \"out\"",
            "[[port]]\nname = \"in\"\npasst = true\n[[port]]\nname = \"out\"",
            "which is an address of port 'out'",
        ),
        ("passt = true", "null = true", "forward applies to passt ports only"),
    ] {
        let said = check(NET.replacen(from, to, 1));
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
    let said = check(NET.into());
    assert!(!said.contains("net.toml:"), "{said}");
}
