//! The command line: arguments in, exit code out.
//!
//! Exit codes: 0 success; 1 something failed while running; 2 wrong arguments or a mistaken configuration; 3 `doctor` found something
//! that keeps memlane from working here.

mod attach;
mod doctor;
mod libvirt;
mod output;
mod set;
mod status;
mod up;
mod words;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{Config, Mistakes, document};

/// The network between virtual machines that share a host.
#[derive(Debug, Parser)]
#[command(
    name = "memlane",
    version,
    about,
    after_help = "Exit codes: 0 success, 1 failure while running, 2 wrong arguments or configuration, 3 doctor found something missing.\n\n\
                  Examples:\n  memlane up net.toml            run the network until SIGTERM or Ctrl-C\n  \
                  memlane qemu net.toml web      print QEMU arguments for a guest on port 'web'\n  \
                  memlane status net.toml        what each port and worker does\n  \
                  memlane set net.toml web --intake 1Gbit   hold port 'web' to a rate\n  \
                  memlane doctor                 what this machine offers and lacks"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the network that a file describes, until SIGTERM or Ctrl-C.
    ///
    /// Prints one line when guests can connect. Log lines go to standard error; MEMLANE_LOG=debug shows more.
    #[command(after_help = "Example:\n  memlane up net.toml")]
    Up(up::Up),
    /// Check a file without running it: every mistake with its line.
    #[command(after_help = "Example:\n  memlane check net.toml")]
    Check {
        /// The network's file.
        net: PathBuf,
    },
    /// Print the JSON Schema of network files.
    #[command(after_help = "Example:\n  memlane schema > memlane.schema.json")]
    Schema,
    /// Show ports, workers and counters of a running network.
    #[command(after_help = "Examples:\n  memlane status net.toml\n  memlane status net.toml --json | jq .ports")]
    Status(status::Status),
    /// Change what a port of a running network is allowed: its weight, its rates.
    #[command(
        after_help = "Examples:\n  memlane set net.toml web --intake 1Gbit,100kpps\n  memlane set net.toml web --intake none --weight 3"
    )]
    Set(Box<set::Set>),
    /// Print QEMU arguments for a guest on a port.
    #[command(after_help = "Example:\n  qemu-system-x86_64 -accel kvm $(memlane qemu net.toml web --memory 2G) -kernel ...")]
    Qemu(attach::Qemu),
    /// Print User Mode Linux arguments for a guest on a port.
    #[command(after_help = "Example:\n  ./linux mem=256M $(memlane uml net.toml web) ...")]
    Uml(attach::Attach),
    /// Print the libvirt interface element for a guest on a port.
    #[command(after_help = "Example:\n  memlane libvirt net.toml web > nic.xml && virsh attach-device GUEST nic.xml --config")]
    Libvirt(attach::Attach),
    /// Tell what this machine offers and lacks, each with its remedy.
    #[command(after_help = "Examples:\n  memlane doctor\n  memlane doctor --json")]
    Doctor(doctor::Doctor),
    /// Print the completion script for a shell.
    #[command(after_help = "Example:\n  memlane completion bash > /etc/bash_completion.d/memlane")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Why a command ends without success.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit code 1.
    Running(String),
    /// Exit code 2.
    Configuration(String),
    /// Exit code 3; all was said already.
    Lacking,
}

impl Failure {
    fn running(cause: impl fmt::Display) -> Self {
        Self::Running(cause.to_string())
    }
}

impl From<Mistakes> for Failure {
    fn from(mistakes: Mistakes) -> Self {
        Self::Configuration(mistakes.to_string())
    }
}

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let failure = match run(arguments.command) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(failure) => failure,
    };
    let (code, text) = match failure {
        Failure::Running(text) => (1, text),
        Failure::Configuration(text) => (2, text),
        Failure::Lacking => (3, String::new()),
    };
    if !text.is_empty() {
        // Where nobody can be told, the code still tells.
        let _ = writeln!(std::io::stderr(), "memlane: {text}");
    }
    ExitCode::from(code)
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(up) => up.run(),
        Command::Check { net } => {
            let config = Config::load(&net)?;
            let (ports, segments) = (config.ports.len(), config.segments().len());
            output::print(&format!("{}: {ports} ports on {segments} segments, no mistakes\n", net.display()))
        }
        Command::Schema => output::print_json(&document::schema()),
        Command::Status(status) => status.run(),
        Command::Set(set) => set.run(),
        Command::Qemu(qemu) => qemu.run(),
        Command::Uml(port) => port.print_uml(),
        Command::Libvirt(port) => port.print_libvirt(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "memlane", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
