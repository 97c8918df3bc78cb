//! Memory, descriptors and threads of a process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use memlane::control::server::THREADS;

/// At one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Resident private memory, in KiB.
    pub private: u64,
    /// Resident shared memory, most of it the guests', in KiB.
    pub shared: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads of each kind: their names without numbers.
    pub threads: BTreeMap<String, usize>,
}

impl Sample {
    /// Of the process `pid`.
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let mut threads = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            // A thread may end meanwhile.
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            let kind = name.trim().trim_end_matches(|c: char| c == '-' || c.is_ascii_digit());
            *threads.entry(kind.to_owned()).or_default() += 1;
        }
        Self { private: field("RssAnon"), shared: field("RssShmem"), descriptors, threads }
    }

    /// The growth since `first`, of the same network at rest, if there is any.
    pub fn growth(&self, first: &Self) -> Option<String> {
        let before = |kind: &str| if kind == COMMAND { THREADS } else { first.threads.get(kind).copied().unwrap_or(0) };
        let more = self.threads.iter().find(|&(kind, &count)| count > before(kind));
        let threads = more.map(|(kind, count)| format!("{count} threads \"{kind}\", not {}", before(kind)));
        let grows = |is: u64, was: u64, margin: u64, unit| (is > was + margin).then(|| format!("{is} {unit}, not {was}"));
        let descriptors = grows(self.descriptors as u64, first.descriptors as u64, DESCRIPTORS, "descriptors");
        threads.or(descriptors).or(grows(self.private, first.private, PRIVATE, "KiB private"))
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { private, shared, descriptors, threads } = self;
        let kinds: Vec<_> = threads.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        write!(f, "{private} KiB private, {shared} KiB shared, {descriptors} descriptors, threads: {}", kinds.join(", "))
    }
}

/// Threads that serve requests: a pool with a limit; its threads end ten seconds after their last request. Of every other kind there
/// may be none more at rest than in the beginning.
const COMMAND: &str = "command";
/// Descriptors beyond which more of them are a leak: a process that took over has some that one which began anew has not.
const DESCRIPTORS: u64 = 4;
/// Private memory beyond which more of it is a leak, in KiB: pools and tables grow to their size with the first frames.
const PRIVATE: u64 = 48 << 10;
