//! A port's sessions: the loop that opens one after the other, how it is ended, and how it backs off.
//!
//! A port with sessions is served by a task of an [`Executor`]. Its kind says by [`Serve`] how a session is opened, served to its end, and
//! reported; [`serve_all`] is the loop around these, for all kinds.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::executor::{Context, Executor, Task};
use crate::network::fatal::caught;
use crate::port::Port;

/// A session that lasted longer than this is not counted as a failed attempt.
const HEALTHY: Duration = Duration::from_secs(10);
/// First and longest pause before the next attempt to connect, and before an interface that another program makes is looked for.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Longest pause before passt is started again, and before a TAP device is created again.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause after an action that a guest or front end can repeat at will: a connection, a protocol violation, a queue full of commands, a write to
/// xenstore. Without it, one guest has a CPU of the host to itself.
pub(super) const GUEST_PAUSE: Duration = Duration::from_millis(1);
/// Timeout of a thread or task of a port to end, or to carry out an order; one that its guest or front end holds up for longer is abandoned.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of checks where the kernel tells of no event: it refuses a descriptor for the epoll instance, or netlink is not available.
pub(super) const UNWATCHED: Duration = Duration::from_secs(1);

/// How a kind of port opens its sessions, and serves each.
pub(crate) trait Serve: Send {
    /// A session that is open.
    type Open: Send;
    /// Why a session was not opened, or how it ended.
    type End: Send;

    /// Opens the next session; the error is why it could not be opened, or any if the task is to end.
    fn open(&mut self, context: &SessionContext) -> impl Future<Output = Result<Self::Open, Self::End>> + Send;

    /// Serves a session until it ends, or the task is to end.
    fn serve(&mut self, context: &SessionContext, session: Self::Open) -> impl Future<Output = Self::End> + Send;

    /// Reports the end of a session that `lasted` so long; returns the pause before the next one is opened.
    fn pause(&mut self, end: Self::End, lasted: Duration) -> Duration;
}

/// Serves one session after the other, first the one that was opened before, until the task is to end.
pub(crate) async fn serve_all<S: Serve>(mut server: S, context: SessionContext, mut first: Option<Result<S::Open, S::End>>) {
    loop {
        let opened = match first.take() {
            Some(opened) => opened,
            None => server.open(&context).await,
        };
        let begun = Instant::now();
        let end = match opened {
            // In memory of its own, which a port without a session does not take.
            Ok(session) => Box::pin(server.serve(&context, session)).await,
            Err(end) => end,
        };
        if !context.quits() {
            let pause = server.pause(end, begun.elapsed());
            context.rest(Some(pause), || false).await;
        }
        if context.quits() {
            return;
        }
    }
}

/// Runs `work`, and catches its panic: it costs the port, not its task, which serves later sessions.
///
/// # Errors
/// The work panicked: see [`caught`].
pub(crate) async fn catching<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| match caught(|| work.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// State that a port's task shares with its [`Session`], by which others end it.
#[derive(Debug, Default)]
struct Link {
    quit: AtomicBool,
    /// The front end that is served.
    stream: Mutex<Option<UnixStream>>,
    /// The task waits for a front end, or has not begun.
    is_idle: AtomicBool,
}

impl Link {
    fn shut(&self, how: Shutdown) {
        if let Some(stream) = &*self.stream.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(how);
        }
    }
}

/// The side of a port's task: how it waits, and whether it is to end.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub task: Context,
    link: Arc<Link>,
}

impl SessionContext {
    /// Whether the task is to end.
    pub(crate) fn quits(&self) -> bool {
        self.link.quit.load(Ordering::Acquire)
    }

    /// Waits until `condition` holds, the task is to end, or the timeout `most`.
    pub(crate) async fn rest(&self, most: Option<Duration>, mut condition: impl FnMut() -> bool) {
        let is_over = || (condition() || self.quits()).then_some(());
        self.task.wait(most.map(|most| Instant::now() + most), is_over).await;
    }

    /// Notes whether the task waits for a front end, and so would end at once.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.link.is_idle.store(is_idle, Ordering::Release);
    }

    /// Sets the front end that is served: the end of the task ends its connection.
    pub(crate) fn set_stream(&self, stream: Option<UnixStream>) {
        *self.link.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }
}

/// The task of a port's sessions.
#[derive(Debug)]
pub struct Session {
    port: Arc<Port>,
    link: Arc<Link>,
    task: Arc<Task>,
}

impl Session {
    /// Makes the task of `port` by `make`; its first notification, or the first event of a file that it watches, starts it.
    ///
    /// # Errors
    /// The errors of `make`.
    pub(crate) fn new<F>(
        executor: &Executor,
        port: &Arc<Port>,
        make: impl FnOnce(SessionContext) -> io::Result<F>,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let link = Arc::<Link>::default();
        let task = executor.task(|task| make(SessionContext { task, link: Arc::clone(&link) }))?;
        Ok(Self { port: Arc::clone(port), link, task })
    }

    /// Has the task evaluate what it waits for.
    pub fn notify(&self) {
        self.task.notify();
    }

