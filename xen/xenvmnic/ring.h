/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The ring that two machines share, and the checks by which each protects itself from the other.
 *
 * Nouns, in the order in which a frame meets them:
 *
 *   board   one page a machine keeps for one peer: how far it has written and read, and where its area lies
 *   area    the pages that hold the bytes of one direction; another, larger or smaller, may follow it
 *   record  a frame in an area: two bytes of ours, the six bytes of XenVMNet's header, the payload
 *   outlet  the writer's own knowledge of its direction, which no peer can reach
 *   inlet   the reader's own knowledge of the other direction
 *
 * Each machine grants its board and its area to the peer for reading only. So no machine writes into another's memory,
 * but a peer can lie, and change its words while they are read. Therefore every shared word is read once, into a
 * variable, and checked before it is used: produced and consumed against the area's size, a record's length against
 * the bytes produced.
 *
 * Positions count bytes since the pair was opened, modulo 2^32. An area begins at its base; its size is a power of two.
 *
 * Nothing here needs the kernel: tests/ring_test.c and tests/ring_fuzz.c build it as a program.
 */
#ifndef XENVMNIC_RING_H
#define XENVMNIC_RING_H

#ifdef __KERNEL__
#include <linux/compiler.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>
#include <asm/barrier.h>
#else
#include "tests/kernel.h"
#endif

#define XVM_MAGIC	0x434d5658	/* "XVMC" */
#define XVM_VERSION	1
#define XVM_PAGE	4096u
#define XVM_MAX_PAGES	128u		/* of an area: 512 KiB */
#define XVM_ALIGN	8u

/* S1's frame: at most a page, of which six bytes are its header. */
#define XVM_FRAME	4096u
#define XVM_HEADER	6u
#define XVM_PAYLOAD	(XVM_FRAME - XVM_HEADER)
/* The option of longer frames: as much as the header's 16 bits can say. */
#define XVM_LONG	65535u

/* Kinds of frames that a board's owner can read; both must be able to before one is used. */
#define XVM_CAN_LONG	0x0001u

/* A record's first two bytes. */
#define XVM_FRAME_HERE	0x0001u		/* a frame follows */
#define XVM_NEXT_AREA	0x0002u		/* the writer goes on at the begin of its next area */
#define XVM_BLANK	0x0100u		/* the checksum of TCP or UDP was left out */
#define XVM_LARGE	0x0200u		/* a run of TCP segments; struct xvm_large comes before the payload */
#define XVM_KINDS	(XVM_FRAME_HERE | XVM_NEXT_AREA)
#define XVM_FLAGS	(XVM_BLANK | XVM_LARGE)

struct xvm_board {
	u32 magic;
	u16 version;
	u16 can;			/* XVM_CAN_* */
	/* Own direction: the owner writes frames. */
	u32 produced;			/* position behind the last record */
	u32 call_at_consumed;		/* wants to be notified once the peer has consumed up to here */
	u32 area;			/* number of the newest area, from 1 on; 0: none yet */
	u32 pages[2];			/* of the areas with even and odd numbers */
	/* The other direction: the owner reads frames. */
	u32 consumed;			/* position up to which records were read */
	u32 call_at_produced;		/* wants to be notified once the peer has produced up to here */
	u32 mapped;			/* number of the peer's newest area that is mapped here */
	u32 released;			/* areas of the peer up to this number are no longer mapped here */
	u32 unused[5];
	u32 ref[2][XVM_MAX_PAGES];	/* grant references of the areas with even and odd numbers */
};

struct xvm_record {
	u16 kind;			/* of ours */
	u16 machine;			/* S1's header: the destination's id, */
	u16 protocol;			/* which protocol, in network order, */
	u16 length;			/* and how many bytes of payload */
};

struct xvm_large {
	u16 segment;			/* bytes of payload a segment */
	u16 unused[3];
};

/* The bytes of one direction. `page` are addresses in the own address space. */
struct xvm_area {
	u32 number;
	u32 base;
	u32 size;			/* bytes */
	u8 *page[XVM_MAX_PAGES];
};

struct xvm_outlet {
	u32 produced;			/* as on the board */
	u32 consumed;			/* the last valid word of the reader */
	struct xvm_area *area;
};

struct xvm_inlet {
	u32 consumed;
	u32 produced;			/* the last valid word of the writer */
	struct xvm_area *area;
};

/* One frame found: where its payload begins, and the fields of its record, checked. */
struct xvm_found {
	struct xvm_record record;
	struct xvm_large large;
	u32 payload;			/* position */
	u32 next;			/* position of the record after */
};

