//! The network: workers, the ports that they serve, and the worker of each virtqueue.
//!
//! The module is the control side: the data path does not come here.
//!
//! 1. [`registry`]: the port registry, which adds and removes ports, and broadcast domains with them.
//! 2. [`rings`]: virtqueues of ports start and stop at workers, and the **routes** tell every worker the receive queues of a port.
//! 3. [`payer`]: guests' memory that is charged to the switch.
//! 4. The **fault handler** acts on the events of workers: it quarantines ports after ring faults, ages FDB entries out, and warns
//!    of [`loops`].
//! 5. [`captures`]: copies of frames for the readers of packet captures.
//! 6. [`standstill`]: the data path stops for a takeover by another process.
//! 7. [`freeze`]: no frame moves, for a snapshot.
//! 8. [`mod@filter`]: policy rules between ports.
//! 9. [`snooping`]: multicast groups, and their querier.
//! 10. [`why`]: forecasts of a frame's outcome.
//! 11. [`recordings`]: verdicts that can be made again.
//! 12. [`fatal`]: a panic of a worker or of the fault handler ends the network.

#![expect(clippy::indexing_slicing, reason = "a worker's number, and a frame of fixed length")]

mod captures;
pub mod fatal;
mod filter;
mod freeze;
mod loops;
mod notices;
mod payer;
mod recordings;
mod registry;
mod rings;
mod snooping;
mod standstill;
mod why;

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub use captures::{Capture, TooManyCaptures};
use fatal::Fatal;
use memlane_model::denials::PortDenials;
pub use memlane_model::loop_report::LoopReport;
use payer::Payer;
pub use recordings::{Place, RecorderRefused, Records, WorkerRecords};
use registry::PortRegistry;
pub use registry::{AddError, AttachSettings};
pub use rings::{RingParts, StartingRing};
pub use snooping::SegmentGroups;
use snooping::SnoopedSegments;
pub use standstill::Standstill;

use crate::acknowledged;
use crate::descriptors;
use crate::driven::await_answer;
use crate::frame::MacAddress;
use crate::held::Frozen;
use crate::host_memory::HostMemory;
use crate::id::{MAX_PAIRS, MAX_PORTS, PortId};
use crate::link::Impairment;
use crate::policy::PortLimits;
use crate::policy::rulebook::Rulebook;
use crate::port::settings::PortSettings;
use crate::port::{Port, PortState};
use crate::record::Recording;
use crate::shared::Shared;
use crate::tap::Follower;
use crate::time::cycles;
use crate::watchdog;
use crate::worker::{Event, Mailbox, Quit, Worker, WorkerHandle, links};

/// Least time between two searches for first drops.
const LOOK: Duration = Duration::from_millis(500);

/// A network, its workers, their events, and the signal to check guests' memory.
type Made = (Arc<Network>, Vec<Worker>, Receiver<Event>, Receiver<()>);

/// See the module.
#[derive(Debug)]
pub struct Network {
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    registry: RwLock<PortRegistry>,
    /// Held while a port is added or removed.
    changing: Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    fatal: Arc<Fatal>,
    payer: Payer,
    /// The captures that run, by their numbers.
    captures: Mutex<Vec<(u64, Follower)>>,
    /// The recording that runs.
    recorder: Mutex<Option<Arc<Recording>>>,
    /// When first drops were last looked for; 0 before the first time.
    looked: AtomicU64,
    started: Instant,
    /// Segments with multicast snooping.
    snooping: Mutex<SnoopedSegments>,
    /// The policy rules of ports. A thread that changes them holds `changing`.
    rulebook: Mutex<Rulebook>,
    /// The number and the result, by ports, of the trial of policy rules before the present one.
    former_trial: Mutex<Option<(u64, Vec<PortDenials>)>>,
    /// Held while the network freezes or goes on.
    freezing: Mutex<()>,
    /// The freeze, while the network is frozen.
    frozen: Mutex<Option<Frozen>>,
}

impl Network {
    /// Starts the workers for which `shared` has counters, pinned to `cpus` in turn (CPU affinity; not pinned if there are none).
    /// There are no ports yet.
    ///
    /// # Errors
    /// The kernel refuses a thread or descriptor.
    pub fn start(shared: Shared, cpus: &[usize]) -> std::io::Result<Arc<Self>> {
        Self::start_on(shared, cpus, HostMemory::of_this_process().clone())
    }

