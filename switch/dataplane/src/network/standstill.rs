//! Standstill of the data path for a takeover: another process serves the virtqueues from here on, or this one goes on.
//!
//! 1. [`Network::hold_transmit`]: no further frame is taken from any guest.
//! 2. [`Network::drain_all`]: frames in flight are delivered; those of receivers that take none are dropped and counted.
//! 3. [`Network::stand_still`]: all workers stop between two poll iterations. All that they took is completed then, so that the used
//!    index of each ring says where another process continues.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::Network;
use crate::port::Port;
use crate::worker::{QueueFiles, Worker};

/// Interval at which frames in flight are looked for.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// How workers go on after a standstill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoOn {
    /// At the used indices in memory: another process has served the virtqueues meanwhile.
    Behind,
}

/// All workers stand still. They go on when this is dropped.
#[derive(Debug)]
pub struct Standstill(Vec<Sender<GoOn>>);

impl Standstill {
    /// Has the workers go on at the used indices in memory: another process has served the virtqueues, and has ended.
    pub fn go_on_behind(self) {
        for worker in &self.0 {
            // One that has ended goes on no more.
            let _ = worker.send(GoOn::Behind);
        }
    }
}

impl Network {
    /// Takes no further frames from any guest, or takes them again. Frames that were taken are delivered.
    pub fn hold_transmit(&self, hold: bool) {
        for port in self.ports() {
            port.policy.transmit.set_shut(hold || !port.is_enabled());
        }
        self.tell_all(|| |_: &mut Worker| {}).wait();
    }

    /// Waits until no frame of any port is in flight, for at most `timeout`; then has the rest dropped. True once no chain of any
    /// virtqueue is in flight.
    pub fn drain_all(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let is_busy = || {
            let busy: Vec<_> = self.workers.iter().map(|worker| worker.order(Worker::has_any_under_way)).collect();
            busy.into_iter().any(|answer| answer.recv().unwrap_or(false))
        };
        while is_busy() {
            if Instant::now() >= deadline {
                return self.recall_all(timeout);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Drops all frames in flight; true once all their chains are completed.
    fn recall_all(&self, timeout: Duration) -> bool {
        let (reply, recalled) = channel();
        for worker in &self.workers {
            let reply = reply.clone();
            worker.tell(move |worker| worker.recall_all(&reply));
        }
        drop(reply);
        let deadline = Instant::now() + timeout;
        // Ends when no worker holds a sender any more.
        loop {
            match recalled.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    /// Has all workers stand still between two poll iterations; `None` if one does not within `timeout`, and all go on then.
    pub fn stand_still(&self, timeout: Duration) -> Option<Standstill> {
        let (reached, stands) = channel();
        let mut releases = Vec::new();
        for worker in &self.workers {
            let (release, released): (_, Receiver<GoOn>) = channel();
            let reached = reached.clone();
            worker.tell(move |worker| {
                let _ = reached.send(());
                if released.recv() == Ok(GoOn::Behind) {
                    worker.resume_rings();
                }
            });
            releases.push(release);
        }
        let deadline = Instant::now() + timeout;
        let stands = || stands.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok();
        releases.iter().all(|_| stands()).then_some(Standstill(releases))
    }

    /// Interrupts the drivers of all virtqueues once.
    pub fn interrupt_drivers(&self) {
        self.tell_all(|| Worker::interrupt_drivers).wait();
    }

    /// Copies of the descriptors of the virtqueues of `port` that run.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn queue_files(&self, port: &Port) -> io::Result<Vec<QueueFiles>> {
        let id = port.id;
        let serving: BTreeSet<u8> = port.rings().running.values().map(|ring| ring.entry.worker).collect();
        let order = |index| self.worker(index).order(move |worker| worker.queue_files(id));
        let asked: Vec<_> = serving.into_iter().map(order).collect();
        let mut files = Vec::new();
        for answer in asked {
            files.extend(answer.recv().map_err(io::Error::other)??);
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::shared::Shared;

    #[test]
    fn workers_stand_still_and_go_on() {
        let network = Network::start(Shared::new(2, 7, Settings::default()), &[]).unwrap();
        let standstill = network.stand_still(Duration::from_secs(10)).unwrap();
        let asked = network.order(1, |_| ());
        assert_eq!(asked.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        drop(standstill);
        assert_eq!(asked.recv(), Ok(()));
        network.stand_still(Duration::from_secs(10)).unwrap().go_on_behind();
        assert_eq!(network.order(0, |_| ()).recv(), Ok(()));
        // One that does not stop in time holds the others up no longer.
        let (let_go, held) = channel::<()>();
        let holds = network.order(0, move |_| held.recv());
        assert!(network.stand_still(Duration::from_millis(20)).is_none());
        assert_eq!(network.order(1, |_| ()).recv(), Ok(()));
        drop(let_go);
        assert!(holds.recv().is_ok());
        network.shut_down();
    }
}
