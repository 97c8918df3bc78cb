//! A port has one front end: others are answered at once, with the process that has the port. The log tells of those that come and
//! go.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::command::{Running, TIMEOUT, memlane, port, printed, wait_until, write};
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use serde_json::Value;

/// A network with a vhost-user port "web", a stream port "qemu" and a file for its log.
fn network(level: Option<&str>) -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    let stream = "[[port]]\nname = \"qemu\"\nstream = \"qemu.sock\"\n";
    write(folder.path(), "net.toml", &format!("{}{stream}", port("web.sock", "")));
    let mut command = memlane(folder.path(), &["up", "net.toml"]);
    command.stderr(File::create(folder.path().join("log")).unwrap());
    command.envs(level.map(|level| ("MEMLANE_LOG", level)));
    let running = Running::start(command);
    (folder, running)
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap()
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Asserts that the connection ends before anything comes.
fn assert_ends(mut stream: UnixStream) {
    match stream.read(&mut [0; 1]) {
        Ok(count) => assert_eq!(count, 0, "something is answered"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "no answer: {error}"),
    }
}

/// Whether a vhost-user back end answers at `socket`: to GET_FEATURES.
fn is_served(socket: &Path) -> bool {
    let mut stream = connect(socket);
    let question: Vec<u8> = [1_u32, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    stream.write_all(&question).is_ok() && stream.read_exact(&mut [0; 20]).is_ok()
}

fn guest(socket: &Path) -> ToyGuest {
    ToyGuest::builder().timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20)).connect(socket).unwrap()
}

/// Value of the key `key` of a port.
fn of_port(folder: &Path, port: usize, key: &str) -> Value {
    let ports: Value = serde_json::from_str(&printed(folder, &["ls", "net.toml", "--json"])).unwrap();
    ports[port][key].clone()
}

#[test]
fn another_front_end_is_turned_away_at_once_and_is_told_whose_the_port_is() {
    let (folder, _running) = network(None);
    let folder = folder.path();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap();
    let holder = format!("{} (pid {}, uid {})", program.trim(), std::process::id(), nix::unistd::geteuid());
    for (index, name) in ["web", "qemu"].into_iter().enumerate() {
        let socket = folder.join(format!("{name}.sock"));
        // One that says nothing has the port all the same; so has one that stops in the middle of a message, of a length or of a header.
        let mut first = connect(&socket);
        wait_until(|| of_port(folder, index, "front-end") != Value::Null, "the first one has the port");
        assert_ends(connect(&socket));
        first.write_all(&[0; 3]).unwrap();
        assert_ends(connect(&socket));
        let status = printed(folder, &["status", "net.toml"]).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            status.contains(&format!("{name}: refused 2 connections of other front ends, because {holder} uses the port")),
            "{status}"
        );
        let logged = log(folder);
        let lines: Vec<_> =
            logged.lines().filter(|line| line.contains("was refused") && line.contains(&format!("port={name}"))).collect();
        let [line] = lines[..] else { panic!("it is told of once, however often it connects: {logged}") };
        assert!(line.contains(&format!("the port is in use by {holder}")) && line.contains("cpr-transfer"), "{line}");
        drop(first);
        wait_until(|| of_port(folder, index, "front-end") == Value::Null, "the port is free");
    }
    // A running guest is no less in the way, and no worse off for those that try.
    let socket = folder.join("web.sock");
    let guest = guest(&socket);
    wait_until(|| of_port(folder, 0, "state") == "running", "the port runs");
    assert_ends(connect(&socket));
    assert_eq!(of_port(folder, 0, "state"), "running");
    drop(guest);
    wait_until(|| is_served(&socket), "the next one is served");
}

#[test]
fn the_log_tells_of_front_ends_that_come_agree_and_go() {
    let (folder, _running) = network(None);
    let folder = folder.path();
    drop(guest(&folder.join("web.sock")));
    wait_until(|| log(folder).contains("front end left: the connection ended"), "its end is logged");
    let logged = log(folder);
    for wanted in [
        "INFO",
        "port=web",
        "front end connected: ",
        " (pid ",
        "features agreed: ",
        " VERSION_1",
        "RX queue 0 started, ",
        "TX queue 0 started, ",
    ] {
        assert!(logged.contains(wanted), "{wanted}: {logged}");
    }
    assert!(!logged.contains("SET_FEATURES"), "{logged}");
}

#[test]
fn the_conversation_is_logged_where_that_is_asked_for() {
    let (folder, _running) = network(Some("debug"));
    let folder = folder.path();
    drop(guest(&folder.join("web.sock")));
    wait_until(|| log(folder).contains("front end left"), "its end is logged");
    let logged = log(folder);
    for wanted in
        ["DEBUG", "front end sends SET_FEATURES (8 bytes, 0 descriptors)", "ADD_MEM_REG (40 bytes, 1 descriptor)", "SET_VRING_KICK"]
    {
        assert!(logged.contains(wanted), "{wanted}: {logged}");
    }
}

#[test]
fn those_that_connect_again_and_again_fill_no_log() {
    let (folder, _running) = network(None);
    let folder = folder.path();
    let started = std::time::Instant::now();
    for _ in 0..1500 {
        drop(connect(&folder.join("web.sock")));
    }
    wait_until(|| is_served(&folder.join("web.sock")), "all are served");
    // Burst and rate, as they are for 100 000 of them: below 200 lines a minute.
    let most = 40 + 3 * started.elapsed().as_secs() as usize;
    let lines = log(folder).lines().count();
    assert!((10..=most).contains(&lines), "{lines} lines, where {most} are the most");
}
