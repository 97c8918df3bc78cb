//! Recordings of verdicts: the recorder of a running network, and streams of its records, in the format of [`memlane_observe::recording`].
//!
//! A stream is written as verdicts are made, or once: the recorder's memory now, or when an event happens or a thread of the network fails. A slow
//! client blocks only the thread of its stream; records that are overwritten meanwhile are a gap of the file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::response::Response;
use http_body_util::channel::Sender;
use hyper::body::{Bytes, Frame as Part};
use memlane_model::recording::{Description, State};
use memlane_observe::events::{From, Reader};
use memlane_observe::recording::{Block, Clock, Frame, begin, put_frames};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::managed::Managed;
use super::problem::Refusal;
use super::stream::{self, Lease};
use crate::author;
use crate::journal::{NetworkEvent, note};
use crate::network::{Network, Place, RecorderRefused, Records};
use crate::record::{Chunk, Recording};
use crate::stats::DropReason;
use crate::time::{Cycles, cycles, frequency, in_cycles};

/// Content type of a recording.
pub const CONTENT_TYPE: &str = "application/x-memlane-recording";
/// Memory of a recorder, if the order states none.
const MEMORY: u64 = 64 << 20;
/// Bytes of a block of frames.
const BLOCK: usize = 64 << 10;
/// Pause between two looks at the recorder.
const PAUSE: Duration = Duration::from_millis(20);
/// Interval of clocks in the file.
const CLOCKS: Duration = Duration::from_secs(1);
/// Longest time without data, so that a client with a hanging connection is noticed.
const ALIVE: Duration = Duration::from_secs(5);
/// Most bytes of a part of the response.
const PART: usize = 1 << 20;

/// Recordings that wait for an event or a failure.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The network has failed: gives recordings that waited for that so much time to be written.
pub fn give_time(most: Duration) {
    let begun = Instant::now();
    while WAITING.load(Ordering::Relaxed) > 0 && begun.elapsed() < most {
        std::thread::sleep(PAUSE);
    }
}

/// Parameters of the recorder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RecorderOrder {
    /// Bytes of memory for records, of all workers together; each has 1 MiB at least. At most half of what is left on the host and in the cgroup.
    #[schemars(range(min = 1048576))]
    pub memory: u64,
}

impl Default for RecorderOrder {
    fn default() -> Self {
        Self { memory: MEMORY }
    }
}

/// The recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RecorderView {
    /// Whether it runs.
    pub runs: bool,
}

/// Parameters of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RecordingOrder {
    /// End with the records that there are now. Without it, the recording goes on until the client closes the connection; a recorder is started if none
    /// runs.
    pub dump: bool,
    /// Wait for the first event with one of these names, or a failure of the network, and end with the records that there are then.
    pub on: Vec<String>,
    /// Leave out verdicts that are older, in milliseconds.
    #[schemars(range(min = 1))]
    pub last: Option<u64>,
}

/// Starts the recorder.
///
/// # Errors
/// One runs already, or the network ends.
pub fn start(managed: &Managed, order: &RecorderOrder) -> Result<RecorderView, Refusal> {
    let network = managed.ask(|daemon| Arc::clone(daemon.network()))?;
    start_on(&network, order.memory).map_err(|error| Refusal::new(StatusCode::CONFLICT, error))?;
    Ok(RecorderView { runs: true })
}

fn start_on(network: &Network, memory: u64) -> Result<Arc<Recording>, RecorderRefused> {
    let recording = network.record(usize::try_from(memory).unwrap_or(usize::MAX))?;
    note(&network.shared().journal, NetworkEvent::RecorderStarted { memory, by: author::current() });
    Ok(recording)
}

/// Stops the recorder, and frees its memory.
///
/// # Errors
/// None runs, or the network ends.
pub fn stop(managed: &Managed) -> Result<RecorderView, Refusal> {
    let network = managed.ask(|daemon| Arc::clone(daemon.network()))?;
    if stop_on(&network) {
        Ok(RecorderView::default())
    } else {
        Err(Refusal::new(StatusCode::NOT_FOUND, "no recorder runs: `memlane record NET` starts one"))
    }
}

