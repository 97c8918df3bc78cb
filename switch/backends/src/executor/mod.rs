//! Sessions of many ports on few threads.
//!
//! A session is a [`Task`]: an `async` block that holds a thread only while it acts on an event. Three parts run all tasks:
//!
//! 1. [`reactor`]: one thread in epoll, for the [`Watched`] sockets and the timer list of all tasks. An event enqueues the task.
//! 2. [`threads`]: the run queue (fair queueing: first come, first served), and [`USUAL`](threads::USUAL) threads that dequeue tasks. A thread
//!    that a system call holds, as on a guest's file whose server does not answer, is stuck: others are started in its place while tasks
//!    are enqueued.
//! 3. [`context`]: the side of the task: [`Context::wait`] is a condition variable with a timeout.
//!
//! No task holds up another for longer than the [stall timeout](threads::STALL_TIMEOUT), so a task may block in a system call, but it must
//! not wait for a front end that way: the thread would be one more for each such port.

mod context;
mod reactor;
mod task;
mod threads;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;

pub(crate) use context::Context;
use reactor::Reactor;
pub(crate) use reactor::Watched;
pub(crate) use task::Task;
use threads::RunQueue;

/// See the module. Its threads end when it is dropped.
#[derive(Debug)]
pub struct Executor {
    reactor: Arc<Reactor>,
    queue: Arc<RunQueue>,
}

impl Executor {
    /// An executor with two threads, an epoll instance and an eventfd; more threads are started when tasks are enqueued.
    ///
    /// # Errors
    /// The kernel refuses a thread or a descriptor.
    pub fn new() -> io::Result<Self> {
        let reactor = Arc::new(Reactor::new()?);
        let executor = Self { queue: RunQueue::start(Arc::clone(&reactor))?, reactor };
        let (reactor, queue) = (Arc::clone(&executor.reactor), Arc::clone(&executor.queue));
        std::thread::Builder::new().name("sessions".into()).stack_size(threads::STACK).spawn(move || reactor.run(&queue))?;
        Ok(executor)
    }

    /// Makes the task of `session`, which is first enqueued when it is [notified](Task::notify), or by an epoll event of a socket that `session` watches.
    ///
    /// # Errors
    /// The errors of `session`.
    pub(crate) fn task<F>(&self, session: impl FnOnce(Context) -> io::Result<F>) -> io::Result<Arc<Task>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = Task::new(Arc::clone(&self.queue));
        let future = session(Context::new(Arc::clone(&self.reactor), Waker::from(Arc::clone(&task))))?;
        task.begin(Box::pin(future));
        Ok(task)
    }

    /// Runs `session` in the calling thread, to its end.
    pub(crate) fn run_here<F: Future>(&self, session: impl FnOnce(Context) -> F) -> F::Output {
        let waker = Waker::from(Arc::new(Sleeper(std::thread::current())));
        let mut future = pin!(session(Context::new(Arc::clone(&self.reactor), waker.clone())));
        loop {
            match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.queue.end();
        self.reactor.end();
    }
}

/// A thread that runs one task, and sleeps while that waits.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests;
