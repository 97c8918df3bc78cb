//! `memlane status`: a running network as a table or as JSON.

use clap::Args;

use super::net::Net;
use super::output::columns;
use super::{Failure, output};
use crate::control::{PortReport, Report};
use crate::uplink::UplinkReport;

/// Arguments of `memlane status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    net: Net,
    /// Everything, as JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let report = self.net.report()?;
        if self.json { output::print_json(&report) } else { output::print(&table(&report)) }
    }
}

fn table(report: &Report) -> String {
    let mut text = format!("network {}, memlane {}, up for {} s\n\n", report.name, report.version, report.uptime);
    let heading =
        ["port", "segment", "state", "intake", "bytes", "delivery", "bytes", "dropped", "waiting", "kicks", "calls", "cpu-ms"];
    let rows = report.ports.iter().map(|port| port_row(port, report.cycles_per_second));
    text.push_str(&columns(std::iter::once(heading.map(str::to_owned).to_vec()).chain(rows)));
    for port in &report.ports {
        text.push_str(&explanation(port));
    }
    text.push_str(&uplinks(&report.uplinks));
    text.push('\n');
    let heading = ["worker", "frames", "cycles/frame", "busy passes", "empty passes", "sleeps", "handed over"];
    let rows = report.workers.iter().enumerate().map(|(index, worker)| {
        let cycles = worker.busy_cycles.checked_div(worker.frames).map_or("-".into(), |cycles| cycles.to_string());
        let numbers = [worker.busy_passes, worker.empty_passes, worker.sleeps, worker.handed_over].map(|number| number.to_string());
        [index.to_string(), worker.frames.to_string(), cycles].into_iter().chain(numbers).collect()
    });
    text.push_str(&columns(std::iter::once(heading.map(str::to_owned).to_vec()).chain(rows)));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    text.push_str(&format!(
        "\nframes from TAPs and on links: {:.1} of {:.0} MiB\n",
        mib(report.memory_held),
        mib(report.memory_most)
    ));
    text
}

/// Stations of a host that are named in a line; the JSON has them all.
const NAMED: usize = 8;

/// Where segments go on, and who is there.
fn uplinks(all: &[UplinkReport]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let heading =
        ["uplink", "vni", "devices", "mtu", "from there", "to there", "dropped", "told of here", "hosts", "stations there"];
    let row = |uplink: &UplinkReport| {
        let dropped: u64 = uplink.totals.drops.values().sum();
        let totals = [uplink.totals.intake_frames, uplink.totals.delivery_frames, dropped].map(|number| number.to_string());
        let counts = [uplink.announced, uplink.hosts.len(), uplink.stations.len()].map(|number| number.to_string());
        let words = [uplink.segment.clone(), uplink.vni.to_string(), uplink.devices.join(" "), uplink.mtu.to_string()];
        words.into_iter().chain(totals).chain(counts).collect()
    };
    let rows = std::iter::once(heading.map(str::to_owned).to_vec()).chain(all.iter().map(row));
    let explained: String = all.iter().map(explain_uplink).collect();
    format!("\n{}{explained}", columns(rows))
}

fn explain_uplink(uplink: &UplinkReport) -> String {
    let mut lines = Vec::new();
    for host in &uplink.hosts {
        let all: Vec<&str> =
            uplink.stations.iter().filter(|station| station.host == *host).map(|station| &*station.address).collect();
        let more = if all.len() > NAMED { format!(" and {} more", all.len() - NAMED) } else { String::new() };
        lines.push(match all.is_empty() {
            true => format!("host {host}: no stations"),
            false => format!("host {host}: {}{more}", all[..all.len().min(NAMED)].join(" ")),
        });
    }
    if uplink.more {
        lines.push("there are more stations than the table holds; frames for those are flooded".into());
    }
    if uplink.held_back > 0 {
        let text = "stations here are not told of: more than a port may have told, or another host has told of them";
        lines.push(format!("{} {text}", uplink.held_back));
    }
    for station in &uplink.disputed {
        lines.push(format!("{} is tied to a port here, and host {} says that it is there", station.address, station.host));
    }
    lines.extend(uplink.trouble.clone());
    lines.into_iter().map(|line| format!("  {}: {line}\n", uplink.segment)).collect()
}

