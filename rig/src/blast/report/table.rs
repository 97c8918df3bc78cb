//! A report for people.

use std::fmt::Write as _;

use super::{FlowReport, Report, Series};

/// Directions shown one by one; beyond that only the total.
const SHOWN: usize = 16;

/// The whole report as lines.
pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut text, report);
    text
}

fn write(text: &mut String, report: &Report) -> std::fmt::Result {
    let total = &report.total;
    let stopped = if report.interrupted { ", interrupted" } else { "" };
    writeln!(text, "measured {:.2} s{stopped}", report.seconds)?;
    writeln!(text, "{:<10} {:>12} {:>12} {:>10} {:>10}", "", "sent Mpps", "recv Mpps", "Gbit/s", "lost %")?;
    for direction in report.directions.iter().take(SHOWN) {
        line(text, direction)?;
    }
    if report.directions.len() > SHOWN {
        writeln!(text, "{:<10} and {} more directions", "", report.directions.len() - SHOWN)?;
    }
    let lost = percent(report.fate.lost, report.fate.sent);
    writeln!(text, "{:<10} {:>12.3} {:>12.3} {:>10.2} {lost:>10.3}", "total", total.sent_mpps, total.mpps, total.gbps)?;
    let slices = &report.slices;
    let (median, p90, max) = (slices.median_mpps, slices.p90_mpps, slices.max_mpps);
    writeln!(text, "1 ms slices    median {median:.3}  p90 {p90:.3}  max {max:.3} Mpps  ({} slices)", slices.count)?;
    let us = &report.latency_us;
    writeln!(
        text,
        "latency us     p50 {:.2}  p90 {:.2}  p99 {:.2}  p99.9 {:.2}  max {:.2}  ({} samples)",
        us.p50, us.p90, us.p99, us.p99_9, us.max, us.samples
    )?;
    let fate = &report.fate;
    writeln!(
        text,
        "frames         sent {}  received {}  lost {}  reordered {}  duplicated {}  corrupt {}  flooded {}  foreign {}",
        fate.sent, fate.received, fate.lost, fate.reordered, fate.duplicated, fate.corrupt, fate.flooded, fate.foreign
    )?;
    fairness(text, &report.series)?;
    let generator = &report.generator;
    let (idle, ticks) = (generator.idle_percent, generator.ticks_per_frame);
    writeln!(text, "generator      {ticks:.0} ticks a frame sent and received, idle {idle:.0} % of its time")?;
    surroundings(text, report)
}

fn line(text: &mut String, flow: &FlowReport) -> std::fmt::Result {
    let name = format!("{} -> {}", flow.from, flow.to);
    let (rates, lost) = (&flow.rates, percent(flow.fate.lost, flow.fate.sent));
    writeln!(text, "{name:<10} {:>12.3} {:>12.3} {:>10.2} {lost:>10.3}", rates.sent_mpps, rates.mpps, rates.gbps)
}

fn fairness(text: &mut String, series: &Series) -> std::fmt::Result {
    if series.senders.len() < 2 {
        return Ok(());
    }
    let windows = series.jain.len();
    let (overall, worst) = (series.jain_overall, series.jain_worst);
    writeln!(text, "fairness       Jain's index {overall:.4} overall, {worst:.4} in the worst of {windows} windows")
}

fn surroundings(text: &mut String, report: &Report) -> std::fmt::Result {
    let (machine, around) = (&report.machine, &report.surroundings);
    let distance = |distance: Option<crate::blast::cpu::Distance>| match distance {
        Some(distance) => format!("{:.0} ns", distance.nanoseconds),
        None => "unknown".to_owned(),
    };
    let (before, after) = (distance(around.distance_before), distance(around.distance_after));
    let (one, other) = around.probed_cpus;
    writeln!(text, "processors     {one} and {other} are {} ({before} before, {after} after)", around.placement)?;
    let switch = around.switch_cpu_percent.map_or(String::new(), |percent| format!(", the switch {percent:.0} %"));
    writeln!(text, "processor time others used {:.0} %{switch}", around.foreign_cpu_percent)?;
    writeln!(text, "machine        {}, {} processors, Linux {}", machine.cpu, machine.cpus, machine.kernel)
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}
