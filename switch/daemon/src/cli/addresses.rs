//! `memlane addresses`: the IP addresses that the switch knows.

use clap::Args;

use super::net::Net;
use super::output::Table;
use super::{Failure, output};
use crate::known_addresses::{KnownAddress, SegmentAddresses};

/// Arguments of `memlane addresses`.
#[derive(Debug, Args)]
pub(super) struct Addresses {
    #[command(flatten)]
    net: Net,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Addresses {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let segments: Vec<SegmentAddresses> = self.net.client()?.get("/v1/addresses")?;
        output::print_either(self.json, &segments, || text(&segments))
    }
}

fn text(segments: &[SegmentAddresses]) -> String {
    let rows = segments.iter().flat_map(|segment| segment.addresses.iter().map(|address| row(&segment.segment, address)));
    let table = Table::new(5, ["segment", "address", "MAC address", "port", "source", "age\ns", "expires\nin s"], rows).text();
    let summary = |segment: &SegmentAddresses| {
        let SegmentAddresses { segment, totals, addresses } = segment;
        let answers = if totals.answering { format!("answers {}", totals.answers) } else { "no answers".into() };
        format!("{segment}: addresses {}, {answers}, conflicts {}\n", addresses.len(), totals.conflicts)
    };
    table + "\n" + &segments.iter().map(summary).collect::<String>()
}

fn row(segment: &str, address: &KnownAddress) -> Vec<String> {
    let ip = address.vlan.map_or_else(|| address.ip.clone(), |vlan| format!("{} in VLAN {vlan}", address.ip));
    let contended = if address.contended { ", contended" } else { "" };
    vec![
        segment.into(),
        ip,
        address.mac.clone().unwrap_or_else(|| "-".into()),
        address.port.clone(),
        format!("{}{contended}", address.source.name()),
        address.age.to_string(),
        address.expires.map_or_else(|| "-".into(), |seconds| seconds.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_addresses::{AddressTotals, Source};

    #[test]
    fn each_address_has_a_row_and_each_segment_its_counts() {
        let configured = KnownAddress {
            ip: "10.0.0.2".into(),
            vlan: None,
            mac: None,
            port: "db".into(),
            source: Source::Configuration,
            age: 0,
            expires: None,
            contended: false,
        };
        let claimed = KnownAddress {
            ip: "10.0.0.3".into(),
            vlan: Some(7),
            mac: Some("02:00:00:00:00:03".into()),
            source: Source::Arp,
            age: 12,
            expires: Some(288),
            contended: true,
            ..configured.clone()
        };
        let totals = AddressTotals { answering: true, answers: 5, conflicts: 1, ..AddressTotals::default() };
        let text = text(&[SegmentAddresses { segment: "lan".into(), totals, addresses: vec![configured, claimed] }]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["lan", "10.0.0.2", "-", "db", "configuration", "0", "-"]);
        assert_eq!(lines[3][1..], ["10.0.0.3", "in", "VLAN", "7", "02:00:00:00:00:03", "db", "arp,", "contended", "12", "288"]);
        assert!(text.ends_with("\nlan: addresses 2, answers 5, conflicts 1\n"), "{text}");
    }
}
