/* Which process runs: the first of the best queue that has one. A process that uses up its quantum sinks to
   the next worse queue, so that an endless loop soon delays nobody, and rises again by one each time it waits
   before its quantum is used up. */

#include "kernel.h"

#define QUANTUM 10000u             /* microseconds */

static struct process *first[LAST_PRIORITY + 1], **end[LAST_PRIORITY + 1];
static uint64_t started;           /* when `current` was given the processor, in counts */

static uint64_t counts(uint32_t microseconds)
{
    return (uint64_t)microseconds * tsc_khz / 1000;
}

static void enqueue(struct process *process)
{
    uint32_t queue = process->priority;

    if (first[queue] == NULL)
        end[queue] = &first[queue];
    process->next_ready = NULL;
    *end[queue] = process;
    end[queue] = &process->next_ready;
    process->is_queued = 1;
}

void make_ready(struct process *process)
{
    if (process->state != 0 || process->is_queued)
        return;
    if (process->left == 0)
        process->left = counts(QUANTUM);
    enqueue(process);
}

void make_unready(struct process *process)
{
    struct process **link = &first[process->priority];

    if (!process->is_queued)
        return;
    while (*link != process)
        link = &(*link)->next_ready;
    *link = process->next_ready;
    if (process->next_ready == NULL)
        end[process->priority] = link;
    process->is_queued = 0;
}

void set_priority(struct process *process, uint32_t priority)
{
    int was_queued = process->is_queued;

    make_unready(process);
    process->priority = priority;
    if (was_queued)
        enqueue(process);
}

/* Charges `current` for the time since it was given the processor. */
static void account(void)
{
    uint64_t here = tsc(), used = here - started;

    started = here;
    current->run += used;
    if (current == &processes[IDLE])
        return;
    if (used < current->left) {
        current->left -= used;
        if (current->state != 0 && current->priority > current->rights.priority) {
            current->left = counts(QUANTUM);
            set_priority(current, current->priority - 1);
        }
        return;
    }
    current->left = counts(QUANTUM);
    if (current->priority < LAST_PRIORITY && current != &processes[SYSTEM])
        set_priority(current, current->priority + 1);
    else if (current->is_queued)
        set_priority(current, current->priority);
}

struct frame *run_next(void)
{
    struct process *next = &processes[IDLE];

    /* Only whoever waits, or has used up its quantum, is charged at this trap; others go on with their
       quantum. */
    if (current->state != 0 || tsc() - started >= current->left)
        account();
    for (int queue = 0; queue <= LAST_PRIORITY; queue++) {
        if (first[queue] != NULL) {
            next = first[queue];
            break;
        }
    }
    if (next != current) {
        account();
        current = next;
        use_stack_of(next);
        numbers_switch();
        if (next->directory != 0 && next->directory != loaded_directory())
            load_directory(next->directory);
    }
    clock_plan();
    return frame_to_leave_by(next);
}

uint64_t quantum_end(void)
{
    if (current == &processes[IDLE] || current->next_ready != NULL)
        return current->next_ready != NULL ? started + current->left : 0;
    for (int queue = current->priority + 1; queue <= LAST_PRIORITY; queue++)
        if (first[queue] != NULL)
            return started + current->left;
    return 0;
}
