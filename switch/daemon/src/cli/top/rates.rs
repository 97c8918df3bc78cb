//! Rates of a running network: the differences of its counters between two reports.
//!
//! The switch keeps no rates, so an idle network stays asleep and the data path does no work for them. A command reads two
//! reports; each tells the time at which its counters were read, so a late response does not distort a rate. Rates of
//! pairs are estimates: a port's receive rate, divided by the senders in its sample of frames.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::control::report::WorkerReport;
use crate::control::{PortReport, Report};
use crate::stats::PortTotals;

/// Rates of a network between two reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) struct Rates {
    /// Name of the network.
    pub network: String,
    /// Seconds between the reports.
    pub seconds: f64,
    /// Ports, in the order in which they were added.
    pub ports: Vec<PortRates>,
    /// Pairs of ports, the busiest first.
    pub pairs: Vec<PairRates>,
    /// Workers.
    pub workers: Vec<WorkerRates>,
}

/// Estimated rates from one port to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) struct PairRates {
    /// The transmit side.
    pub from: String,
    /// The receive side.
    pub to: String,
    /// Frames per second.
    #[serde(rename = "frames-per-second")]
    pub frames: f64,
    /// Bits per second.
    #[serde(rename = "bits-per-second")]
    pub bits: f64,
}

/// Rates of a port.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) struct PortRates {
    /// Name of the port.
    pub name: String,
    /// Segment of the port.
    pub segment: String,
    /// State of the port.
    pub state: String,
    /// Transmit frames per second.
    #[serde(rename = "transmit-frames-per-second")]
    pub transmit_frames: f64,
    /// Transmit rate, in bits per second.
    #[serde(rename = "transmit-bits-per-second")]
    pub transmit_bits: f64,
    /// Receive frames per second.
    #[serde(rename = "receive-frames-per-second")]
    pub receive_frames: f64,
    /// Receive rate, in bits per second.
    #[serde(rename = "receive-bits-per-second")]
    pub receive_bits: f64,
    /// Dropped frames per second, for all reasons.
    #[serde(rename = "dropped-per-second")]
    pub dropped: f64,
    /// Dropped frames per second by reason, without reasons that did not occur.
    #[serde(rename = "drops-per-second")]
    pub drops: BTreeMap<String, f64>,
    /// CPU time by the workers' accounting for this port: 1 is one whole CPU.
    pub cpu: f64,
    /// Frames that wait for this port at the second report.
    pub waiting: u64,
    /// Interrupts per frame, of either direction; none without frames.
    pub interrupts_per_frame: Option<f64>,
    /// Counters at the second report.
    pub totals: PortTotals,
}

/// Rates of a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) struct WorkerRates {
    /// Part of the time in poll iterations that moved frames.
    pub load: f64,
    /// Frames received by guests or dropped, per second.
    #[serde(rename = "frames-per-second")]
    pub frames: f64,
    /// Times it went to sleep, per second.
    #[serde(rename = "sleeps-per-second")]
    pub sleeps: f64,
}

/// The increase of a counter. One that fell has begun anew, as that of a port that was detached and attached again.
fn increase(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}

impl Rates {
    /// Rates between two reports; `None` if no time has passed between them, or the network was started again.
    pub(in crate::cli) fn between(before: &Report, after: &Report) -> Option<Self> {
        let elapsed = after.uptime_ns.checked_sub(before.uptime_ns).filter(|&elapsed| elapsed > 0)?;
        if before.pid != after.pid || before.name != after.name {
            return None;
        }
        let scale = Scale { seconds: elapsed as f64 / 1e9, cycles_per_second: after.cycles_per_second };
        let old: HashMap<&str, &PortReport> = before.ports.iter().map(|port| (&*port.name, port)).collect();
        // A port that was attached in between has counted from zero.
        let fresh = PortTotals::default();
        let port = |port: &PortReport| scale.port(old.get(&*port.name).map_or(&fresh, |old| &old.totals), port);
        let workers = before.workers.iter().zip(&after.workers).map(|(before, after)| scale.worker(before, after));
        let ports: Vec<PortRates> = after.ports.iter().map(port).collect();
        let mut pairs: Vec<PairRates> = after.ports.iter().zip(&ports).flat_map(|(report, rates)| pairs(report, rates)).collect();
        pairs.sort_by(|a, b| b.bits.total_cmp(&a.bits));
        Some(Self { network: after.name.clone(), seconds: scale.seconds, ports, pairs, workers: workers.collect() })
    }

