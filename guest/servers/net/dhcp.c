/* An address by DHCP (RFC 2131, with the options of RFC 2132). */

#include <string.h>
#include "socket.h"

#define FIXED 236u                  /* bytes before the options (RFC 2131, section 2) */
#define COOKIE 0x63825363u
#define REQUEST_BYTES 300u          /* the least that relays take (RFC 1542, section 2.1) */
#define BROADCAST_FLAG 0x8000u

enum { SUBNET = 1, ROUTER = 3, NAMESERVER = 6, ADDRESS = 50, LEASE = 51, TYPE = 53, SERVER = 54,
       PARAMETERS = 55, RENEW = 58, REBIND = 59, PAD = 0, END = 255 };
enum { DISCOVER = 1, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE };

#define FIRST_RETRY 1000000u        /* section 4.1: doubled to 64 s; a second suits networks of today */
#define LAST_RETRY 64000000u
#define LEASE_MIN 60u
#define LEASE_MAX 0x2000000u        /* a year: more is for ever */

static uint8_t *option(uint8_t *at, uint32_t type, uint32_t value)
{
    at[0] = type;
    at[1] = 4;
    put32(at + 2, value);
    return at + 6;
}

static void send(struct interface *interface, uint32_t type)
{
    uint8_t *data = ip_data() + UDP_HEADER, *at;
    int has_address = interface->dhcp >= DHCP_BOUND;
    uint32_t from = has_address ? interface->address : 0;
    uint32_t to = interface->dhcp == DHCP_RENEWING ? interface->dhcp_server : BROADCAST, neighbour = to;
    memset(data, 0, REQUEST_BYTES);
    data[0] = data[1] = 1;          /* a request; Ethernet */
    data[2] = 6;
    put32(data + 4, interface->dhcp_id);
    put16(data + 10, has_address ? 0 : BROADCAST_FLAG);
    put32(data + 12, from);
    memcpy(data + 28, interface->ethernet, 6);
    put32(data + FIXED, COOKIE);
    at = data + FIXED + 4;
    *at++ = TYPE, *at++ = 1, *at++ = type;
    if (interface->dhcp == DHCP_REQUESTING) {
        at = option(at, ADDRESS, interface->dhcp_offer);
        at = option(at, SERVER, interface->dhcp_server);
    }
    *at++ = PARAMETERS, *at++ = 4, *at++ = SUBNET, *at++ = ROUTER, *at++ = NAMESERVER, *at++ = LEASE;
    *at = END;
    udp_make(DHCP_CLIENT, DHCP_SERVER, REQUEST_BYTES, from, to);
    if (to != BROADCAST && ((to ^ interface->address) & interface->mask))
        neighbour = interface->gateway;
    ip_send_by(interface, PROTOCOL_UDP, from, to, neighbour, UDP_HEADER + REQUEST_BYTES);
}

static void set_due(struct interface *interface, uint64_t when)
{
    interface->dhcp_due = when;
    expect(when);
}

/* Asks, and again later if nobody answers. */
static void ask(struct interface *interface)
{
    uint64_t wait = (uint64_t)FIRST_RETRY << least(interface->dhcp_tries++, 6);
    if (wait > LAST_RETRY)
        wait = LAST_RETRY;
    send(interface, interface->dhcp == DHCP_SELECTING ? DISCOVER : REQUEST);
    set_due(interface, now + wait);
}

static void enter(struct interface *interface, enum dhcp_state state)
{
    interface->dhcp = state;
    interface->dhcp_tries = 0;
    if (state != DHCP_REQUESTING)
        interface->dhcp_id = random_number();
    ask(interface);
}

void dhcp_start(struct interface *interface)
{
    interface_configure(interface, 0, 0, 0);
    enter(interface, DHCP_SELECTING);
}

void dhcp_stop(struct interface *interface)
{
    interface->dhcp = DHCP_OFF;
    interface->dhcp_due = 0;
}

/* Finds an option of at least so many bytes; returns its bytes, or 0. */
static uint32_t find(const uint8_t *data, uint32_t bytes, uint32_t type, uint32_t least_bytes,
                     const uint8_t **value)
{
    uint32_t at = FIXED + 4;
    while (at < bytes && data[at] != END) {
        if (data[at] == PAD) {
            at++;
            continue;
        }
        if (at + 2 > bytes || at + 2 + data[at + 1] > bytes)
            return 0;
        if (data[at] == type) {
            *value = data + at + 2;
            return data[at + 1] >= least_bytes ? data[at + 1] : 0;
        }
        at += 2 + data[at + 1];
    }
    return 0;
}

