//! The virtqueues between a guest and the switch: split virtqueues (virtio 1.4, section 2.7), device side.
//!
//! - [`shared`]: raw loads and stores of the memory that the driver shares: descriptor table, available ring, used ring.
//! - [`ahead`]: the first descriptors of the next chains, read in one go.
//! - [`chain`]: resolves a descriptor chain to checked **buffer segments** (iovec) of the switch's address space.
//! - [`Ring`]: positions in both rings, publishing, and the interrupts and kicks that go with them.
//! - [`TransmitQueue`]: the guest's transmit queue (TX): packets come out.
//! - [`ReceiveQueue`]: the guest's receive queue (RX): packets go in.
//! - [`RingLog`]: marks written pages in the front end's dirty log, during a live migration.
//! - [`InflightQueue`]: the record of chains in flight, for the process after a crash.
//! - [`Control`]: commands and answers of the control queue, off the workers.
//! - [`waiting`]: a virtqueue with memory that is still to be filled by the guest's monitor.
//! - [`fast_path`]: the fast path, frames of the most frequent kind, straight from a transmit queue to a receive queue.
//!
//! A ring belongs to one thread, a worker unless it is a control queue, and only that thread touches it.

mod ahead;
mod breaker;
pub mod chain;
mod control;
mod dirty;
pub mod fast_path;
mod inflight;
mod notify;
#[cfg(test)]
mod proofs;
mod receive;
mod rooms;
pub mod shared;
mod transmit;
mod uml;
mod view;
mod wait_state;
mod waiting;

use std::sync::Arc;

pub use breaker::InterruptBreaker;
pub use chain::{Access, ChainFault};
pub use control::{Answer, Control};
pub use dirty::RingLog;
pub use inflight::InflightQueue;
pub use notify::{Call, Called, NotNotifier, Notifier};
pub use receive::{BURDEN, PlaceOutcome, ReceiveQueue, Refusal};
pub use shared::{Areas, SplitRing, full_fence};
pub use transmit::{OpenOutcome, TransmitQueue};
pub use view::RingView;

use crate::memory::holes::{Look, Owner};
use crate::memory::{Hint, MemoryMap};
use crate::notification::{Missed, NotificationState};
use ahead::Ahead;
use inflight::{Resubmitted, Tracker};
use wait_state::{Available, Waiting};

/// A violation that makes the ring itself unusable; its port is quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The available index moved by more than the ring holds.
    #[error("the available index jumped by more than the ring size")]
    IndexJump,
    /// The front end made an interrupt eventfd block.
    #[error("a call descriptor that blocks")]
    CallBlocks,
    /// A descriptor head outside of the descriptor table.
    #[error("a descriptor head outside the ring")]
    HeadOutside,
    /// The ring, a descriptor chain or a buffer lies in a hole of the guest's memory that was still to be filled, and it was not.
    #[error(
        "guest memory under a ring or buffer was still to be filled (a lazily restored guest, postcopy), and its monitor did not in time: \
         let the monitor fill all memory before the guest runs, or in the background"
    )]
    NeverFilled,
    /// More descriptor chains made available than the ring holds, while none of them could be completed.
    #[error("more chains than the ring holds were made available at once")]
    TooManyInFlight,
}

/// Negotiated ring features.
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

/// A virtqueue that has ended, as far as its next start needs it.
#[derive(Debug, Default)]
pub struct StoppedRing {
    /// Position from which another device would continue (GET_VRING_BASE).
    pub base: u16,
    /// The interrupt of the driver, through an eventfd or socket. GET_VRING_BASE does not end it: no front end has to send SET_VRING_CALL
    /// again.
    pub call: Option<Call>,
}