enum xvm_look {
	XVM_NOTHING = 0,
	XVM_FOUND = 1,
	XVM_LEFT = 2,			/* the writer has gone on to its next area */
};

static inline u32 xvm_aligned(u32 bytes)
{
	return (bytes + XVM_ALIGN - 1) & ~(XVM_ALIGN - 1);
}

/* Bytes that a frame takes in an area. */
static inline u32 xvm_record_size(u32 payload, bool large)
{
	return xvm_aligned(sizeof(struct xvm_record) + (large ? sizeof(struct xvm_large) : 0) + payload);
}

/* Whether going from `old` to `now` reaches `at`: then the peer that waits there is notified. */
static inline bool xvm_reaches(u32 old, u32 now, u32 at)
{
	return (u32)(now - at) < (u32)(now - old);
}

/* Whether an area may have so many pages. */
static inline bool xvm_pages_valid(u32 pages)
{
	return pages && pages <= XVM_MAX_PAGES && !(pages & (pages - 1));
}

static inline void xvm_area_init(struct xvm_area *area, u32 number, u32 pages)
{
	area->number = number;
	area->base = 0;
	area->size = pages * XVM_PAGE;
}

/* Address of a position, and how many bytes follow it on its page. The position needs no check: it is taken modulo size. */
static inline u8 *xvm_at(const struct xvm_area *area, u32 position, u32 *bytes)
{
	u32 offset = (position - area->base) & (area->size - 1);

	*bytes = XVM_PAGE - offset % XVM_PAGE;
	return area->page[offset / XVM_PAGE] + offset % XVM_PAGE;
}

static inline void xvm_write(const struct xvm_area *area, u32 position, const void *from, u32 bytes)
{
	while (bytes) {
		u32 some;
		u8 *to = xvm_at(area, position, &some);

		some = min(some, bytes);
		memcpy(to, from, some);
		from = (const u8 *)from + some;
		position += some;
		bytes -= some;
	}
}

static inline void xvm_read(const struct xvm_area *area, u32 position, void *to, u32 bytes)
{
	while (bytes) {
		u32 some;
		const u8 *from = xvm_at(area, position, &some);

		some = min(some, bytes);
		memcpy(to, from, some);
		to = (u8 *)to + some;
		position += some;
		bytes -= some;
	}
}

/*
 * Checks and takes the position that the reader says it has consumed. It must lie between the last valid one and the
 * position produced; any other breaks the pair (-EPROTO).
 */
static inline int xvm_hear_consumed(struct xvm_outlet *out, u32 consumed)
{
	if ((u32)(consumed - out->consumed) > (u32)(out->produced - out->consumed))
		return -EPROTO;
	out->consumed = consumed;
	return 0;
}

/* Bytes that the outlet's area has free. One record's head is always kept for the word that the next area follows. */
static inline u32 xvm_room(const struct xvm_outlet *out)
{
	u32 from = out->consumed, used;

	if (!out->area)
		return 0;
	/* A reader that is still in the area before has taken nothing from this one. */
	if ((u32)(out->produced - out->consumed) > (u32)(out->produced - out->area->base))
		from = out->area->base;
	used = out->produced - from + sizeof(struct xvm_record);
	return used < out->area->size ? out->area->size - used : 0;
}

/* Writes a record's head at the outlet's position, and returns the position of the payload. Room must have been checked. */
static inline u32 xvm_put_head(struct xvm_outlet *out, const struct xvm_record *record, const struct xvm_large *large)
{
	u32 at = out->produced;

	xvm_write(out->area, at, record, sizeof(*record));
	at += sizeof(*record);
	if (record->kind & XVM_LARGE) {
		xvm_write(out->area, at, large, sizeof(*large));
		at += sizeof(*large);
	}
	return at;
}

/* Goes on in `next`, which the reader has mapped. The area before is to be kept until the reader has released it. */
static inline void xvm_go_on(struct xvm_outlet *out, struct xvm_area *next)
{
	const struct xvm_record word = { .kind = XVM_NEXT_AREA };

	if (out->area) {
		xvm_write(out->area, out->produced, &word, sizeof(word));
		out->produced += sizeof(word);
	}
	next->base = out->produced;
	out->area = next;
}

/*
 * Takes in how far the writer says it has produced. There cannot be more than the area holds. (Records of the writer's
 * next area count only once the inlet has gone on to it, so the word is heard again then.)
 */
static inline int xvm_hear_produced(struct xvm_inlet *in, u32 produced, u32 next_size)
{
	u32 size = in->area ? in->area->size : 0;

	if ((u32)(produced - in->consumed) > size + next_size)
		return -EPROTO;
	if (produced % XVM_ALIGN)
		return -EPROTO;
	in->produced = produced;
	return 0;
}

