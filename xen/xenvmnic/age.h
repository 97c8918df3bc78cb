/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The timer of a machine's addresses in the local map. A machine changes its beat in the global map while it runs. One
 * whose beat stays the same for too long is gone: its addresses leave the map, and are free for another machine.
 *
 * The clock is in jiffies, and wraps; these functions have no other needs of the kernel, so that tests run as a program.
 */
#ifndef XENVMNIC_AGE_H
#define XENVMNIC_AGE_H

struct xvm_age {
	u32 beat;			/* as last read */
	unsigned long heard;		/* when it changed, or the machine was seen alive */
	bool gone;			/* until its beat changes, also when the clock wraps */
};

static inline void xvm_age_alive(struct xvm_age *age, unsigned long now)
{
	age->heard = now;
	age->gone = false;
}

/* The machine is new. */
static inline void xvm_age_begin(struct xvm_age *age, u32 beat, unsigned long now)
{
	age->beat = beat;
	xvm_age_alive(age, now);
}

/* The global map has this beat of it. */
static inline void xvm_age_hear(struct xvm_age *age, u32 beat, unsigned long now)
{
	if (beat == age->beat)
		return;
	age->beat = beat;
	xvm_age_alive(age, now);
}

/* Whether it is gone: nothing was heard of it for longer than `limit`. */
static inline bool xvm_age_over(struct xvm_age *age, unsigned long now, unsigned long limit)
{
	if ((long)(now - age->heard) > (long)limit)
		age->gone = true;
	return age->gone;
}

#endif
