//! Arguments to actions, errors to one sentence and an exit code.
//!
//! Exit codes: 0 all went well; 1 something failed, and the last line on standard error tells the error; 2 the command line is
//! wrong; 3 the run was done, but its result is bad (corrupt, repeated or reordered frames; a misbehaviour that hurt).

mod blast;
mod guest;
mod idle;
mod placement;
mod signal;
mod villain;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use memlane_rig::guest::Habit;

/// The run was done, its result is bad.
const BAD_RESULT: u8 = 3;

/// Connects to a vhost-user switch without a virtual machine: traffic, idle guests, hostile guests.
#[derive(Parser)]
#[command(name = "memlane-rig", version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Sends and receives traffic over two or more ports and measures it.
    Blast(Box<blast::Arguments>),
    /// Connects guests that do nothing, to measure the cost of an idle network.
    Idle(idle::Arguments),
    /// A guest that answers ARP and ping, to try a port without a virtual machine.
    Guest(guest::Arguments),
    /// Misbehaves at a port and looks whether others are hurt.
    Villain(villain::Arguments),
    /// Tells how far two processors are apart.
    Placement(placement::Arguments),
    /// Prints a completion script for a shell.
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Result of an action.
enum Verdict {
    Good,
    Bad,
}

/// A front end's habit by its name.
fn habit(name: &str) -> Result<Habit, String> {
    Habit::by_name(name).ok_or_else(|| format!("{name:?} is no habit: qemu, uml, dpdk and cloud-hypervisor are"))
}

/// Runs the command line.
pub(crate) fn main() -> ExitCode {
    let done = match Arguments::parse().action {
        Action::Blast(arguments) => blast::run(&arguments),
        Action::Idle(arguments) => idle::run(&arguments),
        Action::Guest(arguments) => guest::run(&arguments),
        Action::Villain(arguments) => villain::run(&arguments),
        Action::Placement(arguments) => placement::run(&arguments),
        Action::Completion { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "memlane-rig", &mut std::io::stdout());
            Ok(Verdict::Good)
        }
    };
    match done {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::from(BAD_RESULT),
        Err(error) => {
            eprintln!("memlane-rig: {error:#}");
            ExitCode::FAILURE
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
