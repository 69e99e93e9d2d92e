/* Fork, exit and wait. */

#include <string.h>
#include <tern/fs.h>
#include "pm.h"

/* Children of a process that ends are init's. */
static void give_children_away(const struct process *parent)
{
    struct process *init = process_by_pid(INIT_PID);
    for (uint32_t i = 0; i < PROCESSES; i++) {
        struct process *child = &processes[i];
        if (child->parent != parent || (child->kind != LIVE && child->kind != ZOMBIE))
            continue;
        child->parent = init;
        if (child->kind == ZOMBIE)
            tell_parent(child);
    }
}

int do_fork(struct message *m)
{
    endpoint_t endpoint;
    struct message fs = {.w = {0}};
    int result = sys_fork(caller->endpoint, &endpoint);
    if (result && images_drop())
        result = sys_fork(caller->endpoint, &endpoint);
    if (result)
        return result;
    struct process *child = process_new(endpoint);
    if (!child) {
        sys_destroy(endpoint, NULL);
        return -EAGAIN;
    }
    result = ask_fs(PM_FS_FORK, caller->endpoint, endpoint, &fs);
    if (result < 0) {
        process_moved(child, NONE);
        sys_destroy(endpoint, NULL);
        return result;
    }
    *child = *caller;
    child->endpoint = endpoint;
    child->pid = new_pid();
    child->parent = caller;
    child->pending = 0;
    child->alarm_at = child->alarm_period = child->sleep_until = 0;
    child->status = 0;
    child->children_run = 0;
    sys_resume(endpoint, PM_FORKED);
    m->w[0] = child->pid;
    return 0;
}

/* Gives the parent what it waits for: the pid and status of a child that has ended, or was stopped. */
static void report(struct process *child, struct process *parent)
{
    if (child->kind == ZOMBIE)
        parent->children_run += child->run + child->children_run;
    wake(parent, 0, child->pid, child->status);
    child->stop_news = 0;
    if (child->kind == ZOMBIE)
        child->kind = FREE;
}

static int is_wanted(const struct process *child, const struct process *parent, int32_t pid)
{
    if (child->kind == FREE || child->kind == SERVED || child->parent != parent)
        return 0;
    if (pid == -1 || pid == child->pid)
        return 1;
    return (pid == 0 && child->group == parent->group) || (pid < -1 && child->group == -pid);
}

static int has_news(const struct process *child, uint32_t options)
{
    return child->kind == ZOMBIE || (child->stop_news && options & WAIT_STOPPED);
}

void tell_parent(struct process *child)
{
    struct process *parent = child->parent;
    if (!parent) {
        if (child->kind == ZOMBIE)
            child->kind = FREE;
        return;
    }
    if (parent->waits == CHILD && is_wanted(child, parent, parent->wait_pid) &&
        has_news(child, parent->wait_options))
        report(child, parent);
    else if (child->kind == ZOMBIE && parent->handler[SIGCHLD] == HANDLER_IGNORE)
        child->kind = FREE; /* POSIX: whoever ignores SIGCHLD does not want to hear of its children */
    signal_process(parent, SIGCHLD);
}

void end_process(struct process *process, int32_t status)
{
    struct message fs = {.w = {0}};
    sys_stop(process->endpoint);
    if (process->pid == INIT_PID) {
        log_line("init has ended with status %x", (unsigned)status);
        ask_fs(FS_SYNC, 0, 0, &fs);
        sys_abort(ABORT_RESET, 0);
    }
    /* FS first: it may be copying from or to the process, or keep a request of its. */
    ask_fs(PM_FS_EXIT, process->endpoint, 0, &fs);
    sys_destroy(process->endpoint, &process->run);
    process_moved(process, NONE);
    process->kind = ZOMBIE;
    process->status = status;
    process->waits = NOTHING;
    process->pending = 0;
    process->stopped = process->stop_news = 0;
    process->alarm_at = process->sleep_until = 0;
    give_children_away(process);
    tell_parent(process);
}

int do_exit(struct message *m)
{
    end_process(caller, (int32_t)(m->w[0] & 0xff) << 8);
    return NO_REPLY;
}

int do_wait(struct message *m)
{
    int32_t pid = m->w[0];
    uint32_t options = m->w[1];
    int children = 0;
    for (uint32_t i = 0; i < PROCESSES; i++) {
        struct process *child = &processes[i];
        if (!is_wanted(child, caller, pid))
            continue;
        children = 1;
        if (has_news(child, options)) {
            report(child, caller);
            return NO_REPLY;
        }
    }
    if (!children)
        return -ECHILD;
    m->w[0] = 0;
    if (options & WAIT_NOHANG)
        return 0;
    caller->waits = CHILD;
    caller->wait_pid = pid;
    caller->wait_options = options;
    return NO_REPLY;
}
