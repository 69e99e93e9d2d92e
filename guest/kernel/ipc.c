/* Messages: SEND, RECEIVE, SENDREC and NOTIFY (tern/ipc.h). A message goes from the sender's entry to the
   receiver's memory as soon as one waits for the other. */

#include "kernel.h"

static void clear_bit(uint32_t *set, uint32_t bit)
{
    set[bit / 32] &= ~(1u << bit % 32);
}

/* Returns whether `process` waits for a message from `source`, or for any. */
static int accepts(const struct process *process, endpoint_t source)
{
    return (process->state & (STATE_RECEIVING | STATE_SENDING)) == STATE_RECEIVING
        && (process->from == ANY || process->from == source);
}

int can_deliver(const struct process *sender, const struct process *receiver)
{
    return accepts(receiver, sender->endpoint);
}

/* Ends the wait of a process with the result of its trap. */
static void wake(struct process *process, int result)
{
    process->state &= ~(STATE_RECEIVING | STATE_SENDING);
    process->deadline = 0;
    process->wants_reply = 0;
    process->context->eax = (uint32_t)result;
    make_ready(process);
}

/* Gives a message to a process that waits for it. Returns 0, or an error of the receiver's, which ends its
   wait. */
int deliver(struct process *receiver, endpoint_t source, const struct message *message)
{
    int error = copy_out(receiver, receiver->message, message, sizeof *message);

    if (error == 0)
        error = copy_out(receiver, receiver->message, &source, sizeof source);
    receiver->received++;
    wake(receiver, error);
    return error;
}

/* The message that a notification becomes, with what has happened since the last one. */
static void notification(struct process *receiver, uint32_t source, struct message *message)
{
    uint64_t time = now();

    memset(message, 0, sizeof *message);
    message->source = processes[source].endpoint;
    message->type = NOTIFICATION;
    if (source == HARDWARE) {
        message->w[0] = receiver->lines;
        receiver->lines = 0;
    } else if (source == CLOCK) {
        message->w[0] = (uint32_t)time;
        message->w[1] = (uint32_t)(time >> 32);
    }
}

static void deliver_notification(struct process *receiver, uint32_t source)
{
    struct message message;

    clear_bit(receiver->notified, source);
    notification(receiver, source, &message);
    deliver(receiver, message.source, &message);
}

/* A reply is a message, never a notification: so SENDREC leaves these for later. */
void notify(uint32_t source, struct process *to)
{
    to->notified[source / 32] |= 1u << source % 32;
    if (accepts(to, processes[source].endpoint) && !to->wants_reply)
        deliver_notification(to, source);
}

/* Returns whether `process`, or a process that it waits for in turn, sends to `target`. */
static int leads_to(const struct process *process, const struct process *target)
{
    for (int steps = 0; steps < SLOTS && process->state & STATE_SENDING; steps++) {
        process = process->to;
        if (process == target)
            return 1;
    }
    return 0;
}

static void leave_queue(struct process *sender)
{
    struct process **link = &sender->to->senders;

    while (*link != sender)
        link = &(*link)->next_sender;
    *link = sender->next_sender;
}

static int send(struct process *caller, struct process *to, const struct message *message)
{
    struct process **link;

    caller->sent++;
    if (can_deliver(caller, to)) {
        deliver(to, caller->endpoint, message);
        return 0;
    }
    /* SYSTEM waits for nobody: whoever does not wait for its answer gets none. */
    if (caller == &processes[SYSTEM])
        return -EAGAIN;
    if (leads_to(to, caller))
        return -EDEADLOCK;
    caller->outgoing = *message;
    caller->to = to;
    caller->state |= STATE_SENDING;
    caller->next_sender = NULL;
    make_unready(caller);
    for (link = &to->senders; *link != NULL;)
        link = &(*link)->next_sender;
    *link = caller;
    return 0;
}

/* Takes a message that is there already: notifications first, then those of tables, then those of senders
   that wait. */
