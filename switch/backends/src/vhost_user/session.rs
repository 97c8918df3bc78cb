//! Sessions of a vhost-user port: one connection with a front end after the other, each from its beginning to its end.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::access::Access;
use super::device::{self, Device};
use super::front_end::{self, FrontEnd, SecondState};
use super::pause::Pause;
use super::saved::{Held, Progress, RestoredDevice, RestoredSession, SavedConnection, StandingConnection, StandingSession};
use super::settings::DeviceSettings;
use super::shared_memory_check;
use super::socket::{self, Listener, Waiter};
use super::wire::{Message, PartialMessage, WireError};
use crate::descriptors;
use crate::door::{self, Arrival, Door};
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::PortState;
use crate::takeover::ReceivedFiles;

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
/// Interval in which a closed port is looked at, which a command may have opened again.
const CLOSED: Duration = Duration::from_millis(100);

/// How the front end is reached.
#[derive(Debug)]
pub enum Endpoint {
    /// memlane listens and the front end connects.
    Listen(Arc<Listener>),
    /// The front end listens; memlane connects, and retries until it succeeds.
    Connect(PathBuf),
}

impl Endpoint {
    /// Listens at `path`, replacing a stale socket that has no listener any more; `access` says which users may connect.
    ///
    /// # Errors
    /// Another process listens there, or the path is another kind of file, or the access rights cannot be set.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Self> {
        let listener = socket::bind_kept(path, Access::PRIVATE)?;
        access.apply(&listener)?;
        Ok(Self::Listen(Arc::new(listener)))
    }

    /// The listening socket, for a takeover.
    pub fn listening(&self) -> Option<Arc<Listener>> {
        match self {
            Self::Listen(listener) => Some(Arc::clone(listener)),
            Self::Connect(_) => None,
        }
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
    pause: Arc<Pause>,
    thread: std::thread::JoinHandle<()>,
}

/// Serves front ends at `endpoint`, one after the other, in a session thread.
///
/// # Errors
/// The kernel refuses a thread or descriptors.
pub fn run(network: Arc<Network>, settings: DeviceSettings, endpoint: Endpoint) -> io::Result<Session> {
    run_restored(network, settings, endpoint, None)
}

