//! System calls about the rights, the signals, the end and the successors of this process that no safe crate wraps.

#![expect(unsafe_code, reason = "what no safe crate wraps")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

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

/// Has a system call that writes beyond the limit of a file's size (RLIMIT_FSIZE) fail, in place of ending the process: a full log ends no
/// network.
pub fn outlive_full_files() {
    drop_signal(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Has the kernel end this process after `timeout` of a takeover (setitimer(2)), or not any more after none.
pub fn end_after(timeout: Duration) {
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let (tv_sec, tv_usec) = (timeout.as_secs() as _, timeout.subsec_micros().into());
    let timer = libc::itimerval { it_interval: zero, it_value: libc::timeval { tv_sec, tv_usec } };
    // SAFETY: a local variable that the kernel copies, and no place for the former timer; the handler of SIGALRM is the default one.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

/// Exit status of the child of [`fork_starter`]'s process if the program cannot be started, as of a shell.
pub const NOT_STARTED: i32 = 127;

/// Signals that a service manager may send to all processes of a network, and that are meant for the first one.
const NOT_MEANT: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
/// Descriptors of the sockets in the process of [`fork_starter`]: for starts, and for [orders to end a takeover](WATCH).
const STARTS: libc::c_int = 3;
const ENDS: libc::c_int = 4;
/// The first number for copies of the sockets until they have theirs.
const ABOVE: libc::c_int = 10;
/// Interval in milliseconds at which that process looks whether its child has ended.
const INTERVAL: libc::c_int = 50;

/// Order at the begin of a takeover, with a Unix socket: open the process at its other end. Answered with its pidfd, or with none.
pub const WATCH: u8 = 1;
/// Order after a failed takeover: kill that process. Answered with the number of the error, or 0.
pub const KILL: u8 = 2;

/// Sockets of the process outside of the sandbox that starts takeovers, and ends failed ones.
#[derive(Debug)]
pub struct StarterSockets {
    /// For each byte, the process starts the program.
    pub starts: UnixStream,
    /// For [`WATCH`] and [`KILL`].
    pub ends: UnixStream,
}

/// Forks a process that keeps the present rights: for each byte from `starts` it starts `program` with `arguments`, the first of which
/// is its name, and answers with the wait status of that child. By order it also ends the other process of a failed takeover. The process
/// ends when one of its sockets is closed, and the child lives on.
///
/// # Errors
/// The kernel refuses a process or a socket.
pub fn fork_starter(program: &CStr, arguments: &[CString]) -> io::Result<StarterSockets> {
    let ((starts, start_orders), (ends, end_orders)) = (UnixStream::pair()?, UnixStream::pair()?);
    let mut list: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    list.push(std::ptr::null());
    // SAFETY: the new process calls only functions that are safe between fork and exec in a program with threads (signal-safety(7)).
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the memory of the new process, in which the strings lie, is a copy that nothing frees.
        0 => unsafe {
            keep_sockets(start_orders.as_raw_fd(), end_orders.as_raw_fd());
            run_starter(program.as_ptr(), list.as_ptr())
        },
        _ => Ok(StarterSockets { starts, ends }),
    }
}

/// Gives the two sockets their numbers, and closes all other descriptors but the first three.
///
/// # Safety
/// Called in a new process: nothing else uses its descriptors.
unsafe fn keep_sockets(starts: libc::c_int, ends: libc::c_int) {
    // SAFETY: numbers and a static string.
    unsafe {
        let [starts, ends] = [starts, ends].map(|socket| libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, ABOVE));
        libc::dup3(starts, STARTS, libc::O_CLOEXEC);
        libc::dup3(ends, ENDS, libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close_range, ENDS + 1, libc::c_uint::MAX, 0);
        // Children read nothing that is meant for the first process, as from a terminal.
        libc::dup2(libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC), 0);
    }
}

