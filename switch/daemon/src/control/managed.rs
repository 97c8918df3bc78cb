//! A network that is changed while it runs: one change at a time, and what was changed is kept for the next start if the operator wants that.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use memlane_observe::events::{From, Reader};
use memlane_observe::metrics::Format;
use serde_json::{Map, Value};

use super::metrics::{self, LastReload, ProcessUsage};
use super::problem::Refusal;
use super::reload::{self, ReloadOptions, Reloaded};
use super::report::{PortReport, PortView, Report, SegmentReport, SegmentView};
use super::running::{Identity, NetFile};
use super::state::State;
use super::state_file::StateFile;
use crate::config::difference::{self, Difference};
use crate::config::{Config, Mistakes, PortConfig, PortEntry, Reread};
use crate::daemon::{Daemon, NoSuchPort, Prepared};
use crate::journal::NetworkEvent;

/// Longest wait in which it is not looked at whether the network ends.
const STEP: Duration = Duration::from_millis(100);

/// Where a network's ports come from.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Its file, if it has one.
    pub file: Option<PathBuf>,
    /// Where relative paths lie that are sent to it.
    pub folder: PathBuf,
    /// Where differences to the file are kept.
    pub state: Option<PathBuf>,
}

/// See the module.
#[derive(Debug)]
pub struct Managed {
    /// `None` once the network ends, which waits for what is asked, but not for ports to come, see [`Daemon::prepare`].
    daemon: RwLock<Option<Arc<Daemon>>>,
    /// What the file says; held by whoever changes something.
    base: Mutex<Config>,
    origin: Origin,
    /// The file as it was at the start.
    file: Option<NetFile>,
    state: Option<StateFile>,
    started: Instant,
    last_reload: LastReload,
}

impl Managed {
    /// Starts the network that `base`, its file, describes, with what its state says is different.
    ///
    /// # Errors
    /// The state cannot be read, makes no sense or cannot be kept; the network cannot be started.
    pub fn start(base: Config, origin: Origin) -> Result<Self, Refusal> {
        let unkept = |error: super::state::StateError| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
        let (mut config, mut kept) = (base.clone(), None);
        if let Some(path) = &origin.state {
            let (file, state) = StateFile::open(path).map_err(unkept)?;
            config = state.applied_to(&base, path).map_err(unkept)?;
            // What cannot be kept later is better told now.
            file.begin(&state, &State::between(&base, &config)).map_err(unkept)?;
            kept = Some(file);
        }
        let daemon = RwLock::new(Some(Arc::new(Daemon::start(&config)?)));
        let file = origin.file.as_deref().and_then(|file| NetFile::at(file).ok());
        Ok(Self {
            daemon,
            base: Mutex::new(base),
            origin,
            file,
            state: kept,
            started: Instant::now(),
            last_reload: LastReload::at_start(),
        })
    }

    /// Ends the network; what is asked for from then on is refused.
    pub fn stop(&self) {
        let daemon = self.daemon.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(daemon) = daemon {
            daemon.stop();
        }
        if let Some(state) = &self.state {
            state.end();
        }
    }

    /// Why changes are not saved in the state file, if they should be and are not.
    pub fn unsaved(&self) -> Option<String> {
        self.state.as_ref()?.unsaved()
    }

