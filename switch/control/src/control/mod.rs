//! The control interface: HTTP on a Unix socket that only its owner may use.
//!
//! 1. [`managed`]: the network with changes at run time, one after the other; [`daemon_handle`]: its daemon. [`reload`]: the change
//!    to another configuration. [`state`], [`state_file`]: the state file, which survives a restart; [`detach_notes`]: changes
//!    of it while the network does not run. [`vifs`]: ports for new Xen
//!    vifs. [`leases`]: leased addresses for the state file.
//! 2. [`routes`]: the requests. [`api`]: their handlers, and the OpenAPI document. [`report`], [`blocked`], [`identity`], [`why`] ([`packet`]),
//!    [`causes`], [`frozen`], [`problem`]: the responses.
//! 3. [`metrics`]: the same numbers for Prometheus, also at a socket of their own ([`scrape`]). [`health`]: whether workers answer.
//!    [`author`]: the process that asks for a change, for events.
//! 4. [`stream`]: streaming responses: events, frames ([`capture`]), and verdicts ([`record`]).
//! 5. [`web`]: the web page, at an address of its own.
//! 6. [`server`]: limits of connections and requests. [`listening`]: the control socket. [`client`]: the client of the commands; [`reach`], [`error`]: why it cannot
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
pub mod ephemeral;
pub mod error;
pub mod frozen;
pub mod health;
pub mod identity;
pub mod leases;
pub mod listening;
pub mod managed;
pub mod metrics;
pub mod packet;
pub mod problem;
mod reach;
pub mod record;
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
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixListener;

pub use client::Client;
pub use error::ControlError;
pub use listening::{ControlSocket, listen, listen_on};
pub use managed::{Managed, Origin, TakeoverResources};
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

/// Serves `listener` until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(listener: UnixListener, managed: &Arc<Managed>) -> io::Result<()> {
    let router = routes::api().router(Arc::clone(managed), "there is no such path: see /v1/openapi.json");
    server::serve(&listener, router, server::CONNECTIONS).await
}

/// Like [`serve`], at the socket of the file `socket`, and at the next one whenever that file is gone.
///
/// # Errors
/// The errors of [`serve`].
pub async fn serve_at(mut listener: UnixListener, socket: &ControlSocket, managed: &Arc<Managed>) -> io::Result<()> {
    loop {
        tokio::select! {
            result = serve(listener, managed) => return result,
            // Connections go on, each by a task of its own.
            next = socket.made_anew() => listener = next,
        }
    }
}
