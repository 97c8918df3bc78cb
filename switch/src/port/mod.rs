//! Ports: a guest's place on a segment.
//!
//! A port is **waiting** for its front end, **speaking** with it while they agree on features and memory, **running** when at least one ring
//! is served, in **quarantine** after its guest or front end broke a rule, and **gone** when the network ends.

pub mod end;
pub mod loopback;
pub mod null;
mod payload;
pub mod pool;
mod store;
pub mod stream;
pub mod tap;
pub mod vhost_user;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::frame::MacAddress;
use crate::link::Impairment;
use crate::memory::MemoryMap;
use crate::policy::{Allowance, Limit, Limiter};
use crate::ring::{Call, Called, Gate};
use crate::time::{cycles, duration};
use crate::worker::RingKey;

/// Number of a port in its network, below 32767; its place in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// For a front end.
    Waiting,
    /// Agreeing on features and memory.
    Speaking,
    /// At least one ring is served.
    Running,
    /// For this cause.
    Quarantined(String),
    /// The network ends.
    Gone,
}

impl State {
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
}

/// What the control side knows of a port.
#[derive(Debug)]
pub struct PortStatus {
    /// Its number.
    pub id: PortId,
    /// Its name in the configuration.
    pub name: String,
    /// What keeps its calls back after one that blocked, whoever connects.
    pub calls: Arc<Gate>,
    /// How often its front ends and guest may have workers do something.
    wishes: Limiter,
    inner: Mutex<Inner>,
    /// Held by whoever stops a ring, until it is drained and its base is kept.
    stopping: Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    allowance: Allowance,
    link: Option<Impairment>,
    quarantines: u64,
    /// What the operator should change.
    advice: Option<&'static str>,
    /// Some advice was logged.
    advised: bool,
    session: u32,
    memory: Option<Arc<MemoryMap>>,
    bases: HashMap<RingKey, u16>,
    /// Where the front end wants to hear of a ring's errors (SET_VRING_ERR).
    errors: HashMap<RingKey, Call>,
}

/// Things that a port's front ends and guest may have workers do a second, once a second's worth of them has been done at once: start, stop,
/// enable, move a ring, change its call, announce an address. All guests' first starts are far less.
const WISHES: u64 = 1000;
/// Longest pause for one of them.
const MOST_PAUSE: Duration = Duration::from_millis(10);

impl PortStatus {
    /// A port that waits for its front end, and is allowed what `allowance` says.
    pub fn new(id: PortId, name: &str, allowance: Allowance) -> Arc<Self> {
        let (bases, errors) = (HashMap::new(), HashMap::new());
        let inner = Inner {
            state: State::Waiting,
            allowance,
            link: None,
            quarantines: 0,
            advice: None,
            advised: false,
            session: 0,
            memory: None,
            bases,
            errors,
        };
        let wishes = Limiter::default();
        wishes.set(&Limit { packets: Some(WISHES), burst_ms: Some(1000), ..Limit::default() });
        let (name, inner) = (name.into(), Mutex::new(inner));
        Arc::new(Self { id, name, calls: Arc::default(), wishes, inner, stopping: Mutex::default() })
    }

    /// Holds up the calling thread, which is this port's own, if its front ends and guest have workers do more than [`WISHES`] things a second;
    /// this is one more.
    pub fn pace(&self) {
        let now = cycles();
        self.wishes.charge(0, 1, now);
        let early = self.wishes.opens_at().saturating_sub(now);
        if early > 0 {
            std::thread::sleep(duration(early).min(MOST_PAUSE));
        }
    }

