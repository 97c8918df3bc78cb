//! Rings of ports, from their start at a worker to their end, and the routes to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Network, Told};
use crate::id::{Direction, MAX_PAIRS, RingKey, RouteEntry, Slot};
use crate::memory::MemoryMap;
use crate::offload::Offloads;
use crate::port::end::Ends;
use crate::port::rings::{Rings, Running};
use crate::port::{Port, State};
use crate::ring::{Call, ReceiveQueue, Ring, RingOptions, SplitRing, TransmitQueue};
use crate::worker::Start;

/// How often to look whether a port that is drained has nothing under way any more.
const GLANCE: Duration = Duration::from_millis(1);

/// What starting a ring takes.
#[derive(Debug)]
pub struct RingParts {
    /// Which ring.
    pub key: RingKey,
    /// Where it lies.
    pub split: SplitRing,
    /// The memory that its buffers lie in.
    pub memory: Arc<MemoryMap>,
    /// What was agreed.
    pub options: RingOptions,
    /// Available position to begin at.
    pub base: u16,
    /// How to interrupt the driver.
    pub call: Option<Call>,
    /// Offloads of this direction.
    pub offloads: Offloads,
    /// Frames may fill several receive buffers.
    pub mergeable: bool,
    /// How it begins.
    pub start: Start,
}

impl Network {
    /// Starts a ring of `port`, unless that was taken away. Pairs beyond those that a port may have carry nothing.
    pub fn start_ring(&self, port: &Arc<Port>, parts: RingParts) {
        let RingParts { key, split, memory, options, base, call, offloads, mergeable, start } = parts;
        let present = port.presence();
        if key.pair >= MAX_PAIRS || !*present {
            return;
        }
        let worker = self.worker_of(port.id, key.pair);
        let enabled = start.enabled;
        port.rings().forget_ended();
        let started = self.worker(worker).ask(move |worker| {
            let mut ring = Ring::new(split, memory, options, base);
            ring.set_call(call);
            let slot = match key.direction {
                Direction::Transmit => worker.add_transmit_queue(key, TransmitQueue::new(ring), offloads, start),
                Direction::Receive => worker.add_receive_queue(key, ReceiveQueue::new(ring, offloads, mergeable), start),
            };
            slot.map(|slot| (slot, worker.is_filled(key)))
        });
        let Some((slot, filled)) = started.flatten() else { return };
        let told = {
            let mut rings = port.rings();
            if filled {
                rings.filled.insert((key, slot));
            }
            rings.running.insert(key, Running { entry: RouteEntry { worker, slot }, enabled });
            self.update_route(port, &rings)
        };
        told.wait();
    }

    /// Starts a port that has no rings.
    ///
    /// # Errors
    /// The kernel refuses to watch its ends, or the port was taken away.
    pub fn start_ends(&self, port: &Arc<Port>, ends: Ends) -> std::io::Result<()> {
        self.start_queue(port, 0, ends)?;
        port.set_state(State::Running);
        Ok(())
    }

    /// Starts queue `pair` of a port that has no rings; it runs once all its queues do, as its state is to say then.
    ///
    /// # Errors
    /// As [`Self::start_ends`].
    pub fn start_queue(&self, port: &Arc<Port>, pair: u16, ends: Ends) -> std::io::Result<()> {
        let gone = || std::io::Error::other("the port or its worker is gone");
        let present = port.presence();
        if !*present {
            return Err(gone());
        }
        let (id, session) = (port.id, port.session());
        let worker = self.worker_of(id, pair);
        let slot = self.worker(worker).ask(move |worker| worker.add_ends(id, pair, session, ends)).ok_or_else(gone)??;
        let told = {
            let mut rings = port.rings();
            for direction in [Direction::Transmit, Direction::Receive] {
                let running = Running { entry: RouteEntry { worker, slot }, enabled: true };
                let key = RingKey { port: id, pair, direction };
                rings.filled.insert((key, slot));
                rings.running.insert(key, running);
            }
            self.update_route(port, &rings)
        };
        told.wait();
        Ok(())
    }

    /// Stops a ring of `port` and returns its base, once nothing of it is in use, be it that somebody else has stopped it or is just doing so;
    /// `None` if it did not run.
    pub fn stop_ring(&self, port: &Arc<Port>, key: RingKey) -> Option<u16> {
        let _turn = port.one_stop_at_a_time();
        self.end_ring(port, key).or_else(|| port.recall_base(key))
    }

