//! vhost-user messages byte by byte: header, body, file descriptors.
//!
//! Messages that the `vhost` crate does not send (SEND_RARP, NET_SET_MTU, SET_STATUS), and malformed ones, which it rightly refuses
//! to send, go through here.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::deadline::{self, Deadline};

/// Header flags: protocol version 1.
pub const VERSION: u32 = 1;
/// Header flag: this is an answer.
pub const REPLY: u32 = 4;
/// Header flag: the sender wants an acknowledgement.
pub const NEED_REPLY: u32 = 8;
/// Bytes of a message's header: code, flags, body size, each a u32.
pub const HEADER_BYTES: usize = 12;
/// Longer bodies than this are taken for nonsense.
const MAX_BODY: usize = 64 << 10;

/// A message that came in.
#[derive(Debug)]
pub struct Message {
    /// The request's number.
    pub code: u32,
    /// [`VERSION`], [`REPLY`], [`NEED_REPLY`].
    pub flags: u32,
    /// The bytes after the header.
    pub body: Vec<u8>,
    /// The file descriptors that came along.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The first eight bytes of the body as a number.
    pub fn number(&self) -> Option<u64> {
        Some(u64::from_le_bytes(self.body.get(..8)?.try_into().ok()?))
    }
}

/// A header's 12 bytes.
pub fn header(code: u32, flags: u32, size: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&code.to_le_bytes());
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    bytes[8..].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// Sends a well-formed message: the size field is the body's.
///
/// # Errors
/// The error of sendmsg(2).
pub fn send(stream: &UnixStream, code: u32, flags: u32, body: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let mut bytes = header(code, flags, body.len() as u32).to_vec();
    bytes.extend_from_slice(body);
    send_bytes(stream, &bytes, fds)
}

/// Sends `bytes` as they are, with `fds` attached to the first of them.
///
/// # Errors
/// The error of sendmsg(2).
pub fn send_bytes(stream: &UnixStream, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(fds)];
    let rights: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let sent = sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    io::Write::write_all(&mut (&*stream), &bytes[sent..])
}

/// Receives one message.
///
/// # Errors
/// `TimedOut` at the deadline, `UnexpectedEof` when the other side hung up, `InvalidData` for an endless body.
pub fn receive(stream: &UnixStream, deadline: Deadline) -> io::Result<Message> {
    let mut fds = Vec::new();
    let mut head = [0; HEADER_BYTES];
    fill(stream, &mut head, &mut fds, deadline)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let size = word(8) as usize;
    if size > MAX_BODY {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a body of {size} bytes announced")));
    }
    let mut body = vec![0; size];
    fill(stream, &mut body, &mut fds, deadline)?;
    Ok(Message { code: word(0), flags: word(4), body, fds })
}

fn fill(stream: &UnixStream, mut rest: &mut [u8], fds: &mut Vec<OwnedFd>, deadline: Deadline) -> io::Result<()> {
    while !rest.is_empty() {
        if !deadline::readable(stream, deadline)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        match receive_some(stream, rest, fds)? {
            0 => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the back end hung up"));
            }
            count => rest = &mut rest[count..],
        }
    }
    Ok(())
}

fn receive_some(stream: &UnixStream, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = nix::cmsg_space!([RawFd; 32]);
    let mut slices = [IoSliceMut::new(into)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(rights) = message {
            // SAFETY: the kernel has just opened these descriptors for us; they have no other owner.
            fds.extend(rights.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_message_arrives_with_its_body_and_descriptors() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, 20, VERSION | NEED_REPLY, &1500u64.to_le_bytes(), &[here.as_raw_fd()]).unwrap();
        let message = receive(&there, Deadline::after(Duration::from_secs(5))).unwrap();
        assert_eq!((message.code, message.flags, message.number()), (20, 9, Some(1500)));
        assert_eq!(message.fds.len(), 1);
    }

    #[test]
    fn silence_and_hanging_up_are_told_apart() {
        let (here, there) = UnixStream::pair().unwrap();
        let soon = Deadline::after(Duration::from_millis(20));
        assert_eq!(receive(&here, soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(there);
        let later = Deadline::after(Duration::from_secs(5));
        assert_eq!(receive(&here, later).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
