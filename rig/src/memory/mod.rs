//! Guest memory that a guest shares with the back end, and raw access to it.
//!
//! Nouns, in the order in which a test meets them:
//! 1. [`MemoryPlan`]: which [`RegionPlan`]s (guest-physical ranges) there shall be, and on which [`Pages`].
//! 2. [`GuestMemory`]: the plan made real: one memfd, each [`Region`] mapped shared. Cloning it clones a handle.
//! 3. Guest addresses: [`GuestMemory::allocate`] hands out ranges, `read`/`write` copy bytes at any of them.
//!
//! 4. [`DirtyLog`]: the bitmap in which the back end marks the pages that it writes.
//!
//! Guest-physical addresses, user addresses (where this process maps them) and file offsets all differ on purpose,
//! so that a back end which confuses them is found out.

mod dirty_log;
mod map;
mod plan;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use vhost::VhostUserMemoryRegionInfo;

pub use dirty_log::{DirtyLog, LOG_PAGE};
use map::Mapping;
pub use plan::{MemoryPlan, Pages, RegionPlan};

/// Why guest memory could not be made or reached.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The range lies (partly) outside every region.
    #[error("guest address {address:#x}+{length} lies outside the guest's memory")]
    OutOfRange {
        /// First guest-physical address asked for.
        address: u64,
        /// Bytes asked for.
        length: u64,
    },
    /// The allocator has no room left.
    #[error("guest memory is used up ({wanted} bytes wanted); give the guest a larger memory plan")]
    Exhausted {
        /// Bytes that did not fit.
        wanted: u64,
    },
    /// The kernel refused; the text says which step and how to mend it.
    #[error("{step}: {cause}")]
    Refused {
        /// The step that failed, with a remedy where one is known.
        step: &'static str,
        /// The kernel's error.
        cause: io::Error,
    },
}

/// One contiguous range of guest-physical memory.
#[derive(Debug)]
pub struct Region {
    guest: u64,
    size: u64,
    file_offset: u64,
    mapping: Mapping,
}

impl Region {
    /// First guest-physical address.
    pub fn guest(&self) -> u64 {
        self.guest
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where the region starts in the memfd, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// Where the region starts in this process: the front end's "user address".
    pub fn user(&self) -> u64 {
        self.mapping.pointer() as u64
    }

    fn holds(&self, guest: u64, length: u64) -> bool {
        guest >= self.guest && guest - self.guest <= self.size && length <= self.size - (guest - self.guest)
    }
}

#[derive(Debug)]
struct Inner {
    file: OwnedFd,
    regions: Vec<Region>,
    /// Next free offset of each region.
    taken: Mutex<Vec<u64>>,
}

/// A guest's memory; see the module's page. `Clone` shares, it does not copy.
#[derive(Debug, Clone)]
pub struct GuestMemory(Arc<Inner>);

impl GuestMemory {
    /// One region of `size` bytes (rounded up to pages) on normal pages.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] when the kernel gives no memory.
    pub fn new(size: u64) -> Result<Self, MemoryError> {
        Self::with_plan(&MemoryPlan::new(size))
    }

    /// Memory as `plan` wants it.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] when the kernel gives no memory (of that page size).
    pub fn with_plan(plan: &MemoryPlan) -> Result<Self, MemoryError> {
        let (plans, length) = plan.laid_out();
        let file = map::memfd(plan.pages, length)?;
        let regions = plans.iter().map(|region| map_region(&file, region, plan.pages)).collect::<Result<Vec<_>, _>>()?;
        let taken = Mutex::new(vec![0; regions.len()]);
        Ok(Self(Arc::new(Inner { file, regions, taken })))
    }

    /// The regions, in the plan's order.
    pub fn regions(&self) -> &[Region] {
        &self.0.regions
    }

    /// The memfd behind all regions.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// The memfd's number, for messages that carry it.
    pub fn raw_file(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }

    /// Region `index` as the vhost-user memory table describes it.
    ///
    /// # Panics
    /// When there is no such region.
    pub fn table_entry(&self, index: usize) -> VhostUserMemoryRegionInfo {
        let region = &self.0.regions[index];
        VhostUserMemoryRegionInfo {
            guest_phys_addr: region.guest,
            memory_size: region.size,
            userspace_addr: region.user(),
            mmap_offset: region.file_offset,
            mmap_handle: self.raw_file(),
        }
    }

    /// Reserves `size` bytes aligned to `align` (a power of two) in the first region with room; they are never freed.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`].
    pub fn allocate(&self, size: u64, align: u64) -> Result<u64, MemoryError> {
        (0..self.0.regions.len())
            .find_map(|index| self.allocate_in(index, size, align).ok())
            .ok_or(MemoryError::Exhausted { wanted: size })
    }

