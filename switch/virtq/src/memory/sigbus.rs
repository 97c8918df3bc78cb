//! SIGBUS handler: a guest that truncates its memory file loses its port, and the daemon goes on.
//!
//! Touching a page beyond the end of its file raises SIGBUS, and so does a page for which hugetlbfs or tmpfs has none left. The
//! handler finds the **watch** with the address in its range, marks it lost and maps anonymous memory over the whole range, so that
//! the interrupted access ends normally and cannot fault again. The worker sees the mark after its poll iteration and quarantines
//! the port. A SIGBUS outside every watch is a defect of memlane and ends the process as it would have without the handler.
//!
//! A mapping **for reading** ([`super::holes`]) raises SIGBUS for a hole of its file, too: the handler covers that page with zeros, and
//! the region is not lost.
//!
//! The handler may interrupt any code, so it reads only a fixed table of atomics ([`Slot`]). The slot of the address does not
//! change meanwhile, because the interrupted code holds the watch; others may.

#![expect(unsafe_code, reason = "a signal handler that replaces a mapping, and the requests of userfaultfd")]
#![expect(
    clippy::indexing_slicing,
    reason = "a watch's number is below the table's length; whoever maps installs the handler, which is no worker"
)]
#![expect(clippy::expect_used, reason = "the handler is installed by what maps memory, which is no worker")]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use nix::sys::uio::pread;

use super::holes;
use super::owner::UNMAPPED;
use super::slot::Slot;

pub use super::slot::SLOTS;

/// Ranges of addresses that a region takes at most: a mapping for writing, the gap behind it, and a mapping for reading.
const RANGES: usize = 3;
/// Ranges that are kept for other memory of the process: stacks, libraries, the allocator's.
const OTHER_RANGES: usize = 8192;
/// Bytes of a page: the least that x86-64 and AArch64 map.
const PAGE: usize = 4096;

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// Slots below this were used at least once.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
static FREED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Counts losses, so that a worker learns of one by a single load per poll iteration.
static LOSSES: AtomicU32 = AtomicU32::new(0);

/// Mappings that this process may hold at a time: [`SLOTS`], or as many as the kernel allows it (`vm.max_map_count`).
pub fn most_mappings() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    // 65530 is the kernel's default.
    let ranges: usize = text.trim().parse().unwrap_or(65530);
    (ranges.saturating_sub(OTHER_RANGES) / RANGES).clamp(64, SLOTS)
}

/// Requests of userfaultfd(2) and their flags (`linux/userfaultfd.h`).
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;

/// The process's userfaultfd, or the number of the kernel's error.
static USERFAULT: OnceLock<Result<File, i32>> = OnceLock::new();

/// Opens the userfaultfd of this process, unless that was done: before a sandbox that does not allow it. False, with a warning, if the kernel
/// refuses it: then reads fill holes of guest memory.
pub fn prepare() -> bool {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let error = check().err();
    if let Some(error) = &error {
        ONCE.call_once(|| {
            tracing::warn!(
                "pages of guest memory that are still to be filled cannot be told from empty ones (userfaultfd: {error}): guests must not be restored lazily"
            );
        });
    }
    error.is_none()
}

/// Whether holes of guest memory can be read without filling them.
///
/// # Errors
/// The kernel's answer to userfaultfd(2).
pub fn check() -> io::Result<()> {
    let opened = USERFAULT.get_or_init(|| open_userfault().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)));
    opened.as_ref().map(drop).map_err(|&error| io::Error::from_raw_os_error(error))
}

fn open_userfault() -> io::Result<File> {
    // Linux before 5.11 does not know the flag.
    let file = new_userfault(UFFD_USER_MODE_ONLY)
        .or_else(|error| if error.raw_os_error() == Some(libc::EINVAL) { new_userfault(0) } else { Err(error) })?;
    let mut api = [UFFD_API, UFFD_FEATURE_SIGBUS, 0];
    request(&file, UFFDIO_API, &mut api).map_err(io::Error::from_raw_os_error)?;
    Ok(file)
}

