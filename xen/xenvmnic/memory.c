// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that two machines share. Granted pages are our own: cleared before a peer may read them, never writable for it,
 * and freed only when it no longer maps them. Mapped pages are a peer's: whichever number it names, the hypervisor maps
 * only pages that this peer has granted to us.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <xen/page.h>

#include "xenvmnic.h"

struct xvm_granted *xvm_grant(u16 peer, u32 number, u32 pages)
{
	struct xvm_granted *g = kzalloc(sizeof(*g), GFP_KERNEL);
	u32 i;

	if (!g)
		return NULL;
	xvm_area_init(&g->area, number, pages);
	for (i = 0; i < pages; i++) {
		int ref;

		g->page[i] = alloc_page(GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
		if (!g->page[i])
			goto fail;
		g->pages++;
		ref = gnttab_grant_foreign_access(peer, xen_page_to_gfn(g->page[i]), 1);
		if (ref < 0)
			goto fail;
		g->ref[i] = ref;
		g->area.page[i] = page_address(g->page[i]);
	}
	return g;
fail:
	xvm_abandon(g);
	return NULL;
}

/* Ends the grants of pages that the peer no longer maps. True once all are ended, and `granted` freed. */
bool xvm_try_revoke(struct xvm_granted *granted)
{
	while (granted->pages) {
		u32 i = granted->pages - 1;

		if (granted->ref[i] && !gnttab_try_end_foreign_access(granted->ref[i]))
			return false;
		__free_page(granted->page[i]);
		granted->pages = i;
	}
	kfree(granted);
	return true;
}

/* Leaves pages that the peer still maps to the kernel, which frees them once they are unmapped. */
void xvm_abandon(struct xvm_granted *granted)
{
	while (granted->pages) {
		u32 i = --granted->pages;

		if (granted->ref[i])
			gnttab_end_foreign_access(granted->ref[i], granted->page[i]);
		else
			__free_page(granted->page[i]);
	}
	kfree(granted);
}

struct xvm_mapped *xvm_map(u16 peer, u32 number, const u32 *refs, u32 pages)
{
	struct gnttab_map_grant_ref *op = kcalloc(pages, sizeof(*op), GFP_KERNEL);
	struct xvm_mapped *m = kzalloc(sizeof(*m), GFP_KERNEL);
	bool whole = true;
	u32 i;

	if (!op || !m || gnttab_alloc_pages(pages, m->page))
		goto fail;
	xvm_area_init(&m->area, number, pages);
	m->pages = pages;
	for (i = 0; i < pages; i++) {
		m->area.page[i] = page_address(m->page[i]);
		gnttab_set_map_op(&op[i], (unsigned long)m->area.page[i],
				  GNTMAP_host_map | GNTMAP_readonly, READ_ONCE(refs[i]), peer);
	}
	if (gnttab_map_refs(op, NULL, m->page, pages))
		whole = false;
	for (i = 0; i < pages; i++) {
		m->handle[i] = op[i].status == GNTST_okay ? op[i].handle : INVALID_GRANT_HANDLE;
		if (op[i].status != GNTST_okay)
			whole = false;
	}
	kfree(op);
	if (whole)
		return m;
	xvm_unmap(m);
	return NULL;
fail:
	kfree(op);
	kfree(m);
	return NULL;
}

void xvm_unmap(struct xvm_mapped *mapped)
{
	u32 i;

	for (i = 0; i < mapped->pages; i++) {
		struct gnttab_unmap_grant_ref op;
		unsigned long at = (unsigned long)mapped->area.page[i];

		if (mapped->handle[i] == INVALID_GRANT_HANDLE)
			continue;
		gnttab_set_unmap_op(&op, at, GNTMAP_host_map | GNTMAP_readonly, mapped->handle[i]);
		if (gnttab_unmap_refs(&op, NULL, &mapped->page[i], 1) || op.status != GNTST_okay) {
			/* The page is not ours to use again while the hypervisor still maps the peer's there. */
			pr_err_ratelimited("xenvmnic: cannot unmap a peer's page (status %d); it is lost\n", op.status);
			mapped->page[i] = NULL;
		}
	}
	for (i = 0; i < mapped->pages; i++)
		if (mapped->page[i])
			gnttab_free_pages(1, &mapped->page[i]);
	kfree(mapped);
}
