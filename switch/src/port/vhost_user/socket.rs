//! Unix sockets at which nobody is made to wait: connect(2) and accept(2) wait as long as the other side pleases.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket at `path`, in place of one that nobody listens at any more; with the permissions `mode`, less the process's umask, from
/// its first moment.
///
/// # Errors
/// Somebody listens there, or something else is in the way.
pub fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() && is_left(path) => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "something is there and in use")),
        Err(_) => {}
    }
    let socket = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
    // The kernel makes the file with the mode that the socket has.
    socket.set_permissions(Permissions::from_mode(mode))?;
    let socket = Socket::from(OwnedFd::from(socket));
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}

/// Whether nobody listens at the socket `path`. Whose queue is full does.
fn is_left(path: &Path) -> bool {
    connect(path).is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
}

/// A connection with whoever listens at `path`.
///
/// # Errors
/// Nobody does, or too many wait to be accepted there.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

/// What a thread waits by that may be told to quit.
#[derive(Debug)]
pub(super) struct Waiter {
    bell: EventFd,
}

impl Waiter {
    /// One whose bell has not been rung.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { bell: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)? })
    }

    /// Ends all waiting for good.
    pub(super) fn ring(&self) {
        // Fails only when the counter is at its maximum, in which case it was rung already.
        let _ = self.bell.write(1);
    }

    /// Waits until a connection comes to `listener`, the bell rings, or `most` is over.
    pub(super) fn wait(&self, listener: Option<&UnixListener>, most: Option<Duration>) {
        let timeout = most.map_or(PollTimeout::NONE, |most| PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX));
        let mut files = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        files.extend(listener.map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
        // Interrupted is as good as woken: whoever waits looks.
        let _ = poll(&mut files, timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_its_permissions_from_its_first_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = bind(&path, 0o600).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_full_queue_is_somebody_who_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = bind(&path, 0o600).unwrap();
        let crowd: Vec<UnixStream> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(bind(&path, 0o600).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((listener, crowd));
        assert!(bind(&path, 0o600).is_ok());
    }
}
