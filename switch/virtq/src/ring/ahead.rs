//! Reading ahead: the first descriptors of the next chains, read and resolved in one go.
//!
//! A chain's entry in the available ring, its descriptor and its buffer lie on three cache lines that the driver's CPU has just
//! written. If chains are read one after the other, each cache miss is waited for; if they are read in a batch, the misses overlap,
//! and the buffers can be prefetched. A descriptor is read only once: the copy is valid until the chain is taken. `WRITABLE` says
//! whether the buffers are written (receive queues) or read (transmit queues).

#![expect(unsafe_code, reason = "an address that was checked becomes a buffer segment again")]
#![expect(clippy::indexing_slicing, reason = "positions are taken modulo the array's length")]

use super::Ring;
use super::RingFault;
use super::shared::{Descriptor, INDIRECT, NEXT, SplitRing, WRITE};
use super::wait_state::ATTEMPTS;
use crate::copy;
use crate::memory::holes::Look;
use crate::memory::{Hint, HostAddress, Iovec, MemoryMap};

/// Chains that are read ahead at most; a power of two.
const DEPTH: usize = 32;

/// A descriptor chain with its first descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// Address of its buffer if the chain is a single buffer of the right direction in one region, else null.
    place: HostAddress,
    pub first: Descriptor,
    /// Below the ring size.
    pub head: u16,
}

impl Opened {
    /// The single buffer.
    #[inline]
    pub(super) fn single(&self) -> Option<Iovec> {
        // SAFETY: the map vouched for so many bytes there, and chains that were read ahead are forgotten before the ring releases
        // the map.
        (!self.place.get().is_null()).then(|| unsafe { Iovec::new(self.place.get(), self.first.length()) })
    }
}

impl Opened {
    /// Reads the chain of `head`; `None` if that is outside the ring.
    #[inline(always)]
    fn read<const WRITABLE: bool>(split: &SplitRing, head: u16, memory: &MemoryMap, hint: &mut Hint) -> Option<Self> {
        if head >= split.size() {
            return None;
        }
        let first = split.descriptor(head);
        let direction = if WRITABLE { WRITE } else { 0 };
        let mut place = HostAddress::NONE;
        if first.flags() & (NEXT | INDIRECT | WRITE) == direction
            && let Some((start, follow)) = if WRITABLE {
                memory.find(first.address(), hint)
            } else {
                memory.find_to_read(first.address(), hint).map(|(start, follow)| (start.cast_mut(), follow))
            }
            && u64::from(first.length()) <= follow
        {
            place = HostAddress::new(start);
        }
        Some(Self { place, first, head })
    }

    /// Prefetches the cache lines of the buffer that will be used first.
    #[inline(always)]
    fn fetch<const WRITABLE: bool>(&self) {
        for line in [0, 64] {
            let place = self.place.get().wrapping_add(line);
            if WRITABLE { copy::prefetch_to_write(place) } else { copy::prefetch(place) }
        }
    }
}

/// The chains from the ring's next one up to position `until`, each at its position modulo [`DEPTH`].
#[derive(Debug)]
pub(super) struct Ahead {
    chains: [Opened; DEPTH],
    until: u16,
}

impl Ahead {
    pub(super) fn new(position: u16) -> Self {
        let none = Opened { place: HostAddress::NONE, first: Descriptor::default(), head: 0 };
        Self { chains: [none; DEPTH], until: position }
    }
}

impl Ring {
    /// Forgets the chains that were read ahead: they may point into memory that is no longer the guest's.
    pub(super) fn forget_ahead(&mut self) {
        self.ahead.until = self.next_available;
        self.epoch += 1;
    }

    /// Reads ahead until `count` chains are known, or as many as the driver is known to have made available.
    ///
    /// # Errors
    /// [`RingFault::HeadOutside`].
    #[inline(always)]
    pub(super) fn read_ahead<const WRITABLE: bool>(&mut self, count: u16) -> Result<(), RingFault> {
        self.read_chains::<WRITABLE>(count).map_err(|fault| self.break_off(fault))
    }

    #[inline(never)]
    fn read_chains<const WRITABLE: bool>(&mut self, count: u16) -> Result<(), RingFault> {
        let look = self.begin_look();
        let result = self.read_chains_once::<WRITABLE>(count);
        if look.is_clean() { result } else { self.read_chains_again::<WRITABLE>(count, look) }
    }

    #[inline(always)]
    fn read_chains_once<const WRITABLE: bool>(&mut self, count: u16) -> Result<(), RingFault> {
        if self.resubmitted.is_some() {
            return self.read_resubmitted::<WRITABLE>(count);
        }
        self.read_chains_of::<WRITABLE>(count, SplitRing::available_entry)
    }

