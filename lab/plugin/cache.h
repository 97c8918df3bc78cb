/* A simulated cache and TLB of one processor: what a load or a store would have missed.
 *
 * Data only, each set in the order of use (LRU), lines and pages by their machine address and, in the TLB, by whose
 * address space they are. Sizes are those of a server's core: 32 KB and 1 MB of lines of 64 bytes, 1536 pages of 4 KB (2 MB
 * where Linux maps itself). No prefetching: a copy misses each of its lines, of which real ones fetch most ahead.
 */
#ifndef LAB_CACHE_H
#define LAB_CACHE_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { WAYS = 16, FIRST_SETS = 64, FIRST_WAYS = 8, SECOND_SETS = 1024, SECOND_WAYS = 16, TLB_SETS = 128, TLB_WAYS = 12 };

struct set {
    uint64_t tags[WAYS]; /* the last one used first; 0 is none */
};
static struct set first[FIRST_SETS], second[SECOND_SETS], tlb[TLB_SETS];

/* Whether the set holds the tag; in any case it does then. */
static bool hits(struct set *set, unsigned ways, uint64_t tag) {
    unsigned at = 0;
    while (at < ways - 1 && set->tags[at] != tag) at++;
    bool found = set->tags[at] == tag;
    memmove(set->tags + 1, set->tags, at * sizeof *set->tags);
    set->tags[0] = tag;
    return found;
}

static bool hits_line(struct set *sets, unsigned number, unsigned ways, uint64_t line) {
    return hits(&sets[line % number], ways, line + 1);
}

/* A page of the address space `space`, which is 0 where all have it. */
static bool hits_page(uint64_t page, uint64_t space) {
    return hits(&tlb[page % TLB_SETS], TLB_WAYS, (page ^ space << 20) + 1);
}
#endif
