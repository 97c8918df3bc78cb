//! The rings between a guest and the switch: split virtqueues (virtio 1.4, section 2.7), device side.
//!
//! - [`shared`]: raw loads and stores of what the driver sees.
//! - [`ahead`]: the first descriptors of the next chains, read in one go.
//! - [`chain`]: a descriptor chain becomes checked **pieces** of our address space.
//! - [`Ring`]: positions on both sides, publishing, and the calls and kicks that go with them.
//! - [`TransmitQueue`]: the guest fills, we read (its transmit queue): parcels come out.
//! - [`ReceiveQueue`]: we fill, the guest reads (its receive queue): parcels go in.
//! - [`Control`]: commands and answers (its control queue), off the workers.
//! - [`express`]: frames of the most frequent kind, straight from the one to the other.
//!
//! A ring belongs to one thread, a worker unless it is a control ring, which alone touches it.

mod ahead;
pub mod chain;
mod control;
pub mod express;
mod gate;
mod notify;
#[cfg(test)]
mod proofs;
mod receive;
mod rooms;
pub mod shared;
mod transmit;

use std::sync::Arc;

pub use chain::{Access, ChainFault};
pub use control::{Answer, Control};
pub use gate::Gate;
pub use notify::{Call, Called, NotNotifier, Notifier};
pub use receive::{BURDEN, Placed, ReceiveQueue, Refusal};
pub use shared::{Areas, SplitRing, full_fence};
pub use transmit::{Taken, TransmitQueue};

use crate::memory::{Hint, MemoryMap};
use ahead::Ahead;

/// A breach that makes the ring itself unusable; its port is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The available index moved by more than the ring holds.
    #[error("the available index jumped by more than the ring size")]
    IndexJump,
    /// A call descriptor that the front end made to block.
    #[error("a call descriptor that blocks")]
    CallBlocks,
    /// A head that is no descriptor.
    #[error("a descriptor head outside the ring")]
    HeadOutside,
    /// More chains made available than the ring holds, while none of them could go back.
    #[error("more chains than the ring holds were made available at once")]
    TooManyOut,
}

/// What was agreed about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// VIRTIO_F_EVENT_IDX.
    pub event_index: bool,
    /// VIRTIO_F_INDIRECT_DESC.
    pub indirect: bool,
    /// VIRTIO_F_IN_ORDER.
    pub in_order: bool,
    /// Bytes of the virtio-net header: 12, or 10 for a legacy guest without MRG_RXBUF.
    pub header_length: u8,
}

/// Device side of one split virtqueue.
#[derive(Debug)]
pub struct Ring {
    split: SplitRing,
    memory: Arc<MemoryMap>,
    hint: Hint,
    options: RingOptions,
    /// Position of the next available entry to take.
    next_available: u16,
    /// The driver's index as last seen.
    seen_available: u16,
    /// Entries from which on an index has jumped: one more than the ring holds, and none once the ring broke a rule.
    jump: u16,
    /// The rule that it broke.
    broken: Option<RingFault>,
    /// Position of the next used element to write.
    next_used: u16,
    /// Used index that the driver was last shown.
    published_used: u16,
    /// Used index up to which calls were considered.
    considered_used: u16,
    ahead: Ahead,
    /// The last head completed by [`Self::complete_unwritten`].
    last_unwritten: Option<u16>,
    call: Option<Call>,
    /// A call is to be made once the port's gate opens.
    kept: bool,
    /// Whether we last asked the driver for kicks.
    armed: bool,
    /// Calls made since they were last asked for.
    calls: u32,
}

impl Ring {
    /// A ring that continues at available position `base`, and at the used position that memory holds: what the driver
    /// made available before `base` was completed by whoever served the ring before, who may have left it saying that no kick is needed.
    pub fn new(split: SplitRing, memory: Arc<MemoryMap>, options: RingOptions, base: u16) -> Self {
        let used = split.used_index();
        let jump = split.size() + 1;
        split.set_used_flags(0);
        Self {
            split,
            memory,
            hint: Hint::default(),
            options,
            next_available: base,
            seen_available: base,
            jump,
            broken: None,
            next_used: used,
            published_used: used,
            considered_used: used,
            ahead: Ahead::new(base),
            last_unwritten: None,
            call: None,
            kept: false,
            armed: true,
            calls: 0,
        }
    }

