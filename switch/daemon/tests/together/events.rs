//! Events of a network reach all readers in order, at bounded cost.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use crate::command::{Running, memlane, network, printed, wait_until, write};
use crate::common::{TIMEOUT, frame, mac};
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::Value;

const NETWORK: &str = "control = \"control\"\n[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n[[port]]\nname = \"db\"\nvhost-user = \"db.sock\"\n";

fn up(folder: &Path) -> Running {
    write(folder, "net.toml", NETWORK);
    Running::start(memlane(folder, &["up", "net.toml"]))
}

fn guest(folder: &Path, name: &str, index: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(folder.join(format!("{name}.sock"))).unwrap()
}

/// The events so far.
fn events(folder: &Path) -> Vec<Value> {
    printed(folder, &["events", "net.toml", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Names of the events about `port`.
fn names(folder: &Path, port: &str) -> Vec<String> {
    let about = events(folder).into_iter().filter(|event| event["port"] == port);
    about.map(|event| event["event"].as_str().unwrap().into()).collect()
}

#[test]
fn a_front_end_that_comes_and_goes_and_the_first_drop_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder);
    let mut web = guest(folder, "web", 0);
    // The port's own address is behind its own port.
    web.send(&frame(mac(0), mac(0), 100, 1)).unwrap();
    wait_until(|| names(folder, "web").iter().any(|name| name == "first-drop"), "the drop is told");
    drop(web);
    wait_until(|| names(folder, "web").iter().any(|name| name == "front-end-left"), "the end is told");
    assert_eq!(names(folder, "web"), ["port-attached", "front-end-connected", "port-running", "first-drop", "front-end-left"]);
    let all = events(folder);
    assert!(all.iter().enumerate().all(|(index, event)| event["sequence"] == index && event["time"].as_f64().unwrap() > 1.7e9));
    let drop = all.iter().find(|event| event["event"] == "first-drop").unwrap();
    assert_eq!((drop["reason"].as_str(), drop["frames"].as_u64()), (Some("same-port"), Some(1)));
    let connected = all.iter().find(|event| event["event"] == "front-end-connected").unwrap();
    assert!(connected["program"].as_str().unwrap().contains(&format!("{}", std::process::id())), "{connected}");
    let told = printed(folder, &["events", "net.toml"]);
    assert!(told.contains(" web: first drops for same-port: 1 frame\n"), "{told}");
}

/// The events with this name.
fn told_of(folder: &Path, name: &str) -> Vec<Value> {
    events(folder).into_iter().filter(|event| event["event"] == name).collect()
}

#[test]
fn an_address_that_moves_and_a_limit_that_is_reached_are_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", &NETWORK.replace("web.sock\"\n", "web.sock\"\ntransmit = { packets = 1 }\n"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    // Both have the address of the first; each round waits until the frame has passed.
    let hello = |number| frame(mac(0), mac(9), 100, number);
    web.send(&hello(0)).unwrap();
    assert_eq!(db.receive(TIMEOUT).unwrap().bytes, hello(0));
    db.send(&hello(1)).unwrap();
    assert_eq!(web.receive(TIMEOUT).unwrap().bytes, hello(1));
    wait_until(|| !told_of(folder, "address-moved").is_empty(), "the move is told");
    db.send(&frame(mac(1), mac(9), 100, 2)).unwrap();
    assert_eq!(web.receive(TIMEOUT).unwrap().bytes, frame(mac(1), mac(9), 100, 2));
    let moved = &told_of(folder, "address-moved")[..];
    let fields = ["segment", "address", "from", "to"].map(|field| moved[0][field].as_str().unwrap());
    assert_eq!((moved.len(), fields), (1, ["lan", "02:00:00:00:00:00", "web", "db"]));
    // A burst of one second's worth, and more.
    for number in 0..40 {
        web.send(&frame(mac(2), mac(9), 100, number)).unwrap();
    }
    wait_until(|| !told_of(folder, "limit-reached").is_empty(), "the limit is told");
    let limit = &told_of(folder, "limit-reached")[..];
    assert_eq!((limit.len(), limit[0]["port"].as_str(), limit[0]["direction"].as_str()), (1, Some("web"), Some("transmit")));
    assert!(limit[0]["times"].as_u64().unwrap() > 0);
}

#[test]
fn a_network_that_does_not_run_is_told_as_that() {
    let folder = network("web.sock");
    let _other = Running::start(memlane(folder.path(), &["up", "--name", "other"]));
    for arguments in [&["events", "net.toml"], &["capture", "net.toml"]] {
        let output = memlane(folder.path(), arguments).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.starts_with("memlane: cannot connect to the control socket "), "{told}");
    }
}

#[test]
fn what_the_operator_changes_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder);
    printed(folder, &["set", "net.toml", "db", "--enabled", "false"]);
    printed(folder, &["set", "net.toml", "db", "--enabled", "true"]);
    printed(folder, &["detach", "net.toml", "db"]);
    printed(folder, &["reload", "net.toml"]);
    write(folder, "net.toml", "weight = 1\n");
    assert!(!memlane(folder, &["reload", "net.toml"]).stderr(Stdio::null()).status().unwrap().success());
    assert_eq!(names(folder, "db"), ["port-attached", "port-disabled", "port-enabled", "port-detached", "port-attached"]);
    let reloaded = events(folder).into_iter().rfind(|event| event["event"] == "reloaded").unwrap();
    assert_eq!(reloaded["added"], serde_json::json!(["db"]));
}

