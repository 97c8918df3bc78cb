//! `memlane leases`: lists addresses that guests of a running network have by its responders.

use clap::Args;
use memlane_names::NamesReport;

use super::net::Net;
use super::output::Table;
use super::{Failure, output};

/// Arguments of `memlane leases`.
#[derive(Debug, Args)]
pub(super) struct Leases {
    #[command(flatten)]
    net: Net,
    /// As JSON, with the responders' counters.
    #[arg(long)]
    json: bool,
}

impl Leases {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let names = self.net.report()?.names;
        output::print_either(self.json, &names, || table(&names))
    }
}

fn table(names: &[NamesReport]) -> String {
    let rows = names.iter().flat_map(|one| {
        one.leases.iter().map(|lease| {
            let name = format!("{}.{}", lease.port.to_ascii_lowercase(), one.domain);
            let words = [&one.segment, &lease.port, &lease.address, &name, &lease.mac, &lease.source].map(String::clone);
            let expires = lease.expires_in.map_or_else(|| "-".into(), |seconds| format!("{seconds} s"));
            words.into_iter().chain([expires]).collect()
        })
    });
    Table::new(6, ["segment", "port", "address", "name", "mac", "source", "expires in"], rows).text()
}

#[cfg(test)]
mod tests {
    use memlane_names::LeaseReport;

    use super::*;

    #[test]
    fn each_lease_has_a_row() {
        let lease = LeaseReport {
            address: "10.0.0.7".into(),
            port: "Web".into(),
            mac: "02:00:00:00:00:01".into(),
            source: "dhcp".into(),
            expires_in: Some(3599),
        };
        let made = LeaseReport { address: "fd00::7".into(), source: "slaac".into(), expires_in: None, ..lease.clone() };
        let report =
            NamesReport { segment: "lan".into(), domain: "lan".into(), leases: vec![lease, made], ..NamesReport::default() };
        let text = table(&[report]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["lan", "Web", "10.0.0.7", "web.lan", "02:00:00:00:00:01", "dhcp", "3599", "s"]);
        assert_eq!(lines[2][2..], ["fd00::7", "web.lan", "02:00:00:00:00:01", "slaac", "-"]);
    }
}
