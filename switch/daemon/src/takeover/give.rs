//! The process that serves, and hands its network over.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlane_backends::takeover::FilesToSend;
use nix::unistd::geteuid;
use thiserror::Error;

use super::channel::{Channel, ChannelError};
use super::description::{Description, Hello, Message, SavedService, SavedSockets, Standing};
use super::guard::{Guard, Taker};
use super::{DRAIN, PREPARE, REPLY, SESSIONS, STANDSTILL, START};
use crate::author::Author;
use crate::config::Config;
use crate::daemon::Daemon;

/// Why a network was not handed over; it goes on.
#[derive(Debug, Error)]
pub enum GiveError {
    /// The other process belongs to another user.
    #[error("process {pid} of user {user} asked for a takeover: only a process of this network's user may take it over")]
    User {
        /// User of the other process.
        user: u32,
        /// The process.
        pid: i32,
    },
    /// The conversation with the other process failed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The other process sent an unexpected message.
    #[error("the other process sent an unexpected takeover message")]
    Unexpected,
    /// The other process was started with another state file.
    #[error("the network runs {}: start the other process in the same way", named(.0))]
    State(Option<PathBuf>),
    /// The data path does not stop.
    #[error("{0}")]
    Obstacle(String),
    /// The kernel refuses a descriptor.
    #[error("the descriptors of the network cannot be copied: {0}{remedy}", remedy = crate::descriptors::remedy(.0))]
    System(#[from] std::io::Error),
    /// The process that could kill a successor is gone, or cannot open this one.
    #[error("process {pid} cannot be watched by the process that ends a successor which fails: {cause}")]
    Unguarded {
        /// The successor.
        pid: i32,
        /// Why not.
        cause: std::io::Error,
    },
    /// The other process failed when it had taken the data path over; it has ended.
    #[error("the other process failed while it started the data path, and has ended; this one serves again: {0}")]
    TakenBack(ChannelError),
}

fn named(state: &Option<PathBuf>) -> String {
    state.as_ref().map_or_else(|| "without a state file (--no-state)".into(), |state| format!("with --state {}", state.display()))
}

/// State and sockets of the network that are handed over beside the ports.
#[derive(Debug)]
pub struct Assets<'a> {
    /// Author of the takeover.
    pub by: Author,
    /// The configuration of the file when it was read last.
    pub file: &'a Config,
    /// The locked state file, if it could be written.
    pub state_lock: Option<OwnedFd>,
    /// Sockets of the network, with numbers in `files`.
    pub sockets: SavedSockets,
    /// Their descriptors.
    pub files: Vec<OwnedFd>,
    /// The service manager.
    pub service: SavedService,
}

/// A network that was handed over.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The process that serves it.
    pub process: i32,
    /// How long the data path stood still.
    pub standstill: Duration,
}

/// Checks the process at the other end of `channel`, and hears it; returns its number.
///
/// # Errors
/// A [`GiveError`]; the other process is to be told.
pub fn hear(channel: &mut Channel, own_state: Option<&Path>) -> Result<i32, GiveError> {
    let (user, pid) = channel.peer()?;
    if user != geteuid().as_raw() {
        return Err(GiveError::User { user, pid });
    }
    let (Message::Hello(Hello { state }), _) = channel.receive(REPLY)? else { return Err(GiveError::Unexpected) };
    if state.as_deref() != own_state {
        return Err(GiveError::State(own_state.map(Into::into)));
    }
    Ok(pid)
}

/// Hands `daemon` over to `process`, at the other end of `channel`, which `guard` kills if it fails too late. This one is to end then, at
/// once and without removing anything.
///
/// # Errors
/// A [`GiveError`]; the network goes on then, and the other process is to be told.
pub fn give(
    daemon: &Daemon,
    assets: Assets<'_>,
    channel: &mut Channel,
    (process, guard): (i32, &Guard),
) -> Result<Given, GiveError> {
    let taker = guard.watch(channel.stream()).map_err(|cause| GiveError::Unguarded { pid: process, cause })?;
    let result = hand_over(daemon, assets, channel, &taker);
    if let Err(error) = &result {
        daemon.resume_data_path();
        daemon.go_on(matches!(error, GiveError::TakenBack(_)));
    }
    result.map(|standstill| Given { process, standstill })
}

