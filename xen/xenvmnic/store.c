// SPDX-License-Identifier: GPL-2.0
/*
 * The global address map, in xenstore. The operator admits a machine by making its folder (xenvmnic-net); from then on
 * the machine writes there, and all may read:
 *
 *   /xenvmnet/ID/addresses   IPv4 addresses between blanks
 *   /xenvmnet/ID/beat        a number that changes while the machine runs
 *   /xenvmnet/ID/to/PEER     an offer: "REF PORT NONCE ECHO"
 */
#include <linux/slab.h>

#include "xenvmnic.h"

static void xvm_own_path(struct xvm *x, char *path, size_t size, const char *rest)
{
	snprintf(path, size, "%s/%u%s", xvm_root, x->me, rest);
}

int xvm_store_publish(struct xvm *x)
{
	char path[64], text[XVM_ADDRESSES * 16 + 1];
	int err;

	xvm_own_path(x, path, sizeof(path), "");
	xvm_map_own(x, text, sizeof(text));
	err = xenbus_write(XBT_NIL, path, "addresses", text);
	if (err && (x->admitted || !x->told))
		netdev_info(x->dev, "machine %u is not admitted (error %d); in dom0: xenvmnic-net admit %u\n", x->me, err, x->me);
	x->told = true;
	x->admitted = !err;
	return err;
}

/* Tells the others that we run. */
void xvm_store_beat(struct xvm *x)
{
	char path[64];

	xvm_own_path(x, path, sizeof(path), "");
	xenbus_printf(XBT_NIL, path, "beat", "%u", ++x->beat);
	x->next_beat = jiffies + XVM_BEAT * HZ;
}

/* Removes all keys that we wrote. */
void xvm_store_withdraw(struct xvm *x)
{
	char path[64];

	xvm_own_path(x, path, sizeof(path), "");
	xenbus_rm(XBT_NIL, path, "to");
	xenbus_rm(XBT_NIL, path, "addresses");
	xenbus_rm(XBT_NIL, path, "beat");
}

int xvm_store_offer(struct xvm_peer *p)
{
	char path[64], name[8];

	xvm_own_path(p->x, path, sizeof(path), "/to");
	snprintf(name, sizeof(name), "%u", p->id);
	return xenbus_printf(XBT_NIL, path, name, "%u %u %u %u", p->own.ref, p->own.port, p->own.nonce, p->own.echo);
}

void xvm_store_take_back(struct xvm_peer *p)
{
	char path[64], name[8];

	xvm_own_path(p->x, path, sizeof(path), "/to");
	snprintf(name, sizeof(name), "%u", p->id);
	xenbus_rm(XBT_NIL, path, name);
}

static struct xvm_peer *xvm_slot(struct xvm *x, u16 id)
{
	struct xvm_peer *free = NULL;
	unsigned int i;

	for (i = 0; i < XVM_PEERS; i++) {
		struct xvm_peer *p = &x->peer[i];

		if (p->state != XVM_FREE && p->id == id)
			return p;
		if (p->state == XVM_FREE && !p->held[0] && !free)
			free = p;
	}
	return free;
}

/* Reads the addresses of another machine into the map. */
static void xvm_read_machine(struct xvm *x, u16 id)
{
	char path[64], name[16];
	struct xvm_peer *p;
	char *text;
	u32 beat;

	snprintf(path, sizeof(path), "%s/%u", xvm_root, id);
	text = xenbus_read(XBT_NIL, path, "addresses", NULL);
	if (IS_ERR(text))
		return;
	p = xvm_slot(x, id);
	if (!p) {
		netdev_warn_once(x->dev, "more than %u other machines; those beyond have no rings\n", XVM_PEERS);
		kfree(text);
		return;
	}
	if (xenbus_scanf(XBT_NIL, path, "beat", "%u", &beat) != 1)
		beat = 0;
	if (p->state == XVM_FREE) {
		xvm_age_begin(&p->age, beat, jiffies);
		p->id = id;
		p->spent = 0;
		p->not_before = jiffies;
		p->state = XVM_KNOWN;
	}
	xvm_age_hear(&p->age, beat, jiffies);
	if (!p->age.gone)
		xvm_map_set(p, text);
	kfree(text);
	p->listed = true;
	snprintf(name, sizeof(name), "to/%u", x->me);
	memset(&p->offer, 0, sizeof(p->offer));
	if (xenbus_scanf(XBT_NIL, path, name, "%u %u %u %u", &p->offer.ref, &p->offer.port, &p->offer.nonce,
			 &p->offer.echo) != 4)
		memset(&p->offer, 0, sizeof(p->offer));
}

/* Reads the whole map. Machines that are no longer in it keep `listed` false. */
void xvm_store_scan(struct xvm *x)
{
	unsigned int i, n = 0;
	char **dir = xenbus_directory(XBT_NIL, xvm_root, "", &n);

	for (i = 0; i < XVM_PEERS; i++)
		x->peer[i].listed = false;
	if (IS_ERR(dir))
		return;
	for (i = 0; i < n; i++) {
		u16 id;

		if (!kstrtou16(dir[i], 10, &id) && id < DOMID_FIRST_RESERVED && id != x->me)
			xvm_read_machine(x, id);
	}
	kfree(dir);
}

static void xvm_changed(struct xenbus_watch *watch, const char *path, const char *token)
{
	struct xvm *x = container_of(watch, struct xvm, watch);
	char own[64];

	xvm_own_path(x, own, sizeof(own), "/");
	if (!strncmp(path, own, strlen(own)))
		return;			/* our own words */
	own[strlen(own) - 1] = 0;
	if (!strcmp(path, own) || !strcmp(path, xvm_root))
		set_bit(XVM_PUBLISH, &x->flags);
	set_bit(XVM_SCAN, &x->flags);
	xvm_kick(x);
}

int xvm_store_watch(struct xvm *x)
{
	x->watch.node = xvm_root;
	x->watch.callback = xvm_changed;
	return register_xenbus_watch(&x->watch);
}

void xvm_store_unwatch(struct xvm *x)
{
	unregister_xenbus_watch(&x->watch);
}
