//! Raw access to a split virtqueue in guest memory (virtio 1.4, section 2.7): every load and store that the driver can see.
//!
//! The module trusts no value that it reads. Values come back as copies; indices into the switch's own memory are made from them
//! only by callers that check them. The three areas (descriptor table, available ring, used ring) were checked to lie inside one
//! region each when the ring was made, and offsets are masked by the ring size, so no access can leave them.

#![expect(unsafe_code, reason = "the areas of a ring are shared with the guest")]

use std::sync::atomic::{AtomicU16, Ordering, fence};

use crate::copy;
use crate::memory::{Iovec, MemoryMap};

pub use crate::id::MAX_SIZE;

/// The descriptor continues via `next`.
pub const NEXT: u16 = 1;
/// The descriptor is writable for the device.
pub const WRITE: u16 = 2;
/// The descriptor points to an indirect table of descriptors.
pub const INDIRECT: u16 = 4;

/// A descriptor, copied out of guest memory; kept as the two words in which it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    address: u64,
    /// `len`, `flags`, `next`, from the lowest byte on.
    rest: u64,
}

impl Descriptor {
    /// Bytes of a descriptor in memory.
    pub const SIZE: usize = 16;

    /// Reads the descriptor that `iovec` begins with, every byte once; `None` if it is shorter.
    pub fn load(iovec: Iovec) -> Option<Self> {
        // SAFETY: there are so many bytes, and the holder of the buffer segment keeps them valid.
        (iovec.length() as usize >= Self::SIZE).then(|| unsafe { Self::read(iovec.as_ptr()) })
    }

    /// Reads the descriptor at `place`, every byte once.
    ///
    /// # Safety
    /// 16 readable bytes at `place`, of any alignment, valid for the call.
    #[inline]
    unsafe fn read(place: *const u8) -> Self {
        #[cfg(fuzzing)]
        crate::probe::tell(crate::probe::Read::Entry);
        // SAFETY: the caller's promise.
        let (address, rest) = unsafe { (copy::load_once::<u64>(place), copy::load_once::<u64>(place.add(8))) };
        Self { address: u64::from_le(address), rest: u64::from_le(rest) }
    }

    /// Guest address of the buffer.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length of the buffer in bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.rest as u32
    }

    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    #[inline]
    pub fn flags(&self) -> u16 {
        (self.rest >> 32) as u16
    }

    /// Index of the next descriptor if [`NEXT`].
    #[inline]
    pub fn next(&self) -> u16 {
        (self.rest >> 48) as u16
    }
}

/// Addresses of the three areas of a ring in the switch's memory.
#[derive(Clone, Copy, Debug)]
pub struct Areas {
    /// Descriptor table, 16 bytes an entry.
    pub descriptors: *mut u8,
    /// Available ring (driver area): flags, idx, ring, used_event.
    pub available: *mut u8,
    /// Used ring (device area): flags, idx, ring, avail_event.
    pub used: *mut u8,
}

impl Areas {
    /// Bytes of the descriptor table of a ring of `size`.
    pub fn descriptor_bytes(size: u16) -> u64 {
        16 * u64::from(size)
    }

    /// Bytes of the driver area, `used_event` included.
    pub fn available_bytes(size: u16) -> u64 {
        6 + 2 * u64::from(size)
    }

    /// Bytes of the device area, `avail_event` included.
    pub fn used_bytes(size: u16) -> u64 {
        6 + 8 * u64::from(size)
    }
}

/// A split ring seen from the device.
#[derive(Clone, Copy, Debug)]
pub struct SplitRing {
    areas: Areas,
    /// Where the used ring is read.
    used_to_read: *const u8,
    size: u16,
    mask: u16,
}

// SAFETY: the pointers lead into a memory map that the owner of the ring holds; all access is by atomics or volatile copies.
unsafe impl Send for SplitRing {}

