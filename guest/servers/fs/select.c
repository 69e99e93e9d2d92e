/* Select. Drivers are first asked what can be done at once; if that is nothing, they are asked to answer when
   something can. Pipes call select_check when they change. */

#include "outside.h"
#include "server.h"

static uint32_t wants(const struct selection *s, uint32_t descriptor)
{
    return (s->read >> descriptor & 1 ? CAN_READ : 0) | (s->write >> descriptor & 1 ? CAN_WRITE : 0);
}

static void note(struct selection *s, uint32_t descriptor, uint32_t can)
{
    if (can & CAN_READ)
        s->can_read |= s->read & 1u << descriptor;
    if (can & CAN_WRITE)
        s->can_write |= s->write & 1u << descriptor;
}

static int is_driven(const struct file *file)
{
    return !file->pipe && (file->node->mode & S_IFMT) == S_IFCHR && file->device >> 8 != MAJOR_MEMORY;
}

static void answer(struct client *client)
{
    struct selection *s = &client->selection;
    struct message m = {.w = {s->can_read, s->can_write}};
    client->waits = NOTHING; /* before the requests end, whose answers must find nothing to do */
    devices_cancel(client);
    s->outstanding = 0;
    server_reply(client->endpoint, 0, &m);
}

/* Files and disks never let wait; pipes know themselves. */
static void check_own(struct client *client)
{
    struct selection *s = &client->selection;
    for (uint32_t i = 0; i < DESCRIPTORS; i++) {
        uint32_t wanted = wants(s, i);
        struct file *file = client->files[i];
        if (wanted && file && !is_driven(file))
            note(s, i, file->pipe ? pipe_can(file, wanted) : wanted);
    }
}

static int ask_drivers(struct client *client, uint32_t wait)
{
    struct selection *s = &client->selection;
    for (uint32_t i = 0; i < DESCRIPTORS; i++) {
        uint32_t wanted = wants(s, i);
        if (!wanted || !client->files[i] || !is_driven(client->files[i]))
            continue;
        int result = device_select(client, i, wanted | wait);
        if (result)
            return result;
        s->outstanding++;
    }
    return 0;
}

int do_select(struct client *client, struct message *m)
{
    struct selection *s = &client->selection;
    *s = (struct selection){.read = m->w[0], .write = m->w[1]};
    for (uint32_t i = 0; i < DESCRIPTORS; i++)
        if (wants(s, i) && !client->files[i])
            return -EBADF;
    s->until = m->w[2] == ~0u ? 0 : microseconds() + m->w[2];
    client->waits = SELECTION;
    client->done = 0;
    check_own(client);
    int result = ask_drivers(client, 0);
    if (result) {
        client->waits = NOTHING;
        devices_cancel(client);
        return result;
    }
    if (s->outstanding == 0)
        select_check(client);
    return NO_REPLY;
}

void select_check(struct client *client)
{
    struct selection *s = &client->selection;
    if (client->waits != SELECTION)
        return;
    check_own(client);
    if (s->outstanding && !s->waiting)
        return; /* first hear all drivers */
    if (s->can_read || s->can_write || (s->until && microseconds() >= s->until)) {
        answer(client);
        return;
    }
    if (!s->waiting) {
        s->waiting = 1;
        if (ask_drivers(client, CAN_WAIT))
            answer(client);
    }
}

void select_replied(struct client *client, uint32_t descriptor, int32_t can)
{
    struct selection *s = &client->selection;
    if (client->waits != SELECTION || s->outstanding == 0)
        return;
    s->outstanding--;
    /* An error can be read and written. */
    note(s, descriptor, can < 0 ? CAN_READ | CAN_WRITE : (uint32_t)can);
    select_check(client);
}

uint64_t select_next(void)
{
    uint64_t next = ~0ull;
    for (struct client *client = clients; client < clients + SLOTS; client++)
        if (client->endpoint != NONE && client->waits == SELECTION && client->selection.until &&
            client->selection.until < next)
            next = client->selection.until;
    return next;
}
