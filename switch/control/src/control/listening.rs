//! The control socket: bound, handed to the next process, and made anew if its file is deleted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memlane_backends::vhost_user::access::Access;
use memlane_backends::vhost_user::socket::{self, Listener};
use tokio::net::UnixListener;

use super::error::ControlError;
use crate::folder;

/// Binds the control socket, replacing a stale one that has no listener any more. Its file exists until the [`Listener`] is
/// dropped.
///
/// # Errors
/// [`ControlError::Listen`].
pub fn listen(path: &Path) -> Result<(UnixListener, Listener), ControlError> {
    let failed = |cause| ControlError::Listen { path: path.into(), cause };
    folder::provide(path, false).map_err(failed)?;
    // In a folder of another user, that user could replace the socket.
    if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder::is_ours(folder)) {
        return Err(failed(folder::others()));
    }
    let listener = socket::bind(path, Access::PRIVATE).map_err(failed)?;
    listen_on(listener)
}

/// Listens at a bound control socket.
///
/// # Errors
/// [`ControlError::Listen`].
pub fn listen_on(listener: Listener) -> Result<(UnixListener, Listener), ControlError> {
    let failed = |cause| ControlError::Listen { path: listener.path().into(), cause };
    listener.socket().set_nonblocking(true).map_err(failed)?;
    let asynchronous = listener.socket().try_clone().and_then(UnixListener::from_std).map_err(failed)?;
    Ok((asynchronous, listener))
}

/// Interval at which the file of the control socket is looked for.
const LOOK: Duration = Duration::from_secs(1);

/// The file of the control socket. Without it no command finds the network, so a deleted one is made anew.
#[derive(Debug)]
pub struct ControlSocket(Mutex<Listener>);

impl ControlSocket {
    /// The bound socket `listener`.
    pub fn new(listener: Listener) -> Self {
        Self(Mutex::new(listener))
    }

    fn lock(&self) -> MutexGuard<'_, Listener> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of its descriptor, with device and inode of its file, for a takeover.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy(&self) -> io::Result<(OwnedFd, Option<(u64, u64)>)> {
        let listener = self.lock();
        Ok((listener.socket().as_fd().try_clone_to_owned()?, listener.file()))
    }

    /// Waits until its file is gone, and has made another one.
    pub(super) async fn made_anew(&self) -> UnixListener {
        let mut told = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(path) = self.lost() else { continue };
            match listen(&path) {
                Ok((listener, file)) => {
                    tracing::warn!(
                        target: "memlane::control::listening",
                        path = %path.display(), "the control socket was deleted, and is made anew"
                    );
                    *self.lock() = file;
                    return listener;
                }
                Err(error) if error.to_string() != told => {
                    told = error.to_string();
                    tracing::error!(
                        target: "memlane::control::listening",
                        "the control socket was deleted, and cannot be made anew: {told}"
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Where its file was, if that is gone.
    fn lost(&self) -> Option<PathBuf> {
        let listener = self.lock();
        let present = std::fs::symlink_metadata(listener.path()).ok().map(|file| (file.dev(), file.ino()));
        (present != listener.file()).then(|| listener.path().into())
    }
}
