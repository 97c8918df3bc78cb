//! A port: a guest's place in a broadcast domain, with its policy, counters and state. It is added and removed while the network
//! runs.
//!
//! A port is **waiting** for its front end, **speaking** with it while they negotiate features and memory, **running** when at
//! least one virtqueue is served, in **quarantine** after its guest or front end broke a rule, and **gone** when it is removed or
//! the network ends.

pub mod end;
pub mod ephemeral;
pub mod events;
mod fragmenting;
pub mod history;
pub mod queue_view;
pub(crate) mod refused;
pub mod rings;
pub mod settings;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use crate::audience::Audience;
use crate::budget::Account;
use crate::denials::Denials;
use crate::descriptors::USUAL;
use crate::frame::{ETHERNET, Head, MacAddress};
use crate::id::{PortId, RingKey, SegmentId};
use crate::journal::{Journal, NetworkEvent};
use crate::link::{Impairment, Path};
use crate::memory::{DirtyLog, Fetch, MemoryMap, Quota};
use crate::multicast::Groups;
use crate::policy::gate::Vlans;
use crate::policy::{Limit, Limiter, Policy, PortLimits};
use crate::probes;
use crate::ring::{Call, Called, InterruptBreaker, StoppedRing};
use crate::segment::{ANY_MTU, Segment};
use crate::shared::Shared;
use crate::stats::{DropReason, PortCounters, PortTotals, totals};
use crate::time::{Cycles, cycles, duration};
use crate::trial::Trials;
use ephemeral::Ephemeral;
use events::{EventLog, ToldCount};
use fragmenting::FragmentingPairs;
use history::{Counted, Growth, History};
use memlane_model::denials::PortDenials;
use memlane_model::peer::Peer;
use refused::RefusedLog;
use rings::Rings;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    /// For the connection of a front end.
    Waiting,
    /// During negotiation of features and memory.
    Speaking,
    /// At least one virtqueue is served.
    Running,
    /// For this reason.
    Quarantined(String),
    /// The network ends.
    Gone,
}

impl PortState {
    /// The name that operators see.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Speaking => "speaking",
            Self::Running => "running",
            Self::Quarantined(_) => "quarantined",
            Self::Gone => "gone",
        }
    }

    /// Number of the state in tracepoints.
    fn number(&self) -> u8 {
        match self {
            Self::Waiting => 0,
            Self::Speaking => 1,
            Self::Running => 2,
            Self::Quarantined(_) => 3,
            Self::Gone => 4,
        }
    }
}

/// Device properties that a port offers to its front end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The guest's address.
    pub mac: MacAddress,
    /// MTU offered to the guest; `None` leaves it to the guest.
    pub mtu: Option<u16>,
}

/// See the module. Every user holds a reference, so that a later port with the same number is never mistaken for it.
#[derive(Debug)]
pub struct Port {
    /// Number of the port.
    pub id: PortId,
    /// Name of the port in the configuration.
    pub name: String,
    /// Broadcast domain.
    pub segment: Arc<Segment>,
    /// When it got its number, which an earlier port may have had.
    pub added: Cycles,
    /// Limits that the operator set.
    pub policy: Policy,
    /// Multicast groups of its guest.
    pub(crate) groups: Groups,
    /// Quota of guest memory that may be mapped.
    pub mapped: Quota,
    /// Descriptors that its front end holds.
    pub descriptors: Arc<Account>,
    /// Fetches foreign frames (Xen grants).
    foreign: Arc<OnceLock<Arc<dyn Fetch>>>,
    /// Interrupt circuit breaker: keeps interrupts back after one that blocked or was slow; it outlasts front ends.
    pub breaker: Arc<InterruptBreaker>,
    /// Memory of frames to it on emulated links, all queues together.
    on_links: Arc<Account>,
    /// Counters of each worker.
    counters: Box<[PortCounters]>,
    /// Stream frames with an incomplete checksum, without a header that says so.
    undone_checksums: AtomicU64,
    /// Link emulation of frames to it, if any.
    path: Mutex<Option<Arc<Path>>>,
    /// Seed of losses and delays by link emulation.
    seed: u64,
    /// Rate limit of control operations of its front ends and guest on workers.
    control_rate: Limiter,
    /// What happens to it is told here.
    journal: Arc<Journal>,
    /// Reasons for which the first drop was told, by their numbers.
    told_drops: AtomicU64,
    /// Limits of the port, as they were last told of.
    told_limits: Mutex<[ToldCount; 2]>,
    /// Recent growth of its counters.
    history: Mutex<History>,
    /// Frames of its guest that a rule about addresses refused.
    refused: RefusedLog,
    /// Frames of its guest that policy rules refused.
    pub(crate) denials: Denials,
    /// Log lines and events about its front ends.
    events: EventLog,
    /// Events of its states.
    states: EventLog,
    /// Log lines of messages of its front ends.
    conversation: EventLog,
    /// Bytes of its guest's memory that are charged to the switch.
    paid: AtomicU64,
    inner: Mutex<Inner>,
    /// IP addresses between which it has sent fragments.
    pub(crate) fragmenting: FragmentingPairs,
    /// MTU that its guest agreed on; [`ANY_MTU`] if it did not.
    agreed_mtu: AtomicU32,
    /// Running virtqueues.
    rings: Mutex<Rings>,
    /// Held by the thread that stops a ring, until it is drained and its base is kept.
    stopping: Mutex<()>,
    /// False once it was removed: no ring of it starts any more.
    present: RwLock<bool>,
    /// Whether it goes with its front end.
    pub ephemeral: Ephemeral,
}

