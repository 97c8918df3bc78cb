//! CPU affinity: the CPU on which a worker stays for a while.
//!
//! The scheduler tends to wake a thread on the CPU of the waker, and with each kick that is another guest. So a worker would move
//! between CPUs, and displace the thread that ran on each. A virtual machine of several threads that hand over to each other (User
//! Mode Linux at every system call, QEMU at every exit to its main loop) suffers from that. A worker without an affinity of the
//! operator therefore binds itself to the CPU on which the scheduler woke it, and unbinds every second for one wake-up to let the
//! scheduler choose anew. It unbinds at once if another task keeps that CPU while one is idle: a guest that polls would leave a worker
//! that never sleeps only every other time slice.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::time::{Cycles, in_cycles};
use crate::tuning::AFFINITY_TIME;

/// See the module. Of the thread that calls it.
#[derive(Debug, Default)]
pub(super) struct CpuAffinity {
    state: AffinityState,
}

#[derive(Debug, Default)]
enum AffinityState {
    /// The worker has not slept yet.
    #[default]
    Unknown,
    /// The operator decides on which CPUs it runs.
    NotOurs,
    /// The worker may wake on any of these CPUs.
    Open(CpuSet),
    /// The worker stays on the CPU `here` until that moment, and may wake on `any` CPU of the set afterwards.
    Settled { any: CpuSet, here: CpuSet, until: Cycles },
}

impl CpuAffinity {
    /// The thread woke in moment `now`.
    pub(super) fn woke(&mut self, now: Cycles) {
        if matches!(self.state, AffinityState::Settled { until, .. } if now < until) {
            return;
        }
        self.state = self.next(now).unwrap_or(AffinityState::NotOurs);
    }

    /// Lets the scheduler choose another CPU now, and not only at a wake-up.
    pub(super) fn leave(&mut self, now: Cycles) {
        if matches!(self.state, AffinityState::Settled { .. }) {
            self.state = self.next(now).unwrap_or(AffinityState::NotOurs);
        }
    }

    /// The next state; `None` if an operator bound the thread, now or before it first slept, or the kernel refuses.
    fn next(&self, now: Cycles) -> Option<AffinityState> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
        match self.state {
            AffinityState::Unknown if count(&allowed) > 1 => Some(AffinityState::Open(allowed)),
            AffinityState::Open(any) if any == allowed => {
                let mut here = CpuSet::new();
                here.set(sched_getcpu().ok()?).ok()?;
                bind(&here)?;
                Some(AffinityState::Settled { any, here, until: now.saturating_add(in_cycles(AFFINITY_TIME)) })
            }
            AffinityState::Settled { any, here, .. } if here == allowed => {
                bind(&any)?;
                Some(AffinityState::Open(any))
            }
            _ => None,
        }
    }
}

fn count(cpus: &CpuSet) -> usize {
    (0..CpuSet::count()).filter(|&cpu| cpus.is_set(cpu) == Ok(true)).count()
}

/// Binds this thread to these CPUs.
fn bind(cpus: &CpuSet) -> Option<()> {
    sched_setaffinity(Pid::from_raw(0), cpus).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> CpuSet {
        sched_getaffinity(Pid::from_raw(0)).unwrap()
    }

    /// Each CPU of `all` alone.
    fn each(all: &CpuSet) -> Vec<CpuSet> {
        let numbers = (0..CpuSet::count()).filter(|&cpu| all.is_set(cpu) == Ok(true));
        numbers
            .map(|cpu| {
                let mut one = CpuSet::new();
                one.set(cpu).unwrap();
                one
            })
            .collect()
    }

    #[test]
    fn a_thread_settles_where_it_wakes_and_asks_anew_after_a_while() {
        let all = allowed();
        // On a machine of one CPU there is no choice.
        let settled = each(&all);
        let (mut affinity, stay) = (CpuAffinity::default(), in_cycles(AFFINITY_TIME));
        affinity.woke(1);
        assert_eq!(allowed(), all, "it may wake anywhere");
        affinity.woke(2);
        assert!(settled.contains(&allowed()), "there it stays");
        affinity.woke(1 + stay);
        assert!(settled.contains(&allowed()), "for a while");
        affinity.woke(2 + stay);
        assert_eq!(allowed(), all, "then it may wake anywhere once more");
        affinity.woke(3 + stay);
        assert!(settled.contains(&allowed()));
    }

    #[test]
    fn a_thread_that_leaves_its_cpu_settles_at_a_wake_up() {
        let all = allowed();
        let settled = each(&all);
        let mut affinity = CpuAffinity::default();
        (1..=2).for_each(|now| affinity.woke(now));
        assert!(settled.contains(&allowed()));
        (3..=4).for_each(|now| affinity.leave(now));
        assert_eq!(allowed(), all);
        affinity.woke(5);
        assert!(settled.contains(&allowed()));
    }

    #[test]
    fn whoever_is_bound_by_others_stays_so() {
        let one = each(&allowed())[0];
        bind(&one).unwrap();
        let mut affinity = CpuAffinity::default();
        for now in 0..3 {
            affinity.woke(now);
            assert_eq!(allowed(), one);
        }
    }

    #[test]
    fn whoever_is_given_other_cpus_keeps_them() {
        let all = allowed();
        // An operator binds it to another CPU, or to all, while it stays on a CPU or looks for one.
        for (wakes, given) in each(&all).into_iter().chain([all]).flat_map(|given| [(1, given), (2, given)]) {
            bind(&all).unwrap();
            let mut affinity = CpuAffinity::default();
            (1..=wakes).for_each(|now| affinity.woke(now));
            let changed = given != allowed();
            bind(&given).unwrap();
            for second in 1..4 {
                affinity.woke(2 + second * in_cycles(AFFINITY_TIME));
                assert!(!changed || allowed() == given, "{wakes} wakes");
            }
        }
    }
}
