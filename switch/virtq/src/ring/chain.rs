//! A descriptor chain, indirect descriptors included, walked once, every index, address and length checked once on a copy (virtio
//! 1.4, section 2.7.5).
//!
//! The result are **buffer segments** (scatter-gather list): runs of the switch's address space with exactly the bytes that the
//! guest described, in order. A chain that breaks a rule yields a [`ChainFault`]; it is completed all the same.

use super::shared::{Descriptor, INDIRECT, NEXT, SplitRing, WRITE};
use crate::drop_reason::DropReason;
use crate::memory::{Hint, Iovec, MemoryMap};

/// Descriptors that a chain may have, those in its indirect table and empty ones included, however large the ring; and entries that
/// an indirect table may have, however small the ring (as Linux and QEMU accept).
const LIMIT: u32 = 1024;

/// Violation of a rule by a descriptor chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainFault {
    /// More descriptors than the ring or the indirect table has, which is a loop, or than any frame needs.
    Loop,
    /// A `next` field of a descriptor points outside the indirect table.
    NextOutside,
    /// An indirect descriptor that was not negotiated, stands inside an indirect table, or also has a `next`.
    IndirectMisplaced,
    /// An indirect table of length 0, not a multiple of 16, or of more entries than any frame needs.
    IndirectLength,
    /// A buffer or table outside the guest's memory.
    Address,
    /// A writable buffer where the device reads, or the other way round.
    Direction,
    /// More bytes than the largest frame, or no room for its buffer segments.
    TooLong,
}

impl From<ChainFault> for DropReason {
    fn from(fault: ChainFault) -> Self {
        match fault {
            ChainFault::Loop => Self::ChainLoop,
            ChainFault::NextOutside => Self::ChainNext,
            ChainFault::IndirectMisplaced => Self::ChainIndirect,
            ChainFault::IndirectLength => Self::ChainIndirectLength,
            ChainFault::Address => Self::ChainAddress,
            ChainFault::Direction => Self::ChainDirection,
            ChainFault::TooLong => Self::ChainTooLong,
        }
    }
}

/// Direction in which the device uses the buffers of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device reads: transmit queue.
    Read,
    /// The device writes: receive queue.
    Write,
    /// The device reads the first part and writes the last, at [another address](MemoryMap::writable): control queue.
    Both,
}

impl Access {
    #[inline]
    fn fits(self, descriptor: &Descriptor) -> bool {
        self == Self::Both || (descriptor.flags() & WRITE != 0) == (self == Self::Write)
    }
}

/// Context of a walk.
#[derive(Debug)]
pub struct Walk<'a> {
    /// The ring that holds the chain.
    pub ring: &'a SplitRing,
    /// The guest memory with its buffers.
    pub memory: &'a MemoryMap,
    /// The region that was used last.
    pub hint: &'a mut Hint,
    /// Direction in which the device uses them.
    pub access: Access,
    /// Whether VIRTIO_F_INDIRECT_DESC was negotiated.
    pub indirect: bool,
    /// Most bytes that the buffer segments may have in all.
    pub limit: u32,
    /// Descriptors that were walked.
    pub walked: u32,
}

