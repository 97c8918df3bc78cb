//! `memlane set`: changes what a port of a running network is allowed.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, output};
use crate::config::Config;
use crate::control::{self, Change};
use crate::policy::Limit;

/// Arguments of `memlane set`.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// The network's file.
    net: PathBuf,
    /// The port.
    port: String,
    /// Its share of a busy receiver, compared with other senders'.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    weight: Option<u16>,
    /// What it may send: "100Mbit", "10000pps", both as "100Mbit,10000pps", or "none".
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    intake: Option<Limit>,
    /// What it may be sent, likewise.
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    delivery: Option<Limit>,
    /// Flooded frames that it may send a second; 0 for no limit.
    #[arg(long)]
    storm: Option<u64>,
    /// Print what holds now as JSON.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub(super) fn run(self) -> Result<(), Failure> {
        let control = Config::load(&self.net)?.control;
        let change = Change { weight: self.weight, intake: self.intake, delivery: self.delivery, storm: self.storm };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::running)?;
        let allowance = runtime.block_on(control::change_port(&control, &self.port, &change)).map_err(Failure::running)?;
        if self.json {
            output::print_json(&allowance)
        } else {
            let storm = if allowance.storm == 0 { "any number of".into() } else { allowance.storm.to_string() };
            output::print(&format!(
                "{}: weight {}, intake {}, delivery {}, {storm} flooded frames/s\n",
                self.port,
                allowance.weight,
                words(&allowance.intake),
                words(&allowance.delivery)
            ))
        }
    }
}

/// A limit as it is written on the command line.
fn limit(text: &str) -> Result<Limit, String> {
    let mut limit = Limit::default();
    if text == "none" {
        return Ok(limit);
    }
    for part in text.split(',') {
        match part.trim().strip_suffix("pps") {
            Some(number) => limit.packets = Some(packets(number)?),
            None => limit.rate = Some(part.trim().into()),
        }
    }
    limit.mistake().map_or(Ok(limit), Err)
}

fn packets(number: &str) -> Result<u64, String> {
    let (number, factor) = number.strip_suffix('k').map_or((number, 1), |thousands| (thousands, 1000));
    number
        .trim()
        .parse::<u64>()
        .map(|n| n * factor)
        .map_err(|_| format!("'{number}' is no number of packets: write 10000pps or 10kpps"))
}

fn words(limit: &Limit) -> String {
    let packets = limit.packets.map(|packets| format!("{packets}pps"));
    let parts: Vec<String> = limit.rate.clone().into_iter().chain(packets).collect();
    if parts.is_empty() { "unlimited".into() } else { parts.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let both = limit("100Mbit,10kpps").unwrap();
        assert_eq!((both.rate.as_deref(), both.packets), (Some("100Mbit"), Some(10_000)));
        assert_eq!(words(&both), "100Mbit,10000pps");
        assert_eq!(words(&limit("none").unwrap()), "unlimited");
        assert!(limit("quick").is_err() && limit("xpps").is_err() && limit("").is_err());
    }
}