#[test]
fn the_log_may_be_lines_of_json() {
    let folder = network("web.sock");
    let folder = folder.path();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("MEMLANE_LOG_FORMAT", "json").stderr(Stdio::piped());
    let mut running = Running::start(command);
    drop(UnixStream::connect(folder.join("web.sock")).unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let json: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((json["level"].as_str(), json["port"].as_str()), (Some("INFO"), Some("web")));
    assert!(json["message"].as_str().unwrap().starts_with("web: front end connected: "), "{json}");
}

/// A pipe that is full: its reader stands still.
fn full_pipe() -> (PipeReader, PipeWriter, usize) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = |flags| fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    flags(OFlag::O_NONBLOCK);
    let mut filled = 0;
    while let Ok(written) = (&writer).write(&[b'\n'; 4096]) {
        filled += written;
    }
    flags(OFlag::empty());
    (reader, writer, filled)
}

/// The log is read by a pager that was left open, or by a collector of logs that hangs.
#[test]
fn a_log_that_nothing_reads_keeps_no_guest_from_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", NETWORK);
    let (mut reader, writer, filled) = full_pipe();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("MEMLANE_LOG_FORMAT", "json").stderr(writer);
    let _running = Running::start(command);
    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    web.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    assert_eq!(db.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(1), 100, 1));
    // Once it is read, the log goes on, and tells how many lines it lacks.
    reader.read_exact(&mut vec![0; filled]).unwrap();
    drop(web);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let line = told.recv_timeout(TIMEOUT).unwrap();
    let json: Value = serde_json::from_str(&line).unwrap();
    assert!(json["level"] == "WARN" && json["left_out"].as_u64() >= Some(4), "two front ends came, and two ports run: {line}");
    let line = told.recv_timeout(TIMEOUT).unwrap();
    assert!(line.contains("front end disconnected") || line.contains("left"), "{line}");
}

/// Ends with the test.
struct Follower(Child);

impl Follower {
    fn start(folder: &Path, arguments: &[&str]) -> (Self, BufReader<ChildStdout>) {
        let mut child = memlane(folder, arguments).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (Self(child), output)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_follows_hears_of_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let running = up(folder);
    let (mut follower, mut output) = Follower::start(folder, &["events", "net.toml", "-f"]);
    let mut next = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.splitn(3, ' ').nth(2).map(str::to_owned).unwrap_or_default()
    };
    assert_eq!([next(), next()], ["web: attached to segment lan\n", "db: attached to segment lan\n"]);
    let _web = guest(folder, "web", 0);
    assert!(next().starts_with("web: front end connected: "));
    assert_eq!(next(), "web: running\n");
    // The end of the network is the end of its events.
    drop(running);
    assert_eq!(next(), "");
    assert!(follower.0.wait().unwrap().success());
}

#[test]
fn a_browser_gets_server_sent_events_from_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let _running = up(folder.path());
    let mut stream = UnixStream::connect(folder.path().join("control")).unwrap();
    let request = "GET /v1/events?end=true HTTP/1.0\r\nhost: a\r\naccept: text/event-stream\r\nlast-event-id: 0\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert!(
        body.starts_with("id: 1\nevent: port-attached\ndata: {\"sequence\":1,") && body.ends_with("\"segment\":\"lan\"}\n\n"),
        "{body}"
    );
    let mut stream = UnixStream::connect(folder.path().join("control")).unwrap();
    stream.write_all(b"GET /v1/events?last=7 HTTP/1.0\r\nhost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 422"), "{answer}");
}

/// Readers that stop reading take neither connections nor memory of others.
#[test]
fn readers_that_stop_reading_lock_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder);
    // The process may have fewer descriptors than readers.
    memlane::descriptors::raise_limit().unwrap();
    let readers: Vec<_> = (0..1000)
        .map(|_| {
            let mut stream = UnixStream::connect(folder.join("control")).unwrap();
            let _ = stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: a\r\n\r\n");
            stream
        })
        .collect();
    for _ in 0..5 {
        assert!(printed(folder, &["ls", "net.toml"]).contains("web"));
    }
    drop(readers);
    // Readers that have gone are noticed.
    let follows = || {
        let (mut follower, mut output) = Follower::start(folder, &["events", "net.toml", "-f"]);
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let _ = follower.0.kill();
        !line.is_empty()
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !follows() {
        assert!(std::time::Instant::now() < deadline, "places are taken for ever");
    }
}

/// A front end that reconnects all the time can neither fill the log nor push the events of others out.
#[test]
fn a_port_that_reconnects_all_the_time_adds_few_events() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", NETWORK);
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.stderr(log);
    let _running = Running::start(command);
    let reconnects = std::env::var("MEMLANE_RECONNECTS").map_or(2000, |number| number.parse().unwrap());
    for _ in 0..reconnects {
        drop(UnixStream::connect(folder.join("web.sock")).unwrap());
    }
    let (all, lines) = (events(folder), std::fs::read_to_string(folder.join("log")).unwrap().lines().count());
    assert!(all.len() < 300, "{} events", all.len());
    assert!((1..1000).contains(&lines), "{lines} lines of the log");
    assert_eq!(all[1]["port"], "db", "what was told before is there");
    wait_until(
        || {
            drop(UnixStream::connect(folder.join("web.sock")).unwrap());
            events(folder).iter().any(|event| event["event"] == "left-out" && event["events"].as_u64().unwrap() > 0)
        },
        "it is told how many were left out",
    );
}
