//! CPU affinity: the CPUs on which memlane may run, all of the machine's or those of its cpuset or container. An inherited
//! affinity is no bound: taskset(1) and a service's CPUAffinity= are defaults, and so is isolcpus=, which keeps all processes off
//! the CPUs that are meant for workers with busy polling.

use std::fmt;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// CPU numbers, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

impl Cpus {
    /// The CPUs to which threads of this process may be tied; `None` on a machine with more CPUs than a CPU set
    /// has bits.
    pub fn allowed() -> Option<Self> {
        // A thread of its own, so that the changed CPU affinity ends with it.
        let asks = std::thread::Builder::new().spawn(|| {
            let mut all = CpuSet::new();
            let is_set = (0..CpuSet::count()).try_for_each(|cpu| all.set(cpu));
            // The kernel reduces the set to the cpuset; where it refuses, the inherited affinity stays.
            let _ = is_set.and_then(|()| sched_setaffinity(Pid::from_raw(0), &all));
            Self::of_this_thread()
        });
        asks.map_or_else(|_| Self::of_this_thread(), |asks| asks.join().ok().flatten())
    }

    fn of_this_thread() -> Option<Self> {
        let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
        Some(Self((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()))
    }

    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

/// The list as taskset(1) takes it: "0-3,8".
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, row) in self.0.chunk_by(|before, after| before + 1 == *after).enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match row {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inherited_affinity_is_no_bound_and_stays() {
        let allowed = Cpus::allowed().unwrap();
        std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(allowed.0[0]).unwrap();
            sched_setaffinity(Pid::from_raw(0), &one).unwrap();
            assert_eq!(Cpus::allowed(), Some(allowed.clone()));
            assert_eq!(Cpus::of_this_thread(), Some(Cpus(vec![allowed.0[0]])));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cpus_are_told_in_rows() {
        for (cpus, text) in [(&[][..], ""), (&[2], "2"), (&[0, 1, 2, 3, 8], "0-3,8"), (&[1, 3, 4], "1,3-4")] {
            assert_eq!(Cpus(cpus.to_vec()).to_string(), text);
        }
    }
}
