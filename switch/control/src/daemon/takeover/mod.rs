//! Takeover of a running network by another process, without a gap: `memlane up --takeover`.
//!
//! ```text
//!   the process that serves              the process that takes over
//!           <---- POST /v1/takeover, then a plain stream ----
//!           <-------------- Hello ---------------------------
//!   sessions stand still
//!           --------------- Description, descriptors ------->
//!                                         makes ports, maps guests' memory
//!           <-------------- Prepared ------------------------
//!   transmit queues are drained, workers stand still
//!           --------------- Go, counters ------------------->
//!                                         starts the virtqueues
//!           <-------------- Running -------------------------
//!   ends, and removes no socket
//! ```
//!
//! Up to Go, the serving process goes on as if nothing had happened if the other one fails, hangs or refuses. After Go the other one has
//! [`START`] to serve; else the guard kills it, and the serving process goes on at the used indices of the rings once it has ended: a ring
//! is never served by two processes.
//!
//! 1. [`Message`]: a message, in JSON behind a header with the number of the format, the length and a checksum. The types of the
//!    [`description`](crate::description) belong to the format.
//! 2. [`Channel`]: the stream on which messages travel, with descriptors. Each message has a deadline, also against a process that sends a byte now
//!    and then. The end of the network waits for none.
//! 3. [`give`], [`take`]: the two processes.

pub mod give;
pub mod take;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_backends::takeover;
use nix::sys::socket::{getsockopt, sockopt};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::description::{Description, Hello, Standing};
use crate::port::short_hash;
use crate::quantity::counted;

/// Name of the protocol to which the connection is upgraded.
pub const PROTOCOL: &str = "memlane-takeover";
/// Timeout of a step that needs no work.
pub const REPLY: Duration = Duration::from_secs(5);
/// Timeout of the other process to prepare, while guests are served.
const PREPARE: Duration = Duration::from_secs(10);
/// Timeout of sessions to finish the message at hand, while guests are served. A port with a front end that holds its session up
/// for longer is handed over without its connection. Threads of others are late where the host has no CPU time for them.
const SESSIONS: Duration = Duration::from_secs(5);
/// Timeout of frames in flight to be delivered; the rest, which receivers do not take, is dropped.
const DRAIN: Duration = Duration::from_millis(100);
/// Timeout of the other process to serve, from Go on: meanwhile guests are not served.
pub const START: Duration = Duration::from_secs(1);
/// Timeout of workers to end their poll iteration.
const STANDSTILL: Duration = Duration::from_secs(1);
/// Longest system call of a takeover without a check whether the network ends.
const STEP: Duration = Duration::from_millis(50);
/// Bytes of a message that are received at a time.
const PART: usize = 1 << 20;

/// Number of the format of all messages.
pub const FORMAT: u32 = 6;
/// Bytes of a header: magic, format, length, number of descriptors, checksum.
pub const HEADER: usize = 28;
/// Most bytes of a message.
pub const MOST_BYTES: u32 = 256 << 20;
/// Most descriptors of a message.
pub const MOST_FILES: u32 = 1 << 18;
const MAGIC: [u8; 8] = *b"memlane\n";

/// Why a message cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// The bytes are no message of this protocol.
    #[error("the other process does not speak the takeover protocol of memlane")]
    Foreign,
    /// The other process is of another version.
    #[error(
        "the other process is of a version whose takeover format is {0}, not {FORMAT}: restart the network instead, as `memlane down` and `memlane up`"
    )]
    Version(u32),
    /// The message is longer than the limits allow.
    #[error("a takeover message of {} and {} exceeds the limits", counted(*.0, "byte"), counted(*.1, "descriptor"))]
    Length(u32, u32),
    /// The message was damaged, or is of another version after all.
    #[error("a takeover message cannot be read: {0}")]
    Body(String),
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Message {
    /// The process that takes over begins.
    Hello(Hello),
    /// The network, with descriptors. Its data path still runs.
    Description(Box<Description>),
    /// All ports are prepared.
    Prepared {},
    /// The data path stands still: the other process may start it.
    Go(Box<Standing>),
    /// All virtqueues run again.
    Running {},
    /// The sender gives up, for this reason.
    Failed(String),
}