#[derive(Debug)]
struct Inner {
    state: PortState,
    link: Option<Impairment>,
    offer: Offer,
    enabled: bool,
    quarantines: u64,
    /// Advice for the operator.
    advice: Option<Cow<'static, str>>,
    /// An advice was logged.
    advised: bool,
    /// The next front end is offered the configuration space (VHOST_USER_PROTOCOL_F_CONFIG), even if it asks before SET_OWNER.
    offers_config: bool,
    session: u32,
    /// When its front end stopped its last virtqueue and stayed connected, as for a guest that is paused.
    halted: Option<Cycles>,
    /// Whether its interface has a carrier; `None` without an interface, or where that is not known.
    carrier: Option<bool>,
    /// The program that is connected now.
    front_end: Option<Peer>,
    /// Other programs that were refused a connection meanwhile.
    turned_away: u64,
    /// The last of them that was told of: one that connects again and again, as QEMU does, is told of once.
    told_second: Option<Peer>,
    memory: Option<Arc<MemoryMap>>,
    log: Option<Arc<DirtyLog>>,
    /// Virtqueues that were stopped without a request of the front end.
    stopped: HashMap<RingKey, StoppedRing>,
    /// Eventfds by which front ends are told of a ring's errors (SET_VRING_ERR).
    errors: HashMap<RingKey, Call>,
}

/// Rate limit of control operations a second, after a burst of a second's worth: start, stop, enable or move a ring, change its
/// interrupt, announce an address. The first start of all guests together takes far fewer.
const CONTROL_OPERATIONS: u64 = 1000;
/// Log lines about a port's front ends a second, see [`EventLog`].
const EVENTS: u64 = 2;
/// Log lines of their messages a second, where those are logged at all.
const MESSAGES: u64 = 100;
/// Longest delay of a control operation, or of the message after one that took many.
const MOST_PAUSE: Duration = Duration::from_millis(50);

/// See [`CONTROL_OPERATIONS`].
fn control_rate() -> Limiter {
    let limiter = Limiter::default();
    limiter.set(&Limit { packets: Some(CONTROL_OPERATIONS), burst_ms: Some(1000), ..Limit::default() });
    limiter
}

impl Inner {
    /// Of a port that waits for its first front end.
    fn new() -> Self {
        Self {
            state: PortState::Waiting,
            link: None,
            offer: Offer::default(),
            enabled: true,
            quarantines: 0,
            advice: None,
            advised: false,
            offers_config: false,
            session: 0,
            halted: None,
            carrier: None,
            front_end: None,
            turned_away: 0,
            told_second: None,
            memory: None,
            log: None,
            stopped: HashMap::new(),
            errors: HashMap::new(),
        }
    }
}

impl Port {
    /// A port of `segment` that waits for its front end, with these limits.
    pub fn new(id: PortId, name: &str, segment: &Arc<Segment>, limits: &PortLimits, shared: &Shared) -> Arc<Self> {
        let descriptors = Account::with_floor(&shared.descriptors.budget, USUAL);
        let policy = Policy::new(limits);
        if policy.gate().is_restricted() {
            segment.set_gated();
        }
        let port = Self {
            id,
            added: cycles(),
            name: name.into(),
            segment: Arc::clone(segment),
            policy,
            groups: Groups::default(),
            mapped: Self::memory_quota(shared, &descriptors),
            descriptors,
            foreign: Arc::clone(&shared.foreign),
            breaker: Arc::default(),
            on_links: Account::new(&shared.budget),
            counters: std::iter::repeat_with(PortCounters::default).take(shared.workers.len()).collect(),
            undone_checksums: AtomicU64::new(0),
            path: Mutex::default(),
            seed: shared.key.wrapping_add(u64::from(id.0) << 16),
            control_rate: control_rate(),
            journal: Arc::clone(&shared.journal),
            told_drops: AtomicU64::new(0),
            told_limits: Mutex::default(),
            history: Mutex::new(History::new(cycles())),
            refused: RefusedLog::default(),
            denials: Denials::default(),
            events: EventLog::new(EVENTS),
            states: EventLog::new(EVENTS),
            conversation: EventLog::new(MESSAGES),
            paid: AtomicU64::new(0),
            inner: Mutex::new(Inner::new()),
            fragmenting: FragmentingPairs::default(),
            agreed_mtu: AtomicU32::new(ANY_MTU),
            rings: Mutex::default(),
            stopping: Mutex::default(),
            present: RwLock::new(true),
            ephemeral: Ephemeral::default(),
        };
        port.groups.begin(&segment.snooping);
        Arc::new(port)
    }

