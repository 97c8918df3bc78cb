// SPDX-License-Identifier: GPL-2.0
/*
 * Frames. Transmit path: from the stack into the ring of the machine that has the next hop's address; the interface's
 * transmit queue N + 1 belongs to peer N, so that a peer that does not read stops its own queue and no other (no
 * head-of-line blocking). Frames for addresses that no machine has (queue 0), or for a machine that cannot be reached, go
 * on by the ordinary interface. Receive path: from a peer's ring to the stack, one NAPI instance a peer.
 */
#include <linux/inetdevice.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <net/ip.h>
#include <net/route.h>
#include <xen/events.h>

#include "xenvmnic.h"

/* -------- addresses outside -------- */

static struct rtable *xvm_other_way(struct xvm *x, const struct iphdr *ip, u32 mark)
{
	struct flowi4 flow = { .daddr = ip->daddr, .saddr = ip->saddr, .flowi4_tos = RT_TOS(ip->tos), .flowi4_mark = mark };
	struct net *net = dev_net(x->dev);
	struct net_device *uplink;
	struct rtable *route;

	rcu_read_lock();
	uplink = dev_get_by_name_rcu(net, xvm_uplink);
	if (uplink && uplink->flags & IFF_UP)
		flow.flowi4_oif = uplink->ifindex;
	rcu_read_unlock();
	if (!flow.flowi4_oif)
		return NULL;
	/* The sender's address need not be of that interface. */
	flow.flowi4_flags = FLOWI_FLAG_ANYSRC;
	route = ip_route_output_key(net, &flow);
	if (IS_ERR(route))
		return NULL;
	if (route->dst.dev == x->dev || route->dst.error) {
		ip_rt_put(route);
		return NULL;
	}
	return route;
}

static void xvm_fall_back(struct xvm *x, struct sk_buff *skb)
{
	struct rtable *route = NULL;

	if (skb->protocol == htons(ETH_P_IP) && pskb_network_may_pull(skb, sizeof(struct iphdr)))
		route = xvm_other_way(x, ip_hdr(skb), skb->mark);
	if (!route) {
		x->no_way++;
		x->dev->stats.tx_dropped++;
		kfree_skb(skb);
		return;
	}
	x->fallen_back++;
	skb_dst_drop(skb);
	skb_dst_set(skb, &route->dst);
	memset(IPCB(skb), 0, sizeof(*IPCB(skb)));
	ip_local_out(dev_net(x->dev), skb->sk, skb);
}

/* -------- transmit -------- */

void xvm_break(struct xvm_peer *p)
{
	WRITE_ONCE(p->broken, true);
	xvm_kick(p->x);
}

/* Reads and checks the position up to which the peer has consumed. False: the peer lies. */
static bool xvm_hear_reader(struct xvm_peer *p)
{
	u32 consumed = READ_ONCE(p->theirs->consumed);

	virt_rmb();			/* records may be overwritten only after the peer has consumed them */
	if (!xvm_hear_consumed(&p->out, consumed))
		return true;
	xvm_break(p);
	return false;
}

static void xvm_call(struct xvm_peer *p)
{
	p->calls++;
	notify_remote_via_irq(p->irq);
}

/* Publishes the records written, and notifies the peer if it asked for that. */
static void xvm_publish(struct xvm_peer *p)
{
	u32 old = p->published, now = p->out.produced;

	if (old == now)
		return;
	p->published = now;
	virt_wmb();			/* records before the position behind them */
	WRITE_ONCE(p->board->produced, now);
	virt_mb();			/* the position before the check whether the peer waits */
	if (xvm_reaches(old, now, READ_ONCE(p->theirs->call_at_produced)))
		xvm_call(p);
}

/* Waits for room for `size` more bytes, and better for half of the ring. True: there is room by now. */
static bool xvm_wait_for_room(struct xvm_peer *p, u32 size)
{
	u32 used = p->out.produced - p->out.consumed;
	u32 need = used + size + sizeof(struct xvm_record);
	u32 at = used / 2;

	if (p->out.area && need > p->out.area->size)
		at = max(at, min(need - p->out.area->size, used));
	p->waiting = size;
	netif_tx_stop_queue(xvm_queue(p));
	WRITE_ONCE(p->board->call_at_consumed, p->out.consumed + max(at, 1u));
	virt_mb();			/* the request before the check whether it is fulfilled */
	if (!xvm_hear_reader(p) || xvm_room(&p->out) < size) {
		if (!p->stalled)
			p->stalled = jiffies | 1;
		return false;
	}
	netif_tx_start_queue(xvm_queue(p));
	return true;
}