/// As [`run`]; begins with a session of another process of the network.
///
/// # Errors
/// As there.
pub fn run_restored(
    network: Arc<Network>,
    settings: DeviceSettings,
    endpoint: Endpoint,
    restored: Option<RestoredSession>,
) -> io::Result<Session> {
    if let Some(listener) = endpoint.listener() {
        listener.set_nonblocking(true)?;
    }
    let waiter = Arc::new(Waiter::new()?);
    let pause = Arc::new(Pause::new()?);
    let quit: Arc<AtomicBool> = Arc::default();
    let stream: Arc<Mutex<Option<UnixStream>>> = Arc::default();
    let server = Server {
        network,
        settings,
        endpoint,
        quit: Arc::clone(&quit),
        stream: Arc::clone(&stream),
        waiter: Arc::clone(&waiter),
        pause: Arc::clone(&pause),
        second: RefCell::default(),
    };
    let name = format!("port-{}", server.settings.port.id.0);
    let thread = std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || server.run(restored))?;
    Ok(Session { quit, stream, waiter, pause, thread })
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

    /// Asks the thread to stand still between two reads of its connection, for a takeover.
    pub fn ask_to_stand(&self) {
        self.pause.ask();
    }

    /// The session of the thread once it stands; `None` if it does not until `deadline`.
    pub fn await_standstill(&self, deadline: Instant, is_over: &dyn Fn() -> bool) -> Option<io::Result<StandingSession>> {
        self.pause.await_standstill(deadline, is_over)
    }

    /// Has the thread go on; `behind` if another process has served its virtqueues meanwhile.
    pub fn go_on(&self, behind: bool) {
        self.pause.end(behind);
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

/// A session thread.
struct Server {
    network: Arc<Network>,
    settings: DeviceSettings,
    endpoint: Endpoint,
    quit: Arc<AtomicBool>,
    stream: Arc<Mutex<Option<UnixStream>>>,
    waiter: Arc<Waiter>,
    pause: Arc<Pause>,
    /// The front end that was admitted beside the present one.
    second: RefCell<Option<FrontEnd>>,
}

impl Server {
    fn run(&self, restored: Option<RestoredSession>) {
        if let Some(restored) = restored {
            self.begin_with(restored);
        }
        while let Some(front_end) = self.meet() {
            self.serve_unless_quit(front_end, None);
        }
    }

    /// Goes on with the session of another process.
    fn begin_with(&self, restored: RestoredSession) {
        let RestoredSession { connection, mut files, progress } = restored;
        let Some(connection) = connection else {
            progress.report(Ok(None));
            return progress.gate.pass();
        };
        let Some(socket) = files.take(connection.socket) else {
            return progress.report(Err("its connection is missing".into()));
        };
        match FrontEnd::new(&self.network, &self.settings, OwnedFd::from(socket).into()) {
            Ok(front_end) => self.serve_unless_quit(front_end, Some((connection, files, progress))),
            Err(error) => progress.report(Err(error.to_string())),
        }
    }

    fn serve_unless_quit(&self, front_end: FrontEnd, restored: Option<Restored>) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = front_end.stream.try_clone().ok();
        if !self.quit.load(Ordering::Acquire) {
            self.serve(front_end, restored);
        }
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A pause, so that a front end that reconnects in a loop gets a small part of a CPU.
        std::thread::sleep(PENALTY);
    }

    /// The next front end: one that was admitted beside the one before, or that connects; `None` when told to quit.
    fn meet(&self) -> Option<FrontEnd> {
        loop {
            let second = self.second.take().filter(|second| second.take_port().is_ok());
            let front_end = match second {
                Some(second) => {
                    // The first messages of the second were served beside the front end before.
                    self.settings.port.ephemeral.note_message();
                    Ok(second)
                }
                None => FrontEnd::new(&self.network, &self.settings, self.connection()?),
            };
            match front_end {
                Ok(front_end) => return Some(front_end).filter(|_| !self.quit.load(Ordering::Acquire)),
                Err(error) => {
                    if descriptors::is_shortage(&error) {
                        self.network.note_shortage(&self.settings.port);
                    }
                    std::thread::sleep(PENALTY);
                }
            }
        }
    }

    /// Waits for the next connection; `None` when told to quit.
    fn connection(&self) -> Option<UnixStream> {
        let mut pause = RETRY.0;
        let ephemeral = &self.settings.port.ephemeral;
        while !self.quit.load(Ordering::Acquire) {
            self.pause.stand_if_asked(|| Ok(Default::default()));
            if ephemeral.is_closed() {
                // Until it is detached, or a command opens it again.
                self.waiter.wait(None, self.pause.bell(), Some(CLOSED));
                continue;
            }
            let connection = match &self.endpoint {
                Endpoint::Listen(listener) => listener.socket().accept().map(|(stream, _)| stream),
                Endpoint::Connect(path) => socket::connect(path),
            };
            match (connection, &self.endpoint) {
                (Ok(stream), _) => return Some(stream),
                (Err(error), Endpoint::Listen(..)) if error.kind() == io::ErrorKind::WouldBlock => {
                    let now = Instant::now();
                    if !ephemeral.close_if_due(&self.settings.port.name, now) {
                        self.waiter.wait(self.endpoint.listener(), self.pause.bell(), ephemeral.due_in(now));
                    }
                }
                (Err(error), Endpoint::Listen(..)) => {
                    if descriptors::is_shortage(&error) {
                        self.network.note_shortage(&self.settings.port);
                    }
                    std::thread::sleep(RETRY.0);
                }
                (Err(_), Endpoint::Connect(_)) => {
                    self.waiter.wait(None, self.pause.bell(), Some(pause));
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
        None
    }

    /// Serves one connection to its end.
    fn serve(&self, front_end: FrontEnd, restored: Option<Restored>) {
        let Self { network, settings, .. } = self;
        let port = &settings.port;
        let peer = door::peer(&front_end.stream);
        port.begin_session();
        if restored.is_none() {
            port.front_end_came(peer);
            port.set_state(PortState::Speaking);
        } else {
            port.front_end_stays(peer);
            port.ephemeral.note_message();
        }
        let mut short = false;
        // A panic in the message handling costs the port, not the session thread, which serves later front ends.
        let (listener, pause, second) = (self.endpoint.listener(), Some(&*self.pause), &self.second);
        let conversation = Conversation { network, settings, listener, pause, second };
        let result = caught(|| conversation.run(front_end, restored)).unwrap_or_else(|panic| Err(io::Error::other(defect(&panic))));
        match result {
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
                quarantine(network, settings, &cause.to_string());
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

/// A session of another process.
type Restored = (SavedConnection, ReceivedFiles, Progress);

/// Quarantines the port and pauses, so that a front end that keeps breaking rules gets a small part of a CPU.
fn quarantine(network: &Network, settings: &DeviceSettings, cause: &str) {
    network.quarantine(&settings.port, cause);
    std::thread::sleep(PENALTY);
}

/// Serves messages until the front end disconnects, or a further one at `listener` replaces it; returns which. The caller then stops
/// the virtqueues that were started. For fuzzers, which bring a connection of their own.
///
/// # Errors
/// The front end violated the protocol, or the connection failed.
pub fn converse(
    network: &Arc<Network>,
    settings: &DeviceSettings,
    stream: UnixStream,
    listener: Option<&UnixListener>,
) -> Result<&'static str, io::Error> {
    let front_end = FrontEnd::new(network, settings, stream)?;
    Conversation { network, settings, listener, pause: None, second: &RefCell::default() }.run(front_end, None)
}

/// The conversation with a front end.
#[derive(Clone, Copy)]
struct Conversation<'c> {
    network: &'c Arc<Network>,
    settings: &'c DeviceSettings,
    listener: Option<&'c UnixListener>,
    pause: Option<&'c Pause>,
    /// The front end that was admitted beside this one.
    second: &'c RefCell<Option<FrontEnd>>,
}

impl Conversation<'_> {
    /// Runs to the end of the session with `front_end`; returns its reason.
    fn run(self, mut front_end: FrontEnd, restored: Option<Restored>) -> io::Result<&'static str> {
        let Self { network, settings, listener, pause, second } = self;
        let mut door = Door::new(&settings.port, listener, settings.second);
        door.bell = pause.map(Pause::bell);
        let kicks = settings.port.totals().kicks;
        if let Some((saved, mut files, progress)) = restored {
            self.restore(&mut front_end, (&saved, &mut files, &progress))?;
        }
        let FrontEnd { stream, device, mut part, mut pending, mut crates, held: _held } = front_end;
        let stream = &stream;
        // No act of a second front end lengthens the wait.
        let wait = |part: &PartialMessage, most: Option<Duration>| {
            let end = most.map(|most| Instant::now() + most);
            loop {
                let arrival = {
                    let second = second.borrow();
                    door.wait(stream, end, second.as_ref().map(|second| second.stream.as_fd()))
                };
                match (arrival, pause) {
                    (Arrival::Bell, Some(pause)) => pause.stand_if_asked(|| self.standing(&device, stream, part)),
                    (Arrival::Nothing, _) => return false,
                    (Arrival::Visitor, _) => self.admit(),
                    (Arrival::Beside, _) => self.serve_second(&door, stream),
                    _ => return true,
                }
            }
        };
        loop {
            if part.bytes.is_empty() && pending.is_none() {
                let wait = |most| wait(&PartialMessage::default(), Some(most));
                shared_memory_check::look_until_message(&settings.port, &device, kicks, &wait);
            }
            let received = match pending.take() {
                Some(message) => Ok(message),
                None => Message::receive_after(stream, &mut part, &|part| _ = wait(part, None)),
            };
            let message = match received {
                Ok(message) => message,
                Err(WireError::HungUp) => return Ok(door.end()),
                // It may have been in the middle of a message.
                Err(_) if door.is_replaced() => return Ok(door.end()),
                Err(WireError::Descriptors) if descriptors::are_short() => return Err(descriptors::ran_out()),
                Err(error) => return Err(io::Error::other(error)),
            };
            settings.port.log_message(format_args!("front end sends {message}"));
            settings.port.ephemeral.note_message();
            let served = front_end::serve(&message, &mut crates, &device, stream);
            let (short, fault) = {
                let mut device = device::lock(&device);
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
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return Ok(door.end());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Admits a further front end, where that may replace this one. It takes the place of one that was admitted before.
    fn admit(self) {
        let Some(Ok((stream, _))) = self.listener.map(UnixListener::accept) else { return };
        // A pause, so that a program that connects in a loop gets a small part of a CPU.
        std::thread::sleep(PENALTY);
        let admitted = FrontEnd::new(self.network, self.settings, stream).and_then(|second| second.admit().map(|()| second));
        match admitted {
            Ok(second) => _ = self.second.replace(Some(second)),
            Err(error) => self.tell_end_of_second(&error),
        }
    }

    /// Serves the front end that was admitted beside the one at `stream`, which ends if the other is to have the port.
    fn serve_second(self, door: &Door, stream: &UnixStream) {
        let state = self.second.borrow_mut().as_mut().map(|second| second.serve_beside(self.settings));
        match state {
            None | Some(SecondState::Waits) => {}
            Some(SecondState::Leaves(error)) => {
                self.second.take();
                self.tell_end_of_second(&error);
            }
            Some(SecondState::TakesOver) => door.replace(stream),
        }
    }

    /// Tells why the connection of a second front end was closed.
    fn tell_end_of_second(self, error: &io::Error) {
        if descriptors::is_shortage(error) {
            self.network.note_shortage(&self.settings.port);
        }
        self.settings.port.log_message(format_args!("second front end left: {error}"));
    }

    /// Goes on with a session of another process: restores its state, and waits until the virtqueues were started.
    fn restore(
        self,
        front_end: &mut FrontEnd,
        (saved, files, progress): (&SavedConnection, &mut ReceivedFiles, &Progress),
    ) -> io::Result<()> {
        let restored = front_end.restore(saved, files);
        let device = &front_end.device;
        let device_to_start = RestoredDevice(Arc::clone(device));
        progress.report(restored.as_ref().map(|_| Some(device_to_start)).map_err(io::Error::to_string));
        let part = restored?;
        let second = saved.second.as_ref().map(|second| FrontEnd::restore_beside(self.network, self.settings, second, files));
        match second.transpose() {
            Ok(second) => _ = self.second.replace(second),
            Err(error) => self.tell_end_of_second(&error),
        }
        progress.gate.pass();
        let fault = device::lock(device).take_fault();
        let error = device::lock(device).take_resume_error();
        match (fault, error) {
            (Some(cause), _) => quarantine(self.network, self.settings, &cause),
            (None, Some(error)) => return Err(io::Error::other(error)),
            (None, None) => {}
        }
        front_end.part = part;
        Ok(())
    }

    /// The session on `stream`, with the part of the next message that has arrived, the front end beside it, and its threads that stand
    /// still.
    fn standing(
        self,
        device: &Arc<Mutex<Device>>,
        stream: &UnixStream,
        part: &PartialMessage,
    ) -> io::Result<(StandingSession, Held)> {
        let second = self.second.borrow().as_ref().map(FrontEnd::standing).transpose()?.map(Box::new);
        let (control, held) = device::lock(device).hold_control()?.unzip();
        let (device, stream, part) = (Arc::clone(device), stream.try_clone()?, part.try_clone()?);
        let connection = StandingConnection { device, stream, part, control, second };
        Ok((StandingSession(Some(connection)), Held(held)))
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
        let pause = Arc::new(Pause::new().unwrap());
        let session = Session { quit: Arc::default(), stream: Arc::default(), waiter, pause, thread };
        let (tell, stopped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            Session::stop(vec![session]);
            tell.send(()).unwrap();
        });
        assert_eq!(stopped.recv_timeout(Duration::from_secs(20)), Ok(()));
    }
}
