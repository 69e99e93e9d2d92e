/* Kernel calls for devices, time and the system (tern/calls.h). */

#include "kernel.h"

static int is_size(uint32_t size)
{
    return size == 1 || size == 2 || size == 4;
}

int call_devio(struct process *caller, struct message *m)
{
    uint32_t direction = m->w[0], size = m->w[1], port = m->w[2];
    int error;

    if (direction > IO_OUT || !is_size(size))
        return -EINVAL;
    if ((error = check_port(caller, BY_MESSAGE, port, size)) != 0)
        return error;
    if (direction == IO_IN)
        m->w[0] = port_in(size, port);
    else
        port_out(size, port, m->w[3]);
    return 0;
}

int call_sdevio(struct process *caller, struct message *m)
{
    uint32_t size = m->w[1], port = m->w[2];
    int error;

    if (m->w[0] > IO_OUT || !is_size(size))
        return -EINVAL;
    if ((error = check_port(caller, BY_MESSAGE, port, size)) != 0)
        return error;
    return port_string(caller, m->w[0], size, port, m->w[3], m->w[4]);
}

int call_vdevio(struct process *caller, struct message *m)
{
    return port_vector(caller, BY_MESSAGE, m->w[0], m->w[1]);
}

int line_control(struct process *caller, uint32_t what, uint32_t line)
{
    if (line > 15 || !(caller->rights.interrupts >> line & 1))
        return denied(caller, EIRQDENIED, line);
    switch (what) {
    case IRQ_SET:
        return line_set(caller, line);
    case IRQ_ENABLE:
        return line_enable(caller, line, 1);
    case IRQ_DISABLE:
        return line_enable(caller, line, 0);
    case IRQ_REMOVE:
        lines_remove(caller, 1u << line);
        return 0;
    }
    return -EINVAL;
}

int call_irqctl(struct process *caller, struct message *m)
{
    return line_control(caller, m->w[0], m->w[1]);
}

int call_alarm(struct process *caller, struct message *m)
{
    caller->alarm = m->w[0] == 0 ? 0 : now() + m->w[0];
    caller->alarm_period = m->w[1];
    clock_expect(caller->alarm);
    return 0;
}

int call_times(struct process *caller, struct message *m)
{
    uint64_t time = now(), count = tsc(), run = caller->run * 1000 / tsc_khz;

    m->w[0] = (uint32_t)time;
    m->w[1] = (uint32_t)(time >> 32);
    m->w[2] = (uint32_t)count;
    m->w[3] = (uint32_t)(count >> 32);
    m->w[4] = tsc_khz;
    m->w[5] = (uint32_t)run;
    m->w[6] = (uint32_t)(run >> 32);
    m->w[7] = clock_ticks;
    return 0;
}

int call_setclock(struct process *caller, struct message *m)
{
    (void)caller;
    return clock_set(m->w[0], m->w[1]);
}

int call_getclock(struct process *caller, struct message *m)
{
    (void)caller;
    m->w[0] = clock_source;
    m->w[1] = clock_hz;
    return 0;
}

static void describe(const struct process *process, struct process_info *info)
{
    uint64_t run = process->run * 1000 / tsc_khz;

    memset(info, 0, sizeof *info);
    info->endpoint = process->endpoint;
    if (process->endpoint == NONE)
        return;
    memcpy(info->name, process->name, NAME_BYTES);
    info->state = process->state;
    info->waits_for = process->state & STATE_SENDING ? process->to->endpoint
        : process->state & STATE_RECEIVING ? process->from : NONE;
    info->service = process->rights.service;
    info->priority = process->priority;
    info->pages = process->pages;
    info->microseconds_low = (uint32_t)run;
    info->microseconds_high = (uint32_t)(run >> 32);
    info->sent = process->sent;
    info->received = process->received;
}

/* Copies at most `room` bytes of an object to the caller, and counts them. */
static int give(struct process *caller, struct message *m, uint32_t offset, const void *object,
                uint32_t bytes)
{
    uint32_t room = m->w[2] > offset ? m->w[2] - offset : 0;

    return copy_out(caller, m->w[1] + offset, object, bytes < room ? bytes : room);
}

int call_getinfo(struct process *caller, struct message *m)
{
    struct memory_info memory = {pages_total, pages_free};
    static char newest[4096];
    uint32_t bytes = 0, object = 0;
    int error = 0;

    switch (m->w[0]) {
    case INFO_BOOT:
        bytes = sizeof boot;
        error = give(caller, m, 0, &boot, bytes);
        break;
    case INFO_LOG:
        bytes = log_copy(newest, m->w[2] < sizeof newest ? m->w[2] : sizeof newest);
        error = give(caller, m, 0, newest, bytes);
        break;
    case INFO_MEMORY:
        bytes = sizeof memory;
        error = give(caller, m, 0, &memory, bytes);
        break;
    case INFO_PROCESSES:
    case INFO_RIGHTS:
        object = m->w[0] == INFO_RIGHTS ? sizeof(struct rights) : sizeof(struct process_info);
        for (uint32_t slot = 0; slot < SLOTS && error == 0 && bytes < m->w[2]; slot++, bytes += object) {
            struct process_info info;
            if (m->w[0] == INFO_RIGHTS) {
                error = give(caller, m, bytes, &processes[slot].rights, object);
                continue;
            }
            describe(&processes[slot], &info);
            error = give(caller, m, bytes, &info, object);
        }
        break;
    default:
        return -EINVAL;
    }
    m->w[0] = bytes < m->w[2] ? bytes : m->w[2];
    return error;
}

int call_abort(struct process *caller, struct message *m)
{
    (void)caller;
    power_end(m->w[0], m->w[1]);
}

int call_log(struct process *caller, struct message *m)
{
    char line[257] = {0};

    if (m->w[1] > sizeof line - 1)
        return -EINVAL;
    if (copy_in(caller, line, m->w[0], m->w[1]) != 0)
        return -EFAULT;
    for (char *c = line; *c != 0; c++)
        if ((*c < ' ' && *c != '\t' && *c != '\n') || *c == 127)
            *c = '?';
    log_text("%s: %s%s", caller->name, line, m->w[1] > 0 && line[m->w[1] - 1] == '\n' ? "" : "\n");
    return 0;
}
