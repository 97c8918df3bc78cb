//! The control interface: HTTP on a Unix socket that only its owner may use.
//!
//! `GET /v1/network` answers with a [`Report`]; `memlane status` is a client of it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::net::UnixListener;

use crate::config::{Config, PortKind};
use crate::network::Network;
use crate::port;
use crate::stats::PortTotals;
use crate::time;

/// Why the control socket cannot be served or reached.
#[derive(Debug, Error)]
pub enum ControlError {
    /// It cannot be made.
    #[error(
        "cannot listen for control at {path}: {cause}. Stop the network that runs there, or set another path with control = \"...\""
    )]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        cause: io::Error,
    },
    /// Nobody answers there.
    #[error("no network answers at {path}: {cause}. Start it with `memlane up`")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        cause: io::Error,
    },
    /// It answers something else.
    #[error("the network's answer makes no sense: {0}. Are both of the same version?")]
    Answer(String),
    /// The kernel refuses something else.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A running network, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Name of the network.
    pub name: String,
    /// Version of memlane.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime: u64,
    /// Cycles of a second, for the workers' cycle counts.
    pub cycles_per_second: u64,
    /// Ports, in the order of the file.
    pub ports: Vec<PortReport>,
    /// Workers.
    pub workers: Vec<WorkerReport>,
}

/// A port, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Its segment.
    pub segment: String,
    /// `vhost-user` or `tap`.
    pub kind: String,
    /// Its socket or interface.
    pub place: String,
    /// See [`port::State`].
    pub state: String,
    /// Why it is in quarantine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<String>,
    /// Times it was put there.
    pub quarantines: u64,
    /// Stations seen behind it.
    pub stations: usize,
    /// Its counters.
    #[serde(flatten)]
    pub totals: PortTotals,
}

/// A worker, as an operator sees it; see [`crate::stats::WorkerCounters`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub struct WorkerReport {
    pub busy_passes: u64,
    pub empty_passes: u64,
    pub busy_cycles: u64,
    pub frames: u64,
    pub sleeps: u64,
    pub polls: u64,
    pub handed_over: u64,
    pub wakes: u64,
}

impl Report {
    /// What is to be seen of `network` now.
    pub fn new(config: &Config, network: &Network, uptime: Duration) -> Self {
        let shared = network.shared();
        let stations = stations(network);
        let ports = config.ports.iter().enumerate().map(|(index, port)| {
            let status = &network.ports()[index];
            let (kind, place) = match &port.kind {
                PortKind::VhostUser { path, .. } => ("vhost-user", path.display().to_string()),
                PortKind::Tap { name, .. } => ("tap", name.clone()),
            };
            let state = status.state();
            PortReport {
                name: port.name.clone(),
                segment: config.segments[port.segment].clone(),
                kind: kind.into(),
                place,
                state: state.name().into(),
                cause: match state {
                    port::State::Quarantined(cause) => Some(cause),
                    _ => None,
                },
                quarantines: status.quarantines(),
                stations: stations[index],
                totals: shared.counters.totals(index),
            }
        });
        let workers = (0..config.workers).map(|index| {
            let counters = shared.counters.worker(index);
            WorkerReport {
                busy_passes: counters.busy_passes.get(),
                empty_passes: counters.empty_passes.get(),
                busy_cycles: counters.busy_cycles.get(),
                frames: counters.frames.get(),
                sleeps: counters.sleeps.get(),
                polls: counters.polls.get(),
                handed_over: counters.handed_over.get(),
                wakes: counters.wakes.get(),
            }
        });
        Self {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime: uptime.as_secs(),
            cycles_per_second: time::frequency(),
            ports: ports.collect(),
            workers: workers.collect(),
        }
    }
}

/// Stations seen behind each port.
fn stations(network: &Network) -> Vec<usize> {
    let mut counts = vec![0; network.ports().len()];
    for (_, port, _, _) in network.shared().tables.iter().flat_map(crate::table::Table::entries) {
        if let Some(count) = counts.get_mut(port.index()) {
            *count += 1;
        }
    }
    counts
}

/// Makes the control socket, in place of one that nobody listens at any more.
///
/// # Errors
/// [`ControlError::Listen`].
pub fn listen(path: &Path) -> Result<UnixListener, ControlError> {
    let failed = |cause| ControlError::Listen { path: path.into(), cause };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let listener = port::vhost_user::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map_err(failed)
}

#[derive(Clone)]
struct Served {
    config: Arc<Config>,
    network: Arc<Network>,
    started: Instant,
}

/// Answers at `listener` until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(listener: UnixListener, config: &Config, network: &Arc<Network>) -> io::Result<()> {
    let served = Served { config: Arc::new(config.clone()), network: Arc::clone(network), started: Instant::now() };
    let router = Router::new().route("/v1/network", get(report)).with_state(served);
    axum::serve(listener, router).await
}

async fn report(State(served): State<Served>) -> Json<Report> {
    Json(Report::new(&served.config, &served.network, served.started.elapsed()))
}

/// Asks the network at the control socket `path`.
///
/// # Errors
/// [`ControlError::Unreachable`], [`ControlError::Answer`].
pub async fn ask(path: &Path) -> Result<Report, ControlError> {
    let body = fetch(path, "/v1/network").await?;
    serde_json::from_slice(&body).map_err(|error| ControlError::Answer(error.to_string()))
}

async fn fetch(path: &Path, uri: &str) -> Result<Vec<u8>, ControlError> {
    use http_body_util::{BodyExt, Empty};
    use hyper::body::Bytes;
    use hyper_util::rt::TokioIo;

    let unreachable = |cause| ControlError::Unreachable { path: path.into(), cause };
    let nonsense = |error: hyper::Error| ControlError::Answer(error.to_string());
    let stream = tokio::net::UnixStream::connect(path).await.map_err(unreachable)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(nonsense)?;
    tokio::spawn(connection);
    let request = hyper::Request::get(uri).header("host", "memlane").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| ControlError::Answer(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(nonsense)?;
    Ok(response.into_body().collect().await.map_err(nonsense)?.to_bytes().to_vec())
}
