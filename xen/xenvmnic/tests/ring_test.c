// SPDX-License-Identifier: GPL-2.0
/* The promises of ring.h, each as a test of its own: honest pairs first, then peers that lie. */
#include "common.h"

static const u32 near_the_end = 0xffffe000u;	/* positions that pass 2^32 soon */

static void begin(struct xvm_outlet *out, struct xvm_inlet *in, u32 at, u32 pages)
{
	struct xvm_area *area = area_new(1, pages);

	memset(out, 0, sizeof(*out));
	memset(in, 0, sizeof(*in));
	out->produced = out->consumed = in->produced = in->consumed = at;
	xvm_go_on(out, area);
	xvm_follow(in, area);
}

static void frames_of_every_size_arrive_where_positions_wrap(void)
{
	struct xvm_outlet out;
	struct xvm_inlet in;
	struct xvm_found found;

	begin(&out, &in, near_the_end, 4);
	for (u32 length = 1; length <= XVM_PAYLOAD; length++) {
		check(put(&out, length, length, XVM_FRAME_HERE));
		check(!xvm_hear_produced(&in, out.produced, 0));
		check(xvm_look(&in, ME, XVM_PAYLOAD, &found) == XVM_FOUND);
		check(is(&in, &found, length, length));
		xvm_took(&in, &found);
		check(xvm_look(&in, ME, XVM_PAYLOAD, &found) == XVM_NOTHING);
		check(!xvm_hear_consumed(&out, in.consumed));
	}
	area_free(out.area);
}

static void a_full_ring_takes_no_more_and_overwrites_nothing(void)
{
	struct xvm_outlet out;
	struct xvm_inlet in;
	struct xvm_found found;
	u32 put_in = 0, taken = 0;

	begin(&out, &in, near_the_end, 2);
	while (put(&out, put_in, 1000, XVM_FRAME_HERE))
		put_in++;
	check(put_in == 2 * XVM_PAGE / xvm_record_size(1000, false));
	check(!xvm_hear_produced(&in, out.produced, 0));
	while (xvm_look(&in, ME, XVM_PAYLOAD, &found) == XVM_FOUND) {
		check(is(&in, &found, taken++, 1000));
		xvm_took(&in, &found);
	}
	check(taken == put_in);
	area_free(out.area);
}

static void frames_stay_in_order_while_the_ring_grows_and_shrinks(void)
{
	static const u32 sizes[] = { 2, 8, 64, 4, 128, 2 };
	struct xvm_outlet out;
	struct xvm_inlet in;
	struct xvm_found found;
	u32 sent = 0, taken = 0;

	begin(&out, &in, near_the_end, 4);
	for (u32 i = 0; i < 6; i++) {
		struct xvm_area *old = out.area, *next = area_new(i + 2, sizes[i]);

		while (put(&out, sent, 700, XVM_FRAME_HERE))
			sent++;
		xvm_go_on(&out, next);
		check(put(&out, sent, 700, XVM_FRAME_HERE));
		sent++;
		check(!xvm_hear_produced(&in, out.produced, next->size));
		for (;;) {
			int look = xvm_look(&in, ME, XVM_PAYLOAD, &found);

			if (look == XVM_NOTHING)
				break;
			if (look == XVM_LEFT) {
				xvm_follow(&in, next);
				continue;
			}
			check(look == XVM_FOUND && is(&in, &found, taken++, 700));
			xvm_took(&in, &found);
		}
		check(taken == sent);
		check(!xvm_hear_consumed(&out, in.consumed));
		area_free(old);
	}
	area_free(out.area);
}

static void room_is_right_while_the_reader_is_in_the_area_before(void)
{
	struct xvm_outlet out;
	struct xvm_inlet in;
	struct xvm_area *old, *next = area_new(2, 2);

	begin(&out, &in, near_the_end, 4);
	old = out.area;
	check(put(&out, 0, 4000, XVM_FRAME_HERE) && put(&out, 1, 4000, XVM_FRAME_HERE));
	xvm_go_on(&out, next);
	check(xvm_room(&out) == 2 * XVM_PAGE - sizeof(struct xvm_record));
	check(put(&out, 2, 4000, XVM_FRAME_HERE));
	check(xvm_room(&out) == 2 * XVM_PAGE - sizeof(struct xvm_record) - xvm_record_size(4000, false));
	check(!xvm_hear_consumed(&out, next->base));
	check(xvm_room(&out) == 2 * XVM_PAGE - sizeof(struct xvm_record) - xvm_record_size(4000, false));
	area_free(old);
	area_free(next);
}