/// Reason why a ring cannot lie at its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// Outside of one region of the guest's memory.
    Outside,
    /// Not aligned, or not of a valid size.
    Unaligned,
}

impl SplitRing {
    /// The ring of `size` entries at these `addresses` of descriptor table, available ring and used ring, in the front end's own
    /// process. The owner of the ring holds `memory`.
    ///
    /// # Errors
    /// [`Misplaced`].
    pub fn locate(memory: &MemoryMap, [descriptors, available, used]: [u64; 3], size: u16) -> Result<Self, Misplaced> {
        let find = |address, length| memory.find_user_to_read(address, length).ok_or(Misplaced::Outside);
        let areas = Areas {
            descriptors: find(descriptors, Areas::descriptor_bytes(size))?.cast_mut(),
            available: find(available, Areas::available_bytes(size))?.cast_mut(),
            used: memory.find_user(used, Areas::used_bytes(size)).ok_or(Misplaced::Outside)?,
        };
        let used_to_read = find(used, Areas::used_bytes(size))?;
        // SAFETY: the map vouches for the areas while it is held; only the used ring is written.
        let split = unsafe { Self::new(areas, size) }.ok_or(Misplaced::Unaligned)?;
        Ok(Self { used_to_read, ..split })
    }

    /// A ring in a test's own memory, which holds a descriptor table only.
    #[cfg(test)]
    pub(super) fn of_descriptors(table: &mut [u8]) -> Self {
        let size = (table.len() / Descriptor::SIZE) as u16;
        let start = table.as_mut_ptr();
        // SAFETY: the test reads descriptors only, of which there are so many, and keeps the table.
        unsafe { Self::new(Areas { descriptors: start, available: start, used: start }, size) }.expect("a good size")
    }

    /// A ring of `size` entries at `areas`. `None` unless the size is a power of two of at most [`MAX_SIZE`] and the areas are
    /// aligned to 16, 2 and 4 bytes (virtio 1.4, section 2.7).
    ///
    /// # Safety
    /// The areas must be readable and writable for the sizes that [`Areas`] names, as long as the ring lives.
    pub unsafe fn new(areas: Areas, size: u16) -> Option<Self> {
        let aligned = (areas.descriptors as usize).is_multiple_of(16)
            && (areas.available as usize).is_multiple_of(2)
            && (areas.used as usize).is_multiple_of(4);
        (size.is_power_of_two() && size <= MAX_SIZE && aligned).then_some(Self {
            areas,
            used_to_read: areas.used,
            size,
            mask: size - 1,
        })
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn available_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: `offset` is even and inside the area (callers below); the area is 2-aligned; atomics may alias a writer.
        unsafe { AtomicU16::from_ptr(self.areas.available.add(offset).cast()) }
    }

