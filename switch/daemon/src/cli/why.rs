//! `memlane why`: the outcome of a frame without sending it, or the causes that keep a port from its work.

use clap::Args;
use hyper::Method;

use super::net::PortOfNet;
use super::status::explanation;
use super::{Failure, output};
use crate::control::PortReport;
use crate::control::why::{Why, WhyFrame};

/// Arguments of `memlane why`.
#[derive(Debug, Args)]
pub(super) struct WhyCommand {
    #[command(flatten)]
    port: PortOfNet,
    /// MAC address of the destination of a frame from the port's guest.
    #[arg(long, value_name = "MAC", conflicts_with = "frame")]
    to: Option<String>,
    /// A whole Ethernet frame from the port's guest, in hexadecimal.
    #[arg(long, value_name = "HEX")]
    frame: Option<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl WhyCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.to.is_none() && self.frame.is_none() {
            return self.port();
        }
        let question = WhyFrame { to: self.to.clone(), frame: self.frame.clone() };
        let why: Why = self.port.net()?.client()?.ask(Method::POST, &self.port.uri("/why"), Some(&question))?;
        if self.json {
            return output::print_json(&why);
        }
        let steps: String = why.forecast.steps.iter().map(|step| output::wrapped(&format!("  {step}"))).collect();
        output::print(&format!("{steps}{}\n", why.outcome))
    }

    /// Prints the causes that keep the port from its work.
    fn port(&self) -> Result<(), Failure> {
        let report = self.port.view()?.report;
        let causes = causes(&report);
        if self.json {
            return output::print_json(&causes);
        }
        output::print(&causes.iter().map(|cause| output::wrapped(&format!("  {}: {cause}", report.name))).collect::<String>())?;
        output::print(&explanation(&report))
    }
}

/// Causes that keep the port from its work, the nearest first, beside those of its report.
fn causes(report: &PortReport) -> Vec<String> {
    let totals = &report.totals;
    let mut causes = Vec::new();
    let mut cause = |holds: bool, text: String| {
        if holds {
            causes.push(text);
        }
    };
    cause(!report.enabled, "it is disabled: enable it with memlane set ... --enabled true".into());
    let place = if report.place.is_empty() { "its guest".to_owned() } else { report.place.clone() };
    cause(
        report.state == "waiting",
        format!(
            "no front end is connected: start the guest, which must connect to {place}; if it reports `permission denied`, check the key access and the folders"
        ),
    );
    let front_end = report.front_end.as_ref().map_or_else(|| "the front end".to_owned(), ToString::to_string);
    cause(
        report.state == "speaking",
        format!(
            "{front_end} is connected, but no virtqueue has started: the guest's driver is not loaded yet, or its interface is down"
        ),
    );
    cause(
        report.state == "quarantined",
        "it is in quarantine until its front end reconnects or the guest resets the device".into(),
    );
    let running = report.state == "running";
    cause(running && totals.transmit_frames == 0, "its guest has transmitted nothing yet: is its interface up?".into());
    let given_up: u64 = ["receiver-stalled", "receiver-full"].iter().filter_map(|reason| totals.drops.get(*reason)).sum();
    cause(
        running && totals.receive_frames == 0 && given_up > 0,
        format!(
            "its guest has received nothing, and {given_up} frames for it were dropped: it posts no receive buffers. Is its interface up?"
        ),
    );
    cause(running && causes_nothing(report), "the switch sees no problem".into());
    causes
}

fn causes_nothing(report: &PortReport) -> bool {
    let totals = &report.totals;
    let fine = totals.transmit_frames > 0 && totals.waiting == 0 && totals.drops.is_empty() && totals.missed_kicks == 0;
    fine && report.enabled && report.advice.is_none() && report.turned_away == 0
}
