//! A port's session thread, which opens one session after the other: how the thread is stopped, how it waits (epoll) and how it
//! backs off.

#![expect(clippy::indexing_slicing, reason = "as many events as the kernel filled in")]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::PollFlags;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::listener::PortListener;

/// A session that lasted longer than this is not counted as a failed attempt.
pub(super) const HEALTHY: Duration = Duration::from_secs(10);
/// First and longest pause before the next attempt to connect, and before an interface that another program makes is looked for.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Longest pause before passt is started again, and before a TAP device is created again.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause after an action that a guest or front end can repeat at will: a connection, a protocol violation, a queue full of commands, a write to
/// xenstore. Without it, one guest has a CPU of the host to itself.
pub(super) const GUEST_PAUSE: Duration = Duration::from_millis(1);
/// Timeout of a thread or task of a port to end, or to carry out an order; one that its guest or front end holds up for longer is abandoned.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Stack of a session thread, which does no work on frames.
const STACK: usize = 256 * 1024;
/// Interval of checks where the kernel tells of no event: it refuses a descriptor for the epoll instance, or netlink is not available.
pub(super) const UNWATCHED: Duration = Duration::from_secs(1);
/// Tokens of the watched descriptors.
const QUIT: u64 = 0;
const FILE: u64 = 1;
const CONNECTION: u64 = 2;

/// A running session thread.
#[derive(Debug)]
pub struct Session {
    quit: EventFd,
    thread: JoinHandle<()>,
}

impl Session {
    /// Runs `session` in a thread called `name`.
    ///
    /// # Errors
    /// The kernel refuses a thread or a descriptor.
    pub(super) fn start(name: String, session: impl FnOnce(Watch) + Send + 'static) -> io::Result<Self> {
        let quit = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
        let watch = Watch::new(quit.try_clone()?)?;
        let thread = std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || session(watch))?;
        Ok(Self { quit, thread })
    }

    /// Stops all sessions: ends their connections and joins their threads.
    pub fn stop(sessions: Vec<Self>) {
        // Fails only if the eventfd is signalled already.
        sessions.iter().for_each(|session| drop(session.quit.write(1)));
        sessions.into_iter().for_each(|session| drop(session.thread.join()));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Quit,
    Connection,
    File,
    Otherwise,
}

/// The epoll instance that a session thread waits on.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Epoll,
    /// Kept open for as long as it is watched.
    _quit: EventFd,
}

impl Watch {
    fn new(quit: EventFd) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, quit.as_raw_fd(), EpollEvent::new(EventSet::IN, QUIT))?;
        Ok(Self { epoll, _quit: quit })
    }

    /// Whether the thread has been told to stop.
    pub(super) fn quits(&self) -> bool {
        self.wait(Some(Duration::ZERO)) == Woken::Quit
    }

    /// Waits until one of the events `what` occurs at `file`, or the thread is told to stop.
    pub(super) fn wait_for(&self, file: RawFd, what: EventSet) -> Woken {
        if self.epoll.ctl(ControlOperation::Add, file, EpollEvent::new(what, FILE)).is_err() {
            return self.wait(Some(UNWATCHED));
        }
        let woken = self.wait(None);
        let _ = self.epoll.ctl(ControlOperation::Delete, file, EpollEvent::default());
        woken
    }

    /// Waits until `stream` is closed, or another front end replaces it. Its data is the worker's to read; this thread only watches for
    /// the hang-up.
    pub(super) fn wait_for_end(&self, stream: &UnixStream, port_listener: &PortListener) {
        let Some(listener) = port_listener.listener else {
            self.wait_for(stream.as_raw_fd(), EventSet::READ_HANG_UP);
            return;
        };
        let connections = EpollEvent::new(EventSet::IN, CONNECTION);
        // If the listener cannot be watched, further connections wait in its queue until this stream ends.
        let _ = self.epoll.ctl(ControlOperation::Add, listener.as_raw_fd(), connections);
        while self.wait_for(stream.as_raw_fd(), EventSet::READ_HANG_UP) == Woken::Connection
            && !port_listener.handle_pending(stream, PollFlags::empty())
        {}
        let _ = self.epoll.ctl(ControlOperation::Delete, listener.as_raw_fd(), EpollEvent::default());
    }

    /// Waits for an event or the timeout `pause`.
    pub(super) fn wait(&self, pause: Option<Duration>) -> Woken {
        let milliseconds = pause.map_or(-1, |pause| pause.as_millis() as i32);
        let mut events = [EpollEvent::default(); 3];
        // EINTR counts as a timeout: the caller checks its state again.
        let count = self.epoll.wait(milliseconds, &mut events).unwrap_or(0);
        let is_there = |token| events[..count].iter().any(|event| event.data() == token);
        let first = [(QUIT, Woken::Quit), (FILE, Woken::File), (CONNECTION, Woken::Connection)]
            .into_iter()
            .find(|(token, _)| is_there(*token));
        first.map_or(Woken::Otherwise, |(_, woken)| woken)
    }
}

/// Exponential backoff between attempts: each pause is twice the one before, until a session lasts.
#[derive(Debug)]
pub(super) struct Backoff {
    least: Duration,
    most: Duration,
    pause: Duration,
    /// Failures in a row.
    pub failures: u32,
}

impl Backoff {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, pause: least, failures: 0 }
    }

    /// The pause after an attempt that has failed, or ended, after so long.
    pub(super) fn after(&mut self, lasted: Duration) -> Duration {
        if lasted > HEALTHY.min(self.most) {
            (self.pause, self.failures) = (self.least, 1);
        } else {
            (self.pause, self.failures) = ((2 * self.pause).min(self.most), self.failures.saturating_add(1));
        }
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_lasts() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
        let seconds: Vec<f64> = (0..11).map(|_| backoff.after(Duration::from_millis(5)).as_secs_f64()).collect();
        assert_eq!(seconds, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]);
        assert_eq!(backoff.failures, 11);
        assert_eq!(backoff.after(Duration::from_secs(11)), Duration::from_millis(100));
        assert_eq!((backoff.after(Duration::ZERO), backoff.failures), (Duration::from_millis(200), 2));
    }
}
