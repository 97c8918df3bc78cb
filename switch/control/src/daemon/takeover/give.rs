//! The process that serves, and hands its network over: to a process that shows the [key](Key), and that a [guard](Guard) kills if it fails too late.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memlane_backends::stream::{MOST_LEFT, PresentStream};
use memlane_backends::takeover::{self, FilesToSend};
use memlane_backends::vhost_user::socket::Listener;
use memlane_confine::system::{KILL, WATCH};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::geteuid;
use thiserror::Error;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::super::{Attached, Daemon};
use super::{Channel, ChannelError, DRAIN, Message, PREPARE, REPLY, SESSIONS, STANDSTILL, START};
use crate::author::Author;
use crate::config::Config;
use crate::description::{
    Description, GrantRecord, Hello, PortRecord, SavedAddress, SavedListener, SavedPort, SavedService, SavedSockets,
    SavedStreamPort, SavedUplink, Standing,
};
use crate::folder;
use crate::id::PortId;
use crate::names::SavedLease;
use crate::network::Standstill;
use crate::port::{Port, PortState};
use crate::table::{Kind, LearnedAddress, Record};
use crate::uplink::Uplink;
use crate::worker::QueueFiles;

/// Timeout of the guard to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Most learned addresses that are handed over; others are learned again.
const MOST_ADDRESSES: usize = 1 << 16;
/// Name of the HTTP header with the key.
pub const KEY_HEADER: &str = "memlane-takeover-key";
/// Name of the key's file.
pub(super) const KEY_NAME: &str = folder::KEY;
/// Random bytes of a key.
pub(super) const KEY_BYTES: usize = 32;

/// Why a network was not handed over; it goes on.
#[derive(Debug, Error)]
pub enum GiveError {
    /// The other process belongs to another user.
    #[error("process {pid} of user {user} asked for a takeover: only a process of this network's user may take it over")]
    User {
        /// User of the other process.
        user: u32,
        /// The process.
        pid: i32,
    },
    /// The conversation with the other process failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The other process sent an unexpected message.
    #[error("the other process sent an unexpected takeover message")]
    Unexpected,
    /// The other process was started with another state file.
    #[error("the network runs {}: start the other process in the same way", named(.0))]
    State(Option<PathBuf>),
    /// The data path does not stop.
    #[error("{0}")]
    Obstacle(String),
    /// The kernel refuses a descriptor.
    #[error("the descriptors of the network cannot be copied: {0}{remedy}", remedy = crate::descriptors::remedy(.0))]
    System(#[from] io::Error),
    /// The process that could kill a successor is gone, or cannot open this one.
    #[error("process {pid} cannot be watched by the process that ends a successor which fails: {cause}")]
    Unguarded {
        /// The successor.
        pid: i32,
        /// Why not.
        cause: io::Error,
    },
    /// The other process failed when it had taken the data path over; it has ended.
    #[error("the other process failed while it started the data path, and has ended; this one serves again: {0}")]
    TakenBack(ChannelError),
}

fn named(state: &Option<PathBuf>) -> String {
    state.as_ref().map_or_else(|| "without a state file (--no-state)".into(), |state| format!("with --state {}", state.display()))
}

/// State and sockets of the network that are handed over beside the ports.
#[derive(Debug)]
pub struct Assets<'a> {
    /// Author of the takeover.
    pub by: Author,
    /// The configuration of the file when it was read last.
    pub file: &'a Config,
    /// The locked state file, if it could be written.
    pub state_lock: Option<OwnedFd>,
    /// Sockets of the network, with numbers in `files`.
    pub sockets: SavedSockets,
    /// Descriptors of the sockets.
    pub files: Vec<OwnedFd>,
    /// The service manager.
    pub service: SavedService,
}

/// A network that was handed over.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The process that serves it.
    pub process: i32,
    /// How long the data path stood still.
    pub standstill: Duration,
}