static void a_reader_that_lies_is_found_out(void)
{
	struct xvm_outlet out;
	struct xvm_inlet in;

	begin(&out, &in, near_the_end, 4);
	check(put(&out, 0, 1000, XVM_FRAME_HERE));
	check(xvm_hear_consumed(&out, out.produced + 8) == -EPROTO);	/* more than there was */
	check(xvm_hear_consumed(&out, near_the_end - 8) == -EPROTO);	/* back */
	check(xvm_hear_consumed(&out, out.produced + 0x80000000u) == -EPROTO);
	check(out.consumed == near_the_end);
	check(!xvm_hear_consumed(&out, out.produced));
	area_free(out.area);
}

static void a_writer_that_lies_about_its_position_is_found_out(void)
{
	struct xvm_outlet out;
	struct xvm_inlet in;

	begin(&out, &in, near_the_end, 4);
	check(xvm_hear_produced(&in, near_the_end + 4 * XVM_PAGE + 8, 0) == -EPROTO);	/* more than the area holds */
	check(xvm_hear_produced(&in, near_the_end - 8, 0) == -EPROTO);			/* back */
	check(xvm_hear_produced(&in, near_the_end + 9, 0) == -EPROTO);			/* between records */
	check(!xvm_hear_produced(&in, near_the_end + 4 * XVM_PAGE, 0));
	area_free(out.area);
}

/* The result for a record that the peer wrote so, where it says that `there` bytes are produced. */
static int taken_for(struct xvm_record record, u16 segment, u32 there, u32 limit)
{
	struct xvm_large large = { .segment = segment };
	struct xvm_outlet out;
	struct xvm_inlet in;
	struct xvm_found found;
	int look;

	begin(&out, &in, near_the_end, 32);
	xvm_write(out.area, out.produced, &record, sizeof(record));
	xvm_write(out.area, out.produced + sizeof(record), &large, sizeof(large));
	check(!xvm_hear_produced(&in, out.produced + there, 0));
	look = xvm_look(&in, ME, limit, &found);
	area_free(out.area);
	return look;
}

static void a_record_that_lies_is_found_out(void)
{
	const u16 here = XVM_FRAME_HERE, large = here | XVM_LARGE;
	const struct xvm_record good = { here, ME, 8, 100 };
	struct xvm_record bad;

	check(taken_for(good, 0, 112, XVM_PAYLOAD) == XVM_FOUND);
	check(taken_for(good, 0, 104, XVM_PAYLOAD) == -EPROTO);	/* longer than the bytes produced */
	bad = good; bad.machine = ME + 1;
	check(taken_for(bad, 0, 112, XVM_PAYLOAD) == -EPROTO);
	bad = good; bad.length = 0;
	check(taken_for(bad, 0, 112, XVM_PAYLOAD) == -EPROTO);
	bad = good; bad.length = XVM_PAYLOAD + 1;
	check(taken_for(bad, 0, 16384, XVM_PAYLOAD) == -EPROTO);
	check(taken_for(bad, 0, 16384, XVM_LONG) == XVM_FOUND);
	bad = good; bad.kind = 0;
	check(taken_for(bad, 0, 112, XVM_PAYLOAD) == -EPROTO);
	bad.kind = XVM_FRAME_HERE | XVM_NEXT_AREA;
	check(taken_for(bad, 0, 112, XVM_PAYLOAD) == -EPROTO);
	bad.kind = XVM_FRAME_HERE | 0x8000;
	check(taken_for(bad, 0, 112, XVM_PAYLOAD) == -EPROTO);
	bad.kind = XVM_NEXT_AREA;
	check(taken_for(bad, 0, 112, XVM_PAYLOAD) == XVM_LEFT);
	bad = good; bad.kind = large; bad.length = 9000;
	check(taken_for(bad, 1448, 16384, XVM_LONG) == XVM_FOUND);
	check(taken_for(bad, 1448, 16384, XVM_PAYLOAD) == -EPROTO);	/* was not agreed */
	check(taken_for(bad, 0, 16384, XVM_LONG) == -EPROTO);
	check(taken_for(bad, 9000, 16384, XVM_LONG) == -EPROTO);	/* a run of one segment is none */
	check(taken_for(bad, 1448, 9008, XVM_LONG) == -EPROTO);		/* no room for the word about segments */
}

