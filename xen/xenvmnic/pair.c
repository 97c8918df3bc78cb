// SPDX-License-Identifier: GPL-2.0
/*
 * Two machines' rings: how they are opened, grown, shrunk and closed. All of it runs in one work, xvm_control(), one
 * thing after the other; only the path of frames stands in net.c.
 *
 * Opening. Each machine makes a board, grants it to the other, and writes an offer into xenstore; the one with the lower
 * id makes the event channel, the other binds it. An offer has a nonce, and names the nonce of the offer that it answers
 * (echo). A machine connects to the offer that echoes its own, so neither takes an old offer for a new one.
 *
 * Growing and shrinking. The writer grants a new area and puts its number on its board; the reader maps it and says so
 * on its own; then the writer leaves the word that the next area follows, and goes on there. The reader lets the old one
 * go when it comes to that word. Frames flow all the while. No further change begins before the area before is back: a
 * peer that does not let go holds two areas of ours, not more.
 *
 * Closing. Either side takes its offer back; the other sees that and does the same. While frames flow, control looks
 * once a second if the peer's end of the event channel is still bound, for a machine that dies sends no notification.
 */
#include <linux/random.h>
#include <linux/slab.h>
#include <xen/events.h>
#include <asm/xen/hypercall.h>

#include "xenvmnic.h"

#define XVM_TICK	HZ
#define XVM_OPEN_WITHIN	(2 * HZ)
#define XVM_RETRY_AFTER	(5 * HZ)
#define XVM_STALL	(3 * HZ)

static void xvm_set_state(struct xvm_peer *p, enum xvm_state state)
{
	struct netdev_queue *queue = xvm_queue(p);

	__netif_tx_lock_bh(queue);
	p->state = state;
	if (state != XVM_OPENING)
		netif_tx_wake_queue(queue);
	__netif_tx_unlock_bh(queue);
}

/* Keeps granted pages that the peer still maps, to try again; there is room for all that a pair can have. */
static void xvm_revoke(struct xvm_peer *p, struct xvm_granted **granted)
{
	unsigned int i;

	if (!*granted)
		return;
	if (!xvm_try_revoke(*granted)) {
		for (i = 0; i < ARRAY_SIZE(p->held) - 1 && p->held[i]; i++)
			;
		if (p->held[i])
			xvm_abandon(*granted);
		else
			p->held[i] = *granted;
	}
	*granted = NULL;
}

static void xvm_try_held(struct xvm_peer *p)
{
	unsigned int i, n = 0;

	for (i = 0; i < ARRAY_SIZE(p->held); i++) {
		struct xvm_granted *held = p->held[i];

		p->held[i] = NULL;
		if (held && !xvm_try_revoke(held))
			p->held[n++] = held;
	}
}

/* -------- closing -------- */

static void xvm_let_go(struct xvm_mapped **mapped)
{
	if (*mapped)
		xvm_unmap(*mapped);
	*mapped = NULL;
}

static void xvm_close(struct xvm_peer *p, bool failed)
{
	bool open = p->state == XVM_OPEN;

	if (failed) {
		p->not_before = jiffies + XVM_RETRY_AFTER;
		p->spent = p->offer.nonce;
	}
	p->wanted = false;
	xvm_set_state(p, XVM_KNOWN);
	if (open)
		napi_disable(&p->napi);
	if (p->irq)
		unbind_from_irqhandler(p->irq, p);
	p->irq = 0;
	xvm_store_take_back(p);
	xvm_let_go(&p->in_old);
	xvm_let_go(&p->in_next);
	xvm_let_go(&p->in_area);
	xvm_let_go(&p->their_page);
	p->theirs = NULL;
	p->board = NULL;
	xvm_revoke(p, &p->old_area);
	xvm_revoke(p, &p->next_area);
	xvm_revoke(p, &p->area);
	xvm_revoke(p, &p->board_page);
	memset(&p->own, 0, sizeof(p->own));
	p->broken = false;
}

/* -------- opening -------- */

static int xvm_alloc_port(struct xvm_peer *p)
{
	struct evtchn_alloc_unbound op = { .dom = DOMID_SELF, .remote_dom = p->id };
	int err = HYPERVISOR_event_channel_op(EVTCHNOP_alloc_unbound, &op);

	p->port = err ? 0 : op.port;
	return err;
}

static int xvm_bind_port(struct xvm_peer *p)
{
	struct evtchn_bind_interdomain op = { .remote_dom = p->id, .remote_port = p->offer.port };
	int err = HYPERVISOR_event_channel_op(EVTCHNOP_bind_interdomain, &op);

	p->port = err ? 0 : op.local_port;
	return err;
}

