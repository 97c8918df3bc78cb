//! `memlane up`: the daemon, from its start to a signal.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::net::DEFAULT_NAME;
use super::service::ServiceManager;
use super::{Failure, output};
use crate::config::{Config, Mistakes, runtime_folder};
use crate::control::reload::ReloadOptions;
use crate::control::running::Record;
use crate::control::scrape::{self, Scrapes};
use crate::control::server::THREADS;
use crate::control::{self, Managed, Origin};
use crate::descriptors;

/// Timeout for pending control requests at the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Timeout for the end after a fatal error: sessions may take two seconds, and pending control requests two more.
const LATEST_END: Duration = Duration::from_secs(6);

/// Arguments of `memlane up`.
#[derive(Debug, Args)]
pub(super) struct Up {
    /// Path of the network's file; without one, the network has no ports until some are attached.
    net: Option<PathBuf>,
    /// Name of a network without a file, by default "memlane".
    #[arg(long, conflicts_with = "net")]
    name: Option<String>,
    /// State file: keeps ports attached, detached and changed at run time, and restores them at the next start.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl Up {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.run_and(|_| {})
    }

    /// As [`Self::run`]; `started` is called once the network is up.
    fn run_and(self, started: impl FnOnce(&Arc<Managed>)) -> Result<(), Failure> {
        let config = self.config()?;
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(Failure::running);
        let file = self.net.map(absolute).transpose()?;
        let folder = file.as_deref().and_then(std::path::Path::parent).map_or_else(runtime_folder, PathBuf::from);
        let origin = Origin { file, folder, state: self.state.map(absolute).transpose()? };
        // Checked first: later, a second start would be reported as a port's socket in use.
        control::check_free(&config.control_socket(origin.file.as_deref())).map_err(Failure::running)?;
        log_to_stderr();
        if let Err(cause) = descriptors::raise_limit() {
            tracing::warn!(%cause, "cannot raise the soft limit of open files, so it stays as it is");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build();
        let runtime = runtime.map_err(Failure::running)?;
        let result = runtime.block_on(serve(config, origin, started));
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

async fn serve(config: Config, origin: Origin, started: impl FnOnce(&Arc<Managed>)) -> Result<(), Failure> {
    // Signal handlers are installed before sockets and devices are created, which the default action of a signal would leave
    // behind.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::running)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::running)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(Failure::running)?;
    let (name, takes_vifs, file) = (config.name.clone(), config.xen_vifs, origin.file.clone());
    let (socket, metrics) = (config.control_socket(file.as_deref()), config.metrics.clone());
    let managed = Arc::new(Managed::start(config, origin).map_err(Failure::running)?);
    if takes_vifs && let Err(refusal) = control::vifs::take(&managed) {
        managed.stop();
        return Err(Failure::running(refusal));
    }
    let listening = control::listen(&socket).and_then(|control| Ok((control, metrics.as_ref().map(scrape::listen).transpose()?)));
    let ((listener, socket_file), scrapes) = match listening {
        Ok(listening) => listening,
        Err(error) => {
            managed.stop();
            return Err(Failure::running(error));
        }
    };
    let _record = Record::make(&socket, &name, file.as_deref()).unwrap_or_else(|error| {
        tracing::warn!(
            "cannot link the control socket into the run-time folder, so `memlane list` will not show this network: {error}"
        );
        None
    });
    let ports = managed.config().map_err(Failure::running)?.ports.len();
    let up = format!("memlane: network {name} is up, {ports} ports, control at {}\n", socket.display());
    if let Err(Failure::Running(cause)) = output::print(&up) {
        tracing::warn!(%cause, "the network is up");
    }
    let mut serving = std::pin::pin!(answer(listener, scrapes.as_ref(), &managed));
    let manager = ServiceManager::of_this_process();
    manager.ready(&managed);
    let over = fatal_bell(&managed);
    started(&managed);
    let result = loop {
        tokio::select! {
            result = &mut serving => break result.map_err(Failure::running),
            () = over.notified() => break Err(end_soon(&managed)),
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            _ = hang_up.recv() => {
                let (managed, manager) = (Arc::clone(&managed), manager.clone());
                tokio::task::spawn_blocking(move || {
                    manager.reloading();
                    reload(&managed);
                    manager.ready(&managed);
                });
            }
        }
    };
    manager.stopping();
    managed.stop();
    drop(socket_file);
    result
}

/// Serves the control socket, and that of the metrics if there is one, until cancelled.
async fn answer(control: UnixListener, scrapes: Option<&Scrapes>, managed: &Arc<Managed>) -> std::io::Result<()> {
    match scrapes {
        Some(scrapes) => tokio::try_join!(control::serve(control, managed), scrape::serve(scrapes, managed)).map(|((), ())| ()),
        None => control::serve(control, managed).await,
    }
}

/// Notified on a fatal error of the network.
fn fatal_bell(managed: &Managed) -> Arc<Notify> {
    let bell = Arc::new(Notify::new());
    let rung = Arc::clone(&bell);
    managed.ring_if_fatal(move || rung.notify_one());
    bell
}

/// A fatal error: the process ends within the timeout, however long an orderly end takes, so that a service manager restarts it.
fn end_soon(managed: &Managed) -> Failure {
    let cause = managed.fatal().unwrap_or_default();
    let line = format!("memlane: {cause}");
    let late = std::thread::Builder::new().name("end".into()).spawn(move || {
        std::thread::sleep(LATEST_END);
        let _ = writeln!(std::io::stderr(), "{line}");
        std::process::exit(1);
    });
    if late.is_err() {
        tracing::error!("{cause}");
        std::process::exit(1);
    }
    Failure::running(cause)
}

/// Reads the network's file again, on SIGHUP.
fn reload(managed: &Managed) {
    match managed.reload_from(None, ReloadOptions::default()) {
        Ok(done) => {
            let (added, removed, changed) = (done.added.len(), done.removed.len(), done.changed.len());
            tracing::info!(added, removed, changed, untouched = done.untouched.len(), "the file was read again and applied");
            done.failed.iter().for_each(|failed| tracing::error!(port = %failed.name, "{}", failed.error));
        }
        Err(refusal) => tracing::error!("the file was not applied: {refusal}"),
    }
}

fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("MEMLANE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !plain)
        // Otherwise it would report a failure to write the log to standard error, which is that log, and end the thread.
        .log_internal_errors(false);
    match std::env::var_os("MEMLANE_LOG_FORMAT").is_some_and(|format| format == "json") {
        true => subscriber.json().flatten_event(true).init(),
        false => subscriber.init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const INSIDE: &str = "MEMLANE_TEST_FATAL";

    /// Runs the network of `file`; one of its workers panics once it is up.
    fn run_and_panic(file: PathBuf) -> ! {
        let up = Up { net: Some(file), name: None, state: None };
        let result = up.run_and(|managed| {
            let managed = Arc::clone(managed);
            std::thread::spawn(move || {
                let answer = managed.ask(|daemon| daemon.network().order(1, |_| panic!("on purpose")).recv());
                // Requests must fail: a success would be a dead network's reply.
                assert!(answer.is_err_and(|refusal| refusal.to_string().starts_with("worker 1 failed: on purpose at ")));
            });
        });
        std::process::exit(result.map_or_else(super::super::tell, |()| 0).into());
    }

    #[test]
    fn a_worker_that_panics_ends_the_process_with_one_line_and_an_error() {
        if let Some(file) = std::env::var_os(INSIDE) {
            run_and_panic(file.into());
        }
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("fails.toml"), folder.path().join("a.sock"));
        let (control, port) = (folder.path().join("control.sock"), socket.display());
        let text = format!("workers = 2\ncontrol = {control:?}\n[[port]]\nname = \"a\"\nvhost-user = \"{port}\"\n");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "cli::up::tests::a_worker_that_panics_ends_the_process_with_one_line_and_an_error";
        command.args(["--exact", name, "--nocapture"]).env(INSIDE, &file).env_remove("RUST_BACKTRACE");
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.starts_with("memlane: worker 1 failed: on purpose at ") && told.lines().count() == 1, "{told}");
        assert!(!socket.exists() && !control.exists(), "it ended in order");
    }
}