/// Device side of one split virtqueue.
#[derive(Debug)]
pub struct Ring {
    split: SplitRing,
    memory: Arc<MemoryMap>,
    /// Owner of this memory.
    owner: Owner,
    hint: Hint,
    options: RingOptions,
    /// Position of the next available entry to take.
    next_available: u16,
    /// The driver's available index as last read.
    seen_available: u16,
    /// Entries from which on an index has jumped: one more than the ring holds; zero once the ring is broken, so that every index
    /// has jumped.
    jump: u16,
    /// The first violation.
    broken: Option<RingFault>,
    /// Position of the next used element to write.
    next_used: u16,
    /// Used index that was published last.
    published_used: u16,
    /// Used index up to which interrupts were considered.
    considered_used: u16,
    /// Publications in the used ring, and times that chains which were read ahead had to be forgotten.
    epoch: u64,
    ahead: Ahead,
    /// The last head completed by [`Self::complete_unwritten`].
    last_unwritten: Option<u16>,
    call: Option<Call>,
    /// Where writes are marked during a live migration.
    log: Option<Box<RingLog>>,
    /// Where chains in flight are recorded, if the front end keeps that record.
    inflight: Option<Box<Tracker>>,
    /// Chains in flight of an earlier process, until all of them are taken.
    resubmitted: Option<Box<Resubmitted>>,
    /// An interrupt is to be sent once the port's interrupt circuit breaker allows it.
    kept: bool,
    /// Whether the driver was last asked for kicks.
    armed: bool,
    /// Interrupts sent since they were last asked for.
    calls: u32,
    /// Whether it waits for memory that is still to be filled.
    waiting: Waiting,
}

impl Ring {
    /// A ring that continues at available position `base`, and at the used index in memory. The device that served the ring before
    /// has completed the entries before `base`, and may have left it with kicks suppressed.
    pub fn new(split: SplitRing, memory: Arc<MemoryMap>, options: RingOptions, base: u16) -> Self {
        let ((used, flags), is_hole) = memory.settled(|| (split.used_index(), split.used_flags()));
        let jump = split.size() + 1;
        // Nothing is written where it stands already: the ring may lie in a hole.
        if flags != 0 {
            split.set_used_flags(0);
        }
        Self {
            split,
            owner: memory.owner(),
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
            epoch: 0,
            ahead: Ahead::new(base),
            last_unwritten: None,
            call: None,
            log: None,
            inflight: None,
            resubmitted: None,
            kept: false,
            armed: true,
            calls: 0,
            waiting: Waiting::new(is_hole),
        }
    }

    /// Sets or clears the way to interrupt the driver (SET_VRING_CALL).
    pub fn set_call(&mut self, call: Option<Call>) {
        self.call = call;
    }

    /// Moves the ring to a new memory map, in which its areas lie at `split`.
    pub fn set_memory(&mut self, split: SplitRing, memory: Arc<MemoryMap>) {
        self.split = split;
        (self.owner, self.memory) = (memory.owner(), memory);
        self.hint = Hint::default();
        self.forget_ahead();
        self.waiting.move_memory();
    }

    /// Continues at the used index in memory, as [`Self::new`] does: another process has served the ring meanwhile.
    pub fn resume(&mut self) {
        let used = self.split.used_index();
        (self.next_available, self.seen_available) = (used, used);
        (self.next_used, self.published_used, self.considered_used) = (used, used, used);
        self.last_unwritten = None;
        self.ahead = Ahead::new(used);
        self.epoch += 1;
        self.split.set_used_flags(0);
        self.armed = true;
        self.track_again();
        if self.log.is_some() {
            self.log_requests();
        }
    }

    /// Descriptor table, available ring and used ring of the virtqueue.
    pub fn split(&self) -> SplitRing {
        self.split
    }

    /// The way to interrupt the driver.
    pub fn call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    /// Ends the virtqueue: publishes its last used elements, and returns base and interrupt for the next start.
    pub fn stop(&mut self) -> StoppedRing {
        self.publish_last();
        StoppedRing { base: self.base(), call: self.call.take() }
    }

    /// An operation on its memory begins.
    #[inline(always)]
    pub(super) fn begin_look(&self) -> Look {
        Look::begin(self.owner)
    }

    /// The memory with its buffers.
    pub fn memory(&self) -> &Arc<MemoryMap> {
        &self.memory
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.split.size()
    }

    /// Negotiated ring features.
    #[inline]
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// Position from which another device would continue (GET_VRING_BASE).
    pub fn base(&self) -> u16 {
        self.next_available
    }

    /// Interrupts sent since this was last asked.
    pub fn take_calls(&mut self) -> u32 {
        std::mem::take(&mut self.calls)
    }

    /// Entries seen and not taken.
    #[inline]
    fn untaken(&self) -> u16 {
        self.seen_available.wrapping_sub(self.next_available)
    }

