/* What is counted, and where; of both plugins, that of Linux's tasks (path.c) and that of Xen's domains (xen.c).
 *
 * Nouns, in the order in which QEMU meets them:
 *   block   a translated piece of code
 *   cell    what is counted: by whose it is (a number that the plugin gives), and by where a block begins
 *
 * A string instruction with a repeat prefix is one instruction, as hardware counts it, however often it repeats; its
 * repetitions are counted apart, and their loads and stores with all others. (QEMU's -icount calls each an instruction.)
 */
#ifndef LAB_CELLS_H
#define LAB_CELLS_H
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "marks.h"
#include "qemu_plugin.h"

#if !__has_include(<qemu-plugin.h>)
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn, enum qemu_plugin_op op, void *ptr,
                                                uint64_t imm);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
#endif

enum { FIRST_TABLE = 1 << 16 };

struct counts {
    uint64_t instructions, loads, stores, repeats;
    uint64_t first_misses, second_misses, walks; /* of a simulated cache and TLB (cache.h) */
};
struct cell {
    uint64_t address;
    uint32_t whose;
    bool used;
    struct counts counts;
};
struct block {
    uint64_t address;
    uint32_t whose; /* where that is known when it is translated */
    bool begins_repeat;
    uint64_t ends_repeat; /* address of the repeated instruction that ends it, or 0 */
};
static uint64_t instructions, loads, stores; /* so far; a plugin that does not count loads and stores leaves them be */
static uint64_t first_misses, second_misses, walks;
static struct counts before;
static struct cell *table; /* open addressing */
static size_t table_size, used;
static bool counting;
static struct cell *running; /* whose block runs */
static const struct block *last;
static bool repeating;

static void die(const char *what) {
    fprintf(stderr, "counting plugin: %s\n", what);
    exit(1);
}

static size_t place_of(uint64_t address, uint32_t whose, size_t size) {
    uint64_t mixed = (address * 0x9e3779b97f4a7c15) ^ (whose * 0xc2b2ae3d27d4eb4full);
    return (mixed ^ mixed >> 29) & (size - 1);
}

static struct cell *slot(struct cell *cells, size_t size, uint64_t address, uint32_t whose) {
    size_t at = place_of(address, whose, size);
    while (cells[at].used && (cells[at].address != address || cells[at].whose != whose)) at = (at + 1) & (size - 1);
    return &cells[at];
}

static void grow(void) {
    size_t size = table_size ? table_size * 2 : FIRST_TABLE;
    struct cell *larger = calloc(size, sizeof *larger);
    if (!larger) die("no memory for its counts");
    for (size_t i = 0; i < table_size; i++)
        if (table[i].used) *slot(larger, size, table[i].address, table[i].whose) = table[i];
    free(table);
    table = larger;
    table_size = size;
}

static struct cell *cell_of(uint64_t address, uint32_t whose) {
    if (used * 2 >= table_size) grow();
    struct cell *found = slot(table, table_size, address, whose);
    if (!found->used) {
        *found = (struct cell){.address = address, .whose = whose, .used = true};
        used++;
    }
    return found;
}

/* Gives what was counted since the last block began to that block's cell. */
static void settle(void) {
    if (running) {
        struct counts *to = &running->counts;
        uint64_t ran = instructions - before.instructions, repeated = repeating && ran ? 1 : 0;
        to->instructions += ran - repeated;
        to->repeats += repeated;
        to->loads += loads - before.loads;
        to->stores += stores - before.stores;
        to->first_misses += first_misses - before.first_misses;
        to->second_misses += second_misses - before.second_misses;
        to->walks += walks - before.walks;
    }
    before = (struct counts){instructions, loads, stores, 0, first_misses, second_misses, walks};
}

/* Begins to count what `block` executes. */
static void enter(const struct block *block, uint32_t whose) {
    settle();
    repeating = block->begins_repeat && last && last->ends_repeat == block->address;
    last = block;
    running = cell_of(block->address, whose);
}

/* Empties all cells, and counts from now on. */
static void begin_counting(void) {
    memset(table, 0, table_size * sizeof *table);
    used = 0;
    running = NULL;
    last = NULL;
    settle();
    counting = true;
}

/* Writes all cells: [[whose, address, instructions, loads, stores, repetitions, misses of the first cache, misses of the
 * second, misses of the TLB], ...]. */
static void print_cells(FILE *out) {
    const char *comma = "";
    fputc('[', out);
    for (size_t i = 0; i < table_size; i++) {
        const struct cell *cell = &table[i];
        if (!cell->used) continue;
        const struct counts *counts = &cell->counts;
        const uint64_t numbers[] = {cell->address,   counts->instructions, counts->loads,         counts->stores,
                                    counts->repeats, counts->first_misses, counts->second_misses, counts->walks};
        fprintf(out, "%s[%" PRIu32, comma, cell->whose);
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) fprintf(out, ",%" PRIu64, numbers[n]);
        fputc(']', out);
        comma = ",";
    }
    fputc(']', out);
}

static bool is_repeat(const uint8_t *code, size_t size) {
    size_t at = 0;
    bool repeat = false;
    for (; at < size && (code[at] == 0xf3 || code[at] == 0xf2 || code[at] == 0x66 || code[at] == 0x67); at++)
        repeat |= code[at] >= 0xf2;
    if (at < size && (code[at] & 0xf0) == 0x40) at++; /* REX */
    if (!repeat || at >= size) return false;
    return (code[at] >= 0xa4 && code[at] <= 0xa7) || (code[at] >= 0xaa && code[at] <= 0xaf);
}

static int mark_number(const uint8_t *code, size_t size) {
    static const uint8_t head[] = {0x0f, 0x1f, 0x84, 0x00}, tail[] = {0xad, 0xde, 0x5a};
    if (size != MARK_SIZE || memcmp(code, head, sizeof head) || memcmp(code + 5, tail, sizeof tail)) return 0;
    return code[4];
}

/* The block that is being translated, its string instructions noted; its instructions will count. `also`, if there is
 * any, sees each of them. */
static struct block *new_block(struct qemu_plugin_tb *tb, qemu_plugin_vcpu_udata_cb_t on_mark,
                               void (*also)(struct qemu_plugin_insn *)) {
    size_t number = qemu_plugin_tb_n_insns(tb);
    struct block *block = calloc(1, sizeof *block);
    if (!block) die("no memory for its blocks");
    block->address = qemu_plugin_tb_vaddr(tb);
    for (size_t i = 0; i < number; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        const uint8_t *code = qemu_plugin_insn_data(insn);
        size_t size = qemu_plugin_insn_size(insn);
        qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64, &instructions, 1);
        bool repeat = is_repeat(code, size);
        if (repeat && i == 0) block->begins_repeat = true;
        block->ends_repeat = repeat && i == number - 1 ? qemu_plugin_insn_vaddr(insn) : 0;
        int mark = mark_number(code, size);
        if (mark)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, QEMU_PLUGIN_CB_NO_REGS, (void *)(uintptr_t)mark);
        if (also) also(insn);
    }
    return block;
}
#endif
