/* The process manager: processes as POSIX has them, made of the kernel's. Programs ask it, and it asks FS and
   the kernel only, so that it never waits for one of those who wait for it. */

#include <string.h>
#include <tern/fs.h>
#include "pm.h"

struct process *caller;

static int do_getpid(struct message *m)
{
    m->w[0] = caller->pid;
    m->w[1] = caller->parent ? caller->parent->pid : 0;
    return 0;
}

/* A pid of a request, 0 for the caller's own. */
static struct process *named(int32_t pid)
{
    struct process *process = pid ? process_by_pid(pid) : caller;
    return process && process->kind == LIVE ? process : NULL;
}

static int do_setpgid(struct message *m)
{
    struct process *process = named(m->w[0]);
    int32_t group = m->w[1] ? m->w[1] : m->w[0] ? m->w[0] : (uint32_t)caller->pid;
    if (!process || (process != caller && process->parent != caller))
        return -ESRCH;
    if (group <= 0 || group >= PIDS)
        return -EINVAL;
    process->group = group;
    return 0;
}

static int do_getpgid(struct message *m)
{
    const struct process *process = named(m->w[0]);
    if (!process)
        return -ESRCH;
    m->w[0] = process->group;
    return 0;
}

static int do_reboot(struct message *m)
{
    struct message fs = {.w = {0}};
    if (m->w[0] < ABORT_OFF || m->w[0] > ABORT_DEBUG_EXIT)
        return -EINVAL;
    ask_fs(FS_SYNC, 0, 0, &fs);
    return sys_abort(m->w[0], m->w[1]);
}

static int do_getinfo(struct message *m)
{
    static struct pm_info info[PROCESSES];
    uint32_t count = 0;
    for (uint32_t i = 0; i < PROCESSES; i++) {
        const struct process *process = &processes[i];
        if (process->kind == FREE)
            continue;
        info[count].pid = process->pid;
        info[count].parent = process->parent ? process->parent->pid : 0;
        info[count].group = process->group;
        info[count].status = process->status;
        info[count].endpoint = process->endpoint;
        memcpy(info[count].name, process->name, sizeof info[count].name);
        count++;
    }
    if (count > m->w[1] / sizeof *info)
        count = m->w[1] / sizeof *info;
    if (count && sys_copy(SELF, (uint32_t)info, m->source, m->w[0], count * sizeof *info))
        return -EFAULT;
    m->w[0] = count * sizeof *info;
    return 0;
}

static int do_service_up(struct message *m)
{
    struct message fs = {.w = {0}};
    int32_t pid = m->w[1];
    if (pid != INIT_PID && pid < PIDS)
        return -EINVAL;
    struct process *process = process_by_pid(pid);
    if (!process)
        process = process_new(m->w[0]);
    if (!process)
        return -EAGAIN;
    process->kind = pid == INIT_PID ? LIVE : SERVED;
    process->pid = process->group = pid;
    memcpy(process->name, &m->w[2], NAME_BYTES);
    process->name[NAME_BYTES - 1] = 0;
    if (pid != INIT_PID)
        return 0;
    int result = ask_fs(PM_FS_FORK, NONE, process->endpoint, &fs);
    if (result >= 0)
        result = start_init(process);
    if (result < 0)
        log_line(INIT_PATH " cannot be started: error %d", -result);
    return result < 0 ? result : 0;
}

static int do_service_down(struct message *m)
{
    struct process *process = process_by_endpoint(m->w[0]);
    if (process && process->kind == SERVED) {
        process_moved(process, NONE);
        process->kind = FREE;
    }
    return 0;
}

static const struct server_request of_processes[] = {
    {PM_FORK, do_fork}, {PM_EXEC, do_exec}, {PM_EXIT, do_exit}, {PM_WAIT, do_wait}, {PM_GETPID, do_getpid},
    {PM_KILL, do_kill}, {PM_SIGACTION, do_sigaction}, {PM_SIGMASK, do_sigmask},
    {PM_SIGSUSPEND, do_sigsuspend}, {PM_SIGRETURN, do_sigreturn}, {PM_ALARM, do_alarm}, {PM_BRK, do_brk},
    {PM_MAP, do_map}, {PM_UNMAP, do_unmap}, {PM_SETPGID, do_setpgid}, {PM_GETPGID, do_getpgid},
    {PM_REBOOT, do_reboot}, {PM_SLEEP, do_sleep}, {PM_CHILDREN_TIME, do_children_time}, {0, NULL}};

/* Services may ask for these too, and those who start services only. */
static const struct server_request of_all[] = {
    {PM_GETINFO, do_getinfo}, {PM_TIME, do_time}, {PM_SET_TIME, do_set_time},
    {PM_SIGNAL_GROUP, do_signal_group}, {0, NULL}};
static const struct server_request of_rs[] = {
    {PM_SERVICE_UP, do_service_up}, {PM_SERVICE_DOWN, do_service_down}, {0, NULL}};

static int look_up(const struct server_request *table, struct message *m)
{
    while (table->type && table->type != m->type)
        table++;
    return table->type ? table->handle(m) : -ENOSYS;
}

static int dispatch(struct message *m)
{
    if (m->type <= 0)
        return NO_REPLY;
    if (m->source == server_rs())
        return look_up(of_rs, m);
    caller = process_by_endpoint(m->source);
    if (!caller)
        return -ESRCH;
    int result = caller->kind == LIVE ? look_up(of_processes, m) : -ENOSYS;
    return result == -ENOSYS ? look_up(of_all, m) : result;
}

static int handle(struct message *m)
{
    int result = dispatch(m);
    timers_changed();
    return result;
}

static void rang(uint64_t microseconds)
{
    timers_rang(microseconds);
    timers_changed();
}

static void events(void)
{
    take_events();
    timers_changed();
}

int main(void)
{
    static const struct server server = {.other = handle, .alarm = rang, .event = events};
    server_run(&server);
    return 0;
}
