//! A takeover, as the ports see it: see [`crate::takeover`].

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use memlane_backends::stream;
use memlane_backends::stream::saved::{MOST_LEFT, PresentStream};
use memlane_backends::takeover::{FilesToSend, ReceivedFiles};
use memlane_backends::vhost_user;
use memlane_backends::vhost_user::saved::{Gate, Progress, Report, RestoredDevice, RestoredSession};
use memlane_backends::vhost_user::socket::Listener;

use super::{Attached, Daemon, Server, StartError, device_settings, members, own_descriptors, random, starting};
use crate::config::kinds::{OpenError, PortEndpoint, SavedResources};
use crate::config::{Config, PortConfig};
use crate::description::{GrantRecord, PortRecord, SavedAddress, SavedListener, SavedPort, SavedStreamPort, SavedUplink};
use crate::frame::MacAddress;
use crate::id::PortId;
use crate::names::SavedLease;
use crate::network::{AttachSettings, Network, Standstill};
use crate::policy::grants::SavedGrant;
use crate::port::{Port, PortState};
use crate::shared::Shared;
use crate::table::{Kind, LearnedAddress, Record};
use crate::uplink::Uplink;
use crate::worker::QueueFiles;

/// Most learned addresses that are handed over; others are learned again.
const MOST_ADDRESSES: usize = 1 << 16;

