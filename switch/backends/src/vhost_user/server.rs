//! The session of a vhost-user port: one connection with a front end after the other, each from its beginning to its end.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::conversation::{Conversation, Restored};
use super::front_end::FrontEnd;
use super::saved::RestoredSession;
use super::session::{Endpoint, Link};
use super::settings::DeviceSettings;
use super::socket::{self, Listener};
use crate::descriptors;
use crate::executor::{Context, Watched};
use crate::listener;
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::PortState;
use crate::session::{GUEST_PAUSE, RETRY};

/// Interval in which a closed port is looked at, which a command may have opened again.
const CLOSED: Duration = Duration::from_millis(100);

/// How the front end is reached, for the session.
enum WatchedEndpoint {
    Listen(Watched<Arc<Listener>>),
    Connect(PathBuf),
}

/// A session.
pub(super) struct Server {
    context: Context,
    network: Arc<Network>,
    settings: DeviceSettings,
    watched: WatchedEndpoint,
    link: Arc<Link>,
}

impl Server {
    /// The session that serves front ends at the endpoint.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(
        context: Context,
        network: Arc<Network>,
        (settings, endpoint): (DeviceSettings, Endpoint),
        link: Arc<Link>,
    ) -> io::Result<Self> {
        let watched = match endpoint {
            Endpoint::Listen(listener) => {
                listener.socket().set_nonblocking(true)?;
                WatchedEndpoint::Listen(context.watch(listener)?)
            }
            Endpoint::Connect(path) => WatchedEndpoint::Connect(path),
        };
        Ok(Self { context, network, settings, watched, link })
    }

    /// Runs until it is told to quit; begins with the session of another process.
    pub(super) async fn run(self, restored: Option<RestoredSession>) {
        // The front end that was admitted beside the present one.
        let mut second = None;
        if let Some(restored) = restored {
            self.begin_with(restored, &mut second).await;
        }
        while let Some(front_end) = self.meet(&mut second).await {
            self.serve_unless_quit(front_end, None, &mut second).await;
        }
    }

    fn own(&self) -> (&Context, &Arc<Network>, &DeviceSettings) {
        (&self.context, &self.network, &self.settings)
    }

    fn listener(&self) -> Option<&Watched<Arc<Listener>>> {
        match &self.watched {
            WatchedEndpoint::Listen(listener) => Some(listener),
            WatchedEndpoint::Connect(_) => None,
        }
    }

    /// Goes on with the session of another process.
    async fn begin_with(&self, restored: RestoredSession, second: &mut Option<FrontEnd>) {
        let RestoredSession { connection, mut files, progress } = restored;
        let Some(connection) = connection else {
            progress.report(Ok(None));
            return progress.gate.pass(&self.context).await;
        };
        let Some(socket) = files.take(connection.socket) else {
            return progress.report(Err("its connection is missing".into()));
        };
        match FrontEnd::new(self.own(), OwnedFd::from(socket).into()) {
            Ok(front_end) => {
                let restored = Restored { connection, files, progress };
                self.serve_unless_quit(front_end, Some(Box::new(restored)), second).await;
            }
            Err(error) => progress.report(Err(error.to_string())),
        }
    }

    async fn serve_unless_quit(&self, front_end: FrontEnd, restored: Option<Box<Restored>>, second: &mut Option<FrontEnd>) {
        self.link.set_stream(front_end.stream.try_clone().ok());
        if !self.link.quits() {
            // In memory of its own, which a port without a front end does not take.
            Box::pin(self.serve(front_end, restored, second)).await;
        }
        self.link.set_stream(None);
        // A pause, so that a front end that reconnects in a loop gets a small part of a CPU.
        self.context.sleep(GUEST_PAUSE).await;
    }

    /// The next front end: one that was admitted beside the one before, or that connects; `None` when told to quit.
    async fn meet(&self, second: &mut Option<FrontEnd>) -> Option<FrontEnd> {
        loop {
            let front_end = match second.take() {
                Some(second) => {
                    second.take_port();
                    // The first messages of the second were served beside the front end before.
                    self.settings.port.ephemeral.note_message();
                    Ok(second)
                }
                None => {
                    self.link.set_idle(true);
                    let connection = self.connection().await;
                    self.link.set_idle(false);
                    FrontEnd::new(self.own(), connection?)
                }
            };
            match front_end {
                Ok(front_end) => return Some(front_end).filter(|_| !self.link.quits()),
                Err(error) => {
                    if descriptors::is_shortage(&error) {
                        self.network.note_shortage(&self.settings.port);
                    }
                    self.context.sleep(GUEST_PAUSE).await;
                }
            }
        }
    }

    /// Waits for the next connection; `None` when told to quit.
    async fn connection(&self) -> Option<UnixStream> {
        let mut pause = RETRY.0;
        let ephemeral = &self.settings.port.ephemeral;
        while !self.link.quits() {
            self.link.pause.stand_if_asked(&self.context, || Ok(Default::default())).await;
            if ephemeral.is_closed() {
                // Until it is detached, or a command opens it again.
                self.rest(Some(CLOSED), || false).await;
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
                                self.rest(ephemeral.due_in(now), || listener.is_ready()).await;
                            }
                        }
                        Err(error) => {
                            if descriptors::is_shortage(&error) {
                                self.network.note_shortage(&self.settings.port);
                            }
                            self.rest(Some(RETRY.0), || false).await;
                        }
                    }
                }
                WatchedEndpoint::Connect(path) => {
                    if let Ok(stream) = socket::connect(path) {
                        return Some(stream);
                    }
                    self.rest(Some(pause), || false).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
        None
    }

    /// Waits until `condition` holds, it is told to quit or to stand, or the timeout `most`.
    async fn rest(&self, most: Option<Duration>, condition: impl Fn() -> bool) {
        let Link { pause, .. } = &*self.link;
        let is_over = || (condition() || self.link.quits() || pause.is_asked()).then_some(());
        self.context.wait(most.map(|most| Instant::now() + most), is_over).await;
    }

    /// Serves one connection to its end.
    async fn serve(&self, front_end: FrontEnd, restored: Option<Box<Restored>>, second: &mut Option<FrontEnd>) {
        let Self { context, network, settings, .. } = self;
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
        let (listener, pause) = (self.listener(), Some(&self.link.pause));
        let conversation = Conversation::new((context, network, settings), listener, pause, second);
        match catching(conversation.run(front_end, restored)).await {
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
                context.sleep(GUEST_PAUSE).await;
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

/// Runs `conversation`. A panic in the message handling costs the port, not the session, which serves later front ends.
async fn catching<T>(conversation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut conversation = pin!(conversation);
    poll_fn(|context| {
        caught(|| conversation.as_mut().poll(context)).unwrap_or_else(|panic| Poll::Ready(Err(io::Error::other(defect(&panic)))))
    })
    .await
}
