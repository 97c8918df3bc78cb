//! Latency of a guest's request beside bulk traffic of the same guest (head-of-line blocking): idle, beside a bulk flow that the
//! receiver takes at once, and beside one with a rate limit, so that it always waits.
//!
//! A whole network with a worker of its own; the guests' side is this one thread. The bulk flow keeps 64 frames in flight, as a
//! kernel's queue limits would: frames that a guest put into its own ring ahead of a request are ahead of it.

use std::time::{Duration, Instant};

use memlane::config::Config;
use memlane::daemon::Daemon;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::guest::ToyGuest;

const REQUESTS: usize = 2000;
const EVERY: Duration = Duration::from_millis(1);
/// Frames of the bulk flow in flight.
const UNDER_WAY: usize = 64;
const GIVE_UP: Duration = Duration::from_secs(5);
const A: u16 = 1;
const B: u16 = 2;
const REQUEST: usize = 64;
const BULK: usize = 1472;

/// Two guests on a network, the second held to `limit`.
struct Bed {
    _daemon: Daemon,
    a: ToyGuest,
    b: ToyGuest,
    request: Vec<u8>,
    bulk: Vec<u8>,
    under_way: usize,
    received: u64,
}

impl Bed {
    fn new(limit: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = |name: &str| folder.path().join(name);
        let text = format!(
            "[[port]]\nname = \"a\"\nvhost-user = \"{}\"\n[[port]]\nname = \"b\"\nvhost-user = \"{}\"\n{limit}\n",
            socket("a").display(),
            socket("b").display()
        );
        let daemon = Daemon::start(&Config::parse(&text, "bench").expect("a good network")).expect("a network");
        let guest = |name, number| ToyGuest::builder().mac(Host::v4(number).mac).connect(socket(name)).expect("a guest");
        let (mut a, mut b) = (guest("a", A), guest("b", B));
        let from = |port, length| Packet::tcp(Host::v4(A).port(port), Host::v4(B), 1, vec![0; length]).frame();
        let hello = Packet::udp(Host::v4(B), Host::v4(A), vec![0; 1]).frame();
        b.send(&hello).expect("room");
        a.receive(GIVE_UP).expect("an announcement");
        Self { _daemon: daemon, a, b, request: from(1, REQUEST), bulk: from(2, BULK), under_way: 0, received: 0 }
    }

    /// Keeps `bulk` frames in flight.
    fn feed(&mut self, bulk: usize) {
        while self.under_way < bulk && self.a.send(&self.bulk).is_ok() {
            self.under_way += 1;
        }
    }

    /// Takes the frames that have arrived; true if the request is among them.
    fn take(&mut self) -> bool {
        let mut answered = false;
        while let Some(frame) = self.b.try_receive().expect("a good frame") {
            if frame.bytes.len() == self.request.len() {
                answered = true;
            } else {
                self.under_way -= 1;
                self.received += 1;
            }
        }
        answered
    }

    /// Microseconds that requests take beside `bulk` frames in flight, the shortest first.
    fn run(&mut self, bulk: usize) -> Vec<f64> {
        let mut took = Vec::with_capacity(REQUESTS);
        let mut next = Instant::now();
        while took.len() < REQUESTS {
            next += EVERY;
            while Instant::now() < next {
                self.feed(bulk);
                self.take();
            }
            let begin = Instant::now();
            self.a.send(&self.request).expect("room for a request");
            while !self.take() {
                self.feed(bulk);
                assert!(begin.elapsed() < GIVE_UP, "a request got lost");
            }
            took.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        took.sort_by(f64::total_cmp);
        took
    }
}

fn tell(what: &str, took: &[f64], rate: f64) {
    let at = |share: f64| took[(share * (took.len() - 1) as f64) as usize];
    println!("{what:32} p50 {:7.1} us   p99 {:7.1} us   bulk {rate:8.0} Mbit/s", at(0.5), at(0.99));
}

fn main() {
    for (what, limit, bulk) in [
        ("idle", "", 0),
        ("beside bulk", "", UNDER_WAY),
        ("beside bulk held to 1 Gbit/s", "receive = { rate = \"1Gbit\", burst-ms = 1 }", UNDER_WAY),
    ] {
        let mut bed = Bed::new(limit);
        let begin = Instant::now();
        let took = bed.run(bulk);
        let bits = bed.received as f64 * (BULK + 42) as f64 * 8.0;
        tell(what, &took, bits / begin.elapsed().as_secs_f64() / 1e6);
    }
}
