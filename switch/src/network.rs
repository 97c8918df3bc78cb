//! The network: workers, the ports that they serve, and where each ring is served.
//!
//! The control side lives here: it starts and stops rings at workers, keeps the **routes** that tell every worker where a port's frames
//! are delivered, and puts ports in quarantine. The data path does not come here.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::config::check::MAX_PORTS;
use crate::frame::MacAddress;
use crate::link::Impairment;
use crate::memory::MemoryMap;
use crate::offload::Offloads;
use crate::policy::Allowance;
use crate::port::end::Ends;
use crate::port::vhost_user::MAX_PAIRS;
use crate::port::{PortId, PortStatus, State};
use crate::ring::{Call, Delivery, Intake, Ring, RingOptions, SplitRing};
use crate::worker::{Direction, Event, Mailbox, Place, RingKey, Shared, Start, Worker, WorkerHandle, links};

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

/// A running ring.
#[derive(Clone, Copy, Debug)]
struct Running {
    place: Place,
    enabled: bool,
}

#[derive(Debug, Default)]
struct Rings {
    running: HashMap<RingKey, Running>,
    /// Queue pairs that each driver asked for through a control queue; else all that are enabled count.
    active_pairs: HashMap<PortId, u16>,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    ports: Vec<Arc<PortStatus>>,
    rings: Mutex<Rings>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Network {
    /// Starts `workers` workers, pinned to `cpus` in turn (not at all if there are none), for `ports`.
    ///
    /// # Errors
    /// The kernel refuses a thread or descriptor.
    pub fn start(shared: Shared, ports: Vec<Arc<PortStatus>>, workers: usize, cpus: &[usize]) -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(shared);
        let mailboxes = (0..workers).map(|_| Mailbox::new()).collect::<Result<Vec<_>, _>>()?;
        let (events, event_queue) = channel();
        let mut threads = Vec::new();
        for (index, links) in links(&mailboxes).into_iter().enumerate() {
            let worker = Worker::new(index as u8, Arc::clone(&shared), Arc::clone(&mailboxes[index]), links, events.clone())?;
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            threads.push(std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                if let Some(cpu) = cpu {
                    pin(cpu);
                }
                worker.run();
            })?);
        }
        let workers = mailboxes.into_iter().map(WorkerHandle::new).collect();
        let network = Arc::new(Self { shared, workers, ports, rings: Mutex::default(), threads: Mutex::new(threads) });
        network.start_warden(event_queue)?;
        Ok(network)
    }

    /// The warden acts on what workers report. It ends with the workers.
    fn start_warden(self: &Arc<Self>, events: Receiver<Event>) -> std::io::Result<()> {
        let network = Arc::downgrade(self);
        std::thread::Builder::new().name("warden".into()).stack_size(128 * 1024).spawn(move || {
            for event in events {
                let Some(network) = network.upgrade() else { return };
                network.act(event);
            }
        })?;
        Ok(())
    }

    fn act(&self, event: Event) {
        match event {
            Event::RingFault(port, session, fault) if session == self.port(port).session() => {
                self.quarantine(port, &fault.to_string())
            }
            // Whoever broke that ring is gone; the next front end is not to pay for it.
            Event::RingFault(..) => {}
            Event::Tick(second) => self.shared.tables.iter().for_each(|table| table.expire(second, self.shared.settings.age)),
            Event::MemoryLost => {
                let lost: Vec<PortId> = self
                    .ports
                    .iter()
                    .filter(|port| port.memory().is_some_and(|memory| memory.is_lost()))
                    .map(|port| port.id)
                    .collect();
                for port in lost {
                    self.quarantine(port, "the guest truncated its memory file");
                }
            }
        }
    }

    /// Stops every ring of a port for the reason `cause`; it stays so until its front end sets it up anew.
    pub fn quarantine(&self, port: PortId, cause: &str) {
        self.stop_port(port);
        self.port(port).set_state(State::Quarantined(cause.into()));
    }

    /// What the control side knows of `port`.
    pub fn port(&self, port: PortId) -> &Arc<PortStatus> {
        &self.ports[port.index()]
    }

    /// All ports.
    pub fn ports(&self) -> &[Arc<PortStatus>] {
        &self.ports
    }

    /// Counters, tables and settings.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker that serves pair `pair` of `port`: both rings of a pair lie with one worker.
    fn worker_of(&self, port: PortId, pair: u16) -> u8 {
        ((port.index() + usize::from(pair)) % self.workers.len()) as u8
    }

    fn worker(&self, index: u8) -> &WorkerHandle {
        &self.workers[usize::from(index)]
    }

    /// Starts a ring. Pairs beyond those that a port may have carry nothing.
    pub fn start_ring(&self, parts: RingParts) {
        let RingParts { key, split, memory, options, base, call, offloads, mergeable, start } = parts;
        if key.pair >= MAX_PAIRS {
            return;
        }
        let worker = self.worker_of(key.port, key.pair);
        let enabled = start.enabled;
        let slot = self.worker(worker).ask(move |worker| {
            let mut ring = Ring::new(split, memory, options, base);
            ring.set_call(call);
            match key.direction {
                Direction::Intake => worker.add_intake(key, Intake::new(ring), offloads, start),
                Direction::Delivery => worker.add_delivery(key, Delivery::new(ring, offloads, mergeable), start),
            }
        });
        let Some(slot) = slot else { return };
        let told = {
            let mut rings = self.rings();
            rings.running.insert(key, Running { place: Place { worker, slot }, enabled });
            self.update_route(&rings, key.port)
        };
        told.wait();
    }

    /// Starts a port that has no rings.
    ///
    /// # Errors
    /// The kernel refuses to watch its ends.
    pub fn start_ends(&self, port: PortId, ends: Ends) -> std::io::Result<()> {
        let worker = self.worker_of(port, 0);
        let session = self.port(port).session();
        let gone = || std::io::Error::other("the worker is gone");
        let slot = self.worker(worker).ask(move |worker| worker.add_ends(port, session, ends)).ok_or_else(gone)??;
        let told = {
            let mut rings = self.rings();
            for direction in [Direction::Intake, Direction::Delivery] {
                let running = Running { place: Place { worker, slot }, enabled: true };
                rings.running.insert(RingKey { port, pair: 0, direction }, running);
            }
            self.update_route(&rings, port)
        };
        told.wait();
        self.port(port).set_state(State::Running);
        Ok(())
    }

    /// Stops a ring and returns its base, once nothing of it is in use, be it that somebody else has stopped it or is just doing so; `None`
    /// if it did not run.
    pub fn stop_ring(&self, key: RingKey) -> Option<u16> {
        let port = self.port(key.port);
        let _turn = port.one_stop_at_a_time();
        self.drain(key).or_else(|| port.recall_base(key))
    }

    /// As [`Self::stop_ring`], by whoever has the port's turn to stop; `None` if the ring does not run.
    fn drain(&self, key: RingKey) -> Option<u16> {
        let (running, told) = {
            let mut rings = self.rings();
            let running = rings.running.remove(&key)?;
            (running, self.update_route(&rings, key.port))
        };
        told.wait();
        let worker = self.worker(running.place.worker);
        match key.direction {
            Direction::Intake => worker.ask_later(move |worker, reply| worker.stop_intake(key, reply)),
            Direction::Delivery => worker.ask(move |worker| worker.stop_delivery(key)).flatten(),
        }
    }

    /// Stops all rings of `port` and forgets who is behind it.
    pub fn stop_port(&self, port: PortId) {
        let keys: Vec<RingKey> = self.rings().running.keys().filter(|key| key.port == port).copied().collect();
        let status = self.port(port);
        for key in keys {
            let _turn = status.one_stop_at_a_time();
            if let Some(base) = self.drain(key) {
                status.remember_base(key, base);
            }
        }
        self.rings().active_pairs.remove(&port);
        self.shared.tables[self.shared.segment_of[port.index()]].forget(port);
    }

    /// Enables or disables a running ring.
    pub fn set_enabled(&self, key: RingKey, enabled: bool) {
        let (worker, told) = {
            let mut rings = self.rings();
            let Some(running) = rings.running.get_mut(&key).filter(|running| running.enabled != enabled) else { return };
            running.enabled = enabled;
            let worker = self.worker(running.place.worker);
            // Nobody sends to a ring before it is enabled, or after it is disabled.
            (worker, if enabled { Told::default() } else { self.update_route(&rings, key.port) })
        };
        told.wait();
        worker.ask(move |worker| worker.set_enabled(key, enabled));
        if enabled {
            let told = self.update_route(&self.rings(), key.port);
            told.wait();
        }
    }

    /// Changes how the driver of a running ring is interrupted; gives the call back if it does not run.
    pub fn set_call(&self, key: RingKey, call: Option<Call>) -> Result<(), Option<Call>> {
        let Some(running) = self.rings().running.get(&key).copied() else { return Err(call) };
        self.worker(running.place.worker).ask(move |worker| worker.set_call(key, call));
        Ok(())
    }

    /// Moves a running ring to other memory, in which it lies at `split`.
    pub fn set_memory(&self, key: RingKey, split: SplitRing, memory: Arc<MemoryMap>) {
        let Some(running) = self.rings().running.get(&key).copied() else { return };
        self.worker(running.place.worker).ask_later(move |worker, reply| worker.set_memory(key, split, memory, reply));
    }

    /// True if the ring runs.
    pub fn is_running(&self, key: RingKey) -> bool {
        self.rings().running.contains_key(&key)
    }

    /// Delivers to the first `pairs` pairs of `port` only, as its driver asked through the control queue.
    pub fn set_active_pairs(&self, port: PortId, pairs: u16) {
        let told = {
            let mut rings = self.rings();
            if rings.active_pairs.insert(port, pairs) == Some(pairs) {
                return;
            }
            self.update_route(&rings, port)
        };
        told.wait();
    }

    /// Allows `port` what `allowance` says from now on.
    pub fn set_allowance(&self, port: PortId, allowance: &Allowance) {
        self.shared.policies[port.index()].set(allowance);
        self.port(port).set_allowance(allowance.clone());
        // Whoever sleeps until an old limit opens looks again.
        self.workers.iter().for_each(|worker| worker.tell(|_| {}));
    }

    /// Frames to `port` go through `link` from now on; those under way arrive when they would have.
    pub fn set_link(&self, port: PortId, link: Option<Impairment>) {
        self.shared.set_path(port, (&link).into());
        self.port(port).set_link(link);
        self.workers.iter().for_each(|worker| worker.tell(move |worker| worker.follow_path(port)));
    }

    /// Tells every worker where frames for `port` go now. What is told under the lock of `rings` comes in its order; whether all know is
    /// to be waited for without it, so that a worker that takes long holds up only who waits for it.
    fn update_route(&self, rings: &Rings, port: PortId) -> Told {
        let most = rings.active_pairs.get(&port).copied().unwrap_or(u16::MAX);
        let mut pairs: Vec<(u16, Place)> = rings
            .running
            .iter()
            .filter(|(key, ring)| key.port == port && key.direction == Direction::Delivery && ring.enabled && key.pair < most)
            .map(|(key, ring)| (key.pair, ring.place))
            .collect();
        pairs.sort_by_key(|&(pair, _)| pair);
        let places: Vec<Place> = pairs.into_iter().map(|(_, place)| place).collect();
        let tell = |worker: &WorkerHandle| {
            let places = places.clone();
            worker.order(move |worker| worker.set_route(port, places))
        };
        Told(self.workers.iter().map(tell).collect())
    }

    /// Announces on the segment of `port` that `address` is behind it, if it may be, and returns when all workers have: so there is never more
    /// than one announcement of a port under way. What limits its floods limits these.
    pub fn announce(&self, port: PortId, address: MacAddress) {
        let may = self.worker(self.worker_of(port, 0)).ask(move |worker| worker.may_announce(port, address));
        if may != Some(true) {
            return;
        }
        let frame = rarp(address);
        Told(self.workers.iter().map(|worker| worker.order(move |worker| worker.inject(port, &frame))).collect()).wait();
    }

    /// Stops all ports, then the workers.
    pub fn shut_down(&self) {
        for port in &self.ports {
            self.stop_port(port.id);
            port.set_state(State::Gone);
        }
        for worker in &self.workers {
            worker.tell(Worker::quit);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker that panicked has said so on standard error; the others still end.
            let _ = thread.join();
        }
    }
}

