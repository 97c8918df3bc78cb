//! `memlane status`: a running network as a table or as JSON.

use clap::Args;

use super::net::Net;
use super::output::{Table, bytes, count, rate, wrapped};
use super::top::rates::{PortRates, Rates};
use super::top::{SECOND, measure, percent};
use super::{Failure, output};
use crate::config::Document;
use crate::control::frozen::FrozenView;
use crate::control::health::Ready;
use crate::control::identity::Identity;
use crate::control::{PortReport, Report};
use crate::descriptors;
use crate::quantity::{counted, was};
use crate::stats::DropReason;
use crate::uplink::UplinkReport;
use crate::uplink::nic::NicReport;

/// Arguments of `memlane status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    net: Net,
    /// Measure for a second, and show rates below the totals of each port with traffic.
    #[arg(long, conflicts_with = "json")]
    rates: bool,
    /// Everything, as JSON.
    #[arg(long)]
    json: bool,
    /// Only whether every worker answers, in one line; exit code 1 if not, or if the network does not run.
    #[arg(long, conflicts_with = "json")]
    check: bool,
}

impl Status {
    /// See [`upgrade`]; mistakes are those in the file of the network.
    fn not_taken_over(&self, report: &Report) -> String {
        let file = || self.net.client().ok()?.get::<Identity>("/v1/identity").ok()?.file;
        let is_current = report.version == crate::version() && !report.program_replaced;
        let mistakes = (!is_current).then(|| Document::load(&file()?.path).err()).flatten();
        upgrade(report, mistakes.map(|mistakes| mistakes.to_string()))
    }

    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.check {
            return output::print(&ready(&self.net.client()?.get("/readyz")?));
        }
        if self.rates {
            let (report, rates) = measure(&self.net.client()?, SECOND)?;
            return output::print(&table_with(&report, Some(&rates)));
        }
        let report = self.net.report_of_this_moment()?;
        output::print_either(self.json, &report, || self.not_taken_over(&report) + &table(&report))
    }
}

/// The line about a missing takeover by the installed program; empty if that serves the network.
fn upgrade(report: &Report, mistakes: Option<String>) -> String {
    let (runs, installed) = (&report.version, crate::version());
    let state = match runs == installed {
        true if !report.program_replaced => return String::new(),
        true => format!("runs version {runs} from before its program was replaced"),
        false => format!("runs version {runs}, {installed} is installed"),
    };
    let cause = mistakes.or_else(|| report.not_taken_over.clone());
    let cause = cause.unwrap_or_else(|| "`memlane up --takeover`, or the signal USR2 to its process, hands it over".into());
    // One line, which packages print.
    let cause: Vec<&str> = cause.lines().map(str::trim).collect();
    format!("not taken over: {state}: {}\n", cause.join("; "))
}

fn ready(Ready { name, workers, ports, running, quarantined }: &Ready) -> String {
    let answer = format!("{} {}", counted(*workers, "worker"), if *workers == 1 { "answers" } else { "answer" });
    let ports = counted(*ports, "port");
    format!("network {name} is ready: {ports}, {running} running, {quarantined} quarantined; {answer}\n")
}

/// The line about a frozen network.
fn frozen(name: &str, view: &FrozenView) -> String {
    let goes_on = match (view.left, &view.not_running[..]) {
        (Some(left), _) => format!(", or by itself in {:.0} s", left as f64 / 1000.0),
        (None, []) => String::new(),
        (None, ports) => format!(", or once these ports run: {}", ports.join(", ")),
    };
    let time = view.milliseconds as f64 / 1000.0;
    wrapped(&format!("frozen for {time:.1} s, so that no frame moves; goes on by memlane thaw {name}{goes_on}"))
}

fn table(report: &Report) -> String {
    table_with(report, None)
}

