//! Moderation: whether a worker without frames looks at its rings again, yields its CPU, or sleeps; and which rings its drivers
//! need not kick for.
//!
//! A wake-up costs more than a frame, and on an idle CPU it costs tens of microseconds. One type decides, at the end of a poll
//! iteration without frames ([`Moderation::next`]) and at the end of a sleep ([`Moderation::woke`]):
//!
//! - **Adaptive busy polling**: while pauses are short and the machine has a CPU to spare, the worker polls through them.
//! - **Yields**: every few microseconds, and after each empty poll iteration where a yield shows that another task ran, so that a task
//!   that needs the same CPU gets it at once.
//! - **Recent rings**: where it polls, it polls after a wake-up all rings that had frames lately, without waiting for their kicks.
//! - **Timer polling** of one-way streams (`ingress::timer_poll`) instead of a kick for every few frames.
//! - **Non-blocking epoll**: while it does not sleep, it asks for the kicks of the rings that do.

use memlane_model::load::running_tasks;

use crate::ablation;
use crate::settings::Poll;
use crate::time::{Cycles, driven, in_cycles};
use crate::tuning::{KICK_INTERVAL, LEAST_POLL, LONGEST_POLL, SELDOM, YIELD_INTERVAL};

/// The next step of a worker without frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again at once.
    Look,
    /// Look again after the CPU's pause of a busy loop.
    Pause,
    /// Look again after the tasks that want this CPU.
    Yield,
    /// Sleep, unless a ring that is armed has frames after all.
    Sleep,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Moderation {
    poll: Poll,
    /// Poll time before sleep: grows while pauses turn out short, shrinks when they turn out long, and is zero whenever the machine
    /// has other tasks for its CPUs.
    span: Cycles,
    /// When the last poll iteration moved a frame, or the last sleep ended.
    idle_since: Cycles,
    /// Moment of the next yield.
    yields_at: Cycles,
    /// Moment of the next non-blocking epoll.
    polls_events_at: Cycles,
    /// A CPU was idle when that was last read, and the moment of that.
    idle_cpu: bool,
    asked_at: Cycles,
    /// CPUs of the machine.
    cpus: usize,
}

