//! Notifications: kicks (guest to back end: look at the ring) and interrupts (back end to guest: look at the ring).
//!
//! A kick is an eventfd. Interrupts go through the call descriptor: an eventfd from QEMU and DPDK, but a socket pair from User Mode
//! Linux, because SIGIO knows no eventfds; so a back end must write eight bytes, whichever kind it was given.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Kind of a ring's call descriptor, which carries its interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallKind {
    /// An eventfd.
    #[default]
    Eventfd,
    /// A stream socket pair, as User Mode Linux makes it.
    SocketPair,
    /// Nothing: the guest polls (payload bit 8).
    None,
}

/// Kind of a ring's kick descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KickKind {
    /// An eventfd.
    #[default]
    Eventfd,
    /// An eventfd in blocking mode: a thread that reads it empty or writes it full is blocked.
    BlockingEventfd,
    /// Nothing: the back end shall poll (payload bit 8).
    None,
}

/// The guest's end of a ring's kicks.
#[derive(Debug)]
pub struct Kick(Option<EventFd>);

impl Kick {
    /// A new one of that kind.
    ///
    /// # Errors
    /// The error of eventfd(2).
    pub fn new(kind: KickKind) -> io::Result<Self> {
        let flags = match kind {
            KickKind::None => return Ok(Self(None)),
            KickKind::Eventfd => EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
            KickKind::BlockingEventfd => EfdFlags::EFD_CLOEXEC,
        };
        Ok(Self(Some(EventFd::from_value_and_flags(0, flags)?)))
    }

    /// Kicks the back end; nothing happens if there is no descriptor.
    pub fn kick(&self) {
        if let Some(event) = &self.0 {
            // The only failure is a counter that is full: then the back end has enough to wake up for.
            let _ = event.write(1);
        }
    }

    /// The descriptor to send.
    pub fn fd(&self) -> Option<RawFd> {
        self.0.as_ref().map(|event| event.as_fd().as_raw_fd())
    }
}

/// The guest's end of a ring's call descriptor: it receives interrupts.
#[derive(Debug)]
pub struct Call {
    /// Where we read.
    ours: Option<File>,
    /// Where the back end writes; the same file for an eventfd. Kept, so that it can be sent again.
    theirs: Option<OwnedFd>,
}

impl Call {
    /// A new one of that kind.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(kind: CallKind) -> io::Result<Self> {
        let (ours, theirs): (OwnedFd, OwnedFd) = match kind {
            CallKind::None => {
                return Ok(Self { ours: None, theirs: None });
            }
            CallKind::Eventfd => {
                let event: OwnedFd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?.into();
                (event.try_clone()?, event)
            }
            CallKind::SocketPair => {
                let (ours, theirs) = UnixStream::pair()?;
                (ours.into(), theirs.into())
            }
        };
        // For sockets only our end; an eventfd has one set of flags for both.
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { ours: Some(ours.into()), theirs: Some(theirs) })
    }

    /// The descriptor to send.
    pub fn fd(&self) -> Option<RawFd> {
        self.theirs.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Our end, to wait on.
    pub fn waitable(&self) -> Option<BorrowedFd<'_>> {
        self.ours.as_ref().map(AsFd::as_fd)
    }

    /// Takes all interrupts that came; returns their number, as far as that can be told (a socket: eight bytes each).
    pub fn drain(&self) -> u64 {
        let Some(mut file) = self.ours.as_ref() else {
            return 0;
        };
        let mut bytes = [0; 512];
        let mut calls = 0;
        loop {
            match file.read(&mut bytes) {
                // An eventfd gives its counter in one read and is empty then.
                Ok(8) => calls += count(&bytes, 8),
                Ok(0) | Err(_) => return calls,
                Ok(length) => calls += count(&bytes, length),
            }
        }
    }

    /// Writes interrupts ourselves until the descriptor takes no more: the back end's next one would block.
    pub fn fill(&self) {
        let Some(fd) = &self.theirs else { return };
        let blocking = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap_or(0));
        let nonblocking = fcntl(fd, FcntlArg::F_SETFL(blocking | OFlag::O_NONBLOCK));
        while nonblocking.is_ok() && nix::unistd::write(fd, &1u64.to_ne_bytes()).is_ok() {}
        // The flags are those of the open file, which the back end shares: restore them.
        let _ = fcntl(fd, FcntlArg::F_SETFL(blocking));
    }

    /// Writes one interrupt ourselves, as the back end would (hostile tests fill the descriptor with it).
    ///
    /// # Errors
    /// The error of write(2).
    pub fn ring(&self) -> io::Result<()> {
        match &self.theirs {
            Some(fd) => File::from(fd.try_clone()?).write_all(&1u64.to_ne_bytes()),
            None => Ok(()),
        }
    }
}

fn count(bytes: &[u8; 512], length: usize) -> u64 {
    let number = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_ne_bytes);
    bytes[..length].chunks(8).map(number).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::{Deadline, readable};

    #[test]
    fn calls_of_every_kind_wake_the_guest_and_are_counted() {
        for kind in [CallKind::Eventfd, CallKind::SocketPair] {
            let call = Call::new(kind).unwrap();
            assert_eq!(call.drain(), 0, "{kind:?}");
            call.ring().unwrap();
            call.ring().unwrap();
            let fd = call.waitable().unwrap();
            assert!(readable(&fd, Deadline::after(Duration::from_secs(5))).unwrap());
            assert_eq!(call.drain(), 2, "{kind:?}");
            assert!(!readable(&fd, Deadline::after(Duration::ZERO)).unwrap());
        }
        assert!(Call::new(CallKind::None).unwrap().fd().is_none());
    }
}