    /// Reads the driver's available index; returns the entries not taken.
    #[inline]
    fn look(&mut self) -> Result<u16, RingFault> {
        let Available::Index(available) = self.read_available() else { return self.look_at_hole().map(|()| 0) };
        let left = available.wrapping_sub(self.next_available);
        if left >= self.jump {
            return self.jumped(left).map(|()| 0);
        }
        if !self.waiting.may_complete && !self.prepare_used(left)? {
            return Ok(0);
        }
        self.seen_available = available;
        Ok(left)
    }

    /// Breaks the ring off: no more entries are taken from it, and every look returns its first fault.
    #[cold]
    fn break_off(&mut self, fault: RingFault) -> RingFault {
        self.jump = 0;
        self.seen_available = self.next_available;
        self.forget_ahead();
        *self.broken.get_or_insert(fault)
    }

    /// The driver's available index as last read.
    pub fn seen(&self) -> u16 {
        self.seen_available
    }

    /// True if entries were seen and not taken.
    pub fn has_untaken(&self) -> bool {
        self.untaken() > 0
    }

    /// True if the driver has ever added an entry, as far as indices tell.
    pub fn was_filled(&self) -> bool {
        self.next_used != 0 || matches!(self.read_available(), Available::Index(1..))
    }

    /// True if the driver added entries since the index was last read.
    #[inline]
    pub fn has_news(&self) -> bool {
        matches!(self.read_available(), Available::Index(available) if available != self.seen_available)
    }

    /// Completes the descriptor chain of `head` with `length` bytes written; the driver sees it in the used ring at the next
    /// [`Self::publish`].
    #[inline]
    fn complete(&mut self, head: u16, length: u32) {
        self.split.put_used(self.next_used, head, length);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Like [`Self::complete`], for a ring whose driver needs no lengths: with IN_ORDER one used element, written when published,
    /// stands for all that are completed together (virtio 1.4, section 2.7.9).
    #[inline]
    fn complete_unwritten(&mut self, head: u16) {
        if self.options.in_order {
            self.last_unwritten = Some(head);
            self.next_used = self.next_used.wrapping_add(1);
        } else {
            self.complete(head, 0);
        }
    }

    /// Publishes completed chains in the used ring. Whether the driver requests an interrupt is read by [`Self::call_if_wanted`],
    /// after a [`full_fence`]: one fence serves all rings of a poll iteration, because it costs a wait for every store before it.
    #[inline]
    pub fn publish(&mut self) {
        if self.next_used != self.published_used {
            if let Some(head) = self.last_unwritten.take() {
                self.split.put_used(self.published_used, head, 0);
            }
            self.waiting.end();
            self.epoch += 1;
            let from = std::mem::replace(&mut self.published_used, self.next_used);
            if self.inflight.is_some() {
                self.publish_tracked(from);
            } else {
                self.split.publish_used(self.next_used);
            }
            if self.log.is_some() {
                self.log_published(from);
            }
        }
    }

    /// A mark that stays the same while the chains that were read and not taken do: none was completed, and the memory map is the same.
    pub(super) fn mark(&self) -> (u64, u16) {
        (self.epoch, self.next_used)
    }

    /// True if completed chains are not published yet.
    pub fn has_unshown(&self) -> bool {
        self.next_used != self.published_used
    }

    /// Entries published since interrupts were last considered.
    pub fn unconsidered(&self) -> u16 {
        self.published_used.wrapping_sub(self.considered_used)
    }

    /// Published used index.
    pub fn shown(&self) -> u16 {
        self.published_used
    }

    /// Interrupt coalescing: drops the interrupt for the entries before used index `shown` if the driver has seen them and requested
    /// an interrupt for later ones only. True if it was dropped. Only EVENT_IDX tells.
    pub fn drop_seen_interrupt(&mut self, shown: u16) -> bool {
        let looked = self.options.event_index && !self.wants_call(self.considered_used, shown);
        if looked {
            self.considered_used = shown;
        }
        looked
    }

    /// True if the driver can be interrupted at all.
    pub fn can_call(&self) -> bool {
        self.call.is_some()
    }

    /// Drops the interrupt for the entries published since interrupts were last considered, unless the driver requests it. True if it was
    /// dropped.
    pub fn drop_unrequested_interrupt(&mut self) -> bool {
        let is_requested = self.wants_call(self.considered_used, self.published_used);
        if !is_requested {
            self.considered_used = self.published_used;
        }
        !is_requested
    }

    /// Interrupts the driver if it requested that for entries that were published since this was last called (virtio 1.4, section
    /// 2.7.7.2).
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

    /// Interrupts the driver once more if it requests an interrupt for entries that were published already.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn call_again(&mut self) -> Result<(), RingFault> {
        if self.wants_call_again() { self.call_driver() } else { Ok(()) }
    }

