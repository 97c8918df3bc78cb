//! The daemon: a network made from a configuration, from start to stop, and the ports that are attached and detached in between.

mod attached;
mod snapshot;
mod start_error;
pub mod takeover;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use thiserror::Error;

use attached::AttachedPorts;
pub use start_error::StartError;

use crate::budget::{Account, Permit};
use crate::config::kinds::{OpenError, PortEndpoint};
use crate::config::{self, Config, NamesConfig, PortConfig, PortOrigin, UplinkConfig, too_many_rules};
use crate::descriptors::USUAL;
use crate::helper::Helper;
use crate::names::{LeaseNews, Names, SavedLease};
use crate::network::{AddError, AttachSettings, Network};
use crate::port::settings::PortSettings;
use crate::port::{Offer, Port, default_address};
use crate::sandbox;
use crate::shared::Shared;
use crate::uplink::{Uplink, UplinkReport};
use memlane_backends::executor::Executor;
use memlane_backends::interface::{self, PresentInterface};
use memlane_backends::session::Session;
use memlane_backends::stream::{self, Passt, PresentStream, StreamSettings};
use memlane_backends::vhost_user::socket::Listener;
use memlane_backends::vhost_user::{self, DeviceSettings, Pause};
use memlane_backends::xen::{News, XenError, XenstoreWatcher};
use memlane_model::policy::MOST_RULES;
use memlane_names::NamesReport;

/// There is no port of this name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("there is no port '{0}'")]
pub struct NoSuchPort(pub String);

/// Why a port cannot be changed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// See there.
    #[error(transparent)]
    NoSuchPort(#[from] NoSuchPort),
    /// The port's MAC address belongs to another port.
    #[error(transparent)]
    Address(#[from] AddError),
}

/// A running network.
#[derive(Debug)]
pub struct Daemon {
    network: Arc<Network>,
    /// The configuration at the start, without its ports and uplinks.
    config: Config,
    /// Uplinks of segments to other hosts. Lock order: after `attached`, if both are needed.
    uplinks: Mutex<Vec<Uplink>>,
    attached: Mutex<AttachedPorts>,
    /// Runs the sessions of ports, once there is a port with one.
    executor: Mutex<Option<Arc<Executor>>>,
    /// Responders of segments, for the life of the network. Lock order: after `attached`.
    names: Mutex<Vec<Names>>,
    /// Where they tell of changed leases.
    lease_news: LeaseNews,
    /// Names of ephemeral ports that are closed, and the receiver until it is taken.
    closed: (Sender<String>, Mutex<Option<Receiver<String>>>),
    /// The xenstore watcher, once there is a Xen port.
    watcher: Mutex<Option<Arc<XenstoreWatcher>>>,
    /// Held while the xenstore watcher starts, which may take long, so that only one is started.
    watcher_starts: Mutex<()>,
}

/// A port, and the session that serves it.
#[derive(Debug)]
struct Attached {
    config: PortConfig,
    port: Arc<Port>,
    server: Server,
    _own: Permit,
}

#[derive(Debug)]
enum Server {
    FrontEnd(Session, Arc<Pause>, Option<Arc<Listener>>),
    Stream(Session, PresentStream, Option<Arc<Listener>>),
    Interface(Session, PresentInterface),
    Xen(Arc<XenstoreWatcher>),
    /// A worker serves the port's ends; there is no session.
    Worker,
}

impl Server {
    /// The session of a vhost-user port, and how a takeover has it stand still.
    fn front_end(&self) -> Option<(&Session, &Pause)> {
        match self {
            Self::FrontEnd(session, pause, _) => Some((session, pause)),
            _ => None,
        }
    }

    fn listener(&self) -> Option<&Listener> {
        match self {
            Self::FrontEnd(_, _, listener) | Self::Stream(_, _, listener) => listener.as_deref(),
            _ => None,
        }
    }

    fn stream(&self) -> Option<&PresentStream> {
        match self {
            Self::Stream(_, present, _) => Some(present),
            _ => None,
        }
    }

    /// A copy of the descriptor of its TAP device or packet socket.
    fn interface(&self) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Interface(_, present) => present.copy(),
            _ => Ok(None),
        }
    }
}

