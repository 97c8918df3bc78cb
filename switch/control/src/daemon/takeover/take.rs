//! The process that takes a running network over.
//!
//! Until it runs, connections and sockets are still those of the other process: on any error it ends at once and removes nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use memlane_backends::stream;
use memlane_backends::takeover::{Gate, Progress, ReceivedFiles, Report, RestoredDevice, RestoredSession};
use memlane_backends::vhost_user;
use memlane_backends::vhost_user::socket::Listener;
use memlane_confine::system;
use nix::unistd::geteuid;
use serde_json::{Map, Value};
use thiserror::Error;

use super::super::{Attached, Daemon, Server, StartError, device_settings, members, own_descriptors, random, starting};
use super::{Channel, ChannelError, Message, PREPARE, REPLY, START};
use crate::author::Author;
use crate::config::kinds::{OpenError, PortEndpoint, SavedResources};
use crate::config::{Config, Mistakes, PortConfig};
use crate::description::{
    Description, GrantRecord, Hello, PortRecord, SavedAddress, SavedListener, SavedPort, SavedService, SavedSockets,
    SavedStreamPort, SavedUplink,
};
use crate::frame::MacAddress;
use crate::network::{AttachSettings, Network};
use crate::policy::grants::SavedGrant;
use crate::port::Port;
use crate::shared::Shared;
use crate::table::LearnedAddress;
use crate::uplink::Uplink;

