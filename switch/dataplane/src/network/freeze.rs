//! Freeze: no frame moves until the thaw. Meanwhile virtqueues may stop and start, as they do while monitors take snapshots of their guests.
//!
//! 1. No further frame is taken from any transmit queue.
//! 2. Frames that are enqueued are copied to the emulated links of their receivers, until no descriptor chain of any guest is in flight: rings
//!    hold all that was not sent, and all that was delivered.
//! 3. Frames of link emulation are taken away, and [held](crate::held), with the time that each has left.
//!
//! At the thaw the links continue, with the same times. A network that is restored from a snapshot begins frozen, with the frames of the snapshot.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Network;
use crate::driven::await_answer;
use crate::held::{FreezeError, Frozen, HeldLine, Thawed};
use crate::id::{PortId, RingKey};
use crate::port::Port;
use crate::worker::Worker;

/// Interval at which descriptor chains in flight are looked for.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

impl Network {
    /// Never held while anything is waited for.
    fn frozen(&self) -> MutexGuard<'_, Option<Frozen>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn freezing(&self) -> MutexGuard<'_, ()> {
        self.freezing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Freezes the network, within `timeout`.
    ///
    /// # Errors
    /// A [`FreezeError`].
    pub fn freeze(&self, timeout: Duration) -> Result<(), FreezeError> {
        let _freezing = self.freezing();
        if self.frozen().is_some() {
            return Err(FreezeError::Already);
        }
        let since = Instant::now();
        self.hold_transmit(true);
        loop {
            self.tell_all(|| Worker::move_to_lines).wait();
            if !self.has_chains_in_flight() {
                break;
            }
            if since.elapsed() >= timeout {
                self.hold_transmit(false);
                return Err(FreezeError::Busy);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let held: Vec<_> = self.workers.iter().map(|worker| worker.order(Worker::hold_lines)).collect();
        let lines = held.iter().filter_map(await_answer).flatten().collect();
        let running = self.enabled_rings();
        *self.frozen() = Some(Frozen { lines, since, running });
        Ok(())
    }

    /// The network begins frozen, before its first queue starts: with these frames in flight, and until these virtqueues run.
    pub fn begin_frozen(&self, lines: Vec<HeldLine>, running: Vec<RingKey>) {
        self.begin_held();
        *self.frozen() = Some(Frozen { lines, since: Instant::now(), running });
    }

    /// Lets a frozen network go on; `None` if it is not frozen.
    pub fn thaw(&self) -> Option<Thawed> {
        let _freezing = self.freezing();
        let Frozen { lines, since, .. } = self.frozen().take()?;
        let mut of_workers: Vec<Vec<HeldLine>> = self.workers.iter().map(|_| Vec::new()).collect();
        let mut frames = 0;
        for line in lines {
            frames += line.frames.len() as u64;
            of_workers[usize::from(self.worker_of(line.port, line.pair))].push(line);
        }
        let told: Vec<_> =
            self.workers.iter().zip(of_workers).map(|(worker, lines)| worker.order(move |worker| worker.go_on(lines))).collect();
        let lost = told.iter().filter_map(await_answer).sum();
        self.end_held();
        Some(Thawed { paused: since.elapsed(), frames, lost })
    }

    /// How long the network has been frozen; `None` if it is not.
    pub fn frozen_for(&self) -> Option<Duration> {
        self.frozen().as_ref().map(|frozen| frozen.since.elapsed())
    }

    /// The result of `look` at the frames in flight and the virtqueues that ran when the network froze; `None` if it is not frozen.
    pub fn look_at_held<R>(&self, look: impl FnOnce(&[HeldLine], &[RingKey]) -> R) -> Option<R> {
        self.frozen().as_ref().map(|frozen| look(&frozen.lines, &frozen.running))
    }

    /// Names of the ports with virtqueues that ran when the network froze, and do not run yet again.
    pub fn not_running(&self) -> Vec<String> {
        let running = self.look_at_held(|_, running| running.to_vec()).unwrap_or_default();
        let now = self.enabled_rings();
        let missing = |port: &PortId| running.iter().any(|key| key.port == *port && !now.contains(key));
        self.ports().iter().filter(|port| missing(&port.id)).map(|port| port.name.clone()).collect()
    }

    fn enabled_rings(&self) -> Vec<RingKey> {
        let enabled = |port: &Arc<Port>| {
            let rings = port.rings();
            rings.running.iter().filter(|(_, ring)| ring.enabled).map(|(key, _)| *key).collect::<Vec<_>>()
        };
        self.ports().iter().flat_map(enabled).collect()
    }

    fn has_chains_in_flight(&self) -> bool {
        let asked: Vec<_> = self.workers.iter().map(|worker| worker.order(Worker::has_chains_in_flight)).collect();
        asked.iter().any(|answer| await_answer(answer).unwrap_or(false))
    }
}
