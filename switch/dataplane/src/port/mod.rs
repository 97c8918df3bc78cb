//! A port: a guest's place in a broadcast domain, with its policy, counters and state. It is added and removed while the network
//! runs.
//!
//! A port is **waiting** for its front end, **speaking** with it while they negotiate features and memory, **running** when at
//! least one virtqueue is served, in **quarantine** after its guest or front end broke a rule, and **gone** when it is removed or
//! the network ends.

#![expect(clippy::indexing_slicing, reason = "a worker's number")]

mod counts;
pub mod end;
pub mod ephemeral;
pub mod events;
mod fragmenting;
pub mod history;
pub mod queue_view;
pub(crate) mod refused;
mod reports;
pub mod rings;
mod session;
pub mod settings;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crate::audience::Audience;
use crate::budget::Account;
use crate::descriptors::USUAL;
use crate::frame::{ETHERNET, Head, MacAddress};
use crate::id::{PortId, SegmentId};
use crate::journal::NetworkEvent;
use crate::link::{Impairment, Path};
use crate::memory::{Fetch, Quota};
use crate::multicast::Groups;
use crate::policy::gate::Vlans;
use crate::policy::{Limit, Limiter, Policy, PortLimits};
use crate::probes;
use crate::ring::{Called, InterruptBreaker};
use crate::segment::{ANY_MTU, Segment};
use crate::shared::Shared;
use crate::time::{Cycles, cycles, duration};
use counts::Counts;
use ephemeral::Ephemeral;
use fragmenting::FragmentingPairs;
use reports::Reports;
use rings::Rings;
use session::Session;

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
    /// Counters.
    counts: Counts,
    /// Reports of the port, and those that were told already.
    pub(crate) reports: Reports,
    /// Link emulation of frames to it.
    link_to: LinkTo,
    /// Memory and descriptors of the host that it uses.
    pub quotas: Quotas,
    /// Virtqueues, and the control operations on them.
    pub virtqueues: Virtqueues,
    inner: Mutex<Inner>,
    /// IP addresses between which it has sent fragments.
    pub(crate) fragmenting: FragmentingPairs,
    /// MTU that its guest agreed on; [`ANY_MTU`] if it did not.
    agreed_mtu: AtomicU32,
    /// Whether it goes with its front end.
    pub ephemeral: Ephemeral,
}

/// Link emulation of frames to a port.
#[derive(Debug)]
struct LinkTo {
    /// Memory of frames to it on emulated links, all queues together.
    on_links: Arc<Account>,
    /// Link emulation of frames to it, if any.
    path: Mutex<Option<Arc<Path>>>,
    /// Seed of losses and delays by link emulation.
    seed: u64,
}

/// Memory and descriptors of the host that a port uses.
#[derive(Debug)]
pub struct Quotas {
    /// Quota of guest memory that may be mapped.
    pub mapped: Quota,
    /// Descriptors that its front end holds.
    pub descriptors: Arc<Account>,
    /// Fetches foreign frames (Xen grants).
    foreign: Arc<OnceLock<Arc<dyn Fetch>>>,
    /// Bytes of its guest's memory that are charged to the switch.
    paid: AtomicU64,
}

/// Virtqueues of a port, and the control operations on them.
#[derive(Debug)]
pub struct Virtqueues {
    /// Interrupt circuit breaker: keeps interrupts back after one that blocked or was slow; it outlasts front ends.
    pub breaker: Arc<InterruptBreaker>,
    /// Running virtqueues.
    rings: Mutex<Rings>,
    /// Held by the thread that stops a ring, until it is drained and its base is kept.
    stopping: Mutex<()>,
    /// False once it was removed: no ring of it starts any more.
    present: RwLock<bool>,
    /// Rate limit of control operations of its front ends and guest on workers.
    control_rate: Limiter,
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
    /// When its front end stopped its last virtqueue and stayed connected, as for a guest that is paused.
    halted: Option<Cycles>,
    /// Whether its interface has a carrier; `None` without an interface, or where that is not known.
    carrier: Option<bool>,
    session: Session,
}

