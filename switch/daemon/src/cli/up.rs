//! `memlane up`: the daemon, from its start to a signal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use memlane_backends::takeover::ReceivedFiles;
use memlane_backends::vhost_user::kept;
use memlane_backends::vhost_user::socket;
use memlane_confine::system::outlive_full_files;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::net::DEFAULT_NAME;
use super::service::{ServiceManager, passed_socket};
use super::successor::{Order, Starter};
use super::{Failure, log, output, signals};
use crate::author;
use crate::config::metrics::MetricsListener;
use crate::config::web::WebListener;
use crate::config::{Config, Mistakes, default_control, default_state, own_folder, runtime_folder};
use crate::control::author::of_this_process;
use crate::control::identity::NetFile;
use crate::control::record;
use crate::control::reload::ReloadOptions;
use crate::control::running::{self, Recorded};
use crate::control::scrape::{self, Scrapes};
use crate::control::server::THREADS;
use crate::control::web::{self, Web};
use crate::control::{self, Client, ControlSocket, Managed, Origin, TakeoverResources, detach_notes};
use crate::daemon::takeover;
use crate::daemon::takeover::give::{Guard, KEY_HEADER, Key};
use crate::daemon::takeover::take::{TakenSockets, Takeover, restored_listener};
use crate::description::SavedListener;
use crate::descriptors;
use crate::folder;
use crate::helper::{Helper, Served};
use crate::journal::{NetworkEvent, log_change, note};
use crate::quantity::counted;
use crate::sandbox::Sandbox;
use crate::snapshot::SnapshotFile;

/// Timeout for pending control requests at the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Time for recordings to be written after a fatal error.
const RECORDS: Duration = Duration::from_secs(1);
/// Timeout for the end after a fatal error: sessions may take two seconds, and pending control requests two more.
const LATEST_END: Duration = Duration::from_secs(6);

/// Arguments of `memlane up`.
#[derive(Debug, Default, Args)]
pub(super) struct Up {
    /// Path of the network's file; without one, the network has no ports until some are attached.
    net: Option<PathBuf>,
    /// Name of a network without a file, by default "memlane".
    #[arg(long, conflicts_with = "net")]
    name: Option<String>,
    /// Restore the network of this snapshot, which `memlane snapshot` wrote, frozen until its guests run. Ports have sockets NAME.PORT.sock beside
    /// the control socket; ports and uplinks that lead out are not there.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["net", "name", "state"], requires = "called")]
    from: Option<PathBuf>,
    /// Name of the restored network.
    #[arg(long = "as", value_name = "NAME", requires = "from")]
    called: Option<String>,
    /// State file: keeps ports attached, detached and changed at run time, and leases, and restores them at the next start. By default a
    /// file in $XDG_STATE_HOME/memlane, for root in /var/lib/memlane.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Keep nothing over a restart, and restore nothing.
    #[arg(long, conflicts_with = "state")]
    no_state: bool,
    /// Address of the web page, as 127.0.0.1:9892; the key web of the file else.
    #[arg(long, value_name = "ADDRESS:PORT")]
    web: Option<String>,
    /// File with the token that the web page asks for; without one, the page is read-only.
    #[arg(long, value_name = "FILE", requires = "web")]
    web_token: Option<PathBuf>,
    /// Take over the running network from the process that serves it, without a gap; that process ends. The ports stay as they are:
    /// `memlane reload` then applies changes of the file.
    #[arg(long)]
    takeover: bool,
    /// Whether the process confines itself to the files, system calls and capabilities that its network needs. Needed as "none" for
    /// ports attached later that the network's file does not announce by its key `sandbox`.
    #[arg(long, value_enum, default_value_t)]
    sandbox: Confined,
}

/// Whether there is a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Confined {
    /// Landlock, seccomp, no new privileges, capabilities dropped. Not with passt ports that the file does not have.
    #[default]
    On,
    /// The process keeps all its rights.
    None,
}

