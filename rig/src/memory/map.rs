//! The memfd and its mappings: the only place that calls `mmap`.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::plan::HUGE_PAGE;
use super::{MemoryError, Pages, refused};

/// A shared mapping of a part of a memfd; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a mapping is plain shared memory without thread affinity; all access goes through raw pointers, and their users answer
// for their own races (they race with another process anyway).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `file` from `offset` (multiples of its page size), 2 MiB-aligned so that huge pages can form.
    pub(super) fn new(file: &OwnedFd, offset: u64, size: u64, pages: Pages) -> Result<Self, MemoryError> {
        let size = size as usize;
        let place = reserve_aligned(size)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: `place` is a range that `reserve_aligned` has just reserved for us; MAP_FIXED replaces only that.
        let start = unsafe { mmap(Some(place), length(size)?, protection, flags, file, offset as i64) }
            .map_err(|error| refused(mapping_step(pages), error))?;
        let mapping = Self { start: start.cast(), size };
        if pages == Pages::Collapsed {
            mapping.collapse()?;
        }
        Ok(mapping)
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn collapse(&self) -> Result<(), MemoryError> {
        // SAFETY: the range is this mapping; populating and collapsing change no content.
        let result = unsafe {
            libc::madvise(self.start.as_ptr().cast(), self.size, libc::MADV_POPULATE_WRITE);
            libc::madvise(self.start.as_ptr().cast(), self.size, libc::MADV_COLLAPSE)
        };
        if result == 0 {
            return Ok(());
        }
        Err(MemoryError::Refused {
            step: "MADV_COLLAPSE on the guest's memory (needs Linux 6.1 and free 2 MiB stretches; leave it out otherwise)",
            cause: std::io::Error::last_os_error(),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own; nothing points into it any more once its owner drops it.
        // An error would mean that the range was never mapped: there is nothing to do about it.
        let _ = unsafe { munmap(self.start.cast(), self.size) };
    }
}

/// A memfd of `bytes` length.
pub(super) fn memfd(pages: Pages, bytes: u64) -> Result<OwnedFd, MemoryError> {
    let huge = if pages == Pages::Huge { MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB } else { MFdFlags::empty() };
    let file =
        memfd_create(c"memlane-rig", MFdFlags::MFD_CLOEXEC | huge).map_err(|error| refused("creating the guest's memfd", error))?;
    nix::unistd::ftruncate(&file, bytes as i64).map_err(|error| refused("sizing the guest's memfd", error))?;
    Ok(file)
}

/// Reserves address space for `size` bytes, 2 MiB-aligned; the surplus is unmapped.
fn reserve_aligned(size: usize) -> Result<NonZeroUsize, MemoryError> {
    let huge = HUGE_PAGE as usize;
    let total = size + huge;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: an anonymous PROT_NONE mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { mmap_anonymous(None, length(total)?, ProtFlags::PROT_NONE, flags) }
        .map_err(|error| refused("reserving address space for the guest's memory", error))?;
    let from = start.as_ptr() as usize;
    let aligned = from.next_multiple_of(huge);
    give_back(from, aligned - from);
    give_back(aligned + size, from + total - aligned - size);
    length(aligned)
}

fn mapping_step(pages: Pages) -> &'static str {
    match pages {
        Pages::Huge => "mapping the guest's memory on huge pages (raise /proc/sys/vm/nr_hugepages, or use normal pages)",
        Pages::Normal | Pages::Collapsed => "mapping the guest's memory",
    }
}

fn give_back(start: usize, size: usize) {
    if let (Some(start), true) = (NonNull::new(start as *mut std::ffi::c_void), size > 0) {
        // SAFETY: called only with the surplus of a reservation made a moment ago, to which no other pointer exists.
        let _ = unsafe { munmap(start, size) };
    }
}

fn length(size: usize) -> Result<NonZeroUsize, MemoryError> {
    NonZeroUsize::new(size).ok_or_else(|| refused("mapping an empty region", nix::errno::Errno::EINVAL))
}
