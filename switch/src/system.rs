//! What the kernel and the processor offer and no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::memory::Region;

/// The processor's time-stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn time_stamp() -> u64 {
    // SAFETY: the instruction exists on every x86-64 and only reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A thread of this process, as long as it lives.
#[derive(Clone, Copy, Debug)]
pub struct ThreadId(libc::pid_t);

impl ThreadId {
    /// The calling thread.
    pub fn own() -> Self {
        Self(nix::unistd::gettid().as_raw())
    }

    /// Sends it `signal`, which has a handler: the system call that it is in fails. Nothing happens if it has ended.
    pub fn interrupt(self, signal: libc::c_int) {
        // SAFETY: three numbers; the kernel looks for the thread in this process only.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::pid_t::from(nix::unistd::getpid()), self.0, signal) };
    }
}

/// Reads what `stream` has, up to `bytes.len()` bytes; returns how many. What descriptors came with them, at most `MOST`, goes to `files`.
///
/// # Errors
/// What the kernel says; ENOBUFS if there were more descriptors.
pub fn receive<const MOST: usize>(stream: &UnixStream, bytes: &mut [u8], files: &mut Vec<File>) -> io::Result<usize> {
    let mut vector = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let mut descriptors = [-1; MOST];
    // SAFETY: the vector points to `bytes`, which are ours and may hold anything.
    let received = unsafe { stream.recv_with_fds(&mut vector, &mut descriptors) };
    let (count, descriptor_count) = received.map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
    // SAFETY: the kernel has just made these descriptors ours.
    files.extend(descriptors[..descriptor_count].iter().map(|&fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) })));
    Ok(count)
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
