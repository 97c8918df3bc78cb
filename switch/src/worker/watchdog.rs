//! The watchdog: frees a worker whose call blocks.
//!
//! Calls never block, because their descriptors are set so. But a descriptor's flags are shared with the front end, which can clear the flag
//! again and leave an eventfd full, and no system call writes to an eventfd with a wish of its own not to block. So a worker notes in its
//! **stopwatch** when it begins a call; the watchdog looks at the stopwatches while workers are awake, and interrupts one that has been
//! calling for too long with a signal. The call then fails, and its port is quarantined.

use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Mailbox;
use crate::time::{cycles, in_cycles};

/// How long a call may take.
const MOST: Duration = Duration::from_millis(100);
/// How often stopwatches are looked at while a worker is awake.
const INTERVAL: Duration = Duration::from_millis(50);
/// Looks without anybody awake after which the watchdog sleeps.
const CALM: u32 = 20;

/// When its worker began the call that it is in; zero if it is in none.
#[derive(Debug, Default)]
pub struct Stopwatch {
    since: AtomicU64,
    /// The watchdog sleeps and wants to hear when the worker wakes.
    unwatched: AtomicBool,
}

thread_local! {
    static MINE: std::cell::OnceCell<(Arc<Stopwatch>, Sender<()>)> = const { std::cell::OnceCell::new() };
}

/// Runs `call` under the eye of the watchdog, if this thread is a worker.
pub fn watched<T>(call: impl FnOnce() -> T) -> T {
    MINE.with(|mine| match mine.get() {
        None => call(),
        Some((stopwatch, wake)) => {
            if stopwatch.unwatched.swap(false, Ordering::Relaxed) {
                // Fails only when the watchdog is gone, with the network.
                let _ = wake.send(());
            }
            stopwatch.since.store(cycles() | 1, Ordering::Relaxed);
            let result = call();
            stopwatch.since.store(0, Ordering::Relaxed);
            result
        }
    })
}

/// A worker's end of the watchdog's lead, to be taken by its thread.
#[derive(Debug)]
pub struct Lead {
    stopwatch: Arc<Stopwatch>,
    wake: Sender<()>,
}

impl Lead {
    /// Puts the calling thread under the watchdog's eye.
    pub fn take(self) {
        MINE.with(|mine| {
            // A thread is one worker, and becomes it once.
            let _ = mine.set((self.stopwatch, self.wake));
        });
    }
}

/// A watchdog that is not on duty yet.
#[derive(Debug)]
pub struct Watchdog {
    stopwatches: Vec<Arc<Stopwatch>>,
    wakes: Receiver<()>,
}

impl Watchdog {
    /// A watchdog for `workers` workers, and a lead for each.
    pub fn new(workers: usize) -> (Self, Vec<Lead>) {
        let (wake, wakes) = channel();
        let stopwatches: Vec<Arc<Stopwatch>> = (0..workers).map(|_| Arc::default()).collect();
        let leads = stopwatches.iter().map(|stopwatch| Lead { stopwatch: Arc::clone(stopwatch), wake: wake.clone() }).collect();
        (Self { stopwatches, wakes }, leads)
    }

    /// Watches the workers that run in `threads` and collect from `mailboxes`, in a thread of its own, until they end.
    ///
    /// # Errors
    /// The kernel refuses a thread or a signal handler.
    pub fn run(self, threads: &[JoinHandle<()>], mailboxes: Vec<Arc<Mailbox>>) -> std::io::Result<()> {
        vmm_sys_util::signal::register_signal_handler(signal(), on_signal)
            .map_err(|error| std::io::Error::from_raw_os_error(error.errno()))?;
        let threads: Vec<libc::pthread_t> = threads.iter().map(JoinHandleExt::as_pthread_t).collect();
        std::thread::Builder::new()
            .name("watchdog".into())
            .stack_size(64 * 1024)
            .spawn(move || self.watch(&threads, &mailboxes))?;
        Ok(())
    }

    fn watch(&self, threads: &[libc::pthread_t], mailboxes: &[Arc<Mailbox>]) {
        let most = in_cycles(MOST);
        loop {
            self.stopwatches.iter().for_each(|stopwatch| stopwatch.unwatched.store(true, Ordering::Relaxed));
            if self.wakes.recv().is_err() {
                return;
            }
            let mut calm = 0;
            while calm < CALM {
                match self.wakes.recv_timeout(INTERVAL) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                }
                for (stopwatch, &thread) in self.stopwatches.iter().zip(threads) {
                    let since = stopwatch.since.load(Ordering::Relaxed);
                    if since != 0 && cycles().wrapping_sub(since) > most {
                        // SAFETY: the thread lives: its lead, whose end ends this loop, is dropped only when it ends.
                        unsafe { libc::pthread_kill(thread, signal()) };
                    }
                }
                calm = if mailboxes.iter().all(|mailbox| mailbox.sleep.is_asleep()) { calm + 1 } else { 0 };
            }
        }
    }
}

fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// Its only effect is that the system call it interrupts fails.
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
