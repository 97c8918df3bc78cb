//! The vhost-user front end: the conversation by which a guest hands its memory and rings to a back end.
//!
//! Nouns, in the order of a handshake:
//! 1. [`Frontend`]: one connection. Its methods are one message each; every one returns within the front end's timeout, or the
//!    connection is cut.
//! 2. [`features`]: the feature bits that the two sides negotiate.
//! 3. [`notify`]: the file descriptors of kicks and interrupts.
//! 4. [`wire`]: the same messages byte by byte, for those that the `vhost` crate lacks and for malformed ones.
//!
//! Which messages are sent in which order is not decided here but by a guest's [`Habit`](crate::guest::Habit).

pub mod features;
mod messages;
pub mod notify;
mod watchdog;
pub mod wire;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr};
use vhost::vhost_user::Frontend as VhostFrontend;
use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag, VhostUserProtocolFeatures};

use crate::deadline::{self, Deadline};
use watchdog::Watchdog;

/// More rings than any guest has: the `vhost` crate wants a bound.
const MAX_RINGS: u64 = 256;

/// Why a conversation failed.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// No back end came to the socket in time.
    #[error("no back end on {path} within {waited:?}: {cause}; start the switch first, or give it more time")]
    NoBackend {
        /// The socket's path.
        path: String,
        /// How long we tried.
        waited: Duration,
        /// The error of the last attempt.
        cause: io::Error,
    },
    /// The back end refused a message, answered nonsense, hung up, or did not answer in time.
    #[error("{message}: {cause} (after {after:?} of at most {timeout:?})")]
    Message {
        /// Which message.
        message: &'static str,
        /// The error in the words of the `vhost` crate.
        cause: String,
        /// How long we waited for the answer.
        after: Duration,
        /// How long we would have waited.
        timeout: Duration,
    },
    /// The back end answered well-formed but with a refusal.
    #[error("{message}: the back end answered {answer:#x}")]
    Refused {
        /// Which message.
        message: &'static str,
        /// The answer.
        answer: u64,
    },
    /// The socket itself failed.
    #[error("{step}: {cause}")]
    Socket {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

type Result<T> = std::result::Result<T, FrontendError>;

/// For which messages a front end wants an acknowledgement, once REPLY_ACK is negotiated. Messages with an answer of their
/// own never get one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// For none.
    Nothing,
    /// For messages that change the memory, and for a few more: QEMU and DPDK do so.
    Memory,
    /// For every message: User Mode Linux does so. Mistakes show at once.
    Everything,
}

impl Acknowledge {
    fn wanted_for(self, message: &str) -> bool {
        const MEMORY: [&str; 5] = ["SET_MEM_TABLE", "ADD_MEM_REG", "REM_MEM_REG", "SET_BACKEND_REQ_FD", "NET_SET_MTU"];
        match self {
            Self::Nothing => false,
            Self::Memory => MEMORY.contains(&message),
            Self::Everything => !message.starts_with("GET_"),
        }
    }
}

/// A back end's record of chains in flight (GET_INFLIGHT_FD), which outlives it.
#[derive(Debug)]
pub struct Inflight {
    /// File of the memory.
    pub file: File,
    /// Size in bytes.
    pub size: u64,
    /// Their offset in the file.
    pub offset: u64,
    /// Queues, and descriptors of each.
    pub queues: u16,
    /// See [`Self::queues`].
    pub queue_size: u16,
}

/// One connection to a back end; see the module's page.
pub struct Frontend {
    stream: UnixStream,
    vhost: VhostFrontend,
    watchdog: Watchdog,
    timeout: Duration,
    acknowledge: Acknowledge,
    protocol: VhostUserProtocolFeatures,
    /// Addresses of the regions in the back end, by which its page faults are known.
    bases: Vec<u64>,
}

impl std::fmt::Debug for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frontend").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

impl Frontend {
    /// Speaks on a connected socket; each answer must come within `timeout`.
    ///
    /// # Errors
    /// [`FrontendError::Socket`] when the socket cannot be duplicated.
    pub fn from_stream(stream: UnixStream, timeout: Duration) -> Result<Self> {
        let copy = || stream.try_clone().map_err(|cause| socket("duplicating the vhost-user socket", cause));
        let vhost = VhostFrontend::from_stream(copy()?, MAX_RINGS);
        let watchdog = Watchdog::new(copy()?);
        let protocol = VhostUserProtocolFeatures::empty();
        Ok(Self { stream, vhost, watchdog, timeout, acknowledge: Acknowledge::Nothing, protocol, bases: Vec::new() })
    }

