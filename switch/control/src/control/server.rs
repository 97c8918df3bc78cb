//! The HTTP server of the control socket, with limits, so that no client locks out others or makes the process grow.
//!
//! 1. **Connections** are limited. For a new one beyond the limit, the oldest idle connection is closed; if none is idle, the new
//!    one is refused.
//! 2. **Request bodies** have a timeout and, all connections together, a memory limit.
//! 3. Slow requests run in **lanes**: the numbers of concurrent changes, of ports being drained and of scrapes are limited, so that
//!    a thread is always left for requests that only read.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::{Extension, Router};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::author::ClientProcess;
use super::problem::Refusal;
use super::stream::{STREAMS, too_many};
use crate::quantity::{counted, is};

/// Most connections at a time.
pub const CONNECTIONS: usize = 64;
/// Timeouts of a request's head, and of its body.
const HEAD: Duration = Duration::from_secs(5);
const BODY: Duration = Duration::from_secs(10);
/// Most bytes of one body: a network of the most ports, each with all its keys, has fewer.
pub const MOST_BYTES: usize = 16 << 20;
/// Most bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;
/// Unit in which bytes of bodies are counted.
const UNIT: usize = 1 << 10;
/// Pause after a failed accept(2).
const PAUSE: Duration = Duration::from_millis(50);

/// Concurrency limit of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Reads only; no limit.
    Look,
    /// Changes the network.
    Change,
    /// Waits until a port is drained.
    Drain,
    /// Reads all counters, or waits for the workers' answers, for clients that need not be trusted.
    Scrape,
}

/// Concurrent requests of each lane; together they leave threads for those that only read, see [`THREADS`].
const CHANGES: usize = 16;
const DRAINS: usize = 32;
/// Of each listener. A client that disconnects does not end its scrape.
const SCRAPES: usize = 2;
/// Threads of handlers.
pub const THREADS: usize = CHANGES + DRAINS + 16;

/// Limits shared by all connections.
#[derive(Debug)]
pub struct Bounds {
    /// Most bytes of one body.
    most_bytes: usize,
    bodies: Arc<Semaphore>,
    changes: Arc<Semaphore>,
    drains: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self::taking(MOST_BYTES)
    }
}

/// A request's body, with its part of the memory limit.
#[derive(Debug, Default)]
pub struct Brought {
    /// The body.
    pub bytes: Vec<u8>,
    held: Option<OwnedSemaphorePermit>,
}

impl Lane {
    /// The lane of requests with `method` at `path`.
    pub fn of(method: &Method, path: &str) -> Self {
        match *method {
            Method::GET if path == "/readyz" => Self::Scrape,
            Method::GET => Self::Look,
            _ if path.ends_with("/drain") => Self::Drain,
            _ => Self::Change,
        }
    }
}

