/* Pipes, with and without names. */

#include <string.h>
#include "outside.h"
#include "server.h"

#define PIPES 64
#define PIPE_BYTES PAGE
#define ACCESS_MODE 3u

struct pipe {
    uint8_t *data;             /* NULL: the entry is free */
    uint32_t first, used;
    uint32_t readers, writers; /* open files */
    struct node *node;         /* of a FIFO */
};

static struct pipe pipes[PIPES];

static struct pipe *new_pipe(struct node *node)
{
    for (struct pipe *pipe = pipes; pipe < pipes + PIPES; pipe++) {
        if (pipe->data)
            continue;
        memset(pipe, 0, sizeof *pipe);
        pipe->data = page_allocate();
        pipe->node = node;
        return pipe->data ? pipe : NULL;
    }
    return NULL;
}

static void count(struct file *file, int change)
{
    uint32_t mode = file->flags & ACCESS_MODE;
    if (mode != O_WRONLY)
        file->pipe->readers += change;
    if (mode != O_RDONLY)
        file->pipe->writers += change;
}

static void retry(struct pipe *pipe);

/* Whether the other end is open: only then is an open without O_NONBLOCK over. */
static int has_other_end(const struct file *file)
{
    uint32_t mode = file->flags & ACCESS_MODE;
    return mode == O_RDONLY ? file->pipe->writers != 0 : mode == O_RDWR || file->pipe->readers != 0;
}

/* POSIX, open. What it leaves open is O_RDWR, which does not wait. */
int pipe_open(struct client *client, struct file *file, uint32_t descriptor)
{
    struct pipe *pipe = file->node->pipe;
    if (file->flags & O_NONBLOCK && (file->flags & ACCESS_MODE) == O_WRONLY && (!pipe || pipe->readers == 0))
        return -ENXIO;
    if (!pipe)
        pipe = file->node->pipe = new_pipe(file->node);
    if (!pipe)
        return -ENFILE;
    file->pipe = pipe;
    count(file, 1);
    retry(pipe);
    if (file->flags & O_NONBLOCK || has_other_end(file))
        return 0;
    client->waits = PIPE;
    client->request = (struct message){.type = FS_OPEN, .w = {descriptor}};
    client->done = 0;
    return NO_REPLY;
}

void pipe_cancel(struct client *client)
{
    uint32_t descriptor = client->request.w[0];
    if (client->waits != PIPE || client->request.type != FS_OPEN)
        return;
    struct file *file = client->files[descriptor];
    client->waits = NOTHING;
    client->files[descriptor] = NULL;
    file_put(file);
}

void pipe_close(struct file *file)
{
    struct pipe *pipe = file->pipe;
    count(file, -1);
    if (pipe->readers || pipe->writers) {
        retry(pipe);
        return;
    }
    if (pipe->node)
        pipe->node->pipe = NULL;
    page_release(pipe->data);
    pipe->data = NULL;
}

int do_pipe(struct client *client, struct message *m)
{
    struct file *ends[2] = {NULL, NULL};
    struct pipe *pipe = new_pipe(NULL);
    int result = pipe ? file_new(NULL, O_RDONLY, &ends[0]) : -ENFILE;
    if (result == 0)
        result = file_new(NULL, O_WRONLY, &ends[1]);
    for (int i = 0; i < 2 && ends[i]; i++) {
        ends[i]->pipe = pipe;
        count(ends[i], 1);
    }
    if (result == 0)
        result = file_place(client, ends[0], 0, 0, &m->w[0]);
    if (result == 0) {
        result = file_place(client, ends[1], 0, 0, &m->w[1]);
        if (result)
            client->files[m->w[0]] = NULL;
    }
    if (result == 0)
        return 0;
    for (int i = 0; i < 2; i++)
        if (ends[i])
            file_put(ends[i]);
    if (pipe && !ends[0]) {
        page_release(pipe->data);
        pipe->data = NULL;
    }
    return result;
}