/// Ports for which a new segment has room while the network runs.
const USUAL_MEMBERS: usize = 8;

/// Resources of a port that are opened before it is attached, because opening them may take long.
#[derive(Debug)]
pub struct Prepared {
    endpoint: PortEndpoint,
    /// The port's permit for file descriptors.
    own: Permit,
}

impl Daemon {
    /// Starts the network that `config` describes; when this returns, front ends can connect to its sockets.
    ///
    /// # Errors
    /// A [`StartError`]; nothing is left running then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, |_| {})
    }

    /// Starts the network as [`Self::start`] does; `added` is called once there are the ports, before any is served.
    fn start_with(config: &Config, added: impl FnOnce(&Self)) -> Result<Self, StartError> {
        // First of all: the ports' permits are taken from the descriptor limit before other files are opened.
        let shared = Shared::new(config.workers, random()?, config.settings.clone());
        let prepare = |port| {
            refuse_outside(port)?;
            let own = own_descriptors(&shared, port)?;
            Ok(Prepared {
                own,
                endpoint: port.kind.open(&port.opening(None, &|| port.shut_out(), &|| config.nat_of(port), &starting(port)))?,
            })
        };
        let prepared = config.ports.iter().map(prepare).collect::<Result<Vec<_>, StartError>>()?;
        let network = Network::start(shared, &config.cpus)?;
        let daemon = Self::bare(network, config);
        daemon.network.set_snooping(&config.snooping)?;
        let mut members = members(config);
        for uplink in &config.uplinks {
            let members = members.entry(uplink.segment()).or_default();
            *members += 1;
            if let Err(error) = daemon.start_uplink(uplink, *members) {
                daemon.stop();
                return Err(error);
            }
        }
        match daemon.open_all(config, (prepared, added), &members) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.stop();
                Err(error)
            }
        }
    }

    /// Adds the ports of `config`, then serves them: front ends may wait at the sockets already, and a frame to the address of a port
    /// that is added later would be flooded.
    fn open_all(
        &self,
        config: &Config,
        (prepared, added): (Vec<Prepared>, impl FnOnce(&Self)),
        members: &HashMap<&str, usize>,
    ) -> Result<(), StartError> {
        let add = |port: &PortConfig| self.add(port, members[port.segment.as_str()]);
        let ports = config.ports.iter().map(add).collect::<Result<Vec<_>, _>>()?;
        self.start_names(config, members)?;
        added(self);
        for ((config, port), prepared) in config.ports.iter().zip(ports).zip(prepared) {
            self.serve_added(config, port, prepared)?;
        }
        Ok(())
    }

    /// A daemon without ports and uplinks.
    fn bare(network: Arc<Network>, config: &Config) -> Self {
        network.set_policy(&config.policy);
        let (sender, closed) = channel();
        Self {
            closed: (sender, Mutex::new(Some(closed))),
            network,
            config: Config { ports: Vec::new(), uplinks: Vec::new(), ..config.clone() },
            uplinks: Mutex::default(),
            attached: Mutex::default(),
            executor: Mutex::default(),
            names: Mutex::default(),
            lease_news: Arc::default(),
            watcher: Mutex::default(),
            watcher_starts: Mutex::default(),
        }
    }

    fn attached(&self) -> MutexGuard<'_, AttachedPorts> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_uplinks(&self) -> MutexGuard<'_, Vec<Uplink>> {
        self.uplinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Vec<Names>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the responders of `config`, and tells them of the ports.
    fn start_names(&self, config: &Config, members: &HashMap<&str, usize>) -> Result<(), StartError> {
        for names in &config.names {
            let members = members.get(names.segment.as_str()).copied().unwrap_or(1);
            let settings = (names, has_way_out(config, names));
            let started = Names::start(&*self.executor()?, &self.network, config.seed(), settings, members, &self.lease_news)?;
            self.names().push(started);
        }
        self.attached().iter().for_each(|attached| self.name_port(&attached.config));
        Ok(())
    }

    /// Tells the responder of its segment of a port, if there is one.
    fn name_port(&self, port: &PortConfig) {
        self.names().iter().for_each(|names| names.set_port(&self.network, port, self.offer(port)));
    }

    /// Leases of all responders, in the order of their addresses; also those that are kept for ports that have left.
    pub fn leases(&self) -> Vec<SavedLease> {
        let mut leases: Vec<SavedLease> = self.names().iter().flat_map(Names::leases).collect();
        leases.sort();
        leases
    }

    /// Whether the port called `port` has a lease that is in use.
    pub fn has_lease(&self, port: &str) -> bool {
        self.names().iter().any(|names| names.has_lease(port))
    }

    /// Restores stored leases, also of ports that may come back.
    pub fn restore_leases(&self, leases: &[SavedLease]) {
        self.names().iter().for_each(|names| names.restore(&self.network, leases));
    }

    /// Sends a message through `news` for each change of leases.
    pub fn tell_of_leases(&self, news: Sender<()>) {
        *self.lease_news.lock().unwrap_or_else(PoisonError::into_inner) = Some(news);
    }

    /// Running leases of `port`, if it was lately refused another one.
    pub fn shortage(&self, port: &PortConfig) -> Option<usize> {
        self.names().iter().filter(|names| names.config().segment == port.segment).find_map(|names| names.shortage(&port.name))
    }

    /// Reports of all responders.
    pub fn names_reports(&self) -> Vec<NamesReport> {
        self.names().iter().map(Names::report).collect()
    }

    /// The configuration at the start, with the current ports and uplinks in the order in which they were added.
    pub fn config(&self) -> Config {
        let ports = self.attached().iter().map(|attached| attached.config.clone()).collect();
        let uplinks = self.all_uplinks().iter().map(|uplink| uplink.config().clone()).collect();
        Config { ports, uplinks, policy: self.network.policy(), snooping: self.network.snooping(), ..self.config.clone() }
    }

    /// Name of the network of which usual MAC addresses are made.
    pub fn seed(&self) -> &str {
        self.config.seed()
    }

    /// Name of the network.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The configuration of the port called `name`.
    pub fn port(&self, name: &str) -> Option<PortConfig> {
        self.attached().get(name).map(|attached| attached.config.clone())
    }

    /// Mistakes in the addresses of `port` on its segment, each with its key.
    pub fn address_mistakes(&self, port: &PortConfig) -> Vec<(&'static str, String)> {
        let names = self.config.names.iter().find(|names| names.segment == port.segment);
        config::names::mistakes(&port.settings.limits, names)
    }

    /// Number of ports.
    pub fn port_count(&self) -> usize {
        self.attached().len()
    }

    /// Claims of `port` to resources that another port has, but for the one called `own`, and groups with too many policy rules: the key of
    /// each, and the sentence for it.
    pub fn clashes(&self, port: &PortConfig, own: &str) -> Vec<(&'static str, String)> {
        let mut clashes = self.attached().clashes(port, own);
        let rules = self.network.count_rules(&port.name, &port.settings.limits.groups);
        if rules > MOST_RULES {
            clashes.push(("groups", too_many_rules(&port.name, rules)));
        }
        clashes
    }

    /// Adds an uplink: extends a segment to other hosts. Its guests are offered the uplink's MTU when they connect next.
    ///
    /// # Errors
    /// A [`StartError`]: a device cannot be created; nothing has changed then.
    pub fn add_uplink(&self, uplink: &UplinkConfig) -> Result<(), StartError> {
        if let Some(cause) = sandbox::uplink_refusal(uplink) {
            return Err(StartError::UplinkSandbox { segment: uplink.segment().to_owned(), cause });
        }
        self.start_uplink(uplink, USUAL_MEMBERS)
    }

    fn start_uplink(&self, config: &UplinkConfig, members: usize) -> Result<(), StartError> {
        let uplink = Uplink::start(&self.network, &|| self.executor(), &self.config.name, config, members)?;
        self.all_uplinks().push(uplink);
        let attached = self.attached();
        let its_ports = attached.iter().filter(|attached| attached.config.segment == config.segment());
        its_ports.for_each(|attached| attached.port.set_offer(self.offer(&attached.config)));
        Ok(())
    }

    /// Removes a segment's uplink; false if it had none.
    pub fn remove_uplink(&self, segment: &str) -> bool {
        let uplink = {
            let mut all = self.all_uplinks();
            let Some(index) = all.iter().position(|uplink| uplink.segment() == segment) else { return false };
            all.remove(index)
        };
        uplink.stop(&self.network);
        let attached = self.attached();
        let its_ports = attached.iter().filter(|attached| attached.config.segment == segment);
        its_ports.for_each(|attached| attached.port.set_offer(self.offer(&attached.config)));
        true
    }

    /// Attaches a port; when this returns, its front end can connect to its socket.
    ///
    /// # Errors
    /// A [`StartError`]; nothing has changed then.
    pub fn attach(&self, port: &PortConfig) -> Result<(), StartError> {
        self.attach_prepared(port, self.prepare(port)?)
    }

    /// Opens the resources that `port` needs.
    ///
    /// # Errors
    /// A [`StartError`]; nothing has changed then.
    pub fn prepare(&self, port: &PortConfig) -> Result<Prepared, StartError> {
        // The name is checked first: a port of the same name may use the same socket.
        if self.network.find(&port.name).is_some() {
            return Err(AddError::NameTaken(port.name.clone()).into());
        }
        refuse_outside(port)?;
        let own = own_descriptors(self.network.shared(), port)?;
        let endpoint = self.endpoint(port)?;
        if let PortEndpoint::Xen(_) = endpoint {
            self.watcher().map_err(|cause| OpenError::Xen { port: port.name.clone(), cause })?;
        }
        Ok(Prepared { endpoint, own })
    }

    /// Like [`Self::attach`], with resources that were opened before.
    ///
    /// # Errors
    /// The errors of [`Self::attach`].
    pub fn attach_prepared(&self, port: &PortConfig, prepared: Prepared) -> Result<(), StartError> {
        self.open(port, prepared, USUAL_MEMBERS)
    }

    fn open(&self, config: &PortConfig, prepared: Prepared, members: usize) -> Result<(), StartError> {
        let port = self.add(config, members)?;
        self.serve_added(config, port, prepared)
    }

    /// Adds a port that nothing serves yet.
    fn add(&self, config: &PortConfig, members: usize) -> Result<Arc<Port>, StartError> {
        let settings = config.settings_in(self.config.seed());
        let attach_settings =
            AttachSettings { name: &config.name, segment: &config.segment, settings: &settings, offer: self.offer(config) };
        let port = self.network.add_port(&attach_settings, members)?;
        self.set_suppression(&port);
        self.begin_stay(config, &port, false);
        if config.kind.about().drops_reserved {
            port.policy.usually_drop_reserved();
        }
        Ok(port)
    }

    /// Serves `port`, or removes it.
    fn serve_added(&self, config: &PortConfig, port: Arc<Port>, prepared: Prepared) -> Result<(), StartError> {
        match self.serve(config, &port, prepared.endpoint) {
            Ok(server) => {
                self.name_port(config);
                self.attached().add(Attached { config: config.clone(), port, server, _own: prepared.own });
                Ok(())
            }
            Err(error) => {
                self.network.remove_port(&port);
                Err(error)
            }
        }
    }

    /// Has an ephemeral port go with its front end, which `has_left` perhaps already.
    fn begin_stay(&self, config: &PortConfig, port: &Port, has_left: bool) {
        if config.origin.ephemeral {
            port.ephemeral.begin(self.closed.0.clone(), has_left);
        }
    }

    /// Labels of ports that metrics have.
    pub fn metrics_labels(&self) -> Vec<String> {
        self.config.metrics_labels.clone()
    }

    /// Names of ephemeral ports that are closed; once.
    pub fn take_closed(&self) -> Option<Receiver<String>> {
        self.closed.1.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the port called `name` is ephemeral and closed.
    pub fn is_closed(&self, name: &str) -> bool {
        self.attached().get(name).is_some_and(|attached| attached.port.ephemeral.is_closed())
    }

    /// Has the port called `name` stay until a front end has come and left, if its last one has left; false if it is not attached.
    pub fn renew(&self, name: &str) -> bool {
        let all = self.attached();
        let port = all.get(name).map(|attached| &attached.port);
        port.inspect(|port| port.ephemeral.await_again(Instant::now())).is_some()
    }

    /// Has the switch answer address resolution on the segment of `port`, or not, as configured.
    fn set_suppression(&self, port: &Port) {
        port.segment.addresses().set_answering(self.config.suppression.get(&port.segment.name).copied());
    }

    fn serve(&self, config: &PortConfig, port: &Arc<Port>, endpoint: PortEndpoint) -> Result<Server, StartError> {
        let network = Arc::clone(&self.network);
        Ok(match endpoint {
            PortEndpoint::FrontEnd(endpoint) => {
                let listener = endpoint.listening();
                let (session, pause) = vhost_user::run(&*self.executor()?, network, device_settings(config, port), endpoint)?;
                Server::FrontEnd(session, pause, listener)
            }
            PortEndpoint::Stream(other, restored) => {
                let listener = other.listening();
                let settings = StreamSettings { other, checksums: config.kind.checksums(), second: config.second };
                let (session, present) = stream::run(&*self.executor()?, network, port, settings, restored)?;
                Server::Stream(session, present, listener)
            }
            PortEndpoint::Xen(wanted) => {
                let watcher = self.watcher().map_err(|cause| OpenError::Xen { port: config.name.clone(), cause })?;
                watcher.serve(wanted, port);
                Server::Xen(watcher)
            }
            PortEndpoint::Interface(origin, opened) => {
                let (session, present) = interface::run(&*self.executor()?, network, port, origin, opened)?;
                Server::Interface(session, present)
            }
            PortEndpoint::Worker(backend) => {
                backend.serve(&network, port)?;
                Server::Worker
            }
            PortEndpoint::Later => return self.serve(config, port, self.endpoint(config)?),
        })
    }

    /// The executor of sessions, which is started if there is none.
    fn executor(&self) -> std::io::Result<Arc<Executor>> {
        let mut executor = self.executor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executor) = &*executor {
            return Ok(Arc::clone(executor));
        }
        Ok(Arc::clone(executor.insert(Arc::new(Executor::new()?))))
    }

    /// The xenstore watcher, which is started if there is none.
    fn watcher(&self) -> Result<Arc<XenstoreWatcher>, XenError> {
        let watcher = || self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*watcher() {
            return Ok(Arc::clone(watcher));
        }
        let _alone = self.watcher_starts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*watcher() {
            return Ok(Arc::clone(watcher));
        }
        // Without the other lock, which [`Self::stop`] needs: xenstore may not answer.
        let started = Arc::new(XenstoreWatcher::start(&self.network)?);
        Ok(Arc::clone(watcher().insert(started)))
    }

    /// Opens the resources of `port`, now that uplinks are known.
    fn endpoint(&self, port: &PortConfig) -> Result<PortEndpoint, StartError> {
        let offer = Some(self.offer(port));
        Ok(port.kind.open(&port.opening(offer, &|| port.shut_out(), &|| self.config().nat_of(port), &starting(port)))?)
    }

    fn offer(&self, port: &PortConfig) -> Offer {
        let mtu = port.settings.mtu.or_else(|| self.uplink_mtu(&port.segment));
        Offer { mac: port.settings.mac.unwrap_or_else(|| default_address(self.config.seed(), &port.name)), mtu }
    }

    /// The MTU of the segment's uplink, if it has one.
    fn uplink_mtu(&self, segment: &str) -> Option<u16> {
        self.all_uplinks().iter().find(|uplink| uplink.segment() == segment).map(Uplink::mtu)
    }

    /// Sends news of Xen vifs for which no port is configured through `who`.
    ///
    /// # Errors
    /// Xen is not available, or xen-netback is loaded.
    pub fn tell_of_vifs(&self, who: Sender<News>) -> Result<(), StartError> {
        self.watcher().map_err(StartError::XenVifs)?.tell(who);
        Ok(())
    }

    /// Detaches a port: its session ends in order, as when the network ends. Returns the port's configuration.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn detach(&self, name: &str) -> Result<PortConfig, NoSuchPort> {
        self.detach_all(&[name]).pop().unwrap_or_else(|| Err(NoSuchPort(name.into())))
    }

    /// Like [`Self::detach`], for several ports at once: front ends that do not read their last reply delay this by one timeout,
    /// however many they are.
    pub fn detach_all(&self, names: &[&str]) -> Vec<Result<PortConfig, NoSuchPort>> {
        let (mut told, mut ports, mut servers) = (Vec::new(), Vec::new(), Vec::new());
        for &name in names {
            let gone = self.attached().remove(name).map(|Attached { config, port, server, _own }| {
                servers.push(server);
                ports.push((port, _own));
                config
            });
            told.push(gone.ok_or_else(|| NoSuchPort(name.into())));
        }
        for (server, (port, _)) in servers.iter().zip(&ports) {
            if let Server::Xen(watcher) = server {
                watcher.release(port);
            }
        }
        stop_sessions(servers);
        ports.iter().for_each(|(port, _)| self.network.remove_port(port));
        for port in told.iter().flatten() {
            self.names().iter().for_each(|names| names.remove_port(port));
        }
        told
    }

    /// Gives ports the origin of the network's file, which has them now.
    pub fn adopt(&self, names: &[&str]) {
        let mut all = self.attached();
        for name in names {
            if let Some(attached) = all.get_mut(name) {
                attached.config.origin = PortOrigin::default();
                attached.port.ephemeral.end();
            }
        }
    }

    /// Names of the ports with a guest: a front end that is connected, or an interface.
    pub fn connected(&self) -> HashSet<String> {
        let all = self.attached();
        let connected = all.iter().filter(|attached| attached.config.kind.about().has_guest && attached.port.is_connected());
        connected.map(|attached| attached.config.name.clone()).collect()
    }

    /// Has `change` change the settings of a port; returns its new configuration.
    ///
    /// # Errors
    /// A [`ChangeError`]; nothing has changed then.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut PortSettings)) -> Result<PortConfig, ChangeError> {
        let mut all = self.attached();
        let Attached { config, port, .. } = all.get(name).ok_or_else(|| NoSuchPort(name.into()))?;
        let mut changed = config.clone();
        change(&mut changed.settings);
        let [before, after] = [config, &changed].map(|config| config.settings_in(self.config.seed()));
        self.network.change_port(port, &before, &after)?;
        all.set_settings(name, changed.settings);
        let Attached { config, port, .. } = all.get(name).ok_or_else(|| NoSuchPort(name.into()))?;
        port.set_offer(self.offer(config));
        self.name_port(config);
        Ok(config.clone())
    }

    /// Disables a port, once: for [`Network::await_drained`], which only waits for frames in flight.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn disable(&self, name: &str) -> Result<Arc<Port>, NoSuchPort> {
        let port = self.network.find(name).ok_or_else(|| NoSuchPort(name.into()))?;
        match self.change(name, |settings| settings.enabled = false) {
            Err(ChangeError::NoSuchPort(none)) => Err(none),
            _ => Ok(port),
        }
    }

    /// Reports of all uplinks.
    pub fn uplinks(&self) -> Vec<UplinkReport> {
        self.all_uplinks().iter().map(Uplink::report).collect()
    }

    /// The network, for the control interface.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Completes frames in flight, ends all sessions, and stops the workers.
    pub fn stop(&self) {
        let attached = std::mem::take(&mut *self.attached());
        if let Some(watcher) = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take() {
            watcher.stop();
        }
        stop_sessions(attached.into_all().map(|attached| attached.server));
        let names = std::mem::take(&mut *self.names());
        names.into_iter().for_each(|names| names.stop(&self.network));
        // The listener ends with the sender.
        *self.lease_news.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let uplinks = std::mem::take(&mut *self.all_uplinks());
        uplinks.into_iter().for_each(|uplink| uplink.stop(&self.network));
        *self.executor.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.network.shut_down();
    }
}

