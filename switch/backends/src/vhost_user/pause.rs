//! Standstill of a session thread: between two reads of its connection it stops, for a takeover by another process.
//!
//! 1. The daemon [asks](Pause::ask) all threads, and [awaits](Pause::await_standstill) each.
//! 2. A thread that waits for a message or a connection sees the bell, and [stands](Pause::stand_if_asked) with its session ready to be
//!    described.
//! 3. The process ends, or the threads [go on](Pause::end).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::saved::{Held, StandingSession};

/// Longest wait for a session thread without a check whether the takeover is over.
const STEP: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Runs,
    Asked,
    Stands(Option<Box<io::Result<StandingSession>>>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pause {
    bell: EventFd,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    stage: Stage,
    /// Another process has served the virtqueues before the thread went on.
    behind: bool,
}

impl Pause {
    /// For a thread that runs.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn new() -> io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { bell, inner: Mutex::default(), changed: Condvar::new() })
    }

    /// Readable while the thread is to stand.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the thread to stand.
    pub(super) fn ask(&self) {
        self.inner().stage = Stage::Asked;
        // Fails only when the counter is at its maximum, in which case it is readable already.
        let _ = self.bell.write(1);
    }

    /// The session of the thread once it stands; `None` if it does not until `deadline`, or until the takeover `is_over`.
    pub(super) fn await_standstill(&self, deadline: Instant, is_over: &dyn Fn() -> bool) -> Option<io::Result<StandingSession>> {
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

    /// Has the thread go on; `behind` if another process has served the virtqueues meanwhile.
    pub(super) fn end(&self, behind: bool) {
        let mut inner = self.inner();
        (inner.stage, inner.behind) = (Stage::Runs, behind);
        // Fails only if it was not asked.
        let _ = self.bell.read();
        self.changed.notify_all();
    }

    /// Stands if that was asked for, until [`Self::end`]; called by the thread of the session `ready`.
    pub(super) fn stand_if_asked(&self, ready: impl FnOnce() -> io::Result<(StandingSession, Held)>) {
        if !matches!(self.inner().stage, Stage::Asked) {
            return;
        }
        let (session, held) = ready().map_or_else(|error| (Err(error), Held::default()), |(session, held)| (Ok(session), held));
        let mut inner = self.inner();
        if !matches!(inner.stage, Stage::Asked) {
            return;
        }
        inner.stage = Stage::Stands(Some(Box::new(session)));
        self.changed.notify_all();
        let stands = |inner: &mut Inner| matches!(inner.stage, Stage::Stands(_));
        let behind = self.changed.wait_while(inner, stands).unwrap_or_else(PoisonError::into_inner).behind;
        if behind {
            held.go_on_behind();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_thread_stands_until_it_may_go_on() {
        let pause = Arc::new(Pause::new().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let deadline = || Instant::now() + Duration::from_secs(30);
        pause.stand_if_asked(|| panic!("it was not asked"));
        pause.ask();
        let thread = std::thread::spawn({
            let pause = Arc::clone(&pause);
            move || {
                pause.stand_if_asked(|| Ok(Default::default()));
                tell.send(()).unwrap();
            }
        });
        assert!(pause.await_standstill(deadline(), &|| false).unwrap().unwrap().0.is_none());
        assert!(told.try_recv().is_err());
        pause.end(false);
        told.recv().unwrap();
        thread.join().unwrap();
        // A thread that never stands is not waited for longer than that.
        pause.ask();
        assert!(pause.await_standstill(Instant::now() + Duration::from_millis(5), &|| false).is_none());
        let begun = Instant::now();
        assert!(pause.await_standstill(deadline(), &|| begun.elapsed() > STEP).is_none());
        pause.end(false);
        pause.stand_if_asked(|| panic!("it is not asked any more"));
    }
}
