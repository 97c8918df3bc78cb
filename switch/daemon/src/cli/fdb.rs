//! `memlane fdb`: the forwarding table of a running network.

use clap::Args;
use serde::Serialize;

use super::net::Net;
use super::output::Table;
use super::{Failure, output};
use crate::control::SegmentView;
use crate::control::client::name_in_path;
use crate::control::report::{AddressReport, SegmentReport};

/// Arguments of `memlane fdb`.
#[derive(Debug, Args)]
pub(super) struct FdbCommand {
    #[command(flatten)]
    net: Net,
    /// Only this segment.
    #[arg(long)]
    segment: Option<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// An entry of the table of a segment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct FdbEntry {
    segment: String,
    #[serde(flatten)]
    entry: AddressReport,
}

impl FdbCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let client = self.net.client()?;
        let names = match &self.segment {
            Some(segment) => vec![segment.clone()],
            None => client.get::<Vec<SegmentReport>>("/v1/segments")?.into_iter().map(|segment| segment.name).collect(),
        };
        let mut all = Vec::new();
        for segment in names {
            let view: SegmentView = client.get(&format!("/v1/segments/{}", name_in_path(&segment)))?;
            all.extend(view.learned_addresses.into_iter().map(|entry| FdbEntry { segment: segment.clone(), entry }));
        }
        output::print_either(self.json, &all, || table(&all))
    }
}

fn table(entries: &[FdbEntry]) -> String {
    let rows = entries.iter().map(|FdbEntry { segment, entry }| {
        let vlan = entry.vlan.map_or_else(|| "-".into(), |vlan| vlan.to_string());
        let age = if entry.pinned { "pinned".into() } else { format!("{} s", entry.age) };
        vec![entry.address.clone(), vlan, entry.port.clone(), segment.clone(), age]
    });
    Table::new(4, ["address", "VLAN", "port", "segment", "age"], rows).text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_row() {
        let entry = |vlan, pinned| FdbEntry {
            segment: "lan".into(),
            entry: AddressReport { address: "02:00:00:00:00:01".into(), vlan, port: "web".into(), age: 7, pinned },
        };
        let text = table(&[entry(None, false), entry(Some(30), true)]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["02:00:00:00:00:01", "-", "web", "lan", "7", "s"]);
        assert_eq!(rows[2], ["02:00:00:00:00:01", "30", "web", "lan", "pinned"]);
    }
}
