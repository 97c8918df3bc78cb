//! `memlane set`: changes a port while its network runs: what it is allowed, its link, what it offers, whether it takes part.

use clap::{ArgAction, Args};
use hyper::Method;
use serde::Deserialize;

use super::net::PortOfNet;
use super::{Failure, output};
use crate::config::PortEntry;
use crate::control::Change;
use crate::link::Impairment;
use crate::policy::{AntiSpoof, Limit};

/// Arguments of `memlane set`.
#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    port: PortOfNet,
    /// Its share of a busy receiver, compared with other senders'.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    weight: Option<u16>,
    /// What it may send: "100Mbit", "10000pps", both as "100Mbit,10000pps", or "none".
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    intake: Option<Limit>,
    /// What it may be sent, likewise.
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    delivery: Option<Limit>,
    /// Flooded frames (broadcast, multicast, unknown) that it may send a second, by default 200000; 0 for no limit.
    #[arg(long)]
    storm: Option<u64>,
    /// Which of its frames are dropped for their source: "mac" drops those that are not from its mac.
    #[arg(long, value_enum)]
    anti_spoof: Option<AntiSpoof>,
    /// What frames to it go through, as the file states it: '{ delay = "10ms", loss = 0.01 }', or "none".
    #[arg(long, value_name = "LINK", value_parser = link)]
    link: Option<Impairment>,
    /// Address that is tied to it, or "none"; its guest is offered it when it connects next.
    #[arg(long)]
    mac: Option<String>,
    /// MTU that its guest is offered when it connects next, or "none".
    #[arg(long, value_parser = mtu)]
    mtu: Option<Mtu>,
    /// Whether it sends and is sent anything.
    #[arg(long, action = ArgAction::Set)]
    enabled: Option<bool>,
    /// Print what holds now as JSON.
    #[arg(long)]
    json: bool,
}

/// An MTU, or none.
#[derive(Clone, Copy, Debug)]
struct Mtu(Option<u16>);

fn mtu(text: &str) -> Result<Mtu, String> {
    match text {
        "none" => Ok(Mtu(None)),
        number => number.parse().map(|mtu| Mtu(Some(mtu))).map_err(|_| "write a number of bytes, or none".into()),
    }
}

impl Set {
    pub(super) fn run(self) -> Result<(), Failure> {
        let change = Change {
            weight: self.weight,
            intake: self.intake,
            delivery: self.delivery,
            storm: self.storm,
            anti_spoof: self.anti_spoof,
            link: self.link,
            mac: self.mac.map(|mac| (mac != "none").then_some(mac)),
            mtu: self.mtu.map(|Mtu(mtu)| mtu),
            enabled: self.enabled,
        };
        let port = &self.port;
        let entry: PortEntry = port.net()?.client()?.ask(Method::PATCH, &port.uri(""), Some(&change))?;
        if self.json { output::print_json(&entry.stated()) } else { output::print(&format!("{}: {}\n", port.port, terms(&entry))) }
    }
}

/// What holds for a port, in words.
pub(super) fn terms(entry: &PortEntry) -> String {
    let storm = if entry.storm == 0 { "any number of".into() } else { entry.storm.to_string() };
    let link = entry.link.as_ref().map(|link| format!(", link {}", stated(link)));
    let mac = entry.mac.as_ref().map(|mac| format!(", mac {mac}"));
    let mtu = entry.mtu.map(|mtu| format!(", mtu {mtu}"));
    let guarded = (entry.anti_spoof == AntiSpoof::Mac).then(|| ", anti-spoof mac".to_owned());
    let disabled = (!entry.enabled).then(|| ", disabled".to_owned());
    let rest: String = [link, mac, guarded, mtu, disabled].into_iter().flatten().collect();
    let (intake, delivery) = (words(&entry.intake), words(&entry.delivery));
    format!("weight {}, intake {intake}, delivery {delivery}, {storm} flooded frames/s{rest}", entry.weight)
}

/// A link as it is written on the command line.
pub(super) fn link(text: &str) -> Result<Impairment, String> {
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
pub(super) fn limit(text: &str) -> Result<Limit, String> {
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