/// Checks the process at the other end of `channel`, and hears it; returns its number.
///
/// # Errors
/// A [`GiveError`]; the other process is to be told.
pub fn hear(channel: &mut Channel, own_state: Option<&Path>) -> Result<i32, GiveError> {
    let (user, pid) = channel.peer()?;
    if user != geteuid().as_raw() {
        return Err(GiveError::User { user, pid });
    }
    let (Message::Hello(Hello { state }), _) = channel.receive(REPLY)? else { return Err(GiveError::Unexpected) };
    if state.as_deref() != own_state {
        return Err(GiveError::State(own_state.map(Into::into)));
    }
    Ok(pid)
}

/// Hands `daemon` over to `process`, at the other end of `channel`, which `guard` kills if it fails too late. This one is to end then, at
/// once and without removing anything.
///
/// # Errors
/// A [`GiveError`]; the network goes on then, and the other process is to be told.
pub fn give(
    daemon: &Daemon,
    assets: Assets<'_>,
    channel: &mut Channel,
    (process, guard): (i32, &Guard),
) -> Result<Given, GiveError> {
    let taker = guard.watch(channel.stream()).map_err(|cause| GiveError::Unguarded { pid: process, cause })?;
    let result = hand_over(daemon, assets, channel, &taker);
    if let Err(error) = &result {
        daemon.resume_data_path();
        daemon.go_on(matches!(error, GiveError::TakenBack(_)));
    }
    result.map(|standstill| Given { process, standstill })
}

/// Returns how long the data path stood still.
fn hand_over(daemon: &Daemon, assets: Assets<'_>, channel: &mut Channel, taker: &Taker<'_>) -> Result<Duration, GiveError> {
    let by = Some(assets.by.clone());
    let next = describe(daemon, assets, channel)?;
    let (Message::Prepared {}, _) = channel.receive(PREPARE)? else { return Err(GiveError::Unexpected) };
    let begun = Instant::now();
    let standstill = daemon.stop_data_path(DRAIN, STANDSTILL).map_err(GiveError::Obstacle)?;
    // No counter grows any more, of no drop reason: after the takeover no event tells of the counters that the other process continues.
    daemon.network().tell_notices();
    // Nothing has happened to the rings before the other process has all of this message.
    let (events, next_event) = daemon.network().shared().journal.kept_from(next);
    let events = events.iter().map(|event| (&**event).into()).collect();
    let (streams, files) = daemon.save_streams()?;
    let standing = Standing { by, records: daemon.records(), departed: daemon.departed_leases(), events, next_event, streams };
    let deadline = Instant::now() + START;
    channel.send(&Message::Go(Box::new(standing)), &files, START)?;
    match await_running(channel, deadline, taker) {
        Ok(()) => {
            // The workers stand until the process ends.
            std::mem::forget(standstill);
            Ok(begun.elapsed())
        }
        Err(error) => {
            standstill.go_on_behind();
            Err(GiveError::TakenBack(error))
        }
    }
}

/// Describes the network to the other process; returns the number of the first event that the description lacks.
fn describe(daemon: &Daemon, assets: Assets<'_>, channel: &mut Channel) -> Result<u64, GiveError> {
    let (events, next) = daemon.network().shared().journal.kept_from(0);
    let (uplinks, mut files) = daemon.save_uplinks()?;
    let (ports, of_ports) = daemon.save(Instant::now() + SESSIONS, || channel.is_ending())?;
    files.extend(of_ports);
    let mut sockets = FilesToSend::new(assets.files);
    let state = assets.state_lock.map(|lock| sockets.add(lock));
    let description = Description {
        file_ports: assets.file.ports.iter().map(|port| port.stated()).collect(),
        file_uplinks: assets.file.uplinks.clone(),
        uplinks,
        ports,
        addresses: daemon.addresses(),
        events: events.iter().map(|event| (&**event).into()).collect(),
        sockets: SavedSockets { state, ..assets.sockets },
        service: assets.service,
    };
    files.extend(sockets.into_files());
    channel.send(&Message::Description(Box::new(description)), &files, REPLY)?;
    Ok(next)
}