    /// Quota of the port: memory of its guest that it may map.
    fn memory_quota(shared: &Shared, descriptors: &Arc<Account>) -> Quota {
        Quota {
            bytes: Account::new(&shared.guest_memory),
            mappings: Account::new(&shared.mappings),
            descriptors: Arc::clone(descriptors),
        }
    }

    /// So many ports of one segment, for benches, fuzzers and tests, which drive workers themselves.
    pub fn row(shared: &Shared, count: usize) -> Vec<Arc<Self>> {
        let segment = Segment::new(SegmentId(0), "lan", count, shared.key, shared.settings.moves);
        let port = |n| {
            segment.join(PortId(n));
            Self::new(PortId(n), &format!("p{n}"), &segment, &PortLimits::default(), shared)
        };
        (0..count as u16).map(port).collect()
    }

    /// The counters that worker `worker` writes.
    #[inline]
    pub fn counters(&self, worker: usize) -> &PortCounters {
        &self.counters[worker]
    }

    /// Counters of the port, all workers' added up.
    pub fn totals(&self) -> PortTotals {
        PortTotals { undone_checksums: self.undone_checksums.load(Ordering::Relaxed), ..totals(&self.counters) }
    }

    /// Continues the counters and the state of an earlier process, before a worker serves the port.
    pub fn inherit(&self, totals: &PortTotals, quarantines: u64, quarantined: Option<String>) {
        if let Some(first) = self.counters.first() {
            first.inherit(totals);
        }
        self.undone_checksums.fetch_add(totals.undone_checksums, Ordering::Relaxed);
        self.history().inherit(|counted| self.count(counted));
        self.inherit_told(totals);
        let mut inner = self.inner();
        inner.quarantines += quarantines;
        if let Some(cause) = quarantined {
            inner.state = PortState::Quarantined(cause);
        }
    }

    /// Before the takeover, events told of these counters and drop reasons: no event after it does again.
    fn inherit_told(&self, totals: &PortTotals) {
        let is_told = |reason: &&DropReason| totals.drops.get(reason.name()).is_some_and(|frames| *frames > 0);
        let told = DropReason::ALL.iter().filter(is_told).fold(0, |bits, reason| bits | 1 << *reason as u32);
        self.told_drops.fetch_or(told, Ordering::Relaxed);
        let mut limits = self.told_limits.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = [totals.transmit_limited, totals.receive_limited];
        limits.iter_mut().zip(counts).for_each(|(told, count)| told.inherit(count));
    }

