//! System calls that the daemon and the command line need and no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

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

/// Installs `program` as a filter of the system calls of all threads of the process, and sets no_new_privs (seccomp(2)).
///
/// # Errors
/// The error of the kernel; a thread has another filter.
pub(crate) fn filter_calls(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let filter: Vec<_> = program.iter().map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k }).collect();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // Without the second flag, kernels before 5.16 turn off speculation in filtered threads, which slows down the data path.
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: numbers; the kernel copies the program, which lives until the calls have returned.
    let answer = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match answer {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has a filter of its own"))),
    }
}

/// The descriptor `number` of this process, which the service manager has passed; `None` if there is none, or if it is taken already. It
/// is closed on exec from now on.
pub(crate) fn passed(number: libc::c_int) -> Option<OwnedFd> {
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

/// Has the kernel end this process after `seconds` (alarm(2)), or not any more after 0.
pub(crate) fn end_after(seconds: u32) {
    // SAFETY: a number; the handler of SIGALRM is the default one.
    unsafe { libc::alarm(seconds) };
}

/// Exit status of the child of [`fork_starter`]'s process if the program cannot be started, as of a shell.
pub(crate) const NOT_STARTED: i32 = 127;

/// Signals that a service manager may send to all processes of a network, and that are meant for the first one.
const NOT_MEANT: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// Descriptor of the socket in the process of [`fork_starter`].
const SOCKET: libc::c_int = 3;
/// Interval in milliseconds at which that process looks whether its child has ended.
const INTERVAL: libc::c_int = 50;

/// Forks a process that keeps the present rights: for each byte from the returned socket it starts `program` with `arguments`, the
/// first of which is its name, and answers with the wait status of that child. It ends when the socket is closed, and the child lives on.
///
/// # Errors
/// The kernel refuses a process or a socket.
pub(crate) fn fork_starter(program: &CStr, arguments: &[CString]) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut list: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    list.push(std::ptr::null());
    // SAFETY: the new process calls only functions that are safe between fork and exec in a program with threads (signal-safety(7)).
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the memory of the new process, in which the strings lie, is a copy that nothing frees.
        0 => unsafe { run_starter(theirs.as_raw_fd(), program.as_ptr(), list.as_ptr()) },
        _ => Ok(ours),
    }
}

/// The process of [`fork_starter`].
///
/// # Safety
/// `program` is a C string, `arguments` a list of them with a null pointer at its end. Called in a new process.
unsafe fn run_starter(socket: libc::c_int, program: *const libc::c_char, arguments: *const *const libc::c_char) -> ! {
    // SAFETY: numbers, static strings, local variables, and arguments that the caller answers for.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"starter".as_ptr());
        NOT_MEANT.iter().for_each(|signal| drop_signal(*signal, libc::SIG_IGN));
        // Fails if the socket has this number already; it is closed by exec either way.
        libc::dup3(socket, SOCKET, libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close_range, SOCKET + 1, libc::c_uint::MAX, 0);
        // Its children read nothing that is meant for the first process, as from a terminal.
        libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC), 0);
        loop {
            let mut byte = 0_u8;
            match libc::read(SOCKET, (&raw mut byte).cast(), 1) {
                1 => {}
                -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => continue,
                _ => libc::_exit(0),
            }
            let child = libc::fork();
            if child == 0 {
                NOT_MEANT.iter().for_each(|signal| drop_signal(*signal, libc::SIG_DFL));
                libc::execv(program, arguments);
                libc::_exit(NOT_STARTED);
            }
            let status = await_child(child);
            libc::write(SOCKET, (&raw const status).cast(), size_of::<libc::c_int>());
        }
    }
}

/// Ignores signals that are meant for the process that serves a network.
pub(crate) fn ignore_signals_for_networks() {
    NOT_MEANT.iter().for_each(|signal| drop_signal(*signal, libc::SIG_IGN));
}

fn drop_signal(signal: libc::c_int, handler: libc::sighandler_t) {
    // SAFETY: numbers; both handlers are the kernel's own.
    unsafe { libc::signal(signal, handler) };
}

/// The wait status of `child`. Ends the process if the socket is closed meanwhile.
///
/// # Safety
/// As [`run_starter`].
unsafe fn await_child(child: libc::pid_t) -> libc::c_int {
    let mut status = NOT_STARTED << 8;
    // SAFETY: numbers and local variables.
    unsafe {
        while child > 0 && libc::waitpid(child, &raw mut status, libc::WNOHANG) == 0 {
            // Without a requested event, only the end of the other side is told.
            let mut socket = libc::pollfd { fd: SOCKET, events: 0, revents: 0 };
            if libc::poll(&raw mut socket, 1, INTERVAL) > 0 {
                libc::_exit(0);
            }
        }
    }
    status
}

/// Asks to trace a process that does not exist (ptrace(2)).
///
/// # Errors
/// Always: ESRCH, or before that the error of a filter.
#[cfg(test)]
pub(crate) fn trace_nothing() -> io::Result<()> {
    // SAFETY: numbers only, and no process has this one.
    match unsafe { libc::ptrace(libc::PTRACE_ATTACH, libc::pid_t::MAX, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The version of Landlock in the kernel; 0 without.
pub(crate) fn landlock_version() -> i64 {
    const VERSION: libc::c_int = 1;
    // SAFETY: no pointer and no length: the kernel only answers with a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) }.max(0)
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_started_program_reads_nothing() {
        let arguments = ["sh", "-c", "test $(readlink /proc/self/fd/0) = /dev/null"].map(|text| CString::new(text).unwrap());
        let mut starter = fork_starter(c"/bin/sh", &arguments).unwrap();
        starter.write_all(&[0]).unwrap();
        let mut status = [0xff; 4];
        starter.read_exact(&mut status).unwrap();
        assert_eq!(i32::from_ne_bytes(status), 0);
    }
}
