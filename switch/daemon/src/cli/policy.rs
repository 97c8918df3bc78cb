//! `memlane policy try`: another policy, tried on the frames of a running network.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use hyper::Method;
use memlane_model::denials::PortDenials;

use super::net::{Net, Socket};
use super::usage::timeout;
use super::{Failure, denials, output};
use crate::config::Reread;
use crate::control::routes::{TrialBegun, TrialOrder};

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
    #[command(after_help = "Examples:\n  memlane policy try new.toml --for 60s\n  memlane policy try new.toml lab --json")]
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
        let document = serde_json::to_value(Reread::load(&self.file, true)?.document).map_err(Failure::running)?;
        let client = Net { net: self.net.clone(), socket: self.socket.clone() }.client()?;
        let order = TrialOrder { document, milliseconds: u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX) };
        let TrialBegun { milliseconds } = client.ask(Method::POST, TRIAL, Some(&order))?;
        output::note(&format!("the rules of {} are tried for {} s", self.file.display(), milliseconds as f64 / 1000.0));
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            std::thread::sleep(left.min(LOOK));
            client.get::<Vec<PortDenials>>(TRIAL)?;
        }
        let ports: Vec<PortDenials> = client.ask(Method::DELETE, TRIAL, None::<&()>)?;
        if self.json { output::print_json(&ports) } else { output::print(&denials::text(&ports, "no frame would be refused\n")) }
    }
}
