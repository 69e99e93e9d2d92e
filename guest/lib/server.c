/* The frame of a server or driver. */

#include <tern/hal.h>
#include <tern/lib.h>
#include <tern/rs.h>
#include <tern/server.h>

/* Entry 0 is the newest reply, the others are posts. The kernel knows one table of a process at a time. */
static struct asynchronous outgoing[1 + SERVER_POSTS];
static uint32_t outgoing_used;

/* As FAULT_DUMB wants it: pings are not answered any more. */
static int dumb;

/* As FAULT_LATE wants it: the next answer is held until another request comes. */
#define LATE_MICROSECONDS 10000
static enum { PROMPT, LATE, HELD } answers;
static struct message held;
static endpoint_t held_for;

/* RS's endpoint, by the reply to RS_READY. RS itself is never replaced. */
static endpoint_t rs = NONE;

static void send_table(void)
{
    while (outgoing_used > 1 && outgoing[outgoing_used - 1].done)
        outgoing_used--;
    ipc_senda(outgoing, outgoing_used);
}

int server_reply(endpoint_t to, int32_t type, struct message *message)
{
    outgoing[0].to = to;
    outgoing[0].message = *message;
    outgoing[0].message.type = type;
    outgoing[0].done = 0;
    if (outgoing_used == 0)
        outgoing_used = 1;
    send_table();
    int received = outgoing[0].done == 1;
    if (!outgoing[0].done) {
        /* Nobody waits for it: it must not be taken for the answer to the next request. */
        outgoing[0].done = 1;
        send_table();
    }
    return received;
}

int server_post(endpoint_t to, const struct message *message)
{
    for (uint32_t i = 1; i <= SERVER_POSTS; i++) {
        if (i < outgoing_used && !outgoing[i].done)
            continue;
        outgoing[i].to = to;
        outgoing[i].message = *message;
        outgoing[i].done = 0;
        if (outgoing_used == 0)
            outgoing[0].done = 1;
        if (i >= outgoing_used)
            outgoing_used = i + 1;
        send_table();
        return 0;
    }
    return -EAGAIN;
}

void server_ready(void)
{
    struct message m = {.w = {0}};
    if (call(SERVICE(RS), RS_READY, &m) == 0)
        rs = m.source;
}

endpoint_t server_rs(void)
{
    return rs;
}

void server_end(int status)
{
    struct message m;
    for (;;) {
        m.w[0] = status;
        call(SERVICE(RS), RS_EXIT, &m);
    }
}

/* Does wrong as RS asks for it, so that tests can see what comes of it. */
static void fail(uint32_t how)
{
    uint32_t value = 0;
    switch (how) {
    case FAULT_POINTER:
        *(volatile uint32_t *)0xdead0000u = 1;
        break;
    case FAULT_LOOP:
        for (volatile int forever = 1; forever;)
            ;
        break;
    case FAULT_PORT:
        /* The second interrupt controller's mask, which no driver may touch. */
        sys_in(1, 0xa1, &value);
        hal_call(HAL_IN_BYTE, 0xa1, &value, NULL);
        __asm__ volatile("inb $0xa1, %%al" : : : "eax");
        break;
    case FAULT_EXIT:
        server_end(1);
        break;
    case FAULT_DUMB:
        dumb = 1;
        break;
    case FAULT_CALL:
        sys_privctl(SELF, NULL);
        break;
    case FAULT_DESTINATION:
        /* The first refusal is enough, and those that it may notify do not mind. */
        for (uint32_t number = 0; number < USERS && ipc_notify(SERVICE(number)) != -EDESTDENIED;)
            number++;
        break;
    case FAULT_INTERRUPT:
        sys_irqctl(IRQ_SET, 13);
        break;
    case FAULT_LATE:
        answers = LATE;
        break;
    }
}

static void save_and_end(const struct server *server, struct message *m)
{
    int result = server->save ? server->save() : 0;
    m->type = result;
    if (result)
        server_post(m->source, m);
    else
        server_end(0);
}

static void notified(const struct server *server, const struct message *m)
{
    if (m->source == HARDWARE) {
        if (server->interrupt)
            server->interrupt(m->w[0]);
    } else if (m->source == CLOCK) {
        if (server->alarm)
            server->alarm((uint64_t)m->w[1] << 32 | m->w[0]);
    } else if (m->source == SYSTEM) {
        if (server->event)
            server->event();
    } else if (m->source == rs) {
        if (!dumb)
            ipc_notify(SERVICE(RS));
    } else if (server->notified) {
        server->notified(m->source);
    }
}

/* Sends an answer, or holds it. */
static void answer(endpoint_t to, int32_t type, struct message *m)
{
    if (answers == LATE) {
        held = *m;
        held.type = type;
        held_for = to;
        answers = HELD;
    } else {
        server_reply(to, type, m);
    }
}

/* Whoever does not look at it goes on with it, as this waits a moment: SYSTEM sends nothing of its own
   accord. */
static void give_late(void)
{
    struct message m;
    answers = PROMPT;
    server_reply(held_for, held.type, &held);
    ipc_receive(SYSTEM, &m, LATE_MICROSECONDS);
}

void server_handle(const struct server *server, struct message *m)
{
    const struct server_request *entry = server->requests;
    endpoint_t source = m->source;
    int result = -ENOSYS;
    if (answers == HELD)
        give_late();
    while (entry && entry->type && entry->type != m->type)
        entry++;
    if (entry && entry->type)
        result = entry->handle(m);
    else if (server->other)
        result = server->other(m);
    if (result != NO_REPLY)
        answer(source, result, m);
}

int server_step(const struct server *server, uint32_t microseconds)
{
    struct message m;
    int result = ipc_receive(ANY, &m, microseconds);
    if (result)
        return result == -ETIMEDOUT ? result : 0;
    if (m.type == NOTIFICATION) {
        notified(server, &m);
    } else if (m.source == rs && m.type == RS_FAIL) {
        fail(m.w[0]);
    } else if (m.source == rs && m.type == RS_SAVE) {
        save_and_end(server, &m);
    } else if (m.type > 0) {
        server_handle(server, &m);
    } else if (server->other) {
        /* A reply to a message that was posted. */
        server->other(&m);
    }
    return 0;
}

void server_run(const struct server *server)
{
    server_ready();
    for (;;)
        server_step(server, 0);
}
