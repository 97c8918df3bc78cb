//! A network with changes at run time: they are serialised, and stored for the next start if there is a state file.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use memlane_backends::takeover::FilesToSend;
use memlane_model::denials::PortDenials;
use memlane_observe::events::{From, Reader};
use memlane_observe::metrics::Format;
use serde_json::{Map, Value};

use super::author::of_this_process;
use super::causes::{PortCauses, tell_present_causes};
use super::daemon_handle::DaemonHandle;
use super::health::Health;
use super::identity::{Identity, NetFile};
use super::listening::ControlSocket;
use super::metrics::{self, LastReload, ProcessUsage};
use super::problem::Refusal;
use super::reload::{self, ReloadOptions, Reloaded, Untouchable};
use super::report::{PortReport, PortView, Report, SegmentReport, SegmentView, known_addresses};
use super::state::{SavedNetwork, Step};
use super::state_file::StateFile;
use super::why::{Asked, Asking, Why, WhyFrame};
use crate::author;
use crate::config::difference::{Difference, refused_keys};
use crate::config::lines::FileLines;
use crate::config::{Config, Mistakes, PortConfig, PortEntry, Reread};
use crate::daemon::takeover::give::{Assets, Given, Guard, Key, give, hear};
use crate::daemon::takeover::take::{self, Restoring, TakeError, TakenSockets, Takeover};
use crate::daemon::takeover::{Channel, Message, REPLY};
use crate::daemon::{Daemon, NoSuchPort};
use crate::description::{SavedListener, SavedService, SavedSockets};
use crate::explain::Forecast;
use crate::journal::{KeyChange, NetworkEvent, note};
use crate::known_addresses::SegmentAddresses;
use crate::port::{Port, default_address};
use crate::sandbox;
use crate::snapshot::SnapshotFile;
use crate::time::cycles;

mod ports;
mod snapshot;

pub use ports::WantedPort;

/// Longest wait without a check whether the network ends.
const STEP: Duration = Duration::from_millis(100);

/// Origin of a network's ports.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The network's file, if it has one.
    pub file: Option<PathBuf>,
    /// Folder of relative paths in requests.
    pub folder: PathBuf,
    /// Path of the state file, with the differences to the network's file.
    pub state: Option<PathBuf>,
    /// Whether the state file has its default path: an empty one is removed at the end.
    pub state_is_own: bool,
    /// Snapshot from which the network is restored, until its start.
    pub snapshot: Option<Arc<SnapshotFile>>,
}

/// See the module.
#[derive(Debug)]
pub struct Managed {
    daemon: DaemonHandle,
    /// The configuration of the file; locked by each change.
    base: Mutex<FileConfig>,
    origin: Origin,
    /// The file at the start.
    file: Option<NetFile>,
    state: Option<StateFile>,
    started: Instant,
    last_reload: LastReload,
    health: Health,
    /// Locked by a request for ports that may exist, until they are attached.
    repeatable: Mutex<()>,
    /// Locked while another process takes the network over.
    giving: Mutex<()>,
    /// Why the last takeover failed.
    not_taken_over: Mutex<Option<String>>,
    /// Whether the network ends, which ends a takeover in flight.
    ending: Arc<AtomicBool>,
    /// Number of freezes so far.
    freezes: AtomicU64,
    /// Milliseconds after which a frozen network goes on without a command; 0 for no limit.
    frozen_most: AtomicU64,
    resources: OnceLock<TakeoverResources>,
}

/// The configuration of the file, with its ports found by their names.
#[derive(Debug)]
struct FileConfig {
    config: Config,
    indices: HashMap<String, usize>,
}

impl std::convert::From<Config> for FileConfig {
    fn from(config: Config) -> Self {
        let indices = config.ports.iter().enumerate().map(|(index, port)| (port.name.clone(), index)).collect();
        Self { config, indices }
    }
}