impl Up {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.run_and(|_| {})
    }

    /// Like [`Self::run`]; `started` is called once the network is up.
    fn run_and(self, started: impl FnOnce(&Arc<Managed>)) -> Result<(), Failure> {
        outlive_full_files();
        let snapshot = self.from.as_deref().map(SnapshotFile::load).transpose().map_err(Failure::running)?;
        let config = self.config(snapshot.as_ref())?;
        let web = self.web(&config)?;
        log::start(&config.name);
        let origin = self.origin(&config, snapshot)?;
        // Checked first: later, a second start would be reported as a port's socket in use.
        let control = config.control_socket(origin.file.as_deref());
        if !self.takeover {
            control::check_free(&control).map_err(Failure::running)?;
            carry_out_notes(&[&control, &default_control(&config.name, None)], origin.state.as_deref());
        }
        let passed = passed_socket(METRICS).map(std::net::TcpListener::from);
        ServiceManager::of_this_process().keep_sockets();
        // All before the first thread: processes keep the rights of this one, and threads inherit the sandbox.
        let key = Self::key(&config, &origin);
        let confined = self.sandbox == Confined::On && Sandbox::fits(&config);
        let served = Served { file: origin.file.as_deref(), name: &config.name, state: origin.state.as_deref() };
        if confined || Helper::is_needed(&config) {
            let refused = |cause| Failure::running(format!("the helper outside of the sandbox cannot be started: {cause}"));
            super::helper::command(served).and_then(|program| Helper::provide(&config, program)).map_err(refused)?;
        }
        let starter = Starter::fork()
            .inspect_err(|cause| tracing::warn!(%cause, "no other process can take the network over, on SIGUSR2 or by command"));
        if self.sandbox == Confined::None {
            tracing::warn!("no sandbox, by --sandbox none: a guest that took a worker over would have all rights of this user");
        }
        let helper = Helper::get().filter(|_| confined);
        // The sandbox allows no further one.
        crate::memory::holes::prepare();
        let sandbox = helper.map(|helper| Sandbox::enter(&config, served.file, web.as_ref(), helper));
        if let Err(cause) = descriptors::raise_limit() {
            tracing::warn!(%cause, "cannot raise the soft limit of open files, so it stays as it is");
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(THREADS).thread_name("command").build();
        let runtime = runtime.map_err(Failure::running)?;
        let takeover = if self.takeover { Some(begin_takeover(&control, &origin, key.as_ref())?) } else { None };
        let result = runtime.block_on(serve(
            config,
            origin,
            (web, passed, takeover),
            Confinement { starter: starter.ok(), sandbox, key },
            started,
        ));
        runtime.shutdown_timeout(FAREWELL);
        // The last line of the log says why the network has ended; an error is printed by the caller.
        result.map(|end| log_change(&end))
    }

    /// The origin of the network's ports: its file, its state file, and a snapshot.
    fn origin(&self, config: &Config, snapshot: Option<SnapshotFile>) -> Result<Origin, Failure> {
        let absolute = |path: &Option<PathBuf>| path.as_deref().map(std::path::absolute).transpose().map_err(Failure::running);
        let (file, named) = (absolute(&self.net)?, absolute(&self.state)?);
        let folder = file.as_deref().and_then(Path::parent).map_or_else(runtime_folder, PathBuf::from);
        // A copy begins as the snapshot says, each time.
        let state_is_own = named.is_none() && !self.no_state && snapshot.is_none();
        let state = if state_is_own { own_state(&config.name, file.as_deref()) } else { named };
        let snapshot = snapshot.filter(|_| !self.takeover).map(Arc::new);
        Ok(Origin { file, folder, state, state_is_own, snapshot })
    }

    /// The key of a takeover: that of the process which serves the network, or a new one.
    fn key(config: &Config, origin: &Origin) -> Option<Key> {
        let folder = own_folder(&config.name, origin.file.as_deref());
        let made = Key::of(&folder);
        made.inspect_err(|cause| {
            let folder = folder.display();
            tracing::warn!("no key in {folder}, so no other process can take this network over: {cause}");
        })
        .ok()
    }

    /// The endpoint of the web page: as the options say, or else as in the file.
    fn web(&self, config: &Config) -> Result<Option<WebListener>, Failure> {
        let Some(text) = &self.web else { return Ok(config.web.clone()) };
        WebListener::parse(text, self.web_token.as_deref(), Path::new("")).map(Some).map_err(Failure::Configuration)
    }

    fn config(&self, snapshot: Option<&SnapshotFile>) -> Result<Config, Mistakes> {
        match (snapshot, &self.net) {
            (Some(file), _) => file.snapshot.config(self.called.as_deref().unwrap_or(DEFAULT_NAME)),
            (None, Some(file)) => Config::load(file),
            (None, None) => Config::named(self.name.as_deref().unwrap_or(DEFAULT_NAME)),
        }
    }
}

