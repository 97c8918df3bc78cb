//! The results of a run: as data ([`Report`], JSON) and as a table for people.

mod machine;
mod table;

use serde::Serialize;

use crate::clock;
use crate::frontend::features;

use super::bed::Way;
use super::flow::Sink;
use super::meter::{Meter, jain, quantile};
use super::plan::Plan;
use super::run::{Effort, Outcome};

pub use machine::{Machine, Surroundings};

/// Version of the JSON's shape; a change that breaks readers raises it.
pub const SCHEMA: u32 = 1;

/// All that is known of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Where it ran.
    pub machine: Machine,
    /// State of the machine around the run.
    pub surroundings: Surroundings,
    /// Seconds measured.
    pub seconds: f64,
    /// Stopped before its time.
    pub interrupted: bool,
    /// Port by port: where it is, and the negotiated features.
    pub ports: Vec<PortReport>,
    /// All flows together, during the measurement.
    pub total: Rates,
    /// Each (sender, receiver), during the measurement.
    pub directions: Vec<FlowReport>,
    /// Each flow, if there are several a direction.
    pub flows: Vec<FlowReport>,
    /// Outcome of all frames, warm-up included, once the last had arrived.
    pub fate: Fate,
    /// CPU time of the generator itself.
    pub generator: Generator,
    /// Frames a second in slices of a millisecond.
    pub slices: Slices,
    /// One-way latency of one frame a burst, microseconds.
    pub latency_us: Latency,
    /// Bytes a sender over time.
    pub series: Series,
}

/// A port.
#[derive(Debug, Serialize)]
pub struct PortReport {
    /// The place as on the command line.
    pub place: String,
    /// Names of the negotiated virtio features.
    pub features: Vec<String>,
}

/// How much arrived how fast.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Rates {
    /// Frames sent.
    pub sent: u64,
    /// Frames that arrived as sent.
    pub received: u64,
    /// Bytes of those, without virtio-net headers.
    pub bytes: u64,
    /// Millions of frames sent a second.
    pub sent_mpps: f64,
    /// Millions of frames received a second.
    pub mpps: f64,
    /// Gbit/s received.
    pub gbps: f64,
}

/// A flow or a direction.
#[derive(Debug, Serialize)]
pub struct FlowReport {
    /// Sending port.
    pub from: usize,
    /// Receiving port.
    pub to: usize,
    /// How much.
    #[serde(flatten)]
    pub rates: Rates,
    /// Outcome of the frames.
    pub fate: Fate,
}

/// Outcome of frames.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// Sent.
    pub sent: u64,
    /// Arrived as sent.
    pub received: u64,
    /// Never came, or came corrupt.
    pub lost: u64,
    /// Came after a later one.
    pub reordered: u64,
    /// Came again.
    pub duplicated: u64,
    /// Came with a wrong length or payload.
    pub corrupt: u64,
    /// Came to a port that they were not meant for.
    pub flooded: u64,
    /// Frames of others.
    pub foreign: u64,
}

impl Fate {
    /// Whether something went wrong that must not: loss may be, the rest not.
    pub fn is_bad(&self) -> bool {
        self.corrupt + self.duplicated + self.reordered > 0
    }
}

/// CPU time of the generator itself: a generator that was never idle was the bottleneck.
#[derive(Debug, Serialize)]
pub struct Generator {
    /// Share of its time in which it found nothing to do.
    pub idle_percent: f64,
    /// Ticks of the processor's counter for each frame received, sending included, idle rounds left out.
    pub ticks_per_frame: f64,
    /// Ticks a second.
    pub ticks_per_second: f64,
}

/// Slices of a millisecond, millions of frames a second.
#[derive(Debug, Serialize)]
pub struct Slices {
    /// How many.
    pub count: usize,
    /// The middle one.
    pub median_mpps: f64,
    /// Better than nine in ten: the rate of an undisturbed machine.
    pub p90_mpps: f64,
    /// The best.
    pub max_mpps: f64,
}

/// Percentiles, microseconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Latency {
    /// Frames looked at.
    pub samples: u64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
}

/// Bytes a sender over time.
#[derive(Debug, Serialize)]
pub struct Series {
    /// Seconds of each window.
    pub seconds: Vec<f64>,
    /// For each sending port its bytes in each window.
    pub senders: Vec<Sender>,
    /// Jain's index over the senders, in each window.
    pub jain: Vec<f64>,
    /// The lowest of those; 1 when there is only one sender.
    pub jain_worst: f64,
    /// Over the whole measurement.
    pub jain_overall: f64,
}

/// One sender's series.
#[derive(Debug, Serialize)]
pub struct Sender {
    /// The port.
    pub port: usize,
    /// Bytes that arrived in each window.
    pub bytes: Vec<u64>,
}

impl Report {
    /// Puts a report together.
    pub fn new(plan: &Plan, outcome: &Outcome, machine: Machine, surroundings: Surroundings) -> Self {
        let books = &outcome.collector.books;
        let seconds = books.meter.seconds();
        let flows = flow_reports(outcome, books.ways(), seconds);
        let mut fate = flows.iter().fold(Fate::default(), |sum, flow| add_fates(sum, flow.fate));
        (fate.flooded, fate.foreign) = (books.flooded, books.foreign);
        let total = flows.iter().fold(Rates::default(), |sum, flow| add_rates(sum, flow.rates));
        let place = |(place, features): (&super::plan::PortPlace, &u64)| PortReport {
            place: place.to_string(),
            features: features::names(*features),
        };
        Self {
            schema: SCHEMA,
            machine,
            surroundings,
            seconds,
            interrupted: outcome.interrupted,
            ports: plan.ports.iter().zip(&outcome.features).map(place).collect(),
            total,
            directions: directions(&flows),
            flows: if plan.flows > 1 { flows } else { Vec::new() },
            fate,
            generator: generator(outcome.effort, total.received),
            slices: slices(&books.meter),
            latency_us: Latency::new(&books.meter.latencies),
            series: series(&books.meter, books.ways()),
        }
    }

