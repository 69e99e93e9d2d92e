/* Copies between the memory of processes, a page at a time, and grants. Faults are resolved on the way; the
   kernel itself never faults. */

#include "kernel.h"

/* The address is the kernel's own: of one of its processes. */
static int is_of_kernel(const struct process *process)
{
    return process->directory == 0;
}

static uint8_t *byte_of(struct process *process, uint32_t address, int writes)
{
    return is_of_kernel(process) ? (uint8_t *)address : space_byte(process, address, writes);
}

/* The bytes up to the end of the page. */
static uint32_t rest_of_page(uint32_t address)
{
    return PAGE - address % PAGE;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

int copy_in(struct process *from, void *to, uint32_t address, uint32_t bytes)
{
    uint8_t *target = to;

    while (bytes > 0) {
        uint32_t part = least(bytes, rest_of_page(address));
        const uint8_t *source = byte_of(from, address, 0);
        if (source == NULL)
            return -EFAULT;
        memcpy(target, source, part);
        target += part;
        address += part;
        bytes -= part;
    }
    return 0;
}

int copy_out(struct process *to, uint32_t address, const void *from, uint32_t bytes)
{
    const uint8_t *source = from;

    while (bytes > 0) {
        uint32_t part = least(bytes, rest_of_page(address));
        uint8_t *target = byte_of(to, address, 1);
        if (target == NULL)
            return -EFAULT;
        memcpy(target, source, part);
        source += part;
        address += part;
        bytes -= part;
    }
    return 0;
}

int copy_between(struct process *from, uint32_t source, struct process *to, uint32_t target, uint32_t bytes)
{
    while (bytes > 0) {
        uint32_t part = least(bytes, least(rest_of_page(source), rest_of_page(target)));
        /* The target first: giving it a page of its own must not move the source's. */
        uint8_t *t = byte_of(to, target, 1);
        const uint8_t *s = byte_of(from, source, 0);
        if (t == NULL || s == NULL)
            return -EFAULT;
        memmove(t, s, part);
        source += part;
        target += part;
        bytes -= part;
    }
    return 0;
}

/* Reads the grant of which `caller` wants a copy. Returns the process whose memory it is, or NULL if there is
   no such grant, or it is not for this caller, these bytes or this direction, or is none that `granter` could
   give. */
static struct process *granted(struct process *caller, struct process *granter, const struct safe_copy *copy,
                               struct grant *grant)
{
    if (granter == caller || copy->grant >= granter->grant_count
        || copy_in(granter, grant, granter->grants + copy->grant * sizeof *grant, sizeof *grant) != 0)
        return NULL;
    if (process_at(grant->to) != caller || !(grant->access & copy->direction) || copy->offset > grant->bytes
        || copy->bytes > grant->bytes - copy->offset)
        return NULL;
    if (grant->of == 0)
        return granter;
    return granter->rights.calls >> SYS_COPY & 1 ? process_of(granter, grant->of) : NULL;
}

int copy_granted(struct process *caller, const struct safe_copy *copy)
{
    struct process *granter = process_of(caller, copy->granter), *of;
    struct grant grant;

    if (granter == NULL)
        return -EDEADEND;
    if (copy->direction != GRANT_READ && copy->direction != GRANT_WRITE)
        return -EINVAL;
    if ((of = granted(caller, granter, copy, &grant)) == NULL)
        return denied_grant(caller, copy->grant);
    if (copy->direction == GRANT_READ)
        return copy_between(of, grant.address + copy->offset, caller, copy->address, copy->bytes);
    return copy_between(caller, copy->address, of, grant.address + copy->offset, copy->bytes);
}
