// SPDX-License-Identifier: GPL-2.0
/*
 * Random peers against ring.h, under sanitizers: `ring_fuzz ROUNDS [SEED]`. An honest pair that grows and shrinks at
 * random must deliver every frame unchanged and in order; a hostile writer or reader, with words and records that are
 * random, nearly right, and changing, must be refused or read within its own pages, in bounded steps.
 */
#include "common.h"

static u32 pages(u64 *seed)
{
	return 2u << below(seed, 6);
}

static void honest(u64 *seed)
{
	struct xvm_outlet out = { .produced = draw(seed) & ~7u };
	struct xvm_inlet in = { .consumed = out.produced, .produced = out.produced };
	struct xvm_area *old = NULL, *next = NULL;
	u32 sent = 0, taken = 0, lengths[4096];
	struct xvm_found found;

	out.consumed = out.produced;
	xvm_go_on(&out, area_new(1, pages(seed)));
	xvm_follow(&in, out.area);
	for (u32 step = 0; step < 400; step++) {
		u32 length = 1 + below(seed, below(seed, 4) ? 1500 : XVM_LONG);

		if (sent < 4096 && put(&out, sent, length, XVM_FRAME_HERE))
			lengths[sent++] = length;
		if (!old && !below(seed, 20)) {
			old = out.area;
			next = area_new(out.area->number + 1, pages(seed));
			xvm_go_on(&out, next);
		}
		if (below(seed, 3))
			continue;
		check(!xvm_hear_produced(&in, out.produced, next ? next->size : 0));
		for (u32 some = below(seed, 8); some; some--) {
			int look = xvm_look(&in, ME, XVM_LONG, &found);

			check(look >= 0);
			if (look == XVM_LEFT) {
				xvm_follow(&in, next);
				area_free(old);
				old = next = NULL;
			} else if (look == XVM_FOUND) {
				check(is(&in, &found, taken, lengths[taken]));
				taken++;
				xvm_took(&in, &found);
			}
		}
		check(!xvm_hear_consumed(&out, in.consumed));
	}
	check(taken <= sent);
	area_free(old);
	area_free(out.area);
}

/* A word near one that would be right. */
static u32 near(u64 *seed, u32 right)
{
	switch (below(seed, 4)) {
	case 0: return draw(seed);
	case 1: return right + (below(seed, 64) * 8);
	case 2: return right - (below(seed, 64) * 8);
	default: return right + below(seed, 65536);
	}
}

static void scribble(u64 *seed, struct xvm_area *area, u32 at)
{
	struct xvm_record record = {
		.kind = below(seed, 4) ? XVM_FRAME_HERE | (below(seed, 4) << 8) : (u16)draw(seed),
		.machine = below(seed, 16) ? ME : (u16)draw(seed),
		.protocol = 8,
		.length = below(seed, 2) ? below(seed, 5000) : (u16)draw(seed),
	};

	xvm_write(area, at, &record, sizeof(record));
}

static void hostile_writer(u64 *seed)
{
	u32 limit = below(seed, 2) ? XVM_PAYLOAD : XVM_LONG, size;
	struct xvm_area *area = area_new(1, pages(seed));
	struct xvm_inlet in = { .consumed = draw(seed) & ~7u };
	static u8 bytes[XVM_LONG];
	struct xvm_found found;

	xvm_follow(&in, area);
	size = area->size;
	for (u32 step = 0; step < 200; step++) {
		u32 looks = 0;

		if (xvm_hear_produced(&in, near(seed, in.consumed), 0))
			continue;
		for (;;) {
			u32 from = in.consumed;
			int look;

			scribble(seed, area, from);
			look = xvm_look(&in, ME, limit, &found);
			check(looks++ <= size / sizeof(struct xvm_record));
			if (look != XVM_FOUND)
				break;
			check(found.record.length && found.record.length <= limit);
			check(found.next - from <= in.produced - from && found.next - from <= size && found.next != from);
			scribble(seed, area, from);	/* too late: the copy counts */
			xvm_read(area, found.payload, bytes, found.record.length);
			xvm_took(&in, &found);
		}
	}
	area_free(area);
}

static void hostile_reader(u64 *seed)
{
	struct xvm_outlet out = { .produced = draw(seed) & ~7u };
	struct xvm_area *old = NULL;

	out.consumed = out.produced;
	xvm_go_on(&out, area_new(1, pages(seed)));
	for (u32 step = 0; step < 300; step++) {
		put(&out, step, 1 + below(seed, 4090), XVM_FRAME_HERE);
		check(xvm_room(&out) <= out.area->size);
		if (!below(seed, 40)) {
			area_free(old);
			old = out.area;
			xvm_go_on(&out, area_new(2, pages(seed)));
		}
		xvm_hear_consumed(&out, near(seed, out.consumed));
		check((u32)(out.produced - out.consumed) < 0x80000000u);
	}
	area_free(old);
	area_free(out.area);
}

static void headers(u64 *seed)
{
	u8 header[64];
	u16 start, offset;
	u32 length = below(seed, 65536), bytes = below(seed, 65);

	for (u32 i = 0; i < sizeof(header); i++)
		header[i] = draw(seed);
	header[0] = below(seed, 2) ? 0x45 : header[0];
	if (!xvm_checksum_place(header, min(bytes, length), length, &start, &offset))
		check(start >= 20 && start + offset + 2u <= length);
}

int main(int count, char **words)
{
	u32 rounds = count > 1 ? strtoul(words[1], NULL, 0) : 1000;
	u64 first = count > 2 ? strtoull(words[2], NULL, 0) : 1;

	for (u32 round = 0; round < rounds; round++) {
		u64 seed = (first + round) * 0x9e3779b97f4a7c15ULL | 1;

		honest(&seed);
		hostile_writer(&seed);
		hostile_reader(&seed);
		for (u32 i = 0; i < 100; i++)
			headers(&seed);
	}
	printf("xenvmnic: %u rounds of random peers from seed %llu passed\n", rounds, (unsigned long long)first);
	return 0;
}