    /// The chains that were read since `look` may be zeros of holes.
    #[cold]
    fn read_chains_again<const WRITABLE: bool>(&mut self, count: u16, look: Look) -> Result<(), RingFault> {
        self.forget_torn(look)?;
        for _ in 0..ATTEMPTS {
            if self.waits_until().is_some() {
                break;
            }
            std::hint::spin_loop();
            let look = self.begin_look();
            let result = self.read_chains_once::<WRITABLE>(count);
            if look.is_clean() {
                return result;
            }
            self.forget_torn(look)?;
        }
        if self.waits_until().is_none() { self.wait_for_memory() } else { Ok(()) }
    }

    /// The chains that were read since `look` may be zeros of holes: their entries or descriptors, which the driver has written, are
    /// still to be filled.
    #[cold]
    pub(super) fn forget_torn(&mut self, look: Look) -> Result<(), RingFault> {
        let torn = look.settle();
        self.forget_ahead();
        if torn.met_hole {
            self.memory.note_filling();
            self.wait_for_memory()?;
        }
        Ok(())
    }

    /// Like [`Self::read_chains`], with the chains that an earlier process has left in flight.
    #[cold]
    fn read_resubmitted<const WRITABLE: bool>(&mut self, count: u16) -> Result<(), RingFault> {
        let resubmitted = self.resubmitted.take().filter(|resubmitted| !resubmitted.end_before(self.next_available));
        let head = |position| resubmitted.as_ref().and_then(|resubmitted| resubmitted.head(position));
        let result = self
            .read_chains_of::<WRITABLE>(count, |split, position| head(position).unwrap_or_else(|| split.available_entry(position)));
        self.resubmitted = resubmitted;
        result
    }

    #[inline(always)]
    fn read_chains_of<const WRITABLE: bool>(&mut self, count: u16, head: impl Fn(&SplitRing, u16) -> u16) -> Result<(), RingFault> {
        let count = count.min(self.untaken()).min(DEPTH as u16);
        let until = self.next_available.wrapping_add(count);
        let missing = until.wrapping_sub(self.ahead.until);
        // More chains may be known already than are requested.
        if missing == 0 || missing > DEPTH as u16 {
            return Ok(());
        }
        self.split.prefetch_used(self.next_used.wrapping_add(count - missing), missing);
        let Self { split, memory, hint, ahead, .. } = self;
        // Copies in registers, which need not be loaded again after every store.
        let (split, mut near) = (*split, *hint);
        for position in 0..missing {
            let position = ahead.until.wrapping_add(position);
            let opened =
                Opened::read::<WRITABLE>(&split, head(&split, position), memory, &mut near).ok_or(RingFault::HeadOutside)?;
            opened.fetch::<WRITABLE>();
            ahead.chains[usize::from(position) % DEPTH] = opened;
        }
        *hint = near;
        ahead.until = until;
        Ok(())
    }

    /// Chains that were read ahead.
    #[inline]
    pub(super) fn known(&self) -> u16 {
        self.ahead.until.wrapping_sub(self.next_available)
    }

    /// The chain `ahead` places after the next one, below [`Self::known`].
    #[inline(always)]
    pub(super) fn known_chain(&self, ahead: u16) -> &Opened {
        &self.ahead.chains[usize::from(self.next_available.wrapping_add(ahead)) % DEPTH]
    }

    /// Has the next chain read, if there is one.
    ///
    /// # Errors
    /// [`RingFault::HeadOutside`].
    #[inline(always)]
    pub(super) fn has_chain<const WRITABLE: bool>(&mut self) -> Result<bool, RingFault> {
        if self.ahead.until == self.next_available {
            if self.untaken() == 0 {
                return Ok(false);
            }
            self.read_ahead::<WRITABLE>(1)?;
        }
        Ok(self.known() > 0)
    }

    /// The next chain, after [`Self::has_chain`].
    #[inline(always)]
    pub(super) fn next_chain(&self) -> &Opened {
        self.known_chain(0)
    }

    /// The chain `ahead` places after the next one, which the driver is known to have made available.
    ///
    /// # Errors
    /// [`RingFault::HeadOutside`].
    pub(super) fn chain<const WRITABLE: bool>(&mut self, ahead: u16) -> Result<Opened, RingFault> {
        let position = self.next_available.wrapping_add(ahead);
        if ahead < self.known() {
            return Ok(*self.known_chain(ahead));
        }
        let resubmitted = self.resubmitted.as_ref().and_then(|resubmitted| resubmitted.head(position));
        let head = resubmitted.unwrap_or_else(|| self.split.available_entry(position));
        let opened = Opened::read::<WRITABLE>(&self.split, head, &self.memory, &mut self.hint);
        opened.ok_or_else(|| self.break_off(RingFault::HeadOutside))
    }

    /// Moves past the next `count` chains.
    #[inline(always)]
    pub(super) fn advance(&mut self, count: u16) {
        let known = self.known();
        self.next_available = self.next_available.wrapping_add(count);
        if count > known {
            self.ahead.until = self.next_available;
        }
    }
}
