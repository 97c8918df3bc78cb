//! `memlane policy try`: another policy, tried on the frames of a running network.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use hyper::Method;
use memlane_model::denials::PortDenials;
use memlane_model::policy::PolicyRule;

use super::frames::{self, FileError, Seen};
use super::net::{Net, Socket};
use super::usage::timeout;
use super::{Failure, denials, output};
use crate::config::{Config, PortConfig, Reread};
use crate::control::routes::{TrialBegun, TrialOrder};
use crate::quantity::counted;
use crate::trial::CaptureTrial;

/// Resource of the trial.
const TRIAL: &str = "/v1/policy/trial";
/// Time between two looks at a trial, which ends without looks.
const LOOK: Duration = Duration::from_secs(1);

/// Arguments of `memlane policy`.
#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// List the frames that the policy rules of another file would refuse, of those that pass now.
    ///
    /// The rules decide on no frame. Groups of ports are those of that file, if it has the port. Replies to a flow that began before are listed
    /// until its guest sends. Meanwhile frames do not take the fast path.
    #[command(after_help = "Examples:\n  memlane policy try new.toml --for 60s\n  memlane policy try new.toml lab --json\n  \
                      memlane capture lab -w yesterday.pcapng\n  memlane policy try new.toml --pcap yesterday.pcapng")]
    Try(Try),
}

/// Arguments of `memlane policy try`.
#[derive(Debug, Args)]
struct Try {
    /// File with the rules to try; it may have ports.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The network: its file, or its name while it runs; by default the network "memlane", which `memlane up` runs without a file, or else the
    /// only one that runs.
    net: Option<PathBuf>,
    #[command(flatten)]
    socket: Socket,
    /// Length of the trial, an hour at most.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = timeout)]
    length: Duration,
    /// A file of `memlane capture` in place of the network's present frames: those that a port transmitted and another received.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["net", "length", "control"])]
    pcap: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Policy {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let PolicyCommand::Try(tried) = &self.command;
        tried.run()
    }
}

impl Try {
    fn run(&self) -> Result<(), Failure> {
        let ports = match &self.pcap {
            Some(capture) => self.of_capture(capture)?,
            None => self.of_network()?,
        };
        output::print_either(self.json, &ports, || denials::text(&ports, "no frame would be refused\n"))
    }

    /// Frames of `capture` that the rules would refuse.
    fn of_capture(&self, capture: &Path) -> Result<Vec<PortDenials>, Failure> {
        let config = Config::load(&self.file)?;
        if config.policy.iter().any(PolicyRule::has_names) {
            output::note("DNS names in the rules allow no address here: which answers a port was given, a capture does not tell");
        }
        let member = |port: &PortConfig| (port.name.clone(), (port.segment.clone(), port.settings.limits.groups.clone()));
        let mut trial = CaptureTrial::new(&config.policy, config.ports.iter().map(member).collect());
        // A worker that loses its CPU writes a frame late: where it is received may come first.
        let (mut names, mut senders) = (HashSet::<Arc<str>>::new(), HashMap::<u64, Arc<str>>::new());
        each_seen(capture, |seen, _| {
            if seen.transmitted {
                let name = names.get(seen.port).map_or_else(|| seen.port.into(), Arc::clone);
                names.insert(Arc::clone(&name));
                senders.insert(seen.id, name);
            }
        })?;
        let mut judged = 0_u64;
        each_seen(capture, |seen, frame| {
            let from = senders.get(&seen.id).filter(|_| !seen.transmitted && !seen.dropped);
            if let Some(from) = from {
                judged += u64::from(trial.judge((from, seen.port), frame, Duration::from_secs(seen.second.into())));
            }
        })?;
        if judged == 0 {
            let text = "no frame in it is seen at two ports: capture all ports, as in `memlane capture NET -w FILE`";
            return Err(Failure::Configuration(format!("the capture file {}: {text}", capture.display())));
        }
        output::note(&format!("{} judged", counted(judged, "frame")));
        Ok(trial.denials())
    }

    /// Frames of the network that the rules would refuse, until the end of the trial.
    fn of_network(&self) -> Result<Vec<PortDenials>, Failure> {
        let Reread { document, cut_off } = Reread::load(&self.file, false)?;
        if cut_off {
            output::note(&format!(
                "{} may be incomplete: its last line has no newline, or a program writes it",
                self.file.display()
            ));
        }
        let document = serde_json::to_value(document).map_err(Failure::running)?;
        let client = Net { net: self.net.clone(), socket: self.socket.clone() }.client()?;
        let order = TrialOrder { document, milliseconds: u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX) };
        let TrialBegun { trial, milliseconds } = client.ask(Method::POST, TRIAL, Some(&order))?;
        output::note(&format!("the rules of {} are tried for {} s", self.file.display(), milliseconds as f64 / 1000.0));
        let trial = format!("{TRIAL}/{trial}");
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            std::thread::sleep(left.min(LOOK));
            client.get::<Vec<PortDenials>>(&trial)?;
        }
        Ok(client.ask(Method::DELETE, &trial, None::<&()>)?)
    }
}

/// Calls `each` with the frames of a capture file that `memlane capture` has written.
fn each_seen(capture: &Path, mut each: impl FnMut(Seen<'_>, &[u8])) -> Result<(), Failure> {
    let read = frames::read::<FileError>(capture, |frame| {
        frame.seen.into_iter().for_each(|seen| each(seen, frame.bytes));
        Ok(true)
    });
    match read {
        // The frames before are judged.
        Ok(()) | Err(FileError::CutOff(_)) => Ok(()),
        Err(cause) => Err(Failure::Configuration(format!("the capture file {}: {cause}", capture.display()))),
    }
}
