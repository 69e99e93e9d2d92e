/* Joins the fragments of datagrams (RFC 791, section 3.2), a few at a time. One that is too large, or whose
   fragments overlap (RFC 5722, section 4, says why), is dropped as a whole. */

#include <string.h>
#include "net.h"

#define DATAGRAMS 4
#define UNIT 8u
#define UNITS ((DATAGRAM_MAX + UNIT - 1) / UNIT)
#define VALID_MICROSECONDS 30000000u

static struct datagram {
    uint8_t used;
    uint32_t from, to, protocol, id;
    uint64_t since;
    uint32_t bytes;                 /* of the whole, 0 until the last fragment has come */
    uint32_t units;                 /* that are there */
    uint8_t there[UNITS];
    uint8_t data[UNITS * UNIT];
} datagrams[DATAGRAMS];

static struct datagram *find(const struct packet *packet, uint32_t id)
{
    struct datagram *oldest = datagrams;
    for (struct datagram *d = datagrams; d < datagrams + DATAGRAMS; d++) {
        if (d->used && now - d->since > VALID_MICROSECONDS)
            d->used = 0;
        if (d->used && d->id == id && d->from == packet->from && d->to == packet->to &&
            d->protocol == packet->protocol)
            return d;
        if (!d->used || (oldest->used && d->since < oldest->since))
            oldest = d;
    }
    memset(oldest, 0, offsetof(struct datagram, data));
    oldest->used = 1;
    oldest->from = packet->from;
    oldest->to = packet->to;
    oldest->protocol = packet->protocol;
    oldest->id = id;
    oldest->since = now;
    return oldest;
}

/* Returns how many of the units are there already. */
static uint32_t count(const struct datagram *d, uint32_t first, uint32_t units)
{
    uint32_t there = 0;
    for (uint32_t i = 0; i < units; i++)
        there += d->there[first + i];
    return there;
}

int fragment_received(struct packet *packet, uint32_t id, uint32_t offset, int more)
{
    struct datagram *d = find(packet, id);
    uint32_t first = offset / UNIT, units = (packet->bytes + UNIT - 1) / UNIT, end = offset + packet->bytes;
    int is_wrong = packet->bytes == 0 || end > DATAGRAM_MAX || (more && packet->bytes % UNIT) ||
                   (d->bytes && (end > d->bytes || (!more && end != d->bytes)));
    uint32_t there = is_wrong ? 0 : count(d, first, units);
    if (!is_wrong && there == units)
        return 0; /* it came twice */
    if (is_wrong || there) {
        d->used = 0;
        return 0;
    }
    memset(d->there + first, 1, units);
    memcpy(d->data + offset, packet->data, packet->bytes);
    d->units += units;
    if (!more)
        d->bytes = end;
    /* With more units than its length has, some lie behind its end. */
    if (!d->bytes || d->units < (d->bytes + UNIT - 1) / UNIT)
        return 0;
    d->used = 0;
    if (d->units > (d->bytes + UNIT - 1) / UNIT)
        return 0;
    packet->data = d->data;
    packet->bytes = d->bytes;
    return 1;
}
