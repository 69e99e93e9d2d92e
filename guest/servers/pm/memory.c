/* The memory of processes, as far as they ask for more. */

#include "pm.h"

#define PAGE 4096u
#define STACK_FIRST (STACK_TOP - STACK_BYTES)

int do_brk(struct message *m)
{
    uint32_t end = m->w[0], old = (caller->heap_end + PAGE - 1) & ~(PAGE - 1), new, address = old;
    int result = 0;
    m->w[0] = caller->heap_end;
    if (end == 0)
        return 0;
    if (end < caller->heap_first || end > MAPS_BASE)
        return -ENOMEM;
    new = (end + PAGE - 1) & ~(PAGE - 1);
    if (new > old)
        result = sys_map(caller->endpoint, &address, new - old, MAP_WRITE, NULL);
    else if (new < old)
        result = sys_unmap(caller->endpoint, new, old - new);
    if (result)
        return -ENOMEM;
    caller->heap_end = end;
    m->w[0] = end;
    return 0;
}

int do_map(struct message *m)
{
    uint32_t bytes = m->w[0], address = 0;
    if (bytes == 0 || bytes > STACK_FIRST - MAPS_BASE)
        return bytes ? -ENOMEM : -EINVAL;
    if (sys_map(caller->endpoint, &address, (bytes + PAGE - 1) & ~(PAGE - 1), MAP_WRITE, NULL))
        return -ENOMEM;
    m->w[0] = address;
    return 0;
}

int do_unmap(struct message *m)
{
    uint32_t address = m->w[0], bytes = m->w[1];
    if (address & (PAGE - 1) || address < MAPS_BASE || address >= STACK_FIRST || bytes == 0 ||
        bytes > STACK_FIRST - address)
        return -EINVAL;
    return sys_unmap(caller->endpoint, address, (bytes + PAGE - 1) & ~(PAGE - 1));
}
