//! `memlane events`: past and future events of a running network.

use clap::Args;

use super::net::Net;
use super::{Failure, output};
use crate::control::client::StreamEnd;
use crate::control::stream::{EventReport, Form, Missed};
use crate::journal::NetworkEvent;

/// Arguments of `memlane events`.
#[derive(Debug, Args)]
pub(super) struct Events {
    #[command(flatten)]
    net: Net,
    /// Wait for further events, until Ctrl-C or the network ends.
    #[arg(short, long)]
    follow: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

impl Events {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut uri = if self.follow { "/v1/events".to_owned() } else { "/v1/events?end=true".into() };
        let client = self.net.client()?;
        let (mut last, mut again) = (None, false);
        loop {
            let (mut rest, mut is_silent) = (Vec::new(), true);
            let ended = client.follow(&uri, Form::TYPES[1], None, |part| {
                is_silent = false;
                rest.extend_from_slice(part);
                let Some(end) = rest.iter().rposition(|&byte| byte == b'\n') else { return Ok(true) };
                let lines: Vec<u8> = rest.drain(..=end).collect();
                let lines = String::from_utf8_lossy(&lines);
                last = lines.lines().rev().find_map(sequence).or(last);
                let text: String = lines.lines().filter(|line| !line.is_empty()).map(|line| self.line(line)).collect();
                output::print_on(&text)
            });
            let goes_on = StreamEnd::goes_on(ended, again, is_silent)?;
            // Another process may have taken the network over, with its events.
            let Some(last) = last.filter(|_| goes_on && self.follow) else { return Ok(()) };
            uri = format!("/v1/events?from={}", last + 1);
            again = true;
        }
    }

    fn line(&self, json: &str) -> String {
        if self.json {
            return format!("{json}\n");
        }
        match (serde_json::from_str::<EventReport>(json), serde_json::from_str::<Missed>(json)) {
            (Ok(report), _) => format!("{} {}\n", clock(report.time), told(&report.event)),
            (Err(_), Ok(Missed { missed })) => format!("{:12} {missed} events were missed because they came too fast\n", ""),
            // An event of a later version's network.
            (Err(_), Err(_)) => format!("{:12} {json}\n", ""),
        }
    }
}

/// Number of the event in a line.
fn sequence(json: &str) -> Option<u64> {
    serde_json::from_str::<EventReport>(json).ok().map(|report| report.sequence)
}

/// The time of day in UTC.
fn clock(time: f64) -> String {
    let milliseconds = (time * 1000.0) as u64;
    let (seconds, day) = (milliseconds / 1000, 24 * 60 * 60);
    let second = seconds % day;
    format!("{:02}:{:02}:{:02}.{:03}", second / 3600, second / 60 % 60, second % 60, milliseconds % 1000)
}

/// The event as a sentence that begins with its subject.
fn told(event: &NetworkEvent) -> String {
    use NetworkEvent as E;
    match event {
        E::PortAttached { port, segment } => format!("{port}: attached to segment {segment}"),
        E::PortDetached { port } => format!("{port}: detached"),
        E::PortEnabled { port } => format!("{port}: enabled"),
        E::PortDisabled { port } => format!("{port}: disabled"),
        E::FrontEndConnected { port, program } => format!("{port}: front end connected: {program}"),
        E::FrontEndTurnedAway { port, program, holder } => {
            format!("{port}: another front end was refused: {program}; the port is in use by {holder}")
        }
        E::FrontEndLeft { port, cause } => format!("{port}: front end left: {cause}"),
        E::PortRunning { port } => format!("{port}: running"),
        E::PortQuarantined { port, cause } => format!("{port}: in quarantine: {cause}"),
        E::AddressRefused { port, reason, mac, ip, allowed_by } => {
            let ip = ip.as_ref().map(|ip| format!(" with {ip}")).unwrap_or_default();
            format!("{port}: frame dropped as {reason}, from {mac}{ip}; key that would allow it: {allowed_by}")
        }
        E::PolicyDenied { port, to, rule, allowed_by } => {
            format!(
                "{port}: frame to {to} dropped as policy-denied, by {rule}; rule that would allow it, before that one: {allowed_by}"
            )
        }
        E::FirstDrop { port, reason, frames } => format!("{port}: first drops for {reason}: {frames} frames"),
        E::AddressFlaps { segment, address, held_at, moves_to } => {
            format!("{segment}: address {address} moves between ports {held_at} and {moves_to}: a loop? It is held at {held_at}")
        }
        E::AddressMoved { segment, address, from, to } => {
            format!("{segment}: address {address} moved from port {from} to port {to}")
        }
        E::AddressConflict { segment, ip, vlan, port, mac, source, claimed_by, claimed_mac } => {
            let vlan = vlan.map(|vlan| format!(" in VLAN {vlan}")).unwrap_or_default();
            let mac = mac.as_ref().map(|mac| format!(" with {mac}")).unwrap_or_default();
            format!(
                "{segment}: IP address conflict: {ip}{vlan} belongs to {port}{mac} (by {}), and {claimed_by} claims it with {claimed_mac}",
                source.name()
            )
        }
        E::LimitReached { port, direction, times } => {
            let frames = if direction == "receive" { "frames to it" } else { "its frames" };
            format!("{port}: the {direction} limit held {frames} back, {times} times since it was last told")
        }
        E::LeftOut { port, events } => format!("{port}: {events} events were left out because they came too fast"),
        E::Reloaded { added, removed, changed, failed, left_out } => format!(
            "network: reloaded: {} ports attached, {} detached, {} changed, {} failed{}",
            added.len(),
            removed.len(),
            changed.len(),
            failed.len(),
            more(*left_out)
        ),
        E::ReloadRefused { cause } => format!("network: reload refused: {cause}"),
        E::CaptureStarted { ports, filter, left_out } => {
            let ports = if ports.is_empty() { "all ports".into() } else { ports.join(", ") + &more(*left_out) };
            let filter = if filter.is_empty() { String::new() } else { format!(" with the filter '{filter}'") };
            format!("network: capture of {ports}{filter} begun")
        }
        E::CaptureEnded { frames, missed } => format!("network: capture ended: {frames} frames, {missed} missed"),
    }
}

/// Names that the lists of an event do not have.
fn more(left_out: u64) -> String {
    if left_out == 0 { String::new() } else { format!(", and {left_out} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_time_of_day_and_what_happened() {
        let events = Events { net: Net::default(), follow: false, json: false };
        let json = r#"{"sequence":7,"time":86399.0625,"event":"first-drop","port":"db","reason":"receiver-stalled","frames":3}"#;
        assert_eq!(events.line(json), "23:59:59.062 db: first drops for receiver-stalled: 3 frames\n");
        let json = r#"{"sequence":8,"time":0.0,"event":"capture-started","ports":["a","b"],"filter":"","left-out":7}"#;
        assert_eq!(events.line(json), "00:00:00.000 network: capture of a, b, and 7 more begun\n");
        assert_eq!(events.line(r#"{"missed":3}"#), "             3 events were missed because they came too fast\n");
        assert_eq!(events.line(r#"{"event":"new"}"#), "             {\"event\":\"new\"}\n");
    }
}
