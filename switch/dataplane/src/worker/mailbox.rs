//! The mailbox: commands of other threads, which a worker runs between two poll iterations.
//!
//! A command is a closure over the worker. It may take locks and allocate: it belongs to the control side and is rare.

mod post;

use std::sync::{Arc, mpsc};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::Worker;
use crate::driven::await_answer;
use crate::handover::Sleep;
use post::Post;

type Command = Box<dyn FnOnce(&mut Worker) + Send>;

/// See the module. Its eventfd (the wake-up) is also signalled by the inter-worker queues.
pub struct Mailbox {
    post: Post<Command>,
    /// Whether the worker sleeps.
    pub sleep: Sleep,
    wake_up: EventFd,
    /// Commands that were sent.
    #[cfg(test)]
    sent: std::sync::atomic::AtomicUsize,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("has_post", &self.has_post()).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// An empty mailbox.
    ///
    /// # Errors
    /// The kernel refuses an eventfd.
    pub fn new() -> std::io::Result<Arc<Self>> {
        let wake_up = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?;
        Ok(Arc::new(Self {
            post: Post::default(),
            sleep: Sleep::default(),
            wake_up,
            #[cfg(test)]
            sent: Default::default(),
        }))
    }

    /// The eventfd that becomes readable when the worker must wake.
    pub fn wake_up(&self) -> &EventFd {
        &self.wake_up
    }

    /// Wakes the worker if it sleeps; true if it did.
    pub fn wake(&self) -> bool {
        let asleep = self.sleep.must_wake();
        if asleep {
            // Fails only when the counter is at its maximum, in which case the worker is being woken already.
            let _ = self.wake_up.write(1);
        }
        asleep
    }

    /// True if there are commands.
    #[inline]
    pub(crate) fn has_post(&self) -> bool {
        self.post.has_any()
    }

    /// Hands each command to `each`; false if the mailbox is closed.
    pub(super) fn collect(&self, each: impl FnMut(Command)) -> bool {
        let commands = self.post.collect();
        let open = commands.is_some();
        commands.unwrap_or_default().into_iter().for_each(each);
        open
    }

    /// Closes the mailbox of a worker that is to end, or has ended: commands that wait for its answer fail.
    pub fn close(&self) {
        self.post.close();
        self.wake();
    }

    fn send(&self, command: Command) {
        #[cfg(test)]
        self.sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.post.put(command);
        self.wake();
    }
}

/// The control side's handle on a worker.
#[derive(Clone, Debug)]
pub struct WorkerHandle(Arc<Mailbox>);

impl WorkerHandle {
    /// A handle on the worker that collects from `mailbox`.
    pub fn new(mailbox: Arc<Mailbox>) -> Self {
        Self(mailbox)
    }

    /// Commands that were sent so far.
    #[cfg(test)]
    pub fn sent(&self) -> usize {
        self.0.sent.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// See [`Mailbox::close`].
    pub fn close(&self) {
        self.0.close();
    }

    /// Has the worker run `command`, without waiting for it; not at all once it has ended.
    pub fn tell(&self, command: impl FnOnce(&mut Worker) + Send + 'static) {
        self.0.send(Box::new(command));
    }

    /// Has the worker run `command`; the result comes later.
    pub fn order<R: Send + 'static>(&self, command: impl FnOnce(&mut Worker) -> R + Send + 'static) -> mpsc::Receiver<R> {
        let (reply, answer) = mpsc::channel();
        self.tell(move |worker| {
            let _ = reply.send(command(worker));
        });
        answer
    }

    /// Has the worker run `command` and waits for the result; `None` if the worker is gone.
    pub fn ask<R: Send + 'static>(&self, command: impl FnOnce(&mut Worker) -> R + Send + 'static) -> Option<R> {
        await_answer(&self.order(command))
    }

    /// Like [`Self::ask`], for answers that depend on a later event: the worker keeps the reply sender until then.
    pub(crate) fn ask_later<R: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Worker, mpsc::Sender<R>) + Send + 'static,
    ) -> Option<R> {
        let (reply, answer) = mpsc::channel();
        self.tell(move |worker| command(worker, reply));
        await_answer(&answer)
    }
}
