//! The stream between the two processes of a takeover. Each message has a deadline, also against a process that sends a byte now and
//! then. The end of the network waits for none.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memlane_backends::takeover;
use nix::sys::socket::{getsockopt, sockopt};
use thiserror::Error;

use super::description::{Announced, FormatError, HEADER, Message};

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

/// Longest system call of a takeover without a check whether the network ends.
const STEP: Duration = Duration::from_millis(50);

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

/// Bytes of a message that are received at a time.
const PART: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::takeover::description::Hello;
    use std::os::unix::fs::MetadataExt;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn messages_arrive_with_all_their_descriptors_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = |n: usize| File::create(folder.path().join(n.to_string())).unwrap();
        let files: Vec<File> = (0..300).map(file).collect();
        let inodes = |files: &[File]| files.iter().map(|file| file.metadata().unwrap().ino()).collect::<Vec<_>>();
        let expected = inodes(&files);
        let state = Some("x".repeat(3 << 20).into());
        let message = Message::Hello(Hello { state });
        let sent = message.clone();
        let sender = std::thread::spawn(move || {
            let files: Vec<OwnedFd> = files.into_iter().map(OwnedFd::from).collect();
            let mut channel = Channel::new(ours);
            channel.send(&sent, &files, TIMEOUT).unwrap();
            channel.send(&Message::Failed("no room".into()), &[], TIMEOUT).unwrap();
        });
        let mut channel = Channel::new(theirs);
        let (received, files) = channel.receive(TIMEOUT).unwrap();
        assert_eq!((received, inodes(&files)), (message, expected));
        assert!(matches!(channel.receive(TIMEOUT), Err(ChannelError::Failed(cause)) if cause == "no room"));
        sender.join().unwrap();
        assert!(matches!(channel.receive(TIMEOUT), Err(ChannelError::Ended)) && channel.await_end(TIMEOUT));
    }

    #[test]
    fn garbage_silence_and_descriptors_that_never_come_are_errors() {
        let short = Duration::from_millis(30);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(theirs);
        assert!(matches!(channel.receive(short), Err(ChannelError::Late(_))));
        (&ours).write_all(&Message::Prepared {}.encode(2).unwrap()).unwrap();
        assert!(matches!(channel.receive(short), Err(ChannelError::Late(_))));
        (&ours).write_all(&[b'x'; 100]).unwrap();
        assert!(matches!(channel.receive(short), Err(ChannelError::Format(FormatError::Foreign))));
        // Other bytes where descriptors should be.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bytes = [Message::Prepared {}.encode(2).unwrap(), vec![0; 8]].concat();
        (&ours).write_all(&bytes).unwrap();
        assert!(matches!(Channel::new(theirs).receive(short), Err(ChannelError::Format(FormatError::Foreign))));
    }
}