    /// As [`Self::stop_ring`], by whoever has the port's turn to stop; `None` if the ring does not run.
    fn end_ring(&self, port: &Arc<Port>, key: RingKey) -> Option<u16> {
        let (running, told) = {
            let mut rings = port.rings();
            let running = rings.running.remove(&key)?;
            (running, self.update_route(port, &rings))
        };
        told.wait();
        let worker = self.worker(running.entry.worker);
        match key.direction {
            Direction::Transmit => worker.ask_later(move |worker, reply| worker.stop_transmit_queue(key, reply)),
            Direction::Receive => worker.ask(move |worker| worker.stop_receive_queue(key)).flatten(),
        }
    }

    /// Stops all rings of `port` and forgets who is behind it.
    pub fn stop_port(&self, port: &Arc<Port>) {
        let keys: Vec<RingKey> = port.rings().running.keys().copied().collect();
        for key in keys {
            let _turn = port.one_stop_at_a_time();
            if let Some(base) = self.end_ring(port, key) {
                port.remember_base(key, base);
            }
        }
        {
            let mut rings = port.rings();
            rings.active_pairs = None;
            rings.filled.clear();
        }
        // Another port may have its number by now.
        if self.has(port) {
            port.segment.table().forget(port.id);
        }
    }

    /// Enables or disables a running ring.
    pub fn set_enabled(&self, port: &Arc<Port>, key: RingKey, enabled: bool) {
        let (worker, told) = {
            let mut rings = port.rings();
            let Some(running) = rings.running.get_mut(&key).filter(|running| running.enabled != enabled) else { return };
            running.enabled = enabled;
            let worker = self.worker(running.entry.worker);
            // Nobody sends to a ring before it is enabled, or after it is disabled.
            (worker, if enabled { Told::default() } else { self.update_route(port, &rings) })
        };
        told.wait();
        worker.ask(move |worker| worker.set_enabled(key, enabled));
        if enabled {
            let told = self.update_route(port, &port.rings());
            told.wait();
        }
    }

    /// Changes how the driver of a running ring is interrupted.
    ///
    /// # Errors
    /// It does not run: the call comes back.
    pub fn set_call(&self, port: &Port, key: RingKey, call: Option<Call>) -> Result<(), Option<Call>> {
        let Some(running) = port.rings().running.get(&key).copied() else { return Err(call) };
        self.worker(running.entry.worker).ask(move |worker| worker.set_call(key, call));
        Ok(())
    }

    /// Moves a running ring to other memory, in which it lies at `split`.
    pub fn set_memory(&self, port: &Port, key: RingKey, split: SplitRing, memory: Arc<MemoryMap>) {
        let Some(running) = port.rings().running.get(&key).copied() else { return };
        self.worker(running.entry.worker).ask_later(move |worker, reply| worker.set_memory(key, split, memory, reply));
    }

    /// Delivers to the first `pairs` pairs of `port` only, as its driver asked through the control queue.
    pub fn set_active_pairs(&self, port: &Arc<Port>, pairs: u16) {
        let told = {
            let mut rings = port.rings();
            if rings.active_pairs.replace(pairs) == Some(pairs) {
                return;
            }
            self.update_route(port, &rings)
        };
        told.wait();
    }

    /// The driver of `port` has given its ring `key` at `slot` a first buffer: frames may go there. It may not be entered as running yet.
    pub(super) fn note_filled(&self, port: &Arc<Port>, key: RingKey, slot: Slot) {
        let told = {
            let mut rings = port.rings();
            rings.filled.insert((key, slot));
            self.update_route(port, &rings)
        };
        told.wait();
    }

    /// Lets `port` send and be sent to, or not: then its frames stay where they are, and others' to it are dropped.
    pub fn set_port_enabled(&self, port: &Arc<Port>, enabled: bool) {
        port.set_enabled(enabled);
        port.policy.transmit.set_shut(!enabled);
        self.have_all_look();
        let told = self.update_route(port, &port.rings());
        told.wait();
    }

    /// Waits until nothing of `port` is under way, for so long at most; true if so. It should be disabled before.
    pub fn await_drained(&self, port: &Port, patience: Duration) -> bool {
        let (id, deadline) = (port.id, Instant::now() + patience);
        loop {
            let busy = self.workers.iter().any(|worker| worker.ask(move |worker| worker.has_under_way(id)).unwrap_or(false));
            if !busy || Instant::now() >= deadline {
                return !busy;
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Tells every worker where frames for `port` go now. What is told under the lock of its `rings` comes in its order; whether all know is
    /// to be waited for without it, so that a worker that takes long holds up only who waits for it.
    fn update_route(&self, port: &Arc<Port>, rings: &Rings) -> Told {
        let entries = if port.is_enabled() { rings.entries() } else { Vec::new() };
        self.tell_all(|| {
            let (port, entries) = (Arc::clone(port), entries.clone());
            move |worker: &mut crate::worker::Worker| {
                if worker.knows(&port) {
                    worker.set_route(port.id, entries);
                }
            }
        })
    }
}
