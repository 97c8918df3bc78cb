//! The process that takes a running network over.
//!
//! Until it runs, connections and sockets are still those of the other process: on any error it ends at once and removes nothing.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use memlane_backends::takeover::ReceivedFiles;
use nix::unistd::geteuid;
use serde_json::{Map, Value};
use thiserror::Error;

use super::channel::{Channel, ChannelError};
use super::description::{Description, Hello, Message, SavedPort, SavedService, SavedSockets, SavedUplink};
use super::{PREPARE, REPLY, START};
use crate::author::Author;
use crate::config::{Config, Mistakes};
use crate::daemon::Daemon;
use crate::daemon::takeover::Restoring;
use crate::system;

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
    System(#[from] std::io::Error),
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
    /// See there.
    pub saved: SavedSockets,
    /// Their descriptors.
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
        let read =
            |ports: &[Map<String, Value>]| Config::ports_from_json(ports, std::path::Path::new("")).map_err(TakeError::Ports);
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
            tracing::warn!("the process that served the network before has not ended");
        }
        rest.start(daemon);
        Ok(())
    }
}

/// Takes the descriptor of the state file.
pub fn state_file(sockets: &mut TakenSockets) -> Option<File> {
    sockets.files.take(sockets.saved.state?)
}
