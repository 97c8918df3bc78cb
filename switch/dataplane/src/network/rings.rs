//! Virtqueues of ports, from their start at a worker to their end, and the routes to them.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::{Network, Told};
use crate::author;
use crate::driven::await_answer;
use crate::id::{Direction, MAX_PAIRS, RingKey, RouteEntry, Slot};
use crate::journal::{NetworkEvent, note};
use crate::memory::MemoryMap;
use crate::offload::Offloads;
use crate::port::end::Backend;
use crate::port::queue_view::{QueueBlock, QueueView};
use crate::port::rings::{Rings, Running};
use crate::port::{Port, PortState};
use crate::ring::{Call, InflightQueue, ReceiveQueue, Ring, RingLog, RingOptions, SplitRing, StoppedRing, TransmitQueue};
use crate::worker::{Start, Worker};

/// Interval at which a port that is drained is checked for frames in flight.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Parameters of a virtqueue that starts.
#[derive(Debug)]
pub struct RingParts {
    /// Which virtqueue.
    pub key: RingKey,
    /// Addresses of its descriptor table, available ring and used ring.
    pub split: SplitRing,
    /// The guest memory with its buffers.
    pub memory: Arc<MemoryMap>,
    /// Negotiated ring features.
    pub options: RingOptions,
    /// Position in the available ring to begin at.
    pub base: u16,
    /// The eventfd to interrupt the driver.
    pub call: Option<Call>,
    /// The front end's dirty log, during a live migration.
    pub log: Option<RingLog>,
    /// The record of its chains in flight, where the front end keeps one.
    pub inflight: Option<InflightQueue>,
    /// Negotiated offloads of this direction.
    pub offloads: Offloads,
    /// Mergeable receive buffers: a frame may fill several (VIRTIO_NET_F_MRG_RXBUF).
    pub mergeable: bool,
    /// Start conditions.
    pub start: Start,
}

/// A virtqueue that its worker was told to start.
#[derive(Debug)]
pub struct StartingRing {
    port: Arc<Port>,
    key: RingKey,
    worker: u8,
    enabled: bool,
    /// Slot of the virtqueue, and whether the driver has posted a receive buffer; `None` if it does not start.
    started: Receiver<Option<(Slot, bool)>>,
}

impl Network {
    /// Starts a ring of `port`, unless that was removed. Pairs beyond [`MAX_PAIRS`] carry nothing.
    pub fn start_ring(&self, port: &Arc<Port>, parts: RingParts) {
        let present = port.presence();
        if *present {
            port.rings().forget_ended();
            self.finish_starts(self.order_start(port, parts));
        }
    }

    /// Like [`Self::start_ring`], for a port without earlier virtqueues that is not removed, and without waiting for the worker:
    /// [`Self::finish_starts`] does, for the virtqueues of many ports at once (takeover).
    pub fn order_start(&self, port: &Arc<Port>, parts: RingParts) -> Option<StartingRing> {
        let RingParts { key, split, memory, options, base, call, log, inflight, offloads, mergeable, start } = parts;
        if key.pair >= MAX_PAIRS {
            return None;
        }
        let worker = self.worker_of(port.id, key.pair);
        let enabled = start.enabled;
        let started = self.worker(worker).order(move |worker| {
            let mut ring = Ring::new(split, memory, options, base);
            ring.set_call(call);
            ring.set_log(log);
            if let Some(inflight) = inflight {
                worker.note_resubmitted(key.port, inflight.resubmitted());
                ring.track(inflight);
            }
            let slot = match key.direction {
                Direction::Transmit => worker.add_transmit_queue(key, TransmitQueue::new(ring), offloads, start),
                Direction::Receive => worker.add_receive_queue(key, ReceiveQueue::new(ring, offloads, mergeable), start),
            };
            slot.map(|slot| (slot, worker.is_filled(key)))
        });
        Some(StartingRing { port: Arc::clone(port), key, worker, enabled, started })
    }

