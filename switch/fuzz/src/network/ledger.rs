//! The ledger: what the model owes each guest, against what arrived and what was counted.
//!
//! Each copy of a frame for a guest is **owed** to it, and each verdict that drops one is to be counted at its sender. Where the model has more than
//! one answer, the ledger has a least and a most. Nothing arrives that is not owed, nothing twice, and nothing changed. At rest, all that is owed
//! has arrived or was counted as dropped for one reason.

mod addresses;
mod records;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use memlane::frame::MacAddress;
use memlane::offload::Offloads;
use memlane::policy::Limit;
use memlane::port::Port;
use memlane::port::settings::PortSettings;
use memlane::stats::{DropReason, PortCounters};
use memlane::time::{Cycles, driven};

use super::super::judge::Arrived;
use super::flows::{FlowKey, Granted, Learned, OpenFlows};
use super::frames::{Fault, Frame};
use super::model::{Config, Life, PortState, State, Verdict};
use super::offloads::MOST_SEGMENTS;
use addresses::{Claim, Lease};
use records::Captured;

/// Sums of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames that the switch took.
    pub taken: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// Drop reasons that were counted, a bit each.
    reasons: u64,
    /// Which arrived when, and where.
    digest: u64,
}

impl Totals {
    /// The sums of two networks.
    pub fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.arrived += other.arrived;
        self.reasons |= other.reasons;
    }

    /// Drop reasons that were counted.
    pub fn reasons(self) -> impl Iterator<Item = DropReason> {
        DropReason::ALL.iter().copied().filter(move |reason| self.reasons & 1 << *reason as u8 != 0)
    }
}

/// A count of which the model knows bounds.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    least: u64,
    most: u64,
}

/// Subject of a rate limit.
#[derive(Clone, Copy, Debug)]
enum Way {
    Transmit,
    Receive,
    Flood,
}

const WAYS: [Way; 3] = [Way::Transmit, Way::Receive, Way::Flood];

/// A guest's account.
#[derive(Debug)]
struct Account {
    /// The guest's port, in each process of the network, and the workers that count there.
    ports: Vec<(Arc<Port>, usize)>,
    owed: Bounds,
    refused: BTreeMap<DropReason, Bounds>,
    /// Frames that the driver took from the receive queue, of guests and of the switch: segments of GSO frames that were cut, too.
    received: u64,
    /// The same, with each frame that was cut once, when its last segment has arrived.
    complete: u64,
    /// Segments of frames of which others did not arrive.
    in_part: u64,
    /// Offloads that the guest accepts.
    accepts: Offloads,
    /// Frames that the switch took from the transmit queue, as far as they were looked at.
    taken: u64,
    /// Since everything was at rest, it has had room for all that a poll iteration brings, and nothing on the way delays or loses frames.
    has_room: bool,
    /// Since then, there was no link emulation before the receive queue.
    has_no_link: bool,
    /// Frames dropped there when no frame was in flight last.
    dropped_before: u64,
    /// Rate limits, of transmission, of reception and of floods.
    limits: [Option<Metered>; 3],
    /// The guest is detached.
    is_over: bool,
}

/// A rate limit (token bucket), the moment since which it is in force, and the frames and bytes that had passed then.
#[derive(Clone, Debug)]
struct Metered {
    limit: Limit,
    /// Least burst, in frames.
    burst: u64,
    since: Cycles,
    passed: [u64; 2],
}

impl Metered {
    /// Frames and bytes that may have passed by `now`: the burst, the rate, and the frame that uses up the last token.
    fn most(&self, now: Cycles) -> [u64; 2] {
        let time = u128::from(now - self.since);
        let of = |rate: Option<u64>, least: u64, last: u64| {
            rate.map_or(u64::MAX, |rate| {
                let (rate, burst) = (u128::from(rate), u128::from(self.limit.burst_ms.unwrap_or(20)) * 1_000_000);
                let second = u128::from(driven::FREQUENCY);
                (rate * time / second + (rate * burst / second).max(least.into())) as u64 + last
            })
        };
        [of(self.limit.packets, self.burst, 2 + MOST_SEGMENTS), of(self.limit.bytes(), 65_536, 2 * 2048)]
    }
}

impl Account {
    fn dropped(&self, reason: DropReason) -> u64 {
        self.sum(|port, worker| port.counters(worker).dropped(reason))
    }

    fn sum(&self, count: impl Fn(&Port, usize) -> u64) -> u64 {
        self.ports
            .iter()
            .flat_map(|(port, workers)| (0..*workers).map(move |worker| (port, worker)))
            .map(|(port, worker)| count(port, worker))
            .sum()
    }

    /// Frames and bytes that passed the transmit queue or the receive queue, and frames that were flooded.
    fn passed(&self, by: Way) -> [u64; 2] {
        let count = |counters: &PortCounters| match by {
            Way::Transmit => [counters.transmit_frames.get(), counters.transmit_bytes.get()],
            Way::Receive => [counters.receive_frames.get(), counters.receive_bytes.get()],
            Way::Flood => [counters.flooded.get(), 0],
        };
        [0, 1].map(|what| self.sum(|port, worker| count(port.counters(worker))[what]))
    }

