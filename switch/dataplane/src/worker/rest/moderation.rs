//! Adaptive busy polling: how long a worker polls before it sleeps.
//!
//! A wake-up costs more than a frame, and on an idle CPU it costs tens of microseconds. So while pauses are short and the machine
//! has a CPU to spare, a worker polls through them instead of sleeping in epoll. It yields regularly, so that another task that
//! needs the same CPU gets it at once: every few microseconds, and after each empty poll iteration where a yield shows that
//! another task ran.

use memlane_model::load::running_tasks;

use crate::ablation;
use crate::time::{Cycles, cycles, in_cycles};
use crate::tuning::{LEAST_POLL, LONGEST_POLL, SELDOM, YIELD_INTERVAL};

/// Poll time before sleep: grows while pauses turn out short, shrinks when they turn out long, and is zero whenever the machine has
/// other tasks for its CPUs.
#[derive(Debug)]
pub(super) struct AdaptivePoll {
    span: Cycles,
    yielded_at: Cycles,
    asked_at: Cycles,
    idle_cpu: bool,
    yield_every: Cycles,
    /// The last yield took longer than the interval: other tasks want this CPU.
    contended: bool,
    /// CPUs of the machine.
    cpus: usize,
}

impl AdaptivePoll {
    /// To be made before the worker is bound to a CPU, for the machine's CPUs are counted here.
    pub(super) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let yield_every = in_cycles(YIELD_INTERVAL);
        Self { span: 0, yielded_at: 0, asked_at: 0, idle_cpu: false, yield_every, contended: false, cpus }
    }

    /// Polls on without work since `busy_at`, and yields the CPU now and then; false if the worker is to sleep instead.
    #[inline]
    pub(super) fn poll_on(&mut self, busy_at: Cycles, now: Cycles) -> bool {
        if now.wrapping_sub(busy_at) >= self.span {
            return false;
        }
        if ablation::YIELDS && (self.contended || now.wrapping_sub(self.yielded_at) > self.yield_every) {
            std::thread::yield_now();
            self.yielded_at = cycles();
            self.contended = self.yielded_at.wrapping_sub(now) > self.yield_every;
        }
        true
    }

    /// Maximum age of a ring's last frame for the ring to be polled all the same; `None` if the worker does not poll on.
    pub(super) fn memory(&self) -> Option<Cycles> {
        (self.span > 0).then(|| in_cycles(LONGEST_POLL))
    }

    /// After a `pause` of which the end was slept: adapts to whether polling would have found the work.
    pub(super) fn slept_through(&mut self, pause: Cycles, now: Cycles) {
        self.span = if pause >= in_cycles(LONGEST_POLL) {
            self.span / 2
        } else if self.cpu_is_idle(now) {
            (self.span * 2).clamp(in_cycles(LEAST_POLL), in_cycles(LONGEST_POLL))
        } else {
            0
        };
    }

    /// True if no more tasks are runnable than there are CPUs, read at most every [`SELDOM`].
    fn cpu_is_idle(&mut self, now: Cycles) -> bool {
        if now.wrapping_sub(self.asked_at) > in_cycles(SELDOM) {
            self.asked_at = now;
            self.idle_cpu = running_tasks().is_some_and(|running| running <= self.cpus);
        }
        self.idle_cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pauses_lengthen_it_and_long_ones_end_it() {
        let (short, long) = (in_cycles(LONGEST_POLL) / 2, in_cycles(LONGEST_POLL) * 2);
        let mut adaptive_poll = AdaptivePoll::new();
        (adaptive_poll.asked_at, adaptive_poll.idle_cpu) = (1, true);
        for _ in 0..10 {
            adaptive_poll.slept_through(short, 1);
        }
        assert!(adaptive_poll.poll_on(1, 1 + short) && !adaptive_poll.poll_on(1, 1 + long));
        for _ in 0..64 {
            adaptive_poll.slept_through(long, 1);
        }
        assert!(!adaptive_poll.poll_on(1, 1) && adaptive_poll.memory().is_none());
    }

    #[test]
    fn nobody_lingers_where_the_cpus_have_other_work() {
        let mut adaptive_poll = AdaptivePoll::new();
        (adaptive_poll.asked_at, adaptive_poll.idle_cpu) = (1, false);
        adaptive_poll.slept_through(1, 1);
        assert!(!adaptive_poll.poll_on(1, 1));
    }
}
