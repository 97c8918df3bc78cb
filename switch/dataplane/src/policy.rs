//! Limits of a port that the operator sets: its weight among senders, rate limits, storm control (of broadcast, multicast and
//! unknown-unicast frames), and [`rules`] about its frames, as anti-spoofing; all may change while the network runs. Rules between ports
//! are a [`filter`].
//!
//! A **limiter** is a token bucket that is stored as one moment: when it would be full again (the generic cell rate algorithm,
//! ITU-T I.371). It is shared by all queues of a port on all workers, so that more queues are no more tokens. A rate limit drops no
//! frames: it leaves them in the sender's transmit ring (backpressure).

pub mod destinations;
pub mod filter;
pub mod flows;
pub mod gate;
pub mod grants;
pub(crate) mod port_map;
pub mod rule;
pub(crate) mod rule_list;
mod rule_names;
pub(crate) mod rule_set;
pub mod rulebook;
pub mod rules;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use memlane_model::limits::{AntiSpoof, DEFAULT_STORM, Limit, PortLimits, Reserved};

use crate::stats::DropReason;
use crate::time::{Cycles, frequency};
use crate::twin::Twin;
use flows::Flows;
use gate::{Gate, Vlans};
use grants::Grants;
use rules::{PortRules, Published, Service};

/// Minimum burst, so that a limit never cuts a batch that hardware and kernels send at once: one frame of the maximum size.
const LEAST_BURST_BYTES: u64 = 65_536;
const LEAST_BURST_PACKETS: u64 = 32;
/// Burst of a limit, in milliseconds of its rate: as long as a guest may have to wait for a CPU, so that it gets its rate all the
/// same.
const DEFAULT_BURST_MS: u64 = 20;
/// The burst of flooded frames is this part of a second's.
const STORM_BURSTS: u64 = 10;
/// Flooded frames a second of a port that seems to be part of a loop: enough for address resolution between guests.
const SUSPECT_FLOODS: u64 = 100;
/// Answers of the switch to frames of a port a second (RFC 4443, section 2.4).
const ANSWERS: u64 = 100;
/// Buckets of a port that a snapshot of the network has.
pub const BUCKETS: usize = 5;
/// Minimum burst of flooded frames.
const LEAST_STORM_BURST: u64 = 2_000;

/// A token bucket; unlimited until it is set.
#[derive(Debug, Default)]
struct Bucket {
    /// Units a second; 0 for no limit.
    rate: AtomicU64,
    /// Cycles in which it fills.
    burst: AtomicU64,
    /// When it is full again, in sixteenths of cycles.
    full_at: AtomicU64,
}

impl Bucket {
    fn set(&self, rate: Option<u64>, burst: u64) {
        let rate = rate.unwrap_or(0);
        let fill = u128::from(burst) * u128::from(frequency()) / u128::from(rate.max(1));
        self.burst.store(fill.min(u128::from(u64::MAX >> 8)) as u64, Ordering::Relaxed);
        self.full_at.store(0, Ordering::Relaxed);
        self.rate.store(rate, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// When the next unit may pass; at once if that moment is over.
    fn opens_at(&self) -> Cycles {
        (self.full_at.load(Ordering::Relaxed) >> 4).saturating_sub(self.burst.load(Ordering::Relaxed))
    }

    /// Cycles from `now` on after which it is full again.
    fn fills_in(&self, now: Cycles) -> Cycles {
        (self.full_at.load(Ordering::Relaxed) >> 4).saturating_sub(now)
    }

    /// Has it be full again after so many cycles from `now` on.
    fn fill_in(&self, left: Cycles, now: Cycles) {
        let most = self.burst.load(Ordering::Relaxed).saturating_add(frequency().saturating_mul(MOST_OVERDRAWN));
        self.full_at.store(now.saturating_add(left.min(most)).saturating_mul(16), Ordering::Relaxed);
    }

    /// Takes `units` tokens in moment `now`, more than there are if need be.
    fn charge(&self, units: u64, now: Cycles) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let span = span(units, rate, frequency());
        // Cannot fail: the closure always gives a value.
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full| Some(charged(full, now, span)));
    }
}