    /// The rate limits are those of `settings` from now on, and have all their tokens.
    fn meter(&mut self, settings: &PortSettings, now: Cycles) {
        let storm = Some(settings.limits.storm).filter(|&storm| storm > 0);
        let floods = Limit { packets: storm, ..Limit::default() };
        let limits = [(&settings.limits.transmit, 32), (&settings.limits.receive, 32), (&floods, 2000)];
        self.limits = [0, 1, 2].map(|at| {
            let ((limit, burst), passed) = (limits[at], self.passed(WAYS[at]));
            (*limit != Limit::default()).then(|| Metered { limit: limit.clone(), burst, since: now, passed })
        });
    }

    fn check_limits(&self, life: Life, now: Cycles) {
        for (by, metered) in WAYS.into_iter().zip(&self.limits) {
            let Some(metered) = metered else { continue };
            let (passed, most) = (self.passed(by), metered.most(now));
            for what in 0..2 {
                let since = passed[what] - metered.passed[what];
                assert!(
                    since <= most[what],
                    "{since} frames or bytes of guest {life} passed the limit {}, {} may",
                    metered.limit,
                    most[what]
                );
            }
        }
    }

    fn check_at_rest(&self, life: Life, early: u64) {
        let dropped = self.dropped_as_receiver() - self.dropped_before;
        assert!(!self.has_room || dropped == 0, "{dropped} frames were dropped at guest {life}, which had room");
        let [in_rings, _] = self.passed(Way::Receive);
        let is_right = (self.received - self.in_part - early..=self.received).contains(&in_rings);
        assert!(is_right, "{in_rings} frames for guest {life} are counted, {} arrived, {} in part", self.received, self.in_part);
        for (reason, bounds) in &self.refused {
            let (count, name) = (self.dropped(*reason), reason.name());
            assert!(
                count >= bounds.least,
                "{count} frames of guest {life} were dropped as {name}, at least {} should be",
                bounds.least
            );
        }
    }

    fn dropped_as_receiver(&self) -> u64 {
        DropReason::ALL.iter().filter(|reason| !reason.is_of_sender()).map(|&reason| self.dropped(reason)).sum()
    }
}

/// A frame that the switch took from a transmit queue.
#[derive(Debug)]
struct Sent {
    from: Life,
    frame: Frame,
    /// Copies that may arrive in receive queues.
    to: Vec<Copy>,
    is_flooded: bool,
    /// Copies that rules deny at least: those of a flooded frame.
    denied: u64,
    verdicts: Vec<Verdict>,
}

#[derive(Debug)]
struct Copy {
    to: Life,
    tag: u16,
    must: bool,
    arrived: bool,
    /// Parts of a frame with offloads.
    parts: Vec<Arrived>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The configuration; while it changes, that before and that after.
    configs: Vec<Config>,
    /// A guest that is being detached. Workers forget its port before its addresses: meanwhile rules for ports may deny frames to it, and frames
    /// go to a port that is not there.
    pub leaving: Option<Life>,
    /// There are several workers, with inter-worker queues.
    is_parallel: bool,
    /// Addresses that move too often are held (loop protection).
    holds: bool,
    /// Each verdict is printed.
    is_told: bool,
    accounts: Vec<Account>,
    learned: HashMap<(usize, u16, MacAddress), Learned>,
    flows: OpenFlows,
    granted: Granted,
    /// Frames that guests made available, by number.
    made: HashMap<u32, Frame>,
    sent: HashMap<u32, Sent>,
    /// Segments that arrived of frames which backpressure left in their transmit queues, by number and receiver.
    early: HashMap<(u32, Life), Vec<Arrived>>,
    /// GSO frames that were in transmit queues at a takeover: some of their segments may lie in receive queues that are no receiver's in the next
    /// process.
    begun: HashSet<u32>,
    /// Copies that may be counted nowhere, because a process or a port with frames on an emulated link ended.
    pub lost: u64,
    /// Frames of one guest that arrived in the receive queue of another.
    arrived: HashMap<(Life, Life), u64>,
    /// The last frame of each flow of a guest that arrived at another; no flow is reordered without link emulation.
    last: HashMap<(Life, Life, u64), u32>,
    /// Fragments of each guest. From one on, all frames between its addresses are one flow, and may overtake those in flight.
    fragments: BTreeSet<(Life, u32)>,
    /// Frames of transmit queues that stopped, when no frame was in flight last.
    stopped: u64,
    /// While a recorder runs: the frames of each port that were taken and not compared with their records, in their order.
    recorded: Option<BTreeMap<u16, VecDeque<Judged>>>,
    captured: Option<Captured>,
    /// Addresses that guests claimed, or DHCP servers leased, perhaps; and the last leases.
    claims: HashSet<Claim>,
    leases: HashMap<(usize, u16, IpAddr), Lease>,
    /// Poll iterations in which frames were taken: their order within one is not known.
    iterations: u64,
    pub totals: Totals,
}

