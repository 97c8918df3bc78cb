/* Preloaded into FRR's daemons: a wait for a timer lasts until the timer is due.
 *
 * FRR before 10.6 cuts the time that it may sleep down to whole milliseconds, and calls ppoll without a pause for what
 * is left of the last one (github.com/FRRouting/frr, pull request 19715). In a guest that is most of what an idle
 * router costs. A millisecond more in each such call ends it: timers are as late as a busy machine makes them anyway.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>

static const long SECOND = 1000000000, CUT_OFF = 1000000; /* nanoseconds */

typedef int ppoll_t(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);

int ppoll(struct pollfd *descriptors, nfds_t count, const struct timespec *timeout, const sigset_t *signals)
{
	static ppoll_t *next;
	if (!next)
		next = (ppoll_t *)dlsym(RTLD_NEXT, "ppoll");
	/* No time at all means: only look. */
	if (!timeout || (timeout->tv_sec == 0 && timeout->tv_nsec == 0))
		return next(descriptors, count, timeout, signals);
	struct timespec longer = {timeout->tv_sec, timeout->tv_nsec + CUT_OFF};
	if (longer.tv_nsec >= SECOND) {
		longer.tv_sec += 1;
		longer.tv_nsec -= SECOND;
	}
	return next(descriptors, count, &longer, signals);
}
