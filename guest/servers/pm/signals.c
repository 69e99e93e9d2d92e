/* Signals. */

#include <string.h>
#include "pm.h"

#define NEVER_BLOCKED (BIT(SIGKILL) | BIT(SIGSTOP))
#define IGNORED_BY_DEFAULT (BIT(SIGCHLD) | BIT(SIGCONT))
/* What lies before the frame on the stack when the restorer is called: the handler's argument. */
#define SIGNAL_FRAME_OFFSET 4
#define STOPS_BY_DEFAULT (BIT(SIGSTOP) | BIT(SIGTSTP))

static int is_ignored(const struct process *process, int signal)
{
    if (BIT(signal) & NEVER_BLOCKED)
        return 0;
    return process->handler[signal] == HANDLER_IGNORE ||
           (process->handler[signal] == HANDLER_DEFAULT && BIT(signal) & IGNORED_BY_DEFAULT);
}

/* Gets the process out of the request in which it waits, which ends with EINTR. It is stopped meanwhile, so
   that it does not send the next request before its handler runs. */
static void interrupt(struct process *process)
{
    struct message fs = {.w = {0}};
    if (process->waits != NOTHING)
        wake(process, -EINTR, 0, 0);
    else
        ask_fs(PM_FS_INTERRUPT, process->endpoint, 0, &fs);
}

static void call_handler(struct process *process, int signal)
{
    uint32_t suspended = process->waits == SIGNAL;
    struct signal_frame frame = {process->handler[signal], process->restorer, signal,
                                 suspended ? process->after_suspend : process->blocked};
    sys_stop(process->endpoint);
    interrupt(process);
    if (sys_sigsend(process->endpoint, &frame)) {
        /* Its stack cannot take the frame. */
        end_process(process, SIGSEGV);
        return;
    }
    process->blocked |= (process->mask[signal] | BIT(signal)) & ~NEVER_BLOCKED;
    if (!process->stopped)
        sys_resume(process->endpoint, 0);
}

static void stop(struct process *process, int signal)
{
    process->stopped = process->stop_news = 1;
    process->status = signal << 8 | 0x7f;
    sys_stop(process->endpoint);
    tell_parent(process);
}

static void carry_on(struct process *process)
{
    process->pending &= ~STOPS_BY_DEFAULT;
    if (!process->stopped)
        return;
    process->stopped = process->stop_news = 0;
    sys_resume(process->endpoint, 0);
}

/* Does what pending signals that are not blocked want. */
static void deliver(struct process *process)
{
    for (int signal = 1; signal < SIGNALS && process->kind == LIVE; signal++) {
        if (!(process->pending & ~process->blocked & BIT(signal)) || (process->stopped && signal != SIGKILL))
            continue;
        process->pending &= ~BIT(signal);
        if (is_ignored(process, signal))
            continue;
        if (process->handler[signal] > HANDLER_IGNORE)
            call_handler(process, signal);
        else if (process->pid == INIT_PID)
            continue; /* nothing goes on without it */
        else if (BIT(signal) & STOPS_BY_DEFAULT)
            stop(process, signal);
        else
            end_process(process, signal);
    }
}

void signal_process(struct process *process, int signal)
{
    if (process->kind != LIVE)
        return;
    if (signal == SIGCONT || signal == SIGKILL)
        carry_on(process);
    if (!is_ignored(process, signal))
        process->pending |= BIT(signal);
    deliver(process);
}

void signals_after_exec(struct process *process)
{
    for (int signal = 1; signal < SIGNALS; signal++)
        if (process->handler[signal] != HANDLER_IGNORE)
            process->handler[signal] = HANDLER_DEFAULT;
}

/* Whom kill's pid names. */
static int is_target(const struct process *process, int32_t pid, int32_t group)
{
    if (process->kind != LIVE && process->kind != ZOMBIE)
        return 0;
    if (pid > 0)
        return process->pid == pid;
    if (pid == -1)
        return process->pid != INIT_PID && process != caller;
    return process->group == (pid == 0 ? group : -pid);
}

/* Sends a signal to all of them, and before that answers the caller, whom it may end or interrupt. */
static int signal_all(int32_t pid, int32_t group, int signal, struct message *m)
{
    uint8_t wanted[PROCESSES];
    int found = 0;
    /* First find, then send: processes that end must not change who is meant. */
    for (uint32_t i = 0; i < PROCESSES; i++)
        found |= wanted[i] = is_target(&processes[i], pid, group);
    server_reply(m->source, found ? 0 : -ESRCH, m);
    for (uint32_t i = 0; i < PROCESSES && signal; i++)
        if (wanted[i])
            signal_process(&processes[i], signal);
    return NO_REPLY;
}

