/* The table of processes. */

#include "kernel.h"

struct process processes[SLOTS];
struct process *current;

/* Who has each number of a service. */
static struct process *services[SERVICES];

static uint8_t system_stack[4096] __attribute__((aligned(16)));
static uint8_t idle_stack[512] __attribute__((aligned(16)));

#define STACK_IN_KERNEL 0x10000u
#define INTERRUPTS_OFF 0x2u
#define GENERATIONS 0x7fffffu      /* the bits of an endpoint that are left for them */

static const char *const kernel_names[FIRST_SLOT] = {"system", "clock", "hardware", "idle"};

/* A process of ring 0, which starts at `entry`. */
static void start_in_kernel(struct process *process, void (*entry)(void), uint8_t *stack, uint32_t bytes,
                            uint32_t eflags)
{
    /* The processor does not pop the last two words, ESP and SS, for ring 0: they stay on the stack. */
    struct frame *context = (struct frame *)(stack + bytes) - 1;

    memset(context, 0, sizeof *context);
    context->es = context->ds = KERNEL_DATA;
    context->cs = KERNEL_CODE;
    context->eip = (uint32_t)entry;
    context->eflags = eflags;
    process->context = context;
}

void processes_start(void)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        processes[slot].endpoint = NONE;
    for (uint32_t slot = 0; slot < FIRST_SLOT; slot++) {
        struct process *process = &processes[slot];
        process->endpoint = slot;
        strcpy(process->name, kernel_names[slot]);
        process->state = STATE_STOPPED;
        process->context = &process->frame;
        process->rights.service = USERS;
        process->rights.traps = ~0u;
        process->rights.send_to = ~0ull;
    }
    start_in_kernel(&processes[SYSTEM], system_main, system_stack, sizeof system_stack, INTERRUPTS_OFF);
    /* It is chosen when no other process is ready, and is in no queue. */
    start_in_kernel(&processes[IDLE], idle, idle_stack, sizeof idle_stack, INTERRUPTS_ON);
    processes[SYSTEM].state = 0;
    make_ready(&processes[SYSTEM]);
    current = &processes[IDLE];
}

struct process *service(uint32_t number)
{
    return number < SERVICES ? services[number] : NULL;
}

struct process *process_at(endpoint_t endpoint)
{
    uint32_t slot = SLOT_OF(endpoint);

    if ((endpoint & ~0xffu) == SERVICE(0))
        return service(slot);
    if (slot >= SLOTS || processes[slot].endpoint != endpoint)
        return NULL;
    return &processes[slot];
}

struct process *process_of(struct process *caller, endpoint_t endpoint)
{
    struct process *process = endpoint == SELF ? caller : process_at(endpoint);

    /* The kernel's own are nobody's to change or copy from. */
    return process != NULL && process - processes < FIRST_SLOT ? NULL : process;
}

struct process *process_create(const char *name)
{
    for (uint32_t slot = FIRST_SLOT; slot < SLOTS; slot++) {
        struct process *process = &processes[slot];
        uint32_t generation = process->generation % GENERATIONS + 1;
        if (process->endpoint != NONE)
            continue;
        memset(process, 0, sizeof *process);
        if (space_create(process) != 0)
            return NULL;
        process->generation = generation;
        process->endpoint = ENDPOINT(generation, slot);
        process->context = &process->frame;
        process->state = STATE_STOPPED;
        process->rights.service = USERS;
        process->rights.manager = PM;
        process->rights.priority = process->priority = LAST_PRIORITY;
        memcpy(process->name, name, NAME_BYTES - 1);
        return process;
    }
    return NULL;
}

void process_destroy(struct process *process)
{
    uint32_t number = process->rights.service;

    process->state |= STATE_STOPPED;
    make_unready(process);
    forget(process);
    lines_remove(process, ~0u);
    numbers_forget(process);
    forget_map_of(process);
    if (services[number] == process)
        services[number] = NULL;
    space_destroy(process);
    process->endpoint = NONE;
}

int process_set_rights(struct process *process, const struct rights *rights)
{
    uint32_t old = process->rights.service;

    if (rights->service >= SERVICES || rights->port_ranges > PORT_RANGES
        || rights->memory_ranges > MEMORY_RANGES || rights->manager >= SERVICES
        || rights->priority > LAST_PRIORITY)
        return -EINVAL;
    if (services[old] == process)
        services[old] = NULL;
    process->rights = *rights;
    process->rights.name[NAME_BYTES - 1] = 0;
    memcpy(process->name, process->rights.name, NAME_BYTES);
    if (rights->service != USERS)
        services[rights->service] = process;
    lines_remove(process, ~rights->interrupts);
    forget_map_of(process);
    set_priority(process, rights->priority);
    return 0;
}

/* A process of ring 0 with memory of its own (BY_KERNEL) has its frames on its own stack, which is there only
   while its directory is loaded. They are kept in its entry, as those of ring 3. */
struct frame *frame_of(struct process *process, struct frame *registers)
{
    if ((uint32_t)registers >= KERNEL_BASE)
        return registers;
    memcpy(&process->frame, registers, offsetof(struct frame, esp));
    process->frame.esp = (uint32_t)&registers->esp;
    return &process->frame;
}

struct frame *frame_to_leave_by(struct process *process)
{
    struct frame *context = process->context;

    if (context != &process->frame || context->cs != KERNEL_CODE)
        return context;
    context = (struct frame *)(process->frame.esp - offsetof(struct frame, esp));
    memcpy(context, &process->frame, offsetof(struct frame, esp));
    return context;
}

/* No page of its stack may be missing, for the processor pushes the frames there. */
static int let_into_kernel(struct process *process)
{
    process->frame.es = process->frame.ds = KERNEL_DATA;
    process->frame.cs = KERNEL_CODE;
    for (uint32_t at = STACK_TOP - STACK_IN_KERNEL; at < STACK_TOP; at += PAGE)
        if (space_byte(process, at, 1) == NULL)
            return -EFAULT;
    return 0;
}

int process_start(struct process *process, uint32_t eip, uint32_t esp)
{
    if (eip >= KERNEL_BASE || esp > KERNEL_BASE)
        return -EINVAL;
    end_wait(process, 0);
    make_unready(process);
    numbers_forget(process);
    process->has_numbers = 0;
    memset(&process->frame, 0, sizeof process->frame);
    process->frame.es = process->frame.ds = process->frame.ss = USER_DATA;
    process->frame.cs = USER_CODE;
    process->frame.eflags = INTERRUPTS_ON;
    process->frame.eip = eip;
    process->frame.esp = esp;
    if (process->rights.ways & BY_KERNEL && let_into_kernel(process) != 0)
        return -EFAULT;
    process->event.what = 0;
    process->grant_count = 0;
    process->state = 0;
    make_ready(process);
    return 0;
}