fn new_userfault(flags: libc::c_int) -> io::Result<File> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to this function alone.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// A userfaultfd by which a front end answers page faults of this process that its program code makes, not the kernel.
pub(super) fn userfault_of_front_end() -> io::Result<File> {
    let file = new_userfault(UFFD_USER_MODE_ONLY | libc::O_NONBLOCK)?;
    request(&file, UFFDIO_API, &mut [UFFD_API, 0, 0]).map_err(io::Error::from_raw_os_error)?;
    Ok(file)
}

/// Has missing pages in the `length` bytes at `start` reported to the reader of `userfault`, for which accesses wait.
pub(super) fn report_to(userfault: &File, start: usize, length: usize) -> io::Result<()> {
    let mut words = [start as u64, length as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
    request(userfault, UFFDIO_REGISTER, &mut words).map_err(io::Error::from_raw_os_error)
}

/// Wakes the threads that wait for pages in the `length` bytes at `start`; they look again.
pub(super) fn wake(userfault: &File, start: usize, length: usize) {
    // Refused only if the range is malformed.
    let _ = request(userfault, UFFDIO_WAKE, &mut [start as u64, length as u64]);
}

/// A request with these words, as the kernel's structures have them. Async-signal-safe.
fn request<const WORDS: usize>(file: &File, number: libc::c_ulong, words: &mut [u64; WORDS]) -> Result<(), i32> {
    // SAFETY: each request reads and writes as many bytes as it has words, which its number states too; none outlives the call. What
    // they do to mappings is said where they are made.
    match unsafe { libc::ioctl(file.as_raw_fd(), number as _, words.as_mut_ptr()) } {
        0 => Ok(()),
        // SAFETY: the address of this thread's error number.
        _ => Err(unsafe { *libc::__errno_location() }),
    }
}

/// Has holes in the `length` bytes at `start` reported; false if the kernel refuses it (a file of ramfs). Async-signal-safe.
pub(super) fn report_holes(start: usize, length: usize) -> bool {
    let Some(Ok(file)) = USERFAULT.get() else { return false };
    request(file, UFFDIO_REGISTER, &mut [start as u64, length as u64, UFFDIO_REGISTER_MODE_MISSING, 0]).is_ok()
}

/// Ends the cover of pages of a mapping for reading, unless that is gone, which was of `owner`'s memory. Async-signal-safe.
pub(super) fn uncover(start: usize, length: usize, owner: u32) {
    let Some((slot, first)) = slot_of(start).filter(|(slot, _)| slot.owner() == owner) else { return };
    let is_huge = slot.readable().is_some_and(|(_, page)| page > PAGE);
    if is_huge && !map_again((slot, first), start, length) {
        return;
    }
    // SAFETY: the pages lie in a mapping for reading, which holds nothing of its own: their bytes come from the file again. If the mapping
    // was replaced because its file is lost, they become zeros, for which its readers are prepared.
    unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
}

/// Maps a huge page of the file where anonymous memory covers it; false if its mapping was lost. Until its holes are reported again, a
/// read of the page takes a huge page of its own, and none of the file: mappings for reading are private.
fn map_again((slot, first): (&Slot, usize), start: usize, length: usize) -> bool {
    let Some((offset, _)) = slot.readable().filter(|_| !slot.is_lost()) else { return false };
    let ([descriptor, at], flags) = (slot.file(), libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    let at = at + (start - first - offset);
    // SAFETY: a page of a mapping for reading; its readers treat it as memory that can change at any time.
    let place = unsafe { libc::mmap(start as *mut libc::c_void, length, libc::PROT_READ, flags, descriptor as i32, at as i64) };
    place != libc::MAP_FAILED && report_holes(start, length)
}

/// Reads the bytes at `address`, in a mapping for reading, from its file; false if they are in none, or there are too few. The caller holds
/// the region.
pub(super) fn read_file(address: usize, to: &mut [u8]) -> bool {
    let Some((slot, first)) = slot_of(address) else { return false };
    let Some((offset, _)) = slot.readable() else { return false };
    let ([descriptor, at], Some(within)) = (slot.file(), (address - first).checked_sub(offset)) else { return false };
    // SAFETY: the region that the caller holds keeps its file open.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor as RawFd) };
    let mut done = 0;
    while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match pread(file, rest, (at + within + done) as i64) {
            // The end of a file that was truncated.
            Ok(0) | Err(_) => break,
            Ok(count) => done += count,
        }
    }
    done == to.len()
}

/// Mappings lost since the process began; changes exactly when some [`Watch`] becomes lost, or a [dirty log](super::DirtyLog) short.
pub fn losses() -> u32 {
    LOSSES.load(Ordering::Acquire)
}

/// Counts a loss that showed without a signal.
pub(super) fn note_loss() {
    LOSSES.fetch_add(1, Ordering::Release);
}

/// Watches one mapping until dropped.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches `length` bytes at address `start`; `None` when [`SLOTS`] mappings are watched already.
    pub fn new(start: usize, length: usize) -> Option<Self> {
        install();
        let mut freed = FREED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let index = freed.pop().or_else(|| {
            let next = HIGH_WATER.load(Ordering::Relaxed);
            (next < SLOTS).then(|| {
                HIGH_WATER.store(next + 1, Ordering::Release);
                next
            })
        })?;
        let slot = &TABLE[index];
        slot.take(start, length, UNMAPPED);
        Some(Self(index))
    }

    /// From `offset` on, the range holds the mapping for reading, with pages of `page` bytes, of `file` from byte `at` on. The file
    /// stays open as long as this.
    pub(super) fn set_readable(&self, offset: usize, page: usize, file: &File, at: u64) {
        TABLE[self.0].set_readable(offset, page, [file.as_raw_fd() as usize, at as usize]);
    }

    /// The range is of `owner`'s memory from now on, by its number.
    pub(super) fn set_owner(&self, owner: u32) {
        TABLE[self.0].set_owner(owner);
    }

    /// Marks the range as lost: its file has ended before it.
    pub(super) fn lose(&self) {
        let slot = &TABLE[self.0];
        if !slot.is_lost() {
            slot.lose();
            note_loss();
        }
    }

    /// True once the range faulted.
    pub fn is_lost(&self) -> bool {
        TABLE[self.0].is_lost()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        TABLE[self.0].free();
        FREED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(self.0);
    }
}

fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        vmm_sys_util::signal::register_signal_handler(libc::SIGBUS, on_sigbus).expect("SIGBUS can be handled");
    });
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo for a handler registered with SA_SIGINFO, which the registration does.
    let address = unsafe { (*info).si_addr() } as usize;
    // SAFETY: the address of this thread's error number, which the interrupted code may be about to read.
    let error = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *error };
    if !serve(address) {
        // Not a watched address: with the default action back in place the access faults again and ends the process.
        // SAFETY: signal() is async-signal-safe and takes no pointer.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    // SAFETY: as above.
    unsafe { *error = before };
}

thread_local! {
    /// Number of the slot that this thread has found last: mostly that of the next fault, of thousands.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// The slot with `address` in its range, and the range's start. Async-signal-safe.
fn slot_of(address: usize) -> Option<(&'static Slot, usize)> {
    let used = HIGH_WATER.load(Ordering::Acquire);
    let holds = |slot: &'static Slot| {
        slot.range().filter(|&(start, length)| address.wrapping_sub(start) < length).map(|(start, _)| (slot, start))
    };
    if let Some(found) = TABLE.get(LAST.get()).and_then(holds) {
        return Some(found);
    }
    let (index, found) = TABLE.iter().take(used).enumerate().find_map(|(index, slot)| Some((index, holds(slot)?)))?;
    LAST.set(index);
    Some(found)
}

/// Has the access to `address` end normally: covers a hole, or replaces a lost mapping; false if no watch has it. Async-signal-safe.
fn serve(address: usize) -> bool {
    let Some((slot, start)) = slot_of(address) else { return false };
    if let Some((offset, page)) = slot.readable().filter(|_| !slot.is_lost())
        && address - start >= offset
        && cover(address & !(page - 1), page, slot.owner())
    {
        if page == PAGE {
            cover_bulk(address & !(PAGE - 1), slot);
        }
        return true;
    }
    replace_mapping_of(slot, address)
}

