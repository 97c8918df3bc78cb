//! Frame captures of a running network: a pcapng stream for as long as the client reads it.
//!
//! A thread of the capture takes copies of frames from the workers' queues and writes them. A slow client blocks only this
//! thread: frames for which a queue has no room then are counted as missed, and the file says so.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::response::Response;
use http_body_util::channel::Sender;
use hyper::body::{Bytes, Frame};
use memlane_observe::bpf::{Instruction, Program};
use memlane_observe::pcapng::{Direction, Interface, InterfaceId, Packet, Statistics, Writer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::managed::Managed;
use super::problem::Refusal;
use super::stream::{self, Lease};
use crate::author;
use crate::daemon::NoSuchPort;
use crate::id::PortId;
use crate::journal::{NetworkEvent, note, shortened};
use crate::network::{Capture, Network};
use crate::quantity::counted;
use crate::tap::{CaptureOrder, MOST_SNAPLEN, Seen, Sight};
use crate::time::{Cycles, cycles, frequency, in_cycles};

/// Content type of a capture.
pub const CONTENT_TYPE: &str = "application/x-pcapng";
/// Bytes of frames taken from all workers at a time.
const PART: usize = 1 << 20;
/// Age at which the copies of all workers have arrived: frames are written in the order of time.
const SETTLED: Duration = Duration::from_millis(1);
/// Pause when the queues are empty.
const PAUSE: Duration = Duration::from_millis(2);
/// Interval of interface statistics, where they have changed.
const STATISTICS: Duration = Duration::from_secs(1);
/// Longest time without data, so that a client with a hanging connection is noticed.
const ALIVE: Duration = Duration::from_secs(5);
/// Comment of a frame with a checksum that was left to the device and cannot be completed in the file.
const PARTIAL_CHECKSUM: &str = "partial checksum: left to the device, and the frame is cut";
/// Longest filter, in bytes.
const LONGEST_FILTER: usize = 64 << 10;

/// Parameters of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct CaptureRequest {
    /// Names of the ports; if empty, all ports, including those attached later.
    pub ports: Vec<String>,
    /// Capture dropped frames only.
    pub drops: bool,
    /// Most bytes captured of a frame.
    #[schemars(range(min = 1, max = 262144))]
    pub snaplen: u32,
    /// End after so many frames; by default, never.
    #[schemars(range(min = 1))]
    pub frames: Option<u64>,
    /// The filter in the pcap-filter language, as a comment in the file; `program` is the one that selects frames.
    pub filter: String,
    /// The filter compiled to classic BPF for Ethernet, each instruction as [code, jt, jf, k]; if empty, all frames are captured.
    pub program: Vec<(u16, u8, u8, u32)>,
}

impl Default for CaptureRequest {
    fn default() -> Self {
        Self { ports: Vec::new(), drops: false, snaplen: MOST_SNAPLEN, frames: None, filter: String::new(), program: Vec::new() }
    }
}

impl CaptureRequest {
    fn order(&self, network: &Network) -> Result<CaptureOrder, Refusal> {
        let mistaken = |key: &str, text: String| Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, vec![(key.into(), text)]);
        if self.filter.len() > LONGEST_FILTER {
            return Err(mistaken(
                "filter",
                format!("filter has {}, and may have {LONGEST_FILTER}", counted(self.filter.len(), "byte")),
            ));
        }
        let program: Vec<Instruction> = self.program.iter().map(|&instruction| instruction.into()).collect();
        let filter = (!program.is_empty()).then(|| Program::new(&program)).transpose();
        if let Some(missing) = self.ports.iter().find(|name| network.find(name).is_none()) {
            return Err(NoSuchPort(missing.clone()).into());
        }
        Ok(CaptureOrder {
            ports: (!self.ports.is_empty()).then(|| self.ports.clone()),
            drops_only: self.drops,
            snaplen: self.snaplen.clamp(1, MOST_SNAPLEN),
            filter: filter.map_err(|fault| mistaken("program", fault.to_string()))?,
        })
    }
}

/// Starts the capture for `request`: frames transmitted after this returns are in it.
///
/// # Errors
/// A port does not exist, the program is invalid, or too many captures run.
pub fn begin(managed: &Arc<Managed>, request: CaptureRequest, lease: Lease) -> Result<Response, Refusal> {
    let network = managed.ask(|daemon| Arc::clone(daemon.network()))?;
    let order = request.order(&network)?;
    let busy = |error| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error);
    let capture = network.capture(order).map_err(busy)?;
    let (response, to) = stream::answer(CONTENT_TYPE);
    let failed = |error: io::Error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    let mut pump = Pump::new(capture, request, to).map_err(failed)?;
    let (managed, runtime) = (Arc::clone(managed), Handle::current());
    let by = author::current();
    let run = move || {
        author::acting(by, || pump.run(&managed, &runtime));
        drop(lease);
    };
    std::thread::Builder::new().name("capture".into()).spawn(run).map_err(failed)?;
    Ok(response)
}

