/* The table of processes. */

#include <string.h>
#include "pm.h"

struct process processes[PROCESSES];

/* The process in each slot of the kernel. */
static struct process *in_slot[SLOTS];

struct process *process_new(endpoint_t endpoint)
{
    for (uint32_t i = 0; i < PROCESSES; i++) {
        if (processes[i].kind != FREE)
            continue;
        memset(&processes[i], 0, sizeof processes[i]);
        processes[i].endpoint = endpoint;
        if (SLOT_OF(endpoint) < SLOTS)
            in_slot[SLOT_OF(endpoint)] = &processes[i];
        return &processes[i];
    }
    return NULL;
}

struct process *process_by_endpoint(endpoint_t endpoint)
{
    struct process *process = SLOT_OF(endpoint) < SLOTS ? in_slot[SLOT_OF(endpoint)] : NULL;
    return process && process->kind != FREE && process->endpoint == endpoint ? process : NULL;
}

struct process *process_by_pid(int32_t pid)
{
    for (uint32_t i = 0; i < PROCESSES; i++)
        if (processes[i].kind != FREE && processes[i].pid == pid)
            return &processes[i];
    return NULL;
}

/* A pid that neither a process nor a group has. */
int32_t new_pid(void)
{
    static int32_t last = INIT_PID;
    for (;;) {
        int used = 0;
        last = last + 1 < PIDS ? last + 1 : INIT_PID + 1;
        for (uint32_t i = 0; i < PROCESSES; i++)
            used |= processes[i].kind != FREE && (processes[i].pid == last || processes[i].group == last);
        if (!used)
            return last;
    }
}

void process_moved(struct process *process, endpoint_t endpoint)
{
    if (SLOT_OF(process->endpoint) < SLOTS && in_slot[SLOT_OF(process->endpoint)] == process)
        in_slot[SLOT_OF(process->endpoint)] = NULL;
    process->endpoint = endpoint;
}

void wake(struct process *process, int32_t type, uint32_t first, uint32_t second)
{
    struct message m = {.w = {first, second}};
    process->waits = NOTHING;
    process->sleep_until = 0;
    server_reply(process->endpoint, type, &m);
}

int ask_fs(int32_t type, uint32_t first, uint32_t second, struct message *m)
{
    m->w[0] = first;
    m->w[1] = second;
    return call(SERVICE(FS), type, m);
}