impl std::ops::Deref for FileConfig {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

impl FileConfig {
    fn named(&self, port: &str) -> Option<&PortConfig> {
        self.config.ports.get(*self.indices.get(port)?)
    }
}

/// Device and inode of a socket in the file system.
type FileNumber = (u64, u64);

/// Sockets of the network that another process takes over beside its ports, and the end of this process.
pub struct TakeoverResources {
    /// The control socket.
    pub control: Arc<ControlSocket>,
    /// The socket of the metrics, and its place.
    pub metrics: Option<(String, OwnedFd, Option<FileNumber>)>,
    /// The socket of the web page, and its address.
    pub web: Option<(String, OwnedFd)>,
    /// The service manager.
    pub service: SavedService,
    /// The guard of the takeover outside of the sandbox, if it could be started.
    pub guard: Option<Guard>,
    /// The key that a process shows which takes the network over; without one, none does.
    pub key: Option<Key>,
    /// The author of the signal by which the successor that is under way was started.
    pub asked_by: Box<dyn Fn() -> Option<author::Author> + Send + Sync>,
    /// Ends this process, once the network was handed over to the process of this number.
    pub end: Box<dyn Fn(i32) + Send + Sync>,
}

impl TakeoverResources {
    /// Describes the sockets for another process, with copies of them in `files`.
    fn sockets(&self, files: &mut FilesToSend) -> std::io::Result<SavedSockets> {
        let (control, file) = self.control.copy()?;
        let control = SavedListener { socket: files.add(control), file };
        let metrics = self.metrics.as_ref().map(|(place, socket, file)| {
            Ok::<_, std::io::Error>((place.clone(), SavedListener { socket: files.add(socket.try_clone()?), file: *file }))
        });
        let metrics = metrics.transpose()?;
        let web = self.web.as_ref();
        let web = web.map(|(address, socket)| Ok::<_, std::io::Error>((address.clone(), files.add(socket.try_clone()?))));
        Ok(SavedSockets { control, metrics, web: web.transpose()?, state: None })
    }
}

impl std::fmt::Debug for TakeoverResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TakeoverResources").field("control", &self.control).finish_non_exhaustive()
    }
}

impl Managed {
    /// Starts the network that `base`, its file, describes, with the differences of its state file applied.
    ///
    /// # Errors
    /// The state file cannot be read, is invalid or cannot be written; the network cannot be started.
    pub fn start(base: Config, origin: Origin) -> Result<Self, Refusal> {
        let unkept = |error: super::state::StateError| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
        let (mut config, mut kept, mut leases) = (base.clone(), None, Vec::new());
        if let Some(path) = &origin.state {
            let (file, state) = StateFile::open(path).map_err(unkept)?;
            config = state.applied_to(&base, path).map_err(unkept)?;
            // A state file that cannot be written is an error now rather than later.
            leases.clone_from(state.leases());
            let begun = SavedNetwork::between(&base, &config).with_leases(leases.clone());
            file.begin(&state, &begun).map_err(unkept)?;
            kept = Some(file);
        }
        let health = Health::new(config.workers);
        let mut origin = origin;
        let daemon = match origin.snapshot.take() {
            Some(snapshot) => Daemon::start_from(&config, &snapshot)?,
            None => Daemon::start(&config)?,
        };
        daemon.restore_leases(&leases);
        Ok(Self::of(daemon, health, base, origin, kept))
    }

    fn of(daemon: Daemon, health: Health, base: Config, origin: Origin, state: Option<StateFile>) -> Self {
        let file = origin.file.as_deref().and_then(|file| NetFile::at(file).ok());
        Self {
            daemon: DaemonHandle::new(daemon),
            base: Mutex::new(base.into()),
            origin,
            file,
            state,
            started: Instant::now(),
            last_reload: LastReload::at_start(),
            health,
            repeatable: Mutex::default(),
            giving: Mutex::default(),
            not_taken_over: Mutex::default(),
            ending: Arc::default(),
            freezes: AtomicU64::new(0),
            frozen_most: AtomicU64::new(0),
            resources: OnceLock::new(),
        }
    }

    /// Makes the network that another process serves and hands over by `takeover`, with the settings of `own`, this process's reading of
    /// the file. The result starts its ports.
    ///
    /// # Errors
    /// The process is to end at once then: the other one goes on.
    pub fn take_over(own: &Config, origin: Origin, takeover: &mut Takeover) -> Result<(Self, Restoring, TakenSockets), Refusal> {
        let unfit = |error: TakeError| Refusal::new(StatusCode::CONFLICT, error);
        let (mut base, config) = takeover.configs(own).map_err(unfit)?;
        base.lines = own.lines_as_in(&base);
        let health = Health::new(config.workers);
        let (uplinks, ports, files) = takeover.ports();
        let (daemon, restoring) = Daemon::take_over(&config, &uplinks, ports, files)?;
        let mut sockets = takeover.sockets();
        let locked = take::state_file(&mut sockets);
        let state = origin.state.as_ref().map(|path| StateFile::taken_over(path, locked));
        Ok((Self::of(daemon, health, base, origin, state), restoring, sockets))
    }