    /// Sets or clears the way to interrupt the driver (SET_VRING_CALL).
    pub fn set_call(&mut self, call: Option<Call>) {
        self.call = call;
    }

    /// Moves the ring to a new memory map, in which its areas lie at `split`.
    pub fn set_memory(&mut self, split: SplitRing, memory: Arc<MemoryMap>) {
        self.split = split;
        self.memory = memory;
        self.hint = Hint::default();
        self.forget_ahead();
    }

    /// The memory that its buffers lie in.
    pub fn memory(&self) -> &Arc<MemoryMap> {
        &self.memory
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.split.size()
    }

    /// What was agreed.
    #[inline]
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// Position from which another device would continue (GET_VRING_BASE).
    pub fn base(&self) -> u16 {
        self.next_available
    }

    /// Calls made since this was last asked.
    pub fn take_calls(&mut self) -> u32 {
        std::mem::take(&mut self.calls)
    }

    /// Entries seen and not taken.
    #[inline]
    fn untaken(&self) -> u16 {
        self.seen_available.wrapping_sub(self.next_available)
    }

    /// Looks at the driver's index; returns the entries not taken.
    #[inline]
    fn look(&mut self) -> Result<u16, RingFault> {
        let available = self.split.available_index();
        let left = available.wrapping_sub(self.next_available);
        if left >= self.jump {
            return Err(self.break_off(RingFault::IndexJump));
        }
        self.seen_available = available;
        Ok(left)
    }

    /// The ring broke a rule: nothing more is taken from it, whatever it holds by then, and every look says why. Returns its first fault.
    #[cold]
    fn break_off(&mut self, fault: RingFault) -> RingFault {
        self.jump = 0;
        self.seen_available = self.next_available;
        self.forget_ahead();
        *self.broken.get_or_insert(fault)
    }

    /// The driver's index as last seen.
    pub fn seen(&self) -> u16 {
        self.seen_available
    }

    /// True if entries were seen and not taken.
    pub fn has_untaken(&self) -> bool {
        self.untaken() > 0
    }

    /// True if the driver has ever added an entry, as far as indices tell.
    pub fn was_filled(&self) -> bool {
        self.next_used != 0 || self.split.available_index() != 0
    }