fn port_row(port: &PortReport, cycles_per_second: u64) -> Vec<String> {
    let totals = &port.totals;
    let dropped: u64 = totals.drops.values().sum();
    let numbers = [
        totals.intake_frames,
        totals.intake_bytes,
        totals.delivery_frames,
        totals.delivery_bytes,
        dropped,
        totals.waiting,
        totals.kicks,
        totals.calls,
        totals.cycles / (cycles_per_second / 1000).max(1),
    ];
    let words = [port.name.clone(), port.segment.clone(), port.state.clone()];
    words.into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

/// What the operator may want to do something about.
pub(super) fn explanation(port: &PortReport) -> String {
    let mut text = String::new();
    if let Some(cause) = &port.cause {
        text.push_str(&format!("  {}: {cause}\n", port.name));
    }
    if let Some(advice) = &port.advice {
        text.push_str(&format!("  {}: {advice}\n", port.name));
    }
    if !port.totals.drops.is_empty() {
        let drops: Vec<String> = port.totals.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        text.push_str(&format!("  {} dropped: {}\n", port.name, drops.join(", ")));
    }
    if port.totals.missed_kicks > 0 {
        text.push_str(&format!(
            "  {} did not kick {} times when it should have, and was served a moment later; a guest of one processor in QEMU without KVM does \
             well with -smp 1,maxcpus=2\n",
            port.name, port.totals.missed_kicks
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a network tells whose only port has these counters; those that are not named were not known to its version.
    fn report(counters: serde_json::Value) -> Report {
        let allowance = json!({ "weight": 1, "intake": {}, "delivery": {}, "storm": 20_000 });
        let mut port = json!({
            "name": "web", "segment": "lan", "kind": "vhost-user", "place": "web.sock", "state": "running", "quarantines": 0,
            "stations": 1, "allowance": allowance
        });
        port.as_object_mut().unwrap().extend(counters.as_object().unwrap().clone());
        let network = json!({
            "name": "net", "version": "0.1.0", "pid": 1, "uptime": 7, "cycles-per-second": 1_000_000, "memory-held": 0,
            "memory-most": 1 << 20, "ports": [port], "workers": []
        });
        serde_json::from_value(network).unwrap()
    }

    #[test]
    fn a_port_that_does_well_has_a_row_and_no_more() {
        let text = table(&report(json!({ "intake-frames": 12 })));
        assert!(text.contains("web") && text.contains("12"), "{text}");
        assert!(!text.contains("web dropped") && !text.contains("kick "), "{text}");
    }

    #[test]
    fn who_is_at_other_hosts_is_told() {
        let station = |n: usize, host: &str| json!({ "address": format!("02:00:00:00:00:{n:02x}"), "host": host });
        let stations: Vec<_> = (1..=10).map(|n| station(n, "10.0.0.2")).collect();
        let uplink = json!({
            "segment": "lan", "vni": 100, "devices": ["tap", "br", "vx"], "mtu": 1450, "announced": 2, "held-back": 3,
            "hosts": ["10.0.0.2", "10.0.0.3"], "stations": stations, "more": false, "disputed": [station(77, "10.0.0.3")],
            "trouble": "it is cut off", "intake-frames": 12
        });
        let report = Report { uplinks: vec![serde_json::from_value(uplink).unwrap()], ..report(json!({})) };
        let text = table(&report);
        for wanted in [
            "tap br vx",
            "  lan: host 10.0.0.2: 02:00:00:00:00:01 02",
            "02:00:00:00:00:08 and 2 more\n",
            "  lan: host 10.0.0.3: no stations\n",
            "  lan: 3 stations here are not told of",
            "  lan: 02:00:00:00:00:4d is tied to a port here, and host 10.0.0.3 says",
            "  lan: it is cut off\n",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn advice_is_told() {
        let text = table(&report(json!({ "advice": "share its memory" })));
        assert!(text.contains("  web: share its memory\n"), "{text}");
    }

    #[test]
    fn what_went_wrong_is_told_with_what_to_do() {
        let text = table(&report(json!({ "missed-kicks": 3, "drops": { "storm": 5 } })));
        assert!(text.contains("web dropped: storm 5"), "{text}");
        assert!(text.contains("web did not kick 3 times") && text.contains("-smp 1,maxcpus=2"), "{text}");
    }
}