/// Most time by which a bucket of a snapshot may be overdrawn, in seconds: by a frame of the maximum size at a low rate.
const MOST_OVERDRAWN: u64 = 60;

/// How long `units` take at `rate` a second, on a clock of `frequency`: in sixteenths of cycles, rounded down.
fn span(units: u64, rate: u64, frequency: u64) -> u64 {
    let span = u128::from(units) * (u128::from(frequency) << 4) / u128::from(rate);
    u64::try_from(span).unwrap_or(u64::MAX)
}

/// When a bucket that would be full at `full` is full again if `span` more is taken in moment `now`; both in sixteenths of cycles.
fn charged(full: u64, now: Cycles, span: u64) -> u64 {
    full.max(now.saturating_mul(16)).saturating_add(span)
}

/// Rate limit of one direction of a port, see [`Limit`].
#[derive(Debug, Default)]
pub struct Limiter {
    bytes: Bucket,
    packets: Bucket,
    /// No frame passes.
    shut: AtomicBool,
}

impl Limiter {
    /// Uses `limit` from now on; an invalid one limits nothing.
    pub fn set(&self, limit: &Limit) {
        let burst = Duration::from_millis(limit.burst_ms.unwrap_or(DEFAULT_BURST_MS));
        let within = |rate: u64| (u128::from(rate) * burst.as_micros() / 1_000_000) as u64;
        let bytes = limit.bytes();
        self.bytes.set(bytes, within(bytes.unwrap_or(0)).max(LEAST_BURST_BYTES));
        self.packets.set(limit.packets, within(limit.packets.unwrap_or(0)).max(LEAST_BURST_PACKETS));
    }

    /// Limits frames to `rate` a second, after a burst of so many.
    pub(crate) fn set_packets(&self, rate: Option<u64>, burst: u64) {
        self.packets.set(rate, burst);
    }

    /// True if any rate is limited.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.bytes.is_set() || self.packets.is_set() || self.is_shut()
    }

    /// True if a frame may pass in moment `now`.
    #[inline]
    pub fn is_open(&self, now: Cycles) -> bool {
        !self.is_set() || self.opens_at() <= now
    }

    /// Lets no frame pass from now on, or applies the limit again.
    pub(crate) fn set_shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::Relaxed);
    }

    /// True if no frame may pass by any limit.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Relaxed)
    }

    /// When the next frame may pass; [`Cycles::MAX`] while it is shut.
    pub fn opens_at(&self) -> Cycles {
        if self.is_shut() {
            return Cycles::MAX;
        }
        self.bytes.opens_at().max(self.packets.opens_at())
    }

    /// Charges a frame of `bytes` that passed in moment `now` as so many `packets`.
    #[inline]
    pub fn charge(&self, bytes: u64, packets: u64, now: Cycles) {
        if self.is_set() {
            self.bytes.charge(bytes, now);
            self.packets.charge(packets, now);
        }
    }
}

/// A frame that a port is to flood.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// The frame reaches one receiver at most.
    pub reaches_one: bool,
    /// Addresses moved between the port and another too often lately: [`Table::is_suspect`](crate::table::Table::is_suspect).
    pub suspect: bool,
    /// The present moment.
    pub now: Cycles,
}

/// The limits of a port in force; see the module.
#[derive(Debug)]
pub struct Policy {
    weight: AtomicU16,
    /// Rate limit of the transmit direction.
    pub transmit: Limiter,
    /// Rate limit of the receive direction.
    pub receive: Limiter,
    /// Storm control of its floods.
    storm: Limiter,
    /// The default, so frames that reach one receiver only are not limited.
    usual_storm: AtomicBool,
    /// Limit of its floods while it is a suspect.
    suspect: Limiter,
    /// Rate limit of answers of the switch to its frames.
    answers: Limiter,
    /// Rules about its frames.
    pub rules: Published<PortRules>,
    /// Whether addresses are exchanged in its frames.
    is_twin: AtomicBool,
    /// The services of [`PortLimits::may_serve`], a bit each.
    services: AtomicU8,
    /// The port exchanges frames only with ports that are not isolated.
    isolated: AtomicBool,
    /// The port drops frames to reserved groups.
    drops_reserved: AtomicBool,
    /// Whether it does unless its configuration says otherwise.
    usually_drops_reserved: AtomicBool,
    /// Whether its configuration says nothing about that.
    usual_reserved: AtomicBool,
    /// Flows that it opened, for its life.
    pub flows: Arc<Flows>,
    /// Addresses that its questions for DNS names were answered with, for its life.
    pub grants: Arc<Grants>,
    /// VLANs of the port, for its life.
    vlans: Vlans,
    /// Labels of the port, which events have.
    labels: Mutex<BTreeMap<String, String>>,
}

