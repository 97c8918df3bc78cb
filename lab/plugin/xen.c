/* Counts the instructions of all domains and of Xen under QEMU's TCG, by the machine page that their code lies in,
 * between two marks.
 *
 * A domain owns its pages: who asks Xen which pages those are (`xen-mfndump dump-p2m`) knows whose an instruction is.
 * Xen works for the domain whose code ran last.
 *
 * Nouns, in the order in which QEMU meets them:
 *   frame   the number of the machine page in which a block's code begins: whose a cell (cells.h) is
 *   window  what lies between two marks (marks.h); a line of JSON in the file: whose is a frame, and HYPERVISOR beside
 *           it where Xen worked for the code in that frame
 *
 * Arguments: out=FILE. One processor; the machine's memory is QEMU's memory-backend-memfd, linear from address 0.
 */
#include "cells.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* Where Xen maps itself, in every domain (xen/arch/x86/include/asm/config.h). */
static const uint64_t XEN_FROM = 0xffff800000000000, XEN_TO = 0xffff880000000000;
static const uint32_t HYPERVISOR = 1u << 31;
enum { PAGE_BITS = 12 };

static FILE *out;
static uintptr_t memory, memory_end; /* the machine's, as QEMU has mapped it */
static uint32_t at_work; /* the frame of the code that ran last in a domain */

static void find_memory(void) {
    char line[512];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) die("cannot read /proc/self/maps");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memory-backend-memfd") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
            if (!memory) memory = from;
            memory_end = to;
        }
    fclose(maps);
    if (!memory) die("the machine's memory is no memory-backend-memfd");
}

static uint32_t frame_of(const struct qemu_plugin_insn *insn) {
    uintptr_t at = (uintptr_t)qemu_plugin_insn_haddr(insn);
    return at >= memory && at < memory_end ? (at - memory) >> PAGE_BITS : 0;
}

static void on_block(unsigned int cpu, void *data) {
    (void)cpu;
    const struct block *block = data;
    if (block->whose != HYPERVISOR) at_work = block->whose;
    if (counting) enter(block, block->whose == HYPERVISOR ? HYPERVISOR | at_work : block->whose);
}

static void on_mark(unsigned int cpu, void *data) {
    (void)cpu;
    if ((uintptr_t)data == MARK_BEGIN) begin_counting();
    if ((uintptr_t)data != MARK_END || !counting) return;
    settle();
    counting = false;
    fprintf(out, "{\"counts\":");
    print_cells(out);
    fprintf(out, "}\n");
    fflush(out);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    if (!memory) find_memory();
    struct block *block = new_block(tb, on_mark, NULL);
    bool in_xen = block->address >= XEN_FROM && block->address < XEN_TO;
    block->whose = in_xen ? HYPERVISOR : frame_of(qemu_plugin_tb_get_insn(tb, 0));
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "out=", 4)) out = fopen(argv[i] + 4, "w");
        else die("an argument that it does not know");
    if (!out) die("cannot write the file that out= names");
    if (!info->system_emulation || strcmp(info->target_name, "x86_64")) die("counts whole x86-64 machines only");
    if (info->system.smp_vcpus != 1) die("counts machines of one processor only");
    grow();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
