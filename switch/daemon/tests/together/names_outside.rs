//! Names outside under policy: a guest reaches the addresses of the names that its rules allow, from its first frame on, and no others. The
//! resolver is a hostile one, behind the network's own forwarder.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memlane::port::default_address;
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use serde_json::Value;

use crate::command::{Running, memlane, printed, write};
use crate::common::*;

const BOXED: usize = 0;
const OTHER: usize = 1;
const GATE: usize = 2;
const NAMES: [&str; 3] = ["box", "other", "gate"];
const A: u16 = 1;

/// A resolver at a port of its own, by UDP and TCP. The first label of a name says what it answers.
struct Server {
    port: u16,
    /// Questions so far, by UDP and by TCP.
    asked: Arc<[AtomicUsize; 2]>,
}

impl Server {
    fn start() -> Self {
        let (udp, tcp) = (0..100)
            .find_map(|_| {
                let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                Some((UdpSocket::bind(tcp.local_addr().unwrap()).ok()?, tcp))
            })
            .expect("a port of UDP and TCP");
        let (port, asked) = (tcp.local_addr().unwrap().port(), Arc::<[AtomicUsize; 2]>::default());
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut datagram = [0; 512];
            while let Ok((length, client)) = udp.recv_from(&mut datagram) {
                count[0].fetch_add(1, Ordering::Relaxed);
                for answer in answers(&datagram[..length], false) {
                    udp.send_to(&answer, client).unwrap();
                }
            }
        });
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let (mut stream, mut length) = (stream.unwrap(), [0; 2]);
                stream.read_exact(&mut length).unwrap();
                let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut query).unwrap();
                count[1].fetch_add(1, Ordering::Relaxed);
                for answer in answers(&query, true) {
                    stream.write_all(&(answer.len() as u16).to_be_bytes()).unwrap();
                    // In two parts.
                    stream.write_all(&answer[..20]).unwrap();
                    stream.write_all(&answer[20..]).unwrap();
                }
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> [usize; 2] {
        [0, 1].map(|index| self.asked[index].load(Ordering::Relaxed))
    }
}

/// An A record of the name in question.
fn record(address: [u8; 4]) -> Vec<u8> {
    [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4][..], &address].concat()
}

/// The datagrams, or messages, with which the resolver answers.
fn answers(query: &[u8], is_tcp: bool) -> Vec<Vec<u8>> {
    let length = 12 + query[12..].iter().position(|&byte| byte == 0).unwrap() + 5;
    let question = &query[12..length];
    let answer = |id: &[u8], flags: u16, question: &[u8], records: &[Vec<u8>]| {
        let counts = [1, records.len() as u16, 0, 0].map(u16::to_be_bytes).concat();
        [id, &flags.to_be_bytes(), &counts, question, &records.concat()].concat()
    };
    let good = |address| answer(&query[..2], 0x8180, question, &[record(address)]);
    let label = &question[1..1 + usize::from(question[0])];
    match label.to_ascii_lowercase().as_slice() {
        b"silent" => Vec::new(),
        b"broken" => vec![answer(&query[..2], 0x8182, question, &[])],
        b"inside" => vec![good([10, 0, 0, 5])],
        b"big" if is_tcp => {
            let records: Vec<Vec<u8>> = (0..1000_u16).map(|n| record([198, 18, (n >> 8) as u8, n as u8])).collect();
            vec![answer(&query[..2], 0x8180, question, &records)]
        }
        b"big" => vec![answer(&query[..2], 0x8380, question, &[])],
        // Answers to questions that were not asked, before the right one.
        b"liar" => {
            let mut other = question.to_vec();
            other[1] ^= 1;
            let lies = [
                answer(&[query[0] ^ 1, query[1]], 0x8180, question, &[record([198, 51, 100, 1])]),
                answer(&query[..2], 0x8180, &other, &[record([198, 51, 100, 2])]),
                answer(&query[..2], 0x0180, question, &[record([198, 51, 100, 3])]),
                b"short".to_vec(),
            ];
            lies.into_iter().chain([good([192, 0, 2, 8])]).collect()
        }
        b"loop" => {
            let alias = [&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 12][..]].concat();
            vec![answer(&query[..2], 0x8180, question, &[alias])]
        }
        b"slow" => {
            std::thread::sleep(Duration::from_millis(300));
            vec![good([192, 0, 2, 9])]
        }
        _ => vec![good([192, 0, 2, 7])],
    }
}

