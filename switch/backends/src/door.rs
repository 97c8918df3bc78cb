//! The listening socket of a port that has a front end.
//!
//! A port serves one front end at a time. A second connection is refused within 50 ms: it is closed before a message is exchanged, and
//! log and status name the program that holds the port. If it were left in the listen queue, it would hang for as long as the
//! first session lasts. With `second = "replace"` the first session ends instead: its virtqueues stop, then its connection ends, then
//! the second one is served. A vhost-user front end replaces the first only when it sets up its device.

use std::cell::Cell;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::peer::Peer;
use crate::port::Port;

/// Milliseconds that the old connection has to end before a further one is refused: a front end that reconnects closes the old
/// connection first, but a child process that it has just forked holds the descriptor until execve(2). The pause also limits the CPU
/// time of a program that connects in a loop.
const GRACE: u8 = 50;
/// End of a session in the log.
const REPLACED: &str = "another front end replaces it";

/// Treatment of a second front end that connects while the port has one (configuration key `second`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Second {
    /// It is refused.
    #[default]
    Refuse,
    /// It replaces the first, at a vhost-user port once it sets up memory or a queue.
    Replace,
}

/// The peer of `stream` (SO_PEERCRED, unix(7)).
pub fn peer(stream: &UnixStream) -> Option<Peer> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials).ok()?;
    let (pid, uid) = (credentials.pid(), credentials.uid());
    // A process may call itself anything: control characters are not for terminals.
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = String::from_utf8_lossy(&comm).trim_end().replace(char::is_control, "?");
    Some(Peer { pid, uid, program: if program.is_empty() { "a program".into() } else { program } })
}

/// The listening socket of a port that has a front end. Without a listener (memlane is the connecting side) there are no further
/// connections to refuse.
#[derive(Debug)]
pub struct Door<'p> {
    /// The port.
    pub port: &'p Port,
    /// Where others may connect.
    pub listener: Option<&'p UnixListener>,
    /// Readable if the thread is to stop waiting.
    pub bell: Option<BorrowedFd<'p>>,
    second: Second,
    replaced: Cell<bool>,
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The stream is readable or closed.
    Message,
    /// A further front end has connected, and may replace the present one.
    Visitor,
    /// The descriptor beside the stream is readable.
    Beside,
    /// The bell rings.
    Bell,
    /// The moment to wait for has come.
    Nothing,
}

impl<'p> Door<'p> {
    /// The listening socket `listener` of `port`; `second` decides between its front end and a second one.
    pub fn new(port: &'p Port, listener: Option<&'p UnixListener>, second: Second) -> Self {
        Self { port, listener, bell: None, second, replaced: Cell::new(false) }
    }

    /// The reason why the session ended, if nothing else is wrong with it.
    pub fn end(&self) -> &'static str {
        if self.is_replaced() { REPLACED } else { "the connection ended" }
    }

    /// Whether another front end is to have the port.
    pub fn is_replaced(&self) -> bool {
        self.replaced.get()
    }

    /// The front end at `stream` loses the port to another one: the stream reads as closed here, and is still open for the front end.
    pub fn replace(&self, stream: &UnixStream) {
        self.replaced.set(true);
        let _ = stream.shutdown(Shutdown::Read);
    }

    /// Waits until `stream` or the descriptor `beside` it is readable or closed, until the bell rings, or until the moment `end`.
    /// Connections that arrive meanwhile are refused, unless they may replace this one.
    pub fn wait(&self, stream: &UnixStream, end: Option<Instant>, beside: Option<BorrowedFd>) -> Arrival {
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            match self.ready(stream, left, beside) {
                Arrival::Nothing if left != Some(Duration::ZERO) => {}
                Arrival::Visitor if self.second == Second::Refuse => _ = self.visited(stream, PollFlags::POLLIN),
                arrival => return arrival,
            }
        }
    }

    /// The next event. A message takes precedence over a new connection: it may be the end of the session, and then the new
    /// connection is not refused. The bell takes precedence over both.
    fn ready(&self, stream: &UnixStream, most: Option<Duration>, beside: Option<BorrowedFd>) -> Arrival {
        // Rounded up, so that a timeout means that `most` has elapsed.
        let timeout = most
            .map_or(PollTimeout::NONE, |most| PollTimeout::try_from(most + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX));
        let listener = self.listener.map(AsFd::as_fd);
        let watched = [
            (self.bell, Arrival::Bell),
            (Some(stream.as_fd()), Arrival::Message),
            (beside, Arrival::Beside),
            (listener, Arrival::Visitor),
        ];
        let (mut files, arrivals): (Vec<_>, Vec<_>) =
            watched.into_iter().filter_map(|(file, arrival)| Some((PollFd::new(file?, PollFlags::POLLIN), arrival))).unzip();
        match poll(&mut files, timeout) {
            Ok(0) | Err(Errno::EINTR) => Arrival::Nothing,
            // An error of the socket is reported by the read that follows.
            Err(_) => Arrival::Message,
            Ok(_) => {
                let ready = files.iter().zip(arrivals).find(|(file, _)| file.any() == Some(true));
                ready.map_or(Arrival::Nothing, |(_, arrival)| arrival)
            }
        }
    }

    /// A connection is pending. Accepts and closes it, or leaves it there and returns true if the present front end is to make way
    /// for it; neither if `stream` ends, or reports one of `events`, within [`GRACE`]. The listener is non-blocking.
    pub fn visited(&self, stream: &UnixStream, events: PollFlags) -> bool {
        // POLLHUP is reported without being asked for.
        let mut files = [PollFd::new(stream.as_fd(), events)];
        if poll(&mut files, PollTimeout::from(GRACE)).is_ok_and(|count| count > 0) {
            return false;
        }
        match self.second {
            Second::Replace => self.replaced.set(true),
            Second::Refuse => {
                if let Some(Ok((visitor, _))) = self.listener.map(UnixListener::accept) {
                    self.port.turned_away(peer(&visitor));
                }
            }
        }
        self.is_replaced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use std::io::{ErrorKind, Read};

    /// Whether the other end has not closed the connection.
    fn is_open(mut stream: &UnixStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn a_front_end_that_closed_its_connection_before_the_next_is_not_in_the_way_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = Port::row(&Shared::new(1, 7, Settings::default()), 1).remove(0);
        let door = Door::new(&port, Some(&listener), Second::Refuse);
        let first = UnixStream::connect(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();

        let second = UnixStream::connect(&path).unwrap();
        assert!(!door.visited(&stream, PollFlags::empty()));
        assert!(!is_open(&second), "the port is in use");

        drop(first);
        let third = UnixStream::connect(&path).unwrap();
        assert!(!door.visited(&stream, PollFlags::empty()));
        assert!(is_open(&third), "the port is free");
        assert_eq!(port.front_end().1, 1);
    }
}
