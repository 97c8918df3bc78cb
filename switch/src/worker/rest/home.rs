//! Home: the CPU that a worker keeps to for a while.
//!
//! The scheduler tends to wake a thread on the CPU of whoever woke it, and with each kick that is another guest. So a worker moves about, and pushes
//! from CPU to CPU whoever ran where it comes; a virtual machine of several threads that hand over to each other (User Mode Linux at every system call, QEMU
//! at every exit to its main loop) pays for that. A worker that nobody bound therefore stays where the scheduler once woke it, and asks anew
//! every second: it may wake anywhere once, and that is its home for the next one.

use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::time::{Cycles, in_cycles};

/// How long a home lasts.
const STAY: Duration = Duration::from_secs(1);

/// See the module. Of the thread that calls it.
#[derive(Debug, Default)]
pub(super) struct Home {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// It has not slept yet.
    #[default]
    Unknown,
    /// It is bound, or was moved by somebody else: it stays away from that.
    NotOurs,
    /// It may wake on any of these.
    Open(CpuSet),
    /// It stays where it is until that moment, and may wake on any of these afterwards.
    Settled(CpuSet, Cycles),
}

impl Home {
    /// The thread woke in moment `now`.
    pub(super) fn woke(&mut self, now: Cycles) {
        if matches!(self.state, State::Settled(_, until) if now < until) {
            return;
        }
        self.state = match std::mem::take(&mut self.state) {
            State::Unknown => allowed().filter(is_several).map_or(State::NotOurs, State::Open),
            State::Open(cpus) => settle().map_or(State::NotOurs, |()| State::Settled(cpus, now.saturating_add(in_cycles(STAY)))),
            State::Settled(cpus, _) if is_ours() => bind(&cpus).map_or(State::NotOurs, |()| State::Open(cpus)),
            State::Settled(..) | State::NotOurs => State::NotOurs,
        };
    }
}

/// CPUs that this thread may run on.
fn allowed() -> Option<CpuSet> {
    sched_getaffinity(Pid::from_raw(0)).ok()
}

fn count(cpus: &CpuSet) -> usize {
    (0..CpuSet::count()).filter(|&cpu| cpus.is_set(cpu) == Ok(true)).count()
}

fn is_several(cpus: &CpuSet) -> bool {
    count(cpus) > 1
}

/// Whether the thread is bound as we left it: to one CPU. Else an operator has changed that meanwhile.
fn is_ours() -> bool {
    allowed().is_some_and(|cpus| count(&cpus) == 1)
}

/// Binds this thread to the CPU that it runs on.
fn settle() -> Option<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu().ok()?).ok()?;
    bind(&here)
}

fn bind(cpus: &CpuSet) -> Option<()> {
    sched_setaffinity(Pid::from_raw(0), cpus).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_settles_where_it_wakes_and_asks_anew_after_a_while() {
        let all = allowed().unwrap();
        if !is_several(&all) {
            // There is nothing to choose on a machine of one CPU.
            let mut home = Home::default();
            home.woke(1);
            assert!(matches!(home.state, State::NotOurs));
            return;
        }
        let (mut home, stay) = (Home::default(), in_cycles(STAY));
        home.woke(1);
        assert_eq!(allowed(), Some(all), "it may wake anywhere");
        home.woke(2);
        assert_eq!(count(&allowed().unwrap()), 1, "there it stays");
        home.woke(stay);
        assert_eq!(count(&allowed().unwrap()), 1, "for a while");
        home.woke(2 + stay);
        assert_eq!(allowed(), Some(all), "then it may wake anywhere once more");
        home.woke(3 + stay);
        assert_eq!(count(&allowed().unwrap()), 1);
    }

    #[test]
    fn whoever_is_bound_by_others_stays_so() {
        let all = allowed().unwrap();
        let first = (0..CpuSet::count()).find(|&cpu| all.is_set(cpu) == Ok(true)).unwrap();
        let mut one = CpuSet::new();
        one.set(first).unwrap();
        bind(&one).unwrap();
        let mut home = Home::default();
        for now in 0..3 {
            home.woke(now);
            assert_eq!(allowed(), Some(one));
        }
    }

    #[test]
    fn whoever_is_given_other_cpus_keeps_them() {
        let all = allowed().unwrap();
        let mut home = Home::default();
        home.woke(1);
        home.woke(2);
        // An operator widens it again.
        bind(&all).unwrap();
        home.woke(2 + in_cycles(STAY));
        home.woke(3 + in_cycles(STAY));
        assert_eq!(allowed(), Some(all));
    }
}
