//! Finding the way: before anything is measured, every flow must have got through once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::frames::control;

use super::bed::Way;
use super::collector::Collector;
use super::feeder::Feeder;
use super::plan::Plan;
use super::run::RunError;
use super::stamp::{PROBE, Stamp, Template, address, host};

/// How often a probe is repeated.
const PROBE_EVERY: Duration = Duration::from_millis(20);

/// Lets every port announce its MAC address, then sends probes until one of each flow has arrived.
pub(super) fn find_ways(plan: &Plan, quit: &AtomicBool, feeder: &mut Feeder, collector: &mut Collector) -> Result<(), RunError> {
    let deadline = Deadline::after(plan.timeout);
    let mut again = Deadline::after(Duration::ZERO);
    let probes: Vec<Vec<u8>> = collector.books.ways().iter().enumerate().map(|(flow, way)| probe(plan, flow, way)).collect();
    loop {
        collector.round()?;
        let shut: Vec<usize> = (0..probes.len()).filter(|&flow| !collector.books.reached[flow]).collect();
        let Some(&first) = shut.first() else {
            return Ok(());
        };
        if quit.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        if deadline.is_over() {
            let way = collector.books.ways()[first];
            let more = if shut.len() > 1 { format!(" (and {} other flows)", shut.len() - 1) } else { String::new() };
            return Err(RunError::NoWay { from: way.from, to: way.to, waited: plan.timeout, more });
        }
        if again.is_over() {
            again = Deadline::after(PROBE_EVERY);
            feeder.announce(|port| control::announcement(host(port).mac, address(port)))?;
            for flow in shut {
                feeder.push_bytes(flow, &probes[flow])?;
            }
        }
        std::thread::yield_now();
    }
}

/// The shortest frame of a flow, marked as a probe.
fn probe(plan: &Plan, flow: usize, way: &Way) -> Vec<u8> {
    let template = Template::new(plan.carrier, way.from, way.to, way.number, plan.carrier.shortest() as u32);
    let mut frame = template.head[12..].to_vec();
    frame.resize(template.length as usize, 0);
    let stamp = Stamp { flow: flow as u16, sequence: PROBE, ticks: 0 };
    // SAFETY: the shortest frame ends with its stamp.
    unsafe { stamp.write(frame[plan.carrier.stamp_at()..].as_mut_ptr()) };
    frame
}
