//! Sessions of a vhost-user port: how they are started and stopped, and how a takeover has them stand still.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::access::Access;
use super::pause::Pause;
use super::saved::{RestoredSession, StandingSession};
use super::server::Server;
use super::settings::DeviceSettings;
use super::socket::{self, Listener};
use crate::executor::{Executor, Task};
use crate::network::Network;
use crate::port::Port;
use crate::session::END_TIMEOUT;

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
}

/// State that a session shares with its [`Session`], by which others end it.
#[derive(Debug, Default)]
pub(super) struct Link {
    quit: AtomicBool,
    /// The front end that is served.
    stream: Mutex<Option<UnixStream>>,
    /// The session waits for a front end, or has not begun.
    is_idle: AtomicBool,
    pub(super) pause: Pause,
}

impl Link {
    /// Whether the session is to end.
    pub(super) fn quits(&self) -> bool {
        self.quit.load(Ordering::Acquire)
    }

    /// Notes whether the session waits for a front end.
    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Release);
    }

    /// Sets the front end that is served.
    pub(super) fn set_stream(&self, stream: Option<UnixStream>) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    fn shut(&self, how: Shutdown) {
        if let Some(stream) = &*self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(how);
        }
    }
}

/// A running session.
#[derive(Debug)]
pub struct Session {
    port: Arc<Port>,
    link: Arc<Link>,
    task: Arc<Task>,
}

/// Serves front ends at `endpoint`, one after the other, by `executor`.
///
/// # Errors
/// The kernel refuses a thread or descriptors.
pub fn run(executor: &Executor, network: Arc<Network>, settings: DeviceSettings, endpoint: Endpoint) -> io::Result<Session> {
    run_restored(executor, (network, settings), endpoint, None)
}

/// Like [`run`]; begins with a session of another process of the network.
///
/// # Errors
/// The errors of [`run`].
pub fn run_restored(
    executor: &Executor,
    (network, settings): (Arc<Network>, DeviceSettings),
    endpoint: Endpoint,
    restored: Option<RestoredSession>,
) -> io::Result<Session> {
    let (link, port) = (Arc::<Link>::default(), Arc::clone(&settings.port));
    link.set_idle(restored.is_none());
    // The first connection at its socket wakes a session that has nothing else to do.
    let waits = restored.is_none() && matches!(endpoint, Endpoint::Listen(_)) && port.ephemeral.due_in(Instant::now()).is_none();
    let task = executor.task(|context| {
        let server = Server::new(context, network, (settings, endpoint), Arc::clone(&link))?;
        Ok(server.run(restored))
    })?;
    if !waits {
        task.notify();
    }
    Ok(Session { port, link, task })
}

impl Session {
    /// Ends all conversations, then the virtqueues, then the connections. In this order: a front end that sees the connection end takes
    /// the used indices at that moment as the place where the next back end resumes. Front ends that do not read their last reply
    /// delay this by a second, all together; sessions whose threads are blocked in the kernel on a front end's file delay it by
    /// another and are abandoned: those threads end with the process.
    pub fn stop(sessions: Vec<Self>) {
        sessions.iter().for_each(Self::end_conversation);
        await_all(&sessions);
        // The sessions left have a reply that the front end does not read.
        sessions.iter().for_each(|session| session.link.shut(Shutdown::Both));
        await_all(&sessions);
        for session in sessions.iter().filter(|session| !session.task.has_ended()) {
            tracing::warn!(port = %session.port.name, "session abandoned: its thread is blocked in the kernel on a file from the front end (FUSE or NFS server not responding)");
        }
    }

    /// Asks the session to stand still between two reads of its connection, for a takeover.
    pub fn ask_to_stand(&self) {
        self.link.pause.ask();
        self.task.notify();
    }

    /// The session once it stands; `None` if it does not until `deadline`.
    pub fn await_standstill(&self, deadline: Instant, is_over: &dyn Fn() -> bool) -> Option<io::Result<StandingSession>> {
        self.link.pause.await_standstill(deadline, is_over)
    }

    /// Has the session go on; `behind` if another process has served its virtqueues meanwhile.
    pub fn go_on(&self, behind: bool) {
        self.link.pause.end(behind);
        self.task.notify();
    }

    fn end_conversation(&self) {
        self.link.quit.store(true, Ordering::Release);
        self.link.shut(Shutdown::Read);
        // A session without a front end ends at once, which takes no thread's time but this one's.
        self.task.notify_here_if(|| self.link.is_idle.load(Ordering::Acquire));
    }
}

/// Waits until all sessions have ended, or the timeout.
fn await_all(sessions: &[Session]) {
    let deadline = Instant::now() + END_TIMEOUT;
    sessions.iter().for_each(|session| session.task.await_end(deadline));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::settings::Settings;
    use crate::shared::Shared;

    #[test]
    fn a_thread_that_the_kernel_holds_does_not_hold_up_the_end() {
        let (_never, held) = std::sync::mpsc::channel::<()>();
        let executor = Executor::new().unwrap();
        let task = executor.task(|_| Ok(async move { held.recv().unwrap_or_default() })).unwrap();
        task.notify();
        let port = Port::row(&Shared::new(1, 7, Settings::default()), 1).remove(0);
        let session = Session { port, link: Arc::default(), task };
        let (tell, stopped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            Session::stop(vec![session]);
            drop(executor);
            tell.send(()).unwrap();
        });
        assert_eq!(stopped.recv_timeout(Duration::from_secs(20)), Ok(()));
    }
}
