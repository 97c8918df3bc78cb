//! Waiting for conditions, never for time: every wait has a [`Deadline`] and ends as soon as its condition holds.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A moment after which one gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The moment `timeout` from now.
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// How long until then; zero when it is over.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the moment has come.
    pub fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// The remaining time as poll(2) wants it: milliseconds, rounded up.
    fn timeout(self) -> PollTimeout {
        let milliseconds = self.left().as_micros().div_ceil(1000);
        PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
    }
}

impl From<Duration> for Deadline {
    fn from(timeout: Duration) -> Self {
        Self::after(timeout)
    }
}

/// Interval of the checks of a condition that comes without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Looks every 2 ms whether `condition` holds, until it does (`true`) or the deadline is over (`false`).
/// For conditions that nothing announces; where a descriptor does, [`readable`] is better.
pub fn until(deadline: Deadline, mut condition: impl FnMut() -> bool) -> bool {
    loop {
        if condition() {
            return true;
        }
        if deadline.is_over() {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL.min(deadline.left()));
    }
}

/// Tries `attempt` every 2 ms until it succeeds or the deadline is over.
///
/// # Errors
/// The error of the last attempt.
pub fn retry<T>(deadline: Deadline, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut last = attempt();
    until(deadline, || {
        if last.is_err() {
            last = attempt();
        }
        last.is_ok()
    });
    last
}

/// Waits until `fd` is readable (or hung up): `true`; or until the deadline is over: `false`.
///
/// # Errors
/// The error of poll(2).
pub fn readable(fd: &impl AsFd, deadline: Deadline) -> io::Result<bool> {
    any_readable(&[fd.as_fd()], deadline)
}

/// Waits until any of `fds` is readable (or hung up): `true`; or until the deadline is over: `false`.
///
/// # Errors
/// The error of poll(2).
pub fn any_readable(fds: &[std::os::fd::BorrowedFd<'_>], deadline: Deadline) -> io::Result<bool> {
    let mut polled: Vec<_> = fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    loop {
        match poll(&mut polled, deadline.timeout()) {
            Ok(0) if deadline.is_over() => return Ok(false),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the other end of `fd` is closed, seen at once.
pub fn hung_up(fd: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..)) && polled[0].revents().is_some_and(|events| events.intersects(gone))
}
