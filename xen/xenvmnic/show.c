// SPDX-License-Identifier: GPL-2.0
/*
 * Counters and state, for people: `ethtool -S xvm0` for sums, and DEBUGFS/xenvmnic/pairs for the memory of each pair.
 */
#include <linux/debugfs.h>
#include <linux/ethtool.h>
#include <linux/seq_file.h>

#include "xenvmnic.h"

static u32 xvm_granted_pages(const struct xvm_peer *p)
{
	u32 pages = 0, i;
	const struct xvm_granted *all[] = { p->board_page, p->area, p->next_area, p->old_area };

	for (i = 0; i < ARRAY_SIZE(all); i++)
		pages += all[i] ? all[i]->pages : 0;
	for (i = 0; i < ARRAY_SIZE(p->held); i++)
		pages += p->held[i] ? p->held[i]->pages : 0;
	return pages;
}

static u32 xvm_mapped_pages(const struct xvm_peer *p)
{
	u32 pages = 0, i;
	const struct xvm_mapped *all[] = { p->their_page, p->in_area, p->in_next, p->in_old };

	for (i = 0; i < ARRAY_SIZE(all); i++)
		pages += all[i] ? all[i]->pages : 0;
	return pages;
}

enum { XVM_MACHINES, XVM_PAIRS, XVM_HELD, XVM_LENT, XVM_OPENED, XVM_GROWN, XVM_SHRUNK, XVM_FULL, XVM_CALLS, XVM_BROKE,
       XVM_FALLEN_BACK, XVM_NO_WAY, XVM_PROTOCOL, XVM_NO_MEMORY, XVM_SUMS };

static const char xvm_names[XVM_SUMS][ETH_GSTRING_LEN] = {
	"machines", "pairs_open", "bytes_granted", "bytes_mapped", "pairs_opened", "areas_grown", "areas_shrunk", "ring_full",
	"peers_notified", "pairs_broken", "by_ordinary_interface", "dropped_no_way", "dropped_protocol", "no_memory",
};

static int xvm_sset_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? XVM_SUMS : -EOPNOTSUPP;
}

static void xvm_strings(struct net_device *dev, u32 set, u8 *data)
{
	if (set == ETH_SS_STATS)
		memcpy(data, xvm_names, sizeof(xvm_names));
}

/* Sums over all pairs. Control frees the areas that are counted here, so it must not run meanwhile. */
static void xvm_sums(struct net_device *dev, struct ethtool_stats *stats, u64 *sum)
{
	struct xvm *x = netdev_priv(dev);
	unsigned int i;

	memset(sum, 0, XVM_SUMS * sizeof(*sum));
	mutex_lock(&x->lock);
	for (i = 0; i < XVM_PEERS; i++) {
		const struct xvm_peer *p = &x->peer[i];

		sum[XVM_MACHINES] += p->state != XVM_FREE;
		sum[XVM_PAIRS] += p->state == XVM_OPEN;
		sum[XVM_HELD] += xvm_granted_pages(p) * XVM_PAGE;
		sum[XVM_LENT] += xvm_mapped_pages(p) * XVM_PAGE;
		sum[XVM_OPENED] += p->opened;
		sum[XVM_GROWN] += p->grown;
		sum[XVM_SHRUNK] += p->shrunk;
		sum[XVM_FULL] += p->full;
		sum[XVM_CALLS] += p->calls;
		sum[XVM_BROKE] += p->broke;
	}
	mutex_unlock(&x->lock);
	sum[XVM_FALLEN_BACK] = x->fallen_back;
	sum[XVM_NO_WAY] = x->no_way;
	sum[XVM_PROTOCOL] = x->foreign_protocol;
	sum[XVM_NO_MEMORY] = x->no_memory;
}

const struct ethtool_ops xvm_ethtool_ops = {
	.get_link = ethtool_op_get_link,
	.get_sset_count = xvm_sset_count,
	.get_strings = xvm_strings,
	.get_ethtool_stats = xvm_sums,
};

static void xvm_show_peer(struct seq_file *s, const struct xvm_peer *p)
{
	static const char *const states[] = { "free", "known", "opening", "open" };
	unsigned int i;

	seq_printf(s, "machine %u: %s,", p->id, states[p->state]);
	for (i = 0; i < p->addresses; i++)
		seq_printf(s, " %pI4", &p->address[i]);
	seq_printf(s, "\n  granted %u KiB, mapped %u KiB; areas %u and %u KiB\n", xvm_granted_pages(p) * 4,
		   xvm_mapped_pages(p) * 4, p->area ? p->area->pages * 4 : 0, p->in_area ? p->in_area->pages * 4 : 0);
	seq_printf(s, "  sent %llu frames %llu bytes, received %llu frames %llu bytes\n", p->sent.frames, p->sent.bytes,
		   p->received.frames, p->received.bytes);
	seq_printf(s, "  opened %llu, grown %llu, shrunk %llu, full %llu, notified %llu, broken %llu\n", p->opened, p->grown,
		   p->shrunk, p->full, p->calls, p->broke);
}

static int xvm_pairs_show(struct seq_file *s, void *unused)
{
	struct xvm *x = s->private;
	unsigned int i;

	mutex_lock(&x->lock);
	for (i = 0; i < XVM_PEERS; i++)
		if (x->peer[i].state != XVM_FREE)
			xvm_show_peer(s, &x->peer[i]);
	mutex_unlock(&x->lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(xvm_pairs);

void xvm_show_init(struct xvm *x)
{
	x->debug = debugfs_create_dir("xenvmnic", NULL);
	debugfs_create_file("pairs", 0444, x->debug, x, &xvm_pairs_fops);
}

void xvm_show_end(struct xvm *x)
{
	debugfs_remove_recursive(x->debug);
}
