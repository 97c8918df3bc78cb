//! Descriptors of this process: how many it may have, and what ports and their front ends may hold of them.
//!
//! A port has its own from its start to its end ([`PortKind::descriptors`](crate::config::PortKind::descriptors)). Front ends connect, and send
//! descriptors (kick, call, error, memory) that stay open as long as they like. All of these come out of one budget, of
//! which a port gets no more than is left to the others ([`crate::budget`]), or [`USUAL`]. The rest is the switch's own: workers, and a
//! **reserve** for connections that are being accepted and for the control socket. So no port keeps others from connecting, and the network can
//! always be asked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::time::{cycles, in_cycles};

/// Descriptors kept for the switch itself.
const RESERVE: u64 = 64;
/// Where there are few, the reserve is this part of them.
const PART: u64 = 6;
/// Descriptors of a worker.
const OF_WORKER: u64 = 6;
/// Descriptors of a segment's uplink: a TAP, and sockets for its devices.
pub const OF_UPLINK: u64 = 12;
/// Descriptors that a front end of one queue pair may hold, and a port whatever the others hold, as long as there are any.
pub const USUAL: u64 = 16;
/// Descriptors of a connection and of what serves it.
pub const OF_CONNECTION: u64 = 4;
/// Descriptors of the thread that serves a control queue.
pub const OF_CONTROL_QUEUE: u64 = 2;
/// While fewer are free, a message may have lost its own on the way: more than any message brings.
const MARGIN: u64 = 40;
/// Least time between two log lines about this.
const PAUSE: Duration = Duration::from_secs(60);

/// What to do where they run out.
pub const REMEDY: &str =
    "Raise the hard limit: LimitNOFILE= of the service (systemd), --ulimit nofile= (containers), ulimit -Hn (shells)";

/// What the operator is told at a port whose front end got none.
pub const ADVICE: &str = "its front end was disconnected, because descriptors ran out: raise the hard limit (LimitNOFILE= of the service, ulimit -Hn), or \
                          look which port holds many (memlane status --json)";

/// What ports of a network and their front ends may hold, and how often that was not enough.
#[derive(Debug)]
pub struct Descriptors {
    /// What all may hold together.
    pub budget: Arc<Budget>,
    refused: AtomicU64,
    /// When the log may say so again, in cycles.
    silent_until: AtomicU64,
}

/// Descriptors of a network's process, as an operator sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct DescriptorReport {
    /// Those that are open.
    pub open: u64,
    /// Those that may be.
    pub limit: u64,
    /// Those that ports and their front ends hold.
    pub held: u64,
    /// Those that they may hold.
    pub most: u64,
    /// Connections that were refused, or ended, for want of them.
    pub refused: u64,
}

impl Descriptors {
    /// For ports that may hold `most` together, with their front ends.
    pub fn new(most: u64) -> Self {
        Self { budget: Budget::new(most), refused: AtomicU64::new(0), silent_until: AtomicU64::new(0) }
    }

    /// For the ports of a network with so many workers, of which nothing is open yet.
    pub fn for_network(workers: usize) -> Self {
        let limit = limit();
        let own = open().unwrap_or(limit) + workers as u64 * OF_WORKER;
        Self::new(limit.saturating_sub(own + RESERVE.min(limit / PART)))
    }

    /// The front end of the port called `port` was disconnected for want of descriptors. Logged once a minute.
    pub fn note_shortage(&self, port: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let (now, silent) = (cycles(), self.silent_until.load(Ordering::Relaxed));
        if silent != 0 && now < silent {
            return;
        }
        self.silent_until.store(now + in_cycles(PAUSE), Ordering::Relaxed);
        let DescriptorReport { open, limit, held, most, .. } = self.report();
        tracing::error!(
            port,
            "descriptors run out: {open} of {limit} are open, {held} of {most} held by ports; a front end was disconnected. {REMEDY}"
        );
    }

    /// What is to be seen of them.
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
/// What the kernel says; the limit is as it was then.
pub fn raise_limit() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard { Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?) } else { Ok(()) }
}

/// The error of a process that has no more.
pub fn ran_out() -> io::Error {
    io::Error::from_raw_os_error(libc::EMFILE)
}

/// The rest of a sentence about `error`: the remedy, if that is a shortage of descriptors.
pub fn remedy(error: &io::Error) -> String {
    if is_shortage(error) { format!(". {REMEDY}") } else { String::new() }
}

/// Whether `error` is that, or the host's.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether so few are free that a message may have lost its own: the kernel cuts those that have no place, and says no more than that.
pub fn are_short() -> bool {
    open().map_or(true, |open| open + MARGIN >= limit())
}

fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// Those that are open, but for the one that it takes to look.
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
