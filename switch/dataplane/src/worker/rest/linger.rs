//! Lingering: how long a worker polls before it sleeps.
//!
//! A wake-up costs more than a frame, and where it wakes an idle CPU it costs tens of microseconds. So while pauses are short and the
//! machine has a CPU to spare, a worker polls through them; and whoever wants the very CPU that it polls on gets it at once.

use std::time::Duration;

use crate::time::{Cycles, cycles, frequency, in_cycles};

/// The first span, and the longest: most answers of a guest to a guest take less.
const LEAST: Duration = Duration::from_micros(10);
const MOST: Duration = Duration::from_micros(200);
/// How long to poll before offering the CPU to others.
const YIELD_EVERY: Duration = Duration::from_micros(5);

/// How long to poll before sleeping: grows while pauses turn out short, shrinks when they turn out long, and is zero
/// whenever the machine has other work for its CPUs.
#[derive(Debug)]
pub(super) struct Linger {
    span: Cycles,
    yielded_at: Cycles,
    asked_at: Cycles,
    idle_cpu: bool,
    yield_every: Cycles,
    /// CPUs of the machine.
    cpus: usize,
}

impl Linger {
    /// To be made before the worker is bound to a CPU, for the machine's CPUs are counted here.
    pub(super) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { span: 0, yielded_at: 0, asked_at: 0, idle_cpu: false, yield_every: in_cycles(YIELD_EVERY), cpus }
    }

    /// Whether to poll on after nothing was to do since `busy_at`; others may have had the CPU meanwhile.
    #[inline]
    pub(super) fn goes_on(&mut self, busy_at: Cycles, now: Cycles) -> bool {
        if now.wrapping_sub(busy_at) >= self.span {
            return false;
        }
        if now.wrapping_sub(self.yielded_at) > self.yield_every {
            std::thread::yield_now();
            self.yielded_at = cycles();
        }
        true
    }

    /// How long ago a ring may have had its last frame to be polled all the same; `None` if nobody lingers.
    pub(super) fn memory(&self) -> Option<Cycles> {
        (self.span > 0).then(|| in_cycles(MOST))
    }

    /// After a `pause` the end of which was slept: had polling found the work?
    pub(super) fn slept_through(&mut self, pause: Cycles, now: Cycles) {
        self.span = if pause >= in_cycles(MOST) {
            self.span / 2
        } else if self.cpu_is_idle(now) {
            (self.span * 2).clamp(in_cycles(LEAST), in_cycles(MOST))
        } else {
            0
        };
    }

    /// True if no more tasks want to run than there are CPUs, asked at most every 10 ms.
    fn cpu_is_idle(&mut self, now: Cycles) -> bool {
        if now.wrapping_sub(self.asked_at) > frequency() / 100 {
            self.asked_at = now;
            self.idle_cpu = running_tasks().is_some_and(|running| running <= self.cpus);
        }
        self.idle_cpu
    }
}

/// Tasks that run or want to, of the whole machine, this thread included.
fn running_tasks() -> Option<usize> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pauses_lengthen_it_and_long_ones_end_it() {
        let (short, long) = (in_cycles(MOST) / 2, in_cycles(MOST) * 2);
        let mut linger = Linger::new();
        (linger.asked_at, linger.idle_cpu) = (1, true);
        for _ in 0..10 {
            linger.slept_through(short, 1);
        }
        assert!(linger.goes_on(1, 1 + short) && !linger.goes_on(1, 1 + long));
        for _ in 0..64 {
            linger.slept_through(long, 1);
        }
        assert!(!linger.goes_on(1, 1) && linger.memory().is_none());
    }

    #[test]
    fn nobody_lingers_where_the_cpus_have_other_work() {
        let mut linger = Linger::new();
        (linger.asked_at, linger.idle_cpu) = (1, false);
        linger.slept_through(1, 1);
        assert!(!linger.goes_on(1, 1));
    }
}
