//! `memlane forwarder`: asks resolvers for the guests of a segment, see [`crate::forwarder`]. It is started with a socket as its standard input.

use std::io;
use std::os::fd::AsFd;

use clap::Args;

use super::Failure;
use crate::config::resolver::Resolver;
use crate::{forwarder, sandbox};
use memlane_confine::system;

/// Arguments of `memlane forwarder`.
#[derive(Debug, Args)]
pub(super) struct ForwarderCommand {
    /// The resolvers: "host", or addresses.
    #[arg(required = true)]
    resolvers: Vec<Resolver>,
}

impl ForwarderCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        // Signals to all processes of a network are meant for the first one: this one ends with its socket.
        system::outlive_signals();
        let control = io::stdin().as_fd().try_clone_to_owned().map_err(Failure::running)?;
        let addresses = forwarder::addresses(&self.resolvers);
        sandbox::forwarder::confine(&addresses);
        forwarder::serve(control, addresses, self.resolvers.contains(&Resolver::Host)).map_err(Failure::running)
    }
}
