//! passt(1): translates between a stream of Ethernet frames and the host's own sockets in user space, for guests' access to the
//! network without root.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use super::nat::NatSettings;
use memlane_virtq::message::counted;

/// Timeout of `passt --version`.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the exit of `passt --version` is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The program.
const PROGRAM: &str = "passt";
/// Most bytes of one line of its log that are kept.
const LINE: u64 = 200;
/// How long to wait for the last line of its log once it has exited; a child process may hold the pipe open for longer.
const LAST_LINE: Duration = Duration::from_millis(200);

/// Starts passt for the port of this name; returns our end of the stream, and passt's standard error.
pub type StartPasst = dyn Fn(&str) -> io::Result<(UnixStream, File)> + Send + Sync;

/// Configuration of a port behind which passt runs.
pub struct Passt {
    /// Arguments beside memlane's own.
    arguments: Vec<OsString>,
    /// MTU that passt announces to guests; passt's default if there is none.
    mtu: Option<u16>,
    /// Translation of addresses, if it serves all guests of a segment.
    nat: Option<NatSettings>,
    /// Starts it in place of this process.
    starter: Option<Box<StartPasst>>,
}

impl fmt::Debug for Passt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passt").field("arguments", &self.arguments).field("mtu", &self.mtu).finish_non_exhaustive()
    }
}

impl Passt {
    /// With these arguments beside memlane's own, and this MTU for guests, or else passt's default.
    pub fn new(arguments: Vec<OsString>, mtu: Option<u16>) -> Self {
        Self { arguments, mtu, nat: None, starter: None }
    }

    /// Serves all guests of a segment, whose addresses are translated.
    #[must_use]
    pub fn for_many(mut self, nat: NatSettings) -> Self {
        self.nat = Some(nat);
        self
    }

    /// Translation of addresses, if it serves all guests of a segment.
    pub(super) fn nat(&self) -> Option<&NatSettings> {
        self.nat.as_ref()
    }

    /// Has `starter` start it, which knows arguments and MTU. It ends with its stream.
    pub fn start_by(&mut self, starter: Box<StartPasst>) {
        self.starter = Some(starter);
    }

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
        let (ours, log, child) = match &self.starter {
            Some(starter) => starter(port).map(|(ours, log)| (ours, log, None))?,
            None => self.spawn().map(|(ours, log, child)| (ours, log, Some(child)))?,
        };
        Ok((ours, Started::new(port, log, child)?))
    }

    /// Starts passt for another process; returns that one's end of the stream, passt's standard error, and passt, which is to be awaited.
    ///
    /// # Errors
    /// The kernel refuses a process or a socket.
    pub fn spawn(&self) -> io::Result<(UnixStream, File, Child)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (log, theirs_log) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let mut command = Command::new(PROGRAM);
        // The socket is its standard input, so that no descriptor needs to be passed by number.
        command.args(["--foreground", "--quiet", "--fd", "0"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if let Some(mtu) = self.mtu {
            command.args(["--mtu", &mtu.to_string()]);
        }
        let child = command.args(&self.arguments).stderr(theirs_log).spawn()?;
        Ok((ours, log.into(), child))
    }
}

/// Logs the lines of passt's standard error, under the port's name and at level debug, until it exits; returns the last line.
fn last_line(log: File, port: &str) -> String {
    let mut reader = BufReader::new(log);
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
    let times = if times == 1 { "ended".to_owned() } else { format!("ended at once {} in a row", counted(times, "time")) };
    format!("passt {times}: {last} (it is started again in {:.1} s; MEMLANE_LOG=debug shows its output)", pause.as_secs_f64())
}

/// A running passt process. It is killed when this is dropped, or ends with its stream.
#[derive(Debug)]
pub(super) struct Started {
    /// `None` if another process has started it.
    child: Option<Child>,
    /// Standard error of passt.
    log: File,
    /// The last line of that, once passt has exited.
    last: Receiver<String>,
}

impl Started {
    /// The passt of `port`, with its standard error; `child` if this process has started it.
    ///
    /// # Errors
    /// The kernel refuses a thread or a descriptor.
    pub(super) fn new(port: &str, log: File, child: Option<Child>) -> io::Result<Self> {
        let (sender, last) = channel();
        let started = Self { child, log: log.try_clone()?, last };
        let port = port.to_owned();
        std::thread::Builder::new().name("passt-says".into()).stack_size(128 * 1024).spawn(move || {
            // The receiving half is gone if the port was removed.
            let _ = sender.send(last_line(log, &port));
        })?;
        Ok(started)
    }

    /// Another descriptor of its standard error, for the process that goes on with it: without a reader passt would be killed by its next
    /// line (SIGPIPE).
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn log(&self) -> io::Result<File> {
        self.log.try_clone()
    }

    /// Kills the process if it still runs; returns the last line of its log.
    pub(super) fn end(mut self) -> String {
        self.reap();
        self.last.recv_timeout(LAST_LINE).unwrap_or_default()
    }

    fn reap(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
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