impl Moderation {
    /// To be made before the worker is bound to a CPU, for the machine's CPUs are counted here.
    pub(super) fn new(poll: Poll, now: Cycles) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let yields_at = if ablation::YIELDS { 0 } else { Cycles::MAX };
        Self { poll, span: 0, idle_since: now, yields_at, polls_events_at: now, idle_cpu: false, asked_at: 0, cpus }
    }

    /// A poll iteration moved frames.
    #[inline]
    pub(super) fn moved(&mut self, now: Cycles) {
        self.idle_since = now;
    }

    /// The next step after a poll iteration without frames. `polls` if some ring is awake; `arrives_soon` tells whether a frame of link
    /// emulation arrives before a sleep would pay off.
    #[inline]
    pub(super) fn next(&mut self, polls: bool, arrives_soon: impl FnOnce() -> bool, now: Cycles) -> Next {
        if self.poll == Poll::Always {
            return Next::Look;
        }
        if polls && now.wrapping_sub(self.idle_since) < self.span {
            return if now > self.yields_at { Next::Yield } else { Next::Pause };
        }
        if arrives_soon() { Next::Pause } else { Next::Sleep }
    }

    /// The worker yielded after the poll iteration of moment `from`, until `now`: if that took long, other tasks want its CPU. Returns
    /// whether they kept it for longer than polling is worth although a CPU is idle.
    pub(super) fn yielded(&mut self, from: Cycles, now: Cycles) -> bool {
        let (took, every) = (now.saturating_sub(from), in_cycles(YIELD_INTERVAL));
        self.yields_at = if took > every { 0 } else { now.saturating_add(every) };
        took > in_cycles(LONGEST_POLL) && self.has_idle_cpu(now)
    }

    /// Whether a non-blocking epoll is due; true once in its interval.
    #[inline]
    pub(super) fn polls_events(&mut self, now: Cycles) -> bool {
        let is_due = now > self.polls_events_at;
        if is_due {
            self.polls_events_at = now.saturating_add(in_cycles(KICK_INTERVAL));
        }
        is_due
    }

    /// Whether one-way streams get timer polling.
    pub(super) fn times_streams(&self) -> bool {
        ablation::TIMER_POLL && self.poll == Poll::Adaptive
    }

    /// The worker slept until `now`; `by_timer` if neither a kick nor a command woke it. Adapts to whether polling would have found
    /// the work. Returns since which moment a ring must have had frames to be polled without a kick; `None` if none is.
    pub(super) fn woke(&mut self, by_timer: bool, now: Cycles) -> Option<Cycles> {
        let pause = now.wrapping_sub(std::mem::replace(&mut self.idle_since, now));
        // The sleep ended in epoll, which told all kicks.
        self.polls_events_at = now.saturating_add(in_cycles(KICK_INTERVAL));
        if self.poll != Poll::Adaptive || by_timer {
            return None;
        }
        let longest = in_cycles(LONGEST_POLL);
        self.span = if pause >= longest {
            self.span / 2
        } else if self.has_idle_cpu(now) {
            (self.span * 2).clamp(in_cycles(LEAST_POLL), longest)
        } else {
            0
        };
        (ablation::WAKE_RECENT && self.span > 0).then(|| now.wrapping_sub(longest))
    }

    /// True if no more tasks are runnable than there are CPUs, read at most every [`SELDOM`].
    fn has_idle_cpu(&mut self, now: Cycles) -> bool {
        if now.wrapping_sub(self.asked_at) > in_cycles(SELDOM) {
            self.asked_at = now;
            self.idle_cpu = driven::is_on() || running_tasks().is_some_and(|running| running <= self.cpus);
        }
        self.idle_cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Cycles = 1 << 40;

    /// Of a worker that has just read whether a CPU is idle.
    fn moderation(poll: Poll, idle_cpu: bool) -> Moderation {
        Moderation { idle_cpu, asked_at: NOW, ..Moderation::new(poll, NOW) }
    }

    /// Of a worker that polls for as long as it may, with its last frame in moment [`NOW`].
    fn polling() -> Moderation {
        let mut moderation = moderation(Poll::Adaptive, true);
        for _ in 0..10 {
            moderation.moved(NOW - 1);
            moderation.woke(false, NOW);
        }
        moderation.yielded(NOW, NOW);
        moderation
    }

    fn next(moderation: &mut Moderation, now: Cycles) -> Next {
        moderation.next(true, || false, now)
    }

    #[test]
    fn short_pauses_lengthen_it_and_long_ones_end_it() {
        let longest = in_cycles(LONGEST_POLL);
        let mut moderation = polling();
        assert_ne!(next(&mut moderation, NOW + longest - 1), Next::Sleep);
        assert_eq!(next(&mut moderation, NOW + longest), Next::Sleep);
        for _ in 0..64 {
            moderation.moved(NOW - longest);
            moderation.woke(false, NOW);
        }
        assert_eq!((next(&mut moderation, NOW), moderation.woke(false, NOW + longest)), (Next::Sleep, None));
    }

    #[test]
    fn none_polls_where_the_cpus_have_other_work() {
        let mut moderation = moderation(Poll::Adaptive, false);
        assert_eq!((moderation.woke(false, NOW), next(&mut moderation, NOW)), (None, Next::Sleep));
    }

    #[test]
    fn only_rings_that_are_awake_are_polled_and_frames_that_arrive_soon_awaited() {
        let mut moderation = polling();
        assert_eq!(moderation.next(false, || false, NOW), Next::Sleep);
        assert_eq!(moderation.next(false, || true, NOW), Next::Pause);
    }

    #[test]
    fn it_yields_at_its_interval_and_at_each_look_where_others_run() {
        let (mut moderation, every) = (polling(), in_cycles(YIELD_INTERVAL));
        assert_eq!((next(&mut moderation, NOW + every), next(&mut moderation, NOW + every + 1)), (Next::Pause, Next::Yield));
        moderation.yielded(NOW, NOW + every + 1);
        assert_eq!(next(&mut moderation, NOW + every + 2), Next::Yield, "another task ran");
        moderation.yielded(NOW + 1, NOW + 2);
        assert_eq!(next(&mut moderation, NOW + 3), Next::Pause, "none did");
    }

    #[test]
    fn a_cpu_that_others_keep_is_left_where_one_is_idle() {
        let long = in_cycles(LONGEST_POLL);
        let left = |idle_cpu, took| moderation(Poll::Adaptive, idle_cpu).yielded(NOW, NOW + took);
        assert_eq!([left(true, long), left(true, long + 1), left(false, long + 1)], [false, true, false]);
    }

    #[test]
    fn a_kick_has_recent_rings_polled_and_a_timer_changes_nothing() {
        let mut moderation = polling();
        assert_eq!(moderation.woke(false, NOW + 1), Some(NOW + 1 - in_cycles(LONGEST_POLL)));
        let span = moderation.span;
        assert_eq!((moderation.woke(true, NOW + 1), moderation.span), (None, span));
    }

    #[test]
    fn only_the_adaptive_setting_adapts() {
        for (poll, expected) in [(Poll::Always, Next::Look), (Poll::Never, Next::Sleep)] {
            let mut moderation = moderation(poll, true);
            assert_eq!((moderation.woke(false, NOW), next(&mut moderation, NOW)), (None, expected));
            assert!(!moderation.times_streams());
        }
        assert!(moderation(Poll::Adaptive, true).times_streams());
    }

    #[test]
    fn sleeping_rings_are_asked_after_at_an_interval() {
        let (mut moderation, every) = (moderation(Poll::Always, true), in_cycles(KICK_INTERVAL));
        let due: Vec<bool> = [1, 2, 1 + every, 2 + every, 3 + every].map(|later| moderation.polls_events(NOW + later)).into();
        assert_eq!(due, [true, false, false, true, false]);
    }

    #[test]
    fn a_worker_that_wakes_does_not_ask_for_kicks_again() {
        let (mut moderation, every) = (moderation(Poll::Never, true), in_cycles(KICK_INTERVAL));
        moderation.woke(false, NOW);
        assert_eq!([1, every, 1 + every].map(|later| moderation.polls_events(NOW + later)), [false, false, true]);
    }
}
