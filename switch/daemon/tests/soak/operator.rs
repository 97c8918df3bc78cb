//! Events of the network: one after the other, each brought to its end before the next.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_rig::guest::{SendBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{Running, memlane, printed, told, write};
use crate::common::mac;
use crate::dice::Dice;
use crate::flow::{Flow, Ledger, Order};
use crate::watch::Sample;

/// Longest wait for a process.
const LATE: Duration = Duration::from_secs(60);
/// A MAC address at another host.
const REMOTE: &str = "02:00:00:00:09:09";
/// Bytes of a scrape.
const SCRAPE: usize = 1 << 22;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Attach,
    AttachGuest,
    Reload,
    Takeover,
    Kill,
    Stop,
    Restart,
    Migrate,
    Capture,
    Scrape,
    Limit,
    Disable,
    Reboot,
    PowerCut,
    Plug,
    Split,
    Nothing,
}

/// All of them.
pub const EVENTS: &[Event] = &[
    Event::Attach,
    Event::AttachGuest,
    Event::Reload,
    Event::Takeover,
    Event::Kill,
    Event::Stop,
    Event::Restart,
    Event::Migrate,
    Event::Capture,
    Event::Scrape,
    Event::Limit,
    Event::Disable,
    Event::Reboot,
    Event::PowerCut,
    Event::Plug,
    Event::Split,
    Event::Nothing,
];

/// See the module.
pub struct Operator {
    folder: PathBuf,
    running: Running,
    flows: Vec<Flow>,
    /// An additional port of the file.
    more: bool,
    capture: Option<Child>,
    counts: BTreeMap<Event, u64>,
    samples: Vec<(Duration, Sample)>,
    begun: Instant,
}

/// Events, samples and frames.
pub struct Report {
    counts: BTreeMap<Event, u64>,
    samples: Vec<(Duration, Sample)>,
    pub flows: Ledger,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.counts.iter().map(|(event, count)| format!("{event:?} {count}")).collect();
        writeln!(f, "events: {}", counts.join(", "))?;
        let step = (self.samples.len() / 12).max(1);
        let last = self.samples.len().saturating_sub(1);
        for (_, (at, sample)) in self.samples.iter().enumerate().filter(|(index, _)| index % step == 0 || *index == last) {
            writeln!(f, "{:6.1} s: {sample}", at.as_secs_f64())?;
        }
        let Ledger { sent, arrived, lost, doubled, reconnects, longest } = self.flows;
        write!(
            f,
            "{sent} frames sent, {arrived} arrived, {lost} lost, {doubled} doubled, all of those by faults; {reconnects} connections made \
             again; longest time without a frame {} ms",
            longest.as_millis()
        )
    }
}

impl Operator {
    /// Starts a network and `flows` pairs of guests on it.
    pub fn begin(folder: &Path, flows: usize) -> Self {
        // The kernel's own frames would be no guest's.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("a kernel with IPv6, and /proc to write to");
        shell("ip link add under type veth peer name far && ip addr add 10.9.0.1/24 dev under && ip link set under up");
        write_net(folder, flows, false);
        let running = Running::start(up(folder, &[]));
        let flows: Vec<Flow> = (0..flows).map(|index| Flow::start(folder, index)).collect();
        let mut operator = Self {
            folder: folder.to_owned(),
            running,
            flows,
            more: false,
            capture: None,
            counts: BTreeMap::new(),
            samples: Vec::new(),
            begun: Instant::now(),
        };
        operator.settle();
        operator
    }

    /// Memory and descriptors now.
    pub fn sample(&mut self) -> Sample {
        let sample = Sample::of(self.running.0.id());
        self.samples.push((self.begun.elapsed(), sample.clone()));
        sample
    }

    /// Brings the network to rest; the growth since `first` that stays, if there is any.
    pub fn rest(&mut self, first: &Sample) -> Option<String> {
        self.capture.take().into_iter().for_each(end_capture);
        if self.more {
            self.cause_reload();
        }
        self.settle();
        let deadline = Instant::now() + LATE;
        // Connections and threads of the last requests end late.
        while self.sample().growth(first).is_some() && Instant::now() < deadline {
            self.samples.pop();
            std::thread::sleep(Duration::from_millis(20));
        }
        self.sample().growth(first)
    }

    fn order_all(&self, order: Order) {
        let answers: Vec<_> = self.flows.iter().map(|flow| flow.order(order)).collect();
        answers.into_iter().for_each(|answer| answer.wait());
    }

    /// Waits until every frame has arrived, or is lost for a reason; no frame may be lost from then on.
    pub fn settle(&mut self) {
        self.order_all(Order::Settle);
    }

