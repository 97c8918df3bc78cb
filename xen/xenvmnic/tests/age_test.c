// SPDX-License-Identifier: GPL-2.0
/* The timer of a machine's addresses: which machine is gone, and when. */
#include <limits.h>

#include "common.h"
#include "../age.h"

static const unsigned long limit = 35;
static const unsigned long starts[] = { 0, 1000, ULONG_MAX - 20 };	/* the last clock wraps soon */

static void a_machine_whose_beat_changes_stays(void)
{
	for (u32 i = 0; i < 3; i++) {
		struct xvm_age age;
		u32 beat = 0xfffffffeu;

		xvm_age_begin(&age, beat, starts[i]);
		for (unsigned long second = 0; second < 1000; second++) {
			if (second % 10 == 0)
				xvm_age_hear(&age, ++beat, starts[i] + second);
			check(!xvm_age_over(&age, starts[i] + second, limit));
		}
	}
}

static void a_machine_without_a_beat_is_gone_after_the_limit(void)
{
	for (u32 i = 0; i < 3; i++) {
		struct xvm_age age;

		xvm_age_begin(&age, 0, starts[i]);
		for (unsigned long second = 0; second <= limit; second++) {
			xvm_age_hear(&age, 0, starts[i] + second);	/* read again, the same */
			check(!xvm_age_over(&age, starts[i] + second, limit));
		}
		check(xvm_age_over(&age, starts[i] + limit + 1, limit));
	}
}

static void a_machine_that_is_gone_stays_so_until_its_beat_changes(void)
{
	struct xvm_age age;

	xvm_age_begin(&age, 7, 0);
	check(xvm_age_over(&age, limit + 1, limit));
	xvm_age_hear(&age, 7, limit + 2);
	check(xvm_age_over(&age, limit + 2, limit) && age.gone);
	check(xvm_age_over(&age, ULONG_MAX / 2 + limit, limit));	/* half the clock later it looks like the future */
	xvm_age_hear(&age, 8, ULONG_MAX / 2 + limit);
	check(!age.gone && !xvm_age_over(&age, ULONG_MAX / 2 + limit, limit));
}

static void a_machine_with_an_open_pair_lives_whatever_its_beat(void)
{
	struct xvm_age age;

	xvm_age_begin(&age, 7, 0);
	for (unsigned long second = 0; second < 100; second++) {
		xvm_age_alive(&age, second);
		check(!xvm_age_over(&age, second, limit));
	}
	check(!xvm_age_over(&age, 99 + limit, limit) && xvm_age_over(&age, 100 + limit, limit));
	xvm_age_alive(&age, 200);
	check(!age.gone);
}

int main(void)
{
	a_machine_whose_beat_changes_stays();
	a_machine_without_a_beat_is_gone_after_the_limit();
	a_machine_that_is_gone_stays_so_until_its_beat_changes();
	a_machine_with_an_open_pair_lives_whatever_its_beat();
	puts("xenvmnic: 4 tests of the timer passed");
	return 0;
}
