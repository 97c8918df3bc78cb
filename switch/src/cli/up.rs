//! `memlane up`: the daemon, from its start to a signal.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, output};
use crate::config::Config;
use crate::control;
use crate::daemon::Daemon;

/// Arguments of `memlane up`.
#[derive(Debug, Args)]
pub(super) struct Up {
    /// The network's file.
    net: PathBuf,
}

impl Up {
    pub(super) fn run(self) -> Result<(), Failure> {
        let config = Config::load(&self.net)?;
        log_to_stderr();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::running)?;
        runtime.block_on(serve(config))
    }
}

async fn serve(config: Config) -> Result<(), Failure> {
    // Signals are caught before anything is made that a signal's default action would leave behind.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::running)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::running)?;
    let daemon = Daemon::start(&config).map_err(Failure::running)?;
    let listener = match control::listen(&config.control) {
        Ok(listener) => listener,
        Err(error) => {
            daemon.stop();
            return Err(Failure::running(error));
        }
    };
    let up =
        format!("memlane: network {} is up, {} ports, control at {}\n", config.name, config.ports.len(), config.control.display());
    if let Err(Failure::Running(cause)) = output::print(&up) {
        tracing::warn!(%cause, "the network is up");
    }
    tokio::select! {
        result = control::serve(listener, &config, daemon.network()) => result.map_err(Failure::running)?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    daemon.stop();
    let _ = std::fs::remove_file(&config.control);
    Ok(())
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
