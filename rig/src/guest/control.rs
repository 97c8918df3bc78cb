//! The control queue, where the front end leaves it to the back end (virtio 1.4, section 5.1.6.5).

use std::time::{Duration, Instant};

use crate::memory::{GuestMemory, LOG_PAGE};
use crate::ring::{DriverRing, Iovec, RingOptions};

use super::{GuestError, Queue, RingStep, ToyGuest};
use crate::frontend::features;

/// Entries of a control queue.
const SIZE: u16 = 16;
/// Longest command.
const LONGEST: u64 = 256;

/// See the module.
#[derive(Debug)]
pub struct ControlQueue {
    queue: Queue,
    memory: GuestMemory,
    /// Where commands are written; the answer follows.
    room: u64,
}

impl ToyGuest {
    /// A control queue, announced as ring `index` and enabled.
    ///
    /// # Errors
    /// [`GuestError::Memory`] without room for it; [`GuestError::Frontend`] when the back end refuses.
    pub fn control_queue(&mut self, index: usize) -> Result<ControlQueue, GuestError> {
        let event_idx = self.features & features::EVENT_IDX != 0;
        let ring = DriverRing::new(&self.memory, RingOptions { size: SIZE, event_idx, indirect: 0 })?;
        let mut queue = Queue::new(ring, index, self.plan.kick, self.plan.call.unwrap_or(self.plan.habit.call))?;
        for step in [RingStep::Call, RingStep::Size, RingStep::Base, RingStep::Addresses, RingStep::Kick, RingStep::Enable] {
            self.queue_step(&mut queue, step)?;
        }
        // On pages of its own, so that a dirty log tells answers from used elements.
        let room = self.memory.allocate(LONGEST + 1, LOG_PAGE)?;
        Ok(ControlQueue { queue, memory: self.memory.clone(), room })
    }
}

impl ControlQueue {
    /// Gives a command, its class and number first, in one readable buffer segment or `split` in two; returns the answer.
    ///
    /// # Errors
    /// [`GuestError::TimedOut`] without an answer, [`GuestError::BadReceive`] for one that is not a byte.
    pub fn command(&mut self, command: &[u8], split: Option<u32>, timeout: Duration) -> Result<u8, GuestError> {
        self.memory.write(self.room, command)?;
        let length = command.len() as u32;
        let at = split.unwrap_or(length).min(length);
        let answer = self.room + LONGEST;
        self.memory.write(answer, &[0xff])?;
        let mut iovecs = vec![Iovec::readable(self.room, at)];
        if at < length {
            iovecs.push(Iovec::readable(self.room + u64::from(at), length - at));
        }
        iovecs.push(Iovec::writable(answer, 1));
        self.queue.ring.add(&iovecs)?;
        self.queue.publish();
        let used = self.wait(timeout)?;
        if used != 1 {
            return Err(GuestError::BadReceive(format!("an answer of {used} bytes to a command")));
        }
        Ok(self.memory.bytes(answer, 1)?[0])
    }

    /// Waits for the command that was given last; returns the bytes that the back end says it wrote.
    fn wait(&mut self, timeout: Duration) -> Result<u32, GuestError> {
        let begun = Instant::now();
        loop {
            if let Some(used) = self.queue.ring.reclaim()? {
                return Ok(used.length);
            }
            if begun.elapsed() > timeout {
                return Err(GuestError::TimedOut { what: "the answer to a command", waited: timeout });
            }
            std::thread::yield_now();
        }
    }
}