    /// Dropped frames per second by reason, of all ports.
    pub(in crate::cli) fn drops(&self) -> BTreeMap<&str, f64> {
        let mut all = BTreeMap::new();
        for (reason, rate) in self.ports.iter().flat_map(|port| &port.drops) {
            *all.entry(&**reason).or_default() += rate;
        }
        all
    }

    /// The sum of a rate over all ports.
    pub(in crate::cli) fn sum(&self, rate: fn(&PortRates) -> f64) -> f64 {
        self.ports.iter().map(rate).sum()
    }
}

/// The pairs of which a port is the receive side.
fn pairs(report: &PortReport, rates: &PortRates) -> impl Iterator<Item = PairRates> {
    let all: u64 = report.senders.values().sum();
    let is_receiving = rates.receive_frames > 0.0;
    report.senders.iter().filter(move |_| is_receiving).map(move |(from, &samples)| {
        let part = samples as f64 / all as f64;
        let (frames, bits) = (part * rates.receive_frames, part * rates.receive_bits);
        PairRates { from: from.clone(), to: rates.name.clone(), frames, bits }
    })
}

/// The time base of rates.
struct Scale {
    seconds: f64,
    cycles_per_second: u64,
}

impl Scale {
    fn rate(&self, before: u64, after: u64) -> f64 {
        increase(before, after) as f64 / self.seconds
    }

    fn share(&self, before: u64, after: u64) -> f64 {
        self.rate(before, after) / self.cycles_per_second.max(1) as f64
    }

    fn port(&self, before: &PortTotals, port: &PortReport) -> PortRates {
        let after = &port.totals;
        let rate = |pick: fn(&PortTotals) -> u64| self.rate(pick(before), pick(after));
        let drop_rate = |(reason, &count): (&String, &u64)| {
            let rate = self.rate(before.drops.get(reason).copied().unwrap_or(0), count);
            (rate > 0.0).then(|| (reason.clone(), rate))
        };
        let drops: BTreeMap<String, f64> = after.drops.iter().filter_map(drop_rate).collect();
        let (transmit_frames, receive_frames) = (rate(|totals| totals.transmit_frames), rate(|totals| totals.receive_frames));
        let (frames, interrupts) = (transmit_frames + receive_frames, rate(|totals| totals.interrupts));
        PortRates {
            name: port.name.clone(),
            segment: port.segment.clone(),
            state: port.state.clone(),
            transmit_frames,
            transmit_bits: 8.0 * rate(|totals| totals.transmit_bytes),
            receive_frames,
            receive_bits: 8.0 * rate(|totals| totals.receive_bytes),
            dropped: drops.values().sum(),
            drops,
            cpu: self.share(before.cycles, after.cycles),
            waiting: after.waiting,
            interrupts_per_frame: (frames > 0.0).then(|| interrupts / frames),
            totals: after.clone(),
        }
    }

    fn worker(&self, before: &WorkerReport, after: &WorkerReport) -> WorkerRates {
        WorkerRates {
            load: self.share(before.busy_cycles, after.busy_cycles),
            frames: self.rate(before.frames, after.frames),
            sleeps: self.rate(before.sleeps, after.sleeps),
        }
    }
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A report at this time of a network with these ports: name and counters.
    pub(in crate::cli) fn report(uptime_ns: u64, ports: &[(&str, Value)]) -> Report {
        let ports = ports.iter().map(|(name, counters)| {
            let mut port = json!({
                "name": name, "segment": "lan", "kind": "vhost-user", "place": "web.sock", "state": "running", "quarantines": 0,
                "learned-addresses": 1, "limits": { "weight": 1, "transmit": {}, "receive": {}, "storm": 20_000 }
            });
            port.as_object_mut().unwrap().extend(counters.as_object().unwrap().clone());
            port
        });
        let worker = json!({
            "busy-iterations": 1, "empty-iterations": 1, "busy-cycles": uptime_ns / 4, "frames": uptime_ns / 1_000_000, "sleeps": 7, "polls": 1,
            "handed-over": 0, "wakes": 0
        });
        let network = json!({
            "name": "net", "version": "0.1.0", "pid": 1, "uptime": uptime_ns / 1_000_000_000, "uptime-ns": uptime_ns,
            "cycles-per-second": 1_000_000_000, "memory-held": 0, "memory-most": 1 << 20, "ports": ports.collect::<Vec<_>>(),
            "workers": [worker]
        });
        serde_json::from_value(network).unwrap()
    }

