//! A port's own thread, which meets the other side again and again: how it is ended, what it waits by, how long it pauses.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::door::{Door, PENALTY};

/// What lasted longer than this had not failed at once.
pub(super) const HEALTHY: Duration = Duration::from_secs(10);
/// A session's thread needs little.
const STACK: usize = 256 * 1024;
/// Pause where the kernel lets a descriptor not be watched.
const UNWATCHED: Duration = Duration::from_secs(1);
/// Tokens of what a thread waits for.
const QUIT: u64 = 0;
const FILE: u64 = 1;
const VISITOR: u64 = 2;

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

    /// Ends all connections and threads.
    pub fn stop(sessions: Vec<Self>) {
        // Full only if it was told already.
        sessions.iter().for_each(|session| drop(session.quit.write(1)));
        sessions.into_iter().for_each(|session| drop(session.thread.join()));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Quit,
    Visitor,
    File,
    Otherwise,
}

/// What the thread waits by.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Epoll,
    /// Kept open, since it is watched.
    _quit: EventFd,
}

impl Watch {
    fn new(quit: EventFd) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, quit.as_raw_fd(), EpollEvent::new(EventSet::IN, QUIT))?;
        Ok(Self { epoll, _quit: quit })
    }

    /// Whether the thread is to end.
    pub(super) fn quits(&self) -> bool {
        self.wait(Some(Duration::ZERO)) == Woken::Quit
    }

    /// Waits until something of `what`, or an end, happens at `file`.
    pub(super) fn wait_for(&self, file: RawFd, what: EventSet) -> Woken {
        if self.epoll.ctl(ControlOperation::Add, file, EpollEvent::new(what, FILE)).is_err() {
            return self.wait(Some(UNWATCHED));
        }
        let woken = self.wait(None);
        let _ = self.epoll.ctl(ControlOperation::Delete, file, EpollEvent::default());
        woken
    }

    /// Waits until `stream` ends. What it sends is the worker's to read; here only its end is of interest.
    pub(super) fn wait_for_end(&self, stream: &UnixStream, door: &Door) {
        let Some(listener) = door.listener else {
            self.wait_for(stream.as_raw_fd(), EventSet::READ_HANG_UP);
            return;
        };
        let visitors = EpollEvent::new(EventSet::IN, VISITOR);
        // Without it, others wait until the stream has ended.
        let _ = self.epoll.ctl(ControlOperation::Add, listener.as_raw_fd(), visitors);
        while self.wait_for(stream.as_raw_fd(), EventSet::READ_HANG_UP) == Woken::Visitor {
            door.turn_away();
            std::thread::sleep(PENALTY);
        }
        let _ = self.epoll.ctl(ControlOperation::Delete, listener.as_raw_fd(), EpollEvent::default());
    }

    /// Waits until something happens, or `pause` is over.
    pub(super) fn wait(&self, pause: Option<Duration>) -> Woken {
        let milliseconds = pause.map_or(-1, |pause| pause.as_millis() as i32);
        let mut events = [EpollEvent::default(); 3];
        // A signal counts as a time-out: the caller looks again.
        let count = self.epoll.wait(milliseconds, &mut events).unwrap_or(0);
        let is_there = |token| events[..count].iter().any(|event| event.data() == token);
        let first =
            [(QUIT, Woken::Quit), (FILE, Woken::File), (VISITOR, Woken::Visitor)].into_iter().find(|(token, _)| is_there(*token));
        first.map_or(Woken::Otherwise, |(_, woken)| woken)
    }
}

/// Pauses between attempts, each twice as long as the one before, until one lasts.
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
