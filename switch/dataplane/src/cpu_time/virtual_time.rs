//! Virtual time: fair shares of a worker's time for ports, by weight and by the measured cost of their frames.
//!
//! The virtual time of a port is its cost so far, divided by its weight. A port that is more than the **lead** ahead of the last
//! backlogged port is throttled for some poll iterations until that one has caught up. A port that is not backlogged, or waits for
//! its receiver, holds up no other, and starts at the virtual time of the last backlogged port when it comes again. This is
//! start-time fair queueing (Goyal, Vin and Cheng, 1996), of a worker's time instead of a link's bytes. So a sender of many small
//! frames and one of few large frames get equal time, however many queues they have; and while the worker has time to spare, no
//! port is throttled for long.
//!
//! Senders that wait for the same receiver share its buffers in bytes, by weights. But while the worker's time is **scarce** too, a
//! sender's weight there is reduced by as much as its bytes cost more than those of others.

use crate::ablation;
use crate::id::PortId;
use crate::time::{Cycles, in_cycles};
use crate::tuning::{ACCOUNT_MEMORY, CHEAPEST_BYTE, COST_MEMORY, LEAD_TIME, SCARCE_AFTER};
use crate::weight::Weight;

/// Parts of a cycle that virtual time counts in, so that weights divide small costs too.
const SCALE: u128 = 1024;

/// Cost of so many bytes together.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    cycles: f64,
    bytes: f64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct VirtualTimes {
    /// Virtual time of each port, in parts of cycles: no worker lives long enough for it to end.
    ports: Vec<u128>,
    /// Recent cost of each port's bytes.
    costs: Vec<Costs>,
    /// For how long the worker has had no time to spare.
    busy: Cycles,
    scarce_after: Cycles,
    /// Virtual time of the last backlogged port of the previous poll iteration.
    floor: u128,
    /// The least virtual time of the backlogged ports in this poll iteration.
    least: Option<u128>,
    /// Some port was throttled in this poll iteration.
    refused: bool,
    lead: u128,
    farthest: u128,
}

impl VirtualTimes {
    pub(super) fn new() -> Self {
        let parts = |time| u128::from(in_cycles(time)) * SCALE;
        Self {
            ports: Vec::new(),
            costs: Vec::new(),
            busy: 0,
            scarce_after: in_cycles(SCARCE_AFTER),
            floor: 0,
            least: None,
            refused: false,
            lead: parts(LEAD_TIME),
            farthest: parts(ACCOUNT_MEMORY),
        }
    }

    /// `port` was added, and there are up to `ports` now.
    pub(super) fn enter(&mut self, port: PortId, ports: usize) {
        self.ports.resize(ports.max(self.ports.len()), 0);
        self.costs.resize(self.ports.len(), Costs::default());
        if let (Some(time), Some(costs)) = (self.ports.get_mut(port.index()), self.costs.get_mut(port.index())) {
            (*time, *costs) = (0, Costs::default());
        }
    }

    /// A poll iteration begins.
    #[inline]
    pub(super) fn begin_iteration(&mut self) {
        self.floor = self.least.take().unwrap_or(self.floor);
        self.refused = false;
    }

    /// Admits `port` to service in this poll iteration; false if it is throttled.
    #[inline]
    pub(super) fn admit(&mut self, port: PortId) -> bool {
        if !ablation::FAIRNESS {
            return true;
        }
        // A port that was not added has nothing to be charged.
        let Some(time) = self.ports.get_mut(port.index()) else { return true };
        *time = (*time).clamp(self.floor, self.floor + self.farthest);
        if *time <= self.floor + self.lead {
            return true;
        }
        self.refused = true;
        // The port may have no frames. Where all are throttled, the last of them is let in again.
        self.mark_backlogged(port);
        false
    }

