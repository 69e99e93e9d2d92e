/* The process that executes kernel calls: it receives requests as any server does, but runs in ring 0. */

#include "kernel.h"

static kernel_function *const calls[KERNEL_CALLS] = {
    [SYS_CREATE] = call_create, [SYS_FORK] = call_fork, [SYS_START] = call_start, [SYS_RESUME] = call_resume,
    [SYS_STOP] = call_stop, [SYS_DESTROY] = call_destroy, [SYS_PRIVCTL] = call_privctl,
    [SYS_PRIORITY] = call_priority, [SYS_MAP] = call_map, [SYS_MAPPHYSICAL] = call_mapphysical,
    [SYS_UNMAP] = call_unmap, [SYS_SHARE] = call_share, [SYS_UMAP] = call_umap, [SYS_COPY] = call_copy,
    [SYS_SETGRANTS] = call_setgrants, [SYS_SAFECOPY] = call_safecopy, [SYS_VCOPY] = call_vcopy,
    [SYS_DEVIO] = call_devio, [SYS_SDEVIO] = call_sdevio, [SYS_VDEVIO] = call_vdevio,
    [SYS_IRQCTL] = call_irqctl, [SYS_ALARM] = call_alarm, [SYS_TIMES] = call_times,
    [SYS_SETCLOCK] = call_setclock, [SYS_GETCLOCK] = call_getclock, [SYS_GETEVENT] = call_getevent,
    [SYS_SIGSEND] = call_sigsend, [SYS_SIGRETURN] = call_sigreturn, [SYS_GETINFO] = call_getinfo,
    [SYS_ABORT] = call_abort, [SYS_LOG] = call_log,
};

static int execute(struct process *caller, struct message *message)
{
    uint32_t type = (uint32_t)message->type;

    if (type >= KERNEL_CALLS || calls[type] == NULL)
        return -ENOSYS;
    if (!(caller->rights.calls >> type & 1))
        return denied(caller, ECALLDENIED, type);
    return calls[type](caller, message);
}

void system_main(void)
{
    for (;;) {
        struct message message;
        if (system_trap(IPC_RECEIVE, ANY, &message) != 0)
            continue;
        endpoint_t source = message.source;
        struct process *caller = process_at(source);
        if (message.type == NOTIFICATION || caller == NULL)
            continue;
        message.type = execute(caller, &message);
        /* A caller that is gone, or waits for no answer, gets none. */
        system_trap(IPC_SEND, source, &message);
    }
}
