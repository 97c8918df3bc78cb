//! Descriptors run out: it is told, no front end is blamed for it, the others go on, and the network can still be asked.

use std::fs::File;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Running, memlane, printed, write};
use crate::common::{POLL_INTERVAL, TIMEOUT, frame, in_a_namespace, mac, wait_until};
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// A network with so many ports in a process with the limits of `ulimit`; its log is in `log`.
struct Held {
    folder: tempfile::TempDir,
    running: Running,
}

impl Held {
    fn start(ulimit: &str, ports: usize) -> Self {
        Self::start_with(ulimit, &config(ports, "vhost-user = \"p@.sock\""))
    }

    fn start_with(ulimit: &str, config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { running: Running::start(up(folder.path(), ulimit, config)), folder }
    }

    /// Threads beside those that answer questions.
    fn threads(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.running.0.id())).unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| !name.starts_with("tokio")).count()
    }

    /// Descriptors that are open.
    fn open(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.running.0.id())).unwrap().count() as u64
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn socket(&self, port: usize) -> PathBuf {
        self.folder().join(format!("p{port}.sock"))
    }

    fn guest(&self, port: usize) -> Option<ToyGuest> {
        let plan = MemoryPlan::new(64 << 20);
        ToyGuest::builder().mac(mac(port)).timeout(TIMEOUT).memory(plan).connect(self.socket(port)).ok()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&printed(self.folder(), &["status", "net.toml", "--json"])).unwrap()
    }

    fn port(&self, port: usize) -> Value {
        self.status()["ports"][port].clone()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder().join("log")).unwrap()
    }

    fn limits(&self) -> (u64, u64) {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.running.0.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Lets the process have so many more than it has.
    fn leave(&self, more: usize) {
        let pid = self.running.0.id().to_string();
        let limit = format!("--nofile={}:4096", self.open() + more as u64);
        assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
    }
}

/// A network with so many ports of a `kind`, in which each has its number for `@`.
fn config(ports: usize, kind: &str) -> String {
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\n{}\n", kind.replace('@', &n.to_string()));
    (0..ports).map(port).collect()
}

/// The command for a network in `folder` as [`Held`] has.
fn up(folder: &Path, ulimit: &str, config: &str) -> Command {
    write(folder, "net.toml", config);
    // In the sandbox of a container's root, which may lack CAP_SYS_RESOURCE, descriptors that other processes of the user have in flight
    // count against this limit.
    let up = memlane(folder, &["up", "net.toml", "--sandbox", "none"]);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{ulimit}; exec \"$0\" \"$@\" 2>log")]).arg(up.get_program()).args(up.get_args());
    command.current_dir(folder).env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder.join("state-home"));
    command
}

/// Sends a vhost-user message with these descriptors.
fn send(stream: &UnixStream, request: u32, payload: &[u8], files: &[RawFd]) {
    let header = [request, 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
    // The other side may have hung up.
    let _ = stream.send_with_fds(&[&[&header[..], payload].concat()[..]], files);
}

#[test]
fn the_soft_limit_becomes_the_hard_one() {
    let net = Held::start("ulimit -S -n 100; ulimit -H -n 3000", 1);
    assert_eq!(net.limits(), (3000, 3000));
}

#[test]
fn a_network_with_more_ports_than_descriptors_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(up(folder.path(), "ulimit -n 40", &config(100, "vhost-user = \"p@.sock\"")).status().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("no file descriptors are left") && log.contains("LimitNOFILE="), "{log}");
}

#[test]
fn each_kind_of_port_holds_what_it_has_open() {
    in_a_namespace("descriptors_run_out::each_kind_of_port_holds_what_it_has_open", || {
        let kinds = ["vhost-user = \"p@.sock\"", "stream = \"p@.sock\"", "tap = \"dro@\"", "loopback = true", "null = true"];
        for kind in kinds {
            let open = |ports| {
                let net = Held::start_with("true", &config(ports, kind));
                let status = net.status();
                (net.open(), status["descriptors"]["held"].as_u64().unwrap())
            };
            let ((none, _), (ten, held)) = (open(0), open(10));
            // Connections of the command that has just asked may be open still, of either network. All ports with sessions share two of the
            // reserve, for the events of these.
            let shared = if kind.ends_with("true") { 0 } else { 2 };
            assert!(ten <= none + held + shared + 2, "{kind}: {none} are open without ports, {ten} with them, {held} held");
        }
    });
}

#[test]
fn each_kind_of_port_has_so_many_threads_and_no_more() {
    in_a_namespace("descriptors_run_out::each_kind_of_port_has_so_many_threads_and_no_more", || {
        let threads = |config: &str| Held::start_with("true", config).threads();
        let none = threads("workers = 1\n");
        // One worker, and five of the process's own.
        assert_eq!(none, 6);
        for kind in ["loopback = true", "null = true"] {
            assert_eq!(threads(&format!("workers = 1\n{}", config(10, kind))), none, "{kind}");
        }
        // Of sessions one that waits, and one to four that serve, however many ports there are: others, on a busy host, end within a second.
        for (kind, many) in [("vhost-user = \"p@.sock\"", 300), ("stream = \"p@.sock\"", 50), ("tap = \"drt@\"", 50)] {
            for ports in [1, many] {
                let net = Held::start_with("true", &format!("workers = 1\n{}", config(ports, kind)));
                wait_until(|| (2..=5).contains(&(net.threads() - none)), "few threads serve all ports");
            }
        }
    });
}