/// Rate limit of control operations a second, after a burst of a second's worth: start, stop, enable or move a ring, change its
/// interrupt, announce an address. The first start of all guests together takes far fewer.
const CONTROL_OPERATIONS: u64 = 1000;
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
            halted: None,
            carrier: None,
            session: Session::default(),
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
            counts: Counts::new(shared),
            reports: Reports::new(shared),
            link_to: LinkTo {
                on_links: Account::new(&shared.budget),
                path: Mutex::default(),
                seed: shared.key.wrapping_add(u64::from(id.0) << 16),
            },
            quotas: Quotas {
                mapped: Self::memory_quota(shared, &descriptors),
                descriptors,
                foreign: Arc::clone(&shared.foreign),
                paid: AtomicU64::new(0),
            },
            virtqueues: Virtqueues {
                breaker: Arc::default(),
                rings: Mutex::default(),
                stopping: Mutex::default(),
                present: RwLock::new(true),
                control_rate: control_rate(),
            },
            inner: Mutex::new(Inner::new()),
            fragmenting: FragmentingPairs::default(),
            agreed_mtu: AtomicU32::new(ANY_MTU),
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

    /// Fetches foreign frames (Xen grants) for it.
    pub fn foreign(&self) -> Option<&dyn Fetch> {
        self.quotas.foreign.get().map(|fetch| &**fetch)
    }

    /// MAC addresses learned behind it.
    pub fn learned_addresses(&self) -> usize {
        self.segment.table().held(self.id) as usize
    }

    /// Sets the link emulation of frames to it, which its egress queues use once they are told, see
    /// [`crate::worker::Worker::follow_path`]; a clear path is none.
    pub fn set_path(&self, path: Path) {
        let path = (!path.is_clear()).then(|| Arc::new(path));
        *self.link_to.path.lock().unwrap_or_else(PoisonError::into_inner) = path;
    }

    /// Link emulation of frames to it, if any.
    pub fn path(&self) -> Option<Arc<Path>> {
        self.link_to.path.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Account of the memory for its frames on emulated links.
    pub(crate) fn on_links(&self) -> &Arc<Account> {
        &self.link_to.on_links
    }

    /// Seed of the losses and delays on the emulated link before queue pair `pair`.
    pub(crate) fn seed_of_link(&self, pair: u16) -> u64 {
        self.link_to.seed.wrapping_add(u64::from(pair))
    }

    /// Running virtqueues.
    pub fn rings(&self) -> MutexGuard<'_, Rings> {
        self.virtqueues.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is present; it stays so, or not, for as long as the caller holds this.
    pub(crate) fn presence(&self) -> RwLockReadGuard<'_, bool> {
        self.virtqueues.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes it: waits for the current users of [`Self::presence`], and no ring of it starts any more.
    pub(crate) fn retire(&self) {
        *self.virtqueues.present.write().unwrap_or_else(PoisonError::into_inner) = false;
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
        self.virtqueues.control_rate.charge(0, 1, cycles());
    }

    /// Time until the next control operation, if the port's front ends and guest run more than [`CONTROL_OPERATIONS`] a second.
    pub fn control_pause(&self) -> Option<Duration> {
        let early = self.virtqueues.control_rate.opens_at().saturating_sub(cycles());
        (early > 0).then(|| duration(early).min(MOST_PAUSE))
    }

    /// Counts a control operation, and delays the calling thread, which is this port's own, by [`Self::control_pause`].
    pub fn limit_control_rate(&self) {
        self.count_control_operation();
        self.control_pause().into_iter().for_each(std::thread::sleep);
    }

    /// Serializes stops of this port's rings: the second one finds the base that the first has kept.
    pub(crate) fn one_stop_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.virtqueues.stopping.lock().unwrap_or_else(PoisonError::into_inner)
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
            PortState::Quarantined(_) => inner.session.front_end.is_some(),
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
            (inner.session.number, if broken { std::mem::take(&mut inner.session.errors) } else { HashMap::new() })
        };
        // Without the lock: a thread that reads the state must not wait for the front end's descriptors.
        let errors: Vec<_> = errors.into_iter().filter(|(_, error)| error.call_if_room() != Called::Blocked).collect();
        let mut inner = self.inner();
        if inner.session.number == session {
            for (key, error) in errors {
                inner.session.errors.entry(key).or_insert(error);
            }
        }
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
        if let Some(left_out) = self.reports.states.admit() {
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

    /// Bytes of its guest's memory that are charged to the switch, as seen last.
    pub fn paid(&self) -> u64 {
        self.quotas.paid.load(Ordering::Relaxed)
    }

    /// Adds so many to them, or subtracts, up to `most`; returns all.
    pub(crate) fn change_paid(&self, bytes: i64, most: u64) -> u64 {
        let after = |paid: u64| paid.saturating_add_signed(bytes).min(most);
        self.quotas.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(after(paid))).map_or(0, after)
    }
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
    use crate::stats::DropReason;
    use std::time::Instant;

    fn port() -> Arc<Port> {
        Port::row(&Shared::new(1, 7, Settings::default()), 1).remove(0)
    }

    #[test]
    fn counters_of_an_earlier_process_are_no_news_and_their_growth_is() {
        let (before, port) = (port(), port());
        before.counters(0).drop_frames(DropReason::Storm, 3);
        before.counters(0).transmit_limited.add(5);
        let mut reader = port.reports.journal.reader(memlane_observe::events::From::Now);
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
        assert!(port.virtqueues.control_rate.is_open(cycles()));
    }
}
