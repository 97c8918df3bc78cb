//! The network's metrics, made from the same [`Report`] that `memlane status` shows.
//!
//! Directions are the guest's. Series of a port exist from its start, each drop reason at 0, so that `rate()` sees the first
//! drop; they end when the port is detached.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use memlane_observe::metrics::{Bounds, Exposition, Format, Kind, Label, Labels};
use nix::sys::resource::{UsageWho, getrusage};

use super::report::{PortReport, Report};
use crate::config::label_of_metrics;
use crate::stats::{DropReason, PortTotals, SIZE_BOUNDS, WAIT_BOUNDS};
use memlane_model::totals::{Metric, PortCounter};

/// Result of the last reload of the network's file; the start counts as the first.
#[derive(Debug)]
pub struct LastReload {
    success: AtomicBool,
    /// Time of the last successful one, in seconds since 1970.
    at: AtomicU64,
}

impl LastReload {
    /// State at the start of the network.
    pub fn at_start() -> Self {
        Self { success: AtomicBool::new(true), at: AtomicU64::new(seconds_now()) }
    }

    /// Records the result of a reload.
    pub fn note(&self, success: bool) {
        self.success.store(success, Ordering::Relaxed);
        if success {
            self.at.store(seconds_now(), Ordering::Relaxed);
        }
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Resource usage of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUsage {
    /// Seconds of CPU time.
    pub cpu_seconds: f64,
    /// Bytes of its address space.
    pub virtual_bytes: u64,
    /// Resident bytes.
    pub resident_bytes: u64,
}

impl ProcessUsage {
    /// The present usage.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn now() -> io::Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let pages = std::fs::read_to_string("/proc/self/statm")?;
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096) as u64;
        let mut bytes = pages.split(' ').map(|pages| pages.trim().parse().unwrap_or(0) * page);
        Ok(Self {
            cpu_seconds: seconds(usage.user_time()) + seconds(usage.system_time()),
            virtual_bytes: bytes.next().unwrap_or(0),
            resident_bytes: bytes.next().unwrap_or(0),
        })
    }
}

/// The commit that packages are built from (Makefile). Other builds have none: each commit would compile them again.
const REVISION: &str = match option_env!("MEMLANE_REVISION") {
    Some(revision) if !revision.is_empty() => revision,
    _ => "unknown",
};

/// A metric of a port beside those of `PortTotals::COUNTERS`: the metric family, its help text, and its value in a report.
type PortMetric = (&'static str, &'static str, fn(&PortReport) -> u64);

const PORT_COUNTERS: [PortMetric; 2] = [
    ("memlane_port_sessions", "Front ends that have been connected so far; for a TAP or AF_PACKET port, its interface.", |port| {
        port.sessions
    }),
    ("memlane_port_quarantines", "Quarantines of the port, because its guest or front end violated the protocol.", |port| {
        port.quarantines
    }),
];

const PORT_GAUGES: [PortMetric; 3] = [
    ("memlane_port_mac_addresses", "MAC addresses learned behind the port.", |port| port.learned_addresses as u64),
    ("memlane_port_memory_charged_bytes", "Bytes of guest memory charged to the switch, because it touched them first.", |port| {
        port.memory_paid
    }),
    ("memlane_port_open_fds", "File descriptors that the switch holds for the port's front end.", |port| port.descriptors),
];

const STATES: [&str; 5] = ["waiting", "speaking", "running", "quarantined", "disabled"];

/// The metrics of `report` as text, with these labels of ports.
pub fn text(report: &Report, labels: &[String], reload: &LastReload, usage: ProcessUsage, format: Format) -> String {
    let mut text = Text { text: Exposition::new(format), report };
    text.network(reload);
    text.process(usage);
    text.ports();
    text.labels(labels);
    text.segments();
    text.multicast();
    text.workers();
    text.memory();
    text.uplinks();
    text.text.finish()
}

struct Text<'r> {
    text: Exposition,
    report: &'r Report,
}

/// Labels of a port's samples, and its report.
type Port<'r> = (Labels, &'r PortReport);

/// The label of a counter's samples, and its value.
type Labelled = (Labels, fn(&PortTotals) -> u64);