    /// The same in region `index` only.
    ///
    /// # Errors
    /// [`MemoryError::Exhausted`].
    pub fn allocate_in(&self, index: usize, size: u64, align: u64) -> Result<u64, MemoryError> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let exhausted = MemoryError::Exhausted { wanted: size };
        let (Some(region), Some(offset)) = (self.0.regions.get(index), taken.get_mut(index)) else {
            return Err(exhausted);
        };
        let start = (region.guest + *offset).next_multiple_of(align) - region.guest;
        if start > region.size || size > region.size - start {
            return Err(exhausted);
        }
        *offset = start + size;
        Ok(region.guest + start)
    }

    /// The host pointer of the guest range `address`, `length` bytes long.
    ///
    /// The pointer stays valid as long as any handle of this memory lives. The back end writes there too:
    /// make no references of it.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] when the range is not inside one region.
    pub fn pointer(&self, address: u64, length: u64) -> Result<*mut u8, MemoryError> {
        let region = self.find(address, length)?;
        Ok(region.mapping.pointer().wrapping_add((address - region.guest) as usize))
    }

    /// The user address (as in SET_VRING_ADDR) of guest address `address`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn user(&self, address: u64) -> Result<u64, MemoryError> {
        Ok(self.pointer(address, 0)? as u64)
    }

    /// Copies `bytes` to guest address `address`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]; then nothing is written.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let to = self.pointer(address, bytes.len() as u64)?;
        // SAFETY: `pointer` checked that the range is mapped; `bytes` is ours and cannot overlap a guest mapping.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies from guest address `address` into `bytes`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]; then nothing is read.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.pointer(address, bytes.len() as u64)?;
        // SAFETY: as in `write`, the other way round.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// `length` bytes from guest address `address`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, MemoryError> {
        let mut bytes = vec![0; length];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Sets `length` bytes from guest address `address` to `value`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]; then nothing is written.
    pub fn fill(&self, address: u64, length: u64, value: u8) -> Result<(), MemoryError> {
        let to = self.pointer(address, length)?;
        // SAFETY: `pointer` checked that the range is mapped.
        unsafe { to.write_bytes(value, length as usize) };
        Ok(())
    }

    /// Cuts (or grows) the memfd to `length` bytes. An access to a page beyond it, by this process too, gets SIGBUS.
    ///
    /// # Errors
    /// [`MemoryError::Refused`].
    pub fn truncate(&self, length: u64) -> Result<(), MemoryError> {
        nix::unistd::ftruncate(&self.0.file, length as i64).map_err(|error| refused("cutting the guest's memfd", error))
    }

    fn find(&self, address: u64, length: u64) -> Result<&Region, MemoryError> {
        self.0.regions.iter().find(|region| region.holds(address, length)).ok_or(MemoryError::OutOfRange { address, length })
    }
}

fn map_region(file: &OwnedFd, plan: &RegionPlan, pages: Pages) -> Result<Region, MemoryError> {
    let mapping = Mapping::new(file, plan.file_offset, plan.size, pages)?;
    Ok(Region { guest: plan.guest, size: plan.size, file_offset: plan.file_offset, mapping })
}

fn refused(step: &'static str, cause: nix::errno::Errno) -> MemoryError {
    MemoryError::Refused { step, cause: cause.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_through_the_file() {
        let memory = GuestMemory::new(1 << 20).unwrap();
        let address = memory.allocate(100, 64).unwrap();
        assert_eq!(address % 64, 0);
        memory.write(address, b"packet").unwrap();
        let region = &memory.regions()[0];
        let mut seen = [0; 6];
        let offset = (address - region.guest() + region.file_offset()) as i64;
        nix::sys::uio::pread(memory.file(), &mut seen, offset).unwrap();
        assert_eq!(&seen, b"packet");
    }

    #[test]
    fn ranges_across_a_gap_or_the_end_are_refused() {
        let plan = MemoryPlan::regions([(0x1000_0000, 0x4000), (0x1000_8000, 0x4000)]);
        let memory = GuestMemory::with_plan(&plan).unwrap();
        assert!(memory.write(0x1000_3ffc, &[1; 8]).is_err());
        assert!(memory.write(0x1000_bffc, &[1; 8]).is_err());
        assert!(memory.write(u64::MAX - 2, &[1; 8]).is_err());
        assert!(memory.write(0x1000_bff8, &[1; 8]).is_ok());
    }

    #[test]
    fn the_allocator_goes_on_in_the_next_region_and_then_says_so() {
        let plan = MemoryPlan::regions([(0x1000_0000, 0x2000), (0x2000_0000, 0x2000)]);
        let memory = GuestMemory::with_plan(&plan).unwrap();
        assert_eq!(memory.allocate(0x1800, 1).unwrap(), 0x1000_0000);
        assert_eq!(memory.allocate(0x1800, 1).unwrap(), 0x2000_0000);
        assert!(matches!(memory.allocate(0x1800, 1), Err(MemoryError::Exhausted { .. })));
    }
}