    fn start_on(shared: Shared, cpus: &[usize], host: HostMemory) -> std::io::Result<Arc<Self>> {
        // A worker's first interrupt would start it else, too late to report an error.
        watchdog::start()?;
        let (network, workers, events, rung) = Self::made_on(shared, host)?;
        let started = network
            .start_threads(workers, cpus)
            .and_then(|()| network.start_payer(rung))
            .and_then(|()| network.start_fault_handler(events));
        if started.is_err() {
            network.shut_down();
        }
        started.map(|()| network)
    }

    /// A network with workers that the caller drives by [`Worker::step`], and their events. For fuzzers.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn unstarted(shared: Shared) -> std::io::Result<(Arc<Self>, Vec<Worker>, Receiver<Event>)> {
        let (network, workers, events, _) = Self::made_on(shared, HostMemory::of_this_process().clone())?;
        Ok((network, workers, events))
    }

    fn made_on(shared: Shared, host: HostMemory) -> std::io::Result<Made> {
        let shared = Arc::new(shared);
        let mailboxes = (0..shared.workers.len()).map(|_| Mailbox::new()).collect::<Result<Vec<_>, _>>()?;
        let (events, event_queue) = channel();
        let ways = links(&mailboxes).into_iter().zip(&mailboxes).enumerate();
        let worker = |(index, (links, mailbox)): (usize, (_, &Arc<Mailbox>))| {
            Worker::new(index as u8, Arc::clone(&shared), Arc::clone(mailbox), links, events.clone())
        };
        let workers = ways.map(worker).collect::<Result<Vec<_>, _>>()?;
        let (payer, rung) = Payer::new(host);
        let network = Self {
            shared: Arc::clone(&shared),
            workers: mailboxes.into_iter().map(WorkerHandle::new).collect(),
            registry: RwLock::default(),
            changing: Mutex::default(),
            rulebook: Mutex::default(),
            former_trial: Mutex::default(),
            freezing: Mutex::default(),
            frozen: Mutex::default(),
            threads: Mutex::default(),
            payer,
            fatal: Arc::default(),
            captures: Mutex::default(),
            recorder: Mutex::default(),
            looked: AtomicU64::new(0),
            started: Instant::now(),
            snooping: Mutex::default(),
        };
        Ok((Arc::new(network), workers, event_queue, rung))
    }

    /// A worker that ends answers no commands any more, and one that panics ends all the others with it: their frames in flight at
    /// it are never completed.
    fn start_threads(&self, workers: Vec<Worker>, cpus: &[usize]) -> std::io::Result<()> {
        for (index, mut worker) in workers.into_iter().enumerate() {
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            let (fatal, all) = (Arc::clone(&self.fatal), self.workers.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                if let Some(cpu) = cpu {
                    pin(cpu);
                }
                let quit = fatal.guard(&format!("worker {index}"), || worker.run());
                worker.leave_records();
                if quit == Some(Quit::Told) && fatal.cause().is_none() {
                    all[index].close();
                } else {
                    worker.abandon();
                    all.iter().for_each(WorkerHandle::close);
                }
            })?;
            self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(())
    }

    fn start_payer(self: &Arc<Self>, rung: Receiver<()>) -> std::io::Result<()> {
        let (network, fatal) = (Arc::downgrade(self), Arc::clone(&self.fatal));
        let watch = move || fatal.guard("the watch over guests' memory", || payer::run(&network, &rung)).unwrap_or_default();
        std::thread::Builder::new().name("guest-memory".into()).stack_size(256 * 1024).spawn(watch)?;
        Ok(())
    }

    /// The fault handler acts on the events of workers. It ends with the workers, and they with it.
    fn start_fault_handler(self: &Arc<Self>, events: Receiver<Event>) -> std::io::Result<()> {
        let (network, fatal, workers) = (Arc::downgrade(self), Arc::clone(&self.fatal), self.workers.clone());
        std::thread::Builder::new().name("fault-handler".into()).stack_size(128 * 1024).spawn(move || {
            let act = || {
                for event in events {
                    let Some(network) = network.upgrade() else { return };
                    network.act(event);
                }
            };
            fatal.guard("the fault handler", act);
            workers.iter().for_each(WorkerHandle::close);
        })?;
        Ok(())
    }

    /// Whether the network has ended without a command, and why.
    pub fn fatal(&self) -> &Arc<Fatal> {
        &self.fatal
    }

    /// Acts on an event of a worker: the fault handler does, or the driver of an unstarted network.
    pub fn act(&self, event: Event) {
        match event {
            Event::RingFault(port, session, fault) if session == port.session() => self.quarantine(&port, &fault.to_string()),
            // The session with the faulty ring is over; the next front end is not at fault.
            Event::RingFault(..) => {}
            Event::Filled(port, session, key, slot) if session == port.session() => self.note_filled(&port, key, slot),
            Event::Filled(..) => {}
            Event::Second => {
                self.payer.request();
                self.look_for_notices(cycles());
            }
            Event::Tick(second) => {
                for segment in self.segments() {
                    segment.table().expire(second, self.shared.settings.age);
                    segment.addresses().expire(second);
                }
            }
            Event::Flapped(id) => self.warn_of_loop(id),
            Event::MemoryLost => {
                for port in self.ports() {
                    if let Some(loss) = port.memory_loss() {
                        self.quarantine(&port, &loss);
                    }
                }
            }
        }
    }

    /// Stops every ring of a port for the reason `cause`; it stays so until its front end sets it up again.
    pub fn quarantine(&self, port: &Arc<Port>, cause: &str) {
        self.stop_port(port);
        port.set_state(PortState::Quarantined(cause.into()));
    }

    /// Reports to the operator that the front end of `port` was disconnected because descriptors ran out.
    pub fn note_shortage(&self, port: &Port) {
        self.shared.descriptors.note_shortage(&port.name);
        port.set_advice(Some(descriptors::ADVICE));
    }

    /// The present second, as workers count seconds.
    pub fn second(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// State that workers and ports share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The worker that serves queue pair `pair` of `port`: both virtqueues of a pair belong to one worker.
    fn worker_of(&self, port: PortId, pair: u16) -> u8 {
        ((port.index() + usize::from(pair)) % self.workers.len()) as u8
    }

    fn worker(&self, index: u8) -> &WorkerHandle {
        &self.workers[usize::from(index)]
    }

    /// Has worker `index` run `command`; the result comes later, or never if the worker has ended. For tests and models.
    pub fn order<R: Send + 'static>(&self, index: u8, command: impl FnOnce(&mut Worker) -> R + Send + 'static) -> Receiver<R> {
        self.worker(index).order(command)
    }

    /// Makes the settings of `port`, which are `before`, those of `after`; the caller sets the offer.
    ///
    /// # Errors
    /// [`AddError::AddressTaken`]; nothing has changed then.
    pub fn change_port(&self, port: &Arc<Port>, before: &PortSettings, after: &PortSettings) -> Result<(), AddError> {
        if after.mac != before.mac {
            self.set_address(port, after.mac)?;
        }
        if after.limits != before.limits {
            self.set_limits(port, &after.limits);
        }
        if after.mac != before.mac || after.limits != before.limits {
            registry::configure_addresses(port, after);
        }
        if after.limits.groups != before.limits.groups {
            let _alone = self.alone();
            if self.has(port) {
                self.enter_filter(port);
            }
        }
        if after.link != before.link {
            self.set_link(port, after.link.clone());
        }
        if after.enabled != before.enabled {
            self.set_port_enabled(port, after.enabled);
        }
        Ok(())
    }

    /// Sets the limits of `port`.
    pub fn set_limits(&self, port: &Port, limits: &PortLimits) {
        let gate = || (port.policy.gate().isolated, port.policy.gate().drops_reserved);
        let before = gate();
        port.policy.set(limits);
        if port.policy.gate().is_restricted() {
            port.segment.set_gated();
        }
        match gate() == before {
            true => self.have_all_look(),
            // Workers keep verdicts of other ports on frames to this one, too.
            false => self.workers.iter().for_each(|worker| worker.tell(Worker::forget_verdicts)),
        }
    }

    /// Wakes all workers, so that a worker that sleeps until an old rate limit opens applies the new one.
    fn have_all_look(&self) {
        self.workers.iter().for_each(|worker| worker.tell(|_| {}));
    }

    /// Sets the link emulation of frames to `port`; those in flight arrive as before.
    pub fn set_link(&self, port: &Port, link: Option<Impairment>) {
        port.set_path((&link).into());
        port.set_link(link);
        let id = port.id;
        self.workers.iter().for_each(|worker| worker.tell(move |worker| worker.follow_path(id)));
    }

    /// Announces in the broadcast domain of `port` that `address` is behind it, if it may be, and returns when all workers have
    /// done so: so there is never more than one announcement of a port in flight. Its flood limits apply. In a frozen network the
    /// address is learned, and no guest gets a frame.
    pub fn announce(&self, port: &Arc<Port>, address: MacAddress) {
        let (announced, address) = (Arc::clone(port), port.outside(address));
        let may = self.worker(self.worker_of(port.id, 0)).ask(move |worker| worker.learn_announced(&announced, address));
        if may != Some(true) || self.frozen_for().is_some() {
            return;
        }
        let frame = rarp(address);
        self.tell_all(|| {
            let port = Arc::clone(port);
            move |worker: &mut Worker| worker.inject(&port, &frame)
        })
        .wait();
    }

    /// Has every worker run the command that `order` makes for it.
    fn tell_all<C: FnOnce(&mut Worker) + Send + 'static>(&self, order: impl Fn() -> C) -> Told {
        Told(self.workers.iter().map(|worker| worker.order(order())).collect())
    }

    /// Runs `action` once every worker has run a command: none still takes a frame by what was published before this call.
    pub fn when_all_have_looked(&self, action: impl FnOnce() + Send + 'static) {
        acknowledged::when_all(self.workers.iter(), |worker, command| worker.tell(move |_| command()), action);
    }

    /// Stops all ports, then the workers.
    pub fn shut_down(&self) {
        for port in self.ports() {
            self.stop_port(&port);
            port.set_state(PortState::Gone);
        }
        self.end_querier();
        for worker in &self.workers {
            worker.tell(Worker::quit);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The message of a panic has been logged, see `fatal`.
            let _ = thread.join();
        }
    }
}

