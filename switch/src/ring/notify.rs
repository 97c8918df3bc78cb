//! Calls: how the switch interrupts a driver.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use thiserror::Error;

/// A file descriptor that interrupts the guest when eight bytes are written to it: an eventfd, or the pipe that UML uses.
#[derive(Debug)]
pub struct Call(File);

/// Why a descriptor cannot be a call or kick.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a call or kick descriptor that is neither an eventfd nor a pipe")]
pub struct NotNotifier;

impl Call {
    /// A call through `file`.
    ///
    /// # Errors
    /// [`NotNotifier`] unless it is an eventfd or a pipe: writing to anything else could block, or do worse.
    pub fn new(file: File) -> Result<Self, NotNotifier> {
        check_notifier(&file)?;
        set_nonblocking(&file);
        Ok(Self(file))
    }

    /// Interrupts the driver. A full pipe or counter means that the driver has unread interrupts, so nothing is lost.
    #[inline]
    pub fn call(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }
}

/// Accepts eventfds and pipes.
///
/// # Errors
/// [`NotNotifier`] for every other kind of file.
pub fn check_notifier(file: &File) -> Result<(), NotNotifier> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| NotNotifier)?;
    let name = link.to_string_lossy();
    let known = name.starts_with("anon_inode:[eventfd") || name.starts_with("pipe:[");
    if known { Ok(()) } else { Err(NotNotifier) }
}

fn set_nonblocking(file: &File) {
    // SAFETY: plain system calls on a descriptor that we own.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
    }
}
