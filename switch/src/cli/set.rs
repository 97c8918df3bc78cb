//! `memlane set`: changes what a port of a running network is allowed, and its link.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::{Failure, output};
use crate::config::Config;
use crate::control::{self, Change, Terms};
use crate::link::Impairment;
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
    /// What frames to it go through, as the file states it: '{ delay = "10ms", loss = 0.01 }', or "none".
    #[arg(long, value_name = "LINK", value_parser = link)]
    link: Option<Impairment>,
    /// Print what holds now as JSON.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub(super) fn run(self) -> Result<(), Failure> {
        let control = Config::load(&self.net)?.control;
        let change =
            Change { weight: self.weight, intake: self.intake, delivery: self.delivery, storm: self.storm, link: self.link };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::running)?;
        let terms = runtime.block_on(control::change_port(&control, &self.port, &change)).map_err(Failure::running)?;
        if self.json {
            output::print_json(&terms)
        } else {
            let Terms { allowance, link } = terms;
            let link = link.map(|link| format!(", link {}", stated(&link))).unwrap_or_default();
            let storm = if allowance.storm == 0 { "any number of".into() } else { allowance.storm.to_string() };
            output::print(&format!(
                "{}: weight {}, intake {}, delivery {}, {storm} flooded frames/s{link}\n",
                self.port,
                allowance.weight,
                words(&allowance.intake),
                words(&allowance.delivery)
            ))
        }
    }
}

/// A link as it is written on the command line.
fn link(text: &str) -> Result<Impairment, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        link: Impairment,
    }
    if text == "none" {
        return Ok(Impairment::default());
    }
    let line: Line = toml::from_str(&format!("link = {text}")).map_err(|error| error.message().to_string())?;
    let mistakes = line.link.mistakes();
    mistakes.first().map_or(Ok(line.link), |(key, mistake)| Err(format!("{key}: {mistake}")))
}

/// The link as the file would state it, without what does not impair.
fn stated(link: &Impairment) -> String {
    let usual = serde_json::to_value(Impairment::default()).unwrap_or_default();
    let value = serde_json::to_value(link).unwrap_or_default();
    let keys = value.as_object().into_iter().flatten().filter(|(key, value)| usual.get(key) != Some(value));
    table(keys)
}

/// An inline table; JSON's texts, numbers and truths are TOML's too.
fn table<'v>(keys: impl Iterator<Item = (&'v String, &'v serde_json::Value)>) -> String {
    let parts = keys.map(|(key, value)| match value.as_object() {
        Some(inner) => format!("{key} = {}", table(inner.iter())),
        None => format!("{key} = {value}"),
    });
    format!("{{ {} }}", parts.collect::<Vec<_>>().join(", "))
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
    fn links_are_read_as_the_file_states_them() {
        let lossy = link("{ delay = \"10ms\", loss = 1 }").unwrap();
        assert_eq!((lossy.delay.as_deref(), lossy.loss), (Some("10ms"), 1.0));
        assert_eq!(link(&stated(&lossy)).unwrap(), lossy);
        assert_eq!(link("none").unwrap(), Impairment::default());
        for wrong in ["", "10ms", "{ delay = \"soon\" }", "{ loss = 2 }", "{ speed = 3 }", "{}\nport = []"] {
            assert!(link(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_are_read_as_people_write_them() {
        let both = limit("100Mbit,10kpps").unwrap();
        assert_eq!((both.rate.as_deref(), both.packets), (Some("100Mbit"), Some(10_000)));
        assert_eq!(words(&both), "100Mbit,10000pps");
        assert_eq!(words(&limit("none").unwrap()), "unlimited");
        assert!(limit("quick").is_err() && limit("xpps").is_err() && limit("").is_err());
    }
}