static void who_waits_is_notified_once_when_the_position_passes(void)
{
	check(xvm_reaches(0, 8, 1) && !xvm_reaches(8, 16, 1) && !xvm_reaches(0, 8, 9));
	check(xvm_reaches(0xfffffff8u, 8, 0xfffffff9u) && xvm_reaches(0xfffffff8u, 8, 1) && !xvm_reaches(0xfffffff8u, 8, 9));
	check(!xvm_reaches(8, 8, 8));
}

static void rings_grow_while_full_and_shrink_when_calm(void)
{
	struct xvm_demand demand = { .least = 4, .most = 64 };

	check(xvm_pages_wanted(&demand, 0) == 4);
	check(xvm_pages_wanted(&demand, 16) == 16);
	demand.full = XVM_FULL_TO_GROW;
	check(xvm_pages_wanted(&demand, 16) == 32 && xvm_pages_wanted(&demand, 64) == 64);
	demand.full = 0;
	demand.calm = XVM_CALM_TO_SHRINK;
	check(xvm_pages_wanted(&demand, 16) == 8 && xvm_pages_wanted(&demand, 4) == 4);
	demand.calm = 0;
	demand.longest = 65000;
	check(xvm_pages_wanted(&demand, 4) == 16);
	demand.longest = 0xffffffff;
	check(xvm_pages_wanted(&demand, 4) == 64);
}

static void blank_checksums_are_found_only_where_they_can_be(void)
{
	u8 ip[60] = { 0x45, [9] = IPPROTO_TCP };
	u16 start, offset;

	check(!xvm_checksum_place(ip, 60, 60, &start, &offset) && start == 20 && offset == 16);
	ip[0] = 0x46;
	ip[9] = IPPROTO_UDP;
	check(!xvm_checksum_place(ip, 60, 32, &start, &offset) && start == 24 && offset == 6);
	check(xvm_checksum_place(ip, 60, 31, &start, &offset) == -EPROTO);
	check(xvm_checksum_place(ip, 19, 32, &start, &offset) == -EPROTO);
	ip[6] = 0x20;		/* more fragments */
	check(xvm_checksum_place(ip, 60, 60, &start, &offset) == -EPROTO);
	ip[6] = 0x40;		/* may not be fragmented */
	check(!xvm_checksum_place(ip, 60, 60, &start, &offset));
	ip[7] = 1;
	check(xvm_checksum_place(ip, 60, 60, &start, &offset) == -EPROTO);
	ip[7] = 0;
	ip[9] = IPPROTO_ICMP;
	check(xvm_checksum_place(ip, 60, 60, &start, &offset) == -EPROTO);
	ip[9] = IPPROTO_TCP;
	ip[0] = 0x44;
	check(xvm_checksum_place(ip, 60, 60, &start, &offset) == -EPROTO);
	ip[0] = 0x65;
	check(xvm_checksum_place(ip, 60, 60, &start, &offset) == -EPROTO);
}

int main(void)
{
	check(sizeof(struct xvm_board) <= XVM_PAGE);
	check(sizeof(struct xvm_record) == 2 + XVM_HEADER && XVM_PAYLOAD == 4090);
	check(xvm_record_size(1500, false) == 1512);	/* internal fragmentation: where a page is handed over, 4096 */
	frames_of_every_size_arrive_where_positions_wrap();
	a_full_ring_takes_no_more_and_overwrites_nothing();
	frames_stay_in_order_while_the_ring_grows_and_shrinks();
	room_is_right_while_the_reader_is_in_the_area_before();
	a_reader_that_lies_is_found_out();
	a_writer_that_lies_about_its_position_is_found_out();
	a_record_that_lies_is_found_out();
	who_waits_is_notified_once_when_the_position_passes();
	rings_grow_while_full_and_shrink_when_calm();
	blank_checksums_are_found_only_where_they_can_be();
	puts("xenvmnic: 10 tests of the ring passed");
	return 0;
}
