//! The daemon behind the control interface, until the network ends.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::http::StatusCode;

use super::problem::Refusal;
use crate::config::PortConfig;
use crate::daemon::{Daemon, Prepared};

/// A handle to the daemon that lets the network end between two requests. `None` once the network ends, which waits for pending
/// requests, but not for ports that are still opening their resources, see [`Daemon::prepare`].
#[derive(Debug)]
pub(super) struct DaemonHandle(RwLock<Option<Arc<Daemon>>>);

impl DaemonHandle {
    pub(super) fn new(daemon: Daemon) -> Self {
        Self(RwLock::new(Some(Arc::new(daemon))))
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<Arc<Daemon>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the network; later requests are refused.
    pub(super) fn stop(&self) {
        let daemon = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(daemon) = daemon {
            daemon.stop();
        }
    }

    /// Runs `question` on the daemon. If a fatal error ends the network meanwhile, its result may be wrong: the error is returned
    /// instead.
    pub(super) fn ask<A>(&self, question: impl FnOnce(&Daemon) -> A) -> Result<A, Refusal> {
        let daemon = self.read();
        let daemon = daemon.as_deref().ok_or_else(Refusal::ending)?;
        let answer = question(daemon);
        match daemon.network().fatal().cause() {
            Some(cause) => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, cause)),
            None => Ok(answer),
        }
    }

    /// The fatal error that ended the network, if there is one.
    pub(super) fn fatal(&self) -> Option<String> {
        let daemon = self.read();
        daemon.as_deref()?.network().fatal().cause().map(str::to_owned)
    }

    /// Has `callback` called on a [`Self::fatal`] error.
    pub(super) fn notify_if_fatal(&self, callback: impl FnOnce() + Send + 'static) {
        let daemon = self.read();
        if let Some(daemon) = daemon.as_deref() {
            daemon.network().fatal().notify(callback);
        }
    }

    /// Attaches `port`; the end of the network does not wait while it opens its resources.
    pub(super) fn attach(&self, port: &PortConfig) -> Result<(), Refusal> {
        let prepared = self.prepare(port)?;
        Ok(self.ask(|daemon| daemon.attach_prepared(port, prepared))??)
    }

    /// Opens the resources that `port` needs. The end of the network does not wait for this.
    pub(super) fn prepare(&self, port: &PortConfig) -> Result<Prepared, Refusal> {
        let daemon = self.read().clone();
        Ok(daemon.ok_or_else(Refusal::ending)?.prepare(port)?)
    }
}
