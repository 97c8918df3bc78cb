//! A running network is taken over by another process without a gap: no frame is lost, none arrives twice, front ends see nothing; and
//! if the other process fails, the network goes on.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memlane::control::identity::NetFile;
use memlane::control::{Client, ControlError, PortReport};
use memlane::daemon::takeover::give::{KEY_HEADER, Key};
use memlane::daemon::takeover::{Channel, ChannelError, HEADER, Message, PROTOCOL};
use memlane::description::Hello;
use memlane_rig::guest::{GuestError, SendBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{Running, memlane, printed, told, write};
use crate::common::{TIMEOUT, announce, frame, mac, wait_until};

/// Takeovers in one run; `make prove` makes more.
fn rounds() -> u64 {
    std::env::var("MEMLANE_TAKEOVERS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

/// Whether the takeovers are to be as short as users' are: in the program that users have, with nothing beside it.
fn are_measured() -> bool {
    std::env::var_os("MEMLANE_TAKEOVERS").is_some() && !cfg!(debug_assertions)
}

/// Longest time for a loaded machine.
const LATE: Duration = Duration::from_secs(60);

/// The file of a network with so many ports.
pub fn net(folder: &Path, ports: usize) {
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n");
    let text = format!("workers = 2\ncontrol = \"control\"\n{}", (0..ports).map(port).collect::<String>());
    write(folder, "net.toml", &text);
}

fn guest(folder: &Path, index: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(folder.join(format!("p{index}.sock"))).unwrap()
}

/// A network in `folder` that serves two guests, which know each other.
fn two_guests(folder: &Path) -> (Running, ToyGuest, ToyGuest) {
    net(folder, 2);
    let running = Running::start(memlane(folder, &["up", "net.toml"]));
    let [mut a, mut b] = [0, 1].map(|index| guest(folder, index));
    announce(&mut [&mut a, &mut b]);
    (running, a, b)
}

/// A process takes the network of `folder` over from `running`, which ends.
pub fn take_over(folder: &Path, running: &mut Running) {
    let other = Running::start(memlane(folder, &["up", "net.toml", "--takeover"]));
    let mut before = std::mem::replace(running, other);
    assert!(ends(&mut before.0).success());
}

/// Ends a process that is no child of this one.
struct Killed(Pid);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

fn ends(process: &mut Child) -> std::process::ExitStatus {
    let mut status = None;
    wait_until(
        || {
            status = process.try_wait().unwrap();
            status.is_some()
        },
        "a process ends",
    );
    status.unwrap()
}

/// Most frames on their way, fewer than a receive queue has buffers.
const WINDOW: u64 = 100;

/// Numbered frames from one guest to another, as fast as both can, until it is stopped. A frame that is lost, or that comes twice or
/// late, ends it with a panic.
struct Traffic {
    thread: JoinHandle<(ToyGuest, ToyGuest)>,
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    /// Longest time without a frame, in microseconds.
    gap: Arc<AtomicU64>,
}

/// Counters of all ports, for a failure.
fn counters(folder: &Path) -> String {
    let report: serde_json::Value = serde_json::from_str(&printed(folder, &["status", "net.toml", "--json"])).unwrap();
    report["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| format!("{} {} {}\n", port["transmit-frames"], port["receive-frames"], port["drops"]))
        .collect()
}

impl Traffic {
    fn start(folder: &Path, mut from: ToyGuest, mut to: ToyGuest) -> Self {
        let folder = folder.to_owned();
        let (stop, arrived, gap): (Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let (stops, counts, gaps) = (Arc::clone(&stop), Arc::clone(&arrived), Arc::clone(&gap));
        let thread = std::thread::spawn(move || {
            let (mut sent, mut expected, mut last) = (0, 0, Instant::now());
            loop {
                let stopped = stops.load(Ordering::Relaxed);
                // The receiver always has buffers: if this thread does not run for a while, no frame is dropped for that.
                if !stopped && sent < expected + WINDOW {
                    match from.send(&frame(from.mac(), to.mac(), 64, sent)) {
                        Ok(_) => sent += 1,
                        Err(GuestError::NoSendBuffer(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                while let Some(frame) = to.try_receive().unwrap() {
                    let number = u64::from_be_bytes(frame.bytes[14..22].try_into().unwrap());
                    assert!(number == expected, "frame {number} instead of {expected}, of {sent}: {}", counters(&folder));
                    expected += 1;
                    gaps.fetch_max(last.elapsed().as_micros() as u64, Ordering::Relaxed);
                    last = Instant::now();
                }
                if sent >= expected + WINDOW {
                    std::thread::yield_now();
                }
                counts.store(expected, Ordering::Relaxed);
                if stopped && expected == sent {
                    return (from, to);
                }
                assert!(last.elapsed() < LATE, "{expected} of {sent} frames arrived: {}", counters(&folder));
            }
        });
        Self { thread, stop, arrived, gap }
    }

    /// Waits until frames arrive that were sent after this.
    fn flows(&self) {
        let before = self.arrived.load(Ordering::Relaxed);
        wait_until(|| self.thread.is_finished() || self.arrived.load(Ordering::Relaxed) > before + 2000, "frames arrive");
    }

    fn stop(self) -> (ToyGuest, ToyGuest, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let (from, to) = self.thread.join().expect("no frame is lost");
        (from, to, self.arrived.load(Ordering::Relaxed))
    }
}

#[test]
fn takeovers_under_traffic_lose_no_frame_and_double_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 3);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let [mut a, mut b, mut c] = [0, 1, 2].map(|index| guest(folder, index));
    announce(&mut [&mut a, &mut b, &mut c]);
    let traffic = Traffic::start(folder, a, b);
    let mut gaps: Vec<_> = (0..rounds())
        .map(|_| {
            traffic.flows();
            traffic.gap.store(0, Ordering::Relaxed);
            take_over(folder, &mut running);
            traffic.flows();
            traffic.gap.load(Ordering::Relaxed)
        })
        .collect();
    gaps.sort_unstable();
    let gap = |percent: usize| gaps[(gaps.len() - 1) * percent / 100];
    println!("longest gap of each of {} takeovers: p50 {} us, p99 {} us", gaps.len(), gap(50), gap(99));
    if are_measured() {
        assert!(gap(99) < 20_000, "{gaps:?} us");
    }
    let (a, b, arrived) = traffic.stop();
    assert!(a.connected() && b.connected() && c.connected());
    // Learned addresses went along: nothing was flooded.
    assert!(c.try_receive().unwrap().is_none());
    // And so did the counters; each guest has sent one frame to be known.
    let report: serde_json::Value = serde_json::from_str(&printed(folder, &["status", "net.toml", "--json"])).unwrap();
    let counter = |port: usize, name: &str| report["ports"][port][name].as_u64();
    assert_eq!((counter(0, "transmit-frames"), counter(1, "receive-frames")), (Some(arrived + 1), Some(arrived + 2)), "{report}");
    // The sockets are those of the process that runs, and it removes them in the end.
    drop(c);
    let mut again = guest(folder, 2);
    let mut a = a;
    a.send(&frame(a.mac(), [0xff; 6], 60, 7)).unwrap();
    assert_eq!(again.receive(TIMEOUT).unwrap().bytes, frame(a.mac(), [0xff; 6], 60, 7));
    printed(folder, &["down", "net.toml"]);
    assert!(ends(&mut running.0).success());
    assert!(!folder.join("p0.sock").exists() && !folder.join("control").exists());
}

/// The takeover comes in the middle of QEMU's cpr-transfer: the second front end has asked its questions, and waits for the port.
#[test]
fn a_second_front_end_beside_the_first_is_handed_over_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |n: usize, more: &str| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n{more}");
    let ports = port(0, "second = \"replace\"\n") + &port(1, "");
    write(folder, "net.toml", &format!("control = \"control\"\n{ports}"));
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let [mut first, mut b] = [0, 1].map(|index| guest(folder, index));
    announce(&mut [&mut first, &mut b]);
    let builder = ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    let mut second = builder.started(false).connect(folder.join("p0.sock")).unwrap();
    // In the middle of a message.
    let question = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    second.frontend().unwrap().stream().write_all(&question[..5]).unwrap();
    for _ in 0..2 {
        take_over(folder, &mut running);
        first.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
        b.receive(TIMEOUT).unwrap();
        assert!(first.connected() && second.connected());
    }
    let mut stream = second.frontend().unwrap().stream();
    stream.write_all(&question[5..]).unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
    assert!(first.connected());
    second.start().unwrap();
    wait_until(|| !first.connected(), "the second one has the port");
    announce(&mut [&mut second, &mut b]);
    b.send(&frame(mac(1), mac(0), 100, 2)).unwrap();
    second.receive(TIMEOUT).unwrap();
}

#[test]
fn ephemeral_ports_go_with_their_front_ends_after_a_takeover_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 1);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    for index in 1..4 {
        let socket = format!("p{index}.sock");
        printed(folder, &["attach", "net.toml", &format!("p{index}"), "--vhost-user", &socket, "--ephemeral"]);
    }
    let [permanent, connected, leaves] = [0, 1, 2].map(|index| guest(folder, index));
    let exists = |index: usize| client(folder).get::<PortReport>(&format!("/v1/ports/p{index}")).is_ok();
    // The front end leaves within the grace time, or before.
    drop(leaves);
    take_over(folder, &mut running);
    wait_until(|| !exists(2), "the port of the front end that left before the takeover");
    assert!(connected.connected() && exists(1) && exists(3));
    drop((permanent, connected));
    wait_until(|| !exists(1), "the port of the front end that left after it");
    assert!(exists(0) && exists(3));
}

fn client(folder: &Path) -> Client {
    Client::new(&folder.join("control"))
}

/// Asks for the network of `folder`, with its key.
fn asking(folder: &Path) -> UnixStream {
    let mark = memlane::config::file_mark(&folder.join("net.toml"));
    let key = Key::of(&folder.join(format!("memlane/net-{mark}.d"))).unwrap();
    client(folder).upgrade("/v1/takeover", PROTOCOL, Some((KEY_HEADER, key.text()))).unwrap()
}

fn channel(folder: &Path) -> Channel {
    Channel::new(asking(folder))
}

/// The default state file of the network in `folder`.
fn state_of(folder: &Path) -> PathBuf {
    let states = std::fs::read_dir(folder.join("state-home/memlane")).unwrap();
    let [state] = &states.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..] else { panic!("not one state file") };
    state.clone()
}

/// A channel on which this process has asked for the network, with its state file or another one.
fn asked(folder: &Path, state: Option<&str>) -> Channel {
    let mut channel = channel(folder);
    let state = state.map_or_else(|| state_of(folder), Into::into);
    channel.send(&Message::Hello(Hello { state: Some(state) }), &[], TIMEOUT).unwrap();
    channel
}

#[test]
fn a_user_id_does_not_suffice_to_take_a_network_over() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 1);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    for shown in
        [None, Some((KEY_HEADER, "")), Some((KEY_HEADER, "0000000000000000000000000000000000000000000000000000000000000000"))]
    {
        match client(folder).upgrade("/v1/takeover", PROTOCOL, shown) {
            Err(ControlError::Refused(refusal)) => {
                assert_eq!(refusal.status.as_u16(), 403);
                assert!(refusal.to_string().contains("only if it can read the key in "), "{refusal}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Another run-time folder has another key.
    let mut other = memlane(folder, &["up", "net.toml", "--takeover"]);
    let output = other.env("XDG_RUNTIME_DIR", folder.join("other")).output().unwrap();
    assert!(output.status.code() == Some(1) && told(&output).contains("with the same XDG_RUNTIME_DIR"), "{}", told(&output));
    assert!(running.lives());
    take_over(folder, &mut running);
    take_over(folder, &mut running);
    kill(Pid::from_raw(running.0.id() as i32), Signal::SIGTERM).unwrap();
    assert!(ends(&mut running.0).success());
    assert_eq!(std::fs::read_dir(folder.join("memlane")).unwrap().count(), 0, "the key goes with the network");
}

#[test]
fn a_process_that_fails_to_take_over_leaves_the_network_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut running, a, b) = two_guests(folder);
    let traffic = Traffic::start(folder, a, b);
    let goes_on = |what: &str| {
        traffic.flows();
        assert!(!traffic.thread.is_finished(), "{what}");
    };
    let refused = |channel: &mut Channel, cause: &str| match channel.receive(LATE) {
        Err(ChannelError::Failed(told)) => assert!(told.contains(cause), "{told}"),
        other => panic!("{other:?}"),
    };

    let mut stream = asking(folder);
    stream.write_all(&[b'x'; 64]).unwrap();
    refused(&mut Channel::new(stream), "does not speak the takeover protocol");
    let mut stream = asking(folder);
    let mut hello = Message::Hello(Hello::default()).encode(0).unwrap();
    hello[8] = 200;
    stream.write_all(&hello).unwrap();
    refused(&mut Channel::new(stream), "takeover format is 200");
    refused(&mut asked(folder, Some("/a/state")), "the network runs with --state");
    let mut stateless = channel(folder);
    stateless.send(&Message::Hello(Hello::default()), &[], TIMEOUT).unwrap();
    refused(&mut stateless, "the network runs with --state");
    goes_on("garbage, another format, another state file");

    // One that hangs, and another beside it.
    let mut hangs = asked(folder, None);
    assert!(matches!(hangs.receive(LATE).unwrap(), (Message::Description(_), _)));
    refused(&mut asked(folder, None), "another process is taking the network over already");
    goes_on("a process hangs");
    drop(hangs);
    goes_on("a process ended before it was prepared");

    // One that closes its connection when the network stands still. The network may not yet know that the other one ended.
    let (mut late, process, description, files) = loop {
        let (mut channel, process) = asked_by_another(folder);
        match channel.receive(LATE) {
            Ok((Message::Description(description), files)) => break (channel, process, description, files),
            Err(ChannelError::Failed(told)) => assert!(told.contains("already"), "{told}"),
            other => panic!("{other:?}"),
        }
    };
    assert!(description.ports.len() == 2 && files.len() > 10);
    late.send(&Message::Prepared {}, &[], TIMEOUT).unwrap();
    assert!(matches!(late.receive(LATE).unwrap(), (Message::Go(standing), _) if standing.records.len() == 2));
    let before = traffic.arrived.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(20));
    assert!(traffic.arrived.load(Ordering::Relaxed) <= before + 512, "the data path stands still");
    drop((late, files));
    goes_on("a process gave up before it served");
    drop(process);

    // Processes that end with an error.
    write(folder, "other.toml", &std::fs::read_to_string(folder.join("net.toml")).unwrap());
    let output = memlane(folder, &["up", "other.toml", "--takeover"]).output().unwrap();
    assert!(output.status.code() == Some(1) && told(&output).contains("not the network of"), "{}", told(&output));
    let output = memlane(folder, &["up", "net.toml", "--takeover", "--state", "s"]).output().unwrap();
    assert!(output.status.code() == Some(1) && told(&output).contains("runs with --state"), "{}", told(&output));
    assert!(running.lives());
    goes_on("processes that fail");
    let file = NetFile::at(&folder.join("other.toml")).unwrap();
    let other = client(folder).about(Some(file)).upgrade("/v1/takeover", PROTOCOL, None);
    assert!(matches!(other, Err(ControlError::Refused(_))), "{other:?}");

    // And then one that does.
    take_over(folder, &mut running);
    goes_on("it was taken over");
    let (a, b, _) = traffic.stop();
    assert!(a.connected() && b.connected());
}

/// All sockets are there already when the new process fails, and belong to the one that serves; which tells why.
#[test]
fn a_process_that_fails_with_all_sockets_removes_none_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 2);
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = std::fs::read_to_string(folder.join("net.toml")).unwrap();
    write(folder, "net.toml", &format!("metrics = \"{}\"\n{text}", occupied.local_addr().unwrap()));
    let output = memlane(folder, &["up", "net.toml", "--takeover"]).output().unwrap();
    assert!(!output.status.success() && told(&output).contains("cannot listen for scrapes of metrics"), "{}", told(&output));
    let left: Vec<_> = ["control", "p0.sock", "p1.sock"].into_iter().filter(|name| folder.join(name).exists()).collect();
    assert_eq!(left, ["control", "p0.sock", "p1.sock"]);
    let report: serde_json::Value = serde_json::from_str(&printed(folder, &["status", "net.toml", "--json"])).unwrap();
    let cause = report["not-taken-over"].as_str().unwrap_or_default();
    assert!(cause.contains("cannot listen for scrapes of metrics"), "{report}");
}

