//! The `memlane-rig` command: traffic, idle guests, hostile guests and answering guests, without a virtual machine.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