    #[inline]
    fn used_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as `available_u16`.
        unsafe { AtomicU16::from_ptr(self.areas.used.add(offset).cast()) }
    }

    #[inline]
    fn used_u16_to_read(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as `available_u16`, of the same area; it is only loaded from.
        unsafe { AtomicU16::from_ptr(self.used_to_read.add(offset).cast_mut().cast()) }
    }

    /// The driver's available index; entries before it may be read after this load (acquire).
    #[inline]
    pub fn available_index(&self) -> u16 {
        #[cfg(fuzzing)]
        crate::probe::tell(crate::probe::Read::Index(self.areas.available.addr() + 2));
        u16::from_le(self.available_u16(2).load(Ordering::Acquire))
    }

    /// The descriptor head that the driver put at `position` of the available ring.
    #[inline]
    pub fn available_entry(&self, position: u16) -> u16 {
        #[cfg(fuzzing)]
        crate::probe::tell(crate::probe::Read::Entry);
        u16::from_le(self.available_u16(4 + 2 * usize::from(position & self.mask)).load(Ordering::Relaxed))
    }

    /// The driver's flags: bit 0 suppresses interrupts.
    #[inline]
    pub fn available_flags(&self) -> u16 {
        u16::from_le(self.available_u16(0).load(Ordering::Relaxed))
    }

    /// The used position at which the driver requests an interrupt (EVENT_IDX).
    #[inline]
    pub fn used_event(&self) -> u16 {
        u16::from_le(self.available_u16(4 + 2 * usize::from(self.size)).load(Ordering::Relaxed))
    }

    /// A copy of descriptor `index & (size - 1)`.
    #[inline]
    pub fn descriptor(&self, index: u16) -> Descriptor {
        // SAFETY: masked, so inside the table.
        unsafe { Descriptor::read(self.areas.descriptors.add(Descriptor::SIZE * usize::from(index & self.mask))) }
    }

    /// Offset in the used ring of element `position`.
    pub(super) fn used_offset(&self, position: u16) -> u64 {
        4 + 8 * u64::from(position & self.mask)
    }

    /// Offset in the used ring of the request for kicks (`avail_event`).
    pub(super) fn request_offset(&self) -> u64 {
        4 + 8 * u64::from(self.size)
    }

    /// Address of the used ring in the switch's memory.
    pub(super) fn used_ring(&self) -> *const u8 {
        self.areas.used
    }

    /// Writes used element `position`; the driver may read it once [`Self::publish_used`] has passed it.
    #[inline]
    pub fn put_used(&self, position: u16, head: u16, length: u32) {
        let element = (u64::from(head) | u64::from(length) << 32).to_le();
        // SAFETY: masked, so inside the area, which is only 4-aligned.
        unsafe { self.areas.used.add(4 + 8 * usize::from(position & self.mask)).cast::<u64>().write_unaligned(element) };
    }

    /// The head in used element `position`, as it was written there unless the driver has changed it.
    pub(super) fn used_head(&self, position: u16) -> u16 {
        u16::from_le(self.used_u16(4 + 8 * usize::from(position & self.mask)).load(Ordering::Relaxed))
    }

    /// Prefetches the cache lines of the `count` used elements from `position` on, to write them.
    #[inline]
    pub fn prefetch_used(&self, position: u16, count: u16) {
        for ahead in (0..count).step_by(8) {
            let index = usize::from(position.wrapping_add(ahead) & self.mask);
            crate::copy::prefetch_to_write(self.areas.used.wrapping_add(4 + 8 * index));
        }
    }

    /// Publishes all used elements before `index` (release).
    #[inline]
    pub fn publish_used(&self, index: u16) {
        self.used_u16(2).store(index.to_le(), Ordering::Release);
    }

    /// The used index that was last published, as in memory: a device that takes over continues there.
    pub fn used_index(&self) -> u16 {
        u16::from_le(self.used_u16_to_read(2).load(Ordering::Acquire))
    }

    /// The used ring's flags, as in memory: bit 0 suppresses kicks.
    pub(super) fn used_flags(&self) -> u16 {
        u16::from_le(self.used_u16_to_read(0).load(Ordering::Relaxed))
    }

    /// Reads a byte of each page of the used ring, so that holes are met.
    pub(super) fn touch_used(&self) {
        // SAFETY: the area is readable, and this only reads.
        unsafe { Iovec::new(self.used_to_read.cast_mut(), Areas::used_bytes(self.size) as u32) }.touch();
    }

    /// Suppresses kicks (bit 0); ignored under EVENT_IDX.
    #[inline]
    pub fn set_used_flags(&self, flags: u16) {
        self.used_u16(0).store(flags.to_le(), Ordering::Relaxed);
    }

    /// Requests a kick at this available position (EVENT_IDX).
    #[inline]
    pub fn set_available_event(&self, position: u16) {
        self.used_u16(4 + 8 * usize::from(self.size)).store(position.to_le(), Ordering::Relaxed);
    }
}

/// Orders stores before the fence against loads after it: needed between publishing and reading the driver's notification request,
/// and between requesting a kick and looking for work (virtio 1.4, sections 2.7.13.3 and 2.7.10).
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}