/* Copies what goes in or comes out; returns the number of bytes or an error. */
static int move(struct client *client, struct pipe *pipe, uint32_t address, uint32_t bytes, int is_write)
{
    uint32_t done = 0, most = is_write ? PIPE_BYTES - pipe->used : pipe->used;
    if (bytes > most)
        bytes = most;
    while (done < bytes) {
        uint32_t at = (pipe->first + (is_write ? pipe->used : 0)) % PIPE_BYTES;
        uint32_t part = PIPE_BYTES - at < bytes - done ? PIPE_BYTES - at : bytes - done;
        uint32_t here = (uint32_t)pipe->data + at;
        int result = is_write ? sys_copy(client->endpoint, address + done, SELF, here, part)
                              : sys_copy(SELF, here, client->endpoint, address + done, part);
        if (result)
            return -EFAULT;
        if (is_write) {
            pipe->used += part;
        } else {
            pipe->first = (pipe->first + part) % PIPE_BYTES;
            pipe->used -= part;
        }
        done += part;
    }
    return done;
}

/* One attempt. Returns 0 with the bytes in *done when the request is over, NO_REPLY when it must wait, or an
   error. */
static int attempt(struct client *client, struct pipe *pipe, const struct message *m, int is_write,
                   uint32_t *done)
{
    uint32_t bytes = m->w[2];
    if (is_write && pipe->readers == 0)
        return *done ? 0 : -EPIPE;
    /* Writes of up to a pipe's size are whole or wait (POSIX, write). */
    if (is_write && bytes <= PIPE_BYTES && *done == 0 && PIPE_BYTES - pipe->used < bytes)
        return NO_REPLY;
    int result = move(client, pipe, m->w[1] + *done, bytes - *done, is_write);
    if (result < 0)
        return result;
    *done += result;
    if (is_write)
        return *done == bytes ? 0 : NO_REPLY;
    if (*done || bytes == 0)
        return 0;
    return pipe->writers == 0 ? 0 : NO_REPLY;
}

int pipe_transfer(struct client *client, struct file *file, struct message *m, int is_write)
{
    uint32_t done = 0, used = file->pipe->used;
    struct message request = *m;
    int result = attempt(client, file->pipe, m, is_write, &done);
    if (result == NO_REPLY && file->flags & O_NONBLOCK)
        result = done ? 0 : -EAGAIN;
    if (result == NO_REPLY) {
        client->waits = PIPE;
        client->request = request;
        client->done = done;
    }
    if (file->pipe->used != used)
        retry(file->pipe);
    m->w[0] = done;
    return result;
}

static int retry_client(struct client *client, struct pipe *pipe)
{
    struct file *file = file_of(client, client->request.w[0]);
    uint32_t used = pipe->used;
    if (!file || file->pipe != pipe)
        return 0;
    if (client->request.type == FS_OPEN) {
        if (has_other_end(file))
            client_answer(client, 0, client->request.w[0]);
        return 0;
    }
    int result = attempt(client, pipe, &client->request, client->request.type == FS_WRITE, &client->done);
    if (result != NO_REPLY)
        client_answer(client, result, client->done);
    return pipe->used != used;
}

/* The pipe has changed: those who wait for it may go on, which may let others go on. Each round moves bytes
   or is the last. */
static void retry(struct pipe *pipe)
{
    int changed = 1;
    while (changed) {
        changed = 0;
        for (struct client *client = clients; client < clients + SLOTS; client++) {
            if (client->endpoint == NONE)
                continue;
            if (client->waits == PIPE)
                changed |= retry_client(client, pipe);
            else if (client->waits == SELECTION)
                select_check(client);
        }
    }
}

uint32_t pipe_can(const struct file *file, uint32_t what)
{
    const struct pipe *pipe = file->pipe;
    uint32_t can = 0;
    if (what & CAN_READ && (pipe->used || pipe->writers == 0))
        can |= CAN_READ;
    if (what & CAN_WRITE && (pipe->used < PIPE_BYTES || pipe->readers == 0))
        can |= CAN_WRITE;
    return can;
}
