//! Measuring: slices of a millisecond, a time series of bytes a sender, a histogram of latencies.

use hdrhistogram::Histogram;

use crate::clock;

use super::bed::Way;
use super::flow::Sink;
use super::plan::Plan;

/// Length of a slice, seconds.
const SLICE: f64 = 1e-3;
/// Latencies are kept with three digits, up to a minute.
const LONGEST_LATENCY: u64 = 60_000_000_000;

/// A histogram of times in nanoseconds.
pub fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_LATENCY, 3).expect("bounds that the crate allows")
}

/// Rates, shares and latencies between warm-up and stop.
pub struct Meter {
    /// Begin and end of the measurement, in ticks; 0 before it begins.
    span: (u64, u64),
    slice: (u64, u64),
    slice_ticks: u64,
    /// Frames a second, of each slice.
    pub slices: Vec<f64>,
    series_since: u64,
    series_ticks: u64,
    senders: Vec<usize>,
    sender_bytes: Vec<u64>,
    /// For each window its length in seconds and the bytes of each sender.
    pub series: Vec<(f64, Vec<u64>)>,
    /// One-way latencies in nanoseconds, of one frame a burst.
    pub latencies: Histogram<u64>,
    nanoseconds_a_tick: f64,
}

impl Meter {
    /// A meter for a run of `plan`.
    pub fn new(plan: &Plan, ways: &[Way]) -> Self {
        let slices = (plan.duration.as_secs_f64() / SLICE) as usize + 16;
        Self {
            span: (0, 0),
            slice: (0, 0),
            slice_ticks: (SLICE * clock::frequency()) as u64,
            slices: Vec::with_capacity(slices),
            series_since: 0,
            series_ticks: clock::ticks_of(plan.series).max(1),
            senders: ways.iter().map(|way| way.from).collect(),
            sender_bytes: vec![0; plan.ports.len()],
            series: Vec::new(),
            latencies: times(),
            nanoseconds_a_tick: 1e9 / clock::frequency(),
        }
    }

    /// Seconds measured so far.
    pub fn seconds(&self) -> f64 {
        clock::seconds(self.span.1 - self.span.0)
    }

    /// Begins the measurement.
    pub fn begin(&mut self, now: u64, frames: u64, sinks: &[Sink]) {
        self.span = (now, now);
        self.slice = (now, frames);
        self.series_since = now;
        self.sender_bytes = self.bytes(sinks);
    }

    /// Whether the measurement is on.
    #[inline(always)]
    pub fn running(&self) -> bool {
        self.span.0 != 0
    }

    /// Closes slices and windows that are over; `true` when a window was closed.
    #[inline]
    pub fn tick(&mut self, now: u64, frames: u64, sinks: &[Sink]) -> bool {
        self.span.1 = now;
        let (since, before) = self.slice;
        if now - since >= self.slice_ticks {
            self.slices.push((frames - before) as f64 / clock::seconds(now - since));
            self.slice = (now, frames);
        }
        let over = now - self.series_since >= self.series_ticks;
        if over {
            self.close_window(now, sinks);
        }
        over
    }

    /// Ends the measurement.
    pub fn end(&mut self, now: u64, sinks: &[Sink]) {
        self.span.1 = now;
        // The last, incomplete window counts if more than half of it has passed.
        if (now - self.series_since) * 2 > self.series_ticks {
            self.close_window(now, sinks);
        }
    }

    /// Notes a latency in ticks.
    #[inline]
    pub fn latency(&mut self, ticks: u64) {
        if self.running() {
            self.latencies.saturating_record((ticks as f64 * self.nanoseconds_a_tick) as u64);
        }
    }

    fn close_window(&mut self, now: u64, sinks: &[Sink]) {
        let bytes = self.bytes(sinks);
        let gained = bytes.iter().zip(&self.sender_bytes).map(|(now, before)| now - before).collect();
        self.series.push((clock::seconds(now - self.series_since), gained));
        self.sender_bytes = bytes;
        self.series_since = now;
    }

    /// Bytes that arrived from each sender so far.
    fn bytes(&self, sinks: &[Sink]) -> Vec<u64> {
        let mut bytes = vec![0; self.sender_bytes.len()];
        for (sender, sink) in self.senders.iter().zip(sinks) {
            bytes[*sender] += sink.bytes;
        }
        bytes
    }
}

/// Jain's fairness index of several shares: 1 when all are equal, 1/n when one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The value below which `share` (0 to 1) of the values lie.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (share * sorted.len() as f64) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_has_its_known_values() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[9.0, 0.0, 0.0]), 1.0 / 3.0);
        assert!((jain(&[1.0, 2.0]) - 0.9).abs() < 1e-12);
    }

    #[test]
    fn quantiles_of_few_values() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