/// What workers were told; they answer when they know.
#[must_use]
#[derive(Debug, Default)]
struct Told(Vec<Receiver<()>>);

impl Told {
    fn wait(self) {
        for answer in self.0 {
            // A worker that is gone knows nothing any more.
            let _ = answer.recv();
        }
    }
}

/// A reverse ARP request for oneself (RFC 903), padded to the shortest Ethernet frame.
fn rarp(address: MacAddress) -> [u8; 60] {
    let (mut frame, address) = ([0; 60], address.bytes());
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&address);
    // Type RARP; Ethernet and IPv4 addresses of 6 and 4 bytes; operation 3, request.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&address);
    frame[32..38].copy_from_slice(&address);
    frame
}

// A worker counts its slots in 16 bits, and there may be but one.
const _: () = assert!(MAX_PORTS * MAX_PAIRS as usize <= 1 << 16);

/// Ties the calling thread to `cpu`; where the kernel refuses, it runs where it may.
fn pin(cpu: usize) {
    // SAFETY: the set is plain data and outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::default_address;
    use crate::settings::Settings;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    /// A worker that does not answer holds up who waits for it, and nobody else.
    #[test]
    fn rings_of_others_can_be_asked_for_while_a_worker_is_busy() {
        let ports = (0..2).map(|n| crate::port::PortStatus::new(PortId(n), "a", Allowance::default())).collect();
        let network = Network::start(Shared::new(1, vec![0, 0], 7, Settings::default()), ports, 1, &[]).unwrap();
        let (go_on, held) = channel::<()>();
        network.workers[0].tell(move |_| held.recv().unwrap_or_default());
        let waits = Arc::clone(&network);
        let (tell, done) = channel();
        std::thread::spawn(move || {
            waits.set_active_pairs(PortId(0), 1);
            tell.send(()).unwrap();
        });
        let others = Arc::clone(&network);
        let (tell_other, other_done) = channel();
        std::thread::spawn(move || {
            // Once the first is on its way.
            while others.rings.try_lock().is_ok_and(|rings| rings.active_pairs.is_empty()) {
                std::thread::yield_now();
            }
            others.is_running(RingKey { port: PortId(1), pair: 0, direction: Direction::Intake });
            tell_other.send(()).unwrap();
        });
        assert_eq!(other_done.recv_timeout(Duration::from_secs(10)), Ok(()));
        assert_eq!(done.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        drop(go_on);
        assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(()));
        network.shut_down();
    }

    #[test]
    fn an_announcement_says_who_and_nothing_else() {
        let address = default_address("net", "port");
        let frame = rarp(address);
        assert_eq!((&frame[..6], &frame[6..12]), (&[0xff; 6][..], &address.bytes()[..]));
        assert_eq!((&frame[22..28], &frame[32..38], &frame[38..]), (&address.bytes()[..], &address.bytes()[..], &[0; 22][..]));
    }
}
