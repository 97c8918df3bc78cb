//! The socket of a port that has a front end.
//!
//! A port serves one front end at a time. Another that connects meanwhile is turned away at once: its connection ends before a message, and log
//! and status name the program that has the port. Left in the socket's queue, it would wait for an answer for as long as the first one stays.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use crate::port::Port;
use crate::port::peer::Peer;

/// After one was turned away, the next has to wait for so long, so that connecting again and again gets a small part of a CPU.
pub const PENALTY: Duration = Duration::from_millis(1);

/// The peer of `stream` (SO_PEERCRED, unix(7)).
pub fn peer(stream: &UnixStream) -> Option<Peer> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials).ok()?;
    let (pid, uid) = (credentials.pid(), credentials.uid());
    // A process may call itself anything: control characters are not for terminals.
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = String::from_utf8_lossy(&comm).trim_end().replace(char::is_control, "?");
    Some(Peer { pid, uid, program: if program.is_empty() { "a program".into() } else { program } })
}

/// The socket of a port that has a front end; without a listener, others cannot connect.
#[derive(Clone, Copy, Debug)]
pub struct Door<'p> {
    /// The port.
    pub port: &'p Port,
    /// Where others may connect.
    pub listener: Option<&'p UnixListener>,
}

impl Door<'_> {
    /// Waits until `stream` has something to read or has ended, or `most` is over; true unless it is over. What connects meanwhile is turned away.
    pub fn wait(&self, stream: &UnixStream, most: Option<Duration>) -> bool {
        let end = most.map(|most| Instant::now() + most);
        let mut resting = false;
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let pause = if resting { Some(left.unwrap_or(PENALTY).min(PENALTY)) } else { left };
            let listener = self.listener.filter(|_| !resting);
            resting = match ready(stream, listener, pause) {
                Ready::Stream => return true,
                Ready::Listener => {
                    self.turn_away();
                    true
                }
                Ready::Nothing if left == Some(Duration::ZERO) => return false,
                Ready::Nothing => false,
            };
        }
    }

    /// Ends the next connection that waits at the listener, which does not block.
    pub fn turn_away(&self) {
        if let Some(Ok((visitor, _))) = self.listener.map(UnixListener::accept) {
            self.port.turned_away(peer(&visitor));
        }
    }
}

enum Ready {
    Stream,
    Listener,
    Nothing,
}

/// What there is to do first: a message comes before a visitor, so that one whose predecessor has just gone is not turned away for that one's sake.
fn ready(stream: &UnixStream, listener: Option<&UnixListener>, most: Option<Duration>) -> Ready {
    // Rounded up, so that the time is over when nothing came.
    let timeout =
        most.map_or(PollTimeout::NONE, |most| PollTimeout::try_from(most + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX));
    let mut files = vec![PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    files.extend(listener.map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
    match poll(&mut files, timeout) {
        Ok(0) | Err(Errno::EINTR) => Ready::Nothing,
        Ok(_) if files[0].any() == Some(false) => Ready::Listener,
        // A failure shows when it is read.
        _ => Ready::Stream,
    }
}
