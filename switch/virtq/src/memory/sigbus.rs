//! SIGBUS handler: a guest that truncates its memory file loses its port, and the daemon goes on.
//!
//! Touching a page beyond the end of its file raises SIGBUS, and so does a page for which hugetlbfs or tmpfs has none left. The
//! handler finds the **watch** with the address in its range, marks it lost and maps anonymous memory over the whole range, so that
//! the interrupted access ends normally and cannot fault again. The worker sees the mark after its poll iteration and quarantines
//! the port. A SIGBUS outside every watch is a defect of memlane and ends the process as it would have without the handler.
//!
//! The handler may interrupt any code, so it reads only a fixed table of atomics ([`Slot`]). The slot of the address does not
//! change meanwhile, because the interrupted code holds the watch; others may.

#![expect(unsafe_code, reason = "a signal handler that replaces a mapping")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::slot::Slot;

/// Mappings that the whole daemon may hold at a time.
pub const SLOTS: usize = 32768;
/// Bytes of a page: the least that x86-64 and AArch64 map.
const PAGE: usize = 4096;

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];
/// Slots below this were used at least once.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
static FREED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Counts losses, so that a worker learns of one by a single load per poll iteration.
static LOSSES: AtomicU32 = AtomicU32::new(0);

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
        slot.take(start, length);
        Some(Self(index))
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
    if !replace_mapping_of(address) {
        // Not a watched address: with the default action back in place the access faults again and ends the process.
        // SAFETY: signal() is async-signal-safe and takes no pointer.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

/// Maps anonymous memory over the watched range that holds `address`; false if none does. Async-signal-safe.
///
/// If the kernel refuses so much memory (`vm.overcommit_memory=2`, RLIMIT_DATA), only the page at `address` is replaced, and others
/// when they are touched, until the port is quarantined.
fn replace_mapping_of(address: usize) -> bool {
    let used = HIGH_WATER.load(Ordering::Acquire);
    for slot in &TABLE[..used] {
        let Some((start, length)) = slot.range().filter(|&(start, length)| address.wrapping_sub(start) < length) else { continue };
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping that a live watch owns; all its readers treat it as memory that can change at any time, so
        // replacing its content breaks no promise.
        let map = |start: usize, length: usize| unsafe {
            libc::mmap(start as *mut libc::c_void, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) != libc::MAP_FAILED
        };
        let replaced = map(start, length) || map(address & !(PAGE - 1), PAGE);
        if !slot.is_lost() {
            slot.lose();
            note_loss();
        }
        return replaced;
    }
    false
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
