//! The server of a vhost-user port: one connection with a front end after the other, each from its beginning to its end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Pause;
use super::conversation::{Conversation, Restored};
use super::front_end::FrontEnd;
use super::session::Endpoint;
use super::settings::DeviceSettings;
use super::socket::{self, Listener};
use crate::descriptors;
use crate::executor::Watched;
use crate::listener;
use crate::network::Network;
use crate::network::fatal::defect;
use crate::port::PortState;
use crate::session::{GUEST_PAUSE, RETRY, Serve, SessionContext, catching};
use crate::takeover::RestoredSession;

/// Interval in which a closed port is looked at, which a command may have opened again.
const CLOSED: Duration = Duration::from_millis(100);

/// How the front end is reached, for the session.
enum WatchedEndpoint {
    Listen(Watched<Arc<Listener>>),
    Connect(PathBuf),
}

/// The server of a port's sessions.
pub(super) struct Server {
    network: Arc<Network>,
    settings: DeviceSettings,
    watched: WatchedEndpoint,
    pause: Arc<Pause>,
    /// The session of another process with which it begins.
    restored: Option<Box<RestoredSession>>,
    /// The front end that was admitted beside the present one.
    second: Option<FrontEnd>,
}

impl Serve for Server {
    /// A front end, and the state with which another process of the network has left it.
    type Open = (FrontEnd, Option<Box<Restored>>);
    type End = ();

    /// Goes on with the session of another process, or meets the next front end: one that was admitted beside the one before, or that
    /// connects.
    async fn open(&mut self, context: &SessionContext) -> Result<Self::Open, ()> {
        if let Some(restored) = self.restored.take()
            && let Some(open) = self.begin_with(*restored, context).await
        {
            return Ok(open);
        }
        let front_end = match self.second.take() {
            Some(second) => {
                second.take_port();
                // The first messages of the second were served beside the front end before.
                self.settings.port.ephemeral.note_message();
                Ok(second)
            }
            None => {
                context.set_idle(true);
                let connection = self.meet(context).await;
                context.set_idle(false);
                FrontEnd::new((&context.task, &self.network, &self.settings), connection.ok_or(())?)
            }
        };
        front_end.map(|front_end| (front_end, None)).map_err(|error| self.note_shortage(&error))
    }

    async fn serve(&mut self, context: &SessionContext, (front_end, restored): Self::Open) {
        context.set_stream(front_end.stream.try_clone().ok());
        if !context.quits() {
            self.converse(context, front_end, restored).await;
        }
        context.set_stream(None);
    }

    /// A pause, so that a front end that reconnects in a loop gets a small part of a CPU.
    fn pause(&mut self, (): (), _: Duration) -> Duration {
        GUEST_PAUSE
    }
}