/* No room: asks for a larger area where this one is full too often, and stops the queue. */
static bool xvm_full(struct xvm_peer *p, u32 size)
{
	struct xvm_demand *demand = &p->demand;

	p->full++;
	demand->full++;
	demand->longest = max(demand->longest, size);
	if (!p->out.area || size + sizeof(struct xvm_record) > p->out.area->size) {
		p->wanted = true;
		xvm_kick(p->x);
	} else if (demand->full == XVM_FULL_TO_GROW && p->out.area->size < demand->most * XVM_PAGE) {
		xvm_kick(p->x);
	}
	return xvm_wait_for_room(p, size);
}

static void xvm_write_payload(struct xvm_peer *p, u32 at, struct sk_buff *skb)
{
	u32 from = 0;

	while (from < skb->len) {
		u32 some;
		u8 *to = xvm_at(p->out.area, at + from, &some);

		some = min(some, skb->len - from);
		skb_copy_bits(skb, from, to, some);
		from += some;
	}
}

static netdev_tx_t xvm_put(struct xvm_peer *p, struct sk_buff *skb)
{
	bool gso = skb_is_gso(skb);
	u32 size = xvm_record_size(skb->len, gso);
	struct xvm_large large = { .segment = skb_shinfo(skb)->gso_size };
	struct xvm_record record = {
		.kind = XVM_FRAME_HERE | (skb->ip_summed == CHECKSUM_PARTIAL ? XVM_BLANK : 0) | (gso ? XVM_LARGE : 0),
		.machine = p->id,
		.protocol = (__force u16)skb->protocol,
		.length = skb->len,
	};

	if (xvm_room(&p->out) < size && (!xvm_hear_reader(p) || xvm_room(&p->out) < size) && !xvm_full(p, size)) {
		xvm_publish(p);
		return NETDEV_TX_BUSY;
	}
	xvm_write_payload(p, xvm_put_head(&p->out, &record, &large), skb);
	p->out.produced += size;
	p->stalled = 0;
	p->demand.peak = max(p->demand.peak, p->out.produced - p->out.consumed);
	p->sent.frames++;
	p->sent.bytes += skb->len;
	p->x->dev->stats.tx_packets++;
	p->x->dev->stats.tx_bytes += skb->len;
	dev_consume_skb_any(skb);
	if (!netdev_xmit_more() || netif_xmit_stopped(xvm_queue(p)))
		xvm_publish(p);
	return NETDEV_TX_OK;
}

/* Has the pair opened, and keeps the frame in its queue meanwhile. */
static netdev_tx_t xvm_hold(struct xvm_peer *p)
{
	p->wanted = true;
	netif_tx_stop_queue(xvm_queue(p));
	xvm_kick(p->x);
	return NETDEV_TX_BUSY;
}

static bool xvm_fits(const struct xvm_peer *p, const struct sk_buff *skb)
{
	return skb->len <= xvm_limit(p) && skb->len && skb->protocol == htons(ETH_P_IP) &&
	       xvm_record_size(skb->len, true) + sizeof(struct xvm_record) <= p->demand.most * XVM_PAGE;
}

static netdev_tx_t xvm_start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct xvm *x = netdev_priv(dev);
	unsigned int queue = skb_get_queue_mapping(skb);
	struct xvm_peer *p = queue && queue <= XVM_PEERS ? &x->peer[queue - 1] : NULL;

	switch (p && !READ_ONCE(p->broken) ? p->state : XVM_FREE) {
	case XVM_OPEN:
		if (xvm_fits(p, skb))
			return xvm_put(p, skb);
		break;
	case XVM_KNOWN:
		if (time_before(jiffies, p->not_before))
			break;
		return xvm_hold(p);
	case XVM_OPENING:
		return xvm_hold(p);
	case XVM_FREE:
		break;
	}
	if (p && p->state == XVM_OPEN && p->out.produced != p->published)
		xvm_publish(p);
	xvm_fall_back(x, skb);
	return NETDEV_TX_OK;
}

static u16 xvm_select_queue(struct net_device *dev, struct sk_buff *skb, struct net_device *sb_dev)
{
	struct xvm_peer *p;
	__be32 next;
	u16 queue;

	if (skb->protocol != htons(ETH_P_IP) || !pskb_network_may_pull(skb, sizeof(struct iphdr)))
		return 0;
	next = ip_hdr(skb)->daddr;
	if (skb_rtable(skb))
		next = rt_nexthop(skb_rtable(skb), next);
	rcu_read_lock();
	p = xvm_map_find(next);
	queue = p ? p->slot + 1 : 0;
	rcu_read_unlock();
	return queue;
}

