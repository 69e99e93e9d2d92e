/* The network server: its loop. It sleeps until a frame or a request comes or something is due. */

#include <stdarg.h>
#include <stdio.h>
#include <tern/lib.h>
#include <tern/server.h>
#include "../../drivers/common/character.h"
#include "server.h"

#define LOOPED_AT_ONCE 64
#define RINGS_AT_ONCE 4u
#define RINGS_MAX 256u              /* 16 MiB */

uint64_t now;

static struct free_ring {
    struct free_ring *next;
} *free_rings;
static uint32_t rings;

uint8_t *ring_allocate(void)
{
    uint32_t address = 0;
    if (!free_rings && rings < RINGS_MAX &&
        sys_map(SELF, &address, RINGS_AT_ONCE * RING_BYTES, MAP_WRITE, NULL) == 0) {
        rings += RINGS_AT_ONCE;
        for (uint32_t i = 0; i < RINGS_AT_ONCE; i++)
            ring_release((uint8_t *)address + i * RING_BYTES);
    }
    struct free_ring *ring = free_rings;
    if (ring)
        free_rings = ring->next;
    return (uint8_t *)ring;
}

void ring_release(uint8_t *ring)
{
    struct free_ring *freed = (struct free_ring *)ring;
    freed->next = free_rings;
    free_rings = freed;
}

/* When interrupts come is the one thing that nobody outside knows exactly. */
uint64_t entropy(void)
{
    struct times times;
    return sys_times(&times) == 0 ? times.tsc ^ times.run << 32 : 0;
}

void report(const char *format, ...)
{
    char line[128];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    log_line("%s", line);
}

static void look_at_clock(void)
{
    struct times times;
    if (sys_times(&times) == 0)
        now = times.microseconds;
}

static int other(struct message *m)
{
    look_at_clock();
    if (m->type == CARD_UP && m->source == server_rs()) {
        card_up(m);
        return NO_REPLY;
    }
    return net_request(m);
}

static void notified(endpoint_t source)
{
    look_at_clock();
    card_notified(source);
}

/* Returns for how many microseconds there is nothing to do; 0: for ever. */
static uint32_t work(void)
{
    int more = cards_receive();
    for (int i = 0; i < LOOPED_AT_ONCE && loopback_step(); i++)
        ;
    requests_retry();
    tcp_flush();
    uint32_t wait = character_retry();
    if (more || loopback_waiting())
        return 1;
    if (next_due != NEVER) {
        look_at_clock();
        if (next_due <= now) {
            timers_ring();
            cards_timer();
            return 1;
        }
        uint64_t left = next_due - now;
        if (wait == 0 || left < wait)
            wait = left < ~0u ? (uint32_t)left : ~0u;
    }
    return wait;
}

int main(void)
{
    static const struct server server = {.other = other, .notified = notified};
    look_at_clock();
    interfaces_start();
    server_ready();
    for (uint32_t wait = 0;; wait = work())
        server_step(&server, wait);
    return 0;
}
