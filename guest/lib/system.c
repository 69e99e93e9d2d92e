/* Messages and kernel calls as functions. */

#include <string.h>
#include <tern/hal.h>
#include <tern/lib.h>

#define WORD(pointer) ((uint32_t)(pointer))

int ipc_trap(uint32_t operation, endpoint_t endpoint, void *message, uint32_t value);

int ipc_send(endpoint_t to, struct message *message)
{
    return ipc_trap(IPC_SEND, to, message, 0);
}

int ipc_receive(endpoint_t from, struct message *message, uint32_t microseconds)
{
    return ipc_trap(IPC_RECEIVE, from, message, microseconds);
}

int ipc_sendrec(endpoint_t to, struct message *message, uint32_t microseconds)
{
    return ipc_trap(IPC_SENDREC, to, message, microseconds);
}

int ipc_notify(endpoint_t to)
{
    return ipc_trap(IPC_NOTIFY, to, NULL, 0);
}

int ipc_senda(struct asynchronous *table, uint32_t entries)
{
    return ipc_trap(IPC_SENDA, NONE, table, entries);
}

int call(endpoint_t to, int32_t type, struct message *message)
{
    message->type = type;
    int result = ipc_sendrec(to, message, 0);
    return result ? result : message->type;
}

static int kernel(int32_t type, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e)
{
    struct message m = {.w = {a, b, c, d, e}};
    return call(SYSTEM, type, &m);
}

int sys_create(const char *name, endpoint_t *process)
{
    struct message m = {.w = {WORD(name)}};
    int result = call(SYSTEM, SYS_CREATE, &m);
    *process = m.w[0];
    return result;
}

int sys_fork(endpoint_t parent, endpoint_t *child)
{
    struct message m = {.w = {parent}};
    int result = call(SYSTEM, SYS_FORK, &m);
    *child = m.w[0];
    return result;
}

int sys_start(endpoint_t process, uint32_t eip, uint32_t esp)
{
    return kernel(SYS_START, process, eip, esp, 0, 0);
}

int sys_resume(endpoint_t process, uint32_t value)
{
    return kernel(SYS_RESUME, process, value, 0, 0, 0);
}

int sys_stop(endpoint_t process)
{
    return kernel(SYS_STOP, process, 0, 0, 0, 0);
}

int sys_destroy(endpoint_t process, uint64_t *run)
{
    struct message m = {.w = {process}};
    int result = call(SYSTEM, SYS_DESTROY, &m);
    if (run && result == 0)
        *run = (uint64_t)m.w[1] << 32 | m.w[0];
    return result;
}

int sys_privctl(endpoint_t process, const struct rights *rights)
{
    return kernel(SYS_PRIVCTL, process, WORD(rights), 0, 0, 0);
}

int sys_priority(endpoint_t process, uint32_t priority)
{
    return kernel(SYS_PRIORITY, process, priority, 0, 0, 0);
}

int sys_map(endpoint_t process, uint32_t *address, uint32_t bytes, uint32_t flags, uint32_t *physical)
{
    struct message m = {.w = {process, *address, bytes, flags}};
    int result = call(SYSTEM, SYS_MAP, &m);
    if (result < 0)
        return result;
    *address = m.w[0];
    if (physical)
        *physical = m.w[1];
    return result;
}

int sys_mapphysical(endpoint_t process, uint32_t *address, uint32_t bytes, uint32_t flags, uint32_t physical)
{
    struct message m = {.w = {process, *address, bytes, flags, physical}};
    int result = call(SYSTEM, SYS_MAPPHYSICAL, &m);
    if (result == 0)
        *address = m.w[0];
    return result;
}

int sys_unmap(endpoint_t process, uint32_t address, uint32_t bytes)
{
    return kernel(SYS_UNMAP, process, address, bytes, 0, 0);
}

int sys_share(endpoint_t from, endpoint_t to)
{
    return kernel(SYS_SHARE, from, to, 0, 0, 0);
}

int sys_umap(endpoint_t process, uint32_t address, uint32_t bytes, uint32_t *physical, uint32_t *contiguous)
{
    struct message m = {.w = {process, address, bytes}};
    int result = call(SYSTEM, SYS_UMAP, &m);
    *physical = m.w[0];
    if (contiguous)
        *contiguous = m.w[1];
    return result;
}