    /// Brings `event` about.
    pub fn cause(&mut self, event: Event, dice: &mut Dice) {
        // On standard error, which is not kept until the end.
        if std::env::var_os("MEMLANE_SOAK_SECONDS").is_some() {
            eprintln!("{:6.1} s: {event:?}", self.begun.elapsed().as_secs_f64());
        }
        *self.counts.entry(event).or_default() += 1;
        let (flow, side) = (dice.below(self.flows.len()), dice.below(2));
        let port = format!("p{}", 2 * flow + side);
        match event {
            Event::Attach => {
                self.told(&["attach", "net.toml", "x", "--null"]);
                self.told(&["detach", "net.toml", "x"]);
            }
            Event::AttachGuest => self.attach_guest(),
            Event::Reload => self.cause_reload(),
            Event::Takeover => self.take_over(),
            Event::Kill => self.crash(|operator| operator.running.0.kill().unwrap()),
            Event::Restart => self.crash(|operator| drop(operator.told(&["down", "net.toml"]))),
            Event::Stop => {
                self.signal(Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(20 + dice.below(300) as u64));
                self.signal(Signal::SIGCONT);
            }
            // Of the front ends, QEMU does this.
            Event::Migrate => self.flows[flow & !1].order(Order::Migrate(side)).wait(),
            Event::Plug => self.flows[flow & !1].order(Order::Plug(side)).wait(),
            Event::Split => self.split(),
            Event::Capture => self.capture(),
            Event::Scrape => self.scrape(),
            Event::Limit => {
                let limit = dice.pick(&["none", "50Mbit", "2kpps", "100Mbit,20kpps"]);
                let which = dice.pick(&["--transmit", "--receive"]);
                self.told(&["set", "net.toml", &port, which, limit, "--weight", dice.pick(&["1", "3", "50"])]);
            }
            Event::Disable => {
                let answer = self.flows[flow].order(Order::Forgive);
                answer.wait();
                self.told(&["set", "net.toml", &port, "--enabled", "false"]);
                std::thread::sleep(Duration::from_millis(50));
                self.told(&["set", "net.toml", &port, "--enabled", "true"]);
                self.flows[flow].order(Order::Settle).wait();
            }
            Event::Reboot => self.lose_of(flow, Order::Reboot(side)),
            Event::PowerCut => self.lose_of(flow, Order::PowerCut(side)),
            Event::Nothing => std::thread::sleep(Duration::from_millis(200)),
        }
        self.check();
    }

    /// An event that loses frames of one flow.
    fn lose_of(&self, flow: usize, order: Order) {
        for order in [Order::Forgive, order, Order::Settle] {
            self.flows[flow].order(order).wait();
        }
    }

    /// A port comes to the file, or goes from it.
    fn cause_reload(&mut self) {
        self.more ^= true;
        write_net(&self.folder, self.flows.len(), self.more);
        self.told(&["reload", "net.toml"]);
    }

    /// The host of an address beyond the uplink cannot be reached for a while, as FRR learns it and tells the VXLAN device. Guests here
    /// lose nothing by it.
    fn split(&self) {
        let remote = |change: &str| shell(&format!("bridge fdb {change} {REMOTE} dev ml-vx100 dst 10.9.0.2 self"));
        remote("replace");
        self.await_remote(true);
        shell("ip link set under down");
        remote("del");
        self.await_remote(false);
        shell("ip link set under up");
        remote("replace");
        self.await_remote(true);
    }

    fn await_remote(&self, is_known: bool) {
        let deadline = Instant::now() + LATE;
        loop {
            let report: serde_json::Value = serde_json::from_str(&self.told(&["status", "net.toml", "--json"])).unwrap();
            let uplink = &report["uplinks"][0];
            let known = uplink["learned-addresses"].as_array().unwrap().iter().any(|known| known["address"] == REMOTE);
            if known == is_known && uplink["trouble"].is_null() {
                return;
            }
            assert!(Instant::now() < deadline, "known: {is_known}: {uplink}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn check(&mut self) {
        self.sample();
        assert!(!self.flows.iter().any(Flow::has_failed), "a flow has failed: see above");
        assert!(self.running.lives(), "the switch has ended");
    }

    fn told(&self, arguments: &[&str]) -> String {
        printed(&self.folder, arguments)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.running.0.id() as i32), signal).unwrap();
    }

    /// The process ends by `end`, and another one begins.
    fn crash(&mut self, end: impl FnOnce(&mut Self)) {
        self.order_all(Order::Forgive);
        end(self);
        self.running.0.wait().unwrap();
        self.running = Running::start(up(&self.folder, &[]));
        self.settle();
    }

