/* What the protocols need from outside, given by the test. */

#include <stdarg.h>
#include "host.h"

#define FLYING_MAX 4096

uint64_t now = 1000000;
struct wire wire;
struct interface *card;
uint8_t socket_events[SOCKETS];
uint32_t rings_used;

static const uint8_t own[6] = {2, 0, 0, 0, 0, 1}, other[6] = {2, 0, 0, 0, 0, 2};
static int card_was_busy;
static struct flying {
    uint64_t at;
    uint32_t number;                /* of two at the same time, the first comes first */
    uint32_t bytes;                 /* 0: the entry is free */
    uint8_t frame[FRAME_MAX];
} flying[FLYING_MAX];
static uint32_t last_number;
static uint64_t random_state = 1;

uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16) % limit;
}

uint64_t entropy(void)
{
    return (uint64_t)random_below(~0u) << 32 | random_below(~0u);
}

void report(const char *format, ...)
{
    (void)format;
}

void socket_changed(struct socket *socket)
{
    socket_events[socket - sockets] = 1;
}

uint8_t *ring_allocate(void)
{
    if (rings_used == 2 * SOCKETS)
        fail("too many rings");
    rings_used++;
    return malloc(RING_BYTES);
}

void ring_release(uint8_t *ring)
{
    rings_used--;
    free(ring);
}

static int per_mille(uint32_t chance)
{
    return random_below(1000) < chance;
}

static void fly(const uint8_t *frame, uint32_t bytes)
{
    struct flying *f = flying;
    while (f < flying + FLYING_MAX && f->bytes)
        f++;
    if (f == flying + FLYING_MAX)
        fail("more than %d packets are on their way", FLYING_MAX);
    f->at = now + wire.delay + (per_mille(wire.disorder) ? random_below(20000) : 0);
    f->number = ++last_number;
    f->bytes = bytes;
    memcpy(f->frame, frame, bytes);
}

static void exchange(uint8_t *header)
{
    uint32_t from = get32(header + 12);
    put32(header + 12, get32(header + 16));
    put32(header + 16, from);
}

/* The other side answers ARP, and returns packets of IP. */
static void reflect(uint8_t *frame, uint32_t bytes)
{
    uint8_t *packet = frame + ETHERNET_HEADER;
    memcpy(frame, own, 6);
    memcpy(frame + 6, other, 6);
    if (get16(frame + 12) == TYPE_ARP) {
        if (get16(packet + 6) != 1 || get32(packet + 24) != THERE)
            return;
        put16(packet + 6, 2);
        memcpy(packet + 18, packet + 8, 10);
        memcpy(packet + 8, other, 6);
        put32(packet + 14, THERE);
    } else {
        if (get32(packet + 16) != THERE)
            return;
        exchange(packet);
        /* An ICMP error has the header of the packet that it is about. */
        if (packet[9] == PROTOCOL_ICMP && packet[IP_HEADER] == ICMP_UNREACHABLE)
            exchange(packet + IP_HEADER + 8);
    }
    fly(frame, bytes);
    if (per_mille(wire.duplication))
        fly(frame, bytes);
}

int card_send(struct interface *interface, const uint8_t *frame, uint32_t bytes)
{
    uint8_t copy[FRAME_MAX];
    CHECK(interface == card && bytes >= ETHERNET_HEADER && bytes <= FRAME_MAX);
    if (!card_was_busy && per_mille(wire.busy)) {
        card_was_busy = 1;
        return -EAGAIN;
    }
    wire.sent++;
    memcpy(wire.frame, frame, bytes);
    wire.bytes = bytes;
    memcpy(copy, frame, bytes);
    if (per_mille(wire.loss))
        wire.lost++;
    else if (!wire.keeps)
        reflect(copy, bytes);
    return 0;
}

static void deliver(struct flying *f)
{
    uint8_t *exact = malloc(f->bytes); /* so that the sanitizer sees what is read behind it */
    memcpy(exact, f->frame, f->bytes);
    uint32_t bytes = f->bytes;
    f->bytes = 0;
    frame_received(card, exact, bytes);
    free(exact);
}

static struct flying *next_flying(void)
{
    struct flying *next = NULL;
    for (struct flying *f = flying; f < flying + FLYING_MAX; f++)
        if (f->bytes && (!next || f->at < next->at || (f->at == next->at && before(f->number, next->number))))
            next = f;
    return next;
}

static void finish(void)
{
    for (int i = 0; i < 1000 && loopback_step(); i++)
        ;
    tcp_flush();
    if (card_was_busy) {
        card_was_busy = 0;
        interface_room(card);
    }
}