/// Returns how long the data path stood still.
fn hand_over(daemon: &Daemon, assets: Assets<'_>, channel: &mut Channel, taker: &Taker<'_>) -> Result<Duration, GiveError> {
    let by = Some(assets.by.clone());
    let next = describe(daemon, assets, channel)?;
    let (Message::Prepared {}, _) = channel.receive(PREPARE)? else { return Err(GiveError::Unexpected) };
    let begun = Instant::now();
    let standstill = daemon.stop_data_path(DRAIN, STANDSTILL).map_err(GiveError::Obstacle)?;
    // No counter grows any more, of no drop reason: after the takeover no event tells of the counters that the other process continues.
    daemon.network().tell_notices();
    // Nothing has happened to the rings before the other process has all of this message.
    let (events, next_event) = daemon.network().shared().journal.kept_from(next);
    let events = events.iter().map(|event| (&**event).into()).collect();
    let (streams, files) = daemon.save_streams()?;
    let standing = Standing { by, records: daemon.records(), departed: daemon.departed_leases(), events, next_event, streams };
    let deadline = Instant::now() + START;
    channel.send(&Message::Go(Box::new(standing)), &files, START)?;
    match await_running(channel, deadline, taker) {
        Ok(()) => {
            // The workers stand until the process ends.
            std::mem::forget(standstill);
            Ok(begun.elapsed())
        }
        Err(error) => {
            standstill.go_on_behind();
            Err(GiveError::TakenBack(error))
        }
    }
}

/// Describes the network to the other process; returns the number of the first event that the description lacks.
fn describe(daemon: &Daemon, assets: Assets<'_>, channel: &mut Channel) -> Result<u64, GiveError> {
    let (events, next) = daemon.network().shared().journal.kept_from(0);
    let (uplinks, mut files) = daemon.save_uplinks()?;
    let (ports, of_ports) = daemon.save(Instant::now() + SESSIONS, || channel.is_ending())?;
    files.extend(of_ports);
    let mut sockets = FilesToSend::new(assets.files);
    let state = assets.state_lock.map(|lock| sockets.add(lock));
    let description = Description {
        file_ports: assets.file.ports.iter().map(|port| port.stated()).collect(),
        file_uplinks: assets.file.uplinks.clone(),
        uplinks,
        ports,
        addresses: daemon.addresses(),
        events: events.iter().map(|event| (&**event).into()).collect(),
        sockets: SavedSockets { state, ..assets.sockets },
        service: assets.service,
    };
    files.extend(sockets.into_files());
    channel.send(&Message::Description(Box::new(description)), &files, REPLY)?;
    Ok(next)
}

/// Waits until the other process serves, until `deadline` at most. On an error it has ended, so that no ring is served twice.
fn await_running(channel: &mut Channel, deadline: Instant, taker: &Taker<'_>) -> Result<(), ChannelError> {
    let error = match channel.receive(deadline.saturating_duration_since(Instant::now())) {
        Ok((Message::Running {}, _)) => return Ok(()),
        Ok(_) => ChannelError::Failed("it sent an unexpected takeover message".into()),
        Err(ChannelError::Late(_)) => ChannelError::Late(START),
        Err(error) => error,
    };
    if let Err(cause) = taker.kill() {
        tracing::error!(%cause, "the process that took over has failed and cannot be killed: the kernel ends it when its time is over");
    }
    while !taker.await_end(START) {
        tracing::error!("the process that took over has failed and has not ended yet: no guest is served until it has");
        if channel.is_ending() {
            // Not in order: the rings may be those of the other process.
            std::process::exit(1);
        }
    }
    Err(error)
}