/// An interface of the file.
#[derive(Debug)]
struct Known {
    id: InterfaceId,
    name: String,
    statistics: Statistics,
    written: Statistics,
    /// Missed frames that were reported with a packet.
    told: u64,
    /// Missed frames of an earlier port of the same number.
    before: u64,
}

impl Known {
    /// Statistics of the interface when `missed` frames were missed at ports with its number.
    fn total(&self, missed: u64) -> Statistics {
        let dropped = missed - self.before;
        Statistics { received: self.statistics.received + dropped, dropped }
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    cycles: Cycles,
    nanoseconds: u64,
}

impl Moment {
    fn now() -> Self {
        let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Self { cycles: cycles(), nanoseconds }
    }

    /// Nanoseconds since 1970 at `at`.
    fn time(self, at: Cycles) -> u64 {
        let passed = (i128::from(at) - i128::from(self.cycles)) * 1_000_000_000 / i128::from(frequency().max(1));
        (i128::from(self.nanoseconds) + passed).clamp(0, u64::MAX.into()) as u64
    }
}

/// The thread of a capture.
struct Pump {
    capture: Capture,
    request: CaptureRequest,
    to: Sender<Bytes>,
    file: File,
}

/// The pcapng file so far.
struct File {
    writer: Writer<Vec<u8>>,
    ports: HashMap<PortId, Known>,
    filter: String,
    snaplen: u32,
    moment: Moment,
    frames: u64,
    /// Frames missed at ports whose numbers others have now.
    missed_at_gone: u64,
}

impl Pump {
    fn new(capture: Capture, request: CaptureRequest, to: Sender<Bytes>) -> io::Result<Self> {
        let writer = Writer::new(Vec::new(), concat!("memlane ", env!("CARGO_PKG_VERSION")))?;
        // Each interface of the file has it.
        let (filter, snaplen) = (shortened(&request.filter), capture.order().snaplen);
        let mut file = File { writer, ports: HashMap::new(), filter, snaplen, moment: Moment::now(), frames: 0, missed_at_gone: 0 };
        let ports = capture.network().ports();
        let ordered = ports.iter().filter(|port| request.ports.is_empty() || request.ports.contains(&port.name));
        ordered.map(|port| port.id).try_for_each(|port| file.look_up(port, Cycles::MAX, &capture).map(drop))?;
        Ok(Self { capture, request, to, file })
    }

    fn run(&mut self, managed: &Managed, runtime: &Handle) {
        let journal = Arc::clone(&self.capture.network().shared().journal);
        let (ports, filter) = (self.request.ports.clone(), self.request.filter.clone());
        note(&journal, NetworkEvent::CaptureStarted { ports, filter, left_out: 0, by: author::current() });
        // The capture ends with the client's connection or the network.
        let _ = self.pump(managed, runtime);
        let missed = self.file.missed_at_gone + self.file.ports.values().map(|port| port.statistics.dropped).sum::<u64>();
        note(&journal, NetworkEvent::CaptureEnded { frames: self.file.frames, missed, by: author::current() });
    }

    fn pump(&mut self, managed: &Managed, runtime: &Handle) -> io::Result<()> {
        let most = PART / self.capture.network().shared().workers.len().max(1);
        let (mut sent, mut counted, mut looked) = (Instant::now(), Instant::now(), Instant::now());
        loop {
            let over = self.take(most)?;
            if over || counted.elapsed() >= STATISTICS {
                counted = Instant::now();
                self.file.moment = Moment::now();
                let all = over || sent.elapsed() >= ALIVE;
                self.file.write_statistics(&self.capture, all)?;
            }
            let part = std::mem::take(self.file.writer.get_mut());
            if part.is_empty() {
                if looked.elapsed() >= STATISTICS {
                    looked = Instant::now();
                    if self.is_abandoned() {
                        return Ok(());
                    }
                }
                std::thread::sleep(PAUSE);
            } else {
                let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
                runtime.block_on(self.to.send_data(part.into())).map_err(gone)?;
                sent = Instant::now();
            }
            if over || managed.ask(|_| ()).is_err() {
                return Ok(());
            }
        }
    }

    /// Whether the client has disconnected: the server takes an empty part, which it does not send, only while there is one.
    fn is_abandoned(&mut self) -> bool {
        self.to.capacity() > 0 && self.to.try_send(Frame::data(Bytes::new())).is_err()
    }

