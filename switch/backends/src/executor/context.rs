//! The side of a task: how it waits.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::EventSet;

use super::reactor::{Reactor, Watched};

/// The means by which a task waits.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    reactor: Arc<Reactor>,
    waker: Waker,
}

impl Context {
    pub(super) fn new(reactor: Arc<Reactor>, waker: Waker) -> Self {
        Self { reactor, waker }
    }

    /// Wakes the task, so that it evaluates the condition for which it waits.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Has epoll watch `file` for this task, until the result is dropped.
    ///
    /// # Errors
    /// The kernel's of epoll_ctl(2).
    pub(crate) fn watch<T: AsFd>(&self, file: T) -> io::Result<Watched<T>> {
        Watched::new(file, EventSet::IN, (Arc::clone(&self.reactor), self.waker.clone()))
    }

    /// The same, for the event that the other side of `file` has closed it, and no other: its data are another thread's to read.
    ///
    /// # Errors
    /// The errors of [`Self::watch`].
    pub(crate) fn watch_end<T: AsFd>(&self, file: T) -> io::Result<Watched<T>> {
        Watched::new(file, EventSet::empty(), (Arc::clone(&self.reactor), self.waker.clone()))
    }

    /// Waits until `condition` has a result, or until `end`; `None` then. The condition is evaluated whenever the task is woken: by an epoll event
    /// of a file that it watches, or by its [`Self::waker`].
    pub(crate) async fn wait<T>(&self, end: Option<Instant>, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
        let mut timer = None;
        poll_fn(|_| {
            let met = condition();
            if met.is_some() || end.is_some_and(|end| end <= Instant::now()) {
                return Poll::Ready(met);
            }
            timer = timer.take().or_else(|| end.map(|end| self.reactor.wake_at(end, self.waker.clone())));
            Poll::Pending
        })
        .await
    }

    /// Waits for so long.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.wait(Some(Instant::now() + time), || None::<()>).await;
    }

    /// Enqueues the task behind those that are enqueued (fairness between ports).
    pub(crate) async fn yield_now(&self) {
        let mut has_yielded = false;
        poll_fn(|_| {
            if std::mem::replace(&mut has_yielded, true) {
                return Poll::Ready(());
            }
            self.waker.wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
