/* Checks of a process's rights, and what follows when it has none. */

#include "kernel.h"

/* `unmasked` on the command line leaves these checks out, so that their cost can be measured. */
int checks_destinations = 1;

#define DENIALS_LOGGED 32          /* a second, of all processes together */

int check_destination(struct process *caller, const struct process *to)
{
    if (!checks_destinations)
        return 0;
    /* Everybody may ask SYSTEM, which checks each call, and answer whoever waits for a reply. */
    if (to == &processes[SYSTEM] || caller == &processes[SYSTEM])
        return 0;
    if (to->wants_reply && to->from == caller->endpoint)
        return 0;
    if (caller->rights.send_to >> to->rights.service & 1)
        return 0;
    return denied(caller, EDESTDENIED, to->endpoint);
}

int check_port(struct process *caller, uint32_t way, uint32_t port, uint32_t size)
{
    const struct rights *rights = &caller->rights;

    if (rights->ways & way && port <= 0xffff) {
        for (uint32_t i = 0; i < rights->port_ranges; i++)
            if (port >= rights->ports[i].first && port + size - 1 <= rights->ports[i].last)
                return 0;
    }
    return denied(caller, EPORTDENIED, port);
}

static const char *name_of(int error)
{
    switch (error) {
    case ETRAPDENIED: return "trap";
    case EDESTDENIED: return "send to";
    case ECALLDENIED: return "kernel call";
    case EPORTDENIED: return "port";
    case EIRQDENIED: return "interrupt line";
    case EGRANT: return "grant";
    case EPERM: return "memory at";
    }
    return "request";
}

static void log_denial(const struct process *process, int error, uint32_t what)
{
    static uint64_t second;
    static uint32_t logged;

    if (now() >= second) {
        second = now() + 1000000;
        logged = 0;
    }
    if (logged++ < DENIALS_LOGGED)
        log_text("%s (%x): no right to %s %x\n", process->name, process->endpoint, name_of(error), what);
}

int denied(struct process *process, int error, uint32_t what)
{
    log_denial(process, error, what);
    raise_event(process, EVENT_DENIED, (uint32_t)error, what);
    return -error;
}

/* No event: the granter may have taken it back since it asked for the copy. */
int denied_grant(const struct process *process, uint32_t grant)
{
    log_denial(process, EGRANT, grant);
    return -EGRANT;
}

void raise_event(struct process *process, uint32_t what, uint32_t vector, uint32_t address)
{
    struct process *manager = service(process->rights.manager);

    /* A denial never hides an exception that the manager has not seen. */
    if (process->event.what == EVENT_EXCEPTION)
        return;
    process->event.what = what;
    process->event.vector = vector;
    process->event.address = address;
    process->event.eip = process->context->eip;
    process->event.error = process->context->error;
    if (manager != NULL && manager != process)
        notify(SYSTEM, manager);
}
