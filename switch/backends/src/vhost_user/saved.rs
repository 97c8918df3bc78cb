//! Description of a vhost-user session, with which another process of the network goes on (takeover).
//!
//! A saved session holds the state that the front end's messages have led to. The other process restores it by the same functions that serve those
//! messages, with their checks. The positions of a virtqueue are not part of it: the used index in guest memory says where to go on.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use serde::{Deserialize, Serialize};

use super::control::HeldControlQueue;
use super::device::{self, Device};
use super::wire::PartialMessage;
use crate::executor::Context;
use crate::network::StartingRing;
use crate::takeover::{FilesToSend, ReceivedFiles};
use crate::worker::QueueFiles;

/// A session that stands still.
#[derive(Default)]
pub struct StandingSession(pub(super) Option<StandingConnection>);

/// A connection of a session that stands still.
pub(super) struct StandingConnection {
    pub device: Arc<Mutex<Device>>,
    pub stream: UnixStream,
    /// The part of the next message that has arrived.
    pub part: PartialMessage,
    /// The control queue, if it runs.
    pub control: Option<QueueFiles>,
    /// The front end that was admitted beside it.
    pub second: Option<Box<Self>>,
}

impl fmt::Debug for StandingSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StandingSession").finish_non_exhaustive()
    }
}

impl StandingSession {
    /// Describes it. `queues` are the descriptors of its virtqueues that run at workers
    /// ([`Network::queue_files`](crate::network::Network::queue_files)).
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save(self, queues: Vec<QueueFiles>) -> io::Result<SavedSession> {
        let mut files = FilesToSend::default();
        let connection = self.0.map(|connection| connection.save(queues, &mut files)).transpose()?;
        Ok(SavedSession { connection, files: files.into_files() })
    }
}

impl StandingConnection {
    fn save(self, mut queues: Vec<QueueFiles>, files: &mut FilesToSend) -> io::Result<SavedConnection> {
        let Self { device, stream, part, control, second } = self;
        queues.extend(control);
        let mut saved = device::lock(&device).save(files, queues)?;
        saved.socket = files.add(stream);
        saved.part = part.bytes;
        saved.part_files = part.files.into_iter().map(|file| files.add(file)).collect();
        saved.second = second.map(|second| second.save(Vec::new(), files)).transpose()?.map(Box::new);
        Ok(saved)
    }
}

/// A session, described.
#[derive(Debug, Default)]
pub struct SavedSession {
    /// Connection of the session; `None` while the port waits for a front end.
    pub connection: Option<SavedConnection>,
    /// The descriptors to which it refers.
    pub files: Vec<OwnedFd>,
}

/// A connection, and the state of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedConnection {
    /// Number of the socket's descriptor.
    pub socket: u32,
    /// MAC address and MTU that the guest was offered.
    pub mac: [u8; 6],
    /// See [`Self::mac`].
    pub mtu: Option<u16>,
    /// MTU that the front end stated (NET_SET_MTU).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_mtu: Option<u16>,
    /// SET_OWNER came.
    pub owned: bool,
    /// Protocol features that were offered.
    pub protocol_offer: Option<u64>,
    /// Protocol features that the front end agreed to.
    pub protocol: u64,
    /// Features that the front end agreed to.
    pub features: u64,
    /// Device status.
    pub status: u8,
    /// Guest memory.
    pub regions: Vec<SavedRegion>,
    /// Holes of guest memory are still to be filled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filling: bool,
    /// How far postcopy is.
    #[serde(default, skip_serializing_if = "SavedPostcopy::is_inactive")]
    pub postcopy: SavedPostcopy,
    /// Virtqueues that the front end has set up.
    pub rings: Vec<SavedRing>,
    /// Queue pairs that the driver requested.
    pub active_pairs: Option<u16>,
    /// Number of the descriptor of the channel for messages to the front end.
    pub channel: Option<u32>,
    /// The dirty log.
    pub log: Option<SavedLog>,
    /// The inflight region.
    pub inflight: Option<SavedInflight>,
    /// Number of the descriptor of a device state that the front end has begun to send.
    pub state: Option<u32>,
    /// The part of a message that has arrived.
    pub part: Vec<u8>,
    /// The descriptors of that message.
    pub part_files: Vec<u32>,
    /// The front end that was admitted beside it, and waits for the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<Box<Self>>,
}

