/* Processes that use files. PM says when they come and go. */

#include <string.h>
#include "server.h"

struct client clients[SLOTS];

struct client *client_of(endpoint_t endpoint)
{
    struct client *client = SLOT_OF(endpoint) < SLOTS ? &clients[SLOT_OF(endpoint)] : NULL;
    return client && client->endpoint == endpoint ? client : NULL;
}

void client_answer(struct client *client, int32_t result, uint32_t value)
{
    struct message m = {.w = {value}};
    client->waits = NOTHING;
    server_reply(client->endpoint, result, &m);
}

static void drop(struct client *client)
{
    devices_cancel(client);
    pipe_cancel(client);
    client->waits = NOTHING;
    client->selection.outstanding = 0;
}

static void end(struct client *client)
{
    drop(client);
    for (int i = 0; i < DESCRIPTORS; i++)
        if (client->files[i])
            file_put(client->files[i]);
    node_put(client->directory);
    client->endpoint = NONE;
}

int client_fork(struct message *m)
{
    struct client *parent = m->w[0] == NONE ? NULL : client_of(m->w[0]);
    if (SLOT_OF(m->w[1]) >= SLOTS || (m->w[0] != NONE && !parent))
        return -EINVAL;
    struct client *child = &clients[SLOT_OF(m->w[1])];
    if (child->endpoint != NONE)
        end(child); /* PM did not say that it has ended */
    memset(child, 0, sizeof *child);
    child->directory = root;
    if (parent) {
        memcpy(child->files, parent->files, sizeof child->files);
        child->directory = parent->directory;
        child->close_on_exec = parent->close_on_exec;
        child->terminal = parent->terminal;
    }
    for (int i = 0; i < DESCRIPTORS; i++)
        if (child->files[i])
            child->files[i]->references++;
    node_hold(child->directory);
    child->endpoint = m->w[1];
    return 0;
}

int client_exec(struct message *m)
{
    struct client *client = client_of(m->w[0]);
    if (!client)
        return -ESRCH;
    for (int i = 0; i < DESCRIPTORS; i++) {
        if (!client->files[i] || !(client->close_on_exec >> i & 1))
            continue;
        struct file *file = client->files[i];
        client->files[i] = NULL;
        file_put(file);
    }
    client->close_on_exec = 0;
    return 0;
}

int client_exit(struct message *m)
{
    struct client *client = client_of(m->w[0]);
    if (!client)
        return -ESRCH;
    end(client);
    return 0;
}

/* Bytes that a write has got rid of count. */
int client_interrupt(struct message *m)
{
    struct client *client = client_of(m->w[0]);
    if (!client)
        return -ESRCH;
    if (client->waits == NOTHING)
        return 0;
    uint32_t done = client->waits == SELECTION ? 0 : client->done;
    drop(client);
    client_answer(client, done ? 0 : -EINTR, done);
    return 0;
}
