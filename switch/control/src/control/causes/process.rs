//! The process of a front end, as `/proc` shows it: whether it is stopped, and its CPU time. A guest that hangs and one that is paused
//! look alike at their virtqueues: used ring and available ring stand still.
//!
//! Under a unit with ProtectProc=invisible, processes of other users are not seen.

use super::super::report::PortReport;
use super::queues::PAUSE;

/// Hundredths of a CPU from which a guest is busy, and below which it is idle.
const BUSY: u64 = 50;
const IDLE: u64 = 5;

/// The state and the CPU time of a process at one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessView {
    /// State of the process as in proc_pid_stat(5).
    state: u8,
    /// CPU time, user and system, in clock ticks of a hundredth of a second.
    ticks: u64,
}

impl ProcessView {
    /// The process `pid`; `None` if it is not seen.
    pub(super) fn of(pid: i32) -> Option<Self> {
        if pid <= 0 {
            return None;
        }
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name in parentheses may contain any characters.
        let mut words = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
        let state = *words.next()?.as_bytes().first()?;
        let user: u64 = words.nth(10)?.parse().ok()?;
        let system: u64 = words.next()?.parse().ok()?;
        Some(Self { state, ticks: user.saturating_add(system) })
    }

    /// Whether it is stopped by a signal or by a tracer.
    pub(super) fn is_stopped(self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// The meaning of its CPU time since the view `before`, for a guest that does not look at its receive ring: no interrupt leads to a poll
    /// iteration of its driver.
    pub(super) fn evidence(self, before: &Self, report: &PortReport) -> String {
        let program = report.front_end.as_ref().map_or("its VMM", |peer| &peer.program);
        let span = (PAUSE.as_millis() / 10) as u64;
        let used = 100 * self.ticks.saturating_sub(before.ticks) / span.max(1);
        match used {
            BUSY.. => format!("; {program} used {used} % of a CPU meanwhile: the guest hangs in a loop, or its interface is down"),
            ..IDLE => format!("; {program} used no CPU time meanwhile: the guest is halted or paused, or its interface is down"),
            _ => format!(
                "; {program} used {used} % of a CPU meanwhile: the guest runs, and its interface is down or its driver hangs"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_cpu_time_are_read_behind_any_name() {
        let stat = "77 (a) R 1) T 1 77 77 0 -1 4194304 100 0 0 0 12 30 0 0 20 0 1 0 5 1 1 1";
        assert_eq!(ProcessView::parse(stat), Some(ProcessView { state: b'T', ticks: 42 }));
        assert!(ProcessView::parse(stat).is_some_and(ProcessView::is_stopped));
        assert_eq!(ProcessView::parse("77 (a) R 1"), None);
        assert!(ProcessView::of(std::process::id() as i32).is_some_and(|own| !own.is_stopped()));
        assert_eq!(ProcessView::of(0), None);
    }
}