/// Whether flows are open that perhaps are, and addresses of DNS names hold that perhaps do.
const KINDS: [(bool, bool); 4] = [(true, true), (false, true), (true, false), (false, false)];

/// A frame, and the verdicts on it that are right.
type Judged = (Frame, Vec<Verdict>);

/// Frames of a transmit queue that a worker took, in their order, and the next one, which backpressure may have left there.
#[derive(Clone, Debug)]
pub struct Taken {
    pub life: Life,
    pub numbers: Vec<u32>,
    pub next: Option<u32>,
}

impl Ledger {
    /// Of a network with one worker, or several, and with loop protection or not.
    pub fn new(is_parallel: bool, holds: bool, is_told: bool) -> Self {
        Self { is_parallel, holds, is_told, ..Self::default() }
    }

    pub fn config(&self) -> &Config {
        self.configs.last().expect("a configuration")
    }

    /// The configuration becomes `next`: until [`Self::end_change`] either is right.
    pub fn begin_change(&mut self, next: Config) {
        self.configs.push(next);
        self.note_limits();
        self.widen_floods();
    }

    /// Other workers decide on floods of before by what they know when they meet them.
    fn widen_floods(&mut self) {
        if self.is_parallel {
            let floods: Vec<u32> = self.sent.iter().filter(|(_, sent)| sent.is_flooded).map(|(&number, _)| number).collect();
            floods.into_iter().for_each(|number| self.widen(number));
        }
    }

    pub fn end_change(&mut self) {
        let next = self.configs.pop().expect("a configuration");
        for port in next.ports.iter().flatten() {
            let is_same = self.config_before(port).is_some_and(|before| before.settings.limits == port.settings.limits);
            if !is_same {
                self.accounts[port.life].meter(&port.settings, driven::now());
            }
        }
        self.configs = vec![next];
    }

    /// Storm control of this guest lets no more frames pass than come with time.
    pub fn have_no_floods(&mut self, life: Life) {
        let passed = self.accounts[life].passed(Way::Flood);
        if let Some(metered) = &mut self.accounts[life].limits[2] {
            (metered.burst, metered.since, metered.passed) = (0, driven::now(), passed);
        }
    }

    fn config_before(&self, port: &PortState) -> Option<&PortState> {
        self.configs.first()?.port(port.life)
    }

    /// Notes whether a guest has room for all that a poll iteration brings.
    pub fn note_room(&mut self, life: Life, has_room: bool) {
        self.accounts[life].has_room &= has_room;
    }

    /// Notes which guests the newest configuration lets lose or delay frames.
    fn note_limits(&mut self) {
        let ports = self.configs.last().into_iter().flat_map(|config| config.ports.iter().flatten());
        for PortState { life, settings, receives, .. } in ports {
            let account = &mut self.accounts[*life];
            account.has_no_link &= settings.link.is_none();
            account.has_room &=
                settings.link.is_none() && *receives && settings.enabled && settings.limits.receive == Limit::default();
            if let Some(captured) = self.captured.as_mut().filter(|_| !account.has_no_link) {
                captured.linked.insert(*life);
            }
        }
    }

    /// The flood `number` is perhaps still on its way to other workers.
    fn widen(&mut self, number: u32) {
        let Some(mut sent) = self.sent.remove(&number) else { return };
        for copy in sent.to.iter_mut().filter(|copy| copy.must && !copy.arrived) {
            copy.must = false;
            self.accounts[copy.to].owed.least -= 1;
        }
        self.accounts[sent.from].refused.entry(DropReason::PolicyDenied).or_default().least -= std::mem::take(&mut sent.denied);
        let from = self.config().port(sent.from).cloned();
        let frame =
            Frame { to: if sent.frame.to.is_group() { sent.frame.to } else { MacAddress::BROADCAST }, ..sent.frame.clone() };
        let judge = |lenient, grants| {
            let (flows, granted) = (&self.flows, &self.granted);
            let state = State { config: self.config(), flows, granted, behind: None, lenient, grants, now: None };
            from.as_ref().and_then(|from| state.judge_copies(from, &frame))
        };
        let mut verdicts: Vec<_> = KINDS.iter().filter_map(|&(lenient, grants)| judge(lenient, grants)).collect();
        verdicts.dedup();
        if self.is_told {
            println!("        frame {number} may also meet {verdicts:?}");
        }
        verdicts.iter().for_each(|verdict| self.owe(&mut sent, &reached(verdict), false));
        let denied =
            verdicts.iter().filter_map(|verdict| if let Verdict::Flood(_, denied) = verdict { Some(*denied) } else { None });
        self.accounts[sent.from].refused.entry(DropReason::PolicyDenied).or_default().most += denied.max().unwrap_or(0);
        self.sent.insert(number, sent);
    }

