/* Addresses of Ethernet for those of IP (RFC 826), with a bound on what strangers can make us remember. */

#include <string.h>
#include "net.h"

#define ARP_BYTES 28u
#define REQUEST 1
#define REPLY 2
#define ENTRIES 32
#define TRIES 4
#define RETRY_MICROSECONDS 1000000u
#define VALID_MICROSECONDS 600000000u

static struct entry {
    struct interface *interface;    /* NULL: the entry is free */
    uint32_t address;
    uint8_t ethernet[6];
    uint8_t known, tries;
    uint64_t since;                 /* the last request, or the last answer */
    uint32_t waiting_bytes;         /* a frame that waits for the answer (RFC 1122, section 2.3.2.2) */
    uint8_t waiting[FRAME_MAX];
} entries[ENTRIES];

static const uint8_t everybody[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

static void send(struct interface *interface, uint32_t operation, const uint8_t *ethernet, uint32_t address,
                 const uint8_t *to)
{
    uint8_t frame[ETHERNET_HEADER + ARP_BYTES] = {0}, *packet = frame + ETHERNET_HEADER;
    put16(packet, 1);               /* Ethernet */
    put16(packet + 2, TYPE_IP);
    packet[4] = 6;
    packet[5] = 4;
    put16(packet + 6, operation);
    memcpy(packet + 8, interface->ethernet, 6);
    put32(packet + 14, interface->address);
    memcpy(packet + 18, ethernet, 6);
    put32(packet + 24, address);
    frame_send(interface, to, TYPE_ARP, frame, sizeof frame);
}

static void request(struct interface *interface, uint32_t address)
{
    static const uint8_t unknown[6];
    send(interface, REQUEST, unknown, address, everybody);
}

static void ask(struct entry *entry)
{
    request(entry->interface, entry->address);
    entry->since = now;
    entry->tries++;
    expect(now + RETRY_MICROSECONDS);
}

/* Others learn where this address is now. */
void arp_announce(struct interface *interface)
{
    request(interface, interface->address);
}

void arp_forget(const struct interface *interface)
{
    for (struct entry *entry = entries; entry < entries + ENTRIES; entry++)
        if (entry->interface == interface)
            entry->interface = NULL;
}

static struct entry *find(const struct interface *interface, uint32_t address)
{
    for (struct entry *entry = entries; entry < entries + ENTRIES; entry++)
        if (entry->interface == interface && entry->address == address)
            return entry;
    return NULL;
}

/* Takes the place of the oldest if there is none. */
static struct entry *add(struct interface *interface, uint32_t address)
{
    struct entry *oldest = entries;
    for (struct entry *entry = entries; entry < entries + ENTRIES; entry++) {
        if (!entry->interface) {
            oldest = entry;
            break;
        }
        if (entry->since < oldest->since)
            oldest = entry;
    }
    oldest->interface = interface;
    oldest->address = address;
    oldest->known = oldest->tries = 0;
    oldest->waiting_bytes = 0;
    oldest->since = now;
    return oldest;
}

void arp_received(struct interface *interface, const uint8_t *packet, uint32_t bytes)
{
    if (bytes < ARP_BYTES || get16(packet) != 1 || get16(packet + 2) != TYPE_IP || packet[4] != 6 ||
        packet[5] != 4 || !interface->address || packet[8] & 1)
        return;
    uint32_t from = get32(packet + 14), to = get32(packet + 24);
    int is_request = get16(packet + 6) == REQUEST, is_for_us = to == interface->address;
    struct entry *entry = find(interface, from);
    if (from == interface->address || from == 0 || is_broadcast(interface, from))
        return;
    /* Only those who want something of us are remembered (RFC 826, "Packet Reception"). */
    if (!entry && is_for_us && is_request)
        entry = add(interface, from);
    if (entry) {
        uint32_t waiting = entry->waiting_bytes;
        memcpy(entry->ethernet, packet + 8, 6);
        entry->known = 1;
        entry->tries = 0;
        entry->since = now;
        entry->waiting_bytes = 0;
        if (waiting)
            frame_send(interface, entry->ethernet, TYPE_IP, entry->waiting, waiting);
    }
    if (is_request && is_for_us)
        send(interface, REPLY, packet + 8, from, packet + 8);
}

int arp_send(struct interface *interface, uint32_t neighbour, uint8_t *frame, uint32_t bytes)
{
    if (is_broadcast(interface, neighbour))
        return frame_send(interface, everybody, TYPE_IP, frame, bytes);
    struct entry *entry = find(interface, neighbour);
    if (entry && entry->known) {
        /* It is asked again from time to time, and used until it does not answer. */
        if (now - entry->since > VALID_MICROSECONDS && entry->tries == 0)
            ask(entry);
        return frame_send(interface, entry->ethernet, TYPE_IP, frame, bytes);
    }
    int is_new = !entry;
    if (is_new)
        entry = add(interface, neighbour);
    memcpy(entry->waiting, frame, bytes);
    entry->waiting_bytes = bytes;
    if (is_new)
        ask(entry);
    return 0;
}

/* Those who do not answer are forgotten; the next packet asks anew. */
void arp_timer(void)
{
    for (struct entry *entry = entries; entry < entries + ENTRIES; entry++) {
        if (!entry->interface || !entry->tries || !is_due(entry->since + RETRY_MICROSECONDS))
            continue;
        if (entry->tries < TRIES)
            ask(entry);
        else
            entry->interface = NULL;
    }
}
