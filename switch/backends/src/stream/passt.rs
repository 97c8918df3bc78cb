//! passt(1): a user-space translation between a stream of frames and the host's own sockets, for a way out of the network without root.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long it may take to tell its version, and how often to look whether it has.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(1);
/// The program.
const PROGRAM: &str = "passt";
/// Bytes of a line of its that are kept.
const LINE: u64 = 200;
/// How long its last line is waited for once it has ended; a process of its own may hold the pipe longer.
const LAST_LINE: Duration = Duration::from_millis(200);

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
    /// It cannot be started, or does not end.
    pub fn probe() -> io::Result<()> {
        let mut command = Command::new(PROGRAM);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (mut child, end) = (command.spawn()?, Instant::now() + PATIENCE);
        while child.try_wait()?.is_none() {
            if Instant::now() > end {
                let _ = child.kill();
                // The kernel may hold it, and is not waited for here.
                std::thread::spawn(move || child.wait());
                return Err(io::Error::new(io::ErrorKind::TimedOut, "`passt --version` does not end"));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Starts it for the port called `port`; returns our end of the stream.
    ///
    /// # Errors
    /// The kernel refuses a process, a thread or a socket.
    pub(super) fn start(&self, port: &str) -> io::Result<(UnixStream, Started)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(PROGRAM);
        // The socket is its standard input, so that no descriptor needs to be passed by number.
        command.args(["--foreground", "--quiet", "--fd", "0"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if let Some(mtu) = self.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        let mut child = command.args(&self.arguments).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take();
        let (sender, last) = channel();
        let started = Started { child, last };
        let port = port.to_owned();
        std::thread::Builder::new().name("passt-says".into()).stack_size(128 * 1024).spawn(move || {
            // The receiver is gone if the port was taken away.
            let _ = sender.send(stderr.map(|stderr| last_line(stderr, &port)).unwrap_or_default());
        })?;
        Ok((ours, started))
    }
}

/// Reads what passt says until it ends, and returns the last line. The log has all of it at level debug, under the port's name.
fn last_line(stderr: ChildStderr, port: &str) -> String {
    let mut reader = BufReader::new(stderr);
    let (mut last, mut line) = (String::new(), Vec::new());
    while let Ok(1..) = reader.by_ref().take(LINE).read_until(b'\n', &mut line) {
        let text = printable(&line);
        if !text.is_empty() {
            tracing::debug!(%port, "passt: {text}");
            last = text;
        }
        line.clear();
    }
    last
}

/// The text in `line`, without what would move a terminal's cursor.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What the operator is told once passt has ended so many times in a row, `last` with this line, and is started again after `pause`.
pub(super) fn trouble(times: u32, last: &str, pause: Duration) -> String {
    let last = if last.is_empty() { "it said nothing" } else { last };
    let times = if times == 1 { "ended".to_owned() } else { format!("ended at once {times} times in a row") };
    format!("passt {times}: {last} (started again in {:.1} s; all that it says: MEMLANE_LOG=debug)", pause.as_secs_f64())
}

/// A running passt, which ends with this.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    /// Its last line, once it has ended.
    last: Receiver<String>,
}

impl Started {
    /// Ends it, if it has not ended; returns the last line that it said.
    pub(super) fn end(mut self) -> String {
        self.reap();
        self.last.recv_timeout(LAST_LINE).unwrap_or_default()
    }

    fn reap(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.reap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_printable() {
        assert_eq!(printable(b"  no \x1b[2Jroute\xff\n"), "no ?[2Jroute\u{fffd}");
    }
}
