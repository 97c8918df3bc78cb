//! Credits: a worker's time, shared fairly among the ports that it serves, by what their frames really cost.
//!
//! Time **grants** every port its part of each passing moment, which does not pile up beyond a little; a port that spent more than it was
//! granted sits out passes until it is out of debt. The parts are as many as ports are short of credit: others have no use for more. So a
//! sender of many small frames and one of few large ones get equal time, however many queues they have; and while the worker has time to
//! spare, nobody sits out for long.

use std::time::Duration;

use crate::id::PortId;
use crate::time::{Cycles, in_cycles};

/// Most credit of a port: a usual batch costs less, so that ports only come into debt by frames that are dear.
const MOST: Duration = Duration::from_micros(20);
/// Deepest debt: much more than anything takes that is done at a time, and what an outside measure may err by must not close a port for long.
const DEEPEST: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    cycles: i64,
    /// What all ports had been granted when this one was last looked at.
    granted: i64,
    /// The last pass in which it was found short.
    short_in: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Credits {
    ports: Vec<Credit>,
    /// Granted to each port so far.
    granted: i64,
    pass: u32,
    /// Ports that were found short in this pass.
    short: i64,
    most: i64,
    deepest: i64,
    pass_at: Cycles,
    /// Least debt of the ports that sat out this pass.
    debt: Option<i64>,
}

impl Credits {
    pub(super) fn new() -> Self {
        let (most, deepest) = (in_cycles(MOST) as i64, in_cycles(DEEPEST) as i64);
        Self { ports: Vec::new(), granted: most, pass: 1, short: 0, most, deepest, pass_at: 0, debt: None }
    }

    /// `port` comes, and there are up to `ports` now.
    pub(super) fn enter(&mut self, port: PortId, ports: usize) {
        self.ports.resize(ports.max(self.ports.len()), Credit::default());
        self.ports[port.index()] = Credit::default();
    }

    /// A pass begins in moment `now`. If all sat out the last one, which was `idle` therefore, everybody is forgiven the
    /// least debt.
    pub(super) fn begin_pass(&mut self, idle: bool, now: Cycles) {
        let passed = now.wrapping_sub(std::mem::replace(&mut self.pass_at, now)) as i64;
        let parts = std::mem::take(&mut self.short).max(1);
        self.granted += passed.max(0).min(self.most * parts) / parts;
        self.pass = self.pass.wrapping_add(1);
        if let Some(debt) = self.debt.take()
            && idle
        {
            self.granted += debt;
        }
    }

    /// Whether `port` has its turn in this pass.
    #[inline]
    pub(super) fn may_spend(&mut self, port: PortId) -> bool {
        let credit = &mut self.ports[port.index()];
        credit.cycles = (credit.cycles + self.granted - credit.granted).min(self.most);
        credit.granted = self.granted;
        if credit.cycles < self.most && credit.short_in != self.pass {
            credit.short_in = self.pass;
            self.short += 1;
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
        let credit = &mut self.ports[port.index()].cycles;
        *credit = credit.saturating_sub_unsigned(cycles).max(-self.deepest);
    }

    /// True if some port sat out this pass.
    pub(super) fn anybody_sits_out(&self) -> bool {
        self.debt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credits(ports: u16) -> Credits {
        let mut credits = Credits::new();
        (0..ports).for_each(|port| credits.enter(PortId(port), ports.into()));
        credits
    }

    #[test]
    fn time_is_shared_whatever_a_turn_costs() {
        let mut credits = credits(3);
        let most = credits.most as u64;
        let costs = [most / 10, most * 7, most * 3];
        let (mut spent, mut now, mut idle) = ([0_u64; 3], 0, false);
        for _ in 0..100_000 {
            credits.begin_pass(idle, now);
            idle = true;
            // The first port has many queues: as many turns in a pass as it likes.
            for port in [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2] {
                if credits.may_spend(PortId(port)) {
                    credits.spend(PortId(port), costs[usize::from(port)]);
                    spent[usize::from(port)] += costs[usize::from(port)];
                    now += costs[usize::from(port)];
                    idle = false;
                }
            }
        }
        let (least, most) = (spent.iter().min().unwrap(), spent.iter().max().unwrap());
        assert!(*most as f64 / (*least as f64) < 1.15, "{spent:?}");
    }

    #[test]
    fn who_needs_little_leaves_the_rest_to_others() {
        let mut credits = credits(3);
        let (mut spent, mut now) = (0, 0);
        for _ in 0..100_000 {
            credits.begin_pass(false, now);
            now += 1000;
            for (port, cost) in [(0, 500), (1, 0), (2, 20_000)] {
                if credits.may_spend(PortId(port)) {
                    credits.spend(PortId(port), cost);
                    spent += cost * u64::from(port == 2);
                    now += cost;
                }
            }
        }
        assert!(spent as f64 > 0.8 * now as f64, "{spent} of {now}");
    }

    #[test]
    fn who_is_alone_is_never_held_up_for_long() {
        let mut credits = credits(2);
        let (mut idle_passes, mut idle) = (0, false);
        for now in 0..1000 {
            credits.begin_pass(idle, now);
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
