//! Commands for a takeover by another process: it needs the descriptors of the virtqueues, and the rings of their ports stand still. And for a
//! freeze: frames that are in flight leave the queues.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use super::Worker;
use super::iteration::Ended;
use super::outcome::Outcomes;
use crate::held::HeldLine;
use crate::id::{PortId, RingKey};
use crate::ingress::{PollState, WhenBack};
use crate::ring::{Call, Ring};
use crate::stats::DropReason;
use crate::time::cycles_after;

/// Copies of the descriptors of a virtqueue.
#[derive(Debug)]
pub struct QueueFiles {
    /// Which virtqueue.
    pub key: RingKey,
    /// Where its driver kicks; `None` if the ring is polled.
    pub kick: Option<OwnedFd>,
    /// Where its driver is interrupted.
    pub call: Option<OwnedFd>,
}

impl QueueFiles {
    fn of(key: RingKey, kick: Option<&File>, ring: &Ring) -> io::Result<Self> {
        let copy = |call: &Call| call.descriptor().try_clone_to_owned();
        let kick = kick.map(|kick| kick.as_fd().try_clone_to_owned()).transpose()?;
        Ok(Self { key, kick, call: ring.call().map(copy).transpose()? })
    }
}

impl Worker {
    /// Copies of the descriptors of the virtqueues of `ports` that run here.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn queue_files(&mut self, ports: &HashSet<PortId>) -> io::Result<Vec<QueueFiles>> {
        let rest = &self.rest;
        let sources = self.sources.iter().map(|(slot, source)| (slot, source.key, source.feed.ring()));
        let egress = self.egress.iter().map(|(slot, queue)| (slot, queue.key, queue.ring()));
        let rings = sources.chain(egress).filter(|(_, key, _)| ports.contains(&key.port));
        let files = rings.filter_map(|(slot, key, ring)| Some(QueueFiles::of(key, rest.kick(slot, key.direction), ring?)));
        files.collect()
    }

    /// The worker is about to stand still for a takeover: has each end that is no ring keep its state for the next process.
    pub fn hand_over_ends(&mut self) {
        self.sources.iter().for_each(|(_, source)| source.feed.hand_over());
        self.egress.iter().for_each(|(_, queue)| queue.hand_over());
    }

    /// Whether any frame of any port is in flight or enqueued here.
    pub fn has_any_under_way(&mut self) -> bool {
        self.sources.iter().any(|(_, source)| source.feed.in_flight() > 0) || self.egress.has_any_under_way()
    }

    /// Whether a descriptor chain of any transmit queue here is in flight.
    pub fn has_chains_in_flight(&mut self) -> bool {
        self.sources.iter().any(|(_, source)| source.feed.in_flight() > 0)
    }

    /// Copies all frames that are enqueued here to the emulated links of their receivers, so that the chains of their senders are completed.
    pub fn move_to_lines(&mut self) {
        self.cpu_time.skip();
        self.finish_partial();
        let mut ended = std::mem::take(&mut self.ended);
        let mut outcomes = Outcomes { port_table: &self.port_table, accounting: &mut self.cpu_time.accounting };
        self.egress.move_to_lines(cycles_after(self.now), |packet, port, outcome| {
            outcomes.meet(packet, outcome);
            if outcome.ends_chain() {
                ended.push(Ended::new(packet, port));
            }
        });
        self.give_all_back(&mut ended);
        self.charge();
        self.ended = ended;
    }

    /// Takes all frames in flight on emulated links away.
    pub fn hold_lines(&mut self) -> Vec<HeldLine> {
        self.egress.hold_lines(cycles_after(self.now))
    }

    /// Continues emulated links that were taken away. Frames for queues that do not run any more are dropped; returns how many.
    pub fn go_on(&mut self, held: Vec<HeldLine>) -> u64 {
        let (now, mut lost) = (cycles_after(self.now), 0);
        for line in held {
            let (port, frames) = (line.port, line.frames.len());
            if self.egress.go_on(line, now).is_none() && self.port_table.port(port).is_some() {
                self.counters(port).drop_frames(DropReason::ReceiverAbsent, frames as u32);
                lost += frames as u64;
            }
        }
        lost
    }

    /// Recalls all chains in flight of all transmit queues and drops their frames; replies for each of these queues once its
    /// chains are completed.
    pub fn recall_all(&mut self, reply: &mpsc::Sender<()>) {
        let busy = self.sources.iter().filter(|(_, source)| source.feed.in_flight() > 0);
        let queues: Vec<_> = busy
            .filter_map(|(_, source)| {
                let key = source.key;
                source.feed.ring().map(|ring| (key, ring.split(), ring.memory().clone()))
            })
            .collect();
        for (key, split, memory) in queues {
            let reply = reply.clone();
            self.call_all_back(key, move |state| WhenBack::Move(split, memory, reply, state));
        }
    }

    /// Interrupts all drivers once: one that another process has not sent may be missing.
    pub fn interrupt_drivers(&mut self) {
        let sources = self.sources.iter().map(|(_, source)| (source.key.port, source.feed.ring()));
        let egress = self.egress.iter().map(|(_, queue)| (queue.key.port, queue.ring()));
        let interrupted = sources.chain(egress).filter_map(|(port, ring)| Some((port, ring?.interrupt())));
        let faults: Vec<_> = interrupted.filter_map(|(port, result)| Some((port, result.err()?))).collect();
        faults.into_iter().for_each(|(port, fault)| self.fault(port, fault));
    }

    /// Continues all virtqueues at the used indices in memory: another process has served them meanwhile.
    pub fn resume_rings(&mut self) {
        let mut slots = Vec::new();
        for (slot, source) in self.sources.iter() {
            if let Some(ring) = source.feed.ring() {
                ring.resume();
                slots.push((slot, source.state));
                source.backpressured = None;
            }
        }
        for (slot, _) in slots.into_iter().filter(|(_, state)| *state == PollState::Asleep) {
            self.sources.set_state(slot, PollState::Awake);
        }
        self.egress.iter().filter_map(|(_, queue)| queue.ring()).for_each(Ring::resume);
    }
}
