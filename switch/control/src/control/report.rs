//! Reports of a running network, its ports and its segments.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::blocked::BlockedQueue;
use super::causes::CauseKind;
use super::frozen::FrozenView;
use crate::address_map::{Entry, Key, Source};
use crate::config::{Config, PortConfig, PortEntry, PortOrigin};
use crate::descriptors::DescriptorReport;
use crate::host_memory::HostMemory;
use crate::known_addresses::{AddressTotals, KnownAddress, SegmentAddresses};
use crate::link::Impairment;
use crate::network::{LoopReport, Network, SegmentGroups};
use crate::peer::Peer;
use crate::policy::PortLimits;
use crate::port::{self, default_address};
use crate::segment::Segment;
use crate::stats::{PortTotals, WorkerCounters};
use crate::table::{Kind, Record};
use crate::time;
use crate::uplink::UplinkReport;
use memlane_names::NamesReport;

/// A running network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Name of the network.
    pub name: String,
    /// Version of memlane.
    pub version: String,
    /// The file of this program was replaced since, without a takeover, or removed.
    #[serde(default)]
    pub program_replaced: bool,
    /// Why the last takeover failed, if one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_taken_over: Option<String>,
    /// The freeze, while the network is frozen for a snapshot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub frozen: Option<FrozenView>,
    /// Process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime: u64,
    /// Nanoseconds between its start and the reading of these counters: the time base of rates.
    #[serde(default)]
    pub uptime_ns: u64,
    /// Cycles of a second, for the workers' cycle counts.
    pub cycles_per_second: u64,
    /// Bytes of the switch's own memory in use for frames, see [`crate::budget`].
    pub memory_held: u64,
    /// Limit of these bytes.
    pub memory_most: u64,
    /// Guest memory.
    #[serde(default)]
    pub guest_memory: GuestMemoryReport,
    /// File descriptors of the process.
    #[serde(default)]
    pub descriptors: DescriptorReport,
    /// Why the state file lacks the latest changes, if so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unsaved: Option<String>,
    /// Ports, in the order in which they were added.
    pub ports: Vec<PortReport>,
    /// Uplinks of segments to other hosts.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub uplinks: Vec<UplinkReport>,
    /// Counts of IP addresses, by segment.
    #[serde(default)]
    pub addresses: BTreeMap<String, AddressTotals>,
    /// Responders of segments, with the leased addresses.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub names: Vec<NamesReport>,
    /// Moves of MAC addresses between ports so far, by segment.
    #[serde(default)]
    pub moves: BTreeMap<String, u64>,
    /// Multicast groups of the segments that snoop.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub multicast: Vec<MulticastReport>,
    /// MAC addresses that move between two ports too often, as in a loop.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub loops: Vec<LoopReport>,
    /// Workers.
    pub workers: Vec<WorkerReport>,
}

/// Guest memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct GuestMemoryReport {
    /// Mapped bytes.
    pub mapped: u64,
    /// Limit of mapped bytes.
    pub most: u64,
    /// Bytes that the process has touched (`RssShmem`): each page is charged to it unless the front end or guest touched it
    /// first.
    pub touched: u64,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// Its number while it is attached, as tracepoints give it.
    #[serde(default)]
    pub number: u16,
    /// Its segment.
    pub segment: String,
    /// Kind of the port: its key in the file.
    pub kind: String,
    /// Socket or interface of the port; empty if it has none.
    pub place: String,
    /// Origin of the port; none from a network of an earlier version.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<PortOrigin>,
    /// Labels of the port.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// State of the port, see [`port::PortState`]; "disabled" while the operator has disabled it, whatever its front end does.
    pub state: String,
    /// Whether it forwards frames.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The MAC address offered to the guest, if memlane offers one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// Why it is in quarantine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<String>,
    /// Advice to the operator, or a failure of the port's other side.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// Whether its interface is up and has a carrier; none without an interface, or where that is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub carrier: Option<bool>,
    /// The worst cause that keeps it from its work at this moment, as far as it shows without asking the workers; see
    /// `GET /v1/ports/{name}/why`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub present_cause: Option<CauseKind>,
    /// The MTU offered to the guest, if memlane offers one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mtu: Option<u16>,
    /// Queue pairs.
    #[serde(default)]
    pub queues: u16,
    /// Front ends that have been connected so far.
    #[serde(default)]
    pub sessions: u64,
    /// Number of quarantines.
    pub quarantines: u64,
    /// The program connected to its socket as front end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub front_end: Option<Peer>,
    /// Connections refused since then, because a port serves one front end.
    #[serde(default)]
    pub turned_away: u64,
    /// MAC addresses known at the port.
    pub learned_addresses: usize,
    /// Weight and rate limits.
    pub limits: PortLimits,
    /// Link emulation of the receive direction.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub link: Option<Impairment>,
    /// Bytes of guest memory charged to the switch, because it touched them first.
    #[serde(default)]
    pub memory_paid: u64,
    /// File descriptors that memlane holds for its front end.
    #[serde(default)]
    pub descriptors: u64,
    /// Transmit queues that are blocked at this moment, in `memlane status` alone; see `GET /v1/blocked`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub blocked: Vec<BlockedQueue>,
    /// Senders of the frames that its guest received in the last minute, with the numbers of their frames in a sample of the latest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub senders: BTreeMap<String, u64>,
    /// Its counters.
    #[serde(flatten)]
    pub totals: PortTotals,
}