/// Waits until the other process serves, until `deadline` at most. On an error it has ended, so that no ring is served twice.
fn await_running(channel: &mut Channel, deadline: Instant, taker: &Taker<'_>) -> Result<(), ChannelError> {
    let error = match channel.receive(deadline.saturating_duration_since(Instant::now())) {
        Ok((Message::Running {}, _)) => return Ok(()),
        Ok(_) => ChannelError::Failed("it sent an unexpected takeover message".into()),
        Err(ChannelError::Late(_)) => ChannelError::Late(START),
        Err(error) => error,
    };
    if let Err(cause) = taker.kill() {
        tracing::error!(
            target: "memlane::daemon::takeover::give",
            %cause, "the process that took over has failed and cannot be killed: the kernel ends it when its time is over"
        );
    }
    while !taker.await_end(START) {
        tracing::error!(
            target: "memlane::daemon::takeover::give",
            "the process that took over has failed and has not ended yet: no guest is served until it has"
        );
        if channel.is_ending() {
            // Not in order: the rings may be those of the other process.
            std::process::exit(1);
        }
    }
    Err(error)
}

impl Daemon {
    /// Describes the uplinks, with the descriptors of their TAP devices.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save_uplinks(&self) -> io::Result<(Vec<SavedUplink>, Vec<OwnedFd>)> {
        let saved = self.all_uplinks().iter().map(Uplink::save).collect::<Result<Vec<_>, _>>()?;
        Ok(saved.into_iter().unzip())
    }

    /// Has all sessions stand still, and describes the ports, with their descriptors. If a port's session still runs at
    /// the deadline, or when the takeover `is_over`, the port is handed over without its connection.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save(&self, deadline: Instant, is_over: impl Fn() -> bool) -> io::Result<(Vec<SavedPort>, Vec<OwnedFd>)> {
        let attached = self.attached();
        for (session, pause) in attached.iter().filter_map(|attached| attached.server.front_end()) {
            pause.ask();
            session.notify();
        }
        let mut standing = Vec::new();
        for Attached { config, server, .. } in attached.iter() {
            let session = server.front_end().and_then(|(_, pause)| pause.await_standstill(deadline, &is_over));
            if session.is_none() && server.front_end().is_some() {
                tracing::warn!(
                    target: "memlane::daemon::takeover::give",
                    port = %config.name, "handed over without its front end, which holds its session up and connects again"
                );
            }
            standing.push(session.transpose()?.flatten());
        }
        let served = attached.iter().filter(|attached| attached.server.front_end().is_some());
        let mut queues: HashMap<PortId, Vec<QueueFiles>> = HashMap::new();
        for queue in self.network.queue_files(served.map(|attached| &attached.port))? {
            queues.entry(queue.key.port).or_default().push(queue);
        }
        let (mut ports, mut all) = (Vec::new(), Vec::new());
        for (Attached { config, server, port, .. }, standing) in attached.iter().zip(standing) {
            let (queues, mut files) = (queues.remove(&port.id).unwrap_or_default(), FilesToSend::default());
            let connection = standing.map(|standing| standing.save(queues, &mut files)).transpose()?;
            let listener = match server.listener() {
                Some(listener) => Some(saved_listener(listener, &mut files)?),
                None => None,
            };
            let tap = server.interface()?.map(|tap| files.add(tap));
            let (entry, origin, has_left) = (config.stated(), config.origin.clone(), port.ephemeral.has_left());
            ports.push(SavedPort { entry, origin, files: files.count(), listener, connection, tap, has_left });
            all.extend(files.into_files());
        }
        Ok((ports, all))
    }

    /// Describes the connections of stream ports, with their descriptors, while the workers stand still.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save_streams(&self) -> io::Result<(Vec<SavedStreamPort>, Vec<OwnedFd>)> {
        let (mut streams, mut files, mut room) = (Vec::new(), FilesToSend::default(), MOST_LEFT);
        let attached = self.attached();
        let present = attached.iter().filter_map(|attached| Some((attached.server.stream()?, &attached.config.name)));
        let mut present: Vec<_> = present.map(|(stream, port)| (stream.left(), stream, port)).collect();
        // Connections with the fewest bytes first: a front end that reads nothing takes the room of no other.
        present.sort_by_key(|(left, ..)| *left);
        for (left, stream, port) in present {
            if left > room {
                tracing::warn!(
                    target: "memlane::daemon::takeover::give",
                    %port, "handed over without its connection, for which too many frames wait: the other side connects again"
                );
                continue;
            }
            room -= left;
            streams.extend(stream.save(&mut files)?.map(|stream| SavedStreamPort { port: port.clone(), stream }));
        }
        Ok((streams, files.into_files()))
    }

    /// Has all sessions go on; `behind` if another process has served the virtqueues meanwhile, and may have taken a part of a frame
    /// from a stream, so that those connections end.
    pub fn go_on(&self, behind: bool) {
        if behind {
            self.attached().iter().filter_map(|attached| attached.server.stream()).for_each(PresentStream::cut);
        }
        for (session, pause) in self.attached().iter().filter_map(|attached| attached.server.front_end()) {
            pause.end(behind);
            session.notify();
        }
    }

    /// Stops the data path: takes no further frames, delivers or drops those in flight within `drain`, and has the workers stand still
    /// within `standstill`.
    ///
    /// # Errors
    /// A worker does not stop; frames are taken again then.
    pub fn stop_data_path(&self, drain: Duration, standstill: Duration) -> Result<Standstill, String> {
        self.network.hold_transmit(true);
        let drained = self.network.drain_all(drain);
        let stands = drained.then(|| self.network.stand_still(standstill)).flatten();
        stands.ok_or_else(|| {
            self.network.hold_transmit(false);
            "a worker does not stop: see the log for a front end that holds it up".into()
        })
    }

    /// Takes frames again, after [`Self::stop_data_path`].
    pub fn resume_data_path(&self) {
        self.network.hold_transmit(false);
    }

    /// The ports, then those of the uplinks.
    pub(super) fn ports_in_order(&self) -> Vec<Arc<Port>> {
        let mut ports: Vec<_> = self.attached().iter().map(|attached| Arc::clone(&attached.port)).collect();
        ports.extend(self.all_uplinks().iter().map(|uplink| Arc::clone(uplink.port())));
        ports
    }

    /// Counters, states and leases of the ports.
    pub fn records(&self) -> Vec<PortRecord> {
        let mut leases: HashMap<String, Vec<SavedLease>> = HashMap::new();
        self.leases().into_iter().for_each(|lease| leases.entry(lease.port.clone()).or_default().push(lease));
        let record = |port: Arc<Port>| {
            let quarantined = match port.state() {
                PortState::Quarantined(cause) => Some(cause),
                _ => None,
            };
            let leases = leases.remove(&port.name).unwrap_or_default();
            let grants = port.policy.grants.saved().into_iter();
            let grants =
                grants.map(|grant| GrantRecord { address: grant.address, name: grant.name.to_string(), seconds: grant.seconds });
            PortRecord { totals: port.totals(), quarantines: port.quarantines(), quarantined, leases, grants: grants.collect() }
        };
        self.ports_in_order().into_iter().map(record).collect()
    }

    /// Leases that are kept for ports that have left.
    pub fn departed_leases(&self) -> Vec<SavedLease> {
        let present: HashSet<String> = self.ports_in_order().iter().map(|port| port.name.clone()).collect();
        self.leases().into_iter().filter(|lease| !present.contains(&lease.port)).collect()
    }

    /// Learned MAC addresses.
    pub fn addresses(&self) -> Vec<SavedAddress> {
        let ports: HashMap<PortId, u32> = self.ports_in_order().iter().map(|port| port.id).zip(0..).collect();
        let records = self.network.segments().into_iter().flat_map(|segment| segment.table().records());
        let learned = records.filter(|record| record.kind == Kind::Learned);
        let saved = |Record { learned_address, port, .. }: Record| {
            let LearnedAddress { address, vlan } = learned_address;
            Some(SavedAddress { port: *ports.get(&port)?, address: address.bytes(), vlan })
        };
        learned.filter_map(saved).take(MOST_ADDRESSES).collect()
    }
}