impl Daemon {
    /// Describes the uplinks, with the descriptors of their TAP devices.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save_uplinks(&self) -> std::io::Result<(Vec<SavedUplink>, Vec<OwnedFd>)> {
        let saved = self.all_uplinks().iter().map(Uplink::save).collect::<Result<Vec<_>, _>>()?;
        Ok(saved.into_iter().unzip())
    }

    /// Has all sessions stand still, and describes the ports, with their descriptors. If a port's session still runs at
    /// the deadline, or when the takeover `is_over`, the port is handed over without its connection.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save(&self, deadline: Instant, is_over: impl Fn() -> bool) -> std::io::Result<(Vec<SavedPort>, Vec<OwnedFd>)> {
        let attached = self.attached();
        for (session, pause) in attached.iter().filter_map(|attached| attached.server.front_end()) {
            pause.ask();
            session.notify();
        }
        let mut standing = Vec::new();
        for Attached { config, server, .. } in attached.iter() {
            let session = server.front_end().and_then(|(_, pause)| pause.await_standstill(deadline, &is_over));
            if session.is_none() && server.front_end().is_some() {
                tracing::warn!(port = %config.name, "handed over without its front end, which holds its session up and connects again");
            }
            standing.push(session.transpose()?.unwrap_or_default());
        }
        let served = attached.iter().filter(|attached| attached.server.front_end().is_some());
        let mut queues: HashMap<PortId, Vec<QueueFiles>> = HashMap::new();
        for queue in self.network.queue_files(served.map(|attached| &attached.port))? {
            queues.entry(queue.key.port).or_default().push(queue);
        }
        let (mut ports, mut all) = (Vec::new(), Vec::new());
        for (Attached { config, server, port, .. }, standing) in attached.iter().zip(standing) {
            let session = standing.save(queues.remove(&port.id).unwrap_or_default())?;
            let mut files = FilesToSend::new(session.files);
            let listener = match server.listener() {
                Some(listener) => Some(saved_listener(listener, &mut files)?),
                None => None,
            };
            let tap = server.interface()?.map(|tap| files.add(tap));
            let (entry, connection) = (config.stated(), session.connection);
            let (origin, has_left) = (config.origin.clone(), port.ephemeral.has_left());
            ports.push(SavedPort { entry, origin, files: files.count(), listener, connection, tap, has_left });
            all.extend(files.into_files());
        }
        Ok((ports, all))
    }

    /// Describes the connections of stream ports, with their descriptors, while the workers stand still.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save_streams(&self) -> std::io::Result<(Vec<SavedStreamPort>, Vec<OwnedFd>)> {
        let (mut streams, mut files, mut room) = (Vec::new(), FilesToSend::default(), MOST_LEFT);
        let attached = self.attached();
        let present = attached.iter().filter_map(|attached| Some((attached.server.stream()?, &attached.config.name)));
        let mut present: Vec<_> = present.map(|(stream, port)| (stream.left(), stream, port)).collect();
        // Connections with the fewest bytes first: a front end that reads nothing takes the room of no other.
        present.sort_by_key(|(left, ..)| *left);
        for (left, stream, port) in present {
            if left > room {
                tracing::warn!(%port, "handed over without its connection, for which too many frames wait: the other side connects again");
                continue;
            }
            room -= left;
            streams.extend(stream.save(&mut files)?.map(|stream| SavedStreamPort { port: port.clone(), stream }));
        }
        Ok((streams, files.into_files()))
    }

    /// Has all sessions go on; `behind` if another process has served the virtqueues meanwhile, and may have taken a part of a frame
    /// from a stream, so that those connections end.
    pub fn go_on(&self, behind: bool) {
        if behind {
            self.attached().iter().filter_map(|attached| attached.server.stream()).for_each(PresentStream::cut);
        }
        for (session, pause) in self.attached().iter().filter_map(|attached| attached.server.front_end()) {
            pause.end(behind);
            session.notify();
        }
    }

    /// Stops the data path: takes no further frames, delivers or drops those in flight within `drain`, and has the workers stand still
    /// within `standstill`.
    ///
    /// # Errors
    /// A worker does not stop; frames are taken again then.
    pub fn stop_data_path(&self, drain: Duration, standstill: Duration) -> Result<Standstill, String> {
        self.network.hold_transmit(true);
        let drained = self.network.drain_all(drain);
        let stands = drained.then(|| self.network.stand_still(standstill)).flatten();
        stands.ok_or_else(|| {
            self.network.hold_transmit(false);
            "a worker does not stop: see the log for a front end that holds it up".into()
        })
    }

    /// Takes frames again, after [`Self::stop_data_path`].
    pub fn resume_data_path(&self) {
        self.network.hold_transmit(false);
    }

    /// The ports, then those of the uplinks.
    fn ports_in_order(&self) -> Vec<Arc<Port>> {
        let mut ports: Vec<_> = self.attached().iter().map(|attached| Arc::clone(&attached.port)).collect();
        ports.extend(self.all_uplinks().iter().map(|uplink| Arc::clone(uplink.port())));
        ports
    }

    /// Counters, states and leases of the ports.
    pub fn records(&self) -> Vec<PortRecord> {
        let mut leases: HashMap<String, Vec<SavedLease>> = HashMap::new();
        self.leases().into_iter().for_each(|lease| leases.entry(lease.port.clone()).or_default().push(lease));
        let record = |port: Arc<Port>| {
            let quarantined = match port.state() {
                PortState::Quarantined(cause) => Some(cause),
                _ => None,
            };
            let leases = leases.remove(&port.name).unwrap_or_default();
            let grants = port.policy.grants.saved().into_iter();
            let grants =
                grants.map(|grant| GrantRecord { address: grant.address, name: grant.name.to_string(), seconds: grant.seconds });
            PortRecord { totals: port.totals(), quarantines: port.quarantines(), quarantined, leases, grants: grants.collect() }
        };
        self.ports_in_order().into_iter().map(record).collect()
    }

    /// Leases that are kept for ports that have left.
    pub fn departed_leases(&self) -> Vec<SavedLease> {
        let present: HashSet<String> = self.ports_in_order().iter().map(|port| port.name.clone()).collect();
        self.leases().into_iter().filter(|lease| !present.contains(&lease.port)).collect()
    }

    /// Learned MAC addresses.
    pub fn addresses(&self) -> Vec<SavedAddress> {
        let ports: HashMap<PortId, u32> = self.ports_in_order().iter().map(|port| port.id).zip(0..).collect();
        let records = self.network.segments().into_iter().flat_map(|segment| segment.table().records());
        let learned = records.filter(|record| record.kind == Kind::Learned);
        let saved = |Record { learned_address, port, .. }: Record| {
            let LearnedAddress { address, vlan } = learned_address;
            Some(SavedAddress { port: *ports.get(&port)?, address: address.bytes(), vlan })
        };
        learned.filter_map(saved).take(MOST_ADDRESSES).collect()
    }

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
pub(super) fn saved_grant(grant: &GrantRecord) -> SavedGrant {
    SavedGrant { address: grant.address, name: grant.name.as_str().into(), seconds: grant.seconds }
}

/// Describes `listener`, and adds its descriptor to `files`.
pub fn saved_listener(listener: &Listener, files: &mut FilesToSend) -> std::io::Result<SavedListener> {
    let socket = files.add(listener.socket().as_fd().try_clone_to_owned()?);
    Ok(SavedListener { socket, file: listener.file() })
}

/// The listening socket that [`saved_listener`] described, at `path`.
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
                tracing::error!(segment = %uplink.segment(), %cause, "the uplink does not work since the takeover: restart the network");
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
        let starting: Vec<_> = self.devices.iter().flat_map(RestoredDevice::start).collect();
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
