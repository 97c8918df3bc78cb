//! Cuts the connection to a back end that does not answer in time.
//!
//! The `vhost` crate waits for answers without a limit (it repeats a receive that timed out). So one thread for the whole
//! process holds the deadlines of the answers being waited for, and shuts the socket of one that is overdue: the waiting
//! receive then ends with an error.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A connection's handle to the watchdog.
pub(super) struct Watchdog {
    stream: Arc<UnixStream>,
}

/// While this lives the clock runs.
pub(super) struct Armed {
    key: (Instant, u64),
}

type Deadlines = BTreeMap<(Instant, u64), Arc<UnixStream>>;

struct Kennel {
    deadlines: Mutex<Deadlines>,
    changed: Condvar,
    next: AtomicU64,
}

impl Watchdog {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream: Arc::new(stream) }
    }

    /// Starts the clock: unless the result is dropped within `timeout`, the connection is cut.
    pub(super) fn arm(&self, timeout: Duration) -> Armed {
        let kennel = kennel();
        let key = (Instant::now() + timeout, kennel.next.fetch_add(1, Ordering::Relaxed));
        let mut deadlines = kennel.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
        let first = deadlines.first_key_value().is_none_or(|(earliest, _)| key < *earliest);
        deadlines.insert(key, Arc::clone(&self.stream));
        if first {
            kennel.changed.notify_one();
        }
        Armed { key }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        kennel().deadlines.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

fn kennel() -> &'static Kennel {
    static KENNEL: OnceLock<&'static Kennel> = OnceLock::new();
    KENNEL.get_or_init(|| {
        let kennel: &'static Kennel =
            Box::leak(Box::new(Kennel { deadlines: Mutex::default(), changed: Condvar::new(), next: AtomicU64::new(0) }));
        // Without the thread a silent back end would be waited for forever: better no front end at all.
        std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || watch(kennel))
            .expect("a process that cannot start one thread cannot run this tool");
        kennel
    })
}

fn watch(kennel: &'static Kennel) {
    let mut deadlines = kennel.deadlines.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let now = Instant::now();
        while let Some(entry) = deadlines.first_entry().filter(|entry| entry.key().0 <= now) {
            // An error means that the socket is closed already, as intended.
            let _ = entry.remove().shutdown(Shutdown::Both);
        }
        deadlines = match deadlines.first_key_value() {
            Some((&(next, _), _)) => kennel.changed.wait_timeout(deadlines, next - now).unwrap_or_else(PoisonError::into_inner).0,
            None => kennel.changed.wait(deadlines).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_silent_peer_is_cut_off_and_an_answering_one_is_not() {
        let (ours, _silent) = UnixStream::pair().unwrap();
        let begun = Instant::now();
        let guard = Watchdog::new(ours.try_clone().unwrap()).arm(Duration::from_millis(50));
        assert_eq!((&ours).read(&mut [0]).unwrap(), 0, "cut, so the end of the stream is read");
        assert!(begun.elapsed() >= Duration::from_millis(50));
        drop(guard);
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(Watchdog::new(ours.try_clone().unwrap()).arm(Duration::from_millis(1)));
        std::io::Write::write_all(&mut (&theirs), b"x").unwrap();
        assert_eq!((&ours).read(&mut [0]).unwrap(), 1);
    }
}
