//! Sessions of a vhost-user port: one connection with a front end after the other, each from its beginning to its end.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vhost::vhost_user::BackendReqHandler;

use super::DeviceSettings;
use super::access::Access;
use super::device::Device;
use super::extra;
use super::shared_memory_check;
use super::socket::{self, Listener, Waiter};
use super::wire::{self, Message, WireError};
use crate::descriptors;
use crate::door::{self, Door};
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::{Port, PortState};

/// First and longest pause before the next attempt to connect.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Pause after a front end's protocol violation, before the next front end is served.
const PENALTY: Duration = Duration::from_millis(1);
/// Timeout for sessions that are to end to deliver their last replies.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Polling interval while they end.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Stack of a session thread, which does no work on frames.
const STACK: usize = 256 * 1024;

/// How the front end is reached.
#[derive(Debug)]
pub enum Endpoint {
    /// memlane listens and the front end connects.
    Listen(Listener),
    /// The front end listens; memlane connects, and retries until it succeeds.
    Connect(PathBuf),
}

impl Endpoint {
    /// Listens at `path`, replacing a stale socket that has no listener any more; `access` says which users may connect.
    ///
    /// # Errors
    /// Another process listens there, or the path is another kind of file, or the access rights cannot be set.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Self> {
        let listener = socket::bind(path, Access::PRIVATE)?;
        access.apply(path)?;
        Ok(Self::Listen(listener))
    }

    fn listener(&self) -> Option<&UnixListener> {
        match self {
            Self::Listen(listener) => Some(listener.socket()),
            Self::Connect(_) => None,
        }
    }
}

/// A running session thread.
#[derive(Debug)]
pub struct Session {
    quit: Arc<AtomicBool>,
    stream: Arc<Mutex<Option<UnixStream>>>,
    waiter: Arc<Waiter>,
    thread: std::thread::JoinHandle<()>,
}

/// Serves front ends at `endpoint`, one after the other, in a session thread.
///
/// # Errors
/// The kernel refuses a thread or descriptors.
pub fn run(network: Arc<Network>, settings: DeviceSettings, endpoint: Endpoint) -> io::Result<Session> {
    if let Some(listener) = endpoint.listener() {
        listener.set_nonblocking(true)?;
    }
    let waiter = Arc::new(Waiter::new()?);
    let quit: Arc<AtomicBool> = Arc::default();
    let stream: Arc<Mutex<Option<UnixStream>>> = Arc::default();
    let (theirs, their_stream, their_waiter) = (Arc::clone(&quit), Arc::clone(&stream), Arc::clone(&waiter));
    let name = format!("port-{}", settings.port.id.0);
    let thread = std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
        while let Some(connection) = meet(&network, &settings.port, &endpoint, &their_waiter, &theirs) {
            *their_stream.lock().unwrap_or_else(PoisonError::into_inner) = connection.try_clone().ok();
            if !theirs.load(Ordering::Acquire) {
                serve(&network, &settings, connection, endpoint.listener());
            }
            their_stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A pause, so that a front end that reconnects in a loop gets a small part of a CPU.
            std::thread::sleep(PENALTY);
        }
    })?;
    Ok(Session { quit, stream, waiter, thread })
}

impl Session {
    /// Ends all conversations, then the virtqueues, then the connections and the threads. In this order: a front end that sees
    /// the connection end takes the used indices at that moment as the place where the next back end resumes. Front ends that do
    /// not read their last reply delay this by a second, all together; threads that are blocked in the kernel on a front end's
    /// file delay it by another and are abandoned: they end with the process.
    pub fn stop(sessions: Vec<Self>) {
        sessions.iter().for_each(Self::end_conversation);
        await_all(&sessions);
        // The threads left are blocked in a reply that the front end does not read.
        sessions.iter().for_each(|session| session.shut(Shutdown::Both));
        await_all(&sessions);
        for session in sessions {
            if session.thread.is_finished() {
                // A thread that panicked has logged it on standard error; the others still end.
                let _ = session.thread.join();
            } else {
                let name = session.thread.thread().name().unwrap_or_default().to_owned();
                tracing::warn!(thread = %name, "session thread abandoned: blocked in the kernel on a file from the front end (FUSE or NFS server not responding)");
            }
        }
    }

    fn end_conversation(&self) {
        self.quit.store(true, Ordering::Release);
        self.waiter.ring();
        self.shut(Shutdown::Read);
    }

    fn shut(&self, how: Shutdown) {
        if let Some(stream) = &*self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(how);
        }
    }
}

