//! Causes that keep a port from its work, each with its remedy.
//!
//! They come from the port's state, its rings ([`queues`]), its segment, and its drops ([`remedies`]).

mod cause;
mod queues;
pub mod remedies;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cause::{Cause, CauseKind};
use queues::Pause;
use remedies::remedy;

use super::report::PortReport;
use crate::config::{Config, PortConfig, PortKind};
use crate::id::PortId;
use crate::network::Network;
use crate::policy::Limit;
use crate::port::Port;
use crate::stats::DropReason;
use crate::table::Kind as EntryKind;

/// Causes that keep a port from its work, the nearest first; none if nothing is wrong as far as the switch sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct PortCauses {
    /// Name of the port.
    pub port: String,
    /// Its state, as in its report.
    pub state: String,
    /// The causes.
    pub causes: Vec<Cause>,
}

impl PortCauses {
    /// With the cause that a machine was refused an address, while `leases` of the port run.
    pub fn short_of_addresses(mut self, leases: usize) -> Self {
        let text = format!("memlane's DHCP server refused an address to a machine behind it (no-address): it has {leases} leases");
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
    port: Arc<Port>,
    report: PortReport,
    uptime: Duration,
}

impl PortCauses {
    /// The causes of `entry`, a port of `network`, which is up for so long; `None` if it was just detached. May take a tenth of a
    /// second.
    pub fn of(config: &Config, entry: &PortConfig, network: &Network, uptime: Duration) -> Option<Self> {
        let port = network.find(&entry.name)?;
        let report = PortReport::of(config, entry, network)?;
        let subject = Subject { config, entry, network, port, report, uptime };
        let causes = subject.causes();
        Some(Self { port: entry.name.clone(), state: subject.report.state, causes })
    }
}

impl Subject<'_> {
    fn causes(&self) -> Vec<Cause> {
        let mut causes: Vec<Cause> = self.of_front_end();
        causes.extend(self.alone());
        if self.report.state == "running" {
            causes.extend(queues::of(
                &self.entry.kind,
                || self.network.queue_views(&self.port),
                &|port| self.name(port),
                Pause::default(),
            ));
            let silent = self.report.totals.transmit_frames == 0 && !self.has_drops_of_its_guest();
            if silent && self.is_guest() && !causes.iter().any(|cause| cause.cause == CauseKind::InterfaceDown) {
                let remedy = "Bring its interface up, and give it an address";
                causes.push(Cause::new(CauseKind::NothingTransmitted, "its guest has transmitted nothing yet", remedy));
            }
        }
        causes.extend(self.interface_down());
        causes.extend(self.mtu());
        causes.extend(self.vlan());
        causes.extend(self.loops());
        causes.extend(self.limits());
        causes.extend(self.counters());
        causes.extend(self.drops());
        causes
    }

    /// The name of `port`, if it is another than this one.
    fn name(&self, port: PortId) -> Option<String> {
        self.network.port(port).filter(|other| other.id != self.port.id).map(|other| other.name.clone())
    }