int do_kill(struct message *m)
{
    int32_t pid = m->w[0];
    const struct process *service = pid > 0 ? process_by_pid(pid) : NULL;
    if (m->w[1] >= SIGNALS)
        return -EINVAL;
    if (service && service->kind == SERVED)
        return -EPERM; /* RS ends services */
    return signal_all(pid, caller->group, m->w[1], m);
}

int do_signal_group(struct message *m)
{
    if (caller->kind != SERVED || m->w[0] == 0 || m->w[0] >= PIDS || m->w[1] == 0 || m->w[1] >= SIGNALS)
        return -EINVAL;
    return signal_all(-(int32_t)m->w[0], 0, m->w[1], m);
}

int do_sigaction(struct message *m)
{
    uint32_t signal = m->w[0], handler = m->w[1], mask = m->w[2], restorer = m->w[3];
    if (signal == 0 || signal >= SIGNALS)
        return -EINVAL;
    m->w[0] = caller->handler[signal];
    m->w[1] = caller->mask[signal];
    if (handler == PM_HANDLER_KEEP)
        return 0;
    if (BIT(signal) & NEVER_BLOCKED)
        return -EINVAL;
    caller->handler[signal] = handler;
    caller->mask[signal] = mask;
    if (handler > HANDLER_IGNORE)
        caller->restorer = restorer;
    if (is_ignored(caller, signal))
        caller->pending &= ~BIT(signal);
    return 0;
}

/* The reply goes first: a handler that runs now must find the process out of its request. */
static int reply_and_deliver(struct message *m)
{
    server_reply(caller->endpoint, 0, m);
    deliver(caller);
    return NO_REPLY;
}

int do_sigmask(struct message *m)
{
    uint32_t how = m->w[0], mask = m->w[1];
    m->w[0] = caller->blocked;
    if (how == 0)
        caller->blocked |= mask;
    else if (how == 1)
        caller->blocked &= ~mask;
    else if (how == 2)
        caller->blocked = mask;
    else
        return -EINVAL;
    caller->blocked &= ~NEVER_BLOCKED;
    return reply_and_deliver(m);
}

int do_sigsuspend(struct message *m)
{
    caller->after_suspend = caller->blocked;
    caller->blocked = m->w[0] & ~NEVER_BLOCKED;
    caller->waits = SIGNAL;
    deliver(caller);
    return NO_REPLY;
}

int do_sigreturn(struct message *m)
{
    struct signal_frame frame;
    uint32_t address = m->w[0] + SIGNAL_FRAME_OFFSET;
    if (sys_copy(caller->endpoint, address, SELF, (uint32_t)&frame, sizeof frame) ||
        sys_sigreturn(caller->endpoint, address)) {
        end_process(caller, SIGSEGV);
        return NO_REPLY;
    }
    caller->blocked = frame.mask & ~NEVER_BLOCKED;
    deliver(caller);
    return NO_REPLY;
}

/* Intel SDM volume 3, chapter 6: the exceptions, and POSIX's signals for them. */
static int signal_of(uint32_t vector)
{
    switch (vector) {
    case 0:  /* divide error */
    case 16: /* x87 floating-point error */
    case 19: /* SIMD floating-point exception */
        return SIGFPE;
    case 1: /* debug */
    case 3: /* breakpoint */
        return SIGTRAP;
    case 6: /* invalid opcode */
        return SIGILL;
    case 17: /* alignment check */
        return SIGBUS;
    default:
        return SIGSEGV;
    }
}

static void take_exception(struct process *process, const struct event *event)
{
    int signal = signal_of(event->vector);
    /* A process that blocks or ignores it would raise it again and again. */
    if (process->blocked & BIT(signal) || process->handler[signal] <= HANDLER_IGNORE) {
        log_line("%s (%d): exception %u at %x, address %x", process->name, (int)process->pid,
                 (unsigned)event->vector, (unsigned)event->eip, (unsigned)event->address);
        end_process(process, signal);
        return;
    }
    call_handler(process, signal);
}

void take_events(void)
{
    struct event event;
    for (int i = 0; i < SLOTS && sys_getevent(&event) == 0 && event.process != NONE; i++) {
        struct process *process = process_by_endpoint(event.process);
        if (process && process->kind == LIVE && event.what == EVENT_EXCEPTION)
            take_exception(process, &event);
    }
}
