/* Alarms, sleep and the time of day: all timers of all processes on the one alarm that the kernel gives
   PM. */

#include "pm.h"

/* What must be added to the time since the start to get that since 1970. */
static uint64_t since_1970;

uint64_t now(void)
{
    struct times times;
    return sys_times(&times) == 0 ? times.microseconds : 0;
}

/* When the kernel's alarm rings; 0: it is not set. */
static uint64_t alarm_at;

/* A timer was set. Those that are gone do not count: an alarm that rings for nobody does no harm. */
static int changed;

static uint64_t first_timer(void)
{
    uint64_t first = ~0ull;
    for (uint32_t i = 0; i < PROCESSES; i++) {
        const struct process *process = &processes[i];
        if (process->kind != LIVE)
            continue;
        if (process->alarm_at && process->alarm_at < first)
            first = process->alarm_at;
        if (process->waits == SLEEP && process->sleep_until < first)
            first = process->sleep_until;
    }
    return first;
}

void timers_changed(void)
{
    uint64_t first, time;
    if (!changed)
        return;
    changed = 0;
    first = first_timer();
    if (first == alarm_at || first == ~0ull)
        return;
    time = now();
    uint64_t left = first > time ? first - time : 1;
    /* The kernel's alarms have 32 bits; it rings early and is set again. */
    if (left > 0x7fffffff)
        left = 0x7fffffff;
    sys_alarm((uint32_t)left, 0);
    alarm_at = first;
}

static void ring(struct process *process, uint64_t time)
{
    if (process->waits == SLEEP && process->sleep_until <= time)
        wake(process, 0, 0, 0);
    if (!process->alarm_at || process->alarm_at > time)
        return;
    process->alarm_at = process->alarm_period ? process->alarm_at + process->alarm_period : 0;
    if (process->alarm_at && process->alarm_at <= time)
        /* it was stopped for long: the missed ones are one */
        process->alarm_at = time + process->alarm_period;
    signal_process(process, SIGALRM);
}

void timers_rang(uint64_t microseconds)
{
    (void)microseconds;
    uint64_t time = now();
    alarm_at = 0;
    changed = 1;
    for (uint32_t i = 0; i < PROCESSES; i++)
        if (processes[i].kind == LIVE)
            ring(&processes[i], time);
}

int do_alarm(struct message *m)
{
    uint64_t time = now(), left = caller->alarm_at > time ? caller->alarm_at - time : 0;
    caller->alarm_at = m->w[0] ? time + m->w[0] : 0;
    caller->alarm_period = m->w[1];
    changed = 1;
    m->w[0] = left > 0xffffffff ? 0xffffffff : (uint32_t)left;
    return 0;
}

int do_sleep(struct message *m)
{
    uint64_t length = (uint64_t)m->w[1] << 32 | m->w[0];
    if (length >> 62)
        return -EINVAL;
    if (length == 0)
        return 0;
    caller->waits = SLEEP;
    changed = 1;
    caller->sleep_until = now() + length;
    return NO_REPLY;
}

int do_time(struct message *m)
{
    uint64_t time = since_1970 + now();
    m->w[0] = (uint32_t)time;
    m->w[1] = (uint32_t)(time >> 32);
    return 0;
}

int do_children_time(struct message *m)
{
    m->w[0] = (uint32_t)caller->children_run;
    m->w[1] = (uint32_t)(caller->children_run >> 32);
    return 0;
}

int do_set_time(struct message *m)
{
    struct message fs = {.w = {0}};
    if (caller->kind != SERVED)
        return -EPERM;
    since_1970 = ((uint64_t)m->w[1] << 32 | m->w[0]) - now();
    ask_fs(PM_FS_TIME, (uint32_t)since_1970, (uint32_t)(since_1970 >> 32), &fs);
    return 0;
}
