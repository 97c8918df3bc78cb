//! The vhost-user wire format: messages are read complete, however they are split on the stream, with their file descriptors.
//!
//! A message is a header of twelve bytes (request, flags, size; native order), `size` bytes of payload, and up to
//! [`MAX_DESCRIPTORS`] file descriptors (vhost-user, "Message specification").

#![expect(clippy::indexing_slicing, reason = "no message is shorter than its header, and no more is sent than there is")]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use thiserror::Error;
use vhost::vhost_user::message::{FrontendReq, VhostUserMemoryRegion};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::system;
use memlane_virtq::message::counted;

/// Bytes of a header.
pub const HEADER: usize = 12;
/// Most bytes of a payload; all defined messages are far shorter.
pub(crate) const MAX_PAYLOAD: usize = 4096 - HEADER;
/// Most file descriptors of a message: one for each region of SET_MEM_TABLE.
pub(crate) const MAX_DESCRIPTORS: usize = 32;

/// A message from the front end.
#[derive(Debug)]
pub struct Message {
    /// Number of the request.
    pub request: u32,
    /// Version, reply, need-reply.
    pub flags: u32,
    /// Arguments of the request.
    pub payload: Vec<u8>,
    /// File descriptors of the message (SCM_RIGHTS).
    pub files: Vec<File>,
}

impl fmt::Display for Message {
    /// Name of the message, and the size of its payload and files.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match FrontendReq::try_from(self.request) {
            Ok(name) => write!(f, "{name:?}")?,
            Err(_) => write!(f, "message {}", self.request)?,
        }
        write!(f, " ({}, {})", counted(self.payload.len(), "byte"), counted(self.files.len(), "descriptor"))
    }
}

/// Why no message was read.
#[derive(Debug, Error)]
pub enum WireError {
    /// The front end disconnected between messages.
    #[error("the front end hung up")]
    HungUp,
    /// The front end disconnected within a message.
    #[error("the connection ended in the middle of a message")]
    Partial,
    /// A payload size that no message has.
    #[error("a message of {}", counted(*.0, "byte"))]
    Size(usize),
    /// More descriptors than a message may bring.
    #[error("a message with more than {MAX_DESCRIPTORS} descriptors")]
    Descriptors,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Socket(io::Error),
}

impl Message {
    /// Takes the next message from a non-blocking `stream`, of which `part` has arrived before; `None` if more of it is to come.
    ///
    /// # Errors
    /// A [`WireError`]; the connection cannot be used any more then.
    pub fn receive(stream: &UnixStream, part: &mut PartialMessage) -> Result<Option<Self>, WireError> {
        if !part.fill(stream, HEADER)? {
            return Ok(None);
        }
        let Some(&header) = part.bytes.first_chunk() else {
            return Err(if part.bytes.is_empty() { WireError::HungUp } else { WireError::Partial });
        };
        let [request, flags, size] = words(header);
        let size = size as usize;
        if size > MAX_PAYLOAD || part.bytes.len() > HEADER + size {
            return Err(WireError::Size(size));
        }
        if !part.fill(stream, HEADER + size)? {
            return Ok(None);
        }
        if part.bytes.len() < HEADER + size {
            return Err(WireError::Partial);
        }
        let PartialMessage { bytes, files } = std::mem::take(part);
        let mut payload = bytes[HEADER..].to_vec();
        payload.truncate(stated_length(request, &payload));
        Ok(Some(Self { request, flags, payload, files }))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        for word in [self.request, self.flags, self.payload.len() as u32] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// The message as it has arrived, before it was read.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn to_part(&self) -> io::Result<PartialMessage> {
        let files = self.files.iter().map(File::try_clone).collect::<io::Result<_>>()?;
        Ok(PartialMessage { bytes: self.bytes(), files })
    }
}

/// Bytes of `payload` that its own count of regions implies, or all if that is not less: User Mode Linux before 6.13 sends
/// SET_MEM_TABLE with room for two regions and a count of one. A payload that is too short is left as it is and fails later.
fn stated_length(request: u32, payload: &[u8]) -> usize {
    const REGIONS: usize = 8;
    let count = payload.first_chunk().map_or(0, |count| u32::from_ne_bytes(*count) as usize);
    let stated = REGIONS.saturating_add(count.saturating_mul(size_of::<VhostUserMemoryRegion>()));
    if request == u32::from(FrontendReq::SET_MEM_TABLE) && count > 0 { stated.min(payload.len()) } else { payload.len() }
}

/// The three words of a header.
fn words(header: [u8; HEADER]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes)
}

/// The part of a message that has arrived.
#[derive(Debug, Default)]
pub struct PartialMessage {
    /// Bytes of its header and payload.
    pub bytes: Vec<u8>,
    /// File descriptors of the message.
    pub files: Vec<File>,
}