/// A process at the control socket of `folder` that answers one request for its network with `bytes`, and ends.
fn sends(folder: &Path, bytes: Vec<u8>) -> JoinHandle<()> {
    let listener = UnixListener::bind(folder.join("control")).unwrap();
    std::thread::spawn(move || {
        let mut channel = upgraded(&listener);
        assert!(matches!(channel.receive(LATE).unwrap(), (Message::Hello(_), _)));
        let mut stream = channel.stream();
        stream.write_all(&bytes).unwrap();
    })
}

/// The connection of the next process that asks for a takeover at `listener`.
fn upgraded(listener: &UnixListener) -> Channel {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.extend(byte);
    }
    let answer = format!("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n");
    stream.write_all(answer.as_bytes()).unwrap();
    Channel::new(stream)
}

#[test]
fn a_description_that_is_cut_off_or_changed_is_taken_over_by_no_process() {
    let (served, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_running, _a, _b) = two_guests(served.path());
    let (message, files) = asked(served.path(), None).receive(LATE).unwrap();
    let whole = message.encode(files.len() as u32).unwrap();
    net(cut.path(), 2);
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let lengths = [0, 1, HEADER - 1, HEADER, whole.len() / 2, whole.len() - 1, whole.len()];
    let parts = lengths.map(|length| whole[..length].to_vec());
    for bytes in parts.into_iter().chain([changed]) {
        let (length, process) = (bytes.len(), sends(cut.path(), bytes));
        let output = memlane(cut.path(), &["up", "net.toml", "--takeover"]).output().unwrap();
        assert!(output.status.code() == Some(1), "{length} bytes: {}", told(&output));
        assert!(told(&output).contains("was not taken over, and goes on"), "{length} bytes: {}", told(&output));
        process.join().unwrap();
        // The other process has taken nothing away.
        std::fs::remove_file(cut.path().join("control")).unwrap();
        assert!(!cut.path().join("p0.sock").exists());
    }
}