impl Walk<'_> {
    /// Appends the buffer segments of the chain that begins with `first` to `iovecs`, never beyond its capacity; returns their
    /// bytes. Descriptors of length 0 add nothing and their address is not checked.
    ///
    /// # Errors
    /// The first [`ChainFault`] met; `iovecs` then holds some prefix.
    pub fn resolve(&mut self, first: Descriptor, iovecs: &mut Vec<Iovec>) -> Result<u32, ChainFault> {
        if first.flags() & (NEXT | INDIRECT) == 0 {
            self.walked += 1;
            return self.add(&first, 0, iovecs);
        }
        self.resolve_many(first, iovecs)
    }

    fn resolve_many(&mut self, first: Descriptor, iovecs: &mut Vec<Iovec>) -> Result<u32, ChainFault> {
        let mut descriptor = first;
        let mut total = 0;
        for _ in 0..self.ring.size() {
            if descriptor.flags() & INDIRECT != 0 {
                return self.resolve_table(&descriptor, total, iovecs);
            }
            self.step()?;
            total = self.add(&descriptor, total, iovecs)?;
            if descriptor.flags() & NEXT == 0 {
                return Ok(total);
            }
            if descriptor.next() >= self.ring.size() {
                return Err(ChainFault::NextOutside);
            }
            descriptor = self.ring.descriptor(descriptor.next());
        }
        Err(ChainFault::Loop)
    }

    /// The chain inside the indirect table that `table` describes; it ends the chain (section 2.7.5.3.1).
    fn resolve_table(&mut self, table: &Descriptor, mut total: u32, iovecs: &mut Vec<Iovec>) -> Result<u32, ChainFault> {
        if !self.indirect || table.flags() & NEXT != 0 {
            return Err(ChainFault::IndirectMisplaced);
        }
        let entries = table.length() / Descriptor::SIZE as u32;
        let most = LIMIT.max(self.ring.size().into());
        if entries == 0 || entries > most || !table.length().is_multiple_of(Descriptor::SIZE as u32) {
            return Err(ChainFault::IndirectLength);
        }
        let mut index = 0;
        for _ in 0..entries {
            let descriptor = self.table_entry(table.address(), index)?;
            if descriptor.flags() & INDIRECT != 0 {
                return Err(ChainFault::IndirectMisplaced);
            }
            self.step()?;
            total = self.add(&descriptor, total, iovecs)?;
            if descriptor.flags() & NEXT == 0 {
                return Ok(total);
            }
            index = u32::from(descriptor.next());
            if index >= entries {
                return Err(ChainFault::NextOutside);
            }
        }
        Err(ChainFault::Loop)
    }

    /// Counts another descriptor that is not an indirect table's.
    fn step(&mut self) -> Result<(), ChainFault> {
        if self.walked >= LIMIT {
            return Err(ChainFault::Loop);
        }
        self.walked += 1;
        Ok(())
    }

    fn table_entry(&mut self, table: u64, index: u32) -> Result<Descriptor, ChainFault> {
        let address = table.checked_add(u64::from(index) * Descriptor::SIZE as u64).ok_or(ChainFault::Address)?;
        let entry = self.memory.iovec_to_read(address, Descriptor::SIZE as u32, self.hint);
        entry.and_then(Descriptor::load).ok_or(ChainFault::Address)
    }

    #[inline]
    fn add(&mut self, descriptor: &Descriptor, total: u32, iovecs: &mut Vec<Iovec>) -> Result<u32, ChainFault> {
        if !self.access.fits(descriptor) {
            return Err(ChainFault::Direction);
        }
        // Receive queues may offer more than any frame needs; the part beyond the limit is not used.
        let length = match self.access {
            Access::Write => descriptor.length().min(self.limit - total),
            _ if descriptor.length() > self.limit - total => return Err(ChainFault::TooLong),
            _ => descriptor.length(),
        };
        self.add_run(descriptor.address(), length, iovecs)?;
        Ok(total + length)
    }

    /// Appends the run of `length` bytes at guest address `address`: one buffer segment a region.
    #[inline]
    fn add_run(&mut self, address: u64, length: u32, iovecs: &mut Vec<Iovec>) -> Result<(), ChainFault> {
        let (mut address, mut left) = (address, length);
        while left > 0 {
            let iovec = match self.access {
                Access::Write => self.memory.iovec(address, left, self.hint),
                Access::Read | Access::Both => self.memory.iovec_to_read(address, left, self.hint),
            };
            let iovec = iovec.ok_or(ChainFault::Address)?;
            if iovecs.len() == iovecs.capacity() {
                return Err(ChainFault::TooLong);
            }
            iovecs.push(iovec);
            left -= iovec.length();
            address = address.wrapping_add(iovec.length().into());
        }
        Ok(())
    }
}
