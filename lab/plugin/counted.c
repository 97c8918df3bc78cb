/* Traffic between two machines whose every instruction is counted: a fixed number of messages between two marks.
 *
 *   counted NAME send|receive tcp|udp ADDRESS PORT SIZE WARM MEASURED BURST SEND-BUFFER RECEIVE-BUFFER
 *
 * NAME is what the kernel shall call the task. The sender sends WARM messages of SIZE bytes, waits until the receiver
 * says that it has them all, then sends MEASURED between the marks, the receiver's word included: whatever the messages
 * cause happens between the marks. Datagrams have no pace of their own: after each BURST the sender waits for a word.
 * Sockets have buffers of so many bytes, or what the kernel gives them (0; for datagrams room for all of a burst).
 * The receiver ends when the sender has ended, so that its end is not counted. The sender prints a line of JSON. (What is printed last is what was received; lost datagrams are missing from it.)
 * Whoever is not done after five minutes gives up and says so: time that nobody uses is skipped, but a machine that waits
 * for ever tells nothing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "marks.h"

enum { MORE = 'm', LAST = 'l', LARGEST = 1 << 20, SOCKET_BUFFER = 4 << 20, PATIENCE = 300 };

struct plan {
    int udp;
    struct sockaddr_in peer;
    size_t size, warm, measured, burst;
    int send_buffer, receive_buffer;
};
struct frames {
    unsigned long received, sent;
};
static char buffer[LARGEST];

static void die(const char *what) {
    fprintf(stderr, "counted: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void give_up(int number) {
    static const char words[] = "counted: nothing moves\n";
    ssize_t written = write(STDERR_FILENO, words, sizeof words - 1);
    (void)written;
    _exit(128 + number);
}

/* What the network device $device has carried, or where none is named all but the loopback. */
static struct frames frames(void) {
    struct frames sum = {0, 0};
    const char *only = getenv("device");
    char line[512], name[64];
    unsigned long in, out;
    FILE *file = fopen("/proc/net/dev", "r");
    if (!file) die("/proc/net/dev");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, " %63[^:]: %*u %lu %*u %*u %*u %*u %*u %*u %*u %lu", name, &in, &out) == 3 &&
            (only ? !strcmp(name, only) : strcmp(name, "lo") != 0))
            sum.received += in, sum.sent += out;
    fclose(file);
    return sum;
}

static void pause_shortly(void) { nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); }

static void set_buffer(int fd, int which, int size) {
    if (setsockopt(fd, SOL_SOCKET, which, &size, sizeof size)) die("socket buffer");
}

static int open_socket(const struct plan *plan) {
    int fd = socket(AF_INET, plan->udp ? SOCK_DGRAM : SOCK_STREAM, 0), on = 1;
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (plan->send_buffer) set_buffer(fd, SO_SNDBUF, plan->send_buffer);
    if (plan->receive_buffer) set_buffer(fd, SO_RCVBUF, plan->receive_buffer);
    else if (plan->udp) set_buffer(fd, SO_RCVBUFFORCE, SOCKET_BUFFER);
    return fd;
}

static int connected(const struct plan *plan) {
    for (;;) {
        int fd = open_socket(plan);
        if (!connect(fd, (const struct sockaddr *)&plan->peer, sizeof plan->peer)) return fd;
        close(fd);
        pause_shortly();
    }
}

static int accepted(const struct plan *plan) {
    int fd = open_socket(plan), peer;
    struct sockaddr_in own = plan->peer; /* the address that it is asked at: an answer has to come from there */
    if (bind(fd, (struct sockaddr *)&own, sizeof own)) die("bind");
    if (plan->udp) return fd;
    if (listen(fd, 1) || (peer = accept(fd, NULL, NULL)) < 0) die("accept");
    close(fd);
    return peer;
}

static void write_all(int fd, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, buffer + done, size - done);
        if (n <= 0) die("write");
        done += n;
    }
}

static size_t send_stream(const struct plan *plan, int fd, size_t messages) {
    char word;
    for (size_t i = 0; i < messages; i++) write_all(fd, plan->size);
    if (read(fd, &word, 1) != 1) die("read");
    return messages;
}

