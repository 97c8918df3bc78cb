//! System calls that remain (seccomp(2)), for all threads.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition as Condition, SeccompFilter,
    SeccompRule,
};

use crate::config::kinds::Rights;
use crate::system;

/// Calls with any arguments.
const PLAIN: &[libc::c_long] = &[
    // Files and descriptors; paths are Landlock's.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_pipe2,
    libc::SYS_memfd_create,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_futex,
    // Sockets that are there: the helper makes those with a path, and connects.
    libc::SYS_socketpair,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    // Threads and signals of this process.
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_getrlimit,
    libc::SYS_prctl,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The rest.
    libc::SYS_getrandom,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Older calls of this architecture for the same.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// System call for the addresses of netlink, packet and XDP sockets: Landlock refuses those of Unix sockets with a path.
const DEVICES: &[libc::c_long] = &[libc::SYS_bind];

/// System call for batches of TAP reads and writes, by rings of io_uring that are there and take nothing else; no further ring is made.
const TAP: &[libc::c_long] = &[libc::SYS_io_uring_enter];

/// System call for the socket of the xenstore.
const XEN: &[libc::c_long] = &[libc::SYS_connect];

/// New calls for which the C library has an older one if they are missing. The flags of clone3(2) lie in memory, which a filter
/// does not see.
const MISSING: &[libc::c_long] = &[libc::SYS_clone3, libc::SYS_openat2, libc::SYS_faccessat2];

/// Flags of clone(2) for a new namespace.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP;

/// Requests of ioctl(2) that write into the terminal's input, from which a shell reads: TIOCSTI and TIOCLINUX, of another type in each C library.
const TYPES: [u64; 2] = [0x5412, 0x541C];

/// Refuses all calls but these, with EPERM, in every thread of the process.
pub(super) fn seal(rights: Rights) -> io::Result<()> {
    // The second filter refuses seccomp(2). Of both answers, the error counts.
    hide(MISSING)?;
    system::filter_calls(&allowed(rights).map_err(io::Error::other)?)
}

/// Request of ioctl(2) that makes a socket non-blocking.
const FIONBIO: u64 = 0x5421;

/// Calls of a forwarder, with any arguments.
const OF_FORWARDER: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_getsockopt,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Older calls of this architecture for the same.
#[cfg(target_arch = "x86_64")]
const OLDER_OF_FORWARDER: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_stat];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_OF_FORWARDER: &[libc::c_long] = &[];

/// Refuses all calls but those by which a forwarder asks resolvers.
pub(super) fn seal_forwarder() -> io::Result<()> {
    let filter = || {
        let plain = OF_FORWARDER.iter().chain(OLDER_OF_FORWARDER);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = plain.map(|call| (*call, Vec::new())).collect();
        let is_family = |family: libc::c_int| rule([(0, Length::Dword, Is::Eq, family as u64)]);
        let lacks_exec = || rule([(2, Length::Dword, Is::MaskedEq(libc::PROT_EXEC as u64), 0)]);
        rules.extend([
            (libc::SYS_socket, vec![is_family(libc::AF_INET)?, is_family(libc::AF_INET6)?]),
            (libc::SYS_ioctl, vec![rule([(1, Length::Dword, Is::Eq, FIONBIO)])?]),
            (libc::SYS_mmap, vec![lacks_exec()?]),
            (libc::SYS_mprotect, vec![lacks_exec()?]),
        ]);
        program(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
    };
    system::filter_calls(&filter().map_err(io::Error::other)?)
}

/// Answers these calls as a kernel that does not have them.
fn hide(calls: &[libc::c_long]) -> io::Result<()> {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let program = program(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
    system::filter_calls(&program.map_err(io::Error::other)?)
}

fn allowed(rights: Rights) -> Result<BpfProgram, seccompiler::BackendError> {
    let of_kinds = [(rights.tap || rights.packet || rights.nic, DEVICES), (rights.tap, TAP), (rights.xen, XEN)];
    let of_kinds = of_kinds.into_iter().filter(|(has, _)| *has).flat_map(|(_, calls)| calls);
    let plain = [PLAIN, OLDER, MISSING].concat();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = plain.iter().chain(of_kinds).map(|call| (*call, Vec::new())).collect();
    let mut families = vec![libc::AF_UNIX];
    if rights.tap {
        families.extend([libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6]);
    }
    if rights.packet {
        families.extend([libc::AF_NETLINK, libc::AF_PACKET]);
    }
    let is_family = |family: &libc::c_int| rule([(0, Length::Dword, Is::Eq, *family as u64)]);
    rules.insert(libc::SYS_socket, families.iter().map(is_family).collect::<Result<_, _>>()?);
    let (thread, others) = (libc::CLONE_THREAD as u64, NAMESPACES as u64);
    let own = || rule([(0, Length::Dword, Is::Eq, 0)]);
    let lacks = |protection: libc::c_int| rule([(2, Length::Dword, Is::MaskedEq(protection as u64), 0)]);
    rules.extend([
        // Threads, and neither processes nor namespaces.
        (libc::SYS_clone, vec![rule([(0, Length::Qword, Is::MaskedEq(thread | others), thread)])?]),
        // Signals to threads of this process.
        (libc::SYS_tgkill, vec![rule([(0, Length::Dword, Is::Eq, u64::from(std::process::id()))])?]),
        // Limits and CPUs of this process, and of no other one of the user.
        (libc::SYS_prlimit64, vec![own()?]),
        (libc::SYS_sched_setaffinity, vec![own()?]),
        (libc::SYS_ioctl, vec![rule(TYPES.map(|request| (1, Length::Dword, Is::Ne, request)))?]),
        // No code but that which is there: also a file in memory that was written first is not mapped to be run.
        (libc::SYS_mmap, vec![lacks(libc::PROT_EXEC)?]),
        (libc::SYS_mprotect, vec![lacks(libc::PROT_EXEC)?]),
    ]);
    // A front end that fetches its guest's memory answers page faults of program code, and none of the kernel's (UFFD_USER_MODE_ONLY).
    rules.insert(libc::SYS_userfaultfd, vec![rule([(0, Length::Dword, Is::MaskedEq(1), 1)])?]);
    if rights.netns {
        let network = libc::CLONE_NEWNET as u64;
        rules.insert(libc::SYS_setns, vec![rule([(1, Length::Dword, Is::Eq, network)])?]);
    }
    program(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// Arguments of a call, by number, that are compared with a value; all comparisons have to hold.
fn rule<const N: usize>(comparisons: [(u8, Length, Is, u64); N]) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = comparisons.into_iter().map(|(argument, length, is, value)| Condition::new(argument, length, is, value));
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(rules, others, these, std::env::consts::ARCH.try_into()?)?.try_into()
}