/// Where a process that is to ask for a network, and that leaves the connection to this one, finds both.
const ASKS: &str = "MEMLANE_TEST_ASKS";

/// A channel on which a process has asked for the network of `folder`, and that process, which does nothing more.
fn asked_by_another(folder: &Path) -> (Channel, Running) {
    let listener = UnixListener::bind(folder.join("asks")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "takeover::a_taker_that_does_nothing_after_go_is_killed_before_the_network_goes_on";
    command.args(["--exact", name]).env(ASKS, folder).stdout(std::process::Stdio::null());
    let asks = Running(command.spawn().unwrap());
    let (stream, _) = listener.accept().unwrap();
    let mut files = Vec::new();
    memlane_backends::takeover::receive(&stream, &mut files).unwrap();
    drop(stream);
    std::fs::remove_file(folder.join("asks")).unwrap();
    let mut channel = Channel::new(OwnedFd::from(files.remove(0)).into());
    channel.send(&Message::Hello(Hello { state: Some(state_of(folder)) }), &[], TIMEOUT).unwrap();
    (channel, asks)
}

/// The process of [`asked_by_another`].
fn ask_and_freeze(folder: &Path) -> ! {
    let asks = asking(folder);
    let stream = UnixStream::connect(folder.join("asks")).unwrap();
    memlane_backends::takeover::send(&stream, &[asks.try_clone().unwrap().into()]).unwrap();
    // Until it was received.
    let _ = (&stream).read(&mut [0]);
    loop {
        // The kernel stops this thread a moment later.
        kill(Pid::this(), Signal::SIGSTOP).unwrap();
    }
}

/// Longest time from Go to the next frame if the successor does not serve: a second, and that for its end; for a loaded machine more.
fn longest_standstill() -> Duration {
    if are_measured() { Duration::from_millis(1500) } else { Duration::from_secs(4) }
}

/// The other process is as one that freezes, or that the kernel holds up: the connection stays open also when it was killed.
#[test]
fn a_taker_that_does_nothing_after_go_is_killed_before_the_network_goes_on() {
    use std::os::unix::process::ExitStatusExt;
    if let Some(folder) = std::env::var_os(ASKS) {
        ask_and_freeze(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_running, a, b) = two_guests(folder);
    let traffic = Traffic::start(folder, a, b);
    let (mut hangs, mut taker) = asked_by_another(folder);
    let (Message::Description(_), _files) = hangs.receive(LATE).unwrap() else { panic!("no description") };
    hangs.send(&Message::Prepared {}, &[], TIMEOUT).unwrap();
    assert!(matches!(hangs.receive(LATE).unwrap(), (Message::Go(_), _)));
    let go = Instant::now();
    let before = traffic.arrived.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(20));
    assert!(traffic.arrived.load(Ordering::Relaxed) <= before + 512, "no ring is served while the other process may serve it");
    traffic.flows();
    assert!(go.elapsed() < longest_standstill(), "{:?}", go.elapsed());
    let status = taker.0.try_wait().unwrap().expect("it ended before frames went on");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let Err(ChannelError::Failed(told)) = hangs.receive(LATE) else { panic!("no reason") };
    let wanted = "the other process failed while it started the data path, and has ended; this one serves again: the other process \
                  did not answer within 1 s";
    assert_eq!(told, wanted);
    let (a, b, _) = traffic.stop();
    assert!(a.connected() && b.connected());
    // And the network can be taken over.
    assert!(matches!(asked(folder, None).receive(LATE).unwrap(), (Message::Description(_), _)));
}

/// A takeover at any step delays the end of the network by no timeout of its own.
#[test]
fn a_signal_ends_the_network_while_another_process_takes_it_over() {
    for step in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (mut running, _a, _b) = two_guests(folder);
        let (mut hangs, _taker) = asked_by_another(folder);
        if step > 0 {
            let (Message::Description(_), _files) = hangs.receive(LATE).unwrap() else { panic!("no description") };
        }
        if step > 1 {
            hangs.send(&Message::Prepared {}, &[], TIMEOUT).unwrap();
            assert!(matches!(hangs.receive(LATE).unwrap(), (Message::Go(_), _)));
        }
        let begun = Instant::now();
        kill(Pid::from_raw(running.0.id() as i32), Signal::SIGTERM).unwrap();
        assert!(ends(&mut running.0).success(), "step {step}");
        let most = if are_measured() { Duration::from_secs(2) } else { Duration::from_secs(4) };
        assert!(begun.elapsed() < most, "step {step}: {:?}", begun.elapsed());
        assert!(!folder.join("control").exists() && !folder.join("p0.sock").exists(), "step {step}: it ended in order");
    }
}