/// Waits until all threads have ended, or the timeout.
fn await_all(sessions: &[Session]) {
    let deadline = Instant::now() + TIMEOUT;
    while sessions.iter().any(|session| !session.thread.is_finished()) && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits for the next connection; `None` when told to quit.
fn meet(network: &Network, port: &Port, endpoint: &Endpoint, waiter: &Waiter, quit: &AtomicBool) -> Option<UnixStream> {
    let mut pause = RETRY.0;
    while !quit.load(Ordering::Acquire) {
        let connection = match endpoint {
            Endpoint::Listen(listener) => listener.socket().accept().map(|(stream, _)| stream),
            Endpoint::Connect(path) => socket::connect(path),
        };
        match (connection, endpoint) {
            (Ok(stream), _) => return Some(stream),
            (Err(error), Endpoint::Listen(..)) if error.kind() == io::ErrorKind::WouldBlock => {
                waiter.wait(endpoint.listener(), None)
            }
            (Err(error), Endpoint::Listen(..)) => {
                if descriptors::is_shortage(&error) {
                    network.note_shortage(port);
                }
                std::thread::sleep(RETRY.0);
            }
            (Err(_), Endpoint::Connect(_)) => {
                waiter.wait(None, Some(pause));
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }
    None
}

/// Serves one connection to its end.
fn serve(network: &Arc<Network>, settings: &DeviceSettings, stream: UnixStream, listener: Option<&UnixListener>) {
    let port = &settings.port;
    let Some(_held) = port.descriptors.take(descriptors::OF_CONNECTION) else {
        return network.note_shortage(port);
    };
    port.begin_session();
    port.front_end_came(door::peer(&stream));
    port.set_state(PortState::Speaking);
    let mut short = false;
    // A panic in the message handling costs the port, not the session thread, which serves later front ends.
    let result =
        caught(|| converse(network, settings, stream, listener)).unwrap_or_else(|panic| Err(io::Error::other(defect(&panic))));
    match result {
        Ok(()) => {
            network.stop_port(port);
            port.set_state(PortState::Waiting);
            port.front_end_left(format_args!("the connection ended"));
        }
        // Descriptors ran out: a shortage of memlane's, no violation by the front end.
        Err(error) if descriptors::is_shortage(&error) => {
            network.stop_port(port);
            port.set_state(PortState::Waiting);
            port.front_end_left(format_args!("descriptors ran out"));
            short = true;
        }
        Err(cause) => {
            quarantine(network, settings, &cause.to_string());
            port.front_end_left(format_args!("{cause}"));
        }
    }
    port.forget_front_end();
    if short {
        network.note_shortage(port);
    }
}

/// Quarantines the port and pauses, so that a front end that keeps breaking rules gets a small part of a CPU.
fn quarantine(network: &Network, settings: &DeviceSettings, cause: &str) {
    network.quarantine(&settings.port, cause);
    std::thread::sleep(PENALTY);
}

/// Serves messages until the front end disconnects; the caller then stops the virtqueues that were started. Refuses further
/// connections at `listener` meanwhile. For sessions, and for fuzzers, which bring a connection of their own.
///
/// # Errors
/// The front end violated the protocol, or the connection failed.
pub fn converse(
    network: &Arc<Network>,
    settings: &DeviceSettings,
    stream: UnixStream,
    listener: Option<&UnixListener>,
) -> Result<(), io::Error> {
    let door = Door { port: &settings.port, listener };
    let device = Arc::new(Mutex::new(Device::new(Arc::clone(network), settings.clone())));
    let mut crates = Crates::new(&device)?;
    let kicks = settings.port.totals().kicks;
    loop {
        shared_memory_check::look_until_message(&door, &device, &stream, kicks);
        let message = match Message::receive_after(&stream, &|| _ = door.wait(&stream, None)) {
            Ok(message) => message,
            Err(WireError::HungUp) => return Ok(()),
            Err(WireError::Descriptors) if descriptors::are_short() => return Err(descriptors::ran_out()),
            Err(error) => return Err(io::Error::other(error)),
        };
        settings.port.log_message(format_args!("front end sends {message}"));
        let served = match extra::is_ours(&message) {
            Some(request) => {
                let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
                extra::serve(request, &message, &mut device, &stream)
            }
            None => crates.serve(&message, &stream),
        };
        let (short, fault) = {
            let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
            (device.is_short(), device.take_fault())
        };
        if short || served.is_err() && fault.is_none() && descriptors::are_short() {
            return Err(descriptors::ran_out());
        }
        if let Some(cause) = fault {
            // The guest violated the protocol, not the front end.
            quarantine(network, settings, &cause);
            continue;
        }
        match served {
            Ok(()) => {}
            // The front end was killed, or its machine rebooted, before it could read the reply: no violation.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The `vhost` crate's handler, behind a socket pair.
struct Crates {
    handler: BackendReqHandler<Mutex<Device>>,
    ours: UnixStream,
}

impl Crates {
    fn new(device: &Arc<Mutex<Device>>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok(Self { handler: BackendReqHandler::from_stream(theirs, Arc::clone(device)), ours })
    }

    /// Has the handler serve `message`, and forwards its reply to `stream`. No reply carries file descriptors, because no feature
    /// is offered that would.
    fn serve(&mut self, message: &Message, stream: &UnixStream) -> io::Result<()> {
        message.send(&self.ours)?;
        let result = self.handler.handle_request();
        let mut answer = [0; wire::HEADER + wire::MAX_PAYLOAD];
        match (&self.ours).read(&mut answer) {
            Ok(length) => (&mut &*stream).write_all(&answer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        result.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_the_kernel_holds_does_not_hold_up_the_end() {
        let (_never, held) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || held.recv().unwrap_or_default());
        let waiter = Arc::new(Waiter::new().unwrap());
        let session = Session { quit: Arc::default(), stream: Arc::default(), waiter, thread };
        let (tell, stopped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            Session::stop(vec![session]);
            tell.send(()).unwrap();
        });
        assert_eq!(stopped.recv_timeout(Duration::from_secs(20)), Ok(()));
    }
}
