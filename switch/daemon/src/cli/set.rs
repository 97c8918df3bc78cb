//! `memlane set`: changes a port while its network runs: limits, link emulation, MAC address, MTU, or whether it is enabled.

use clap::Args;
use hyper::Method;

use super::keys::{Changeable, Keys};
use super::net::PortOfNet;
use super::{Failure, output};
use crate::config::{PortEntry, inline_table};
use crate::link::Impairment;
use crate::policy::{AntiSpoof, Limit};

/// Arguments of `memlane set`.
#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    port: PortOfNet,
    #[command(flatten)]
    keys: Changeable,
    /// Print the port's new keys as JSON.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut keys = Keys::default();
        self.keys.state(&mut keys);
        let (port, change) = (&self.port, keys.checked()?);
        let entry: PortEntry = port.net()?.client()?.ask(Method::PATCH, &port.uri(""), Some(&change))?;
        output::print_either(self.json, &entry.stated(), || format!("{}: {}\n", port.port, settings(&entry)))
    }
}

/// The port's limits and offers as text.
pub(super) fn settings(entry: &PortEntry) -> String {
    let storm = if entry.storm == 0 { "any number of".into() } else { entry.storm.to_string() };
    let link = entry.link.as_ref().map(|link| format!(", link {}", stated(link)));
    let mac = entry.mac.as_ref().map(|mac| format!(", mac {mac}"));
    let mtu = entry.mtu.map(|mtu| format!(", mtu {mtu}"));
    let guarded = match entry.anti_spoof {
        AntiSpoof::Off => None,
        AntiSpoof::Mac => Some(", anti-spoof mac".to_owned()),
        AntiSpoof::All => Some(", anti-spoof all".to_owned()),
    };
    let isolated = entry.isolated.then(|| ", isolated".to_owned());
    let disabled = (!entry.enabled).then(|| ", disabled".to_owned());
    let rest: String = [link, mac, guarded, isolated, mtu, disabled].into_iter().flatten().collect();
    let (transmit, receive) = (words(&entry.transmit), words(&entry.receive));
    format!("weight {}, transmit {transmit}, receive {receive}, {storm} flooded frames/s{rest}", entry.weight)
}

/// The link emulation as in the file, without keys at their defaults.
fn stated(link: &Impairment) -> String {
    let usual = serde_json::to_value(Impairment::default()).unwrap_or_default();
    let value = serde_json::to_value(link).unwrap_or_default();
    let keys = value.as_object().into_iter().flatten().filter(|(key, value)| usual.get(key) != Some(value));
    inline_table(keys)
}

fn words(limit: &Limit) -> String {
    if *limit == Limit::default() { "unlimited".into() } else { limit.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_is_told_as_it_is_written() {
        let keys = r#"{ "name": "a", "null": true, "transmit": "100Mbit,10kpps", "link": { "delay": "10ms", "loss": 1 }, "mtu": 1400, "enabled": false }"#;
        let entry: PortEntry = serde_json::from_str(keys).unwrap();
        let wanted = "transmit 100Mbit,10000pps, receive unlimited, ";
        let text = settings(&entry);
        assert!(text.contains(wanted) && text.ends_with(", link { delay = \"10ms\", loss = 1.0 }, mtu 1400, disabled"), "{text}");
    }
}