fn table_with(report: &Report, rates: Option<&Rates>) -> String {
    let mut text = format!("network {}, memlane {}, up for {} s\n", report.name, report.version, report.uptime);
    text.extend(report.unsaved.iter().map(|unsaved| format!("not saved: {unsaved}\n")));
    text.extend(report.frozen.iter().map(|frozen| self::frozen(&report.name, frozen)));
    text.push_str("TX is what a guest transmits, RX what it receives.\n\n");
    let heading = ["port", "segment", "state", "TX\nframes", "TX\nbytes", "RX\nframes", "RX\nbytes", "dropped", "CPU s"];
    // Rates are in the order of the report's ports.
    let rate_row = |index: usize| rates.and_then(|rates| rates.ports.get(index)).and_then(rate_row);
    let rows = report.ports.iter().enumerate();
    let rows = rows.flat_map(|(index, port)| [port_row(port, report.cycles_per_second)].into_iter().chain(rate_row(index)));
    text.push_str(&Table::new(3, heading, rows).narrow());
    if report.ports.iter().any(|port| port.present_cause.is_some()) {
        text.push_str(&wrapped(&format!("  {MARK} a cause keeps the port from its work: memlane why {}", report.name)));
    }
    for port in &report.ports {
        text.push_str(&explanation(port));
    }
    for report in &report.loops {
        text.push_str(&wrapped(&format!("  {}: {report}", report.segment)));
    }
    text.push_str(&uplinks(&report.uplinks));
    text.push('\n');
    let heading = ["worker", "frames", "cycles\n/frame", "busy\npasses", "empty\npasses", "sleeps", "handed\nover"];
    let rows = report.workers.iter().enumerate().map(|(index, worker)| {
        let cycles = worker.busy_cycles.checked_div(worker.frames).map_or("-".into(), count);
        let numbers = [worker.busy_iterations, worker.empty_iterations, worker.sleeps, worker.handed_over].map(count);
        [index.to_string(), count(worker.frames), cycles].into_iter().chain(numbers).collect()
    });
    text.push_str(&Table::new(0, heading, rows).narrow());
    text.push_str(&resources(report));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    text.push_str(&format!(
        "\nframes from TAPs and on links: {:.1} of {:.0} MiB\n",
        mib(report.memory_held),
        mib(report.memory_most)
    ));
    text
}

/// File descriptors and guest memory in use, with the remedy if they run out.
fn resources(report: &Report) -> String {
    let (known, memory) = (&report.descriptors, &report.guest_memory);
    let mut text = format!(
        "\n{} of {} are open, {} of {} held by ports\nguest memory: {} mapped, {} touched by memlane\n",
        known.open,
        counted(known.limit, "descriptor"),
        known.held,
        known.most,
        bytes(memory.mapped),
        bytes(memory.touched)
    );
    if known.refused > 0 {
        let line = format!(
            "front ends were disconnected {} because file descriptors ran out. {}",
            counted(known.refused, "time"),
            descriptors::REMEDY
        );
        text.push_str(&wrapped(&format!("  {line}")));
    }
    text
}

/// Most MAC addresses of a host in a line; the JSON has them all.
const NAMED: usize = 8;

/// Uplinks, and the MAC addresses on other hosts.
fn uplinks(all: &[UplinkReport]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let heading = ["uplink", "vni", "mtu", "from\nthere", "to\nthere", "dropped", "told of\nhere", "hosts", "addresses\nthere"];
    let row = |uplink: &UplinkReport| {
        let dropped: u64 = uplink.totals.drops.values().sum();
        let totals = [uplink.totals.transmit_frames, uplink.totals.receive_frames, dropped].map(count);
        let counts = [uplink.announced, uplink.hosts.len(), uplink.learned_addresses.len()].map(|number| count(number as u64));
        let words = [uplink.segment.clone(), uplink.vni.map_or_else(String::new, |vni| vni.to_string()), uplink.mtu.to_string()];
        words.into_iter().chain(totals).chain(counts).collect()
    };
    let explained: String = all.iter().map(explain_uplink).collect();
    format!("\n{}{explained}", Table::new(1, heading, all.iter().map(row)).narrow())
}

