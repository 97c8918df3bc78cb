//! System calls that commands need and no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;

use crate::memory::Region;

/// The descriptor `number` of this process, which the service manager has passed; `None` if there is none, or if it is taken already. It
/// is closed on exec from now on.
pub fn passed(number: libc::c_int) -> Option<OwnedFd> {
    static TAKEN: Mutex<Vec<libc::c_int>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: numbers only.
    if taken.contains(&number) || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    taken.push(number);
    // SAFETY: it is open, and by the service manager's protocol it is for the one part of this program that takes it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Records the last sender of the signal `number` in `sender`, from now on: its user and its process, by 32 bits each, 0 of a signal that
/// kill(2) did not send. A handler that acts on the signal is to be installed later, so that it runs after this one.
///
/// # Errors
/// The kernel refuses the handler.
pub fn record_sender(number: libc::c_int, sender: &'static AtomicU64) -> io::Result<()> {
    let note = move |info: &libc::siginfo_t| {
        // SAFETY: the kernel sets both members for signals of kill(2), and has zeroed them for others.
        let (pid, uid) = unsafe { (info.si_pid(), info.si_uid()) };
        sender.store(u64::from(uid) << 32 | u64::from(pid.cast_unsigned()), Ordering::Relaxed);
    };
    // SAFETY: the handler stores one atomic number and calls nothing else (signal-safety(7)).
    unsafe { signal_hook_registry::register_sigaction(number, note) }.map(drop)
}

/// A virtual machine with a page as its only memory, at the page's guest address. Both are dropped together, the machine first.
#[derive(Debug)]
pub struct Machine {
    /// The machine.
    pub machine: VmFd,
    _page: Region,
}

impl Machine {
    /// A machine with `page` as its only memory.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn new(machine: VmFd, page: Region) -> Result<Self, kvm_ioctls::Error> {
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: page.guest_start(),
            memory_size: page.length(),
            userspace_addr: page.host_start() as u64,
        };
        // SAFETY: the page is mapped until the machine, which is declared before it, is dropped; other holders of the
        // machine's descriptor (vCPUs) are dropped before the machine from which they were made.
        unsafe { machine.set_user_memory_region(region) }?;
        Ok(Self { machine, _page: page })
    }
}
