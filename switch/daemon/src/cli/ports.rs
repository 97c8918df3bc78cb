//! `memlane ls`, `show`, `detach` and `drain`: shows ports of a running network, and removes them.

use std::time::Duration;

use clap::Args;
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::net::{Net, PortOfNet, mark_causes};
use super::output::Table;
use super::top::rates::Rates;
use super::usage::timeout;
use super::{Failure, output, set, status, top};
use crate::config::PortEntry;
use crate::control::report::SegmentReport;
use crate::control::routes::{DrainOrder, Drained};
use crate::control::{Client, ControlError, PortReport, PortView};
use crate::quantity::counted;
use memlane_model::addresses::Inside;

/// Timeout of the reply beyond the time for draining.
const MARGIN: Duration = Duration::from_secs(10);

/// Arguments of `memlane ls`.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    net: Net,
    /// Segments with their ports, instead of ports.
    #[arg(long)]
    segments: bool,
    /// Measure for a second, and list frames and bits per second instead of kinds and places.
    #[arg(long, conflicts_with_all = ["segments", "json"])]
    rates: bool,
    /// Only ports with this label, as pod=shop/web-0.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, conflicts_with_all = ["segments", "rates"])]
    label: Option<(String, String)>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').ok_or_else(|| format!("{text} is no label; it must be KEY=VALUE, as pod=shop/web-0"))?;
    Ok((parts.0.into(), parts.1.into()))
}

/// Arguments of `memlane show`.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    port: PortOfNet,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `memlane detach`.
#[derive(Debug, Args)]
pub(super) struct Detach {
    #[command(flatten)]
    port: PortOfNet,
    /// Drain the port first; if frames are still in flight after this time, give up and leave it attached.
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    drain: Option<Duration>,
    /// A port that is not attached is no error.
    #[arg(long)]
    if_exists: bool,
    /// Print the keys that attach it again, as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `memlane drain`.
#[derive(Debug, Args)]
pub(super) struct Drain {
    #[command(flatten)]
    port: PortOfNet,
    /// Timeout.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = timeout)]
    timeout: Duration,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let client = self.net.client()?;
        if self.rates {
            return output::print(&rate_table(&top::measure(&client, top::SECOND)?.1));
        }
        if self.segments {
            let segments: Vec<SegmentReport> = client.get("/v1/segments")?;
            return output::print_either(self.json, &segments, || segment_table(&segments));
        }
        let mut ports: Vec<PortReport> = client.get("/v1/ports")?;
        if let Some((key, value)) = &self.label {
            ports.retain(|port| port.labels.get(key) == Some(value));
        }
        mark_causes(&client, &mut ports);
        output::print_either(self.json, &ports, || port_table(&ports))
    }
}

/// Labels in words.
fn labels(port: &PortReport) -> String {
    port.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// The addresses of a guest that has others inside, in words.
fn inside(inside: &Inside) -> String {
    let ips = inside.addresses.iter().map(ToString::to_string);
    inside.mac.iter().map(ToString::to_string).chain(ips).collect::<Vec<_>>().join(" ")
}

/// The MAC address of a port, and that which its guest has inside.
fn address(port: &PortReport) -> String {
    let inner = port.limits.inside.as_ref().and_then(|inside| inside.mac).map(|mac| format!("(inside {mac})"));
    port.address.clone().into_iter().chain(inner).collect::<Vec<_>>().join(" ")
}

fn port_table(ports: &[PortReport]) -> String {
    if ports.iter().any(|port| !port.labels.is_empty()) {
        let rows = ports.iter().map(|port| {
            let words = [&port.name, &port.segment, &status::marked_state(port), &port.kind, &port.place].map(String::clone);
            words.into_iter().chain([address(port), origin(port), labels(port)]).collect()
        });
        return Table::new(8, ["port", "segment", "state", "kind", "place", "address", "origin", "labels"], rows).text();
    }
    let rows = ports.iter().map(|port| {
        let state = status::marked_state(port);
        let words = [&port.name, &port.segment, &state, &port.kind, &port.place].map(String::clone);
        words.into_iter().chain([address(port), origin(port)]).collect()
    });
    Table::new(7, ["port", "segment", "state", "kind", "place", "address", "origin"], rows).text()
}

/// Frames and bytes that went one way.
fn volume(frames: u64, bytes: u64) -> String {
    format!("{}, {}", counted(frames, "frame"), counted(bytes, "byte"))
}

/// The origin of a port; a dash from a network of an earlier version.
fn origin(port: &PortReport) -> String {
    port.origin.as_ref().map_or_else(|| "-".into(), |origin| output::shown(&origin.to_string()))
}

/// Transmit rates and receive rates of ports, beside their counters.
fn rate_table(rates: &Rates) -> String {
    let rows = rates.ports.iter().map(|port| {
        let words = [&port.name, &port.segment, &port.state].map(String::clone);
        let frames = [port.totals.transmit_frames, port.totals.receive_frames].map(output::count);
        let [transmit, receive] = frames;
        let numbers = [
            transmit,
            output::rate(port.transmit_frames),
            output::rate(port.transmit_bits),
            receive,
            output::rate(port.receive_frames),
            output::rate(port.receive_bits),
        ];
        words.into_iter().chain(numbers).collect()
    });
    let heading =
        ["port", "segment", "state", "TX\nframes", "TX\nframes/s", "TX\nbit/s", "RX\nframes", "RX\nframes/s", "RX\nbit/s"];
    Table::new(3, heading, rows).narrow()
}

fn segment_table(segments: &[SegmentReport]) -> String {
    Table::new(2, ["segment", "ports"], segments.iter().map(|segment| vec![segment.name.clone(), segment.ports.join(" ")])).text()
}

impl Show {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let view = self.port.view()?;
        output::print_either(self.json, &view, || page(&view))
    }
}

