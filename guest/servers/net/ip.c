/* The internet protocol (RFC 791). */

#include <string.h>
#include "socket.h"

#define TIME_TO_LIVE 64
#define MORE_FRAGMENTS 0x2000u
#define OFFSET_MASK 0x1fffu

static uint8_t buffer[ETHERNET_HEADER + IP_HEADER + DATAGRAM_MAX];
static uint16_t last_id;

/* The sum of 16-bit words, by words of 32 bits, whose carries are added at the end (RFC 1071). The order of
   bytes is the machine's until checksum_end. */
uint32_t checksum_add(uint32_t sum, const uint8_t *from, uint32_t bytes)
{
    uint64_t total = sum;
    uint32_t word;
    for (; bytes >= 16; from += 16, bytes -= 16) {
        uint32_t words[4];
        memcpy(words, from, sizeof words);
        total += words[0];
        total += words[1];
        total += words[2];
        total += words[3];
    }
    for (; bytes >= 4; from += 4, bytes -= 4) {
        memcpy(&word, from, 4);
        total += word;
    }
    word = 0;
    memcpy(&word, from, bytes);
    total += word;
    total = (total & 0xffffffff) + (total >> 32);
    return (uint32_t)total + (uint32_t)(total >> 32);
}

uint16_t checksum_end(uint32_t sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return swap16((uint16_t)~sum);
}

uint16_t checksum_between(uint32_t from, uint32_t to, uint32_t protocol, const uint8_t *data, uint32_t bytes)
{
    uint8_t header[12];
    put32(header, from);
    put32(header + 4, to);
    put16(header + 8, protocol);
    put16(header + 10, bytes);
    return checksum_end(checksum_add(checksum_add(0, header, sizeof header), data, bytes));
}

static void deliver(const struct packet *packet)
{
    switch (packet->protocol) {
    case PROTOCOL_TCP:
        tcp_received(packet);
        break;
    case PROTOCOL_UDP:
        udp_received(packet);
        break;
    case PROTOCOL_ICMP:
        icmp_received(packet);
        break;
    }
}

/* Whether it is for us. An interface without an address takes what may be DHCP's. */
static int is_for_us(const struct packet *packet)
{
    const struct interface *interface = packet->interface;
    if (interface->loopback)
        return is_own_address(packet->to);
    if (packet->is_broadcast || (!interface->address && packet->protocol == PROTOCOL_UDP))
        return 1;
    /* Of another interface, too, but not 127.0.0.1. */
    return packet->to >> 24 != 127 && is_own_address(packet->to);
}

/* Senders that nobody may have (RFC 1122, section 3.2.1.3). */
static int is_martian(const struct packet *packet)
{
    uint32_t from = packet->from;
    if (packet->interface->loopback)
        return 0;
    return from >> 24 == 127 || is_own_address(from) || is_broadcast(packet->interface, from) || from == 0;
}

void ip_received(struct interface *interface, const uint8_t *data, uint32_t bytes)
{
    if (bytes < IP_HEADER || data[0] >> 4 != 4)
        return;
    uint32_t header = (data[0] & 15) * 4u, total = get16(data + 2), part = get16(data + 6);
    if (header < IP_HEADER || total < header || total > bytes || checksum_end(checksum_add(0, data, header)))
        return;
    struct packet packet = {.interface = interface, .from = get32(data + 12), .to = get32(data + 16),
                            .protocol = data[9], .header = data, .header_bytes = header,
                            .data = data + header, .bytes = total - header};
    packet.is_broadcast = is_broadcast(interface, packet.to);
    if (!is_for_us(&packet) || is_martian(&packet))
        return;
    if (!(part & (MORE_FRAGMENTS | OFFSET_MASK)) ||
        fragment_received(&packet, get16(data + 4), (part & OFFSET_MASK) * 8, part & MORE_FRAGMENTS))
        deliver(&packet);
}

uint8_t *ip_data(void)
{
    return buffer + ETHERNET_HEADER + IP_HEADER;
}

uint32_t ip_source(uint32_t to)
{
    uint32_t neighbour;
    const struct interface *interface = route(to, &neighbour);
    if (!interface)
        return 0;
    return interface->loopback ? to : interface->address;
}

static void make_header(uint8_t *header, uint32_t bytes, uint32_t part, uint32_t protocol, uint32_t from,
                        uint32_t to)
{
    header[0] = 0x45;
    header[1] = 0;
    put16(header + 2, IP_HEADER + bytes);
    put16(header + 4, last_id);
    put16(header + 6, part);
    header[8] = TIME_TO_LIVE;
    header[9] = protocol;
    put16(header + 10, 0);
    put32(header + 12, from);
    put32(header + 16, to);
    put16(header + 10, checksum_end(checksum_add(0, header, IP_HEADER)));
}

static int send_frame(struct interface *interface, uint32_t neighbour, uint8_t *frame, uint32_t bytes)
{
    if (interface->loopback)
        return loopback_put(frame + ETHERNET_HEADER, bytes - ETHERNET_HEADER);
    return arp_send(interface, neighbour, frame, bytes);
}

int ip_send_by(struct interface *interface, uint32_t protocol, uint32_t from, uint32_t to, uint32_t neighbour,
               uint32_t bytes)
{
    static uint8_t fragment[FRAME_MAX];
    uint32_t most = (MTU - IP_HEADER) & ~7u;
    last_id++;
    if (bytes <= MTU - IP_HEADER) {
        make_header(buffer + ETHERNET_HEADER, bytes, 0, protocol, from, to);
        return send_frame(interface, neighbour, buffer, ETHERNET_HEADER + IP_HEADER + bytes);
    }
    for (uint32_t at = 0; at < bytes; at += most) {
        uint32_t part = least(most, bytes - at);
        make_header(fragment + ETHERNET_HEADER, part, at / 8 | (at + part < bytes ? MORE_FRAGMENTS : 0),
                    protocol, from, to);
        memcpy(fragment + ETHERNET_HEADER + IP_HEADER, ip_data() + at, part);
        int result = send_frame(interface, neighbour, fragment, ETHERNET_HEADER + IP_HEADER + part);
        if (result)
            return result;
    }
    return 0;
}

int ip_send(uint32_t protocol, uint32_t from, uint32_t to, uint32_t bytes)
{
    uint32_t neighbour;
    struct interface *interface = route(to, &neighbour);
    if (!interface)
        return -ENETUNREACH;
    int result = ip_send_by(interface, protocol, from ? from : ip_source(to), to, neighbour, bytes);
    /* TCP sends it again. */
    if ((result == -EAGAIN || result == -ENETDOWN) && protocol != PROTOCOL_TCP)
        interface->dropped++;
    return result == -ENETDOWN ? 0 : result;
}
