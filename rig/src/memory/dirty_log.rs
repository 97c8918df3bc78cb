//! The bitmap of a live migration, from the front end's side.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use super::map::{self, Mapping};
use super::{MemoryError, Pages, refused};

/// Bytes of a page of the log (VHOST_LOG_PAGE).
pub const LOG_PAGE: u64 = 4096;

/// A dirty log: one bit for each page of 4 KiB from guest address 0 on.
#[derive(Debug)]
pub struct DirtyLog {
    file: OwnedFd,
    mapping: Mapping,
    size: u64,
}

impl DirtyLog {
    /// A log for guest addresses below `end`.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] when the kernel gives no memory.
    pub fn below(end: u64) -> Result<Self, MemoryError> {
        let size = end.div_ceil(8 * LOG_PAGE);
        let file = map::memfd(Pages::Normal, size)?;
        let mapping = Mapping::new(&file, 0, size.next_multiple_of(LOG_PAGE), Pages::Normal)?;
        Ok(Self { file, mapping, size })
    }

    /// Number of the log's memfd, for the message that carries it.
    pub fn raw_file(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The pages that are marked; they are not any more.
    pub fn take(&self) -> BTreeSet<u64> {
        (0..self.size).flat_map(|byte| self.take_byte(byte)).collect()
    }

    fn take_byte(&self, byte: u64) -> impl Iterator<Item = u64> {
        let place = self.mapping.pointer().wrapping_add(byte as usize);
        // SAFETY: inside the mapping; the back end sets bits there, by atomics.
        let atomic = unsafe { AtomicU8::from_ptr(place) };
        // Most are clear, and a swap costs more than a look.
        let bits = if atomic.load(Ordering::Relaxed) == 0 { 0 } else { atomic.swap(0, Ordering::AcqRel) };
        (0..8).filter(move |bit| bits & 1 << bit != 0).map(move |bit| 8 * byte + bit)
    }

    /// Cuts the memfd to `length` bytes. An access to a page beyond it gets SIGBUS.
    ///
    /// # Errors
    /// [`MemoryError::Refused`].
    pub fn truncate(&self, length: u64) -> Result<(), MemoryError> {
        nix::unistd::ftruncate(&self.file, length as i64).map_err(|error| refused("cutting the dirty log", error))
    }
}