/// Lengths that a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Bytes of the body.
    pub length: u32,
    /// Descriptors that follow it.
    pub files: u32,
    checksum: u64,
}

impl Announced {
    /// Reads a header.
    ///
    /// # Errors
    /// A [`FormatError`].
    pub fn read(header: [u8; HEADER]) -> Result<Self, FormatError> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
        if header[..MAGIC.len()] != MAGIC {
            return Err(FormatError::Foreign);
        }
        if word(8) != FORMAT {
            return Err(FormatError::Version(word(8)));
        }
        let (length, files) = (word(12), word(16));
        if length > MOST_BYTES || files > MOST_FILES {
            return Err(FormatError::Length(length, files));
        }
        Ok(Self { length, files, checksum: u64::from(word(20)) | u64::from(word(24)) << 32 })
    }

    /// Reads the body that it announces.
    ///
    /// # Errors
    /// [`FormatError::Body`].
    pub fn body(&self, body: &[u8]) -> Result<Message, FormatError> {
        if body.len() != self.length as usize || checksum(self.length, self.files, body) != self.checksum {
            return Err(FormatError::Body("it was damaged on its way".into()));
        }
        serde_json::from_slice(body).map_err(|error| FormatError::Body(error.to_string()))
    }
}

impl Message {
    /// The message in bytes, with `files` descriptors that follow it.
    ///
    /// # Errors
    /// The message is too long, or a path in it is no Unicode.
    pub fn encode(&self, files: u32) -> Result<Vec<u8>, FormatError> {
        let body = serde_json::to_vec(self).map_err(|error| FormatError::Body(error.to_string()))?;
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if length > MOST_BYTES || files > MOST_FILES {
            return Err(FormatError::Length(length, files));
        }
        Ok(framed(FORMAT, &body, files))
    }

    /// Reads a whole message; returns the number of its descriptors too.
    ///
    /// # Errors
    /// A [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, u32), FormatError> {
        let (header, body) = bytes.split_first_chunk().ok_or(FormatError::Foreign)?;
        let announced = Announced::read(*header)?;
        Ok((announced.body(body)?, announced.files))
    }
}

/// `body` behind a header.
fn framed(format: u32, body: &[u8], files: u32) -> Vec<u8> {
    let length = body.len() as u32;
    let mut bytes = MAGIC.to_vec();
    [format, length, files].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(checksum(length, files, body).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn checksum(length: u32, files: u32, body: &[u8]) -> u64 {
    let lengths = [length, files].into_iter().flat_map(u32::to_le_bytes);
    short_hash(lengths.chain(body.iter().copied()))
}

/// Why a message was not sent or received.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The other process has ended, or closed the connection.
    #[error("the other process has ended")]
    Ended,
    /// The other process did not answer in time.
    #[error("the other process did not answer within {} s", .0.as_secs_f32())]
    Late(Duration),
    /// The network of this process ends.
    #[error("the network is shutting down")]
    Ending,
    /// The other process sent something else.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The other process sent more descriptors than this process may have.
    #[error("this process may not open so many files as the network has. {}", crate::descriptors::REMEDY)]
    Descriptors,
    /// The other process has given up, for this reason.
    #[error("{0}")]
    Failed(String),
    /// The kernel refuses.
    #[error("the connection to the other process failed: {0}")]
    System(io::Error),
}

/// See the module.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    deadline: Instant,
    timeout: Duration,
    ending: Arc<AtomicBool>,
}