/// A process that is to take over, and is not told to go on, dies of the signal and takes nothing with it.
#[test]
fn a_signal_ends_a_process_that_waits_to_take_over() {
    use std::os::unix::process::ExitStatusExt;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_running, a, b) = two_guests(folder);
    let traffic = Traffic::start(folder, a, b);
    let (mut first, _taker) = asked_by_another(folder);
    let (Message::Description(description), files) = first.receive(LATE).unwrap() else { panic!("no description") };
    drop(first);
    traffic.flows();
    // In place of the network, which does not answer any more once the process is prepared.
    let apart = tempfile::tempdir().unwrap();
    net(apart.path(), 2);
    let listener = UnixListener::bind(apart.path().join("control")).unwrap();
    let mut taker = Running(memlane(apart.path(), &["up", "net.toml", "--takeover"]).spawn().unwrap());
    let mut channel = upgraded(&listener);
    assert!(matches!(channel.receive(LATE).unwrap(), (Message::Hello(_), _)));
    let files: Vec<OwnedFd> = files.into_iter().map(OwnedFd::from).collect();
    channel.send(&Message::Description(description), &files, TIMEOUT).unwrap();
    assert!(matches!(channel.receive(LATE).unwrap(), (Message::Prepared {}, _)));
    kill(Pid::from_raw(taker.0.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(ends(&mut taker.0).signal(), Some(libc::SIGTERM));
    traffic.flows();
    let (a, b, _) = traffic.stop();
    assert!(a.connected() && b.connected() && folder.join("p0.sock").exists());
}

#[test]
fn a_network_that_does_not_run_or_cannot_be_handed_over_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 1);
    let output = memlane(folder, &["up", "net.toml", "--takeover"]).output().unwrap();
    assert!(output.status.code() == Some(1) && told(&output).contains("cannot connect to the control socket"), "{}", told(&output));
}