static void xvm_close_port(struct xvm_peer *p)
{
	struct evtchn_close op = { .port = p->port };

	if (HYPERVISOR_event_channel_op(EVTCHNOP_close, &op))
		netdev_err(p->x->dev, "cannot close event channel %u\n", p->port);
	p->port = 0;
}

static int xvm_bind_irq(struct xvm_peer *p)
{
	int irq = bind_evtchn_to_irqhandler_lateeoi(p->port, xvm_event, 0, p->x->dev->name, p);

	if (irq < 0) {
		xvm_close_port(p);
		return irq;
	}
	p->irq = irq;
	return 0;
}

/* Board and offer of our own. */
static int xvm_begin(struct xvm_peer *p)
{
	int err;

	p->board_page = xvm_grant(p->id, 0, 1);
	if (!p->board_page)
		return -ENOMEM;
	p->board = (struct xvm_board *)p->board_page->area.page[0];
	p->board->magic = XVM_MAGIC;
	p->board->version = XVM_VERSION;
	p->board->can = xvm_long_frames ? XVM_CAN_LONG : 0;
	memset(&p->out, 0, sizeof(p->out));
	memset(&p->in, 0, sizeof(p->in));
	memset(&p->demand, 0, sizeof(p->demand));
	p->demand.least = xvm_least_pages;
	p->demand.most = xvm_most_pages;
	p->areas = 0;
	p->in_number = 0;
	p->published = 0;
	p->stalled = 0;
	p->seen_area = 0;
	p->seen_mapped = 0;
	p->seen_released = 0;
	p->eoi_due = false;
	p->met = false;
	if (p->x->me < p->id) {
		err = xvm_alloc_port(p);
		if (!err)
			err = xvm_bind_irq(p);
		if (err)
			return err;
	}
	p->own.ref = p->board_page->ref[0];
	p->own.port = p->x->me < p->id ? p->port : 0;
	do {
		p->own.nonce = get_random_u32();
	} while (!p->own.nonce);
	p->own.echo = p->offer.nonce != p->spent ? p->offer.nonce : 0;
	p->deadline = jiffies + XVM_OPEN_WITHIN;
	xvm_set_state(p, XVM_OPENING);
	return xvm_store_offer(p);
}

/* The peer has answered our offer: map its board, and let frames flow. */
static int xvm_connect(struct xvm_peer *p)
{
	u32 ref = p->offer.ref;
	int err;

	p->their_page = xvm_map(p->id, 0, &ref, 1);
	if (!p->their_page)
		return -EFAULT;
	p->theirs = (const struct xvm_board *)p->their_page->area.page[0];
	if (READ_ONCE(p->theirs->magic) != XVM_MAGIC || READ_ONCE(p->theirs->version) != XVM_VERSION)
		return -EPROTONOSUPPORT;
	p->can_long = xvm_long_frames && (READ_ONCE(p->theirs->can) & XVM_CAN_LONG);
	if (p->x->me > p->id) {
		err = xvm_bind_port(p);
		if (!err)
			err = xvm_bind_irq(p);
		if (err)
			return err;
		p->met = true;
	}
	p->active = jiffies;
	p->opened++;
	napi_enable(&p->napi);
	xvm_set_state(p, XVM_OPEN);
	notify_remote_via_irq(p->irq);
	local_bh_disable();
	napi_schedule(&p->napi);
	local_bh_enable();
	return 0;
}

/* -------- areas -------- */

static u32 xvm_pages_now(const struct xvm_peer *p)
{
	return p->area ? p->area->area.size / XVM_PAGE : 0;
}

/* Offers an area of another size where that is wanted and nothing is on its way. */
static void xvm_resize(struct xvm_peer *p)
{
	u32 pages = xvm_pages_now(p), wanted, slot;

	if (p->next_area || p->old_area)
		return;
	if (!pages && !p->wanted && !p->demand.longest)
		return;
	wanted = xvm_pages_wanted(&p->demand, pages);
	if (wanted == pages)
		return;
	p->next_area = xvm_grant(p->id, p->areas + 1, wanted);
	if (!p->next_area) {
		p->x->no_memory++;
		return;
	}
	p->demand.full = 0;
	p->demand.calm = 0;
	p->areas++;
	slot = p->areas & 1;
	memcpy(p->board->ref[slot], p->next_area->ref, wanted * sizeof(u32));
	p->board->pages[slot] = wanted;
	virt_wmb();			/* the references before the number that tells of them */
	WRITE_ONCE(p->board->area, p->areas);
	if (wanted > pages)
		p->grown++;
	else
		p->shrunk++;
	notify_remote_via_irq(p->irq);
}