/// How far postcopy is. The page faults of another process are not answered, so there pages come as the front end sends them, and none is asked
/// for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedPostcopy {
    /// Not announced.
    #[default]
    Inactive,
    /// POSTCOPY_ADVISE came.
    Advised,
    /// POSTCOPY_LISTEN came.
    Listening,
}

impl SavedPostcopy {
    fn is_inactive(&self) -> bool {
        *self == Self::Inactive
    }
}

/// A region of guest memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedRegion {
    /// Guest address of the region.
    pub guest_start: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Address of the region in the front end's own process.
    pub user_start: u64,
    /// Offset of the region in the file.
    pub file_offset: u64,
    /// Number of the file's descriptor.
    pub file: u32,
}

/// A dirty log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedLog {
    /// Number of the file's descriptor.
    pub file: u32,
    /// Offset of the log in the file.
    pub offset: u64,
    /// Size of the log in bytes.
    pub size: u64,
}

/// An inflight region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedInflight {
    /// Number of the file's descriptor.
    pub file: u32,
    /// Offset of the region in the file.
    pub offset: u64,
    /// Number of virtqueues, and the descriptors of each.
    pub shape: (u16, u16),
}

/// A virtqueue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedRing {
    /// Index of the virtqueue.
    pub index: u32,
    /// Size of the virtqueue.
    pub size: u16,
    /// The front end's addresses of descriptor table, available ring and used ring.
    pub addresses: Option<[u64; 3]>,
    /// The base of a virtqueue that does not run.
    pub base: u16,
    /// How its driver kicks, once the front end has told it.
    pub kick: Option<SavedKick>,
    /// Number of the descriptor of its interrupt.
    pub call: Option<u32>,
    /// Number of the descriptor of its errors.
    pub error: Option<u32>,
    /// Guest address at which writes to the used ring are logged.
    pub log_address: Option<u64>,
    /// The virtqueue is enabled.
    pub enabled: bool,
    /// The virtqueue runs.
    pub running: bool,
}

/// How a driver kicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum SavedKick {
    /// Through the descriptor of this number.
    File(u32),
    /// Not at all: the device polls.
    Poll,
}

/// The thread of a control queue that stands still with its session.
#[derive(Debug, Default)]
pub(super) struct Held(pub Option<HeldControlQueue>);

impl Held {
    /// Has them go on at the used index in memory.
    pub(super) fn go_on_behind(self) {
        self.0.into_iter().for_each(HeldControlQueue::go_on_behind);
    }
}

/// A session of an earlier process, with which a port's session begins.
#[derive(Debug)]
pub struct RestoredSession {
    /// The connection, if there was one.
    pub connection: Option<SavedConnection>,
    /// The descriptors to which it refers.
    pub files: ReceivedFiles,
    /// Where the session reports.
    pub progress: Progress,
}

/// A device that is restored, up to the start of its virtqueues.
#[derive(Clone)]
pub struct RestoredDevice(pub(super) Arc<Mutex<Device>>);

impl fmt::Debug for RestoredDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RestoredDevice").finish_non_exhaustive()
    }
}

impl RestoredDevice {
    /// Starts its virtqueues, which [`Network::finish_starts`](crate::network::Network::finish_starts) waits for. The session
    /// acts on errors when it goes on.
    pub fn start(&self) -> Vec<StartingRing> {
        device::lock(&self.0).start_restored()
    }
}

/// Report of a session: it is restored, with this device if it has a front end; or it cannot be.
pub type Report = Result<Option<RestoredDevice>, String>;

/// The step of the sessions in a process that takes over. Each reports when it is restored, and goes on once the virtqueues run again.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Receives the reports.
    pub reports: Sender<Report>,
    /// Opened when the virtqueues run.
    pub gate: Arc<Gate>,
}

impl Progress {
    /// Reports. A daemon that has given up does not listen any more.
    pub(super) fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }
}

/// A gate that is opened once.
#[derive(Debug, Default)]
pub struct Gate(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    is_open: bool,
    /// Sessions that wait for it.
    sessions: Vec<Waker>,
}

impl Gate {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets all pass from now on.
    pub fn open(&self) {
        let sessions = {
            let mut waiting = self.waiting();
            waiting.is_open = true;
            std::mem::take(&mut waiting.sessions)
        };
        sessions.into_iter().for_each(Waker::wake);
    }

    /// Waits until it is open.
    pub(super) async fn pass(&self, context: &Context) {
        self.waiting().sessions.push(context.waker().clone());
        context.wait(None, || self.waiting().is_open.then_some(())).await;
    }
}
