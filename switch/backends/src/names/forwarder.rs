//! The responder's end of a forwarder: a process outside of the sandbox that asks resolvers ([`memlane_names::forward`]).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use memlane_names::forward::{LONGEST, Question, decode_answer};
use memlane_virtq::time::SECOND;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};

/// Starts a forwarder; returns this process's end of its socket, of type SOCK_SEQPACKET.
pub type OpenForwarder = Box<dyn FnMut() -> io::Result<OwnedFd> + Send>;

/// A forwarder, started when it is needed.
pub(super) struct Forwarder {
    open: OpenForwarder,
    socket: Option<OwnedFd>,
    /// When it was last started; the next start comes a second later at the earliest.
    started: Option<Instant>,
    /// The forwarder was started since this was last asked.
    is_new: bool,
    datagram: Vec<u8>,
}

/// An answer of the forwarder.
pub(super) enum Heard<'f> {
    /// None is there.
    Nothing,
    /// The answer to the question of this number.
    Answer(u64, Option<&'f [u8]>),
    /// The forwarder has ended.
    End,
}

impl Forwarder {
    pub(super) fn new(open: OpenForwarder) -> Self {
        Self { open, socket: None, started: None, is_new: false, datagram: vec![0; LONGEST + 16] }
    }

    /// Socket of the forwarder.
    pub(super) fn file(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Whether it was started since this was last asked.
    pub(super) fn take_opened(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Asks `question`; false if there is no forwarder, or it takes no more now.
    pub(super) fn ask(&mut self, question: &Question) -> bool {
        if self.socket.is_none() && self.started.is_none_or(|started| started.elapsed() >= SECOND) {
            self.started = Some(Instant::now());
            match (self.open)() {
                Ok(socket) => (self.socket, self.is_new) = (Some(socket), true),
                Err(cause) => tracing::warn!(%cause, "no forwarder of DNS can be started, so names outside are not resolved"),
            }
        }
        let Some(file) = self.file() else { return false };
        send(file, &question.encode(), MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok()
    }

    /// Hears the next answer.
    pub(super) fn hear(&mut self) -> Heard<'_> {
        let Some(file) = self.file() else { return Heard::Nothing };
        match recv(file, &mut self.datagram, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => Heard::Nothing,
            Ok(length @ 1..) => match self.datagram.get(..length).and_then(decode_answer) {
                Some((id, message)) => Heard::Answer(id, message),
                // Not of this protocol.
                None => {
                    self.socket = None;
                    Heard::End
                }
            },
            Ok(0) | Err(_) => {
                self.socket = None;
                Heard::End
            }
        }
    }
}