/// Why a network was not taken over; the other process serves it.
#[derive(Debug, Error)]
pub enum TakeError {
    /// The process at the control socket belongs to another user.
    #[error("the running network belongs to user {0}: take it over as that user")]
    User(u32),
    /// The conversation with the running process failed.
    #[error("the running network was not taken over, and goes on: {0}")]
    Channel(#[from] ChannelError),
    /// The other process sent an unexpected message.
    #[error("the running network was not taken over, and goes on: it sent an unexpected takeover message")]
    Unexpected,
    /// The network's ports do not fit this version.
    #[error("the running network was not taken over, and goes on: its ports do not fit this version: {0}")]
    Ports(Mistakes),
    /// A session cannot be restored.
    #[error("the running network was not taken over, and goes on: {0}")]
    Session(String),
    /// The kernel refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A network that is being taken over.
#[derive(Debug)]
pub struct Takeover {
    channel: Channel,
    description: Description,
    files: ReceivedFiles,
    author: Option<Author>,
}

/// Sockets of the network that was taken over, and their descriptors.
#[derive(Debug)]
pub struct TakenSockets {
    /// Places of the sockets, with numbers in `files`.
    pub saved: SavedSockets,
    /// Descriptors of the sockets.
    pub files: ReceivedFiles,
}

impl Takeover {
    /// Asks the process at the other end of `stream` for its network. `state` is the state file of this process.
    ///
    /// # Errors
    /// A [`TakeError`].
    pub fn begin(stream: UnixStream, state: Option<PathBuf>) -> Result<Self, TakeError> {
        let mut channel = Channel::new(stream);
        let (user, _) = channel.peer()?;
        if user != geteuid().as_raw() {
            return Err(TakeError::User(user));
        }
        channel.send(&Message::Hello(Hello { state }), &[], REPLY)?;
        let (Message::Description(description), files) = channel.receive(PREPARE)? else { return Err(TakeError::Unexpected) };
        Ok(Self { channel, description: *description, files: ReceivedFiles::new(files), author: None })
    }

    /// The file of the network as it was read last, and the network at present: `own` with the ports of the running network.
    ///
    /// # Errors
    /// [`TakeError::Ports`].
    pub fn configs(&self, own: &Config) -> Result<(Config, Config), TakeError> {
        let read = |ports: &[Map<String, Value>]| Config::ports_from_json(ports, Path::new("")).map_err(TakeError::Ports);
        let with = |ports, uplinks| Config { ports, uplinks, ..own.clone() };
        let Description { file_ports, file_uplinks, ports, uplinks, .. } = &self.description;
        let now: Vec<_> = ports.iter().map(|port| port.entry.clone()).collect();
        let all_uplinks = uplinks.iter().map(|uplink| uplink.config.clone()).collect();
        let of_file = read(file_ports)?;
        // Mostly no port was attached or changed by hand.
        let mut of_network = if now == *file_ports { of_file.clone() } else { read(&now)? };
        of_network.iter_mut().zip(ports).for_each(|(port, saved)| port.origin = saved.origin.clone());
        Ok((with(of_file, file_uplinks.clone()), with(of_network, all_uplinks)))
    }

    /// Uplinks and ports of the running network, and the descriptors to which they and [`Self::sockets`] refer.
    pub fn ports(&mut self) -> (Vec<SavedUplink>, Vec<SavedPort>, &mut ReceivedFiles) {
        let Description { uplinks, ports, .. } = &mut self.description;
        (std::mem::take(uplinks), std::mem::take(ports), &mut self.files)
    }

    /// The sockets of the running network, once the descriptors of the ports are taken.
    pub fn sockets(&mut self) -> TakenSockets {
        TakenSockets { saved: std::mem::take(&mut self.description.sockets), files: std::mem::take(&mut self.files) }
    }

    /// The environment by which the service manager of the running network is notified.
    pub fn service(&self) -> &SavedService {
        &self.description.service
    }

    /// Author of the takeover, once it is complete.
    pub fn author(&self) -> Option<Author> {
        self.author.clone()
    }

    /// Tells the running process why the takeover fails.
    pub fn fail(&mut self, cause: &str) {
        // The other process may have ended, or have given the reason itself.
        let _ = self.channel.send(&Message::Failed(cause.into()), &[], REPLY);
    }

    /// Has the running process stop, and starts the ports that are being restored. `begun` is called in between, when the network is this
    /// process's to end. When this returns, it serves the network.
    ///
    /// # Errors
    /// A [`TakeError`]; the process is to end at once, and the other one goes on.
    pub fn complete(&mut self, daemon: &Daemon, mut restoring: Restoring, begun: impl FnOnce()) -> Result<(), TakeError> {
        restoring.await_restored(REPLY).map_err(TakeError::Session)?;
        daemon.learn(&self.description.addresses);
        self.channel.send(&Message::Prepared {}, &[], REPLY)?;
        let (Message::Go(standing), files) = self.channel.receive(PREPARE)? else { return Err(TakeError::Unexpected) };
        // From here on the guard of the other process kills this one if it is late. The kernel does if that one has lost its guard.
        system::end_after(START);
        begun();
        self.author = standing.by;
        daemon.inherit(&standing.records);
        daemon.restore_leases(&standing.departed);
        restoring.give_streams(standing.streams, &mut ReceivedFiles::new(files));
        let rest = restoring.start(daemon).map_err(TakeError::Session)?;
        // In place of its own: that its ports were attached and run is no news.
        let events = std::mem::take(&mut self.description.events).into_iter().chain(standing.events).map(Into::into);
        daemon.network().shared().journal.load(events, standing.next_event);
        // Before the message that completes the takeover and ends the other process: one of both lives.
        system::end_after(Duration::ZERO);
        self.channel.send(&Message::Running {}, &[], REPLY)?;
        rest.let_sessions_go_on();
        // The earlier process ends now; if it does not, its workers stand still all the same.
        if !self.channel.await_end(REPLY) {
            tracing::warn!(target: "memlane::daemon::takeover::take", "the process that served the network before has not ended");
        }
        rest.start(daemon);
        Ok(())
    }
}

/// Takes the descriptor of the state file.
pub fn state_file(sockets: &mut TakenSockets) -> Option<File> {
    sockets.files.take(sockets.saved.state?)
}

impl Daemon {
    /// Makes the network of `config`: its uplinks and ports are those that another process has saved, in their order, with its
    /// descriptors. The other process still serves them; the result starts them.
    ///
    /// # Errors
    /// A [`StartError`]. The process is to end then without further ado: connections and sockets are still the other's.
    pub fn take_over(
        config: &Config,
        uplinks: &[SavedUplink],
        saved: Vec<SavedPort>,
        files: &mut ReceivedFiles,
    ) -> Result<(Self, Restoring), StartError> {
        let shared = Shared::new(config.workers, random()?, config.settings.clone());
        let owned = config.ports.iter().map(|port| own_descriptors(&shared, port)).collect::<Result<Vec<_>, _>>()?;
        let network = Network::start(shared, &config.cpus)?;
        let daemon = Self::bare(network, config);
        daemon.network.set_snooping(&config.snooping)?;
        let (reports, received) = channel();
        let progress = Progress { reports, gate: Arc::new(Gate::default()) };
        let mut members = members(config);
        for saved in uplinks {
            let tap = files.split_off_first(1).and_then(|mut files| files.take(0));
            let tap = tap.ok_or_else(|| OpenError::Description(saved.config.segment().to_owned()))?;
            let members = members.entry(saved.config.segment()).or_default();
            *members += 1;
            let uplink = Uplink::take_over(&daemon.network, &config.name, saved, tap, *members)?;
            daemon.all_uplinks().push(uplink);
        }
        let gate = Arc::clone(&progress.gate);
        let all = config;
        let mut restoring = Restoring { reports: received, sessions: 0, devices: Vec::new(), gate, later: Vec::new() };
        for ((config, saved), own) in config.ports.iter().zip(saved).zip(owned) {
            let missing = || OpenError::Description(config.name.clone());
            let mut files = files.split_off_first(saved.files).ok_or_else(missing)?;
            let settings = config.settings_in(daemon.config.seed());
            let attach_settings =
                AttachSettings { name: &config.name, segment: &config.segment, settings: &settings, offer: daemon.offer(config) };
            let port = daemon.network.add_port_ahead(&attach_settings, members[&config.segment[..]])?;
            daemon.set_suppression(&port);
            daemon.begin_stay(config, &port, saved.has_left);
            let server = match restored_endpoint(&daemon, all, (config, &saved), &mut files)? {
                PortEndpoint::FrontEnd(endpoint) => {
                    let device = device_settings(config, &port);
                    let session = RestoredSession { connection: saved.connection, files, progress: progress.clone() };
                    let listener = endpoint.listening();
                    restoring.sessions += 1;
                    let of_port = (Arc::clone(&daemon.network), device);
                    let (session, pause) = vhost_user::run_restored(&*daemon.executor()?, of_port, endpoint, Some(session))?;
                    Server::FrontEnd(session, pause, listener)
                }
                endpoint @ PortEndpoint::Worker(_) => daemon.serve(config, &port, endpoint)?,
                later => {
                    restoring.later.push((config.clone(), Arc::clone(&port), later));
                    Server::Worker
                }
            };
            daemon.attached().add(Attached { config: config.clone(), port, server, _own: own });
        }
        daemon.start_names(config, &members)?;
        Ok((daemon, restoring))
    }

    /// Continues the counters, states and leases of the ports, which no worker serves yet.
    pub fn inherit(&self, records: &[PortRecord]) {
        for (port, record) in self.ports_in_order().iter().zip(records) {
            port.inherit(&record.totals, record.quarantines, record.quarantined.clone());
            self.restore_leases(&record.leases);
            self.network().restore_grants(port, &record.grants.iter().map(saved_grant).collect::<Vec<_>>());
        }
    }

    fn serve_later(&self, (config, port, endpoint): Later) -> Result<(), StartError> {
        let server = self.serve(&config, &port, endpoint)?;
        let mut attached = self.attached();
        if let Some(attached) = attached.get_mut(&config.name).filter(|attached| Arc::ptr_eq(&attached.port, &port)) {
            attached.server = server;
        }
        Ok(())
    }

    /// Learns the MAC addresses that another process has learned; their age begins anew.
    pub fn learn(&self, addresses: &[SavedAddress]) {
        let ports = self.ports_in_order();
        for SavedAddress { port, address, vlan } in addresses {
            if let Some(port) = ports.get(*port as usize) {
                let address = LearnedAddress { address: MacAddress::new(*address), vlan: *vlan };
                port.segment.table().learn(address, port.id, 0);
            }
        }
    }
}

/// The grant of a record.
pub(in crate::daemon) fn saved_grant(grant: &GrantRecord) -> SavedGrant {
    SavedGrant { address: grant.address, name: grant.name.as_str().into(), seconds: grant.seconds }
}

/// The listening socket that another process described, at `path`.
pub fn restored_listener(path: &Path, saved: &SavedListener, files: &mut ReceivedFiles) -> Option<Listener> {
    let socket = OwnedFd::from(files.take(saved.socket)?);
    Some(Listener::taken_over(socket.into(), path, saved.file))
}

/// Opens the port of `config` with the resources that another process described.
fn restored_endpoint(
    daemon: &Daemon,
    all: &Config,
    (config, saved): (&PortConfig, &SavedPort),
    files: &mut ReceivedFiles,
) -> Result<PortEndpoint, StartError> {
    let missing = || OpenError::Description(config.name.clone());
    let listener = match (config.kind.listens_at(), &saved.listener) {
        (Some(path), Some(listener)) => Some(restored_listener(path, listener, files).ok_or_else(missing)?),
        _ => None,
    };
    let file = saved.tap.map(|number| files.take(number).ok_or_else(missing)).transpose()?;
    let (shut_out, nat, passt) = (|| config.shut_out(), || all.nat_of(config), starting(config));
    let opening = config.opening(Some(daemon.offer(config)), &shut_out, &nat, &passt);
    Ok(config.kind.restore(&opening, SavedResources { listener, file })?)
}

/// Ports of another process that are being restored.
#[derive(Debug)]
pub struct Restoring {
    reports: Receiver<Report>,
    /// Sessions that report.
    sessions: usize,
    /// Devices of the sessions that have reported.
    devices: Vec<RestoredDevice>,
    gate: Arc<Gate>,
    later: Vec<Later>,
}

/// A port that is served once the other process stands still.
type Later = (PortConfig, Arc<Port>, PortEndpoint);

/// Ports that are served once the other process has ended: Xen binds an event channel to one process only, and a new passt could not
/// listen at the ports of the host at which one of the other process still does.
#[derive(Debug)]
pub struct Rest {
    gate: Arc<Gate>,
    later: Vec<Later>,
}

impl Rest {
    /// Lets the sessions go on, which serve messages of front ends.
    pub fn let_sessions_go_on(&self) {
        self.gate.open();
    }

    /// Serves the ports, opens NICs, and has the uplinks keep MAC addresses in step with other hosts.
    pub fn start(self, daemon: &Daemon) {
        for later in self.later {
            let port = Arc::clone(&later.1);
            if let Err(error) = daemon.serve_later(later) {
                daemon.network.quarantine(&port, &error.to_string());
            }
        }
        for uplink in daemon.all_uplinks().iter_mut() {
            if let Err(cause) = uplink.go_on(&daemon.network, &|| daemon.executor()) {
                tracing::error!(
                    target: "memlane::daemon::takeover::take",
                    segment = %uplink.segment(), %cause, "the uplink does not work since the takeover: restart the network"
                );
            }
        }
    }
}

impl Restoring {
    /// Waits until all sessions are restored, up to the start of their virtqueues.
    ///
    /// # Errors
    /// One cannot be, or not within `timeout`.
    pub fn await_restored(&mut self, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        for _ in 0..self.sessions {
            let report = self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let report =
                report.map_err(|_| format!("the sessions of the ports were not restored within {} s", timeout.as_secs()))?;
            self.devices.extend(report?);
        }
        Ok(())
    }

    /// Gives the connections of `streams` to their ports, with the descriptors `files`; others are accepted or made anew.
    pub fn give_streams(&mut self, streams: Vec<SavedStreamPort>, files: &mut ReceivedFiles) {
        let mut streams: HashMap<_, _> = streams.into_iter().map(|saved| (saved.port, saved.stream)).collect();
        for (config, _, endpoint) in &mut self.later {
            if let PortEndpoint::Stream(_, restored) = endpoint {
                *restored = streams.remove(&config.name).and_then(|saved| saved.restore(files));
            }
        }
    }

    /// Starts all virtqueues and devices. The other process stands still, so it costs few round trips between threads, however many
    /// ports there are.
    ///
    /// # Errors
    /// One does not start.
    pub fn start(mut self, daemon: &Daemon) -> Result<Rest, String> {
        // A frame to a port that is not served yet would be lost.
        daemon.network.begin_held();
        let starting: Vec<_> = std::mem::take(&mut self.devices).into_iter().flat_map(RestoredDevice::start).collect();
        daemon.network.finish_starts(starting);
        for uplink in daemon.all_uplinks().iter_mut() {
            uplink.serve(&daemon.network).map_err(|error| error.to_string())?;
        }
        let has_one_holder = |(_, _, endpoint): &Later| {
            matches!(endpoint, PortEndpoint::Xen(_) | PortEndpoint::Stream(stream::Other::Passt(_), None))
        };
        let (rest, now) = std::mem::take(&mut self.later).into_iter().partition::<Vec<_>, _>(has_one_holder);
        for later in now {
            daemon.serve_later(later).map_err(|error| error.to_string())?;
        }
        daemon.network.end_held();
        Ok(Rest { gate: self.gate, later: rest })
    }
}
