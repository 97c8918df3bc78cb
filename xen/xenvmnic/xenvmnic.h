/* SPDX-License-Identifier: GPL-2.0 */
/*
 * XenVMNIC inside: the nouns that its files share.
 *
 *   map.c    addresses of machines: which machine has which (the local map, filled from the global one)
 *   age.h    the timer by which the addresses of a machine that is gone leave it
 *   store.c  xenstore: the global address map, and the offers by which two machines open a pair
 *   memory.c pages granted to a peer, and a peer's pages mapped here
 *   pair.c   two machines' rings: opened, grown, shrunk, closed; all in one work, one thing after the other
 *   net.c    frames: transmit path, from the stack into a ring; receive path, from a ring to the stack
 *   show.c   ethtool -S, and debugfs for the memory of each pair
 *   main.c   the module: its parameters, its interface, its begin and end
 */
#ifndef XENVMNIC_H
#define XENVMNIC_H

#include <linux/netdevice.h>
#include <linux/workqueue.h>
#include <xen/grant_table.h>
#include <xen/interface/event_channel.h>
#include <xen/xenbus.h>

#include "age.h"
#include "ring.h"

#define XVM_PEERS	31		/* other machines that have rings; each has a transmit queue, one is for the rest */
#define XVM_ADDRESSES	8		/* IPv4 addresses a machine may announce */
#define XVM_BEAT	10		/* seconds between two changes of a machine's beat */

/* Pages of our own that a peer may read. */
struct xvm_granted {
	struct xvm_area area;
	u32 pages;
	struct page *page[XVM_MAX_PAGES];
	grant_ref_t ref[XVM_MAX_PAGES];	/* 0: not granted */
};

/* Pages of a peer, mapped here for reading. */
struct xvm_mapped {
	struct xvm_area area;
	u32 pages;
	struct page *page[XVM_MAX_PAGES];
	grant_handle_t handle[XVM_MAX_PAGES];
};

enum xvm_state {
	XVM_FREE,			/* the slot has no machine */
	XVM_KNOWN,			/* the machine is in the map, without rings */
	XVM_OPENING,			/* our offer is written, not yet answered */
	XVM_OPEN,			/* frames flow */
};

/* An offer: a machine writes it into xenstore to open a pair. */
struct xvm_offer {
	u32 ref;			/* grant reference of its board */
	u32 port;			/* event channel to bind; 0 from the machine with the higher id */
	u32 nonce;			/* of this offer, not 0 */
	u32 echo;			/* nonce of the offer that it answers, or 0 */
};

struct xvm_counters {
	u64 frames, bytes;
};

/* One other machine. Slots are never freed while the module lives, so that frames in flight need no reference. */
struct xvm_peer {
	struct xvm *x;
	u16 slot;
	u16 id;				/* its domain's id */
	enum xvm_state state;		/* changes under its transmit queue's lock */
	bool can_long;
	bool broken;			/* it broke a rule, or died: close */
	bool wanted;			/* frames wait for it */
	bool met;			/* its end of the event channel was bound */

	/* the local map */
	bool listed;			/* seen in the last scan */
	struct xvm_age age;
	unsigned int addresses;
	__be32 address[XVM_ADDRESSES];

	/* opening and closing */
	struct xvm_offer own, offer;	/* ours; the peer's as last read (nonce 0: none) */
	u32 spent;			/* nonce of the peer's offer that was used last */
	unsigned long deadline;		/* of opening, in jiffies */
	unsigned long not_before;	/* no new try of our own before */
	unsigned long active;		/* a frame was last seen, in jiffies */
	u64 seen_frames;		/* sent and received, at the last tick */

	/* events */
	int irq;
	evtchn_port_t port;
	bool eoi_due;

	/* boards */
	struct xvm_granted *board_page;
	struct xvm_mapped *their_page;
	struct xvm_board *board;
	const struct xvm_board *theirs;

	/* our direction: written under the transmit queue's lock */
	struct xvm_outlet out;
	u32 published;			/* produced, as the board says */
	struct xvm_granted *area, *next_area, *old_area;
	struct xvm_demand demand;
	u32 areas;			/* number of the newest area offered */
	u32 waiting;			/* bytes of the record that there was no room for */
	unsigned long stalled;		/* since when there is no room, in jiffies; 0: there is */

