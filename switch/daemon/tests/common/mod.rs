//! Shared by the tests of the switch: a network in this process, and toy guests on it.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlane::config::Config;
use memlane::control::causes::{Cause, CauseKind, PortCauses};
use memlane::daemon::Daemon;
use memlane::id::PortId;
use memlane::network::{Network, Place};
use memlane::port::{Port, PortState};
use memlane::record::Recording;
use memlane::replay::Replay;
use memlane::stats::{DropReason, PortTotals};
use memlane_model::recording::Description;
use memlane_observe::recording::frames;
use memlane_rig::guest::{GuestBuilder, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;

/// Longest wait for something that must happen.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to look for something that must not happen.
pub const POLL_INTERVAL: Duration = Duration::from_millis(60);
/// After this, all lost-notification checks of rings that fell quiet are done.
pub const ALL_LOOKS: Duration = Duration::from_millis(400);
/// After this, the worker of a network that does not poll sleeps, and no lost-notification check was yet.
pub const ASLEEP: Duration = Duration::from_millis(5);

/// Bytes of memory of recorders.
const RECORDER: usize = 256 << 20;

/// A running network; its sockets go with it.
pub struct Bed {
    daemon: Option<Daemon>,
    config: Config,
    folder: tempfile::TempDir,
    recording: Option<Arc<Recording>>,
}

impl Bed {
    /// A network with `ports` ports called p0, p1 ... on one segment.
    pub fn new(ports: usize) -> Self {
        Self::with("", &vec![""; ports])
    }

    /// A network with these lines at the top of its file, and for each port these lines in its table.
    pub fn with(top: &str, ports: &[&str]) -> Self {
        let mut text = format!("{top}\n");
        for (index, lines) in ports.iter().enumerate() {
            text.push_str(&format!("[[port]]\nname = \"p{index}\"\nvhost-user = \"FOLDER/p{index}.sock\"\n{lines}\n"));
        }
        Self::of(&text)
    }

    /// A network of one port that connects to the front end's socket at `path`.
    pub fn connecting(path: &std::path::Path) -> Self {
        Self::of(&format!("[[port]]\nname = \"p0\"\nconnect = true\nvhost-user = \"{}\"\n", path.display()))
    }

    /// The network of this file, in which FOLDER stands for the folder of its sockets.
    pub fn of(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::parse(&text.replace("FOLDER", &folder.path().display().to_string()), "test").unwrap();
        let daemon = Some(Daemon::start(&config).unwrap());
        let bed = Self { daemon, config, folder, recording: None };
        // Each test of verdicts is one of the recorder, too.
        if std::env::var_os("MEMLANE_TEST_RECORD").is_some() { bed.recorded() } else { bed }
    }

    /// The same, with a recorder: each verdict is made again when the network stops, and must be the same.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        if self.recording.is_none() {
            self.recording = Some(self.daemon().network().record(RECORDER).unwrap());
        }
        self
    }

    /// A network with `ports` ports that wait for guest memory to be filled only so long.
    pub fn with_fill_timeout(ports: usize, fill_timeout: Duration) -> Self {
        let mut bed = Self::new(ports);
        bed.stop();
        bed.config.settings.fill_timeout = Some(fill_timeout);
        bed.daemon = Some(Daemon::start(&bed.config).unwrap());
        bed
    }

    /// Where its sockets are.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The socket of port `index`.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("p{index}.sock"))
    }

    /// A guest with address 02:00:00:00:00:`index` on port `index`.
    pub fn guest(&self, index: usize) -> ToyGuest {
        self.guest_like(index, self.builder(index))
    }

    /// A guest to be on port `index`.
    pub fn builder(&self, index: usize) -> GuestBuilder {
        ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20))
    }

    /// A guest on port `index` that posts four small receive buffers, and none again.
    pub fn guest_with_four_buffers(&self, index: usize) -> ToyGuest {
        let few = ReceiveBuffers { count: Some(4), repost: false, ..ReceiveBuffers::SMALL };
        self.guest_like(index, self.builder(index).receive_buffers(few))
    }

    /// A guest made by `builder` on port `index`.
    pub fn guest_like(&self, index: usize, builder: GuestBuilder) -> ToyGuest {
        let guest = builder.connect(self.socket(index)).unwrap();
        self.wait_for(|bed| bed.state(index) == PortState::Running, "the port runs");
        guest
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    pub fn state(&self, index: usize) -> PortState {
        self.port(index).state()
    }

    pub fn totals(&self, index: usize) -> PortTotals {
        self.port(index).totals()
    }

    /// Port `index`, by its name: an uplink has a number before those of the ports.
    fn port(&self, index: usize) -> Arc<Port> {
        let network = self.daemon().network();
        let named = self.config.ports.get(index).and_then(|port| network.find(&port.name));
        named.or_else(|| network.port(PortId(index as u16))).unwrap()
    }

    /// The causes that keep port `index` from its work.
    pub fn causes(&self, index: usize) -> Vec<Cause> {
        let config = self.daemon().config();
        PortCauses::of(&config, &config.ports[index], self.daemon().network(), Duration::ZERO).unwrap().causes
    }

    /// Waits until a cause of this kind keeps port `index` from its work; returns it with its remedy, in one line.
    pub fn wait_for_cause(&self, index: usize, kind: CauseKind) -> String {
        let mut line = None;
        let find = |cause: Cause| (cause.cause == kind).then(|| cause.line());
        wait_until(
            || {
                line = self.causes(index).into_iter().find_map(find);
                line.is_some()
            },
            &format!("{kind:?} is a cause: {:?}", self.causes(index)),
        );
        line.unwrap_or_default()
    }

    pub fn drops(&self, index: usize, reason: DropReason) -> u64 {
        self.totals(index).drops.get(reason.name()).copied().unwrap_or(0)
    }

    /// Waits until `condition` holds.
    pub fn wait_for(&self, condition: impl Fn(&Self) -> bool, what: &str) {
        wait_until(|| condition(self), what);
    }

    /// Ends the network and starts it again at the same sockets.
    pub fn restart(&mut self) {
        self.stop();
        self.daemon = Some(Daemon::start(&self.config).unwrap());
    }

    pub fn stop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            if let Some(recording) = self.recording.take().filter(|_| !std::thread::panicking()) {
                replayed(daemon.network(), &recording);
            }
            daemon.stop();
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The replay of a recording.
pub struct Replayed {
    recording: Arc<Recording>,
    replay: Replay,
    place: Place,
    /// Records so far, and those of them that were overwritten before.
    pub count: u64,
    pub missed: u64,
}

impl Replayed {
    pub fn of(recording: Arc<Recording>) -> Self {
        let replay = Replay::new(&Description { reasons: reasons(), ..Description::default() });
        Self { recording, replay, place: Place::default(), count: 0, missed: 0 }
    }

    /// Makes the verdicts again that are new. Panics if one is another, or not known.
    pub fn go_on(&mut self, network: &Network) {
        let Self { recording, replay, place, count, missed } = self;
        let records = network.records(recording, place).unwrap();
        records.states.into_iter().for_each(|state| replay.learn(state));
        for (worker, records) in records.workers.iter().enumerate() {
            *missed += records.missed;
            for chunk in &records.chunks {
                let (mut frames, mut number) = (frames(&chunk.bytes), chunk.first);
                for frame in frames.by_ref() {
                    if number >= records.first {
                        let (recorded, again) = (replay.recorded(&frame).unwrap(), replay.judge(&frame));
                        assert_eq!(again.as_ref(), Ok(&recorded), "record {number} of worker {worker}: {frame:?}");
                        *count += 1;
                    }
                    number += 1;
                }
                assert!(frames.are_over() && number == chunk.end());
            }
        }
    }
}

/// Makes each verdict of a recording again; returns how many records there are. Panics if a verdict is another, or not known.
pub fn replayed(network: &Network, recording: &Arc<Recording>) -> u64 {
    let mut replayed = Replayed::of(Arc::clone(recording));
    replayed.go_on(network);
    replayed.count
}

/// The names of the reasons of drops.
fn reasons() -> Vec<String> {
    DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect()
}

/// Waits until `condition` holds.
pub fn wait_until(mut condition: impl FnMut() -> bool, what: &str) {
    // Other tests run beside this one: that it happens is tested here, not how fast.
    let deadline = Instant::now() + 6 * TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// The address of guest `index`.
pub fn mac(index: usize) -> [u8; 6] {
    let [a, b] = (index as u16).to_be_bytes();
    [2, 0, 0, 0, a, b]
}

pub const BROADCAST: [u8; 6] = [0xff; 6];

/// A frame of `length` bytes with `number` in its payload.
pub fn frame(from: [u8; 6], to: [u8; 6], length: usize, number: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|n| (n as u64 ^ number) as u8).collect();
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    let end = length.min(22);
    bytes[14..end].copy_from_slice(&number.to_be_bytes()[..end - 14]);
    bytes
}

/// Has the switch learn the MAC address of each guest, and takes the frames that the others received.
pub fn announce(guests: &mut [&mut ToyGuest]) {
    for index in 0..guests.len() {
        let hello = frame(guests[index].mac(), BROADCAST, 60, index as u64);
        guests[index].send(&hello).unwrap();
        for other in (0..guests.len()).filter(|&other| other != index) {
            assert_eq!(guests[other].receive(TIMEOUT).unwrap().bytes, hello);
        }
    }
}

/// Asserts that nothing arrives at `guest`.
pub fn assert_silent(guest: &mut ToyGuest) {
    if let Ok(frame) = guest.receive(POLL_INTERVAL) {
        panic!("an unexpected frame of {} bytes arrived: {:02x?}", frame.bytes.len(), &frame.bytes[..frame.bytes.len().min(40)]);
    }
}

/// Runs the test `name` of this program, with the names of the modules it is in, again where it has a network to itself.
pub fn in_a_namespace(name: &str, test: fn()) {
    in_namespaces(&["--net"], name, test);
}

/// Like [`in_a_namespace`], in namespaces of the kinds that these options of unshare(1) name.
pub fn in_namespaces(kinds: &[&str], name: &str, test: fn()) {
    const INSIDE: &str = "MEMLANE_TEST_IN_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    // SAFETY: geteuid takes nothing, changes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let mut command = Command::new("unshare");
    command.args(kinds).args(if root { &[][..] } else { &["--user", "--map-root-user"] });
    command.arg("--").arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    let output = command.stderr(Stdio::inherit()).output().expect("`unshare` of util-linux can be started");
    // Marked as another program's: `switch/test` counts the tests that this one names and sums up.
    let told: String = String::from_utf8_lossy(&output.stdout).lines().map(|line| format!("| {line}\n")).collect();
    assert!(
        output.status.success(),
        "{name} failed in its namespace, or the namespace was refused ({}; see above). Run the tests as root, or allow users to make \
         namespaces: sysctl kernel.unprivileged_userns_clone=1 user.max_net_namespaces=1000, and allow them to open /dev/net/tun\n{told}",
        output.status
    );
    assert!(told.contains(" 1 passed"), "no test is called {name}: {told}");
    print!("{told}");
}
