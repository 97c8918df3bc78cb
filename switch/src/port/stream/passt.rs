//! passt(1): a user-space translation between a stream of frames and the host's own sockets, for a way out of the network without root.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The program.
const PROGRAM: &str = "passt";

/// What the operator set for a port that passt is behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passt {
    /// Arguments beside ours.
    pub arguments: Vec<OsString>,
    /// MTU that it tells guests; its own choice if there is none.
    pub mtu: Option<u16>,
}

impl Passt {
    /// Finds out whether it is there.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn probe() -> io::Result<()> {
        Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().map(drop)
    }

    /// Starts it; returns our end of the stream.
    ///
    /// # Errors
    /// The kernel refuses a process or a socket.
    pub(super) fn start(&self) -> io::Result<(UnixStream, Started)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        // The socket is its standard input, so that no descriptor needs to be passed by number.
        command.args(["--foreground", "--quiet", "--fd", "0"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if let Some(mtu) = self.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        Ok((ours, Started(command.args(&self.arguments).spawn()?)))
    }
}

/// A running passt, which ends with this.
#[derive(Debug)]
pub(super) struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
