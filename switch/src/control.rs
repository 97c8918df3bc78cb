//! The control interface: HTTP on a Unix socket that only its owner may use.
//!
//! `GET /v1/network` answers with a [`Report`]; `memlane status` is a client of it. `PUT /v1/ports/NAME` with a [`Change`] changes what a port is
//! allowed and its link, and answers with the [`Terms`] that hold from then on; `memlane set` is a client of it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::net::UnixListener;

use crate::config::Config;
use crate::link::Impairment;
use crate::network::Network;
use crate::policy::{Allowance, Limit};
use crate::port;
use crate::port::vhost_user::access::Access;
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
    /// It refuses.
    #[error("the network refuses: {0}")]
    Refused(String),
    /// The kernel refuses something else.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A running network, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Bytes of the switch's memory that frames take, see [`crate::budget`].
    pub memory_held: u64,
    /// Bytes that they may take.
    pub memory_most: u64,
    /// Ports, in the order of the file.
    pub ports: Vec<PortReport>,
    /// Workers.
    pub workers: Vec<WorkerReport>,
}

/// A port, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Its segment.
    pub segment: String,
    /// See [`crate::config::PortKind::name`].
    pub kind: String,
    /// See [`crate::config::PortKind::place`].
    pub place: String,
    /// See [`port::State`].
    pub state: String,
    /// Why it is in quarantine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<String>,
    /// What the operator should change for its sake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// Times it was put there.
    pub quarantines: u64,
    /// Stations seen behind it.
    pub stations: usize,
    /// What it is allowed.
    pub allowance: Allowance,
    /// What frames to it go through.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub link: Option<Impairment>,
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
        let ports = config.ports.iter().filter_map(|port| {
            let status = network.find(&port.name)?;
            let state = status.state();
            Some(PortReport {
                name: port.name.clone(),
                segment: port.segment.clone(),
                kind: port.kind.name().into(),
                place: port.kind.place(),
                state: state.name().into(),
                cause: match state {
                    port::State::Quarantined(cause) => Some(cause),
                    _ => None,
                },
                advice: status.advice().map(str::to_owned),
                quarantines: status.quarantines(),
                stations: status.stations(),
                allowance: status.allowance(),
                link: status.link(),
                totals: status.totals(),
            })
        });
        let workers = (0..config.workers).map(|index| {
            let counters = &shared.workers[index];
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
            memory_held: shared.budget.held(),
            memory_most: shared.budget.most(),
            ports: ports.collect(),
            workers: workers.collect(),
        }
    }
}

/// Makes the control socket, in place of one that nobody listens at any more.
///
/// # Errors
/// [`ControlError::Listen`].
pub fn listen(path: &Path) -> Result<UnixListener, ControlError> {
    let failed = |cause| ControlError::Listen { path: path.into(), cause };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_folder(folder).map_err(failed)?;
    }
    let listener = port::vhost_user::socket::bind(path, Access::PRIVATE).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map_err(failed)
}

/// Makes `folder` for us alone; one that is there must not be another user's, who could replace what is in it.
fn make_folder(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // SAFETY: takes nothing, changes nothing and cannot fail.
    let us = unsafe { libc::geteuid() };
    let owner = std::fs::metadata(folder)?.uid();
    if owner == us || owner == 0 { Ok(()) } else { Err(io::Error::other("the folder belongs to another user")) }
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
    let router = Router::new().route("/v1/network", get(report)).route("/v1/ports/{name}", put(change)).with_state(served);
    axum::serve(listener, router).await
}

async fn report(State(served): State<Served>) -> Json<Report> {
    Json(Report::new(&served.config, &served.network, served.started.elapsed()))
}

/// What is to change about a port; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Change {
    /// See [`Allowance`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// See [`Allowance`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intake: Option<Limit>,
    /// See [`Allowance`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Limit>,
    /// See [`Allowance`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storm: Option<u64>,
    /// What frames to the port go through: all of it anew; an empty table for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Impairment>,
}

/// What holds for a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// What it is allowed.
    #[serde(flatten)]
    pub allowance: Allowance,
    /// What frames to it go through.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub link: Option<Impairment>,
}

impl Change {
    /// `before` with this change.
    pub fn of(self, before: Terms) -> Terms {
        let Terms { allowance: before, link } = before;
        let allowance = Allowance {
            weight: self.weight.unwrap_or(before.weight),
            intake: self.intake.unwrap_or(before.intake),
            delivery: self.delivery.unwrap_or(before.delivery),
            storm: self.storm.unwrap_or(before.storm),
        };
        Terms { allowance, link: self.link.map_or(link, |link| (link != Impairment::default()).then_some(link)) }
    }
}

type Refusal = (StatusCode, String);

async fn change(
    State(served): State<Served>,
    UrlPath(name): UrlPath<String>,
    Json(change): Json<Change>,
) -> Result<Json<Terms>, Refusal> {
    let port = served.network.find(&name);
    let port = port.ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no port '{name}'")))?;
    let before = Terms { allowance: port.allowance(), link: port.link() };
    let terms = change.of(before.clone());
    let of_link = terms.link.iter().flat_map(Impairment::mistakes);
    if let Some((key, mistake)) = terms.allowance.mistakes().into_iter().chain(of_link).next() {
        return Err((StatusCode::UNPROCESSABLE_ENTITY, format!("{key}: {mistake}")));
    }
    served.network.set_allowance(&port, &terms.allowance);
    if terms.link != before.link {
        served.network.set_link(&port, terms.link.clone());
    }
    Ok(Json(terms))
}

/// Makes a `change` of `port` of the network at the control socket `path`; returns what holds for it now.
///
/// # Errors
/// [`ControlError::Unreachable`], [`ControlError::Answer`], [`ControlError::Refused`].
pub async fn change_port(path: &Path, port: &str, change: &Change) -> Result<Terms, ControlError> {
    let nonsense = |error: serde_json::Error| ControlError::Answer(error.to_string());
    let body = serde_json::to_vec(change).map_err(nonsense)?;
    let answer = fetch(path, hyper::Method::PUT, &format!("/v1/ports/{port}"), body).await?;
    serde_json::from_slice(&answer).map_err(nonsense)
}

/// Asks the network at the control socket `path`.
///
/// # Errors
/// [`ControlError::Unreachable`], [`ControlError::Answer`].
pub async fn ask(path: &Path) -> Result<Report, ControlError> {
    let body = fetch(path, hyper::Method::GET, "/v1/network", Vec::new()).await?;
    serde_json::from_slice(&body).map_err(|error| ControlError::Answer(error.to_string()))
}

async fn fetch(path: &Path, method: hyper::Method, uri: &str, body: Vec<u8>) -> Result<Vec<u8>, ControlError> {
    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use hyper_util::rt::TokioIo;

    let unreachable = |cause| ControlError::Unreachable { path: path.into(), cause };
    let nonsense = |error: hyper::Error| ControlError::Answer(error.to_string());
    let stream = tokio::net::UnixStream::connect(path).await.map_err(unreachable)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(nonsense)?;
    tokio::spawn(connection);
    let request = hyper::Request::builder().method(method).uri(uri);
    let request = request.header("host", "memlane").header("content-type", "application/json").body(Full::new(Bytes::from(body)));
    let request = request.map_err(|error| ControlError::Answer(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(nonsense)?;
    let status = response.status();
    let answer = response.into_body().collect().await.map_err(nonsense)?.to_bytes().to_vec();
    if status.is_success() { Ok(answer) } else { Err(ControlError::Refused(String::from_utf8_lossy(&answer).into_owned())) }
}