static uint32_t number(const uint8_t *data, uint32_t bytes, uint32_t type, uint32_t otherwise)
{
    const uint8_t *value;
    return find(data, bytes, type, 4, &value) ? get32(value) : otherwise;
}

static uint32_t class_mask(uint32_t address)
{
    return address >> 31 == 0 ? 0xff000000 : address >> 30 == 2 ? 0xffff0000 : 0xffffff00;
}

static void accept(struct interface *interface, const uint8_t *data, uint32_t bytes)
{
    const uint8_t *value;
    uint32_t address = get32(data + 16), mask = number(data, bytes, SUBNET, class_mask(address));
    uint32_t gateway = number(data, bytes, ROUTER, 0), lease = number(data, bytes, LEASE, LEASE_MIN);
    uint32_t count = find(data, bytes, NAMESERVER, 4, &value) / 4;
    lease = lease < LEASE_MIN ? LEASE_MIN : least(lease, LEASE_MAX);
    if (!is_mask(mask) || is_broadcast(interface, address) || address == 0 || address >> 24 == 127)
        return;
    interface->lease = lease;
    interface->renew = least(number(data, bytes, RENEW, lease / 2), lease / 2);
    interface->rebind = least(number(data, bytes, REBIND, lease / 8 * 7), lease / 8 * 7);
    if (interface->renew < LEASE_MIN / 2)
        interface->renew = LEASE_MIN / 2;
    interface->lease_start = now;
    interface->dhcp = DHCP_BOUND;
    set_due(interface, now + interface->renew * 1000000ull);
    memset(interface->nameservers, 0, sizeof interface->nameservers);
    for (uint32_t i = 0; i < count && i < NET_NAMESERVERS; i++)
        interface->nameservers[i] = get32(value + 4 * i);
    if (interface->address == address && interface->mask == mask && interface->gateway == gateway)
        return;
    interface_configure(interface, address, mask, gateway);
    report("%s: %u.%u.%u.%u by DHCP", interface->name, (unsigned)(address >> 24),
           (unsigned)(address >> 16 & 255), (unsigned)(address >> 8 & 255), (unsigned)(address & 255));
}

void dhcp_received(struct interface *interface, const uint8_t *data, uint32_t bytes)
{
    const uint8_t *value;
    if (bytes < FIXED + 4 || data[0] != 2 || get32(data + FIXED) != COOKIE || interface->dhcp == DHCP_OFF ||
        interface->dhcp == DHCP_BOUND || get32(data + 4) != interface->dhcp_id ||
        memcmp(data + 28, interface->ethernet, 6) || !find(data, bytes, TYPE, 1, &value))
        return;
    uint32_t type = *value, server = number(data, bytes, SERVER, 0);
    if (type == OFFER && interface->dhcp == DHCP_SELECTING && server) {
        interface->dhcp_offer = get32(data + 16);
        interface->dhcp_server = server;
        enter(interface, DHCP_REQUESTING);
    } else if (type == ACK && interface->dhcp != DHCP_SELECTING) {
        accept(interface, data, bytes);
    } else if (type == NAK && interface->dhcp != DHCP_SELECTING) {
        dhcp_start(interface);
    }
}

/* Section 4.4.5: first the server is asked for more time, then any, then all begins anew. */
static void due(struct interface *interface)
{
    uint64_t age = (now - interface->lease_start) / 1000000;
    if (interface->dhcp >= DHCP_BOUND && age >= interface->lease)
        dhcp_start(interface);
    else if (interface->dhcp == DHCP_BOUND)
        enter(interface, DHCP_RENEWING);
    else if (interface->dhcp == DHCP_RENEWING && age >= interface->rebind)
        enter(interface, DHCP_REBINDING);
    else if (interface->dhcp == DHCP_REQUESTING && interface->dhcp_tries > 4)
        enter(interface, DHCP_SELECTING);
    else
        ask(interface);
}

void dhcp_timer(void)
{
    for (struct interface *i = interfaces + 1; i < interfaces + NET_INTERFACES; i++)
        if (i->dhcp != DHCP_OFF && i->up && is_due(i->dhcp_due))
            due(i);
}
