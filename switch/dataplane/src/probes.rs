//! Static tracepoints (USDT) of the provider `memlane`: a nop each until a tracer attaches, without a semaphore.
//!
//! ```sh
//! bpftrace -e 'usdt:/usr/bin/memlane:memlane:drop { @[arg0, arg1] = count(); }'   # drops by port and reason, as numbers
//! ```
//!
//! Ports have the numbers of `memlane status --json`, drop reasons their place in [`DropReason::ALL`], in the order of
//! docs/reference/counters.md.

use crate::id::{PortId, RingKey};
use crate::stats::DropReason;
use crate::time::Cycles;

/// `drop(port, reason, length)`: a frame was dropped for a reason that is counted at the port; its length is 0 if it was not read.
#[inline(always)]
pub(crate) fn drop(port: PortId, reason: DropReason, length: u32) {
    probe::probe!(memlane, drop, port.0, reason as u8, length);
}

/// `port_state(port, state)`: the port is in another state now: 0 waiting, 1 speaking, 2 running, 3 quarantined, 4 gone.
pub(crate) fn port_state(port: PortId, state: u8) {
    probe::probe!(memlane, port_state, port.0, state);
}

/// `session(port, pid)`: a front end has connected; its process ID is 0 if it is not known.
pub(crate) fn session(port: PortId, pid: i32) {
    probe::probe!(memlane, session, port.0, pid);
}

/// `worker_iteration(worker, frames, cycles)`: a poll iteration that moved frames took so many TSC cycles.
#[inline(always)]
pub(crate) fn worker_iteration(worker: u8, frames: u32, took: Cycles) {
    probe::probe!(memlane, worker_iteration, worker, frames, took);
}

/// `call(port, pair, receive)`: the guest was interrupted, for a receive queue if `receive` is 1, else for a transmit queue.
#[inline(always)]
pub(crate) fn call(key: RingKey) {
    probe::probe!(memlane, call, key.port.0, key.pair, key.direction as u8);
}

/// `kick(port, pair, receive)`: a kick came.
#[inline(always)]
pub(crate) fn kick(key: RingKey) {
    probe::probe!(memlane, kick, key.port.0, key.pair, key.direction as u8);
}
