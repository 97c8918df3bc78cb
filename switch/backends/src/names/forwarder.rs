//! The responder's end of a forwarder: a process outside of the sandbox that asks resolvers ([`memlane_names::forward`]).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
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
    socket: Option<Arc<OwnedFd>>,
    /// When it was last started; the next start comes a second later at the earliest.
    started: Option<Instant>,
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
        Self { open, socket: None, started: None, datagram: vec![0; LONGEST + 16] }
    }

    /// Socket of the forwarder; another one once it was started again.
    pub(super) fn socket(&self) -> Option<&Arc<OwnedFd>> {
        self.socket.as_ref()
    }

    /// Asks `question`; false if there is no forwarder, or it takes no more now.
    pub(super) fn ask(&mut self, question: &Question) -> bool {
        if self.socket.is_none() && self.started.is_none_or(|started| started.elapsed() >= SECOND) {
            self.started = Some(Instant::now());
            match (self.open)() {
                Ok(socket) => self.socket = Some(Arc::new(socket)),
                Err(cause) => tracing::warn!(%cause, "no forwarder of DNS can be started, so names outside are not resolved"),
            }
        }
        let Some(socket) = &self.socket else { return false };
        send(socket.as_raw_fd(), &question.encode(), MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok()
    }

    /// Hears the next answer.
    pub(super) fn hear(&mut self) -> Heard<'_> {
        let Some(socket) = &self.socket else { return Heard::Nothing };
        match recv(socket.as_raw_fd(), &mut self.datagram, MsgFlags::MSG_DONTWAIT) {
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