    /// Copies of `sent` for the receive queues of these ports.
    fn owe(&mut self, sent: &mut Sent, reached: &[(Life, u16)], must: bool) {
        for &(to, tag) in reached {
            match sent.to.iter_mut().find(|copy| copy.to == to) {
                // One state without the port has no tag for it.
                Some(copy) => copy.tag = copy.tag.max(tag),
                None => {
                    sent.to.push(Copy { to, tag, must, arrived: false, parts: Vec::new() });
                    let account = &mut self.accounts[to];
                    // Each segment may be lost by itself.
                    account.owed.most += if account.has_no_link { 1 } else { sent.frame.segments() as u64 };
                    account.owed.least += u64::from(must);
                }
            }
        }
    }

    /// A guest was attached: its life.
    pub fn open(&mut self) -> Life {
        self.accounts.push(Account {
            ports: Vec::new(),
            owed: Bounds::default(),
            refused: BTreeMap::new(),
            received: 0,
            complete: 0,
            in_part: 0,
            accepts: Offloads::default(),
            taken: 0,
            has_room: false,
            has_no_link: false,
            dropped_before: 0,
            limits: [None, None, None],
            is_over: false,
        });
        self.accounts.len() - 1
    }

    /// The guest, which accepts these offloads, has this port, at so many workers: another one in the next process of the network.
    pub fn enter(&mut self, life: Life, port: &Arc<Port>, workers: usize, accepts: Offloads) {
        let account = &mut self.accounts[life];
        account.ports.push((Arc::clone(port), workers));
        account.accepts = accepts;
    }

    /// The guest is gone: what was learned behind it is forgotten.
    pub fn close(&mut self, life: Life) {
        self.accounts[life].is_over = true;
        self.forget(life);
    }

    /// No FDB entry leads to `life` any more.
    pub fn forget(&mut self, life: Life) {
        self.forget_leases(life);
        for learned in self.learned.values_mut() {
            if learned.behind.remove(&Some(life)) {
                learned.behind.insert(None);
            }
            learned.homes.remove(&life);
        }
    }

    /// Addresses that were learned behind `life` may be forgotten, as the guest's own address changes.
    pub fn may_forget(&mut self, life: Life) {
        self.learned.values_mut().filter(|learned| learned.behind.contains(&Some(life))).for_each(|learned| {
            learned.behind.insert(None);
        });
    }

    /// The process of the network was replaced: nothing is learned and no flow open, and frames on emulated links are lost.
    pub fn forget_all(&mut self) {
        let on_links = self.accounts.iter().filter(|account| !account.is_over && !account.has_no_link);
        self.lost += on_links.map(|account| account.owed.most - account.complete - account.dropped_as_receiver()).sum::<u64>();
        self.begun.extend(self.made.iter().filter(|(_, frame)| frame.segments() > 1).map(|(number, _)| number));
        self.learned.clear();
        self.claims.clear();
        self.leases.clear();
        (self.flows, self.granted) = (OpenFlows::default(), Granted::default());
        self.accounts.iter_mut().for_each(|account| account.limits = [None, None, None]);
    }

    /// The address may be behind the guest from now on, or nowhere.
    pub fn blur(&mut self, mac: MacAddress, segment: usize, life: Option<Life>) {
        let vlans: Vec<u16> =
            self.learned.keys().filter(|(of, _, known)| (*of, *known) == (segment, mac)).map(|key| key.1).collect();
        let own = life.and_then(|life| self.config().port(life)).and_then(|port| port.vlan_of(0));
        for vlan in vlans.into_iter().chain(own) {
            let learned = self.learned.entry((segment, vlan, mac)).or_default();
            learned.behind.extend([None, life]);
            learned.seen = learned.seen.max(1);
        }
    }

    /// FDB aging: addresses that were silent for `age` seconds are forgotten in second `now`.
    pub fn expire(&mut self, now: u64, age: u64) {
        for learned in self.learned.values_mut().filter(|learned| learned.seen + age <= now + 2) {
            learned.behind.insert(None);
        }
    }

    /// A guest was told these addresses of a DNS name, each with its TTL. Without rules with names none is kept.
    pub fn grant(&mut self, life: Life, name: &str, addresses: &[(IpAddr, u32)], now: u64) {
        if self.config().has_names() {
            addresses.iter().for_each(|&(ip, ttl)| self.granted.give(life, name, ip, ttl.into(), now));
            self.widen_floods();
        }
    }

    pub fn make(&mut self, frame: Frame) {
        if self.is_told {
            println!("        made {frame:?}");
        }
        self.made.insert(frame.number, frame);
    }

    /// How many frames of the guest the switch has taken since this was last asked.
    pub fn count_taken(&mut self, life: Life) -> u64 {
        let account = &mut self.accounts[life];
        let unread = Fault::ALL.map(Fault::reason).into_iter().chain([DropReason::TransmitDisabled]);
        let unread: u64 = unread.map(|reason| account.dropped(reason)).sum();
        let taken = account.sum(|port, worker| port.counters(worker).transmit_frames.get()) + unread;
        taken - std::mem::replace(&mut account.taken, taken)
    }