    #[test]
    fn a_rate_is_the_difference_of_a_counter_over_the_time_of_the_reports() {
        let before = json!({
            "transmit-frames": 100, "transmit-bytes": 1000, "receive-frames": 5, "receive-bytes": 50, "interrupts": 10,
            "cycles": 1_000_000_000_u64, "waiting": 9, "drops": { "storm": 3, "link-loss": 1 }
        });
        let after = json!({
            "transmit-frames": 400, "transmit-bytes": 2000, "receive-frames": 105, "receive-bytes": 550, "interrupts": 50,
            "cycles": 1_500_000_000_u64, "waiting": 4, "drops": { "storm": 7, "link-loss": 1, "spoofed-source": 2 }
        });
        let (before, after) = (report(1_000_000_000, &[("web", before)]), report(3_000_000_000, &[("web", after)]));
        let rates = Rates::between(&before, &after).unwrap();
        assert_eq!(rates.seconds, 2.0);
        let port = &rates.ports[0];
        assert_eq!((port.transmit_frames, port.transmit_bits), (150.0, 4000.0));
        assert_eq!((port.receive_frames, port.receive_bits), (50.0, 2000.0));
        assert_eq!((port.dropped, port.cpu, port.waiting), (3.0, 0.25, 4));
        assert_eq!(port.interrupts_per_frame, Some(0.1));
        assert_eq!(port.drops, BTreeMap::from([("spoofed-source".to_owned(), 1.0), ("storm".to_owned(), 2.0)]));
        assert_eq!(rates.drops(), BTreeMap::from([("spoofed-source", 1.0), ("storm", 2.0)]));
        assert_eq!((rates.workers[0].load, rates.workers[0].frames, rates.workers[0].sleeps), (0.25, 1000.0, 0.0));
    }

    #[test]
    fn pairs_divide_the_receive_rate_by_the_sample() {
        let received = json!({ "receive-frames": 100, "receive-bytes": 1000, "senders": { "web": 3, "db": 1 } });
        let silent = json!({ "senders": { "web": 2 } });
        let after = report(2_000_000_000, &[("app", received), ("silent", silent)]);
        let rates = Rates::between(&report(1_000_000_000, &[]), &after).unwrap();
        let pair = |from: &str, frames, bits| PairRates { from: from.into(), to: "app".into(), frames, bits };
        assert_eq!(rates.pairs, [pair("web", 75.0, 6000.0), pair("db", 25.0, 2000.0)]);
    }

    #[test]
    fn counters_that_began_anew_count_from_zero() {
        let before = report(1_000_000_000, &[("web", json!({ "transmit-frames": 100 }))]);
        let after = report(2_000_000_000, &[("db", json!({ "receive-frames": 8 })), ("web", json!({ "transmit-frames": 30 }))]);
        let rates = Rates::between(&before, &after).unwrap();
        assert_eq!((rates.ports[0].receive_frames, rates.ports[1].transmit_frames), (8.0, 30.0));
        assert_eq!(rates.ports[1].interrupts_per_frame, Some(0.0));
    }

    #[test]
    fn a_network_that_was_started_again_has_no_rates_yet() {
        let (early, late) = (report(1_000_000_000, &[]), report(2_000_000_000, &[]));
        assert!(Rates::between(&late, &early).is_none() && Rates::between(&early, &early).is_none());
        assert!(Rates::between(&early, &Report { pid: 2, ..late }).is_none());
    }
}