impl Channel {
    /// A channel on `stream`, which blocks.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, deadline: Instant::now(), timeout: Duration::ZERO, ending: Arc::default() }
    }

    /// The same, of a process that ends its network once `ending` is true.
    #[must_use]
    pub fn until(self, ending: &Arc<AtomicBool>) -> Self {
        Self { ending: Arc::clone(ending), ..self }
    }

    /// Whether the network of this process ends.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// The connection.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// User and process at the other end.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn peer(&self) -> io::Result<(u32, i32)> {
        let credentials = getsockopt(&self.stream, sockopt::PeerCredentials)?;
        Ok((credentials.uid(), credentials.pid()))
    }

    fn begin(&mut self, timeout: Duration) {
        (self.deadline, self.timeout) = (Instant::now() + timeout, timeout);
    }

    /// Limits the next system call to a step of the time that is left.
    fn limit(&self) -> Result<(), ChannelError> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(STEP);
        if self.is_ending() {
            return Err(ChannelError::Ending);
        }
        if left.is_zero() {
            return Err(ChannelError::Late(self.timeout));
        }
        let set = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.set_write_timeout(Some(left)));
        set.map_err(Self::failed)
    }

    fn failed(error: io::Error) -> ChannelError {
        // The kernel drops descriptors without a place, and the message tells so (MSG_CTRUNC).
        if error.raw_os_error() == Some(libc::ENOBUFS) || crate::descriptors::is_shortage(&error) {
            return ChannelError::Descriptors;
        }
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => ChannelError::Ended,
            _ => ChannelError::System(error),
        }
    }

    /// Sends `message` with `files`, within `timeout`.
    ///
    /// # Errors
    /// A [`ChannelError`].
    pub fn send(&mut self, message: &Message, files: &[OwnedFd], timeout: Duration) -> Result<(), ChannelError> {
        self.begin(timeout);
        let bytes = message.encode(u32::try_from(files.len()).unwrap_or(u32::MAX))?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.limit()?;
            match (&self.stream).write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if is_step(&error) => {}
                Err(error) => return Err(Self::failed(error)),
            }
        }
        for chunk in files.chunks(takeover::MOST_AT_ONCE) {
            self.in_steps(|stream| takeover::send(stream, chunk))?;
        }
        Ok(())
    }

    /// Receives a message with its descriptors, within `timeout`. One that has given up is an error.
    ///
    /// # Errors
    /// A [`ChannelError`].
    pub fn receive(&mut self, timeout: Duration) -> Result<(Message, Vec<File>), ChannelError> {
        self.begin(timeout);
        let mut header = [0; HEADER];
        self.fill(&mut header)?;
        let announced = Announced::read(header)?;
        let mut body = Vec::new();
        // In parts: a length is believed as far as bytes arrive.
        while body.len() < announced.length as usize {
            let before = body.len();
            body.resize((before + PART).min(announced.length as usize), 0);
            self.fill(&mut body[before..])?;
        }
        let message = announced.body(&body)?;
        let mut files = Vec::new();
        while files.len() < announced.files as usize {
            let before = files.len();
            self.in_steps(|stream| takeover::receive(stream, &mut files))?;
            if files.len() == before {
                return Err(FormatError::Foreign.into());
            }
        }
        match message {
            Message::Failed(cause) => Err(ChannelError::Failed(cause)),
            message => Ok((message, files)),
        }
    }

    /// Waits until the other process has closed the connection; false if it has not within `timeout`.
    pub fn await_end(&mut self, timeout: Duration) -> bool {
        self.begin(timeout);
        while self.limit().is_ok() {
            match (&self.stream).read(&mut [0; 64]) {
                Ok(0) => return true,
                Err(error) if is_step(&error) => {}
                Err(_) => return true,
                Ok(_) => {}
            }
        }
        false
    }

    /// Repeats `call`, which passes one byte or none, until it is done.
    fn in_steps(&self, mut call: impl FnMut(&UnixStream) -> io::Result<()>) -> Result<(), ChannelError> {
        loop {
            self.limit()?;
            match call(&self.stream) {
                Err(error) if is_step(&error) => {}
                result => return result.map_err(Self::failed),
            }
        }
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), ChannelError> {
        let mut done = 0;
        while done < bytes.len() {
            self.limit()?;
            match (&self.stream).read(&mut bytes[done..]) {
                Ok(0) => return Err(ChannelError::Ended),
                Ok(count) => done += count,
                Err(error) if is_step(&error) => {}
                Err(error) => return Err(Self::failed(error)),
            }
        }
        Ok(())
    }
}

/// Whether a call has passed nothing, and is to be repeated.
fn is_step(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