    /// Allows another process to take the network over, with these resources.
    pub fn allow_takeover(&self, resources: TakeoverResources) {
        let _ = self.resources.set(resources);
    }

    /// Refuses a process that takes the network over and does not show its key.
    ///
    /// # Errors
    /// The key that was shown, if any, is not that of this network.
    pub fn check_key(&self, shown: Option<&[u8]>) -> Result<(), Refusal> {
        let refused = |text: String| Err(Refusal::new(StatusCode::FORBIDDEN, text));
        match self.resources.get().and_then(|resources| resources.key.as_ref()) {
            Some(key) if shown.is_some_and(|shown| key.is(shown)) => Ok(()),
            Some(key) => refused(format!(
                "a process takes this network over only if it can read the key in {}: start `memlane up --takeover` as the network's user, \
                 with the same XDG_RUNTIME_DIR, or send SIGUSR2 to the running process",
                key.path().display()
            )),
            None => refused("the running process could make no key for a takeover at its start: restart it".into()),
        }
    }

    /// Hands the network over to the process at the other end of `stream`, and ends this one.
    pub fn hand_over(&self, stream: UnixStream) {
        let mut channel = Channel::new(stream).until(&self.ending);
        if let Err(error) = self.try_hand_over(&mut channel) {
            tracing::warn!(target: "memlane::control::managed", "the network was not handed over, and goes on: {error}");
            *self.not_taken_over.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            // The other process may have ended.
            let _ = channel.send(&Message::Failed(error.to_string()), &[], REPLY);
        }
    }

    fn try_hand_over(&self, channel: &mut Channel) -> Result<(), Refusal> {
        let conflict = |text: &dyn std::fmt::Display| Refusal::new(StatusCode::CONFLICT, text);
        let process = hear(channel, self.origin.state.as_deref()).map_err(|error| conflict(&error))?;
        let resources = self.resources.get().and_then(|resources| Some((resources, resources.guard.as_ref()?)));
        let (resources, guard) =
            resources.ok_or_else(|| conflict(&"the running process cannot hand its network over: restart it"))?;
        let busy = |_| conflict(&"another process is taking the network over already");
        let _alone = self.giving.try_lock().map_err(busy)?;
        let base = self.changing_unfrozen()?;
        let mut files = FilesToSend::default();
        let copied = |error: std::io::Error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
        let by = (resources.asked_by)().or_else(author::current).unwrap_or_else(of_this_process);
        let assets = Assets {
            by: by.clone(),
            file: &base,
            state_lock: self.state.as_ref().map(StateFile::copy_lock).transpose().map_err(copied)?.flatten(),
            sockets: resources.sockets(&mut files).map_err(copied)?,
            files: files.into_files(),
            service: resources.service.clone(),
        };
        let begun = Instant::now();
        let given = self.ask(|daemon| give(daemon, assets, channel, (process, guard)))?;
        let Given { process, standstill } = given.map_err(|error| conflict(&error))?;
        let [milliseconds, standstill_ms] = [begun.elapsed(), standstill].map(|time| time.as_millis() as u64);
        let (by_user, by_uid, by_pid, by_program) = (by.user.as_str(), by.uid, by.pid, by.program.as_str());
        // The last line of this process: why it ends.
        tracing::info!(
            target: "memlane::control::managed",
            event = "taken-over",
            process,
            by_user,
            by_uid,
            by_pid,
            by_program,
            milliseconds,
            standstill_ms,
            "the network was handed over to process {process}, by {by}"
        );
        (resources.end)(process);
        Ok(())
    }

    /// Ends the network; later requests are refused.
    pub fn stop(&self) {
        self.ending.store(true, Ordering::Relaxed);
        let is_empty = self.origin.state_is_own && self.is_as_in_the_file();
        // Earlier versions read no steps.
        let has_steps = self.state.as_ref().is_some_and(StateFile::has_steps);
        if has_steps || self.has_state() && self.ask(|daemon| !daemon.leases().is_empty()).unwrap_or(false) {
            // Refused only if the network has ended.
            let _ = self.keep_leases();
        }
        self.daemon.stop();
        if let Some(state) = &self.state {
            state.end(is_empty);
        }
    }