    /// The table for people.
    pub fn table(&self) -> String {
        table::render(self)
    }
}

impl Latency {
    /// The percentiles of a histogram of nanoseconds.
    pub fn new(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        let at = |share| microseconds(histogram.value_at_quantile(share));
        Self {
            samples: histogram.len(),
            min: microseconds(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: microseconds(histogram.max()),
        }
    }
}

fn flow_reports(outcome: &Outcome, ways: &[Way], seconds: f64) -> Vec<FlowReport> {
    let report = |(flow, way): (usize, &Way)| {
        // Where the switch segments GSO frames, their segments are counted.
        let parts = u64::from(outcome.parts[flow]);
        let count = |counts: &[u64]| counts.get(flow).copied().unwrap_or(0) * parts;
        let (begin, end, last) = (&outcome.begin[flow], &outcome.end[flow], &outcome.last[flow]);
        let sent = count(&outcome.sent.end) - count(&outcome.sent.begin);
        FlowReport {
            from: way.from,
            to: way.to,
            rates: rates(sent, end.received - begin.received, end.bytes - begin.bytes, seconds),
            fate: fate(count(&outcome.sent_in_all), last),
        }
    };
    ways.iter().enumerate().map(report).collect()
}

fn rates(sent: u64, received: u64, bytes: u64, seconds: f64) -> Rates {
    let a_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    Rates {
        sent,
        received,
        bytes,
        sent_mpps: a_second(sent as f64 / 1e6),
        mpps: a_second(received as f64 / 1e6),
        gbps: a_second(bytes as f64 * 8.0 / 1e9),
    }
}

fn fate(sent: u64, sink: &Sink) -> Fate {
    Fate {
        sent,
        received: sink.received,
        lost: sent.saturating_sub(sink.received),
        reordered: sink.reordered,
        duplicated: sink.duplicated,
        corrupt: sink.corrupt,
        flooded: 0,
        foreign: 0,
    }
}

fn directions(flows: &[FlowReport]) -> Vec<FlowReport> {
    let mut directions: Vec<FlowReport> = Vec::new();
    for flow in flows {
        match directions.last_mut().filter(|last| (last.from, last.to) == (flow.from, flow.to)) {
            Some(last) => {
                last.rates = add_rates(last.rates, flow.rates);
                last.fate = add_fates(last.fate, flow.fate);
            }
            None => directions.push(FlowReport { ..*flow }),
        }
    }
    directions
}

fn add_rates(one: Rates, other: Rates) -> Rates {
    Rates {
        sent: one.sent + other.sent,
        received: one.received + other.received,
        bytes: one.bytes + other.bytes,
        sent_mpps: one.sent_mpps + other.sent_mpps,
        mpps: one.mpps + other.mpps,
        gbps: one.gbps + other.gbps,
    }
}

fn add_fates(one: Fate, other: Fate) -> Fate {
    Fate {
        sent: one.sent + other.sent,
        received: one.received + other.received,
        lost: one.lost + other.lost,
        reordered: one.reordered + other.reordered,
        duplicated: one.duplicated + other.duplicated,
        corrupt: one.corrupt + other.corrupt,
        flooded: one.flooded + other.flooded,
        foreign: one.foreign + other.foreign,
    }
}

fn generator(effort: Effort, frames: u64) -> Generator {
    let share = |part: u64, whole: u64| {
        if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
    };
    Generator {
        idle_percent: 100.0 * share(effort.idle, effort.idle + effort.busy),
        ticks_per_frame: share(effort.busy, frames),
        ticks_per_second: clock::frequency(),
    }
}

fn slices(meter: &Meter) -> Slices {
    let at = |share| quantile(&meter.slices, share) / 1e6;
    Slices { count: meter.slices.len(), median_mpps: at(0.5), p90_mpps: at(0.9), max_mpps: at(1.0) }
}

fn series(meter: &Meter, ways: &[Way]) -> Series {
    let mut ports: Vec<usize> = ways.iter().map(|way| way.from).collect();
    ports.sort_unstable();
    ports.dedup();
    let index = |bytes: &[u64]| jain(&ports.iter().map(|&port| bytes[port] as f64).collect::<Vec<_>>());
    let jains: Vec<f64> = meter.series.iter().map(|(_, bytes)| index(bytes)).collect();
    let sender = |&port: &usize| Sender { port, bytes: meter.series.iter().map(|(_, bytes)| bytes[port]).collect() };
    let senders: Vec<Sender> = ports.iter().map(sender).collect();
    let sums: Vec<f64> = senders.iter().map(|sender| sender.bytes.iter().sum::<u64>() as f64).collect();
    Series {
        seconds: meter.series.iter().map(|(seconds, _)| *seconds).collect(),
        jain_worst: jains.iter().copied().fold(1.0, f64::min),
        jain_overall: jain(&sums),
        jain: jains,
        senders,
    }
}
