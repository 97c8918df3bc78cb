//! Standstill of the data path for a takeover: another process serves the virtqueues from here on, or this one goes on.
//!
//! 1. [`Network::hold_transmit`]: no further frame is taken from any guest.
//! 2. [`Network::drain_all`]: frames in flight are delivered; those of receivers that take none are dropped and counted.
//! 3. [`Network::stand_still`]: all workers stop between two poll iterations. All that they took is completed then, so that the used
//!    index of each ring says where another process continues.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::Network;
use crate::driven::await_answer;
use crate::port::Port;
use crate::time::driven;
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
        self.shut_transmit(hold);
        self.tell_all(|| |_: &mut Worker| {}).wait();
    }

    /// Like [`Self::hold_transmit`], before the first queue starts: it starts held.
    pub fn begin_held(&self) {
        self.shut_transmit(true);
    }

    /// Takes frames from the guests, and interrupts the drivers of all virtqueues once.
    pub fn end_held(&self) {
        self.shut_transmit(false);
        self.tell_all(|| Worker::interrupt_drivers).wait();
    }

    fn shut_transmit(&self, shut: bool) {
        for port in self.ports() {
            port.policy.transmit.set_shut(shut || !port.is_enabled());
        }
    }

    /// Waits until no frame of any port is in flight, for at most `timeout`; then has the rest dropped. True once no chain of any
    /// virtqueue is in flight.
    pub fn drain_all(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let is_busy = || {
            let busy: Vec<_> = self.workers.iter().map(|worker| worker.order(Worker::has_any_under_way)).collect();
            busy.into_iter().any(|answer| await_answer(&answer).unwrap_or(false))
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
        if driven::is_on() {
            while await_answer(&recalled).is_some() {}
            return true;
        }
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
                worker.hand_over_ends();
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

    /// Copies of the descriptors of the virtqueues of `ports` that run. Each worker that serves any is asked once.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn queue_files<'p>(&self, ports: impl IntoIterator<Item = &'p Arc<Port>>) -> io::Result<Vec<QueueFiles>> {
        let (mut ids, mut serving) = (HashSet::new(), BTreeSet::new());
        for port in ports {
            ids.insert(port.id);
            serving.extend(port.rings().running.values().map(|ring| ring.entry.worker));
        }
        let ids = Arc::new(ids);
        let order = |index| {
            let ids = Arc::clone(&ids);
            self.worker(index).order(move |worker| worker.queue_files(&ids))
        };
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
    use crate::id::{Direction, RingKey, RouteEntry, Slot};
    use crate::network::tests::add;
    use crate::port::rings::Running;
    use crate::settings::Settings;
    use crate::shared::Shared;

    #[test]
    fn each_step_of_a_takeover_sends_each_worker_one_command_however_many_ports_there_are() {
        let network = Network::start(Shared::new(2, 7, Settings::default()), &[]).unwrap();
        let ports: Vec<_> = (0..40).map(|n| add(&network, &n.to_string(), None).unwrap()).collect();
        let sent = || [0, 1].map(|worker| network.workers[worker].sent());
        let costs = |step: &dyn Fn()| {
            let before = sent();
            step();
            [0, 1].map(|worker| sent()[worker] - before[worker])
        };
        assert_eq!(costs(&|| ports.iter().for_each(|port| network.set_active_pairs(port, 2))), [0, 0], "no queue runs");
        assert_eq!(costs(&|| network.begin_held()), [0, 0]);
        for (worker, port) in [0, 1].into_iter().cycle().zip(&ports) {
            let key = RingKey { port: port.id, pair: 0, direction: Direction::Receive };
            port.rings().running.insert(key, Running { entry: RouteEntry { worker, slot: Slot::default() }, enabled: true });
        }
        assert_eq!(costs(&|| network.end_held()), [1, 1]);
        assert_eq!(costs(&|| assert!(network.queue_files(&ports).unwrap().is_empty())), [1, 1]);
        assert_eq!(costs(&|| network.hold_transmit(true)), [1, 1]);
        ports.iter().for_each(|port| port.rings().running.clear());
        network.shut_down();
    }

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