    /// A worker took these frames in one poll iteration of second `now`.
    pub fn take(&mut self, taken: &[Taken], now: u64) {
        self.iterations += 1;
        let learners = self.learners(taken);
        for (key, (perhaps, surely)) in &learners {
            let learned = self.learned.entry(*key).or_default();
            learned.homes.extend(perhaps);
            learned.behind.extend(perhaps.iter().map(|&life| Some(life)));
            if !surely {
                learned.behind.extend(learned.homes.iter().map(|&life| Some(life)));
            }
        }
        let has_defaults = self.configs.iter().any(|config| config.rules.iter().any(|rule| rule.default.is_some()));
        if has_defaults {
            self.opened(taken, now).into_iter().for_each(|flow| self.flows.open(flow, now, false));
        }
        for taken in taken {
            for number in &taken.numbers {
                self.judge(taken.life, *number, now);
                // Another worker may know of more flows when the inter-worker queue is served.
                if has_defaults && self.is_parallel && self.sent.get(number).is_some_and(|sent| sent.is_flooded) {
                    self.widen(*number);
                }
            }
        }
        self.note_waiting_claims(taken, now);
        if has_defaults {
            self.opened_surely(taken, now).into_iter().for_each(|flow| self.flows.open(flow, now, true));
        }
        for (key, (perhaps, surely)) in learners {
            let learned = self.learned.entry(key).or_default();
            // Frames that teach nothing confirm no entry either.
            if surely && !self.holds {
                learned.seen = now;
                // Addresses behind a guest that is being detached may be forgotten at any time.
                let may_be_forgotten = self.leaving.is_some_and(|leaving| perhaps.contains(&leaving)).then_some(None);
                learned.behind = perhaps.into_iter().map(Some).chain(may_be_forgotten).collect();
            }
        }
    }

    /// MAC learning: the addresses that frames teach, the ports that perhaps do, and whether one surely does.
    fn learners(&self, taken: &[Taken]) -> HashMap<(usize, u16, MacAddress), (Vec<Life>, bool)> {
        let mut learners: HashMap<_, (Vec<Life>, bool)> = HashMap::new();
        for taken in taken {
            let all = taken.numbers.iter().map(|number| (number, true)).chain(taken.next.iter().map(|number| (number, false)));
            for (number, was_taken) in all {
                let Some(frame) = self.made.get(number) else { continue };
                let results: Vec<_> = self
                    .ports_of(taken.life)
                    .map(|(config, port)| (port.segment, port.settings.limits.storm > 0, config.learns(port, frame)))
                    .collect();
                let sure = was_taken && results.iter().all(|(_, has_storm, result)| !has_storm && result.is_ok());
                for (segment, _, result) in results {
                    let Ok(vlan) = result else { continue };
                    let (perhaps, surely) = learners.entry((segment, vlan, frame.from)).or_default();
                    if !perhaps.contains(&taken.life) {
                        perhaps.push(taken.life);
                    }
                    *surely |= sure;
                }
            }
        }
        learners
    }

    fn ports_of(&self, life: Life) -> impl Iterator<Item = (&Config, &PortState)> {
        self.configs.iter().filter_map(move |config| Some((config, config.port(life)?)))
    }

    /// The states that are possible for a frame.
    fn states<'s>(&'s self, from: &PortState, config: &'s Config, frame: &Frame, now: u64) -> Vec<State<'s>> {
        let vlan = config.learns(from, frame).unwrap_or_default();
        let nowhere = Learned::default();
        let learned = self.learned.get(&(from.segment, vlan, frame.to)).unwrap_or(&nowhere);
        let (flows, granted) = (&self.flows, &self.granted);
        let state = State { config, flows, granted, behind: None, lenient: true, grants: true, now: Some(now) };
        let kinds = &KINDS[..if config.has_names() { 4 } else { 2 }];
        let states = learned
            .behind
            .iter()
            .flat_map(|&behind| kinds.iter().map(move |&(lenient, grants)| State { behind, lenient, grants, ..state }));
        states.collect()
    }

