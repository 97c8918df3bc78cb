//! Sessions of a stream port: one connection after the other, each from its beginning to its end.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::EventSet;

use super::checksums::{ChecksumTracker, Checksums};
use super::nat::Nat;
use super::passt::{self, Passt, Started};
use super::saved::{Present, PresentStream, Rest, RestoredStream};
use super::{Connection, Stream};
use crate::budget::Permit;
use crate::descriptors;
use crate::listener::{self, PortListener, Second};
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::{Port, PortState};
use crate::session::{Backoff, GUEST_PAUSE, LONGEST_PAUSE, RETRY, Session, Watch, Woken};
use crate::vhost_user::access::Access;
use crate::vhost_user::socket::{self, Listener};

/// How the other side of the stream is reached.
#[derive(Debug)]
pub enum Other {
    /// memlane listens and the other side connects. The socket is removed in the end.
    Listen(Arc<Listener>),
    /// The other side listens; memlane connects, and retries until it succeeds.
    Connect(PathBuf),
    /// memlane starts passt, and restarts it when it exits.
    Passt(Passt),
}

impl Other {
    /// Listens at `path`, replacing a stale socket that has no listener any more; `access` says which users may connect.
    ///
    /// # Errors
    /// Another process listens there, or the path is another kind of file, or the access rights cannot be set.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Self> {
        let listener = socket::bind_kept(path, Access::PRIVATE)?;
        listener.socket().set_nonblocking(true)?;
        access.apply(&listener)?;
        Ok(Self::Listen(Arc::new(listener)))
    }

    /// The listening socket, for a takeover.
    pub fn listening(&self) -> Option<Arc<Listener>> {
        match self {
            Self::Listen(listener) => Some(Arc::clone(listener)),
            Self::Connect(_) | Self::Passt(_) => None,
        }
    }

    fn listener(&self) -> Option<&UnixListener> {
        match self {
            Self::Listen(listener) => Some(listener.socket()),
            Self::Connect(_) | Self::Passt(_) => None,
        }
    }
}

/// How a port is served.
#[derive(Debug)]
pub struct StreamSettings {
    /// Where its connections come from.
    pub other: Other,
    /// Treatment of the checksums of their frames.
    pub checksums: Checksums,
    /// Treatment of connections beside the present one.
    pub second: Second,
}

/// Serves `port` in a session thread: one connection after the other, first the one that is `restored`, which is served when this returns.
/// The present connection is told, too.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(
    network: Arc<Network>,
    port: Arc<Port>,
    settings: StreamSettings,
    restored: Option<RestoredStream>,
) -> io::Result<(Session, PresentStream)> {
    let name = format!("port-{}", port.id.0);
    let present = PresentStream::default();
    let nat = if let Other::Passt(passt) = &settings.other { passt.nat() } else { None };
    let nat = nat.map(|nat| Nat::new(nat.clone(), &port));
    let server = StreamServer { network, port, settings, nat, present: present.clone() };
    let first = restored.and_then(|restored| server.restore(restored));
    Ok((Session::start(name, move |watch| server.run(first, &watch))?, present))
}

/// A port and its connections, one after the other.
struct StreamServer {
    network: Arc<Network>,
    port: Arc<Port>,
    settings: StreamSettings,
    nat: Option<Arc<Nat>>,
    present: PresentStream,
}

/// A connection that a worker serves, and passt if that is the other side.
struct Served {
    connection: Arc<Connection>,
    passt: Option<Started>,
    _held: Permit,
}

impl StreamServer {
    /// Serves `first`, then further connections until the thread is told to stop.
    fn run(self, mut first: Option<Served>, watch: &Watch) {
        let Self { network, port, settings: StreamSettings { other, .. }, .. } = &self;
        let most = if matches!(other, Other::Passt(_)) { LONGEST_PAUSE } else { RETRY.1 };
        let mut backoff = Backoff::new(RETRY.0, most);
        loop {
            let begun = Instant::now();
            let met = match first.take() {
                Some(served) => Ok(Some(served)),
                None => meet(other, &port.name, watch).map(|(stream, passt)| self.begin_or_quarantine(stream, passt)),
            };
            let failed = met.is_err();
            let ended = match met {
                Ok(served) => served.and_then(|served| self.serve(served, watch)),
                Err(error) if descriptors::is_shortage(&error) => {
                    network.note_shortage(port);
                    None
                }
                Err(cause) => Some(cause.to_string()),
            };
            if watch.quits() {
                return;
            }
            let pause = backoff.after(begun.elapsed());
            if watch.wait(Some(self.pause(ended, failed, (backoff.failures, pause)))) == Woken::Quit {
                return;
            }
        }
    }