/// Maps anonymous memory over the range of `slot`, which holds `address`; false if that is refused. Async-signal-safe.
///
/// If the kernel refuses so much memory (`vm.overcommit_memory=2`, RLIMIT_DATA), only the page at `address` is replaced, and others
/// when they are touched, until the port is quarantined.
fn replace_mapping_of(slot: &Slot, address: usize) -> bool {
    let Some((start, length)) = slot.range() else { return false };
    let replaced = map_anonymous(start, length) || map_anonymous(address & !(PAGE - 1), PAGE);
    if !slot.is_lost() {
        slot.lose();
        note_loss();
    }
    replaced
}

/// Maps anonymous memory over a part of a watched range; false if the kernel refuses it. Async-signal-safe.
fn map_anonymous(start: usize, length: usize) -> bool {
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is a mapping that a live watch owns; all its readers treat it as memory that can change at any time, so
    // replacing its content breaks no promise.
    unsafe { libc::mmap(start as *mut libc::c_void, length, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Covers the hole at `start`, of `length` bytes, in a mapping for reading of `owner`'s memory; false if no hole is the cause.
/// Async-signal-safe.
fn cover(start: usize, length: usize, owner: u32) -> bool {
    let Some(Ok(file)) = USERFAULT.get() else { return false };
    holes::begin_cover((start, length, owner));
    // The page of zeros in a private mapping is no page of the file. The kernel has none for huge pages.
    let covered = if length > PAGE {
        if map_anonymous(start, length) { Ok(()) } else { Err(libc::ENOMEM) }
    } else {
        request(file, UFFDIO_ZEROPAGE, &mut [start as u64, length as u64, 0, 0])
    };
    match covered {
        // The page exists if another thread was faster.
        Ok(()) | Err(libc::EEXIST) => true,
        // The kernel was changing mappings: the access is repeated.
        Err(error) => {
            holes::cancel_cover((start, length, owner));
            error == libc::EAGAIN
        }
    }
}

/// Extends the cover of the page at `start`, in a mapping for reading of `slot`, over all that the interrupted copy is about to read as
/// [bulk](holes::in_bulk). Async-signal-safe.
fn cover_bulk(start: usize, slot: &Slot) {
    let (Some(Ok(file)), Some((first, length))) = (USERFAULT.get(), slot.range()) else { return };
    let end = holes::bulk_end().next_multiple_of(PAGE).min(first + length);
    if end <= start + PAGE || !holes::extend_cover(start, end) {
        return;
    }
    let mut at = start + PAGE;
    while at < end {
        let mut words = [at as u64, (end - at) as u64, 0, 0];
        let result = request(file, UFFDIO_ZEROPAGE, &mut words);
        let done = usize::try_from(words[3] as i64).unwrap_or(0).min(end - at);
        match result {
            Ok(()) => return,
            // The next page exists in the mapping.
            Err(libc::EEXIST | libc::EAGAIN) => at += done.max(PAGE),
            // Further pages are met one by one.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Region, RegionTable};

    #[test]
    fn a_truncated_file_costs_only_its_own_region() {
        let file = vmm_sys_util::tempfile::TempFile::new_in(std::path::Path::new("/dev/shm/")).unwrap().into_file();
        file.set_len(8192).unwrap();
        let table = RegionTable { guest_start: 0, length: 8192, user_start: 0, file_offset: 0 };
        let region = Region::map(table, file.try_clone().unwrap()).unwrap();
        let other = Region::anonymous(0, 4096).unwrap();
        let before = losses();
        file.set_len(0).unwrap();
        // SAFETY: the address is inside the mapping; the handler replaces the page under it.
        let byte = unsafe { region.host_start().add(4096).read_volatile() };
        assert_eq!(byte, 0);
        assert!(region.is_lost());
        assert!(!other.is_lost());
        assert_ne!(losses(), before);
    }
}