fn stop_on(network: &Network) -> bool {
    let stopped = network.stop_recording();
    if stopped {
        note(&network.shared().journal, NetworkEvent::RecorderStopped { by: author::current() });
    }
    stopped
}

/// Whether the recorder runs.
///
/// # Errors
/// The network ends.
pub fn view(managed: &Managed) -> Result<RecorderView, Refusal> {
    let runs = managed.ask(|daemon| daemon.network().recording().is_some())?;
    Ok(RecorderView { runs })
}

/// Starts the recording for `order`.
///
/// # Errors
/// No recorder runs, and the order needs one.
pub fn open(managed: &Arc<Managed>, order: RecordingOrder, lease: Lease) -> Result<Response, Refusal> {
    if let Some(unknown) = order.on.iter().find(|name| !NetworkEvent::NAMES.contains(&name.as_str())) {
        let mistake = ("on".to_owned(), format!("no event is called \"{unknown}\""));
        return Err(Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, vec![mistake]));
    }
    let (network, name) = managed.ask(|daemon| (Arc::clone(daemon.network()), daemon.config().name.clone()))?;
    let is_once = order.dump || !order.on.is_empty();
    let (recording, is_own) = match network.recording() {
        Some(recording) => (recording, false),
        None if is_once => {
            let text = "no recorder runs: `memlane record NET` starts one, and it records from then on";
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        None => (start_on(&network, MEMORY).map_err(|error| Refusal::new(StatusCode::CONFLICT, error))?, true),
    };
    let by = author::current();
    let description = Description {
        program: concat!("memlane ", env!("CARGO_PKG_VERSION")).into(),
        network: name,
        by: by.as_ref().map(ToString::to_string),
        workers: network.shared().workers.len() as u8,
        reasons: DropReason::ALL.iter().map(|reason| reason.name().into()).collect(),
        cause: None,
    };
    let events = managed.events(From::Now)?;
    let (response, to) = stream::answer(CONTENT_TYPE);
    let failed = |error: io::Error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    let mut pump = Pump { network, recording, is_own, order, to, file: File::default(), events, description };
    let (managed, runtime) = (Arc::clone(managed), Handle::current());
    let run = move || {
        author::acting(by, || pump.run(&managed, &runtime));
        drop(lease);
    };
    std::thread::Builder::new().name("record".into()).spawn(run).map_err(failed)?;
    Ok(response)
}

/// The file so far.
#[derive(Debug, Default)]
struct File {
    place: Place,
    bytes: Vec<u8>,
    records: u64,
    missed: u64,
}

impl File {
    fn write_states(&mut self, states: &[State]) {
        for state in states {
            // A state is made of plain values.
            Block::State(serde_json::to_vec(state).unwrap_or_default()).encode(&mut self.bytes);
        }
    }

    fn write_gap(&mut self, worker: u8, lost: u64) {
        if lost > 0 {
            self.missed += lost;
            Block::Gap { worker, lost }.encode(&mut self.bytes);
        }
    }

    /// Writes the records of a chunk, but those before number `first` and those of moments before `since`.
    fn write_chunk(&mut self, worker: u8, chunk: &Chunk, (first, since): (u64, Cycles)) {
        let (mut rest, mut number) = (&chunk.bytes[..], chunk.first);
        while let Some((frame, after)) = Frame::decode(rest).filter(|(frame, _)| number < first || frame.moment < since) {
            (rest, number) = (after, number + frame.count());
        }
        self.records += chunk.end().saturating_sub(number);
        put_frames(&mut self.bytes, worker, rest, BLOCK);
    }

    fn write_clock(&mut self) {
        let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Block::Clock(Clock { cycles: cycles(), nanoseconds, frequency: frequency() }).encode(&mut self.bytes);
    }

    fn end(&mut self) {
        self.write_clock();
        Block::End { records: self.records }.encode(&mut self.bytes);
    }
}

/// The client has gone.
struct Gone;

/// The thread of a recording.
struct Pump {
    network: Arc<Network>,
    recording: Arc<Recording>,
    /// The recorder was started for it.
    is_own: bool,
    order: RecordingOrder,
    to: Sender<Bytes>,
    file: File,
    events: Reader<NetworkEvent>,
    description: Description,
}

