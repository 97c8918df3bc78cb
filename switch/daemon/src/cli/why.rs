//! `memlane why`: the outcome of a frame without sending it, or the causes that keep a port from its work.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use hyper::Method;
use serde::Serialize;

use super::frames::{self, FileError};
use super::net::PortOfNet;
use super::{Failure, output};
use crate::control::causes::{Cause, PortCauses};
use crate::control::identity::Identity;
use crate::control::why::{Why, WhyFrame};
use crate::control::{Client, PortView, SegmentView};
use crate::port::default_address;

/// Arguments of `memlane why`.
#[derive(Debug, Args)]
pub(super) struct WhyCommand {
    #[command(flatten)]
    port: PortOfNet,
    /// MAC address of the destination of a frame from the port's guest.
    #[arg(long, value_name = "MAC", group = "question")]
    to: Option<String>,
    /// A whole Ethernet frame from the port's guest, in hexadecimal.
    #[arg(long, value_name = "HEX", group = "question")]
    frame: Option<String>,
    /// A packet from the port's guest in tcpdump's words, as "arp who-has 10.0.0.2".
    #[arg(long, value_name = "TEXT", group = "question")]
    packet: Option<String>,
    /// A capture file, pcap or pcapng: the first 1000 frames, as if the port's guest transmitted each of them now.
    #[arg(long, value_name = "FILE", group = "question")]
    pcap: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Maximum number of frames of a file for which outcomes are printed.
const MOST_FRAMES: u64 = 1000;

/// A forecast for a frame of a file.
#[derive(Debug, Serialize)]
struct Numbered {
    /// Its number in the file, from 1 on.
    number: u64,
    #[serde(flatten)]
    why: Why,
}

/// Why a file is not read further.
enum Ended {
    File(FileError),
    Failed(Failure),
}

impl From<FileError> for Ended {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

/// Outcomes of the frames of a file: runs of frames with one outcome, and the frames of each.
#[derive(Debug, Default)]
struct Outcomes {
    /// First and last frame.
    runs: Vec<(u64, u64, String)>,
    totals: BTreeMap<String, u64>,
    has_more: bool,
}

impl Outcomes {
    fn add(&mut self, number: u64, outcome: &str) {
        *self.totals.entry(outcome.into()).or_default() += 1;
        match self.runs.last_mut() {
            Some((_, last, told)) if told == outcome => *last = number,
            _ => self.runs.push((number, number, outcome.into())),
        }
    }

    fn text(&self) -> String {
        let run = |(first, last, outcome): &(u64, u64, String)| match first == last {
            true => output::wrapped(&format!("  frame {first}: {outcome}")),
            false => output::wrapped(&format!("  frames {first} to {last}: {outcome}")),
        };
        let runs: String = self.runs.iter().map(run).collect();
        let totals: String = self.totals.iter().map(|(outcome, count)| output::wrapped(&format!("{count} {outcome}"))).collect();
        let more = if self.has_more { format!("later frames than {MOST_FRAMES} are left out\n") } else { String::new() };
        let none = if self.runs.is_empty() { "the file has no frames\n" } else { "" };
        runs + &totals + &more + none
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl WhyCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let client = self.port.net()?.client()?;
        let frame = match (&self.pcap, &self.packet) {
            (Some(file), _) => return self.file(&client, file),
            (None, Some(packet)) => Some(hexadecimal(&self.packet(&client, packet)?)),
            (None, None) => self.frame.clone(),
        };
        if self.to.is_none() && frame.is_none() {
            return self.port();
        }
        let why = self.ask(&client, &WhyFrame { to: self.to.clone(), frame })?;
        if self.json {
            return output::print_json(&why);
        }
        let steps: String = why.forecast.steps.iter().map(|step| output::wrapped(&format!("  {}", output::shown(step)))).collect();
        output::print(&format!("{steps}{}\n", why.outcome))
    }

    fn ask(&self, client: &Client, question: &WhyFrame) -> Result<Why, Failure> {
        Ok(client.ask(Method::POST, &self.port.uri("/why"), Some(question))?)
    }

    /// The frame of a packet in words, from the MAC address of the port's guest.
    fn packet(&self, client: &Client, packet: &str) -> Result<Vec<u8>, Failure> {
        let view: PortView = client.get(&self.port.uri(""))?;
        let segment: SegmentView = client.get(&format!("/v1/segments/{}", view.report.segment))?;
        // As the switch chooses it for --to.
        let guest = segment.learned_addresses.iter().filter(|known| known.port == view.report.name);
        let guest = guest.min_by_key(|known| (!known.pinned, known.age)).map(|known| known.address.as_str());
        let own = match guest.or(view.report.address.as_deref()).and_then(|own| own.parse().ok()) {
            Some(own) => own,
            None => default_address(&client.get::<Identity>("/v1/identity")?.name, &view.report.name),
        };
        let refused = |wanted| Failure::Configuration(format!("--packet is \"{}\"; {wanted}", output::shown(packet)));
        frames::packet(packet, own).map_err(refused)
    }

    /// Prints the outcomes of the frames of a file.
    fn file(&self, client: &Client, file: &Path) -> Result<(), Failure> {
        let (mut outcomes, mut forecasts) = (Outcomes::default(), Vec::new());
        let read = frames::read(file, |frame| {
            if frame.number > MOST_FRAMES {
                outcomes.has_more = true;
                return Ok(false);
            }
            if frame.bytes.len() as u64 != u64::from(frame.length) {
                outcomes.add(frame.number, "unknown: the file does not have all of its bytes");
                return Ok(true);
            }
            let why = self.ask(client, &WhyFrame { to: None, frame: Some(hexadecimal(frame.bytes)) }).map_err(Ended::Failed)?;
            outcomes.add(frame.number, &why.outcome);
            if self.json {
                forecasts.push(Numbered { number: frame.number, why });
            }
            Ok(true)
        });
        match read {
            // The frames before are told.
            Err(Ended::File(cause @ FileError::CutOff(_))) => output::note(&format!("{}: {cause}", file.display())),
            Err(Ended::File(cause)) => return Err(Failure::Configuration(format!("the capture file {}: {cause}", file.display()))),
            Err(Ended::Failed(failure)) => return Err(failure),
            Ok(()) => {}
        }
        if self.json {
            return output::print_json(&forecasts);
        }
        output::print(&outcomes.text())
    }

    /// Prints the causes that keep the port from its work.
    fn port(&self) -> Result<(), Failure> {
        let causes: PortCauses = self.port.net()?.client()?.get(&self.port.uri("/why"))?;
        if self.json {
            return output::print_json(&causes);
        }
        let fine = format!("the switch sees no problem ({})", causes.state);
        let lines = causes.causes.iter().map(Cause::line);
        let lines: Vec<String> = if causes.causes.is_empty() { vec![fine] } else { lines.collect() };
        output::print(&lines.iter().map(|line| output::wrapped(&format!("  {}: {line}", causes.port))).collect::<String>())
    }
}