/// The state file of a network for which none is named: in the user's folder for state, which is made; never beside the network's file.
fn own_state(name: &str, file: Option<&Path>) -> Option<PathBuf> {
    let state = default_state(name, file)?;
    let folder = state.parent()?;
    let made = folder::make(folder);
    let beside = file.and_then(Path::parent).is_some_and(|own| folder::is_same(own, folder));
    match made {
        Ok(()) if !beside => return Some(state),
        Ok(()) => tracing::warn!(
            "changes and leases end with this process, for its state may not lie beside the network's file: name one by --state"
        ),
        Err(cause) => {
            tracing::warn!(folder = %folder.display(), %cause, "changes and leases end with this process: name a file by --state")
        }
    }
    None
}

/// Detaches ports as was asked for while the network did not run, by its control socket or by its name.
fn carry_out_notes(controls: &[&Path], state: Option<&Path>) {
    for control in controls {
        if let Err(cause) = detach_notes::carry_out(control, state) {
            tracing::warn!(%cause, "ports that were to be detached while the network did not run come back");
        }
    }
}

/// Asks the process that serves the network at the control socket `control` for it.
fn begin_takeover(control: &Path, origin: &Origin, key: Option<&Key>) -> Result<Takeover, Failure> {
    let file = origin.file.as_deref().and_then(|file| NetFile::at(file).ok());
    let client = Client::new(control).about(file).hinting(running::hint);
    let shown = key.map(|key| (KEY_HEADER, key.text()));
    let stream = client.upgrade("/v1/takeover", takeover::PROTOCOL, shown).map_err(Failure::running)?;
    Takeover::begin(stream, origin.state.clone()).map_err(Failure::running)
}

/// The network, its sockets, and the service manager to notify.
struct Begun {
    managed: Arc<Managed>,
    control: (UnixListener, Arc<ControlSocket>),
    scrapes: Option<Scrapes>,
    web: Option<Web>,
    manager: ServiceManager,
}

impl Begun {
    /// Starts the network of `config`. The service manager's socket for scrapes, if it `passed` one, takes the place of its own.
    fn start(
        config: Config,
        origin: Origin,
        web: Option<&WebListener>,
        passed: Option<std::net::TcpListener>,
    ) -> Result<Self, Failure> {
        let (takes_vifs, socket) = (config.xen_vifs, config.control_socket(origin.file.as_deref()));
        let metrics = config.metrics.clone();
        let managed = Arc::new(Managed::start(config, origin).map_err(Failure::running)?);
        let listening = || {
            let control = control::listen(&socket)?;
            let scrapes = match passed {
                Some(listener) => Some(scrape::listen_on(listener)?),
                None => metrics.as_ref().map(scrape::listen).transpose()?,
            };
            Ok::<_, control::ControlError>((control, scrapes, web.map(web::listen).transpose()?))
        };
        let refused = if takes_vifs { control::vifs::take(&managed).err() } else { None };
        let listening = refused.map_or_else(|| listening().map_err(Failure::running), |refusal| Err(Failure::running(refusal)));
        match listening {
            Ok(((listener, file), scrapes, web)) => {
                let control = (listener, Arc::new(ControlSocket::new(file)));
                Ok(Self { managed, control, scrapes, web, manager: ServiceManager::of_this_process() })
            }
            Err(failure) => {
                managed.stop();
                Err(failure)
            }
        }
    }

