/* Counts a Linux machine's instructions, loads and stores under QEMU's TCG, by task and address, between two marks.
 *
 * The machine's kernel says whose instruction it is: the plugin sees it store the next task's address (`current_task`) in
 * __switch_to, and reads that task's name, its process's and its parent process's out of the machine's memory. So what the
 * kernel does after a switch is counted for the task that it does it for, even if that never gets to run itself.
 *
 * Nouns, in the order in which QEMU meets them:
 *   task    a task of the machine's kernel, with names: whose a cell (cells.h) is
 *   window  what lies between two marks (marks.h); a line of JSON in the file
 *
 * Arguments: out=FILE; switch=ADDRESS and switch_size=BYTES of __switch_to; current=OFFSET of current_task among a
 * processor's variables; name=, leader=, parent= offsets in task_struct. One processor, addresses not randomised.
 */
#include "cache.h"
#include "cells.h"

#if !__has_include(<qemu-plugin.h>)
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_hwaddr;
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W, QEMU_PLUGIN_MEM_RW };
typedef void (*qemu_plugin_vcpu_mem_cb_t)(unsigned int vcpu_index, qemu_plugin_meminfo_t info, uint64_t vaddr,
                                          void *userdata);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, qemu_plugin_vcpu_mem_cb_t cb,
                                      enum qemu_plugin_cb_flags flags, enum qemu_plugin_mem_rw rw, void *userdata);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *haddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *haddr);
#endif

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* Where Linux maps itself and all memory with four levels of pages (Documentation/x86/x86_64/mm.rst). */
static const uint64_t TEXT = 0xffffffff80000000, TEXT_FROM = 0xffffffff81000000, TEXT_TO = 0xffffffff84000000;
static const uint64_t DIRECT = 0xffff888000000000, DIRECT_SIZE = 1536ull << 20; /* as much as every machine has */
enum { NAME_SIZE = 16, MOST_TASKS = 4096, LINE_BITS = 6, PAGE_BITS = 12, LARGE_PAGE_BITS = 21 };

struct task {
    uint64_t at;
    char name[NAME_SIZE + 1], leader[NAME_SIZE + 1], parent[NAME_SIZE + 1];
};

static struct {
    uint64_t from, size, current, name, leader, parent;
} offsets;
static FILE *out;
static uint8_t *memory; /* the machine's, from physical address 0 */
static struct task tasks[MOST_TASKS];
static uint32_t known_tasks, current;
static uint64_t current_at, current_process;

/* Where the machine's kernel keeps what is at `address`: the first task lies in its own data. */
static const uint8_t *place_in_memory(uint64_t address) {
    if (memory && address - DIRECT < DIRECT_SIZE) return memory + (address - DIRECT);
    if (memory && address >= TEXT_FROM && address < TEXT_TO) return memory + (address - TEXT);
    return NULL;
}

static uint64_t read_word(uint64_t address) {
    uint64_t word = 0;
    const uint8_t *place = place_in_memory(address);
    if (place) memcpy(&word, place, sizeof word);
    return word;
}

static void read_name(uint64_t task, char *name) {
    const uint8_t *place = place_in_memory(task + offsets.name);
    if (place) memcpy(name, place, NAME_SIZE);
    name[NAME_SIZE] = 0;
}

/* The task whose record is at `at`, named as it is now. */
static uint32_t task_at(uint64_t at) {
    struct task fresh = {.at = at};
    uint64_t leader = read_word(at + offsets.leader);
    read_name(at, fresh.name);
    read_name(leader, fresh.leader);
    read_name(read_word(leader + offsets.parent), fresh.parent);
    for (uint32_t i = 0; i < known_tasks; i++)
        if (!memcmp(&tasks[i], &fresh, sizeof fresh)) return i;
    if (known_tasks == MOST_TASKS) die("more tasks than it has room for");
    tasks[known_tasks] = fresh;
    return known_tasks++;
}

static void on_switch(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
    (void)cpu, (void)data;
    struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, address);
    if (!place || !memory) return;
    memcpy(&current_at, memory + qemu_plugin_hwaddr_phys_addr(place), sizeof current_at);
    current_process = read_word(current_at + offsets.leader);
    if (counting) current = task_at(current_at);
}

