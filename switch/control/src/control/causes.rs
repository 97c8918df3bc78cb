//! Causes that keep a port from its work, each with its remedy.
//!
//! Causes come from the port's state, its rings ([`queues`]), its segment, and the growth of its counters in the last minute ([`counts`],
//! [`remedies`]). A cause that has ended is told as an earlier one, with its time.

mod cause;
mod counts;
mod process;
mod queues;
pub mod remedies;
mod shut_out;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cause::{Cause, CauseKind};
use process::ProcessView;

use super::report::PortReport;
use crate::config::kinds::HostInterface;
use crate::config::{Config, PortConfig, UplinkConfig};
use crate::id::PortId;
use crate::network::Network;
use crate::port::queue_view::QueueView;
use crate::port::{Port, PortState};
use crate::quantity::counted;
use crate::stats::DropReason;
use crate::table::Kind as EntryKind;
use crate::uplink::no_carrier;

/// Causes that keep a port from its work, the nearest first; none if nothing is wrong as far as the switch sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortCauses {
    /// Name of the port.
    pub port: String,
    /// Its state, as in its report.
    pub state: String,
    /// The causes of this moment and of the last minute.
    pub causes: Vec<Cause>,
    /// Causes that have ended.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub earlier: Vec<Cause>,
}

impl PortCauses {
    /// With the cause that a machine was refused an address, while `leases` of the port run.
    pub fn short_of_addresses(mut self, leases: usize) -> Self {
        let text = format!(
            "memlane's DHCP server refused an address to a machine behind it (no-address): it has {}",
            counted(leases, "lease")
        );
        let remedy = "Raise the port's key leases, or give the segment a larger subnet";
        self.causes.push(Cause::new(CauseKind::NoAddress, text, remedy));
        self
    }
}

/// A port, with all that tells of it.
struct Subject<'a> {
    config: &'a Config,
    entry: &'a PortConfig,
    network: &'a Network,
    ways: &'a WaysOut<'a>,
    port: Arc<Port>,
    report: PortReport,
    uptime: Duration,
    /// Queues of the port and the process of its front end, at the first look and at the second one.
    looks: [(Vec<QueueView>, Option<ProcessView>); 2],
}

/// Ports with an interface, by segment.
struct WaysOut<'a>(HashMap<&'a str, Vec<&'a PortConfig>>);

impl<'a> WaysOut<'a> {
    fn of(config: &'a Config) -> Self {
        let mut ways: HashMap<&str, Vec<&PortConfig>> = HashMap::new();
        for port in config.ports.iter().filter(|port| port.kind.interface().is_some()) {
            ways.entry(&port.segment).or_default().push(port);
        }
        Self(ways)
    }

