//! Standstill of a session: between two reads of its connection it stops, for a takeover by another process.
//!
//! 1. The daemon [asks](Pause::ask) all sessions, wakes them, and [awaits](Pause::await_standstill) each.
//! 2. A session that waits for a message or a connection [stands](Pause::stand_if_asked), ready to be described.
//! 3. The process ends, or the sessions [go on](Pause::end).

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::saved::{Held, StandingSession};
use crate::executor::Context;

/// Longest wait for a session without a check whether the takeover is over.
const STEP: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Runs,
    Asked,
    Stands(Option<Box<io::Result<StandingSession>>>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Pause {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    stage: Stage,
    /// Another process has served the virtqueues before the session went on.
    behind: bool,
}

impl Pause {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the session to stand, which is to be woken then.
    pub fn ask(&self) {
        self.inner().stage = Stage::Asked;
    }

    /// Whether the session is to stand.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.inner().stage, Stage::Asked)
    }

    /// The session once it stands; `None` if it does not until `deadline`, or until the takeover `is_over`.
    pub fn await_standstill(&self, deadline: Instant, is_over: &dyn Fn() -> bool) -> Option<io::Result<StandingSession>> {
        let mut inner = self.inner();
        while matches!(inner.stage, Stage::Asked) && !is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            inner = self.changed.wait_timeout(inner, left.min(STEP)).unwrap_or_else(PoisonError::into_inner).0;
        }
        match &mut inner.stage {
            Stage::Stands(session) => session.take().map(|session| *session),
            Stage::Runs | Stage::Asked => None,
        }
    }

    /// Has the session go on, which is to be woken then; `behind` if another process has served the virtqueues meanwhile.
    pub fn end(&self, behind: bool) {
        let mut inner = self.inner();
        (inner.stage, inner.behind) = (Stage::Runs, behind);
    }

    /// Stands if that was asked for, until [`Self::end`]; called by the session that is `ready`.
    pub(super) async fn stand_if_asked(&self, context: &Context, ready: impl FnOnce() -> io::Result<(StandingSession, Held)>) {
        if !self.is_asked() {
            return;
        }
        let (session, held) = ready().map_or_else(|error| (Err(error), Held::default()), |(session, held)| (Ok(session), held));
        if !self.stand(session) {
            return;
        }
        let goes_on = || {
            let inner = self.inner();
            (!matches!(inner.stage, Stage::Stands(_))).then_some(inner.behind)
        };
        if context.wait(None, goes_on).await == Some(true) {
            held.go_on_behind();
        }
    }

    /// Offers `session` to the one that waits for it; returns false if it is to stand no more.
    fn stand(&self, session: io::Result<StandingSession>) -> bool {
        let mut inner = self.inner();
        let is_asked = matches!(inner.stage, Stage::Asked);
        if is_asked {
            inner.stage = Stage::Stands(Some(Box::new(session)));
            self.changed.notify_all();
        }
        is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;
    use std::sync::Arc;

    #[test]
    fn a_session_stands_until_it_may_go_on() {
        let (executor, pause) = (Executor::new().unwrap(), Arc::new(Pause::default()));
        let (tell, told) = std::sync::mpsc::channel();
        let deadline = || Instant::now() + Duration::from_secs(30);
        let session = |pause: Arc<Pause>| {
            let tell = tell.clone();
            let session = |context: Context| async move {
                pause.stand_if_asked(&context, || Ok(Default::default())).await;
                tell.send(()).unwrap();
            };
            let task = executor.task(|context| Ok(session(context))).unwrap();
            task.notify();
            task
        };
        session(Arc::clone(&pause));
        told.recv().unwrap();
        pause.ask();
        let task = session(Arc::clone(&pause));
        assert!(pause.await_standstill(deadline(), &|| false).unwrap().unwrap().0.is_none());
        task.notify();
        assert!(told.recv_timeout(STEP).is_err());
        pause.end(false);
        task.notify();
        told.recv().unwrap();
        // A session that never stands is not waited for longer than that.
        pause.ask();
        assert!(pause.await_standstill(Instant::now() + Duration::from_millis(5), &|| false).is_none());
        let begun = Instant::now();
        assert!(pause.await_standstill(deadline(), &|| begun.elapsed() > STEP).is_none());
        pause.end(false);
        session(pause);
        told.recv().unwrap();
    }
}
