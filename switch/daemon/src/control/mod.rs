//! The control interface: HTTP on a Unix socket that only its owner may use.
//!
//! 1. [`managed`]: the network with changes at run time, one after the other; [`daemon_handle`]: its daemon. [`reload`]: the change
//!    to another configuration. [`state`], [`state_file`]: the state file, which survives a restart; [`detach_notes`]: changes
//!    of it while the network does not run. [`vifs`]: ports for new Xen
//!    vifs. [`leases`]: leased addresses for the state file.
//! 2. [`routes`]: the requests. [`api`]: their handlers, and the OpenAPI document. [`report`], [`blocked`], [`identity`], [`why`] ([`packet`]),
//!    [`causes`], [`problem`]: the responses.
//! 3. [`metrics`]: the same numbers for Prometheus, also at a socket of their own ([`scrape`]). [`health`]: whether workers answer.
//!    [`author`]: the process that asks for a change, for events.
//! 4. [`stream`]: streaming responses: events, and frames ([`capture`]).
//! 5. [`web`]: the web page, at an address of its own.
//! 6. [`server`]: limits of connections and requests. [`client`]: the client of the commands; [`reach`], [`error`]: why it cannot
//!    connect. [`running`]: discovery of running networks.
//!
//! Imports go one way: routes import the network, which imports no route. Only client and discovery import each other.

pub mod api;
pub mod author;
pub mod blocked;
pub mod capture;
pub mod causes;
pub mod client;
mod daemon_handle;
pub mod detach_notes;
pub mod error;
pub mod health;
pub mod identity;
pub mod leases;
pub mod managed;
pub mod metrics;
pub mod packet;
pub mod problem;
mod reach;
pub mod reload;
pub mod report;
pub mod routes;
pub mod running;
pub mod scrape;
pub mod server;
pub mod state;
pub mod state_file;
pub mod stream;
pub mod vifs;
pub mod web;
pub mod why;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;

use crate::folder;
pub use client::Client;
pub use error::ControlError;
pub use managed::{Managed, Origin, TakeoverResources};
use memlane_backends::vhost_user::access::Access;
use memlane_backends::vhost_user::socket::{self, Listener};
pub use problem::{Problem, Refusal};
pub use report::{PortReport, PortView, Report, SegmentView};
pub use routes::document;

/// Refuses a control socket at which a network listens already, or which a running network has lost.
///
/// # Errors
/// [`ControlError::Taken`], [`ControlError::Lost`].
pub fn check_free(path: &Path) -> Result<(), ControlError> {
    if let Some(holder) = running::told(path) {
        return Err(ControlError::Taken { path: path.into(), holder });
    }
    running::holder(path, None).map_or(Ok(()), |holder| Err(ControlError::Lost { path: path.into(), holder }))
}

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

/// Serves `listener` until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(listener: UnixListener, managed: &Arc<Managed>) -> io::Result<()> {
    let router = routes::api().router(Arc::clone(managed), "there is no such path: see /v1/openapi.json");
    server::serve(&listener, router, server::CONNECTIONS).await
}

/// As [`serve`], at the socket whose file is that of `socket`, and at the next one whenever that file is gone.
///
/// # Errors
/// As there.
pub async fn serve_at(mut listener: UnixListener, socket: &ControlSocket, managed: &Arc<Managed>) -> io::Result<()> {
    loop {
        tokio::select! {
            result = serve(listener, managed) => return result,
            // Connections go on, each by a task of its own.
            next = socket.made_anew() => listener = next,
        }
    }
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

    /// A copy of its descriptor, with device and inode of its file, for a process that takes the network over.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy(&self) -> io::Result<(OwnedFd, Option<(u64, u64)>)> {
        let listener = self.lock();
        Ok((listener.socket().as_fd().try_clone_to_owned()?, listener.file()))
    }

    /// Waits until its file is gone, and has made another one.
    async fn made_anew(&self) -> UnixListener {
        let mut told = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(path) = self.lost() else { continue };
            match listen(&path) {
                Ok((listener, file)) => {
                    tracing::warn!(path = %path.display(), "the control socket was deleted, and is made anew");
                    *self.lock() = file;
                    return listener;
                }
                Err(error) if error.to_string() != told => {
                    told = error.to_string();
                    tracing::error!("the control socket was deleted, and cannot be made anew: {told}");
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