    /// The only one of `segment`.
    fn only(&self, segment: &str) -> Option<&'a PortConfig> {
        match self.0.get(segment)?[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

impl PortCauses {
    /// The causes of `entry`, a port of `network`, which is up for so long; `None` if it was just detached. May take a fifth of a
    /// second.
    pub fn of(config: &Config, entry: &PortConfig, network: &Network, uptime: Duration) -> Option<Self> {
        Self::of_ports(config, std::slice::from_ref(entry), network, uptime).pop()
    }

    /// Causes of all ports that have one, the worst first; `more` adds causes that the switch does not see. Takes as long as for one port, beside
    /// the answers of the workers.
    pub fn of_all(config: &Config, network: &Network, uptime: Duration, more: impl Fn(Self) -> Self) -> Vec<Self> {
        let mut all: Vec<Self> = Self::of_ports(config, &config.ports, network, uptime).into_iter().map(more).collect();
        all.retain(|port| !port.causes.is_empty());
        all.sort_by_key(Self::worst);
        all
    }

    fn of_ports(config: &Config, entries: &[PortConfig], network: &Network, uptime: Duration) -> Vec<Self> {
        network.tell_notices();
        let ways = WaysOut::of(config);
        let subject = |entry| {
            let report = PortReport::of(config.seed(), entry, network)?;
            Subject::new((config, &ways), entry, network, report, uptime)
        };
        let mut subjects: Vec<Subject<'_>> = entries.iter().filter_map(subject).collect();
        subjects.iter_mut().for_each(|subject| subject.look(0));
        if subjects.iter().any(Subject::needs_second_look) {
            std::thread::sleep(queues::PAUSE);
            subjects.iter_mut().filter(|subject| subject.needs_second_look()).for_each(|subject| subject.look(1));
        }
        subjects.iter().map(Subject::told).collect()
    }

    /// The worst cause.
    pub fn worst(&self) -> Option<CauseKind> {
        self.causes.iter().map(|cause| cause.cause).min()
    }
}

/// Tells each of `reports` the worst cause of its port that shows without asking the workers and without a walk of the forwarding table.
pub fn tell_present_causes(config: &Config, network: &Network, reports: &mut [PortReport]) {
    let (entries, ways) = (config.by_name(), WaysOut::of(config));
    for report in reports {
        let entry = entries.get(report.name.as_str());
        let subject = entry.and_then(|entry| Subject::new((config, &ways), entry, network, report.clone(), Duration::ZERO));
        report.present_cause = subject.and_then(|subject| subject.present_cause());
    }
}

impl<'a> Subject<'a> {
    fn new(
        (config, ways): (&'a Config, &'a WaysOut<'a>),
        entry: &'a PortConfig,
        network: &'a Network,
        report: PortReport,
        uptime: Duration,
    ) -> Option<Self> {
        let port = network.find(&entry.name)?;
        Some(Self { config, entry, network, ways, port, report, uptime, looks: Default::default() })
    }

    fn present_cause(&self) -> Option<CauseKind> {
        let causes = self.frozen().into_iter().chain(self.of_front_end()).chain(self.interface_down()).chain(self.no_carrier());
        causes.chain(self.conflicts()).chain(self.of_counts().0).map(|cause| cause.cause).min()
    }

    /// Looks at its queues and at the process of its front end, if it runs.
    fn look(&mut self, look: usize) {
        if self.report.state == "running" && self.entry.kind.front_ends().is_some() {
            let process = self.report.front_end.as_ref().and_then(|peer| ProcessView::of(peer.pid));
            self.looks[look] = (self.network.queue_views(&self.port), process);
        }
    }

    fn needs_second_look(&self) -> bool {
        queues::need_second_look(&self.looks[0].0)
    }

    fn told(&self) -> PortCauses {
        let mut causes: Vec<Cause> = self.frozen().into_iter().collect();
        causes.extend(self.of_front_end());
        causes.extend(self.of_guest());
        causes.extend(self.interface_down());
        causes.extend(self.no_carrier());
        causes.extend(self.alone());
        causes.extend(self.mtu());
        causes.extend(self.vlan());
        causes.extend(self.conflicts());
        causes.extend(self.loops());
        let (recent, earlier) = self.of_counts();
        causes.extend(recent);
        causes.extend(self.waiting_frames());
        PortCauses { port: self.entry.name.clone(), state: self.report.state.clone(), causes, earlier }
    }

    /// The network is frozen, so that no frame moves.
    fn frozen(&self) -> Option<Cause> {
        let time = self.network.frozen_for()?;
        let text = format!("the network is frozen for a snapshot since {:.1} s, so that no frame moves", time.as_secs_f32());
        Some(Cause::new(CauseKind::Frozen, text, format!("memlane thaw {}", self.config.name)))
    }

    /// Causes at the guest: its process and its queues.
    fn of_guest(&self) -> Vec<Cause> {
        if self.report.state != "running" {
            return Vec::new();
        }
        let [(before, process), (after, later)] = &self.looks;
        if let (true, Some(peer)) = (process.is_some_and(ProcessView::is_stopped), &self.report.front_end) {
            let text = format!("its front end, {peer}, is stopped by a signal or a debugger, and its guest with it");
            return vec![Cause::new(CauseKind::GuestPaused, text, format!("Resume it: kill -CONT {}", peer.pid))];
        }
        let mut causes = queues::of(before, after, &|port| self.name(port));
        let evidence = process.zip(*later).map_or(String::new(), |(before, after)| after.evidence(&before, &self.report));
        for cause in &mut causes {
            if matches!(cause.cause, CauseKind::NotLooking | CauseKind::NoReceiveBuffers) {
                cause.text.push_str(&evidence);
            }
        }
        let silent = self.report.totals.transmit_frames == 0 && !self.has_drops_of_its_guest();
        if silent && self.is_guest() && !causes.iter().any(|cause| cause.cause == CauseKind::InterfaceDown) {
            let remedy = "Bring its interface up, and give it an address";
            causes.push(Cause::new(CauseKind::NothingTransmitted, "its guest has transmitted nothing yet", remedy));
        }
        causes
    }

    /// The name of `port`, if it is another than this one.
    fn name(&self, port: PortId) -> Option<String> {
        self.network.port(port).filter(|other| other.id != self.port.id).map(|other| other.name.clone())
    }

    /// Whether a guest is to transmit by itself: not the host, and not passt.
    fn is_guest(&self) -> bool {
        let kind = &self.entry.kind;
        kind.about().has_guest && kind.interface().is_none() && kind.passt().is_none()
    }

    /// Causes of its state and of its front end.
    fn of_front_end(&self) -> Vec<Cause> {
        let (report, name) = (&self.report, &self.entry.name);
        let mut causes = Vec::new();
        if !report.enabled {
            let remedy = format!("Enable it: memlane set {} {name} --enabled true", self.config.name);
            causes.push(Cause::new(CauseKind::Disabled, "it is disabled", remedy));
        }
        let front_end = report.front_end.as_ref().map_or_else(|| "a front end".to_owned(), ToString::to_string);
        match self.port.state() {
            // The advice of its back end tells about an interface that is missing.
            PortState::Waiting if self.entry.kind.interface().is_some() => {}
            PortState::Waiting => causes.push(self.waiting()),
            PortState::Speaking => causes.push(self.not_started(&front_end)),
            PortState::Quarantined(cause) => causes.push(Cause::new(
                CauseKind::Quarantined,
                format!("it is in quarantine: {cause}"),
                "It works again when its front end reconnects or the guest resets the device; update the driver or program that did this",
            )),
            PortState::Running | PortState::Gone => {}
        }
        causes.extend(report.advice.as_ref().map(|advice| Cause::new(CauseKind::Advice, advice, "")));
        causes
    }

    /// A front end that is connected, and has no virtqueue that runs.
    fn not_started(&self, front_end: &str) -> Cause {
        let Some(halted) = self.port.halted() else {
            let text = format!("{front_end} is connected, but no virtqueue has started");
            let remedy = "Wait until the guest has loaded its driver; resume it if it is paused; else see its console";
            return Cause::new(CauseKind::NotStarted, text, remedy);
        };
        let text = format!(
            "{front_end} stopped its virtqueues {} ago and is connected: its guest is paused, or has shut down or unloaded its driver",
            queues::told(halted)
        );
        let remedy =
            "Resume it if it is paused (virsh resume, or cont in QEMU's monitor); a guest that boots starts them by itself";
        Cause::new(CauseKind::GuestPaused, text, remedy)
    }

    fn waiting(&self) -> Cause {
        let place = &self.report.place;
        let shut_out = if self.entry.kind.listens_at().is_some() { shut_out::told(std::path::Path::new(place)) } else { None };
        if let Some(shut_out) = shut_out {
            return Cause::new(CauseKind::NoFrontEnd, format!("no front end is connected; {shut_out}"), "");
        }
        let remedy = if place.is_empty() {
            "Start the guest".into()
        } else if self.entry.kind.listens_at().is_some() {
            format!(
                "Start the guest, which must connect to {place}; if it reports permission denied, set the key access, or open the folders that \
                 memlane check names"
            )
        } else {
            format!("Start the program that serves {place}")
        };
        Cause::new(CauseKind::NoFrontEnd, "no front end is connected", remedy)
    }

    fn alone(&self) -> Option<Cause> {
        let segment = &self.port.segment;
        let alone = segment.members().len() == 1 && segment.uplink().is_none();
        alone.then(|| {
            let text = format!("it is the only port of segment {}", segment.name);
            Cause::new(CauseKind::Alone, text, "Give the ports that are to reach each other the same key segment")
        })
    }

    /// The kernel takes no frames for an interface that is down.
    fn interface_down(&self) -> Option<Cause> {
        let HostInterface { what: kind, name, .. } = self.entry.kind.interface()?;
        let text = format!("its {kind} {name} is down or has no carrier");
        let remedy = format!("Set it up: ip link set {name} up; if it is up, see its cable or its other end");
        (self.port.carrier() == Some(false)).then(|| Cause::new(CauseKind::InterfaceDown, text, remedy))
    }

    /// The interface that leads out of its segment has no carrier: the uplink's NIC, or the only TAP or packet socket there.
    fn no_carrier(&self) -> Option<Cause> {
        let segment = &self.port.segment;
        if let Some(uplink) = segment.uplink().and_then(|uplink| self.network.port(uplink)) {
            let nics = self.config.uplinks.iter().filter(|uplink| uplink.segment() == segment.name);
            let nic = nics.filter_map(|uplink| if let UplinkConfig::Nic(nic) = uplink { Some(&nic.nic) } else { None }).next()?;
            return (uplink.carrier() == Some(false)).then(|| Cause::new(CauseKind::NoCarrier, no_carrier(nic), ""));
        }
        let other = self.ways.only(&segment.name).filter(|_| self.entry.kind.interface().is_none())?;
        let HostInterface { what: kind, name, .. } = other.kind.interface()?;
        let is_cut = self.network.find(&other.name)?.carrier() == Some(false);
        is_cut.then(|| {
            let text =
                format!("{kind} {name} of {}, the only way out of segment {}, is down or has no carrier", other.name, segment.name);
            Cause::new(CauseKind::NoCarrier, text, format!("See memlane why {} {}", self.config.name, other.name))
        })
    }

    /// Claims of one IP address by two machines.
    fn conflicts(&self) -> Vec<Cause> {
        let own = |port: PortId| port == self.port.id;
        let name = |port: PortId| self.network.port(port).map(|port| port.name.clone());
        let told = |(conflict, age): (crate::address_map::Conflict, Duration)| {
            let (ip, owner, (claimant, mac)) = (conflict.key.ip, conflict.owner, conflict.claimant);
            let owner_mac = owner.mac.map_or_else(String::new, |mac| format!(" ({mac})"));
            let text = match own(owner.port) {
                true => format!("IP address {ip} of its guest{owner_mac} is claimed by that of {}, too ({mac})", name(claimant)?),
                false if own(claimant) => {
                    format!("its guest ({mac}) claims IP address {ip}, which belongs to {}{owner_mac}", name(owner.port)?)
                }
                false => return None,
            };
            let text = format!("{text}, {} ago", queues::told(age));
            Some(Cause::new(CauseKind::AddressConflict, text, "Give one of the two guests another address"))
        };
        let conflicts = self.port.segment.recent_conflicts(Instant::now());
        conflicts.into_iter().filter_map(told).take(MOST_NAMED).collect()
    }

    /// Other ports of its segment.
    fn others(&self) -> impl Iterator<Item = &PortConfig> {
        self.config.ports.iter().filter(|other| other.segment == self.entry.segment && other.name != self.entry.name)
    }

    /// An MTU that differs from that of another port. Without the key, guests use 1500 bytes.
    fn mtu(&self) -> Option<Cause> {
        let own = self.entry.settings.mtu.unwrap_or(USUAL_MTU);
        let of = |other: &PortConfig| other.settings.mtu.unwrap_or(USUAL_MTU);
        let other = self.others().find(|other| of(other) != own)?;
        let text = format!("its mtu is {own}, and that of {} is {}: longer frames are lost", other.name, of(other));
        Some(Cause::new(CauseKind::Mtu, text, format!("Give all ports of segment {} the same key mtu", self.entry.segment)))
    }

    /// VLANs in which MAC addresses were learned behind it only, where other ports have some in other VLANs.
    fn vlan(&self) -> Option<Cause> {
        if self.port.segment.uplink().is_some() {
            return None;
        }
        let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
        for record in self.port.segment.table().records().iter().filter(|record| record.kind == EntryKind::Learned) {
            let vlans = if record.port == self.port.id { &mut own } else { &mut others };
            vlans.insert(record.learned_address.vlan);
        }
        let apart = !own.is_empty() && !others.is_empty() && own.is_disjoint(&others);
        apart.then(|| {
            let text = format!("its guest transmits {}, and all others of the segment {}", vlans(&own), vlans(&others));
            Cause::new(CauseKind::Vlan, text, "Use the same VLAN tag in the guests that are to reach each other, or none")
        })
    }

    fn loops(&self) -> Vec<Cause> {
        let name = &self.entry.name;
        let loops = self.network.loops(&self.port.segment, self.uptime.as_secs());
        let own = loops.into_iter().filter(|report| report.held_at == *name || report.moves_to == *name);
        own.map(|report| Cause::new(CauseKind::Loop, report.to_string(), "")).take(MOST_NAMED).collect()
    }

    fn waiting_frames(&self) -> Option<Cause> {
        let waiting = self.report.totals.waiting;
        let text = format!("{} waiting for its receive buffers, limits or link at this moment", counted(waiting, "frame"));
        (waiting > 0).then(|| Cause::new(CauseKind::Waiting, text, "Ask again: it is no fault unless it stays so"))
    }

    fn has_drops_of_its_guest(&self) -> bool {
        drops(&self.report).any(|(reason, _)| reason.is_of_sender())
    }
}

/// MTU of a guest that is offered none.
const USUAL_MTU: u16 = 1500;
/// Loops and conflicts that are named, at most.
const MOST_NAMED: usize = 3;

fn drops(report: &PortReport) -> impl Iterator<Item = (DropReason, u64)> {
    DropReason::ALL.iter().filter_map(|&reason| Some((reason, *report.totals.drops.get(reason.name())?)))
}

/// VLANs in words.
fn vlans(vlans: &BTreeSet<u16>) -> String {
    let tagged: Vec<String> = vlans.iter().filter(|&&vlan| vlan != 0).map(ToString::to_string).take(8).collect();
    match (&tagged[..], vlans.contains(&0)) {
        ([], _) => "without a VLAN tag".into(),
        (tagged, false) => format!("in VLAN {}", tagged.join(", ")),
        (tagged, true) => format!("without a VLAN tag and in VLAN {}", tagged.join(", ")),
    }
}