impl Policy {
    /// A policy with these limits.
    pub fn new(limits: &PortLimits) -> Self {
        let policy = Self {
            weight: AtomicU16::new(1),
            transmit: Limiter::default(),
            receive: Limiter::default(),
            storm: Limiter::default(),
            usual_storm: AtomicBool::new(true),
            suspect: Limiter::default(),
            answers: Limiter::default(),
            rules: Published::default(),
            is_twin: AtomicBool::new(false),
            services: AtomicU8::new(0),
            isolated: AtomicBool::new(false),
            drops_reserved: AtomicBool::new(false),
            usually_drops_reserved: AtomicBool::new(false),
            usual_reserved: AtomicBool::new(true),
            flows: Arc::default(),
            grants: Arc::default(),
            vlans: Vlans::of(limits),
            labels: Mutex::default(),
        };
        policy.answers.set_packets(Some(ANSWERS), ANSWERS);
        policy.suspect.set_packets(Some(SUSPECT_FLOODS), SUSPECT_FLOODS);
        policy.set(limits);
        policy
    }

    /// Applies these limits from now on.
    pub fn set(&self, limits: &PortLimits) {
        self.weight.store(limits.weight, Ordering::Relaxed);
        self.transmit.set(&limits.transmit);
        self.receive.set(&limits.receive);
        let burst = (limits.storm / STORM_BURSTS).max(LEAST_STORM_BURST);
        self.storm.set_packets((limits.storm > 0).then_some(limits.storm), burst);
        self.usual_storm.store(limits.storm == DEFAULT_STORM, Ordering::Relaxed);
        self.rules.set(PortRules::of(limits));
        self.services.store(limits.may_serve.iter().fold(0, |bits, &service| bits | bit(service)), Ordering::Relaxed);
        self.isolated.store(limits.isolated, Ordering::Relaxed);
        self.usual_reserved.store(limits.reserved.is_none(), Ordering::Relaxed);
        let usually = self.usually_drops_reserved.load(Ordering::Relaxed);
        self.drops_reserved.store(limits.reserved.map_or(usually, |reserved| reserved == Reserved::Drop), Ordering::Relaxed);
        self.labels.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&limits.labels);
    }

    /// The token buckets of its rate limits and of storm control.
    fn buckets(&self) -> [&Bucket; BUCKETS] {
        let Self { transmit, receive, storm, .. } = self;
        [&transmit.bytes, &transmit.packets, &receive.bytes, &receive.packets, &storm.packets]
    }

    /// Cycles from `now` on after which each bucket of its limits is full again, for a snapshot of the network.
    pub fn saved_buckets(&self, now: Cycles) -> [Cycles; BUCKETS] {
        self.buckets().map(|bucket| bucket.fills_in(now))
    }

    /// Continues the buckets of a snapshot, from `now` on.
    pub fn restore_buckets(&self, left: &[Cycles; BUCKETS], now: Cycles) {
        self.buckets().iter().zip(left).for_each(|(bucket, &left)| bucket.fill_in(left, now));
    }

    /// Labels of the port.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Frames to reserved groups are dropped unless its configuration says otherwise: the port leads to a network of its own, where they
    /// would be taken for those of a neighbour.
    pub fn usually_drop_reserved(&self) {
        self.usually_drops_reserved.store(true, Ordering::Relaxed);
        if self.usual_reserved.load(Ordering::Relaxed) {
            self.drops_reserved.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the switch may answer a frame of the port in moment `now`.
    pub(crate) fn may_answer(&self, now: Cycles) -> bool {
        self.answers.is_open(now)
    }

    /// Like [`Self::may_answer`], and counts the answer.
    pub(crate) fn take_answer(&self, now: Cycles) -> bool {
        let may = self.may_answer(now);
        if may {
            self.answers.charge(0, 1, now);
        }
        may
    }

    /// Whether `service` is one of its `may-serve`.
    pub fn may_serve(&self, service: Service) -> bool {
        self.services.load(Ordering::Relaxed) & bit(service) != 0
    }

    /// Exchanges these addresses in its frames from now on, or none.
    pub fn set_twin(&self, twin: Option<Twin>) {
        let is_twin = twin.is_some();
        self.rules.set_twin(twin);
        self.is_twin.store(is_twin, Ordering::Relaxed);
    }

    /// Whether addresses are exchanged in its frames.
    #[inline]
    pub fn is_twin(&self) -> bool {
        self.is_twin.load(Ordering::Relaxed)
    }

    /// Gate of the port.
    #[inline]
    pub fn gate(&self) -> Gate<'_> {
        Gate {
            isolated: self.isolated.load(Ordering::Relaxed),
            drops_reserved: self.drops_reserved.load(Ordering::Relaxed),
            vlans: &self.vlans,
            filtered: None,
        }
    }

    /// Charges a frame that the port floods.
    ///
    /// # Errors
    /// The port may not now, for this reason.
    pub fn take_flood(&self, flood: Flood) -> Result<(), DropReason> {
        self.may_flood(&flood)?;
        if flood.suspect {
            self.suspect.charge(0, 1, flood.now);
        }
        if self.limits_flood(&flood) {
            self.storm.charge(0, 1, flood.now);
        }
        Ok(())
    }

    /// Whether it may flood a frame.
    ///
    /// # Errors
    /// The port may not now, for this reason.
    pub(crate) fn may_flood(&self, flood: &Flood) -> Result<(), DropReason> {
        if flood.suspect && !self.suspect.is_open(flood.now) {
            return Err(DropReason::Loop);
        }
        let open = !self.limits_flood(flood) || self.storm.is_open(flood.now);
        open.then_some(()).ok_or(DropReason::Storm)
    }

    fn limits_flood(&self, flood: &Flood) -> bool {
        !flood.reaches_one || !self.usual_storm.load(Ordering::Relaxed)
    }

    /// Weight of the port among senders.
    pub fn weight(&self) -> u16 {
        self.weight.load(Ordering::Relaxed)
    }
}