    /// Stops of this port's rings wait for each other: who comes second finds the base that the first has kept.
    pub fn one_stop_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.inner().state.clone()
    }

    /// What it is allowed.
    pub fn allowance(&self) -> Allowance {
        self.inner().allowance.clone()
    }

    /// Notes what it is allowed.
    pub fn set_allowance(&self, allowance: Allowance) {
        self.inner().allowance = allowance;
    }

    /// What frames to it go through.
    pub fn link(&self) -> Option<Impairment> {
        self.inner().link.clone()
    }

    /// Notes what frames to it go through.
    pub fn set_link(&self, link: Option<Impairment>) {
        self.inner().link = link;
    }

    /// Times it was put in quarantine.
    pub fn quarantines(&self) -> u64 {
        self.inner().quarantines
    }

    /// Notes where the front end wants to hear of a ring's errors; nowhere if there is none.
    pub fn set_error(&self, key: RingKey, error: Option<Call>) {
        match error {
            Some(error) => self.inner().errors.insert(key, error),
            None => self.inner().errors.remove(&key),
        };
    }

    /// Moves it to `state`. In quarantine, the front end is told where it asked for that. The first quarantine is logged, later ones are only
    /// counted, so that no guest can fill the log.
    pub fn set_state(&self, state: State) {
        let (session, errors) = {
            let mut inner = self.inner();
            if let State::Quarantined(cause) = &state {
                inner.quarantines += 1;
                if inner.quarantines == 1 {
                    tracing::warn!(port = %self.name, %cause, "port in quarantine; later ones are counted, see `memlane status`");
                }
            }
            let broken = matches!(state, State::Quarantined(_));
            inner.state = state;
            (inner.session, if broken { std::mem::take(&mut inner.errors) } else { HashMap::new() })
        };
        // Whoever asks for the state meanwhile is not to wait for the front end's descriptors.
        let errors: Vec<_> = errors.into_iter().filter(|(_, error)| error.call_if_room() != Called::Blocked).collect();
        let mut inner = self.inner();
        if inner.session == session {
            for (key, error) in errors {
                inner.errors.entry(key).or_insert(error);
            }
        }
    }

    /// What the operator should change.
    pub fn advice(&self) -> Option<&'static str> {
        self.inner().advice
    }

    /// Notes what the operator should change. A port's first advice is logged, so that no guest can fill the log.
    pub fn set_advice(&self, advice: Option<&'static str>) {
        let mut inner = self.inner();
        if let Some(advice) = advice.filter(|_| !inner.advised) {
            inner.advised = true;
            tracing::warn!(port = %self.name, "{advice}");
        }
        inner.advice = advice;
    }

    /// The guest memory in use.
    pub fn memory(&self) -> Option<Arc<MemoryMap>> {
        self.inner().memory.clone()
    }

    /// Notes the guest memory in use.
    pub fn set_memory(&self, memory: Option<Arc<MemoryMap>>) {
        self.inner().memory = memory;
    }

    /// Another front end begins: what is reported of those before it is not its fault.
    pub fn begin_session(&self) {
        let mut inner = self.inner();
        inner.session = inner.session.wrapping_add(1);
    }

    /// Front ends so far.
    pub fn session(&self) -> u32 {
        self.inner().session
    }

    /// The front end is gone, and with it everything that was its own.
    pub fn forget_front_end(&self) {
        let mut inner = self.inner();
        inner.memory = None;
        inner.advice = None;
        inner.bases.clear();
        inner.errors.clear();
    }

    /// Keeps the base of a ring that was stopped without its front end asking, for when it asks.
    pub fn remember_base(&self, key: RingKey, base: u16) {
        self.inner().bases.insert(key, base);
    }

    /// Takes what [`Self::remember_base`] kept.
    pub fn recall_base(&self, key: RingKey) -> Option<u16> {
        self.inner().bases.remove(&key)
    }
}

/// The address that a port offers to its guest if none is configured: locally administered, and the same in every run, so that a guest
/// keeps it over reboots.
pub fn default_address(network: &str, port: &str) -> MacAddress {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in network.bytes().chain([0]).chain(port.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let [_, _, _, a, b, c, d, e] = (hash ^ hash >> 29).to_be_bytes();
    MacAddress::new([0x02, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_wants_much_waits() {
        let port = PortStatus::new(PortId(0), "a", Allowance::default());
        let start = Instant::now();
        (0..WISHES + 200).for_each(|_| port.pace());
        assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
    }

    #[test]
    fn who_starts_does_not() {
        let port = PortStatus::new(PortId(0), "a", Allowance::default());
        (0..500).for_each(|_| port.pace());
        assert!(port.wishes.is_open(cycles()));
    }
}