    /// Takes the network over; `begun` is called once signals are to end it in order. Until the other process has ended, connections and
    /// sockets are that one's, so on an error or signal this one is to end at once.
    fn take_over(
        config: &Config,
        origin: Origin,
        web: Option<&WebListener>,
        (takeover, begun): (&mut Takeover, impl FnOnce()),
    ) -> Result<Self, Failure> {
        // On an error, listeners are dropped before this process ends.
        socket::leave_files(true);
        let socket = config.control_socket(origin.file.as_deref());
        let (managed, restoring, sockets) = Managed::take_over(config, origin, takeover).map_err(Failure::running)?;
        let TakenSockets { saved, mut files } = sockets;
        let missing = || Failure::running("the running network did not hand its control socket over: restart it");
        let control = restored_listener(&socket, &saved.control, &mut files).ok_or_else(missing)?;
        let control = control::listen_on(control).map_err(Failure::running)?;
        let scrapes = match (&config.metrics, saved.metrics) {
            (place, Some((known, listener))) if known == name_of(place.as_ref()) || known == METRICS => {
                let place = place.as_ref().filter(|_| known != METRICS);
                Some(taken_scrapes(place, &listener, &mut files).ok_or_else(missing)?.map_err(Failure::running)?)
            }
            (place, _) => place.as_ref().map(scrape::listen).transpose().map_err(Failure::running)?,
        };
        let bound = |web: &WebListener| saved.web.filter(|(known, _)| *known == web.address.to_string());
        let web = match web {
            Some(web) => {
                let bound = bound(web).and_then(|(_, number)| files.take(number));
                let bound = bound.map(|file| OwnedFd::from(file).into());
                Some(web::listen_on(web, bound).map_err(Failure::running)?)
            }
            None => None,
        };
        let own = ServiceManager::of_this_process();
        let theirs = ServiceManager::of(takeover.service().clone());
        let manager = if theirs.environment().socket.is_some() { theirs } else { own };
        let completed = managed.ask(|daemon| takeover.complete(daemon, restoring, begun));
        completed.map_err(Failure::running)?.map_err(Failure::running)?;
        socket::leave_files(false);
        let by = takeover.author().unwrap_or_else(of_this_process);
        let event = NetworkEvent::TakenOver { version: crate::version().into(), by: Some(by) };
        managed.ask(|daemon| note(&daemon.network().shared().journal, event)).map_err(Failure::running)?;
        if let Err(cause) = control.1.claim() {
            tracing::warn!(%cause, "commands see the process that served the network before");
        }
        let managed = Arc::new(managed);
        if config.xen_vifs {
            control::vifs::take(&managed).map_err(Failure::running)?;
        }
        let control = (control.0, Arc::new(ControlSocket::new(control.1)));
        Ok(Self { managed, control, scrapes, web, manager })
    }

    /// Allows a takeover by another process that shows the key, if there is a guard of takeovers.
    fn allow_takeover(
        &self,
        config: (Option<&MetricsListener>, Option<&WebListener>),
        guard: Option<Guard>,
        (key, order): (Option<Key>, Order),
    ) -> std::io::Result<()> {
        let copy = |socket: BorrowedFd| socket.try_clone_to_owned();
        let metrics = self.scrapes.as_ref();
        let name = |scrapes: &Scrapes| if scrapes.is_passed() { METRICS.into() } else { name_of(config.0) };
        let metrics = metrics.map(|scrapes| Ok((name(scrapes), copy(scrapes.as_fd())?, scrapes.file())));
        let web = config.1.zip(self.web.as_ref());
        let web = web.map(|(listener, web)| Ok((listener.address.to_string(), copy(web.as_fd())?)));
        let manager = self.manager.clone();
        let end = move |pid| {
            manager.main_process(pid);
            // Nothing is removed, and no connection is ended: all of it is the other process's now.
            std::process::exit(0);
        };
        self.managed.allow_takeover(TakeoverResources {
            control: Arc::clone(&self.control.1),
            metrics: metrics.transpose().map_err(|error: std::io::Error| error)?,
            web: web.transpose().map_err(|error: std::io::Error| error)?,
            service: self.manager.environment().clone(),
            guard,
            key,
            asked_by: Box::new(move || order.author()),
            end: Box::new(end),
        });
        Ok(())
    }
}

/// Name of the socket for scrapes that the service manager passes.
const METRICS: &str = "metrics";

