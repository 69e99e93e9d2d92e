/* Interfaces: that of each card, and lo, which gives its packets back. */

#include <string.h>
#include "socket.h"

#define ETHERNET_BYTES 6
#define LOOPBACK_PACKETS 64u
#define HOLD_MICROSECONDS 100000u   /* then a card that says nothing is asked again */
#define RETURN_MICROSECONDS 30000000u /* by which time a new driver is there, or none is to be expected */

struct interface interfaces[NET_INTERFACES];

static struct {
    uint32_t bytes;
    uint8_t packet[MTU];
} looped[LOOPBACK_PACKETS];
static uint32_t looped_first, looped_used;

void interfaces_start(void)
{
    struct interface *lo = &interfaces[0];
    strcpy(lo->name, "lo");
    lo->loopback = lo->up = 1;
    lo->address = LOOPBACK;
    lo->mask = LOOPBACK_MASK;
}

struct interface *interface_add(const char *name)
{
    struct interface *free = NULL;
    for (struct interface *i = interfaces; i < interfaces + NET_INTERFACES; i++) {
        if (strncmp(i->name, name, sizeof i->name) == 0)
            return i;
        if (!i->name[0] && !free)
            free = i;
    }
    if (free) {
        memset(free, 0, sizeof *free);
        strncpy(free->name, name, sizeof free->name - 1);
    }
    return free;
}

void interface_configure(struct interface *interface, uint32_t address, uint32_t mask, uint32_t gateway)
{
    interface->address = address;
    interface->mask = mask;
    interface->gateway = gateway;
    arp_forget(interface);
    if (address && interface->up && !interface->loopback)
        arp_announce(interface);
}

int is_mask(uint32_t mask)
{
    return (~mask & (~mask + 1)) == 0;
}

int interface_set(const struct net_setting *setting)
{
    struct interface *interface = interfaces;
    uint32_t address = swap32(setting->address), mask = swap32(setting->mask);
    while (interface < interfaces + NET_INTERFACES &&
           (!interface->name[0] || strncmp(interface->name, setting->name, sizeof interface->name)))
        interface++;
    if (interface == interfaces + NET_INTERFACES)
        return -ENODEV;
    if (interface->loopback || !is_mask(mask) || address >> 28 >= 14)
        return -EINVAL;
    dhcp_stop(interface);
    for (int i = 0; i < NET_NAMESERVERS; i++)
        interface->nameservers[i] = setting->dhcp ? 0 : swap32(setting->nameservers[i]);
    if (setting->dhcp)
        dhcp_start(interface);
    else
        interface_configure(interface, address, mask, swap32(setting->gateway));
    return 0;
}

void interface_list(struct net_interfaces *to)
{
    memset(to, 0, sizeof *to);
    for (const struct interface *i = interfaces; i < interfaces + NET_INTERFACES; i++) {
        if (!i->name[0])
            continue;
        struct net_interface *one = &to->interfaces[to->count++];
        memcpy(one->name, i->name, sizeof one->name);
        memcpy(one->ethernet, i->ethernet, sizeof one->ethernet);
        one->up = i->up;
        one->dhcp = i->dhcp == DHCP_OFF ? 0 : i->dhcp < DHCP_BOUND ? 1 : 2;
        one->address = swap32(i->address);
        one->mask = swap32(i->mask);
        one->gateway = swap32(i->gateway);
        for (int k = 0; k < NET_NAMESERVERS; k++)
            one->nameservers[k] = swap32(i->nameservers[k]);
        uint64_t end = i->lease_start + (uint64_t)i->lease * 1000000;
        one->lease = one->dhcp == 2 && end > now ? (uint32_t)((end - now) / 1000000) : 0;
        one->frames_in = i->frames_in;
        one->frames_out = i->frames_out;
        one->bytes_in = i->bytes_in;
        one->bytes_out = i->bytes_out;
        one->dropped = i->dropped;
        one->drivers = i->drivers;
    }
}

/* A new driver knows nothing of what its predecessor had to send. */
void interface_up(struct interface *interface)
{
    interface->up = 1;
    interface->drivers++;
    interface->held_bytes = 0;
    if (interface->address)
        arp_announce(interface);
    else if (interface->drivers == 1)
        dhcp_start(interface);
    tcp_continue();
    tcp_hurry();
}

void interface_down(struct interface *interface)
{
    if (interface->up)
        interface->lost_at = now;
    interface->up = 0;
    interface->held_bytes = 0;
}

