//! `memlane events`: past and future events of a running network.

use clap::Args;

use super::net::Net;
use super::{Failure, output};
use crate::control::client::StreamEnd;
use crate::control::stream::{EventReport, Form, Missed};
use crate::moment::moment;
use crate::quantity::{counted, was};

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
            (Ok(report), _) => format!("{} {}\n", moment(report.time), report.event),
            (Err(_), Ok(Missed { missed })) => {
                let (events, were) = (counted(missed, "event"), was(missed));
                format!("{:23} {events} {were} missed because they came too fast\n", "")
            }
            // An event of a later version's network.
            (Err(_), Err(_)) => format!("{:23} {json}\n", ""),
        }
    }
}

/// Number of the event in a line.
fn sequence(json: &str) -> Option<u64> {
    serde_json::from_str::<EventReport>(json).ok().map(|report| report.sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_date_and_time_and_the_event() {
        let events = Events { net: Net::default(), follow: false, json: false };
        let json = r#"{"sequence":7,"time":86399.0625,"event":"first-drop","port":"db","reason":"receiver-stalled","frames":3}"#;
        assert_eq!(events.line(json), "1970-01-01 23:59:59.062 db: first drops for receiver-stalled: 3 frames\n");
        let json = r#"{"sequence":8,"time":0.0,"event":"capture-started","ports":["a","b"],"filter":"","left-out":7}"#;
        assert_eq!(events.line(json), "1970-01-01 00:00:00.000 network: capture of a, b, and 7 more begun\n");
        assert_eq!(events.line(r#"{"missed":3}"#), "                        3 events were missed because they came too fast\n");
        assert_eq!(events.line(r#"{"event":"new"}"#), "                        {\"event\":\"new\"}\n");
    }
}
