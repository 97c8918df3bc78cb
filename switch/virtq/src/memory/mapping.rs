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
    /// Bytes from the start to the second mapping of the same file, for reading ([`super::holes`]); zero if there is none.
    to_readable: usize,
}

impl Mapping {
    /// Maps `length` bytes of `file`, with pages of `block` bytes, from `start` on, a multiple of these, such that a huge page of
    /// the file is a huge page of the mapping, too: both must have the same alignment, which the kernel does not guarantee by
    /// itself.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn of_file(file: &File, start: u64, length: u64, block: u64) -> io::Result<Self> {
        Self::of_file_twice(file, start, length, block, false)
    }

    /// Like [`Self::of_file`], and `twice`: a second time behind that, only to be read.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn of_file_twice(file: &File, start: u64, length: u64, block: u64, twice: bool) -> io::Result<Self> {
        let page = HUGE_PAGE.max(block);
        let whole = length.checked_next_multiple_of(block).and_then(|whole| usize::try_from(whole).ok());
        let distance = whole.and_then(|whole| whole.checked_next_multiple_of(page as usize)).filter(|_| twice);
        let all = whole.and_then(|whole| whole.checked_add(distance.unwrap_or(0)));
        let all = all.filter(|all| all.checked_add(2 * page as usize).is_some());
        let (Some(whole), Some(all)) = (whole, all) else { return Err(io::ErrorKind::OutOfMemory.into()) };
        let reserve = Self::reserve(all + 2 * page as usize)?;
        let place = reserve.start.next_multiple_of(page as usize) + (start % page) as usize;
        let mut ours = reserve.keep(place, all);
        let flags = libc::MAP_NORESERVE | libc::MAP_FIXED;
        let (written, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: MAP_FIXED replaces a part of `ours`, which no other code knows.
        unsafe { map(ours.start, whole, written, libc::MAP_SHARED | flags, fd, start as i64) }?;
        if let Some(distance) = distance {
            // SAFETY: as above.
            unsafe { map(ours.start + distance, whole, libc::PROT_READ, libc::MAP_PRIVATE | flags, fd, start as i64) }?;
            ours.to_readable = distance;
        }
        ours.length = whole;
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
        Ok(Self { start: place, length, to_readable: 0 })
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

    /// Bytes from the first address to that of the same byte in the mapping for reading; zero if both are one.
    pub(super) fn to_readable(&self) -> usize {
        self.to_readable
    }

    /// Bytes of both mappings, and of the gap between them.
    pub(super) fn whole_length(&self) -> usize {
        self.to_readable + self.length
    }

    /// Puts memory that belongs to no file in the place of the file.
    pub(super) fn discard(&self) {
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a range of this mapping; its readers treat it as memory that can change at any time. If the kernel refuses, it stays.
        let _ = unsafe { map(self.start, self.length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
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
        Ok(Self { start, length, to_readable: 0 })
    }

    /// Unmaps all but `length` bytes from `start` on, which lie in this range.
    fn keep(mut self, start: usize, length: usize) -> Self {
        let (before, after) = (start - self.start, self.start + self.length - start - length);
        drop(Self { start: self.start, length: before, to_readable: 0 });
        drop(Self { start: start + length, length: after, to_readable: 0 });
        (self.start, self.length) = (start, length);
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: only this owns the range, and every holder of an address in it holds the mapping. If the kernel refuses,
            // addresses are wasted, nothing else.
            unsafe { libc::munmap(self.start as *mut libc::c_void, self.whole_length()) };
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