impl Server {
    /// The server of front ends at the endpoint, which `pause` has stand still; begins with the session of another process.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(
        context: &SessionContext,
        (network, settings): (Arc<Network>, DeviceSettings),
        endpoint: Endpoint,
        (pause, restored): (Arc<Pause>, Option<RestoredSession>),
    ) -> io::Result<Self> {
        let watched = match endpoint {
            Endpoint::Listen(listener) => {
                listener.socket().set_nonblocking(true)?;
                WatchedEndpoint::Listen(context.task.watch(listener)?)
            }
            Endpoint::Connect(path) => WatchedEndpoint::Connect(path),
        };
        Ok(Self { network, settings, watched, pause, restored: restored.map(Box::new), second: None })
    }

    /// Goes on with the session of another process, if that has a front end.
    async fn begin_with(&self, restored: RestoredSession, context: &SessionContext) -> Option<(FrontEnd, Option<Box<Restored>>)> {
        let RestoredSession { connection, mut files, progress } = restored;
        let Some(connection) = connection else {
            progress.report(Ok(None));
            progress.gate.pass(&context.task).await;
            return None;
        };
        let Some(socket) = files.take(connection.socket) else {
            progress.report(Err("its connection is missing".into()));
            return None;
        };
        match FrontEnd::new((&context.task, &self.network, &self.settings), OwnedFd::from(socket).into()) {
            Ok(front_end) => Some((front_end, Some(Box::new(Restored { connection, files, progress })))),
            Err(error) => {
                progress.report(Err(error.to_string()));
                None
            }
        }
    }

    fn note_shortage(&self, error: &io::Error) {
        if descriptors::is_shortage(error) {
            self.network.note_shortage(&self.settings.port);
        }
    }

    /// Waits for the next connection; `None` when told to quit.
    async fn meet(&self, context: &SessionContext) -> Option<UnixStream> {
        let mut pause = RETRY.0;
        let ephemeral = &self.settings.port.ephemeral;
        while !context.quits() {
            self.pause.stand_if_asked(&context.task, || Ok(None)).await;
            if ephemeral.is_closed() {
                // Until it is detached, or a command opens it again.
                self.rest(context, Some(CLOSED), || false).await;
                continue;
            }
            match &self.watched {
                WatchedEndpoint::Listen(listener) => {
                    listener.clear();
                    match listener.socket().accept() {
                        Ok((stream, _)) => {
                            // Others may be pending.
                            listener.set_ready();
                            return Some(stream);
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            let now = Instant::now();
                            if !ephemeral.close_if_due(&self.settings.port.name, now) {
                                self.rest(context, ephemeral.due_in(now), || listener.is_ready()).await;
                            }
                        }
                        Err(error) => {
                            self.note_shortage(&error);
                            self.rest(context, Some(RETRY.0), || false).await;
                        }
                    }
                }
                WatchedEndpoint::Connect(path) => {
                    if let Ok(stream) = socket::connect(path) {
                        return Some(stream);
                    }
                    self.rest(context, Some(pause), || false).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
        None
    }

    /// Waits until `condition` holds, the session is to end or to stand still, or the timeout `most`.
    async fn rest(&self, context: &SessionContext, most: Option<Duration>, condition: impl Fn() -> bool) {
        context.rest(most, || condition() || self.pause.is_asked()).await;
    }

    /// Serves one connection to its end.
    async fn converse(&mut self, context: &SessionContext, front_end: FrontEnd, restored: Option<Box<Restored>>) {
        let Self { network, settings, watched, pause, second, .. } = self;
        let port = &settings.port;
        let peer = listener::peer(&front_end.stream);
        port.begin_session();
        if restored.is_none() {
            port.front_end_came(peer);
            port.set_state(PortState::Speaking);
        } else {
            port.front_end_stays(peer);
            port.ephemeral.note_message();
        }
        let mut short = false;
        let listener = match watched {
            WatchedEndpoint::Listen(listener) => Some(&*listener),
            WatchedEndpoint::Connect(_) => None,
        };
        let conversation = Conversation::new((&context.task, network, settings), listener, Some(pause), second);
        let ended = catching(conversation.run(front_end, restored)).await;
        match ended.unwrap_or_else(|panic| Err(io::Error::other(defect(&panic)))) {
            Ok(why) => {
                network.stop_port(port);
                port.set_state(PortState::Waiting);
                port.front_end_left(format_args!("{why}"));
            }
            // Descriptors ran out: a shortage of memlane's, no violation by the front end.
            Err(error) if descriptors::is_shortage(&error) => {
                network.stop_port(port);
                port.set_state(PortState::Waiting);
                port.front_end_left(format_args!("descriptors ran out"));
                short = true;
            }
            Err(cause) => {
                network.quarantine(port, &cause.to_string());
                context.task.sleep(GUEST_PAUSE).await;
                port.front_end_left(format_args!("{cause}"));
            }
        }
        port.forget_front_end();
        if short {
            network.note_shortage(port);
        } else {
            port.ephemeral.note_end(Instant::now());
        }
    }
}