fn bit(service: Service) -> u8 {
    1 << service as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_lead_out_drop_reserved_groups_by_default() {
        let limits = |reserved| PortLimits { reserved, ..PortLimits::default() };
        let policy = Policy::new(&limits(None));
        assert!(!policy.gate().drops_reserved);
        policy.usually_drop_reserved();
        assert!(policy.gate().drops_reserved);
        policy.set(&limits(Some(Reserved::Pass)));
        assert!(!policy.gate().drops_reserved, "as configured");
        policy.set(&limits(None));
        assert!(policy.gate().drops_reserved);
    }

    /// Frames of `size` that pass in a second of steps of a microsecond, after the first burst.
    fn passed(limit: &Limit, size: u64) -> u64 {
        let limiter = Limiter::default();
        limiter.set(limit);
        let (mut count, start) = (0, 1 << 40);
        let microsecond = frequency() / 1_000_000;
        for step in 0..2_000_000_u64 {
            let now = start + step * microsecond;
            while limiter.is_open(now) {
                limiter.charge(size, 1, now);
                count += u64::from(step >= 1_000_000);
            }
        }
        count
    }

    #[test]
    fn a_limit_holds_over_time() {
        let bytes = Limit { rate: Some("100Mbit".into()), ..Limit::default() };
        for size in [60, 1514, 60_000] {
            let rate = passed(&bytes, size) * size * 8;
            assert!(rate.abs_diff(100_000_000) < 1_000_000, "{size}: {rate}");
        }
        let packets = Limit { packets: Some(10_000), ..Limit::default() };
        assert!(passed(&packets, 1514).abs_diff(10_000) < 20);
    }

    #[test]
    fn the_stricter_limit_counts() {
        let both = Limit { rate: Some("100Mbit".into()), packets: Some(1000), burst_ms: None };
        assert!(passed(&both, 60).abs_diff(1000) < 5);
    }

    #[test]
    fn floods_that_reach_one_receiver_are_limited_only_where_it_is_configured() {
        let now = 1 << 40;
        let flood = |reaches_one| Flood { reaches_one, suspect: false, now };
        let passed = |policy: &Policy, reaches_one| (0..300_000).filter(|_| policy.take_flood(flood(reaches_one)).is_ok()).count();
        let usual = Policy::new(&PortLimits::default());
        assert_eq!(
            (passed(&usual, true), passed(&usual, false)),
            (300_000, 20_001),
            "a tenth of a second's, and the one that goes beyond"
        );
        let configured = Policy::new(&PortLimits { storm: 100, ..PortLimits::default() });
        assert_eq!(passed(&configured, true), 2001);
        let unlimited = Policy::new(&PortLimits { storm: 0, ..PortLimits::default() });
        assert_eq!(passed(&unlimited, false), 300_000);
    }

    #[test]
    fn uncompressed_video_does_not_meet_the_usual_storm_limit() {
        let (policy, start) = (Policy::new(&PortLimits::default()), 1 << 40);
        let frame = frequency() / 190_000;
        let flood = |number| Flood { reaches_one: false, suspect: false, now: start + number * frame };
        assert!((0..400_000).all(|number| policy.take_flood(flood(number)).is_ok()));
    }

    #[test]
    fn a_suspect_floods_little() {
        let policy = Policy::new(&PortLimits { storm: 0, ..PortLimits::default() });
        let flood = Flood { reaches_one: true, suspect: true, now: 1 << 40 };
        let passed = (0..1000).filter(|_| policy.take_flood(flood) != Err(DropReason::Loop)).count();
        assert_eq!(passed, 101);
        assert_eq!(policy.take_flood(Flood { suspect: false, ..flood }), Ok(()));
    }

    #[test]
    fn a_limiter_that_is_not_set_is_open() {
        let limiter = Limiter::default();
        limiter.charge(1 << 40, 1, 5);
        assert!(limiter.is_open(0) && !limiter.is_set());
    }
}