#[test]
fn the_service_manager_learns_of_the_process_that_took_over() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 1);
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(LATE)).unwrap();
    let next = || {
        let mut text = [0; 256];
        let length = manager.recv(&mut text).expect("a notification");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command = memlane(folder, &["up", "net.toml", "--state", "state"]);
    command.env("NOTIFY_SOCKET", folder.join("notify"));
    let mut running = Running::start(command);
    assert!(next().starts_with("READY=1\n"));
    for _ in 0..2 {
        // Started from a shell, which knows no service manager.
        let mut command = memlane(folder, &["up", "net.toml", "--state", "state", "--takeover"]);
        command.env_remove("NOTIFY_SOCKET");
        let other = Running::start(command);
        assert_eq!(next(), format!("MAINPID={}", other.0.id()));
        assert!(next().starts_with("READY=1\n"));
        assert!(ends(&mut std::mem::replace(&mut running, other).0).success());
    }
    // By a signal, the program is started in the unit of the service manager.
    kill(Pid::from_raw(running.0.id() as i32), Signal::SIGUSR2).unwrap();
    let main = next();
    let pid: i32 = main.strip_prefix("MAINPID=").unwrap_or_else(|| panic!("{main}")).parse().unwrap();
    assert!(next().starts_with("READY=1\n"));
    assert!(ends(&mut running.0).success());
    let _guard = Killed(Pid::from_raw(pid));
    // The state file is the running process's, and no other network's.
    printed(folder, &["attach", "net.toml", "n", "--null"]);
    assert!(std::fs::read_to_string(folder.join("state")).unwrap().contains("null = true"));
    write(folder, "second.toml", "control = \"second\"\n");
    let output = memlane(folder, &["up", "second.toml", "--state", "state"]).output().unwrap();
    assert!(told(&output).contains("is in use by"), "{}", told(&output));
}

