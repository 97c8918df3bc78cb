//! Mappings of guests' memory: its range in the switch's address space.

#![expect(unsafe_code, reason = "mmap and munmap")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Bytes of the huge page that one entry of a page table can hold instead of a table of small ones.
pub(super) const HUGE_PAGE: u64 = 2 << 20;

/// A mapped range; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: usize,
    /// Whole pages.
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of `file`, with pages of `block` bytes, from `start` on, a multiple of these, such that a huge page of
    /// the file is a huge page of the mapping, too: both must have the same alignment, which the kernel does not guarantee by
    /// itself.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn of_file(file: &File, start: u64, length: u64, block: u64) -> io::Result<Self> {
        let page = HUGE_PAGE.max(block);
        let whole = length.checked_next_multiple_of(block).and_then(|whole| usize::try_from(whole).ok());
        let whole = whole.filter(|whole| whole.checked_add(2 * page as usize).is_some()).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserve = Self::reserve(whole + 2 * page as usize)?;
        let place = reserve.start.next_multiple_of(page as usize) + (start % page) as usize;
        let ours = reserve.keep(place, whole);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: MAP_FIXED replaces `ours`, which no other code knows.
        unsafe { map(ours.start, ours.length, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), start as i64) }?;
        Ok(ours)
    }

    /// Maps `length` bytes of `file`, whole pages, from `start` on, as they are.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn shared(file: &File, start: u64, length: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let place = unsafe { map(0, length, protection, libc::MAP_SHARED, file.as_raw_fd(), start as i64) }?;
        Ok(Self { start: place, length })
    }

    /// Private memory, all zeroes.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn anonymous(length: usize) -> io::Result<Self> {
        Self::nameless(length, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Address of the first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start as *mut u8
    }

    /// Bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Writes `byte` everywhere.
    pub(super) fn fill(&self, byte: u8) {
        // SAFETY: the range is mapped and writable as long as this lives.
        unsafe { self.start().write_bytes(byte, self.length) };
    }

    /// Reserves addresses that no other mapping gets.
    fn reserve(length: usize) -> io::Result<Self> {
        Self::nameless(length, libc::PROT_NONE)
    }

    fn nameless(length: usize, protection: i32) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { map(0, length, protection, flags, -1, 0) }?;
        Ok(Self { start, length })
    }

    /// Unmaps all but `length` bytes from `start` on, which lie in this range.
    fn keep(mut self, start: usize, length: usize) -> Self {
        let (before, after) = (start - self.start, self.start + self.length - start - length);
        drop(Self { start: self.start, length: before });
        drop(Self { start: start + length, length: after });
        (self.start, self.length) = (start, length);
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: only this owns the range, and every holder of an address in it holds the mapping. If the kernel refuses,
            // addresses are wasted, nothing else.
            unsafe { libc::munmap(self.start as *mut libc::c_void, self.length) };
        }
    }
}

/// mmap(2).
///
/// # Safety
/// With MAP_FIXED, no code may use the memory that is mapped there.
unsafe fn map(start: usize, length: usize, protection: i32, flags: i32, file: RawFd, offset: i64) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    let place = unsafe { libc::mmap(start as *mut libc::c_void, length, protection, flags, file, offset) };
    if place == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(place as usize) }
}
