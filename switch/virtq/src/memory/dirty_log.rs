//! Dirty log: the bitmap in which a front end has each page marked that the switch writes, while it copies the guest's memory
//! elsewhere (live migration, snapshots; vhost-user, "Migration").
//!
//! Bit `n` is the page at guest address `4096 n`. The front end reads and clears bits at any time, so each is set atomically, and
//! **after** the data: a front end that clears a bit and then copies the page never misses a write.
//!
//! The bitmap lies in a file of the front end. A log that is too small, or that is truncated while it is in use, is **lost**: pages
//! are left out of it, so the guest's copy is worthless. The worker learns of that as of lost memory ([`sigbus`]), and the port is
//! quarantined.

use std::fmt;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use super::region::{Loss, Quota, Region, RegionError, RegionTable};
use super::sigbus;

/// Bytes of a page of the log (VHOST_LOG_PAGE), independent of the page sizes of guest and host.
pub const LOG_PAGE: u64 = 4096;

/// Reason why pages are missing in a dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLoss {
    /// The log ends before the guest's memory does.
    Short,
    /// The log's file lost a page.
    File(Loss),
}

impl fmt::Display for LogLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the dirty log of its front end is too short for the guest's memory",
            Self::File(Loss::Truncated) => "its front end truncated the dirty log in use",
            Self::File(_) => "the kernel could not provide a page of the front end's dirty log",
        })?;
        f.write_str(": the migration or snapshot under way is incomplete, start it again")
    }
}

/// See the module. Unmapped when dropped.
#[derive(Debug)]
pub struct DirtyLog {
    /// The mapped bitmap; its addresses are bytes of the log.
    bitmap: Region,
    /// A page behind its end was written.
    is_short: AtomicBool,
}

impl DirtyLog {
    /// Maps the log of `size` bytes that begins at `offset` of `file`, if `quota` has so much left (SET_LOG_BASE).
    ///
    /// # Errors
    /// The errors of [`Region::map_within`].
    pub fn map(file: File, offset: u64, size: u64, quota: &Quota) -> Result<Self, RegionError> {
        let table = RegionTable { guest_start: 0, length: size, user_start: 0, file_offset: offset };
        Ok(Self { bitmap: Region::map_within(table, file, quota, &[])?, is_short: AtomicBool::new(false) })
    }

    /// Marks the pages of the `length` bytes at guest address `address`, which were written before. Pages behind the end of the log
    /// are left out, and the log is lost.
    pub fn mark(&self, address: u64, length: u64) {
        let Some(last) = length.checked_sub(1) else { return };
        let end = address.checked_add(last);
        let last = (end.unwrap_or(u64::MAX) / LOG_PAGE).min(8 * self.bitmap.length() - 1);
        if end.is_none_or(|end| end / LOG_PAGE > last) {
            self.miss();
        }
        let first = address / LOG_PAGE;
        // The data, then the bit.
        fence(Ordering::Release);
        let mut page = first;
        while page <= last {
            let until = last.min(page | 7);
            self.bitmap.set_bits(page / 8, 0xff << (page % 8) & 0xff >> (7 - until % 8));
            page = until + 1;
        }
    }

    #[cold]
    fn miss(&self) {
        if !self.is_short.swap(true, Ordering::Relaxed) {
            sigbus::note_loss();
        }
    }

    /// The reason why pages are missing in it, if some are.
    pub fn loss(&self) -> Option<LogLoss> {
        let short = self.is_short.load(Ordering::Relaxed).then_some(LogLoss::Short);
        short.or_else(|| self.bitmap.loss().map(LogLoss::File))
    }

    /// Bytes of the bitmap.
    pub fn size(&self) -> u64 {
        self.bitmap.length()
    }

    /// Offset of the log in its file.
    pub fn offset(&self) -> u64 {
        self.bitmap.table().file_offset
    }

    /// File of the log, for a process that continues with it.
    pub fn file(&self) -> Option<&File> {
        self.bitmap.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

    /// A log of `size` bytes, 5 bytes into a file that goes on behind it.
    fn log(size: u64) -> (DirtyLog, File) {
        let file = File::from(memfd_create("log", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(size + 10).unwrap();
        (DirtyLog::map(file.try_clone().unwrap(), 5, size, &Quota::default()).unwrap(), file)
    }

    /// The marked pages, and whether bytes outside of the log are as they were.
    fn marked(log: &DirtyLog, file: &File) -> Vec<u64> {
        let mut bytes = vec![0; log.size() as usize + 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let (log, outside) = (&bytes[5..bytes.len() - 5], [&bytes[..5], &bytes[bytes.len() - 5..]].concat());
        assert_eq!(outside, [0; 10]);
        (0..8 * log.len() as u64).filter(|page| log[*page as usize / 8] & 1 << (page % 8) != 0).collect()
    }

    #[test]
    fn a_write_marks_the_pages_that_it_touches_and_no_other() {
        let cases: [(u64, u64, Vec<u64>); 8] = [
            (0, 1, vec![0]),
            (4095, 1, vec![0]),
            (4095, 2, vec![0, 1]),
            (5 * 4096, 0, vec![]),
            (7 * 4096, 8192, vec![7, 8]),
            (3 * 4096 + 1, 4096, vec![3, 4]),
            (2 * 4096, 20 * 4096, (2..22).collect()),
            (31 * 4096, 4096, vec![31]),
        ];
        for (address, length, pages) in cases {
            let (log, file) = log(4);
            log.mark(address, length);
            assert_eq!((marked(&log, &file), log.loss()), (pages, None), "{length} bytes at {address:#x}");
        }
    }

    #[test]
    fn bits_that_are_set_stay_set() {
        let (log, file) = log(1);
        [1, 4, 1, 6].iter().for_each(|page| log.mark(page * 4096 + 17, 5));
        assert_eq!(marked(&log, &file), [1, 4, 6]);
    }

    #[test]
    fn pages_behind_the_end_are_left_out_and_the_log_is_lost() {
        for (address, length, pages) in [
            (8 * 4096, 1, vec![]),
            (7 * 4096, 4097, vec![7]),
            (u64::MAX, 1, vec![]),
            (u64::MAX, 2, vec![]),
            (0, u64::MAX, (0..8).collect()),
        ] {
            let (log, file) = log(1);
            let before = sigbus::losses();
            log.mark(address, length);
            assert_eq!((marked(&log, &file), log.loss()), (pages, Some(LogLoss::Short)), "{length} bytes at {address:#x}");
            assert_ne!(sigbus::losses(), before);
        }
    }

    #[test]
    fn a_log_that_is_truncated_while_it_is_written_is_lost() {
        let (log, file) = log(3 * 4096);
        log.mark(0, 1);
        file.set_len(0).unwrap();
        log.mark(2 * 8 * 4096 * 4096, 1);
        assert_eq!(log.loss(), Some(LogLoss::File(Loss::Truncated)));
    }

    #[test]
    fn a_log_that_is_not_in_its_file_is_refused() {
        let file = File::from(memfd_create("log", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(4096).unwrap();
        for (offset, size) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 2), (1 << 62, 1 << 62), (u64::MAX - 4095, 4096)] {
            let mapped = DirtyLog::map(file.try_clone().unwrap(), offset, size, &Quota::default());
            assert!(mapped.is_err(), "{size} bytes at {offset}");
        }
    }
}
