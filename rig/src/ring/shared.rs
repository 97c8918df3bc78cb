//! A split ring's three areas in guest memory, field by field.
//!
//! Every access is one volatile (indices: atomic) load or store of the whole field, because the other side reads and writes at the
//! same time. Values are not checked before they are written: that is the device's duty.

use std::sync::atomic::{AtomicU16, Ordering};

use super::{Descriptor, Used};
use crate::memory::{GuestMemory, MemoryError};

/// Where a ring's areas lie, as guest-physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table: 16 bytes an entry, aligned to 16.
    pub descriptors: u64,
    /// Available ring: flags, idx, one u16 an entry, used_event; aligned to 2.
    pub available: u64,
    /// Used ring: flags, idx, 8 bytes an entry, avail_event; aligned to 4.
    pub used: u64,
}

/// Raw access to a ring of `size` entries; see the file's page.
#[derive(Debug, Clone)]
pub struct SharedRing {
    memory: GuestMemory,
    addresses: RingAddresses,
    size: u16,
    descriptors: *mut Descriptor,
    available: *mut u16,
    used: *mut u8,
}

// SAFETY: the pointers lead into `memory`, which the ring keeps alive and which has no thread affinity; every access is
// volatile or atomic, as shared memory needs it.
unsafe impl Send for SharedRing {}
// SAFETY: as above.
unsafe impl Sync for SharedRing {}

/// Cache lines are kept apart by this many bytes (two lines: the neighbour is fetched along).
const APART: u64 = 128;

impl SharedRing {
    /// Reserves and clears a ring of `size` entries (a power of two up to 32768) in `memory`.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`].
    pub fn new(memory: &GuestMemory, size: u16) -> Result<Self, MemoryError> {
        let entries = u64::from(size);
        let addresses = RingAddresses {
            descriptors: memory.allocate(16 * entries, APART)?,
            available: memory.allocate(6 + 2 * entries, APART)?,
            used: memory.allocate(6 + 8 * entries, APART)?,
        };
        let ring = Self::at(memory, size, addresses)?;
        ring.clear()?;
        Ok(ring)
    }

    /// A ring at given addresses, as it is.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] when an area is not inside one region of `memory`.
    pub fn at(memory: &GuestMemory, size: u16, addresses: RingAddresses) -> Result<Self, MemoryError> {
        let entries = u64::from(size);
        Ok(Self {
            memory: memory.clone(),
            addresses,
            size,
            descriptors: memory.pointer(addresses.descriptors, 16 * entries)?.cast(),
            available: memory.pointer(addresses.available, 6 + 2 * entries)?.cast(),
            used: memory.pointer(addresses.used, 6 + 8 * entries)?,
        })
    }

    /// Zeroes all three areas.
    ///
    /// # Errors
    /// None unless the memory was cut meanwhile.
    pub fn clear(&self) -> Result<(), MemoryError> {
        let entries = u64::from(self.size);
        self.memory.fill(self.addresses.descriptors, 16 * entries, 0)?;
        self.memory.fill(self.addresses.available, 6 + 2 * entries, 0)?;
        self.memory.fill(self.addresses.used, 6 + 8 * entries, 0)
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Where the areas lie.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// The memory that the ring lies in.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Descriptor `index` (taken modulo the size).
    #[inline]
    pub fn descriptor(&self, index: u16) -> Descriptor {
        // SAFETY: the slot is below `size`, inside the table that `at` checked.
        unsafe { self.descriptors.add(self.slot(index)).read_volatile() }
    }

    /// Writes descriptor `index` (taken modulo the size).
    #[inline]
    pub fn set_descriptor(&self, index: u16, descriptor: Descriptor) {
        // SAFETY: the slot is below `size`, inside the table that `at` checked.
        unsafe { self.descriptors.add(self.slot(index)).write_volatile(descriptor) }
    }

    /// The available ring's flags.
    pub fn available_flags(&self) -> u16 {
        self.available_word(0).load(Ordering::Relaxed)
    }

    /// Writes the available ring's flags.
    pub fn set_available_flags(&self, flags: u16) {
        self.available_word(0).store(flags, Ordering::Relaxed);
    }

    /// The available index.
    #[inline]
    pub fn available_index(&self) -> u16 {
        self.available_word(1).load(Ordering::Acquire)
    }

    /// Writes the available index; a side that reads it sees all earlier writes.
    #[inline]
    pub fn set_available_index(&self, index: u16) {
        self.available_word(1).store(index, Ordering::Release);
    }

    /// The entry of the available ring for the free-running `index`.
    #[inline]
    pub fn available_entry(&self, index: u16) -> u16 {
        self.available_word(2 + self.slot(index)).load(Ordering::Relaxed)
    }

    /// Writes the entry of the available ring for the free-running `index`.
    #[inline]
    pub fn set_available_entry(&self, index: u16, head: u16) {
        self.available_word(2 + self.slot(index)).store(head, Ordering::Relaxed);
    }

    /// The driver's request (EVENT_IDX): interrupt when the used index passes this.
    pub fn used_event(&self) -> u16 {
        self.available_word(2 + usize::from(self.size)).load(Ordering::Relaxed)
    }

    /// Writes the driver's request for an interrupt.
    pub fn set_used_event(&self, index: u16) {
        self.available_word(2 + usize::from(self.size)).store(index, Ordering::Relaxed);
    }

    /// The used ring's flags.
    #[inline]
    pub fn used_flags(&self) -> u16 {
        self.used_word(0).load(Ordering::Relaxed)
    }

    /// Writes the used ring's flags (the device's field).
    pub fn set_used_flags(&self, flags: u16) {
        self.used_word(0).store(flags, Ordering::Relaxed);
    }

    /// The used index.
    #[inline]
    pub fn used_index(&self) -> u16 {
        self.used_word(2).load(Ordering::Acquire)
    }

    /// Writes the used index (the device's field).
    pub fn set_used_index(&self, index: u16) {
        self.used_word(2).store(index, Ordering::Release);
    }

    /// The entry of the used ring for the free-running `index`.
    #[inline]
    pub fn used_entry(&self, index: u16) -> Used {
        // SAFETY: the slot is below `size`, inside the area that `at` checked; areas are aligned to 4 or more.
        unsafe { self.used.add(4 + 8 * self.slot(index)).cast::<Used>().read_volatile() }
    }

    /// Writes the entry of the used ring for the free-running `index` (the device's field).
    pub fn set_used_entry(&self, index: u16, used: Used) {
        // SAFETY: as in `used_entry`.
        unsafe { self.used.add(4 + 8 * self.slot(index)).cast::<Used>().write_volatile(used) }
    }

    /// The device's request (EVENT_IDX): kick when the available index passes this.
    #[inline]
    pub fn available_event(&self) -> u16 {
        self.used_word(4 + 8 * usize::from(self.size)).load(Ordering::Relaxed)
    }

    /// Writes the device's request for a kick (the device's field).
    pub fn set_available_event(&self, index: u16) {
        self.used_word(4 + 8 * usize::from(self.size)).store(index, Ordering::Relaxed);
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    #[inline]
    fn available_word(&self, index: usize) -> &AtomicU16 {
        // SAFETY: callers stay below 3 + size words, inside the area that `at` checked; u16-aligned by construction.
        unsafe { AtomicU16::from_ptr(self.available.add(index)) }
    }

    #[inline]
    fn used_word(&self, byte: usize) -> &AtomicU16 {
        // SAFETY: callers stay below 6 + 8 * size bytes, inside the area that `at` checked; 2-aligned by construction.
        unsafe { AtomicU16::from_ptr(self.used.add(byte).cast()) }
    }
}