/// The process of [`fork_starter`].
///
/// # Safety
/// `program` is a C string, `arguments` a list of them with a null pointer at its end. Called in a new process.
unsafe fn run_starter(program: *const libc::c_char, arguments: *const *const libc::c_char) -> ! {
    let (mut child, mut watched) = (0, -1);
    // SAFETY: numbers, static strings, local variables, and arguments that the caller answers for.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"starter".as_ptr());
        NOT_MEANT.iter().for_each(|signal| drop_signal(*signal, libc::SIG_IGN));
        loop {
            // One child at a time. Without a requested event, only the end of the other side is told.
            let (starts, pause) = if child > 0 { (0, INTERVAL) } else { (libc::POLLIN, -1) };
            let mut sockets = [(STARTS, starts), (ENDS, libc::POLLIN)].map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
            libc::poll(sockets.as_mut_ptr(), 2, pause);
            if sockets[1].revents != 0 {
                watched = obey(watched);
            }
            if sockets[0].revents & libc::POLLIN != 0 {
                child = start(program, arguments);
            } else if sockets[0].revents != 0 {
                libc::_exit(0);
            }
            child = report_end(child);
        }
    }
}

/// Takes an order from [`STARTS`], and starts the program; returns its process.
///
/// # Safety
/// The conditions of [`run_starter`].
unsafe fn start(program: *const libc::c_char, arguments: *const *const libc::c_char) -> libc::pid_t {
    let mut byte = 0_u8;
    // SAFETY: numbers, a local variable, and arguments that the caller answers for.
    unsafe {
        match libc::read(STARTS, (&raw mut byte).cast(), 1) {
            1 => {}
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => return 0,
            _ => libc::_exit(0),
        }
        let child = libc::fork();
        if child == 0 {
            NOT_MEANT.iter().for_each(|signal| drop_signal(*signal, libc::SIG_DFL));
            libc::execv(program, arguments);
            libc::_exit(NOT_STARTED);
        }
        if child < 0 {
            send_status(NOT_STARTED << 8);
        }
        child
    }
}

/// Answers with the wait status of `child` once it has ended; returns the child that still runs, or 0.
///
/// # Safety
/// The conditions of [`run_starter`].
unsafe fn report_end(child: libc::pid_t) -> libc::pid_t {
    let mut status = 0;
    // SAFETY: numbers and a local variable.
    unsafe {
        if child <= 0 || libc::waitpid(child, &raw mut status, libc::WNOHANG) == 0 {
            return child.max(0);
        }
        send_status(status);
    }
    0
}

/// # Safety
/// The conditions of [`run_starter`].
unsafe fn send_status(status: libc::c_int) {
    // SAFETY: a number and a local variable.
    unsafe { libc::write(STARTS, (&raw const status).cast(), size_of::<libc::c_int>()) };
}

/// Takes an order about a takeover from [`ENDS`] and answers it; returns the pidfd of the process that is watched, which was `watched`, or -1.
///
/// # Safety
/// The conditions of [`run_starter`].
unsafe fn obey(watched: libc::c_int) -> libc::c_int {
    // SAFETY: numbers and local variables.
    unsafe {
        let (order, taker) = match receive_order() {
            Some(order) => order,
            None if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => return watched,
            None => libc::_exit(0),
        };
        if order == KILL {
            let flags: libc::c_uint = 0;
            let killed = libc::syscall(libc::SYS_pidfd_send_signal, watched, libc::SIGKILL, std::ptr::null::<u8>(), flags);
            let error = if killed == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) };
            answer(error as u8, -1);
            return watched;
        }
        libc::close(watched);
        let process = open_peer(taker);
        libc::close(taker);
        answer(0, process);
        process
    }
}

/// Room for one descriptor in a message, aligned as its header.
type Attached = [u64; 4];

/// The message of `part`, with room for a descriptor in `attached`.
///
/// # Safety
/// Both live for as long as the message.
unsafe fn message(part: &mut libc::iovec, attached: &mut Attached) -> libc::msghdr {
    // SAFETY: a structure of numbers and pointers, which may be null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    message.msg_control = attached.as_mut_ptr().cast();
    // SAFETY: a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) } as _;
    message
}

