//! passt(1): translates between a stream of Ethernet frames and the host's own sockets in user space, for guests' access to the
//! network without root.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Timeout of `passt --version`, and the interval at which its exit is polled.
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The program.
const PROGRAM: &str = "passt";
/// Most bytes of one line of its log that are kept.
const LINE: u64 = 200;
/// How long to wait for the last line of its log once it has exited; a child process may hold the pipe open for longer.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Configuration of a port behind which passt runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passt {
    /// Arguments beside memlane's own.
    pub arguments: Vec<OsString>,
    /// MTU that passt announces to guests; passt's default if there is none.
    pub mtu: Option<u16>,
}

impl Passt {
    /// Checks that passt can be started.
    ///
    /// # Errors
    /// passt cannot be started, or does not exit in time.
    pub fn probe() -> io::Result<()> {
        let mut command = Command::new(PROGRAM);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (mut child, end) = (command.spawn()?, Instant::now() + TIMEOUT);
        while child.try_wait()?.is_none() {
            if Instant::now() > end {
                let _ = child.kill();
                // Reaping may block in the kernel, so a thread does that.
                std::thread::spawn(move || child.wait());
                return Err(io::Error::new(io::ErrorKind::TimedOut, "`passt --version` does not end"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Starts passt for the port called `port`; returns our end of the stream.
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
            // The receiving half is gone if the port was removed.
            let _ = sender.send(stderr.map(|stderr| last_line(stderr, &port)).unwrap_or_default());
        })?;
        Ok((ours, started))
    }
}

/// Logs the lines of passt's standard error, under the port's name and at level debug, until it exits; returns the last line.
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

/// The text in `line`, with control characters replaced, for they could move a terminal's cursor.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The log message after passt exited `times` times in a row, with the last line of its log and the pause before it is started
/// again.
pub(super) fn trouble(times: u32, last: &str, pause: Duration) -> String {
    let last = if last.is_empty() { "it printed no error" } else { last };
    let times = if times == 1 { "ended".to_owned() } else { format!("ended at once {times} times in a row") };
    format!("passt {times}: {last} (it is started again in {:.1} s; MEMLANE_LOG=debug shows its output)", pause.as_secs_f64())
}

/// A running passt process, which is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    /// The last line of its log, once it has exited.
    last: Receiver<String>,
}

impl Started {
    /// Kills the process if it still runs; returns the last line of its log.
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
