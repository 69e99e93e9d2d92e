/* Segments, the task state segment with its permission map, and gates (SDM vol. 3, 3.4.5, 8.2.1, 6.11). */

#include "kernel.h"

#define GATES 256
#define INTERRUPT_GATE 0x8e00u     /* present, 32 bits, clears IF */
#define FOR_USERS 0x6000u          /* DPL 3 */
#define TSS 0x28
#define MAP_BYTES 8192
#define VECTORS (sizeof vectors / sizeof vectors[0])

struct task_state {
    uint32_t link, esp0, ss0, others[22];
    uint16_t trap, map;            /* offset of the permission map; behind the limit: there is none */
    uint8_t permissions[MAP_BYTES + 1];
} __attribute__((packed));

struct table {
    uint16_t limit;
    uint32_t base;
} __attribute__((packed));

static uint64_t descriptors[6] = {
    0, 0x00cf9b000000ffff, 0x00cf93000000ffff, 0x00cffb000000ffff, 0x00cff3000000ffff, 0,
};
static uint64_t gates[GATES];
static struct task_state state;
static const struct process *map_owner;

/* traps.S has an entry for each of these. */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(16) X(17) \
    X(18) X(19) X(48) X(49) X(80) X(81) X(82) X(83) X(84) X(85) X(86) X(87) X(88) X(89) X(90) X(91) X(92) \
    X(93) X(94) X(95) X(96) X(255)
#define DECLARE(vector) extern void vector_##vector(void);
#define ENTRY(vector) {vector, vector_##vector},
EACH(DECLARE)

static const struct {
    uint8_t number;
    void (*entry)(void);
} vectors[] = {EACH(ENTRY)};

static int is_for_users(uint32_t vector)
{
    return vector == 3 || vector == 4 || vector == IPC_VECTOR || vector == HAL_VECTOR;
}

void descriptors_start(void)
{
    struct table table = {sizeof descriptors - 1, (uint32_t)descriptors};
    uint32_t base = (uint32_t)&state, limit = sizeof state - 1;

    for (uint32_t i = 0; i < VECTORS; i++) {
        uint32_t entry = (uint32_t)vectors[i].entry;
        uint32_t kind = INTERRUPT_GATE | (is_for_users(vectors[i].number) ? FOR_USERS : 0);
        gates[vectors[i].number] =
            (uint64_t)((entry & 0xffff0000) | kind) << 32 | KERNEL_CODE << 16 | (entry & 0xffff);
    }
    state.ss0 = KERNEL_DATA;
    state.map = sizeof state;
    memset(state.permissions, 0xff, sizeof state.permissions);
    descriptors[TSS / 8] = (uint64_t)(base >> 24) << 56 | (uint64_t)(limit >> 16) << 48 | 0x89ull << 40
        | (uint64_t)(base & 0xffffff) << 16 | (limit & 0xffff);
    __asm__ volatile("lgdt %0\n\t"
                     "ljmp %1, $1f\n"
                     "1:\tmov %2, %%ds\n\tmov %2, %%es\n\tmov %2, %%ss\n\tmov %3, %%fs\n\tmov %3, %%gs"
                     : : "m"(table), "i"(KERNEL_CODE), "r"(KERNEL_DATA), "r"(USER_DATA) : "memory");
    table.limit = sizeof gates - 1;
    table.base = (uint32_t)gates;
    __asm__ volatile("lidt %0\n\tltr %w1" : : "m"(table), "r"(TSS) : "memory");
}

/* Allows the ports of the process's ranges. */
static void fill_map(const struct process *process)
{
    memset(state.permissions, 0xff, MAP_BYTES);
    for (uint32_t i = 0; i < process->rights.port_ranges; i++) {
        const struct port_range *range = &process->rights.ports[i];
        for (uint32_t port = range->first; port <= range->last; port++)
            state.permissions[port / 8] &= (uint8_t)~(1 << port % 8);
    }
    map_owner = process;
}

void use_stack_of(struct process *process)
{
    state.esp0 = (uint32_t)(&process->frame + 1);
    if (process->rights.ways & BY_BITMAP) {
        if (map_owner != process)
            fill_map(process);
        state.map = offsetof(struct task_state, permissions);
    } else {
        state.map = sizeof state;
    }
}

void forget_map_of(const struct process *process)
{
    if (map_owner == process)
        map_owner = NULL;
    if (process == current)
        use_stack_of(current);
}
