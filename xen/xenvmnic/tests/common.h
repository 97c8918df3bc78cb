/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by both test programs: checks that tell where they failed, areas of pages, pseudo-random numbers. */
#ifndef XENVMNIC_TESTS_COMMON_H
#define XENVMNIC_TESTS_COMMON_H

#include <stdio.h>
#include <stdlib.h>

#include "../ring.h"

#define ME	7

#define check(what) do { \
	if (!(what)) { \
		fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #what); \
		exit(1); \
	} \
} while (0)

/* Each page is an allocation of its own, so that the sanitizer sees a byte beyond. */
static inline struct xvm_area *area_new(u32 number, u32 pages)
{
	struct xvm_area *area = calloc(1, sizeof(*area));

	xvm_area_init(area, number, pages);
	for (u32 i = 0; i < pages; i++)
		area->page[i] = calloc(1, XVM_PAGE);
	return area;
}

static inline void area_free(struct xvm_area *area)
{
	if (!area)
		return;
	for (u32 i = 0; i < area->size / XVM_PAGE; i++)
		free(area->page[i]);
	free(area);
}

/* xorshift64*: the same numbers in every run of the same seed. */
static inline u64 draw(u64 *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

static inline u32 below(u64 *state, u32 limit)
{
	return (draw(state) >> 32) % limit;
}

/* Writes a frame with bytes that follow from its number. False: there is no room. */
static inline bool put(struct xvm_outlet *out, u32 number, u32 length, u16 kind)
{
	struct xvm_record record = { .kind = kind, .machine = ME, .protocol = 8, .length = length };
	struct xvm_large large = { .segment = 1448 };
	u32 size = xvm_record_size(length, kind & XVM_LARGE);
	static u8 bytes[XVM_LONG];

	if (xvm_room(out) < size)
		return false;
	for (u32 i = 0; i < length; i++)
		bytes[i] = number * 31 + i;
	xvm_write(out->area, xvm_put_head(out, &record, &large), bytes, length);
	out->produced += size;
	return true;
}

static inline bool is(const struct xvm_inlet *in, const struct xvm_found *found, u32 number, u32 length)
{
	static u8 bytes[XVM_LONG];

	if (found->record.length != length)
		return false;
	xvm_read(in->area, found->payload, bytes, length);
	for (u32 i = 0; i < length; i++)
		if (bytes[i] != (u8)(number * 31 + i))
			return false;
	return true;
}

#endif