fn explain_uplink(uplink: &UplinkReport) -> String {
    let mut lines = match &uplink.nic {
        Some(NicReport { name, socket }) => vec![format!("NIC {name}, by {}", socket.as_deref().unwrap_or("no socket"))],
        None => vec![format!("devices {}", uplink.devices.join(" "))],
    };
    for host in &uplink.hosts {
        let all: Vec<&str> =
            uplink.learned_addresses.iter().filter(|remote| remote.host == *host).map(|remote| &*remote.address).collect();
        let more = if all.len() > NAMED { format!(" and {} more", all.len() - NAMED) } else { String::new() };
        lines.push(match all.is_empty() {
            true => format!("host {host}: no MAC addresses"),
            false => format!("host {host}: {}{more}", all[..all.len().min(NAMED)].join(" ")),
        });
    }
    if uplink.more {
        lines.push("the table of remote MAC addresses is full; frames to the others are flooded".into());
    }
    if uplink.held_back > 0 {
        let text = "local MAC addresses are not announced: their port has reached its limit, or another host announces them";
        lines.push(format!("{} {text}", uplink.held_back));
    }
    for remote in &uplink.disputed {
        lines.push(format!("{} is configured at a port here, but host {} announces it too", remote.address, remote.host));
    }
    lines.extend(uplink.trouble.clone());
    lines.extend(uplink.advice.clone());
    lines.into_iter().map(|line| wrapped(&format!("  {}: {line}", uplink.segment))).collect()
}

/// Marks the state of a port that a present cause keeps from its work.
const MARK: char = '!';

/// The state of a port, with a mark if a present cause keeps it from its work.
pub(super) fn marked_state(port: &PortReport) -> String {
    let mark = port.present_cause.map(|_| MARK.to_string()).unwrap_or_default();
    format!("{}{mark}", port.state)
}

fn port_row(port: &PortReport, cycles_per_second: u64) -> Vec<String> {
    let totals = &port.totals;
    let dropped: u64 = totals.drops.values().sum();
    let words = [port.name.clone(), port.segment.clone(), marked_state(port)];
    let numbers = [
        count(totals.transmit_frames),
        bytes(totals.transmit_bytes),
        count(totals.receive_frames),
        bytes(totals.receive_bytes),
        count(dropped),
        format!("{:.2}", totals.cycles as f64 / cycles_per_second.max(1) as f64),
    ];
    words.into_iter().chain(numbers).collect()
}

/// Transmit rates and receive rates of a port, below its totals; `None` without traffic.
fn rate_row(port: &PortRates) -> Option<Vec<String>> {
    let is_idle = port.transmit_frames + port.receive_frames + port.dropped == 0.0;
    let numbers = [
        rate(port.transmit_frames),
        format!("{}bit", rate(port.transmit_bits)),
        rate(port.receive_frames),
        format!("{}bit", rate(port.receive_bits)),
        rate(port.dropped),
        percent(port.cpu),
    ];
    let words = [String::new(), String::new(), "per s".into()];
    (!is_idle).then(|| words.into_iter().chain(numbers).collect())
}