/// Describes `listener`, and adds its descriptor to `files`.
fn saved_listener(listener: &Listener, files: &mut FilesToSend) -> io::Result<SavedListener> {
    let socket = files.add(listener.socket().as_fd().try_clone_to_owned()?);
    Ok(SavedListener { socket, file: listener.file() })
}

/// The guard of a takeover: a process outside of the sandbox that kills the successor if it fails after Go. The process that serves the
/// network has no right to signal others.
#[derive(Debug)]
pub struct Guard(UnixStream);

/// The process that takes the network over, by a descriptor that refers to no other one (pidfd_open(2)).
#[derive(Debug)]
pub struct Taker<'g> {
    guard: &'g Guard,
    process: File,
}

impl Guard {
    /// The guard at the other end of `stream`.
    pub fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Has the guard open the process at the other end of `stream`, the only one that it kills by order from now on.
    ///
    /// # Errors
    /// The guard has ended; the process has ended, or is another user's.
    pub fn watch(&self, stream: &UnixStream) -> io::Result<Taker<'_>> {
        self.0.set_read_timeout(Some(ANSWER))?;
        let sent = self.0.send_with_fds(&[&[WATCH][..]], &[stream.as_raw_fd()]);
        sent.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        let mut files = Vec::new();
        takeover::receive(&self.0, &mut files)?;
        let process = files.pop().ok_or_else(|| io::Error::other("it has ended, or is another user's"))?;
        Ok(Taker { guard: self, process })
    }
}