/// The name by which a process that takes over knows the socket for scrapes at `place`.
fn name_of(place: Option<&MetricsListener>) -> String {
    place.map_or_else(String::new, |place| format!("{place:?}"))
}

/// The socket for scrapes of the process that served the network before, at `place` or passed by the service manager; `None` if its
/// descriptor is missing.
fn taken_scrapes(
    place: Option<&MetricsListener>,
    saved: &SavedListener,
    files: &mut ReceivedFiles,
) -> Option<std::io::Result<Scrapes>> {
    if let Some(MetricsListener::Unix(path, _)) = place {
        return Some(Scrapes::unix(restored_listener(path, saved, files)?));
    }
    let listener = std::net::TcpListener::from(OwnedFd::from(files.take(saved.socket)?));
    Some(TcpListener::from_std(listener).map(|listener| Scrapes::Tcp { listener, passed: place.is_none() }))
}

/// The sandbox of this process, and the process outside of it.
struct Confinement {
    starter: Option<(Starter, Guard)>,
    sandbox: Option<Sandbox>,
    /// The key of a takeover by another process.
    key: Option<Key>,
}

/// Signals to the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    upgrade: Signal,
}

impl Signals {
    /// Takes them from now on, in place of the default actions: during a takeover, once it cannot be undone.
    fn install() -> std::io::Result<Self> {
        for signal in [&signals::TERMINATE, &signals::INTERRUPT, &signals::HANG_UP, &signals::UPGRADE] {
            signal.record()?;
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }
}

async fn serve(
    config: Config,
    origin: Origin,
    (web, passed, takeover): (Option<WebListener>, Option<std::net::TcpListener>, Option<Takeover>),
    Confinement { starter, sandbox, key }: Confinement,
    started: impl FnOnce(&Arc<Managed>),
) -> Result<NetworkEvent, Failure> {
    // Signal handlers are installed before sockets and devices are created, which the default action of a signal would leave
    // behind; by a process that takes a network over, once sockets and devices are its own.
    let mut signals = takeover.is_none().then(Signals::install);
    let (name, file, metrics) = (config.name.clone(), origin.file.clone(), config.metrics.clone());
    let socket = config.control_socket(file.as_deref());
    let taken = if takeover.is_some() { ", taken over from the process that served it" } else { "" };
    let begun = match takeover {
        None => Begun::start(config, origin, web.as_ref(), passed)?,
        Some(mut takeover) => {
            let installed = || signals = Some(Signals::install());
            match Begun::take_over(&config, origin, web.as_ref(), (&mut takeover, installed)) {
                Ok(begun) => begun,
                Err(failure) => {
                    takeover.fail(failure.text());
                    std::process::exit(super::tell(failure).into())
                }
            }
        }
    };
    let signals = signals.unwrap_or_else(Signals::install).map_err(Failure::running)?;
    kept::remove_rest();
    let (starter, guard) = starter.unzip();
    let order = starter.as_ref().map(Starter::order).unwrap_or_default();
    begun.allow_takeover((metrics.as_ref(), web.as_ref()), guard, (key, order)).map_err(Failure::running)?;
    let Begun { managed, control: (listener, socket_file), scrapes, web, manager } = begun;
    control::leases::keep(&managed).map_err(Failure::running)?;
    control::ephemeral::detach(&managed).map_err(Failure::running)?;
    managed.thaw_when_running().map_err(Failure::running)?;
    if let Some(sandbox) = sandbox {
        sandbox.seal();
    }
    let _record = Recorded::make(&socket, &name, file.as_deref());
    let ports = managed.config().map_err(Failure::running)?.ports.len();
    let page = web.as_ref().map_or_else(String::new, |web| format!(", page at http://{}/", web.address));
    let up = format!("memlane: network {name} is up, {}, control at {}{page}{taken}\n", counted(ports, "port"), socket.display());
    if let Err(Failure::Running(cause)) = output::print(&up) {
        tracing::warn!(%cause, "the network is up");
    }
    let serving = std::pin::pin!(answer((listener, &socket_file), scrapes.as_ref(), web.as_ref(), &managed));
    manager.begin(&managed);
    manager.keep_alive(Arc::downgrade(&managed), Handle::current()).map_err(Failure::running)?;
    let over = fatal_notification(&managed);
    started(&managed);
    let result = until_end(serving, signals, &over, (&managed, &manager, starter.as_ref())).await;
    manager.stopping();
    kept::end();
    if managed.fatal().is_some() {
        record::give_time(RECORDS);
    }
    managed.stop();
    result
}

/// Carries out what signals ask for, until one of them, a fatal error or the end of `serving` ends the network.
async fn until_end(
    mut serving: Pin<&mut impl Future<Output = std::io::Result<()>>>,
    mut signals: Signals,
    over: &Notify,
    (managed, manager, starter): (&Arc<Managed>, &ServiceManager, Option<&Starter>),
) -> Result<NetworkEvent, Failure> {
    loop {
        tokio::select! {
            Err(error) = &mut serving => return Err(Failure::running(error)),
            () = over.notified() => return Err(end_soon(managed)),
            _ = signals.terminate.recv() => return Ok(end_by(&signals::TERMINATE, managed)),
            _ = signals.interrupt.recv() => return Ok(end_by(&signals::INTERRUPT, managed)),
            _ = signals.upgrade.recv() => match starter {
                Some(starter) => starter.start(signals::UPGRADE.sender()),
                None => tracing::error!("the process that starts the installed program is missing: start `memlane up --takeover`"),
            },
            _ = signals.hang_up.recv() => {
                let (managed, manager) = (Arc::clone(managed), manager.clone());
                tokio::task::spawn_blocking(move || {
                    manager.reloading();
                    author::acting(Some(signals::HANG_UP.sender()), || reload(&managed));
                    manager.ready(&managed);
                });
            }
        }
    }
}

/// Serves the control socket, and that of the metrics and the web page if there are any, until cancelled.
async fn answer(
    (control, socket): (UnixListener, &ControlSocket),
    scrapes: Option<&Scrapes>,
    web: Option<&Web>,
    managed: &Arc<Managed>,
) -> std::io::Result<()> {
    let scrapes = async {
        match scrapes {
            Some(scrapes) => scrape::serve(scrapes, managed).await,
            None => std::future::pending().await,
        }
    };
    let web = async {
        match web {
            Some(web) => web::serve(web, managed).await,
            None => std::future::pending().await,
        }
    };
    tokio::try_join!(control::serve_at(control, socket, managed), scrapes, web).map(|((), (), ())| ())
}

/// Notified on a fatal error of the network.
fn fatal_notification(managed: &Managed) -> Arc<Notify> {
    let notification = Arc::new(Notify::new());
    let notifier = Arc::clone(&notification);
    managed.notify_if_fatal(move || notifier.notify_one());
    notification
}

/// A fatal error: the process ends within the timeout, however long an orderly end takes, so that a service manager restarts it.
fn end_soon(managed: &Managed) -> Failure {
    let cause = managed.fatal().unwrap_or_default();
    let line = format!("memlane: {cause}\n");
    let late = std::thread::Builder::new().name("end".into()).spawn(move || {
        std::thread::sleep(LATEST_END);
        log::write_line(line.as_bytes());
        std::process::exit(1);
    });
    if late.is_err() {
        tracing::error!("{cause}");
        std::process::exit(1);
    }
    Failure::running(cause)
}

/// Tells the followers of events that a signal ends the network; returns the event for the log.
fn end_by(signal: &signals::Recorded, managed: &Managed) -> NetworkEvent {
    let sender = signal.sender();
    let event = NetworkEvent::NetworkEnds { cause: signal.cause(&sender), by: Some(sender) };
    // Refused only while the network ends already.
    let _ = managed.ask(|daemon| daemon.network().shared().journal.add(event.clone()));
    event
}

/// Reads the network's file again, on SIGHUP. The result is an event.
fn reload(managed: &Managed) {
    if let Ok(done) = managed.reload_from(None, ReloadOptions::default()) {
        done.failed.iter().for_each(|failed| tracing::error!(port = %failed.name, "{}: {}", failed.name, failed.error));
        done.left
            .iter()
            .for_each(|port| tracing::error!(port = %port.name, "{}: the port was left as it is: {}", port.name, port.told()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::time::Instant;

    use crate::control::ControlError;
    use crate::control::health::{Alive, Ready};

    const INSIDE: &str = "MEMLANE_TEST_FATAL";
    const HELD: &str = "MEMLANE_TEST_HELD";
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Runs the network of `file`; one of its workers panics once it is up.
    fn run_and_panic(file: PathBuf) -> ! {
        let up = Up { net: Some(file), ..Up::default() };
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
        command
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, &file)
            .env("XDG_STATE_HOME", folder.path())
            .env_remove("RUST_BACKTRACE");
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.starts_with("memlane: worker 1 failed: on purpose at ") && told.lines().count() == 1, "{told}");
        assert!(!socket.exists() && !control.exists(), "it ended in order");
    }

    fn wait_for(file: &Path) {
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs the network of `folder`; worker 1 is held while there is a file "hold" and none called "release".
    fn run_and_hold(folder: PathBuf) -> ! {
        let up = Up { net: Some(folder.join("held.toml")), ..Up::default() };
        let result = up.run_and(|managed| {
            let managed = Arc::clone(managed);
            std::thread::spawn(move || {
                wait_for(&folder.join("hold"));
                let held = managed.ask(|daemon| daemon.network().order(1, move |_| wait_for(&folder.join("release"))));
                held.unwrap().recv().unwrap();
            });
        });
        std::process::exit(result.map_or_else(super::super::tell, |()| 0).into());
    }

    #[test]
    fn a_worker_that_is_held_ends_keep_alive_messages_and_readiness_and_is_named() {
        if let Some(folder) = std::env::var_os(HELD) {
            run_and_hold(folder.into());
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let text = "workers = 2\ncontrol = \"control\"\n[[port]]\nname = \"a\"\nnull = true\n";
        std::fs::write(folder.join("held.toml"), text).unwrap();
        let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
        manager.set_read_timeout(Some(TIMEOUT)).unwrap();
        let name = "cli::up::tests::a_worker_that_is_held_ends_keep_alive_messages_and_readiness_and_is_named";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", name, "--nocapture"])
            .env(HELD, folder)
            .env("XDG_RUNTIME_DIR", folder)
            .env("XDG_STATE_HOME", folder);
        command.env("NOTIFY_SOCKET", folder.join("notify")).env("WATCHDOG_USEC", "200000").env_remove("WATCHDOG_PID");
        let mut child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let next = || {
            let mut text = [0; 256];
            let length = manager.recv(&mut text).expect("a message");
            String::from_utf8_lossy(&text[..length]).into_owned()
        };
        assert!(next().starts_with("READY=1\n"));
        for _ in 0..3 {
            assert_eq!(next(), "WATCHDOG=1");
        }
        let client = Client::new(&folder.join("control")).within(TIMEOUT);
        let ready = || client.get::<Ready>("/readyz");
        let deadline = Instant::now() + TIMEOUT;
        let until = |condition: &dyn Fn(Result<Ready, ControlError>) -> bool| {
            while !condition(ready()) {
                assert!(Instant::now() < deadline, "waited in vain");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        until(&|ready| ready.is_ok());
        std::fs::write(folder.join("hold"), "").unwrap();
        let is_refused = |ready| match ready {
            Err(ControlError::Refused(refusal)) if refusal.status.as_u16() == 503 => {
                let text = refusal.to_string();
                text.starts_with("worker-1 gave no answer within 2 s") && !text.contains("worker-0")
            }
            _ => false,
        };
        until(&is_refused);
        assert!(client.get::<Alive>("/livez").is_ok_and(|Alive { alive }| alive), "the process answers all the same");
        // Messages that were sent before; then, for the two seconds of a refusal, sixteen would be due.
        manager.set_nonblocking(true).unwrap();
        while manager.recv(&mut [0; 256]).is_ok() {}
        assert!(ready().unwrap_err().to_string().contains("worker-1 gave no answer"));
        assert_eq!(manager.recv(&mut [0; 256]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        manager.set_nonblocking(false).unwrap();
        std::fs::write(folder.join("release"), "").unwrap();
        assert_eq!(next(), "WATCHDOG=1");
        until(&|ready| ready.is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