    /// Whether the state holds nothing.
    fn is_as_in_the_file(&self) -> bool {
        let base = self.changing();
        let saved = self.ask(|daemon| SavedNetwork::between(&base, &daemon.config()).with_leases(daemon.leases()));
        saved.is_ok_and(|saved| saved == SavedNetwork::default())
    }

    /// Why changes could not be written to the state file, if so.
    pub fn unsaved(&self) -> Option<String> {
        self.state.as_ref()?.unsaved()
    }

    /// Like [`DaemonHandle::ask`].
    pub fn ask<A>(&self, question: impl FnOnce(&Daemon) -> A) -> Result<A, Refusal> {
        self.daemon.ask(question)
    }

    /// The fatal error that ended the network, if there is one.
    pub fn fatal(&self) -> Option<String> {
        self.daemon.fatal()
    }

    /// Has `callback` called on a [`Self::fatal`] error.
    pub fn notify_if_fatal(&self, callback: impl FnOnce() + Send + 'static) {
        self.daemon.notify_if_fatal(callback);
    }

    /// Locks out other changes.
    fn changing(&self) -> MutexGuard<'_, FileConfig> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present configuration.
    ///
    /// # Errors
    /// The network ends.
    pub fn config(&self) -> Result<Config, Refusal> {
        self.ask(Daemon::config)
    }

    fn port(&self, name: &str) -> Result<PortConfig, Refusal> {
        self.ask(|daemon| daemon.port(name))?.ok_or_else(|| NoSuchPort(name.into()).into())
    }

    /// The report of the whole network.
    ///
    /// # Errors
    /// The network ends.
    pub fn report(&self) -> Result<Report, Refusal> {
        let (unsaved, frozen) = (self.unsaved(), self.frozen()?);
        let not_taken_over = self.not_taken_over.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.ask(|daemon| {
            let report = Report::new(&daemon.config(), daemon.network(), self.started.elapsed());
            Report { uplinks: daemon.uplinks(), names: daemon.names_reports(), unsaved, not_taken_over, frozen, ..report }
        })
    }

    /// The report as metrics.
    ///
    /// # Errors
    /// The network ends.
    pub fn metrics(&self, format: Format) -> Result<String, Refusal> {
        let usage = ProcessUsage::now().unwrap_or_default();
        let labels = self.ask(Daemon::metrics_labels)?;
        Ok(metrics::text(&self.report()?, &labels, &self.last_reload, usage, format))
    }

    /// The workers that do not answer within `timeout`.
    ///
    /// # Errors
    /// The network ends.
    pub fn silent_workers(&self, timeout: Duration) -> Result<Vec<usize>, Refusal> {
        // The end of the network does not wait for this.
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        Ok(self.health.silent_workers(&network, timeout))
    }

    /// A reader of the network's events.
    ///
    /// # Errors
    /// The network ends.
    pub fn events(&self, from: From) -> Result<Reader<NetworkEvent>, Refusal> {
        self.tell_notices()?;
        self.ask(|daemon| daemon.network().shared().journal.reader(from))
    }

    /// Like [`Self::tell_notices`], but not more often than [`crate::network::Network::look_for_notices`] lets it.
    ///
    /// # Errors
    /// The network ends.
    pub fn look_for_notices(&self) -> Result<(), Refusal> {
        self.ask(|daemon| daemon.network().look_for_notices(cycles()))
    }

    /// Adds events for first drops, moved addresses and reached limits of sleeping workers.
    ///
    /// # Errors
    /// The network ends.
    pub fn tell_notices(&self) -> Result<(), Refusal> {
        self.ask(|daemon| daemon.network().tell_notices())
    }

    /// The network's identity.
    ///
    /// # Errors
    /// The network ends.
    pub fn identity(&self) -> Result<Identity, Refusal> {
        let (name, ports) = self.ask(|daemon| (daemon.name().to_owned(), daemon.port_count()))?;
        Ok(Identity {
            name,
            version: crate::version().into(),
            pid: std::process::id(),
            uptime: self.started.elapsed().as_secs(),
            file: self.file.as_ref().map(NetFile::now),
            ports,
        })
    }

    /// Refuses a request for the network of `file`, if this one has another file.
    ///
    /// # Errors
    /// The network has another file.
    pub fn check_file(&self, file: &NetFile) -> Result<(), Refusal> {
        match &self.file {
            Some(own) if !own.now().is(file) => {
                let identity = self.identity()?;
                let text = format!("this is {}, not the network of {}", identity.told(), file.path.display());
                Err(Refusal::new(StatusCode::CONFLICT, format!("{text}. Name it by its own file, or by its name alone")))
            }
            _ => Ok(()),
        }
    }