static void take(struct process *caller)
{
    for (uint32_t word = 0; word < SLOTS / 32; word++)
        for (uint32_t bits = caller->notified[word]; bits != 0; bits &= bits - 1) {
            uint32_t source = word * 32 + lowest_bit(bits);
            if (!accepts(caller, processes[source].endpoint))
                continue;
            deliver_notification(caller, source);
            return;
        }
    if (take_offer(caller))
        return;
    for (struct process *sender = caller->senders; sender != NULL; sender = sender->next_sender) {
        struct message message;
        if (!accepts(caller, sender->endpoint))
            continue;
        leave_queue(sender);
        message = sender->outgoing;
        sender->state &= ~STATE_SENDING;
        /* In SENDREC it now waits for the reply. */
        if (!(sender->state & STATE_RECEIVING))
            wake(sender, 0);
        deliver(caller, sender->endpoint, &message);
        return;
    }
}

static int receive(struct process *caller, endpoint_t from, uint32_t address, uint32_t microseconds)
{
    struct process *source;

    if (from != ANY) {
        source = process_at(from);
        if (source == NULL)
            return -EDEADEND;
        from = source->endpoint;
    }
    caller->from = from;
    caller->message = address;
    caller->state |= STATE_RECEIVING;
    make_unready(caller);
    if (microseconds != 0) {
        caller->deadline = now() + microseconds;
        clock_expect(caller->deadline);
    }
    /* In SENDREC, only what comes later can be the reply. */
    if (!caller->wants_reply)
        take(caller);
    return 0;
}

void end_wait(struct process *process, int result)
{
    if (!(process->state & (STATE_SENDING | STATE_RECEIVING)))
        return;
    if (process->state & STATE_SENDING)
        leave_queue(process);
    wake(process, result);
}

void forget(struct process *process)
{
    uint32_t slot = SLOT_OF(process->endpoint);

    end_wait(process, 0);
    make_unready(process);
    withdraw_offers(process);
    for (struct process *other = processes; other < processes + SLOTS; other++) {
        int sends = other->state & STATE_SENDING && other->to == process;
        int receives = other->state & STATE_RECEIVING && other->from == process->endpoint;
        if (other->endpoint == NONE || other == process)
            continue;
        clear_bit(other->notified, slot);
        if (sends || receives)
            end_wait(other, -EDEADEND);
    }
}

/* Checks the address of a message before a wait, so that its delivery rarely fails. */
static int is_writable(struct process *caller, uint32_t address)
{
    if (caller->directory == 0)
        return 1;
    return address <= KERNEL_BASE - sizeof(struct message) && space_byte(caller, address, 1) != NULL
        && space_byte(caller, address + sizeof(struct message) - 1, 1) != NULL;
}

int ipc(struct process *caller, uint32_t operation, endpoint_t endpoint, uint32_t address, uint32_t value)
{
    struct process *to = NULL;
    struct message message;
    int error;

    if (operation < IPC_SEND || operation > IPC_SENDA)
        return -ENOSYS;
    if (!(caller->rights.traps >> operation & 1))
        return denied(caller, ETRAPDENIED, operation);
    if (operation == IPC_SENDA)
        return offer(caller, address, value);
    if (operation == IPC_RECEIVE)
        return is_writable(caller, address) ? receive(caller, endpoint, address, value) : -EFAULT;

    to = process_at(endpoint);
    if (to == NULL)
        return -EDEADEND;
    if (to == caller || to == &processes[CLOCK] || to == &processes[HARDWARE] || to == &processes[IDLE])
        return -EINVAL;
    if ((error = check_destination(caller, to)) != 0)
        return error;
    if (operation == IPC_NOTIFY) {
        notify(SLOT_OF(caller->endpoint), to);
        return 0;
    }
    if (copy_in(caller, &message, address, sizeof message) != 0)
        return -EFAULT;
    if (operation == IPC_SENDREC && !is_writable(caller, address))
        return -EFAULT;
    if ((error = send(caller, to, &message)) != 0 || operation == IPC_SEND)
        return error;
    caller->wants_reply = 1;
    return receive(caller, to->endpoint, address, value);
}