static void receive_stream(const struct plan *plan, int fd, size_t messages) {
    for (size_t left = messages * plan->size; left;) {
        ssize_t n = read(fd, buffer, left < plan->size ? left : plan->size);
        if (n <= 0) die("read");
        left -= n;
    }
    if (write(fd, "", 1) != 1) die("write");
}

/* Sends one burst until somebody says that its last datagram came; returns how many of it came. */
static size_t send_burst(const struct plan *plan, int fd, size_t burst) {
    uint32_t came = 0;
    for (size_t i = 1; i <= burst; i++) {
        buffer[0] = i == burst ? LAST : MORE;
        if (send(fd, buffer, plan->size, 0) < 0 && errno != ECONNREFUSED) die("send");
    }
    while (recv(fd, &came, sizeof came, 0) != sizeof came) {
        pause_shortly();
        buffer[0] = LAST;
        if (send(fd, buffer, plan->size, 0) < 0 && errno != ECONNREFUSED) die("send");
    }
    return came < burst ? came : burst;
}

static size_t send_datagrams(const struct plan *plan, int fd, size_t messages) {
    size_t came = 0;
    struct timeval patience = {.tv_usec = 500000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (size_t left = messages; left;) {
        size_t burst = left < plan->burst ? left : plan->burst;
        came += send_burst(plan, fd, burst);
        left -= burst;
    }
    return came;
}

/* Answers each burst's last datagram; ends when nothing has come for a while after all must have been sent. */
static void receive_datagrams(const struct plan *plan, int fd) {
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    size_t total = 0;
    uint32_t came = 0;
    struct timeval patience = {.tv_sec = 2};
    while (total < plan->warm + plan->measured) {
        if (recvfrom(fd, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &length) < 0) return;
        came++, total++;
        if (buffer[0] != LAST) continue;
        sendto(fd, &came, sizeof came, 0, (struct sockaddr *)&from, length);
        came = 0;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    }
}

static void send_all(const struct plan *plan) {
    int fd = connected(plan);
    size_t (*send_them)(const struct plan *, int, size_t) = plan->udp ? send_datagrams : send_stream;
    send_them(plan, fd, plan->warm);
    struct frames first = frames();
    MARK(MARK_BEGIN);
    size_t came = send_them(plan, fd, plan->measured);
    MARK(MARK_END);
    struct frames then = frames();
    if (plan->udp) send(fd, "", 1, 0);
    printf("{\"sent\":%zu,\"came\":%zu,\"size\":%zu,\"frames_out\":%lu,\"frames_in\":%lu}\n", plan->measured, came,
           plan->size, then.sent - first.sent, then.received - first.received);
}

static void receive_all(const struct plan *plan) {
    int fd = accepted(plan);
    if (plan->udp) {
        receive_datagrams(plan, fd);
        recv(fd, buffer, sizeof buffer, 0);
        return;
    }
    receive_stream(plan, fd, plan->warm);
    receive_stream(plan, fd, plan->measured);
    while (read(fd, buffer, sizeof buffer) > 0) continue;
}

int main(int argc, char **argv) {
    if (argc != 12) {
        fprintf(stderr, "usage: counted NAME send|receive tcp|udp ADDRESS PORT SIZE WARM MEASURED BURST SEND-BUFFER RECEIVE-BUFFER\n");
        return 2;
    }
    struct plan plan = {
        .udp = !strcmp(argv[3], "udp"),
        .peer = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[5]))},
        .size = strtoul(argv[6], NULL, 10),
        .warm = strtoul(argv[7], NULL, 10),
        .measured = strtoul(argv[8], NULL, 10),
        .burst = strtoul(argv[9], NULL, 10),
        .send_buffer = atoi(argv[10]),
        .receive_buffer = atoi(argv[11]),
    };
    if (inet_pton(AF_INET, argv[4], &plan.peer.sin_addr) != 1 || !plan.size || plan.size > LARGEST || !plan.burst) {
        fprintf(stderr, "counted: no such address, size or burst\n");
        return 2;
    }
    prctl(PR_SET_NAME, argv[1]);
    signal(SIGALRM, give_up);
    alarm(PATIENCE);
    if (!strcmp(argv[2], "send")) send_all(&plan);
    else receive_all(&plan);
    return 0;
}