impl Pump {
    fn run(&mut self, managed: &Managed, runtime: &Handle) {
        let journal = Arc::clone(&self.network.shared().journal);
        note(&journal, NetworkEvent::RecordingStarted { by: author::current() });
        let waits = !self.order.on.is_empty();
        WAITING.fetch_add(waits.into(), Ordering::Relaxed);
        // The recording ends with the client's connection or the network.
        let _ = self.pump(managed, runtime);
        WAITING.fetch_sub(waits.into(), Ordering::Relaxed);
        if self.is_own {
            stop_on(&self.network);
        }
        let (records, missed) = (self.file.records, self.file.missed);
        note(&journal, NetworkEvent::RecordingEnded { records, missed, by: author::current() });
    }

    fn pump(&mut self, managed: &Managed, runtime: &Handle) -> Result<(), Gone> {
        let is_once = self.order.dump || !self.order.on.is_empty();
        let since = |order: &RecordingOrder| {
            let last = order.last.map(|last| in_cycles(Duration::from_millis(last)));
            last.map_or(0, |last| cycles().saturating_sub(last))
        };
        if !self.order.on.is_empty() {
            self.description.cause = Some(self.wait(managed)?);
        }
        self.file.bytes = begin(&serde_json::to_vec(&self.description).unwrap_or_default());
        self.file.write_clock();
        let begun = since(&self.order);
        let mut clock = Instant::now();
        loop {
            let is_over = match self.network.records(&self.recording, &mut self.file.place) {
                Some(records) => {
                    self.write(records, begun, runtime)?;
                    false
                }
                // The recorder was stopped.
                None => true,
            };
            if clock.elapsed() >= CLOCKS {
                clock = Instant::now();
                self.file.write_clock();
            }
            if is_once || is_over || managed.ask(|_| ()).is_err() {
                self.file.end();
                return self.send(runtime);
            }
            self.send(runtime)?;
            std::thread::sleep(PAUSE);
        }
    }

    /// Writes records, but those of moments before `since`; each chunk is sent and let go before the next one.
    fn write(&mut self, records: Records, since: Cycles, runtime: &Handle) -> Result<(), Gone> {
        self.file.write_states(&records.states);
        for (worker, records) in records.workers.into_iter().enumerate() {
            self.file.write_gap(worker as u8, records.missed);
            for chunk in records.chunks {
                self.file.write_chunk(worker as u8, &chunk, (records.first, since));
                drop(chunk);
                if self.file.bytes.len() >= PART {
                    self.send(runtime)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for an event of the order, or a failure of the network; the cause in words.
    fn wait(&mut self, managed: &Managed) -> Result<String, Gone> {
        let mut looked = Instant::now();
        loop {
            if let Some(cause) = self.network.fatal().cause() {
                return Ok(cause.to_owned());
            }
            let batch = self.events.take(64);
            let wanted = |event: &NetworkEvent| self.order.on.iter().any(|name| name == event.name());
            if let Some(record) = batch.records.iter().find(|record| wanted(&record.event)) {
                return Ok(record.event.to_string());
            }
            if looked.elapsed() >= ALIVE {
                looked = Instant::now();
                self.is_there()?;
            }
            if managed.ask(|_| ()).is_err() && self.network.fatal().cause().is_none() {
                return Err(Gone);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the client is there: the server takes an empty part, which it does not send, only while it is.
    fn is_there(&mut self) -> Result<(), Gone> {
        let is_gone = self.to.capacity() > 0 && self.to.try_send(Part::data(Bytes::new())).is_err();
        if is_gone { Err(Gone) } else { Ok(()) }
    }

    /// Sends the bytes of the file so far.
    fn send(&mut self, runtime: &Handle) -> Result<(), Gone> {
        let bytes = Bytes::from(std::mem::take(&mut self.file.bytes));
        if bytes.is_empty() {
            return self.is_there();
        }
        for at in (0..bytes.len()).step_by(PART) {
            let part = bytes.slice(at..bytes.len().min(at + PART));
            runtime.block_on(self.to.send_data(part)).map_err(|_| Gone)?;
        }
        Ok(())
    }
}
