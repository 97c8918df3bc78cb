//! What the kernel offers to the operator's side and no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;

use crate::memory::Region;

/// Whether a program has the regular file `file`, which is open for reading, open for writing; `None` if the kernel does not say: the file is another
/// user's, or on a file system without leases.
pub fn is_open_for_writing(file: &File) -> Option<bool> {
    /// fcntl(2): the signal that tells of another opening the file; of Linux, where all architectures agree.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: numbers only. A program that opens the file while the lease is held waits until it is given back, just below; the signal that tells
    // us so is one that is ignored by default.
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

/// Makes `page` the only memory of a virtual machine, at the page's guest address. Machine and page are dropped together, the machine first.
#[derive(Debug)]
pub struct Machine {
    /// The machine.
    pub machine: VmFd,
    _page: Region,
}

impl Machine {
    /// A machine whose only memory is `page`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(machine: VmFd, page: Region) -> Result<Self, kvm_ioctls::Error> {
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: page.guest_start(),
            memory_size: page.length(),
            userspace_addr: page.host_start() as u64,
        };
        // SAFETY: the page is mapped until the machine, which is declared before it, is gone; what else has the machine's descriptor is dropped
        // before whoever borrows it.
        unsafe { machine.set_user_memory_region(region) }?;
        Ok(Self { machine, _page: page })
    }
}
