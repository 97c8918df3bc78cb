//! Interrupts: how the switch notifies a driver.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, UnixAddr, getsockname, send};
use thiserror::Error;

use super::breaker::InterruptBreaker;
use crate::memory::postcopy::Kick;
use crate::time::cycles;
use crate::watchdog::watched;

/// A file descriptor that interrupts the guest when eight bytes are written to it: an eventfd, or the socket that UML uses.
#[derive(Debug)]
pub struct Call {
    file: File,
    is_socket: bool,
    breaker: Arc<InterruptBreaker>,
}

/// Result of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// The interrupt was sent. A full socket or counter means that the driver has unread interrupts, so nothing is lost.
    Done,
    /// The interrupt is to be sent later: the port's [`InterruptBreaker`] is shut.
    Kept,
    /// The interrupt blocked until the watchdog ended it: the front end changed the descriptor, which must not be used again.
    Blocked,
}

/// Reason why a descriptor cannot be an interrupt or kick.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a call or kick descriptor that is neither an eventfd nor a Unix socket")]
pub struct NotNotifier;

impl Call {
    /// Interrupts through `file`.
    ///
    /// # Errors
    /// [`NotNotifier`] unless it is an eventfd or a Unix socket: a write to any other file could block, or do worse. A pipe is
    /// locked while another process reads it, which may take arbitrarily long (into memory whose pages come from a server that does
    /// not answer), and no signal ends the wait for that lock.
    pub fn new(file: File) -> Result<Self, NotNotifier> {
        let kind = Notifier::of(&file).ok_or(NotNotifier)?;
        set_nonblocking(&file);
        Ok(Self { file, is_socket: kind == Notifier::Socket, breaker: Arc::default() })
    }

    /// The same behind the interrupt circuit breaker of its port.
    #[must_use]
    pub fn behind(self, breaker: &Arc<InterruptBreaker>) -> Self {
        Self { breaker: Arc::clone(breaker), ..self }
    }

    /// The descriptor itself.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// True if this interrupts a guest of User Mode Linux: no other known front end passes a socket.
    pub fn is_socket(&self) -> bool {
        self.is_socket
    }

    /// Interrupts the driver.
    #[inline]
    pub fn call(&self) -> Called {
        if self.breaker.is_shut(cycles) {
            return Called::Kept;
        }
        let begun = self.breaker.begin();
        let called = self.notify();
        self.breaker.end(&begun);
        called
    }

    #[inline]
    fn notify(&self) -> Called {
        let one = 1_u64.to_ne_bytes();
        if self.is_socket {
            let _ = send(self.file.as_raw_fd(), &one, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
            return Called::Done;
        }
        match watched(|| (&self.file).write(&one)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                self.breaker.shut(cycles());
                Called::Blocked
            }
            _ => Called::Done,
        }
    }

    /// Like [`Self::call`], if there is room: a full descriptor notifies the driver already. For a thread that must not be held up
    /// even once: only a front end that fills it in this very moment can do that.
    pub fn call_if_room(&self) -> Called {
        let mut ready = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        let count = poll(&mut ready, PollTimeout::ZERO).unwrap_or(0);
        if count > 0 && ready[0].revents().is_some_and(|events| events.contains(PollFlags::POLLOUT)) {
            self.call()
        } else {
            Called::Done
        }
    }
}

/// Kinds of descriptors that may notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notifier {
    /// An eventfd.
    Event,
    /// A Unix socket.
    Socket,
}

impl Notifier {
    /// The kind of `file`, if it may notify.
    pub fn of(file: &File) -> Option<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let name = link.to_string_lossy();
        if name.starts_with("anon_inode:[eventfd") {
            return Some(Self::Event);
        }
        (name.starts_with("socket:[") && is_unix(file)).then_some(Self::Socket)
    }
}

fn is_unix(file: &File) -> bool {
    getsockname::<UnixAddr>(file.as_raw_fd()).is_ok()
}

fn set_nonblocking(file: &File) {
    if let Ok(flags) = fcntl(file, FcntlArg::F_GETFL) {
        let _ = fcntl(file, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK));
    }
}

impl Kick for Call {
    fn kick(&self) {
        let _ = self.call_if_room();
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn takes_what_guests_use_and_nothing_else() {
        let (pipe, _other) = std::io::pipe().unwrap();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let event = File::from(OwnedFd::from(EventFd::new().unwrap()));
        assert!(Call::new(File::from(OwnedFd::from(pipe))).is_err());
        assert_eq!(Notifier::of(&File::from(OwnedFd::from(socket))), Some(Notifier::Socket));
        assert_eq!(Notifier::of(&event), Some(Notifier::Event));
        assert!(Call::new(File::open("/dev/null").unwrap()).is_err());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Call::new(File::from(OwnedFd::from(tcp))).is_err());
    }

    #[test]
    fn a_full_socket_does_not_block() {
        let (_reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let call = Call::new(File::from(OwnedFd::from(writer))).unwrap();
        assert!((0..100_000).all(|_| call.call() == Called::Done));
    }

    /// An eventfd that blocks its writers.
    fn full_eventfd() -> File {
        let file = File::from(OwnedFd::from(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap()));
        (&file).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        file
    }

    /// Has `file` block again, as its front end can.
    fn make_block(file: &File) {
        assert_eq!(fcntl(file, FcntlArg::F_SETFL(OFlag::O_RDWR)), Ok(0));
    }

    #[test]
    fn after_the_first_that_blocks_all_calls_of_a_port_are_kept() {
        let breaker = Arc::default();
        let calls: Vec<Call> = (0..32).map(|_| Call::new(full_eventfd()).unwrap().behind(&breaker)).collect();
        calls.iter().for_each(|call| make_block(&call.file));
        assert_eq!(calls[0].call(), Called::Blocked);
        // A front end that comes back has other interrupts, behind the same breaker.
        let later = Call::new(full_eventfd()).unwrap().behind(&breaker);
        make_block(&later.file);
        assert!(calls[1..].iter().chain([&later]).all(|call| call.call() == Called::Kept));
    }

    #[test]
    fn a_full_descriptor_holds_nobody_up_who_asks_for_room() {
        let call = Call::new(full_eventfd()).unwrap();
        make_block(&call.file);
        assert_eq!(call.call_if_room(), Called::Done);
        assert!(!call.breaker.is_shut(cycles));
    }
}
