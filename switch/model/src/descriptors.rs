//! File descriptors of this process: the limit, and the budget of ports and their front ends.
//!
//! A port has its own from its start to its end. Front ends
//! connect, and send descriptors (kick, call, error, memory) that stay open as long as they like. All of these come out of one
//! budget, with a quota for each port: as many as are left to the others ([`memlane_virtq::budget`]), or [`USUAL`]. The rest is the
//! switch's own: workers, and a **reserve** for connections that are being accepted and for the control socket. So no port keeps
//! others from connecting, and the control socket always answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memlane_virtq::budget::Budget;
use memlane_virtq::time::{cycles, in_cycles};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::journal::REPEAT_PAUSE;

/// Descriptors kept for the switch itself.
const RESERVE: u64 = 64;
/// Where the limit is low, the reserve is this part of it.
const PART: u64 = 6;
/// Descriptors of a worker.
const OF_WORKER: u64 = 6;
/// Descriptors of a segment's uplink: a TAP, its copy for a takeover, and sockets for its devices.
pub const OF_UPLINK: u64 = 13;
/// Descriptors that a front end of one queue pair may hold, and any port as long as the process has them.
pub const USUAL: u64 = 16;
/// Descriptors of a connection: its socket, copies for the ends of the port, and one of passt's log.
pub const OF_CONNECTION: u64 = 4;
/// Descriptors of a connection with a front end of a vhost-user port.
pub const OF_FRONT_END: u64 = 2;
/// Descriptors of the thread that serves a control queue.
pub const OF_CONTROL_QUEUE: u64 = 2;
/// While fewer are free, a message may have lost its descriptors on the way: more than any message brings.
const MARGIN: u64 = 40;

/// Remedy for a shortage.
pub const REMEDY: &str =
    "Raise the hard limit: LimitNOFILE= of the service (systemd), --ulimit nofile= (containers), ulimit -Hn (shells)";

/// Advice for the operator at a port that lost its front end to a shortage.
pub const ADVICE: &str = "its front end was disconnected, because file descriptors ran out: raise the hard limit (LimitNOFILE= of the service, ulimit -Hn), or \
                          look which port holds many (memlane status --json)";

/// Budget of the descriptors of ports and their front ends, and a count of shortages.
#[derive(Debug)]
pub struct Descriptors {
    /// The budget of all together.
    pub budget: Arc<Budget>,
    refused: AtomicU64,
    /// Earliest moment of the next log line about a shortage, in cycles.
    silent_until: AtomicU64,
}

/// Descriptors of a network's process, in `memlane status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct DescriptorReport {
    /// Open descriptors.
    pub open: u64,
    /// Limit of open descriptors.
    pub limit: u64,
    /// Descriptors held by ports and their front ends.
    pub held: u64,
    /// Maximum for ports and their front ends.
    pub most: u64,
    /// Connections that were refused or ended because descriptors ran out.
    pub refused: u64,
}

impl Descriptors {
    /// For ports with `most` descriptors together, including their front ends.
    pub fn new(most: u64) -> Self {
        Self { budget: Budget::new(most), refused: AtomicU64::new(0), silent_until: AtomicU64::new(0) }
    }

    /// For the ports of a network with so many workers, before any of their descriptors are open.
    pub fn for_network(workers: usize) -> Self {
        let limit = limit();
        let own = open().unwrap_or(limit) + workers as u64 * OF_WORKER;
        Self::new(limit.saturating_sub(own + RESERVE.min(limit / PART)))
    }

    /// Records that the front end of the port called `port` was disconnected because descriptors ran out. Logged once a minute.
    pub fn note_shortage(&self, port: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let (now, silent) = (cycles(), self.silent_until.load(Ordering::Relaxed));
        if silent != 0 && now < silent {
            return;
        }
        self.silent_until.store(now + in_cycles(REPEAT_PAUSE), Ordering::Relaxed);
        let DescriptorReport { open, limit, held, most, .. } = self.report();
        tracing::error!(
            port,
            "file descriptors ran out: {open} of {limit} are open, {held} of {most} held by ports; a front end was disconnected. {REMEDY}"
        );
    }

    /// A report for the operator.
    pub fn report(&self) -> DescriptorReport {
        DescriptorReport {
            open: open().unwrap_or_default(),
            limit: limit(),
            held: self.budget.held(),
            most: self.budget.most(),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Raises the soft limit to the hard one, since nothing here depends on a low one (select(2) would).
///
/// # Errors
/// The kernel's error; the limit is unchanged then.
pub fn raise_limit() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard { Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?) } else { Ok(()) }
}

/// The error of a process without free descriptors.
pub fn ran_out() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}

/// The remedy, as the end of a message about `error`, if that is a shortage of descriptors.
pub fn remedy(error: &io::Error) -> String {
    if is_shortage(error) { format!(". {REMEDY}") } else { String::new() }
}

/// Whether `error` is a shortage of descriptors, of the process or the host.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether so few are free that a message may have lost its descriptors: the kernel silently drops those without a free place.
pub fn are_short() -> bool {
    open().map_or(true, |open| open + MARGIN >= limit())
}

fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// Open descriptors, without the one that this look-up takes.
fn open() -> io::Result<u64> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_counted_and_leaves_a_reserve() {
        let before = open().unwrap();
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests open and close theirs.
        assert!(open().unwrap() > before.saturating_sub(20) + 20);
        drop(files);
        let most = Descriptors::for_network(1).report().most;
        assert!(most > 0 && most < limit() - before.min(50), "{most}");
        assert_eq!(Descriptors::for_network(usize::MAX >> 8).report().most, 0);
    }

    #[test]
    fn what_is_refused_is_counted() {
        let descriptors = Descriptors::new(10);
        descriptors.note_shortage("a");
        descriptors.note_shortage("a");
        assert_eq!(descriptors.report().refused, 2);
        assert!(is_shortage(&ran_out()) && !is_shortage(&io::ErrorKind::NotFound.into()));
    }
}