#[test]
fn stream_ports_leave_the_reserve() {
    // A sixth of the limit is the reserve.
    let net = Held::start_with("ulimit -n 200", &config(30, "stream = \"p@.sock\""));
    let _streams: Vec<UnixStream> = (0..30).map(|port| UnixStream::connect(net.socket(port)).unwrap()).collect();
    wait_until(|| net.status()["descriptors"]["refused"].as_u64() > Some(0), "one is turned away");
    let status = net.status();
    let open = status["descriptors"]["open"].as_u64().unwrap();
    // The connection of this question comes out of the reserve.
    assert!(open <= 200 - 200 / 6 + 2, "{open} of 200 are open: {}", status["descriptors"]);
}

#[test]
fn taps_that_would_take_the_reserve_are_told_with_port_and_remedy() {
    in_a_namespace("descriptors_run_out::taps_that_would_take_the_reserve_are_told_with_port_and_remedy", || {
        let folder = tempfile::tempdir().unwrap();
        let mut command = up(folder.path(), "ulimit -n 100", &config(8, "tap = \"dro@\""));
        let mut running = Running(command.spawn().unwrap());
        wait_until(|| !running.lives(), "the network is refused");
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(log.contains(": no file descriptors are left") && log.contains("LimitNOFILE="), "{log}");
    });
}

#[test]
fn front_ends_beyond_the_limit_are_turned_away_with_a_word_and_come_back_when_others_go() {
    let net = Held::start("ulimit -n 140", 16);
    let mut guests: Vec<ToyGuest> = (0..16).map_while(|port| net.guest(port)).collect();
    let count = guests.len();
    assert!((2..16).contains(&count), "{count} front ends are on");
    wait_until(|| net.status()["descriptors"]["refused"].as_u64() > Some(0), "it is told that one was turned away");
    let status = net.status();
    assert_eq!(status["descriptors"]["limit"], 140);
    assert!(status["ports"].as_array().unwrap().iter().all(|port| port["state"] != "quarantined"), "{status}");
    assert!(status["ports"][count]["advice"].as_str().unwrap().contains("descriptors ran out"), "{status}");
    let table = printed(net.folder(), &["status", "net.toml"]);
    assert!(table.contains("of 140 descriptors are open") && table.contains("LimitNOFILE"), "{table}");
    assert_eq!(net.log().matches(" of 140 are open").count(), 1, "{}", net.log());
    let doctor = memlane(net.folder(), &["doctor"]).output().unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("network net: ") && doctor.contains("because file descriptors ran out"), "{doctor}");
    // Ports that are on go on.
    let hello = frame(mac(0), mac(1), 60, 7);
    guests[0].send(&hello).unwrap();
    assert_eq!(guests[1].receive(TIMEOUT).unwrap().bytes, hello);
    guests.truncate(1);
    wait_until(|| net.guest(15).is_some(), "one that was turned away comes back");
}

#[test]
fn descriptors_that_are_lost_on_the_way_are_no_fault_of_the_front_end() {
    let net = Held::start("ulimit -n 4096", 1);
    let memory = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
    memory.set_len(8 * 4096).unwrap();
    // Eight regions of a page.
    let regions = (0..8_u64).flat_map(|n| [n * 4096, 4096, n * 4096, n * 4096]).flat_map(u64::to_ne_bytes);
    // Before any question: its connection is closed a little later, and would be counted, and its descriptor free again.
    let quiet = net.open();
    let table: Vec<u8> = 8_u64.to_ne_bytes().into_iter().chain(regions).collect();
    for more in 0..12 {
        net.leave(more);
        let stream = UnixStream::connect(net.socket(0)).unwrap();
        // SET_OWNER, and SET_MEM_TABLE with more descriptors than there is room for.
        send(&stream, 3, &[], &[]);
        send(&stream, 5, &table, &[memory.as_raw_fd(); 8]);
        stream.shutdown(Shutdown::Write).unwrap();
        // The limit rises after the session has judged the message: with descriptors to spare, their loss is a fault of the front
        // end. Without a descriptor, the connection is accepted only after that.
        stream.set_read_timeout(Some(if more == 0 { POLL_INTERVAL } else { TIMEOUT })).unwrap();
        let _ = (&stream).read(&mut [0]);
        net.leave(100);
        drop(stream);
        wait_until(|| net.open() == quiet, "the port waits again, and holds nothing");
    }
    wait_until(|| net.log().contains("file descriptors ran out"), "the shortage is logged");
    assert!(net.guest(0).is_some());
    assert_eq!(net.port(0)["quarantines"], 0, "{}", net.log());
}

#[test]
fn a_front_end_that_takes_what_it_can_leaves_others_theirs() {
    let net = Held::start("ulimit -n 150", 3);
    let event = EventFd::new(0).unwrap();
    let greedy: Vec<UnixStream> = (0..2)
        .map(|port| {
            let stream = UnixStream::connect(net.socket(port)).unwrap();
            send(&stream, 3, &[], &[]);
            for ring in 0..33_u64 {
                // SET_VRING_CALL, KICK, ERR.
                [13, 12, 14].into_iter().for_each(|request| send(&stream, request, &ring.to_ne_bytes(), &[event.as_raw_fd()]));
            }
            stream
        })
        .collect();
    wait_until(|| net.status()["descriptors"]["refused"].as_u64() > Some(0), "one has met its bound");
    let guest = net.guest(2);
    assert!(guest.is_some(), "{}", net.log());
    assert!(net.port(2)["descriptors"].as_u64() >= Some(6), "{}", net.port(2));
    drop(greedy);
}
