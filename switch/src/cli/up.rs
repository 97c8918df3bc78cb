//! `memlane up`: the daemon, from its start to a signal.

use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
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
    println!("memlane: network {} is up, {} ports, control at {}", config.name, config.ports.len(), config.control.display());
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
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