/// Commands that workers were sent; they answer when they have run them.
#[must_use]
#[derive(Debug, Default)]
struct Told(Vec<Receiver<()>>);

impl Told {
    fn wait(self) {
        for answer in self.0 {
            // A worker that has ended runs no commands.
            let _ = await_answer(&answer);
        }
    }
}

/// A reverse ARP request for the sender's own address (RFC 903), padded to the minimum Ethernet frame.
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

// A worker counts its slots in 16 bits.
const _: () = assert!(MAX_PORTS * MAX_PAIRS as usize <= 1 << 16);

/// Pins the calling thread to `cpu`; if the kernel refuses, it runs on any CPU.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if let Err(cause) = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        tracing::warn!(cpu, %cause, "a worker cannot be pinned to this CPU, so it runs on any: a cpuset or container does not allow the CPU");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Direction, RingKey, RouteEntry, Slot};
    use crate::port::rings::Running;
    use crate::port::{Offer, default_address};
    use crate::settings::Settings;
    use crate::stats::DropReason;
    use crate::time::in_cycles;
    use std::sync::mpsc::RecvTimeoutError;

    fn network() -> Arc<Network> {
        Network::start(Shared::new(1, 7, Settings::default()), &[]).unwrap()
    }

    pub(super) fn add(network: &Network, name: &str, mac: Option<MacAddress>) -> Result<Arc<Port>, AddError> {
        let settings = PortSettings { mac, ..PortSettings::default() };
        network.add_port(&AttachSettings { name, segment: "lan", settings: &settings, offer: Offer::default() }, 2)
    }

    #[test]
    fn first_drops_are_looked_for_at_times_however_many_workers_ask() {
        let network = network();
        let port = add(&network, "a", None).unwrap();
        let mut reader = network.shared.journal.reader(memlane_observe::events::From::Now);
        let drop_for = |reason| port.counters(0).drop_frames(reason, 1);
        let (begin, half) = (cycles(), in_cycles(LOOK));
        drop_for(DropReason::Storm);
        network.look_for_notices(begin);
        assert_eq!(reader.take(9).records.len(), 1);
        drop_for(DropReason::Loop);
        network.look_for_notices(begin + half / 2);
        assert_eq!(reader.take(9).records.len(), 0);
        network.look_for_notices(begin + half + 1);
        assert_eq!(reader.take(9).records.len(), 1);
        network.shut_down();
    }

    /// A worker that does not answer holds up only the thread that waits for it.
    #[test]
    fn rings_can_be_asked_for_while_a_worker_is_busy() {
        let network = network();
        let port = add(&network, "a", None).unwrap();
        // Without a queue no worker is told.
        let key = RingKey { port: port.id, pair: 0, direction: Direction::Receive };
        port.rings().running.insert(key, Running { entry: RouteEntry { worker: 0, slot: Slot::default() }, enabled: true });
        let (go_on, held) = channel::<()>();
        network.workers[0].tell(move |_| held.recv().unwrap_or_default());
        let (waits, its) = (Arc::clone(&network), Arc::clone(&port));
        let (tell, done) = channel();
        std::thread::spawn(move || {
            waits.set_active_pairs(&its, 1);
            tell.send(()).unwrap();
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        while port.rings().active_pairs.is_none() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert_eq!(done.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        drop(go_on);
        assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(()));
        port.rings().running.clear();
        network.shut_down();
    }

    /// Workers look receivers up in the forwarding table: while one of them does not know a port, no address leads there.
    #[test]
    fn an_address_leads_to_a_port_only_once_every_worker_knows_the_port() {
        let network = Network::start(Shared::new(2, 7, Settings::default()), &[]).unwrap();
        // The segment is there, and has room for its next member.
        let first = add(&network, "a", None).unwrap();
        let (go_on, held) = channel::<()>();
        network.workers[1].tell(move |_| held.recv().unwrap_or_default());
        let address = default_address("net", "b");
        let (come, table) = (Arc::clone(&network), first.segment.table());
        let comes = std::thread::spawn(move || add(&come, "b", Some(address)).unwrap());
        let deadline = Instant::now() + Duration::from_secs(10);
        // The port joins its segment before the workers are told of it.
        while first.segment.members().len() < 2 {
            assert!(Instant::now() < deadline, "the port does not join");
            std::thread::yield_now();
        }
        assert_eq!(table.find(address), None);
        drop(go_on);
        let port = comes.join().unwrap();
        assert_eq!(table.find(address), Some(port.id));
        network.shut_down();
    }

    #[test]
    fn names_and_addresses_belong_to_one_port_until_it_goes() {
        let network = network();
        let address = default_address("net", "a");
        let a = add(&network, "a", Some(address)).unwrap();
        assert_eq!(add(&network, "a", None).unwrap_err(), AddError::NameTaken("a".into()));
        assert_eq!(add(&network, "b", Some(address)).unwrap_err(), AddError::AddressTaken { address, port: "a".into() });
        let b = add(&network, "b", None).unwrap();
        assert!(network.set_address(&b, Some(address)).is_err());
        network.remove_port(&a);
        assert!(network.find("a").is_none() && network.port(a.id).is_none());
        network.set_address(&b, Some(address)).unwrap();
        let late = default_address("net", "late");
        network.set_address(&a, Some(late)).unwrap();
        assert_eq!(b.segment.table().find(late), None, "no address is tied to a number that was given back");
        let again = add(&network, "a", None).unwrap();
        assert_eq!(again.id, a.id, "numbers are used again");
        network.remove_port(&a);
        assert!(network.find("a").is_some(), "who is gone takes nobody along");
        assert_eq!(network.ports().iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        network.remove_port(&again);
        network.remove_port(&b);
        assert!(network.segments().is_empty());
        network.shut_down();
    }

    #[test]
    fn a_network_has_so_many_ports_and_no_more() {
        let network = network();
        let ports: Vec<_> = (0..MAX_PORTS).map(|n| add(&network, &format!("p{n}"), None).unwrap()).collect();
        assert_eq!(add(&network, "one", None).unwrap_err(), AddError::Full);
        network.remove_port(&ports[7]);
        assert_eq!(add(&network, "one", None).unwrap().id, PortId(7));
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
