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
use super::passt::{self, Passt, Started};
use super::{Connection, Stream};
use crate::descriptors;
use crate::door::{self, Door, Second};
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::{Port, PortState};
use crate::session::{Backoff, Session, Watch, Woken};
use crate::vhost_user::access::Access;
use crate::vhost_user::socket::{self, Listener};

/// First and longest pause before the next attempt to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Longest pause before passt is started again.
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// Pause between the end of a connection and the next that is accepted.
const PENALTY: Duration = Duration::from_millis(1);

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

/// Serves `port` in a session thread: one connection of `other` after the other, with checksums of their frames treated as
/// `checksums` says, and connections beside the present one as `second` says.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(network: Arc<Network>, port: Arc<Port>, other: Other, checksums: Checksums, second: Second) -> io::Result<Session> {
    Session::start(format!("port-{}", port.id.0), move |watch| {
        let most = if matches!(other, Other::Passt(_)) { MOST_PAUSE } else { RETRY.1 };
        let mut backoff = Backoff::new(RETRY.0, most);
        let is_front_end = !matches!(other, Other::Passt(_));
        loop {
            let door = Door::new(&port, other.listener(), second);
            let begun = Instant::now();
            let met = meet(&other, &port.name, &watch);
            let failed = met.is_err();
            let ended = match met {
                Ok((stream, child)) => {
                    let served = caught(|| serve(&network, &port, stream, &watch, (&door, is_front_end), checksums));
                    served.unwrap_or_else(|panic| network.quarantine(&port, &defect(&panic)));
                    child.map(Started::end)
                }
                Err(error) if descriptors::is_shortage(&error) => {
                    network.note_shortage(&port);
                    None
                }
                Err(cause) => Some(cause.to_string()),
            };
            if watch.quits() {
                return;
            }
            let pause = backoff.after(begun.elapsed());
            let pause = match (&other, ended) {
                // The other side reconnects by itself: accept at once.
                (Other::Listen(..), _) if !failed => PENALTY,
                (Other::Listen(..), _) => RETRY.0,
                (Other::Passt(_), Some(last)) => {
                    port.set_trouble(backoff.failures, passt::trouble(backoff.failures, &last, pause));
                    pause
                }
                (Other::Connect(path), Some(cause)) => {
                    port.set_trouble(
                        backoff.failures,
                        format!("cannot connect to {}: {cause} (memlane retries every second)", path.display()),
                    );
                    pause
                }
                _ => pause,
            };
            if watch.wait(Some(pause)) == Woken::Quit {
                return;
            }
        }
    })
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

/// Serves one connection to its end, which a further connection at `door` may be; passt's is not that of a front end.
fn serve(
    network: &Arc<Network>,
    port: &Arc<Port>,
    stream: UnixStream,
    watch: &Watch,
    (door, is_front_end): (&Door, bool),
    checksums: Checksums,
) {
    let Some(_held) = port.descriptors.take(descriptors::OF_CONNECTION) else {
        return network.note_shortage(port);
    };
    port.set_advice(None);
    port.begin_session();
    if is_front_end {
        port.front_end_came(door::peer(&stream));
    }
    let left = |why: fmt::Arguments| {
        if is_front_end {
            port.front_end_left(why);
        }
    };
    let started = Connection::new(stream).and_then(|connection| {
        network.serve(port, Stream(Arc::clone(&connection), ChecksumTracker::new(checksums, Arc::clone(port))))?;
        Ok(connection)
    });
    let connection = match started {
        Ok(connection) => connection,
        Err(error) => {
            if descriptors::is_shortage(&error) {
                network.note_shortage(port);
            }
            return left(format_args!("it cannot be served: {error}"));
        }
    };
    watch.wait_for_end(&connection.socket, door);
    match connection.fault.get() {
        Some(fault) => {
            network.quarantine(port, &fault.to_string());
            left(format_args!("{fault}"));
        }
        None => {
            network.stop_port(port);
            port.set_state(PortState::Waiting);
            left(format_args!("{}", door.end()));
        }
    }
    port.set_advice(None);
}