/// Lines on a port that needs the operator's attention.
pub(super) fn explanation(port: &PortReport) -> String {
    let (name, totals) = (&port.name, &port.totals);
    let mut lines: Vec<String> = port.cause.iter().chain(&port.advice).map(|line| format!("{name}: {line}")).collect();
    if let (Some(front_end), 1..) = (&port.front_end, port.turned_away) {
        lines.push(format!(
            "{name}: refused {} of other front ends, because {front_end} uses the port: give each guest a port of its own, or end that program",
            counted(port.turned_away, "connection")
        ));
    }
    if let Some(blocked) = port.blocked.first() {
        let more = if port.blocked.len() > 1 { format!("; {} more are blocked", port.blocked.len() - 1) } else { String::new() };
        lines.push(format!("{name}: {blocked}{more}"));
    }
    if totals.waiting > 0 {
        lines.push(format!("{name}: {} waiting for receive buffers", counted(totals.waiting, "frame")));
    }
    if !totals.drops.is_empty() {
        let drops: Vec<String> = totals.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        lines.push(format!("{name} dropped: {}", drops.join(", ")));
    }
    if totals.drops.contains_key(DropReason::Storm.name()) {
        lines.push(format!(
            "{name}: its guest exceeded storm = {}, the limit of flooded frames (broadcast, multicast, unknown unicast) per second: raise storm, \
             or set it to 0 for no limit, in the file or by memlane set --storm",
            port.limits.storm
        ));
    }
    if totals.missed_kicks > 0 {
        lines.push(format!(
            "{name}: {} of its guest {} lost and recovered up to 150 ms later; a guest with one CPU in QEMU without KVM needs \
             -smp 1,maxcpus=2",
            counted(totals.missed_kicks, "kick"),
            was(totals.missed_kicks)
        ));
    }
    lines.into_iter().map(|line| wrapped(&format!("  {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Report of a network with one port with these counters; counters that are not named are unknown to its version.
    fn report(counters: serde_json::Value) -> Report {
        let limits = json!({ "weight": 1, "transmit": {}, "receive": {}, "storm": 20_000 });
        let mut port = json!({
            "name": "web", "segment": "lan", "kind": "vhost-user", "place": "web.sock", "state": "running", "quarantines": 0,
            "learned-addresses": 1, "limits": limits
        });
        port.as_object_mut().unwrap().extend(counters.as_object().unwrap().clone());
        let network = json!({
            "name": "net", "version": "0.1.0", "pid": 1, "uptime": 7, "cycles-per-second": 1_000_000, "memory-held": 0,
            "memory-most": 1 << 20, "ports": [port], "workers": []
        });
        serde_json::from_value(network).unwrap()
    }

    /// `count` ports with large counters, called `name` and their number, in quarantine.
    fn busy(count: usize, name: &str, segment: &str) -> Report {
        let totals = json!({
            "transmit-frames": u64::MAX, "transmit-bytes": u64::MAX, "receive-frames": 99_999_u64, "receive-bytes": 123_456_789_u64,
            "waiting": 12, "kicks": u64::MAX, "interrupts": u64::MAX, "cycles": 12_345_678_900_u64, "drops": { "storm": u64::MAX }
        });
        let mut report = report(totals);
        let port = PortReport { segment: segment.into(), state: "quarantined".into(), ..report.ports.remove(0) };
        report.ports = (0..count).map(|n| PortReport { name: format!("{name}{n}"), ..port.clone() }).collect();
        let worker = json!({
            "busy-iterations": u64::MAX, "empty-iterations": u64::MAX, "busy-cycles": u64::MAX, "frames": u64::MAX, "sleeps": u64::MAX,
            "polls": u64::MAX, "handed-over": u64::MAX, "wakes": u64::MAX
        });
        report.workers = vec![serde_json::from_value(worker).unwrap()];
        report
    }

    #[test]
    fn a_terminal_of_80_columns_shows_every_line_whole() {
        let long = "a-name-that-is-as-long-as-a-name-of-a-port-may-be-64-characters-";
        for (ports, name, segment) in
            [(1, "web", "lan"), (10, "web", "lan"), (100, "web", "lan"), (100, "a-longer-name-", "backend"), (3, long, long)]
        {
            let text = table(&busy(ports, name, segment));
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(wide.is_empty(), "{wide:?}");
            assert!((0..ports).all(|n| text.contains(&format!("{name}{n}"))), "no name is cut: {text}");
        }
        assert_eq!(table(&busy(100, "web", "lan")).lines().filter(|line| line.contains("quarantined")).count(), 100);
    }

    #[test]
    fn rates_stand_below_the_totals_of_ports_with_traffic() {
        let (idle, after) = (busy(100, "idle-", "backend"), busy(100, "idle-", "backend"));
        let mut before = busy(0, "web", "lan");
        before.ports = idle.ports;
        let after = Report {
            uptime_ns: 2_000_000_000,
            ports: after.ports.into_iter().chain(busy(1, "web", "lan").ports).collect(),
            ..after
        };
        let text = table_with(&after, Rates::between(&before, &after).as_ref());
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let rows: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("per s ")).collect();
        assert_eq!(rows.len(), 1, "idle ports have no rates: {text}");
        let wanted = ["per", "s", "9.22E", "18.4Ebit", "50000", "494Mbit", "9.22E"];
        let row: Vec<&str> = rows[0].split_whitespace().collect();
        assert_eq!(row[..7], wanted, "{text}");
    }

    #[test]
    fn columns_are_named_apart_and_say_their_units() {
        let text = table(&busy(1, "web", "lan"));
        let wanted = "\
TX is what a guest transmits, RX what it receives.

                                TX      TX      RX     RX
port  segment  state        frames   bytes  frames  bytes  dropped     CPU s
web0  lan      quarantined   18.4E  18.4EB   99999  123MB    18.4E  12345.68
";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn a_port_that_does_well_has_a_row_and_no_more() {
        let text = table(&report(json!({ "transmit-frames": 12 })));
        assert!(text.contains("web") && text.contains("12"), "{text}");
        assert!(!text.contains("web dropped") && !text.contains("kick "), "{text}");
    }

    #[test]
    fn blocked_transmit_queues_are_told_with_the_end() {
        let limit = json!({ "queue": 3, "reason": "rate-limit", "ends-in-ms": 12 });
        let full = json!({ "queue": 4, "reason": "backpressure", "receiver": "db", "since-ms": 7 });
        let text = table(&report(json!({ "blocked": [limit.clone(), full.clone()] })));
        assert!(text.contains("web: its transmit queue 3 is blocked for another 12 ms by its rate limit; 1"), "{text}");
        let text = table(&report(json!({ "blocked": [full] }))).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("queue 4 has been blocked for 7 ms, because db has no room (backpressure)"), "{text}");
        assert_eq!(serde_json::to_value(&report(json!({ "blocked": [limit.clone()] })).ports[0]).unwrap()["blocked"][0], limit);
    }

    #[test]
    fn who_is_at_other_hosts_is_told() {
        let remote = |n: usize, host: &str| json!({ "address": format!("02:00:00:00:00:{n:02x}"), "host": host });
        let learned_addresses: Vec<_> = (1..=10).map(|n| remote(n, "10.0.0.2")).collect();
        let uplink = json!({
            "segment": "lan", "vni": 100, "devices": ["tap", "br", "vx"], "mtu": 1450, "announced": 2, "held-back": 3,
            "hosts": ["10.0.0.2", "10.0.0.3"], "learned-addresses": learned_addresses, "more": false, "disputed": [remote(77, "10.0.0.3")],
            "trouble": "it is cut off", "advice": "let packets pass", "transmit-frames": 12
        });
        let report = Report { uplinks: vec![serde_json::from_value(uplink).unwrap()], ..report(json!({})) };
        let text = table(&report);
        for wanted in [
            "tap br vx",
            "  lan: host 10.0.0.2: 02:00:00:00:00:01 02",
            "02:00:00:00:00:08 and 2 more\n",
            "  lan: host 10.0.0.3: no MAC addresses\n",
            "  lan: 3 local MAC addresses are not announced",
            "  lan: 02:00:00:00:00:4d is configured at a port here, but host 10.0.0.3",
            "  lan: it is cut off\n",
            "  lan: let packets pass\n",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn a_program_that_did_not_take_over_is_told_with_the_cause() {
        let (now, old) = (report(json!({})), Report { version: "0.0.9".into(), ..report(json!({})) });
        assert_eq!(upgrade(&now, Some("net.toml:9: a mistake".into())), "", "it is the one that runs");
        let installed = env!("CARGO_PKG_VERSION");
        let told = upgrade(&old, Some("net.toml:9: a mistake\nnet.toml:10: another".into()));
        let runs = format!("not taken over: runs version 0.0.9, {installed} is installed: ");
        assert_eq!(told, format!("{runs}net.toml:9: a mistake; net.toml:10: another\n"));
        let refused = Report { not_taken_over: Some("another format".into()), ..old.clone() };
        assert_eq!(upgrade(&refused, None), format!("{runs}another format\n"));
        assert!(upgrade(&old, None).contains("memlane up --takeover"));
        let replaced = Report { program_replaced: true, ..now };
        assert!(upgrade(&replaced, None).starts_with(&format!("not taken over: runs version {installed} from before")));
    }

    #[test]
    fn a_state_that_is_not_saved_is_told() {
        let report = Report { unsaved: Some("the state file /s cannot be written: it is full".into()), ..report(json!({})) };
        assert!(table(&report).contains("not saved: the state file /s cannot be written: it is full\n"), "{}", table(&report));
    }

    #[test]
    fn a_loop_is_told() {
        let flapping = json!({ "segment": "lan", "address": "02:00:00:00:00:01", "held-at": "a", "moves-to": "b", "moves": 8, "within": 1, "age": 3 });
        let text = table(&Report { loops: vec![serde_json::from_value(flapping).unwrap()], ..report(json!({})) });
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("lan: address 02:00:00:00:00:01 moves between ports a and b, 8 times in 1 s: a loop?"), "{text}");
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
        let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains("web: its guest exceeded storm") && joined.contains("storm = 20000"), "{text}");
        assert!(text.contains("web: 3 kicks of its guest were lost") && text.contains("-smp 1,maxcpus=2"), "{text}");
    }
}