    /// Writes the copied frames; true if the requested number is reached.
    fn take(&mut self, most: usize) -> io::Result<bool> {
        let wanted = self.request.frames.unwrap_or(u64::MAX);
        let Self { capture, file, .. } = self;
        let mut seen = Vec::new();
        let until = cycles().saturating_sub(in_cycles(SETTLED));
        capture.read(most, until, |what, bytes| seen.push((what, bytes.to_vec())));
        let mut looked_up = HashSet::new();
        for (what, mut bytes) in seen {
            if file.frames == wanted {
                break;
            }
            if !looked_up.contains(&what.port) && file.look_up(what.port, what.at, capture)? {
                looked_up.insert(what.port);
            }
            file.write(what, &mut bytes, capture.missed(what.port))?;
        }
        Ok(file.frames == wanted)
    }
}

impl File {
    /// Writes the interface of the port that had the number `port` at `at`, if it is new; true if that port has the number still.
    fn look_up(&mut self, port: PortId, at: Cycles, capture: &Capture) -> io::Result<bool> {
        // The queues may still hold frames of an earlier port with this number.
        let found = capture.network().port(port).filter(|found| found.added <= at);
        match (&found, self.ports.get(&port)) {
            (Some(found), Some(known)) if known.name == found.name => return Ok(true),
            // The port's last frames before it was detached.
            (None, Some(_)) => return Ok(false),
            _ => {}
        }
        let name = found.as_ref().map_or_else(|| format!("port {}", port.0), |port| port.name.clone());
        let description = found.as_ref().map_or("", |port| &port.segment.name);
        let id = self.writer.interface(Interface { name: &name, description, snaplen: self.snaplen, filter: &self.filter })?;
        let (statistics, missed) = (Statistics::default(), capture.missed(port));
        let before = match self.ports.remove(&port) {
            Some(known) => {
                self.missed_at_gone += missed - known.before;
                self.writer.statistics(known.id, self.moment.nanoseconds, known.total(missed))?;
                missed
            }
            None => 0,
        };
        self.ports.insert(port, Known { id, name, statistics, written: statistics, told: before, before });
        Ok(found.is_some())
    }

    /// Writes a frame, with the checksum that its sender left to the device.
    fn write(&mut self, seen: Seen, bytes: &mut [u8], missed: u64) -> io::Result<()> {
        let Some(port) = self.ports.get_mut(&seen.port) else { return Ok(()) };
        let (direction, mut comment) = match seen.sight {
            Sight::Transmit => (Direction::Outbound, String::new()),
            Sight::Receive => (Direction::Inbound, String::new()),
            Sight::Dropped(reason) => {
                let direction = if seen.port == seen.source { Direction::Outbound } else { Direction::Inbound };
                (direction, format!("dropped: {}", reason.name()))
            }
        };
        if !complete_checksum(seen, bytes) {
            let separator = if comment.is_empty() { "" } else { "; " };
            comment = format!("{comment}{separator}{PARTIAL_CHECKSUM}");
        }
        self.frames += 1;
        port.statistics.received += 1;
        self.writer.packet(&Packet {
            interface: port.id,
            time: self.moment.time(seen.at),
            direction,
            id: seen.id.into(),
            bytes,
            length: seen.length,
            missed: missed - std::mem::replace(&mut port.told, missed),
            comment: &comment,
        })
    }

    /// Writes the statistics of interfaces with changes, or of all.
    fn write_statistics(&mut self, capture: &Capture, all: bool) -> io::Result<()> {
        for (port, known) in &mut self.ports {
            let missed = capture.missed(*port);
            known.statistics.dropped = missed - known.before;
            if all || known.statistics != known.written {
                known.written = known.statistics;
                self.writer.statistics(known.id, self.moment.nanoseconds, known.total(missed))?;
            }
        }
        Ok(())
    }
}

/// Completes the checksum that the sender of the frame left to the device; false if the copy is cut.
fn complete_checksum(seen: Seen, bytes: &mut [u8]) -> bool {
    seen.checksum.is_none_or(|checksum| bytes.len() == seen.length as usize && checksum.complete(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_tells_the_time_before_and_after_it() {
        let moment = Moment { cycles: 1_000_000_000_000, nanoseconds: 5_000_000_000 };
        let second = frequency();
        assert_eq!(moment.time(moment.cycles), 5_000_000_000);
        assert_eq!(moment.time(moment.cycles + second), 6_000_000_000);
        assert_eq!(moment.time(moment.cycles - second), 4_000_000_000);
    }
}
