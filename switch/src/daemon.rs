//! The daemon: a network made from a configuration, from its start to its end.

use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::config::{Config, PortConfig, PortKind};
use crate::frame::MacAddress;
use crate::network::Network;
use crate::port::end::Ends;
use crate::port::stream::{self, Passt};
use crate::port::tap::{Tap, TapError, TapSettings};
use crate::port::vhost_user::access::Access;
use crate::port::vhost_user::{self, Endpoint, PortSettings, Session};
use crate::port::{PortId, PortStatus, default_address, loopback, null};
use crate::worker::Shared;

/// Why a network cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// A socket cannot be listened at.
    #[error("port {port}: cannot listen at {path}: {cause}. {remedy}")]
    Listen {
        /// The port.
        port: String,
        /// The socket.
        path: String,
        /// What the kernel says.
        cause: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A TAP cannot be had.
    #[error("port {port}: {cause}")]
    Tap {
        /// The port.
        port: String,
        /// Why, and what to do about it.
        cause: TapError,
    },
    /// passt cannot be had.
    #[error("port {port}: passt cannot be started: {cause}. Install it: apt install passt")]
    Passt {
        /// The port.
        port: String,
        /// What the kernel says.
        cause: io::Error,
    },
    /// The kernel refuses something else.
    #[error("the network cannot be started: {0}")]
    System(#[from] io::Error),
}

/// A running network.
#[derive(Debug)]
pub struct Daemon {
    network: Arc<Network>,
    sessions: Vec<Session>,
    streams: Vec<stream::Session>,
}

/// Where whoever is behind a port is met, if anywhere.
#[derive(Debug)]
enum Meeting {
    FrontEnd(Endpoint),
    Stream(stream::Other),
    Nowhere,
}

impl Daemon {
    /// Starts the network that `config` describes; when this returns, its sockets can be connected to.
    ///
    /// # Errors
    /// A [`StartError`]; nothing is left running then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let meetings = config.ports.iter().map(meeting).collect::<Result<Vec<_>, _>>()?;
        let statuses = config
            .ports
            .iter()
            .enumerate()
            .map(|(n, port)| {
                let status = PortStatus::new(PortId(n as u16), &port.name, port.allowance.clone());
                status.set_link(port.link.clone());
                status
            })
            .collect();
        let network = Network::start(shared(config)?, statuses, config.workers, &config.cpus)?;
        let mut daemon = Self { network, sessions: Vec::new(), streams: Vec::new() };
        for (index, meeting) in meetings.into_iter().enumerate() {
            if let Err(error) = daemon.open_port(config, index, meeting) {
                daemon.stop();
                return Err(error);
            }
        }
        Ok(daemon)
    }

    fn open_port(&mut self, config: &Config, index: usize, meeting: Meeting) -> Result<(), StartError> {
        let port = &config.ports[index];
        let id = PortId(index as u16);
        match meeting {
            Meeting::FrontEnd(endpoint) => {
                let settings = PortSettings {
                    id,
                    mac: address(config, port),
                    mtu: port.mtu,
                    delivery_offloads: port.delivery_offloads,
                    pairs: port.queues,
                };
                self.sessions.push(vhost_user::run(Arc::clone(&self.network), settings, endpoint)?);
            }
            Meeting::Stream(other) => self.streams.push(stream::run(Arc::clone(&self.network), id, other)?),
            Meeting::Nowhere => {
                if let Some(ends) = self.ends(config, port)? {
                    self.network.start_ends(id, ends)?;
                }
            }
        }
        Ok(())
    }

    /// The ends of a port that nobody is to be met for.
    fn ends(&self, config: &Config, port: &PortConfig) -> Result<Option<Ends>, StartError> {
        let pool = || Arc::clone(&self.network.shared().pool);
        Ok(match &port.kind {
            PortKind::Tap { name, netns } => {
                let settings = TapSettings { name: name.clone(), netns: netns.clone(), mac: port.mac, mtu: port.mtu };
                let tap = Tap::open(&settings).map_err(|cause| StartError::Tap { port: port.name.clone(), cause })?;
                Some(tap.into_ends(pool())?)
            }
            PortKind::Null => Some(null::ends()),
            PortKind::Loopback => Some(loopback::ends(address(config, port), pool())?),
            PortKind::VhostUser { .. } | PortKind::Stream { .. } | PortKind::Passt(_) => None,
        })
    }

    /// The network, for the control interface.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Completes what guests had given, ends all connections, and stops the workers.
    pub fn stop(self) {
        Session::stop(self.sessions);
        self.streams.into_iter().for_each(stream::Session::stop);
        self.network.shut_down();
    }
}

fn shared(config: &Config) -> io::Result<Shared> {
    let mut key = [0; 8];
    // SAFETY: eight writable bytes.
    if unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) } != 8 {
        return Err(io::Error::last_os_error());
    }
    let segments = config.segments();
    let index_of = |port: &PortConfig| segments.iter().position(|name| *name == port.segment).unwrap_or_default();
    let segment_of = config.ports.iter().map(index_of).collect();
    let shared = Shared::new(config.workers, segment_of, u64::from_ne_bytes(key), config.settings.clone());
    for (index, port) in config.ports.iter().enumerate() {
        shared.policies[index].set(&port.allowance);
        shared.set_path(PortId(index as u16), (&port.link).into());
        if let Some(mac) = port.mac {
            shared.tables[index_of(port)].pin(mac, PortId(index as u16));
        }
    }
    Ok(shared)
}

/// The address of the station behind `port`.
fn address(config: &Config, port: &PortConfig) -> MacAddress {
    port.mac.unwrap_or_else(|| default_address(&config.name, &port.name))
}

fn meeting(port: &PortConfig) -> Result<Meeting, StartError> {
    Ok(match &port.kind {
        PortKind::VhostUser { path, connect: true } => Meeting::FrontEnd(Endpoint::Connect(path.clone())),
        PortKind::VhostUser { path, connect: false } => Meeting::FrontEnd(listen(port, path, Endpoint::listen)?),
        PortKind::Stream { path, connect: true } => Meeting::Stream(stream::Other::Connect(path.clone())),
        PortKind::Stream { path, connect: false } => Meeting::Stream(listen(port, path, stream::Other::listen)?),
        PortKind::Passt(arguments) => {
            Passt::probe().map_err(|cause| StartError::Passt { port: port.name.clone(), cause })?;
            let arguments = arguments.iter().map(Into::into).collect();
            Meeting::Stream(stream::Other::Passt(Passt { arguments, mtu: port.mtu }))
        }
        PortKind::Tap { .. } | PortKind::Null | PortKind::Loopback => Meeting::Nowhere,
    })
}

fn listen<T>(port: &PortConfig, path: &Path, listen: impl FnOnce(&Path, &Access) -> io::Result<T>) -> Result<T, StartError> {
    if let Some(folder) = path.parent()
        && !folder.as_os_str().is_empty()
    {
        // Where this fails, listening fails too and says why.
        let _ = std::fs::create_dir_all(folder);
    }
    listen(path, &port.access).map_err(|cause| {
        let remedy = match cause.kind() {
            io::ErrorKind::AddrInUse => "Stop the process that listens there, or choose another path.",
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if port.access != Access::default() => {
                "Give access to a user or group that is there, and as root or as a member of that group."
            }
            io::ErrorKind::PermissionDenied => "Choose a folder that you may write to, such as $XDG_RUNTIME_DIR.",
            _ => "Check that the folder exists and is on a local filesystem.",
        };
        StartError::Listen { port: port.name.clone(), path: path.display().to_string(), cause, remedy }
    })
}