/// A port on a few lines.
fn page(PortView { report, entry }: &PortView) -> String {
    let totals = &report.totals;
    let place = if report.place.is_empty() { report.kind.clone() } else { format!("{} {}", report.kind, report.place) };
    let lines = [
        ("port", format!("{} on segment {}", report.name, report.segment)),
        ("kind", place),
        ("origin", origin(report)),
        ("state", report.state.clone()),
        ("address", report.address.clone().unwrap_or_else(|| "as its own".into())),
        ("settings", set::settings(entry)),
        ("TX", format!("{} from the guest", volume(totals.transmit_frames, totals.transmit_bytes))),
        ("RX", format!("{} to the guest", volume(totals.receive_frames, totals.receive_bytes))),
        (
            "notified",
            format!("{} from the guest, {} to it", counted(totals.kicks, "kick"), counted(totals.interrupts, "interrupt")),
        ),
    ];
    let vlan = entry.vlan.map(|vlan| vlan.to_string());
    let trunk = (!entry.trunk.is_empty()).then(|| {
        let ranges: Vec<String> = entry.trunk.iter().map(ToString::to_string).collect();
        format!("trunk {}", ranges.join(", "))
    });
    let vlans: Vec<String> = vlan.into_iter().chain(trunk).collect();
    let listed = |items: Vec<String>| items.join(" ");
    let more = [
        ("VLAN", vlans.join(", ")),
        ("addresses", listed(entry.addresses.iter().map(ToString::to_string).collect())),
        ("inside", entry.inside.as_ref().map_or_else(String::new, inside)),
        ("groups", listed(entry.groups.clone())),
        ("labels", labels(report)),
    ];
    let more = more.iter().filter(|(_, text)| !text.is_empty()).map(|(what, text)| (*what, text.clone()));
    let text: String = lines.into_iter().chain(more).map(|(what, text)| format!("{what:<9} {text}\n")).collect();
    let front_end = report.front_end.as_ref().map_or_else(String::new, |peer| format!("{:<9} {peer}\n", "front end"));
    text + &front_end + &status::explanation(report)
}

/// Disables the port and waits until it is drained.
fn drain(port: &PortOfNet, most: Duration) -> Result<(), Failure> {
    let client = port.net()?.client()?;
    expect_drained(port, &ask_to_drain(port, client, most)?, most)
}

fn ask_to_drain(port: &PortOfNet, client: Client, most: Duration) -> Result<Drained, ControlError> {
    let order = DrainOrder { timeout_ms: most.as_millis() as u64 };
    client.within(most + MARGIN).ask(Method::POST, &port.uri("/drain"), Some(&order))
}

fn expect_drained(port: &PortOfNet, answer: &Drained, most: Duration) -> Result<(), Failure> {
    if answer.drained {
        return Ok(());
    }
    let text = format!(
        "port '{}' is disabled, but some of its frames are still in flight after {} s: try again, or detach it without --drain",
        port.port,
        most.as_secs_f64()
    );
    Err(Failure::Running(text))
}

impl Detach {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (client, uri) = (self.port.net()?.client()?, self.port.uri(""));
        if let Some(most) = self.drain {
            let drained = self.present(ask_to_drain(&self.port, self.port.net()?.client()?, most))?;
            drained.map_or(Ok(()), |drained| expect_drained(&self.port, &drained, most))?;
        }
        let gone = self.present(client.ask::<PortEntry>(Method::DELETE, &uri, None::<&()>))?;
        match gone {
            Some(entry) if self.json => output::print_json(&entry.stated()),
            None if self.json => output::print_json(&Value::Null),
            Some(_) => output::print(&format!("{}: detached\n", self.port.port)),
            None => output::print(&format!("{}: not attached\n", self.port.port)),
        }
    }

    /// The answer about the port; none if it is not attached, and that is no error.
    fn present<A>(&self, answer: Result<A, ControlError>) -> Result<Option<A>, Failure> {
        match answer {
            Err(ControlError::Refused(refusal)) if self.if_exists && refusal.status == StatusCode::NOT_FOUND => Ok(None),
            answer => Ok(Some(answer?)),
        }
    }
}

impl Drain {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let result = drain(&self.port, self.timeout);
        match (&result, self.json) {
            (Ok(()) | Err(Failure::Running(_)), true) => output::print_json(&Drained { drained: result.is_ok() })?,
            (Ok(()), false) => output::print(&format!("{}: drained\n", self.port.port))?,
            _ => {}
        }
        result
    }
}