    /// How long to wait before the next connection: `pause` after so many `failures`, which the port reports. `ended` is why the last one ended;
    /// it may have `failed` from its beginning.
    fn pause(&self, ended: Option<String>, failed: bool, (failures, pause): (u32, Duration)) -> Duration {
        match (&self.settings.other, ended) {
            // The other side reconnects by itself: accept at once.
            (Other::Listen(..), _) => return if failed { RETRY.0 } else { GUEST_PAUSE },
            (Other::Passt(_), Some(last)) => self.port.set_trouble(failures, passt::trouble(failures, &last, pause)),
            (Other::Connect(path), Some(cause)) => {
                let text = format!("cannot connect to {}: {cause} (memlane retries every second)", path.display());
                self.port.set_trouble(failures, text);
            }
            _ => {}
        }
        pause
    }

    /// Whether the other side is a front end; passt is none.
    fn has_front_end(&self) -> bool {
        !matches!(self.settings.other, Other::Passt(_))
    }

    fn left(&self, why: fmt::Arguments) {
        if self.has_front_end() {
            self.port.front_end_left(why);
        }
    }

    fn restore(&self, RestoredStream { socket, rest, log, flows }: RestoredStream) -> Option<Served> {
        let passt = match (log, self.has_front_end()) {
            (None, true) => None,
            // Without its standard error it is started anew.
            (log, _) => Some(Started::new(&self.port.name, log?, None).ok()?),
        };
        if let Some(nat) = &self.nat {
            nat.restore(&flows);
        }
        self.begin(socket, passt, Some(rest))
    }

    fn begin_or_quarantine(&self, stream: UnixStream, passt: Option<Started>) -> Option<Served> {
        let begun = caught(|| self.begin(stream, passt, None));
        begun.unwrap_or_else(|panic| {
            self.network.quarantine(&self.port, &defect(&panic));
            None
        })
    }

    /// Has a worker serve `stream`, a new connection, or one of which another process of the network has left the `rest`.
    fn begin(&self, stream: UnixStream, passt: Option<Started>, rest: Option<Rest>) -> Option<Served> {
        let Self { network, port, settings, .. } = self;
        let Some(held) = port.quotas.descriptors.take(descriptors::OF_CONNECTION) else {
            network.note_shortage(port);
            return None;
        };
        port.set_advice(None);
        port.begin_session();
        if self.has_front_end() {
            let peer = listener::peer(&stream);
            if rest.is_some() { port.front_end_stays(peer) } else { port.front_end_came(peer) }
        }
        if let Some(nat) = self.nat.as_ref().filter(|_| rest.is_none()) {
            nat.clear();
        }
        let started = Connection::new(stream, self.nat.clone()).and_then(|connection| {
            let tracker = ChecksumTracker::new(settings.checksums, Arc::clone(port));
            network.serve(port, Stream(Arc::clone(&connection), tracker, rest.unwrap_or_default()))?;
            Ok(connection)
        });
        match started {
            Ok(connection) => {
                // Of a passt without a copy of its standard error nothing is handed over.
                let log = passt.as_ref().map(Started::log).transpose();
                self.present.show(log.ok().map(|log| Present { connection: Arc::clone(&connection), log }));
                Some(Served { connection, passt, _held: held })
            }
            Err(error) => {
                if descriptors::is_shortage(&error) {
                    network.note_shortage(port);
                }
                self.left(format_args!("it cannot be served: {error}"));
                None
            }
        }
    }

    /// Waits until the connection ends, which a further one at the port's socket may bring about; the last line of passt's log.
    fn serve(&self, served: Served, watch: &Watch) -> Option<String> {
        let waited = caught(|| self.await_end(&served.connection, watch));
        self.present.show(None);
        waited.unwrap_or_else(|panic| self.network.quarantine(&self.port, &defect(&panic)));
        served.passt.map(Started::end)
    }

    fn await_end(&self, connection: &Connection, watch: &Watch) {
        let Self { network, port, settings, .. } = self;
        let port_listener = PortListener::new(port, settings.other.listener(), settings.second);
        watch.wait_for_end(&connection.socket, &port_listener);
        match connection.fault.get() {
            Some(fault) => {
                network.quarantine(port, &fault.to_string());
                self.left(format_args!("{fault}"));
            }
            None => {
                network.stop_port(port);
                port.set_state(PortState::Waiting);
                self.left(format_args!("{}", port_listener.end()));
            }
        }
        port.set_advice(None);
    }
}

/// Waits for the next connection; returns passt's process with it if memlane started one.
fn meet(other: &Other, port: &str, watch: &Watch) -> io::Result<(UnixStream, Option<Started>)> {
    match other {
        Other::Listen(listener) => {
            watch.wait_for(listener.socket().as_raw_fd(), EventSet::IN);
            Ok((listener.socket().accept()?.0, None))
        }
        Other::Connect(path) => Ok((socket::connect(path)?, None)),
        Other::Passt(passt) => passt.start(port).map(|(stream, child)| (stream, Some(child))),
    }
}
