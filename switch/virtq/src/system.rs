//! Functions of the kernel and the processor without a wrapper in a safe crate.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

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
