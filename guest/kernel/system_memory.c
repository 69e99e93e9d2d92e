/* Kernel calls for memory and copies (tern/calls.h). */

#include "kernel.h"

#define VECTOR_MAX 16

/* The process whose memory is meant: as with grants, that of others is for those who may COPY. */
static int owner_of_memory(struct process *caller, endpoint_t endpoint, struct process **owner)
{
    *owner = process_of(caller, endpoint);
    if (*owner == NULL)
        return -EDEADEND;
    return *owner == caller || caller->rights.calls >> SYS_COPY & 1 ? 0 : denied(caller, ECALLDENIED, SYS_COPY);
}

int call_map(struct process *caller, struct message *m)
{
    struct process *process;
    uint32_t address = m->w[1], physical = 0;
    int error = owner_of_memory(caller, m->w[0], &process);

    if (error != 0)
        return error;
    error = space_map(process, &address, m->w[2], m->w[3], &physical);
    m->w[0] = address;
    m->w[1] = physical;
    return error;
}

/* With the pages in which the archive begins and ends. */
static int is_in_archive(uint32_t base, uint32_t bytes)
{
    uint32_t first = boot.archive & -PAGE;
    uint32_t end = (boot.archive + boot.archive_bytes + PAGE - 1) & -PAGE;

    return base >= first && base < end && bytes <= end - base;
}

static int may_map(const struct process *caller, uint32_t base, uint32_t bytes)
{
    if (bytes == 0)
        return 0;
    if (caller->rights.calls >> SYS_GETINFO & 1 && is_in_archive(base, bytes))
        return 1;
    for (uint32_t i = 0; i < caller->rights.memory_ranges; i++) {
        const struct memory_range *range = &caller->rights.memory[i];
        if (base >= range->base && bytes <= range->bytes && base - range->base <= range->bytes - bytes)
            return 1;
    }
    return 0;
}

int call_mapphysical(struct process *caller, struct message *m)
{
    struct process *process;
    uint32_t address = m->w[1], base = m->w[4], flags = m->w[3];
    int error = owner_of_memory(caller, m->w[0], &process);

    if (error != 0)
        return error;
    if (!may_map(caller, base, m->w[2]))
        return denied(caller, EPERM, base);
    /* Nobody changes the archive: others read it. */
    if (is_in_archive(base, m->w[2]))
        flags &= ~MAP_WRITE;
    error = space_map_device(process, &address, m->w[2], flags, base);
    m->w[0] = address;
    return error;
}

int call_unmap(struct process *caller, struct message *m)
{
    struct process *process;
    int error = owner_of_memory(caller, m->w[0], &process);

    return error != 0 ? error : space_unmap(process, m->w[1], m->w[2]);
}

int call_share(struct process *caller, struct message *m)
{
    struct process *from = process_of(caller, m->w[0]), *to = process_of(caller, m->w[1]);

    if (from == NULL || to == NULL)
        return -EDEADEND;
    if (from == to)
        return -EINVAL;
    space_clear(to);
    return space_fork(from, to);
}

int call_umap(struct process *caller, struct message *m)
{
    struct process *process;
    uint32_t address = m->w[1], wanted = m->w[2], bytes = 0;
    uint8_t *first, *byte;
    int error = owner_of_memory(caller, m->w[0], &process);

    if (error != 0)
        return error;
    first = byte = space_byte(process, address, 0);
    if (first == NULL)
        return -EFAULT;
    while (byte == first + bytes && bytes < wanted) {
        bytes += PAGE - (address + bytes) % PAGE;
        byte = space_byte(process, address + bytes, 0);
    }
    m->w[0] = (uint32_t)first - KERNEL_BASE;
    m->w[1] = bytes < wanted ? bytes : wanted;
    return 0;
}

int call_copy(struct process *caller, struct message *m)
{
    struct process *from = process_of(caller, m->w[0]), *to = process_of(caller, m->w[2]);

    if (from == NULL || to == NULL)
        return -EDEADEND;
    return copy_between(from, m->w[1], to, m->w[3], m->w[4]);
}

int call_setgrants(struct process *caller, struct message *m)
{
    if (m->w[1] > GRANTS_MAX || m->w[0] >= KERNEL_BASE)
        return -EINVAL;
    caller->grants = m->w[0];
    caller->grant_count = m->w[1];
    return 0;
}

int call_safecopy(struct process *caller, struct message *m)
{
    struct safe_copy copy = {m->w[0], m->w[1], m->w[2], m->w[3], m->w[4], m->w[5]};

    return copy_granted(caller, &copy);
}

int call_vcopy(struct process *caller, struct message *m)
{
    if (m->w[1] > VECTOR_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < m->w[1]; i++) {
        struct safe_copy copy;
        int error = copy_in(caller, &copy, m->w[0] + i * sizeof copy, sizeof copy);
        if (error != 0 || (error = copy_granted(caller, &copy)) != 0)
            return error;
    }
    return 0;
}
