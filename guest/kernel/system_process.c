/* Kernel calls for processes and signals (tern/calls.h). */

#include "kernel.h"

/* Bits of EFLAGS that a process may set itself: CF, PF, AF, ZF, SF, TF, DF, OF, AC, ID (SDM vol. 1,
   3.4.3). */
#define USER_FLAGS 0x240dd5u

/* What SIGRETURN needs, behind the frame of SIGSEND. */
struct saved {
    struct frame registers;
    int32_t has_numbers;
    uint8_t numbers[512];
};

int call_create(struct process *caller, struct message *m)
{
    char name[NAME_BYTES] = {0};
    struct process *process;

    if (copy_in(caller, name, m->w[0], NAME_BYTES - 1) != 0)
        return -EFAULT;
    process = process_create(name);
    if (process == NULL)
        return -EAGAIN;
    m->w[0] = process->endpoint;
    return 0;
}

int call_fork(struct process *caller, struct message *m)
{
    struct process *parent = process_of(caller, m->w[0]), *child;
    int error;

    if (parent == NULL)
        return -EDEADEND;
    child = process_create(parent->name);
    if (child == NULL)
        return -EAGAIN;
    error = space_fork(parent, child);
    if (error != 0) {
        process_destroy(child);
        return error;
    }
    numbers_save(parent);
    memcpy(child->numbers, parent->numbers, sizeof child->numbers);
    child->has_numbers = parent->has_numbers;
    child->frame = parent->frame;
    child->rights = parent->rights;
    /* A service's child is no service: nobody reaches it by the number. */
    child->rights.service = USERS;
    child->priority = parent->rights.priority;
    m->w[0] = child->endpoint;
    return 0;
}

int call_start(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);

    return process == NULL ? -EDEADEND : process_start(process, m->w[1], m->w[2]);
}

int call_resume(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);

    if (process == NULL)
        return -EDEADEND;
    if (!(process->state & STATE_STOPPED))
        return -EINVAL;
    process->state &= ~STATE_STOPPED;
    if (m->w[1] != 0)
        process->context->eax = m->w[1];
    make_ready(process);
    return 0;
}

int call_stop(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);

    if (process == NULL)
        return -EDEADEND;
    process->state |= STATE_STOPPED;
    make_unready(process);
    return 0;
}

int call_destroy(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);
    uint64_t run;

    if (process == NULL)
        return -EDEADEND;
    run = process->run * 1000 / tsc_khz;
    m->w[0] = (uint32_t)run;
    m->w[1] = (uint32_t)(run >> 32);
    process_destroy(process);
    return 0;
}

int call_privctl(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);
    struct rights rights;

    if (process == NULL)
        return -EDEADEND;
    if (copy_in(caller, &rights, m->w[1], sizeof rights) != 0)
        return -EFAULT;
    return process_set_rights(process, &rights);
}

int call_priority(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);

    if (process == NULL)
        return -EDEADEND;
    if (m->w[1] > LAST_PRIORITY)
        return -EINVAL;
    process->rights.priority = m->w[1];
    set_priority(process, m->w[1]);
    return 0;
}

int call_getevent(struct process *caller, struct message *m)
{
    for (struct process *process = processes + FIRST_SLOT; process < processes + SLOTS; process++) {
        struct event *event = &process->event;
        if (process->endpoint == NONE || event->what == 0 || service(process->rights.manager) != caller)
            continue;
        m->w[0] = process->endpoint;
        m->w[1] = event->what;
        m->w[2] = event->vector;
        m->w[3] = event->address;
        m->w[4] = event->eip;
        m->w[5] = event->error;
        event->what = 0;
        return 0;
    }
    m->w[0] = NONE;
    return 0;
}

int call_sigsend(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);
    struct { uint32_t restorer, signal; struct signal_frame frame; } head;
    static struct saved saved;
    uint32_t at;

    if (process == NULL)
        return -EDEADEND;
    if (copy_in(caller, &head.frame, m->w[1], sizeof head.frame) != 0)
        return -EFAULT;
    if (head.frame.handler >= KERNEL_BASE)
        return -EINVAL;
    end_wait(process, -EINTR);
    numbers_save(process);
    saved.registers = process->frame;
    saved.has_numbers = process->has_numbers;
    memcpy(saved.numbers, process->numbers, sizeof saved.numbers);
    head.restorer = head.frame.restorer;
    head.signal = head.frame.signal;
    at = ((process->frame.esp - sizeof saved) & -16u) - sizeof head;
    if (copy_out(process, at + sizeof head, &saved, sizeof saved) != 0
        || copy_out(process, at, &head, sizeof head) != 0)
        return -EFAULT;
    process->frame.esp = at;
    process->frame.eip = head.frame.handler;
    /* The ABI wants DF clear at a function's start. TF would step through the handler. */
    process->frame.eflags = INTERRUPTS_ON;
    return 0;
}

int call_sigreturn(struct process *caller, struct message *m)
{
    struct process *process = process_of(caller, m->w[0]);
    static struct saved saved;
    struct frame *registers = &saved.registers;

    if (process == NULL)
        return -EDEADEND;
    if (copy_in(process, &saved, m->w[1] + sizeof(struct signal_frame), sizeof saved) != 0)
        return -EFAULT;
    if (registers->eip >= KERNEL_BASE)
        return -EINVAL;
    end_wait(process, 0);
    registers->es = registers->ds = registers->ss = USER_DATA;
    registers->cs = USER_CODE;
    registers->eflags = (registers->eflags & USER_FLAGS) | INTERRUPTS_ON;
    process->frame = *registers;
    numbers_forget(process);
    process->has_numbers = saved.has_numbers != 0;
    memcpy(process->numbers, saved.numbers, sizeof saved.numbers);
    return 0;
}
