//! The guard of a takeover: a process outside of the sandbox that kills the successor if it fails after Go. The process that serves the
//! network has no right to signal others.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use memlane_backends::takeover;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::system::{KILL, WATCH};

/// Timeout of the guard to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Guard(UnixStream);

/// The process that takes the network over, by a descriptor that refers to no other one (pidfd_open(2)).
#[derive(Debug)]
pub struct Taker<'g> {
    guard: &'g Guard,
    process: File,
}

impl Guard {
    /// The guard at the other end of `stream`.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Has the guard open the process at the other end of `stream`, the only one that it kills by order from now on.
    ///
    /// # Errors
    /// The guard has ended; the process has ended, or is another user's.
    pub fn watch(&self, stream: &UnixStream) -> io::Result<Taker<'_>> {
        self.0.set_read_timeout(Some(ANSWER))?;
        let sent = self.0.send_with_fds(&[&[WATCH][..]], &[stream.as_raw_fd()]);
        sent.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        let mut files = Vec::new();
        takeover::receive(&self.0, &mut files)?;
        let process = files.pop().ok_or_else(|| io::Error::other("it has ended, or is another user's"))?;
        Ok(Taker { guard: self, process })
    }
}

impl Taker<'_> {
    /// Has the process killed; also if it has ended.
    ///
    /// # Errors
    /// The guard has ended, or the kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        let mut answer = [0];
        (&self.guard.0).write_all(&[KILL])?;
        (&self.guard.0).read_exact(&mut answer)?;
        match i32::from(answer[0]) {
            0 | libc::ESRCH => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Waits until the process has ended, for at most `timeout`; true if it has. It then executes nothing and holds no memory.
    pub fn await_end(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)], left) {
                Err(Errno::EINTR) => {}
                ended => return ended.is_ok_and(|ended| ended > 0),
            }
        }
    }
}