int sys_copy(endpoint_t from, uint32_t source, endpoint_t to, uint32_t target, uint32_t bytes)
{
    return kernel(SYS_COPY, from, source, to, target, bytes);
}

int sys_setgrants(struct grant *table, uint32_t entries)
{
    return kernel(SYS_SETGRANTS, WORD(table), entries, 0, 0, 0);
}

int sys_safecopy(endpoint_t granter, uint32_t grant, uint32_t offset, void *address, uint32_t bytes,
                 uint32_t direction)
{
    struct message m = {.w = {granter, grant, offset, WORD(address), bytes, direction}};
    return call(SYSTEM, SYS_SAFECOPY, &m);
}

int sys_vcopy(struct safe_copy *copies, uint32_t entries)
{
    return kernel(SYS_VCOPY, WORD(copies), entries, 0, 0, 0);
}

int sys_in(uint32_t size, uint32_t port, uint32_t *value)
{
    struct message m = {.w = {IO_IN, size, port}};
    int result = call(SYSTEM, SYS_DEVIO, &m);
    *value = m.w[0];
    return result;
}

int sys_out(uint32_t size, uint32_t port, uint32_t value)
{
    return kernel(SYS_DEVIO, IO_OUT, size, port, value, 0);
}

int sys_sdevio(uint32_t direction, uint32_t size, uint32_t port, void *address, uint32_t elements)
{
    return kernel(SYS_SDEVIO, direction, size, port, WORD(address), elements);
}

int sys_vdevio(struct port_access *accesses, uint32_t entries)
{
    return kernel(SYS_VDEVIO, WORD(accesses), entries, 0, 0, 0);
}

int sys_irqctl(uint32_t what, uint32_t line)
{
    return kernel(SYS_IRQCTL, what, line, 0, 0, 0);
}

int sys_alarm(uint32_t microseconds, uint32_t period)
{
    return kernel(SYS_ALARM, microseconds, period, 0, 0, 0);
}

int sys_times(struct times *times)
{
    struct message m = {.w = {0}};
    int result = call(SYSTEM, SYS_TIMES, &m);
    if (result < 0)
        return result;
    times->microseconds = (uint64_t)m.w[1] << 32 | m.w[0];
    times->tsc = (uint64_t)m.w[3] << 32 | m.w[2];
    times->tsc_khz = m.w[4];
    times->run = (uint64_t)m.w[6] << 32 | m.w[5];
    times->ticks = m.w[7];
    return 0;
}

int sys_setclock(uint32_t source, uint32_t hz)
{
    return kernel(SYS_SETCLOCK, source, hz, 0, 0, 0);
}

int sys_getclock(uint32_t *source, uint32_t *hz)
{
    struct message m = {.w = {0}};
    int result = call(SYSTEM, SYS_GETCLOCK, &m);
    *source = m.w[0];
    *hz = m.w[1];
    return result;
}

int sys_getevent(struct event *event)
{
    struct message m = {.w = {0}};
    int result = call(SYSTEM, SYS_GETEVENT, &m);
    event->process = result < 0 ? NONE : m.w[0];
    event->what = m.w[1];
    event->vector = m.w[2];
    event->address = m.w[3];
    event->eip = m.w[4];
    event->error = m.w[5];
    return result;
}

int sys_sigsend(endpoint_t process, const struct signal_frame *frame)
{
    return kernel(SYS_SIGSEND, process, WORD(frame), 0, 0, 0);
}

int sys_sigreturn(endpoint_t process, uint32_t frame)
{
    return kernel(SYS_SIGRETURN, process, frame, 0, 0, 0);
}

int sys_getinfo(uint32_t what, void *address, uint32_t bytes)
{
    struct message m = {.w = {what, WORD(address), bytes}};
    int result = call(SYSTEM, SYS_GETINFO, &m);
    return result < 0 ? result : (int)m.w[0];
}

int sys_abort(uint32_t how, uint32_t value)
{
    return kernel(SYS_ABORT, how, value, 0, 0, 0);
}

int sys_log(const char *text, uint32_t bytes)
{
    return kernel(SYS_LOG, WORD(text), bytes, 0, 0, 0);
}