    /// Waits until virtqueues have started, and every worker has the routes to the receive queues.
    pub fn finish_starts(&self, starting: impl IntoIterator<Item = StartingRing>) {
        let finish = |StartingRing { port, key, worker, enabled, started }| {
            // A worker that has ended starts none.
            let (slot, filled) = await_answer(&started).flatten()?;
            let mut rings = port.rings();
            if filled {
                rings.filled.insert((key, slot));
            }
            rings.running.insert(key, Running { entry: RouteEntry { worker, slot }, enabled });
            // Routes lead to receive queues only.
            (key.direction == Direction::Receive).then(|| self.update_route(&port, &rings))
        };
        let told: Vec<Told> = starting.into_iter().filter_map(finish).collect();
        told.into_iter().for_each(Told::wait);
    }

    /// Starts `backend` at a worker, for a port without virtqueues.
    ///
    /// # Errors
    /// The kernel refuses a descriptor or to watch it, or the port was removed.
    pub fn serve(&self, port: &Arc<Port>, backend: impl Backend) -> std::io::Result<()> {
        self.serve_queue(port, 0, backend)?;
        port.set_state(PortState::Running);
        Ok(())
    }

    /// Starts queue `pair` of a port with several queues and no rings. The caller sets the port's state to running once all its
    /// queues are started.
    ///
    /// # Errors
    /// The errors of [`Self::serve`].
    pub fn serve_queue(&self, port: &Arc<Port>, pair: u16, backend: impl Backend) -> std::io::Result<()> {
        let ends = backend.into_ends(&self.shared.pool)?;
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

    /// Stops a ring of `port`, once nothing of it is in use, even if another thread has stopped it or is just doing so; `None` if it
    /// did not run.
    pub fn stop_ring(&self, port: &Arc<Port>, key: RingKey) -> Option<StoppedRing> {
        let _turn = port.one_stop_at_a_time();
        self.end_ring(port, key).or_else(|| port.recall_stopped(key))
    }

    /// Like [`Self::stop_ring`], with the lock of [`Port::one_stop_at_a_time`] held; `None` if the ring does not run.
    fn end_ring(&self, port: &Arc<Port>, key: RingKey) -> Option<StoppedRing> {
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

    /// Stops all rings of `port` and forgets the MAC addresses learned behind it.
    pub fn stop_port(&self, port: &Arc<Port>) {
        let mut keys: Vec<RingKey> = port.rings().running.keys().copied().collect();
        keys.sort_by_key(|key| (key.pair, key.direction == Direction::Receive));
        for key in keys {
            let _turn = port.one_stop_at_a_time();
            if let Some(stopped) = self.end_ring(port, key) {
                port.remember_stopped(key, stopped);
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
            port.segment.addresses().forget(port.id);
        }
    }

    /// Enables or disables a running ring.
    pub fn set_enabled(&self, port: &Arc<Port>, key: RingKey, enabled: bool) {
        let (worker, told) = {
            let mut rings = port.rings();
            let Some(running) = rings.running.get_mut(&key).filter(|running| running.enabled != enabled) else { return };
            running.enabled = enabled;
            let worker = self.worker(running.entry.worker);
            // The route leads to a ring only while it is enabled: it is added after the ring is enabled, and removed before.
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
    /// The virtqueue does not run: the eventfd is returned, unless it is for the next start of a ring that a fault has stopped.
    pub fn set_call(&self, port: &Port, key: RingKey, call: Option<Call>) -> Result<(), Option<Call>> {
        let Some(running) = port.rings().running.get(&key).copied() else { return port.change_stopped_call(key, call) };
        self.worker(running.entry.worker).ask(move |worker| worker.set_call(key, call));
        Ok(())
    }

    /// Has the writes of a running ring marked in `log` from now on, or in none. No ring of `port` that is being stopped uses an
    /// earlier log when this returns.
    pub fn set_log(&self, port: &Port, key: RingKey, log: Option<RingLog>) {
        let _turn = port.one_stop_at_a_time();
        let Some(running) = port.rings().running.get(&key).copied() else { return };
        self.worker(running.entry.worker).ask(move |worker| worker.set_log(key, log));
    }

    /// Moves a running ring to other memory, in which it lies at `split`.
    pub fn set_memory(&self, port: &Port, key: RingKey, split: SplitRing, memory: Arc<MemoryMap>) {
        let Some(running) = port.rings().running.get(&key).copied() else { return };
        self.worker(running.entry.worker).ask_later(move |worker, reply| worker.set_memory(key, split, memory, reply));
    }

    /// Spreads receive frames over the first `pairs` queue pairs of `port` only, as its driver requested through the control queue.
    pub fn set_active_pairs(&self, port: &Arc<Port>, pairs: u16) {
        let told = {
            let mut rings = port.rings();
            // Without a queue there is no route.
            if rings.active_pairs.replace(pairs) == Some(pairs) || rings.running.is_empty() {
                return;
            }
            self.update_route(port, &rings)
        };
        told.wait();
    }

    /// The driver of `port` has posted a first buffer to its receive queue `key` at `slot`: frames may go there. It may not be
    /// entered as running yet.
    pub(super) fn note_filled(&self, port: &Arc<Port>, key: RingKey, slot: Slot) {
        let told = {
            let mut rings = port.rings();
            rings.filled.insert((key, slot));
            self.update_route(port, &rings)
        };
        told.wait();
    }

    /// Enables or disables `port`: a disabled port's frames stay in its transmit queues, and frames to it are dropped.
    pub fn set_port_enabled(&self, port: &Arc<Port>, enabled: bool) {
        port.set_enabled(enabled);
        let (port_name, by) = (port.name.clone(), author::current());
        let event = match enabled {
            true => NetworkEvent::PortEnabled { port: port_name, by },
            false => NetworkEvent::PortDisabled { port: port_name, by },
        };
        note(&self.shared.journal, event);
        port.policy.transmit.set_shut(!enabled);
        self.have_all_look();
        let told = self.update_route(port, &port.rings());
        told.wait();
    }

    /// The virtqueues of `port` that run, by number: receive queues after transmit queues.
    pub fn queue_views(&self, port: &Port) -> Vec<QueueView> {
        let id = port.id;
        let asked: Vec<_> = self.workers.iter().map(|worker| worker.order(move |worker| worker.queue_views(id))).collect();
        let mut views: Vec<QueueView> = asked.into_iter().filter_map(|answer| await_answer(&answer)).flatten().collect();
        views.sort_by_key(|view| (view.is_receive(), view.key.pair));
        views
    }

    /// The transmit queues that are blocked at this moment, by number. Each worker wakes once for it; one that does not answer within
    /// `timeout` is left out.
    pub fn blocked(&self, timeout: Duration) -> Vec<(RingKey, QueueBlock)> {
        let deadline = Instant::now() + timeout;
        let asked: Vec<_> = self.workers.iter().map(|worker| worker.order(Worker::blocked)).collect();
        let answer = |answer: Receiver<_>| answer.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        let mut blocked: Vec<_> = asked.into_iter().filter_map(answer).flatten().collect();
        blocked.sort_by_key(|(key, _)| (key.port.0, key.pair));
        blocked
    }

    /// Waits until no frame of `port` is in flight, for at most the given timeout; true if so. It should be disabled before.
    pub fn await_drained(&self, port: &Port, timeout: Duration) -> bool {
        let (id, deadline) = (port.id, Instant::now() + timeout);
        loop {
            let busy = self.workers.iter().any(|worker| worker.ask(move |worker| worker.has_under_way(id)).unwrap_or(false));
            if !busy || Instant::now() >= deadline {
                return !busy;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Tells every worker the receive queues of `port`. Commands that are sent under the lock of its `rings` arrive in that order;
    /// their completion is to be awaited without the lock, so that a slow worker holds up only the thread that waits for it.
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