#[cfg(test)]
mod proofs {
    use super::*;

    /// Overflow makes no limiter forget taken tokens, or give more than the rate.
    #[test]
    #[cfg_attr(kani, kani::proof)]
    fn what_is_taken_stays_taken() {
        bolero::check!().with_type::<(u64, u64, u64)>().cloned().for_each(|(full, now, span)| {
            let after = charged(full, now, span);
            assert!(after >= full && after >= span);
            assert!(after >= now.saturating_mul(16));
            // A bucket that was full before lacks exactly the taken tokens.
            if full <= now && now < 1 << 59 && span < 1 << 59 {
                assert_eq!(after, (now << 4) + span);
            }
        });
    }

    /// A second's worth of the rate takes a second on any clock; no unit is free but for the rounding of a sixteenth of a cycle.
    #[test]
    #[cfg_attr(kani, kani::proof)]
    fn units_take_the_time_of_their_rate() {
        // Rates as the configuration has them, frames as long as they may be, clocks of 1 MHz to 17 GHz.
        let ranges = (0..=1_u64 << 17, 1..=1_u64 << 37, 1_u64 << 20..=1 << 34);
        bolero::check!().with_generator(ranges).cloned().for_each(|(units, rate, frequency)| {
            let span = u128::from(span(units, rate, frequency));
            let wanted = u128::from(units) * u128::from(frequency) * 16;
            assert!(span * u128::from(rate) <= wanted && wanted < (span + 1) * u128::from(rate));
        });
    }

    /// The bucket opens when all but the burst has been refilled, and never before.
    #[test]
    #[cfg_attr(kani, kani::proof)]
    fn a_bucket_opens_a_burst_before_it_is_full() {
        bolero::check!().with_type::<(u64, u64)>().cloned().for_each(|(full, burst)| {
            let bucket = Bucket { rate: AtomicU64::new(1), burst: AtomicU64::new(burst), full_at: AtomicU64::new(full) };
            let opens = bucket.opens_at();
            assert_eq!(opens == 0, full >> 4 <= burst);
            assert!(opens == 0 || opens + burst == full >> 4);
        });
    }
}
