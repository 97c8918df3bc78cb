//! Memory and descriptors of a process.

use std::fmt;

/// At one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Resident private memory, in KiB.
    pub private: u64,
    /// Resident shared memory, most of it the guests', in KiB.
    pub shared: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
}

impl Sample {
    /// Of the process `pid`.
    pub fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Self { private: field("RssAnon"), shared: field("RssShmem"), descriptors, threads: field("Threads") }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { private, shared, descriptors, threads } = self;
        write!(f, "{private} KiB private, {shared} KiB shared, {descriptors} descriptors, {threads} threads")
    }
}

/// Descriptors beyond which more of them are a leak: a connection of the control socket may end late.
const DESCRIPTORS: usize = 4;
/// Private memory beyond which more of it is a leak, in KiB: pools and tables grow to their size with the first frames.
const PRIVATE: u64 = 48 << 10;

/// Threads beyond which more of them are a leak: those that run commands end ten seconds after the last one, and a capture, which goes on
/// over a takeover, has its own.
const THREADS: u64 = 6;

/// Compares the same network at rest, before and after.
pub fn check_growth(first: &Sample, last: &Sample) {
    assert!(last.descriptors <= first.descriptors + DESCRIPTORS, "first {first}, last {last}");
    assert!(last.private <= first.private + PRIVATE, "first {first}, last {last}");
    assert!(last.threads <= first.threads + THREADS, "first {first}, last {last}");
}
