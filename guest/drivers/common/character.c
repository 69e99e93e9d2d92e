/* Replies to requests for characters. */

#include <string.h>
#include <tern/lib.h>
#include <tern/server.h>
#include "character.h"

#define REPLIES_MAX 96
#define RETRY_MICROSECONDS 1000

static struct {
    endpoint_t to;
    uint32_t number;
    int32_t result;
} waiting[REPLIES_MAX];
static uint32_t waiting_used;

static int post(endpoint_t to, uint32_t number, int32_t result)
{
    struct message m = {.type = DEVICE_REPLY, .w = {number, (uint32_t)result}};
    return server_post(to, &m);
}

void character_reply(endpoint_t to, uint32_t number, int32_t result)
{
    if (waiting_used == 0 && post(to, number, result) == 0)
        return;
    /* More requests than this are not accepted at a time, so the table is full only if a requester floods. */
    if (waiting_used == REPLIES_MAX)
        return;
    waiting[waiting_used].to = to;
    waiting[waiting_used].number = number;
    waiting[waiting_used++].result = result;
}

uint32_t character_retry(void)
{
    uint32_t sent = 0;
    while (sent < waiting_used &&
           post(waiting[sent].to, waiting[sent].number, waiting[sent].result) == 0)
        sent++;
    waiting_used -= sent;
    memmove(waiting, waiting + sent, waiting_used * sizeof *waiting);
    return waiting_used ? RETRY_MICROSECONDS : 0;
}

int ioctl_read(const struct message *request, void *to, uint32_t bytes)
{
    if (IOCTL_BYTES(request->w[2]) != bytes)
        return -EINVAL;
    return sys_safecopy(request->source, request->w[3], 0, to, bytes, GRANT_READ);
}

int ioctl_write(const struct message *request, const void *from, uint32_t bytes)
{
    if (IOCTL_BYTES(request->w[2]) != bytes)
        return -EINVAL;
    return sys_safecopy(request->source, request->w[3], 0, (void *)from, bytes, GRANT_WRITE);
}
