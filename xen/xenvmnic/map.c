// SPDX-License-Identifier: GPL-2.0
/*
 * The local map: which machine has an IPv4 address. The global one stands in xenstore, where each machine writes its
 * own addresses and no others. The machine that had an address first keeps it as long as it runs (age.h) and announces it, so
 * that another one cannot draw its frames to itself by announcing the same.
 */
#include <linux/hashtable.h>
#include <linux/inetdevice.h>
#include <linux/inet.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include "xenvmnic.h"

struct xvm_entry {
	struct hlist_node node;
	struct rcu_head rcu;
	__be32 address;
	struct xvm_peer *peer;
};

static DEFINE_HASHTABLE(xvm_entries, 6);	/* written by control alone */

static struct xvm_entry *xvm_entry(__be32 address)
{
	struct xvm_entry *entry;

	hash_for_each_possible_rcu(xvm_entries, entry, node, (__force u32)address)
		if (entry->address == address)
			return entry;
	return NULL;
}

/* The machine that has an address, or NULL. For readers under RCU. */
struct xvm_peer *xvm_map_find(__be32 address)
{
	struct xvm_entry *entry = xvm_entry(address);

	return entry ? entry->peer : NULL;
}

static void xvm_entry_remove(struct xvm_entry *entry)
{
	hash_del_rcu(&entry->node);
	kfree_rcu(entry, rcu);
}

static bool xvm_has(const struct xvm_peer *p, __be32 address)
{
	unsigned int i;

	for (i = 0; i < p->addresses; i++)
		if (p->address[i] == address)
			return true;
	return false;
}

static void xvm_add(struct xvm_peer *p, __be32 address)
{
	struct xvm_entry *entry;

	if (xvm_has(p, address) || p->addresses == XVM_ADDRESSES)
		return;
	if (xvm_entry(address))
		return;		/* another's, or in the map already */
	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return;
	entry->address = address;
	entry->peer = p;
	hash_add_rcu(xvm_entries, &entry->node, (__force u32)address);
	p->address[p->addresses++] = address;
}

/* Sets the map's addresses of `p` to `text`, addresses between blanks as the machine wrote them. Returns their number. */
int xvm_map_set(struct xvm_peer *p, const char *text)
{
	__be32 said[XVM_ADDRESSES];
	unsigned int i, j, n = 0;

	while (n < XVM_ADDRESSES && in4_pton(text, -1, (u8 *)&said[n], ' ', &text)) {
		if (!ipv4_is_multicast(said[n]) && !ipv4_is_loopback(said[n]) && !ipv4_is_lbcast(said[n]) &&
		    !ipv4_is_zeronet(said[n]))
			n++;
		if (*text != ' ')
			break;
		text++;
	}
	for (i = 0; i < p->addresses;) {
		for (j = 0; j < n && said[j] != p->address[i]; j++)
			;
		if (j < n) {
			i++;
			continue;
		}
		xvm_entry_remove(xvm_entry(p->address[i]));
		p->address[i] = p->address[--p->addresses];
	}
	for (i = 0; i < n; i++)
		xvm_add(p, said[i]);
	return p->addresses;
}

void xvm_map_forget(struct xvm_peer *p)
{
	while (p->addresses)
		xvm_entry_remove(xvm_entry(p->address[--p->addresses]));
}

static int xvm_list(struct net_device *dev, char *text, size_t size)
{
	struct in_device *in = dev ? __in_dev_get_rcu(dev) : NULL;
	const struct in_ifaddr *ifa;
	int n = 0;

	if (!in || !(dev->flags & IFF_UP))
		return 0;
	in_dev_for_each_ifa_rcu(ifa, in)
		if (ifa->ifa_scope < RT_SCOPE_LINK)
			n += scnprintf(text + n, size - n, "%pI4 ", &ifa->ifa_local);
	return n;
}

/* Own addresses as the global map has them: those of our interface and of the ordinary one. */
void xvm_map_own(struct xvm *x, char *text, size_t size)
{
	int n = 0;

	rcu_read_lock();
	if (x->dev->flags & IFF_UP) {
		n = xvm_list(x->dev, text, size);
		n += xvm_list(dev_get_by_name_rcu(dev_net(x->dev), xvm_uplink), text + n, size - n);
	}
	rcu_read_unlock();
	text[n ? n - 1 : 0] = 0;
}
