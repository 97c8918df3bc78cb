//! The service manager is notified of readiness, reloads and the end, in this order.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixStream};
use std::process::Command;

use crate::command::{Running, memlane, network, printed, told, wait_until, write};
use crate::common::TIMEOUT;
use crate::metrics::asked;
use memlane_rig::guest::ToyGuest;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// The next notification; notifications of the status line alone are passed over.
fn next(manager: &UnixDatagram) -> String {
    loop {
        let text = next_of_all(manager);
        if !text.starts_with("STATUS=") {
            return text;
        }
    }
}

fn next_of_all(manager: &UnixDatagram) -> String {
    let mut text = [0; 4096];
    let length = manager.recv(&mut text).expect("a notification");
    String::from_utf8(text[..length].to_vec()).unwrap()
}

#[test]
fn the_line_of_the_service_manager_follows_the_ports() {
    let folder = network("web.sock");
    let folder = folder.path();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", folder.join("notify"));
    let _running = Running::start(command);
    assert_eq!(next(&manager), "READY=1\nSTATUS=1 port, 0 running, 0 quarantined");
    let guest = ToyGuest::builder().timeout(6 * TIMEOUT).connect(folder.join("web.sock")).unwrap();
    assert_eq!(next_of_all(&manager), "STATUS=1 port, 1 running, 0 quarantined");
    drop(guest);
    assert_eq!(next_of_all(&manager), "STATUS=1 port, 0 running, 0 quarantined");
    printed(folder, &["detach", "net.toml", "web"]);
    assert_eq!(next_of_all(&manager), "STATUS=0 ports, 0 running, 0 quarantined");
}

#[test]
fn the_service_manager_is_notified_in_order() {
    let folder = network("web.sock");
    let folder = folder.path();
    let socket = folder.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", &socket);
    let running = Running::start(command);
    let signal = |signal| kill(Pid::from_raw(running.0.id() as i32), signal).unwrap();
    assert_eq!(next(&manager), "READY=1\nSTATUS=1 port, 0 running, 0 quarantined");
    write(folder, "net.toml", "[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n[[port]]\nname = \"null\"\nnull = true\n");
    signal(Signal::SIGHUP);
    let reloading = next(&manager);
    let (first, time) = reloading.split_once("\nMONOTONIC_USEC=").unwrap();
    assert!(first == "RELOADING=1" && time.parse::<u64>().unwrap() > 0, "{reloading}");
    assert_eq!(next(&manager), "READY=1\nSTATUS=2 ports, 1 running, 0 quarantined");
    signal(Signal::SIGTERM);
    assert_eq!(next(&manager), "STOPPING=1");
}

/// A message, and the descriptor that came with it.
fn next_with_file(manager: &UnixDatagram) -> (String, Option<OwnedFd>) {
    let mut text = [0; 4096];
    let mut files = [-1];
    // SAFETY: the buffer is valid for its length.
    let (length, count) = unsafe {
        let iovec = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
        manager.recv_with_fds(&mut [iovec], &mut files).expect("a notification")
    };
    // SAFETY: the kernel has just opened it for this process.
    let file = (count > 0).then(|| unsafe { OwnedFd::from_raw_fd(files[0]) });
    (String::from_utf8(text[..length].to_vec()).unwrap(), file)
}

/// The name under which memlane has its socket kept, and the socket.
fn next_kept(manager: &UnixDatagram) -> (String, OwnedFd) {
    let (told, kept) = next_with_file(manager);
    let name = told.strip_prefix("FDSTORE=1\nFDPOLL=0\nFDNAME=").unwrap_or_else(|| panic!("{told}"));
    (name.to_owned(), kept.expect("the socket"))
}

/// Starts a network as systemd starts a unit again that has the socket `kept` in its store.
fn started_again(folder: &std::path::Path, name: &str, kept: &OwnedFd) -> Running {
    let mut command = Command::new("sh");
    let script = "exec 3<&0 < /dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=$1 exec \"$0\" up net.toml";
    command.args(["-c", script, env!("CARGO_BIN_EXE_memlane"), name]).current_dir(folder).stdin(kept.try_clone().unwrap());
    command
        .env("XDG_RUNTIME_DIR", folder)
        .env("XDG_STATE_HOME", folder.join("state-home"))
        .env("NOTIFY_SOCKET", folder.join("notify"))
        .env("FDSTORE", "16");
    Running::start(command)
}