	/* the peer's direction: read by poll */
	struct napi_struct napi;
	struct xvm_inlet in;
	struct xvm_mapped *in_area, *in_next, *in_old;
	u32 in_number;			/* of the newest area that control has mapped */
	u32 seen_area, seen_mapped, seen_released;	/* the peer's board, as control was last called for */

	/* granted pages that cannot be freed because the peer still maps them */
	struct xvm_granted *held[4];	/* one pair's board and areas; while any is here, no new pair */

	struct xvm_counters sent, received;
	u64 opened, grown, shrunk, full, calls, broke;
};

struct xvm {
	struct net_device *dev;
	u16 me;				/* own domain's id */
	struct workqueue_struct *wq;
	struct delayed_work control;
	struct mutex lock;		/* held while control runs, and by readers of areas that it frees */
	unsigned long flags;
	unsigned long next_tick;	/* of control, in jiffies */
	unsigned long next_beat;	/* the same */
	u32 beat;			/* changes while we run */
	struct xenbus_watch watch;
	struct notifier_block inet_news;
	struct dentry *debug;
	bool ending;
	bool admitted, told;		/* whether dom0 has made our folder; whether we have said that it has not */
	u64 fallen_back, no_way, foreign_protocol, no_memory;
	struct xvm_peer peer[XVM_PEERS];
};

/* Bits of xvm.flags: tasks of the next run of control, beside its check of the pairs. */
#define XVM_SCAN	0
#define XVM_PUBLISH	1

extern char *xvm_uplink;
extern char *xvm_root;
extern bool xvm_long_frames;
extern unsigned int xvm_least_pages;
extern unsigned int xvm_most_pages;
extern unsigned int xvm_idle_seconds;
extern unsigned int xvm_address_seconds;

/* Runs control soon; from any context. */
static inline void xvm_kick(struct xvm *x)
{
	if (!READ_ONCE(x->ending))
		mod_delayed_work(x->wq, &x->control, 0);
}

static inline struct netdev_queue *xvm_queue(struct xvm_peer *p)
{
	return netdev_get_tx_queue(p->x->dev, p->slot + 1);
}

/* The longest payload that both machines agreed on. */
static inline u32 xvm_limit(const struct xvm_peer *p)
{
	return p->can_long ? XVM_LONG : XVM_PAYLOAD;
}

/* map.c */
struct xvm_peer *xvm_map_find(__be32 address);
int xvm_map_set(struct xvm_peer *p, const char *text);
void xvm_map_forget(struct xvm_peer *p);
void xvm_map_own(struct xvm *x, char *text, size_t size);

/* store.c */
int xvm_store_publish(struct xvm *x);
void xvm_store_beat(struct xvm *x);
void xvm_store_scan(struct xvm *x);
void xvm_store_withdraw(struct xvm *x);
int xvm_store_offer(struct xvm_peer *p);
void xvm_store_take_back(struct xvm_peer *p);
int xvm_store_watch(struct xvm *x);
void xvm_store_unwatch(struct xvm *x);

/* memory.c */
struct xvm_granted *xvm_grant(u16 peer, u32 number, u32 pages);
bool xvm_try_revoke(struct xvm_granted *granted);
void xvm_abandon(struct xvm_granted *granted);
struct xvm_mapped *xvm_map(u16 peer, u32 number, const u32 *refs, u32 pages);
void xvm_unmap(struct xvm_mapped *mapped);

/* pair.c */
void xvm_control(struct work_struct *work);
void xvm_pairs_init(struct xvm *x);
void xvm_pairs_end(struct xvm *x);

/* net.c */
extern const struct net_device_ops xvm_netdev_ops;
int xvm_poll(struct napi_struct *napi, int budget);
irqreturn_t xvm_event(int irq, void *data);
void xvm_break(struct xvm_peer *p);

/* show.c */
extern const struct ethtool_ops xvm_ethtool_ops;
void xvm_show_init(struct xvm *x);
void xvm_show_end(struct xvm *x);

#endif
