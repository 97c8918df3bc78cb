//! Sessions: whoever is on the other side of the stream, from its beginning to its end, again and again.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::Connection;
use super::checksums::{Checksums, Keeper};
use super::passt::{Passt, Started};
use crate::descriptors;
use crate::network::Network;
use crate::port::peer::{Door, PENALTY, Peer};
use crate::port::vhost_user::access::Access;
use crate::port::vhost_user::socket;
use crate::port::{Port, State};

/// How long to wait before trying again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Tokens of what a thread waits for.
const QUIT: u64 = 0;
const FILE: u64 = 1;
const VISITOR: u64 = 2;
/// A session's thread needs little.
const STACK: usize = 256 * 1024;

/// Where the other side is met.
#[derive(Debug)]
pub enum Other {
    /// We listen; it connects. The socket is removed in the end.
    Listen(UnixListener, PathBuf),
    /// It listens; we connect, and keep trying.
    Connect(PathBuf),
    /// We start it, and start it again when it ends.
    Passt(Passt),
}

impl Other {
    /// Listens at `path`, in place of a socket that nobody listens at any more, for those to whom `access` is given.
    ///
    /// # Errors
    /// Somebody listens there, or something else is in the way; or access cannot be given.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Self> {
        let listener = socket::bind(path, Access::PRIVATE)?;
        listener.set_nonblocking(true)?;
        let listening = Self::Listen(listener, path.to_path_buf());
        access.apply(path)?;
        Ok(listening)
    }
}

impl Other {
    fn listener(&self) -> Option<&UnixListener> {
        match self {
            Self::Listen(listener, _) => Some(listener),
            Self::Connect(_) | Self::Passt(_) => None,
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if let Self::Listen(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A running session thread.
#[derive(Debug)]
pub struct Session {
    quit: EventFd,
    thread: std::thread::JoinHandle<()>,
}

impl Session {
    /// Ends the connection and the thread.
    pub fn stop(self) {
        // Full only if it was told already.
        let _ = self.quit.write(1);
        let _ = self.thread.join();
    }
}

/// Serves `port` to whoever is met at `other`, one after the other, in a thread of its own; does with `checksums` of their frames what is said.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(network: Arc<Network>, port: Arc<Port>, other: Other, checksums: Checksums) -> io::Result<Session> {
    let quit = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
    let watch = Watch::new(quit.try_clone()?)?;
    let thread = std::thread::Builder::new().name(format!("port-{}", port.id.0)).stack_size(STACK).spawn(move || {
        let mut pause = RETRY.0;
        loop {
            let begun = Instant::now();
            let met = meet(&other, &watch);
            let failed = met.is_err();
            match met {
                Ok((stream, child)) => {
                    serve(&network, &port, stream, &watch, other.listener(), checksums);
                    drop(child);
                }
                Err(error) if descriptors::is_shortage(&error) => network.note_shortage(&port),
                Err(_) => {}
            }
            pause = match other {
                // Whoever comes by itself is met again at once.
                Other::Listen(..) if !failed => PENALTY,
                Other::Listen(..) => RETRY.0,
                _ if begun.elapsed() > RETRY.1 => RETRY.0,
                _ => (pause * 2).min(RETRY.1),
            };
            if watch.wait(Some(pause)) == Woken::Quit {
                return;
            }
        }
    })?;
    Ok(Session { quit, thread })
}

/// The next connection, with the process behind it if it is ours.
fn meet(other: &Other, watch: &Watch) -> io::Result<(UnixStream, Option<Started>)> {
    match other {
        Other::Listen(listener, _) => {
            watch.wait_for(listener.as_raw_fd(), EventSet::IN);
            Ok((listener.accept()?.0, None))
        }
        Other::Connect(path) => Ok((socket::connect(path)?, None)),
        Other::Passt(passt) => passt.start().map(|(stream, child)| (stream, Some(child))),
    }
}

/// Serves one connection to its end; others that connect at `listener` meanwhile are turned away.
fn serve(
    network: &Arc<Network>,
    port: &Arc<Port>,
    stream: UnixStream,
    watch: &Watch,
    listener: Option<&UnixListener>,
    checksums: Checksums,
) {
    let Some(_held) = port.descriptors.take(descriptors::OF_CONNECTION) else {
        return network.note_shortage(port);
    };
    port.set_advice(None);
    port.begin_session();
    port.front_end_came(Peer::of(&stream));
    let started = Connection::new(stream).and_then(|connection| {
        let ends = connection.ends(Arc::clone(&network.shared().pool), Keeper::new(checksums, Arc::clone(port)))?;
        network.start_ends(port, ends)?;
        Ok(connection)
    });
    let connection = match started {
        Ok(connection) => connection,
        Err(error) => return port.front_end_left(format_args!("it cannot be served: {error}")),
    };
    watch.wait_for_end(&connection.socket, &Door { port, listener });
    match connection.fault.get() {
        Some(fault) => {
            network.quarantine(port, &fault.to_string());
            port.front_end_left(format_args!("{fault}"));
        }
        None => {
            network.stop_port(port);
            port.set_state(State::Waiting);
            port.front_end_left(format_args!("the connection ended"));
        }
    }
    port.set_advice(None);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Quit,
    Visitor,
    File,
    Otherwise,
}

/// What the thread waits by.
#[derive(Debug)]
struct Watch {
    epoll: Epoll,
    /// Kept open, since it is watched.
    _quit: EventFd,
}

impl Watch {
    fn new(quit: EventFd) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, quit.as_raw_fd(), EpollEvent::new(EventSet::IN, QUIT))?;
        Ok(Self { epoll, _quit: quit })
    }

    /// Waits until something of `what`, or an end, happens at `file`.
    fn wait_for(&self, file: RawFd, what: EventSet) -> Woken {
        if self.epoll.ctl(ControlOperation::Add, file, EpollEvent::new(what, FILE)).is_err() {
            return self.wait(Some(RETRY.1));
        }
        let woken = self.wait(None);
        let _ = self.epoll.ctl(ControlOperation::Delete, file, EpollEvent::default());
        woken
    }

    /// Waits until `stream` ends. What it sends is the worker's to read; here only its end is of interest.
    fn wait_for_end(&self, stream: &UnixStream, door: &Door) {
        let Some(listener) = door.listener else {
            self.wait_for(stream.as_raw_fd(), EventSet::READ_HANG_UP);
            return;
        };
        let visitors = EpollEvent::new(EventSet::IN, VISITOR);
        // Without it, others wait until the stream has ended.
        let _ = self.epoll.ctl(ControlOperation::Add, listener.as_raw_fd(), visitors);
        while self.wait_for(stream.as_raw_fd(), EventSet::READ_HANG_UP) == Woken::Visitor {
            door.turn_away();
            std::thread::sleep(PENALTY);
        }
        let _ = self.epoll.ctl(ControlOperation::Delete, listener.as_raw_fd(), EpollEvent::default());
    }

    /// Waits until something happens, or `pause` is over.
    fn wait(&self, pause: Option<Duration>) -> Woken {
        let milliseconds = pause.map_or(-1, |pause| pause.as_millis() as i32);
        let mut events = [EpollEvent::default(); 3];
        // A signal is as good as nothing having happened: whoever called looks again.
        let count = self.epoll.wait(milliseconds, &mut events).unwrap_or(0);
        let is_there = |token| events[..count].iter().any(|event| event.data() == token);
        let first =
            [(QUIT, Woken::Quit), (FILE, Woken::File), (VISITOR, Woken::Visitor)].into_iter().find(|(token, _)| is_there(*token));
        first.map_or(Woken::Otherwise, |(_, woken)| woken)
    }
}
