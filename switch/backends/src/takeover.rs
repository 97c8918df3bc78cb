//! Takeover by another process of the network, as the back ends see it: what a port leaves to the next process, and how a session does.
//!
//! 1. The daemon [asks](Pause::ask) all sessions to stand still, and [awaits](Pause::await_standstill) each. A session that waits for a
//!    message or a connection [stands](Pause::stand_if_asked), ready to be described.
//! 2. The description of a session ([`SavedConnection`]) is a list of messages, which bring a new device to the state to which the front end's
//!    messages have led. It refers to descriptors by number ([`FilesToSend`], [`ReceivedFiles`]).
//! 3. The other process replays the messages ([`RestoredSession`]): it serves them by the decoder of a front end's messages, with its checks, but answers none. The
//!    positions of a virtqueue are not part of them: the used index in guest memory says where to go on. Each session
//!    [reports](Progress), and goes on once all virtqueues run.
//! 4. The process ends, or its sessions [go on](Pause::end).

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vhost::vhost_user::message::FrontendReq;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::executor::Context;
use crate::network::StartingRing;
use crate::system;

/// Longest wait for a session without a check whether the takeover is over.
const STEP: Duration = Duration::from_millis(50);
/// Most descriptors that go with one byte: the kernel takes 253 (unix(7), SCM_MAX_FD).
pub const MOST_AT_ONCE: usize = 128;

/// Sends `files`, at most [`MOST_AT_ONCE`], with one byte.
///
/// # Errors
/// The error of sendmsg(2).
pub fn send(stream: &UnixStream, files: &[OwnedFd]) -> io::Result<()> {
    let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let sent = stream.send_with_fds(&[&[0_u8][..]], &files);
    sent.map(drop).map_err(|error| io::Error::from_raw_os_error(error.errno()))
}

/// Receives the descriptors of one call of [`send`], and appends them to `files`.
///
/// # Errors
/// The error of recvmsg(2); the stream has ended.
pub fn receive(stream: &UnixStream, files: &mut Vec<File>) -> io::Result<()> {
    match system::receive::<MOST_AT_ONCE>(stream, &mut [0], files)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Descriptors to be sent.
#[derive(Debug, Default)]
pub struct FilesToSend(Vec<OwnedFd>);

impl FilesToSend {
    /// These descriptors, numbered in their order.
    pub fn new(files: Vec<OwnedFd>) -> Self {
        Self(files)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Adds a descriptor; returns its number.
    pub fn add(&mut self, file: impl Into<OwnedFd>) -> u32 {
        self.0.push(file.into());
        self.0.len() as u32 - 1
    }

    /// All of them, by number.
    pub fn into_files(self) -> Vec<OwnedFd> {
        self.0
    }
}

/// Descriptors that were received. Each can be taken once.
#[derive(Debug, Default)]
pub struct ReceivedFiles(VecDeque<Option<File>>);

impl ReceivedFiles {
    /// These descriptors, numbered in their order.
    pub fn new(files: impl IntoIterator<Item = File>) -> Self {
        Self(files.into_iter().map(Some).collect())
    }

    /// Takes the descriptor `number`; `None` if there is none, or it was taken before.
    pub fn take(&mut self, number: u32) -> Option<File> {
        self.0.get_mut(number as usize)?.take()
    }

    /// Takes the first `count` of those that are left, as a list of its own; `None` if there are not so many.
    pub fn split_off_first(&mut self, count: u32) -> Option<Self> {
        let first: VecDeque<_> = self.0.drain(..(count as usize).min(self.0.len())).collect();
        (first.len() == count as usize).then_some(Self(first))
    }
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
pub(crate) struct Script<'f> {
    pub messages: Vec<SavedMessage>,
    pub files: &'f mut FilesToSend,
}

impl Script<'_> {
    /// Adds a message without a descriptor.
    pub(crate) fn say(&mut self, request: FrontendReq, payload: &[u64]) {
        self.messages.push(SavedMessage { request: request.into(), payload: payload.to_vec(), file: None });
    }

    /// Adds a message with a descriptor.
    pub(crate) fn pass(&mut self, request: FrontendReq, payload: &[u64], file: impl Into<OwnedFd>) {
        let file = Some(self.files.add(file));
        self.messages.push(SavedMessage { request: request.into(), payload: payload.to_vec(), file });
    }
}

/// Two words of a payload as a number.
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
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
pub struct RestoredDevice(pub(crate) Box<dyn FnOnce() -> Vec<StartingRing> + Send>);

impl fmt::Debug for RestoredDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RestoredDevice").finish_non_exhaustive()
    }
}