    /// True if the driver added entries since we last looked.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.split.available_index() != self.seen_available
    }

    /// Gives the chain of `head` back with `length` bytes written; the driver sees it at the next [`Self::publish`].
    #[inline]
    fn complete(&mut self, head: u16, length: u32) {
        self.split.put_used(self.next_used, head, length);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// As [`Self::complete`] for a ring whose driver needs no lengths: with IN_ORDER one element, written when published, stands for all
    /// that are completed together (virtio 1.4, section 2.7.9).
    #[inline]
    fn complete_unwritten(&mut self, head: u16) {
        if self.options.in_order {
            self.last_unwritten = Some(head);
            self.next_used = self.next_used.wrapping_add(1);
        } else {
            self.complete(head, 0);
        }
    }

    /// Shows the driver what was completed since the last time. Whether it wants to be called is asked by [`Self::call_if_wanted`], after a
    /// [`full_fence`]: one fence serves all rings of a pass, and its cost is that of waiting for every store before it.
    #[inline]
    pub fn publish(&mut self) {
        if self.next_used != self.published_used {
            if let Some(head) = self.last_unwritten.take() {
                self.split.put_used(self.published_used, head, 0);
            }
            self.published_used = self.next_used;
            self.split.publish_used(self.next_used);
        }
    }

    /// True if the driver was not shown yet all that was completed.
    pub fn has_unshown(&self) -> bool {
        self.next_used != self.published_used
    }

    /// Entries that were shown to the driver since calls were last considered.
    pub fn unconsidered(&self) -> u16 {
        self.published_used.wrapping_sub(self.considered_used)
    }

    /// Used index that the driver was shown.
    pub fn shown(&self) -> u16 {
        self.published_used
    }

    /// True if the driver has looked at the entries before used index `shown` and asked to hear of later ones only: no call is owed for
    /// them then. Only EVENT_IDX tells.
    pub fn has_looked(&mut self, shown: u16) -> bool {
        let looked = self.options.event_index && !self.wants_call(self.considered_used, shown);
        if looked {
            self.considered_used = shown;
        }
        looked
    }

    /// True if the driver can be called at all.
    pub fn can_call(&self) -> bool {
        self.call.is_some()
    }

    /// Calls the driver if it asked to hear of what was published since this was last called (virtio 1.4, section 2.7.7.2).
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    #[inline]
    pub fn call_if_wanted(&mut self) -> Result<(), RingFault> {
        let (old, new) = (self.considered_used, self.published_used);
        self.considered_used = new;
        if self.call.is_some() && new != old && self.wants_call(old, new) { self.call_driver() } else { Ok(()) }
    }

    #[inline]
    fn wants_call(&self, old: u16, new: u16) -> bool {
        if self.options.event_index { passes(self.split.used_event(), old, new) } else { self.split.available_flags() & 1 == 0 }
    }

    /// Calls the driver once more if it asked to hear of something that it was shown already.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn call_again(&mut self) -> Result<(), RingFault> {
        if self.wants_call_again() { self.call_driver() } else { Ok(()) }
    }

    /// True if the driver asks to hear of something that it was shown already. Only EVENT_IDX tells that it has not looked since; without
    /// it this is true of every driver that takes calls.
    fn wants_call_again(&self) -> bool {
        let shown = self.published_used;
        self.call.is_some() && self.wants_call(shown.wrapping_sub(self.split.size()), shown)
    }

    /// True if the driver asks to hear of something that it was shown already, and has not looked since, as far as it tells.
    pub fn awaits_call(&self) -> bool {
        self.options.event_index && self.wants_call_again()
    }

    /// True while a call is kept.
    pub fn keeps_call(&self) -> bool {
        self.kept
    }

    /// True if the driver may lose an interrupt that comes just as it goes to sleep, as on User Mode Linux (7.2), and has been sent one.
    pub fn loses_interrupts(&self) -> bool {
        !self.kept && self.call.as_ref().is_some_and(Call::is_socket)
    }

    /// Shows the driver everything, and calls it if it asked for that: for a ring that ends, so that a fault is of no interest any more.
    pub fn publish_last(&mut self) {
        self.publish();
        full_fence();
        let _ = self.call_if_wanted();
    }

    #[cold]
    fn call_driver(&mut self) -> Result<(), RingFault> {
        match self.call.as_ref().map_or(Called::Done, Call::call) {
            Called::Done => {
                self.calls += 1;
                Ok(())
            }
            Called::Kept => {
                self.kept = true;
                Ok(())
            }
            Called::Blocked => {
                self.call = None;
                Err(RingFault::CallBlocks)
            }
        }
    }

    /// Makes the call that was kept, if there is one and the port's gate is open; true if it is kept still.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn call_kept(&mut self) -> Result<bool, RingFault> {
        if std::mem::take(&mut self.kept) {
            self.call_driver()?;
        }
        Ok(self.kept)
    }

    /// Changes the way to interrupt the driver while the ring runs, and does so once, since what the old one told may be lost.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn change_call(&mut self, call: Option<Call>) -> Result<(), RingFault> {
        self.call = call;
        if self.call.is_some() { self.call_driver() } else { Ok(()) }
    }

    /// Asks the driver for a kick when it adds an entry to those that we have seen. Returns true if it did so meanwhile, in which
    /// case there may never be a kick (virtio 1.4, section 2.7.10).
    pub fn arm(&mut self) -> bool {
        if self.options.event_index {
            self.split.set_available_event(self.seen_available);
        } else if !self.armed {
            self.split.set_used_flags(0);
        }
        self.armed = true;
        full_fence();
        self.has_news()
    }

    /// Tells the driver that kicks are not needed. Under EVENT_IDX the old wish simply grows stale.
    #[inline]
    pub fn disarm(&mut self) {
        if self.armed && !self.options.event_index {
            self.split.set_used_flags(1);
        }
        self.armed = false;
    }
}

/// True if position `event` is one of those from `old` on and before `new` (virtio 1.4, section 2.7.7.2).
#[inline]
fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