    /// Asks the daemon. What a network says that ends for a fatal error meanwhile may be wrong: that error is told instead.
    pub(crate) fn ask<A>(&self, question: impl FnOnce(&Daemon) -> A) -> Result<A, Refusal> {
        let daemon = self.daemon.read().unwrap_or_else(PoisonError::into_inner);
        let daemon = daemon.as_deref().ok_or_else(Refusal::ending)?;
        let answer = question(daemon);
        match daemon.network().fatal().cause() {
            Some(cause) => Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, cause)),
            None => Ok(answer),
        }
    }

    /// Why the network is over, if it is though it was not told to end.
    pub fn fatal(&self) -> Option<String> {
        let daemon = self.daemon.read().unwrap_or_else(PoisonError::into_inner);
        daemon.as_deref()?.network().fatal().cause().map(str::to_owned)
    }

    /// Has `bell` called once there is a [`Self::fatal`] error.
    pub fn ring_if_fatal(&self, bell: impl FnOnce() + Send + 'static) {
        let daemon = self.daemon.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(daemon) = daemon.as_deref() {
            daemon.network().fatal().ring(bell);
        }
    }

    /// Attaches `port`; the end does not wait for that which it needs before it can come.
    pub(super) fn come(&self, port: &PortConfig) -> Result<(), Refusal> {
        let prepared = self.prepare(port)?;
        Ok(self.ask(|daemon| daemon.attach_prepared(port, prepared))??)
    }

    /// Makes what `port` needs before it can come. The end does not wait for this.
    fn prepare(&self, port: &PortConfig) -> Result<Prepared, Refusal> {
        let daemon = self.daemon.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(daemon.ok_or_else(Refusal::ending)?.prepare(port)?)
    }

    /// One change at a time.
    fn changing(&self) -> MutexGuard<'_, Config> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The network as it is now.
    ///
    /// # Errors
    /// It ends.
    pub fn config(&self) -> Result<Config, Refusal> {
        self.ask(Daemon::config)
    }

    fn port(&self, name: &str) -> Result<PortConfig, Refusal> {
        let found = self.config()?.ports.into_iter().find(|port| port.name == name);
        found.ok_or_else(|| NoSuchPort(name.into()).into())
    }

    /// What is to be seen of all.
    ///
    /// # Errors
    /// The network ends.
    pub fn report(&self) -> Result<Report, Refusal> {
        let unsaved = self.unsaved();
        self.ask(|daemon| {
            let report = Report::new(&daemon.config(), daemon.network(), self.started.elapsed());
            Report { uplinks: daemon.uplinks(), unsaved, ..report }
        })
    }

    /// The same as metrics.
    ///
    /// # Errors
    /// The network ends.
    pub fn metrics(&self, format: Format) -> Result<String, Refusal> {
        let usage = ProcessUsage::now().unwrap_or_default();
        Ok(metrics::text(&self.report()?, &self.last_reload, usage, format))
    }

    /// A reader of its events.
    ///
    /// # Errors
    /// The network ends.
    pub fn events(&self, from: From) -> Result<Reader<NetworkEvent>, Refusal> {
        self.tell_first_drops()?;
        self.ask(|daemon| daemon.network().shared().journal.reader(from))
    }

    /// Tells of the first drops of ports whose workers sleep.
    ///
    /// # Errors
    /// The network ends.
    pub fn tell_first_drops(&self) -> Result<(), Refusal> {
        self.ask(|daemon| daemon.network().tell_first_drops())
    }

    /// Which network it is.
    ///
    /// # Errors
    /// The network ends.
    pub fn identity(&self) -> Result<Identity, Refusal> {
        let config = self.config()?;
        Ok(Identity {
            name: config.name,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime: self.started.elapsed().as_secs(),
            file: self.file.as_ref().map(NetFile::now),
            ports: config.ports.len(),
        })
    }

    /// Refuses what is asked of the network of `file`, if this one has another file.
    ///
    /// # Errors
    /// It has.
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

    /// What is to be seen of its ports.
    ///
    /// # Errors
    /// The network ends.
    pub fn ports(&self) -> Result<Vec<PortReport>, Refusal> {
        self.report().map(|report| report.ports)
    }

    /// What is to be seen of a port.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn view(&self, name: &str) -> Result<PortView, Refusal> {
        let port = self.port(name)?;
        let config = Config { ports: vec![port.clone()], ..self.config()? };
        let report = self.ask(|daemon| PortReport::of(&config, &port, daemon.network()))?;
        let report = report.ok_or_else(|| NoSuchPort(name.into()))?;
        Ok(PortView { report, entry: port.entry() })
    }

    /// The segments.
    ///
    /// # Errors
    /// The network ends.
    pub fn segments(&self) -> Result<Vec<SegmentReport>, Refusal> {
        self.ask(|daemon| SegmentReport::all(&daemon.config()))
    }

    /// What is to be seen of a segment.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn segment(&self, name: &str) -> Result<SegmentView, Refusal> {
        let view = self.ask(|daemon| SegmentView::of(name, &daemon.config(), daemon.network(), self.started.elapsed()))?;
        view.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, format!("there is no segment '{name}'")))
    }

    /// Attaches the port that `entry` describes.
    ///
    /// # Errors
    /// It has mistakes, or what another port has, or the machine refuses; nothing has changed then.
    pub fn attach(&self, entry: &Value) -> Result<PortView, Refusal> {
        let port = PortConfig::from_json(entry, &self.origin.folder)?;
        self.refuse_clashes(&port, "")?;
        // A name service or an interface may take long: no other change waits for those.
        let prepared = self.prepare(&port)?;
        let base = self.changing();
        self.refuse_clashes(&port, "")?;
        self.ask(|daemon| daemon.attach_prepared(&port, prepared))?.map_err(Refusal::from)?;
        self.keep(&base)?;
        drop(base);
        self.view(&port.name)
    }

    /// Refuses what other ports have than the one called `own`.
    fn refuse_clashes(&self, port: &PortConfig, own: &str) -> Result<(), Refusal> {
        let config = self.config()?;
        let clashes = port.clashes(config.ports.iter().filter(|other| other.name != own));
        if clashes.is_empty() {
            return Ok(());
        }
        let clashes = clashes.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
        Err(Refusal::mistaken(StatusCode::CONFLICT, clashes))
    }

    /// Detaches a port; returns what would attach it again.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn detach(&self, name: &str) -> Result<PortEntry, Refusal> {
        let base = self.changing();
        let port = self.ask(|daemon| daemon.detach(name))??;
        self.keep(&base)?;
        Ok(port.entry())
    }

    /// Changes the keys of a port that `patch` has; one that is null is as if the file did not have it.
    ///
    /// # Errors
    /// The keys have mistakes, cannot change while the port runs, or claim what another port has; nothing has changed then.
    pub fn change(&self, name: &str, patch: &Map<String, Value>) -> Result<PortEntry, Refusal> {
        let base = self.changing();
        let before = self.port(name)?;
        let after = before.patched(patch)?;
        self.refuse_clashes(&after, name)?;
        let port = self.ask(|daemon| daemon.change(name, &difference::change(&before, &after)))??;
        self.keep(&base)?;
        Ok(port.entry())
    }

    /// Disables a port and waits until nothing of it is under way, for so long at most; true if so.
    ///
    /// # Errors
    /// There is none of this name, or the network ends.
    pub fn drain(&self, name: &str, patience: Duration) -> Result<bool, Refusal> {
        let end = Instant::now() + patience;
        {
            let base = self.changing();
            self.ask(|daemon| daemon.drain(name, Duration::ZERO))??;
            self.keep(&base)?;
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // In steps: a network that ends is not to wait for this.
            if self.ask(|daemon| daemon.drain(name, left.min(STEP)))?? {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Makes the network what `wanted` says, or only tells what would be done. Refused where settings differ that only a restart changes, or where
    /// every port would be detached, unless `options` allow it.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn reload(&self, wanted: &Config, options: ReloadOptions) -> Result<Reloaded, Refusal> {
        // A name service may take long: no other change waits for it.
        wanted.ports.iter().for_each(|port| port.access.look_up());
        let mut base = self.changing();
        let now = self.config()?;
        let difference = Difference::between(&now, wanted);
        let refused = options.refuse(&difference, now.ports.len());
        if options.dry_run {
            return Ok(Reloaded::planned(&difference, refused));
        }
        if !difference.restart.is_empty() && !options.ports_only {
            let keys = difference.restart.join(", ");
            let text = format!("only a restart changes {keys}: restart the network, or ask for the ports alone (--ports-only)");
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        if let Some(text) = refused {
            return Err(Refusal::new(StatusCode::CONFLICT, text));
        }
        let reloaded = reload::carry_out(self, &difference);
        *base = self.config()?;
        self.keep(&base)?;
        Ok(reloaded)
    }

    /// As [`Self::reload`], from a document as JSON, or from the network's own file.
    ///
    /// # Errors
    /// The document or file has mistakes; there is no file; as [`Self::reload`].
    pub fn reload_from(&self, document: Option<&Value>, options: ReloadOptions) -> Result<Reloaded, Refusal> {
        let result = self.reload_document(document, options);
        if !options.dry_run {
            self.last_reload.note(result.as_ref().is_ok_and(|reloaded| reloaded.failed.is_empty()));
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
                failed: reloaded.failed.iter().map(|failed| failed.name.clone()).collect(),
            },
            Err(refusal) => NetworkEvent::ReloadRefused { cause: refusal.to_string() },
        };
        // A network that ends has nobody to tell.
        let _ = self.ask(|daemon| daemon.network().shared().journal.add(event));
    }

    fn reload_document(&self, document: Option<&Value>, options: ReloadOptions) -> Result<Reloaded, Refusal> {
        if let Some(document) = document {
            let wanted = Config::from_json(document, &self.config()?.name, &self.origin.folder)?;
            return self.reload(&wanted, options);
        }
        let Reread { document, cut_off } = self.load_file(options.force)?;
        self.reload(&document.config(), ReloadOptions { cut_off, ..options })
    }

    fn load_file(&self, force: bool) -> Result<Reread, Refusal> {
        let none = || {
            Refusal::new(StatusCode::CONFLICT, "the network was started without a file: name one, as `memlane reload FILE` does")
        };
        let file: &Path = self.origin.file.as_deref().ok_or_else(none)?;
        // With their lines, in the file that may not be the one that the operator thinks of.
        let told = |mistakes: Mistakes| {
            let mut refusal = Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, mistakes.to_string());
            refusal.problem.mistakes = Refusal::from(mistakes).problem.mistakes;
            refusal
        };
        Reread::load(file, force).map_err(told)
    }

    /// Keeps what is different from the file, if the operator wants that.
    fn keep(&self, base: &Config) -> Result<(), Refusal> {
        if let Some(state) = &self.state {
            state.save(&State::between(base, &self.config()?));
        }
        Ok(())
    }
}
