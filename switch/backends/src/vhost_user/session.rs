//! Sessions of a vhost-user port: how its front ends are reached, and the start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::Pause;
use super::access::Access;
use super::server::Server;
use super::settings::DeviceSettings;
use super::socket::{self, Listener};
use crate::executor::Executor;
use crate::network::Network;
use crate::session::{Session, serve_all};
use crate::takeover::RestoredSession;

/// How the front end is reached.
#[derive(Debug)]
pub enum Endpoint {
    /// memlane listens and the front end connects.
    Listen(Arc<Listener>),
    /// The front end listens; memlane connects, and retries until it succeeds.
    Connect(PathBuf),
}

impl Endpoint {
    /// Listens at `path`, replacing a stale socket that has no listener any more; `access` says which users may connect.
    ///
    /// # Errors
    /// Another process listens there, or the path is another kind of file, or the access rights cannot be set.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Self> {
        let listener = socket::bind_kept(path, Access::PRIVATE)?;
        access.apply(&listener)?;
        Ok(Self::Listen(Arc::new(listener)))
    }

    /// The listening socket, for a takeover.
    pub fn listening(&self) -> Option<Arc<Listener>> {
        match self {
            Self::Listen(listener) => Some(Arc::clone(listener)),
            Self::Connect(_) => None,
        }
    }
}

/// Serves front ends at `endpoint`, one after the other, by `executor`; a takeover has the session stand still by the result.
///
/// # Errors
/// The kernel refuses a thread or descriptors.
pub fn run(
    executor: &Executor,
    network: Arc<Network>,
    settings: DeviceSettings,
    endpoint: Endpoint,
) -> io::Result<(Session, Arc<Pause>)> {
    run_restored(executor, (network, settings), endpoint, None)
}

/// Like [`run`]; begins with a session of another process of the network.
///
/// # Errors
/// The errors of [`run`].
pub fn run_restored(
    executor: &Executor,
    of_port: (Arc<Network>, DeviceSettings),
    endpoint: Endpoint,
    restored: Option<RestoredSession>,
) -> io::Result<(Session, Arc<Pause>)> {
    let (port, pause) = (Arc::clone(&of_port.1.port), Arc::<Pause>::default());
    // The first connection at its socket wakes a session that has nothing else to do.
    let waits = restored.is_none() && matches!(endpoint, Endpoint::Listen(_)) && port.ephemeral.due_in(Instant::now()).is_none();
    let session = Session::new(executor, &port, |context| {
        context.set_idle(restored.is_none());
        Ok(serve_all(Server::new(&context, of_port, endpoint, (Arc::clone(&pause), restored))?, context, None))
    })?;
    if !waits {
        session.notify();
    }
    Ok((session, pause))
}
