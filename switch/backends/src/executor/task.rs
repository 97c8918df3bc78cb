//! A task: a future, and whether it waits, is queued, or runs.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::threads::RunQueue;

type Session = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A session that an [`Executor`](super::Executor) runs: it waits, is enqueued, or runs.
pub(crate) struct Task {
    queue: Arc<RunQueue>,
    inner: Mutex<Inner>,
    ended: Condvar,
}

struct Inner {
    stage: Stage,
    /// Absent while it runs, and after its end.
    session: Option<Session>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    Queued,
    Runs,
    /// Woken while it ran: it runs once more.
    RunsAgain,
    Ended,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("stage", &self.inner().stage).finish_non_exhaustive()
    }
}

impl Task {
    /// A task without a session yet.
    pub(super) fn new(queue: Arc<RunQueue>) -> Arc<Self> {
        Arc::new(Self { queue, inner: Mutex::new(Inner { stage: Stage::Runs, session: None }), ended: Condvar::new() })
    }

    /// Gives the task its session.
    pub(super) fn begin(self: &Arc<Self>, session: Session) {
        if self.put_back(session) {
            self.queue.push(Arc::clone(self));
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it evaluate what it waits for.
    pub(crate) fn notify(self: &Arc<Self>) {
        self.notify_here_if(|| false);
    }

    /// Like [`Self::notify`]; the session runs in the calling thread if it waits and `may_run_here`, which is evaluated while it stands still.
    pub(crate) fn notify_here_if(self: &Arc<Self>, may_run_here: impl FnOnce() -> bool) {
        let mut inner = self.inner();
        match inner.stage {
            Stage::Waits if may_run_here() => {
                inner.stage = Stage::Queued;
                drop(inner);
                if self.run() {
                    self.queue.push(Arc::clone(self));
                }
            }
            Stage::Waits => {
                inner.stage = Stage::Queued;
                drop(inner);
                self.queue.push(Arc::clone(self));
            }
            Stage::Runs => inner.stage = Stage::RunsAgain,
            Stage::Queued | Stage::RunsAgain | Stage::Ended => {}
        }
    }

    /// Runs it until it waits or ends; called with a task that was dequeued. Returns true if it is to be enqueued again.
    pub(super) fn run(self: &Arc<Self>) -> bool {
        let session = {
            let mut inner = self.inner();
            inner.stage = Stage::Runs;
            inner.session.take()
        };
        let Some(mut session) = session else { return false };
        let waker = Waker::from(Arc::clone(self));
        let polled = catch_unwind(AssertUnwindSafe(|| session.as_mut().poll(&mut Context::from_waker(&waker))));
        if matches!(polled, Ok(Poll::Pending)) {
            return self.put_back(session);
        }
        // A session that panicked has logged it on standard error; the others go on.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(session)));
        self.inner().stage = Stage::Ended;
        self.ended.notify_all();
        false
    }

    /// Keeps the session of a task that runs no more; returns true if it was woken meanwhile, and is to be enqueued.
    fn put_back(&self, session: Session) -> bool {
        let mut inner = self.inner();
        inner.session = Some(session);
        let again = inner.stage == Stage::RunsAgain;
        inner.stage = if again { Stage::Queued } else { Stage::Waits };
        again
    }

    /// Whether its session has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.inner().stage == Stage::Ended
    }

    /// Waits until its session has ended, or until `deadline`.
    pub(crate) fn await_end(&self, deadline: Instant) {
        let inner = self.inner();
        let left = deadline.saturating_duration_since(Instant::now());
        drop(
            self.ended.wait_timeout_while(inner, left, |inner| inner.stage != Stage::Ended).unwrap_or_else(PoisonError::into_inner),
        );
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
