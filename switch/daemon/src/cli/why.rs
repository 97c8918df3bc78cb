//! `memlane why`: the outcome of a frame without sending it, or the causes that keep a port from its work.

use clap::Args;
use hyper::Method;

use super::net::PortOfNet;
use super::{Failure, output};
use crate::control::causes::{Cause, PortCauses};
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
        let causes: PortCauses = self.port.net()?.client()?.get(&self.port.uri("/why"))?;
        if self.json {
            return output::print_json(&causes);
        }
        let fine = format!("the switch sees no problem ({})", causes.state);
        let lines = causes.causes.iter().map(Cause::line);
        let lines: Vec<String> = if causes.causes.is_empty() { vec![fine] } else { lines.collect() };
        output::print(&lines.iter().map(|line| output::wrapped(&format!("  {}: {line}", causes.port))).collect::<String>())
    }
}
