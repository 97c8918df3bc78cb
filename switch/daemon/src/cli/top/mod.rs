//! `memlane top`: ports and workers of a running network by their rates, on the screen or as one measurement.
//!
//! 1. [`rates`]: rates from two reports. 2. [`view`]: the state of the screen, changed by reports and keys. 3. [`draw`]: the
//!    screen. 4. [`terminal`]: the terminal, its keys, signals, and the reports once per interval.

mod draw;
pub(super) mod rates;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use super::net::Net;
use super::output::{Table, count, rate, shown};
use super::{Failure, output, usage};
use crate::control::{Client, Report};
use rates::{PortRates, Rates};
use view::Sort;

/// Shortest interval.
const SHORTEST: Duration = Duration::from_millis(100);

/// Time over which `status` and `ls` measure rates.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Arguments of `memlane top`.
#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    net: Net,
    /// Time between measurements.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Order of the ports.
    #[arg(long, value_enum, default_value_t = Sort::Traffic)]
    sort: Sort,
    /// Print one measurement, and end.
    #[arg(long)]
    once: bool,
    /// As JSON.
    #[arg(long, requires = "once")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let wanted = "a number of seconds or a time with its unit, from 100ms to an hour, as 2 or 500ms";
    usage::timeout(text).ok().filter(|time| *time >= SHORTEST).ok_or_else(|| wanted.into())
}

impl Top {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let client = self.net.client()?;
        if !self.once {
            if !std::io::stdout().is_terminal() {
                let text = "memlane top draws on a terminal, and standard output is none: print one measurement with --once";
                return Err(Failure::Configuration(text.into()));
            }
            let first = client.get(REPORT)?;
            return terminal::run(client, first, self.interval, self.sort);
        }
        let rates = measure(&client, self.interval)?.1;
        output::print_either(self.json, &rates, || text(&rates, self.sort))
    }
}

/// Most pairs in the text of a measurement.
const PAIRS: usize = 20;

/// Path of the report.
const REPORT: &str = "/v1/network";

/// Reads two reports, `interval` apart; returns the second, and the rates between them.
pub(super) fn measure(client: &Client, interval: Duration) -> Result<(Report, Rates), Failure> {
    let before: Report = client.get(REPORT)?;
    std::thread::sleep(interval);
    let after: Report = client.get(REPORT)?;
    let rates = Rates::between(&before, &after);
    let rates = rates.ok_or_else(|| Failure::Running("the network was started again during the measurement: try again".into()))?;
    Ok((after, rates))
}

/// A measurement as tables.
fn text(rates: &Rates, sort: Sort) -> String {
    let mut ports: Vec<&PortRates> = rates.ports.iter().collect();
    sort.apply(&mut ports);
    let heading = ["port", "TX\nframes/s", "TX\nbit/s", "RX\nframes/s", "RX\nbit/s", "dropped\n/s", "CPU", "wait", "irq\n/frame"];
    let mut text = format!("network {}, rates of {:.1} s\n\n", shown(&rates.network), rates.seconds);
    let row = |port: &&PortRates| [shown(&port.name)].into_iter().chain(numbers(port)).collect();
    text.push_str(&Table::new(1, heading, ports.iter().map(row)).narrow());
    for (reason, dropped) in rates.drops() {
        text.push_str(&format!("  dropped for {}: {}/s\n", shown(reason), rate(dropped)));
    }
    let row = |pair: &rates::PairRates| vec![shown(&pair.from), shown(&pair.to), rate(pair.frames), rate(pair.bits)];
    if !rates.pairs.is_empty() {
        text.push('\n');
        text.push_str(&Table::new(2, ["from", "to", "frames/s", "bit/s"], rates.pairs.iter().take(PAIRS).map(row)).narrow());
    }
    let row = |(index, worker): (usize, &rates::WorkerRates)| {
        vec![index.to_string(), percent(worker.load), rate(worker.frames), rate(worker.sleeps)]
    };
    let workers = Table::new(0, ["worker", "load", "frames/s", "sleeps/s"], rates.workers.iter().enumerate().map(row));
    text + "\n" + &workers.narrow()
}

/// The cells of a port's rates, from TX frames to interrupts per frame.
fn numbers(port: &PortRates) -> [String; 8] {
    [
        rate(port.transmit_frames),
        rate(port.transmit_bits),
        rate(port.receive_frames),
        rate(port.receive_bits),
        rate(port.dropped),
        percent(port.cpu),
        count(port.waiting),
        port.interrupts_per_frame.map_or_else(|| "-".into(), |interrupts| format!("{interrupts:.2}")),
    ]
}

/// A share of one CPU.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rates::tests::report;
    use serde_json::json;

    #[test]
    fn a_measurement_fits_80_columns_and_is_sorted() {
        let most = u64::MAX / 16;
        let busy = json!({
            "transmit-frames": most, "transmit-bytes": most, "receive-frames": 1, "receive-bytes": most, "waiting": u64::MAX,
            "interrupts": most, "cycles": 900_000_000_u64, "drops": { "storm": most }
        });
        let long = "a\x1b[2J".to_owned() + &"x".repeat(60);
        let before = report(1_000_000_000, &[]);
        let after = report(2_000_000_000, &[("idle", json!({})), (&long, busy)]);
        let text = text(&Rates::between(&before, &after).unwrap(), Sort::Traffic);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.find("a?[2Jxx") < text.find("idle"), "{text}");
        assert!(text.contains("dropped for storm: 1.15E/s") && text.contains("90.0%"), "{text}");
    }

    #[test]
    fn an_interval_has_bounds() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "99ms", "2h", "x"] {
            assert!(interval(wrong).unwrap_err().contains("from 100ms to an hour"));
        }
    }
}