    fn is_guest(&self) -> bool {
        matches!(self.report.kind.as_str(), "vhost-user" | "xen" | "stream")
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
            crate::port::PortState::Waiting if matches!(self.entry.kind, PortKind::Tap { .. } | PortKind::AfPacket { .. }) => {}
            crate::port::PortState::Waiting => causes.push(self.waiting()),
            crate::port::PortState::Speaking => causes.push(Cause::new(
                CauseKind::NotStarted,
                format!("{front_end} is connected, but no virtqueue has started"),
                "Wait until the guest has loaded its driver; if it has, reset the device or restart the guest",
            )),
            crate::port::PortState::Quarantined(cause) => causes.push(Cause::new(
                CauseKind::Quarantined,
                format!("it is in quarantine: {cause}"),
                "It works again when its front end reconnects or the guest resets the device; update the driver or program that did this",
            )),
            crate::port::PortState::Running | crate::port::PortState::Gone => {}
        }
        if report.turned_away > 0 {
            let text =
                format!("it refused {} connections of other front ends, because {front_end} uses the port", report.turned_away);
            let remedy = "Give each guest a port of its own, or end that program; set second = \"replace\" where the newest one is to have the port, as for QEMU's cpr-transfer";
            causes.push(Cause::new(CauseKind::PortInUse, text, remedy));
        }
        causes.extend(report.advice.as_ref().map(|advice| Cause::new(CauseKind::Advice, advice, "")));
        causes
    }

    fn waiting(&self) -> Cause {
        let place = &self.report.place;
        let remedy = if place.is_empty() {
            "Start the guest".into()
        } else if self.entry.kind.listens() {
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
        let (kind, name) = match &self.entry.kind {
            PortKind::Tap { name, .. } => ("TAP device", name),
            PortKind::AfPacket { name, .. } => ("interface", name),
            _ => return None,
        };
        let is_running = self.report.state == "running";
        let lost = self.report.totals.drops.get(DropReason::ReceiverAbsent.name()).filter(|_| is_running)?;
        let text = format!("its {kind} {name} was down when {lost} frames for it came");
        Some(Cause::new(CauseKind::InterfaceDown, text, format!("Set it up: ip link set {name} up")))
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
        own.map(|report| Cause::new(CauseKind::Loop, report.to_string(), "")).take(MOST_LOOPS).collect()
    }

    fn limits(&self) -> Vec<Cause> {
        let (totals, limits) = (&self.report.totals, &self.report.limits);
        let cause = |(direction, limit, times): (&str, &Limit, u64)| {
            let text = format!("its {direction} limit of {limit} has held frames back {times} times");
            let remedy = format!("Raise or remove it: memlane set {} {} --{direction} none", self.config.name, self.entry.name);
            (times > 0 && *limit != Limit::default()).then(|| Cause::new(CauseKind::Limited, text, remedy))
        };
        let directions =
            [("transmit", &limits.transmit, totals.transmit_limited), ("receive", &limits.receive, totals.receive_limited)];
        directions.into_iter().filter_map(cause).collect()
    }

    fn counters(&self) -> Vec<Cause> {
        let totals = &self.report.totals;
        let mut causes = Vec::new();
        if totals.missed_kicks > 0 {
            let text =
                format!("its guest did not kick {} times when it should have, and was served a moment later", totals.missed_kicks);
            let remedy = "A guest of one processor in QEMU without KVM does well with -smp 1,maxcpus=2";
            causes.push(Cause::new(CauseKind::MissedKicks, text, remedy));
        }
        if totals.waiting > 0 {
            let text = format!("{} frames wait for its receive buffers, limits or link at this moment", totals.waiting);
            causes.push(Cause::new(CauseKind::Waiting, text, "Ask again: it is no fault unless it stays so"));
        }
        causes
    }

    fn has_drops_of_its_guest(&self) -> bool {
        drops(&self.report).any(|(reason, _)| reason.is_of_sender())
    }

    fn drops(&self) -> Vec<Cause> {
        let received = self.report.totals.receive_frames;
        let cause = |(reason, count): (DropReason, u64)| {
            let text = match (reason.is_of_sender(), received) {
                (true, _) => format!("{count} frames of its guest were dropped as {}: {}", reason.name(), meaning(reason)),
                (false, 0) => format!("all frames for it were dropped, {count} as {}: {}", reason.name(), meaning(reason)),
                (false, _) => format!("{count} frames for it were dropped as {}: {}", reason.name(), meaning(reason)),
            };
            Cause { reason: Some(reason.name().into()), ..Cause::new(CauseKind::Dropped, text, remedy(reason)) }
        };
        drops(&self.report).map(cause).collect()
    }
}

/// MTU of a guest that is offered none.
const USUAL_MTU: u16 = 1500;
/// Loops that are named, at most.
const MOST_LOOPS: usize = 3;

fn drops(report: &PortReport) -> impl Iterator<Item = (DropReason, u64)> {
    DropReason::ALL.iter().filter_map(|&reason| Some((reason, *report.totals.drops.get(reason.name())?)))
}

/// The meaning of a reason, to stand behind a colon.
fn meaning(reason: DropReason) -> String {
    let meaning = reason.meaning().trim_end_matches('.').replace('\n', " ");
    let mut letters = meaning.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
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