    /// A poll iteration moved so many `frames` and took so many `cycles`.
    #[inline]
    pub(super) fn end_iteration(&mut self, frames: u32, cycles: Cycles) {
        // A poll iteration that takes long was interrupted.
        let cycles = cycles.min(self.scarce_after / 8);
        self.busy = if frames > 0 { self.busy.saturating_add(cycles) } else { 0 };
    }

    /// Weight of `port` in the fair queueing at a receiver; `weight` is the configured one.
    #[inline]
    pub(super) fn weight_at_receivers(&self, port: PortId, weight: u16) -> Weight {
        let weight = Weight::new(weight);
        if !ablation::FAIRNESS || self.busy <= self.scarce_after {
            return weight;
        }
        self.by_cost(port, weight)
    }

    #[cold]
    fn by_cost(&self, port: PortId, weight: Weight) -> Weight {
        let costs = self.costs.get(port.index()).copied().unwrap_or_default();
        // A sender without bytes so far counts as if its bytes cost nothing.
        weight.times(CHEAPEST_BYTE * costs.bytes.max(1.0) / costs.cycles.max(1.0))
    }

    /// `port`, which has this weight, cost so much, for so many bytes.
    #[inline]
    pub(super) fn spend(&mut self, port: PortId, weight: u16, cost: Cycles, bytes: u64) {
        self.note_cost(port, cost, bytes);
        let Some(time) = self.ports.get_mut(port.index()) else { return };
        let cost = u128::from(cost) * SCALE;
        // Most ports have weight 1, and a division is expensive.
        *time = (*time).max(self.floor) + if weight > 1 { cost / u128::from(weight) } else { cost };
    }

    #[inline]
    fn note_cost(&mut self, port: PortId, cost: Cycles, bytes: u64) {
        // Work in vain says nothing about the cost of bytes.
        let Some(costs) = self.costs.get_mut(port.index()).filter(|_| bytes > 0) else { return };
        if costs.bytes > COST_MEMORY {
            (costs.cycles, costs.bytes) = (costs.cycles / 2.0, costs.bytes / 2.0);
        }
        costs.cycles += cost as f64;
        costs.bytes += bytes as f64;
    }

    /// `port` is backlogged: it has more frames than it was served.
    #[inline]
    pub(super) fn mark_backlogged(&mut self, port: PortId) {
        let time = self.ports.get(port.index()).copied();
        self.least = self.least.into_iter().chain(time).min();
    }

    /// True if `port` was throttled in the last poll iteration.
    pub(super) fn is_throttled(&self, port: PortId) -> bool {
        self.ports.get(port.index()).is_some_and(|&time| time > self.floor + self.lead)
    }