/// systemd's descriptor store (sd_pid_notify_with_fds(3), `FileDescriptorStoreMax=` of systemd.service(5)).
#[test]
fn a_front_end_that_connects_during_a_restart_waits_for_the_next_process() {
    let folder = network("web.sock");
    let folder = folder.path();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(6 * TIMEOUT)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", folder.join("notify")).env("FDSTORE", "16");
    let mut running = Running::start(command);
    let (name, kept) = next_kept(&manager);
    assert!(next(&manager).starts_with("READY=1\n"));
    // An orderly restart, and a crash.
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        kill(Pid::from_raw(running.0.id() as i32), signal).unwrap();
        if signal == Signal::SIGTERM {
            assert_eq!(next(&manager), "STOPPING=1");
        }
        running.0.wait().unwrap();
        let guest = std::thread::scope(|scope| {
            let waits = scope.spawn(|| ToyGuest::builder().timeout(6 * TIMEOUT).connect(folder.join("web.sock")));
            let mut queue = [PollFd::new(kept.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut queue, PollTimeout::try_from(TIMEOUT).unwrap()), Ok(1), "it is in the queue");
            running = started_again(folder, &name, &kept);
            waits.join().unwrap().expect("it is served")
        });
        assert!(next(&manager).starts_with("READY=1\n"), "the store has the socket already");
        assert!(guest.connected());
    }
    // After a takeover, too: the store has the socket, and the process is told of no other.
    kill(Pid::from_raw(running.0.id() as i32), Signal::SIGUSR2).unwrap();
    let main = next(&manager);
    let successor = Pid::from_raw(main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}")).parse().unwrap());
    assert!(next(&manager).starts_with("READY=1\n"));
    kill(successor, Signal::SIGTERM).unwrap();
    assert_eq!(next(&manager), "STOPPING=1");
    // The successor's command line is empty, or gone, once its files are closed.
    let command_line = || std::fs::read(format!("/proc/{successor}/cmdline")).unwrap_or_default();
    wait_until(|| command_line().is_empty(), "the successor has ended");
    assert!(folder.join("web.sock").exists(), "its socket stays");
    // A socket is kept no longer once its file was replaced, and its successor is.
    std::fs::remove_file(folder.join("web.sock")).unwrap();
    let _running = started_again(folder, &name, &kept);
    let (other, _) = next_kept(&manager);
    assert_eq!(next(&manager), format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    assert!(name != other && next(&manager).starts_with("READY=1\n"));
    // Nor is that of a port that is detached.
    printed(folder, &["detach", "net.toml", "web"]);
    assert_eq!(next(&manager), format!("FDSTOREREMOVE=1\nFDNAME={other}"));
    assert!(!folder.join("web.sock").exists());
}

/// The process before has given the kept socket's file to the user that the network's file names.
#[test]
fn a_kept_socket_that_was_given_away_is_used_again_and_can_be_taken_back() {
    let folder = network("web.sock");
    let folder = folder.path();
    let (own, other) = (nix::unistd::geteuid(), nix::unistd::Uid::from_raw(65534));
    let given = if own.is_root() { other } else { own };
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(6 * TIMEOUT)).unwrap();
    let port = "[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n";
    let owned = format!("{port}access = {{ owner = \"{given}\", mode = \"0620\" }}\n");
    let rights = || {
        let file = std::fs::metadata(folder.join("web.sock")).unwrap();
        (file.uid(), file.mode() & 0o777)
    };
    write(folder, "net.toml", &owned);
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", folder.join("notify")).env("FDSTORE", "16");
    let mut running = Running::start(command);
    let (name, kept) = next_kept(&manager);
    assert!(next(&manager).starts_with("READY=1\n"));
    for (text, expected) in [(&*owned, (given.as_raw(), 0o620)), (&*owned, (given.as_raw(), 0o620)), (port, (own.as_raw(), 0o600))]
    {
        kill(Pid::from_raw(running.0.id() as i32), Signal::SIGKILL).unwrap();
        running.0.wait().unwrap();
        write(folder, "net.toml", text);
        running = started_again(folder, &name, &kept);
        assert!(next(&manager).starts_with("READY=1\n"), "the store has the socket already");
        assert_eq!(rights(), expected);
    }
}

