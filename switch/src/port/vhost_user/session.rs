//! Sessions: the connection with a front end, from its beginning to its end, again and again.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vhost::vhost_user::{BackendReqHandler, Error};

use super::PortSettings;
use super::device::Device;
use super::extra::{self, Next};
use crate::network::Network;
use crate::port::State;

/// How long to wait before trying to connect again, at first and at most; and after a front end that broke a rule.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A session's thread needs little.
const STACK: usize = 256 * 1024;

/// Where the front end is met.
#[derive(Debug)]
pub enum Endpoint {
    /// We listen; the front end connects.
    Listen(UnixListener, PathBuf),
    /// The front end listens; we connect, and keep trying.
    Connect(PathBuf),
}

impl Endpoint {
    /// Listens at `path`, in place of a socket that nobody listens at any more.
    ///
    /// # Errors
    /// Somebody listens there, or something else is in the way.
    pub fn listen(path: &Path) -> io::Result<Self> {
        Ok(Self::Listen(bind(path)?, path.to_path_buf()))
    }
}

/// A listening socket at `path`, in place of one that nobody listens at any more.
///
/// # Errors
/// Somebody listens there, or something else is in the way.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() && UnixStream::connect(path).is_err() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "something is there and in use")),
        Err(_) => {}
    }
    UnixListener::bind(path)
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Self::Listen(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A running session thread.
#[derive(Debug)]
pub struct Session {
    quit: Arc<AtomicBool>,
    stream: Arc<Mutex<Option<UnixStream>>>,
    endpoint: Arc<Endpoint>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Serves front ends at `endpoint`, one after the other, in a thread of its own.
///
/// # Errors
/// The kernel refuses a thread.
pub fn run(network: Arc<Network>, settings: PortSettings, endpoint: Endpoint) -> io::Result<Session> {
    let endpoint = Arc::new(endpoint);
    let session = Session { quit: Arc::default(), stream: Arc::default(), endpoint: Arc::clone(&endpoint), thread: None };
    let (quit, stream) = (Arc::clone(&session.quit), Arc::clone(&session.stream));
    let name = format!("port-{}", settings.id.0);
    let thread = std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
        while !quit.load(Ordering::Acquire) {
            let Some(connection) = meet(&endpoint, &quit) else { return };
            *stream.lock().unwrap_or_else(PoisonError::into_inner) = connection.try_clone().ok();
            if !quit.load(Ordering::Acquire) {
                serve(&network, &settings, connection);
            }
            stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    })?;
    Ok(Session { thread: Some(thread), ..session })
}

impl Session {
    /// Ends the connection and the thread.
    pub fn stop(mut self) {
        self.quit.store(true, Ordering::Release);
        if let Some(stream) = &*self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if let Endpoint::Listen(_, path) = &*self.endpoint {
            // Ends the accept() that the thread may be in.
            let _ = UnixStream::connect(path);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The next connection; `None` when told to quit.
fn meet(endpoint: &Endpoint, quit: &AtomicBool) -> Option<UnixStream> {
    let mut pause = RETRY.0;
    while !quit.load(Ordering::Acquire) {
        let connection = match endpoint {
            Endpoint::Listen(listener, _) => listener.accept().map(|(stream, _)| stream),
            Endpoint::Connect(path) => UnixStream::connect(path),
        };
        if let Ok(stream) = connection {
            return (!quit.load(Ordering::Acquire)).then_some(stream);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY.1);
    }
    None
}

/// Serves one connection to its end.
fn serve(network: &Arc<Network>, settings: &PortSettings, stream: UnixStream) {
    let port = network.port(settings.id);
    port.set_state(State::Speaking);
    let result = converse(network, settings, stream);
    match result {
        Ok(()) => {
            network.stop_port(settings.id);
            port.set_state(State::Waiting);
        }
        Err(cause) => {
            network.quarantine(settings.id, &cause.to_string());
            // A front end that breaks rules again and again must not cost more than this.
            std::thread::sleep(RETRY.0);
        }
    }
    port.set_memory(None);
}

/// Answers messages until the front end goes.
fn converse(network: &Arc<Network>, settings: &PortSettings, stream: UnixStream) -> Result<(), Error> {
    let device = Arc::new(Mutex::new(Device::new(Arc::clone(network), settings.clone())));
    let mut peeking = stream.try_clone().map_err(Error::SocketError)?;
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&device));
    loop {
        let result = match extra::serve(&mut peeking, &device) {
            Ok(Next::Served) => Ok(()),
            Ok(Next::Other) => handler.handle_request(),
            Err(error) => Err(Error::SocketError(error)),
        };
        match result {
            Ok(()) => {}
            Err(Error::Disconnected) => return Ok(()),
            Err(Error::SocketBroken(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