/* What the access would have missed in the simulated cache and TLB. */
static void look_up(qemu_plugin_meminfo_t info, uint64_t address) {
    struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, address);
    if (!place || qemu_plugin_hwaddr_is_io(place)) return;
    bool in_kernel = address >> 63, is_large = address - DIRECT < DIRECT_SIZE || address >= TEXT;
    uint64_t page = is_large ? address >> LARGE_PAGE_BITS : address >> PAGE_BITS;
    if (!hits_page(page, in_kernel ? 0 : current_process)) walks++;
    uint64_t line = qemu_plugin_hwaddr_phys_addr(place) >> LINE_BITS;
    if (hits_line(first, FIRST_SETS, FIRST_WAYS, line)) return;
    first_misses++;
    if (!hits_line(second, SECOND_SETS, SECOND_WAYS, line)) second_misses++;
}

/* (QEMU 7.2 mixes loads and stores up where code shall count one kind by itself.) */
static void on_access(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data) {
    (void)cpu, (void)data;
    if (qemu_plugin_mem_is_store(info)) stores++;
    else loads++;
    look_up(info, address); /* also outside of windows: a window finds the cache as it is left */
}

static void on_block(unsigned int cpu, void *data) {
    (void)cpu;
    if (!counting) return;
    enter(data, current);
}

static void begin(void) {
    known_tasks = 0;
    current = task_at(current_at);
    begin_counting();
}

static void print_name(const char *name) {
    fputc('"', out);
    for (; *name; name++)
        if (*name == '"' || *name == '\\') fprintf(out, "\\%c", *name);
        else if ((unsigned char)*name >= ' ' && (unsigned char)*name < 127) fputc(*name, out);
    fputc('"', out);
}

static void end(void) {
    settle();
    counting = false;
    fprintf(out, "{\"tasks\":[");
    for (uint32_t i = 0; i < known_tasks; i++) {
        fputs(i ? ",[" : "[", out);
        print_name(tasks[i].name), fputc(',', out);
        print_name(tasks[i].leader), fputc(',', out);
        print_name(tasks[i].parent), fputc(']', out);
    }
    fprintf(out, "],\"counts\":");
    print_cells(out);
    fprintf(out, "}\n");
    fflush(out);
}

static void on_mark(unsigned int cpu, void *data) {
    (void)cpu;
    if ((uintptr_t)data == MARK_BEGIN) begin();
    if ((uintptr_t)data == MARK_END && counting) end();
}

/* mov %REGISTER, %gs:current_task, addressed from the next instruction or from zero */
static bool stores_current(const uint8_t *code, size_t size, uint64_t address) {
    int32_t place;
    if (size < 8 || code[0] != 0x65 || (code[1] & 0xfb) != 0x48 || code[2] != 0x89) return false;
    memcpy(&place, code + size - sizeof place, sizeof place);
    if (size == 8 && (code[3] & 0xc7) == 0x05) return address + size + place == offsets.current;
    return size == 9 && (code[3] & 0xc7) == 0x04 && code[4] == 0x25 && (uint64_t)place == offsets.current;
}

static void find_memory(uint64_t address, struct qemu_plugin_insn *first) {
    uint8_t *at = qemu_plugin_insn_haddr(first);
    if (!memory && at && address >= TEXT_FROM && address < TEXT_TO) memory = at - (address - TEXT);
}

static void look_at(struct qemu_plugin_insn *insn) {
    uint64_t address = qemu_plugin_insn_vaddr(insn);
    qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
    if (address - offsets.from < offsets.size &&
        stores_current(qemu_plugin_insn_data(insn), qemu_plugin_insn_size(insn), address))
        qemu_plugin_register_vcpu_mem_cb(insn, on_switch, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W, NULL);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    find_memory(qemu_plugin_tb_vaddr(tb), qemu_plugin_tb_get_insn(tb, 0));
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, new_block(tb, on_mark, look_at));
}

static bool take(const char *argument, const char *key, uint64_t *to) {
    size_t length = strlen(key);
    if (strncmp(argument, key, length) || argument[length] != '=') return false;
    *to = strtoull(argument + length + 1, NULL, 0);
    return true;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i];
        if (!strncmp(argument, "out=", 4)) out = fopen(argument + 4, "w");
        else if (!take(argument, "switch", &offsets.from) && !take(argument, "switch_size", &offsets.size) &&
                 !take(argument, "current", &offsets.current) && !take(argument, "name", &offsets.name) &&
                 !take(argument, "leader", &offsets.leader) && !take(argument, "parent", &offsets.parent))
            die("an argument that it does not know");
    }
    if (!out) die("cannot write the file that out= names");
    if (!info->system_emulation || strcmp(info->target_name, "x86_64")) die("counts whole x86-64 machines only");
    if (info->system.smp_vcpus != 1) die("counts machines of one processor only");
    if (!offsets.size || !offsets.name || !offsets.leader || !offsets.parent) die("an argument is missing");
    grow();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