/// Age of the oldest frames in [`PortReport::senders`].
const SAMPLES: Duration = Duration::from_secs(60);

/// See [`PortReport::senders`].
fn senders(port: &port::Port, network: &Network) -> BTreeMap<String, u64> {
    let oldest = time::cycles().saturating_sub(time::in_cycles(SAMPLES));
    let mut senders = BTreeMap::new();
    for (sender, at) in port.senders().filter(|&(_, at)| at >= oldest) {
        // Another port may have the number now.
        if let Some(sender) = network.port(sender).filter(|sender| sender.added <= at) {
            *senders.entry(sender.name.clone()).or_default() += 1;
        }
    }
    senders
}

fn yes() -> bool {
    true
}

/// A port's report, and its configuration.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortView {
    /// The report.
    #[serde(flatten)]
    pub report: PortReport,
    /// The entry that attaches it again.
    pub entry: PortEntry,
}

/// A worker; see [`crate::stats::WorkerCounters`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct WorkerReport {
    /// Poll iterations that moved frames.
    pub busy_iterations: u64,
    /// Poll iterations that found nothing.
    pub empty_iterations: u64,
    /// TSC cycles in busy poll iterations.
    pub busy_cycles: u64,
    /// Frames received by guests or dropped in them.
    pub frames: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Times it looked for events without sleeping.
    pub polls: u64,
    /// Frames handed over to other workers.
    pub handed_over: u64,
    /// Wake-ups sent to other workers.
    pub wakes: u64,
}

impl From<&WorkerCounters> for WorkerReport {
    fn from(counters: &WorkerCounters) -> Self {
        Self {
            busy_iterations: counters.busy_iterations.get(),
            empty_iterations: counters.empty_iterations.get(),
            busy_cycles: counters.busy_cycles.get(),
            frames: counters.frames.get(),
            sleeps: counters.sleeps.get(),
            polls: counters.polls.get(),
            handed_over: counters.handed_over.get(),
            wakes: counters.wakes.get(),
        }
    }
}

/// A segment (broadcast domain).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SegmentReport {
    /// Its name.
    pub name: String,
    /// Names of its ports, in the order in which they were added.
    pub ports: Vec<String>,
}

/// A segment, and its part of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SegmentView {
    /// The segment.
    #[serde(flatten)]
    pub segment: SegmentReport,
    /// The MAC addresses known on the segment.
    pub learned_addresses: Vec<AddressReport>,
}

/// Multicast groups of a segment with snooping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct MulticastReport {
    /// The segment.
    pub segment: String,
    /// Ports with members, by the MAC address of the group.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Ports that get every multicast frame: new ones, those of routers, uplinks, trunks, and those with too many groups.
    pub all: Vec<String>,
}

impl From<SegmentGroups> for MulticastReport {
    fn from(SegmentGroups { segment, groups, all }: SegmentGroups) -> Self {
        let groups = groups.into_iter().map(|(group, ports)| (group.to_string(), ports)).collect();
        Self { segment, groups, all }
    }
}

/// An entry of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AddressReport {
    /// MAC address.
    pub address: String,
    /// The VLAN in which it was learned; none for untagged frames.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub vlan: Option<u16>,
    /// The port where it was learned.
    pub port: String,
    /// Seconds since its last frame (MAC aging).
    pub age: u64,
    /// Tied to the port by the operator; a static entry without aging.
    pub pinned: bool,
}

/// Whether the file of this program was replaced or removed since it was started (proc_pid_exe(5)).
fn is_program_replaced() -> bool {
    std::fs::read_link("/proc/self/exe").is_ok_and(|program| program.to_string_lossy().ends_with(" (deleted)"))
}

impl Report {
    /// The present report of `network`, without its uplinks and responders.
    pub fn new(config: &Config, network: &Network, uptime: Duration) -> Self {
        let shared = network.shared();
        Self {
            name: config.name.clone(),
            version: crate::version().into(),
            program_replaced: is_program_replaced(),
            not_taken_over: None,
            frozen: None,
            pid: std::process::id(),
            uptime: uptime.as_secs(),
            uptime_ns: uptime.as_nanos() as u64,
            cycles_per_second: time::frequency(),
            memory_held: shared.budget.held(),
            memory_most: shared.budget.most(),
            guest_memory: GuestMemoryReport {
                mapped: shared.guest_memory.held(),
                most: shared.guest_memory.most(),
                touched: HostMemory::of_this_process().touched(),
            },
            descriptors: shared.descriptors.report(),
            unsaved: None,
            ports: config.ports.iter().filter_map(|port| PortReport::of(config.seed(), port, network)).collect(),
            uplinks: Vec::new(),
            addresses: network
                .segments()
                .iter()
                .map(|segment| (segment.name.clone(), segment.addresses().totals(network.second())))
                .collect(),
            names: Vec::new(),
            moves: network.segments().iter().map(|segment| (segment.name.clone(), segment.moves())).collect(),
            multicast: network.multicast_groups().into_iter().map(MulticastReport::from).collect(),
            loops: network.segments().iter().flat_map(|segment| network.loops(segment, uptime.as_secs())).collect(),
            workers: shared.workers.iter().take(config.workers).map(WorkerReport::from).collect(),
        }
    }
}