    /// True if the driver requests an interrupt for entries that were published already. Only EVENT_IDX tells that it has not seen
    /// them; without it this is true of every driver that takes interrupts.
    fn wants_call_again(&self) -> bool {
        let shown = self.published_used;
        self.call.is_some() && self.wants_call(shown.wrapping_sub(self.split.size()), shown)
    }

    /// Lost-notification check in notification state `state`, once its timer expired: sends the interrupt that was kept back, or repeats one
    /// that seems lost. Returns the notification that seemed lost in two checks: a kick only if the ring is `asleep`, waiting for one.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn look_after(&mut self, state: &mut NotificationState, asleep: bool) -> Result<Option<Missed>, RingFault> {
        let missed = if self.call_kept()? { None } else { state.look(|| self.missed(asleep)) };
        if missed == Some(Missed::Call) {
            self.call_again()?;
        }
        if self.kept {
            // The check is to be repeated.
            state.happened();
        }
        Ok(missed)
    }

    /// A notification that seems lost: a kick, or an interrupt for published entries that the driver has not seen, as far as EVENT_IDX
    /// tells.
    fn missed(&self, asleep: bool) -> Option<Missed> {
        if asleep && self.has_news() {
            return Some(Missed::Kick);
        }
        (self.options.event_index && self.wants_call_again()).then_some(Missed::Call)
    }

    /// Publishes everything, and interrupts the driver if it requested that: for a ring that ends, so that a fault does not matter
    /// any more.
    pub fn publish_last(&mut self) {
        self.publish();
        full_fence();
        let _ = self.call_if_wanted();
    }

    /// Interrupts the driver, whether it requested that or not: an interrupt of another process may be missing.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn interrupt(&mut self) -> Result<(), RingFault> {
        if self.call.is_some() { self.call_driver() } else { Ok(()) }
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

    /// Sends the interrupt that was kept back, if there is one and the port's interrupt circuit breaker allows it; true if it is
    /// still kept back.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn call_kept(&mut self) -> Result<bool, RingFault> {
        if std::mem::take(&mut self.kept) {
            self.call_driver()?;
        }
        Ok(self.kept)
    }

    /// Changes the way to interrupt the driver while the ring runs, and interrupts it once, because an interrupt through the old
    /// one may be lost.
    ///
    /// # Errors
    /// [`RingFault::CallBlocks`].
    pub fn change_call(&mut self, call: Option<Call>) -> Result<(), RingFault> {
        self.call = call;
        self.interrupt()
    }

    /// Requests a kick when the driver adds an entry to those that were seen. Returns true if it has added one meanwhile, because
    /// then there may never be a kick (virtio 1.4, section 2.7.10).
    pub fn arm(&mut self) -> bool {
        // In a hole it stands as zero already.
        let is_hole = self.waiting.is_used_hole();
        if self.options.event_index {
            if !is_hole || self.seen_available != 0 {
                self.split.set_available_event(self.seen_available);
            }
        } else if !self.armed && !is_hole {
            self.split.set_used_flags(0);
        }
        self.armed = true;
        if self.log.is_some() {
            self.log_requests();
        }
        full_fence();
        self.has_news()
    }

    /// Suppresses kicks. Under EVENT_IDX the old request simply grows stale.
    #[inline]
    pub fn disarm(&mut self) {
        if self.armed && !self.options.event_index && !self.waiting.is_used_hole() {
            self.split.set_used_flags(1);
            if self.log.is_some() {
                self.log_requests();
            }
        }
        self.armed = false;
    }
}

/// True if position `event` is one of those from `old` on and before `new` (virtio 1.4, section 2.7.7.2).
#[inline]
fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
