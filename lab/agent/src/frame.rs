//! Frames: 16 bytes of header in little-endian order (`MLAB`, kind, handle, payload length), then the payload.
//!
//! `memlane_lab/frames.py` is the other end and holds the same table of kinds.
//!
//! Flow control: the lab never has more than [`WINDOW`] bytes in flight that the agent has not acknowledged: the serial line of
//! User Mode Linux stops for good once the guest's terminal buffer (4096 bytes) has been full.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

const MAGIC: [u8; 4] = *b"MLAB";
const HEADER: usize = 16;
/// Longest payload either side sends; longer data travels in several frames.
pub(crate) const PAYLOAD_MAX: usize = 32 * 1024;
/// Bytes that the lab may have in flight; half of it is acknowledged at a time.
const WINDOW: usize = 2048;

/// Kind of a frame. Below 16: requests of the lab; from 16 on: answers of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Start a process; payload: arguments, each ended by NUL, each non-empty.
    Spawn = 1,
    /// Bytes for a process's standard input; an empty payload closes it.
    Stdin = 2,
    /// Signal a process's group; payload: signal number, u32.
    Signal = 3,
    /// Send a file back; payload: path.
    Read = 4,
    /// Write a chunk of a file; payload: offset u64 (0 truncates), path, NUL, bytes.
    Write = 5,
    /// The agent is there; payload: its version.
    Hello = 16,
    /// Bytes from a process's standard output.
    Stdout = 17,
    /// Bytes from a process's standard error.
    Stderr = 18,
    /// A process has ended and its output is complete; payload: i32, exit code or minus the signal number.
    Exit = 19,
    /// A chunk of a file.
    Data = 20,
    /// A file request is complete.
    Done = 21,
    /// A request could not be met; payload: the reason in words.
    Failed = 22,
    /// The agent has taken this many more bytes off the channel; payload: u32.
    Taken = 23,
}

impl Kind {
    fn of(number: u32) -> Option<Self> {
        use Kind::{Data, Done, Exit, Failed, Hello, Read, Signal, Spawn, Stderr, Stdin, Stdout, Write};
        [Spawn, Stdin, Signal, Read, Write, Hello, Stdout, Stderr, Exit, Data, Done, Failed]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

/// One frame from the lab.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Chosen by the lab, unique among its requests; answers carry it.
    pub(crate) handle: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The next frame, or `None` when the lab has hung up.
    pub(crate) fn read(channel: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        if !read_whole(channel, &mut header)? {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (kind, length) = (Kind::of(word(4)), word(12) as usize);
        let (true, Some(kind), true) = (header[..4] == MAGIC, kind, length <= PAYLOAD_MAX) else {
            return Err(io::Error::other(format!("not a frame header: {header:02x?}")));
        };
        let mut payload = vec![0; length];
        Ok(read_whole(channel, &mut payload)?.then_some(Self { kind, handle: word(8), payload }))
    }
}

/// Fills the buffer; false at the end of the stream. A hung-up serial line says EIO: that is an end too.
fn read_whole(channel: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match channel.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof || error.raw_os_error() == Some(libc::EIO) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The direction from the lab: reads, and acknowledges the bytes that it has read.
pub(crate) struct Incoming {
    channel: File,
    sender: Sender,
    taken: usize,
}

impl Incoming {
    pub(crate) fn new(channel: File, sender: Sender) -> Self {
        Self { channel, sender, taken: 0 }
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let chunk = buffer.len().min(WINDOW / 2);
        let length = self.channel.read(&mut buffer[..chunk])?;
        self.taken += length;
        if self.taken >= WINDOW / 2 {
            self.sender.send(Kind::Taken, 0, &(self.taken as u32).to_le_bytes());
            self.taken = 0;
        }
        Ok(length)
    }
}

/// The direction to the lab, shared by all threads; frames never interleave.
#[derive(Clone)]
pub(crate) struct Sender(Arc<Mutex<File>>);

impl Sender {
    pub(crate) fn new(channel: File) -> Self {
        Self(Arc::new(Mutex::new(channel)))
    }

    /// Sends one frame. Errors are not reported: the reading side sees the same hang-up and ends the agent.
    pub(crate) fn send(&self, kind: Kind, handle: u32, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend_from_slice(&MAGIC);
        for word in [kind as u32, handle, payload.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(payload);
        let mut channel = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = channel.write_all(&bytes);
    }

    /// Sends all that `source` yields, in frames of one kind, until it ends.
    pub(crate) fn relay(&self, kind: Kind, handle: u32, source: &mut impl Read) -> io::Result<()> {
        let mut buffer = [0; PAYLOAD_MAX];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => self.send(kind, handle, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom};

    fn scratch(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("memlane-agent-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn what_is_sent_is_read_back() {
        let mut file = scratch("echo");
        let sender = Sender::new(file.try_clone().unwrap());
        sender.send(Kind::Stdin, 7, b"MLAB in the payload is no header");
        sender.send(Kind::Stdin, 8, b"");
        file.seek(SeekFrom::Start(0)).unwrap();
        let first = Frame::read(&mut file).unwrap().unwrap();
        assert_eq!((first.kind, first.handle), (Kind::Stdin, 7));
        assert_eq!(first.payload, b"MLAB in the payload is no header");
        assert_eq!(Frame::read(&mut file).unwrap().unwrap().payload, b"");
        assert!(Frame::read(&mut file).unwrap().is_none());
    }

    #[test]
    fn noise_is_refused() {
        let mut file = scratch("noise");
        file.write_all(b"login: root\r\nPassword: ").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        assert!(Frame::read(&mut file).is_err());
    }
}
