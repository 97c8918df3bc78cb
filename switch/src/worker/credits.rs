//! Credits: a worker's time, shared fairly among the ports that it serves, by what their frames really cost.
//!
//! Each pass gives every port a **quantum** of cycles, which does not pile up; a port that spent more than it had sits out passes
//! until it is out of debt. So a sender of many small frames and one of few large ones get equal time, however many queues they have.

use std::time::Duration;

use crate::port::PortId;
use crate::time::in_cycles;

/// What a pass gives: a usual batch costs less, so that ports only come into debt by frames that are dear.
const QUANTUM: Duration = Duration::from_micros(20);

#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    /// Pass that last gave a quantum.
    pass: u32,
    cycles: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Credits {
    ports: Vec<Credit>,
    pass: u32,
    quantum: i64,
    /// Least debt of the ports that sat out this pass.
    debt: Option<i64>,
}

impl Credits {
    pub(super) fn new(ports: usize) -> Self {
        Self { ports: vec![Credit::default(); ports], pass: 0, quantum: in_cycles(QUANTUM) as i64, debt: None }
    }

    /// A pass begins. If all sat out the last one, everybody is forgiven the least debt: `idle` tells that nothing was done.
    pub(super) fn begin_pass(&mut self, idle: bool) {
        if let Some(debt) = self.debt.take()
            && idle
        {
            self.ports.iter_mut().for_each(|credit| credit.cycles = (credit.cycles + debt).min(self.quantum));
        }
        self.pass = self.pass.wrapping_add(1);
    }

    /// Whether `port` has its turn in this pass.
    #[inline]
    pub(super) fn may_spend(&mut self, port: PortId) -> bool {
        let credit = &mut self.ports[port.index()];
        if credit.pass != self.pass {
            *credit = Credit { pass: self.pass, cycles: (credit.cycles + self.quantum).min(self.quantum) };
        }
        if credit.cycles > 0 {
            return true;
        }
        let debt = 1 - credit.cycles;
        self.debt = Some(self.debt.map_or(debt, |least| least.min(debt)));
        false
    }

    /// `port` cost this much.
    #[inline]
    pub(super) fn spend(&mut self, port: PortId, cycles: u64) {
        self.ports[port.index()].cycles -= cycles as i64;
    }

    /// True if some port sat out this pass.
    pub(super) fn anybody_sits_out(&self) -> bool {
        self.debt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shared_whatever_a_turn_costs() {
        let mut credits = Credits::new(3);
        let quantum = credits.quantum as u64;
        let costs = [quantum / 10, quantum * 7, quantum * 3];
        let (mut spent, mut idle) = ([0_u64; 3], false);
        for _ in 0..100_000 {
            credits.begin_pass(idle);
            idle = true;
            // The first port has many queues: as many turns in a pass as it likes.
            for port in [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2] {
                if credits.may_spend(PortId(port)) {
                    credits.spend(PortId(port), costs[usize::from(port)]);
                    spent[usize::from(port)] += costs[usize::from(port)];
                    idle = false;
                }
            }
        }
        let (least, most) = (spent.iter().min().unwrap(), spent.iter().max().unwrap());
        assert!(*most as f64 / (*least as f64) < 1.15, "{spent:?}");
    }

    #[test]
    fn who_is_alone_is_never_held_up_for_long() {
        let mut credits = Credits::new(2);
        let mut idle_passes = 0;
        let mut idle = false;
        for _ in 0..1000 {
            credits.begin_pass(idle);
            idle = !credits.may_spend(PortId(1));
            if idle {
                idle_passes += 1;
            } else {
                credits.spend(PortId(1), 1 << 30);
            }
        }
        assert!(idle_passes <= 500, "{idle_passes}");
    }
}
