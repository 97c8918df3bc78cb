//! Cost of ports that come and go: time from attaching one to its first frame, how many may be there, and whether anything stays
//! behind.
//!
//! `cargo bench --bench comes_and_goes`; `-- CYCLES` says how often one comes and goes, by default 10 000 times.

use std::path::Path;
use std::time::{Duration, Instant};

use memlane::config::{Config, PortConfig};
use memlane::control::Report;
use memlane::daemon::Daemon;
use memlane_rig::guest::{GuestError, ToyGuest};
use memlane_rig::memory::MemoryPlan;

const TIMEOUT: Duration = Duration::from_secs(10);
const BROADCAST: [u8; 6] = [0xff; 6];

fn mac(index: u16) -> [u8; 6] {
    let [a, b] = index.to_be_bytes();
    [2, 0, 0, 0, a, b]
}

fn frame(from: [u8; 6], to: [u8; 6]) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

/// Ports `from` to below `to`, `per_segment` on each segment, with sockets in `folder`.
fn ports(folder: &Path, from: usize, to: usize, per_segment: usize) -> Vec<PortConfig> {
    let entry = |n| {
        let (folder, segment) = (folder.display(), n / per_segment);
        format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"{folder}/p{n}.sock\"\nsegment = \"s{segment}\"\n")
    };
    let text: String = (from..to).map(entry).collect();
    Config::parse(&text, "bench").expect("a good file").ports
}

fn network(ports: Vec<PortConfig>) -> Daemon {
    let mut config = Config::parse("workers = 2\n[[port]]\nname = \"p\"\nnull = true\n", "bench").expect("a good file");
    config.ports = ports;
    Daemon::start(&config).expect("a network")
}

fn guest(folder: &Path, port: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(port as u16)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(folder.join(format!("p{port}.sock"))).expect("a guest")
}

fn tell(what: &str, took: &mut [Duration]) {
    took.sort();
    let at = |share: f64| took[(share * (took.len() - 1) as f64) as usize].as_secs_f64() * 1e3;
    println!("{what:44} p50 {:7.3} ms   p99 {:7.3} ms   most {:7.3} ms   ({})", at(0.5), at(0.99), at(1.0), took.len());
}

/// Resident memory, open descriptors and threads of this process.
fn held() -> (usize, usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let of = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).expect("a known key");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    (of("VmRSS:"), descriptors, of("Threads:"))
}

/// Wake-ups: voluntary context switches of all threads of this process.
fn wakes() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let of = |path: std::path::PathBuf| -> Option<u64> {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    tasks.filter_map(|task| of(task.ok()?.path())).sum()
}

/// With a thousand ports there, one more comes, its guest says something that others hear, and it goes, while two others exchange frames.
fn one_more_of_a_thousand(folder: &Path) {
    let daemon = network(ports(folder, 0, 1000, 1000));
    let (mut a, mut b) = (guest(folder, 0), guest(folder, 1));
    a.send(&frame(mac(0), BROADCAST)).expect("room");
    b.receive(TIMEOUT).expect("the announcement");
    b.send(&frame(mac(1), BROADCAST)).expect("room");
    a.receive(TIMEOUT).expect("the announcement");
    let late = ports(folder, 2000, 2001, 1 << 20).pop().map(|port| PortConfig { segment: "s0".into(), ..port }).expect("one");
    let (mut attach, mut first, mut detach) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sent, mut heard) = (0, 0);
    for _ in 0..300 {
        let begun = Instant::now();
        daemon.attach(&late).expect("attached");
        attach.push(begun.elapsed());
        let mut guest = guest(folder, 2000);
        guest.send(&frame(mac(2000), mac(0))).expect("room");
        while !matches!(a.receive(TIMEOUT), Ok(frame) if frame.bytes[6..12] == mac(2000)) {}
        first.push(begun.elapsed());
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let going = scope.spawn(|| daemon.detach("p2000").expect("detached"));
            while !going.is_finished() {
                match a.send(&frame(mac(0), mac(1))) {
                    Ok(_) => sent += 1,
                    Err(GuestError::NoSendBuffer(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                while b.try_receive().expect("whole").is_some_and(|frame| frame.bytes[..6] == mac(1)) {
                    heard += 1;
                }
            }
            detach.push(begun.elapsed());
        });
    }
    while heard < sent && b.receive(TIMEOUT).is_ok_and(|frame| frame.bytes[..6] == mac(1)) {
        heard += 1;
    }
    tell("attach, 1000 ports there", &mut attach);
    tell("attach, guest connects, first frame", &mut first);
    tell("detach, others exchange frames", &mut detach);
    println!("{:44} {} of {sent}", "frames of others lost meanwhile", sent - heard);
    daemon.stop();
}

/// Two thousand links of two ports.
fn many(folder: &Path) {
    let before = held();
    let all = ports(folder, 0, 4000, 2);
    let begun = Instant::now();
    let daemon = network(all);
    println!("{:44} {:7.3} s", "4000 ports on 2000 segments start", begun.elapsed().as_secs_f64());
    let after = held();
    println!("{:44} {:7.1} KiB", "memory of each", (after.0 - before.0) as f64 / 4000.0);
    let woken = wakes();
    std::thread::sleep(Duration::from_secs(5));
    // Ours, by which we look.
    println!("{:44} {}", "wake-ups in 5 idle seconds", wakes().saturating_sub(woken).saturating_sub(1));
    let begun = Instant::now();
    let report = Report::new(&daemon.config(), daemon.network(), Duration::ZERO);
    let length = serde_json::to_vec(&report).expect("JSON").len();
    println!("{:44} {:7.3} ms, {length} bytes", "its report", begun.elapsed().as_secs_f64() * 1e3);
    let begun = Instant::now();
    daemon.stop();
    println!("{:44} {:7.3} s", "all of it stops", begun.elapsed().as_secs_f64());
}

fn cycles(folder: &Path, cycles: usize) {
    let daemon = network(ports(folder, 0, 2, 2));
    let (mut a, mut b) = (guest(folder, 0), guest(folder, 1));
    let late = ports(folder, 7, 8, 1 << 20).pop().map(|port| PortConfig { segment: "s0".into(), ..port }).expect("one");
    let mut round = |daemon: &Daemon| {
        daemon.attach(&late).expect("attached");
        for (guest, from, to) in [(&mut a, 0, 1), (&mut b, 1, 0)] {
            let _ = guest.send(&frame(mac(from), mac(to)));
            while guest.try_receive().expect("whole").is_some() {}
        }
        daemon.detach("p7").expect("detached");
    };
    (0..1000).for_each(|_| round(&daemon));
    let (before, begun) = (held(), Instant::now());
    (0..cycles).for_each(|_| round(&daemon));
    let after = held();
    println!(
        "{:44} {:7.3} ms each",
        format!("{cycles} times a port comes and goes"),
        begun.elapsed().as_secs_f64() * 1e3 / cycles as f64
    );
    let more = |after: usize, before: usize| after as i64 - before as i64;
    let (memory, descriptors, threads) = (more(after.0, before.0), more(after.1, before.1), more(after.2, before.2));
    println!("{:44} {memory} KiB, {descriptors} descriptors, {threads} threads", "more than before");
    daemon.stop();
}

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10_000);
    let folder = tempfile::tempdir().expect("a folder");
    one_more_of_a_thousand(folder.path());
    many(folder.path());
    cycles(folder.path(), count);
}