    /// The verdicts on a frame that are right.
    fn verdicts(&self, life: Life, frame: &Frame, now: u64, mut opens: impl FnMut(FlowKey, usize)) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        let mut number = 0;
        for (config, from) in self.ports_of(life) {
            for state in self.states(from, config, frame, now) {
                let verdict = state.judge(from, frame, &mut |flow| opens(flow, number));
                number += 1;
                if !verdicts.contains(&verdict) {
                    verdicts.push(verdict);
                }
            }
        }
        // Floods may be limited: where addresses move as in a loop, and by storm control, which teaches nothing then.
        let has_storm = self.ports_of(life).any(|(_, from)| from.settings.limits.storm > 0);
        if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Flood(..))) {
            let limits = [(self.holds, DropReason::Loop), (has_storm, DropReason::Storm)];
            verdicts.extend(limits.into_iter().filter(|(may, _)| *may).map(|(_, reason)| Verdict::Drop(reason)));
        }
        let denied = Verdict::Drop(DropReason::PolicyDenied);
        if self.left_behind(life, frame.to).is_some() && !verdicts.contains(&denied) {
            verdicts.push(denied);
        }
        verdicts
    }

    /// The guest that is being detached, if the address may be behind it for frames of guest `from`.
    fn left_behind(&self, from: Life, mac: MacAddress) -> Option<Life> {
        let leaving = self.leaving?;
        let is_in = |segment: usize| self.ports_of(from).any(|(_, from)| from.segment == segment);
        let is_pinned = self.ports_of(leaving).any(|(_, port)| port.settings.mac == Some(mac) && is_in(port.segment));
        let is_learned = |((segment, _, known), learned): (&(usize, u16, MacAddress), &Learned)| {
            *known == mac && learned.behind.contains(&Some(leaving)) && is_in(*segment)
        };
        (is_pinned || self.learned.iter().any(is_learned)).then_some(leaving)
    }

    /// OpenFlows that these frames perhaps open.
    fn opened(&self, taken: &[Taken], now: u64) -> Vec<FlowKey> {
        let mut flows = Vec::new();
        for taken in taken {
            for frame in taken.numbers.iter().chain(&taken.next).filter_map(|number| self.made.get(number)) {
                self.verdicts(taken.life, frame, now, |flow, _| flows.push(flow));
            }
        }
        flows
    }

    /// OpenFlows that they surely opened: in every state.
    fn opened_surely(&self, taken: &[Taken], now: u64) -> Vec<FlowKey> {
        let mut all = Vec::new();
        for taken in taken {
            let is_dropped = |sent: &&Sent| sent.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Drop(_)));
            for frame in taken.numbers.iter().filter_map(|number| self.sent.get(number)).filter(|sent| !is_dropped(sent)) {
                let (mut flows, mut states) = (HashMap::<FlowKey, Vec<usize>>::new(), 0);
                for (config, from) in self.ports_of(taken.life) {
                    states += self.states(from, config, &frame.frame, now).len();
                }
                self.verdicts(taken.life, &frame.frame, now, |flow, state| {
                    let known = flows.entry(flow).or_default();
                    if known.last() != Some(&state) {
                        known.push(state);
                    }
                });
                all.extend(flows.into_iter().filter(|(_, in_states)| in_states.len() == states).map(|(flow, _)| flow));
            }
        }
        all
    }

    fn judge(&mut self, life: Life, number: u32, now: u64) {
        let Some(frame) = self.made.remove(&number) else { panic!("frame {number} of {life} was taken twice") };
        self.totals.taken += 1;
        let verdicts = self.verdicts(life, &frame, now, |_, _| {});
        if self.is_told {
            println!("        frame {number} of {life}: {verdicts:?} {frame:?}");
        }
        let gone = self.left_behind(life, frame.to).map(|leaving| Verdict::To(leaving, frame.tag));
        if let Some(recorded) = &mut self.recorded
            && let Some((port, _)) = self.accounts[life].ports.last()
        {
            let verdicts = verdicts.iter().cloned().chain(gone).collect();
            recorded.entry(port.id.0).or_default().push_back((frame.clone(), verdicts));
        }
        if let Some(captured) = &mut self.captured
            && let Some((port, _)) = self.accounts[life].ports.last()
        {
            let may_be_unread = frame.fault.is_some() || verdicts.contains(&Verdict::Drop(DropReason::TransmitDisabled));
            captured.taken.entry(port.id.0).or_default().push_back((frame.clone(), may_be_unread));
        }
        self.note_claims(life, &frame, &verdicts, true);
        if frame.is_fragment() {
            self.fragments.insert((life, number));
        }
        let is_flooded = verdicts.iter().any(|verdict| matches!(verdict, Verdict::Flood(..)));
        let mut sent = Sent { from: life, frame, to: Vec::new(), is_flooded, denied: 0, verdicts: verdicts.clone() };
        let reached: Vec<Vec<(Life, u16)>> = verdicts.iter().map(reached).collect();
        for one in &reached {
            let (must, may): (Vec<_>, Vec<_>) = one.iter().partition(|to| reached.iter().all(|other| other.contains(to)));
            self.owe(&mut sent, &must, true);
            self.owe(&mut sent, &may, false);
        }
        sent.denied = self.note_refused(life, &verdicts);
        let early: Vec<_> = self.early.extract_if(|(of, _), _| *of == number).collect();
        for ((_, to), parts) in early {
            match sent.to.iter_mut().find(|copy| copy.to == to) {
                Some(copy) => copy.parts = parts,
                None => self.accounts[to].in_part += parts.len() as u64,
            }
        }
        self.sent.insert(number, sent);
    }

    /// The virtqueues of a guest stop: addresses behind it are forgotten.
    pub fn may_stop(&mut self, life: Life) {
        self.forget_leases(life);
        self.may_see_again(life);
    }

    /// A frame that was seen in the transmit queue of a guest may be seen again, or not be taken.
    pub fn may_see_again(&mut self, life: Life) {
        if let Some(captured) = &mut self.captured
            && let Some((port, _)) = self.accounts[life].ports.last()
        {
            *captured.repeated.entry(port.id.0).or_default() += 1;
        }
    }

    /// Drops by verdict, to be counted at the sender. Returns how many copies rules deny at least.
    fn note_refused(&mut self, life: Life, verdicts: &[Verdict]) -> u64 {
        let mut denied = 0;
        let counts: Vec<BTreeMap<DropReason, u64>> = verdicts
            .iter()
            .map(|verdict| match verdict {
                Verdict::Drop(reason) => [(*reason, 1)].into(),
                Verdict::Flood(_, denied) => [(DropReason::PolicyDenied, *denied)].into(),
                Verdict::To(..) => BTreeMap::new(),
            })
            .collect();
        for reason in counts.iter().flat_map(|counts| counts.keys().copied()).collect::<BTreeSet<_>>() {
            let of = |counts: &BTreeMap<DropReason, u64>| counts.get(&reason).copied().unwrap_or(0);
            let bounds = self.accounts[life].refused.entry(reason).or_default();
            let least = counts.iter().map(of).min().unwrap_or(0);
            bounds.least += least;
            bounds.most += counts.iter().map(of).max().unwrap_or(0);
            denied += if reason == DropReason::PolicyDenied { least } else { 0 };
        }
        denied
    }

    /// How many frames of one guest have arrived at another.
    pub fn arrived(&self, from: Life, to: Life) -> u64 {
        self.arrived.get(&(from, to)).copied().unwrap_or(0)
    }

    /// Whether `frame` of a guest surely goes to `to` alone, and no limit, link or closed queue is on the way.
    pub fn is_free(&self, life: Life, frame: &Frame, to: Life, now: u64) -> bool {
        let goes = matches!(self.verdicts(life, frame, now, |_, _| {})[..], [Verdict::To(only, _)] if only == to);
        let is_open = |port: &PortState| {
            let limits = &port.settings.limits;
            let is_limited = limits.transmit != Limit::default() || limits.receive != Limit::default();
            port.settings.enabled && port.receives && port.sends && !is_limited && port.settings.link.is_none()
        };
        goes && [life, to].iter().all(|&life| self.config().port(life).is_some_and(is_open))
    }

    /// An announcement of the port may arrive everywhere in its segment, or be refused.
    pub fn announce(&mut self, life: Life, mac: MacAddress) {
        let Some(port) = self.config().port(life).cloned() else { return };
        let others: Vec<Life> =
            self.config().ports.iter().flatten().filter(|to| to.segment == port.segment).map(|to| to.life).collect();
        others.into_iter().for_each(|to| self.accounts[to].owed.most += 1);
        const REASONS: [DropReason; 6] = [
            DropReason::BadSource,
            DropReason::SpoofedSource,
            DropReason::VlanNotCarried,
            DropReason::PolicyDenied,
            DropReason::Storm,
            DropReason::Loop,
        ];
        for reason in REASONS {
            self.accounts[life].refused.entry(reason).or_default().most += 16;
        }
        if let Some(captured) = &mut self.captured {
            *captured.announced.entry(life).or_default() += 1;
        }
        self.blur(mac, port.segment, Some(life));
    }

    /// The driver of a guest received `bytes`, a frame behind its virtio-net header.
    pub fn receive(&mut self, life: Life, bytes: &[u8]) {
        let (header, bytes) = bytes.split_first_chunk::<12>().expect("a header");
        let account = &mut self.accounts[life];
        account.received += 1;
        self.totals.arrived += 1;
        let mut hasher = DefaultHasher::new();
        (self.totals.digest, life, bytes.len(), Frame::number_in(bytes), driven::now()).hash(&mut hasher);
        self.totals.digest = hasher.finish();
        let Some(number) = Frame::number_in(bytes) else {
            let at = if bytes[12..14] == [0x81, 0] { 16 } else { 12 };
            account.complete += 1;
            return assert_eq!(bytes[at..at + 2], [0x80, 0x35], "guest {life} received {bytes:02x?}");
        };
        if self.made.get(&number).is_some_and(|frame| frame.segments() > 1) {
            let parts = self.early.entry((number, life)).or_default();
            account.in_part += put(parts, Arrived { header: *header, bytes: bytes.to_vec() });
            return;
        }
        let Some(sent) = self.sent.get_mut(&number) else { panic!("guest {life} received frame {number}, which was not taken") };
        if self.begun.contains(&number) && sent.to.iter().all(|copy| copy.to != life) {
            account.in_part +=
                put(self.early.entry((number, life)).or_default(), Arrived { header: *header, bytes: bytes.to_vec() });
            return;
        }
        let Some(copy) = sent.to.iter_mut().find(|copy| copy.to == life) else {
            panic!(
                "guest {life} received frame {number} of {}, which is for {:?}: {:?} {:?}",
                sent.from, sent.to, sent.verdicts, sent.frame
            )
        };
        assert!(!copy.arrived, "guest {life} received frame {number} twice");
        if sent.frame.request.is_none() {
            let expected = sent.frame.bytes(copy.tag);
            assert!(bytes == expected, "guest {life} received frame {number} as {bytes:02x?} in place of {expected:02x?}");
            assert_eq!(header[..10], [0; 10], "frame {number} requests nothing");
        } else {
            account.in_part += put(&mut copy.parts, Arrived { header: *header, bytes: bytes.to_vec() });
            if !sent.frame.has_arrived(copy.tag, &mut copy.parts, account.accepts, !account.has_no_link) {
                return;
            }
        }
        account.complete += 1;
        copy.arrived = true;
        *self.arrived.entry((sent.from, life)).or_default() += 1;
        if !sent.is_flooded && account.has_no_link {
            let before = self.last.insert((sent.from, life, sent.frame.flow()), number);
            let has_become_another = |before| self.fragments.range((sent.from, number)..(sent.from, before)).next().is_some();
            assert!(
                before.is_none_or(|before| before < number || has_become_another(before)),
                "guest {life} received frame {number} of {} after {before:?} of the same flow",
                sent.from
            );
        }
    }

    /// No frame has arrived, and no drop reason is counted, beyond the model.
    pub fn check(&self) {
        for (life, account) in self.accounts.iter().enumerate().filter(|(_, account)| !account.is_over) {
            account.check_limits(life, driven::now());
            let most = account.owed.most;
            let met = account.complete + account.dropped_as_receiver();
            assert!(met <= most, "{met} frames arrived at guest {life} or were dropped there, and {most} were for it");
            for reason in DropReason::ALL.iter().filter(|reason| reason.is_of_sender() && **reason != DropReason::SenderStopped) {
                let (count, bounds) = (account.dropped(*reason), account.refused.get(reason).copied().unwrap_or_default());
                assert!(
                    count <= bounds.most,
                    "{count} frames of guest {life} were dropped as {}, at most {} are right",
                    reason.name(),
                    bounds.most
                );
            }
        }
    }

    /// No frame is in flight: all that is owed has arrived, or was counted for one drop reason.
    pub fn check_at_rest(&mut self) {
        self.check();
        for copy in self.sent.values().flat_map(|sent| &sent.to).filter(|copy| !copy.arrived) {
            self.accounts[copy.to].in_part += copy.parts.len() as u64;
        }
        let stopped: u64 = self.accounts.iter().map(|account| account.dropped(DropReason::SenderStopped)).sum();
        let slack = stopped - self.stopped + std::mem::take(&mut self.lost);
        self.stopped = stopped;
        let mut missing = 0;
        // The counters of a port that is gone are gone too.
        for (life, account) in self.accounts.iter().enumerate().filter(|(_, account)| !account.is_over) {
            let (least, met) = (account.owed.least, account.complete + account.dropped_as_receiver());
            missing += least.saturating_sub(met);
            assert!(met + slack >= least, "of {least} frames for guest {life} {met} arrived or were dropped, {slack} elsewhere");
            let early = self.early.iter().filter(|((_, to), _)| *to == life).map(|(_, parts)| parts.len() as u64).sum();
            account.check_at_rest(life, early);
        }
        assert!(missing <= slack, "{missing} frames are nowhere, and {slack} at most may be");
        self.check_addresses();
        let open = self.accounts.iter().filter(|account| !account.is_over);
        let counted = |reason: &&DropReason| open.clone().any(|account| account.dropped(**reason) > 0);
        self.totals.reasons |= DropReason::ALL.iter().filter(counted).fold(0, |all, &reason| all | 1 << reason as u8);
        self.settle();
    }

    /// Counts on from here: no frame is in flight.
    fn settle(&mut self) {
        self.sent.clear();
        for account in &mut self.accounts {
            let dropped = account.dropped_as_receiver();
            let met = account.complete + dropped;
            (account.has_room, account.has_no_link, account.dropped_before) = (true, true, dropped);
            account.owed = Bounds { least: met, most: met };
            let counts: Vec<(DropReason, u64)> = account.refused.keys().map(|&reason| (reason, account.dropped(reason))).collect();
            account.refused = counts.into_iter().map(|(reason, count)| (reason, Bounds { least: count, most: count })).collect();
        }
        self.note_limits();
    }
}

/// Adds a part of a frame. The first one comes again where virtqueues stopped meanwhile: then those before do not count, and how many they were is
/// returned.
fn put(parts: &mut Vec<Arrived>, part: Arrived) -> u64 {
    let before = if parts.first().is_some_and(|first| first.bytes == part.bytes) { std::mem::take(parts).len() } else { 0 };
    parts.push(part);
    before as u64
}

fn reached(verdict: &Verdict) -> Vec<(Life, u16)> {
    match verdict {
        Verdict::Drop(_) => Vec::new(),
        Verdict::To(to, tag) => vec![(*to, *tag)],
        Verdict::Flood(reached, _) => reached.clone(),
    }
}
