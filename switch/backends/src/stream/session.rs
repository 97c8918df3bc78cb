//! Sessions of a stream port: one connection after the other, each from its beginning to its end.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checksums::{ChecksumTracker, Checksums};
use super::nat::Nat;
use super::passt::{self, Passt, Started};
use super::{Connection, Present, PresentStream, Rest, RestoredStream, Stream};
use crate::budget::Permit;
use crate::descriptors;
use crate::executor::{Executor, Watched};
use crate::listener::{self, Second};
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::{Port, PortState};
use crate::session::{Backoff, GUEST_PAUSE, LONGEST_PAUSE, RETRY, Serve, Session, SessionContext, UNWATCHED, catching, serve_all};
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

/// Serves `port` by `executor`: one connection after the other, first the one that is `restored`, which is served when this returns.
/// The present connection is told, too.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(
    executor: &Executor,
    network: Arc<Network>,
    port: &Arc<Port>,
    settings: StreamSettings,
    restored: Option<RestoredStream>,
) -> io::Result<(Session, PresentStream)> {
    let present = PresentStream::default();
    let (nat, most) = match &settings.other {
        Other::Passt(passt) => (passt.nat().map(|nat| Nat::new(nat.clone(), port)), LONGEST_PAUSE),
        Other::Listen(_) | Other::Connect(_) => (None, RETRY.1),
    };
    let session = Session::new(executor, port, |context| {
        let listener = settings.other.listening().map(|listener| context.task.watch(listener)).transpose()?;
        let (port, backoff, present) = (Arc::clone(port), Backoff::new(RETRY.0, most), present.clone());
        let server = StreamServer { network, port, settings, listener, nat, backoff, present };
        let first = restored.and_then(|restored| server.restore(restored)).map(Ok);
        Ok(serve_all(server, context, first))
    })?;
    session.notify();
    Ok((session, present))
}

/// A port and its connections, one after the other.
struct StreamServer {
    network: Arc<Network>,
    port: Arc<Port>,
    settings: StreamSettings,
    listener: Option<Watched<Arc<Listener>>>,
    nat: Option<Arc<Nat>>,
    backoff: Backoff,
    present: PresentStream,
}

/// A connection that a worker serves, and passt if that is the other side.
struct Served {
    connection: Arc<Connection>,
    passt: Option<Started>,
    _held: Permit,
}

/// The end of a session.
#[derive(Default)]
struct End {
    /// The cause that the port reports.
    cause: Option<String>,
    /// There was no connection.
    failed: bool,
}

impl Serve for StreamServer {
    type Open = Served;
    type End = End;

    async fn open(&mut self, context: &SessionContext) -> Result<Served, End> {
        match self.meet(context).await {
            // The port may have been detached while passt was started.
            Ok(_) if context.quits() => Err(End::default()),
            Ok((stream, passt)) => self.begin_or_quarantine(stream, passt).ok_or_else(End::default),
            Err(error) if descriptors::is_shortage(&error) => {
                self.network.note_shortage(&self.port);
                Err(End { cause: None, failed: true })
            }
            Err(error) => Err(End { cause: Some(error.to_string()), failed: true }),
        }
    }

    /// Waits until the connection ends, which a further one at the port's socket may bring about; its cause is the last line of passt's log.
    async fn serve(&mut self, context: &SessionContext, served: Served) -> End {
        let waited = catching(self.await_end(context, &served.connection)).await;
        self.present.show(None);
        waited.unwrap_or_else(|panic| self.network.quarantine(&self.port, &defect(&panic)));
        End { cause: served.passt.map(Started::end), failed: false }
    }

    fn pause(&mut self, End { cause, failed }: End, lasted: Duration) -> Duration {
        let pause = self.backoff.after(lasted);
        let failures = self.backoff.failures;
        match (&self.settings.other, cause) {
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
}

impl StreamServer {
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

    /// Waits until the connection ends, or is to make way for another front end's.
    async fn await_end(&self, context: &SessionContext, connection: &Connection) {
        let Self { network, port, .. } = self;
        let is_replaced = self.await_close(context, connection).await;
        match connection.fault.get() {
            Some(fault) => {
                network.quarantine(port, &fault.to_string());
                self.left(format_args!("{fault}"));
            }
            None => {
                network.stop_port(port);
                port.set_state(PortState::Waiting);
                self.left(format_args!("{}", listener::end(is_replaced)));
            }
        }
        port.set_advice(None);
    }

    /// Waits until the other side closes the connection; true if it has not, and another front end is to have the port.
    async fn await_close(&self, context: &SessionContext, connection: &Connection) -> bool {
        let Ok(stream) = context.task.watch_end(&connection.socket) else {
            context.rest(Some(UNWATCHED), || false).await;
            return false;
        };
        let has_ended = || (stream.is_ready() || context.quits()).then_some(());
        let Some(listener) = &self.listener else {
            context.task.wait(None, has_ended).await;
            return false;
        };
        loop {
            context.task.wait(None, || has_ended().or_else(|| listener.is_readable().then_some(()))).await;
            if has_ended().is_some() {
                return false;
            }
            match self.settings.second {
                Second::Refuse => listener::refuse(&context.task, listener.socket(), &self.port, has_ended).await,
                // The next session accepts the connection.
                Second::Replace => {
                    return context.task.wait(Some(Instant::now() + listener::GRACE), has_ended).await.is_none();
                }
            }
        }
    }

    /// Waits for the next connection; returns passt's process with it if memlane started one.
    async fn meet(&self, context: &SessionContext) -> io::Result<(UnixStream, Option<Started>)> {
        match &self.settings.other {
            Other::Listen(listener) => {
                context.rest(None, || self.listener.as_ref().is_none_or(Watched::is_readable)).await;
                Ok((listener.socket().accept()?.0, None))
            }
            Other::Connect(path) => Ok((socket::connect(path)?, None)),
            Other::Passt(passt) => passt.start(&self.port.name).map(|(stream, child)| (stream, Some(child))),
        }
    }
}