/* Whether a record's head, a copy of the peer's words, describes a frame that can be there. */
static inline int xvm_check_record(const struct xvm_record *record, u16 me, u32 limit)
{
	if (record->kind == XVM_NEXT_AREA)
		return 0;
	if ((record->kind & XVM_KINDS) != XVM_FRAME_HERE || record->kind & ~(XVM_KINDS | XVM_FLAGS))
		return -EPROTO;
	if (record->machine != me || !record->length || record->length > limit)
		return -EPROTO;
	return 0;
}

/*
 * Looks at the next record. `limit` is the longest payload that was agreed. XVM_FOUND fills `found`, whose `next` the
 * caller hands to xvm_took() after it has copied the payload.
 */
static inline int xvm_look(struct xvm_inlet *in, u16 me, u32 limit, struct xvm_found *found)
{
	u32 there = in->produced - in->consumed, size;
	struct xvm_record *record = &found->record;
	bool large;

	if (!there || !in->area)
		return XVM_NOTHING;
	xvm_read(in->area, in->consumed, record, sizeof(*record));
	barrier();			/* from here on only the copy counts */
	if (xvm_check_record(record, me, limit))
		return -EPROTO;
	if (record->kind == XVM_NEXT_AREA) {
		in->consumed += sizeof(*record);
		return XVM_LEFT;
	}
	large = record->kind & XVM_LARGE;
	size = xvm_record_size(record->length, large);
	if (size > there || size > in->area->size)
		return -EPROTO;
	found->payload = in->consumed + sizeof(*record);
	if (large) {
		xvm_read(in->area, found->payload, &found->large, sizeof(found->large));
		barrier();
		found->payload += sizeof(found->large);
		if (limit <= XVM_PAYLOAD || !found->large.segment || found->large.segment >= record->length)
			return -EPROTO;
	}
	found->next = in->consumed + size;
	return XVM_FOUND;
}

static inline void xvm_took(struct xvm_inlet *in, const struct xvm_found *found)
{
	in->consumed = found->next;
}

/* Goes on in the writer's next area, after XVM_LEFT. */
static inline void xvm_follow(struct xvm_inlet *in, struct xvm_area *next)
{
	next->base = in->consumed;
	in->area = next;
}

/*
 * Where a blank checksum of IPv4 stands: `start` is where the sum begins, `offset` where it is stored after that.
 * `header` are the packet's first `bytes` bytes, `length` is the packet's. -EPROTO where there is none to be blank:
 * not IPv4, a fragment, neither TCP nor UDP, or cut short.
 */
static inline int xvm_checksum_place(const u8 *header, u32 bytes, u32 length, u16 *start, u16 *offset)
{
	u32 head, need;

	if (bytes < 20 || header[0] >> 4 != 4)
		return -EPROTO;
	head = (header[0] & 15) * 4;
	if (head < 20 || (header[6] & 0x3f) || header[7])
		return -EPROTO;
	switch (header[9]) {
	case IPPROTO_TCP:
		*offset = 16;
		need = 20;
		break;
	case IPPROTO_UDP:
		*offset = 6;
		need = 8;
		break;
	default:
		return -EPROTO;
	}
	if (head + need > length)
		return -EPROTO;
	*start = head;
	return 0;
}

/* How an area should change: the operator's limits, and its use since the last check. */
struct xvm_demand {
	u32 least, most;		/* pages an area may have */
	u32 full;			/* times that the area had no room for a frame */
	u32 peak;			/* the most bytes that were in it at a time */
	u32 longest;			/* the longest record that was wanted, in bytes */
	u32 calm;			/* looks in a row at which a quarter of it would have done */
};

#define XVM_FULL_TO_GROW	4u
#define XVM_CALM_TO_SHRINK	3u

/* Pages that an area should have next, a power of two from `least` to `most`. `pages` are those of now, 0 at first. */
static inline u32 xvm_pages_wanted(const struct xvm_demand *demand, u32 pages)
{
	u32 wanted = max(pages, demand->least);

	if (pages && demand->full >= XVM_FULL_TO_GROW)
		wanted = pages * 2;
	else if (pages && demand->calm >= XVM_CALM_TO_SHRINK)
		wanted = pages / 2;
	while (wanted < demand->most && wanted * XVM_PAGE < demand->longest + sizeof(struct xvm_record))
		wanted *= 2;
	return clamp(wanted, demand->least, demand->most);
}

#endif