    /// Copies of the eventfds by which the front end is told of errors of rings.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn error_files(&self) -> io::Result<Vec<(RingKey, OwnedFd)>> {
        let inner = self.inner();
        inner.errors.iter().map(|(key, error)| Ok((*key, error.descriptor().try_clone_to_owned()?))).collect()
    }

    /// The VLAN of a frame with this `head` that it transmits: that of the tag if the port does not carry it.
    pub(crate) fn vlan_of(&self, head: Head) -> u16 {
        let tag = head.vlan().0;
        self.policy.gate().vlans.of_sent(tag).unwrap_or(tag)
    }

    /// Whether it is one of the ports that get a flooded frame with this `audience`: of multicast groups, uplinks and trunks always are.
    pub(crate) fn hears(&self, audience: Audience) -> bool {
        let is_trunk = || matches!(self.policy.gate().vlans, Vlans::Trunk { .. });
        match audience {
            Audience::Members(members) => members.has(&self.groups) || self.segment.uplink() == Some(self.id) || is_trunk(),
            Audience::Servers(service) => self.policy.may_serve(service),
        }
    }

    /// The multicast groups of its guest, and whether it gets the others too.
    pub fn multicast_groups(&self) -> (Vec<MacAddress>, bool) {
        let (groups, gets_all) = self.groups.report(&self.segment.snooping);
        let is_trunk = matches!(self.policy.gate().vlans, Vlans::Trunk { .. });
        (groups, gets_all || is_trunk || self.segment.uplink() == Some(self.id))
    }

    /// Senders of the frames to it that were sampled last, at all workers, and when.
    pub fn senders(&self) -> impl Iterator<Item = (PortId, Cycles)> {
        self.counters.iter().flat_map(PortCounters::senders)
    }

    /// Counts a stream frame with an incomplete checksum, without a header that says so.
    pub fn note_undone_checksum(&self) {
        self.undone_checksums.fetch_add(1, Ordering::Relaxed);
    }

    /// Frames that it has received from all workers.
    pub fn delivered(&self) -> u64 {
        self.counters.iter().map(|counters| counters.receive_frames.get()).sum()
    }

    /// Bytes that it has received from all workers.
    pub(crate) fn delivered_bytes(&self) -> u64 {
        self.counters.iter().map(|counters| counters.receive_bytes.get()).sum()
    }

    /// Fetches foreign frames (Xen grants) for it.
    pub fn foreign(&self) -> Option<&dyn Fetch> {
        self.foreign.get().map(|fetch| &**fetch)
    }

    /// MAC addresses learned behind it.
    pub fn learned_addresses(&self) -> usize {
        self.segment.table().held(self.id) as usize
    }

    /// Sets the link emulation of frames to it, which its egress queues use once they are told, see
    /// [`crate::worker::Worker::follow_path`]; a clear path is none.
    pub fn set_path(&self, path: Path) {
        let path = (!path.is_clear()).then(|| Arc::new(path));
        *self.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
    }

    /// Link emulation of frames to it, if any.
    pub fn path(&self) -> Option<Arc<Path>> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Account of the memory for its frames on emulated links.
    pub(crate) fn on_links(&self) -> &Arc<Account> {
        &self.on_links
    }

    /// Seed of the losses and delays on the emulated link before queue pair `pair`.
    pub(crate) fn seed_of_link(&self, pair: u16) -> u64 {
        self.seed.wrapping_add(u64::from(pair))
    }

    /// Running virtqueues.
    pub fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is present; it stays so, or not, for as long as the caller holds this.
    pub(crate) fn presence(&self) -> RwLockReadGuard<'_, bool> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes it: waits for the current users of [`Self::presence`], and no ring of it starts any more.
    pub(crate) fn retire(&self) {
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// MTU of the way to it: that of the uplink if it is one, and that on which its guest agreed.
    #[inline]
    pub(crate) fn mtu(&self) -> Option<u16> {
        let agreed = u16::try_from(self.agreed_mtu.load(Ordering::Relaxed)).ok();
        self.segment.uplink_mtu(self.id).into_iter().chain(agreed).min()
    }

    /// Bytes of the longest frame without offloads that its guest is sure to take.
    #[inline]
    pub(crate) fn longest_frame(&self) -> u32 {
        self.agreed_mtu.load(Ordering::Relaxed).saturating_add(ETHERNET as u32)
    }

    /// The guest agreed on this MTU (virtio 1.2, section 5.1.4.1), or on none: longer packets to it are dropped, and their senders are told.
    pub fn set_agreed_mtu(&self, mtu: Option<u16>) {
        self.agreed_mtu.store(mtu.map_or(ANY_MTU, u32::from), Ordering::Relaxed);
        mtu.into_iter().for_each(|mtu| self.segment.note_mtu(mtu));
    }

    /// The properties that the next front end is offered.
    pub fn offer(&self) -> Offer {
        self.inner().offer
    }

    /// The same, as its guest sees them: a twin's MAC address is the one inside.
    pub fn offer_inside(&self) -> Offer {
        let offer = self.offer();
        Offer { mac: self.outside(offer.mac), ..offer }
    }

    /// The MAC address for which `address`, of its guest, is exchanged.
    pub fn outside(&self, address: MacAddress) -> MacAddress {
        self.policy.rules.get().twin.as_ref().map_or(address, |twin| twin.mac(address))
    }

    /// Sets the properties that are offered from now on.
    pub fn set_offer(&self, offer: Offer) {
        self.inner().offer = offer;
    }

    /// Whether the operator has enabled it, so that it sends and receives.
    pub fn is_enabled(&self) -> bool {
        self.inner().enabled
    }

    /// Enables or disables it.
    pub fn set_enabled(&self, enabled: bool) {
        self.inner().enabled = enabled;
    }

    /// Counts a control operation. The caller waits for [`Self::control_pause`] before the next one.
    pub fn count_control_operation(&self) {
        self.control_rate.charge(0, 1, cycles());
    }

    /// Time until the next control operation, if the port's front ends and guest run more than [`CONTROL_OPERATIONS`] a second.
    pub fn control_pause(&self) -> Option<Duration> {
        let early = self.control_rate.opens_at().saturating_sub(cycles());
        (early > 0).then(|| duration(early).min(MOST_PAUSE))
    }

    /// Counts a control operation, and delays the calling thread, which is this port's own, by [`Self::control_pause`].
    pub fn limit_control_rate(&self) {
        self.count_control_operation();
        self.control_pause().into_iter().for_each(std::thread::sleep);
    }

    /// Serializes stops of this port's rings: the second one finds the base that the first has kept.
    pub(crate) fn one_stop_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of the port.
    pub fn state(&self) -> PortState {
        self.inner().state.clone()
    }

    /// Whether a front end is connected, before features are negotiated too, or the interface is there.
    pub fn is_connected(&self) -> bool {
        let inner = self.inner();
        match inner.state {
            PortState::Waiting | PortState::Gone => false,
            PortState::Quarantined(_) => inner.front_end.is_some(),
            PortState::Speaking | PortState::Running => true,
        }
    }

    /// Link emulation of frames to it.
    pub fn link(&self) -> Option<Impairment> {
        self.inner().link.clone()
    }

    /// Sets the link emulation of frames to it.
    pub fn set_link(&self, link: Option<Impairment>) {
        self.inner().link = link;
    }

    /// Number of its quarantines.
    pub fn quarantines(&self) -> u64 {
        self.inner().quarantines
    }

    /// Sets the eventfd by which the front end is told of a ring's errors; none if there is none.
    pub fn set_error(&self, key: RingKey, error: Option<Call>) {
        match error {
            Some(error) => self.inner().errors.insert(key, error),
            None => self.inner().errors.remove(&key),
        };
    }

    /// Moves it to `state`. In quarantine, the error eventfds of the front end are signalled. The first quarantine is logged, later
    /// ones are only counted, so that no guest can fill the log.
    pub fn set_state(&self, state: PortState) {
        let (session, errors) = {
            let mut inner = self.inner();
            if let PortState::Quarantined(cause) = &state {
                inner.quarantines += 1;
                if inner.quarantines == 1 {
                    let event = NetworkEvent::PortQuarantined { port: self.name.clone(), cause: cause.clone() }.name();
                    tracing::warn!(port = %self.name, event, %cause, "{}: in quarantine: {cause}; later ones are counted, see `memlane status`", self.name);
                }
            }
            let broken = matches!(state, PortState::Quarantined(_));
            match (&inner.state, &state) {
                (PortState::Running, PortState::Speaking) => inner.halted = Some(cycles()),
                (_, PortState::Speaking) => {}
                _ => inner.halted = None,
            }
            if inner.state != state {
                probes::port_state(self.id, state.number());
                self.tell_state(&state);
            }
            inner.state = state;
            (inner.session, if broken { std::mem::take(&mut inner.errors) } else { HashMap::new() })
        };
        // Without the lock: a thread that reads the state must not wait for the front end's descriptors.
        let errors: Vec<_> = errors.into_iter().filter(|(_, error)| error.call_if_room() != Called::Blocked).collect();
        let mut inner = self.inner();
        if inner.session == session {
            for (key, error) in errors {
                inner.errors.entry(key).or_insert(error);
            }
        }
    }

    /// Tells of a state that it was not in before; what else leads to one is told by itself.
    fn tell_state(&self, state: &PortState) {
        let port = self.name.clone();
        let event = match state {
            PortState::Running => NetworkEvent::PortRunning { port },
            PortState::Quarantined(cause) => NetworkEvent::PortQuarantined { port, cause: cause.clone() },
            PortState::Waiting | PortState::Speaking | PortState::Gone => return,
        };
        self.tell_caused(event);
    }

    /// Adds an event that its guest can cause to the journal, unless there were too many.
    pub(crate) fn tell_caused(&self, event: NetworkEvent) {
        if let Some(left_out) = self.states.admit() {
            self.tell(event, left_out);
        }
    }

    /// Adds `event` to the journal, after `left_out` of the port that were not.
    fn tell(&self, event: NetworkEvent, left_out: u64) {
        if left_out > 0 {
            self.journal.add(NetworkEvent::LeftOut { port: self.name.clone(), events: left_out });
        }
        self.journal.add(event);
    }

    /// Tells of the first drops for each reason that were not told yet.
    pub(crate) fn tell_first_drops(&self) {
        const { assert!(DropReason::ALL.len() <= 64, "a bit a reason") };
        for &reason in DropReason::ALL {
            let bit = 1 << reason as u32;
            let frames = || self.counters.iter().map(|counters| counters.dropped(reason)).sum::<u64>();
            if self.told_drops.load(Ordering::Relaxed) & bit == 0
                && frames() > 0
                && self.told_drops.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                let (port, reason) = (self.name.clone(), reason.name().into());
                self.journal.add(NetworkEvent::FirstDrop { port, reason, frames: frames() });
            }
        }
    }

    /// Notes that a frame of its guest which begins with `start` was dropped for `reason`, for an event that names its addresses.
    #[cold]
    pub(crate) fn note_refused(&self, reason: DropReason, start: &[u8]) {
        self.refused.note(reason, start);
    }

    /// Tells of frames that rules about addresses refused, once a minute for each reason.
    pub(crate) fn tell_refused(&self, now: Instant) {
        for (reason, refused) in self.refused.take(now) {
            let is_own = self.segment.table().pinned(refused.mac) == Some(self.id);
            self.tell_caused(NetworkEvent::AddressRefused {
                port: self.name.clone(),
                reason: reason.name().into(),
                mac: refused.mac.to_string(),
                ip: refused.ip.map(|ip| ip.to_string()),
                allowed_by: refused.remedy(reason, is_own),
            });
        }
    }

    /// Tells of frames that policy rules refused.
    pub(crate) fn tell_denials(&self, now: Instant) {
        for denial in self.denials.news(&self.name, now) {
            self.journal.add(NetworkEvent::PolicyDenied { port: self.name.clone(), labels: self.policy.labels(), denial });
        }
    }

    /// Tells of frames that rules with the action "audit" would refuse.
    pub(crate) fn tell_audits(&self, trials: &Trials, now: Instant) {
        for denial in trials.news(self.id, &self.name, now) {
            self.journal.add(NetworkEvent::PolicyAudited { port: self.name.clone(), labels: self.policy.labels(), denial });
        }
    }

    /// Frames of its guest that policy rules refused.
    pub(crate) fn denials(&self) -> PortDenials {
        self.denials.list(&self.name, cycles())
    }

    /// Tells of limits that held frames back since they were last told of, once a minute each.
    pub(crate) fn tell_limits(&self, now: Instant) {
        let reached = |count: fn(&PortCounters) -> u64| self.counters.iter().map(count).sum::<u64>();
        let limits =
            [("transmit", reached(|cell| cell.transmit_limited.get())), ("receive", reached(|cell| cell.receive_limited.get()))];
        let mut told = self.told_limits.lock().unwrap_or_else(PoisonError::into_inner);
        for ((direction, count), told) in limits.into_iter().zip(told.iter_mut()) {
            if let Some(times) = told.news(count, now) {
                self.tell_caused(NetworkEvent::LimitReached { port: self.name.clone(), direction: direction.into(), times });
            }
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, counted: Counted) -> u64 {
        let sum = |count: &dyn Fn(&PortCounters) -> u64| self.counters.iter().map(count).sum();
        match counted {
            Counted::Drop(reason) => sum(&|cell| cell.dropped(reason)),
            Counted::TransmitLimited => sum(&|cell| cell.transmit_limited.get()),
            Counted::ReceiveLimited => sum(&|cell| cell.receive_limited.get()),
            Counted::MissedKicks => sum(&|cell| cell.missed_kicks.get()),
            Counted::TurnedAway => self.inner().turned_away,
        }
    }

    /// Records the growth of its counters; workers were busy at `busy` for the last time.
    pub(crate) fn note_growth(&self, now: Cycles, busy: Cycles) {
        self.history().look(now, busy, |counted| self.count(counted));
    }

    /// Recent growth of a counter; `None` if it is zero.
    pub fn growth(&self, counted: Counted) -> Option<Growth> {
        self.history().growth(counted, cycles())
    }

    /// How long ago its front end stopped its last virtqueue, if it is connected since and none has started again: the guest is paused, or
    /// has no driver any more.
    pub fn halted(&self) -> Option<Duration> {
        self.inner().halted.map(|at| duration(cycles().saturating_sub(at)))
    }

    /// Whether its interface has a carrier; `None` without an interface, or where that is not known.
    pub fn carrier(&self) -> Option<bool> {
        self.inner().carrier
    }

    /// Sets whether its interface, called `interface`, has a carrier; `None` while that is missing. A change is logged and told.
    pub fn set_carrier(&self, interface: &str, carrier: Option<bool>) {
        let before = std::mem::replace(&mut self.inner().carrier, carrier);
        let (port, interface) = (self.name.clone(), interface.to_owned());
        let event = match (before, carrier) {
            (None | Some(true), Some(false)) => NetworkEvent::CarrierLost { port, interface },
            (Some(false), Some(true)) => NetworkEvent::CarrierFound { port, interface },
            _ => return,
        };
        if let Some(left_out) = self.states.admit() {
            tracing::warn!(port = %self.name, event = event.name(), "{event}");
            self.tell(event, left_out);
        }
    }

    /// Advice for the operator.
    pub fn advice(&self) -> Option<String> {
        self.inner().advice.as_ref().map(|advice| advice.clone().into_owned())
    }

    /// Sets the advice for the operator. A port's first advice is logged, so that no guest can fill the log.
    pub fn set_advice(&self, advice: Option<&'static str>) {
        let mut inner = self.inner();
        if let Some(advice) = advice.filter(|_| !inner.advised) {
            inner.advised = true;
            tracing::warn!(port = %self.name, "{}: {advice}", self.name);
        }
        inner.advice = advice.map(Cow::Borrowed);
    }

    /// The port's TAP, socket or device failed, for the `count`th time in a row. The first, the second, the fourth time and so on are
    /// logged, so that a permanent failure does not fill the log.
    pub fn set_trouble(&self, count: u32, trouble: String) {
        if count.is_power_of_two() {
            tracing::warn!(port = %self.name, "{}: {trouble}", self.name);
        }
        self.inner().advice = Some(trouble.into());
    }

    /// Whether the next front end is offered the configuration space, even if it asks before SET_OWNER.
    pub fn offers_config(&self) -> bool {
        self.inner().offers_config
    }

    /// Sets whether it is.
    pub fn set_offers_config(&self, offers: bool) {
        self.inner().offers_config = offers;
    }

    /// The guest memory in use.
    pub fn memory(&self) -> Option<Arc<MemoryMap>> {
        self.inner().memory.clone()
    }

    /// Sets the guest memory in use.
    pub fn set_memory(&self, memory: Option<Arc<MemoryMap>>) {
        self.inner().memory = memory;
    }

    /// Sets the front end's dirty log in use.
    pub fn set_log(&self, log: Option<Arc<DirtyLog>>) {
        self.inner().log = log;
    }

    /// The reason why the guest's memory or the front end's dirty log lost a page, if one did.
    pub fn memory_loss(&self) -> Option<String> {
        let (memory, log) = {
            let inner = self.inner();
            (inner.memory.clone(), inner.log.clone())
        };
        let loss = memory.and_then(|memory| memory.loss()).map(|loss| loss.to_string());
        loss.or_else(|| log.and_then(|log| log.loss()).map(|loss| loss.to_string()))
    }

    /// Bytes of its guest's memory that are charged to the switch, as seen last.
    pub fn paid(&self) -> u64 {
        self.paid.load(Ordering::Relaxed)
    }

    /// Adds so many to them, or subtracts, up to `most`; returns all.
    pub(crate) fn change_paid(&self, bytes: i64, most: u64) -> u64 {
        let after = |paid: u64| paid.saturating_add_signed(bytes).min(most);
        self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(after(paid))).map_or(0, after)
    }

    /// A new front end begins: a fault that is reported for an earlier session is not its fault.
    pub fn begin_session(&self) {
        self.groups.begin(&self.segment.snooping);
        let mut inner = self.inner();
        inner.session = inner.session.wrapping_add(1);
    }

    /// Number of the present session, one for each front end.
    pub fn session(&self) -> u32 {
        self.inner().session
    }

    /// A line of the log about its front end.
    pub fn log(&self, line: fmt::Arguments) {
        if let Some(left_out) = self.events.admit() {
            self.write_line(line, left_out, None);
        }
    }

    fn write_line(&self, line: fmt::Arguments, left_out: u64, event: Option<&str>) {
        let left_out = (left_out > 0).then_some(left_out);
        tracing::info!(port = %self.name, event, left_out, "{}: {line}", self.name);
    }

    /// A line of the log about its front end, and the event that it tells of.
    fn log_event(&self, line: fmt::Arguments, event: NetworkEvent) {
        if let Some(left_out) = self.events.admit() {
            self.write_line(line, left_out, Some(event.name()));
            self.tell(event, left_out);
        }
    }

    /// A line of the log about messages of its front end, at the debug level (`MEMLANE_LOG=debug`).
    pub fn log_message(&self, message: fmt::Arguments) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        match self.conversation.admit() {
            Some(0) => tracing::debug!(port = %self.name, "{}: {message}", self.name),
            Some(left_out) => tracing::debug!(port = %self.name, left_out, "{}: {message}", self.name),
            None => {}
        }
    }

    /// A front end has connected.
    pub fn front_end_came(&self, peer: Option<Peer>) {
        probes::session(self.id, peer.as_ref().map_or(0, |peer| peer.pid));
        let program = named(peer.as_ref());
        let line = format!("front end connected: {program}");
        self.log_event(format_args!("{line}"), NetworkEvent::FrontEndConnected { port: self.name.clone(), program });
        let mut inner = self.inner();
        (inner.front_end, inner.turned_away, inner.told_second) = (peer, 0, None);
    }

    /// A front end of another process of the network stays connected.
    pub fn front_end_stays(&self, peer: Option<Peer>) {
        self.inner().front_end = peer;
    }

    /// The front end has gone, for this reason.
    pub fn front_end_left(&self, why: fmt::Arguments) {
        let event = NetworkEvent::FrontEndLeft { port: self.name.clone(), cause: why.to_string() };
        self.log_event(format_args!("front end left: {why}"), event);
        let mut inner = self.inner();
        (inner.front_end, inner.turned_away, inner.told_second) = (None, 0, None);
    }

    /// The connected program, and how many others were refused a connection meanwhile.
    pub fn front_end(&self) -> (Option<Peer>, u64) {
        let inner = self.inner();
        (inner.front_end.clone(), inner.turned_away)
    }

    /// Another front end has connected while the port has one, and was refused.
    pub fn turned_away(&self, second: Option<Peer>) {
        self.history().add(Counted::TurnedAway, cycles());
        let holder = {
            let mut inner = self.inner();
            inner.turned_away += 1;
            if second.is_some() && inner.told_second == second {
                return;
            }
            inner.told_second.clone_from(&second);
            inner.front_end.clone()
        };
        let (second, holder) = (named(second.as_ref()), named(holder.as_ref()));
        let line = format!(
            "another front end was refused: {second}; the port is in use by {holder}. Give each guest a port of its own, end one of the programs, or set second = \"replace\" for a \
             migration on this host (QEMU's cpr-transfer); until then QEMU connects again and again, and is refused"
        );
        let event = NetworkEvent::FrontEndTurnedAway { port: self.name.clone(), program: second, holder };
        self.log_event(format_args!("{line}"), event);
    }

    /// The front end is gone, and with it its memory, advice, stopped rings and error eventfds.
    pub fn forget_front_end(&self) {
        self.paid.store(0, Ordering::Relaxed);
        let mut inner = self.inner();
        (inner.memory, inner.log) = (None, None);
        inner.advice = None;
        inner.stopped.clear();
        inner.errors.clear();
    }

    /// Keeps a virtqueue that was stopped without a request of its front end, until it is requested.
    pub(crate) fn remember_stopped(&self, key: RingKey, stopped: StoppedRing) {
        self.inner().stopped.insert(key, stopped);
    }

    /// Base and interrupt eventfd of a virtqueue that [`Self::remember_stopped`] kept.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn kept_ring(&self, key: RingKey) -> io::Result<Option<(u16, Option<OwnedFd>)>> {
        let inner = self.inner();
        let Some(StoppedRing { base, call }) = inner.stopped.get(&key) else { return Ok(None) };
        let call = call.as_ref().map(|call| call.descriptor().try_clone_to_owned()).transpose()?;
        Ok(Some((*base, call)))
    }

    /// Takes the virtqueue that [`Self::remember_stopped`] kept.
    pub fn recall_stopped(&self, key: RingKey) -> Option<StoppedRing> {
        self.inner().stopped.remove(&key)
    }

    /// Changes the interrupt eventfd of a virtqueue that [`Self::remember_stopped`] kept.
    ///
    /// # Errors
    /// There is none: `call` is returned.
    pub(crate) fn change_stopped_call(&self, key: RingKey, call: Option<Call>) -> Result<(), Option<Call>> {
        match self.inner().stopped.get_mut(&key) {
            Some(stopped) => stopped.call = call,
            None => return Err(call),
        }
        Ok(())
    }
}

