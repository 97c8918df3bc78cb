//! The CPUs on which memlane may run (sched_getaffinity(2)): all of the machine's, or those that taskset(1), a cpuset or a container leaves to it.

use std::fmt;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Numbers of CPUs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

impl Cpus {
    /// Those on which this thread may run; `None` on a machine with more than can be asked for.
    pub fn allowed() -> Option<Self> {
        let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
        Some(Self((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()))
    }

    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

/// As taskset(1) takes them: "0-3,8".
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
    fn cpus_are_told_in_rows() {
        for (cpus, text) in [(&[][..], ""), (&[2], "2"), (&[0, 1, 2, 3, 8], "0-3,8"), (&[1, 3, 4], "1,3-4")] {
            assert_eq!(Cpus(cpus.to_vec()).to_string(), text);
        }
    }
}
