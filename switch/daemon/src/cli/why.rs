//! `memlane why`: the outcome of a frame without sending it, or the causes that keep a port from its work.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use hyper::Method;
use serde::Serialize;

use super::frames::{self, FileError};
use super::net::{Net, PortOfNet, Socket};
use super::{Failure, output};
use crate::control::Client;
use crate::control::causes::{Cause, PortCauses};
use crate::control::why::{Why, WhyFrame};

/// Arguments of `memlane why`.
#[derive(Debug, Args)]
pub(super) struct WhyCommand {
    /// The network: its file, or its name while it runs; by default the network "memlane", which `memlane up` runs without a file, or else the
    /// only one that runs.
    #[arg(value_name = "NET")]
    first: Option<String>,
    /// Name of the port; without one, all ports of the network with a cause, the worst first.
    #[arg(value_name = "PORT")]
    second: Option<String>,
    #[command(flatten)]
    socket: Socket,
    /// Destination of a frame from the port's guest: the name of another port, a MAC address or an IP address. The causes at that port's
    /// receive queue are told, too.
    #[arg(long, value_name = "PORT|ADDRESS", conflicts_with_all = ["frame", "pcap"])]
    to: Option<String>,
    /// A whole Ethernet frame from the port's guest, in hexadecimal.
    #[arg(long, value_name = "HEX", group = "question")]
    frame: Option<String>,
    /// A packet from the port's guest in words: "tcp,dst=5432", "arp", "icmp6" with --to, or "arp who-has 10.0.0.2".
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
    /// Number of the frame in the file, from 1 on.
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
        let Some(port) = self.named()? else { return self.all_ports() };
        let client = port.net()?.client()?;
        if let Some(file) = &self.pcap {
            return self.file(&client, &port, file);
        }
        let question = WhyFrame { to: self.to.clone(), packet: self.packet.clone(), frame: self.frame.clone() };
        if question == WhyFrame::default() {
            return self.one_port(&client, &port);
        }
        let why = ask(&client, &port, &question)?;
        output::print_either(self.json, &why, || {
            let steps = why.forecast.steps.iter().map(|step| output::wrapped(&format!("  {}", output::shown(step))));
            let receiver = why.receiver.iter().map(told).collect::<String>();
            format!("{}{receiver}{}\n", steps.collect::<String>(), why.outcome)
        })
    }

    /// The port, unless the arguments name a network alone.
    fn named(&self) -> Result<Option<PortOfNet>, Failure> {
        let asks = self.to.is_some() || self.frame.is_some() || self.packet.is_some() || self.pcap.is_some();
        match PortOfNet::of_arguments((self.first.as_ref(), self.second.as_ref()), &self.socket, asks) {
            None if asks => {
                Err(Failure::Configuration("the name of the port is missing: add it, as in `memlane why net.toml web`".into()))
            }
            port => Ok(port),
        }
    }

    /// Prints the causes of all ports that have one.
    fn all_ports(&self) -> Result<(), Failure> {
        let net = Net { net: self.first.as_ref().map(PathBuf::from), socket: self.socket.clone() };
        let causes: Vec<PortCauses> = net.client()?.get("/v1/why")?;
        output::print_either(self.json, &causes, || match causes.is_empty() {
            true => "  the switch sees no problem at any port\n".into(),
            false => causes.iter().map(told).collect(),
        })
    }

    /// Prints the outcomes of the frames of a file.
    fn file(&self, client: &Client, port: &PortOfNet, file: &Path) -> Result<(), Failure> {
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
            let question = WhyFrame { frame: Some(hexadecimal(frame.bytes)), ..WhyFrame::default() };
            let why = ask(client, port, &question).map_err(Ended::Failed)?;
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
        output::print_either(self.json, &forecasts, || outcomes.text())
    }

    /// Prints the causes that keep the port from its work.
    fn one_port(&self, client: &Client, port: &PortOfNet) -> Result<(), Failure> {
        let causes: PortCauses = client.get(&port.uri("/why"))?;
        output::print_either(self.json, &causes, || told(&causes))
    }
}

fn ask(client: &Client, port: &PortOfNet, question: &WhyFrame) -> Result<Why, Failure> {
    Ok(client.ask(Method::POST, &port.uri("/why"), Some(question))?)
}

/// A port's causes, and then those that have ended.
fn told(causes: &PortCauses) -> String {
    let fine = causes.causes.is_empty().then(|| format!("the switch sees no problem ({})", causes.state));
    let present = causes.causes.iter().map(Cause::line);
    let earlier = causes.earlier.iter().map(|cause| format!("earlier: {}", cause.line()));
    let lines = fine.into_iter().chain(present).chain(earlier);
    lines.map(|line| output::wrapped(&format!("  {}: {line}", causes.port))).collect()
}