impl PartialMessage {
    /// A copy.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let files = self.files.iter().map(File::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { bytes: self.bytes.clone(), files })
    }

    /// Reads until there are `length` bytes, or the stream ends; returns false if more bytes are to come.
    fn fill(&mut self, stream: &UnixStream, length: usize) -> Result<bool, WireError> {
        while self.bytes.len() < length {
            let before = self.bytes.len();
            self.bytes.resize(length, 0);
            let count = receive(stream, &mut self.bytes[before..], &mut self.files);
            self.bytes.truncate(before + count.as_ref().copied().unwrap_or(0));
            match count {
                Ok(0) => break,
                Ok(_) => {}
                Err(WireError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Bytes of a reply that the socket has not taken yet, and its file descriptors.
#[derive(Debug, Default)]
pub(super) struct Reply {
    bytes: Vec<u8>,
    files: Vec<File>,
}

impl Reply {
    /// Appends `message`.
    pub(super) fn add(&mut self, message: Message) {
        self.bytes.extend(message.bytes());
        self.files.extend(message.files);
    }

    /// Sends as much as a non-blocking `stream` takes; returns true once all is sent.
    ///
    /// # Errors
    /// The socket failed.
    pub(super) fn send(&mut self, stream: &UnixStream) -> io::Result<bool> {
        while !self.bytes.is_empty() {
            match send(stream, &self.bytes, &self.files) {
                Ok(count) => {
                    self.bytes.drain(..count);
                    // With the first byte.
                    self.files.clear();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn send(stream: &UnixStream, bytes: &[u8], files: &[File]) -> io::Result<usize> {
    let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    stream.send_with_fds(&[bytes], &files).map_err(|error| io::Error::from_raw_os_error(error.errno()))
}

fn receive(stream: &UnixStream, bytes: &mut [u8], files: &mut Vec<File>) -> Result<usize, WireError> {
    let count = match system::receive::<MAX_DESCRIPTORS>(stream, bytes, files) {
        Ok(count) => count,
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => return receive(stream, bytes, files),
        Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => return Ok(0),
        // The control buffer was too small: the kernel closed the descriptors that did not fit.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Err(WireError::Descriptors),
        Err(error) => return Err(WireError::Socket(error)),
    };
    if files.len() > MAX_DESCRIPTORS { Err(WireError::Descriptors) } else { Ok(count) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    impl Message {
        fn send(self, stream: &UnixStream) {
            let mut reply = Reply::default();
            reply.add(self);
            assert!(reply.send(stream).unwrap());
        }
    }

    /// The next message, all of which is there.
    fn next(stream: &UnixStream) -> Result<Message, WireError> {
        stream.set_nonblocking(true).unwrap();
        Message::receive(stream, &mut PartialMessage::default()).map(Option::unwrap)
    }

    fn message(request: u32, payload: &[u8], files: usize) -> Message {
        let files = (0..files).map(|_| File::open("/dev/null").unwrap()).collect();
        Message { request, flags: 1, payload: payload.to_vec(), files }
    }

    #[test]
    fn messages_arrive_complete_with_their_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for (request, length, files) in [(1, 0, 0), (5, 264, 8), (5, 1032, 32), (24, MAX_PAYLOAD, 0)] {
            let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
            message(request, &payload, files).send(&theirs);
            let got = next(&ours).unwrap();
            assert_eq!((got.request, got.payload, got.files.len()), (request, payload, files));
        }
    }

    #[test]
    fn a_message_can_be_read_again() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let before = message(5, &[7; 40], 2);
        let after = Message::receive(&ours, &mut before.to_part().unwrap()).unwrap().unwrap();
        assert_eq!((after.request, after.flags, &after.payload, after.files.len()), (5, 1, &before.payload, 2));
    }

    #[test]
    fn fragments_are_put_together() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let bytes: Vec<u8> = [10_u32, 1, 8].iter().flat_map(|word| word.to_ne_bytes()).chain(7_u64.to_ne_bytes()).collect();
        let mut part = PartialMessage::default();
        for byte in bytes {
            assert!(Message::receive(&ours, &mut part).unwrap().is_none());
            (&mut &theirs).write_all(&[byte]).unwrap();
        }
        assert_eq!(Message::receive(&ours, &mut part).unwrap().unwrap().payload, 7_u64.to_ne_bytes());
        drop(theirs);
        assert!(matches!(Message::receive(&ours, &mut part), Err(WireError::HungUp)));
    }

    #[test]
    fn a_reply_goes_out_in_parts() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut reply = Reply::default();
        let whole = message(31, &[7; 64], 1);
        ours.set_nonblocking(true).unwrap();
        let mut added = 0;
        while reply.send(&ours).unwrap() {
            reply.add(message(31, &[7; 64], 1));
            added += 1;
        }
        for _ in 0..added {
            let got = next(&theirs).unwrap();
            assert_eq!((&got.payload, got.files.len()), (&whole.payload, 1));
            assert!(reply.send(&ours).unwrap());
        }
    }

    /// Debian 13's user-mode-linux (6.12) sends SET_MEM_TABLE of 72 bytes that says one region, with one descriptor.
    #[test]
    fn a_memory_table_is_as_long_as_its_regions() {
        let region = [0_u64, 0x0400_0000, 0x6000_0000, 0].map(u64::to_ne_bytes).concat();
        let table = |count: u64, rooms: usize| [&count.to_ne_bytes()[..], &region.repeat(rooms)].concat();
        let (ours, theirs) = UnixStream::pair().unwrap();
        for (count, rooms, length) in [(1, 2, 40), (2, 2, 72), (1, 8, 40), (2, 1, 40), (0, 1, 40), (0xffff_ffff, 1, 40)] {
            message(5, &table(count, rooms), 1).send(&theirs);
            let got = next(&ours).unwrap();
            assert_eq!(got.payload, table(count, rooms)[..length], "{count} regions, room for {rooms}");
        }
        // No other message has such a count.
        message(9, &table(1, 2), 0).send(&theirs);
        assert_eq!(next(&ours).unwrap().payload.len(), 72);
    }

    #[test]
    fn broken_messages_are_told_apart() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let header: Vec<u8> = [1_u32, 1, 1 << 30].iter().flat_map(|word| word.to_ne_bytes()).collect();
        (&mut &theirs).write_all(&header).unwrap();
        assert!(matches!(next(&ours), Err(WireError::Size(_))));
        (&mut &theirs).write_all(&header[..5]).unwrap();
        drop(theirs);
        assert!(matches!(next(&ours), Err(WireError::Partial)));
    }
}