/* Goes on in the new area once the peer has mapped it, and takes the old one back once it is released. */
static void xvm_move_on(struct xvm_peer *p)
{
	struct netdev_queue *queue = xvm_queue(p);

	if (p->next_area && READ_ONCE(p->theirs->mapped) == p->next_area->area.number) {
		__netif_tx_lock_bh(queue);
		xvm_go_on(&p->out, &p->next_area->area);
		p->old_area = p->area;
		p->area = p->next_area;
		p->next_area = NULL;
		p->published = p->out.produced;
		virt_wmb();		/* the word in the old area before the position behind it */
		WRITE_ONCE(p->board->produced, p->out.produced);
		netif_tx_wake_queue(queue);
		__netif_tx_unlock_bh(queue);
		notify_remote_via_irq(p->irq);
	}
	if (p->old_area && READ_ONCE(p->theirs->released) == p->old_area->area.number && xvm_try_revoke(p->old_area))
		p->old_area = NULL;
}

/* Maps the area that the peer offers, and unmaps the area that it has left. */
static int xvm_follow_peer(struct xvm_peer *p)
{
	u32 number = READ_ONCE(p->theirs->area);
	struct xvm_mapped *old = smp_load_acquire(&p->in_old), *next;

	if (old) {
		u32 released = old->area.number;

		xvm_unmap(old);
		smp_store_release(&p->in_old, NULL);
		WRITE_ONCE(p->board->released, released);
		notify_remote_via_irq(p->irq);
	}
	if (number != p->in_number && !READ_ONCE(p->in_next) && !READ_ONCE(p->in_old)) {
		u32 pages;

		virt_rmb();		/* the number before the references that it tells of */
		pages = READ_ONCE(p->theirs->pages[number & 1]);
		if (number != p->in_number + 1 || !xvm_pages_valid(pages))
			return -EPROTO;
		next = xvm_map(p->id, number, p->theirs->ref[number & 1], pages);
		if (!next)
			return -EFAULT;
		p->in_number = number;
		smp_store_release(&p->in_next, next);
		WRITE_ONCE(p->board->mapped, number);
		notify_remote_via_irq(p->irq);
	}
	return 0;
}

/* -------- once a second -------- */

static bool xvm_bound(struct xvm_peer *p)
{
	struct evtchn_status op = { .dom = DOMID_SELF, .port = p->port };

	if (HYPERVISOR_event_channel_op(EVTCHNOP_status, &op))
		return false;
	return op.status == EVTCHNSTAT_interdomain;
}

/* Checks that the peer lives, and which size the ring needs. False: the pair is to be closed. */
static bool xvm_tick(struct xvm_peer *p)
{
	struct xvm_demand *demand = &p->demand;
	bool bound = xvm_bound(p);

	if (!bound && (p->met || time_after(jiffies, p->deadline)))
		return false;
	p->met |= bound;
	if (p->age.gone)
		set_bit(XVM_SCAN, &p->x->flags);
	xvm_age_alive(&p->age, jiffies);
	if (p->stalled && time_after(jiffies, p->stalled + XVM_STALL))
		return false;
	if (p->seen_frames != p->sent.frames + p->received.frames)
		p->active = jiffies;
	p->seen_frames = p->sent.frames + p->received.frames;
	if (demand->peak <= xvm_pages_now(p) * XVM_PAGE / 4 && !demand->full)
		demand->calm++;
	else
		demand->calm = 0;
	demand->full = 0;
	demand->peak = 0;
	demand->longest = 0;
	return time_before(jiffies, p->active + xvm_idle_seconds * HZ);
}

/* -------- control -------- */

static void xvm_step_open(struct xvm_peer *p, bool tick)
{
	if (p->offer.nonce != p->spent) {
		xvm_close(p, false);
		return;
	}
	if (tick && !xvm_tick(p)) {
		xvm_close(p, p->stalled);
		return;
	}
	if (xvm_follow_peer(p)) {
		p->broke++;
		xvm_close(p, true);
		return;
	}
	xvm_move_on(p);
	xvm_resize(p);
}

static void xvm_step_opening(struct xvm_peer *p)
{
	bool answer = p->offer.nonce && p->offer.echo == p->own.nonce;

	if (p->own.echo != p->offer.nonce && (answer || p->offer.nonce != p->spent)) {
		p->own.echo = p->offer.nonce;
		xvm_store_offer(p);
	}
	if (answer) {
		p->spent = p->offer.nonce;
		if (xvm_connect(p))
			xvm_close(p, true);
		return;
	}
	if (time_after(jiffies, p->deadline))
		xvm_close(p, true);
}

