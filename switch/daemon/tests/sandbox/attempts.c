// Attempts of a thread of memlane that a guest has taken over. The test sandbox.rs compiles this file and preloads it: once the file GO exists,
// the next thread that waits for events makes each attempt and prints its name and error number (0: done) to standard error.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *path(const char *key) { return getenv(key) ? getenv(key) : "/none"; }

static void tell(const char *name, long result) { dprintf(2, "attempt %s %d\n", name, result < 0 ? errno : 0); }

static long opened(const char *file, int flags) { return syscall(SYS_openat, AT_FDCWD, file, flags | O_CLOEXEC, 0600); }

static void address(struct sockaddr_un *at, const char *file) {
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    strncpy(at->sun_path, file, sizeof at->sun_path - 1);
}

static long at_socket(long call, const char *file) {
    struct sockaddr_un at;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    address(&at, file);
    return fd < 0 ? -1 : syscall(call, fd, &at, sizeof at);
}

static long mapped(int protection, int fd) {
    void *at = mmap(NULL, 4096, protection, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE, fd, 0);
    return at == MAP_FAILED ? -1 : 0;
}

static void of_files(void) {
    const char *foreign = path("FOREIGN"), *beside = path("BESIDE"), *below = path("BELOW"), *moved = path("MOVED");
    long own = opened(path("NET"), O_RDONLY);
    struct timespec times[2] = {{1, 0}, {1, 0}};
    tell("read-network-file", own);
    tell("read-secret", opened(path("SECRET"), O_RDONLY));
    tell("read-other-key", opened(path("KEY"), O_RDONLY));
    tell("read-other-state", opened(path("STATE"), O_RDONLY));
    tell("write-foreign", opened(foreign, O_WRONLY));
    tell("write-network-file", opened(path("NET"), O_WRONLY));
    tell("write-other-state", opened(path("STATE"), O_WRONLY));
    tell("create-beside-sockets", opened(path("NEW"), O_WRONLY | O_CREAT));
    tell("chmod", syscall(SYS_fchmodat, AT_FDCWD, foreign, 04755));
    tell("chmod-opened", syscall(SYS_fchmod, own, 0600));
    tell("chown", syscall(SYS_fchownat, AT_FDCWD, foreign, geteuid(), getegid(), 0));
    tell("chown-opened", syscall(SYS_fchown, own, geteuid(), getegid()));
    tell("utimens", syscall(SYS_utimensat, AT_FDCWD, foreign, times, 0));
    tell("setxattr", setxattr(foreign, "user.a", "b", 1, 0) < 0 && errno == ENOTSUP ? 0 : setxattr(foreign, "user.a", "b", 1, 0));
    tell("rename", syscall(SYS_renameat2, AT_FDCWD, beside, AT_FDCWD, moved, 0));
    tell("link", syscall(SYS_linkat, AT_FDCWD, path("NET"), AT_FDCWD, path("LINK"), 0));
    tell("symlink", syscall(SYS_symlinkat, "/", AT_FDCWD, path("SYMLINK")));
    tell("mkdir", syscall(SYS_mkdirat, AT_FDCWD, path("MKDIR"), 0700));
    tell("unlink-beside", syscall(SYS_unlinkat, AT_FDCWD, access(moved, F_OK) ? beside : moved, 0));
    tell("unlink-below", syscall(SYS_unlinkat, AT_FDCWD, below, 0));
    tell("unlink-own-socket", syscall(SYS_unlinkat, AT_FDCWD, path("SOCKET"), 0));
    tell("bind", at_socket(SYS_bind, path("BIND")));
    tell("bind-other-nic", at_socket(SYS_bind, path("NIC")));
    tell("connect-other-control", at_socket(SYS_connect, path("CONTROL")));
}

static void of_code(void) {
    int memory = (int)syscall(SYS_memfd_create, "code", 0);
    void *plain = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char parameters[256] = {0};
    char *none[] = {NULL};
    tell("make-memory", memory);
    tell("map-code", ftruncate(memory, 4096) ? -1 : mapped(PROT_READ | PROT_EXEC, memory));
    tell("map-writable-code", mapped(PROT_READ | PROT_WRITE | PROT_EXEC, -1));
    tell("protect-code", mprotect(plain, 4096, PROT_READ | PROT_EXEC));
    tell("io-uring", syscall(SYS_io_uring_setup, 4, parameters));
    tell("io-uring-register", syscall(SYS_io_uring_register, -1, 0, NULL, 0) < 0 && errno == EBADF ? 0 : -1);
    tell("own-page-faults", syscall(SYS_userfaultfd, 1));
    tell("kernel-page-faults", syscall(SYS_userfaultfd, 0));
    tell("exec", execve("/none/such", none, none) < 0 && errno == ENOENT ? 0 : -1);
    tell("exec-memory", syscall(SYS_execveat, memory, "none", none, none, 0) < 0 && errno != EPERM ? 0 : -1);
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    tell("fork", child);
}

static long capabilities(unsigned wanted) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};
    errno = EPERM;
    return syscall(SYS_capget, &header, data) || !(data[0].effective & wanted) ? -1 : 0;
}

static void of_the_host(void) {
    char memory[64];
    long parent = getppid();
    snprintf(memory, sizeof memory, "/proc/%ld/mem", parent);
    tell("read-other-memory", opened(memory, O_RDONLY));
    snprintf(memory, sizeof memory, "/proc/%ld/environ", parent);
    tell("read-other-environment", opened(memory, O_RDONLY));
    tell("signal", kill((pid_t)parent, 0));
    tell("trace", ptrace(PTRACE_ATTACH, 0x7fffffff, 0, 0) < 0 && errno == ESRCH ? 0 : -1);
    tell("limits-of-others", syscall(SYS_prlimit64, parent, 7, NULL, memory));
    tell("new-namespace", unshare(CLONE_NEWUTS));
    long mounts = opened("/proc/self/ns/mnt", O_RDONLY);
    tell("enter-mount-namespace", setns((int)mounts, CLONE_NEWNS) < 0 && errno == EINVAL ? 0 : setns((int)mounts, CLONE_NEWNS));
    long network = opened("/proc/self/ns/net", O_RDONLY);
    tell("enter-network-namespace", setns((int)network, CLONE_NEWNET));
    tell("bpf", syscall(SYS_bpf, 0x7fff, NULL, 0) < 0 && errno == EPERM ? -1 : 0);
    tell("ip-socket", socket(AF_INET, SOCK_DGRAM, 0));
    tell("netlink-socket", socket(AF_NETLINK, SOCK_RAW, 0));
    tell("packet-socket", socket(AF_PACKET, SOCK_RAW, 0));
    tell("vsock-socket", socket(AF_VSOCK, SOCK_STREAM, 0) < 0 && errno != EPERM ? 0 : -1);
    tell("unix-socket", socket(AF_UNIX, SOCK_DGRAM, 0));
    tell("file-capabilities", capabilities(1u << CAP_CHOWN | 1u << CAP_FOWNER | 1u << CAP_DAC_OVERRIDE));
    tell("administer-network", capabilities(1u << CAP_NET_ADMIN));
    tell("administer-host", capabilities(1u << CAP_SYS_ADMIN));
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    if (getenv("GO") && !access(getenv("GO"), F_OK) && !atomic_flag_test_and_set(&done)) {
        of_code();
        of_the_host();
        of_files();
        dprintf(2, "attempts over\n");
    }
    return (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout, NULL, 8);
}