    /// Ends all conversations, then the virtqueues, then the connections. In this order: a front end that sees the connection end takes
    /// the used indices at that moment as the place where the next back end resumes. Front ends that do not read their last reply
    /// delay this by a second, all together; sessions whose threads are blocked in the kernel, as on a front end's file, delay it by
    /// another and are abandoned: those threads end with the process.
    pub fn stop(sessions: Vec<Self>) {
        sessions.iter().for_each(Self::end_conversation);
        await_all(&sessions);
        // The sessions left have a reply that the front end does not read.
        sessions.iter().for_each(|session| session.link.shut(Shutdown::Both));
        await_all(&sessions);
        for session in sessions.iter().filter(|session| !session.task.has_ended()) {
            tracing::warn!(port = %session.port.name, "session abandoned: its thread is blocked in a system call, of a vhost-user port on a file from the front end (FUSE or NFS server not responding)");
        }
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

/// Exponential backoff between attempts: each pause is twice the one before, until a session lasts.
#[derive(Debug)]
pub(super) struct Backoff {
    least: Duration,
    most: Duration,
    pause: Duration,
    /// Failures in a row.
    pub failures: u32,
}

impl Backoff {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, pause: least, failures: 0 }
    }

    /// The pause after an attempt that has failed, or ended, after so long.
    pub(super) fn after(&mut self, lasted: Duration) -> Duration {
        if lasted > HEALTHY.min(self.most) {
            (self.pause, self.failures) = (self.least, 1);
        } else {
            (self.pause, self.failures) = ((2 * self.pause).min(self.most), self.failures.saturating_add(1));
        }
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::shared::Shared;

    fn port() -> Arc<Port> {
        Port::row(&Shared::new(1, 7, Settings::default()), 1).remove(0)
    }

    #[test]
    fn pauses_grow_until_something_lasts() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
        let seconds: Vec<f64> = (0..11).map(|_| backoff.after(Duration::from_millis(5)).as_secs_f64()).collect();
        assert_eq!(seconds, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]);
        assert_eq!(backoff.failures, 11);
        assert_eq!(backoff.after(Duration::from_secs(11)), Duration::from_millis(100));
        assert_eq!((backoff.after(Duration::ZERO), backoff.failures), (Duration::from_millis(200), 2));
    }

    #[test]
    fn a_thread_that_the_kernel_holds_does_not_hold_up_the_end() {
        let (_never, held) = std::sync::mpsc::channel::<()>();
        let executor = Executor::new().unwrap();
        let session = Session::new(&executor, &port(), |_| Ok(async move { held.recv().unwrap_or_default() })).unwrap();
        session.notify();
        let (tell, stopped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            Session::stop(vec![session]);
            drop(executor);
            tell.send(()).unwrap();
        });
        assert_eq!(stopped.recv_timeout(Duration::from_secs(20)), Ok(()));
    }

    /// Sends each of its steps; the second session cannot be opened, and later ones last until the task is to end. Pauses so long in between.
    struct Steps(std::sync::mpsc::Sender<&'static str>, u32, Duration);

    impl Serve for Steps {
        type Open = u32;
        type End = u32;

        async fn open(&mut self, _: &SessionContext) -> Result<u32, u32> {
            self.0.send("open").unwrap();
            self.1 += 1;
            if self.1 == 2 { Err(2) } else { Ok(self.1) }
        }

        async fn serve(&mut self, context: &SessionContext, session: u32) -> u32 {
            self.0.send("serve").unwrap();
            context.rest(None, || session < 3).await;
            session
        }

        fn pause(&mut self, end: u32, _: Duration) -> Duration {
            self.0.send(if end == 2 { "not opened" } else { "ended" }).unwrap();
            self.2
        }
    }

    #[test]
    fn one_session_is_opened_after_the_other_until_the_end() {
        let (tell, told) = std::sync::mpsc::channel();
        let executor = Executor::new().unwrap();
        let run = |context| Ok(serve_all(Steps(tell, 0, Duration::ZERO), context, Some(Ok(0))));
        let session = Session::new(&executor, &port(), run).unwrap();
        session.notify();
        let steps = ["serve", "ended", "open", "serve", "ended", "open", "not opened", "open", "serve"];
        assert!(steps.iter().all(|step| told.recv_timeout(Duration::from_secs(30)).as_ref() == Ok(step)));
        Session::stop(vec![session]);
        assert!(told.recv().is_err(), "the last session is not reported, and none is opened");
    }

    #[test]
    fn a_task_that_ends_in_a_pause_opens_no_further_session() {
        let (tell, told) = std::sync::mpsc::channel();
        let executor = Executor::new().unwrap();
        let run = |context| Ok(serve_all(Steps(tell, 0, Duration::from_secs(3600)), context, Some(Ok(0))));
        let session = Session::new(&executor, &port(), run).unwrap();
        session.notify();
        assert!(["serve", "ended"].iter().all(|step| told.recv_timeout(Duration::from_secs(30)).as_ref() == Ok(step)));
        Session::stop(vec![session]);
        assert!(told.recv().is_err());
    }
}