    /// Connects to the socket at `path`, trying again until `timeout` is over.
    ///
    /// # Errors
    /// [`FrontendError::NoBackend`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self> {
        let deadline = Deadline::after(timeout);
        let stream = deadline::retry(deadline, || connect_at_once(path)).map_err(|cause| no_backend(path, timeout, cause))?;
        Self::from_stream(stream, timeout)
    }

    /// Waits for a back end that connects to `listener`.
    ///
    /// # Errors
    /// [`FrontendError::NoBackend`].
    pub fn accept(listener: &UnixListener, timeout: Duration) -> Result<Self> {
        let arrived = deadline::readable(listener, Deadline::after(timeout))
            .and_then(|ready| if ready { listener.accept() } else { Err(io::ErrorKind::TimedOut.into()) });
        let (stream, _) = arrived.map_err(|cause| {
            let path = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_path_buf));
            no_backend(&path.unwrap_or_default(), timeout, cause)
        })?;
        Self::from_stream(stream, timeout)
    }

    /// The socket, for raw messages ([`wire`]).
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// How long an answer may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The protocol features in force.
    pub fn protocol(&self) -> VhostUserProtocolFeatures {
        self.protocol
    }

    /// Whether the back end has hung up.
    pub fn hung_up(&self) -> bool {
        deadline::hung_up(&self.stream)
    }

    /// One message through the `vhost` crate, bounded by the timeout.
    fn say<T>(&mut self, message: &'static str, act: impl FnOnce(&mut VhostFrontend) -> vhost::Result<T>) -> Result<T> {
        let begun = Instant::now();
        let flags = match self.acknowledge.wanted_for(message) {
            true => VhostUserHeaderFlag::NEED_REPLY,
            false => VhostUserHeaderFlag::empty(),
        };
        self.vhost.set_hdr_flags(flags);
        let guard = self.watchdog.arm(self.timeout);
        let said = act(&mut self.vhost);
        drop(guard);
        said.map_err(|cause| self.failed(message, begun, cause.to_string()))
    }

    /// One raw message with a number as body; waits for the acknowledgement if those were negotiated.
    fn tell(&mut self, message: &'static str, code: FrontendReq, number: u64) -> Result<()> {
        if !self.acknowledge.wanted_for(message) {
            let sent = wire::send(&self.stream, code as u32, wire::VERSION, &number.to_le_bytes(), &[]);
            return sent.map_err(|cause| socket("sending a vhost-user message", cause));
        }
        match self.ask(message, code, &number.to_le_bytes())? {
            0 => Ok(()),
            answer => Err(FrontendError::Refused { message, answer }),
        }
    }

    /// One raw message; the answer's first eight bytes.
    fn ask(&mut self, message: &'static str, code: FrontendReq, body: &[u8]) -> Result<u64> {
        let begun = Instant::now();
        let flags = if self.acknowledge.wanted_for(message) { wire::VERSION | wire::NEED_REPLY } else { wire::VERSION };
        wire::send(&self.stream, code as u32, flags, body, &[])
            .and_then(|()| wire::receive(&self.stream, Deadline::after(self.timeout)))
            .and_then(|reply| reply.number().ok_or_else(|| io::Error::other("the answer is too short")))
            .map_err(|cause| self.failed(message, begun, cause.to_string()))
    }

    fn failed(&self, message: &'static str, begun: Instant, cause: String) -> FrontendError {
        FrontendError::Message { message, cause, after: begun.elapsed(), timeout: self.timeout }
    }
}

/// Connects or fails, but never waits: a blocking connect(2) waits for ever at a socket where connections are not accepted.
///
/// # Errors
/// The kernel's error; `WouldBlock` when too many connections wait there already.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn socket(step: &'static str, cause: io::Error) -> FrontendError {
    FrontendError::Socket { step, cause }
}

fn no_backend(path: &Path, waited: Duration, cause: io::Error) -> FrontendError {
    FrontendError::NoBackend { path: path.display().to_string(), waited, cause }
}
