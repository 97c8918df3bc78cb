//! Description of a vhost-user session, with which another process of the network goes on (takeover).
//!
//! A saved session is a list of messages, which bring a new device to the state to which the front end's messages have led. The other process
//! replays them: it serves them by the decoder of a front end's messages, with its checks, but answers none. The positions of a virtqueue are not
//! part of them: the used index in guest memory says where to go on.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use serde::{Deserialize, Serialize};
use vhost::vhost_user::message::FrontendReq;

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
    /// Protocol features that were offered.
    pub protocol_offer: Option<u64>,
    /// Messages that bring a new device to the state of this one.
    pub messages: Vec<SavedMessage>,
    /// Holes of guest memory are still to be filled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filling: bool,
    /// Queue pairs that the driver requested.
    pub active_pairs: Option<u16>,
    /// The part of a message that has arrived.
    pub part: Vec<u8>,
    /// The descriptors of that message.
    pub part_files: Vec<u32>,
    /// The front end that was admitted beside it, and waits for the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<Box<Self>>,
}

/// A message of a front end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedMessage {
    /// Number of the request.
    pub request: u32,
    /// Payload, eight bytes a number (native order).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub payload: Vec<u64>,
    /// Number of its descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<u32>,
}

/// Messages that are being written, and the list of their descriptors.
pub(super) struct Script<'f> {
    pub messages: Vec<SavedMessage>,
    pub files: &'f mut FilesToSend,
}

impl Script<'_> {
    /// Adds a message without a descriptor.
    pub(super) fn say(&mut self, request: FrontendReq, payload: &[u64]) {
        self.messages.push(SavedMessage { request: request.into(), payload: payload.to_vec(), file: None });
    }

    /// Adds a message with a descriptor.
    pub(super) fn pass(&mut self, request: FrontendReq, payload: &[u64], file: impl Into<OwnedFd>) {
        let file = Some(self.files.add(file));
        self.messages.push(SavedMessage { request: request.into(), payload: payload.to_vec(), file });
    }
}

/// Two words of a payload as a number.
pub(super) fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
    use vhost::vhost_user::message::FrontendReq as Request;

    use super::super::features::{PROTOCOL_FEATURES, known_protocol};
    use super::super::messages;
    use super::super::settings::DeviceSettings;
    use super::super::wire::{Message, Reply};
    use super::*;
    use crate::listener::Second;
    use crate::network::Network;
    use crate::port::Port;
    use crate::settings::Settings;
    use crate::shared::Shared;

    /// The messages of a front end that has set up a bit of everything, but no virtqueue so far that it starts.
    fn conversation() -> Vec<(Request, Vec<u64>, Option<File>)> {
        let memory = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        memory.set_len(1 << 20).unwrap();
        let memory = || Some(memory.try_clone().unwrap());
        let event = || Some(EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap().into());
        let (channel, _) = UnixStream::pair().unwrap();
        let (state, _) = io::pipe().unwrap();
        let protocol = known_protocol() & !(Protocol::CONFIG | Protocol::PAGEFAULT);
        vec![
            (Request::SET_OWNER, vec![], None),
            (Request::GET_PROTOCOL_FEATURES, vec![], None),
            (Request::SET_PROTOCOL_FEATURES, vec![protocol.bits()], None),
            (Request::SET_FEATURES, vec![1 << 32 | PROTOCOL_FEATURES], None),
            (Request::NET_SET_MTU, vec![1400], None),
            (Request::SET_STATUS, vec![11], None),
            (Request::SET_MEM_TABLE, vec![pair(1, 0), 0x1000, 0x8000, 0x7000_0000, 0x2000], memory()),
            (Request::ADD_MEM_REG, vec![0, 0x9000, 0x1000, 0x7000_8000, 0xa000], memory()),
            (Request::SET_LOG_BASE, vec![0x1000, 0xc000], memory()),
            (Request::SET_INFLIGHT_FD, vec![0x8000, 0x10000, pair(256 << 16 | 2, 0)], memory()),
            (Request::SET_DEVICE_STATE_FD, vec![pair(1, 0)], Some(OwnedFd::from(state).into())),
            (Request::SET_BACKEND_REQ_FD, vec![], Some(OwnedFd::from(channel).into())),
            (Request::SET_VRING_NUM, vec![pair(0, 256)], None),
            (Request::SET_VRING_BASE, vec![pair(0, 7)], None),
            (Request::SET_VRING_ADDR, vec![pair(0, 1), 0x7000_0000, 0x7000_2000, 0x7000_1000, 0x3000], None),
            (Request::SET_VRING_CALL, vec![0], event()),
            (Request::SET_VRING_ERR, vec![0], event()),
            (Request::SET_VRING_ENABLE, vec![pair(0, 1)], None),
            (Request::SET_VRING_KICK, vec![1], event()),
            (Request::SET_VRING_KICK, vec![2 | messages::WITHOUT_FILE], None),
        ]
    }

    #[test]
    fn a_device_to_which_a_session_was_replayed_is_described_as_the_one_before() {
        let network = Network::start(Shared::new(1, 7, Settings::default()), &[]).unwrap();
        let port = Port::row(network.shared(), 1).remove(0);
        let settings = DeviceSettings { port, receive_offloads: true, pairs: 1, lazy_memory: false, second: Second::Refuse };
        let device = || Device::new(Arc::clone(&network), settings.clone());
        let described = |device: &Device| {
            let mut files = FilesToSend::default();
            let saved = device.save(&mut files, Vec::new()).unwrap();
            (saved, ReceivedFiles::new(files.into_files().into_iter().map(File::from)))
        };
        let (mut first, mut next) = (device(), device());
        for (request, payload, file) in conversation() {
            let payload = payload.into_iter().flat_map(u64::to_ne_bytes).collect();
            let message = Message { request: request.into(), flags: 1, payload, files: file.into_iter().collect() };
            messages::serve(message, &mut first, &mut Reply::default()).unwrap();
        }
        let (saved, mut files) = described(&first);
        next.restore(&saved, &mut files).unwrap();
        assert_eq!(described(&next).0, saved);
        assert_eq!(saved.messages.len(), conversation().len() - 1, "no more is lost than a question: {:?}", saved.messages);
    }
}
