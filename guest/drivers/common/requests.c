/* Requests for terminals: those that wait stand in a table, in the order in which they came. */

#include <stdio.h>
#include <string.h>
#include <tern/fs.h>
#include <tern/lib.h>
#include "character.h"
#include "terminal.h"

#define LINES_MAX 4
#define PENDING_MAX 64
#define CHUNK 512

/* So many bytes are written at a time, so that a long write does not keep pings waiting. */
#define ROUND 8192

#define SELECT_READ 1
#define SELECT_WRITE 2
#define SELECT_WAIT 4

struct pending {
    endpoint_t from;
    uint32_t type, number, grant, bytes, flags;
    uint32_t done;         /* bytes written so far */
    struct line *line;
};

static struct line *lines[LINES_MAX];
static uint32_t lines_used;
static struct pending pending[PENDING_MAX];
static uint32_t pending_used;

static void settings_name(const struct line *line, char *name, uint32_t bytes)
{
    snprintf(name, bytes, "terminal.%u", (unsigned)line->minor);
}

void terminal_add(struct line *line)
{
    char name[32];
    struct terminal saved;
    if (lines_used == LINES_MAX)
        return;
    lines[lines_used++] = line;
    settings_name(line, name, sizeof name);
    if (ds_get(name, &saved, sizeof saved) == sizeof saved &&
        (!line->driver->set || line->driver->set(line, &saved) == 0))
        terminal_change(line, &saved);
}

static struct line *find_line(uint32_t minor)
{
    for (uint32_t i = 0; i < lines_used; i++)
        if (lines[i]->minor == minor)
            return lines[i];
    return NULL;
}

static uint32_t what_can_be_done(const struct line *line, uint32_t what)
{
    return (what & SELECT_READ && terminal_can_read(line) ? SELECT_READ : 0) |
           (what & SELECT_WRITE && terminal_room(line) ? SELECT_WRITE : 0);
}

/* Each of these returns whether the request is done; then *result is its result. */
static int try_read(struct pending *p, int32_t *result)
{
    uint8_t buffer[TERMINAL_INPUT_MAX];
    if (!terminal_can_read(p->line)) {
        *result = -EAGAIN;
        return (p->flags & O_NONBLOCK) != 0;
    }
    uint32_t got = terminal_read(p->line, buffer, p->bytes < sizeof buffer ? p->bytes : sizeof buffer);
    *result = got;
    if (got) {
        int error = sys_safecopy(p->from, p->grant, 0, buffer, got, GRANT_WRITE);
        if (error)
            *result = error;
    }
    return 1;
}

static int try_write(struct pending *p, int32_t *result)
{
    uint8_t buffer[CHUNK];
    for (uint32_t round = 0; p->done < p->bytes && round < ROUND;) {
        uint32_t room = terminal_room(p->line), bytes = p->bytes - p->done;
        bytes = bytes < room ? bytes : room;
        bytes = bytes < CHUNK ? bytes : CHUNK;
        if (bytes == 0)
            break;
        int error = sys_safecopy(p->from, p->grant, p->done, buffer, bytes, GRANT_READ);
        if (error) {
            *result = p->done ? (int32_t)p->done : error;
            return 1;
        }
        terminal_write(p->line, buffer, bytes);
        p->done += bytes;
        round += bytes;
    }
    *result = p->done ? (int32_t)p->done : -EAGAIN;
    return p->done == p->bytes || (p->flags & O_NONBLOCK);
}

static int try_select(struct pending *p, int32_t *result)
{
    uint32_t can = what_can_be_done(p->line, p->flags);
    *result = can;
    return can || !(p->flags & SELECT_WAIT);
}

/* Whether an earlier request of the kind is still waiting for the line: they are served in order. */
static int is_behind(const struct pending *p)
{
    if (p->type == DEVICE_SELECT)
        return 0;
    for (const struct pending *q = pending; q < p; q++)
        if (q->line == p->line && q->type == p->type)
            return 1;
    return 0;
}

static int try_request(struct pending *p, int32_t *result)
{
    if (is_behind(p)) {
        *result = -EAGAIN;
        return p->flags & O_NONBLOCK;
    }
    if (p->type == DEVICE_READ)
        return try_read(p, result);
    if (p->type == DEVICE_WRITE)
        return try_write(p, result);
    return try_select(p, result);
}

static void forget(uint32_t i)
{
    memmove(pending + i, pending + i + 1, (--pending_used - i) * sizeof *pending);
}

/* Goes once through all that wait. Returns whether more could be done at once. */
static int serve(void)
{
    int more = 0;
    for (uint32_t i = 0; i < pending_used;) {
        struct pending *p = &pending[i];
        int32_t result;
        if (try_request(p, &result)) {
            endpoint_t from = p->from;
            uint32_t number = p->number;
            forget(i);
            character_reply(from, number, result);
            continue;
        }
        if (p->type == DEVICE_WRITE && !is_behind(p) && terminal_room(p->line))
            more = 1;
        i++;
    }
    return more;
}

uint32_t terminal_idle(void)
{
    if (serve())
        return 1;
    return character_retry();
}

static void add(const struct message *m, struct line *line)
{
    struct pending p = {.from = m->source, .type = m->type, .number = m->w[0], .line = line};
    if (m->type == DEVICE_SELECT) {
        p.flags = m->w[2];
    } else {
        p.grant = m->w[2];
        p.bytes = m->w[3] < 0x7fffffff ? m->w[3] : 0x7fffffff;
        p.flags = m->w[4];
    }
    if (m->type != DEVICE_SELECT && p.bytes == 0)
        character_reply(m->source, p.number, 0);
    else if (pending_used == PENDING_MAX)
        character_reply(m->source, p.number, -EAGAIN);
    else
        pending[pending_used++] = p;
}

static void cancel(endpoint_t from, uint32_t number)
{
    for (uint32_t i = 0; i < pending_used; i++)
        if (pending[i].from == from && pending[i].number == number) {
            uint32_t done = pending[i].done;
            forget(i);
            character_reply(from, number, done ? (int32_t)done : -EINTR);
            return;
        }
}

static int set(struct line *line, const struct message *m)
{
    struct terminal settings;
    char name[32];
    int error = ioctl_read(m, &settings, sizeof settings);
    if (!error && line->driver->set)
        error = line->driver->set(line, &settings);
    if (error)
        return error;
    terminal_change(line, &settings);
    /* For a successor of this process. Without it, it starts with settings of its own. */
    settings_name(line, name, sizeof name);
    ds_put(name, &settings, sizeof settings);
    return 0;
}

static int32_t control(struct line *line, const struct message *m)
{
    if (m->w[2] == TERMINAL_GET)
        return ioctl_write(m, &line->settings, sizeof line->settings);
    if (m->w[2] == TERMINAL_SET)
        return set(line, m);
    return -ENOTTY;
}

int terminal_request(struct message *m)
{
    struct line *line = find_line(m->w[1]);
    uint32_t number = m->w[0];
    if (m->type == DEVICE_CANCEL)
        cancel(m->source, number);
    else if (!line)
        character_reply(m->source, number, -ENODEV);
    else if (m->type == DEVICE_IOCTL)
        character_reply(m->source, number, control(line, m));
    else if (m->type == DEVICE_OPEN || m->type == DEVICE_CLOSE)
        character_reply(m->source, number, 0);
    else
        add(m, line);
    return NO_REPLY;
}