/* Frames longer than a peer takes are cut by the stack, for it alone. */
static netdev_features_t xvm_features_check(struct sk_buff *skb, struct net_device *dev, netdev_features_t features)
{
	struct xvm *x = netdev_priv(dev);
	unsigned int queue = skb_get_queue_mapping(skb);

	if (queue && queue <= XVM_PEERS && !x->peer[queue - 1].can_long)
		features &= ~NETIF_F_GSO_MASK;
	return features;
}

/* -------- receive -------- */

/* Marks a blank checksum (checksum offload), which only a machine that forwards it fills in. False: there is none to be blank. */
static bool xvm_mark_checksum(struct sk_buff *skb, const struct xvm_found *found)
{
	u16 start, offset;

	if (!(found->record.kind & XVM_BLANK))
		return !(found->record.kind & XVM_LARGE);
	if (xvm_checksum_place(skb->data, skb_headlen(skb), skb->len, &start, &offset))
		return false;
	return skb_partial_csum_set(skb, start, offset);
}

static bool xvm_mark_large(struct sk_buff *skb, const struct xvm_found *found)
{
	if (!(found->record.kind & XVM_LARGE))
		return true;
	if (ip_hdr(skb)->protocol != IPPROTO_TCP)
		return false;
	skb_shinfo(skb)->gso_size = found->large.segment;
	skb_shinfo(skb)->gso_type = SKB_GSO_TCPV4 | SKB_GSO_DODGY;
	skb_shinfo(skb)->gso_segs = 0;	/* not believed: the stack counts where it needs to know */
	return true;
}

/* The payload in a buffer of ours: from here on the peer cannot change it. */
static struct sk_buff *xvm_copy_short(struct xvm_peer *p, const struct xvm_found *found)
{
	u32 length = found->record.length;
	struct sk_buff *skb = napi_alloc_skb(&p->napi, length);

	if (skb)
		xvm_read(p->in.area, found->payload, skb_put(skb, length), length);
	return skb;
}

static struct sk_buff *xvm_copy_long(struct xvm_peer *p, const struct xvm_found *found)
{
	const u32 head = 128;
	u32 at = found->payload, i;
	int err;
	struct sk_buff *skb = alloc_skb_with_frags(head + NET_SKB_PAD, found->record.length - head, PAGE_ALLOC_COSTLY_ORDER,
						   &err, GFP_ATOMIC | __GFP_NOWARN);

	if (!skb)
		return NULL;
	skb_reserve(skb, NET_SKB_PAD);
	xvm_read(p->in.area, at, skb_put(skb, head), head);
	at += head;
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		xvm_read(p->in.area, at, skb_frag_address(frag), skb_frag_size(frag));
		at += skb_frag_size(frag);
	}
	skb->len += found->record.length - head;
	skb->data_len = found->record.length - head;
	return skb;
}

static void xvm_deliver(struct xvm_peer *p, const struct xvm_found *found)
{
	struct net_device *dev = p->x->dev;
	struct sk_buff *skb;

	if (found->record.protocol != (__force u16)htons(ETH_P_IP)) {
		p->x->foreign_protocol++;
		return;
	}
	skb = found->record.length <= XVM_PAYLOAD ? xvm_copy_short(p, found) : xvm_copy_long(p, found);
	if (!skb) {
		p->x->no_memory++;
		dev->stats.rx_dropped++;
		return;
	}
	skb->dev = dev;
	skb->protocol = htons(ETH_P_IP);
	skb_reset_mac_header(skb);
	skb_reset_network_header(skb);
	if (!xvm_mark_checksum(skb, found) || !xvm_mark_large(skb, found)) {
		dev->stats.rx_errors++;
		kfree_skb(skb);
		return;
	}
	p->received.frames++;
	p->received.bytes += skb->len;
	dev->stats.rx_packets++;
	dev->stats.rx_bytes += skb->len;
	napi_gro_receive(&p->napi, skb);
}

/* Goes on in the writer's next area. */
static int xvm_to_next_area(struct xvm_peer *p)
{
	struct xvm_mapped *next = smp_load_acquire(&p->in_next);

	if (!next || READ_ONCE(p->in_old))
		return -EPROTO;
	if (p->in_area)
		smp_store_release(&p->in_old, p->in_area);
	xvm_follow(&p->in, &next->area);
	p->in_area = next;
	smp_store_release(&p->in_next, NULL);
	xvm_kick(p->x);
	return 0;
}

static int xvm_hear_writer(struct xvm_peer *p)
{
	struct xvm_mapped *next = smp_load_acquire(&p->in_next);
	u32 produced = READ_ONCE(p->theirs->produced);

	virt_rmb();			/* the position before the records in front of it */
	if (!p->in_area && next && xvm_to_next_area(p))
		return -EPROTO;
	return xvm_hear_produced(&p->in, produced, next ? next->area.size : 0);
}

