//! The log of a network: lines on standard error, or in the journal.
//!
//! Threads that serve front ends write log lines, so a line must not wait for a reader that stands still: a pager that was left open, a
//! stopped terminal, a log collector that hangs. A line that finds no room waits for [`WAIT`]; after it, lines are left out until
//! the reader goes on, and are counted.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::journald::Journald;

/// Wait of a line for a reader that is slow.
const WAIT: Duration = Duration::from_millis(100);
/// Bytes that a pipe with room takes without a wait (PIPE_BUF of pipe(7)).
const AT_ONCE: usize = 4096;

/// Log lines go to the journal if standard error does, else to standard error.
pub(super) fn start(network: &str) {
    let filter = EnvFilter::try_from_env("MEMLANE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let json = std::env::var_os("MEMLANE_LOG_FORMAT").is_some_and(|format| format == "json");
    if let Some(journald) = Journald::behind_stderr(network).filter(|_| !json) {
        return tracing_subscriber::registry().with(filter).with(journald).init();
    }
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| StandardError)
        .with_ansi(io::stderr().is_terminal() && !plain)
        // Otherwise it would report a failure to write the log to standard error, which is that log, and end the thread.
        .log_internal_errors(false);
    if json { subscriber.json().flatten_event(true).init() } else { subscriber.init() }
}

/// Writes `line` to standard error, unless its reader stands still.
pub(super) fn write_line(line: &[u8]) {
    static LINES: Mutex<Lines> = Mutex::new(Lines { left_out: 0 });
    let lines = || LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let left_out = lines().resume(io::stderr());
    if left_out > 0 {
        // A line as the others are, and written before this one.
        tracing::warn!(left_out, "log lines were left out, because nothing read standard error");
    }
    lines().write(io::stderr(), line);
}

/// A line of the log for each write.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines for a reader that may stand still.
#[derive(Debug)]
struct Lines {
    /// Lines since the last one that found room.
    left_out: u64,
}

impl Lines {
    /// The number of lines that were left out, if there is room again; 0 else.
    fn resume(&mut self, file: impl AsFd) -> u64 {
        if self.left_out > 0 && has_room(file, Duration::ZERO) { std::mem::take(&mut self.left_out) } else { 0 }
    }

    /// Writes `line`, or counts it.
    fn write(&mut self, file: impl AsFd, line: &[u8]) {
        // One line has waited in vain: the next ones do not.
        let timeout = if self.left_out == 0 { WAIT } else { Duration::ZERO };
        let is_written = line.chunks(AT_ONCE).all(|part| {
            // An error other than a lack of room says that there is no reader: such lines are lost, as they always were.
            has_room(&file, timeout) && nix::unistd::write(&file, part) != Err(Errno::EAGAIN)
        });
        self.left_out += u64::from(!is_written);
    }
}

/// Whether a write to `file` need not wait, now or within `timeout`.
fn has_room(file: impl AsFd, timeout: Duration) -> bool {
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
    let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
    loop {
        match poll(&mut files, timeout) {
            Err(Errno::EINTR) => {}
            count => return count.is_ok_and(|count| count > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    #[test]
    fn lines_that_find_no_room_are_counted_and_the_next_ones_are_whole() {
        let (reader, writer) = io::pipe().unwrap();
        let mut lines = Lines { left_out: 0 };
        let line = |number: usize| format!("{number}{}\n", "x".repeat(5000));
        let mut written = 0;
        while lines.left_out == 0 {
            lines.write(&writer, line(written).as_bytes());
            written += 1;
        }
        (0..100).for_each(|_| lines.write(&writer, b"no room\n"));
        assert_eq!((lines.left_out, lines.resume(&writer)), (101, 0));
        let mut reader = BufReader::new(reader);
        let mut text = String::new();
        for number in 0..written - 1 {
            text.clear();
            reader.read_line(&mut text).unwrap();
            assert_eq!(text, line(number));
        }
        // The written part of the last one, if any, and room for another.
        assert_eq!(lines.resume(&writer), 101);
        lines.write(&writer, b"\nlast\n");
        drop(writer);
        assert_eq!(reader.lines().last().unwrap().unwrap(), "last");
        assert_eq!(lines.left_out, 0);
    }

    #[test]
    fn a_reader_that_has_gone_ends_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut lines = Lines { left_out: 0 };
        (0..10).for_each(|_| lines.write(&writer, b"line\n"));
        assert_eq!(lines.left_out, 0);
    }
}