/* A driver that has gone is soon replaced: until then it is as if what is sent were lost on the way. */
static int leads_out(const struct interface *interface)
{
    return interface->address && (interface->up || now - interface->lost_at < RETURN_MICROSECONDS);
}

void interface_room(struct interface *interface)
{
    if (!interface->held_bytes)
        return;
    if (card_send(interface, interface->held, interface->held_bytes) == -EAGAIN)
        return;
    interface->held_bytes = 0;
    tcp_continue();
}

int frame_send(struct interface *interface, const uint8_t *to, uint32_t type, uint8_t *frame, uint32_t bytes)
{
    if (!interface->up)
        return -ENETDOWN;
    if (interface->held_bytes)
        return -EAGAIN;
    memcpy(frame, to, ETHERNET_BYTES);
    memcpy(frame + ETHERNET_BYTES, interface->ethernet, ETHERNET_BYTES);
    put16(frame + 2 * ETHERNET_BYTES, type);
    int result = card_send(interface, frame, bytes);
    if (result == -EAGAIN) {
        memcpy(interface->held, frame, bytes);
        interface->held_bytes = bytes;
        interface->held_since = now;
        expect(now + HOLD_MICROSECONDS);
        result = 0;
    }
    interface->frames_out++;
    interface->bytes_out += bytes;
    return result;
}

void frame_received(struct interface *interface, const uint8_t *frame, uint32_t bytes)
{
    if (bytes < ETHERNET_HEADER)
        return;
    interface->frames_in++;
    interface->bytes_in += bytes;
    if (!(frame[0] & 1) && memcmp(frame, interface->ethernet, ETHERNET_BYTES))
        return;
    uint32_t type = get16(frame + 2 * ETHERNET_BYTES);
    if (type == TYPE_IP)
        ip_received(interface, frame + ETHERNET_HEADER, bytes - ETHERNET_HEADER);
    else if (type == TYPE_ARP)
        arp_received(interface, frame + ETHERNET_HEADER, bytes - ETHERNET_HEADER);
}

int is_own_address(uint32_t address)
{
    if ((address & LOOPBACK_MASK) == (LOOPBACK & LOOPBACK_MASK))
        return 1;
    for (const struct interface *i = interfaces + 1; i < interfaces + NET_INTERFACES; i++)
        if (i->address && i->address == address)
            return 1;
    return 0;
}

/* Also of multicast, which nobody here listens to. */
int is_broadcast(const struct interface *interface, uint32_t address)
{
    return address >> 28 >= 14 || (interface->address && interface->mask != BROADCAST &&
                                   address == (interface->address | ~interface->mask));
}

struct interface *route(uint32_t address, uint32_t *neighbour)
{
    *neighbour = address;
    if (is_own_address(address))
        return &interfaces[0];
    for (struct interface *i = interfaces + 1; i < interfaces + NET_INTERFACES; i++)
        if (leads_out(i) && ((address ^ i->address) & i->mask) == 0)
            return i;
    for (struct interface *i = interfaces + 1; i < interfaces + NET_INTERFACES; i++)
        if (leads_out(i) && (i->gateway || address == BROADCAST)) {
            *neighbour = address == BROADCAST ? address : i->gateway;
            return i;
        }
    return NULL;
}

int loopback_waiting(void)
{
    return looped_used != 0;
}

int loopback_step(void)
{
    uint32_t at = looped_first;
    if (!looped_used)
        return 0;
    /* The entry stays taken while it is read: the answer goes behind it. */
    interfaces[0].frames_in++;
    interfaces[0].bytes_in += looped[at].bytes;
    ip_received(&interfaces[0], looped[at].packet, looped[at].bytes);
    looped_first = (looped_first + 1) % LOOPBACK_PACKETS;
    if (looped_used-- == LOOPBACK_PACKETS)
        tcp_continue();
    return 1;
}

int loopback_put(const uint8_t *packet, uint32_t bytes)
{
    if (looped_used == LOOPBACK_PACKETS)
        return -EAGAIN;
    uint32_t at = (looped_first + looped_used++) % LOOPBACK_PACKETS;
    memcpy(looped[at].packet, packet, bytes);
    looped[at].bytes = bytes;
    interfaces[0].frames_out++;
    interfaces[0].bytes_out += bytes;
    return 0;
}

void interfaces_timer(void)
{
    for (struct interface *i = interfaces + 1; i < interfaces + NET_INTERFACES; i++)
        if (i->held_bytes && is_due(i->held_since + HOLD_MICROSECONDS)) {
            i->held_since = now;
            interface_room(i);
            if (i->held_bytes)
                expect(now + HOLD_MICROSECONDS);
        }
}