fn named(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "a program that the kernel does not name".into(), ToString::to_string)
}

/// The address that a port offers to its guest if none is configured: locally administered, and the same in every run, so that a guest
/// keeps it over reboots.
pub fn default_address(network: &str, port: &str) -> MacAddress {
    let hash = short_hash(network.bytes().chain([0]).chain(port.bytes()));
    let [_, _, _, a, b, c, d, e] = (hash ^ hash >> 29).to_be_bytes();
    MacAddress::new([0x02, a, b, c, d, e])
}

/// FNV-1a: short, the same in every version, and no protection against names that are chosen to collide.
pub fn short_hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::time::Instant;

    fn port() -> Arc<Port> {
        Port::row(&Shared::new(1, 7, Settings::default()), 1).remove(0)
    }

    #[test]
    fn counters_of_an_earlier_process_are_no_news_and_their_growth_is() {
        let (before, port) = (port(), port());
        before.counters(0).drop_frames(DropReason::Storm, 3);
        before.counters(0).transmit_limited.add(5);
        let mut reader = port.journal.reader(memlane_observe::events::From::Now);
        let mut news = || {
            port.tell_first_drops();
            port.tell_limits(Instant::now());
            let records = reader.take(9).records;
            records.iter().map(|record| record.event.name()).collect::<Vec<_>>()
        };
        port.inherit(&before.totals(), 0, None);
        assert!(news().is_empty());
        // For another reason, and beyond a limit once more.
        port.counters(0).drop_frames(DropReason::Storm, 1);
        port.counters(0).drop_frames(DropReason::Loop, 1);
        port.counters(0).transmit_limited.add(1);
        assert_eq!(news(), ["first-drop", "limit-reached"]);
    }

    #[test]
    fn who_wants_much_waits() {
        let port = port();
        let start = Instant::now();
        (0..CONTROL_OPERATIONS + 200).for_each(|_| port.limit_control_rate());
        assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
    }

    #[test]
    fn who_starts_does_not() {
        let port = port();
        (0..500).for_each(|_| port.limit_control_rate());
        assert!(port.control_rate.is_open(cycles()));
    }
}