    /// True if some port was throttled in this poll iteration.
    pub(super) fn has_throttled(&self) -> bool {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ports_times(ports: u16) -> VirtualTimes {
        let mut times = VirtualTimes::new();
        (0..ports).for_each(|port| times.enter(PortId(port), ports.into()));
        times
    }

    /// Cost of each port after so many `iterations`, each with these `turns`: a port, its weight, the cost of its service quantum.
    fn spent(iterations: usize, turns: &[(u16, u16, u64)]) -> Vec<u64> {
        let ports = 1 + turns.iter().map(|turn| turn.0).max().unwrap_or(0);
        let mut times = ports_times(ports);
        let mut spent = vec![0; ports.into()];
        for _ in 0..iterations {
            times.begin_iteration();
            for &(port, weight, cost) in turns {
                if times.admit(PortId(port)) {
                    times.spend(PortId(port), weight, cost, 0);
                    times.mark_backlogged(PortId(port));
                    spent[usize::from(port)] += cost;
                }
            }
        }
        spent
    }

    fn lead() -> u64 {
        in_cycles(LEAD_TIME)
    }

    #[test]
    fn time_is_shared_whatever_a_turn_costs() {
        // The first port has many queues: as many service quanta in a poll iteration as it likes.
        let mut turns = vec![(0, 1, lead() / 10); 16];
        turns.extend([(1, 1, lead() * 7), (2, 1, lead() * 3), (2, 1, lead() * 3)]);
        let spent = spent(100_000, &turns);
        let (least, most) = (spent.iter().min().unwrap(), spent.iter().max().unwrap());
        assert!(*most as f64 / (*least as f64) < 1.01, "{spent:?}");
    }

    #[test]
    fn time_follows_weights() {
        for costs in [(30_000, 9000), (2000, 9000), (9 * lead(), 100)] {
            let spent = spent(1_000_000, &[(0, 1, costs.0), (1, 3, costs.1)]);
            let ratio = spent[1] as f64 / spent[0] as f64;
            assert!((2.9..3.1).contains(&ratio), "{costs:?}: {spent:?}");
        }
    }

    #[test]
    fn who_needs_little_leaves_the_rest_to_others() {
        let mut times = ports_times(3);
        let mut refused = 0;
        for iteration in 0..100_000 {
            times.begin_iteration();
            // One port has a few frames in each poll iteration, one a few now and then, one is always backlogged.
            for (port, every, cost) in [(0, 1, 500), (1, 10, 500), (2, 1, 20_000)] {
                if iteration % every == 0 && times.admit(PortId(port)) {
                    times.spend(PortId(port), 1, cost, 0);
                    if port == 2 {
                        times.mark_backlogged(PortId(port));
                    }
                } else {
                    refused += usize::from(iteration % every == 0);
                }
            }
        }
        assert_eq!(refused, 0);
    }

    #[test]
    fn who_is_alone_is_never_held_up_for_long() {
        let mut times = ports_times(2);
        let mut sat_out = 0;
        for _ in 0..1000 {
            times.begin_iteration();
            if times.admit(PortId(1)) {
                times.spend(PortId(1), 1, 1 << 30, 0);
                times.mark_backlogged(PortId(1));
            }
            sat_out += usize::from(times.has_throttled());
        }
        assert!(sat_out <= 500, "{sat_out}");
    }

    #[test]
    fn a_measure_that_errs_closes_nobody_for_long() {
        let mut times = ports_times(2);
        times.begin_iteration();
        times.spend(PortId(0), 1, u64::MAX, 0);
        let mut waited = 0;
        loop {
            times.begin_iteration();
            if times.admit(PortId(0)) {
                break;
            }
            assert!(times.admit(PortId(1)));
            times.spend(PortId(1), 1, lead(), 0);
            times.mark_backlogged(PortId(1));
            waited += lead();
        }
        assert!(waited <= in_cycles(2 * ACCOUNT_MEMORY), "{waited}");
    }

    #[test]
    fn where_time_is_scarce_bytes_weigh_what_they_cost() {
        let mut times = ports_times(2);
        for _ in 0..10_000 {
            times.spend(PortId(0), 1, 6400, 32 * 60);
            times.spend(PortId(1), 1, 25_000, 60_000);
        }
        let weights = |times: &VirtualTimes| [0, 1].map(|port| times.weight_at_receivers(PortId(port), 2).divide(1_000_000));
        let usual = [Weight::new(2).divide(1_000_000); 2];
        times.end_iteration(32, in_cycles(Duration::from_secs(1)));
        assert_eq!(weights(&times), usual, "one that was interrupted");
        for _ in 0..8 {
            times.end_iteration(32, in_cycles(SCARCE_AFTER) / 8);
        }
        times.end_iteration(0, 1000);
        assert_eq!(weights(&times), usual, "there was time to spare");
        for _ in 0..9 {
            times.end_iteration(32, in_cycles(SCARCE_AFTER) / 8);
        }
        let [costly, cheap] = weights(&times);
        let ratio = costly as f64 / cheap as f64;
        assert!((ratio / (6400.0 / 1920.0 * 60_000.0 / 25_000.0) - 1.0).abs() < 0.01, "{ratio}");
    }
}