/// Lines that `child` prints, as they come.
fn lines(child: &mut Child) -> std::sync::mpsc::Receiver<String> {
    let (tell, told) = std::sync::mpsc::channel();
    let output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || std::io::BufRead::lines(output).map_while(Result::ok).try_for_each(|line| tell.send(line)));
    told
}

#[test]
fn events_and_captures_go_on_over_a_takeover() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut running, mut a, mut b) = two_guests(folder);
    let spawn = |arguments: &[&str]| memlane(folder, arguments).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut reader = spawn(&["events", "net.toml", "--follow", "--json"]);
    let events = lines(&mut reader);
    let mut capture = spawn(&["capture", "net.toml", "-w", "frames.pcapng", "-c", "200"]);
    let event = |wanted: &str| loop {
        let line = events.recv_timeout(LATE).unwrap();
        let report: serde_json::Value = serde_json::from_str(&line).unwrap();
        if report["event"] == wanted {
            return report["sequence"].as_u64().unwrap();
        }
        // Ports that stay are no news.
        assert!(wanted != "port-disabled" || report["event"] != "port-running", "{line}");
    };
    let mut sequence = event("capture-started");
    for _ in 0..2 {
        for number in 0..10 {
            a.send(&frame(a.mac(), b.mac(), 64, number)).unwrap();
            b.receive(TIMEOUT).unwrap();
        }
        take_over(folder, &mut running);
        // The capture begins again at the process that has taken over.
        let begun = event("capture-started");
        assert!(begun > sequence, "numbers ascend: {begun} after {sequence}");
        printed(folder, &["set", "net.toml", "p1", "--enabled", "false"]);
        sequence = event("port-disabled");
        assert!(sequence > begun);
        printed(folder, &["set", "net.toml", "p1", "--enabled", "true"]);
    }
    let mut number = 0;
    while capture.try_wait().unwrap().is_none() {
        a.send(&frame(a.mac(), b.mac(), 64, number)).unwrap();
        b.receive(TIMEOUT).unwrap();
        number += 1;
    }
    assert!(capture.wait().unwrap().success());
    let file = std::fs::read(folder.join("frames.pcapng")).unwrap();
    let sections = file.windows(4).filter(|four| four == &[0x0a, 0x0d, 0x0d, 0x0a]).count();
    assert_eq!(sections, 3, "one of each process");
    printed(folder, &["down", "net.toml"]);
    assert!(ends(&mut reader).success(), "the reader ends with the network");
}

