//! Eyes on the receivers' rings, on a processor of their own: when a frame lies in its receiver's memory, which is before the receiver
//! gets up and looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use hdrhistogram::Histogram;

use crate::clock::{self, ticks};
use crate::ring::SharedRing;

use super::{cpu, meter};

/// A thread that polls the used indices of some rings.
pub struct Watcher {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
    /// Nanoseconds.
    pub took: Histogram<u64>,
}

#[derive(Default)]
struct Seen {
    /// When a ring changed first since this was 0.
    at: AtomicU64,
    quit: AtomicBool,
}

impl Watcher {
    /// Watches `rings` from processor `cpu`, which has nothing else to do from now on.
    ///
    /// # Errors
    /// The error of clone(2), or of sched_setaffinity(2) for the processor.
    pub fn new(cpu: usize, rings: Vec<SharedRing>) -> std::io::Result<Self> {
        let seen = Arc::new(Seen::default());
        let its = Arc::clone(&seen);
        let indices = rings.iter().map(SharedRing::used_index).collect();
        let thread = cpu::spawn("watcher", Some(cpu), move || watch(&rings, indices, &its))?;
        Ok(Self { seen, thread: Some(thread), took: meter::times() })
    }

    /// Forgets earlier changes: from now on the first change counts.
    pub fn begin(&self) {
        self.seen.at.store(0, Ordering::Release);
    }

    /// Notes how long after moment `since` the first change came, if there was one.
    pub fn note(&mut self, since: u64) {
        let at = self.seen.at.load(Ordering::Acquire);
        if at > since {
            self.took.saturating_record(clock::nanoseconds(at - since));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.seen.quit.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(rings: &[SharedRing], mut indices: Vec<u16>, seen: &Seen) {
    while !seen.quit.load(Ordering::Relaxed) {
        for (ring, index) in rings.iter().zip(&mut indices) {
            let now = ring.used_index();
            if now != *index {
                *index = now;
                // An earlier change is kept: only the first one counts.
                let _ = seen.at.compare_exchange(0, ticks(), Ordering::Release, Ordering::Relaxed);
            }
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::{self, Deadline};
    use crate::memory::GuestMemory;

    fn ring() -> SharedRing {
        let memory = GuestMemory::new(1 << 20).unwrap();
        SharedRing::new(&memory, 16).unwrap()
    }

    #[test]
    fn the_first_change_is_seen() {
        let rings = [ring(), ring()];
        let mut watcher = Watcher::new(0, rings.to_vec()).unwrap();
        for index in 1..=10 {
            watcher.begin();
            let begin = ticks();
            rings[usize::from(index % 2)].set_used_index(index);
            let deadline = Deadline::after(Duration::from_secs(10));
            assert!(deadline::until(deadline, || watcher.seen.at.load(Ordering::Relaxed) > 0));
            watcher.note(begin);
        }
        assert_eq!(watcher.took.len(), 10);
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        assert!(Watcher::new(1023, vec![ring()]).is_err());
    }
}