/// The counters of ports that are samples of one family, each by the value of `label` that `value` reads.
fn labelled(label: &'static str, value: fn(Metric) -> Option<&'static str>) -> Vec<Labelled> {
    let of = |counter: &PortCounter| Some((Labels::new(&[(label, value(counter.metric)?)]), counter.value));
    PortTotals::COUNTERS.iter().filter_map(of).collect()
}

impl Text<'_> {
    /// A family with one sample for each network.
    fn single(&mut self, name: &'static str, kind: Kind, help: &'static str, value: impl Into<memlane_observe::metrics::Value>) {
        let labels = [("network", self.report.name.as_str())];
        self.text.family(name, kind, help).sample(&labels, value);
    }

    fn network(&mut self, reload: &LastReload) {
        let report = self.report;
        let labels = [("version", report.version.as_str()), ("revision", REVISION)];
        let help = "Version of memlane that runs the network, and the commit that it was built from.";
        self.text.family("memlane_build", Kind::Info, help).info(&labels);
        let labels = [("network", report.name.as_str())];
        self.text.family("memlane_network", Kind::Info, "The network.").info(&labels);
        let success = reload.success.load(Ordering::Relaxed);
        self.single("memlane_config_reload_success", Kind::Gauge, "1 if the last reload of the file succeeded, else 0.", success);
        let at = reload.at.load(Ordering::Relaxed);
        let help = "Time of the last successful reload, in seconds since 1970.";
        self.single("memlane_config_last_reload_timestamp_seconds", Kind::Gauge, help, at);
        let help = "1 if the state file has the latest changes or there is none, else 0.";
        self.single("memlane_state_saved", Kind::Gauge, help, report.unsaved.is_none());
    }

    /// Process metrics, with the names of Prometheus' client libraries.
    fn process(&mut self, usage: ProcessUsage) {
        let report = self.report;
        let mut single = |name, kind, help, value: memlane_observe::metrics::Value| {
            self.text.family(name, kind, help).sample(&[], value);
        };
        single("process_cpu_seconds", Kind::Counter, "User and system CPU time of the process.", usage.cpu_seconds.into());
        single("process_virtual_memory_bytes", Kind::Gauge, "Size of the address space.", usage.virtual_bytes.into());
        single("process_resident_memory_bytes", Kind::Gauge, "Resident memory.", usage.resident_bytes.into());
        single("process_open_fds", Kind::Gauge, "Open file descriptors.", report.descriptors.open.into());
        single("process_max_fds", Kind::Gauge, "Most open file descriptors.", report.descriptors.limit.into());
        let start = seconds_now().saturating_sub(report.uptime);
        single("process_start_time_seconds", Kind::Gauge, "Start of the network in seconds since 1970.", start.into());
    }

    /// The chosen `labels` of ports; without samples of ports that have none of these.
    fn labels(&mut self, labels: &[String]) {
        if labels.is_empty() {
            return;
        }
        let Self { text, report } = self;
        let names: Vec<String> = labels.iter().map(|label| label_of_metrics(label)).collect();
        let help = "Labels of the port that the key metrics-labels names; always 1.";
        let mut family = text.family("memlane_port_labels", Kind::Gauge, help);
        for port in &report.ports {
            let values =
                labels.iter().zip(&names).filter_map(|(label, name)| Some((name.as_str(), port.labels.get(label)?.as_str())));
            let values: Vec<Label<'_>> = values.collect();
            if !values.is_empty() {
                let own = [("network", report.name.as_str()), ("port", port.name.as_str())];
                family.sample(&[&own[..], &values].concat(), 1_u64);
            }
        }
    }

    fn ports(&mut self) {
        self.port_info();
        let report = self.report;
        let labels = |port: &PortReport| Labels::new(&[("network", &report.name), ("port", &port.name)]);
        let ports: Vec<_> = report.ports.iter().map(|port| (labels(port), port)).collect();
        self.port_states(&ports);
        self.port_totals(&ports);
        self.port_interfaces(&ports);
        self.port_drops(&ports);
        self.port_labelled(&ports);
        self.port_distributions(&ports);
    }

    fn port_info(&mut self) {
        let Self { text, report } = self;
        let network = ("network", report.name.as_str());
        let mut info = text.family("memlane_port", Kind::Info, "The port.");
        for port in &report.ports {
            let mac = port.address.as_deref().unwrap_or_default();
            let (mtu, queues) = (port.mtu.map_or_else(String::new, |mtu| mtu.to_string()), port.queues.to_string());
            let own: [Label<'_>; 6] = [
                ("port", &port.name),
                ("segment", &port.segment),
                ("kind", &port.kind),
                ("mac", mac),
                ("mtu", &mtu),
                ("queues", &queues),
            ];
            info.info(&[[network].as_slice(), &own].concat());
        }
    }

    fn port_states(&mut self, ports: &[Port<'_>]) {
        let help = "1 for the present state of the port, 0 for the others.";
        let mut state = self.text.family("memlane_port_state", Kind::Gauge, help);
        let states = STATES.map(|name| (Labels::new(&[("state", name)]), name));
        for (own, port) in ports {
            states.iter().for_each(|(label, name)| state.sample_of(&[own, label], port.state == *name));
        }
    }

    /// The metrics with one value for each port.
    fn port_totals(&mut self, ports: &[Port<'_>]) {
        for counter in PortTotals::COUNTERS {
            let (name, kind, help) = match counter.metric {
                Metric::Counter(name, help) => (name, Kind::Counter, help),
                Metric::Gauge(name, help) => (name, Kind::Gauge, help),
                Metric::Notification(_) | Metric::Limited(_) | Metric::None => continue,
            };
            let mut family = self.text.family(name, kind, help);
            ports.iter().for_each(|(own, port)| family.sample_of(&[own], (counter.value)(&port.totals)));
        }
        for (kind, families) in [(Kind::Counter, &PORT_COUNTERS[..]), (Kind::Gauge, &PORT_GAUGES[..])] {
            for (name, help, value) in families {
                let mut family = self.text.family(name, kind, help);
                ports.iter().for_each(|(own, port)| family.sample_of(&[own], value(port)));
            }
        }
    }

    /// Whether the interfaces of ports that have one have a carrier.
    fn port_interfaces(&mut self, ports: &[Port<'_>]) {
        let with_interface: Vec<_> = ports.iter().filter_map(|(own, port)| Some((own, port.carrier?))).collect();
        if !with_interface.is_empty() {
            let help = "1 if the interface of the TAP or AF_PACKET port is up and has a carrier, else 0.";
            let mut carrier = self.text.family("memlane_port_carrier", Kind::Gauge, help);
            with_interface.iter().for_each(|(own, has_carrier)| carrier.sample_of(&[own], *has_carrier));
        }
    }

    fn port_drops(&mut self, ports: &[Port<'_>]) {
        let mut drops = self.text.family("memlane_port_dropped_frames", Kind::Counter, "Dropped frames, by drop reason.");
        let reasons: Vec<_> =
            DropReason::ALL.iter().map(|reason| (Labels::new(&[("reason", reason.name())]), reason.name())).collect();
        for (own, port) in ports {
            for (label, reason) in &reasons {
                drops.sample_of(&[own, label], port.totals.drops.get(*reason).copied().unwrap_or(0));
            }
        }
    }

    /// The counters that are samples of one family by a label.
    fn port_labelled(&mut self, ports: &[Port<'_>]) {
        let kinds = labelled("kind", |metric| if let Metric::Notification(kind) = metric { Some(kind) } else { None });
        let directions =
            labelled("direction", |metric| if let Metric::Limited(direction) = metric { Some(direction) } else { None });
        let families = [
            (
                "memlane_port_notifications",
                "Notifications: kicks from the guest, interrupts to it, and lost ones of either kind that were recovered.",
                kinds,
            ),
            ("memlane_port_limited", "Times that a rate limit of the port delayed frames.", directions),
        ];
        for (name, help, samples) in families {
            let mut family = self.text.family(name, Kind::Counter, help);
            for (own, port) in ports {
                samples.iter().for_each(|(label, count)| family.sample_of(&[own, label], count(&port.totals)));
            }
        }
    }

    /// Histograms, and CPU time.
    fn port_distributions(&mut self, ports: &[Port<'_>]) {
        let Self { text, report } = self;
        let help = "Frames that the guest transmitted, by size without FCS.";
        let mut sizes = text.family("memlane_port_frame_size_bytes", Kind::Histogram, help);
        let bounds = Bounds::new(&SIZE_BOUNDS.map(f64::from));
        for (own, port) in ports {
            sizes.histogram(own, &bounds, &port.totals.frame_sizes, port.totals.transmit_bytes);
        }
        let help = "Time from the transmit queue to the guest's receive queue, of one frame in 1021; emulated delay is left out.";
        let mut waits = text.family("memlane_port_wait_seconds", Kind::Histogram, help);
        let bounds = Bounds::new(&WAIT_BOUNDS.map(|bound| bound.as_secs_f64()));
        for (own, port) in ports {
            let sum = seconds(port.totals.waited_cycles, report.cycles_per_second);
            waits.histogram(own, &bounds, &port.totals.waits, sum);
        }
        let help = "CPU time that workers spent on frames from the guest.";
        let mut cpu = text.family("memlane_port_cpu_seconds", Kind::Counter, help);
        for (own, port) in ports {
            cpu.sample_of(&[own], seconds(port.totals.cycles, report.cycles_per_second));
        }
    }

    fn segments(&mut self) {
        let Self { text, report } = self;
        let network = ("network", report.name.as_str());
        let mut segments: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for port in &report.ports {
            let (ports, learned_addresses, _) = segments.entry(&port.segment).or_default();
            *ports += 1;
            *learned_addresses += port.learned_addresses as u64;
        }
        for found in &report.loops {
            segments.entry(&found.segment).or_default().2 += 1;
        }
        let mut family = |name, help, value: fn(&(u64, u64, u64)) -> u64| {
            let mut family = text.family(name, Kind::Gauge, help);
            segments.iter().for_each(|(segment, counts)| family.sample(&[network, ("segment", segment)], value(counts)));
        };
        family("memlane_segment_ports", "Ports of the segment.", |counts| counts.0);
        family("memlane_segment_mac_addresses", "MAC addresses learned on the segment.", |counts| counts.1);
        let help = "MAC addresses that moved between two ports too often in the last minute, as in a loop.";
        family("memlane_segment_flapping_mac_addresses", help, |counts| counts.2);
        let help =
            "Moves of MAC addresses from one port of the segment to another: many are a loop, or two guests with one address.";
        let mut moves = text.family("memlane_segment_mac_address_moves", Kind::Counter, help);
        report.moves.iter().for_each(|(segment, &count)| moves.sample(&[network, ("segment", segment)], count));
        let mut known =
            text.family("memlane_segment_addresses", Kind::Gauge, "IP addresses that the switch knows, by their source.");
        for (segment, totals) in &report.addresses {
            for (source, &count) in &totals.entries {
                known.sample(&[network, ("segment", segment), ("source", source.name())], count);
            }
        }
        let help = "Claims of IP addresses that belong to other machines.";
        let mut conflicts = text.family("memlane_segment_address_conflicts", Kind::Counter, help);
        report.addresses.iter().for_each(|(segment, totals)| conflicts.sample(&[network, ("segment", segment)], totals.conflicts));
        let help = "ARP requests and neighbour solicitations that the switch answered.";
        let mut answers = text.family("memlane_segment_neighbour_answers", Kind::Counter, help);
        report.addresses.iter().for_each(|(segment, totals)| answers.sample(&[network, ("segment", segment)], totals.answers));
    }

    fn multicast(&mut self) {
        let Self { text, report } = self;
        if report.multicast.is_empty() {
            return;
        }
        let network = ("network", report.name.as_str());
        type GroupGauge = (&'static str, &'static str, fn(&super::report::MulticastReport) -> u64);
        let gauges: [GroupGauge; 2] = [
            ("memlane_multicast_groups", "Multicast groups with members, of a segment that snoops.", |found| {
                found.groups.len() as u64
            }),
            (
                "memlane_multicast_ports_with_all_groups",
                "Ports that get every multicast frame: new ones, routers, uplinks, trunks.",
                |found| found.all.len() as u64,
            ),
        ];
        for (name, help, value) in gauges {
            let mut family = text.family(name, Kind::Gauge, help);
            report.multicast.iter().for_each(|found| family.sample(&[network, ("segment", &found.segment)], value(found)));
        }
    }

    fn workers(&mut self) {
        let Self { text, report } = self;
        let network = ("network", report.name.as_str());
        let numbers: Vec<String> = (0..report.workers.len()).map(|index| index.to_string()).collect();
        let mut busy = text.family("memlane_worker_busy_seconds", Kind::Counter, "Time in poll iterations that moved frames.");
        for (number, worker) in numbers.iter().zip(&report.workers) {
            busy.sample(&[network, ("worker", number)], seconds(worker.busy_cycles, report.cycles_per_second));
        }
        type WorkerCounter = (&'static str, &'static str, fn(&super::report::WorkerReport) -> u64);
        let counters: [WorkerCounter; 6] = [
            ("memlane_worker_poll_iterations", "Poll iterations that moved frames.", |worker| worker.busy_iterations),
            ("memlane_worker_idle_polls", "Poll iterations that found nothing.", |worker| worker.empty_iterations),
            ("memlane_worker_sleeps", "Times that the worker went to sleep.", |worker| worker.sleeps),
            ("memlane_worker_frames", "Frames that were delivered or dropped.", |worker| worker.frames),
            ("memlane_worker_handed_over_frames", "Frames handed over to other workers.", |worker| worker.handed_over),
            ("memlane_worker_wakes", "Wake-ups sent to other workers.", |worker| worker.wakes),
        ];
        for (name, help, value) in counters {
            let mut family = text.family(name, Kind::Counter, help);
            numbers.iter().zip(&report.workers).for_each(|(n, worker)| family.sample(&[network, ("worker", n)], value(worker)));
        }
    }

    fn memory(&mut self) {
        let report = self.report;
        let mut bytes = |name, help, value: u64| self.single(name, Kind::Gauge, help, value);
        bytes("memlane_memory_frames_bytes", "Switch memory in use for frames.", report.memory_held);
        bytes("memlane_memory_frames_limit_bytes", "Limit of switch memory for frames.", report.memory_most);
        bytes("memlane_guest_memory_mapped_bytes", "Guest memory mapped by the switch.", report.guest_memory.mapped);
        bytes("memlane_guest_memory_limit_bytes", "Limit of guest memory mapped by the switch.", report.guest_memory.most);
        bytes("memlane_guest_memory_touched_bytes", "Guest memory touched by the switch.", report.guest_memory.touched);
        let help = "Connections refused or closed because file descriptors ran out.";
        self.single("memlane_refused_connections", Kind::Counter, help, report.descriptors.refused);
    }

    fn uplinks(&mut self) {
        let Self { text, report } = self;
        if report.uplinks.is_empty() {
            return;
        }
        let network = ("network", report.name.as_str());
        type UplinkGauge = (&'static str, &'static str, fn(&crate::uplink::UplinkReport) -> u64);
        let gauges: [UplinkGauge; 5] = [
            ("memlane_uplink_hosts", "Other hosts of the segment.", |uplink| uplink.hosts.len() as u64),
            ("memlane_uplink_announced_mac_addresses", "Local MAC addresses announced to other hosts.", |uplink| {
                uplink.announced as u64
            }),
            ("memlane_uplink_held_back_mac_addresses", "Local MAC addresses not announced to other hosts.", |uplink| {
                uplink.held_back as u64
            }),
            ("memlane_uplink_remote_mac_addresses", "Remote MAC addresses.", |uplink| uplink.learned_addresses.len() as u64),
            (
                "memlane_uplink_healthy",
                "1 if all local MAC addresses are announced as configured, or the NIC is used and has a carrier, else 0.",
                |uplink| uplink.trouble.is_none().into(),
            ),
        ];
        for (name, help, value) in gauges {
            let mut family = text.family(name, Kind::Gauge, help);
            report.uplinks.iter().for_each(|uplink| family.sample(&[network, ("segment", &uplink.segment)], value(uplink)));
        }
    }
}

fn seconds(cycles: u64, per_second: u64) -> f64 {
    cycles as f64 / per_second.max(1) as f64
}
