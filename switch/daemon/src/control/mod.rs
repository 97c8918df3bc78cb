//! The control interface: HTTP on a Unix socket that only its owner may use.
//!
//! 1. [`managed`]: the network, changed by one who asks at a time. [`reload`]: what makes it another. [`state`], [`state_file`]: what outlives it. [`vifs`]: ports that
//!    come with Xen guests.
//! 2. [`routes`]: what can be asked. [`api`]: how, and the OpenAPI document that says so. [`report`], [`problem`]: what is answered.
//! 3. [`metrics`]: the same numbers for Prometheus, also at a socket of their own ([`scrape`]).
//! 4. [`stream`]: answers that go on for as long as they are read: events, and frames ([`capture`]).
//! 5. [`server`]: the bounds of all that is asked. [`client`]: the other side, for the commands; [`reach`]: why it reaches nothing. [`running`]: which
//!    networks run.

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
    /// It cannot be made.
    #[error(
        "cannot listen for control at {path}: {cause}. Stop the network that runs there, or set another path with control = \"...\""
    )]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
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
    /// The socket of the metrics cannot be made.
    #[error(
        "cannot listen for scrapes of metrics at {place}: {cause}. End the process that listens there, or set another with metrics = \"...\""
    )]
    Metrics {
        /// Its path or address.
        place: String,
        /// What the kernel says.
        cause: io::Error,
    },
    /// Nothing answers there, or it may not be asked.
    #[error("no network answers at {path}: {cause}. {hint}{}", reach::remedy(path, cause))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        cause: io::Error,
        /// Sentences on networks of that name that run.
        hint: String,
    },
    /// It does not answer in time.
    #[error(
        "the network at {path} gives no answer within {seconds} s: it carries out a long change still, is stopped (SIGSTOP) or has no descriptors \
         left; look at its log, and ask `memlane doctor`"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long it was waited.
        seconds: u64,
    },
    /// It closes the connection before its answer is there.
    #[error("the network at {path} has ended before it answered; `memlane list` shows those that run")]
    Ended {
        /// The socket.
        path: PathBuf,
    },
    /// It answers something else.
    #[error("the network's answer makes no sense: {0}. Are both of the same version?")]
    Answer(String),
    /// It refuses.
    #[error("the network refuses: {0}")]
    Refused(Refusal),
    /// The kernel refuses something else.
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

/// Makes the control socket, in place of one that nobody listens at any more. Its file is there until the [`Listener`] is dropped.
///
/// # Errors
/// [`ControlError::Listen`].
pub fn listen(path: &Path) -> Result<(UnixListener, Listener), ControlError> {
    let failed = |cause| ControlError::Listen { path: path.into(), cause };
    folder::provide(path, false).map_err(failed)?;
    // Another user could put a socket of its own in the place of ours.
    if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder::is_ours(folder)) {
        return Err(failed(folder::others()));
    }
    let listener = socket::bind(path, Access::PRIVATE).map_err(failed)?;
    listener.socket().set_nonblocking(true).map_err(failed)?;
    let asynchronous = listener.socket().try_clone().and_then(UnixListener::from_std).map_err(failed)?;
    Ok((asynchronous, listener))
}

/// Answers at `listener` until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(listener: UnixListener, managed: &Arc<Managed>) -> io::Result<()> {
    let router = routes::api().router(Arc::clone(managed), "there is nothing at this path: see /v1/openapi.json");
    server::serve(&listener, router, server::CONNECTIONS).await
}