/// Whether the segment of `names` has a way out of the network: a router, a NIC, or passt.
fn has_way_out(config: &Config, names: &NamesConfig) -> bool {
    let is_passt = |port: &PortConfig| port.segment == names.segment && port.kind.passt().is_some();
    let is_uplink = |uplink: &UplinkConfig| uplink.segment() == names.segment;
    names.router.is_some() || config.ports.iter().any(is_passt) || config.uplinks.iter().any(is_uplink)
}

/// The number of ports of each segment, with its responder's.
fn members(config: &Config) -> HashMap<&str, usize> {
    let mut members: HashMap<&str, usize> = HashMap::new();
    config.ports.iter().for_each(|port| *members.entry(&port.segment).or_default() += 1);
    config.names.iter().for_each(|names| *members.entry(&names.segment).or_default() += 1);
    members
}

/// Ends these sessions, all at the same time.
fn stop_sessions(servers: impl IntoIterator<Item = Server>) {
    let session = |server| match server {
        Server::FrontEnd(session, ..) | Server::Stream(session, ..) | Server::Interface(session, _) => Some(session),
        Server::Xen(_) | Server::Worker => None,
    };
    Session::stop(servers.into_iter().filter_map(session).collect());
}

/// Has the helper start passt for `port`, if it does that, else this process.
fn starting(port: &PortConfig) -> impl Fn(Passt) -> io::Result<Passt> {
    |mut passt| {
        match Helper::starting_passt(&port.name) {
            Some(helper) => {
                helper.probe_passt(&port.name)?;
                let mtu = port.settings.mtu;
                passt.start_by(Box::new(move |name| helper.start_passt(name, mtu)));
            }
            None => Passt::probe()?,
        }
        Ok(passt)
    }
}

/// Refuses a port for which the sandbox has no rights: one that is attached later, or that only the state has.
fn refuse_outside(port: &PortConfig) -> Result<(), StartError> {
    let refused = |cause| Err(StartError::Sandbox { port: port.name.clone(), cause });
    sandbox::refusal(&port.name, &port.kind).map_or(Ok(()), refused)
}

/// Takes the descriptor permit that `port` holds while it is attached.
fn own_descriptors(shared: &Shared, port: &PortConfig) -> Result<Permit, StartError> {
    let own = Account::with_floor(&shared.descriptors.budget, USUAL).take(port.kind.about().descriptors);
    own.ok_or_else(|| StartError::Descriptors(port.name.clone()))
}

/// A random key of the hash functions, which guests cannot guess.
fn random() -> io::Result<u64> {
    let mut key = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(u64::from_ne_bytes(key))
}

/// Settings of a vhost-user port.
fn device_settings(config: &PortConfig, port: &Arc<Port>) -> DeviceSettings {
    DeviceSettings {
        port: Arc::clone(port),
        receive_offloads: config.receive_offloads,
        lazy_memory: config.lazy_memory,
        pairs: config.queues,
        second: config.second,
    }
}
