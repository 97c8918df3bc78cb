//! Wake-up latency of the machine itself: a thread that sleeps on an eventfd, and nothing else. A switch with sleeping workers
//! cannot be faster.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{self, ticks};

use super::{cpu, meter};

/// A wake-up that took longer than this is given up.
const LONGEST: Duration = Duration::from_secs(1);

/// The thread, and how long it took so far.
pub struct Sleeper {
    wake_up: Arc<EventFd>,
    /// When it woke last; 0 when it was told to sleep.
    woke: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    /// Nanoseconds.
    pub took: Histogram<u64>,
}

impl Sleeper {
    /// A thread that sleeps on processor `cpu`, or where it likes.
    ///
    /// # Errors
    /// The error of eventfd(2) or clone(2), or of sched_setaffinity(2) for the processor.
    pub fn new(cpu: Option<usize>) -> std::io::Result<Self> {
        let wake_up = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?);
        let woke = Arc::new(AtomicU64::new(0));
        let (its_wake_up, its_woke) = (Arc::clone(&wake_up), Arc::clone(&woke));
        let thread = cpu::spawn("sleeper", cpu, move || {
            // Ended by the only other holder of its clock.
            while Arc::strong_count(&its_woke) > 1 {
                let mut awaited = [PollFd::new(its_wake_up.as_fd(), PollFlags::POLLIN)];
                if poll(&mut awaited, PollTimeout::NONE).is_err() {
                    continue;
                }
                its_woke.store(ticks(), Ordering::Release);
                let _ = its_wake_up.read();
            }
        })?;
        Ok(Self { wake_up, woke, thread: Some(thread), took: meter::times() })
    }

    /// Wakes the thread once. The caller sleeps meanwhile, or polls as a receiver does that waits for a frame.
    pub fn wake(&mut self, sleeps: bool) {
        self.woke.store(0, Ordering::Relaxed);
        let begin = ticks();
        if self.wake_up.write(1).is_err() {
            return;
        }
        let end = begin + clock::ticks_of(LONGEST);
        let mut woke = 0;
        while woke == 0 && ticks() < end {
            if sleeps {
                std::thread::sleep(Duration::from_micros(500));
            }
            woke = self.woke.load(Ordering::Acquire);
        }
        if woke > begin {
            self.took.saturating_record(clock::nanoseconds(woke - begin));
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.woke = Arc::default();
        let _ = self.wake_up.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_are_measured() {
        let mut sleeper = Sleeper::new(None).unwrap();
        for round in 0..10 {
            sleeper.wake(round % 2 == 0);
        }
        // On a busy machine some take longer than they are waited for.
        assert!((5..=10).contains(&sleeper.took.len()), "{}", sleeper.took.len());
        assert!(sleeper.took.min() > 0);
    }
}
