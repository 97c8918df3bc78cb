//! The thread that waits (epoll) for events of the files, and for the timer list, of all tasks.
//!
//! Each watched file is added to epoll once, edge-triggered: an event sets a flag, which stays set until the task [clears](Watched::clear) it
//! right before it tries an operation that would block. So no event is lost between the operation and the wait, and a file that stays
//! readable without anything to read, as by out-of-band data, wakes its task once.

#![expect(clippy::indexing_slicing, reason = "as many events as the kernel filled in")]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::threads::RunQueue;

/// Token of the reactor's own eventfd in epoll.
const OWN: u64 = 0;
/// Most events that are taken at once.
const EVENTS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Reactor {
    epoll: Epoll,
    /// An eventfd that ends the wait in epoll: for an earlier timer, a run queue to look after, or the end.
    wakeup: EventFd,
    next: AtomicU64,
    watches: Mutex<HashMap<u64, Watch>>,
    timers: Mutex<BTreeMap<(Instant, u64), Waker>>,
    has_ended: AtomicBool,
}

/// A watched file, as the reactor's thread sees it.
#[derive(Debug)]
struct Watch {
    is_ready: Arc<AtomicBool>,
    waker: Waker,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reactor {
    pub(super) fn new() -> io::Result<Self> {
        let (epoll, wakeup) = (Epoll::new()?, EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?);
        epoll.ctl(ControlOperation::Add, wakeup.as_raw_fd(), EpollEvent::new(EventSet::IN, OWN))?;
        Ok(Self {
            epoll,
            wakeup,
            next: AtomicU64::new(OWN + 1),
            watches: Mutex::default(),
            timers: Mutex::default(),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Wakes `waker` at `end`, unless the result is dropped before.
    pub(super) fn wake_at(self: &Arc<Self>, end: Instant, waker: Waker) -> Timer {
        let key = (end, self.next.fetch_add(1, Ordering::Relaxed));
        let is_next = {
            let mut timers = lock(&self.timers);
            timers.insert(key, waker);
            timers.first_key_value().is_some_and(|(first, _)| *first == key)
        };
        if is_next {
            self.wake();
        }
        Timer { reactor: Arc::clone(self), key }
    }

    /// Has the thread compute anew how long it may wait.
    pub(super) fn wake(&self) {
        // Fails only when the counter is at its maximum, in which case the thread is being woken already.
        let _ = self.wakeup.write(1);
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Runs to [`Self::end`]. Looks after `queue` meanwhile.
    pub(super) fn run(&self, queue: &Arc<RunQueue>) {
        let mut events = [EpollEvent::default(); EVENTS];
        while !self.has_ended.load(Ordering::Acquire) {
            let due = self.take_due();
            due.into_iter().for_each(Waker::wake);
            let most = [self.next_timer(), queue.look_after()].into_iter().flatten().min();
            // Rounded up, so that the wait ends after the moment of a timer.
            let most = most.map_or(-1, |most| (most + Duration::from_micros(999)).as_millis().min(i32::MAX as u128) as i32);
            // EINTR counts as a wake-up without an event.
            let count = self.epoll.wait(most, &mut events).unwrap_or(0);
            for event in &events[..count] {
                self.note(event.data());
            }
        }
    }

    /// Notes an event of the watched file `token`.
    fn note(&self, token: u64) {
        if token == OWN {
            let _ = self.wakeup.read();
            return;
        }
        let waker = lock(&self.watches).get(&token).map(|watch| {
            watch.is_ready.store(true, Ordering::Release);
            watch.waker.clone()
        });
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes the timers whose moment has come.
    fn take_due(&self) -> Vec<Waker> {
        let (mut timers, now) = (lock(&self.timers), Instant::now());
        let mut due = Vec::new();
        while let Some(first) = timers.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        due
    }

    /// Time until the next timer.
    fn next_timer(&self) -> Option<Duration> {
        lock(&self.timers).first_key_value().map(|((end, _), _)| end.saturating_duration_since(Instant::now()))
    }
}

/// A moment at which a task is woken, until this is dropped.
#[derive(Debug)]
pub(super) struct Timer {
    reactor: Arc<Reactor>,
    key: (Instant, u64),
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.reactor.timers).remove(&self.key);
    }
}

/// A file that is watched for a task.
#[derive(Debug)]
pub(crate) struct Watched<T: AsFd> {
    file: T,
    reactor: Arc<Reactor>,
    token: u64,
    is_ready: Arc<AtomicBool>,
}

impl<T: AsFd> Watched<T> {
    pub(super) fn new(file: T, events: EventSet, (reactor, waker): (Arc<Reactor>, Waker)) -> io::Result<Self> {
        let (token, is_ready) = (reactor.next.fetch_add(1, Ordering::Relaxed), Arc::<AtomicBool>::default());
        lock(&reactor.watches).insert(token, Watch { is_ready: Arc::clone(&is_ready), waker });
        let watched = Self { file, reactor, token, is_ready };
        watched.control(ControlOperation::Add, events)?;
        Ok(watched)
    }

    fn control(&self, operation: ControlOperation, events: EventSet) -> io::Result<()> {
        let events = events | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
        self.reactor.epoll.ctl(operation, self.file.as_fd().as_raw_fd(), EpollEvent::new(events, self.token))
    }

    /// Whether an event has come since [`Self::clear`].
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Forgets the events so far, right before an operation that fails if there is nothing to do (EAGAIN).
    pub(crate) fn clear(&self) {
        self.is_ready.store(false, Ordering::Release);
    }

    /// Has the task try once more without a further event.
    pub(crate) fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    /// Whether the file is readable; without a system call if no event has come.
    pub(crate) fn is_readable(&self) -> bool {
        if !self.is_ready() {
            return false;
        }
        self.clear();
        let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        let is_readable = poll(&mut files, PollTimeout::ZERO).is_ok_and(|count| count > 0);
        if is_readable {
            self.set_ready();
        }
        is_readable
    }

    /// Has it be an event, too, that the file takes more bytes.
    ///
    /// # Errors
    /// The kernel's of epoll_ctl(2).
    pub(crate) fn watch_writes(&self, watch: bool) -> io::Result<()> {
        self.control(ControlOperation::Modify, if watch { EventSet::IN | EventSet::OUT } else { EventSet::IN })
    }
}

impl<T: AsFd> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.file
    }
}

impl<T: AsFd> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.file
    }
}

impl<T: AsFd> Drop for Watched<T> {
    fn drop(&mut self) {
        lock(&self.reactor.watches).remove(&self.token);
        // Also while the file stays open elsewhere: in a copy, or in another process. Fails if it could not be added.
        let _ = self.reactor.epoll.ctl(ControlOperation::Delete, self.file.as_fd().as_raw_fd(), EpollEvent::default());
    }
}