impl Taker<'_> {
    /// Has the process killed; also if it has ended.
    ///
    /// # Errors
    /// The guard has ended, or the kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        let mut answer = [0];
        (&self.guard.0).write_all(&[KILL])?;
        (&self.guard.0).read_exact(&mut answer)?;
        match i32::from(answer[0]) {
            0 | libc::ESRCH => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits until the process has ended, for at most `timeout`; true if it has. It then executes nothing and holds no memory.
    pub fn await_end(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)], left) {
                Err(Errno::EINTR) => {}
                ended => return ended.is_ok_and(|ended| ended > 0),
            }
        }
    }
}

/// The key of a takeover: random bytes in a file of the network's own folder, made before the network's process enters its sandbox.
///
/// A user id does not suffice to take a network over: other networks of the same user are confined to files that do not include the key, and
/// so a guest that took one of them over cannot show it. The starter's child and the operator's shell can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    text: String,
    path: PathBuf,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("path", &self.path).finish_non_exhaustive()
    }
}

/// So many random bytes, in hexadecimal.
fn random_text(count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Key {
    /// The key of a takeover of the network with the own folder `folder`: the one that is there, or a new one.
    ///
    /// # Errors
    /// The kernel refuses the folder or the file, or another user has made it.
    pub fn of(folder: &Path) -> io::Result<Self> {
        folder::make(folder)?;
        let path = folder.join(KEY_NAME);
        match Self::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(&path),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                std::fs::remove_file(&path)?;
                Self::make(&path)
            }
            read => read,
        }
    }

    fn read(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user has made the file"));
        }
        let mut text = String::new();
        file.take(2 * KEY_BYTES as u64 + 1).read_to_string(&mut text)?;
        let is_key = text.len() == 2 * KEY_BYTES && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_key.then(|| Self { text, path: path.into() }).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Makes the file under another name first: a second process that starts now reads all of it.
    fn make(path: &Path) -> io::Result<Self> {
        let text = random_text(KEY_BYTES)?;
        // A random name, which is no part of the key: process numbers repeat in other PID namespaces.
        let beside = path.with_extension(random_text(8)?);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?.write_all(text.as_bytes())?;
        let made = std::fs::hard_link(&beside, path);
        std::fs::remove_file(&beside)?;
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Self::read(path),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key in a header of a request.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether `shown` is this key; the time that the comparison takes does not depend on it.
    pub fn is(&self, shown: &[u8]) -> bool {
        let differing = self.text.bytes().zip(shown).fold(0, |known, (own, other)| known | (own ^ other));
        self.text.len() == shown.len() && differing == 0
    }
}