impl RestoredDevice {
    /// Starts its virtqueues, which [`Network::finish_starts`](crate::network::Network::finish_starts) waits for. The session
    /// acts on errors when it goes on.
    pub fn start(self) -> Vec<StartingRing> {
        (self.0)()
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
    pub(crate) fn report(&self, report: Report) {
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
    pub(crate) async fn pass(&self, context: &Context) {
        self.waiting().sessions.push(context.waker().clone());
        context.wait(None, || self.waiting().is_open.then_some(())).await;
    }
}

enum Stage<T> {
    Runs,
    Asked,
    Stands(Option<Box<io::Result<T>>>),
}

/// How the daemon has a session stand still, which offers a `T` to be described.
pub struct Pause<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

struct Inner<T> {
    stage: Stage<T>,
    /// Another process has served the virtqueues before the session went on.
    behind: bool,
}

impl<T> Default for Pause<T> {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { stage: Stage::Runs, behind: false }), changed: Condvar::new() }
    }
}

impl<T> fmt::Debug for Pause<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").finish_non_exhaustive()
    }
}

impl<T> Pause<T> {
    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the session to stand, which is to be woken then.
    pub fn ask(&self) {
        self.inner().stage = Stage::Asked;
    }

    /// Whether the session is to stand.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.inner().stage, Stage::Asked)
    }

    /// The session once it stands; `None` if it does not until `deadline`, or until the takeover `is_over`.
    pub fn await_standstill(&self, deadline: Instant, is_over: &dyn Fn() -> bool) -> Option<io::Result<T>> {
        let mut inner = self.inner();
        while matches!(inner.stage, Stage::Asked) && !is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            inner = self.changed.wait_timeout(inner, left.min(STEP)).unwrap_or_else(PoisonError::into_inner).0;
        }
        match &mut inner.stage {
            Stage::Stands(session) => session.take().map(|session| *session),
            Stage::Runs | Stage::Asked => None,
        }
    }

    /// Has the session go on, which is to be woken then; `behind` if another process has served the virtqueues meanwhile.
    pub fn end(&self, behind: bool) {
        let mut inner = self.inner();
        (inner.stage, inner.behind) = (Stage::Runs, behind);
    }

    /// Stands if that was asked for, until [`Self::end`]; called by the session that is `ready`. Returns true if another process has served the
    /// virtqueues meanwhile.
    pub(crate) async fn stand_if_asked(&self, context: &Context, ready: impl FnOnce() -> io::Result<T>) -> bool {
        if !self.is_asked() || !self.stand(ready()) {
            return false;
        }
        let goes_on = || {
            let inner = self.inner();
            (!matches!(inner.stage, Stage::Stands(_))).then_some(inner.behind)
        };
        context.wait(None, goes_on).await == Some(true)
    }

    /// Offers `session` to the one that waits for it; returns false if it is to stand no more.
    fn stand(&self, session: io::Result<T>) -> bool {
        let mut inner = self.inner();
        let is_asked = matches!(inner.stage, Stage::Asked);
        if is_asked {
            inner.stage = Stage::Stands(Some(Box::new(session)));
            self.changed.notify_all();
        }
        is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;

    #[test]
    fn each_descriptor_is_taken_once() {
        let null = || File::open("/dev/null").unwrap();
        let mut files = ReceivedFiles::new([null(), null(), null()]);
        let mut first = files.split_off_first(2).unwrap();
        assert!(first.take(1).is_some() && first.take(1).is_none() && first.take(2).is_none() && first.take(u32::MAX).is_none());
        assert!(files.take(0).is_some() && files.take(0).is_none());
        assert!(files.split_off_first(2).is_none());
    }

    #[test]
    fn a_session_stands_until_it_may_go_on() {
        let (executor, pause) = (Executor::new().unwrap(), Arc::<Pause<u8>>::default());
        let (tell, told) = std::sync::mpsc::channel();
        let deadline = || Instant::now() + Duration::from_secs(30);
        let session = |pause: Arc<Pause<u8>>| {
            let tell = tell.clone();
            let session = |context: Context| async move {
                pause.stand_if_asked(&context, || Ok(7)).await;
                tell.send(()).unwrap();
            };
            let task = executor.task(|context| Ok(session(context))).unwrap();
            task.notify();
            task
        };
        session(Arc::clone(&pause));
        told.recv().unwrap();
        pause.ask();
        let task = session(Arc::clone(&pause));
        assert_eq!(pause.await_standstill(deadline(), &|| false).unwrap().unwrap(), 7);
        task.notify();
        assert!(told.recv_timeout(STEP).is_err());
        pause.end(false);
        task.notify();
        told.recv().unwrap();
        // A session that never stands is not waited for longer than that.
        pause.ask();
        assert!(pause.await_standstill(Instant::now() + Duration::from_millis(5), &|| false).is_none());
        let begun = Instant::now();
        assert!(pause.await_standstill(deadline(), &|| begun.elapsed() > STEP).is_none());
        pause.end(false);
        session(pause);
        told.recv().unwrap();
    }
}