int world_step(uint32_t most)
{
    struct flying *f = next_flying();
    uint64_t limit = now + most;
    finish();
    uint64_t at = f && f->at < next_due ? f->at : next_due;
    if (at > limit || loopback_waiting()) {
        now = loopback_waiting() ? now : limit;
        return loopback_waiting();
    }
    if (at > now)
        now = at;
    if (f && f->at <= now)
        deliver(f);
    else
        timers_ring();
    finish();
    return 1;
}

void world_pass(uint32_t seconds)
{
    uint64_t end = now + seconds * 1000000ull;
    for (uint32_t steps = 0; now < end; steps++) {
        if (steps > 10000000)
            fail("something never ends");
        world_step(end - now < 1000000 ? (uint32_t)(end - now) : 1000000);
    }
}

void world_start(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    for (struct socket *s = sockets; s < sockets + SOCKETS; s++)
        if (s->used)
            socket_free(s);
    CHECK(rings_used == 0);
    memset(&wire, 0, sizeof wire);
    memset(flying, 0, sizeof flying);
    if (!card) {
        interfaces_start();
        card = interface_add("card");
        memcpy(card->ethernet, own, 6);
    }
    card->held_bytes = 0;
    card_was_busy = 0;
    card->up = 1;
    dhcp_stop(card);
    interface_configure(card, HERE, 0xffffff00, 0);
}

void give_ip(uint32_t protocol, uint32_t from, uint32_t to, const uint8_t *data, uint32_t bytes, uint32_t id,
             uint32_t part)
{
    struct flying f = {.bytes = ETHERNET_HEADER + IP_HEADER + bytes};
    uint8_t *header = f.frame + ETHERNET_HEADER;
    CHECK(f.bytes <= FRAME_MAX);
    memcpy(f.frame, own, 6);
    memcpy(f.frame + 6, other, 6);
    put16(f.frame + 12, TYPE_IP);
    header[0] = 0x45;
    put16(header + 2, IP_HEADER + bytes);
    put16(header + 4, id);
    put16(header + 6, part);
    header[8] = 64;
    header[9] = protocol;
    put32(header + 12, from);
    put32(header + 16, to);
    put16(header + 10, checksum_end(checksum_add(0, header, IP_HEADER)));
    memcpy(header + IP_HEADER, data, bytes);
    deliver(&f);
    finish();
}

void sum_tcp(uint8_t *data, uint32_t bytes, uint32_t from, uint32_t to)
{
    put16(data + 16, 0);
    put16(data + 16, checksum_between(from, to, PROTOCOL_TCP, data, bytes));
}

void sum_icmp(uint8_t *data, uint32_t bytes)
{
    put16(data + 2, 0);
    put16(data + 2, checksum_end(checksum_add(0, data, bytes)));
}

void check_sockets(void)
{
    for (const struct socket *s = sockets; s < sockets + SOCKETS; s++) {
        const struct tcp *t = &s->tcp;
        if (!s->used)
            continue;
        CHECK(s->in.used < RING_BYTES && s->out.used <= RING_BYTES);
        CHECK(s->in.data || !s->in.used);
        CHECK(s->out.data || !s->out.used);
        CHECK(t->range_count <= RANGES);
        for (uint32_t i = 0; i < t->range_count; i++) {
            CHECK(before(t->ranges[i].first, t->ranges[i].end));
            CHECK(t->ranges[i].end - t->rcv_nxt < RING_BYTES - s->in.used);
            CHECK(i == 0 || before(t->ranges[i - 1].end, t->ranges[i].first));
        }
        if (s->state >= NET_ESTABLISHED && s->state < NET_TIME_WAIT)
            CHECK(!before(t->max, t->nxt) && !before(t->nxt, t->una) && t->max - t->una <= RING_BYTES + 1);
    }
}

uint32_t sockets_used(void)
{
    uint32_t count = 0;
    for (const struct socket *s = sockets; s < sockets + SOCKETS; s++)
        count += s->used;
    return count;
}

int main(int argc, char **argv)
{
    uint32_t seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1,
             count = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "parts") == 0)
        test_parts();
    else if (argc > 1 && strcmp(argv[1], "streams") == 0)
        test_streams(seed, count);
    else if (argc > 1 && strcmp(argv[1], "hostile") == 0)
        test_hostile(seed, count);
    else
        fail("usage: net parts | streams SEED COUNT | hostile SEED COUNT");
    return 0;
}
