//! The control interface: HTTP on a Unix socket that only its owner may use.
//!
//! 1. [`managed`]: the network with changes at run time, one after the other. [`reload`]: the change to another configuration.
//!    [`state`], [`state_file`]: the state file, which survives a restart. [`vifs`]: ports for new Xen vifs.
//! 2. [`routes`]: the requests. [`api`]: their handlers, and the OpenAPI document. [`report`], [`problem`]: the responses.
//! 3. [`metrics`]: the same numbers for Prometheus, also at a socket of their own ([`scrape`]).
//! 4. [`stream`]: streaming responses: events, and frames ([`capture`]).
//! 5. [`server`]: limits of connections and requests. [`client`]: the client of the commands; [`reach`]: why it cannot connect.
//!    [`running`]: discovery of running networks.

pub mod api;
pub mod capture;
pub mod client;
pub mod managed;
pub mod metrics;
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

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::net::UnixListener;

use crate::folder;
pub use client::Client;
pub use managed::{Managed, Origin};
use memlane_backends::vhost_user::access::Access;
use memlane_backends::vhost_user::socket::{self, Listener};
pub use problem::{Problem, Refusal};
pub use report::{PortReport, PortView, Report};
pub use routes::{Change, document};

/// Why the control socket cannot be served or reached.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The socket cannot be bound.
    #[error(
        "cannot listen for control at {path}: {cause}. Stop the network that runs there, or set another path with control = \"...\""
    )]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// Another network listens there.
    #[error(
        "cannot listen for control at {path}: {holder} listens there. End it with `memlane down --control {path}`, or set another path with \
         control = \"...\""
    )]
    Taken {
        /// The socket.
        path: PathBuf,
        /// The network or program.
        holder: String,
    },
    /// The socket of the metrics cannot be bound.
    #[error(
        "cannot listen for scrapes of metrics at {place}: {cause}. End the process that listens there, or set another with metrics = \"...\""
    )]
    Metrics {
        /// Its path or address.
        place: String,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// No process listens there, or access is denied.
    #[error("no network answers at {path}: {cause}. {hint}{}", reach::remedy(path, cause))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
        /// Hints to running networks of that name.
        hint: String,
    },
    /// No response within the timeout.
    #[error(
        "the network at {path} gives no answer within {seconds} s: it carries out a long change still, is stopped (SIGSTOP) or has no descriptors \
         left; look at its log, and ask `memlane doctor`"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The timeout.
        seconds: u64,
    },
    /// The connection was closed before the response.
    #[error("the network at {path} has ended before it answered; `memlane list` shows those that run")]
    Ended {
        /// The socket.
        path: PathBuf,
    },
    /// The response cannot be parsed.
    #[error("the network's answer makes no sense: {0}. Are both of the same version?")]
    Answer(String),
    /// The network refused the request.
    #[error("the network refuses: {0}")]
    Refused(Refusal),
    /// Another error of the kernel.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Refuses a control socket at which a network listens already.
///
/// # Errors
/// [`ControlError::Taken`].
pub fn check_free(path: &Path) -> Result<(), ControlError> {
    running::told(path).map_or(Ok(()), |holder| Err(ControlError::Taken { path: path.into(), holder }))
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
    listener.socket().set_nonblocking(true).map_err(failed)?;
    let asynchronous = listener.socket().try_clone().and_then(UnixListener::from_std).map_err(failed)?;
    Ok((asynchronous, listener))
}

/// Serves `listener` until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(listener: UnixListener, managed: &Arc<Managed>) -> io::Result<()> {
    let router = routes::api().router(Arc::clone(managed), "there is nothing at this path: see /v1/openapi.json");
    server::serve(&listener, router, server::CONNECTIONS).await
}
