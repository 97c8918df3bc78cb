//! System calls that the daemon and the command line need and no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;

use crate::memory::Region;

/// Whether a program has the regular file `file`, which is open for reading here, open for writing (probed by a lease); `None` if
/// the kernel refuses the lease: the file is another user's, or on a file system without leases.
pub(crate) fn is_open_for_writing(file: &File) -> Option<bool> {
    /// fcntl(2): the signal sent when another process opens the file; the number is Linux's, the same on all architectures.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: numbers only. A program that opens the file while the lease is held waits until it is released, just below; the
    // signal for that is one that is ignored by default.
    let leased = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if leased == 0 {
        // SAFETY: numbers only.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Some(false);
    }
    (io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)).then_some(true)
}

/// A virtual machine with a page as its only memory, at the page's guest address. Both are dropped together, the machine first.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The machine.
    pub machine: VmFd,
    _page: Region,
}

impl Machine {
    /// A machine with `page` as its only memory.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn new(machine: VmFd, page: Region) -> Result<Self, kvm_ioctls::Error> {
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