static void xvm_step_known(struct xvm_peer *p)
{
	bool asked = p->offer.nonce && p->offer.nonce != p->spent;
	bool wanted = p->wanted && time_after_eq(jiffies, p->not_before);

	if (p->held[0] || !p->x->admitted || (!asked && !wanted)) {
		if (p->wanted) {
			p->wanted = false;
			if (wanted)
				p->not_before = jiffies + XVM_RETRY_AFTER;
			xvm_set_state(p, XVM_KNOWN);	/* lets the waiting frames take the ordinary interface */
		}
		return;
	}
	if (xvm_begin(p))
		xvm_close(p, true);
	else
		xvm_step_opening(p);
}

/* Frees the addresses of a machine that is gone, though its folder stayed. An open pair tells by itself if it lives. */
static void xvm_step_age(struct xvm_peer *p)
{
	if (p->state == XVM_OPEN || !xvm_age_over(&p->age, jiffies, xvm_address_seconds * HZ) || !p->addresses)
		return;
	xvm_map_forget(p);
	set_bit(XVM_SCAN, &p->x->flags);	/* another may have waited for them */
}

static void xvm_step(struct xvm_peer *p, bool tick)
{
	xvm_try_held(p);
	if (p->state == XVM_FREE)
		return;
	if (!p->listed) {
		xvm_map_forget(p);
		if (p->state != XVM_KNOWN)
			xvm_close(p, false);
		xvm_set_state(p, XVM_FREE);
		set_bit(XVM_SCAN, &p->x->flags);	/* another may have waited for its addresses */
		return;
	}
	if (tick)
		xvm_step_age(p);
	if (READ_ONCE(p->broken)) {
		p->broke++;
		xvm_close(p, true);
	}
	if (p->state == XVM_KNOWN)
		xvm_step_known(p);
	else if (p->state == XVM_OPENING)
		xvm_step_opening(p);
	if (p->state == XVM_OPEN)
		xvm_step_open(p, tick);
}

/* When control must run again by itself; 0: not before an event. */
static unsigned long xvm_next_look(struct xvm *x)
{
	unsigned long next = 0;
	unsigned int i;

	if (x->admitted)
		next = time_after(x->next_beat, jiffies) ? x->next_beat - jiffies : 1;
	for (i = 0; i < XVM_PEERS; i++) {
		struct xvm_peer *p = &x->peer[i];

		if (p->held[0] || p->state == XVM_OPENING)
			return HZ / 20;
		if (p->state == XVM_OPEN)
			next = next ? min_t(unsigned long, next, XVM_TICK) : XVM_TICK;
	}
	return next;
}

void xvm_control(struct work_struct *work)
{
	struct xvm *x = container_of(work, struct xvm, control.work);
	bool tick = time_after_eq(jiffies, x->next_tick);
	unsigned long next;
	unsigned int i;

	mutex_lock(&x->lock);
	if (tick)
		x->next_tick = jiffies + XVM_TICK;
	if (test_and_clear_bit(XVM_PUBLISH, &x->flags))
		xvm_store_publish(x);
	if (x->admitted && time_after_eq(jiffies, x->next_beat))
		xvm_store_beat(x);
	if (test_and_clear_bit(XVM_SCAN, &x->flags))
		xvm_store_scan(x);
	for (i = 0; i < XVM_PEERS; i++)
		xvm_step(&x->peer[i], tick);
	next = test_bit(XVM_SCAN, &x->flags) ? 1 : xvm_next_look(x);
	mutex_unlock(&x->lock);
	if (next)
		queue_delayed_work(x->wq, &x->control, next);
}

void xvm_pairs_init(struct xvm *x)
{
	unsigned int i;

	for (i = 0; i < XVM_PEERS; i++) {
		struct xvm_peer *p = &x->peer[i];

		p->x = x;
		p->slot = i;
		netif_napi_add(x->dev, &p->napi, xvm_poll);
	}
}

/* Closes all; control no longer runs. */
void xvm_pairs_end(struct xvm *x)
{
	unsigned int i, j;

	for (i = 0; i < XVM_PEERS; i++) {
		struct xvm_peer *p = &x->peer[i];

		xvm_map_forget(p);
		if (p->state == XVM_OPEN || p->state == XVM_OPENING)
			xvm_close(p, false);
		for (j = 0; j < ARRAY_SIZE(p->held); j++)
			if (p->held[j])
				xvm_abandon(p->held[j]);
	}
}