impl Bounds {
    /// Limits with so many bytes at most of one body, and twice as many of all.
    pub fn taking(most_bytes: usize) -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        let (changes, drains, scrapes, streams) = (of(CHANGES), of(DRAINS), of(SCRAPES), of(STREAMS));
        Self { most_bytes, bodies: of(2 * most_bytes / UNIT), changes, drains, scrapes, streams }
    }

    /// Waits for a slot in `lane`.
    ///
    /// # Errors
    /// The limit of ports being drained is reached.
    pub async fn enter(&self, lane: Lane) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        match lane {
            Lane::Look => Ok(None),
            Lane::Change => Ok(Arc::clone(&self.changes).acquire_owned().await.ok()),
            Lane::Scrape => Ok(Arc::clone(&self.scrapes).acquire_owned().await.ok()),
            Lane::Drain => match Arc::clone(&self.drains).try_acquire_owned() {
                Ok(place) => Ok(Some(place)),
                Err(_) => Err(busy(format!(
                    "{DRAINS} ports are being drained already, which is the limit: try again when one has finished"
                ))),
            },
        }
    }

    /// A slot for a streaming response.
    ///
    /// # Errors
    /// The limit of streaming responses is reached.
    pub fn enter_stream(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| too_many())
    }

    /// Reads the body of `request`.
    ///
    /// # Errors
    /// The body is too long, takes too long, or all bodies together are at the memory limit.
    pub async fn read(&self, request: Request) -> Result<Brought, Refusal> {
        let too_slow = |_| {
            Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("the request body did not arrive within {} s: try again", BODY.as_secs()),
            )
        };
        tokio::time::timeout(BODY, self.read_all(request.into_body())).await.map_err(too_slow)?
    }

    async fn read_all(&self, mut body: Body) -> Result<Brought, Refusal> {
        let most = self.most_bytes;
        let too_much = || {
            let text = format!("the request body is longer than the limit of {}: send a smaller document", counted(most, "byte"));
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        };
        if body.size_hint().lower() > most as u64 {
            return Err(too_much());
        }
        let mut brought = Brought::default();
        while let Some(frame) = body.frame().await {
            let broken =
                |error| Refusal::new(StatusCode::BAD_REQUEST, format!("the connection ended within the request body: {error}"));
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if brought.bytes.len() + data.len() > most {
                return Err(too_much());
            }
            let units = data.len().div_ceil(UNIT) as u32;
            let Ok(part) = Arc::clone(&self.bodies).try_acquire_many_owned(units) else {
                return Err(busy("other request bodies use all memory for them: try again".into()));
            };
            match &mut brought.held {
                Some(held) => held.merge(part),
                none => *none = Some(part),
            }
            brought.bytes.extend_from_slice(&data);
        }
        Ok(brought)
    }
}

fn busy(text: String) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
}

/// Whether a connection's request is being handled: then the connection is not closed for another.
#[derive(Clone, Debug, Default)]
pub struct Answering(Arc<AtomicUsize>);

impl Answering {
    /// Marks the connection as busy until the returned guard is dropped.
    pub fn begin(&self) -> impl Drop + use<> {
        struct End(Arc<AtomicUsize>);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        End(Arc::clone(&self.0))
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The client.
    fn client(&self) -> ClientProcess;
}

impl Stream for UnixStream {
    fn client(&self) -> ClientProcess {
        let credentials = self.peer_cred().ok();
        credentials.map_or(ClientProcess::Unknown, |peer| ClientProcess::Local { uid: peer.uid(), pid: peer.pid().unwrap_or(0) })
    }
}

impl Stream for TcpStream {
    fn client(&self) -> ClientProcess {
        self.peer_addr().map_or(ClientProcess::Unknown, ClientProcess::Browser)
    }
}

/// A socket to which clients connect.
pub trait Listener {
    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<impl Stream>>;
}

impl Listener for UnixListener {
    async fn accept(&self) -> io::Result<impl Stream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<impl Stream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Serves `router` at `listener`, at most `most` connections at a time, until cancelled.
pub async fn serve<L: Listener>(listener: &L, router: Router, most: usize) -> io::Result<()> {
    let mut connections: VecDeque<(AbortHandle, Answering)> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            // Descriptors ran out, or the client has disconnected already.
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        connections.retain(|(task, _)| !task.is_finished());
        if connections.len() >= most && !make_way(&mut connections) {
            tokio::spawn(turn_away(stream, most));
            continue;
        }
        let answering = Answering::default();
        let router = router.clone().layer(Extension(answering.clone())).layer(Extension(stream.client()));
        connections.push_back((tokio::spawn(converse(stream, router)).abort_handle(), answering));
    }
}

/// Closes the oldest idle connection; false if none is idle.
fn make_way(connections: &mut VecDeque<(AbortHandle, Answering)>) -> bool {
    let oldest = connections.iter().position(|(_, answering)| !answering.is_on());
    oldest.and_then(|index| connections.remove(index)).map(|(task, _)| task.abort()).is_some()
}

async fn converse(stream: impl Stream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    // An error concerns this connection's client only.
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).with_upgrades().await;
}

/// Answers a connection beyond the limit with 503 and the reason.
async fn turn_away(mut stream: impl Stream, most: usize) {
    let (requests, are) = (counted(most, "request"), is(most));
    let text = format!("{{\"error\":\"{requests} {are} being answered already, which is the limit: try again\"}}");
    let head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
    let _ = tokio::time::timeout(PAUSE, stream.write_all(answer.as_bytes())).await;
}