#[test]
fn a_service_manager_in_the_abstract_namespace_is_notified() {
    let folder = network("web.sock");
    let name = format!("memlane-test-{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&UnixAddress::from_abstract_name(&name).unwrap()).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = memlane(folder.path(), &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let _running = Running::start(command);
    assert!(next(&manager).starts_with("READY=1\n"));
}

/// Times that the worker of the network in `folder` went to sleep.
fn sleeps(folder: &std::path::Path) -> u64 {
    // `memlane status` asks workers for blocked queues, which wakes them; the network's report does not.
    let (_, report) = asked(UnixStream::connect(folder.join("control")).unwrap(), "GET /v1/network HTTP/1.1");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    report["workers"][0]["sleeps"].as_u64().unwrap()
}

#[test]
fn a_keep_alive_message_costs_an_idle_worker_one_wake_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ports: String = (0..100).map(|n| format!("[[port]]\nname = \"p{n}\"\nnull = true\n")).collect();
    write(folder, "net.toml", &format!("control = \"control\"\n{ports}"));
    let socket = folder.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "1000000").env_remove("WATCHDOG_PID");
    let _running = Running::start(command);
    assert_eq!(next(&manager), "READY=1\nSTATUS=100 ports, 100 running, 0 quarantined");
    // Read at once, so that none is lost while the counters are read.
    let (tell, messages) = std::sync::mpsc::channel();
    std::thread::spawn(move || while tell.send(next(&manager)).is_ok() {});
    let keep_alive = || assert_eq!(messages.recv_timeout(TIMEOUT).unwrap(), "WATCHDOG=1");
    keep_alive();
    let mut windows = Vec::new();
    let is_one_each = |&(count, wakes): &(u64, u64)| (5..=count + 1).contains(&wakes);
    // The first windows may have the last wake-ups of the network's start.
    while windows.len() < 10 && !windows.last().is_some_and(is_one_each) {
        let before = sleeps(folder);
        let count = messages.try_iter().count();
        (0..6).for_each(|_| keep_alive());
        let wakes = sleeps(folder) - before;
        // One check may have begun before each look at the counters, with its message after it.
        windows.push(((count + 6 + messages.try_iter().count()) as u64, wakes));
    }
    assert!(windows.last().is_some_and(is_one_each), "messages and wake-ups: {windows:?}");
}

#[test]
fn a_check_is_one_line_and_an_exit_code() {
    let folder = network("web.sock");
    let folder = folder.path();
    let check = |arguments: &[&str]| memlane(folder, arguments).output().unwrap();
    let output = check(&["status", "net.toml", "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).starts_with("memlane: cannot connect to the control socket "), "{}", told(&output));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let mut output = output;
    let mut answers = || {
        output = check(&["status", "net.toml", "--check"]);
        output.status.success()
    };
    wait_until(&mut answers, "the worker answers in time");
    let text = "network net is ready: 1 port, 0 running, 0 quarantined; 1 worker answers\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), text);
}

/// The answer of `/metrics` at `address`.
fn scraped(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The socket is one of a socket unit with `FileDescriptorName=metrics` (sd_listen_fds(3)).
#[test]
fn metrics_are_served_at_a_socket_of_the_service_manager_also_after_a_takeover() {
    let folder = network("web.sock");
    let folder = folder.path();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(6 * TIMEOUT)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = Command::new("sh");
    let script = "exec 3<&0 < /dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=metrics exec \"$0\" up net.toml";
    command.args(["-c", script, env!("CARGO_BIN_EXE_memlane")]).current_dir(folder).stdin(OwnedFd::from(listener));
    command
        .env("XDG_RUNTIME_DIR", folder)
        .env("XDG_STATE_HOME", folder.join("state-home"))
        .env("NOTIFY_SOCKET", folder.join("notify"));
    let mut running = Running::start(command);
    assert!(next(&manager).starts_with("READY=1\n"));
    assert!(scraped(address).contains("memlane_port_info{"));
    kill(Pid::from_raw(running.0.id() as i32), Signal::SIGUSR2).unwrap();
    let main = next(&manager);
    let successor = Pid::from_raw(main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}")).parse().unwrap());
    assert!(next(&manager).starts_with("READY=1\n"));
    wait_until(|| !running.lives(), "the process that served the network has ended");
    assert!(scraped(address).contains("memlane_port_info{"));
    kill(successor, Signal::SIGKILL).unwrap();
}
