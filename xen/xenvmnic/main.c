// SPDX-License-Identifier: GPL-2.0
/*
 * XenVMNIC: a network between the virtual machines of one Xen host, without a driver domain in between.
 *
 * After Meng, Lu and Dong, "Optimizing Communication Network for Virtual Machines Based on Xen" (UESTC, 2010): for each
 * pair of machines two rings in shared pages and an event channel with an end on each side, frames of up to a page with
 * a header of six bytes, no checksums, a global map of addresses and a local one. Beyond it: pages are shared for
 * reading only, memory follows demand, machines come and go, and addresses outside go by the ordinary interface.
 */
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/inetdevice.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/rtnetlink.h>
#include <xen/xen.h>

#include "xenvmnic.h"

char *xvm_uplink = "eth0";
module_param_named(uplink, xvm_uplink, charp, 0444);
MODULE_PARM_DESC(uplink, "the ordinary interface, for addresses that no machine of the map has (eth0)");

char *xvm_root = "/xenvmnet";
module_param_named(map, xvm_root, charp, 0444);
MODULE_PARM_DESC(map, "folder of the global address map in xenstore (/xenvmnet)");

bool xvm_long_frames;
module_param_named(long_frames, xvm_long_frames, bool, 0444);
MODULE_PARM_DESC(long_frames, "frames of up to 64 KiB, between machines that both allow them (no)");

unsigned int xvm_least_pages = 4;
module_param_named(least_pages, xvm_least_pages, uint, 0444);
MODULE_PARM_DESC(least_pages, "pages of a ring that has just begun or is calm, a power of two (4)");

unsigned int xvm_most_pages = 64;
module_param_named(most_pages, xvm_most_pages, uint, 0444);
MODULE_PARM_DESC(most_pages, "pages that a busy ring may have, a power of two up to 128 (64)");

unsigned int xvm_idle_seconds = 30;
module_param_named(idle_seconds, xvm_idle_seconds, uint, 0444);
MODULE_PARM_DESC(idle_seconds, "seconds without a frame after which a pair's memory goes back (30)");

unsigned int xvm_address_seconds = 35;
module_param_named(address_seconds, xvm_address_seconds, uint, 0444);
MODULE_PARM_DESC(address_seconds, "seconds without a sign of a machine after which its addresses leave the map, from 20 (35)");

static struct net_device *xvm_dev;

static int xvm_inet_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct xvm *x = container_of(block, struct xvm, inet_news);

	set_bit(XVM_PUBLISH, &x->flags);
	xvm_kick(x);
	return NOTIFY_DONE;
}

static void xvm_setup(struct net_device *dev)
{
	dev->netdev_ops = &xvm_netdev_ops;
	dev->ethtool_ops = &xvm_ethtool_ops;
	dev->type = ARPHRD_NONE;
	dev->flags = IFF_NOARP;
	dev->hard_header_len = 0;
	dev->addr_len = 0;
	dev->mtu = XVM_PAYLOAD;
	dev->min_mtu = 576;
	dev->max_mtu = xvm_long_frames ? XVM_LONG : XVM_PAYLOAD;
	dev->tx_queue_len = 1000;
	dev->features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_HIGHDMA;
	if (xvm_long_frames)
		dev->features |= NETIF_F_TSO;
	dev->hw_features = dev->features;
	dev->vlan_features = 0;
	dev->features |= NETIF_F_NETNS_LOCAL;
	netif_keep_dst(dev);
}

static int xvm_check_parameters(void)
{
	if (xvm_address_seconds < 2 * XVM_BEAT || xvm_address_seconds > 86400) {
		pr_err("xenvmnic: address_seconds=%u: it must be from %u to 86400\n", xvm_address_seconds, 2 * XVM_BEAT);
		return -EINVAL;
	}
	if (xvm_pages_valid(xvm_least_pages) && xvm_least_pages >= 2 && xvm_pages_valid(xvm_most_pages) &&
	    xvm_most_pages >= xvm_least_pages && xvm_most_pages >= (xvm_long_frames ? 32 : 2))
		return 0;
	pr_err("xenvmnic: least_pages=%u most_pages=%u: both must be powers of two from 2 (with long_frames, most_pages from 32) to %u, and least_pages the smaller\n",
	       xvm_least_pages, xvm_most_pages, XVM_MAX_PAGES);
	return -EINVAL;
}

static int xvm_start(struct xvm *x)
{
	int me = xenbus_read_unsigned("domid", "", DOMID_FIRST_RESERVED), err;

	if (me >= DOMID_FIRST_RESERVED)
		return -ENODEV;
	x->me = me;
	x->wq = alloc_ordered_workqueue("xenvmnic", WQ_MEM_RECLAIM);
	if (!x->wq)
		return -ENOMEM;
	xvm_store_withdraw(x);
	err = register_netdev(x->dev);
	if (err)
		goto no_device;
	x->inet_news.notifier_call = xvm_inet_event;
	register_inetaddr_notifier(&x->inet_news);
	xvm_show_init(x);
	err = xvm_store_watch(x);
	if (err)
		goto no_watch;
	return 0;
no_watch:
	xvm_show_end(x);
	unregister_inetaddr_notifier(&x->inet_news);
	unregister_netdev(x->dev);
no_device:
	destroy_workqueue(x->wq);
	return err;
}

static int __init xvm_module_init(void)
{
	struct xvm *x;
	int err;

	if (!xen_domain())
		return -ENODEV;
	err = xvm_check_parameters();
	if (err)
		return err;
	xvm_dev = alloc_netdev_mqs(sizeof(*x), "xvm%d", NET_NAME_ENUM, xvm_setup, XVM_PEERS + 1, 1);
	if (!xvm_dev)
		return -ENOMEM;
	x = netdev_priv(xvm_dev);
	x->dev = xvm_dev;
	mutex_init(&x->lock);
	INIT_DELAYED_WORK(&x->control, xvm_control);
	x->next_tick = jiffies;
	x->next_beat = jiffies;
	x->beat = get_random_u32();
	xvm_pairs_init(x);
	err = xvm_start(x);
	if (err)
		free_netdev(xvm_dev);
	return err;
}

static void __exit xvm_module_exit(void)
{
	struct xvm *x = netdev_priv(xvm_dev);

	xvm_store_unwatch(x);
	unregister_inetaddr_notifier(&x->inet_news);
	xvm_show_end(x);
	WRITE_ONCE(x->ending, true);
	cancel_delayed_work_sync(&x->control);
	xvm_store_withdraw(x);
	xvm_pairs_end(x);
	unregister_netdev(x->dev);
	cancel_delayed_work_sync(&x->control);	/* of a frame that passed just before */
	destroy_workqueue(x->wq);
	synchronize_net();
	rcu_barrier();
	free_netdev(xvm_dev);
}

module_init(xvm_module_init);
module_exit(xvm_module_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("XenVMNIC: frames from machine to machine of one Xen host, by shared memory");
