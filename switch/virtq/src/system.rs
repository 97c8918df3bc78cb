//! Functions of the kernel and the processor without a wrapper in a safe crate.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use vmm_sys_util::epoll::{Epoll, EpollEvent};

/// The processor's time-stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn time_stamp() -> u64 {
    // SAFETY: the instruction exists on every x86-64 and only reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A thread of this process, as long as it lives.
#[derive(Clone, Copy, Debug)]
pub struct ThreadId(libc::pid_t);

impl ThreadId {
    /// The calling thread.
    pub fn own() -> Self {
        Self(nix::unistd::gettid().as_raw())
    }

    /// Sends it `signal`, which has a handler: the system call that it is in fails. Nothing happens if it has ended.
    pub fn interrupt(self, signal: libc::c_int) {
        // SAFETY: three numbers; the kernel looks for the thread in this process only.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::pid_t::from(nix::unistd::getpid()), self.0, signal) };
    }
}

/// Whether a program has the regular file `file`, which is open for reading here, open for writing (probed by a lease); `None` if
/// the kernel refuses the lease: the file is another user's, or on a file system without leases.
pub fn is_open_for_writing(file: &File) -> Option<bool> {
    /// fcntl(2): the signal sent when another process opens the file; the number is Linux's, the same on all architectures.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: numbers only. A program that opens the file while the lease is held waits until it is released, just below; the
    // signal for that is one that is ignored by default.
    let leased = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if leased == 0 {
        // SAFETY: numbers only.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Some(false);
    }
    (io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)).then_some(true)
}

/// Waits for events of `epoll`, for `timeout` at most, without one for ever; returns how many of `events` were filled in. The timeout
/// counts nanoseconds (epoll_pwait2(2), Linux 5.11), so that no timer needs to be set by a system call of its own; the kernel may add the
/// thread's timer slack, and a thousandth. Where that call is missing, or a filter refuses it, each wait takes two calls.
///
/// # Errors
/// The kernel's of epoll_wait(2), EINTR too.
pub fn wait_for_events(epoll: &Epoll, timeout: Option<Duration>, events: &mut [EpollEvent]) -> io::Result<usize> {
    static IS_MISSING: AtomicBool = AtomicBool::new(false);
    let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) else {
        return epoll.wait(if timeout.is_none() { -1 } else { 0 }, events);
    };
    if IS_MISSING.load(Ordering::Relaxed) {
        return wait_by_two_calls(epoll, timeout, events);
    }
    let time = TimeSpec::from(timeout);
    let (most, time): (usize, *const libc::timespec) = (events.len(), time.as_ref());
    // SAFETY: the kernel fills in `most` events at most, each of which is a transparent `epoll_event`; the timeout outlives the call; there is
    // no signal mask.
    let count = unsafe {
        libc::syscall(libc::SYS_epoll_pwait2, epoll.as_raw_fd(), events.as_mut_ptr(), most, time, std::ptr::null::<u64>(), 0_usize)
    };
    match usize::try_from(count).map_err(|_| Errno::last()) {
        Ok(count) => Ok(count),
        Err(Errno::ENOSYS | Errno::EPERM) => {
            IS_MISSING.store(true, Ordering::Relaxed);
            wait_by_two_calls(epoll, timeout, events)
        }
        Err(error) => Err(error.into()),
    }
}

/// Like [`wait_for_events`], for kernels before Linux 5.11.
fn wait_by_two_calls(epoll: &Epoll, timeout: Duration, events: &mut [EpollEvent]) -> io::Result<usize> {
    // SAFETY: the instance is borrowed, and open that long.
    let descriptor = unsafe { BorrowedFd::borrow_raw(epoll.as_raw_fd()) };
    ppoll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], Some(TimeSpec::from(timeout)), None)?;
    epoll.wait(0, events)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use vmm_sys_util::epoll::{ControlOperation, EventSet};
    use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

    use super::*;

    const SHORT: Duration = Duration::from_micros(300);

    /// An epoll instance that watches an eventfd, edge-triggered, by token 7.
    fn watched() -> (Epoll, EventFd) {
        let (epoll, file) = (Epoll::new().unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
        epoll.ctl(ControlOperation::Add, file.as_raw_fd(), EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 7)).unwrap();
        (epoll, file)
    }

    /// Checks waits by `wait`.
    fn waited(wait: fn(&Epoll, Duration, &mut [EpollEvent]) -> io::Result<usize>) {
        let ((epoll, file), mut events) = (watched(), [EpollEvent::default(); 4]);
        let mut shortest = Duration::MAX;
        for _ in 0..50 {
            let begun = Instant::now();
            assert_eq!(wait(&epoll, SHORT, &mut events).unwrap(), 0);
            assert!(begun.elapsed() >= SHORT, "a timeout is not rounded down");
            shortest = shortest.min(begun.elapsed());
        }
        assert!(shortest < Duration::from_millis(1), "{shortest:?}: a timeout is not rounded up to a millisecond");
        for _ in 0..2 {
            file.write(1).unwrap();
            assert_eq!(
                wait(&epoll, Duration::from_secs(60), &mut events).unwrap(),
                1,
                "a kick ends the wait although the one before was not read"
            );
            assert_eq!(events[0].data(), 7);
        }
    }

    #[test]
    fn a_wait_ends_with_an_event_or_in_the_microsecond_of_its_timeout() {
        waited(|epoll, timeout, events| wait_for_events(epoll, Some(timeout), events));
        waited(wait_by_two_calls);
    }

    #[test]
    fn a_wait_without_time_looks_and_one_without_a_timeout_lasts_until_an_event() {
        let ((epoll, file), mut events) = (watched(), [EpollEvent::default(); 4]);
        assert_eq!(wait_for_events(&epoll, Some(Duration::ZERO), &mut events).unwrap(), 0);
        file.write(1).unwrap();
        assert_eq!(wait_for_events(&epoll, None, &mut events).unwrap(), 1);
    }
}