/// The next order from [`ENDS`], and its descriptor or -1.
///
/// # Safety
/// The conditions of [`run_starter`].
unsafe fn receive_order() -> Option<(u8, libc::c_int)> {
    let (mut order, mut attached) = (0_u8, Attached::default());
    let mut part = libc::iovec { iov_base: (&raw mut order).cast(), iov_len: 1 };
    // SAFETY: local variables; the kernel writes no more than the lengths that the message has, and the header lies in those bytes.
    unsafe {
        let mut message = message(&mut part, &mut attached);
        if libc::recvmsg(ENDS, &raw mut message, libc::MSG_CMSG_CLOEXEC) < 1 {
            return None;
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_file = !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS;
        let file = if is_file { libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned() } else { -1 };
        Some((order, file))
    }
}

/// Sends an answer to [`ENDS`], with the descriptor `file` unless it is negative.
///
/// # Safety
/// The conditions of [`run_starter`].
unsafe fn answer(code: u8, file: libc::c_int) {
    let (mut code, mut attached) = (code, Attached::default());
    let mut part = libc::iovec { iov_base: (&raw mut code).cast(), iov_len: 1 };
    // SAFETY: local variables; the header lies in `attached`, which has room for it and a descriptor.
    unsafe {
        let mut message = message(&mut part, &mut attached);
        if file < 0 {
            message.msg_controllen = 0;
        } else {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(file);
        }
        libc::sendmsg(ENDS, &raw const message, libc::MSG_NOSIGNAL);
    }
}

/// The pidfd of the process at the other end of the takeover's Unix socket `taker`, if it is this user's; -1 else.
///
/// # Safety
/// The conditions of [`run_starter`].
unsafe fn open_peer(taker: libc::c_int) -> libc::c_int {
    // SAFETY: numbers, and local variables with their lengths.
    unsafe {
        let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let told = libc::getsockopt(taker, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length);
        if told != 0 || peer.pid < 1 || peer.uid != libc::geteuid() {
            return -1;
        }
        let (mut process, mut length) = (-1, size_of::<libc::c_int>() as libc::socklen_t);
        match libc::getsockopt(taker, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut process).cast(), &raw mut length) {
            0 => process,
            // Linux before 6.5. The process lives: it waits for its first answer.
            _ => libc::syscall(libc::SYS_pidfd_open, peer.pid, 0) as libc::c_int,
        }
    }
}

/// Socket option for the pidfd of the peer (include/uapi/asm-generic/socket.h of Linux, the same on all architectures of this program).
const SO_PEERPIDFD: libc::c_int = 77;

/// Ignores signals that are meant for the process that serves a network.
pub fn ignore_signals_for_networks() {
    NOT_MEANT.iter().for_each(|signal| drop_signal(*signal, libc::SIG_IGN));
}

/// Has this process go on over signals that end the network's process, to answer the last requests of that one. Programs that it starts do not.
pub fn outlive_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    [libc::SIGTERM, libc::SIGINT].iter().for_each(|signal| drop_signal(*signal, handler));
}

fn drop_signal(signal: libc::c_int, handler: libc::sighandler_t) {
    // SAFETY: numbers; the handlers are the kernel's own, or do nothing.
    unsafe { libc::signal(signal, handler) };
}

/// The version of Landlock in the kernel; 0 without.
pub fn landlock_version() -> i64 {
    const VERSION: libc::c_int = 1;
    // SAFETY: no pointer and no length: the kernel only answers with a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) }.max(0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_started_program_reads_nothing() {
        let arguments = ["sh", "-c", "test $(readlink /proc/self/fd/0) = /dev/null"].map(|text| CString::new(text).unwrap());
        let mut starter = fork_starter(c"/bin/sh", &arguments).unwrap();
        // One after the other.
        for _ in 0..2 {
            starter.starts.write_all(&[0]).unwrap();
            let mut status = [0xff; 4];
            starter.starts.read_exact(&mut status).unwrap();
            assert_eq!(i32::from_ne_bytes(status), 0);
        }
    }
}