impl PortReport {
    /// The report of `port` of the network called `net`; `None` if it was just detached.
    pub fn of(net: &str, port: &PortConfig, network: &Network) -> Option<Self> {
        let status = network.find(&port.name)?;
        let state = status.state();
        let (front_end, turned_away) = status.front_end();
        let own = |offered: bool| offered.then(|| default_address(net, &port.name));
        let address = port.settings.mac.or_else(|| own(port.kind.about().has_usual_address));
        Some(Self {
            name: port.name.clone(),
            number: status.id.0,
            segment: port.segment.clone(),
            kind: port.kind.name().into(),
            place: port.kind.place(),
            origin: Some(port.origin.clone()),
            labels: port.settings.limits.labels.clone(),
            state: if port.settings.enabled { state.name() } else { "disabled" }.into(),
            enabled: port.settings.enabled,
            address: address.map(|address| address.to_string()),
            cause: match state {
                port::PortState::Quarantined(cause) => Some(cause),
                _ => None,
            },
            advice: status.advice(),
            carrier: status.carrier(),
            present_cause: None,
            mtu: status.offer().mtu,
            queues: port.queues,
            sessions: status.session().into(),
            quarantines: status.quarantines(),
            front_end,
            turned_away,
            learned_addresses: status.learned_addresses(),
            limits: port.settings.limits.clone(),
            link: port.settings.link.clone(),
            memory_paid: status.paid(),
            descriptors: status.quotas.descriptors.held(),
            blocked: Vec::new(),
            senders: senders(&status, network),
            totals: status.totals(),
        })
    }
}

impl SegmentReport {
    /// All segments with at least one port.
    pub fn all(config: &Config) -> Vec<Self> {
        let mut members: HashMap<&str, Vec<String>> = HashMap::new();
        config.ports.iter().for_each(|port| members.entry(&port.segment).or_default().push(port.name.clone()));
        let report = |name: &str| Self { name: name.into(), ports: members.remove(name).unwrap_or_default() };
        config.segments().into_iter().map(report).collect()
    }
}

impl SegmentView {
    /// The segment called `name`; `None` if no port is on it.
    pub fn of(name: &str, config: &Config, network: &Network, uptime: Duration) -> Option<Self> {
        let segment = SegmentReport::all(config).into_iter().find(|segment| segment.name == name)?;
        // Workers count seconds from their start, which is the network's.
        let age = |second: u32| uptime.as_secs().saturating_sub(second.into());
        let table = network.find(segment.ports.first()?)?.segment.table();
        let learned_address = |Record { learned_address, port, confirmed, kind }| {
            // An address of a port that was just detached is left out.
            let port = network.port(port)?.name.clone();
            let age = if kind == Kind::Learned { age(confirmed) } else { 0 };
            let vlan = (learned_address.vlan != 0).then_some(learned_address.vlan);
            Some(AddressReport { address: learned_address.address.to_string(), vlan, port, age, pinned: kind == Kind::Pinned })
        };
        let mut learned_addresses: Vec<AddressReport> = table.records().into_iter().filter_map(learned_address).collect();
        learned_addresses.sort_by(|a, b| (&a.address, a.vlan).cmp(&(&b.address, b.vlan)));
        Some(Self { segment, learned_addresses })
    }
}

/// The IP addresses that the switch knows, by segment, in the order of their names.
pub fn known_addresses(network: &Network) -> Vec<SegmentAddresses> {
    let now = network.second();
    let mut segments = network.segments();
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    let report = |segment: &Arc<Segment>| {
        let known = |(key, entry): (Key, Entry)| {
            // An address of a port that was just detached is left out.
            let port = network.port(entry.port)?.name.clone();
            let is_silent = entry.source == Source::Configuration && entry.confirmed == 0;
            Some(KnownAddress {
                ip: key.ip.to_string(),
                vlan: (key.vlan != 0).then_some(key.vlan),
                mac: entry.mac.map(|mac| mac.to_string()),
                port,
                source: entry.source,
                age: if is_silent { 0 } else { now.saturating_sub(entry.confirmed).into() },
                expires: entry.expires_in(now).map(u64::from),
                contended: entry.is_settling(now),
            })
        };
        let map = segment.addresses();
        let addresses = map.records(now).into_iter().filter_map(known).collect();
        SegmentAddresses { segment: segment.name.clone(), totals: map.totals(now), addresses }
    };
    segments.iter().map(report).collect()
}