    /// The reports of all ports.
    ///
    /// # Errors
    /// The network ends.
    pub fn ports(&self) -> Result<Vec<PortReport>, Refusal> {
        self.report_with_causes().map(|report| report.ports)
    }

    /// The report of a port.
    ///
    /// # Errors
    /// There is no port of this name.
    pub fn view(&self, name: &str) -> Result<PortView, Refusal> {
        let port = self.port(name)?;
        let report = self.ask(|daemon| PortReport::of(daemon.seed(), &port, daemon.network()))?;
        let report = report.ok_or_else(|| NoSuchPort(name.into()))?;
        Ok(PortView { report, entry: port.entry() })
    }

    /// The outcome of a frame that the guest of the port called `name` would transmit.
    ///
    /// # Errors
    /// There is no such port, or the request has no frame.
    pub fn why(&self, name: &str, question: &WhyFrame) -> Result<Why, Refusal> {
        let config = self.config()?;
        let default_mac = |port: &str| default_address(config.seed(), port);
        let second = u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX);
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        let port = network.find(name).ok_or_else(|| NoSuchPort(name.into()))?;
        let mistaken =
            |(key, text): (&str, String)| Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, vec![(key.to_owned(), text)]);
        let asking = Asking { network: &network, port: &port, default_mac: &default_mac };
        let Asked { frame, to } = asking.frame(question).map_err(mistaken)?;
        let receiver =
            to.as_ref().filter(|to| to.id != port.id).and_then(|to| config.ports.iter().find(|port| port.name == to.name));
        let receiver = receiver.and_then(|entry| PortCauses::of(&config, entry, &network, self.started.elapsed()));
        if let Some(to) = to.filter(|to| to.segment.id != port.segment.id) {
            return Ok(Why::apart(&port, &to, receiver));
        }
        let mut forecast = self.ask(|_| Forecast::foresee(&network, &port, &frame, second))?;
        self.tell_lines(&mut forecast)?;
        Ok(Why::new(forecast, receiver))
    }

    /// Names the lines of the network's file that decide about a frame.
    fn tell_lines(&self, forecast: &mut Forecast) -> Result<(), Refusal> {
        if forecast.keys.is_empty() {
            return Ok(());
        }
        let (base, now) = (self.changing(), self.config()?);
        let file = base.lines.file.display().to_string();
        for key in &mut forecast.keys {
            if let Some(port) = &key.port {
                key.line = now.port(port).and_then(|port| base.line_of(port, &key.key));
            }
            let Some(line) = key.line.filter(|_| !base.lines.is_empty()) else { continue };
            key.file = Some(file.clone());
            let effect = match (key.would_allow, key.allows) {
                (true, _) => "would be allowed",
                (false, true) => "allowed",
                (false, false) => "denied",
            };
            let what = key.port.as_ref().map_or_else(|| "the policy rule".into(), |port| format!("{} of {port}", key.key));
            forecast.steps.push(format!("{effect} by {what}: {file}:{line}"));
        }
        Ok(())
    }

    /// The causes that keep a port from its work.
    ///
    /// # Errors
    /// There is no port of this name.
    pub fn causes(&self, name: &str) -> Result<PortCauses, Refusal> {
        let (port, config) = (self.port(name)?, self.config()?);
        let causes = self.ask(|daemon| PortCauses::of(&config, &port, daemon.network(), self.started.elapsed()))?;
        let causes = causes.ok_or_else(|| NoSuchPort(name.into()))?;
        let shortage = self.ask(|daemon| daemon.shortage(&port))?;
        Ok(shortage.into_iter().fold(causes, PortCauses::short_of_addresses))
    }

    /// The causes of all ports that have one, the worst first.
    ///
    /// # Errors
    /// The network ends.
    pub fn all_causes(&self) -> Result<Vec<PortCauses>, Refusal> {
        let config = self.config()?;
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        let by_name = config.by_name();
        let shortage = |name: &str| self.ask(|daemon| daemon.shortage(by_name.get(name)?)).ok().flatten();
        let with_shortage = |causes: PortCauses| shortage(&causes.port).into_iter().fold(causes, PortCauses::short_of_addresses);
        Ok(PortCauses::of_all(&config, &network, self.started.elapsed(), with_shortage))
    }

    /// The frames of a port's guest that policy rules refuse.
    ///
    /// # Errors
    /// There is no port of this name.
    pub fn denials(&self, name: &str) -> Result<PortDenials, Refusal> {
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        Ok(network.denials_of(&*network.find(name).ok_or_else(|| NoSuchPort(name.into()))?))
    }

    /// The frames that policy rules refuse, of all ports that have some: the latest 4096 destinations.
    ///
    /// # Errors
    /// The network ends.
    pub fn all_denials(&self) -> Result<Vec<PortDenials>, Refusal> {
        self.ask(|daemon| daemon.network().denials())
    }

    /// Compares the frames that pass with the policy rules of `document`, too, for so long: see `Network::try_policy`. The number of the trial.
    ///
    /// # Errors
    /// The document is invalid; other rules are on trial.
    pub fn try_policy(&self, document: &Value, length: Duration) -> Result<u64, Refusal> {
        let wanted = Config::from_json(document, &self.config()?.name, &self.origin.folder)?;
        let groups = wanted.ports.iter().map(|port| (port.name.clone(), port.settings.limits.groups.clone())).collect();
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        let trial =
            network.try_policy(&wanted.policy, groups, length).map_err(|error| Refusal::new(StatusCode::CONFLICT, error))?;
        let event = NetworkEvent::PolicyTrialStarted {
            trial,
            rules: wanted.policy.len() as u64,
            milliseconds: u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
            by: author::current(),
        };
        note(&network.shared().journal, event);
        Ok(trial)
    }

    /// The frames that the rules of the trial with this number would refuse; without a number, of the present trial.
    ///
    /// # Errors
    /// There is no such trial.
    pub fn tried(&self, trial: Option<u64>) -> Result<Vec<PortDenials>, Refusal> {
        let tried = self.ask(|daemon| daemon.network().tried(trial))?;
        let none = || match trial {
            None => "no policy is on trial: begin one with `memlane policy try FILE`".into(),
            Some(trial) => format!("there is no trial {trial}: it ended, and two others began"),
        };
        tried.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, none()))
    }

    /// Like [`Self::tried`], and ends the trial.
    ///
    /// # Errors
    /// The errors of [`Self::tried`].
    pub fn end_trial(&self, trial: u64) -> Result<Vec<PortDenials>, Refusal> {
        let tried = self.tried(Some(trial))?;
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        if network.end_trial(trial) {
            note(&network.shared().journal, NetworkEvent::PolicyTrialEnded { trial, by: author::current() });
        }
        Ok(tried)
    }

    /// The report of the whole network, with the present causes of its ports.
    ///
    /// # Errors
    /// The network ends.
    pub fn report_with_causes(&self) -> Result<Report, Refusal> {
        self.tell_notices()?;
        let (mut report, config) = (self.report()?, self.config()?);
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        tell_present_causes(&config, &network, &mut report.ports);
        Ok(report)
    }

    /// The segments.
    ///
    /// # Errors
    /// The network ends.
    pub fn segments(&self) -> Result<Vec<SegmentReport>, Refusal> {
        self.ask(|daemon| SegmentReport::all(&daemon.config()))
    }

    /// The report of a segment, with its MAC addresses.
    ///
    /// # Errors
    /// There is no segment of this name.
    pub fn segment(&self, name: &str) -> Result<SegmentView, Refusal> {
        let view = self.ask(|daemon| SegmentView::of(name, &daemon.config(), daemon.network(), self.started.elapsed()))?;
        view.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, format!("there is no segment '{name}'")))
    }

    /// The IP addresses that the switch knows.
    ///
    /// # Errors
    /// The network ends.
    pub fn addresses(&self) -> Result<Vec<SegmentAddresses>, Refusal> {
        self.ask(|daemon| known_addresses(daemon.network()))
    }

    /// Changes the keys of a port that `patch` contains; null removes a key.
    ///
    /// # Errors
    /// The keys are invalid, cannot change while the port runs, or claim a resource of another port; nothing has changed then.
    pub fn change(&self, name: &str, patch: &Map<String, Value>) -> Result<PortEntry, Refusal> {
        let base = self.changing_unfrozen()?;
        let before = self.port(name)?;
        let after = self.with_inside(before.patched(patch)?, &[])?;
        self.refuse_addresses(&after)?;
        self.refuse_clashes(&after, name)?;
        let port = self.ask(|daemon| daemon.change(name, |settings| *settings = after.settings))??;
        self.tell_change(&before, &port);
        self.keep_ports(&base, [(name, Some(&port))])?;
        Ok(port.entry())
    }

    /// Tells of changed keys of a port. That it was enabled or disabled is told by itself.
    fn tell_change(&self, before: &PortConfig, after: &PortConfig) {
        let changes = key_changes(&before.stated(), &after.stated());
        if !changes.is_empty() {
            let event = NetworkEvent::PortChanged { port: after.name.clone(), changes, by: author::current() };
            // While the network ends, there is no journal for the event.
            let _ = self.ask(|daemon| note(&daemon.network().shared().journal, event));
        }
    }

    /// Disables a port and waits until none of its frames is in flight, or until the timeout; true if it is drained.
    ///
    /// # Errors
    /// There is no port of this name, a command enables it while frames are in flight, or the network ends.
    pub fn drain(&self, name: &str, timeout: Duration) -> Result<bool, Refusal> {
        let drained = self.drain_within(name, timeout)?;
        let event = NetworkEvent::PortDrained { port: name.into(), drained, by: author::current() };
        self.ask(|daemon| note(&daemon.network().shared().journal, event))?;
        Ok(drained)
    }

    fn drain_within(&self, name: &str, timeout: Duration) -> Result<bool, Refusal> {
        let end = Instant::now() + timeout;
        let port = {
            let base = self.changing_unfrozen()?;
            let port = self.ask(|daemon| daemon.disable(name))??;
            self.keep_ports(&base, [(name, Some(&self.port(name)?))])?;
            port
        };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // In steps, so that the end of the network does not wait for this. The wait changes nothing: the last command wins.
            let drained = self.ask(|daemon| daemon.network().await_drained(&port, left.min(STEP)))?;
            self.check_disabled(name, &port)?;
            if drained || left.is_zero() {
                return Ok(drained);
            }
        }
    }

    /// Refuses to wait further for frames in flight of a port that is detached or enabled.
    fn check_disabled(&self, name: &str, port: &Arc<Port>) -> Result<(), Refusal> {
        let present = self.ask(|daemon| daemon.network().find(name))?;
        if !present.is_some_and(|present| Arc::ptr_eq(&present, port)) {
            return Err(NoSuchPort(name.into()).into());
        }
        if port.is_enabled() {
            let text = format!("port '{name}' is not drained: it was enabled meanwhile. Drain it again once it may be disabled");
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        Ok(())
    }

    /// Changes the network to `wanted`, or only reports the changes. Refused where settings differ that only a restart changes,
    /// or where every port would be detached, unless `options` allow it.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn reload(&self, wanted: &Config, options: ReloadOptions) -> Result<Reloaded, Refusal> {
        // A name service may take long: other changes do not wait for it.
        wanted.ports.iter().for_each(|port| port.access.look_up());
        let mut base = if options.dry_run { self.changing() } else { self.changing_unfrozen()? };
        let now = self.config()?;
        if let Some(unknown) = options.force.iter().find(|name| now.port(name).is_none()) {
            return Err(NoSuchPort(unknown.clone()).into());
        }
        let connected = self.ask(Daemon::connected)?;
        let mut difference = Difference::between(&now, wanted);
        let kept = options.keep_others(&mut difference);
        let refused = options.refuse(&difference, &now);
        let untouchable = Untouchable { kept, left: options.leave_connected(&mut difference, &connected) };
        if options.dry_run {
            return Ok(Reloaded::planned(&difference, untouchable, refused));
        }
        if !difference.restart.is_empty() && !options.ports_only {
            let file = self.origin.file.as_ref().map_or_else(|| "FILE".into(), |file| file.display().to_string());
            return Err(Refusal::new(StatusCode::CONFLICT, refused_keys(&difference.restart, &file)));
        }
        if let Some(text) = refused {
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        let reloaded = reload::carry_out(&self.daemon, &mut difference, untouchable, &options);
        if difference.policy.is_none() && difference.has_moved_rules {
            self.ask(|daemon| daemon.network().set_policy(&wanted.policy))?;
        }
        // The state keeps ports of other origins; of a port that was left, the file decides at the next start.
        let mut now = self.config()?;
        now.ports.retain(|port| port.origin.is_file());
        *base = Config { lines: wanted.lines.clone(), access: wanted.access.clone(), stated: wanted.stated.clone(), ..now }.into();
        self.keep(&base)?;
        Ok(reloaded)
    }

    /// Like [`Self::reload`], from a JSON document and the lines of its file, or from the network's own file.
    ///
    /// # Errors
    /// The document or file is invalid; there is no file; as [`Self::reload`].
    pub fn reload_from(&self, document: Option<(&Value, FileLines)>, options: ReloadOptions) -> Result<Reloaded, Refusal> {
        let dry_run = options.dry_run;
        let result = self.reload_document(document, options);
        if !dry_run {
            self.last_reload.note(result.as_ref().is_ok_and(Reloaded::is_complete));
            self.tell_reload(&result);
        }
        result
    }

    fn tell_reload(&self, result: &Result<Reloaded, Refusal>) {
        let event = match result {
            Ok(reloaded) => NetworkEvent::Reloaded {
                added: reloaded.added.clone(),
                removed: reloaded.removed.clone(),
                changed: reloaded.changed.iter().map(|changed| changed.name.clone()).collect(),
                failed: reloaded.unfinished(),
                left_out: 0,
                by: author::current(),
            },
            Err(refusal) => NetworkEvent::ReloadRefused { cause: refusal.to_string(), by: author::current() },
        };
        // While the network ends, there is no journal for the event.
        let _ = self.ask(|daemon| note(&daemon.network().shared().journal, event));
    }

    fn reload_document(&self, document: Option<(&Value, FileLines)>, options: ReloadOptions) -> Result<Reloaded, Refusal> {
        if let Some((document, lines)) = document {
            let read = Config::from_json(document, &self.config()?.name, &self.origin.folder)?;
            return self.reload(&Config { lines, ..read }, options);
        }
        let Reread { document, cut_off } = self.load_file(!options.force.is_empty())?;
        self.reload(&document.config(), ReloadOptions { cut_off, ..options })
    }

    fn load_file(&self, force: bool) -> Result<Reread, Refusal> {
        let none =
            || Refusal::new(StatusCode::CONFLICT, "the network was started without a file: name one, as in `memlane reload FILE`");
        let file: &Path = self.origin.file.as_deref().ok_or_else(none)?;
        // With line numbers and the path, which may be another file than the operator expects.
        let told = |mistakes: Mistakes| {
            let mut refusal = Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, mistakes.to_string());
            refusal.problem.mistakes = Refusal::from(mistakes).problem.mistakes;
            if let Some(hint) = sandbox::hidden(file) {
                refusal.problem.error.push_str(&hint);
            }
            refusal
        };
        Reread::load(file, force).map_err(told)
    }

    /// Whether changes outlast the network.
    pub(super) fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// Stores the leases, and all else that the state file has.
    ///
    /// # Errors
    /// The network ends.
    pub(super) fn keep_leases(&self) -> Result<(), Refusal> {
        let base = self.changing();
        self.keep(&base)
    }

    /// Stores the differences to the file, and the leases, if there is a state file.
    fn keep(&self, base: &Config) -> Result<(), Refusal> {
        if let Some(state) = &self.state {
            state.save(&self.saved(base)?);
        }
        Ok(())
    }

    /// Like [`Self::keep`], where only these ports have changed: each is as given now, or detached.
    fn keep_ports<'p>(
        &self,
        base: &FileConfig,
        ports: impl IntoIterator<Item = (&'p str, Option<&'p PortConfig>)>,
    ) -> Result<(), Refusal> {
        let Some(state) = &self.state else { return Ok(()) };
        let steps: Vec<Step> = ports.into_iter().map(|(name, now)| Step::of(name, base.named(name), now)).collect();
        state.append(&steps, || self.saved(base))
    }

    fn saved(&self, base: &Config) -> Result<SavedNetwork, Refusal> {
        let (config, leases) = self.ask(|daemon| (daemon.config(), daemon.leases()))?;
        Ok(SavedNetwork::between(base, &config).with_leases(leases))
    }

    /// Bytes written to the state file so far.
    pub fn state_bytes(&self) -> u64 {
        self.state.as_ref().map_or(0, StateFile::written)
    }
}

/// Keys with different values, but for `enabled`.
fn key_changes(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<KeyChange> {
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    let value = |keys: &Map<String, Value>, key: &String| keys.get(key).unwrap_or(&Value::Null).to_string();
    let changes = keys.map(|key| KeyChange { key: key.clone(), from: value(before, key), to: value(after, key) });
    changes.filter(|change| change.from != change.to && change.key != "enabled").collect()
}
