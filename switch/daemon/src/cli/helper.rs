//! `memlane helper`: does the work for which the process of a network has no rights, see [`crate::helper`].
//!
//! It is started by that process, with a socket as its standard input, or by a service manager, with a listening one.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::Failure;
use super::service::passed_socket;
use crate::{helper, sandbox, system};

/// Name of the listening socket.
const SOCKET: &str = "nic";
/// Time that a client of the service has for its request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `memlane helper`.
#[derive(Debug, Args)]
pub(super) struct HelperCommand {
    /// The network's file.
    net: PathBuf,
}

impl HelperCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        system::ignore_signals_for_networks();
        let served = match passed_socket(SOCKET) {
            Some(listener) => {
                sandbox::keep_rights_for_nics();
                serve(&UnixListener::from(listener), &self.net)
            }
            // passt gets its rights, as if the network's process had started it.
            None => parent().and_then(|stream| helper::answer_all(&stream, &self.net, false)),
        };
        served.map_err(Failure::running)
    }
}

/// The socket of the process that has started this one.
fn parent() -> io::Result<UnixStream> {
    io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from)
}

/// Answers one client after the other.
fn serve(listener: &UnixListener, net: &Path) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let limited = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        // The client learns of an error by the end of its connection.
        let _ = limited.and_then(|()| helper::answer_all(&stream, net, true));
    }
}
