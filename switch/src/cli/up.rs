//! `memlane up`: the daemon, from its start to a signal.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::net::DEFAULT_NAME;
use super::{Failure, output};
use crate::config::{Config, Mistakes, runtime_folder};
use crate::control::reload::ReloadOptions;
use crate::control::running::Record;
use crate::control::server::THREADS;
use crate::control::{self, Managed, Origin};
use crate::descriptors;

/// Longest wait at the end for what is still asked of the network.
const FAREWELL: Duration = Duration::from_secs(2);

/// Arguments of `memlane up`.
#[derive(Debug, Args)]
pub(super) struct Up {
    /// The network's file; without one, the network has no ports until some are attached.
    net: Option<PathBuf>,
    /// Name of a network without a file, by default "memlane".
    #[arg(long, conflicts_with = "net")]
    name: Option<String>,
    /// Keep in this file what is attached, detached and changed while the network runs, so that it comes back at the next start.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl Up {
    pub(super) fn run(self) -> Result<(), Failure> {
        let config = self.config()?;
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(Failure::running);
        let file = self.net.map(absolute).transpose()?;
        let folder = file.as_deref().and_then(std::path::Path::parent).map_or_else(runtime_folder, PathBuf::from);
        let origin = Origin { file, folder, state: self.state.map(absolute).transpose()? };
        // Before anything is made: later it would be told as a port's socket that is in use.
        control::check_free(&config.control_socket(origin.file.as_deref())).map_err(Failure::running)?;
        log_to_stderr();
        if let Err(cause) = descriptors::raise_limit() {
            tracing::warn!(%cause, "the soft limit of open files stays as it is");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build();
        let runtime = runtime.map_err(Failure::running)?;
        let result = runtime.block_on(serve(config, origin));
        runtime.shutdown_timeout(FAREWELL);
        result
    }

    fn config(&self) -> Result<Config, Mistakes> {
        match &self.net {
            Some(file) => Config::load(file),
            None => Config::named(self.name.as_deref().unwrap_or(DEFAULT_NAME)),
        }
    }
}

async fn serve(config: Config, origin: Origin) -> Result<(), Failure> {
    // Signals are caught before anything is made that a signal's default action would leave behind.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::running)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::running)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(Failure::running)?;
    let (name, takes_vifs, file) = (config.name.clone(), config.xen_vifs, origin.file.clone());
    let socket = config.control_socket(file.as_deref());
    let managed = Arc::new(Managed::start(config, origin).map_err(Failure::running)?);
    if takes_vifs && let Err(refusal) = control::vifs::take(&managed) {
        managed.stop();
        return Err(Failure::running(refusal));
    }
    let listener = match control::listen(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            managed.stop();
            return Err(Failure::running(error));
        }
    };
    let _record = Record::make(&socket, &name, file.as_deref()).unwrap_or_else(|error| {
        tracing::warn!("`memlane list` will not find this network: {error}");
        None
    });
    let ports = managed.config().map_err(Failure::running)?.ports.len();
    let up = format!("memlane: network {name} is up, {ports} ports, control at {}\n", socket.display());
    if let Err(Failure::Running(cause)) = output::print(&up) {
        tracing::warn!(%cause, "the network is up");
    }
    let mut serving = std::pin::pin!(control::serve(listener, &managed));
    let result = loop {
        tokio::select! {
            result = &mut serving => break result.map_err(Failure::running),
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            _ = hang_up.recv() => {
                let managed = Arc::clone(&managed);
                tokio::task::spawn_blocking(move || reload(&managed));
            }
        }
    };
    managed.stop();
    let _ = std::fs::remove_file(&socket);
    result
}

/// Reads the network's file again, as SIGHUP asks.
fn reload(managed: &Managed) {
    match managed.reload_from(None, ReloadOptions::default()) {
        Ok(done) => {
            let (added, removed, changed) = (done.added.len(), done.removed.len(), done.changed.len());
            tracing::info!(added, removed, changed, untouched = done.untouched.len(), "the file was read again");
            done.failed.iter().for_each(|failed| tracing::error!(port = %failed.name, "{}", failed.error));
        }
        Err(refusal) => tracing::error!("the file was not taken over: {refusal}"),
    }
}

fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("MEMLANE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !plain)
        // It would complain of a log that cannot be written on standard error, which is that log, and end the thread.
        .log_internal_errors(false)
        .init();
}