#[test]
fn drops_of_long_ago_are_no_event_of_the_process_that_took_over() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\nmac = \"02:00:00:00:00:0{n}\"\n");
    write(folder, "net.toml", &format!("control = \"control\"\n{}{}", port(0), port(1)));
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let [mut a, mut b] = [0, 1].map(|index| guest(folder, index));
    announce(&mut [&mut a, &mut b]);
    let drops = || {
        let text = printed(folder, &["events", "net.toml", "--json"]);
        let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let drops = events.filter(|event| event["event"] == "first-drop");
        drops.map(|event| event["reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    a.send(&frame(mac(1), mac(0), 60, 1)).unwrap();
    wait_until(|| drops() == ["bad-source"], "the drop is told");
    // One that the first process has not told yet.
    a.send(&frame(mac(0), mac(0), 60, 1)).unwrap();
    for _ in 0..2 {
        take_over(folder, &mut running);
        wait_until(|| drops() == ["bad-source", "same-port"], "both are told");
    }
    a.send(&frame(mac(1), mac(0), 60, 1)).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(drops(), ["bad-source", "same-port"]);
}

#[test]
fn a_process_with_too_few_descriptors_takes_no_network_over_and_tells_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 20);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let guests: Vec<_> = (0..20).map(|index| guest(folder, index)).collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 120; exec \"$0\" up net.toml --takeover", env!("CARGO_BIN_EXE_memlane")]).current_dir(folder);
    shell.envs(memlane(folder, &[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("may not open so many files as the network has. Raise the hard limit"), "{}", told(&output));
    assert!(running.lives() && guests.iter().all(ToyGuest::connected));
}

/// Half of the ports have guests. `make prove` takes a thousand, and judges the time.
#[test]
fn many_ports_are_handed_over_at_once() {
    let many: Option<usize> = std::env::var("MEMLANE_TAKEOVER_PORTS").ok().and_then(|ports| ports.parse().ok());
    let ports = many.unwrap_or(16);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let null = |n: usize| format!("[[port]]\nname = \"n{n}\"\nnull = true\n");
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n");
    // Workers serve ports in turn, so guests on neighbouring ports are shared among them.
    let waits = |n: usize| format!("[[port]]\nname = \"w{n}\"\nvhost-user = \"w{n}.sock\"\n");
    let waiting = if many.is_some() { 0 } else { 300 };
    let text: String = (0..ports / 2).map(null).chain((0..ports / 2).map(port)).chain((0..waiting).map(waits)).collect();
    write(folder, "net.toml", &format!("workers = 2\ncontrol = \"control\"\n{text}"));
    let log = |name: &str| std::fs::File::create(folder.join(name)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.stderr(log("log"));
    let mut running = Running::start(command);
    let small = |index: usize| {
        let builder = ToyGuest::builder()
            .mac(mac(index))
            .timeout(TIMEOUT)
            .memory(MemoryPlan::new(2 << 20))
            .ring_size(64)
            .send_buffers(SendBuffers { count: 32, size: 2048 });
        builder.connect(folder.join(format!("p{index}.sock"))).unwrap()
    };
    let mut guests: Vec<ToyGuest> = (0..ports / 2).map(small).collect();
    let mut command = memlane(folder, &["up", "net.toml", "--takeover"]);
    command.stderr(log("log-after"));
    let other = Running::start(command);
    assert!(ends(&mut std::mem::replace(&mut running, other).0).success());
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let told = log.lines().find(|line| line.contains("handed over")).unwrap_or_else(|| panic!("{log}"));
    println!("{ports} ports: {told}");
    if many.is_some() && !cfg!(debug_assertions) {
        let after = |key: &str| -> u64 {
            let rest = told.split(&format!("{key}=")).nth(1).unwrap();
            rest.split_whitespace().next().unwrap().trim_end_matches(char::is_alphabetic).parse().unwrap()
        };
        assert!(after("milliseconds") < 500 && after("standstill_ms") < 50, "{told}");
    }
    // Ports without a guest are handed over, too.
    for index in (0..waiting).step_by(100) {
        let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
        drop(builder.connect(folder.join(format!("w{index}.sock"))).unwrap());
    }
    // Every guest is served: one frame from each reaches the next.
    for index in 0..guests.len() {
        let next = (index + 1) % guests.len();
        let hello = frame(mac(index), [0xff; 6], 60, index as u64);
        guests[index].send(&hello).unwrap();
        // The other worker may still be at the frame before.
        while guests[next].receive(TIMEOUT).unwrap().bytes != hello {}
        for guest in &mut guests {
            while guest.try_receive().unwrap().is_some() {}
        }
    }
}

/// Cloud Hypervisor waits for a minute while it is refused; other front ends give up where the path is missing.
#[test]
fn after_a_crash_a_front_end_is_refused_until_it_is_served_and_never_misses_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 1);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let (stop, path) = (Arc::new(AtomicBool::new(false)), folder.join("p0.sock"));
    let stops = Arc::clone(&stop);
    let connects = std::thread::spawn(move || {
        let mut refused = 0;
        while !stops.load(Ordering::Relaxed) {
            match UnixStream::connect(&path) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => refused += 1,
                // The queue of connections to be accepted is full.
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        refused
    });
    for _ in 0..5 {
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        running = Running::start(memlane(folder, &["up", "net.toml"]));
    }
    stop.store(true, Ordering::Relaxed);
    assert!(connects.join().unwrap() > 0);
}

/// Drops before a takeover are no present cause after it: when they were is not known.
#[test]
fn drops_before_a_takeover_are_told_as_earlier_ones() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 2);
    let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
    let (mut a, _b) = (guest(folder, 0), guest(folder, 1));
    a.send(&frame(a.mac(), a.mac(), 64, 1)).unwrap();
    let why = || printed(folder, &["why", "net.toml", "p0"]).split_whitespace().collect::<Vec<_>>().join(" ");
    wait_until(
        || why().contains("p0: 1 frame of its guest was dropped as same-port in the last minute, the last "),
        "it is a cause",
    );
    take_over(folder, &mut running);
    let said = why();
    assert!(
        said.contains("p0: earlier: 1 frame of its guest was dropped as same-port, before this process took the network over"),
        "{said}"
    );
    assert!(said.contains("p0: the switch sees no problem (running)"), "{said}");
}
