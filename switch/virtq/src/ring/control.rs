//! The control queue: commands of the driver and the device's answers (virtio 1.4, section 5.1.6.5).
//!
//! A command's descriptor chain holds a class, a command and its data for the device to read, and one last byte for it to write. It
//! is slow, rare and served off the workers.

#![expect(clippy::indexing_slicing, reason = "a command without a byte for the answer is refused before")]

use std::sync::Arc;

use super::chain::{Access, Walk};
use super::{Call, Ring, RingFault, RingLog, SplitRing, StoppedRing, full_fence};
use crate::memory::{Iovec, MemoryMap};
use crate::time::Cycles;

/// Longest command that is read; longer ones are answered with an error.
const LONGEST: usize = 64;
/// Maximum of buffer segments of a command.
const IOVECS: usize = 16;

/// Answer to a driver (virtio 1.4, section 5.1.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// VIRTIO_NET_OK.
    Done = 0,
    /// VIRTIO_NET_ERR.
    Refused = 1,
}

/// See the module.
#[derive(Debug)]
pub struct Control {
    ring: Ring,
    iovecs: Vec<Iovec>,
}

impl Control {
    /// A control queue on `ring`.
    pub fn new(ring: Ring) -> Self {
        Self { ring, iovecs: Vec::with_capacity(IOVECS) }
    }

    /// Sets or clears the way to interrupt the driver.
    pub fn set_call(&mut self, call: Option<Call>) {
        self.ring.set_call(call);
    }

    /// Ends the queue.
    pub fn stop(&mut self) -> StoppedRing {
        self.ring.stop()
    }

    /// The way to interrupt the driver.
    pub fn call(&self) -> Option<&Call> {
        self.ring.call()
    }

    /// Continues at the used index in memory, see [`Ring::resume`].
    pub fn resume(&mut self) {
        self.ring.resume();
    }

    /// Sends the interrupt that was kept back, see [`Ring::call_kept`]; true if it is still kept back.
    ///
    /// # Errors
    /// The errors of [`Ring::call_kept`].
    pub fn call_kept(&mut self) -> Result<bool, RingFault> {
        self.ring.call_kept()
    }

    /// Moves the ring to a new memory map, in which its areas lie at `split`.
    pub fn set_memory(&mut self, split: SplitRing, memory: Arc<MemoryMap>) {
        self.ring.set_memory(split, memory);
    }

    /// Has writes marked in `log` from now on, or in none.
    pub fn set_log(&mut self, log: Option<RingLog>) {
        self.ring.set_log(log);
    }

    /// Position from which another device would continue.
    pub fn base(&self) -> u16 {
        self.ring.base()
    }

    /// Answers the pending commands with the result of `obey` for each, as long as it `may_go_on`, and requests a kick for the
    /// next. True if there are more by then.
    ///
    /// # Errors
    /// The driver broke a rule of the ring itself.
    pub fn serve(&mut self, may_go_on: impl Fn() -> bool, mut obey: impl FnMut(&[u8]) -> Answer) -> Result<bool, RingFault> {
        self.ring.stop_waiting();
        for _ in 0..self.ring.look()? {
            if !may_go_on() {
                break;
            }
            let look = self.ring.begin_look();
            let head = self.ring.split.available_entry(self.ring.next_available);
            if head >= self.ring.size() {
                return Err(RingFault::HeadOutside);
            }
            let command = self.read(head);
            if !look.is_clean() {
                self.ring.forget_torn(look)?;
                break;
            }
            self.ring.next_available = self.ring.next_available.wrapping_add(1);
            let written = command.map_or(0, |(bytes, length)| self.answer(&obey(&bytes[..length])));
            self.ring.complete(head, written);
        }
        // Before the driver can go on: so the request for a kick is in time even for a driver without fences.
        let more = self.ring.arm() || self.ring.has_untaken();
        self.ring.publish();
        full_fence();
        self.ring.call_if_wanted()?;
        Ok(more)
    }

    /// When a queue that waits for memory is to be served again, in cycles ([`Ring::waits_until`]).
    pub fn waits_until(&self) -> Option<Cycles> {
        self.ring.waits_until()
    }

    /// Reads the command at `head` without its last byte, and its length; `None` if its chain breaks a rule.
    fn read(&mut self, head: u16) -> Option<([u8; LONGEST], usize)> {
        self.iovecs.clear();
        let Ring { split, memory, hint, options, .. } = &mut self.ring;
        let first = split.descriptor(head);
        let mut walk =
            Walk { ring: split, memory, hint, access: Access::Both, indirect: options.indirect, limit: LONGEST as u32, walked: 0 };
        let Ok(total @ 3..) = walk.resolve(first, &mut self.iovecs) else { return None };
        let mut command = [0; LONGEST];
        let mut length = 0;
        for iovec in &self.iovecs {
            iovec.copy_in(&mut command[length..]);
            length += iovec.length() as usize;
        }
        Some((command, total as usize - 1))
    }

    /// Writes `answer` to the command that was read last; returns the bytes written.
    fn answer(&mut self, answer: &Answer) -> u32 {
        let last = self.iovecs[self.iovecs.len() - 1];
        // A driver that did not make the byte writable spoils only its own memory.
        let Some(place) = self.ring.memory.writable(last.skip(last.length() - 1)) else { return 0 };
        place.write(&[*answer as u8]);
        self.ring.log_written(place);
        1
    }
}