/* Reads up to `budget` frames; -EPROTO where the peer breaks a rule. */
static int xvm_receive(struct xvm_peer *p, int budget)
{
	struct xvm_found found;
	int done = 0, words = 0;

	if (xvm_hear_writer(p))
		return -EPROTO;
	while (done < budget) {
		switch (xvm_look(&p->in, p->x->me, xvm_limit(p), &found)) {
		case XVM_FOUND:
			xvm_deliver(p, &found);
			xvm_took(&p->in, &found);
			done++;
			break;
		case XVM_LEFT:
			if (words++ || xvm_to_next_area(p))
				return -EPROTO;
			break;
		case XVM_NOTHING:
			return done;
		default:
			return -EPROTO;
		}
	}
	return done;
}

/* Publishes the position up to which records were read, and notifies the peer if it asked for that. */
static void xvm_publish_consumed(struct xvm_peer *p, u32 old)
{
	u32 now = p->in.consumed;

	if (old == now)
		return;
	virt_mb();			/* the copies before the position behind them */
	WRITE_ONCE(p->board->consumed, now);
	virt_mb();			/* the word before the check whether the peer waits */
	if (xvm_reaches(old, now, READ_ONCE(p->theirs->call_at_consumed)))
		xvm_call(p);
}

/* Queues control where the peer's board has news of areas. */
static void xvm_hear_areas(struct xvm_peer *p)
{
	u32 area = READ_ONCE(p->theirs->area), mapped = READ_ONCE(p->theirs->mapped);
	u32 released = READ_ONCE(p->theirs->released);

	if (area == p->seen_area && mapped == p->seen_mapped && released == p->seen_released)
		return;
	p->seen_area = area;
	p->seen_mapped = mapped;
	p->seen_released = released;
	xvm_kick(p->x);
}

/* Lets the queue go on if there is room again. */
static bool xvm_hear_room(struct xvm_peer *p)
{
	struct netdev_queue *queue = xvm_queue(p);
	bool woken = false;

	if (!netif_tx_queue_stopped(queue))
		return false;
	__netif_tx_lock(queue, smp_processor_id());
	if (p->out.area && xvm_hear_reader(p) && xvm_room(&p->out) >= p->waiting) {
		p->stalled = 0;
		netif_tx_wake_queue(queue);
		woken = true;
	}
	__netif_tx_unlock(queue);
	return woken;
}

/* Ends polling. True: it goes on, for frames have come meanwhile. */
static bool xvm_rest(struct xvm_peer *p, int done, bool useful)
{
	if (!napi_complete_done(&p->napi, done))
		return true;
	WRITE_ONCE(p->board->call_at_produced, p->in.consumed + 1);
	virt_mb();			/* the request before the check whether it is fulfilled */
	if (READ_ONCE(p->theirs->produced) != p->in.produced && napi_reschedule(&p->napi))
		return true;
	if (p->eoi_due) {
		p->eoi_due = false;
		xen_irq_lateeoi(p->irq, useful ? 0 : XEN_EOI_FLAG_SPURIOUS);
	}
	return false;
}

int xvm_poll(struct napi_struct *napi, int budget)
{
	struct xvm_peer *p = container_of(napi, struct xvm_peer, napi);
	u32 old = p->in.consumed;
	bool useful = xvm_hear_room(p);
	int done = READ_ONCE(p->broken) ? -EPROTO : xvm_receive(p, budget);

	xvm_hear_areas(p);
	if (done < 0) {
		/* No more of this peer: its interrupt stays masked until control has closed the pair. */
		xvm_break(p);
		napi_complete(napi);
		return 0;
	}
	xvm_publish_consumed(p, old);
	if (done < budget)
		xvm_rest(p, done, useful || done);
	return done;
}

irqreturn_t xvm_event(int irq, void *data)
{
	struct xvm_peer *p = data;

	p->eoi_due = true;
	napi_schedule(&p->napi);
	return IRQ_HANDLED;
}

static int xvm_open(struct net_device *dev)
{
	struct xvm *x = netdev_priv(dev);

	netif_tx_start_all_queues(dev);
	set_bit(XVM_PUBLISH, &x->flags);
	set_bit(XVM_SCAN, &x->flags);
	xvm_kick(x);
	return 0;
}

static int xvm_stop(struct net_device *dev)
{
	struct xvm *x = netdev_priv(dev);

	netif_tx_stop_all_queues(dev);
	set_bit(XVM_PUBLISH, &x->flags);
	xvm_kick(x);
	return 0;
}

const struct net_device_ops xvm_netdev_ops = {
	.ndo_open = xvm_open,
	.ndo_stop = xvm_stop,
	.ndo_start_xmit = xvm_start_xmit,
	.ndo_select_queue = xvm_select_queue,
	.ndo_features_check = xvm_features_check,
};