    fn take_over(&mut self) {
        let other = Running::start(up(&self.folder, &["--takeover"]));
        let mut before = std::mem::replace(&mut self.running, other);
        let deadline = Instant::now() + LATE;
        while before.lives() {
            assert!(Instant::now() < deadline, "the process that handed over lives on");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A port comes with a guest, and goes under it.
    fn attach_guest(&self) {
        self.told(&["attach", "net.toml", "late", "--vhost-user", "late.sock"]);
        let builder = ToyGuest::builder()
            .mac(mac(200))
            .timeout(LATE)
            .memory(MemoryPlan::new(8 << 20))
            .send_buffers(SendBuffers { count: 8, size: 4096 });
        let guest = builder.connect(self.folder.join("late.sock")).unwrap();
        self.told(&["show", "net.toml", "late"]);
        self.told(&["detach", "net.toml", "late"]);
        drop(guest);
    }

    /// Begins a capture, or ends one.
    fn capture(&mut self) {
        match self.capture.take() {
            Some(child) => end_capture(child),
            None => {
                let mut command = memlane(&self.folder, &["capture", "net.toml", "-w", "frames.pcapng", "--ring", "2,4"]);
                self.capture = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            }
        }
    }

    fn scrape(&self) {
        let mut stream = UnixStream::connect(self.folder.join("control")).unwrap();
        stream.set_read_timeout(Some(LATE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: memlane\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.take(SCRAPE as u64).read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("memlane_port_transmit_frames_total"), "{text}");
        self.told(&["status", "net.toml"]);
    }

    /// Ends everything, and compares the counters.
    pub fn end(mut self) -> Report {
        self.order_all(Order::Stop);
        let deadline = Instant::now() + LATE;
        let mut sums = self.sums();
        while sums.0 != sums.1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            sums = self.sums();
        }
        let status = || self.told(&["status", "net.toml", "--json"]);
        assert!(sums.0 == sums.1, "frames transmitted, and received, waiting or dropped for a reason: {sums:?}: {}", status());
        let mut flows = Ledger::default();
        std::mem::take(&mut self.flows).into_iter().for_each(|flow| flows += flow.end());
        printed(&self.folder, &["down", "net.toml"]);
        Report { counts: self.counts, samples: self.samples, flows }
    }

    /// Frames that were transmitted since the last crash, and those that were received, wait or were dropped.
    fn sums(&self) -> (u64, u64) {
        let report: serde_json::Value = serde_json::from_str(&self.told(&["status", "net.toml", "--json"])).unwrap();
        let number = |port: &serde_json::Value, name: &str| port[name].as_u64().unwrap_or(0);
        let (mut transmitted, mut outcomes) = (0, 0);
        for port in ["ports", "uplinks"].iter().flat_map(|kind| report[kind].as_array().unwrap()) {
            transmitted += number(port, "transmit-frames");
            outcomes += number(port, "receive-frames") + number(port, "waiting");
            // Frames in a queue that its front end has disabled, as DPDK does before it stops one, are discarded and not transmitted.
            let drops = port["drops"].as_object().into_iter().flatten().filter(|(reason, _)| *reason != "transmit-disabled");
            outcomes += drops.filter_map(|(_, count)| count.as_u64()).sum::<u64>();
            assert_eq!(number(port, "quarantines"), 0, "{port}");
        }
        (transmitted, outcomes)
    }
}

/// A process that logs warnings only.
fn up(folder: &Path, more: &[&str]) -> Command {
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.args(more).env("MEMLANE_LOG", "warn");
    command
}

fn end_capture(mut child: Child) {
    // One that connects to the process that has taken over hears the next signal; one of a network that was killed has ended.
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command that succeeds.
fn shell(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", told(&output));
}

/// The last two guests are in a segment with an uplink.
fn write_net(folder: &Path, flows: usize, more: bool) {
    let segment = |n: usize| if n / 2 + 1 == flows { "segment = \"beyond\"\n" } else { "" };
    let port = |n: usize| {
        format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\nmac = \"02:00:00:00:00:{n:02x}\"\n{}", segment(n))
    };
    let ports: String = (0..2 * flows).map(port).collect();
    let more = if more { "[[port]]\nname = \"more\"\nnull = true\n" } else { "" };
    let uplink = "[[segment]]\nname = \"beyond\"\nuplink = true\nvni = 100\nlocal = \"10.9.0.1\"\n";
    write(folder, "net.toml", &format!("workers = 2\nstall-timeout-ms = 60000\ncontrol = \"control\"\n{uplink}{ports}{more}"));
}
