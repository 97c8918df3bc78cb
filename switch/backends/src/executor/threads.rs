//! The run queue, and the threads that dequeue tasks.
//!
//! A thread is **stuck** if it has been at one task for longer than the [stall timeout](STALL_TIMEOUT): in a system call that waits for the
//! server of a guest's file, or for a worker that does. While tasks are enqueued, there are [`USUAL`] threads beside those, which end
//! again when they are idle. So there are never more threads than tasks and [`USUAL`] others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::reactor::Reactor;
use super::task::Task;

/// Threads that stay while there is nothing to do.
pub(super) const USUAL: usize = 4;
/// Stall timeout of a thread: time at one task after which it is stuck. As long again for each further [`STEP`] threads: on a host without CPU time to spare, a
/// thread that waits for a processor looks like one that is stuck, and more threads would not help.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_millis(20);
/// See [`STALL_TIMEOUT`].
const STEP: u32 = 16;
/// Time for which a thread beyond [`USUAL`] waits for a task.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Stack of a thread. No session works on frames.
pub(super) const STACK: usize = 256 * 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct RunQueue {
    /// The reactor's thread, in epoll, looks after the queue while that is short of threads.
    reactor: Arc<Reactor>,
    inner: Mutex<Inner>,
    changed: Condvar,
    is_short: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    tasks: VecDeque<Arc<Task>>,
    /// All threads, also those that are being started.
    threads: usize,
    /// Threads that wait for a task.
    idle: usize,
    /// Threads that run a task, by number, and since when.
    busy: HashMap<u64, Instant>,
    /// Number of the next thread.
    next: u64,
    has_ended: bool,
}

impl RunQueue {
    /// An empty queue with one thread.
    ///
    /// # Errors
    /// The kernel refuses the thread.
    pub(super) fn start(reactor: Arc<Reactor>) -> io::Result<Arc<Self>> {
        let (inner, changed) = (Mutex::new(Inner { threads: 1, ..Inner::default() }), Condvar::new());
        let queue = Arc::new(Self { reactor, inner, changed, is_short: AtomicBool::new(false) });
        queue.spawn()?;
        Ok(queue)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues `task`, and sees that a thread dequeues it.
    pub(super) fn push(self: &Arc<Self>, task: Arc<Task>) {
        let mut inner = self.inner();
        inner.tasks.push_back(task);
        if inner.tasks.len() <= inner.idle {
            drop(inner);
            self.changed.notify_one();
        } else if inner.threads < USUAL {
            inner.threads += 1;
            drop(inner);
            self.add();
        } else {
            drop(inner);
            self.note_shortage();
        }
    }

    fn note_shortage(&self) {
        if !self.is_short.swap(true, Ordering::AcqRel) {
            self.reactor.wake();
        }
    }

    /// Starts a thread that [`Inner::threads`] counts already. Without it, the others go on, and the reactor's thread tries again.
    fn add(self: &Arc<Self>) {
        if self.spawn().is_err() {
            self.inner().threads -= 1;
            self.note_shortage();
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let queue = Arc::clone(self);
        let number = {
            let mut inner = self.inner();
            inner.next += 1;
            inner.next
        };
        let name = format!("session-{number}");
        std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || queue.work(number)).map(drop)
    }

    /// Runs tasks, in the thread of this number.
    fn work(&self, number: u64) {
        let mut again = None;
        while let Some(task) = self.take(number, again) {
            again = task.run().then_some(task);
        }
    }

    /// Dequeues the next task for the thread of this number, and enqueues the one before `again` if that is to go on; `None` if the thread is to
    /// end.
    fn take(&self, number: u64, again: Option<Arc<Task>>) -> Option<Arc<Task>> {
        let mut inner = self.inner();
        inner.busy.remove(&number);
        inner.tasks.extend(again);
        loop {
            if let Some(task) = inner.tasks.pop_front() {
                inner.busy.insert(number, Instant::now());
                return Some(task);
            }
            let is_over = if inner.has_ended {
                true
            } else {
                inner.idle += 1;
                let is_usual = inner.threads <= USUAL;
                let is_late;
                (inner, is_late) = if is_usual {
                    (self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner), false)
                } else {
                    let (inner, waited) = self.changed.wait_timeout(inner, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
                    (inner, waited.timed_out())
                };
                inner.idle -= 1;
                is_late && inner.tasks.is_empty() && inner.threads > USUAL
            };
            if is_over {
                inner.threads -= 1;
                return None;
            }
        }
    }

    /// Starts threads in place of those that are stuck, while tasks are enqueued; returns when to look again, if that is necessary. Called by
    /// the reactor's thread.
    pub(super) fn look_after(self: &Arc<Self>) -> Option<Duration> {
        if !self.is_short.load(Ordering::Acquire) {
            return None;
        }
        let missing = {
            let mut inner = self.inner();
            if inner.tasks.len() <= inner.idle || inner.has_ended {
                self.is_short.store(false, Ordering::Release);
                return None;
            }
            let timeout = STALL_TIMEOUT * (1 + inner.threads.saturating_sub(USUAL) as u32 / STEP);
            let stuck = inner.busy.values().filter(|since| since.elapsed() >= timeout).count();
            let missing = (USUAL + stuck).saturating_sub(inner.threads);
            inner.threads += missing;
            missing
        };
        (0..missing).for_each(|_| self.add());
        Some(STALL_TIMEOUT)
    }

    /// Ends the threads, once the queue is empty. Those that are stuck end with the process.
    pub(super) fn end(&self) {
        self.inner().has_ended = true;
        self.changed.notify_all();
    }

    /// Threads at present.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.inner().threads
    }
}
