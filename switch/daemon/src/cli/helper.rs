//! `memlane helper`: does the work for which the process of a network has no rights, see [`crate::helper`].
//!
//! The helper is started by the network's process, with a socket as its standard input, or by a service manager, with a listening one.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use super::Failure;
use super::service::passed_socket;
use crate::helper::Served;
use crate::helper::answers::{Desk, answer_all, begin, tell};
use crate::sandbox;
use memlane_confine::system;

/// Name of the listening socket.
const SOCKET: &str = "nic";
/// Time that a client of the service has for its request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `memlane helper`.
#[derive(Debug, Args)]
pub(super) struct HelperCommand {
    /// The network's file.
    #[arg(required_unless_present = "name")]
    net: Option<PathBuf>,
    /// Name of a network without a file.
    #[arg(long, conflicts_with = "net")]
    name: Option<String>,
    /// The state file.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

impl HelperCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        system::ignore_signals_for_networks();
        let net = self.net.as_deref();
        let served = match (passed_socket(SOCKET), net) {
            (Some(listener), Some(net)) => {
                sandbox::keep_rights_for_nics();
                serve(&UnixListener::from(listener), net)
            }
            // The helper keeps the rights with which the network's process has started it.
            _ => {
                system::outlive_signals();
                let name = self.name.as_deref().unwrap_or_default();
                parent().and_then(|stream| serve_parent(&stream, Served { file: net, name, state: self.state.as_deref() }))
            }
        };
        served.map_err(Failure::running)
    }
}

/// The command that serves a network as its helper, by a socket as its standard input.
///
/// # Errors
/// The kernel does not tell the path of this program.
#[cfg(not(test))]
pub(super) fn command(served: Served<'_>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("helper");
    match served.file {
        Some(file) => command.arg(file),
        None => command.args(["--name", served.name]),
    };
    if let Some(state) = served.state {
        command.arg("--state").arg(state);
    }
    Ok(command)
}

/// The test that runs the helper, for this program is that of the tests.
#[cfg(test)]
pub(super) fn command(served: Served<'_>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "cli::helper::tests::the_helper_of_a_test", "--nocapture"]);
    let empty = Path::new("");
    command.env(tests::FILE, served.file.unwrap_or(empty)).env(tests::STATE, served.state.unwrap_or(empty));
    command.env(tests::NAME, served.name);
    Ok(command)
}

/// The socket of the process that has started this one.
fn parent() -> io::Result<UnixStream> {
    io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from)
}

/// Answers the process that has started this one.
fn serve_parent(stream: &UnixStream, served: Served<'_>) -> io::Result<()> {
    match Desk::of(served) {
        Ok(mut desk) => {
            begin(stream)?;
            answer_all(stream, &mut desk)
        }
        Err(sentence) => tell(stream, &sentence),
    }
}

/// Answers one client after the other.
fn serve(listener: &UnixListener, net: &Path) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let limited = stream.set_read_timeout(Some(TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(TIMEOUT)));
        // The client learns of an error by the end of its connection, of a mistake in the file by a sentence.
        let _ = limited.and_then(|()| match Desk::of_nics(net) {
            Ok(mut desk) => answer_all(&stream, &mut desk),
            Err(sentence) => tell(&stream, &sentence),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const FILE: &str = "MEMLANE_TEST_HELPER";
    pub(super) const NAME: &str = "MEMLANE_TEST_HELPER_NAME";
    pub(super) const STATE: &str = "MEMLANE_TEST_HELPER_STATE";

    /// No test: the process of [`command`].
    #[test]
    fn the_helper_of_a_test() {
        let Some(file) = std::env::var_os(FILE).map(PathBuf::from) else { return };
        let [name, state] = [NAME, STATE].map(|key| std::env::var(key).unwrap());
        let (file, state) = ((file != Path::new("")).then_some(&*file), (!state.is_empty()).then_some(Path::new(&state)));
        let stream = parent().unwrap();
        let mut desk = Desk::of(Served { file, name: &name, state }).unwrap();
        begin(&stream).and_then(|()| answer_all(&stream, &mut desk)).unwrap();
        std::process::exit(0);
    }
}