fn net(folder: &Path, server: &Server) {
    let port = |(index, name): (usize, &str)| {
        format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\nmac = \"02:00:00:00:00:0{index}\"\n")
    };
    let policy = "[[policy]]\ndefault = \"deny\"\nmembers = [\"box\", \"other\"]\n\
                  [[policy]]\nfrom = [\"box\", \"other\"]\ndestinations = [\"api.example.org\", \"*.example.net\"]\nprotocol = \"tcp\"\n\
                  ports = [443]\naction = \"allow\"\n";
    let segment = format!("[[segment]]\nname = \"lan\"\nsubnet = \"10.0.0.0/24\"\ndns = [\"127.0.0.1:{}\"]\n", server.port);
    write(
        folder,
        "net.toml",
        &format!("workers = 2\n{segment}{}{policy}", NAMES.into_iter().enumerate().map(port).collect::<String>()),
    );
}

fn guest(folder: &Path, index: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(folder.join(format!("{}.sock", NAMES[index]))).unwrap()
}

fn ipv4(from: usize, to: [u8; 6], addresses: [[u8; 4]; 2], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let head = [&to[..], &mac(from), &[8, 0]].concat();
    let length = (20 + payload.len() as u16).to_be_bytes();
    let mut frame = [&head[..], &[0x45, 0], &length, &[0, 0, 0, 0, 64, protocol, 0, 0], &addresses.concat(), payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// The first segment of a connection of a guest to port 443 of `address`, behind the gate.
fn connection(from: usize, address: [u8; 4]) -> Vec<u8> {
    let header = [&[0x9c, 0x40, 1, 187, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0][..]].concat();
    ipv4(from, mac(GATE), [[10, 0, 0, 100 + from as u8], address], 6, &header)
}

/// A query of a guest with this id, by UDP.
fn question(from: usize, id: u16, name: &str) -> Vec<u8> {
    let labels: Vec<u8> = name.split('.').flat_map(|label| [&[label.len() as u8][..], label.as_bytes()].concat()).collect();
    let head = [id, 0x0100, 1, 0, 0, 0].map(u16::to_be_bytes).concat();
    let message = [&head[..], &labels, &[0], &A.to_be_bytes(), &[0, 1]].concat();
    let udp = [&4000_u16.to_be_bytes()[..], &53_u16.to_be_bytes(), &(8 + message.len() as u16).to_be_bytes(), &[0, 0], &message];
    ipv4(from, default_address("net", "names:lan").bytes(), [[10, 0, 0, 100 + from as u8], [10, 0, 0, 1]], 17, &udp.concat())
}

/// The next DNS message that a guest gets: its id, response code and count of records.
fn answer(guest: &mut ToyGuest) -> (u16, u8, u8) {
    loop {
        let frame = guest.receive(TIMEOUT).unwrap().bytes;
        if frame[12..14] == [8, 0] && frame[23] == 17 && frame[34..36] == [0, 53] {
            return (u16::from_be_bytes([frame[42], frame[43]]), frame[45] & 0xf, frame[49]);
        }
    }
}

/// The destination of the next IPv4 frame that the gate gets.
fn arrived(gate: &mut ToyGuest) -> [u8; 4] {
    loop {
        let frame = gate.receive(TIMEOUT).unwrap().bytes;
        if frame[12..14] == [8, 0] {
            return frame[30..34].try_into().unwrap();
        }
    }
}

struct Bench {
    folder: tempfile::TempDir,
    server: Server,
    _running: Running,
}

impl Bench {
    fn start() -> Self {
        let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
        net(folder.path(), &server);
        let running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
        Self { folder, server, _running: running }
    }

    fn guests(&self) -> [ToyGuest; 3] {
        [BOXED, OTHER, GATE].map(|index| guest(self.folder.path(), index))
    }
}

#[test]
fn an_allowed_name_is_reached_by_the_first_frame_and_only_by_the_guest_that_asked() {
    let bench = Bench::start();
    let [mut boxed, mut other, mut gate] = bench.guests();
    boxed.send(&connection(BOXED, [192, 0, 2, 7])).unwrap();
    boxed.send(&question(BOXED, 1, "API.example.org")).unwrap();
    assert_eq!(answer(&mut boxed), (1, 0, 1));
    boxed.send(&connection(BOXED, [192, 0, 2, 7])).unwrap();
    assert_eq!(arrived(&mut gate), [192, 0, 2, 7]);
    // Another guest's question allows it nothing, and no answer that it makes up.
    other.send(&connection(OTHER, [192, 0, 2, 7])).unwrap();
    let mut forged = question(OTHER, 2, "api.example.org");
    forged[44] |= 0x80;
    other.send(&forged).unwrap();
    other.send(&question(OTHER, 3, "evil.example.com")).unwrap();
    let start = Instant::now();
    assert_eq!(answer(&mut other), (3, 3, 0), "no such name");
    assert!(start.elapsed() < Duration::from_millis(1000));
    other.send(&connection(OTHER, [192, 0, 2, 7])).unwrap();
    // Of lies, loops and addresses of the segment.
    for (id, name, told) in [
        (4, "liar.example.net", (4, 0, 1)),
        (5, "loop.example.net", (5, 2, 0)),
        (6, "inside.example.net", (6, 0, 0)),
        (7, "big.example.net", (7, 0, 0)),
    ] {
        other.send(&question(OTHER, id, name)).unwrap();
        assert_eq!(answer(&mut other), told, "{name}");
    }
    for address in [[198, 51, 100, 1], [198, 51, 100, 2], [198, 51, 100, 3], [10, 0, 0, 5], [198, 18, 0, 1], [192, 0, 2, 8]] {
        other.send(&connection(OTHER, address)).unwrap();
    }
    assert_eq!(arrived(&mut gate), [192, 0, 2, 8], "all before it were refused");
    assert_eq!(bench.server.asked()[1], 1, "the truncated answer was fetched by TCP");
    // The operator reads guest, name and line.
    let denials = printed(bench.folder.path(), &["denials", "net.toml", "other"]);
    let line = "allowed by [[policy]] from = \"other\" destinations = [\"evil.example.com\"] action = \"allow\"";
    assert!(denials.contains("1 question, name evil.example.com") && denials.contains(line), "{denials}");
    let listed: Value = serde_json::from_str(&printed(bench.folder.path(), &["denials", "net.toml", "other", "--json"])).unwrap();
    assert!(listed.to_string().contains("\"name\":\"evil.example.com\""), "{listed}");
}

/// Resolvers that fail or never answer, and a guest that asks for ten thousand names, cost no other guest an answer.
#[test]
fn a_flood_of_names_and_a_silent_resolver_cost_other_guests_nothing() {
    let bench = Bench::start();
    let [mut boxed, mut other, mut gate] = bench.guests();
    let start = Instant::now();
    for n in 0..10_000_u16 {
        boxed.send(&question(BOXED, n, &format!("silent.n{n}.example.net"))).unwrap();
        if n % 100 == 99 {
            boxed.wait_sent(TIMEOUT).unwrap();
        }
        if n % 2000 == 1000 {
            other.send(&question(OTHER, n, &format!("a{n}.example.net"))).unwrap();
            let asked = Instant::now();
            assert_eq!(answer(&mut other), (n, 0, 1));
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        }
    }
    other.send(&connection(OTHER, [192, 0, 2, 7])).unwrap();
    assert_eq!(arrived(&mut gate), [192, 0, 2, 7]);
    other.send(&question(OTHER, 1, "broken.example.net")).unwrap();
    assert_eq!(answer(&mut other), (1, 2, 0), "the resolver fails");
    other.send(&question(OTHER, 2, "silent.example.net")).unwrap();
    assert_eq!(answer(&mut other), (2, 2, 0), "before a client's own timeout");
    assert!(start.elapsed() < Duration::from_secs(30));
    let questions = bench.server.asked()[0];
    assert!(questions < 3000, "{questions}");
}

/// The forwarder is a process of its own with few rights, is started anew when it has ended, and ends with the network.
#[test]
fn the_forwarder_is_confined_and_started_again() {
    let mut bench = Bench::start();
    let [mut boxed, _other, _gate] = bench.guests();
    let find = |argument: &str| {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let is_forwarder = |path: &Path| {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
            words.contains(&&b"forwarder"[..]) && words.contains(&argument.as_bytes())
        };
        processes.map(|entry| entry.path()).find(|path| is_forwarder(path))
    };
    let argument = format!("127.0.0.1:{}", bench.server.port);
    assert!(find(&argument).is_none(), "nobody has asked");
    boxed.send(&question(BOXED, 1, "api.example.org")).unwrap();
    assert_eq!(answer(&mut boxed), (1, 0, 1));
    let process = find(&argument).unwrap();
    let status = std::fs::read_to_string(process.join("status")).unwrap();
    for line in ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let pid: i32 = process.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // While a question waits, it has an outcome, and the next one a new process.
    boxed.send(&question(BOXED, 2, "silent.example.net")).unwrap();
    wait_until(|| bench.server.asked()[0] >= 2, "the resolver is asked");
    std::thread::sleep(Duration::from_secs(1));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(answer(&mut boxed), (2, 2, 0));
    boxed.send(&question(BOXED, 3, "slow.example.net")).unwrap();
    assert_eq!(answer(&mut boxed), (3, 0, 1));
    assert!(find(&argument).is_some_and(|new| new != process));
    bench._running.0.kill().unwrap();
    bench._running.0.wait().unwrap();
    wait_until(|| find(&argument).is_none(), "the forwarder ends with its network");
}
